"""Passes, batches and steps are those of the analysis, and rows that do not fit are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp._array_types import Floats
from boltdp.errors import ParameterError
from boltdp.kernel.sgd import State, run
from boltdp.losses import HuberSVM, Logistic, Multinomial
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import Schedule, make_constant_schedule
from tests.kernel.cases import finished, packed_rows

RECIPE = Recipe(loss=Logistic(), dims=2, rows=5, batch_size=2, passes=1, schedule=make_constant_schedule(0.1))


@pytest.mark.parametrize(
    "steps", [Schedule("linear", 3.0, 0.7, 0.4), Schedule("sqrt", 2.0, 1.3), make_constant_schedule(0.37)], ids=str
)
def test_step_sizes_are_the_schedules_to_the_bit(steps: Schedule) -> None:
    """With one row that is not neutral, at update t, the weight is eta_t times a known slope times the feature."""
    width, rows = 1e6, 41
    recipe = Recipe(loss=HuberSVM(width), dims=1, rows=rows, batch_size=1, passes=1, schedule=steps)
    slope = (1.0 + width) / (2.0 * width)
    for t, eta in enumerate(steps.compute_steps(np.arange(1, 1 + rows)).tolist()):
        fed = np.full((rows, 2), [-1.0, 0.0])
        fed[t] = [1.0, 0.5]
        state = State(recipe)
        run([state], fed)
        assert state.weights[0, 0] == (eta * slope) * 0.5


@given(rows=st.integers(2, 500), batch_size=st.integers(1, 500))
def test_batches_are_cut_where_the_analysis_says(rows: int, batch_size: int) -> None:
    recipe = Recipe(
        loss=Logistic(),
        dims=1,
        rows=rows,
        batch_size=min(batch_size, rows),
        passes=1,
        schedule=make_constant_schedule(0.1),
    )
    state, ends = State(recipe), []
    for i in range(rows):
        before = state.updates
        run([state], np.zeros((1, 2)))
        if state.updates > before:
            ends.append(i + 1)
    n = recipe.batches
    assert ends == [(j + 1) * rows // n for j in range(n)]


def test_a_pass_ends_after_its_rows_and_the_next_begins_by_itself() -> None:
    recipe = Recipe(loss=Logistic(), dims=2, rows=5, batch_size=2, passes=3, schedule=make_constant_schedule(0.1))
    state = State(recipe)
    seen = []
    for _ in range(15):
        run([state], np.zeros((1, 3)))
        seen.append((state.passes_done, state.rows_done, state.is_finished))
    assert seen[3:6] == [(0, 4, False), (1, 0, False), (1, 1, False)]
    assert seen[-1] == (3, 0, True)


def test_feeding_past_the_last_pass_is_refused_and_changes_nothing() -> None:
    ahead, behind = State(RECIPE), State(RECIPE)
    run([ahead], np.ones((4, 3)))
    before = ahead.to_bytes(), behind.to_bytes()
    with pytest.raises(ParameterError, match="more rows were fed than the passes have left"):
        run([behind, ahead], np.ones((2, 3)))
    assert (ahead.to_bytes(), behind.to_bytes()) == before


def test_no_models_and_no_rows_are_nothing_to_do() -> None:
    state = State(RECIPE)
    before = state.to_bytes()
    run([], np.ones((2, 3)))
    run([state], np.ones((0, 3)))
    assert state.to_bytes() == before


@pytest.mark.parametrize(
    "rows",
    [np.ones((2, 3), dtype=np.int64), np.ones(3), np.ones((2, 6))[:, ::2], np.ones((3, 2)).T],
    ids=["integers", "one dimension", "strided", "transposed"],
)
def test_rows_of_another_kind_are_refused(rows: Floats) -> None:
    with pytest.raises(ParameterError, match="rows must be a C-contiguous 2-D array of float32 or float64"):
        run([State(RECIPE)], rows)


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"rows must have 1 \+ 2 columns, got 4"):
        run([State(RECIPE)], np.ones((2, 4)))


def test_an_unknown_build_is_refused() -> None:
    with pytest.raises(ParameterError, match="build must be one of portable"):
        run([State(RECIPE)], np.ones((2, 3)), build="quantum")


def test_multinomial_gradients_sum_to_nothing_over_the_classes() -> None:
    recipe = Recipe(
        loss=Multinomial(classes=5), dims=6, rows=50, batch_size=4, passes=3, schedule=make_constant_schedule(1.0)
    )
    weights = finished(recipe, packed_rows(recipe, seed=3)).weights
    assert np.abs(weights).max() > 0.1
    np.testing.assert_allclose(weights.sum(axis=0), 0.0, atol=1e-14)
