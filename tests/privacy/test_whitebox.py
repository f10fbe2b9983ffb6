"""SCS13, BST14 and DP-SGD: how much noise, what is refused, and certificates that can be recomputed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from boltdp.errors import ParameterError
from boltdp.privacy.algorithms import BST14_PUBLISHED, SCS13_PUBLISHED, Algorithm, Analysis
from boltdp.privacy.certificate import Certificate, CertificateError, certify, verify
from boltdp.privacy.losses import HuberSVM, Logistic, Loss, Multinomial
from boltdp.privacy.noise import Budget, gaussian_sigma
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.schedules import constant
from boltdp.privacy.whitebox import bst14_noise, bst14_published, dpsgd_noise, scs13_noise, scs13_published

APPROXIMATE = Budget(0.5, 1e-6)


def recipe(loss: Loss | None = None, *, rows: int = 1000, batch_size: int = 30, passes: int = 4) -> Recipe:
    return Recipe(
        loss=Logistic() if loss is None else loss,
        dims=40,
        rows=rows,
        batch_size=batch_size,
        passes=passes,
        schedule=constant(0.1),
    )


def test_scs13_covers_the_smallest_batch() -> None:
    """1000 rows in 33 batches: of 30 and 31."""
    noise = scs13_noise(recipe(), Budget(0.5))
    assert (noise.kind, noise.dimensions) == ("spherical", 40)
    assert noise.scale == pytest.approx(2 / 30 / (0.5 / 4))


def test_scs13_composes_gaussian_noise_as_one() -> None:
    noise = scs13_noise(recipe(), APPROXIMATE)
    assert noise.kind == "gaussian"
    assert noise.scale == pytest.approx(math.sqrt(4) * 2 / 30 * gaussian_sigma(APPROXIMATE))
    assert noise.scale < scs13_published(recipe(), APPROXIMATE).scale


def test_scs13_takes_pure_noise_where_it_is_shorter() -> None:
    few = replace(recipe(passes=1), dims=2)
    assert scs13_noise(few, APPROXIMATE).kind == "spherical"


def test_multinomial_noise_lives_in_the_degrees_of_freedom() -> None:
    noise = dpsgd_noise(recipe(Multinomial(3)), APPROXIMATE)
    assert noise.dimensions == 80
    assert noise.scale == pytest.approx(math.sqrt(2) * dpsgd_noise(recipe(), APPROXIMATE).scale)


def test_tight_accounting_needs_less_than_the_published_one_with_a_valid_sensitivity() -> None:
    for rows in (1000, 100_000):
        run = recipe(rows=rows)
        assert bst14_noise(run, APPROXIMATE).scale < 2 * bst14_published(run, APPROXIMATE).scale


def test_the_published_epsilon_of_an_update_solves_its_equation() -> None:
    """Recovered from the noise: s = sqrt(2 ln(1.25/delta_1)) / epsilon_2, epsilon_2 = m * epsilon_1 / (2b)."""
    run, budget = recipe(rows=3000, batch_size=30), Budget(0.05, 1e-6)
    share = budget.delta / run.updates
    inner = math.sqrt(2 * math.log(1.25 / share)) / (30 * bst14_published(run, budget).scale)
    assert inner < 1
    each = inner * 2 * 30 / 3000
    whole = run.updates * each * math.expm1(each) + math.sqrt(2 * run.updates * math.log(1 / share)) * each
    assert whole == pytest.approx(0.05)


@pytest.mark.parametrize("algorithm", ["bst14", "dpsgd"])
@pytest.mark.parametrize("analysis", ["proved", "paper"])
def test_gaussian_algorithms_refuse_pure_budgets(algorithm: Algorithm, analysis: Analysis) -> None:
    if algorithm == "dpsgd" and analysis == "paper":
        return
    with pytest.raises(ParameterError, match=f"delta must be > 0 for {algorithm}, got 0"):
        certify(recipe(), Budget(1.0), algorithm=algorithm, analysis=analysis)


def test_dpsgd_has_no_published_form() -> None:
    with pytest.raises(ParameterError, match="analysis must be proved for dpsgd"):
        certify(recipe(), APPROXIMATE, algorithm="dpsgd", analysis="paper")


def certificates() -> list[tuple[Certificate, tuple[str, ...]]]:
    loss = HuberSVM(0.2)
    return [
        (certify(recipe(), Budget(0.7), algorithm="scs13"), ()),
        (certify(recipe(), Budget(0.7), algorithm="scs13", analysis="paper"), ()),
        (certify(recipe(loss), APPROXIMATE, algorithm="scs13", models=3), ()),
        (certify(recipe(), APPROXIMATE, algorithm="scs13", analysis="paper"), ()),
        (certify(recipe(), Budget(4.0, 1e-6), algorithm="scs13", analysis="paper"), (SCS13_PUBLISHED,)),
        (certify(recipe(Multinomial(3)), APPROXIMATE, algorithm="bst14"), ()),
        (certify(recipe(), APPROXIMATE, algorithm="bst14", analysis="paper"), (BST14_PUBLISHED,)),
        (certify(recipe(), APPROXIMATE, algorithm="dpsgd"), ()),
    ]


@pytest.mark.parametrize(("certificate", "reasons"), certificates())
def test_certificates_survive_the_round_trip_and_verify(certificate: Certificate, reasons: tuple[str, ...]) -> None:
    again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict(), allow_nan=False)))
    assert again == certificate
    assert again.reasons == reasons
    assert again.mechanism is None
    verify(again)


TAMPERING: list[tuple[str, Any]] = [
    ("epsilon", 0.1),
    ("delta", 1e-9),
    ("rows", 10_000),
    ("passes", 2),
    ("batch_size", 60),
    ("algorithm", "bolton"),
    ("algorithm", "bst14"),
    ("training_noise", None),
    ("training_noise", {"kind": "gaussian", "scale": 0.01, "dimensions": 40}),
    ("analysis", "paper"),
    ("reasons", ["it was not"]),
]


@pytest.mark.parametrize(("key", "value"), TAMPERING)
def test_a_tampered_certificate_is_caught(key: str, value: object) -> None:
    record = certify(recipe(), APPROXIMATE, algorithm="dpsgd").to_dict()
    record[key] = value
    with pytest.raises((CertificateError, ParameterError)):
        verify(Certificate.from_dict(record))
