"""Noisy gradient descent: every scan releases the sum of all rows' clipped gradients, with noise.

The weights are made of these sums and of public numbers alone, so they need no noise of their own.
`noisy_gradient_descent.md` proves how far one row can move a sum, rounding included (section 1), and what all scans
spend together (section 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from boltdp.errors import ParameterError, real_number, whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Training, round_up
from boltdp.privacy.events.objective_perturbation import check_summable, gathering, term_rounding
from boltdp.privacy.events.output_perturbation import check_dimensions
from boltdp.privacy.events.sgd_sensitivity import UNIT, Sensitivity
from boltdp.privacy.mechanisms import Mechanism, gaussian_sigma
from boltdp.privacy.training_problem import MAX_PASSES, Problem


@dataclass(frozen=True, kw_only=True)
class NoisyGradients(Training):
    """Gradient descent on all rows, with noise in the sum of each scan.

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000)
    >>> event = make_noisy_gradients(problem, Budget(1.0, 1e-6), clip=0.5, scans=40, step=1.0, momentum=0.8)
    >>> event.delta(1.0) <= 1e-6, event.delta(0.9) <= 1e-6
    (True, False)
    """

    kind = "noisy gradients"
    algorithm = "noisy-gd"
    problem: Problem
    clip: float  #: C: a row's gradient that is longer is shortened to this
    scans: int  #: T
    noise: Mechanism  #: of each sum, in the directions in which the weights can move
    step: float  #: eta, of the mean gradient
    momentum: float  #: the share of the last step's direction that is kept

    def __post_init__(self) -> None:
        check_summable(self.problem)
        check_dimensions(self.noise, self.problem.dimensions)
        if self.noise.kind != "gaussian":
            raise ParameterError(f"the noise of gradients must be gaussian, got {self.noise.kind!r}")
        if whole_number(self.scans, "scans", least=1) > MAX_PASSES:
            raise ParameterError(f"scans must be at most {MAX_PASSES:,}, got {self.scans}")
        for name in ("clip", "step"):
            if not 1e-9 <= real_number(getattr(self, name), name) <= 1e9:
                raise ParameterError(f"{name} must be between 1e-9 and 1e9, got {getattr(self, name)}")
        if not 0 <= real_number(self.momentum, "momentum") < 1:
            raise ParameterError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        least = diverging_step(self.problem.regularization, self.momentum)
        if self.step >= least:
            raise ParameterError(
                f"step must be below {least:.3g} for regularization {self.problem.regularization:g}, got {self.step:g}",
                hint="a longer step makes the weights grow without bounds, whatever the rows are",
            )

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """All scans together are one Gaussian.

        Proof: noisy_gradient_descent.md 2
        """
        together = math.sqrt(self.scans) * sum_sensitivity(self.problem, self.clip).total
        return self.noise.delta(epsilon, sensitivity=math.nextafter(together, math.inf) * (1.0 + 4.0 * UNIT))

    @property
    def mu(self) -> float:
        """All scans together are one Gaussian.

        Proof: noisy_gradient_descent.md 2
        """
        together = math.sqrt(self.scans) * sum_sensitivity(self.problem, self.clip).total
        return round_up(together / self.noise.scale)

    @property
    def training_noise(self) -> Mechanism:
        return self.noise

    @property
    def derived(self) -> dict[str, Any]:
        return {"sensitivity_of_a_sum": sum_sensitivity(self.problem, self.clip).total}


def make_noisy_gradients(
    problem: Problem, budget: Budget, *, clip: float, scans: int, step: float, momentum: float
) -> NoisyGradients:
    """The event of a training whose noise keeps a budget.

    Proof: noisy_gradient_descent.md 2

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000)
    >>> make_noisy_gradients(problem, Budget(1.0), clip=0.5, scans=40, step=1.0, momentum=0.8)
    Traceback (most recent call last):
    boltdp.errors.ParameterError: delta must be > 0 for noisy gradient descent, got 0.0
    """
    return NoisyGradients(
        problem=problem,
        clip=clip,
        scans=scans,
        noise=gradient_noise(problem, budget, clip=clip, scans=scans),
        step=step,
        momentum=momentum,
    )


def gradient_noise(problem: Problem, budget: Budget, *, clip: float, scans: int) -> Mechanism:
    """The Gaussian noise of each sum that makes all scans together keep a budget.

    Proof: noisy_gradient_descent.md 2

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000)
    >>> one, four = (gradient_noise(problem, Budget(1.0, 1e-6), clip=0.5, scans=n).scale for n in (1, 4))
    >>> round(four / one, 9)
    2.0
    """
    if budget.delta == 0:
        raise ParameterError(f"delta must be > 0 for noisy gradient descent, got {budget.delta}")
    together = math.sqrt(scans) * sum_sensitivity(problem, clip).total
    # A hair more than the profile is asked about, so that its own rounding up is within the budget.
    return Mechanism("gaussian", gaussian_sigma(budget) * together * (1.0 + 32.0 * UNIT), problem.dimensions)


def diverging_step(regularization: float, momentum: float) -> float:
    """The shortest step with which the penalty throws the weights farther away in every scan.

    Whether numbers overflow, an error that is seen, is then nothing that a trial which is not released could tell.

    Proof: noisy_gradient_descent.md 3

    >>> round(diverging_step(0.01, 0.75), 9), diverging_step(0.0, 0.75)
    (560.0, inf)
    """
    pull = (1.0 - momentum) * (1.0 + 2.0 * momentum) * regularization
    return 2.0 * (1.0 + momentum) / pull if pull > 0 else math.inf


def sum_sensitivity(problem: Problem, clip: float) -> Sensitivity:
    """How far one row, or one person, can move the computed sum of clipped gradients.

    Proof: noisy_gradient_descent.md 1
    Proof: adjacency.md 2

    >>> from boltdp.losses import Logistic
    >>> round(sum_sensitivity(Problem(loss=Logistic(), dims=50, rows=10**6), 0.5).total, 6)
    1.0
    """
    vectors, rows = problem.loss.vectors, problem.rows
    changed = problem.changed_rows
    clipped = 2.0 * changed * clip * (1.0 + (problem.dims + vectors + 32.0) * UNIT)
    turned = 2.02 * UNIT * rows * clip * (gathering(problem.dims) + 8.0 * vectors**2)
    return Sensitivity(clipped, 2.0 * changed * term_rounding(problem) + turned, "clipped gradients")
