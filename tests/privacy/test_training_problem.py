"""PrivacyLossDistribution, schedules and recipes: constants, formulas and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.errors import ParameterError
from boltdp.losses import HuberSVM, Logistic, Loss, Mean, Multinomial, Quantile, Robust
from boltdp.privacy.events.sgd_sensitivity import compute_sgd_sensitivity
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import (
    Schedule,
    make_constant_schedule,
    make_decreasing_schedule,
    make_square_root_schedule,
    make_strongly_convex_constant_schedule,
    make_strongly_convex_schedule,
)


def recipe(**changes: object) -> Recipe:
    fields: dict[str, object] = {
        "loss": Logistic(),
        "dims": 3,
        "rows": 100,
        "batch_size": 10,
        "passes": 2,
        "schedule": make_constant_schedule(0.1),
    }
    return Recipe(**{**fields, **changes})  # type: ignore[arg-type]


def test_lipschitz_constant_of_multinomial_is_rounded_up() -> None:
    from fractions import Fraction

    assert Fraction(Multinomial(3).lipschitz) ** 2 >= 2


@pytest.mark.parametrize("loss", [Robust(), Quantile(0.9), Mean()], ids=str)
def test_numbers_have_no_class_weights(loss: Loss) -> None:
    with pytest.raises(ParameterError, match=f"^class_weights must be for a loss of classes, got '{loss.name}'$"):
        recipe(loss=loss, class_weights=(1.0, 0.5))


@given(st.integers(2, 10_000), st.data())
def test_last_batch_is_never_short(rows: int, data: st.DataObject) -> None:
    run = recipe(rows=rows, batch_size=data.draw(st.integers(1, rows)))
    edges = [j * rows // run.batches for j in range(run.batches + 1)]
    sizes = set(np.diff(edges).tolist())
    assert sizes == {run.smallest_batch, run.largest_batch}
    assert run.largest_batch - run.smallest_batch <= 1


@given(st.integers(2, 10_000), st.data())
def test_partitions_are_as_even_as_can_be(rows: int, data: st.DataObject) -> None:
    run = recipe(rows=rows, batch_size=1, partitions=data.draw(st.integers(1, rows // 2)))
    bounds = [run.compute_partition_bounds(number) for number in range(run.partitions)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rows
    assert all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    sizes = sorted({stop - start for start, stop in bounds})
    assert sizes[-1] - sizes[0] <= 1
    assert [one.rows for one in run.partition_recipes] == sizes
    assert {one.partitions for one in run.partition_recipes} == {1}
    assert run.partition_rows == sizes[-1]
    assert (run.batches, run.updates) == (run.partition_recipes[-1].batches, run.partition_recipes[-1].updates)
    assert (run.smallest_batch, run.largest_batch) == (
        run.partition_recipes[-1].smallest_batch,
        run.partition_recipes[-1].largest_batch,
    )


def test_steps_never_increase() -> None:
    for schedule in (
        make_constant_schedule(0.1),
        make_decreasing_schedule(beta=1.0, rows=100),
        make_square_root_schedule(beta=1.0, rows=100),
        make_strongly_convex_schedule(beta=1.0, gamma=0.1),
    ):
        steps = schedule.compute_steps(np.arange(1, 1000))
        assert (np.diff(steps) <= 0).all()
        assert schedule.largest == steps[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HuberSVM(0.0), "width must be"),
        (lambda: Multinomial(1), "classes must be >= 2, got 1"),
        (lambda: make_constant_schedule(0.0), "step size must be a finite number > 0, got 0"),
        (lambda: make_constant_schedule(math.nan), "step size must be a finite number > 0, got nan"),
        (lambda: Schedule("cubic", 1.0), "growth must be one of"),  # type: ignore[arg-type]
        (lambda: Schedule("linear", 1.0, offset=-1.0), "offset must be"),
        (lambda: Schedule("none", 1.0, offset=0.0), "offset must be 1 for a constant step"),
        (lambda: Schedule("linear", 1.0, cap=0.0), "cap must be > 0"),
        (lambda: make_decreasing_schedule(beta=1.0, rows=9, exponent=1.0), r"exponent c must be in \[0, 1\), got 1"),
        (lambda: make_strongly_convex_schedule(beta=1.0, gamma=0.0), "regularization must be > 0"),
        (lambda: make_strongly_convex_constant_schedule(1.1, beta=1.0), "step_size must be <= 1/beta = 1, got 1.1"),
        (lambda: recipe(rows=1, batch_size=1), "at least 2 rows, got 1"),
        (lambda: recipe(rows=0, batch_size=1), "at least 2 rows, got 0"),
        (lambda: recipe(passes=2.5), "passes must be a whole number, got 2.5"),
        (lambda: recipe(batch_size="many"), "batch_size must be a whole number, got 'many'"),
        (lambda: recipe(regularization=None), "regularization must be a number, got None"),
        (lambda: Multinomial(3.5), "classes must be a whole number, got 3.5"),  # type: ignore[arg-type]
        (
            lambda: recipe(schedule=make_constant_schedule(1e-100)),
            "step of one row must be at least 1e-100, got 1e-101",
        ),
        (lambda: recipe(passes=2**64 + 1), "passes must be at most 10,000,000"),
        (lambda: recipe(dims=2**63), "must fit in 63 bits"),
        (lambda: recipe(passes=0), "passes must be >= 1, got 0"),
        (lambda: recipe(batch_size=101), "batch_size must be at most the number of rows, 100, got 101"),
        (lambda: recipe(partitions=0), "partitions must be >= 1, got 0"),
        (lambda: recipe(partitions=2.0), "partitions must be a whole number, got 2.0"),
        (lambda: recipe(partitions=51, batch_size=1), "partitions must have at least 2 of the 100 rows each, got 51"),
        (lambda: recipe(rows=2**40, partitions=10**6 + 1), "partitions must be at most 1,000,000, got 1000001"),
        (lambda: recipe(partitions=11), "batch_size must be at most the number of rows of a partition, 9, got 10"),
        (lambda: recipe(regularization=-1.0), "regularization must be a finite number >= 0"),
        (lambda: recipe(radius=0.0), "radius must be > 0"),
        (lambda: recipe(averaging="some"), "averaging must be one of last, all, tail"),
        (lambda: recipe(permutation="never"), "permutation must be one of once, fresh"),
        (lambda: compute_sgd_sensitivity(recipe(schedule=make_constant_schedule(8.1))), "at most 2/beta = 8, got 8.1"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ParameterError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_tail_average_is_logarithmic() -> None:
    assert recipe(averaging="tail").averaged == math.ceil(math.log(20))
    assert recipe(averaging="all").averaged == 20
    assert recipe().averaged == 1
    assert recipe(averaging="tail", rows=2, batch_size=2, passes=1).averaged == 1


def test_numpy_numbers_are_taken_as_plain_ones() -> None:
    run = recipe(rows=np.int64(100), batch_size=np.int32(10), regularization=np.float32(0.5))
    assert [type(value) for value in (run.rows, run.batch_size, run.regularization)] == [int, int, float]
