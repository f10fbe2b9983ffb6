"""Which rows of a person count, whatever the ids are and however the rows are cut to batches."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from boltdp.encoding.python_to_arrow import to_person_key
from boltdp.engines import open_source
from boltdp.engines.person_limit import FirstRows, mark_rows_within_limit
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
        labels = np.concatenate([block[:, 0].copy() for block in prepared.read_blocks()])
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


class Ward(str, Enum):
    A = "a"


NOON, CEST = datetime.datetime(2024, 2, 29, 12), datetime.timezone(datetime.timedelta(hours=2))
EQUAL: dict[str, list[Any]] = {
    "one": [1, 1.0, True, np.True_, np.int8(1), np.float32(1), Decimal("1"), Decimal("1.00"), Fraction(1), "1", "1.0"],
    "zero": [0, 0.0, -0.0, False, Decimal("-0.00"), Decimal("0E+9999"), "0", "-0.0"],
    "a fraction": [0.5, Decimal("0.50"), Fraction(1, 2), np.float16(0.5), "0.5"],
    "a tenth": [0.1, Decimal("0.1"), Decimal("0.10"), Decimal.from_float(0.1)],
    "beyond doubles": [2**63 + 1, Decimal(2**63 + 1), Fraction(2**63 + 1), np.uint64(2**63 + 1), str(2**63 + 1)],
    "a large double": [2.0**70, 2**70, Decimal(2**70), Decimal(2.0**70)],
    "a large exponent": [10**22, 1e22, Decimal("1E+22"), Decimal("10.0E+21")],
    "beyond all": [Decimal("1E+999999"), Decimal("10E+999998")],
    "a text": ["a", b"a", Ward.A, np.str_("a")],
    "bytes": [b"\xff", np.bytes_(b"\xff")],
    "a UUID": [UUID(int=7), str(UUID(int=7))],
    "an instant": [
        NOON.replace(tzinfo=datetime.timezone.utc),
        NOON.replace(hour=14, tzinfo=CEST),
        pd.Timestamp("2024-02-29 12:00Z"),
        pd.Timestamp("2024-02-29 07:00", tz="America/New_York"),
    ],
    "a time": [NOON, pd.Timestamp(NOON)],
}


def mark(ids: list[Any]) -> list[bool]:
    """Whether the row of each id counts, by what a training would read."""
    frame = pd.DataFrame({"age": 1.0, "sick": 0, "id": pd.Series(ids, dtype=object)})
    engine = open_source(frame).slice(0, len(ids))
    return [
        within
        for batch in mark_rows_within_limit(engine.batches_with_persons(["age"], "id"), 1)
        for within in batch.column(1).to_pylist()
    ]


@pytest.mark.parametrize("name", EQUAL)
def test_equal_ids_of_different_types_are_one_person(name: str) -> None:
    assert mark([*EQUAL[name], *EQUAL[name][::-1]]) == [True] + [False] * (2 * len(EQUAL[name]) - 1)
    assert len({to_person_key(cell) for cell in EQUAL[name]}) == 1


def test_persons_of_other_ids_are_others() -> None:
    ids = [cells[0] for cells in EQUAL.values()]
    ids += ["01", "A", -1, 2**63, 2**63 + 2, 1.5, Decimal("1E+999998"), 1e23, UUID(int=8), DAY, "1e5x"]
    assert mark(ids) == [True] * len(ids)


def test_ids_of_one_chunk_as_numbers_and_of_another_as_texts_are_one_person() -> None:
    texts, numbers = [str(i % 50) for i in range(40_000)], [float(i % 50) for i in range(40_000)]
    assert np.flatnonzero(mark([*texts, *numbers])).tolist() == list(range(50))


def test_what_cannot_be_compared_is_one_unknown_person() -> None:
    unknown = [None, math.nan, Decimal("sNaN"), math.inf, object(), (1,), pd.NaT, "\ud800", datetime.timedelta(1)]
    assert mark(unknown) == [True] + [False] * (len(unknown) - 1)


def test_equal_ids_of_sqlite_are_one_person() -> None:
    with sa.create_engine("sqlite://", poolclass=sa.StaticPool).connect() as connection:
        connection.exec_driver_sql("CREATE TABLE visits (age, id)")
        connection.exec_driver_sql(
            "INSERT INTO visits VALUES (1, 1), (2, 1.0), (3, '1'), (4, x'31'), (5, 2), (6, x'ff')"
        )
        connection.commit()
        with open_source(connection.engine, table="visits") as engine:
            batches = mark_rows_within_limit(engine.batches_with_persons(["age"], "id"), 1)
            assert [batch.column(1).to_pylist() for batch in batches] == [[True, False, False, False, True, True]]


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_equal_ids_of_untyped_files_are_one_person(tmp_path: Path, ending: str) -> None:
    first, second = ["7", "8.0", "x", "08"], ["7.0", "8", "x", "8.5"]
    for name, ids in (("a", first), ("b", second)):
        lines = [f'{{"age": 1, "id": {one}}}' for one in ("7", "8.0", '"x"', '"08"') if ids is first]
        lines += [f'{{"age": 1, "id": {one}}}' for one in ('"7.0"', "8", '"x"', "8.5") if ids is second]
        text = "\n".join(lines) if ending == ".jsonl" else "\n".join(["age,id", *(f"1,{one}" for one in ids)])
        (tmp_path / f"{name}{ending}").write_text(f"{text}\n")
    with open_source(tmp_path) as engine:
        batches = mark_rows_within_limit(engine.batches_with_persons(["age"], "id"), 1)
        found = [within for batch in batches for within in batch.column(1).to_pylist()]
    assert found == [*[True] * 4, False, False, False, True]
