"""Rows in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sqlalchemy as sa

from boltdp.engines import open_source
from boltdp.schema.schema import make_array_schema
from tests.engines.sources import (
    MIDDLE,
    ROWS,
    SCHEMA,
    Source,
    columns,
    curved,
    longer_table,
    reference,
    register,
    table,
)

#: Of Arrow, in memory.
TEXTS = {"^test_wrong_type_is_told.*sex": "a text in memory is what the schema says that it is"}


@register("numpy", cannot={"^test_wrong_type_is_told": "its only feature column is x"})
def from_numpy(_: pytest.FixtureRequest) -> Iterator[Source]:
    rng = np.random.default_rng(5)
    X, y = rng.normal(0, 0.5, (ROWS, 3)), rng.integers(0, 3, ROWS)
    X[7, 1] = np.nan
    expected = np.column_stack([np.where(y == 2, np.nan, y), np.clip(X, -2, 2) * 0.5])
    schema = make_array_schema(dims=3, classes=(0, 1), clip_norm=2.0)
    yield Source(open_source((X, y)), schema, expected.astype(np.float32))


@register(
    "pandas", cannot={"^test_wrong_type_is_told.*(sex|scan)": "a column of objects is what the schema says that it is"}
)
def from_pandas(_: pytest.FixtureRequest) -> Iterator[Source]:
    yield Source(open_source(pd.DataFrame(columns())), SCHEMA, reference())


@register("arrow", cannot=TEXTS)
def from_arrow(_: pytest.FixtureRequest) -> Iterator[Source]:
    # Chunks of different lengths must not show.
    cut = table()
    yield Source(open_source(pa.concat_tables([cut.slice(0, 10), cut.slice(10)])), SCHEMA, reference())


@register("polars", cannot=TEXTS)
def from_polars(_: pytest.FixtureRequest) -> Iterator[Source]:
    yield Source(open_source(pl.from_arrow(table())), SCHEMA, reference())


@register("sqlalchemy", cannot={"^test_wrong_type_is_told": "a cell of a database is what the schema says that it is"})
def from_sqlalchemy(_: pytest.FixtureRequest) -> Iterator[Source]:
    # One connection, or each would have a database of its own; tests are in other threads.
    bind = sa.create_engine("sqlite://", poolclass=sa.StaticPool, connect_args={"check_same_thread": False})
    kinds: dict[str, Any] = {"sex": sa.Text, "scan": sa.JSON(none_as_null=True), "age": sa.Float, "dose": sa.Float}
    kinds |= {"admitted": sa.DateTime, "seen": sa.DateTime, "born": sa.Date, "written": sa.Text}
    rows = sa.Table("rows", sa.MetaData(), *(sa.Column(name, kinds.get(name, sa.Integer)) for name in columns()))
    with bind.begin() as connection:
        rows.create(connection)
        connection.execute(rows.insert(), table().to_pylist())
    with open_source(bind, query=sa.select(rows).order_by(rows.c.id)) as engine:
        yield Source(engine, SCHEMA, reference())
    bind.dispose()


@register("slice of arrow", buckets=("memory", "few buckets"), cannot=TEXTS)
def from_slice(_: pytest.FixtureRequest) -> Iterator[Source]:
    yield Source(open_source(longer_table()).slice(*MIDDLE), SCHEMA, reference())


@register(
    "pandas curved",
    cannot={"^test_wrong_type_is_told.*(sex|scan)": "a column of objects is what the schema says that it is"},
)
def from_pandas_curved(_: pytest.FixtureRequest) -> Iterator[Source]:
    yield curved(open_source(pd.DataFrame(columns())))


@register("arrow curved", cannot=TEXTS)
def from_arrow_curved(_: pytest.FixtureRequest) -> Iterator[Source]:
    yield curved(open_source(table()))
