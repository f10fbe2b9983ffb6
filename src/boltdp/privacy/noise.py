"""Noise, drawn exactly: how much (the calibration) and which (the samplers).

A textbook sampler rounds at each step and so leaks through the low bits of its result. Here the noise is a real
number: every uniform is an interval given by the random bits read so far, all arithmetic is on intervals
(python-flint), and more bits are read until each coordinate of weights + noise rounds to one point of a fixed grid.
Rounding the exact sum is post-processing, so the guarantee is that of the real-valued mechanism. C (`kernel/exact.c`)
does it in nearly all cases, and knows when it is not certain. Proofs: `noise.md`.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_double, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from flint import arb, ctx

from boltdp.arraytypes import Doubles
from boltdp.errors import ParameterError, real_number, whole_number
from boltdp.library import load
from boltdp.privacy.spherical import shortest_scale, spherical_bits, spherical_delta

RandomBytes = Callable[[int], bytes]  #: count -> that many random bytes

_ONE_AT_A_TIME = threading.Lock()

_DRAW = (c_int, [c_char_p, c_double, c_int, c_void_p, c_size_t, c_void_p])
_library = load({"exact_gaussian": _DRAW, "exact_spherical": _DRAW})

Kind = Literal["spherical", "gaussian"]

#: Grid steps in one noise scale: 2^40, so that rounding changes the noise by nothing that matters.
GRID_BITS = 40

#: Bits of a uniform that are read at a time: flint is quickest with whole numbers of this size, and exact.c has it.
WORD_BITS = 62


@dataclass(frozen=True)
class Budget:
    """epsilon and delta of one release; delta = 0 is pure differential privacy.

    >>> Budget(1.0).split(4)
    Budget(epsilon=0.25, delta=0.0)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, real_number(getattr(self, name), name))
        if not (0 < self.epsilon < math.inf):
            raise ParameterError(f"epsilon must be a finite number > 0, got {self.epsilon}")
        if not (0 <= self.delta < 1):
            raise ParameterError(f"delta must be in [0, 1), got {self.delta}")
        # Beyond these nothing is promised or nothing is left, and double precision runs out.
        if not 1e-12 <= self.epsilon <= 1e6:
            raise ParameterError(f"epsilon must be between 1e-12 and 1e6, got {self.epsilon:g}")
        if 0 < self.delta < 1e-100:
            raise ParameterError(f"delta must be 0 or at least 1e-100, got {self.delta:g}")

    def split(self, parts: int) -> Budget:
        """The share of each of `parts` releases, by basic composition; together they never exceed the whole."""
        parts = whole_number(parts, "parts", least=1)
        return Budget(_divide_down(self.epsilon, parts), _divide_down(self.delta, parts))

    def take(self, share: float) -> tuple[Budget, Budget]:
        """The share, from 0 to 1, of one release and what is left for others; together they never exceed the whole.

        >>> Budget(1.0).take(0.25)
        (Budget(epsilon=0.25, delta=0.0), Budget(epsilon=0.75, delta=0.0))
        """
        taken = self.epsilon * share, self.delta * share
        left = _subtract_down(self.epsilon, taken[0]), _subtract_down(self.delta, taken[1])
        return Budget(*taken), Budget(*left)


@dataclass(frozen=True)
class Mechanism:
    """The distribution of the noise.

    `spherical`: a uniform direction times a Gamma(dimensions, scale) length: density ~ exp(-length / scale).
    `gaussian`: independent normals of standard deviation `scale`.

    >>> Mechanism("spherical", scale=0.5, dimensions=4).expected_norm
    2.0
    """

    kind: Kind
    scale: float
    dimensions: int

    @property
    def expected_norm(self) -> float:
        """The mean length of the noise vector."""
        if self.kind == "spherical":
            return self.scale * self.dimensions
        half = self.dimensions / 2
        return self.scale * math.sqrt(2) * math.exp(math.lgamma(half + 0.5) - math.lgamma(half))

    @property
    def deviation(self) -> float:
        """The standard deviation of each coordinate of the noise."""
        return self.scale * (math.sqrt(self.dimensions + 1) if self.kind == "spherical" else 1.0)

    @property
    def grid(self) -> int:
        """Released numbers are whole multiples of 2 to the power of minus this."""
        return GRID_BITS - math.frexp(self.scale)[1]

    def agrees(self, other: Mechanism) -> bool:
        """Whether both are the same but for the last digits, in which mathematical libraries differ between machines.

        >>> Mechanism("gaussian", 1.0, 3).agrees(Mechanism("gaussian", 0.5, 3))
        False
        """
        if (self.kind, self.dimensions) != (other.kind, other.dimensions) or not isinstance(other.scale, float):
            return False
        return math.isclose(self.scale, other.scale, rel_tol=1e-9)

    def add(self, weights: Doubles, random_bytes: RandomBytes) -> Doubles:
        """`weights` plus one draw of the noise, each coordinate rounded to the grid.

        >>> Mechanism("gaussian", scale=1.0, dimensions=2).add(np.zeros(2), seeded_bytes(0)).shape
        (2,)
        """
        if weights.shape != (self.dimensions,):
            raise ParameterError(f"weights must be a vector of {self.dimensions}, got shape {weights.shape}")
        if not np.isfinite(weights).all():  # no number of bits would do
            raise ParameterError("weights must be finite, and one is not")
        draw = _spherical if self.kind == "spherical" else _gaussian
        per_coordinate = 2 if self.kind == "spherical" else 1
        uniforms = Uniforms(per_coordinate * (self.dimensions + self.dimensions % 2), random_bytes)
        quick = self._quick(uniforms, weights)
        if quick is not None:
            return quick
        exact, exponent = weights.tolist(), self.grid
        while True:
            with precision(uniforms.bits + 4):
                noise = draw(uniforms.intervals(), self.dimensions, arb(self.scale))
                points = _grid_points([c + weight for c, weight in zip(noise, exact, strict=True)], exponent)
            if points is not None:
                step = Fraction(2) ** -exponent  # a number of steps may be beyond all floats where the sum is not
                return np.array([float(point * step) for point in points])
            uniforms.refine()

    def _quick(self, uniforms: Uniforms, weights: Doubles) -> Doubles | None:
        """The same from C, which is certain of it for nearly all draws; else None."""
        given, out = np.ascontiguousarray(weights, dtype=np.float64), np.empty(self.dimensions)
        draw = _library.exact_spherical if self.kind == "spherical" else _library.exact_gaussian
        sure = draw(uniforms.first, self.scale, self.grid, given.ctypes.data, self.dimensions, out.ctypes.data)
        return out if sure else None


def calibrate(sensitivity: float, *, dimensions: int, budget: Budget, stated: Mechanism | None = None) -> Mechanism:
    """The noise of smallest expected length that makes a quantity of this L2-sensitivity (epsilon, delta)-private.

    With delta > 0 it may be of either kind. The choice depends on public numbers only. `stated` is as for `shortest`.

    >>> calibrate(1.0, dimensions=50, budget=Budget(1.0, 1e-6)).kind
    'spherical'
    >>> calibrate(1.0, dimensions=5000, budget=Budget(1.0, 1e-6)).kind
    'gaussian'
    """
    if not 1e-120 <= sensitivity <= 1e120:
        raise ParameterError(f"the sensitivity must be between 1e-120 and 1e120, got {sensitivity:g}")
    pure = Mechanism("spherical", _divide_up(sensitivity, budget.epsilon), dimensions)
    if budget.delta == 0:
        return pure
    sigma = math.nextafter(sensitivity * gaussian_sigma(budget), math.inf)
    scale = math.nextafter(sensitivity * spherical_scale(budget, dimensions=dimensions), math.inf)
    gaussian, spherical = Mechanism("gaussian", sigma, dimensions), Mechanism("spherical", scale, dimensions)
    return shortest(gaussian, spherical, pure, stated=stated)


def shortest(*enough: Mechanism, stated: Mechanism | None = None) -> Mechanism:
    """The shortest, in the mean, of several noises that are each enough; or the one that a certificate has stated.

    >>> gaussian, spherical = Mechanism("gaussian", 1.0, 50), Mechanism("spherical", 0.1, 50)
    >>> shortest(gaussian, spherical).kind
    'spherical'
    >>> shortest(gaussian, spherical, stated=gaussian).kind
    'gaussian'
    """
    known = [noise for noise in enough if stated is not None and noise.agrees(stated)]
    return min(known or enough, key=lambda noise: noise.expected_norm)


@lru_cache(maxsize=1024)
def spherical_scale(budget: Budget, *, dimensions: int) -> float:
    """The smallest scale of spherical noise, to 10 digits, that makes sensitivity 1 (epsilon, delta)-private.

    The l2 mechanism of Joseph, Kulesza and Yu (2025), certified by interval arithmetic. At most the 1/epsilon of pure
    privacy, which it is where nothing less can be certified.

    >>> round(spherical_scale(Budget(1.0, 1e-6), dimensions=50), 6)
    0.549943
    """

    def spent(scale: float) -> arb:
        with precision(spherical_bits(1.0 / scale)):
            return spherical_delta(1 / arb(scale), arb(budget.epsilon), dimensions)

    return shortest_scale(spent, delta=budget.delta, pure=_divide_up(1.0, budget.epsilon))


@lru_cache(maxsize=1024)
def gaussian_sigma(budget: Budget) -> float:
    """The smallest standard deviation, to 12 digits, that makes sensitivity 1 (epsilon, delta)-private.

    The analytic calibration of Balle and Wang (2018), valid for every epsilon. Interval arithmetic certifies that the
    returned number satisfies the condition, whatever the rounding.

    >>> round(gaussian_sigma(Budget(1.0, 1e-6)), 6)
    4.224679
    """
    if not budget.delta > 0:
        raise ParameterError(f"delta must be > 0 for Gaussian noise, got {budget.delta}")
    return smallest_scale(lambda sigma: _gaussian_is_private(sigma, budget))


def smallest_scale(is_enough: Callable[[float], bool]) -> float:
    """The smallest number, to 12 digits, that `is_enough` accepts; it must accept all above that and none below.

    >>> round(smallest_scale(lambda scale: scale * scale >= 2), 9)
    1.414213562
    """
    high = 1.0
    while not is_enough(high):
        high *= 2
    low = high / 2
    while is_enough(low):
        low, high = low / 2, low
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high


def gaussian_delta(distance: arb, epsilon: arb) -> arb:
    """The smallest delta for which unit normals whose means are `distance` apart are (epsilon, delta)-close.

    Phi(d/2 - epsilon/d) - e^epsilon * Phi(-d/2 - epsilon/d): Balle and Wang (2018), Theorem 8.

    >>> with precision(64):
    ...     round(float(gaussian_delta(arb(1), arb(1))), 6)
    0.126937
    """
    root = arb(2).sqrt()
    upper = ((epsilon / distance - distance / 2) / root).erfc() / 2
    lower = epsilon.exp() * ((epsilon / distance + distance / 2) / root).erfc() / 2
    return upper - lower


def system_bytes(count: int) -> bytes:
    """Random bytes of the operating system: the only source a private release may use.

    >>> len(system_bytes(16))
    16
    """
    return os.urandom(count)


def seeded_bytes(seed: int | str) -> RandomBytes:
    """A reproducible source, for tests and research: whoever knows the seed can subtract the noise.

    A text gives a source that no number gives.

    >>> seeded_bytes(1)(4) == seeded_bytes(1)(4)
    True
    """
    return random.Random(seed).randbytes


class Uniforms:
    """Independent uniforms on [0, 1], each known to the bits read so far."""

    def __init__(self, count: int, random_bytes: RandomBytes) -> None:
        self._count, self._random_bytes = count, random_bytes
        self.first = random_bytes(16 * count)  #: two words of 8 bytes for each, of which WORD_BITS count
        if len(self.first) != 16 * count:  # C would read on
            raise ParameterError(f"random_bytes must give {16 * count} bytes when asked for, got {len(self.first)}")
        self._streams = [self.first]

    @property
    def bits(self) -> int:
        """Bits of each that are known."""
        return WORD_BITS * (1 + len(self._streams))

    def refine(self) -> None:
        """Read one more word of each."""
        self._streams.append(self._random_bytes(8 * self._count))

    def intervals(self) -> list[arb]:
        """[k, k+1] / 2^bits, as midpoint and radius: the words are the digits of k."""
        unit, intervals = arb((1, -WORD_BITS)), [arb(0.5, 0.5)] * self._count
        for stream in reversed(self._streams):
            words = np.frombuffer(stream, ">u8").reshape(self._count, -1) >> np.uint64(64 - WORD_BITS)
            for column in reversed(words.T.tolist()):
                intervals = [(interval + word) * unit for interval, word in zip(intervals, column, strict=True)]
        return intervals


def _gaussian(uniforms: list[arb], dimensions: int, scale: arb) -> list[arb]:
    """Normals by the Box-Muller transform of pairs of uniforms."""
    normals, minus_two = [], arb(-2)
    for u, v in zip(uniforms[0::2], uniforms[1::2], strict=True):
        length = (u.log() * minus_two).sqrt() * scale
        sine, cosine = (v + v).sin_cos_pi()
        normals.append(length * cosine)
        normals.append(length * sine)
    return normals[:dimensions]


def _spherical(uniforms: list[arb], dimensions: int, scale: arb) -> list[arb]:
    """A uniform direction times a Gamma(dimensions, scale) length, which is a sum of exponentials -scale * ln U."""
    half = len(uniforms) // 2
    normals = _gaussian(uniforms[:half], dimensions, arb(1))
    product = arb(1)
    for uniform in uniforms[half : half + dimensions]:
        product *= uniform
    square = arb(0)
    for normal in normals:
        square += normal * normal
    stretch = -product.log() / square.sqrt() * scale
    return [stretch * normal for normal in normals]


def _grid_points(values: list[arb], exponent: int) -> list[int] | None:
    """The grid index nearest to each value, or None when an interval touches two grid cells."""
    unit, half = arb((1, exponent)), arb(0.5)
    points = [(value * unit + half).floor().unique_fmpz() for value in values]
    return None if None in points else [int(point) for point in points]


def _gaussian_is_private(sigma: float, budget: Budget) -> bool:
    """Whether this much noise is enough for sensitivity 1, for certain."""
    with precision(256):
        return bool(gaussian_delta(1 / arb(sigma), arb(budget.epsilon)) <= arb(budget.delta))


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Interval arithmetic with so many bits. The setting is global, so one thread at a time.

    >>> with precision(128):
    ...     str(arb(2).sqrt())[:12]
    '[1.414213562'
    """
    with _ONE_AT_A_TIME, ctx.workprec(bits):
        yield


def _divide_up(numerator: float, denominator: float) -> float:
    """A float no smaller than the real quotient."""
    return math.nextafter(numerator / denominator, math.inf)


def _divide_down(numerator: float, parts: int) -> float:
    """The quotient, rounded so that `parts` times it is at most `numerator`."""
    quotient = numerator / parts
    return quotient if Fraction(quotient) * parts <= Fraction(numerator) else math.nextafter(quotient, 0.0)


def _subtract_down(whole: float, part: float) -> float:
    """The difference, rounded so that it and `part` are at most `whole` together."""
    rest = whole - part
    return rest if Fraction(rest) + Fraction(part) <= Fraction(whole) else math.nextafter(rest, 0.0)
