"""The columns that a schema declares: what values they may have, and how many features they give."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from boltdp._files.toml import toml_key, toml_value
from boltdp.encoding.timestamps import PARTS, Part
from boltdp.encoding.values import Value, check_values, format_value
from boltdp.errors import ParameterError, shown

if TYPE_CHECKING:
    from boltdp.schema.check import CheckedColumn
    from boltdp.schema.source_columns import ColumnType, Kind
    from boltdp.schema.summary import Summary

#: Features of an encoded row, at most, and so columns, categories of one and numbers of a vector: a schema of a few
#: bytes must not ask for more memory than there is.
MOST_FEATURES = 100_000
#: Places of a curve, at most.
MOST_PLACES = 64
#: Digits of a number in a brace range, at most.
MOST_RANGE_DIGITS = 18

#: From below a place of a curve to above it.
STEP_HEIGHT = 0.5

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")


@dataclass(frozen=True)
class Draft:
    """What a drafted schema says of a column: its entry in a table, as TOML has it, and a comment.

    >>> Draft("numeric", [0, 1], "a guess").write("age"), Draft("vector", [], "a key", used=False).write("x")
    ('age = [0, 1]  # a guess', '# x = []  # a key')
    """

    table: str
    entry: Any
    comment: str = ""
    used: bool = True  #: else it is a comment as a whole

    def write(self, name: str) -> str:
        """Its line in the file."""
        comment = f"  # {self.comment}" if self.comment else ""
        return f"{'' if self.used else '# '}{toml_key(name)} = {toml_value(self.entry)}{comment}"


@dataclass(frozen=True)
class Numeric:
    """A column of numbers with public bounds; encoded to [-1, 1].

    A curve has a step at each of its places, beside the number itself: a feature that is lower below it and higher from
    there on, by half of what a category is worth, since there are many of them; around 0, so that rows stay short.

    >>> Numeric("age", 0, 100).names
    ('age',)
    >>> Numeric("age", 0, 100, curve=(18, 65)).names
    ('age', 'age>=18', 'age>=65')
    """

    name: str
    low: float
    high: float
    curve: tuple[float, ...] = ()  #: the places of its steps, increasing, strictly inside the bounds

    def __post_init__(self) -> None:
        check_name(self.name)
        _set_bounds(self)
        _set_curve(self)

    @property
    def source(self) -> str:
        """The column of the data that it is read from."""
        return self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features it gives."""
        return (self.name, *(f"{self.name}>={repr(place).removesuffix('.0')}" for place in self.curve))

    @property
    def squared_norm(self) -> float:
        """The most it can add to the squared norm of an encoded row."""
        return 1.0 + len(self.curve) * (STEP_HEIGHT / 2.0) ** 2

    @property
    def indicators(self) -> int:
        """How many of its features, the last ones, are 0 or 1 instead of numbers."""
        return len(self.curve)

    @property
    def entry(self) -> Any:
        """What a schema file says of it."""
        bounds = [self.low, self.high]
        return {"bounds": bounds, "curve": [*self.curve]} if self.curve else bounds

    table: ClassVar = "numeric"  #: of a schema file
    parsed_as: ClassVar[Kind | None] = "number"  #: what its cells are read as where the source has no type

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Numeric | None:
        """The column that the source declares, if that is enough for one of numbers."""
        if _is_flag(column):
            return cls(name, 0, 1)
        if column.kind == "number" and column.bounds is not None and column.values is None:
            return cls(name, *column.bounds)
        return None

    @classmethod
    def infer(cls, name: str, column: ColumnType, summary: Summary | None) -> Draft | None:  # noqa: ARG003
        """What a draft says of a column of numbers; None if it is of another kind."""
        if not (column.kind == "number" or (column.kind == "untyped" and summary is not None and summary.numeric)):
            return None
        if summary is not None and summary.bounds is not None:
            return Draft(cls.table, [*summary.bounds], summary.bounds_comment)
        return Draft(cls.table, [], "a key: drop it?" if column.key else "[low, high]")

    def find_type_fault(self, column: ColumnType) -> str | None:
        """Why cells of this type cannot be read, after "it"; None if they can."""
        return _refuse_kinds(column, ("number", "bool", "untyped"), "numbers")

    def start_summary(self) -> Summary:
        """An empty summary that counts what the column is checked for."""
        from boltdp.schema.summary import Histogram, Summary  # only here: it needs Arrow

        return Summary(histogram=Histogram.between(self.low, self.high))

    def check_summary(self, summary: Summary) -> CheckedColumn:
        """Compare a summary with what is declared."""
        from boltdp.schema.check import CheckedColumn  # only here: it needs Arrow

        return CheckedColumn.of_numbers(self.name, self.table, summary, self.low, self.high)


@dataclass(frozen=True)
class Categorical:
    """A column of texts, numbers or booleans with public categories; encoded one-hot.

    >>> Categorical("sex", ("F", "M")).names
    ('sex=F', 'sex=M')
    """

    name: str
    categories: tuple[Value, ...]

    def __post_init__(self) -> None:
        check_name(self.name)
        check_count(self.categories, MOST_FEATURES, f"the categories of {self.name!r}")
        object.__setattr__(self, "categories", check_values(self.categories, what=f"the categories of {self.name!r}"))
        if not self.categories:
            raise ParameterError(
                f"the categories of {self.name!r} must be a list of values, got []",
                hint="name those to tell apart, or drop the column",
            )

    @property
    def source(self) -> str:
        """The column of the data that it is read from."""
        return self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features it gives."""
        return tuple(f"{self.name}={format_value(category)}" for category in self.categories)

    @property
    def squared_norm(self) -> float:
        """The most it can add to the squared norm of an encoded row."""
        return 1.0

    @property
    def indicators(self) -> int:
        """How many of its features, the last ones, are 0 or 1 instead of numbers."""
        return len(self.categories)

    @property
    def entry(self) -> Any:
        """What a schema file says of it."""
        return [*self.categories]

    table: ClassVar = "categorical"
    parsed_as: ClassVar[Kind | None] = None

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Categorical | None:
        """The column that the source declares, if that is enough for a categorical one."""
        if column.values is None or column.kind == "list" or _is_flag(column):
            return None
        return cls(name, column.values)

    @classmethod
    def infer(cls, name: str, column: ColumnType, summary: Summary | None) -> Draft | None:  # noqa: ARG003
        """What a draft says of a categorical column; None if it is of another kind."""
        if summary is None:
            return Draft(cls.table, [], '["value", ...]') if column.kind == "text" else None
        if summary.timestamps or not (column.kind == "text" or (column.kind == "untyped" and not summary.numeric)):
            return None
        return Draft(cls.table, [*summary.categories], "" if summary.categories else '["value", ...]')

    def find_type_fault(self, column: ColumnType) -> str | None:
        """Why cells of this type cannot be read, after "it"; None if they can."""
        return _refuse_kinds(column, ("number", "bool", "text", "untyped"), "texts, numbers or booleans")

    def start_summary(self) -> Summary:
        """An empty summary that counts what the column is checked for."""
        from boltdp.schema.summary import declared_summary  # only here: it needs Arrow

        return declared_summary(self.categories)

    def check_summary(self, summary: Summary) -> CheckedColumn:
        """Compare a summary with what is declared."""
        from boltdp.schema.check import CheckedColumn  # only here: it needs Arrow

        return CheckedColumn.of_values(self.name, self.table, summary)


@dataclass(frozen=True)
class TimePart(Categorical):
    """A part of a column of timestamps, such as the hour; its categories are fixed. See `boltdp.encoding.timestamps`.

    >>> TimePart("admitted", "weekday").names[:2]
    ('admitted.weekday=Mon', 'admitted.weekday=Tue')
    """

    name: str = field(init=False)
    categories: tuple[Value, ...] = field(init=False, repr=False)
    timestamp: str
    part: Part

    def __post_init__(self) -> None:
        check_name(self.timestamp)
        if self.part not in tuple(PARTS):
            raise ParameterError(
                f"the parts of {self.timestamp!r} must be among {', '.join(PARTS)}, got {shown(self.part)}"
            )
        object.__setattr__(self, "name", f"{self.timestamp}.{self.part}")
        object.__setattr__(self, "categories", PARTS[self.part])

    @property
    def source(self) -> str:
        """The column of the data that it is read from."""
        return self.timestamp

    table: ClassVar = "timestamp"
    parsed_as: ClassVar[Kind | None] = "timestamp"

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> None:  # noqa: ARG003
        """No source declares which parts to use."""
        return

    @classmethod
    def infer(cls, name: str, column: ColumnType, summary: Summary | None) -> Draft | None:
        """What a draft says of timestamps and dates: which parts can be declared; None if it is of another kind."""
        texts = "" if summary is None else summary.timestamps
        if not (texts or column.kind in ("timestamp", "date")):
            return None
        parts = ["weekday", "month"] if "date" in (column.kind, texts[:-1]) else ["hour", "weekday", "month"]
        what, them = (f"texts that are {texts}", "them") if texts else (f"a {column.kind}", "it")
        declared = f"{toml_key(name)} = {toml_value(parts)}"
        comment = f"{what}; declare {them} under [timestamp], as `{declared}`, to use the parts"
        return Draft(cls.table, parts, comment, used=False)

    def find_type_fault(self, column: ColumnType) -> str | None:
        """Why cells of this type cannot be read, after "it"; None if they can."""
        if self.part == "hour" and column.kind == "date":
            return "must have timestamps for an hour to be declared, its type is 'date'"
        return _refuse_kinds(column, ("timestamp", "date", "text", "untyped"), "timestamps, dates or texts")

    def start_summary(self) -> Summary:
        """An empty summary that counts what the column is checked for."""
        from boltdp.encoding.encode import PartCoder  # only here: it needs Arrow
        from boltdp.schema.summary import declared_summary

        return declared_summary(self.categories, PartCoder(self.part))


@dataclass(frozen=True)
class Vector:
    """A column that holds a list of `length` numbers, all with the same public bounds; encoded to [-1, 1] each.

    >>> Vector("v", 2, -1, 1).names
    ('v[0]', 'v[1]')
    """

    name: str
    length: int
    low: float
    high: float

    def __post_init__(self) -> None:
        check_name(self.name)
        check_int(self.length, f"the length of {self.name!r}", least=1)
        if self.length > MOST_FEATURES:
            raise ParameterError(
                f"the length of {self.name!r} must be at most {MOST_FEATURES:,}, got {shown(self.length)}"
            )
        _set_bounds(self)

    @property
    def source(self) -> str:
        """The column of the data that it is read from."""
        return self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features it gives."""
        return tuple(f"{self.name}[{i}]" for i in range(self.length))

    @property
    def squared_norm(self) -> float:
        """The most it can add to the squared norm of an encoded row."""
        return float(self.length)

    @property
    def indicators(self) -> int:
        """How many of its features, the last ones, are 0 or 1 instead of numbers."""
        return 0

    @property
    def entry(self) -> Any:
        """What a schema file says of it."""
        return {"length": self.length, "bounds": [self.low, self.high]}

    table: ClassVar = "vector"
    parsed_as: ClassVar[Kind | None] = "list"

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Vector | None:
        """The column that the source declares, if that is enough for a vector."""
        if column.kind != "list" or column.length is None or column.bounds is None:
            return None
        return cls(name, column.length, *column.bounds)

    @classmethod
    def infer(cls, name: str, column: ColumnType, summary: Summary | None) -> Draft | None:  # noqa: ARG003
        """What a draft says of a column of lists; None if it is of another kind."""
        if column.kind != "list":
            return None
        length = column.length if summary is None or summary.length is None else summary.length
        bounds = None if summary is None else summary.bounds
        entry = {"length": [] if length is None else length, "bounds": [*(bounds or ())]}
        return Draft(cls.table, entry, summary.bounds_comment if summary is not None and bounds else "")

    def find_type_fault(self, column: ColumnType) -> str | None:
        """Why cells of this type cannot be read, after "it"; None if they can."""
        return _refuse_kinds(column, ("list", "untyped"), "lists of numbers")

    def start_summary(self) -> Summary:
        """An empty summary that counts what the column is checked for."""
        from boltdp.schema.summary import Histogram, Summary  # only here: it needs Arrow

        return Summary(histogram=Histogram.between(self.low, self.high), length=self.length)

    def check_summary(self, summary: Summary) -> CheckedColumn:
        """Compare a summary with what is declared."""
        from boltdp.schema.check import CheckedColumn  # only here: it needs Arrow

        return CheckedColumn.of_numbers(self.name, self.table, summary, self.low, self.high)


Column: TypeAlias = Numeric | Categorical | TimePart | Vector
#: Every kind of column that a schema can declare.
COLUMN_KINDS: tuple[type[Column], ...] = (Numeric, Categorical, TimePart, Vector)


def _is_flag(column: ColumnType) -> bool:
    return column.kind == "bool" or (column.kind == "number" and sorted(column.values or ()) == [0, 1])


def _refuse_kinds(column: ColumnType, kinds: Sequence[Kind], words: str) -> str | None:
    if column.kind in kinds or ("number" in kinds and column.parsed):
        return None
    return f"must have {words}, its type is {column.kind!r}"


def spell_out(pattern: str) -> Iterator[str]:
    """The columns that a brace range stands for; the width of a leading zero is kept.

    >>> list(spell_out("f{08..10}"))
    ['f08', 'f09', 'f10']
    """
    columns = 1
    for first, last in _RANGE.findall(pattern):
        if max(len(first), len(last)) > MOST_RANGE_DIGITS:
            raise ParameterError(f"a brace range must be of numbers of at most {MOST_RANGE_DIGITS} digits")
        if int(first) > int(last):
            raise ParameterError(f"a brace range must go upwards, got {shown(pattern)}")
        columns *= int(last) - int(first) + 1
        if columns > MOST_FEATURES:
            raise ParameterError(f"a brace range must be of at most {MOST_FEATURES:,} columns, got {shown(pattern)}")
    braces = _RANGE.search(pattern)
    if braces is None:
        yield pattern
        return
    first, last = braces.groups()
    for number in range(int(first), int(last) + 1):
        digits = str(number).zfill(len(first))
        yield from spell_out(pattern[: braces.start()] + digits + pattern[braces.end() :])


def check_name(name: Any, *, what: str = "the name of a column") -> None:
    """Refuse what is no name, or stands for several."""
    if not isinstance(name, str) or not name:
        raise ParameterError(f"{what} must be a text that is not empty, got {shown(name)}")
    if _RANGE.search(name):
        raise ParameterError(f"{what} must not contain a brace range, got {shown(name)}")
    if not name.isascii():
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise ParameterError(f"{what} must be of whole characters, got {shown(name)}") from None


def check_int(value: Any, what: str, *, least: int) -> None:
    """Refuse what is no whole number, or too small."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ParameterError(f"{what} must be a whole number >= {least}, got {shown(value)}")


def check_count(values: Any, most: int, what: str) -> None:
    """Refuse more values than `most`; what has no length is counted later."""
    if hasattr(values, "__len__") and len(values) > most:
        raise ParameterError(f"{what} must be at most {most:,} values, got {len(values):,}")


def checked_number(value: Any, what: str) -> float:
    """A number of Python's or NumPy's; anything else is refused."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ParameterError(f"{what} must be a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ParameterError(f"{what} must be a number that a double can hold, got a larger one") from None


def _set_bounds(column: Numeric | Vector) -> None:
    low, high = (checked_number(bound, f"each bound of {column.name!r}") for bound in (column.low, column.high))
    # The width must be finite too, or the scale of the column would be 0.
    if not (math.isfinite(high - low) and low < high):
        raise ParameterError(f"the bounds of {column.name!r} must be finite with low < high, got [{low:g}, {high:g}]")
    object.__setattr__(column, "low", low)
    object.__setattr__(column, "high", high)


def _set_curve(column: Numeric) -> None:
    what = f"the curve of {column.name!r}"
    if not isinstance(column.curve, (list, tuple)):
        raise ParameterError(f"{what} must be a list of places, got {shown(column.curve)}")
    check_count(column.curve, MOST_PLACES, what)
    # Adding 0 makes a 0 of -0.
    places = tuple(checked_number(place, f"each place of {what}") + 0.0 for place in column.curve)
    ends = (column.low, *places, column.high)
    if not all(before < after for before, after in pairwise(ends)):
        raise ParameterError(
            f"{what} must have increasing places between the bounds {column.low:g} and {column.high:g}, "
            f"got {shown(list(column.curve))}"
        )
    object.__setattr__(column, "curve", places)
