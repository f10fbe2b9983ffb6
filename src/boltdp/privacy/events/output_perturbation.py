"""Noise after training: the weights of an SGD run get noise for as far as one row could have moved them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.sgd_sensitivity import Sensitivity, check_steps, published_sensitivity, sensitivity
from boltdp.privacy.mechanisms import Mechanism, calibrate
from boltdp.privacy.training_problem import Recipe, check_single_rows, check_undivided

#: Whether noise is what was proved here to be enough, or as published.
Analysis = Literal["proved", "paper"]

#: Why the paper's own bounds give no guarantee.
PUBLISHED = "the sensitivity is the paper's published one, which is too small for some settings"


@dataclass(frozen=True)
class OutputPerturbation(Training):
    """An SGD run as without privacy, whose weights got noise once."""

    kind = "output perturbation"
    algorithm = "bolton"
    problem: Recipe
    noise: Mechanism
    analysis: Analysis = "proved"

    def __post_init__(self) -> None:
        check_steps(self.problem)
        check_analysis(self.analysis)
        check_dimensions(self.noise, self.problem.dimensions)
        if self.analysis == "paper":
            check_undivided(self.problem, "the published bounds")
            check_single_rows(self.problem.person_rows, "the published bounds")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """By the proved sensitivity, whatever the noise was calibrated to."""
        return self.noise.delta(epsilon, sensitivity=sensitivity(self.problem).total)

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        return () if self.analysis == "proved" else (PUBLISHED,)

    @property
    def published(self) -> bool:
        return self.analysis == "paper"

    @property
    def release_noise(self) -> Mechanism:
        return self.noise

    @property
    def sensitivity(self) -> Sensitivity:
        """What the noise was calibrated to."""
        return sensitivity(self.problem) if self.analysis == "proved" else published_sensitivity(self.problem)

    @property
    def derived(self) -> dict[str, Any]:
        distance = self.sensitivity
        return {
            "sensitivity": distance.total,
            "derivation": distance.derivation,
            "noise_multiplier": self.noise.scale / distance.total,
        }


def make_output_perturbation(recipe: Recipe, budget: Budget, *, analysis: Analysis = "proved") -> OutputPerturbation:
    """The event of a run whose noise keeps a budget."""
    check_steps(recipe)
    check_analysis(analysis)
    distance = sensitivity(recipe) if analysis == "proved" else published_sensitivity(recipe)
    noise = calibrate(distance.total, dimensions=recipe.dimensions, budget=budget)
    return OutputPerturbation(recipe, noise, analysis)


def check_analysis(analysis: str) -> None:
    """Refuse a word that is none of the two.

    >>> check_analysis("guessed")
    Traceback (most recent call last):
    boltdp.errors.ParameterError: analysis must be one of proved, paper, got 'guessed'
    """
    if analysis not in get_args(Analysis):
        raise ParameterError(f"analysis must be one of {', '.join(get_args(Analysis))}, got {analysis!r}")


def check_dimensions(noise: Mechanism, dimensions: int) -> None:
    """Refuse noise that is not of the space it must hide.

    >>> check_dimensions(Mechanism("gaussian", 1.0, 3), 4)
    Traceback (most recent call last):
    boltdp.errors.ParameterError: the noise must have 4 dimensions, got 3
    """
    if noise.dimensions != dimensions:
        raise ParameterError(f"the noise must have {dimensions} dimensions, got {noise.dimensions}")
