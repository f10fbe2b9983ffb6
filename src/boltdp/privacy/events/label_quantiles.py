"""Quantiles of a label that is a number, whose bins are chosen by the exponential mechanism among equal ones.

They are the location and the spread of the label, by which it is read in training. `release_with_noise.py` draws the
choices, and `workflows/target_range.py` plans them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from flint import arb

from boltdp._array_types import Integers
from boltdp.errors import ParameterError, check_whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Event, round_up
from boltdp.privacy.mechanisms import compute_pure_delta, round_up_delta, set_precision
from boltdp.privacy.training_problem import IF_GIVEN, check_person_rows

#: Scores are whole multiples of this part of a row, so that they are exact.
HUNDREDTHS = 100


@dataclass(frozen=True, kw_only=True)
class LabelQuantiles(Event):
    """The choice of a bin for each percentile, from one histogram of the labels."""

    kind = "label quantiles"
    bins: int  #: of the histogram, which are those to choose from
    percentiles: tuple[int, ...]
    epsilon: float  #: of each choice
    person_rows: int | None = field(default=None, metadata=IF_GIVEN)  #: g, as `Problem` has it

    def __post_init__(self) -> None:
        check_whole_number(self.bins, "bins", least=2)
        if not self.percentiles or not all(0 < percentile < HUNDREDTHS for percentile in self.percentiles):
            raise ParameterError(f"percentiles must be from 1 to 99, got {list(self.percentiles)}")
        Budget(self.epsilon)  # raises for an invalid epsilon
        check_person_rows(self.person_rows)

    @property
    def sensitivity(self) -> int:
        """The sensitivity of a score to one row, or person, in hundredths of a row.

        Proof: label_quantiles.md 1
        """
        return HUNDREDTHS * (1 if self.person_rows is None else self.person_rows)

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the pure profile of all choices together, whose epsilons add up.

        Proof: label_quantiles.md 2
        Proof: noisy_counts.md 4
        """
        with set_precision(256):
            return round_up_delta(compute_pure_delta(arb(self.epsilon) * len(self.percentiles), arb(epsilon)))

    @property
    def rho(self) -> float:
        """The rho of zCDP, rounded up: that of each choice is an eighth of its epsilon squared.

        Proof: label_quantiles.md 3
        """
        return round_up(len(self.percentiles) * self.epsilon**2 / 8.0)

    @property
    def derived_numbers(self) -> dict[str, Any]:
        return {"sensitivity": self.sensitivity}

    def describe(self) -> str:
        listed = " and ".join(f"{percentile}%" for percentile in self.percentiles)
        return f"the {listed} quantiles of the target are chosen among {self.bins:,} bins"


def make_label_quantiles(
    budget: Budget, *, bins: int, percentiles: tuple[int, ...], person_rows: int | None = None
) -> LabelQuantiles:
    """Return the event of choosing quantiles within a budget, whose epsilon is split equally and whose delta is unused.

    Proof: label_quantiles.md 2
    """
    each = budget.split(len(percentiles)).epsilon
    return LabelQuantiles(bins=bins, percentiles=percentiles, epsilon=each, person_rows=person_rows)


def score_bins(counts: Integers, percentile: int) -> list[int]:
    """Return how far each bin of a histogram is from having the percentile, in hundredths of rows: 0 if it has it.

    Missing labels are in no bin, and count neither as below an edge nor as above it.

    >>> import numpy as np
    >>> score_bins(np.array([0, 1, 2, 1]), 50)
    [200, 100, 0, 100]

    Proof: label_quantiles.md 1
    """
    total, below, missed = int(counts.sum()), 0, []
    for count in (*counts.tolist(), 0):
        missed.append((HUNDREDTHS - percentile) * below - percentile * (total - below))
        below += count
    return [max(0, left, -right) for left, right in pairwise(missed)]


def find_exact_quantiles(counts: Integers, percentiles: tuple[int, ...]) -> tuple[float, ...]:
    """Return an end of the bin with the smallest score for each percentile, without noise: nothing is guaranteed."""
    scores = [score_bins(counts, percentile) for percentile in percentiles]
    chosen = [each.index(min(each)) for each in scores]
    return tuple(
        compute_bin_end(number, percentile, bins=len(counts))
        for number, percentile in zip(chosen, percentiles, strict=True)
    )


def compute_bin_end(number: int, percentile: int, *, bins: int) -> float:
    """Return the end of a bin among equal ones from -1 to 1: the lower one below the median, else the upper one."""
    return 2.0 * (number + (percentile >= HUNDREDTHS / 2)) / bins - 1.0
