"""What one row, or a person's, can do to the density of the minimiser of a perturbed objective.

Proofs: `objective_perturbation.md`, sections 2, 3, and `adjacency.md`, section 4.

It moves the noise, by v, and it stretches the map from minimisers to noise. Both follow from the row's odds: a row that
pulls with all its force is not curved. `most_loss` bounds both at once for spherical noise. With a delta, every corner
of the polytope that holds v counts with its own share of the stretching (`shares_of_volume`), and `tilt` says how it is
shared: any is valid, 0 gives all corners the same, and `best_tilt` looks for the one that spends least.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import product

import numpy as np
from flint import arb

from boltdp._arrays import Doubles
from boltdp.losses import Simplex
from boltdp.privacy.mechanisms import Mechanism, gaussian_delta, precision
from boltdp.privacy.spherical_delta import MAX_DIMENSIONS, MAX_DISTANCE, spherical_bits, spherical_delta

#: Tilts that are tried: multiples of 1/64.
TILTS = 64
#: A tilt is looked for again when the scale of the noise has grown by a factor of 2^(1/16).
SCALES_AN_OCTAVE = 16
MAX_OCTAVES = 300.0
#: How much less a tilt must spend than none, by doubles, to be taken: more than these can be wrong by.
MIN_SAVING = 0.002
#: For up to this many rows of a person the corners of all rows together are summed, where there are two classes.
MAX_EXPANDED = 8
#: The nodes and weights of Gauss and Legendre between 0 and 1, for a look by doubles.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_PLACES, _PARTS = (1.0 + _NODES) / 2, _WEIGHTS / 2


def most_loss(simplex: Simplex, strength: arb, scale: arb) -> arb:
    """The largest loss of privacy, if the noise is spherical of this scale and strength is m*Lambda; an enclosure.

    Proof: objective_perturbation.md 3

    >>> with precision(64):
    ...     float(most_loss(Simplex(2, 1.0), arb(10), arb(4)))
    0.5
    """
    edge, directions = arb(simplex.edge_squared).sqrt(), arb(simplex.directions)
    # In units of the edge: t of the scale, c of the strength, r of the row's slope.
    t, c = scale / edge, strength / edge**2
    steepness = (2 * directions / simplex.vertices).sqrt()
    kink = 1 / steepness

    def loss(r: arb, mistaken: arb) -> arb:
        return r / t + directions * (1 + (mistaken - r * r) / (directions * c)).log()

    near = _positive_root(2 * directions * t - steepness, directions * (c + steepness * t)).min(kink)
    far = _positive_root(2 * directions * t, directions * c + 1).max(kink).min(arb(1))
    return 1 / t + loss(near, steepness * near).max(loss(far, arb(1)))


def shares_of_volume(simplex: Simplex, strength: arb, tilt: float) -> tuple[arb, arb]:
    """What the volumes add to the loss at a corner: where both rows pull the same way, and at the others.

    Proof: objective_perturbation.md 2

    >>> with precision(64):
    ...     [round(float(share), 6) for share in shares_of_volume(Simplex(2, 1.0), arb(10), 1.0)]
    [0.0, 0.1]
    """
    directions, lean = simplex.directions, arb(tilt)
    mean = arb(simplex.edge_squared) / (2 * simplex.vertices)
    left = mean * (1 - lean * lean)
    volume, slope = directions * (1 + left / strength).log(), 2 * mean * lean / (strength + left)
    return volume - slope * directions * (1 - lean), volume + slope * (1 + directions * lean)


def corners_delta(
    simplex: Simplex, strength: tuple[int, float], noise: Mechanism, epsilon: float, tilt: float, rows: int = 1
) -> arb:
    """What the minimiser spends of delta at most, summed over the corners; an enclosure, 1 where nothing is proved.

    `strength` is m and Lambda; `rows` is how many rows leave and come in.

    Proof: objective_perturbation.md 2, 3
    Proof: adjacency.md 4

    >>> noise = Mechanism("gaussian", 10.0, 5)
    >>> [round(float(corners_delta(Simplex(2, 1.0), (1000, 0.01), noise, 0.5, tilt)), 6) for tilt in (0.0, 1.0)]
    [0.000737, 0.000513]
    """
    gaussian, longest = noise.kind == "gaussian", 2.0 * rows * math.sqrt(simplex.edge_squared) / noise.scale
    with precision(256 if gaussian else spherical_bits(longest)):
        strength_, whole = arb(strength[0]) * arb(strength[1]), arb(epsilon)
        edge = arb(simplex.edge_squared).sqrt() / arb(noise.scale)

        def spent(length: arb, volume: arb) -> arb:
            # As a double, rounded down: the functions below are much quicker for it.
            left = arb(math.nextafter(float((whole - volume).lower()), -math.inf))
            if not left > 0:
                return arb(1)
            return gaussian_delta(length, left) if gaussian else spherical_delta(length, left, noise.dimensions)

        same, aside = shares_of_volume(simplex, strength_, tilt)
        alone = rows * _of_one_row(simplex, spent, rows * edge, rows * same, rows * aside)
        if rows == 1 or rows > MAX_EXPANDED or simplex.vertices > 2:
            return alone
        together = arb(0)
        for leaving, coming in product(range(rows + 1), repeat=2):
            if leaving + coming:
                volume = leaving * same + (rows - leaving) * aside
                ways = math.comb(rows, leaving) * math.comb(rows, coming)
                together += ways * spent((leaving + coming) * edge, volume)
        return alone.min(together)


def _of_one_row(simplex: Simplex, spent: Callable[[arb, arb], arb], edge: arb, same: arb, aside: arb) -> arb:
    """The sum over the corners of one row that leaves and one that comes in.

    Proof: objective_perturbation.md 3
    """
    longest, near = simplex.directions * spent(2 * edge, same), spent(edge, aside)
    if simplex.vertices == 2:
        return longest + near + spent(edge, same)
    between = (simplex.vertices - 2) * spent(arb(3).sqrt() * edge, aside)
    return longest + simplex.directions * (between + 2 * near)


def best_tilt(simplex: Simplex, strength: tuple[int, float], noise: Mechanism, epsilon: float, rows: int = 1) -> float:
    """A tilt with which the corners spend about as little as with any; a function of public numbers.

    >>> noise = Mechanism("gaussian", 10.0, 5)
    >>> [best_tilt(Simplex(2, 1.0), (1000, penalty), noise, 0.5) for penalty in (0.0006, 0.001, 0.01)]
    [0.078125, 0.203125, 0.984375]
    """
    octave = round(SCALES_AN_OCTAVE * math.log2(noise.scale)) / SCALES_AN_OCTAVE
    # Beyond these doubles run out.
    if abs(octave) > MAX_OCTAVES or (noise.kind == "spherical" and noise.dimensions > MAX_DIMENSIONS):
        return 0.0
    with np.errstate(all="ignore"):
        return _best_tilt(simplex, strength[0] * strength[1], noise.kind, noise.dimensions, octave, epsilon, rows)


def _positive_root(linear: arb, constant: arb) -> arb:
    """The positive x with x^2 + linear*x = constant, for a positive constant."""
    return 2 * constant / (linear + (linear * linear + 4 * constant).sqrt())


@lru_cache(maxsize=1024)
def _best_tilt(
    simplex: Simplex, strength: float, kind: str, dimensions: int, octave: float, epsilon: float, rows: int
) -> float:
    edge = rows * math.sqrt(simplex.edge_squared) / math.pow(2.0, octave)
    tilts = np.arange(TILTS + 1) / TILTS
    directions, others, mean = simplex.directions, simplex.vertices - 2, simplex.edge_squared / (2 * simplex.vertices)
    left = mean * (1 - tilts**2)
    volume, slope = directions * np.log1p(left / strength), 2 * mean * tilts / (strength + left)
    same = rows * (volume - slope * directions * (1 - tilts))
    aside = rows * (volume + slope * (1 + directions * tilts))
    # With a larger tilt than these, nothing is left at some corners.
    tilts = tilts[aside < epsilon]
    if tilts.size < 2 or (kind == "spherical" and 2.0 * edge > MAX_DISTANCE):
        return 0.0
    same, aside = epsilon - same[: tilts.size], epsilon - aside[: tilts.size]
    spent = directions * _look(kind, dimensions, 2.0 * edge, same)
    spent += (2 * directions if others else 1) * _look(kind, dimensions, edge, aside)
    if others:
        spent += directions * others * _look(kind, dimensions, math.sqrt(3.0) * edge, aside)
    spent[0] *= 1.0 - MIN_SAVING
    return float(tilts[spent.argmin()])


def _look(kind: str, dimensions: int, distance: float, epsilons: Doubles) -> Doubles:
    """About what noise of scale 1 spends of delta at several epsilons > 0, by doubles: `gaussian_delta` and the other.

    To choose by. Nothing that is guaranteed rests on it.
    """
    if kind == "gaussian":
        return np.array([_gaussian_look(distance, epsilon) for epsilon in epsilons.tolist()])
    if dimensions == 1:
        return -np.expm1(np.minimum(0.0, (epsilons - distance) / 2))
    spent = _spherical_look(dimensions, distance, np.minimum(epsilons, (1 - 1e-9) * distance))
    return np.where(epsilons < distance, spent, 0.0)


def _gaussian_look(distance: float, epsilon: float) -> float:
    middle, half = epsilon / distance, distance / 2
    root = math.sqrt(2.0)
    grown = math.exp(min(epsilon, 700.0)) * math.erfc((middle + half) / root)
    return (math.erfc((middle - half) / root) - grown) / 2


def _spherical_look(dimensions: int, distance: float, epsilons: Doubles) -> Doubles:
    """The integral of `spherical_delta`: v = 1 - (1-c)*w^2, with w from where the rest is nothing up to 1."""
    half, order = distance / 2, dimensions / 2 - 1
    with precision(spherical_bits(distance)):
        lower, upper = arb(half).bessel_k(arb(order)), arb(half).bessel_k(arb(order) + 1)
        ratio, log_lower = float(upper / lower) * (dimensions - 1) / half, float(lower.log())
    factor = 2 * math.log(half) + order * math.log(half / 2) - math.lgamma(order + 1.5) + log_lower
    factor -= math.log(2 * math.sqrt(math.pi))
    least = epsilons / distance
    room = 1 - least
    # e to the minus 40 of what there is at c is left where w begins.
    decay = np.maximum((dimensions - 3) * least / (1 + least) - half * room, 1.0)
    start = np.sqrt(np.maximum(0.0, 1 - 40 / decay))[:, None]
    w = start + (1 - start) * _PLACES
    below = room[:, None] * w**2
    v = 1 - below
    rest = below * (1 + v)
    # (1 - v^2)^((n-3)/2) * dv/dw, in a form that is not 0/0 where there are two dimensions.
    powers = (dimensions - 2) / 2 * np.log(rest) + np.log(2 * np.sqrt(room[:, None] / (1 + v)))
    density = np.exp(factor + powers + half * v) * (ratio + rest) * -np.expm1(epsilons[:, None] - distance * v)
    spent: Doubles = (density * (1 - start)) @ _PARTS
    return spent
