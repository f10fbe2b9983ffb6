"""Noisy counts of rows: of values in columns, to draft a schema, of a model's errors, or of unusable labels.

In each release a row adds 1 to at most one count: that of the interval of its number, or that of its value. Intervals
are public; values are not, and a value is released only if its noisy count exceeds a threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import ClassVar

from flint import arb

from boltdp.errors import ParameterError, check_whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Event, NoisyRelease, round_up
from boltdp.privacy.events.output_perturbation import check_dimensions
from boltdp.privacy.mechanisms import (
    Mechanism,
    calibrate,
    calibrate_unit_gaussian,
    compute_pure_delta,
    round_up_delta,
    set_precision,
)
from boltdp.privacy.training_problem import IF_GIVEN, check_person_rows, check_single_rows

#: The number of bins of the histogram of a number.
BINS = 64
#: Of two sufficient noises, the one with the smaller upper quantile at this probability is used.
TAIL_PROBABILITY = 1e-6


@dataclass(frozen=True, kw_only=True)
class NoisyCounts(NoisyRelease):
    """Several releases of counts with independent noise in each count."""

    kind = "noisy counts"
    noise: Mechanism  #: of each count: Gaussian, or Laplace, which is spherical noise in one dimension
    releases: int  #: k
    unknown: int  #: u: the number of these releases that reveal private values
    #: A private value is released if its noisy count is above this
    threshold: int | None = field(default=None, metadata=IF_GIVEN)
    person_rows: int | None = field(default=None, metadata=IF_GIVEN)  #: g, as `Problem` has it

    def __post_init__(self) -> None:
        check_dimensions(self.noise, 1)
        check_person_rows(self.person_rows)
        if self.unknown:
            check_single_rows(self.person_rows, "counts that tell values")
        check_whole_number(self.releases, "releases", least=1)
        if check_whole_number(self.unknown, "unknown", least=0) > self.releases:
            raise ParameterError(f"unknown must be at most the {self.releases} releases, got {self.unknown}")
        if (self.threshold is None) != (self.unknown == 0):
            raise ParameterError("counts must have a threshold if they tell values that only rows know, and else none")
        if self.threshold is not None:
            check_whole_number(self.threshold, "threshold", least=1)

    @property
    def sensitivity(self) -> float:
        """The sensitivity of all counts of all releases to one row, or person: in L1 for Laplace noise, else in L2.

        Proof: noisy_counts.md 1
        Proof: adjacency.md 2
        """
        in_l1, in_l2 = _compute_sensitivities(self.releases, self.person_rows)
        return in_l1 if self.noise.kind == "spherical" else in_l2

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the delta of the noise plus the probability that the value of a single row is released.

        Proof: noisy_counts.md 2, 3, 4
        """
        noise = self.noise
        if noise.kind == "gaussian":
            spent = arb(noise.delta(epsilon, sensitivity=self.sensitivity))
        with set_precision(256):
            scale = arb(noise.scale)
            if noise.kind == "spherical":
                spent = compute_pure_delta(self.sensitivity / scale, arb(epsilon))
            if self.threshold is not None:
                # Less the row itself, and the most that rounding to the grid can add to a noisy count.
                least = self.threshold - 1 - arb(2) ** -noise.grid_exponent
                if not least >= 0:
                    return 1.0
                far = least / scale
                chance = (-far).exp() / 2 if noise.kind == "spherical" else (far / arb(2).sqrt()).erfc() / 2
                spent += 2 * self.unknown * chance
            return round_up_delta(spent)

    @property
    def mu(self) -> float | None:
        """The mu of mu-GDP, if the noise is Gaussian and no value is released.

        Proof: noisy_counts.md 2
        """
        if self.noise.kind != "gaussian" or self.unknown:
            return None
        return round_up(self.sensitivity / self.noise.scale)


@dataclass(frozen=True, kw_only=True)
class NoisyHistograms(NoisyCounts):
    """A histogram of each of `releases` columns with public bins, from which their curves and centres are found."""

    kind = "noisy histograms"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unknown:
            raise ParameterError(f"histograms must have public bins only, got {self.unknown} of private values")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the delta of the noise in all counts.

        Proof: noisy_counts.md 2, 8
        """
        return super().delta(epsilon, target=target)

    @property
    def mean_deviation(self) -> float:
        """The standard deviation, in rows, of the largest sums of bins that a mean is computed from."""
        return self.noise.deviation * math.sqrt(BINS)

    def describe(self) -> str:
        return f"histograms of {self.releases:,} columns, each count ± {self.noise.deviation:,.1f}"


@dataclass(frozen=True, kw_only=True)
class NoisyUnusableLabelCount(NoisyRelease):
    """A noisy count of the rows of a training whose label is missing or not a declared one."""

    kind = "noisy count of unusable labels"
    dimensions: ClassVar[int] = 1
    noise: Mechanism
    person_rows: int | None = field(default=None, metadata=IF_GIVEN)  #: g, as `Problem` has it

    def __post_init__(self) -> None:
        check_dimensions(self.noise, 1)
        check_person_rows(self.person_rows)

    @property
    def sensitivity(self) -> float:
        """The sensitivity of the count to one row, or person.

        Proof: noisy_counts.md 7
        """
        return float(1 if self.person_rows is None else self.person_rows)

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the delta of the noise.

        Proof: noisy_counts.md 7
        """
        return self.noise.delta(epsilon, sensitivity=self.sensitivity)

    def describe(self) -> str:
        return f"rows with a missing or undeclared label are counted, ± {self.noise.deviation:,.0f}"


@dataclass(frozen=True, kw_only=True)
class NoisyClassCount(NoisyUnusableLabelCount):
    """A noisy count of the rows of a training whose label is not the first class, from which its intercept starts.

    Proof: noisy_counts.md 7
    """

    kind = "noisy count of the second class"

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        return self.noise.delta(epsilon, sensitivity=self.sensitivity)

    def describe(self) -> str:
        return f"rows of the second class are counted, ± {self.noise.deviation:,.0f}"


def make_noisy_unusable_label_count(budget: Budget, *, person_rows: int | None = None) -> NoisyUnusableLabelCount:
    """Return the event of a noisy count of unusable labels within a budget.

    Proof: noisy_counts.md 7
    """
    changes = 1.0 if person_rows is None else float(person_rows)
    return NoisyUnusableLabelCount(noise=calibrate(changes, dimensions=1, budget=budget), person_rows=person_rows)


def _compute_sensitivities(releases: int, person_rows: int | None) -> tuple[float, float]:
    """Return the L1- and the L2-sensitivity of the counts of all releases together."""
    rows = 1 if person_rows is None else person_rows
    return 2.0 * rows * releases, round_up(rows * round_up(math.sqrt(2.0 * releases)))


def make_noisy_counts(
    budget: Budget, *, releases: int, unknown: int = 0, summed: bool = False, person_rows: int | None = None
) -> NoisyCounts:
    """Return the event of `releases` noisy counts within a budget; `unknown` of them reveal values: they need a delta.

    Of Laplace and Gaussian noise, the one with the shorter tail is used, or if counts will be `summed`, the one with
    the smaller deviation.

    Proof: noisy_counts.md 2, 3
    """
    in_l1, in_l2 = _compute_sensitivities(releases, person_rows)
    noise = calibrate(in_l1, dimensions=1, budget=Budget(budget.epsilon))
    if budget.delta:
        sigma = calibrate_unit_gaussian(Budget(budget.epsilon, budget.delta / 2 if unknown else budget.delta))
        gaussian = Mechanism("gaussian", round_up(in_l2 * sigma), 1)
        # In one dimension `deviation` is that of Laplace noise too.
        noise = min(
            noise, gaussian, key=lambda one: one.deviation if summed else find_upper_quantile(one, TAIL_PROBABILITY)
        )
    threshold = None
    if unknown:
        if not budget.delta > 0:
            raise ParameterError(f"delta must be > 0 to tell values that only rows know, got {budget.delta}")
        # Half of delta is for the threshold, in each of two directions; 1 is added for the rounding of this line.
        threshold = (
            math.ceil(1 + 2.0**-noise.grid_exponent + find_upper_quantile(noise, budget.delta / (4 * unknown))) + 1
        )
    return NoisyCounts(noise=noise, releases=releases, unknown=unknown, threshold=threshold, person_rows=person_rows)


def make_noisy_histograms(
    budget: Budget, *, columns: int, gaussian: bool = False, person_rows: int | None = None
) -> NoisyHistograms:
    """Return the event of histograms of columns within a budget; the noise is Gaussian if `gaussian` is set.

    Proof: noisy_counts.md 2, 8
    """
    in_l1, in_l2 = _compute_sensitivities(columns, person_rows)
    if gaussian:
        noise = Mechanism("gaussian", round_up(in_l2 * calibrate_unit_gaussian(budget)), 1)
    else:
        noise = calibrate(in_l1, dimensions=1, budget=Budget(budget.epsilon))
    return NoisyHistograms(noise=noise, releases=columns, unknown=0, person_rows=person_rows)


def find_upper_quantile(noise: Mechanism, probability: float) -> float:
    """Return the value that one draw of noise exceeds with this probability, which must be below 1/2."""
    if noise.kind == "gaussian":
        return -noise.scale * NormalDist().inv_cdf(probability)
    return -noise.scale * math.log(2 * probability)


def is_schema_draft(event: Event) -> bool:
    """Return whether an event consists of noisy counts of columns only, as the draft of a schema does."""
    return all(type(one) is NoisyCounts for one in event.walk() if not one.children)
