"""Packed rows go to other positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.errors import ParameterError
from boltdp.kernel.hash_sampling import sample_packed_rows
from boltdp.kernel.row_permutation import put_rows, sort_by_bucket, take_rows

OUT = np.zeros((3, 4), dtype=np.float32)


@given(rows=st.integers(0, 200), width=st.integers(1, 40), seed=st.integers(0, 99))
def test_put_is_the_inverse_of_take(rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given_rows = rng.normal(size=(rows, width)).astype(np.float32)
    positions = rng.permutation(rows)
    taken, back = np.empty_like(given_rows), np.empty_like(given_rows)
    take_rows(given_rows, positions, taken)
    np.testing.assert_array_equal(taken, given_rows[positions])
    put_rows(taken, positions, back)
    np.testing.assert_array_equal(back, given_rows)


@given(positions=st.lists(st.integers(0, 1000), max_size=300), shift=st.integers(0, 12))
def test_rows_are_sorted_by_bucket_and_keep_their_order_there(positions: list[int], shift: int) -> None:
    buckets = (1000 >> shift) + 1
    given_positions = np.array(positions, np.int64)
    order, slots, counts = sort_by_bucket(given_positions, shift=shift, buckets=buckets)
    np.testing.assert_array_equal(order, np.argsort(given_positions >> shift, kind="stable"))
    np.testing.assert_array_equal(slots, given_positions[order] & ((1 << shift) - 1))
    np.testing.assert_array_equal(counts, np.bincount(given_positions >> shift, minlength=buckets))


def test_a_read_only_output_is_refused() -> None:
    out = np.zeros((2, 1), dtype=np.float32)
    out.flags.writeable = False
    rows, positions = np.zeros((2, 1), dtype=np.float32), np.arange(2)
    for move in (take_rows, put_rows):
        with pytest.raises(ParameterError, match="out must be writable"):
            move(rows, positions, out)


@pytest.mark.parametrize(
    ("rows", "positions", "out", "message"),
    [
        (
            OUT,
            np.arange(3),
            OUT[:, :3].copy(),
            "there must be a position for each row, and rows must be as wide as out",
        ),
        (OUT, np.arange(2), OUT, "there must be a position for each row, .* got 2 positions for 3 rows"),
        (OUT, np.array([0, 1, 3]), OUT, "positions must be from 0 to 2, got one outside"),
        (OUT, np.array([0, -1, 2]), OUT, "positions must be from 0 to 2, got one outside"),
        (OUT, np.arange(3, dtype=np.int32), OUT, "positions must be a C-contiguous 1-D array of int64, got 1-D int32"),
        (OUT, np.arange(6)[::2], OUT, "positions must be a C-contiguous 1-D array of int64, got 1-D int64"),
        (
            OUT.astype(np.float64),
            np.arange(3),
            OUT,
            "rows must be a C-contiguous 2-D array of float32, got 2-D float64",
        ),
    ],
)
def test_rows_that_cannot_be_moved_are_refused(rows: Any, positions: Any, out: Any, message: str) -> None:
    for move in (take_rows, put_rows):
        with pytest.raises(ParameterError, match=message):
            move(rows, positions, out)


@pytest.mark.parametrize(("shift", "buckets"), [(-1, 1), (33, 1), (0, 0)])
def test_buckets_that_cannot_be_are_refused(shift: int, buckets: int) -> None:
    with pytest.raises(ParameterError, match="shift must be from 0 to 32 and buckets >= 1"):
        sort_by_bucket(np.zeros(1, np.int64), shift=shift, buckets=buckets)


def test_positions_outside_the_buckets_are_refused() -> None:
    with pytest.raises(ParameterError, match="positions must be from 0 to 7, got one outside"):
        sort_by_bucket(np.array([8]), shift=2, buckets=2)


def test_a_sample_is_selected_by_a_hash_of_the_rows() -> None:
    sample = sample_packed_rows(np.array([[0.25], [0.5], [0.75]], np.float32), 0.5)
    assert sample[:, 0].tolist() == [0.25, 0.75]
