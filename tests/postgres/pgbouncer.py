"""A real pgbouncer before the tests' server, from the system or from its packages, on a Unix socket alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from boltdp.engines.postgres.local_server import Server, _choose_user

CACHE = Path(__file__).parents[2] / "build" / "pgbouncer"
Mode = Literal["session", "transaction"]

CONFIG = """
[databases]
* = host={server}
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 100
query_wait_timeout = 60
server_round_robin = {round_robin}
ignore_startup_parameters = extra_float_digits
"""


@cache
def find_pgbouncer() -> Path:
    """The binary of the PATH, or of packages that are unpacked, and not installed, once."""
    found = shutil.which("pgbouncer")
    if found is not None:
        return Path(found)
    binary = CACHE / "usr" / "sbin" / "pgbouncer"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:  # processes that share the tests ask at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists() and not (_download() or (_run("apt-get", "update", "-qq") and _download())):
            pytest.skip("there is no pgbouncer, and none can be had from the system's packages")
    return binary


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, cwd=CACHE, capture_output=True, check=False, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _download() -> bool:
    """Unpack the package and those that it depends on and the system lacks, whatever its release calls them."""
    (CACHE / "partial").mkdir(exist_ok=True)
    # Without locks and into a folder of our own, for which no rights of the administrator are needed.
    options = ("-o", "Debug::NoLocking=1", "-o", f"Dir::Cache::archives={CACHE}")
    downloaded = _run(
        "apt-get", "install", "--download-only", "--no-install-recommends", "-qq", "-y", *options, "pgbouncer"
    )
    packages = [*CACHE.glob("*.deb")] if downloaded else []
    return bool(packages) and all(_run("dpkg", "-x", str(package), str(CACHE)) for package in packages)


@contextmanager
def pool(
    server: Server, mode: Mode, *, size: int = 3, round_robin: bool = False, users: tuple[str, ...] = ("postgres",)
) -> Iterator[str]:
    """A pool of connections to the server; its URI."""
    packed = find_pgbouncer()
    libraries = ":".join(str(place) for place in (CACHE / "usr" / "lib").glob("*-linux-*"))
    user = _choose_user()
    with tempfile.TemporaryDirectory(prefix="boltdp-") as name:
        folder = Path(name)
        # The user of the server must get there, and the checkout may be closed to it.
        binary = shutil.copy(packed, folder / "pgbouncer")
        for library in (CACHE / "usr" / "lib").glob("*-linux-*/*.so*"):
            shutil.copy(library, folder, follow_symlinks=True)
        (folder / "users").write_text("".join(f'"{one}" ""\n' for one in users))
        (folder / "config").write_text(
            CONFIG.format(
                server=server.folder / "run", folder=folder, mode=mode, size=size, round_robin=int(round_robin)
            )
        )
        for place in (folder, *folder.iterdir()):
            if user:
                os.chown(place, user["user"], user["group"])
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{libraries}"}
        process = subprocess.Popen(
            [binary, "-q", str(folder / "config")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            **user,
        )
        try:
            uri = server.uri.replace(f"host={server.folder / 'run'}", f"host={folder}&port=6432")
            deadline = time.monotonic() + 30
            while not _listens(uri):
                assert process.poll() is None, "pgbouncer does not start"
                assert time.monotonic() < deadline, "pgbouncer did not start in time"
                time.sleep(0.02)
            yield uri
        finally:
            process.terminate()
            process.wait()


def _listens(uri: str) -> bool:
    try:
        psycopg.connect(uri).close()
    except psycopg.OperationalError:
        return False
    return True
