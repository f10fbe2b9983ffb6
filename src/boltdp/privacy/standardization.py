"""Noisy moments of the features, which centre and scale them before training. Proofs: `standardization.md`.

Here are their part of the budget, their sensitivity, and their release.

A row x is encoded, without the intercept and before any division by a radius: |x_j| <= 1, and ||x|| <= r by clipping.
Released is one vector with one draw of noise. It is, by `moments`,

`squares`   the sums of all x_j, and those of x_j^2 where the feature is a number (of a category x_j^2 = x_j)
`mean`      the sums of all x_j, and that of ||x||^2, times a public weight
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from boltdp.arraytypes import Booleans, Doubles, Integers
from boltdp.errors import ParameterError, real_number, whole_number
from boltdp.privacy.noise import Budget, Mechanism, calibrate, seeded_bytes, system_bytes

Moments = Literal["squares", "mean"]

#: Each row's terms are rounded to whole multiples of this, so that the sums are exact: `boltdp.kernel.moments`.
UNIT = 2.0**-20
#: Above this many rows times r^2 the sums would not fit in a double.
MOST = 2.0**33


@dataclass(frozen=True, kw_only=True)
class Standardized:
    """The certificate's record of a release of moments, in public numbers; `standardized` makes it."""

    share: float  #: the part of the whole budget that it spent
    moments: Moments
    features: int  #: n
    squared: int  #: of these, the features that are numbers
    radius: float  #: r
    budget: Budget | None = None  #: what the share is; None: noiseless
    sensitivity: float = 0.0  #: of the released vector, in L2, rounding included
    mechanism: Mechanism | None = None  #: of the released vector

    def __post_init__(self) -> None:
        if self.moments not in get_args(Moments):
            raise ParameterError(f"moments must be one of {', '.join(get_args(Moments))}, got {self.moments!r}")
        if not 0 < real_number(self.share, "share") < 1:
            raise ParameterError(f"the share of standardization must be above 0 and below 1, got {self.share}")
        whole_number(self.features, "features", least=1)
        if whole_number(self.squared, "squared", least=0) > self.features:
            raise ParameterError(f"squared must be at most the {self.features} features, got {self.squared}")
        # No row is longer than the square root of its number of features; the last digit may be rounded.
        if not 1e-9 <= real_number(self.radius, "radius") <= math.sqrt(self.features) * (1 + 1e-9):
            raise ParameterError(
                f"the radius of {self.features} features must be at least 1e-9 and at most their square root, "
                f"got {self.radius}"
            )

    @property
    def dimensions(self) -> int:
        """How many numbers are released."""
        return self.features + (self.squared if self.moments == "squares" else 1)

    @property
    def norm_weight(self) -> float:
        """What ||x||^2 is multiplied by: at most 1/r, for section 2; a power of two, so that the product is exact."""
        return 2.0 ** -math.ceil(math.log2(self.radius))

    def left(self, whole: Budget) -> Budget:
        """What remains of the whole budget, by basic composition: section 3."""
        return whole.take(self.share)[1]

    def describe(self) -> str:
        """What was spent on what, in plain words."""
        what = "centres and scales" if self.moments == "squares" else "centres and the radius"
        if self.budget is None:
            return f"{what} of {self.features:,} features, without noise"
        epsilon, delta = self.budget.epsilon, self.budget.delta
        spent = f"epsilon = {epsilon:g}, delta = {delta:g}" if delta else f"epsilon = {epsilon:g}"
        return f"{what} of {self.features:,} features, for {self.share:.3g} of the budget ({spent})"


@dataclass(frozen=True)
class NoisyMoments:
    """Released moments, which may be shown: means over all rows, with noise."""

    means: Doubles  #: of each feature
    squares: Doubles | None  #: of the squares of those features that are numbers
    squared_norm: float | None  #: of ||x||^2
    deviation: float  #: the standard deviation of the noise of each mean and mean square


def standardized(
    *,
    share: float,
    moments: Moments,
    features: int,
    squared: int,
    radius: float,
    whole: Budget | None,
    stated: Mechanism | None = None,
) -> Standardized:
    """The record of a release of moments that spends `share` of the whole budget.

    `stated` is the noise of an existing record: it stays if it is one of those that are enough.

    >>> record = standardized(share=0.1, moments="mean", features=9, squared=9, radius=3.0, whole=Budget(1.0))
    >>> record.budget, round(record.sensitivity, 4), record.mechanism.dimensions
    (Budget(epsilon=0.1, delta=0.0), 6.0, 10)
    """
    record = Standardized(share=share, moments=moments, features=features, squared=squared, radius=radius)
    sensitivity = _sensitivity(record)
    if whole is None:
        return replace(record, sensitivity=sensitivity)
    budget, _ = whole.take(share)
    mechanism = calibrate(sensitivity, dimensions=record.dimensions, budget=budget, stated=stated)
    return replace(record, budget=budget, sensitivity=sensitivity, mechanism=mechanism)


def release_moments(
    sums: Integers,
    record: Standardized,
    *,
    rows: int,
    numbers: Booleans,
    seed: int | None = None,
) -> NoisyMoments:
    """Add to `sums`, the two lines of `boltdp.kernel.moments`, the noise that `record` states.

    `numbers` says which features are numbers. The noise of a seed is not that of the weights, from the same seed.

    >>> record = standardized(share=0.1, moments="mean", features=2, squared=2, radius=1.0, whole=None)
    >>> sums = np.array([[2**20, 0], [2**20, 0]])
    >>> release_moments(sums, record, rows=2, numbers=np.array([True, True])).means
    array([0.5, 0. ])
    """
    if sums.shape != (2, record.features) or numbers.shape != (record.features,) or numbers.sum() != record.squared:
        raise ParameterError(f"sums must be of {record.features} features, {record.squared} of them numbers")
    check_rows(rows, radius=record.radius)
    if record.moments == "squares":
        vector = np.concatenate([sums[0], sums[1][numbers]]) * UNIT
    else:
        vector = np.append(sums[0] * UNIT, float(sums[1].sum()) * UNIT * record.norm_weight)
    deviation = 0.0
    if record.mechanism is not None:
        random_bytes = system_bytes if seed is None else seeded_bytes(f"moments {seed}")
        vector = record.mechanism.add(vector, random_bytes)
        deviation = record.mechanism.deviation / rows
    means, rest = vector[: record.features] / rows, vector[record.features :] / rows
    if record.moments == "squares":
        return NoisyMoments(means, rest, None, deviation)
    return NoisyMoments(means, None, float(rest[0]) / record.norm_weight, deviation)


def check_rows(rows: int, *, radius: float) -> None:
    """Refuse more rows than the sums are exact for.

    >>> check_rows(10**9, radius=1.0)
    """
    if rows * max(1.0, radius**2) > MOST:
        raise ParameterError(
            f"standardization must be of at most {int(MOST / max(1.0, radius**2)):,} such rows, got {rows:,}"
        )


def read_standardized(record: dict[str, Any]) -> Standardized:
    """Read what `dataclasses.asdict` made of a record.

    >>> import dataclasses
    >>> made = standardized(share=0.1, moments="mean", features=9, squared=9, radius=3.0, whole=Budget(1.0))
    >>> read_standardized(dataclasses.asdict(made)) == made
    True
    """
    budget, mechanism = record["budget"], record["mechanism"]
    parts = {
        "budget": None if budget is None else Budget(**budget),
        "mechanism": None if mechanism is None else Mechanism(**mechanism),
    }
    return Standardized(**{**record, **parts})


def _sensitivity(record: Standardized) -> float:
    """Sections 1 and 2: how far one row can move the released vector."""
    if record.moments == "squares":
        bound, rounding = record.radius * math.sqrt(14 / 3), UNIT * math.sqrt(record.dimensions)
    else:
        # The squares are rounded one by one: their sum is off by as many halves of a unit as there are features.
        bound = 2.0 * record.radius
        rounding = UNIT * math.sqrt(record.features + (record.features * record.norm_weight) ** 2)
    # Rounding of doubles: in the length that a row is shortened to, in its squares, and in this formula.
    return bound * (1.0 + (record.features + 16) * 2.0**-50) + rounding * (1.0 + 2.0**-20)
