"""The planted faults have their places in the source, and the runner tells those that are caught from others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from mutants.__main__ import MUTANTS
from mutants.audits import CASES
from mutants.mutant import PACKAGE, ROOT, Mutant, StaleMutantError
from mutants.runner import MutantError, Result, copy_source, run_mutant, run_tests
from mutants.table import PAGE, rate_by_audit, rate_by_tests, write_page

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
HALF = BY_NAME["half the zCDP of a Gaussian"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=BY_NAME)
def test_every_fault_has_one_place_and_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.plant(PACKAGE) != (PACKAGE / mutant.file).read_text("utf-8")
    assert mutant.audit is None or mutant.audit in CASES
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / "tests" / file).read_text("utf-8")
    assert not any("recorded_bits" in test for test in mutant.tests), "these say nothing of the guarantee"


def test_there_are_enough_faults_in_every_room() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 60
    rooms = [mutant.file.split("/")[0] for mutant in MUTANTS]
    assert all(rooms.count(room) >= 15 for room in ("privacy", "algorithms", "kernel", "engines"))


def test_every_case_is_for_some_fault() -> None:
    assert {mutant.audit for mutant in MUTANTS} == {None, *CASES}


def test_a_fault_without_a_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for text, found in (("y", 0), ("x = 1", 2)):
        with pytest.raises(StaleMutantError, match=f"it is there {found} times"):
            Mutant("one", "a.py", text, "", "Nothing.", ()).plant(tmp_path)


def test_a_planted_fault_is_caught_and_a_harmless_change_is_not() -> None:
    quick = "privacy/test_zcdp.py::test_gaussian_parts_count_by_their_mu"
    assert run_mutant(replace(HALF, tests=(quick,))) == Result(quick, "")
    assert run_mutant(replace(HALF, replacement=HALF.text + "  # the same", tests=(quick,))) == Result("", "")


@pytest.mark.parametrize("test", ["privacy/test_zcdp.py::test_nothing", "privacy/none.py"])
def test_a_test_that_does_not_exist_is_an_error(test: str, tmp_path: Path) -> None:
    with pytest.raises(MutantError, match="pytest ended with 4"):
        run_tests(copy_source(tmp_path), (test,))


def test_rates_count_what_is_in_scope(tmp_path: Path) -> None:
    audited = replace(HALF, audit="bolton")
    rows = [(HALF, Result("a.py::test", "")), (audited, Result("", "replay")), (audited, Result("b.py::test[1]", ""))]
    assert (rate_by_tests(rows), rate_by_audit(rows), rate_by_audit(rows[:1])) == (2 / 3, 0.5, 1.0)
    write_page(tmp_path / "page.md", rows)
    text = (tmp_path / "page.md").read_text()
    assert "Of 3 faults, tests catch 66.7%. Of the 2 in the audit's scope" in text
    assert "| `tests/b.py::test` | **missed** (bolton) |" in text


def test_the_page_is_about_these_faults() -> None:
    text = PAGE.read_text("utf-8")
    assert re.findall(r"^\| ([^|]+) \| `", text, re.MULTILINE) == [mutant.name for mutant in MUTANTS]
