"""Rows that count differently: a weight from 0 to a declared largest one multiplies the loss of its row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from boltdp._array_types import Doubles
from boltdp.audit import audit
from boltdp.engines import open_source
from boltdp.errors import DataError, ParameterError
from boltdp.evaluation.evaluate import evaluate
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Projection, Schema, Target
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.predict import predict
from boltdp.workflows.train import train

if TYPE_CHECKING:
    from boltdp.engines.postgres.local_server import Server

COLUMNS = (Numeric("a", -1, 1), Numeric("b", -1, 1), Categorical("sex", ("f", "m")))
TARGETS: dict[str, Target] = {
    "classes": Classes("ill", (0, 1)),
    "three": Classes("stage", (0, 1, 2)),
    "number": Number("cost", 0, 10, typical=(3, 7)),
}
ALGORITHMS = {
    "objective": Settings(epsilon=1.0, noise_seed=1, algorithm="objective"),
    "bolton": Settings(epsilon=1.0, noise_seed=1, seed=2, algorithm="bolton", passes=2),
    "one row at a time": Settings(epsilon=1.0, noise_seed=1, seed=2, algorithm="bolton", passes=2, batch_size=1),
    "noisy-gd": Settings(epsilon=1.0, delta=1e-6, noise_seed=1, algorithm="noisy-gd"),
}


def make_schema(target: Target) -> Schema:
    return Schema(target, COLUMNS, weight=Numeric("exposure", 0, 4))


def make_table(count: int = 900) -> pa.Table:
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, (count, 2))
    cost = 5.0 + 2.0 * x[:, 0] + 0.5 * rng.standard_normal(count)
    return pa.table(
        {
            "a": x[:, 0],
            "b": x[:, 1],
            "sex": rng.choice(["f", "m"], count),
            "exposure": rng.choice([0.0, 1.0, 2.0, 4.0], count),
            "cost": cost,
            "ill": (cost > 5).astype(int),
            "stage": np.digitize(cost, [4.0, 6.0]),
        }
    )


def weights_of(source: Any, schema: Schema, settings: Settings, **options: Any) -> Doubles:
    with open_source(source, **options) as engine:
        return train(engine, schema, settings).weights


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_weight_is_as_good_as_repeated_rows(target: Target) -> None:
    table = make_table()
    noiseless = Settings(epsilon=None, algorithm="objective", regularization=0.01)
    weighted = weights_of(table, make_schema(target), noiseless)
    repeated = table.take(np.repeat(np.arange(table.num_rows), table["exposure"].to_numpy().astype(int)))
    # Four rows of weight 1 are one of weight 4, so that the penalty is the same with this Lambda.
    strength = replace(noiseless, regularization=0.01 * 4 * table.num_rows / repeated.num_rows)
    plain = weights_of(repeated, replace(make_schema(target), weight=None), strength)
    np.testing.assert_allclose(weighted, plain, atol=1e-5)
    assert np.abs(weights_of(table, replace(make_schema(target), weight=None), noiseless) - weighted).max() > 1e-3


@pytest.mark.parametrize("settings", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_rows_without_weight_are_ignored(target: Target, settings: Settings) -> None:
    table, schema = make_table(), make_schema(target)
    first = weights_of(table, schema, settings)
    exposure = table["exposure"].to_numpy()
    flipped = table.set_column(0, "a", pa.array(np.where(exposure == 0, 1.0, table["a"].to_numpy())))
    missing = flipped.set_column(3, "exposure", pa.array([None if one == 0 else one for one in exposure]))
    if settings.algorithm != "objective":  # whose sample of the rows, a start, depends on their bytes
        assert np.array_equal(first, weights_of(flipped, schema, settings))
    np.testing.assert_allclose(weights_of(flipped, schema, settings), first, atol=1e-4)
    np.testing.assert_allclose(weights_of(missing, schema, settings), first, atol=1e-4)


@pytest.mark.parametrize("settings", ALGORITHMS.values(), ids=ALGORITHMS)
def test_engines_give_the_same_bits(settings: Settings, tmp_path: Path, server: Server) -> None:
    import psycopg

    table, schema = make_table(), make_schema(TARGETS["number"])
    csv.write_csv(table, tmp_path / "rows.csv")
    parquet.write_table(table, tmp_path / "rows.parquet")
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS weighed")
        connection.execute(
            "CREATE TABLE weighed (a float8, b float8, sex text, exposure float8, cost float8, ill int, stage int)"
        )
        with connection.cursor() as cursor, cursor.copy("COPY weighed FROM STDIN") as copy:
            for row in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
                copy.write_row(row)
    here = weights_of(table, schema, settings)
    for source in (tmp_path / "rows.csv", tmp_path / "rows.parquet"):
        assert np.array_equal(weights_of(source, schema, settings), here)
    assert np.array_equal(weights_of(server.uri, schema, replace(settings), table="weighed"), here)


def test_predictions_need_no_weight() -> None:
    table, schema = make_table(), make_schema(TARGETS["number"])
    with open_source(table) as engine:
        model = train(engine, schema, ALGORITHMS["objective"])
    assert np.array_equal(predict(model, table), predict(model, table.drop_columns(["exposure", "cost"])))


def test_evaluations_need_no_weight() -> None:
    table, schema = make_table(), make_schema(TARGETS["number"])
    with open_source(table) as engine:
        model = train(engine, schema, ALGORITHMS["objective"])
        whole = evaluate(model, engine)
    with open_source(table.drop_columns(["exposure"])) as engine:
        assert evaluate(model, engine).to_dict() == whole.to_dict()


def test_an_audit_changes_weights_too() -> None:
    settings = Settings(epsilon=1.0, algorithm="objective")
    plan = make_plan(make_schema(TARGETS["number"]), 60, settings)
    assert not audit(plan.schema, plan.certificate, trials=100).broken


def test_a_weight_is_declared_in_a_file() -> None:
    schema = make_schema(TARGETS["classes"])
    assert Schema.from_toml(schema.to_toml()) == schema
    assert schema.to_dict()["weight"] == {"column": "exposure", "bounds": [0.0, 4.0]}
    assert schema.dims == replace(schema, weight=None).dims


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"weight": Numeric("a", 0, 1)}, "the weight must be a column of its own, got 'a'"),
        ({"weight": Numeric("ill", 0, 1)}, "the weight must be a column of its own, got 'ill'"),
        ({"weight": Numeric("exposure", 1, 2)}, "the bounds of the weight must be 0 and the largest weight, got 1"),
        ({"projection": Projection(2, 1)}, "a schema with a weight must have no projection"),
    ],
)
def test_what_a_weight_must_not_be(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ParameterError, match=fault):
        replace(make_schema(TARGETS["classes"]), **changes)


@pytest.mark.parametrize("declared", [{"column": "w"}, {"column": "w", "bounds": [0]}, {"column": "w", "bounds": 3}])
def test_a_weight_needs_a_column_and_bounds(declared: dict[str, Any]) -> None:
    whole = {**make_schema(TARGETS["classes"]).to_dict(), "weight": declared}
    with pytest.raises(ParameterError, match="weight"):
        Schema.from_dict(whole)


def test_a_missing_column_of_weights_is_an_error_before_a_row_is_read() -> None:
    with pytest.raises(DataError, match="the data must have the column 'exposure'"):
        weights_of(make_table().drop_columns(["exposure"]), make_schema(TARGETS["classes"]), ALGORITHMS["bolton"])
