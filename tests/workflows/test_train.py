"""Training from plan to release, on data in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from experiments.datasets import BENCHMARKS, Benchmark

from boltdp.algorithms import ALGORITHMS, Job, choose_algorithm
from boltdp.engines import open_source
from boltdp.engines.base import Engine, PreparedRows, encode_rows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.row_permutation import compute_source_positions
from boltdp.losses import HuberSVM, Logistic, MarginLogistic, MulticlassHuber, Multinomial
from boltdp.model import Model
from boltdp.privacy.events.event import NOISELESS, SEEDED
from boltdp.privacy.events.output_perturbation import PUBLISHED, OutputPerturbation
from boltdp.privacy.release_with_noise import Randomness, release_weights
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import Schedule
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Projection, Schema
from boltdp.settings import OPTIONAL, Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.predict import predict
from boltdp.workflows.train import BAD_ROWS_REASON, train, train_prepared
from tests.algorithms.counted import CountedEngine
from tests.kernel.reference import reference_sgd
from tests.plans import plan_certificate

ROWS = 3000


def people(seed: int = 0) -> tuple[ArrayEngine, Schema]:
    """Rows whose class depends on a number and a category."""
    random = np.random.default_rng(seed)
    age, sex = random.integers(0, 100, ROWS), random.integers(0, 2, ROWS)
    risk = age / 25 + sex + random.standard_normal(ROWS)
    group = np.select([risk < 2, risk < 3.2], ["low", "middle"], "high")
    table = pa.table({"age": age, "sex": np.array(["F", "M"])[sex], "group": group})
    columns = (Numeric("age", 0, 100), Categorical("sex", ("F", "M")))
    return ArrayEngine.from_arrow(table), Schema(Classes("group", ("low", "middle", "high")), columns)


def binary(schema: Schema) -> Schema:
    return Schema(Classes(schema.label, ("low", "high")), schema.columns)


def accuracy(model: Model, engine: Engine) -> float:
    right = [
        (model.predict_indices(model.margins(packed)) == packed[:, 0]).mean()
        for packed in encode_rows(engine, model.schema)
    ]
    return float(np.mean(right))


@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
def test_noiseless_training_equals_the_reference(multiclass: str) -> None:
    engine, schema = people()
    settings = Settings(epsilon=None, multiclass=multiclass, passes=2, batch_size=7, seed=5)  # type: ignore[arg-type]
    model = train(engine, schema, settings)
    rows = schema.encoding.read_features(np.concatenate(list(encode_rows(engine, schema))))
    rows = rows[compute_source_positions(0, ROWS, rows=ROWS, seed=5)]
    recipe = model.certificate.problem
    assert isinstance(recipe, Recipe)
    if multiclass == "multinomial":
        expected = reference_sgd(recipe, np.vstack([rows, rows]))
    else:
        twice = np.vstack([rows, rows])
        expected = np.vstack([reference_sgd(recipe, twice, positive=c, classes=3) for c in range(3)])
    assert model.weights == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert model.certificate.reasons == (NOISELESS,)


def stays() -> tuple[ArrayEngine, Schema, npt.NDArray[np.float64]]:
    """Rows with a number that depends on the features, a few of them missing or beyond the bounds."""
    random = np.random.default_rng(2)
    age, sex = random.integers(0, 100, ROWS), random.integers(0, 2, ROWS)
    stay = 3.0 + age / 20 + sex + random.standard_normal(ROWS)
    stay[::100], stay[1::100], stay[2::100] = np.nan, 99.0, -5.0
    table = pa.table({"age": age, "sex": np.array(["F", "M"])[sex], "stay": stay})
    columns = (Numeric("age", 0, 100), Categorical("sex", ("F", "M")))
    return ArrayEngine.from_arrow(table), Schema(Number("stay", 0, 30, typical=(3, 9)), columns), stay


@pytest.mark.parametrize("projection", [None, Projection(dims=2, seed=3)], ids=["features", "projected"])
@pytest.mark.parametrize("loss", ["robust", "quantile", "mean"])
def test_noiseless_training_of_numbers_equals_the_reference(loss: str, projection: Projection | None) -> None:
    engine, schema, _ = stays()
    schema = replace(schema, projection=projection)
    settings = Settings(epsilon=None, loss=loss, passes=2, batch_size=7, seed=5)
    model = train(engine, schema, settings)
    packed = np.concatenate(list(encode_rows(engine, schema)))
    rows = packed if projection else schema.encoding.read_features(packed)
    rows = rows[compute_source_positions(0, ROWS, rows=ROWS, seed=5)]
    recipe = model.certificate.problem
    assert isinstance(recipe, Recipe)
    # (value - 6) / spread of a typical range from 3 to 9, in the unit of the loss, or the share of the bounds.
    unit = recipe.loss.label_unit * 6 / 2.5631
    reading = (0.0, 1.0) if loss == "mean" else ((6 - 15) / 15, 15 / unit)
    assert model.weights == pytest.approx(reference_sgd(recipe, rows, reading=reading), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("loss", ["robust", "quantile", "mean"])
def test_every_algorithm_trains_numbers_privately_and_predicts_within_the_bounds(algorithm: str, loss: str) -> None:
    engine, schema, _ = stays()
    settings = Settings(epsilon=2.0, delta=1e-6, algorithm=algorithm, loss=loss)
    model = train(engine, schema, settings)
    assert model.certificate.private
    assert model.certificate.problem.loss.name == loss
    model.verify()
    predicted = predict(model, engine)
    assert predicted.dtype == np.float64
    assert ((predicted >= 0) & (predicted <= 30)).all()


@pytest.mark.parametrize(("loss", "expected"), [("robust", 1.0), ("quantile", 1.0), ("mean", 1.5)])
def test_a_large_budget_predicts_numbers_almost_as_well_as_the_truth(loss: str, expected: float) -> None:
    engine, schema, stay = stays()
    model = train(engine, schema, Settings(epsilon=50.0, loss=loss, seed=1))
    usual = (stay >= 0) & (stay < 30)
    assert np.sqrt(np.mean((predict(model, engine) - stay)[usual] ** 2)) < 1.15 * expected


def test_a_higher_quantile_has_more_below_and_the_median_half() -> None:
    engine, schema, stay = stays()
    shares = []
    for tau in (0.25, 0.5, 0.9):
        asked = Settings(epsilon=50.0, loss="quantile", loss_parameter=tau, seed=1, regularization=1e-4)
        predicted = predict(train(engine, schema, asked), engine)
        shares.append((stay < predicted)[~np.isnan(stay)].mean())
    assert shares[0] < 0.3 < 0.85 < shares[2]
    assert shares[1] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(epsilon=1.0, loss="logistic"), "the loss 'logistic' must be used for classes, got the target 'stay'"),
        (Settings(epsilon=1.0, loss="huber"), "the loss 'huber' must be used for classes, got the target 'stay'"),
        (Settings(epsilon=1.0, class_weights="balanced"), "class_weights must be for a label with classes"),
        (Settings(epsilon=1.0, class_weights=(1.0, 0.5)), "class_weights must be for a label with classes"),
        (Settings(epsilon=1.0, loss="quantile", loss_parameter=1.5), "tau must be from 0.001 to 0.999, got 1.5"),
    ],
    ids=str,
)
def test_what_only_classes_have_is_refused_for_numbers_before_a_row_is_read(settings: Settings, message: str) -> None:
    _, schema, _ = stays()
    with pytest.raises(ParameterError, match=message):
        make_plan(schema, 1000, settings)


def test_losses_of_numbers_are_refused_for_classes() -> None:
    _, schema = people()
    for loss in ("robust", "quantile", "mean"):
        with pytest.raises(ParameterError, match=f"the loss '{loss}' must be used for number, got the label 'group'"):
            make_plan(schema, 1000, Settings(epsilon=1.0, loss=loss))


def test_private_training_with_a_large_budget_is_as_accurate_as_noiseless() -> None:
    engine, schema = people()
    plain = accuracy(train(engine, schema, Settings(epsilon=None)), engine)
    private = accuracy(train(engine, schema, Settings(epsilon=50.0)), engine)
    assert plain > 0.6
    assert private > plain - 0.03


def test_a_private_model_never_comes_out_twice() -> None:
    engine, schema = people()
    first, second = (train(engine, binary(schema), Settings(epsilon=1.0, seed=1)) for _ in range(2))
    assert first.certificate.private
    assert (first.weights != second.weights).any()


def test_seeds_repeat_a_training_and_cost_the_claim() -> None:
    engine, schema = people()
    settings = Settings(epsilon=1.0, seed=1, noise_seed=2)
    first, second = (train(engine, schema, settings) for _ in range(2))
    assert (first.weights == second.weights).all()
    assert first.certificate.reasons == (SEEDED,)


def test_a_fresh_permutation_changes_the_run() -> None:
    engine, schema = people()
    once = train(engine, schema, Settings(epsilon=None, seed=1, passes=2))
    fresh = train(engine, schema, Settings(epsilon=None, seed=1, passes=2, permutation="fresh"))
    assert (once.weights != fresh.weights).any()


def test_bad_rows_are_neutral_unless_asked_for() -> None:
    engine, schema = people()
    undeclared = binary(schema)
    assert train(engine, undeclared, Settings(epsilon=1.0)).certificate.private
    with pytest.raises(DataError):
        train(engine, undeclared, Settings(epsilon=1.0), context=Context(on_bad_row="error"))
    shown = train(engine, schema, Settings(epsilon=1.0), context=Context(on_bad_row="error"))
    assert shown.certificate.reasons == (BAD_ROWS_REASON,)


def test_progress_tells_rows_and_passes_only() -> None:
    engine, schema = people()
    told: list[tuple[str, int, int]] = []
    settings = Settings(epsilon=1.0, algorithm="bolton", passes=2)
    train(engine, schema, settings, context=settings.context(progress=lambda *report: told.append(report)))
    assert [report for report in told if report[1] == ROWS] == [
        ("preparing", ROWS, ROWS),
        ("pass 1 of 2", ROWS, ROWS),
        ("pass 2 of 2", ROWS, ROWS),
    ]
    assert {total for _, _, total in told} == {ROWS}


def test_rows_that_appear_while_reading_are_noticed() -> None:
    engine, schema = people()
    engine.count = lambda: ROWS - 1  # type: ignore[method-assign]
    with pytest.raises(DataError, match="must keep its 2999 rows while it is read"):
        train(engine, schema, Settings(epsilon=1.0))


@pytest.mark.parametrize(
    ("settings", "classes", "loss", "models"),
    [
        (Settings(epsilon=1.0), 2, MarginLogistic(2.0), 1),
        (Settings(epsilon=None), 2, Logistic(), 1),
        (Settings(epsilon=1.0, algorithm="objective"), 2, Logistic(), 1),
        (Settings(epsilon=1.0, algorithm="bolton", loss="margin", loss_parameter=1.0), 2, MarginLogistic(1.0), 1),
        (Settings(epsilon=1.0), 5, Multinomial(5), 1),
        (Settings(epsilon=1.0, multiclass="one-vs-all"), 5, MarginLogistic(2.0), 5),
        (Settings(epsilon=1.0, loss="huber", loss_parameter=0.2), 2, HuberSVM(0.2), 1),
        (Settings(epsilon=1.0, loss="huber"), 5, MulticlassHuber(5, 0.1), 1),
        (Settings(epsilon=1.0, loss="huber", multiclass="one-vs-all"), 5, HuberSVM(0.1), 5),
    ],
)
def test_plan_chooses_the_loss_and_the_number_of_models(
    settings: Settings, classes: int, loss: object, models: int
) -> None:
    certificate = plan_certificate(settings, rows=1000, dims=4, classes=classes)
    assert certificate.problem.loss == loss
    assert certificate.model_count == models


def test_one_vs_all_splits_the_budget() -> None:
    settings = Settings(epsilon=1.0, step_size=0.1)
    whole = plan_certificate(settings, rows=1000, dims=4, classes=2)
    split = plan_certificate(replace(settings, multiclass="one-vs-all"), rows=1000, dims=4, classes=5)
    assert (whole.model_count, split.model_count) == (1, 5)
    assert whole.release_noise is not None
    assert split.release_noise is not None
    assert split.release_noise.scale == pytest.approx(5 * whole.release_noise.scale)


def schedule_of(settings: Settings, *, rows: int, dims: int) -> Schedule:
    recipe = plan_certificate(settings, rows=rows, dims=dims, classes=2).problem
    assert isinstance(recipe, Recipe)
    return recipe.schedule


@pytest.mark.parametrize(
    ("settings", "growth", "largest"),
    [
        (Settings(epsilon=1.0, step_size=0.1), "none", 0.1),
        (Settings(epsilon=1.0, schedule="decreasing", exponent=0.0), "linear", 4.0),
        (Settings(epsilon=1.0, schedule="square-root", exponent=0.0), "sqrt", 4.0),
        (Settings(epsilon=1.0, algorithm="bolton", regularization=0.25), "linear", 2.0),
        (Settings(epsilon=1.0, regularization=0.25, schedule="strongly-convex-constant", step_size=1.5), "none", 1.5),
    ],
)
def test_plan_makes_the_schedules(settings: Settings, growth: str, largest: float) -> None:
    schedule = schedule_of(settings, rows=1000, dims=4)
    assert schedule.growth == growth
    assert schedule.largest == pytest.approx(largest)


def test_default_step_grows_with_the_budget_and_stays_allowed() -> None:
    steps = [
        schedule_of(Settings(epsilon=epsilon, algorithm="bolton"), rows=10_000, dims=20).scale
        for epsilon in (0.01, 0.1, 1.0, 10.0, 1e6)
    ]
    assert steps == sorted(steps)
    assert steps[-1] <= 1 / 0.25


def test_paper_analysis_is_marked() -> None:
    certificate = plan_certificate(Settings(epsilon=1.0, analysis="paper"), rows=1000, dims=4, classes=2)
    assert certificate.reasons == (PUBLISHED,)
    assert isinstance(certificate.training, OutputPerturbation)
    assert certificate.training.analysis == "paper"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(epsilon=-1.0), "epsilon must be a finite number > 0, got -1"),
        (Settings(epsilon=math.nan), "epsilon must be a finite number > 0, got nan"),
        (Settings(epsilon=1.0, delta=1.0), r"delta must be in \[0, 1\), got 1"),
        (Settings(epsilon=1.0, step_size=9.0), "at most 2/beta = 8, got 9"),
        (Settings(epsilon=1.0, batch_size=1001), "batch_size must be at most the number of rows, 1000, got 1001"),
        (
            Settings(epsilon=1.0, loss="hinge"),
            "loss must be one of auto, logistic, margin, huber, robust, quantile, mean, got 'hinge'",
        ),
        (Settings(epsilon=1.0, schedule="fast"), "schedule must be one of"),  # type: ignore[arg-type]
        (Settings(epsilon=1.0, schedule="decreasing", step_size=1.0), "step_size is for the constant schedules"),
        (Settings(epsilon=1.0, schedule="strongly-convex"), "regularization must be > 0"),
    ],
)
def test_bad_settings_are_refused_before_a_row_is_read(settings: Settings, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        plan_certificate(settings, rows=1000, dims=4, classes=2)


# ---- which algorithm it is --------------------------------------------------------------------------------------

#: Something to ask for of all that only some algorithms have; much of it is what would be chosen anyway.
ASKED: dict[str, Any] = {
    "passes": 10,
    "batch_size": 50,
    "schedule": "constant",
    "step_size": 0.1,
    "gradient_clip": 0.5,
    "exponent": 0.5,
    "radius": 5.0,
    "averaging": "last",
    "permutation": "once",
    "partitions": 3,
    "analysis": "paper",
}


def chosen(settings: Settings) -> str:
    loss, _ = settings.choose_loss(Classes("label", (0, 1)))
    return choose_algorithm([settings], loss, settings.budget, dims=3, rows=1000).name


def test_all_that_only_some_algorithms_have_is_tried_below() -> None:
    assert tuple(ASKED) == OPTIONAL


def test_ten_passes_that_are_asked_for_are_made() -> None:
    """Ten was the default, so that asking for it was taken for not asking, and objective perturbation made none."""
    asked, unasked = Settings(epsilon=1.0, passes=10), Settings(epsilon=1.0)
    assert (asked.given_names, unasked.given_names) == (("passes",), ())
    assert (chosen(asked), chosen(unasked)) == ("bolton", "objective")
    certificate = plan_certificate(asked, rows=1000, dims=4, classes=2)
    assert certificate.algorithm == "bolton"
    assert isinstance(certificate.problem, Recipe)
    assert certificate.problem.passes == 10
    assert plan_certificate(unasked, rows=1000, dims=4, classes=2).algorithm == "objective"
    engine, schema = people()
    told: list[str] = []
    context = asked.context(progress=lambda stage, *_: told.append(stage))
    assert train(engine, schema, asked, context=context).certificate.algorithm == "bolton"
    assert "pass 10 of 10" in told


@pytest.mark.parametrize("name", ASKED)
def test_whatever_only_passes_have_makes_auto_passes(name: str) -> None:
    settings = Settings(epsilon=1.0, **{name: ASKED[name]})
    assert settings.given_names == (name,)
    assert chosen(settings) == plan_certificate(settings, rows=1000, dims=4, classes=2).algorithm == "bolton"
    assert settings.reset(name) == Settings(epsilon=1.0)
    assert chosen(settings.reset(name)) == "objective"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(epsilon=1.0), "objective"),
        (Settings(epsilon=1.0, schedule="auto", analysis="proved"), "objective"),
        (Settings(epsilon=1.0, regularization=0.1), "objective"),
        (Settings(epsilon=1.0, regularization=0.0), "bolton"),
        (Settings(epsilon=1.0, loss="huber"), "objective"),
        (Settings(epsilon=None), "bolton"),
        (Settings(epsilon=1.0, algorithm="scs13"), "scs13"),
    ],
)
def test_auto_is_the_first_that_can_do_what_is_asked_for(settings: Settings, name: str) -> None:
    assert chosen(settings) == plan_certificate(settings, rows=1000, dims=4, classes=2).algorithm == name


@pytest.mark.parametrize(
    ("algorithm", "refused"),
    [
        ("objective", OPTIONAL),
        ("bolton", ()),
        ("scs13", ("partitions",)),
        ("bst14", ("permutation", "partitions")),
        ("dpsgd", ("permutation", "partitions", "analysis")),
    ],
)
def test_an_algorithm_refuses_what_it_does_not_have(algorithm: str, refused: tuple[str, ...]) -> None:
    for name, value in ASKED.items():
        settings = Settings(epsilon=1.0, delta=1e-6, algorithm=algorithm, **{name: value})
        if name not in refused:
            assert plan_certificate(settings, rows=1000, dims=4, classes=2).algorithm == algorithm
            continue
        message = (
            f"^analysis must be 'proved' for the algorithm {algorithm}, got 'paper'$"
            if name == "analysis"
            else f"^{name} must not be given for the algorithm {algorithm}, which has none$"
        )
        with pytest.raises(ParameterError, match=message):
            plan_certificate(settings, rows=1000, dims=4, classes=2)
    assert set(refused) == set(OPTIONAL) - ALGORITHMS[algorithm].takes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            Settings(epsilon=1.0, algorithm="magic"),
            "algorithm must be one of auto, objective, noisy-gd, bolton, .*, got 'magic'",
        ),
        (
            Settings(epsilon=1.0, loss="multinomial"),
            "loss must be one of auto, logistic, margin, huber, robust, quantile, mean, got 'multinomial'",
        ),
        (
            Settings(epsilon=1.0, loss="logistic", loss_parameter=0.2),
            "loss_parameter must not be given for the loss 'logistic'",
        ),
        (Settings(epsilon=1.0, algorithm="objective", regularization=0.0), "regularization must be > 0"),
        (Settings(epsilon=1.0, multiclass="both"), "multiclass must be one of multinomial, one-vs-all"),  # type: ignore[arg-type]
        (Settings(epsilon=1.0, analysis="guessed"), "analysis must be one of proved, paper"),  # type: ignore[arg-type]
        (Settings(epsilon=1.0, averaging="some"), "averaging must be one of last, all, tail"),  # type: ignore[arg-type]
        (Settings(epsilon=1.0, radius=-1.0), "radius must be > 0"),
        (Settings(epsilon=None, noise_seed=1), "noise_seed must not be given without epsilon"),
        (Settings(epsilon=1.0, standardize="private"), "a plan must have the standardization that is asked for"),
    ],
)
def test_what_no_algorithm_can_do_is_refused(settings: Settings, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        plan_certificate(settings, rows=1000, dims=4, classes=2)


# ---- from the run to the release --------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
def test_a_model_is_what_a_run_gives_and_the_release_makes_of_it(algorithm: str, multiclass: Any) -> None:
    engine, schema = people()
    settings = Settings(epsilon=1.0, delta=1e-6, algorithm=algorithm, multiclass=multiclass, noise_seed=4)
    certificate = plan_certificate(settings, rows=ROWS, dims=schema.dims, classes=3)
    context = Context(seed=3, randomness=Randomness(4))
    with engine.prepare(schema, context) as prepared:
        jobs = [Job(certificate, context.randomness)]
        (weights,) = ALGORITHMS[algorithm].run(prepared, jobs, classes=3, context=context)
        model = train_prepared(prepared, schema, certificate, context)
    assert weights.shape == ((3, 1, 4) if multiclass == "one-vs-all" else (1, 3, 4))
    released = release_weights(weights, certificate, context.randomness)
    assert (released.reshape(3, 4) == model.weights).all()
    assert (released != weights).any() == (certificate.release_noise is not None)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("planned", "used"), [(None, 5), (5, None)])
def test_a_seed_that_the_certificate_does_not_confess_is_refused(
    algorithm: str, planned: int | None, used: int | None
) -> None:
    engine, schema = people()
    settings = Settings(epsilon=1.0, delta=1e-6, algorithm=algorithm, noise_seed=planned)
    with pytest.raises(ParameterError, match="must match the use of a seed"):
        train(engine, schema, settings, context=Context(randomness=Randomness(used)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rows_that_are_not_as_many_as_planned_are_refused(algorithm: str) -> None:
    engine, schema = people()
    settings = Settings(epsilon=1.0, delta=1e-6, algorithm=algorithm)
    certificate = plan_certificate(settings, rows=ROWS - 1, dims=schema.dims, classes=3)
    with engine.prepare(schema, Context()) as prepared, pytest.raises(DataError, match="changed while it was read"):
        train_prepared(prepared, schema, certificate, Context())


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_are_refused(rows: int) -> None:
    with pytest.raises(ParameterError, match=f"at least 2 rows, got {rows}"):
        plan_certificate(Settings(epsilon=1.0), rows=rows, dims=4, classes=2)


@pytest.fixture(scope="module")
def mnist() -> Iterator[tuple[Benchmark, PreparedRows, npt.NDArray[np.float32]]]:
    """MNIST in 50 random directions: prepared training rows and encoded test rows."""
    benchmark = BENCHMARKS["mnist50"]
    if not benchmark.available():
        pytest.skip("MNIST is not in the directory that BOLTDP_DATA names")
    test = np.concatenate(list(encode_rows(open_source(benchmark.source("test")), benchmark.schema)))
    with open_source(benchmark.source("train")).prepare(benchmark.schema, Context(seed=1)) as prepared:
        yield benchmark, prepared, test


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("approximate", [False, True])
def test_multinomial_beats_one_vs_all_on_projected_mnist(
    mnist: tuple[Benchmark, PreparedRows, npt.NDArray[np.float32]], epsilon: float, approximate: bool
) -> None:
    benchmark, prepared, test = mnist
    delta = 1 / prepared.rows**2 if approximate else 0.0

    def mean_accuracy(settings: Settings) -> float:
        certificate = plan_certificate(settings, rows=prepared.rows, dims=prepared.dims, classes=10)
        assert certificate.private
        models = [train_prepared(prepared, benchmark.schema, certificate, Context(seed=1)) for _ in range(10)]
        return float(np.mean([(model.predict_indices(model.margins(test)) == test[:, 0]).mean() for model in models]))

    common = Settings(epsilon=epsilon, delta=delta, loss="logistic", batch_size=50)
    multinomial = mean_accuracy(replace(common, multiclass="multinomial"))
    one_vs_all = mean_accuracy(replace(common, multiclass="one-vs-all"))
    assert multinomial > one_vs_all + 0.05


def test_no_other_user_sees_scans_whose_number_depends_on_the_rows() -> None:
    """The weights are the same bits, and where the rows are each is scanned as often as any others."""
    random = np.random.default_rng(2)
    schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    settings = Settings(epsilon=5.0, inference=True, noise_seed=1, seed=1)
    counts: dict[bool, list[dict[str, int]]] = {False: [], True: []}
    age = random.integers(0, 100, ROWS)
    for sick in (random.integers(0, 2, ROWS), age > 50):
        models = []
        for hide in counts:
            engine = CountedEngine(ArrayEngine.from_arrow(pa.table({"age": age, "sick": sick.astype(int)})))
            models.append(train(engine, schema, settings, context=replace(settings.context(), hide_scans=hide)))
            counts[hide].append(dict(engine.counts))
        assert models[0].to_dict() == models[1].to_dict()
    assert counts[True][0] == counts[True][1]
    assert counts[False][0] != counts[False][1]
