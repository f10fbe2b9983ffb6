"""The noisy Hessian beside the weights: sensitivities that are reached, and true deltas of all releases together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flint import arb
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special

from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.losses import Logistic, Loss, Multinomial, Quantile, Robust
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, CertificateError, certify, verify
from boltdp.privacy.events.event import NOISELESS, BudgetedEvent, Composition, Event
from boltdp.privacy.events.noisy_counts import NoisyClassCount
from boltdp.privacy.events.noisy_matrix import Matrix, NoisyMatrix, flatten_matrix, unflatten_matrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_corners import choose_tilt, list_corners, split_volume_term, sum_corner_deltas
from boltdp.privacy.events.objective_perturbation import (
    MAX_CENTER,
    ObjectivePerturbation,
    bound_minimiser_delta,
    calibrate_gaussian_term,
    choose_gradient_tolerance,
    find_ample_regularization,
    find_min_solvable_regularization,
    make_objective_perturbation,
)
from boltdp.privacy.mechanisms import Mechanism, calibrate, calibrate_unit_gaussian
from boltdp.privacy.release_with_noise import Randomness, is_on_grid, release_label_count, release_matrix
from boltdp.privacy.serialization import from_record, to_record
from boltdp.privacy.training_problem import Problem
from tests.privacy.test_objective_corners import Neighbours, leaning, quadrature

Array = npt.NDArray[np.float64]
MATRICES: tuple[Matrix, ...] = ("hessian", "outer products")
LOSSES: tuple[Loss, ...] = (Logistic(), Robust())


def problem(
    loss: Loss | None = None, *, dims: int = 2, rows: int = 1000, strength: float = 4.0, **given: Any
) -> Problem:
    return Problem(
        loss=loss or Logistic(), dims=dims, rows=rows, regularization=strength / rows, downweighted=True, **given
    )


def hockey_stick(mu: Array | float, epsilon: Array | float) -> Array:
    """Of N(mu, 1) and N(0, 1) at e^epsilon, which may be negative."""
    mu, epsilon = np.broadcast_arrays(np.maximum(mu, 1e-12), np.asarray(epsilon, float))
    ends = special.ndtr(mu / 2 - epsilon / mu), special.log_ndtr(-mu / 2 - epsilon / mu)
    return np.asarray(ends[0] - np.exp(np.minimum(epsilon + ends[1], 0.0)))


# ---- one row ----------------------------------------------------------------------------------------------------


def sum_matrix(loss: Loss, matrix: Matrix, rows: Array, weights: Array, feature_map: FeatureMap) -> Array:
    sums = DerivativeSums(
        loss, weights, hessian=matrix == "hessian", outer=matrix != "hessian", feature_map=feature_map
    )
    sums.add(rows.astype(np.float32))
    return np.asarray(sums.value[0])


def numbers_map(dims: int, size: float) -> FeatureMap:
    """Features of up to `size`, of which long rows are downweighted."""
    return FeatureMap([Segment("numbers", np.zeros(dims), np.full(dims, size))], downweights=True)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@given(seed=st.integers(0, 2**32 - 1), dims=st.integers(1, 6), size=st.floats(0.1, 200.0))
def test_no_two_rows_move_a_matrix_farther_than_its_sensitivity(
    loss: Loss, matrix: Matrix, seed: int, dims: int, size: float
) -> None:
    random = np.random.default_rng(seed)
    rows = np.column_stack([random.integers(0, 2, 2), random.uniform(-1, 1, (2, dims))])
    weights = random.standard_normal((1, dims)) * random.choice([0.0, 0.01, 1.0])
    one, other = (sum_matrix(loss, matrix, row[None], weights, numbers_map(dims, size)) for row in rows)
    event = NoisyMatrix(matrix, problem(loss, dims=dims))
    assert np.linalg.norm(one) <= event.max_row_norm
    assert np.linalg.norm(flatten_matrix(one - other)) <= event.sensitivity


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_orthogonal_rows_reach_the_sensitivity(loss: Loss, matrix: Matrix, size: float) -> None:
    """Long rows too, unless it is of their slopes, which lose what their length exceeds 1 by."""
    if matrix == "outer products" and size > 1:
        pytest.skip("long rows have shorter gradients")
    # A row of the least length above 1 and zero scores; of outer products, where the slope is as large as it can be.
    rows, weights = np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]]), np.zeros((1, 3))
    feature_map = FeatureMap(
        [
            Segment("numbers", np.zeros(2), np.full(2, size)),
            Segment("numbers", np.zeros(1), np.full(1, 1e-7)),
        ],
        downweights=True,
        label_reading=(0.0, 1.0) if matrix == "hessian" else (0.5, 1000.0),
    )
    if matrix == "outer products":
        weights[0, :] = [0.0, 0.0, -1e9] if loss.name == "robust" else [0.0, 0.0, 1e9]
    one, other = (sum_matrix(loss, matrix, row[None], weights, feature_map) for row in rows)
    event = NoisyMatrix(matrix, problem(loss, dims=3))
    assert np.linalg.norm(flatten_matrix(one - other)) == pytest.approx(event.sensitivity, rel=1e-6)
    assert np.linalg.norm(flatten_matrix(one - other)) <= event.sensitivity


@pytest.mark.parametrize("matrix", MATRICES)
def test_persons_move_a_matrix_as_far_as_all_their_rows(matrix: Matrix) -> None:
    event = NoisyMatrix(matrix, problem(Logistic(), dims=3, person_rows=5))
    single = replace(event, problem=replace(event.problem, person_rows=None))
    assert event.sensitivity == pytest.approx(5 * single.sensitivity, rel=1e-9)
    assert (event.person_rows, single.person_rows) == (5, None)


def test_the_rounding_of_sums_is_within_what_the_sensitivity_adds() -> None:
    """Against exact sums, with groups of features whose sums are gathered from slots."""
    random = np.random.default_rng(3)
    segments = [
        Segment("numbers", random.normal(size=4), np.full(4, 3.0)),
        Segment("category", random.normal(size=5), random.normal(size=5)),
        Segment("constant", np.array([0.4]), np.zeros(1)),
    ]
    feature_map = FeatureMap(segments, downweights=True)
    rows = np.column_stack(
        [random.integers(0, 2, 3000), random.uniform(-1, 1, (3000, 4)), random.integers(-1, 5, 3000)]
    ).astype(np.float32)
    weights = random.normal(size=(1, 10)) * 0.3
    features = feature_map.compute_features(rows)[:, 1:].astype(np.longdouble)
    squares = (features**2).sum(axis=1)
    scores = features @ weights[0].astype(np.longdouble)
    slopes = 1 / (1 + np.exp(np.where(rows[:, 0] == 1, 1, -1) * scores))
    shares = np.minimum(1, 1 / squares)
    for matrix, factors in (("hessian", shares * slopes * (1 - slopes)), ("outer products", (shares * slopes) ** 2)):
        exact = np.einsum("r,ri,rj->ij", factors, features, features)
        found = sum_matrix(Logistic(), matrix, rows, weights, feature_map)  # type: ignore[arg-type]
        event = NoisyMatrix(matrix, problem(dims=10, rows=3000))  # type: ignore[arg-type]
        rounding = event.sensitivity - math.sqrt(2.0) * event.max_row_norm
        # The guard shortens by a little more than the norm, which is no error of the sums.
        assert float(np.linalg.norm(found - exact)) < rounding + 3000 * 60 * 2.0**-53
        np.testing.assert_allclose(unflatten_matrix(flatten_matrix(found)), found, rtol=1e-15, atol=1e-18)


def test_vectors_have_the_norm_of_their_matrices() -> None:
    random = np.random.default_rng(0)
    for size in (1, 2, 7):
        matrix = random.normal(size=(size, size))
        matrix = matrix + matrix.T
        assert np.linalg.norm(flatten_matrix(matrix)) == pytest.approx(np.linalg.norm(matrix))
        np.testing.assert_allclose(unflatten_matrix(flatten_matrix(matrix)), matrix)


# ---- the profile of one matrix ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("matrix", "kind"), [("hessian", "gaussian"), ("outer products", "spherical")])
def test_the_noise_hides_the_worst_rows_and_hardly_more(matrix: Matrix, kind: str) -> None:
    """The true delta of the two rows that reach the sensitivity is as claimed; 0.95 of the noise has more."""
    event = NoisyMatrix(matrix, problem(dims=2))
    budget = Budget(1.0, 1e-5 if kind == "gaussian" else 0.0)
    noise = calibrate(event.sensitivity, dimensions=event.dimensions, budget=budget)
    if kind == "gaussian":
        noise = Mechanism("gaussian", event.sensitivity * calibrate_unit_gaussian(budget), event.dimensions)
    event = replace(event, noise=noise)
    assert event.delta(1.0) <= budget.delta
    least = math.sqrt(2.0) * event.max_row_norm
    for part, exceeds in ((1.0, False), (0.95, True), (0.5, True)):
        weak = replace(noise, scale=part * noise.scale)
        if kind == "gaussian":
            true = float(hockey_stick(least / weak.scale, 1.0))
        else:
            # The largest log ratio of densities is reached along the line through both means.
            true = max(0.0, math.exp(least / weak.scale - 1.0) - 1.0 - 1e-6)
        assert (true > budget.delta) == exceeds
        assert true <= replace(event, noise=weak).delta(1.0) + (math.inf if kind == "spherical" and exceeds else 0.0)
    assert (event.mu is not None) == (kind == "gaussian")


def test_sampled_releases_of_worst_rows_keep_the_claimed_delta() -> None:
    """10,000 releases of each of two neighbours: the likelihood-ratio event is as probable as stated, not more."""
    event = NoisyMatrix("hessian", problem(dims=2))
    event = replace(event, noise=Mechanism("gaussian", event.sensitivity / 1.5, event.dimensions))
    certificate = certificate_of(event)
    one, other = np.diag([0.25, 0.0]), np.diag([0.0, 0.25])
    move = flatten_matrix(one - other)
    random, above = Randomness(), []
    for matrix in (one, other):
        released = [release_matrix(matrix, event, certificate, random) for _ in range(10_000)]
        assert all(is_on_grid(vector, event.noise) for vector in released[:10])  # type: ignore[arg-type]
        above.append(np.mean(np.array(released) @ move > flatten_matrix(one) @ move - 0.05 * np.linalg.norm(move)))
    # Six deviations of the difference of the two shares.
    assert above[0] - math.exp(0.5) * above[1] <= event.delta(0.5) + 6 * 0.5 * math.sqrt((1 + math.e) / 10_000)
    assert event.noise is not None
    true = float(hockey_stick(float(np.linalg.norm(move)) / (0.5 * event.noise.scale), 0.5))
    assert true > event.delta(0.5) + 0.1


def certificate_of(*matrices: NoisyMatrix, budget: Budget | None = None) -> Certificate:
    """Beside a training of the same problem."""
    budget = budget or Budget(50.0, 0.5)
    training = make_objective_perturbation(matrices[0].problem, Budget(1.0, 1e-6))
    parts = (*(BudgetedEvent(budget, one) for one in matrices), BudgetedEvent(budget, training))
    return certify(Composition(parts), budget)


# ---- all releases together --------------------------------------------------------------------------------------


class Joint(Neighbours):
    """What the minimiser, a noisy Hessian there and Gaussian mechanisms before it truly spend together."""

    def joint_delta(self, mechanism: Mechanism, epsilon: float, *, before: float = 0.0, hessian: float = 0.0) -> float:
        """Integrate over q: `before` is the mu of what is released before, `hessian` the deviation of its noise."""
        places, masses = quadrature(mechanism, 200)
        weights = self.find_minimisers(places)
        losses = self.compute_losses_at_weights(mechanism, weights)
        moved = np.full(len(weights), before)
        if hessian:
            (_, one), (_, other) = (self.compute_derivatives(row, weights) for row in (self.row, self.other))
            distance = self.times * np.linalg.norm(one - other, axis=(1, 2)) / hessian
            moved = np.hypot(before, distance)
        return float(masses @ hockey_stick(moved, epsilon - losses))


def joint_cases(strength: float) -> Iterator[tuple[str, Joint]]:
    for dims in (2, 3):
        one, two = leaning(0.02, dims)
        for name, place in (("far", 800.0), ("near", 20.0), ("at zero", 0.0))[: 3 if dims == 2 else 1]:
            pull = np.zeros(dims)
            pull[1] = place * strength
            yield f"{dims}, {name}", Joint(problem(dims=dims, strength=strength), (0, one), (0, two), pull=tuple(pull))
    single = np.ones(1)
    yield "1, labels", Joint(problem(dims=1, strength=strength), (1, single), (0, single))
    yield "1, neutral", Joint(problem(dims=1, strength=strength), (0, single), (0, 0.0 * single))
    plan = problem(Robust(), dims=1, strength=4 * strength)
    yield "robust, 1, far", Joint(plan, (-40.0, single), (-40.0, -single), pull=(0.0,))
    yield "robust, 1, near", Joint(plan, (0.0, single), (3.0, single))


@pytest.mark.parametrize("name", [name for name, _ in joint_cases(1.0)])
@pytest.mark.parametrize("strength", [0.6, 2.0, 20.0])
@pytest.mark.parametrize(("before", "hessian"), [(0.3, 0.0), (0.0, 0.3), (0.2, 0.2)])
def test_the_true_delta_of_all_releases_never_exceeds_the_claim(
    name: str, strength: float, before: float, hessian: float
) -> None:
    epsilon, delta = 1.0, 1e-2
    case = dict(joint_cases(strength))[name]
    other_mu = math.hypot(before, hessian)
    scale = calibrate_gaussian_term(case.plan, Budget(epsilon, delta), other_mu=other_mu)
    noise = Mechanism("gaussian", scale, case.plan.dimensions)
    matrix = NoisyMatrix("hessian", case.plan)
    deviation = matrix.sensitivity / hessian if hessian else 0.0
    for one in (case, replace(case, row=case.other, other=case.row)):
        assert one.joint_delta(noise, epsilon, before=before, hessian=deviation) <= delta
    claim = bound_minimiser_delta(case.plan, noise, 1.5, other_mu=other_mu)
    assert case.joint_delta(noise, 1.5, before=before, hessian=deviation) <= claim
    # Less than what the parts would spend, one after the other, and more than each.
    assert scale > calibrate_gaussian_term(case.plan, Budget(epsilon, delta))


@pytest.mark.parametrize("dims", [2, 3])
def test_five_percent_less_noise_would_break_the_budget_of_moments_and_training(dims: int) -> None:
    """The same row can move both by the most: with an ample Lambda there is nothing left to gain."""
    case = dict(joint_cases(20.0))[f"{dims}, far"]
    scale = calibrate_gaussian_term(case.plan, Budget(1.0, 1e-3), other_mu=0.15)
    noise = Mechanism("gaussian", scale, dims)
    assert 0.9e-3 < case.joint_delta(noise, 1.0, before=0.15) <= 1e-3
    assert case.joint_delta(replace(noise, scale=0.95 * scale), 1.0, before=0.15) > 1e-3
    assert case.joint_delta(noise, 1.0, before=0.30) > 1.2e-3


def test_half_the_noise_of_a_hessian_breaks_the_budget() -> None:
    """Rows of opposite labels at the same place: the Hessian alone tells a row from none."""
    single = np.ones(1)
    case = Joint(problem(dims=1, strength=20.0), (0, single), (0, 0.0 * single))
    noise = Mechanism("gaussian", calibrate_gaussian_term(case.plan, Budget(1.0, 1e-2), other_mu=0.4), 1)
    deviation = NoisyMatrix("hessian", case.plan).sensitivity / 0.4
    assert case.joint_delta(noise, 1.0, hessian=deviation) <= 1e-2
    assert case.joint_delta(noise, 1.0, hessian=0.5 * deviation) > 1e-2


@pytest.mark.parametrize("strength", [4.0, 20.0])
def test_no_neighbours_that_an_optimiser_finds_spend_more(strength: float) -> None:
    plan = problem(dims=2, strength=strength)
    noise = Mechanism("gaussian", calibrate_gaussian_term(plan, Budget(1.0, 1e-2), other_mu=0.3), 2)
    deviation = NoisyMatrix("hessian", plan).sensitivity / 0.25
    before = math.sqrt(0.3**2 - 0.25**2)

    def make_case(numbers: Array) -> Joint:
        length, angle, other, second, pull, direction = numbers
        x = special.expit(length) * np.array([math.cos(angle), math.sin(angle)])
        y = special.expit(other) * np.array([math.cos(second), math.sin(second)])
        force = strength * math.exp(pull) * np.array([math.cos(direction), math.sin(direction)])
        return Joint(plan, (1, x), (int(second > 0), y), pull=tuple(force))

    def find_spent(numbers: Array) -> float:
        return make_case(numbers).joint_delta(noise, 1.0, before=before, hessian=deviation)

    best = 0.0
    for start in ([9, 0.1, 9, 3.0, 6.0, -1.57], [9, 0.4, 9, 2.7, 3.0, -1.57], [9, 0, -5, 0.1, 0.1, 3.1]):
        found = optimize.minimize(
            lambda numbers: -find_spent(numbers), np.array(start, float), method="Nelder-Mead", options={"maxfev": 60}
        )
        best = max(best, -found.fun)
    assert 0.1e-2 < best <= 1e-2


def test_the_corner_of_length_zero_counts_beside_other_releases() -> None:
    """Where rows do not move the minimiser at all, the releases beside it still spend what they spend."""
    plan, noise = problem(dims=1, strength=1e9), Mechanism("gaussian", 1e6, 1)
    alone = float(hockey_stick(1.0, 0.5))
    assert bound_minimiser_delta(plan, noise, 0.5, other_mu=1.0) >= alone
    assert bound_minimiser_delta(plan, noise, 0.5) < 1e-6
    for rows in (1, 3, 20):
        many = replace(plan, person_rows=rows)
        assert bound_minimiser_delta(many, noise, 0.5, other_mu=1.0) >= alone
    of_number = problem(Robust(), dims=1, strength=1e9)
    assert bound_minimiser_delta(of_number, noise, 0.5, other_mu=1.0) >= alone


def integrate_largest_case(training: ObjectivePerturbation, before: float, epsilon: float) -> float:
    """What the proof has if a Gaussian mechanism of mu `before` decides in which case the rows are, given its loss."""
    simplex, noise = training.problem.loss.simplex, training.linear
    assert simplex is not None
    m = (training.problem.rows, training.problem.regularization)
    losses = before**2 / 2 + before * np.linspace(-9, 9, 4001)
    masses = np.exp(-(((losses - before**2 / 2) / before) ** 2) / 2)
    cases = []
    for case, corners in enumerate(list_corners(simplex)):
        tilt = choose_tilt(simplex, m, noise, epsilon, 1, case, before)
        shares = (float(share.mid()) for share in split_volume_term(simplex, arb(m[0]) * arb(m[1]), tilt))
        spent = np.zeros_like(losses)
        for share, lengths in zip(shares, (corners.same, corners.aside), strict=True):
            for count, square in lengths:
                length = math.sqrt(square * simplex.edge_squared) / noise.scale
                spent += count * hockey_stick(length, epsilon - share - losses)
        cases.append(spent)
    return float(masses @ np.minimum(np.max(cases, axis=0), 1.0) / masses.sum())


@pytest.mark.parametrize("loss", [Robust(), Quantile(0.5), Logistic()], ids=lambda loss: loss.name)
def test_what_is_released_before_may_decide_the_case_of_two_rows(loss: Loss) -> None:
    """Moments decide centres and scales, with them the angle between rows, and so the tilt that belongs to them."""
    budget = Budget(1.0, 1e-6)
    plan = problem(loss, rows=100_000)
    plan = replace(plan, regularization=0.6 * find_ample_regularization(plan, 1.0))
    mu = math.sqrt(0.3) / calibrate_unit_gaussian(budget)
    training = make_objective_perturbation(plan, budget, other_mu=mu * (1.0 + 1e-9))
    moments = NoisyMoments(moments="squares", features=2, numbers=2, clip_norm=1.0)
    moments = replace(moments, noise=Mechanism("gaussian", moments.sensitivity / mu, 4))
    matrix = NoisyMatrix("hessian", plan)
    matrix = replace(matrix, noise=Mechanism("gaussian", matrix.sensitivity / mu, matrix.dimensions))
    before, after = (
        Composition((BudgetedEvent(budget, one), BudgetedEvent(budget, training))).delta(1.0)
        for one in (moments, matrix)
    )
    assert integrate_largest_case(training, mu, 0.99) <= before
    assert after <= 1e-6


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("changed", [2, 3, 9])
def test_persons_are_covered_beside_other_releases(loss: Loss, changed: int) -> None:
    """All rows of a person pull the same way, and what is beside it is moved by the most too."""
    label = (0.0, 0.0) if loss.name == "logistic" else (-40.0, -40.0)
    one, two = leaning(0.02, 2)
    plan = problem(loss, strength=40.0 * changed, person_rows=changed)
    pull = (0.0, 40.0 * changed * 800.0 if loss.name == "logistic" else 0.0)
    case = Joint(plan, (label[0], one), (label[1], two), pull=pull, times=changed)
    noise = Mechanism("gaussian", calibrate_gaussian_term(plan, Budget(1.0, 1e-3), other_mu=0.2), 2)
    spent = case.joint_delta(noise, 1.0, before=0.2)
    assert spent <= 1e-3
    assert case.joint_delta(replace(noise, scale=0.5 * noise.scale), 1.0, before=0.2) > 1e-3


@given(
    changed=st.integers(1, 10),
    other_mu=st.floats(0.01, 2.0),
    epsilon=st.floats(0.1, 4.0),
    strength=st.floats(0.5, 50.0),
)
def test_more_beside_never_spends_less(changed: int, other_mu: float, epsilon: float, strength: float) -> None:
    plan = problem(strength=strength, person_rows=changed)
    noise = Mechanism("gaussian", 8.0 * changed, 2)
    simplex = plan.loss.simplex
    assert simplex is not None
    m = (plan.rows, plan.regularization)
    tilt = choose_tilt(simplex, m, noise, epsilon, changed, 0, other_mu)
    sums = [
        sum_corner_deltas(simplex, m, noise, epsilon, tilt, changed, 0, mu) for mu in (0.0, 0.5 * other_mu, other_mu)
    ]
    assert float(sums[0].lower()) <= float(sums[1].upper()) <= float(sums[2].upper()) * (1 + 1e-12)
    # A composition never spends less than each part of it.
    assert float(sums[2].upper()) >= min(1.0, float(hockey_stick(other_mu, epsilon))) * (1 - 1e-9)


# ---- certificates -----------------------------------------------------------------------------------------------


def plan_together(budget: Budget, *, rows: int = 10_000, person_rows: int | None = None) -> Certificate:
    plan = Problem(loss=Logistic(), dims=4, rows=rows, downweighted=True, regularization=1.0, person_rows=person_rows)
    plan = replace(plan, regularization=find_ample_regularization(plan, budget.epsilon))
    count: Event = NoisyClassCount(noise=Mechanism("gaussian", 40.0 * (person_rows or 1), 1), person_rows=person_rows)
    matrices: list[Event] = [
        NoisyMatrix(name, plan, Mechanism("gaussian", 8.0 * (person_rows or 1), 10)) for name in MATRICES
    ]
    parts = [BudgetedEvent(budget, one) for one in (count, *matrices)]
    other_mu = math.hypot(*(one.event.mu or math.inf for one in parts)) * (1 + 1e-9)
    training = make_objective_perturbation(plan, budget, other_mu=other_mu)
    return certify(Composition((*parts, BudgetedEvent(budget, training))), budget)


@pytest.mark.parametrize("person_rows", [None, 3])
def test_a_certificate_of_all_releases_is_read_as_it_was_written(person_rows: int | None) -> None:
    certificate = plan_together(Budget(2.0, 1e-6), person_rows=person_rows)
    verify(certificate)
    assert certificate.private
    assert certificate.delta(2.0) <= 1e-6 < certificate.delta(1.9)
    read = Certificate.from_dict(certificate.to_dict())
    assert read == certificate
    assert [one.matrix for one in read.matrices] == [*MATRICES]
    assert read.class_count is not None
    assert read.unusable_label_count is None


def test_less_noise_anywhere_is_not_private() -> None:
    certificate = plan_together(Budget(2.0, 1e-6))
    assert isinstance(certificate.spent, Composition)
    parts = certificate.spent.parts
    for number, part in enumerate(parts):
        field = "linear" if isinstance(part.event, ObjectivePerturbation) else "noise"
        noise = getattr(part.event, field)
        planned: Any = part.event
        less: Any = replace(planned, **{field: replace(noise, scale=0.9 * noise.scale)})
        forged = (*parts[:number], replace(part, event=less), *parts[number + 1 :])
        certificate = Certificate(budget=Budget(2.0, 1e-6), spent=Composition(forged))
        assert not certificate.private
        with pytest.raises(CertificateError, match="follows from its events"):
            verify(certificate)


def test_matrices_of_another_problem_or_stated_twice_are_refused() -> None:
    certificate = plan_together(Budget(2.0, 1e-6))
    assert isinstance(certificate.spent, Composition)
    *parts, training = certificate.spent.parts
    wrong: tuple[dict[str, Any], ...] = ({"rows": 20_000}, {"downweighted": False}, {"loss": Robust()})
    for changed in wrong:
        event = parts[1].event
        assert isinstance(event, NoisyMatrix)
        other = replace(event, problem=replace(event.problem, **changed))
        with pytest.raises(ParameterError, match="of the training that the certificate is about"):
            Certificate(budget=None, spent=Composition((parts[0], replace(parts[1], event=other), training)))
    with pytest.raises(ParameterError, match="stated once"):
        Certificate(budget=None, spent=Composition((parts[1], parts[1], training)))
    record = certificate.to_dict()
    record["spent"]["parts"][1]["event"]["derived"]["sensitivity"] *= 0.5
    with pytest.raises(CertificateError):
        Certificate.from_dict(record)


def test_what_a_matrix_must_be() -> None:
    plan = problem(dims=3)
    with pytest.raises(ParameterError, match="matrix"):
        NoisyMatrix("inverse", plan)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="one weight vector"):
        NoisyMatrix("hessian", replace(plan, loss=Multinomial(3)))
    with pytest.raises(ParameterError, match="dimensions"):
        NoisyMatrix("hessian", plan, Mechanism("gaussian", 1.0, 3))
    noiseless = NoisyMatrix("outer products", plan)
    assert (noiseless.delta(1.0), noiseless.mu, noiseless.non_private_reasons) == (1.0, None, (NOISELESS,))
    event = replace(noiseless, noise=Mechanism("gaussian", 2.0, 6))
    assert from_record(Event, to_record(event)) == event  # type: ignore[type-abstract]
    assert event.non_private_reasons == ()
    assert event.mu == pytest.approx(math.sqrt(2.0) / 2.0)
    assert replace(noiseless, noise=Mechanism("spherical", 2.0, 6)).mu is None


def test_only_stated_matrices_are_released() -> None:
    event = NoisyMatrix("hessian", problem(dims=2), Mechanism("gaussian", 1.0, 3))
    certificate, matrix = certificate_of(event), np.eye(2)
    with pytest.raises(ParameterError, match="one that the certificate states"):
        release_matrix(matrix, replace(event, matrix="outer products"), certificate, Randomness())
    with pytest.raises(ParameterError, match="one that the certificate states"):
        release_matrix(np.eye(3), event, certificate, Randomness())
    with pytest.raises(ParameterError, match="not seeded"):
        release_matrix(matrix, event, certificate, Randomness(seed=1))
    with pytest.raises(ParameterError, match="labels must be counted only if"):
        release_label_count(3, certificate.class_count, certificate, Randomness())
    seeded = certify(certificate.spent, None, seeded=True)
    released = [release_matrix(matrix, event, seeded, Randomness(seed=seed)).tolist() for seed in (1, 1, 2)]
    assert released[0] == released[1] != released[2]
    noiseless = replace(event, noise=None)
    assert release_matrix(matrix, noiseless, certificate_of(noiseless), Randomness()).tolist() == [1.0, 0.0, 1.0]


def test_both_matrices_have_noise_of_their_own_from_one_seed() -> None:
    events = [NoisyMatrix(name, problem(dims=2), Mechanism("gaussian", 1.0, 3)) for name in MATRICES]
    seeded = certify(certificate_of(*events).spent, None, seeded=True)
    released = [release_matrix(np.zeros((2, 2)), event, seeded, Randomness(seed=7)) for event in events]
    assert not np.any(released[0] == released[1])


def test_the_gaussian_count_of_a_class_has_the_sensitivity_of_one_row() -> None:
    event = NoisyClassCount(noise=Mechanism("gaussian", 4.0, 1))
    assert event.mu == pytest.approx(0.25)
    assert event.delta(0.5) == pytest.approx(float(hockey_stick(0.25, 0.5)), rel=1e-6)
    assert replace(event, person_rows=8).mu == pytest.approx(2.0)
    assert NoisyClassCount(noise=Mechanism("spherical", 4.0, 1)).mu is None
    assert "second class" in event.describe()


# ---- downweighted rows and a centre -----------------------------------------------------------------------------


def test_the_tolerance_and_the_least_regularization_know_long_rows_and_a_centre() -> None:
    plan = Problem(loss=Logistic(), dims=5, rows=10_000, regularization=1e-3)
    long, noise = replace(plan, downweighted=True), Mechanism("gaussian", 10.0, 5)
    assert find_min_solvable_regularization(long, noise) > 30 * find_min_solvable_regularization(plan, noise)
    assert choose_gradient_tolerance(long, noise) > choose_gradient_tolerance(plan, noise)
    strong = replace(long, regularization=1e3)
    center = 20 * math.sqrt(2.0) * 2.0**-50 * 256 * 1e3 * MAX_CENTER
    assert find_min_solvable_regularization(strong, None) > center


def test_a_problem_says_truly_whether_rows_are_downweighted() -> None:
    with pytest.raises(ParameterError, match="downweighted must be true or false"):
        Problem(loss=Logistic(), dims=1, rows=2, downweighted=1)  # type: ignore[arg-type]
    assert "downweighted" not in to_record(Problem(loss=Logistic(), dims=1, rows=2))
    assert {field.name for field in dataclasses.fields(Problem)} >= {"downweighted"}


def test_releases_that_leave_nothing_to_the_weights_are_refused() -> None:
    """From public numbers: no noise, however large, is enough then."""
    with pytest.raises(ParameterError, match=r"must leave a part of epsilon = 0\.99 and delta = 0\.01 to them"):
        make_objective_perturbation(problem(strength=2.0), Budget(1.0, 1e-2), other_mu=2.0)


@pytest.mark.parametrize(("person_rows", "corners"), [(None, 4), (3, 12)])
@pytest.mark.parametrize("loss", [Logistic(), Robust()], ids=str)
def test_every_corner_spends_what_is_released_beside_it_the_one_of_length_0_too(
    loss: Loss, person_rows: int | None, corners: int
) -> None:
    """With hardly any signal in the weights, each term of the sum is the delta of the other releases alone."""
    problem = Problem(loss=loss, dims=3, rows=10**6, regularization=1e6, person_rows=person_rows)
    spent = bound_minimiser_delta(problem, Mechanism("gaussian", 1e9, 3), 1.0, other_mu=0.3)
    alone = Mechanism("gaussian", 1.0, 1).delta(1.0, sensitivity=0.3)
    assert spent / alone == pytest.approx(corners, rel=1e-6)
