"""Objective perturbation: the noise keeps the budget of the exact minimiser, and hardly less of it would."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from boltdp.errors import ParameterError
from boltdp.losses import Logistic, Loss, Multinomial, Simplex
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import OVERSPENT, Certificate, CertificateError, certify, verify
from boltdp.privacy.events.event import NOISELESS, BudgetedEvent, NoiselessTraining, SelfComposition
from boltdp.privacy.events.objective_perturbation import (
    MIN_STEP,
    ObjectivePerturbation,
    bound_gradient_rounding,
    bound_grid_error,
    bound_minimiser_delta,
    bound_noise_norm,
    bound_volume_term,
    calibrate_gaussian_term,
    calibrate_objective_noise,
    calibrate_spherical_term,
    check_objective,
    check_solvable,
    choose_gradient_tolerance,
    find_min_regularization,
    find_min_solvable_regularization,
    make_objective_perturbation,
    split_budget,
)
from boltdp.privacy.mechanisms import Mechanism, calibrate_unit_gaussian
from boltdp.privacy.mechanisms import calibrate_unit_spherical as noise_scale
from boltdp.privacy.release_with_noise import Randomness, draw_linear_terms
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.privacy.training_problem import Problem
from tests.example_losses import every_loss, smooth_losses

Array = npt.NDArray[np.float64]


LOGISTIC = Logistic()


def problem(loss: Loss = LOGISTIC, *, rows: int = 1000, dims: int = 6, penalty: float = 0.01) -> Problem:
    return Problem(loss=loss, dims=dims, rows=rows, regularization=penalty)


def certified(plan: Problem, budget: Budget | None, *, models: int | None = None, seeded: bool = False) -> Certificate:
    """Of one model, or of several alike."""
    share = None if budget is None else budget.split(models or 1)
    event = NoiselessTraining(plan) if share is None else make_objective_perturbation(plan, share)
    whole = event if models is None else SelfComposition(BudgetedEvent(share, event), models)
    return certify(whole, budget, seeded=seeded)


# ---- the calibration --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_spherical_noise_is_hardly_more_than_for_a_fixed_vector(epsilon: float, delta: float) -> None:
    plan, budget = problem(rows=10**9, dims=30), Budget(epsilon, delta)
    plain = 2 * noise_scale(budget, dimensions=30)
    assert plain * (1 - 1e-9) <= calibrate_spherical_term(plan, budget) <= 1.05 * plain
    assert calibrate_spherical_term(plan, budget) < calibrate_spherical_term(plan, Budget(epsilon))


@given(st.floats(0.05, 8.0), st.sampled_from([1e-3, 1e-6, 1e-12]))
def test_gaussian_noise_is_hardly_more_than_for_a_fixed_vector(epsilon: float, delta: float) -> None:
    """A linear objective would need the plain calibration for distance 2: that much is a lower bound."""
    plain = 2 * calibrate_unit_gaussian(Budget(epsilon, delta))
    assert plain <= calibrate_gaussian_term(problem(rows=10**9), Budget(epsilon, delta)) <= 1.15 * plain


def test_a_penalty_too_weak_for_epsilon_is_refused_with_the_one_that_would_do() -> None:
    with pytest.raises(ParameterError, match=r"regularization must be above 0\.00238 for epsilon = 0\.1 and 1000 rows"):
        calibrate_objective_noise(problem(penalty=0.002), Budget(0.1))
    assert calibrate_objective_noise(problem(penalty=0.0024), Budget(0.1)).scale > 0
    assert calibrate_objective_noise(problem(penalty=1e-9), Budget(800.0)).scale > 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (problem(penalty=0.0), "regularization must be > 0 for objective perturbation, got 0.0"),
        (
            Recipe(
                loss=LOGISTIC,
                dims=6,
                rows=1000,
                batch_size=1,
                passes=1,
                schedule=make_constant_schedule(0.1),
                regularization=0.01,
                radius=3.0,
            ),
            "objective perturbation must be of a problem without passes, got a recipe of SGD",
        ),
        (
            Problem(loss=Logistic(), dims=6, rows=2**33 + 1, regularization=0.01),
            "the data must have at most 8,589,934,592 rows to be summed, got 8,589,934,593",
        ),
    ],
)
def test_what_is_not_proved_is_refused(plan: Problem, message: str) -> None:
    noise = Mechanism("spherical", 100.0, 6)
    for make in (
        lambda: check_objective(plan),
        lambda: calibrate_objective_noise(plan, Budget(1.0)),
        lambda: make_objective_perturbation(plan, Budget(1.0)),
        lambda: ObjectivePerturbation(plan, noise, noise),
    ):
        with pytest.raises(ParameterError) as caught:
            make()
        assert str(caught.value) == message


def test_there_is_no_ball_no_pass_and_no_published_analysis() -> None:
    """What the proof does not speak of has no place in the event."""
    fields = {field.name for kind in (Problem, ObjectivePerturbation) for field in dataclasses.fields(kind)}
    stated = {"loss", "dims", "rows", "regularization", "class_weights", "person_rows", "downweighted"}
    assert fields == {*stated, "problem", "linear", "end"}


def test_noise_of_another_space_or_of_another_kind_is_refused() -> None:
    good = make_objective_perturbation(problem(), Budget(1.0))
    for name in ("linear", "end"):
        wrong: dict[str, Any] = {name: Mechanism("spherical", 1.0, 7)}
        with pytest.raises(ParameterError, match="the noise must have 6 dimensions, got 7"):
            replace(good, **wrong)
    with pytest.raises(ParameterError, match="the noise at the end must be spherical, got 'gaussian'"):
        replace(good, end=Mechanism("gaussian", 1.0, 6))


@dataclass(frozen=True)
class Steep(Logistic):
    """A loss 40 times as steep as the logistic one, that states the simplex of the latter."""

    name = "steep"
    lipschitz = 40.0


@dataclass(frozen=True)
class Honest(Steep):
    """The same with its own."""

    simplex = Simplex(2, 1600.0)


def test_a_simplex_that_does_not_hold_the_slopes_is_refused() -> None:
    for make in (check_objective, lambda plan: make_objective_perturbation(plan, Budget(1.0))):
        with pytest.raises(ParameterError, match="the simplex of the loss 'steep' must have edges of L"):
            make(problem(Steep()))
    check_objective(problem(Honest()))


@pytest.mark.parametrize("budget", [Budget(1.0), Budget(1.0, 1e-6)])
@pytest.mark.parametrize("dims", [6, 2000])
def test_a_steeper_loss_gets_longer_noise_by_as_much(budget: Budget, dims: int) -> None:
    """At a penalty so large that the volumes are nothing, only the edges of the simplex are left."""
    plain, steep = (
        calibrate_objective_noise(problem(loss, dims=dims, penalty=1e12), budget) for loss in (LOGISTIC, Honest())
    )
    assert steep.kind == plain.kind
    assert steep.scale == pytest.approx(40 * plain.scale, rel=1e-9)
    planned = make_objective_perturbation(problem(Honest(), dims=dims, penalty=1e12), budget)
    assert certify(planned, budget).private
    short = replace(planned, linear=plain)
    assert certify(short, budget).reasons == (OVERSPENT,)


@given(st.floats(1e-9, 1e5), st.sampled_from([0.0, 1e-8]))
def test_shares_never_exceed_the_budget(epsilon: float, delta: float) -> None:
    for_noise, for_stopping = split_budget(Budget(epsilon, delta))
    assert for_noise.epsilon + for_stopping.epsilon <= epsilon
    assert for_noise.delta + for_stopping.delta <= delta


@pytest.mark.parametrize("rows", [100, 10**5, 10**7])
@pytest.mark.parametrize("loss", every_loss(classes=10))
@pytest.mark.parametrize("budget", [Budget(1.0), Budget(0.1, 1e-8)])
def test_the_noise_of_stopping_is_negligible(rows: int, loss: Loss, budget: Budget) -> None:
    kinks = loss.simplex.kink_curvature is not None
    penalty = max(1e-4, 100 / rows, 1.5 * find_min_regularization(problem(loss, rows=rows), budget.epsilon))
    plan = problem(loss, rows=rows, dims=50, penalty=penalty)
    event = make_objective_perturbation(plan, budget)
    assert (event.training_noise, event.release_noise) == (event.linear, event.end)
    moved = event.linear.expected_norm / (rows * plan.regularization)
    # Labels that are numbers can be far away, and so can the weights: their scores round by more. Kinks are steep.
    assert event.end.expected_norm < (0.5 if kinks else 0.06 if loss.max_abs_label else 0.04) * moved
    assert choose_gradient_tolerance(plan, event.linear) < 1e-2


def test_weights_where_a_solver_may_stop_are_no_further_apart_than_the_noise_at_the_end_is_for() -> None:
    """Of neutral rows the objective is the penalty and the linear term: both points have gradients within the limit."""
    plan = problem(penalty=0.05)
    event = make_objective_perturbation(plan, Budget(1.0))
    limit, strength = choose_gradient_tolerance(plan, event.linear), plan.rows * plan.regularization
    term, along = np.full(plan.dims, 3.0), np.eye(plan.dims)[0]
    one, other = ((sign * limit * along - term) / strength for sign in (0.999, -0.999))
    for weights in (one, other):
        assert np.linalg.norm(strength * weights + term) <= limit
    assert 0.99 * event.sensitivity.total <= np.linalg.norm(one - other) <= event.sensitivity.total


@given(st.floats(0.05, 20.0), st.sampled_from([0.0, 1e-3, 1e-9]), st.sampled_from(every_loss(classes=4)))
def test_what_the_minimiser_spends_is_what_its_noise_was_made_for(epsilon: float, delta: float, loss: Loss) -> None:
    plan, budget = problem(loss, penalty=0.5), Budget(epsilon, delta)
    noise = calibrate_objective_noise(plan, budget)
    spent = bound_minimiser_delta(plan, noise, epsilon)
    assert spent <= delta * (1 + 1e-9)
    if noise.kind == "gaussian" or noise.scale < 0.999 * calibrate_spherical_term(plan, Budget(epsilon)):
        assert spent >= 0.999 * delta
    assert bound_minimiser_delta(plan, replace(noise, scale=0.9 * noise.scale), epsilon) > delta
    assert bound_minimiser_delta(plan, noise, (1 - 1e-9) * bound_volume_term(plan)) == 1.0


@pytest.mark.parametrize("loss", every_loss(classes=5))
def test_the_least_regularization_has_the_volume_asked_for(loss: Loss) -> None:
    least = find_min_regularization(problem(loss), 0.3)
    assert bound_volume_term(problem(loss, penalty=least)) == pytest.approx(0.3)
    assert find_min_regularization(problem(loss), 1e4) == 0.0


def test_without_noise_nothing_is_drawn() -> None:
    assert bound_grid_error(None) == 0.0
    assert choose_gradient_tolerance(problem(), None) < choose_gradient_tolerance(
        problem(), Mechanism("spherical", 1.0, 6)
    )


def test_what_the_end_spends_is_taken_from_the_noise_of_the_linear_term() -> None:
    """Noise at the end that is too short leaves nothing of epsilon, whatever the linear term has."""
    plan, budget = problem(), Budget(1.0, 1e-6)
    event = make_objective_perturbation(plan, budget)
    assert event.delta(1.0) == pytest.approx(1e-6, rel=1e-3)
    hundredth = event.sensitivity.total / event.end.scale
    assert hundredth == pytest.approx(0.01)
    assert event.delta(hundredth) == 1.0
    short = replace(event, linear=replace(event.linear, scale=1e6), end=replace(event.end, scale=event.end.scale / 100))
    assert short.delta(0.999) == 1.0


# ---- the certificate and the draw -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", every_loss(classes=4))
@pytest.mark.parametrize("budget", [Budget(0.7), Budget(0.7, 1e-6), None])
def test_certificate_survives_the_round_trip_and_tampering_is_caught(loss: Loss, budget: Budget | None) -> None:
    certificate = certified(problem(loss, penalty=0.01 if loss.simplex.kink_curvature is None else 0.2), budget)
    record = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    again = Certificate.from_dict(record)
    assert again == certificate
    verify(again)
    if budget is None:
        assert certificate.reasons == (NOISELESS,)
        return
    assert certificate.private
    event = certificate.training
    assert isinstance(event, ObjectivePerturbation)
    for field in ("linear", "end"):
        stated = getattr(event, field)
        shorter = {field: replace(stated, scale=stated.scale / 2)}
        with pytest.raises(CertificateError, match=f"claims delta = {budget.delta:g} at epsilon = 0.7, but"):
            verify(replace(certificate, spent=replace(event, **shorter)))
        longer = {field: replace(stated, scale=stated.scale * 2)}
        verify(replace(certificate, spent=replace(event, **longer)))
    with pytest.raises(CertificateError):
        verify(replace(certificate, spent=replace(event, problem=replace(event.problem, regularization=0.001))))
    with pytest.raises(CertificateError):
        Certificate.from_dict({**record, "spent": {**record["spent"], "kind": "output perturbation"}})


def test_terms_of_a_multinomial_model_sum_to_zero_over_the_classes() -> None:
    terms = draw_linear_terms(certified(problem(Multinomial(4)), Budget(1.0)), Randomness())
    assert terms.shape == (1, 4, 6)
    assert np.abs(terms.sum(axis=1)).max() < 1e-12 * np.abs(terms).max()


def test_each_model_has_a_term_of_its_own_and_none_without_a_budget() -> None:
    terms = draw_linear_terms(certified(problem(), Budget(1.0), models=3), Randomness())
    assert len(np.unique(terms)) == terms.size == 18
    none = draw_linear_terms(certified(problem(), None), Randomness())
    assert none.shape == (1, 1, 6)
    assert not none.any()


def test_a_seed_is_accepted_only_where_the_certificate_says_so() -> None:
    seeded = certified(problem(), Budget(1.0), seeded=True)
    assert (draw_linear_terms(seeded, Randomness(3)) == draw_linear_terms(seeded, Randomness(3))).all()
    assert (draw_linear_terms(seeded, Randomness(3)) != draw_linear_terms(seeded, Randomness(4))).all()
    with pytest.raises(ParameterError, match="says the noise is seeded must match the use of a seed"):
        draw_linear_terms(seeded, Randomness())
    with pytest.raises(ParameterError, match="says the noise is not seeded must match the use of a seed"):
        draw_linear_terms(certified(problem(), Budget(1.0)), Randomness(3))


@pytest.mark.parametrize("loss", every_loss(classes=4))
def test_terms_have_the_stated_noise(loss: Loss) -> None:
    certificate = certified(problem(loss, penalty=0.1), Budget(1.0), seeded=True)
    assert certificate.training_noise is not None
    lengths = [np.linalg.norm(draw_linear_terms(certificate, Randomness(seed))) for seed in range(300)]
    expected = stats.gamma(certificate.training_noise.dimensions, scale=certificate.training_noise.scale)
    assert stats.kstest(lengths, expected.cdf).pvalue > 1e-3


@pytest.mark.parametrize("loss", every_loss(classes=5))
@pytest.mark.parametrize("noise", [None, Mechanism("gaussian", 50.0, 9), Mechanism("spherical", 1e12, 9)])
def test_smallest_regularization_needs_no_step_that_is_too_short(loss: Loss, noise: Mechanism | None) -> None:
    problem = Problem(loss=loss, dims=9, rows=10)
    least = find_min_solvable_regularization(problem, noise)
    if loss.simplex.kink_curvature is not None:
        # What grows with the weights of the gradient's rounding is a small part of how it grows itself.
        weak = replace(problem, regularization=least)
        far, near = (bound_gradient_rounding(weak, weights=norm, noise=0.0) for norm in (1.0, 0.0))
        assert far - near <= 10 * least / 64
        return
    for factor in (1.0, 3.0, 1e9, 1e18):
        chosen = factor * least
        steepest = loss.lipschitz + bound_noise_norm(noise) / 10
        kappa = (loss.smoothness + chosen) / chosen
        shortest = chosen / (10 * loss.lipschitz * math.sqrt(kappa) * steepest) / 2
        assert shortest >= MIN_STEP * (1 - 1e-9)
        assert kappa < 2**30
        check_solvable(replace(problem, regularization=chosen * (1 + 1e-9)), noise)
    with pytest.raises(ParameterError, match=r"regularization must be at least \S+ for objective perturbation, got"):
        check_solvable(replace(problem, regularization=0.99 * least), noise)


@pytest.mark.parametrize("loss", smooth_losses(classes=3))
def test_gradient_shortens_along_newtons_step_as_section_6_says(loss: Loss) -> None:
    """With steps that leave as much of the gradient as the proof can bear, in directions at random."""
    random = np.random.default_rng(5)
    for penalty in (1e-7, 1e-4, 1e-2):
        x = random.standard_normal((20, 2))
        x /= np.linalg.norm(x, axis=1)[:, None]
        y = random.integers(0, max(2, loss.vector_count), 20)
        strength = 20 * penalty

        def gradient(w: Any, x: Any = x, y: Any = y, strength: float = strength) -> Any:
            scores = x @ w.reshape(loss.vector_count, 2).T
            if loss.vector_count == 1:
                signs = np.where(y == 1, 1.0, -1.0)
                slopes = (-signs / (1.0 + np.exp(signs * scores[:, 0])))[:, None]
            else:
                odds = np.exp(scores - scores.max(axis=1, keepdims=True))
                slopes = odds / odds.sum(axis=1, keepdims=True) - np.eye(loss.vector_count)[y]
            return (slopes.T @ x).ravel() + strength * w

        for size in (0.0, 1.0, 10.0):
            w = size * random.standard_normal(2 * loss.vector_count)
            slope = gradient(w) + random.standard_normal(w.size)
            shift = slope - gradient(w)
            steps = 1e-5 * np.eye(w.size)
            hessian = np.stack([(gradient(w + one) - gradient(w - one)) / 2e-5 for one in steps])
            left = float(np.linalg.norm(slope))
            rest = random.standard_normal(w.size)
            rest *= 0.4 * left / np.linalg.norm(rest)
            step = np.linalg.solve(hessian, rest - slope)
            kappa = (loss.smoothness + penalty) / penalty
            t = min(1.0, strength / (10 * loss.lipschitz * math.sqrt(kappa) * left))
            ahead = float(np.linalg.norm(gradient(w + t * step) + shift))
            assert ahead <= (1 - t / 4) * left * (1 + 1e-9)


@pytest.mark.parametrize("dims", [1, 2, 3, 10, 135, 540, 40_000])
def test_noise_is_longer_than_its_bound_with_a_tiny_probability(dims: int) -> None:
    assert bound_noise_norm(None) == 0.0
    spherical, gaussian = Mechanism("spherical", 3.0, dims), Mechanism("gaussian", 3.0, dims)
    for noise, law in ((spherical, stats.gamma(dims)), (gaussian, stats.chi(dims))):
        assert law.sf(bound_noise_norm(noise) / 3.0) <= 1e-20
    assert bound_noise_norm(spherical) <= 64.0 * spherical.expected_norm
