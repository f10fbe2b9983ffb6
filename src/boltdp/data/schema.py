"""The schema: everything that is declared public about the data before a row of it is read.

On disk it is TOML:

    label = "outcome"
    classes = [0, 1]               # the first is the negative one
    intercept = true
    radius = 4.0                   # encoded rows longer than this are shortened to it

    [numeric]
    age = [0, 100]                 # values outside are moved to the nearest bound
    "f{0..783}" = [-255, 255]      # a brace range stands for many columns

    [categorical]
    sex = ["F", "M"]

    [vector]                       # columns that hold a list of numbers
    embedding = { length = 64, bounds = [-1, 1] }

    [projection]
    dims = 50
    seed = 17

    [standardization]              # found privately by `boltdp train --standardize private`, or known from elsewhere
    centers = [0.1, ...]           # of each feature, numbers counted from -1 to 1 between their bounds
    scales = [0.3, ...]
    radius = 1.5                   # of the standardized row, instead of the one above
    intercept = 0.5                # the constant feature, before it is divided by the radius
    source = "declared"            # "private" in a model's schema: paid for by its budget, and for no other model

The features of an encoded row are the numeric columns, the categories, the vectors, each in the order of
declaration, and the intercept last.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from boltdp.errors import ParameterError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Value: TypeAlias = str | int | float | bool
Source = Literal["declared", "private"]
Numbers: TypeAlias = npt.NDArray[np.float64]

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
#: How False and True are written, which are 0 and 1.
_TRUTHS = (("false", "False", "FALSE"), ("true", "True", "TRUE"))


def spellings(value: Value) -> tuple[str, ...]:
    """Texts that stand for a declared value: the one rule by which a cell matches a class or a category.

    A cell matches if its text is one of these, whatever type carries it: a column's type may be inferred from all
    its values, and one odd cell among them must not change what the others match. So the class 1 is met by the
    integer 1, the float 1.0, the texts "1" and "1.0", True, and "true" as booleans are written. Other texts are
    compared as they are: case and blanks count, and the code "01" is not the number 1.

    >>> spellings(7), spellings("F"), spellings(1e16)
    (('7', '7.0'), ('F',), ('10000000000000000', '10000000000000000.0', '1e+16'))
    >>> spellings(True)
    ('true', '1', '1.0', 'True', 'TRUE')
    """
    if isinstance(value, str):
        number = _written_number(value)
        return (value,) if number is None else tuple(dict.fromkeys((value, *_writings(number))))
    if isinstance(value, bool):
        return tuple(dict.fromkeys((_TRUTHS[value][0], *_writings(int(value)))))
    return _writings(value)


@dataclass(frozen=True)
class Matcher:
    """Which declared value a cell is: its position among `values`, by text or by number.

    >>> Matcher.of((0, 1)).texts["1"], Matcher.of(("no", "yes")).numbers
    (1, {})
    >>> Matcher.of(("false", "true")).truth(True), Matcher.of((3, 4)).truth(True)
    (1, -1)
    """

    texts: Mapping[str, int]
    numbers: Mapping[int | float, int]

    @classmethod
    def of(cls, values: Sequence[Value]) -> Matcher:
        """Build it; two values that one cell could match are refused."""
        texts: dict[str, int] = {}
        numbers: dict[int | float, int] = {}
        for index, value in enumerate(values):
            for text in spellings(value):
                if texts.setdefault(text, index) != index:
                    raise ParameterError(f"the declared values must differ, got {value!r} more than once")
                number = _written_number(text)
                if number is not None and numbers.setdefault(number, index) != index:
                    raise ParameterError(f"the declared values must differ, got {value!r} more than once")
        return cls(texts, numbers)

    def truth(self, cell: bool) -> int:
        """Position of the value that a boolean cell matches, -1 if none does."""
        return self.numbers.get(int(cell), -1)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers with public bounds; encoded to [-1, 1].

    >>> Numeric("age", 0, 100).names
    ('age',)
    """

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        _check_name(self.name)
        _set_bounds(self)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features it gives."""
        return (self.name,)

    @property
    def squared_norm(self) -> float:
        """The most it can add to the squared norm of an encoded row."""
        return 1.0


@dataclass(frozen=True)
class Categorical:
    """A column of texts, numbers or booleans with public categories; encoded one-hot.

    >>> Categorical("sex", ("F", "M")).names
    ('sex=F', 'sex=M')
    """

    name: str
    categories: tuple[Value, ...]

    def __post_init__(self) -> None:
        _check_name(self.name)
        object.__setattr__(self, "categories", _values(self.categories, what=f"the categories of {self.name!r}"))
        if not self.categories:
            raise ParameterError(f"the categories of {self.name!r} must be a list of values, got []")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features it gives."""
        return tuple(f"{self.name}={spellings(category)[0]}" for category in self.categories)

    @property
    def squared_norm(self) -> float:
        """The most it can add to the squared norm of an encoded row."""
        return 1.0


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
        _check_name(self.name)
        _check_int(self.length, f"the length of {self.name!r}", least=1)
        _set_bounds(self)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features it gives."""
        return tuple(f"{self.name}[{i}]" for i in range(self.length))

    @property
    def squared_norm(self) -> float:
        """The most it can add to the squared norm of an encoded row."""
        return float(self.length)


Column: TypeAlias = Numeric | Categorical | Vector
#: A column with the middles and factors of its features, see `Schema.transforms`.
Transform: TypeAlias = tuple[Column, Numbers, Numbers]


@dataclass(frozen=True)
class Projection:
    """Random Gaussian projection of the encoded row (the intercept included) to `dims` features.

    The seed is public: it is kept in the schema and the model.

    >>> Projection(dims=50, seed=17).dims
    50
    """

    dims: int
    seed: int

    def __post_init__(self) -> None:
        _check_int(self.dims, "the dims of the projection", least=1)
        _check_int(self.seed, "the seed of the projection", least=0)


@dataclass(frozen=True)
class Standardization:
    """Public numbers that centre and scale the features: ((x - center) / scale) / radius of each, the intercept apart.

    x is what the columns are encoded to: from -1 to 1 for numbers, 0 or 1 for categories. A missing number becomes 0
    after centring.

    >>> Standardization(centers=(0.5,), scales=(0.1,), radius=2.0).intercept
    1.0
    """

    centers: tuple[float, ...]
    scales: tuple[float, ...]
    radius: float
    intercept: float = 1.0  #: the constant feature before it is divided by the radius
    source: Source = "declared"  #: "private": found from rows within the budget of one model

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise ParameterError(
                f"the source of the standardization must be one of {', '.join(get_args(Source))}, got {self.source!r}"
            )
        for name in ("centers", "scales"):
            what = f"the {name} of the standardization"
            numbers = tuple(_number(value, f"each of {what}") for value in _list(getattr(self, name), what))
            object.__setattr__(self, name, numbers)
        for name in ("radius", "intercept"):
            value = _number(getattr(self, name), f"the {name} of the standardization")
            object.__setattr__(self, name, value)
            if not 0 < value < math.inf:
                raise ParameterError(f"the {name} of the standardization must be a finite number > 0, got {value:g}")
        if len(self.centers) != len(self.scales):
            raise ParameterError(
                f"a standardization must have as many scales as centers, got {len(self.scales)} and {len(self.centers)}"
            )
        if not all(-1 <= center <= 1 for center in self.centers):
            raise ParameterError("the centers of the standardization must be from -1 to 1")
        if not all(1e-9 <= scale <= 1e9 for scale in self.scales):
            raise ParameterError("the scales of the standardization must be between 1e-9 and 1e9")


@dataclass(frozen=True)
class Schema:
    """What is public: the label and its classes, the columns used with their bounds or categories.

    >>> schema = Schema("sick", (0, 1), (Numeric("age", 0, 100), Categorical("sex", ("F", "M"))))
    >>> schema.feature_names, schema.dims
    (('age', 'sex=F', 'sex=M', 'intercept'), 4)
    >>> round(schema.row_radius, 3)
    1.732
    """

    label: str
    classes: tuple[Value, ...]
    columns: tuple[Column, ...]
    intercept: bool = True
    radius: float | None = None
    projection: Projection | None = None
    standardization: Standardization | None = None
    #: Features of an encoded row before projection, the intercept included.
    encoded_dims: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_name(self.label, what="label")
        object.__setattr__(self, "classes", _values(self.classes, what="classes"))
        if len(self.classes) < 2:
            raise ParameterError(f"classes must be at least 2 values, got {list(self.classes)}")
        # Sorted by kind, as the TOML tables are, so that a schema means the same before and after the disk.
        columns = tuple(sorted(self.columns, key=lambda column: _KINDS.index(type(column))))
        object.__setattr__(self, "columns", columns)
        if not columns:
            raise ParameterError("the schema must declare at least one feature column, got none")
        names = [column.name for column in columns]
        if self.label in names:
            raise ParameterError(f"the label must not be among the features, got {self.label!r} in both")
        twice = [name for i, name in enumerate(names) if name in names[:i]] if len(set(names)) < len(names) else []
        if twice:
            raise ParameterError(f"each column must be declared once, got {twice[0]!r} more than once")
        if not isinstance(self.intercept, bool):
            raise ParameterError(f"intercept must be true or false, got {self.intercept!r}")
        if self.radius is not None:
            object.__setattr__(self, "radius", _number(self.radius, "radius"))
            if not 0 < self.radius < math.inf:
                raise ParameterError(f"radius must be a finite number > 0, got {self.radius:g}")
        encoded_dims = sum(len(column.names) for column in columns) + self.intercept
        object.__setattr__(self, "encoded_dims", encoded_dims)
        if self.standardization is not None and len(self.standardization.centers) != encoded_dims - self.intercept:
            raise ParameterError(
                f"the standardization must be of the {encoded_dims - self.intercept} features without the intercept, "
                f"got {len(self.standardization.centers)} centers"
            )
        if self.projection is not None and self.projection.dims > encoded_dims:
            raise ParameterError(
                f"the dims of the projection must be at most the {encoded_dims} features it projects, "
                f"got {self.projection.dims}"
            )

    @property
    def dims(self) -> int:
        """Features of a row that the model sees: after the projection, the intercept included."""
        return self.encoded_dims if self.projection is None else self.projection.dims

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features the model sees."""
        if self.projection is not None:
            return tuple(f"projected[{i}]" for i in range(self.projection.dims))
        names = [name for column in self.columns for name in column.names]
        return (*names, "intercept") if self.intercept else tuple(names)

    @property
    def largest_norm(self) -> float:
        """The largest norm that an encoded row can have before it is divided by the radius."""
        return math.sqrt(sum(column.squared_norm for column in self.columns) + self.intercept)

    @property
    def row_radius(self) -> float:
        """Encoded rows are divided by this; those longer than 1 after it are shortened to 1."""
        if self.standardization is not None:
            return self.standardization.radius
        return self.largest_norm if self.radius is None else self.radius

    @property
    def feature_radius(self) -> float:
        """The longest that encoded features can be without the intercept, before any division: rows are cut to it.

        >>> Schema("y", (0, 1), (Numeric("a", 0, 1), Numeric("b", 0, 1)), radius=1.25).feature_radius
        0.75
        """
        longest = math.sqrt(sum(column.squared_norm for column in self.columns))
        if self.radius is None:
            return longest
        # A 1 beside the features is inside the declared radius, unless there is no room for it.
        return min(longest, math.sqrt(self.radius**2 - 1) if self.intercept and self.radius > 1 else self.radius)

    @property
    def numbers(self) -> int:
        """How many features are numbers, not categories."""
        return sum(len(column.names) for column in self.columns if not isinstance(column, Categorical))

    @property
    def constant(self) -> float:
        """What the intercept's feature is in an encoded row."""
        return (1.0 if self.standardization is None else self.standardization.intercept) / self.row_radius

    def transforms(self) -> Iterator[Transform]:
        """Each column with the middles and factors of its features, which are (value - middle) * factor.

        The value is the cell, clipped to its bounds, or 0 or 1 for a category.

        >>> schema = Schema("y", (0, 1), (Numeric("age", 0, 100),), intercept=False)
        >>> list(schema.transforms())
        [(Numeric(name='age', low=0.0, high=100.0), array([50.]), array([0.02]))]
        """
        unit, at = 1.0 / self.row_radius, 0
        for column in self.columns:
            width = len(column.names)
            if self.standardization is None:
                centers, scales = np.zeros(width), np.ones(width)
            else:
                centers = np.array(self.standardization.centers[at : at + width])
                scales = np.array(self.standardization.scales[at : at + width])
            at += width
            if isinstance(column, Categorical):
                yield column, centers, unit / scales
            else:
                middle, half = (column.low + column.high) / 2.0, (column.high - column.low) / 2.0
                # Rounding must not put it outside, where a missing number would not become 0 in SQL.
                middles = np.clip(middle + half * centers, column.low, column.high)
                yield column, middles, unit / scales / half

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists in the shape of the TOML file. The order of keys is the order of features.

        >>> Schema("y", (0, 1), (Numeric("age", 0, 100),)).to_dict()["numeric"]
        {'age': [0.0, 100.0]}
        """
        tables: dict[str, dict[str, Any]] = {"numeric": {}, "categorical": {}, "vector": {}}
        for column in self.columns:
            if isinstance(column, Numeric):
                tables["numeric"][column.name] = [column.low, column.high]
            elif isinstance(column, Categorical):
                tables["categorical"][column.name] = list(column.categories)
            else:
                tables["vector"][column.name] = {"length": column.length, "bounds": [column.low, column.high]}
        declared: dict[str, Any] = {
            "label": self.label,
            "classes": list(self.classes),
            "intercept": self.intercept,
        }
        if self.radius is not None:
            declared["radius"] = self.radius
        declared.update({name: table for name, table in tables.items() if table})
        if self.projection is not None:
            declared["projection"] = {"dims": self.projection.dims, "seed": self.projection.seed}
        if self.standardization is not None:
            found = self.standardization
            declared["standardization"] = {
                "centers": list(found.centers),
                "scales": list(found.scales),
                "radius": found.radius,
                "intercept": found.intercept,
                "source": found.source,
            }
        return declared

    @classmethod
    def from_dict(cls, declared: Mapping[str, Any]) -> Schema:
        """Inverse of `to_dict`; brace ranges are spelled out.

        >>> Schema.from_dict({"label": "y", "classes": [0, 1], "numeric": {"f{0..2}": [0, 1]}}).dims
        4
        """
        _check_keys(declared, required=("label", "classes"), optional=_OPTIONAL, what="the schema")
        columns: list[Column] = []
        for name, bounds in _table(declared, "numeric"):
            columns.append(Numeric(name, *_pair(bounds, name)))
        for name, categories in _table(declared, "categorical"):
            columns.append(Categorical(name, _list(categories, f"the categories of {name!r}")))
        for name, vector in _table(declared, "vector"):
            _check_keys(vector, required=("length", "bounds"), what=f"the vector {name!r}")
            columns.append(Vector(name, vector["length"], *_pair(vector["bounds"], name)))
        projection = declared.get("projection")
        if projection is not None:
            _check_keys(projection, required=("dims", "seed"), what="the projection")
            projection = Projection(projection["dims"], projection["seed"])
        standardization = declared.get("standardization")
        if standardization is not None:
            fields = ("centers", "scales", "radius", "intercept")
            _check_keys(standardization, required=fields, optional=("source",), what="the standardization")
            standardization = Standardization(**standardization)
        return cls(
            declared["label"],
            _list(declared["classes"], "classes"),
            tuple(columns),
            intercept=declared.get("intercept", True),
            radius=declared.get("radius"),
            projection=projection,
            standardization=standardization,
        )

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read a TOML file."""
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            reason = getattr(fault, "strerror", None) or "it is not UTF-8 text"
            raise ParameterError(f"the schema {str(path)!r} cannot be read: {reason}") from None
        return cls.from_toml(text)

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        r"""Read TOML text.

        >>> Schema.from_toml('label = "y"\nclasses = ["no", "yes"]\n[numeric]\nage = [0, 100]').classes
        ('no', 'yes')
        """
        try:
            declared = tomllib.loads(text)
        except tomllib.TOMLDecodeError as fault:
            raise ParameterError(f"the schema must be TOML: {fault}") from None
        return cls.from_dict(declared)

    def save(self, path: str | Path) -> None:
        """Write a TOML file."""
        Path(path).write_text(self.to_toml(), "utf-8")

    def to_toml(self) -> str:
        """TOML text that `from_toml` reads back as the same schema.

        >>> print(Schema("y", (0, 1), (Numeric("age", 0, 100),)).to_toml())
        label = "y"
        classes = [0, 1]
        intercept = true
        <BLANKLINE>
        [numeric]
        age = [0, 100]
        <BLANKLINE>
        """
        lines = []
        for key, value in self.to_dict().items():
            if isinstance(value, dict):
                lines += ["", f"[{key}]", *(f"{toml_key(name)} = {toml_value(v)}" for name, v in value.items())]
            else:
                lines.append(f"{key} = {toml_value(value)}")
        return "\n".join(lines) + "\n"


_KINDS: tuple[type[Column], ...] = (Numeric, Categorical, Vector)
_OPTIONAL = ("intercept", "radius", "numeric", "categorical", "vector", "projection", "standardization")


def array_schema(
    *, dims: int, classes: Sequence[Value], radius: float = 1.0, intercept: bool = False, name: str = "x"
) -> Schema:
    """The schema of a plain array of features whose rows have a norm of at most `radius`.

    The array is one vector column; its rows are divided by the radius, and those that are longer are shortened
    to it. With an intercept the constant 1 joins the divided row.

    >>> array_schema(dims=3, classes=(0, 1), radius=2.0).columns
    (Vector(name='x', length=3, low=-2.0, high=2.0),)
    """
    return Schema(
        "label",
        tuple(classes),
        (Vector(name, dims, -radius, radius),),
        intercept=intercept,
        radius=math.sqrt(2.0) if intercept else 1.0,
    )


def toml_key(name: str) -> str:
    """A name as a TOML key.

    >>> toml_key("age"), toml_key("body mass")
    ('age', '"body mass"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: Any) -> str:
    """A text, number, boolean, or a list or dictionary of them in TOML.

    >>> toml_value([0.5, 1.0, True, "a"])
    '[0.5, 1, true, "a"]'
    """
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2.0**53:
        return str(int(value))
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    return repr(value)


def _writings(number: int | float) -> tuple[str, ...]:
    """All texts that a number is written as, our own first."""
    if number != int(number):
        return (repr(number),)
    whole = int(number)
    texts = [str(whole)]
    if float(whole) == whole:  # else it is no float, and that text would be another number
        texts += [f"{whole}.0", repr(float(whole))]
    if whole in (0, 1):
        texts += _TRUTHS[whole]
    if whole == 0:
        texts.append("-0.0")
    return tuple(dict.fromkeys(texts))


def _written_number(text: str) -> int | float | None:
    """The number a text writes, if that is how numbers are written: the code "01" is a text, not the number 1."""
    for truth, words in enumerate(_TRUTHS):
        if text in words:
            return truth
    try:
        number = int(text) if text.lstrip("-").isdecimal() else float(text)
        within = abs(number) < 2**63
    except ValueError:  # no number, or one of thousands of digits
        return None
    return number if within and text in _writings(number) else None


def _check_name(name: Any, *, what: str = "the name of a column") -> None:
    if not isinstance(name, str) or not name:
        raise ParameterError(f"{what} must be a text that is not empty, got {name!r}")
    if _RANGE.search(name):
        raise ParameterError(f"{what} must not contain a brace range, got {name!r}")


def _check_int(value: Any, what: str, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ParameterError(f"{what} must be a whole number >= {least}, got {value!r}")


def _number(value: Any, what: str) -> float:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ParameterError(f"{what} must be a number, got {value!r}")
    return float(value)


def _set_bounds(column: Numeric | Vector) -> None:
    low, high = (_number(bound, f"each bound of {column.name!r}") for bound in (column.low, column.high))
    # The width must be finite too, or the scale of the column would be 0.
    if not (math.isfinite(high - low) and low < high):
        raise ParameterError(f"the bounds of {column.name!r} must be finite with low < high, got [{low:g}, {high:g}]")
    object.__setattr__(column, "low", low)
    object.__setattr__(column, "high", high)


def _values(values: Iterable[Any], *, what: str) -> tuple[Value, ...]:
    plain = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    for value in plain:
        if not isinstance(value, (str, int, float)):
            raise ParameterError(f"{what} must be texts, numbers or booleans, got {value!r}")
        if not isinstance(value, str) and not abs(value) < 2**63:
            raise ParameterError(f"{what} must be numbers between -2^63 and 2^63, got {value!r}")
    try:
        Matcher.of(plain)
    except ParameterError as fault:
        raise ParameterError(f"{what}: {fault}") from None
    return plain


def _list(value: Any, what: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ParameterError(f"{what} must be a list, got {value!r}")
    return tuple(value)


def _pair(bounds: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        raise ParameterError(
            f"the bounds of {name!r} must be [low, high], got {bounds!r}",
            hint="declare what is known without looking at the data: values outside are moved to the nearest bound",
        )
    return bounds[0], bounds[1]


def _check_keys(table: Any, *, required: Sequence[str], optional: Sequence[str] = (), what: str) -> None:
    if not isinstance(table, Mapping):
        raise ParameterError(f"{what} must be a table with {', '.join(required)}, got {table!r}")
    if "undecided" in table:
        raise ParameterError(
            "the columns listed under [undecided] must each be declared numeric, categorical or vector, or be dropped",
            hint="move the ones to use to [numeric], [categorical] or [vector] and delete the [undecided] table",
        )
    for key in required:
        if key not in table:
            raise ParameterError(f"{what} must declare {key!r}")
    for key in table:
        if key not in required and key not in optional:
            raise ParameterError(f"{what} must declare only {', '.join((*required, *optional))}, got {key!r}")


def _table(declared: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Any]]:
    table = declared.get(kind, {})
    if not isinstance(table, Mapping):
        raise ParameterError(f"{kind} must be a table of columns, got {table!r}")
    for pattern, value in table.items():
        for name in _spell_out(pattern):
            yield name, value


def _spell_out(pattern: str) -> Iterator[str]:
    """The columns a brace range stands for: f{0..2} is f0, f1, f2; the width of a leading zero is kept."""
    found = _RANGE.search(pattern)
    if found is None:
        yield pattern
        return
    first, last = found.groups()
    if int(first) > int(last):
        raise ParameterError(f"a brace range must go upwards, got {pattern!r}")
    for number in range(int(first), int(last) + 1):
        digits = str(number).zfill(len(first))
        yield from _spell_out(pattern[: found.start()] + digits + pattern[found.end() :])
