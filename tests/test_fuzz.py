"""A short run of the fuzzer, whose long one is `make fuzz`; and that it finds what it looks for."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from fuzz import parsers
from fuzz.target import SECRET, Finding, Target, try_case

from boltdp.errors import DataError

CASES = 40


@pytest.mark.parametrize("target", parsers.TARGETS, ids=lambda target: target.name)
def test_damaged_input_is_refused_or_harmless(target: Target) -> None:
    ended = [try_case(target, number) for number in range(max(3, CASES * target.weight // 100))]
    assert "refused" in ended


def test_the_kernel_copes_under_the_sanitizers() -> None:
    command = [sys.executable, "-m", "fuzz", "--only", "kernel: states", "--cases", "400"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kernel: states: 400 cases" in done.stdout
    assert "nothing found" in done.stdout


def quotes(_: random.Random) -> None:
    raise DataError(f"cannot read {SECRET}")


def hides(_: random.Random) -> None:
    try:
        int(SECRET)
    except ValueError:
        raise DataError("cannot read a cell")  # noqa: B904


def fails(dice: random.Random) -> None:
    raise KeyError(dice.random())


@pytest.mark.parametrize(
    ("feed", "words"),
    [(quotes, "the message quotes a value"), (hides, "the cause of the message quotes"), (fails, "KeyError instead")],
)
def test_what_must_not_happen_is_found(feed: object, words: str) -> None:
    with pytest.raises(Finding, match=words):
        try_case(Target("mine", feed), 1)  # type: ignore[arg-type]
