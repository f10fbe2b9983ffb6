"""Output files: an output replaces the old file atomically, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boltdp import _interrupts
from boltdp._files.temporary_directories import open_temporary_directory
from boltdp.errors import BoltdpError

#: Prefix of the temporary directories of outputs, beside their targets.
OUTPUT_PREFIX = ".boltdp-output-"

#: The files that this process has replaced.
replaced_files: list[Path] = []


class OutputError(BoltdpError):
    """The file cannot be written."""


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path` at the end; after an exception `path` stays as it was."""
    with _open_temporary_file(path) as (target, aside):
        yield aside
        with open(aside, "rb") as written:
            os.fsync(written.fileno())
        with _interrupts.check_and_shield():
            aside.replace(target)
            replaced_files.append(target)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to a file, which is replaced atomically or stays as it was."""
    with replace_file(path) as aside:
        aside.write_text(text, "utf-8")


def check_writable(path: str | Path) -> None:
    """Raise OutputError before a long job if its output cannot be written; nothing is left behind."""
    with _open_temporary_file(path) as (_, aside):
        aside.touch()


@contextmanager
def _open_temporary_file(path: str | Path) -> Iterator[tuple[Path, Path]]:
    """Yield the resolved path and a path of the same name in a temporary directory beside it."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OutputError(f"the output {str(path)!r} must be a plain file")
    try:
        with open_temporary_directory(target.parent, prefix=OUTPUT_PREFIX) as folder:
            yield target, folder / target.name
    except OSError as fault:
        reason = fault.strerror or "no space or no permission"
        raise OutputError(f"the output {str(path)!r} cannot be written: {reason}") from None
