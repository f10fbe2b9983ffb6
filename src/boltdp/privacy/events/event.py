"""What was spent, as a tree of frozen events; epsilon, delta and whether it is private are derived from it.

An event is something that was computed from private rows and let out, described in public numbers from which its
privacy profile follows: delta as a function of epsilon. The event of each mechanism has a module of its own in this
package, with its analysis and its proof.

Here is what joins them. An event without a profile cannot be made, and one that is not known cannot be read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from boltdp.errors import ParameterError, whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.sgd_sensitivity import Sensitivity
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.training_problem import Problem, Recipe

#: Why a model made in a certain way has no privacy guarantee.
SEEDED = "the noise came from a seed, so that whoever knows it can take the noise away"
NOISELESS = "no noise was added"

#: Planned and asked-for epsilons that differ by no more are the same: rounding in how a budget was divided.
EPSILON_TOLERANCE = 1e-12


class Event(ABC):
    """Something that was computed from private rows and let out."""

    kind: ClassVar[str]  #: its name in a certificate
    KINDS: ClassVar[dict[str, type[Event]]] = {}  #: all that can be read

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            Event.KINDS[cls.kind] = cls

    @abstractmethod
    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """The privacy profile: no larger delta is spent at this epsilon; 1 where nothing is guaranteed.

        `target` is the delta near which the bound should be close, for profiles that are computed on a grid.
        """

    @property
    def mu(self) -> float | None:
        """If it spends no more than one Gaussian mechanism does: the sensitivity of that, in deviations, rounded up."""
        return None

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        """Why nothing is guaranteed after all, in plain words; empty if something is."""
        return tuple(dict.fromkeys(fault for child in self.children for fault in child.non_private_reasons))

    @property
    def published(self) -> bool:
        """Whether its noise, or that of an event it is made of, is as published: it may not keep its budget."""
        return any(child.published for child in self.children)

    @property
    def children(self) -> tuple[Event, ...]:
        """The events that it is made of."""
        return ()

    @property
    def released(self) -> Event:
        """The one of them that the released weights came from."""
        return self

    @property
    def models(self) -> int:
        """How many times that one was done, with fresh noise: the number of released models."""
        return 1

    @property
    def derived(self) -> dict[str, Any]:
        """Numbers that follow from the event and are worth stating beside it."""
        return {}

    @property
    def person_rows(self) -> int | None:
        """How many of a person's rows count, if neighbours differ in a person; None: in a row.

        All that an event is made of must have the same.
        """
        return self.children[0].person_rows if self.children else None

    def walk(self) -> Iterator[Event]:
        """Itself and all that it is made of, whatever the depth."""
        yield self
        for child in self.children:
            yield from child.walk()


class Training(Event):
    """The training of one model, up to weights that may be shown."""

    problem: Problem

    @property
    def person_rows(self) -> int | None:
        return self.problem.person_rows

    @property
    @abstractmethod
    def algorithm(self) -> str:
        """The name of the algorithm whose training this is."""

    @property
    def training_noise(self) -> Mechanism | None:
        """Noise before or inside training."""
        return None

    @property
    def release_noise(self) -> Mechanism | None:
        """Noise added to the trained weights."""
        return None

    @property
    def sensitivity(self) -> Sensitivity | None:
        """How far one row can move the weights that the release noise is added to."""
        return None


@dataclass(frozen=True)
class Noiseless(Training):
    """Training without noise: nothing is guaranteed."""

    kind = "training without noise"
    problem: Problem

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        return 1.0

    @property
    def algorithm(self) -> str:
        """Passes of SGD are the bolt-on's; without passes the minimum itself was looked for."""
        return "bolton" if isinstance(self.problem, Recipe) else "objective"

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        return (NOISELESS,)


@dataclass(frozen=True)
class BudgetedEvent:
    """One of several events, and the part of the budget that it was planned for."""

    budget: Budget | None  #: None: noiseless
    event: Event

    def delta(self, epsilon: float, *, target: float) -> float:
        """The event's profile, taken exactly where it was planned for if that is what is asked."""
        if self.budget is not None and math.isclose(epsilon, self.budget.epsilon, rel_tol=EPSILON_TOLERANCE):
            return self.event.delta(self.budget.epsilon, target=self.budget.delta or target)
        return self.event.delta(epsilon, target=target) if epsilon > 0 else 1.0


@dataclass(frozen=True)
class Composition(Event):
    """Several events about the same rows, one after the other: their epsilons and deltas add up.

    Of Gaussian mechanisms alone the squares of the distances add up, which is less.

    >>> from boltdp.losses import Logistic
    >>> Composition(())
    Traceback (most recent call last):
    boltdp.errors.ParameterError: a composition must have at least one event, got none
    """

    kind = "composition"
    parts: tuple[BudgetedEvent, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ParameterError("a composition must have at least one event, got none")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """One Gaussian, if all are; else basic composition, with epsilon divided as it was planned.

        Proof: noisy_gradient_descent.md 2
        """
        if self.mu is not None:
            return Mechanism("gaussian", 1.0, 1).delta(epsilon, sensitivity=self.mu)
        planned = [part.budget for part in self.parts if part.budget is not None]
        if len(planned) < len(self.parts):
            return 1.0
        epsilons, deltas = math.fsum(one.epsilon for one in planned), math.fsum(one.delta for one in planned)
        spent = [
            part.delta(epsilon * (one.epsilon / epsilons), target=target * (one.delta / deltas if deltas else 1.0))
            for part, one in zip(self.parts, planned, strict=True)
        ]
        return min(1.0, math.fsum(spent))

    @property
    def mu(self) -> float | None:
        """That of all Gaussians together, if there is nothing else.

        Proof: noisy_gradient_descent.md 2
        """
        distances = [part.event.mu for part in self.parts]
        known = [one for one in distances if one is not None]
        return round_up(math.hypot(*known)) if len(known) == len(distances) else None

    @property
    def children(self) -> tuple[Event, ...]:
        return tuple(part.event for part in self.parts)

    @property
    def released(self) -> Event:
        """The last one: what comes before prepares it."""
        return self.parts[-1].event.released

    @property
    def models(self) -> int:
        return self.parts[-1].event.models


@dataclass(frozen=True)
class SelfComposition(Event):
    """The same kind of event several times, with fresh noise: one-vs-all models of several classes."""

    kind = "repetition"
    part: BudgetedEvent
    count: int

    def __post_init__(self) -> None:
        whole_number(self.count, "count", least=1)

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Basic composition.

        Proof: mechanisms.md 4
        """
        return min(1.0, self.count * self.part.delta(epsilon / self.count, target=target / self.count))

    @property
    def children(self) -> tuple[Event, ...]:
        return (self.part.event,)

    @property
    def released(self) -> Event:
        return self.part.event.released

    @property
    def models(self) -> int:
        return self.count * self.part.event.models


@dataclass(frozen=True)
class NonPrivate(Event):
    """An event of which something outside the privacy analysis takes the guarantee away."""

    kind = "non-private"
    reasons: tuple[str, ...]
    spent: Event

    def __post_init__(self) -> None:
        # Printable: a terminal must show them, and not obey them.
        if not self.reasons or not all(
            isinstance(reason, str) and reason and reason.isprintable() for reason in self.reasons
        ):
            raise ParameterError("what is not private must have reasons in words, got none")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        return 1.0

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.reasons, *self.spent.non_private_reasons)))

    @property
    def children(self) -> tuple[Event, ...]:
        return (self.spent,)

    @property
    def released(self) -> Event:
        return self.spent.released

    @property
    def models(self) -> int:
        return self.spent.models


def round_up(distance: float) -> float:
    """A distance that was computed by a few operations, at least as large as it is.

    >>> round_up(1.0) > 1.0
    True
    """
    return distance * (1.0 + 2.0**-48)


def compose(*parts: BudgetedEvent) -> Event:
    """Several events as one; a single one is itself.

    >>> from boltdp.losses import Logistic
    >>> alone = Noiseless(Problem(loss=Logistic(), dims=2, rows=10))
    >>> compose(BudgetedEvent(Budget(1.0), alone)) is alone
    True
    """
    return parts[0].event if len(parts) == 1 else Composition(parts)


def mark_non_private(event: Event, reasons: tuple[str, ...]) -> Event:
    """The event with reasons why it is not private, if there are any.

    >>> from boltdp.losses import Logistic
    >>> noiseless = Noiseless(Problem(loss=Logistic(), dims=2, rows=10))
    >>> mark_non_private(noiseless, (SEEDED,)).non_private_reasons == (SEEDED, NOISELESS)
    True
    """
    return NonPrivate(reasons, event) if reasons else event
