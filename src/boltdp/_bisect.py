"""Bisection for a condition that is false below a number and true above it."""

from __future__ import annotations

import math
from collections.abc import Callable


def bisect(
    holds: Callable[[float], bool], low: float, high: float, *, tolerance: float = 0.0, steps: float = math.inf
) -> tuple[float, float]:
    """Halve an interval until it encloses the number where the condition turns from false to true; return both ends.

    It is false at `low` and true at `high`, which are not tested. The search stops after `steps`, when the width is at
    most `tolerance` times the upper end, or when no float is between the ends.

    >>> bisect(lambda number: number * number > 2, 1.0, 2.0)
    (1.414213562373095, 1.4142135623730951)
    """
    while steps > 0 and high - low > tolerance * high and low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)
        steps -= 1
    return low, high


def bisect_integers(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest integer for which the condition holds; it is false at `low` and true at `high`, untested.

    >>> bisect_integers(lambda number: number * number > 2, 0, 9)
    2
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
