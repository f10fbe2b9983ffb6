"""The base of the white-box algorithms, which add noise to every update and none to the result."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from boltdp.algorithms._base import describe_noise, noise_per_weight
from boltdp.algorithms._sgd import PassesOfSGD
from boltdp.errors import ParameterError
from boltdp.losses import Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.noisy_sgd import NoisyUpdates, Sampling
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.training_problem import Recipe
from boltdp.settings import Settings


class WhiteBox(PassesOfSGD):
    """SGD with noise in every update."""

    sampling: ClassVar[Sampling]
    noise_place = "noise in every update"
    explanation = "The noise is that of the averaged gradient of each update; the last column compares it with 1."

    @abstractmethod
    def calibrate_updates(self, recipe: Recipe, settings: Settings, budget: Budget) -> Mechanism: ...

    def check(self, settings: Settings, loss: Loss, budget: Budget | None) -> None:
        super().check(settings, loss, budget)
        if budget is None:
            raise ParameterError(f"epsilon must be given for the algorithm {self.name}, got None")

    def event(self, recipe: Recipe, settings: Settings, budget: Budget) -> NoisyUpdates:
        noise = self.calibrate_updates(recipe, settings, budget)
        return NoisyUpdates(recipe, noise, self.sampling, settings.analysis)

    def describe_cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        assert isinstance(certificate.problem, Recipe)
        noise = f"{noise_per_weight(certificate):.3g} per weight in each of {certificate.problem.updates:,} updates"
        return [("algorithm", self.name), ("noise", f"{noise} ({describe_noise(certificate)})")]

    def explain_steps(self, recipe: Recipe, settings: Settings) -> str:
        del recipe, settings
        return f"those of {self.name}"

    def explain_noise(self, certificate: Certificate, settings: Settings) -> str:
        if self.sampler is None:
            return super().explain_noise(certificate, settings)
        return "gaussian: the analysis of random samples is for no other"
