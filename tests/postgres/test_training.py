"""Training in a real server: hostile names, faults in mid-pass, roles, logs, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from boltdp.engines import open_source
from boltdp.engines.in_memory import ArrayEngine
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.build import ask_pg_config
from boltdp.engines.postgres.local_server import Server, run_private_server
from boltdp.engines.postgres.prepared_rows import DRAWN_BYTES
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.misclassification import ErrorCounts
from boltdp.kernel.sgd import State
from boltdp.losses import Logistic
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, Vector, make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.train import train

ROWS, DIMS = 2000, 5
SCHEMA = make_array_schema(dims=DIMS, classes=(0, 1), clip_norm=2.0)
SETTINGS = Settings(epsilon=1.0, algorithm="bolton", seed=7, noise_seed=1, passes=3)
X = np.random.default_rng(0).normal(0, 0.5, (ROWS, DIMS))
Y = (X[:, 0] > 0).astype(int)
#: The state of a sum over rows of two features, before the first.
SUMS = DerivativeSums(Logistic(), np.ones((1, 2))).to_bytes()
HESSIAN = DerivativeSums(Logistic(), np.ones((1, 2)), hessian=True).to_bytes()


def fill(connection: psycopg.Connection, name: str, kind: str = "float8[]") -> None:
    connection.execute(sql.SQL("CREATE TABLE {} (x " + kind + ", label int)").format(sql.Identifier(name)))
    with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(name))) as copy:
        for x, y in zip(X.tolist(), Y.tolist(), strict=True):
            copy.write_row((str(x) if "vec" in kind else x, y))


def leftovers(connection: psycopg.Connection) -> list[Any]:
    """Tables that a training has made, in any session."""
    return connection.execute(
        "SELECT relname FROM pg_class WHERE relname LIKE 'boltdp\\_%' AND relkind = 'r'"
    ).fetchall()


def statements(log: str) -> list[str]:
    """The statements and parameters that a log shows, but for the random names of tables."""
    lines = [line for line in log.splitlines() if re.search("statement: |execute |[Pp]arameters: |CONTEXT: ", line)]
    said = [
        re.sub(r"^.*?(duration: [\d.]+ ms )?(?=statement|execute|[Pp]arameters|CONTEXT)", "", line) for line in lines
    ]
    return [re.sub("boltdp_[0-9a-f]{16}", "a table", line) for line in said]


def notations(number: bytes) -> list[str]:
    """The bytes of a double as a server could write them: in hexadecimal, escaped, and as its digits."""
    escapes = {ord("\\"): "\\\\", **{byte: f"\\{byte:03o}" for byte in (*range(32), *range(127, 256))}}
    return [number.hex(), number.decode("latin-1").translate(escapes), repr(float(np.frombuffer(number)[0]))]


def wait_until(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.01)


def weights(engine: Any, schema: Schema = SCHEMA, settings: Settings = SETTINGS) -> list[Any]:
    rows: list[Any] = train(engine, schema, settings).weights.tolist()
    return rows


@pytest.fixture(scope="module")
def table(server: Server) -> Iterator[str]:
    with psycopg.connect(server.uri, autocommit=True) as connection:
        fill(connection, "patients")
        yield "patients"
        connection.execute("DROP TABLE patients")


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return weights(ArrayEngine.from_numpy(X, Y))


@pytest.mark.parametrize("options", [{}, {"layout": "rows"}, {"where": "client"}], ids=str)
def test_trained_weights_are_those_of_the_arrays(
    server: Server, table: str, expected: list[Any], options: dict[str, Any]
) -> None:
    with PostgresEngine(server.uri, table=table, **options) as engine:
        assert engine.in_server is ("where" not in options)
        assert weights(engine) == expected


@pytest.mark.parametrize("options", [{}, {"layout": "rows"}, {"where": "client"}], ids=str)
def test_standardized_models_are_those_of_the_arrays(server: Server, table: str, options: dict[str, Any]) -> None:
    settings = replace(SETTINGS, standardize="private")
    plain = train(ArrayEngine.from_numpy(X, Y), SCHEMA, settings)
    with PostgresEngine(server.uri, table=table, **options) as engine:
        model = train(engine, SCHEMA, settings)
    assert model.schema == plain.schema
    assert model.weights.tolist() == plain.weights.tolist()


def test_sums_over_no_rows_are_nothing(server: Server, table: str) -> None:
    with (
        PostgresEngine(server.uri, query=f"SELECT * FROM {table} WHERE false") as engine,
        engine.prepare(SCHEMA, Context(), permuted=False) as prepared,
    ):
        moments = FeatureSums(prepared.feature_map, clip_norm=1.0)
        prepared.add_to_sums([moments])
    assert moments.value.tolist() == [[0] * DIMS] * 2


def test_preparing_that_is_ended_from_outside_leaves_a_session_that_can_go_on(
    server: Server, admin: psycopg.Connection
) -> None:
    slow = "SELECT ARRAY[1.0, 0.0, 0.0, 0.0, 0.0]::float8[] AS x, 1 AS label FROM generate_series(1, 100000000)"
    with PostgresEngine(server.uri, query=slow) as engine:
        engine.count = lambda: ROWS  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as pool:
            packing = pool.submit(engine.prepare, SCHEMA, Context(), permuted=False)
            # A server forgets what cancels a statement that it is still reading: only one that runs is cancelled.
            cancel = (
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT boltdp.pack%'"
                " AND state = 'active' AND clock_timestamp() - query_start > '300 ms'"
            )
            wait_until(lambda: admin.execute(cancel).fetchall())
            with pytest.raises(DataError, match="the rows cannot be prepared: the statement was cancelled"):
                packing.result()
        assert engine.columns()["x"].kind == "list"
    assert leftovers(admin) == []


def test_rows_that_do_not_fit_the_memory_get_to_the_same_places(server: Server, admin: psycopg.Connection) -> None:
    admin.execute(
        "CREATE TABLE numbered AS SELECT ARRAY[i, i % 7, 1, 2, 3]::real[] AS x, i % 2 AS label"
        " FROM generate_series(1, 100000) AS i"
    )
    schema = make_array_schema(dims=DIMS, classes=(0, 1), clip_norm=100_000)
    try:
        found = []
        # 100,000 rows of 24 bytes take three times the memory that the second may have.
        for memory in ("64MB", "1MB"):
            with (
                PostgresEngine(server.uri, table="numbered", memory=memory) as engine,
                engine.prepare(schema, Context(seed=3)) as prepared,
            ):
                found.append(np.concatenate([block.copy() for block in prepared.read_blocks()]))
                prepared.slice(5, 99_000).reshuffle(4)
                found.append(np.concatenate([block.copy() for block in prepared.read_blocks()]))
    finally:
        admin.execute("DROP TABLE numbered")
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])
    assert len(np.unique(found[0][:, 1])) == 100_000
    assert not np.array_equal(found[0], found[1])


SUMMED: dict[str, Callable[[], Any]] = {
    "derivative": lambda: DerivativeSums(Logistic(), np.linspace(-1, 1, DIMS)[None]),
    "errors": lambda: ErrorCounts(np.linspace(-1, 1, DIMS)[None, None], classes=2),
    "moments": lambda: FeatureSums(clip_norm=1.0, cells=DIMS),
}


def total(summed: Any) -> Any:
    return summed.counts if isinstance(summed, ErrorCounts) else summed.value


@pytest.mark.parametrize("kind", SUMMED)
def test_any_number_of_parallel_workers_sums_to_the_same_bits(server: Server, table: str, kind: str) -> None:
    """Over blocks of an ordinary table, which workers can read, in several orders."""
    with PostgresEngine(server.uri, table=table) as engine, engine.prepare(SCHEMA, Context(seed=1)) as prepared:
        rows = np.concatenate([block.copy() for block in prepared.read_blocks()])
    expected = SUMMED[kind]()
    expected.add(rows)
    call = "SELECT boltdp.sums((SELECT boltdp.get_state(1)), block) FROM blocks"
    with psycopg.connect(server.uri, autocommit=True) as connection:
        for setting in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
            connection.execute(f"SET {setting} = 0")
        try:
            for order in (rows, rows[::-1], rows[np.random.default_rng(1).permutation(len(rows))]):
                connection.execute("CREATE TABLE blocks (block real[])")
                with connection.cursor().copy("COPY blocks FROM STDIN") as copy:
                    for at in range(0, len(order), 7):
                        copy.write_row([order[at : at + 7].tolist()])
                connection.execute("ANALYZE blocks")
                for workers in (0, 1, 2):
                    connection.execute(f"SET max_parallel_workers_per_gather = {workers}")
                    connection.execute("SELECT boltdp.put_state(1, %s)", [SUMMED[kind]().to_bytes()])
                    plan = str(connection.execute(f"EXPLAIN {call}").fetchall())
                    assert ("Parallel Seq Scan" in plan) == (workers > 0)
                    assert f"'Workers Planned: {workers}'" in plan.replace("  ", "") or workers == 0
                    summed = connection.execute(call).fetchall()[0][0]
                    assert summed != SUMMED[kind]().to_bytes()
                    found = SUMMED[kind]()
                    found.update(summed)
                    assert np.array_equal(total(found), total(expected))
                connection.execute("DROP TABLE blocks")
        finally:
            connection.execute("DROP TABLE IF EXISTS blocks")


@pytest.mark.parametrize("options", [{}, {"layout": "rows"}, {"where": "client"}], ids=str)
def test_objective_perturbation_finds_the_weights_of_the_arrays(
    server: Server, table: str, admin: psycopg.Connection, options: dict[str, Any]
) -> None:
    settings = Settings(epsilon=1.0, algorithm="objective", seed=7, noise_seed=1)
    expected = weights(ArrayEngine.from_numpy(X, Y), settings=settings)
    with PostgresEngine(server.uri, table=table, **options) as engine:
        found = weights(engine, settings=settings)
    # To the bit: its steps are shaped by sums that do not depend on where they are made.
    assert found == expected
    assert leftovers(admin) == []


@pytest.mark.parametrize(
    ("state", "block", "message"),
    [
        (None, "{{1,0.5,0.5}}", "the state must not be NULL"),
        (b"", "{{1,0.5,0.5}}", "the state is corrupt"),
        (b"x" * 400, "{{1,0.5,0.5}}", "the state is corrupt"),
        # Sums of a gradient that claim to be those of a Hessian, and a kind that there is not.
        (SUMS[:64] + b"\2" + SUMS[65:], "{{1,0.5,0.5}}", "the state is corrupt"),
        (SUMS[:64] + b"\3" + SUMS[65:], "{{1,0.5,0.5}}", "the state is corrupt"),
        (HESSIAN[:64] + b"\0" + HESSIAN[65:], "{{1,0.5,0.5}}", "the state is corrupt"),
        (HESSIAN[:-8], "{{1,0.5,0.5}}", "the state is corrupt"),
        (HESSIAN, "{{1,0.5}}", "a block must have two dimensions and rows of 3 numbers, got 2 and 2"),
        (SUMS, None, "a block of rows must not be NULL"),
        (SUMS, "{1,0.5,0.5}", "a block must have two dimensions and rows of 3 numbers, got 1 and 0"),
        (SUMS, "{{1,0.5}}", "a block must have two dimensions and rows of 3 numbers, got 2 and 2"),
        (SUMS, "{{1,0.5,NULL}}", "a block of rows must not contain NULL"),
    ],
)
def test_the_aggregate_of_derivatives_refuses_what_is_unsound(
    admin: psycopg.Connection, state: bytes | None, block: str | None, message: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        admin.execute("SELECT boltdp.sums(%s::bytea, %s::real[])", (state, block))
    assert caught.value.diag.message_primary == message


def test_the_aggregate_of_derivatives_of_no_rows_is_null(admin: psycopg.Connection) -> None:
    assert admin.execute("SELECT boltdp.sums(%s, NULL) FROM pg_class WHERE false", (SUMS,)).fetchone() == (None,)


@pytest.mark.parametrize("options", [{}, {"layout": "rows"}], ids=str)
def test_fresh_permutations_are_those_of_the_arrays(server: Server, table: str, options: dict[str, Any]) -> None:
    settings = Settings(epsilon=1.0, algorithm="bolton", seed=7, noise_seed=1, passes=3, permutation="fresh")
    with PostgresEngine(server.uri, table=table, **options) as engine:
        assert weights(engine, settings=settings) == weights(ArrayEngine.from_numpy(X, Y), settings=settings)


@pytest.mark.parametrize("permutation", ["once", "fresh"])
@pytest.mark.parametrize("partitions", [2, 3, 8])
@pytest.mark.parametrize("options", [{}, {"layout": "rows"}, {"where": "client"}], ids=str)
def test_partitions_are_those_of_the_arrays(
    server: Server, table: str, options: dict[str, Any], partitions: int, permutation: Any
) -> None:
    settings = Settings(
        epsilon=1.0,
        algorithm="bolton",
        seed=7,
        noise_seed=1,
        passes=3,
        permutation=permutation,
        partitions=partitions,
    )
    with PostgresEngine(server.uri, table=table, **options) as engine:
        assert weights(engine, settings=settings) == weights(ArrayEngine.from_numpy(X, Y), settings=settings)


@pytest.mark.parametrize("layout", ["packed", "rows"])
def test_random_order_has_every_row_once(server: Server, table: str, layout: Any) -> None:
    with (
        PostgresEngine(server.uri, table=table, layout=layout, shuffle="random") as engine,
        engine.prepare(SCHEMA, Context(seed=0)) as prepared,
    ):
        first = np.concatenate([block.copy() for block in prepared.read_blocks()])
        prepared.slice(0, 1000).reshuffle(0)
        second = np.concatenate([block.copy() for block in prepared.read_blocks()])
    expected = np.column_stack([Y, np.clip(X, -2, 2) / 2]).astype(np.float32)
    assert sorted(map(tuple, first)) == sorted(map(tuple, expected))
    assert not np.array_equal(first, expected)
    np.testing.assert_array_equal(first[1000:], second[1000:])
    assert sorted(map(tuple, first[:1000])) == sorted(map(tuple, second[:1000]))
    assert not np.array_equal(first[:1000], second[:1000])


def test_random_order_is_refused_where_rows_are_streamed(server: Server, table: str) -> None:
    with pytest.raises(ParameterError, match=r"rows that are streamed need 'seeded'$"):
        PostgresEngine(server.uri, table=table, where="client", shuffle="random")


@pytest.mark.parametrize("kind", ["real[]", "float8[]", "numeric[]"])
def test_arrays_of_every_kind_of_number_are_read(
    server: Server, admin: psycopg.Connection, kind: str, expected: list[Any]
) -> None:
    fill(admin, "kinds", kind)
    if kind == "real[]":
        expected = weights(ArrayEngine.from_numpy(X.astype(np.float32), Y))
    try:
        for where in ("server", "client"):
            with PostgresEngine(server.uri, table="kinds", where=where) as engine:
                assert weights(engine) == expected
    finally:
        admin.execute("DROP TABLE kinds")


@pytest.mark.parametrize("kind", ["vector(5)", "vector", "halfvec(5)"])
def test_pgvector_columns_are_read(server: Server, admin: psycopg.Connection, kind: str) -> None:
    available = (
        "SELECT version FROM pg_available_extension_versions WHERE name = 'vector' ORDER BY version DESC LIMIT 1"
    )
    version = admin.execute(available).fetchone()
    if version is None or (kind.startswith("half") and version[0] < "0.7"):
        pytest.skip("this server has no pgvector, or an old one")
    admin.execute("CREATE EXTENSION vector")
    try:
        fill(admin, "embedded", kind)
        x = X.astype(np.float16 if kind.startswith("half") else np.float32)
        expected = weights(ArrayEngine.from_numpy(x.astype(np.float32), Y))
        for where in ("server", "client"):
            with PostgresEngine(server.uri, table="embedded", where=where) as engine:
                assert engine.columns()["x"].length == (5 if "(" in kind else None)
                assert weights(engine) == expected
    finally:
        admin.execute("DROP EXTENSION vector CASCADE")
        admin.execute("DROP TABLE embedded")


def test_columns_of_every_type_are_encoded_alike_in_the_server_and_here(
    server: Server, admin: psycopg.Connection
) -> None:
    admin.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
    admin.execute("CREATE DOMAIN years AS numeric")
    admin.execute(
        "CREATE TABLE cells (a years, b bigint, c real, d bool, e char(4), f mood, g real, h int2, i numeric, j int[],"
        " k numeric[], label bool)"
    )
    nothing = "NULL, " * 11 + "NULL"
    admin.execute(f"INSERT INTO cells VALUES ({nothing})")
    admin.execute(
        "INSERT INTO cells VALUES"
        " (1e400, 9223372036854775807, 1e-45, true, 'x', 'bad', 0.1, 7, 2.5, '{1,2}', '{1e400,-1e400}', true),"
        " (-1e400, -5, 'NaN', false, 'y', 'good', 0.2, 8, 'NaN', '{1,NULL}', '{1e-400,2}', false),"
        " (1e-400, 3, '-inf', NULL, 'xx', NULL, 'NaN', 0, 1e-400, '{1,2,3}', '{{1,2}}', NULL),"
        " ('NaN', 0, 3e38, true, 'x   ', 'bad', -0.1, 7, 'Infinity', '{}', '{NULL,NaN}', true),"
        " (50, 10, 5, false, '', 'good', 0.1, -7, -2.5, '{{1,2},{3,4}}', NULL, false)"
    )
    schema = Schema(
        Classes("label", (False, True)),
        (
            Numeric("a", 0, 100),
            Numeric("b", -10, 1e19),
            Numeric("c", -1e30, 1e30),
            Numeric("d", 0, 1),
            Categorical("e", ("x", "y")),
            Categorical("f", ("good", "bad", "nul\0")),
            Categorical("g", (0.1, 0.2)),
            Categorical("h", (7, 8, 1e6, 0.5)),
            Categorical("i", (2.5, -2.5)),
            Categorical("b2", (True, 3)),
            Vector("j", 2, 0, 4),
            Vector("k", 2, -3, 3),
        ),
    )
    query = "SELECT *, b AS b2 FROM cells"
    try:
        packed = {}
        for where in ("server", "client"):
            with (
                PostgresEngine(server.uri, query=query, where=where) as engine,
                engine.prepare(schema, Context(seed=1)) as prepared,
            ):
                packed[where] = np.concatenate([block.copy() for block in prepared.read_blocks()])
        np.testing.assert_array_equal(packed["server"], packed["client"])
        numbers, codes = packed["server"][:, 1:5], packed["server"][:, 5:11]
        assert (np.isnan(numbers) | (np.abs(numbers) <= 1)).all()
        np.testing.assert_array_equal(codes, np.rint(codes))
        assert codes.min() == -1
        assert codes.max() == 1
        np.testing.assert_array_equal(np.sort(packed["server"][:, 0]), [0, 0, 1, 1, np.nan, np.nan])
    finally:
        admin.execute("DROP TABLE cells")
        admin.execute("DROP TYPE mood")
        admin.execute("DROP DOMAIN years")


def test_categories_are_met_in_the_encoding_of_the_database(server: Server, admin: psycopg.Connection) -> None:
    admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    uri = server.uri.replace("/postgres?", "/latin?")
    schema = Schema(Classes("label", (0, 1)), (Categorical("word", ("é", "è", "e")),))
    try:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp")
            connection.execute(
                "CREATE TABLE words AS SELECT * FROM (VALUES ('é', 0), ('è', 1), ('ê', 0)) AS v (word, label)"
            )
        found = {}
        for where in ("server", "client"):
            with (
                PostgresEngine(uri, table="words", where=where) as engine,
                engine.prepare(schema, Context(), permuted=False) as prepared,
            ):
                found[where] = np.concatenate([block.copy() for block in prepared.read_blocks()]).tolist()
    finally:
        admin.execute("DROP DATABASE latin WITH (FORCE)")
    assert found["server"] == found["client"] == [[0, 0], [1, 1], [0, -1]]


HOSTILE = ["a\"b'c; DROP TABLE patients; --", "Ünïcode %s {} $1 \\", "x" * 63, "ta.ble", "SELECT"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_names(
    server: Server, admin: psycopg.Connection, name: str, expected: list[Any]
) -> None:
    admin.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    inside = sql.Identifier(name, name)
    admin.execute(
        sql.SQL("CREATE TABLE {} ({} float8[], {} int)").format(
            inside, sql.Identifier(name), sql.Identifier("y" + name[1:])
        )
    )
    with admin.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(inside)) as copy:
        for x, y in zip(X.tolist(), Y.tolist(), strict=True):
            copy.write_row((x, y))
    schema = Schema(Classes("y" + name[1:], (0, 1)), (Vector(name, DIMS, -2, 2),), intercept=False, clip_norm=1.0)
    try:
        for where in ("server", "client"):
            with PostgresEngine(server.uri, table=f"{name}.{name}", where=where) as engine:
                assert weights(engine, schema) == expected
    finally:
        admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


def test_missing_table_is_named_and_those_like_it(server: Server, admin: psycopg.Connection) -> None:
    with pytest.raises(DataError, match=r"^the database must have one table or view named 'nobody', it has none$"):
        PostgresEngine(server.uri, table="nobody")
    admin.execute("CREATE TABLE somebodies (a int)")
    try:
        with pytest.raises(DataError) as caught:
            PostgresEngine(server.uri, table="somebody")
    finally:
        admin.execute("DROP TABLE somebodies")
    assert str(caught.value.hint).startswith("did you mean 'somebodies'?; names are as PostgreSQL keeps them")


def test_fault_of_a_query_is_told_without_quoting_a_row(server: Server) -> None:
    query = "SELECT 'secret' || i AS x, ('secret' || i)::int AS label FROM generate_series(1, 9) i"
    for where in ("server", "client"):
        with PostgresEngine(server.uri, query=query, where=where) as engine:
            schema = Schema(Classes("label", (0, 1)), (Categorical("x", ("a",)),))
            with pytest.raises(DataError, match="InvalidTextRepresentation") as caught:
                engine.prepare(schema, Context(seed=0))
            assert "secret" not in str(caught.value)
            assert caught.value.__context__ is None


def test_syntax_of_a_query_is_told(server: Server) -> None:
    with PostgresEngine(server.uri, query="SELEC 1") as engine, pytest.raises(DataError, match="syntax error"):
        engine.columns()


def test_unreachable_server_is_told() -> None:
    with pytest.raises(DataError, match=r"^PostgreSQL cannot be reached: "):
        PostgresEngine("postgresql://nobody@/none?host=/nowhere", table="t")


def test_nothing_is_left_after_success_or_error(server: Server, table: str, admin: psycopg.Connection) -> None:
    with PostgresEngine(server.uri, table=table) as engine:
        weights(engine)
        assert leftovers(admin) == []
        with pytest.raises(ZeroDivisionError), engine.prepare(SCHEMA, Context(seed=0)):
            raise ZeroDivisionError
        assert leftovers(admin) == []


def slow(server: Server, table: str, outcome: list[BaseException]) -> threading.Thread:
    """A training of very many passes, in a thread; what ends it goes to `outcome`."""

    def run() -> None:
        try:
            with PostgresEngine(server.uri, table=table) as engine:
                train(engine, SCHEMA, Settings(epsilon=1.0, algorithm="bolton", passes=1_000_000))
        except BaseException as fault:
            outcome.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("pg_terminate_backend", "^a pass cannot be run: the server ended the connection$"),
        ("pg_cancel_backend", "^a pass cannot be run: the statement was cancelled$"),
    ],
)
def test_pass_that_is_ended_from_outside_leaves_nothing_and_can_be_run_again(
    server: Server, table: str, admin: psycopg.Connection, expected: list[Any], action: str, message: str
) -> None:
    outcome: list[BaseException] = []
    thread = slow(server, table, outcome)
    # A cancel that comes between two statements is lost, so it is sent until it meets one.
    query = (
        f"SELECT count({action}(pid)) FROM pg_stat_activity"
        " WHERE query LIKE '%boltdp.sgd%' AND state = 'active' AND pid <> pg_backend_pid()"
    )
    wait_until(lambda: (admin.execute(query), outcome)[1])
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(outcome[0], DataError)
    assert re.search(message, str(outcome[0]))
    wait_until(lambda: leftovers(admin) == [])
    with PostgresEngine(server.uri, table=table) as engine:
        assert weights(engine) == expected


def test_role_that_may_only_read_is_served_by_streaming(
    server: Server, table: str, admin: psycopg.Connection, expected: list[Any]
) -> None:
    admin.execute("CREATE ROLE reader LOGIN")
    admin.execute("GRANT SELECT ON patients TO reader")
    admin.execute("ALTER ROLE reader SET default_transaction_read_only = on")
    uri = server.uri.replace("postgres@", "reader@")
    try:
        with PostgresEngine(uri, table=table) as engine:
            assert not engine.in_server
            assert engine.where.startswith("streamed to this process: the session is read-only")
            assert engine.slice(0, 10).where == engine.where
            assert weights(engine) == expected
        with pytest.raises(DataError, match=r"the session is read-only, so no temporary table can be made$"):
            PostgresEngine(uri, table=table, where="server")
        admin.execute("ALTER ROLE reader RESET default_transaction_read_only")
        admin.execute("REVOKE TEMP ON DATABASE postgres FROM PUBLIC")
        with pytest.raises(DataError, match=r"the role may not make temporary tables$"):
            PostgresEngine(uri, table=table, where="server")
        with PostgresEngine(uri, table=table) as engine:
            assert engine.where == "streamed to this process: the role may not make temporary tables"
        admin.execute("GRANT TEMP ON DATABASE postgres TO PUBLIC")
        with PostgresEngine(uri, table=table) as engine:
            assert engine.in_server
            assert weights(engine) == expected
    finally:
        admin.execute("GRANT TEMP ON DATABASE postgres TO PUBLIC")
        admin.execute("DROP OWNED BY reader")
        admin.execute("DROP ROLE reader")


def test_table_that_may_not_be_read_is_told(server: Server, table: str, admin: psycopg.Connection) -> None:
    admin.execute("CREATE ROLE stranger LOGIN")
    try:
        with (
            PostgresEngine(server.uri.replace("postgres@", "stranger@"), table=table) as engine,
            pytest.raises(DataError, match=r"permission denied for table patients$"),
        ):
            engine.count()
    finally:
        admin.execute("DROP ROLE stranger")


def test_database_without_the_extension_streams(server: Server, admin: psycopg.Connection, expected: list[Any]) -> None:
    admin.execute("CREATE DATABASE plain")
    uri = server.uri.replace("/postgres?", "/plain?")
    try:
        with psycopg.connect(uri, autocommit=True) as connection:
            fill(connection, "patients")
        with PostgresEngine(uri, table="patients") as engine:
            assert not engine.in_server
            assert weights(engine) == expected
        with pytest.raises(DataError, match="CREATE EXTENSION boltdp"):
            PostgresEngine(uri, table="patients", where="server")
    finally:
        admin.execute("DROP DATABASE plain")


def test_no_index_puts_the_rows_in_the_order_of_their_values(server: Server, admin: psycopg.Connection) -> None:
    """One that has all the columns would be read in the place of the table, and the order would tell values."""
    ages = np.random.default_rng(4).permutation(5000).tolist()
    admin.execute("CREATE TABLE indexed (id int, age int, sick int, notes text)")
    with admin.cursor().copy("COPY indexed FROM STDIN") as copy:
        for i, age in enumerate(ages):
            copy.write_row((i, age, i % 2, "x" * 500))
    admin.execute("CREATE INDEX ON indexed (age, sick)")
    admin.execute("VACUUM ANALYZE indexed")
    schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 5000),))
    arrays = ArrayEngine.from_arrow(pa.table({"age": ages, "sick": np.arange(5000) % 2}))
    try:
        plan = admin.execute("EXPLAIN SELECT age, sick FROM indexed").fetchall()
        assert "Index Only Scan" in str(plan)
        for where in ("server", "client"):
            with (
                PostgresEngine(server.uri, table="indexed", where=where) as engine,
                engine.prepare(schema, Context(seed=1)) as prepared,
                arrays.prepare(schema, Context(seed=1)) as expected,
            ):
                np.testing.assert_array_equal(
                    np.vstack([*prepared.read_blocks()]), np.vstack([*expected.read_blocks()])
                )
                (batch,) = engine.batches(["age", "sick"])
                assert batch.column("age").to_pylist() == ages
    finally:
        admin.execute("DROP TABLE indexed")


@pytest.mark.parametrize("where", ["server", "client"])
def test_no_index_of_a_selected_column_puts_the_rows_in_the_order_of_others(
    server: Server, admin: psycopg.Connection, where: Any
) -> None:
    """A query selects by a public column; the index by which it is found goes on with a private one."""
    ages = np.random.default_rng(4).permutation(5000).tolist()
    admin.execute("CREATE TABLE wards (ward int, age int, sick int, notes text)")
    try:
        with admin.cursor().copy("COPY wards FROM STDIN") as copy:
            for i, age in enumerate(ages):
                copy.write_row((i // 50, age, i % 2, "x" * 500))
        admin.execute("CREATE INDEX ON wards (ward, age)")
        admin.execute("CREATE INDEX ON wards (age) WHERE ward = 4")
        admin.execute("VACUUM ANALYZE wards")
        assert "Index Scan" in admin.execute("EXPLAIN SELECT age, sick FROM wards WHERE ward = 3").fetchall()[0][0]
        schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 5000),))
        for ward in (3, 4):
            query = f"SELECT age, sick FROM wards WHERE ward = {ward}"
            with (
                PostgresEngine(server.uri, query=query, where=where) as engine,
                engine.prepare(schema, Context(seed=1), permuted=False) as prepared,
            ):
                (batch,) = engine.batches(["age"])
                assert batch.column("age").to_pylist() == ages[50 * ward : 50 * ward + 50]
                cells = np.vstack([*prepared.read_blocks()])[:, 1]
                assert np.argsort(cells).tolist() == np.argsort(ages[50 * ward : 50 * ward + 50]).tolist()
    finally:
        admin.execute("DROP TABLE wards")


def test_disk_that_is_full_is_an_error_and_leaves_nothing(
    server: Server, table: str, admin: psycopg.Connection, expected: list[Any]
) -> None:
    with PostgresEngine(server.uri, table=table) as engine:
        pid = engine._session.ask("SELECT pg_backend_pid()", fault="")[0][0]
        # No file of this one session may grow beyond 16 KiB, which is as near to a full disk as can be without one.
        owner = (server.folder / "data").stat()
        command = ["prlimit", f"--pid={pid}", "--fsize=16384:16384"]
        as_owner = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
        subprocess.run(command, check=True, **as_owner)  # type: ignore[call-overload]
        with pytest.raises(DataError, match=r"^the rows cannot be prepared: "):
            train(engine, make_array_schema(dims=DIMS, classes=(0, 1)), SETTINGS)
    wait_until(lambda: leftovers(admin) == [])
    with PostgresEngine(server.uri, table=table) as engine:
        assert weights(engine) == expected


def test_two_trainings_at_once_on_one_table_do_not_mix(server: Server, table: str, expected: list[Any]) -> None:
    other = Settings(epsilon=1.0, algorithm="bolton", seed=8, noise_seed=1, passes=5)
    alone = weights(ArrayEngine.from_numpy(X, Y), settings=other)
    results: dict[int, list[Any]] = {}

    def run(number: int) -> None:
        with PostgresEngine(server.uri, table=table) as engine:
            results[number] = [weights(engine, settings=SETTINGS if number % 2 else other) for _ in range(3)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: [expected if number % 2 else alone] * 3 for number in range(4)}


def test_table_may_change_once_it_has_been_counted(
    server: Server, admin: psycopg.Connection, expected: list[Any]
) -> None:
    fill(admin, "changing")
    try:
        with PostgresEngine(server.uri, table="changing") as engine:
            assert engine.count() == ROWS
            admin.execute("INSERT INTO changing SELECT * FROM changing LIMIT 100")
            assert weights(engine) == expected
            with engine.prepare(SCHEMA, Context(seed=7)) as prepared:
                assert prepared.rows == ROWS + 100
                admin.execute("DELETE FROM changing")
                assert sum(len(block) for block in prepared.read_blocks()) == ROWS + 100
    finally:
        admin.execute("DROP TABLE changing")


def test_states_that_ran_elsewhere_in_between_give_the_same_bits(server: Server, table: str) -> None:
    recipe = Recipe(loss=Logistic(), dims=DIMS, rows=ROWS, batch_size=7, passes=4, schedule=make_constant_schedule(0.1))
    ours, theirs = State(recipe), State(recipe)
    with (
        PostgresEngine(server.uri, table=table) as engine,
        engine.prepare(SCHEMA, Context(seed=7)) as prepared,
        ArrayEngine.from_numpy(X, Y).prepare(SCHEMA, Context(seed=7)) as arrays,
    ):
        for source in (prepared, arrays, prepared, prepared):
            source.run_pass([ours], Context())
        for _ in range(4):
            arrays.run_pass([theirs], Context())
    assert ours.to_bytes() == theirs.to_bytes()


def test_more_passes_than_planned_are_refused(server: Server, table: str) -> None:
    recipe = Recipe(loss=Logistic(), dims=DIMS, rows=ROWS, batch_size=7, passes=1, schedule=make_constant_schedule(0.1))
    state = State(recipe)
    with PostgresEngine(server.uri, table=table) as engine, engine.prepare(SCHEMA, Context(seed=7)) as prepared:
        prepared.run_pass([state], Context())
        with pytest.raises(DataError, match=r"^a pass cannot be run: more rows were fed than the passes have left$"):
            prepared.run_pass([state], Context())
        narrow = Recipe(loss=Logistic(), dims=3, rows=9, batch_size=1, passes=1, schedule=make_constant_schedule(0.1))
        with pytest.raises(ParameterError, match=r"^rows must have 1 \+ 3 columns, got 6$"):
            prepared.run_pass([State(narrow)], Context())


def test_unsound_bytes_do_not_change_a_state() -> None:
    state = State(Recipe(loss=Logistic(), dims=3, rows=9, batch_size=1, passes=1, schedule=make_constant_schedule(0.1)))
    before = state.to_bytes()
    with pytest.raises(DataError, match="corrupt"):
        state.update(before[:-8])
    assert state.to_bytes() == before


def test_wide_rows_are_kept_too(server: Server, admin: psycopg.Connection) -> None:
    rng = np.random.default_rng(1)
    wide, labels = rng.normal(0, 0.02, (30, 3000)), rng.integers(0, 2, 30)
    admin.execute("CREATE TABLE wide (x float8[], label int)")
    with admin.cursor().copy("COPY wide FROM STDIN") as copy:
        for x, y in zip(wide.tolist(), labels.tolist(), strict=True):
            copy.write_row((x, y))
    schema = make_array_schema(dims=3000, classes=(0, 1))
    try:
        for layout in ("packed", "rows"):
            with PostgresEngine(server.uri, table="wide", layout=layout) as engine:
                assert weights(engine, schema) == weights(ArrayEngine.from_numpy(wide, labels), schema)
    finally:
        admin.execute("DROP TABLE wide")


def test_many_columns_are_more_than_a_function_may_have_arguments(server: Server, admin: psycopg.Connection) -> None:
    names = [f"f{i}" for i in range(200)]
    admin.execute("CREATE TABLE many (" + ", ".join(f"{name} real" for name in names) + ", label int)")
    rng = np.random.default_rng(2)
    rows = rng.normal(0, 1, (50, 200)).astype(np.float32)
    with admin.cursor().copy("COPY many FROM STDIN") as copy:
        for row in rows.tolist():
            copy.write_row((*row, int(row[0] > 0)))
    schema = Schema(Classes("label", (0, 1)), tuple(Numeric(name, -3, 3) for name in names))
    arrays = ArrayEngine.from_numpy(rows, rows[:, 0] > 0)
    expected = weights(arrays, Schema(Classes("label", (0, 1)), (Vector("x", 200, -3, 3),)))
    try:
        with PostgresEngine(server.uri, table="many") as engine:
            assert weights(engine, schema) == expected
    finally:
        admin.execute("DROP TABLE many")


def test_uri_opens_the_engine(server: Server, table: str) -> None:
    with open_source(server.uri, table=table) as engine:
        assert isinstance(engine, PostgresEngine)
        assert engine.count() == ROWS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either table or query"),
        ({"table": "t", "query": "SELECT 1"}, "give either table or query"),
        ({"table": "t", "where": "moon"}, "where must be one of auto, server, client, got 'moon'"),
        ({"table": "t", "layout": "round"}, "layout must be one of packed, rows, got 'round'"),
        ({"table": "t", "shuffle": "no"}, "shuffle must be one of seeded, random, got 'no'"),
    ],
)
def test_bad_options_are_told_before_a_connection_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        PostgresEngine("postgresql://nowhere", **options)


@pytest.mark.parametrize("layout", ["packed", "rows"])
@pytest.mark.parametrize("drawn_bytes", [DRAWN_BYTES, 50_000])
def test_drawn_rows_meet_models_that_were_trained_elsewhere(
    server: Server, table: str, layout: Any, drawn_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second bound makes three scans, and must not change a bit.
    monkeypatch.setattr("boltdp.engines.postgres.prepared_rows.DRAWN_BYTES", drawn_bytes)
    recipe = Recipe(
        loss=Logistic(), dims=DIMS, rows=ROWS, batch_size=50, passes=2, schedule=make_constant_schedule(0.5)
    )
    positions = np.random.default_rng(1).integers(-1, ROWS, ROWS)
    ours, theirs = State(recipe), State(recipe)
    with (
        PostgresEngine(server.uri, table=table, layout=layout) as engine,
        engine.prepare(SCHEMA, Context(seed=7)) as prepared,
        ArrayEngine.from_numpy(X, Y).prepare(SCHEMA, Context(seed=7)) as arrays,
    ):
        arrays.run_pass([ours], Context())
        arrays.run_pass([theirs], Context())
        prepared.run_sampled_batches([ours], [positions])
        arrays.run_sampled_batches([theirs], [positions])
    assert ours.to_bytes() == theirs.to_bytes()


def test_drawn_positions_are_dropped_whatever_happens(server: Server, table: str) -> None:
    recipe = Recipe(
        loss=Logistic(), dims=DIMS, rows=ROWS, batch_size=50, passes=1, schedule=make_constant_schedule(0.5)
    )

    def broken() -> Iterator[Any]:
        yield np.arange(10)
        raise KeyboardInterrupt

    with PostgresEngine(server.uri, table=table) as engine, engine.prepare(SCHEMA, Context(seed=7)) as prepared:
        session = engine._session
        state = State(recipe)

        def kept() -> bytes | None:
            held: bytes | None = session.ask("SELECT boltdp.get_state($1)", [session._drawn_handle], fault="")[0][0]
            return held

        with session.send_positions(np.arange(2)):
            assert kept() == bytes(15) + b"\1"
        assert kept() is None
        with pytest.raises(KeyboardInterrupt):
            prepared.run_sampled_batches([state], broken())
        assert kept() is None
        with pytest.raises(DataError, match=r"^a pass cannot be run: "):
            prepared.run_sampled_batches([state], [np.zeros(ROWS + 1, np.int64)])
        assert kept() is None
        with pytest.raises(ParameterError, match=r"^rows must have 1 \+ 2 columns, got 6$"):
            prepared.run_sampled_batches([State(replace(recipe, dims=2))], [np.arange(3)])
        prepared.run_sampled_batches([state], [np.arange(ROWS)])
        assert state.is_finished
        assert kept() is None


def test_states_are_kept_while_they_are_needed_and_no_longer(
    server: Server, table: str, admin: psycopg.Connection
) -> None:
    recipe = Recipe(
        loss=Logistic(), dims=DIMS, rows=ROWS, batch_size=50, passes=3, schedule=make_constant_schedule(0.5)
    )
    ours, theirs = State(recipe), State(recipe)
    around = np.ones((1, DIMS))
    rename = sql.SQL("ALTER TABLE {} RENAME TO {}")
    with PostgresEngine(server.uri, table=table) as engine:
        session = engine._session

        def kept() -> bytes | None:
            """What is kept under any handle."""
            query = "SELECT string_agg(boltdp.get_state(handle), '') FROM unnest($1::bigint[]) AS handle"
            held: bytes | None = session.ask(query, [session._handles], fault="")[0][0]
            return held

        def sums() -> list[DerivativeSums]:
            return [DerivativeSums(Logistic(), around), DerivativeSums(Logistic(), around, direction=around)]

        with (
            engine.prepare(SCHEMA, Context(seed=7)) as prepared,
            ArrayEngine.from_numpy(X, Y).prepare(SCHEMA, Context(seed=7)) as arrays,
        ):
            prepared.run_pass([ours], Context())
            assert kept() == ours.to_bytes()
            expected, summed = sums(), sums()
            arrays.add_to_sums(expected)
            prepared.add_to_sums(summed)
            for one, other in zip(expected, summed, strict=True):
                np.testing.assert_array_equal(other.value, one.value)
            assert len(session._handles) == 2
            assert kept() is None
            prepared.run_pass([ours], Context())
            assert kept() == ours.to_bytes()
            name, aside = sql.Identifier(leftovers(admin)[0][0]), sql.Identifier("aside")
            session.ask(rename.format(name, aside), fault="")
            before, unchanged = sums(), sums()
            with pytest.raises(DataError, match=r"^the rows cannot be summed: relation .* does not exist$"):
                prepared.add_to_sums(unchanged)
            assert [each.to_bytes() for each in unchanged] == [each.to_bytes() for each in before]
            assert kept() is None
            session.ask(rename.format(aside, name), fault="")
            prepared.run_pass([ours], Context())
            for _ in range(3):
                arrays.run_pass([theirs], Context())
        assert kept() is None
    assert ours.to_bytes() == theirs.to_bytes()


#: Parts of a server that keep statements, their plans and parameters, with everything that they can tell turned on.
WATCHERS = {
    "pg_stat_statements": {"pg_stat_statements.track": "all", "pg_stat_statements.save": "off"},
    "auto_explain": {
        "auto_explain.log_min_duration": "0",
        "auto_explain.log_analyze": "on",
        "auto_explain.log_verbose": "on",
        "auto_explain.log_triggers": "on",
        "auto_explain.log_nested_statements": "on",
    },
}


def test_nothing_that_watches_the_server_sees_a_model_or_a_row(server: Server) -> None:
    libraries = Path(ask_pg_config(server.pg_config, "--pkglibdir"))
    watchers = [name for name in WATCHERS if (libraries / f"{name}.so").is_file()]
    settings = {
        "log_statement": "all",
        "log_min_duration_statement": "0",
        "log_parameter_max_length": "-1",
        "log_parameter_max_length_on_error": "-1",
        "log_error_verbosity": "verbose",
        "log_min_messages": "debug2",
        "shared_preload_libraries": ",".join(watchers),
        **{name: value for watcher in watchers for name, value in WATCHERS[watcher].items()},
    }
    recipe = Recipe(
        loss=Logistic(), dims=DIMS, rows=ROWS, batch_size=50, passes=3, schedule=make_constant_schedule(0.5)
    )
    with run_private_server(pg_config=server.pg_config, extension=False, settings=settings) as talkative:
        with psycopg.connect(talkative.uri, autocommit=True) as connection:
            for name in ("boltdp", *(watcher for watcher in watchers if watcher == "pg_stat_statements")):
                connection.execute(f"CREATE EXTENSION {name}")
            fill(connection, "patients")
        log = talkative.folder / "server.log"
        before = len(log.read_text("utf-8"))
        states, seen = [State(recipe)], []
        key = np.random.default_rng(5).bytes(32)
        noise = Mechanism("gaussian", scale=0.1, dimensions=DIMS)
        with PostgresEngine(talkative.uri, table="patients") as engine:
            with engine.prepare(SCHEMA, Context(), permuted=False) as prepared:
                moments = FeatureSums(prepared.feature_map, clip_norm=1.0)
                prepared.add_to_sums([moments])
            sums = moments.value
        with (
            PostgresEngine(talkative.uri, table="patients") as engine,
            engine.prepare(SCHEMA, Context(seed=7)) as prepared,
            psycopg.connect(talkative.uri, autocommit=True) as watcher,
        ):
            for _ in range(3):
                prepared.run_pass(states, Context())
                seen.append(states[0].to_bytes())
                # Another model between its passes, so that it is sent each time, un-noised.
                prepared.run_pass([State(recipe, noise=noise, key=key)], Context())
            around = np.random.default_rng(3).standard_normal((2, 1, DIMS))
            at, tables = len(log.read_text("utf-8")), leftovers(watcher)
            product = DerivativeSums(Logistic(), around[0], direction=around[1])
            hessian = DerivativeSums(Logistic(), around[0], hessian=True)
            prepared.add_to_sums([product])
            prepared.slice(0, ROWS // 2).add_to_sums([hessian, DerivativeSums(Logistic(), around[1])])
            summed, bent = product.value, hessian.value
            summing = statements(log.read_text("utf-8")[at:])
            assert leftovers(watcher) == tables
            said = []
            for seed in (1, 2):
                at = len(log.read_text("utf-8"))
                drawn = np.random.default_rng(seed).integers(-1, ROWS, ROWS - 100 - seed)
                prepared.run_sampled_batches([State(recipe)], [drawn])
                said.append(statements(log.read_text("utf-8")[at:]))
            texts = watcher.execute("SELECT string_agg(query, ' ') FROM pg_stat_activity").fetchall()
            if "pg_stat_statements" in watchers:
                texts += watcher.execute("SELECT query FROM pg_stat_statements").fetchall()
                assert "boltdp.sgd" in str(texts[1:])
        written = log.read_text("utf-8")[before:] + str(texts)
    assert "boltdp.sgd" in written
    assert "boltdp.sums" in written
    assert not any(str(total) in written for total in sums.reshape(-1).tolist())
    # Which rows were drawn does not show, nor how many: two draws say the same, and no table is made for them.
    assert any("COPY boltdp.inbox FROM STDIN (FORMAT BINARY)" in line for line in said[0])
    assert not any("CREATE" in line for line in said[0])
    assert said[0] == said[1]
    assert not any(f"rows={ROWS - 100 - seed}" in written for seed in (1, 2))
    assert "boltdp.put_state" in written
    assert ("Query Text" in written) == ("auto_explain" in watchers)
    header = 256
    weights = [state[at : at + 8] for state in seen for at in range(header, header + 8 * DIMS, 8)]
    derivatives = [number.tobytes() for number in (*around.reshape(-1), *summed.reshape(-1), *bent.reshape(-1))]
    for number in (*weights, *derivatives, *(key[at : at + 8] for at in range(0, 32, 8))):
        assert not any(text in written for text in notations(number))
    # What a derivative is summed at goes to the inbox, and no table is made for it.
    assert any("boltdp.sums" in line for line in summing)
    assert any("COPY boltdp.inbox FROM STDIN" in line for line in summing)
    assert not any("CREATE" in line for line in summing)
    for value in X[:20].reshape(-1):
        assert repr(float(value)) not in written
        short = f"{value:.6g}"
        # A number of few digits may also be a duration.
        assert len(short) < 7 or short not in written


def test_client_that_is_killed_leaves_nothing_and_releases_nothing(
    server: Server, table: str, admin: psycopg.Connection, expected: list[Any], tmp_path: Path
) -> None:
    SCHEMA.save(tmp_path / "schema.toml")
    arguments = ["train", server.uri, "--table", table, "--schema", "schema.toml", "--epsilon", "1", "-o", "model.json"]
    # Where temporary files would go, if there were any.
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "boltdp", *arguments, "--passes", "1000000"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as client:
        passing = (
            "SELECT pid FROM pg_stat_activity WHERE query LIKE '%boltdp.sgd%' AND state = 'active'"
            " AND pid <> pg_backend_pid()"
        )
        wait_until(lambda: admin.execute(passing).fetchall())
        client.kill()
    assert client.returncode == -signal.SIGKILL
    wait_until(lambda: admin.execute("SELECT FROM pg_stat_activity WHERE application_name = 'boltdp'").fetchall() == [])
    assert leftovers(admin) == []
    assert [path.name for path in tmp_path.iterdir()] == ["schema.toml"]
    with PostgresEngine(server.uri, table=table) as engine:
        assert weights(engine) == expected


@pytest.mark.parametrize("algorithm", ["scs13", "bst14", "dpsgd"])
@pytest.mark.parametrize("options", [{}, {"layout": "rows"}, {"where": "client"}], ids=str)
def test_white_box_algorithms_give_the_bits_of_the_arrays(
    server: Server, admin: psycopg.Connection, table: str, algorithm: Any, options: dict[str, Any]
) -> None:
    settings = replace(SETTINGS, algorithm=algorithm, delta=1e-5)
    with PostgresEngine(server.uri, table=table, **options) as engine:
        assert weights(engine, settings=settings) == weights(ArrayEngine.from_numpy(X, Y), settings=settings)
    assert leftovers(admin) == []


def test_a_sample_leaves_no_trace_of_how_many_rows_are_in_it(server: Server, admin: psycopg.Connection) -> None:
    """Every role sees how large a temporary table is, and which rows are sampled depends on their values."""

    def sizes() -> list[Any]:
        query = "SELECT pg_relation_size(oid) FROM pg_class WHERE relname LIKE 'boltdp\\_%' AND relkind = 'r'"
        return admin.execute(query).fetchall()

    admin.execute("CREATE TABLE sampled (x float8[], label int)")
    seen = []
    try:
        for row in ("ARRAY[0.5, 0.5]", "ARRAY[i / 2e4, 0.5]"):  # all rows or none, and one in ten
            admin.execute("TRUNCATE sampled")
            admin.execute(f"INSERT INTO sampled SELECT {row}, i % 2 FROM generate_series(1, 20000) AS i".encode())
            schema = make_array_schema(dims=2, classes=(0, 1), clip_norm=2.0)
            with (
                PostgresEngine(server.uri, table="sampled") as engine,
                engine.prepare(schema, Context(seed=1), permuted=False) as prepared,
                prepared.open_sample(0.1) as few,
            ):
                few.add_to_sums([DerivativeSums(Logistic(), np.ones((1, 2)), share=0.1)])
                seen.append(sizes())
    finally:
        admin.execute("DROP TABLE sampled")
    assert seen[0] == seen[1]
