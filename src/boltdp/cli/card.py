from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boltdp._files.outputs import check_writable, write_text
from boltdp.cli._command_group import command
from boltdp.cli._options import FILE, combine_options, file_option, load_model
from boltdp.cli._terminal import emit, note
from boltdp.errors import ParameterError
from boltdp.export import card as cards
from boltdp.model import Model

if TYPE_CHECKING:
    from boltdp.evaluation.noisy_evaluation import NoisyEvaluation

#: The function that writes each format, by file name extension.
WRITERS: dict[str, Callable[..., str]] = {
    ".md": cards.write_markdown,
    ".html": cards.write_html,
    ".json": lambda *stated: json.dumps(cards.to_dict(*stated), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    ".yaml": lambda *stated: cards.write_yaml(cards.make_registry_record(*stated)),
}


@command(
    "boltdp card model.json",
    "boltdp card model.json --evaluation evaluation.json --name 'Readmissions' --curator 'A hospital' -o card.html",
    "boltdp card model.json --evaluation evaluation.json -o readmissions.yaml",
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@file_option(
    "-o",
    "--output",
    help="Markdown (.md), a page (.html), data (.json), or the record of the OpenDP deployments registry (.yaml).  "
    "[default: Markdown on standard output]",
)
@file_option(
    "--evaluation", metavar="JSON", help="What `boltdp evaluate --epsilon ... -o` wrote for this model: its utility."
)
@combine_options(
    *(
        click.option(f"--{name}", name.replace("-", "_"), metavar="TEXT", help=f"State {about}.")
        for name, about in cards.OWNER.items()
    )
)
def card(model_path: str, *, output: str | None, evaluation: str | None, **stated: str | None) -> None:
    """Write the card of MODEL: the guarantee, the unit of privacy, the parameters with their curve, and the rest.

    Its sections are the points of NIST SP 800-226. All of it follows from the model file, and from an evaluation that
    was released with noise. What only the owner of the data knows is given by options, or left as a visible blank.

    A .yaml file is what the OpenDP deployments registry asks for. Its checks refuse blanks in what they require.
    """
    model = load_model(model_path, verify=True)
    ending = ".md" if output is None else Path(output).suffix
    if ending not in WRITERS:
        raise ParameterError(f"the output must end in {', '.join(WRITERS)}, got {output!r}")
    if output is not None:
        check_writable(output)
    # Line breaks and repeated blanks are replaced by single blanks.
    owner = {name.replace("_", "-"): " ".join(text.split()) for name, text in stated.items() if text and text.strip()}
    text = WRITERS[ending](model, owner, None if evaluation is None else _load_evaluation(model, evaluation))
    if output is None:
        emit(text, newline=False)
    else:
        write_text(output, text)
    blanks = [name for name in cards.OWNER if name not in owner]
    if blanks:
        note(f"left blank, for the owner of the data to state: {', '.join(f'--{name}' for name in blanks)}")


def _load_evaluation(model: Model, path: str) -> NoisyEvaluation:
    from boltdp.evaluation.noisy_evaluation import NoisyEvaluation, digest_model

    found = NoisyEvaluation.load(path)
    if found.model != digest_model(model):
        raise ParameterError(f"the evaluation {path!r} must be of this model, and it is of another one")
    return found
