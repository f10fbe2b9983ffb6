"""The kinds of columns that a schema declares, one class each.

A column has its values, its entry in a schema file, the types of data that it accepts, and its rule of the encoding
plan, from which its features follow: see `boltdp.encoding.plan`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from boltdp._files.toml_writer import format_toml_key, format_toml_value
from boltdp.encoding.declared_values import Value, check_integer, check_value_count, check_values, format_value
from boltdp.encoding.plan import NumberListRule, NumberRule, Rule, TimePartRule, ValueRule
from boltdp.encoding.timestamp_parts import PARTS, TimestampPart
from boltdp.errors import DataError, ParameterError, check_choice, check_number, join_names, show_value, suggest_names
from boltdp.schema.curves import MAX_PLACES, choose_step_thresholds, compute_step_thresholds

if TYPE_CHECKING:
    from boltdp.schema.source_columns import ColumnType, Kind
    from boltdp.schema.summary import Summary

#: How scores follow a number: "increasing" ones never fall while it rises, "decreasing" ones never rise.
Monotone = Literal["increasing", "decreasing"]
#: Whether numbers of a schema are declared, or were found privately for one model.
Source = Literal["declared", "private"]

#: The largest number of features, and so of columns, of categories and of the numbers of a vector: a short schema must
#: not exhaust the memory.
MAX_FEATURES = 100_000
MAX_RANGE_DIGITS = 18

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")


@dataclass(frozen=True)
class Draft:
    """The drafted TOML entry of a column, and a comment."""

    table: str
    entry: Any
    comment: str = ""
    used: bool = True  #: False: the entry is commented out

    def write_line(self, name: str) -> str:
        """Return the line of a schema file that declares the column `name`, commented out if it is not used."""
        comment = f"  # {self.comment}" if self.comment else ""
        return f"{'' if self.used else '# '}{format_toml_key(name)} = {format_toml_value(self.entry)}{comment}"


class Column(ABC):
    """A declared column. Each kind must define everything here, and be listed in `COLUMN_KINDS`."""

    name: str
    table: ClassVar[str]  #: the table of a schema file that declares such columns
    accepts: ClassVar[tuple[Kind, ...]]  #: the types of data that it accepts
    expected: ClassVar[str]  #: a description of these types
    parsed_as: ClassVar[Kind | None]  #: the type that untyped cells are parsed as; None: they stay texts

    def __init_subclass__(cls) -> None:
        for fact in ("table", "accepts", "expected", "parsed_as"):
            if not hasattr(cls, fact):
                raise TypeError(f"the column kind {cls.__name__} must state {fact!r}")

    @property
    def source(self) -> str:
        """The name of the data column whose cells this schema column encodes."""
        return self.encoding_rule.source

    @property
    @abstractmethod
    def encoding_rule(self) -> Rule:
        """The rule by which the encoding plan turns a cell into features."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features of the column: its numbers, the steps of its curve, its categories."""
        rule, name = self.encoding_rule, self.name
        numbers = [f"{name}[{i}]" for i in range(rule.number_count)] if rule.reads_lists else [name] * rule.number_count
        steps = [f"{name}>={repr(place).removesuffix('.0')}" for place in rule.thresholds]
        return (*numbers, *steps, *(f"{name}={format_value(value)}" for value in rule.values))

    @classmethod
    @abstractmethod
    def from_declaration(cls, name: str, declared: Any) -> Sequence[Column]:
        """Make the columns that one entry of a schema file declares."""

    @property
    @abstractmethod
    def schema_entry(self) -> Any:
        """The entry that declares the column in a schema file, as JSON-compatible values."""

    def add_declaration(self, table: dict[str, Any]) -> None:
        """Add the entry of the column to the table of its kind in a schema file."""
        table[self.name] = self.schema_entry

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Column | None:
        """Make a column of this kind from the type and constraints in the source; None if these do not declare one."""
        return None

    @classmethod
    @abstractmethod
    def draft_entry(cls, name: str, column: ColumnType, summary: Summary | None) -> Draft | None:
        """Draft the schema entry of a column from its type and summary; None if it is not of this kind."""

    def add_curve(self, count: int) -> Column:
        """Return the column with a curve of at most `count` steps, unless it has one or cannot have one."""
        return self

    def describe(self) -> str:
        """Describe the declared bounds or categories of the column in words."""
        return f"one of {list_values(self.encoding_rule.known_values)}"

    def find_type_fault(self, given: ColumnType) -> str | None:
        """Return why cells of this type cannot be read, in words that follow "it"; None if they can."""
        if given.kind in self.accepts or ("number" in self.accepts and given.parsed):
            return None
        return f"must have {self.expected}, its type is {given.kind!r}"

    def suggest_declaration(self, given: ColumnType) -> str | None:
        """Return a hint how a column of a type that does not fit could be declared; None if there is no hint."""
        if given.kind == "text" and "number" in self.accepts:
            quoted = '"' + self.source.replace('"', '""') + '"'
            numbers = f"TRY_CAST({quoted} AS DOUBLE) AS {quoted}"
            return f"declare its categories, or make numbers of it in a query, in DuckDB by {numbers}"
        if given.kind == "list" and "number" in self.accepts:
            return f"declare it as a vector: {self.source} = {{ length = 3, bounds = [low, high] }} in [vector]"
        return None

    def check_type(self, given: ColumnType) -> None:
        """Raise a DataError if the column cannot be read from data of this type."""
        fault = self.find_type_fault(given)
        if fault is not None:
            raise DataError(f"column {self.source!r} {fault}", hint=self.suggest_declaration(given))


@dataclass(frozen=True)
class Numeric(Column):
    """A schema column of numbers with public bounds; encoded to [-1, 1].

    A curve adds a step function at each of its places, as a feature beside the number itself. Steps are centred at 0
    and half as high as a category, to keep norms small. Scores follow a monotone column in one direction alone: see
    `boltdp.encoding.monotone`.

    >>> Numeric("age", 0, 100, curve=(18, 65)).feature_names
    ('age', 'age>=18', 'age>=65')
    """

    table = "numeric"
    accepts = ("number", "bool", "untyped")
    expected = "numbers"
    parsed_as = "number"

    name: str
    low: float
    high: float
    curve: tuple[float, ...] = ()  #: the places of its steps, increasing, strictly inside the bounds
    curve_source: Source = "declared"  #: "private": at quantiles that were found within the budget of one model
    monotone: Monotone | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        _check_and_set_bounds(self)
        what = f"the curve of {self.name!r}"
        if not isinstance(self.curve, (list, tuple)):
            raise ParameterError(f"{what} must be a list of places, got {show_value(self.curve)}")
        check_value_count(self.curve, MAX_PLACES, what)
        # Adding 0 turns -0 into 0.
        places = tuple(check_number(place, f"each place of {what}") + 0.0 for place in self.curve)
        if not all(before < after for before, after in pairwise((self.low, *places, self.high))):
            raise ParameterError(
                f"{what} must have increasing places between the bounds {self.low:g} and {self.high:g}, "
                f"got {show_value(list(self.curve))}"
            )
        object.__setattr__(self, "curve", places)
        check_choice(self.curve_source, "curve_source", Source)
        if not places and self.curve_source != "declared":
            raise ParameterError(f"curve_source must be 'declared' without a curve, got {self.curve_source!r}")
        if self.monotone is not None:
            check_choice(self.monotone, f"monotone of {self.name!r}", Monotone)

    @cached_property
    def encoding_rule(self) -> NumberRule:
        direction = {None: 0, "increasing": 1, "decreasing": -1}[self.monotone]
        return NumberRule(self.name, self.name, self.low, self.high, self.curve, direction)

    @classmethod
    def from_declaration(cls, name: str, declared: Any) -> Sequence[Numeric]:
        if not isinstance(declared, Mapping):
            return [cls(name, *check_pair(declared, name))]
        keys = ("curve", "spacing", "curve_source", "monotone")
        check_keys(declared, required=("bounds",), optional=keys, what=f"the column {name!r}")
        column = cls(name, *check_pair(declared["bounds"], name), monotone=declared.get("monotone"))
        curve = declared.get("curve", ())
        if isinstance(curve, (list, tuple)):
            if "spacing" in declared:
                raise ParameterError(
                    f"the column {name!r} must declare a number of places for its curve beside 'spacing'"
                )
            return [replace(column, curve=tuple(curve), curve_source=declared.get("curve_source", "declared"))]
        return [replace(column, curve=compute_step_thresholds(column, curve, declared.get("spacing", "even")))]

    @property
    def schema_entry(self) -> Any:
        entry: dict[str, Any] = {"bounds": [self.low, self.high]}
        if self.curve:
            entry["curve"] = [*self.curve]
        if self.curve_source != "declared":
            entry["curve_source"] = self.curve_source
        if self.monotone is not None:
            entry["monotone"] = self.monotone
        return entry if len(entry) > 1 else entry["bounds"]

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Numeric | None:
        if _is_zero_or_one_column(column):
            return cls(name, 0, 1)
        if column.kind == "number" and column.bounds is not None and column.values is None:
            return cls(name, *column.bounds)
        return None

    @classmethod
    def draft_entry(cls, name: str, column: ColumnType, summary: Summary | None) -> Draft | None:
        if not (column.kind == "number" or (column.kind == "untyped" and summary is not None and summary.is_numeric)):
            return None
        if summary is not None and summary.bounds is not None:
            return Draft(cls.table, [*summary.bounds], summary.bounds_comment)
        return Draft(cls.table, [], "a key: drop it?" if column.key else "[low, high]")

    def add_curve(self, count: int) -> Numeric:
        return self if self.curve else replace(self, curve=choose_step_thresholds(self, count))

    def describe(self) -> str:
        curve = f", with a curve of {len(self.curve)} steps" if self.curve else ""
        monotone = {None: "", "increasing": ", that never falls", "decreasing": ", that never rises"}[self.monotone]
        return f"a number from {self.low:g} to {self.high:g}{curve}{monotone}"


@dataclass(frozen=True)
class Categorical(Column):
    """A schema column of texts, numbers or booleans with public categories; encoded one-hot.

    A reference category has no feature of its own: the others are compared with it, and a missing value counts as it.

    >>> Categorical("sex", ("F", "M")).feature_names
    ('sex=F', 'sex=M')
    >>> Categorical("sex", ("F", "M"), reference="F").feature_names
    ('sex=M',)
    """

    table = "categorical"
    accepts = ("number", "bool", "text", "untyped")
    expected = "texts, numbers or booleans"
    parsed_as = None

    name: str
    categories: tuple[Value, ...]
    reference: Value | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        what = f"the categories of {self.name!r}"
        check_value_count(self.categories, MAX_FEATURES, what)
        object.__setattr__(self, "categories", check_values(self.categories, what=what))
        if not self.categories:
            raise ParameterError(
                f"{what} must be a list of values, got []", hint="name those to tell apart, or drop the column"
            )
        if self.reference is None:
            return
        (given,) = check_values([self.reference], what=f"the reference of {self.name!r}")
        same = [one for one in self.categories if one == given and isinstance(one, bool) == isinstance(given, bool)]
        if not same or len(self.categories) < 2:
            raise ParameterError(
                f"the reference of {self.name!r} must be one of its two or more categories, got {show_value(given)}"
            )
        object.__setattr__(self, "reference", same[0])

    @cached_property
    def encoding_rule(self) -> ValueRule:
        compared = tuple(value for value in self.categories if self.reference is None or value != self.reference)
        return ValueRule(self.name, self.name, compared, self.reference)

    @classmethod
    def from_declaration(cls, name: str, declared: Any) -> Sequence[Categorical]:
        if not isinstance(declared, Mapping):
            return [cls(name, check_list(declared, f"the categories of {name!r}"))]
        check_keys(declared, required=("categories",), optional=("reference",), what=f"the column {name!r}")
        categories = check_list(declared["categories"], f"the categories of {name!r}")
        return [cls(name, categories, declared.get("reference"))]

    @property
    def schema_entry(self) -> Any:
        categories = [*self.categories]
        return categories if self.reference is None else {"categories": categories, "reference": self.reference}

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Categorical | None:
        if column.values is None or column.kind == "list" or _is_zero_or_one_column(column):
            return None
        return cls(name, column.values)

    @classmethod
    def draft_entry(cls, name: str, column: ColumnType, summary: Summary | None) -> Draft | None:
        if summary is None:
            return Draft(cls.table, [], '["value", ...]') if column.kind == "text" else None
        has_texts = column.kind == "text" or (column.kind == "untyped" and not summary.is_numeric)
        if summary.timestamp_kind or not has_texts:
            return None
        return Draft(cls.table, [*summary.categories], "" if summary.categories else '["value", ...]')


@dataclass(frozen=True)
class TimePart(Column):
    """A schema column: a part of timestamps, such as the hour, whose categories are fixed (`encoding.timestamp_parts`).

    >>> TimePart("admitted", "weekday").feature_names[:2]
    ('admitted.weekday=Mon', 'admitted.weekday=Tue')
    """

    table = "timestamp"
    accepts = ("timestamp", "date", "text", "untyped")
    expected = "timestamps, dates or texts"
    parsed_as = "timestamp"

    name: str = field(init=False)
    timestamp: str
    part: TimestampPart

    def __post_init__(self) -> None:
        check_name(self.timestamp)
        if self.part not in tuple(PARTS):
            raise ParameterError(
                f"the parts of {self.timestamp!r} must be among {', '.join(PARTS)}, got {show_value(self.part)}"
            )
        object.__setattr__(self, "name", f"{self.timestamp}.{self.part}")

    @cached_property
    def encoding_rule(self) -> TimePartRule:
        return TimePartRule(self.name, self.timestamp, self.part)

    @classmethod
    def from_declaration(cls, name: str, declared: Any) -> Sequence[TimePart]:
        parts = check_list(declared, f"the parts of {name!r}")
        if not parts:
            raise ParameterError(f"the parts of {name!r} must be among {', '.join(PARTS)}, got []")
        check_value_count(parts, len(PARTS), f"the parts of {name!r}")
        return [cls(name, part) for part in parts]

    @property
    def schema_entry(self) -> Any:
        return [self.part]

    def add_declaration(self, table: dict[str, Any]) -> None:
        table.setdefault(self.timestamp, []).append(self.part)

    @classmethod
    def draft_entry(cls, name: str, column: ColumnType, summary: Summary | None) -> Draft | None:
        texts = "" if summary is None else summary.timestamp_kind
        if not (texts or column.kind in ("timestamp", "date")):
            return None
        parts = ["weekday", "month"] if "date" in (column.kind, texts[:-1]) else ["hour", "weekday", "month"]
        what, them = (f"texts that are {texts}", "them") if texts else (f"a {column.kind}", "it")
        declared = f"{format_toml_key(name)} = {format_toml_value(parts)}"
        comment = f"{what}; declare {them} under [timestamp], as `{declared}`, to use the parts"
        return Draft(cls.table, parts, comment, used=False)

    def find_type_fault(self, given: ColumnType) -> str | None:
        if self.part == "hour" and given.kind == "date":
            return "must have timestamps for an hour to be declared, its type is 'date'"
        return super().find_type_fault(given)

    def suggest_declaration(self, given: ColumnType) -> str | None:
        return "declare its weekday, month or day" if given.kind == "date" else super().suggest_declaration(given)


@dataclass(frozen=True)
class Vector(Column):
    """A schema column of lists of `length` numbers with the same public bounds; encoded to [-1, 1] each.

    >>> Vector("v", 2, -1, 1).feature_names
    ('v[0]', 'v[1]')
    """

    table = "vector"
    accepts = ("list", "untyped")
    expected = "lists of numbers"
    parsed_as = "list"

    name: str
    length: int
    low: float
    high: float

    def __post_init__(self) -> None:
        check_name(self.name)
        check_integer(self.length, f"the length of {self.name!r}", least=1)
        if self.length > MAX_FEATURES:
            raise ParameterError(
                f"the length of {self.name!r} must be at most {MAX_FEATURES:,}, got {show_value(self.length)}"
            )
        _check_and_set_bounds(self)

    @cached_property
    def encoding_rule(self) -> NumberListRule:
        return NumberListRule(self.name, self.name, self.low, self.high, self.length)

    @classmethod
    def from_declaration(cls, name: str, declared: Any) -> Sequence[Vector]:
        check_keys(declared, required=("length", "bounds"), what=f"the vector {name!r}")
        return [cls(name, declared["length"], *check_pair(declared["bounds"], name))]

    @property
    def schema_entry(self) -> Any:
        return {"length": self.length, "bounds": [self.low, self.high]}

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Vector | None:
        if column.kind != "list" or column.length is None or column.bounds is None:
            return None
        return cls(name, column.length, *column.bounds)

    @classmethod
    def draft_entry(cls, name: str, column: ColumnType, summary: Summary | None) -> Draft | None:
        if column.kind != "list":
            return None
        length = column.length if summary is None or summary.length is None else summary.length
        bounds = None if summary is None else summary.bounds
        entry = {"length": [] if length is None else length, "bounds": [*(bounds or ())]}
        return Draft(cls.table, entry, summary.bounds_comment if summary is not None and bounds else "")

    def describe(self) -> str:
        return f"{self.length} numbers from {self.low:g} to {self.high:g}"

    def check_type(self, given: ColumnType) -> None:
        super().check_type(given)
        if given.length not in (None, self.length):
            raise DataError(
                f"column {self.name!r} must have lists of the declared length {self.length}, its type says "
                f"{given.length}"
            )


#: All kinds, in the order of their tables in a schema file and of their features.
COLUMN_KINDS: tuple[type[Column], ...] = (Numeric, Categorical, TimePart, Vector)


def expand_range(pattern: str) -> Iterator[str]:
    """Yield the column names that a pattern such as "f{08..10}" stands for; leading zeros are kept."""
    columns = 1
    for first, last in _RANGE.findall(pattern):
        if max(len(first), len(last)) > MAX_RANGE_DIGITS:
            raise ParameterError(f"a brace range must be of numbers of at most {MAX_RANGE_DIGITS} digits")
        if int(first) > int(last):
            raise ParameterError(f"a brace range must go upwards, got {show_value(pattern)}")
        columns *= int(last) - int(first) + 1
        if columns > MAX_FEATURES:
            raise ParameterError(
                f"a brace range must be of at most {MAX_FEATURES:,} columns, got {show_value(pattern)}"
            )
    braces = _RANGE.search(pattern)
    if braces is None:
        yield pattern
        return
    first, last = braces.groups()
    for number in range(int(first), int(last) + 1):
        digits = str(number).zfill(len(first))
        yield from expand_range(pattern[: braces.start()] + digits + pattern[braces.end() :])


def list_values(values: Sequence[Value]) -> str:
    """List declared values for display, the first of them if there are many."""
    return join_names([*map(format_value, values)])


def check_name(name: Any, *, what: str = "the name of a column") -> None:
    """Raise a ParameterError for an invalid column name."""
    if not isinstance(name, str) or not name:
        raise ParameterError(f"{what} must be a text that is not empty, got {show_value(name)}")
    if _RANGE.search(name):
        raise ParameterError(f"{what} must not contain a brace range, got {show_value(name)}")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise ParameterError(f"{what} must be of whole characters, got {show_value(name)}") from None


def check_list(value: Any, what: str) -> tuple[Any, ...]:
    """Return a list of a schema file as a tuple; raise a ParameterError for anything else."""
    if not isinstance(value, (list, tuple)):
        raise ParameterError(f"{what} must be a list, got {show_value(value)}")
    return tuple(value)


def check_pair(bounds: Any, name: str) -> tuple[Any, Any]:
    """Return the bounds of a column; raise a ParameterError if they are not a pair."""
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        raise ParameterError(
            f"the bounds of {name!r} must be [low, high], got {show_value(bounds)}",
            hint="declare what is known without looking at the data: values outside are moved to the nearest bound",
        )
    return bounds[0], bounds[1]


def check_keys(table: Any, *, required: Sequence[str] = (), optional: Sequence[str] = (), what: str) -> None:
    """Raise a ParameterError if a table of a schema file has missing or unknown keys."""
    if not isinstance(table, Mapping):
        keys = f" with {', '.join(required)}" if required else ""
        raise ParameterError(f"{what} must be a table{keys}, got {show_value(table)}")
    for key in required:
        if key not in table:
            raise ParameterError(f"{what} must declare {key!r}")
    for key in table:
        if key not in required and key not in optional:
            raise ParameterError(
                f"{what} must declare only {', '.join((*required, *optional))}, got {show_value(key)}",
                hint=suggest_names(key, (*required, *optional)) if isinstance(key, str) else None,
            )


def _check_and_set_bounds(column: Numeric | Vector) -> None:
    """Convert the bounds of a new, frozen column to floats; raise a ParameterError if they are invalid."""
    low, high = (check_number(bound, f"each bound of {column.name!r}") for bound in (column.low, column.high))
    # Half the width must also be finite and above 0, as numbers are divided by it.
    if not (math.isfinite(high - low) and low < high and (high - low) / 2.0 > 0.0):
        raise ParameterError(f"the bounds of {column.name!r} must be finite with low < high, got [{low:g}, {high:g}]")
    object.__setattr__(column, "low", low)
    object.__setattr__(column, "high", high)


def _is_zero_or_one_column(column: ColumnType) -> bool:
    return column.kind == "bool" or (column.kind == "number" and sorted(column.values or ()) == [0, 1])
