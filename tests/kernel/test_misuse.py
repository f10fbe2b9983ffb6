"""What the binding refuses, and rows so large that their products would overflow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from boltdp.errors import ParameterError
from boltdp.kernel.sgd import State, list_builds, run
from boltdp.losses import HuberSVM
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.kernel.projection import project_rows


def recipe(dims: int, rows: int) -> Recipe:
    return Recipe(
        loss=HuberSVM(0.1), dims=dims, rows=rows, batch_size=1, passes=1, schedule=make_constant_schedule(0.1)
    )


def test_a_state_given_twice_is_refused() -> None:
    state = State(recipe(1, 2))
    with pytest.raises(ParameterError, match="each state must be given once"):
        run([state, state], np.zeros((1, 2)))
    assert state.rows_done == 0


def test_a_state_is_of_one_partition() -> None:
    with pytest.raises(ParameterError, match=r"^partitions must be 1 for a state, which is of one of them, got 2$"):
        State(replace(recipe(1, 4), partitions=2))


def test_a_read_only_output_is_refused() -> None:
    out = np.zeros((2, 2), dtype=np.float32)
    out.flags.writeable = False
    rows = np.zeros((2, 2), dtype=np.float32)
    with pytest.raises(ParameterError, match="out must be writable"):
        project_rows(rows, np.eye(1), out)


@pytest.mark.parametrize("build", list_builds())
def test_rows_whose_products_could_overflow_are_neutral(build: str) -> None:
    """Near the square root of the largest double a norm is finite where the product of two rows is not."""
    dims = 24
    huge = np.full(dims, np.sqrt(np.finfo(float).max / dims) * (1 - 1e-15))
    rows = np.zeros((4, 1 + dims))
    rows[0, 1] = 1.0
    rows[1:3, 1:] = huge
    rows[3, 2] = 1.0
    state, without = State(recipe(dims, 4)), State(recipe(dims, 4))
    run([state], rows, build=build)
    rows[1:3, 1:] = 0.0
    run([without], rows, build=build)
    assert (state.weights == without.weights).all()
    assert np.isfinite(state.weights).all()


def test_large_rows_that_are_safe_still_count() -> None:
    rows = np.zeros((2, 3))
    rows[:, 1] = 1e149
    state = State(recipe(2, 2))
    run([state], rows)
    assert state.weights[0, 0] == pytest.approx(-0.2)
