"""The notebook runs from its first cell to its last, and prints what is kept in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from website.pages import ROOT, notebook

FILE = ROOT / "docs" / "notebook.ipynb"


def printed(content: Any) -> list[list[str]]:
    """What each cell prints; a picture by its name alone."""
    return [
        ["picture" if "image/png" in (data := output.get("data", {})) else output.get("text") or data["text/plain"]
         for output in cell.get("outputs", [])]
        for cell in content.cells
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_and_prints_what_is_kept_in_it(tmp_path: Path) -> None:
    content = nbformat.read(FILE, as_version=4)
    kept = printed(content)
    NotebookClient(content, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    assert printed(content) == kept
    assert (tmp_path / "model.json").exists()


def test_a_notebook_becomes_a_page() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# A\n", "b"]},
        {
            "cell_type": "code",
            "source": ["1"],
            "outputs": [{"text": "x\n"}, {"data": {"text/plain": "y"}}, {"data": {"image/png": "aa\nbb"}}],
        },
    ]
    page = notebook({"cells": cells})
    assert page.startswith("# A\nb\n\n```python\n1\n```\n\n```text\nx\n```\n\n```text\ny\n```\n\n<img ")
    assert 'src="data:image/png;base64,aabb"' in page
