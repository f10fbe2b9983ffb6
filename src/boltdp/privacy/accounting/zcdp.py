"""Zero-concentrated differential privacy (zCDP), whose costs add up even if they depend on earlier releases."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import (
    BudgetedEvent,
    Composition,
    Event,
    SelfComposition,
    round_up,
    strip_non_private,
)

#: Delta is bounded at the orders 1 + s of Renyi divergence, for these multiples s of epsilon / rho.
_ORDERS = [1.02**-step for step in range(400)]
#: Smaller exponents would underflow.
_MIN_EXPONENT = -700.0
#: An upper bound on the relative rounding error of delta.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Zcdp:
    """The cost of releases in delta-approximate rho-zCDP."""

    rho: float
    delta: float = 0.0

    def compute_delta(self, epsilon: float) -> float:
        """Return a delta for which the releases are (epsilon, delta)-private.

        >>> f"{Zcdp(0.1).compute_delta(2.0):.3g}"
        '4.33e-06'

        Proof: composition.md 4
        """
        if not self.rho:
            return min(1.0, self.delta)
        exponents = (
            s * ((1.0 + s) * self.rho - epsilon) + s * math.log(s) - (1.0 + s) * math.log1p(s)
            for s in (order * epsilon / self.rho for order in _ORDERS)
        )
        return min(1.0, math.exp(max(_MIN_EXPONENT, min(0.0, *exponents))) * (1.0 + _ROUNDING) + self.delta)


@lru_cache(maxsize=1024)
def measure_zcdp(event: Event, claimed: Budget) -> Zcdp:
    """Return the zCDP cost of an event that claims a budget: by its rho if that is known, else by the claim.

    Proof: composition.md 4
    """
    event = strip_non_private(event)
    if event.rho is not None:
        return Zcdp(event.rho)
    parts = _list_composed_events(event)
    if parts:
        return add_zcdp(measure_zcdp(part.event, part.budget) for part in parts if part.budget is not None)
    return Zcdp(round_up(claimed.epsilon**2 / 2.0), event.delta(claimed.epsilon, target=claimed.delta or 1e-9))


def add_zcdp(costs: Iterable[Zcdp]) -> Zcdp:
    """Return the zCDP cost of several releases together, each of which may depend on those before it.

    Proof: composition.md 4
    """
    listed = list(costs)
    return Zcdp(round_up(math.fsum(one.rho for one in listed)), round_up(math.fsum(one.delta for one in listed)))


def _list_composed_events(event: Event) -> list[BudgetedEvent]:
    """Return the events of a sequential composition if each of them claims a budget; else an empty list."""
    parts = []
    if isinstance(event, Composition):
        parts = [*event.parts]
    elif isinstance(event, SelfComposition):
        parts = [event.part] * event.count
    return parts if all(part.budget is not None for part in parts) else []
