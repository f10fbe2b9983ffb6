"""Objective perturbation: add a random linear term to the objective, minimise it, and add noise for the inexactness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from boltdp._array_types import Doubles
from boltdp.algorithms._base import Algorithm, Job, find_main_noise
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import ParameterError
from boltdp.losses import Loss, Robust
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import NoiselessTraining, Training
from boltdp.privacy.events.objective_perturbation import (
    allows_releases_before,
    calibrate_objective_noise,
    check_objective,
    check_solvable,
    find_ample_regularization,
    find_min_solvable_regularization,
    make_objective_perturbation,
    split_budget,
)
from boltdp.privacy.release_with_noise import draw_linear_terms
from boltdp.privacy.training_problem import Problem
from boltdp.run_context import Context
from boltdp.settings import Settings

#: The largest number of solvers that share scans.
MAX_AT_ONCE = 64
#: Lambda is REGULARIZATION times the loss's unit times this power of the noise per row; see `choose_regularization`.
REGULARIZATION, REGULARIZATION_POWER = 0.48, 1.35
#: The first of these for a loss with kinks.
KINKED_REGULARIZATION = 1.5
#: The expected loss of accuracy, and of R2, in units of the noise per row; see `estimate_score_loss`.
ACCURACY_LOSS, R2_LOSS = 2.0, 4.0


#: What the expected accuracy loss of classifiers follows from.
EVIDENCE = "\nNineteen of twenty measurements on public datasets lost no more accuracy than that (docs/accuracy.md)."


class Objective(Algorithm):
    """Noise before training; it has no passes, and needs a regularization."""

    name = "objective"
    about = "once, before training"
    takes = frozenset[str]()
    noise_place = "noise before training"
    needs_permutation, fixed_scans = False, False
    columns: ClassVar[Mapping[str, tuple[str, str]]] = {
        "noise_per_row": ("noise per row", "{:.2g}"),
        "regularization": ("regularization", "{:.2g}"),
        "expected_accuracy_loss": ("expected accuracy loss", "up to {:.3f}"),
        "expected_r2_loss": ("expected R2 loss", "up to {:.3f}"),
    }
    explanation = (
        "The noise is added to the sum of all rows' losses; the gradient of a row has a norm of about 1."
        f"{EVIDENCE}"
        "\nMore rows, fewer features (a projection), a larger epsilon or some delta make the noise smaller."
    )

    def check(self, settings: Settings, loss: Loss, budget: Budget | None) -> None:
        super().check(settings, loss, budget)
        if settings.regularization is not None and not settings.regularization > 0:
            raise ParameterError(
                f"regularization must be > 0 for objective perturbation, got {settings.regularization}"
            )
        check_objective(Problem(loss=loss, dims=1, rows=2, regularization=1.0))

    def fits_auto(self, settings: Settings, loss: Loss, budget: Budget | None, *, dims: int, rows: int) -> bool:
        # Without noise it has no advantage over passes of SGD.
        return budget is not None and super().fits_auto(settings, loss, budget, dims=dims, rows=rows)

    def plan(self, settings: Settings, problem: Problem, budget: Budget | None) -> Training:
        """Plan objective perturbation: its regularization and noise."""
        chosen = settings.regularization
        if chosen is None:
            chosen = choose_regularization(problem, budget)
        problem = replace(problem, regularization=chosen)
        if budget is None:
            check_solvable(problem, None)
            return NoiselessTraining(problem)
        return make_objective_perturbation(problem, budget)

    def can_share_budget(self, problem: Problem) -> bool:
        return allows_releases_before(problem)

    def share_budget(self, training: Training, budget: Budget, *, other_mu: float) -> Training:
        return make_objective_perturbation(training.problem, budget, other_mu=other_mu)

    def run(self, prepared: PreparedRows, jobs: Sequence[Job], *, classes: int, context: Context) -> list[Doubles]:
        """Minimise the perturbed objective of each model of all jobs, and return the weights of each job."""
        # Imported only here, since SciPy comes with it.
        from boltdp.algorithms._newton import MAX_NUMBERS, make_objective_solver, run_solvers

        # How many scans it takes depends on the rows: only the beginning and the end are reported.
        stage = context.start_stage("minimising", prepared.rows)
        stage.report_rows(0)
        problem = jobs[0].certificate.problem
        together = min(MAX_AT_ONCE, max(1, MAX_NUMBERS // (problem.loss.vector_count * problem.dims**2)))
        solvers = (
            make_objective_solver(
                job.certificate.problem,
                _center_penalty(linear, job),
                noise=job.certificate.training_noise,
                positive=positive,
                classes=classes,
                feature_map=prepared.feature_map,
            )
            for job in jobs
            for positive, linear in zip(job.positives, draw_linear_terms(job.certificate, job.randomness), strict=True)
        )
        minimisers: list[Doubles] = []
        while group := list(islice(solvers, together)):
            minimisers += run_solvers(prepared, group)
        stage.report_rows(prepared.rows)
        weights = iter(minimisers)
        return [np.stack([next(weights) for _ in job.positives]) for job in jobs]

    def resize(self, training: Training, budget: Budget, *, rows: int, dims: int) -> Training:
        # It keeps m*Lambda, and therefore its noise.
        strength = training.problem.regularization * training.problem.rows
        problem = replace(training.problem, rows=rows, dims=dims, regularization=strength / rows)
        return make_objective_perturbation(problem, budget)

    def describe_cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        if certificate.training_noise is None:
            return []
        noise = f"added once, before training{self.describe_models(certificate)} ({self.describe_noise(certificate)})"
        lines = [("algorithm", self.name), ("noise", noise)]
        for name, loss in estimate_score_loss(certificate).items():
            heading = self.columns[name][0]
            lines.append((heading, f"up to {loss:.3f} (19 of 20 measurements on public datasets)"))
        return lines

    def describe_run(self, certificate: Certificate) -> str:
        return f"{certificate.problem.rows:,} rows, until the gradient of the noisy objective was zero"

    def describe_choices(self, certificate: Certificate, settings: Settings) -> list[tuple[str, str]]:
        asked = settings.regularization is not None
        fitted = "as fitted on public datasets to the noise per row (docs/accuracy.md)"
        if certificate.matrices:
            fitted = "small, and the coefficients are corrected for it"
        why = "as asked for" if asked else fitted
        return [
            ("mechanism", self.explain_noise(certificate, settings)),
            ("loss", self.describe_loss(certificate)),
            ("regularization", f"{certificate.problem.regularization:.3g}: {why}"),
        ]

    def forecast(self, certificate: Certificate) -> dict[str, Any]:
        return {
            "noise_per_row": find_main_noise(certificate).expected_norm / certificate.problem.rows,
            "regularization": certificate.problem.regularization,
            **estimate_score_loss(certificate),
        }

    def find_gradient_noise(self, certificate: Certificate) -> float | None:
        return None if certificate.training_noise is None else certificate.training_noise.expected_norm

    def explain_forecast(self, certificate: Certificate) -> str:
        if certificate.problem.loss.target == "classes":
            return self.explanation
        measured = EVIDENCE.replace("accuracy", "R2") if estimate_score_loss(certificate) else ""
        return self.explanation.replace(EVIDENCE, measured)


def _center_penalty(linear: Doubles, job: Job) -> Doubles:
    """Return the linear term that turns the penalty on the norm into one on the distance from the center of the job."""
    problem = job.certificate.problem
    return linear if job.center is None else linear - problem.rows * problem.regularization * job.center


def choose_regularization(problem: Problem, budget: Budget | None) -> float:
    """Return a Lambda for objective perturbation, from the expected norm of its noise q per row.

    A larger Lambda costs Lambda/2 * ||w*||^2, a smaller one lets q move the weights further. The best one follows a
    power of ||q||/m; docs/accuracy.md says on which data it was fitted and on which it was checked. A number's unit h
    makes the weights 1/h times as large, and the best Lambda h times. It is large enough for pure noise to be as small
    as possible, and for the minimum to be found.
    """
    if budget is None:
        return max(1.0 / problem.rows, 1.01 * find_min_solvable_regularization(problem, None))
    ample = problem.changed_rows * (1.0 + 4.0 / budget.epsilon)
    ample = max(ample, find_ample_regularization(problem, budget.epsilon))
    noise = calibrate_objective_noise(replace(problem, regularization=ample), budget)
    kinks = problem.loss.simplex.kink_curvature is not None
    strength = (KINKED_REGULARIZATION if kinks else REGULARIZATION) * problem.loss.label_unit
    fitted: float = strength * (noise.expected_norm / problem.rows) ** REGULARIZATION_POWER
    # A quarter more: at this Lambda the noise is somewhat larger than the noise above, by less than a sixth.
    solvable = 1.25 * find_min_solvable_regularization(problem, noise)
    return max(fitted, find_ample_regularization(problem, split_budget(budget)[0].epsilon), solvable)


def estimate_score_loss(certificate: Certificate) -> dict[str, float]:
    """Return an empirical upper bound on what objective perturbation loses, by the name of its column of a forecast.

    In nineteen of twenty measurements on public datasets the loss of accuracy, or of R2 by the loss robust, against a
    noiseless model without curves was smaller (docs/accuracy.md). The other losses of numbers were not measured so.
    """
    noise, loss = find_main_noise(certificate).expected_norm / certificate.problem.rows, certificate.problem.loss
    if loss.target == "classes":
        return {"expected_accuracy_loss": min(ACCURACY_LOSS * noise, 0.5)}
    return {"expected_r2_loss": min(R2_LOSS * noise, 1.0)} if isinstance(loss, Robust) else {}
