"""Class weights cost nothing: no neighbours get further apart than without them, whatever their classes are."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.sgd import State, run
from boltdp.losses import HuberSVM, Logistic, Loss, MarginLogistic, Multinomial, make_contrast_basis
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.noisy_gradient_descent import bound_gradient_sensitivity
from boltdp.privacy.events.objective_perturbation import calibrate_objective_noise
from boltdp.privacy.events.sgd_sensitivity import compute_sgd_sensitivity
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.serialization import from_record, to_record
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.privacy.training_problem import MIN_CLASS_WEIGHT, Problem
from tests.example_losses import every_loss
from tests.privacy.test_sgd_sensitivity import recipes

Rows = npt.NDArray[np.float64]

weights = st.floats(MIN_CLASS_WEIGHT, 1.0)


def classes_of(loss: Loss) -> int:
    return loss.vector_count if loss.vector_count > 1 else 3


def weighted(recipe: Recipe, given: list[float]) -> Recipe:
    """With these weights, of which the first is made the largest."""
    return replace(recipe, class_weights=(1.0, *given[1 : classes_of(recipe.loss)]))


# ---- what the proof says of one row ------------------------------------------------------------------------------


@given(st.floats(0.0, 1.0), weights)
def test_a_weighted_slope_is_a_slope_with_no_less_curvature(slope: float, weight: float) -> None:
    assert weight * slope * (1 - slope) <= (weight * slope) * (1 - weight * slope) + 1e-15


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6).filter(lambda p: sum(p) > 0.1), weights, st.data())
def test_a_weighted_softmax_is_a_softmax_with_no_less_curvature(
    odds: list[float], weight: float, data: st.DataObject
) -> None:
    p = np.array(odds) / sum(odds)
    corner = np.eye(len(p))[data.draw(st.integers(0, len(p) - 1))]
    other = weight * p + (1 - weight) * corner
    assert weight * (p - corner) == pytest.approx(other - corner, abs=1e-15)
    covariance, others = (np.diag(q) - np.outer(q, q) for q in (p, other))
    gap = others - weight * covariance
    assert np.linalg.eigvalsh(gap).min() >= -1e-14
    assert gap == pytest.approx(weight * (1 - weight) * np.outer(p - corner, p - corner), abs=1e-14)


# ---- passes of SGD -----------------------------------------------------------------------------------------------


def apart(recipe: Recipe, rows: Rows, other: Rows) -> float:
    """How far neighbours bring the weights apart, by the kernel itself."""
    states = [State(recipe, classes=classes_of(recipe.loss)) for _ in range(2)]
    for state, data in zip(states, (rows, other), strict=True):
        for _ in range(recipe.passes):
            run([state], data)
    return float(np.linalg.norm(states[0].weights - states[1].weights))


@settings(max_examples=300)
@given(
    recipes().filter(lambda recipe: recipe.loss.target == "classes"),
    st.lists(weights, min_size=10, max_size=10),
    st.integers(0, 2**32),
    st.data(),
)
def test_neighbours_of_any_classes_are_never_further_apart_than_the_sensitivity(
    recipe: Recipe, given: list[float], seed: int, data: st.DataObject
) -> None:
    recipe, classes = weighted(recipe, given), classes_of(recipe.loss)
    assert compute_sgd_sensitivity(recipe) == compute_sgd_sensitivity(replace(recipe, class_weights=None))
    random = np.random.default_rng(seed)
    loudness = data.draw(st.sampled_from([0.0, 0.1, 5.0]))
    rows = np.hstack(
        [random.integers(0, classes, (recipe.rows, 1)), loudness * random.standard_normal((recipe.rows, recipe.dims))]
    )
    other, place = rows.copy(), data.draw(st.integers(0, recipe.rows - 1))
    for table in (rows, other):
        table[place, 0] = data.draw(st.integers(0, classes - 1))
        table[place, 1:] = 0.0
        table[place, 1] = data.draw(st.sampled_from([1.0, -1.0, 100.0]))
    assert apart(recipe, rows, other) <= compute_sgd_sensitivity(recipe).total


@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_row_pulls_by_its_weight_and_the_heaviest_class_as_far_as_the_bound(batch_size: int) -> None:
    """The Huber loss pulls with full force at margin 0: what is reached is exact."""
    recipe = Recipe(
        loss=HuberSVM(0.1),
        dims=1,
        rows=100,
        batch_size=batch_size,
        passes=3,
        schedule=make_constant_schedule(0.001),
        class_weights=(1.0, 0.5, 0.25),
    )

    def at_worst(one: tuple[int, float], two: tuple[int, float]) -> float:
        tables = np.zeros((2, 100, 2))
        farthest = 0.0
        for place in range(100):
            tables[:] = 0.0
            tables[0, place], tables[1, place] = one, two
            farthest = max(farthest, apart(recipe, *tables))
        return farthest / compute_sgd_sensitivity(recipe).bound

    assert at_worst((0, 1.0), (0, -1.0)) == pytest.approx(1.0, rel=1e-9)
    assert at_worst((0, 1.0), (1, 1.0)) == pytest.approx(0.75, rel=1e-9)
    assert at_worst((2, -1.0), (1, -1.0)) == pytest.approx(0.375, rel=1e-9)


# ---- noisy gradients ---------------------------------------------------------------------------------------------


# The optimiser gets stuck on the narrow parabola of the default Huber loss.
FOUND = [HuberSVM(0.2), *(loss for loss in every_loss() if loss.name != "huber" and loss.target == "classes")]


@pytest.mark.parametrize("loss", FOUND, ids=str)
def test_two_rows_found_by_an_optimiser_move_a_clipped_sum_as_far_as_the_bound_and_no_further(loss: Loss) -> None:
    random, dims, clip, given = np.random.default_rng(3), 2, 0.2, (0.3, 1.0, 0.05)
    others = np.hstack([random.integers(0, 3, (400, 1)), random.standard_normal((400, dims))])
    bound = bound_gradient_sensitivity(Problem(loss=loss, dims=dims, rows=401, class_weights=given), clip).total

    def moved(point: Doubles, labels: tuple[int, int]) -> float:
        at = point[: loss.vector_count * dims].reshape(loss.vector_count, dims)
        sums = []
        for label, row in zip(labels, point[loss.vector_count * dims :].reshape(2, dims), strict=True):
            sums.append(DerivativeSums(loss, at, clip=clip, classes=3, class_weights=given))
            sums[-1].add(np.ascontiguousarray(np.vstack([others, [label, *row]]), np.float32))
        return float(np.linalg.norm(sums[0].value - sums[1].value))

    def farthest(labels: tuple[int, int]) -> float:
        starts = (3 * random.standard_normal(loss.vector_count * dims + 2 * dims) for _ in range(3))
        options = {"maxiter": 300}
        return max(
            -float(optimize.minimize(lambda p: -moved(p, labels), start, method="Nelder-Mead", options=options).fun)
            for start in starts
        )

    assert 1.99 * clip < farthest((0, 1)) <= bound
    # A class of weight 0.05 has gradients of at most 0.05 times L: they are not clipped.
    assert farthest((1, 2)) <= (clip + 0.05 * loss.lipschitz) * (1 + 1e-9)
    assert farthest((2, 2)) <= 2 * 0.05 * loss.lipschitz * (1 + 1e-9)


# ---- objective perturbation --------------------------------------------------------------------------------------


def log_densities(problem: Problem, data: Any, noise: Mechanism, grid: Doubles) -> Doubles:
    """The logarithm of the density of the minimiser at each point, but for a constant, from the kernel's derivatives.

    Its weights have one feature; points are in coordinates of the space in which they can move.
    """
    vectors = problem.loss.vector_count
    basis = make_contrast_basis(vectors) if vectors > 1 else np.eye(1)
    strength = problem.rows * problem.regularization
    rows = np.array(data, np.float32)

    def summed(at: Doubles, **options: Any) -> Doubles:
        sums = DerivativeSums(
            problem.loss, at, classes=classes_of(problem.loss), class_weights=problem.class_weights, **options
        )
        sums.add(rows)
        return basis @ sums.value.reshape(vectors)

    found = np.empty(len(grid))
    for number, point in enumerate(grid):
        at = (point @ basis).reshape(vectors, 1)
        q = -(summed(at) + strength * point)
        bend = np.stack([summed(at, direction=one.reshape(vectors, 1)) for one in basis])
        volume = float(np.linalg.det(bend + strength * np.eye(len(basis))))
        length = float(np.linalg.norm(q)) / noise.scale
        found[number] = math.log(volume) - (length if noise.kind == "spherical" else length**2 / 2)
    return found


def neighbouring_logs(problem: Problem, noise: Mechanism, *, points: int, reach: float) -> list[list[Doubles]]:
    """The densities of neighbours whose one row has any class and sign; the rows that they share pull both ways."""
    classes, free = classes_of(problem.loss), problem.dimensions
    axis = np.linspace(-reach, reach, points)
    grid = np.stack(np.meshgrid(*[axis] * free, indexing="ij"), axis=-1).reshape(-1, free)
    shared = [[k % classes, 0.5] for k in range(problem.rows - 1)]
    rows = [[k, sign] for k in range(classes) for sign in (1.0, -1.0)]
    logs = [log_densities(problem, [*shared, row], noise, grid) for row in rows]
    return [[one, two] for one, two in itertools.permutations(logs, 2)]


CASES: list[tuple[Loss, int]] = [(Logistic(), 401), (MarginLogistic(2.0), 401), (Multinomial(3), 31)]


@pytest.mark.parametrize(("loss", "points"), CASES, ids=lambda value: str(value))
@pytest.mark.parametrize("given", [(1.0, 0.5, 0.01), (0.3, 1.0, 0.7)])
def test_the_true_loss_of_a_weighted_minimiser_never_exceeds_epsilon(
    loss: Loss, points: int, given: tuple[float, ...]
) -> None:
    problem = Problem(loss=loss, dims=1, rows=10, regularization=0.5, class_weights=given)
    budget = Budget(1.0)
    noise = calibrate_objective_noise(problem, budget)
    assert noise == calibrate_objective_noise(replace(problem, class_weights=None), budget)

    def worst(noise: Mechanism) -> float:
        pairs = neighbouring_logs(problem, noise, points=points, reach=10.0)
        return max(float((one - two).max()) for one, two in pairs)

    # Densities are known but for a constant, the same for all rows: that of the noise.
    assert worst(noise) <= budget.epsilon
    assert worst(replace(noise, scale=noise.scale / 3)) > budget.epsilon


def test_the_true_delta_of_a_weighted_minimiser_never_exceeds_delta() -> None:
    problem = Problem(loss=Logistic(), dims=1, rows=10, regularization=0.5, class_weights=(1.0, 0.5, 0.01))
    budget = Budget(0.5, 1e-2)
    noise = calibrate_objective_noise(problem, budget)

    def worst(noise: Mechanism) -> float:
        deltas = []
        for one, two in neighbouring_logs(problem, noise, points=2001, reach=20.0):
            masses = np.exp(one) / np.exp(one).sum()
            deltas.append(float((masses * -np.expm1(np.minimum(budget.epsilon - (one - two), 0))).sum()))
        return max(deltas)

    assert worst(noise) <= budget.delta
    assert worst(replace(noise, scale=noise.scale / 3)) > budget.delta


# ---- what is refused, and what is written ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "given", "message"),
    [
        (Logistic(), (1.0,), "class_weights must be one for each of the 2 classes, got 1"),
        (Multinomial(3), (1.0, 0.5), "class_weights must be one for each of the 3 classes, got 2"),
        (Logistic(), (0.5, 0.5), "class_weights must be from 0.0001 to 1, and the largest of them 1"),
        (Logistic(), (1.0, 0.0), "class_weights must be from 0.0001 to 1"),
        (Logistic(), (1.0, -1.0), "class_weights must be from 0.0001 to 1"),
        (Logistic(), (1.0, 0.00009), "class_weights must be from 0.0001 to 1"),
        (Logistic(), (1.0, 1.5), "class_weights must be from 0.0001 to 1"),
        (Logistic(), (1.0, math.nan), "class_weights must be from 0.0001 to 1"),
        (Logistic(), ("1", "2"), "each of the class_weights must be a number, got '1'"),
    ],
)
def test_weights_that_no_proof_covers_are_refused(loss: Loss, given: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Problem(loss=loss, dims=2, rows=10, class_weights=given)


def a_problem(**changes: Any) -> Problem:
    return Problem(loss=Logistic(), dims=2, rows=10, **changes)


def a_recipe(**changes: Any) -> Recipe:
    return Recipe(
        loss=Logistic(), dims=2, rows=10, batch_size=2, passes=1, schedule=make_constant_schedule(0.1), **changes
    )


@pytest.mark.parametrize("make", [a_problem, a_recipe])
def test_a_record_has_weights_only_where_they_are_given(make: Callable[..., Problem]) -> None:
    without, given = make(), make(class_weights=(1, 0.25))
    assert "class_weights" not in to_record(without)
    assert to_record(given) == {**to_record(without), "class_weights": [1.0, 0.25]}
    for made in (without, given):
        again = from_record(Problem, json.loads(json.dumps(to_record(made))))
        assert again == made
        assert type(again) is type(made)
    for bad in ([1.0, "0.25"], [0.5, 0.25], "balanced", [1.0, None], 1.0):
        with pytest.raises(ValueError, match=r"class_weights|each|element"):
            from_record(Problem, {**to_record(without), "class_weights": bad})
