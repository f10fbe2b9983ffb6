"""Rows in memory: what they may be, and errors that quote none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
from scipy.sparse import csr_array, random_array

from boltdp.engines import open_source
from boltdp.engines.base import Engine, encode_rows
from boltdp.engines.in_memory import ArrayEngine, _SparseVectors
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.sparse_rows import SparseRows
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, Vector, make_array_schema
from boltdp.schema.source_columns import ColumnType
from boltdp.settings import Settings
from boltdp.workflows.predict import predict, score_batches
from boltdp.workflows.train import train

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


def make_sparse_pair(*, dims: int = 40, rows: int = 900) -> tuple[csr_array, npt.NDArray[np.int64]]:
    """Return rows of few numbers, some of them longer than 1, missing or not finite, and labels, some undeclared."""
    random = np.random.default_rng(0)
    X = random_array((rows, dims), density=0.1, format="csr", rng=random, data_sampler=random.standard_normal)
    X.data[[3, 40, 41, 90]] = np.nan, np.inf, -np.inf, 1e300
    return X, np.where(np.arange(rows) % 50 == 7, 9, X @ random.normal(size=dims) > 0).astype(int)


@pytest.mark.parametrize("algorithm", ["objective", "noisy-gd"])
@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("classes", [(0, 1), (0, 1, 9)], ids=len)
def test_sparse_rows_give_the_bits_of_dense_ones_and_are_never_dense(
    algorithm: str, loss: str, classes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = make_sparse_pair(dims=1100)  # so many that no matrix is summed
    schema = make_array_schema(dims=1100, classes=classes, intercept=True)
    settings = Settings(epsilon=4.0, delta=1e-6, algorithm=algorithm, loss=loss, standardize="none", noise_seed=5)
    dense = train(ArrayEngine.from_pair(X.toarray(), y), schema, settings)
    expected = np.concatenate([*score_batches(dense, ArrayEngine.from_numpy(X.toarray()))])
    monkeypatch.delattr(SparseRows, "read_blocks")
    monkeypatch.delattr(_SparseVectors, "to_dense")
    sparse = train(ArrayEngine.from_pair(X, y), schema, settings)
    assert sparse.weights.tobytes() == dense.weights.tobytes()
    assert sparse.unusable_labels == dense.unusable_labels
    (margins,) = score_batches(sparse, ArrayEngine.from_sparse(X))
    assert margins.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"standardize": "private"},
        {"algorithm": "objective", "standardize": "private", "standardize_moments": "squares"},
        {"algorithm": "bolton"},
        {"algorithm": "objective"},
    ],
    ids=str,
)
def test_sparse_rows_that_something_reads_in_full_give_the_same_bits(options: dict[str, Any]) -> None:
    """Centres, passes of SGD in a random order, and matrices of few features need every number of a row."""
    X, y = make_sparse_pair()
    for low in (-1.0, -0.5):  # a 0 is no cell of 0 where it is not in the middle
        target = Classes("label", (0, 1))
        schema = Schema(target, (Vector("x", 40, low, 1.0),), clip_norm=2.0)
        settings = Settings(epsilon=4.0, seed=3, noise_seed=5, **options)
        dense, sparse = (train(ArrayEngine.from_pair(rows, y), schema, settings) for rows in (X.toarray(), X))
        assert sparse.weights.tobytes() == dense.weights.tobytes()
        np.testing.assert_array_equal(predict(sparse, X), predict(dense, X.toarray()))


def test_bad_cells_of_sparse_rows_are_reported_where_rows_are_not_private() -> None:
    schema, context = make_array_schema(dims=2, classes=(0, 1)), Context(on_bad_row="error")
    for number, label, column in ((np.nan, 1, "x"), (0.5, 2, "label")):
        engine = ArrayEngine.from_pair(csr_array([[0.25, 0.0], [0.0, number]]), [0, label])
        with pytest.raises(DataError, match=f"^column '{column}' must be complete"):
            engine.prepare(schema, context, permuted=False)


def test_a_sparse_column_beside_others_becomes_dense() -> None:
    X = csr_array([[0.25, 0.0], [0.0, 0.5]])
    target, columns = Classes("label", (0, 1)), (Vector("x", 2, -1, 1), Numeric("age", -1, 1))
    engine = ArrayEngine.from_pair(X, [0, 1]).with_column("age", [0.75, 0.0])
    for schema, cells in ((Schema(target, columns), 3), (Schema(target, columns[:1]), 2)):
        with engine.prepare(schema, Context(), permuted=False) as prepared:
            (block,) = prepared.read_blocks()
        assert prepared.cells == cells
        assert sorted(block[0].tolist()) == [0.0, 0.0, 0.25, 0.75][: 1 + cells]


@pytest.mark.parametrize("place", [-1, 3, 2**40])
def test_sparse_matrices_with_places_outside_are_refused(place: int) -> None:
    X = csr_array(np.eye(3))
    X.indices = np.array([0, place, 2])
    with pytest.raises(DataError, match=r"^X must be a sparse array whose indices are those of its rows and columns$"):
        ArrayEngine.from_sparse(X)


def test_prepared_sparse_rows_are_for_sums_only() -> None:
    X, y = make_sparse_pair()
    with ArrayEngine.from_pair(X, y).prepare(
        make_array_schema(dims=40, classes=(0, 1)), Context(), permuted=False
    ) as rows:
        for use in (lambda: rows.reshuffle(1), lambda: rows.run_sampled_batches([], []), lambda: rows.slice(0, 1)):
            with pytest.raises(ParameterError, match="must be prepared in a permuted order"):
                use()
