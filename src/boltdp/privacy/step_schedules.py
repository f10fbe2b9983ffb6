"""Step-size schedules: each is four numbers, so that the kernel and the analysis use the same bits.

    eta_t = min(cap, scale / (growth(t) + offset)),     growth(t) = 0, t or sqrt(t),   t = 1, 2, ... counts UPDATES

The constructors below give the paper's schedules. `beta` is the smoothness of the whole objective, `gamma` its
strong convexity (the regularisation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError, check_choice, check_number

Growth = Literal["none", "linear", "sqrt"]


@dataclass(frozen=True)
class Schedule:
    """A step size for each update."""

    growth: Growth
    scale: float
    offset: float = 0.0
    cap: float = math.inf

    def __post_init__(self) -> None:
        check_choice(self.growth, "growth", Growth)
        for name in ("scale", "offset", "cap"):
            object.__setattr__(self, name, check_number(getattr(self, name), name))
        if not (0 < self.scale < math.inf):
            raise ParameterError(f"the step size must be a finite number > 0, got {self.scale}")
        if not (0 <= self.offset < math.inf):
            raise ParameterError(f"offset must be a finite number >= 0, got {self.offset}")
        if self.growth == "none" and self.offset != 1.0:
            raise ParameterError(f"offset must be 1 for a constant step, got {self.offset}")
        if not self.cap > 0:
            raise ParameterError(f"cap must be > 0, got {self.cap}")

    def compute_steps(self, updates: npt.ArrayLike) -> Doubles:
        """Return the step size eta_t of each given update t, bit for bit as the kernel computes it."""
        t = np.array(updates, dtype=np.float64, ndmin=1)
        if self.growth == "none":
            return np.full_like(t, min(self.cap, self.scale))
        if self.growth == "sqrt":
            np.sqrt(t, out=t)
        t += self.offset
        np.divide(self.scale, t, out=t)
        return np.minimum(t, self.cap, out=t)

    @property
    def largest(self) -> float:
        """The largest step size, which is the first, as schedules never increase."""
        return float(self.compute_steps(1)[0])


def make_constant_schedule(step_size: float) -> Schedule:
    """Return the schedule of a constant step; the paper's convex default is 1/sqrt(rows)."""
    return Schedule("none", scale=step_size, offset=1.0)


def make_decreasing_schedule(*, beta: float, rows: int, exponent: float = 0.5) -> Schedule:
    """Return the step sizes 2 / (beta * (t + rows^exponent)), with 0 <= exponent < 1; beta is the smoothness."""
    return Schedule("linear", scale=2.0 / beta, offset=_compute_offset(rows, exponent))


def make_square_root_schedule(*, beta: float, rows: int, exponent: float = 0.5) -> Schedule:
    """Return the step sizes 2 / (beta * (sqrt(t) + rows^exponent)), with 0 <= exponent < 1; beta is the smoothness."""
    return Schedule("sqrt", scale=2.0 / beta, offset=_compute_offset(rows, exponent))


def make_strongly_convex_schedule(*, beta: float, gamma: float) -> Schedule:
    """Return the schedule min(1/beta, 1/(gamma*t))."""
    if not gamma > 0:
        raise ParameterError(f"regularization must be > 0 for the strongly convex schedule, got {gamma}")
    return Schedule("linear", scale=1.0 / gamma, cap=1.0 / beta)


def make_strongly_convex_constant_schedule(step_size: float, *, beta: float) -> Schedule:
    """Return the schedule of a constant step of at most 1/beta, for the strongly convex case."""
    if step_size > 1.0 / beta:
        raise ParameterError(f"step_size must be <= 1/beta = {1.0 / beta:.6g}, got {step_size:.6g}")
    return make_constant_schedule(step_size)


def _compute_offset(rows: int, exponent: float) -> float:
    """Return m^c, the offset that delays the decrease of the step size."""
    if not 0 <= exponent < 1:
        raise ParameterError(f"the exponent c must be in [0, 1), got {exponent}")
    return math.pow(rows, exponent)
