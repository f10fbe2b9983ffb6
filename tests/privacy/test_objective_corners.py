"""What one row can do to the minimiser: the bound against true densities, attacks, brute force and the older bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from flint import arb
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special, stats

from boltdp.audit import objective_density
from boltdp.audit.objective_density import compute_log_ratio
from boltdp.losses import (
    HuberSVM,
    Logistic,
    Loss,
    MarginLogistic,
    MulticlassHuber,
    Multinomial,
    Simplex,
    make_contrast_basis,
)
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.objective_corners import (
    _approximate_delta,
    bound_privacy_loss,
    choose_tilt,
    split_volume_term,
    sum_corner_deltas,
)
from boltdp.privacy.events.objective_perturbation import (
    bound_minimiser_delta,
    bound_volume_term,
    calibrate_gaussian_term,
    calibrate_objective_noise,
    calibrate_spherical_term,
    find_ample_regularization,
    find_min_regularization,
)
from boltdp.privacy.mechanisms import (
    Mechanism,
    NoiseKind,
    calibrate_unit_gaussian,
    compute_gaussian_delta,
    set_precision,
)
from boltdp.privacy.mechanisms import calibrate_unit_spherical as noise_scale
from boltdp.privacy.spherical_delta import choose_spherical_bits, compute_spherical_delta, find_spherical_scale
from boltdp.privacy.training_problem import Problem

if TYPE_CHECKING:
    from typing_extensions import Self

Array = npt.NDArray[np.float64]
SCALES: dict[NoiseKind, Callable[[Problem, Budget], float]] = {
    "gaussian": calibrate_gaussian_term,
    "spherical": calibrate_spherical_term,
}
SIMPLICES = [Simplex(2, 1.0), Simplex(2, 2.0), Simplex(3, 2.0), Simplex(4, 2.0), Simplex(10, 2.0)]


def problem(loss: Loss, *, dims: int, strength: float, rows: int = 1000) -> Problem:
    return Problem(loss=loss, dims=dims, rows=rows, regularization=strength / rows)


# ---- the true distribution of the minimiser ---------------------------------------------------------------------


class Neighbours(objective_density.Neighbours):
    """With the delta that is truly spent."""

    def delta(self, mechanism: Mechanism, epsilon: float, *, nodes: int = 200) -> float:
        """Integrated over q."""
        places, masses = quadrature(mechanism, nodes)
        assert masses.sum() == pytest.approx(1.0, abs=1e-6)
        return float(masses @ -np.expm1(np.minimum(epsilon - self.compute_losses_of_noise(mechanism, places), 0)))

    @property
    def swapped(self) -> Self:
        return replace(self, row=self.other, other=self.row)


def quadrature(mechanism: Mechanism, nodes: int) -> tuple[Array, Array]:
    """Places of q and what they weigh. The rows differ most along the first axis, where it is finest."""
    if mechanism.kind == "gaussian":
        return grid(mechanism)
    free = mechanism.dimensions
    # The length of q and its direction are independent.
    length = stats.gamma(free)
    radii, parts = pieces(np.append(0.0, length.isf(np.geomspace(0.9, 1e-13, max(6, nodes // 10)))))
    directions, shares = sphere(free, nodes)
    q = mechanism.scale * radii[:, None, None] * directions
    return q.reshape(-1, free), np.outer(parts * length.pdf(radii), shares).ravel()


def pieces(ends: Array) -> tuple[Array, Array]:
    """Nodes and weights between each two of the ends."""
    places, weights = np.polynomial.legendre.leggauss(12)
    middle, half = (ends[1:] + ends[:-1])[:, None] / 2, (ends[1:] - ends[:-1])[:, None] / 2
    return (middle + half * places).ravel(), (half * weights).ravel()


def grid(mechanism: Mechanism) -> tuple[Array, Array]:
    free = mechanism.dimensions
    first, parts = pieces(np.linspace(-8.0, 8.0, 33))
    other, shares = np.polynomial.hermite_e.hermegauss({1: 1, 2: 24, 3: 10}.get(free, 5))
    places = np.stack(np.meshgrid(first, *[other] * (free - 1), indexing="ij"), axis=-1).reshape(-1, free)
    masses = np.array([1.0])
    for share in [parts * stats.norm.pdf(first), *[shares / shares.sum()] * (free - 1)]:
        masses = np.outer(masses, share).ravel()
    return mechanism.scale * places, masses


def sphere(free: int, nodes: int) -> tuple[Array, Array]:
    if free == 1:
        return np.array([[1.0], [-1.0]]), np.array([0.5, 0.5])
    angles = 2 * math.pi * (np.arange(2 * nodes) + 0.5) / (2 * nodes)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if free == 2:
        return circle, np.full(2 * nodes, 0.5 / nodes)
    if free == 3:
        heights, weights = np.polynomial.legendre.leggauss(4 * nodes)
        rings = np.sqrt(1 - heights**2)[:, None, None] * circle
        tops = np.broadcast_to(heights[:, None, None], (4 * nodes, 2 * nodes, 1))
        shares = np.repeat(weights / 2, 2 * nodes) / (2 * nodes)
        return np.concatenate([tops, rings], axis=2).reshape(-1, 3), shares
    points = stats.norm.ppf(stats.qmc.Sobol(free, seed=1).random(2 ** math.ceil(math.log2(nodes**2))))
    return points / np.linalg.norm(points, axis=1, keepdims=True), np.full(len(points), 1 / len(points))


def leaning(angle: float, dims: int) -> tuple[Array, Array]:
    """Two unit vectors that are nearly opposite, but for what both have along the second axis."""
    x = np.zeros((2, dims))
    x[0, 0], x[1, 0], x[:, 1] = math.cos(angle), -math.cos(angle), math.sin(angle)
    return x[0], x[1]


#: So much that what the worst rows spend is less than what is claimed by more than a quadrature errs.
LEAN = 0.05


def worst_cases(strength: float) -> Iterator[tuple[str, Neighbours]]:
    """Neighbours that pull against each other with about all their force, or are as curved as they can be."""
    far = 800.0
    for dims in (2, 3):
        one, two = leaning(LEAN, dims)
        pull = np.zeros(dims)
        for name, place in (("far", far), ("near", 40.0), ("at zero", 0.0))[: 3 if dims == 2 else 1]:
            pull[1] = place * strength
            plan = problem(Logistic(), dims=dims, strength=strength)
            yield f"logistic, {dims}, {name}", Neighbours(plan, (0, one), (0, two), pull=tuple(pull))
    # The many rows drive the weights to where the two opposite rows are both misclassified.
    plan = problem(Logistic(), dims=2, strength=strength, rows=2000)
    one, two = leaning(0.45, 2)
    yield "logistic, rows", Neighbours(plan, (1, one), (1, two), shared=(((0, np.array([0.0, 1.0])), 1999),))
    single = np.ones(1)
    plan = problem(Logistic(), dims=1, strength=strength)
    yield "logistic, 1", Neighbours(plan, (1, single), (0, single))
    yield "logistic, 1, far", Neighbours(plan, (0, single), (0, 0.0 * single), pull=(20.0 * strength,))
    plan = problem(Multinomial(3), dims=1, strength=strength)
    yield "three classes, 1", Neighbours(plan, (2, single), (2, -single))
    shared = tuple(((label, 0.5 * single), 10) for label in (0, 1))
    yield "three classes, 1, rows", Neighbours(plan, (2, single), (2, -single), shared=shared)
    one, two = leaning(LEAN, 2)
    plan = problem(Multinomial(3), dims=2, strength=strength)
    for name, wish in (("one", (1.0, 0.0, -1.0)), ("either", (1.0, 1.0, -2.0)), ("none", (0.0, 0.0, 0.0))):
        push = np.kron(make_contrast_basis(3) @ np.array(wish), [0.0, far * strength])
        yield f"three classes, 2, {name}", Neighbours(plan, (2, one), (2, two), pull=tuple(push))
    plan = problem(HuberSVM(0.1), dims=1, strength=strength)
    yield "huber, 1", Neighbours(plan, (1, single), (0, single))
    # Where both rows are about as wrong as they may be before they are right.
    one, two = leaning(0.45, 2)
    plan = problem(HuberSVM(0.1), dims=2, strength=strength)
    yield "huber, 2", Neighbours(plan, (1, one), (1, two), pull=(0.0, strength / one[1]))
    plan = problem(MulticlassHuber(3, 0.1), dims=1, strength=strength)
    yield "three huber classes, 1", Neighbours(plan, (2, single), (2, -single), shared=shared)


def ample(name: str) -> float:
    """About how many times epsilon an ample Lambda is; with kinks, one of which a part of epsilon is left."""
    return {"three": 2.0, "three huber": 60.0, "huber": 20.0}.get(name.split(" classes")[0].split(",")[0], 1.0)


NAMES = [name for name, _ in worst_cases(1.0)]
#: Times epsilon: from where hardly anything is left of it to where the volumes are nothing.
STRENGTHS = [0.45, 2.0, 20.0]


def nodes_for(plan: Problem) -> int:
    return {1: 400, 2: 110, 3: 18}.get(plan.dimensions, 16)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-2), (3.0, 1e-4)])
def test_the_quadrature_knows_what_a_fixed_move_spends(
    dims: int, kind: NoiseKind, epsilon: float, delta: float
) -> None:
    """Within less than the worst rows are short of 2."""
    plan = problem(Logistic(), dims=dims, strength=1e6)
    noise = Mechanism(kind, SCALES[kind](plan, Budget(epsilon, delta)), dims)
    places, masses = quadrature(noise, nodes_for(plan))

    def compute_delta(length: float) -> float:
        move = np.broadcast_to(length * np.eye(dims)[0], places.shape)
        return float(masses @ -np.expm1(np.minimum(epsilon - compute_log_ratio(noise, places, move), 0)))

    exact = noise.delta(epsilon, sensitivity=2.0)
    short = noise.delta(epsilon, sensitivity=2.0 * math.cos(LEAN))
    assert abs(compute_delta(2.0) - exact) < 0.5 * (exact - short)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("epsilon", [0.5, pytest.param(3.0, marks=pytest.mark.slow)])
def test_the_true_loss_never_exceeds_epsilon(name: str, strength: float, epsilon: float) -> None:
    case = dict(worst_cases(strength * ample(name) / epsilon))[name]
    noise = Mechanism("spherical", calibrate_spherical_term(case.plan, Budget(epsilon)), case.plan.dimensions)
    for one in (case, case.swapped):
        places, _ = quadrature(noise, nodes_for(case.plan))
        assert one.compute_losses_of_noise(noise, places).max() <= epsilon
    assert bound_minimiser_delta(case.plan, noise, epsilon) == 0.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-2), pytest.param(3.0, 1e-4, marks=pytest.mark.slow)])
def test_the_true_delta_never_exceeds_delta(
    name: str, strength: float, kind: NoiseKind, epsilon: float, delta: float
) -> None:
    case = dict(worst_cases(strength * ample(name) / epsilon))[name]
    noise = Mechanism(kind, SCALES[kind](case.plan, Budget(epsilon, delta)), case.plan.dimensions)
    for one in (case, case.swapped):
        assert one.delta(noise, epsilon, nodes=nodes_for(case.plan)) <= delta
    # At another epsilon than the noise was made for.
    other = 0.8 * epsilon
    assert case.delta(noise, other, nodes=nodes_for(case.plan)) <= bound_minimiser_delta(case.plan, noise, other)


@pytest.mark.parametrize("dims", [2, 3])
def test_two_percent_less_noise_would_break_the_budget(dims: int) -> None:
    """Two classes and an ample Lambda: there is nothing left to gain."""
    case = dict(worst_cases(8.0))[f"logistic, {dims}, far"]
    pure = Mechanism("spherical", 0.98 * calibrate_spherical_term(case.plan, Budget(1.0)), dims)
    places, _ = quadrature(pure, nodes_for(case.plan))
    assert case.compute_losses_of_noise(pure, places).max() > 1.0
    for kind, scale in SCALES.items():
        noise = Mechanism(kind, 0.98 * scale(case.plan, Budget(1.0, 1e-3)), dims)
        assert case.delta(noise, 1.0, nodes=nodes_for(case.plan)) > 1e-3


def test_any_less_noise_would_break_the_budget_of_a_loss_with_kinks() -> None:
    """The bound is reached: a row is as curved as can be where it pulls with all its force, at the edge of its kink."""
    case = dict(worst_cases(20.0))["huber, 1"]
    scale = calibrate_spherical_term(case.plan, Budget(1.0))
    (loss,) = case.compute_losses_at_weights(Mechanism("spherical", scale, 1), np.array([[0.9 + 1e-9]]))
    assert loss == pytest.approx(1.0, abs=1e-6)
    assert loss <= 1.0
    noise = Mechanism("gaussian", 0.9 * calibrate_gaussian_term(case.plan, Budget(1.0, 1e-3)), 1)
    assert case.delta(noise, 1.0, nodes=400) > 0.2e-3


def test_less_noise_would_break_the_budget_of_three_classes() -> None:
    case = dict(worst_cases(100.0))["three classes, 2, one"]
    pure = Mechanism("spherical", 0.98 * calibrate_spherical_term(case.plan, Budget(1.0)), 4)
    places, _ = quadrature(pure, 16)
    assert case.compute_losses_of_noise(pure, places).max() > 1.0
    for kind, scale in SCALES.items():
        noise = Mechanism(kind, 0.8 * scale(case.plan, Budget(1.0, 1e-2)), 4)
        assert case.delta(noise, 1.0, nodes=16) > 1e-2


# ---- attacks: neighbours that an optimiser finds ----------------------------------------------------------------


def found(settings: Array, plan: Problem) -> Neighbours:
    """Two rows of label 1 and a pull, from any numbers."""
    strength = plan.rows * plan.regularization
    if plan.dims == 1:
        one, two = np.tanh(settings[:1]), np.tanh(settings[1:2])
        return Neighbours(plan, (1, one), (1, two), pull=(float(settings[2] ** 3 * strength),))
    angles, lengths = settings[:2], special.expit(settings[2:4])
    x = lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    pull = tuple(float(part) * strength for part in settings[4:] ** 3)
    return Neighbours(plan, (1, x[0]), (1, x[1]), pull=pull)


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize(
    ("dims", "strength", "reached"), [(1, 2.0, 0.0), (2, 0.6, 0.02), (2, 2.0, 0.7), (2, 20.0, 0.9)]
)
def test_an_optimiser_finds_no_neighbours_that_spend_more(
    kind: NoiseKind, dims: int, strength: float, reached: float
) -> None:
    """And with an ample Lambda it finds some that spend nearly all."""
    epsilon, delta, random = 1.0, 2e-2, np.random.default_rng(4)
    plan = problem(Logistic(), dims=dims, strength=strength / epsilon)
    noise = Mechanism(kind, SCALES[kind](plan, Budget(epsilon, delta)), dims)

    def compute_delta(settings: Array, nodes: int = 24) -> float:
        return found(settings, plan).delta(noise, epsilon, nodes=nodes)

    starts = list(random.standard_normal((3, 3 if dims == 1 else 6)))
    if dims == 2:
        starts.append(np.array([-1.5, -1.5 - 2.5, 4.0, 4.0, 0.0, 4.0]))
        starts.append(np.array([-0.03, 0.03 - math.pi, 7.0, 7.0, 0.0, 8.0]))
    most = 0.0
    for start in starts:
        best = optimize.minimize(lambda s: -compute_delta(s), start, method="Nelder-Mead", options={"maxfev": 60})
        most = max(most, compute_delta(best.x, 60))
    assert reached * delta <= most <= delta


@pytest.mark.parametrize("strength", [0.3, 0.6, 2.0, 20.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_an_optimiser_finds_no_larger_loss(classes: int, strength: float) -> None:
    """Of pure noise, over the weights and q itself: the pull of other rows can bring both to any place."""
    loss: Loss = Logistic() if classes == 2 else Multinomial(3)
    plan = problem(loss, dims=2, strength=strength * loss.simplex.edge_squared)
    noise = Mechanism("spherical", calibrate_spherical_term(plan, Budget(1.0)), plan.dimensions)
    random = np.random.default_rng(classes)

    def found_loss(settings: Array) -> float:
        one, two = leaning(0.02, 2)
        case, weights = Neighbours(plan, (1, one), (1, two)), np.tile([1.0, 600.0], classes - 1) * settings[None]
        (gradient, hessian), (others, other) = (
            case.compute_derivatives(row, weights) for row in (case.row, case.other)
        )
        _, bend = case.compute_shared_derivatives(weights)
        # q along v, and far away, is the worst.
        moved = compute_log_ratio(noise, 1e4 * (gradient - others), gradient - others)
        volumes = np.linalg.slogdet(bend + hessian)[1] - np.linalg.slogdet(bend + other)[1]
        return float((moved + volumes)[0])

    starts = random.standard_normal((20, plan.dimensions))
    most = max(
        -optimize.minimize(lambda s: -found_loss(s), start, method="Nelder-Mead", options={"maxfev": 500}).fun
        for start in starts
    )
    assert 0.93 <= most <= 1.0


# ---- the proof, by brute force ----------------------------------------------------------------------------------


def volume(simplex: Simplex, strength: float, odds: Array) -> Array:
    """H of section 2."""
    trace = simplex.edge_squared / 2 * (1 - (odds**2).sum(axis=-1))
    return np.asarray(simplex.directions * np.log1p(trace / (simplex.directions * strength)))


def some_odds(vertices: int) -> Array:
    """Of all kinds: equal and unequal ones, on the faces too."""
    random = np.random.default_rng(vertices)
    inside = [random.dirichlet(np.full(vertices, concentration), 4000) for concentration in (0.05, 0.3, 1.0, 5.0)]
    equal = [np.where(np.arange(vertices) < k, 1 / k, 0.0) for k in range(1, vertices + 1)]
    wrong = np.linspace(0, 1, 2001)[:, None]
    others = [np.append(np.zeros(vertices - k), np.full(k, 1 / k)) for k in range(1, vertices)]
    lines = [(1 - wrong) * np.eye(vertices)[0] + wrong * other for other in others]
    return np.vstack([*inside, equal, *lines])


@pytest.mark.parametrize("simplex", SIMPLICES, ids=str)
@pytest.mark.parametrize("strength", [0.05, 1.0, 30.0])
def test_volumes_are_no_more_than_the_determinant_says(simplex: Simplex, strength: float) -> None:
    odds = some_odds(simplex.vertices)
    spread = simplex.edge_squared / 2 * (odds[:, :, None] * np.eye(simplex.vertices) - odds[:, :, None] * odds[:, None])
    true = np.linalg.slogdet(np.eye(simplex.vertices) + spread / strength)[1]
    assert (true <= volume(simplex, strength, odds) + 1e-12).all()


@pytest.mark.parametrize("simplex", SIMPLICES, ids=str)
@pytest.mark.parametrize("strength", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("tilt", [0.0, 0.3, 0.9, 1.0])
def test_shares_of_volume_cover_it_and_touch_it(simplex: Simplex, strength: float, tilt: float) -> None:
    with set_precision(64):
        same, aside = (float(share) for share in split_volume_term(simplex, arb(strength), tilt))
    odds = some_odds(simplex.vertices)
    spare = odds[:, 0] * same + (1 - odds[:, 0]) * aside - volume(simplex, strength, odds)
    assert spare.min() >= -1e-12
    touched = np.full(simplex.vertices, (1 - tilt) / simplex.vertices)
    touched[0] += tilt
    covered = touched[0] * same + (1 - touched[0]) * aside
    assert covered == pytest.approx(float(volume(simplex, strength, touched)), abs=1e-12)


@pytest.mark.parametrize("simplex", SIMPLICES, ids=str)
@pytest.mark.parametrize("strength", [0.05, 0.6, 2.0, 30.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 20.0])
def test_the_largest_loss_is_that_of_some_odds(simplex: Simplex, strength: float, scale: float) -> None:
    edge = math.sqrt(simplex.edge_squared)
    with set_precision(64):
        most = float(bound_privacy_loss(simplex, arb(strength), arb(scale)))
    odds = some_odds(simplex.vertices)
    slopes = edge / math.sqrt(2) * np.linalg.norm(odds - np.eye(simplex.vertices)[0], axis=1)
    losses = (slopes + edge) / scale + volume(simplex, strength, odds)
    assert losses.max() <= most + 1e-12
    # With many classes not every slope has odds among these.
    assert losses.max() >= most * (1 - (1e-6 if simplex.vertices == 2 else 1e-2))


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_no_pair_of_rows_has_more_or_longer_corners(classes: int) -> None:
    """For every pair of labels each class of the other row has its corners within those that are counted."""
    units = np.eye(classes)
    for other in (0, min(1, classes - 1)):
        for cosine in (-1.0, 0.0, 1.0):
            inner = (units - units[0]) @ (units - units[other]).T
            lengths = ((units - units[0]) ** 2).sum(axis=1)[:, None] + ((units - units[other]) ** 2).sum(axis=1)
            squares = (lengths - 2 * cosine * inner) / 2
            for k in range(classes):
                of_k = np.sort(squares[1:, k])[::-1]
                if k == other:
                    assert (of_k <= 1 + 1e-12).all()
                else:
                    assert squares[0, k] <= 1 + 1e-12
                    assert of_k[0] <= 4 + 1e-12
                    assert (of_k[1:] <= 3 + 1e-12).all()


@pytest.mark.parametrize("strength", [0.6, 2.0, 20.0])
@pytest.mark.parametrize("tilt", [0.0, 0.4, 1.0])
def test_corners_spend_at_least_what_the_worst_slopes_do(strength: float, tilt: float) -> None:
    """Brute force over s and s' for each q, in two dimensions: no proof by corners can claim less."""
    simplex, noise, epsilon = Simplex(2, 1.0), Mechanism("gaussian", 4.0, 2), 1.0
    places, masses = quadrature(noise, 60)
    worst = np.full(len(places), -np.inf)
    grid = np.linspace(0, 1, 41)
    for wrong in grid:
        for other in grid:
            move = np.broadcast_to(np.array([wrong + other, 0.0]), places.shape)
            added = float(volume(simplex, strength, np.array([1 - wrong, wrong])))
            worst = np.maximum(worst, compute_log_ratio(noise, places, move) + added)
    least = float(masses @ -np.expm1(np.minimum(epsilon - worst, 0)))
    claimed = float(sum_corner_deltas(simplex, (1, strength), noise, epsilon, tilt))
    assert least <= claimed
    if strength == 20.0 and tilt == 1.0:
        assert least >= 0.95 * claimed


# ---- how it compares with the bound that sets the volume aside at every corner ------------------------------------


def older_delta(plan: Problem, noise: Mechanism, epsilon: float) -> arb:
    """By corners that all pay the whole volume, with the lengths and numbers of corners that were proved then."""
    if plan.loss.vector_count == 1:
        corners = [(4.0, 1), (1.0, 2)]
    else:
        others = plan.loss.vector_count - 1
        corners = [(8.0, others), (6.0, others * (others - 1)), (2.0, 2 * others)]
    left = arb(epsilon - bound_volume_term(plan))
    with set_precision(
        256 if noise.kind == "gaussian" else choose_spherical_bits(math.sqrt(corners[0][0]) / noise.scale)
    ):
        total = arb(0)
        for square, count in corners:
            length = arb(square).sqrt() / arb(noise.scale)
            spent = (
                compute_gaussian_delta(length, left)
                if noise.kind == "gaussian"
                else compute_spherical_delta(length, left, noise.dimensions)
            )
            total += count * spent
        return total


def older_scale(plan: Problem, budget: Budget) -> float:
    """Of spherical noise."""
    pure = 2 * plan.loss.lipschitz / (budget.epsilon - bound_volume_term(plan))
    if not budget.delta:
        return pure

    def compute_delta(scale: float) -> arb:
        return older_delta(plan, Mechanism("spherical", scale, plan.dimensions), budget.epsilon)

    return find_spherical_scale(compute_delta, delta=budget.delta, pure=pure)


LOSSES_AND_DIMS = [(Logistic(), 1), (Logistic(), 50), (Multinomial(2), 3), (Multinomial(3), 2), (Multinomial(10), 5)]


@pytest.mark.parametrize(("loss", "dims"), LOSSES_AND_DIMS, ids=str)
@pytest.mark.parametrize("kind", SCALES)
def test_a_tilt_of_0_is_the_older_bound_and_none_chosen_is_worse(loss: Loss, dims: int, kind: NoiseKind) -> None:
    assert loss.simplex is not None
    for epsilon in (0.05, 1.0, 5.0):
        for factor in (1.05, 2.0, 10.0, 1000.0):
            plan = Problem(loss=loss, dims=dims, rows=1000)
            plan = replace(plan, regularization=factor * find_min_regularization(plan, epsilon))
            for size in (0.5, 1.0, 3.0):
                noise = Mechanism(kind, size * 2 * loss.lipschitz / epsilon, plan.dimensions)
                older = float(older_delta(plan, noise, epsilon).upper())
                none = sum_corner_deltas(loss.simplex, (1000, plan.regularization), noise, epsilon, 0.0)
                assert float(none) == pytest.approx(older, rel=1e-9, abs=1e-290)
                assert bound_minimiser_delta(plan, noise, epsilon) <= older * (1 + 1e-9)


@pytest.mark.parametrize(("loss", "dims"), LOSSES_AND_DIMS, ids=str)
@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-2])
def test_noise_is_never_longer_than_the_older(loss: Loss, dims: int, delta: float) -> None:
    for epsilon in (0.05, 1.0, 5.0):
        for factor in (1.05, 2.0, 10.0, 1000.0):
            plan = Problem(loss=loss, dims=dims, rows=1000)
            plan = replace(plan, regularization=factor * find_min_regularization(plan, epsilon))
            budget = Budget(epsilon, delta)
            assert calibrate_spherical_term(plan, budget) <= older_scale(plan, budget) * (1 + 1e-10)
            if delta:
                noise = Mechanism("gaussian", (1 - 1e-9) * calibrate_gaussian_term(plan, budget), plan.dimensions)
                assert older_delta(plan, noise, epsilon) > delta


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_two_classes_need_an_eighth_less_noise_than_before_and_no_more_than_a_fixed_vector(epsilon: float) -> None:
    budget = Budget(epsilon, 1 / 60_000**2)
    plan = Problem(loss=Logistic(), dims=50, rows=60_000)
    plan = replace(plan, regularization=find_ample_regularization(plan, epsilon))
    noise = calibrate_objective_noise(plan, budget)
    fixed = 2 * noise_scale(budget, dimensions=50)
    assert noise.kind == "spherical"
    assert fixed <= noise.scale <= 1.003 * fixed
    assert 0.87 <= noise.scale / older_scale(plan, budget) <= 0.89
    wide = replace(plan, dims=5000)
    sigma, plain = calibrate_objective_noise(wide, budget), 2 * calibrate_unit_gaussian(budget)
    assert sigma.kind == "gaussian"
    assert plain <= sigma.scale <= 1.003 * plain


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("classes", [3, 10])
def test_many_classes_need_a_twentieth_less_noise_than_before(epsilon: float, classes: int) -> None:
    budget = Budget(epsilon, 1 / 60_000**2)
    plan = Problem(loss=Multinomial(classes), dims=50, rows=60_000)
    plan = replace(plan, regularization=find_ample_regularization(plan, epsilon))
    noise = Mechanism("spherical", calibrate_spherical_term(plan, budget), plan.dimensions)
    assert 0.94 <= noise.scale / older_scale(plan, budget) <= 0.96


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(2), Multinomial(3), Multinomial(10)], ids=str)
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
def test_an_ample_regularization_is_the_least_that_costs_pure_noise_nothing(loss: Loss, epsilon: float) -> None:
    plan = Problem(loss=loss, dims=4, rows=1000)
    ample = find_ample_regularization(plan, epsilon)
    shortest = 2 * loss.lipschitz / epsilon
    for factor in (1.0, 2.0, 1e6):
        scale = calibrate_spherical_term(replace(plan, regularization=factor * ample), Budget(epsilon))
        assert shortest * (1 - 1e-15) <= scale <= shortest * (1 + 1e-15)
    assert calibrate_spherical_term(replace(plan, regularization=0.9 * ample), Budget(epsilon)) > shortest * (1 + 1e-6)


# ---- the choice of the tilt -------------------------------------------------------------------------------------


@given(st.sampled_from([1, 2, 3, 9, 80, 600]), st.sampled_from([0.01, 0.5, 2.0, 9.0, 60.0]), st.floats(0.01, 1.1))
def test_a_look_by_doubles_is_close(dimensions: int, distance: float, part: float) -> None:
    epsilon = part * distance
    with set_precision(choose_spherical_bits(distance)):
        exact = float(compute_spherical_delta(arb(distance), arb(epsilon), dimensions))
    look = _approximate_delta("spherical", dimensions, distance, np.array([epsilon]))
    assert look == pytest.approx([exact], rel=1e-4, abs=1e-280)
    with set_precision(256):
        exact = float(compute_gaussian_delta(arb(distance), arb(epsilon)))
    gaussian = _approximate_delta("gaussian", dimensions, distance, np.array([epsilon]))
    assert gaussian == pytest.approx([exact], rel=1e-4, abs=1e-13)


@pytest.mark.parametrize(("loss", "dims"), LOSSES_AND_DIMS, ids=str)
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("strength", [1.0, 4.0, 20.0])
def test_no_other_tilt_would_make_the_noise_shorter(loss: Loss, dims: int, kind: NoiseKind, strength: float) -> None:
    """By more than a thousandth."""
    assert loss.simplex is not None
    plan = problem(loss, dims=dims, strength=strength)
    noise = Mechanism(kind, SCALES[kind](plan, Budget(1.0, 1e-6)), plan.dimensions)
    sizes, shorter = (plan.rows, plan.regularization), replace(noise, scale=0.999 * noise.scale)
    for tilt in np.linspace(0, 1, 41):
        assert sum_corner_deltas(loss.simplex, sizes, shorter, 1.0, float(tilt)) > 1e-6


def test_there_is_no_tilt_where_nothing_can_be_computed_or_nothing_is_left() -> None:
    simplex, strength = Simplex(2, 1.0), (1000, 0.01)
    assert choose_tilt(simplex, strength, Mechanism("spherical", 1.0, 5000), 1.0) == 0.0
    assert choose_tilt(simplex, strength, Mechanism("spherical", 1e-3, 5), 1.0) == 0.0
    assert choose_tilt(simplex, strength, Mechanism("gaussian", 1.0, 5), 1e-3) == 0.0
    assert choose_tilt(simplex, strength, Mechanism("gaussian", 1e300, 5), 1.0) == 0.0
    assert float(sum_corner_deltas(simplex, strength, Mechanism("gaussian", 100.0, 5), 1e-3, 0.0)) >= 1.0


@pytest.mark.parametrize("kind", ["gaussian", "spherical"])
@pytest.mark.parametrize("margin", [0.01, 2.0, 16.0])
@pytest.mark.parametrize("strength", [0.6, 3.0, 1000.0])
def test_no_margin_makes_neighbours_that_spend_more_at_any_epsilon(
    kind: NoiseKind, margin: float, strength: float
) -> None:
    """Rows that want a margin pull with all their force, so that they come as near the bound as rows can."""
    planned = Budget(1.0, 1e-3)
    plan = problem(MarginLogistic(margin), dims=1, strength=strength)
    mechanism = Mechanism(kind, SCALES[kind](plan, planned), 1)
    # A fine grid: 2 % less noise would be 10 % more of delta, and what it is off by far less.
    places = np.linspace(-40.0, 40.0, 20_001) * mechanism.scale
    density = stats.laplace.pdf if kind == "spherical" else stats.norm.pdf
    masses = density(places / mechanism.scale) * 80.0 / 20_000
    nearest = 0.0
    for other in ((0, np.ones(1)), (1, -np.ones(1)), (1, 0.3 * np.ones(1)), (0, np.zeros(1))):
        for pull in ((0.0,), (-20.0 * strength,)):
            attack = Neighbours(plan, (1, np.ones(1)), other, pull=pull)
            for one in (attack, attack.swapped):
                losses = one.compute_losses_of_noise(mechanism, places[:, None])
                for epsilon in (0.05, 0.5, 0.9, 1.0, 1.1, 2.0, 5.0):
                    true = float(masses @ -np.expm1(np.minimum(epsilon - losses, 0)))
                    assert true <= bound_minimiser_delta(plan, mechanism, epsilon) * (1 + 2e-3) + 1e-12
                    nearest = max(nearest, true / planned.delta if epsilon == planned.epsilon else 0.0)
    assert nearest > 0.98 or margin < 16 or strength < 1
