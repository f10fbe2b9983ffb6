"""Replay: the training code on neighbouring tables, with everything random and everything released held fixed.

A first run writes down what each release adds noise to, and what it releases. A second run, on the neighbouring table,
is given the same releases, whatever it adds noise to. Then
- what goes into a release differs by no more than the sensitivity that its noise is for, and
- what comes out is the same to the last bit: a number that went around the releases would show.

That is adaptive composition as the proofs have it: each release is compared given all that were released before. The
first release of objective perturbation is of no number: the term that leads the second run to the weights of the first
is another one, which must be within the loss's reach of the first.

Shipped code has no place where noise could be switched off or written down: `watched` takes the place of the function
that adds noise, in this process and thread, while rows are trained on that were made up here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from boltdp._arrays import Doubles
from boltdp.algorithms import get_algorithm
from boltdp.audit.audited_training import Stage, Subject
from boltdp.audit.confidence import gamma, normal, too_far
from boltdp.audit.synthetic_rows import ORDER, Pair
from boltdp.context import Context
from boltdp.privacy import release
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients, sum_sensitivity
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release import RandomBytes
from boltdp.workflows.standardize import prepare_rows
from boltdp.workflows.train import train_prepared

if TYPE_CHECKING:
    import pyarrow as pa

    from boltdp.engines.prepared_rows import PreparedRows
    from boltdp.model import Model

AddNoise: TypeAlias = Callable[[Mechanism, Doubles, RandomBytes], Doubles]
#: Differences are measured in doubles.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Draw:
    """What noise was added to, and what was released."""

    noise: Mechanism
    given: Doubles
    released: Doubles


@dataclass(frozen=True)
class Limit:
    """One kind of release of a stage: its noise, and how far one row may move what that is added to."""

    stage: Stage
    name: str
    noise: Mechanism
    sensitivity: float

    @property
    def who(self) -> str:
        return "one row" if self.stage.event.person_rows is None else "one person"


def limits(stage: Stage) -> list[Limit]:
    """Of each kind of release that a stage makes; none where noise is drawn inside the kernel."""
    event = stage.event
    match event:
        case NoisyMoments():
            assert event.noise is not None
            return [Limit(stage, "sums", event.noise, event.sensitivity)]
        case OutputPerturbation():
            return [Limit(stage, "weights", event.noise, event.sensitivity.total)]
        case NoisyGradients():
            return [Limit(stage, "sums of a scan", event.noise, sum_sensitivity(event.problem, event.clip).total)]
        case ObjectivePerturbation():
            simplex = event.problem.loss.simplex
            assert simplex is not None
            counted = event.problem.person_rows or 1
            return [
                Limit(stage, "linear term", event.linear, 2.0 * counted * math.sqrt(simplex.edge_squared)),
                Limit(stage, "weights", event.end, event.sensitivity.total),
            ]
    return []


@dataclass
class Replayed:
    """What many neighbours have shown of the releases of a stage."""

    limit: Limit
    pairs: int = 0
    ratio: float = 0.0  #: the largest distance, in sensitivities
    worst: Pair | None = None
    noises: list[Doubles] = field(default_factory=list)  #: in scales

    def faults(self, *, mistake: float) -> list[str]:
        noise, found = self.limit.noise, []
        if self.ratio > 1.0 + ROUNDING:
            found.append(f"{self.limit.who} moves it {self.ratio:.3g} times as far as the noise is for")
        drawn = np.array(self.noises)
        if len(drawn) < 2:
            return found
        if len(np.unique(drawn.round(9), axis=0)) < len(drawn):
            found.append("the same noise was drawn twice")
        elif (np.abs(drawn).max(axis=0) < 1e-9).any():
            found.append("some of the numbers had no noise")
        elif noise.kind == "gaussian":
            if too_far(drawn.ravel(), normal, mistake=mistake):
                found.append("the noise is not as stated")
        elif too_far(np.linalg.norm(drawn, axis=1), gamma(noise.dimensions), mistake=mistake):
            found.append("the noise is not as long as stated")
        return found


@dataclass
class Replay:
    """All stages, and how often something else than the releases showed which table it was."""

    stages: list[Replayed]
    leaks: int = 0
    unstated: int = 0  #: releases that the certificate does not speak of


def replayed(subject: Subject, pairs: Sequence[Pair], done: Callable[[int], None]) -> Replay:
    """Both runs for each of the pairs."""
    found = Replay([Replayed(limit) for stage in subject.replayed for limit in limits(stage)])
    by_noise = {one.limit.noise: one for one in found.stages}
    for number, pair in enumerate(pairs):
        _compare(subject, pair, found, by_noise)
        done(number + 1)
    return found


def _compare(subject: Subject, pair: Pair, found: Replay, by_noise: dict[Mechanism, Replayed]) -> None:
    one, other = pair.tables(subject.schema, subject.rows)
    first = _recorded(subject, one)
    second = _answered(subject, other, first)
    same = len(first.draws) == len(second.draws) and all(
        before.noise == after.noise for before, after in zip(first.draws, second.draws, strict=True)
    )
    if not same or first.shown != second.shown:
        found.leaks += 1
    for before, after in zip(first.draws, second.draws, strict=False):
        stage = by_noise.get(before.noise)
        if stage is None:
            found.unstated += 1
            continue
        ratio = float(np.linalg.norm(after.given - before.given)) / stage.limit.sensitivity
        if ratio > stage.ratio or stage.worst is None:
            stage.ratio, stage.worst = max(ratio, stage.ratio), pair
        stage.noises.append((before.released - before.given) / before.noise.scale)
    for stage in by_noise.values():
        stage.pairs += 1


@dataclass
class _Run:
    draws: list[Draw]
    model: Model
    slopes: list[Doubles]  #: of objective perturbation: the gradient of all rows at the weights found

    @property
    def shown(self) -> str:
        return repr(self.model.to_dict())


def _recorded(subject: Subject, table: pa.Table) -> _Run:
    """The run, with what it adds noise to."""
    draws: list[Draw] = []

    def record(honest: AddNoise, noise: Mechanism, given: Doubles, random_bytes: RandomBytes) -> Doubles:
        released = honest(noise, given, random_bytes)
        draws.append(Draw(noise, given.copy(), released.copy()))
        return released

    slopes: list[Doubles] = []

    def look(prepared: PreparedRows) -> None:
        slopes.extend(_slopes(subject, prepared, draws))

    with watched(record):
        model = _run(subject, table, after=look)
    return _Run(draws, model, slopes)


def _answered(subject: Subject, table: pa.Table, first: _Run) -> _Run:
    """The run on the neighbour, given what the first one released."""
    draws: list[Draw] = []
    event, moved = subject.certificate.training, list[Doubles]()

    def answer(honest: AddNoise, noise: Mechanism, given: Doubles, random_bytes: RandomBytes) -> Doubles:
        number = len(draws)
        if number >= len(first.draws) or first.draws[number].noise != noise:
            draws.append(Draw(noise, given.copy(), given))
            return honest(noise, given, random_bytes)
        released = first.draws[number].released
        if isinstance(event, ObjectivePerturbation) and noise == event.linear and moved:
            # The term with which this table has the same minimiser; how far it is from the first one's is what counts.
            move = moved.pop(0)
            draws.append(Draw(noise, move, released))
            return released + move
        draws.append(Draw(noise, given.copy(), released))
        return released.copy()

    def look(prepared: PreparedRows) -> None:
        for ours, theirs in zip(first.slopes, _slopes(subject, prepared, first.draws), strict=True):
            basis = event.problem.loss.basis
            difference = ours - theirs
            moved.append((difference if basis is None else basis @ difference).ravel())

    with watched(answer):
        model = _run(subject, table, before=look)
    return _Run(draws, model, [])


#: One audit at a time watches: each puts back what it found.
_WATCHING = threading.Lock()


@contextmanager
def watched(observe: Callable[[AddNoise, Mechanism, Doubles, RandomBytes], Doubles]) -> Iterator[None]:
    """Let `observe` answer for the function that adds noise, in this thread alone; another audit waits for its turn."""
    name, thread = "add_noise", threading.get_ident()
    with _WATCHING:
        honest: AddNoise = getattr(release, name)
        watching = True

        def add_noise(mechanism: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Doubles:
            if not watching or threading.get_ident() != thread:
                return honest(mechanism, vector, random_bytes)
            return observe(honest, mechanism, vector, random_bytes)

        setattr(release, name, add_noise)
        try:
            yield
        finally:
            watching = False
            setattr(release, name, honest)


def _run(
    subject: Subject,
    table: pa.Table,
    *,
    before: Callable[[PreparedRows], None] | None = None,
    after: Callable[[PreparedRows], None] | None = None,
) -> Model:
    """Train as `boltdp.train` does, with a look at the prepared rows before or after."""
    from boltdp.engines.arrays import ArrayEngine

    context, certificate = Context(seed=ORDER, threads=1), subject.certificate
    ordered = get_algorithm(certificate.algorithm).ordered
    with (
        ArrayEngine.from_arrow(table) as engine,
        prepare_rows(engine, subject.schema, certificate.moments, context, rows=certificate.rows, ordered=ordered) as (
            prepared,
            schema,
        ),
    ):
        if before is not None:
            before(prepared)
        model = train_prepared(prepared, schema, certificate, context)
        if after is not None:
            after(prepared)
    return model


def _slopes(subject: Subject, prepared: PreparedRows, draws: Sequence[Draw]) -> list[Doubles]:
    """Of each model of objective perturbation: the gradient of all rows at the weights that were found."""
    from boltdp.kernel.loss_derivatives import DerivativeSums

    event = subject.certificate.training
    if not isinstance(event, ObjectivePerturbation):
        return []
    problem, basis = event.problem, event.problem.loss.basis
    found = [draw.given for draw in draws if draw.noise == event.end]
    if basis is None:
        weights = [given.reshape(1, -1) for given in found]
    else:
        weights = [basis.T @ given.reshape(-1, problem.dims) for given in found]
    sums = [
        DerivativeSums(
            problem.loss,
            at,
            positive=positive,
            classes=subject.schema.target.label_count,
            class_weights=problem.class_weights,
            feature_map=prepared.feature_map,
        )
        for at, positive in zip(weights, [1] if len(weights) == 1 else range(len(weights)), strict=True)
    ]
    prepared.sum(sums)
    return [one.value for one in sums]
