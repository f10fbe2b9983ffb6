"""The target of a model: a column, its values, and the conversion of scores to predictions.

`Target` is the interface, and `TARGETS` lists its kinds. Methods that a kind does not support raise a ParameterError.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles
from boltdp._files.toml_writer import format_toml_value
from boltdp.encoding.declared_values import Matcher, Value, check_value_count, check_values, format_value
from boltdp.errors import ParameterError, check_choice, check_number, show_value
from boltdp.losses import Loss
from boltdp.privacy.training_problem import MIN_CLASS_WEIGHT
from boltdp.schema.columns import Categorical, Column, Numeric, check_list, check_name, list_values

if TYPE_CHECKING:
    from boltdp.schema.source_columns import ColumnType
    from boltdp.schema.summary import Summary

#: A probability of the second of two classes, or "prior": that class's share in the schema.
Threshold: TypeAlias = float | Literal["prior"]
#: Weights by class, or in the order of the classes; "balanced" is the inverse of the schema's prior.
ClassWeights: TypeAlias = Literal["balanced"] | Mapping[Any, float] | Sequence[float]

#: Whether the range of most labels is declared, or was found privately or, in a training without noise, exactly.
TypicalSource = Literal["declared", "private", "exact"]

MAX_CLASSES = 10_000
#: The steps of each automatic curve, by the largest number of columns with curves; with more columns there are none.
CURVE_STEPS = {5: 8, 8: 4, 30: 2}
#: The same for a number, for up to as many columns.
NUMBER_CURVE_STEPS = 8
#: The largest noise per row with automatic curves, and the largest ratio of it to the noise without them, for classes.
MAX_CURVE_NOISE, MAX_NOISE_GROWTH = 0.15, 2.75
#: The largest noise per row with automatic curves for a number: of most algorithms, and of Gaussian ones.
MAX_NUMBER_CURVE_NOISE, MAX_GAUSSIAN_CURVE_NOISE = 0.02, 0.15
#: The margin of two classes where the noise per row is above a limit, and that limit.
NOISY_MARGIN, MIN_NOISY_MARGIN = 3.0, 0.05
#: The largest noise per row with which "auto" predicts the mean of a count.
MAX_COUNT_NOISE = 0.004
#: The largest difference of the sum of a prior from 1.
PRIOR_TOLERANCE = 1e-6
#: The distance of the 0.1- and the 0.9-quantile of a normal distribution, in standard deviations.
TYPICAL_WIDTH = 2.5631
#: The largest width of bounds, in widths of the typical range.
MAX_RANGE_RATIO = 4096
#: The smallest width of bounds, and one over the largest absolute bound: squares neither under- nor overflow.
MIN_WIDTH = 1e-150
#: The smallest unit of labels in training, in spreads.
MIN_UNIT = 1 / 16


class SqlWriter(Protocol):
    """Writes the SQL expressions, in some dialect, that the prediction of a target needs."""

    def write_literal(self, value: Value) -> str: ...

    def write_constant(self, value: float) -> str: ...

    def write_maximum(self, expressions: Sequence[str]) -> str: ...


@dataclass(frozen=True)
class Target(ABC):
    """The column that a model predicts, as the schema declares it; each kind is a frozen dataclass."""

    kind: ClassVar[str]  #: its name, to which losses refer
    task: ClassVar[str]  #: the name of the task, such as classification
    predictor: ClassVar[str]  #: the name of a linear model of it
    key: ClassVar[str]  #: the key of a schema file that names the column
    other_keys: ClassVar[tuple[str, ...]]  #: the other keys that declare it
    score: ClassVar[str]  #: the name of the figure that judges it in comparisons
    numeric: ClassVar[bool] = False  #: whether its labels are numbers between bounds

    column: str

    @classmethod
    @abstractmethod
    def from_dict(cls, declared: Mapping[str, Any]) -> Target:
        """Make the target from the keys of a schema file that declare it."""

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Target | None:
        """Make the target from the type and constraints in the source; None if these do not declare one."""
        return None

    @classmethod
    def from_arguments(cls, name: str, column: ColumnType, given: Mapping[str, Any]) -> Target | None:
        """Make the target from arguments by the names of `other_keys`, or from the source; None if neither does."""
        return cls.from_type(name, column)

    @classmethod
    def draft_lines(cls, name: str, column: ColumnType, summary: Summary | None, unused: str) -> list[str]:
        """Draft the lines of a schema file that declare the target; `unused` is why its summary cannot be used."""
        return [f"{cls.key} = {format_toml_value(name)}", *(f"{key} = []" for key in cls.other_keys)]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the keys of a schema file that declare the target, with their values."""

    @property
    @abstractmethod
    def label_column(self) -> Column:
        """The column that encodes a row's label as a number for the kernel, NaN for a missing one."""

    @property
    def kernel_class_count(self) -> int:
        """The number of classes that the kernel is given; 2 for a target that is a number."""
        return self.class_count or 2

    @property
    def class_count(self) -> int:
        """The number of declared classes; 0 for a number."""
        return 0

    @property
    def label_reading(self) -> tuple[float, float]:
        """The centre and the factor by which losses read encoded labels that are numbers; 0 and 1 for classes."""
        return 0.0, 1.0

    def needs_range(self, loss: Loss) -> bool:
        """Return whether a training with this loss must first find where most labels are."""
        return False

    @abstractmethod
    def choose_curve_steps(self, columns: int, loss: Loss) -> int:
        """Return the steps of each automatic curve, by the number of columns that would have one; 0: no curves."""

    @abstractmethod
    def allows_curves(self, plain_noise: float, noise: float, *, gaussian: bool) -> bool:
        """Return whether "auto" adds curves, which raise the noise per row from `plain_noise` to `noise`.

        `gaussian` says that the noise of the algorithm is always Gaussian.
        """

    def adapt_to_loss(self, loss: Loss) -> Target:
        """Return the target with its labels scaled as this loss needs them; classes stay as they are."""
        return self

    def is_range_on_bins(self, bins: int) -> bool:
        """Return whether the typical range starts and ends at edges of this number of equal bins between the bounds."""
        return False

    def with_range(self, low: float, high: float, source: TypicalSource = "private") -> Target:
        """Return the target with the range, found from private rows, of most encoded labels, from -1 to 1."""
        raise ParameterError(f"a range of labels must be for a target with bounds, got {self.describe()}")

    def without_range(self) -> Target:
        """Return the target without a range that was found from private rows."""
        return self

    @property
    @abstractmethod
    def example_labels(self) -> tuple[Value, ...]:
        """Label values for the rows that an audit makes, including the extreme ones."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The number of declared labels in words, such as "2 classes"."""

    def describe(self) -> str:
        """Name the column and its declared values in words, for messages."""
        return f"the {self.key} {self.column!r} with {self.summary}"

    @abstractmethod
    def describe_used_labels(self, limit: int) -> str:
        """Describe the labels that training uses, at most `limit` of them; rows with others are ignored."""

    @abstractmethod
    def describe_unusable_labels(self, limit: int) -> str:
        """Complete the sentence "the label is missing or ..." for labels that training ignores."""

    @abstractmethod
    def describe_values(self) -> str:
        """List the declared labels as text."""

    @abstractmethod
    def choose_default_loss(self, *, plain: bool, noise: float | None = None) -> tuple[str, float | None]:
        """Return the name and the parameter of the loss that "auto" chooses; `plain` requests one without a margin.

        `noise` is that per row without automatic curves, once the rows and the budget are known.
        """

    def adapt_loss(self, loss: Loss, *, joint: bool) -> Loss:
        """Return the variant of a loss for this target; `joint` prefers one model of all classes to one-vs-all."""
        self.check_loss(loss)
        return loss

    @abstractmethod
    def count_weight_vectors(self, loss: Loss) -> int:
        """Return the number of weight vectors that a model with this loss has."""

    @abstractmethod
    def name_weight_vectors(self, loss: Loss) -> tuple[str, ...]:
        """Return for each weight vector the name of the class that its high scores predict."""

    @abstractmethod
    def describe_scores(self, loss: Loss) -> str:
        """Describe in words what the scores of a model with this loss are, such as log odds."""

    def count_models(self, loss: Loss) -> int:
        return self.count_weight_vectors(loss) // loss.vector_count

    def check_loss(self, loss: Loss) -> None:
        """Raise a ParameterError if the loss is for another kind of target."""
        if loss.target != self.kind:
            raise ParameterError(f"the loss {loss.name!r} must be used for {loss.target}, got {self.describe()}")

    @abstractmethod
    def predict(self, scores: Doubles, margin_threshold: float, loss: Loss) -> npt.NDArray[Any]:
        """Return the prediction for each row of scores; a single score is compared with `margin_threshold`."""

    @abstractmethod
    def depends_on_score_scale(self, margin_threshold: float) -> bool:
        """Return whether dividing all scores of a row by the same number above 1 can change the prediction."""

    @abstractmethod
    def write_prediction(self, scores: Sequence[str], margin_threshold: float, loss: Loss, sql: SqlWriter) -> str:
        """Return the SQL of the prediction, given the SQL of the scores."""

    @abstractmethod
    def to_stored_row(self) -> dict[str, Any]:
        """Return the columns of `boltdp.models` about the target, for predictions in PostgreSQL."""

    def list_facts(self, loss: Loss) -> list[tuple[str, str]]:
        """Return lines of a report: what a model with this loss predicts, and how it reads labels."""
        return []

    def find_score_units(self, loss: Loss) -> tuple[float, float]:
        """Return what a score of 0 stands for and the unit of scores, for people who read effects."""
        return 0.0, 1.0

    def probabilities(self, scores: Doubles, loss: Loss) -> Doubles:
        """Return the probability of each class for each row of scores."""
        self._raise_without_classes("probabilities")

    def resolve_class_weights(self, asked: ClassWeights) -> tuple[float, ...]:
        """Return the weight of each class, scaled to a maximum of 1."""
        self._raise_without_classes("class_weights")

    def resolve_threshold(self, threshold: Threshold, loss: Loss) -> float:
        """Return the threshold as a probability, for a model with this loss."""
        self._raise_without_classes("a threshold")

    def describe_threshold(self, threshold: float) -> str:
        """Describe in words what is predicted with this threshold."""
        self._raise_without_classes("a threshold")

    def require_classes(self, what: str = "classes") -> Classes:
        """Return the target if it has classes; raise a ParameterError otherwise, since `what` needs them."""
        self._raise_without_classes(what)

    def _raise_without_classes(self, what: str) -> NoReturn:
        """Raise a ParameterError: only targets with classes have `what`."""
        raise ParameterError(f"{what} must be for a label with classes, got {self.describe()}")


@dataclass(frozen=True)
class Classes(Target):
    """A label with two or more declared classes, of which the first is the negative one.

    >>> from boltdp.losses import Logistic
    >>> target = Classes("sick", ("no", "yes"), prior=(0.8, 0.2))
    >>> target.predict(np.array([[-1.0], [2.0]]), 0.0, Logistic())
    array(['no', 'yes'], dtype='<U3')
    """

    values: tuple[Value, ...]
    prior: tuple[float, ...] | None = None  #: the share of each class in future rows, if it is public

    kind = "classes"
    task = "classification"
    predictor = "classifier"
    key = "label"
    other_keys = ("classes", "prior")
    score = "accuracy"

    def __post_init__(self) -> None:
        check_name(self.column, what="label")
        check_value_count(self.values, MAX_CLASSES, "classes")
        object.__setattr__(self, "values", check_values(self.values, what="classes"))
        if len(self.values) < 2:
            raise ParameterError(
                f"classes must be at least 2 values, got {list(self.values)}",
                hint=None if self.values else "to predict a number, declare a target with bounds instead of a label",
            )
        if self.prior is not None:
            object.__setattr__(self, "prior", self._check_prior(self.prior))

    def _check_prior(self, prior: Any) -> tuple[float, ...]:
        shares = tuple(check_number(share, "each share of the prior") for share in check_list(prior, "the prior"))
        if len(shares) != len(self.values):
            raise ParameterError(
                f"the prior must have one share for each of the {len(self.values)} classes, got {len(shares)}"
            )
        if not all(share > 0 for share in shares) or not abs(math.fsum(shares) - 1) <= PRIOR_TOLERANCE:
            raise ParameterError(
                f"the shares of the prior must be above 0 and add up to 1, got {show_value(list(shares))}",
                hint="declare what is known without looking at the data, or leave the prior out",
            )
        return shares

    @classmethod
    def from_dict(cls, declared: Mapping[str, Any]) -> Classes:
        if "classes" not in declared:
            raise ParameterError("the schema must declare 'classes'")
        return cls(declared["label"], check_list(declared["classes"], "classes"), declared.get("prior"))

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Classes | None:
        values = (False, True) if column.kind == "bool" else column.values or ()
        return cls(name, values) if len(values) > 1 else None

    @classmethod
    def from_arguments(cls, name: str, column: ColumnType, given: Mapping[str, Any]) -> Classes | None:
        classes = given.get("classes")
        return cls.from_type(name, column) if classes is None else cls(name, classes)

    @classmethod
    def draft_lines(cls, name: str, column: ColumnType, summary: Summary | None, unused: str) -> list[str]:
        declared = cls.from_type(name, column)
        found = () if summary is None else summary.categories
        # A single class of an exact summary is for the user to complete.
        enough = summary is not None and len(found) > (summary.noise is not None)
        if declared is not None:
            classes = format_toml_value([*declared.values])
        elif enough:
            classes = f"{format_toml_value([*found])}  # the first is the negative one"
        else:
            classes = f"[]  # {f'{unused}; ' if unused else ''}at least two values; the first is the negative one"
            if column.kind in ("number", "untyped") and (summary is None or summary.is_numeric):
                classes += "; for a number, draft with --target"
        return [f"label = {format_toml_value(name)}", f"classes = {classes}"]

    def to_dict(self) -> dict[str, Any]:
        prior = {} if self.prior is None else {"prior": list(self.prior)}
        return {"label": self.column, "classes": list(self.values), **prior}

    @cached_property
    def label_column(self) -> Categorical:
        return Categorical(self.column, self.values)

    @property
    def class_count(self) -> int:
        return len(self.values)

    def choose_curve_steps(self, columns: int, loss: Loss) -> int:
        return next((steps for most, steps in CURVE_STEPS.items() if columns <= most), 0)

    def allows_curves(self, plain_noise: float, noise: float, *, gaussian: bool) -> bool:
        return noise <= MAX_CURVE_NOISE and noise <= MAX_NOISE_GROWTH * plain_noise

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes, for which one weight vector is enough."""
        return len(self.values) == 2

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(format_value(value) for value in self.values)

    @property
    def example_labels(self) -> tuple[Value, ...]:
        return self.values

    @property
    def summary(self) -> str:
        return f"{len(self.values)} classes"

    def describe_used_labels(self, limit: int) -> str:
        names = self.names if len(self.names) <= limit else (*self.names[: limit - 1], "…", self.names[-1])
        return f"classes {', '.join(names)}"

    def describe_unusable_labels(self, limit: int) -> str:
        return f"not one of the {self.describe_used_labels(limit)}; is one misspelt, or not declared?"

    def describe_values(self) -> str:
        return list_values(self.values)

    def choose_default_loss(self, *, plain: bool, noise: float | None = None) -> tuple[str, float | None]:
        if plain:
            return "logistic", None
        return "margin", NOISY_MARGIN if self.is_binary and noise is not None and noise > MIN_NOISY_MARGIN else None

    def adapt_loss(self, loss: Loss, *, joint: bool) -> Loss:
        self.check_loss(loss)
        multinomial = None if self.is_binary or not joint else loss.make_joint_loss(len(self.values))
        return loss if multinomial is None else multinomial

    def count_weight_vectors(self, loss: Loss) -> int:
        self.check_loss(loss)
        return 1 if self.is_binary and loss.vector_count == 1 else len(self.values)

    def name_weight_vectors(self, loss: Loss) -> tuple[str, ...]:
        return self.names[1:] if self.count_weight_vectors(loss) == 1 else self.names

    def describe_scores(self, loss: Loss) -> str:
        score = "log odds" if loss.softmax else "margin"
        if self.count_weight_vectors(loss) == 1:
            return f"{score} of {self.names[1]!r} against {self.names[0]!r}"
        return f"{score} of each class against {'all others' if loss.vector_count == 1 else 'the average of all'}"

    def predict(self, scores: Doubles, margin_threshold: float, loss: Loss) -> npt.NDArray[Any]:
        predicted: npt.NDArray[Any] = np.array(self.values)[self.predict_indices(scores, margin_threshold)]
        return predicted

    def predict_indices(self, scores: Doubles, margin_threshold: float) -> npt.NDArray[np.intp]:
        """Return the index of the predicted class for each row of scores; the second of two is above the threshold."""
        chosen: npt.NDArray[np.intp] = np.argmax(scores, axis=1)
        return (scores[:, 0] > margin_threshold).astype(np.intp) if scores.shape[1] == 1 else chosen

    def depends_on_score_scale(self, margin_threshold: float) -> bool:
        return margin_threshold != 0

    def write_prediction(self, scores: Sequence[str], margin_threshold: float, loss: Loss, sql: SqlWriter) -> str:
        names = [sql.write_literal(value) for value in np.array(self.values).tolist()]
        if len(scores) == 1:
            least = sql.write_constant(margin_threshold) if margin_threshold else 0
            return f"CASE WHEN {scores[0]} > {least}\nTHEN {names[1]} ELSE {names[0]} END"
        # The first class with the largest score, as numpy.argmax.
        cases = " ".join(f"WHEN {score} THEN {name}" for score, name in zip(scores, names, strict=True))
        return f"CASE {sql.write_maximum(scores)} {cases} END"

    def to_stored_row(self) -> dict[str, Any]:
        return {"classes": list(self.names), "numbers": None}

    def probabilities(self, scores: Doubles, loss: Loss) -> Doubles:
        odds = loss.compute_probabilities(scores)
        if odds is None:
            raise ParameterError(f"a model with the loss {loss.name!r} gives no probabilities; use its margins")
        if odds.shape[1] == 1:
            odds = np.hstack([1.0 - odds, odds])
        # If all one-vs-all probabilities are 0, all classes are equally likely.
        odds[odds.sum(axis=1) == 0] = 1.0
        shares: Doubles = odds / odds.sum(axis=1, keepdims=True)
        return shares

    def resolve_class_weights(self, asked: ClassWeights) -> tuple[float, ...]:
        """Return the weight of each class, scaled to a maximum of 1, since only their ratios matter.

        Classes missing in a mapping have the weight 1. Rows are not counted: "balanced" needs the prior.
        """
        given = [check_number(one, "each of the class_weights") for one in self._order_class_weights(asked)]
        if not all(0 < weight < math.inf for weight in given):
            raise ParameterError("class_weights must be finite numbers > 0")
        weights = tuple(weight / max(given) for weight in given)
        if min(weights) < MIN_CLASS_WEIGHT:
            raise ParameterError(f"class_weights must be within a factor of {1 / MIN_CLASS_WEIGHT:,.0f}")
        return weights

    def _order_class_weights(self, asked: ClassWeights) -> Sequence[float]:
        if isinstance(asked, Mapping):
            weights, matcher = [1.0] * len(self.values), Matcher.from_values(self.values)
            for value, weight in zip(check_values(asked, what="class_weights"), asked.values(), strict=True):
                index = matcher.texts.get(format_value(value))
                if index is None:
                    raise ParameterError(f"class_weights must be of declared classes, got {show_value(value)}")
                weights[index] = weight
            return weights
        if isinstance(asked, str):
            if asked != "balanced":
                raise ParameterError(
                    f"class_weights must be 'balanced' or a weight for each class, got {show_value(asked)}"
                )
            if self.prior is None:
                raise ParameterError(
                    "class_weights 'balanced' must follow from the schema's prior, which it does not declare",
                    hint="`prior = [0.89, 0.11]` says the share of each class, if that is public: "
                    "rows are never counted",
                )
            return [1.0 / share for share in self.prior]
        if len(asked) != len(self.values):
            raise ParameterError(
                f"class_weights must be one for each of the {len(self.values)} classes, got {len(asked)}"
            )
        return asked

    def resolve_threshold(self, threshold: Threshold, loss: Loss) -> float:
        if not self.is_binary:
            raise ParameterError(f"a threshold must be for a model of 2 classes, got {len(self.values)}")
        if loss.vector_count != 1 or not loss.probabilistic:
            raise ParameterError(
                f"a threshold must be for a model that gives probabilities, got the loss {loss.name!r}",
                hint="--loss logistic has them",
            )
        if threshold == "prior":
            if self.prior is None:
                raise ParameterError(
                    "the threshold 'prior' must be declared in the schema, which has no prior",
                    hint="`prior = [0.89, 0.11]` says the share of each class, if that is public",
                )
            threshold = self.prior[1]
        probability = check_number(threshold, "threshold")
        if not 0 < probability < 1:
            raise ParameterError(f"threshold must be between 0 and 1, without these, got {probability:g}")
        loss.invert_link(probability)  # raises an error if the loss cannot reach it
        return probability

    def describe_threshold(self, threshold: float) -> str:
        return f"{self.names[1]!r} where its probability exceeds {threshold:g}"

    def require_classes(self, what: str = "classes") -> Classes:
        return self

    def sort_classes(self) -> Classes:
        """Return the target with its classes and prior in increasing order of the classes, as in scikit-learn."""
        order = np.unique(np.array(self.values), return_index=True)[1]
        prior = None if self.prior is None else tuple(self.prior[index] for index in order)
        return replace(self, values=tuple(self.values[index] for index in order), prior=prior)


@dataclass(frozen=True)
class Number(Target):
    """A number between declared bounds; labels outside are moved to the bound.

    >>> from boltdp.losses import Robust
    >>> target = Number("price", 0, 20_000, typical=(500, 12_000))
    >>> target.predict(np.array([[0.0], [9.0]]), 0.0, Robust())
    array([ 6250., 20000.])
    """

    low: float
    high: float
    typical: tuple[float, float] | None = None  #: the range of most labels: about from the 0.1- to the 0.9-quantile
    typical_source: TypicalSource = "declared"  #: "private": found within the budget of one model
    unit: float = 1.0  #: of labels and scores in training, in spreads of the labels
    counts: bool = False  #: whether it is declared to count something, such as visits, of which many rows have none

    kind = "number"
    task = "regression"
    predictor = "regression"
    key = "target"
    other_keys = ("bounds", "typical", "typical_source", "unit", "counts")
    score = "R2"
    numeric = True

    def __post_init__(self) -> None:
        check_name(self.column, what="target")
        column = Numeric(self.column, self.low, self.high)  # raises an error for bounds that are none
        object.__setattr__(self, "low", column.low)
        object.__setattr__(self, "high", column.high)
        width, largest = self.high - self.low, max(abs(self.low), abs(self.high))
        if not (width >= MIN_WIDTH and largest <= 1 / MIN_WIDTH and width > 2**20 * math.ulp(largest)):
            raise ParameterError(
                f"the bounds of a target must be distinct in double precision, got {self.low:g} and {self.high:g}"
            )
        if self.typical is not None:
            object.__setattr__(self, "typical", self._check_typical(self.typical))
        check_choice(self.typical_source, "typical_source", TypicalSource)
        if self.typical is None and self.typical_source != "declared":
            raise ParameterError(
                f"typical_source must be 'declared' without a typical range, got {self.typical_source!r}"
            )
        if not isinstance(self.counts, bool):
            raise ParameterError(f"counts must be true or false, got {show_value(self.counts)}")
        if self.counts and self.low != 0:
            raise ParameterError(f"the bounds of a target that counts must begin at 0, got {self.low:g}")
        object.__setattr__(self, "unit", check_number(self.unit, "unit"))
        if not MIN_UNIT <= self.unit <= 1:
            raise ParameterError(f"unit must be from {MIN_UNIT:g} to 1, got {self.unit:g}")

    def _check_typical(self, typical: Any) -> tuple[float, float]:
        pair = tuple(check_number(end, "each end of the typical range") for end in check_list(typical, "typical"))
        if len(pair) != 2 or not self.low <= pair[0] < pair[1] <= self.high:
            raise ParameterError(
                f"typical must be two increasing numbers within the bounds {self.low:g} and {self.high:g}, "
                f"got {show_value(list(pair))}"
            )
        if pair[1] - pair[0] < (self.high - self.low) / MAX_RANGE_RATIO:
            raise ParameterError(
                f"the bounds must be at most {MAX_RANGE_RATIO:,} times as wide as the typical range",
                hint="narrower bounds cost nothing but clipped values",
            )
        return pair[0], pair[1]

    @classmethod
    def from_dict(cls, declared: Mapping[str, Any]) -> Number:
        if "bounds" not in declared:
            raise ParameterError(
                f"the schema must declare the bounds of the target {show_value(declared['target'])}",
                hint="`bounds = [0, 20000]`: what a value can be; values outside are moved to the bound",
            )
        bounds = check_list(declared["bounds"], "bounds")
        if len(bounds) != 2:
            raise ParameterError(f"bounds must be two numbers, got {show_value(list(bounds))}")
        return cls(declared["target"], *bounds, **{name: declared[name] for name in cls._OPTIONAL if name in declared})

    @classmethod
    def from_type(cls, name: str, column: ColumnType) -> Number | None:
        if column.kind != "number":
            return None
        values = sorted(value for value in column.values or () if not isinstance(value, str))
        low, high = column.bounds or ((values[0], values[-1]) if values else (0, 0))
        return cls(name, low, high) if low < high else None

    @classmethod
    def from_arguments(cls, name: str, column: ColumnType, given: Mapping[str, Any]) -> Number | None:
        bounds = given.get("bounds")
        declared = cls.from_type(name, column) if bounds is None else cls(name, *bounds)
        return declared and replace(declared, **{key: given[key] for key in ("typical", "counts") if key in given})

    @classmethod
    def draft_lines(cls, name: str, column: ColumnType, summary: Summary | None, unused: str) -> list[str]:
        declared = cls.from_type(name, column)
        typical = None if summary is None else summary.typical
        if declared is not None:
            bounds = format_toml_value([declared.low, declared.high])
        elif summary is not None and summary.bounds is not None:
            bounds = format_toml_value([*summary.bounds])
            bounds += f"  # {summary.bounds_comment}" if summary.bounds_comment else ""
        else:
            bounds = f"[]  # {f'{unused}; ' if unused else ''}[low, high]: predictions and labels are clipped to them"
        lines = [f"target = {format_toml_value(name)}", f"bounds = {bounds}"]
        if typical is None:
            return [*lines, "# typical = [low, high]  # of most values, if that is public; else training finds it"]
        return [*lines, f"typical = {format_toml_value([*typical])}  # about 80 % of the values"]

    _OPTIONAL: ClassVar[tuple[str, ...]] = ("typical", "typical_source", "unit", "counts")

    def to_dict(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self._OPTIONAL}
        chosen = {name: value for name, value in given.items() if value != getattr(type(self), name)}
        if self.typical is not None:
            chosen["typical"] = list(self.typical)
        return {"target": self.column, "bounds": [self.low, self.high], **chosen}

    @cached_property
    def label_column(self) -> Numeric:
        return Numeric(self.column, self.low, self.high)

    @property
    def label_reading(self) -> tuple[float, float]:
        middle, half = (self.low + self.high) / 2.0, (self.high - self.low) / 2.0
        return (self.center - middle) / half, half / self.scale

    @property
    def center(self) -> float:
        """The number that scores of 0 predict."""
        low, high = self.typical or (self.low, self.high)
        return (low + high) / 2.0

    @property
    def scale(self) -> float:
        """The unit of labels and scores in training."""
        if self.typical is None:
            return self.unit * (self.high - self.low) / 2.0
        return self.unit * (self.typical[1] - self.typical[0]) / TYPICAL_WIDTH

    def needs_range(self, loss: Loss) -> bool:
        return self.typical is None and loss.max_abs_label > 0

    def choose_curve_steps(self, columns: int, loss: Loss) -> int:
        # A loss that reads shares of the bounds has less signal in a row, and curves need more than it has.
        return NUMBER_CURVE_STEPS if columns <= max(CURVE_STEPS) and loss.max_abs_label else 0

    def allows_curves(self, plain_noise: float, noise: float, *, gaussian: bool) -> bool:
        return noise <= (MAX_GAUSSIAN_CURVE_NOISE if gaussian else MAX_NUMBER_CURVE_NOISE)

    def adapt_to_loss(self, loss: Loss) -> Number:
        """Return the target in the unit of the loss, without a typical range if it reads shares of the bounds."""
        self.check_loss(loss)
        if loss.max_abs_label:
            return replace(self, unit=loss.label_unit)
        return replace(self, typical=None, typical_source="declared", unit=1.0)

    def is_range_on_bins(self, bins: int) -> bool:
        if self.typical is None:
            return False
        width, (low, high) = self.high - self.low, self.typical
        # A range that is too narrow was widened.
        if (high - low) * MAX_RANGE_RATIO < 1.02 * width:
            return True
        places = [bins * (end - self.low) / width for end in (low, high)]
        return all(abs(place - round(place)) < 1e-6 * bins for place in places)

    def with_range(self, low: float, high: float, source: TypicalSource = "private") -> Number:
        middle, half = (self.low + self.high) / 2.0, (self.high - self.low) / 2.0
        least = 2.0 / MAX_RANGE_RATIO * 1.01
        low, high = (min(max(end, -1.0), 1.0) for end in (low, high))
        if high - low < least:
            low = min(max((low + high) / 2.0 - least / 2.0, -1.0), 1.0 - least)
            high = low + least
        ends = [min(max(middle + half * end, self.low), self.high) for end in (low, high)]
        return replace(self, typical=(ends[0], ends[1]), typical_source=source)

    def without_range(self) -> Number:
        return self if self.typical_source == "declared" else replace(self, typical=None, typical_source="declared")

    @property
    def example_labels(self) -> tuple[Value, ...]:
        return self.low, self.high

    @property
    def summary(self) -> str:
        return f"numbers from {self.low:g} to {self.high:g}"

    def describe_used_labels(self, limit: int) -> str:
        return "numbers"

    def describe_unusable_labels(self, limit: int) -> str:
        return "no number"

    def describe_values(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def choose_default_loss(self, *, plain: bool, noise: float | None = None) -> tuple[str, float | None]:
        return "mean" if self.counts and noise is not None and noise <= MAX_COUNT_NOISE else "robust", None

    def count_weight_vectors(self, loss: Loss) -> int:
        self.check_loss(loss)
        return 1

    def name_weight_vectors(self, loss: Loss) -> tuple[str, ...]:
        return (self.column,)

    def describe_scores(self, loss: Loss) -> str:
        return f"change of {self.column!r}" if loss.max_abs_label else f"log odds of {self.column!r} between its bounds"

    def list_facts(self, loss: Loss) -> list[tuple[str, str]]:
        predicts = f"{loss.predicts} of {self.column!r}, from {self.low:g} to {self.high:g}"
        when = f'where the noise per row is at most {MAX_COUNT_NOISE:g}, "auto" predicts the mean'
        counts = [("counts", f"declared: {when}")] if self.counts else []
        if not loss.max_abs_label or self.typical is None:
            return [("prediction", predicts), *counts]
        low, high = self.typical
        found = {"private": "found privately", "exact": "found without noise"}.get(self.typical_source, "declared")
        return [
            ("prediction", f"{predicts}; most values are from {low:g} to {high:g} ({found})"),
            ("unit", f"{self.scale:.4g} of {self.column!r}, {self.unit:g} of its spread"),
            *counts,
        ]

    def find_score_units(self, loss: Loss) -> tuple[float, float]:
        return (self.center, self.scale) if loss.max_abs_label else (0.0, 1.0)

    def to_stored_row(self) -> dict[str, Any]:
        return {"classes": [], "numbers": [self.low, self.high, self.center, self.scale]}

    def predict(self, scores: Doubles, margin_threshold: float, loss: Loss) -> Doubles:
        labels = loss.predict_labels(scores[:, 0])
        assert labels is not None
        return np.clip(self.center + self.scale * labels, self.low, self.high)

    def depends_on_score_scale(self, margin_threshold: float) -> bool:
        return True

    def write_prediction(self, scores: Sequence[str], margin_threshold: float, loss: Loss, sql: SqlWriter) -> str:
        label = loss.write_sql_link(scores[0], sql.write_constant)
        number = f"{sql.write_constant(self.center)} + {sql.write_constant(self.scale)} * ({label})"
        # The minimum of two numbers is the negative maximum of their negatives.
        below = sql.write_maximum([sql.write_constant(-self.high), f"-({number})"])
        return sql.write_maximum([sql.write_constant(self.low), f"-({below})"])


TARGETS: tuple[type[Target], ...] = (Classes, Number)


def resolve_target_name(**names: Any) -> tuple[type[Target], Any]:
    """Return the kind of target and the column that is given as `label` or `target`; raise ParameterError for both."""
    given = [(kind, name) for kind in TARGETS if (name := names.get(kind.key)) is not None]
    if len(given) > 1:
        keys = " or ".join(kind.key for kind in TARGETS)
        raise ParameterError(f"give either {keys}", hint="a label has classes, a target is a number")
    return given[0] if given else (TARGETS[0], None)


def derive_target(name: str, column: ColumnType, *kinds: type[Target]) -> Target | None:
    """Derive the target from the type and constraints in the source, of the first kind that these declare."""
    found = (kind.from_type(name, column) for kind in kinds or TARGETS)
    return next((target for target in found if target is not None), None)


def read_target(declared: Mapping[str, Any]) -> Target:
    """Return the target that a schema file declares by the key of its kind."""
    kinds = [kind for kind in TARGETS if kind.key in declared]
    if len(kinds) != 1:
        keys = " or ".join(repr(kind.key) for kind in TARGETS)
        raise ParameterError(f"the schema must declare {keys}" + (", and only one of them" if kinds else ""))
    return kinds[0].from_dict(declared)
