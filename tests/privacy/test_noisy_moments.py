"""Moments: no neighbour moves them further than is claimed, and the budget, the noise and the record add up."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from boltdp.errors import ParameterError
from boltdp.kernel.feature_sums import UNIT as KERNEL_UNIT
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.losses import Logistic
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, CertificateError, certify, subtract_spent, verify
from boltdp.privacy.events.event import NOISELESS, BudgetedEvent, Composition, NoiselessTraining
from boltdp.privacy.events.noisy_moments import UNIT, Moments, NoisyMoments, check_moment_rows
from boltdp.privacy.events.output_perturbation import make_output_perturbation
from boltdp.privacy.events.selection import TrialSelection, split_trial_budget
from boltdp.privacy.exact_noise import add_noise, make_seeded_bytes
from boltdp.privacy.mechanisms import Mechanism, calibrate_unit_gaussian
from boltdp.privacy.release_with_noise import Randomness, release_moments
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule

EVERY: tuple[Moments, ...] = ("squares", "mean")
Row = npt.NDArray[np.float64]

TENTH = Budget(0.1)


def event(
    kind: Moments = "squares",
    *,
    features: int = 4,
    numbers: int | None = None,
    clip_norm: float = 1.5,
    budget: Budget | None = TENTH,
) -> NoisyMoments:
    numbers = features if numbers is None else numbers
    return NoisyMoments(moments=kind, features=features, numbers=numbers, clip_norm=clip_norm).calibrate_noise(budget)


def vector(kind: NoisyMoments, *rows: Row) -> Row:
    """What is released of these rows, before the noise: their sums, whatever the number of rows is taken for."""
    sums = FeatureSums(clip_norm=kind.clip_norm, cells=kind.features)
    for row in rows:
        sums.add(np.concatenate([[0.0], row]).astype(np.float32)[None])
    numbers = np.arange(kind.features) < kind.numbers
    found = release_moments(sums.value, replace(kind, noise=None), Randomness(), rows=1, numbers=numbers)
    if found.squares is not None:
        return np.concatenate([found.means, found.squares])
    assert found.squared_norm is not None
    return np.append(found.means, found.squared_norm * kind.norm_weight)


def distance(kind: NoisyMoments, one: Row, other: Row) -> float:
    rest = np.linspace(-1, 1, kind.features)
    return float(np.linalg.norm(vector(kind, rest, one) - vector(kind, rest, other)))


cells = st.floats(-2, 2, width=32) | st.sampled_from([-1.0, 1.0, 0.0, math.inf, -math.inf, math.nan, 1e-30])


@pytest.mark.parametrize("kind", EVERY)
@given(
    one=st.lists(cells, min_size=6, max_size=6),
    other=st.lists(cells, min_size=6, max_size=6),
    clip_norm=st.floats(0.01, 2.44),
    numbers=st.integers(0, 6),
)
def test_no_neighbour_exceeds_the_bound(
    kind: Moments, one: list[float], other: list[float], clip_norm: float, numbers: int
) -> None:
    made = event(kind, features=6, numbers=numbers, clip_norm=clip_norm)
    assert distance(made, np.array(one), np.array(other)) <= made.sensitivity


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("features", [1, 2, 7, 40])
def test_an_ascent_from_many_starts_does_not_exceed_the_bound_either(kind: Moments, features: int) -> None:
    rng = np.random.default_rng(features)
    for clip_norm in (0.3, 0.8 * math.sqrt(features), math.sqrt(features)):
        made = event(kind, features=features, clip_norm=clip_norm)
        pair = rng.uniform(-1, 1, (2, features))
        best = distance(made, *pair)
        for step in range(300):
            tried = pair + rng.normal(0, 0.5 * 0.99**step, pair.shape)
            reached = distance(made, *tried)
            if reached > best:
                best, pair = reached, tried
        assert best <= made.sensitivity


def test_the_bound_is_nearly_reached() -> None:
    opposite = np.array([1.0, -1.0, 1.0, 0.0])
    made = event("mean", clip_norm=math.sqrt(3))
    assert distance(made, opposite, -opposite) == pytest.approx(made.sensitivity, rel=1e-5)
    # The pair of cells that gains most by its squares, section 1: the claim leaves half a percent.
    u = 0.32
    one, other = np.tile([1.0, -u], 20), np.tile([-u, 1.0], 20)
    made = event("squares", features=40, clip_norm=float(np.linalg.norm(one)))
    assert 0.99 * made.sensitivity < distance(made, one, other) <= made.sensitivity


def test_the_kernel_rounds_as_the_proof_says() -> None:
    assert UNIT == KERNEL_UNIT


@given(
    epsilon=st.floats(1e-6, 1e3),
    delta=st.floats(0, 0.1).filter(lambda delta: delta == 0 or delta > 1e-90),
    share=st.floats(0.001, 0.999),
)
def test_a_share_and_what_is_left_never_exceed_the_whole(epsilon: float, delta: float, share: float) -> None:
    parts = Budget(epsilon, delta).take_share(share)
    for name, whole in (("epsilon", epsilon), ("delta", delta)):
        total = sum(Fraction(getattr(part, name)) for part in parts)
        assert total <= Fraction(whole)
        assert float(total) == pytest.approx(whole, rel=1e-12)


def test_the_order_is_standardization_then_choosing_then_models() -> None:
    whole = Budget(1.0, 1e-6)
    before = BudgetedEvent(whole.take_share(0.1)[0], event(budget=whole.take_share(0.1)[0]))
    left = subtract_spent(whole, before)
    assert left == whole.take_share(0.1)[1]
    assert left.epsilon == pytest.approx(0.9)
    assert left.delta == pytest.approx(9e-7)
    model, score = split_trial_budget(left, mean=10.0)
    trials = TrialSelection(
        trained=(BudgetedEvent(model, make_output_perturbation(RECIPE, model)),) * 3,
        chosen=0,
        rows=1000,
        mean=10.0,
        score_epsilon=score.epsilon,
    )
    certificate = certify(trials, whole, standardization=before)
    assert certificate.private
    assert certificate.spent == Composition((before, BudgetedEvent(left, trials)))
    assert certificate.parts == (before, BudgetedEvent(left, trials))
    plain = certify(make_output_perturbation(RECIPE, left), whole, standardization=before)
    assert plain.private
    assert plain.parts == (before, BudgetedEvent(left, plain.training))


@pytest.mark.parametrize("kind", EVERY)
def test_released_means_have_the_stated_noise(kind: Moments) -> None:
    made = event(kind, features=3, clip_norm=1.0, budget=Budget(0.1, 1e-6) if kind == "mean" else TENTH)
    assert made.noise is not None
    sums, numbers = np.zeros((2, 3), np.int64), np.ones(3, bool)
    drawn = [release_moments(sums, made, Randomness(), rows=10, numbers=numbers) for _ in range(400)]
    means = np.array([one.means for one in drawn]).ravel()
    assert drawn[0].deviation == pytest.approx(made.noise.deviation / 10)
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(means) // 4)  # heavier tails than a normal's
    assert low < len(means) // 4 * np.mean(means**2) / drawn[0].deviation ** 2 < high


def test_noiseless_moments_are_exact() -> None:
    rows = np.array([[1.0, 0.5, 0.0], [-0.25, 0.0, 1.0]])
    sums = FeatureSums(clip_norm=math.sqrt(3), cells=3)
    sums.add(np.insert(rows, 0, 0.0, axis=1).astype(np.float32))
    numbers = np.array([True, True, False])
    both = event(features=3, numbers=2, clip_norm=math.sqrt(3), budget=None)
    found = release_moments(sums.value, both, Randomness(), rows=2, numbers=numbers)
    np.testing.assert_array_equal(found.means, rows.mean(axis=0))
    assert found.squares is not None
    np.testing.assert_array_equal(found.squares, (rows**2).mean(axis=0)[:2])
    assert found.deviation == 0.0
    norms = event("mean", features=3, numbers=2, clip_norm=math.sqrt(3), budget=None)
    released = release_moments(sums.value, norms, Randomness(), rows=2, numbers=numbers)
    assert released.squared_norm == (rows**2).sum(axis=1).mean()


def test_a_seed_gives_other_noise_than_that_of_the_weights() -> None:
    made = event(features=3)
    assert made.noise is not None
    sums, numbers = np.zeros((2, 3), np.int64), np.ones(3, bool)
    first, again, other = (release_moments(sums, made, Randomness(seed), rows=1, numbers=numbers) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.means, again.means)
    assert (first.means != other.means).all()
    assert (first.means != add_noise(made.noise, np.zeros(6), make_seeded_bytes(5))[:3]).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "median"}, "moments must be one of squares, mean, got 'median'"),
        ({"features": 0}, "features must be >= 1, got 0"),
        ({"features": True}, "features must be a whole number, got True"),
        ({"numbers": 5}, "numbers must be at most the 4 features, got 5"),
        ({"numbers": -1}, "numbers must be >= 0, got -1"),
        (
            {"clip_norm": 2.1},
            "clip norm of 4 features must be at least 1e-9 and at most their square root, got 2.1",
        ),
        ({"clip_norm": 0.0}, "the clip norm of 4 features must be at least 1e-9"),
        ({"clip_norm": math.nan}, "the clip norm of 4 features must be at least 1e-9"),
    ],
)
def test_impossible_moments_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        event(**changed)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 2.0])
def test_a_share_must_leave_something_to_both(share: float) -> None:
    with pytest.raises(ParameterError, match="epsilon must be a finite number > 0"):
        Budget(1.0).take_share(share)


def test_noise_of_another_number_of_moments_is_refused() -> None:
    with pytest.raises(ParameterError, match="the noise must have 8 dimensions, got 5"):
        replace(event(), noise=Mechanism("spherical", 100.0, 5))


def test_sums_of_other_features_are_refused() -> None:
    for shape, numbers in (((2, 3), 4), ((2, 4), 3), ((1, 4), 4)):
        with pytest.raises(ParameterError, match="sums must be of 4 features, 4 of them numbers"):
            release_moments(np.zeros(shape, np.int64), event(), Randomness(), rows=1, numbers=np.arange(4) < numbers)


def test_more_rows_than_the_sums_can_hold_are_refused() -> None:
    check_moment_rows(2**33, clip_norm=1.0)
    with pytest.raises(ParameterError, match="at most 85,899,345 such rows, got 85,899,346"):
        check_moment_rows(85_899_346, clip_norm=10.0)
    wide = event(features=100, clip_norm=10.0)
    with pytest.raises(ParameterError, match="at most 85,899,345 such rows, got 85,899,346"):
        release_moments(np.zeros((2, 100), np.int64), wide, Randomness(), rows=85_899_346, numbers=np.ones(100, bool))


RECIPE = Recipe(loss=Logistic(), dims=5, rows=1000, batch_size=30, passes=3, schedule=make_constant_schedule(0.05))


def certified(kind: Moments = "squares", budget: Budget | None = Budget(0.7)) -> Certificate:  # noqa: B008
    """A tenth of the budget for the moments, the rest for the weights."""
    if budget is None:
        return certify(NoiselessTraining(RECIPE), None, standardization=BudgetedEvent(None, event(kind, budget=None)))
    share, left = budget.take_share(0.1)
    before = BudgetedEvent(share, event(kind, budget=share))
    return certify(make_output_perturbation(RECIPE, left), budget, standardization=before)


@pytest.mark.parametrize("budget", [Budget(0.7), Budget(0.7, 1e-6), None])
@pytest.mark.parametrize("kind", EVERY)
def test_the_certificate_survives_the_round_trip_and_verifies(kind: Moments, budget: Budget | None) -> None:
    made = certified(kind, budget)
    again = Certificate.from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False)))
    assert again == made
    verify(again)
    assert made.private == (budget is not None)
    shares = (None, None) if budget is None else budget.take_share(0.1)
    assert tuple(part.budget for part in made.parts) == shares
    assert made.moments == event(kind, budget=shares[0])
    assert ("without noise" in made.moments.describe()) == (budget is None)
    assert ("centres and scales" in made.moments.describe()) == (kind == "squares")


def test_moments_without_noise_spoil_a_private_training() -> None:
    before = BudgetedEvent(None, event(budget=None))
    certificate = certify(make_output_perturbation(RECIPE, Budget(1.0)), Budget(1.0), standardization=before)
    assert certificate.reasons == (NOISELESS,)
    assert certificate.delta(1.0) == certificate.delta(1e5) == 1.0


def test_standardizing_leaves_more_noise_to_the_weights() -> None:
    plain = make_output_perturbation(RECIPE, Budget(1.0)).noise
    less = certified(budget=Budget(1.0)).release_noise
    assert less is not None
    assert less.scale == pytest.approx(plain.scale / 0.9)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("budget", "epsilon"), 2.0),
        (("budget", "epsilon"), "all"),
        (("budget", "epsilon"), 0.007),
        (("budget",), {"epsilon": 0.7, "delta": 0.0}),
        (("budget",), None),
        (("event", "moments"), "mean"),
        (("event", "moments"), "median"),
        (("event", "features"), 3),
        (("event", "numbers"), 1),
        (("event", "clip_norm"), 1.9),
        (("event", "clip_norm"), 0.1),
        (("event", "clip_norm"), None),
        (("event", "derived", "sensitivity"), 0.1),
        (("event", "derived"), None),
        (("event", "noise"), {"kind": "spherical", "scale": 1e-3, "dimensions": 8}),
        (("event", "noise"), None),
        (("event", "rows"), 10),
    ],
)
def test_a_tampered_record_is_caught(path: tuple[str, ...], value: object) -> None:
    written = certified().to_dict()
    place = written["spent"]["parts"][0]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(CertificateError):
        verify(Certificate.from_dict(written))


@pytest.mark.parametrize(("factor", "valid"), [(1.0, True), (2.0, True), (0.99, False), (0.5, False)])
def test_gaussian_noise_is_accepted_where_spherical_noise_is_shorter(factor: float, valid: bool) -> None:
    whole = Budget(0.7, 1e-6)
    share, left = whole.take_share(0.1)
    made = event(budget=share)
    assert made.noise is not None
    assert made.noise.kind == "spherical"
    sigma = factor * made.sensitivity * calibrate_unit_gaussian(share)
    earlier = replace(made, noise=Mechanism("gaussian", sigma, made.dimensions))
    certificate = certify(make_output_perturbation(RECIPE, left), whole, standardization=BudgetedEvent(share, earlier))
    assert certificate.private is valid
    if valid:
        verify(certificate)
    else:
        with pytest.raises(CertificateError):
            verify(certificate)


def test_a_record_that_was_removed_is_caught() -> None:
    """What is left alone would be private by itself, with less: the record must say what it says of the whole."""
    written = certified().to_dict()
    parts: list[Any] = written["spent"]["parts"]
    kept: tuple[list[Any], ...] = (parts[:1], [])
    for less in kept:
        with pytest.raises((CertificateError, ParameterError)):
            verify(Certificate.from_dict({**written, "spent": {**written["spent"], "parts": less}}))
    alone = Certificate.from_dict({**written, "spent": parts[1]["event"]})
    assert alone.moments is None  # so that no schema with a private standardization fits to it
    assert alone.spent == certified().training
