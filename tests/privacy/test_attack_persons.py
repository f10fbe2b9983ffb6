"""Attacks on the guarantee for persons: neighbours that differ in all rows of one, from the rule to the mechanisms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from boltdp.algorithms._base import Job
from boltdp.algorithms.bolton import BoltOn
from boltdp.engines import open_source
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.row_permutation import compute_source_positions
from boltdp.losses import HuberSVM, Logistic, Loss, Multinomial
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import certify
from boltdp.privacy.events.event import NoiselessTraining
from boltdp.privacy.events.noisy_gradient_descent import bound_gradient_sensitivity
from boltdp.privacy.events.noisy_moments import UNIT as MOMENT_UNIT
from boltdp.privacy.events.noisy_moments import Moments as MomentsKind
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import bound_minimiser_delta, calibrate_spherical_term
from boltdp.privacy.events.sgd_sensitivity import compute_sgd_sensitivity
from boltdp.privacy.mechanisms import Mechanism, NoiseKind
from boltdp.privacy.release_with_noise import Randomness
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.privacy.training_problem import Problem
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Schema, Vector
from boltdp.workflows.select import count_errors
from boltdp.workflows.standardize import sum_moments
from tests.privacy.test_objective_corners import SCALES, Array, Neighbours, leaning, nodes_for, problem, quadrature
from tests.privacy.test_sgd_sensitivity import recipes

#: An id, which may be missing, cells and a label: both missing in a neutral row.
Entry = tuple[str | None, list[float] | None, int | None]
Weights = npt.NDArray[np.float64]


def schema_of(dims: int, classes: int, g: int) -> Schema:
    columns = (Vector("x", dims, -1, 1),)
    names = tuple(range(classes))
    return Schema(
        Classes("label", names), columns, intercept=False, clip_norm=1.0, person_id="id", max_rows_per_person=g
    )


def prepared_of(entries: Sequence[Entry], schema: Schema, *, seed: int = 0) -> PreparedRows:
    """Rows as they come out of the rule of the schema, if it has a person_id."""
    ids, cells, labels = zip(*entries, strict=True)
    table = pa.table(
        {
            "id": pa.array(ids, pa.string()),
            "x": pa.array(cells, pa.list_(pa.float64())),
            "label": pa.array(labels, pa.int64()),
        }
    )
    return open_source(table).prepare(schema, Context(seed=seed, threads=1))


def trained(recipe: Recipe, entries: Sequence[Entry], schema: Schema, *, seed: int = 0) -> Weights:
    """The weights that would be released but for the noise."""
    job, context = Job(certify(NoiselessTraining(recipe), None), Randomness()), Context(seed=seed, threads=1)
    with prepared_of(entries, schema, seed=seed) as prepared:
        (weights,) = BoltOn().run(prepared, [job], classes=len(schema.classes), context=context)
    return weights


def apart(recipe: Recipe, one: Sequence[Entry], other: Sequence[Entry], schema: Schema, *, seed: int = 0) -> float:
    return float(np.linalg.norm(trained(recipe, one, schema, seed=seed) - trained(recipe, other, schema, seed=seed)))


def others(rows: int) -> list[Entry]:
    """Rows of nobody in particular, all of them neutral."""
    return [(f"other {i}", None, None) for i in range(rows)]


def at_places(recipe: Recipe, places: Sequence[int], entry: Entry, *, seed: int = 0) -> list[Entry]:
    """All rows neutral but those that a run meets at some places of its order."""
    entries = others(recipe.rows)
    for place in places:
        entries[int(compute_source_positions(place, 1, rows=recipe.rows, seed=seed)[0])] = entry
    return entries


# ---- noise after training ---------------------------------------------------------------------------------------


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Recipe, list[Entry], list[Entry], Schema]:
    """Two tables that differ in one person, who may have more rows than count, or no id."""
    recipe, g = draw(recipes()), draw(st.integers(1, 4))
    partitions = draw(st.integers(1, min(6, recipe.rows // 2)))
    batch_size = min(recipe.batch_size, recipe.rows // partitions)
    recipe = replace(recipe, partitions=partitions, batch_size=batch_size, person_rows=g)
    classes = max(2, recipe.loss.vector_count)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    person, successor = draw(st.sampled_from([("a", "b"), ("a", "a"), (None, "b"), ("a", None)]))

    def content(loud: float) -> tuple[list[float], int]:
        x = loud * random.standard_normal(recipe.dims) if random.random() < 0.5 else np.eye(recipe.dims)[0]
        return x.tolist(), int(random.integers(classes))

    loudness = draw(st.sampled_from([0.0, 0.1, 1.0]))
    rows: list[Entry] = [(f"p{random.integers(1 + recipe.rows // 3)}", *content(loudness)) for _ in range(recipe.rows)]
    other = list(rows)
    share = draw(st.sampled_from([0.05, 0.3, 1.0]))
    for i in {*np.flatnonzero(random.random(recipe.rows) < share).tolist(), int(random.integers(recipe.rows))}:
        rows[i] = (person, *content(1.0))
        other[i] = (f"nobody {i}", None, None) if random.random() < 0.3 else (successor, *content(1.0))
    return recipe, rows, other, schema_of(recipe.dims, classes, g)


@settings(max_examples=200)
@given(neighbours(), st.integers(0, 5))
def test_a_person_never_moves_the_weights_further_than_the_sensitivity(
    case: tuple[Recipe, list[Entry], list[Entry], Schema], seed: int
) -> None:
    recipe, rows, other, schema = case
    assert apart(recipe, rows, other, schema, seed=seed) <= compute_sgd_sensitivity(recipe).total


def pulled(*, g: int, **changes: Any) -> Recipe:
    """The Huber loss pulls with all its force at margin 0, so that its bounds are reached."""
    asked: dict[str, Any] = {
        "rows": 60,
        "batch_size": 5,
        "passes": 3,
        "schedule": make_constant_schedule(0.01),
        **changes,
    }
    return Recipe(loss=HuberSVM(0.1), dims=1, person_rows=g, **asked)


@pytest.mark.parametrize(
    ("recipe", "places"),
    [
        (pulled(g=3), (0, 1, 2)),
        (pulled(g=3), (0, 20, 59)),
        (pulled(g=3, partitions=4), (0, 1, 2)),
        (pulled(g=3, partitions=4), (0, 15, 45)),
        (pulled(g=3, permutation="fresh"), (0, 7, 30)),
    ],
    ids=["one batch", "different batches", "one partition", "different partitions", "fresh permutations"],
)
def test_g_rows_reach_the_bound_and_break_that_of_fewer(recipe: Recipe, places: Sequence[int]) -> None:
    schema = schema_of(1, 2, 3)
    one, other = (at_places(recipe, places, entry) for entry in (("a", [1.0], 0), ("b", [1.0], 1)))
    found = apart(recipe, one, other, schema)
    assert 0.999 * compute_sgd_sensitivity(recipe).bound < found <= compute_sgd_sensitivity(recipe).total
    for fewer in (None, 1, 2):
        assert found > 1.4 * compute_sgd_sensitivity(replace(recipe, person_rows=fewer)).total


@pytest.mark.parametrize("person", ["a", None], ids=["with an id", "without one"])
def test_a_person_with_more_rows_than_count_breaks_the_bound_if_the_rule_is_not_applied(person: str | None) -> None:
    recipe, schema = pulled(g=2), schema_of(1, 2, 2)
    one, other = (at_places(recipe, range(10, 20), (person, [1.0], label)) for label in (0, 1))
    assert apart(recipe, one, other, schema) <= compute_sgd_sensitivity(recipe).total
    assert apart(recipe, one, other, schema.without_person_limit) > 4.9 * compute_sgd_sensitivity(recipe).total


def test_a_person_who_leaves_one_partition_and_enters_another_breaks_the_bound_of_a_row() -> None:
    """In a small ball the diameter bounds what a row does in its partition; one row of a person may be in two."""
    recipe = pulled(
        g=1, rows=40, batch_size=1, passes=1, schedule=make_constant_schedule(0.1), radius=0.05, partitions=4
    )
    schema = schema_of(1, 2, 1)
    # Others pull to an edge of the ball, and the last row of a partition throws its weights to the other edge: in one
    # partition with the first person, in another, where all pull the other way, with the second.
    ends = sorted((int(compute_source_positions(place, 1, rows=40, seed=0)[0]), place // 10) for place in (9, 29))
    (first, left), (second, entered) = ends
    one: list[Entry] = others(40)
    for place in range(40):
        if place // 10 in (left, entered):
            at = int(compute_source_positions(place, 1, rows=40, seed=0)[0])
            one[at] = (f"other {at}", [1.0], int(place // 10 == entered))
    other = list(one)
    one[first], other[first] = ("a", [1.0], 1), ("nobody", None, None)
    one[second], other[second] = ("a", None, None), ("b", [1.0], 0)
    found = apart(recipe, one, other, schema)
    assert found > 1.9 * compute_sgd_sensitivity(replace(recipe, person_rows=None)).total
    assert found <= compute_sgd_sensitivity(recipe).total


def test_no_number_of_rows_moves_the_weights_out_of_the_ball() -> None:
    for partitions in (1, 4):
        recipe = pulled(g=1000, radius=0.2, schedule=make_constant_schedule(0.1), partitions=partitions)
        assert compute_sgd_sensitivity(recipe).bound == pytest.approx(0.4, rel=1e-5)
        assert compute_sgd_sensitivity(recipe).derivation.startswith("diameter")


# ---- sums -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["squares", "mean"])
def test_hill_climbing_moves_moments_by_g_rows_and_no_more(kind: MomentsKind) -> None:
    random, dims, g = np.random.default_rng(6), 3, 3
    schema = schema_of(dims, 2, g)
    clip_norm = schema.feature_clip_norm
    event = NoisyMoments(moments=kind, features=dims, numbers=dims, clip_norm=clip_norm, noise=None, person_rows=g)

    def released(entries: list[Entry]) -> Weights:
        with prepared_of(entries, schema) as prepared:
            sums: Weights = sum_moments(prepared, schema, event).astype(np.float64) * MOMENT_UNIT
        if kind == "squares":
            return sums.reshape(-1)
        return np.asarray(np.append(sums[0], sums[1].sum() * event.norm_weight), np.float64)

    def moved(pair: Weights) -> float:
        shared: list[Entry] = [("other", [0.3, -0.2, 0.5], 0)] * 2
        # Two rows more than count, whose contents are the wildest.
        one = [*(("a", pair[0].tolist(), 0) for _ in range(g)), ("a", [9.0] * 3, 0), ("a", [9.0] * 3, 0), *shared]
        other = [("c", None, None), *(("b", pair[1].tolist(), 1) for _ in range(g + 1)), *one[g + 2 :]]
        return float(np.linalg.norm(released(one) - released(other)))

    pair = random.uniform(-1, 1, (2, dims))
    best = moved(pair)
    for step in range(150):
        tried = pair + random.normal(0, 0.5 * 0.98**step, pair.shape)
        if (reached := moved(tried)) > best:
            best, pair = reached, tried
    assert 0.9 * event.sensitivity < best <= event.sensitivity
    assert best > 2.5 * replace(event, person_rows=1).sensitivity
    assert replace(event, person_rows=1).sensitivity == replace(event, person_rows=None).sensitivity


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(3)], ids=str)
def test_an_optimiser_moves_a_sum_of_gradients_by_g_rows_and_no_more(loss: Loss) -> None:
    random, dims, g, clip = np.random.default_rng(3), 2, 2, 0.3
    schema, vectors = schema_of(dims, 3, g), loss.vector_count
    bound = bound_gradient_sensitivity(Problem(loss=loss, dims=dims, rows=6, person_rows=g), clip).total
    shared: list[Entry] = [("other", [0.3, -0.2], 0), ("other", [0.5, 0.1], 1)]

    def summed(entries: list[Entry], weights: Weights) -> Weights:
        with prepared_of(entries, schema) as prepared:
            sums = DerivativeSums(loss, weights, clip=clip, classes=3, feature_map=prepared.feature_map)
            prepared.add_to_sums([sums])
        return sums.value

    def moved(point: Weights) -> float:
        weights, rows = point[: vectors * dims].reshape(vectors, dims), point[vectors * dims :].reshape(2, dims)
        one: list[Entry] = [*(("a", rows[0].tolist(), 0) for _ in range(4)), *shared]
        other: list[Entry] = [("c", None, None), *(("b", rows[1].tolist(), 1) for _ in range(3)), *shared]
        return float(np.linalg.norm(summed(one, weights) - summed(other, weights)))

    best = 0.0
    for _ in range(2):
        start = 3 * random.standard_normal(vectors * dims + 2 * dims)
        found = optimize.minimize(lambda p: -moved(p), start, method="Nelder-Mead", options={"maxfev": 150})
        best = max(best, -found.fun)
    assert 1.9 * g * clip < best <= bound
    assert best > 1.9 * bound_gradient_sensitivity(Problem(loss=loss, dims=dims, rows=6), clip).total


def test_counts_of_errors_change_by_g_and_no_more() -> None:
    random, g = np.random.default_rng(8), 2
    schema, farthest = schema_of(1, 2, g), 0
    models = [np.array([[[weight]]]) for weight in (-1.0, 1.0)]
    for _ in range(60):
        rows: list[Entry] = [(f"p{i}", [float(random.uniform(-1, 1))], int(random.integers(2))) for i in range(9)]
        other = list(rows)
        for i in np.flatnonzero(random.random(9) < 0.6).tolist():
            rows[i] = ("a", [float(random.choice([-1.0, 1.0]))], int(random.integers(2)))
            sign = float(random.choice([-1.0, 1.0]))
            other[i] = ("b", [sign], int(random.integers(2))) if random.random() < 0.7 else (f"n{i}", None, None)
        counts = []
        for entries in (rows, other):
            with prepared_of(entries, schema) as prepared:
                counts.append(np.array(count_errors(models, prepared, classes=2)))
        farthest = max(farthest, int(np.abs(counts[0] - counts[1]).max()))
    assert farthest == g


# ---- noise before training --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class People(Neighbours):
    """Two datasets that differ in several rows: `row` and `other` are tuples of rows."""

    def compute_derivatives(self, row: Any, weights: Array) -> tuple[Array, Array]:
        found = [super(People, self).compute_derivatives(one, weights) for one in row]
        slopes, bends = zip(*found, strict=True)
        return np.sum(slopes, axis=0), np.sum(bends, axis=0)


def people(plan: Problem, rows: Sequence[Any], others: Sequence[Any], **changes: Any) -> People:
    return People(plan, tuple(rows), tuple(others), **changes)


def opposed(strength: float, g: int, *, far: float = 800.0) -> People:
    """A person whose rows pull one way with all their force, and one whose rows pull the other way."""
    plan = replace(problem(Logistic(), dims=2, strength=strength), person_rows=g)
    one, two = leaning(0.05, 2)
    return people(plan, [(0, one)] * g, [(0, two)] * g, pull=(0.0, far * strength))


@pytest.mark.parametrize("g", [2, 3])
@pytest.mark.parametrize("strength", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("far", [800.0, 40.0, 0.0])
def test_the_true_loss_of_a_person_never_exceeds_epsilon(g: int, strength: float, far: float) -> None:
    case = opposed(strength * g, g, far=far)
    noise = Mechanism("spherical", calibrate_spherical_term(case.plan, Budget(1.0)), 2)
    places, _ = quadrature(noise, nodes_for(case.plan))
    for one in (case, case.swapped, people(case.plan, case.row, case.other[:1], pull=case.pull)):
        assert one.compute_losses_of_noise(noise, places).max() <= 1.0
    assert bound_minimiser_delta(case.plan, noise, 1.0) == 0.0


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("g", [2, 3])
@pytest.mark.parametrize("strength", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("epsilon", [1.0, 6.0])
def test_the_true_delta_of_a_person_never_exceeds_delta(
    kind: NoiseKind, g: int, strength: float, epsilon: float
) -> None:
    delta = 1e-2 if epsilon == 1.0 else 1e-4
    for far in (800.0, 20.0):
        case = opposed(strength * g / epsilon, g, far=far)
        noise = Mechanism(kind, SCALES[kind](case.plan, Budget(epsilon, delta)), 2)
        for one in (case, case.swapped):
            assert one.delta(noise, epsilon, nodes=110) <= delta
        assert case.delta(noise, 0.8 * epsilon, nodes=110) <= bound_minimiser_delta(case.plan, noise, 0.8 * epsilon)


@pytest.mark.parametrize("g", [2, 3])
def test_noise_for_one_row_or_a_little_less_for_g_is_broken_by_g_rows(g: int) -> None:
    case = opposed(8.0 * g, g)
    row = replace(case.plan, person_rows=None)
    for plan, part in ((case.plan, 0.98), (row, 1.0)):
        pure = Mechanism("spherical", part * calibrate_spherical_term(plan, Budget(1.0)), 2)
        places, _ = quadrature(pure, nodes_for(plan))
        assert case.compute_losses_of_noise(pure, places).max() > 1.0
    for kind, scale in SCALES.items():
        for plan, part in ((case.plan, 0.97), (row, 1.0)):
            noise = Mechanism(kind, part * scale(plan, Budget(1.0, 1e-3)), 2)
            assert case.delta(noise, 1.0, nodes=110) > 1e-3


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("strength", [pytest.param(1.0, marks=pytest.mark.slow), 4.0])
def test_an_optimiser_finds_no_two_persons_that_spend_more(kind: NoiseKind, strength: float) -> None:
    epsilon, delta, random = 1.0, 2e-2, np.random.default_rng(4)
    plan = replace(problem(Logistic(), dims=2, strength=strength), person_rows=2)
    noise = Mechanism(kind, SCALES[kind](plan, Budget(epsilon, delta)), 2)

    def spent(settings: Array, nodes: int = 24) -> float:
        angles = settings[:4]
        x = np.tanh(settings[4:8])[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        pull = tuple(float(part) * strength for part in settings[8:] ** 3)
        return people(plan, [(1, x[0]), (1, x[1])], [(1, x[2]), (1, x[3])], pull=pull).delta(
            noise, epsilon, nodes=nodes
        )

    starts = [*random.standard_normal((2, 10))]
    leaned = [-0.03, -0.03, 0.03 - math.pi, 0.03 - math.pi]
    starts.append(np.array([*leaned, 4.0, 4.0, 4.0, 4.0, 0.0, 8.0]))
    most = 0.0
    for start in starts:
        best = optimize.minimize(lambda s: -spent(s), start, method="Nelder-Mead", options={"maxfev": 35})
        most = max(most, spent(best.x, 60))
    assert most <= delta
    assert most > (0.5 if strength > 2 else 0.01) * delta


def test_a_person_of_three_classes_keeps_the_budget() -> None:
    one, two = leaning(0.05, 2)
    plan = replace(problem(Multinomial(3), dims=2, strength=40.0), person_rows=2)
    case = people(plan, [(2, one)] * 2, [(2, two)] * 2)
    for kind, scale in SCALES.items():
        noise = Mechanism(kind, scale(plan, Budget(1.0, 1e-2)), 4)
        assert case.delta(noise, 1.0, nodes=16) <= 1e-2
