"""The accountant of sampled updates: against dp-accounting, against brute force, and where it gives up."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.errors import ParameterError
from boltdp.privacy.accounting.privacy_loss_distributions import (
    MIN_DEVIATION,
    RUNGS_PER_DOUBLING,
    Profile,
    _compute_normal_cdf,
    _discretise_update,
    _find_fast_length,
    bound_delta_of_updates,
    find_smallest_deviation,
    make_fixed_size_profile,
    make_poisson_profile,
)
from boltdp.privacy.budget import Budget
from boltdp.privacy.mechanisms import calibrate_unit_gaussian

CASES = [(1.0, 1e-6, 0.01, 1000), (4.0, 1e-5, 0.01, 10_000), (0.05, 1e-9, 1e-3, 1000), (2.0, 1e-6, 0.5, 10)]


def library(deviation: float, rate: float, updates: int, epsilon: float, *, relation: str, upper: bool) -> float:
    """The delta of dp-accounting: its pessimistic estimate, or its optimistic one, which is below the truth."""
    one = pld.from_gaussian_mechanism(
        deviation,
        sampling_prob=rate,
        pessimistic_estimate=upper,
        value_discretization_interval=epsilon / (100 * math.sqrt(updates)),
        neighboring_relation=NeighboringRelation[relation],
    )
    return float(one.self_compose(updates).get_delta_for_epsilon(epsilon))


@pytest.mark.parametrize(("epsilon", "delta", "rate", "updates"), CASES)
def test_poisson_samples_agree_with_dp_accounting(epsilon: float, delta: float, rate: float, updates: int) -> None:
    budget = Budget(epsilon, delta)
    deviation = find_smallest_deviation(
        lambda one: make_poisson_profile(one, rate=rate), updates=updates, budget=budget
    )
    ours = bound_delta_of_updates(make_poisson_profile(deviation, rate=rate), updates=updates, budget=budget)
    below = library(deviation, rate, updates, epsilon, relation="REPLACE_ONE", upper=False)
    above = library(deviation, rate, updates, epsilon, relation="REPLACE_ONE", upper=True)
    assert below <= ours <= delta
    assert ours <= 1.1 * above
    rung = deviation / 2.0 ** (1 / RUNGS_PER_DOUBLING)
    assert bound_delta_of_updates(make_poisson_profile(rung, rate=rate), updates=updates, budget=budget) > delta


@pytest.mark.parametrize(("epsilon", "delta", "rate", "updates"), CASES)
def test_samples_of_fixed_size_cost_at_least_what_removing_a_row_costs(
    epsilon: float, delta: float, rate: float, updates: int
) -> None:
    """A row whose replacement equals another row: that is the pair of dp-accounting's add-or-remove."""
    budget = Budget(epsilon, delta)
    deviation = find_smallest_deviation(
        lambda one: make_fixed_size_profile(one, rate=rate), updates=updates, budget=budget
    )
    ours = bound_delta_of_updates(make_fixed_size_profile(deviation, rate=rate), updates=updates, budget=budget)
    assert library(deviation, rate, updates, epsilon, relation="ADD_OR_REMOVE_ONE", upper=False) <= ours <= delta


@pytest.mark.parametrize(("epsilon", "delta", "updates"), [(1.0, 1e-6, 1), (0.01, 4e-12, 100_000), (4.0, 1e-14, 50)])
def test_without_sampling_it_is_the_analytic_gaussian(epsilon: float, delta: float, updates: int) -> None:
    budget = Budget(epsilon, delta)
    exact = math.sqrt(updates) * calibrate_unit_gaussian(budget)
    poisson = find_smallest_deviation(lambda one: make_poisson_profile(one, rate=1.0), updates=updates, budget=budget)
    fixed = find_smallest_deviation(lambda one: make_fixed_size_profile(one, rate=1.0), updates=updates, budget=budget)
    assert 1.0 <= poisson / (2 * exact) < 1.005
    assert 1.0 <= fixed / exact < 1.005


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.0, 2 * math.pi),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.05, 1.0),
    st.floats(0.0, 2.0),
    st.floats(0.4, 3.0),
)
def test_no_pair_of_gradients_is_worse_than_two_opposite_ones(
    angle: float, length: float, other: float, rate: float, epsilon: float, deviation: float
) -> None:
    """The claim of section 3, by integration over the plane."""
    axis = np.linspace(-1 - 7 * deviation, 1 + 7 * deviation, 301)
    x, y = np.meshgrid(axis, axis)

    def density(a: float, b: float) -> npt.NDArray[np.float64]:
        normal = np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * deviation**2)) / (2 * math.pi * deviation**2)
        return np.asarray(normal * (axis[1] - axis[0]) ** 2)

    middle = (1 - rate) * density(0.0, 0.0)
    first = middle + rate * density(length, 0.0)
    second = middle + rate * density(other * math.cos(angle), other * math.sin(angle))
    reached = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())
    assert reached <= float(make_poisson_profile(deviation, rate=rate)(np.array([epsilon]))[0]) + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(-1, 1), st.floats(0.05, 1.0), st.floats(0.0, 2.0))
def test_no_three_gradients_are_worse_than_the_bound_for_fixed_sizes(
    kept: float, ours: float, theirs: float, rate: float, epsilon: float
) -> None:
    """The claim of section 4 on a line: gradients from -1 to 1 are at most 2 apart, so deviation 1 is half of that."""
    axis = np.linspace(-9, 9, 4001)

    def density(centre: float) -> npt.NDArray[np.float64]:
        return np.asarray(np.exp(-((axis - centre) ** 2) / 2) / math.sqrt(2 * math.pi) * (axis[1] - axis[0]))

    first, second = ((1 - rate) * density(kept) + rate * density(one) for one in (ours, theirs))
    reached = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())
    assert reached <= float(make_fixed_size_profile(0.5, rate=rate)(np.array([epsilon]))[0]) + 1e-6


@pytest.mark.parametrize("deviation", [0.05, MIN_DEVIATION, 0.6, 1.0])
def test_far_too_little_noise_is_refused_without_effort(deviation: float) -> None:
    budget = Budget(0.1, 1e-9)
    assert bound_delta_of_updates(make_poisson_profile(deviation, rate=0.1), updates=1000, budget=budget) == 1.0


def test_far_too_much_noise_is_accepted_by_a_bound() -> None:
    budget = Budget(1.0, 1e-6)
    assert bound_delta_of_updates(make_poisson_profile(1000.0, rate=0.1), updates=10, budget=budget) < 1e-9


@pytest.mark.parametrize("profile", [make_poisson_profile, make_fixed_size_profile])
@pytest.mark.parametrize("epsilon", [20.0, 100.0])
def test_large_budgets_take_little_noise(profile: Callable[..., Profile], epsilon: float) -> None:
    deviation = find_smallest_deviation(lambda one: profile(one, rate=0.5), updates=1, budget=Budget(epsilon, 0.01))
    assert MIN_DEVIATION <= deviation < 2.0


def test_budgets_that_promise_nothing_are_refused() -> None:
    with pytest.raises(ParameterError, match="epsilon must be <= 100 where rows are sampled, got 101"):
        find_smallest_deviation(lambda one: make_poisson_profile(one, rate=0.5), updates=1, budget=Budget(101.0, 0.01))


@given(st.floats(0.1, 10.0), st.floats(0.001, 1.0))
def test_profiles_are_what_a_pair_of_distributions_can_have(deviation: float, rate: float) -> None:
    """Convex and falling as functions of e^epsilon: what the discretisation needs."""
    ratios = np.linspace(1.0, 20.0, 400)
    for profile in (make_poisson_profile(deviation, rate=rate), make_fixed_size_profile(deviation, rate=rate)):
        deltas = profile(np.log(ratios))
        slopes = np.diff(deltas)
        assert (slopes <= 1e-14).all()
        assert (np.diff(slopes) >= -1e-13).all()


def test_next_to_no_noise_promises_nothing_and_is_told_at_once() -> None:
    profile = make_poisson_profile(1e-3, rate=0.01)
    assert profile(np.array([0.0, 1.0])).tolist() == [1.0, 1.0]
    assert bound_delta_of_updates(profile, updates=100, budget=Budget(4.0, 1e-5)) == 1.0


def test_noise_beyond_all_use_spends_next_to_nothing() -> None:
    for profile in (make_poisson_profile(1e308, rate=0.01), make_fixed_size_profile(1e308, rate=0.01)):
        assert np.isfinite(profile(np.array([0.0, 1.0, 100.0]))).all()
        assert profile(np.array([0.0]))[0] < 1e-9


def test_the_normal_distribution_function_is_precise_in_its_tail() -> None:
    expected = [4.60535301e-308, 0.5, 1.0]
    assert _compute_normal_cdf(np.array([-37.5, 0.0, 9.0])).tolist() == pytest.approx(expected, rel=1e-8, abs=0.0)


def test_find_fast_lengths_have_small_prime_factors() -> None:
    assert [_find_fast_length(least) for least in (7, 65_537, 10**6)] == [8, 65_610, 1_000_000]


@pytest.mark.parametrize("allowed", [1e-2, 1e-4])
def test_a_discretised_update_spends_at_least_its_profile(allowed: float) -> None:
    """At all epsilons, also beyond the grid, where only the mass at infinity is left."""
    profile = make_poisson_profile(1.0, rate=0.1)
    losses = _discretise_update(profile, updates=10, epsilon=1.0, allowed=allowed)
    assert losses is not None
    grid = losses.width * losses.places
    for epsilon in np.linspace(0.0, 1.5 * float(grid.max()), 40).tolist():
        spent = float(losses.masses @ np.maximum(-np.expm1(epsilon - grid), 0.0)) + losses.infinite
        assert spent >= float(profile(np.array([epsilon]))[0]) * (1 - 1e-9)
