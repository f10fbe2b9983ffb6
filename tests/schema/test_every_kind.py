"""Every kind of column in every room: what encodes, scores, describes, checks or makes up rows must know all kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import psycopg
import pyarrow as pa
import pytest

from boltdp.audit.neighbouring_tables import generate_pairs
from boltdp.encoding.encode import Encoder
from boltdp.encoding.plan import RuleVisitor
from boltdp.encoding.timestamp_parts import TimestampPart
from boltdp.engines import open_source
from boltdp.engines.base import check_columns, encode_rows
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.errors import BoltdpError, DataError
from boltdp.export.card import write_markdown
from boltdp.export.effects import compute_effects
from boltdp.export.effects_page import write_effects_page
from boltdp.export.postgres_models import store_model
from boltdp.export.sklearn_estimators import to_sklearn
from boltdp.export.sql import write_probability_expression, write_scoring_expression
from boltdp.export.sql_dialects import DIALECTS
from boltdp.run_context import Context
from boltdp.schema.check import check_source
from boltdp.schema.columns import COLUMN_KINDS, Categorical, Column, Numeric, TimePart, Vector
from boltdp.schema.from_arguments import declare_schema
from boltdp.schema.schema import Classes, Schema
from boltdp.schema.source_columns import ColumnType
from boltdp.workflows.predict import predict
from tests.export.test_sql import make_model


@dataclass(frozen=True)
class Case:
    """A column, cells of its source, and what those who score get of one: features, and numbers for boltdp.predict."""

    column: Column
    arrow: pa.DataType
    postgres: str
    cells: tuple[Any, ...]  #: None is missing
    odd: Any  #: a cell that is not as declared; None if the type has none
    features: Callable[[Any], list[float]]
    inputs: Callable[[Any], list[float]]
    declaration: dict[str, Any]  #: how a call of Python declares it
    cells_of_others: pa.DataType  #: a type of the data that cannot be read

    @property
    def schema(self) -> Schema:
        return Schema(Classes("y", (False, True)), (self.column,))

    @property
    def rows(self) -> pa.Table:
        cells = [*self.cells, None]
        labels = [place % 2 == 0 for place in range(len(cells))]
        return pa.table({self.column.source: pa.array(cells, self.arrow), "y": labels})


def one_hot(*categories: Any) -> Callable[[Any], list[float]]:
    return lambda cell: [float(cell == category) for category in categories]


MOMENTS = tuple(datetime(2024, month, 7, 3 * month % 24) for month in (1, 2, 5, 11))
#: Each part, how many categories it has, and which of them a moment is.
PARTS_OF_MOMENTS: tuple[tuple[TimestampPart, int, Callable[[datetime], int]], ...] = (
    ("hour", 24, lambda moment: moment.hour),
    ("weekday", 7, lambda moment: moment.weekday()),
    ("month", 12, lambda moment: moment.month - 1),
    ("day", 31, lambda moment: moment.day - 1),
)

#: At least one for each kind.
CASES: dict[type[Column], list[Case]] = {
    Numeric: [
        Case(
            Numeric("a", 0, 100, curve=(18, 65)),
            pa.float64(),
            "double precision",
            (0.0, 17.5, 18.0, 40.25, 65.0, 100.0),
            300.0,
            lambda cell: [cell, float(cell >= 18), float(cell >= 65)],
            lambda cell: [cell],
            {"bounds": {"a": (0, 100)}},
            pa.list_(pa.float64()),
        ),
        Case(
            Numeric("a", 0, 100, curve=(18, 65), monotone="decreasing"),
            pa.float64(),
            "double precision",
            (0.0, 17.5, 18.0, 40.25, 65.0, 100.0),
            300.0,
            lambda cell: [cell, float(cell >= 18), float(cell >= 65)],
            lambda cell: [cell],
            {"bounds": {"a": {"bounds": (0, 100), "curve": [18, 65], "monotone": "decreasing"}}},
            pa.list_(pa.float64()),
        ),
        Case(
            Numeric("a", 0, 1),
            pa.bool_(),
            "boolean",
            (False, True),
            None,
            lambda cell: [float(cell)],
            lambda cell: [float(cell)],
            {"bounds": {"a": (0, 1)}},
            pa.list_(pa.float64()),
        ),
    ],
    Categorical: [
        Case(
            Categorical("a", ("F", "M", "it's")),
            pa.string(),
            "text",
            ("F", "M", "it's"),
            "f",
            one_hot("F", "M", "it's"),
            one_hot("F", "M", "it's"),
            {"categories": {"a": ["F", "M", "it's"]}},
            pa.list_(pa.float64()),
        ),
        Case(
            Categorical("a", (3, 5)),
            pa.int64(),
            "bigint",
            (3, 5),
            4,
            one_hot(3, 5),
            one_hot(3, 5),
            {"categories": {"a": [3, 5]}},
            pa.timestamp("us"),
        ),
        Case(
            Categorical("a", ("F", "M", "it's"), reference="M"),
            pa.string(),
            "text",
            ("F", "M", "it's"),
            "m",
            one_hot("F", "it's"),
            one_hot("F", "it's"),
            {"categories": {"a": {"categories": ["F", "M", "it's"], "reference": "M"}}},
            pa.list_(pa.float64()),
        ),
    ],
    TimePart: [
        Case(
            TimePart("a", part),
            pa.timestamp("us"),
            "timestamp",
            MOMENTS,
            None,
            lambda cell, place=place, count=count: one_hot(*range(count))(place(cell)),  # type: ignore[misc]
            lambda cell, place=place, count=count: one_hot(*range(count))(place(cell)),  # type: ignore[misc]
            {"timestamps": {"a": [part]}},
            pa.float64(),
        )
        for part, count, place in PARTS_OF_MOMENTS
    ],
    Vector: [
        Case(
            Vector("a", 3, -1, 1),
            pa.list_(pa.float64()),
            "double precision[]",
            ([0.5, -1.0, 1.0], [0.0, 0.25, -0.75], [1.0, 1.0, 1.0]),
            [0.5],
            lambda cell: cell,
            lambda cell: cell,
            {},
            pa.float64(),
        )
    ],
}
EVERY = [pytest.param(case, id=f"{kind.__name__} {place}") for kind in CASES for place, case in enumerate(CASES[kind])]
every_case = pytest.mark.parametrize("case", EVERY)


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(COLUMN_KINDS)
    assert all(type(case.column) is kind for kind, cases in CASES.items() for case in cases)


def test_a_kind_that_leaves_something_out_cannot_be_defined_or_instantiated() -> None:
    with pytest.raises(TypeError, match="must state 'table'"):
        type("Nothing", (Column,), {})
    stated = {"table": "nothing", "accepts": (), "expected": "nothing", "parsed_as": None}
    with pytest.raises(TypeError, match="abstract"):
        type("Nothing", (Column,), stated)()
    with pytest.raises(TypeError, match="abstract"):
        type("Visitor", (RuleVisitor,), {"number": lambda *_: None})()


def test_a_kind_that_is_not_registered_is_refused() -> None:
    class Other(Numeric):
        pass

    with pytest.raises(BoltdpError, match="columns must be of a known kind"):
        Schema(Classes("y", (0, 1)), (Other("a", 0, 1),))


@every_case
def test_a_schema_file_says_the_same(case: Case) -> None:
    assert Schema.from_toml(case.schema.to_toml()) == case.schema


@every_case
def test_features_are_those_of_the_values(case: Case) -> None:
    (packed,) = encode_rows(open_source(case.rows), case.schema)
    plan = case.schema.encoding
    assert packed.shape == (len(case.rows), 1 + plan.cell_count)
    assert (len(case.column.feature_names), len(case.schema.feature_names)) == (plan.rules[0].feature_count, plan.dims)
    read = plan.read_features(packed)
    middles, factors = plan.scaled_rules[0].original_units
    expected = (np.array([case.features(cell) for cell in case.cells], float) - middles) * factors
    np.testing.assert_allclose(read[:-1, 1:-1], expected, atol=1e-7)
    assert (read[-1, 1:-1] == 0).all()
    assert (np.linalg.norm(read[:, 1:], axis=1) <= 1 + 1e-12).all()
    with pytest.raises(DataError, match="column 'a' must be complete"):
        Encoder(plan, on_bad_row="error").encode(case.rows.to_batches()[0])


@every_case
def test_other_types_are_refused_before_a_row_is_read(case: Case) -> None:
    columns = {"a": ColumnType.from_arrow(case.cells_of_others), "y": ColumnType("bool")}
    with pytest.raises(DataError, match="column 'a' must have"):
        check_columns(case.schema, columns)
    check_columns(case.schema, columns | {"a": ColumnType.from_arrow(case.arrow)})


@every_case
@pytest.mark.parametrize("seed", range(3))
def test_duckdb_predicts_what_the_model_predicts(case: Case, seed: int) -> None:
    model, rows = make_model(case.schema, seed=seed), case.rows
    expected = predict(model, open_source(rows)).tolist()
    for scored in (model, model.with_threshold(0.3)):
        decided = predict(scored, open_source(rows)).tolist()
        with duckdb.connect() as connection:
            connection.register("private", rows)
            found = connection.execute(f"SELECT {write_scoring_expression(scored, 'duckdb')} FROM private").fetchall()
        assert [one for (one,) in found] == decided
    for dialect in DIALECTS:
        assert write_probability_expression(model, dialect)
    features = np.array([case.features(cell) for cell in case.cells], float)
    named = (
        features if case.column.encoding_rule.reads_lists else pd.DataFrame(features, columns=case.column.feature_names)
    )
    assert to_sklearn(model).predict(named).tolist() == expected[:-1]


@every_case
def test_postgres_encodes_and_predicts_as_this_process_does(case: Case, server: Server) -> None:
    model = make_model(case.schema, seed=1)
    rows = case.rows
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS every_kind")
        connection.execute(f"CREATE TABLE every_kind (id int, a {case.postgres}, y bool)".encode())
        for place, row in enumerate(rows.to_pylist()):
            connection.execute("INSERT INTO every_kind VALUES (%s, %s, %s)", [place, row["a"], row["y"]])
        expected = predict(model, open_source(rows)).tolist()
        expression = write_scoring_expression(model, "postgres")
        found = connection.execute(f"SELECT {expression} FROM every_kind ORDER BY id".encode()).fetchall()
        assert [one for (one,) in found] == expected
        store_model(server.uri, "every kind", model, replace=True)
        for cell, prediction in zip(case.cells, expected, strict=False):
            asked = "SELECT boltdp.predict('every kind', %s::float8[])"
            (given,) = connection.execute(asked, [case.inputs(cell)]).fetchone() or ()
            assert given == str(prediction).lower()
    (local,) = encode_rows(open_source(rows), case.schema)
    for where in ("server", "client"):
        with (
            PostgresEngine(server.uri, table="every_kind", where=where) as engine,
            engine.prepare(case.schema, Context(seed=1), permuted=False) as prepared,
        ):
            blocks = np.concatenate([np.array(block) for block in prepared.read_blocks()])
        np.testing.assert_array_equal(_sort(blocks), _sort(local))


@pytest.mark.slow
@every_case
def test_spark_predicts_what_the_model_predicts(case: Case, request: pytest.FixtureRequest) -> None:
    from boltdp.export.spark_scoring import add_predictions

    model, rows = make_model(case.schema, seed=2), case.rows
    frame = request.getfixturevalue("spark").createDataFrame(rows).coalesce(1)
    found = [row["prediction"] for row in add_predictions(model, frame).select("prediction").collect()]
    assert found == predict(model, open_source(rows)).tolist()


@every_case
def test_card_and_page_show_it(case: Case) -> None:
    model = make_model(case.schema)
    assert case.column.describe() in write_markdown(model, {}, None).replace("\\", "")
    (panel,) = compute_effects(model).panels
    (effect,) = panel.effects
    assert (effect.name, effect.importance > 0) == (case.column.name, True)
    assert case.column.name in write_effects_page(model, compute_effects(model), [], top=5)


@every_case
def test_check_counts_what_is_not_as_declared(case: Case) -> None:
    plain = case.rows.slice(0, len(case.cells))
    (label, column) = check_source(open_source(plain), case.schema).columns
    assert (label.role, column.role, column.name) == ("label", case.column.table, case.column.name)
    assert (column.missing, column.wrong_count, column.fault) == (0, 0, None)
    cells = pa.array([*case.cells, case.odd, None], case.arrow)
    rows = pa.table({"a": cells, "y": [place % 2 == 0 for place in range(len(cells))]})
    (_, column) = check_source(open_source(rows), case.schema).columns
    assert column.missing > 0
    assert (column.wrong_count > 0) == (case.odd is not None)


@every_case
def test_a_call_declares_it(case: Case) -> None:
    if not case.declaration:  # lists of numbers have bounds, and the length of their type
        given = {"a": ColumnType("list", length=case.column.encoding_rule.number_count), "y": ColumnType("bool")}
        made, _ = declare_schema(given, Classes, "y", {}, bounds={"a": case.column.encoding_rule.bounds})
    else:
        made, _ = declare_schema(
            {"a": ColumnType.from_arrow(case.arrow), "y": ColumnType("bool")}, Classes, "y", {}, **case.declaration
        )
    (column,) = made.columns
    assert (type(column), column.source) == (type(case.column), "a")
    assert column.encoding_rule.bounds == case.column.encoding_rule.bounds
    assert column.encoding_rule.values == case.column.encoding_rule.values
    assert column.encoding_rule.direction == case.column.encoding_rule.direction


@every_case
def test_the_audit_makes_up_rows_that_can_be_encoded(case: Case) -> None:
    made = generate_pairs(case.schema, 30, seed=1)
    for _, pair in zip(range(40), made, strict=False):
        for table in pair.make_tables(case.schema, 30):
            check_columns(case.schema, open_source(table).columns())
            packed = np.concatenate([*encode_rows(open_source(table), case.schema)])
            assert packed.shape == (30, 1 + case.schema.encoding.cell_count)


def _sort(rows: Any) -> Any:
    return np.array(sorted(rows.tolist(), key=lambda row: [str(cell) for cell in row]), np.float32)
