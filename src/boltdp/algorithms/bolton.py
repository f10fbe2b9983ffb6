"""Bolt-on SGD: train as without privacy, then add noise once, in proportion to the sensitivity of the weights."""

from __future__ import annotations

from boltdp.algorithms._base import TYPICAL_NORM, compute_noise_per_weight
from boltdp.algorithms._sgd import PassesOfSGD
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Analysis
from boltdp.privacy.events.output_perturbation import OutputPerturbation, make_output_perturbation
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.settings import OPTIONAL


class BoltOn(PassesOfSGD):
    """The paper's algorithm, with a sensitivity that is proved."""

    name = "bolton"
    about = "once, to the result"
    takes = frozenset(OPTIONAL)
    noise_place = "noise"
    typical_norm = TYPICAL_NORM
    explanation = (
        "The noise per weight is also that of the margin <w, x> of a row of norm 1, where 1 is a confident margin."
        f"\nThe last column compares the noise with weights of norm {TYPICAL_NORM:g}, which are typical."
        "\nMore rows, fewer features (a projection), a larger epsilon or some delta make the noise smaller."
    )

    def make_event(self, recipe: Recipe, analysis: Analysis, budget: Budget) -> OutputPerturbation:
        return make_output_perturbation(recipe, budget, analysis=analysis)

    def describe_cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        distance, each = certificate.training.sensitivity, self.describe_models(certificate)
        if distance is None:
            return []
        sensitivity = f"{distance.total:.6g}: the largest change of the weights by one row{each}"
        noise = f"{compute_noise_per_weight(certificate):.3g} per weight, added once, after training"
        return [
            ("algorithm", self.name),
            ("sensitivity", sensitivity),
            ("noise", f"{noise} ({self.describe_noise(certificate)})"),
        ]
