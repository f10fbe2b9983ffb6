"""Objective perturbation: add a random linear term to the objective, minimise it, and hide that this is not exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from boltdp._arrays import Doubles
from boltdp.algorithms._base import (
    Algorithm,
    Job,
    described,
    in_each,
    loss_and_models,
    main_noise,
    why_this_kind,
)
from boltdp.context import Context
from boltdp.engines.prepared_rows import Prepared
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap
from boltdp.losses import Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Noiseless, Training
from boltdp.privacy.events.objective_perturbation import (
    ample_regularization,
    check_objective,
    check_solvable,
    least_solvable,
    make_objective_perturbation,
    objective_noise,
    shares,
)
from boltdp.privacy.release import draw_linear_terms
from boltdp.privacy.training_problem import Problem
from boltdp.settings import Settings

if TYPE_CHECKING:
    from boltdp.algorithms._newton import Solver

#: Minimisers that are looked for in the same scans, at most.
MOST_AT_ONCE = 64
#: Lambda is this times a power of the noise a row; see `default_regularization`.
REGULARIZATION, REGULARIZATION_POWER = 0.12, 1.35
#: Accuracy lost, at least and at most, in units of the noise a row; see `accuracy_lost`.
ACCURACY_LOST = (0.0, 2.0)


class Objective(Algorithm):
    """Noise before training; it has no passes, and needs a loss whose slope is smooth."""

    name = "objective"
    about = "once, before training"
    takes = frozenset[str]()
    noise_place = "noise before training"
    ordered, fixed_scans = False, False
    headings = ("epsilon", "noise", "noise a row", "regularization", "accuracy lost")
    explanation = (
        "The noise is added to the sum of all rows' losses; a row's own gradient is about 1 long."
        "\nNineteen of twenty measurements on public data sets lost no more accuracy than that (docs/accuracy.md)."
        "\nMore rows, fewer features (a projection), a larger epsilon or some delta make the noise smaller."
    )

    def check(self, settings: Settings, loss: Loss, budget: Budget | None) -> None:
        """Losses that the proof does not cover, and no regularization at all."""
        super().check(settings, loss, budget)
        if settings.regularization is not None and not settings.regularization > 0:
            raise ParameterError(
                f"regularization must be > 0 for objective perturbation, got {settings.regularization}"
            )
        check_objective(Problem(loss=loss, dims=1, rows=2, regularization=1.0))

    def fits_auto(self, settings: Settings, loss: Loss, budget: Budget | None) -> bool:
        """Without noise it has no advantage over passes of SGD."""
        return budget is not None and super().fits_auto(settings, loss, budget)

    def plan(self, settings: Settings, problem: Problem, budget: Budget | None) -> Training:
        """Lambda, as asked for or by the noise a row, and the noise."""
        chosen = settings.regularization
        if chosen is None:
            chosen = default_regularization(problem, budget)
        problem = replace(problem, regularization=chosen)
        if budget is None:
            check_solvable(problem, None)
            return Noiseless(problem)
        return make_objective_perturbation(problem, budget)

    def run(self, prepared: Prepared, jobs: Sequence[Job], *, classes: int, context: Context) -> list[Doubles]:
        """The minimiser of each job's models, all looked for at once."""
        from boltdp.algorithms._newton import MOST_NUMBERS, solve  # only here: SciPy comes with it

        # How many scans it takes depends on the rows: only the beginning and the end are told.
        stage = context.at("minimising", prepared.rows)
        stage.done(0)
        problem = jobs[0].certificate.problem
        together = min(MOST_AT_ONCE, max(1, MOST_NUMBERS // (problem.loss.vectors * problem.dims**2)))
        solvers = (solver for job in jobs for solver in _solvers(job, classes, prepared.feature_map))
        minimisers: list[Doubles] = []
        while group := list(islice(solvers, together)):
            minimisers += solve(prepared, group)
        stage.done(prepared.rows)
        weights = iter(minimisers)
        return [np.stack([next(weights) for _ in job.positives]) for job in jobs]

    def cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        """The noise, and what it may cost."""
        if certificate.training_noise is None:
            return []
        noise = main_noise(certificate)
        low, high = accuracy_lost(certificate)
        long = f"{noise.expected_norm:.3g} long {described(noise)}, once, before training{in_each(certificate)}"
        lost = f"{low:.3f} to {high:.3f} is to be expected, from measurements on public data sets"
        return [("algorithm", self.name), ("noise", long), ("accuracy lost", lost)]

    def trained(self, certificate: Certificate) -> str:
        """Until it was done."""
        return f"{certificate.problem.rows:,} rows, until the gradient of the noisy objective was zero"

    def choices(self, certificate: Certificate, settings: Settings) -> list[tuple[str, str]]:
        """The noise, the loss and Lambda."""
        asked = settings.regularization is not None
        why = "as asked for" if asked else "as fitted on public data sets to the noise a row (docs/accuracy.md)"
        return [
            ("mechanism", why_this_kind(certificate, settings)),
            ("loss", loss_and_models(certificate)),
            ("regularization", f"{certificate.problem.regularization:.3g}: {why}"),
        ]

    def forecast(self, certificate: Certificate) -> dict[str, Any]:
        """The noise for each row, Lambda and what they may cost."""
        return {
            "noise_per_row": main_noise(certificate).expected_norm / certificate.problem.rows,
            "regularization": certificate.problem.regularization,
            "accuracy_lost": list(accuracy_lost(certificate)),
        }

    def forecast_line(self, forecast: dict[str, Any]) -> tuple[str, ...]:
        """Under the headings."""
        lost = "{:.3f} to {:.3f}".format(*forecast["accuracy_lost"])
        return f"{forecast['noise_per_row']:.2g}", f"{forecast['regularization']:.2g}", lost


def _solvers(job: Job, classes: int, feature_map: FeatureMap | None) -> Iterator[Solver]:
    from boltdp.algorithms._newton import minimise

    certificate = job.certificate
    for positive, linear in zip(job.positives, draw_linear_terms(certificate, job.randomness), strict=True):
        yield minimise(
            certificate.problem,
            linear,
            noise=certificate.training_noise,
            positive=positive,
            classes=classes,
            feature_map=feature_map,
        )


def default_regularization(problem: Problem, budget: Budget | None) -> float:
    """A Lambda for objective perturbation, from the mean length of its noise q for each row.

    A larger one costs Lambda/2 * ||w*||^2, a smaller one lets q move the weights further. What is best between
    the two follows a power of ||q||/m; docs/accuracy.md says on which data it was fitted and on which it was checked.
    At least so much that pure noise would be no shorter with more of it, and that the minimum can be found.

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=50, rows=10**6)
    >>> default_regularization(problem, Budget(10.0)) < default_regularization(problem, Budget(1.0))
    True
    """
    if budget is None:
        return max(1.0 / problem.rows, 1.01 * least_solvable(problem, None))
    ample = problem.changed_rows * (1.0 + 4.0 / budget.epsilon)
    noise = objective_noise(replace(problem, regularization=ample), budget)
    fitted: float = REGULARIZATION * (noise.expected_norm / problem.rows) ** REGULARIZATION_POWER
    # A quarter more: at this Lambda the noise is somewhat longer than the noise above, by less than a sixth.
    solvable = 1.25 * least_solvable(problem, noise)
    return max(fitted, ample_regularization(problem, shares(budget).noise.epsilon), solvable)


def accuracy_lost(certificate: Certificate) -> tuple[float, float]:
    """What objective perturbation may cost in accuracy, at least and at most, by the noise a row.

    Measured, not proved: nineteen of twenty measurements on public data sets lost no more, and many gained, against a
    model without noise and without curves; docs/accuracy.md.
    """
    noise = main_noise(certificate).expected_norm / certificate.problem.rows
    low, high = ACCURACY_LOST
    return min(low * noise, 0.5), min(high * noise, 0.5)
