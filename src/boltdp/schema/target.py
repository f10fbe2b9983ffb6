"""What a model predicts: a column, the values that it may have, and what a model's scores become.

`Target` says what the other rooms ask of it, and `TARGETS` lists the kinds. Only a kind knows itself: what it cannot
do is refused with its own words, and a schema file that declares no known kind is refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._arrays import Doubles
from boltdp.encoding.declared_values import Matcher, Value, check_count, check_number, check_values, format_value
from boltdp.errors import ParameterError, real_number, shown
from boltdp.losses import Loss
from boltdp.privacy.training_problem import MIN_CLASS_WEIGHT
from boltdp.schema.columns import Categorical, Column, check_list, check_name, list_values

#: A probability of the second of two classes, or "prior": that class's share in the schema.
Threshold: TypeAlias = float | Literal["prior"]
#: By class, or in the order of the classes; "balanced" is 1 over the share of each class that the schema declares.
ClassWeights: TypeAlias = Literal["balanced"] | Mapping[Any, float] | Sequence[float]

#: The largest number of classes.
MAX_CLASSES = 10_000
#: How far from 1 the sum of a prior may be.
PRIOR_TOLERANCE = 1e-6


class SqlWriter(Protocol):
    """What a target needs of a dialect of SQL."""

    def literal(self, value: Value) -> str: ...

    def constant(self, value: float) -> str: ...

    def maximum(self, expressions: Sequence[str]) -> str: ...


@dataclass(frozen=True)
class Target(ABC):
    """What a model predicts. A kind is a frozen dataclass that answers everything asked here."""

    kind: ClassVar[str]  #: its name, by which a loss says what it is for
    task: ClassVar[str]  #: what predicting it is called
    predictor: ClassVar[str]  #: what a linear model of it is called
    key: ClassVar[str]  #: the key of a schema file that names the column
    other_keys: ClassVar[tuple[str, ...]]  #: the other keys that declare it

    column: str

    @classmethod
    @abstractmethod
    def from_dict(cls, declared: Mapping[str, Any]) -> Target:
        """Read the keys of a schema file that declare it."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The keys of a schema file that declare it."""

    @abstractmethod
    def as_column(self) -> Column:
        """The column whose encoding is the number that the kernel reads as a row's label; NaN where it is missing."""

    @property
    @abstractmethod
    def label_count(self) -> int:
        """How many different labels the kernel may read."""

    @property
    @abstractmethod
    def examples(self) -> tuple[Value, ...]:
        """Cells that an audit puts into its rows: the most different ones."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """What is declared about the column, in a few words."""

    def describe(self) -> str:
        """The column and what is declared about it, in words."""
        return f"the {self.key} {self.column!r} with {self.summary}"

    @abstractmethod
    def describe_known(self, limit: int) -> str:
        """Which cells are used in training, in words, of which no more than `limit` are values."""

    @abstractmethod
    def describe_values(self) -> str:
        """What a cell can be, in words."""

    @abstractmethod
    def default_loss(self, *, plain: bool) -> str:
        """The name of the loss "auto" stands for; `plain` asks for one without a margin."""

    @abstractmethod
    def adapt_loss(self, loss: Loss, *, joint: bool) -> Loss:
        """The loss of one model of this target; `joint` prefers one model of all values to one model for each."""

    @abstractmethod
    def count_vectors(self, loss: Loss) -> int:
        """Count the weight vectors of all models that this loss needs."""

    @abstractmethod
    def name_vectors(self, loss: Loss) -> tuple[str, ...]:
        """What a high score of each weight vector speaks for."""

    @abstractmethod
    def describe_scores(self, loss: Loss) -> str:
        """What the scores of a model with this loss are, in words."""

    def count_models(self, loss: Loss) -> int:
        """Count the models that this loss needs."""
        return self.count_vectors(loss) // loss.vectors

    def check_loss(self, loss: Loss) -> None:
        """Refuse a loss that is for another kind of target."""
        if loss.target != self.kind:
            raise ParameterError(f"the loss {loss.name!r} must be used for {loss.target}, got {self.describe()}")

    @abstractmethod
    def predict(self, scores: Doubles, cut: float) -> npt.NDArray[Any]:
        """The prediction for each row of scores."""

    @abstractmethod
    def depends_on_size(self, cut: float) -> bool:
        """Whether a prediction can change if all scores of a row are divided by the same number above 1."""

    @abstractmethod
    def write_prediction(self, scores: Sequence[str], cut: float, sql: SqlWriter) -> str:
        """The prediction as an expression of SQL, from those of the scores."""

    def probabilities(self, scores: Doubles, loss: Loss) -> Doubles:
        """The probability of each class for each row of scores."""
        self._refuse("probabilities")

    def resolve_class_weights(self, asked: ClassWeights) -> tuple[float, ...]:
        """The weight of each class, the largest of them 1."""
        self._refuse("class_weights")

    def resolve_threshold(self, threshold: Threshold, loss: Loss) -> float:
        """The threshold as a probability, for a model with this loss."""
        self._refuse("a threshold")

    def describe_threshold(self, threshold: float) -> str:
        """What a model with this threshold predicts, in words."""
        self._refuse("a threshold")

    def as_classes(self) -> Classes:
        """The target as classes, for what only classes can do."""
        self._refuse("classes")

    def _refuse(self, what: str) -> NoReturn:
        raise ParameterError(f"{what} must be for a label with classes, got {self.describe()}")


@dataclass(frozen=True)
class Classes(Target):
    """A label with two or more declared classes, of which the first is the negative one.

    >>> target = Classes("sick", ("no", "yes"), prior=(0.8, 0.2))
    >>> target.predict(np.array([[-1.0], [2.0]]), cut=0.0)
    array(['no', 'yes'], dtype='<U3')
    """

    values: tuple[Value, ...]
    prior: tuple[float, ...] | None = None  #: the share of each class among rows to come, if that is public

    kind = "classes"
    task = "classification"
    predictor = "classifier"
    key = "label"
    other_keys = ("classes", "prior")

    def __post_init__(self) -> None:
        check_name(self.column, what="label")
        check_count(self.values, MAX_CLASSES, "classes")
        object.__setattr__(self, "values", check_values(self.values, what="classes"))
        check_count(self.values, MAX_CLASSES, "classes")
        if len(self.values) < 2:
            raise ParameterError(f"classes must be at least 2 values, got {list(self.values)}")
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
                f"the shares of the prior must be above 0 and add up to 1, got {shown(list(shares))}",
                hint="declare what is known without looking at the data, or leave the prior out",
            )
        return shares

    @classmethod
    def from_dict(cls, declared: Mapping[str, Any]) -> Classes:
        if "classes" not in declared:
            raise ParameterError("the schema must declare 'classes'")
        return cls(declared["label"], check_list(declared["classes"], "classes"), declared.get("prior"))

    def to_dict(self) -> dict[str, Any]:
        prior = {} if self.prior is None else {"prior": list(self.prior)}
        return {"label": self.column, "classes": list(self.values), **prior}

    def as_column(self) -> Categorical:
        return self._column

    @cached_property
    def _column(self) -> Categorical:
        return Categorical(self.column, self.values)

    @property
    def label_count(self) -> int:
        return len(self.values)

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes, which one weight vector tells apart."""
        return len(self.values) == 2

    @property
    def names(self) -> tuple[str, ...]:
        """The classes as texts."""
        return tuple(format_value(value) for value in self.values)

    @property
    def examples(self) -> tuple[Value, ...]:
        return self.values

    @property
    def summary(self) -> str:
        return f"{len(self.values)} classes"

    def describe_known(self, limit: int) -> str:
        names = self.names if len(self.names) <= limit else (*self.names[: limit - 1], "…", self.names[-1])
        return f"classes {', '.join(names)}"

    def describe_values(self) -> str:
        return list_values(self.values)

    def default_loss(self, *, plain: bool) -> str:
        return "logistic" if plain else "margin"

    def adapt_loss(self, loss: Loss, *, joint: bool) -> Loss:
        self.check_loss(loss)
        multinomial = None if self.is_binary or not joint else loss.joint(len(self.values))
        return loss if multinomial is None else multinomial

    def count_vectors(self, loss: Loss) -> int:
        self.check_loss(loss)
        return 1 if self.is_binary and loss.vectors == 1 else len(self.values)

    def name_vectors(self, loss: Loss) -> tuple[str, ...]:
        return self.names[1:] if self.count_vectors(loss) == 1 else self.names

    def describe_scores(self, loss: Loss) -> str:
        score = "log odds" if loss.softmax else "margin"
        if self.count_vectors(loss) == 1:
            return f"{score} of {self.names[1]!r} against {self.names[0]!r}"
        return f"{score} of each class against {'all others' if loss.vectors == 1 else 'the average of all'}"

    def predict(self, scores: Doubles, cut: float) -> npt.NDArray[Any]:
        predicted: npt.NDArray[Any] = np.array(self.values)[self.choose(scores, cut)]
        return predicted

    def choose(self, scores: Doubles, cut: float) -> npt.NDArray[np.intp]:
        """The index of the predicted class for each row of scores; `cut` is the score above which it is the second."""
        chosen: npt.NDArray[np.intp] = np.argmax(scores, axis=1)
        return (scores[:, 0] > cut).astype(np.intp) if scores.shape[1] == 1 else chosen

    def depends_on_size(self, cut: float) -> bool:
        return cut != 0

    def write_prediction(self, scores: Sequence[str], cut: float, sql: SqlWriter) -> str:
        names = [sql.literal(value) for value in np.array(self.values).tolist()]
        if len(scores) == 1:
            return f"CASE WHEN {scores[0]} > {sql.constant(cut) if cut else 0}\nTHEN {names[1]} ELSE {names[0]} END"
        # The first of the classes that reach the greatest score, as numpy.argmax has it.
        cases = " ".join(f"WHEN {score} THEN {name}" for score, name in zip(scores, names, strict=True))
        return f"CASE {sql.maximum(scores)} {cases} END"

    def probabilities(self, scores: Doubles, loss: Loss) -> Doubles:
        odds = loss.probabilities(scores)
        if odds is None:
            raise ParameterError(f"a model with the loss {loss.name!r} gives no probabilities; use its margins")
        if odds.shape[1] == 1:
            odds = np.hstack([1.0 - odds, odds])
        # Where every one-vs-all model is sure of "no", all classes are equally likely.
        odds[odds.sum(axis=1) == 0] = 1.0
        shares: Doubles = odds / odds.sum(axis=1, keepdims=True)
        return shares

    def resolve_class_weights(self, asked: ClassWeights) -> tuple[float, ...]:
        """The weight of each class, the largest of them 1: only their ratios count.

        A class that a mapping leaves out has the weight 1. Rows are not counted: "balanced" needs the prior.

        >>> target = Classes("sick", ("no", "yes"), prior=(0.8, 0.2))
        >>> target.resolve_class_weights("balanced"), target.resolve_class_weights({"yes": 8})
        ((0.25, 1.0), (0.125, 1.0))
        """
        given = [real_number(one, "each of the class_weights") for one in self._order_class_weights(asked)]
        if not all(0 < weight < math.inf for weight in given):
            raise ParameterError("class_weights must be finite numbers > 0")
        weights = tuple(weight / max(given) for weight in given)
        if min(weights) < MIN_CLASS_WEIGHT:
            raise ParameterError(f"class_weights must be within a factor of {1 / MIN_CLASS_WEIGHT:,.0f}")
        return weights

    def _order_class_weights(self, asked: ClassWeights) -> Sequence[float]:
        if isinstance(asked, Mapping):
            weights, matcher = [1.0] * len(self.values), Matcher.of(self.values)
            for value, weight in zip(check_values(asked, what="class_weights"), asked.values(), strict=True):
                index = matcher.texts.get(format_value(value))
                if index is None:
                    raise ParameterError(f"class_weights must be of declared classes, got {shown(value)}")
                weights[index] = weight
            return weights
        if isinstance(asked, str):
            if asked != "balanced":
                raise ParameterError(f"class_weights must be 'balanced' or a weight for each class, got {shown(asked)}")
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
        """The threshold as a probability; refused where a model with this loss could not decide by it.

        >>> from boltdp.losses import Logistic
        >>> Classes("sick", (False, True), prior=(0.89, 0.11)).resolve_threshold("prior", Logistic())
        0.11
        """
        if not self.is_binary:
            raise ParameterError(f"a threshold must be for a model of 2 classes, got {len(self.values)}")
        if loss.vectors != 1 or not loss.probabilistic:
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
        probability = real_number(threshold, "threshold")
        if not 0 < probability < 1:
            raise ParameterError(f"threshold must be between 0 and 1, without these, got {probability:g}")
        loss.cut(probability)  # refuses one that the loss does not reach
        return probability

    def describe_threshold(self, threshold: float) -> str:
        return f"{self.names[1]!r} where its probability exceeds {threshold:g}"

    def as_classes(self) -> Classes:
        return self

    def sort(self) -> Classes:
        """The same with its classes, and the prior with them, in increasing order, as scikit-learn has them."""
        order = np.unique(np.array(self.values), return_index=True)[1]
        prior = None if self.prior is None else tuple(self.prior[index] for index in order)
        return replace(self, values=tuple(self.values[index] for index in order), prior=prior)


#: The kinds of targets that a schema file may declare.
TARGETS: tuple[type[Target], ...] = (Classes,)


def read_target(declared: Mapping[str, Any]) -> Target:
    """The target that a schema file declares by the key of its kind.

    >>> read_target({"label": "sick", "classes": [0, 1]})
    Classes(column='sick', values=(0, 1), prior=None)
    """
    kinds = [kind for kind in TARGETS if kind.key in declared]
    if len(kinds) != 1:
        keys = " or ".join(repr(kind.key) for kind in TARGETS)
        raise ParameterError(f"the schema must declare {keys}" + (", and only one of them" if kinds else ""))
    return kinds[0].from_dict(declared)
