"""Upper bounds on how one row, or one person, changes the density of the minimiser of a perturbed objective.

Proofs: `objective_perturbation.md`, sections 2, 3, and `adjacency.md`, section 4.

A row shifts the noise by v, and it changes the volume (the Jacobian determinant) of the map from minimisers to noise.
Both follow from the row's class probabilities: a row whose gradient is longest has no curvature. `bound_privacy_loss`
bounds both at once for spherical noise. With a delta, every corner of the polytope that holds v gets its own share of
the volume term (`split_volume_term`). `tilt` sets the shares: any tilt is valid, 0 gives all corners the same share,
and `choose_tilt` searches for the one with the smallest delta. How long the corners are depends on the two rows: where
labels are numbers, `list_corners` tells several cases apart, each with a tilt of its own, and the worst one counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import pairwise, product

import numpy as np
from flint import arb

from boltdp._array_types import Doubles
from boltdp.losses import Simplex
from boltdp.privacy.events.sgd_sensitivity import UNIT
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
#: Where the cases of `list_corners` for labels that are numbers begin and end.
CASES = (0.0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1.0)
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

    if simplex.kink_curvature is not None:
        return 2 / t + split_volume_term(simplex, strength, 0.0)[0]

    def compute_loss(r: arb, mistaken: arb) -> arb:
        return r / t + directions * (1 + (mistaken - r * r) / (directions * c)).log()

    near = _solve_quadratic(2 * directions * t - steepness, directions * (c + steepness * t)).min(kink)
    if isinstance(simplex.anchor, float):
        # On either side of the anchor, r is the distance from the vertex on the other side.
        below, above = arb(simplex.anchor), 1 - arb(simplex.anchor)
        up, down = near.max(below), near.max(above)
        worst = (compute_loss(up, up) - below / t).max(compute_loss(down, down) - above / t)
        return below.max(above) / t + worst
    far = _solve_quadratic(2 * directions * t, directions * c + 1).max(kink).min(arb(1))
    return 1 / t + compute_loss(near, steepness * near).max(compute_loss(far, arb(1)))


def split_volume_term(simplex: Simplex, strength: arb, tilt: float) -> tuple[arb, arb]:
    """Return the volume term at corners where both rows shift the noise in the same direction, and at the others.

    Where slopes have kinks the two are equal, whatever the tilt.

    Proof: objective_perturbation.md 2
    """
    # With kinks, the curvature may be the largest at any corner.
    directions, lean = simplex.directions, arb(tilt if simplex.kink_curvature is None else 0.0)
    mean = arb(simplex.mean_curvature)
    left = mean * (1 - lean * lean)
    volume, slope = directions * (1 + left / strength).log(), 2 * mean * lean / (strength + left)
    return volume - slope * directions * (1 - lean), volume + slope * (1 + directions * lean)


@dataclass(frozen=True)
class Corners:
    """The numbers of corners by length, in units of the edge: pairs of a count and a length squared."""

    same: tuple[tuple[int, float], ...]  #: those with the smaller share of the volume term, the longest first
    aside: tuple[tuple[int, float], ...]  #: those with the larger share


@lru_cache(maxsize=64)
def list_corners(simplex: Simplex) -> tuple[Corners, ...]:
    """Return upper bounds on the corners' lengths for each case; any two rows belong to one of the cases.

    Proof: objective_perturbation.md 3
    """
    directions = simplex.directions
    if simplex.anchor == "vertex" and simplex.vertices == 2:
        return (Corners(((1, 4.0), (1, 1.0)), ((1, 1.0),)),)
    if simplex.anchor == "vertex":
        return (Corners(((directions, 4.0),), ((2 * directions, 1.0), (directions * (simplex.vertices - 2), 3.0))),)
    if simplex.anchor == "any":
        return tuple(
            Corners(((1, (2.0 - least) ** 2), (1, most**2)), ((2, 1.0 + most**2),)) for least, most in pairwise(CASES)
        )
    return tuple(dict.fromkeys(_list_corners_of_anchor(simplex.anchor)))


def _list_corners_of_anchor(anchor: float) -> Iterator[Corners]:
    """Yield the cases of rows whose inner product is from -1 to 0, and from 0 to 1, for an anchor that is fixed.

    Proof: objective_perturbation.md 3
    """
    # The products and sums below round by less than 16 units.
    up, twice = 1.0 + 16.0 * UNIT, 2.0 * anchor * (1.0 - anchor)
    long, short = max(anchor, 1.0 - anchor), min(anchor, 1.0 - anchor)
    sides = ((2, 0.25),) if anchor == 0.5 else ((1, long**2), (1, short**2))
    for least, most in pairwise(CASES):
        apart, close = (up * (4.0 - 2.0 * least), up * 2.0 * most)
        along, across = up * (1.0 - twice * least), up * ((1.0 - 2.0 * anchor) ** 2 + twice * most)
        yield Corners(tuple((count, side * apart) for count, side in sides), ((2, across),))
        yield Corners(((2, along),), tuple((count, side * close) for count, side in sides))


def bound_corner_deltas(
    simplex: Simplex,
    strength: tuple[int, float],
    noise: Mechanism,
    epsilon: float,
    rows: int = 1,
    other_mu: float = 0.0,
) -> arb:
    """Return an enclosure of a bound on the minimiser's delta: of the worst case of rows, each with the best tilt.

    Gaussian mechanisms of mu `other_mu` are composed with it, if the noise is Gaussian. Where there are several cases,
    none of them may be released before the minimiser, as it could decide the case.

    Proof: objective_perturbation.md 3
    Proof: adjacency.md 4
    Proof: noisy_matrix.md 3
    """
    cases = []
    for case in range(len(list_corners(simplex))):
        tilt = choose_tilt(simplex, strength, noise, epsilon, rows, case, other_mu)
        cases.append(sum_corner_deltas(simplex, strength, noise, epsilon, tilt, rows, case, other_mu))
    with set_precision(256):
        return reduce(arb.max, cases)


def sum_corner_deltas(
    simplex: Simplex,
    strength: tuple[int, float],
    noise: Mechanism,
    epsilon: float,
    tilt: float,
    rows: int = 1,
    case: int = 0,
    other_mu: float = 0.0,
) -> arb:
    """Return an enclosure of the sum over the corners of one case, a bound on its delta; 1 where none is proved.

    `strength` is m and Lambda; `rows` is the number of replaced rows, and `case` one of `list_corners`. Gaussian
    mechanisms of mu `other_mu` are composed with each corner, and the corner of length 0 then counts too.

    Proof: objective_perturbation.md 2, 3
    Proof: adjacency.md 4
    Proof: noisy_matrix.md 3
    """
    corners, gaussian = list_corners(simplex)[case], noise.kind == "gaussian"
    assert gaussian or not other_mu
    longest = math.sqrt(corners.same[0][1]) * rows * math.sqrt(simplex.edge_squared) / noise.scale
    with set_precision(256 if gaussian else choose_spherical_bits(longest)):
        strength_, whole = arb(strength[0]) * arb(strength[1]), arb(epsilon)
        edge = arb(simplex.edge_squared).sqrt() / arb(noise.scale)

        def compute_delta(length: arb, volume: arb) -> arb:
            # Rounding down to a double makes the functions below much faster.
            left = arb(math.nextafter(float((whole - volume).lower()), -math.inf))
            if not left > 0:
                return arb(1)
            if other_mu:
                length = (length * length + arb(other_mu) ** 2).sqrt()
            return (
                compute_gaussian_delta(length, left)
                if gaussian
                else compute_spherical_delta(length, left, noise.dimensions)
            )

        same, aside = split_volume_term(simplex, strength_, tilt)
        alone = arb(0)
        for share, lengths in ((same, corners.same), (aside, corners.aside)):
            for count, square in lengths:
                alone += rows * count * compute_delta(arb(square).sqrt() * (rows * edge), rows * share)
        # Of an anchor that is a number all corners are listed; of a vertex, all but that of length 0.
        unlisted = compute_delta(arb(0), rows * aside) if other_mu and simplex.anchor == "vertex" else arb(0)
        alone += rows * unlisted
        if rows == 1 or rows > MAX_EXPANDED_ROWS or simplex.vertices > 2 or simplex.anchor != "vertex":
            return alone
        together = arb(0)
        for leaving, coming in product(range(rows + 1), repeat=2):
            if leaving + coming:
                volume = leaving * same + (rows - leaving) * aside
                ways = math.comb(rows, leaving) * math.comb(rows, coming)
                together += ways * compute_delta((leaving + coming) * edge, volume)
        return alone.min(together + unlisted)


def choose_tilt(
    simplex: Simplex,
    strength: tuple[int, float],
    noise: Mechanism,
    epsilon: float,
    rows: int = 1,
    case: int = 0,
    other_mu: float = 0.0,
) -> float:
    """Return the tilt of the volume term that about minimises `sum_corner_deltas`, from public numbers only."""
    octave = round(SCALES_PER_OCTAVE * math.log2(noise.scale)) / SCALES_PER_OCTAVE
    # Beyond these limits the search would overflow.
    if abs(octave) > MAX_OCTAVES or (noise.kind == "spherical" and noise.dimensions > MAX_DIMENSIONS):
        return 0.0
    if simplex.kink_curvature is not None:
        return 0.0
    with np.errstate(all="ignore"):
        return _search_tilt(
            simplex, strength[0] * strength[1], noise.kind, noise.dimensions, octave, epsilon, rows, case, other_mu
        )


def _solve_quadratic(linear: arb, constant: arb) -> arb:
    """Return the positive root of x^2 + linear*x = constant, for a positive constant."""
    return 2 * constant / (linear + (linear * linear + 4 * constant).sqrt())


@lru_cache(maxsize=4096)
def _search_tilt(
    simplex: Simplex,
    strength: float,
    kind: str,
    dimensions: int,
    octave: float,
    epsilon: float,
    rows: int,
    case: int,
    other_mu: float,
) -> float:
    """Search the tilt of the volume term with the smallest delta, approximately, for noise of scale 2^octave."""
    edge = rows * math.sqrt(simplex.edge_squared) / math.pow(2.0, octave)
    tilts = np.arange(TILTS + 1) / TILTS
    directions, mean = simplex.directions, simplex.mean_curvature
    left = mean * (1 - tilts**2)
    volume, slope = directions * np.log1p(left / strength), 2 * mean * tilts / (strength + left)
    same = rows * (volume - slope * directions * (1 - tilts))
    aside = rows * (volume + slope * (1 + directions * tilts))
    # A larger tilt would use up all of epsilon at some corners.
    tilts = tilts[aside < epsilon]
    # The other corners with the same share add far less than the longest.
    (count, longest), corners = list_corners(simplex)[case].same[0], list_corners(simplex)[case].aside
    if tilts.size < 2 or (kind == "spherical" and math.sqrt(longest) * edge > MAX_DISTANCE):
        return 0.0
    same, aside = epsilon - same[: tilts.size], epsilon - aside[: tilts.size]
    if other_mu and simplex.anchor == "vertex":
        corners = (*corners, (1, 0.0))
    spent = count * _approximate_delta(kind, dimensions, math.hypot(math.sqrt(longest) * edge, other_mu), same)
    for count, square in corners:
        spent += count * _approximate_delta(kind, dimensions, math.hypot(math.sqrt(square) * edge, other_mu), aside)
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
