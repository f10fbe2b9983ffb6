"""SCS13: Song, Chaudhuri and Sarwate (2013), in several passes: noise in every update, on batches of a permutation."""

from __future__ import annotations

from boltdp.algorithms._sgd import WhiteBox
from boltdp.losses import Loss
from boltdp.privacy.events.noisy_sgd import scs13_noise, scs13_published
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.step_schedules import Schedule
from boltdp.privacy.training_problem import Recipe
from boltdp.settings import Settings


class SCS13(WhiteBox):
    """Batches are consecutive rows of one permutation."""

    name = "scs13"
    sampling = "permutation"
    proved, published = staticmethod(scs13_noise), staticmethod(scs13_published)

    def choose_radius(self, settings: Settings, loss: Loss) -> float:
        """Return the radius of the settings; else that of the optimum with regularization, else none."""
        if settings.radius is None and settings.regularization is not None and settings.regularization > 0:
            return loss.lipschitz / settings.regularization
        return super().choose_radius(settings, loss)

    def default_schedule(self, recipe: Recipe, noise: Mechanism | None) -> Schedule:
        """Return steps 1/sqrt(t), as published."""
        return Schedule("sqrt", scale=1.0)
