"""Models of numbers elsewhere: SQL, PostgreSQL, Spark and scikit-learn predict what `predict` does, on 50,000 rows."""

from __future__ import annotations

import io
from typing import Any

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from pyarrow import csv

from boltdp._array_types import Doubles
from boltdp.engines import open_source
from boltdp.engines.postgres.local_server import Server
from boltdp.export.effects import compute_effects
from boltdp.export.postgres_models import store_model
from boltdp.export.sklearn_estimators import to_sklearn
from boltdp.export.spark_scoring import add_predictions
from boltdp.export.sql import write_scoring_expression
from boltdp.model import Model
from boltdp.schema.schema import Categorical, Number, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.predict import predict
from boltdp.workflows.train import train

ROWS = 50_000
SEXES = ("f", "m")
SCHEMA = Schema(
    Number("cost", 0, 4000), (Numeric("age", 0, 100), Numeric("visits", 0, 20, curve=(2, 9)), Categorical("sex", SEXES))
)
LOSSES = {
    "robust": Settings(epsilon=1.0, noise_seed=1, curves=0),
    "quantile": Settings(epsilon=1.0, noise_seed=1, curves=0, loss="quantile", loss_parameter=0.9),
    "mean": Settings(epsilon=1.0, noise_seed=1, curves=0, loss="mean"),
}


def make_rows(*, missing: bool) -> pa.Table:
    rng = np.random.default_rng(8)
    age, visits, sex = rng.uniform(-5, 105, ROWS), rng.integers(0, 25, ROWS).astype(float), rng.integers(0, 2, ROWS)
    cost = 40.0 * visits + 8.0 * age + 100.0 * sex + 80.0 * rng.standard_normal(ROWS)
    gone = (rng.random((3, ROWS)) < 0.02) & missing
    return pa.table(
        {
            "age": pa.array(age, mask=gone[0]),
            "visits": pa.array(visits, mask=gone[1]),
            "sex": pa.array([SEXES[one] for one in sex], mask=gone[2]),
            "cost": cost,
        }
    )


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return make_rows(missing=True)


@pytest.fixture(scope="module", params=LOSSES)
def model(request: pytest.FixtureRequest, rows: pa.Table) -> Model:
    with open_source(rows) as engine:
        return train(engine, SCHEMA, LOSSES[request.param])


def assert_same(found: Any, expected: Doubles) -> None:
    """In the units of the target, of which there are 4,000."""
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=0, atol=1e-6)


def test_duckdb_predicts_the_same(model: Model, rows: pa.Table) -> None:
    expected = predict(model, rows)
    assert expected.std() > 50
    found = duckdb.sql(f"SELECT {write_scoring_expression(model, 'duckdb')} AS p FROM rows")
    assert found is not None
    assert_same(found.fetchnumpy()["p"], expected)


def test_postgresql_predicts_the_same(model: Model, rows: pa.Table, server: Server) -> None:
    loss = model.certificate.problem.loss.name
    store_model(server.uri, f"cost {loss}", model, replace=True)
    text = io.BytesIO()
    csv.write_csv(rows, text)
    inputs = "ARRAY[age, visits, (sex = 'f')::int, (sex = 'm')::int]::float8[]"
    with psycopg.connect(server.uri) as connection:
        connection.execute("CREATE TEMPORARY TABLE bills (n serial, age float8, visits float8, sex text, cost float8)")
        copying = "COPY bills (age, visits, sex, cost) FROM STDIN (FORMAT csv, HEADER)"
        with connection.cursor() as cursor, cursor.copy(copying) as copy:
            copy.write(text.getvalue())
        expression = write_scoring_expression(model, "postgres")
        found = connection.execute(f"SELECT {expression} FROM bills ORDER BY n").fetchall()
        assert_same([one for (one,) in found], predict(model, rows))
        complete = rows.filter(pa.compute.is_valid(rows["sex"]))
        where = "FROM bills WHERE sex IS NOT NULL ORDER BY n"
        found = connection.execute(f"SELECT boltdp.predict_number('cost {loss}', {inputs}) {where}").fetchall()
        assert_same([one for (one,) in found], predict(model, complete))
        (as_text,) = connection.execute(f"SELECT boltdp.predict('cost {loss}', {inputs}) {where} LIMIT 1").fetchall()
        assert float(as_text[0]) == found[0][0]
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="gives no probabilities"):
            connection.execute(f"SELECT boltdp.predict_proba('cost {loss}', {inputs}) {where} LIMIT 1")


def test_scikit_learn_predicts_the_same_within_the_bounds(model: Model) -> None:
    """Rows longer than the clip norm are not shortened there, so that only short ones are compared."""
    rows = make_rows(missing=False)
    age, visits = (np.clip(rows[name].to_numpy(), 0, high) for name, high in (("age", 100), ("visits", 20)))
    sexes = np.array(rows["sex"].to_pylist())
    features = np.column_stack([age, visits, visits >= 2, visits >= 9, sexes == "f", sexes == "m"])
    margins = model.margins(np.concatenate([*_encode(model, rows)]))[:, 0]
    wanted = to_sklearn(model)
    linear = features @ wanted.coef_ + wanted.intercept_
    short = np.abs(linear - margins) < 1e-5  # cells are rounded to float32
    assert short.mean() > 0.2
    found = wanted.predict(_name(features, wanted))[short]
    np.testing.assert_allclose(found, predict(model, rows)[short], rtol=0, atol=0.05)


def _encode(model: Model, rows: pa.Table) -> Any:
    from boltdp.engines.base import encode_rows

    with open_source(rows) as engine:
        yield from encode_rows(engine, model.schema)


def _name(features: Doubles, wanted: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(features, columns=wanted.feature_names_in_)


def test_spark_predicts_the_same(model: Model, rows: pa.Table, spark: Any) -> None:
    few = rows.slice(0, 5_000)
    cells = [few[name].to_pylist() for name in ("age", "visits", "sex")]
    frame = spark.createDataFrame([*zip(*cells, strict=True)], "age double, visits double, sex string")
    found = [row["prediction"] for row in add_predictions(model, frame).collect()]
    assert_same(found, predict(model, few))


def test_effects_are_in_the_units_of_the_target(model: Model) -> None:
    (panel,) = compute_effects(model).panels
    age = next(effect for effect in panel.effects if effect.name == "age")
    loss = model.certificate.problem.loss
    if loss.max_abs_label:
        # 8 per year; rows beyond the clip norm show less.
        assert 300 < age.difference < 2_000
        assert panel.constant is not None
        assert 0 < panel.constant < 4000
    assert "change of 'cost'" in compute_effects(model).unit or loss.name == "mean"
