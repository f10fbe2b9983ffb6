"""Rows in memory: what they may be, and errors that quote none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest

from boltdp.data.schema import Numeric, Schema, array_schema
from boltdp.engines import ArrayEngine, ColumnType, open_source
from boltdp.engines.base import encoded
from boltdp.errors import DataError

SECRET = "Smith-4711"


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("order", ["C", "F"])
def test_features_of_any_number_type_and_layout(dtype: type, order: str) -> None:
    X: npt.NDArray[Any] = np.array([[0, 1], [1, 0], [1, 1]], dtype=dtype, order="C" if order == "C" else "F")
    engine = ArrayEngine.from_numpy(X, np.array([0, 1, 1]))
    rows = np.concatenate(list(encoded(engine, array_schema(dims=2, classes=(0, 1)))))
    np.testing.assert_array_equal(rows, np.column_stack([[0, 1, 1], X]).astype(np.float32))


@pytest.mark.parametrize(
    "y",
    [["no", "yes"], np.array(["no", "yes"], dtype=object), pd.Series(["no", "yes"], dtype="category")],
    ids=["list", "objects", "categories"],
)
def test_labels_of_any_kind(y: npt.ArrayLike) -> None:
    engine = ArrayEngine.from_numpy(np.zeros((2, 1)), y)
    rows = np.concatenate(list(encoded(engine, array_schema(dims=1, classes=("no", "yes")))))
    assert rows[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    "X", [np.zeros(3), np.zeros((0, 2)), np.zeros((2, 0)), np.array([[SECRET]]), np.zeros((2, 2, 2))]
)
def test_features_that_are_no_matrix_of_numbers_are_refused(X: npt.NDArray[np.float64]) -> None:
    with pytest.raises(DataError, match=r"^X must be an array of numbers, rows by features") as caught:
        ArrayEngine.from_numpy(X)
    assert SECRET not in str(caught.value)


def test_labels_must_be_as_many_as_rows() -> None:
    with pytest.raises(
        DataError, match=r"^y must have one label for each of the 3 rows, got an array of shape \(2,\)$"
    ):
        ArrayEngine.from_numpy(np.zeros((3, 1)), [0, 1])


def test_vector_of_another_length_than_declared_is_told() -> None:
    engine = ArrayEngine.from_numpy(np.zeros((3, 2)), [0, 1, 1])
    with pytest.raises(DataError, match=r"^column 'x' must have lists of the declared length 5, its type says 2$"):
        engine.prepare(array_schema(dims=5, classes=(0, 1)), seed=0)


def test_frame_with_a_column_that_arrow_cannot_hold_is_used_without_it() -> None:
    frame = pd.DataFrame({"age": [50.0, 100.0], "mixed": [1, SECRET], "y": [0, 1]})
    engine = open_source(frame)
    assert engine.columns()["mixed"] == ColumnType("other")
    rows = np.concatenate(list(encoded(engine, Schema("y", (0, 1), (Numeric("age", 0, 100),), intercept=False))))
    assert rows.tolist() == [[0, 0], [1, 1]]
    with pytest.raises(DataError) as caught:
        engine.prepare(Schema("y", (0, 1), (Numeric("mixed", 0, 1),)), seed=0)
    assert str(caught.value) == "column 'mixed' must have numbers, its type is 'other'"
    assert caught.value.__context__ is None


def test_numbered_columns_of_a_frame_have_their_numbers_as_names() -> None:
    assert list(ArrayEngine.from_pandas(pd.DataFrame(np.zeros((1, 2)))).columns()) == ["0", "1"]


def test_columns_of_the_same_name_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DataError, match=r"must have different names, got 'a' more than once$"):
        ArrayEngine.from_arrow(table)


def test_object_that_is_no_data_is_told_by_its_type() -> None:
    with pytest.raises(DataError, match=r"got an object of type 'dict'$"):
        open_source({"name": SECRET})


@pytest.mark.parametrize(
    ("arrow", "expected"),
    [
        (pa.float16(), ColumnType("number")),
        (pa.decimal128(5, 2), ColumnType("number")),
        (pa.dictionary(pa.int8(), pa.string()), ColumnType("text")),
        (pa.string_view(), ColumnType("text")),
        (pa.bool_(), ColumnType("bool")),
        (pa.list_(pa.int8()), ColumnType("list")),
        (pa.large_list(pa.float32()), ColumnType("list")),
        (pa.list_(pa.float32(), 3), ColumnType("list", 3)),
        (pa.list_(pa.string()), ColumnType("other")),
        (pa.date32(), ColumnType("other")),
        (pa.null(), ColumnType("untyped")),
    ],
)
def test_kind_is_told_from_the_type_alone(arrow: pa.DataType, expected: ColumnType) -> None:
    assert ColumnType.of(arrow) == expected
