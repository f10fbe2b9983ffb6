"""The same rows in every form an engine reads, with the packed rows they must become, computed in plain NumPy."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from boltdp.data.encode import projection_matrix
from boltdp.data.schema import Categorical, Numeric, Projection, Schema, Vector, array_schema
from boltdp.engines import Engine, open_source
from boltdp.kernel import project, source_position

ROWS = 997
SCHEMA = Schema(
    "sick",
    (0, 1, 2),
    (Numeric("age", 0, 100), Numeric("visits", 0, 9), Categorical("sex", ("F", "M")), Vector("scan", 2, -3, 3)),
)


@dataclass(frozen=True)
class Source:
    """An engine over the rows, the schema for them, and what they must be encoded as, in the original order."""

    engine: Engine
    schema: Schema
    packed: npt.NDArray[np.float32]


def columns() -> dict[str, list[Any]]:
    """Rows with everything that can be wrong with a cell and is no fault of the schema."""
    rng = np.random.default_rng(11)
    age = [None if i % 13 == 0 else float(x) for i, x in enumerate(rng.normal(50, 40, ROWS))]
    visits = [int(x) for x in rng.integers(-2, 12, ROWS)]
    sex = [["F", "M", "unknown", None][i] for i in rng.integers(0, 4, ROWS)]
    scan = [None if i % 17 == 0 else [float(a), float(b)] for i, (a, b) in enumerate(rng.normal(0, 2, (ROWS, 2)))]
    sick = [None if i % 19 == 0 else int(x) for i, x in enumerate(rng.integers(0, 4, ROWS))]
    return {"id": list(range(ROWS)), "age": age, "visits": visits, "sex": sex, "scan": scan, "sick": sick}


def reference(schema: Schema = SCHEMA) -> npt.NDArray[np.float32]:
    """The packed rows, cell by cell."""
    cells = columns()
    unit = 1.0 / schema.row_radius

    def scaled(x: float | None, low: float, high: float) -> float:
        return 0.0 if x is None else (min(max(x, low), high) - (low + high) / 2) * (unit / ((high - low) / 2))

    packed = [
        [
            float(cells["sick"][i]) if cells["sick"][i] in (0, 1, 2) else math.nan,
            scaled(cells["age"][i], 0.0, 100.0),
            scaled(cells["visits"][i], 0.0, 9.0),
            unit if cells["sex"][i] == "F" else 0.0,
            unit if cells["sex"][i] == "M" else 0.0,
            *(scaled(x, -3.0, 3.0) for x in cells["scan"][i] or (None, None)),
            unit,
        ]
        for i in range(ROWS)
    ]
    return np.array(packed, np.float32)


def table() -> pa.Table:
    return pa.table(columns())


def write_csv(path: Path, rows: dict[str, list[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))


def from_numpy(folder: Path) -> Source:
    del folder
    rng = np.random.default_rng(5)
    X, y = rng.normal(0, 0.5, (ROWS, 3)), rng.integers(0, 3, ROWS)
    X[7, 1] = np.nan
    expected = np.column_stack([np.where(y == 2, np.nan, y), np.nan_to_num(np.clip(X, -2, 2)) * 0.5])
    schema = array_schema(dims=3, classes=(0, 1), radius=2.0)
    return Source(open_source((X, y)), schema, expected.astype(np.float32))


def from_pandas(folder: Path) -> Source:
    del folder
    return Source(open_source(pd.DataFrame(columns())), SCHEMA, reference())


def from_arrow(folder: Path) -> Source:
    del folder
    # Chunks of different lengths must not show.
    cut = table()
    return Source(open_source(pa.concat_tables([cut.slice(0, 10), cut.slice(10)])), SCHEMA, reference())


def from_csv(folder: Path) -> Source:
    write_csv(folder / "rows.csv", columns())
    return Source(open_source(folder / "rows.csv"), SCHEMA, reference())


def from_parquet(folder: Path) -> Source:
    pq.write_table(table(), folder / "rows.parquet", row_group_size=100)
    return Source(open_source(folder / "rows.parquet"), SCHEMA, reference())


def from_parquet_glob(folder: Path) -> Source:
    for part, start in enumerate(range(0, ROWS, 400)):
        pq.write_table(table().slice(start, 400), folder / f"part-{part}.parquet")
    return Source(open_source(str(folder / "part-*.parquet")), SCHEMA, reference())


def _database(folder: Path) -> Path:
    path = folder / "rows.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.register("given", table())
        connection.execute('CREATE TABLE "the rows" AS SELECT * FROM given')
    return path


def from_duckdb_table(folder: Path) -> Source:
    return Source(open_source(_database(folder), table="the rows"), SCHEMA, reference())


def from_duckdb_query(folder: Path) -> Source:
    query = 'SELECT sick, scan, sex, visits, age FROM "the rows" ORDER BY id'
    return Source(open_source(_database(folder), query=query, spool=folder), SCHEMA, reference())


def from_duckdb_relation(folder: Path) -> Source:
    del folder
    connection = duckdb.connect()
    connection.register("given", table())
    return Source(open_source(connection.sql("SELECT * FROM given")), SCHEMA, reference())


def with_projection(folder: Path) -> Source:
    source = from_csv(folder)
    projection = Projection(dims=3, seed=17)
    packed = np.empty((ROWS, 4), np.float32)
    project(source.packed, projection_matrix(projection, SCHEMA.dims), packed)
    return Source(source.engine, replace(SCHEMA, projection=projection), packed)


SOURCES: dict[str, Callable[[Path], Source]] = {
    "numpy": from_numpy,
    "pandas": from_pandas,
    "arrow": from_arrow,
    "csv": from_csv,
    "parquet": from_parquet,
    "parquet glob": from_parquet_glob,
    "duckdb table": from_duckdb_table,
    "duckdb query": from_duckdb_query,
    "duckdb relation": from_duckdb_relation,
    "csv projected": with_projection,
}


def in_order(packed: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32]:
    """The reference order: position p holds the row source_position(p)."""
    return packed[source_position(0, len(packed), rows=len(packed), seed=seed)]
