"""The sensitivity against the specification's vectors, its own shortcuts, closed forms and a naive oracle."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.errors import ParameterError
from boltdp.losses import HuberSVM, Logistic, Loss, Multinomial
from boltdp.privacy.events import sgd_sensitivity as core
from boltdp.privacy.sgd_recipe import Averaging, Permutation, Recipe
from boltdp.privacy.step_schedules import (
    Schedule,
    make_constant_schedule,
    make_decreasing_schedule,
    make_square_root_schedule,
    make_strongly_convex_constant_schedule,
    make_strongly_convex_schedule,
)
from tests.example_losses import every_loss

MNIST = 60_000


def recipe(
    schedule: Schedule,
    *,
    rows: int = MNIST,
    batch_size: int = 50,
    passes: int = 10,
    regularization: float = 0.0,
    loss: Loss = Logistic(),  # noqa: B008
    averaging: Averaging = "last",
    permutation: Permutation = "once",
    dims: int = 50,
    radius: float = math.inf,
    partitions: int = 1,
) -> Recipe:
    return Recipe(
        loss=loss,
        dims=dims,
        rows=rows,
        batch_size=batch_size,
        passes=passes,
        schedule=schedule,
        regularization=regularization,
        averaging=averaging,
        permutation=permutation,
        radius=radius,
        partitions=partitions,
    )


def harmonic(regularization: float, loss: Loss) -> Schedule:
    return make_strongly_convex_schedule(beta=loss.smoothness + regularization, gamma=regularization)


VECTORS = [
    (recipe(make_constant_schedule(MNIST**-0.5)), 0.001632993),
    (recipe(make_constant_schedule(MNIST**-0.5), batch_size=1, passes=20), 0.163299316),
    (recipe(make_decreasing_schedule(beta=0.25, rows=MNIST)), 0.001982644),
    (recipe(make_square_root_schedule(beta=0.25, rows=MNIST)), 0.010365637),
    (recipe(harmonic(1e-4, Logistic()), regularization=1e-4), 0.318491920),
    (recipe(harmonic(1e-4, Logistic()), regularization=1e-4, batch_size=1), 0.333333333),
    (recipe(harmonic(1e-2, Logistic()), regularization=1e-2), 0.003333333),
    (recipe(make_constant_schedule(0.1), regularization=1e-2), 0.005722536),
    (recipe(make_constant_schedule(0.05), loss=Multinomial(10)), 0.028284271),
    (recipe(harmonic(1e-3, HuberSVM(0.1)), regularization=1e-3, loss=HuberSVM(0.1), rows=72_876), 0.025221345),
]


@pytest.mark.parametrize(("run", "expected"), VECTORS)
def test_matches_the_vectors_of_the_specification(run: Recipe, expected: float) -> None:
    assert core.compute_sgd_sensitivity(run).bound == pytest.approx(expected, rel=1e-6)


PARTITIONED = [
    # As without partitions, divided by them: a constant step.
    (replace(VECTORS[0][0], partitions=8), 0.001632993 / 8),
    (replace(VECTORS[2][0], partitions=1), 0.001982644),
    # As without partitions: strongly convex steps.
    (replace(VECTORS[6][0], partitions=8), 0.003333333),
    (replace(VECTORS[5][0], partitions=2), 0.333333333),
    # Unequal ones: the share of the largest, and the smallest batch of it.
    (
        recipe(make_constant_schedule(0.1), rows=10_001, batch_size=1, passes=3, partitions=4),
        2501 / 10_001 * 2 * 3 * 0.1,
    ),
    (recipe(make_constant_schedule(0.1), rows=53, batch_size=7, passes=3, partitions=4), 13 / 53 * 2 * 3 * 0.1 / 6),
]


@pytest.mark.parametrize(("run", "expected"), PARTITIONED)
def test_partitions_have_the_bounds_that_can_be_worked_out_by_hand(run: Recipe, expected: float) -> None:
    assert core.compute_sgd_sensitivity(run).bound == pytest.approx(expected, rel=1e-6)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    losses: list[Loss] = [*every_loss(), HuberSVM(2.0)]
    loss = draw(st.sampled_from(losses))
    rows = draw(st.integers(2, 60))
    regularization = draw(st.sampled_from([0.0, 0.01, 0.5, 20.0]))
    beta = loss.smoothness + regularization
    schedules = [
        make_constant_schedule(draw(st.floats(0.01, 2.0)) / beta),
        make_decreasing_schedule(beta=beta, rows=rows, exponent=draw(st.sampled_from([0.0, 0.5, 0.9]))),
        make_square_root_schedule(beta=beta, rows=rows, exponent=draw(st.sampled_from([0.0, 0.5, 0.9]))),
        make_strongly_convex_constant_schedule(draw(st.floats(0.01, 1.0)) / beta * (1 - 1e-15), beta=beta),
    ]
    if regularization:
        schedules.append(make_strongly_convex_schedule(beta=beta, gamma=regularization))
    return Recipe(
        loss=loss,
        dims=draw(st.integers(1, 5)),
        rows=rows,
        batch_size=draw(st.integers(1, rows)),
        passes=draw(st.integers(1, 4)),
        schedule=draw(st.sampled_from(schedules)),
        regularization=regularization,
        radius=draw(st.sampled_from([math.inf, 1.0])),
        averaging=draw(st.sampled_from(["last", "all", "tail"])),
        permutation=draw(st.sampled_from(["once", "fresh"])),
    )


def naive_sensitivity(run: Recipe) -> float:
    """Follow the distance forward, for every place the row can take, straight from the two rules of the proof."""
    n = run.batches
    sizes = [(j + 1) * run.rows // n - j * run.rows // n for j in range(n)]
    etas = run.schedule.compute_steps(np.arange(1, run.updates + 1))
    beta, gamma, lipschitz = run.beta, run.regularization, run.loss.lipschitz

    def end(hits: set[int]) -> float:
        distance, averaged = 0.0, 0.0
        for t in range(1, run.updates + 1):
            eta = float(etas[t - 1])
            distance *= max(abs(1 - eta * gamma), abs(1 - eta * beta))
            if t in hits:
                distance += 2 * lipschitz * eta / sizes[(t - 1) % n]
            if t > run.updates - run.averaged:
                averaged += distance / run.averaged
        return averaged

    if run.permutation == "once":
        return max(end({p * n + j + 1 for p in range(run.passes)}) for j in range(n))
    # The result is additive in the hits, so the worst batch can be chosen pass by pass.
    return sum(max(end({p * n + j + 1}) for j in range(n)) for p in range(run.passes))


@given(recipes())
def test_agrees_with_following_the_distance_forward(run: Recipe) -> None:
    expected = min(naive_sensitivity(run), 2 * core.bound_iterate_norm(run))
    assert core.compute_sgd_sensitivity(run).bound == pytest.approx(expected, rel=1e-9)


@given(recipes(), st.integers(1, 30))
def test_partitions_agree_with_following_the_distance_forward_in_each(run: Recipe, partitions: int) -> None:
    partitions = min(partitions, run.rows // 2)
    run = replace(run, partitions=partitions, batch_size=min(run.batch_size, run.rows // partitions))
    expected = 0.0
    for number in range(partitions):
        start, stop = number * run.rows // partitions, (number + 1) * run.rows // partitions
        own = replace(run, rows=stop - start, partitions=1)
        alone = min(naive_sensitivity(own), 2 * core.bound_iterate_norm(own))
        expected = max(expected, (stop - start) / run.rows * alone)
    assert core.compute_sgd_sensitivity(run).bound == pytest.approx(expected, rel=1e-9)
    assert core.compute_sgd_sensitivity(run).bound >= expected * (1 - 1e-12)


@given(recipes())
def test_closed_forms_equal_the_recursion(run: Recipe) -> None:
    recursion = core._run_recursion(run)
    assert core._bound_by_first_steps(run) >= recursion * (1 - 1e-12)
    closed = core._find_closed_form(run)
    assert closed is None or closed == pytest.approx(recursion, rel=1e-12)


def test_closed_forms_cover_the_algorithms_of_the_paper() -> None:
    derivations = [core.compute_sgd_sensitivity(run).derivation for run, _ in VECTORS]
    assert derivations == ["closed form"] * 4 + ["recursion"] + ["closed form"] * 4 + ["recursion"]


@given(recipes())
def test_recursion_never_exceeds_the_closed_forms(run: Recipe) -> None:
    """The paper's closed forms, with the smallest batch in place of b and without its error for b > 1."""
    bound = naive_sensitivity(run)
    lipschitz, b, k = run.loss.lipschitz, run.smallest_batch, run.passes
    if run.schedule.growth == "none":
        assert bound <= 2 * k * lipschitz * run.schedule.scale / b * (1 + 1e-12)
    elif run.schedule.offset == 0 and run.averaging == "last":
        assert bound <= 2 * lipschitz / (run.regularization * b * run.batches) * (1 + 1e-12)
    else:
        first = run.schedule.compute_steps(np.arange(k) * run.batches + 1)
        assert bound <= 2 * lipschitz / b * first.sum() * (1 + 1e-12)


def test_chunks_of_the_loop_are_invisible(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        recipe(harmonic(1e-3, Logistic()), rows=10_001, passes=3, regularization=1e-3, averaging=a, permutation=p)
        for a in ("last", "all", "tail")
        for p in ("once", "fresh")
    ]
    whole = [core._run_recursion(run) for run in runs]
    monkeypatch.setattr(core, "_CHUNK", 7)
    assert [core._run_recursion(run) for run in runs] == pytest.approx(whole, rel=1e-12)


def test_very_long_runs_use_the_first_steps_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    run = recipe(harmonic(1e-4, Logistic()), regularization=1e-4, passes=2)
    exact = core.compute_sgd_sensitivity(run)
    monkeypatch.setattr(core, "MAX_RECURSION", 100)
    bounded = core.compute_sgd_sensitivity.__wrapped__(run)  # what was found before is remembered
    assert (exact.derivation, bounded.derivation) == ("recursion", "first steps")
    assert bounded.bound >= exact.bound


def test_averaging_all_iterates_needs_less_noise() -> None:
    last, tail, every = (
        core.compute_sgd_sensitivity(recipe(make_constant_schedule(0.01), averaging=averaging)).bound
        for averaging in ("last", "tail", "all")
    )
    assert every < tail <= last * (1 + 1e-12)


def test_margin_covers_the_rows_of_a_batch() -> None:
    _, small = core.bound_rounding(recipe(make_constant_schedule(0.1), rows=10**6, batch_size=1000, passes=1))
    _, large = core.bound_rounding(recipe(make_constant_schedule(0.1), rows=10**6, batch_size=10**6, passes=1))
    assert large > small / 100  # a thousand times fewer updates, each with a thousand times more rows


def test_margin_is_tiny_beside_the_bound() -> None:
    for run, _ in VECTORS:
        assert core.compute_sgd_sensitivity(run).margin < 1e-4 * core.compute_sgd_sensitivity(run).bound


def test_a_run_too_long_for_double_precision_is_refused() -> None:
    with pytest.raises(ParameterError, match="short enough for double precision"):
        core.bound_rounding(recipe(make_constant_schedule(1e-9), rows=10**12, batch_size=1, passes=100))


@pytest.mark.parametrize("loss", [*every_loss(classes=4), HuberSVM(3.0)])
def test_norm_bound_holds_against_rows_that_all_pull_one_way(loss: Loss) -> None:
    run = recipe(make_constant_schedule(0.1), loss=loss, rows=1000, batch_size=1, passes=1, dims=1)
    limit = core.bound_iterate_norm(run)
    w, label = np.zeros(loss.vector_count), 0.0 if loss.target == "classes" else loss.max_abs_label or 1.0
    for eta in run.schedule.compute_steps(np.arange(1, run.updates + 1)):
        w -= eta * loss.compute_slopes(w, label, positive=0)
        assert np.linalg.norm(w) <= limit
    assert np.linalg.norm(w) > limit / 20


PUBLISHED = [
    (recipe(make_constant_schedule(0.1)), 2 * 10 * 0.1 / 50),
    (recipe(make_constant_schedule(0.1), regularization=1e-2), 2 * 0.1 * 2 / (1 - (1 - 1e-3) ** MNIST) / 50),
    (recipe(make_decreasing_schedule(beta=1.0, rows=MNIST)), 4 * (MNIST**-0.5 + math.log(10) / MNIST) / 50),
    (
        recipe(make_square_root_schedule(beta=1.0, rows=MNIST)),
        4 * sum(1 / (math.sqrt(j * MNIST + 1) + MNIST**0.5) for j in range(10)) / 50,
    ),
    (recipe(harmonic(1e-2, Logistic()), regularization=1e-2), 2 * 2 / (1e-2 * MNIST) / 50),
    (recipe(harmonic(1e-2, Logistic()), regularization=1e-2, radius=10.0), 2 * 1.1 / (1e-2 * MNIST) / 50),
]


@pytest.mark.parametrize(("run", "expected"), PUBLISHED)
def test_published_bounds_are_the_papers(run: Recipe, expected: float) -> None:
    assert core.compute_published_sensitivity(run).bound == pytest.approx(expected, rel=1e-9)


def test_the_paper_has_no_bound_for_partitions() -> None:
    with pytest.raises(ParameterError, match=r"^partitions must be 1 for the published bounds, got 8$"):
        core.compute_published_sensitivity(recipe(make_constant_schedule(0.1), partitions=8))


def test_published_bound_of_next_to_no_regularization_is_refused() -> None:
    weak = recipe(regularization=1e-300, schedule=make_constant_schedule(0.1))
    with pytest.raises(ParameterError, match=r"^regularization must be larger for the published bound, got 1e-300$"):
        core.compute_published_sensitivity(weak)
