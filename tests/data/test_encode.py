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

from boltdp.data.encode import Encoder, projection_matrix
from boltdp.data.schema import Categorical, Numeric, Projection, Schema, Vector
from boltdp.data.values import Value
from boltdp.errors import DataError, ParameterError


def encode(schema: Schema, **columns: Any) -> np.ndarray[Any, Any]:
    return Encoder(schema).encode(pa.RecordBatch.from_pydict(columns))


def labels(classes: tuple[Value, ...], cells: Any) -> list[float | None]:
    schema = Schema("y", classes, (Numeric("a", 0, 1),))
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
    schema = Schema("y", (0, 1), (Numeric("a", 10, 110),), intercept=False, clip_norm=2.0)
    cells = pa.array(np.array([0, 10, 60, 85, 110, 120])).cast(kind)
    encoded = encode(schema, a=cells)[:, 1]
    assert encoded.tolist() == [-0.5, -0.5, 0, 0.25, 0.5, 0.5]


def test_missing_and_infinite_numbers_are_neutral() -> None:
    schema = Schema("y", (0, 1), (Numeric("a", 0, 4),), intercept=False)
    encoded = encode(schema, a=pa.array([None, float("nan"), float("inf"), -float("inf")]))
    assert encoded[:, 1].tolist() == [0, 0, 1, -1]


def test_categories_are_one_hot_and_unknown_ones_none() -> None:
    schema = Schema("y", (0, 1), (Categorical("c", ("x", 7, True)),), intercept=False, clip_norm=4.0)
    encoded = encode(schema, c=pa.array(["x", "7", "true", "z", None]))
    assert (encoded[:, 1:] * 4).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]


def test_intercept_is_last_and_constant() -> None:
    schema = Schema("y", (0, 1), (Numeric("a", 0, 1),), clip_norm=4.0)
    assert encode(schema, a=pa.array([0.0, None]))[:, -1].tolist() == [0.25, 0.25]


def test_without_the_label_column_every_class_index_is_nan() -> None:
    assert np.isnan(encode(Schema("y", (0, 1), (Numeric("a", 0, 1),)), a=pa.array([0.0]))[:, 0]).all()


LISTS = [[1.0, -1.0], None, [0.5], [1.0, 1.0, 1.0], [None, 0.5], [9.0, float("nan")]]
ENCODED = [[1, -1], [0, 0], [0, 0], [0, 0], [0, 0.5], [1, 0]]


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.float32())])
def test_list_of_another_length_is_a_missing_vector(kind: pa.DataType) -> None:
    schema = Schema("y", (0, 1), (Vector("v", 2, -1, 1),), intercept=False, clip_norm=1.0)
    cells = pa.array([[0.25, 0.25], *LISTS], kind)
    assert encode(schema, v=cells)[1:, 1:].tolist() == ENCODED
    # A slice starts in the middle of the values.
    assert encode(schema, v=cells[1:])[:, 1:].tolist() == ENCODED
    assert encode(schema, v=cells[:1])[:, 1:].tolist() == [[0.25, 0.25]]


def test_fixed_size_list_with_missing_ones() -> None:
    schema = Schema("y", (0, 1), (Vector("v", 2, -1, 1),), intercept=False, clip_norm=1.0)
    cells = pa.array([[0.25, 0.5], [1, -1], None, [0.5, None]], pa.list_(pa.float32(), 2))
    expected = [[0.25, 0.5], [1, -1], [0, 0], [0.5, 0]]
    assert encode(schema, v=cells)[:, 1:].tolist() == expected
    assert encode(schema, v=cells[1:])[:, 1:].tolist() == expected[1:]
    assert encode(schema, v=cells[:2])[:, 1:].tolist() == expected[:2]


def test_projection_is_the_matrix_times_the_row_in_the_unit_ball() -> None:
    columns = tuple(Numeric(f"f{i}", -1, 1) for i in range(6))
    plain = Schema("y", (0, 1), columns, clip_norm=1.0)
    projected = Schema("y", (0, 1), columns, clip_norm=1.0, projection=Projection(dims=3, seed=5))
    rng = np.random.default_rng(0)
    batch = {f"f{i}": rng.uniform(-1, 1, 50) for i in range(6)} | {"y": np.arange(50) % 2}
    rows = encode(plain, **batch).astype(np.float64)
    features = rows[:, 1:] / np.maximum(1.0, np.linalg.norm(rows[:, 1:], axis=1, keepdims=True))
    result = encode(projected, **batch)
    np.testing.assert_array_equal(result[:, 0], rows[:, 0])
    np.testing.assert_allclose(result[:, 1:], features @ projection_matrix(Projection(3, 5), 7), rtol=1e-6, atol=1e-6)


def test_projection_matrix_is_what_it_has_always_been() -> None:
    """A released model holds only the seed: another matrix would make it another model."""
    matrix = projection_matrix(Projection(dims=50, seed=17), 785)
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
    schema = Schema("y", (0, 1), columns, projection=Projection(dims=3, seed=1))
    encoder = Encoder(schema)
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
    schema = Schema("y", (0, 1), (Numeric("a", 0, 1), Categorical("c", ("x",))))
    batch = pa.RecordBatch.from_pydict({"a": [0.5, 0.5], "c": ["x", "x"], "y": [0, 1]} | {column: cells})
    assert Encoder(schema).encode(batch).shape == (2, 4)
    with pytest.raises(DataError, match=f"^column '{column}' must be complete, got a missing value or "):
        Encoder(schema, on_bad_row="error").encode(batch)


def test_complete_rows_pass_the_strict_encoder() -> None:
    schema = Schema("y", (0, 1), (Numeric("a", 0, 1), Vector("v", 1, 0, 1)))
    batch = pa.RecordBatch.from_pydict({"a": [0.5], "v": [[0.5]], "y": [1]})
    assert Encoder(schema, on_bad_row="error").encode(batch)[0, 0] == 1


def test_on_bad_row_must_be_known() -> None:
    with pytest.raises(ParameterError, match=r"^on_bad_row must be one of neutral, error, got 'skip'$"):
        Encoder(Schema("y", (0, 1), (Numeric("a", 0, 1),)), on_bad_row="skip")  # type: ignore[arg-type]
