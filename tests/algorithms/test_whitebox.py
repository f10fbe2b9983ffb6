"""The white-box algorithms, trained: noise in every update, samples, settings, tuning and the guards around them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from boltdp.algorithms import ALGORITHMS, Job
from boltdp.algorithms._sgd import WhiteBox
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import ParameterError
from boltdp.estimators import PrivateLogisticRegression
from boltdp.model import Model
from boltdp.privacy.certificate import OVERSPENT, Certificate, CertificateError, certify, verify
from boltdp.privacy.events.noisy_sgd import NoisyUpdates
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release_with_noise import Randomness, release_weights
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import Schedule
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Number, Schema, Vector
from boltdp.settings import Settings
from boltdp.workflows.compare import compare
from boltdp.workflows.predict import predict, score_batches
from boltdp.workflows.select import Candidates
from boltdp.workflows.train import train, train_prepared
from boltdp.workflows.tune import Method, expand_grid, tune
from tests.algorithms.counted import CountedRows
from tests.plans import plan_certificate

WHITE_BOX = [name for name, algorithm in ALGORITHMS.items() if isinstance(algorithm, WhiteBox)]

ROWS = 3000


def data(classes: int = 2) -> tuple[ArrayEngine, Schema]:
    random = np.random.default_rng(0)
    features = random.uniform(-0.5, 0.5, (ROWS, 3))
    labels = np.minimum((features[:, 0] + 0.5) * classes, classes - 1).astype(int)
    schema = Schema(Classes("label", tuple(range(classes))), (Vector("x", 3, -1.0, 1.0),), clip_norm=1.0)
    return ArrayEngine.from_numpy(features, labels), schema


def planned(settings: Settings, *, dims: int = 4) -> Certificate:
    return plan_certificate(settings, rows=ROWS, dims=dims, classes=2)


def recipe_of(settings: Settings) -> Recipe:
    recipe = planned(settings).problem
    assert isinstance(recipe, Recipe)
    return recipe


def settings(algorithm: str, *, epsilon: float | None = 4.0, noise_seed: int | None = None) -> Settings:
    return Settings(epsilon=epsilon, delta=1e-5, algorithm=algorithm, passes=2, noise_seed=noise_seed)


def accuracy(model: Model, engine: ArrayEngine) -> float:
    labels = np.concatenate([batch.column("label").to_numpy() for batch in engine.batches(["label"])])
    margins = np.concatenate([*score_batches(model, engine)])
    return float((np.array(model.classes)[model.predict_indices(margins)] == labels).mean())


@pytest.mark.parametrize("algorithm", WHITE_BOX)
@pytest.mark.parametrize("classes", [2, 3])
def test_they_learn_and_their_certificates_verify(algorithm: str, classes: int) -> None:
    engine, schema = data(classes)
    model = train(engine, schema, replace(settings(algorithm, epsilon=50.0), passes=5))
    verify(model.certificate)
    assert model.certificate.private
    assert model.certificate.release_noise is None
    assert accuracy(model, engine) > 1.3 / classes


@pytest.mark.parametrize("algorithm", WHITE_BOX)
@pytest.mark.parametrize("loss", ["robust", "quantile", "mean"])
def test_they_learn_numbers_and_their_certificates_verify(algorithm: str, loss: str) -> None:
    features = np.random.default_rng(0).uniform(-0.5, 0.5, (ROWS, 3))
    cost = 50 + 40 * features[:, 0]
    engine, schema = ArrayEngine.from_numpy(features, cost), data()[1]
    schema = replace(schema, target=Number("label", 0, 100, typical=(34, 66)))
    model = train(engine, schema, replace(settings(algorithm, epsilon=50.0), passes=5, loss=loss, step_size=0.5))
    verify(model.certificate)
    assert model.certificate.private
    assert model.certificate.training_noise is not None
    assert np.corrcoef(predict(model, engine), cost)[0, 1] > 0.8


@pytest.mark.parametrize("algorithm", WHITE_BOX)
def test_only_a_seed_makes_the_noise_repeatable(algorithm: str) -> None:
    engine, schema = data()
    seeded = [train(engine, schema, replace(settings(algorithm, noise_seed=7), seed=1)) for _ in range(2)]
    assert (seeded[0].weights == seeded[1].weights).all()
    assert not seeded[0].certificate.private
    others = [train(engine, schema, replace(settings(algorithm), seed=1)) for _ in range(2)]
    assert (others[0].weights != others[1].weights).all()


@pytest.mark.parametrize("algorithm", WHITE_BOX)
def test_one_vs_all_models_have_noise_of_their_own(algorithm: str) -> None:
    engine, schema = data(3)
    model = train(engine, schema, replace(settings(algorithm, epsilon=1.0), multiclass="one-vs-all", noise_seed=1))
    assert model.certificate.model_count == 3
    assert len(np.unique(model.weights)) == model.weights.size


def test_progress_tells_nothing_of_the_sizes_of_random_batches() -> None:
    engine, schema = data()
    told: list[list[tuple[str, int, int]]] = []
    for _ in range(2):
        calls: list[tuple[str, int, int]] = []
        context = Context(progress=lambda *call, calls=calls: calls.append(call))
        train(engine, schema, settings("dpsgd"), context=context)
        told.append([call for call in calls if call[0].startswith("pass")])
    assert told[0] == told[1]
    assert told[0][-1] == ("pass 2 of 2", ROWS, ROWS)


def weakened(certificate: Certificate, noise: Mechanism) -> Certificate:
    event = certificate.training
    assert isinstance(event, NoisyUpdates)
    return certify(replace(event, noise=noise), certificate.budget)


@pytest.mark.parametrize("algorithm", WHITE_BOX)
@pytest.mark.parametrize("classes", [2, 3])
def test_every_state_is_trained_with_the_noise_that_the_certificate_states(algorithm: str, classes: int) -> None:
    engine, schema = data(classes)
    chosen = replace(settings(algorithm), multiclass="one-vs-all")
    certificate = plan_certificate(chosen, rows=ROWS, dims=schema.dims, classes=classes)
    with engine.prepare(schema, Context(seed=1)) as prepared:
        counted = CountedRows(prepared)
        model = train_prepared(counted, schema, certificate, Context(seed=1))
    states = {id(state): state for state in counted.fed}
    assert len(states) == certificate.model_count == (1 if classes == 2 else 3)
    for state in states.values():
        assert certificate.training_noise is not None
        assert state._header.recipe.deviation == certificate.training_noise.scale
        assert state.is_finished
    trained = {state.weights.tobytes() for state in states.values()}
    assert {weights[np.newaxis].tobytes() for weights in model.weights} == trained


@pytest.mark.parametrize("algorithm", WHITE_BOX)
def test_a_model_trained_with_less_noise_is_not_private_and_does_not_verify(algorithm: str) -> None:
    engine, schema = data()
    certificate = planned(settings(algorithm), dims=schema.dims)
    noise = certificate.training_noise
    assert noise is not None
    for scale in (noise.scale / 2, noise.scale / 4):
        weaker = weakened(certificate, replace(noise, scale=scale))
        with engine.prepare(schema, Context(seed=1)) as prepared:
            model = train_prepared(prepared, schema, weaker, Context(seed=1))
        assert model.certificate.reasons == (OVERSPENT,)
        with pytest.raises(CertificateError, match="follows from its events"):
            model.verify()


@pytest.mark.parametrize("algorithm", WHITE_BOX)
def test_noise_of_other_dimensions_is_never_stated(algorithm: str) -> None:
    certificate = planned(settings(algorithm))
    noise = certificate.training_noise
    assert noise is not None
    with pytest.raises(ParameterError, match="the noise must have 4 dimensions, got 3"):
        weakened(certificate, replace(noise, dimensions=3))


@pytest.mark.parametrize("algorithm", WHITE_BOX)
def test_a_seed_is_taken_only_where_the_certificate_confesses_it(algorithm: str) -> None:
    engine, schema = data()
    certificate, context = planned(settings(algorithm), dims=schema.dims), Context(seed=1)
    confessed = planned(settings(algorithm, noise_seed=3), dims=schema.dims)
    with engine.prepare(schema, context) as prepared:
        for job in (Job(certificate, Randomness(3)), Job(confessed, Randomness())):
            counted = CountedRows(prepared)
            with pytest.raises(ParameterError, match="must match the use of a seed"):
                ALGORITHMS[algorithm].run(counted, [job], classes=2, context=context)
            assert not counted.counts
    with pytest.raises(ParameterError, match="must match the use of a seed"):
        release_weights(np.zeros((1, 1, schema.dims)), certificate, Randomness(3))


def test_published_steps_and_radii_are_the_defaults() -> None:
    def chosen(algorithm: str, regularization: float | None = None) -> tuple[Schedule, float]:
        recipe = recipe_of(replace(settings(algorithm), regularization=regularization))
        return recipe.schedule, recipe.radius

    assert chosen("scs13") == chosen("scs13", 0.0) == (Schedule("sqrt", scale=1.0), math.inf)
    assert chosen("scs13", 0.01) == (Schedule("sqrt", scale=1.0), 100.0)
    assert chosen("bst14", 0.01) == (Schedule("linear", scale=100.0), 100.0)
    schedule, radius = chosen("bst14")
    assert chosen("bst14", 0.0) == (schedule, radius)
    noise = planned(settings("bst14")).training_noise
    assert noise is not None
    assert radius == 5.0
    assert schedule.growth == "sqrt"
    assert schedule.scale == pytest.approx(10.0 / math.sqrt(1 + 4 * noise.scale**2))
    assert chosen("dpsgd")[0].growth == "none"
    assert chosen("dpsgd", 0.01)[0].growth == "linear"


def test_other_schedules_and_steps_can_be_asked_for() -> None:
    asked = replace(settings("scs13"), schedule="constant")
    assert recipe_of(replace(asked, step_size=0.3)).schedule.largest == 0.3
    assert 0 < recipe_of(asked).schedule.largest <= 4.0


@pytest.mark.parametrize("algorithm", WHITE_BOX)
def test_they_are_nothing_without_noise(algorithm: str) -> None:
    with pytest.raises(ParameterError, match=f"epsilon must be given for the algorithm {algorithm}, got None"):
        planned(settings(algorithm, epsilon=None))


@pytest.mark.parametrize("method", ["trials", "portions", "public"])
def test_they_can_be_tuned(method: Method) -> None:
    engine, schema = data()
    grid = expand_grid(settings("dpsgd"), {"passes": [1, 2]})
    model = tune(engine, schema, grid, method=method, public=engine if method == "public" else None, trials=3)
    verify(model.certificate)
    assert model.certificate.private
    assert model.certificate.training_noise is not None


@pytest.mark.parametrize("algorithm", ["bolton", "objective", *WHITE_BOX])
def test_models_for_trials_have_independent_noise(algorithm: str) -> None:
    """Models that shared the noise of their training would be the same, since none is added at the release."""
    engine, schema = data()
    chosen = replace(settings(algorithm), passes=None if algorithm == "objective" else 2)
    certificate, context = planned(chosen, dims=schema.dims), Context(seed=1)
    with engine.prepare(schema, context) as prepared:
        made = Candidates(prepared, [certificate, certificate], classes=2, context=context)
        forks = context.randomness.spawn()
        released = [*made.release([0, 1, 0], forks), *made.release([0], forks)]
    assert len(np.unique(released)) == 4 * schema.dims


def test_each_release_of_a_seed_has_noise_of_its_own() -> None:
    engine, schema = data()
    certificate = planned(settings("dpsgd", noise_seed=5), dims=schema.dims)
    context = Context(seed=1, randomness=Randomness(5))
    with engine.prepare(schema, context) as prepared:
        made = Candidates(prepared, [certificate], classes=2, context=context)
        first, again = (made.release([0, 0, 0], context.randomness.spawn()) for _ in range(2))
    assert np.array_equal(first, again)
    assert len(np.unique(first)) == 3 * schema.dims


def test_compare_has_them_in_both_forms() -> None:
    engine, schema = data()
    names = ["bolton", "scs13", "scs13-paper", "bst14", "bst14-paper", "dpsgd"]
    common = Settings(epsilon=None, delta=1e-5, passes=2)
    made = compare(engine, schema, common, names=names, epsilons=[1.0], repeats=1)
    assert {one.algorithm: one.private for one in made.summarize_runs()} == {
        name: name != "bst14-paper" for name in names
    }


@pytest.mark.parametrize("algorithm", WHITE_BOX)
def test_the_estimator_trains_them(algorithm: str) -> None:
    random = np.random.default_rng(1)
    X = random.uniform(-1, 1, (500, 2))
    y = X[:, 0] > 0
    classifier = PrivateLogisticRegression(
        epsilon=5.0, delta=1e-4, algorithm=algorithm, classes=[False, True], bounds=(-1, 1)
    )
    assert classifier.fit(X, y).certificate_.algorithm == algorithm
