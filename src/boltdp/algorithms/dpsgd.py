"""DP-SGD: noise in every update, on Poisson samples."""

from __future__ import annotations

from boltdp.algorithms._sampling import poisson_batches
from boltdp.algorithms._sgd import WhiteBox, noisy_step
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.noisy_sgd import dpsgd_noise
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.step_schedules import Schedule, constant, strongly_convex
from boltdp.privacy.training_problem import Recipe
from boltdp.settings import Settings


class DPSGD(WhiteBox):
    """Every row is in every batch with the same probability."""

    name = "dpsgd"
    about = "to every update"
    takes = WhiteBox.takes - {"permutation", "analysis"}
    sampling = "poisson"
    sampler = staticmethod(poisson_batches)
    marked = True

    def calibrate_updates(self, recipe: Recipe, settings: Settings, budget: Budget) -> Mechanism:
        return dpsgd_noise(recipe, budget)

    def default_schedule(self, recipe: Recipe, noise: Mechanism | None) -> Schedule:
        """Return a constant step from public numbers, or the strongly convex schedule with regularization."""
        assert noise is not None
        if recipe.gamma > 0:
            return strongly_convex(beta=recipe.beta, gamma=recipe.gamma)
        return constant(noisy_step(recipe, noise))
