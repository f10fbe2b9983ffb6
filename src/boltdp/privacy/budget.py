"""A privacy budget, and how it is divided so that the parts never exceed the whole, whatever the rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from boltdp.errors import ParameterError, real_number, whole_number


@dataclass(frozen=True)
class Budget:
    """epsilon and delta of one release; delta = 0 is pure differential privacy.

    >>> Budget(1.0).split(4)
    Budget(epsilon=0.25, delta=0.0)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, real_number(getattr(self, name), name))
        if not (0 < self.epsilon < math.inf):
            raise ParameterError(f"epsilon must be a finite number > 0, got {self.epsilon}")
        if not (0 <= self.delta < 1):
            raise ParameterError(f"delta must be in [0, 1), got {self.delta}")
        # Beyond these nothing is guaranteed or nothing is left, and double precision runs out.
        if not 1e-12 <= self.epsilon <= 1e6:
            raise ParameterError(f"epsilon must be between 1e-12 and 1e6, got {self.epsilon:g}")
        if 0 < self.delta < 1e-100:
            raise ParameterError(f"delta must be 0 or at least 1e-100, got {self.delta:g}")

    def describe(self) -> str:
        """In words.

        >>> Budget(0.5, 1e-6).describe()
        'epsilon = 0.5, delta = 1e-06'
        """
        return f"epsilon = {self.epsilon:g}" + (f", delta = {self.delta:g}" if self.delta else "")

    def split(self, parts: int) -> Budget:
        """The share of each of `parts` releases, by basic composition; together they never exceed the whole."""
        parts = whole_number(parts, "parts", least=1)
        return Budget(_divide_down(self.epsilon, parts), _divide_down(self.delta, parts))

    def take(self, share: float) -> tuple[Budget, Budget]:
        """The share, from 0 to 1, of one release and what is left for others; together they never exceed the whole.

        >>> Budget(1.0).take(0.25)
        (Budget(epsilon=0.25, delta=0.0), Budget(epsilon=0.75, delta=0.0))
        """
        taken = Budget(self.epsilon * share, self.delta * share)
        return taken, self.less(taken)

    def less(self, part: Budget) -> Budget:
        """What is left after a part of it was spent; together they never exceed the whole.

        >>> Budget(1.0).less(Budget(0.25))
        Budget(epsilon=0.75, delta=0.0)
        """
        return Budget(_subtract_down(self.epsilon, part.epsilon), _subtract_down(self.delta, part.delta))


def _divide_down(numerator: float, parts: int) -> float:
    """The quotient, rounded so that `parts` times it is at most `numerator`."""
    quotient = numerator / parts
    return quotient if Fraction(quotient) * parts <= Fraction(numerator) else math.nextafter(quotient, 0.0)


def _subtract_down(whole: float, part: float) -> float:
    """The difference, rounded so that it and `part` are at most `whole` together."""
    rest = whole - part
    return rest if Fraction(rest) + Fraction(part) <= Fraction(whole) else math.nextafter(rest, 0.0)
