"""Rows taken by position: the bits of a run over a copy of them, and nothing outside the rows."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp._array_types import Floats
from boltdp.errors import ParameterError
from boltdp.kernel.sgd import BATCH_END, State, list_builds, run
from boltdp.losses import Logistic
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.kernel.cases import ELEMENTS, Element, declared_classes, packed_rows, recipes

RECIPE = Recipe(loss=Logistic(), dims=2, rows=10, batch_size=4, passes=1, schedule=make_constant_schedule(0.5))
ROWS = np.array([[1.0, 0.5, 0.0], [0.0, 0.1, 0.2], [1.0, 0.3, 0.3]])


def copied(rows: Floats, positions: npt.NDArray[np.int64]) -> Floats:
    """The rows at these positions, and rows without a gradient where a batch ends."""
    taken = rows[positions]
    taken[positions == BATCH_END] = 0.0
    return taken


@given(recipes(largest=90), st.integers(0, 2**32), st.sampled_from(ELEMENTS), st.data())
def test_drawn_rows_have_the_bits_of_their_copies(
    recipe: Recipe, seed: int, element: Element, data: st.DataObject
) -> None:
    rows = packed_rows(recipe, seed=seed, element=element, bad=0.1)
    positions = np.random.default_rng(seed).integers(-1, len(rows), recipe.passes * recipe.rows)
    cuts = data.draw(st.lists(st.integers(0, len(positions)), max_size=6).map(sorted))
    expected = State(recipe, classes=declared_classes(recipe.loss))
    run([expected], copied(rows, positions))
    for build in list_builds():
        state = State(recipe, classes=declared_classes(recipe.loss))
        for start, stop in itertools.pairwise([0, *cuts, len(positions)]):
            run([state], rows, positions=positions[start:stop], build=build)
        assert state.is_finished
        assert state.to_bytes() == expected.to_bytes()


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("dims", [50, 1100])
def test_batches_end_where_they_are_drawn_to_however_wide_the_rows(dims: int, element: Element) -> None:
    recipe = Recipe(loss=Logistic(), dims=dims, rows=40, batch_size=4, passes=1, schedule=make_constant_schedule(0.5))
    rows = packed_rows(recipe, seed=3, element=element)
    random = np.random.default_rng(4)
    positions = np.concatenate([np.append(random.integers(0, 40, size), BATCH_END) for size in random.poisson(4, 10)])
    places = np.where(positions == BATCH_END, BATCH_END, np.arange(len(positions)))
    drawn, expected = State(recipe, classes=3, marked=True), State(recipe, classes=3, marked=True)
    run([drawn], rows, positions=positions)
    run([expected], rows[positions], positions=places)
    assert drawn.is_finished
    assert drawn.to_bytes() == expected.to_bytes()


@pytest.mark.parametrize("outside", [-2, 3, 2**62, -(2**63)])
def test_a_position_outside_the_rows_is_refused_and_changes_nothing(outside: int) -> None:
    state = State(RECIPE)
    before = state.to_bytes()
    with pytest.raises(ParameterError, match=r"^a position is outside the rows$"):
        run([state], ROWS, positions=np.array([0, 2, outside]))
    assert state.to_bytes() == before


def test_drawn_rows_past_the_end_are_refused_and_change_nothing() -> None:
    plain, marked = State(RECIPE), State(RECIPE, marked=True)
    for state, positions in ((plain, [0] * 11), (marked, [-1] * RECIPE.batches + [2])):
        before = state.to_bytes()
        with pytest.raises(ParameterError, match="more rows were fed than the passes have left"):
            run([state], ROWS, positions=np.array(positions))
        assert state.to_bytes() == before


@pytest.mark.parametrize(
    "positions", [np.array([0], np.int32), np.array([[0]]), np.arange(3)[::-1]], ids=["int32", "2-D", "reversed"]
)
def test_positions_of_another_layout_are_refused(positions: npt.NDArray[np.int64]) -> None:
    with pytest.raises(ParameterError, match="positions must be a C-contiguous 1-D array of int64"):
        run([State(RECIPE)], ROWS, positions=positions)
