"""Composition of privacy profiles, and the Gaussian noise that many updates on random samples need.

A privacy profile is delta as a function of epsilon. The profile of one update has a closed form
(`make_poisson_profile`, `make_fixed_size_profile`); that of T updates together is computed by composing privacy loss
distributions, from a discretisation that can only overestimate. Proofs: `noisy_sgd.md`, sections 3 to 5. Events of any
kind are composed the same way from upper bounds on their profiles (`discretise_profile`). Proofs: `composition.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from boltdp._array_types import Doubles, Integers
from boltdp._bisect import bisect, bisect_integers
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.mechanisms import calibrate_unit_gaussian

#: The delta of one update at each epsilon >= 0; at negative epsilons it follows by symmetry.
Profile: TypeAlias = Callable[[Doubles], Doubles]

#: The loss grid has this many steps per epsilon / sqrt(T), which increases the variance by at most 1 %.
RESOLUTION = 40
#: The maximum number of positive grid points of one update's losses.
MAX_LOSSES = 1 << 16
#: The maximum number of epsilons at which a slow profile, up to a millisecond per value, is evaluated.
MAX_POINTS = 96
#: The share of delta for each of two truncations: of one update's losses, and of their sum.
TRUNCATION_SHARE = 1e-4
#: An upper bound on the relative rounding error of the Fourier transforms.
ROUNDING = 1e-6
#: Deviations are tried in steps of a factor 2^(1/512), 0.14 %, so that machines that round differently agree.
RUNGS_PER_DOUBLING = 512
#: Chernoff's bound exceeds delta by less than this factor, so a larger bound needs no Fourier transform.
MAX_CHERNOFF_RATIO = 1e6
MIN_DEVIATION = 2.0**-3
#: A larger deviation is treated as this one, an upper bound on its cost that does not overflow.
MAX_DEVIATION = 1e9
#: A larger epsilon guarantees nothing and would overflow.
MAX_EPSILON = 100.0


def make_poisson_profile(deviation: float, *, rate: float) -> Profile:
    """Return the privacy profile, for replace-one, of the Poisson-subsampled Gaussian on a sum of vectors of norm <= 1.

    With the deviation s and the sampling rate q, the worst-case pair is (1 - q)*N(0, s^2) + q*N(1, s^2) and
    (1 - q)*N(0, s^2) + q*N(-1, s^2).

    Proof: noisy_sgd.md 3
    """
    deviation = min(deviation, MAX_DEVIATION)
    shift = 1.0 / deviation
    c = rate * math.exp(-0.5 * shift**2)
    if c == 0.0:  # the noise is too small to hide anything
        return np.ones_like

    def compute_delta(epsilon: Doubles) -> Doubles:
        # Where the likelihood ratio is a = e^epsilon, y = e^(x/s^2) solves c*y^2 - (1 - q)*(a - 1)*y - c*a = 0.
        ratio, excess = np.exp(epsilon), (1.0 - rate) * np.expm1(epsilon)
        edge = deviation * np.log((excess + np.hypot(excess, 2.0 * c * np.sqrt(ratio))) / (2.0 * c))
        moved: Doubles = _compute_normal_cdf(shift - edge) - ratio * _compute_normal_cdf(-shift - edge)
        delta: Doubles = rate * moved - excess * _compute_normal_cdf(-edge)
        return np.maximum(delta, 0.0)

    return compute_delta


def make_fixed_size_profile(deviation: float, *, rate: float) -> Profile:
    """Return the privacy profile of the Gaussian mechanism of sensitivity 1 on a uniform sample of fixed size.

    It is q times the profile without sampling at ln(1 + (e^epsilon - 1)/q), where q is `rate`, the sampled share.

    Proof: noisy_sgd.md 4
    """
    deviation = min(deviation, MAX_DEVIATION)
    half = 0.5 / deviation

    def compute_delta(epsilon: Doubles) -> Doubles:
        inner = np.log1p(np.expm1(epsilon) / rate)
        edge = inner * deviation
        delta: Doubles = _compute_normal_cdf(half - edge) - np.exp(inner) * _compute_normal_cdf(-half - edge)
        return rate * np.maximum(delta, 0.0)

    return compute_delta


def _compute_normal_cdf(x: Doubles) -> Doubles:
    """Return the standard normal distribution function, with a small relative error in the lower tail too."""
    return 0.5 * np.fromiter(map(math.erfc, (-math.sqrt(0.5) * x).tolist()), np.float64, len(x))


def _find_fast_length(least: int) -> int:
    """Return the smallest number >= least without prime factors above 5, for fast Fourier transforms of losses."""
    odd_parts: Iterable[int] = (3**threes * 5**fives for threes in range(21) for fives in range(14))
    return min(odd << ((least - 1) // odd).bit_length() for odd in odd_parts)


@dataclass(frozen=True)
class PrivacyLossDistribution:
    """The privacy loss of one event: `masses` at multiples `places` of `width`, and the mass at infinity."""

    width: float
    places: Integers
    masses: Doubles
    infinite: float

    def tilt_masses(self, tilt: float) -> tuple[float, Doubles]:
        """Return ln E e^(tilt * loss) over the finite losses, and their exponentially tilted probabilities."""
        # Far tails underflow to 0, whose logarithm is correctly minus infinity.
        with np.errstate(divide="ignore"):
            exponents = np.log(self.masses) + tilt * self.width * self.places
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        return top + math.log(total), weights / total


def bound_delta_of_updates(profile: Profile, *, updates: int, budget: Budget) -> float:
    """Return an upper bound on the delta, at `budget.epsilon`, of the composition of `updates` updates.

    The bound is tight near `budget.delta`; far above it, it may be 1.

    Proof: noisy_sgd.md 5
    """
    losses = _discretise_update(
        profile, updates=updates, epsilon=budget.epsilon, allowed=TRUNCATION_SHARE * budget.delta
    )
    return 1.0 if losses is None else bound_delta_of_losses([(losses, updates)], budget)


def bound_delta_of_losses(parts: Sequence[tuple[PrivacyLossDistribution, int]], budget: Budget) -> float:
    """Return an upper bound on the delta, at `budget.epsilon`, of loss distributions, each composed `count` times.

    Their widths must be the same. The bound is tight near `budget.delta`; far above it, it may be 1.

    Proof: noisy_sgd.md 5
    Proof: composition.md 3
    """
    epsilon, allowed, width = budget.epsilon, TRUNCATION_SHARE * budget.delta, parts[0][0].width

    def compute_tilted_mean(tilt: float) -> float:
        return math.fsum(
            count * (width * float(losses.places @ losses.tilt_masses(tilt)[1])) for losses, count in parts
        )

    def compute_log_moment(tilt: float) -> float:
        return math.fsum(count * losses.tilt_masses(tilt)[0] for losses, count in parts)

    infinite = math.fsum(count * losses.infinite for losses, count in parts)
    if infinite >= 1.0 or not compute_tilted_mean(0.0) < epsilon:
        return 1.0
    # The tilt gives the sum of all losses the mean epsilon, so that the relevant losses are not in a far tail.
    low, high = 0.0, math.log(1.0 / budget.delta) / epsilon
    while compute_tilted_mean(high) < epsilon:
        low, high = high, 2.0 * high
        chernoff = math.exp(min(0.0, compute_log_moment(low) - low * epsilon))
        if chernoff < 0.5 * budget.delta:
            return min(1.0, chernoff + infinite)
    tilt, _ = bisect(lambda tilt: not compute_tilted_mean(tilt) < epsilon, low, high, tolerance=0.05)
    tilted = compute_log_moment(tilt)
    if tilted - tilt * epsilon > math.log(MAX_CHERNOFF_RATIO * budget.delta):
        return 1.0
    top = min(
        (compute_log_moment(steeper) - math.log(allowed)) / steeper
        for steeper in (tilt * factor for factor in (1.01, 1.03, 1.1, 1.3, 2.0))
    )
    bottom = max(
        (math.log(1e-12) + tilted - compute_log_moment(flatter)) / (tilt - flatter)
        for flatter in (tilt * factor for factor in (0.9, 0.5, 0.0))
    )
    first = math.floor(min(bottom, 0.5 * epsilon) / width)
    size = _find_fast_length(math.ceil(max(top, 2.0 * epsilon) / width) - first + 1)
    product: Any = 1.0
    for losses, count in parts:
        weights = losses.tilt_masses(tilt)[1]
        product = product * np.fft.rfft(np.bincount(losses.places % size, weights=weights, minlength=size)) ** count
    probabilities = np.roll(np.maximum(np.fft.irfft(product, size), 0.0), -(first % size))
    sums = np.arange(first, first + size) * width
    probabilities, sums = probabilities[sums > epsilon], sums[sums > epsilon]
    reached = probabilities * np.exp(tilted - tilt * sums) * -np.expm1(epsilon - sums)
    return min(1.0, (float(reached.sum()) + infinite + allowed) * (1.0 + ROUNDING))


def discretise_profile(profile: Profile, *, width: float, longest: float) -> PrivacyLossDistribution:
    """Return a privacy loss distribution on multiples of `width` whose profile is an upper bound on `profile`.

    `profile` is any upper bound on the mechanism's profile at positive epsilons up to `longest`; it need not be
    convex. It is evaluated at MAX_POINTS epsilons at most.

    Proof: composition.md 2
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
        slope = _compute_chord_slope(hull[-1], point)
        while slopes and slope <= slopes[-1]:
            hull.pop()
            slopes.pop()
            slope = _compute_chord_slope(hull[-1], point)
        hull.append(point)
        slopes.append(slope)
    bends = np.maximum(np.diff([*slopes, 0.0]), 0.0)  # the masses of the second distribution at ratios above 1
    corners = np.array([place for place, _, _ in hull[1:]])
    at_one = max(0.0, 2.0 * slopes[0] + 1.0 - middle)
    masses = np.concatenate([bends[::-1], [at_one], bends * np.exp(width * corners)])
    return PrivacyLossDistribution(width, np.concatenate([-corners[::-1], [0], corners]), masses, float(deltas[-1]))


def _compute_chord_slope(left: tuple[int, float, float], right: tuple[int, float, float]) -> float:
    """Return the slope of a profile between two points of (grid index, e^epsilon - 1, delta)."""
    return (right[2] - left[2]) / (right[1] - left[1])


def find_smallest_deviation(profile: Callable[[float], Profile], *, updates: int, budget: Budget) -> float:
    """Return the smallest standard deviation of noise, on a geometric grid, with which all updates are in the budget.

    Proof: noisy_sgd.md 5
    """
    if budget.epsilon > MAX_EPSILON:
        raise ParameterError(f"epsilon must be <= {MAX_EPSILON:g} where rows are sampled, got {budget.epsilon:g}")

    def get_deviation(rung: int) -> float:
        return MIN_DEVIATION * math.pow(2.0, rung / RUNGS_PER_DOUBLING)

    def is_within_budget(rung: int) -> bool:
        return bound_delta_of_updates(profile(get_deviation(rung)), updates=updates, budget=budget) <= budget.delta

    # Without sampling it would be `whole`, and a few rungs more as the discretisation overestimates.
    whole = 2.0 * math.sqrt(updates) * calibrate_unit_gaussian(budget)
    low, high = -1, max(0, math.ceil(RUNGS_PER_DOUBLING * math.log2(whole / MIN_DEVIATION)))
    while not is_within_budget(high):
        low, high = high, high + 1
    return get_deviation(bisect_integers(is_within_budget, low, high))


def _discretise_update(
    profile: Profile, *, updates: int, epsilon: float, allowed: float
) -> PrivacyLossDistribution | None:
    """Return the loss distribution of one update, on a grid, from its privacy profile; None if losses are too large.

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
