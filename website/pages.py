"""Which files become pages of the site, and what is changed in them on the way."""

from __future__ import annotations

import html
import json
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import boltdp

ROOT = Path(__file__).resolve().parents[1]
PROOFS = "src/boltdp/privacy"

#: Files outside docs/, and notebooks, and which page of the site each becomes.
ELSEWHERE = {
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "docs/notebook.ipynb": "notebook.md",
    "experiments/README.md": "experiments.md",
    **{str(path.relative_to(ROOT)): f"proofs/{path.name}" for path in sorted((ROOT / PROOFS).rglob("*.md"))},
    **{f"src/boltdp/kernel/{name}.md": f"kernel/{name}.md" for name in ("gaussian_noise", "update")},
}
#: Pages that were made elsewhere and stay as they are.
REPORTS = {"docs/reproduction.html": "reproduction-report.html"}

#: What stands at the side of every page, in the order of reading. Pages that are not named follow the others.
NAVIGATION = {
    "Tutorial": [
        "tutorial",
        "notebook",
    ],
    "How-to guides": [
        "howto/files",
        "howto/pandas",
        "scikit-learn <estimators>",
        "PostgreSQL <postgres>",
        "Spark <spark>",
        "howto/epsilon",
        "Persons, not rows <people>",
        "howto/bounds",
        "howto/classes",
        "howto/embeddings",
        "howto/numbers",
        "howto/coefficients",
        "Choose settings: tuning <tuning>",
        "models",
        "howto/publish",
        "howto/move",
    ],
    "Reference": [
        "Commands <cli>",
        "The schema file <schema>",
        "sources",
        "Python <api>",
        "Changes <changes>",
    ],
    "Explanation": [
        "design",
        "What is guaranteed <security>",
        "threat-model",
        "objective",
        "noisygd",
        "standardization",
        "whitebox",
        "Accuracy <accuracy>",
        "Coverage of intervals <coverage>",
        "Speed <measurements>",
        "reproduction",
        "The experiments <experiments>",
    ],
    "Proofs": [
        "proofs/sgd_sensitivity",
        "proofs/mechanisms",
        "proofs/objective_perturbation",
        "proofs/noisy_gradient_descent",
        "proofs/noisy_sgd",
        "proofs/noisy_moments",
        "proofs/noisy_matrix",
        "proofs/selection",
        "proofs/adjacency",
        "proofs/weight_uncertainty",
    ],
    "For engineers": [
        "contributing",
        "Planted faults <mutants>",
        "kernel/update",
        "kernel/gaussian_noise",
    ],
}

_FENCE = re.compile(r" {0,3}(```|~~~)")
_CODE_SPAN = r"`[^`]*`"
_LINK = re.compile(rf"{_CODE_SPAN}|!?\[(?P<text>(?:[^\[\]`]|{_CODE_SPAN})*)\]\((?P<link>[^()\s]+)\)")
#: An index or an exponent: in braces, in parentheses, or a word or a sign.
_INDEX = re.compile(
    r"(?<=[^\s`_^])([_^])(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\([^()]*\))|([-\u2212]?(?:[A-Za-z0-9]+|[^\W_]|∞)))"
)


@dataclass(frozen=True)
class Line:
    """A line of a document."""

    number: int
    text: str
    code: bool


def lines(text: str) -> Iterator[Line]:
    """The lines of a document, each marked as code (between fences, or indented by four) or prose."""
    fence, code, blank = "", False, True
    for number, line in enumerate(text.split("\n"), start=1):
        mark = _FENCE.match(line)
        if fence:
            code = True
            if mark and mark[1] == fence:
                fence = ""
        elif mark:
            fence, code = mark[1], True
        else:
            # An indented line goes on with the paragraph before it, unless a blank one or code is between them.
            code = line.startswith("    ") and (blank or code)
        blank = not line.strip() or (blank and code)
        yield Line(number, line, code)


def gather(folder: Path) -> tuple[Path, Path]:
    """Write the pages and their pictures into a directory for Sphinx, and what it has to copy into another one."""
    target, extra = folder / "source", folder / "extra"
    shutil.copytree(ROOT / "docs", target, ignore=shutil.ignore_patterns("*.md", "*.ipynb", "*.html"))
    extra.mkdir()
    for origin, file in REPORTS.items():
        shutil.copy(ROOT / origin, extra / file)
    for origin in origins():
        page = _page(origin)
        path = target / page
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / origin).read_text("utf-8")
        text = notebook(json.loads(text)) if origin.endswith(".ipynb") else text
        text = relinked(text, origin=origin)
        text = formulas(text) if origin.startswith(PROOFS) else in_prose(text, exponents)
        text += other_names(text) if page == "api.md" else ""
        path.write_text(text + (contents() if page == "index.md" else ""), "utf-8")
    return target, extra


def origins() -> list[str]:
    """The files of the repository that become pages."""
    return [*(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")), *ELSEWHERE]


def site_path(file: str) -> str | None:
    """Where a file of the repository is in the site, if it is.

    >>> site_path("docs/schema.md"), site_path("SECURITY.md"), site_path("src/boltdp/model.py")
    ('schema.md', 'security.md', None)
    """
    return {**ELSEWHERE, **REPORTS}.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else None)


def _page(origin: str) -> str:
    page = site_path(origin)
    assert page is not None, origin
    return page


def contents() -> str:
    """The navigation, as Sphinx wants it: one tree for each caption."""
    named = {entry.split("<")[-1].rstrip(">") for entries in NAVIGATION.values() for entry in entries}
    trees = {caption: list(entries) for caption, entries in NAVIGATION.items()}
    for page in sorted(map(_page, origins())):
        if page.removesuffix(".md") not in {*named, "index"}:
            trees["Proofs" if page.startswith("proofs/") else "How-to guides"].append(page.removesuffix(".md"))
    return "".join(
        "\n".join(["\n```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```\n"])
        for caption, pages in trees.items()
    )


def other_names(reference: str) -> str:
    """What the Python reference leaves out of what `import boltdp` offers."""
    missing = [name for name in boltdp.__all__ if f":: boltdp.{name}\n" not in reference]
    return "".join(["\n## More\n", *map(_documented, missing)]) if missing else ""


def _documented(name: str) -> str:
    kind = "autoclass" if isinstance(getattr(boltdp, name), type) else "autofunction"
    return f"\n```{{eval-rst}}\n.. {kind}:: boltdp.{name}\n```\n"


def relinked(text: str, *, origin: str) -> str:
    """The same with links as the site has them. What it does not have, such as source, is named and not linked.

    >>> relinked("[proof](../src/boltdp/privacy/mechanisms.md#3) of [it](../src/boltdp/model.py)", origin="docs/a.md")
    '[proof](proofs/mechanisms.md#3) of it'
    """
    page = _page(origin)

    def one(match: re.Match[str]) -> str:
        link = match["link"]
        if link is None or re.match(r"\w+:|#", link):
            return match[0]
        path, mark, anchor = link.partition("#")
        found = site_path(posixpath.normpath(posixpath.join(posixpath.dirname(origin), path)))
        if found is None:
            return match["text"]
        place = posixpath.relpath(found, posixpath.dirname(page) or ".")
        if found in REPORTS.values():
            return f'<a href="{place}">{match["text"]}</a>'
        return match[0].replace(f"]({link})", f"]({place}{mark}{anchor})")

    return in_prose(text, lambda prose: _LINK.sub(one, prose))


def in_prose(text: str, change: Callable[[str], str]) -> str:
    """The same with all that is not code by its lines changed."""
    parts = []
    for code, block in groupby(lines(text), key=lambda line: line.code):
        part = "\n".join(line.text for line in block)
        parts.append(part if code else change(part))
    return "\n".join(parts)


def exponents(prose: str) -> str:
    """The same with exponents set as such; underscores are left alone, since names of columns have them.

    >>> exponents("e^0.5 of clip_norm, but not `2^3`.")
    'e<sup>0.5</sup> of clip_norm, but not `2^3`.'
    """
    pieces = re.split(f"({_CODE_SPAN})", prose)
    pieces[::2] = (
        re.sub(r"(?<=\w)\^(\d+(?:\.\d+)?|[A-Za-z]+|\w|\([^()]*\))", r"<sup>\1</sup>", piece) for piece in pieces[::2]
    )
    return "".join(pieces)


def formulas(text: str) -> str:
    """The same with indices and exponents set as such; what is indented is a formula of its own.

    >>> formulas("w_{t+1} is `w_t` times e^ε.")
    'w<sub>t+1</sub> is `w_t` times e<sup>ε</sup>.'
    >>> print(formulas("    q_t·A_{c_j} < 2^-53"))
    <pre class="formula">
    q<sub>t</sub>·A<sub>c<sub>j</sub></sub> &lt; 2<sup>-53</sup>
    </pre>
    """
    parts = []
    for code, block in groupby(lines(text), key=lambda line: line.code):
        body = [line.text for line in block]
        if not code:
            pieces = re.split(f"({_CODE_SPAN})", "\n".join(body))
            pieces[::2] = map(_indexed, pieces[::2])
            parts.append("".join(pieces))
        elif body[0].startswith("    "):
            shown = "\n".join(line[4:] for line in body).strip("\n").replace("\n\n", "\n")
            parts.append(f'<pre class="formula">\n{_indexed(html.escape(shown, quote=False))}\n</pre>')
            parts += [""] * (len(body) > 1 and not body[-1].strip())
        else:
            parts.append("\n".join(body))
    return "\n".join(parts)


def _indexed(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        tag = {"_": "sub", "^": "sup"}[match[1]]
        return f"<{tag}>{_indexed(match[2] or match[3] or match[4])}</{tag}>"

    return _INDEX.sub(one, text)


def notebook(content: dict[str, Any]) -> str:
    """A notebook as Markdown: its text, its code, and what the code printed or drew."""
    parts = []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = "".join("".join(data["image/png"]).split())
                parts.append(f'<img alt="What the code above draws" src="data:image/png;base64,{picture}">')
            else:
                printed = "".join(output.get("text", data.get("text/plain", ""))).rstrip("\n")
                parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts) + "\n"
