"""What can be concluded from counts and samples, with a stated probability of being wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from flint import arb

from boltdp._arrays import Doubles
from boltdp._bisect import bisect
from boltdp.privacy.mechanisms import Mechanism, gaussian_delta, precision
from boltdp.privacy.spherical_delta import spherical_bits, spherical_delta


@lru_cache(maxsize=4096)
def rate_bounds(hits: int, trials: int, *, mistake: float) -> tuple[float, float]:
    """Clopper and Pearson's bounds on a rate, each of which is wrong with a probability of at most `mistake`.

    >>> low, high = rate_bounds(50, 100, mistake=0.025)
    >>> round(low, 4), round(high, 4)
    (0.3983, 0.6017)
    >>> rate_bounds(0, 100, mistake=0.025)[0], rate_bounds(100, 100, mistake=0.025)[1]
    (0.0, 1.0)
    """
    low = 0.0 if hits == 0 else _root(lambda rate: _beta(rate, hits, trials - hits + 1) - mistake)
    high = 1.0 if hits == trials else _root(lambda rate: _beta(rate, hits + 1, trials - hits) - (1.0 - mistake))
    return low, high


def least_spent(noise: Mechanism, epsilon: float, *, distance: float) -> float:
    """What noise spends of delta at least if one row moves what it hides by `distance`: the exact divergence.

    >>> round(least_spent(Mechanism("gaussian", 1.0, 3), 1.0, distance=1.0), 6)
    0.126937
    >>> least_spent(Mechanism("spherical", 1.0, 3), 1.0, distance=0.5)
    0.0
    """
    if distance == 0.0:
        return 0.0
    if noise.kind == "gaussian":
        with precision(256):
            delta = gaussian_delta(arb(distance) / arb(noise.scale), arb(epsilon))
            return max(0.0, float(delta.lower()))
    with precision(spherical_bits(distance / noise.scale)):
        delta = spherical_delta(arb(distance) / arb(noise.scale), arb(epsilon), noise.dimensions)
        return max(0.0, float(delta.lower()))


def largest_epsilon(spent: Callable[[float], float], *, delta: float, most: float) -> float:
    """The largest epsilon, up to `most`, at which more than `delta` is spent: so much is proved, and no less holds.

    `spent` falls with epsilon. 0 where it spends no more anywhere.

    >>> round(largest_epsilon(lambda epsilon: math.exp(-epsilon), delta=0.25, most=8.0), 6)
    1.386294
    """
    if not spent(0.0) > delta:
        return 0.0
    if spent(most) > delta:
        return most
    return bisect(lambda epsilon: not spent(epsilon) > delta, 0.0, most, steps=50)[0]


def normal_quantile(rate: float) -> float:
    """The inverse of the normal distribution function.

    >>> round(normal_quantile(0.975), 6)
    1.959964
    """
    if not 0 < rate < 1:
        return math.inf if rate >= 1 else -math.inf
    return 12.0 * (2.0 * _root(lambda at: _normal(12.0 * (2.0 * at - 1.0)) - rate) - 1.0)


def too_far(sample: Doubles, distribution: Callable[[Doubles], Doubles], *, mistake: float) -> bool:
    """Whether a sample is certainly not of a distribution, but for a probability of `mistake`: by Massart's inequality.

    >>> normals = np.random.default_rng(1).standard_normal(1000)
    >>> too_far(normals, normal, mistake=1e-3), too_far(normals / 2, normal, mistake=1e-3)
    (False, True)
    """
    ordered = np.sort(sample)
    shares = np.arange(len(ordered) + 1) / len(ordered)
    expected = distribution(ordered)
    gap = max(float(np.max(expected - shares[:-1])), float(np.max(shares[1:] - expected)))
    return gap > math.sqrt(math.log(2.0 / mistake) / (2.0 * len(ordered)))


def normal(at: Doubles) -> Doubles:
    """The normal distribution function."""
    return np.array([_normal(one) for one in at.tolist()])


def gamma(shape: int) -> Callable[[Doubles], Doubles]:
    """The distribution function of the norm of spherical noise of scale 1, in this many dimensions.

    >>> gamma(1)(np.array([math.log(2.0)])).round(6)
    array([0.5])
    """

    def function(at: Doubles) -> Doubles:
        with precision(128):
            return np.array([float(arb(one).gamma_lower(arb(shape), regularized=1)) for one in at.tolist()])

    return function


def _beta(at: float, a: int, b: int) -> float:
    """The distribution function of the beta distribution, by its continued fraction, to ten digits."""
    if at > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta(1.0 - at, b, a)
    if at <= 0.0:
        return 0.0
    lead = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(at) + b * math.log1p(-at)
    total = above = 1.0
    below = 1.0 / (1.0 - (a + b) * at / (a + 1.0))
    total = below
    for k in range(1, 10_000):
        for term in (
            k * (b - k) * at / ((a + 2 * k - 1.0) * (a + 2 * k)),
            -(a + k) * (a + b + k) * at / ((a + 2 * k) * (a + 2 * k + 1.0)),
        ):
            below, above = 1.0 / (1.0 + term * below), 1.0 + term / above
            total *= below * above
        if abs(below * above - 1.0) < 1e-12:
            break
    return math.exp(lead) * total / a


def _normal(at: float) -> float:
    return 0.5 * math.erfc(-at / math.sqrt(2.0))


def _root(function: Callable[[float], float]) -> float:
    """Of a growing function between 0 and 1, by halving."""
    return 0.5 * sum(bisect(lambda at: function(at) > 0, 0.0, 1.0, steps=60))
