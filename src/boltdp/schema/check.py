"""What a schema makes of rows that may be looked at: what would be missing, clipped or undeclared in a training.

Nothing here is private: counts, values and pictures are those of the rows.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from boltdp._arrays import Booleans, Doubles
from boltdp.encoding.arrow_buffers import missing, values
from boltdp.encoding.arrow_cells import Coder, PartCoder, numbers_of, vectors_of
from boltdp.encoding.values import Value, format_value
from boltdp.errors import printable
from boltdp.schema.schema import Categorical, Column, Numeric, Schema, TimePart, Vector
from boltdp.schema.source_columns import ColumnType, Kind, Source

Role = Literal["label", "numeric", "categorical", "timestamp", "vector"]

NOT_PRIVATE = "NOT PRIVATE: all of this was computed from the rows without noise; it is for rows that may be looked at"
RULE = (
    "training would learn garbage if fewer than two declared classes occur, if a column cannot be read or is empty, or "
    "if more than half of a column's cells (of all labels, and of the features that are not missing) do not parse, are "
    "clipped or are not declared"
)
#: More than this part of a column that is not as declared is too much.
MOST_WRONG = 0.5
#: Bars of a picture between the bounds.
BARS = 24
#: Values of a column that are told, at most, and that are told apart while counting.
SHOWN, MOST_DISTINCT = 10, 100_000
#: How alike two texts are, from 0 to 1, if one is taken for a misspelling of the other.
ALIKE = 0.8

#: A number with a decimal comma.
_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")
_ROLES: dict[type[Column], Role] = {Numeric: "numeric", Categorical: "categorical", Vector: "vector"}
_WANTED: dict[Role, tuple[tuple[Kind, ...], str]] = {
    "label": (("number", "bool", "text", "untyped"), "texts, numbers or booleans"),
    "numeric": (("number", "bool", "untyped"), "numbers"),
    "categorical": (("number", "bool", "text", "untyped"), "texts, numbers or booleans"),
    "timestamp": (("timestamp", "date", "text", "untyped"), "timestamps, dates or texts"),
    "vector": (("list", "untyped"), "lists of numbers"),
}
_PARSED: dict[Role, Kind] = {"numeric": "number", "vector": "list", "timestamp": "timestamp"}


@dataclass(frozen=True)
class Odd:
    """A value that is not as declared, how often it occurs, and the declared one that it may be meant for.

    >>> Odd("Yes", 3, "yes").describe()
    "'Yes' (3, looks like 'yes')"
    """

    value: str
    count: int
    looks_like: str | None = None

    def describe(self) -> str:
        """In words."""
        meant = "" if self.looks_like is None else f", looks like {_quoted(self.looks_like)}"
        return f"{_quoted(self.value)} ({self.count:,}{meant})"


@dataclass(frozen=True, kw_only=True)
class CheckedColumn:
    """What became of the cells of one column; of a vector each number of a list is a cell."""

    name: str
    role: Role
    cells: int
    missing: int = 0
    unparsed: int = 0  #: cells that are no numbers, or no lists of the declared length
    unparsed_values: tuple[Odd, ...] = ()
    low: float | None = None  #: the declared bounds
    high: float | None = None
    below: int = 0  #: cells that are moved up to the low bound
    above: int = 0
    smallest: float | None = None
    largest: float | None = None
    bars: tuple[int, ...] = ()  #: how many numbers are in each of as many equal parts between the bounds
    counts: tuple[tuple[str, int], ...] = ()  #: of each declared value
    undeclared: int = 0
    uncheck_values: tuple[Odd, ...] = ()  #: the most frequent ones
    constant: bool = False
    fault: str | None = None  #: why it could not be looked at

    @property
    def wrong(self) -> int:
        """Cells that are there but not as declared."""
        return self.unparsed + self.below + self.above + self.undeclared

    @property
    def never(self) -> tuple[str, ...]:
        """Declared values that no cell has."""
        return tuple(name for name, count in self.counts if not count)

    @property
    def problem(self) -> str | None:
        """Why training would learn garbage from it; None if it would not."""
        if self.fault is not None:
            return self.fault
        there = self.cells - self.missing
        if not there:
            return "all cells are missing"
        if self.role == "label":
            if len(self.counts) - len(self.never) < 2:
                met = [name for name, count in self.counts if count]
                return f"no row has a class other than {_quoted(met[0])}" if met else "no row has a declared class"
            there = self.cells
        wrong = self.wrong + (self.missing if self.role == "label" else 0)
        return f"{_share(wrong, there)} of the cells are not as declared" if wrong > MOST_WRONG * there else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is worth knowing of it, in words."""
        there, said = max(self.cells - self.missing, 1), []
        if self.unparsed:
            what = "no lists of the declared length" if self.role == "vector" else "no numbers"
            said.append(
                f"{_share(self.unparsed, there)} are {what}, and count as missing: {_listed(self.unparsed_values)}"
            )
        if 2 * sum(odd.count for odd in self.unparsed_values if _COMMA.fullmatch(odd.value)) > there:
            mended = f"SELECT * REPLACE (replace({self.name}, ',', '.') AS {self.name}) FROM source"
            said.append(f'most have a decimal comma; --query "{mended}" makes a point of it')
        for side, count, bound, end in (
            ("below", self.below, self.low, self.smallest),
            ("above", self.above, self.high, self.largest),
        ):
            if count:
                said.append(f"{_share(count, there)} are {side} {bound:g} and moved to it, as far as {end:g}")
        if self.undeclared:
            what = "teach nothing" if self.role == "label" else "count as no category"
            said.append(
                f"{_share(self.undeclared, there)} are not declared, and {what}: {_listed(self.uncheck_values)}"
            )
        if self.missing:
            said.append(f"{_share(self.missing, self.cells)} are missing")
        if self.never:
            kind = "classes" if self.role == "label" else "categories"
            listed = ", ".join(_quoted(name) for name in self.never[:SHOWN])
            more = len(self.never) - SHOWN
            said.append(f"declared {kind} that never occur: {listed}{f' and {more:,} more' if more > 0 else ''}")
        if self.constant:
            said.append("all cells are the same, so that it tells nothing")
        return tuple(said)


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """What a schema makes of rows; `ok` says whether training could learn from rows like these."""

    rows: int
    columns: tuple[CheckedColumn, ...]  #: the label first
    unused: tuple[tuple[str, str], ...] = field(default=())  #: columns of the data that the schema has not, and why

    @property
    def problems(self) -> tuple[str, ...]:
        """Why training would learn garbage; empty if it would not."""
        if not self.rows:
            return ("there are no rows",)
        return tuple(
            f"{column.role} {_quoted(column.name)}: {column.problem}" for column in self.columns if column.problem
        )

    @property
    def ok(self) -> bool:
        """Whether training could learn from rows like these."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        columns = [asdict(column) | {"never": column.never, "problem": column.problem} for column in self.columns]
        return {
            "private": False,
            "ok": self.ok,
            "problems": self.problems,
            "rows": self.rows,
            "columns": columns,
            "unused": [{"name": name, "why": why} for name, why in self.unused],
        }

    def __repr__(self) -> str:
        """Everything that is remarkable, in words."""
        lines = [f"{NOT_PRIVATE}.", f"{self.rows:,} rows: {'ok' if self.ok else 'training would learn garbage'}"]
        for column in self.columns:
            said = column.remarks if column.problem is None else (f"GARBAGE: {column.problem}", *column.remarks)
            lines += [f"{column.role} {_quoted(column.name)}: {'; '.join(said) or 'as declared'}"]
        lines += [f"not used {_quoted(name)}: {why}" for name, why in self.unused]
        return "\n".join(lines)


def check_source(source: Source, schema: Schema, *, progress: Callable[[int], object] | None = None) -> Report:
    """Look at all rows of a source as a schema would have them encoded; `progress` is told how many were looked at.

    >>> from boltdp.schema.schema import Classes
    >>> from boltdp.engines import open_source
    >>> rows = pa.table({"age": [30, 40, 3000], "sick": ["yes", "no", "Yes"]})
    >>> print(check_source(open_source(rows), Schema(Classes("sick", ("no", "yes")), (Numeric("age", 0, 100),))))
    NOT PRIVATE: all of this was computed from the rows without noise; it is for rows that may be looked at.
    3 rows: ok
    label 'sick': 33.3 % are not declared, and teach nothing: 'Yes' (1, looks like 'yes')
    numeric 'age': 33.3 % are above 100 and moved to it, as far as 3000
    """
    columns = source.columns()
    looks = [_Look(schema.label, "label", schema.classes)]
    looks += [_Look.of(column) for column in schema.columns]
    for look in looks:
        look.fault = _fault(columns, look)
    readable = {look.name: look for look in looks if look.fault is None}
    parse = {look.source: _PARSED[look.role] for look in readable.values() if look.role in _PARSED}
    # Timestamps come as the texts that they are.
    untyped = [
        name
        for name, kind in parse.items()
        if kind != "timestamp" and (columns[name].kind == "untyped" or columns[name].parsed)
    ]
    sources = [*dict.fromkeys(look.source for look in readable.values())]
    rows, gaps = 0, {name: [np.zeros(0, bool)] for name in untyped}
    for batch in source.batches(sources, parse=parse) if readable else ():
        for name, look in readable.items():
            cells = batch.column(look.source)
            look.look(cells)
            if name in gaps:
                gaps[name].append(_missing(cells))
        rows += batch.num_rows
        if progress is not None:
            progress(rows)
    lost = {name: np.concatenate(some) for name, some in gaps.items()}
    lost = {name: mask for name, mask in lost.items() if mask.any()}
    # What a cell that does not parse says is known only where it is read as text: a second time, in the same order.
    at = 0
    for batch in source.batches([*lost]) if lost else ():
        for name, mask in lost.items():
            readable[name].unparsable(batch.column(name).filter(pa.array(mask[at : at + batch.num_rows])))
        at += batch.num_rows
    used = {look.source for look in looks}
    unused = tuple((name, _why(column)) for name, column in columns.items() if name not in used)
    return Report(rows=rows, columns=tuple(look.checked(rows) for look in looks), unused=unused)


class _Look:
    """The cells of one column, counted batch by batch."""

    def __init__(
        self,
        name: str,
        role: Role,
        declared: Sequence[Value] = (),
        *,
        low: float = 0.0,
        high: float = 0.0,
        length: int = 1,
        part: TimePart | None = None,
    ) -> None:
        self.name, self.role, self.fault = name, role, None
        self.part, self.source = part, name if part is None else part.source
        self._declared, self._low, self._high, self._length = declared, low, high, length
        self._coder = PartCoder(part.part) if part is not None else Coder(declared) if declared else None
        self._counts = np.zeros(len(declared), np.int64)
        self._bars = np.zeros(BARS, np.int64)
        self._missing = self._below = self._above = self._unparsed = self._undeclared = 0
        self._smallest, self._largest = math.inf, -math.inf
        self._odd: Counter[str] = Counter()

    fault: str | None

    @classmethod
    def of(cls, column: Column) -> _Look:
        if isinstance(column, TimePart):
            return cls(column.name, "timestamp", column.categories, part=column)
        if isinstance(column, Categorical):
            return cls(column.name, "categorical", column.categories)
        length = column.length if isinstance(column, Vector) else 1
        low, high = column.rule.bounds
        return cls(column.name, _ROLES[type(column)], low=low, high=high, length=length)

    def look(self, cells: pa.Array) -> None:
        """Take the cells of one batch into account."""
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary_decode()
        if self._coder is not None:
            self._look_for_declared(cells, self._coder)
        elif self.role == "vector":
            there = ~_missing(cells)
            fits = there.copy()
            if not pa.types.is_null(cells.type):
                lengths = pc.list_value_length(cells)
                fits &= values(lengths) == self._length
            self._unparsed += int((there & ~fits).sum()) * self._length
            self._missing += int((~there).sum()) * self._length
            self._look_at(vectors_of(cells, self._length).reshape(-1, self._length)[fits].reshape(-1))
        elif pa.types.is_null(cells.type):
            self._missing += len(cells)
        else:
            self._look_at(numbers_of(cells))

    def _look_at(self, found: npt.NDArray[Any]) -> None:
        numbers: Doubles = found[~np.isnan(found)].astype(np.float64)
        self._missing += len(found) - len(numbers)
        below, above = numbers < self._low, numbers > self._high
        self._below += int(below.sum())
        self._above += int(above.sum())
        if len(numbers):
            self._smallest = min(self._smallest, float(numbers.min()))
            self._largest = max(self._largest, float(numbers.max()))
            self._bars += np.histogram(numbers[~below & ~above], BARS, (self._low, self._high))[0]

    def _look_for_declared(self, cells: pa.Array, coder: Coder | PartCoder) -> None:
        codes, gaps = coder.codes(cells), _missing(cells)
        if pa.types.is_floating(cells.type):
            gaps = gaps | np.isnan(numbers_of(cells))
        elif pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            gaps = gaps | ((codes < 0) & _blank(cells))
        self._missing += int(gaps.sum())
        self._counts += np.bincount(codes[codes >= 0], minlength=len(self._counts))
        odd = (codes < 0) & ~gaps
        if odd.any():
            self._undeclared += int(odd.sum())
            self._count(cells.filter(pa.array(odd)))

    def unparsable(self, cells: pa.Array) -> None:
        """Take texts into account that are missing once they are parsed."""
        blank = _missing(cells) | _blank(cells)
        count = int((~blank).sum())
        if count:
            self._missing -= count * self._length
            self._unparsed += count * self._length
            self._count(cells.filter(pa.array(~blank)))

    def _count(self, cells: pa.Array) -> None:
        for one in pc.value_counts(cells.cast(pa.string())).to_pylist():
            # So many different values are told by their number alone.
            if one["values"] in self._odd or len(self._odd) < MOST_DISTINCT:
                self._odd[one["values"]] += one["counts"]

    def checked(self, rows: int) -> CheckedColumn:
        """What was found."""
        numeric = self._coder is None
        ends = (self._smallest, self._largest) if numeric and self._smallest <= self._largest else (None, None)
        names = [format_value(value) for value in self._declared]
        odd = tuple(
            Odd(value, count, None if numeric else looks_like(value, names))
            for value, count in sorted(self._odd.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
        )
        different = int((self._counts > 0).sum()) + len(self._odd) if not numeric else int(ends[0] != ends[1]) + 1
        cells = rows * self._length
        return CheckedColumn(
            name=self.name,
            role=self.role,
            cells=cells,
            missing=self._missing,
            unparsed=self._unparsed,
            unparsed_values=odd if numeric else (),
            low=self._low if numeric else None,
            high=self._high if numeric else None,
            below=self._below,
            above=self._above,
            smallest=ends[0],
            largest=ends[1],
            bars=tuple(self._bars.tolist()) if numeric else (),
            counts=tuple(zip(names, self._counts.tolist(), strict=True)),
            undeclared=self._undeclared,
            uncheck_values=() if numeric else odd,
            constant=self.fault is None and self.role != "label" and different < 2 and self._missing < cells,
            fault=self.fault,
        )


def looks_like(value: str, declared: Sequence[str]) -> str | None:
    """The declared value that another spelling may be meant for: other case, blanks or signs, or a letter or two.

    >>> [looks_like(value, ["yes", "no", "unknown"]) for value in (" Yes", "NO", "unknwon", "maybe")]
    ['yes', 'no', 'unknown', None]
    """
    plain = {_plain(name): name for name in reversed(declared)}
    found = plain.get(_plain(value))
    if found is None:
        close = difflib.get_close_matches(_plain(value), [*plain], 1, ALIKE) if len(_plain(value)) > 2 else []
        found = plain[close[0]] if close else None
    return found


def _plain(text: str) -> str:
    """A text without what often differs between two spellings of it."""
    letters = "".join(one for one in text.casefold() if one.isalnum())
    try:
        return f"{float(text):g}"
    except ValueError:
        return letters or text.strip()


def _fault(columns: Mapping[str, ColumnType], look: _Look) -> str | None:
    """Why a declared column cannot be read at all; None if it can."""
    kinds, wanted = _WANTED[look.role]
    if look.source not in columns:
        meant = looks_like(look.source, [*columns])
        return "the data has no such column" + ("" if meant is None else f"; {_quoted(meant)} looks like it")
    kind = columns[look.source].kind
    if kind not in kinds and not ("number" in kinds and columns[look.source].parsed):
        return f"it must have {wanted}, its type is {kind!r}"
    if look.part is not None and look.part.part == "hour" and kind == "date":
        return "it must have timestamps for an hour to be declared, its type is 'date'"
    return None


def _why(column: ColumnType) -> str:
    """Why a column is not in a schema."""
    if column.kind in ("timestamp", "date"):
        return f"a {column.kind}, whose parts a schema can declare"
    if column.kind == "other":
        return "its type cannot be a feature"
    return "a key, which tells rows apart" if column.key else "the schema does not declare it"


def _missing(cells: pa.Array) -> Booleans:
    gaps = missing(cells)
    return np.zeros(len(cells), bool) if gaps is None else gaps


def _blank(cells: pa.Array) -> Booleans:
    """Which texts are nothing but blanks."""
    found: Booleans = values(pc.equal(pc.utf8_trim_whitespace(cells.cast(pa.string())), ""))
    return found


def _quoted(text: str) -> str:
    return f"'{printable(text, longest=40)}'"


def _share(count: int, of: int) -> str:
    """A part in percent, never 0 or 100 unless it is.

    >>> _share(1, 100_000), _share(1, 3), _share(3, 3)
    ('under 0.1 %', '33.3 %', '100 %')
    """
    if count == of:
        return "100 %"
    share = min(100 * count / of, 99.9)
    return "under 0.1 %" if share < 0.1 else f"{share:.1f} %"


def _listed(found: Iterable[Odd]) -> str:
    return ", ".join(odd.describe() for odd in found)
