"""The row guard: no row can move the weights further than the analysis allows, and bad rows not at all."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.kernel import sgd
from boltdp.kernel.sgd import State, run
from boltdp.losses import Logistic, Loss
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.example_losses import every_loss
from tests.kernel.cases import exact_square, inside


def one_step(loss: Loss, row: list[float], *, dtype: type = np.float64, eta: float = 0.25) -> npt.NDArray[np.float64]:
    """The weights after a single update on this row and, so that m is 2, a row without a label."""
    recipe = Recipe(loss=loss, dims=len(row) - 1, rows=2, batch_size=1, passes=1, schedule=make_constant_schedule(eta))
    state = State(recipe)
    run([state], np.array([row, [math.nan] + [0.0] * (len(row) - 1)], dtype=dtype))
    return state.weights


magnitudes = st.floats(-1e3, 1e3, allow_nan=False).map(lambda x: x if abs(x) > 1e-12 else 0.0)


@given(features=st.lists(magnitudes, min_size=1, max_size=40))
@settings(max_examples=300)
def test_the_scaled_row_has_norm_at_most_one_in_exact_arithmetic(features: list[float]) -> None:
    x = np.array(features)
    scale = sgd._library.sgd_row_scale(float(np.sum(x * x)), x.size)
    exact = Fraction(scale) ** 2 * exact_square(x)
    assert exact <= 1
    assert exact >= Fraction(99, 100) or scale == 1.0


@pytest.mark.parametrize("dims", [1, 2, 3, 50, 784])
@pytest.mark.parametrize("steps", range(-8, 9))
def test_rows_within_rounding_of_norm_one_stay_inside(dims: int, steps: int) -> None:
    x = np.full(dims, 1.0 / math.sqrt(dims))
    for _ in range(abs(steps)):
        x = np.nextafter(x, math.copysign(2.0, steps))
    scale = sgd._library.sgd_row_scale(float(np.sum(x * x)), dims)
    assert Fraction(scale) ** 2 * exact_square(x) <= 1
    np.testing.assert_allclose(inside(x), scale * x, rtol=1e-15)


@given(
    features=st.lists(magnitudes, min_size=1, max_size=20),
    label=st.integers(0, 2) | st.floats(-1, 1),
    loss=st.sampled_from(every_loss()),
)
@settings(max_examples=200)
def test_a_row_moves_the_weights_by_at_most_the_lipschitz_constant(
    features: list[float], label: float, loss: Loss
) -> None:
    step = one_step(loss, [float(label), *features])
    # One unit in the last place for the product factor * x, which is part of the rounding margin.
    bound = Fraction(loss.lipschitz) * Fraction(1, 4) * (1 + Fraction(2, 2**53))
    assert exact_square(step) <= bound**2


@pytest.mark.parametrize("loss", every_loss(classes=2), ids=lambda loss: loss.name)
@pytest.mark.parametrize(
    "row",
    [
        [1, math.nan, 0.1, 0.1],
        [1, 0.1, 0.1, math.inf],
        [1, -math.inf, 0.1, 0.1],
        [1, 1e200, 0.1, 0.1],
        [math.nan, 0.1, 0.1, 0.1],
        [math.inf, 0.1, 0.1, 0.1],
        [-1, 0.1, 0.1, 0.1],
        [2, 0.1, 0.1, 0.1],
        [0.5, 0.1, 0.1, 0.1],
        [1e30, 0.1, 0.1, 0.1],
        [1, 0.0, 0.0, 0.0],
    ],
    ids=str,
)
def test_a_bad_row_changes_nothing_but_counts(loss: Loss, row: list[float]) -> None:
    if loss.target == "number" and row[0] in (-1, 0.5):
        row = [-1.5, *row[1:]]
    for batch_size in (1, 2):
        recipe = Recipe(
            loss=loss,
            dims=3,
            rows=4,
            batch_size=batch_size,
            passes=1,
            schedule=make_constant_schedule(0.3),
            regularization=0.1,
        )
        good = [[1, 0.3, -0.2, 0.5], [0, 0.1, 0.9, 0.1], [1, 0.2, 0.2, 0.7]]
        bad, zero = State(recipe), State(recipe)
        for state, third in ((bad, row), (zero, [1, 0.0, 0.0, 0.0])):
            run([state], np.array([good[0], good[1], third, good[2]]))
        assert bad.to_bytes() == zero.to_bytes()
        assert bad.is_finished


def test_squares_that_overflow_in_float64_fit_in_float32() -> None:
    # The largest float32 has a square far below the largest double: such a row is scaled, not dropped.
    step = one_step(Logistic(), [1.0, float(np.finfo(np.float32).max)], dtype=np.float32)
    assert step[0, 0] == pytest.approx(0.125)


def test_long_rows_are_used_as_their_direction() -> None:
    np.testing.assert_allclose(one_step(Logistic(), [1.0, 300.0, 400.0]), [[0.125 * 0.6, 0.125 * 0.8]])
    np.testing.assert_allclose(one_step(Logistic(), [1.0, 0.3, 0.4]), [[0.125 * 0.3, 0.125 * 0.4]])


def test_negative_zero_is_a_class_index() -> None:
    assert one_step(Logistic(), [-0.0, 1.0])[0, 0] == pytest.approx(-0.125)
