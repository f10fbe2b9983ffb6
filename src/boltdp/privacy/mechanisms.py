"""Noise mechanisms and their calibration to a sensitivity and a budget. `exact_noise.py` draws the noise."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from flint import arb, ctx

from boltdp._bisect import bisect
from boltdp.errors import ParameterError, check_choice, check_number, check_whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.spherical_delta import choose_spherical_bits, compute_spherical_delta, find_spherical_scale

_PRECISION_LOCK = threading.Lock()

NoiseKind = Literal["spherical", "gaussian"]

#: A noise scale has 2^40 grid steps, so that rounding to the grid hardly changes the noise.
GRID_BITS = 40


@dataclass(frozen=True)
class Mechanism:
    """The distribution of the noise.

    `spherical`: a uniform direction times a Gamma(dimensions, scale) norm: density ~ exp(-norm / scale).
    `gaussian`: independent normals of standard deviation `scale`.
    """

    kind: NoiseKind
    scale: float
    dimensions: int

    def __post_init__(self) -> None:
        check_choice(self.kind, "the kind of noise", NoiseKind)
        if not 0 < check_number(self.scale, "scale") < math.inf:
            raise ParameterError(f"the scale of noise must be a finite number > 0, got {self.scale}")
        check_whole_number(self.dimensions, "dimensions", least=1)

    @property
    def expected_norm(self) -> float:
        if self.kind == "spherical":
            return self.scale * self.dimensions
        half = self.dimensions / 2
        return self.scale * math.sqrt(2) * math.exp(math.lgamma(half + 0.5) - math.lgamma(half))

    @property
    def deviation(self) -> float:
        """The standard deviation of each coordinate of the noise."""
        return self.scale * (math.sqrt(self.dimensions + 1) if self.kind == "spherical" else 1.0)

    @property
    def grid_exponent(self) -> int:
        """The exponent g of the grid: released numbers are multiples of 2^-g."""
        return GRID_BITS - math.frexp(self.scale)[1]

    def delta(self, epsilon: float, *, sensitivity: float) -> float:
        """Return the delta of this noise at an epsilon for a quantity of this L2-sensitivity, rounded up.

        Proof: mechanisms.md 1, 2, 6
        """
        if self.kind == "gaussian":
            with set_precision(256):
                return round_up_delta(compute_gaussian_delta(arb(sensitivity) / arb(self.scale), arb(epsilon)))
        with set_precision(choose_spherical_bits(sensitivity / self.scale)):
            return round_up_delta(
                compute_spherical_delta(arb(sensitivity) / arb(self.scale), arb(epsilon), self.dimensions)
            )


def calibrate(sensitivity: float, *, dimensions: int, budget: Budget) -> Mechanism:
    """Return the noise of smallest expected norm that makes a quantity of this L2-sensitivity (epsilon, delta)-private.

    With delta > 0 it may be of either kind; the choice depends on public numbers only.

    Proof: mechanisms.md 1, 2, 6

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
    sigma = math.nextafter(sensitivity * calibrate_unit_gaussian(budget), math.inf)
    scale = math.nextafter(sensitivity * calibrate_unit_spherical(budget, dimensions=dimensions), math.inf)
    gaussian, spherical = Mechanism("gaussian", sigma, dimensions), Mechanism("spherical", scale, dimensions)
    return choose_smallest_noise(gaussian, spherical, pure)


def choose_smallest_noise(*enough: Mechanism) -> Mechanism:
    """Return the mechanism with the smallest expected L2 norm of noise, of several that each achieve the budget."""
    return min(enough, key=lambda noise: noise.expected_norm)


@lru_cache(maxsize=1024)
def calibrate_unit_spherical(budget: Budget, *, dimensions: int) -> float:
    """Return the smallest scale of spherical noise, to 10 digits, that makes sensitivity 1 (epsilon, delta)-private.

    This is the l2 mechanism of Joseph, Kulesza and Yu (2025), certified by interval arithmetic. The scale is 1/epsilon,
    that of pure privacy, where no smaller one can be certified.

    Proof: mechanisms.md 6
    """

    def compute_delta(scale: float) -> arb:
        with set_precision(choose_spherical_bits(1.0 / scale)):
            return compute_spherical_delta(1 / arb(scale), arb(budget.epsilon), dimensions)

    return find_spherical_scale(compute_delta, delta=budget.delta, pure=_divide_up(1.0, budget.epsilon))


@lru_cache(maxsize=1024)
def calibrate_unit_gaussian(budget: Budget) -> float:
    """Return the smallest standard deviation, to 12 digits, that makes sensitivity 1 (epsilon, delta)-private.

    This is the analytic calibration of Balle and Wang (2018), valid for every epsilon and certified by interval
    arithmetic.

    Proof: mechanisms.md 2
    """
    if not budget.delta > 0:
        raise ParameterError(f"delta must be > 0 for Gaussian noise, got {budget.delta}")

    def is_enough(sigma: float) -> bool:
        with set_precision(256):
            return bool(compute_gaussian_delta(1 / arb(sigma), arb(budget.epsilon)) <= arb(budget.delta))

    return find_smallest_number(is_enough)


def compute_gaussian_epsilon(distance: float, delta: float) -> float:
    """Return the smallest epsilon, to 12 digits, of unit normals whose means are `distance` apart at this delta.

    Proof: mechanisms.md 2
    """

    def is_enough(epsilon: float) -> bool:
        with set_precision(256):
            return bool(compute_gaussian_delta(arb(distance), arb(epsilon)) <= arb(delta))

    return find_smallest_number(is_enough)


def find_smallest_number(is_enough: Callable[[float], bool]) -> float:
    """Return the smallest noise scale or epsilon, to 12 digits, that `is_enough` accepts, with all larger numbers."""
    high = 1.0
    while not is_enough(high):
        high *= 2
    low = high / 2
    while is_enough(low):
        low, high = low / 2, low
    return bisect(is_enough, low, high, tolerance=1e-12)[1]


def compute_gaussian_delta(distance: arb, epsilon: arb) -> arb:
    """Return an enclosure of the delta at an epsilon of unit normals whose means are `distance` apart.

    It is Phi(d/2 - epsilon/d) - e^epsilon * Phi(-d/2 - epsilon/d): Balle and Wang (2018), Theorem 8.

    Proof: mechanisms.md 2
    """
    root = arb(2).sqrt()
    upper = ((epsilon / distance - distance / 2) / root).erfc() / 2
    lower = epsilon.exp() * ((epsilon / distance + distance / 2) / root).erfc() / 2
    return upper - lower


def compute_pure_delta(spent: arb, epsilon: arb) -> arb:
    """Return an enclosure of the delta at an epsilon of any mechanism that is (`spent`, 0)-private.

    Proof: noisy_counts.md 4
    """
    return arb(0) if epsilon >= spent else (1 - (epsilon - spent).exp()) / (1 + (-spent).exp())


@contextmanager
def set_precision(bits: int) -> Iterator[None]:
    """Set the bits of interval arithmetic inside `with`; the setting is global, so a lock admits one thread."""
    with _PRECISION_LOCK, ctx.workprec(bits):
        yield


def round_up_delta(delta: arb) -> float:
    """Return the upper end of the enclosure of a delta as a float from 0 to 1, rounded up."""
    if not delta.is_finite():
        return 1.0
    rounded = float(delta.upper())
    return min(max(rounded if arb(rounded) >= delta else math.nextafter(rounded, math.inf), 0.0), 1.0)


def _divide_up(numerator: float, denominator: float) -> float:
    """Divide, such as a sensitivity by epsilon, and return a float that is at least the real quotient."""
    return math.nextafter(numerator / denominator, math.inf)
