"""What the white-box algorithms share: they add noise to every update, and none to the result."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from boltdp.algorithms._base import described, main_noise, noise_per_weight
from boltdp.algorithms._sgd import PassesOfSGD
from boltdp.errors import ParameterError
from boltdp.losses import Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.noisy_updates import NoisyUpdates, Sampling
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.training_problem import Recipe
from boltdp.settings import Settings


class WhiteBox(PassesOfSGD):
    """SGD with noise in every update."""

    sampling: ClassVar[Sampling]
    noise_place = "noise in every update"
    headings = ("epsilon", "noise", "noise a weight", "noise / weights")
    explanation = "The noise is that of the averaged gradient of each update; the last column compares it with 1."

    @abstractmethod
    def noise_inside(self, recipe: Recipe, settings: Settings, budget: Budget) -> Mechanism:
        """The noise of every update, proved or as published."""

    def check(self, settings: Settings, loss: Loss, budget: Budget | None) -> None:
        """There is no noiseless form."""
        super().check(settings, loss, budget)
        if budget is None:
            raise ParameterError(f"epsilon must be given for the algorithm {self.name}, got None")

    def event(self, recipe: Recipe, settings: Settings, budget: Budget) -> NoisyUpdates:
        """Noisy updates."""
        noise = self.noise_inside(recipe, settings, budget)
        return NoisyUpdates(recipe, noise, self.sampling, settings.analysis)

    def cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        """The noise of an update."""
        assert isinstance(certificate.problem, Recipe)
        noise = (
            f"{noise_per_weight(certificate):.3g} a weight {described(main_noise(certificate))} in each of "
            f"{certificate.problem.updates:,} updates"
        )
        return [("algorithm", self.name), ("noise", noise)]

    def forecast(self, certificate: Certificate) -> dict[str, Any]:
        """The noise of a weight's gradient, and of all beside a gradient."""
        return {
            "noise_per_weight": noise_per_weight(certificate),
            "noise_to_weights": main_noise(certificate).expected_norm,
        }

    def forecast_line(self, forecast: dict[str, Any]) -> tuple[str, ...]:
        """Under the headings."""
        return f"{forecast['noise_per_weight']:.3g}", f"{forecast['noise_to_weights']:.2g}"

    def why_these_steps(self, recipe: Recipe, settings: Settings) -> str:
        """The algorithm's own."""
        del recipe, settings
        return f"those of {self.name}"
