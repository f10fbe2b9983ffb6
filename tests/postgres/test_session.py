"""What a session takes of the server's machine, and how soon it notices that nobody waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psycopg
import pytest

from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.errors import ParameterError
from boltdp.run_context import Context
from boltdp.settings import Settings
from boltdp.workflows.synthesize import make_synthetic_schema, synthesize
from boltdp.workflows.train import train

SCHEMA = make_synthetic_schema(dims=100, classes=2)
#: Counts rows of a query that takes half a minute.
CALLER = """
import sys
from boltdp.engines.postgres import PostgresEngine
PostgresEngine(sys.argv[1], query="SELECT 1 AS x FROM pg_catalog.pg_sleep(30)").count()
"""


def setting(engine: PostgresEngine, name: str) -> int:
    """In bytes."""
    query = "SELECT pg_catalog.pg_size_bytes(pg_catalog.current_setting($1))"
    return int(engine._session.ask(query, [name], fault="")[0][0])


@pytest.fixture(scope="module")
def large(server: Server) -> str:
    """A table that takes 9 MB when it is prepared."""
    synthesize(server.uri, rows=20_000, dims=100, table="large")
    return "large"


@pytest.mark.parametrize(("memory", "most"), [(None, 256 << 20), ("1MB", 1 << 20), (5 << 20, 5 << 20)])
def test_temporary_tables_and_sorts_take_no_more_than_they_may(
    server: Server, admin: psycopg.Connection, large: str, memory: int | str | None, most: int
) -> None:
    admin.execute("ALTER SYSTEM SET work_mem = '1GB'")
    admin.execute("SELECT pg_reload_conf()")
    try:
        with PostgresEngine(server.uri, table=large, memory=memory) as engine:
            assert setting(engine, "work_mem") <= most
            with engine.prepare(SCHEMA, Context(seed=1)):
                assert setting(engine, "temp_buffers") <= most
                assert memory is not None or setting(engine, "temp_buffers") > 8 << 20
    finally:
        admin.execute("ALTER SYSTEM RESET work_mem")
        admin.execute("SELECT pg_reload_conf()")


def test_little_memory_changes_no_bit(server: Server, large: str) -> None:
    settings = Settings(epsilon=1.0, delta=1e-6, algorithm="dpsgd", seed=1, noise_seed=1, passes=1)
    weights = []
    for memory in (None, "1MB"):
        with PostgresEngine(server.uri, table=large, memory=memory) as engine:
            weights.append(train(engine, SCHEMA, settings).weights.tolist())
    assert weights[0] == weights[1]


def test_the_environment_says_how_much_memory(server: Server, large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLTDP_PG_MEMORY", "2MB")
    with PostgresEngine(server.uri, table=large) as engine:
        assert engine._session.memory == 2 << 20
        assert engine.slice(0, 5)._session.memory == 2 << 20
    with PostgresEngine(server.uri, table=large, memory="3MB") as engine:
        assert engine._session.memory == 3 << 20


@pytest.mark.parametrize("memory", ["much", 0, "-1MB", "1000", "1.5GB", ""])
def test_memory_that_is_no_size_is_refused(memory: int | str) -> None:
    with pytest.raises(ParameterError, match="memory must be a size of at least 1MB"):
        PostgresEngine("postgresql://nowhere.invalid/", table="t", memory=memory)


def test_a_server_at_work_notices_that_its_client_is_gone(server: Server, admin: psycopg.Connection) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    working = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)%' AND pid <> pg_backend_pid()"
    with subprocess.Popen([sys.executable, "-c", CALLER, server.uri], env=environment) as client:
        deadline = time.monotonic() + 60
        while not admin.execute(working).fetchall():
            assert time.monotonic() < deadline, "the client did not begin within a minute"
            time.sleep(0.05)
        client.kill()
    killed = time.monotonic()
    while admin.execute(working).fetchall():
        assert time.monotonic() < killed + 15, "the server went on for nobody"
        time.sleep(0.05)
