"""How much noise a quantity of known sensitivity needs, and of which kind. `exact_sampling.py` draws it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from flint import arb, ctx

from boltdp._bisect import bisect
from boltdp.errors import ParameterError, real_number, whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.spherical_delta import find_spherical_scale, spherical_bits, spherical_delta

_ONE_AT_A_TIME = threading.Lock()

Kind = Literal["spherical", "gaussian"]

#: Grid steps in one noise scale: 2^40, so that rounding changes the noise by nothing that matters.
GRID_BITS = 40


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

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ParameterError(f"the kind of noise must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if not 0 < real_number(self.scale, "scale") < math.inf:
            raise ParameterError(f"the scale of noise must be a finite number > 0, got {self.scale}")
        whole_number(self.dimensions, "dimensions", least=1)

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

    def delta(self, epsilon: float, *, sensitivity: float) -> float:
        """What this noise spends of delta at an epsilon, added to a quantity of this L2-sensitivity; rounded up.

        Proof: mechanisms.md 1, 2, 6

        >>> Mechanism("spherical", scale=0.5, dimensions=4).delta(2.0, sensitivity=1.0)
        0.0
        """
        if self.kind == "gaussian":
            with precision(256):
                return upper(gaussian_delta(arb(sensitivity) / arb(self.scale), arb(epsilon)))
        with precision(spherical_bits(sensitivity / self.scale)):
            return upper(spherical_delta(arb(sensitivity) / arb(self.scale), arb(epsilon), self.dimensions))


def calibrate(sensitivity: float, *, dimensions: int, budget: Budget) -> Mechanism:
    """The noise of smallest expected length that makes a quantity of this L2-sensitivity (epsilon, delta)-private.

    With delta > 0 it may be of either kind. The choice depends on public numbers only.

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
    sigma = math.nextafter(sensitivity * gaussian_sigma(budget), math.inf)
    scale = math.nextafter(sensitivity * spherical_scale(budget, dimensions=dimensions), math.inf)
    gaussian, spherical = Mechanism("gaussian", sigma, dimensions), Mechanism("spherical", scale, dimensions)
    return smallest_noise(gaussian, spherical, pure)


def smallest_noise(*enough: Mechanism) -> Mechanism:
    """The shortest, in the mean, of several noises that are each enough.

    >>> smallest_noise(Mechanism("gaussian", 1.0, 50), Mechanism("spherical", 0.1, 50)).kind
    'spherical'
    """
    return min(enough, key=lambda noise: noise.expected_norm)


@lru_cache(maxsize=1024)
def spherical_scale(budget: Budget, *, dimensions: int) -> float:
    """The smallest scale of spherical noise, to 10 digits, that makes sensitivity 1 (epsilon, delta)-private.

    The l2 mechanism of Joseph, Kulesza and Yu (2025), certified by interval arithmetic. At most the 1/epsilon of pure
    privacy, which it is where nothing less can be certified.

    Proof: mechanisms.md 6

    >>> round(spherical_scale(Budget(1.0, 1e-6), dimensions=50), 6)
    0.549943
    """

    def spent(scale: float) -> arb:
        with precision(spherical_bits(1.0 / scale)):
            return spherical_delta(1 / arb(scale), arb(budget.epsilon), dimensions)

    return find_spherical_scale(spent, delta=budget.delta, pure=_divide_up(1.0, budget.epsilon))


@lru_cache(maxsize=1024)
def gaussian_sigma(budget: Budget) -> float:
    """The smallest standard deviation, to 12 digits, that makes sensitivity 1 (epsilon, delta)-private.

    The analytic calibration of Balle and Wang (2018), valid for every epsilon. Interval arithmetic certifies that the
    returned number satisfies the condition, whatever the rounding.

    Proof: mechanisms.md 2

    >>> round(gaussian_sigma(Budget(1.0, 1e-6)), 6)
    4.224679
    """
    if not budget.delta > 0:
        raise ParameterError(f"delta must be > 0 for Gaussian noise, got {budget.delta}")
    return smallest_scale(lambda sigma: _gaussian_is_private(sigma, budget))


def gaussian_epsilon(distance: float, delta: float) -> float:
    """The smallest epsilon, to 12 digits, for which unit normals whose means are `distance` apart are private.

    Proof: mechanisms.md 2

    >>> round(gaussian_epsilon(1 / gaussian_sigma(Budget(1.0, 1e-6)), 1e-6), 9)
    1.0
    """

    def is_enough(epsilon: float) -> bool:
        with precision(256):
            return bool(gaussian_delta(arb(distance), arb(epsilon)) <= arb(delta))

    return smallest_scale(is_enough)


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
    return bisect(is_enough, low, high, tolerance=1e-12)[1]


def gaussian_delta(distance: arb, epsilon: arb) -> arb:
    """The smallest delta for which unit normals whose means are `distance` apart are (epsilon, delta)-close.

    Phi(d/2 - epsilon/d) - e^epsilon * Phi(-d/2 - epsilon/d): Balle and Wang (2018), Theorem 8.

    Proof: mechanisms.md 2

    >>> with precision(64):
    ...     round(float(gaussian_delta(arb(1), arb(1))), 6)
    0.126937
    """
    root = arb(2).sqrt()
    upper = ((epsilon / distance - distance / 2) / root).erfc() / 2
    lower = epsilon.exp() * ((epsilon / distance + distance / 2) / root).erfc() / 2
    return upper - lower


def _gaussian_is_private(sigma: float, budget: Budget) -> bool:
    """Whether this much noise is enough for sensitivity 1, for certain."""
    with precision(256):
        return bool(gaussian_delta(1 / arb(sigma), arb(budget.epsilon)) <= arb(budget.delta))


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Interval arithmetic with this many bits. The setting is global, so one thread at a time.

    >>> with precision(128):
    ...     str(arb(2).sqrt())[:12]
    '[1.414213562'
    """
    with _ONE_AT_A_TIME, ctx.workprec(bits):
        yield


def upper(delta: arb) -> float:
    """A float no smaller than any number of an interval, at most 1, which is no guarantee at all.

    >>> upper(arb(0.25))
    0.25
    """
    if not delta.is_finite():
        return 1.0
    rounded = float(delta.upper())
    return min(max(rounded if arb(rounded) >= delta else math.nextafter(rounded, math.inf), 0.0), 1.0)


def _divide_up(numerator: float, denominator: float) -> float:
    """A float no smaller than the real quotient."""
    return math.nextafter(numerator / denominator, math.inf)
