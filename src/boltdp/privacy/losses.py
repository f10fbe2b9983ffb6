"""The losses and the constants of each that the privacy analysis needs.

`lipschitz` is L, `smoothness` is beta_phi, `at_zero` the loss of any row at zero weights, `vectors` how many weight
vectors one model has. They hold for rows with norm at most 1, which the kernel enforces. `sensitivity.md` derives them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from boltdp.errors import ParameterError, real_number, whole_number


@dataclass(frozen=True)
class Logistic:
    """Binary logistic loss ln(1 + exp(-y <w, x>)), y in {-1, +1}.

    >>> Logistic().lipschitz, Logistic().smoothness
    (1.0, 0.25)
    """

    name: ClassVar[str] = "logistic"
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25
    at_zero: ClassVar[float] = math.log(2.0)
    vectors: ClassVar[int] = 1


@dataclass(frozen=True)
class HuberSVM:
    """Hinge loss with its kink replaced by a parabola of half-width h around margin 1.

    >>> HuberSVM(width=0.1).smoothness
    5.0
    """

    width: float = 0.1
    name: ClassVar[str] = "huber"
    lipschitz: ClassVar[float] = 1.0
    vectors: ClassVar[int] = 1

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


@dataclass(frozen=True)
class Multinomial:
    """Softmax cross-entropy over K classes with one weight vector a class.

    >>> Multinomial(classes=10).lipschitz == math.sqrt(2)
    True
    """

    classes: int
    name: ClassVar[str] = "multinomial"
    # sqrt(2) rounded up, so that the float is a bound.
    lipschitz: ClassVar[float] = math.sqrt(2.0)
    smoothness: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", whole_number(self.classes, "classes", least=2))

    @property
    def at_zero(self) -> float:
        """All classes are equally likely: ln K."""
        return math.log(self.classes)

    @property
    def vectors(self) -> int:
        """Weight vectors in one model."""
        return self.classes


Loss: TypeAlias = Logistic | HuberSVM | Multinomial
