"""The rivals that grow trees."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from experiments.rivals import Rival
from experiments.tasks import Task, judged, split

from boltdp.engines.in_memory import ArrayEngine
from boltdp.privacy.budget import Budget
from boltdp.privacy.mechanisms import calibrate_unit_gaussian
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from experiments import accuracy, tree_rivals

PERMUTED: Rival = partial(tree_rivals.permuted_tree, depth=5, levels=3, quantiles=0.1, error=0.01, smoothing=1.0)
BOOSTED: Rival = partial(tree_rivals.boosted_trees, trees=60, depth=3, rate=0.5, ridge=1.0, quantiles=0.1)
DELTAS = {PERMUTED: 0.0, BOOSTED: 1e-6}


def steps(rows: int = 6000, *, classes: int = 2, seed: int = 3) -> Task:
    """A made-up task whose classes are steps of two columns, and which no line tells well."""
    rng = np.random.default_rng(seed)
    age, home = rng.uniform(0, 100, rows), rng.choice(["own", "rent", "guest"], rows)
    place = np.where(home == "guest", (age > 30) & (age < 60), age > 80).astype(int)
    labels = np.where(home == "own", classes - 1, place)
    table = pa.table({"age": age, "noise": rng.uniform(0, 1, rows), "home": home, "label": labels})
    columns = (Numeric("age", 0, 100), Numeric("noise", 0, 1), Categorical("home", ("own", "rent", "guest")))
    schema = Schema(Classes("label", tuple(range(classes))), columns)
    return Task("steps", *split(ArrayEngine.from_arrow(table), schema, share=0.25, seed=1), schema)


def scores_of(rival: Rival, epsilon: float, **task: Any) -> dict[str, float]:
    made = steps(**task)
    return judged(rival(made, Budget(epsilon, DELTAS[rival]), np.random.default_rng(1)), made.labels)


@pytest.mark.parametrize("rival", [PERMUTED, BOOSTED])
def test_trees_learn_steps_from_a_large_budget_and_nothing_from_a_tiny_one(rival: Rival) -> None:
    learnt, guessed = scores_of(rival, 50.0), scores_of(rival, 1e-4)
    assert learnt["accuracy"] > 0.9
    assert learnt["auc"] > 0.95
    assert guessed["auc"] < 0.75
    assert learnt["log loss"] < guessed["log loss"]


def test_a_tree_tells_several_classes_apart() -> None:
    assert scores_of(PERMUTED, 50.0, classes=3)["accuracy"] > 0.9


# -- one tree


def test_replacing_a_row_moves_utilities_no_further_than_their_sensitivity() -> None:
    # All ways in which up to 4 rows of 2 or 3 classes can be on the two sides of a split, and all replacements.
    within, between = 0.0, 0.0
    for classes in (2, 3):
        tables = [
            np.array(counts).reshape(2, classes)
            for counts in itertools.product(range(5), repeat=2 * classes)
            if 1 <= sum(counts) <= 4
        ]
        for counts in tables:
            for taken in np.argwhere(counts > 0):
                less = counts.copy()
                less[tuple(taken)] -= 1
                between = max(between, abs(_utility(counts) - _utility(less)))
                for given in np.ndindex(counts.shape):
                    more = less.copy()
                    more[given] += 1
                    within = max(within, abs(_utility(counts) - _utility(more)))
    assert 1.0 < within <= 2.0 + 1e-12
    assert 0.99 < between <= 1.0 + 1e-12


def _utility(counts: Any) -> float:
    return float(tree_rivals.rate_splits(counts[:, None, None, :])[0, 0])


def test_utilities_are_those_of_the_gini_impurity() -> None:
    counts = np.array([[30, 10], [5, 55]])
    gini = sum(side.sum() * (1 - ((side / side.sum()) ** 2).sum()) for side in counts)
    assert _utility(counts) == pytest.approx(counts.sum() - gini)


def test_flips_have_the_probabilities_of_permute_and_flip() -> None:
    utilities, epsilon, sensitivity = np.array([0.0, -1.0, -3.0]), 1.5, 2.0
    accepted = np.exp(epsilon * (utilities - utilities.max()) / (2 * sensitivity))
    expected = np.zeros(3)
    for order in itertools.permutations(range(3)):
        left = 1.0 / 6.0
        for place in order:
            expected[place] += left * accepted[place]
            left *= 1.0 - accepted[place]
    many = np.broadcast_to(utilities, (200_000, 3))
    chosen = tree_rivals.flip(many, epsilon, sensitivity, np.random.default_rng(2))
    assert np.bincount(chosen) / len(chosen) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("levels", [1, 3])
def test_quantiles_halve_the_rows_where_there_is_no_noise(levels: int) -> None:
    rng = np.random.default_rng(3)
    counts = np.bincount(np.minimum(rng.exponential(20, 100_000).astype(int), 255), minlength=256)
    edges = tree_rivals.choose_quantiles(counts, levels, 1e6, rng)
    parts = [part.sum() for part in np.split(counts, edges)]
    assert len(parts) == 2**levels
    assert max(parts) < 1.4 * 100_000 / 2**levels


def test_the_budget_of_a_tree_is_what_its_parts_spend(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: dict[str, list[float]] = {"quantile": [], "split": [], "leaf": []}
    real = tree_rivals.flip

    def flip(utilities: Any, epsilon: float, sensitivity: float, rng: Any) -> Any:
        assert sensitivity == {1: 1.0, 2: 2.0}[utilities.ndim]
        spent["quantile" if utilities.ndim == 1 else "split"].append(epsilon)
        return real(utilities, epsilon, sensitivity, rng)

    class Recording:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(1)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.rng, name)

        def laplace(self, _: float, scale: float, shape: tuple[int, ...]) -> Any:
            spent["leaf"].append(2.0 / scale)
            return self.rng.laplace(0.0, scale, shape)

    monkeypatch.setattr(tree_rivals, "flip", flip)
    PERMUTED(steps(), Budget(0.5), Recording())
    # Two columns of numbers with three levels of quantiles, 1, 2 and 4 of them; five levels of splits; leaves.
    assert len(spent["quantile"]) == 2 * 7
    assert [len(spent[part]) for part in ("split", "leaf")] == [5, 1]
    total = 2 * 3 * spent["quantile"][0] + sum(spent["split"]) + spent["leaf"][0]
    assert total == pytest.approx(0.5)
    assert len(set(spent["quantile"])) == 1


# -- boosted trees


@pytest.mark.parametrize("reach", [0.0, 0.5, 3.0, 20.0])
def test_replacing_a_row_moves_the_sums_of_leaves_no_further_than_they_are_protected(reach: float) -> None:
    ends = np.linspace(-reach, reach, 41)
    rows = list(itertools.product(ends, (0, 1), (0, 1)))
    sums = np.stack(
        [
            tree_rivals.sum_derivatives(np.array([score]), np.array([label]), np.array([leaf], np.uint8), 2).ravel()
            for score, label, leaf in rows
        ]
    )
    moved = max(float(np.linalg.norm(sums - one, axis=1).max()) for one in sums)
    limit = tree_rivals.reach_sensitivity(reach)
    assert 0.999 * limit < moved <= limit + 1e-12


def test_the_noise_of_boosted_trees_is_one_gaussian_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(1.0, 1e-6)
    limits: list[float] = []
    real = tree_rivals.reach_sensitivity

    def reach_sensitivity(reach: float) -> float:
        limits.append(real(reach))
        return limits[-1]

    class Recording:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(1)
            self.deviations: list[float] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self.rng, name)

        def normal(self, _: float, deviation: float, shape: Any) -> Any:
            self.deviations.append(deviation)
            return self.rng.normal(0.0, deviation, shape)

    recording = Recording()
    monkeypatch.setattr(tree_rivals, "reach_sensitivity", reach_sensitivity)
    BOOSTED(steps(), budget, recording)
    counts, trees = recording.deviations[:2], recording.deviations[2:]
    assert len(trees) == len(limits) == 60
    # Of two columns of numbers a row moves four counts by 1.
    spent = (math.sqrt(4.0) / counts[0]) ** 2 + sum(
        (limit / deviation) ** 2 for limit, deviation in zip(limits, trees, strict=True)
    )
    assert spent == pytest.approx(calibrate_unit_gaussian(budget) ** -2, rel=1e-6)
    assert limits[0] == 1.0  # of all scores at 0
    assert max(limits) <= 2.0
    assert limits == sorted(limits)


def test_released_steps_bound_the_scores_that_they_are_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []
    limits: list[float] = []
    real, sums = tree_rivals.reach_sensitivity, tree_rivals.sum_derivatives

    def reach_sensitivity(reach: float) -> float:
        limits.append(reach)
        return real(reach)

    def sum_derivatives(scores: Any, *others: Any) -> Any:
        seen.append((float(np.abs(scores).max()), limits[-1]))
        return sums(scores, *others)

    monkeypatch.setattr(tree_rivals, "reach_sensitivity", reach_sensitivity)
    monkeypatch.setattr(tree_rivals, "sum_derivatives", sum_derivatives)
    BOOSTED(steps(), Budget(1.0, 1e-6), np.random.default_rng(1))
    assert len(seen) == 60
    assert all(score <= limit + 1e-12 for score, limit in seen)


def test_random_splits_send_rows_to_both_sides() -> None:
    columns = tree_rivals.read_columns(steps(), 1e4)
    splits = tree_rivals._draw_splits(columns, 500, np.random.default_rng(1))
    for where, right in zip(splits.columns, splits.right, strict=True):
        bins = columns[where].bins
        assert 0 < right[:bins].sum() < bins
        assert not right[bins:].any() or columns[where].ordered


def test_ways_of_trees_are_for_the_budgets_and_classes_that_they_can_do() -> None:
    wanted = list(accuracy.cells(accuracy.EPSILONS, ("privatree", "dp-gbdt"), accuracy.KINDS, accuracy.EPSILONS))
    assert {cell.kind for cell in wanted if cell.way == "privatree"} == {"pure"}
    assert {cell.kind for cell in wanted if cell.way == "dp-gbdt"} == {"approximate"}
    assert {cell.way for cell in wanted if cell.data == "mnist50"} == {"privatree"}
