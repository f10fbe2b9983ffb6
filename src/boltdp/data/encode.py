"""From columns to packed rows: the class index, then the features, as float32.

Numeric columns are clipped to their bounds and scaled to [-1, 1], the steps of their curves are 0 or 1, categories are
one-hot, the intercept is a 1; all of it is standardized if the schema has public numbers for that, divided by the
schema's `row_norm`, and then projected if the schema says so. Nothing is learned from the values. What is missing or
undeclared is neutral: a number becomes 0, the middle of its bounds or its centre, and its steps become 0, a category
none of them, a label NaN, which the kernel counts as a row without a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from boltdp import kernel
from boltdp.arraytypes import Booleans, Doubles, Floats, PackedRows
from boltdp.data.buffers import dtype_of, missing, text_array, values
from boltdp.data.schema import Categorical, Numeric, Projection, Schema, Vector, indicator_values
from boltdp.data.values import Matcher, OnBadRow
from boltdp.errors import DataError, ParameterError


def projection_matrix(projection: Projection, dims: int) -> Doubles:
    """The Gaussian matrix that takes `dims` features to the projected ones: entries N(0, 1/projected dims).

    It is NumPy's PCG64 with the public seed, drawn row by row and rounded to float32, so that the last bit of a
    C library's logarithm cannot make it differ between machines.

    >>> projection_matrix(Projection(dims=2, seed=17), 3).shape
    (3, 2)
    """
    drawn = np.random.Generator(np.random.PCG64(projection.seed)).standard_normal((dims, projection.dims))
    rounded: PackedRows = (drawn / np.sqrt(projection.dims)).astype(np.float32)
    return rounded.astype(np.float64)


class Encoder:
    """Encodes batches of the columns a schema declares.

    With `on_bad_row="error"`, for data that is not private, a missing or undeclared value is an error instead.

    >>> from boltdp.data.schema import Numeric, Schema
    >>> schema = Schema("y", ("no", "yes"), (Numeric("age", 0, 100),), intercept=False)
    >>> batch = pa.RecordBatch.from_pydict({"age": [75, None, 200], "y": ["yes", "no", "?"]})
    >>> Encoder(schema).encode(batch)
    array([[1. , 0.5],
           [0. , 0. ],
           [nan, 1. ]], dtype=float32)
    """

    def __init__(self, schema: Schema, *, on_bad_row: OnBadRow = "neutral") -> None:
        if on_bad_row not in get_args(OnBadRow):
            raise ParameterError(f"on_bad_row must be one of {', '.join(get_args(OnBadRow))}, got {on_bad_row!r}")
        self.schema = schema
        self._strict = on_bad_row == "error"
        self._classes = Matcher.of(schema.classes)
        self._categories = {
            column.name: Matcher.of(column.categories) for column in schema.columns if isinstance(column, Categorical)
        }
        self._transforms = list(schema.transforms())
        self._matrix = None
        if schema.projection is not None:
            self._matrix = projection_matrix(schema.projection, schema.encoded_dims)

    def encode(self, batch: pa.RecordBatch) -> PackedRows:
        """Packed rows of a batch; without the label column (for prediction) every class index is NaN."""
        schema, count = self.schema, batch.num_rows
        rows = np.empty((count, 1 + schema.encoded_dims), np.float32)
        self._encode_label(batch, rows)
        at = 1
        for column, middles, factors in self._transforms:
            cells = batch.column(column.name)
            if isinstance(column, Categorical):
                codes = _codes(cells, self._categories[column.name])
                self._refuse(codes < 0, column.name, "an undeclared category")
                absent, present = indicator_values(middles, factors)
                kernel.pack_categories(codes, rows, at, absent=absent, present=present)
            else:
                if isinstance(column, Vector):
                    numbers = _vectors(cells, column.length).reshape(count, column.length)
                else:
                    numbers = _numbers(cells)
                self._refuse(np.isnan(numbers) if self._strict else None, column.name, "one that is no number")
                of = slice(len(middles) - column.indicators)
                kernel.pack_numeric(
                    numbers, rows, at, low=column.low, high=column.high, middle=middles[of], factor=factors[of]
                )
                if isinstance(column, Numeric) and column.curve:
                    absent, present = indicator_values(middles[1:], factors[1:])
                    kernel.pack_steps(numbers, rows, at + 1, places=column.curve, absent=absent, present=present)
            at += len(middles)
        if schema.intercept:
            rows[:, at] = schema.constant
        if self._matrix is None:
            return rows
        projected = np.empty((count, 1 + self._matrix.shape[1]), np.float32)
        kernel.project(rows, self._matrix, projected)
        return projected

    def _encode_label(self, batch: pa.RecordBatch, rows: PackedRows) -> None:
        if self.schema.label not in batch.schema.names:
            rows[:, 0] = np.nan
            return
        codes = _codes(batch.column(self.schema.label), self._classes)
        self._refuse(codes < 0, self.schema.label, "an undeclared class")
        rows[:, 0] = np.where(codes < 0, np.float32(np.nan), codes.astype(np.float32))

    def _refuse(self, bad: Booleans | None, name: str, what: str) -> None:
        if self._strict and bad is not None and bad.any():
            raise DataError(f"column {name!r} must be complete, got a missing value or {what}")


def _numbers(cells: pa.Array) -> Floats:
    """Cells as floats, a missing one as NaN."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if not (pa.types.is_float32(cells.type) or pa.types.is_float64(cells.type)):
        cells = pc.cast(cells, pa.float64(), safe=False)
    floats: Floats = values(cells)
    gaps = missing(cells)
    return floats if gaps is None else np.where(gaps, floats.dtype.type(np.nan), floats)


def _vectors(cells: pa.Array, length: int) -> Floats:
    """Lists of numbers end to end, a missing one, or one of another length, as NaN."""
    count = len(cells)
    if pa.types.is_null(cells.type):
        return np.full(count * length, np.nan)
    gaps = missing(cells)
    if pa.types.is_fixed_size_list(cells.type):
        first = cells.offset * length
        numbers = _numbers(cells.values.slice(first, count * length))
        if gaps is not None:
            numbers = numbers.reshape(count, length).copy()
            numbers[gaps] = np.nan
        return numbers.reshape(-1)
    offsets = values(cells.offsets)
    fits = np.diff(offsets) == length
    if gaps is not None:
        fits &= ~gaps
    numbers = _numbers(cells.values.slice(offsets[0], offsets[-1] - offsets[0]))
    if fits.all():
        return numbers
    starts = offsets[:-1][fits] - offsets[0]
    out = np.full((count, length), np.nan, numbers.dtype)
    out[fits] = numbers[starts[:, None] + np.arange(length)]
    return out.reshape(-1)


def _codes(cells: pa.Array, matcher: Matcher) -> npt.NDArray[np.int32]:
    """Position of the declared value each cell matches, -1 where it matches none."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    kind = cells.type
    if pa.types.is_boolean(kind):
        codes = _code_at([matcher.truth(False), matcher.truth(True)], values(cells).view(np.uint8))
    elif pa.types.is_integer(kind):
        limits = np.iinfo(dtype_of(kind))
        exact = {n: code for n, code in matcher.numbers.items() if n == int(n) and limits.min <= n <= limits.max}
        codes = _search(values(cells), [int(n) for n in exact], list(exact.values()))
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        codes = _search(_numbers(cells), list(matcher.numbers), list(matcher.numbers.values()))
    elif pa.types.is_null(kind):
        return np.full(len(cells), -1, np.int32)
    else:
        cells = pc.index_in(cells.cast(pa.string()), value_set=text_array(list(matcher.texts)))
        # What stands where one is missing need not be a position.
        codes = _code_at([*matcher.texts.values(), -1], np.minimum(values(cells).view(np.uint32), len(matcher.texts)))
    gaps = missing(cells)
    if gaps is not None:
        codes[gaps] = -1
    return codes


def _code_at(codes: Sequence[int], places: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    coded: npt.NDArray[np.int32] = np.array(codes, np.int32)[places]
    return coded


def _search(cells: npt.NDArray[Any], numbers: Sequence[int | float], codes: Sequence[int]) -> npt.NDArray[np.int32]:
    """Code of the number each cell equals, -1 where it equals none."""
    # In the cells' own type, so that the float32 nearest to 0.1 is met by the declared 0.1.
    with np.errstate(over="ignore"):
        sought = np.array(numbers).astype(cells.dtype)
    # One that is too large for the type becomes an infinity there, which must not meet an infinite cell.
    order = np.argsort(sought, kind="stable")
    order = order[np.isfinite(sought[order])]
    if not len(order):
        return np.full(len(cells), -1, np.int32)
    sought = sought[order]
    place = np.minimum(np.searchsorted(sought, cells), len(sought) - 1)
    return np.where(sought[place] == cells, np.array(codes, np.int32)[order][place], np.int32(-1))
