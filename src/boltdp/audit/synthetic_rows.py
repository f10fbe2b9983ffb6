"""Made-up rows of any schema, for neighbouring tables: values at the ends of what is declared, and beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from boltdp.encoding.values import Value
from boltdp.kernel.sgd import source_position
from boltdp.schema.schema import Categorical, Column, Numeric, Schema, TimePart

if TYPE_CHECKING:
    import pyarrow as pa

#: What the values of a row are: at a bound of all columns, at one or the other, outside, not numbers, or not there.
Kind = Literal["high", "low", "either", "outside", "broken", "missing"]
#: Of the order in which rows are read, which is public: all runs of an audit have the same.
ORDER = 1
#: The year that times are of.
YEAR = datetime(2018, 1, 1)
#: How far outside of the bounds, in their widths.
OUTSIDE = 1e6
#: Different rows among those that both tables have.
SHARED = 12


@dataclass(frozen=True)
class Row:
    """A row: what its values are, and its class; None is no declared one."""

    kind: Kind
    label: int | None

    def __str__(self) -> str:
        return f"{self.kind} values, {'no class' if self.label is None else f'class {self.label + 1}'}"


@dataclass(frozen=True)
class Pair:
    """Neighbouring tables: rows of one kind in one table, at the places where the other has those of another."""

    row: Row
    other: Row
    shared: Row | None  #: what all other rows are; None: of many kinds
    places: tuple[int, ...]  #: one, or as many as a person has
    seed: int

    def __str__(self) -> str:
        among = "rows of many kinds" if self.shared is None else f"rows of {self.shared}"
        return f"{self.row} or {self.other}, among {among}"

    def tables(self, schema: Schema, rows: int) -> tuple[pa.Table, pa.Table]:
        """Both of them."""
        import pyarrow as pa

        random = np.random.default_rng(self.seed)
        if self.shared is None:
            classes = len(schema.classes)
            shared = [Row("either", int(random.integers(classes + 1)) % (classes + 1)) for _ in range(SHARED)]
            shared = [Row(row.kind, None) if row.label == classes else row for row in shared]
        else:
            shared = [self.shared]
        kinds = [self.row, self.other, *shared]
        columns = {
            column.source: pa.array([_value(column, row.kind, random) for row in kinds], _type(column))
            for column in schema.columns
        }
        columns[schema.label] = pa.array([None if row.label is None else schema.classes[row.label] for row in kinds])
        distinct = pa.table(columns)
        order = 2 + random.integers(len(shared), size=rows)
        tables = []
        for which in (0, 1):
            order[list(self.places)] = which
            table = distinct.take(pa.array(order))
            if schema.person_id is not None:  # what differs are the rows of one person, and nobody else has several
                ids = np.arange(rows)
                ids[list(self.places)] = -1
                table = table.append_column(schema.person_id, pa.array(ids))
            tables.append(table)
        return tables[0], tables[1]


def pairs(schema: Schema, rows: int, *, seed: int, changed: int = 1) -> Iterator[Pair]:
    """Neighbouring tables without end: first those that pull hardest, then any.

    What differs is at the end of the order in which rows are read, as often as anywhere else.

    >>> from boltdp.schema.schema import Classes
    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    >>> print(next(pairs(schema, 100, seed=1)))
    high values, class 1 or high values, class 2, among rows of missing values, no class
    """
    random = np.random.default_rng(seed)
    last, nothing = len(schema.classes) - 1, Row("missing", None)

    def places(first: int | None = None) -> tuple[int, ...]:
        if first is not None:
            return tuple(source_position(first, changed, rows=rows, seed=ORDER).tolist())
        return tuple(random.choice(rows, changed, replace=False).tolist())

    for shared in (nothing, Row("low", 0), Row("high", 0), None):
        for row, other in (
            (Row("high", 0), Row("high", last)),
            (Row("high", last), Row("low", last)),
            (Row("outside", last), nothing),
            (Row("outside", 0), Row("broken", last)),
        ):
            for first in (rows - changed, None):
                yield Pair(row, other, shared, places(first), int(random.integers(2**32)))
    kinds = get_args(Kind)
    while True:
        labels = [int(label) if label <= last else None for label in random.integers(last + 2, size=3)]
        one, two, three = (Row(kinds[random.integers(len(kinds))], label) for label in labels)
        shared = three if random.random() < 0.5 else None
        yield Pair(one, two, shared, places(), int(random.integers(2**32)))


def _type(column: Column) -> Any:
    import pyarrow as pa

    if isinstance(column, Numeric):
        return pa.float64()
    if isinstance(column, TimePart):
        return pa.timestamp("us")
    return None if isinstance(column, Categorical) else pa.list_(pa.float64(), column.length)


def _value(column: Column, kind: Kind, random: np.random.Generator) -> Value | list[float] | datetime | None:
    if kind == "missing":
        return None
    if isinstance(column, TimePart):
        hours = {"high": 365 * 24 - 1, "low": 0}.get(kind)
        return YEAR + timedelta(hours=int(random.integers(365 * 24)) if hours is None else hours)
    if isinstance(column, Categorical):
        if kind in ("outside", "broken"):
            return None
        place = {"high": -1, "low": 0}.get(kind)
        return column.categories[int(random.integers(len(column.categories))) if place is None else place]
    ends = column.low, column.high
    count = 1 if isinstance(column, Numeric) else column.length
    if kind == "broken":
        values = [float(random.choice([math.nan, math.inf, -math.inf])) for _ in range(count)]
    elif kind == "outside":
        values = [ends[1] + OUTSIDE * (ends[1] - ends[0])] * count
    elif kind == "either":
        values = [float(ends[int(random.integers(2))]) for _ in range(count)]
    else:
        values = [float(ends[kind == "high"])] * count
    return values[0] if isinstance(column, Numeric) else values
