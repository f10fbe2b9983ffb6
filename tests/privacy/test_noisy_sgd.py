"""SCS13, BST14 and DP-SGD: how much noise, what is refused, and certificates that can be recomputed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from boltdp.errors import ParameterError
from boltdp.losses import HuberSVM, Logistic, Loss, Multinomial
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import OVERSPENT, Certificate, CertificateError, certify, fits_budget, verify
from boltdp.privacy.events.event import Analysis, BudgetedEvent, Event, SelfComposition
from boltdp.privacy.events.noisy_sgd import (
    BST14_PUBLISHED,
    NoisyUpdates,
    Sampling,
    calibrate_bst14,
    calibrate_dpsgd,
    calibrate_published_bst14,
    calibrate_published_scs13,
    calibrate_scs13,
)
from boltdp.privacy.mechanisms import Mechanism, calibrate_unit_gaussian
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule

APPROXIMATE = Budget(0.5, 1e-6)
#: So much that the classical Gaussian bound does not hold.
LARGE = Budget(100.0, 1e-2)


def recipe(loss: Loss | None = None, *, rows: int = 1000, batch_size: int = 30, passes: int = 4) -> Recipe:
    return Recipe(
        loss=Logistic() if loss is None else loss,
        dims=40,
        rows=rows,
        batch_size=batch_size,
        passes=passes,
        schedule=make_constant_schedule(0.1),
    )


def test_scs13_covers_the_smallest_batch() -> None:
    """1000 rows in 33 batches: of 30 and 31."""
    noise = calibrate_scs13(recipe(), Budget(0.5))
    assert (noise.kind, noise.dimensions) == ("spherical", 40)
    assert noise.scale == pytest.approx(2 / 30 / (0.5 / 4))


def test_scs13_composes_gaussian_noise_as_one() -> None:
    noise = calibrate_scs13(recipe(), APPROXIMATE)
    assert noise.kind == "gaussian"
    assert noise.scale == pytest.approx(math.sqrt(4) * 2 / 30 * calibrate_unit_gaussian(APPROXIMATE))
    assert noise.scale < calibrate_published_scs13(recipe(), APPROXIMATE).scale


def test_scs13_takes_pure_noise_where_it_is_shorter() -> None:
    few = replace(recipe(passes=1), dims=2)
    assert calibrate_scs13(few, APPROXIMATE).kind == "spherical"


@pytest.mark.parametrize("calibration", [calibrate_bst14, calibrate_dpsgd], ids=["bst14", "dpsgd"])
@pytest.mark.parametrize("passes", [1, 4])
def test_batches_of_all_rows_need_the_noise_of_no_sampling(
    calibration: Callable[[Recipe, Budget], Mechanism], passes: int
) -> None:
    """A replaced row moves the mean gradient of all rows by 2L/m, and no sample hides it."""
    plain = 2 / 1000 * math.sqrt(passes) * calibrate_unit_gaussian(APPROXIMATE)
    assert plain <= calibration(recipe(batch_size=1000, passes=passes), APPROXIMATE).scale <= 1.03 * plain


def test_multinomial_noise_lives_in_the_degrees_of_freedom() -> None:
    noise = calibrate_dpsgd(recipe(Multinomial(3)), APPROXIMATE)
    assert noise.dimensions == 80
    assert noise.scale == pytest.approx(math.sqrt(2) * calibrate_dpsgd(recipe(), APPROXIMATE).scale)


def test_tight_accounting_needs_less_than_the_published_one_with_a_valid_sensitivity() -> None:
    for rows in (1000, 100_000):
        run = recipe(rows=rows)
        assert calibrate_bst14(run, APPROXIMATE).scale < 2 * calibrate_published_bst14(run, APPROXIMATE).scale


def test_the_published_epsilon_of_an_update_solves_its_equation() -> None:
    """Recovered from the noise: s = sqrt(2 ln(1.25/delta_1)) / epsilon_2, epsilon_2 = m * epsilon_1 / (2b)."""
    run, budget = recipe(rows=3000, batch_size=30), Budget(0.05, 1e-6)
    share = budget.delta / run.updates
    inner = math.sqrt(2 * math.log(1.25 / share)) / (30 * calibrate_published_bst14(run, budget).scale)
    assert inner < 1
    each = inner * 2 * 30 / 3000
    whole = run.updates * each * math.expm1(each) + math.sqrt(2 * run.updates * math.log(1 / share)) * each
    assert whole == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("algorithm", "noise"),
    [("bst14", calibrate_bst14), ("bst14", calibrate_published_bst14), ("dpsgd", calibrate_dpsgd)],
)
def test_gaussian_algorithms_refuse_pure_budgets(algorithm: str, noise: Callable[[Recipe, Budget], Mechanism]) -> None:
    with pytest.raises(ParameterError, match=f"delta must be > 0 for {algorithm}, got 0"):
        noise(recipe(), Budget(1.0))


@pytest.mark.parametrize("sampling", ["fixed size", "poisson"])
def test_random_samples_have_gaussian_noise_only(sampling: Sampling) -> None:
    with pytest.raises(ParameterError, match="the noise of random samples must be gaussian, got 'spherical'"):
        NoisyUpdates(recipe(), Mechanism("spherical", 1.0, 40), sampling)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sampling": "luck"}, "sampling must be one of permutation, fixed size, poisson, got 'luck'"),
        ({"analysis": "guessed"}, "analysis must be one of proved, paper, got 'guessed'"),
        ({"noise": Mechanism("gaussian", 1.0, 39)}, "the noise must have 40 dimensions, got 39"),
    ],
)
def test_updates_that_are_not_known_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        replace(scs13(recipe(), APPROXIMATE), **changed)


def scs13(run: Recipe, budget: Budget, analysis: Analysis = "proved") -> NoisyUpdates:
    noise = calibrate_scs13 if analysis == "proved" else calibrate_published_scs13
    return NoisyUpdates(run, noise(run, budget), "permutation", analysis)


def bst14(run: Recipe, budget: Budget, analysis: Analysis = "proved") -> NoisyUpdates:
    noise = calibrate_bst14 if analysis == "proved" else calibrate_published_bst14
    return NoisyUpdates(run, noise(run, budget), "fixed size", analysis)


def dpsgd(run: Recipe, budget: Budget) -> NoisyUpdates:
    return NoisyUpdates(run, calibrate_dpsgd(run, budget), "poisson")


def several(event: Event, budget: Budget, models: int) -> SelfComposition:
    return SelfComposition(BudgetedEvent(budget.split(models), event), models)


def certificates() -> list[tuple[Certificate, tuple[str, ...]]]:
    pure, huber = Budget(0.7), recipe(HuberSVM(0.2))
    third = several(scs13(huber, APPROXIMATE.split(3)), APPROXIMATE, 3)
    return [
        (certify(scs13(recipe(), pure), pure), ()),
        (certify(scs13(recipe(), pure, "paper"), pure), ()),
        (certify(third, APPROXIMATE), ()),
        (certify(scs13(recipe(), APPROXIMATE, "paper"), APPROXIMATE), ()),
        (certify(scs13(recipe(), LARGE, "paper"), LARGE), (OVERSPENT,)),
        (certify(bst14(recipe(Multinomial(3)), APPROXIMATE), APPROXIMATE), ()),
        (certify(bst14(recipe(), APPROXIMATE, "paper"), APPROXIMATE), (BST14_PUBLISHED,)),
        (certify(dpsgd(recipe(), APPROXIMATE), APPROXIMATE), ()),
    ]


@pytest.mark.parametrize(("certificate", "reasons"), certificates())
def test_certificates_survive_the_round_trip_and_verify(certificate: Certificate, reasons: tuple[str, ...]) -> None:
    again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict(), allow_nan=False)))
    assert again == certificate
    assert again.reasons == reasons
    assert again.private == (not reasons)
    assert again.release_noise is None
    assert again.training.sensitivity is None
    assert again.training_noise is not None
    if reasons == (OVERSPENT,):
        assert again.spent.published  # nobody claims that it is enough, and the certificate says that it is not
    verify(again)


def test_the_promise_says_that_the_noise_of_updates_is_drawn_in_floating_point() -> None:
    private = certificates()[0][0]
    said = " It holds for real-valued noise in the updates, which is drawn in floating point."
    assert private.guarantee().endswith(said)
    assert private.guarantee(planned=True).endswith(said)


def test_one_of_several_models_has_its_share_of_the_budget() -> None:
    certificate = certificates()[2][0]
    assert certificate.model_count == 3
    assert certificate.training_noise == calibrate_scs13(recipe(HuberSVM(0.2)), APPROXIMATE.split(3))


@pytest.mark.parametrize(
    ("passes", "epsilon", "delta", "holds"),
    [
        (1, 0.5, 1e-6, True),
        (4, 0.9, 1e-2, True),
        (1, 4.0, 1e-6, True),
        (4, 4.0, 1e-6, True),
        (1, 40.0, 0.1, False),
        (4, 40.0, 0.1, True),
        (1, 100.0, 1e-2, False),
        (4, 100.0, 1e-2, False),
    ],
)
def test_whether_scs13_as_published_is_private_is_decided_by_what_is_proved(
    passes: int, epsilon: float, delta: float, holds: bool
) -> None:
    """The classical bound is for epsilon/passes < 1; above that it may hold or not, and what holds is what counts."""
    run, budget = recipe(passes=passes), Budget(epsilon, delta)
    event = scs13(run, budget, "paper")
    # Gaussian noise of k updates is that of one with sqrt(k) times the sensitivity, whose smallest deviation is known.
    needed = math.sqrt(passes) * 2 / 30 * calibrate_unit_gaussian(budget)
    assert (event.noise.scale >= needed) is holds
    certificate = certify(event, budget)
    assert certificate.private is holds
    assert certificate.reasons == (() if holds else (OVERSPENT,))


def test_scs13_as_published_holds_wherever_its_bound_does() -> None:
    for epsilon in (0.01, 0.1, 0.5, 0.9, 3.5):
        for passes in (1, 4, 10):
            for delta in (1e-2, 1e-6, 1e-12):
                if epsilon / passes < 1:
                    budget = Budget(epsilon, delta)
                    assert fits_budget(scs13(recipe(passes=passes), budget, "paper"), budget)


def test_bst14_as_published_is_never_private_however_much_noise_it_has() -> None:
    event = bst14(recipe(), APPROXIMATE, "paper")
    longer = replace(event, noise=replace(event.noise, scale=1000 * event.noise.scale))
    for one in (event, longer):
        certificate = certify(one, APPROXIMATE)
        assert certificate.reasons == (BST14_PUBLISHED,)
        assert not certificate.private
    assert certify(replace(longer, analysis="proved"), APPROXIMATE).private


@pytest.mark.parametrize("plan", [bst14, dpsgd])
def test_beyond_the_largest_epsilon_sampled_updates_spend_no_more_than_there(
    plan: Callable[[Recipe, Budget], NoisyUpdates],
) -> None:
    event = plan(recipe(passes=1), Budget(2.0, 1e-6))
    assert event.delta(1e5, target=1e-6) == event.delta(100.0, target=1e-6) <= 1e-6


@pytest.mark.parametrize(
    ("factor", "valid"), [(0.5, False), (0.99, False), (1.0, True), (1.0 + 1e-3, True), (1.5, True), (100.0, True)]
)
@pytest.mark.parametrize("plan", [scs13, bst14, dpsgd])
def test_noise_that_is_longer_than_needed_is_accepted_and_shorter_is_not(
    plan: Callable[[Recipe, Budget], NoisyUpdates], factor: float, valid: bool
) -> None:
    event = plan(recipe(), APPROXIMATE)
    changed = replace(event, noise=replace(event.noise, scale=factor * event.noise.scale))
    certificate = certify(changed, APPROXIMATE)
    assert certificate.private is valid
    if valid:
        verify(certificate)
    else:
        with pytest.raises(CertificateError, match=r"claims delta = 1e-06 at epsilon = 0\.5, but"):
            verify(certificate)


#: Where in the record, and what is put there.
TAMPERING: list[tuple[tuple[str, ...], Any]] = [
    (("epsilon",), 0.1),
    (("delta",), 1e-9),
    (("rows",), 10_000),
    (("models",), 2),
    (("algorithm",), None),
    (("reasons",), ["it was not"]),
    (("private",), False),
    (("spent", "problem", "rows"), 900),
    (("spent", "problem", "rows"), 10_000),
    (("spent", "problem", "passes"), 8),
    (("spent", "problem", "batch_size"), 15),
    (("spent", "kind"), "output perturbation"),
    (("spent", "kind"), "objective perturbation"),
    (("spent", "sampling"), "permutation"),
    (("spent", "sampling"), "fixed size"),
    (("spent", "sampling"), "luck"),
    (("spent", "noise"), None),
    (("spent", "noise"), {"kind": "gaussian", "scale": 0.01, "dimensions": 40}),
    (("spent", "noise"), {"kind": "spherical", "scale": 100.0, "dimensions": 40}),
    (("spent", "noise"), {"kind": "gaussian", "scale": 100.0, "dimensions": 39}),
    (("spent", "analysis"), "guessed"),
]


@pytest.mark.parametrize(("path", "value"), TAMPERING)
def test_a_tampered_certificate_is_caught(path: tuple[str, ...], value: object) -> None:
    record = certify(dpsgd(recipe(), APPROXIMATE), APPROXIMATE).to_dict()
    place: Any = record
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != value
    place[path[-1]] = value
    with pytest.raises((CertificateError, ParameterError)):
        verify(Certificate.from_dict(record))


def test_a_published_form_cannot_pass_for_the_proved_one() -> None:
    record = certify(bst14(recipe(), APPROXIMATE), APPROXIMATE).to_dict()
    record["spent"]["analysis"] = "paper"
    with pytest.raises(CertificateError, match="'private'"):
        Certificate.from_dict(record)
