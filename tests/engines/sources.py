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
from datetime import date, datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from boltdp.encoding.plan import PAIR_WEIGHT
from boltdp.engines.base import Engine
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.row_permutation import compute_source_positions
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema, TimePart, Vector
from tests.kernel.projection import project_rows

ROWS = 997
SCHEMA = Schema(
    Classes("sick", (0, 1, 2)),
    (Numeric("age", 0, 100), Numeric("visits", 0, 9), Categorical("sex", ("F", "M")), Vector("scan", 2, -3, 3)),
)


@dataclass(frozen=True)
class Source:
    """An engine over the rows, the schema for them, and what they must be encoded as, in the original order."""

    engine: Engine
    schema: Schema
    packed: npt.NDArray[np.float32]

    @property
    def feature_map(self) -> FeatureMap | None:
        return self.schema.encoding.feature_map


@dataclass(frozen=True)
class Maker:
    """What makes a source, and what is asked of it."""

    make: Callable[[pytest.FixtureRequest], AbstractContextManager[Source]]
    shared: bool  #: by all tests; else each test has one of its own
    slow: str | None  #: a pattern of its tests that are run with the slow ones
    buckets: tuple[str, ...]  #: of `BUCKETS`, the ways in which prepared rows are spooled
    cannot: Mapping[str, str]  #: patterns of tests that must fail, each with the reason


#: Prepared rows in memory, in a file of few buckets, and in one of many, the last of them short.
BUCKETS = {"memory": 64 << 20, "few buckets": 4 * 4 * (ROWS - 1), "many buckets": 4 * 4 * 100}
MAKERS: dict[str, Maker] = {}


def register(
    name: str,
    *,
    shared: bool = True,
    slow: str | None = None,
    buckets: tuple[str, ...] = ("memory",),
    cannot: Mapping[str, str] | None = None,
) -> Callable[[Callable[[pytest.FixtureRequest], Iterator[Source]]], None]:
    """Have the suite run with what a generator function yields; it may ask for fixtures, and closes what it opens."""

    def decorate(make: Callable[[pytest.FixtureRequest], Iterator[Source]]) -> None:
        assert name not in MAKERS
        MAKERS[name] = Maker(contextmanager(make), shared, slow, buckets, cannot or {})

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
    read = features(SCHEMA, reference()).astype(np.float32)
    project_rows(read, projection.make_matrix(SCHEMA.dims), packed)
    return Source(engine, replace(SCHEMA, projection=projection), packed)


def curved(engine: Engine) -> Source:
    """The same rows with parts of timestamps, and steps: at cells, at the doubles beside them, and at whole numbers."""

    def around(name: str, low: float, high: float) -> list[float]:
        # A dose is a float32, and the doubles beside it are none.
        inside = [cell for cell in columns()[name] if cell is not None and low < cell < high]
        return [place for cell in inside[:2] for place in (math.nextafter(cell, low), cell, math.nextafter(cell, high))]

    schema = replace(
        SCHEMA,
        columns=(
            Numeric("age", 0, 100, curve=tuple(sorted([0.1, *around("age", 1, 99), 99.9]))),
            Numeric("visits", 0, 9, curve=(1, 3, 8.5)),
            Numeric("dose", -1, 1, curve=tuple(sorted([0, *around("dose", -0.9, 0.9)]))),
            *SCHEMA.columns[2:],
            *(TimePart("admitted", part) for part in ("hour", "weekday", "month", "day")),
            *(TimePart("seen", part) for part in ("day", "hour")),
            *(TimePart("born", part) for part in ("month", "weekday")),
            *(TimePart("written", part) for part in ("weekday", "hour")),
        ),
        pairs=(("age", "sex"), ("dose", "age"), ("sex", "written.weekday")),
    )
    return Source(engine, schema, reference(schema))


@cache
def columns() -> dict[str, list[Any]]:
    """Rows with everything that can be wrong with a cell and is no fault of the schema."""
    rng = np.random.default_rng(11)
    age = [None if i % 13 == 0 else float(x) for i, x in enumerate(rng.normal(50, 40, ROWS))]
    visits = [int(x) for x in rng.integers(-2, 12, ROWS)]
    sex = [["F", "M", "unknown", None][i] for i in rng.integers(0, 4, ROWS)]
    scan = [None if i % 17 == 0 else [float(a), float(b)] for i, (a, b) in enumerate(rng.normal(0, 2, (ROWS, 2)))]
    sick = [None if i % 19 == 0 else int(x) for i, x in enumerate(rng.integers(0, 4, ROWS))]
    singles = rng.normal(0, 1, ROWS).astype(np.float32)
    odd = {2: None, 3: math.nan, 6: math.inf, 7: -math.inf}
    dose = [odd.get(i % 23, float(x)) for i, x in enumerate(singles)]
    times = moments(rng)
    written = [TEXTS[i % 40] if i % 40 < len(TEXTS) else str(moment) for i, moment in enumerate(times)]
    return {
        "id": list(range(ROWS)),
        "age": age,
        "visits": visits,
        "sex": sex,
        "scan": scan,
        "sick": sick,
        "dose": dose,
        "admitted": [None if i % 11 == 0 else moment for i, moment in enumerate(times)],
        "seen": [None if i % 7 == 0 else moment.replace(tzinfo=timezone.utc) for i, moment in enumerate(times)],
        "born": [None if i % 5 == 0 else moment.date() for i, moment in enumerate(times)],
        "written": written,
    }


#: What texts may be that should be timestamps, of which the encoder takes few.
TEXTS = (
    None, "", "never", "2024-02-29", "2023-02-29", "1900-02-29 10:00", "2000-02-29T23:59", "2024-02-30", "2024-13-01",
    "0000-01-01", "10000-01-01", "2024-01-01 10", "2024-01-01 24:00", "2024-01-01 10:00:60", "2024-1-1",
    "2024-01-01T10:00:00Z", "2024-01-01 10:00:00+00", "2024-01-01 10:00:00+02:00", " 2024-01-01", "2024-01-01 10:00 ",
    "2024-01-01 10:00:00.123456789", "\u0662\u0660\u0662\u0664-01-01", "infinity", "0044-03-15 BC",
)  # fmt: skip
#: Those of them that are timestamps, and what they are.
READ = {
    "2024-02-29": date(2024, 2, 29),
    "2000-02-29T23:59": datetime(2000, 2, 29, 23),
    "2024-01-01T10:00:00Z": datetime(2024, 1, 1, 10),
    "2024-01-01 10:00:00+00": datetime(2024, 1, 1, 10),
    "2024-01-01 10:00:00.123456789": datetime(2024, 1, 1, 10),
}


def moments(rng: np.random.Generator) -> list[datetime]:
    """Ends of hours, days, years and of the calendar, leap days, before 1970 and far from it, and others."""
    ends = [
        datetime(*numbers)
        for numbers in [(1, 1, 1), (1582, 10, 10), (1900, 3, 1), (1970, 1, 1), (2000, 3, 1), (2024, 3, 1), (2025, 1, 1)]
    ]
    ends += [end - timedelta(microseconds=1) for end in ends[1:]] + [datetime(9999, 12, 31, 23, 59, 59, 999999)]
    near = [datetime(1900, 1, 1) + timedelta(microseconds=int(x)) for x in rng.integers(0, 8 * 10**15, ROWS)]
    return [ends[i % 97] if i % 97 < len(ends) else moment for i, moment in enumerate(near)]


def part_code(part: str, cell: date | str | None) -> int:
    """The code of a part of a cell."""
    if isinstance(cell, str):
        cell = READ.get(cell) if cell in TEXTS else datetime.fromisoformat(cell)
    if cell is None or (part == "hour" and not isinstance(cell, datetime)):
        return -1
    codes = {"weekday": cell.weekday(), "month": cell.month - 1, "day": cell.day - 1}
    return cell.hour if part == "hour" and isinstance(cell, datetime) else codes[part]


@cache
def scaled(x: float | None, low: float, high: float) -> float:
    return math.nan if x is None else (min(max(x, low), high) - (low + high) / 2) / ((high - low) / 2)


def reference(schema: Schema = SCHEMA) -> npt.NDArray[np.float32]:
    """The packed rows, cell by cell."""
    cells = columns()

    def number(column: Numeric, x: float | None) -> float:
        return scaled(None if x is None or math.isnan(x) else x, column.low, column.high)

    numeric = [column for column in schema.columns if isinstance(column, Numeric)]
    parts = [column for column in schema.columns if isinstance(column, TimePart)]
    packed = [
        [
            float(cells["sick"][i]) if cells["sick"][i] in (0, 1, 2) else math.nan,
            *(number(column, cells[column.name][i]) for column in numeric),
            {"F": 0, "M": 1}.get(cells["sex"][i], -1),
            *(part_code(column.part, cells[column.source][i]) for column in parts),
            *(scaled(x, -3.0, 3.0) for x in cells["scan"][i] or (None, None)),
        ]
        for i in range(ROWS)
    ]
    return np.array(packed, np.float32)


def features(schema: Schema, packed: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """What the cells of `reference` are read as, feature by feature, without a standardization."""
    unit = 1.0 / schema.row_norm
    rows = []
    for label, *cells in packed.tolist():
        row, given, sides = [label], iter(cells), {}
        for column in schema.columns:
            if isinstance(column, (Categorical, TimePart)):
                code, count = next(given), len(column.encoding_rule.values)
                sides[column.name] = [float(code == k) for k in range(count)]
                row += [unit * (code == k) for k in range(len(column.encoding_rule.values))]
                continue
            count = column.length if isinstance(column, Vector) else 1
            own = [next(given) for _ in range(count)]
            row += [0.0 if math.isnan(x) else x * unit for x in own]
            if isinstance(column, Numeric):
                places = [float(np.float32(scaled(place, column.low, column.high))) for place in column.curve]
                heights = [unit * (0.25 if own[0] >= place else -0.25) for place in places]
                row += [0.0] * len(column.curve) if math.isnan(own[0]) else heights
                chosen = [places[step] for step in column.encoding_rule.pair_steps] or [0.0]
                sides[column.name] = [0.0 if math.isnan(own[0]) else 1.0 if own[0] >= at else -1.0 for at in chosen]
        for one, other in schema.pairs:  # what is missing has none of the categories, or is 0
            row += [PAIR_WEIGHT * unit * a * b for a in sides[one] for b in sides[other]]
        rows.append([*row, *([unit] if schema.intercept else [])])
    return np.array(rows)


def table() -> pa.Table:
    singles = pa.field("dose", pa.float32())
    rows = pa.table(columns())
    return rows.set_column(rows.schema.get_field_index("dose"), singles, rows["dose"].cast(pa.float32()))


#: Where `table` is inside of `longer_table`.
MIDDLE = (50, 50 + ROWS)


def longer_table() -> pa.Table:
    """The rows with others before and after them."""
    rows = table()
    return pa.concat_tables([rows.slice(200, MIDDLE[0]), rows, rows.slice(0, 30)])


def write_csv(path: Path, rows: dict[str, list[Any]], *, delimiter: str = ",") -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))


def in_order(packed: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32]:
    """The reference order: position p holds the row compute_source_positions(p)."""
    return packed[compute_source_positions(0, len(packed), rows=len(packed), seed=seed)]
