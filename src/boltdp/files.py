"""Writing a file so that what was there before is replaced whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boltdp.errors import BoltdpError


class OutputError(BoltdpError):
    """A file that cannot be written."""


class InputError(BoltdpError):
    """A file that cannot be read as text; the message says only why."""


def read_text(path: str | Path, *, most: int) -> str:
    """The text of a file of at most `most` bytes; of a longer one, or an endless one, no more is read.

    >>> read_text("/dev/zero", most=10)
    Traceback (most recent call last):
    boltdp.files.InputError: it is longer than 10 bytes
    """
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as fault:
        raise InputError(fault.strerror or "it is no file") from None
    except ValueError:
        raise InputError("its name is no name of a file") from None
    if len(content) > most:
        raise InputError(f"it is longer than {most:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("it is not UTF-8 text") from None


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A place to write to; what is there at the end becomes `path`, and on an error `path` stays as it was.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(f"{folder}/model.json") as aside:
    ...         _ = aside.write_text("new")
    ...     os.listdir(folder)
    ['model.json']
    """
    with _beside(path) as (target, aside):
        yield aside
        with open(aside, "rb") as written:
            os.fsync(written.fileno())
        aside.replace(target)


def check_writable(path: str | Path) -> None:
    """Find out before a long job that its output could not be written; leaves everything as it was.

    >>> check_writable("/no/such/folder/model.json")
    Traceback (most recent call last):
    boltdp.files.OutputError: the output '/no/such/folder/model.json' cannot be written: No such file or directory
    """
    with _beside(path) as (_, aside):
        aside.touch()


@contextmanager
def _beside(path: str | Path) -> Iterator[tuple[Path, Path]]:
    """The file that `path` means and one of the same name beside it, in a directory that is removed again."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OutputError(f"the output {str(path)!r} must be a plain file")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".boltdp-") as folder:
            yield target, Path(folder) / target.name
    except OSError as fault:
        reason = fault.strerror or "no space or no permission"
        raise OutputError(f"the output {str(path)!r} cannot be written: {reason}") from None
