"""`boltdp card`: a model card, and the record of the deployments registry."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from boltdp._files import check_writable, replacing
from boltdp.cli._options import FILE
from boltdp.cli._terminal import emit, examples, note
from boltdp.errors import ParameterError
from boltdp.export import card as cards
from boltdp.model import Model

Command = TypeVar("Command", bound=Callable[..., Any])

#: The file name extensions of the formats that can be written.
ENDINGS = (".md", ".html", ".json", ".yaml")


def _owner_options(command: Command) -> Command:
    """Add an option for each text that the owner of the data must state."""
    for name, about in reversed(cards.OWNER.items()):
        option = click.option(f"--{name}", name.replace("-", "_"), metavar="TEXT", help=f"State {about}.")
        command = option(command)
    return command


@click.command(
    epilog=examples(
        "boltdp card model.json",
        "boltdp card model.json --evaluation evaluation.json --name 'Readmissions' --curator 'A hospital' -o card.html",
        "boltdp card model.json --evaluation evaluation.json -o readmissions.yaml",
    )
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=FILE,
    help="Markdown (.md), a page (.html), data (.json), or the record of the OpenDP deployments registry (.yaml).  "
    "[default: Markdown on standard output]",
)
@click.option(
    "--evaluation",
    metavar="JSON",
    type=FILE,
    help="What `boltdp evaluate --epsilon ... -o` wrote for this model: its utility.",
)
@_owner_options
def card(model_path: str, *, output: str | None, evaluation: str | None, **stated: str | None) -> None:
    """Write the card of MODEL: the guarantee, the unit of privacy, the parameters with their curve, and the rest.

    Its sections are the points of NIST SP 800-226. All of it follows from the model file, and from an evaluation that
    was released with noise. What only the owner of the data knows is given by options, or left as a visible blank.

    A .yaml file is what the OpenDP deployments registry asks for. Its checks refuse blanks in what they require.
    """
    model = Model.load(model_path)
    model.verify()
    ending = ".md" if output is None else Path(output).suffix
    if ending not in ENDINGS:
        raise ParameterError(f"the output must end in {', '.join(ENDINGS)}, got {output!r}")
    if output is not None:
        check_writable(output)
    # Line breaks and repeated blanks are replaced by single blanks.
    owner = {name.replace("_", "-"): " ".join(text.split()) for name, text in stated.items() if text and text.strip()}
    found = _load_evaluation(model, evaluation)
    if ending == ".md":
        text = cards.write_markdown(model, owner, found)
    elif ending == ".html":
        text = cards.write_html(model, owner, found)
    elif ending == ".json":
        text = json.dumps(cards.to_dict(model, owner, found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        text = cards.write_yaml(cards.make_registry_record(model, owner, found))
    if output is None:
        emit(text, newline=False)
    else:
        with replacing(output) as aside:
            aside.write_text(text, "utf-8")
    blanks = [name for name in cards.OWNER if name not in owner]
    if blanks:
        note(f"left blank, for the owner of the data to state: {', '.join(f'--{name}' for name in blanks)}")


def _load_evaluation(model: Model, path: str | None) -> Any:
    if path is None:
        return None
    from boltdp.evaluation.classification import NoisyEvaluation, digest_model

    found = NoisyEvaluation.load(path)
    if found.model != digest_model(model):
        raise ParameterError(f"the evaluation {path!r} must be of this model, and it is of another one")
    return found
