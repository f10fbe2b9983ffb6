"""Projecting and permuting rows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from boltdp.errors import ParameterError
from boltdp.kernel.row_permutation import compute_permuted_positions, compute_source_positions
from boltdp.kernel.sgd import State, run
from boltdp.losses import Logistic
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.kernel.cases import inside
from tests.kernel.projection import project_rows
from tests.kernel.reference import reference_permuted_position


@pytest.mark.parametrize(("dims", "outputs"), [(1, 1), (3, 7), (50, 16), (784, 50), (5, 33)])
def test_projection_is_the_product_with_the_guarded_row(dims: int, outputs: int) -> None:
    random = np.random.default_rng(dims)
    rows = random.standard_normal((20, 1 + dims)).astype(np.float32)
    rows[:, 0] = np.arange(20) % 3
    matrix = random.standard_normal((dims, outputs)) / math.sqrt(outputs)
    out = np.empty((20, 1 + outputs), dtype=np.float32)
    project_rows(rows, matrix, out)
    expected = np.stack([inside(row) @ matrix for row in rows[:, 1:].astype(np.float64)])
    np.testing.assert_array_equal(out[:, 0], rows[:, 0])
    np.testing.assert_allclose(out[:, 1:], expected, rtol=2e-7, atol=1e-9)


def test_a_projected_row_does_not_depend_on_its_neighbours() -> None:
    random = np.random.default_rng(5)
    rows = random.standard_normal((37, 12)).astype(np.float32)
    matrix = random.standard_normal((11, 19))
    whole, single = np.empty((37, 20), dtype=np.float32), np.empty((1, 20), dtype=np.float32)
    project_rows(rows, matrix, whole)
    for i in range(37):
        project_rows(rows[i : i + 1], matrix, single)
        np.testing.assert_array_equal(single[0], whole[i])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_row_is_still_bad_after_projection(bad: float) -> None:
    rows = np.full((3, 5), 0.25, dtype=np.float32)
    rows[1, 3] = bad
    out = np.empty((3, 3), dtype=np.float32)
    project_rows(rows, np.ones((4, 2)), out)
    assert np.isnan(out[1, 1:]).all()
    assert np.isfinite(out[[0, 2]]).all()
    recipe = Recipe(loss=Logistic(), dims=2, rows=2, batch_size=1, passes=1, schedule=make_constant_schedule(0.1))
    state = State(recipe)
    run([state], np.ascontiguousarray(out[[1, 1]]))
    assert not state.weights.any()


@pytest.mark.parametrize("rows", [*range(1, 70), 255, 256, 257, 1000])
def test_the_permutation_is_a_bijection_and_the_inverse_its_inverse(rows: int) -> None:
    for seed in (0, 1, 2**64 - 1):
        to = compute_permuted_positions(0, rows, rows=rows, seed=seed)
        np.testing.assert_array_equal(np.sort(to), np.arange(rows))
        back = compute_source_positions(0, rows, rows=rows, seed=seed)
        np.testing.assert_array_equal(back[to], np.arange(rows))


@given(rows=st.integers(1, 2**62), seed=st.integers(0, 2**64 - 1), data=st.data())
@settings(max_examples=200)
def test_the_permutation_is_that_of_the_reference(rows: int, seed: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, rows - 1))
    to = int(compute_permuted_positions(at, 1, rows=rows, seed=seed)[0])
    assert to == reference_permuted_position(at, rows=rows, seed=seed)
    assert int(compute_source_positions(to, 1, rows=rows, seed=seed)[0]) == at


def test_the_permutation_never_changes() -> None:
    # Models remember a seed: these numbers are a guarantee.
    assert compute_permuted_positions(0, 5, rows=1000, seed=42).tolist() == [223, 534, 354, 536, 728]


def test_pieces_of_the_permutation_fit_together() -> None:
    whole = compute_permuted_positions(0, 1000, rows=1000, seed=3)
    pieces = [compute_permuted_positions(start, 125, rows=1000, seed=3) for start in range(0, 1000, 125)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_positions_are_spread_evenly() -> None:
    # Each source decile against each target decile: a chi-square of 81 degrees of freedom, far from its tail.
    rows = 100_000
    to = compute_permuted_positions(0, rows, rows=rows, seed=11)
    counts = np.histogram2d(np.arange(rows), to, bins=10)[0]
    chi_square = ((counts - rows / 100) ** 2 / (rows / 100)).sum()
    assert 30 < chi_square < 160


def looks_uniform(counts: npt.NDArray[np.int64]) -> bool:
    """A chi-square test at a level that one uniform sample in 10,000 would fail; the seeds are fixed."""
    expected = counts.sum() / counts.size
    statistic = float(np.sum((counts - expected) ** 2) / expected)
    return bool(chi2.sf(statistic, counts.size - 1) > 1e-4)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_every_order_of_very_few_rows_is_equally_likely_over_the_seeds(rows: int) -> None:
    orders = np.array([compute_permuted_positions(0, rows, rows=rows, seed=seed) for seed in range(5000)])
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert counts.size == math.factorial(rows)
    assert looks_uniform(counts)


@pytest.mark.parametrize("rows", [9, 16, 33])
def test_where_two_neighbouring_rows_go_is_uniform_over_the_seeds(rows: int) -> None:
    pairs = np.array([compute_permuted_positions(rows // 2, 2, rows=rows, seed=seed) for seed in range(20_000)])
    counts = np.zeros((rows, rows), dtype=np.int64)
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    assert not np.diag(counts).any()
    assert looks_uniform(counts[~np.eye(rows, dtype=bool)])


def test_different_seeds_permute_differently() -> None:
    orders = {tuple(compute_permuted_positions(0, 20, rows=20, seed=seed).tolist()) for seed in range(50)}
    assert len(orders) == 50


@pytest.mark.parametrize(
    ("start", "count", "rows", "seed", "message"),
    [
        (0, 1, 0, 0, "rows must be from 1 to 2"),
        (0, 1, 2**62 + 1, 0, "rows must be from 1 to 2"),
        (-1, 1, 5, 0, "must stay within the 5 rows, got -1 and 1"),
        (0, -1, 5, 0, "must stay within the 5 rows, got 0 and -1"),
        (3, 3, 5, 0, "must stay within the 5 rows, got 3 and 3"),
        (0, 1, 5, -1, "seed must be from 0 to 2"),
        (0, 1, 5, 2**64, "seed must be from 0 to 2"),
    ],
)
def test_positions_outside_the_rows_are_refused(start: int, count: int, rows: int, seed: int, message: str) -> None:
    for function in (compute_permuted_positions, compute_source_positions):
        with pytest.raises(ParameterError, match=message):
            function(start, count, rows=rows, seed=seed)


def test_a_projection_that_does_not_fit_is_refused() -> None:
    matrix = np.zeros((3, 2))
    shapes = itertools.product([(3, 3), (3, 4)], [(3, 3), (3, 2)])
    fits = [(rows, out) for rows, out in shapes if (rows, out) == ((3, 4), (3, 3))]
    assert len(fits) == 1
    for rows, out in itertools.product([(3, 3), (3, 4)], [(3, 3), (3, 2)]):
        if (rows, out) != ((3, 4), (3, 3)):
            with pytest.raises(ParameterError, match=r"rows must have 1 . 3 columns and out 3 rows of 1 . 2"):
                project_rows(np.zeros(rows, dtype=np.float32), matrix, np.zeros(out, dtype=np.float32))
