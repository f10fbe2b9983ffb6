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
from boltdp.kernel import MOMENT_UNIT, moments
from boltdp.privacy.certificate import Certificate, CertificateError, certify, model_budget, verify
from boltdp.privacy.losses import Logistic
from boltdp.privacy.noise import Budget, Mechanism, gaussian_sigma, seeded_bytes
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.schedules import constant
from boltdp.privacy.selection import Trials
from boltdp.privacy.standardization import UNIT, Moments, Standardized, check_rows, release_moments, standardized

EVERY: tuple[Moments, ...] = ("squares", "mean")
Row = npt.NDArray[np.float64]


def record(
    kind: Moments = "squares", *, features: int = 4, squared: int | None = None, radius: float = 1.5, **more: Any
) -> Standardized:
    given = {"share": 0.1, "whole": Budget(1.0), **more}
    squared = features if squared is None else squared
    return standardized(moments=kind, features=features, squared=squared, radius=radius, **given)


def vector(kind: Standardized, *rows: Row) -> Row:
    """What is released of these rows, before the noise: their sums, whatever the number of rows is taken for."""
    sums = np.zeros((2, kind.features), np.int64)
    for row in rows:
        moments(np.concatenate([[0.0], row]).astype(np.float32)[None], sums, radius=kind.radius)
    numbers = np.arange(kind.features) < kind.squared
    found = release_moments(sums, replace(kind, mechanism=None), rows=1, numbers=numbers)
    if found.squares is not None:
        return np.concatenate([found.means, found.squares])
    assert found.squared_norm is not None
    return np.append(found.means, found.squared_norm * kind.norm_weight)


def distance(kind: Standardized, one: Row, other: Row) -> float:
    rest = np.linspace(-1, 1, kind.features)
    return float(np.linalg.norm(vector(kind, rest, one) - vector(kind, rest, other)))


cells = st.floats(-2, 2, width=32) | st.sampled_from([-1.0, 1.0, 0.0, math.inf, -math.inf, math.nan, 1e-30])


@pytest.mark.parametrize("kind", EVERY)
@given(
    one=st.lists(cells, min_size=6, max_size=6),
    other=st.lists(cells, min_size=6, max_size=6),
    radius=st.floats(0.01, 2.44),
    squared=st.integers(0, 6),
)
def test_no_neighbour_exceeds_the_bound(
    kind: Moments, one: list[float], other: list[float], radius: float, squared: int
) -> None:
    made = record(kind, features=6, squared=squared, radius=radius)
    assert distance(made, np.array(one), np.array(other)) <= made.sensitivity


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("features", [1, 2, 7, 40])
def test_an_ascent_from_many_starts_does_not_exceed_the_bound_either(kind: Moments, features: int) -> None:
    rng = np.random.default_rng(features)
    for radius in (0.3, 0.8 * math.sqrt(features), math.sqrt(features)):
        made = record(kind, features=features, radius=radius)
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
    made = record("mean", radius=math.sqrt(3))
    assert distance(made, opposite, -opposite) == pytest.approx(made.sensitivity, rel=1e-5)
    # The pair of cells that gains most by its squares, section 1: the claim leaves half a percent.
    u = 0.32
    one, other = np.tile([1.0, -u], 20), np.tile([-u, 1.0], 20)
    made = record("squares", features=40, radius=float(np.linalg.norm(one)))
    assert 0.99 * made.sensitivity < distance(made, one, other) <= made.sensitivity


def test_the_kernel_rounds_as_the_proof_says() -> None:
    assert UNIT == MOMENT_UNIT


@given(
    epsilon=st.floats(1e-6, 1e3),
    delta=st.floats(0, 0.1).filter(lambda delta: delta == 0 or delta > 1e-90),
    share=st.floats(0.001, 0.999),
)
def test_a_share_and_what_is_left_never_exceed_the_whole(epsilon: float, delta: float, share: float) -> None:
    parts = Budget(epsilon, delta).take(share)
    for name, whole in (("epsilon", epsilon), ("delta", delta)):
        total = sum(Fraction(getattr(part, name)) for part in parts)
        assert total <= Fraction(whole)
        assert float(total) == pytest.approx(whole, rel=1e-12)


def test_the_order_is_standardization_then_choosing_then_models() -> None:
    whole, made = Budget(1.0, 1e-6), record(whole=Budget(1.0, 1e-6))
    trials = Trials(candidates=3, chosen=0, rows=1000, mean=10.0)
    left = made.left(whole)
    assert left.epsilon == pytest.approx(0.9)
    assert model_budget(whole, made, trials) == trials.model_budget(left)
    assert model_budget(whole, made, None) == left


@pytest.mark.parametrize("kind", EVERY)
def test_released_means_have_the_stated_noise(kind: Moments) -> None:
    made = record(kind, features=3, radius=1.0, whole=Budget(1.0, 1e-5) if kind == "mean" else Budget(1.0))
    assert made.mechanism is not None
    sums, numbers = np.zeros((2, 3), np.int64), np.ones(3, bool)
    drawn = [release_moments(sums, made, rows=10, numbers=numbers) for _ in range(400)]
    means = np.array([one.means for one in drawn]).ravel()
    assert drawn[0].deviation == pytest.approx(made.mechanism.deviation / 10)
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(means) // 4)  # heavier tails than a normal's
    assert low < len(means) // 4 * np.mean(means**2) / drawn[0].deviation ** 2 < high


def test_noiseless_moments_are_exact() -> None:
    rows = np.array([[1.0, 0.5, 0.0], [-0.25, 0.0, 1.0]])
    sums = np.zeros((2, 3), np.int64)
    moments(np.insert(rows, 0, 0.0, axis=1).astype(np.float32), sums, radius=math.sqrt(3))
    numbers = np.array([True, True, False])
    both = record(features=3, squared=2, radius=math.sqrt(3), whole=None)
    found = release_moments(sums, both, rows=2, numbers=numbers)
    np.testing.assert_array_equal(found.means, rows.mean(axis=0))
    assert found.squares is not None
    np.testing.assert_array_equal(found.squares, (rows**2).mean(axis=0)[:2])
    assert found.deviation == 0.0
    norms = record("mean", features=3, squared=2, radius=math.sqrt(3), whole=None)
    assert release_moments(sums, norms, rows=2, numbers=numbers).squared_norm == (rows**2).sum(axis=1).mean()


def test_a_seed_gives_other_noise_than_that_of_the_weights() -> None:
    made = record(features=3)
    assert made.mechanism is not None
    sums, numbers = np.zeros((2, 3), np.int64), np.ones(3, bool)
    first, again, other = (release_moments(sums, made, rows=1, numbers=numbers, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.means, again.means)
    assert (first.means != other.means).all()
    assert (first.means != made.mechanism.add(np.zeros(6), seeded_bytes(5))[:3]).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "median"}, "moments must be one of squares, mean, got 'median'"),
        ({"share": 0.0}, "the share of standardization must be above 0 and below 1, got 0.0"),
        ({"share": 1.0}, "the share of standardization must be above 0 and below 1, got 1.0"),
        ({"features": 0}, "features must be >= 1, got 0"),
        ({"squared": 5}, "squared must be at most the 4 features, got 5"),
        ({"radius": 2.1}, "the radius of 4 features must be at least 1e-9 and at most their square root, got 2.1"),
        ({"radius": 0.0}, "the radius of 4 features must be at least 1e-9"),
    ],
)
def test_impossible_moments_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        record(**changed)


def test_sums_of_other_features_are_refused() -> None:
    for shape, numbers in (((2, 3), 4), ((2, 4), 3), ((1, 4), 4)):
        with pytest.raises(ParameterError, match="sums must be of 4 features, 4 of them numbers"):
            release_moments(np.zeros(shape, np.int64), record(), rows=1, numbers=np.arange(4) < numbers)


def test_more_rows_than_the_sums_can_hold_are_refused() -> None:
    check_rows(2**33, radius=1.0)
    with pytest.raises(ParameterError, match="at most 85,899,345 such rows, got 85,899,346"):
        check_rows(85_899_346, radius=10.0)


RECIPE = Recipe(loss=Logistic(), dims=5, rows=1000, batch_size=30, passes=3, schedule=constant(0.05))


@pytest.mark.parametrize("budget", [Budget(0.7), Budget(0.7, 1e-6), None])
@pytest.mark.parametrize("kind", EVERY)
def test_the_certificate_survives_the_round_trip_and_verifies(kind: Moments, budget: Budget | None) -> None:
    made = certify(RECIPE, budget, standardization=record(kind, whole=budget))
    again = Certificate.from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False)))
    assert again == made
    verify(again)
    assert made.training_budget == (None if budget is None else budget.take(0.1)[1])
    assert made.standardization is not None
    assert ("without noise" in made.standardization.describe()) == (budget is None)


def test_standardizing_leaves_more_noise_to_the_weights() -> None:
    plain, less = certify(RECIPE, Budget(1.0)), certify(RECIPE, Budget(1.0), standardization=record())
    assert plain.mechanism is not None
    assert less.mechanism is not None
    assert less.mechanism.scale == pytest.approx(plain.mechanism.scale / 0.9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("share", 0.01),
        ("share", 2.0),
        ("share", "all"),
        ("moments", "mean"),
        ("moments", "median"),
        ("features", 3),
        ("squared", 1),
        ("radius", 0.1),
        ("budget", {"epsilon": 1.0, "delta": 0.0}),
        ("budget", None),
        ("sensitivity", 0.1),
        ("mechanism", {"kind": "spherical", "scale": 1e-3, "dimensions": 8}),
        ("mechanism", None),
        ("rows", 10),
    ],
)
def test_a_tampered_record_is_caught(key: str, value: object) -> None:
    written = certify(RECIPE, Budget(0.7), standardization=record(whole=Budget(0.7))).to_dict()
    written["standardization"][key] = value
    with pytest.raises(CertificateError):
        verify(Certificate.from_dict(written))


@pytest.mark.parametrize(("factor", "valid"), [(1.0, True), (0.5, False)])
def test_gaussian_noise_is_accepted_where_spherical_noise_is_shorter(factor: float, valid: bool) -> None:
    whole = Budget(0.7, 1e-6)
    made = record(whole=whole)
    assert made.mechanism is not None
    assert made.mechanism.kind == "spherical"
    assert made.budget is not None
    sigma = factor * made.sensitivity * gaussian_sigma(made.budget)
    earlier = replace(made, mechanism=Mechanism("gaussian", sigma, made.dimensions))
    certificate = certify(RECIPE, whole, standardization=earlier)
    if valid:
        verify(certificate)
    else:
        with pytest.raises(CertificateError):
            verify(certificate)


def test_a_record_that_was_removed_is_caught() -> None:
    written = certify(RECIPE, Budget(0.7), standardization=record(whole=Budget(0.7))).to_dict()
    with pytest.raises(CertificateError):
        verify(Certificate.from_dict({**written, "standardization": None}))
