"""The white-box algorithms, trained: noise in every update, samples, settings, tuning and the guards around them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from boltdp.compare import compare
from boltdp.data.schema import Schema, Vector
from boltdp.engines.arrays import ArrayEngine
from boltdp.errors import ParameterError
from boltdp.estimators import PrivateLogisticRegression
from boltdp.kernel import State
from boltdp.model import Model
from boltdp.privacy.algorithms import RIVALS, Algorithm
from boltdp.privacy.certificate import verify
from boltdp.privacy.noise import Mechanism
from boltdp.privacy.schedules import Schedule
from boltdp.settings import Settings
from boltdp.train import release_model, run_passes, train
from boltdp.tune import Method, _independent_models, candidates, tune

ROWS = 3000


def data(classes: int = 2) -> tuple[ArrayEngine, Schema]:
    random = np.random.default_rng(0)
    features = random.uniform(-0.5, 0.5, (ROWS, 3))
    labels = np.minimum((features[:, 0] + 0.5) * classes, classes - 1).astype(int)
    schema = Schema("label", tuple(range(classes)), (Vector("x", 3, -1.0, 1.0),), radius=1.0)
    return ArrayEngine.from_numpy(features, labels), schema


def settings(algorithm: Algorithm, *, epsilon: float | None = 4.0, noise_seed: int | None = None) -> Settings:
    return Settings(epsilon=epsilon, delta=1e-5, algorithm=algorithm, passes=2, noise_seed=noise_seed)


def accuracy(model: Model, engine: ArrayEngine) -> float:
    labels = np.concatenate([batch.column("label").to_numpy() for batch in engine.batches(["label"])])
    margins = np.concatenate([*model.score_batches(engine)])
    return float((np.array(model.classes)[model.choices(margins)] == labels).mean())


@pytest.mark.parametrize("algorithm", RIVALS)
@pytest.mark.parametrize("classes", [2, 3])
def test_they_learn_and_their_certificates_verify(algorithm: Algorithm, classes: int) -> None:
    engine, schema = data(classes)
    model = train(engine, schema, replace(settings(algorithm, epsilon=50.0), passes=5))
    verify(model.certificate)
    assert model.certificate.private
    assert model.certificate.mechanism is None
    assert accuracy(model, engine) > 1.3 / classes


@pytest.mark.parametrize("algorithm", RIVALS)
def test_only_a_seed_makes_the_noise_repeatable(algorithm: Algorithm) -> None:
    engine, schema = data()
    seeded = [train(engine, schema, replace(settings(algorithm, noise_seed=7), seed=1)) for _ in range(2)]
    assert (seeded[0].weights == seeded[1].weights).all()
    assert not seeded[0].certificate.private
    others = [train(engine, schema, replace(settings(algorithm), seed=1)) for _ in range(2)]
    assert (others[0].weights != others[1].weights).all()


@pytest.mark.parametrize("algorithm", RIVALS)
def test_one_vs_all_models_have_noise_of_their_own(algorithm: Algorithm) -> None:
    engine, schema = data(3)
    model = train(engine, schema, replace(settings(algorithm, epsilon=1.0), multiclass="one-vs-all", noise_seed=1))
    assert model.certificate.models == 3
    assert len(np.unique(model.weights)) == model.weights.size


def test_progress_tells_nothing_of_the_sizes_of_random_batches() -> None:
    engine, schema = data()
    told: list[list[tuple[str, int, int]]] = []
    for _ in range(2):
        calls: list[tuple[str, int, int]] = []
        train(engine, schema, settings("dpsgd"), progress=lambda *call, calls=calls: calls.append(call))
        told.append([call for call in calls if call[0].startswith("pass")])
    assert told[0] == told[1]
    assert told[0][-1] == ("pass 2 of 2", ROWS, ROWS)


def test_states_without_the_stated_noise_are_never_released() -> None:
    engine, schema = data()
    certificate = settings("scs13").plan(rows=ROWS, dims=schema.dims, classes=2)
    state = State(certificate.recipe)
    with pytest.raises(ParameterError, match="must have been trained with the noise"):
        release_model([state], schema, certificate)
    with engine.prepare(schema, seed=1) as prepared:
        weaker = replace(certificate, training_noise=Mechanism("spherical", 1e-9, schema.dims))
        with pytest.raises(ParameterError, match="must have been trained with the noise"):
            release_model(run_passes(prepared, schema, weaker, seed=1), schema, certificate)


def test_a_seed_is_taken_only_where_the_certificate_confesses_it() -> None:
    engine, schema = data()
    certificate = settings("scs13").plan(rows=ROWS, dims=schema.dims, classes=2)
    with (
        engine.prepare(schema, seed=1) as prepared,
        pytest.raises(ParameterError, match="must match the use of a seed"),
    ):
        run_passes(prepared, schema, certificate, seed=1, noise_seed=3)


def test_published_steps_and_radii_are_the_defaults() -> None:
    def planned(algorithm: Algorithm, regularization: float = 0.0) -> tuple[Schedule, float]:
        chosen = replace(settings(algorithm), regularization=regularization)
        recipe = chosen.plan(rows=ROWS, dims=4, classes=2).recipe
        return recipe.schedule, recipe.radius

    assert planned("scs13") == (Schedule("sqrt", scale=1.0), math.inf)
    assert planned("scs13", 0.01) == (Schedule("sqrt", scale=1.0), 100.0)
    assert planned("bst14", 0.01) == (Schedule("linear", scale=100.0), 100.0)
    schedule, radius = planned("bst14")
    noise = settings("bst14").plan(rows=ROWS, dims=4, classes=2).training_noise
    assert noise is not None
    assert radius == 5.0
    assert schedule.growth == "sqrt"
    assert schedule.scale == pytest.approx(10.0 / math.sqrt(1 + 4 * noise.scale**2))
    assert planned("dpsgd")[0].growth == "none"
    assert planned("dpsgd", 0.01)[0].growth == "linear"


def test_other_schedules_and_steps_can_be_asked_for() -> None:
    asked = replace(settings("scs13"), schedule="constant", step_size=0.3).plan(rows=ROWS, dims=4, classes=2)
    assert asked.recipe.schedule.largest == 0.3
    chosen = replace(settings("scs13"), schedule="constant").plan(rows=ROWS, dims=4, classes=2)
    assert 0 < chosen.recipe.schedule.largest <= 4.0


@pytest.mark.parametrize("algorithm", RIVALS)
def test_they_are_nothing_without_noise(algorithm: Algorithm) -> None:
    with pytest.raises(ParameterError, match=f"epsilon must be given for the algorithm {algorithm}, got None"):
        settings(algorithm, epsilon=None).plan(rows=ROWS, dims=4, classes=2)


@pytest.mark.parametrize("method", ["trials", "portions", "public"])
def test_they_can_be_tuned(method: Method) -> None:
    engine, schema = data()
    grid = candidates(settings("dpsgd"), {"passes": [1, 2]})
    model = tune(engine, schema, grid, method=method, public=engine if method == "public" else None, trials=3)
    verify(model.certificate)
    assert model.certificate.private
    assert model.certificate.training_noise is not None


@pytest.mark.parametrize("algorithm", ["bolton", *RIVALS])
def test_models_for_trials_have_independent_noise(algorithm: Algorithm) -> None:
    """Models that shared the noise of their training would be the same, since none is added at the release."""
    engine, schema = data()
    certificate = settings(algorithm).plan(rows=ROWS, dims=schema.dims, classes=2)
    with engine.prepare(schema, seed=1) as prepared:
        make = _independent_models(prepared, schema, certificate, itertools.repeat(None), seed=1, progress=None)
        made = [make().weights for _ in range(3)]
    assert len(np.unique(made)) == 3 * schema.dims


def test_compare_has_them_in_both_forms() -> None:
    engine, schema = data()
    names = ["bolton", "scs13", "scs13-paper", "bst14", "bst14-paper", "dpsgd"]
    common = Settings(epsilon=None, delta=1e-5, passes=2)
    made = compare(engine, schema, common, algorithms=names, epsilons=[1.0], repeats=1)
    assert {one.algorithm: one.private for one in made.summaries()} == {name: name != "bst14-paper" for name in names}


@pytest.mark.parametrize("algorithm", RIVALS)
def test_the_estimator_trains_them(algorithm: Algorithm) -> None:
    random = np.random.default_rng(1)
    X = random.uniform(-1, 1, (500, 2))
    y = X[:, 0] > 0
    classifier = PrivateLogisticRegression(
        epsilon=5.0, delta=1e-4, algorithm=algorithm, classes=[False, True], bounds=(-1, 1)
    )
    assert classifier.fit(X, y).certificate_.algorithm == algorithm
