"""Columns become cells by the words of a plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.encoding.compiled_plan import compile_plan
from boltdp.encoding.plan import EncodingPlan, NumberListRule, NumberRule, Rule, ValueRule
from boltdp.encoding.projection import Projection
from boltdp.errors import ParameterError
from boltdp.kernel.columns_to_cells import TYPES, Packer, Values

OUT = np.zeros((3, 4), dtype=np.float32)
numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)
LABEL = ValueRule("y", "y", (0, 1))
CODES = ValueRule("c", "c", tuple(range(5)))


def packer(*rules: Rule, types: list[str], label: Rule = LABEL) -> Packer:
    nothing = np.zeros(sum(rule.feature_count for rule in rules))
    return Packer(compile_plan(EncodingPlan(label, rules, nothing, nothing, None, None), types))


def packed(rule: Rule, values: Values, rows: int) -> np.ndarray[Any, Any]:
    """The cells of one column between two others, which must stay as they are."""
    ones = Values.from_array(np.ones(rows, np.int8))
    ours = packer(rule, LABEL, types=["int8", values.type, "int8"])
    out = np.full((rows, ours.width), 9.0, np.float32)
    ours.pack([ones, values, ones], out)
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
    cells = packed(NumberRule("a", "a", low, high), Values.from_array(values), len(values))[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):  # half of the smallest width is 0
        scaled = (np.clip(values.astype(np.float64), low, high) - (low + high) / 2) / ((high - low) / 2)
    np.testing.assert_array_equal(cells, np.clip(scaled, -1, 1).astype(np.float32))


def test_numbers_are_centred_before_they_are_rounded_to_float32() -> None:
    """Near a large middle, float32 would have lost all digits of the difference."""
    values = Values.from_array(1e9 + np.arange(5.0) / 8)
    assert packed(NumberRule("a", "a", 1e9, 1e9 + 1), values, 5)[:, 0].tolist() == [-1.0, -0.75, -0.5, -0.25, 0.0]


@given(
    column=st.lists(st.floats(width=64) | numbers, max_size=20),
    ends=st.lists(st.floats(-1e300, 1e300) | st.floats(-1, 1), min_size=3, max_size=8, unique=True).map(sorted),
)
@settings(max_examples=100)
def test_numbers_reach_a_threshold_from_the_exact_one_on(column: list[float], ends: list[float]) -> None:
    low, *thresholds, high = ends
    rule = NumberRule("a", "a", low, high, tuple(thresholds))
    exact = np.array(rule.exact_thresholds)
    near = [*thresholds, *exact, *np.nextafter(exact, -np.inf), *np.nextafter(exact, np.inf)]
    values = np.array([*column, *near, low, high, -np.inf, np.inf])
    cells = packed(rule, Values.from_array(values), len(values))
    np.testing.assert_array_equal(cells >= rule.places, values[:, None] >= exact)
    assert (exact <= thresholds).all()


def test_exact_thresholds_differ_from_the_declared_ones_by_the_rounding_of_a_cell() -> None:
    rule = NumberRule("a", "a", 0, 100, (18.0, 65.0, math.nextafter(65.0, 100.0)))
    assert rule.exact_thresholds == pytest.approx(rule.thresholds, abs=50 * 2.0**-24)
    assert rule.places[1] == rule.places[2]
    # The cell of the first is that of the lower bound.
    assert NumberRule("a", "a", 1, 2, (math.nextafter(1, 2), 1.5)).exact_thresholds[0] == -math.inf


@given(codes=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 6), max_size=20), count=st.integers(0, 5))
@settings(max_examples=100)
def test_codes_are_what_the_dictionary_says_or_missing(codes: list[int], count: int) -> None:
    values = np.array(codes, np.int32)
    table = np.arange(count, dtype=np.int32) * 2 - 1  # the first is below 0
    cells = packed(CODES, Values.from_array(values).with_codes(table), len(values))[:, 0]
    assert cells.tolist() == [2 * x - 1 if 1 <= x < count else -1 for x in codes]
    themselves = packed(CODES, Values.from_array(values), len(values))[:, 0]
    np.testing.assert_array_equal(themselves, np.where((values < 0) | (values > 4), -1, values).astype(np.float32))


SPREAD = (*range(40), 10**6, -(10**12), 0.5, 2.25)


@given(cells=st.lists(st.sampled_from(SPREAD) | st.integers(-50, 50) | st.floats(), max_size=40))
def test_values_are_found_however_far_apart_they_are(cells: list[float]) -> None:
    expected = [SPREAD.index(x) if x in SPREAD else -1 for x in cells]
    values = Values.from_array(np.array(cells, np.float64))
    assert packed(ValueRule("c", "c", SPREAD), values, len(cells))[:, 0].tolist() == expected
    whole = [int(x) for x in cells if abs(x) < 2**62]
    expected = [SPREAD.index(x) if x in SPREAD else -1 for x in whole]
    assert (
        packed(ValueRule("c", "c", SPREAD), Values.from_array(np.array(whole, np.int64)), len(whole))[:, 0].tolist()
        == expected
    )


TEXTS = ("", "a", "b", "ab", "a\0", "é", "eight888", "nine99999", "x" * 100, "x" * 101)


@given(cells=st.lists(st.sampled_from(TEXTS) | st.text(), min_size=1, max_size=20))
def test_texts_are_found_by_all_their_bytes(cells: list[str]) -> None:
    encoded = [cell.encode() for cell in cells]
    data = np.frombuffer(b"".join(encoded) + b"?", np.uint8)
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    values = Values((data, ends), "text", data.ctypes.data, ends=ends.ctypes.data)
    expected = [TEXTS.index(cell) if cell in TEXTS else -1 for cell in cells]
    assert packed(ValueRule("c", "c", TEXTS), values, len(cells))[:, 0].tolist() == expected


@pytest.mark.parametrize("name", TYPES[:-1])
def test_values_of_every_type_are_read_with_their_validity_and_offset(name: str) -> None:
    rows, offset = 300, 11
    whole = np.random.default_rng(1).integers(0, 2, rows + offset)
    given_values = np.packbits(whole.astype(bool), bitorder="little") if name == "bool" else whole.astype(name)
    valid = np.random.default_rng(2).integers(0, 2, rows + offset).astype(bool)
    bits = np.packbits(valid, bitorder="little")
    values = Values(given_values, name, given_values.ctypes.data, validity=bits.ctypes.data, offset=offset)
    expected = np.where(valid, whole, np.nan)[offset:]
    np.testing.assert_array_equal(packed(NumberRule("a", "a", -1, 1), values, rows)[:, 0], expected)
    label = packer(types=[name])
    out = np.empty((rows, 1), np.float32)
    np.testing.assert_array_equal(label.pack([values], out)[:, 0], expected)


@pytest.mark.parametrize("width", [2, 3, 50, 256, 700])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_lists_are_packed_whole(width: int, rows: int) -> None:
    values = np.random.default_rng(width).normal(size=(rows, width))
    values[0, 1] = np.nan
    np.testing.assert_array_equal(
        packed(NumberListRule("v", "v", -1, 1, width), Values.from_array(values), rows),
        np.clip(values, -1, 1).astype(np.float32),
    )


def test_columns_may_be_strided() -> None:
    table = np.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(
        packed(NumberRule("a", "a", 0, 100), Values.from_array(table[:, 1]), 6)[:, 0],
        ((table[:, 1] - 50) / 50).astype(np.float32),
    )


THREE = NumberListRule("v", "v", 0, 1, 3)


@pytest.mark.parametrize(
    ("types", "out", "message"),
    [
        (["int8"], OUT, "there must be values of 2 columns for rows of 4 numbers, got 1 for 4"),
        (["int8", "float64"], OUT[:, :1].copy(), "values of 2 columns for rows of 4 numbers, got 2 for 1"),
        (["int8", "float64"], OUT[:, ::2], "out must be a C-contiguous 2-D array of float32, got 2-D float32"),
        (["int8", "float64"], OUT.astype(np.float64), "out must be a C-contiguous 2-D array of float32"),
        (["int8", "float64"], OUT[0], "out must be a C-contiguous 2-D array of float32, got 1-D float32"),
        (["float64", "float64"], OUT, "the values of each column must have a type that the plan is for"),
        (["int8", "text"], OUT, "the values of each column must have a type that the plan is for"),
    ],
)
def test_what_does_not_fit_is_not_packed(types: list[str], out: Any, message: str) -> None:
    values = [Values.from_array(np.zeros(12))._replace(type=name) for name in types]
    with pytest.raises(ParameterError, match=message):
        packer(THREE, types=["int8", "float64"]).pack(values, out)


def test_a_read_only_output_is_refused() -> None:
    out = np.zeros((2, 1), dtype=np.float32)
    out.flags.writeable = False
    with pytest.raises(ParameterError, match="out must be writable"):
        packer(types=["int32"]).pack([Values.from_array(np.zeros(2, np.int32))], out)


def test_a_plan_that_is_cut_or_longer_is_refused() -> None:
    rules = NumberRule("a", "a", 0, 1, (0.5,)), ValueRule("c", "c", ("x", "longer than a word")), THREE
    nothing = np.zeros(sum(rule.feature_count for rule in rules))
    words = compile_plan(
        EncodingPlan(LABEL, rules, nothing, nothing, 1.0, Projection(2, 7)), ["int8", "float64", "text", "float64"]
    )
    Packer(words)
    for wrong in (*(words[:end] for end in range(len(words))), words + bytes(8), b"x" + words[1:]):
        with pytest.raises(ParameterError, match=r"^the plan is corrupt$"):
            Packer(wrong)


def test_a_label_is_a_class_or_a_number_in_one_cell() -> None:
    price = NumberRule("price", "price", 0, 10)
    ours = packer(CODES, types=["float64", "int8"], label=price)
    out = np.zeros((3, ours.width), np.float32)
    ours.pack([Values.from_array(np.array([0.0, 7.5, np.nan])), Values.from_array(np.ones(3, np.int8))], out)
    np.testing.assert_array_equal(out[:, 0], np.array([-1.0, 0.5, np.nan], np.float32))
    with pytest.raises(ParameterError, match="the plan is corrupt"):
        packer(CODES, types=["float64", "int8"], label=NumberListRule("price", "price", 0, 10, length=2))
