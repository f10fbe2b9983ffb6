"""Release and certificate: the noise that was stated is the noise that is added, and tampering is caught."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from boltdp.errors import ParameterError
from boltdp.losses import HuberSVM, Logistic, Loss, Multinomial, make_contrast_basis
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import OVERSPENT, Certificate, CertificateError, certify, verify
from boltdp.privacy.events.event import (
    NOISELESS,
    SEEDED,
    Analysis,
    BudgetedEvent,
    NoiselessTraining,
    SelfComposition,
    Training,
)
from boltdp.privacy.events.noisy_gradient_descent import make_noisy_gradients
from boltdp.privacy.events.noisy_sgd import NoisyUpdates, calibrate_scs13
from boltdp.privacy.events.objective_perturbation import (
    ObjectivePerturbation,
    bound_stopping_sensitivity,
    calibrate_gaussian_term,
    calibrate_objective_noise,
    make_objective_perturbation,
    split_budget,
)
from boltdp.privacy.events.output_perturbation import PUBLISHED, OutputPerturbation, make_output_perturbation
from boltdp.privacy.events.sgd_sensitivity import compute_published_sensitivity, compute_sgd_sensitivity
from boltdp.privacy.mechanisms import Mechanism, NoiseKind, calibrate, calibrate_unit_gaussian, calibrate_unit_spherical
from boltdp.privacy.release_with_noise import (
    Randomness,
    draw_index,
    draw_sample_key,
    draw_update_keys,
    is_on_release_grid,
    release_gradient,
    release_weights,
)
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule, make_strongly_convex_schedule
from boltdp.privacy.training_problem import Problem
from tests.example_losses import every_loss

LOSSES = every_loss(classes=4)


def recipe(loss: Loss, *, regularization: float = 0.0, radius: float = math.inf) -> Recipe:
    schedule = make_constant_schedule(0.05)
    if regularization:
        schedule = make_strongly_convex_schedule(beta=loss.smoothness + regularization, gamma=regularization)
    return Recipe(
        loss=loss,
        dims=6,
        rows=1000,
        batch_size=30,
        passes=3,
        schedule=schedule,
        regularization=regularization,
        radius=radius,
    )


def certified(
    plan: Recipe,
    budget: Budget | None,
    *,
    models: int | None = None,
    analysis: Analysis = "proved",
    seeded: bool = False,
    reasons: tuple[str, ...] = (),
) -> Certificate:
    """Of output perturbation, of one model or of several alike."""
    share = None if budget is None else budget.split(models or 1)
    event: Training = (
        NoiselessTraining(plan) if share is None else make_output_perturbation(plan, share, analysis=analysis)
    )
    whole = event if models is None else SelfComposition(BudgetedEvent(share, event), models)
    return certify(whole, budget, seeded=seeded, reasons=reasons)


def with_noise(certificate: Certificate, noise: Mechanism) -> Certificate:
    event = certificate.spent
    assert isinstance(event, OutputPerturbation)
    return replace(certificate, spent=replace(event, noise=noise))


def certificates() -> list[Certificate]:
    return [
        certified(recipe(Logistic()), Budget(0.7)),
        certified(recipe(Logistic(), regularization=0.1, radius=10.0), Budget(0.7, 1e-6), models=3),
        certified(recipe(HuberSVM(0.2)), Budget(2.0, 1e-6), seeded=True),
        certified(recipe(Multinomial(4)), Budget(0.7), analysis="paper"),
        certified(recipe(Logistic()), None),
        certified(recipe(Logistic()), Budget(1.0), reasons=("the classes were read from the data",)),
    ]


@pytest.mark.parametrize("certificate", certificates())
def test_certificate_survives_the_round_trip_and_verifies(certificate: Certificate) -> None:
    record = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    again = Certificate.from_dict(record)
    assert again == certificate
    assert json.dumps(again.to_dict()) == json.dumps(certificate.to_dict())
    verify(again)


def test_only_a_flawless_release_is_private() -> None:
    assert [certificate.private for certificate in certificates()] == [True, True, False, False, False, False]
    reasons = [certificate.reasons for certificate in certificates()]
    assert reasons[:2] == [(), ()]
    assert reasons[2:5] == [(SEEDED,), (PUBLISHED,), (NOISELESS,)]
    assert reasons[5] == ("the classes were read from the data",)
    assert [certificate.seeded for certificate in certificates()] == [False, False, True, False, False, False]
    assert [certificate.model_count for certificate in certificates()] == [1, 3, 1, 1, 1, 1]


def test_all_reasons_are_told() -> None:
    certificate = certified(
        recipe(Logistic()), Budget(1.0), analysis="paper", seeded=True, reasons=("classes of the data", "bad rows")
    )
    assert certificate.reasons == ("classes of the data", "bad rows", SEEDED, PUBLISHED)
    assert certificate.delta(1.0) == certificate.delta(1e6) == 1.0


def test_what_stands_in_the_certificate_is_what_was_planned() -> None:
    plan = recipe(Logistic())
    certificate = certified(plan, Budget(0.7))
    noise = calibrate(compute_sgd_sensitivity(plan).total, dimensions=6, budget=Budget(0.7))
    assert certificate.problem == plan
    assert certificate.release_noise == noise
    assert certificate.training_noise is None
    assert certificate.training.sensitivity == compute_sgd_sensitivity(plan)
    assert certificate.adjacency is Adjacency.REPLACE_ONE
    assert "the number of rows is public" in certificate.adjacency.meaning
    assert (certificate.rows, certificate.model_count, certificate.parts) == (1000, 1, ())
    assert (certificate.moments, certificate.selection) == (None, None)
    derived = certificate.to_dict()["spent"]["derived"]
    assert derived == {
        "sensitivity": compute_sgd_sensitivity(plan).total,
        "derivation": "closed form",
        "noise_multiplier": noise.scale / compute_sgd_sensitivity(plan).total,
    }
    paper = certified(plan, Budget(0.7), analysis="paper")
    assert paper.training.sensitivity == compute_published_sensitivity(plan)


def test_a_published_sensitivity_is_no_promise_and_is_judged_by_the_proved_one() -> None:
    plan = recipe(Logistic(), regularization=0.1)
    event = make_output_perturbation(plan, Budget(0.7), analysis="paper")
    assert event.noise.scale < make_output_perturbation(plan, Budget(0.7)).noise.scale
    assert event.delta(0.7) > 0
    assert certify(replace(event, analysis="proved"), Budget(0.7)).reasons == (OVERSPENT,)


def test_an_analysis_that_is_none_is_refused() -> None:
    guessed: Any = "guessed"
    event = make_output_perturbation(recipe(Logistic()), Budget(1.0))
    with pytest.raises(ParameterError, match="analysis must be one of proved, paper, got 'guessed'"):
        make_output_perturbation(recipe(Logistic()), Budget(1.0), analysis=guessed)
    with pytest.raises(ParameterError, match="analysis must be one of proved, paper, got 'guessed'"):
        replace(event, analysis=guessed)


def test_steps_that_the_proof_does_not_cover_are_refused() -> None:
    plan = replace(recipe(Logistic()), schedule=make_constant_schedule(9.0))
    noise = Mechanism("spherical", 100.0, 6)
    with pytest.raises(ParameterError, match="the step size must be at most 2/beta = 8, got 9"):
        make_output_perturbation(plan, Budget(1.0))
    with pytest.raises(ParameterError, match="the step size must be at most 2/beta = 8, got 9"):
        OutputPerturbation(plan, noise)


def test_the_curve_falls_from_one_to_what_is_claimed() -> None:
    certificate = certified(recipe(Logistic()), Budget(0.7, 1e-6))
    curve = [certificate.delta(epsilon) for epsilon in (1e-6, 0.1, 0.5, 0.7, 1.0, 10.0)]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] > 1e-2
    assert curve[3] == pytest.approx(1e-6)
    assert curve[4] < 1e-6
    for epsilon in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ParameterError, match="epsilon must be a finite number > 0"):
            certificate.delta(epsilon)


LOGISTIC = {"name": "logistic", "derived": {"lipschitz": 1.0, "smoothness": 0.25}}

#: Where in the record, and what is put there.
TAMPERING: list[tuple[tuple[str, ...], Any]] = [
    (("epsilon",), 0.1),
    (("epsilon",), -1.0),
    (("epsilon",), None),
    (("epsilon",), True),
    (("epsilon",), 10**400),
    (("delta",), None),
    (("rows",), 10_000),
    (("rows",), "many"),
    (("models",), 2),
    (("models",), 0.5),
    (("models",), 0),
    (("models",), True),
    (("signature",), "none"),
    (("reasons",), [SEEDED]),
    (("private",), False),
    (("private",), 1),
    (("adjacency",), "add or remove one row"),
    (("adjacency",), None),
    (("algorithm",), None),
    (("version",), 2),
    (("spent",), None),
    (("spent",), []),
    (("spent", "kind"), "magic"),
    (("spent", "kind"), None),
    (("spent", "kind"), "objective perturbation"),
    (("spent", "kind"), "training without noise"),
    (("spent", "analysis"), "paper"),
    (("spent", "derived"), None),
    (("spent", "derived", "sensitivity"), 1e-5),
    (("spent", "derived", "sensitivity"), None),
    (("spent", "derived", "derivation"), "recursion"),
    (("spent", "derived", "noise_multiplier"), 3.0),
    (("spent", "noise"), {"kind": "spherical", "scale": 1e-5, "dimensions": 6}),
    (("spent", "noise"), {"kind": "spherical", "scale": 1.0, "dimensions": 5}),
    (("spent", "noise"), {"kind": "cauchy", "scale": 1.0, "dimensions": 6}),
    (("spent", "noise"), None),
    (("spent", "training_noise"), {"kind": "gaussian", "scale": 1.0, "dimensions": 6}),
    (("spent", "problem"), None),
    (("spent", "problem", "rows"), 10_000),
    (("spent", "problem", "rows"), 500),
    (("spent", "problem", "rows"), "many"),
    (("spent", "problem", "dims"), 3),
    (("spent", "problem", "batch_size"), 10),
    (("spent", "problem", "batch_size"), 100),
    (("spent", "problem", "batches"), 34),
    (("spent", "problem", "passes"), 1),
    (("spent", "problem", "passes"), 30),
    (("spent", "problem", "regularization"), 0.5),
    (("spent", "problem", "averaging"), "all"),
    (("spent", "problem", "averaging"), "some"),
    (("spent", "problem", "loss"), {**LOGISTIC, "derived": {"lipschitz": 0.5, "smoothness": 0.25}}),
    (("spent", "problem", "loss"), {**LOGISTIC, "name": "hinge"}),
    (("spent", "problem", "loss"), None),
    (("spent", "problem", "schedule"), {"growth": "none", "scale": 0.01, "offset": 1.0, "cap": None}),
    (("spent", "problem", "schedule"), {"growth": "none", "scale": 0.5, "offset": 1.0, "cap": None}),
    (("spent", "problem", "schedule"), None),
]


@pytest.mark.parametrize(
    ("path", "value"), TAMPERING, ids=[f"{'.'.join(path)} {i}" for i, (path, _) in enumerate(TAMPERING)]
)
def test_a_tampered_certificate_is_caught(path: tuple[str, ...], value: object) -> None:
    record = certified(recipe(Logistic()), Budget(0.7)).to_dict()
    place: Any = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(CertificateError):
        verify(Certificate.from_dict(record))


@pytest.mark.parametrize("record", [None, [], "certificate", 3, {}])
def test_what_is_no_record_is_refused(record: Any) -> None:
    with pytest.raises(CertificateError, match="the certificate cannot be read"):
        Certificate.from_dict(record)


def test_a_seed_cannot_be_added_or_hidden_in_one_place_only() -> None:
    """What is told beside the tree must follow from it."""
    open_, hidden = (certified(recipe(Logistic()), Budget(0.7), seeded=seeded).to_dict() for seeded in (True, False))
    for record, other in ((open_, hidden), (hidden, open_)):
        with pytest.raises(CertificateError):
            Certificate.from_dict({**record, "spent": other["spent"]})
        with pytest.raises(CertificateError):
            Certificate.from_dict({**record, "private": other["private"], "reasons": other["reasons"]})


@pytest.mark.parametrize(("key", "value"), [("delta", 1e-9), ("delta", 0.0), ("epsilon", 0.5), ("epsilon", 0.99)])
@pytest.mark.parametrize("kind", ["spherical", "gaussian"])
def test_a_smaller_budget_is_caught(key: str, value: float, kind: str) -> None:
    budget = Budget(1.0, 1e-6)
    certificate = with_noise(certified(recipe(Logistic()), budget), enough(budget)[kind])
    record = certificate.to_dict()
    assert certificate.private
    with pytest.raises(CertificateError):
        verify(Certificate.from_dict({**record, key: value}))
    with pytest.raises(CertificateError, match="the certificate claims delta = "):
        verify(replace(certificate, budget=replace(budget, **{key: value})))


@pytest.mark.parametrize(("key", "value"), [("delta", 1e-3), ("epsilon", 1.5)])
@pytest.mark.parametrize("kind", ["spherical", "gaussian"])
def test_who_claims_less_than_was_kept_says_nothing_wrong(key: str, value: float, kind: str) -> None:
    budget = Budget(1.0, 1e-6)
    record = with_noise(certified(recipe(Logistic()), budget), enough(budget)[kind]).to_dict()
    less = Certificate.from_dict({**record, key: value})
    verify(less)
    assert less.private


def enough(budget: Budget) -> dict[str, Mechanism]:
    """All noises that keep the budget, not only the shortest."""
    plan = recipe(Logistic())
    reach = compute_sgd_sensitivity(plan).total
    return {
        "spherical": Mechanism(
            "spherical", reach * calibrate_unit_spherical(budget, dimensions=plan.dimensions), plan.dimensions
        ),
        "gaussian": Mechanism("gaussian", reach * calibrate_unit_gaussian(budget), plan.dimensions),
        "pure": Mechanism("spherical", reach / budget.epsilon, plan.dimensions),
    }


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(0.1, 1e-2)])
def test_all_noise_that_is_enough_is_accepted_and_half_of_it_is_not(budget: Budget) -> None:
    """Such as that of models from before spherical noise had its own analysis with delta."""
    certificate = certified(recipe(Logistic()), budget)
    for noise in enough(budget).values():
        for longer in (1.0, 1.5, 1e6):
            changed = with_noise(certificate, replace(noise, scale=longer * noise.scale))
            verify(changed)
            assert changed.private
        needed = enough(budget)[noise.kind]  # pure noise is longer than spherical noise must be with delta
        shorter = with_noise(certificate, replace(noise, scale=needed.scale / 2))
        assert shorter.reasons == (OVERSPENT,)
        with pytest.raises(CertificateError, match=f"the certificate claims delta = {budget.delta:g} at epsilon = "):
            verify(shorter)


@pytest.mark.parametrize("budget", [Budget(1.0), Budget(1.0, 1e-6), Budget(0.1, 1e-2)])
def test_the_last_digits_are_forgiven_and_no_more(budget: Budget) -> None:
    certificate = certified(recipe(Logistic()), budget)
    noise = certificate.release_noise
    assert noise is not None
    verify(with_noise(certificate, replace(noise, scale=noise.scale * (1 - 1e-11))))
    with pytest.raises(CertificateError):
        verify(with_noise(certificate, replace(noise, scale=noise.scale * (1 - 1e-6))))


@pytest.mark.parametrize("reasons", [(), ("the classes were read from the data",)])
def test_the_noise_of_a_seeded_model_is_checked_all_the_same(reasons: tuple[str, ...]) -> None:
    plan, budget = recipe(Logistic()), Budget(1.0)
    event = make_output_perturbation(plan, budget)
    short = replace(event, noise=replace(event.noise, scale=event.noise.scale / 2))
    verify(certify(event, budget, seeded=True, reasons=reasons))
    with pytest.raises(CertificateError):
        verify(certify(short, budget, seeded=True, reasons=reasons))


@pytest.mark.parametrize("kind", ["gaussian", "pure"])
def test_noise_before_training_that_is_enough_is_accepted_and_half_of_it_is_not(kind: str) -> None:
    plan = Problem(loss=Logistic(), dims=6, rows=1000, regularization=0.1)
    budget = Budget(1.0, 1e-6)
    for_noise, for_stopping = split_budget(budget)
    assert make_objective_perturbation(plan, budget).linear.kind == "spherical"
    noise = calibrate_objective_noise(plan, Budget(for_noise.epsilon))
    if kind == "gaussian":
        noise = Mechanism("gaussian", calibrate_gaussian_term(plan, for_noise), plan.dimensions)
    for factor, valid in ((1.0, True), (2.0, True), (0.5, False)):
        stated = replace(noise, scale=factor * noise.scale)
        distance = bound_stopping_sensitivity(plan, stated)
        end = calibrate(distance.total, dimensions=plan.dimensions, budget=for_stopping)
        earlier = certify(ObjectivePerturbation(plan, stated, end), budget)
        assert earlier.private is valid
        if valid:
            verify(earlier)
        else:
            with pytest.raises(CertificateError):
                verify(earlier)


NO_LENGTHS: list[Any] = ["0.5", None, math.inf, math.nan, True, 0.0, -1e-9, -0.01, -1.0, -1e9, 10**400]


@pytest.mark.parametrize("kind", ["spherical", "gaussian"])
@pytest.mark.parametrize("scale", NO_LENGTHS, ids=lambda scale: repr(scale)[:9])
@pytest.mark.parametrize("budget", [Budget(1.0), Budget(1.0, 1e-6)])
def test_noise_whose_scale_is_no_length_is_caught(scale: Any, kind: NoiseKind, budget: Budget) -> None:
    """Neither made nor verified; least of all a negative one, at which a profile would be that of no distance."""
    certificate = certified(recipe(Logistic()), budget)
    with pytest.raises((CertificateError, ParameterError)):
        verify(with_noise(certificate, Mechanism(kind, scale, 6)))


@pytest.mark.parametrize("kind", ["spherical", "gaussian"])
@pytest.mark.parametrize("scale", NO_LENGTHS, ids=lambda scale: repr(scale)[:9])
@pytest.mark.parametrize("budget", [Budget(1.0), Budget(1.0, 1e-6)])
def test_noise_whose_scale_is_no_length_is_not_read(scale: Any, kind: NoiseKind, budget: Budget) -> None:
    record = certified(recipe(Logistic()), budget).to_dict()
    spent, reach = record["spent"], compute_sgd_sensitivity(recipe(Logistic())).total
    spent["noise"].update(kind=kind, scale=scale)
    # As whoever makes it up would write it: so that what is derived follows from it.
    spent["derived"]["noise_multiplier"] = scale / reach if type(scale) is float else scale
    with pytest.raises(CertificateError):
        Certificate.from_dict(record)


def test_noise_of_an_unknown_kind_is_caught() -> None:
    certificate = certified(recipe(Logistic()), Budget(1.0))
    with pytest.raises((CertificateError, ParameterError)):
        verify(with_noise(certificate, Mechanism("cauchy", 1e3, 6)))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["algorithm", "epsilon", "delta", "spent", "adjacency", "version", "private", "rows"])
def test_a_missing_entry_is_named(key: str) -> None:
    record = certified(recipe(Logistic()), Budget(0.7)).to_dict()
    del record[key]
    with pytest.raises(CertificateError, match=f"'{key}' is missing"):
        Certificate.from_dict(record)


@pytest.mark.parametrize("key", ["passes", "batch_size"])
def test_a_missing_entry_of_a_recipe_is_named(key: str) -> None:
    record = certified(recipe(Logistic()), Budget(0.7)).to_dict()
    del record["spent"]["problem"][key]
    with pytest.raises(CertificateError, match=f"'{key}' is missing from problem"):
        Certificate.from_dict(record)


def test_the_promise_names_the_numbers_in_plain_words() -> None:
    pure, approximate, seeded, *_ = certificates()
    assert "(ε = 0.7)-differentially private: " in pure.guarantee()
    assert "changes the probability of any outcome by at most a factor of 2.01." in pure.guarantee()
    assert "would change the probability" in pure.guarantee(planned=True)
    assert "1,000 rows" in pure.guarantee()
    assert "a factor of 2.01, plus 1e-06." in approximate.guarantee()
    assert seeded.guarantee() == f"NOT PRIVATE: {SEEDED}."


def test_the_promise_warns_of_budgets_that_promise_little() -> None:
    assert "Caution" not in certified(recipe(Logistic()), Budget(1.0, 1e-6)).guarantee()
    assert "a factor of inf." in certified(recipe(Logistic()), Budget(1e4)).guarantee()
    assert "an epsilon above 10 guarantees little" in certified(recipe(Logistic()), Budget(11.0)).guarantee()
    assert "publish a whole row" in certified(recipe(Logistic()), Budget(1.0, 1e-3)).guarantee()


@pytest.mark.parametrize("loss", LOSSES)
def test_release_adds_the_stated_noise(loss: Loss) -> None:
    certificate = certified(recipe(loss), Budget(1.0, 1e-6), models=2, seeded=True)
    weights = np.zeros((2, loss.vector_count, 6))
    weights[:, 0], weights[:, -1] = 1.0, -1.0 if loss.vector_count > 1 else 1.0
    assert certificate.release_noise is not None
    drawn = (release_weights(weights, certificate, Randomness(seed)) for seed in range(300))
    lengths = [np.linalg.norm(noisy - weights, axis=(1, 2)) for noisy in drawn]
    mechanism = certificate.release_noise
    if mechanism.kind == "spherical":
        expected = stats.gamma(mechanism.dimensions, scale=mechanism.scale)
    else:
        expected = stats.chi(mechanism.dimensions, scale=mechanism.scale)
    assert stats.kstest(np.ravel(lengths), expected.cdf).pvalue > 1e-3


def test_a_scan_gets_the_stated_noise() -> None:
    problem = Problem(loss=Multinomial(4), dims=300, rows=1000)
    budget = Budget(1.0, 1e-6)
    share = budget.split(2)
    event = make_noisy_gradients(problem, share, clip=0.5, scans=6, step=1.0, momentum=0.7)
    certificate = certify(SelfComposition(BudgetedEvent(share, event), 2), budget, seeded=True)
    sums = np.zeros((2, 4, 300))
    sums[:, 0], sums[:, 1] = 7.0, -7.0
    scans = [release_gradient(sums, certificate, Randomness(1), scan=scan) - sums for scan in range(3)]
    free = np.array([[problem.loss.to_basis(model) for model in noise] for noise in scans])
    assert stats.kstest(free.ravel(), stats.norm(scale=event.noise.scale).cdf).pvalue > 1e-3
    flat = np.corrcoef(free.reshape(6, -1)) - np.eye(6)  # of two models in three scans
    assert np.abs(flat).max() < 0.15


@pytest.mark.fresh_noise
def test_random_bits_are_those_of_the_operating_system() -> None:
    assert Randomness().make_stream() is os.urandom
    assert Randomness().make_stream("moments") is os.urandom


def test_multinomial_weights_leave_only_through_their_own_subspace() -> None:
    """What rounding leaves outside the subspace of zero sums gets no noise there, so it must not get out."""
    certificate = certified(recipe(Multinomial(4)), Budget(1.0), seeded=True)
    weights = np.zeros((1, 4, 6))
    plain = release_weights(weights, certificate, Randomness(1))
    shifted = release_weights(weights + 2.0**-45, certificate, Randomness(1))
    assert np.abs(plain.sum(axis=1)).max() < 1e-12
    assert (plain == shifted).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_released_weights_are_told_from_others(loss: Loss, scale: float) -> None:
    certificate = certified(recipe(loss), Budget(0.1, 1e-6), models=2)
    weights = scale * np.random.default_rng(0).standard_normal((2, loss.vector_count, 6))
    if loss.vector_count > 1:
        weights -= weights.mean(axis=1, keepdims=True)
    assert is_on_release_grid(release_weights(weights, certificate, Randomness()), certificate)
    if scale == 1.0:
        assert not is_on_release_grid(weights, certificate)
    assert is_on_release_grid(weights, certified(recipe(loss), None, models=2))


def test_multinomial_weights_that_do_not_sum_to_zero_were_not_released() -> None:
    certificate = certified(recipe(Multinomial(4)), Budget(1.0))
    assert not is_on_release_grid(np.ones((1, 4, 6)), certificate)


def test_contrasts_are_an_orthonormal_basis_of_the_zero_sums() -> None:
    for classes in (2, 3, 10):
        basis = make_contrast_basis(classes)
        assert np.allclose(basis @ basis.T, np.eye(classes - 1), atol=1e-15)
        assert np.allclose(basis.sum(axis=1), 0, atol=1e-15)


def test_noise_goes_into_the_degrees_of_freedom() -> None:
    assert [recipe(loss).dimensions for loss in LOSSES] == [6 * loss.directions for loss in LOSSES]


def test_noiseless_release_returns_the_weights() -> None:
    weights = np.arange(6.0).reshape(1, 1, 6)
    assert (release_weights(weights, certified(recipe(Logistic()), None), Randomness()) == weights).all()


def test_a_seed_is_taken_only_where_the_certificate_confesses_it() -> None:
    certificate = certified(recipe(Logistic()), Budget(1.0))
    with pytest.raises(ParameterError, match="says the noise is not seeded must match the use of a seed"):
        release_weights(np.zeros((1, 1, 6)), certificate, Randomness(1))
    seeded = certified(recipe(Logistic()), Budget(1.0), seeded=True)
    with pytest.raises(ParameterError, match="says the noise is seeded must match the use of a seed"):
        release_weights(np.zeros((1, 1, 6)), seeded, Randomness())
    first, again, other = (release_weights(np.zeros((1, 1, 6)), seeded, Randomness(seed)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).all()


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"weights must have shape \(1, 1, 6\)"):
        release_weights(np.zeros((1, 1, 5)), certified(recipe(Logistic()), Budget(1.0)), Randomness())


def test_release_without_a_seed_differs_every_time() -> None:
    certificate = certified(recipe(Logistic()), Budget(1.0))
    first, second = (release_weights(np.zeros((1, 1, 6)), certificate, Randomness()) for _ in range(2))
    assert (first != second).all()


def test_randomness_has_a_stream_for_each_purpose_and_forks_that_differ() -> None:
    seeded = Randomness(7)
    assert seeded.make_stream()(8) == seeded.make_stream()(8)
    assert len({seeded.make_stream(purpose)(8) for purpose in ("", "moments", "perturbation")}) == 3
    forks = [fork.make_stream()(8) for fork, _ in zip(seeded.spawn(), range(5), strict=False)]
    assert len(set(forks)) == 5
    assert forks == [Randomness(7 + number).make_stream()(8) for number in range(5)]
    system = Randomness()
    assert all(fork is system for fork, _ in zip(system.spawn(), range(3), strict=False))
    assert system.make_stream()(8) != system.make_stream()(8)


def test_a_seed_does_not_draw_the_same_for_two_purposes() -> None:
    """Noise of one purpose must not be that of another, times the scales."""
    assert Randomness(1).make_stream("moments")(16) != Randomness(1).make_stream("perturbation")(16)
    assert Randomness(1).make_stream("moments 1")(16) != Randomness(11).make_stream("moments")(16)


def test_each_model_has_a_key_of_its_own_and_none_without_noise_inside() -> None:
    plan, budget = recipe(Logistic()), Budget(0.9)
    event = NoisyUpdates(plan, calibrate_scs13(plan, budget.split(3)), "permutation")
    inside = certify(SelfComposition(BudgetedEvent(budget.split(3), event), 3), budget)
    keys = draw_update_keys(inside, Randomness().make_stream())
    assert len({key for key in keys if key is not None and len(key) == 32}) == 3
    assert draw_update_keys(certified(plan, budget, models=3), Randomness().make_stream()) == [None] * 3
    assert len(draw_sample_key(Randomness().make_stream())) == 32


@pytest.mark.parametrize("count", [1, 2, 3, 8, 12])
def test_a_pick_is_equally_likely_everywhere(count: int) -> None:
    bits, draws = Randomness(8).make_stream(), 3000
    seen = np.bincount([draw_index(count, bits) for _ in range(draws)], minlength=count)
    assert len(seen) == count
    assert count == 1 or stats.chisquare(seen).pvalue > 1e-3


def test_a_pick_beyond_the_count_is_drawn_again() -> None:
    stream = iter([b"\xff" * 8, b"\xc0" + bytes(7), b"\x40" + bytes(7)])
    assert draw_index(3, lambda _: next(stream)) == 1
    assert next(stream, None) is None
