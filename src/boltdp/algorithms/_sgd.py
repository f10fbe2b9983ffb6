"""The base of all algorithms that make passes of SGD over the rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from boltdp._array_types import Doubles, Integers
from boltdp.algorithms._base import (
    TYPICAL_NORM,
    Algorithm,
    Job,
    check_row_count,
    compute_noise_per_weight,
    find_main_noise,
)
from boltdp.engines.prepared_rows import Partition, PreparedRows
from boltdp.errors import ParameterError, check_whole_number
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.sgd import State
from boltdp.losses import Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Analysis, NoiselessTraining, Training
from boltdp.privacy.events.noisy_sgd import NoisyUpdates, Sampling
from boltdp.privacy.events.sgd_sensitivity import check_steps
from boltdp.privacy.mechanisms import Mechanism, calibrate
from boltdp.privacy.release_with_noise import RandomBytes, check_seed, draw_update_keys
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import (
    Schedule,
    make_constant_schedule,
    make_decreasing_schedule,
    make_square_root_schedule,
    make_strongly_convex_constant_schedule,
    make_strongly_convex_schedule,
)
from boltdp.privacy.training_problem import Problem
from boltdp.run_context import Context
from boltdp.settings import OPTIONAL, Settings

#: The defaults of the settings with these names.
PASSES, BATCH_SIZE, EXPONENT = 10, 50, 0.5
#: A guess at the mean of phi'' * ||x||^2, the curvature in the direction of the noise.
TYPICAL_CURVATURE = 0.2

#: Draws the positions of one pass from rows, batches and random bytes; a -1 ends each batch if `marks_batch_ends`.
Sampler: TypeAlias = Callable[..., Iterator[Integers]]
#: Calibrates the noise of an update from a recipe and a budget.
Calibration: TypeAlias = Callable[..., Mechanism]


class PassesOfSGD(Algorithm):
    """An algorithm that makes passes of SGD over the rows."""

    takes = frozenset(OPTIONAL) - {"partitions"}
    sampler: ClassVar[Sampler | None] = None  #: draws the rows of a pass; None: they are read in order
    marks_batch_ends: ClassVar[bool] = False  #: whether the drawn positions mark the ends of batches
    typical_norm: ClassVar[float] = 1.0  #: the norm with which a forecast compares the noise
    columns: ClassVar[Mapping[str, tuple[str, str]]] = {
        "noise_per_weight": ("noise per weight", "{:.3g}"),
        "noise_to_weights": ("noise / weights", "{:.2g}"),
    }

    def calibrate_updates(self, recipe: Recipe, analysis: Analysis, budget: Budget) -> Mechanism | None:
        """Calibrate the noise of every update, which must not depend on the steps; None: only the result has noise."""
        return None

    @abstractmethod
    def make_event(self, recipe: Recipe, analysis: Analysis, budget: Budget) -> Training:
        """Return the event of an SGD run with noise calibrated to a budget."""

    def choose_radius(self, settings: Settings, loss: Loss) -> float:
        """Return the radius of the ball to which weights are projected; infinite without a setting."""
        return math.inf if settings.radius is None else settings.radius

    def choose_default_schedule(self, recipe: Recipe, noise: Mechanism | None) -> Schedule | None:
        """Return the schedule for settings without one; None for the default of all SGD algorithms."""
        return None

    def plan(self, settings: Settings, problem: Problem, budget: Budget | None) -> Training:
        regularization = 0.0 if settings.regularization is None else settings.regularization
        partitions = 1 if settings.partitions is None else settings.partitions
        check_whole_number(partitions, "partitions", least=1)
        fewest = max(problem.rows // partitions, 1)
        recipe = Recipe(
            loss=problem.loss,
            dims=problem.dims,
            rows=problem.rows,
            batch_size=min(BATCH_SIZE, fewest) if settings.batch_size is None else settings.batch_size,
            passes=PASSES if settings.passes is None else settings.passes,
            # A step that is always allowed, until the schedule is chosen, which needs the rest of the recipe.
            schedule=make_constant_schedule(1.0 / (problem.loss.smoothness + max(regularization, 0.0))),
            regularization=regularization,
            class_weights=problem.class_weights,
            person_rows=problem.person_rows,
            radius=self.choose_radius(settings, problem.loss),
            averaging=settings.averaging or "last",
            permutation=settings.permutation or "once",
            partitions=partitions,
        )
        recipe = replace(recipe, schedule=self._choose_schedule(recipe, settings, budget))
        if budget is None:
            check_steps(recipe)
            return NoiselessTraining(recipe)
        return self.make_event(recipe, settings.analysis, budget)

    def _choose_schedule(self, recipe: Recipe, settings: Settings, budget: Budget | None) -> Schedule:
        """Return the step-size schedule that the settings name, or the default of the algorithm."""
        beta, name = recipe.beta, settings.schedule
        exponent = EXPONENT if settings.exponent is None else settings.exponent
        noise = None if budget is None else self.calibrate_updates(recipe, settings.analysis, budget)
        if name == "auto" and settings.step_size is None:
            default = self.choose_default_schedule(recipe, noise)
            if default is not None:
                return default
            name = "strongly-convex" if recipe.regularization > 0 else "constant"
        if settings.step_size is not None and name not in ("auto", "constant", "strongly-convex-constant"):
            raise ParameterError(f"step_size is for the constant schedules, got schedule {name!r}")

        def choose_step() -> float:
            if settings.step_size is not None:
                return settings.step_size
            return choose_constant_step(recipe, budget) if noise is None else choose_step_for_noise(recipe, noise)

        match name:
            case "decreasing":
                return make_decreasing_schedule(beta=beta, rows=recipe.partition_rows, exponent=exponent)
            case "square-root":
                return make_square_root_schedule(beta=beta, rows=recipe.partition_rows, exponent=exponent)
            case "strongly-convex":
                return make_strongly_convex_schedule(beta=beta, gamma=recipe.regularization)
            case "strongly-convex-constant":
                return make_strongly_convex_constant_schedule(choose_step(), beta=beta)
        return make_constant_schedule(choose_step())

    def run(self, prepared: PreparedRows, jobs: Sequence[Job], *, classes: int, context: Context) -> list[Doubles]:
        """Make all passes of SGD of all jobs, and return their weights; jobs that need no samples share scans."""
        streams = [job.randomness.make_stream() for job in jobs]
        recipes = [_require_recipe(job.certificate.problem) for job in jobs]
        (rows,) = {recipe.rows for recipe in recipes}
        (partitions,) = {recipe.partitions for recipe in recipes}
        check_row_count(prepared, rows)
        bounds = [recipes[0].compute_partition_bounds(number) for number in range(partitions)]
        # By partition, then by job, a state for each model.
        states = [
            [
                self._make_states(job, stream, classes, prepared.feature_map, rows=stop - start)
                for job, stream in zip(jobs, streams, strict=True)
            ]
            for start, stop in bounds
        ]
        if self.sampler is None:
            parts = [
                Partition(start, stop, [state for of_job in of_part for state in of_job], seeds)
                for (start, stop), of_part, seeds in zip(bounds, states, _list_seeds(recipes, context), strict=True)
            ]
            prepared.run_partitions(parts, context)
        else:
            (of_part,) = states
            self._run_sampled_passes(prepared, recipes, of_part, streams, context)
        shares = [(stop - start) / rows for start, stop in bounds]
        return [
            average_partitions([np.stack([state.weights for state in of_part[i]]) for of_part in states], shares)
            for i in range(len(jobs))
        ]

    def _run_sampled_passes(
        self,
        prepared: PreparedRows,
        recipes: Sequence[Recipe],
        states: Sequence[Sequence[State]],
        streams: Sequence[RandomBytes],
        context: Context,
    ) -> None:
        """Make all passes over random batches; each model draws its own, since they must be independent."""
        assert self.sampler is not None
        passes = max(recipe.passes for recipe in recipes)
        for number in range(1, passes + 1):
            stage = context.start_stage(f"pass {number} of {passes}", prepared.rows)
            for recipe, of_job, stream in zip(recipes, states, streams, strict=True):
                for state in of_job if recipe.passes >= number else ():
                    drawn = self.sampler(rows=recipe.rows, batches=recipe.batches, random_bytes=stream)
                    prepared.run_sampled_batches([state], drawn)
            # The size of random batches is secret: only the end of a pass is reported.
            stage.report_rows(prepared.rows)

    def _make_states(
        self, job: Job, random_bytes: RandomBytes, classes: int, feature_map: FeatureMap | None, *, rows: int
    ) -> list[State]:
        """Make the kernel's SGD state for each model of a job, over a partition of `rows` rows."""
        noise = job.certificate.training_noise
        if noise is not None:
            check_seed(job.certificate, job.randomness)
        recipe = _require_recipe(job.certificate.problem).restrict_to_partition(rows)
        keys = draw_update_keys(job.certificate, random_bytes)
        return [
            State(
                recipe,
                positive=positive,
                classes=classes,
                noise=noise,
                key=key,
                marked=self.marks_batch_ends,
                feature_map=feature_map,
            )
            for positive, key in zip(job.positives, keys, strict=True)
        ]

    def rescale_problem(self, problem: Problem, *, rows: int) -> Recipe:
        """Return the SGD recipe for another number of rows, with about the same number of updates."""
        passes = max(1, round(_require_recipe(problem).passes * problem.rows / rows))
        return replace(_resize_recipe(problem, rows), passes=passes)

    def resize(self, training: Training, budget: Budget, *, rows: int, dims: int) -> Training:
        recipe = replace(_resize_recipe(training.problem, rows), dims=dims)
        return self.make_event(recipe, "paper" if training.published else "proved", budget)

    def describe_run(self, certificate: Certificate) -> str:
        recipe = _require_recipe(certificate.problem)
        if recipe.partitions == 1:
            return f"{recipe.passes} passes over {recipe.rows:,} rows, {recipe.updates:,} updates"
        return (
            f"{recipe.passes} passes over {recipe.rows:,} rows in {recipe.partitions:,} partitions, "
            f"{recipe.updates:,} updates in each, then averaged"
        )

    def describe_choices(self, certificate: Certificate, settings: Settings) -> list[tuple[str, str]]:
        recipe = _require_recipe(certificate.problem)
        first, last = recipe.schedule.compute_steps([1, recipe.updates])
        steps = f"{first:.4g}" if first == last else f"from {first:.4g} down to {last:.4g}"
        if settings.step_size is not None or settings.schedule not in ("auto", "constant", "strongly-convex-constant"):
            why = "as asked for"
        else:
            why = self.explain_steps(recipe, settings)
        sizes = " or ".join(f"{run.rows:,}" for run in recipe.partition_recipes)
        partitions = f"{recipe.partitions:,} of {sizes} rows, each trained on alone; their weights are averaged"
        return [
            ("mechanism", self.explain_noise(certificate, settings)),
            ("loss", self.describe_loss(certificate)),
            *([] if recipe.partitions == 1 else [("partitions", partitions)]),
            ("passes", f"{recipe.passes} over {recipe.batches:,} batches of about {recipe.batch_size} rows"),
            ("steps", f"{steps}: {why}"),
        ]

    def forecast(self, certificate: Certificate) -> dict[str, Any]:
        noise_to_weights = find_main_noise(certificate).expected_norm / self.typical_norm
        return {"noise_per_weight": compute_noise_per_weight(certificate), "noise_to_weights": noise_to_weights}

    def explain_steps(self, recipe: Recipe, settings: Settings) -> str:
        """Describe why the automatic schedule has these steps."""
        if settings.schedule == "auto" and recipe.regularization > 0:
            return "the steps that fit the regularization"
        return "where going further would add more noise than it would gain"


class WhiteBox(PassesOfSGD):
    """SGD with noise in every update and none in the result."""

    about = "to every update"
    sampling: ClassVar[Sampling]
    proved_calibration: ClassVar[Calibration]
    published_calibration: ClassVar[Calibration]  #: as in the paper, for algorithms that take an analysis
    noise_place = "noise in every update"
    explanation = "The noise is that of the averaged gradient of each update; the last column compares it with 1."

    def calibrate_updates(self, recipe: Recipe, analysis: Analysis, budget: Budget) -> Mechanism:
        return (self.proved_calibration if analysis == "proved" else self.published_calibration)(recipe, budget)

    def check(self, settings: Settings, loss: Loss, budget: Budget | None) -> None:
        super().check(settings, loss, budget)
        if budget is None:
            raise ParameterError(f"epsilon must be given for the algorithm {self.name}, got None")

    def make_event(self, recipe: Recipe, analysis: Analysis, budget: Budget) -> NoisyUpdates:
        noise = self.calibrate_updates(recipe, analysis, budget)
        return NoisyUpdates(recipe, noise, self.sampling, analysis)

    def describe_cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        updates = _require_recipe(certificate.problem).updates
        noise = f"{compute_noise_per_weight(certificate):.3g} per weight in each of {updates:,} updates"
        return [("algorithm", self.name), ("noise", f"{noise} ({self.describe_noise(certificate)})")]

    def explain_steps(self, recipe: Recipe, settings: Settings) -> str:
        return f"those of {self.name}"

    def explain_noise(self, certificate: Certificate, settings: Settings) -> str:
        if self.sampler is None:
            return super().explain_noise(certificate, settings)
        return "gaussian: the analysis of random samples is for no other"


def _require_recipe(problem: Problem) -> Recipe:
    assert isinstance(problem, Recipe)
    return problem


def _resize_recipe(problem: Problem, rows: int) -> Recipe:
    """Return the SGD recipe for another number of rows, with partitions and batches that are not too large for it."""
    recipe = _require_recipe(problem)
    partitions = min(recipe.partitions, rows // 2)
    return replace(recipe, rows=rows, partitions=partitions, batch_size=min(recipe.batch_size, rows // partitions))


def _list_seeds(recipes: Sequence[Recipe], context: Context) -> Iterator[list[int | None]]:
    """Yield for each partition the seeds that shuffle its rows before each pass; None where they are not shuffled."""
    passes = max(recipe.passes for recipe in recipes)
    fresh = max((recipe.passes for recipe in recipes if recipe.permutation == "fresh"), default=0)
    for first in range(0, passes * recipes[0].partitions, passes):
        yield [context.seed + first + number if 0 < number < fresh else None for number in range(passes)]


def average_partitions(weights: Sequence[Doubles], shares: Sequence[float]) -> Doubles:
    """Return the mean of the weights that SGD found on each partition, weighted by the partitions' shares of the rows.

    Proof: sgd_sensitivity.md 8
    """
    total = shares[0] * weights[0]
    for share, of_partition in zip(shares[1:], weights[1:], strict=True):
        total += share * of_partition
    return total


def choose_constant_step(recipe: Recipe, share: Budget | None) -> float:
    """Return the constant step size that balances the distance from the optimum against the noise.

    For a constant step the sensitivity is 2*L*tau/m, where tau is the sum of all steps, whatever the batches, passes
    and partitions. A larger tau gets closer to the optimum w*, as ||w*||^2 / (2*tau), and needs more noise, whose loss
    is about curvature/2 * E||noise||^2 / D. The tau that minimises their sum is divided by the number of updates.
    """
    if share is None:
        # Without noise: large enough to converge, small enough for the steps to average out.
        tau = 100.0 * math.sqrt(recipe.updates)
    else:
        # The sensitivity for tau = 1.
        sensitivity = 2.0 * recipe.changed_rows * recipe.loss.lipschitz / recipe.rows
        noise = sensitivity * calibrate(1.0, dimensions=recipe.dimensions, budget=share).expected_norm
        tau = (TYPICAL_NORM**2 * recipe.dimensions / (2.0 * TYPICAL_CURVATURE * noise**2)) ** (1 / 3)
    return min(tau, recipe.updates / recipe.beta) / recipe.updates


def choose_step_for_noise(recipe: Recipe, noise: Mechanism) -> float:
    """Return the constant step size that minimizes the usual bound on the error of SGD with this noise.

    It is R / (G*sqrt(T)) for weights of norm R, gradients of norm G with their noise and T updates, at most 1/beta.
    """
    step = min(recipe.radius, TYPICAL_NORM) / (bound_gradient_norm(recipe, noise) * math.sqrt(recipe.updates))
    return min(step, 1.0 / recipe.beta)


def bound_gradient_norm(recipe: Recipe, noise: Mechanism) -> float:
    """Return G, an upper bound on the root mean square norm of a gradient with the noise of an update."""
    spread = noise.dimensions * (noise.dimensions + 1 if noise.kind == "spherical" else 1)
    return math.sqrt(recipe.loss.lipschitz**2 + spread * noise.scale**2)
