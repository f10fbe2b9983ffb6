"""Summaries of columns: statistics of their cells, from which a schema is inferred, or a declared one is checked.

They are exact here, for non-sensitive data; `boltdp.schema.noisy_summary` has noisy ones for private data.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from boltdp._array_types import Booleans, Doubles, Integers
from boltdp.encoding.arrow_buffers import mask_missing, view_values
from boltdp.encoding.arrow_cells import Coder, concatenate_lists, find_part_codes, to_floats
from boltdp.encoding.declared_values import Matcher, Value, format_value
from boltdp.encoding.plan import Rule, TimePartRule
from boltdp.encoding.python_to_arrow import to_float
from boltdp.encoding.timestamp_parts import HOUR_AT, PATTERN
from boltdp.errors import ParameterError, make_printable
from boltdp.privacy.events.noisy_counts import NoisyCounts
from boltdp.schema.source_columns import ColumnType, Kind, Source

#: A column with more different values than this is not drafted as a categorical one.
MAX_CATEGORIES = 100
#: A column with more different values than this is numeric if at least this share of its cells are numbers.
MIN_DIFFERENT_NUMBERS, MIN_NUMBERS = 20, 0.8
#: The largest number of different values of a column that are counted.
MAX_DISTINCT = 100_000
#: The largest number of non-numeric cells that a draft quotes.
MAX_EXAMPLES = 3
#: The number of intervals between the declared bounds.
BARS = 24
#: The number of intervals by which quantiles are found.
QUANTILE_BARS = 1000

_NUMBER = r"^\s*[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?\s*$"
_TIMESTAMP = re.compile(PATTERN)


class Histogram:
    """Counts of numbers below the first edge, from each edge to the next, and from the last edge on."""

    def __init__(self, edges: Doubles) -> None:
        self.edges = edges
        self.counts: Integers = np.zeros(len(edges) + 1, np.int64)

    @classmethod
    def from_bounds(cls, low: float, high: float) -> Histogram:
        """Make an empty histogram of equal intervals between declared bounds, which are both included."""
        edges = np.linspace(low, high, BARS + 1)
        edges[-1] = np.nextafter(high, math.inf)
        return cls(edges)

    def add_numbers(self, numbers: Doubles) -> None:
        self.counts += np.bincount(np.searchsorted(self.edges, numbers, side="right"), minlength=len(self.counts))


@dataclass(eq=False, kw_only=True)
class Summary:
    """Statistics of the cells of one column; each number of a list is a cell."""

    rule: Rule | None = None  #: of a declared column
    length: int | None = None  #: of lists
    noise: NoisyCounts | None = None  #: what the counts were released with, unless they are exact
    missing: int = 0
    unparsed: int = 0  #: cells that are no numbers, or no lists of the declared length, where such are declared
    numbers: float = 0
    others: float = 0  #: cells that are neither missing nor numbers
    low: float = math.inf  #: the range of the numbers, or what is found of it through noise
    high: float = -math.inf
    inside: float | None = None  #: the share of the numbers that is in the range at least, if there is noise
    whole: bool = True  #: whether all numbers are whole
    typical: tuple[float, float] | None = None  #: about the 0.1- and the 0.9-quantile of a target, if they are public
    values: Counter[Value] = field(default_factory=Counter)  #: how often each of the first MAX_DISTINCT values occurs

    def __post_init__(self) -> None:
        rule = self.rule
        values = () if rule is None else rule.known_values
        self.declared = tuple(map(format_value, values))  #: the declared values as texts
        part = rule.part if isinstance(rule, TimePartRule) else None
        self._find_codes = Coder(values).find_codes if part is None else partial(find_part_codes, part=part)
        #: Of numbers with declared bounds.
        self.histogram = None if rule is None or not rule.number_count else Histogram.from_bounds(*rule.bounds)
        if rule is not None and rule.reads_lists:
            self.length = rule.number_count

    @cached_property
    def is_numeric(self) -> bool:
        """Whether nearly all cells are numbers; known once all cells are counted."""
        if self.noise is not None:
            return self.low <= self.high
        several = len(self.values) > MIN_DIFFERENT_NUMBERS
        return not self.others or (several and self.numbers >= MIN_NUMBERS * (self.numbers + self.others))

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Bounds to declare in a schema: noisy ones, or the rounded range of the numbers; None if there is none."""
        if not (self.is_numeric and self.low <= self.high):
            return None
        if self.noise is not None:
            return self.low, self.high
        low, high = self.low, self.high if self.high > self.low else self.low + 1.0
        if not math.isfinite(high - low):
            return None
        unit = 10.0 ** math.floor(math.log10(high - low) - 1)
        return float(f"{math.floor(low / unit) * unit:.12g}"), float(f"{math.ceil(high / unit) * unit:.12g}")

    def set_typical_range(self, batches: Iterable[pa.Array]) -> None:
        """Set the typical range from all cells, in a second scan; it stays None where most numbers are the same."""
        if self.bounds is None:
            return
        histogram = Histogram(np.linspace(*self.bounds, QUANTILE_BARS + 1))
        for cells in batches:
            histogram.add_numbers(read_numbers(cells))
        counts = np.cumsum(histogram.counts)
        low, high = (
            float(f"{histogram.edges[min(int(np.searchsorted(counts, share * counts[-1])), QUANTILE_BARS)]:.3g}")
            for share in (0.1, 0.9)
        )
        if self.bounds[0] <= low < high <= self.bounds[1]:
            self.typical = low, high

    @property
    def bounds_comment(self) -> str:
        """The comment beside these bounds in a drafted schema."""
        if self.noise is not None and self.inside is None:
            return "a guess: nearly all are 0, and noise hides the others"
        if self.noise is not None and self.inside is not None:
            return f"at least about {math.floor(100 * self.inside)} % of the numbers"
        if not (self.others and self.numbers):
            return ""
        share = math.floor(100 * self.numbers / (self.numbers + self.others))
        texts = (f"`{make_printable(str(text))}`" for text in self.values if not math.isfinite(to_float(text)))
        others = ", ".join(islice(texts, MAX_EXAMPLES))
        return f"{share} % of the cells are numbers; others, such as {others}, count as missing"

    @cached_property
    def categories(self) -> tuple[Value, ...]:
        """Categories of the column to declare in a schema, numbers first; empty if there are too many."""
        kept: list[Value] = []
        for value in () if self.noise is None and len(self.values) > MAX_CATEGORIES else self.values:
            with suppress(ParameterError):
                Matcher.from_values([*kept, value])
                kept.append(value)
            if len(kept) == MAX_CATEGORIES:
                break
        return tuple(sorted(kept, key=lambda value: (isinstance(value, str), value)))

    @cached_property
    def timestamp_kind(self) -> str:
        """What all texts of the column are, "timestamps" or "dates"; empty if some text is neither."""
        texts = [value for value in self.values if isinstance(value, str) and self.noise is None]
        if not texts or not all(map(_TIMESTAMP.fullmatch, texts)):
            return ""
        return "dates" if max(map(len, texts)) < HOUR_AT else "timestamps"

    def add(self, cells: pa.Array) -> None:
        """Count cells of an undeclared column."""
        cells = _decode_dictionary(cells)
        kind = ColumnType.from_arrow(cells.type).kind
        if kind == "list":
            cells = cells.drop_null()
            self.length = len(cells[0]) if len(cells) else self.length
            self._add_numbers(read_numbers(cells.flatten()))
        elif kind == "text":
            plain = pc.match_substring_regex(cells, _NUMBER)
            numbers, texts = cells.filter(plain), count_values(cells.filter(pc.invert(plain)))
            self._add_numeric_cells(numbers, pc.utf8_trim_whitespace(numbers))
            self.others += texts.total()
            self._add_values(texts)
        else:
            self._add_numeric_cells(cells, cells)

    def _add_numeric_cells(self, cells: pa.Array, numbers: pa.Array) -> None:
        """Count cells that are numbers, and their different values as long as they can be categories or ids."""
        self._add_numbers(read_numbers(numbers))
        unique = self.whole and len(self.values) < MAX_DISTINCT and max(self.values.values(), default=1) == 1
        if unique or len(self.values) <= MAX_CATEGORIES:
            self._add_values(count_values(cells))

    def add_declared(self, cells: pa.Array) -> None:
        """Count cells of a declared column as missing, unparsed, within or beyond its bounds, or by category."""
        cells = _decode_dictionary(cells)
        gaps, length = make_missing_mask(cells), 1 if self.length is None else self.length
        if self.declared:
            self._add_category_codes(cells, self._find_codes(cells), gaps)
        elif pa.types.is_null(cells.type):
            self.missing += len(cells) * length
        elif self.length is None:
            self._add_declared_numbers(to_floats(cells).astype(np.float64))
        else:
            fits = ~gaps & (view_values(pc.list_value_length(cells)) == length)
            self.missing += int(gaps.sum()) * length
            self.unparsed += int((~gaps & ~fits).sum()) * length
            vectors = concatenate_lists(cells, length).reshape(-1, length)[fits]
            self._add_declared_numbers(vectors.reshape(-1).astype(np.float64))

    def add_unparsed(self, texts: pa.Array) -> None:
        """Count texts as unparsed that `add_declared` counted as missing, since they did not parse."""
        texts = texts.filter(pa.array(~(make_missing_mask(texts) | _mask_blank_texts(texts))))
        count = len(texts) * (1 if self.length is None else self.length)
        self.missing -= count
        self.unparsed += count
        self._add_values(_count_texts(texts))

    def _add_declared_numbers(self, numbers: Doubles) -> None:
        """Count numbers of a declared column; NaN is missing."""
        present = numbers[~np.isnan(numbers)]
        self.missing += len(numbers) - len(present)
        self._add_numbers(present)

    def _add_numbers(self, numbers: Doubles) -> None:
        self.numbers += len(numbers)
        if self.histogram is not None:
            self.histogram.add_numbers(numbers)
        if len(numbers):
            self.low, self.high = min(self.low, float(numbers.min())), max(self.high, float(numbers.max()))
            exact = max(-self.low, self.high) < 2.0**53  # larger ones have no digits after the point
            self.whole = self.whole and exact and bool((numbers == np.floor(numbers)).all())

    def _add_category_codes(self, cells: pa.Array, codes: npt.NDArray[np.int32], gaps: Booleans) -> None:
        """Count cells by the codes of their categories, -1 for undeclared values; `gaps` marks missing cells."""
        if pa.types.is_floating(cells.type):
            gaps = gaps | np.isnan(to_floats(cells))
        elif pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            gaps = gaps | ((codes < 0) & _mask_blank_texts(cells))
        self.missing += int(gaps.sum())
        met = np.bincount(codes[codes >= 0], minlength=len(self.declared)).tolist()
        self.values.update(dict(zip(self.declared, met, strict=True)))
        undeclared = (codes < 0) & ~gaps
        if undeclared.any():
            self.others += int(undeclared.sum())
            self._add_values(_count_texts(cells.filter(pa.array(undeclared))))

    def _add_values(self, counts: Mapping[Value, int]) -> None:
        room = MAX_DISTINCT + len(self.declared) - len(self.values)
        if len(counts) > room:
            new = [value for value in counts if value not in self.values][:room]
            counts = {value: counts[value] for value in (*(counts.keys() & self.values.keys()), *new)}
        self.values.update(counts)


def scan_rows(
    source: Source,
    names: Sequence[str],
    *,
    parse: Mapping[str, Kind] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of some columns; `progress` is called with the number of rows read so far, which is public."""
    done = 0
    for batch in source.batches(names, parse=parse) if names else ():
        yield batch
        done += batch.num_rows
        if progress is not None:
            progress(done)


def count_values(cells: pa.Array) -> Counter[Value]:
    """Count the values that a schema can declare: texts that are not blank, finite numbers, booleans."""
    cells = _decode_dictionary(cells)
    if ColumnType.from_arrow(cells.type).kind == "text":
        cells = cells.cast(pa.large_binary())  # some texts of Arrow cannot be decoded, and are none to declare
    found, counts = pc.value_counts(cells).flatten()
    counter: Counter[Value] = Counter()
    for cell, count in zip(found.to_pylist(), counts.to_pylist(), strict=True):
        value = _convert_cell_to_value(cell)
        if value is not None:
            counter[value] += count
    return counter


def split_numbers(counts: Mapping[Value, int]) -> tuple[Doubles, Counter[Value]]:
    """Return the numbers among counted texts, each as often as it occurs, and the counts of the other texts."""
    numbers = {text: written for text in counts if math.isfinite(written := to_float(text))}
    texts = Counter({text: count for text, count in counts.items() if text not in numbers})
    repeats = [counts[text] for text in numbers]
    return np.repeat(np.array([*numbers.values()], np.float64), np.array(repeats, np.int64)), texts


def read_numbers(cells: pa.Array) -> Doubles:
    """Return the finite numbers of a numeric column."""
    if pa.types.is_null(cells.type):
        return np.zeros(0)
    numbers: Doubles = to_floats(cells).astype(np.float64)
    return numbers[np.isfinite(numbers)]


def read_largest_numbers(cells: pa.Array) -> Doubles:
    """Return the finite number with the largest absolute value of each list that has one."""
    if pa.types.is_null(cells.type):
        return np.zeros(0)
    cells = cells.drop_null()
    numbers: Doubles = to_floats(cells.flatten()).astype(np.float64)
    rows = np.repeat(np.arange(len(cells)), view_values(pc.list_value_length(cells)))
    order = np.lexsort((np.abs(numbers), rows))[::-1]
    order = order[np.isfinite(numbers[order])]
    largest: Doubles = numbers[order[np.unique(rows[order], return_index=True)[1]]]
    return largest


def _convert_cell_to_value(value: Any) -> Value | None:
    """Convert a cell to a value that a schema can declare; None if it is missing, blank or not finite."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, str):
        return value if value.strip() else None
    if value is None or isinstance(value, bool):
        return value
    size = value if type(value) is float else to_float(value)
    if not abs(size) < 2**63:
        return None
    return int(value) if size == int(size) else size


def _count_texts(cells: pa.Array) -> dict[Value, int]:
    found, counts = pc.value_counts(cells.cast(pa.string())).flatten()
    return dict(zip(found.to_pylist(), counts.to_pylist(), strict=True))


def _decode_dictionary(cells: pa.Array) -> pa.Array:
    return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells


def make_missing_mask(cells: pa.Array) -> Booleans:
    """Return the mask of missing cells."""
    gaps = mask_missing(cells)
    return np.zeros(len(cells), bool) if gaps is None else gaps


def _mask_blank_texts(cells: pa.Array) -> Booleans:
    found: Booleans = view_values(pc.equal(pc.utf8_trim_whitespace(cells.cast(pa.string())), ""))
    return found
