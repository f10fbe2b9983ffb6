"""Noisy counts of rows: of values in columns, of which a schema is drafted, or of a model's errors.

In each release a row adds 1 to one count at most: that of the interval its number is in, or that of its value.
Intervals are public; values are not, and one is released only if its noisy count exceeds a threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from flint import arb

from boltdp.errors import ParameterError, whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Event, round_up
from boltdp.privacy.events.output_perturbation import check_dimensions
from boltdp.privacy.mechanisms import Mechanism, calibrate, gaussian_sigma, precision, upper
from boltdp.privacy.training_problem import IF_GIVEN, check_person_rows, check_single_rows

#: Of two noises that are enough, the one is taken that exceeds less with this probability.
RARE = 1e-6


@dataclass(frozen=True, kw_only=True)
class NoisyCounts(Event):
    """Several releases of counts, each count with noise of its own.

    >>> event = make_noisy_counts(Budget(0.5, 1e-6), releases=3, unknown=1)
    >>> event.delta(0.5) <= 1e-6, event.threshold
    (True, 105)
    """

    kind = "noisy counts"
    noise: Mechanism  #: of each count: normal, or Laplace's, which the spherical mechanism is in one dimension
    releases: int  #: k
    unknown: int  #: u: of these, how many tell values that only rows know
    #: Such a value is let out if its noisy count is above this
    threshold: int | None = field(default=None, metadata=IF_GIVEN)
    person_rows: int | None = field(default=None, metadata=IF_GIVEN)  #: g, as `Problem` has it

    def __post_init__(self) -> None:
        check_dimensions(self.noise, 1)
        check_person_rows(self.person_rows)
        if self.unknown:
            check_single_rows(self.person_rows, "counts that tell values")
        whole_number(self.releases, "releases", least=1)
        if whole_number(self.unknown, "unknown", least=0) > self.releases:
            raise ParameterError(f"unknown must be at most the {self.releases} releases, got {self.unknown}")
        if (self.threshold is None) != (self.unknown == 0):
            raise ParameterError("counts must have a threshold if they tell values that only rows know, and else none")
        if self.threshold is not None:
            whole_number(self.threshold, "threshold", least=1)

    @property
    def sensitivity(self) -> float:
        """How far one row, or person, can move all counts of all releases: in L1 for Laplace's noise, else in L2.

        Proof: noisy_counts.md 1
        Proof: adjacency.md 2
        """
        in_l1, in_l2 = _moved(self.releases, self.person_rows)
        return in_l1 if self.noise.kind == "spherical" else in_l2

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """What the noise spends, and the probability that the value of a single row is released.

        Proof: noisy_counts.md 2, 3, 4
        """
        noise = self.noise
        if noise.kind == "gaussian":
            spent = arb(noise.delta(epsilon, sensitivity=self.sensitivity))
        with precision(256):
            scale = arb(noise.scale)
            if noise.kind == "spherical":
                whole, asked = self.sensitivity / scale, arb(epsilon)
                spent = arb(0) if asked >= whole else (1 - (asked - whole).exp()) / (1 + (-whole).exp())
            if self.threshold is not None:
                # But for the row itself, and for what rounding to the grid may lift a noisy count.
                least = self.threshold - 1 - arb(2) ** -noise.grid
                if not least >= 0:
                    return 1.0
                far = least / scale
                chance = (-far).exp() / 2 if noise.kind == "spherical" else (far / arb(2).sqrt()).erfc() / 2
                spent += 2 * self.unknown * chance
            return upper(spent)

    @property
    def mu(self) -> float | None:
        """The sensitivity in deviations, if the noise is normal and no value is released.

        Proof: noisy_counts.md 2
        """
        if self.noise.kind != "gaussian" or self.unknown:
            return None
        return round_up(self.sensitivity / self.noise.scale)

    @property
    def derived(self) -> dict[str, Any]:
        return {"sensitivity": self.sensitivity}


def _moved(releases: int, person_rows: int | None) -> tuple[float, float]:
    """How far all counts together move, in L1 and in L2."""
    rows = 1 if person_rows is None else person_rows
    return 2.0 * rows * releases, round_up(rows * round_up(math.sqrt(2.0 * releases)))


def make_noisy_counts(
    budget: Budget, *, releases: int, unknown: int = 0, summed: bool = False, person_rows: int | None = None
) -> NoisyCounts:
    """The event of `releases` releases that keep a budget; `unknown` of them release values, which needs a delta.

    Of two noises that are enough, the one with the shorter tail is taken; if counts will be `summed`, the one with the
    smaller deviation.

    Proof: noisy_counts.md 2, 3

    >>> make_noisy_counts(Budget(1.0), releases=1, unknown=1)
    Traceback (most recent call last):
    boltdp.errors.ParameterError: delta must be > 0 to tell values that only rows know, got 0.0
    """
    in_l1, in_l2 = _moved(releases, person_rows)
    noise = calibrate(in_l1, dimensions=1, budget=Budget(budget.epsilon))
    if budget.delta:
        sigma = gaussian_sigma(Budget(budget.epsilon, budget.delta / 2 if unknown else budget.delta))
        gaussian = Mechanism("gaussian", round_up(in_l2 * sigma), 1)
        # In one dimension `deviation` is that of Laplace's noise too.
        noise = min(noise, gaussian, key=lambda one: one.deviation if summed else upper_quantile(one, RARE))
    if not unknown:
        return NoisyCounts(noise=noise, releases=releases, unknown=0, person_rows=person_rows)
    if not budget.delta > 0:
        raise ParameterError(f"delta must be > 0 to tell values that only rows know, got {budget.delta}")
    # Half of delta, for either of two directions; one more, for the rounding of this line.
    least = 1 + 2.0**-noise.grid + upper_quantile(noise, budget.delta / (4 * unknown))
    threshold = math.ceil(least) + 1
    return NoisyCounts(noise=noise, releases=releases, unknown=unknown, threshold=threshold, person_rows=person_rows)


def upper_quantile(noise: Mechanism, probability: float) -> float:
    """What one draw of noise exceeds with a probability below a half.

    >>> round(upper_quantile(Mechanism("gaussian", 2.0, 1), 0.025), 2)
    3.92
    """
    if noise.kind == "gaussian":
        return -noise.scale * NormalDist().inv_cdf(probability)
    return -noise.scale * math.log(2 * probability)


def is_draft(event: Event) -> bool:
    """Whether an event is made of counts alone.

    >>> is_draft(make_noisy_counts(Budget(1.0), releases=1))
    True
    """
    return all(isinstance(one, NoisyCounts) for one in event.walk() if not one.children)
