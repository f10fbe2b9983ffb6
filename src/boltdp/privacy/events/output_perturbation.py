"""Output perturbation: noise added to the weights after SGD, calibrated to their sensitivity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from boltdp.errors import ParameterError, check_choice
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Analysis, Training
from boltdp.privacy.events.sgd_sensitivity import (
    Sensitivity,
    check_steps,
    compute_published_sensitivity,
    compute_sgd_sensitivity,
)
from boltdp.privacy.mechanisms import Mechanism, calibrate
from boltdp.privacy.sgd_recipe import Recipe, check_undivided
from boltdp.privacy.training_problem import check_single_rows

#: The reason why the paper's own bounds are not private.
PUBLISHED = "the sensitivity is the paper's published one, which is too small for some settings"


@dataclass(frozen=True)
class OutputPerturbation(Training):
    """An ordinary SGD run with noise added once to its weights."""

    kind = "output perturbation"
    algorithm = "bolton"
    problem: Recipe
    noise: Mechanism
    analysis: Analysis = "proved"

    def __post_init__(self) -> None:
        check_steps(self.problem)
        check_choice(self.analysis, "analysis", Analysis)
        check_dimensions(self.noise, self.problem.dimensions)
        if self.analysis == "paper":
            check_undivided(self.problem, "the published bounds")
            check_single_rows(self.problem.person_rows, "the published bounds")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the profile by the proved sensitivity, also if the noise was calibrated to the published one."""
        return self.noise.delta(epsilon, sensitivity=compute_sgd_sensitivity(self.problem).total)

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        return () if self.analysis == "proved" else (PUBLISHED,)

    @property
    def release_noise(self) -> Mechanism:
        return self.noise

    @property
    def sensitivity(self) -> Sensitivity:
        """The sensitivity that the noise was calibrated to."""
        compute = compute_sgd_sensitivity if self.analysis == "proved" else compute_published_sensitivity
        return compute(self.problem)

    @property
    def derived_numbers(self) -> dict[str, Any]:
        distance = self.sensitivity
        return {
            "sensitivity": distance.total,
            "derivation": distance.derivation,
            "noise_multiplier": self.noise.scale / distance.total,
        }


def make_output_perturbation(recipe: Recipe, budget: Budget, *, analysis: Analysis = "proved") -> OutputPerturbation:
    """Return the event of an SGD run with noise calibrated to a budget."""
    check_steps(recipe)
    check_choice(analysis, "analysis", Analysis)
    distance = compute_sgd_sensitivity(recipe) if analysis == "proved" else compute_published_sensitivity(recipe)
    noise = calibrate(distance.total, dimensions=recipe.dimensions, budget=budget)
    return OutputPerturbation(recipe, noise, analysis)


def check_dimensions(noise: Mechanism, dimensions: int) -> None:
    """Raise ParameterError unless the noise has this number of dimensions."""
    if noise.dimensions != dimensions:
        raise ParameterError(f"the noise must have {dimensions} dimensions, got {noise.dimensions}")
