"""The training that is audited: as its certificate states it, on synthetic rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from boltdp.algorithms import ALGORITHMS
from boltdp.algorithms._sgd import PassesOfSGD
from boltdp.audit.synthetic_rows import reduce_schema
from boltdp.errors import ParameterError
from boltdp.losses import LOSSES, Loss
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

#: Maximum numbers of rows and features of a replayed training: a larger training is planned again for these.
MAX_ROWS, MAX_FEATURES = 2000, 100

AuditedEvent: TypeAlias = NoisyMoments | Training


@dataclass(frozen=True)
class Stage:
    """One release, or several identical ones, and its share of the budget."""

    event: AuditedEvent
    budget: Budget
    models: int = 1

    @property
    def name(self) -> str:
        return self.event.kind + (f", each of {self.models}" if self.models > 1 else "")


@dataclass(frozen=True)
class Subject:
    """A training that can be run on synthetic rows: a schema, a certificate for that many rows, and its stages."""

    schema: Schema  #: with at most MAX_FEATURES features
    certificate: Certificate
    replayed_stages: tuple[Stage, ...]  #: the stages of this certificate
    stages: tuple[Stage, ...]  #: the stages of the audited certificate, with its number of rows
    left_out: tuple[str, ...]  #: the parts of the audited certificate that are not audited

    @property
    def rows(self) -> int:
        return self.certificate.problem.rows


def make_subject(schema: Schema, certificate: Certificate) -> Subject:
    """Return the training to run for a certificate: with the schema before standardization, and of limited size."""
    budget = certificate.budget
    if budget is None or certificate.seeded:
        raise ParameterError(
            f"a model must claim an epsilon to be audited, and this one does not: {certificate.guarantee()}",
            hint="a training with --epsilon and without --noise-seed claims one",
        )
    left_out: list[str] = []
    if schema.standardization is not None and schema.standardization.source == "private":
        schema = replace(schema, standardization=None)
    schema = reduce_schema(replace(schema, spent=None), MAX_FEATURES)
    whole = _filter_event(certificate.spent, budget, left_out, replayed=None)
    few = _filter_event(certificate.spent, budget, [], replayed=schema)
    stages, replayed = tuple(_list_stages(whole, budget)), tuple(_list_stages(few, budget))
    return Subject(schema, replace(certificate, spent=few), replayed, stages, tuple(left_out))


def _check_loss(loss: Loss) -> None:
    """Raise ParameterError for a loss that the kernel does not have: it would run another one."""
    if LOSSES.get(loss.name) is not type(loss):
        raise ParameterError(f"an audit must be of a loss among {', '.join(LOSSES)}, got {loss.name!r}")


def _filter_event(event: Event, budget: Budget, left_out: list[str], *, replayed: Schema | None) -> Event:
    """Return the event without the parts that the audit does not run; with a schema, as it is replayed with that."""

    def filter_part(part: BudgetedEvent) -> BudgetedEvent:
        share = part.budget or budget
        return BudgetedEvent(share, _filter_event(part.event, share, left_out, replayed=replayed))

    match event:
        case NonPrivate():
            return replace(event, spent=_filter_event(event.spent, budget, left_out, replayed=replayed))
        case Composition():
            kept = [part for part in event.parts if not is_draft(part.event)]
            left_out += ["how the schema was found from the rows"] * (len(event.parts) - len(kept))
            parts = tuple(map(filter_part, kept))
            return parts[0].event if len(parts) == 1 else Composition(parts)
        case SelfComposition():
            return replace(event, part=filter_part(event.part))
        case SelectionAmongTrained():
            left_out.append(f"the choice: {event.describe()}")
            return filter_part(event.trained[event.chosen]).event
        case Selection():
            # A selection on public rows costs nothing.
            return _filter_event(event.inner, budget, left_out, replayed=replayed)
        case Training() if replayed is not None:
            _check_loss(event.problem.loss)
            rows, dims = min(event.problem.rows, MAX_ROWS), min(event.problem.dims, replayed.dims)
            same = rows == event.problem.rows and dims == event.problem.dims
            return event if same else resize_training(event, budget, rows=rows, dims=dims)
        case NoisyMoments() if replayed is not None and replayed.encoded_dims - replayed.intercept < event.features:
            return _resize_moments(event, budget, replayed)
        case NoisyMoments() | Training():
            return event
    raise ParameterError(f"an audit must be of events that it knows, got {event.kind!r}")


def _resize_moments(event: NoisyMoments, budget: Budget, schema: Schema) -> NoisyMoments:
    """Return the moments of the features of a schema, their noise calibrated again to the same budget."""
    features, norm = schema.encoded_dims - schema.intercept, schema.feature_clip_norm
    few = replace(event, features=features, numbers=schema.numbers, clip_norm=norm, noise=None)
    return few.calibrate_noise(budget, gaussian=event.noise is not None and event.noise.kind == "gaussian")


def _list_stages(event: Event, budget: Budget) -> list[Stage]:
    match event:
        case NonPrivate():
            return _list_stages(event.spent, budget)
        case Composition():
            return [stage for part in event.parts for stage in _list_stages(part.event, part.budget or budget)]
        case SelfComposition():
            inner = _list_stages(event.part.event, event.part.budget or budget)
            return [replace(stage, models=event.count) for stage in inner]
        case NoisyMoments() | Training():
            return [Stage(event, budget)]
    return []


def resize_training(
    event: Training,
    budget: Budget,
    *,
    rows: int,
    dims: int | None = None,
    scans: int | None = None,
    step: float | None = None,
) -> Training:
    """Return the training for other numbers of rows and features, its noise calibrated again to the same budget.

    Objective perturbation keeps m*Lambda, and therefore its noise.

    >>> from boltdp.workflows.plan import plan_certificate
    >>> event = plan_certificate(Settings(epsilon=1.0, algorithm="objective"), rows=10**6, dims=50, classes=2).training
    >>> small = resize_training(event, Budget(1.0), rows=100, dims=50)
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
