"""Draft a schema for the user to complete: from column names and types, or, for public data, from the values.

Where the source declares bounds and values itself, as a database does by constraints, the draft has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from boltdp._files.toml import toml_key, toml_value
from boltdp.encoding.timestamps import HOUR_AT, PATTERN
from boltdp.encoding.values import Value
from boltdp.errors import DataError, near, printable
from boltdp.privacy.events.event import BudgetedEvent
from boltdp.privacy.serialization import to_record
from boltdp.schema.schema import Categorical, Classes, Column, Numeric, Schema, Vector
from boltdp.schema.source_columns import ColumnType, Kind, Source, suggest_columns

#: A public text column with more distinct values than this is no categorical one.
MOST_CATEGORIES = 100
#: A public column without a type with at least this part of numbers among its cells, and more different ones than that,
#: is one of numbers.
MOST_NUMBERS, FEW_VALUES = 0.8, 20
#: A public column whose cells all differ may be an id, if they are more than this.
FEW_CELLS = 20
#: Cells that are no numbers which a draft of a public column quotes, at most.
EXAMPLES = 3
_NUMBER = r"^\s*[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?\s*$"
_COMMA = r"^\s*[+-]?[0-9]+(,[0-9]+)+\s*$"
_THOUSANDS = r"^\s*[+-]?[0-9]{1,3}(,[0-9]{3})+\s*$"
#: Kinds of columns that are no feature as they are.
LEFT_OUT = ("timestamp", "date", "other")
_CURVES = "# name = { bounds = [low, high], curve = 8 } adds steps at 8 places: a model is then a curve, not a line"


def draft_schema(source: Source, label: str, *, public: bool = False) -> str:
    """TOML text of a schema for the data, to be completed by hand before it can be loaded.

    Only names and types of columns are read, and what a database declares of them; what that cannot tell is left as
    `[]`, which `Schema.load` refuses.
    With `public=True`, for data that is no secret, bounds, categories and classes are taken from the values.

    >>> from boltdp.engines import open_source
    >>> print(draft_schema(open_source(pa.table({"age": [30, 40], "sick": [True, False]})), "sick"))
    label = "sick"
    classes = [false, true]
    intercept = true
    # clip_norm = 1.0  # rows longer than this are shortened to it; without it none is
    <BLANKLINE>
    [numeric]
    # name = { bounds = [low, high], curve = 8 } adds steps at 8 places: a model is then a curve, not a line
    age = []  # [low, high]
    <BLANKLINE>
    """
    columns = source.columns()
    check_label(columns, label, public=public)
    if not public:
        return write_draft(columns, label, {})
    seen = _look(source, [name for name in columns if columns[name].kind not in LEFT_OUT])
    return write_draft(columns, label, {name: one.found(name, columns[name].kind) for name, one in seen.items()})


def check_label(columns: Mapping[str, ColumnType], label: str, *, public: bool = False) -> None:
    """Refuse a label that is no column; one that is meant may be named if the names are no values, or are public.

    >>> check_label({"late": ColumnType("bool")}, "Late")
    Traceback (most recent call last):
    boltdp.errors.DataError: the data must have the column 'Late' for the label
    """
    if label not in columns:
        hint = near(label, columns) if public else suggest_columns(columns, (), label)
        raise DataError(f"the data must have the column {label!r} for the label", hint=hint)


@dataclass(frozen=True)
class Found:
    """What is known of the values of a column: bounds if they are numbers, the different ones if they are few.

    >>> Found(bounds=(0.0, 1.0)).numeric
    True
    """

    bounds: tuple[float, float] | None = None
    values: tuple[Value, ...] = ()
    length: int | None = None  #: of a list
    numbers: bool = False  #: whether all are numbers, even if there are no bounds
    many: bool = False  #: there are more different ones than a categorical column should have
    moments: bool = False  #: all are texts that `boltdp.encoding.timestamps` takes for timestamps or dates
    dated: bool = False  #: all of these are dates
    nothing: str = ""  #: why nothing is known: a column is then left out, in a comment
    remark: str = ""  #: what is to be said of its line, in a comment

    @property
    def numeric(self) -> bool:
        """Whether they are numbers."""
        return self.numbers or self.bounds is not None


def write_draft(
    columns: Mapping[str, ColumnType],
    label: str,
    found: Mapping[str, Found],
    *,
    spent: BudgetedEvent | None = None,
    comments: Sequence[str] = (),
) -> str:
    """TOML text of a schema of what is known of columns by their types and by what was found of their values.

    >>> columns = {"age": ColumnType("number"), "sick": ColumnType("bool")}
    >>> print(write_draft(columns, "sick", {"age": Found((0.0, 99.0))}))
    label = "sick"
    classes = [false, true]
    intercept = true
    # clip_norm = 1.0  # rows longer than this are shortened to it; without it none is
    <BLANKLINE>
    [numeric]
    # name = { bounds = [low, high], curve = 8 } adds steps at 8 places: a model is then a curve, not a line
    age = [0, 99]
    <BLANKLINE>
    """
    tables: dict[str, list[str]] = {"numeric": [], "categorical": [], "vector": []}
    undecided, left_out = [], []
    for name, column in columns.items():
        if name == label:
            continue
        reason = why_left_out(name, column, found.get(name))
        if reason is not None:
            left_out.append(f"# {toml_key(name)}: {reason}")
            continue
        kind, line = _draft_column(name, column, found.get(name))
        if kind == "undecided":
            undecided.append(name)
        else:
            tables[kind].append(line)
    lines = [
        *(f"# {comment}" for comment in comments),
        f"label = {toml_value(label)}",
        f"classes = {_draft_classes(columns[label], found.get(label))}",
        "intercept = true",
        "# clip_norm = 1.0  # rows longer than this are shortened to it; without it none is",
    ]
    for kind, entries in tables.items():
        if entries:
            lines += ["", f"[{kind}]", *([_CURVES] if kind == "numeric" else []), *entries]
    if left_out:
        lines += ["", "# Left out:", *left_out]
    if undecided:
        lines += [
            "",
            "# These have no type. Move each to [numeric] as `name = [low, high]`, to [categorical] as",
            '# `name = ["value", ...]`, to [timestamp] as `name = ["hour", "weekday", "month"]`, or to [vector] as',
            "# `name = { length = 3, bounds = [low, high] }`, or drop it; then delete this table.",
            "[undecided]",
            *(f"{toml_key(name)} = []" for name in undecided),
        ]
    if spent is not None:
        record = to_record(spent)
        lines += [
            "",
            "# What finding this has cost; `boltdp train` adds it to what a model claims, so leave it as it is.",
            "[spent]",
            *(f"{key} = {toml_value(value)}" for key, value in record.items()),
        ]
    return "\n".join(lines) + "\n"


def why_left_out(name: str, column: ColumnType, found: Found | None = None) -> str | None:
    """Why a column is no feature as it is, and what can be done about it; None if it may be one.

    >>> why_left_out("born", ColumnType("date"))
    'a date; declare it under [timestamp], as `born = ["weekday", "month"]`, to use the parts'
    >>> why_left_out("photo", ColumnType("other", called="binary"))
    'of the type binary, which cannot be a feature'
    """
    if found is not None and found.moments:
        what, them, dated = f"texts that are {'dates' if found.dated else 'timestamps'}", "them", found.dated
    else:
        what, them, dated = f"a {column.kind}", "it", column.kind == "date"
    if column.kind in ("timestamp", "date") or (found is not None and found.moments):
        parts = toml_value([*([] if dated else ["hour"]), "weekday", "month"])
        return f"{what}; declare {them} under [timestamp], as `{toml_key(name)} = {parts}`, to use the parts"
    if column.kind == "other":
        return f"of the type {column.called}, which cannot be a feature" if column.called else "no feature, by its type"
    return None


def declared_schema(columns: Mapping[str, ColumnType], label: str) -> Schema:
    """The schema of a source that declares all of it itself: by types and, in a database, by constraints.

    No row is read. Every column is a feature but keys that declare nothing, and those of types that cannot be one.

    >>> columns = {"sick": ColumnType("bool"), "age": ColumnType("number", bounds=(0.0, 120.0))}
    >>> declared_schema(columns, "sick").columns
    (Numeric(name='age', low=0.0, high=120.0, curve=()),)
    """
    check_label(columns, label)
    features = {name: declared_column(name, column) for name, column in columns.items() if name != label}
    classes = (False, True) if columns[label].kind == "bool" else columns[label].values
    undeclared = [] if classes is not None else [label]
    undeclared += [
        name
        for name, feature in features.items()
        if feature is None and columns[name].kind not in LEFT_OUT and not columns[name].key
    ]
    if undeclared or classes is None:
        names = ", ".join(map(repr, undeclared))
        raise DataError(
            f"the data must declare bounds or values of every column, and does not of {names}",
            hint="add constraints to the table, such as CHECK (age BETWEEN 0 AND 120) or CHECK (sex IN ('F', 'M')); or "
            "complete the draft that `boltdp schema` makes, without the columns that are not to be used",
        )
    return Schema(Classes(label, classes), tuple(feature for feature in features.values() if feature is not None))


def declared_column(name: str, column: ColumnType) -> Column | None:
    """The feature that a column is by what is declared of it, if that is enough.

    >>> declared_column("member", ColumnType("bool"))
    Numeric(name='member', low=0.0, high=1.0, curve=())
    """
    if column.kind == "bool" or (column.kind == "number" and sorted(column.values or ()) == [0, 1]):
        return Numeric(name, 0, 1)
    if column.kind == "list" and column.length is not None and column.bounds is not None:
        return Vector(name, column.length, *column.bounds)
    if column.values is not None:
        return Categorical(name, column.values)
    if column.kind == "number" and column.bounds is not None:
        return Numeric(name, *column.bounds)
    return None


def _draft_column(name: str, column: ColumnType, seen: Found | None) -> tuple[str, str]:
    """The table that a column belongs to and its line there."""
    key = toml_key(name)
    remark = f"  # {seen.remark}" if seen is not None and seen.remark else ""
    match declared_column(name, column):
        case Numeric(low=low, high=high):
            return "numeric", f"{key} = {toml_value([low, high])}"
        case Categorical(categories=categories):
            return "categorical", f"{key} = {toml_value(list(categories))}"
        case Vector(length=declared, low=low, high=high):
            return "vector", f"{key} = {{ length = {declared}, bounds = {toml_value([low, high])} }}"
    if seen is not None and seen.nothing:
        numeric = seen.bounds is not None and column.kind == "untyped"
        table = "numeric" if numeric else {"number": "numeric", "list": "vector"}.get(column.kind, "categorical")
        return table, f"# {key} = {toml_value([*(seen.bounds or ())])}  # {seen.nothing}"
    if column.kind == "list":
        length = toml_value(column.length if column.length is not None else [])
        bounds = toml_value(list(seen.bounds)) if seen and seen.bounds else "[]"
        if seen and seen.length is not None:
            length = toml_value(seen.length)
        return "vector", f"{key} = {{ length = {length}, bounds = {bounds} }}{remark}"
    if seen is not None and seen.numeric and column.kind in ("number", "untyped"):
        bounds = toml_value(list(seen.bounds)) if seen.bounds else "[]  # [low, high]"
        return "numeric", f"{key} = {bounds}{remark}"
    if column.kind == "number":
        return "numeric", f"{key} = []  # {'a key: drop it?' if column.key else '[low, high]'}"
    if seen is not None and seen.values:
        return "categorical", f"{key} = {toml_value(list(seen.values))}"
    if seen is not None and seen.many:
        return (
            "categorical",
            f"# {key} = []  # more than {MOST_CATEGORIES} different values: declare those to tell apart",
        )
    if column.kind == "untyped":
        return "undecided", ""
    return "categorical", f'{key} = []  # ["value", ...]'


def _draft_classes(column: ColumnType, seen: Found | None) -> str:
    if column.kind == "bool":
        return "[false, true]"
    if column.values is not None:
        return toml_value(list(column.values))
    if seen is not None and seen.values:
        return f"{toml_value(list(seen.values))}  # the first is the negative one"
    why = f"{seen.nothing}; " if seen is not None and seen.nothing else ""
    return f"[]  # {why}at least two values; the first is the negative one"


class _Seen:
    """What the values of a public column are: their bounds if they are numbers, and the different ones if few."""

    def __init__(self) -> None:
        self.many = False
        self.length: int | None = None
        self._cells = self._numbers = self._commas = self._thousands = 0
        self._others: dict[str, None] = {}
        self._moments: bool | None = None
        self._dated = True  # no text is longer than a date
        self._low, self._high = math.inf, -math.inf
        self._whole = True
        self._distinct: set[Value] = set()
        self._differ = True

    def look(self, cells: pa.Array) -> None:
        """Take the cells of one batch into account."""
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary_decode()
        cells = cells.drop_null()
        if len(cells) == 0:
            return
        kind = ColumnType.of(cells.type).kind
        if kind == "list":
            self.length, self._differ = len(cells[0]), False
            cells = cells.flatten().drop_null()
        else:
            self._look_for_values(cells)
        self._cells += len(cells)
        if kind == "text":
            self._look_at_texts(cells)
        else:
            self._look_for_bounds(cells)

    def _look_for_values(self, cells: pa.Array) -> None:
        if self.many and not self._differ:
            return
        unique = pc.unique(cells).to_pylist()
        self._differ = self._differ and len(unique) == len(cells) and self._distinct.isdisjoint(unique)
        self._distinct.update(unique)
        self.many = len(self._distinct) > MOST_CATEGORIES

    def _look_at_texts(self, cells: pa.Array) -> None:
        if self._moments is not False:
            self._moments = bool(pc.all(pc.match_substring_regex(cells, f"^({PATTERN})$")).as_py())
            self._dated = self._dated and pc.max(pc.utf8_length(cells)).as_py() < HOUR_AT
        numbers = pc.match_substring_regex(cells, _NUMBER)
        self._look_for_bounds(pc.cast(pc.utf8_trim_whitespace(cells.filter(numbers)), pa.float64()))
        others = cells.filter(pc.invert(numbers))
        for pattern, name in ((_COMMA, "_commas"), (_THOUSANDS, "_thousands")):
            found = pc.sum(pc.match_substring_regex(others, pattern)).as_py() or 0
            setattr(self, name, getattr(self, name) + found)
        if len(others) and len(self._others) < EXAMPLES:
            self._others.update(dict.fromkeys(pc.unique(others).to_pylist()))

    def _look_for_bounds(self, cells: pa.Array) -> None:
        try:
            numbers = pc.cast(cells, pa.float64(), safe=False)
        except pa.ArrowException:
            return
        self._numbers += len(numbers)
        numbers = numbers.filter(pc.is_finite(numbers))
        ends = pc.min_max(numbers)
        if ends["min"].is_valid:
            self._low = min(self._low, ends["min"].as_py())
            self._high = max(self._high, ends["max"].as_py())
            exact = max(-self._low, self._high) < 2.0**53  # larger ones have no digits after the point
            self._whole = self._whole and exact and bool(pc.all(pc.equal(numbers, pc.floor(numbers))).as_py())

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Smallest and largest number, rounded outward to two digits of their distance."""
        if self._low > self._high:
            return None
        low, high = self._low, self._high if self._high > self._low else self._low + 1.0
        unit = 10.0 ** math.floor(math.log10(high - low) - 1)
        rounded = math.floor(low / unit) * unit, math.ceil(high / unit) * unit
        return float(f"{rounded[0]:.12g}"), float(f"{rounded[1]:.12g}")

    def found(self, name: str, kind: Kind) -> Found:
        """All of it, of a column with a name and of the kind that its source says."""
        values = () if self.many else in_order(self._distinct)
        moments = self._moments is True
        several = self.many or len(values) > FEW_VALUES
        numeric = self._numbers == self._cells or (several and self._numbers >= MOST_NUMBERS * self._cells)
        differ = self._differ and self._cells > FEW_CELLS
        nothing = remark = ""
        if kind == "text" and several and numeric:
            nothing = f"numbers in texts: {_in_query(name, _quoted(name))}"
        elif numeric and self._numbers < self._cells:
            share = math.floor(100 * self._numbers / self._cells)
            others = ", ".join(f"`{printable(one)}`" for one in [*self._others][:EXAMPLES])
            remark = f"{share} % of the cells are numbers; others, such as {others}, count as missing"
        elif not numeric and several and self._commas >= (self._cells - self._numbers) * MOST_NUMBERS > 0:
            nothing = _without_commas(name, "." if self._thousands < self._commas else "")
        elif differ and not moments and (self._whole or not numeric):
            # Numbers with digits after the point differ often, all of them, and are none.
            nothing = "every value differs: an id?"
        return Found(
            self.bounds if numeric else None,
            values,
            self.length,
            numbers=numeric,
            many=self.many,
            moments=moments,
            dated=moments and self._dated,
            nothing=nothing,
            remark=remark,
        )


def _without_commas(name: str, point: str) -> str:
    what = "numbers with a decimal comma" if point else "numbers with commas between thousands"
    plain = f"replace({_quoted(name)}, ',', '{point}')"
    return f"{what}: {_in_query(name, plain)}"


def _in_query(name: str, text: str) -> str:
    """How a query makes numbers of texts."""
    return f"--query \"SELECT * REPLACE (TRY_CAST({text} AS DOUBLE) AS {_quoted(name)}) FROM 'FILE'\" makes them plain"


def _quoted(name: str) -> str:
    """A name in SQL within the double quotes of a shell."""
    return name if name.isidentifier() else '\\"' + name.replace('"', '\\"\\"') + '\\"'


def in_order(values: Iterable[Value]) -> tuple[Value, ...]:
    """Values as a draft lists them: numbers first.

    >>> in_order(["b", 2, "a", 1])
    (1, 2, 'a', 'b')
    """
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def _look(source: Source, names: Sequence[str]) -> dict[str, _Seen]:
    seen = {name: _Seen() for name in names}
    for batch in source.batches(names):
        for name in names:
            seen[name].look(batch.column(name))
    return seen
