"""What many events spend together, and how much Gaussian noise each of many updates on random samples needs.

A privacy profile is delta as a function of epsilon. The profile of one update has a closed form (`poisson_profile`,
`fixed_size_profile`); that of T updates together is computed by composing privacy loss distributions, from a
discretisation that can only overstate. Proofs: `noisy_sgd.md`, sections 3 to 5. Events of any kind are composed
the same way from bounds of their profiles (`interpolated`). Proofs: `composition.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from boltdp._arrays import Doubles, Integers
from boltdp._bisect import bisect, bisect_integers
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.mechanisms import gaussian_sigma

#: delta at each epsilon >= 0 of one update; at negative ones it follows by symmetry.
Profile: TypeAlias = Callable[[Doubles], Doubles]

#: PrivacyLossDistribution are multiples of this part of epsilon / sqrt(T): their variance grows by a percent at most.
RESOLUTION = 40
#: Positive losses of one update that are distinguished, at most.
MAX_LOSSES = 1 << 16
#: Epsilons at which a profile is asked, at most, where each answer may take a millisecond.
MAX_POINTS = 96
#: The part of delta that is given to what is cut off, twice.
CUT_OFF = 1e-4
#: Beyond any rounding in the transforms, as a part of the result.
ROUNDING = 1e-6
#: Deviations are tried in steps of 2^(1/512), 0.14 %, so that machines that round differently find the same one.
RUNGS_PER_DOUBLING = 512
#: Chernoff's bound is never this many times too large: what it says of such a delta saves the transforms.
FAR_ABOVE = 1e6
MIN_DEVIATION = 2.0**-3
#: More noise only spends less, and is taken for this much, which double precision can hold.
MAX_DEVIATION = 1e9
#: Beyond this nothing is guaranteed, and double precision runs out.
MAX_EPSILON = 100.0


def poisson_profile(deviation: float, *, rate: float) -> Profile:
    """A sum of vectors of length <= 1, each row in it with probability `rate`, one row replaced, with Gaussian noise.

    Section 3: (1 - q)*N(0, s^2) + q*N(1, s^2) against (1 - q)*N(0, s^2) + q*N(-1, s^2) is the worst pair.

    Proof: noisy_sgd.md 3

    >>> poisson_profile(2.0, rate=1.0)(np.zeros(1)).round(4)
    array([0.3829])
    """
    deviation = min(deviation, MAX_DEVIATION)
    shift = 1.0 / deviation
    c = rate * math.exp(-0.5 * shift**2)
    if c == 0.0:  # so little noise that nothing is hidden
        return np.ones_like

    def profile(epsilon: Doubles) -> Doubles:
        # Where the likelihood ratio is a = e^epsilon, y = e^(x/s^2) solves c*y^2 - (1 - q)*(a - 1)*y - c*a = 0.
        ratio, excess = np.exp(epsilon), (1.0 - rate) * np.expm1(epsilon)
        edge = deviation * np.log((excess + np.hypot(excess, 2.0 * c * np.sqrt(ratio))) / (2.0 * c))
        delta: Doubles = rate * (_below(shift - edge) - ratio * _below(-shift - edge)) - excess * _below(-edge)
        return np.maximum(delta, 0.0)

    return profile


def fixed_size_profile(deviation: float, *, rate: float) -> Profile:
    """A function of sensitivity 1 of a uniform sample of fixed size, `rate` of the rows, with Gaussian noise.

    Section 4: q times the profile of the Gaussian noise alone, at ln(1 + (e^epsilon - 1)/q).

    Proof: noisy_sgd.md 4

    >>> fixed_size_profile(1.0, rate=0.5)(np.zeros(1)).round(4)
    array([0.1915])
    """
    deviation = min(deviation, MAX_DEVIATION)
    half = 0.5 / deviation

    def profile(epsilon: Doubles) -> Doubles:
        inner = np.log1p(np.expm1(epsilon) / rate)
        delta: Doubles = _below(half - inner * deviation) - np.exp(inner) * _below(-half - inner * deviation)
        return rate * np.maximum(delta, 0.0)

    return profile


def _below(x: Doubles) -> Doubles:
    """The probability that a standard normal variable is below x: relatively precise in the lower tail too.

    >>> _below(np.array([-37.5, 0.0, 9.0]))
    array([4.60535301e-308, 5.00000000e-001, 1.00000000e+000])
    """
    return 0.5 * np.fromiter(map(math.erfc, (-math.sqrt(0.5) * x).tolist()), np.float64, len(x))


def _fast_length(least: int) -> int:
    """The smallest number >= least without prime factors above 5: a transform of such a length is quick.

    >>> _fast_length(7), _fast_length(65_537), _fast_length(10**6)
    (8, 65610, 1000000)
    """
    odd_parts: Iterable[int] = (3**threes * 5**fives for threes in range(21) for fives in range(14))
    return min(odd << ((least - 1) // odd).bit_length() for odd in odd_parts)


@dataclass(frozen=True)
class PrivacyLossDistribution:
    """The privacy loss of one event: multiples of `width` with their probabilities, and that of an infinite loss."""

    width: float
    places: Integers
    masses: Doubles
    infinite: float

    def tilted(self, tilt: float) -> tuple[float, Doubles]:
        """Give ln E e^(tilt * loss) of the finite losses, and their probabilities weighted by it."""
        # Far tails underflow to 0, whose logarithm is minus infinity, which is right.
        with np.errstate(divide="ignore"):
            exponents = np.log(self.masses) + tilt * self.width * self.places
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        return top + math.log(total), weights / total

    def level(self, tilt: float) -> float:
        """Give ln E e^(tilt * loss) of the finite losses."""
        return self.tilted(tilt)[0]

    def mean(self, tilt: float) -> float:
        """The mean of the loss, weighted so."""
        return self.width * float(self.places @ self.tilted(tilt)[1])


def composed_delta(profile: Profile, *, updates: int, budget: Budget) -> float:
    """An upper bound of delta at `budget.epsilon` after this many updates of this profile: section 5.

    It is close where it is near `budget.delta`; far above it may be 1.

    Proof: noisy_sgd.md 5

    >>> gaussian = poisson_profile(2 * 4.224679 * 10, rate=1.0)
    >>> 1e-6 < composed_delta(gaussian, updates=100, budget=Budget(1.0, 1e-6)) < 1.05e-6
    True
    """
    losses = _discretise(profile, updates=updates, epsilon=budget.epsilon, allowed=CUT_OFF * budget.delta)
    return 1.0 if losses is None else delta_of_sum([(losses, updates)], budget)


def delta_of_sum(parts: Sequence[tuple[PrivacyLossDistribution, int]], budget: Budget) -> float:
    """An upper bound of delta at `budget.epsilon`, if each of these losses is suffered as often as stated.

    Their widths must be the same. It is close where it is near `budget.delta`; far above it may be 1.

    Proof: noisy_sgd.md 5
    Proof: composition.md 3

    >>> guess = interpolate_profile(lambda epsilons: np.where(epsilons < 1.0, 1.0, 0.0), width=0.25, longest=1.0)
    >>> delta_of_sum([(guess, 2)], Budget(1.75, 1e-6)) < 0.2
    True
    """

    def mean(tilt: float) -> float:
        return math.fsum(count * losses.mean(tilt) for losses, count in parts)

    def level(tilt: float) -> float:
        return math.fsum(count * losses.level(tilt) for losses, count in parts)

    epsilon, allowed, width = budget.epsilon, CUT_OFF * budget.delta, parts[0][0].width
    infinite = math.fsum(count * losses.infinite for losses, count in parts)
    if infinite >= 1.0 or not mean(0.0) < epsilon:
        return 1.0
    # Under the measure tilted so that the sum of all losses has the mean epsilon, nothing of interest is a far tail.
    low, high = 0.0, math.log(1.0 / budget.delta) / epsilon
    while mean(high) < epsilon:
        low, high = high, 2.0 * high
        chernoff = math.exp(min(0.0, level(low) - low * epsilon))
        if chernoff < 0.5 * budget.delta:
            return min(1.0, chernoff + infinite)
    tilt, _ = bisect(lambda tilt: not mean(tilt) < epsilon, low, high, tolerance=0.05)
    tilted = level(tilt)
    if tilted - tilt * epsilon > math.log(FAR_ABOVE * budget.delta):
        return 1.0
    top = min(
        (level(steeper) - math.log(allowed)) / steeper
        for steeper in (tilt * factor for factor in (1.01, 1.03, 1.1, 1.3, 2.0))
    )
    bottom = max(
        (math.log(1e-12) + tilted - level(flatter)) / (tilt - flatter)
        for flatter in (tilt * factor for factor in (0.9, 0.5, 0.0))
    )
    first = math.floor(min(bottom, 0.5 * epsilon) / width)
    size = _fast_length(math.ceil(max(top, 2.0 * epsilon) / width) - first + 1)
    product: Any = 1.0
    for losses, count in parts:
        weights = losses.tilted(tilt)[1]
        product = product * np.fft.rfft(np.bincount(losses.places % size, weights=weights, minlength=size)) ** count
    probabilities = np.roll(np.maximum(np.fft.irfft(product, size), 0.0), -(first % size))
    sums = np.arange(first, first + size) * width
    probabilities, sums = probabilities[sums > epsilon], sums[sums > epsilon]
    reached = probabilities * np.exp(tilted - tilt * sums) * -np.expm1(epsilon - sums)
    return min(1.0, (float(reached.sum()) + infinite + allowed) * (1.0 + ROUNDING))


def interpolate_profile(profile: Profile, *, width: float, longest: float) -> PrivacyLossDistribution:
    """PrivacyLossDistribution, multiples of `width`, of a pair whose profile is nowhere below a mechanism's.

    `profile` is any upper bound of the mechanism's profile, at positive epsilons up to `longest`; it need not be
    convex. It is asked at MAX_POINTS of them at most.

    Proof: composition.md 2

    >>> losses = interpolate_profile(lambda epsilons: np.where(epsilons < 1.0, 1.0, 0.0), width=1.0, longest=1.0)
    >>> losses.places, losses.masses.round(3), losses.infinite
    (array([-1,  0,  1]), array([0.269, 0.   , 0.731]), 0.0)
    """
    stride = max(1, math.ceil(longest / (MAX_POINTS * width)))
    places = stride * np.arange(1, max(1, math.ceil(longest / (stride * width))) + 1)
    epsilons: Doubles = width * places.astype(np.float64)
    deltas = np.minimum.accumulate(np.clip(profile(epsilons), 0.0, 1.0))
    excesses = np.expm1(epsilons)  # e^epsilon - 1
    middle = float(np.min((2.0 * deltas + excesses) / (excesses + 2.0), initial=1.0))
    hull = [(0, 0.0, middle)]
    slopes: list[float] = []
    for point in zip(places.tolist(), excesses.tolist(), deltas.tolist(), strict=True):
        slope = _slope(hull[-1], point)
        while slopes and slope <= slopes[-1]:
            hull.pop()
            slopes.pop()
            slope = _slope(hull[-1], point)
        hull.append(point)
        slopes.append(slope)
    bends = np.maximum(np.diff([*slopes, 0.0]), 0.0)  # the second of the pair's masses, at ratios above 1
    corners = np.array([place for place, _, _ in hull[1:]])
    at_one = max(0.0, 2.0 * slopes[0] + 1.0 - middle)
    masses = np.concatenate([bends[::-1], [at_one], bends * np.exp(width * corners)])
    return PrivacyLossDistribution(width, np.concatenate([-corners[::-1], [0], corners]), masses, float(deltas[-1]))


def _slope(left: tuple[int, float, float], right: tuple[int, float, float]) -> float:
    return (right[2] - left[2]) / (right[1] - left[1])


def smallest_deviation(profile: Callable[[float], Profile], *, updates: int, budget: Budget) -> float:
    """The smallest standard deviation, on a fixed ladder, at which this many updates keep the budget.

    Proof: noisy_sgd.md 5

    >>> budget = Budget(1.0, 1e-6)
    >>> once, often = (
    ...     smallest_deviation(lambda one: poisson_profile(one, rate=0.01), updates=updates, budget=budget)
    ...     for updates in (1, 100)
    ... )
    >>> 0.5 < once < often < 2.0
    True
    """
    if budget.epsilon > MAX_EPSILON:
        raise ParameterError(f"epsilon must be <= {MAX_EPSILON:g} where rows are sampled, got {budget.epsilon:g}")

    def deviation(rung: int) -> float:
        return MIN_DEVIATION * math.pow(2.0, rung / RUNGS_PER_DOUBLING)

    def keeps(rung: int) -> bool:
        return composed_delta(profile(deviation(rung)), updates=updates, budget=budget) <= budget.delta

    # With all rows in every update it would be this, and a few rungs more for what the discretisation overstates.
    whole = 2.0 * math.sqrt(updates) * gaussian_sigma(budget)
    low, high = -1, max(0, math.ceil(RUNGS_PER_DOUBLING * math.log2(whole / MIN_DEVIATION)))
    while not keeps(high):
        low, high = high, high + 1
    return deviation(bisect_integers(keeps, low, high))


def _discretise(profile: Profile, *, updates: int, epsilon: float, allowed: float) -> PrivacyLossDistribution | None:
    """The losses of a pair whose profile is nowhere below the given one; None where they are too large to be of use.

    As a function of e^epsilon the profile is convex; the pair's is its interpolation at the multiples of the width.

    Proof: noisy_sgd.md 5
    """
    longest = epsilon / math.sqrt(updates)
    while updates * float(profile(np.array([longest]))[0]) > allowed:
        longest *= 1.25
        if longest > 2.0 * MAX_EPSILON:
            return None
    width = max(epsilon / (RESOLUTION * math.sqrt(updates)), longest / MAX_LOSSES)
    places = np.arange(math.ceil(longest / width) + 1)
    grid: Doubles = width * places.astype(np.float64)
    deltas = profile(grid)
    falls = np.append(-np.diff(deltas), 0.0)
    positive = np.maximum((falls[:-1] * math.exp(width) - falls[1:]) / math.expm1(width), 0.0)
    negative = positive * np.exp(-grid[1:])
    infinite = float(deltas[-1])
    middle = max(0.0, 1.0 - infinite - float(positive.sum()) - float(negative.sum()))
    masses = np.concatenate([negative[::-1], [middle], positive])
    return PrivacyLossDistribution(width, np.concatenate([-places[:0:-1], places]), masses, infinite)
