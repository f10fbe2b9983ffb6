"""Convert Arrow cells to the values that the packer reads: numbers, lists of numbers, codes of declared values.

Each rule of the encoding plan has its reader. A cell's result depends on that cell alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp._array_types import Booleans, Floats
from boltdp.encoding.arrow_buffers import locate_values, mask_missing, view_values
from boltdp.encoding.compiled_plan import PlanPacker
from boltdp.encoding.declared_values import Value
from boltdp.encoding.plan import EncodingPlan, NumberListRule, NumberRule, RuleVisitor, TimePartRule, ValueRule
from boltdp.encoding.timestamp_parts import HOUR_AT, LAST_DAY, PATTERN, Codes, TimestampPart, compute_part_codes
from boltdp.kernel.columns_to_cells import Values

#: The value of DuckDB's infinite timestamp in Arrow.
_INFINITE = 2**63 - 1
#: The length of a day in each unit of Arrow's timestamps.
_DAYS = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


@dataclass(frozen=True)
class Cells:
    """The Arrow cells of a source column in one batch; several rules may read them."""

    array: pa.Array

    @cached_property
    def parsed_timestamps(self) -> _Timestamps:
        """The cells parsed as timestamps, once for all rules that encode a part of them."""
        return _Timestamps.from_cells(self.array)


Reader: TypeAlias = Callable[[Cells], Values]


class Readers(RuleVisitor[Reader]):
    """Makes, for each encoding rule, the function that reads its Arrow cells for the packer; threads may share it."""

    def visit_number(self, rule: NumberRule) -> Reader:
        def read(cells: Cells) -> Values:
            found = locate_values(cells.array)
            return Values.from_array(to_floats(cells.array)) if found is None or found.type == "text" else found

        return read

    def visit_number_list(self, rule: NumberListRule) -> Reader:
        return lambda cells: Values.from_array(concatenate_lists(cells.array, rule.length))

    def visit_value(self, rule: ValueRule) -> Reader:
        coder = Coder(rule.known_values)
        return lambda cells: coder.prepare_cells(cells.array)

    def visit_time_part(self, rule: TimePartRule) -> Reader:
        return lambda cells: Values.from_array(cells.parsed_timestamps.find_codes(rule.part))


class _Timestamps(NamedTuple):
    """The days of cells since 1970-01-01, their hours, -1 for dates, and the mask of missing cells."""

    days: npt.NDArray[np.int64]
    hours: npt.NDArray[np.int64]
    gaps: Booleans | None

    @classmethod
    def from_cells(cls, cells: pa.Array) -> _Timestamps:
        """Parse Arrow timestamps (in UTC if they have a zone), dates or texts."""
        kind = cells.type
        if pa.types.is_dictionary(kind):
            return cls.from_cells(cells.dictionary_decode())
        if pa.types.is_timestamp(kind):
            found, day = view_values(cells.view(pa.int64())), _DAYS[kind.unit]
            days = found // day
            hours = (found - days * day) // (day // 24)
            return cls(np.where(np.abs(found) == _INFINITE, LAST_DAY + 1, days), hours, mask_missing(cells))
        none = np.full(len(cells), -1)
        if pa.types.is_date(kind):
            found = view_values(cells.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())).astype(np.int64)
            return cls(found if pa.types.is_date32(kind) else found // _DAYS["ms"], none, mask_missing(cells))
        if pa.types.is_null(kind):
            return cls(none, none, np.ones(len(cells), bool))
        import pyarrow.compute as pc  # imported here, as most columns are read without it

        texts = cells.cast(pa.string())
        fits = pc.match_substring_regex(texts, f"^({PATTERN})$")
        known = view_values(fits)
        gaps = mask_missing(fits)
        known = known if gaps is None else known & ~gaps
        texts, days, hours = texts.filter(fits), np.zeros(len(cells), np.int64), none
        days[known] = view_values(pc.utf8_slice_codeunits(texts, 0, 10).cast(pa.date32()).view(pa.int32()))
        digits = pc.utf8_slice_codeunits(texts, HOUR_AT - 1, HOUR_AT + 1)
        hours[known] = view_values(pc.replace_substring_regex(digits, "^$", "-1").cast(pa.int8()))
        return cls(days, hours, ~known)

    def find_codes(self, part: TimestampPart) -> Codes:
        """Return the category code of a part of each timestamp, such as the hour; -1 if it is missing."""
        codes = compute_part_codes(part, self.days, self.hours)
        if self.gaps is not None:
            codes[self.gaps] = -1
        return codes


def to_floats(cells: pa.Array) -> Floats:
    """Convert an Arrow array to floats, with NaN for missing cells."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if not (pa.types.is_float32(cells.type) or pa.types.is_float64(cells.type)):
        cells = cells.cast(pa.float64(), safe=False)
    floats: Floats = view_values(cells)
    gaps = mask_missing(cells)
    return floats if gaps is None else np.where(gaps, floats.dtype.type(np.nan), floats)


def concatenate_lists(cells: pa.Array, length: int) -> Floats:
    """Concatenate Arrow lists of `length` numbers, with NaN for missing lists and those of another length."""
    count = len(cells)
    if pa.types.is_null(cells.type):
        return np.full(count * length, np.nan)
    gaps = mask_missing(cells)
    if pa.types.is_fixed_size_list(cells.type):
        first = cells.offset * length
        numbers = to_floats(cells.values.slice(first, count * length))
        if gaps is not None:
            numbers = numbers.reshape(count, length).copy()
            numbers[gaps] = np.nan
        return numbers.reshape(-1)
    offsets = view_values(cells.offsets)
    fits = np.diff(offsets) == length
    if gaps is not None:
        fits &= ~gaps
    numbers = to_floats(cells.values.slice(offsets[0], offsets[-1] - offsets[0]))
    if fits.all():
        return numbers
    starts = offsets[:-1][fits] - offsets[0]
    out = np.full((count, length), np.nan, numbers.dtype)
    out[fits] = numbers[starts[:, None] + np.arange(length)]
    return out.reshape(-1)


class Coder:
    """Finds the code of each cell: its position among the declared values, or -1."""

    def __init__(self, declared: Sequence[Value]) -> None:
        rule, nothing = ValueRule("", "", tuple(declared)), np.zeros(0)
        self._packer = PlanPacker(EncodingPlan(rule, (), nothing, nothing, None, None))
        self._last: tuple[Any, pa.Array, Codes] | None = None

    def prepare_cells(self, cells: pa.Array) -> Values:
        """Convert Arrow cells to numbers, booleans, texts or indices, which the packer matches with declared values."""
        kind = cells.type
        if pa.types.is_dictionary(kind):
            found = locate_values(cells.indices)
            assert found is not None  # indices are whole numbers
            return found.with_codes(self._find_dictionary_codes(cells.dictionary))
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
            return locate_values(cells) or Values.from_array(to_floats(cells))
        found = locate_values(cells) or locate_values(cells.cast(pa.string()))
        assert found is not None
        return found

    def find_codes(self, cells: pa.Array) -> Codes:
        """Return the index of the declared value that each cell matches, -1 if it matches none."""
        packed = np.empty((len(cells), 1), np.float32)
        self._packer.pack([self.prepare_cells(cells)], packed)
        return np.nan_to_num(packed[:, 0], nan=-1.0).astype(np.int32)

    def _find_dictionary_codes(self, dictionary: pa.Array) -> Codes:
        """Return the codes of the values of an Arrow dictionary; those of the last one are cached."""
        key = [buffer and (buffer.address, buffer.size) for buffer in dictionary.buffers()], dictionary.offset
        last = self._last  # read once: another thread may replace it
        if last is not None and last[0] == key and len(last[2]) == len(dictionary):
            return last[2]
        codes = self.find_codes(dictionary)
        self._last = key, dictionary, codes
        return codes


def find_part_codes(cells: pa.Array, part: TimestampPart) -> Codes:
    """Return the code of a part of each timestamp, as `Coder` does of declared values."""
    return _Timestamps.from_cells(cells).find_codes(part)
