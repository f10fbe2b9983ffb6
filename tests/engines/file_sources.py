"""Rows in files, which DuckDB reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from boltdp.engines import open_source
from tests.engines.sources import (
    BUCKETS,
    MIDDLE,
    ROWS,
    SCHEMA,
    Source,
    columns,
    curved,
    longer_table,
    projected,
    reference,
    register,
    table,
    write_csv,
    written,
)

EVERY = tuple(BUCKETS)
UNTYPED = {"^test_wrong_type_is_told": "a cell of a CSV file is what the schema says that it is"}


def csv_file(request: pytest.FixtureRequest) -> Path:
    return written(request, "rows.csv", lambda path: write_csv(path, columns()))


def database(request: pytest.FixtureRequest, name: str) -> Path:
    """Each engine has a file of its own, since DuckDB opens one only once with different settings."""

    def write(path: Path) -> None:
        with duckdb.connect(str(path)) as connection:
            connection.register("given", table())
            connection.execute('CREATE TABLE "the rows" AS SELECT * FROM given')

    return written(request, name, write)


@register("csv", buckets=EVERY, cannot=UNTYPED)
def from_csv(request: pytest.FixtureRequest) -> Iterator[Source]:
    with open_source(csv_file(request)) as engine:
        yield Source(engine, SCHEMA, reference())


@register("parquet", buckets=EVERY)
def from_parquet(request: pytest.FixtureRequest) -> Iterator[Source]:
    path = written(request, "rows.parquet", lambda path: pq.write_table(table(), path, row_group_size=100))
    with open_source(path) as engine:
        yield Source(engine, SCHEMA, reference())


@register("parquet glob", buckets=EVERY)
def from_parquet_glob(request: pytest.FixtureRequest) -> Iterator[Source]:
    def write(folder: Path) -> None:
        folder.mkdir()
        for part, start in enumerate(range(0, ROWS, 400)):
            pq.write_table(table().slice(start, 400), folder / f"part-{part}.parquet")

    with open_source(str(written(request, "parts", write) / "part-*.parquet")) as engine:
        yield Source(engine, SCHEMA, reference())


@register("duckdb table", buckets=EVERY)
def from_duckdb_table(request: pytest.FixtureRequest) -> Iterator[Source]:
    with open_source(database(request, "table.duckdb"), table="the rows") as engine:
        yield Source(engine, SCHEMA, reference())


@register("duckdb query", buckets=EVERY)
def from_duckdb_query(request: pytest.FixtureRequest) -> Iterator[Source]:
    query, path = 'SELECT sick, scan, sex, visits, age FROM "the rows" ORDER BY id', database(request, "query.duckdb")
    with open_source(path, query=query, spool=path.parent) as engine:
        yield Source(engine, SCHEMA, reference())


@register("duckdb relation", buckets=EVERY)
def from_duckdb_relation(_: pytest.FixtureRequest) -> Iterator[Source]:
    with duckdb.connect() as connection:
        connection.register("given", table())
        with open_source(connection.sql("SELECT * FROM given")) as engine:
            yield Source(engine, SCHEMA, reference())


@register("csv projected", buckets=EVERY, cannot=UNTYPED)
def with_projection(request: pytest.FixtureRequest) -> Iterator[Source]:
    with open_source(csv_file(request)) as engine:
        yield projected(engine)


@register("csv curved", buckets=("memory", "many buckets"), cannot=UNTYPED)
def with_curves(request: pytest.FixtureRequest) -> Iterator[Source]:
    with open_source(csv_file(request)) as engine:
        yield curved(engine)


@register("duckdb curved", buckets=("few buckets",))
def from_duckdb_with_curves(request: pytest.FixtureRequest) -> Iterator[Source]:
    with open_source(database(request, "curved.duckdb"), table="the rows") as engine:
        yield curved(engine)


@register("slice of parquet", buckets=("memory", "few buckets"))
def from_slice(request: pytest.FixtureRequest) -> Iterator[Source]:
    path = written(request, "longer.parquet", lambda path: pq.write_table(longer_table(), path, row_group_size=100))
    with open_source(path) as engine:
        yield Source(engine.slice(*MIDDLE), SCHEMA, reference())
