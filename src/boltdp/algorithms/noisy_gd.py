"""Noisy gradient descent: scans that sum all rows' clipped gradients, and noise in every sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
)
from boltdp.context import Context
from boltdp.engines.prepared_rows import Prepared
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap
from boltdp.losses import Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.noisy_gradients import NoisyGradients, gradient_noise, make_noisy_gradients
from boltdp.privacy.release import release_gradient
from boltdp.privacy.training_problem import Problem
from boltdp.settings import Settings

if TYPE_CHECKING:
    from boltdp.kernel.loss_derivatives import DerivativeSums

#: Scans, and how much of a step's direction the next one keeps.
SCANS, MOMENTUM = 26, 0.7
#: The clip: of two classes what rows of length 1 have at first, half of the longest gradient; of more, less than that.
CLIP, JOINT_CLIP = 0.5, 0.4
#: All steps together, times the noise a row: see `default_step`.
REACH, JOINT_REACH = 24.0, 66.0
#: A step, at most, in units of the features over the smoothness.
LONGEST_STEP = 12.0
#: All steps together, times Lambda, at most.
PENALTY_REACH = 2.0


class NoisyGD(Algorithm):
    """Noise in the sum of every scan; any loss will do."""

    name = "noisy-gd"
    about = "to the gradient of every scan"
    takes = frozenset({"passes", "step_size", "gradient_clip"})
    noise_place = "noise of each scan"
    gaussian, ordered = True, False
    headings = ("epsilon", "noise", "noise a row", "step")
    explanation = (
        "The noise is added to the sum of all rows' gradients, each at most the clip long, in every scan."
        "\nMore rows, fewer features (a projection), a larger epsilon or delta make the noise smaller."
    )

    def check(self, settings: Settings, loss: Loss, budget: Budget | None) -> None:
        """A budget without delta, and no budget at all."""
        super().check(settings, loss, budget)
        if budget is None:
            raise ParameterError("epsilon must be given for noisy-gd", hint="without noise, take another algorithm")
        if budget.delta == 0:
            raise ParameterError(f"delta must be > 0 for noisy gradient descent, got {budget.delta}")

    def fits_auto(self, settings: Settings, loss: Loss, budget: Budget | None) -> bool:
        """For several classes at once, where nothing is asked for about how to train."""
        free = not settings.given and settings.regularization is None
        return loss.vectors > 1 and free and super().fits_auto(settings, loss, budget)

    def plan(self, settings: Settings, problem: Problem, budget: Budget | None) -> NoisyGradients:
        """The clip, the scans and the step, as asked for or by public numbers, and the noise."""
        assert budget is not None
        if settings.regularization is not None:
            problem = replace(problem, regularization=settings.regularization)
        clip = settings.gradient_clip
        if clip is None:
            clip = CLIP if problem.loss.vectors == 1 else JOINT_CLIP
        scans = settings.passes if settings.passes is not None else SCANS
        step = settings.step_size
        if step is None:
            step = default_step(problem, budget, clip=clip, scans=scans)
        return make_noisy_gradients(problem, budget, clip=clip, scans=scans, step=step, momentum=MOMENTUM)

    def run(self, prepared: Prepared, jobs: Sequence[Job], *, classes: int, context: Context) -> list[Doubles]:
        """All jobs' models at once: a scan serves every one that has scans left."""
        descents = [_Descent(job, classes, prepared.feature_map) for job in jobs]
        scans = max(descent.event.scans for descent in descents)
        stage = context.at("descending", scans * prepared.rows)
        for scan in range(scans):
            going = [descent for descent in descents if scan < descent.event.scans]
            sums = [descent.sums() for descent in going]
            prepared.sum([one for several in sums for one in several])
            for descent, several in zip(going, sums, strict=True):
                descent.move(several)
            stage.done((scan + 1) * prepared.rows)
        return [descent.weights for descent in descents]

    def cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        """The noise."""
        event, noise = _event(certificate), main_noise(certificate)
        long = f"{noise.expected_norm:.3g} long {described(noise)} in each of {event.scans} scans{in_each(certificate)}"
        return [("algorithm", self.name), ("noise", long)]

    def trained(self, certificate: Certificate) -> str:
        """In so many scans."""
        event = _event(certificate)
        return f"{event.problem.rows:,} rows, {event.scans} scans, gradients clipped to {event.clip:g}"

    def choices(self, certificate: Certificate, settings: Settings) -> list[tuple[str, str]]:
        """The scans, the clip and the step."""
        event = _event(certificate)

        def why(asked: object) -> str:
            return "as asked for" if asked is not None else "as fitted on public data sets (docs/accuracy.md)"

        return [
            ("mechanism", "gaussian: all scans together are then one Gaussian"),
            ("loss", loss_and_models(certificate)),
            ("scans", f"{event.scans}: {why(settings.passes)}"),
            ("gradient clip", f"{event.clip:g}: {why(settings.gradient_clip)}"),
            ("step", f"{event.step:.3g}: {'as asked for' if settings.step_size is not None else 'by the noise a row'}"),
        ]

    def forecast(self, certificate: Certificate) -> dict[str, Any]:
        """The noise for each row, and the step."""
        event = _event(certificate)
        return {"noise_per_row": main_noise(certificate).expected_norm / event.problem.rows, "step": event.step}

    def forecast_line(self, forecast: dict[str, Any]) -> tuple[str, ...]:
        """Under the headings."""
        return f"{forecast['noise_per_row']:.2g}", f"{forecast['step']:.3g}"


def default_step(problem: Problem, budget: Budget, *, clip: float, scans: int) -> float:
    """A step by public numbers: all scans' steps together reach as far as the noise lets them be of use.

    Noise of relative length nu for a row would move the weights by nu times the steps' sum, so that this sum is a
    constant over nu; docs/accuracy.md says on which data it was fitted and on which it was checked. With a
    penalty, all steps together are at most twice what would take the weights to 0, were there no rows; and no step
    is much longer than what the curvature allows if rows are alike in all directions: longer ones swing from side to
    side.

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=50, rows=10**5)
    >>> default_step(problem, Budget(1.0, 1e-9), clip=0.4, scans=40) > default_step(
    ...     problem, Budget(0.1, 1e-9), clip=0.4, scans=40)
    True
    """
    noise = gradient_noise(problem, budget, clip=clip, scans=1)
    nu = noise.expected_norm / (clip * problem.rows)
    reach = REACH if problem.loss.vectors == 1 else JOINT_REACH
    if problem.regularization > 0:
        reach = min(reach, PENALTY_REACH * nu / problem.regularization)
    longest = LONGEST_STEP * problem.dims / problem.loss.smoothness
    return min(reach / (nu * scans), longest, 1e9)


class _Descent:
    """The weights of one job's models between scans."""

    def __init__(self, job: Job, classes: int, feature_map: FeatureMap | None) -> None:
        self._job, self._classes, self._feature_map = job, classes, feature_map
        self.event = _event(job.certificate)
        problem = self.event.problem
        self.weights = np.zeros((job.certificate.models, problem.loss.vectors, problem.dims))
        self._direction = np.zeros_like(self.weights)
        # Where the next scan is: a look ahead, to where the last direction alone would go (Nesterov's momentum).
        self._ahead = self.weights
        self._scan = 0

    def sums(self) -> list[DerivativeSums]:
        """What the next scan is to sum, one for each model."""
        from boltdp.kernel.loss_derivatives import DerivativeSums  # only here: commands that read no rows need none

        problem, clip, classes = self.event.problem, self.event.clip, self._classes
        return [
            DerivativeSums(
                problem.loss,
                weights,
                clip=clip,
                positive=positive,
                classes=classes,
                class_weights=problem.class_weights,
                feature_map=self._feature_map,
            )
            for weights, positive in zip(self._ahead, self._job.positives, strict=True)
        ]

    def move(self, sums: Sequence[DerivativeSums]) -> None:
        """Go a step, by sums that have noise from here on."""
        event, problem = self.event, self.event.problem
        summed = np.stack([one.value for one in sums])
        noisy = release_gradient(summed, self._job.certificate, self._job.randomness, scan=self._scan)
        gradient = noisy / problem.rows + problem.regularization * self._ahead
        self._direction = event.momentum * self._direction + (1.0 - event.momentum) * gradient
        self.weights = self.weights - event.step * self._direction
        self._ahead = self.weights - event.step * event.momentum * self._direction
        self._scan += 1


def _event(certificate: Certificate) -> NoisyGradients:
    event = certificate.training
    assert isinstance(event, NoisyGradients)
    return event
