"""BST14: Bassily, Smith and Thakurta (2014), in several passes: noise in every update, on samples of fixed size."""

from __future__ import annotations

import math

from boltdp.algorithms._base import TYPICAL_NORM
from boltdp.algorithms._row_sampling import draw_fixed_size_batches
from boltdp.algorithms._sgd import WhiteBox, bound_gradient_norm
from boltdp.errors import ParameterError
from boltdp.losses import Loss
from boltdp.privacy.events.noisy_sgd import calibrate_bst14, calibrate_published_bst14
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import Schedule
from boltdp.settings import Settings


class BST14(WhiteBox):
    """SGD whose updates each use a uniform sample of fixed size."""

    name = "bst14"
    takes = WhiteBox.takes - {"permutation"}
    sampling = "fixed size"
    sampler = staticmethod(draw_fixed_size_batches)
    proved_calibration = staticmethod(calibrate_bst14)
    published_calibration = staticmethod(calibrate_published_bst14)

    def choose_radius(self, settings: Settings, loss: Loss) -> float:
        """Return the radius in the settings; without one, a bound on a regularized optimum, or else a typical norm."""
        if settings.radius is not None:
            if settings.radius == math.inf:
                raise ParameterError("radius must be finite for the algorithm bst14, got inf")
            return settings.radius
        return loss.lipschitz / settings.regularization if settings.regularization else TYPICAL_NORM

    def choose_default_schedule(self, recipe: Recipe, noise: Mechanism | None) -> Schedule:
        """Return steps 2R/(G*sqrt(t)), or 1/(lambda*t) with regularization, as published."""
        assert noise is not None
        if recipe.regularization > 0:
            return Schedule("linear", scale=1.0 / recipe.regularization)
        return Schedule("sqrt", scale=2.0 * recipe.radius / bound_gradient_norm(recipe, noise))
