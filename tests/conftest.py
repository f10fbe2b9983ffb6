"""Settings of all tests."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from boltdp.engines.postgres.local_server import Server

# The machine that runs the tests may be busy: how long an example takes says nothing. The examples are the same every
# time, so that a failure is the fault of the change that is tested; `make explore` tries others.
settings.register_profile("boltdp", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("boltdp")

# Whoever starts the tests in the background, or with nohup, lets them ignore these; the processes that they start and
# then stop must not inherit it.
for _ignored, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, _usual)


def _refuse_networks(event: str, arguments: tuple[Any, ...]) -> None:
    """Let no test listen on a network: what it serves may be taken for rows of somebody."""
    if event != "socket.bind" or not isinstance(arguments[1], tuple):
        return
    if arguments[1][0] not in ("127.0.0.1", "::1", "localhost"):
        raise PermissionError(f"a test must listen on loopback or a Unix socket, got {arguments[1][0]!r}")


sys.addaudithook(_refuse_networks)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs Spark comes first: processes that share the tests take them in this order, and few start a Spark."""
    items.sort(key=lambda item: "spark" not in item.nodeid)


@pytest.fixture(autouse=True)
def repeatable_noise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw noise and orders of rows from a seed per test, so that what passed once passes; not in `make explore`."""
    if request.config.getoption("--hypothesis-profile", None) == "explore" or "fresh_noise" in request.keywords:
        return
    from boltdp import run_context
    from boltdp.privacy import release_with_noise

    source = random.Random(request.node.nodeid)
    monkeypatch.setattr(release_with_noise, "system_bytes", source.randbytes)
    monkeypatch.setattr(run_context, "secrets", SimpleNamespace(randbits=source.getrandbits))


@pytest.fixture(scope="session")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pg_config of a server with the extension, which is built once for all processes that share the tests."""
    from boltdp.engines.postgres.build import install_extension
    from boltdp.engines.postgres.local_server import copy_server

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "extended").open("a+") as known:
        fcntl.flock(known, fcntl.LOCK_EX)
        known.seek(0)
        found = known.read()
        if not found:
            pg_config = copy_server(folder / "copied", None) / "pg_config"
            install_extension(pg_config)
            known.write(found := str(pg_config))
    return Path(found)


@pytest.fixture(scope="session")
def server(extended: Path) -> Iterator[Server]:
    """A real PostgreSQL server with the extension, started from a wheel when a test first asks for it."""
    import psycopg

    from boltdp.engines.postgres.local_server import run_private_server

    with run_private_server(pg_config=extended, extension=False) as running:
        with psycopg.connect(running.uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp")
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A Spark session of two threads in this process, started when a test first asks for it."""
    from boltdp.engines.spark.session import Session

    session = Session.open("local[2]")
    yield session.spark
    session.close()
