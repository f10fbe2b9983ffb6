"""Costs in zCDP: against exact profiles, exact moments, and releases that are chosen by what was seen."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.losses import Logistic
from boltdp.privacy.accounting.zcdp import Zcdp, add_zcdp, measure_zcdp
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import (
    SEEDED,
    BudgetedEvent,
    Composition,
    Event,
    NoiselessTraining,
    SelfComposition,
    mark_non_private,
)
from boltdp.privacy.events.noisy_counts import make_noisy_counts
from boltdp.privacy.events.objective_perturbation import make_objective_perturbation
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.training_problem import Problem

PROBLEM = Problem(loss=Logistic(), dims=9, rows=1000, regularization=1.0)


def pure(epsilon: float) -> Event:
    return make_objective_perturbation(PROBLEM, Budget(epsilon))


@given(st.floats(0.01, 3.0), st.floats(0.05, 10.0))
def test_delta_is_above_that_of_the_gaussian_with_this_rho(mu: float, epsilon: float) -> None:
    exact = Mechanism("gaussian", 1.0, 1).delta(epsilon, sensitivity=mu)
    assert Zcdp(mu * mu / 2).compute_delta(epsilon) >= exact


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.5), (0.3, 1.5), (1.0, 5.0)])
def test_delta_is_near_that_of_the_gaussian(mu: float, epsilon: float) -> None:
    """In epsilon: the same delta is exact at an epsilon that is at most a tenth smaller."""
    exact = Mechanism("gaussian", 1.0, 1).delta(0.9 * epsilon, sensitivity=mu)
    assert Zcdp(mu * mu / 2).compute_delta(epsilon) <= exact


@given(st.floats(0.01, 4.0), st.floats(1.001, 60.0))
def test_moments_of_randomised_response_are_within_the_cost_of_a_pure_release(epsilon: float, order: float) -> None:
    """The worst pair of (epsilon, 0)-privacy has the ratios e^epsilon and e^-epsilon."""
    likely = 1.0 / (1.0 + math.exp(-epsilon))
    logs = [
        order * math.log(p) + (1.0 - order) * math.log(q) for p, q in ((likely, 1.0 - likely), (1.0 - likely, likely))
    ]
    moment = max(logs) + math.log(math.fsum(math.exp(one - max(logs)) for one in logs))
    cost = measure_zcdp(pure(epsilon), Budget(epsilon))
    assert moment <= order * (order - 1.0) * cost.rho * (1.0 + 1e-9)
    assert cost.delta == 0.0


def test_costs_of_parts_are_added() -> None:
    part = BudgetedEvent(Budget(0.5), pure(0.5))
    once = measure_zcdp(pure(0.5), Budget(0.5))
    for event in (Composition((part, part, part)), SelfComposition(part, 3)):
        assert measure_zcdp(event, Budget(1.5)).rho == pytest.approx(3 * once.rho)
    assert astuple(add_zcdp([Zcdp(0.5, 1e-9), Zcdp(0.25)])) == pytest.approx((0.75, 1e-9))
    assert add_zcdp([]).compute_delta(1.0) == 0.0


def test_what_has_no_cost_of_its_own_costs_what_it_claims() -> None:
    lost = Composition((BudgetedEvent(None, NoiselessTraining(PROBLEM)),))
    assert astuple(measure_zcdp(lost, Budget(1.0))) == pytest.approx((0.5, 1.0))
    assert measure_zcdp(lost, Budget(1.0)).compute_delta(5.0) == 1.0


def test_the_cost_of_a_seeded_release_counts() -> None:
    assert measure_zcdp(mark_non_private(pure(0.5), (SEEDED,)), Budget(0.5)) == measure_zcdp(pure(0.5), Budget(0.5))


def test_an_analyst_who_chooses_by_what_was_seen_stays_within_the_guarantee() -> None:
    """Randomised responses whose epsilons depend on the answers before; all transcripts are counted.

    A tree of three answers. The analyst spends what is left of rho in one go after a surprising answer, and in small
    steps after others.
    """
    budget_rho, steps = 0.5, (0.3, 0.3)

    def walk(rho: float, p: float, q: float, depth: int) -> list[tuple[float, float]]:
        left = math.sqrt(max(0.0, 2.0 * (budget_rho - rho)))
        surprised = depth and p > q
        epsilon = left if surprised or depth >= len(steps) else min(steps[depth], left)
        if epsilon < 1e-6 or depth > len(steps):
            return [(p, q)]
        likely = 1.0 / (1.0 + math.exp(-epsilon))
        spent = rho + epsilon**2 / 2.0
        return [
            *walk(spent, p * likely, q * (1.0 - likely), depth + 1),
            *walk(spent, p * (1.0 - likely), q * likely, depth + 1),
        ]

    transcripts = walk(0.0, 1.0, 1.0, 0)
    assert math.fsum(p for p, _ in transcripts) == pytest.approx(1.0)
    for epsilon in (0.25, 0.5, 0.75, 1.0, 1.5):
        exact = math.fsum(max(0.0, p - math.exp(epsilon) * q) for p, q in transcripts)
        assert exact <= Zcdp(budget_rho).compute_delta(epsilon)


def test_gaussian_parts_count_by_their_mu() -> None:
    counts = make_noisy_counts(Budget(1.0, 1e-6), releases=20, summed=True)
    assert counts.mu is not None
    cost = measure_zcdp(counts, Budget(1.0, 1e-6))
    assert astuple(cost) == pytest.approx((counts.mu**2 / 2, 0.0))
    assert cost.rho < 0.1
