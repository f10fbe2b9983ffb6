"""The choice among candidates: its distributions, its accounting, and attacks on both."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, chisquare

from boltdp.errors import ParameterError
from boltdp.losses import Logistic
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import OVERSPENT, Certificate, CertificateError, certify, verify
from boltdp.privacy.events.event import BudgetedEvent, Event, NoiselessTraining, SelfComposition, Training
from boltdp.privacy.events.output_perturbation import make_output_perturbation
from boltdp.privacy.events.selection import (
    PortionSelection,
    PublicSelection,
    Selection,
    SelectionAmongTrained,
    TrialSelection,
    check_mean_trials,
    compute_portion_bounds,
    split_trial_budget,
)
from boltdp.privacy.exact_noise import make_seeded_bytes
from boltdp.privacy.release_with_noise import choose_by_errors, draw_trial_count, release_count
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule


def proven_epsilon(hits: int, others: int, runs: int) -> float:
    """The epsilon that an event of `hits` against `others` in `runs` proves to be exceeded, at 99.9% confidence."""
    tail = 0.0005
    low = beta.ppf(tail, hits, runs - hits + 1) if hits else 0.0
    high = beta.ppf(1 - tail, others + 1, runs - others) if others < runs else 1.0
    return math.log(low / high) if low > 0 else -math.inf


def test_choices_have_the_probabilities_of_the_exponential_mechanism() -> None:
    errors, epsilon, draws = [3, 0, 1, 8], 1.0, 4000
    bits = make_seeded_bytes(1)
    seen = Counter(choose_by_errors(errors, epsilon=epsilon, random_bytes=bits) for _ in range(draws))
    weights = np.exp(-epsilon * np.array(errors) / 2)
    assert chisquare([seen[i] for i in range(4)], draws * weights / weights.sum()).pvalue > 1e-3


def test_counts_far_beyond_the_range_of_floats_still_choose() -> None:
    assert choose_by_errors([10**9, 10**9 - 10**4, 10**9], epsilon=1.0, random_bytes=make_seeded_bytes(1)) == 1


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.integers(0, 10**6), st.integers(0, 99))
def test_the_choice_depends_on_differences_only(errors: list[int], shift: int, seed: int) -> None:
    moved = [count + shift for count in errors]
    first, second = (
        choose_by_errors(counts, epsilon=0.7, random_bytes=make_seeded_bytes(seed)) for counts in (errors, moved)
    )
    assert first == second


def test_a_choice_reads_more_bits_until_it_is_certain() -> None:
    """The first bits of both uniforms agree, so that only later ones tell them apart."""
    half = (1 << 127).to_bytes(16, "big")
    stream = iter([half + half, bytes(8) + b"\xff" * 8])
    assert choose_by_errors([5, 5], epsilon=1.0, random_bytes=lambda _: next(stream)) == 1
    assert next(stream, None) is None


def test_the_exponential_mechanism_withstands_an_attack_and_a_doubled_one_does_not() -> None:
    """The worst case of section 1.1: one count goes up and all others down."""
    claimed, bits, runs = 2.0, make_seeded_bytes(2), 1200
    counts = [0, *[1] * 11], [1, *[0] * 11]

    def proven(epsilon: float) -> float:
        first, second = (
            sum(choose_by_errors(errors, epsilon=epsilon, random_bytes=bits) == 0 for _ in range(runs))
            for errors in counts
        )
        return proven_epsilon(first, second, runs)

    assert proven(claimed) <= claimed
    assert proven(2 * claimed) > claimed


def test_the_number_of_trials_is_geometric() -> None:
    draws, bits = 4000, make_seeded_bytes(3)
    seen = Counter(min(draw_trial_count(8.0, bits), 20) for _ in range(draws))
    probabilities = (1 / 8) * (7 / 8) ** np.arange(19)
    expected = draws * np.append(probabilities, 1 - probabilities.sum())
    assert chisquare([seen[i] for i in range(1, 21)], expected).pvalue > 1e-3


def test_a_number_of_trials_reads_more_bits_until_it_is_certain() -> None:
    """With U near 1/2 the first bits leave it open whether there is a second trial."""
    half, below = (1 << 127).to_bytes(16, "big"), ((1 << 127) - 1).to_bytes(16, "big")
    stream = iter([half, b"\xff" * 8, below, bytes(8)])
    assert [draw_trial_count(2.0, lambda _: next(stream)) for _ in range(2)] == [1, 2]
    assert next(stream, None) is None


def test_the_best_of_random_trials_withstands_an_attack_and_one_of_doubled_trials_does_not() -> None:
    """Near the worst case of section 2.1: a middling outcome becomes likelier, a better one less likely."""
    claimed, bits, runs = 2.0, make_seeded_bytes(4), 20_000
    counts = np.array([draw_trial_count(20.0, bits) for _ in range(runs)])
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


@pytest.mark.parametrize("changes", [1, 5])
def test_scores_have_laplace_noise(changes: int) -> None:
    bits = make_seeded_bytes(6)
    noise = np.array([release_count(50, epsilon=0.5, random_bytes=bits, changes=changes) - 50 for _ in range(2000)])
    assert np.abs(noise).mean() == pytest.approx(2.0 * changes, rel=0.1)
    assert np.median(noise) == pytest.approx(0.0, abs=0.2 * changes)


@given(st.floats(1e-3, 50), st.just(0.0) | st.floats(1e-30, 1e-3), st.floats(1.1, 1e4))
def test_trials_never_spend_more_than_the_whole(epsilon: float, delta: float, mean: float) -> None:
    model, score = split_trial_budget(Budget(epsilon, delta), mean=mean)
    assert 3 * (model.epsilon + score.epsilon) <= epsilon
    assert 3 * (model.epsilon + score.epsilon) == pytest.approx(epsilon)
    assert model.delta * mean <= delta
    assert model.delta * mean == pytest.approx(delta)
    assert score.delta == 0


@given(st.integers(1, 20), st.integers(0, 500))
def test_portions_are_disjoint_and_cover_all_rows(candidates: int, extra: int) -> None:
    rows = 2 * (candidates + 1) + extra
    bounds = [compute_portion_bounds(i, rows=rows, candidates=candidates) for i in range(candidates + 1)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rows
    assert all(one[1] == next_one[0] for one, next_one in pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 2


def recipe(rows: int = 1000, *, step: float = 0.1) -> Recipe:
    return Recipe(loss=Logistic(), dims=60, rows=rows, batch_size=10, passes=2, schedule=make_constant_schedule(step))


#: What the candidates differ in.
STEPS = (0.05, 0.1, 0.2)
APPROXIMATE = Budget(1.0, 1e-6)


def trained(budget: Budget | None) -> tuple[BudgetedEvent, ...]:
    events: list[Training] = [
        NoiselessTraining(recipe(step=step)) if budget is None else make_output_perturbation(recipe(step=step), budget)
        for step in STEPS
    ]
    return tuple(BudgetedEvent(budget, event) for event in events)


def portions(budget: Budget | None = APPROXIMATE) -> PortionSelection:
    """Four portions of a thousand rows each."""
    epsilon = None if budget is None else budget.epsilon
    return PortionSelection(trained=trained(budget), chosen=1, rows=4000, epsilon=epsilon)


def trials(budget: Budget = APPROXIMATE, *, mean: float = 100.0) -> TrialSelection:
    model, score = split_trial_budget(budget, mean=mean)
    return TrialSelection(trained=trained(model), chosen=1, rows=1000, mean=mean, score_epsilon=score.epsilon)


def public(budget: Budget | None = APPROXIMATE) -> PublicSelection:
    return PublicSelection(trained=trained(budget)[1], compared=3, chosen=1, rows=1000, public_rows=50)


KINDS: tuple[Callable[[Budget], Selection], ...] = (portions, trials, public)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("budget", [Budget(1.0), APPROXIMATE])
def test_a_tuned_certificate_survives_its_round_trip_and_verifies(
    make: Callable[[Budget], Selection], budget: Budget
) -> None:
    selection = make(budget)
    certificate = certify(selection, budget)
    again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict(), allow_nan=False)))
    assert again == certificate
    assert json.dumps(again.to_dict()) == json.dumps(certificate.to_dict())
    assert again.selection == selection
    assert again.private
    assert again.problem == recipe(step=STEPS[1])
    assert "candidate 2 of 3" in selection.describe()
    assert f"any one of the {selection.rows:,} rows" in certificate.guarantee()
    assert (selection.candidates, certificate.rows) == (3, selection.rows)
    verify(again)


def test_each_way_says_how() -> None:
    assert [kind.method for kind in (PortionSelection, TrialSelection, PublicSelection)] == [
        "portions",
        "trials",
        "public",
    ]
    assert "(1,000 of 4,000)" in portions().describe()
    assert "on all 1,000 rows" in trials().describe()
    assert "chosen on 50 rows that were declared public, then trained on 1,000 others" in public().describe()


def test_trials_need_more_noise_and_the_others_no_more() -> None:
    plain = make_output_perturbation(recipe(step=STEPS[1]), Budget(1.0)).noise
    scales = []
    for make in KINDS:
        noise = certify(make(Budget(1.0)), Budget(1.0)).release_noise
        assert noise is not None
        scales.append(noise.scale / plain.scale)
    assert scales == pytest.approx([1, 24 / 7, 1])


def test_a_certificate_that_hides_its_trials_is_caught() -> None:
    """A training that was enough for the whole is not for one of many trials, however many are told of."""
    whole = trained(APPROXIMATE)
    alone = certify(whole[1].event, APPROXIMATE)
    verify(alone)
    honest = trials()
    for trained_so, mean in ((whole, 100.0), (whole, 2.0), (honest.trained, 1000.0)):
        more = certify(replace(honest, trained=trained_so, mean=mean), APPROXIMATE)
        assert more.reasons == (OVERSPENT,)
        with pytest.raises(CertificateError):
            verify(more)
    verify(certify(replace(honest, mean=2.0), APPROXIMATE))


def test_one_candidate_with_too_little_noise_spoils_the_choice_whichever_was_chosen() -> None:
    less = make_output_perturbation(recipe(step=STEPS[2]), Budget(2.0, 1e-6))
    for selection in (portions(), trials()):
        changed = replace(selection, trained=(*selection.trained[:2], BudgetedEvent(Budget(1.0, 1e-6), less)))
        assert certify(changed, APPROXIMATE).reasons == (OVERSPENT,)


@pytest.mark.parametrize("epsilon", [1.0 + 1e-6, 2.0, 100.0])
def test_a_choice_that_spends_more_than_is_claimed_is_caught(epsilon: float) -> None:
    budget = Budget(1.0)
    for selection in (
        replace(portions(budget), epsilon=epsilon),
        replace(trials(budget), score_epsilon=trials(budget).score_epsilon * epsilon),
    ):
        certificate = certify(selection, budget)
        assert certificate.reasons == (OVERSPENT,)
        with pytest.raises(CertificateError):
            verify(certificate)


def test_a_choice_without_noise_promises_nothing() -> None:
    quiet = replace(portions(), epsilon=None)
    assert quiet.delta(1.0) == quiet.delta(1e6) == 1.0
    assert not certify(quiet, APPROXIMATE).private
    assert not certify(portions(None), None).private
    assert not certify(public(None), None).private


def test_a_score_that_takes_all_leaves_no_promise() -> None:
    assert trials(Budget(1.0)).delta(0.1) == 1.0


def test_what_the_choice_spends_below_its_epsilon() -> None:
    """Pure epsilon is (e, (1 - exp(e - epsilon)) / (1 + exp(-epsilon))) for each smaller e; nothing more is spent."""
    plenty = tuple(BudgetedEvent(Budget(1e-3), make_output_perturbation(recipe(), Budget(1e-3))) for _ in STEPS)
    selection = PortionSelection(trained=plenty, chosen=0, rows=4000, epsilon=1.0)
    assert selection.delta(1.0) == 0.0
    assert selection.delta(0.5) == pytest.approx((1 - math.exp(-0.5)) / (1 + math.exp(-1.0)))


@pytest.mark.parametrize(("make", "rows"), [(portions, 8000), (trials, 2000), (public, 2000)])
def test_rows_that_are_not_those_of_the_training_are_refused(make: Callable[[Budget], Selection], rows: int) -> None:
    """Each candidate of four portions of 8000 rows would have had 2000; trials and the last training have them all."""
    record = certify(make(APPROXIMATE), APPROXIMATE).to_dict()
    record["rows"] = record["spent"]["rows"] = rows
    with pytest.raises(CertificateError, match="2000"):
        Certificate.from_dict(record)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kind",), "luck"),
        (("chosen",), 3),
        (("chosen",), -1),
        (("chosen",), True),
        (("rows",), 7),
        (("rows",), 4001.5),
        (("epsilon",), 0.0),
        (("epsilon",), 2.0),
        (("epsilon",), None),
        (("trained",), []),
        (("trained",), None),
        (("candidates",), 3),
    ],
)
def test_a_tampered_choice_is_caught(path: tuple[str, ...], value: object) -> None:
    record = certify(portions(), APPROXIMATE).to_dict()
    (key,) = path
    record["spent"][key] = value
    with pytest.raises(CertificateError):
        verify(Certificate.from_dict(record))


class Untold(Selection):
    """A choice that does not say how it was made."""

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        return 1.0


def test_a_choice_must_say_how_it_was_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Untold()  # type: ignore[abstract]
    assert Untold not in Event.KINDS.values()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(portions(), trained=()), "candidates must be >= 1, got 0"),
        (lambda: replace(portions(), chosen=3), "chosen must be from 0 to 2, got 3"),
        (lambda: replace(portions(), rows=7), "at least 2 rows for each of 3 candidates"),
        (lambda: replace(portions(), chosen=True), "chosen must be a whole number, got True"),
        (lambda: replace(portions(), epsilon=-1.0), "epsilon must be a finite number > 0"),
        (lambda: compute_portion_bounds(0, rows=9, candidates=4), "at least 2 rows for each of 4 candidates"),
        (lambda: replace(trials(), mean=1.0), r"must be above 1 and at most 1000000, got 1\.0"),
        (lambda: replace(trials(), mean=math.nan), "must be above 1 and at most 1000000, got nan"),
        (lambda: replace(trials(), score_epsilon=0.0), "epsilon must be a finite number > 0"),
        (lambda: split_trial_budget(Budget(1.0), mean=1e7), "must be above 1 and at most 1000000"),
        (lambda: check_mean_trials(True), "mean must be a number, got True"),
        (lambda: replace(public(), public_rows=0), "public_rows must be >= 1, got 0"),
        (lambda: replace(public(), compared=0), "compared must be >= 1, got 0"),
        (lambda: replace(public(), compared=True), "compared must be a whole number, got True"),
        (lambda: replace(public(), compared=1), "chosen must be from 0 to 0, got 1"),
        (lambda: choose_by_errors([], epsilon=1.0, random_bytes=make_seeded_bytes(0)), "at least one count"),
        (
            lambda: choose_by_errors([1], epsilon=0.0, random_bytes=make_seeded_bytes(0)),
            "epsilon must be a finite number > 0",
        ),
    ],
)
def test_bad_parameters_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make()


def repeated(budget: Budget = APPROXIMATE) -> SelfComposition:
    return SelfComposition(trained(budget.split(3))[0], 3)


def state(part: BudgetedEvent, epsilon: float, delta: float = 1.0) -> BudgetedEvent:
    """The same part, which states a budget so many times as large."""
    assert part.budget is not None
    return replace(part, budget=Budget(epsilon * part.budget.epsilon, delta * part.budget.delta))


def forge_first(selection: SelectionAmongTrained, *factors: float) -> SelectionAmongTrained:
    first, *others = selection.trained
    return replace(selection, trained=(state(first, *factors), *others))


#: What states wrong budgets and is private, as its events spend what is claimed or less.
FORGED: dict[str, tuple[Callable[[], Event], str]] = {
    "a repetition that spends more": (lambda: replace(r := repeated(), part=state(r.part, 0.5)), "but it spends more"),
    "repetitions beyond the claim": (lambda: replace(r := repeated(), part=state(r.part, 1.1)), "must be within"),
    "repetitions beyond delta": (lambda: replace(r := repeated(), part=state(r.part, 1.0, 9.0)), "must be within"),
    "a portion that spends more": (lambda: forge_first(portions(), 0.5), "but it spends more"),
    "a portion beyond the claim": (lambda: forge_first(portions(), 9.0), "must be within"),
    "a trial that spends more": (lambda: forge_first(trials(), 0.5), "but it spends more"),
    "a trial beyond the claim": (lambda: forge_first(trials(), 9.0), "must be within"),
    "a trial beyond delta": (lambda: forge_first(trials(), 1.0, 9.0), "must be within"),
    "a public choice that spends more": (lambda: replace(p := public(), trained=state(p.trained, 0.5)), "spends more"),
    "a public choice beyond the claim": (lambda: replace(p := public(), trained=state(p.trained, 9.0)), "be within"),
    "a part of a part": (
        lambda: replace(public(), trained=BudgetedEvent(APPROXIMATE, replace(r := repeated(), part=state(r.part, 2)))),
        "be within",
    ),
    "a part of a part that states none": (
        lambda: replace(public(), trained=BudgetedEvent(None, replace(r := repeated(), part=state(r.part, 2)))),
        "be within",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_budgets_that_repetitions_and_selections_state_are_verified(name: str) -> None:
    forge, message = FORGED[name]
    certificate = Certificate(budget=APPROXIMATE, spent=forge())
    forged = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
    assert forged.private
    with pytest.raises(CertificateError, match=message):
        verify(forged)


def test_stated_budgets_that_are_true_are_verified() -> None:
    for event in (
        repeated(),
        portions(),
        trials(),
        public(),
        replace(public(), trained=BudgetedEvent(None, repeated())),
    ):
        verify(Certificate(budget=APPROXIMATE, spent=event))
