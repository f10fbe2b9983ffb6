"""Noisy counts: no neighbour moves them further than is claimed, and less noise than is stated is caught."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from boltdp.errors import ParameterError
from boltdp.losses import Logistic
from boltdp.privacy.accounting.spent_budget import Release, bound_delta_of_charges
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, CertificateError, certify, fits_budget, verify
from boltdp.privacy.events.event import SEEDED, BudgetedEvent, Event, NoiselessTraining
from boltdp.privacy.events.noisy_counts import (
    NoisyCounts,
    NoisyHistograms,
    is_schema_draft,
    make_noisy_counts,
    make_noisy_histograms,
)
from boltdp.privacy.events.objective_perturbation import make_objective_perturbation
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release_with_noise import Randomness, release_counts, release_values
from boltdp.privacy.serialization import from_record, to_record
from boltdp.privacy.training_problem import Problem
from boltdp.schema.noisy_summary import PrivateCounts
from boltdp.schema.source_columns import ColumnType, Kind
from boltdp.workflows.draft_schema import plan_private_draft

BUDGETS = [Budget(epsilon, delta) for epsilon, delta in product((1e-6, 0.05, 1.0, 20.0), (1e-9, 0.01, 0.6))]
PROBLEM = Problem(loss=Logistic(), dims=9, rows=1000, regularization=0.01)


def less(event: NoisyCounts, part: float) -> NoisyCounts:
    return replace(event, noise=replace(event.noise, scale=part * event.noise.scale))


def one(budget: Budget, *, unknown: int = 0) -> NoisyCounts:
    return make_noisy_counts(budget, releases=1, unknown=unknown)


# ---- sensitivity: the code that counts, on neighbours -----------------------------------------------------------

numbers = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1.0, 100.0, 1e300])
words = st.none() | st.text(max_size=3) | st.sampled_from(["1", "1.0", "x", " ", "nan", "1e999", "-5", "0x1"])
vectors = st.none() | st.lists(numbers, max_size=3)
KINDS: dict[Kind, tuple[Any, pa.DataType]] = {
    "number": (numbers, pa.float64()),
    "text": (words, pa.string()),
    "untyped": (words, pa.string()),
    "list": (vectors, pa.list_(pa.float64())),
}


def counted(kind: Kind, cells: list[Any], budget: Budget, bounds: tuple[float, float]) -> list[Counter[Any]]:
    """What is counted of a column in the first scan, and in the second after the first gave these bounds."""
    plan = plan_private_draft({"x": ColumnType(kind), "y": ColumnType("bool")}, "y", budget)
    counts, array = PrivateCounts(plan.counted["x"], kind, plan.event), pa.array(cells, KINDS[kind][1])
    counts.add_cells(array)
    first: Counter[Any] = Counter({f"value {value!r}": count for value, count in counts.values.items()})
    first |= Counter({place: int(count) for place, count in enumerate(counts.wide.counts) if count})
    first["texts"] = counts.texts
    if kind == "text":
        return [first]
    counts.start_narrow_intervals(*bounds)
    counts.add_cells_to_narrow_intervals(array)
    assert counts.narrow is not None
    return [first, Counter({place: int(count) for place, count in enumerate(counts.narrow.counts) if count})]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_no_neighbour_moves_all_counts_by_more_than_the_sensitivity(kind: Kind, data: st.DataObject) -> None:
    cells = data.draw(st.lists(KINDS[kind][0], min_size=1, max_size=6))
    other = [data.draw(KINDS[kind][0]), *cells[1:]]
    bounds = data.draw(st.sampled_from([(0.0, 1.0), (-500.0, 2e6), (1e-6, 2e-6), (1000.0, 2000.0)]))
    budget = data.draw(st.sampled_from([Budget(1.0, 1e-6), Budget(1.0)] if kind != "text" else [Budget(1.0, 1e-6)]))
    event = one(Budget(1.0))
    for ours, theirs in zip(*(counted(kind, rows, budget, bounds) for rows in (cells, other)), strict=True):
        differences = [abs(ours[key] - theirs[key]) for key in ours | theirs]
        assert sum(differences) <= event.sensitivity
        assert max(differences, default=0) <= 1


# ---- the profile, against exact ones ----------------------------------------------------------------------------


def told(event: NoisyCounts) -> float:
    """The probability that the value of one row is told."""
    assert event.threshold is not None
    kind = stats.laplace if event.noise.kind == "spherical" else stats.norm
    return float(kind.sf(event.threshold - 1, scale=event.noise.scale))


@pytest.mark.parametrize("releases", [1, 40])
@pytest.mark.parametrize("budget", BUDGETS)
def test_what_is_planned_keeps_its_budget_and_a_tenth_less_noise_does_not(budget: Budget, releases: int) -> None:
    pure = Budget(budget.epsilon)
    assert fits_budget(make_noisy_counts(budget, releases=releases, unknown=releases), budget)
    for whole in (pure, budget):
        event = make_noisy_counts(whole, releases=releases)
        assert fits_budget(event, whole)
        # Laplace's noise needs no delta.
        needed = whole if event.noise.kind == "gaussian" else pure
        for part in (0.9, 0.5):
            assert not fits_budget(less(event, part), needed)


@pytest.mark.parametrize("releases", [1, 40])
@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(0.1, 1e-3), Budget(3.0, 1e-9)])
def test_half_the_noise_of_values_is_caught(budget: Budget, releases: int) -> None:
    assert not fits_budget(less(make_noisy_counts(budget, releases=releases, unknown=releases), 0.5), budget)


def test_normal_noise_is_taken_where_it_is_less() -> None:
    kinds = [make_noisy_counts(Budget(1.0, 1e-6), releases=releases).noise.kind for releases in (1, 40)]
    assert kinds == ["spherical", "gaussian"]
    assert make_noisy_counts(Budget(1.0), releases=40).noise.kind == "spherical"


@pytest.mark.parametrize("releases", [1, 40])
@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(0.1, 1e-3), Budget(3.0, 1e-9)])
def test_a_lower_threshold_does_not_keep_the_delta(budget: Budget, releases: int) -> None:
    event = make_noisy_counts(budget, releases=releases, unknown=releases)
    assert event.threshold is not None
    lower = replace(event, threshold=event.threshold - 2 - math.ceil(3 * event.noise.scale))
    assert not fits_budget(lower, budget)
    assert 2 * releases * told(event) <= event.delta(budget.epsilon) <= budget.delta
    assert told(event) > 0.1 * budget.delta / (4 * releases) * math.exp(-4 / event.noise.scale)


@pytest.mark.parametrize("kind", ["spherical", "gaussian"])
@pytest.mark.parametrize("scale", [0.3, 2.0, 40.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0, 1.5])
def test_the_profile_of_two_moved_counts_is_below_the_claim(kind: Any, scale: float, share: float) -> None:
    # What is seen on a grid is no more than what is seen.
    places = np.linspace(-30, 31, 611) * max(scale, 1)
    noise = stats.laplace if kind == "spherical" else stats.norm
    ours, theirs = (np.diff(noise.cdf(places, centre, scale)) for centre in (0, 1))
    both, other = (np.outer(first, second) for first, second in ((ours, theirs), (theirs, ours)))
    event = NoisyCounts(noise=Mechanism(kind, scale, 1), releases=1, unknown=0)
    epsilon = share * 2 / scale
    exact = np.maximum(both - math.exp(epsilon) * other, 0).sum()
    assert exact <= event.delta(epsilon) + 1e-9
    if kind == "gaussian":
        assert scale < 1 or exact > 0.9 * event.delta(epsilon) - 1e-6
    elif share != 1:
        assert (event.delta(epsilon) == 0) == (share > 1)


@pytest.mark.parametrize("kind", ["spherical", "gaussian"])
@pytest.mark.parametrize("scale", [2.0, 10.0])
@pytest.mark.parametrize("threshold", [3, 8, 30])
@pytest.mark.parametrize("share", [0.2, 0.8, 1.0, 3.0])
def test_the_profile_of_values_that_come_and_go_is_below_the_claim(
    kind: Any, scale: float, threshold: int, share: float
) -> None:
    event = NoisyCounts(noise=Mechanism(kind, scale, 1), releases=1, unknown=1, threshold=threshold)
    noise = stats.laplace if kind == "spherical" else stats.norm
    places = np.concatenate([[threshold], threshold + scale * np.linspace(0.1, 30, 300), [np.inf]])

    def seen(count: int) -> Any:
        """Nothing, or a number above the threshold, on a grid."""
        if not count:
            return np.append(1.0, np.zeros(len(places) - 1))
        return np.append(noise.cdf(threshold, count, scale), np.diff(noise.cdf(places, count, scale)))

    epsilon = share * 2 / scale
    for before, after_ in (((1, 0), (0, 1)), ((1, 5), (0, 6)), ((5, 0), (4, 1)), ((5, 5), (4, 6)), ((2, 1), (1, 2))):
        ours, theirs = (np.outer(*(seen(count) for count in counts)) for counts in (before, after_))
        for first, second in ((ours, theirs), (theirs, ours)):
            exact = np.maximum(first - math.exp(epsilon) * second, 0).sum()
            assert exact <= event.delta(epsilon) + 1e-12


@pytest.mark.parametrize(
    "event",
    [
        NoisyCounts(noise=Mechanism("spherical", 100.0, 1), releases=1, unknown=1, threshold=1),  # the row itself
        NoisyCounts(noise=Mechanism("gaussian", 2.0**45, 1), releases=1, unknown=1, threshold=5),  # a coarser grid
    ],
)
def test_a_threshold_that_the_proof_has_no_place_for_promises_nothing(event: NoisyCounts) -> None:
    assert event.delta(1e6) == 1.0


# ---- an attack on what is really drawn --------------------------------------------------------------------------

DRAWS = 4000


def proved_epsilon(event: NoisyCounts) -> float:
    """An epsilon that the release exceeds, at 99.9 %, by the likeliest event of the worst neighbours."""
    stream = Randomness(5).make_stream()

    def hits(*counts: int) -> int:
        drawn = np.array([release_counts(counts, event, stream) for _ in range(DRAWS)])
        return int(((drawn[:, 0] >= 7) & (drawn[:, 1] <= 0)).sum())

    ours, theirs = hits(7, 0), hits(6, 1)
    low = stats.beta.ppf(0.0005, ours, DRAWS - ours + 1)
    high = stats.beta.ppf(0.9995, theirs + 1, DRAWS - theirs)
    return float(np.log(low / high))


def test_an_attacker_proves_nearly_all_that_is_claimed_and_more_from_half_the_noise() -> None:
    event = one(Budget(1.0))
    assert 0.6 < proved_epsilon(event) <= 1.0
    assert proved_epsilon(less(event, 0.5)) > 1.3


def test_the_value_of_one_row_is_told_as_rarely_as_claimed() -> None:
    event = NoisyCounts(noise=Mechanism("spherical", 2.0, 1), releases=1, unknown=1, threshold=6)
    stream = Randomness(6).make_stream()
    often = sum("a" in release_values({"a": 1}, event, stream) for _ in range(DRAWS))
    assert stats.binomtest(often, DRAWS, told(event)).pvalue > 1e-4
    assert stats.binomtest(often, DRAWS, told(less(event, 0.5))).pvalue < 1e-4


# ---- release and record -----------------------------------------------------------------------------------------


def test_values_come_in_the_order_of_their_noisy_counts_and_not_of_the_rows() -> None:
    event = one(Budget(5.0, 1e-6), unknown=1)
    counts = {"b": 5000, "a": 9000, "d": 0, "c": 7000}
    assert [*release_values(counts, event, Randomness().make_stream())] == ["a", "c", "b"]


def test_a_value_that_no_row_has_is_never_told() -> None:
    event = NoisyCounts(noise=Mechanism("spherical", 100.0, 1), releases=1, unknown=1, threshold=1)
    assert release_values(dict.fromkeys(range(200), 0), event, Randomness().make_stream()) == {}


def test_values_need_a_threshold_and_a_delta() -> None:
    with pytest.raises(ParameterError, match="must have a threshold"):
        release_values({"a": 1}, one(Budget(1.0)), Randomness().make_stream())
    with pytest.raises(ParameterError, match=r"delta must be > 0 .*, got 0\.0"):
        one(Budget(1.0), unknown=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": Mechanism("spherical", 1.0, 2)},
        {"releases": 0},
        {"unknown": -1},
        {"unknown": 3},
        {"threshold": None},
        {"threshold": 0},
        {"unknown": 0},
    ],
)
def test_what_is_no_such_event_is_refused(wrong: dict[str, Any]) -> None:
    right = make_noisy_counts(Budget(1.0, 1e-6), releases=2, unknown=1)
    with pytest.raises(ParameterError):
        replace(right, **wrong)


@pytest.mark.parametrize("event", [one(Budget(0.3)), one(Budget(0.3, 1e-6), unknown=1)])
def test_the_record_gives_the_event_back(event: NoisyCounts) -> None:
    assert from_record(Event, json.loads(json.dumps(to_record(event)))) == event  # type: ignore[type-abstract]
    assert is_schema_draft(event)
    assert not is_schema_draft(NoiselessTraining(PROBLEM))


def test_a_certificate_states_the_draft_before_the_training_and_recomputes_both() -> None:
    draft = BudgetedEvent(Budget(0.5, 1e-7), one(Budget(0.5, 1e-7), unknown=1))
    training = make_objective_perturbation(PROBLEM, Budget(1.0))
    assert certify(training, Budget(1.0)).draft is None
    certificate = certify(training, Budget(1.5, 1e-7), draft=draft)
    assert (certificate.private, certificate.draft, certificate.training) == (True, draft, training)
    verify(certificate)
    assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate
    assert not certify(training, Budget(1.4, 1e-7), draft=draft).private
    quieter = BudgetedEvent(draft.budget, less(one(Budget(0.5, 1e-7), unknown=1), 0.5))
    with pytest.raises(CertificateError, match="follows from its events"):
        verify(certify(training, Budget(1.5, 1e-7), draft=quieter))


def test_a_seed_of_the_training_still_spoils_the_whole() -> None:
    draft = BudgetedEvent(Budget(0.5), one(Budget(0.5)))
    certificate = certify(make_objective_perturbation(PROBLEM, Budget(1.0)), Budget(1.5), draft=draft, seeded=True)
    assert certificate.reasons == (SEEDED,)
    assert certificate.seeded
    verify(certificate)


# ---- counts that will be summed, and their composition -----------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
def test_counts_that_are_summed_have_the_smaller_deviation_and_keep_the_budget(budget: Budget) -> None:
    summed, plain = (make_noisy_counts(budget, releases=1, summed=summed) for summed in (True, False))
    assert fits_budget(summed, budget)
    assert summed.noise.deviation <= plain.noise.deviation
    assert not fits_budget(less(summed, 0.5), Budget(budget.epsilon) if summed.noise.kind == "spherical" else budget)


def test_normal_noise_composes_by_its_distance_and_what_tells_values_does_not() -> None:
    budget = Budget(1.0, 1e-6)
    normal = NoisyCounts(noise=Mechanism("gaussian", 10.0, 1), releases=1, unknown=0)
    assert normal.mu == pytest.approx(math.sqrt(2) / 10)
    twice = Release(budget, normal)
    assert bound_delta_of_charges([twice, twice], budget) == pytest.approx(
        NoisyCounts(noise=normal.noise, releases=2, unknown=0).delta(1.0), rel=1e-9
    )
    assert one(Budget(1.0)).mu is None
    assert make_noisy_counts(budget, releases=40, unknown=1).mu is None


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("persons", [None, 3])
def test_histograms_of_columns_spend_their_budget(gaussian: bool, persons: int | None) -> None:
    """One row moves two counts of each column: k columns have twice the L1- and the square root of the L2-distance."""
    budget = Budget(0.5, 1e-6)
    event = make_noisy_histograms(budget, columns=7, gaussian=gaussian, person_rows=persons)
    rows = persons or 1
    assert event.sensitivity == pytest.approx(rows * (14**0.5 if gaussian else 14))
    assert event.delta(0.5) <= (1e-6 if gaussian else 0.0)
    assert event.delta(0.49) > (1e-6 if gaussian else 0.0)
    assert (event.mu is not None) == gaussian
    assert event.mean_deviation == pytest.approx(8 * event.noise.deviation)
    assert "histograms of 7 columns" in event.describe()
    assert from_record(Event, to_record(event)) == event  # type: ignore[type-abstract]
    assert not is_schema_draft(event)


def test_histograms_tell_no_private_values() -> None:
    noise = Mechanism("spherical", 1.0, 1)
    with pytest.raises(ParameterError, match="public bins only"):
        NoisyHistograms(noise=noise, releases=2, unknown=1, threshold=9)
