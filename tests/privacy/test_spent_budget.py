"""What several releases spend together: against dp-accounting, exact sums, and where nothing can be said."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.losses import Logistic
from boltdp.privacy.accounting.privacy_loss_distributions import (
    PrivacyLossDistribution,
    bound_delta_of_losses,
    discretise_profile,
)
from boltdp.privacy.accounting.spent_budget import (
    Alternatives,
    Charge,
    CompositionRule,
    ParallelComposition,
    PureRelease,
    Release,
    bound_delta_of_charges,
    check_charge,
    compose_charges,
)
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import OVERSPENT, Certificate, certify
from boltdp.privacy.events.event import SEEDED, BudgetedEvent, Composition, Event, NoiselessTraining, mark_non_private
from boltdp.privacy.events.noisy_counts import make_noisy_unusable_label_count
from boltdp.privacy.events.objective_perturbation import make_objective_perturbation
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.serialization import from_record, to_record
from boltdp.privacy.training_problem import Problem
from boltdp.settings import Settings
from tests.plans import plan_certificate

PROBLEM = Problem(loss=Logistic(), dims=9, rows=1000, regularization=0.01)


def certificate(epsilon: float, delta: float = 0.0, algorithm: str = "bolton", dims: int = 20) -> Certificate:
    return plan_certificate(
        Settings(epsilon=epsilon, delta=delta, algorithm=algorithm), rows=10_000, dims=dims, classes=2
    )


def pure(epsilon: float) -> Release:
    return Release(Budget(epsilon), make_objective_perturbation(PROBLEM, Budget(epsilon)))


class Plain(Event):
    """A mechanism by itself, which no certificate knows."""

    def __init__(self, noise: Mechanism, sensitivity: float) -> None:
        self.noise, self.sensitivity = noise, sensitivity

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        del target
        return self.noise.delta(epsilon, sensitivity=self.sensitivity)


def laplace(epsilon: float) -> Release:
    return Release(Budget(epsilon), Plain(Mechanism("spherical", 1.0 / epsilon, 1), 1.0))


def gaussian(distance: float, budget: Budget) -> Release:
    return Release(budget, Plain(Mechanism("gaussian", 1.0 / distance, 1), 1.0))


def library(parts: list[tuple[str, float]], epsilon: float, *, upper: bool) -> float:
    """The delta of dp-accounting for mechanisms that one row can move by 1, added up."""
    made = {"gaussian": pld.from_gaussian_mechanism, "laplace": pld.from_laplace_mechanism}
    options = {"pessimistic_estimate": upper, "value_discretization_interval": 1e-3}
    # Without sampling, removing a row and replacing one are the same pair at this sensitivity.
    whole = None
    for kind, scale in parts:
        one = made[kind](scale, **options)
        whole = one if whole is None else whole.compose(one)
    assert whole is not None
    return float(whole.get_delta_for_epsilon(epsilon))


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 3.0])
def test_mixtures_agree_with_dp_accounting(epsilon: float) -> None:
    charges: list[Charge] = [laplace(0.3), laplace(0.3), laplace(0.1), gaussian(0.3, Budget(1.0, 1e-3))]
    charges += [gaussian(0.2, Budget(1.0, 1e-5))] * 3
    parts = [("laplace", 1 / 0.3)] * 2 + [("laplace", 10.0)] + [("gaussian", 1 / 0.3)] + [("gaussian", 5.0)] * 3
    below = library(parts, epsilon, upper=False)
    above = library(parts, epsilon, upper=True)
    ours = bound_delta_of_charges(charges, Budget(epsilon, above))
    assert below <= ours <= 1.2 * above


def test_gaussians_on_the_grid_are_just_above_their_exact_composition() -> None:
    distances = [0.1, 0.2, 0.2, 0.3]
    exact = Mechanism("gaussian", 1.0, 1).delta(1.5, sensitivity=math.hypot(*distances))
    charges = [gaussian(distance, Budget(1.0, 1e-3)) for distance in distances]
    assert exact <= bound_delta_of_charges(charges, Budget(1.5, exact)) <= 1.1 * exact


def test_gaussian_certificates_are_composed_exactly() -> None:
    one = certificate(0.5, 1e-7, "noisy-gd")
    distance = one.spent.mu
    assert distance is not None
    exact = Mechanism("gaussian", 1.0, 1).delta(1.5, sensitivity=distance * math.sqrt(6))
    assert bound_delta_of_charges([one] * 6, Budget(1.5, 1e-6)) == pytest.approx(exact, rel=1e-9)


def test_a_count_of_labels_and_its_training_are_composed_as_two_releases() -> None:
    training, share = certificate(0.5, 1e-7, "noisy-gd").spent, Budget(0.05)
    assert training.mu is not None
    labels = BudgetedEvent(share, make_noisy_unusable_label_count(share))
    one, whole = certify(training, Budget(0.55, 1e-7), labels=labels), Budget(1.5, 1e-6)
    assert one.private
    parts = [("gaussian", 1 / training.mu), ("laplace", 20.0)] * 6
    assert (
        library(parts, 1.5, upper=False)
        <= bound_delta_of_charges([one] * 6, whole)
        <= 1.2 * library(parts, 1.5, upper=True)
    )
    # A part that claims nothing is not taken out of what claims something.
    assert isinstance(one.spent, Composition)
    free = Composition((replace(labels, budget=None), one.spent.parts[1]))
    assert bound_delta_of_charges([replace(one, spent=free)], whole) == 1.0


def test_releases_of_which_only_epsilon_is_known_are_randomised_responses() -> None:
    """Then losses are plus or minus epsilon, and their sum can be written down."""
    epsilons, at = [0.25, 0.5, 0.75, 0.75], 1.0
    exact = 0.0
    for signs in product((1, -1), repeat=len(epsilons)):
        loss = math.fsum(sign * one for sign, one in zip(signs, epsilons, strict=True))
        likely = math.prod(math.exp(s * e / 2) / (2 * math.cosh(e / 2)) for s, e in zip(signs, epsilons, strict=True))
        exact += likely * max(0.0, -math.expm1(at - loss))

    def known(epsilon: float) -> PrivacyLossDistribution:
        return discretise_profile(lambda asked: np.where(asked < epsilon, 1.0, 0.0), width=0.25, longest=epsilon)

    assert bound_delta_of_losses([(known(one), 1) for one in epsilons], Budget(at, exact)) == pytest.approx(
        exact, rel=1e-3
    )


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12),
    st.floats(0.01, 0.5),
)
def test_a_pair_is_above_the_bounds_it_was_made_of(values: list[float], width: float) -> None:
    """Of any bounds at all: its own profile is at most the bounds, convex, and that of a pair."""
    bounds = np.array(values)
    losses = discretise_profile(
        lambda epsilons: bounds[: len(epsilons)], width=width, longest=width * (len(bounds) - 0.5)
    )
    assert math.isclose(losses.masses.sum() + losses.infinite, 1.0, rel_tol=1e-9)
    assert (losses.masses >= 0).all()

    def profile(epsilon: float) -> float:
        reached = losses.masses * np.maximum(-np.expm1(epsilon - losses.width * losses.places), 0.0)
        return float(reached.sum()) + losses.infinite

    # Below every bound that was given, and above every symmetric convex function that is: such as the largest pair
    # that is private with the smallest bound at its place.
    for place, bound in enumerate(np.minimum.accumulate(bounds), start=1):
        assert profile(width * place) <= bound + 1e-9
    second = losses.masses * np.exp(-losses.width * losses.places)
    assert math.isclose(second.sum() + losses.infinite, 1.0, rel_tol=1e-9), "the pair is symmetric"


@settings(max_examples=30)
@given(st.floats(0.05, 3.0), st.floats(0.02, 0.3))
def test_a_pair_is_nowhere_below_the_mechanism(distance: float, width: float) -> None:
    noise = Mechanism("gaussian", 1.0, 1)

    def profile(epsilons: Doubles) -> Doubles:
        return np.array([noise.delta(float(one), sensitivity=distance) for one in epsilons])

    losses = discretise_profile(profile, width=width, longest=4.0)
    for epsilon in np.linspace(0.0, 5.0, 23):
        reached = losses.masses * np.maximum(-np.expm1(epsilon - losses.width * losses.places), 0.0)
        assert reached.sum() + losses.infinite >= noise.delta(float(epsilon), sensitivity=distance) * (1 - 1e-9)


def test_sums_count_while_they_are_within_the_budget() -> None:
    spent = compose_charges([pure(0.1)] * 10, Budget(1.0), rule="curves")
    assert (spent.releases, spent.composed) == (10, None)
    assert spent.is_within(Budget(1.0)), "ten tenths are one"
    assert not compose_charges([pure(0.1)] * 11, Budget(1.0), rule="curves").is_within(Budget(1.0))


def test_curves_let_more_through_than_sums_unless_the_rule_forbids_it() -> None:
    budget, many = Budget(1.0, 1e-6), [certificate(0.1)] * 20
    assert compose_charges(many, budget, rule="curves").is_within(budget)
    assert not compose_charges(many, budget, rule="basic").is_within(budget)
    assert compose_charges(many, budget, rule="basic").composed is None


def test_whole_curves_are_computed_if_asked_for() -> None:
    budget, few = Budget(1.0, 1e-6), [certificate(0.1)] * 2
    assert compose_charges(few, budget, rule="curves").composed is None
    composed = compose_charges(few, budget, rule="curves", always_compose=True).composed
    assert composed is not None
    assert composed <= 1e-6


@pytest.mark.parametrize(
    "algorithm",
    [
        *("bolton", "objective", "noisy-gd", "scs13"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("dpsgd", "bst14")),  # each of their deltas is a sum
    ],
)
def test_every_algorithm_can_be_composed(algorithm: str) -> None:
    budget, charges = Budget(2.0, 1e-5), [certificate(0.5, 1e-6, algorithm)] * 3 + [pure(0.2)]
    spent = compose_charges(charges, budget, rule="curves", always_compose=True)
    assert spent.composed is not None
    assert spent.composed <= 1e-5
    assert spent.remaining > budget.epsilon - spent.epsilon, "more than by sums"


@settings(max_examples=20)
@given(st.lists(st.sampled_from([0.05, 0.1, 0.3]), min_size=1, max_size=6), st.sampled_from([0.05, 0.3]))
def test_another_release_never_spends_less(epsilons: list[float], more: float) -> None:
    budget = Budget(0.5, 1e-6)
    before, after = [laplace(one) for one in epsilons], [laplace(one) for one in [*epsilons, more]]
    if compose_charges(after, budget, rule="curves").is_within(budget):
        assert compose_charges(before, budget, rule="curves").is_within(budget)


@pytest.mark.parametrize("rule", ["adaptive", "curves"])
def test_one_more_release_of_the_remaining_epsilon_fits_and_a_larger_one_does_not(rule: CompositionRule) -> None:
    budget, many = Budget(2.0, 1e-6), [certificate(0.5, 1e-9, "noisy-gd")] * 6
    spent = compose_charges(many, budget, rule=rule)
    assert spent.composed is not None
    assert 0.0 < spent.remaining < budget.epsilon
    for factor in (1.0, 1.05):
        more = Release(Budget(factor * spent.remaining), PureRelease(factor * spent.remaining))
        assert compose_charges([*many, more], budget, rule=rule).is_within(budget) == (factor == 1.0)
    assert f"epsilon {spent.remaining:.3g} of 2 remaining; 6 releases" in spent.describe(budget)
    assert spent.describe(budget).endswith(f"by {rule} composition")


def test_by_sums_the_rest_of_epsilon_remains() -> None:
    assert compose_charges([pure(0.5)], Budget(2.0), rule="adaptive").remaining == 1.5
    assert compose_charges([pure(0.5)] * 5, Budget(2.0), rule="adaptive").remaining == 0.0


def test_the_default_lets_more_small_releases_through_than_sums() -> None:
    budget = Budget(3.0, 1e-6)
    by_sums = [compose_charges([pure(0.025)] * count, budget, rule="basic").is_within(budget) for count in (120, 121)]
    assert by_sums == [True, False]
    assert compose_charges([pure(0.025)] * 240, budget, rule="adaptive").is_within(budget)


def test_both_filters_share_the_delta_of_the_budget() -> None:
    """Sums may use nine tenths of delta, unless the first release alone claims more: then they are the only rule."""
    budget = Budget(3.0, 1e-6)

    @dataclass(frozen=True)
    class Exhausted(Event):
        """It spends the whole delta that it claims."""

        spent: float

        def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
            return self.spent

    first = [Release(Budget(1.0, one), Exhausted(one)) for one in (8e-7, 1.5e-7)]
    assert compose_charges(first[:1], budget, rule="adaptive").is_within(budget)
    assert not compose_charges(first, budget, rule="adaptive").is_within(budget)
    whole: list[Charge] = [certificate(1.0, 1e-6, "noisy-gd"), pure(2.0)]
    assert compose_charges(whole, budget, rule="adaptive").is_within(budget)
    more = Release(Budget(0.01), PureRelease(0.01))
    assert not compose_charges([*whole, more], budget, rule="adaptive").is_within(budget)
    assert compose_charges(whole, budget, rule="adaptive").rule == "basic"


def test_trainings_chosen_by_what_was_seen_are_not_let_through_by_default() -> None:
    """Three trainings of epsilon 2 with a budget of 3: their curves fit, and hold only for plans made in advance."""
    budget, three = Budget(3.0, 1e-3), [pure(1.5)] * 3
    assert not compose_charges(three, budget, rule="adaptive").is_within(budget)


def test_where_curves_say_nothing_sums_count() -> None:
    many = [pure(0.5)] * 4
    assert bound_delta_of_charges(many, Budget(1e-4, 1e-6)) == 1.0
    assert bound_delta_of_charges([pure(0.5), laplace(999.0)], Budget(50.0, 1e-6)) == 1.0, "losses beyond all use"
    assert bound_delta_of_charges([pure(0.5)], Budget(1000.0, 1e-6)) == 1.0
    nothing = discretise_profile(np.ones_like, width=0.1, longest=1.0)
    assert bound_delta_of_losses([(nothing, 1)], Budget(1.0, 1e-6)) == 1.0


def test_what_is_not_private_is_counted_and_its_noise_still_adds_up() -> None:
    noiseless = Release(None, NoiselessTraining(PROBLEM))
    seeded = Release(Budget(0.5), mark_non_private(make_objective_perturbation(PROBLEM, Budget(0.5)), (SEEDED,)))
    spent = compose_charges([noiseless, seeded, pure(0.25)], Budget(1.0, 1e-6), rule="curves", always_compose=True)
    assert (spent.releases, spent.not_private, spent.epsilon) == (3, 2, 0.75)
    assert spent.composed is not None
    assert spent.composed < 1e-6
    assert Release(Budget(0.1), make_objective_perturbation(PROBLEM, Budget(0.5))).reasons == (OVERSPENT,)
    assert compose_charges([noiseless], Budget(1.0, 1e-6), rule="curves").releases == 1


def test_unknown_events_are_refused() -> None:
    @dataclass(frozen=True)
    class Unknown(Plain):
        noise: Mechanism
        sensitivity: float

    with pytest.raises(ParameterError, match=r"known events, got 'Unknown'"):
        check_charge(Release(Budget(1.0), Unknown(Mechanism("gaussian", 1.0, 1), 1.0)))
    with pytest.raises(ParameterError, match=r"known events"):
        check_charge(Release(Budget(1.0), mark_non_private(Plain(Mechanism("gaussian", 1.0, 1), 1.0), ("why",))))
    check_charge(certify(make_objective_perturbation(PROBLEM, Budget(1.0)), Budget(1.0)))
    with pytest.raises(ParameterError, match="must be about the relation of its events"):
        check_charge(Release(Budget(1.0), make_objective_perturbation(PROBLEM, Budget(1.0)), Adjacency.REPLACE_PERSON))
    with pytest.raises(ParameterError, match="must be at least one"):
        ParallelComposition(())


def test_events_about_rows_of_their_own_spend_what_the_worst_of_them_does() -> None:
    events = tuple(certificate(0.5, delta).spent for delta in (1e-7, 1e-6))
    event = ParallelComposition(events)
    for epsilon in (0.4, 0.5):
        assert event.delta(epsilon) == max(one.delta(epsilon) for one in events)
    assert event.children == events
    assert from_record(Event, to_record(event)) == event  # type: ignore[type-abstract]
    check_charge(Release(Budget(0.5, 1e-6), event))


def test_one_of_several_spends_what_the_worst_of_them_does() -> None:
    events = tuple(certificate(0.5, delta).spent for delta in (1e-7, 1e-6))
    event = Alternatives(0.5, events)
    assert event.delta(0.5) == max(one.delta(0.5) for one in events)
    assert event.delta(0.4) == 1.0
    assert event.children == events
    assert from_record(Event, to_record(event)) == event  # type: ignore[type-abstract]
    assert bound_delta_of_charges([Release(Budget(0.5, 1e-6), event)] * 2, Budget(1.1, 1e-5)) < 1e-5
