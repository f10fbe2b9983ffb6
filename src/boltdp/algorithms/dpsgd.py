"""DP-SGD: noise in every update, on Poisson samples."""

from __future__ import annotations

from boltdp.algorithms._row_sampling import draw_poisson_batches
from boltdp.algorithms._sgd import WhiteBox, choose_step_for_noise
from boltdp.privacy.events.noisy_sgd import calibrate_dpsgd
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import Schedule, make_constant_schedule, make_strongly_convex_schedule


class DPSGD(WhiteBox):
    """SGD on Poisson samples: every row is in every batch with the same probability."""

    name = "dpsgd"
    takes = WhiteBox.takes - {"permutation", "analysis"}
    sampling = "poisson"
    sampler = staticmethod(draw_poisson_batches)
    marks_batch_ends = True
    proved_calibration = staticmethod(calibrate_dpsgd)

    def choose_default_schedule(self, recipe: Recipe, noise: Mechanism | None) -> Schedule:
        """Return a constant step from public numbers, or the strongly convex schedule with regularization."""
        assert noise is not None
        if recipe.regularization > 0:
            return make_strongly_convex_schedule(beta=recipe.beta, gamma=recipe.regularization)
        return make_constant_schedule(choose_step_for_noise(recipe, noise))
