"""Behind a pooler, a model is what it is without one, or is refused, and nothing stays in the pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner

from boltdp.cli import main
from boltdp.engines.in_memory import ArrayEngine
from boltdp.engines.postgres import PostgresEngine, Session, session
from boltdp.engines.postgres.local_server import Server
from boltdp.errors import DataError
from boltdp.export.postgres_models import store_model
from boltdp.ledger import LedgerError, open_ledger
from boltdp.privacy.budget import Budget
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema
from boltdp.service.worker import Worker, WorkerError
from boltdp.settings import Settings
from boltdp.workflows.train import train
from tests.export.test_sql import make_model
from tests.postgres.desk import Desk, opened_desk
from tests.postgres.pgbouncer import pool
from tests.postgres.test_training import leftovers, wait_until

ROWS = 5000
AGES = np.random.default_rng(4).permutation(ROWS).tolist()
SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, ROWS),))
SETTINGS = Settings(epsilon=1.0, algorithm="bolton", seed=7, noise_seed=1, passes=2)
REFUSED = "the connection goes through a transaction pool"
#: What a training sets.
NAMES = (
    "search_path",
    "jit",
    "enable_indexscan",
    "enable_indexonlyscan",
    "synchronize_seqscans",
    "work_mem",
    "temp_buffers",
    "DateStyle",
)


@pytest.fixture(scope="module", autouse=True)
def table(server: Server) -> Iterator[None]:
    """A table with an index in which the rows would be in the order of a private column."""
    with psycopg.connect(server.uri, autocommit=True) as admin:
        admin.execute("CREATE TABLE indexed_rows (id int, age int, sick int, notes text)")
        with admin.cursor().copy("COPY indexed_rows FROM STDIN") as copy:
            for i, age in enumerate(AGES):
                copy.write_row((i, age, i % 2, "x" * 500))
        admin.execute("CREATE INDEX ON indexed_rows (age, sick)")
        admin.execute("VACUUM ANALYZE indexed_rows")
        assert "Index Only Scan" in str(admin.execute("EXPLAIN SELECT age, sick FROM indexed_rows").fetchall())
        yield
        admin.execute("DROP TABLE indexed_rows")


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    arrays = ArrayEngine.from_arrow(pa.table({"age": AGES, "sick": np.arange(ROWS) % 2}))
    weights: list[Any] = train(arrays, SCHEMA, SETTINGS).weights.tolist()
    return weights


@pytest.fixture(scope="module")
def lending(server: Server) -> Iterator[str]:
    """A transaction pool that gives the backend of the last transaction to the next."""
    with pool(server, "transaction") as uri:
        yield uri


@pytest.fixture(scope="module")
def turning(server: Server) -> Iterator[str]:
    """A transaction pool that gives each transaction another backend."""
    with pool(server, "transaction", round_robin=True) as uri:
        fill(uri)
        yield uri


def fill(uri: str) -> None:
    """Have the pool open three backends."""
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(psycopg.connect(uri)).execute("SELECT 1")


def opened(uri: str, **options: Any) -> PostgresEngine:
    return PostgresEngine(uri, table="indexed_rows", **options)


def weights(engine: PostgresEngine) -> list[Any]:
    found: list[Any] = train(engine, SCHEMA, SETTINGS).weights.tolist()
    return found


def settings(uri: str) -> dict[str, set[str]]:
    """What is set in three backends of a pool."""
    found: dict[str, set[str]] = {name: set() for name in NAMES}
    with ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(psycopg.connect(uri, prepare_threshold=None))
            for name in NAMES:
                found[name] |= {*connection.execute("SELECT current_setting(%s)", [name]).fetchall()[0]}
    return found


def unnoticed(patch: pytest.MonkeyPatch) -> None:
    """As if a pool could not be told from a direct connection."""
    patch.setattr(Session, "_shares_backends", lambda _: False, raising=False)


@pytest.mark.parametrize("kind", ["lending", "turning"])
def test_rows_streamed_through_a_transaction_pool_are_in_their_stored_order(
    request: pytest.FixtureRequest, kind: str, expected: list[Any]
) -> None:
    uri = request.getfixturevalue(kind)
    before = settings(uri)
    with opened(uri, where="client") as engine:
        assert weights(engine) == expected
    with PostgresEngine(uri, query="SELECT age, sick FROM indexed_rows", where="client") as engine:
        (batch,) = engine.batches(["age"])
        assert batch.column("age").to_pylist() == AGES
    assert settings(uri) == before


@pytest.mark.parametrize("kind", ["lending", "turning"])
def test_a_transaction_pool_is_noticed_before_rows_are_prepared_in_the_server(
    request: pytest.FixtureRequest, kind: str, expected: list[Any], admin: psycopg.Connection
) -> None:
    uri = request.getfixturevalue(kind)
    with opened(uri) as engine:
        assert REFUSED in engine.where
        assert weights(engine) == expected
    with pytest.raises(DataError, match=REFUSED):
        opened(uri, where="server")
    result = CliRunner().invoke(main, ["postgres", "check", uri])
    assert (result.exit_code, REFUSED in result.stderr) == (1, True)
    assert "use a session pool or a direct connection" in result.stderr
    assert leftovers(admin) == []


def test_a_pool_that_gives_every_transaction_another_backend_is_refused_whenever_it_is_noticed(
    turning: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnoticed(monkeypatch)
    monkeypatch.setattr(Session, "find_missing_requirement", lambda _: None)
    before = settings(turning)
    with opened(turning, where="server") as engine, pytest.raises(DataError, match=REFUSED) as raised:
        train(engine, SCHEMA, SETTINGS)
    assert raised.value.hint is not None
    assert "direct connection" in raised.value.hint
    assert leftovers(admin) == []
    assert settings(turning) == before


def test_rows_prepared_in_a_backend_that_is_lent_to_others_go_with_it(
    lending: str, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnoticed(monkeypatch)
    with opened(lending, where="server") as engine, engine.prepare(SCHEMA, Context(seed=1)) as prepared:
        assert len(leftovers(admin)) == 1
        with closing(psycopg.connect(lending)) as other:
            other.execute("SELECT 1")  # in a transaction that has the backend now
            with pytest.raises(DataError, match=REFUSED):
                list(prepared.read_blocks())
        wait_until(lambda: leftovers(admin) == [])


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "left open"])
def test_training_that_met_one_backend_is_what_it_is_and_leaves_nothing(
    lending: str, admin: psycopg.Connection, expected: list[Any], monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    before = settings(lending)
    unnoticed(monkeypatch)
    with opened(lending, where="server") as engine:
        assert weights(engine) == expected
        prepared = engine.prepare(SCHEMA, Context(seed=1))
        handles = engine._session.send_states(b"secret")
        if closed:
            prepared.close()
        assert len(leftovers(admin)) == (0 if closed else 1)
    assert leftovers(admin) == []
    assert settings(lending) == before
    with psycopg.connect(lending) as next_client:
        kept = next_client.execute("SELECT boltdp.get_state(%s)", handles).fetchall()
        assert kept == [(None,)]


def test_a_session_pool_trains_in_the_server_and_gets_its_connections_back_clean(
    server: Server, admin: psycopg.Connection, expected: list[Any]
) -> None:
    with pool(server, "session") as uri:
        before = settings(uri)
        for _ in range(4):
            with opened(uri, where="server") as engine:
                assert engine.where == "in the server"
                assert weights(engine) == expected
        assert leftovers(admin) == []
        assert settings(uri) == before
        result = CliRunner().invoke(main, ["postgres", "check", uri])
        assert (result.exit_code, result.stdout) == (0, "ready: the passes will be run in the server\n")


def test_waiting_for_a_connection_of_a_pool_ends_and_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(session, "PROBE_SECONDS", 0.1)
    message = r"the pooler had no free connection within 0\.3 seconds"
    with pool(server, "session", size=1) as uri, opened(uri) as engine:
        with pytest.raises(DataError, match=message) as raised:
            engine.slice(0, 10)
        assert "one for a ledger" in str(raised.value.hint)
        with pytest.raises(DataError, match=message):
            opened(uri)
        with pytest.raises(LedgerError, match=message) as refused:
            open_ledger(uri).history()
        assert "one for a ledger" in str(refused.value.hint)
        assert engine.count() == ROWS


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_ledger_may_be_in_any_pool_and_leaves_its_settings_to_nobody(server: Server, mode: Any) -> None:
    with psycopg.connect(server.uri, autocommit=True) as admin:
        admin.execute("CREATE DATABASE pooled_ledger")
    try:
        with pool(server, mode, round_robin=True) as uri:
            uri = uri.replace("/postgres?", "/pooled_ledger?")
            fill(uri)
            before = settings(uri)
            ledger = open_ledger(uri)
            ledger.set_budget("patients", Budget(1.0), composition="basic")
            assert ledger.spent("patients").spent.epsilon == 0
            assert settings(uri) == before
    finally:
        with psycopg.connect(server.uri, autocommit=True) as admin:
            admin.execute("DROP DATABASE pooled_ledger WITH (FORCE)")


def test_a_direct_connection_is_known(server: Server) -> None:
    with closing(Session(server.uri)) as direct, pool(server, "session") as uri, closing(Session(uri)) as pooled:
        assert (direct.pooled, pooled.pooled) == (False, True)
        assert direct.find_missing_requirement() is None


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_model_is_stored_through_a_pool_and_leaves_its_settings_to_nobody(server: Server, mode: Any) -> None:
    model = make_model(SCHEMA)
    with pool(server, mode, round_robin=True) as uri:
        fill(uri)
        before = settings(uri)
        for _ in range(4):
            store_model(uri, "pooled", model, replace=True)
            assert settings(uri) == before
        with psycopg.connect(uri) as client:
            assert client.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_worker_is_refused_by_a_pool_whose_sessions_go_on_without_it(server: Server, mode: Any) -> None:
    with opened_desk(server) as desk, pool(server, mode, users=("postgres", "trainer")) as uri:
        uri = uri.replace("/postgres?", "/desk?").replace("postgres@", "trainer@")
        expected = "goes through a pool" if mode == "session" else REFUSED
        with pytest.raises(WorkerError, match=expected):
            Worker(uri, open_ledger(desk.uri("trainer")), say=print)


def test_a_worker_sets_nothing_for_longer_than_a_transaction_and_prepares_nothing(server: Server) -> None:
    with opened_desk(server) as desk, closing(desk_worker(desk)) as worker:
        (path,) = worker._connection.execute("SHOW search_path").fetchone() or ()
        for _ in range(3):
            desk.request(epsilon=0.01)
        assert worker.run(once=True) == 3
        assert worker._connection.execute("SHOW search_path").fetchone() == (path,)
        query = "SELECT count(*) FROM pg_prepared_statements"
        assert worker._connection.execute(query).fetchone() == (0,)


def desk_worker(desk: Desk) -> Worker:
    return Worker(desk.uri("trainer"), open_ledger(desk.uri("trainer")), say=print)
