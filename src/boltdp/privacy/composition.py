"""How much Gaussian noise each of many updates needs, if every update sees a random sample of the rows.

A privacy profile is delta as a function of epsilon. The profile of one update is known in closed form (`poisson_profile`,
`fixed_size_profile`); that of T updates together is computed by composing privacy loss distributions, from a discretisation
that can only overstate. Proofs: `rivals.md`, sections 3 to 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr

from boltdp.privacy.noise import Budget, gaussian_sigma

Vector = npt.NDArray[np.float64]
#: delta at each epsilon >= 0 of one update; at negative ones it follows by symmetry.
Profile: TypeAlias = Callable[[Vector], Vector]

#: Losses are rounded to this part of epsilon / sqrt(T): their variance grows by less than a percent.
RESOLUTION = 40
#: Losses of one update that are told apart, at most.
MOST_LOSSES = 1 << 16
#: The part of delta that is given to what is cut off.
CUT_OFF = 1e-4
#: Beyond any rounding in the transforms, as a part of delta.
ROUNDING = 1e-6
#: Standard deviations are tried in steps of 2^(1/512), 0.14 %, so that every machine finds the same one.
STEPS_PER_DOUBLING = 512
SMALLEST_DEVIATION = 2.0**-5


def poisson_profile(deviation: float, *, rate: float) -> Profile:
    """A sum of vectors of length at most 1, each row in it with probability `rate`, one row replaced, with Gaussian noise.

    Section 3: (1 - q)*N(0, s^2) + q*N(1, s^2) against (1 - q)*N(0, s^2) + q*N(-1, s^2) is the worst pair.

    >>> poisson_profile(2.0, rate=1.0)(np.zeros(1)).round(4)
    array([0.3829])
    """

    def profile(epsilon: Vector) -> Vector:
        # The likelihood ratio is e^epsilon where y = e^(x/s^2) solves c*y^2 + (1 - q)*(1 - e^epsilon)*y - c*e^epsilon = 0.
        c = rate * math.exp(-0.5 / deviation**2)
        ratio, excess = np.exp(epsilon), (1.0 - rate) * np.expm1(epsilon)
        edge = deviation * np.log((excess + np.sqrt(excess**2 + 4.0 * ratio * c**2)) / (2.0 * c))
        shift = 1.0 / deviation
        return np.maximum(
            rate * (ndtr(shift - edge) - ratio * ndtr(-shift - edge)) - excess * ndtr(-edge),
            0.0,
        )

    return profile


def fixed_size_profile(deviation: float, *, rate: float) -> Profile:
    """A function of sensitivity 1 of a uniform sample of fixed size, `rate` of the rows, with Gaussian noise.

    Section 4: q * H(N(0, s^2), N(1, s^2)) at 1 + (e^epsilon - 1)/q.

    >>> fixed_size_profile(1.0, rate=0.5)(np.zeros(1)).round(4)
    array([0.1915])
    """

    def profile(epsilon: Vector) -> Vector:
        inner = np.log1p(np.expm1(epsilon) / rate)
        half = 0.5 / deviation
        return rate * np.maximum(ndtr(half - inner * deviation) - np.exp(inner) * ndtr(-half - inner * deviation), 0.0)

    return profile


def composed_delta(profile: Profile, *, updates: int, budget: Budget) -> float:
    """An upper bound of delta at `budget.epsilon` after so many updates of this profile: section 5.

    It is close where it is near `budget.delta`, and may be 1 where it is far above.

    >>> gaussian = poisson_profile(2 * 4.224679 * 10, rate=1.0)
    >>> 1e-6 < composed_delta(gaussian, updates=100, budget=Budget(1.0, 1e-6)) < 1.05e-6
    True
    """
    epsilon, delta = budget.epsilon, budget.delta
    allowed = CUT_OFF * delta
    longest = epsilon / math.sqrt(updates)
    while updates * float(profile(np.array([longest]))[0]) > allowed:
        longest *= 1.25
        if longest > 500:
            return 1.0
    width = max(epsilon / (RESOLUTION * math.sqrt(updates)), longest / MOST_LOSSES)
    losses, masses, infinite = _distribution(profile, width=width, count=math.ceil(longest / width))
    with np.errstate(divide="ignore"):
        logarithms = np.log(masses)
    if updates * float(losses @ masses) >= epsilon:
        return 1.0

    def generating(tilt: float) -> tuple[float, float]:
        """The logarithm of the moment generating function of one loss, and its derivative."""
        exponents = logarithms + tilt * losses
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        return top + math.log(float(weights.sum())), float(losses @ weights) / float(weights.sum())

    # Under the measure tilted so that the sum's mean is epsilon, what matters is no longer a far tail.
    low, high = 0.0, math.log(1.0 / delta) / epsilon
    while low == 0.0 or high - low > 0.05 * high:
        middle = (low + high) / 2 if low else high
        level, mean = generating(middle)
        chernoff = math.exp(min(updates * level - middle * epsilon, 0.0)) + updates * infinite
        if chernoff < 0.5 * delta:
            return chernoff
        if updates * mean < epsilon:
            low, high = middle, max(high, 2.0 * middle)
        else:
            high = middle if low else middle / 2
    tilt, level = low, updates * generating(low)[0]
    top = min(
        (updates * generating(factor * tilt)[0] - math.log(allowed)) / (factor * tilt) for factor in (1.01, 1.03, 1.1, 1.3, 2.0)
    )
    bottom = max(
        (math.log(1e-12) + level - updates * generating(factor * tilt)[0]) / (tilt - factor * tilt)
        for factor in (0.8, 0.5, 0.0)
    )
    first = math.floor(min(bottom, 0.5 * epsilon) / width)
    size = next_fast_len(math.ceil((max(top, 2.0 * epsilon)) / width) - first + 1, real=True)
    tilted = np.exp(logarithms + tilt * losses - level / updates)
    places = np.rint(losses / width).astype(np.int64)
    folded = np.bincount(places % size, weights=tilted, minlength=size)
    summed = np.maximum(irfft(rfft(folded) ** updates, size), 0.0)
    sums = (np.arange(first, first + size)) * width
    summed = np.roll(summed, -(first % size))
    above = sums > epsilon
    reached = summed[above] * np.exp(level - tilt * sums[above]) * -np.expm1(epsilon - sums[above])
    return (float(reached.sum()) + updates * infinite + allowed) * (1.0 + ROUNDING)


def smallest_deviation(profile: Callable[[float], Profile], *, updates: int, budget: Budget) -> float:
    """The smallest standard deviation, on a fixed ladder, at which so many updates keep the budget.

    >>> once = smallest_deviation(lambda deviation: poisson_profile(deviation, rate=0.01), updates=1, budget=Budget(1.0, 1e-6))
    >>> more = smallest_deviation(lambda deviation: poisson_profile(deviation, rate=0.01), updates=100, budget=Budget(1.0, 1e-6))
    >>> 0.5 < once < more < 2.0
    True
    """

    def deviation(rung: int) -> float:
        return SMALLEST_DEVIATION * 2.0 ** (rung / STEPS_PER_DOUBLING)

    def keeps(rung: int) -> bool:
        return composed_delta(profile(deviation(rung)), updates=updates, budget=budget) <= budget.delta

    # With all rows in every update it would be this; a rung more for what the discretisation overstates.
    whole = 2.0 * math.sqrt(updates) * gaussian_sigma(budget)
    low, high = -1, max(0, math.ceil(STEPS_PER_DOUBLING * math.log2(whole / SMALLEST_DEVIATION)))
    while not keeps(high):
        low, high = high, high + 1
    while high - low > 1:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle
    return deviation(high)


def _distribution(profile: Profile, *, width: float, count: int) -> tuple[Vector, Vector, float]:
    """Losses, their probabilities and that of an infinite loss, of a pair whose profile is nowhere below the given one.

    The profile is a convex function of e^epsilon; the pair's is its interpolation at the multiples of `width`.
    """
    grid = np.arange(count + 1) * width
    deltas = profile(grid)
    falls = np.append(-np.diff(deltas), 0.0)
    positive = np.maximum((falls[:-1] * math.exp(width) - falls[1:]) / math.expm1(width), 0.0)
    infinite = float(deltas[-1])
    negative = positive * np.exp(-grid[1:])
    losses = np.concatenate([-grid[:0:-1], grid])
    middle = max(0.0, 1.0 - infinite - float(positive.sum()) - float(negative.sum()))
    return losses, np.concatenate([negative[::-1], [middle], positive]), infinite
