"""The commands that pages show, run: `python -m website.examples docs/tutorial.md` writes what they print today.

In a page,

- a block of the language `console` has commands after `$ `, with what they print below; a last line of `...` stands
  for the rest of it;
- a block that follows a line ending in "`NAME`:" is the file NAME, written before the commands below it are run;
- a block of `pycon` is a Python session, a doctest.

All run in one directory, from the top down.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

#: What these print differs from run to run: their numbers are.
RANDOM = re.compile(r"boltdp (coefficients|evaluate|show|sql)|sort |curl ")

_BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`([\w.]+)`:$")


@dataclass(frozen=True)
class Shown:
    """A command and what a page shows of what it prints."""

    command: str
    output: str

    @property
    def lasting(self) -> str:
        """What is the same in every run."""
        output = re.sub(r"SHA256:\S+", "SHA256:#", self.output)
        if not RANDOM.match(self.command):
            return output
        return re.sub(r" +", " ", re.sub(r"<?[-+]?\d[\d,.e-]*|[█▓░·]+", "#", output)).replace("# #", "#")


@dataclass(frozen=True)
class Block:
    """A piece of code in a page, and where it is."""

    language: str
    body: str
    file: str | None  #: the file that it is
    start: int
    end: int

    @property
    def commands(self) -> list[Shown]:
        """The commands of a console, with what is shown of what they print."""
        found: list[Shown] = []
        goes_on = False
        for line in self.body.splitlines(keepends=True):
            if line.startswith("$ "):
                found.append(Shown(line[2:], ""))
            elif goes_on:
                found[-1] = replace(found[-1], command=found[-1].command + line)
            else:
                found[-1] = replace(found[-1], output=found[-1].output + line)
            goes_on = line.endswith("\\\n") and not found[-1].output
        return found


def blocks(text: str) -> Iterator[Block]:
    r"""The pieces of code of a page.

    >>> [block] = blocks("Save this as `x.toml`:\n\n```toml\na = 1\n```\n")
    >>> block.file, block.body
    ('x.toml', 'a = 1\n')
    >>> [block] = blocks("See:\n\n```console\n$ echo a\na\n```\n")
    >>> block.commands
    [Shown(command='echo a\n', output='a\n')]
    """
    for match in _BLOCK.finditer(text):
        name = _FILE.search(match["before"])
        yield Block(match["language"], match["body"], name and name[1], match.start("body"), match.end("body"))


def run(text: str, folder: Path) -> Iterator[tuple[Block, list[Shown]]]:
    """Do in a directory what a page says, and give each console's commands with what they print now."""
    python: dict[str, object] = {}
    for block in blocks(text):
        if block.file is not None:
            (folder / block.file).write_text(block.body, "utf-8")
        elif block.language == "pycon":
            test = doctest.DocTestParser().get_doctest(block.body, python, "page", None, 0)
            here = Path.cwd()
            os.chdir(folder)
            try:
                doctest.DebugRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
            finally:
                os.chdir(here)
            python = test.globs
        elif block.language == "console":
            yield block, [_run(shown, folder) for shown in block.commands]


def rewritten(text: str, folder: Path) -> str:
    """The same page with what its commands print now."""
    pieces, end = [], 0
    for block, now in run(text, folder):
        pieces += [text[end : block.start], *(f"$ {shown.command}{shown.output}" for shown in now)]
        end = block.end
    return "".join([*pieces, text[end:]])


def _run(shown: Shown, folder: Path) -> Shown:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        ["bash", "-c", shown.command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{shown.command}fails:\n{done.stdout}")
    lines = done.stdout.splitlines(keepends=True)
    wanted = shown.output.splitlines(keepends=True)
    if wanted and wanted[-1] == "...\n":
        lines = [*lines[: len(wanted) - 1], "...\n"]
    return replace(shown, output="".join(lines))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        with tempfile.TemporaryDirectory() as directory:
            page.write_text(rewritten(page.read_text("utf-8"), Path(directory)), "utf-8")
