"""The choice of quantiles: exact probabilities on all small neighbours and the worst ones, its cost, and its draws."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import chisquare

from boltdp._array_types import Doubles, Integers
from boltdp.errors import ParameterError
from boltdp.losses import Logistic
from boltdp.privacy import release_with_noise
from boltdp.privacy.accounting.spent_budget import bound_delta_of_charges
from boltdp.privacy.accounting.zcdp import measure_zcdp
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, CertificateError, certify, verify
from boltdp.privacy.events.event import BudgetedEvent, Composition
from boltdp.privacy.events.label_quantiles import (
    LabelQuantiles,
    compute_bin_end,
    find_exact_quantiles,
    make_label_quantiles,
    score_bins,
)
from boltdp.privacy.events.noisy_counts import make_noisy_unusable_label_count
from boltdp.privacy.events.objective_perturbation import make_objective_perturbation
from boltdp.privacy.exact_noise import make_seeded_bytes
from boltdp.privacy.release_with_noise import Randomness, choose_by_errors, release_label_quantiles
from boltdp.privacy.training_problem import Problem

BINS, PERCENTILES = 8, (10, 90)
MISSING = BINS  #: the place of a label that is in no bin
EVENT = make_label_quantiles(Budget(1.0), bins=BINS, percentiles=PERCENTILES)


def make_heaps(heaps: dict[int, int]) -> Integers:
    counts = np.zeros(256, np.int64)
    for place, count in heaps.items():
        counts[place] = count
    return counts


#: Labels of which one that goes from the first bin to the last, or several, is the worst for both percentiles at once:
#: many bins just below each of them are as good as its own, and then are not, and bins above it get better.
WORST = make_heaps({0: 1000, 100: 8000, 200: 500, 255: 500})
WIDE = replace(EVENT, bins=len(WORST))


def list_log_probabilities(counts: Integers, event: LabelQuantiles) -> list[Doubles]:
    """Return the logarithms of the probabilities of all edges, for each choice that a release makes."""
    found = []

    def observe(errors: list[int], *, epsilon: float, changes: int, **_: object) -> int:
        exponents = -epsilon * np.array(errors, float) / (2 * changes)
        found.append(exponents - logsumexp(exponents))
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_with_noise, "choose_by_errors", observe)
        release_label_quantiles(counts, event, Randomness(1))
    return found


def compute_largest_loss(one: Integers, other: Integers, event: LabelQuantiles) -> float:
    """Return the largest privacy loss of all choices together, which are independent, in either direction."""
    pairs = zip(list_log_probabilities(one, event), list_log_probabilities(other, event), strict=True)
    ratios = [p - q for p, q in pairs]
    return max(math.fsum(float((sign * ratio).max()) for ratio in ratios) for sign in (1, -1))


def move(counts: Integers, *, rows: int = 1) -> Integers:
    moved = counts.copy()
    moved[[0, -1]] += [-rows, rows]
    return moved


def list_small_neighbours(rows: int, changed: int) -> Iterator[tuple[Integers, Integers]]:
    """Yield all pairs of histograms of a few rows, labels being missing or not, that differ in the changed ones."""
    for kept in combinations_with_replacement((0, 3, 7, MISSING), rows - changed):
        for pair in combinations(combinations_with_replacement((0, 2, 4, 7, MISSING), changed), 2):
            first, second = (np.bincount((*kept, *new), minlength=BINS + 1)[:BINS] for new in pair)
            yield first, second


@pytest.mark.parametrize(("rows", "person_rows"), [(4, None), (5, 2)])
def test_no_small_neighbours_have_a_larger_loss_than_epsilon(rows: int, person_rows: int | None) -> None:
    event = replace(EVENT, person_rows=person_rows)
    pairs = list_small_neighbours(rows, person_rows or 1)
    losses = [compute_largest_loss(*pair, event) for pair in pairs]
    assert 0.3 < max(losses) <= 1.0 + 1e-9


@pytest.mark.parametrize("person_rows", [None, 1, 3])
def test_the_worst_neighbours_have_the_loss_that_is_claimed(person_rows: int | None) -> None:
    rows, event = person_rows or 1, replace(WIDE, person_rows=person_rows)
    assert 0.97 < compute_largest_loss(WORST, move(WORST, rows=rows), event) <= 1.0 + 1e-9
    assert compute_largest_loss(WORST, move(WORST, rows=rows + 1), event) > 1.2  # one row more than are protected
    assert compute_largest_loss(WORST, move(WORST, rows=rows), replace(event, epsilon=1.0)) > 1.9  # half the noise


def test_a_label_that_is_missing_in_one_of_them_is_within_the_claim() -> None:
    """It is neither below an edge nor above it, so that less changes than by a label that moves."""
    for place in range(0, len(WORST), 15):
        more = WORST.copy()
        more[place] += 1
        for one, other in ((WORST, more), (more, WORST)):
            assert 0.02 < compute_largest_loss(one, other, WIDE) <= 0.95
    nothing, alone = np.zeros(BINS, int), np.eye(BINS, dtype=int)[0]
    assert compute_largest_loss(nothing, alone, EVENT) <= 1.0


@given(st.lists(st.integers(0, 2000), min_size=BINS, max_size=BINS), st.integers(0, BINS), st.integers(0, BINS))
def test_scores_change_by_at_most_a_row(counts: list[int], first: int, second: int) -> None:
    one, other = (np.bincount([place], minlength=BINS + 1)[:BINS] + np.array(counts) for place in (first, second))
    for percentile in (1, 10, 50, 90, 99):
        changes = np.abs(np.subtract(score_bins(one, percentile), score_bins(other, percentile)))
        assert changes.max() <= EVENT.sensitivity


def test_the_score_is_the_distance_from_the_percentile_in_hundredths_of_rows() -> None:
    assert score_bins(np.array([10, 0, 80, 10]), 10) == [0, 0, 0, 8000]
    assert score_bins(np.array([0, 0, 30, 70]), 10) == [1000, 1000, 0, 2000]  # a heap has one bin
    assert score_bins(np.zeros(2, int), 10) == [0, 0]
    huge = np.array([2**61, 2**61])  # beyond what 100 times fits in 64 bits
    assert score_bins(huge, 90) == [40 * 2**62, 0]


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 0.7, 0.99, 1.0, 2.0])
def test_the_profile_is_above_that_of_the_worst_neighbours(epsilon: float) -> None:
    for one, other in ((WORST, move(WORST)), (move(WORST), WORST)):
        p, q = (np.add.outer(*list_log_probabilities(counts, WIDE)) for counts in (one, other))
        exact = float(np.maximum(np.exp(p) - np.exp(epsilon + q), 0.0).sum())
        assert exact <= EVENT.delta(epsilon) <= 1 - math.exp(min(epsilon - 1.0, 0.0))
    assert (EVENT.delta(epsilon) == 0.0) == (epsilon >= 1.0)


def test_the_epsilons_of_three_choices_are_added_exactly() -> None:
    event = make_label_quantiles(Budget(0.7, 1e-6), bins=BINS, percentiles=(25, 50, 75))
    assert event.delta(0.7) == 0.0
    assert 0.0 < event.delta(math.nextafter(3 * event.epsilon, 0.0) * (1 - 1e-12)) < 1e-11


@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 8.0, 40.0])
def test_renyi_divergences_are_within_the_cost_in_zcdp_and_reach_it(order: float) -> None:
    """Nearly: half of the probability is on bins that get better, and half on those that get worse."""
    even = make_heaps({0: 500, 128: 1, 255: 499})
    event, reached = make_label_quantiles(Budget(0.02), bins=len(even), percentiles=(50,)), 0.0
    cost = measure_zcdp(event, Budget(0.02))
    assert 0.02**2 / 8 <= cost.rho <= (1 + 1e-12) * 0.02**2 / 8
    assert cost.delta == 0.0
    for counts in (even, WORST, make_heaps({3: 1, 4: 1})):
        for one, other in ((counts, move(counts)), (move(counts), counts)):
            if min(one.min(), other.min()) >= 0:
                (p,), (q,) = (list_log_probabilities(each, event) for each in (one, other))
                divergence = logsumexp(order * p + (1 - order) * q) / (order - 1)
                reached = max(reached, divergence / (order * cost.rho))
    assert 0.5 < reached <= 1.0


def test_bins_are_drawn_with_these_probabilities() -> None:
    draws, counts, event = 3000, np.array([3, 0, 1, 8, 0, 0, 2, 1]), replace(EVENT, person_rows=2)
    seen = [Counter[float]() for _ in PERCENTILES]
    for seed in range(draws):
        for counter, end in zip(seen, release_label_quantiles(counts, event, Randomness(seed)), strict=True):
            counter[end] += 1
    for counter, percentile, logs in zip(seen, PERCENTILES, list_log_probabilities(counts, event), strict=True):
        found = [counter[compute_bin_end(number, percentile, bins=BINS)] for number in range(BINS)]
        assert sum(found) == draws
        assert chisquare(found, draws * np.exp(logs)).pvalue > 1e-3


def test_errors_are_divided_by_what_they_change() -> None:
    one, other = (
        [
            choose_by_errors([e * c for e in (0, 1, 2, 3)], epsilon=1.0, random_bytes=make_seeded_bytes(s), changes=c)
            for s in range(50)
        ]
        for c in (1, 700)
    )
    assert one == other
    assert len(set(one)) > 2


def test_with_many_labels_the_choice_is_near_the_quantiles() -> None:
    labels = np.random.default_rng(1).uniform(-1, 1, 100_000)
    counts = np.histogram(labels, 4096, (-1, 1))[0]
    event = make_label_quantiles(Budget(0.1), bins=4096, percentiles=PERCENTILES)
    assert [*release_label_quantiles(counts, event, Randomness(5))] == pytest.approx([-0.8, 0.8], abs=0.01)
    assert [*find_exact_quantiles(counts, PERCENTILES)] == pytest.approx([-0.8, 0.8], abs=0.01)
    assert find_exact_quantiles(np.array([7, 0]), PERCENTILES) == (-1.0, 0.0)


def test_a_heap_at_the_end_of_the_labels_is_found() -> None:
    """Nearly a third of the labels are 0 and none is below; the bounds are far wider."""
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(20_000) < 0.3, 0.0, np.minimum(rng.lognormal(3, 1, 20_000), 1000) / 1000)
    counts = np.histogram(labels, 4096, (-1, 1))[0]
    low, high = find_exact_quantiles(counts, PERCENTILES)
    assert low == 0.0
    assert high == pytest.approx(float(np.quantile(labels, 0.9)), abs=2 / 4096)
    event = make_label_quantiles(Budget(0.2), bins=4096, percentiles=PERCENTILES)
    for seed in range(10):
        assert release_label_quantiles(counts, event, Randomness(seed)) == pytest.approx((low, high), abs=0.01)


def make_certificate(budget: Budget, share: float, *, labels: bool = False) -> Certificate:
    """Return the certificate of a training after a choice with this share, and a count of labels with as much."""
    taken, problem = Budget(share), Problem(loss=Logistic(), dims=4, rows=5000, regularization=0.5)
    left = budget.subtract(taken).subtract(taken) if labels else budget.subtract(taken)
    chosen = BudgetedEvent(taken, make_label_quantiles(taken, bins=4096, percentiles=PERCENTILES))
    counted = BudgetedEvent(taken, make_noisy_unusable_label_count(taken)) if labels else None
    return certify(make_objective_perturbation(problem, left), budget, labels=counted, target=chosen)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("budget", [Budget(0.5), Budget(0.5, 1e-6)])
def test_a_certificate_has_the_choice_and_is_verified(budget: Budget, labels: bool) -> None:
    certificate = make_certificate(budget, 0.05, labels=labels)
    assert certificate.private
    assert certificate.label_quantiles == make_label_quantiles(Budget(0.05), bins=4096, percentiles=PERCENTILES)
    assert certificate.label_quantiles.describe() == (
        "the 10% and 90% quantiles of the target are chosen among 4,096 bins"
    )
    record = json.loads(json.dumps(certificate.to_dict()))
    again = Certificate.from_dict(record)
    assert again == certificate
    verify(again)
    chosen = certificate.parts[0 if not labels else 2].event
    assert isinstance(chosen, LabelQuantiles)
    with pytest.raises(CertificateError, match=r"^the certificate claims|^the certificate says that a part spends"):
        verify(replace(certificate, spent=_replace_choice(certificate.spent, replace(chosen, epsilon=0.1))))


def _replace_choice(event: object, chosen: LabelQuantiles) -> Composition:
    assert isinstance(event, Composition)
    first, second = event.parts
    if isinstance(first.event, LabelQuantiles):
        return Composition((replace(first, event=chosen), second))
    return Composition((first, replace(second, event=_replace_choice(second.event, chosen))))


def test_the_parts_of_a_training_are_composed_as_three_releases() -> None:
    """By profiles: together they cost less than one release of which only the sum of epsilons is known."""
    whole, one = Budget(1.5, 1e-5), make_certificate(Budget(0.5, 1e-9), 0.05, labels=True)
    free = Composition((BudgetedEvent(Budget(0.5, 1e-9), one.spent),) * 8)
    charges = [one] * 8
    alone = [certify(one.training, Budget(0.4, 1e-9))] * 8
    assert bound_delta_of_charges(alone, whole) < bound_delta_of_charges(charges, whole) < free.delta(1.5)
    costs = measure_zcdp(one.spent, Budget(0.5, 1e-9))
    assert costs.rho == pytest.approx(0.05**2 / 16 + 0.05**2 / 2 + measure_zcdp(one.training, Budget(0.4, 1e-9)).rho)


def test_misuse_is_refused() -> None:
    for percentiles in ((), (0, 90), (10, 100)):
        with pytest.raises(ParameterError, match="percentiles must be from 1 to 99"):
            replace(EVENT, percentiles=percentiles)
    for changes in ({"bins": 1}, {"epsilon": 0.0}, {"person_rows": 0}):
        with pytest.raises(ParameterError, match="must be"):
            replace(EVENT, **changes)
    with pytest.raises(ParameterError, match=r"counts must be of 8 bins, got shape \(4,\)"):
        release_label_quantiles(np.zeros(4, np.int64), EVENT, Randomness(1))
