"""Scoring in Spark: the SQL expression gives the class of `predict` on every row, and commands score there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions

from boltdp import Model
from boltdp.encoding.declared_values import Value
from boltdp.engines import open_source
from boltdp.errors import ParameterError
from boltdp.export.spark_scoring import add_predictions
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema, Standardization, Vector
from tests.engines.sources import SCHEMA, table
from tests.export.test_sql import (
    CELLS,
    HOSTILE_NAMES,
    make_adjacent_rows,
    make_adjacent_schema,
    make_clipped_model,
    make_model,
    make_paired_rows,
    make_paired_schema,
    random_floats,
    rows_of_texts,
    standardize_paired,
    texts_schema,
)
from tests.export.test_timestamps import check_sql
from tests.spark.spark_sources import SPARK_COLUMNS

ROWS = 400


def in_spark(spark: Any, model: Model, rows: pa.Table) -> list[Any]:
    frame = add_predictions(model, spark.createDataFrame(rows).coalesce(1))
    return [one["prediction"] for one in frame.select("prediction").collect()]


def assert_same(spark: Any, model: Model, rows: pa.Table) -> None:
    assert in_spark(spark, model, rows) == model.predict(open_source(rows)).tolist()


@pytest.mark.parametrize("classes", [(0, 1), ("it's", 'q"{}\\'), (1.5, -2.0, 3.0)])
def test_spark_predicts_what_the_model_predicts_whatever_names_are(spark: Any, classes: tuple[Any, ...]) -> None:
    generator = np.random.default_rng(3)
    columns = [Numeric(name, -20, 50) for name in HOSTILE_NAMES]
    schema = Schema(Classes("label", classes), (*columns, Categorical("c", ("a'b", 'c"d', "", "e\\f"))))
    texts = np.array(["a'b", 'c"d', "", "e\\f", "not declared", None], dtype=object)
    rows = {name: pa.array(random_floats(generator, ROWS), pa.float64()) for name in HOSTILE_NAMES}
    rows["c"] = pa.array(texts[generator.integers(6, size=ROWS)].tolist(), pa.string())
    assert_same(spark, make_model(schema, seed=1), pa.table(rows))


@pytest.mark.parametrize("count", [3, 12])
@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
def test_pairs_of_columns_are_scored_too(spark: Any, classes: tuple[Any, ...], count: int) -> None:
    schema = make_paired_schema(classes, count)
    assert_same(spark, make_model(schema, seed=3), make_paired_rows(ROWS))
    assert_same(spark, make_model(standardize_paired(schema), seed=4), make_paired_rows(ROWS))


def test_texts_that_are_declared_numbers_are_read_as_predict_reads_them(spark: Any) -> None:
    assert_same(spark, make_model(texts_schema(), seed=2), rows_of_texts())


@pytest.mark.parametrize("centred", [False, True])
def test_adjacent_numbers_of_any_bounds_are_scored_too(spark: Any, centred: bool) -> None:
    for classes in ((0, 1), ("a", "b", "c")):
        assert_same(spark, make_model(make_adjacent_schema(classes, centred=centred)), make_adjacent_rows())


@pytest.mark.parametrize("kind", ["text", "bool", "tiny", "big", "double", "float", "decimal"])
def test_categories_of_all_types_match_as_in_training(spark: Any, kind: str) -> None:
    arrow, cells = CELLS[kind]
    rows = pa.table({"c": pa.array(cells, arrow)})
    declared: list[tuple[Value, ...]] = [(0, 1, 2.5, 0.1, 1000), ("01", "1e3", "nan", "-0", "inf"), (False, True)]
    for categories in [*declared, ("1e300", "1.0", "a")]:
        schema = Schema(
            Classes("label", tuple(range(len(categories) + 1))), (Categorical("c", categories),), clip_norm=1.0
        )
        # Class k + 1 wins where category k is met, and class 0 where none is.
        weights = np.vstack([np.full(schema.dims, 0.5), np.eye(schema.dims)[:-1]])
        weights[:, -1] = [0.1] + [0.0] * len(categories)
        assert_same(spark, make_model(schema, weights=weights), rows)


@pytest.mark.parametrize("many", [False, True])
def test_vectors_curves_and_standardized_numbers_are_scored_too(spark: Any, many: bool) -> None:
    generator = np.random.default_rng(4)
    wide = 120 if many else 3  # more than a plain sum has
    n = 3 + wide
    schema = Schema(
        Classes("label", ("no", "yes")),
        (Numeric("x", -20, 50, curve=(0.0, 10.0)), Vector("v", wide, -4, 4)),
        standardization=Standardization((0.1,) * n, (0.5,) * n, 2.0, 1.0),
    )
    vectors: list[Any] = generator.normal(0, 2, (ROWS, wide)).tolist()
    vectors[5], vectors[6], vectors[7] = None, [1.0], []
    rows = pa.table({"x": pa.array(random_floats(generator, ROWS), pa.float64()), "v": pa.array(vectors)})
    assert_same(spark, make_model(schema), rows)


def test_projections_thresholds_and_probabilities(spark: Any) -> None:
    generator = np.random.default_rng(5)
    columns = tuple(Numeric(f"f{i}", -40, 60) for i in range(6))
    rows = pa.table({column.name: pa.array(random_floats(generator, ROWS), pa.float64()) for column in columns})
    assert_same(
        spark, make_model(Schema(Classes("y", (0, 1, 2)), columns, projection=Projection(dims=3, seed=1))), rows
    )
    model = make_model(Schema(Classes("y", (False, True)), columns, clip_norm=1.1)).with_threshold(0.3)
    assert_same(spark, model, rows)
    frame = spark.createDataFrame(rows).coalesce(1)
    found = [one["chance"] for one in add_predictions(model, frame, probability="chance").select("chance").collect()]
    margins = np.concatenate([*model.score_batches(open_source(rows))])
    np.testing.assert_allclose(found, model.probabilities(margins)[:, 1], rtol=1e-12)
    many = make_model(Schema(Classes("y", ("a", "b", "c")), columns, clip_norm=1.1))
    found = [one["p"] for one in add_predictions(many, frame, probability="p").select("p").collect()]
    margins = np.concatenate([*many.score_batches(open_source(rows))])
    np.testing.assert_allclose(found, many.probabilities(margins), rtol=1e-12)
    for classes in ((False, True), ("a", "b", "c")):
        clipped = make_clipped_model(Schema(Classes("y", classes), columns, clip_norm=1.1))
        found = [one["p"] for one in add_predictions(clipped, frame, probability="p").select("p").collect()]
        expected = clipped.predict_proba(rows)
        np.testing.assert_allclose(found, expected[:, 1] if len(classes) == 2 else expected, rtol=1e-12, atol=1e-15)
    with pytest.raises(ParameterError, match=r"^the new column must have a name of its own, got 'f1', which exists"):
        add_predictions(model, frame, column="f1")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_timestamps_are_scored_whatever_the_zone_of_the_session(spark: Any, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        lines = pa.table({"written": ["2024-01-01\n", "2024-01-01 10:00\r", "2024-01-01 10:00\u2028"]})
        rows = pa.concat_tables([table(), lines], promote_options="default")
        frame = spark.createDataFrame(rows, SPARK_COLUMNS).coalesce(1)

        def run(expressions: Sequence[str]) -> list[tuple[Any, ...]]:
            cells = [functions.expr(expression).alias(f"c{place}") for place, expression in enumerate(expressions)]
            return [tuple(one) for one in frame.select(*cells).collect()]

        check_sql(run, open_source(rows), "spark")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_scores_are_computed_where_the_rows_are_and_come_in_order(spark: Any) -> None:
    frame = spark.createDataFrame(table(), SPARK_COLUMNS).coalesce(3)
    model = make_model(SCHEMA)
    expected = np.concatenate([*model.score_batches(open_source(table()))])
    np.testing.assert_array_equal(np.concatenate([*model.score_batches(open_source(frame))]), expected)
