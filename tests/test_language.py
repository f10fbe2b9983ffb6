"""One word for one thing: phrases that readers stumble over stay out of code, messages and documents."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: What to say instead of each phrase. A phrase is a regular expression, matched whatever the case.
HUNTED = {
    r"\bso many\b": "the number, or N",
    r"\banew\b": "again",
    r"may be looked at|(may|can) look at": "non-sensitive or public data",
    r"\bspelt otherwise\b": "unknown",
    r"\btold\b": "reported, refused, printed",
    r"\bis to be expected\b": "expected",
    r"which is there already|those that there are": "existing",
    r"\bin the place of\b": "instead of",
    r"as long as it likes": "without a limit",
    r"what was asked for": "the request, the settings",
    r"\bteach(es)? nothing\b": "is ignored",
    r"certificate adds up": "Certificate verified.",
    r"where it should not have": "internal error",
    r"\bpromise[sd]?\b": "guarantee",
    r"\bspoil(ed|s|t)?\b": "non-private",
    r"\bdata sets?\b": "dataset",
    r"\bnoise an? (row|weight)\b": "noise per row, noise per weight",
    r"a number that is not one": "unparsable",
    r"\b(MOST|LEAST|LONGEST|SHORTEST|FEWEST)_[A-Z]|\bFEW_[A-Z]": "MAX_, MIN_",
}

#: Where it is looked for: everything that is written, but for other people's words and the past.
FOLDERS = ("src", "postgres", "docs", "bench", "demo", "experiments", "fuzz", "mutants", "website", "tools", ".github")
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "pyproject.toml", "setup.py", "Makefile")
SUFFIXES = {".py", ".c", ".h", ".sql", ".md", ".toml", ".yml", ".ipynb", ""}


def written() -> list[Path]:
    """The files of the project that people read."""
    listed = subprocess.run(["git", "ls-files", *FOLDERS, *PAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    files = (ROOT / name for name in listed.stdout.splitlines())
    return [file for file in files if file.is_file() and not file.is_symlink() and file.suffix in SUFFIXES]


def found(phrase: str, text: str) -> list[str]:
    """The lines with a phrase, also where it is wrapped: comment signs and line breaks count as one space."""
    pattern = re.compile(phrase.replace(" ", r"[\s#*:/]+"), re.IGNORECASE if phrase.islower() else 0)
    return [f"line {text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}" for hit in pattern.finditer(text)]


@pytest.mark.parametrize("phrase", HUNTED)
def test_no_hunted_phrase_is_written(phrase: str) -> None:
    hits = {str(file.relative_to(ROOT)): lines for file in written() if (lines := found(phrase, file.read_text()))}
    assert not hits, f"say instead: {HUNTED[phrase]}"


def test_a_hunted_phrase_is_found_where_it_is_wrapped() -> None:
    assert found(r"\bso many\b", "of so\n# many rows") == ["line 1: 'so\\n# many'"]
    assert found(r"\bso many\b", "somany") == []
