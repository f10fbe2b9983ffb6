"""DP-SGD on wide features."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from boltdp.privacy.budget import Budget
from boltdp.privacy.mechanisms import calibrate_unit_gaussian
from experiments import wide_rivals


@pytest.mark.parametrize("epsilon", [-1.0, -0.05, 0.0, 0.1, 1.5])
@pytest.mark.parametrize(("deviation", "rate"), [(0.8, 0.3), (3.0, 0.1), (2.0, 1.0)])
def test_deltas_are_those_of_the_two_densities(epsilon: float, deviation: float, rate: float) -> None:
    places = np.linspace(-15 * deviation, 15 * deviation + 1, 400_001)
    without = norm.pdf(places, 0.0, deviation)
    with_row = (1 - rate) * without + rate * norm.pdf(places, 1.0, deviation)
    width = places[1] - places[0]
    for one, other, compute in (
        (with_row, without, wide_rivals.compute_added_delta),
        (without, with_row, wide_rivals.compute_removed_delta),
    ):
        expected = np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * width
        assert compute(np.array([epsilon]), deviation, rate)[0] == pytest.approx(expected, abs=1e-7)


def test_updates_on_all_rows_are_one_gaussian() -> None:
    budget, updates = Budget(1.0, 1e-5), 25
    exact = math.sqrt(updates) * calibrate_unit_gaussian(budget)
    for factor, within in ((0.99, False), (1.01, True)):
        found = wide_rivals.bound_unpaired_delta(factor * exact, rate=1.0, updates=updates, budget=budget)
        assert (found <= budget.delta) == within


def test_a_row_replaced_needs_more_noise_than_one_more_and_less_than_one_less_and_one_more() -> None:
    less, replaced = (
        wide_rivals.find_deviation(neighbours, Budget(2.0, 1e-5), rows=60_000, updates=50)
        for neighbours in wide_rivals.NEIGHBOURS
    )
    assert (
        less
        < replaced
        < wide_rivals.find_deviation(
            wide_rivals.NEIGHBOURS[0], Budget(1.0, 1e-5 / (1 + math.e)), rows=60_000, updates=50
        )
    )


def test_a_row_adds_a_vector_of_norm_one_at_most() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(60, 5)).astype(np.float32) * rng.choice([0.01, 1.0], (60, 1)).astype(np.float32)
    norms, labels = np.linalg.norm(rows, axis=1), rng.integers(10, size=60)
    weights = 3.0 * rng.normal(size=(2, 10, 5)).astype(np.float32)
    lengths = np.array(
        [
            [
                np.linalg.norm(model)
                for model in wide_rivals.sum_clipped(rows[[row]], norms[[row]], labels[[row]], weights)
            ]
            for row in range(60)
        ]
    )
    assert lengths.max() == pytest.approx(1.0, rel=1e-5)
    assert lengths.min() < 0.5
    single = [wide_rivals.sum_clipped(rows[[row]], norms[[row]], labels[[row]], weights) for row in range(60)]
    assert wide_rivals.sum_clipped(rows, norms, labels, weights) == pytest.approx(np.sum(single, axis=0), abs=1e-4)


def test_descent_learns_where_there_is_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_rivals, "BATCH", 400)
    rng = np.random.default_rng(2)
    labels = rng.integers(10, size=2000)
    rows = (np.eye(10, dtype=np.float32)[labels] + 0.1 * rng.normal(size=(2000, 10))).astype(np.float32)
    accuracies = []
    for deviation in (0.1, 1e5):
        weights = wide_rivals.descend(rows, labels, [1.0, 3.0], deviation=deviation, updates=30, rng=rng)
        accuracies.append([scores["accuracy"] for scores in wide_rivals.score_models(rows, labels, weights)])
    assert min(accuracies[0]) > 0.95
    assert max(accuracies[1]) < 0.5
