"""Rows in memory: what they may be, and errors that quote none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest

from boltdp.engines import open_source
from boltdp.engines.base import Engine, encode_rows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import DataError
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, Vector, make_array_schema
from boltdp.schema.source_columns import ColumnType

SECRET = "Smith-4711"


#: What is missing.
GAP = -9.0


def packed(engine: Engine, schema: Schema) -> list[list[float]]:
    rows: list[list[float]] = np.nan_to_num(np.concatenate(list(encode_rows(engine, schema))), nan=GAP).tolist()
    return rows


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("order", ["C", "F"])
def test_features_of_any_number_type_and_layout(dtype: type, order: str) -> None:
    X: npt.NDArray[Any] = np.array([[0, 1], [1, 0], [1, 1]], dtype=dtype, order="C" if order == "C" else "F")
    engine = ArrayEngine.from_numpy(X, np.array([0, 1, 1]))
    rows = np.concatenate(list(encode_rows(engine, make_array_schema(dims=2, classes=(0, 1)))))
    np.testing.assert_array_equal(rows, np.column_stack([[0, 1, 1], X]).astype(np.float32))


@pytest.mark.parametrize(
    "y",
    [["no", "yes"], np.array(["no", "yes"], dtype=object), pd.Series(["no", "yes"], dtype="category")],
    ids=["list", "objects", "categories"],
)
def test_labels_of_any_kind(y: npt.ArrayLike) -> None:
    engine = ArrayEngine.from_numpy(np.zeros((2, 1)), y)
    rows = np.concatenate(list(encode_rows(engine, make_array_schema(dims=1, classes=("no", "yes")))))
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
        engine.prepare(make_array_schema(dims=5, classes=(0, 1)), Context(seed=0))


def test_mixed_column_of_a_frame_becomes_what_the_schema_declares() -> None:
    frame = pd.DataFrame({"mixed": [1, SECRET, "0.5", None], "y": [0, 1, 0, 1]})
    engine = open_source(frame)
    assert engine.columns()["mixed"] == ColumnType("untyped")
    numeric = Schema(Classes("y", (0, 1)), (Numeric("mixed", 0, 1),), intercept=False)
    assert packed(engine, numeric) == [[0, 1], [1, GAP], [0, 0], [1, GAP]]
    categorical = Schema(Classes("y", (0, 1)), (Categorical("mixed", (1, 0.5)),), intercept=False, clip_norm=1.0)
    assert packed(engine, categorical) == [[0, 0], [1, -1], [0, 1], [1, -1]]


def test_frame_of_missing_vectors_is_missing() -> None:
    schema = Schema(Classes("y", (0, 1)), (Vector("v", 2, -1, 1),), intercept=False)
    for cells in (pa.nulls(2), pa.array([[], None]), pa.array([None, None], pa.list_(pa.float64()))):
        assert packed(open_source(pa.table({"v": cells, "y": [0, 1]})), schema) == [[0, GAP, GAP], [1, GAP, GAP]]
    assert packed(open_source(pd.DataFrame({"v": [None, None], "y": [0, 1]})), schema) == [[0, GAP, GAP], [1, GAP, GAP]]


def test_column_of_a_type_that_arrow_does_not_have_is_refused_by_its_type() -> None:
    frame = pd.DataFrame({"age": [1.0, 2.0], "wave": np.array([1j, 2j]), "y": [0, 1]})
    engine = open_source(frame)
    assert engine.columns()["wave"] == ColumnType("other")
    assert len(packed(engine, Schema(Classes("y", (0, 1)), (Numeric("age", 0, 1),)))) == 2
    with pytest.raises(DataError) as caught:
        engine.prepare(Schema(Classes("y", (0, 1)), (Numeric("wave", 0, 1),)), Context(seed=0))
    assert str(caught.value) == "column 'wave' must have numbers, its type is 'other'"
    assert caught.value.__context__ is None


def test_fault_of_another_library_is_told_without_its_words() -> None:
    class Broken:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise ValueError(SECRET)

    with pytest.raises(DataError, match="an object of type 'Broken' failed") as caught:
        open_source(Broken())
    assert caught.value.__context__ is None


def test_number_too_large_for_a_double_is_a_large_number_without_a_warning() -> None:
    X = np.array([["1e400"], ["0.5"]]).astype(np.longdouble)
    assert packed(open_source((X, [0, 1])), make_array_schema(dims=1, classes=(0, 1))) == [[0, 1], [1, 0.5]]


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
        (pa.date32(), ColumnType("date")),
        (pa.timestamp("us", "UTC"), ColumnType("timestamp")),
        (pa.time32("s"), ColumnType("other")),
        (pa.null(), ColumnType("untyped")),
    ],
)
def test_kind_is_told_from_the_type_alone(arrow: pa.DataType, expected: ColumnType) -> None:
    assert ColumnType.from_arrow(arrow) == expected
