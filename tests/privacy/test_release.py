"""Release and certificate: the noise that was stated is the noise that is added, and tampering is caught."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from boltdp.errors import ParameterError
from boltdp.privacy.algorithms import PUBLISHED
from boltdp.privacy.certificate import (
    NOISELESS,
    SEEDED,
    Certificate,
    CertificateError,
    certify,
    verify,
)
from boltdp.privacy.losses import HuberSVM, Logistic, Loss, Multinomial, contrasts
from boltdp.privacy.noise import Budget, Mechanism, calibrate, gaussian_sigma, spherical_scale
from boltdp.privacy.objective import gaussian_scale, objective_noise, shares, stopping_sensitivity
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.release import could_be_released, release
from boltdp.privacy.schedules import constant, strongly_convex
from boltdp.privacy.sensitivity import sensitivity

LOSSES: list[Loss] = [Logistic(), HuberSVM(0.2), Multinomial(4)]


def recipe(loss: Loss, *, regularization: float = 0.0, radius: float = math.inf) -> Recipe:
    schedule = constant(0.05)
    if regularization:
        schedule = strongly_convex(beta=loss.smoothness + regularization, gamma=regularization)
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


def certificates() -> list[Certificate]:
    return [
        certify(recipe(Logistic()), Budget(0.7)),
        certify(recipe(Logistic(), regularization=0.1, radius=10.0), Budget(0.7, 1e-6), models=3),
        certify(recipe(HuberSVM(0.2)), Budget(2.0, 1e-6), randomness="seeded"),
        certify(recipe(Multinomial(4)), Budget(0.7), analysis="paper"),
        certify(recipe(Logistic()), None),
        certify(recipe(Logistic()), Budget(1.0), reasons=("the classes were read from the data",)),
    ]


@pytest.mark.parametrize("certificate", certificates())
def test_certificate_survives_the_round_trip_and_verifies(certificate: Certificate) -> None:
    record = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    again = Certificate.from_dict(record)
    assert again == certificate
    verify(again)


def test_only_a_flawless_release_is_private() -> None:
    assert [certificate.private for certificate in certificates()] == [True, True, False, False, False, False]
    reasons = [certificate.reasons for certificate in certificates()]
    assert reasons[2:5] == [(SEEDED,), (PUBLISHED,), (NOISELESS,)]


TAMPERING: list[tuple[str, Any]] = [
    ("epsilon", 0.1),
    ("epsilon", -1.0),
    ("rows", 10_000),
    ("rows", "many"),
    ("dims", 3),
    ("batch_size", 100),
    ("batches", 34),
    ("passes", 1),
    ("regularization", 0.5),
    ("averaging", "all"),
    ("models", 2),
    ("models", 0.5),
    ("models", 0),
    ("signature", "none"),
    ("analysis", "paper"),
    ("randomness", "seeded"),
    ("randomness", "none"),
    ("reasons", [SEEDED]),
    ("private", False),
    ("neighbours", "add or remove one row"),
    ("loss", {"name": "logistic", "lipschitz": 0.5, "smoothness": 0.25}),
    ("loss", {"name": "hinge", "lipschitz": 1.0, "smoothness": 0.25}),
    ("schedule", {"growth": "none", "scale": 0.01, "offset": 1.0, "cap": None}),
    ("sensitivity", {"bound": 1e-5, "margin": 0.0, "method": "recursion"}),
    ("sensitivity", None),
    ("mechanism", {"kind": "spherical", "scale": 1e-5, "dimensions": 6}),
    ("mechanism", None),
    ("algorithm", "magic"),
    ("algorithm", None),
    ("training_noise", {"kind": "gaussian", "scale": 1.0, "dimensions": 6}),
    ("schedule", None),
]


@pytest.mark.parametrize(("key", "value"), TAMPERING)
def test_a_tampered_certificate_is_caught(key: str, value: object) -> None:
    record = certify(recipe(Logistic()), Budget(0.7)).to_dict()
    record[key] = value
    with pytest.raises(CertificateError):
        verify(Certificate.from_dict(record))


@pytest.mark.parametrize(("key", "value"), [("delta", 1e-3), ("delta", 0.0), ("epsilon", 0.5), ("epsilon", 1.5)])
@pytest.mark.parametrize("kind", ["spherical", "gaussian"])
def test_another_budget_is_caught(key: str, value: float, kind: str) -> None:
    budget = Budget(1.0, 1e-6)
    record = replace(certify(recipe(Logistic()), budget), mechanism=enough(budget)[kind]).to_dict()
    with pytest.raises(CertificateError):
        verify(Certificate.from_dict({**record, key: value}))


def enough(budget: Budget) -> dict[str, Mechanism]:
    """All noises that keep the budget, not only the shortest."""
    plan = recipe(Logistic())
    reach = sensitivity(plan).total
    return {
        "spherical": Mechanism("spherical", reach * spherical_scale(budget, dimensions=plan.freedom), plan.freedom),
        "gaussian": Mechanism("gaussian", reach * gaussian_sigma(budget), plan.freedom),
        "pure": Mechanism("spherical", reach / budget.epsilon, plan.freedom),
    }


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(0.1, 1e-2)])
def test_all_noise_that_is_enough_is_accepted_and_half_of_it_is_not(budget: Budget) -> None:
    """Such as that of models from before spherical noise had its own analysis with delta."""
    certificate = certify(recipe(Logistic()), budget)
    for noise in enough(budget).values():
        verify(replace(certificate, mechanism=noise))
        with pytest.raises(CertificateError, match="the certificate claims mechanism"):
            verify(replace(certificate, mechanism=replace(noise, scale=noise.scale / 2)))


@pytest.mark.parametrize("kind", ["gaussian", "pure"])
def test_noise_before_training_that_is_enough_is_accepted_and_half_of_it_is_not(kind: str) -> None:
    plan, budget = recipe(Logistic(), regularization=0.1), Budget(1.0, 1e-6)
    certificate, parts = certify(plan, budget, algorithm="objective"), shares(budget)
    assert certificate.training_noise is not None
    assert certificate.training_noise.kind == "spherical"
    noise = objective_noise(plan, Budget(parts.noise.epsilon))
    if kind == "gaussian":
        noise = Mechanism("gaussian", gaussian_scale(plan, parts.noise), plan.freedom)
    for scale, valid in ((noise.scale, True), (noise.scale / 2, False)):
        stated = replace(noise, scale=scale)
        distance = stopping_sensitivity(plan, stated)
        earlier = replace(
            certificate,
            training_noise=stated,
            sensitivity=distance,
            mechanism=calibrate(distance.total, dimensions=plan.freedom, budget=parts.stopping),
        )
        if valid:
            verify(earlier)
        else:
            with pytest.raises(CertificateError):
                verify(earlier)


@pytest.mark.parametrize("scale", ["0.5", None, math.inf, math.nan, True])
def test_noise_that_is_no_number_is_caught(scale: object) -> None:
    certificate = certify(recipe(Logistic()), Budget(1.0, 1e-6))
    noise = Mechanism("spherical", scale, 6)  # type: ignore[arg-type]
    with pytest.raises(CertificateError):
        verify(replace(certificate, mechanism=noise))


@pytest.mark.parametrize("key", ["passes", "batches"])
def test_a_missing_entry_is_named(key: str) -> None:
    record = certify(recipe(Logistic()), Budget(0.7)).to_dict()
    del record[key]
    with pytest.raises(CertificateError, match=f"'{key}' is missing"):
        Certificate.from_dict(record)


def test_the_promise_names_the_numbers_in_plain_words() -> None:
    pure, approximate, seeded, *_ = certificates()
    assert "epsilon = 0.7: " in pure.promise()
    assert "is seen of this model was at most 2.01 times as likely" in pure.promise()
    assert "would be seen of the model" in pure.promise(planned=True)
    assert "1,000 rows" in pure.promise()
    assert "2.01 times as likely, plus 1e-06, as if" in approximate.promise()
    assert seeded.promise() == f"NOT PRIVATE: {SEEDED}."


def test_the_promise_warns_of_budgets_that_promise_little() -> None:
    assert "Caution" not in certify(recipe(Logistic()), Budget(1.0, 1e-6)).promise()
    assert "inf times" in certify(recipe(Logistic()), Budget(1e4)).promise()
    assert "an epsilon above 10 promises little" in certify(recipe(Logistic()), Budget(11.0)).promise()
    assert "publish a whole row" in certify(recipe(Logistic()), Budget(1.0, 1e-3)).promise()


@pytest.mark.parametrize("loss", LOSSES)
def test_release_adds_the_stated_noise(loss: Loss) -> None:
    certificate = certify(recipe(loss), Budget(1.0, 1e-6), models=2, randomness="seeded")
    weights = np.zeros((2, loss.vectors, 6))
    weights[:, 0], weights[:, -1] = 1.0, -1.0 if loss.vectors > 1 else 1.0
    assert certificate.mechanism is not None
    lengths = [np.linalg.norm(release(weights, certificate, seed=s) - weights, axis=(1, 2)) for s in range(300)]
    mechanism = certificate.mechanism
    if mechanism.kind == "spherical":
        expected = stats.gamma(mechanism.dimensions, scale=mechanism.scale)
    else:
        expected = stats.chi(mechanism.dimensions, scale=mechanism.scale)
    assert stats.kstest(np.ravel(lengths), expected.cdf).pvalue > 1e-3


def test_multinomial_weights_leave_only_through_their_own_subspace() -> None:
    """What rounding leaves outside the subspace of zero sums gets no noise there, so it must not get out."""
    certificate = certify(recipe(Multinomial(4)), Budget(1.0), randomness="seeded")
    weights = np.zeros((1, 4, 6))
    plain = release(weights, certificate, seed=1)
    shifted = release(weights + 2.0**-45, certificate, seed=1)
    assert np.abs(plain.sum(axis=1)).max() < 1e-12
    assert (plain == shifted).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_released_weights_are_told_from_others(loss: Loss, scale: float) -> None:
    certificate = certify(recipe(loss), Budget(0.1, 1e-6), models=2)
    weights = scale * np.random.default_rng(0).standard_normal((2, loss.vectors, 6))
    if loss.vectors > 1:
        weights -= weights.mean(axis=1, keepdims=True)
    assert could_be_released(release(weights, certificate), certificate)
    if scale == 1.0:
        assert not could_be_released(weights, certificate)
    assert could_be_released(weights, certify(recipe(loss), None, models=2))


def test_multinomial_weights_that_do_not_sum_to_zero_were_not_released() -> None:
    certificate = certify(recipe(Multinomial(4)), Budget(1.0))
    assert not could_be_released(np.ones((1, 4, 6)), certificate)


def test_contrasts_are_an_orthonormal_basis_of_the_zero_sums() -> None:
    for classes in (2, 3, 10):
        basis = contrasts(classes)
        assert np.allclose(basis @ basis.T, np.eye(classes - 1), atol=1e-15)
        assert np.allclose(basis.sum(axis=1), 0, atol=1e-15)


def test_noise_goes_into_the_degrees_of_freedom() -> None:
    assert [recipe(loss).freedom for loss in LOSSES] == [6, 6, 18]


def test_noiseless_release_returns_the_weights() -> None:
    weights = np.arange(6.0).reshape(1, 1, 6)
    assert (release(weights, certify(recipe(Logistic()), None)) == weights).all()


def test_a_seed_is_taken_only_where_the_certificate_confesses_it() -> None:
    certificate = certify(recipe(Logistic()), Budget(1.0))
    with pytest.raises(ParameterError, match="must match the use of a seed"):
        release(np.zeros((1, 1, 6)), certificate, seed=1)


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"weights must have shape \(1, 1, 6\)"):
        release(np.zeros((1, 1, 5)), certify(recipe(Logistic()), Budget(1.0)))


def test_release_without_a_seed_differs_every_time() -> None:
    certificate = certify(recipe(Logistic()), Budget(1.0))
    first, second = (release(np.zeros((1, 1, 6)), certificate) for _ in range(2))
    assert (first != second).all()
