"""Commands import what they use: large libraries only where rows are read, and a signal meanwhile is not lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import boltdp
from boltdp.cli import COMMANDS
from boltdp.cli._command_group import Commands

from .conftest import Run

#: What takes a tenth of a second or more to import, alone or with what it imports itself.
HEAVY = (
    *("scipy", "pyarrow", "pyarrow.compute", "duckdb", "sklearn", "matplotlib", "pandas", "psycopg", "numpy", "flint"),
    "rich",
)
#: The two that even checking a certificate needs.
ARITHMETIC = {"numpy", "flint"}
#: What printing a table needs beside them.
TABLES = ARITHMETIC | {"rich"}

_PROGRAM = f"""\
import sys
from boltdp.cli import main
try:
    main(sys.argv[1:], prog_name="boltdp")
except SystemExit as end:
    assert not end.code
print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""


def imported(*arguments: object, folder: Path, **environment: str) -> set[str]:
    """The large libraries that a command has imported when it ends."""
    made = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, arguments)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(boltdp.__file__).parents[1])} | environment,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout
    return set(made.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",)])
def test_the_list_of_commands_imports_no_library(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert imported(*arguments, folder=tmp_path) == set()


@pytest.mark.parametrize(("words", "large"), [("boltdp ev", set()), ("boltdp train --alg", ARITHMETIC)])
def test_completing_imports_nothing_that_reads_rows(tmp_path: Path, words: str, large: set[str]) -> None:
    place = str(len(words.split()) - 1)
    shell = {"_BOLTDP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": place}
    assert imported(folder=tmp_path, **shell) <= large


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_imports_nothing_that_reads_rows(tmp_path: Path, command: str) -> None:
    assert imported(command, "--help", folder=tmp_path) <= ARITHMETIC


@pytest.mark.parametrize("options", [(), ("--delta", 1e-6), ("--algorithm", "bolton")])
def test_what_is_done_with_a_model_alone_imports_nothing_that_reads_rows(
    run: Run, rows: Path, options: tuple[object, ...]
) -> None:
    trained = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, *options, "-o", "model.json")
    assert trained.exit_code == 0, trained.output
    for command in ("verify", "show", "sql"):
        assert imported(command, "model.json", folder=rows.parent) <= TABLES


@pytest.mark.parametrize("classes", [2, 10])
def test_a_plan_imports_nothing_that_reads_rows(tmp_path: Path, classes: int) -> None:
    options = ("--rows", 10_000, "--features", 20, "--classes", classes, "--delta", 1e-6)
    assert imported("plan", *options, folder=tmp_path) <= TABLES


def test_training_imports_what_it_uses_so_that_these_tests_can_fail(rows: Path) -> None:
    options = ("--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert imported("train", rows, *options, folder=rows.parent) == TABLES | {"pyarrow", "duckdb"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_command_is_imported_ends_it_as_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    name = f"interrupted_by_{number.name.lower()}"
    tmp_path.joinpath(name).mkdir()
    tmp_path.joinpath(name, "work.py").write_text(
        f"""\
import os, time, click

try:
    os.kill(os.getpid(), {number.value})
    time.sleep(0.1)  # the handler comes first
    whole = True
except KeyboardInterrupt:  # as libraries do that can go without another
    whole = False

@click.command()
def work():
    click.echo("done")
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    group = Commands(name="boltdp", package=name, lines={"work": "Work."})
    result = CliRunner().invoke(group, ["work"])
    assert result.exit_code == 128 + number, result.output
    assert result.stdout == ""
    assert result.stderr.strip() == "error: interrupted; no output file was changed"
    # It waited for the import, which nobody finds half done.
    assert sys.modules.pop(f"{name}.work").whole
