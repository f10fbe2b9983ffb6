"""The losses: one object each, with everything that the rest of the program asks of it.

A loss is its number in the kernel, the kind of target that it is for, its slopes and curvature, its link to
probabilities, and constants: L, beta and the loss at zero for sensitivities, the simplex of the slopes for objective
perturbation. All hold for rows with norm at most 1, which the kernel enforces. There are no defaults: a class that does
not state all of them cannot be defined or made. `kernel/losses.h` says the same of each loss in C.

Proof: sgd_sensitivity.md 1, 4
Proof: objective_perturbation.md 2
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from boltdp._arrays import Doubles
from boltdp._bisect import bisect
from boltdp.errors import ParameterError, real_number, whole_number

#: The largest margin b of `MarginLogistic`.
MAX_MARGIN = 16.0
#: `Loss.cut` looks for a margin between plus and minus this: beyond, probabilities are 0 or 1.
MAX_CUT = 1000.0


@dataclass(frozen=True)
class Simplex:
    """The regular simplex of a loss's slopes, with a vertex for each class, and a bound on its curvature.

    A loss that states it guarantees that for every row z = (x, y) and all weights there are odds p of the classes, of
    any origin, such that
    - the gradient is (the mean of the vertices by p, minus the vertex of y) times x, and
    - the Hessian adds no more directions than there are vertices but one for each of x, and its trace is at most
      ||x||^2 times the variance of the vertices by p, which is edge_squared/2 * (1 - sum of p_k^2).

    >>> Simplex(vertices=2, edge_squared=1.0).max_trace
    0.25
    """

    vertices: int
    edge_squared: float

    @property
    def directions(self) -> int:
        """The rank of what one row adds to the Hessian, at most."""
        return self.vertices - 1

    @property
    def max_trace(self) -> float:
        """The largest trace of what one row adds to the Hessian: where all classes are equally likely."""
        return self.edge_squared * self.directions / (2.0 * self.vertices)


class Loss(ABC):
    """phi(w; z): convex in the weights w, for every row z = (x, y) with ||x|| <= 1."""

    name: ClassVar[str]
    number: ClassVar[int]  #: in the table of kernel/losses.h
    target: ClassVar[str]  #: the kind of target it is for, see `schema/target.py`
    softmax: ClassVar[bool]  #: whether its probabilities are the softmax of its margins, as others expect them
    shape: ClassVar[str]  #: for --help: what its parameter is, "" if it has none

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("name", "number", "target", "softmax", "shape"):
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
    def at_zero(self) -> float:
        """The loss of any row at zero weights."""

    @property
    @abstractmethod
    def simplex(self) -> Simplex | None:
        """The simplex of its slopes; None where the slope has kinks, for which objective perturbation is not proved."""

    @property
    @abstractmethod
    def vectors(self) -> int:
        """Weight vectors of one model: 1, for one class against all others, or one for each class."""

    @property
    @abstractmethod
    def parameter(self) -> float:
        """The number > 0 that shapes the loss in C; 1 where nothing does."""

    @abstractmethod
    def slopes(self, scores: Doubles, label: int, *, positive: int) -> Doubles:
        """The derivative in each score <w_k, x>, for a row with this class index: (..., vectors), as the scores."""

    @abstractmethod
    def hessians(self, scores: Doubles, label: int, *, positive: int) -> Doubles | None:
        """The second derivatives in the scores, (..., vectors, vectors); None where the slope has kinks."""

    @abstractmethod
    def probabilities(self, margins: Doubles) -> Doubles | None:
        """The odds of each class that has a vector, from margins (rows, vectors); None if it gives no probabilities."""

    @abstractmethod
    def link(self, margin: str, number: Callable[[float], str]) -> str | None:
        """The probability of the second of two classes as an expression of SQL, from that of the margin.

        `number` writes a constant; None: there is no such expression.
        """

    @abstractmethod
    def joint(self, classes: int) -> Loss | None:
        """The loss of one model for all of `classes` classes, instead of one model per class; None: there is none."""

    def cut(self, probability: float) -> float:
        """The margin of one vector above which the probability of the second of two classes exceeds this one.

        The inverse of `probabilities`, which must grow with the margin. Found by halving, unless a loss knows better.
        """
        if self.vectors != 1 or not self.probabilistic:
            raise ParameterError(f"the loss {self.name!r} has no margin that stands for a probability")

        def exceeds(margin: float) -> bool:
            odds = self.probabilities(np.array([[margin]]))
            return odds is not None and bool(odds[0, 0] > probability)

        low, high = -MAX_CUT, MAX_CUT
        if exceeds(low) or not exceeds(high):
            raise ParameterError(f"the loss {self.name!r} has no margin with a probability of {probability:g}")
        return bisect(exceeds, low, high)[0]

    @property
    def probabilistic(self) -> bool:
        """Whether it tells probabilities."""
        return self.probabilities(np.zeros((1, self.vectors))) is not None

    @property
    def directions(self) -> int:
        """Weight vectors that are free, and need noise.

        Several vectors sum to zero, since their gradients do, so the last follows from the others.
        """
        return max(1, self.vectors - 1)

    @property
    def basis(self) -> Doubles | None:
        """An orthonormal basis of the free vectors, one combination of the vectors per row; None: the vector itself."""
        return None if self.vectors == 1 else contrasts(self.vectors)


@dataclass(frozen=True)
class Logistic(Loss):
    """Binary logistic loss ln(1 + exp(-y <w, x>)), y in {-1, +1}.

    >>> Logistic().lipschitz, Logistic().smoothness
    (1.0, 0.25)
    """

    name = "logistic"
    number = 0
    target = "classes"
    softmax = True
    shape = ""
    lipschitz = 1.0
    smoothness = 0.25
    at_zero = math.log(2.0)
    simplex = Simplex(2, 1.0)
    vectors = 1
    parameter = 1.0

    def slopes(self, scores: Doubles, label: int, *, positive: int) -> Doubles:
        """-y / (1 + exp(y*score))."""
        y = _sign(label, positive)
        return -y * _logistic(-y * scores)

    def hessians(self, scores: Doubles, label: int, *, positive: int) -> Doubles:
        odds: Doubles = _logistic(scores) * _logistic(-scores)
        return odds[..., None]

    def probabilities(self, margins: Doubles) -> Doubles:
        """1 / (1 + exp(-margin)) of the positive class."""
        odds: Doubles = 0.5 * (1.0 + np.tanh(0.5 * margins))
        return odds

    def cut(self, probability: float) -> float:
        """ln(p / (1 - p)), which is 0 for 0.5."""
        return math.log(probability / (1.0 - probability))

    def link(self, margin: str, number: Callable[[float], str]) -> str:
        """By tanh, which cannot overflow, unlike exp: that is an error in PostgreSQL."""
        half = number(0.5)
        return f"{half} + {half} * tanh({half} * ({margin}))"

    def joint(self, classes: int) -> Multinomial:
        """Softmax cross-entropy."""
        return Multinomial(classes)


@dataclass(frozen=True)
class MarginLogistic(Logistic):
    """Logistic loss that wants a margin: ln(1 + exp(b - y <w, x>)).

    L, beta, the corners and the curvature are those of the logistic loss, which it is, moved by b. But a row that is
    not decided yet, as all are at first, has a slope near L, not half of it: the noise, which pays for L, buys more.

    >>> MarginLogistic().at_zero > Logistic().at_zero, MarginLogistic().lipschitz
    (True, 1.0)
    """

    margin: float = 2.0

    name = "margin"
    number = 3
    shape = "the margin b (default 2)"
    softmax = False
    cut = Loss.cut

    def __post_init__(self) -> None:
        object.__setattr__(self, "margin", real_number(self.margin, "margin"))
        if not 0 < self.margin <= MAX_MARGIN:
            raise ParameterError(f"margin must be above 0 and at most {MAX_MARGIN:g}, got {self.margin:g}")

    @property
    def at_zero(self) -> float:  # type: ignore[override]
        """ln(1 + e^b)."""
        return math.log1p(math.exp(self.margin)) * (1.0 + 2.0**-50)

    @property
    def parameter(self) -> float:  # type: ignore[override]
        """e^-b: the loss is that of this number, whatever its last bit is."""
        return math.exp(-self.margin)

    def slopes(self, scores: Doubles, label: int, *, positive: int) -> Doubles:
        """-y / (1 + exp(y*score - b))."""
        return super().slopes(scores - _sign(label, positive) * self.margin, label, positive=positive)

    def hessians(self, scores: Doubles, label: int, *, positive: int) -> Doubles:
        return super().hessians(scores - _sign(label, positive) * self.margin, label, positive=positive)

    def probabilities(self, margins: Doubles) -> Doubles:
        """The odds at which the loss is smallest in the mean: s(b + margin) to s(b - margin), s the logistic function.

        A row of the positive class pulls the margin up by s(b - margin), one of the other class down by s(b + margin).
        """
        up, down = super().probabilities(self.margin + margins), super().probabilities(self.margin - margins)
        odds: Doubles = up / (up + down)
        return odds

    def link(self, margin: str, number: Callable[[float], str]) -> str:
        """The same, by tanh."""
        half, one, two, b = (number(value) for value in (0.5, 1.0, 2.0, self.margin))
        up, down = (f"tanh({half} * ({b} {sign} ({margin})))" for sign in "+-")
        return f"({one} + {up}) / ({two} + {up} + {down})"

    def joint(self, classes: int) -> Multinomial:
        """Softmax cross-entropy, whose slopes are near their L without a margin."""
        return Multinomial(classes)


@dataclass(frozen=True)
class HuberSVM(Loss):
    """Hinge loss with its kink replaced by a parabola of half-width h around margin 1.

    >>> HuberSVM(width=0.1).smoothness
    5.0
    """

    width: float = 0.1

    name = "huber"
    number = 1
    target = "classes"
    softmax = False
    shape = "half the width of its parabola (default 0.1)"
    lipschitz = 1.0
    simplex = None
    vectors = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", real_number(self.width, "width"))
        if not (0 < self.width < math.inf):
            raise ParameterError(f"width must be a finite number > 0, got {self.width}")

    @property
    def smoothness(self) -> float:
        """1/(2h): the slope of the parabola's derivative."""
        return 1.0 / (2.0 * self.width)

    @property
    def at_zero(self) -> float:
        """At margin 0 the loss is on its linear part, unless the parabola is wide enough to reach there."""
        return 1.0 if self.width <= 1 else (1.0 + self.width) ** 2 / (4.0 * self.width)

    @property
    def parameter(self) -> float:
        """The half-width h."""
        return self.width

    def slopes(self, scores: Doubles, label: int, *, positive: int) -> Doubles:
        """-y * (1 + h - y*score) / (2h), kept between 0 and -y."""
        y = _sign(label, positive)
        return np.asarray(-y * np.clip((1.0 + self.width - y * scores) / (2.0 * self.width), 0.0, 1.0))

    def hessians(self, scores: Doubles, label: int, *, positive: int) -> None:
        return

    def probabilities(self, margins: Doubles) -> None:
        return

    def link(self, margin: str, number: Callable[[float], str]) -> None:
        return

    def joint(self, classes: int) -> None:
        return


@dataclass(frozen=True)
class Multinomial(Loss):
    """Softmax cross-entropy over K classes, with one weight vector per class.

    >>> Multinomial(classes=10).lipschitz == math.sqrt(2)
    True
    """

    classes: int

    name = "multinomial"
    number = 2
    target = "classes"
    softmax = True
    shape = ""
    # sqrt(2) rounded up, so that the float is a bound.
    lipschitz = math.sqrt(2.0)
    smoothness = 0.5
    parameter = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", whole_number(self.classes, "classes", least=2))

    @property
    def at_zero(self) -> float:
        """All classes are equally likely: ln K."""
        return math.log(self.classes)

    @property
    def simplex(self) -> Simplex:
        """The unit vectors: the slopes are p - e_y."""
        return Simplex(self.classes, 2.0)

    @property
    def vectors(self) -> int:
        return self.classes

    def slopes(self, scores: Doubles, label: int, *, positive: int) -> Doubles:
        """P - e_label, p the softmax of the scores."""
        slopes = self._softmax(scores)
        slopes[..., label] -= 1.0
        return slopes

    def hessians(self, scores: Doubles, label: int, *, positive: int) -> Doubles:
        """diag(p) - p p^T."""
        odds = self._softmax(scores)
        return np.asarray(odds[..., None] * np.eye(self.classes) - odds[..., None] * odds[..., None, :])

    def _softmax(self, scores: Doubles) -> Doubles:
        powers: Doubles = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def probabilities(self, margins: Doubles) -> Doubles:
        """exp(margin), up to a factor that is the same for all classes of a row."""
        odds: Doubles = np.exp(margins - margins.max(axis=1, keepdims=True))
        return odds

    def link(self, margin: str, number: Callable[[float], str]) -> None:
        """None: a model of two classes has one margin, and this loss two."""

    def joint(self, classes: int) -> Multinomial:
        """The same for another number of classes."""
        return Multinomial(classes)


#: Every loss, by its name.
LOSSES: Mapping[str, type[Loss]] = {loss.name: loss for loss in (Logistic, MarginLogistic, HuberSVM, Multinomial)}


def contrasts(classes: int) -> Doubles:
    """An orthonormal basis, one vector per row, of the vectors of length `classes` that sum to zero.

    >>> np.round(contrasts(3) @ contrasts(3).T, 12)
    array([[1., 0.],
           [0., 1.]])
    """
    rows = np.tril(np.ones((classes - 1, classes)))
    rows[np.arange(classes - 1), np.arange(1, classes)] = -np.arange(1, classes)
    basis: Doubles = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return basis


def _sign(label: int, positive: int) -> float:
    return 1.0 if label == positive else -1.0


def _logistic(at: Doubles) -> Doubles:
    """1 / (1 + exp(-at)), which neither overflows nor cancels."""
    odds: Doubles = np.exp(-np.logaddexp(0.0, -at))
    return odds
