"""The documents: how wide they are, where their links lead, and whether the proofs that are cited exist.

A proof is cited by a line of its own in a docstring or a comment: the word `Proof`, a colon, the file, its sections.
Two files take two lines:

    Proof: objective_perturbation.md 3
    Proof: mechanisms.md 2, 6

The file is relative to the folder of the module, or else to src/boltdp/privacy. A section is the number of a heading
(`## 3. How much noise`, `### 2.1 Proof`) or of a paragraph that begins in bold (`**3.1 Steps that never increase.**`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from website.pages import ROOT, lines

SOURCE = ROOT / "src" / "boltdp"
PROOFS = SOURCE / "privacy"

#: Columns of a line of prose.
WIDEST = 100
#: Made by a command, as wide as the command makes them.
GENERATED = {ROOT / "docs" / "cli.md", ROOT / "docs" / "mutants.md"}
#: Sections that the code cites, at least.
MIN_CITED = 55

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *SOURCE.rglob("*.md")])
WRITTEN = [document for document in DOCUMENTS if document not in GENERATED]
MODULES = sorted(path for path in SOURCE.rglob("*") if path.suffix in {".py", ".c", ".h"})

_HEADING = re.compile(r" {0,3}#{1,6} +(.*?)[ #]*$")
_TABLE = re.compile(r"\s*\|.*\|\s*")
_LINK = re.compile(r"\[[^]]*\]\(([^()\s]+)\)")
#: Nothing in it can be put on a line of its own: one link, or one word, perhaps an item of a list.
_UNBREAKABLE = re.compile(r"\s*(?:[-*+] +|\d+[.)] +)?(?:\[[^]]*\]\(\S+\)\S*|\S+)\s*")
_NUMBERED = re.compile(r"(?:#{2,6} +|\*\*)(\d+(?:\.\d+)*)\.? ")
_CITATION = re.compile(r"\s*(?:#:? *|/?\*+ *|// *)?Proof: (\S+\.md) (\d+(?:\.\d+)*(?:, \d+(?:\.\d+)*)*)")
#: "section 3", "`mechanisms.md`, section 6", "sections 2 and 3", "sections 3 to 5", as the proofs name each other's.
_MENTION = re.compile(r"(?:([\w./]+\.md)`?, )?\b[Ss]ections? (\d+(?:\.\d+)*)(?: (?:and|to) (\d+(?:\.\d+)*))?")


def too_wide(text: str) -> list[int]:
    """The numbers of lines of prose that are too wide."""
    return [
        line.number
        for line in lines(text)
        if len(line.text) > WIDEST
        and not line.code
        and not _TABLE.fullmatch(line.text)
        and not _HEADING.match(line.text)
        and not _UNBREAKABLE.fullmatch(line.text)
    ]


def links(text: str) -> list[str]:
    """Where the links of a document lead, as they are written."""
    prose = "\n".join(line.text for line in lines(text) if not line.code)
    return _LINK.findall(re.sub(r"`[^`]*`", "", prose))


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them: small letters, hyphens, no punctuation."""
    found: dict[str, int] = {}
    for line in lines(text):
        heading = None if line.code else _HEADING.match(line.text)
        if heading:
            title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1])
            anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            found[anchor] = found.get(anchor, -1) + 1
    return {f"{anchor}-{i}" if i else anchor for anchor, times in found.items() for i in range(times + 1)}


def leads_somewhere(link: str, *, document: Path, root: Path) -> bool:
    """Whether a link of a document leads to a file below `root`, and if it has an anchor to one of its headings."""
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    if not target.exists() or not target.is_relative_to(root):
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target.read_text("utf-8")))


def broken(document: Path, *, root: Path = ROOT) -> list[str]:
    """The links of a document to other files, or to its own headings, that lead nowhere."""
    inside = [link for link in links(document.read_text("utf-8")) if not re.match(r"\w+:", link)]
    return [link for link in inside if not leads_somewhere(link, document=document, root=root)]


def sections(text: str) -> set[str]:
    """The numbers of a proof's sections."""
    return {found[1] for line in lines(text) if not line.code and (found := _NUMBERED.match(line.text))}


@dataclass(frozen=True)
class Citation:
    """A section of a proof that a module cites."""

    line: int
    file: str
    section: str


def citations(text: str) -> list[Citation]:
    """The proofs that a module's text cites; a citation in another form than the one above is a ValueError."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if "Proof:" in line:
            citation = _CITATION.fullmatch(line.rstrip())
            if citation is None:
                raise ValueError(f"line {number} must have the form `Proof: file.md 1, 2.3`, got {line.strip()!r}")
            found += [Citation(number, citation[1], section) for section in citation[2].split(", ")]
    return found


def proof(name: str, *, near: Path) -> Path | None:
    """The file of this name that a module or a document in the folder `near` means, if it exists."""
    return next((path for path in (near / name, *PROOFS.rglob(name)) if path.is_file()), None)


def missing(module: Path) -> list[str]:
    """The citations of a module that lead to no section."""
    wrong = []
    for citation in citations(module.read_text("utf-8")):
        file = proof(citation.file, near=module.parent)
        if file is None or citation.section not in sections(file.read_text("utf-8")):
            wrong.append(f"line {citation.line}: {citation.file} {citation.section}")
    return wrong


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", WRITTEN, ids=named)
def test_prose_is_not_wider_than_100_columns(document: Path) -> None:
    assert too_wide(document.read_text("utf-8")) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    assert broken(document) == []


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_cited_proofs_exist(module: Path) -> None:
    assert missing(module) == []


def test_the_code_cites_its_proofs() -> None:
    cited = [citation for module in MODULES for citation in citations(module.read_text("utf-8"))]
    assert len(cited) >= MIN_CITED


@pytest.mark.parametrize("document", sorted(PROOFS.rglob("*.md")) + sorted((SOURCE / "kernel").glob("*.md")), ids=named)
def test_sections_that_proofs_name_exist(document: Path) -> None:
    text = " ".join(line.text.strip() for line in lines(document.read_text("utf-8")) if not line.code)
    for name, *numbers in _MENTION.findall(text):
        file = proof(name, near=document.parent) or proof(name, near=SOURCE) if name else document
        assert file is not None, name
        assert {number for number in numbers if number} <= sections(file.read_text("utf-8")), (name, numbers)


def test_prose_is_told_from_tables_headings_and_code() -> None:
    long = "word " * 30
    text = f"# {long}\n\n{long}\n- {long}\n\n| {long} |\n\n    {long}\n\n    {long}\n\n```\n{long}\n```\n{long}\n"
    assert too_wide(text) == [3, 4, 15]
    assert too_wide(f"short\n    {long}") == [2], "an indented line after prose goes on with it"
    assert too_wide(f"- [two words]({'x' * 100}),\n- {'x' * 101}\n") == []


def test_links_and_anchors_are_found() -> None:
    text = "## Why `x_1` (not), and how?\n## Twice\n## Twice\n\n[a](b.md) [c\nd](e.md#f) `[g](h)`\n\n    [i](j)\n"
    assert links(text) == ["b.md", "e.md#f"]
    assert anchors(text) == {"why-x_1-not-and-how", "twice", "twice-1"}


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    text = "# A\n[](b.md) [](b.md#b) [](#a) [](https://b) [](c.md) [](b.md#a) [](#b) [](../a.md)"
    (root / "a.md").write_text(text)
    (root / "b.md").write_text("# B\n")
    assert broken(root / "a.md", root=root) == ["c.md", "b.md#a", "#b", "../a.md"]


def test_sections_and_citations_are_found(tmp_path: Path) -> None:
    text = "# 9. No\n## 1. Yes\n### 1.2 Yes\n**3.1 Yes (`f`).** Text\n4. No\n\n    ## 5. No\n"
    (tmp_path / "own.md").write_text(text)
    assert sections(text) == {"1", "1.2", "3.1"}
    module = tmp_path / "module.py"
    module.write_text('"""A bound.\n\n    Proof: own.md 1, 3.1\n    """\n# Proof: own.md 2\n#: Proof: none.md 1\n')
    assert missing(module) == ["line 5: own.md 2", "line 6: none.md 1"]
    (tmp_path / "sensitivity.c").write_text(
        "/* Proof: sgd_sensitivity.md 3.1, 5\n * Proof: sgd_sensitivity.md 3.9\n */\n"
    )
    assert missing(tmp_path / "sensitivity.c") == ["line 2: sgd_sensitivity.md 3.9"]


@pytest.mark.parametrize(
    "line",
    [
        "Proof: mechanisms.md",
        "Proof: noise 1",
        "Proof: `mechanisms.md` 1",
        "See Proof: mechanisms.md 1",
        "Proof: mechanisms.md 1.",
    ],
)
def test_a_citation_in_another_form_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="must have the form"):
        citations(line)


TESTS_NAMED = sorted(
    {
        (str(page.relative_to(ROOT)), named)
        for page in [ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]
        for named in re.findall(r"`(tests/[\w/]+\.py::\w+)`", page.read_text("utf-8"))
    }
)


@pytest.mark.parametrize(("page", "named"), TESTS_NAMED)
def test_a_test_that_a_page_names_exists(page: str, named: str) -> None:
    file, name = named.split("::")
    assert f"def {name}(" in (ROOT / file).read_text("utf-8"), page


def test_the_threat_model_names_the_tests_that_hold_its_promises() -> None:
    assert len([page for page, _ in TESTS_NAMED if page == "docs/threat-model.md"]) >= 20
