"""The schema: everything that is declared public about the data before a row of it is read.

On disk it is a TOML file, which docs/schema.md describes. Its table [standardization] has centers and scales of the
features that `boltdp train --standardize private` found, or that are known from elsewhere; [spent] has the cost of
bounds and categories that `boltdp schema --epsilon` found.

The features of an encoded row are the numeric columns, the categories, the parts of timestamps, the vectors, each in
the order of declaration, then the pairs of columns, and the intercept last. The steps of a number follow it: each is 1
from its place on, and 0 below.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from boltdp._files.inputs import read_text
from boltdp._files.toml_writer import format_toml_key, format_toml_value
from boltdp.encoding.declared_values import Value, check_integer, check_value_count
from boltdp.encoding.plan import PAIR_WEIGHT, EncodingPlan, count_pair_features
from boltdp.encoding.projection import Projection
from boltdp.errors import BoltdpError, ParameterError, check_choice, check_number, describe_argument, show_value
from boltdp.privacy.events.event import BudgetedEvent
from boltdp.privacy.events.noisy_counts import is_schema_draft
from boltdp.privacy.events.objective_perturbation import MAX_DOWNWEIGHTED_NORM
from boltdp.privacy.serialization import from_record, to_record
from boltdp.privacy.training_problem import check_person_rows
from boltdp.schema.columns import (
    COLUMN_KINDS,
    MAX_FEATURES,
    Categorical,
    Column,
    Numeric,
    Source,
    TimePart,
    Vector,
    check_keys,
    check_list,
    check_name,
    expand_range,
)
from boltdp.schema.pairs import check_pairs
from boltdp.schema.target import MAX_CLASSES, TARGETS, Classes, Number, Target, read_target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "Categorical",
    "Classes",
    "Column",
    "Number",
    "Numeric",
    "Projection",
    "Schema",
    "Standardization",
    "Target",
    "TimePart",
    "Vector",
    "check_size",
    "make_array_schema",
]

#: The largest number of weights of all classes together, which limits the size of a model file.
MAX_WEIGHTS = 8_000_000
#: The largest number of entries of a projection matrix: 800 MB.
MAX_PROJECTED = 100_000_000
MAX_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Standardization:
    """Public numbers that centre and scale each feature but the intercept: ((x - center) / scale) / clip_norm.

    x is the encoded value: from -1 to 1 for numbers, 0 or 1 for categories and steps. A missing number and its steps
    become 0 after centring.
    """

    centers: tuple[float, ...]
    scales: tuple[float, ...]
    clip_norm: float
    intercept: float = 1.0  #: the constant feature before it is divided by the clip norm
    source: Source = "declared"  #: "private": computed from rows within the budget of one model
    downweights: bool = False  #: rows longer than the clip norm keep their length and get a weight, for inference

    def __post_init__(self) -> None:
        check_choice(self.source, "the source of the standardization", Source)
        if not isinstance(self.downweights, bool):
            raise ParameterError(f"downweights must be true or false, got {show_value(self.downweights)}")
        for name in ("centers", "scales"):
            what = f"the {name} of the standardization"
            numbers = tuple(check_number(value, f"each of {what}") for value in check_list(getattr(self, name), what))
            object.__setattr__(self, name, numbers)
        for name in ("clip_norm", "intercept"):
            value = check_positive(getattr(self, name), f"the {name} of the standardization")
            object.__setattr__(self, name, value)
        if len(self.centers) != len(self.scales):
            raise ParameterError(
                f"a standardization must have as many scales as centers, got {len(self.scales)} and {len(self.centers)}"
            )
        if not all(-1 <= center <= 1 for center in self.centers):
            raise ParameterError("the centers of the standardization must be from -1 to 1")
        if not all(1e-9 <= scale <= 1e9 for scale in self.scales):
            raise ParameterError("the scales of the standardization must be between 1e-9 and 1e9")
        if self.downweights and self.max_row_norm > MAX_DOWNWEIGHTED_NORM:
            raise ParameterError(
                f"the norm of standardized rows must be at most {MAX_DOWNWEIGHTED_NORM:g} times the clip norm where "
                f"long rows are downweighted, got up to {self.max_row_norm:.3g} times",
                hint="declare a larger clip_norm or larger scales",
            )

    @property
    def max_row_norm(self) -> float:
        """An upper bound on the norm of standardized rows, in units of the clip norm.

        Proof: objective_perturbation.md 8
        """
        lengths = ((1.0 + abs(center)) / scale for center, scale in zip(self.centers, self.scales, strict=True))
        return math.hypot(self.intercept, *lengths) / self.clip_norm

    def to_dict(self) -> dict[str, Any]:
        """Return the standardization as it is declared in a schema; `downweights` only where it is true."""
        record = {**asdict(self), "centers": [*self.centers], "scales": [*self.scales]}
        return {name: value for name, value in record.items() if value is not False}


@dataclass(frozen=True)
class Schema:
    """The public declarations: the label and its classes, and the columns with their bounds or categories.

    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100), Categorical("sex", ("F", "M"))))
    >>> schema.feature_names, schema.dims
    (('age', 'sex=F', 'sex=M', 'intercept'), 4)
    """

    target: Target
    columns: tuple[Column, ...]
    intercept: bool = True
    clip_norm: float | None = None
    projection: Projection | None = None
    standardization: Standardization | None = None
    spent: BudgetedEvent | None = None  #: the cost of inferring it from private rows, for every model trained with it
    person_id: str | None = None  #: the column that identifies persons, if the guarantee is about persons
    max_rows_per_person: int | None = None  #: g: at most this number of rows of each person are used
    weight: Numeric | None = None  #: the column with the weights of rows, from 0 to a largest one, which counts as 1
    pairs: tuple[tuple[str, str], ...] = ()  #: columns whose features are multiplied: see `boltdp.schema.pairs`
    #: Features of an encoded row before projection, the intercept included.
    encoded_dims: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_value_count(self.columns, MAX_FEATURES, "the columns")
        # Sorted by kind, as the TOML tables are, so that a schema means the same before and after the disk.
        # The parts of a timestamp stand together there.
        places = {column.source: place for place, column in reversed([*enumerate(self.columns)])}
        unknown = next((column for column in self.columns if type(column) not in COLUMN_KINDS), None)
        if unknown is not None:
            raise ParameterError(f"the columns must be of a known kind, got {describe_argument(unknown)}")
        columns = tuple(
            sorted(self.columns, key=lambda column: (COLUMN_KINDS.index(type(column)), places[column.source]))
        )
        object.__setattr__(self, "columns", columns)
        if not columns:
            raise ParameterError("the schema must declare at least one feature column, got none")
        names = [column.name for column in columns]
        names += {column.source for column in columns if column.source != column.name}
        if self.label in names:
            raise ParameterError(f"the label must not be among the features, got {show_value(self.label)} in both")
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise ParameterError(f"each column must be declared once, got {show_value(twice)} more than once")
        self._check_privacy_unit()
        self._check_weight()
        if self.is_monotone and (self.projection is not None or self.target.class_count > 2):
            raise ParameterError(
                "a schema with a monotone column must be of two classes or of a number, without a projection, got "
                f"{self.target.describe() if self.projection is None else 'a projection'}"
            )
        if not isinstance(self.intercept, bool):
            raise ParameterError(f"intercept must be true or false, got {show_value(self.intercept)}")
        if self.clip_norm is not None:
            object.__setattr__(self, "clip_norm", check_positive(self.clip_norm, "clip_norm"))
        features = sum(column.encoding_rule.feature_count for column in columns)
        object.__setattr__(self, "pairs", check_pairs(self))
        encoded_dims = features + self._count_pair_features() + self.intercept
        check_size(features=encoded_dims, classes=1, intercept=self.intercept)
        object.__setattr__(self, "encoded_dims", encoded_dims)
        if self.standardization is not None and len(self.standardization.centers) != features:
            raise ParameterError(
                f"the standardization must be of the {features} features without the intercept, "
                f"got {len(self.standardization.centers)} centers"
            )
        if self.projection is not None and self.projection.dims > encoded_dims:
            raise ParameterError(
                f"the dims of the projection must be at most the {encoded_dims} features it projects, "
                f"got {show_value(self.projection.dims)}"
            )
        if self.projection is not None and encoded_dims * self.projection.dims > MAX_PROJECTED:
            raise ParameterError(
                f"the matrix of the projection must have at most {MAX_PROJECTED:,} numbers, "
                f"got {encoded_dims:,} times {self.projection.dims:,}"
            )
        check_size(features=self.dims, classes=self.target.kernel_class_count)

    def _check_privacy_unit(self) -> None:
        if (self.person_id is None) != (self.max_rows_per_person is None):
            raise ParameterError(
                "person_id and max_rows_per_person must be declared together",
                hint='such as person_id = "patient_id" and max_rows_per_person = 2',
            )
        if self.person_id is None:
            return
        check_name(self.person_id, what="person_id")
        if self.person_id == self.label or self.person_id in self.sources:
            raise ParameterError(
                f"the person_id must be neither the label nor a feature, got {show_value(self.person_id)}"
            )
        check_integer(self.max_rows_per_person, "max_rows_per_person", least=1)
        check_person_rows(self.max_rows_per_person)
        if self.spent is not None:
            raise ParameterError(
                "a schema with a person_id must not be inferred from private rows, of which it has counted all",
                hint="declare it from public knowledge, or leave the person_id out",
            )

    def _check_weight(self) -> None:
        weight = self.weight
        if weight is None:
            return
        if weight.name in (self.label, self.person_id, *self.sources):
            raise ParameterError(f"the weight must be a column of its own, got {show_value(weight.name)}")
        if weight.low != 0 or weight.curve or weight.monotone:
            raise ParameterError(f"the bounds of the weight must be 0 and the largest weight, got {weight.low:g}")
        if self.projection is not None:
            raise ParameterError("a schema with a weight must have no projection, got both")

    def _count_pair_features(self) -> int:
        rules = [column.encoding_rule for column in self.columns]
        return sum(count_pair_features(rules[one], rules[other]) for one, other in self.pair_positions)

    @property
    def label(self) -> str:
        """The column that a model predicts."""
        return self.target.column

    @property
    def classes(self) -> tuple[Value, ...]:
        """The declared classes; raises a ParameterError for other targets."""
        return self.target.require_classes().values

    @property
    def without_person_limit(self) -> Schema:
        """The schema without a limit of rows per person, so that all rows are used, as of public data."""
        return replace(self, person_id=None, max_rows_per_person=None)

    @property
    def dims(self) -> int:
        """The number of features of the model: after the projection, including the intercept."""
        return self.encoded_dims if self.projection is None else self.projection.dims

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the data that are read, each once, without the label."""
        return tuple(dict.fromkeys(column.source for column in self.columns))

    @property
    def training_only_columns(self) -> tuple[Column, ...]:
        """The columns that only training reads: the label, and the weight if there is one."""
        return (self.target.label_column, *([] if self.weight is None else [self.weight]))

    @property
    def training_sources(self) -> tuple[str, ...]:
        """The columns of the data that training reads, each once."""
        return (*self.sources, *(column.source for column in self.training_only_columns))

    @property
    def feature_names(self) -> tuple[str, ...]:
        if self.projection is not None:
            return tuple(f"projected[{i}]" for i in range(self.projection.dims))
        names = [name for column in self.columns for name in column.feature_names]
        for one, other in self.encoding.pair_sides:
            names += [f"{first} & {second}" for first in one.feature_names for second in other.feature_names]
        return (*names, "intercept") if self.intercept else tuple(names)

    @property
    def column_feature_count(self) -> int:
        """The number of features of columns, without those of pairs and the intercept: those to standardize."""
        return sum(column.encoding_rule.feature_count for column in self.columns)

    @property
    def pair_positions(self) -> tuple[tuple[int, int], ...]:
        """The places among the columns of those of each pair."""
        if not self.pairs:
            return ()
        places = {column.name: place for place, column in enumerate(self.columns)}
        return tuple((places[one], places[other]) for one, other in self.pairs)

    @property
    def largest_norm(self) -> float:
        """The largest norm that an encoded row can have before it is divided by `row_norm`, if nothing is centred."""
        squares = [column.encoding_rule.squared_norm for column in self.columns]
        rules = [column.encoding_rule for column in self.columns]
        for one, other in self.pair_positions:
            squares.append(PAIR_WEIGHT**2 * rules[one].pair_squared_norm * rules[other].pair_squared_norm)
        return math.sqrt(sum(squares) + self.intercept)

    @property
    def row_norm(self) -> float:
        """The norm that encoded rows are divided by, before they are clipped to norm 1."""
        if self.standardization is not None:
            return self.standardization.clip_norm
        return self.largest_norm if self.clip_norm is None else self.clip_norm

    @property
    def feature_clip_norm(self) -> float:
        """The clip norm of the encoded features of columns, before any division."""
        longest, declared = math.sqrt(sum(column.encoding_rule.squared_norm for column in self.columns)), self.clip_norm
        if declared is None:
            return longest
        # A 1 beside the features is inside the declared norm, unless there is no room for it.
        return min(longest, math.sqrt(declared**2 - 1) if self.intercept and declared > 1 else declared)

    @property
    def numeric_feature_count(self) -> int:
        """The number of features that are numbers, not categories or steps."""
        return sum(column.encoding_rule.number_count for column in self.columns)

    @property
    def has_private_curves(self) -> bool:
        """Whether the steps of curves are at quantiles that were found within the budget of one model."""
        return any(isinstance(column, Numeric) and column.curve_source == "private" for column in self.columns)

    @property
    def is_monotone(self) -> bool:
        """Whether scores must follow some column without ever falling, or without ever rising."""
        return any(column.encoding_rule.direction for column in self.columns)

    @property
    def intercept_value(self) -> float:
        """The value of the intercept's feature in an encoded row."""
        return (1.0 if self.standardization is None else self.standardization.intercept) / self.row_norm

    @property
    def encoding(self) -> EncodingPlan:
        """The plan by which cells become features: a rule per column, with centres and factors."""
        rules = tuple(column.encoding_rule for column in self.columns)
        features, unit = self.column_feature_count, 1.0 / self.row_norm
        centers, factors = np.zeros(features), np.full(features, unit)
        if self.standardization is not None:
            centers, factors = np.array(self.standardization.centers), unit / np.array(self.standardization.scales)
        label, constant = self.target.label_column.encoding_rule, self.intercept_value if self.intercept else None
        reading, weight = self.target.label_reading, None if self.weight is None else self.weight.encoding_rule
        return EncodingPlan(
            label,
            rules,
            centers,
            factors,
            constant,
            self.projection,
            reading,
            weight,
            self.downweights,
            self.pair_positions,
            PAIR_WEIGHT * unit,
        )

    @property
    def downweights(self) -> bool:
        """Whether rows longer than the clip norm keep their length and get a smaller weight instead."""
        return self.standardization is not None and self.standardization.downweights

    @property
    def unscaled(self) -> Schema:
        """The schema without scaling, projection, pairs and intercept; its features are those to standardize."""
        return replace(self, clip_norm=1.0, intercept=False, projection=None, standardization=None, pairs=())

    def to_dict(self) -> dict[str, Any]:
        """Return dictionaries and lists in the shape of the TOML file. The order of keys is the order of features."""
        tables: dict[str, dict[str, Any]] = {kind.table: {} for kind in COLUMN_KINDS}
        for column in self.columns:
            column.add_declaration(tables[column.table])
        standardized = self.standardization
        declared: dict[str, Any] = {
            **self.target.to_dict(),
            "person_id": self.person_id,
            "max_rows_per_person": self.max_rows_per_person,
            "intercept": self.intercept,
            "clip_norm": self.clip_norm,
            "pairs": [[*pair] for pair in self.pairs] or None,
            "weight": self.weight and {"column": self.weight.name, "bounds": [self.weight.low, self.weight.high]},
            **{name: table or None for name, table in tables.items()},
            "projection": self.projection and {"dims": self.projection.dims, "seed": self.projection.seed},
            "standardization": standardized and standardized.to_dict(),
            "spent": None if self.spent is None else to_record(self.spent),
        }
        return {key: value for key, value in declared.items() if value is not None}

    @classmethod
    def from_dict(cls, declared: Mapping[str, Any]) -> Schema:
        """Make a schema from dictionaries and lists in the shape of the TOML file; brace ranges are expanded."""
        if isinstance(declared, Mapping) and "undecided" in declared:
            raise ParameterError(_UNDECIDED, hint=_UNDECIDED_HINT)
        check_keys(declared, optional=_KEYS, what="the schema")
        columns: list[Column] = []
        features = 0
        for kind in COLUMN_KINDS:
            for name, entry in _expand_table(declared, kind.table):
                columns += (made := kind.from_declaration(name, entry))
                features += sum(column.encoding_rule.feature_count for column in made)
                check_size(features=features, classes=1)  # before they exhaust the memory
        projection = declared.get("projection")
        if projection is not None:
            check_keys(projection, required=("dims", "seed"), what="the projection")
            projection = Projection(projection["dims"], projection["seed"])
        standardization = declared.get("standardization")
        if standardization is not None:
            fields = ("centers", "scales", "clip_norm", "intercept")
            check_keys(standardization, required=fields, optional=("source", "downweights"), what="the standardization")
            standardization = Standardization(**standardization)
        return cls(
            read_target(declared),
            tuple(columns),
            projection=projection,
            standardization=standardization,
            weight=read_weight(declared.get("weight")),
            spent=_read_spent(declared.get("spent")),
            pairs=declared.get("pairs", ()),
            **{name: declared[name] for name in _PLAIN_KEYS if name in declared},
        )

    @classmethod
    def from_any(cls, declared: Schema | Mapping[str, Any] | str | Path) -> Schema:
        """Return a schema from a schema, the path of a TOML file, or a dictionary in the shape of one."""
        if isinstance(declared, Schema):
            return declared
        if isinstance(declared, Mapping):
            return cls.from_dict(declared)
        if isinstance(declared, (str, Path)):
            return cls.load(declared)
        # Its value is not shown: it may be data, by mistake.
        raise ParameterError(
            "a schema must be a Schema, the path of a TOML file or a dictionary in the shape of one, "
            f"got {describe_argument(declared)}"
        )

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        try:
            text = read_text(path, most=MAX_BYTES)
        except BoltdpError as fault:
            raise ParameterError(f"the schema {str(path)!r} cannot be read: {fault}") from None
        return cls.from_toml(text)

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        try:
            declared = tomllib.loads(text)
        except tomllib.TOMLDecodeError as fault:
            raise ParameterError(f"the schema must be TOML: {fault}") from None
        except RecursionError:
            raise ParameterError("the schema must not be nested so deeply") from None
        except ValueError:  # a number of thousands of digits, or a date that is none
            raise ParameterError("the schema must be TOML, with numbers that can be read") from None
        return cls.from_dict(declared)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_toml(), "utf-8")

    def to_toml(self) -> str:
        """Return TOML text that `from_toml` reads back as the same schema."""
        lines = []
        for key, value in self.to_dict().items():
            if isinstance(value, dict):
                lines += ["", f"[{key}]"]
                lines += [f"{format_toml_key(name)} = {format_toml_value(entry)}" for name, entry in value.items()]
            else:
                lines.append(f"{key} = {format_toml_value(value)}")
        return "\n".join(lines) + "\n"


_TABLES = [kind.table for kind in COLUMN_KINDS]
_PLAIN_KEYS = ("person_id", "max_rows_per_person", "intercept", "clip_norm")
_TARGET_KEYS = (key for kind in TARGETS for key in (kind.key, *kind.other_keys))
_KEYS = (*_TARGET_KEYS, *_PLAIN_KEYS, "pairs", *_TABLES, "projection", "standardization", "weight", "spent")
_SIZE_HINTS = {
    "features": "leave out columns, rare categories, steps of curves or pairs, or the intercept by intercept = false",
    "weights": "each feature has a weight for each class: declare fewer of either",
}
_UNDECIDED = "the columns listed under [undecided] must each be declared in another table, or be dropped"
_UNDECIDED_HINT = f"move the ones to use to {' or '.join(f'[{table}]' for table in _TABLES)} and delete [undecided]"


def check_size(*, features: int, classes: int, intercept: bool = False) -> None:
    """Raise a ParameterError for more features, classes or weights than a schema may declare.

    `intercept` says whether one of the features is known to be the intercept.
    """
    for what, count, most in (
        ("features", features, MAX_FEATURES),
        ("classes", classes, MAX_CLASSES),
        ("weights", features * classes, MAX_WEIGHTS),
    ):
        if count > most:
            counted = " with the intercept" if intercept and what == "features" else ""
            raise ParameterError(
                f"the {what} must be at most {most:,}, got {show_value(count)}{counted}", hint=_SIZE_HINTS.get(what)
            )


def make_array_schema(
    *, dims: int, classes: Sequence[Value], clip_norm: float = 1.0, intercept: bool = False
) -> Schema:
    """Return the schema of an array of features whose rows are clipped to `clip_norm`.

    The array is one vector column; its rows are divided by that norm. With an intercept the constant 1 is added to the
    divided row.
    """
    return Schema(
        Classes("label", tuple(classes)),
        (Vector("x", dims, -clip_norm, clip_norm),),
        intercept=intercept,
        clip_norm=math.sqrt(2.0) if intercept else 1.0,
    )


def check_positive(value: Any, what: str) -> float:
    """Return a finite number above 0 as a float; raise a ParameterError about `what` for anything else."""
    number = check_number(value, what)
    if not 0 < number < math.inf:
        raise ParameterError(f"{what} must be a finite number > 0, got {number:g}")
    return number


def read_weight(declared: Any) -> Numeric | None:
    """Read the column and the bounds of the weights of rows."""
    if declared is None:
        return None
    check_keys(declared, required=("column", "bounds"), what="the weight")
    bounds = check_list(declared["bounds"], "the bounds of the weight")
    if len(bounds) != 2:
        raise ParameterError(f"the bounds of the weight must be two numbers, got {show_value(list(bounds))}")
    return Numeric(declared["column"], *bounds)


def _read_spent(record: Any) -> BudgetedEvent | None:
    """Read the event and budget of the table [spent]; raise a ParameterError if they are not those of a draft."""
    if record is None:
        return None
    try:
        spent = from_record(BudgetedEvent, record)
    except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as fault:
        raise ParameterError(
            f"what the schema has [spent] cannot be read: {fault}",
            hint="leave that table as `boltdp schema --epsilon` wrote it",
        ) from None
    if spent.budget is None or not is_schema_draft(spent.event):
        raise ParameterError("what the schema has [spent] must be a budget and noisy counts")
    return spent


def _expand_table(declared: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and entry of each column in a table of a schema file, with brace ranges expanded."""
    table = declared.get(kind, {})
    if not isinstance(table, Mapping):
        raise ParameterError(f"{kind} must be a table of columns, got {show_value(table)}")
    for pattern, value in table.items():
        if not isinstance(pattern, str):
            raise ParameterError(f"the name of a column must be a text that is not empty, got {show_value(pattern)}")
        yield from ((name, value) for name in expand_range(pattern))
