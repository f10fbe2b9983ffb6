"""Compare non-sensitive rows with a schema: which cells would be missing, clipped or undeclared in a training.

Nothing here is private: counts and values are exact.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from boltdp.errors import join_names, make_printable
from boltdp.schema.schema import Column, Schema
from boltdp.schema.source_columns import ColumnType, Kind, Source
from boltdp.schema.summary import Summary, make_missing_mask, scan_rows
from boltdp.schema.target import TARGETS

NOT_PRIVATE = "NOT PRIVATE: all of this was computed from the rows without noise; it is for non-sensitive data"
RULE = (
    "training would learn garbage if fewer than two declared classes occur, if all numbers to predict are the same, if "
    "a column cannot be read or is empty, or "
    "if more than half of a column's cells (of all labels, and of the features that are not missing) do not parse, are "
    "clipped or are not declared; if more than a tenth do not parse or are other spellings of declared values; or if "
    "all numbers lie within a fiftieth of the bounds"
)
#: The largest share of a column's cells that may differ from the declaration.
MAX_WRONG = 0.5
#: The largest share of cells that may be unparsable, or other spellings of declared values.
MAX_UNREAD = 0.1
#: The smallest part of the bounds that all numbers together may take up.
MIN_RANGE = 0.02
#: The largest number of values of a column that are shown.
MAX_SHOWN = 10
#: The similarity, from 0 to 1, above which one text is taken for a misspelling of another.
MIN_SIMILARITY = 0.8

#: A number with a decimal comma.
_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")


@dataclass(frozen=True)
class UnexpectedValue:
    """A value that is not declared, its count, and the declared value that is similar, if any."""

    value: str
    count: int
    looks_like: str | None = None

    def __str__(self) -> str:
        meant = "" if self.looks_like is None else f", looks like {_quote(self.looks_like)}"
        return f"{_quote(self.value)} ({self.count:,}{meant})"


@dataclass(frozen=True, kw_only=True)
class CheckedColumn:
    """Counts of the cells of one column, compared with its declaration; each number of a vector is a cell."""

    name: str
    role: str  #: "label" or "target", or the table of the schema that declares it
    cells: int
    missing: int = 0
    unparsed: int = 0  #: cells that are no numbers, or no lists of the declared length
    unparsed_values: tuple[UnexpectedValue, ...] = ()
    low: float | None = None  #: the declared bounds
    high: float | None = None
    below: int = 0  #: cells that are clipped to the low bound
    above: int = 0
    smallest: float | None = None
    largest: float | None = None
    bars: tuple[int, ...] = ()  #: the histogram of the numbers in equal intervals between the bounds
    counts: tuple[tuple[str, int], ...] = ()  #: of each declared value
    undeclared: int = 0
    undeclared_values: tuple[UnexpectedValue, ...] = ()  #: the most frequent ones
    constant: bool = False
    fault: str | None = None  #: why it could not be read

    @classmethod
    def from_summary(cls, name: str, role: str, cells: int, summary: Summary) -> CheckedColumn:
        """Compare the summary of a column with the declaration by which its cells were counted."""
        met = {value: summary.values[value] for value in summary.declared}
        unexpected = [(str(value), count) for value, count in summary.values.items() if value not in met]
        frequent = sorted(unexpected, key=lambda item: (-item[1], item[0]))[:MAX_SHOWN]
        others = tuple(UnexpectedValue(*item, find_similar(item[0], summary.declared)) for item in frequent)
        checked = cls(name=name, role=role, cells=cells, missing=summary.missing, unparsed=summary.unparsed)
        if summary.histogram is None or summary.rule is None:
            constant = role != "label" and sum(count > 0 for count in summary.values.values()) == 1
            checked = replace(checked, counts=(*met.items(),), constant=constant)
            return replace(checked, undeclared=int(summary.others), undeclared_values=others)
        (low, high), (below, *bars, above) = summary.rule.bounds, summary.histogram.counts.tolist()
        checked = replace(checked, low=low, high=high, below=below, above=above, bars=tuple(bars))
        if summary.numbers:
            checked = replace(checked, smallest=summary.low, largest=summary.high)
        return replace(checked, unparsed_values=others, constant=summary.low == summary.high)

    @property
    def is_predicted(self) -> bool:
        """Whether it is the column to predict: rows without a usable cell are then ignored."""
        return self.role in (kind.key for kind in TARGETS)

    @property
    def wrong_count(self) -> int:
        """The number of cells that are present but not as declared."""
        return self.unparsed + self.below + self.above + self.undeclared

    @property
    def absent_values(self) -> tuple[str, ...]:
        return tuple(name for name, count in self.counts if not count)

    @property
    def problem(self) -> str | None:
        """Why a model could not learn from the column; None if it could."""
        if self.fault is not None:
            return self.fault
        present = self.cells - self.missing
        if not present:
            return "all cells are missing"
        if self.role == "label" and len(self.counts) - len(self.absent_values) < 2:
            met = [name for name, count in self.counts if count]
            return f"no row has a class other than {_quote(met[0])}" if met else "no row has a declared class"
        if self.is_predicted:
            if self.constant:
                return "all numbers are the same"
            present = self.cells
        wrong = self.wrong_count + (self.missing if self.is_predicted else 0)
        if wrong > MAX_WRONG * present:
            return f"{_format_share(wrong, present)} of the cells are not as declared"
        if self.unparsed > MAX_UNREAD * present:
            return f"{_format_share(self.unparsed, present)} of the cells do not parse"
        if self.misspelt_count > MAX_UNREAD * present:
            return f"{_format_share(self.misspelt_count, present)} of the cells are other spellings of declared values"
        if self._bounds_too_wide:
            return f"the bounds are over {1 / MIN_RANGE:g} times as wide as all of the numbers"
        return None

    @property
    def misspelt_count(self) -> int:
        """The number of cells with another spelling of a declared value, among the most frequent undeclared ones."""
        known = {_normalize(name) for name, _ in self.counts}
        return sum(one.count for one in self.undeclared_values if _normalize(one.value) in known)

    @property
    def spelling_variants(self) -> tuple[tuple[str, ...], ...]:
        """Groups of values in the column that differ only in case, blanks or punctuation."""
        met = [*(name for name, count in self.counts if count), *(one.value for one in self.undeclared_values)]
        groups: dict[str, list[str]] = {}
        for value in met:
            groups.setdefault(_normalize(value), []).append(value)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    @property
    def _bounds_too_wide(self) -> bool:
        if self.low is None or self.high is None or self.smallest is None or self.largest is None:
            return False
        return 0 < self.largest - self.smallest < MIN_RANGE * (self.high - self.low)

    def list_deviations(self) -> Iterator[str]:
        """Yield a sentence for each way in which cells differ from the declaration."""
        present = max(self.cells - self.missing, 1)
        if self.unparsed:
            what = "no lists of the declared length" if self.role == "vector" else "no numbers"
            listed = _format_unexpected(self.unparsed_values)
            then = "are ignored" if self.is_predicted else "count as missing"
            yield f"{_format_share(self.unparsed, present)} are {what}, and {then}{listed}"
        if 2 * sum(one.count for one in self.unparsed_values if _COMMA.fullmatch(one.value)) > present:
            query = f"SELECT * REPLACE (replace({self.name}, ',', '.') AS {self.name}) FROM source"
            yield f'most have a decimal comma; --query "{query}" makes a point of it'
        if self.below:
            share = _format_share(self.below, present)
            yield f"{share} are below {self.low:g} and clipped to it, as far as {self.smallest:g}"
        if self.above:
            share = _format_share(self.above, present)
            yield f"{share} are above {self.high:g} and clipped to it, as far as {self.largest:g}"
        if self.undeclared:
            what = "are ignored" if self.role == "label" else "count as no category"
            listed = _format_unexpected(self.undeclared_values)
            yield f"{_format_share(self.undeclared, present)} are not declared, and {what}{listed}"
        if self.spelling_variants:
            listed = "; ".join(
                " = ".join(map(_quote, group[:MAX_SHOWN])) for group in self.spelling_variants[:MAX_SHOWN]
            )
            query = f"SELECT * REPLACE (lower(trim({self.name})) AS {self.name}) FROM source"
            yield f'spellings of the same value: {listed}; a query can normalize them, such as --query "{query}"'
        if self._bounds_too_wide:
            yield f"all numbers are from {self.smallest:g} to {self.largest:g}: noise is for the whole of the bounds"
        if self.missing:
            yield f"{_format_share(self.missing, self.cells)} are missing"
        if self.absent_values:
            kind = "classes" if self.role == "label" else "categories"
            yield f"declared {kind} that never occur: {join_names([*map(_quote, self.absent_values)], most=MAX_SHOWN)}"
        if self.constant and not self.is_predicted:
            yield "all cells are the same, so that it is of no use"

    @property
    def findings(self) -> tuple[str, ...]:
        """The problem, if there is one, and the deviations; "as declared" if there is neither."""
        problem = () if self.problem is None else (f"GARBAGE: {self.problem}",)
        return (*problem, *self.list_deviations()) or ("as declared",)


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckReport:
    """The result of a schema check: how rows compare with the schema, and whether training could learn (`ok`)."""

    rows: int
    columns: tuple[CheckedColumn, ...]  #: the label first
    unused: tuple[tuple[str, str], ...] = ()  #: columns that the schema does not declare, and why

    @property
    def problems(self) -> tuple[str, ...]:
        """Why a model could not learn from rows like these; empty if it could."""
        if not self.rows:
            return ("there are no rows",)
        return tuple(
            f"{column.role} {_quote(column.name)}: {column.problem}" for column in self.columns if column.problem
        )

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        columns = [
            asdict(column) | {"never": column.absent_values, "problem": column.problem} for column in self.columns
        ]
        return {
            "private": False,
            "ok": self.ok,
            "problems": self.problems,
            "rows": self.rows,
            "columns": columns,
            "unused": [{"name": name, "why": why} for name, why in self.unused],
        }

    def __repr__(self) -> str:
        lines = [f"{NOT_PRIVATE}.", f"{self.rows:,} rows: {'ok' if self.ok else 'training would learn garbage'}"]
        lines += [f"{column.role} {_quote(column.name)}: {'; '.join(column.findings)}" for column in self.columns]
        lines += [f"not used {_quote(name)}: {why}" for name, why in self.unused]
        return "\n".join(lines)


def check_source(source: Source, schema: Schema, *, progress: Callable[[int], object] | None = None) -> CheckReport:
    """Compare all rows of a source with a schema; `progress` is called with the number of rows read so far."""
    columns = source.columns()
    declared = (schema.target.label_column, *schema.columns)
    faults = {column.name: _find_column_fault(columns, column) for column in declared}
    readable = [column for column in declared if faults[column.name] is None]
    summaries = {column.name: Summary(rule=column.encoding_rule) for column in declared}
    parse: dict[str, Kind] = {column.source: column.parsed_as for column in readable if column.parsed_as is not None}
    # Timestamps are not parsed; texts in other columns may not parse.
    unsure = [name for name in parse if columns[name].kind == "untyped" or columns[name].parsed]
    rows, gaps = 0, {name: [np.zeros(0, bool)] for name in unsure if parse[name] != "timestamp"}
    for batch in scan_rows(source, [*dict.fromkeys(c.source for c in readable)], parse=parse, progress=progress):
        for column in readable:
            summaries[column.name].add_declared(batch.column(column.source))
        for name, masks in gaps.items():
            masks.append(make_missing_mask(batch.column(name)))
        rows += batch.num_rows
    unparsed = {name: np.concatenate(masks) for name, masks in gaps.items()}
    unparsed = {name: mask for name, mask in unparsed.items() if mask.any()}
    # Texts that do not parse are read in a second scan, as texts, in the same order.
    at = 0
    for batch in scan_rows(source, [*unparsed]):
        for name, mask in unparsed.items():
            summaries[name].add_unparsed(batch.column(name).filter(pa.array(mask[at : at + batch.num_rows])))
        at += batch.num_rows
    checked: list[CheckedColumn] = []
    for column in declared:
        summary, role = summaries[column.name], column.table if checked else schema.target.key
        found = CheckedColumn.from_summary(column.name, role, rows * (summary.length or 1), summary)
        checked.append(replace(found, fault=faults[column.name]))
    used = {column.source for column in (*declared, *schema.training_only_columns)}
    unused = tuple((name, _explain_unused_column(column)) for name, column in columns.items() if name not in used)
    return CheckReport(rows=rows, columns=tuple(checked), unused=unused)


def find_similar(value: str, declared: Sequence[str]) -> str | None:
    """Return the declared value that differs only in case, blanks or punctuation, or by a letter or two, if any."""
    plain = {_simplify(name): name for name in reversed(declared)}
    sought = _simplify(value)
    close = difflib.get_close_matches(sought, [*plain], 1, MIN_SIMILARITY) if len(sought) > 2 else []
    return plain.get(sought) or (plain[close[0]] if close else None)


def _simplify(text: str) -> str:
    """Reduce a value to a form in which similar ones are equal: a number, or letters and digits in lower case."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return "".join(one for one in text.casefold() if one.isalnum()) or text.strip()


def _normalize(text: str) -> str:
    """Return the text without case, blanks and punctuation, except signs, as in the blood groups "A+" and "A-"."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return re.sub(r"[\s._',]+|(?<=\w)-(?=\w)", "", text.casefold()) or text


def _find_column_fault(columns: Mapping[str, ColumnType], column: Column) -> str | None:
    if column.source in columns:
        fault = column.find_type_fault(columns[column.source])
        return None if fault is None else f"it {fault}"
    meant = find_similar(column.source, [*columns])
    return "the data has no such column" + ("" if meant is None else f"; {_quote(meant)} looks like it")


def _explain_unused_column(column: ColumnType) -> str:
    if column.kind in ("timestamp", "date"):
        return f"a {column.kind}, whose parts a schema can declare"
    if column.kind == "other":
        return "its type cannot be a feature"
    return "a key, which tells rows apart" if column.key else "the schema does not declare it"


def _format_unexpected(values: Iterable[UnexpectedValue]) -> str:
    listed = ", ".join(map(str, values))
    return f": {listed}" if listed else ""


def _quote(text: str) -> str:
    return f"'{make_printable(text, longest=40)}'"


def _format_share(count: int, total: int) -> str:
    """Format a share in percent; it is rounded neither to 0 nor to 100."""
    if count == total:
        return "100 %"
    share = min(100 * count / total, 99.9)
    return "under 0.1 %" if share < 0.1 else f"{share:.1f} %"
