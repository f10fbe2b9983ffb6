"""Noisy gradient descent: every scan releases the sum of all rows' clipped gradients, with noise.

The weights depend on these sums and on public numbers only, so they need no further noise. `noisy_gradient_descent.md`
proves the sensitivity of a sum, rounding included (section 1), and the composition of all scans (section 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from boltdp.errors import ParameterError, check_number, check_whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Training, round_up
from boltdp.privacy.events.objective_perturbation import bound_gathering_error, bound_term_rounding, check_summable
from boltdp.privacy.events.output_perturbation import check_dimensions
from boltdp.privacy.events.sgd_sensitivity import UNIT, Sensitivity
from boltdp.privacy.mechanisms import Mechanism, calibrate_unit_gaussian
from boltdp.privacy.sgd_recipe import MAX_PASSES
from boltdp.privacy.training_problem import Problem


@dataclass(frozen=True, kw_only=True)
class NoisyGradients(Training):
    """Gradient descent on all rows, with noise in the sum of each scan."""

    kind = "noisy gradients"
    algorithm = "noisy-gd"
    problem: Problem
    clip: float  #: C, the clip norm of a row's gradient
    scans: int  #: T
    noise: Mechanism  #: of each sum, in the free directions of the weights
    step: float  #: eta, of the mean gradient, in the first scan
    momentum: float

    def __post_init__(self) -> None:
        check_summable(self.problem)
        check_dimensions(self.noise, self.problem.dimensions)
        if self.noise.kind != "gaussian":
            raise ParameterError(f"the noise of gradients must be gaussian, got {self.noise.kind!r}")
        if check_whole_number(self.scans, "scans", least=1) > MAX_PASSES:
            raise ParameterError(f"scans must be at most {MAX_PASSES:,}, got {self.scans}")
        for name in ("clip", "step"):
            if not 1e-9 <= check_number(getattr(self, name), name) <= 1e9:
                raise ParameterError(f"{name} must be between 1e-9 and 1e9, got {getattr(self, name)}")
        if not 0 <= check_number(self.momentum, "momentum") < 1:
            raise ParameterError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        least = compute_diverging_step(self.problem.regularization, self.momentum)
        if self.step >= least:
            raise ParameterError(
                f"step must be below {least:.3g} for regularization {self.problem.regularization:g}, got {self.step:g}",
                hint="a longer step makes the weights grow without bounds, whatever the rows are",
            )

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the profile of the Gaussian mechanism to which all scans compose.

        Proof: noisy_gradient_descent.md 2
        """
        together = math.sqrt(self.scans) * bound_gradient_sensitivity(self.problem, self.clip).total
        return self.noise.delta(epsilon, sensitivity=math.nextafter(together, math.inf) * (1.0 + 4.0 * UNIT))

    @property
    def mu(self) -> float:
        """The mu of the composition of all scans.

        Proof: noisy_gradient_descent.md 2
        """
        together = math.sqrt(self.scans) * bound_gradient_sensitivity(self.problem, self.clip).total
        return round_up(together / self.noise.scale)

    @property
    def gradient_clip(self) -> float:
        return self.clip

    @property
    def training_noise(self) -> Mechanism:
        return self.noise

    @property
    def noisy_vectors(self) -> tuple[tuple[str, Mechanism, float, int], ...]:
        sensitivity = bound_gradient_sensitivity(self.problem, self.clip).total
        return (("sums of a scan", self.noise, sensitivity, self.scans),)

    @property
    def derived_numbers(self) -> dict[str, Any]:
        return {"sensitivity_of_a_sum": bound_gradient_sensitivity(self.problem, self.clip).total}


def make_noisy_gradients(
    problem: Problem, budget: Budget, *, clip: float, scans: int, step: float, momentum: float
) -> NoisyGradients:
    """Return the event of noisy gradient descent with noise calibrated to a budget.

    Proof: noisy_gradient_descent.md 2
    """
    return NoisyGradients(
        problem=problem,
        clip=clip,
        scans=scans,
        noise=calibrate_gradient_noise(problem, budget, clip=clip, scans=scans),
        step=step,
        momentum=momentum,
    )


def calibrate_gradient_noise(problem: Problem, budget: Budget, *, clip: float, scans: int) -> Mechanism:
    """Return the Gaussian noise of each sum with which the composition of all scans is within a budget.

    Proof: noisy_gradient_descent.md 2
    """
    if budget.delta == 0:
        raise ParameterError(f"delta must be > 0 for noisy gradient descent, got {budget.delta}")
    together = math.sqrt(scans) * bound_gradient_sensitivity(problem, clip).total
    # Slightly more than needed, so that the profile, which rounds up, stays within the budget.
    return Mechanism("gaussian", calibrate_unit_gaussian(budget) * together * (1.0 + 32.0 * UNIT), problem.dimensions)


def compute_diverging_step(regularization: float, momentum: float) -> float:
    """Return the smallest step at which gradient descent on the penalty alone diverges.

    Below it, no overflow error can reveal anything about a trial that is not released.

    Proof: noisy_gradient_descent.md 3
    """
    pull = (1.0 - momentum) * (1.0 + 2.0 * momentum) * regularization
    return 2.0 * (1.0 + momentum) / pull if pull > 0 else math.inf


def bound_gradient_sensitivity(problem: Problem, clip: float) -> Sensitivity:
    """Return the sensitivity of the computed sum of clipped gradients to one row, or one person.

    Proof: noisy_gradient_descent.md 1
    Proof: adjacency.md 2
    """
    vectors, rows = problem.loss.vector_count, problem.rows
    changed = problem.changed_rows
    clipped = 2.0 * changed * clip * (1.0 + (problem.dims + vectors + 32.0) * UNIT)
    turned = 2.02 * UNIT * rows * clip * (bound_gathering_error(problem.dims) + 8.0 * vectors**2)
    return Sensitivity(clipped, 2.0 * changed * bound_term_rounding(problem) + turned, "clipped gradients")
