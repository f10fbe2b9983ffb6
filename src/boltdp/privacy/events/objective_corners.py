"""Upper bounds on how one row, or one person, changes the density of the minimiser of a perturbed objective.

Proofs: `objective_perturbation.md`, sections 2, 3, and `adjacency.md`, section 4.

A row shifts the noise by v, and it changes the volume (the Jacobian determinant) of the map from minimisers to noise.
Both follow from the row's class probabilities: a row whose gradient is longest has no curvature. `bound_privacy_loss`
bounds both at once for spherical noise. With a delta, every corner of the polytope that holds v gets its own share of
the volume term (`split_volume_term`). `tilt` sets the shares: any tilt is valid, 0 gives all corners the same share,
and `choose_tilt` searches for the one with the smallest delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import product

import numpy as np
from flint import arb

from boltdp._array_types import Doubles
from boltdp.losses import Simplex
from boltdp.privacy.mechanisms import Mechanism, compute_gaussian_delta, set_precision
from boltdp.privacy.spherical_delta import MAX_DIMENSIONS, MAX_DISTANCE, choose_spherical_bits, compute_spherical_delta

#: The search tries tilts that are multiples of 1/64.
TILTS = 64
#: The search for a tilt rounds the noise scale to a power of 2^(1/16), so that its result can be cached.
SCALES_PER_OCTAVE = 16
MAX_OCTAVES = 300.0
#: A tilt must lower delta by this part to be used, which is more than the rounding error of the search.
MIN_SAVING = 0.002
#: With two classes, the corners of all rows of a person are summed together for up to this many rows.
MAX_EXPANDED_ROWS = 8
#: Gauss-Legendre nodes on [-1, 1] and their weights, for approximations in double precision.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)


def bound_privacy_loss(simplex: Simplex, strength: arb, scale: arb) -> arb:
    """Return an enclosure of the largest privacy loss of one row under spherical noise; `strength` is m*Lambda.

    Proof: objective_perturbation.md 3
    """
    edge, directions = arb(simplex.edge_squared).sqrt(), arb(simplex.directions)
    # In units of the edge: t is the scale, c the strength and r the norm of the row's slope.
    t, c = scale / edge, strength / edge**2
    steepness = (2 * directions / simplex.vertices).sqrt()
    kink = 1 / steepness

    def compute_loss(r: arb, mistaken: arb) -> arb:
        return r / t + directions * (1 + (mistaken - r * r) / (directions * c)).log()

    near = _solve_quadratic(2 * directions * t - steepness, directions * (c + steepness * t)).min(kink)
    far = _solve_quadratic(2 * directions * t, directions * c + 1).max(kink).min(arb(1))
    return 1 / t + compute_loss(near, steepness * near).max(compute_loss(far, arb(1)))


def split_volume_term(simplex: Simplex, strength: arb, tilt: float) -> tuple[arb, arb]:
    """Return the volume term at corners where both rows shift the noise in the same direction, and at the others.

    Proof: objective_perturbation.md 2
    """
    directions, lean = simplex.directions, arb(tilt)
    mean = arb(simplex.edge_squared) / (2 * simplex.vertices)
    left = mean * (1 - lean * lean)
    volume, slope = directions * (1 + left / strength).log(), 2 * mean * lean / (strength + left)
    return volume - slope * directions * (1 - lean), volume + slope * (1 + directions * lean)


def sum_corner_deltas(
    simplex: Simplex, strength: tuple[int, float], noise: Mechanism, epsilon: float, tilt: float, rows: int = 1
) -> arb:
    """Return an enclosure of a bound on the minimiser's delta, a sum over the corners; 1 where none is proved.

    `strength` is m and Lambda; `rows` is the number of replaced rows.

    Proof: objective_perturbation.md 2, 3
    Proof: adjacency.md 4
    """
    gaussian, longest = noise.kind == "gaussian", 2.0 * rows * math.sqrt(simplex.edge_squared) / noise.scale
    with set_precision(256 if gaussian else choose_spherical_bits(longest)):
        strength_, whole = arb(strength[0]) * arb(strength[1]), arb(epsilon)
        edge = arb(simplex.edge_squared).sqrt() / arb(noise.scale)

        def spent(length: arb, volume: arb) -> arb:
            # Rounding down to a double makes the functions below much faster.
            left = arb(math.nextafter(float((whole - volume).lower()), -math.inf))
            if not left > 0:
                return arb(1)
            return (
                compute_gaussian_delta(length, left)
                if gaussian
                else compute_spherical_delta(length, left, noise.dimensions)
            )

        same, aside = split_volume_term(simplex, strength_, tilt)
        alone = rows * _sum_corners(simplex, spent, rows * edge, rows * same, rows * aside)
        if rows == 1 or rows > MAX_EXPANDED_ROWS or simplex.vertices > 2:
            return alone
        together = arb(0)
        for leaving, coming in product(range(rows + 1), repeat=2):
            if leaving + coming:
                volume = leaving * same + (rows - leaving) * aside
                ways = math.comb(rows, leaving) * math.comb(rows, coming)
                together += ways * spent((leaving + coming) * edge, volume)
        return alone.min(together)


def _sum_corners(simplex: Simplex, spent: Callable[[arb, arb], arb], edge: arb, same: arb, aside: arb) -> arb:
    """Return the sum of the deltas at the corners of the simplex, for one replaced row.

    Proof: objective_perturbation.md 3
    """
    longest, near = simplex.directions * spent(2 * edge, same), spent(edge, aside)
    if simplex.vertices == 2:
        return longest + near + spent(edge, same)
    between = (simplex.vertices - 2) * spent(arb(3).sqrt() * edge, aside)
    return longest + simplex.directions * (between + 2 * near)


def choose_tilt(
    simplex: Simplex, strength: tuple[int, float], noise: Mechanism, epsilon: float, rows: int = 1
) -> float:
    """Return the tilt of the volume term that about minimises `sum_corner_deltas`, from public numbers only."""
    octave = round(SCALES_PER_OCTAVE * math.log2(noise.scale)) / SCALES_PER_OCTAVE
    # Beyond these limits the search would overflow.
    if abs(octave) > MAX_OCTAVES or (noise.kind == "spherical" and noise.dimensions > MAX_DIMENSIONS):
        return 0.0
    with np.errstate(all="ignore"):
        return _search_tilt(simplex, strength[0] * strength[1], noise.kind, noise.dimensions, octave, epsilon, rows)


def _solve_quadratic(linear: arb, constant: arb) -> arb:
    """Return the positive root of x^2 + linear*x = constant, for a positive constant."""
    return 2 * constant / (linear + (linear * linear + 4 * constant).sqrt())


@lru_cache(maxsize=1024)
def _search_tilt(
    simplex: Simplex, strength: float, kind: str, dimensions: int, octave: float, epsilon: float, rows: int
) -> float:
    """Search the tilt of the volume term with the smallest delta, approximately, for noise of scale 2^octave."""
    edge = rows * math.sqrt(simplex.edge_squared) / math.pow(2.0, octave)
    tilts = np.arange(TILTS + 1) / TILTS
    directions, others, mean = simplex.directions, simplex.vertices - 2, simplex.edge_squared / (2 * simplex.vertices)
    left = mean * (1 - tilts**2)
    volume, slope = directions * np.log1p(left / strength), 2 * mean * tilts / (strength + left)
    same = rows * (volume - slope * directions * (1 - tilts))
    aside = rows * (volume + slope * (1 + directions * tilts))
    # A larger tilt would use up all of epsilon at some corners.
    tilts = tilts[aside < epsilon]
    if tilts.size < 2 or (kind == "spherical" and 2.0 * edge > MAX_DISTANCE):
        return 0.0
    same, aside = epsilon - same[: tilts.size], epsilon - aside[: tilts.size]
    spent = directions * _approximate_delta(kind, dimensions, 2.0 * edge, same)
    spent += (2 * directions if others else 1) * _approximate_delta(kind, dimensions, edge, aside)
    if others:
        spent += directions * others * _approximate_delta(kind, dimensions, math.sqrt(3.0) * edge, aside)
    spent[0] *= 1.0 - MIN_SAVING
    return float(tilts[spent.argmin()])


def _approximate_delta(kind: str, dimensions: int, distance: float, epsilons: Doubles) -> Doubles:
    """Approximate delta of noise of scale 1 at each epsilon > 0 in double precision; no guarantee depends on it."""
    if kind == "gaussian":
        return np.array([_approximate_gaussian_delta(distance, epsilon) for epsilon in epsilons.tolist()])
    if dimensions == 1:
        return -np.expm1(np.minimum(0.0, (epsilons - distance) / 2))
    spent = _approximate_spherical_delta(dimensions, distance, np.minimum(epsilons, (1 - 1e-9) * distance))
    return np.where(epsilons < distance, spent, 0.0)


def _approximate_gaussian_delta(distance: float, epsilon: float) -> float:
    middle, half = epsilon / distance, distance / 2
    root = math.sqrt(2.0)
    grown = math.exp(min(epsilon, 700.0)) * math.erfc((middle + half) / root)
    return (math.erfc((middle - half) / root) - grown) / 2


def _approximate_spherical_delta(dimensions: int, distance: float, epsilons: Doubles) -> Doubles:
    """Approximate `compute_spherical_delta` by Gauss-Legendre quadrature, after substituting v = 1 - (1-c)*w^2."""
    half, order = distance / 2, dimensions / 2 - 1
    with set_precision(choose_spherical_bits(distance)):
        lower, upper = arb(half).bessel_k(arb(order)), arb(half).bessel_k(arb(order) + 1)
        ratio, log_lower = float(upper / lower) * (dimensions - 1) / half, float(lower.log())
    factor = 2 * math.log(half) + order * math.log(half / 2) - math.lgamma(order + 1.5) + log_lower
    factor -= math.log(2 * math.sqrt(math.pi))
    least = epsilons / distance
    room = 1 - least
    # The quadrature starts at the w where the integrand has fallen to e^-40 of its value at c.
    decay = np.maximum((dimensions - 3) * least / (1 + least) - half * room, 1.0)
    start = np.sqrt(np.maximum(0.0, 1 - 40 / decay))[:, None]
    w = start + (1 - start) * ((1.0 + _NODES) / 2)
    below = room[:, None] * w**2
    v = 1 - below
    rest = below * (1 + v)
    # The logarithm of (1 - v^2)^((n-3)/2) * dv/dw, in a form that is not 0/0 in two dimensions.
    powers = (dimensions - 2) / 2 * np.log(rest) + np.log(2 * np.sqrt(room[:, None] / (1 + v)))
    density = np.exp(factor + powers + half * v) * (ratio + rest) * -np.expm1(epsilons[:, None] - distance * v)
    spent: Doubles = (density * (1 - start)) @ (_WEIGHTS / 2)
    return spent
