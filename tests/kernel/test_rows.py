"""Packing, projecting and permuting rows."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from boltdp.arraytypes import Floats
from boltdp.errors import ParameterError
from boltdp.kernel import (
    State,
    pack_categories,
    pack_numeric,
    pack_steps,
    permuted_position,
    project,
    run,
    source_position,
)
from boltdp.kernel.reference import reference_permuted_position
from boltdp.privacy.losses import Logistic
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.schedules import constant
from tests.kernel.cases import inside

numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


def one_hot(count: int) -> dict[str, Any]:
    return {"absent": np.zeros(count, np.float32), "present": np.ones(count, np.float32)}


@given(
    column=st.lists(numbers, max_size=20),
    bounds=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).map(sorted),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=100)
def test_numeric_columns_are_clipped_centred_and_scaled(column: list[float], bounds: list[float], dtype: type) -> None:
    low, high = bounds
    values: Floats = np.array(column, dtype=dtype)
    out = np.full((len(column), 4), 9.0, dtype=np.float32)
    pack_numeric(values, out, 2, low=low, high=high, factor=0.37)
    expected = (np.clip(values.astype(np.float64), low, high) - (low + high) / 2) * 0.37
    np.testing.assert_array_equal(out[:, 2], np.where(np.isnan(values), 0.0, expected).astype(np.float32))
    assert (out[:, [0, 1, 3]] == 9.0).all()


@given(codes=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 6), max_size=20), count=st.integers(0, 5))
@settings(max_examples=100)
def test_categories_are_one_hot_and_unknown_ones_are_none(codes: list[int], count: int) -> None:
    out = np.full((len(codes), 7), 9.0, dtype=np.float32)
    absent, present = -np.arange(count, dtype=np.float32), 1 + np.arange(count, dtype=np.float32)
    pack_categories(np.array(codes, dtype=np.int32), out, 1, absent=absent, present=present)
    expected = [[present[k] if code == k else absent[k] for k in range(count)] for code in codes]
    np.testing.assert_array_equal(out[:, 1 : 1 + count], np.array(expected).reshape(len(codes), count))
    assert (out[:, 0] == 9.0).all()
    assert (out[:, 1 + count :] == 9.0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_entry_of_a_list_has_its_own_middle_and_factor(dtype: type) -> None:
    cells: Floats = np.array([[0.0, 5.0, 20.0], [np.nan, 10.0, -4.0]], dtype=dtype)
    middle, factor = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.25, 0.125])
    out = np.full((2, 5), 9.0, dtype=np.float32)
    pack_numeric(cells, out, 1, low=0.0, high=10.0, middle=middle, factor=factor)
    expected = (np.clip(cells.astype(np.float64), 0, 10) - middle) * factor
    np.testing.assert_array_equal(out[:, 1:4], np.where(np.isnan(cells), 0.0, expected))
    assert (out[:, [0, 4]] == 9.0).all()


def test_columns_may_be_strided() -> None:
    table = np.arange(12.0).reshape(6, 2)
    out = np.zeros((6, 2), dtype=np.float32)
    pack_numeric(table[:, 1], out, 1, low=0, high=100, factor=1)
    np.testing.assert_array_equal(out[:, 1], table[:, 1] - 50)
    pack_categories(np.arange(12, dtype=np.int32)[::2], out, 0, **one_hot(1))
    np.testing.assert_array_equal(out[:, 0], [1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(("dims", "outputs"), [(1, 1), (3, 7), (50, 16), (784, 50), (5, 33)])
def test_projection_is_the_product_with_the_guarded_row(dims: int, outputs: int) -> None:
    random = np.random.default_rng(dims)
    rows = random.standard_normal((20, 1 + dims)).astype(np.float32)
    rows[:, 0] = np.arange(20) % 3
    matrix = random.standard_normal((dims, outputs)) / math.sqrt(outputs)
    out = np.empty((20, 1 + outputs), dtype=np.float32)
    project(rows, matrix, out)
    expected = np.stack([inside(row) @ matrix for row in rows[:, 1:].astype(np.float64)])
    np.testing.assert_array_equal(out[:, 0], rows[:, 0])
    np.testing.assert_allclose(out[:, 1:], expected, rtol=2e-7, atol=1e-9)


def test_a_projected_row_does_not_depend_on_its_neighbours() -> None:
    random = np.random.default_rng(5)
    rows = random.standard_normal((37, 12)).astype(np.float32)
    matrix = random.standard_normal((11, 19))
    whole, single = np.empty((37, 20), dtype=np.float32), np.empty((1, 20), dtype=np.float32)
    project(rows, matrix, whole)
    for i in range(37):
        project(rows[i : i + 1], matrix, single)
        np.testing.assert_array_equal(single[0], whole[i])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_row_is_still_bad_after_projection(bad: float) -> None:
    rows = np.full((3, 5), 0.25, dtype=np.float32)
    rows[1, 3] = bad
    out = np.empty((3, 3), dtype=np.float32)
    project(rows, np.ones((4, 2)), out)
    assert np.isnan(out[1, 1:]).all()
    assert np.isfinite(out[[0, 2]]).all()
    recipe = Recipe(loss=Logistic(), dims=2, rows=2, batch_size=1, passes=1, schedule=constant(0.1))
    state = State(recipe)
    run([state], np.ascontiguousarray(out[[1, 1]]))
    assert not state.weights.any()


@pytest.mark.parametrize("rows", [*range(1, 70), 255, 256, 257, 1000])
def test_the_permutation_is_a_bijection_and_the_inverse_its_inverse(rows: int) -> None:
    for seed in (0, 1, 2**64 - 1):
        to = permuted_position(0, rows, rows=rows, seed=seed)
        np.testing.assert_array_equal(np.sort(to), np.arange(rows))
        back = source_position(0, rows, rows=rows, seed=seed)
        np.testing.assert_array_equal(back[to], np.arange(rows))


@given(rows=st.integers(1, 2**62), seed=st.integers(0, 2**64 - 1), data=st.data())
@settings(max_examples=200)
def test_the_permutation_is_that_of_the_reference(rows: int, seed: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, rows - 1))
    to = int(permuted_position(at, 1, rows=rows, seed=seed)[0])
    assert to == reference_permuted_position(at, rows=rows, seed=seed)
    assert int(source_position(to, 1, rows=rows, seed=seed)[0]) == at


def test_the_permutation_never_changes() -> None:
    # Models remember a seed: these numbers are a promise.
    assert permuted_position(0, 5, rows=1000, seed=42).tolist() == [223, 534, 354, 536, 728]


def test_pieces_of_the_permutation_fit_together() -> None:
    whole = permuted_position(0, 1000, rows=1000, seed=3)
    pieces = [permuted_position(start, 125, rows=1000, seed=3) for start in range(0, 1000, 125)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_positions_are_spread_evenly() -> None:
    # Each source decile against each target decile: a chi-square of 81 degrees of freedom, far from its tail.
    rows = 100_000
    to = permuted_position(0, rows, rows=rows, seed=11)
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
    orders = np.array([permuted_position(0, rows, rows=rows, seed=seed) for seed in range(5000)])
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert counts.size == math.factorial(rows)
    assert looks_uniform(counts)


@pytest.mark.parametrize("rows", [9, 16, 33])
def test_where_two_neighbouring_rows_go_is_uniform_over_the_seeds(rows: int) -> None:
    pairs = np.array([permuted_position(rows // 2, 2, rows=rows, seed=seed) for seed in range(20_000)])
    counts = np.zeros((rows, rows), dtype=np.int64)
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    assert not np.diag(counts).any()
    assert looks_uniform(counts[~np.eye(rows, dtype=bool)])


def test_numbers_are_centred_before_they_are_rounded_to_float32() -> None:
    """Near a large middle, float32 would have lost all digits of the difference."""
    out = np.zeros((5, 1), dtype=np.float32)
    pack_numeric(1e9 + np.arange(5.0) / 8, out, 0, low=1e9, high=1e9 + 1, factor=2.0)
    assert out[:, 0].tolist() == [-1.0, -0.75, -0.5, -0.25, 0.0]


def test_different_seeds_permute_differently() -> None:
    orders = {tuple(permuted_position(0, 20, rows=20, seed=seed).tolist()) for seed in range(50)}
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
    for function in (permuted_position, source_position):
        with pytest.raises(ParameterError, match=message):
            function(start, count, rows=rows, seed=seed)


OUT = np.zeros((3, 4), dtype=np.float32)


@pytest.mark.parametrize(
    ("column", "out", "at", "message"),
    [
        (np.zeros(3, dtype=np.int64), OUT, 1, "column must be float32 or float64, got int64"),
        (np.zeros((3, 1, 1)), OUT, 1, "a column must be 1-D and out 2-D, got 3-D and 2-D"),
        (np.zeros(3), np.zeros(3, dtype=np.float32), 0, "a column must be 1-D and out 2-D, got 1-D and 1-D"),
        (np.zeros(2), OUT, 1, "out must be a C-contiguous float32 array of shape"),
        (np.zeros(3), OUT.astype(np.float64), 1, "out must be a C-contiguous float32 array of shape"),
        (np.zeros(3), np.zeros((4, 3), dtype=np.float32).T, 1, "out must be a C-contiguous float32 array"),
        (np.zeros(3), OUT, 4, "columns 4 to 4 must lie within the 4 columns of out"),
        (np.zeros(3), OUT, -1, "columns -1 to -1 must lie within the 4 columns of out"),
    ],
)
def test_a_numeric_column_that_does_not_fit_is_refused(column: Any, out: Any, at: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        pack_numeric(column, out, at, low=0, high=1, factor=1)


@pytest.mark.parametrize(
    ("codes", "at", "count", "message"),
    [
        (np.zeros(3, dtype=np.int64), 1, 1, "codes must be int32, got int64"),
        (np.zeros(3, dtype=np.int32), 2, 3, "columns 2 to 4 must lie within the 4 columns of out"),
    ],
)
def test_categories_that_do_not_fit_are_refused(codes: Any, at: int, count: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        pack_categories(codes, OUT, at, **one_hot(count))


def test_values_of_categories_that_do_not_fit_are_refused() -> None:
    codes = np.zeros(3, dtype=np.int32)
    for absent, present in [
        (np.zeros(1, np.float32), np.zeros(2, np.float32)),
        (np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)),
        (np.zeros(1), np.zeros(1, np.float32)),
        (np.zeros(1, np.float32), np.zeros(1)),
    ]:
        with pytest.raises(ParameterError, match="absent and present must be float32 vectors of one length"):
            pack_categories(codes, OUT, 1, absent=absent, present=present)  # type: ignore[arg-type]


def test_a_projection_that_does_not_fit_is_refused() -> None:
    matrix = np.zeros((3, 2))
    shapes = itertools.product([(3, 3), (3, 4)], [(3, 3), (3, 2)])
    fits = [(rows, out) for rows, out in shapes if (rows, out) == ((3, 4), (3, 3))]
    assert len(fits) == 1
    for rows, out in itertools.product([(3, 3), (3, 4)], [(3, 3), (3, 2)]):
        if (rows, out) != ((3, 4), (3, 3)):
            with pytest.raises(ParameterError, match="must be a C-contiguous float32 array of shape"):
                project(np.zeros(rows, dtype=np.float32), matrix, np.zeros(out, dtype=np.float32))


@given(
    column=st.lists(st.floats(width=64) | numbers, max_size=20),
    places=st.lists(st.floats(allow_nan=False), max_size=5),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=100)
def test_steps_are_present_from_their_place_on(column: list[float], places: list[float], dtype: type) -> None:
    with np.errstate(over="ignore"):
        values: Floats = np.array([*column, *places]).astype(dtype)
    count = len(places)
    out = np.full((len(values), 8), 9.0, dtype=np.float32)
    absent, present = -1 - np.arange(count, dtype=np.float32), 1 + np.arange(count, dtype=np.float32)
    pack_steps(values, out, 2, places=places, absent=absent, present=present)
    expected = [
        [0.0 if math.isnan(x) else present[k] if float(x) >= places[k] else absent[k] for k in range(count)]
        for x in values
    ]
    np.testing.assert_array_equal(out[:, 2 : 2 + count], np.array(expected).reshape(len(values), count))
    assert (out[:, :2] == 9.0).all()
    assert (out[:, 2 + count :] == 9.0).all()


def test_cells_and_values_of_steps_may_be_strided() -> None:
    out = np.zeros((3, 2), dtype=np.float32)
    values = {"absent": np.zeros(4, np.float32)[::2], "present": np.arange(1, 5, dtype=np.float32)[::2]}
    pack_steps(np.arange(6.0)[::2], out, 0, places=(2, 4), **values)
    np.testing.assert_array_equal(out, [[0, 0], [1, 0], [1, 3]])


@pytest.mark.parametrize(
    ("cells", "places", "count", "at", "message"),
    [
        (np.zeros(3, dtype=np.int64), (1,), 1, 1, "column must be float32 or float64, got int64"),
        (np.zeros((3, 1)), (1,), 1, 1, "a column must be 1-D and out 2-D, got 2-D and 2-D"),
        (np.zeros(2), (1,), 1, 1, "out must be a C-contiguous float32 array of shape"),
        (np.zeros(3), (1, 2), 1, 1, "places must be as many as absent and present, got 2 and 1"),
        (np.zeros(3), (1, 2), 2, 3, "columns 3 to 4 must lie within the 4 columns of out"),
    ],
)
def test_steps_that_do_not_fit_are_refused(cells: Any, places: Any, count: int, at: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        pack_steps(cells, OUT, at, places=places, **one_hot(count))


def test_values_of_steps_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ParameterError, match="absent and present must be float32 vectors of one length"):
        pack_steps(np.zeros(3), OUT, 1, places=(1,), absent=np.zeros(1, np.float32), present=np.zeros(2, np.float32))
