"""A cache of packed blocks in files on each executor, so that a scan need not copy them out of the JVM.

The files contain private rows. They have mode 0600, in a directory of the run with mode 0700, inside the local
directory of an executor, which Spark removes when the executor ends. The directory of the run is removed when the rows
are closed, or by a watchdog process after some minutes without a scan or when the executor ends. A missing block is
read from Spark's persisted data.
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

from boltdp._array_types import PackedRows

#: Minutes without a scan after which the files are removed.
MINUTES = 15

#: Removes the folder $1 when the executor process $2 has ended or the folder was not used for MINUTES.
WATCHDOG = f"""
while kill -0 "$2" 2>/dev/null && [ -n "$(find "$1" -maxdepth 0 -mmin -{MINUTES} 2>/dev/null)" ]; do sleep 2; done
rm -rf "$1"
"""


def find_local_directory() -> str | None:
    """Return the local directory of the executor, which Spark removes at the end."""
    return (os.environ.get("SPARK_LOCAL_DIRS") or "").split(",")[0] or None


def save_block(run: str, name: str, rows: PackedRows) -> None:
    """Save a block of packed rows in the executor's cache under a name, if there is room for it."""
    folder = _get_run_folder(run)
    with suppress(OSError):
        _create_folder(folder)
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


def load_block(run: str, name: str, *, width: int, rows: int | None = None) -> PackedRows | None:
    """Return a memory map of a block, or None if it is missing or has another number of rows."""
    with suppress(OSError), open(_get_run_folder(run) / name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size % (4 * width) == 0 and (rows is None or size == 4 * rows * width):
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
            return np.frombuffer(data, np.float32).reshape(-1, width)
    return None


def restart_timeout(run: str) -> None:
    """Restart the timeout after which the watchdog removes the cached blocks."""
    with suppress(OSError):
        os.utime(_get_run_folder(run))


def remove_blocks(run: str) -> None:
    """Remove the blocks of a run from this executor."""
    shutil.rmtree(_get_run_folder(run), ignore_errors=True)


def _get_run_folder(run: str) -> Path:
    """Return the cache folder of a run; without a local directory, a path where nothing can be created."""
    return Path(find_local_directory() or os.devnull) / f"boltdp-{run}"


def _create_folder(folder: Path) -> None:
    """Create the cache folder of a run and start its watchdog, unless another worker has done so."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    # The parent process forks the workers and ends with the executor.
    command = ["sh", "-c", WATCHDOG, "sh", str(folder), str(os.getppid())]
    null = subprocess.DEVNULL
    try:
        subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
