"""What one row can do to the minimiser where labels are numbers: the bounds against true densities and brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from flint import arb
from scipy import optimize, stats

from boltdp.audit.objective_density import Neighbours, Row, compute_log_ratio
from boltdp.losses import Logistic, Loss, Mean, Multinomial, Quantile, Robust, Simplex
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.objective_corners import (
    Corners,
    bound_corner_deltas,
    bound_privacy_loss,
    list_corners,
    sum_corner_deltas,
)
from boltdp.privacy.events.objective_perturbation import (
    bound_gradient_rounding,
    bound_minimiser_delta,
    calibrate_gaussian_term,
    calibrate_objective_noise,
    calibrate_spherical_term,
    check_objective,
    find_ample_regularization,
    find_min_solvable_regularization,
    make_objective_perturbation,
)
from boltdp.privacy.mechanisms import (
    Mechanism,
    NoiseKind,
    calibrate_unit_gaussian,
    calibrate_unit_spherical,
    set_precision,
)
from boltdp.privacy.training_problem import Problem
from tests.privacy.test_objective_corners import LEAN, SCALES, Array, leaning

NUMBERS: list[Loss] = [Robust(), Quantile(0.9), Quantile(0.2), Mean()]
ONE = np.ones(1)


def plan_of(
    loss: Loss, *, factor: float, epsilon: float = 1.0, dims: int | None = None, persons: int | None = None
) -> Problem:
    """With `factor` times the Lambda for which pure noise need not be longer because of the volumes.

    In one dimension, if rows can pull with all their force against each other there: without a label that is
    subtracted from the score they cannot.
    """
    dims = dims or (1 if loss.max_abs_label else 2)
    plan = Problem(loss=loss, dims=dims, rows=1000, person_rows=persons)
    return replace(plan, regularization=factor * find_ample_regularization(plan, epsilon))


def edge_of(loss: Loss) -> float:
    assert loss.simplex is not None
    return math.sqrt(loss.simplex.edge_squared)


# ---- the true distribution of the minimiser ---------------------------------------------------------------------


def compute_delta(case: Neighbours, noise: Mechanism, epsilon: float, weights: Array, cell: float) -> float:
    """Return the delta that is truly spent, the integral of (density - e^epsilon * other density)+ over a grid."""
    slope, bend = case.compute_shared_derivatives(weights)
    gradient, hessian = case.compute_derivatives(case.row, weights)
    q = (-slope - case.times * gradient) / noise.scale
    if noise.kind == "gaussian":
        density = stats.norm.pdf(q).prod(axis=1)
    else:
        area = 2 * math.pi ** (noise.dimensions / 2) * math.gamma(noise.dimensions) / math.gamma(noise.dimensions / 2)
        density = np.exp(-np.linalg.norm(q, axis=1)) / area
    masses = density * np.linalg.det((bend + case.times * hessian) / noise.scale) * cell
    assert masses.sum() == pytest.approx(1.0, abs=2e-3)
    losses = case.compute_losses_at_weights(noise, weights)
    return float(masses @ -np.expm1(np.minimum(epsilon - losses, 0.0)))


def make_grid(case: Neighbours, noise: Mechanism, points: int) -> tuple[Array, float]:
    """All weights that can be found, in one or two dimensions, and the size of a cell; finest along the first axis."""
    strength = case.plan.rows * case.plan.regularization
    far = ((9.0 if noise.kind == "gaussian" else 20.0) * noise.scale + 2 * case.times) / strength
    counts = (points, 41)[: case.plan.dims]
    middles = np.zeros(case.plan.dims) if case.pull is None else np.array(case.pull) / strength
    axes = [middle + np.linspace(-far, far, count) for middle, count in zip(middles, counts, strict=True)]
    cell = math.prod(float(axis[1] - axis[0]) for axis in axes)
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes)), cell


def true_delta(case: Neighbours, noise: Mechanism, epsilon: float, points: int | None = None) -> float:
    return compute_delta(
        case, noise, epsilon, *make_grid(case, noise, points or (2001 if case.plan.dims == 1 else 301))
    )


def labels_of(loss: Loss) -> tuple[float, ...]:
    """Labels that pull with all their force from any place near zero, and one that does not."""
    return (-1.0, 1.0, 0.2) if isinstance(loss, Mean) else (-64.0, 64.0, 0.0)


def worst_cases(plan: Problem, times: int = 1) -> list[Neighbours]:
    """Rows that pull with all their force in one direction, or where the first is curved."""
    strength, (low, high, between) = plan.rows * plan.regularization, labels_of(plan.loss)
    one, two = (ONE, -ONE) if plan.dims == 1 else leaning(LEAN, 2)
    pairs: list[tuple[Row, Row, tuple[float, ...]]] = []
    if plan.dims == 2:
        for place in (800.0, 40.0):
            pairs += [((low, one), (low, two), (0.0, place * strength)), ((0.2, one), (low, two), (0.0, strength))]
    else:
        for pull in (0.0, 40.0 * strength, -40.0 * strength):
            for label in (low, high, between):
                pairs += [((label, one), (label, two), (pull,)), ((between, one), (label, two), (pull,))]
            pairs += [((low, one), (high, one), (pull,)), ((high, one), (low, 0.3 * one), (pull,))]
    return [
        Neighbours(plan, row, other, pull=pull, times=times)
        for first, second, pull in pairs
        for row, other in ((first, second), (second, first))
    ]


def find_largest_loss(plan: Problem, noise: Mechanism, times: int = 1) -> float:
    """Return the largest loss of two rows in a plane, at any scores of the first and far scores of the other.

    q is along v, and far away: the pull of other rows can bring it to any place.
    """
    plan, rows = replace(plan, dims=2), np.stack(leaning(0.02, 2))
    scores = np.linspace(-12.0, 12.0, 2001)
    worst = -math.inf
    for other in (-40.0, 40.0):
        weights: Array = np.linalg.inv(rows).dot(np.stack([scores, np.full_like(scores, other)])).T
        for labels in product((-1.0, 1.0) if isinstance(plan.loss, Mean) else (0.0,), repeat=2):
            case = Neighbours(plan, (labels[0], rows[0]), (labels[1], rows[1]))
            (gradient, hessian), (others, bent) = (
                case.compute_derivatives(row, weights) for row in (case.row, case.other)
            )
            moves, (_, bend) = times * (gradient - others), case.compute_shared_derivatives(weights)
            volumes = np.linalg.slogdet(bend + times * hessian)[1] - np.linalg.slogdet(bend + times * bent)[1]
            worst = max(worst, float((compute_log_ratio(noise, 1e6 * moves, moves) + volumes).max()))
    return worst


@pytest.mark.parametrize("loss", NUMBERS, ids=str)
@pytest.mark.parametrize("factor", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_true_loss_reaches_epsilon_and_never_exceeds_it(loss: Loss, factor: float, epsilon: float) -> None:
    plan = plan_of(loss, factor=factor, epsilon=epsilon)
    noise = Mechanism("spherical", calibrate_spherical_term(plan, Budget(epsilon)), 1)
    assert 0.999 * epsilon <= find_largest_loss(plan, noise) <= epsilon * (1 + 1e-9)
    assert bound_minimiser_delta(plan, noise, epsilon) == 0.0
    for share in (0.5, 0.95):
        assert find_largest_loss(plan, replace(noise, scale=share * noise.scale)) > epsilon


@pytest.mark.parametrize(
    ("loss", "kind"),
    [(loss, kind) for loss in NUMBERS for kind in SCALES if kind == "gaussian" or loss.max_abs_label],
    ids=str,
)
@pytest.mark.parametrize("factor", [0.3, 1.0, 8.0])
def test_the_true_delta_never_exceeds_delta(loss: Loss, kind: NoiseKind, factor: float) -> None:
    """And is nearly reached with an ample Lambda: half of it where two corners are as long, of which one is met."""
    epsilon, delta = 1.0, 1e-4
    plan = plan_of(loss, factor=factor, epsilon=epsilon)
    noise = Mechanism(kind, SCALES[kind](plan, Budget(epsilon, delta)), plan.dims)
    cases = worst_cases(plan)
    most = max(true_delta(case, noise, epsilon) for case in cases)
    assert most <= delta * (1 + 1e-3)
    other = 0.7 * epsilon
    spent = max(true_delta(case, noise, other) for case in cases)
    assert spent <= bound_minimiser_delta(plan, noise, other) * (1 + 1e-3)
    if factor == 8.0:
        twins = loss.simplex is not None and loss.simplex.anchor == 0.5
        # In one dimension spherical noise spends nothing of delta until it is nearly the pure one.
        assert most >= (0.49 if twins else 0.98) * delta or kind == "spherical"
        for share in (0.5, 0.95 if kind == "gaussian" and not twins else 0.9):
            less = replace(noise, scale=share * noise.scale)
            assert max(true_delta(case, less, epsilon) for case in cases) > delta


@pytest.mark.parametrize("loss", NUMBERS, ids=str)
@pytest.mark.parametrize("factor", [0.4, 4.0])
def test_an_optimiser_finds_no_neighbours_on_a_line_that_spend_more(loss: Loss, factor: float) -> None:
    """Over both rows, their labels and the pull."""
    epsilon, delta, random = 1.0, 1e-3, np.random.default_rng(7)
    plan = plan_of(loss, factor=factor, dims=1)
    noise = Mechanism("gaussian", calibrate_gaussian_term(plan, Budget(epsilon, delta)), 1)
    strength, size = plan.rows * plan.regularization, 1.0 if isinstance(loss, Mean) else 64.0

    def spent(settings: Array) -> float:
        one, two, label, other = np.tanh(settings[:4])
        rows = (size * label, one * ONE), (size * other, two * ONE)
        return true_delta(Neighbours(plan, *rows, pull=(float(settings[4]) * strength,)), noise, epsilon, 1001)

    starts = [*random.standard_normal((2, 5)), *np.array([[3.0, -3.0, s, s, 0.0] for s in (-2.0, 2.0, 0.0)])]
    most = max(
        -optimize.minimize(lambda s: -spent(s), start, method="Nelder-Mead", options={"maxfev": 80}).fun
        for start in starts
    )
    assert (0.4 * delta if factor > 1 and loss.max_abs_label else 0.0) <= most <= delta * (1 + 1e-3)


@pytest.mark.parametrize("loss", [Robust(), Quantile(0.8), Mean()], ids=str)
@pytest.mark.parametrize(("kind", "factor"), [("gaussian", 0.5), ("gaussian", 4.0), ("spherical", 4.0)])
def test_neighbours_in_a_plane_spend_no_more(loss: Loss, kind: NoiseKind, factor: float) -> None:
    """Rows at any angle, with other rows that lean the weights to one side."""
    epsilon, delta, random = 1.0, 2e-2, np.random.default_rng(3)
    plan = plan_of(loss, factor=factor, dims=2)
    noise = Mechanism(kind, SCALES[kind](plan, Budget(epsilon, delta)), 2)
    strength, low = plan.rows * plan.regularization, labels_of(loss)[0]
    far = ((7.0 if kind == "gaussian" else 14.0) * noise.scale + 6.0) / strength
    axis, cell = np.linspace(-far, far, 141), (2 * far / 140) ** 2
    square = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    most = 0.0
    for angle in (math.pi, 2.6, 1.6):
        # So much shorter than 1 that they spend less than what is claimed by more than the grid errs.
        one, two = 0.995 * np.array([1.0, 0.0]), 0.995 * np.array([math.cos(angle), math.sin(angle)])
        other = float(random.uniform(low, -low))
        shared = (((other, random.uniform(-0.7, 0.7, 2)), 3),)
        for rows in (((low, one), (low, two)), ((-low, one), (-low, two)), ((0.0, one), (other, two))):
            for case in (Neighbours(plan, *rows), Neighbours(plan, *rows, shared=shared)):
                most = max(most, compute_delta(case, noise, epsilon, square, cell))
    assert most <= delta
    assert factor < 1 or most >= (0.45 if loss.max_abs_label else 0.0) * delta


# ---- persons ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Robust(), Quantile(0.9), Mean()], ids=str)
@pytest.mark.parametrize("persons", [2, 3])
@pytest.mark.parametrize("factor", [0.4, 6.0])
def test_a_person_spends_no_more(loss: Loss, persons: int, factor: float) -> None:
    epsilon, delta = 1.0, 1e-4
    plan = plan_of(loss, factor=factor, persons=persons)
    pure = Mechanism("spherical", calibrate_spherical_term(plan, Budget(epsilon)), 1)
    # The rows of a person that are all alike add less to the volumes than one after another.
    assert (0.85 if factor < 1 else 0.999) * epsilon <= find_largest_loss(plan, pure, persons) <= epsilon * (1 + 1e-9)
    noise = Mechanism("gaussian", calibrate_gaussian_term(plan, Budget(epsilon, delta)), plan.dims)
    cases = worst_cases(plan, persons)
    assert max(true_delta(case, noise, epsilon) for case in cases) <= delta * (1 + 1e-3)
    # What is enough for one row is not for two.
    row = replace(plan, person_rows=None)
    assert find_largest_loss(plan, replace(pure, scale=calibrate_spherical_term(row, Budget(epsilon))), 2) > epsilon
    less = replace(noise, scale=calibrate_gaussian_term(row, Budget(epsilon, delta)))
    assert max(true_delta(case, less, epsilon) for case in cases) > delta


# ---- the proof, by brute force ----------------------------------------------------------------------------------


@pytest.mark.parametrize("simplex", [loss.simplex for loss in NUMBERS], ids=str)
@pytest.mark.parametrize("strength", [0.05, 0.6, 2.0, 30.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_the_largest_loss_is_that_of_some_odds_and_anchors(simplex: Simplex, strength: float, scale: float) -> None:
    edge, odds = math.sqrt(simplex.edge_squared), np.linspace(0.0, 1.0, 4001)
    anchors = [simplex.anchor] if isinstance(simplex.anchor, float) else [0.0, 0.1, 0.5, 1.0]
    with set_precision(64):
        most = float(bound_privacy_loss(simplex, arb(strength), arb(scale)))
    slopes = np.array([edge * np.abs(odds - anchor) for anchor in anchors])
    losses = (slopes + slopes.max()) / scale + np.log1p(simplex.edge_squared * odds * (1 - odds) / strength)
    assert most * (1 - 1e-5) <= losses.max() <= most + 1e-12


def covers(corners: Corners, same: Array, aside: Array) -> bool:
    """Whether two corners with each share are no longer than those of a case."""

    def fits(bounds: tuple[tuple[int, float], ...], squares: Array) -> bool:
        longest = sorted((bound for count, bound in bounds for _ in range(count)), reverse=True)
        return bool((np.sort(squares)[::-1] <= np.array(longest) * (1 + 1e-12)).all())

    return fits(corners.same, same) and fits(corners.aside, aside)


@pytest.mark.parametrize("simplex", [loss.simplex for loss in NUMBERS], ids=str)
def test_every_pair_of_rows_belongs_to_a_case(simplex: Simplex) -> None:
    random, cases = np.random.default_rng(5), list_corners(simplex)
    ends = np.array([0.0, 1.0])
    for trial in range(600):
        angle = random.choice([0.0, math.pi, random.uniform(0, math.pi), random.uniform(3.0, math.pi)])
        lengths = np.ones(2) if trial % 2 else random.uniform(0, 1, 2)
        anchors = np.array([random.choice([0.0, 1.0, random.uniform()]) for _ in range(2)])
        if simplex.anchor != "any":
            anchors[:] = simplex.anchor
        x = lengths[0] * np.array([1.0, 0.0])
        other = lengths[1] * np.array([math.cos(angle), math.sin(angle)])
        corners = (ends - anchors[0])[:, None, None] * x - (ends - anchors[1])[None, :, None] * other
        squares = (corners**2).sum(axis=2)
        alike, unlike = squares.diagonal(), squares[:, ::-1].diagonal()
        assert any(covers(case, alike, unlike) or covers(case, unlike, alike) for case in cases)
    assert math.sqrt(max(case.same[0][1] for case in cases)) == pytest.approx(2 * simplex.reach, rel=1e-14)


@pytest.mark.parametrize("loss", NUMBERS, ids=str)
def test_the_curvature_changes_no_faster_than_the_edge_says(loss: Loss) -> None:
    """The constant of self-concordance of the solver's proof, which is not L for all of them."""
    scores = np.linspace(-15.0, 15.0, 30_001)[:, None]
    bends = loss.compute_hessians(scores, 0.1, positive=1)
    assert bends is not None
    rates = np.abs(np.diff(np.log(bends[:, 0, 0]))) / np.diff(scores[:, 0])
    assert 0.999 * edge_of(loss) <= rates.max() <= edge_of(loss) * (1 + 1e-6)


# ---- how much noise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", NUMBERS, ids=str)
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
def test_an_ample_regularization_is_the_least_that_costs_pure_noise_nothing(loss: Loss, epsilon: float) -> None:
    shortest = 2 * loss.lipschitz / epsilon
    for factor in (1.0, 2.0, 1e6):
        scale = calibrate_spherical_term(plan_of(loss, factor=factor, epsilon=epsilon), Budget(epsilon))
        assert shortest * (1 - 1e-15) <= scale <= shortest * (1 + 1e-15)
    less = plan_of(loss, factor=0.9, epsilon=epsilon)
    assert calibrate_spherical_term(less, Budget(epsilon)) > shortest * (1 + 1e-6)
    assert less.rows * less.regularization == pytest.approx(0.9 * 2 * edge_of(loss) * loss.lipschitz / epsilon)


@pytest.mark.parametrize(
    ("loss", "most"), [(Robust(), 1.06), (Quantile(0.5), 1.06), (Quantile(0.9), 1.01), (Mean(), 1.01)]
)
def test_noise_with_delta_is_hardly_longer_than_a_fixed_vector_needs(loss: Loss, most: float) -> None:
    """At the Lambda that pure noise asks for. Where two corners are as long, each has half of delta."""
    budget = Budget(0.5, 1e-8)
    plan = plan_of(loss, factor=1.0, epsilon=budget.epsilon, dims=20)
    fixed = 2 * loss.lipschitz
    sigma, scale = calibrate_gaussian_term(plan, budget), calibrate_spherical_term(plan, budget)
    assert 1.0 <= sigma / (fixed * calibrate_unit_gaussian(budget)) <= most
    assert 1.0 <= scale / (fixed * calibrate_unit_spherical(budget, dimensions=20)) <= most
    assert calibrate_objective_noise(plan, budget).scale == scale


def test_cases_count_with_a_tilt_of_their_own() -> None:
    """With one tilt for all, the noise of the robust loss would be a tenth longer."""
    plan, epsilon = plan_of(Robust(), factor=1.0), 1.0
    simplex, sizes = plan.loss.simplex, (plan.rows, plan.regularization)
    assert simplex is not None
    noise = Mechanism("gaussian", calibrate_gaussian_term(plan, Budget(epsilon, 1e-6)), 1)
    cases = range(len(list_corners(simplex)))
    assert len(cases) == 10
    assert float(bound_corner_deltas(simplex, sizes, noise, epsilon)) == pytest.approx(1e-6, rel=1e-6)
    longer = replace(noise, scale=1.08 * noise.scale)
    for tilt in np.arange(65) / 64:
        assert max(float(sum_corner_deltas(simplex, sizes, longer, epsilon, tilt, case=k)) for k in cases) > 1e-6


def test_events_of_numbers_state_the_longest_move() -> None:
    for loss in (Robust(), Mean()):
        plan = plan_of(loss, factor=2.0, dims=3, persons=2)
        check_objective(plan)
        event = make_objective_perturbation(plan, Budget(1.0, 1e-6))
        assert event.delta(1.0) <= 1e-6
        assert event.noisy_vectors[0][2] == pytest.approx(4 * loss.lipschitz, rel=1e-15)


def test_a_label_adds_to_the_rounding_of_a_score_and_the_edge_to_what_is_solvable() -> None:
    plan = plan_of(Robust(), factor=1.0)
    at_zero = [bound_gradient_rounding(replace(plan, loss=loss), weights=0.0, noise=0.0) for loss in (Robust(), Mean())]
    assert at_zero[0] - at_zero[1] == pytest.approx(1.01 * 2.0**-53 * 1000 * (4.0 * 65.0 - 1.0), rel=1e-6)
    steep, plain = (find_min_solvable_regularization(replace(plan, loss=loss), None) for loss in (Robust(), Mean()))
    # (C * sqrt(beta))^(2/3), with C proportional to the edge.
    assert steep == pytest.approx(plain * (2.0 * 2.0) ** (2 / 3))


@pytest.mark.parametrize("tau", [0.001, 0.1, 0.3, 0.5, 0.7, 0.999])
def test_the_longest_slope_is_rounded_up(tau: float) -> None:
    exact = max(arb(tau), 1 - arb(tau), key=float)
    assert arb(Quantile(tau).lipschitz) >= exact
    assert Quantile(tau).lipschitz <= float(exact) * (1 + 2.0**-51)
    assert [Logistic().simplex.max_slope, Multinomial(3).simplex.max_slope] == [1.0, math.sqrt(2.0)]
