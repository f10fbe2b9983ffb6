"""What a certificate says of persons, and what is refused for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from boltdp.errors import ParameterError
from boltdp.losses import Logistic, Multinomial
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, CertificateError, certify, verify
from boltdp.privacy.events.event import BudgetedEvent, Composition, Event
from boltdp.privacy.events.noisy_counts import make_noisy_counts
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import (
    bound_volume_term,
    calibrate_gaussian_term,
    calibrate_objective_noise,
    calibrate_spherical_term,
    check_volume_term,
    find_ample_regularization,
    find_min_regularization,
    make_objective_perturbation,
)
from boltdp.privacy.events.selection import PortionSelection, TrialSelection, split_trial_budget
from boltdp.privacy.training_problem import MAX_PERSON_ROWS, Problem
from boltdp.settings import Settings
from tests.plans import plan_certificate

PROBLEM = Problem(loss=Logistic(), dims=5, rows=1000, regularization=0.1)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "objective": {},
    "objective with delta": {"algorithm": "objective", "delta": 1e-6},
    "noisy-gd": {"algorithm": "noisy-gd", "delta": 1e-6},
    "bolton": {"algorithm": "bolton"},
    "bolton in partitions": {"algorithm": "bolton", "partitions": 3, "delta": 1e-6},
}


def planned(g: int | None, **asked: Any) -> Certificate:
    return plan_certificate(Settings(epsilon=1.0, **asked), rows=1000, dims=5, classes=2, person_rows=g)


@pytest.mark.parametrize("asked", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize("g", [1, 2, 5])
def test_a_certificate_for_persons_is_verified_and_says_so(g: int, asked: dict[str, Any]) -> None:
    certificate = planned(g, **asked)
    record = certificate.to_dict()
    again = Certificate.from_dict(record)
    assert again == certificate
    verify(again)
    assert certificate.private
    assert record["adjacency"] == "replace-person"
    assert certificate.adjacency is Adjacency.REPLACE_PERSON
    assert "all rows of one person" in certificate.adjacency.meaning
    assert certificate.training.problem.person_rows == g
    used = "one is used" if g == 1 else f"at most {g} are used"
    assert certificate.guarantee().count(f": changing the rows of any one person, of which {used}, changes the") == 1


@pytest.mark.parametrize("asked", ALGORITHMS.values(), ids=ALGORITHMS)
def test_noise_for_one_row_is_not_enough_for_a_person_with_two(asked: dict[str, Any]) -> None:
    alone, event = planned(None, **asked), planned(None, **asked).training
    claimed: Any = replace(event, problem=replace(event.problem, person_rows=2))  # type: ignore[type-var]
    assert certify(claimed, alone.budget).reasons == (
        "what was done spends more than the epsilon and delta that are claimed",
    )


def test_a_certificate_for_rows_is_what_it_was() -> None:
    record = planned(None).to_dict()
    assert record["adjacency"] == "replace-one"
    assert "person_rows" not in record["spent"]["problem"]


@pytest.mark.parametrize(("g", "told"), [(None, "replace-person"), (1, "replace-one"), (2, "replace-one")])
def test_neighbours_that_do_not_follow_from_the_events_are_refused(g: int | None, told: str) -> None:
    record = {**planned(g).to_dict(), "adjacency": told}
    with pytest.raises(CertificateError, match="in 'adjacency'"):
        Certificate.from_dict(record)


@pytest.mark.parametrize("changed", [None, 1, 3])
def test_a_number_of_rows_that_was_changed_is_refused(changed: int | None) -> None:
    record = planned(2).to_dict()
    record["spent"]["problem"]["person_rows"] = changed
    with pytest.raises(CertificateError):
        Certificate.from_dict(record)


def test_all_events_must_be_about_the_same_neighbours() -> None:
    training = make_objective_perturbation(replace(PROBLEM, person_rows=2), Budget(1.0))
    befores: list[Event] = [
        NoisyMoments(moments="mean", features=4, numbers=4, clip_norm=1.0, person_rows=g).calibrate_noise(Budget(0.1))
        for g in (None, 1, 3)
    ]
    for before in (*befores, make_noisy_counts(Budget(0.1), releases=1)):
        parts = (BudgetedEvent(Budget(0.1), before), BudgetedEvent(Budget(1.0), training))
        with pytest.raises(ParameterError, match="the same neighbours"):
            Certificate(budget=Budget(1.1), spent=Composition(parts))


@pytest.mark.parametrize("g", [0, -1, 1.5, True, "2", MAX_PERSON_ROWS + 1])
def test_a_number_of_rows_that_is_none_is_refused(g: Any) -> None:
    with pytest.raises(ParameterError, match="person_rows"):
        replace(PROBLEM, person_rows=g)
    with pytest.raises(ParameterError, match="person_rows"):
        NoisyMoments(moments="mean", features=4, numbers=4, clip_norm=1.0, person_rows=g).calibrate_noise(None)


@pytest.mark.parametrize(
    ("g", "asked"),
    [
        (1, {"algorithm": "scs13"}),
        (2, {"algorithm": "scs13"}),
        (2, {"algorithm": "bst14", "delta": 1e-6}),
        (2, {"algorithm": "dpsgd", "delta": 1e-6}),
        (1, {"algorithm": "bolton", "analysis": "paper"}),
    ],
    ids=str,
)
def test_what_is_proved_for_rows_only_is_refused(g: int, asked: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="proved for single rows only"):
        planned(g, **asked)


@pytest.mark.parametrize("algorithm", ["bst14", "dpsgd"])
def test_where_all_positions_are_alike_one_row_of_a_person_is_a_row(algorithm: str) -> None:
    row, person = (planned(g, algorithm=algorithm, delta=1e-6, passes=1) for g in (None, 1))
    assert row.training_noise == person.training_noise
    assert person.private


def test_portions_are_refused_and_trials_are_not() -> None:
    problem = replace(PROBLEM, person_rows=1)
    parts = tuple(
        BudgetedEvent(Budget(1.0), make_objective_perturbation(replace(problem, rows=500), Budget(1.0)))
        for _ in range(1)
    )
    with pytest.raises(ParameterError, match="portions"):
        PortionSelection(trained=parts, chosen=0, rows=1000, epsilon=1.0)
    model, score = split_trial_budget(Budget(3.0), mean=10.0)
    trained = (BudgetedEvent(model, make_objective_perturbation(problem, model)),)
    event = TrialSelection(trained=trained, chosen=0, rows=1000, mean=10.0, score_epsilon=score.epsilon)
    assert certify(event, Budget(3.0)).private


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(4)], ids=str)
@pytest.mark.parametrize("g", [1, 2, 5, 9])
def test_g_rows_cost_about_g_times_the_noise_of_one(loss: Logistic | Multinomial, g: int) -> None:
    row = replace(PROBLEM, loss=loss, rows=100_000)
    person = replace(row, person_rows=g)
    assert calibrate_spherical_term(person, Budget(1.0)) == pytest.approx(
        g * calibrate_spherical_term(row, Budget(1.0)), rel=1e-9
    )
    budget = Budget(1.0, 1e-6)
    assert g * (1 - 1e-9) <= calibrate_gaussian_term(person, budget) / calibrate_gaussian_term(row, budget) < 1.02 * g
    lengths = [calibrate_objective_noise(problem, budget).expected_norm for problem in (row, person)]
    assert g * (1 - 1e-6) <= lengths[1] / lengths[0] < 1.02 * g


def test_volumes_and_lambda_follow_the_number_of_rows() -> None:
    person = replace(PROBLEM, person_rows=4)
    assert bound_volume_term(person) == pytest.approx(4 * bound_volume_term(PROBLEM))
    assert find_min_regularization(person, bound_volume_term(person)) == pytest.approx(PROBLEM.regularization)
    assert find_ample_regularization(person, 0.5) == pytest.approx(4 * find_ample_regularization(PROBLEM, 0.5))
    check_volume_term(PROBLEM, 1.5 * bound_volume_term(PROBLEM))
    with pytest.raises(ParameterError, match="regularization must be above"):
        check_volume_term(person, 1.5 * bound_volume_term(PROBLEM))
    # Ample is the least with which pure noise is as short as it can be.
    for share, shortest in ((1.0, True), (0.9, False)):
        lean = replace(person, regularization=share * find_ample_regularization(person, 0.5))
        assert (calibrate_spherical_term(lean, Budget(0.5)) <= 16.0 * (1 + 1e-12)) == shortest
