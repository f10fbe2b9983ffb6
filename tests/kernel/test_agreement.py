"""The C kernel against its readable twin: the same weights, up to rounding, for everything that a recipe can say."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp._array_types import Floats
from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.kernel.sgd import State, list_builds, run
from boltdp.losses import HuberSVM, Logistic, Loss, MarginLogistic
from boltdp.privacy.sgd_recipe import Averaging, Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.example_losses import every_loss
from tests.kernel.cases import (
    ELEMENTS,
    LOSSES,
    Element,
    ScheduleKind,
    declared_classes,
    finished,
    packed_rows,
    recipes,
    schedule,
    undeclared_labels,
    weights_for,
)
from tests.kernel.reference import reference_sgd


def assert_agrees(recipe: Recipe, rows: Floats, *, positive: int = 1) -> None:
    ours = finished(recipe, rows, positive=positive).weights
    expected = reference_sgd(recipe, rows, positive=positive, classes=declared_classes(recipe.loss))
    assert ours.shape == expected.shape
    # Weights that have come back to where they began are as precise as the way was long, not as they are.
    way = recipe.loss.lipschitz * recipe.schedule.compute_steps(np.arange(1, recipe.updates + 1)).sum()
    allowed = 1e-9 * np.linalg.norm(expected) + 1e-14 * min(way, recipe.radius)
    assert np.linalg.norm(ours - expected) <= allowed, recipe


@pytest.mark.parametrize("averaging", get_args(Averaging))
@pytest.mark.parametrize("batch_size", [1, 7, 23], ids=["single rows", "not dividing m", "all rows"])
@pytest.mark.parametrize("kind", get_args(ScheduleKind))
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_every_kind_of_recipe_agrees_with_the_reference(
    loss: Loss, kind: ScheduleKind, batch_size: int, averaging: Averaging
) -> None:
    regularizations = [0.05, 0.4] if kind == "strongly convex" else [0.0, 0.05]
    for regularization, radius, element in itertools.product(regularizations, [math.inf, 0.2], ELEMENTS):
        steps = schedule(kind, beta=loss.smoothness + regularization, gamma=regularization, rows=23)
        recipe = Recipe(
            loss=loss,
            dims=6,
            rows=23,
            batch_size=batch_size,
            passes=2,
            schedule=steps,
            regularization=regularization,
            radius=radius,
            averaging=averaging,
            class_weights=weights_for(loss, seed=batch_size) if element is np.float32 else None,
        )
        assert_agrees(recipe, packed_rows(recipe, seed=batch_size, element=element, bad=0.1))


@given(recipes(largest=150), st.integers(0, 2**32), st.sampled_from(ELEMENTS), st.sampled_from([0.0, 0.3]))
def test_any_recipe_agrees_with_the_reference(recipe: Recipe, seed: int, element: Element, bad: float) -> None:
    assert_agrees(recipe, packed_rows(recipe, seed=seed, element=element, bad=bad))


@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("dims", [50, 784, 2001])
@pytest.mark.parametrize("loss", every_loss(classes=10), ids=str)
def test_rows_of_any_width_agree_with_the_reference(loss: Loss, dims: int, batch_size: int) -> None:
    recipe = Recipe(
        loss=loss,
        dims=dims,
        rows=201,
        batch_size=batch_size,
        passes=1,
        schedule=make_constant_schedule(0.3),
        averaging="tail",
        class_weights=weights_for(loss, seed=dims) if dims == 784 else None,
    )
    assert_agrees(recipe, packed_rows(recipe, seed=dims, element=np.float32))


@pytest.mark.parametrize("positive", [0, 1, 2])
@pytest.mark.parametrize("loss", [HuberSVM(0.1), Logistic(), MarginLogistic()], ids=str)
def test_one_against_all_agrees_with_the_reference_for_every_class(loss: Loss, positive: int) -> None:
    recipe = Recipe(loss=loss, dims=4, rows=30, batch_size=4, passes=2, schedule=make_constant_schedule(0.1))
    assert_agrees(recipe, packed_rows(recipe, seed=positive), positive=positive)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("reading", [(0.0, 1.0), (-0.25, 3.0), (0.9, 500.0)])
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.max_abs_label], ids=str)
def test_numbers_are_read_by_their_centre_and_factor_and_clipped(
    loss: Loss, reading: tuple[float, float], batch_size: int
) -> None:
    recipe = Recipe(loss=loss, dims=3, rows=40, batch_size=batch_size, passes=3, schedule=make_constant_schedule(0.7))
    rows = packed_rows(recipe, seed=batch_size, element=np.float32)
    rows[::5, 0] = [np.nan, np.inf, -np.inf, *undeclared_labels(loss, 2), np.nextafter(np.float32(-1), -2), 1.0]
    expected = reference_sgd(recipe, rows, reading=reading)
    as_they_are = FeatureMap([Segment("numbers", np.zeros(3), np.ones(3))], label_reading=reading)
    for build in list_builds():
        state = State(recipe, feature_map=as_they_are)
        for _ in range(recipe.passes):
            for start, stop in ((0, 1), (1, 1), (1, 13), (13, 40)):
                run([state], rows[start:stop], build=build)
        assert state.weights == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_scores_far_beyond_the_range_of_exp_agree_with_the_reference() -> None:
    """Tiny labels of one class first: huge steps make margins at which exp(margin) is not a number any more."""
    recipe = Recipe(
        loss=HuberSVM(500.0), dims=1, rows=40, batch_size=1, passes=1, schedule=make_constant_schedule(1900.0)
    )
    rows = np.ones((40, 2))
    rows[30:, 0] = 0
    assert_agrees(recipe, rows)
    # The most a logistic recipe can reach: steps of nearly 2/beta, all rows alike.
    recipe = Recipe(loss=Logistic(), dims=1, rows=400, batch_size=1, passes=5, schedule=make_constant_schedule(7.9))
    rows = np.ones((400, 2))
    rows[390:, 0] = 0
    assert_agrees(recipe, rows)
