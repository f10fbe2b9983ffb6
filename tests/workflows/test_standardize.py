"""Private standardization from one end to the other: moments, the rule, training, scoring, choosing, comparing."""

from __future__ import annotations

import doctest
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from boltdp.algorithms import ALGORITHMS
from boltdp.engines import open_source
from boltdp.engines.base import Engine, Slice, encode_rows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import DataError, ParameterError
from boltdp.export.original_units import convert_to_original_units
from boltdp.export.sklearn_estimators import to_sklearn
from boltdp.export.sql import write_probability_expression, write_scoring_expression
from boltdp.export.sql_dialects import DIALECTS
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.losses import Logistic
from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, CertificateError, certify
from boltdp.privacy.events.event import BudgetedEvent, Composition, NoiselessTraining
from boltdp.privacy.events.noisy_moments import Moments, NoisyMoments, ReleasedMoments
from boltdp.privacy.events.selection import PortionSelection, PublicSelection, TrialSelection
from boltdp.privacy.training_problem import Problem
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema, Standardization, Vector
from boltdp.settings import Settings
from boltdp.workflows.compare import compare
from boltdp.workflows.predict import predict, score_batches
from boltdp.workflows.standardize import (
    CLIP_NORM,
    INTERCEPT,
    MIN_NORM,
    MIN_SCALE,
    derive_standardization,
    plan_standardization,
    prepare_rows,
    sum_moments,
)
from boltdp.workflows.train import BAD_ROWS_REASON, train
from boltdp.workflows.tune import Method, expand_grid, tune
from tests.plans import plan_certificate

ROWS = 3000
SCHEMA = Schema(
    Classes("sick", (0, 1)),
    (Numeric("age", 0, 200), Categorical("sex", ("F", "M", "X")), Vector("scan", 2, -4, 4)),
)
PRIVATE = Settings(
    epsilon=1.0, algorithm="bolton", standardize="private", standardize_share=0.1, standardize_moments="squares"
)


def people(rows: int = ROWS) -> pa.Table:
    """Far from the middle of the bounds, and narrow."""
    rng = np.random.default_rng(3)
    age, scan = rng.normal(160, 4, rows), rng.normal([2.0, -1.0], [0.5, 0.1], (rows, 2))
    sex = np.array(["F", "M", "undeclared", None], object)[rng.choice(4, rows, p=[0.6, 0.3, 0.05, 0.05])]
    missing = np.where(np.arange(rows) % 50 == 0, np.nan, age)
    return pa.table(
        {
            "age": pa.array(missing, from_pandas=True),
            "sex": pa.array(sex.tolist(), pa.string()),
            "scan": [list(row) if i % 31 else None for i, row in enumerate(scan.tolist())],
            "sick": (age + 8 * scan[:, 0] > 176).astype(int),
        }
    )


def with_standardization(schema: Schema = SCHEMA, seed: int = 0) -> Schema:
    rng = np.random.default_rng(seed)
    n = schema.encoded_dims - schema.intercept
    centers, scales = rng.uniform(-1, 1, n), rng.uniform(0.2, 2, n)
    made = Standardization(tuple(centers.tolist()), tuple(scales.tolist()), clip_norm=2.5, intercept=0.7)
    return replace(schema, standardization=made)


def moments_of(settings: Settings, schema: Schema = SCHEMA) -> NoisyMoments:
    planned = plan_standardization(settings, schema, rows=1000)
    assert planned is not None
    assert isinstance(planned.event, NoisyMoments)
    return planned.event


def accuracy(model: Model, engine: Engine) -> float:
    labels = np.concatenate([block[:, 0] for block in encode_rows(engine, model.schema)])
    return float(np.mean(predict(model, engine) == labels))


def test_encoded_rows_are_centred_scaled_and_divided() -> None:
    engine, schema = open_source(people()), with_standardization()
    x = read(engine, schema.unscaled)
    packed = read(engine, schema)
    made = schema.standardization
    assert made is not None
    expected = (x[:, 1:] - np.array(made.centers)) / np.array(made.scales) / made.clip_norm
    given = people().to_pydict()
    expected[[age is None for age in given["age"]], 0] = 0
    expected[[scan is None for scan in given["scan"]], 4:] = 0
    np.testing.assert_allclose(packed[:, 1:-1], expected, atol=2e-7)
    assert (packed[:, -1] == 0.7 / 2.5).all()
    assert schema.row_norm == 2.5


def test_missing_numbers_are_0_after_centring_to_the_bit() -> None:
    packed = read(open_source(people()), with_standardization())
    given = people().to_pydict()
    assert (packed[[age is None for age in given["age"]], 1] == 0).all()
    assert (packed[[scan is None for scan in given["scan"]], 5:7] == 0).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"centers": (0.0,) * 5}, "the standardization must have|as many scales as centers, got 6 and 5"),
        ({"centers": (0.0,) * 5, "scales": (1.0,) * 5}, "must be of the 6 features without the intercept, got 5"),
        ({"centers": (2.0,) * 6}, "the centers of the standardization must be from -1 to 1"),
        ({"centers": (math.nan,) * 6}, "the centers of the standardization must be from -1 to 1"),
        ({"centers": ("x",) * 6}, "each of the centers of the standardization must be a number, got 'x'"),
        ({"centers": 0.5}, "the centers of the standardization must be a list, got 0.5"),
        ({"scales": (0.0,) * 6}, "the scales of the standardization must be between 1e-9 and 1e9"),
        ({"clip_norm": 0.0}, "the clip_norm of the standardization must be a finite number > 0, got 0"),
        ({"intercept": math.inf}, "the intercept of the standardization must be a finite number > 0, got inf"),
    ],
)
def test_a_standardization_that_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    fields = {"centers": (0.0,) * 6, "scales": (1.0,) * 6, "clip_norm": 1.0, "intercept": 1.0, **changed}
    with pytest.raises(ParameterError, match=message):
        replace(SCHEMA, standardization=Standardization(**fields))


def test_a_standardized_schema_survives_toml(tmp_path: Path) -> None:
    schema = with_standardization()
    schema.save(tmp_path / "schema.toml")
    assert Schema.load(tmp_path / "schema.toml") == schema
    with pytest.raises(ParameterError, match="the standardization must declare 'scales'"):
        Schema.from_dict({**SCHEMA.to_dict(), "standardization": {"centers": []}})


@pytest.mark.parametrize(
    ("clip_norm", "intercept", "expected"),
    [
        (None, True, 2.0),
        (None, False, 2.0),
        (5.0, True, 2.0),
        (1.25, True, 0.75),
        (1.25, False, 1.25),
        (0.5, True, 0.5),
    ],
)
def test_rows_are_cut_to_the_clip_norm_without_the_intercept(
    clip_norm: float | None, intercept: bool, expected: float
) -> None:
    assert replace(SCHEMA, clip_norm=clip_norm, intercept=intercept).feature_clip_norm == pytest.approx(expected)


def read(engine: Engine, schema: Schema, *, label: bool = True) -> npt.NDArray[np.float64]:
    """The labels and features of all rows."""
    return schema.encoding.read_features(np.concatenate(list(encode_rows(engine, schema, label=label))))


def standardized(engine: Engine, schema: Schema, event: NoisyMoments | None, context: Context) -> Schema:
    training = NoiselessTraining(Problem(loss=Logistic(), dims=schema.dims, rows=engine.count()))
    before = None if event is None else BudgetedEvent(None, event)
    with prepare_rows(engine, schema, certify(training, None, standardization=before), context, permuted=False) as (
        _,
        made,
    ):
        return made


def summed(engine: Engine, schema: Schema, clip_norm: float) -> npt.NDArray[np.int64]:
    """The exact moments."""
    sums = FeatureSums(schema.unscaled.encoding.feature_map, clip_norm=clip_norm)
    with engine.prepare(schema, Context(), permuted=False) as prepared:
        prepared.add_to_sums([sums])
    return sums.value


def test_without_noise_the_rows_come_out_standardized() -> None:
    engine = open_source(people())
    schema = standardized(engine, SCHEMA, moments_of(replace(PRIVATE, epsilon=None)), Context())
    made = schema.standardization
    assert made is not None
    x = read(engine, SCHEMA.unscaled)
    np.testing.assert_allclose(made.centers, x[:, 1:].mean(axis=0), atol=1e-6)
    deviations = np.maximum(x[:, 1:].std(axis=0), MIN_SCALE)
    np.testing.assert_allclose(made.scales, deviations, rtol=1e-4)
    z = (x[:, 1:] - np.array(made.centers)) / np.array(made.scales)
    norm = math.sqrt((z**2).sum(axis=1).mean())
    assert made.clip_norm == pytest.approx(CLIP_NORM * norm, rel=1e-4)
    assert made.intercept == pytest.approx(INTERCEPT * norm, rel=1e-4)


def test_with_the_mean_alone_rows_are_centred_and_the_clip_norm_fits() -> None:
    engine = open_source(people())
    event = moments_of(replace(PRIVATE, epsilon=None, standardize_moments="mean"))
    made = standardized(engine, SCHEMA, event, Context()).standardization
    assert made is not None
    x = read(engine, SCHEMA.unscaled)
    assert set(made.scales) == {1.0}
    norm = math.sqrt(((x[:, 1:] - x[:, 1:].mean(axis=0)) ** 2).sum(axis=1).mean())
    assert made.clip_norm == pytest.approx(CLIP_NORM * norm, rel=1e-4)


def test_centres_that_noise_alone_could_make_are_guesses_that_need_no_data() -> None:
    noise = ReleasedMoments(np.full(6, 0.3), np.full(3, 5.0), None, deviation=10.0)
    made = derive_standardization(SCHEMA, noise)
    assert made.centers == pytest.approx((0.0, 1 / 3, 1 / 3, 1 / 3, 0.0, 0.0))
    assert made.scales == pytest.approx((math.sqrt(10.0),) * 6)


#: With steps where the ages are.
CURVED = replace(SCHEMA, columns=(Numeric("age", 0, 200, curve=(156, 160, 164)), *SCHEMA.columns[1:]))


def test_steps_are_centred_and_scaled_as_categories_are() -> None:
    event = moments_of(replace(PRIVATE, epsilon=None), CURVED)
    assert (event.features, event.numbers, event.dimensions) == (9, 3, 12)
    assert event.clip_norm == math.sqrt(1 + 3 / 16 + 1 + 2)
    x = read(open_source(people()), CURVED.unscaled)
    made = standardized(open_source(people()), CURVED, event, Context()).standardization
    assert made is not None
    means = x[:, 1:].mean(axis=0)
    assert made.centers == pytest.approx(means, abs=1e-4)
    steps = means[1:4]
    assert steps.tolist() == sorted(steps, reverse=True)
    assert made.scales[1:4] == pytest.approx(np.sqrt(1 / 16 - steps**2), abs=1e-4)


def test_steps_are_guessed_to_divide_the_values_equally() -> None:
    noise = ReleasedMoments(np.full(9, 0.3), np.full(3, 5.0), None, deviation=10.0)
    assert derive_standardization(CURVED, noise).centers == pytest.approx((0, 0.125, 0, -0.125, *[1 / 3] * 3, 0, 0))


@pytest.mark.parametrize("moments", ["squares", "mean"])
def test_a_model_with_a_curve_is_private_certified_and_survives_the_disk(tmp_path: Path, moments: Any) -> None:
    engine = open_source(people())
    model = train(engine, CURVED, replace(PRIVATE, standardize_moments=moments, epsilon=100.0, label_check=0.0))
    assert model.certificate.private
    assert isinstance(model.certificate.moments, NoisyMoments)
    assert model.certificate.moments.numbers == 3
    model.verify()
    model.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    assert again.schema == model.schema
    assert predict(again, engine).tolist() == predict(model, engine).tolist()
    # Steps that are taken for numbers would be another release.
    with pytest.raises(
        ParameterError, match=r"(must be that of the schema's features|must have 15 dimensions, got 12)"
    ):
        replace(model, certificate=with_moments(model.certificate, numbers=6))


@pytest.mark.parametrize("squares", [True, False])
@pytest.mark.parametrize("size", [0.0, 1e-9, 1.0, 1e9])
def test_any_noise_gives_a_standardization(squares: bool, size: float) -> None:
    rng, rows = np.random.default_rng(1), open_source(people(100))
    for _ in range(50):
        means, others = rng.normal(0, size, 6), rng.normal(0, size, 3)
        found = ReleasedMoments(means, others if squares else None, None if squares else float(others[0]), size)
        made = derive_standardization(SCHEMA, found)
        # A schema refuses what is not sound.
        assert replace(SCHEMA, standardization=made).standardization == made
        assert made.source == "private"
        numbers = [True, False, False, False, True, True]
        for center, number in zip(made.centers, numbers, strict=True):
            assert (-1 if number else 0) <= center <= 1
        assert all(scale == 1.0 or (squares and MIN_SCALE <= scale < math.inf) for scale in made.scales)
        assert MIN_NORM * math.sqrt(6) * CLIP_NORM <= made.clip_norm * (1 + 1e-12)
        assert made.clip_norm <= CLIP_NORM * math.sqrt(6) * (1 + 1e-12)
        assert made.intercept == pytest.approx(INTERCEPT / CLIP_NORM * made.clip_norm)
        packed = read(rows, replace(SCHEMA, standardization=made))
        assert np.isfinite(packed[:, 1:]).all()


def test_a_trained_model_is_private_certified_and_survives_the_disk(tmp_path: Path) -> None:
    engine = open_source(people())
    model = train(engine, SCHEMA, PRIVATE)
    assert model.certificate.private
    assert model.certificate.budget == Budget(1.0)
    assert model.certificate.moments is not None
    assert [part.budget for part in model.certificate.parts] == [*Budget(1.0).take_share(0.1)]
    assert model.certificate.parts[0].event == model.certificate.moments == moments_of(PRIVATE)
    assert model.schema.standardization is not None
    model.verify()
    model.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    assert again.schema == model.schema
    assert predict(again, engine).tolist() == predict(model, engine).tolist()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_on_standardized_rows(algorithm: str) -> None:
    model = train(open_source(people()), SCHEMA, replace(PRIVATE, algorithm=algorithm, delta=1e-6))
    model.verify()
    assert model.certificate.private
    assert model.certificate.algorithm == algorithm
    first, rest = (part.budget for part in model.certificate.parts)
    taken, left = Budget(1.0, 1e-6).take_share(0.1)
    assert first == taken
    # Two Gaussians are one, which leaves more than the sum of their budgets would.
    assert rest is not None
    assert rest == left if algorithm != "noisy-gd" else left.epsilon < rest.epsilon < 1.0


def test_standardizing_helps_rows_that_are_far_from_the_middle() -> None:
    engine = open_source(people(20_000))
    standardized = accuracy(train(engine, SCHEMA, replace(PRIVATE, noise_seed=1, seed=1)), engine)
    plain = replace(PRIVATE, standardize="none", noise_seed=1, seed=1)
    assert standardized > accuracy(train(engine, SCHEMA, plain), engine) + 0.05


def test_the_noise_of_each_stage_is_drawn_anew_unless_it_is_seeded() -> None:
    engine = open_source(people())
    first, second = (train(engine, SCHEMA, PRIVATE).schema.standardization for _ in range(2))
    assert first != second
    seeded = replace(PRIVATE, noise_seed=4, seed=1)
    one, two = (train(engine, SCHEMA, seeded) for _ in range(2))
    assert one.schema == two.schema
    assert (one.weights == two.weights).all()
    assert not one.certificate.private


def test_a_model_must_have_the_centres_that_its_certificate_is_about() -> None:
    model = train(open_source(people()), SCHEMA, PRIVATE)
    with pytest.raises(ParameterError, match="the certificate must be about the standardization of the schema"):
        Model(schema=SCHEMA, weights=model.weights, certificate=model.certificate)


def test_what_cannot_be_standardized_is_refused_before_a_row_is_read() -> None:
    engine = ArrayEngine.from_arrow(people())
    engine.batches = lambda *_, **__: pytest.fail("a row was read")  # type: ignore[method-assign]
    for schema, settings, message in [
        (with_standardization(), PRIVATE, "standardize must be 'none' for a schema that has a standardization"),
        (SCHEMA, replace(PRIVATE, standardize_share=1.5), "the share of standardization must be above 0 and below 1"),
        (SCHEMA, replace(PRIVATE, standardize="publicly"), "standardize must be one of auto, none, private"),  # type: ignore[arg-type]
        (SCHEMA, replace(PRIVATE, standardize_moments="x"), "standardize_moments must be one of auto, mean"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(ParameterError, match=message):
            train(engine, schema, settings)
    with pytest.raises(ParameterError, match="a plan must have the standardization that is asked for, got none"):
        plan_certificate(PRIVATE, rows=100, dims=7, classes=2)


def test_nothing_of_a_row_is_told(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither by progress, which counts rows, nor by the error of a bad row, nor anywhere else."""
    caplog.set_level(logging.DEBUG)
    told: list[tuple[str, int, int]] = []
    context = Context(progress=lambda *report: told.append(report))
    train(open_source(people()), SCHEMA, replace(PRIVATE, passes=1), context=context)
    assert [report for report in told if report[1] == ROWS] == [
        ("preparing", ROWS, ROWS),
        ("pass 1 of 1", ROWS, ROWS),
    ]
    assert {total for _, _, total in told} == {ROWS}
    with pytest.raises(
        DataError, match=r"^column 'age' must be complete, got a missing value or one that is no number$"
    ):
        train(open_source(people()), SCHEMA, PRIVATE, context=Context(on_bad_row="error"))
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_the_released_schema_is_not_that_of_the_exact_moments() -> None:
    engine = open_source(people())
    exact = standardized(engine, SCHEMA, moments_of(replace(PRIVATE, epsilon=None)), Context()).standardization
    model = train(engine, SCHEMA, PRIVATE)
    assert exact is not None
    assert model.schema.standardization is not None
    assert not set(exact.centers) & set(model.schema.standardization.centers)


def test_one_row_moves_the_sums_by_no_more_than_the_sensitivity() -> None:
    event = moments_of(PRIVATE)
    rows = people().to_pydict()
    first = summed(ArrayEngine.from_arrow(people()), SCHEMA, event.clip_norm)
    for age, sex, scan in [(1e300, "F", [9.0, 9.0]), (-5.0, "X", None), (None, None, [-math.inf, math.nan])]:
        other = {name: list(cells) for name, cells in rows.items()}
        other["age"][7], other["sex"][7], other["scan"][7] = age, sex, scan
        second = summed(open_source(pa.table(other)), SCHEMA, event.clip_norm)
        numbers = np.array([True, False, False, False, True, True])
        moved = (first - second) * 2.0**-20
        assert math.hypot(*moved[0], *moved[1][numbers]) <= event.sensitivity


@pytest.mark.parametrize("moments", ["squares", "mean"])
def test_rows_longer_than_the_clip_norm_move_the_moments_no_further(moments: Moments) -> None:
    schema = replace(SCHEMA, clip_norm=0.5)
    event = moments_of(replace(PRIVATE, standardize_moments=moments), schema)
    assert event.clip_norm == schema.feature_clip_norm < 1.0
    numbers = np.array([True, False, False, False, True, True])
    vectors = []
    for age, sex, scan in [(200.0, "F", [4.0, 4.0]), (0.0, "X", [-4.0, -4.0]), (1e9, "M", [-9.0, 9.0])]:
        rows = people(50).to_pydict()
        rows["age"][7], rows["sex"][7], rows["scan"][7] = age, sex, scan
        with open_source(pa.table(rows)).prepare(schema, Context(), permuted=False) as prepared:
            sums = sum_moments(prepared, schema, event) * 2.0**-20
        squares = sums[1][numbers] if moments == "squares" else sums[1].sum(keepdims=True) * event.norm_weight
        vectors.append(np.concatenate([sums[0], squares]))
    moved = [float(np.linalg.norm(one - other)) for one in vectors for other in vectors]
    assert 0.5 * event.sensitivity < max(moved) <= event.sensitivity


def test_the_noise_of_moments_hides_all_rows_of_a_person() -> None:
    persons = replace(SCHEMA, person_id="patient", max_rows_per_person=3)
    rows, of_person = moments_of(PRIVATE), moments_of(PRIVATE, persons)
    assert of_person.person_rows == 3
    assert of_person.sensitivity == pytest.approx(3 * rows.sensitivity)
    budget = plan_standardization(PRIVATE, persons, rows=1000)
    assert budget is not None
    assert budget.budget is not None
    assert of_person.delta(budget.budget.epsilon) == 0.0


def test_bad_rows_may_be_shown_where_that_is_asked_for() -> None:
    table = people().filter(pa.array([i % 50 != 0 and i % 31 != 0 for i in range(ROWS)]))
    complete = table.filter(pa.array([sex in ("F", "M") for sex in table["sex"].to_pylist()]))
    model = train(open_source(complete), SCHEMA, PRIVATE, context=Context(on_bad_row="error"))
    assert model.certificate.reasons == (BAD_ROWS_REASON,)


def test_moments_of_a_slice_are_those_of_its_rows() -> None:
    whole = ArrayEngine.from_arrow(people())
    first, second = (summed(Slice(whole, start, stop), SCHEMA, 1.5) for start, stop in ((0, 100), (100, ROWS)))
    np.testing.assert_array_equal(first + second, summed(whole, SCHEMA, 1.5))


def in_duckdb(table: pa.Table, expression: str) -> list[Any]:
    with duckdb.connect() as connection:
        connection.register("private", table)
        return [row[0] for row in connection.execute(f"SELECT {expression} FROM private").fetchall()]


def random_model(schema: Schema, weights: npt.NDArray[np.float64] | None = None) -> Model:
    certificate = plan_certificate(Settings(epsilon=None), rows=100, dims=schema.dims, classes=len(schema.classes))
    vectors = certificate.problem.loss.vector_count
    if weights is None:
        weights = np.random.default_rng(0).standard_normal((vectors, schema.dims))
    return Model(schema=schema, weights=weights, certificate=certificate)


@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
@pytest.mark.parametrize("projection", [None, Projection(dims=4, seed=2)])
def test_sql_scores_standardized_rows_as_predict_does(classes: Any, projection: Projection | None) -> None:
    model = random_model(
        replace(with_standardization(), target=Classes(with_standardization().label, classes), projection=projection)
    )
    scored = in_duckdb(people(), write_scoring_expression(model, "duckdb"))
    assert scored == predict(model, open_source(people())).tolist()
    assert len(set(scored)) > 1
    for dialect in DIALECTS:
        assert write_scoring_expression(model, dialect)


def test_sql_probabilities_are_those_of_the_model() -> None:
    model = random_model(with_standardization())
    (margins,) = score_batches(model, open_source(people()))
    scored = in_duckdb(people(), write_probability_expression(model, "duckdb"))
    np.testing.assert_allclose(scored, model.probabilities(margins)[:, 1], rtol=1e-6)


def test_columns_that_are_encoded_alike_are_still_told_apart() -> None:
    columns = tuple(Numeric(f"x{i}", 0, 1) for i in range(4))
    schema = with_standardization(Schema(Classes("y", ("a", "b", "c")), columns))
    table = pa.table({f"x{i}": np.random.default_rng(i).uniform(0, 1, 200) for i in range(4)})
    model = random_model(schema)
    assert in_duckdb(table, write_scoring_expression(model, "duckdb")) == predict(model, open_source(table)).tolist()


def test_raw_weights_are_in_the_units_of_the_columns() -> None:
    schema = with_standardization(Schema(Classes("y", (0, 1)), (Numeric("age", 0, 200), Vector("scan", 2, -9, 9))))
    model = random_model(schema)
    table = people().filter(pa.array([i % 50 != 0 and i % 31 != 0 for i in range(ROWS)]))
    X = np.column_stack([table["age"].to_numpy(), np.array(table["scan"].to_pylist())])
    coefficients, constants = convert_to_original_units(schema, model.weights)
    packed = read(open_source(table), schema, label=False)
    np.testing.assert_allclose(X @ coefficients.T + constants, packed[:, 1:] @ model.weights.T, atol=1e-5)
    predicted = to_sklearn(model).predict(X)
    assert (predicted == predict(model, open_source(table))).all()


@pytest.mark.parametrize("method", ["trials", "portions", "public"])
def test_tuning_standardizes_once_for_all_candidates(method: Method) -> None:
    engine = open_source(people())
    grid = expand_grid(PRIVATE, {"passes": [1, 2]})
    public = open_source(people(400)) if method == "public" else None
    model = tune(engine, SCHEMA, grid, method=method, public=public, trials=2.0)
    model.verify()
    certificate = model.certificate
    assert certificate.private
    assert certificate.moments == moments_of(PRIVATE)
    assert [part.budget for part in certificate.parts] == [*Budget(1.0).take_share(0.1)]
    kinds = {"trials": TrialSelection, "portions": PortionSelection, "public": PublicSelection}
    assert isinstance(certificate.selection, kinds[method])
    assert certificate.parts[1].event == certificate.selection
    assert model.schema.standardization is not None


def test_comparing_standardizes_every_run_with_its_own_noise_on_training_rows_only() -> None:
    engine = open_source(people())
    made = compare(
        engine,
        SCHEMA,
        replace(PRIVATE, epsilon=None, passes=1, seed=1, noise_seed=1),
        names=["noiseless", "bolton"],
        epsilons=[100.0],
        repeats=2,
    )
    assert [(run.algorithm, run.repeat) for run in made.runs] == [
        ("noiseless", 0),
        ("bolton", 0),
        ("noiseless", 1),
        ("bolton", 1),
    ]
    assert all(run.score > 0.5 for run in made.runs)


def test_moments_are_those_of_the_encoded_rows_whatever_they_are_standardized_by() -> None:
    engine = ArrayEngine.from_arrow(people())
    rows = read(engine, SCHEMA.unscaled)[:, 1:]
    short = rows * np.minimum(1.0, 1.2 / np.maximum(np.linalg.norm(rows, axis=1), 1e-9))[:, None]
    expected = np.stack([short.sum(axis=0), (short**2).sum(axis=0)])
    made = summed(engine, with_standardization(), 1.2)
    np.testing.assert_allclose(made * 2.0**-20, expected, atol=len(rows) * 2.0**-20)
    np.testing.assert_array_equal(made, summed(engine, SCHEMA, 1.2))


def test_the_examples_of_the_page_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "standardization.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 0
    assert failed == 0


def test_centres_of_another_model_are_refused() -> None:
    schema = train(open_source(people()), SCHEMA, PRIVATE).schema
    for settings in (PRIVATE, Settings(epsilon=0.01)):
        with pytest.raises(ParameterError, match="must not have a standardization that was found privately"):
            train(open_source(people()), schema, settings)


def test_centres_that_are_declared_cost_nothing() -> None:
    declared = with_standardization()
    certificate = train(open_source(people()), declared, Settings(epsilon=1.0)).certificate
    assert certificate.private
    assert certificate.moments is None
    assert certificate.parts == ()


def with_moments(certificate: Certificate, **changes: Any) -> Certificate:
    """The same certificate, about other moments."""
    assert isinstance(certificate.spent, Composition)
    before, training = certificate.spent.parts
    changed: Any = before.event
    other = replace(before, event=replace(changed, **changes))
    return replace(certificate, spent=Composition((other, training)))


def test_a_certificate_that_is_not_about_the_schema_is_refused() -> None:
    model = train(open_source(people()), SCHEMA, PRIVATE)
    certificate = model.certificate
    assert certificate.moments is not None
    assert certificate.moments.noise is not None
    fewer = replace(certificate.moments.noise, dimensions=6)
    forgeries = [
        certify(certificate.parts[1].event, Budget(0.9)),
        with_moments(certificate, clip_norm=0.01),
        with_moments(certificate, numbers=0, noise=fewer),
        with_moments(certificate, features=4, numbers=3, noise=replace(fewer, dimensions=7)),
    ]
    for forged in forgeries:
        with pytest.raises(ParameterError, match="standardization"):
            Model(model.schema, model.weights, forged)


def test_moments_with_too_little_noise_do_not_verify_and_with_more_do() -> None:
    model = train(open_source(people()), SCHEMA, PRIVATE)
    assert model.certificate.moments is not None
    noise = model.certificate.moments.noise
    assert noise is not None
    more = with_moments(model.certificate, noise=replace(noise, scale=2 * noise.scale))
    Model(model.schema, model.weights, more).verify()
    less = with_moments(model.certificate, noise=replace(noise, scale=noise.scale / 2))
    assert not less.private
    with pytest.raises(CertificateError, match="follows from its events"):
        Model(model.schema, model.weights, less).verify()


@pytest.mark.parametrize(
    "change",
    [
        {"noise": {"kind": "spherical", "scale": 0.001, "dimensions": 9}},
        {"noise": None},
        {"clip_norm": 0.01},
        {"luck": 7},
        {"derived": {"sensitivity": 0.001}},
    ],
)
def test_forged_moments_are_refused(change: dict[str, Any]) -> None:
    record = train(open_source(people()), SCHEMA, PRIVATE).to_dict()
    moments = record["certificate"]["spent"]["parts"][0]["event"]
    assert moments["kind"] == "noisy moments"
    assert moments["noise"]["dimensions"] == 9
    moments.update(change)
    with pytest.raises(CertificateError):
        Model.from_dict(record)


def test_a_source_is_declared_or_private() -> None:
    with pytest.raises(ParameterError, match="the source of the standardization must be one of declared, private"):
        Standardization((0.0,), (1.0,), 1.0, source="elsewhere")  # type: ignore[arg-type]
