"""One row never decides what becomes of the others, nor whether there is an error, whatever it holds."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import boltdp
from boltdp.engines import open_source
from boltdp.engines.base import Engine, encode_rows
from boltdp.errors import ParameterError
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, Vector, make_array_schema
from tests.engines.sources import write_csv

Row = tuple[Any, Any, Any, Any]  # age, kind, scan, label
Packed = npt.NDArray[np.float32]


class Unruly:
    """A cell of a type that nobody expects."""

    def __float__(self) -> float:
        raise RuntimeError("Smith-4711")

    def __len__(self) -> int:
        raise RuntimeError("Smith-4711")

    def __iter__(self) -> Any:
        raise RuntimeError("Smith-4711")


CLASSES = (0, 1, 1e16, "yes")
SCHEMA = Schema(
    Classes("label", CLASSES),
    (Numeric("age", 0, 100), Categorical("kind", (True, False, 2, "a")), Vector("scan", 2, -1, 1)),
)
#: What containers infer types from.
NUMBERS = (True, False, 0, 1, 2, 0.0, -0.0, 1.0, 2.5, 1e16, 10**16, math.nan, math.inf, None)
TEXTS = ("yes", "a", "1", "1.0", "1e+16", "True", "true", "x", "", "-0.0", "12.5", "nan", "\U0001f600")
PLAIN = st.sampled_from((*NUMBERS, *TEXTS))
#: What only objects can be.
ODD = (1j, b"1", 2**70, 10**400, -(2**63), Decimal("1.0"), Decimal("sNaN"), Fraction(1, 2), "\ud800", object, Unruly())
DATES = (pd.NaT, pd.NA, pd.Timestamp("1947-11-25"), datetime.date(1947, 11, 25), np.timedelta64(1, "s"))
SCALARS = (np.float32(0.5), np.int8(1), np.True_, np.longdouble("1e400"), np.array(1.0))
LISTS: tuple[Any, ...] = ([1.0], [0.5, 0.5], [0.5, "x"], [[1], [2]], (0.25, None), {}, {1, 2}, {"a": 1}, range(2))
ARRAYS = (np.zeros(2), np.zeros((2, 2)), np.array(["x", "y"]))
WILD = PLAIN | st.sampled_from((*ODD, *DATES, *SCALARS, *LISTS, *ARRAYS))
#: Rows as they should be, of a single type in each column.
GOOD: dict[str, list[Row]] = {
    "booleans": [(i % 2 == 0, i % 2 == 1, [0.5, -0.5], i % 2 == 0) for i in range(6)],
    "integers": [(20 * i, i % 3, [1, i], i % 2) for i in range(6)],
    "floats": [(17.5 * i, float(i % 3), [0.1 * i, 0.5], [0.0, 1.0, 1e16][i % 3]) for i in range(6)],
    "texts": [(str(9.5 * i), "a", [0.5, 0.1 * i], ["yes", "1", "1e+16"][i % 3]) for i in range(6)],
}


def packed(engine: Engine, schema: Schema = SCHEMA) -> Packed:
    return np.concatenate(list(encode_rows(engine, schema)))


def columns(rows: list[Row]) -> dict[str, list[Any]]:
    return {name: [row[i] for row in rows] for i, name in enumerate(("age", "kind", "scan", "label"))}


def object_series(cells: list[Any]) -> pd.Series:
    series = pd.Series([None] * len(cells), dtype=object)
    for i, cell in enumerate(cells):
        series.array[i] = cell
    return series


def as_object_frame(rows: list[Row]) -> Packed:
    return packed(open_source(pd.DataFrame({name: object_series(cells) for name, cells in columns(rows).items()})))


def as_inferred_frame(rows: list[Row]) -> Packed:
    return packed(open_source(pd.DataFrame(columns(rows))))


def as_lists(rows: list[Row]) -> Packed:
    schema = make_array_schema(dims=2, classes=CLASSES)
    return packed(open_source(([[row[0], row[1]] for row in rows], [row[3] for row in rows])), schema)


def as_object_arrays(rows: list[Row]) -> Packed:
    X, y = np.empty((len(rows), 2), object), np.empty(len(rows), object)
    for i, row in enumerate(rows):
        X[i, 0], X[i, 1], y[i] = row[0], row[1], row[3]
    return packed(open_source((X, y)), make_array_schema(dims=2, classes=CLASSES))


def as_inferred_labels(rows: list[Row]) -> Packed:
    X = np.zeros((len(rows), 1))
    return packed(open_source((X, np.array([row[3] for row in rows]))), make_array_schema(dims=1, classes=CLASSES))


FORMS: dict[str, tuple[Callable[[list[Row]], Packed], Any]] = {
    "frame of objects": (as_object_frame, WILD),
    "lists": (as_lists, WILD),
    "arrays of objects": (as_object_arrays, WILD),
    "inferred frame": (as_inferred_frame, PLAIN),
    "inferred labels": (as_inferred_labels, PLAIN),
}


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_a_row_changes_no_other_and_raises_nothing(form: str, data: st.DataObject) -> None:
    read, cells = FORMS[form]
    rows, place = list(GOOD[data.draw(st.sampled_from(list(GOOD)))]), data.draw(st.integers(0, 5))
    before = read(rows)
    scan = cells if cells is WILD else st.none() | st.lists(st.floats(-1, 1), max_size=3)
    rows[place] = (data.draw(cells), data.draw(cells), data.draw(scan), data.draw(cells))
    np.testing.assert_array_equal(np.delete(read(rows), place, axis=0), np.delete(before, place, axis=0))


@pytest.mark.parametrize("form", ["frame of objects", "lists", "arrays of objects"])
@given(rows=st.lists(st.tuples(WILD, WILD, WILD, WILD), min_size=1, max_size=5))
def test_a_row_alone_is_encoded_as_among_others(form: str, rows: list[Row]) -> None:
    read, _ = FORMS[form]
    np.testing.assert_array_equal(read(rows), np.concatenate([read([row]) for row in rows]))


@settings(max_examples=30)  # each reads several files
@given(rows=st.lists(st.tuples(PLAIN, PLAIN, PLAIN), min_size=1, max_size=5))
def test_a_row_of_a_csv_file_alone_is_encoded_as_among_others(
    rows: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    schema = Schema(Classes("label", CLASSES), SCHEMA.columns[:2])

    def read(some: list[tuple[Any, ...]]) -> Packed:
        write_csv(path, {name: [row[i] for row in some] for i, name in enumerate(("age", "kind", "label"))})
        with open_source(path) as engine:
            return packed(engine, schema)

    np.testing.assert_array_equal(read(rows), np.concatenate([read([row]) for row in rows]))


#: The same declared value in every Arrow type that can carry it.
CARRIERS: dict[Any, list[Any]] = {
    1: [pa.array([1], kind) for kind in (pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64())]
    + [pa.array([True]), pa.array([Decimal("1.00")])]
    + [pa.array([text]) for text in ("1", "1.0", "true", "True", "TRUE")],
    0: [pa.array([0]), pa.array([-0.0]), pa.array([False])] + [pa.array([text]) for text in ("0", "-0.0", "False")],
    1e16: [pa.array([10**16]), pa.array([1e16]), pa.array(["1e+16"]), pa.array(["10000000000000000.0"])],
    0.1: [pa.array([0.1]), pa.array([0.1], pa.float32()), pa.array(["0.1"]), pa.array([Decimal("0.1")])],
}


@pytest.mark.parametrize("declared", CARRIERS)
@pytest.mark.parametrize("form", [lambda value: value, str], ids=["as it is", "as a text"])
def test_a_value_is_matched_whatever_type_carries_it(declared: Any, form: Callable[[Any], Any]) -> None:
    schema = Schema(Classes("label", ("other", form(declared))), (Numeric("age", 0, 1),))
    for cells in CARRIERS[declared]:
        table = pa.table({"age": [0.5], "label": cells})
        assert packed(open_source(table), schema)[0, 0] == 1, cells.type
        objects = pd.DataFrame({"age": [0.5], "label": pd.Series(cells.to_pylist(), dtype=object)})
        if not pa.types.is_float32(cells.type):  # a Python float has forgotten that it was a float32
            assert packed(open_source(objects), schema)[0, 0] == 1, cells.type


def test_one_odd_label_leaves_a_file_of_arrow_texts_and_booleans_alike(tmp_path: Path) -> None:
    schema = Schema(Classes("label", (0, 1)), (Numeric("age", 0, 1),))
    booleans = pa.table({"age": [0.5] * 3, "label": [True, False, True]})
    (tmp_path / "rows.csv").write_text("age,label\n0.5,True\n0.5,False\n0.5,Smith\n")
    with open_source(tmp_path / "rows.csv") as engine:
        np.testing.assert_array_equal(packed(engine, schema)[:2], packed(open_source(booleans), schema)[:2])


def test_a_ragged_row_of_a_list_is_a_missing_row() -> None:
    rows = [[0.1, 0.2], [0.3], [0.5, 0.6], "0.7", [0.7, 0.8]]
    result = packed(open_source((rows, [0, 1, 0, 1, 1])), make_array_schema(dims=2, classes=(0, 1)))
    gaps = [np.nan, np.nan]
    expected = np.array([[0, 0.1, 0.2], [1, *gaps], [0, 0.5, 0.6], [1, *gaps], [1, 0.7, 0.8]], np.float32)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_length_of_rows_in_a_list_is_declared(dims: int) -> None:
    rows = [[0.1, 0.2], [0.3], [0.5, 0.6]]
    result = packed(open_source((rows, [0, 1, 0])), make_array_schema(dims=dims, classes=(0, 1)))
    expected = [
        [label, *(row if len(row) == dims else [np.nan] * dims)] for label, row in zip([0, 1, 0], rows, strict=True)
    ]
    np.testing.assert_array_equal(result, np.array(expected, np.float32))


def test_the_length_of_rows_in_a_list_is_not_read_from_them() -> None:
    rows = ([[0.1, 0.2]] * 10, [0, 1] * 5)
    with pytest.raises(ParameterError, match="must have a length"):
        boltdp.train(rows, epsilon=1, bounds=(-1, 1), classes=[0, 1])
