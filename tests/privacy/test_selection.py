"""The choice among candidates: its distributions, its accounting, and attacks on both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, chisquare

from boltdp.errors import ParameterError
from boltdp.privacy.certificate import Certificate, CertificateError, certify, verify
from boltdp.privacy.losses import Logistic
from boltdp.privacy.noise import Budget, seeded_bytes
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.schedules import constant
from boltdp.privacy.selection import (
    Portions,
    PublicRows,
    Selection,
    Trials,
    choose,
    noisy_count,
    read_selection,
    selection_record,
)


def proven_epsilon(hits: int, others: int, runs: int) -> float:
    """The epsilon that an event of `hits` against `others` in `runs` proves to be exceeded, at 99.9% confidence."""
    tail = 0.0005
    low = beta.ppf(tail, hits, runs - hits + 1) if hits else 0.0
    high = beta.ppf(1 - tail, others + 1, runs - others) if others < runs else 1.0
    return math.log(low / high) if low > 0 else -math.inf


def test_choices_have_the_probabilities_of_the_exponential_mechanism() -> None:
    errors, epsilon, draws = [3, 0, 1, 8], 1.0, 4000
    bits = seeded_bytes(1)
    seen = Counter(choose(errors, epsilon=epsilon, random_bytes=bits) for _ in range(draws))
    weights = np.exp(-epsilon * np.array(errors) / 2)
    assert chisquare([seen[i] for i in range(4)], draws * weights / weights.sum()).pvalue > 1e-3


def test_counts_far_beyond_the_range_of_floats_still_choose() -> None:
    assert choose([10**9, 10**9 - 10**4, 10**9], epsilon=1.0, random_bytes=seeded_bytes(1)) == 1


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.integers(0, 10**6), st.integers(0, 99))
def test_the_choice_depends_on_differences_only(errors: list[int], shift: int, seed: int) -> None:
    moved = [count + shift for count in errors]
    first, second = (choose(counts, epsilon=0.7, random_bytes=seeded_bytes(seed)) for counts in (errors, moved))
    assert first == second


def test_a_choice_reads_more_bits_until_it_is_certain() -> None:
    """The first bits of both uniforms agree, so that only later ones tell them apart."""
    half = (1 << 127).to_bytes(16, "big")
    stream = iter([half + half, bytes(8) + b"\xff" * 8])
    assert choose([5, 5], epsilon=1.0, random_bytes=lambda _: next(stream)) == 1
    assert next(stream, None) is None


def test_the_exponential_mechanism_withstands_an_attack_and_a_doubled_one_does_not() -> None:
    """The worst case of section 1.1: one count goes up and all others down."""
    claimed, bits, runs = 2.0, seeded_bytes(2), 1200
    counts = [0, *[1] * 11], [1, *[0] * 11]

    def proven(epsilon: float) -> float:
        first, second = (
            sum(choose(errors, epsilon=epsilon, random_bytes=bits) == 0 for _ in range(runs)) for errors in counts
        )
        return proven_epsilon(first, second, runs)

    assert proven(claimed) <= claimed
    assert proven(2 * claimed) > claimed


def test_the_number_of_trials_is_geometric() -> None:
    trials, draws, bits = Trials(candidates=3, chosen=0, rows=100, mean=8.0), 4000, seeded_bytes(3)
    seen = Counter(min(trials.draw_count(bits), 20) for _ in range(draws))
    probabilities = (1 / 8) * (7 / 8) ** np.arange(19)
    expected = draws * np.append(probabilities, 1 - probabilities.sum())
    assert chisquare([seen[i] for i in range(1, 21)], expected).pvalue > 1e-3


def test_a_number_of_trials_reads_more_bits_until_it_is_certain() -> None:
    """With U near 1/2 the first bits leave it open whether there is a second trial."""
    half, below = (1 << 127).to_bytes(16, "big"), ((1 << 127) - 1).to_bytes(16, "big")
    trials = Trials(candidates=2, chosen=0, rows=10, mean=2.0)
    stream = iter([half, b"\xff" * 8, below, bytes(8)])
    assert [trials.draw_count(lambda _: next(stream)) for _ in range(2)] == [1, 2]
    assert next(stream, None) is None


def test_the_best_of_random_trials_withstands_an_attack_and_one_of_doubled_trials_does_not() -> None:
    """Near the worst case of section 2.1: a middling outcome becomes likelier, a better one less likely."""
    trials, claimed, bits, runs = Trials(candidates=2, chosen=0, rows=100, mean=20), 2.0, seeded_bytes(4), 20_000
    counts = np.array([trials.draw_count(bits) for _ in range(runs)])
    draw = np.random.default_rng(4)

    def middling(share: float, better: float) -> int:
        """How often the best of the trials is the middling outcome, 1 of 0 to 2."""
        outcomes = draw.choice(3, size=counts.sum(), p=(1 - share - better, share, better))
        return int((np.maximum.reduceat(outcomes, np.cumsum(counts) - counts) == 1).sum())

    def proven(trial_epsilon: float) -> float:
        likely = 0.9 / (1 + math.exp(-trial_epsilon))
        unlikely = 0.9 - likely
        return proven_epsilon(middling(likely, unlikely), middling(unlikely, likely), runs)

    assert 1 < proven(claimed / 3) <= claimed
    assert proven(2 * claimed / 3) > claimed


def test_a_fixed_number_of_trials_would_cost_more() -> None:
    """What the random number is for: the best of always 8 trials breaks the same claim."""
    claimed, draw = 2.0, np.random.default_rng(5)
    bad = 1 / (1 + math.exp(-claimed / 3))
    runs = 20_000

    def never_good(share: float) -> int:
        return int(((draw.random((runs, 8)) < share).all(axis=1)).sum())

    assert proven_epsilon(never_good(bad), never_good(1 - bad), runs) > claimed


def test_scores_have_laplace_noise() -> None:
    bits = seeded_bytes(6)
    noise = np.array([noisy_count(50, epsilon=0.5, random_bytes=bits) - 50 for _ in range(2000)])
    assert np.abs(noise).mean() == pytest.approx(2.0, rel=0.1)
    assert np.median(noise) == pytest.approx(0.0, abs=0.2)


@given(st.floats(1e-3, 50), st.just(0.0) | st.floats(1e-30, 1e-3), st.floats(1.1, 1e4))
def test_trials_never_spend_more_than_the_whole(epsilon: float, delta: float, mean: float) -> None:
    whole, trials = Budget(epsilon, delta), Trials(candidates=3, chosen=0, rows=100, mean=mean)
    model, score = trials.model_budget(whole), trials.score_budget(whole)
    assert 3 * (model.epsilon + score.epsilon) <= epsilon
    assert 3 * (model.epsilon + score.epsilon) == pytest.approx(epsilon)
    assert model.delta * trials.mean <= delta
    assert model.delta * trials.mean == pytest.approx(delta)
    assert score.delta == 0


@given(st.integers(1, 20), st.integers(0, 500))
def test_portions_are_disjoint_and_cover_all_rows(candidates: int, extra: int) -> None:
    portions = Portions(candidates=candidates, chosen=0, rows=2 * (candidates + 1) + extra)
    bounds = [portions.bounds(i) for i in range(candidates + 1)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == portions.rows
    assert all(one[1] == next_one[0] for one, next_one in pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 2


def kinds() -> Iterator[Selection]:
    yield Portions(candidates=3, chosen=1, rows=4000)
    yield Trials(candidates=3, chosen=1, rows=1000, mean=100)
    yield PublicRows(candidates=3, chosen=1, rows=1000, public_rows=50)


def certified(selection: Selection, budget: Budget | None = None) -> Certificate:
    recipe = Recipe(loss=Logistic(), dims=60, rows=1000, batch_size=10, passes=2, schedule=constant(0.1))
    return certify(recipe, budget or Budget(1.0, 1e-6), selection=selection)


@pytest.mark.parametrize("selection", list(kinds()), ids=lambda kind: kind.method)
def test_a_tuned_certificate_survives_its_round_trip_and_verifies(selection: Selection) -> None:
    certificate = certified(selection)
    again = Certificate.from_dict(certificate.to_dict())
    assert again == certificate
    assert again.selection == selection
    assert read_selection(selection_record(selection)) == selection
    assert "candidate 2 of 3" in selection.describe()
    assert f"any one of the {selection.rows:,} rows" in certificate.promise()
    verify(again)


def test_trials_need_more_noise_and_the_others_no_more() -> None:
    plain = certify(certified(next(kinds())).recipe, Budget(1.0)).mechanism
    assert plain is not None
    scales = []
    for selection in kinds():
        mechanism = certified(selection, Budget(1.0)).mechanism
        assert mechanism is not None
        scales.append(mechanism.scale / plain.scale)
    assert scales == pytest.approx([1, 24 / 7, 1])


def test_a_certificate_that_hides_its_trials_is_caught() -> None:
    honest = certified(Trials(candidates=3, chosen=0, rows=1000, mean=100))
    with pytest.raises(CertificateError, match="mechanism"):
        verify(replace(honest, selection=None))
    shown_less = replace(honest, selection=Trials(candidates=3, chosen=0, rows=1000, mean=2))
    with pytest.raises(CertificateError, match="mechanism"):
        verify(shown_less)


def test_a_portion_of_another_size_is_refused() -> None:
    record = certified(Portions(candidates=3, chosen=1, rows=4000)).to_dict()
    record["selection"]["rows"] = 8000
    with pytest.raises(CertificateError, match="must be trained on 2000 rows, got 1000"):
        Certificate.from_dict(record)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Portions(candidates=0, chosen=0, rows=10), "candidates must be >= 1, got 0"),
        (lambda: Portions(candidates=2, chosen=2, rows=10), "chosen must be from 0 to 1, got 2"),
        (lambda: Portions(candidates=4, chosen=0, rows=9), "at least 2 rows for each of 4 candidates"),
        (lambda: Portions(candidates=True, chosen=0, rows=9), "candidates must be a whole number, got True"),
        (lambda: Trials(candidates=2, chosen=0, rows=10, mean=1.0), "must be above 1 and at most 1000000, got 1.0"),
        (lambda: PublicRows(candidates=2, chosen=0, rows=10, public_rows=0), "public_rows must be >= 1, got 0"),
        (lambda: read_selection({"method": "luck"}), "must be one of portions, trials, public, got 'luck'"),
        (lambda: choose([], epsilon=1.0, random_bytes=seeded_bytes(0)), "at least one count"),
        (lambda: choose([1], epsilon=0.0, random_bytes=seeded_bytes(0)), "epsilon must be a finite number > 0"),
    ],
)
def test_bad_parameters_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make()
