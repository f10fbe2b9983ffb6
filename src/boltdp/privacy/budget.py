"""A privacy budget, which is split into parts whose exact sum never exceeds it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from boltdp.errors import ParameterError, check_number, check_whole_number


@dataclass(frozen=True)
class Budget:
    """The epsilon and delta of one release; delta = 0 is pure differential privacy.

    >>> Budget(1.0).split(4)
    Budget(epsilon=0.25, delta=0.0)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, check_number(getattr(self, name), name))
        if not (0 < self.epsilon < math.inf):
            raise ParameterError(f"epsilon must be a finite number > 0, got {self.epsilon}")
        if not (0 <= self.delta < 1):
            raise ParameterError(f"delta must be in [0, 1), got {self.delta}")
        # Values outside these ranges are useless and would overflow or underflow.
        if not 1e-12 <= self.epsilon <= 1e6:
            raise ParameterError(f"epsilon must be between 1e-12 and 1e6, got {self.epsilon:g}")
        if 0 < self.delta < 1e-100:
            raise ParameterError(f"delta must be 0 or at least 1e-100, got {self.delta:g}")

    def describe(self) -> str:
        return f"epsilon = {self.epsilon:g}" + (f", delta = {self.delta:g}" if self.delta else "")

    def split(self, parts: int) -> Budget:
        """Return the budget of each of `parts` releases by basic composition; their sum never exceeds this budget."""
        parts = check_whole_number(parts, "parts", least=1)
        return Budget(_divide_down(self.epsilon, parts), _divide_down(self.delta, parts))

    def take_share(self, share: float) -> tuple[Budget, Budget]:
        """Return a share, from 0 to 1, of this budget, and what remains; the sum of both never exceeds this budget."""
        taken = Budget(self.epsilon * share, self.delta * share)
        return taken, self.subtract(taken)

    def subtract(self, part: Budget) -> Budget:
        """Return the budget that remains after `part` was spent; the sum of both never exceeds this budget."""
        return Budget(_subtract_down(self.epsilon, part.epsilon), _subtract_down(self.delta, part.delta))


def _divide_down(numerator: float, parts: int) -> float:
    """Divide an epsilon or a delta, rounded so that `parts` times the quotient is at most `numerator`."""
    quotient = numerator / parts
    return quotient if Fraction(quotient) * parts <= Fraction(numerator) else math.nextafter(quotient, 0.0)


def _subtract_down(whole: float, part: float) -> float:
    """Subtract an epsilon or a delta, rounded so that the sum of rest and `part` is at most `whole`."""
    rest = whole - part
    return rest if Fraction(rest) + Fraction(part) <= Fraction(whole) else math.nextafter(rest, 0.0)
