"""Bolt-on SGD: train as without privacy, then add noise once, for as far as one row can have moved the weights."""

from __future__ import annotations

from typing import Any

from boltdp.algorithms._base import TYPICAL_NORM, described, in_each, main_noise, noise_per_weight
from boltdp.algorithms._sgd import PassesOfSGD
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.output_perturbation import OutputPerturbation, make_output_perturbation
from boltdp.privacy.training_problem import Recipe
from boltdp.settings import OPTIONAL, Settings


class BoltOn(PassesOfSGD):
    """The paper's algorithm, with a sensitivity that holds."""

    name = "bolton"
    about = "once, to the result"
    takes = frozenset(OPTIONAL)
    noise_place = "noise"
    headings = ("epsilon", "noise", "noise a weight", "noise / weights")
    explanation = (
        "The noise of a weight is also that of the margin <w, x> of a row of length 1, where 1 is a confident margin."
        f"\nThe last column compares the noise with weights of length {TYPICAL_NORM:g}, which are typical."
        "\nMore rows, fewer features (a projection), a larger epsilon or some delta make the noise smaller."
    )

    def noise_inside(self, recipe: Recipe, settings: Settings, budget: Budget) -> None:
        """None: all noise is added to the result."""

    def event(self, recipe: Recipe, settings: Settings, budget: Budget) -> OutputPerturbation:
        """Output perturbation."""
        return make_output_perturbation(recipe, budget, analysis=settings.analysis)

    def cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        """The sensitivity and the noise."""
        sensitivity = certificate.sensitivity
        if sensitivity is None:
            return []
        moved = f"{sensitivity.total:.6g}: as far as one row can move the weights{in_each(certificate)}"
        noise = f"{noise_per_weight(certificate):.3g} a weight {described(main_noise(certificate))}"
        return [("algorithm", self.name), ("sensitivity", moved), ("noise", noise)]

    def forecast(self, certificate: Certificate) -> dict[str, Any]:
        """The noise of a weight, and of all beside typical ones."""
        return {
            "noise_per_weight": noise_per_weight(certificate),
            "noise_to_weights": main_noise(certificate).expected_norm / TYPICAL_NORM,
        }

    def forecast_line(self, forecast: dict[str, Any]) -> tuple[str, ...]:
        """Under the headings."""
        return f"{forecast['noise_per_weight']:.3g}", f"{forecast['noise_to_weights']:.2g}"
