"""Attacks on the sensitivity of training in partitions, through the very code that trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.algorithms import _sgd
from boltdp.algorithms._base import Job
from boltdp.algorithms._sgd import average_partitions
from boltdp.algorithms.bolton import BoltOn
from boltdp.engines.local_store import store_rows
from boltdp.kernel.row_permutation import compute_source_positions
from boltdp.losses import HuberSVM, Multinomial
from boltdp.privacy.certificate import certify
from boltdp.privacy.events.event import NoiselessTraining
from boltdp.privacy.events.sgd_sensitivity import UNIT, bound_iterate_norm, compute_sgd_sensitivity
from boltdp.privacy.release_with_noise import Randomness
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import (
    Schedule,
    make_constant_schedule,
    make_square_root_schedule,
    make_strongly_convex_schedule,
)
from boltdp.run_context import Context
from tests.privacy.test_sgd_sensitivity import recipes

Rows = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]


def trained(recipe: Recipe, rows: Rows, *, classes: int = 2, seed: int = 0) -> Weights:
    """The weights that would be released but for the noise."""
    context = Context(seed=seed, threads=1)
    job = Job(certify(NoiselessTraining(recipe), None), Randomness())
    with store_rows([rows], rows=len(rows), width=rows.shape[1], context=context, in_memory=True) as prepared:
        (weights,) = BoltOn().run(prepared, [job], classes=classes, context=context)
    return weights


def lone_row_distance(recipe: Recipe, *, place: int, seed: int = 0) -> float:
    """How far apart the labels of the row at a place of the order bring the weights, if all other rows are zero."""
    rows = np.zeros((recipe.rows, recipe.dims + 1), np.float32)
    (at,) = compute_source_positions(place, 1, rows=recipe.rows, seed=seed)
    rows[at, 1] = 1.0
    other = rows.copy()
    other[at, 0] = 1.0
    return float(np.linalg.norm(trained(recipe, rows, seed=seed) - trained(recipe, other, seed=seed)))


def worst_in_each(recipe: Recipe) -> list[float]:
    """The largest distance that a lone row brings about in each of the partitions."""
    bounds = [recipe.compute_partition_bounds(number) for number in range(recipe.partitions)]
    return [max(lone_row_distance(recipe, place=place) for place in range(*part)) for part in bounds]


def pulled(schedule: Schedule, *, partitions: int, regularization: float = 0.0, batch_size: int = 3) -> Recipe:
    """The Huber loss pulls with all force at margin 0, so that its bounds are reached; 53 rows are cut unevenly."""
    return Recipe(
        loss=HuberSVM(0.1),
        dims=1,
        rows=53,
        batch_size=batch_size,
        passes=3,
        schedule=schedule,
        regularization=regularization,
        partitions=partitions,
    )


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Recipe, Rows, Rows, int]:
    """A recipe in partitions and two datasets that differ in one row, which stands anywhere."""
    recipe = draw(recipes())
    partitions = draw(st.integers(1, min(6, recipe.rows // 2)))
    batch_size = min(recipe.batch_size, recipe.rows // partitions)
    recipe = replace(recipe, partitions=partitions, batch_size=batch_size)
    classes = max(2, recipe.loss.vector_count)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    loudness = draw(st.sampled_from([0.0, 0.1, 1.0, 5.0]))
    rows = np.hstack(
        [
            random.integers(0, classes, (recipe.rows, 1)),
            loudness * random.standard_normal((recipe.rows, recipe.dims)),
        ]
    ).astype(np.float32)
    other = rows.copy()
    place = draw(st.integers(0, recipe.rows - 1))
    rows[place] = other[place] = 0.0
    rows[place, 1] = other[place, 1] = draw(st.sampled_from([1.0, -1.0, 100.0]))
    other[place, 0] = classes - 1
    if draw(st.booleans()):
        other[place, 1:] = random.standard_normal(recipe.dims)
    return recipe, rows, other, classes


@settings(max_examples=300)
@given(neighbours(), st.integers(0, 5))
def test_neighbours_are_never_further_apart_than_the_sensitivity(
    case: tuple[Recipe, Rows, Rows, int], seed: int
) -> None:
    recipe, rows, other, classes = case
    ours, theirs = (trained(recipe, data, classes=classes, seed=seed) for data in (rows, other))
    assert np.linalg.norm(ours - theirs) <= compute_sgd_sensitivity(recipe).total


HARMONIC = make_strongly_convex_schedule(beta=5.5, gamma=0.5)
TIGHT = {
    "constant": pulled(make_constant_schedule(0.01), partitions=4),
    "constant, single rows": pulled(make_constant_schedule(0.01), partitions=3, batch_size=1),
    "constant, whole partitions": pulled(make_constant_schedule(0.01), partitions=4, batch_size=13),
    "constant, many partitions": pulled(make_constant_schedule(0.01), partitions=26, batch_size=2),
    "square-root": pulled(make_square_root_schedule(beta=5.0, rows=5000), partitions=4),
    "strongly convex, constant": pulled(make_constant_schedule(0.01), partitions=4, regularization=0.5),
    "strongly convex": pulled(HARMONIC, partitions=2, regularization=0.5),
    "strongly convex, batches": pulled(HARMONIC, partitions=4, regularization=0.5, batch_size=5),
    "averaged": replace(pulled(make_constant_schedule(0.01), partitions=4), averaging="all"),
    "a small ball": replace(pulled(make_constant_schedule(0.1), partitions=4, batch_size=1), radius=0.05),
}


@pytest.mark.parametrize("recipe", TIGHT.values(), ids=TIGHT)
def test_the_bound_is_reached_in_one_partition_and_exceeded_in_none(recipe: Recipe) -> None:
    """So nothing smaller would do; and what a row does in a partition is the share of what it does in such a run."""
    worst = worst_in_each(recipe)
    assert max(worst) == pytest.approx(compute_sgd_sensitivity(recipe).bound, rel=1e-6)
    assert max(worst) <= compute_sgd_sensitivity(recipe).total
    sizes = [stop - start for start, stop in map(recipe.compute_partition_bounds, range(recipe.partitions))]
    assert {run.rows for run in recipe.partition_recipes} == set(sizes)
    for apart, rows in zip(worst, sizes, strict=True):
        alone = compute_sgd_sensitivity(recipe.restrict_to_partition(rows)).bound
        assert apart == pytest.approx(rows / recipe.rows * alone, rel=1e-6)


def test_either_size_of_partitions_may_be_the_worse() -> None:
    """One row more has more of a share, but it may also make a batch longer."""
    sizes = [pulled(make_constant_schedule(0.01), partitions=4, batch_size=batch_size) for batch_size in (7, 4)]
    for recipe, worse in zip(sizes, (0, 1), strict=True):
        bounds = [run.rows / recipe.rows * compute_sgd_sensitivity(run).bound for run in recipe.partition_recipes]
        assert bounds.index(max(bounds)) == worse
        assert compute_sgd_sensitivity(recipe).bound == pytest.approx(max(bounds), rel=1e-12)
        assert max(worst_in_each(recipe)) == pytest.approx(max(bounds), rel=1e-6)


def test_fresh_permutations_keep_a_row_in_its_partition() -> None:
    """A row of the largest partition can reach the bound of that partition, and a row of another cannot."""
    recipe = replace(pulled(make_constant_schedule(0.01), partitions=2, batch_size=26), permutation="fresh")
    small, large = (run.rows for run in recipe.partition_recipes)
    assert [recipe.compute_partition_bounds(0), recipe.compute_partition_bounds(1)] == [(0, small), (small, 53)]
    for seed in range(3):
        first, second = (lone_row_distance(recipe, place=place, seed=seed) for place in (0, 52))
        assert first == pytest.approx(
            small / 53 * compute_sgd_sensitivity(recipe.restrict_to_partition(small)).bound, rel=1e-9
        )
        assert second == pytest.approx(
            large / 53 * compute_sgd_sensitivity(recipe.restrict_to_partition(large)).bound, rel=1e-9
        )


def test_the_bound_of_a_run_over_all_rows_would_be_broken() -> None:
    """A partition makes fewer updates, and the strongly convex steps are longer: the bound is that of its own rows."""
    recipe = pulled(HARMONIC, partitions=4, regularization=0.5, batch_size=1)
    apart = max(worst_in_each(recipe))
    whole = compute_sgd_sensitivity(replace(recipe, partitions=1))
    for run in recipe.partition_recipes:
        assert apart > 3 * run.rows / recipe.rows * whole.total
    assert apart <= compute_sgd_sensitivity(recipe).total


def plain_mean(weights: Sequence[Weights], shares: Sequence[float]) -> Weights:
    mean: Weights = np.mean(weights, axis=0)
    assert len(shares) == len(weights)
    return mean


def shares_of_others(weights: Sequence[Weights], shares: Sequence[float]) -> Weights:
    return average_partitions(weights, [*shares[1:], shares[0]])


@pytest.mark.parametrize("average", [plain_mean, shares_of_others])
def test_another_average_would_break_the_bound(
    monkeypatch: pytest.MonkeyPatch, average: Callable[[Sequence[Weights], Sequence[float]], Weights]
) -> None:
    """With whole partitions as batches each row counts for 1/m; a row of a small partition would count for more."""
    recipe = replace(pulled(make_constant_schedule(0.01), partitions=2, batch_size=3), rows=7)
    assert (
        [run.rows for run in recipe.partition_recipes]
        == [run.largest_batch for run in recipe.partition_recipes]
        == [3, 4]
    )
    assert max(worst_in_each(recipe)) <= compute_sgd_sensitivity(recipe).total
    monkeypatch.setattr(_sgd, "average_partitions", average)
    assert max(worst_in_each(recipe)) > 1.1 * compute_sgd_sensitivity(recipe).total


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32))
def test_the_average_rounds_no_more_than_the_margin_allows(partitions: int, dims: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 10_000, partitions)
    rows = int(sizes.sum())
    weights = [random.standard_normal(dims) * 10.0 ** random.integers(-9, 3) for _ in sizes]
    computed = average_partitions(weights, [int(size) / rows for size in sizes])
    exact = [
        sum(Fraction(int(size), rows) * Fraction(float(one[i])) for size, one in zip(sizes, weights, strict=True))
        for i in range(dims)
    ]
    error = math.sqrt(sum(float(Fraction(float(got)) - want) ** 2 for got, want in zip(computed, exact, strict=True)))
    longest = max(float(np.linalg.norm(one)) for one in weights)
    assert error <= (partitions + 1) * UNIT * longest * (1 + 2.0**-10)


def test_the_margin_has_room_for_the_average_and_the_rotation() -> None:
    recipe = Recipe(
        loss=Multinomial(3),
        dims=3,
        rows=8001,
        batch_size=10,
        passes=2,
        schedule=make_constant_schedule(0.1),
        partitions=400,
    )
    for run in recipe.partition_recipes:
        shared = run.rows / recipe.rows * compute_sgd_sensitivity(run).margin
        assert compute_sgd_sensitivity(recipe).margin > shared + 2 * (400 + 9 + 9) * UNIT * bound_iterate_norm(run)
    assert compute_sgd_sensitivity(recipe).margin < 1e-6 * compute_sgd_sensitivity(recipe).bound
