"""Noisy gradient descent: scans that sum all rows' clipped gradients, and noise in every sum."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from boltdp._array_types import Doubles
from boltdp.algorithms._base import Algorithm, Job, find_main_noise
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap
from boltdp.losses import Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients, calibrate_gradient_noise, make_noisy_gradients
from boltdp.privacy.mechanisms import calibrate_unit_gaussian
from boltdp.privacy.release_with_noise import release_gradient
from boltdp.privacy.training_problem import Problem
from boltdp.run_context import Context
from boltdp.settings import Settings

if TYPE_CHECKING:
    from boltdp.kernel.loss_derivatives import DerivativeSums

#: The default number of scans, for one weight vector and for one of each class; and the largest, for one of each class
#: and more than `MAX_NARROW_DIMS` features.
SCANS, JOINT_SCANS, MAX_SCANS = 40, 26, 200
MAX_NARROW_DIMS = 100
MOMENTUM = 0.7
#: "auto" takes it for a number with more features than this, if the noise per row is above the second constant.
MIN_NUMBER_DIMS, MIN_NUMBER_NOISE = 100, 0.015
#: "auto" takes it for a loss with kinks if the noise per row is above this.
MIN_KINKED_NOISE = 0.004
#: The default clip norm of gradients for one weight vector, and for one of each class: of much noise, and of little,
#: where clipping would bias the weights of classes that overlap by more than the noise moves them.
CLIP, JOINT_CLIP, LOOSE_JOINT_CLIP = 0.5, 0.4, 0.7
#: The noise per row below which several classes have the looser clip, but for wide vectors.
LOOSE_CLIP_NOISE = 0.02
#: The sum of all steps times the noise per row and the loss's unit: for one weight vector, and for one of each class at
#: the clip norm of much noise; and for many weights, the same times the noise of one weight.
REACH, JOINT_REACH, WEIGHT_REACH = 6.0, 16.5, 0.75
#: The step times the loss's unit, at the same clip norm, up to which that sum follows the noise of one weight.
WEIGHT_STEP = 75.0
#: The largest step, in units of the number of features over the smoothness, for classes and for a number.
MAX_STEP, MAX_NUMBER_STEP = 12.0, 0.25
#: The largest sum of all steps times Lambda.
MAX_PENALTY_REACH = 2.0
#: The cosine of two gradients in a row below which the descent oscillates, and its step is halved.
OSCILLATION_COSINE = -0.25


class NoisyGD(Algorithm):
    """Gradient descent with noise in the gradient of every scan, for any loss."""

    name = "noisy-gd"
    about = "to the gradient of every scan"
    takes = frozenset({"passes", "step_size", "gradient_clip"})
    noise_place = "noise of each scan"
    gaussian, needs_permutation = True, False
    columns: ClassVar[Mapping[str, tuple[str, str]]] = {
        "noise_per_row": ("noise per row", "{:.2g}"),
        "step": ("step", "{:.3g}"),
    }
    explanation = (
        "The noise is added to the sum of all rows' gradients, each clipped to the gradient clip, in every scan."
        "\nMore rows, fewer features (a projection), a larger epsilon or delta make the noise smaller."
    )

    def check(self, settings: Settings, loss: Loss, budget: Budget | None) -> None:
        super().check(settings, loss, budget)
        if budget is None:
            raise ParameterError("epsilon must be given for noisy-gd", hint="without noise, take another algorithm")
        if budget.delta == 0:
            raise ParameterError(f"delta must be > 0 for noisy gradient descent, got {budget.delta}")

    def fits_auto(self, settings: Settings, loss: Loss, budget: Budget | None, *, dims: int, rows: int) -> bool:
        """Return True only without any settings of the training, for several classes at once, or for a number.

        Objective perturbation is more accurate for a number if there are few features or little noise, and for a loss
        with kinks if there is little noise.
        """
        unset = not settings.given_names and settings.regularization is None
        if budget is None or not unset or not super().fits_auto(settings, loss, budget, dims=dims, rows=rows):
            return False
        if budget.delta > 0 and loss.vector_count == 1:
            noise = 2.0 * calibrate_unit_gaussian(budget) * math.sqrt(dims) / rows
            if loss.simplex.kink_curvature is not None:
                return noise > MIN_KINKED_NOISE
            return loss.target == "number" and dims > MIN_NUMBER_DIMS and noise > MIN_NUMBER_NOISE
        return loss.vector_count > 1

    def plan(self, settings: Settings, problem: Problem, budget: Budget | None) -> NoisyGradients:
        """Plan noisy gradient descent: its clip norm, scans, step size and noise."""
        assert budget is not None
        if settings.regularization is not None:
            problem = replace(problem, regularization=settings.regularization)
        clip = settings.gradient_clip
        if clip is None:
            clip = choose_gradient_clip(problem, budget)
        scans = settings.passes if settings.passes is not None else choose_scans(problem, budget)
        step = settings.step_size
        if step is None:
            step = choose_descent_step(problem, budget, clip=clip, scans=scans)
        return make_noisy_gradients(problem, budget, clip=clip, scans=scans, step=step, momentum=MOMENTUM)

    def run(self, prepared: PreparedRows, jobs: Sequence[Job], *, classes: int, context: Context) -> list[Doubles]:
        """Make all scans of all jobs, which share them, and return the weights of each job."""
        scans = max(_require_noisy_gradients(job.certificate).scans for job in jobs)
        stage = context.start_stage("descending", scans * prepared.rows)
        descents = [_descend(job, classes, prepared.feature_map) for job in jobs]
        sums, weights = [next(descent) for descent in descents], [np.empty(0) for _ in jobs]
        for scan in range(1, scans + 1):
            prepared.add_to_sums([one for of_job in sums for one in of_job])
            for number, descent in enumerate(descents):
                try:
                    sums[number] = next(descent) if sums[number] else []
                except StopIteration as end:
                    sums[number], weights[number] = [], end.value
            stage.report_rows(scan * prepared.rows)
        return weights

    def resize(self, training: Training, budget: Budget, *, rows: int, dims: int) -> NoisyGradients:
        assert isinstance(training, NoisyGradients)
        problem = replace(training.problem, rows=rows, dims=dims)
        noise = calibrate_gradient_noise(problem, budget, clip=training.clip, scans=training.scans)
        return replace(training, problem=problem, noise=noise)

    def describe_cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        scans = f"in each of {_require_noisy_gradients(certificate).scans} scans{self.describe_models(certificate)}"
        return [("algorithm", self.name), ("noise", f"added {scans} ({self.describe_noise(certificate)})")]

    def describe_run(self, certificate: Certificate) -> str:
        event = _require_noisy_gradients(certificate)
        return f"{event.problem.rows:,} rows, {event.scans} scans, gradients clipped to {event.clip:g}"

    def describe_choices(self, certificate: Certificate, settings: Settings) -> list[tuple[str, str]]:
        event = _require_noisy_gradients(certificate)

        def explain(asked: object, chosen: str = "as fitted on public datasets (docs/accuracy.md)") -> str:
            return "as asked for" if asked is not None else chosen

        return [
            ("mechanism", "gaussian: all scans together are then one Gaussian"),
            ("loss", self.describe_loss(certificate)),
            ("scans", f"{event.scans}: {explain(settings.passes)}"),
            ("gradient clip", f"{event.clip:g}: {explain(settings.gradient_clip)}"),
            ("step", f"{event.step:.3g}: {explain(settings.step_size, 'by the noise per row')}"),
        ]

    def find_gradient_noise(self, certificate: Certificate) -> float | None:
        event = _require_noisy_gradients(certificate)
        return event.noise.expected_norm / (event.clip * math.sqrt(event.scans))

    def forecast(self, certificate: Certificate) -> dict[str, Any]:
        event = _require_noisy_gradients(certificate)
        return {"noise_per_row": find_main_noise(certificate).expected_norm / event.problem.rows, "step": event.step}


def choose_gradient_clip(problem: Problem, budget: Budget) -> float:
    """Return the clip norm of gradients from public numbers."""
    if problem.loss.vector_count == 1:
        return CLIP
    loose = problem.dims <= MAX_NARROW_DIMS and _compute_noise_per_row(problem, budget) < LOOSE_CLIP_NOISE
    return LOOSE_JOINT_CLIP if loose else JOINT_CLIP


def choose_scans(problem: Problem, budget: Budget) -> int:
    """Return the number of scans from public numbers: more of them if several classes have many features.

    They are as many as steps of `WEIGHT_STEP` need to get as far as the noise of one weight allows.
    """
    if problem.loss.vector_count == 1:
        return SCANS
    if problem.dims <= MAX_NARROW_DIMS:
        return JOINT_SCANS
    needed = _compute_weight_reach(problem, _compute_noise_per_row(problem, budget)) / WEIGHT_STEP
    return min(max(math.ceil(needed), JOINT_SCANS), MAX_SCANS)


def choose_descent_step(problem: Problem, budget: Budget, *, clip: float, scans: int) -> float:
    """Return the first step from public numbers, such that the sum of all steps is inversely proportional to the noise.

    Noise of relative norm nu per row moves the weights by nu times the sum of the steps, so this sum is a constant
    over nu; docs/accuracy.md says on which data it was fitted and on which it was checked. A row's scores feel the
    noise of one weight only, however many weights there are: for several classes the sum is a constant over that, if
    this is more and steps of `WEIGHT_STEP` get there. With regularization, the sum is at most twice what would shrink
    the weights to 0 without any rows. No step is much larger than the curvature of isotropic rows allows. Rows of
    another shape have directions in which they oscillate, which shows in the noisy gradients: they are then halved.
    """
    nu = _compute_noise_per_row(problem, budget)
    reach = REACH
    if problem.loss.vector_count > 1:
        far = min(_compute_weight_reach(problem, nu), WEIGHT_STEP * scans)
        reach = max(JOINT_REACH, far * nu) * JOINT_CLIP / clip
    reach /= problem.loss.label_unit
    if problem.regularization > 0:
        reach = min(reach, MAX_PENALTY_REACH * nu / problem.regularization)
    most = MAX_NUMBER_STEP if problem.loss.target == "number" else MAX_STEP
    return min(reach / (nu * scans), most * problem.dims / problem.loss.smoothness, 1e9)


def _compute_weight_reach(problem: Problem, nu: float) -> float:
    """Return the sum of all steps that the noise of one weight allows, as `WEIGHT_REACH` states it."""
    return WEIGHT_REACH * math.sqrt(problem.dimensions) / nu


def _compute_noise_per_row(problem: Problem, budget: Budget) -> float:
    """Return the expected norm of the noise of one scan per row, in units of the clip norm."""
    return calibrate_gradient_noise(problem, budget, clip=1.0, scans=1).expected_norm / problem.rows


def is_oscillating(gradient: Doubles, last: Doubles) -> bool:
    """Return whether two gradients in a row point in opposite directions, so that the steps are too long.

    Both are released: what follows from them costs no privacy.
    """
    product = float(np.sum(gradient * last))
    return product < 0.0 and product**2 > OSCILLATION_COSINE**2 * float(np.sum(gradient**2)) * float(np.sum(last**2))


def _descend(job: Job, classes: int, feature_map: FeatureMap | None) -> Generator[list[DerivativeSums], None, Doubles]:
    """Yield the gradient sums that each scan needs, one for each model, and return the weights after the last scan.

    Where the gradients oscillate, the last update is made again, with half the step.
    """
    from boltdp.kernel.loss_derivatives import DerivativeSums  # only here: commands that read no rows need none

    event = _require_noisy_gradients(job.certificate)
    problem = event.problem
    weights = np.zeros((job.certificate.model_count, problem.loss.vector_count, problem.dims))
    # The look-ahead point of Nesterov's momentum, where the next gradient is taken.
    ahead, direction, step = weights, np.zeros_like(weights), event.step
    before, last = (weights, direction), np.zeros_like(weights)
    for scan in range(event.scans):
        sums = [
            DerivativeSums(
                problem.loss,
                point,
                clip=event.clip,
                positive=positive,
                classes=classes,
                class_weights=problem.class_weights,
                feature_map=feature_map,
            )
            for point, positive in zip(ahead, job.positives, strict=True)
        ]
        yield sums
        summed = np.stack([one.value for one in sums])
        noisy = release_gradient(summed, job.certificate, job.randomness, scan=scan)
        gradient = noisy / problem.rows + problem.regularization * ahead
        if is_oscillating(gradient, last):
            (weights, direction), gradient, step = before, last, step / 2.0
        before, last = (weights, direction), gradient
        direction = event.momentum * direction + (1.0 - event.momentum) * gradient
        weights = weights - step * direction
        ahead = weights - step * event.momentum * direction
    return weights


def _require_noisy_gradients(certificate: Certificate) -> NoisyGradients:
    event = certificate.training
    assert isinstance(event, NoisyGradients)
    return event
