"""Coefficients with intervals, as a statistician reads them: right in every format, and refused where they must be."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

import boltdp
from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.errors import InferenceError, ParameterError
from boltdp.export.coefficients import Coefficients, describe_intervals
from boltdp.export.effects import compute_effects
from boltdp.export.sql import write_probability_expression
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema

#: A name with everything that a format could take for something of its own, and a long one.
HOSTILE, LONG = 'a_b & 100% $x^2 #{1}~\\ <b>"', "the number of days since the last visit to the outpatient clinic"
SLOPES = {HOSTILE: 0.8, LONG: 0.0}


def make_rows(count: int = 6000) -> pd.DataFrame:
    generator = np.random.default_rng(1)
    rows = pd.DataFrame({name: generator.normal(0, 1, count).clip(-4, 4) for name in SLOPES})
    rows["ward"] = generator.choice(["A", "B_1", "C"], count)
    score = sum(slope * rows[name] for name, slope in SLOPES.items()) + 0.7 * (rows["ward"] == "B_1") - 0.3
    rows["sick"] = np.where(generator.random(count) < 1 / (1 + np.exp(-score)), "yes", "no")
    return rows


SCHEMA = Schema(
    Classes("sick", ("no", "yes")),
    (*(Numeric(name, -4, 4) for name in SLOPES), Categorical("ward", ("A", "B_1", "C"), reference="C")),
)


def train(rows: pd.DataFrame | None = None, schema: Schema = SCHEMA, **settings: Any) -> boltdp.Model:
    chosen: dict[str, Any] = {"epsilon": 2, "inference": True, "noise_seed": 1, "seed": 1} | settings
    with pytest.warns(boltdp.PrivacyWarning):
        return boltdp.train(make_rows() if rows is None else rows, schema, **chosen)


@pytest.fixture(scope="module")
def table() -> Coefficients:
    return train().coefficients()


def test_the_truth_is_within_four_standard_errors(table: Coefficients) -> None:
    truth = [0.8, 0.0, 0.0, 0.7, -0.3]
    assert table.terms == (HOSTILE, LONG, "ward=A", "ward=B_1", "intercept")
    for line, expected in zip(table, truth, strict=True):
        assert abs(line.coef - expected) < 4 * line.std_err
        assert line.low < line.coef < line.high
        assert 0 < line.noise_share < 1
        assert line.z == line.coef / line.std_err
    assert table.references == {"ward": "C"}
    (test,) = table.joint_tests
    assert (test.column, test.degrees) == ("ward", 2)
    assert test.p_value < 1e-6


def test_a_higher_level_has_wider_intervals_of_the_same_estimates(table: Coefficients) -> None:
    wide = Coefficients(table.model, level=0.99)
    for one, other in zip(table, wide, strict=True):
        assert (one.coef, one.std_err, one.p_value) == (other.coef, other.std_err, other.p_value)
        assert (other.high - other.low) / (one.high - one.low) == pytest.approx(2.5758 / 1.95996, abs=1e-4)


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, float("nan")])
def test_a_level_is_between_0_and_1(table: Coefficients, level: float) -> None:
    with pytest.raises(ParameterError, match=r"^level must be"):
        Coefficients(table.model, level=level)


def test_a_number_has_no_odds() -> None:
    rows = make_rows()
    generator = np.random.default_rng(2)
    rows["cost"] = 500 + 40 * rows[HOSTILE] + generator.normal(0, 60, len(rows))
    bounds = {HOSTILE: (-4, 4), "cost": (0, 1000)}
    with pytest.warns(boltdp.PrivacyWarning):
        model = boltdp.train(
            rows[[HOSTILE, "cost"]], target="cost", bounds=bounds, epsilon=2, inference=True, noise_seed=1
        )
    table = model.coefficients()
    slope, constant = table
    assert slope.odds_ratio is None
    assert abs(slope.coef - 40) < 4 * slope.std_err
    assert abs(constant.coef - 500) < 4 * constant.std_err
    assert slope.std_err < 3


def test_robust_errors_of_a_model_that_holds_are_like_the_others(table: Coefficients) -> None:
    robust = train(robust_errors=True).coefficients()
    for one, other in zip(table, robust, strict=True):
        assert 0.5 < other.std_err / one.std_err < 2


def test_without_noise_it_is_maximum_likelihood() -> None:
    sm = pytest.importorskip("statsmodels.api")
    rows = make_rows()
    table = boltdp.train(rows, SCHEMA, epsilon=None, inference=True).coefficients()
    inputs = rows[[*SLOPES]].assign(a=rows.ward == "A", b=rows.ward == "B_1", one=1.0).astype(float)
    fitted = sm.Logit(rows.sick == "yes", inputs.to_numpy()).fit(disp=0)
    # Few rows are longer than the clip norm, and have a smaller weight.
    assert np.abs(table.estimates - fitted.params).max() < 0.25 * fitted.bse.max()
    deviations = np.sqrt(np.diag(table.covariance))
    np.testing.assert_allclose(deviations, fitted.bse, rtol=0.1)
    assert all(line.noise_share < 1e-3 for line in table)


def test_a_frame_has_the_terms_as_its_index(table: Coefficients) -> None:
    frame = table.to_frame()
    assert [*frame.index] == [*table.terms]
    assert [*frame.columns] == ["coef", "std_err", "z", "p_value", "odds_ratio", "low", "high", "noise_share"]
    assert len(frame) == len(table)


def test_a_model_that_was_not_trained_for_it_has_none() -> None:
    with pytest.raises(InferenceError, match=r"^the model has no standard errors: it was not trained for inference$"):
        train(inference=False).coefficients()


def test_intervals_of_few_rows_are_refused() -> None:
    model = train(make_rows(60), epsilon=0.1)
    with pytest.raises(InferenceError, match=r"^the intervals are refused: ") as caught:
        model.coefficients()
    assert "boltdp plan --inference" in (caught.value.hint or "")


@pytest.mark.parametrize(("low", "high"), [(0.0, 1e-300), (1e300, 1.7e308)])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_coefficients_beyond_all_numbers_are_refused(low: float, high: float) -> None:
    rows = make_rows()
    rows[LONG] = (rows[LONG] / 8 + 0.5) * (high - low) + low
    schema = replace(SCHEMA, columns=(Numeric(LONG, low, high), SCHEMA.columns[-1]))
    with pytest.raises(InferenceError, match=r"^the intervals are refused: a coefficient or its standard error is too"):
        train(rows, schema).coefficients()


def test_what_is_doubtful_about_intervals_is_described() -> None:
    assert describe_intervals(train()) is None
    assert describe_intervals(train(inference=False)) is None
    refused = describe_intervals(train(make_rows(60), epsilon=0.1))
    assert refused is not None
    assert refused.startswith("the intervals are refused: ")


def test_a_column_that_hardly_varies_is_named() -> None:
    """Its scale has a lower limit, so that the rows tell less of its coefficient than the noise of the Hessian."""
    random = np.random.default_rng(3)
    values = random.normal(size=(20_000, 2))
    sick = random.random(20_000) < 1.0 / (1.0 + np.exp(-values.sum(axis=1)))
    rows = pd.DataFrame({"near": values[:, 0], "far": values[:, 1], "sick": np.where(sick, "yes", "no")})
    schema = Schema(SCHEMA.target, (Numeric("near", -4, 4), Numeric("far", -400, 400)))
    named = []
    for seed in range(12):
        model = train(rows, schema, epsilon=1, noise_seed=seed)
        with suppress(InferenceError):
            found = Coefficients(model)
            assert set(found.doubtful_terms) <= {"far"}
            named.append(found.doubtful_terms == ("far",) and "the lines of far, whose" in str(found.warning))
    assert len(named) > 2
    assert all(named)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_weights": (1.0, 2.0)}, r"^class_weights must not be given for inference, got \(0\.5, 1\.0\)$"),
        ({"passes": 3}, r"^passes must not be given for inference, which has no passes$"),
        ({"curves": 4}, r"^curves must not be given for inference, got 4$"),
        ({"loss": "huber"}, r"^inference must be of two classes with the loss logistic, .* with the loss huber$"),
        ({"algorithm": "bolton"}, r"^algorithm must be auto or objective for inference, got 'bolton'$"),
        ({"standardize": "none"}, r"^standardize must not be given for inference, got 'none'$"),
        ({"inference": False, "robust_errors": True}, r"^robust_errors must be given with inference only"),
    ],
)
def test_settings_that_inference_has_not_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        boltdp.train(make_rows(100), SCHEMA, **{"epsilon": 1, "inference": True, **change})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (replace(SCHEMA, projection=Projection(2, 1)), r"^a schema for inference must have no projection"),
        (replace(SCHEMA, intercept=False), r"^a schema for inference must have an intercept$"),
        (replace(SCHEMA, columns=(Numeric(LONG, -4, 4, curve=(0.0,)),)), r"must be a number without a curve"),
        (
            replace(SCHEMA, target=Classes("sick", ("no", "yes", "?"))),
            r"^inference must be of two classes .* 3 classes",
        ),
    ],
)
def test_schemas_without_coefficients_to_publish_are_refused(schema: Schema, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        boltdp.train(make_rows(100), schema, epsilon=1, inference=True)


def test_estimators_have_coefficients() -> None:
    rows = make_rows()
    features, label = rows[[*SLOPES]].to_numpy(), rows["sick"]
    chosen: dict[str, Any] = {"epsilon": 2, "inference": True, "bounds": (-4, 4)}
    classifier = boltdp.PrivateLogisticRegression(classes=["no", "yes"], **chosen).fit(features, label)
    frame = classifier.model_.coefficients(level=0.9).to_frame()
    assert [*frame.index] == ["x[0]", "x[1]", "intercept"]
    np.testing.assert_allclose(frame["coef"].iloc[:2], classifier.coef_[0], atol=0.1)
    regressor = boltdp.PrivateRegressor(target_bounds=(-20, 20), **chosen)
    noise = np.random.default_rng(3).normal(0, 1, len(rows))
    frame = regressor.fit(features, 3 * features[:, 0] + noise).model_.coefficients().to_frame()
    assert abs(frame["coef"].iloc[0] - 3) < 4 * frame["std_err"].iloc[0]
    with pytest.raises(ParameterError, match="passes must not be given for inference"):
        boltdp.PrivateLogisticRegression(classes=["no", "yes"], passes=2, **chosen).fit(features, label)


def test_a_missing_value_counts_as_the_reference() -> None:
    rows = make_rows()
    whole = train(rows)
    missing = rows.assign(ward=rows["ward"].where(rows["ward"] != "C", None))
    # The order in which rows are summed may differ, their features may not.
    np.testing.assert_allclose(train(missing).weights, whole.weights, rtol=1e-7)
    read = [
        whole.schema.encoding.read_features(np.concatenate([*encode_rows(open_source(one), whole.schema)]))
        for one in (rows, missing)
    ]
    first, second = read
    np.testing.assert_array_equal(first, second)


def test_sql_and_scikit_learn_predict_rows_longer_than_the_clip_norm() -> None:
    model = train(make_rows(3000))
    generator = np.random.default_rng(5)
    rows = pd.DataFrame({name: generator.uniform(-4, 4, 500) for name in SLOPES})
    rows["ward"] = generator.choice(["A", "B_1", "C"], 500)
    packed = np.concatenate([*encode_rows(open_source(rows.assign(sick="no")), model.schema)])
    norms = np.linalg.norm(model.schema.encoding.read_features(packed)[:, 1:], axis=1)
    assert (norms > 1).sum() > 50
    expected = model.predict_proba(rows)[:, 1]
    with duckdb.connect() as connection:
        connection.register("private", rows)
        found = connection.execute(f"SELECT {write_probability_expression(model, 'duckdb')} FROM private").fetchall()
    np.testing.assert_allclose([one for (one,) in found], expected, rtol=1e-9)
    inputs = rows[[*SLOPES]].assign(a=rows.ward == "A", b=rows.ward == "B_1").astype(float)
    inputs.columns = [*model.schema.feature_names[:-1]]
    # The model reads numbers in single precision.
    np.testing.assert_allclose(model.to_sklearn().predict_proba(inputs)[:, 1], expected, rtol=1e-6)


def test_effects_are_significant_by_the_test_of_the_coefficients() -> None:
    model = train()
    effects = compute_effects(model)
    found = {one.name: one.significant for one in effects.panels[0].effects}
    assert found == {HOSTILE: True, "ward": True, LONG: False}
    assert effects.significance.startswith("2 of 3: those whose coefficients differ from 0")
    refused = compute_effects(train(make_rows(60), epsilon=0.1))
    assert "by bounds from public numbers" in refused.significance
