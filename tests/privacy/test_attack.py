"""Attacks on the sensitivity: train the real kernel on neighbouring data and measure how far the weights get apart."""

from __future__ import annotations

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.kernel.sgd import State, run
from boltdp.losses import HuberSVM, Logistic, Loss, Mean, Quantile, Robust
from boltdp.privacy.events.sgd_sensitivity import compute_published_sensitivity, compute_sgd_sensitivity
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule, make_strongly_convex_schedule
from tests.privacy.test_sgd_sensitivity import recipes

Rows = npt.NDArray[np.float64]


def trained(recipe: Recipe, rows: Rows, *, classes: int, order_seed: int) -> npt.NDArray[np.float64]:
    """Weights after all passes; the order of the rows depends on the seed and the recipe alone."""
    orders = np.random.default_rng(order_seed)
    state = State(recipe, classes=classes)
    order = orders.permutation(recipe.rows)
    for _ in range(recipe.passes):
        run([state], rows[order])
        if recipe.permutation == "fresh":
            order = orders.permutation(recipe.rows)
    return state.weights


def distance(recipe: Recipe, rows: Rows, other: Rows, *, classes: int, order_seed: int = 0) -> float:
    ours, theirs = (trained(recipe, data, classes=classes, order_seed=order_seed) for data in (rows, other))
    return float(np.linalg.norm(ours - theirs))


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Recipe, Rows, Rows, int]:
    """A recipe and two datasets that differ in one row; bad rows and rows outside the ball among them."""
    recipe = draw(recipes())
    classes = max(2, recipe.loss.vector_count)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Quiet rows leave the weights to the differing one; loud ones shrink the distance as the analysis says.
    loudness = draw(st.sampled_from([0.0, 0.1, 1.0, 5.0]))
    rows = np.hstack(
        [
            random.integers(0, classes + draw(st.integers(0, 1)), (recipe.rows, 1)),
            loudness * random.standard_normal((recipe.rows, recipe.dims)),
        ]
    )
    other = rows.copy()
    place = draw(st.integers(0, recipe.rows - 1))
    corner = np.zeros(recipe.dims + 1)
    corner[1] = draw(st.sampled_from([1.0, -1.0, 100.0]))
    rows[place] = corner
    corner = corner.copy()
    corner[0] = classes - 1
    replacement = draw(st.sampled_from(["other label", "random", "not a number", "zero"]))
    if replacement == "random":
        corner[1:] = random.standard_normal(recipe.dims)
    elif replacement == "not a number":
        corner[1] = np.nan
    elif replacement == "zero":
        corner[1:] = 0.0
    other[place] = corner
    return recipe, rows, other, classes


@settings(max_examples=400)
@given(neighbours(), st.integers(0, 5))
def test_neighbours_are_never_further_apart_than_the_sensitivity(
    case: tuple[Recipe, Rows, Rows, int], order_seed: int
) -> None:
    recipe, rows, other, classes = case
    apart = distance(recipe, rows, other, classes=classes, order_seed=order_seed)
    assert apart <= compute_sgd_sensitivity(recipe).total


def number_distance(recipe: Recipe, rows: Rows, other: Rows, reading: tuple[float, float]) -> float:
    """How far the weights of neighbours are apart whose labels are numbers, read by a centre and a factor."""
    dims, weights = recipe.dims, []
    feature_map = FeatureMap([Segment("numbers", np.zeros(dims), np.ones(dims))], label_reading=reading)
    for table in (rows, other):
        state = State(recipe, feature_map=feature_map)
        for _ in range(recipe.passes):
            run([state], table.astype(np.float32))
        weights.append(state.weights)
    return float(np.linalg.norm(weights[0] - weights[1]))


@settings(max_examples=200)
@given(
    recipe=recipes().filter(lambda recipe: recipe.loss.target == "number"),
    seed=st.integers(0, 2**32),
    reading=st.sampled_from([(0.0, 1.0), (0.5, 8.0), (-0.9, 1e4)]),
    loudness=st.sampled_from([0.0, 0.1, 5.0]),
    labels=st.sampled_from([(-1.0, 1.0), (-1.0, np.nan), (0.25, 0.75), (1.0, 1.5)]),
)
def test_neighbours_with_other_numbers_are_never_further_apart_than_the_sensitivity(
    recipe: Recipe, seed: int, reading: tuple[float, float], loudness: float, labels: tuple[float, float]
) -> None:
    random = np.random.default_rng(seed)
    rows = loudness * random.standard_normal((recipe.rows, 1 + recipe.dims))
    rows[:, 0] = random.uniform(-1, 1, recipe.rows)
    other, place = rows.copy(), random.integers(recipe.rows)
    for table, label in zip((rows, other), labels, strict=True):
        table[place, :2] = label, random.choice([1.0, -1.0, 100.0])
    assert number_distance(recipe, rows, other, reading) <= compute_sgd_sensitivity(recipe).total


@pytest.mark.parametrize("loss", [Robust(), Quantile(0.5), Mean()], ids=str)
def test_numbers_far_apart_pull_as_far_as_the_bound(loss: Loss) -> None:
    """Labels at both ends of what is read; from zero weights a share of the bounds pulls with half of the force."""
    recipe = Recipe(loss=loss, dims=1, rows=50, batch_size=1, passes=3, schedule=make_constant_schedule(1e-6))
    rows, other = np.zeros((2, 50, 2))
    rows[7], other[7] = (1.0, 1.0), (-1.0, 1.0)
    reached = number_distance(recipe, rows, other, (0.0, 64.0)) / compute_sgd_sensitivity(recipe).bound
    assert reached == pytest.approx(0.5 if loss.name == "mean" else 1.0, rel=1e-4)


def lone_row(recipe: Recipe, label: int) -> Rows:
    """All rows zero but the last one, which is 1 with the given label."""
    rows = np.zeros((recipe.rows, recipe.dims + 1))
    rows[-1] = 0.0
    rows[-1, :2] = label, 1.0
    return rows


def lone_row_distance(recipe: Recipe, *, place: int) -> float:
    """The distance when the lone row stands at `place` of every pass."""
    first, second = (np.roll(lone_row(recipe, label), place + 1, axis=0) for label in (0, 1))
    states = [State(recipe), State(recipe)]
    for state, rows in zip(states, (first, second), strict=True):
        for _ in range(recipe.passes):
            run([state], rows)
    return float(np.linalg.norm(states[0].weights - states[1].weights))


def test_the_published_bound_for_batches_is_broken_and_ours_holds() -> None:
    recipe = Recipe(
        loss=Logistic(),
        dims=1,
        rows=2000,
        batch_size=50,
        passes=5,
        regularization=0.01,
        schedule=make_strongly_convex_schedule(beta=1.01, gamma=0.01),
    )
    apart = max(lone_row_distance(recipe, place=place) for place in range(0, 2000, 50))
    assert apart == pytest.approx(0.0433, abs=5e-5)
    assert compute_published_sensitivity(recipe).bound == pytest.approx(0.004)
    assert compute_sgd_sensitivity(recipe).bound == pytest.approx(0.0871, abs=5e-5)
    assert apart > 10 * compute_published_sensitivity(recipe).bound
    assert apart <= compute_sgd_sensitivity(recipe).total


def test_the_bound_is_reached_so_nothing_smaller_would_do() -> None:
    """The Huber loss pulls with full force at margin 0: the constant-step bound is exact."""
    recipe = Recipe(loss=HuberSVM(0.1), dims=1, rows=100, batch_size=7, passes=3, schedule=make_constant_schedule(0.01))
    apart = max(lone_row_distance(recipe, place=place) for place in range(100))
    assert apart == pytest.approx(compute_sgd_sensitivity(recipe).bound, rel=1e-9)


def test_a_short_last_batch_would_break_the_bound() -> None:
    """Why batches differ by at most one row: a last batch of one row alone moves the weights b times further."""
    recipe = Recipe(
        loss=HuberSVM(0.1), dims=1, rows=10_001, batch_size=50, passes=1, schedule=make_constant_schedule(0.1)
    )
    alone = Recipe(loss=HuberSVM(0.1), dims=1, rows=2, batch_size=1, passes=1, schedule=make_constant_schedule(0.1))
    assert lone_row_distance(alone, place=1) > 40 * compute_sgd_sensitivity(recipe).total
    assert lone_row_distance(recipe, place=10_000) <= compute_sgd_sensitivity(recipe).total


def test_the_intercept_is_noised_and_clipped_like_every_weight() -> None:
    """A constant column outside the unit ball would double what a row can do; the guard keeps it inside."""
    recipe = Recipe(loss=HuberSVM(0.1), dims=2, rows=10, batch_size=1, passes=1, schedule=make_constant_schedule(0.05))
    rows = np.zeros((10, 3))
    other = rows.copy()
    rows[3], other[3] = (0, 1.0, 1.0), (1, 1.0, 1.0)
    assert distance(recipe, rows, other, classes=2) <= compute_sgd_sensitivity(recipe).total


@given(st.integers(2, 400), st.integers(1, 60))
@example(400, 7)
def test_rounding_stays_inside_its_margin(rows: int, batch_size: int) -> None:
    """Against the same run in 60 digits: the kernel's error is within half of the margin, which is for two runs."""
    eta, penalty = 0.5, 0.1
    recipe = Recipe(
        loss=Logistic(),
        dims=2,
        rows=rows,
        batch_size=min(batch_size, rows),
        passes=1,
        schedule=make_constant_schedule(eta),
        regularization=penalty,
    )
    random = np.random.default_rng(rows * 61 + batch_size)
    data = np.hstack([random.integers(0, 2, (rows, 1)), random.uniform(-0.7, 0.7, (rows, 2))])
    state = State(recipe)
    run([state], data)
    n = recipe.batches
    with mpmath.workdps(60):
        exact = mpmath.matrix([0, 0])
        for j in range(n):
            batch = data[j * rows // n : (j + 1) * rows // n].tolist()
            gradient = mpmath.matrix([0, 0])
            for label, *features in batch:
                x, y = mpmath.matrix(features), 2 * int(label) - 1
                gradient += -y / (1 + mpmath.exp(y * mpmath.fdot(exact, x))) * x
            exact = (1 - mpmath.mpf(eta) * mpmath.mpf(penalty)) * exact - mpmath.mpf(eta) / len(batch) * gradient
        gap = float(mpmath.norm(exact - mpmath.matrix(state.weights[0].tolist())))
    assert gap <= compute_sgd_sensitivity(recipe).margin / 2
