"""Timestamps in what a model is exported to: SQL gives what `predict` gives on every row, and effects have parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

from boltdp import Model
from boltdp.encoding.timestamp_parts import PARTS
from boltdp.engines import open_source
from boltdp.engines.base import Engine, encode_rows
from boltdp.export.effects import compute_effects
from boltdp.export.sql import (
    MAX_TERMS,
    _write_part_code,
    _write_row,
    write_probability_expression,
    write_scoring_expression,
)
from boltdp.export.sql_dialects import DIALECTS
from boltdp.schema.schema import Classes, Numeric, Schema, Standardization, TimePart
from tests.engines.sources import table
from tests.export.test_sql import make_model

#: All parts of all columns but the hour of a date.
COLUMNS = tuple(
    TimePart(column, part)
    for column in ("admitted", "seen", "born", "written")
    for part in PARTS
    if (column, part) != ("born", "hour")
)
#: What SQL expressions give for each of the rows, in order.
Run = Callable[[Sequence[str]], list[tuple[Any, ...]]]


def models(columns: tuple[TimePart, ...] = COLUMNS) -> Iterator[Model]:
    """Two classes as a sum and, with many numbers, as an array; three classes; centred; with a threshold."""
    plain = Schema(Classes("sick", (0, 1)), (Numeric("visits", 0, 9), *columns))
    n = plain.encoded_dims - 1
    centred = Standardization(tuple(np.linspace(0, 0.9, n).tolist()), (0.3,) * n, clip_norm=1.5)
    yield make_model(plain, seed=1)
    yield make_model(
        replace(plain, target=Classes(plain.label, ("no", "yes", "maybe")), standardization=centred), seed=2
    )
    yield make_model(replace(plain, standardization=centred), seed=3).with_threshold(0.4)


def check_sql(run: Run, engine: Engine, dialect: str, columns: tuple[TimePart, ...] = COLUMNS) -> None:
    """SQL must find the codes of the encoder, and give the class and the probability of the model."""
    packed = np.vstack([*encode_rows(engine, Schema(Classes("sick", (0, 1)), columns), label=False)])
    of_two, of_three, decided = models(columns)
    expressions = [_write_part_code(column.encoding_rule, DIALECTS[dialect]) for column in columns]
    expressions += [write_scoring_expression(model, dialect) for model in (of_two, of_three, decided)]
    found = [*zip(*run([*expressions, write_probability_expression(decided, dialect)]), strict=True)]
    for place, column in enumerate(columns):
        codes = [-1 if code is None else code for code in found[place]]
        assert codes == packed[:, 1 + place].tolist(), column
    for model, classes in zip((of_two, of_three, decided), found[-4:-1], strict=True):
        assert list(classes) == model.predict(engine).tolist()
    margins = np.concatenate([*decided.score_batches(engine)])
    shares = [float(share) for share in found[-1]]
    np.testing.assert_allclose(shares, decided.probabilities(margins)[:, 1], rtol=1e-11)


def running(connection: duckdb.DuckDBPyConnection, rows: str) -> Run:
    return lambda expressions: connection.execute(f"SELECT {', '.join(expressions)} FROM {rows}").fetchall()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_sql_gives_what_predict_gives_whatever_the_zone_of_the_session(zone: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"SET TimeZone = '{zone}'")
        connection.register("given", table())
        connection.execute("CREATE TABLE rows AS SELECT * FROM given")
        check_sql(running(connection, "rows"), open_source(table()), "duckdb")


@pytest.mark.parametrize("kind", ["TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP", "TIMESTAMPTZ", "DATE"])
def test_timestamps_of_every_type_are_scored_as_they_are_read(kind: str) -> None:
    cells = ["2024-02-29 23:59:59.999", "1969-12-31 23:59:59.5", "1970-01-01 00:00:00", None, "infinity", "-infinity"]
    if kind != "TIMESTAMP_NS":
        cells += ["0001-01-01 00:00:00", "9999-12-31 23:59:59", "10000-01-01 00:00:00", "0001-12-31 (BC) 00:00:00"]
    columns = tuple(TimePart("a moment", part) for part in PARTS if (kind, part) != ("DATE", "hour"))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'Asia/Kolkata'")
        connection.execute(f'CREATE TABLE rows (id int, "a moment" {kind}, visits int)')
        for place, cell in enumerate(cells):
            zone = "" if cell is None or "inf" in cell or kind != "TIMESTAMPTZ" else "+00"
            value = None if cell is None else cell + zone
            connection.execute(f"INSERT INTO rows VALUES (?, CAST(? AS {kind}), 3)", [place, value])
        rows = connection.sql("SELECT * FROM rows ORDER BY id")
        check_sql(running(connection, "(SELECT * FROM rows ORDER BY id)"), open_source(rows), "duckdb", columns)


@pytest.mark.parametrize("name", ["moment", "part", "x", "margin", "a.b", 'q"{0}', "'; --"])
def test_names_that_the_sql_itself_binds_are_columns_too(name: str) -> None:
    rows = table().select(["admitted", "visits"]).rename_columns([name, "visits"])
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        columns = tuple(TimePart(name, part) for part in PARTS)
        check_sql(running(connection, "rows"), open_source(rows), "duckdb", columns)


def test_the_row_in_sql_has_the_bits_of_the_encoder() -> None:
    for model in models():
        (cells,) = encode_rows(open_source(table()), model.schema, label=False)
        read = model.scoring[0].feature_map
        assert read is not None
        with duckdb.connect() as connection:
            connection.register("rows", table())
            found = running(connection, "rows")([_write_row(model.schema.encoding, DIALECTS["duckdb"])])
        np.testing.assert_array_equal(np.array([row for (row,) in found]), read.compute_features(cells)[:, 1:])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_part_is_found_once_for_all_its_categories(dialect: str) -> None:
    model = next(models())
    assert model.schema.dims > MAX_TERMS
    expression = write_scoring_expression(model, dialect)
    assert "\n+ " in expression  # a sum that a reader can follow
    assert expression.count("[13579][26]") == 2 * len(COLUMNS)
    assert len(expression) < 40_000


def test_effects_are_those_of_each_part() -> None:
    (panel,) = compute_effects(next(models())).panels
    hours = next(one for one in panel.effects if one.name == "admitted.hour")
    assert hours.kind == "categories"
    assert hours.labels == tuple(map(str, range(24)))
    assert {one.name for one in panel.effects} == {"visits", *(column.name for column in COLUMNS)}


def test_scikit_learn_takes_the_parts_by_name() -> None:
    columns = tuple(TimePart("admitted", part) for part in PARTS)
    model = make_model(Schema(Classes("sick", (0, 1)), columns), seed=4)
    (cells,) = encode_rows(open_source(table()), model.schema, label=False)
    estimator = model.to_sklearn()
    assert list(estimator.feature_names_in_[:2]) == ["admitted.hour=0", "admitted.hour=1"]
    hot = [cells[:, [place]] == np.arange(len(column.encoding_rule.values)) for place, column in enumerate(columns, 1)]
    frame = pd.DataFrame(np.hstack(hot).astype(float), columns=estimator.feature_names_in_)
    assert estimator.predict(frame).tolist() == model.predict(open_source(table())).tolist()


def test_a_model_is_the_same_before_and_after_the_disk(tmp_path: Any) -> None:
    model = next(models())
    model.save(tmp_path / "model.json")
    loaded = Model.load(tmp_path / "model.json")
    assert loaded.schema == model.schema
    assert loaded.predict(open_source(table())).tolist() == model.predict(open_source(table())).tolist()
