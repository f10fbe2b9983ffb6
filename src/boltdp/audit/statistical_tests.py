"""Confidence bounds from counts and samples, each with a stated probability of error."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist

import numpy as np
from flint import arb

from boltdp._array_types import Doubles
from boltdp._bisect import bisect
from boltdp.privacy.mechanisms import Mechanism, compute_gaussian_delta, set_precision
from boltdp.privacy.spherical_delta import choose_spherical_bits, compute_spherical_delta


@lru_cache(maxsize=4096)
def bound_rate(hits: int, trials: int, *, mistake: float) -> tuple[float, float]:
    """Return Clopper-Pearson bounds on a rate, each of which is wrong with a probability of at most `mistake`."""
    misses = trials - hits
    low = 0.0 if not hits else _find_root(lambda rate: _compute_beta_cdf(rate, hits, misses + 1) - mistake)
    high = 1.0 if not misses else _find_root(lambda rate: _compute_beta_cdf(rate, hits + 1, misses) - (1.0 - mistake))
    return low, high


def compute_exact_delta(noise: Mechanism, epsilon: float, *, distance: float) -> float:
    """Return the exact delta at `epsilon` of noise that is added to a value which one row moves by `distance`."""
    if distance == 0.0:
        return 0.0
    gaussian = noise.kind == "gaussian"
    with set_precision(256 if gaussian else choose_spherical_bits(distance / noise.scale)):
        ratio = arb(distance) / arb(noise.scale)
        delta = (
            compute_gaussian_delta(ratio, arb(epsilon))
            if gaussian
            else compute_spherical_delta(ratio, arb(epsilon), noise.dimensions)
        )
        return max(0.0, float(delta.lower()))


def find_largest_epsilon(compute_delta: Callable[[float], float], *, delta: float, most: float) -> float:
    """Return the largest epsilon, up to `most`, at which `compute_delta` exceeds `delta`.

    It is a lower bound on the true epsilon, and 0 where `delta` is exceeded nowhere. `compute_delta` decreases.
    """
    if not compute_delta(0.0) > delta:
        return 0.0
    if compute_delta(most) > delta:
        return most
    return bisect(lambda epsilon: not compute_delta(epsilon) > delta, 0.0, most, steps=50)[0]


def compute_normal_quantile(rate: float) -> float:
    """Return a quantile of the standard normal distribution, which is infinite at the rates 0 and 1."""
    return NormalDist().inv_cdf(rate) if 0 < rate < 1 else math.copysign(math.inf, rate - 0.5)


def rejects_distribution(sample: Doubles, distribution: Callable[[Doubles], Doubles], *, mistake: float) -> bool:
    """Return whether a Kolmogorov-Smirnov test at level `mistake` rejects a distribution: by Massart's inequality."""
    ordered = np.sort(sample)
    shares = np.arange(len(ordered) + 1) / len(ordered)
    expected = distribution(ordered)
    gap = max(float(np.max(expected - shares[:-1])), float(np.max(shares[1:] - expected)))
    return gap > math.sqrt(math.log(2.0 / mistake) / (2.0 * len(ordered)))


def rejects_isotropic(sample: Doubles, *, kind: str, mistake: float) -> bool:
    """Return whether tests at level `mistake` reject that a sample is of spherical or Gaussian noise of scale 1.

    The norm has a known distribution. The angle of any two coordinates is uniform, whatever the norm is, and whatever
    the norm of the draw before was.
    """
    dimensions, norms = sample.shape[1], np.linalg.norm(sample, axis=1)
    # Half the squared norm of normals in d dimensions has the shape d/2.
    sizes, shape = (norms, dimensions) if kind == "spherical" else (norms**2 / 2.0, dimensions / 2.0)
    long = norms > np.median(norms)
    after_long = np.concatenate([[False], long[:-1]])
    groups = [long, ~long, after_long, ~after_long]
    planes = list(combinations(range(dimensions), 2))
    mistake /= 1 + len(planes) * len(groups)
    if rejects_distribution(sizes, make_gamma_cdf(shape), mistake=mistake):
        return True
    turns = [np.arctan2(sample[:, i], sample[:, j]) / (2.0 * math.pi) + 0.5 for i, j in planes]
    return any(rejects_distribution(turn[group], np.asarray, mistake=mistake) for turn in turns for group in groups)


def compute_normal_cdf(at: Doubles) -> Doubles:
    """Return the standard normal distribution function at each of some points."""
    return np.array([NormalDist().cdf(one) for one in at.tolist()])


def make_gamma_cdf(shape: float) -> Callable[[Doubles], Doubles]:
    """Return the gamma distribution function: of the norm of spherical noise of scale 1 in `shape` dimensions."""
    return lambda at: np.array([_compute_gamma_cdf(shape, one) for one in at.tolist()])


def _compute_gamma_cdf(shape: float, at: float) -> float:
    """Return the gamma distribution function to within 1e-12, although its series cancels in high dimensions."""
    bits = 64
    while True:
        with set_precision(bits):
            enclosed = arb(at).gamma_lower(arb(shape), regularized=1)
        if enclosed.rad() < 1e-12:
            return float(enclosed)
        bits *= 2


def _compute_beta_cdf(at: float, a: int, b: int) -> float:
    """Return the beta distribution function, by its continued fraction, to ten digits."""
    if at > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _compute_beta_cdf(1.0 - at, b, a)
    if at <= 0.0:
        return 0.0
    lead = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(at) + b * math.log1p(-at)
    above = 1.0
    total = below = 1.0 / (1.0 - (a + b) * at / (a + 1.0))
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


def _find_root(function: Callable[[float], float]) -> float:
    """Return the rate between 0 and 1 at which an increasing function is zero, by bisection."""
    return 0.5 * sum(bisect(lambda at: function(at) > 0, 0.0, 1.0, steps=60))
