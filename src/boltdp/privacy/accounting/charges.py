"""What several releases about the same rows spend together: by basic composition, and by composing their curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np

from boltdp._arrays import Doubles
from boltdp._bisect import bisect_integers
from boltdp.errors import ParameterError
from boltdp.privacy.accounting.composition import (
    CUT_OFF,
    MAX_EPSILON,
    RESOLUTION,
    PrivacyLossDistribution,
    delta_of_sum,
    interpolate_profile,
)
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import why_not_private
from boltdp.privacy.events.event import Event, NonPrivate, round_up
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.serialization import known_events

#: How what several releases spend is added up.
Rule = Literal["curves", "basic"]

#: Sums of claimed epsilons and deltas may exceed a budget by this part, so that ten tenths are one.
FORGIVEN = 1e-9
#: Losses are multiples of no less than this: below it the differences of a profile have too few digits.
MIN_WIDTH = 1e-5
#: The delta near which a profile is asked for again where it gave up: the body of the curve, and not its tail.
BODY = 1e-2
#: Parts into which an epsilon of `spent_epsilon` is divided.
EPSILON_STEPS = 1000


class Charge(Protocol):
    """What is asked for of a budget: a certificate is one, and so is a `Release`."""

    @property
    def budget(self) -> Budget | None:
        """What is claimed to be spent at most; None: nothing is claimed."""
        ...

    @property
    def spent(self) -> Event:
        """What it follows from."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """Between which datasets it holds."""
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not private; empty if it is."""
        ...


@dataclass(frozen=True)
class Release:
    """A release that has no certificate, such as noisy counts."""

    budget: Budget | None
    spent: Event
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    @property
    def reasons(self) -> tuple[str, ...]:
        return why_not_private(self.spent, self.budget)


@dataclass(frozen=True)
class OneOfSeveral(Event):
    """One of several events, each within the same budget, that is chosen by public rows or what was released before."""

    kind = "one of several"
    epsilon: float  #: that each of them was planned for
    events: tuple[Event, ...]

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """The largest delta at the epsilon they were planned for; below it nothing is guaranteed.

        Proof: composition.md 5
        """
        if epsilon < self.epsilon:
            return 1.0
        return max(event.delta(self.epsilon, target=target) for event in self.events)

    @property
    def children(self) -> tuple[Event, ...]:
        return self.events


@dataclass(frozen=True)
class Parallel(Event):
    """Several events, each about rows of its own: a row belongs to one of them by something public."""

    kind = "parallel"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not self.events:
            raise ParameterError("parallel events must be at least one, got none")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """The largest delta of any of them: a row is in one.

        Proof: composition.md 7
        """
        return max(event.delta(epsilon, target=target) for event in self.events)

    @property
    def children(self) -> tuple[Event, ...]:
        return self.events


@dataclass(frozen=True)
class Spent:
    """What several releases spend together.

    >>> Spent(releases=2, epsilon=1.5, delta=0.0, composed=None).within(Budget(1.0))
    False
    """

    releases: int
    epsilon: float  #: the sum of the claimed ones: basic composition
    delta: float  #: their sum, too
    composed: float | None  #: delta at the epsilon of the budget, by the whole curves; None: not computed
    not_private: int = 0  #: how many of the releases are not private; those that claim nothing are in no sum

    def within(self, budget: Budget) -> bool:
        """Whether that is within a budget, by either account.

        Proof: composition.md 1, 3
        """
        most = 1.0 + FORGIVEN
        if self.epsilon <= budget.epsilon * most and self.delta <= budget.delta * most:
            return True
        return self.composed is not None and self.composed <= budget.delta

    def describe(self, budget: Budget) -> str:
        """In a line, beside the budget.

        >>> Spent(releases=2, epsilon=1.5, delta=0.0, composed=None).describe(Budget(2.0))
        'epsilon 1.5 of 2 spent by 2 releases, by basic composition'
        """
        by = "1 release" if self.releases == 1 else f"{self.releases} releases"
        if self.composed is None:
            delta = f" and delta {self.delta:g} of {budget.delta:g}" if budget.delta or self.delta else ""
            return f"epsilon {self.epsilon:.6g} of {budget.epsilon:g}{delta} spent by {by}, by basic composition"
        return (
            f"delta {self.composed:.3g} of {budget.delta:g} at epsilon {budget.epsilon:g} spent by {by}, by their "
            f"curves (by basic composition epsilon {self.epsilon:.6g}, delta {self.delta:.3g})"
        )


def check_charge(charge: Charge) -> None:
    """Refuse events of kinds that are not known: what they spend cannot be known."""
    for event in charge.spent.walk():
        if known_events().get(getattr(event, "kind", "")) is not type(event):
            raise ParameterError(f"a release must be made of known events, got {type(event).__name__!r}")
    relations = {Adjacency.of(event.person_rows) for event in charge.spent.walk() if not event.children}
    if relations != {charge.adjacency}:
        raise ParameterError(f"a release must be about the relation of its events, got {charge.adjacency.value}")


def spent_by(charges: Sequence[Charge], budget: Budget, *, rule: Rule, whole_curves: bool = False) -> Spent:
    """What releases spend together; curves are composed if the rule allows it and sums exceed the budget.

    `whole_curves` composes them in any case, where the rule allows it.

    Proof: composition.md 1, 3, 4

    >>> spent_by([], Budget(1.0), rule="basic")
    Spent(releases=0, epsilon=0.0, delta=0.0, composed=None, not_private=0)
    """
    claimed = [charge for charge in charges if charge.budget is not None]
    budgets = [charge.budget for charge in claimed if charge.budget is not None]
    sums = Spent(
        releases=len(charges),
        epsilon=math.fsum(one.epsilon for one in budgets),
        delta=math.fsum(one.delta for one in budgets),
        composed=None,
        not_private=sum(bool(charge.reasons) for charge in charges),
    )
    if rule == "basic" or not budget.delta or not claimed or (sums.within(budget) and not whole_curves):
        return sums
    return Spent(sums.releases, sums.epsilon, sums.delta, composed_delta(claimed, budget), sums.not_private)


def composed_delta(charges: Sequence[Charge], budget: Budget) -> float:
    """An upper bound of what releases spend of delta together at the budget's epsilon, by their whole curves.

    Of Gaussian mechanisms alone it is exact. Releases that claim nothing must not be among them.

    Proof: composition.md 3
    Proof: noisy_gradient_descent.md 2
    """
    events = [_strip_non_private(charge.spent) for charge in charges]
    distances = [event.mu for event in events]
    known = [distance for distance in distances if distance is not None]
    if len(known) == len(events):
        return Mechanism("gaussian", 1.0, 1).delta(budget.epsilon, sensitivity=round_up(math.hypot(*known)))
    parts = _parts(charges, budget)
    return 1.0 if parts is None else delta_of_sum(parts, budget)


def spent_epsilon(charges: Sequence[Charge], budget: Budget) -> float | None:
    """The smallest epsilon, in thousandths of the budget's, that all releases keep at the budget's delta by curves.

    None where curves say nothing, or nothing below twice the budget.

    Proof: composition.md 3
    """
    claimed = [charge for charge in charges if charge.budget is not None]
    if not budget.delta or not claimed:
        return None
    parts = None
    if any(_strip_non_private(charge.spent).mu is None for charge in claimed):
        parts = _parts(claimed, budget)
        if parts is None:
            return None

    def keeps(step: int) -> bool:
        one = Budget(budget.epsilon * step / EPSILON_STEPS, budget.delta)
        return (composed_delta(claimed, one) if parts is None else delta_of_sum(parts, one)) <= budget.delta

    if not keeps(2 * EPSILON_STEPS):
        return None
    return budget.epsilon * bisect_integers(keeps, 0, 2 * EPSILON_STEPS) / EPSILON_STEPS


def _parts(charges: Sequence[Charge], budget: Budget) -> list[tuple[PrivacyLossDistribution, int]] | None:
    """The losses of each different release on one grid, and how often it was made; None where no grid is fit."""
    width = budget.epsilon / (RESOLUTION * math.sqrt(len(charges)))
    if not width >= MIN_WIDTH or budget.epsilon > MAX_EPSILON:
        return None
    allowed = CUT_OFF * budget.delta / len(charges)
    counted = Counter((charge.budget, _strip_non_private(charge.spent)) for charge in charges)
    parts = []
    for (claimed, event), count in counted.items():
        assert claimed is not None
        losses = _losses(event, claimed, width, allowed)
        if losses is None:
            return None
        parts.append((losses, count))
    return parts


@lru_cache(maxsize=256)
def _losses(event: Event, claimed: Budget, width: float, allowed: float) -> PrivacyLossDistribution | None:
    """The losses of one event; None where they are beyond all use."""

    def delta(epsilon: float) -> float:
        found = event.delta(epsilon, target=max(allowed, 1e-100))
        return found if found < 1.0 else min(found, event.delta(epsilon, target=BODY))

    def profile(epsilons: Doubles) -> Doubles:
        return np.array([delta(float(epsilon)) for epsilon in epsilons])

    longest = max(claimed.epsilon, width)
    while longest <= 2.0 * MAX_EPSILON and delta(longest) > allowed:
        if delta(1.25 * longest) > 0.99 * delta(longest):
            break  # it falls no further
        longest *= 1.25
    if longest > 2.0 * MAX_EPSILON:
        return None
    while longest > width and delta(0.8 * longest) <= allowed:
        longest *= 0.8
    return interpolate_profile(profile, width=width, longest=longest)


def _strip_non_private(event: Event) -> Event:
    """What was done, whatever else takes its guarantee away: it was spent all the same."""
    while isinstance(event, NonPrivate):
        event = event.spent
    return event
