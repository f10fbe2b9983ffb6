"""Privacy events as a tree of frozen dataclasses, from which epsilon, delta and privacy are derived.

An event describes a release computed from private rows by public numbers, from which its privacy profile follows: delta
as a function of epsilon. The event of each mechanism has its own module in this package, with its analysis and proof;
this module has the base classes and compositions. An event must define a profile, and only known events can be read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from boltdp.errors import ParameterError, check_whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.sgd_sensitivity import Sensitivity
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.training_problem import Problem

#: Reasons why a model has no privacy guarantee.
SEEDED = "the noise came from a seed, so that whoever knows it can take the noise away"
NOISELESS = "no noise was added"

#: Whether the noise is calibrated to a bound proved here, or to a published one.
Analysis = Literal["proved", "paper"]

#: Planned and requested epsilons with at most this relative difference, from rounding, are the same.
EPSILON_TOLERANCE = 1e-12


class Event(ABC):
    """A release computed from private rows."""

    kind: ClassVar[str]  #: its name in a certificate
    KINDS: ClassVar[dict[str, type[Event]]] = {}  #: all known events by kind

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            Event.KINDS[cls.kind] = cls

    @abstractmethod
    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the privacy profile: an upper bound on delta at this epsilon, or 1 where nothing is guaranteed.

        `target` is the delta near which the bound should be tight, for profiles that are computed on a grid.
        """

    @property
    def mu(self) -> float | None:
        """The mu of mu-GDP, rounded up, if a Gaussian mechanism dominates the event; else None."""
        return None

    @property
    def rho(self) -> float | None:
        """The rho of zCDP, rounded up, if it is known of the event as a whole: mu^2/2 by default.

        Proof: composition.md 4
        """
        return None if self.mu is None else round_up(self.mu**2 / 2.0)

    def knows_composed_delta(self, others: Sequence[Event]) -> bool:
        """Return whether `compute_composed_delta` is known for the Gaussian mechanisms `others`."""
        return False

    def compute_composed_delta(self, mu: float, epsilon: float) -> float:
        """Return the delta at an epsilon of this event composed with Gaussian mechanisms of this mu."""
        raise NotImplementedError

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        """The reasons why nothing is guaranteed, in words; empty if the event is private."""
        return tuple(dict.fromkeys(fault for child in self.children for fault in child.non_private_reasons))

    @property
    def published(self) -> bool:
        """Whether noise of the event, or of a child, is calibrated as published, which may exceed a budget."""
        return any(child.published for child in self.children)

    @property
    def children(self) -> tuple[Event, ...]:
        """The events that this one is composed of: those in its fields."""
        events = (one.event if isinstance(one, BudgetedEvent) else one for one in self._list_fields())
        return tuple(event for event in events if isinstance(event, Event))

    @property
    def budgeted_children(self) -> tuple[BudgetedEvent, ...]:
        """The children that have budgets of their own, or None where a budget is not stated."""
        return tuple(one for one in self._list_fields() if isinstance(one, BudgetedEvent))

    def _list_fields(self) -> Iterator[Any]:
        for value in vars(self).values():
            yield from value if isinstance(value, tuple) else (value,)

    def sum_budgets(self) -> tuple[float, float]:
        """Return the epsilon and delta that the stated budgets of children amount to: the largest, unless they add up.

        It is compared with the budget that the event claims.
        """
        budgets = [one.budget for one in self.budgeted_children if one.budget is not None]
        return max((0.0, *(one.epsilon for one in budgets))), max((0.0, *(one.delta for one in budgets)))

    @property
    def released(self) -> Event:
        """The event of this tree whose weights are released."""
        return self

    @property
    def model_count(self) -> int:
        """The number of released models, each with independent noise."""
        return 1

    @property
    def derived_numbers(self) -> dict[str, Any]:
        """Numbers that follow from the fields and are recorded with them in certificates."""
        return {}

    @property
    def person_rows(self) -> int | None:
        """The maximum number of rows per person, equal in all children; None: neighbours differ in one row."""
        return self.children[0].person_rows if self.children else None

    def walk(self) -> Iterator[Event]:
        """Yield the event and all its descendants."""
        yield self
        for child in self.children:
            yield from child.walk()


class Training(Event):
    """The training of one model, up to the released weights."""

    problem: Problem
    analysis: Analysis = "proved"

    @property
    def person_rows(self) -> int | None:
        return self.problem.person_rows

    @property
    def published(self) -> bool:
        return self.analysis == "paper"

    @property
    @abstractmethod
    def algorithm(self) -> str:
        """The name of the training algorithm."""

    @property
    def training_noise(self) -> Mechanism | None:
        """Noise before or inside training."""
        return None

    @property
    def release_noise(self) -> Mechanism | None:
        """Noise added to the trained weights."""
        return None

    @property
    def gradient_clip(self) -> float | None:
        """C, the clip norm of a row's gradient; None if gradients are not clipped."""
        return None

    @property
    def sensitivity(self) -> Sensitivity | None:
        """The sensitivity of the weights that the release noise is added to."""
        return None

    @property
    def noisy_vectors(self) -> tuple[tuple[str, Mechanism, float, int], ...]:
        """The name, noise, sensitivity and number of draws of each kind of vector that gets exact noise."""
        if self.release_noise is None or self.sensitivity is None:
            return ()
        return (("weights", self.release_noise, self.sensitivity.total, 1),)


class NoisyRelease(Event):
    """The release of numbers with noise calibrated to their sensitivity; the noise of a noiseless training is None."""

    noise: Mechanism | None

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The sensitivity of the numbers that the noise is added to."""

    @property
    def mu(self) -> float | None:
        if self.noise is None or self.noise.kind != "gaussian":
            return None
        return round_up(self.sensitivity / self.noise.scale)

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        return () if self.noise is not None else (NOISELESS,)

    @property
    def derived_numbers(self) -> dict[str, Any]:
        return {"sensitivity": self.sensitivity}


@dataclass(frozen=True)
class NoiselessTraining(Training):
    """Training without noise, which guarantees nothing."""

    kind = "training without noise"
    problem: Problem

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        return 1.0

    @property
    def algorithm(self) -> str:
        return "bolton" if isinstance(self.problem, Recipe) else "objective"

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        return (NOISELESS,)


@dataclass(frozen=True)
class BudgetedEvent:
    """An event and the budget that it was planned for."""

    budget: Budget | None  #: None: noiseless
    event: Event

    def delta(self, epsilon: float, *, target: float) -> float:
        """Return the event's delta at an epsilon, without rounding if that is the planned one."""
        if self.budget is not None and math.isclose(epsilon, self.budget.epsilon, rel_tol=EPSILON_TOLERANCE):
            return self.event.delta(self.budget.epsilon, target=self.budget.delta or target)
        return self.event.delta(epsilon, target=target) if epsilon > 0 else 1.0


class Wrapper(Event):
    """An event that releases the models of one of its children: the last, unless `inner` is another."""

    @property
    def inner(self) -> Event:
        """The child whose models are released."""
        return self.children[-1]

    @property
    def released(self) -> Event:
        return self.inner.released

    @property
    def model_count(self) -> int:
        return self.inner.model_count


@dataclass(frozen=True)
class Composition(Wrapper):
    """Sequential composition of events about the same rows: their epsilons and deltas add up.

    If all are Gaussian mechanisms, the squares of their mu add up, which is less. So it is if all but the last are, and
    the last knows its delta composed with them. Their order is not that of time: each may depend on results of others.
    """

    kind = "composition"
    parts: tuple[BudgetedEvent, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ParameterError("a composition must have at least one event, got none")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the composed Gaussian profile, or basic composition with epsilon split in proportion to the budgets.

        Proof: noisy_gradient_descent.md 2
        Proof: noisy_matrix.md 3
        """
        if self.mu is not None:
            return Mechanism("gaussian", 1.0, 1).delta(epsilon, sensitivity=self.mu)
        basic = self._compute_basic_delta(epsilon, target)
        if self._other_mu is None:
            return basic
        return min(basic, self.parts[-1].event.compute_composed_delta(self._other_mu, epsilon))

    @property
    def _other_mu(self) -> float | None:
        """The mu of all events but the last, if that knows its delta composed with them; else None."""
        *others, last = (part.event for part in self.parts)
        return _compose_mu(self.parts[:-1]) if last.knows_composed_delta(others) else None

    def _compute_basic_delta(self, epsilon: float, target: float) -> float:
        planned = [part.budget for part in self.parts if part.budget is not None]
        if len(planned) < len(self.parts):
            return 1.0
        epsilons, deltas = math.fsum(one.epsilon for one in planned), math.fsum(one.delta for one in planned)
        spent = [
            part.delta(epsilon * (one.epsilon / epsilons), target=target * (one.delta / deltas if deltas else 1.0))
            for part, one in zip(self.parts, planned, strict=True)
        ]
        return min(1.0, math.fsum(spent))

    def sum_budgets(self) -> tuple[float, float]:
        # Gaussian mechanisms compose to less than the sum, and to no less than the largest.
        if self.mu is not None or self._other_mu is not None:
            return super().sum_budgets()
        budgets = [one.budget for one in self.budgeted_children if one.budget is not None]
        return math.fsum(one.epsilon for one in budgets), math.fsum(one.delta for one in budgets)

    @property
    def mu(self) -> float | None:
        """The mu of the composition if all events are Gaussian, else None.

        Proof: noisy_gradient_descent.md 2
        """
        return _compose_mu(self.parts)


@dataclass(frozen=True)
class SelfComposition(Wrapper):
    """The same event repeated with fresh noise, as for the one-vs-all models of several classes."""

    kind = "repetition"
    part: BudgetedEvent
    count: int

    def __post_init__(self) -> None:
        check_whole_number(self.count, "count", least=1)

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the profile by basic composition: each repetition gets an equal part of epsilon.

        Proof: mechanisms.md 4
        """
        return min(1.0, self.count * self.part.delta(epsilon / self.count, target=target / self.count))

    def sum_budgets(self) -> tuple[float, float]:
        epsilon, delta = super().sum_budgets()
        return self.count * epsilon, self.count * delta

    @property
    def model_count(self) -> int:
        return self.count * self.inner.model_count


@dataclass(frozen=True)
class NonPrivateEvent(Wrapper):
    """An event whose guarantee is lost for reasons outside the privacy analysis."""

    kind = "non-private"
    reasons: tuple[str, ...]
    spent: Event

    def __post_init__(self) -> None:
        # Reasons must be printable, so that they hold no control sequences for a terminal.
        if not self.reasons or not all(
            isinstance(reason, str) and reason and reason.isprintable() for reason in self.reasons
        ):
            raise ParameterError("what is not private must have reasons in words, got none")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        return 1.0

    @property
    def non_private_reasons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.reasons, *self.spent.non_private_reasons)))


def _compose_mu(parts: Sequence[BudgetedEvent]) -> float | None:
    """Return the mu of the composition of Gaussian mechanisms; None if some are not."""
    known = [part.event.mu for part in parts if part.event.mu is not None]
    return round_up(math.hypot(*known)) if len(known) == len(parts) else None


def round_up(distance: float) -> float:
    """Return a float above the exact value of a sensitivity, mu or rho that a few rounded operations gave."""
    return distance * (1.0 + 2.0**-48)


def compose(*parts: BudgetedEvent) -> Event:
    """Return the composition of events, or the event itself if there is only one."""
    return parts[0].event if len(parts) == 1 else Composition(parts)


def mark_non_private(event: Event, reasons: tuple[str, ...]) -> Event:
    """Return the event marked as non-private if there are reasons, else the event itself."""
    return NonPrivateEvent(reasons, event) if reasons else event


def strip_non_private(event: Event) -> Event:
    """Return the event inside `NonPrivateEvent`: its cost counts although its guarantee does not hold."""
    return strip_non_private(event.spent) if isinstance(event, NonPrivateEvent) else event
