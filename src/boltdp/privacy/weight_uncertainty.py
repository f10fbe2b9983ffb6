"""The standard deviation that noise and sampling cause in released weights, for reports; no guarantee depends on it.

It is computed from public numbers only. `weight_uncertainty.md` has the definitions and proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from boltdp._bisect import bisect
from boltdp.losses import Logistic, MarginLogistic, Mean, Multinomial
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.training_problem import Problem

#: The maximum number of steps, and the number of curvatures, at which the variance of SGD is evaluated.
MAX_STEPS, CURVATURES = 2**15, 40


@dataclass(frozen=True)
class WeightDeviation:
    """The standard deviation of a linear combination <c, w> of the weights of one vector, per unit of the norm of c."""

    deviation: float  #: over the noise
    exact: bool  #: whether `deviation` is exact or an upper bound
    combined: float  #: an upper bound over noise and sampling together, if no column had an effect; inf: none is known
    noise: Mechanism | None  #: whose tails the combination has; None: normal


def compute_weight_deviation(training: Training) -> WeightDeviation | None:
    """Return the standard deviation of a training's weights; None where the noise was added in every update.

    Proof: weight_uncertainty.md 1, 2, 3, 4
    """
    problem, release = training.problem, training.release_noise
    # Several vectors sum to zero, so that each has its share of the free directions of the noise.
    part = math.sqrt(problem.loss.directions / problem.loss.vector_count)
    strength, ratio = problem.rows * problem.regularization, bound_variance_ratio(problem)
    if isinstance(training, ObjectivePerturbation):
        stopped = training.sensitivity.total  # at least the distance from the exact minimiser to the computed weights
        moved = bound_deviation(training.linear)
        both = bound_minimiser_deviation(moved, strength, ratio)
        alone, combined = (math.hypot(one + stopped, training.end.deviation) for one in (moved / strength, both))
        return WeightDeviation(part * alone, exact=False, combined=part * combined, noise=training.linear)
    if training.training_noise is not None:
        return None
    alone = 0.0 if release is None else release.deviation
    if isinstance(problem, Recipe):
        sampling = bound_sgd_deviation(problem, ratio)
    else:
        sampling = bound_minimiser_deviation(0.0, strength, ratio)
    return WeightDeviation(part * alone, exact=True, combined=part * math.hypot(alone, sampling), noise=release)


def bound_deviation(noise: Mechanism) -> float:
    """Return the largest standard deviation of any 1-Lipschitz function of the noise.

    Proof: weight_uncertainty.md 2
    """
    if noise.kind == "gaussian":
        return noise.scale
    dimensions = noise.dimensions
    return 2.0 * noise.scale if dimensions == 1 else noise.deviation * math.sqrt(dimensions / (dimensions - 1))


def bound_variance_ratio(problem: Problem) -> float:
    """Return the largest ratio of the variance of rows' slopes to their curvature, where a model fits; inf: unknown.

    Proof: weight_uncertainty.md 4
    """
    loss = problem.loss
    if not isinstance(loss, Logistic | Multinomial | Mean):
        return math.inf
    return problem.changed_rows * (math.exp(loss.margin) if isinstance(loss, MarginLogistic) else 1.0)


def bound_minimiser_deviation(noise: float, strength: float, ratio: float) -> float:
    """Return the largest standard deviation of a minimiser's weights over the noise of its linear term and sampling.

    `strength` is m*Lambda. The curvature h that the rows have in a direction is unknown, so that the largest of
    (ratio*h + noise^2) / (h + strength)^2 over h >= 0 is returned.

    Proof: weight_uncertainty.md 4
    """
    if math.isinf(ratio):
        return math.inf
    curvature = max(0.0, strength - 2.0 * noise**2 / ratio)
    return math.sqrt(ratio * curvature + noise**2) / (curvature + strength)


def bound_sgd_deviation(recipe: Recipe, ratio: float) -> float:
    """Return the largest standard deviation of the last iterate of SGD over sampling, where its steps are linear.

    Proof: weight_uncertainty.md 4
    """
    if recipe.averaging != "last" or math.isinf(ratio):
        return math.inf
    passes, batches = recipe.passes, recipe.batches
    groups = max(1, min(batches, MAX_STEPS // passes))
    size = batches / groups
    ends = size * np.arange(1.0, passes * groups + 1)
    steps = recipe.schedule.compute_steps(ends - size + 1.0)  # the first of each group, which is the largest
    later = size * (np.cumsum(steps[::-1])[::-1] - steps)  # the sum of the steps after each group
    largest = 0.0
    for curvature in recipe.loss.smoothness * np.geomspace(1e-8, 1.0, CURVATURES):
        influence = steps * np.exp(-(curvature + recipe.regularization) * later)
        # Sorted, since the sum of squares over rows is largest if each row is at the same rank in all passes.
        rows = np.sort(influence.reshape(passes, groups), axis=1).sum(axis=0)
        largest = max(largest, ratio * curvature * size * float(rows @ rows) / recipe.smallest_batch)
    return math.sqrt(largest / recipe.partitions)


@lru_cache(maxsize=1024)
def find_critical_value(noise: Mechanism | None, level: float) -> float:
    """Return the two-sided critical value of a coordinate of the noise, or of a normal, in standard deviations.

    Its absolute value exceeds that with the probability `level`.

    Proof: weight_uncertainty.md 5
    """
    factors, weights = [1.0], np.ones(1)
    if noise is not None and noise.kind == "spherical":
        # The variance is Gamma-distributed: the mean of normal tails over a grid of its logarithm.
        shape = (noise.dimensions + 1) / 2
        logarithms = math.log(shape) + np.linspace(-40.0, 10.0, 801) / math.sqrt(shape)
        density = shape * logarithms - np.exp(logarithms)
        weights = np.exp(density - density.max())
        factors = np.exp(0.5 * (math.log(shape) - logarithms)).tolist()
    total = float(weights.sum())

    def is_rare(value: float) -> bool:
        tails = np.array([math.erfc(value * factor / math.sqrt(2.0)) for factor in factors])
        return float(weights @ tails) <= level * total

    return bisect(is_rare, 0.0, 1000.0, tolerance=1e-9)[1]
