"""What noise does to released weights: against weights that were released many times."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from boltdp._array_types import Doubles
from boltdp.engines import open_source
from boltdp.losses import HuberSVM, Logistic, Loss, MarginLogistic, Mean, Multinomial, Robust
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.noisy_sgd import NoisyUpdates, calibrate_scs13
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule, make_strongly_convex_schedule
from boltdp.privacy.training_problem import Problem
from boltdp.privacy.weight_uncertainty import (
    WeightDeviation,
    bound_deviation,
    bound_minimiser_deviation,
    bound_sgd_deviation,
    bound_variance_ratio,
    compute_weight_deviation,
    find_critical_value,
)
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.train import train

DRAWS = 250


def released(settings: Settings, *, classes: int, rows: int, empty: bool = False) -> tuple[WeightDeviation, Doubles]:
    """The spread that is claimed, and the weights of many trainings on the same rows."""
    random = np.random.default_rng(0)
    X = np.zeros((rows, 3)) if empty else random.normal(0, 0.4, (rows, 3))
    y = np.argmax(X[:, :classes] + random.normal(0, 0.1, (rows, classes)), axis=1)
    schema = make_array_schema(dims=3, classes=tuple(range(classes)))
    models = [
        train(open_source((X, y)), schema, Settings(**{**vars(settings), "noise_seed": seed, "seed": 1}))
        for seed in range(DRAWS)
    ]
    spread = compute_weight_deviation(models[0].certificate.training)
    assert spread is not None
    return spread, np.stack([model.weights for model in models])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_noise_after_training_spreads_the_weights_as_stated(classes: int, delta: float) -> None:
    settings = Settings(epsilon=1.0, delta=delta, algorithm="bolton", passes=1)
    spread, weights = released(settings, classes=classes, rows=100)
    assert spread.exact
    # Of 250 draws a deviation is known to about 5 percent, and more for tails that are long.
    assert weights.std(axis=0) == pytest.approx(spread.deviation, rel=0.25)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_noise_before_training_spreads_the_weights_no_further_than_stated(classes: int, delta: float) -> None:
    settings = Settings(epsilon=1.0, delta=delta, algorithm="objective", standardize="none", regularization=0.05)
    spread, weights = released(settings, classes=classes, rows=200)
    assert not spread.exact
    assert weights.std(axis=0).max() < spread.deviation
    # Rows that teach nothing leave the weights to the noise: there the bound is nearly reached.
    spread, weights = released(settings, classes=classes, rows=200, empty=True)
    observed = weights.std(axis=0)
    assert observed.max() < 1.15 * spread.deviation
    assert observed.min() > 0.6 * spread.deviation


@pytest.mark.parametrize("dimensions", [1, 2, 5, 50])
@pytest.mark.parametrize("kind", ["spherical", "gaussian"])
def test_no_function_that_changes_no_faster_than_its_argument_spreads_further(kind: str, dimensions: int) -> None:
    noise = Mechanism(kind, 1.0, dimensions)  # type: ignore[arg-type]
    random = np.random.default_rng(dimensions)
    directions = random.standard_normal((200_000, dimensions))
    if kind == "spherical":
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        directions *= random.gamma(dimensions, 1.0, (200_000, 1))
    largest = bound_deviation(noise)
    coordinate = directions[:, 0]
    lengths = np.linalg.norm(directions, axis=1)
    functions = [coordinate, lengths, np.abs(coordinate), np.sin(coordinate), np.maximum(coordinate, 1.0), lengths / 2]
    spreads = [float(values.std()) for values in functions]
    assert max(spreads) < 1.02 * largest
    assert max(spreads) > 0.69 * largest, "it must not be wide for nothing"


def test_more_rows_and_more_regularization_leave_less_to_the_noise() -> None:
    spreads = []
    for rows, regularization in ((1000, 0.01), (10_000, 0.01), (10_000, 0.1)):
        settings = Settings(epsilon=1.0, algorithm="objective", regularization=regularization)
        event = planned(settings, rows=rows)
        spread = compute_weight_deviation(event)
        assert spread is not None
        spreads.append(spread.deviation)
        assert spread.deviation >= event.end.deviation
    assert spreads[0] > 5 * spreads[1] > 25 * spreads[2]


def planned(settings: Settings, *, rows: int) -> ObjectivePerturbation:
    from tests.plans import plan_certificate

    event = plan_certificate(settings, rows=rows, dims=4, classes=2).training
    assert isinstance(event, ObjectivePerturbation)
    return event


def test_without_noise_there_is_no_spread_and_of_noisy_updates_nothing_is_said() -> None:
    from tests.plans import plan_certificate

    spread = compute_weight_deviation(plan_certificate(Settings(epsilon=None), rows=100, dims=4, classes=2).training)
    assert spread is not None
    assert (spread.deviation, spread.exact, spread.noise) == (0.0, True, None)
    assert spread.combined > 0
    certificate = plan_certificate(Settings(epsilon=None, algorithm="objective"), rows=100, dims=4, classes=2)
    spread = compute_weight_deviation(certificate.training)
    assert spread is not None
    ratio, strength = bound_variance_ratio(certificate.problem), 100 * certificate.problem.regularization
    assert spread.combined == pytest.approx(0.5 * math.sqrt(ratio / strength))
    recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=make_constant_schedule(0.1))
    assert compute_weight_deviation(NoisyUpdates(recipe, calibrate_scs13(recipe, Budget(1.0)), "permutation")) is None


def test_one_dimension_is_the_laplace_distribution() -> None:
    assert bound_deviation(Mechanism("spherical", 1.0, 1)) == 2.0
    assert bound_deviation(Mechanism("spherical", 1.0, 2)) == pytest.approx(math.sqrt(6.0))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("algorithm", ["objective", "bolton"])
@pytest.mark.parametrize("strength", [0.003, 0.05])
def test_labels_without_meaning_spread_the_weights_no_further_than_noise_and_sampling(
    classes: int, algorithm: str, strength: float
) -> None:
    """Over labels and noise, in the direction of most curvature and in one of little."""
    random, rows = np.random.default_rng(4), 2000
    X = random.normal(0, 1, (rows, 3)) * (0.5, 0.1, 0.02)
    schema = make_array_schema(dims=3, classes=tuple(range(classes)), intercept=False)
    weights = []
    for seed in range(60):
        settings = Settings(
            epsilon=20.0, algorithm=algorithm, standardize="none", regularization=strength, noise_seed=seed, seed=1
        )
        model = train(open_source((X, random.integers(0, classes, rows))), schema, settings)
        weights.append(model.weights)
    spread = compute_weight_deviation(model.certificate.training)
    assert spread is not None
    observed = np.sqrt((np.stack(weights) ** 2).mean(axis=0))
    # Of 60 draws a deviation is known to about 9 percent.
    assert observed.max() < 1.3 * spread.combined
    assert spread.combined > spread.deviation or not spread.exact


def test_the_bound_of_noise_and_sampling_is_the_largest_over_all_curvatures() -> None:
    for noise, strength, ratio in ((0.0, 4.0, 1.0), (1.0, 30.0, 7.4), (5.0, 4.0, 1.0)):
        curvatures = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 200_001)])
        variances = (ratio * curvatures + noise**2) / (curvatures + strength) ** 2
        assert bound_minimiser_deviation(noise, strength, ratio) == pytest.approx(math.sqrt(variances.max()), rel=1e-6)
    assert bound_minimiser_deviation(1.0, 1.0, math.inf) == math.inf


@pytest.mark.parametrize(
    ("loss", "ratio"), [(Logistic(), 1.0), (Multinomial(3), 1.0), (Mean(), 1.0), (MarginLogistic(2.0), math.e**2)]
)
def test_slopes_vary_no_more_than_their_curvature_times_a_ratio(loss: Loss, ratio: float) -> None:
    problem = Problem(loss=loss, dims=2, rows=100)
    assert bound_variance_ratio(problem) == pytest.approx(ratio)
    assert bound_variance_ratio(Problem(loss=loss, dims=2, rows=100, person_rows=5)) == pytest.approx(5 * ratio)
    scores = np.random.default_rng(1).normal(0, 2, (500, loss.vector_count))
    labels = [-1.0, 1.0] if isinstance(loss, Mean) else list(range(max(2, loss.vector_count)))
    slopes = np.stack([loss.compute_slopes(scores, label, positive=1) for label in labels], axis=1)
    hessians = np.stack([loss.compute_hessians(scores, label, positive=1).reshape(500, -1) for label in labels], axis=1)
    # The probabilities with which the mean slope is zero.
    if loss.vector_count == 1:
        share = slopes[:, 0, 0] / (slopes[:, 0, 0] - slopes[:, 1, 0])
        odds = np.stack([1.0 - share, share], axis=1)
    else:
        odds = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert np.einsum("rk,rkv->rv", odds, slopes) == pytest.approx(np.zeros_like(scores), abs=1e-9)
    direction = np.random.default_rng(2).normal(size=loss.vector_count)
    variance = np.einsum("rk,rk->r", odds, (slopes @ direction) ** 2)
    square = np.outer(direction, direction).ravel()
    curvature = np.einsum("rk,rk->r", odds, hessians @ square)
    assert (variance <= ratio * curvature * (1 + 1e-9)).all()
    if not isinstance(loss, MarginLogistic):
        assert variance == pytest.approx(curvature)


@pytest.mark.parametrize("loss", [HuberSVM(), Robust()])
def test_of_losses_without_such_a_ratio_nothing_is_said(loss: Loss) -> None:
    assert bound_variance_ratio(Problem(loss=loss, dims=2, rows=100)) == math.inf


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("schedule", [make_constant_schedule(0.5), make_strongly_convex_schedule(beta=0.3, gamma=0.05)])
def test_the_bound_of_sgd_is_near_the_deviation_of_linear_updates(passes: int, schedule: Any) -> None:
    rows, batch, penalty = 400, 4, 0.05
    recipe = Recipe(
        loss=Logistic(), dims=2, rows=rows, regularization=penalty, batch_size=batch, passes=passes, schedule=schedule
    )
    bound = bound_sgd_deviation(recipe, 1.0)
    random, steps = np.random.default_rng(3), schedule.compute_steps(np.arange(1, recipe.updates + 1))
    observed = []
    for curvature in (0.001, 0.01, 0.05, 0.25):
        noise = random.normal(0, math.sqrt(curvature), (4000, rows)).reshape(4000, rows // batch, batch).mean(axis=2)
        weights = np.zeros(4000)
        for update, step in enumerate(steps):
            weights -= step * ((curvature + penalty) * weights + noise[:, update % (rows // batch)])
        observed.append(float(weights.std()))
    assert 0.6 * bound < max(observed) < 1.03 * bound
    assert bound_sgd_deviation(replace(recipe, averaging="all"), 1.0) == math.inf
    assert bound_sgd_deviation(recipe, math.inf) == math.inf


@pytest.mark.parametrize("level", [0.05, 1e-4, 1e-9])
def test_critical_values_are_those_of_the_noise(level: float) -> None:
    laplace = -math.log(level) / math.sqrt(2.0)
    assert find_critical_value(Mechanism("spherical", 3.0, 1), level) == pytest.approx(laplace, rel=1e-6)
    normal = find_critical_value(None, level)
    assert math.erfc(normal / math.sqrt(2.0)) == pytest.approx(level, rel=1e-6)
    assert find_critical_value(Mechanism("gaussian", 3.0, 5), level) == normal
    assert normal < find_critical_value(Mechanism("spherical", 3.0, 1_000_000), level) < 1.001 * normal


def test_critical_values_of_spherical_noise_hold_in_draws() -> None:
    random, dimensions = np.random.default_rng(5), 4
    drawn = random.standard_normal((400_000, dimensions))
    drawn *= (random.gamma(dimensions, 1.0, 400_000) / np.linalg.norm(drawn, axis=1))[:, None]
    noise = Mechanism("spherical", 1.0, dimensions)
    beyond = np.abs(drawn[:, 0]) > find_critical_value(noise, 0.01) * noise.deviation
    assert beyond.mean() == pytest.approx(0.01, rel=0.1)
