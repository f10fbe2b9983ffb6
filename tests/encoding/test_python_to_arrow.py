"""Untyped columns: whatever pandas or Arrow keeps them in, a cell becomes what it would become alone."""

from __future__ import annotations

import math
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.encoding.python_to_arrow import to_arrow_column, to_float, to_float_list, to_object_array, to_text
from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema


class Ward(str, Enum):
    A = "a"


TEXTS = ["a", "b", "a", "", " 2.5 ", "1_000", "1e3", "nan", "inf", "-0", "İ\0ß", "0x10", None]
ODD = [1, 1.5, True, np.float32(0.1), Decimal("2.50"), b"a", "\ud800", Ward.A, pd.NaT, (1, 2), 10**400]
TEXT_TYPES = ["str", "string[python]", "string[pyarrow]"]
KINDS = {"number": to_float, "list": to_float_list, None: to_text}


def one_by_one(cells: Any, kind: str | None) -> list[Any]:
    made = [KINDS[kind](cell) for cell in cells]
    return [None if isinstance(one, float) and math.isnan(one) else one for one in made]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [*TEXT_TYPES, "category", object])
def test_a_column_of_texts_is_what_each_of_its_cells_is(dtype: Any, kind: str | None) -> None:
    cells = pd.Series(TEXTS, dtype=dtype).array
    assert to_arrow_column(cells, kind).to_pylist() == one_by_one(TEXTS, kind)
    assert to_arrow_column(cells[3:7], kind).to_pylist() == one_by_one(TEXTS[3:7], kind)
    assert to_arrow_column(cells[:0], kind).to_pylist() == []


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA, pd.NaT])
@pytest.mark.parametrize("dtype", [*TEXT_TYPES, "category", object])
def test_a_missing_text_is_missing_however_that_is_said(dtype: Any, missing: Any) -> None:
    cells = pd.Series(["a", missing, "2"], dtype=dtype).array
    assert to_arrow_column(cells, None).to_pylist() == ["a", None, "2"]
    assert to_arrow_column(cells, "number").to_pylist() == [None, None, 2.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_cell_of_another_kind_changes_no_other(odd: Any, kind: str | None) -> None:
    cells = ["a", odd, "2.5", None, pd.NA]
    expected = one_by_one(cells, kind)
    assert to_arrow_column(to_object_array(cells), kind).to_pylist() == expected
    assert to_arrow_column(cells, kind).to_pylist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_categories_of_any_kind_are_what_they_are_alone(kind: str | None) -> None:
    cells = [1, "a", 2.5, "1", None, True, (1, 2), "a", 1]
    found = pd.Categorical(cells)
    assert to_arrow_column(found, kind).to_pylist() == one_by_one(found, kind)
    few = found[:2]  # fewer than there are categories
    assert to_arrow_column(few, kind).to_pylist() == one_by_one(few, kind)
    assert to_arrow_column(few, kind).type == to_arrow_column(found, kind).type


@given(st.lists(st.one_of(st.sampled_from([*TEXTS, *ODD]), st.text(max_size=3), st.floats())))
def test_any_column_is_what_each_of_its_cells_is(cells: list[Any]) -> None:
    for kind in KINDS:
        assert to_arrow_column(to_object_array(cells), kind).to_pylist() == one_by_one(cells, kind)


@pytest.mark.parametrize("dtype", [*TEXT_TYPES, "category", object, pd.ArrowDtype(pa.string())])
def test_all_kinds_of_text_columns_are_encoded_alike(dtype: Any) -> None:
    texts = ["F", None, "M", "other", "1.0", " F"] * 3000  # more than a batch
    schema = Schema(Classes("sick", ("0.5", "F")), (Categorical("sex", ("F", "M", 1)),), intercept=False)
    frame = pd.DataFrame({"sex": pd.Series(texts, dtype=dtype), "sick": pd.Series(texts, dtype=dtype)})
    rows = np.concatenate(list(encode_rows(open_source(frame), schema)))
    plain = np.concatenate(list(encode_rows(open_source(pa.table({"sex": texts, "sick": texts})), schema)))
    np.testing.assert_array_equal(rows, plain)


@pytest.mark.parametrize("dtype", [*TEXT_TYPES, "category", object])
def test_a_column_of_texts_may_be_declared_to_be_numbers(dtype: Any) -> None:
    frame = pd.DataFrame({"age": pd.Series(["75", None, "old", "200", " 5e1 "], dtype=dtype), "y": [0, 1, 0, 1, 0]})
    rows = np.concatenate(
        list(encode_rows(open_source(frame), Schema(Classes("y", (0, 1)), (Numeric("age", 0, 100),))))
    )
    schema = Schema(Classes("y", (0, 1)), (Numeric("age", 0, 100),))
    numbers = pa.table({"age": [75.0, None, None, 200.0, 50.0], "y": [0, 1, 0, 1, 0]})
    alike = np.concatenate(list(encode_rows(open_source(numbers), schema)))
    np.testing.assert_array_equal(rows, alike)
