"""The losses: one class each, with all that the package needs of it.

A loss has its number in the kernel, its kind of target, its slopes and curvature, its link to probabilities, and
constants: L, beta and the loss at zero for sensitivities, and the simplex of the slopes for objective perturbation. All
hold for rows with norm at most 1, which the kernel enforces. There are no defaults: a class must define all of them.
`kernel/losses.h` defines each loss in C.

Proof: sgd_sensitivity.md 1, 4
Proof: objective_perturbation.md 2
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from boltdp._array_types import Doubles
from boltdp._bisect import bisect
from boltdp.errors import ParameterError, check_number, check_whole_number

#: The largest margin b of `MarginLogistic`.
MAX_MARGIN = 16.0
#: `Loss.invert_link` searches margins up to this absolute value, beyond which probabilities are 0 or 1.
MAX_ABS_MARGIN = 1000.0
#: `Logistic.correct_clipping` counts gradients with a slope of 1 as at most twice as long as the clip norm. Where they
#: are longer, those of both classes can be clipped at once, and then their mean is 0 at many scores.
MAX_EXCESS = 2.0
#: The largest absolute value of a label that is a number, in units of its spread: the kernel clips larger ones.
MAX_ABS_LABEL = 64.0
#: The error of a prediction, in units of labels, that counts as a whole one where models are compared.
MAX_ERROR = 8.0
#: The smallest tau of `Quantile`, and the smallest 1 - tau.
MIN_TAU = 0.001


@dataclass(frozen=True)
class Simplex:
    """The regular simplex of a loss's slopes, with a vertex for each class, and a bound on its curvature.

    For every row z = (x, y) and all weights there are class probabilities p such that
    - the gradient is (the mean of the vertices by p, minus the anchor of the row) times x, and
    - the rank of the Hessian is at most the number of vertices minus one, and its trace is at most ||x||^2 times the
      variance of the vertices by p, which is edge_squared/2 * (1 - sum of p_k^2); or, where the slopes have kinks, no
      eigenvalue of a Hessian is above `kink_curvature` times ||x||^2, whatever p is.

    The anchor of a class is its vertex. A loss of a number has two vertices, and an anchor on the edge between them:
    the share of the edge where it is, or "any" if the row decides.
    """

    vertices: int
    edge_squared: float
    anchor: float | Literal["vertex", "any"] = "vertex"
    kink_curvature: float | None = None  #: None: the slopes have no kinks

    @property
    def directions(self) -> int:
        """The maximum rank of one row's Hessian."""
        return self.vertices - 1

    @property
    def reach(self) -> float:
        """The longest distance of a vertex from an anchor, in units of the edge."""
        if not isinstance(self.anchor, float):
            return 1.0
        # 1 - a is rounded up; for a > 1/2 it is exact.
        return self.anchor if self.anchor >= 0.5 else math.nextafter(1.0 - self.anchor, 1.0)

    @property
    def max_slope(self) -> float:
        """The norm of the longest slope: L, if the loss reaches all of its simplex."""
        return math.sqrt(self.edge_squared) * self.reach

    @property
    def mean_curvature(self) -> float:
        """The maximum trace of one row's Hessian over its rank, reached where all classes are equally likely."""
        return self.edge_squared / (2.0 * self.vertices) if self.kink_curvature is None else self.kink_curvature


class Loss(ABC):
    """phi(w; z): convex in the weights w, for every row z = (x, y) with ||x|| <= 1."""

    name: ClassVar[str]
    number: ClassVar[int]  #: in the table of kernel/losses.h
    target: ClassVar[str]  #: the kind of target it is for, see `schema/target.py`
    softmax: ClassVar[bool]  #: whether its probabilities are the softmax of its margins, as others expect them
    shape: ClassVar[str]  #: for --help: what its parameter is, "" if it has none
    label_unit: ClassVar[float]  #: the unit of labels in training, in their spreads; of classes, 1/4 stands for it
    predicts: ClassVar[str] = "the class"  #: what its predictions are, in words

    def __init_subclass__(cls, *, abstract: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in () if abstract else ("name", "number", "target", "softmax", "shape", "label_unit"):
            if not hasattr(cls, name):
                raise TypeError(f"the loss {cls.__name__} must state its {name}")

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """L, the largest norm of a gradient."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """beta_phi, the Lipschitz constant of the gradient in the weights."""

    @property
    @abstractmethod
    def loss_at_zero(self) -> float:
        """The largest loss of a row at zero weights."""

    @property
    @abstractmethod
    def simplex(self) -> Simplex:
        """The simplex of the slopes."""

    @property
    @abstractmethod
    def vector_count(self) -> int:
        """The number of weight vectors of a model: 1 for one class against all others, or one per class."""

    @property
    @abstractmethod
    def parameter(self) -> float:
        """The parameter > 0 of the loss in C; 1 if it has none."""

    @property
    @abstractmethod
    def max_abs_label(self) -> float:
        """The largest absolute value of labels that are subtracted from scores; 0 for classes."""

    @property
    @abstractmethod
    def whole_error(self) -> float:
        """The error that counts as a whole one when candidates are compared; larger ones count no more."""

    @abstractmethod
    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return the derivative of the loss in each score <w_k, x> for a row with this label; shape (..., vectors).

        The label is the index of a class, or a number as the kernel reads it.
        """

    @abstractmethod
    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return the second derivatives of the loss in the scores, (..., vectors, vectors); at a kink, of one side."""

    @abstractmethod
    def compute_probabilities(self, margins: Doubles) -> Doubles | None:
        """Return the odds of each class from margins of shape (rows, vectors); None if it has no probabilities."""

    @abstractmethod
    def predict_labels(self, scores: Doubles) -> Doubles | None:
        """Return the number that scores predict, as the kernel reads labels; None if labels are classes."""

    @abstractmethod
    def write_sql_link(self, margin: str, number: Callable[[float], str]) -> str | None:
        """Return the SQL of the second class's probability, or of `predict_labels`, as a function of the margin's SQL.

        `number` formats a constant; None: there is no such expression.
        """

    @abstractmethod
    def make_joint_loss(self, classes: int) -> Loss | None:
        """Return the loss of one model for all classes, instead of one model per class; None if there is none."""

    def correct_clipping(self, scores: Doubles, excess: Doubles) -> Doubles | None:
        """Return scores whose link corrects the bias of clipped gradients; None: this loss has no such scores.

        `excess` has for each row, and each class or all, the norm in clip norms of a gradient with a slope of 1 before
        it is clipped.

        Proof: noisy_gradient_descent.md 4
        """
        return None

    def invert_link(self, probability: float) -> float:
        """Return the margin above which the probability of the second of two classes exceeds `probability`.

        This inverts `probabilities`, which must increase in the margin, by bisection; a loss may override it.
        """
        if self.vector_count != 1 or not self.probabilistic:
            raise ParameterError(f"the loss {self.name!r} has no margin that stands for a probability")

        def exceeds(margin: float) -> bool:
            odds = self.compute_probabilities(np.array([[margin]]))
            return odds is not None and bool(odds[0, 0] > probability)

        low, high = -MAX_ABS_MARGIN, MAX_ABS_MARGIN
        if exceeds(low) or not exceeds(high):
            raise ParameterError(f"the loss {self.name!r} has no margin with a probability of {probability:g}")
        return bisect(exceeds, low, high)[0]

    @property
    def probabilistic(self) -> bool:
        """Whether the margins of this loss stand for probabilities of classes."""
        return self.compute_probabilities(np.zeros((1, self.vector_count))) is not None

    @property
    def directions(self) -> int:
        """The number of free weight vectors, which need noise: several vectors sum to zero, so one is not free."""
        return max(1, self.vector_count - 1)

    @property
    def basis(self) -> Doubles | None:
        """An orthonormal basis of the free vectors, one combination of the vectors per row; None for one vector."""
        return None if self.vector_count == 1 else make_contrast_basis(self.vector_count)

    def to_basis(self, weights: Doubles) -> Doubles:
        """Return weights of shape (..., vectors, dims) in the basis of the free vectors, (..., directions, dims)."""
        basis = self.basis
        return weights if basis is None else np.asarray(basis @ weights)

    def from_basis(self, free: Doubles) -> Doubles:
        """Return the weights, of shape (..., vectors, dims), that `to_basis` turns into these free vectors."""
        basis = self.basis
        return free if basis is None else np.asarray(basis.T @ free)


class ClassLoss(Loss, abstract=True):
    """A loss whose labels are classes."""

    target = "classes"
    label_unit = 0.25
    max_abs_label = 0.0
    whole_error = 1.0

    def predict_labels(self, scores: Doubles) -> None:
        return


@dataclass(frozen=True)
class Logistic(ClassLoss):
    """Binary logistic loss ln(1 + exp(-y <w, x>)), y in {-1, +1}."""

    name = "logistic"
    number = 0
    softmax = True
    shape = ""
    lipschitz = 1.0
    smoothness = 0.25
    loss_at_zero = math.log(2.0)
    simplex = Simplex(2, 1.0)
    vector_count = 1
    parameter = 1.0

    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return -y / (1 + exp(y*score))."""
        y = _get_sign(label, positive)
        return -y * _compute_logistic(-y * scores)

    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        return np.asarray(_compute_logistic(scores) * _compute_logistic(-scores))[..., None]

    def compute_probabilities(self, margins: Doubles) -> Doubles:
        """Return 1 / (1 + exp(-margin)), the probability of the positive class."""
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * margins)))

    def invert_link(self, probability: float) -> float:
        """Return ln(p / (1 - p)), which is 0 for 0.5."""
        return math.log(probability / (1.0 - probability))

    def write_sql_link(self, margin: str, number: Callable[[float], str]) -> str:
        """Return an expression with tanh, since exp can overflow, which is an error in PostgreSQL."""
        half = number(0.5)
        return f"{half} + {half} * tanh({half} * ({margin}))"

    def correct_clipping(self, scores: Doubles, excess: Doubles) -> Doubles | None:
        """Return ln(q / (1 - q)) of the probability q with which the clipped slopes of both classes have the mean 0."""
        halves = 0.5 * np.minimum(excess, MAX_EXCESS)
        tilts = np.tanh(0.5 * scores)
        # 1 + the second argument of log1p is the slope times the excess: so no sign of a score is lost by rounding.
        down, up = ((half - 1.0) + half * tilt for half, tilt in ((halves[:, :1], tilts), (halves[:, -1:], -tilts)))
        return np.asarray(scores - np.log1p(np.maximum(down, 0.0)) + np.log1p(np.maximum(up, 0.0)))

    def make_joint_loss(self, classes: int) -> Multinomial:
        """Return softmax cross-entropy, whose slopes are near L without a margin."""
        return Multinomial(classes)


@dataclass(frozen=True)
class MarginLogistic(Logistic):
    """Logistic loss with a margin: ln(1 + exp(b - y <w, x>)).

    It is the logistic loss shifted by b, with the same L, beta, simplex and curvature. But at zero weights its slope is
    near L instead of L/2, so that rows weigh more against noise that is calibrated to L.
    """

    margin: float = 2.0

    name = "margin"
    number = 3
    shape = "the margin b (default 2)"
    softmax = False
    invert_link = Loss.invert_link
    correct_clipping = Loss.correct_clipping

    def __post_init__(self) -> None:
        object.__setattr__(self, "margin", check_number(self.margin, "margin"))
        if not 0 < self.margin <= MAX_MARGIN:
            raise ParameterError(f"margin must be above 0 and at most {MAX_MARGIN:g}, got {self.margin:g}")

    @property
    def loss_at_zero(self) -> float:  # type: ignore[override]
        """ln(1 + e^b)."""
        return math.log1p(math.exp(self.margin)) * (1.0 + 2.0**-50)

    @property
    def parameter(self) -> float:  # type: ignore[override]
        """e^-b; the loss in C is defined by this rounded number."""
        return math.exp(-self.margin)

    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return -y / (1 + exp(y*score - b))."""
        return super().compute_slopes(scores - _get_sign(label, positive) * self.margin, label, positive=positive)

    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        return super().compute_hessians(scores - _get_sign(label, positive) * self.margin, label, positive=positive)

    def compute_probabilities(self, margins: Doubles) -> Doubles:
        """Return the odds that minimise the expected loss: s(b + margin) to s(b - margin), s the logistic function.

        A row of the positive class pulls the margin up by s(b - margin), one of the other class down by s(b + margin).
        """
        compute = super().compute_probabilities
        up, down = compute(self.margin + margins), compute(self.margin - margins)
        return np.asarray(up / (up + down))

    def write_sql_link(self, margin: str, number: Callable[[float], str]) -> str:
        half, one, two, b = (number(value) for value in (0.5, 1.0, 2.0, self.margin))
        up, down = (f"tanh({half} * ({b} {sign} ({margin})))" for sign in "+-")
        return f"({one} + {up}) / ({two} + {up} + {down})"


@dataclass(frozen=True)
class HuberSVM(ClassLoss):
    """Hinge loss with its kink replaced by a parabola of half-width h around margin 1."""

    width: float = 0.1

    name = "huber"
    number = 1
    softmax = False
    shape = "half the width of its parabola (default 0.1)"
    label_unit = 0.5
    lipschitz = 1.0
    vector_count = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", check_number(self.width, "width"))
        if not (0 < self.width < math.inf):
            raise ParameterError(f"width must be a finite number > 0, got {self.width}")

    @property
    def smoothness(self) -> float:
        """1/(2h): the slope of the parabola's derivative."""
        return 1.0 / (2.0 * self.width)

    @property
    def loss_at_zero(self) -> float:
        """The loss at margin 0: of its linear part, unless the parabola is wide enough to reach there."""
        return 1.0 if self.width <= 1 else (1.0 + self.width) ** 2 / (4.0 * self.width)

    @property
    def simplex(self) -> Simplex:
        return Simplex(2, 1.0, kink_curvature=math.nextafter(self.smoothness, math.inf))

    @property
    def parameter(self) -> float:
        return self.width

    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return -y * (1 + h - y*score) / (2h), kept between 0 and -y."""
        y = _get_sign(label, positive)
        return np.asarray(-y * np.clip((1.0 + self.width - y * scores) / (2.0 * self.width), 0.0, 1.0))

    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return 1/(2h) where the slope is between 0 and -y, else 0."""
        slopes = np.abs(self.compute_slopes(scores, label, positive=positive))
        return np.asarray(self.smoothness * ((slopes > 0.0) & (slopes < 1.0)))[..., None]

    def compute_probabilities(self, margins: Doubles) -> None:
        """Return None, as no margin of this loss stands for a probability."""
        return

    def write_sql_link(self, margin: str, number: Callable[[float], str]) -> None:
        return

    def make_joint_loss(self, classes: int) -> MulticlassHuber:
        """Return the hinge loss of all classes at once, with its kinks replaced by parabolas of the same width."""
        return MulticlassHuber(classes, self.width)


@dataclass(frozen=True)
class Multinomial(ClassLoss):
    """Softmax cross-entropy over K classes, with one weight vector per class."""

    classes: int

    name = "multinomial"
    number = 2
    softmax = True
    shape = ""
    # sqrt(2) rounded up, so that the float is a bound.
    lipschitz = math.sqrt(2.0)
    smoothness = 0.5
    parameter = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", check_whole_number(self.classes, "classes", least=2))

    @property
    def loss_at_zero(self) -> float:
        """The loss ln K at zero weights, where all classes are equally likely."""
        return math.log(self.classes)

    @property
    def simplex(self) -> Simplex:
        """The simplex whose vertices are the unit vectors e_k: the slopes are softmax(scores) - e_label."""
        return Simplex(self.classes, 2.0)

    @property
    def vector_count(self) -> int:
        return self.classes

    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return p - e_label, p the softmax of the scores."""
        slopes = self._compute_softmax(scores)
        slopes[..., int(label)] -= 1.0
        return slopes

    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return diag(p) - p p^T, p the softmax of the scores."""
        odds = self._compute_softmax(scores)
        return np.asarray(odds[..., None] * np.eye(self.classes) - odds[..., None] * odds[..., None, :])

    def _compute_softmax(self, scores: Doubles) -> Doubles:
        powers = self.compute_probabilities(scores)
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def compute_probabilities(self, margins: Doubles) -> Doubles:
        """Return exp(margin), up to a factor that is the same for all classes of a row."""
        return np.asarray(np.exp(margins - margins.max(axis=-1, keepdims=True)))

    def correct_clipping(self, scores: Doubles, excess: Doubles) -> Doubles:
        """Return the scores whose softmax is in proportion to p_k * max(1, ||p - e_k|| * excess_k)."""
        odds = self._compute_softmax(scores)
        squares = np.sum(odds**2, axis=-1, keepdims=True) + 1.0 - 2.0 * odds
        return np.asarray(scores + np.log(np.maximum(np.sqrt(np.maximum(squares, 0.0)) * excess, 1.0)))

    def write_sql_link(self, margin: str, number: Callable[[float], str]) -> None:
        """Return None: a model of two classes has one margin, and this loss two."""

    def make_joint_loss(self, classes: int) -> Multinomial:
        return Multinomial(classes)


@dataclass(frozen=True)
class MulticlassHuber(ClassLoss):
    """The hinge loss of K classes, max_k(score_k + [k is not the label]) - score_label, with parabolas at its kinks.

    It is max_p(<p, scores + 1 - e_label> + h/2 * (1 - ||p||^2)) - score_label over the simplex of class probabilities
    p. For two classes it is the Huber SVM of the difference of their scores, with the same h.
    """

    classes: int
    width: float = 0.1

    name = "multiclass_huber"
    number = 7
    softmax = False
    shape = ""
    label_unit = 0.5
    # sqrt(2) rounded up, so that the float is a bound.
    lipschitz = math.sqrt(2.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", check_whole_number(self.classes, "classes", least=2))
        object.__setattr__(self, "width", HuberSVM(self.width).width)

    @property
    def smoothness(self) -> float:
        """1/h: the projection on the simplex moves no further than what is projected."""
        return 1.0 / self.width

    @property
    def loss_at_zero(self) -> float:
        """The loss at zero weights, where all classes but the label are equally likely; the label, too, if h is wide.

        Rounding is covered by a factor.
        """
        others, h = self.classes - 1.0, self.width
        wide = (1.0 + h) ** 2 / (2.0 * h * (1.0 + 1.0 / others))
        return (1.0 + h * (1.0 - 1.0 / others) / 2.0 if h <= others else wide) * (1.0 + 2.0**-50)

    @property
    def simplex(self) -> Simplex:
        """The simplex whose vertices are the unit vectors e_k: the slopes are p - e_label."""
        return Simplex(self.classes, 2.0, kink_curvature=math.nextafter(self.smoothness, math.inf))

    @property
    def vector_count(self) -> int:
        return self.classes

    @property
    def parameter(self) -> float:
        return self.width

    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return p - e_label."""
        slopes = self._find_maximiser(scores, label)
        slopes[..., int(label)] -= 1.0
        return slopes

    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return (diag(s) - s s^T / sum(s)) / h, where s is 1 for classes with p > 0, else 0."""
        active = (self._find_maximiser(scores, label) > 0.0).astype(np.float64)
        shares = active / active.sum(axis=-1, keepdims=True)
        return np.asarray(active[..., None] * (np.eye(self.classes) - shares[..., None, :]) / self.width)

    def _find_maximiser(self, scores: Doubles, label: float) -> Doubles:
        """Return p: (scores + 1 - e_label) / h, projected on the simplex."""
        ahead = scores + (np.arange(self.classes) != label)
        below = np.maximum((ahead - ahead.max(axis=-1, keepdims=True)) / self.width, -1.0)
        # The largest entries are those above the threshold that makes their excesses over it sum to 1.
        largest = -np.sort(-below, axis=-1)
        thresholds = (np.cumsum(largest, axis=-1) - 1.0) / np.arange(1, self.classes + 1)
        count = np.sum(largest > thresholds, axis=-1, keepdims=True)
        return np.asarray(np.maximum(below - np.take_along_axis(thresholds, count - 1, axis=-1), 0.0))

    def compute_probabilities(self, margins: Doubles) -> None:
        """Return None, as no scores of this loss stand for probabilities."""
        return

    def write_sql_link(self, margin: str, number: Callable[[float], str]) -> None:
        return

    def make_joint_loss(self, classes: int) -> MulticlassHuber:
        return MulticlassHuber(classes, self.width)


class NumberLoss(Loss, abstract=True):
    """A loss of one score whose label is a number, as the kernel reads it."""

    target = "number"
    softmax = False
    vector_count = 1

    def compute_probabilities(self, margins: Doubles) -> None:
        return

    def make_joint_loss(self, classes: int) -> None:
        return

    def predict_labels(self, scores: Doubles) -> Doubles:
        return scores

    def write_sql_link(self, margin: str, number: Callable[[float], str]) -> str:
        return margin


@dataclass(frozen=True)
class Robust(NumberLoss):
    """ln cosh(score - y): squared error near the label, absolute error far from it."""

    name = "robust"
    predicts = "the typical value"
    number = 4
    shape = ""
    label_unit = 1.0
    lipschitz = 1.0
    smoothness = 1.0
    loss_at_zero = MAX_ABS_LABEL
    simplex = Simplex(2, 4.0, 0.5)
    parameter = 1.0
    max_abs_label = MAX_ABS_LABEL
    whole_error = MAX_ERROR

    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return tanh(score - y)."""
        return np.tanh(scores - label)

    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        residuals = 2.0 * (scores - label)
        return np.asarray(4.0 * _compute_logistic(residuals) * _compute_logistic(-residuals))[..., None]


@dataclass(frozen=True)
class Quantile(NumberLoss):
    """tau (y - score) + ln(1 + exp(score - y)): the pinball loss of the quantile tau, with a smooth kink."""

    tau: float = 0.5

    name = "quantile"
    number = 5
    shape = "the quantile tau (default 0.5)"
    label_unit = 0.25
    smoothness = 0.25
    max_abs_label = MAX_ABS_LABEL
    whole_error = MAX_ERROR

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", check_number(self.tau, "tau"))
        if not MIN_TAU <= self.tau <= 1.0 - MIN_TAU:
            raise ParameterError(f"tau must be from {MIN_TAU:g} to {1 - MIN_TAU:g}, got {self.tau:g}")

    @property
    def predicts(self) -> str:  # type: ignore[override]
        return f"the {self.tau:g}-quantile"

    @property
    def lipschitz(self) -> float:
        """The larger of tau and 1 - tau, rounded up."""
        return self.simplex.max_slope

    @property
    def loss_at_zero(self) -> float:
        """The loss of the largest label: tau y + ln(1 + e^-y), or the same for -y and 1 - tau."""
        return self.lipschitz * MAX_ABS_LABEL + math.log(2.0)

    @property
    def simplex(self) -> Simplex:
        return Simplex(2, 1.0, self.tau)

    @property
    def parameter(self) -> float:
        return self.tau

    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return 1 / (1 + exp(y - score)) - tau."""
        return _compute_logistic(scores - label) - self.tau

    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        return np.asarray(_compute_logistic(scores - label) * _compute_logistic(label - scores))[..., None]


@dataclass(frozen=True)
class Mean(NumberLoss):
    """ln(1 + exp(score)) - a score, a = (1 + y)/2: the logistic loss of a share of the range between the bounds."""

    name = "mean"
    predicts = "the mean"
    number = 6
    shape = ""
    label_unit = 1.0
    lipschitz = 1.0
    smoothness = 0.25
    loss_at_zero = math.log(2.0)
    simplex = Simplex(2, 1.0, "any")
    parameter = 1.0
    max_abs_label = 0.0
    whole_error = 1.0

    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        """Return 1 / (1 + exp(-score)) - a."""
        return _compute_logistic(scores) - 0.5 * (1.0 + label)

    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        return np.asarray(_compute_logistic(scores) * _compute_logistic(-scores))[..., None]

    def predict_labels(self, scores: Doubles) -> Doubles:
        """Return 2a - 1 of the expected a."""
        return np.tanh(0.5 * scores)

    def write_sql_link(self, margin: str, number: Callable[[float], str]) -> str:
        return f"tanh({number(0.5)} * ({margin}))"


#: Every loss, by its name.
LOSSES: Mapping[str, type[Loss]] = {
    loss.name: loss
    for loss in (Logistic, MarginLogistic, HuberSVM, Multinomial, Robust, Quantile, Mean, MulticlassHuber)
}


def make_contrast_basis(classes: int) -> Doubles:
    """Return an orthonormal basis, one vector per row, of the vectors of length `classes` that sum to zero."""
    rows = np.tri(classes - 1, classes)
    rows[np.arange(classes - 1), np.arange(1, classes)] = -np.arange(1, classes)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _get_sign(label: float, positive: int) -> float:
    """Return y: 1 for a label of the positive class, else -1."""
    return 1.0 if label == positive else -1.0


def _compute_logistic(at: Doubles) -> Doubles:
    """Return the logistic function 1 / (1 + exp(-at)), which neither overflows nor cancels."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -at)))
