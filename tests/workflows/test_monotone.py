"""Monotone columns: what projects released weights, how rows are scored by them, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from boltdp._array_types import Doubles
from boltdp.encoding.monotone import _spread_rows, make_monotone
from boltdp.engines.base import encode_rows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.errors import ParameterError
from boltdp.export.effects import compute_effects
from boltdp.export.postgres_models import store_model
from boltdp.export.sql import write_probability_expression, write_scoring_expression
from boltdp.model import Model
from boltdp.privacy.certificate import CertificateError
from boltdp.schema.columns import Categorical, Monotone, Numeric
from boltdp.schema.schema import Projection, Schema, Standardization
from boltdp.schema.target import Classes, Number, Target
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune
from tests.export.test_sql import make_model

ROWS = 1_500
CLASSES = Classes("sick", (0, 1))
PLACES = (10.0, 20.0, 35.0, 50.0, 60.0, 80.0)
COLUMNS = (
    Numeric("age", 0, 100, curve=PLACES, monotone="increasing"),
    Numeric("dose", -3, 3, monotone="decreasing"),
    Numeric("pulse", 40, 180, curve=(80,)),
    Categorical("sex", ("F", "M")),
)
SCHEMA = Schema(CLASSES, COLUMNS)
NUMBER = replace(SCHEMA, target=Number("sick", -2, 3, typical=(0, 1)))
FINE = np.linspace(-20, 120, 3_001)


def make_table(rows: int = ROWS, seed: int = 5) -> pa.Table:
    random = np.random.default_rng(seed)
    age, dose = random.uniform(0, 100, rows), random.normal(0, 1.5, rows)
    odds = np.where(age > 35, 1.5, -1.0) + np.where(age > 70, 1.0, 0.0) - 0.2 * dose
    sick = random.uniform(size=rows) < 1.0 / (1.0 + np.exp(-odds))
    cells = {"age": age, "dose": dose, "pulse": random.normal(80, 20, rows), "sex": random.choice(["F", "M"], rows)}
    return pa.table({**cells, "sick": sick.astype(int)})


def fit(schema: Schema = SCHEMA, rows: int = ROWS, **changes: Any) -> Model:
    asked = Settings(**{"epsilon": 0.5, "noise_seed": 3, "seed": 3, "label_check": 0.0, **changes})
    return train(ArrayEngine.from_arrow(make_table(rows)), schema, asked)


def without(schema: Schema) -> Schema:
    columns = [replace(one, monotone=None) if isinstance(one, Numeric) else one for one in schema.columns]
    return replace(schema, columns=tuple(columns))


def vary(column: str, values: Sequence[float] | Doubles, **others: Any) -> pa.Table:
    """Rows that are alike but for one column."""
    cells: dict[str, Any] = {"age": 44.0, "dose": 0.1, "pulse": 77.0, "sex": "F", **others}
    return pa.table({name: values if name == column else [cell] * len(values) for name, cell in cells.items()})


def score(model: Model, table: pa.Table) -> Doubles:
    (cells,) = encode_rows(ArrayEngine.from_arrow(table), model.schema, label=False)
    return model.margins(cells)[:, 0]


def assert_monotone(model: Model) -> None:
    """Check scores along each monotone column, in rows that are long and short."""
    for others in ({}, {"pulse": 180.0, "sex": "M"}, {"pulse": None, "sex": None}, {"dose": 3.0}, {"age": 0.0}):
        assert (np.diff(score(model, vary("age", FINE, **others))) >= 0).all()
        assert (np.diff(score(model, vary("dose", FINE / 20.0, **others))) <= 0).all()


def standardize(schema: Schema, random: np.random.Generator) -> Schema:
    """Return the schema with centres and a clip norm with which many rows are long."""
    rules = schema.encoding.rules
    centers = np.concatenate([rule.expected_means for rule in rules])
    moved = tuple((centers * random.uniform(0.8, 1.0, len(centers))).tolist())
    scales = tuple(random.uniform(0.5, 2, len(centers)).tolist())
    return replace(schema, standardization=Standardization(moved, scales, clip_norm=0.7, intercept=0.4))


# ---- the projection -------------------------------------------------------------------------------------------------

weights_of_curves = st.lists(st.floats(-10, 10).map(lambda one: round(one, 6)), min_size=8, max_size=8).map(np.array)


def make_curve(direction: Monotone = "increasing", *, standardized: bool = False) -> Schema:
    schema = Schema(CLASSES, (replace(COLUMNS[0], monotone=direction),))
    return standardize(schema, np.random.default_rng(1)) if standardized else schema


@given(weights_of_curves, st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_projection_is_the_nearest_monotone_curve(weights: Doubles, standardized: bool) -> None:
    schema = make_curve(standardized=standardized)
    plan = schema.encoding
    deviations = _spread_rows(plan.scaled_rules[0])
    found = make_monotone(plan, weights)
    if (weights[:-1] >= 0).all():
        np.testing.assert_array_equal(found, weights)
    _, distance = nnls(deviations, deviations @ weights[:-1])
    size = float(np.linalg.norm(deviations @ weights[:-1]))
    assert np.linalg.norm(deviations @ (found - weights)[:-1]) == pytest.approx(distance, rel=1e-9, abs=1e-12 * size)
    assert (found[:-1] >= 0).all()
    np.testing.assert_array_equal(make_monotone(plan, found), found)
    # No monotone curve is farther away than before.
    truth = np.abs(np.sin(np.arange(7.0)))
    farther = [np.linalg.norm(deviations @ (one[:-1] - truth)) for one in (weights, found)]
    assert farther[1] <= farther[0] + 1e-12 * size
    mirrored = make_monotone(make_curve("decreasing", standardized=standardized).encoding, -weights)
    np.testing.assert_array_equal(mirrored, -found)


@given(weights_of_curves, st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_mean_stays(weights: Doubles, standardized: bool) -> None:
    plan = make_curve(standardized=standardized).encoding
    (scaled,) = plan.scaled_rules
    means = scaled.centers if standardized else scaled.rule.expected_means
    features = np.append((means - scaled.centers) * scaled.factors, plan.constant or 0.0)
    assert features @ make_monotone(plan, weights) == pytest.approx(features @ weights, abs=1e-9)


def test_a_line_that_falls_becomes_steps() -> None:
    schema = Schema(CLASSES, (Numeric("age", 0, 100, curve=(50,), monotone="increasing"),))
    line, step, _ = make_monotone(schema.encoding, np.array([-0.1, 10.0, 0.0]))
    assert line == 0
    assert 0 < step < 10
    straight = Schema(CLASSES, (Numeric("age", 0, 100, monotone="increasing"),), intercept=False)
    assert make_monotone(straight.encoding, np.array([-0.1])).tolist() == [0.0]
    assert make_monotone(straight.encoding, np.array([0.1])).tolist() == [0.1]


def test_shares_that_noise_made_negative_are_small_ones() -> None:
    schema = Schema(CLASSES, (Numeric("age", 0, 100, curve=(30, 60), monotone="increasing"),))
    crossed = Standardization((0.0, -0.2, 0.2), (1.0, 1.0, 1.0), clip_norm=1.0)
    plan = replace(schema, standardization=crossed).encoding
    assert (make_monotone(plan, np.array([1.0, -3.0, 2.0, 0.5]))[:-1] >= 0).all()


# ---- scores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [SCHEMA, NUMBER], ids=["classes", "number"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_scores_are_monotone_in_the_kernel_and_in_sql(schema: Schema, intercept: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    schema = standardize(replace(schema, intercept=intercept), random)
    weights = make_monotone(schema.encoding, random.standard_normal(schema.dims))[np.newaxis]
    model: Model
    if schema.target.class_count:
        model = make_model(schema, weights=weights)
    else:
        model = replace(fit(schema, epsilon=None, noise_seed=None), weights=weights)
    assert_monotone(model)
    with duckdb.connect() as connection:
        for table, sign in ((vary("age", FINE, pulse=170.0), 1), (vary("dose", FINE / 20.0, sex="M"), -1)):
            connection.register("rows", table)
            write = write_probability_expression if schema.target.class_count else write_scoring_expression
            found = np.array(connection.execute(f"SELECT {write(model, 'duckdb')} FROM rows").fetchall())[:, 0]
            margins = score(model, table)[:, np.newaxis]
            expected = (
                model.probabilities(margins)[:, 1] if schema.target.class_count else model.predict_margins(margins)
            )
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
            assert (sign * np.diff(found) >= 0).all()


@pytest.mark.parametrize("epsilon", [0.3, 5.0])
def test_the_norm_of_a_row_counts_monotone_columns_by_their_mean_square(epsilon: float) -> None:
    model = fit(epsilon=epsilon)
    plan, weights = model.scoring
    (cells,) = encode_rows(ArrayEngine.from_arrow(make_table(20_000)), model.schema, label=False)
    exact, counted = (
        replace(one, downweights=True).feature_map.compute_features(cells)[:, 1:]  # type: ignore[union-attr]
        for one in (model.schema.encoding, plan)
    )
    np.testing.assert_allclose(counted @ weights[0], exact @ model.weights[0], rtol=1e-9, atol=1e-9)
    squares = [(features**2).sum(axis=1) for features in (exact, counted)]
    assert squares[1].mean() == pytest.approx(squares[0].mean(), rel=0.1)
    (along,) = encode_rows(ArrayEngine.from_arrow(vary("age", FINE)), model.schema, label=False)
    lengths = (plan.feature_map.compute_features(along)[:, 1:] ** 2).sum(axis=1)  # type: ignore[union-attr]
    np.testing.assert_allclose(lengths, lengths[0], rtol=1e-15)
    plain = make_model(without(SCHEMA))
    assert plain.scoring[1] is plain.weights


def test_postgres_scores_as_the_model_does(server: Server) -> None:
    model = make_model(standardize(SCHEMA, np.random.default_rng(2)))
    store_model(server.uri, "monotone", model, replace=True)
    table = vary("age", [0.0, 34.9, 35.0, 100.0], pulse=170.0)
    expected = model.probabilities(score(model, table)[:, np.newaxis])[:, 1]
    expression = write_probability_expression(model, "postgres")
    with psycopg.connect(server.uri) as connection:
        for row, probability in zip(table.to_pylist(), expected, strict=True):
            inputs = [row["age"], row["dose"], row["pulse"], 1.0, 0.0]
            asked = "SELECT boltdp.predict_proba('monotone', %s::float8[])"
            (given_,) = connection.execute(asked, [inputs]).fetchone() or ()
            assert given_[1] == pytest.approx(probability, rel=1e-12)
            source = f"(SELECT {row['age']}::float8 age, 0.1::float8 dose, 170::float8 pulse, 'F'::text sex) s"
            (found,) = connection.execute(f"SELECT {expression} FROM {source}".encode()).fetchone() or ()
            assert found == pytest.approx(probability, rel=1e-12)


# ---- trainings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"delta": 1e-6},
        {"algorithm": "bolton"},
        {"epsilon": None, "noise_seed": None},
        {"standardize_moments": "histograms"},
        {"standardize": "none", "algorithm": "noisy-gd", "delta": 1e-6},
    ],
    ids=["objective", "delta", "bolton", "noiseless", "histograms", "noisy-gd"],
)
@pytest.mark.parametrize("schema", [SCHEMA, NUMBER], ids=["classes", "number"])
def test_trained_models_are_monotone_and_verified(schema: Schema, changes: dict[str, Any]) -> None:
    model, plain = fit(schema, **changes), fit(without(schema), **changes)
    assert model.certificate == plain.certificate
    assert_monotone(model)
    assert [one.encoding_rule.direction for one in model.schema.columns] == [1, -1, 0, 0]
    model.verify()
    again = Model.from_dict(model.to_dict())
    again.verify()
    assert_monotone(again)
    unused = np.array(["age" not in name and "dose" not in name for name in model.schema.feature_names])
    unused[-1] = False
    np.testing.assert_array_equal(model.weights[0, unused], plain.weights[0, unused])


def test_the_column_gets_automatic_and_private_curves() -> None:
    straight = replace(SCHEMA, columns=(Numeric("age", 0, 100, monotone="increasing"), *COLUMNS[1:]))
    for changes in ({"curves": 4}, {"standardize_moments": "histograms"}):
        model = fit(straight, **changes)
        column = model.schema.columns[0]
        assert isinstance(column, Numeric)
        assert column.curve
        assert column.monotone == "increasing"
        assert_monotone(model)


def test_weights_that_are_not_monotone_are_told_from_released_ones() -> None:
    model = fit(without(SCHEMA), curves=0)
    assert (model.weights[0, :7] < 0).any()
    with pytest.raises(CertificateError, match="must follow monotone columns as declared"):
        replace(model, schema=replace(SCHEMA, standardization=model.schema.standardization)).verify()


def test_tuned_models_are_monotone() -> None:
    asked = Settings(epsilon=1.0, algorithm="bolton", noise_seed=1, seed=1, label_check=0.0)
    candidates = expand_grid(asked, {"regularization": [0.01, 0.1]})
    model = tune(ArrayEngine.from_arrow(make_table()), SCHEMA, candidates, trials=3)
    assert_monotone(model)
    model.verify()


def test_the_error_is_smaller_than_without() -> None:
    """A truth that rises, of which the noise makes a curve that wiggles."""
    test = make_table(20_000, seed=9)
    sick = test["sick"].to_numpy()
    losses = []
    for seed in range(6):
        pair = []
        for schema in (without(SCHEMA), SCHEMA):
            model = fit(schema, epsilon=0.3, noise_seed=seed, regularization=1e-3)
            probabilities = model.probabilities(score(model, test)[:, np.newaxis])
            pair.append(-np.log(np.clip(probabilities[np.arange(len(sick)), sick], 1e-6, 1)).mean())
        losses.append(pair)
    plain, monotone = np.mean(losses, axis=0)
    assert monotone < plain


# ---- declarations --------------------------------------------------------------------------------------------------


def test_the_key_survives_a_file_and_is_described() -> None:
    text = SCHEMA.to_toml()
    assert 'dose = { bounds = [-3, 3], monotone = "decreasing" }' in text
    assert Schema.from_toml(text) == SCHEMA
    assert [column.describe() for column in COLUMNS[:2]] == [
        "a number from 0 to 100, with a curve of 6 steps, that never falls",
        "a number from -3 to 3, that never rises",
    ]


def test_show_says_of_which_weights_its_noise_is() -> None:
    assert "Of monotone columns" in compute_effects(fit()).noise
    assert "Of monotone columns" not in compute_effects(fit(without(SCHEMA))).noise


def test_values_that_are_not_known_are_refused() -> None:
    with pytest.raises(ParameterError, match="monotone of 'a' must be one of increasing, decreasing, got 'up'"):
        Numeric("a", 0, 1, monotone="up")  # type: ignore[arg-type]


def test_what_cannot_be_monotone_is_refused_before_anything_is_charged() -> None:
    several: Target = Classes("sick", (0, 1, 2))
    with pytest.raises(ParameterError, match="must be of two classes or of a number, without a projection, got"):
        replace(SCHEMA, target=several)
    with pytest.raises(ParameterError, match="without a projection, got a projection"):
        replace(SCHEMA, projection=Projection(3, 1))
    with pytest.raises(ParameterError, match="the bounds of the weight"):
        replace(SCHEMA, weight=Numeric("w", 0, 1, monotone="increasing"))
    straight = replace(SCHEMA, columns=COLUMNS[1:2])
    with pytest.raises(ParameterError, match="must have no monotone column: its intervals would not hold"):
        make_plan(straight, ROWS, Settings(epsilon=1.0, inference=True))


def test_declared_centres_beyond_the_steps_are_read_as_the_farthest() -> None:
    column = Numeric("a", 0, 100, curve=(20.0, 25.0, 30.0), monotone="increasing")
    standardization = Standardization((0.0, 1.0, 1.0, 1.0), (1.0,) * 4, clip_norm=1.0, intercept=0.1)
    model = make_model(Schema(CLASSES, (column,), standardization=standardization), seed=1)
    assert np.isfinite(model.scoring[1]).all()
