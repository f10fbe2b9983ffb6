"""Read and write files: an output replaces the old file atomically, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from boltdp import _interrupts
from boltdp.errors import BoltdpError

#: Prefix of the temporary directories of outputs, beside their targets.
OUTPUT_PREFIX = ".boltdp-output-"

#: The files that this process has replaced.
replaced: list[Path] = []


class OutputError(BoltdpError):
    """The file cannot be written."""


class InputError(BoltdpError):
    """The file cannot be read as text; the message says only why."""


def read_text(path: str | Path, *, most: int) -> str:
    """Return the text of a file of at most `most` bytes; a longer or endless file raises InputError.

    >>> read_text("/dev/zero", most=10)
    Traceback (most recent call last):
    boltdp._files.InputError: it is longer than 10 bytes
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
    """Yield a temporary path whose file replaces `path` at the end; after an exception `path` stays as it was."""
    with _temporary_file(path) as (target, aside):
        yield aside
        with open(aside, "rb") as written:
            os.fsync(written.fileno())
        with _interrupts.check_and_shield():
            aside.replace(target)
            replaced.append(target)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to a file, which is replaced as a whole or stays as it was."""
    with replacing(path) as aside:
        aside.write_text(text, "utf-8")


def check_writable(path: str | Path) -> None:
    """Raise OutputError before a long job if its output cannot be written; nothing is left behind."""
    with _temporary_file(path) as (_, aside):
        aside.touch()


@contextmanager
def _temporary_file(path: str | Path) -> Iterator[tuple[Path, Path]]:
    """Yield the resolved path and a path of the same name in a temporary directory beside it."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OutputError(f"the output {str(path)!r} must be a plain file")
    try:
        with own_directory(target.parent, prefix=OUTPUT_PREFIX) as folder:
            yield target, folder / target.name
    except OSError as fault:
        reason = fault.strerror or "no space or no permission"
        raise OutputError(f"the output {str(path)!r} cannot be written: {reason}") from None


@contextmanager
def own_directory(parent: Path, *, prefix: str) -> Iterator[Path]:
    """Yield a new directory that is removed at the end; first remove the stale ones of killed processes.

    A process holds a lock on its directory while it runs: a directory that can be locked is stale.

    >>> with tempfile.TemporaryDirectory() as parent:
    ...     os.mkdir(f"{parent}/.mine-left")
    ...     with own_directory(Path(parent), prefix=".mine-") as folder:
    ...         os.listdir(parent) == [folder.name]
    True
    """
    held: list[tuple[Path, int | None]] = []
    try:
        # A signal between these two calls would leave the directory behind.
        with _interrupts.shield():
            _remove_stale(parent, prefix)
            held.append(_make_locked_directory(parent, prefix))
        yield held[0][0]
    finally:
        try:
            _remove(held)
        except KeyboardInterrupt:  # no second signal arrives while this one is handled
            _remove(held)
            raise


def _remove(held: list[tuple[Path, int | None]]) -> None:
    with _interrupts.shield():
        while held:
            folder, lock = held[-1]
            shutil.rmtree(folder, ignore_errors=True)
            held.pop()
            if lock is not None:
                os.close(lock)


def _make_locked_directory(parent: Path, prefix: str) -> tuple[Path, int | None]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process has removed it as stale, before it was locked
        except OSError:
            return folder, None  # no locks here, so nobody removes it as stale
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_stale(parent: Path, prefix: str) -> None:
    # After an OSError: it is in use, removed, or of another user.
    with suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            with suppress(OSError):
                if folder.lstat().st_uid == os.geteuid():
                    lock = _lock(folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(lock)


def _lock(folder: Path) -> int:
    """Lock a directory; return the descriptor that holds the lock."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held
