"""From columns to packed rows of cells, and how cells are read as features.

A packed row is the class index, then the cells, as float32: numbers are clipped to their bounds and scaled to [-1, 1],
followed by how many places of their curve they have reached; a category is its index. All of it is public units, so
that rows are encoded once: what is found later, such as centres and scales, is part of the `reading`, as are the
steps, the one-hot categories, the intercept and the division by the schema's `row_norm`. Only a schema with a
projection has its rows read and projected here.

Nothing is learned from the values. What is missing or undeclared is neutral: a number becomes NaN, its steps and a
category -1, which readings make 0 or no category; a label NaN, which the kernel counts as a row without a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from boltdp._arrays import Booleans, Doubles, Floats, PackedRows
from boltdp.encoding.arrow_buffers import dtype_of, missing, text_array, values, where
from boltdp.encoding.plan import cells_of, unprojected_reading
from boltdp.encoding.timestamps import HOUR_AT, LAST_DAY, PATTERN, Part, PartCodes, part_codes
from boltdp.encoding.values import Matcher, OnBadRow, Value
from boltdp.errors import DataError, ParameterError
from boltdp.kernel import sgd
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.packing import Codes, Numbers, Packer, Steps, Values
from boltdp.schema.schema import Categorical, Column, Projection, Schema, TimePart, Vector

Table: TypeAlias = npt.NDArray[np.int32]

#: Declared whole numbers that lie within so many of each other are looked up.
MOST_TABLE = 1 << 16
#: What an infinite timestamp of DuckDB is in Arrow, which in nanoseconds would be one of the year 2262.
_INFINITE = 2**63 - 1
#: A day in each of Arrow's units.
_DAYS = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


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


def _parts(column: Column) -> list[Numbers | Steps | Codes]:
    """What a column's cells are made of."""
    if isinstance(column, Categorical):
        return [Codes()]
    if isinstance(column, Vector):
        return [Numbers(column.low, column.high, column.length)]
    numbers = Numbers(column.low, column.high)
    return [numbers, Steps(column.curve)] if column.curve else [numbers]


class Encoder:
    """Encodes batches of the columns a schema declares; several threads may share one.

    With `on_bad_row="error"`, for data that is not private, a missing or undeclared value is an error instead.

    >>> from boltdp.schema.schema import Numeric, Classes, Schema
    >>> schema = Schema(Classes("y", ("no", "yes")), (Numeric("age", 0, 100),), intercept=False)
    >>> batch = pa.RecordBatch.from_pydict({"age": [75, None, 200], "y": ["yes", "no", "?"]})
    >>> Encoder(schema).encode(batch)
    array([[1. , 0.5],
           [0. , nan],
           [nan, 1. ]], dtype=float32)
    """

    def __init__(self, schema: Schema, *, on_bad_row: OnBadRow = "neutral") -> None:
        if on_bad_row not in get_args(OnBadRow):
            raise ParameterError(f"on_bad_row must be one of {', '.join(get_args(OnBadRow))}, got {on_bad_row!r}")
        self.schema = schema
        self.width = 1 + cells_of(schema)  #: numbers of a packed row
        self._strict = on_bad_row == "error"
        self._classes = Coder(schema.classes)
        self._coders = {
            column.name: Coder(column.categories) for column in schema.columns if type(column) is Categorical
        }
        parts = [_parts(column) for column in schema.columns]
        self._counts = [len(some) for some in parts]
        self._packer = Packer([Codes(missing=np.nan), *(part for some in parts for part in some)])
        self._projection: tuple[FeatureMap, Doubles] | None = None
        if schema.projection is not None:
            self._projection = unprojected_reading(schema), projection_matrix(schema.projection, schema.encoded_dims)

    def encode(self, batch: pa.RecordBatch, out: PackedRows | None = None) -> PackedRows:
        """Packed rows of a batch, in `out` if it is given; without the label (for prediction) every label is NaN."""
        count = batch.num_rows
        out = np.empty((count, self.width), np.float32) if out is None else out
        if self._projection is None:
            self._pack(batch, out)
            return out
        cells = np.empty((count, self._packer.width), np.float32)
        self._pack(batch, cells)
        read, matrix = self._projection
        sgd.project(read.features(cells).astype(np.float32), matrix, out)
        return out

    def _pack(self, batch: pa.RecordBatch, out: PackedRows) -> None:
        schema, count = self.schema, batch.num_rows
        if not count:
            return
        if schema.label in batch.schema.names:
            given = [self._classes.values(batch.column(schema.label))]
        else:
            given = [Values.of(np.full(count, -1, np.int32))]
        moments: dict[str, _Moments] = {}
        for column, repeats in zip(schema.columns, self._counts, strict=True):
            cells = batch.column(column.source)
            if isinstance(column, TimePart):
                if column.source not in moments:
                    moments[column.source] = _Moments.of(cells)
                found = Values.of(moments[column.source].codes(column.part))
            elif isinstance(column, Categorical):
                found = self._coders[column.name].values(cells)
            elif isinstance(column, Vector):
                found = Values.of(vectors_of(cells, column.length))
            else:
                found = _plain_numbers(cells)
            given += [found] * repeats
        self._packer.pack(given, out)
        if self._strict:
            self._refuse(batch, out)

    def _refuse(self, batch: pa.RecordBatch, out: PackedRows) -> None:
        """Refuse rows with a missing cell."""
        schema, at = self.schema, 1
        if schema.label in batch.schema.names and np.isnan(out[:, 0]).any():
            raise _incomplete(schema.label, "an undeclared class")
        for column, repeats in zip(schema.columns, self._counts, strict=True):
            category = isinstance(column, Categorical)
            width = column.length if isinstance(column, Vector) else 1
            if (out[:, at] < 0).any() if category else np.isnan(out[:, at : at + width]).any():
                other = "an undeclared category" if category else "one that is no number"
                other = f"one without {_articled(column.part)}" if isinstance(column, TimePart) else other
                raise _incomplete(column.source, other)
            at += width + repeats - 1


def _incomplete(name: str, what: str) -> DataError:
    return DataError(f"column {name!r} must be complete, got a missing value or {what}")


def _articled(part: Part) -> str:
    return f"an {part}" if part == "hour" else f"a {part}"


class _Moments(NamedTuple):
    """The days of cells since 1970-01-01, and the hours of these, -1 where there is none; and which are missing."""

    days: npt.NDArray[np.int64]
    hours: npt.NDArray[np.int64]
    gaps: Booleans | None

    @classmethod
    def of(cls, cells: pa.Array) -> _Moments:
        """From timestamps, which Arrow has in UTC if they have a zone, dates or texts."""
        kind = cells.type
        if pa.types.is_dictionary(kind):
            return cls.of(cells.dictionary_decode())
        if pa.types.is_timestamp(kind):
            found, day = values(cells.view(pa.int64())), _DAYS[kind.unit]
            days = found // day
            hours = (found - days * day) // (day // 24)
            return cls(np.where(np.abs(found) == _INFINITE, LAST_DAY + 1, days), hours, missing(cells))
        none = np.full(len(cells), -1)
        if pa.types.is_date(kind):
            found = values(cells.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())).astype(np.int64)
            return cls(found if pa.types.is_date32(kind) else found // _DAYS["ms"], none, missing(cells))
        if pa.types.is_null(kind):
            return cls(none, none, np.ones(len(cells), bool))
        texts = cells.cast(pa.string())
        fits = pc.match_substring_regex(texts, f"^({PATTERN})$")
        known = values(fits)
        gaps = missing(fits)
        known = known if gaps is None else known & ~gaps
        texts, days, hours = texts.filter(fits), np.zeros(len(cells), np.int64), none
        days[known] = values(pc.utf8_slice_codeunits(texts, 0, 10).cast(pa.date32()).view(pa.int32()))
        digits = pc.utf8_slice_codeunits(texts, HOUR_AT - 1, HOUR_AT + 1)
        hours[known] = values(pc.replace_substring_regex(digits, "^$", "-1").cast(pa.int8()))
        return cls(days, hours, ~known)

    def codes(self, part: Part) -> PartCodes:
        """The code of a part of each cell, -1 where it is missing."""
        codes = part_codes(part, self.days, self.hours)
        if self.gaps is not None:
            codes[self.gaps] = -1
        return codes


def _plain_numbers(cells: pa.Array) -> Values:
    """A column of numbers or booleans where it is, or, of other types, as doubles."""
    found = where(cells)
    return Values.of(numbers_of(cells)) if found is None else found


def numbers_of(cells: pa.Array) -> Floats:
    """Cells as floats, a missing one as NaN.

    >>> numbers_of(pa.array([1, None, 3]))
    array([ 1., nan,  3.])
    """
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if not (pa.types.is_float32(cells.type) or pa.types.is_float64(cells.type)):
        cells = pc.cast(cells, pa.float64(), safe=False)
    floats: Floats = values(cells)
    gaps = missing(cells)
    return floats if gaps is None else np.where(gaps, floats.dtype.type(np.nan), floats)


def vectors_of(cells: pa.Array, length: int) -> Floats:
    """Lists of numbers end to end, a missing one, or one of another length, as NaN.

    >>> vectors_of(pa.array([[1.0, 2.0], [3.0]]), 2)
    array([ 1.,  2., nan, nan])
    """
    count = len(cells)
    if pa.types.is_null(cells.type):
        return np.full(count * length, np.nan)
    gaps = missing(cells)
    if pa.types.is_fixed_size_list(cells.type):
        first = cells.offset * length
        numbers = numbers_of(cells.values.slice(first, count * length))
        if gaps is not None:
            numbers = numbers.reshape(count, length).copy()
            numbers[gaps] = np.nan
        return numbers.reshape(-1)
    offsets = values(cells.offsets)
    fits = np.diff(offsets) == length
    if gaps is not None:
        fits &= ~gaps
    numbers = numbers_of(cells.values.slice(offsets[0], offsets[-1] - offsets[0]))
    if fits.all():
        return numbers
    starts = offsets[:-1][fits] - offsets[0]
    out = np.full((count, length), np.nan, numbers.dtype)
    out[fits] = numbers[starts[:, None] + np.arange(length)]
    return out.reshape(-1)


class Coder:
    """Finds the code of each cell: its position among the declared values, or -1.

    >>> Coder(("no", "yes")).codes(pa.array(["yes", "Yes", None]))
    array([ 1, -1, -1], dtype=int32)
    """

    def __init__(self, declared: Sequence[Value]) -> None:
        self._matcher = Matcher.of(declared)
        self._texts = text_array(list(self._matcher.texts))
        self._of_text = np.array([*self._matcher.texts.values()], np.int32)
        self._tables: dict[str, tuple[int, Table] | None] = {}
        self._last: tuple[Any, pa.Array, Table] | None = None

    def values(self, cells: pa.Array) -> Values:
        """What the packer makes codes of."""
        kind = cells.type
        if pa.types.is_dictionary(kind):
            found = where(cells.indices)
            assert found is not None  # indices are whole numbers
            return found._replace(table=self._of_dictionary(cells.dictionary))
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
            found, table = where(cells), self._of_whole_numbers(kind)
            if found is not None and table is not None:
                return found._replace(base=table[0], table=table[1])
        elif not (pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
            found = where(pc.index_in(cells.cast(pa.string()), value_set=self._texts))
            assert found is not None
            return found._replace(table=self._of_text)
        return Values.of(self.codes(cells))

    def codes(self, cells: pa.Array) -> Table:
        """The code of each cell, an array of them."""
        kind = cells.type
        if pa.types.is_boolean(kind):
            codes = np.array([self._matcher.match_boolean(False), self._matcher.match_boolean(True)], np.int32)[
                values(cells).view(np.uint8)
            ]
        elif pa.types.is_integer(kind):
            exact = self._exact(kind)
            codes = _search(values(cells), [*exact], [*exact.values()])
        elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            codes = _search(numbers_of(cells), [*self._matcher.numbers], [*self._matcher.numbers.values()])
        elif pa.types.is_null(kind):
            return np.full(len(cells), -1, np.int32)
        else:
            cells = pc.index_in(cells.cast(pa.string()), value_set=self._texts)
            # What stands where one is missing need not be a position.
            places = np.minimum(values(cells).view(np.uint32), len(self._of_text))
            codes = np.append(self._of_text, np.int32(-1))[places]
        gaps = missing(cells)
        if gaps is not None:
            codes[gaps] = -1
        return codes

    def _exact(self, kind: pa.DataType) -> dict[int, int]:
        """The declared whole numbers that an integer type has."""
        limits = np.iinfo(dtype_of(kind))
        numbers = self._matcher.numbers.items()
        return {int(n): code for n, code in numbers if n == int(n) and limits.min <= n <= limits.max}

    def _of_whole_numbers(self, kind: pa.DataType) -> tuple[int, Table] | None:
        """The least whole number that has a code, and the codes from there on; None if they are too far apart."""
        name = str(kind)
        if name not in self._tables:
            exact = {0: self._matcher.match_boolean(False), 1: self._matcher.match_boolean(True)}
            if not pa.types.is_boolean(kind):
                exact = self._exact(kind) or {0: -1}
            base, span = min(exact), max(exact) - min(exact) + 1
            table = np.full(min(span, MOST_TABLE), -1, np.int32)
            if span <= MOST_TABLE:
                for number, code in exact.items():
                    table[number - base] = code
            self._tables[name] = (base, table) if span <= MOST_TABLE else None
        return self._tables[name]

    def _of_dictionary(self, dictionary: pa.Array) -> Table:
        """The codes of a dictionary's values, which batch after batch may share."""
        same = [buffer and (buffer.address, buffer.size) for buffer in dictionary.buffers()], dictionary.offset
        last = self._last  # taken once: another thread may have one of its own
        if last is not None and last[0] == same and len(last[2]) == len(dictionary):
            return last[2]
        codes = self.codes(dictionary)
        self._last = same, dictionary, codes
        return codes


@dataclass(frozen=True)
class PartCoder:
    """Finds the code of a part of each cell, as `Coder` does of declared values.

    >>> PartCoder("weekday").codes(pa.array(["2024-05-07", "x"])).tolist()
    [1, -1]
    """

    part: Part

    def codes(self, cells: pa.Array) -> PartCodes:
        """The code of each cell, -1 where the part is missing."""
        return _Moments.of(cells).codes(self.part)


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
