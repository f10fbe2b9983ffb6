"""The same rows for every engine, the packed rows they must become, computed in plain NumPy, and who makes an engine.

A file named `*_sources.py`, anywhere among the tests, registers what makes engines over these rows; the suite in
`test_conformance.py` then runs with each of them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from boltdp.data.encode import projection_matrix
from boltdp.data.schema import Categorical, Numeric, Projection, Schema, Vector
from boltdp.engines import Engine
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


@dataclass(frozen=True)
class Maker:
    """What makes a source, and what is asked of it."""

    make: Callable[[pytest.FixtureRequest], AbstractContextManager[Source]]
    shared: bool  #: by all tests; else each test has one of its own
    buckets: tuple[str, ...]  #: of `BUCKETS`, the ways in which prepared rows are spooled
    cannot: Mapping[str, str]  #: patterns of tests that must fail, each with the reason


#: Prepared rows in memory, in a file of few buckets, and in one of many, the last of them short.
BUCKETS = {"memory": 64 << 20, "few buckets": 4 * 4 * (ROWS - 1), "many buckets": 4 * 4 * 100}
MAKERS: dict[str, Maker] = {}


def register(
    name: str,
    *,
    shared: bool = True,
    buckets: tuple[str, ...] = ("memory",),
    cannot: Mapping[str, str] | None = None,
) -> Callable[[Callable[[pytest.FixtureRequest], Iterator[Source]]], None]:
    """Have the suite run with what a generator function yields; it may ask for fixtures, and closes what it opens."""

    def decorate(make: Callable[[pytest.FixtureRequest], Iterator[Source]]) -> None:
        assert name not in MAKERS
        MAKERS[name] = Maker(contextmanager(make), shared, buckets, cannot or {})

    return decorate


def written(request: pytest.FixtureRequest, name: str, write: Callable[[Path], object]) -> Path:
    """A file of the session, written when it is first asked for."""
    path = Path(request.getfixturevalue("source_folder")) / name
    if not path.exists():
        write(path)
    return path


def projected(engine: Engine) -> Source:
    """The same rows with a projection."""
    projection = Projection(dims=3, seed=17)
    packed = np.empty((ROWS, 4), np.float32)
    project(reference(), projection_matrix(projection, SCHEMA.dims), packed)
    return Source(engine, replace(SCHEMA, projection=projection), packed)


@cache
def columns() -> dict[str, list[Any]]:
    """Rows with everything that can be wrong with a cell and is no fault of the schema."""
    rng = np.random.default_rng(11)
    age = [None if i % 13 == 0 else float(x) for i, x in enumerate(rng.normal(50, 40, ROWS))]
    visits = [int(x) for x in rng.integers(-2, 12, ROWS)]
    sex = [["F", "M", "unknown", None][i] for i in rng.integers(0, 4, ROWS)]
    scan = [None if i % 17 == 0 else [float(a), float(b)] for i, (a, b) in enumerate(rng.normal(0, 2, (ROWS, 2)))]
    sick = [None if i % 19 == 0 else int(x) for i, x in enumerate(rng.integers(0, 4, ROWS))]
    return {"id": list(range(ROWS)), "age": age, "visits": visits, "sex": sex, "scan": scan, "sick": sick}


@cache
def reference(schema: Schema = SCHEMA) -> npt.NDArray[np.float32]:
    """The packed rows, cell by cell."""
    cells = columns()
    unit = 1.0 / schema.row_norm

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


#: Where `table` is inside of `longer_table`.
MIDDLE = (50, 50 + ROWS)


def longer_table() -> pa.Table:
    """The rows with others before and after them."""
    rows = table()
    return pa.concat_tables([rows.slice(200, MIDDLE[0]), rows, rows.slice(0, 30)])


def write_csv(path: Path, rows: dict[str, list[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))


def in_order(packed: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32]:
    """The reference order: position p holds the row source_position(p)."""
    return packed[source_position(0, len(packed), rows=len(packed), seed=seed)]
