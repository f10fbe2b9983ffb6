"""What is audited: a training as a certificate states it, on rows that the audit makes itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from boltdp.algorithms import ALGORITHMS
from boltdp.algorithms._sgd import PassesOfSGD
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import BudgetedEvent, Composition, Event, NonPrivate, SelfComposition, Training
from boltdp.privacy.events.noisy_counts import is_draft
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients, make_noisy_gradients
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.noisy_sgd import NoisyUpdates
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation, make_objective_perturbation
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.events.selection import Selection, SelectionAmongTrained
from boltdp.privacy.training_problem import Recipe
from boltdp.schema.schema import Schema
from boltdp.settings import Settings

#: Rows of a replayed training, at most: a larger training is planned again for this many.
MAX_ROWS = 2000

#: An event of which something can be audited.
Audited: TypeAlias = NoisyMoments | Training


@dataclass(frozen=True)
class Stage:
    """One release, or several alike, and the part of the budget that it was planned for."""

    event: Audited
    budget: Budget
    models: int = 1

    @property
    def name(self) -> str:
        """In a report."""
        return self.event.kind + (f", each of {self.models}" if self.models > 1 else "")


@dataclass(frozen=True)
class Subject:
    """A training that can be run as it is: a schema, a certificate of as many rows as are made up, and its stages."""

    schema: Schema
    certificate: Certificate
    replayed: tuple[Stage, ...]  #: of this certificate
    stages: tuple[Stage, ...]  #: the same of all rows that were claimed
    left_out: tuple[str, ...]  #: what was spent, too, and is not audited

    @property
    def rows(self) -> int:
        """Rows of a replayed training."""
        return self.certificate.problem.rows


def subject(schema: Schema, certificate: Certificate) -> Subject:
    """What to run for a certificate: the schema as it was before standardizing, and no more rows than are needed."""
    budget = certificate.budget
    if budget is None or certificate.seeded:
        raise ParameterError(
            f"a model must claim an epsilon to be audited, and this one does not: {certificate.guarantee()}",
            hint="a training with --epsilon and without --noise-seed claims one",
        )
    left_out: list[str] = []
    standardization = schema.standardization
    if standardization is not None and standardization.source == "private":
        schema = replace(schema, standardization=None)
    if schema.spent is not None:
        schema = replace(schema, spent=None)
    whole = _runnable(certificate.spent, budget, left_out, rows=None)
    few = _runnable(certificate.spent, budget, [], rows=MAX_ROWS)
    stages, replayed = tuple(_stages(whole, budget)), tuple(_stages(few, budget))
    return Subject(schema, replace(certificate, spent=few), replayed, stages, tuple(left_out))


def _runnable(event: Event, budget: Budget, left_out: list[str], *, rows: int | None) -> Event:
    """The same without what the audit does not run, and for no more than `rows` rows."""
    match event:
        case NonPrivate():
            return replace(event, spent=_runnable(event.spent, budget, left_out, rows=rows))
        case Composition():
            parts = []
            for part in event.parts:
                if is_draft(part.event):
                    left_out.append("how the schema was found from the rows")
                else:
                    share = budget if part.budget is None else part.budget
                    parts.append(BudgetedEvent(share, _runnable(part.event, share, left_out, rows=rows)))
            return parts[0].event if len(parts) == 1 else replace(event, parts=tuple(parts))
        case SelfComposition():
            share = event.part.budget or budget
            return replace(event, part=BudgetedEvent(share, _runnable(event.part.event, share, left_out, rows=rows)))
        case SelectionAmongTrained():
            left_out.append(f"the choice: {event.describe()}")
            chosen = event.trained[event.chosen]
            return _runnable(chosen.event, chosen.budget or budget, left_out, rows=rows)
        case Selection():
            # On public rows: it costs nothing.
            return _runnable(event.children[0], budget, left_out, rows=rows)
        case Training():
            return event if rows is None or event.problem.rows <= rows else resized(event, budget, rows=rows)
        case NoisyMoments():
            return event
    raise ParameterError(f"an audit must be of events that it knows, got {event.kind!r}")


def _stages(event: Event, budget: Budget) -> list[Stage]:
    match event:
        case NonPrivate():
            return _stages(event.spent, budget)
        case Composition():
            return [stage for part in event.parts for stage in _stages(part.event, part.budget or budget)]
        case SelfComposition():
            inner = _stages(event.part.event, event.part.budget or budget)
            return [replace(stage, models=event.count) for stage in inner]
        case NoisyMoments() | Training():
            return [Stage(event, budget)]
    return []


def resized(
    event: Training,
    budget: Budget,
    *,
    rows: int,
    dims: int | None = None,
    scans: int | None = None,
    step: float | None = None,
) -> Training:
    """The same training for other numbers of rows and features, its noise made again for the same budget.

    Objective perturbation keeps m*Lambda, and so its noise.

    >>> from boltdp.workflows.plan import plan_certificate
    >>> event = plan_certificate(Settings(epsilon=1.0, algorithm="objective"), rows=10**6, dims=50, classes=2).training
    >>> small = resized(event, Budget(1.0), rows=100, dims=50)
    >>> small.training_noise.scale == event.training_noise.scale
    True
    """
    problem = event.problem
    dims = problem.dims if dims is None else dims
    if isinstance(event, (OutputPerturbation, NoisyUpdates)):
        assert isinstance(problem, Recipe)
        algorithm = ALGORITHMS[event.algorithm]
        assert isinstance(algorithm, PassesOfSGD)
        partitions = min(problem.partitions, rows // 2)
        batch_size = min(problem.batch_size, rows // partitions)
        recipe = replace(problem, rows=rows, dims=dims, partitions=partitions, batch_size=batch_size)
        analysis = event.analysis if isinstance(event, OutputPerturbation) else "proved"
        return algorithm.event(recipe, Settings(epsilon=budget.epsilon, analysis=analysis), budget)
    if isinstance(event, ObjectivePerturbation):
        strength = problem.regularization * problem.rows
        return make_objective_perturbation(
            replace(problem, rows=rows, dims=dims, regularization=strength / rows), budget
        )
    assert isinstance(event, NoisyGradients)
    return make_noisy_gradients(
        replace(problem, rows=rows, dims=dims),
        budget,
        clip=event.clip,
        scans=event.scans if scans is None else min(scans, event.scans),
        step=event.step if step is None else step,
        momentum=event.momentum,
    )
