"""What spherical noise spends of delta, against independent numerics and by attack, and the scale that follows."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.privacy.budget import Budget
from boltdp.privacy.exact_noise import add_noise, make_seeded_bytes
from boltdp.privacy.mechanisms import (
    Mechanism,
    calibrate,
    calibrate_unit_gaussian,
    calibrate_unit_spherical,
    set_precision,
)
from boltdp.privacy.spherical_delta import (
    MAX_DIMENSIONS,
    MAX_DISTANCE,
    _compute_first_moment,
    choose_spherical_bits,
    compute_spherical_delta,
    find_spherical_scale,
)
from tests.privacy.test_attack_whitebox import caught

Sample = npt.NDArray[np.float64]

budgets = st.builds(
    lambda epsilon, log_delta: Budget(epsilon, 10.0**log_delta), st.floats(0.02, 12), st.floats(-14, -1)
)
few = st.integers(1, 150)


def compute_delta(scale: float, *, epsilon: float, dimensions: int) -> float:
    with set_precision(choose_spherical_bits(1 / scale)):
        enclosure = compute_spherical_delta(1 / arb(scale), arb(epsilon), dimensions)
        assert float(enclosure.rad()) <= 1e-12 * float(enclosure.mid())
        return float(enclosure)


def by_radius(scale: float, *, epsilon: float, dimensions: int) -> mpmath.mpf:
    """The definition, P[loss > epsilon] - e^epsilon * P'[loss > epsilon], radius by radius: no Bessel function in it.

    At radius r the noise loses more than epsilon in a cap of directions, whose size is an incomplete beta function.
    """
    with mpmath.workdps(40):
        a, e, half = 1 / mpmath.mpf(scale), mpmath.mpf(epsilon), mpmath.mpf(dimensions - 1) / 2

        def density(r: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp((dimensions - 1) * mpmath.log(r) - r - mpmath.loggamma(dimensions))

        def below(cosine: mpmath.mpf) -> mpmath.mpf:
            share = min(max((1 + cosine) / 2, mpmath.mpf(0)), mpmath.mpf(1))
            return mpmath.betainc(half, half, 0, share, regularized=True)

        def ours(r: mpmath.mpf) -> mpmath.mpf:
            return density(r) * below((a**2 - e**2 - 2 * r * e) / (2 * a * r))

        def theirs(r: mpmath.mpf) -> mpmath.mpf:
            return density(r) * below(-(a**2 - e**2 + 2 * r * e) / (2 * a * r))

        spread, far = math.sqrt(dimensions), [k * math.sqrt(dimensions) for k in (-6, -3, -1, 1, 3, 6, 12, 40)]
        middle = [dimensions + step for step in far if dimensions + step > 0]
        first, second = (a - e) / 2, (a + e) / 2
        full = mpmath.gammainc(dimensions, 0, first, regularized=True)
        cuts = [[start, *(r for r in middle if r > start), dimensions + 100 * spread] for start in (first, second)]
        return full + mpmath.quad(ours, cuts[0]) - mpmath.exp(e) * mpmath.quad(theirs, cuts[1])


@pytest.mark.parametrize(
    ("dimensions", "scale", "epsilon"),
    [(2, 0.6, 0.5), (3, 0.3, 1.0), (10, 0.15, 4.0), (51, 0.6, 0.5), (51, 0.15, 4.0), (200, 0.3, 1.0)],
)
def test_it_is_the_definition_to_ten_digits(dimensions: int, scale: float, epsilon: float) -> None:
    expected = by_radius(scale, epsilon=epsilon, dimensions=dimensions)
    assert compute_delta(scale, epsilon=epsilon, dimensions=dimensions) == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize(("scale", "epsilon"), [(0.5, 1.0), (0.9, 1.0), (3.0, 0.1)])
def test_it_is_the_excess_of_one_density_over_another(dimensions: int, scale: float, epsilon: float) -> None:
    """The integral of (f(z) - e^epsilon * f(z - a))+ over all of the plane or of space, by brute force."""
    radii, angles = (np.arange(4000) + 0.5) / 4000 * 60, (np.arange(2000) + 0.5) / 2000 * math.pi
    r, angle = radii[:, None], angles[None, :]
    other = np.sqrt(r**2 - 2 * r * np.cos(angle) / scale + 1 / scale**2)
    volume = r ** (dimensions - 1) * np.sin(angle) ** (dimensions - 2)
    excess = np.maximum(np.exp(-r) - np.exp(epsilon - other), 0) * volume
    whole = (np.exp(-r) * volume).sum()
    expected = excess.sum() / whole
    assert compute_delta(scale, epsilon=epsilon, dimensions=dimensions) == pytest.approx(expected, rel=2e-3)


def test_in_one_dimension_it_is_the_laplace_mechanism() -> None:
    laplace = privacy_loss_mechanism.LaplacePrivacyLoss(0.4)
    assert compute_delta(0.4, epsilon=1.0, dimensions=1) == pytest.approx(laplace.get_delta_for_epsilon(1.0), rel=1e-12)
    assert calibrate_unit_spherical(Budget(1.0, 0.1), dimensions=1) == pytest.approx(
        1 / (1 - 2 * math.log(0.9)), rel=1e-9
    )


def noise(mechanism: Mechanism, count: int, seed: int) -> Sample:
    random = np.random.default_rng(seed)
    directions = random.standard_normal((count, mechanism.dimensions))
    lengths = random.gamma(mechanism.dimensions, mechanism.scale, count)
    return np.asarray(directions * (lengths / np.linalg.norm(directions, axis=1))[:, None])


@pytest.mark.parametrize("dimensions", [2, 3, 20, 100])
def test_samples_spend_as_much(dimensions: int) -> None:
    mechanism = Mechanism("spherical", calibrate_unit_spherical(Budget(1.0, 0.01), dimensions=dimensions), dimensions)
    drawn = noise(mechanism, 200_000, seed=dimensions)
    lengths = np.linalg.norm(drawn, axis=1)
    drawn[:, 0] -= 1.0
    losses = (np.linalg.norm(drawn, axis=1) - lengths) / mechanism.scale
    terms = np.maximum(-np.expm1(1.0 - losses), 0)
    assert abs(terms.mean() - 0.01) < 4 * terms.std() / math.sqrt(len(terms))


@settings(max_examples=5, deadline=None)
@given(budgets, st.integers(2, 60))
def test_the_scale_spends_delta_and_no_more(budget: Budget, dimensions: int) -> None:
    scale = calibrate_unit_spherical(budget, dimensions=dimensions)
    if scale * budget.epsilon < 1 - 1e-6:  # else rounding of the scale leaves a visible part of delta
        truth = by_radius(scale, epsilon=budget.epsilon, dimensions=dimensions)
        assert 1 - 1e-4 <= truth / budget.delta <= 1 + 1e-12


@settings(max_examples=40, deadline=None)
@given(budgets, few, st.floats(1.0, 1.5))
def test_less_is_needed_the_more_may_be_spent_and_the_more_dimensions_share_it(
    budget: Budget, dimensions: int, more: float
) -> None:
    scale = calibrate_unit_spherical(budget, dimensions=dimensions) * (1 + 1e-9)
    assert calibrate_unit_spherical(replace(budget, epsilon=more * budget.epsilon), dimensions=dimensions) <= scale
    assert calibrate_unit_spherical(replace(budget, delta=more * budget.delta), dimensions=dimensions) <= scale
    assert calibrate_unit_spherical(budget, dimensions=dimensions + 1) <= scale
    assert scale <= (1 + 2e-9) / budget.epsilon


@settings(deadline=None)
@given(st.floats(0.02, 5), st.floats(0.05, 3), st.floats(1.0, 3), st.integers(1, 100))
def test_the_further_apart_the_more_is_spent(epsilon: float, scale: float, closer: float, dimensions: int) -> None:
    with set_precision(2 * choose_spherical_bits(1 / scale)):
        near, far = (compute_spherical_delta(1 / arb(s), arb(epsilon), dimensions) for s in (closer * scale, scale))
        assert not near > far
        assert 0 <= far <= 1


@settings(max_examples=40, deadline=None)
@given(budgets, few)
def test_more_bits_say_the_same(budget: Budget, dimensions: int) -> None:
    scale = calibrate_unit_spherical(budget, dimensions=dimensions)
    bits = choose_spherical_bits(1 / scale)
    found = []
    for precise in (bits, 2 * bits):
        with set_precision(precise):
            found.append(compute_spherical_delta(1 / arb(scale), arb(budget.epsilon), dimensions))
    assert found[0].overlaps(found[1])
    assert found[1] <= budget.delta


@pytest.mark.parametrize("dimensions", [1, 2, 5, 20])
def test_without_delta_it_is_the_pure_scale(dimensions: int) -> None:
    scales = [
        2.0 * calibrate_unit_spherical(Budget(2.0, delta), dimensions=dimensions) for delta in (1e-2, 1e-10, 1e-60)
    ]
    assert scales == sorted(scales)
    assert 1 - 1e-3 < scales[-1] <= 1 + 1e-15
    assert calibrate(3.0, dimensions=dimensions, budget=Budget(2.0)).scale == pytest.approx(1.5)


def test_in_many_dimensions_it_is_nearly_gaussian() -> None:
    budget = Budget(1.0, 1e-6)
    ratio = calibrate_unit_spherical(budget, dimensions=1000) * math.sqrt(1000) / calibrate_unit_gaussian(budget)
    assert 0.99 < ratio < 1


@pytest.mark.parametrize(("dimensions", "low", "high"), [(10, 0.5, 0.8), (50, 0.83, 0.95), (100, 0.91, 0.975)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-10])
def test_it_is_shorter_than_gaussian_noise(
    dimensions: int, low: float, high: float, epsilon: float, delta: float
) -> None:
    budget = Budget(epsilon, delta)
    chosen = calibrate(1.0, dimensions=dimensions, budget=budget)
    assert chosen.kind == "spherical"
    gaussian = Mechanism("gaussian", calibrate_unit_gaussian(budget), dimensions)
    assert low < chosen.expected_norm / gaussian.expected_norm < high


@pytest.mark.parametrize(("dimensions", "epsilon"), [(MAX_DIMENSIONS + 1, 1.0), (900, 60.0)])
def test_gaussian_noise_is_taken_where_nothing_shorter_can_be_certified(dimensions: int, epsilon: float) -> None:
    budget = Budget(epsilon, 1e-3)
    assert calibrate(1.0, dimensions=dimensions, budget=budget).kind == "gaussian"
    assert calibrate_unit_spherical(budget, dimensions=dimensions) <= (1 + 1e-15) / epsilon


@pytest.mark.parametrize(("distance", "dimensions"), [(3.0, MAX_DIMENSIONS + 1), (MAX_DISTANCE + 1, 3)])
def test_what_is_not_known_is_said_to_be_anything(distance: float, dimensions: int) -> None:
    with set_precision(256):
        assert compute_spherical_delta(arb(distance), arb(1), dimensions).contains(arb(0.7))


def test_a_distance_within_epsilon_spends_nothing() -> None:
    with set_precision(256):
        assert compute_spherical_delta(arb(1), arb(1), 7) == 0


@pytest.mark.parametrize("unknown", [arb(0).union(arb(1)), arb(1, 0.9), arb.nan(), arb.pos_inf()], ids=str)
def test_a_scale_that_cannot_be_certified_is_not_taken(unknown: arb) -> None:
    """Wherever nothing is known: below 3, above it, or between two ends of the search."""
    assert find_spherical_scale(lambda _: unknown, delta=0.5, pure=8.0) == 8.0
    assert (
        3 < find_spherical_scale(lambda scale: 1 / arb(scale) if scale > 3 else unknown, delta=0.5, pure=8.0) < 3.000001
    )
    gap = find_spherical_scale(lambda scale: unknown if 2 < scale < 3 else 1 / arb(scale), delta=0.4, pure=8.0)
    assert 3 <= gap < 3.000001


def test_all_of_delta_is_spent_where_a_search_must_begin_beyond_the_longest_distance() -> None:
    budget, dimensions = Budget(40.0, 0.007), 554
    scale = calibrate_unit_spherical(budget, dimensions=dimensions)
    assert 2 * budget.epsilon < 1 / scale < MAX_DISTANCE
    with set_precision(choose_spherical_bits(1 / scale)):
        spent = compute_spherical_delta(1 / arb(scale), arb(budget.epsilon), dimensions)
        assert arb(0.999) < spent / arb(budget.delta) <= 1


@pytest.mark.parametrize("dimensions", [2, 10])
def test_an_attack_finds_no_violation_and_finds_half_of_the_noise(dimensions: int) -> None:
    """The evidence in each draw around the origin, or around a point at the sensitivity from it, is its loss."""
    budget, sensitivity, count = Budget(1.0, 0.05), 2.0, 2000
    mechanism = Mechanism(
        "spherical", sensitivity * calibrate_unit_spherical(budget, dimensions=dimensions), dimensions
    )
    places = np.zeros((2, dimensions))
    places[1, 0] = sensitivity

    def evidence(noise: Mechanism) -> list[Sample]:
        found = []
        for seed, place in enumerate(places):
            source = make_seeded_bytes(seed)
            drawn = np.array([add_noise(noise, place, source) for _ in range(count)])
            lengths = [np.linalg.norm(drawn - other, axis=1) for other in places]
            found.append((lengths[1] - lengths[0]) / noise.scale)
        return found

    ours, theirs = evidence(mechanism)
    assert not caught(ours, theirs, budget)
    assert not caught(theirs, ours, budget)
    ours, theirs = evidence(replace(mechanism, scale=mechanism.scale / 2))
    assert caught(ours, theirs, budget)


@pytest.mark.parametrize("dimensions", [203, 450, 1000])
@pytest.mark.parametrize("room", [0.751, 0.8, 0.919])
def test_the_first_moment_is_the_incomplete_beta_function(dimensions: int, room: float) -> None:
    """Where it is summed by a series; in a higher precision the library keeps enough digits to compare."""
    exponent = arb(dimensions - 1) / 2
    with set_precision(160):
        series = _compute_first_moment(arb(room), exponent)
    with set_precision(600):
        exact = arb(room).beta_lower(exponent, arb(0.5)) / 2
        assert series.contains(exact)
        assert series.rad() < 1e-40 * exact
