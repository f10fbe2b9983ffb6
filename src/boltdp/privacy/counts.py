"""Noisy counts of the values in one column, from which bounds, categories and classes are drafted.

Each row adds 1 to one count at most: that of the interval its number is in, or that of its value. Intervals are public;
values are not, and one is told only if its noisy count exceeds a threshold. `release.py` draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from flint import arb

from boltdp.errors import ParameterError, whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events import Event
from boltdp.privacy.noise import Mechanism, calibrate, precision, upper
from boltdp.privacy.output import check_dimensions
from boltdp.privacy.recipe import IF_GIVEN


@dataclass(frozen=True, kw_only=True)
class NoisyCounts(Event):
    """One release of the counts of a column, each with noise of its own.

    >>> noisy_counts(Budget(0.5)).delta(0.5), noisy_counts(Budget(0.5, 1e-6), unknown=True).threshold
    (0.0, 55)
    """

    kind = "noisy counts"
    noise: Mechanism  #: of each count: in one dimension the spherical mechanism is Laplace's
    #: A value that only rows tell is let out if its noisy count is above this; None: no such value is
    threshold: int | None = field(default=None, metadata=IF_GIVEN)

    def __post_init__(self) -> None:
        check_dimensions(self.noise, 1)
        if self.noise.kind != "spherical":
            raise ParameterError(f"the noise of counts must be spherical, got {self.noise.kind!r}")
        if self.threshold is not None:
            whole_number(self.threshold, "threshold", least=1)

    @property
    def sensitivity(self) -> float:
        """How far one row can move all counts together, in L1: out of one of them and into another.

        Proof: counts.md 1
        """
        return 2.0

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:  # noqa: ARG002
        """What is spent: above the loss of the noise only the probability that a single row's value is told.

        Proof: counts.md 2, 3, 4
        """
        with precision(256):
            scale = arb(self.noise.scale)
            each, told = 1 / scale, arb(0)
            if self.threshold is not None:
                # The threshold, but for the row itself and for what rounding to the grid may lift a noisy count.
                least = self.threshold - 1 - arb(2) ** -self.noise.grid
                told = (-least / scale).exp() / 2
                if not (least >= 0 and told <= 1 - (-each).exp()):
                    return 1.0
            whole, asked = 2 * each, arb(epsilon)
            more = arb(0) if asked >= whole else (1 - (asked - whole).exp()) / (1 + (-whole).exp())
            return upper(told + (1 - told) * more)

    @property
    def derived(self) -> dict[str, Any]:
        """The sensitivity."""
        return {"sensitivity": self.sensitivity}


def is_draft(event: Event) -> bool:
    """Whether an event is made of counts alone.

    >>> is_draft(noisy_counts(Budget(1.0)))
    True
    """
    return all(isinstance(one, NoisyCounts) for one in event.walk() if not one.children)


def noisy_counts(budget: Budget, *, unknown: bool = False) -> NoisyCounts:
    """The event of counts whose noise keeps a budget; `unknown` values can be told only with a delta.

    Proof: counts.md 2, 3

    >>> noisy_counts(Budget(1.0), unknown=True)
    Traceback (most recent call last):
    boltdp.errors.ParameterError: delta must be > 0 to tell values that only rows know, got 0.0
    """
    noise = calibrate(1.0, dimensions=1, budget=Budget(budget.epsilon / 2))
    if not unknown:
        return NoisyCounts(noise=noise)
    if not budget.delta > 0:
        raise ParameterError(f"delta must be > 0 to tell values that only rows know, got {budget.delta}")
    told = min(budget.delta, -math.expm1(-1 / noise.scale))
    # One more, for the rounding of this line.
    return NoisyCounts(noise=noise, threshold=math.ceil(1 + 2.0**-noise.grid + noise.scale * -math.log(2 * told)) + 1)
