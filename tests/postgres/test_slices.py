"""Slices of rows in a real server: of one moment, and none disturbs another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner

from boltdp.cli import main
from boltdp.engines import open_source
from boltdp.engines.postgres import PostgresEngine, PreparedTable
from boltdp.engines.postgres.local_server import Server
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import DataError
from boltdp.kernel.feature_sums import UNIT, FeatureSums
from boltdp.model import Model
from boltdp.run_context import Context
from boltdp.workflows.synthesize import make_synthetic_schema, synthesize
from tests.postgres.test_training import wait_until

ROWS, DIMS = 20_000, 3  # more than one batch, so that reading can end midway
SCHEMA = make_synthetic_schema(dims=DIMS)
WAYS: dict[str, dict[str, Any]] = {"packed": {}, "rows": {"layout": "rows"}, "streamed": {"where": "client"}}


@pytest.fixture
def table(server: Server, admin: psycopg.Connection) -> Iterator[str]:
    synthesize(server.uri, rows=ROWS, dims=DIMS, table="sliced")
    yield "sliced"
    admin.execute("DROP TABLE sliced")


def content(prepared: PreparedRows) -> list[tuple[float, ...]]:
    return sorted(tuple(row.tolist()) for block in prepared.read_blocks() for row in block)


def sessions(admin: psycopg.Connection) -> list[str]:
    """The states of all sessions of engines."""
    query = "SELECT state FROM pg_stat_activity WHERE application_name = 'boltdp'"
    return [state for (state,) in admin.execute(query).fetchall()]


def test_tuning_on_the_first_rows_chooses_as_it_does_for_a_file(server: Server, table: str, tmp_path: Path) -> None:
    synthesize(tmp_path / "rows.parquet", rows=ROWS, dims=DIMS).save(tmp_path / "schema.toml")
    options = ["--schema", "schema.toml", "--epsilon", "5", "--public-rows", "1000", "--grid", "passes=1,2"]
    options += ["--standardize", "private", "--seed", "3", "--json"]
    runner = CliRunner()
    models = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for source in ([server.uri, "--table", table], ["rows.parquet"]):
            result = runner.invoke(main, ["tune", *source, *options, "--overwrite", "-o", "model.json"])
            assert result.exit_code == 0, result.output
            record = json.loads(result.stdout)
            assert (record["private"], record["rows"]) == (True, ROWS - 1000)
            models.append(Model.load("model.json"))
    assert models[0].certificate.problem.rows == models[1].certificate.problem.rows == ROWS - 1000


def test_reading_that_is_given_up_leaves_the_transaction_as_it_was(
    server: Server, table: str, admin: psycopg.Connection
) -> None:
    with PostgresEngine(server.uri, table=table) as engine:
        assert engine.count() == ROWS
        admin.execute("DELETE FROM sliced WHERE label = 0")
        next(iter(engine.batches(["f0"])))
        assert sum(len(batch) for batch in engine.batches(["f0"])) == ROWS
        next(iter(engine.batches(["f0"])))
        with engine.prepare(SCHEMA, Context(seed=1)) as prepared:
            assert prepared.rows == ROWS


@pytest.mark.parametrize("way", WAYS)
def test_slices_are_of_one_moment_however_the_table_changes(
    server: Server, table: str, admin: psycopg.Connection, way: str, tmp_path: Path
) -> None:
    synthesize(tmp_path / "rows.parquet", rows=ROWS, dims=DIMS)
    with (
        open_source(tmp_path / "rows.parquet") as file,
        file.slice(0, 1000).prepare(SCHEMA, Context(seed=1)) as first,
        file.slice(1000, ROWS).prepare(SCHEMA, Context(seed=1)) as second,
    ):
        expected = content(first), content(second)
    with PostgresEngine(server.uri, table=table, **WAYS[way]) as engine:
        hidden, shown = engine.slice(1000, engine.count()), engine.slice(0, 1000)
        # Every row moves to another place.
        admin.execute("UPDATE sliced SET label = 1 - label")
        admin.execute("VACUUM sliced")
        with shown.prepare(SCHEMA, Context(seed=1)) as prepared:
            assert isinstance(prepared, PreparedTable) == (way != "streamed")
            assert content(prepared) == expected[0]
        with hidden.prepare(SCHEMA, Context(seed=1)) as prepared:
            assert content(prepared) == expected[1]
            moments = FeatureSums(prepared.feature_map, clip_norm=1.0)
            prepared.add_to_sums([moments])
            # Passes may take long, and must not keep the server from tidying up.
            assert sessions(admin) == ["idle"] * 3
        features, sums = np.array(expected[1])[:, 1:], moments.value[0]
        shortened = features / np.maximum(1, np.linalg.norm(features, axis=1, keepdims=True))
        np.testing.assert_allclose(sums[: features.shape[1]] * UNIT, shortened.sum(axis=0), rtol=1e-4)
    wait_until(lambda: sessions(admin) == [])


def test_a_slice_whose_rows_are_gone_says_so_and_the_others_go_on(
    server: Server, table: str, admin: psycopg.Connection
) -> None:
    with PostgresEngine(server.uri, table=table) as engine:
        first, last = engine.slice(0, 10), engine.slice(ROWS - 10, ROWS)
        for part in (first, last):
            part.prepare(SCHEMA, Context(seed=1)).close()
        admin.execute("DELETE FROM sliced WHERE ctid IN (SELECT ctid FROM sliced OFFSET 10)")
        message = r"^the data must keep its 10 rows while it is read, and it has changed$"
        for _ in range(2):
            with pytest.raises(DataError, match=message):
                last.prepare(SCHEMA, Context(seed=1))
        with first.prepare(SCHEMA, Context(seed=1)) as prepared:
            assert len(content(prepared)) == 10
        assert engine.count() == 10


def test_a_fault_in_one_slice_leaves_another_and_the_whole_alone(
    server: Server, table: str, admin: psycopg.Connection
) -> None:
    del table
    # The seventh row cannot be read.
    query = "SELECT f0, f1, f2, 1 / (row_number() OVER () - 7) * 0 + label AS label FROM sliced"
    with PostgresEngine(server.uri, query=query, where="client") as engine:
        engine._count = ROWS  # to count is to read
        engine._session.begin()
        bad, good = engine.slice(0, 10), engine.slice(0, 3)
        with pytest.raises(DataError, match=r"^the rows cannot be read: the server reports DivisionByZero"):
            bad.prepare(SCHEMA, Context(seed=1))
        assert sessions(admin).count("idle in transaction") == 2
        assert good.columns() == engine.columns()
        assert engine.count() == ROWS


def test_slices_end_with_the_engine(server: Server, table: str, admin: psycopg.Connection) -> None:
    with PostgresEngine(server.uri, table=table) as engine:
        part = engine.slice(5, 500)
        inner = part.slice(5, 50)
        with inner.prepare(SCHEMA, Context(seed=1)) as prepared:
            rows = content(prepared)
        with engine.slice(10, 55).prepare(SCHEMA, Context(seed=1)) as prepared:
            assert content(prepared) == rows
        assert len(sessions(admin)) == 4
    wait_until(lambda: sessions(admin) == [])
