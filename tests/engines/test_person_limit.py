"""Which rows of a person count, whatever the ids are and however the rows are cut to batches."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.engines import open_source
from boltdp.engines.person_limit import FirstRows
from boltdp.errors import DataError, ParameterError
from boltdp.evaluation.evaluate import evaluate
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.predict import predict
from boltdp.workflows.train import train

SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),), person_id="id", max_rows_per_person=2)


def naive(ids: list[Any], most: int) -> list[bool]:
    """One row after another; what is missing is one person."""
    met: Counter[Any] = Counter()
    counts = []
    for person in ids:
        met[person] += 1
        counts.append(met[person] <= most)
    return counts


@given(
    ids=st.lists(st.sampled_from(["a", "b", "", None, "long id of someone"]), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    most=st.integers(1, 4),
)
def test_the_first_rows_of_each_person_count_however_they_are_cut(
    ids: list[str | None], cuts: list[int], most: int
) -> None:
    first, edges = FirstRows(most), sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    found: list[bool] = []
    for start, stop in pairwise(edges):
        found += first.mark_next_rows(pa.array(ids[start:stop], pa.string())).tolist()
    assert found == naive(ids, most)


DAY = datetime.date(2024, 2, 29)
COLUMNS = {
    "whole numbers": pa.array([7, 8, 7, None, 7, None, None], pa.int64()),
    "numbers": pa.array([0.5, 8.0, 0.5, np.nan, 0.5, None, np.nan], pa.float64()),
    "zeros": pa.array([0.0, 1.0, -0.0, None, 0.0, None, None], pa.float64()),
    "texts": pa.array(["a", "b", "a", None, "a", None, None]),
    "categories": pa.array(["a", "b", "a", None, "a", None, None]).dictionary_encode(),
    "views": pa.array(["a", "b", "a", None, "a", None, None], pa.string_view()),
    "bytes": pa.array([b"a", b"\xff", b"a", None, b"a", None, None], pa.binary()),
    "truths": pa.array([True, False, True, None, True, None, None]),
    "days": pa.array([DAY, DAY + datetime.timedelta(1), DAY, None, DAY, None, None]),
    "moments": pa.array([1, 2, 1, None, 1, None, None], pa.timestamp("ns")),
    "decimals": pa.array([Decimal("1.50"), Decimal("2.00"), Decimal("1.50"), None, Decimal("1.50"), None, None]),
    "nothing": pa.array([None] * 7),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_ids_are_of_any_plain_type(kind: str) -> None:
    ids, first = COLUMNS[kind], FirstRows(2)
    expected = (
        [True, True, False, False, False, False, False] if kind == "nothing" else [*[True] * 4, False, True, False]
    )
    assert [*first.mark_next_rows(ids[:3]).tolist(), *first.mark_next_rows(ids[3:]).tolist()] == expected


def test_ids_of_another_type_are_refused_without_a_value() -> None:
    table = pa.table({"id": [{"name": "Smith-4711"}] * 3, "age": [1, 2, 3], "sick": [0, 1, 0]})
    with pytest.raises(DataError, match="must be a column of ids") as error:
        open_source(table).prepare(SCHEMA, Context())
    assert "Smith" not in str(error.value)
    with pytest.raises(DataError, match="must have ids, its type is 'list'"):
        open_source(pa.table({"id": [[1], [2]], "age": [1, 2], "sick": [0, 1]})).prepare(SCHEMA, Context())


def test_reporting_bad_rows_does_not_go_with_a_unit() -> None:
    table = pa.table({"id": [1, 1, 1], "age": [1, 2, 3], "sick": [0, 1, 0]})
    with pytest.raises(ParameterError, match="on_bad_row must be 'neutral'"):
        open_source(table).prepare(SCHEMA, Context(on_bad_row="error"))


def test_objects_of_pandas_are_ids_too() -> None:
    frame = pd.DataFrame({"id": ["a", 1, "a", None, "a", 1.0, np.nan], "age": [50.0] * 7, "sick": [1] * 7})
    with open_source(frame).prepare(SCHEMA, Context(), permuted=False) as prepared:
        labels = np.concatenate([block[:, 0].copy() for block in prepared.blocks()])
    assert np.isnan(labels).tolist()[:5] == [False, False, False, False, True]


def test_a_model_predicts_and_is_evaluated_without_ids() -> None:
    random = np.random.default_rng(1)
    age = random.integers(0, 100, 5000)
    table = pa.table({"id": age % 97, "age": age, "sick": (age > 50).astype(int)})
    model = train(open_source(table), SCHEMA, Settings(epsilon=1.0))
    assert model.schema.person_id == "id"
    assert model.certificate.person_rows == 2
    rest = table.drop_columns(["id"])
    assert len(predict(model, rest)) == 5000
    assert (evaluate(model, open_source(rest)).accuracy or 0.0) > 0.4


def test_a_projection_and_standardizing_have_the_same_rows() -> None:
    """What does not count is not in the moments either: rows of one person alone are as if there were but a few."""
    from boltdp.schema.schema import Projection

    many = pa.table({"id": ["a"] * 400, "age": [100.0] * 400, "weight": [3.0] * 400, "sick": [1] * 400})
    columns = (Numeric("age", 0, 100), Numeric("weight", 0, 9))
    for projection in (None, Projection(dims=2, seed=1)):
        schema = Schema(Classes("sick", (0, 1)), columns, projection=projection, person_id="id", max_rows_per_person=1)
        asked = Settings(epsilon=None, standardize="private", algorithm="bolton", passes=1)
        standardized = train(open_source(many), schema, asked).schema.standardization
        assert standardized is not None
        assert standardized.centers[0] == pytest.approx(1 / 400, abs=1e-4)


def counting(ids: pa.ChunkedArray | pa.Array, most: int = 1) -> int:
    first = FirstRows(most)
    chunks = ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]
    return int(sum(first.mark_next_rows(chunk).sum() for chunk in chunks))


def test_ids_in_dictionaries_are_those_that_they_stand_for() -> None:
    numbers = [pa.array([0.0, -0.0, np.nan, np.nan]).dictionary_encode()] * 5
    assert counting(pa.chunked_array(numbers)) == 2, "one zero, and all that are missing"
    days = pa.array([2**30], pa.int32()).view(pa.date32()).dictionary_encode()
    assert counting(days) == 1


def test_ids_that_are_no_text_are_told_apart_and_never_quoted() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    assert counting(broken) == 2


def test_ids_of_objects_are_compared_as_they_print() -> None:
    long = [Decimal("12345678901234567890"), Decimal("12345678901234567891")]
    for ids in (long, [UUID(int=1), UUID(int=2)], [b"a", b"b"], [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]):
        rows = pd.DataFrame({"age": [1.0, 2.0], "sick": [0, 1], "id": pd.Series(ids, dtype=object)})
        with open_source(rows) as engine:
            kept = [batch.column(0) for batch in engine.batches([], ["id"])]
        assert len({cell for part in kept for cell in part.to_pylist()}) == 2
        assert None not in kept[0].to_pylist()
