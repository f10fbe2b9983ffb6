"""The walk through one update (update.md): its numbers are those of the kernel, and what it points to is there."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from boltdp.kernel import sgd

FOLDER = Path(sgd.__file__).parent
PAGE = FOLDER / "update.md"
TEXT = PAGE.read_text("utf-8")


def test_the_numbers_of_the_worked_example_are_those_of_the_kernel() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 20
    assert result.failed == 0


@pytest.mark.parametrize(("function", "file"), re.findall(r"\| `(\w+)` \| `([\w.]+)` \|", TEXT))
def test_every_function_that_is_pointed_to_is_where_it_is_said_to_be(function: str, file: str) -> None:
    source = (FOLDER / file).read_text("utf-8")
    assert re.search(rf"^\w[\w *()]*\b(NAME\({function}\)|{function})\(", source, re.MULTILINE)


def test_no_line_is_longer_than_a_page_is_wide() -> None:
    assert max(map(len, TEXT.splitlines())) <= 100
