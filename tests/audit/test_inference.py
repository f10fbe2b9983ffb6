"""The audit of a training for inference: each of its releases is found, nearly at what is claimed, and faults too."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from boltdp._array_types import Doubles
from boltdp.audit import worst_neighbours
from boltdp.audit.exact_loss import compute_exact_loss
from boltdp.audit.subject import Claim, Subject
from boltdp.audit.worst_neighbours import shrink_training
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.losses import Logistic
from boltdp.privacy import release_with_noise
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import verify
from boltdp.privacy.events.event import Composition, NoiselessTraining
from boltdp.privacy.events.noisy_matrix import NoisyMatrix, flatten_matrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import (
    ObjectivePerturbation,
    find_ample_regularization,
    make_objective_perturbation,
)
from boltdp.privacy.mechanisms import Mechanism, calibrate_unit_gaussian
from boltdp.privacy.release_with_noise import RandomBytes
from boltdp.privacy.training_problem import Problem
from boltdp.schema.schema import Categorical, Numeric, Schema, Standardization
from boltdp.schema.target import Number
from boltdp.settings import Settings
from boltdp.workflows import inference
from tests.audit.test_audit import COLUMNS, SCHEMA, audited, faults, of_persons, replay_of

PURE = Settings(epsilon=1.0, inference=True)
DELTA = Settings(epsilon=1.0, delta=1e-6, inference=True, robust_errors=True)
NUMBER = replace(SCHEMA, target=Number("cost", 0, 100))
#: A reference leaves one feature of the category.
REFERRED = replace(SCHEMA, columns=(*COLUMNS[:2], Categorical("sex", ("f", "m"), "f")))
DECLARED = replace(REFERRED, standardization=Standardization((0.0,) * 3, (0.5,) * 3, 2.0, 0.5))
CASES: dict[str, tuple[Settings, Schema]] = {
    "pure": (PURE, SCHEMA),
    "delta, robust": (DELTA, SCHEMA),
    "number": (DELTA, NUMBER),
    "persons": (DELTA, of_persons(SCHEMA, 3)),
    "declared": (PURE, DECLARED),
}


def matrices_of(made: Subject) -> tuple[NoisyMatrix, ...]:
    return made.certificate.matrices


@pytest.mark.parametrize("name", CASES)
def test_a_sound_inference_stands_a_replay(name: str) -> None:
    settings, schema = CASES[name]
    made = audited(settings, schema)
    found = replay_of(made, changed=schema.max_rows_per_person or 1)
    assert (found.leaks, found.unstated, found.unsolved, found.reused_words) == (0, 0, 0, 0)
    assert faults(found) == []
    by_name = {one.release.claim.name: one for one in found.releases if one.release.name == "matrix"}
    assert {f"noisy matrix: {event.matrix}" for event in matrices_of(made)} == set(by_name)
    assert all(0.05 < one.ratio <= 1 + 1e-9 for one in by_name.values())


@pytest.mark.parametrize("name", [name for name in CASES if name != "declared"])
def test_nearly_all_that_a_matrix_claims_is_found(name: str) -> None:
    settings, schema = CASES[name]
    made = audited(settings, schema, rows=100_000)
    claims = [claim for claim in made.claims if isinstance(claim.event, NoisyMatrix)]
    assert claims
    for claim in claims:
        found = compute_exact_loss(claim, None, random=np.random.default_rng(1))
        assert found is not None
        assert not found.broken
        assert 0.99 * claim.budget.epsilon < found.epsilon <= claim.budget.epsilon


def test_less_noise_than_a_matrix_needs_is_caught_on_the_worst_rows() -> None:
    for settings in (PURE, DELTA):
        for claim in audited(settings, rows=100_000).claims:
            if isinstance(claim.event, NoisyMatrix):
                noise = claim.event.noise
                assert noise is not None
                weak = replace(claim.event, noise=replace(noise, scale=0.98 * noise.scale))
                found = compute_exact_loss(replace(claim, event=weak), None, random=np.random.default_rng(1))
                assert found is not None
                assert found.broken
                noiseless = replace(claim, event=replace(claim.event, noise=None))
                assert compute_exact_loss(noiseless, None, random=np.random.default_rng(1)) is None


def change_noise(monkeypatch: pytest.MonkeyPatch, change: Callable[[Mechanism], Mechanism], dimensions: int) -> None:
    """Change the noise of all vectors of this many dimensions where it is drawn."""
    honest = release_with_noise.__dict__["add_noise"]

    def draw(mechanism: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Doubles:
        drawn: Doubles = honest(
            change(mechanism) if mechanism.dimensions == dimensions else mechanism, vector, random_bytes
        )
        return drawn

    monkeypatch.setattr(release_with_noise, "add_noise", draw)


@pytest.mark.parametrize("settings", [PURE, DELTA], ids=["pure", "delta"])
def test_half_the_noise_of_a_matrix_is_caught(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    made = audited(settings)
    change_noise(monkeypatch, lambda one: replace(one, scale=one.scale / 2), matrices_of(made)[0].dimensions)
    assert "the noise is not as" in " ".join(faults(replay_of(made, count=48)))


def test_half_the_sensitivity_of_a_matrix_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = NoisyMatrix.__dict__["max_row_norm"].fget
    monkeypatch.setattr(NoisyMatrix, "max_row_norm", property(lambda event: honest(event) / 2))
    made = audited(DELTA)
    claims = [claim for claim in made.claims if isinstance(claim.event, NoisyMatrix)]
    for claim in claims:
        found = compute_exact_loss(claim, None, random=np.random.default_rng(1))
        assert found is not None
        assert found.broken
    assert any("times as far" in fault for fault in faults(replay_of(made)))


def test_rows_that_are_neither_shortened_nor_downweighted_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrices of rows whose features are twice as large as those that the training was given."""

    class Longer(DerivativeSums):
        @property
        def value(self) -> Doubles:
            return super().value * 4.0

    made = audited(PURE)
    monkeypatch.setattr(inference, "DerivativeSums", Longer)
    found = replay_of(made, count=8)
    assert any("times as far" in fault for fault in faults(found))


def test_a_matrix_that_is_released_without_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    made = audited(PURE)

    def leak(matrix: Doubles, *_: Any) -> Doubles:
        return np.asarray(flatten_matrix(matrix))

    monkeypatch.setattr(inference, "release_matrix", leak)
    found = replay_of(made, count=8)
    assert found.leaks
    assert any("noise was drawn 0 times" in fault for fault in faults(found))


def test_a_large_training_is_replayed_with_matrices_of_the_small_one() -> None:
    """Of as many features and rows as the training, with the same mu; the certificate would be refused otherwise."""
    many = (*COLUMNS[:2], *(Numeric(f"x{number}", 0, 1) for number in range(150)), Categorical("z", tuple("abcdefgh")))
    for settings in (PURE, DELTA):
        made = audited(settings, replace(SCHEMA, columns=many), rows=50_000)
        assert made.rows == 2000
        spent = made.certificate.parts
        assert isinstance(spent[-1].event, ObjectivePerturbation)
        for event in matrices_of(made):
            assert event.problem == made.certificate.problem
            assert event.problem.dims <= 100
        verify(made.certificate)
        whole = {one.event.matrix: one.event for one in made.claims if isinstance(one.event, NoisyMatrix)}
        for event in matrices_of(made):
            if event.mu is not None:
                assert event.mu == pytest.approx(whole[event.matrix].mu, rel=1e-6)
        references = [column for column in made.schema.columns if isinstance(column, Categorical)]
        assert all(column.reference in column.categories for column in references)


def test_what_is_composed_with_a_training_is_part_of_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments that the same row moves; and a training whose noise was planned as if there were none."""
    budget = Budget(1.0, 1e-6)
    problem = Problem(loss=Logistic(), dims=2, rows=60_000, regularization=1.0, downweighted=True)
    problem = replace(problem, regularization=8.0 * find_ample_regularization(problem, 1.0))
    moments = NoisyMoments(moments="squares", features=2, numbers=2, clip_norm=1.0)
    mu = math.sqrt(0.6) / calibrate_unit_gaussian(budget)
    moments = replace(moments, noise=Mechanism("gaussian", moments.sensitivity / mu, 4))
    training = make_objective_perturbation(problem, budget, other_mu=mu)
    claim = Claim(training, budget, other_events=(moments,))
    found = compute_exact_loss(claim, None, random=np.random.default_rng(1))
    assert found is not None
    assert not found.broken
    assert 0.8 * budget.epsilon < found.epsilon

    def forget_moments(problem: Problem, budget: Budget, *, other_mu: float) -> ObjectivePerturbation:
        return make_objective_perturbation(problem, budget, other_mu=other_mu / 1000)

    monkeypatch.setattr(worst_neighbours, "make_objective_perturbation", forget_moments)
    found = compute_exact_loss(claim, None, random=np.random.default_rng(1))
    assert found is not None
    assert found.broken


def test_a_training_that_shares_its_budget_is_audited_with_its_own_noise() -> None:
    """Not with the smaller noise that it would have, were the budget its own."""
    columns = tuple(Numeric(f"x{number}", 0, 1) for number in range(30))
    for target, others in ((SCHEMA.target, 4), (NUMBER.target, 2)):
        made = audited(DELTA, Schema(target, columns), rows=60_000)
        (claim,) = (one for one in made.claims if isinstance(one.event, ObjectivePerturbation))
        assert len(claim.other_events) == others
        assert claim.name == "objective perturbation and all that is composed with it"
        event = claim.event
        assert isinstance(event, ObjectivePerturbation)
        small = shrink_training(event, claim.budget, rows=event.problem.rows, other_mu=claim.other_mu)
        assert small.linear.kind == "gaussian"
        assert small.linear.scale == pytest.approx(event.linear.scale, rel=1e-6)
        assert claim.compute_delta(event, claim.budget.epsilon) <= claim.budget.delta
        found = compute_exact_loss(claim, None, random=np.random.default_rng(1))
        assert found is not None
        assert not found.broken
        assert found.epsilon > 0.55 * claim.budget.epsilon


def test_what_has_no_noise_is_not_audited() -> None:
    from boltdp.errors import ParameterError
    from boltdp.workflows.plan_training import make_plan

    plan = make_plan(SCHEMA, 500, Settings(epsilon=None, inference=True))
    assert isinstance(plan.certificate.spent, Composition)
    assert isinstance(plan.certificate.training, NoiselessTraining)
    with pytest.raises(ParameterError, match="must claim an epsilon"):
        audited(Settings(epsilon=None, inference=True))
