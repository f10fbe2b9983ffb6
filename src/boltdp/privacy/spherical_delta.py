"""What spherical noise spends of delta when it is shorter than pure privacy needs. Proofs: `mechanisms.md`, section 6.

Moved by a distance, the noise differs from itself by a loss whose distribution has a density in closed form, by
Bessel functions; what it spends is one integral over that density, and a power series gives the integral with an
error bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flint import arb, ctx

#: Above these the series gets long for little: Gaussian noise is within 1 % in this many dimensions, and only an
#: epsilon of dozens makes such a distance private.
MAX_DISTANCE = 200.0
MAX_DIMENSIONS = 1000

#: A scale found spends all of delta but this part, or is longer than the best by this part.
UNSPENT = 1e-11
#: Noise that is shorter than pure noise by less than this part is not worth a search.
MIN_GAIN = 1e-9


def spherical_delta(distance: arb, epsilon: arb, dimensions: int) -> arb:
    """The smallest delta for which spherical noises of scale 1, `distance` apart, are (epsilon, delta)-close.

    An enclosure, in the current precision; `spherical_bits` says which one makes it narrow.

    Proof: mechanisms.md 6

    >>> from boltdp.privacy.mechanisms import precision
    >>> with precision(spherical_bits(3.0)):
    ...     round(float(spherical_delta(arb(3), arb(1), 2)), 6)
    0.491934
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
    return _integral(half, epsilon, dimensions, far=far, near=near)


def spherical_bits(distance: float) -> int:
    """A precision in which `spherical_delta` keeps 12 digits and more: the two sums of its series nearly cancel.

    >>> spherical_bits(10.0)
    210
    """
    return 160 + int(5.0 * min(distance, MAX_DISTANCE))


def find_spherical_scale(spent: Callable[[float], arb], *, delta: float, pure: float) -> float:
    """The smallest scale, to 10 digits, that spends certainly no more than `delta`; at most `pure`, which spends none.

    `spent` encloses what a scale spends; it falls in the scale. Where it is too wide to tell, the scale is not taken.

    Proof: mechanisms.md 6

    >>> round(find_spherical_scale(lambda scale: 1 / arb(scale), delta=0.25, pure=8.0), 9)
    4.0
    """

    def scale(shortfall: float) -> float:
        return pure / (1.0 + math.exp(shortfall))

    def excess(shortfall: float) -> float:
        """The logarithm of what is spent at most over what may be, rounded up; too much where it is no number."""
        most = math.nextafter(float((spent(scale(shortfall)) / arb(delta)).upper().log().upper()), math.inf)
        return most if math.isfinite(most) else 1.0

    # In the logarithm of how much shorter than pure noise it is, the excess is nearly straight.
    low, high = math.log(MIN_GAIN), 0.0
    if not (below := excess(low)) <= 0:
        return pure
    while (above := excess(high)) <= 0:
        low, below, high = high, above, high + 2.0
    # False position, the Illinois way: an end that stays where it is counts half the next time.
    goal = -UNSPENT / 2
    left, right, stayed = below - goal, above - goal, ""
    while below < -UNSPENT and scale(low) > scale(high) * (1.0 + UNSPENT):
        middle = high - (high - low) * right / (right - left)
        value = excess(middle)
        if value <= 0:
            low, below, left = middle, value, value - goal
            right, stayed = (right / 2 if stayed == "right" else right), "right"
        else:
            high, right = middle, value - goal
            left, stayed = (left / 2 if stayed == "left" else left), "left"
    return scale(low)


def _integral(half: arb, epsilon: arb, dimensions: int, *, far: arb, near: arb) -> arb:
    """Of (1 - v^2)^((n-3)/2) * (far + near*(1 - v^2)) * (e^(xv) - e^(epsilon-xv)), v from c = epsilon/(2x) to 1.

    By the power series of the exponentials in x, which is `half`, and the moments J_k: the integrals of
    (1 - v^2)^((n-3)/2) * v^k.

    Proof: mechanisms.md 6
    """
    least, growth, tiny = epsilon / (2 * half), epsilon.exp(), arb((1, -ctx.prec))
    signs = 1 - growth, 1 + growth
    room, exponent = 1 - least**2, arb(dimensions - 1) / 2
    edge, both = room**exponent, far + near
    first = _first(room, exponent)
    moment, following = first, edge / (dimensions - 1)
    total, weight, k = arb(0), arb(1), 0
    while not (k > 2 * half and weight < tiny):
        edge *= least
        second = ((k + 1) * moment + edge) / (k + dimensions)
        total += weight * signs[k % 2] * (both * moment - near * second)
        moment, following = following, second
        k += 1
        weight *= half / k
    # No J_k is above J_0, and from here each weight is less than half the one before.
    rest = 2 * weight * signs[1] * both * first
    return total + rest.union(-rest)


def _first(room: arb, exponent: arb) -> arb:
    """J_0, which is half of the incomplete beta function of `room`, `exponent` and 1/2.

    Proof: mechanisms.md 6
    """
    # Here the library loses digits and needs 9 ms to find them again; the series needs less than one.
    if not (exponent > 100 and room > 0.75 and room < 0.92):
        return room.beta_lower(exponent, arb(0.5)) / 2
    total, term, k, tiny = arb(0), arb(1), 0, arb((1, -ctx.prec))
    while not term < tiny:
        total += term
        term *= room * (2 * (exponent + k) + 1) / (2 * (exponent + k) + 2)
        k += 1
    rest = arb(0).union(term / (1 - room))
    return room**exponent * (1 - room).sqrt() / (2 * exponent) * (total + rest)
