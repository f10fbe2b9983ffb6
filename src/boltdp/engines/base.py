"""The protocol of an engine, and what every engine has in common.

An engine never logs a value, never decides a sensitivity and never draws noise. The order of its rows depends on
their positions and a seed, never on their values:

    the prepared row at position p is the original row  source_position(p; rows=m, seed)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from boltdp import kernel
from boltdp.arraytypes import Doubles, Integers, PackedRows
from boltdp.data.encode import Encoder, OnBadRow
from boltdp.data.schema import Categorical, Numeric, Schema
from boltdp.data.source import ColumnType, Kind
from boltdp.errors import DataError, ParameterError
from boltdp.kernel import State
from boltdp.kernel.objective import Sums
from boltdp.privacy.losses import Loss

#: Called with the number of rows done so far.
Progress: TypeAlias = Callable[[int], None]


class Prepared(Protocol):
    """Encoded rows in permuted order, ready for sequential passes. Closing it removes them."""

    rows: int
    dims: int

    def run_pass(self, states: Sequence[State], *, progress: Progress | None = None) -> None:
        """Feed every row once, in order, to every state."""
        ...

    def run_drawn(
        self,
        states: Sequence[State],
        positions: Iterable[Integers],
        *,
        progress: Progress | None = None,
    ) -> None:
        """Feed the rows at these positions, in this order, to every state: for batches that are drawn at random.

        The position -1 stands for a marker: a row of features 0 with the label -1. Progress counts markers too. How the
        positions are cut into arrays changes nothing. They are as secret as the rows, since the guarantee of
        a sampled algorithm rests on them: no message, statement or file that stays has any.
        """
        ...

    def derivative(
        self,
        loss: Loss,
        weights: Doubles,
        *,
        direction: Doubles | None = None,
        hessian: bool = False,
        positive: int = 1,
        classes: int = 2,
        progress: Progress | None = None,
    ) -> Doubles:
        """Sum the loss's gradient at `weights` over all rows, its Hessian times `direction`, or the Hessian itself.

        `objective.Sums` says what these are.
        """
        ...

    def reshuffle(self, seed: int) -> None:
        """Permute the current order again: position p takes the row now at source_position(p; seed)."""
        ...

    def portion(self, start: int, stop: int) -> Prepared:
        """The rows at positions start to stop - 1, as a view: it shares the rows and needs no closing."""
        ...

    def blocks(self) -> Iterator[PackedRows]:
        """The packed rows in order, a block at a time."""
        ...

    def close(self) -> None:
        """Remove the rows."""
        ...

    def __enter__(self) -> Prepared: ...

    def __exit__(self, *_: object) -> None: ...


class Engine(Protocol):
    """Where the rows are."""

    def count(self) -> int:
        """Number of rows, m."""
        ...

    def columns(self) -> dict[str, ColumnType]:
        """Names and types of the columns; nothing about their values."""
        ...

    def batches(self, columns: Sequence[str], *, parse: Mapping[str, Kind] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows in a stable order, at most BATCH_ROWS at a time.

        Untyped columns come as text, but those that `parse` declares "number" or "list" come as that, and a
        cell that does not parse as missing.
        """
        ...

    def moments(
        self, schema: Schema, *, radius: float, on_bad_row: OnBadRow = "neutral", progress: Progress | None = None
    ) -> Integers:
        """Exact sums of the encoded features, rows shortened to `radius`, and of their squares: `kernel.moments`.

        Before any division, standardization or projection, and without the intercept. They are as private as the rows.
        """
        ...

    def prepare(
        self,
        schema: Schema,
        *,
        seed: int,
        on_bad_row: OnBadRow = "neutral",
        progress: Progress | None = None,
    ) -> Prepared:
        """Encode, project and permute the rows, once, for any number of passes."""
        ...

    def close(self) -> None:
        """Let go of what the engine holds open."""
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


def joined_positions(positions: Iterable[Integers], *, start: int, stop: int, size: int) -> Iterator[Integers]:
    """Positions drawn of the rows start to stop - 1 and counted from there, made positions of the whole; -1 stays.

    They are checked, and come `size` at a time, in a buffer that is used again, however they were cut.

    >>> drawn = [np.array([2, -1]), np.array([0, 0, -1])]
    >>> [part.tolist() for part in joined_positions(drawn, start=10, stop=13, size=4)]
    [[12, -1, 10, 10], [-1]]
    """
    buffer = np.empty(size, np.int64)
    used = 0
    for given in positions:
        if given.dtype != np.int64 or given.ndim != 1:
            raise ParameterError(f"positions must be 1-D arrays of int64, got {given.ndim}-D {given.dtype}")
        if len(given) and not (given.min() >= -1 and given.max() < stop - start):
            raise ParameterError(f"positions must be from -1 to {stop - start - 1}, got one outside")
        while len(given):
            taken = min(len(given), size - used)
            part = given[:taken]
            buffer[used : used + taken] = part if start == 0 else np.where(part < 0, -1, part + start)
            used, given = used + taken, given[taken:]
            if used == size:
                yield buffer
                used = 0
    if used:
        yield buffer[:used]


def check_columns(schema: Schema, columns: Mapping[str, ColumnType], *, label: bool = True) -> None:
    """Refuse data whose columns are not those the schema declares, before any row is read.

    >>> check_columns(Schema("y", (0, 1), (Numeric("age", 0, 1),)), {"y": ColumnType("number")})
    Traceback (most recent call last):
    boltdp.errors.DataError: the data must have the column 'age', which the schema declares
    """
    allowed: dict[type, tuple[tuple[Kind, ...], str]] = {
        Numeric: (("number", "bool", "untyped"), "numbers"),
        Categorical: (("number", "bool", "text", "untyped"), "texts, numbers or booleans"),
    }
    for column in schema.columns:
        kinds, wanted = allowed.get(type(column), (("list", "untyped"), "lists of numbers"))
        _check_column(columns, column.name, kinds, wanted)
        length = columns[column.name].length
        declared = getattr(column, "length", None)
        if length is not None and length != declared:
            raise DataError(
                f"column {column.name!r} must have lists of the declared length {declared}, its type says {length}"
            )
    if label:
        kinds, wanted = allowed[Categorical]
        _check_column(columns, schema.label, kinds, wanted)


def _check_column(columns: Mapping[str, ColumnType], name: str, kinds: Sequence[Kind], wanted: str) -> None:
    if name not in columns:
        raise DataError(f"the data must have the column {name!r}, which the schema declares")
    if columns[name].kind not in kinds:
        raise DataError(f"column {name!r} must have {wanted}, its type is {columns[name].kind!r}")


def encoded(
    engine: Engine, schema: Schema, *, label: bool = True, on_bad_row: OnBadRow = "neutral"
) -> Iterator[PackedRows]:
    """Packed rows in the original order; without the label, for prediction, it need not be in the data."""
    check_columns(schema, engine.columns(), label=label)
    encoder = Encoder(schema, on_bad_row=on_bad_row)
    names = [column.name for column in schema.columns]
    parse: dict[str, Kind] = {
        column.name: "number" if isinstance(column, Numeric) else "list"
        for column in schema.columns
        if not isinstance(column, Categorical)
    }
    return map(encoder.encode, engine.batches([*names, schema.label] if label else names, parse=parse))


def plain(schema: Schema) -> Schema:
    """The schema of the features as `Engine.moments` takes them.

    >>> plain(Schema("y", (0, 1), (Numeric("age", 0, 1),))).feature_names
    ('age',)
    """
    return replace(schema, radius=1.0, intercept=False, projection=None, standardization=None)


def streamed_moments(
    engine: Engine, schema: Schema, *, radius: float, on_bad_row: OnBadRow, progress: Progress | None
) -> Integers:
    """`Engine.moments` over encoded blocks of rows."""
    declared = plain(schema)
    sums = np.zeros((2, declared.encoded_dims), np.int64)
    done = 0
    for block in encoded(engine, declared, label=False, on_bad_row=on_bad_row):
        kernel.moments(block, sums, radius=radius)
        done += len(block)
        if progress is not None:
            progress(done)
    return sums


def sum_blocks(sums: Sums, blocks: Iterator[PackedRows], *, progress: Progress | None = None) -> Doubles:
    """The value of `sums` after all blocks."""
    done = 0
    for block in blocks:
        sums.add(block)
        done += len(block)
        if progress is not None:
            progress(done)
    return sums.value
