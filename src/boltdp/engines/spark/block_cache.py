"""Blocks that stay where they were packed: files beside Spark's own, so that a scan need not move them out of the JVM.

They hold private rows. Each has mode 0600, in a directory of the run with mode 0700, in the directory of an executor
that Spark removes when the executor ends. The directory of the run goes when the rows are closed; where that does not
reach, after some minutes without a scan, or with the executor, by a process that watches it. What is not there is read
from what Spark has persisted: that a file is gone costs time and nothing else.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np

from boltdp._arrays import PackedRows

#: Minutes without a scan after which they go.
MINUTES = 15

#: Waits until the process $2, of the executor, is no more, or the folder $1 was not used for long; then removes it.
WATCHDOG = f"""
while kill -0 "$2" 2>/dev/null && [ -n "$(find "$1" -maxdepth 0 -mmin -{MINUTES} 2>/dev/null)" ]; do sleep 2; done
rm -rf "$1"
"""


def local_directory() -> str | None:
    """Where Spark keeps what does not fit in an executor's memory, and removes it at the end."""
    return (os.environ.get("SPARK_LOCAL_DIRS") or "").split(",")[0] or None


def save(run: str, name: str, rows: PackedRows) -> None:
    """Keep a block by a name, if there is room for it."""
    folder = _folder(run)
    if folder is None:
        return
    with suppress(OSError):
        _make(folder)
        aside = folder / secrets.token_hex(8)
        try:
            with open(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb", buffering=0) as file:
                data = rows.data.cast("B")
                while data:
                    data = data[file.write(data) :]
            aside.rename(folder / name)
        except OSError:
            aside.unlink(missing_ok=True)
            raise


def load(run: str, name: str, *, width: int, rows: int | None = None) -> PackedRows | None:
    """The block of a name, mapped, if it is here and has as many rows as it should."""
    folder = _folder(run)
    if folder is None:
        return None
    try:
        with open(folder / name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size % (4 * width) or (rows is not None and size != 4 * rows * width):
                return None
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except OSError:
        return None
    return np.frombuffer(data, np.float32).reshape(-1, width)


def touch(run: str) -> None:
    """Let the blocks stay for some more minutes."""
    folder = _folder(run)
    if folder is not None:
        with suppress(OSError):
            os.utime(folder)


def remove(run: str) -> None:
    """Remove the blocks of a run that are here."""
    folder = _folder(run)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _folder(run: str) -> Path | None:
    directory = local_directory()
    return None if directory is None else Path(directory) / f"boltdp-{run}"


def _make(folder: Path) -> None:
    """Make the folder of a run, and whoever makes it has it watched."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    # The parent of a worker is the process that forks workers, which ends with the executor.
    command = ["sh", "-c", WATCHDOG, "sh", str(folder), str(os.getppid())]
    try:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
