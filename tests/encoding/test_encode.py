"""Columns become packed rows, the same numbers whatever the type that carries them."""

from __future__ import annotations

import hashlib
import itertools
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.encoding.declared_values import Value
from boltdp.encoding.encode import Encoder
from boltdp.errors import DataError, ParameterError
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema, Vector


def encode(schema: Schema, **columns: Any) -> np.ndarray[Any, Any]:
    """The cells."""
    return Encoder(schema.encoding).encode(pa.RecordBatch.from_pydict(columns))


def read(schema: Schema, **columns: Any) -> np.ndarray[Any, Any]:
    """The features."""
    feature_map = schema.encoding.feature_map
    assert feature_map is not None
    return feature_map.compute_features(encode(schema, **columns))


def labels(classes: tuple[Value, ...], cells: Any) -> list[float | None]:
    schema = Schema(Classes("y", classes), (Numeric("a", 0, 1),))
    packed = encode(schema, a=pa.nulls(len(cells), pa.float64()), y=cells)
    return [None if np.isnan(index) else float(index) for index in packed[:, 0]]


@pytest.mark.parametrize(
    ("classes", "cells", "expected"),
    [
        ((0, 1), pa.array([0, 1, 2, None], pa.int64()), [0, 1, None, None]),
        ((0, 1), pa.array([0, 1, 255, None], pa.uint8()), [0, 1, None, None]),
        ((0, 1), pa.array([0, 2**64 - 1], pa.uint64()), [0, None]),
        ((-1, 300), pa.array([255, 0], pa.uint8()), [None, None]),
        ((0, 1), pa.array([-0.0, 1.0, 0.5, float("nan"), None]), [0, 1, None, None, None]),
        ((0, 1), pa.array(["0", "1", "1.0", " 1", "01", "", None]), [0, 1, 1, None, None, None, None]),
        ((0, 1), pa.array(["0", "1"], pa.large_string()), [0, 1]),
        ((0, 1), pa.array([False, True, None]), [0, 1, None]),
        ((0, 1), pa.array([Decimal("0.00"), Decimal("1.00"), Decimal("0.01"), None]), [0, 1, None, None]),
        ((0, 1), pa.nulls(2), [None, None]),
        ((False, True), pa.array(["false", "True", "TRUE", "1", "no"]), [0, 1, 1, 1, None]),
        ((False, True), pa.array([0, 1, 2]), [0, 1, None]),
        (("false", "true"), pa.array([False, True]), [0, 1]),
        (("1", "2"), pa.array([1, 2, 3]), [0, 1, None]),
        (("1", "2"), pa.array([1.0, 2.0, 2.5]), [0, 1, None]),
        (("01", "1"), pa.array(["01", "1"]), [0, 1]),
        (("01", "1", "1.50"), pa.array([1.0, 1.5]), [1, None]),
        (("no", "yes"), pa.array(["yes", "no", "maybe"]).dictionary_encode(), [1, 0, None]),
        (("no", "yes"), pa.array([0, 1]), [None, None]),
        ((0.1, 0.2), pa.array([0.1, 0.2], pa.float32()), [0, 1]),
        ((3, 1, 2), pa.array([1, 2, 3]), [1, 2, 0]),
    ],
)
def test_label_matches_by_value_across_types(
    classes: tuple[Value, ...], cells: pa.Array, expected: list[float | None]
) -> None:
    assert labels(classes, cells) == expected


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.float16(), pa.float32(), pa.float64()]
)
def test_numbers_encode_alike_whatever_type_carries_them(kind: pa.DataType) -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 10, 110),), intercept=False, clip_norm=2.0)
    cells = pa.array(np.array([0, 10, 60, 85, 110, 120])).cast(kind)
    assert encode(schema, a=cells)[:, 1].tolist() == [-1, -1, 0, 0.5, 1, 1]
    assert read(schema, a=cells)[:, 1].tolist() == [-0.5, -0.5, 0, 0.25, 0.5, 0.5]


def test_missing_and_infinite_numbers_are_neutral() -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 0, 4),), intercept=False)
    cells = pa.array([None, float("nan"), float("inf"), -float("inf")])
    np.testing.assert_array_equal(encode(schema, a=cells)[:, 1], [np.nan, np.nan, 1, -1])
    assert read(schema, a=cells)[:, 1].tolist() == [0, 0, 1, -1]


def test_all_missing_numbers_are_the_same_bits() -> None:
    """Rows are told apart by their bytes, which must not depend on where a NaN comes from."""
    odd = np.array([0x7FC00001, 0xFFC00000, 0x7F800001], np.uint32).view(np.float32)
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 0, 4),), intercept=False)
    wide = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64).view(np.float64)
    cells = [pa.array(odd), pa.array(wide), pa.nulls(3, pa.int8()), pa.nulls(3)]
    assert {encode(schema, a=some)[i, 1].tobytes() for some in cells for i in range(3)} == {
        np.float32(np.nan).tobytes()
    }


@given(
    cells=st.lists(st.floats(), min_size=1, max_size=20),
    bounds=st.tuples(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300)).filter(lambda pair: pair[0] < pair[1]),
)
def test_a_number_is_clipped_centred_and_scaled_in_double(cells: list[float], bounds: tuple[float, float]) -> None:
    low, high = bounds
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", low, high),))
    middle, half = (low + high) / 2, (high - low) / 2
    scaled = (np.clip(np.array(cells), low, high) - middle) / half
    encoded = encode(schema, a=pa.array(cells))[:, 1]
    np.testing.assert_array_equal(encoded, np.clip(scaled, -1, 1).astype(np.float32))


def test_bounds_without_a_number_between_them_give_cells_inside_as_well() -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 1, np.nextafter(1, 2)),))
    assert encode(schema, a=pa.array([0.0, 1.0, np.nextafter(1, 2), 2.0]))[:, 1].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("count", [1, 7, 255, 256, 257, 1000])
def test_rows_do_not_depend_on_their_number_nor_on_how_long_they_are(count: int) -> None:
    """They are packed in tiles, fewer at a time where they are long."""
    rng = np.random.default_rng(count)
    numbers = rng.normal(size=(count, 700))
    columns = {f"f{i}": pa.array(numbers[:, i]) for i in range(700)}
    columns["v"] = pa.FixedSizeListArray.from_arrays(numbers.reshape(-1), 700)
    wide = Schema(Classes("y", (0, 1)), tuple(Numeric(f"f{i}", -1, 1) for i in range(700)), intercept=False)
    expected = np.clip(numbers, -1, 1).astype(np.float32)
    np.testing.assert_array_equal(encode(wide, **columns)[:, 1:], expected)
    vector = Schema(Classes("y", (0, 1)), (Vector("v", 700, -1, 1), Numeric("f0", -1, 1)))
    np.testing.assert_array_equal(encode(vector, **columns)[:, 1:], np.hstack([expected[:, :1], expected]))
    narrow = Schema(Classes("y", (0, 1)), (Numeric("f3", -1, 1),))
    np.testing.assert_array_equal(encode(narrow, **columns)[:, 1], expected[:, 3])


@pytest.mark.parametrize("start", [0, 1, 7, 8, 300])
@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int64(), pa.float32(), pa.float64(), pa.bool_()])
def test_slices_with_missing_cells_begin_anywhere(start: int, kind: pa.DataType) -> None:
    rng = np.random.default_rng(start)
    cells = [None if i % 5 == 0 else bool(x) for i, x in enumerate(rng.integers(0, 2, 700))]
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", -1, 1), Categorical("b", (0, 1))))
    column = pa.array(cells, pa.bool_()).cast(kind if kind != pa.bool_() else pa.bool_())
    encoded = encode(schema, a=column[start:], b=column[start:], y=column[start:])
    expected = [[np.nan, np.nan, -1] if x is None else [x, x, x] for x in cells[start:]]
    np.testing.assert_array_equal(encoded, np.array(expected, np.float32))


def test_categories_are_one_hot_and_unknown_ones_none() -> None:
    schema = Schema(Classes("y", (0, 1)), (Categorical("c", ("x", 7, True)),), intercept=False, clip_norm=4.0)
    cells = pa.array(["x", "7", "true", "z", None])
    assert encode(schema, c=cells)[:, 1].tolist() == [0, 1, 2, -1, -1]
    assert (read(schema, c=cells)[:, 1:] * 4).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64()])
def test_a_dictionary_is_matched_once_whatever_its_indices_are(index: pa.DataType) -> None:
    schema = Schema(Classes("y", (0, 1)), (Categorical("c", ("x", 7, True)),))
    encoder = Encoder(schema.encoding)
    indices = pa.array([3, 0, None, 2, 1, 4], index)
    for values in (["7", "x", "z", None, "true"], ["x", "7", "true", "z", None], [None, "x"]):
        fitting = indices if len(values) == 5 else pa.array([1, 0, None], index)
        cells = pa.DictionaryArray.from_arrays(fitting, pa.array(values))
        plain = cells.dictionary_decode()
        for start in (0, 2):
            batch, other = (pa.RecordBatch.from_pydict({"c": some[start:]}) for some in (cells, plain))
            np.testing.assert_array_equal(encoder.encode(batch), encoder.encode(other))


@pytest.mark.parametrize("dictionary", [pa.array([7, 8]), pa.array([7.0, 8.5]), pa.array([True, False]), pa.nulls(2)])
def test_a_dictionary_may_have_anything(dictionary: pa.Array) -> None:
    schema = Schema(Classes("y", (0, 1)), (Categorical("c", (8.5, 7, True)), Numeric("c2", 0, 10)))
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), dictionary)
    plain = pa.array([None if i is None else dictionary[i].as_py() for i in (0, 1, None, 0)], dictionary.type)
    np.testing.assert_array_equal(encode(schema, c=cells, c2=cells), encode(schema, c=plain, c2=plain))


@pytest.mark.parametrize("categories", [(-3, 5, 4.5), (0, 2**40), (-(2**62), 2**62), (65_535, 0), (65_536, 0)])
@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()])
def test_whole_numbers_far_from_each_other_are_found_as_those_nearby(
    categories: tuple[Value, ...], kind: pa.DataType
) -> None:
    limits = np.iinfo(str(kind))
    cells = sorted({n for c in (*categories, 0, limits.min, limits.max) for n in (int(c) - 1, int(c), int(c) + 1)})
    cells = [n for n in cells if limits.min <= n <= limits.max]
    schema = Schema(Classes("y", (0, 1)), (Categorical("c", categories),))
    expected = [categories.index(n) if n in categories else -1 for n in cells]
    assert encode(schema, c=pa.array(cells, kind))[:, 1].tolist() == expected


def test_cells_of_no_rows_are_none() -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 0, 1), Categorical("c", ("x",)), Vector("v", 2, 0, 1)))
    kinds = pa.schema({"a": pa.float64(), "c": pa.string(), "v": pa.list_(pa.float64()), "y": pa.int64()})
    assert Encoder(schema.encoding).encode(pa.RecordBatch.from_pylist([], kinds)).shape == (
        0,
        1 + schema.encoding.cell_count,
    )


def test_intercept_is_last_and_constant() -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 0, 1),), clip_norm=4.0)
    assert read(schema, a=pa.array([0.0, None]))[:, -1].tolist() == [0.25, 0.25]
    assert encode(schema, a=pa.array([0.0, None])).shape == (2, 2)


def test_without_the_label_column_every_class_index_is_nan() -> None:
    assert np.isnan(encode(Schema(Classes("y", (0, 1)), (Numeric("a", 0, 1),)), a=pa.array([0.0]))[:, 0]).all()


LISTS = [[1.0, -1.0], None, [0.5], [1.0, 1.0, 1.0], [None, 0.5], [9.0, float("nan")]]
ENCODED = [[1, -1], [np.nan] * 2, [np.nan] * 2, [np.nan] * 2, [np.nan, 0.5], [1, np.nan]]


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.float32())])
def test_list_of_another_length_is_a_missing_vector(kind: pa.DataType) -> None:
    schema = Schema(Classes("y", (0, 1)), (Vector("v", 2, -1, 1),), intercept=False, clip_norm=1.0)
    cells = pa.array([[0.25, 0.25], *LISTS], kind)
    np.testing.assert_array_equal(encode(schema, v=cells)[1:, 1:], ENCODED)
    # A slice starts in the middle of the values.
    np.testing.assert_array_equal(encode(schema, v=cells[1:])[:, 1:], ENCODED)
    np.testing.assert_array_equal(read(schema, v=cells[1:])[:, 1:], np.nan_to_num(np.array(ENCODED)))
    assert encode(schema, v=cells[:1])[:, 1:].tolist() == [[0.25, 0.25]]


def test_fixed_size_list_with_missing_ones() -> None:
    schema = Schema(Classes("y", (0, 1)), (Vector("v", 2, -1, 1),), intercept=False, clip_norm=1.0)
    cells = pa.array([[0.25, 0.5], [1, -1], None, [0.5, None]], pa.list_(pa.float32(), 2))
    expected = [[0.25, 0.5], [1, -1], [np.nan, np.nan], [0.5, np.nan]]
    np.testing.assert_array_equal(encode(schema, v=cells)[:, 1:], expected)
    np.testing.assert_array_equal(encode(schema, v=cells[1:])[:, 1:], expected[1:])
    np.testing.assert_array_equal(encode(schema, v=cells[:2])[:, 1:], expected[:2])


def test_projection_is_the_matrix_times_the_row_in_the_unit_ball() -> None:
    columns = tuple(Numeric(f"f{i}", -1, 1) for i in range(6))
    plain = Schema(Classes("y", (0, 1)), columns, clip_norm=1.0)
    projected = Schema(Classes("y", (0, 1)), columns, clip_norm=1.0, projection=Projection(dims=3, seed=5))
    rng = np.random.default_rng(0)
    batch = {f"f{i}": rng.uniform(-1, 1, 50) for i in range(6)} | {"y": np.arange(50) % 2}
    rows = read(plain, **batch)
    assert projected.encoding.feature_map is None
    features = rows[:, 1:] / np.maximum(1.0, np.linalg.norm(rows[:, 1:], axis=1, keepdims=True))
    result = encode(projected, **batch)
    np.testing.assert_array_equal(result[:, 0], rows[:, 0])
    np.testing.assert_allclose(result[:, 1:], features @ Projection(3, 5).make_matrix(7), rtol=1e-6, atol=1e-6)


def test_projection_matrix_is_what_it_has_always_been() -> None:
    """A released model holds only the seed: another matrix would make it another model."""
    matrix = Projection(dims=50, seed=17).make_matrix(785)
    assert matrix.std() == pytest.approx(1 / np.sqrt(50), rel=0.01)
    digest = hashlib.sha256(matrix.tobytes()).hexdigest()
    assert digest[:16] == "540fa59eef33cba6"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 2**32))
def test_cutting_rows_into_batches_never_changes_a_bit(cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends = list(itertools.accumulate(cuts))
    table = pa.table(
        {
            "a": rng.normal(size=ends[-1]),
            "c": rng.choice(["x", "y", "z"], ends[-1]),
            "v": pa.FixedSizeListArray.from_arrays(rng.normal(size=3 * ends[-1]), 3),
            "y": rng.integers(0, 3, ends[-1]),
        }
    )
    columns = (Numeric("a", -1, 1), Categorical("c", ("x", "y")), Vector("v", 3, -1, 1))
    schema = Schema(Classes("y", (0, 1)), columns, projection=Projection(dims=3, seed=1))
    encoder = Encoder(schema.encoding)
    whole = encoder.encode(table.to_batches()[0])
    parts = [encoder.encode(table.slice(end - cut, cut).to_batches()[0]) for cut, end in zip(cuts, ends, strict=True)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("a", [0.5, None]),
        ("a", [0.5, float("nan")]),
        ("c", ["x", "z"]),
        ("c", ["x", None]),
        ("y", [0, 7]),
        ("y", [0, None]),
    ],
)
def test_bad_cell_is_an_error_only_when_asked_for(column: str, cells: list[Any]) -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 0, 1), Categorical("c", ("x",))))
    batch = pa.RecordBatch.from_pydict({"a": [0.5, 0.5], "c": ["x", "x"], "y": [0, 1]} | {column: cells})
    assert Encoder(schema.encoding).encode(batch).shape == (2, 3)
    with pytest.raises(DataError, match=f"^column '{column}' must be complete, got a missing value or "):
        Encoder(schema.encoding, on_bad_row="error").encode(batch)


def test_complete_rows_pass_the_strict_encoder() -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 0, 1), Vector("v", 1, 0, 1)))
    batch = pa.RecordBatch.from_pydict({"a": [0.5], "v": [[0.5]], "y": [1]})
    assert Encoder(schema.encoding, on_bad_row="error").encode(batch)[0, 0] == 1


def test_on_bad_row_must_be_known() -> None:
    with pytest.raises(ParameterError, match=r"^on_bad_row must be one of neutral, error, got 'skip'$"):
        Encoder(Schema(Classes("y", (0, 1)), (Numeric("a", 0, 1),)).encoding, on_bad_row="skip")  # type: ignore[arg-type]
