"""Synthetic rows of any schema, for neighbouring tables: values at the declared bounds, and beyond them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from boltdp.encoding.plan import BoundedRule, NumberListRule, NumberRule, RuleVisitor, TimePartRule, ValueRule
from boltdp.kernel.row_permutation import compute_source_positions
from boltdp.schema.columns import COLUMN_KINDS, Column
from boltdp.schema.schema import Categorical, Schema, Vector

if TYPE_CHECKING:
    import pyarrow as pa

#: The values of a row: at the upper or lower bounds, at either at random, out of bounds, not finite, or missing.
ValueKind = Literal["high", "low", "either", "outside", "broken", "missing"]
#: Seed of the order in which rows are read, which is public: all runs of an audit have the same.
ORDER = 1
#: Start of the year of all synthetic times.
YEAR = datetime(2018, 1, 1)
#: Distance of values out of bounds, in widths of the bounds.
OUTSIDE = 1e6
#: Number of distinct rows among those that both tables share.
SHARED_ROWS = 12
#: Number of batches in which an engine reads a table: what it remembers of one must hold for the next.
BATCHES = 7


@dataclass(frozen=True)
class RowKind:
    """The kind of the values of a row, and its class; None is no declared class."""

    kind: ValueKind
    label: int | None

    def __str__(self) -> str:
        return f"{self.kind} values, {'no class' if self.label is None else f'class {self.label + 1}'}"


@dataclass(frozen=True)
class TablePair:
    """Neighbouring tables: at the same positions, one has `row` and the other has `other`."""

    row: RowKind
    other: RowKind
    shared: RowKind | None  #: all other rows; None: of many kinds
    positions: tuple[int, ...]  #: positions of the rows that differ: one, or all rows of a person
    seed: int

    def __str__(self) -> str:
        among = "rows of many kinds" if self.shared is None else f"rows of {self.shared}"
        return f"{self.row} or {self.other}, among {among}"

    def make_tables(self, schema: Schema, rows: int) -> tuple[pa.Table, pa.Table]:
        import pyarrow as pa  # imported late: an audit without a replay does not need it

        random = np.random.default_rng(self.seed)
        if self.shared is None:
            classes = len(schema.target.example_labels)
            labels = [int(random.integers(classes + 1)) for _ in range(SHARED_ROWS)]
            shared = [RowKind("either", label if label < classes else None) for label in labels]
        else:
            shared = [self.shared]
        kinds = [self.row, self.other, *shared]
        maker = _SyntheticColumnMaker([row.kind for row in kinds], random)
        columns = {rule.source: pa.array(*rule.accept(maker)) for rule in schema.encoding.encoded_rules[1:]}
        columns[schema.label] = pa.array(
            [None if row.label is None else schema.target.example_labels[row.label] for row in kinds]
        )
        distinct = pa.table(columns)
        order = 2 + random.integers(len(shared), size=rows)
        tables = []
        for which in (0, 1):
            order[list(self.positions)] = which
            table = distinct.take(pa.array(order))
            if schema.person_id is not None:  # the rows that differ belong to one person, nobody else has several
                ids = np.arange(rows)
                ids[list(self.positions)] = -1
                table = table.append_column(schema.person_id, pa.array(ids))
            size = -(-rows // BATCHES)
            tables.append(
                pa.concat_tables([table.slice(start, size).combine_chunks() for start in range(0, rows, size)])
            )
        return tables[0], tables[1]


def generate_pairs(schema: Schema, rows: int, *, seed: int, changed: int = 1) -> Iterator[TablePair]:
    """Generate pairs of neighbouring tables without end: first those with the largest gradients, then random ones.

    The rows that differ are the last that are read in half of the first pairs, and at random positions in the others.
    """
    random = np.random.default_rng(seed)
    last, nothing = len(schema.target.example_labels) - 1, RowKind("missing", None)

    def choose_positions(first: int | None = None) -> tuple[int, ...]:
        if first is not None:
            return tuple(compute_source_positions(first, changed, rows=rows, seed=ORDER).tolist())
        return tuple(random.choice(rows, changed, replace=False).tolist())

    for shared in (nothing, RowKind("low", 0), RowKind("high", 0), None):
        for row, other in (
            (RowKind("high", 0), RowKind("high", last)),
            (RowKind("high", last), RowKind("low", last)),
            (RowKind("outside", last), nothing),
            (RowKind("outside", 0), RowKind("broken", last)),
        ):
            for first in (rows - changed, None):
                yield TablePair(row, other, shared, choose_positions(first), int(random.integers(2**32)))
    kinds = get_args(ValueKind)
    while True:
        labels = [int(label) if label <= last else None for label in random.integers(last + 2, size=3)]
        one, two, three = (RowKind(kinds[random.integers(len(kinds))], label) for label in labels)
        shared = three if random.random() < 0.5 else None
        yield TablePair(one, two, shared, choose_positions(), int(random.integers(2**32)))


def reduce_schema(schema: Schema, features: int) -> Schema:
    """Return the schema with columns of every kind and at most `features` features; unchanged if it has no more.

    Lists of numbers and categories are shortened. Pairs are kept as far as their columns are and they fit.
    """
    left = features - schema.intercept
    if schema.encoded_dims <= features:
        return schema
    kinds = [[place for place, column in enumerate(schema.columns) if type(column) is kind] for kind in COLUMN_KINDS]
    in_turn = [place for turn in zip_longest(*kinds) for place in turn if place is not None]
    kept: dict[int, Column] = {}
    for number, place in enumerate(in_turn):
        # Each kind that is still to come has its share of the features that are left.
        share = left // max(1, sum(map(bool, kinds)) - number)
        column = _shorten_column(schema.columns[place], share)
        if column.encoding_rule.feature_count <= left:
            kept[place], left = column, left - column.encoding_rule.feature_count
    kept = kept or {0: schema.columns[0]}
    standardization = schema.standardization
    if standardization is not None:
        left_of = {place: column.encoding_rule.feature_count for place, column in kept.items()}
        whole = enumerate(column.encoding_rule.feature_count for column in schema.columns)
        mask = np.concatenate([np.arange(count) < left_of.get(place, 0) for place, count in whole])
        centers, scales = (np.array(one)[mask] for one in (standardization.centers, standardization.scales))
        standardization = replace(standardization, centers=tuple(centers.tolist()), scales=tuple(scales.tolist()))
    columns, projection = tuple(kept[place] for place in sorted(kept)), schema.projection
    dims = sum(column.encoding_rule.feature_count for column in columns) + schema.intercept
    if projection is not None:
        projection = replace(projection, dims=min(projection.dims, dims))
    reduced = replace(schema, columns=columns, standardization=standardization, projection=projection, pairs=())
    names = {column.name for column in columns}
    for pair in schema.pairs:
        if names.issuperset(pair):
            larger = replace(reduced, pairs=(*reduced.pairs, pair))
            reduced = larger if larger.encoded_dims <= features else reduced
    return reduced


def _shorten_column(column: Column, features: int) -> Column:
    """Return a column with at most this number of features, but at least one: fewer numbers or categories."""
    if isinstance(column, Vector):
        return replace(column, length=min(column.length, max(features, 1)))
    if isinstance(column, Categorical):
        if column.reference is None:
            return replace(column, categories=column.categories[: max(features, 1)])
        return replace(column, categories=(*column.encoding_rule.values[: max(features, 1)], column.reference))
    return column


class _SyntheticColumnMaker(RuleVisitor[tuple[list[Any], Any]]):
    """Makes the synthetic cells of a column and their Arrow type; None: the type of the cells themselves."""

    def __init__(self, kinds: list[ValueKind], random: np.random.Generator) -> None:
        self._kinds, self._random = kinds, random

    def visit_number(self, rule: NumberRule) -> tuple[list[Any], Any]:
        return self._make_cells(lambda kind: self._make_numbers(kind, rule)[0]), "float64"

    def visit_number_list(self, rule: NumberListRule) -> tuple[list[Any], Any]:
        import pyarrow as pa

        return self._make_cells(lambda kind: self._make_numbers(kind, rule)), pa.list_(pa.float64(), rule.length)

    def visit_value(self, rule: ValueRule) -> tuple[list[Any], Any]:
        def make_cell(kind: ValueKind) -> Any:
            if kind in ("outside", "broken"):
                return None
            return rule.known_values[self._choose(kind, len(rule.known_values))]

        return self._make_cells(make_cell), None

    def visit_time_part(self, rule: TimePartRule) -> tuple[list[Any], Any]:
        return self._make_cells(lambda kind: YEAR + timedelta(hours=self._choose(kind, 365 * 24))), "timestamp[us]"

    def _make_cells(self, make: Callable[[ValueKind], Any]) -> list[Any]:
        return [None if kind == "missing" else make(kind) for kind in self._kinds]

    def _choose(self, kind: ValueKind, count: int) -> int:
        """Return an index below `count`: the last for "high", the first for "low", a random one for other kinds."""
        place = {"high": count - 1, "low": 0}.get(kind)
        return int(self._random.integers(count)) if place is None else place

    def _make_numbers(self, kind: ValueKind, rule: BoundedRule) -> list[float]:
        ends, count = rule.bounds, rule.number_count
        if kind == "broken":
            return [float(self._random.choice([math.nan, math.inf, -math.inf])) for _ in range(count)]
        if kind == "outside":
            return [ends[1] + OUTSIDE * (ends[1] - ends[0])] * count
        if kind == "either":
            return [float(ends[int(self._random.integers(2))]) for _ in range(count)]
        return [float(ends[kind == "high"])] * count
