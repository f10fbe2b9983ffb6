"""The training that is audited: as its certificate states it, on synthetic rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from boltdp.algorithms import ALGORITHMS
from boltdp.audit.neighbouring_tables import reduce_schema
from boltdp.errors import ParameterError
from boltdp.losses import LOSSES
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import (
    BudgetedEvent,
    Composition,
    Event,
    NoiselessTraining,
    NonPrivateEvent,
    SelfComposition,
    Training,
    compose,
    round_up,
)
from boltdp.privacy.events.label_quantiles import LabelQuantiles
from boltdp.privacy.events.noisy_counts import (
    NoisyHistograms,
    NoisyUnusableLabelCount,
    is_schema_draft,
    make_noisy_histograms,
)
from boltdp.privacy.events.noisy_matrix import NoisyMatrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation, make_objective_perturbation
from boltdp.privacy.events.selection import Selection, SelectionAmongTrained
from boltdp.privacy.mechanisms import Mechanism, calibrate
from boltdp.schema.schema import Schema

#: Maximum numbers of rows and features of a replayed training: a larger training is planned again for these.
MAX_ROWS, MAX_FEATURES = 2000, 100
#: The relative difference, from rounding, up to which two epsilons are those of one budget.
SAME_BUDGET = 1e-9

AuditedEvent: TypeAlias = (
    LabelQuantiles | NoisyHistograms | NoisyMatrix | NoisyMoments | NoisyUnusableLabelCount | Training
)


@dataclass(frozen=True)
class Claim:
    """What is claimed of one release, or of several identical ones: its event and its share of the budget."""

    event: AuditedEvent
    budget: Budget
    model_count: int = 1
    other_events: tuple[Event, ...] = ()  #: Gaussian mechanisms that share the budget: all compose as one

    @property
    def name(self) -> str:
        kind = f"{self.event.kind}: {self.event.matrix}" if isinstance(self.event, NoisyMatrix) else self.event.kind
        kind += " and all that is composed with it" if self.other_events else ""
        return kind + (f", each of {self.model_count}" if self.model_count > 1 else "")

    @property
    def other_mu(self) -> float:
        """The mu of the other events together."""
        return compose_mu(self.other_events)

    def compute_delta(self, event: Event, epsilon: float) -> float:
        """Return the delta at an epsilon of `event` composed with the other events."""
        if self.other_events:
            return event.compute_composed_delta(self.other_mu, epsilon)
        return event.delta(epsilon, target=self.budget.delta or 1e-9)

    def to_dict(self) -> dict[str, Any]:
        return {"stage": self.name, "claimed": {"epsilon": self.budget.epsilon, "delta": self.budget.delta}}


@dataclass(frozen=True)
class Subject:
    """A training that can be run on synthetic rows: a schema, a certificate for that many rows, and its claims."""

    schema: Schema  #: with at most MAX_FEATURES features
    certificate: Certificate
    replayed_claims: tuple[Claim, ...]  #: the claims of this certificate
    claims: tuple[Claim, ...]  #: the claims of the audited certificate, with its number of rows
    left_out: tuple[str, ...]  #: the parts of the audited certificate that are not audited

    @property
    def rows(self) -> int:
        return self.certificate.problem.rows


def make_subject(schema: Schema, certificate: Certificate) -> Subject:
    """Return the training by which a certificate is audited: of limited size, without a private standardization."""
    budget = certificate.budget
    if budget is None or certificate.seeded:
        raise ParameterError(
            f"a model must claim an epsilon to be audited, and this one does not: {certificate.guarantee()}",
            hint="a training with --epsilon and without --noise-seed claims one",
        )
    left_out: list[str] = []
    if schema.standardization is not None and schema.standardization.source == "private":
        schema = replace(schema, standardization=None)
    schema = reduce_schema(replace(schema, spent=None, target=schema.target.without_range()), MAX_FEATURES)
    whole = _filter_event(certificate.spent, budget, left_out, replayed=None)
    few = _filter_event(certificate.spent, budget, [], replayed=schema)
    claims, replayed = tuple(_list_claims(whole, budget)), tuple(_list_claims(few, budget))
    return Subject(schema, replace(certificate, spent=few), replayed, claims, tuple(left_out))


def _filter_event(event: Event, budget: Budget, left_out: list[str], *, replayed: Schema | None) -> Event:
    """Return the event without what the audit does not run, resized to the schema `replayed` if that is given."""

    def filter_part(part: BudgetedEvent) -> BudgetedEvent:
        share = part.budget or budget
        return BudgetedEvent(share, _filter_event(part.event, share, left_out, replayed=replayed))

    match event:
        case NonPrivateEvent():
            return replace(event, spent=_filter_event(event.spent, budget, left_out, replayed=replayed))
        case Composition():
            kept = [part for part in event.parts if not is_schema_draft(part.event)]
            left_out += ["how the schema was found from the rows"] * (len(event.parts) - len(kept))
            return _match_parts(compose(*map(filter_part, kept)), shared=bool(list_other_events(event, budget)))
        case SelfComposition():
            return replace(event, part=filter_part(event.part))
        case SelectionAmongTrained():
            left_out.append(f"the choice: {event.describe()}")
            return filter_part(event.trained[event.chosen]).event
        case Selection():
            # A selection on public rows costs nothing.
            return _filter_event(event.inner, budget, left_out, replayed=replayed)
        case NoisyMoments() if replayed is not None and replayed.column_feature_count < event.features:
            return _resize_moments(event, budget, replayed)
        case NoisyHistograms() if replayed is not None and len(replayed.columns) < event.releases:
            gaussian, persons = event.noise.kind == "gaussian", event.person_rows
            columns = len(replayed.columns)
            return make_noisy_histograms(budget, columns=columns, gaussian=gaussian, person_rows=persons)
        case LabelQuantiles() | NoisyHistograms() | NoisyMatrix() | NoisyUnusableLabelCount() | NoisyMoments():
            return event
        case Training() if not isinstance(event, NoiselessTraining):
            if replayed is None:
                return event
            loss = event.problem.loss
            if LOSSES.get(loss.name) is not type(loss):  # the kernel would run another one
                raise ParameterError(f"an audit must be of a loss among {', '.join(LOSSES)}, got {loss.name!r}")
            rows, dims = min(event.problem.rows, MAX_ROWS), min(event.problem.dims, replayed.dims)
            if (rows, dims) == (event.problem.rows, event.problem.dims):
                return event
            return ALGORITHMS[event.algorithm].resize(event, budget, rows=rows, dims=dims)
    raise ParameterError(f"an audit must be of events that it knows, got {event.kind!r}")


def list_other_events(event: Composition, budget: Budget) -> tuple[Event, ...]:
    """Return the Gaussian mechanisms that share the budget with a training; none if budgets add up."""
    *others, last = event.parts
    if last.budget is None or not isinstance(last.event, ObjectivePerturbation):
        return ()
    shared = math.isclose(last.budget.epsilon, budget.epsilon, rel_tol=SAME_BUDGET)
    return tuple(part.event for part in others) if shared else ()


def compose_mu(events: Sequence[Event]) -> float:
    """Return the mu of the composition of Gaussian mechanisms."""
    return round_up(math.hypot(*(event.mu or 0.0 for event in events)))


def _match_parts(event: Event, *, shared: bool) -> Event:
    """Return the composition with its matrices, if it has any, of the training that it ends with, as that was resized.

    Their noise is calibrated again: to the same mu, or to the same budget. So is that of the training, if the others
    share its budget.
    """
    if not isinstance(event, Composition) or not isinstance(event.parts[-1].event, Training):
        return event
    problem, parts = event.parts[-1].event.problem, []
    for part in event.parts:
        matrix = part.event
        if isinstance(matrix, NoisyMatrix) and matrix.noise is not None and matrix.problem != problem:
            few, noise, mu = replace(matrix, problem=problem, noise=None), matrix.noise, matrix.mu
            if mu is None:
                assert part.budget is not None
                noise = calibrate(few.sensitivity, dimensions=few.dimensions, budget=part.budget)
            else:
                noise = Mechanism("gaussian", few.sensitivity / mu, few.dimensions)
            part = replace(part, event=replace(few, noise=noise))
        parts.append(part)
    *others, last = parts
    if shared and last.budget is not None:
        other_mu = compose_mu([part.event for part in others])
        last = replace(last, event=make_objective_perturbation(problem, last.budget, other_mu=other_mu))
        return Composition((*others, last))
    return Composition(tuple(parts))


def _resize_moments(event: NoisyMoments, budget: Budget, schema: Schema) -> NoisyMoments:
    """Return the moments of the features of a schema, their noise calibrated again to the same budget."""
    features, norm = schema.column_feature_count, schema.feature_clip_norm
    few = replace(event, features=features, numbers=schema.numeric_feature_count, clip_norm=norm, noise=None)
    return few.calibrate_noise(budget, gaussian=event.noise is not None and event.noise.kind == "gaussian")


def _list_claims(event: Event, budget: Budget) -> list[Claim]:
    match event:
        case NonPrivateEvent():
            return _list_claims(event.spent, budget)
        case Composition():
            claims = [claim for part in event.parts for claim in _list_claims(part.event, part.budget or budget)]
            if others := list_other_events(event, budget):
                claims[-1] = replace(claims[-1], other_events=others)
            return claims
        case SelfComposition():
            inner = _list_claims(event.part.event, event.part.budget or budget)
            return [replace(claim, model_count=event.count) for claim in inner]
        case (
            LabelQuantiles()
            | NoisyHistograms()
            | NoisyMatrix()
            | NoisyUnusableLabelCount()
            | NoisyMoments()
            | Training()
        ):
            return [Claim(event, budget)]
    return []
