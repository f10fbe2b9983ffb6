"""Columns become cells, and rows go to other places."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.errors import ParameterError
from boltdp.kernel.packing import TYPES, Codes, Numbers, Packer, Steps, Values, put, sort_by_bucket, take

OUT = np.zeros((3, 4), dtype=np.float32)
numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


def packed(column: Numbers | Steps | Codes, values: Values, rows: int) -> np.ndarray[Any, Any]:
    """The cells of one column between two others, which must stay as they are."""
    packer = Packer([Codes(), column, Codes()])
    ones = Values.of(np.ones(rows, np.int8))
    out = np.full((rows, packer.width), 9.0, np.float32)
    packer.pack([ones, values, ones], out)
    assert (out[:, [0, -1]] == 1.0).all()
    return out[:, 1:-1]


@given(
    column=st.lists(numbers, max_size=20),
    bounds=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).filter(lambda pair: pair[0] < pair[1]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=100)
def test_numbers_are_clipped_centred_and_scaled(column: list[float], bounds: tuple[float, float], dtype: type) -> None:
    low, high = bounds
    values: np.ndarray[Any, Any] = np.array(column, dtype=dtype)
    cells = packed(Numbers(low, high), Values.of(values), len(values))[:, 0]
    scaled = (np.clip(values.astype(np.float64), low, high) - (low + high) / 2) / ((high - low) / 2)
    np.testing.assert_array_equal(cells, np.clip(scaled, -1, 1).astype(np.float32))


def test_numbers_are_centred_before_they_are_rounded_to_float32() -> None:
    """Near a large middle, float32 would have lost all digits of the difference."""
    values = Values.of(1e9 + np.arange(5.0) / 8)
    assert packed(Numbers(1e9, 1e9 + 1), values, 5)[:, 0].tolist() == [-1.0, -0.75, -0.5, -0.25, 0.0]


@given(
    column=st.lists(st.floats(width=64) | numbers, max_size=20),
    places=st.lists(st.floats(allow_nan=False), max_size=5).map(sorted),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=100)
def test_steps_are_counted_from_their_place_on(column: list[float], places: list[float], dtype: type) -> None:
    with np.errstate(over="ignore"):
        values: np.ndarray[Any, Any] = np.array([*column, *places]).astype(dtype)
    cells = packed(Steps(tuple(places)), Values.of(values), len(values))[:, 0]
    assert cells.tolist() == [-1 if math.isnan(x) else sum(float(x) >= place for place in places) for x in values]


@given(codes=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 6), max_size=20), count=st.integers(0, 5))
@settings(max_examples=100)
def test_codes_are_what_the_table_says_or_missing(codes: list[int], count: int) -> None:
    values = np.array(codes, np.int32)
    table = np.arange(count, dtype=np.int32) * 2 - 1  # the first is below 0
    cells = packed(Codes(missing=-7.0), Values.of(values, table=table)._replace(base=1), len(values))[:, 0]
    assert cells.tolist() == [2 * (x - 1) - 1 if 2 <= x <= count else -7 for x in codes]
    themselves = packed(Codes(), Values.of(values), len(values))[:, 0]
    np.testing.assert_array_equal(themselves, np.where(values < 0, -1, values).astype(np.float32))


@pytest.mark.parametrize("name", TYPES)
def test_values_of_every_type_are_read_with_their_validity_and_offset(name: str) -> None:
    rows, offset = 300, 11
    whole = np.random.default_rng(1).integers(0, 2, rows + offset)
    given_values = np.packbits(whole.astype(bool), bitorder="little") if name == "bool" else whole.astype(name)
    valid = np.random.default_rng(2).integers(0, 2, rows + offset).astype(bool)
    bits = np.packbits(valid, bitorder="little")
    values = Values(given_values, given_values.ctypes.data, TYPES.index(name), validity=bits.ctypes.data, offset=offset)
    expected = np.where(valid, whole, np.nan)[offset:]
    np.testing.assert_array_equal(packed(Numbers(-1, 1), values, rows)[:, 0], expected)
    if not name.startswith("float"):
        np.testing.assert_array_equal(packed(Codes(missing=np.nan), values, rows)[:, 0], expected)


@pytest.mark.parametrize("width", [2, 3, 50, 256, 700])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_lists_are_packed_whole(width: int, rows: int) -> None:
    values = np.random.default_rng(width).normal(size=(rows, width))
    values[0, 1] = np.nan
    np.testing.assert_array_equal(
        packed(Numbers(-1, 1, width), Values.of(values), rows), np.clip(values, -1, 1).astype(np.float32)
    )


def test_columns_may_be_strided() -> None:
    table = np.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(
        packed(Numbers(0, 100), Values.of(table[:, 1]), 6)[:, 0], ((table[:, 1] - 50) / 50).astype(np.float32)
    )


@given(rows=st.integers(0, 200), width=st.integers(1, 40), seed=st.integers(0, 99))
def test_put_is_the_inverse_of_take(rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given_rows = rng.normal(size=(rows, width)).astype(np.float32)
    places = rng.permutation(rows)
    taken, back = np.empty_like(given_rows), np.empty_like(given_rows)
    take(given_rows, places, taken)
    np.testing.assert_array_equal(taken, given_rows[places])
    put(taken, places, back)
    np.testing.assert_array_equal(back, given_rows)


@given(positions=st.lists(st.integers(0, 1000), max_size=300), shift=st.integers(0, 12))
def test_rows_are_sorted_by_bucket_and_keep_their_order_there(positions: list[int], shift: int) -> None:
    buckets = (1000 >> shift) + 1
    given_positions = np.array(positions, np.int64)
    order, slots, counts = sort_by_bucket(given_positions, shift=shift, buckets=buckets)
    np.testing.assert_array_equal(order, np.argsort(given_positions >> shift, kind="stable"))
    np.testing.assert_array_equal(slots, given_positions[order] & ((1 << shift) - 1))
    np.testing.assert_array_equal(counts, np.bincount(given_positions >> shift, minlength=buckets))


@pytest.mark.parametrize(
    ("columns", "values", "out", "message"),
    [
        ([Codes()], [], OUT[:, :1].copy(), "there must be values of 1 columns for rows of 1 numbers, got 0 for 1"),
        ([Codes()], [0], OUT, "there must be values of 1 columns for rows of 1 numbers, got 1 for 4"),
        ([Numbers(0, 1, 4)], [0], OUT[:, ::2], "out must be a C-contiguous 2-D array of float32, got 2-D float32"),
        ([Numbers(0, 1, 4)], [0], OUT.astype(np.float64), "out must be a C-contiguous 2-D array of float32"),
        ([Numbers(0, 1, 4)], [0], OUT[0], "out must be a C-contiguous 2-D array of float32, got 1-D float32"),
        ([Codes(), Numbers(0, 1, 3)], [0, 0], OUT, "codes must be made of whole numbers, got floats"),
    ],
)
def test_what_does_not_fit_is_not_packed(columns: Any, values: list[int], out: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Packer(columns).pack([Values.of(np.zeros(12)) for _ in values], out)


def test_a_read_only_output_is_refused() -> None:
    out = np.zeros((2, 1), dtype=np.float32)
    out.flags.writeable = False
    rows, places = np.zeros((2, 1), dtype=np.float32), np.arange(2)
    uses: list[Any] = [lambda: Packer([Codes()]).pack([Values.of(np.zeros(2, np.int32))], out)]
    for use in (*uses, lambda: take(rows, places, out), lambda: put(rows, places, out)):
        with pytest.raises(ParameterError, match="out must be writable"):
            use()


@pytest.mark.parametrize(
    ("rows", "places", "out", "message"),
    [
        (OUT, np.arange(3), OUT[:, :3].copy(), "there must be a place for each row, and rows must be as wide as out"),
        (OUT, np.arange(2), OUT, "there must be a place for each row, .* got 2 places for 3 rows"),
        (OUT, np.array([0, 1, 3]), OUT, "places must be from 0 to 2, got one outside"),
        (OUT, np.array([0, -1, 2]), OUT, "places must be from 0 to 2, got one outside"),
        (OUT, np.arange(3, dtype=np.int32), OUT, "places must be a C-contiguous 1-D array of int64, got 1-D int32"),
        (OUT, np.arange(6)[::2], OUT, "places must be a C-contiguous 1-D array of int64, got 1-D int64"),
        (
            OUT.astype(np.float64),
            np.arange(3),
            OUT,
            "rows must be a C-contiguous 2-D array of float32, got 2-D float64",
        ),
    ],
)
def test_rows_that_cannot_be_moved_are_refused(rows: Any, places: Any, out: Any, message: str) -> None:
    for move in (take, put):
        with pytest.raises(ParameterError, match=message):
            move(rows, places, out)


@pytest.mark.parametrize(("shift", "buckets"), [(-1, 1), (33, 1), (0, 0)])
def test_buckets_that_cannot_be_are_refused(shift: int, buckets: int) -> None:
    with pytest.raises(ParameterError, match="shift must be from 0 to 32 and buckets >= 1"):
        sort_by_bucket(np.zeros(1, np.int64), shift=shift, buckets=buckets)


def test_positions_outside_the_buckets_are_refused() -> None:
    with pytest.raises(ParameterError, match="places must be from 0 to 7, got one outside"):
        sort_by_bucket(np.array([8]), shift=2, buckets=2)
