"""The audit of a choice of quantiles: it stands if it is sound, and what is wrong with it is caught."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from boltdp.audit.exact_loss import ExactLoss, compute_exact_loss
from boltdp.audit.neighbouring_tables import generate_pairs
from boltdp.audit.replay_on_neighbours import Replay, replay_pairs
from boltdp.audit.report import Report
from boltdp.audit.subject import make_subject
from boltdp.privacy import release_with_noise
from boltdp.privacy.events.label_quantiles import LabelQuantiles, find_exact_quantiles, score_bins
from boltdp.privacy.exact_noise import make_seeded_bytes
from boltdp.schema.schema import Categorical, Numeric, Schema
from boltdp.schema.target import Number
from boltdp.settings import Settings
from boltdp.workflows import target_range
from boltdp.workflows.plan_training import make_plan

SCHEMA = Schema(Number("cost", 0, 20_000), (Numeric("age", 0, 100), Categorical("sex", ("f", "m"))))
PERSONS = replace(SCHEMA, person_id="patient", max_rows_per_person=2)
SETTINGS = Settings(epsilon=1.0, algorithm="bolton", loss="robust", passes=1)


def run_audit(schema: Schema = SCHEMA) -> tuple[Replay, ExactLoss, list[str]]:
    """Return the replay on a few pairs, the exact loss of the choice, and what the report finds broken."""
    plan = make_plan(schema, 400, SETTINGS)
    subject = make_subject(plan.schema, plan.certificate)
    changed = 1 if schema.max_rows_per_person is None else 4 * schema.max_rows_per_person
    tables = list(islice(generate_pairs(subject.schema, subject.rows, seed=1, changed=changed), 8))
    replay = replay_pairs(subject, tables, lambda _: None)
    (claim,) = (one for one in subject.claims if isinstance(one.event, LabelQuantiles))
    exact = compute_exact_loss(claim, None, random=np.random.default_rng(1))
    assert exact is not None
    findings = Report(plan.certificate, subject, replay, (exact,), ()).findings
    return replay, exact, [f"{one.method}: {one.found}" for one in findings if one.broken]


@pytest.mark.parametrize("schema", [SCHEMA, PERSONS], ids=["rows", "persons"])
def test_a_sound_choice_stands_and_nearly_all_of_the_claim_is_found(schema: Schema) -> None:
    replay, exact, broken = run_audit(schema)
    assert broken == []
    assert (replay.leaks, replay.unstated, replay.choices[0].uneven) == (0, 0, 0)
    assert 0.9 <= replay.choices[0].ratio <= 1.0
    assert 0.99 < exact.epsilon / exact.claim.budget.epsilon <= 1.0 + 1e-6
    assert all(spent <= claimed + 1e-9 for _, claimed, spent in exact.curve)


def test_scores_that_change_by_more_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_with_noise, "score_bins", lambda counts, percentile: score_bins(2 * counts, percentile))
    _, exact, broken = run_audit()
    assert "replay: one row changes a score 1.8 times as much as the choice is for" in broken
    assert exact.broken


def test_half_the_noise_of_a_choice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(counts: Any, event: LabelQuantiles, randomness: Any) -> tuple[float, ...]:
        return release_with_noise.release_label_quantiles(counts, replace(event, epsilon=2 * event.epsilon), randomness)

    monkeypatch.setattr(target_range, "release_label_quantiles", release)
    replay, _, broken = run_audit()
    assert "replay: the choices of 8 of 8 trainings are not those that are stated" in broken
    assert replay.choices[0].ratio <= 1.0


def test_exact_quantiles_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(counts: Any, event: LabelQuantiles, _: object) -> tuple[float, ...]:
        return find_exact_quantiles(counts, event.percentiles)

    monkeypatch.setattr(target_range, "release_label_quantiles", release)
    assert "replay: the choices of 8 of 8 trainings are not those that are stated" in run_audit()[2]


def test_a_choice_with_a_fixed_seed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_with_noise, "system_bytes", lambda count: make_seeded_bytes(7)(count))
    replay, _, broken = run_audit()
    assert replay.reused_words > 2 * 4096
    assert broken


def test_a_choice_that_the_certificate_does_not_state_is_caught() -> None:
    plan = make_plan(replace(SCHEMA, target=Number("cost", 0, 20_000, typical=(100, 900))), 400, SETTINGS)
    subject = make_subject(plan.schema, plan.certificate)
    assert not any(isinstance(one.event, LabelQuantiles) for one in subject.claims)
    stated = make_plan(SCHEMA, 400, SETTINGS)
    hidden = replace(
        make_subject(stated.schema, stated.certificate), replayed_claims=subject.replayed_claims, claims=subject.claims
    )
    tables = list(islice(generate_pairs(hidden.schema, hidden.rows, seed=1), 2))
    assert replay_pairs(hidden, tables, lambda _: None).unstated >= 4
