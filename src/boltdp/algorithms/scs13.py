"""SCS13: Song, Chaudhuri and Sarwate (2013), in several passes: noise in every update, on batches of a permutation."""

from __future__ import annotations

from boltdp.algorithms._sgd import WhiteBox
from boltdp.losses import Loss
from boltdp.privacy.events.noisy_sgd import calibrate_published_scs13, calibrate_scs13
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import Schedule
from boltdp.settings import Settings


class SCS13(WhiteBox):
    """SGD whose batches are consecutive rows of one permutation."""

    name = "scs13"
    sampling = "permutation"
    proved_calibration = staticmethod(calibrate_scs13)
    published_calibration = staticmethod(calibrate_published_scs13)

    def choose_radius(self, settings: Settings, loss: Loss) -> float:
        """Return the radius in the settings; without one, a bound on a regularized optimum, or else infinity."""
        if settings.radius is None and settings.regularization is not None and settings.regularization > 0:
            return loss.lipschitz / settings.regularization
        return super().choose_radius(settings, loss)

    def choose_default_schedule(self, recipe: Recipe, noise: Mechanism | None) -> Schedule:
        """Return steps 1/sqrt(t), as published."""
        return Schedule("sqrt", scale=1.0)
