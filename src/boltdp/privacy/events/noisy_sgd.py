"""The noise of the white-box algorithms SCS13, BST14 and DP-SGD, which add noise to every update.

Each has the smallest noise that is proved here; SCS13 and BST14 have the published noise too. The noise is for the
averaged gradient of a batch, with one row replaced. Proofs, also about the published forms: `noisy_sgd.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

from boltdp._bisect import bisect
from boltdp.errors import ParameterError, check_choice
from boltdp.privacy.accounting.privacy_loss_distributions import (
    MAX_EPSILON,
    Profile,
    bound_delta_of_updates,
    find_smallest_deviation,
    make_fixed_size_profile,
    make_poisson_profile,
)
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Analysis, Training, round_up
from boltdp.privacy.events.output_perturbation import check_dimensions
from boltdp.privacy.mechanisms import Mechanism, calibrate_unit_gaussian, choose_smallest_noise
from boltdp.privacy.sgd_recipe import Recipe, check_undivided
from boltdp.privacy.training_problem import check_single_rows

Sampling = Literal["permutation", "fixed size", "poisson"]
ALGORITHM_NAMES: Mapping[Sampling, str] = {"permutation": "scs13", "fixed size": "bst14", "poisson": "dpsgd"}
#: The profile of an update on a random sample, by the deviation of its noise and the rate of its sample.
PROFILES: Mapping[Sampling, Callable[..., Profile]] = {
    "fixed size": make_fixed_size_profile,
    "poisson": make_poisson_profile,
}

#: The reason why published BST14 is not private.
BST14_PUBLISHED = "its published argument takes sums of gradients to differ by 1, where they can differ by twice L"

#: The hint of the error for person-level privacy.
PERSON_HINT = (
    "take the algorithm objective, noisy-gd or bolton; bst14 and dpsgd take a person_id with max_rows_per_person = 1"
)


@dataclass(frozen=True)
class NoisyUpdates(Training):
    """An SGD run with fresh noise in the averaged gradient of every update, and none at the end.

    `sampling` is how the rows of an update are chosen: `permutation` cuts them from one order of all rows, `fixed size`
    draws a uniform sample for each update, `poisson` takes every row with probability 1/batches.
    """

    kind = "noisy updates"
    problem: Recipe
    noise: Mechanism
    sampling: Sampling
    analysis: Analysis = "proved"

    def __post_init__(self) -> None:
        check_choice(self.analysis, "analysis", Analysis)
        check_dimensions(self.noise, self.problem.dimensions)
        check_undivided(self.problem, "noise in every update")
        if self.sampling == "permutation" or self.problem.changed_rows > 1:
            check_single_rows(self.problem.person_rows, "noise in every update", hint=PERSON_HINT)
        check_choice(self.sampling, "sampling", Sampling)
        if self.sampling != "permutation" and self.noise.kind != "gaussian":
            raise ParameterError(f"the noise of random samples must be gaussian, got {self.noise.kind!r}")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the proved privacy profile, also if the noise was calibrated to published bounds.

        Proof: noisy_sgd.md 2, 3, 4, 5
        """
        recipe = self.problem
        if self.sampling == "permutation":
            passes, reach = recipe.passes, _compute_batch_sensitivity(recipe)
            if self.noise.kind == "gaussian":
                return self.noise.delta(epsilon, sensitivity=reach * math.sqrt(passes))
            return min(1.0, passes * self.noise.delta(epsilon / passes, sensitivity=reach))
        if epsilon > MAX_EPSILON:
            return self.delta(MAX_EPSILON, target=target)
        reach, rate = _get_unit_and_rate(recipe, self.sampling)
        profile = PROFILES[self.sampling](self.noise.scale / reach, rate=rate)
        return bound_delta_of_updates(profile, updates=recipe.updates, budget=Budget(epsilon, target or 1e-9))

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        return (BST14_PUBLISHED,) if self.analysis == "paper" and self.sampling == "fixed size" else ()

    @property
    def algorithm(self) -> str:
        return ALGORITHM_NAMES[self.sampling]

    @property
    def training_noise(self) -> Mechanism:
        return self.noise


def calibrate_scs13(recipe: Recipe, budget: Budget) -> Mechanism:
    """Return the noise of each update of SCS13: a row is in one batch of each of k passes, with sensitivity 2L/b.

    Proof: noisy_sgd.md 2
    """
    reach = round_up(_compute_batch_sensitivity(recipe))
    spherical = Mechanism("spherical", reach * recipe.passes / budget.epsilon, recipe.dimensions)
    if budget.delta == 0:
        return spherical
    # Gaussian noise of k updates composes like that of one with sqrt(k) times the sensitivity.
    sigma = reach * math.sqrt(recipe.passes) * calibrate_unit_gaussian(budget)
    return choose_smallest_noise(Mechanism("gaussian", sigma, recipe.dimensions), spherical)


def calibrate_published_scs13(recipe: Recipe, budget: Budget) -> Mechanism:
    """Return the paper's noise of SCS13: (epsilon/k, delta/k) for each of k passes, valid only for epsilon/k < 1.

    Proof: noisy_sgd.md 2
    """
    if budget.delta == 0:
        return calibrate_scs13(recipe, budget)
    share = budget.split(recipe.passes)
    sigma = round_up(_compute_batch_sensitivity(recipe)) * _compute_classical_sigma(share)
    return Mechanism("gaussian", sigma, recipe.dimensions)


def calibrate_published_bst14(recipe: Recipe, budget: Budget) -> Mechanism:
    """Return the noise of the BST14 paper with iota = 1, which is NOT proved: a row moves the sum by up to 2L."""
    _require_delta("bst14", budget)
    updates, share = recipe.updates, budget.delta / recipe.updates
    spread = math.sqrt(2.0 * updates * math.log(1.0 / share))

    def is_too_large(epsilon: float) -> bool:
        return not updates * epsilon * math.expm1(epsilon) + spread * epsilon <= budget.epsilon

    first, _ = bisect(is_too_large, 0.0, budget.epsilon / spread, steps=100)  # the paper's epsilon_1
    inner = min(1.0, recipe.rows * first / (2.0 * recipe.smallest_batch))
    sigma = _compute_classical_sigma(Budget(inner, share)) / recipe.smallest_batch
    return Mechanism("gaussian", sigma, recipe.dimensions)


def calibrate_sampled_updates(recipe: Recipe, budget: Budget, sampling: Sampling) -> Mechanism:
    """Return the noise of updates on random samples of the rows with which all of them compose to the budget.

    Proof: noisy_sgd.md 3, 4, 5
    """
    _require_delta(ALGORITHM_NAMES[sampling], budget)
    reach, rate = _get_unit_and_rate(recipe, sampling)
    return Mechanism("gaussian", reach * _find_multiplier(sampling, rate, recipe.updates, budget), recipe.dimensions)


calibrate_bst14 = partial(calibrate_sampled_updates, sampling="fixed size")
calibrate_dpsgd = partial(calibrate_sampled_updates, sampling="poisson")


def _get_unit_and_rate(recipe: Recipe, sampling: Sampling) -> tuple[float, float]:
    """Return the gradient norm that is the unit of noise in the profile of an update, and its sampling rate."""
    if sampling == "fixed size":
        return round_up(_compute_batch_sensitivity(recipe)), recipe.largest_batch / recipe.rows
    return round_up(recipe.loss.lipschitz * recipe.batches / recipe.rows), 1.0 / recipe.batches


def _compute_batch_sensitivity(recipe: Recipe) -> float:
    """Return the L2-sensitivity of the mean gradient of a batch to one replaced row."""
    return 2.0 * recipe.loss.lipschitz / recipe.smallest_batch


def _compute_classical_sigma(budget: Budget) -> float:
    """Return the deviation of Gaussian noise for sensitivity 1 by the classical bound, valid for epsilon < 1 only."""
    return math.sqrt(2.0 * math.log(1.25 / budget.delta)) / budget.epsilon


def _require_delta(algorithm: str, budget: Budget) -> None:
    if budget.delta == 0:
        raise ParameterError(
            f"delta must be > 0 for {algorithm}, got 0",
            hint="its noise is Gaussian, which keeps no pure budget; scs13 and bolton can",
        )


# Cached: planning computes it twice, verification once more, and a comparison for every repeat.
@lru_cache(maxsize=1024)
def _find_multiplier(sampling: Sampling, rate: float, updates: int, budget: Budget) -> float:
    """Return the smallest noise multiplier with which all sampled updates compose to the budget."""
    return find_smallest_deviation(partial(PROFILES[sampling], rate=rate), updates=updates, budget=budget)
