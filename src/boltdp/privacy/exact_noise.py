"""Exact sampling of noise, which only `release_with_noise.py` may use; `mechanisms.py` calibrates it.

A textbook sampler rounds at each step and so leaks through the low bits of its result. Here the noise is a real
number: every uniform is an interval given by the random bits read so far, all arithmetic is on intervals
(python-flint), and more bits are read until each coordinate of vector + noise rounds to one point of a fixed grid.
Rounding the exact sum is post-processing, so the guarantee is that of the real-valued mechanism. Nearly all draws are
computed in C (`kernel/exact_noise.c`), which reports when its result is not certain.

Proof: mechanisms.md 3
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from ctypes import c_char_p, c_double, c_int, c_size_t, c_void_p
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from flint import arb

from boltdp._array_types import Doubles
from boltdp._native import load_library
from boltdp.errors import ParameterError
from boltdp.privacy.mechanisms import Mechanism, set_precision

RandomBytes: TypeAlias = Callable[[int], bytes]  #: count -> that many random bytes
#: Random bytes of the operating system, the only source that a private release may use.
system_bytes: RandomBytes = os.urandom

_DRAW = (c_int, [c_char_p, c_double, c_int, c_void_p, c_size_t, c_void_p])
_library = load_library({"exact_gaussian": _DRAW, "exact_spherical": _DRAW})

#: The bits of a uniform that are read at a time: the fastest number for flint, and that of exact_noise.c.
WORD_BITS = 62


def add_noise(mechanism: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Doubles:
    """Return `vector` plus one draw of the noise, with each coordinate rounded to the grid."""
    if vector.shape != (mechanism.dimensions,):
        raise ParameterError(f"weights must be a vector of {mechanism.dimensions}, got shape {vector.shape}")
    if not np.isfinite(vector).all():  # the loop below would never end
        raise ParameterError("weights must be finite, and one is not")
    draw = _transform_to_spherical if mechanism.kind == "spherical" else _transform_to_gaussian
    per_coordinate = 2 if mechanism.kind == "spherical" else 1
    uniforms = Uniforms(per_coordinate * (mechanism.dimensions + mechanism.dimensions % 2), random_bytes)
    quick = _add_noise_in_c(mechanism, uniforms, vector)
    if quick is not None:
        return quick
    exact, exponent = vector.tolist(), mechanism.grid_exponent
    while True:
        with set_precision(uniforms.bits_read + 4):
            noise = draw(uniforms.list_intervals(), mechanism.dimensions, arb(mechanism.scale))
            points = _round_to_grid([c + given for c, given in zip(noise, exact, strict=True)], exponent)
        if points is not None:
            step = Fraction(2) ** -exponent  # a grid index may overflow a float although the sum does not
            return np.array([float(point * step) for point in points])
        uniforms.refine()


def _add_noise_in_c(mechanism: Mechanism, uniforms: Uniforms, vector: Doubles) -> Doubles | None:
    """Return the result of `add_noise` computed in C, or None for the few draws where C is not certain."""
    given, out = np.ascontiguousarray(vector, dtype=np.float64), np.empty(mechanism.dimensions)
    draw = _library.exact_spherical if mechanism.kind == "spherical" else _library.exact_gaussian
    sure = draw(
        uniforms.first,
        mechanism.scale,
        mechanism.grid_exponent,
        given.ctypes.data,
        mechanism.dimensions,
        out.ctypes.data,
    )
    return out if sure else None


def make_seeded_bytes(seed: int | str) -> RandomBytes:
    """Return a reproducible source of random bytes, for tests: whoever knows the seed can subtract the noise."""
    return random.Random(seed).randbytes


class Uniforms:
    """Independent uniforms on [0, 1], each known up to the bits read so far."""

    def __init__(self, count: int, random_bytes: RandomBytes) -> None:
        self._count, self._random_bytes = count, random_bytes
        self.first = random_bytes(16 * count)  #: two words of 8 bytes for each, of which WORD_BITS are used
        if len(self.first) != 16 * count:  # C would read beyond the end
            raise ParameterError(f"random_bytes must give {16 * count} bytes when asked for, got {len(self.first)}")
        self._streams = [self.first]

    @property
    def bits_read(self) -> int:
        """The number of random bits that are known of each uniform."""
        return WORD_BITS * (1 + len(self._streams))

    def refine(self) -> None:
        """Read WORD_BITS more random bits of each uniform."""
        self._streams.append(self._random_bytes(8 * self._count))

    def list_intervals(self) -> list[arb]:
        """Return the interval [k, k+1] / 2^bits of each uniform, where the words are the digits of k."""
        unit, intervals = arb((1, -WORD_BITS)), [arb(0.5, 0.5)] * self._count
        for stream in reversed(self._streams):
            words = np.frombuffer(stream, ">u8").reshape(self._count, -1) >> np.uint64(64 - WORD_BITS)
            for column in reversed(words.T.tolist()):
                intervals = [(interval + word) * unit for interval, word in zip(intervals, column, strict=True)]
        return intervals


def _transform_to_gaussian(uniforms: list[arb], dimensions: int, scale: arb) -> list[arb]:
    """Return Gaussian noise of this scale from uniforms, by the Box-Muller transform."""
    normals, minus_two = [], arb(-2)
    for u, v in zip(uniforms[0::2], uniforms[1::2], strict=True):
        length = (u.log() * minus_two).sqrt() * scale
        sine, cosine = (v + v).sin_cos_pi()
        normals.append(length * cosine)
        normals.append(length * sine)
    return normals[:dimensions]


def _transform_to_spherical(uniforms: list[arb], dimensions: int, scale: arb) -> list[arb]:
    """Return spherical noise from uniforms: a random direction times a Gamma norm, a sum of exponentials."""
    half = len(uniforms) // 2
    normals = _transform_to_gaussian(uniforms[:half], dimensions, arb(1))
    product = math.prod(uniforms[half : half + dimensions], start=arb(1))
    square = sum((normal * normal for normal in normals), arb(0))
    stretch = -product.log() / square.sqrt() * scale
    return [stretch * normal for normal in normals]


def _round_to_grid(values: list[arb], exponent: int) -> list[int] | None:
    """Return the grid index nearest to each value, or None if an interval touches two grid cells."""
    unit, half = arb((1, exponent)), arb(0.5)
    points = [(value * unit + half).floor().unique_fmpz() for value in values]
    return None if None in points else [int(point) for point in points]
