"""A private server is gone with all its files, however its caller ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from boltdp.engines.postgres.local_server import Server, run_private_server

#: Starts a server, says where, and waits to be killed.
CALLER = """
import sys, time
import psutil

from boltdp.engines.postgres.local_server import run_private_server
with run_private_server(pg_config=sys.argv[1], extension=False) as server:
    print(server.folder, flush=True)
    time.sleep(600)
"""


def test_server_is_removed_at_the_end(server: Server) -> None:
    with run_private_server(pg_config=server.pg_config, extension=False) as other:
        assert (other.folder / "data" / "postmaster.pid").is_file()
    assert not other.folder.exists()


def test_server_listens_on_a_socket_that_only_its_user_can_reach(server: Server) -> None:
    assert (server.folder / "run").stat().st_mode & 0o077 == 0
    postmaster = psutil.Process(int((server.folder / "data" / "postmaster.pid").read_text().splitlines()[0]))
    processes = (postmaster, *postmaster.children(recursive=True))
    assert not [one for process in processes for one in process.net_connections("inet")]
    assert (server.folder / "server.log").stat().st_mode & 0o077 == 0


def test_server_is_removed_when_its_caller_is_killed(server: Server) -> None:
    command = [sys.executable, "-c", CALLER, str(server.pg_config)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as caller:
        assert caller.stdout is not None
        folder = Path(caller.stdout.readline().strip())
        postmaster = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        caller.kill()
    assert caller.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while folder.exists() or _runs(postmaster):
        assert time.monotonic() < deadline, "the server was not removed within a minute"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked after does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
