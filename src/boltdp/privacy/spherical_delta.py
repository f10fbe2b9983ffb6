"""The delta of spherical noise whose scale is too small for pure privacy. Proofs: `mechanisms.md`, section 6.

The privacy loss between the noise and the noise shifted by a distance has a density in closed form, with Bessel
functions. Delta is one integral over that density, and a power series computes it with an error bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flint import arb, ctx

#: Above these limits the series is long and of little use: Gaussian noise is within 1 % in this many dimensions, and
#: only an epsilon of dozens makes such a distance private.
MAX_DISTANCE = 200.0
MAX_DIMENSIONS = 1000

#: The search stops when the unused part of delta, or the relative error of the scale, is at most this.
TOLERANCE = 1e-11
#: The smallest relative gain over pure noise for which the search is made.
MIN_GAIN = 1e-9


def compute_spherical_delta(distance: arb, epsilon: arb, dimensions: int) -> arb:
    """Return an enclosure of the delta of spherical noise of scale 1 for a sensitivity of `distance`.

    It is narrow at the precision of `choose_spherical_bits`.

    Proof: mechanisms.md 6
    """
    if distance <= epsilon:
        return arb(0)
    if dimensions == 1:
        return 1 - ((epsilon - distance) / 2).exp()
    if dimensions > MAX_DIMENSIONS or not distance <= MAX_DISTANCE:
        return arb(0).union(arb(1))
    half, order = distance / 2, arb(dimensions) / 2 - 1
    factor = half**2 * (half / 2) ** order / (2 * arb.pi().sqrt() * (order + 1.5).gamma())
    near = factor * half.bessel_k(order)
    far = factor * half.bessel_k(order + 1) * (dimensions - 1) / half
    return _integrate_density(half, epsilon, dimensions, far=far, near=near)


def choose_spherical_bits(distance: float) -> int:
    """Return the bits of precision at which `compute_spherical_delta` has 12 correct digits despite cancellation."""
    return 160 + int(5.0 * min(distance, MAX_DISTANCE))


def find_spherical_scale(compute_delta: Callable[[float], arb], *, delta: float, pure: float) -> float:
    """Return the smallest noise scale, to 10 digits, with at most `delta`, or `pure`, the scale for a delta of 0.

    `compute_delta` returns an enclosure of the delta of a scale, decreasing in the scale. A scale with an enclosure too
    wide to decide is rejected.

    Proof: mechanisms.md 6
    """

    def get_scale(shortfall: float) -> float:
        return pure / (1.0 + math.exp(shortfall))

    def compute_excess(shortfall: float) -> float:
        """Return the log ratio of the scale's delta to the allowed one, rounded up; 1 if it is not finite."""
        most = math.nextafter(float((compute_delta(get_scale(shortfall)) / arb(delta)).upper().log().upper()), math.inf)
        return most if math.isfinite(most) else 1.0

    # The excess is nearly linear in `shortfall`, the log of the relative gain over pure noise.
    low, high = math.log(MIN_GAIN), 0.0
    if not (below := compute_excess(low)) <= 0:
        return pure
    while (above := compute_excess(high)) <= 0:
        low, below, high = high, above, high + 2.0
    # Regula falsi, Illinois variant: the value at an end that is kept is halved.
    goal = -TOLERANCE / 2
    left, right, stayed = below - goal, above - goal, ""
    while below < -TOLERANCE and get_scale(low) > get_scale(high) * (1.0 + TOLERANCE):
        middle = high - (high - low) * right / (right - left)
        value = compute_excess(middle)
        if value <= 0:
            low, below, left = middle, value, value - goal
            right, stayed = (right / 2 if stayed == "right" else right), "right"
        else:
            high, right = middle, value - goal
            left, stayed = (left / 2 if stayed == "left" else left), "left"
    return get_scale(low)


def _integrate_density(half: arb, epsilon: arb, dimensions: int, *, far: arb, near: arb) -> arb:
    """Integrate (1 - v^2)^((n-3)/2) * (far + near*(1 - v^2)) * (e^(xv) - e^(epsilon-xv)) from c = epsilon/(2x) to 1.

    It uses the power series of the exponentials in x, which is `half`, and the moments J_k, the integrals of
    (1 - v^2)^((n-3)/2) * v^k.

    Proof: mechanisms.md 6
    """
    least, growth, tiny = epsilon / (2 * half), epsilon.exp(), arb((1, -ctx.prec))
    signs = 1 - growth, 1 + growth
    room, exponent = 1 - least**2, arb(dimensions - 1) / 2
    edge, both = room**exponent, far + near
    first = _compute_first_moment(room, exponent)
    moment, following = first, edge / (dimensions - 1)
    total, weight, k = arb(0), arb(1), 0
    while not (k > 2 * half and weight < tiny):
        edge *= least
        second = ((k + 1) * moment + edge) / (k + dimensions)
        total += weight * signs[k % 2] * (both * moment - near * second)
        moment, following = following, second
        k += 1
        weight *= half / k
    # The remainder: no J_k exceeds J_0, and from here each weight is less than half of the previous one.
    rest = 2 * weight * signs[1] * both * first
    return total + rest.union(-rest)


def _compute_first_moment(room: arb, exponent: arb) -> arb:
    """Return the moment J_0 of `_integrate_density`: half of the incomplete beta function of `room`, `exponent`, 1/2.

    Proof: mechanisms.md 6
    """
    # In this range the library loses digits and takes 9 ms; the series takes less than 1 ms.
    if not (exponent > 100 and room > 0.75 and room < 0.92):
        return room.beta_lower(exponent, arb(0.5)) / 2
    total, term, k, tiny = arb(0), arb(1), 0, arb((1, -ctx.prec))
    while not term < tiny:
        total += term
        term *= room * (2 * (exponent + k) + 1) / (2 * (exponent + k) + 2)
        k += 1
    rest = arb(0).union(term / (1 - room))
    return room**exponent * (1 - room).sqrt() / (2 * exponent) * (total + rest)
