"""Temporary directories, each locked by the process that uses it, so that those of killed processes can be removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from boltdp import _interrupts


@contextmanager
def open_temporary_directory(parent: Path, *, prefix: str) -> Iterator[Path]:
    """Yield a new directory that is removed at the end; first remove the stale ones of killed processes.

    A process holds a lock on its directory while it runs: a directory that can be locked is stale.

    >>> with tempfile.TemporaryDirectory() as parent:
    ...     os.mkdir(f"{parent}/.mine-left")
    ...     with open_temporary_directory(Path(parent), prefix=".mine-") as folder:
    ...         os.listdir(parent) == [folder.name]
    True
    """
    held: list[tuple[Path, int | None]] = []
    try:
        # A signal between these two calls would leave the directory behind.
        with _interrupts.shield():
            _remove_stale_directories(parent, prefix)
            held.append(_create_locked_directory(parent, prefix))
        yield held[0][0]
    finally:
        try:
            _remove_directories(held)
        except KeyboardInterrupt:  # no second signal arrives while this one is handled
            _remove_directories(held)
            raise


def _remove_directories(held: list[tuple[Path, int | None]]) -> None:
    """Remove directories, close their locks (None: the file system has none), and take each out of `held`."""
    with _interrupts.shield():
        while held:
            folder, lock = held[-1]
            shutil.rmtree(folder, ignore_errors=True)
            held.pop()
            if lock is not None:
                os.close(lock)


def _create_locked_directory(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """Create a directory; return it with the descriptor of its lock, None if the file system has no locks."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        try:
            lock = _lock_directory(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process has removed it as stale, before it was locked
        except OSError:
            return folder, None  # no locks here, so nobody removes it as stale
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_stale_directories(parent: Path, prefix: str) -> None:
    # After an OSError: it is in use, removed, or of another user.
    with suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            with suppress(OSError):
                if folder.lstat().st_uid == os.geteuid():
                    lock = _lock_directory(folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(lock)


def _lock_directory(folder: Path) -> int:
    """Lock a directory, and return the file descriptor that holds the lock."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held
