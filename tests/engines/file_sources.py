"""Rows in files, which DuckDB reads."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
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
UNTYPED = {"^test_wrong_type_is_told": "a cell of a text file is what the schema says that it is"}
KEYS = {"_does_not_have_is_told|^test_missing_|^test_slices_do_not": "keys are private: a missing one is no error"}
TEXTS_UNTYPED = {"^test_wrong_type_is_told.*sex": "a text of a query over files is what the schema says that it is"}


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


@register("parquet glob", buckets=("few buckets",))
def from_parquet_glob(request: pytest.FixtureRequest) -> Iterator[Source]:
    def write(folder: Path) -> None:
        folder.mkdir()
        for part, start in enumerate(range(0, ROWS, 400)):
            pq.write_table(table().slice(start, 400), folder / f"part-{part}.parquet")

    with open_source(str(written(request, "parts", write) / "part-*.parquet")) as engine:
        yield Source(engine, SCHEMA, reference())


def write_json(path: Path, rows: dict[str, list[Any]]) -> None:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        for row in zip(*rows.values(), strict=True):
            print(json.dumps(dict(zip(rows, row, strict=True)), default=str), file=file)


@register("json lines", cannot={**UNTYPED, **KEYS})
def from_json(request: pytest.FixtureRequest) -> Iterator[Source]:
    with open_source(written(request, "rows.ndjson.gz", lambda path: write_json(path, columns()))) as engine:
        yield Source(engine, SCHEMA, reference())


def parts(folder: Path, write: Callable[[pa.Table, Path], object], ending: str) -> None:
    """The rows in several files, whose names are not made in their order."""
    folder.mkdir()
    for start in reversed(range(0, ROWS, 300)):
        write(table().slice(start, 300), folder / f"part-{start:04}{ending}")


@register(
    "partitioned parquet",
    cannot={"^test_wrong_type_is_told.*sex": "a partition is what the schema says that it is"},
)
def from_partitions(request: pytest.FixtureRequest) -> Iterator[Source]:
    """The sex is in the names of the directories, so that the rows are in the order of these."""
    order = partition_order()

    def write(folder: Path) -> None:
        for sex in ("F", "M", "unknown", "__HIVE_DEFAULT_PARTITION__"):
            inside = folder / "k=v" / "year=2024" / f"sex={sex}"
            inside.mkdir(parents=True)
            places = [i for i in order if (columns()["sex"][i] or "__HIVE_DEFAULT_PARTITION__") == sex]
            for part, some in enumerate((places[:100], places[100:])):
                pq.write_table(table().take(some).drop_columns("sex"), inside / f"part-{part}.parquet")

    with open_source(written(request, "partitions", write) / "k=v") as engine:
        yield Source(engine, SCHEMA, reference()[order])


def partition_order() -> list[int]:
    return sorted(range(ROWS), key=lambda i: columns()["sex"][i] or "__HIVE_DEFAULT_PARTITION__")


def write_arrow(rows: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=100)


@register("directory of arrow")
def from_directory_of_arrow(request: pytest.FixtureRequest) -> Iterator[Source]:
    with open_source(written(request, "arrows", lambda folder: parts(folder, write_arrow, ".ipc"))) as engine:
        yield curved(engine)


@register("query over files", cannot=TEXTS_UNTYPED)
def from_query_over_files(request: pytest.FixtureRequest) -> Iterator[Source]:
    folder = written(request, "directory", lambda folder: parts(folder, pq.write_table, ".parquet"))
    (folder / "_SUCCESS").touch()
    path = csv_file(request)
    query = f"SELECT a.* EXCLUDE (visits), b.visits FROM source a JOIN '{path}' b ON a.id = b.id ORDER BY a.id"
    with open_source(folder, query=query, spool=folder.parent) as engine:
        yield Source(engine, SCHEMA, reference())


@register("duckdb table", buckets=EVERY)
def from_duckdb_table(request: pytest.FixtureRequest) -> Iterator[Source]:
    with open_source(database(request, "table.duckdb"), table="the rows") as engine:
        yield Source(engine, SCHEMA, reference())


@register("duckdb query", buckets=("few buckets",))
def from_duckdb_query(request: pytest.FixtureRequest) -> Iterator[Source]:
    query, path = 'SELECT sick, scan, sex, visits, age FROM "the rows" ORDER BY id', database(request, "query.duckdb")
    with open_source(path, query=query, spool=path.parent) as engine:
        yield Source(engine, SCHEMA, reference())


@register("duckdb relation", buckets=("few buckets",))
def from_duckdb_relation(_: pytest.FixtureRequest) -> Iterator[Source]:
    with duckdb.connect() as connection:
        connection.register("given", table())
        with open_source(connection.sql("SELECT * FROM given")) as engine:
            yield Source(engine, SCHEMA, reference())


@register("csv projected", buckets=("many buckets",), cannot=UNTYPED)
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
