"""Noisy moments of the features, which centre and scale them before training.

This module has their sensitivity, noise and privacy profile; `release_with_noise.py` draws the noise, and
`workflows/standardize.py` computes centres and scales from them.

A row x is encoded, without the intercept and before any division: |x_j| <= 1, and ||x|| <= r, the clip norm.
The release is one vector with one draw of noise. Its contents depend on `moments`:

`squares`   the sums of all x_j, and those of x_j^2 where the feature is a number (of a category or a step x_j^2 = x_j)
`mean`      the sums of all x_j, and that of ||x||^2, times a public weight
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError, check_choice, check_number, check_whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import NoisyRelease
from boltdp.privacy.events.output_perturbation import check_dimensions
from boltdp.privacy.mechanisms import Mechanism, calibrate, calibrate_unit_gaussian
from boltdp.privacy.training_problem import IF_GIVEN, check_person_rows

Moments = Literal["squares", "mean"]

#: Each row's terms are rounded to multiples of this, which makes the sums exact: `boltdp.kernel.feature_sums`.
UNIT = 2.0**-20
#: The maximum of rows times r^2: above it the sums would not fit in a double.
MAX_SUM = 2.0**33


@dataclass(frozen=True, kw_only=True)
class NoisyMoments(NoisyRelease):
    """One release of moments."""

    kind = "noisy moments"
    moments: Moments
    features: int  #: n
    numbers: int  #: of these, the features that are numbers
    clip_norm: float  #: r
    noise: Mechanism | None = None  #: of the released vector; None: noiseless
    person_rows: int | None = field(default=None, metadata=IF_GIVEN)  #: g, as `Problem` has it

    def __post_init__(self) -> None:
        check_choice(self.moments, "moments", Moments)
        check_whole_number(self.features, "features", least=1)
        if check_whole_number(self.numbers, "numbers", least=0) > self.features:
            raise ParameterError(f"numbers must be at most the {self.features} features, got {self.numbers}")
        # The norm of a row is at most the square root of its number of features, up to rounding.
        if not 1e-9 <= check_number(self.clip_norm, "clip_norm") <= math.sqrt(self.features) * (1 + 1e-9):
            raise ParameterError(
                f"the clip norm of {self.features} features must be at least 1e-9 and at most their square root, "
                f"got {self.clip_norm}"
            )
        check_person_rows(self.person_rows)
        if self.noise is not None:
            check_dimensions(self.noise, self.dimensions)

    @property
    def dimensions(self) -> int:
        """The length of the released vector."""
        return self.features + (self.numbers if self.moments == "squares" else 1)

    @property
    def norm_weight(self) -> float:
        """The factor of ||x||^2 in the released vector: a power of two of at most 1/r, so that the product is exact."""
        return 2.0 ** -math.ceil(math.log2(self.clip_norm))

    @property
    def sensitivity(self) -> float:
        """The L2-sensitivity of the released vector to one row, or one person, rounding included.

        Proof: noisy_moments.md 1, 2, 4
        Proof: adjacency.md 2
        """
        rows = 1 if self.person_rows is None else self.person_rows
        if self.moments == "squares":
            bound, rounding = self.clip_norm * math.sqrt(14 / 3), UNIT * math.sqrt(self.dimensions)
        else:
            # Each square is rounded, so their sum has an error of up to half a unit per feature.
            bound = 2.0 * self.clip_norm
            rounding = UNIT * math.sqrt(self.features + (self.features * self.norm_weight) ** 2)
        # Rounding of doubles: in the clipped norm of a row, in its squares, and in this formula.
        return rows * (bound * (1.0 + (self.features + 16) * 2.0**-50) + rounding * (1.0 + 2.0**-20))

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        return 1.0 if self.noise is None else self.noise.delta(epsilon, sensitivity=self.sensitivity)

    def calibrate_noise(self, budget: Budget | None, *, gaussian: bool = False) -> NoisyMoments:
        """Return the event with the smallest noise within a budget, which is Gaussian if `gaussian` is set."""
        if budget is None:
            return self
        if gaussian:
            deviation = math.nextafter(self.sensitivity * calibrate_unit_gaussian(budget), math.inf)
            return replace(self, noise=Mechanism("gaussian", deviation, self.dimensions))
        return replace(self, noise=calibrate(self.sensitivity, dimensions=self.dimensions, budget=budget))

    @property
    def mean_deviation(self) -> float:
        """The standard deviation, in rows, of the noise in the sum of a feature."""
        return 0.0 if self.noise is None else self.noise.deviation

    def describe(self) -> str:
        what = "centres and scales" if self.moments == "squares" else "centres and the clip norm"
        return f"{what} of {self.features:,} features" + (", without noise" if self.noise is None else "")


@dataclass(frozen=True)
class ReleasedMoments:
    """Released moments: noisy means over all rows."""

    means: Doubles  #: of each feature
    squares: Doubles | None  #: of the squares of those features that are numbers
    squared_norm: float | None  #: of ||x||^2
    deviation: float | Doubles  #: the standard deviation of the noise of each mean and mean square


def check_moment_rows(rows: int, *, clip_norm: float) -> None:
    """Raise ParameterError for more rows than the kernel sums exactly for noisy moments.

    Proof: noisy_moments.md 4
    """
    if rows * max(1.0, clip_norm**2) > MAX_SUM:
        raise ParameterError(
            f"standardization must be of at most {int(MAX_SUM / max(1.0, clip_norm**2)):,} such rows, got {rows:,}"
        )
