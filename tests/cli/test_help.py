"""Help: examples everywhere, the usual options first, and what a shell completes."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

import boltdp
from boltdp.cli import COMMANDS, main
from boltdp.cli._help import GROUPS, OTHERS, GroupedCommand

from .conftest import Run

GROUPED = ("plan", "train", "tune", "compare")


def command_of(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_name_it(run: Run, name: str) -> None:
    told = run(name, "--help").stdout
    assert f"boltdp {name}" in told.split("Examples:")[1]
    command = command_of(name)
    for part in command.commands if isinstance(command, click.Group) else ():
        assert f"boltdp {name} {part}" in run(name, part, "--help").stdout.split("Examples:")[1]


@pytest.mark.parametrize("name", GROUPED)
def test_help_shows_the_usual_options_and_help_all_shows_all(run: Run, name: str) -> None:
    command = command_of(name)
    assert isinstance(command, GroupedCommand)
    short, whole = run(name, "--help").stdout, run(name, "--help-all").stdout
    options = [one.opts[-1] for one in command.params if isinstance(one, click.Option)]
    assert all(f" {option}" in whole for option in options)
    shown = [option for option in options if f" {option} " in short.split("Examples:")[0]]
    assert len(shown) <= 20
    assert {"--epsilon", "--schema", "--help-all"} <= set(shown)
    hidden = len(options) - len(shown)
    assert f"{hidden} more options, which few need: boltdp {name} --help-all" in short
    assert "more options" not in whole


@pytest.mark.parametrize("name", GROUPED)
def test_every_option_of_a_command_with_many_is_in_a_group(run: Run, name: str) -> None:
    command = command_of(name)
    grouped = {option for usual, rare in GROUPS.values() for option in (*usual, *rare)}
    ungrouped = {one.name for one in command.params if isinstance(one, click.Option)} - grouped
    assert ungrouped == {"help_all"}
    others = run(name, "--help").stdout.split(f"{OTHERS}:")[1].split("more options")[0]
    assert others.count("  -") == 2


def script(shell: str) -> str:
    made = subprocess.run([sys.executable, "-m", "boltdp", "completion", shell], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.fixture
def on_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `boltdp` is this one."""
    starter = tmp_path / "bin" / "boltdp"
    starter.parent.mkdir()
    starter.write_text(
        f'#!/bin/sh\nPYTHONPATH={Path(boltdp.__file__).parents[1]} exec {sys.executable} -m boltdp "$@"\n'
    )
    starter.chmod(0o755)
    return os.environ | {"PATH": f"{starter.parent}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ ", "HISTFILE": ""}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_values(on_path: dict[str, str]) -> None:
    lines = {
        ("boltdp", "ev"): {"evaluate"},
        ("boltdp", "train", "rows.csv", "--algo"): {"--algorithm"},
        ("boltdp", "sql", "m.json", "--dialect", ""): {"duckdb", "postgres", "spark"},
        ("boltdp", "postgres", "ins"): {"install"},
        ("boltdp", "completion", ""): {"bash", "zsh", "fish"},
    }
    asked = [script("bash")]
    for words in lines:
        asked.append(f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}; COMPREPLY=()")
        asked.append("_boltdp_completion boltdp; echo ${COMPREPLY[*]}")
    made = subprocess.run(["bash", "--norc", "-c", "\n".join(asked)], env=on_path, capture_output=True, text=True)
    assert [set(line.split()) for line in made.stdout.splitlines()] == [*lines.values()], made.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_names_of_files_are_completed_at_a_terminal(on_path: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script("bash"))
    (tmp_path / "a_model_of_mine.json").touch()
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], on_path)
    try:
        os.write(terminal, b"source script; bind 'set enable-bracketed-paste off'; echo re''ady\n")
        read_until(terminal, "ready")
        os.write(terminal, b"boltdp verify a_mod\t")
        assert "a_model_of_mine.json" in read_until(terminal, "_of_mine.json")
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def read_until(terminal: int, end: str) -> str:
    """What a terminal shows, until something is in it or a minute is over."""
    seen, late = "", time.monotonic() + 60
    while end not in seen and time.monotonic() < late:
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


@pytest.mark.parametrize(("shell", "says"), [("zsh", "#compdef boltdp"), ("fish", "complete --no-files")])
def test_other_shells_have_their_scripts(shell: str, says: str) -> None:
    made = script(shell)
    assert says in made
    assert "_BOLTDP_COMPLETE" in made
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=made, text=True).returncode == 0
