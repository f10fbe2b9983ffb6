"""The step sizes that algorithms choose from public numbers."""

from __future__ import annotations

from boltdp.algorithms._sgd import choose_constant_step, choose_step_for_noise
from boltdp.losses import Logistic
from boltdp.privacy.budget import Budget
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule

RECIPE = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=50, passes=10, schedule=make_constant_schedule(1.0))


def test_steps_grow_with_the_budget_up_to_the_smoothness() -> None:
    assert choose_constant_step(RECIPE, Budget(1.0)) < choose_constant_step(RECIPE, Budget(10.0)) <= 1 / RECIPE.beta


def test_the_step_of_noisy_updates_minimises_the_usual_bound() -> None:
    assert round(choose_step_for_noise(RECIPE, Mechanism("gaussian", 0.1, 50)), 4) == 0.0091
