"""What pages show is what is printed: their commands are run."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments.datasets import BENCHMARKS, data_directory
from website.examples import Shown, blocks, run
from website.pages import ROOT

PAGES = [
    "README.md",
    "docs/tutorial.md",
    *(f"docs/howto/{name}.md" for name in ("coefficients", "epsilon", "files", "move", "pandas", "publish")),
    pytest.param(
        "docs/howto/embeddings.md",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(not BENCHMARKS["mnist"].available(), reason="the images are not in BOLTDP_DATA"),
        ],
    ),
]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails after a change that is meant: `python -m website.examples PAGE` writes what is printed now."""
    monkeypatch.setenv("BOLTDP_DATA", str(data_directory()))
    text = (ROOT / page).read_text("utf-8")
    for block, now in run(text, tmp_path):
        assert [shown.lasting for shown in now] == [shown.lasting for shown in block.commands]
    assert any(block.language in ("console", "pycon") for block in blocks(text))


def test_other_numbers_are_allowed_only_where_there_is_noise() -> None:
    first, second = "accuracy  0.61  ██│\n", "accuracy  0.599  ███│\n"
    assert (
        Shown("boltdp evaluate m.json x.csv\n", first).lasting
        == Shown("boltdp evaluate m.json x.csv\n", second).lasting
    )
    assert Shown("boltdp verify m.json\n", first).lasting != Shown("boltdp verify m.json\n", second).lasting


def test_what_is_shown_otherwise_than_printed_is_told(tmp_path: Path) -> None:
    page = "A file `a.txt`:\n\n```text\nx\n```\n\nRead:\n\n```console\n$ cat a.txt\ny\n$ cat a.txt a.txt\n...\n```\n"
    [(block, now)] = run(page, tmp_path)
    assert [shown.output for shown in now] == ["x\n", "...\n"]
    assert [shown.output for shown in block.commands] == ["y\n", "...\n"]
    assert [block.file for block in blocks(page)] == ["a.txt", None]
