"""Composition of several releases about the same rows, by one of three rules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np

from boltdp._array_types import Doubles
from boltdp._bisect import bisect_integers
from boltdp.errors import ParameterError
from boltdp.privacy.accounting.privacy_loss_distributions import (
    MAX_EPSILON,
    RESOLUTION,
    TRUNCATION_SHARE,
    PrivacyLossDistribution,
    bound_delta_of_losses,
    discretise_profile,
)
from boltdp.privacy.accounting.zcdp import add_zcdp, measure_zcdp
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import find_non_private_reasons
from boltdp.privacy.events.event import BudgetedEvent, Composition, Event, strip_non_private
from boltdp.privacy.events.label_quantiles import LabelQuantiles
from boltdp.privacy.events.noisy_counts import NoisyUnusableLabelCount
from boltdp.privacy.serialization import load_event_classes

#: How the costs of several releases are composed: by basic composition or zCDP, by privacy profiles, by sums alone.
CompositionRule = Literal["adaptive", "curves", "basic"]
#: The shares of the budget's delta for sums of claimed epsilons and deltas, and for composed costs.
DELTA_SHARES: dict[CompositionRule, tuple[float, float]] = {
    "adaptive": (0.9, 0.1),
    "curves": (1.0, 1.0),
    "basic": (1.0, 0.0),
}

#: Sums of claimed epsilons and deltas may exceed a budget by this part, so that ten tenths make one.
SUM_TOLERANCE = 1e-9
#: The smallest width of the loss grid: below it the differences of a profile have too few digits.
MIN_WIDTH = 1e-5
#: Where a profile has no bound for a small target delta, it is evaluated again for this one.
FALLBACK_TARGET = 1e-2
#: The remaining epsilon of composed costs is found in steps of the budget's epsilon divided by this.
EPSILON_STEPS = 1000


class Charge(Protocol):
    """A release that a budget is charged for: a `Certificate` or a `Release`."""

    @property
    def budget(self) -> Budget | None: ...  #: the claimed epsilon and delta; None: nothing is claimed
    @property
    def spent(self) -> Event: ...  #: the event that the claim follows from
    @property
    def adjacency(self) -> Adjacency: ...  #: the neighbouring relation for which the claim holds
    @property
    def reasons(self) -> tuple[str, ...]: ...  #: why it is not private; empty if it is


@dataclass(frozen=True)
class Release:
    """A release without a certificate, such as noisy counts."""

    budget: Budget | None
    spent: Event
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    @property
    def reasons(self) -> tuple[str, ...]:
        return find_non_private_reasons(self.spent, self.budget)


@dataclass(frozen=True)
class Alternatives(Event):
    """One of several events, each within the same budget, chosen by public rows or by earlier releases."""

    kind = "one of several"
    epsilon: float  #: that each of them was planned for
    events: tuple[Event, ...]

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the largest delta of the events at the planned epsilon; below that epsilon nothing is guaranteed.

        Proof: composition.md 5
        """
        if epsilon < self.epsilon:
            return 1.0
        return max(event.delta(self.epsilon, target=target) for event in self.events)


@dataclass(frozen=True)
class ParallelComposition(Event):
    """Parallel composition: events about disjoint rows, where public information assigns each row to one of them."""

    kind = "parallel"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not self.events:
            raise ParameterError("parallel events must be at least one, got none")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the largest delta of the events, since a row is in only one.

        Proof: composition.md 7
        """
        return max(event.delta(epsilon, target=target) for event in self.events)


@dataclass(frozen=True)
class PureRelease(Event):
    """A release of which only (epsilon, 0)-privacy is known."""

    epsilon: float

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return 1 below the claimed epsilon, and 0 from there on."""
        return float(epsilon < self.epsilon)


@dataclass(frozen=True)
class SpentBudget:
    """The composed cost of several releases."""

    releases: int
    epsilon: float  #: the sum of the claimed epsilons, by basic composition
    delta: float  #: the sum of the claimed deltas
    rule: CompositionRule = "basic"
    composed: float | None = None  #: delta at the budget's epsilon, by zCDP or privacy profiles; None: not computed
    remaining: float = 0.0  #: the largest epsilon that one more release, with delta = 0, may claim
    not_private: int = 0  #: the number of non-private releases; those without a claim are in no sum

    def is_within(self, budget: Budget) -> bool:
        """Return whether the composed cost of the releases is within a budget, by the rule.

        Proof: composition.md 1, 3, 4
        """
        _, composed = DELTA_SHARES[self.rule]
        return self.sums_fit(budget) or (self.composed is not None and self.composed <= composed * budget.delta)

    def sums_fit(self, budget: Budget) -> bool:
        """Return whether the sums of the claimed epsilons and deltas are within their share of a budget."""
        most, (share, _) = 1.0 + SUM_TOLERANCE, DELTA_SHARES[self.rule]
        return self.epsilon <= budget.epsilon * most and self.delta <= share * budget.delta * most

    def describe(self, budget: Budget) -> str:
        """Describe in a line how much of the budget is spent.

        >>> SpentBudget(releases=2, epsilon=1.5, delta=0.0, remaining=0.5).describe(Budget(2.0))
        'epsilon 0.5 of 2 remaining; 2 releases spent epsilon 1.5, by basic composition'
        """
        return f"epsilon {self.remaining:.3g} of {budget.epsilon:g} remaining; {self.describe_cost(budget)}"

    def describe_cost(self, budget: Budget) -> str:
        """Describe in words what the releases cost together, by sums or by composition."""
        by = "1 release" if self.releases == 1 else f"{self.releases} releases"
        if self.composed is not None and not self.sums_fit(budget):
            return f"{by} spent delta {self.composed:.3g} at epsilon {budget.epsilon:g}, by {self.rule} composition"
        delta = f" and delta {self.delta:.3g} of {budget.delta:g}" if budget.delta or self.delta else ""
        return f"{by} spent epsilon {self.epsilon:.6g}{delta}, by basic composition"


def check_charge(charge: Charge) -> None:
    """Raise ParameterError for a charge with unknown kinds of events, or with another adjacency than its events."""
    for event in charge.spent.walk():
        if load_event_classes().get(getattr(event, "kind", "")) is not type(event):
            raise ParameterError(f"a release must be made of known events, got {type(event).__name__!r}")
    relations = {Adjacency.from_person_rows(event.person_rows) for event in charge.spent.walk() if not event.children}
    if relations != {charge.adjacency}:
        raise ParameterError(f"a release must be about the relation of its events, got {charge.adjacency.value}")


def compose_charges(
    charges: Sequence[Charge], budget: Budget, *, rule: CompositionRule, always_compose: bool = False
) -> SpentBudget:
    """Compose the cost of charged releases by a rule, and find the epsilon that remains of the budget.

    Profiles or zCDP are composed only if the sums of the claims exceed the budget, unless `always_compose` is set.

    Proof: composition.md 1, 3, 4
    """
    spent = _compose_costs(charges, budget, rule=rule, always_compose=always_compose)
    if spent.composed is None:
        return replace(spent, remaining=max(0.0, budget.epsilon - spent.epsilon) if spent.sums_fit(budget) else 0.0)

    def exceeds(step: int) -> bool:
        more = Budget(budget.epsilon * step / EPSILON_STEPS)
        larger = _compose_costs([*charges, Release(more, PureRelease(more.epsilon))], budget, rule=rule)
        return not larger.is_within(budget)

    steps = bisect_integers(exceeds, 0, EPSILON_STEPS + 1) - 1
    return replace(spent, remaining=budget.epsilon * steps / EPSILON_STEPS)


def _compose_costs(
    charges: Sequence[Charge], budget: Budget, *, rule: CompositionRule, always_compose: bool = False
) -> SpentBudget:
    """Compose the cost of charged releases for `compose_charges`, which then finds the epsilon that remains."""
    claimed = [charge for charge in charges if charge.budget is not None]
    budgets = [charge.budget for charge in claimed if charge.budget is not None]
    if rule == "adaptive" and budgets and budgets[0].delta > DELTA_SHARES[rule][0] * budget.delta:
        rule = "basic"  # known before anything is released
    sums = SpentBudget(
        releases=len(charges),
        epsilon=math.fsum(one.epsilon for one in budgets),
        delta=math.fsum(one.delta for one in budgets),
        rule=rule,
        not_private=sum(bool(charge.reasons) for charge in charges),
    )
    if rule == "basic" or not budget.delta or not claimed or (sums.sums_fit(budget) and not always_compose):
        return sums
    if rule == "curves":
        return replace(sums, composed=bound_delta_of_charges(claimed, budget))
    costs = add_zcdp(measure_zcdp(charge.spent, charge.budget) for charge in claimed if charge.budget is not None)
    return replace(sums, composed=costs.compute_delta(budget.epsilon))


def bound_delta_of_charges(charges: Sequence[Charge], budget: Budget) -> float:
    """Return an upper bound on the delta of all releases at the budget's epsilon, by composing their profiles.

    It is exact if all are Gaussian mechanisms. Every release must claim a budget.

    Proof: composition.md 3
    Proof: noisy_gradient_descent.md 2
    """
    together = Composition(tuple(BudgetedEvent(charge.budget, strip_non_private(charge.spent)) for charge in charges))
    if together.mu is not None:
        return together.delta(budget.epsilon)
    events = [each for part in together.parts for each in _split_planned_releases(part)]
    width = budget.epsilon / (RESOLUTION * math.sqrt(len(charges)))
    if not width >= MIN_WIDTH or budget.epsilon > MAX_EPSILON:
        return 1.0
    allowed = TRUNCATION_SHARE * budget.delta / len(events)
    parts = []
    for part, count in Counter(events).items():
        assert part.budget is not None
        losses = _discretise_event(part.event, part.budget, width, allowed)
        if losses is None:
            return 1.0
        parts.append((losses, count))
    return bound_delta_of_losses(parts, budget)


def _split_planned_releases(part: BudgetedEvent) -> tuple[BudgetedEvent, ...]:
    """Split a part into the releases about labels and the rest, which were all planned before any of them was made.

    Proof: composition.md 3
    """
    pieces = part.event.parts if isinstance(part.event, Composition) else ()
    planned = any(isinstance(one.event, NoisyUnusableLabelCount | LabelQuantiles) for one in pieces)
    if not planned or any(one.budget is None for one in pieces):
        return (part,)
    return tuple(each for one in pieces for each in _split_planned_releases(one))


@lru_cache(maxsize=256)
def _discretise_event(event: Event, claimed: Budget, width: float, allowed: float) -> PrivacyLossDistribution | None:
    """Return the privacy loss distribution of an event on a grid, from its profile; None if losses are too large."""

    def compute_delta(epsilon: float) -> float:
        found = event.delta(epsilon, target=max(allowed, 1e-100))
        return found if found < 1.0 else min(found, event.delta(epsilon, target=FALLBACK_TARGET))

    def compute_deltas(epsilons: Doubles) -> Doubles:
        return np.array([compute_delta(float(epsilon)) for epsilon in epsilons])

    longest = max(claimed.epsilon, width)
    while longest <= 2.0 * MAX_EPSILON and compute_delta(longest) > allowed:
        if compute_delta(1.25 * longest) > 0.99 * compute_delta(longest):
            break  # delta has stopped decreasing
        longest *= 1.25
    if longest > 2.0 * MAX_EPSILON:
        return None
    while longest > width and compute_delta(0.8 * longest) <= allowed:
        longest *= 0.8
    return discretise_profile(compute_deltas, width=width, longest=longest)
