"""Objective perturbation: the noise keeps the budget of the exact minimiser, and hardly less of it would."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.errors import ParameterError
from boltdp.privacy.certificate import Certificate, CertificateError, certify, verify
from boltdp.privacy.losses import HuberSVM, Logistic, Loss, Multinomial, contrasts
from boltdp.privacy.noise import Budget, Kind, Mechanism, gaussian_sigma
from boltdp.privacy.noise import spherical_scale as noise_scale
from boltdp.privacy.objective import (
    corners,
    gaussian_scale,
    objective_noise,
    shares,
    spherical_scale,
    tolerance,
    volume_bound,
)
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.release import perturbation
from boltdp.privacy.schedules import constant

Array = npt.NDArray[np.float64]


LOGISTIC = Logistic()


def recipe(
    loss: Loss = LOGISTIC, *, rows: int = 1000, dims: int = 6, penalty: float = 0.01, radius: float = math.inf
) -> Recipe:
    return Recipe(
        loss=loss,
        dims=dims,
        rows=rows,
        batch_size=1,
        passes=1,
        schedule=constant(0.1),
        regularization=penalty,
        radius=radius,
    )


# ---- against the true distribution of the minimiser -------------------------------------------------------------

# Rows with how often they occur: (label, features, count). What all neighbours share comes first, then the one row.
Data = list[tuple[int, tuple[float, ...], int]]

# The many rows drive the weights to where the two opposite rows are both misclassified, and pull with all force.
TWO_DIMENSIONS: tuple[Data, Data, Data] = (
    [(0, (0.0, 1.0), 1999)],
    [(1, (0.9, 0.43588), 1)],
    [(1, (-0.9, 0.43588), 1)],
)
ONE_DIMENSION: tuple[Data, Data, Data] = ([(0, (0.0,), 9)], [(1, (1.0,), 1)], [(0, (1.0,), 1)])
THREE_CLASSES: tuple[Data, Data, Data] = ([(0, (0.5,), 20), (1, (0.5,), 19)], [(2, (1.0,), 1)], [(2, (-1.0,), 1)])


def noise_and_volume(recipe: Recipe, data: Data, weights: Array, basis: Array) -> tuple[Array, Array]:
    """The q whose minimiser is each of `weights`, and the determinant of the Hessian there, in coordinates of `basis`.

    Rows of `basis` are orthonormal directions in the space of all weights.
    """
    strength = recipe.rows * recipe.regularization
    free = basis.shape[0]
    slope = strength * weights
    bend = np.broadcast_to(strength * np.eye(free), (len(weights), free, free)).copy()
    full = (weights @ basis).reshape(len(weights), recipe.loss.vectors, recipe.dims)
    for label, features, count in data:
        x = np.array(features)
        scores = full @ x
        if isinstance(recipe.loss, Multinomial):
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            first = p - np.eye(recipe.loss.classes)[label]
            second = p[:, :, None] * np.eye(recipe.loss.classes) - p[:, :, None] * p[:, None, :]
        else:
            y = 2 * label - 1
            s = 1 / (1 + np.exp(y * scores))
            first, second = -y * s, (s * (1 - s))[:, :, None]
        gradient = np.einsum("nk,d->nkd", first, x).reshape(len(weights), -1)
        hessian = (second[:, :, None, :, None] * (x[:, None, None] * x)).reshape(
            len(weights), basis.shape[1], basis.shape[1]
        )
        slope = slope + count * gradient @ basis.T
        bend += count * (basis @ hessian @ basis.T)
    return -slope, np.linalg.det(bend)


def log_density(noise: Mechanism, q: Array) -> Array:
    length = np.linalg.norm(q, axis=1)
    free = noise.dimensions
    if noise.kind == "gaussian":
        logs = -(length**2) / (2 * noise.scale**2) - free / 2 * math.log(2 * math.pi * noise.scale**2)
    else:
        sphere = math.log(2) + free / 2 * math.log(math.pi) - math.lgamma(free / 2)
        logs = -length / noise.scale - sphere - math.lgamma(free) - free * math.log(noise.scale)
    return np.asarray(logs)


def losses_and_masses(recipe: Recipe, case: tuple[Data, Data, Data], noise: Mechanism) -> tuple[Array, Array]:
    """The privacy loss in each cell of a grid over all weights, and how likely the minimiser is to fall there."""
    shared, one, other = case
    basis = contrasts(recipe.loss.classes) if isinstance(recipe.loss, Multinomial) else np.eye(recipe.dims)
    free = len(basis)
    reach = (recipe.rows * 0.02 + 12 * noise.scale + 4) / (recipe.rows * recipe.regularization)
    # Spherical noise has a peak that a coarse grid would miss.
    axis = np.linspace(-reach, reach, 20_001 if free == 1 else 421 if noise.kind == "spherical" else 181)
    weights = np.stack(np.meshgrid(*[axis] * free, indexing="ij"), axis=-1).reshape(-1, free)
    logs = []
    for row in (one, other):
        q, volume = noise_and_volume(recipe, shared + row, weights, basis)
        logs.append(log_density(noise, q) + np.log(volume))
    masses = np.exp(logs[0]) * (axis[1] - axis[0]) ** free
    assert masses.sum() == pytest.approx(1.0, abs=1.5e-2), "the grid must hold the whole distribution"
    return logs[0] - logs[1], masses


CASES = [
    pytest.param(recipe(rows=10, dims=1, penalty=0.5), ONE_DIMENSION, id="one dimension"),
    pytest.param(recipe(rows=2000, dims=2, penalty=0.005), TWO_DIMENSIONS, id="two dimensions"),
    pytest.param(recipe(Multinomial(3), rows=40, dims=1, penalty=0.2), THREE_CLASSES, id="three classes"),
]


SCALES: dict[Kind, Callable[[Recipe, Budget], float]] = {"gaussian": gaussian_scale, "spherical": spherical_scale}


@pytest.mark.parametrize(("plan", "case"), CASES)
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_true_loss_of_spherical_noise_never_exceeds_epsilon(
    plan: Recipe, case: tuple[Data, Data, Data], epsilon: float
) -> None:
    noise = Mechanism("spherical", spherical_scale(plan, Budget(epsilon)), plan.freedom)
    losses, masses = losses_and_masses(plan, case, noise)
    assert np.abs(losses[masses > 0]).max() <= epsilon


@pytest.mark.parametrize(("plan", "case"), CASES)
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize(("kind", "delta"), [("gaussian", 1e-2), ("gaussian", 1e-5), ("spherical", 1e-2)])
def test_the_true_delta_never_exceeds_delta(
    plan: Recipe, case: tuple[Data, Data, Data], epsilon: float, delta: float, kind: Kind
) -> None:
    noise = Mechanism(kind, SCALES[kind](plan, Budget(epsilon, delta)), plan.freedom)
    losses, masses = losses_and_masses(plan, case, noise)
    assert (masses * -np.expm1(np.minimum(epsilon - losses, 0))).sum() <= delta


def test_much_less_noise_would_break_the_budget() -> None:
    plan = recipe(rows=2000, dims=2, penalty=0.005)
    spherical = Mechanism("spherical", 0.7 * spherical_scale(plan, Budget(1.0)), 2)
    losses, masses = losses_and_masses(plan, TWO_DIMENSIONS, spherical)
    assert np.abs(losses[masses > 1e-9]).max() > 1.0
    for kind, scale in SCALES.items():
        noise = Mechanism(kind, 0.7 * scale(plan, Budget(1.0, 1e-3)), 2)
        losses, masses = losses_and_masses(plan, TWO_DIMENSIONS, noise)
        assert (masses * -np.expm1(np.minimum(1.0 - losses, 0))).sum() > 1e-3


# ---- the calibration --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_spherical_noise_is_hardly_more_than_for_a_fixed_vector(epsilon: float, delta: float) -> None:
    plan, budget = recipe(rows=10**9, dims=30), Budget(epsilon, delta)
    plain = 2 * noise_scale(budget, dimensions=30)
    assert plain * (1 - 1e-9) <= spherical_scale(plan, budget) <= 1.05 * plain
    assert spherical_scale(plan, budget) < spherical_scale(plan, Budget(epsilon))


@given(st.floats(0.05, 8.0), st.sampled_from([1e-3, 1e-6, 1e-12]))
def test_gaussian_noise_is_hardly_more_than_for_a_fixed_vector(epsilon: float, delta: float) -> None:
    """A linear objective would need the plain calibration for distance 2: that much is a lower bound."""
    plain = 2 * gaussian_sigma(Budget(epsilon, delta))
    assert plain <= gaussian_scale(recipe(rows=10**9), Budget(epsilon, delta)) <= 1.15 * plain


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_no_pair_of_rows_has_more_or_longer_corners(classes: int) -> None:
    """Sorted by length, the corners counted are at least as long as those of any two rows with any two labels."""
    units = np.eye(classes)
    counted = sorted(square for square, count in corners(recipe(Multinomial(classes))) for _ in range(count))
    for same in (True, False):
        y, other = 0, 0 if same else 1
        for cosine in (-1.0, 0.0, 1.0):
            inner = (units - units[y]) @ (units - units[other]).T
            lengths = ((units - units[y]) ** 2).sum(axis=1)[:, None] + ((units - units[other]) ** 2).sum(axis=1)
            found = np.sort((lengths - 2 * cosine * inner).ravel())[1:]
            assert len(found) == len(counted)
            assert (found <= np.array(counted) + 1e-12).all()


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(5)])
def test_volume_bound_holds_for_random_rows(loss: Loss) -> None:
    plan = recipe(loss, rows=30, dims=3, penalty=0.02)
    random = np.random.default_rng(3)
    basis = contrasts(5) if isinstance(loss, Multinomial) else np.eye(1)
    basis = np.kron(basis, np.eye(3)).astype(np.float64)
    highest = 0.0
    for _ in range(200):
        x = random.standard_normal((2, 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        weights = random.standard_normal((1, len(basis))) * random.choice([0.0, 0.1, 3.0])
        volumes = [noise_and_volume(plan, [(0, tuple(row), 1)], weights, basis)[1] for row in x]
        highest = max(highest, abs(float(np.log(volumes[0] / volumes[1])[0])))
        empty = noise_and_volume(plan, [], weights, basis)[1]
        highest = max(highest, float(np.log(volumes[0] / empty)[0]))
    assert 0.5 * volume_bound(plan) < highest <= volume_bound(plan)


def test_a_penalty_too_weak_for_epsilon_is_refused_with_the_one_that_would_do() -> None:
    with pytest.raises(ParameterError, match=r"regularization must be above 0\.00238 for epsilon = 0\.1 and 1000 rows"):
        objective_noise(recipe(penalty=0.002), Budget(0.1))
    assert objective_noise(recipe(penalty=0.0024), Budget(0.1)).scale > 0
    assert objective_noise(recipe(penalty=1e-9), Budget(800.0)).scale > 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (recipe(HuberSVM(0.1)), "loss must be logistic or multinomial for objective perturbation, got 'huber'"),
        (recipe(penalty=0.0), "regularization must be > 0 for objective perturbation, got 0.0"),
        (recipe(radius=3.0), "radius must be infinite for objective perturbation, got 3.0"),
    ],
)
def test_what_is_not_proved_is_refused(plan: Recipe, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        certify(plan, Budget(1.0), algorithm="objective")
    assert str(caught.value) == message


def test_there_is_no_published_analysis() -> None:
    with pytest.raises(ParameterError, match="analysis must be 'proved' for objective perturbation, got 'paper'"):
        certify(recipe(), Budget(1.0), algorithm="objective", analysis="paper")


@given(st.floats(1e-9, 1e5), st.sampled_from([0.0, 1e-8]))
def test_shares_never_exceed_the_budget(epsilon: float, delta: float) -> None:
    parts = shares(Budget(epsilon, delta))
    assert parts.noise.epsilon + parts.stopping.epsilon <= epsilon
    assert parts.noise.delta + parts.stopping.delta <= delta


@pytest.mark.parametrize("rows", [100, 10**5, 10**7])
@pytest.mark.parametrize("loss", [Logistic(), Multinomial(10)])
@pytest.mark.parametrize("budget", [Budget(1.0), Budget(0.1, 1e-8)])
def test_the_noise_of_stopping_is_negligible(rows: int, loss: Loss, budget: Budget) -> None:
    plan = recipe(loss, rows=rows, dims=50, penalty=max(1e-4, 100 / rows))
    certificate = certify(plan, budget, algorithm="objective")
    assert certificate.mechanism is not None
    assert certificate.training_noise is not None
    moved = certificate.training_noise.expected_norm / (rows * plan.regularization)
    assert certificate.mechanism.expected_norm < 0.04 * moved
    assert tolerance(plan, certificate.training_noise) < 1e-2


# ---- the certificate and the draw -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(4)])
@pytest.mark.parametrize("budget", [Budget(0.7), Budget(0.7, 1e-6), None])
def test_certificate_survives_the_round_trip_and_tampering_is_caught(loss: Loss, budget: Budget | None) -> None:
    certificate = certify(recipe(loss), budget, algorithm="objective", models=1)
    record = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    verify(Certificate.from_dict(record))
    if budget is None:
        return
    for field in ("training_noise", "mechanism"):
        stated = getattr(certificate, field)
        with pytest.raises(CertificateError, match=field):
            verify(replace(certificate, **{field: replace(stated, scale=stated.scale / 2)}))
    with pytest.raises(CertificateError):
        verify(replace(certificate, algorithm="bolton"))
    with pytest.raises(CertificateError):
        verify(replace(certificate, recipe=replace(certificate.recipe, regularization=0.02)))


def test_terms_of_a_multinomial_model_sum_to_zero_over_the_classes() -> None:
    certificate = certify(recipe(Multinomial(4)), Budget(1.0), algorithm="objective", models=1)
    terms = perturbation(certificate)
    assert terms.shape == (1, 4, 6)
    assert np.abs(terms.sum(axis=1)).max() < 1e-12 * np.abs(terms).max()


def test_each_model_has_a_term_of_its_own_and_none_without_a_budget() -> None:
    terms = perturbation(certify(recipe(), Budget(1.0), algorithm="objective", models=3))
    assert len(np.unique(terms)) == terms.size == 18
    assert not perturbation(certify(recipe(), None, algorithm="objective")).any()


def test_a_seed_is_accepted_only_where_the_certificate_says_so() -> None:
    seeded = certify(recipe(), Budget(1.0), algorithm="objective", randomness="seeded")
    assert (perturbation(seeded, seed=3) == perturbation(seeded, seed=3)).all()
    assert (perturbation(seeded, seed=3) != perturbation(seeded, seed=4)).all()
    with pytest.raises(ParameterError, match="randomness"):
        perturbation(seeded)
