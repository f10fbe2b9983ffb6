"""Replay: the training code on neighbouring tables, with all randomness and all releases held fixed.

A first run records the input and the output of each release. A second run, on the neighbouring table, gets the same
outputs, whatever its inputs are. Then
- the inputs of each release must differ by at most the sensitivity that its noise is calibrated to,
- the trained models must be equal to the last bit: else a number bypasses the releases, and
- the noise must be that which is stated, drawn as often as stated, from random bits that are used once.

This is adaptive composition as in the proofs: each release is compared given all earlier outputs. The first release of
objective perturbation, its linear term, has no input: the term with which the second run finds the weights of the first
run must be within the sensitivity of the first term.

A choice of the exponential mechanism is held fixed alike: its input are the scores of all candidates.

Shipped code has no switch that disables or records noise: `intercept_noise` and `intercept_choices` replace the
functions that draw it, in this process and thread, while the audit trains on synthetic rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, Integers
from boltdp.algorithms import get_algorithm
from boltdp.audit.neighbouring_tables import ORDER, TablePair
from boltdp.audit.statistical_tests import compute_normal_cdf, make_gamma_cdf, rejects_distribution, rejects_isotropic
from boltdp.audit.subject import Claim, Subject
from boltdp.model import compute_penalty_center
from boltdp.privacy import release_with_noise
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.label_quantiles import LabelQuantiles
from boltdp.privacy.events.noisy_counts import NoisyHistograms
from boltdp.privacy.events.noisy_matrix import NoisyMatrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation, choose_gradient_tolerance
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release_with_noise import RandomBytes
from boltdp.run_context import Context
from boltdp.workflows.standardize import prepare_rows
from boltdp.workflows.train import train_prepared

if TYPE_CHECKING:
    import pyarrow as pa

    from boltdp.engines.prepared_rows import PreparedRows
    from boltdp.schema.schema import Schema

AddNoise: TypeAlias = Callable[[Mechanism, Doubles, RandomBytes], Doubles]
Choose: TypeAlias = Callable[..., int]  #: `choose_by_errors`
#: Tolerance of ratios, for rounding.
ROUNDING = 1e-9
#: Bytes of random bits that are compared: of N words, two are equal by chance with a probability below N^2 / 2^65.
WORD = 8
#: Further draws of each noise, and their dimensions.
SAMPLED, SAMPLED_DIMENSIONS = 3_000, 3


@dataclass(frozen=True)
class Draw:
    """The input and the output of one release."""

    noise: Mechanism
    vector: Doubles
    released: Doubles
    bits: bytes = b""  #: all random bytes that were read for it

    @property
    def is_on_grid(self) -> bool:
        """Whether all released numbers are on the grid of the noise; others would reveal the last bits of the input."""
        steps = np.ldexp(self.released, self.noise.grid_exponent)
        return bool((steps == np.rint(steps)).all())


@dataclass(frozen=True)
class Choice:
    """The input and the output of one choice by the exponential mechanism."""

    scores: Integers
    epsilon: float
    changes: int  #: the sensitivity of the scores that it was drawn for
    chosen: int
    bits: bytes = b""

    @property
    def log_probabilities(self) -> Doubles:
        """The logarithm of the probability of each candidate."""
        exponents = -self.epsilon * (self.scores - self.scores.min()) / (2.0 * self.changes)
        logarithms: Doubles = exponents - np.log(np.exp(exponents).sum())
        return logarithms


@dataclass(frozen=True)
class ClaimedRelease:
    """One kind of release of a claim, with its noise and its claimed sensitivity."""

    claim: Claim
    name: str
    noise: Mechanism
    sensitivity: float
    scans: int = 1  #: releases of a model in each training
    coordinates: bool = False  #: whether its draws are the coordinates of one vector, as many as there are

    @property
    def draws(self) -> int:
        """The number of draws of noise in each training of all models."""
        return self.scans * self.claim.model_count

    @property
    def privacy_unit(self) -> str:
        return "one row" if self.claim.event.person_rows is None else "one person"


def list_releases(claim: Claim) -> list[ClaimedRelease]:
    """List the vectors that get noise, with the claimed sensitivities; none where the kernel draws the noise."""
    event = claim.event
    if isinstance(event, Training):
        return [ClaimedRelease(claim, *vector) for vector in event.noisy_vectors]
    if isinstance(event, LabelQuantiles):
        return []
    if isinstance(event, NoisyHistograms):
        return [ClaimedRelease(claim, "histograms", event.noise, event.sensitivity, coordinates=True)]
    name = "sums" if isinstance(event, NoisyMoments) else "matrix" if isinstance(event, NoisyMatrix) else "count"
    return [] if event.noise is None else [ClaimedRelease(claim, name, event.noise, event.sensitivity)]


@dataclass
class ReplayedRelease:
    """The results of many neighbouring tables for one kind of release."""

    release: ClaimedRelease
    pairs: int = 0
    ratio: float = 0.0  #: the largest distance of inputs, in sensitivities
    worst: TablePair | None = None
    noises: list[Doubles] = field(default_factory=list)  #: in scales of the noise
    off_grid: int = 0  #: draws that are not rounded to the grid of the noise
    sample: Doubles | None = None  #: further draws in few dimensions, in the same scales

    @property
    def draws_differ(self) -> bool:
        """Whether noise was drawn more or less often than stated."""
        return not self.release.coordinates and len(self.noises) != self.pairs * self.release.draws

    def compare(self, moves: Sequence[Doubles], pair: TablePair) -> None:
        """Compare how far a pair of tables moves the inputs of all draws with the sensitivity."""
        release, parts = self.release, moves
        if release.coordinates:
            parts = [np.concatenate(moves)]
        order = 1 if release.coordinates and release.noise.kind == "spherical" else 2
        ratio = max(float(np.linalg.norm(part, ord=order)) for part in parts) / release.sensitivity
        if ratio > self.ratio or self.worst is None:
            self.ratio, self.worst = max(ratio, self.ratio), pair

    def list_faults(self, *, mistake: float) -> list[str]:
        """List what contradicts the claim, in words; `mistake` is the probability that a test rejects correct noise."""
        noise, found = self.release.noise, []
        if self.ratio > 1.0 + ROUNDING:
            found.append(f"{self.release.privacy_unit} moves it {self.ratio:.3g} times as far as the noise is for")
        drawn = np.array(self.noises)
        if self.draws_differ:
            found.append(
                f"noise was drawn {len(drawn):,} times in {self.pairs} trainings, not {self.release.draws:,} in each"
            )
        if self.off_grid:
            found.append(f"{self.off_grid:,} draws are not rounded to the grid of the noise")
        if len(drawn) < 2:
            return found
        if not np.isfinite(drawn).all():
            found.append("the noise is not finite")
        elif count_repeated_draws(drawn):
            found.append("the same noise was drawn twice")
        elif (np.abs(drawn).max(axis=0) < 1e-9).any():
            found.append("some of the numbers had no noise")
        elif noise.kind == "gaussian":
            if rejects_distribution(drawn.ravel(), compute_normal_cdf, mistake=mistake / 2):
                found.append("the noise is not as stated")
        elif rejects_distribution(np.linalg.norm(drawn, axis=1), make_gamma_cdf(noise.dimensions), mistake=mistake / 2):
            found.append("the noise is not as long as stated")
        if self.sample is not None and rejects_isotropic(self.sample, kind=noise.kind, mistake=mistake / 2):
            found.append("the direction or the length of the noise is not as stated, or depends on the other")
        return found


@dataclass
class ReplayedChoices:
    """The results of many neighbouring tables for the choice of quantiles."""

    claim: Claim
    event: LabelQuantiles
    pairs: int = 0
    ratio: float = 0.0  #: the largest change of a score, in sensitivities
    worst: TablePair | None = None
    uneven: int = 0  #: trainings whose choices are not those that are stated: how many, for which epsilon and changes

    def compare(self, first: Sequence[Choice], second: Sequence[Choice], pair: TablePair) -> None:
        """Add the choices of both trainings of a pair."""
        stated = [(self.event.epsilon, self.event.sensitivity)] * len(self.event.percentiles)
        self.uneven += any([(one.epsilon, one.changes) for one in made] != stated for made in (first, second))
        self.pairs += 1
        for one, other in zip(first, second, strict=False):
            ratio = float(np.abs(one.scores - other.scores).max()) / self.event.sensitivity
            if ratio > self.ratio or self.worst is None:
                self.ratio, self.worst = max(ratio, self.ratio), pair

    def list_faults(self) -> list[str]:
        """List what contradicts the claim, in words."""
        unit = "one row" if self.event.person_rows is None else "one person"
        found = []
        if self.ratio > 1.0:
            found.append(f"{unit} changes a score {self.ratio:.3g} times as much as the choice is for")
        if self.uneven:
            found.append(f"the choices of {self.uneven} of {self.pairs} trainings are not those that are stated")
        return found


@dataclass
class Replay:
    """The results of all releases."""

    releases: list[ReplayedRelease]
    choices: list[ReplayedChoices] = field(default_factory=list)
    leaks: int = 0  #: pairs of tables whose models differ in more than the releases
    unstated: int = 0  #: releases that the certificate does not mention
    unsolved: int = 0  #: trainings whose weights are not the minimiser of the stated objective with the drawn term
    words: list[npt.NDArray[np.uint64]] = field(default_factory=list)  #: random bits that were read for each draw
    missing: int = 0  #: words that draws should have read and have not: at least one for each dimension

    @property
    def reused_words(self) -> int:
        """The number of words of random bits that were used again, for the same draw or another."""
        words = np.concatenate([np.empty(0, np.uint64), *self.words])
        return self.missing + len(words) - len(np.unique(words))

    @property
    def repeated_draws(self) -> int:
        """The number of draws with the noise of another draw, of the same release or another, up to its scale."""
        by_dimensions: dict[int, list[Doubles]] = {}
        for one in self.releases:
            by_dimensions.setdefault(one.release.noise.dimensions, []).extend(one.noises)
        return sum(count_repeated_draws(np.array(noises)) for noises in by_dimensions.values() if noises)


def count_repeated_draws(drawn: Doubles) -> int:
    """Count the draws of noise equal to an earlier one; 0 in one dimension, where a few are equal by chance."""
    return 0 if drawn.shape[1] == 1 else len(drawn) - len(np.unique(drawn.round(8), axis=0))


def replay_pairs(subject: Subject, pairs: Sequence[TablePair], done: Callable[[int], None]) -> Replay:
    """Train on both tables of each pair, and compare the inputs of their releases and their models."""
    found = Replay(
        [ReplayedRelease(one) for claim in subject.replayed_claims for one in list_releases(claim)],
        [ReplayedChoices(one, one.event) for one in subject.replayed_claims if isinstance(one.event, LabelQuantiles)],
    )
    by_noise = {one.release.noise: one for one in found.releases}
    for number, pair in enumerate(pairs):
        _compare_runs(subject, pair, found, by_noise)
        done(number + 1)
    for one in found.releases:
        one.sample = _draw_noise(one.release.noise)
    return found


def _draw_noise(noise: Mechanism) -> Doubles:
    """Draw the noise in `SAMPLED_DIMENSIONS`, in its scales: its sampler is the same in any number of dimensions."""
    few, zeros = replace(noise, dimensions=SAMPLED_DIMENSIONS), np.zeros(SAMPLED_DIMENSIONS)
    add_noise: AddNoise = vars(release_with_noise)["add_noise"]
    stream = release_with_noise.Randomness().make_stream()
    return np.array([add_noise(few, zeros, stream) for _ in range(SAMPLED)]) / noise.scale


def _compare_runs(subject: Subject, pair: TablePair, found: Replay, by_noise: dict[Mechanism, ReplayedRelease]) -> None:
    """Train on both tables of a pair, and add to `found` what differs between their releases."""
    one, other = pair.make_tables(subject.schema, subject.rows)
    first = _record_run(subject, one)
    second = _repeat_run(subject, other, first)
    same = len(first.draws) == len(second.draws) and all(
        before.noise == after.noise for before, after in zip(first.draws, second.draws, strict=True)
    )
    if not same or first.model != second.model:
        found.leaks += 1
    found.unsolved += not first.solved
    numbers = [(draw.bits, draw.noise.dimensions) for draw in first.draws]
    for bits, needed in (*numbers, *((choice.bits, len(choice.scores)) for choice in first.choices)):
        found.words.append(np.frombuffer(bits, np.uint64, len(bits) // WORD))
        found.missing += max(needed - len(found.words[-1]), 0)
    for replayed_choices in found.choices:
        replayed_choices.compare(first.choices, second.choices, pair)
    if not found.choices:
        found.unstated += len(first.choices)
    moves: dict[Mechanism, list[Doubles]] = {}
    for before, after in zip(first.draws, second.draws, strict=False):
        replayed = by_noise.get(before.noise)
        if replayed is None:
            found.unstated += 1
            continue
        moves.setdefault(before.noise, []).append(after.vector - before.vector)
        replayed.noises.append((before.released - before.vector) / before.noise.scale)
        replayed.off_grid += not before.is_on_grid
    for noise, moved in moves.items():
        by_noise[noise].compare(moved, pair)
    for replayed in by_noise.values():
        replayed.pairs += 1


@dataclass(frozen=True)
class _Run:
    """What was released in one training of a replay."""

    draws: list[Draw]
    choices: list[Choice]
    model: str  #: all that it shows
    gradients: Sequence[Doubles] = ()  #: of objective perturbation: the sum over all rows at the weights
    solved: bool = True  #: whether the gradients of its objectives are as small as its proof needs


def _record_run(subject: Subject, table: pa.Table) -> _Run:
    draws: list[Draw] = []
    choices: list[Choice] = []

    def record_noise(honest: AddNoise, noise: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Doubles:
        read_bytes, read = _record_bytes(random_bytes)
        released = honest(noise, vector, read_bytes)
        draws.append(Draw(noise, vector.copy(), released.copy(), b"".join(read)))
        return released

    def record_choice(
        honest: Choose, errors: Sequence[int], *, epsilon: float, random_bytes: RandomBytes, changes: int = 1
    ) -> int:
        read_bytes, read = _record_bytes(random_bytes)
        chosen = honest(errors, epsilon=epsilon, random_bytes=read_bytes, changes=changes)
        choices.append(Choice(np.array(errors), epsilon, changes, chosen, b"".join(read)))
        return chosen

    intercepted = intercept_noise(record_noise), intercept_choices(record_choice)
    with intercepted[0], intercepted[1], _prepare_table(subject, table) as (prepared, schema, train):
        model, gradients = train(), _sum_gradients(subject, prepared, draws)
        return _Run(draws, choices, model, gradients, _are_minimal(subject, schema, gradients, draws))


def _record_bytes(random_bytes: RandomBytes) -> tuple[RandomBytes, list[bytes]]:
    """Return a source of the same bytes, and the list of those that were read from it."""
    read: list[bytes] = []

    def read_bytes(count: int) -> bytes:
        read.append(random_bytes(count))
        return read[-1]

    return read_bytes, read


def _repeat_run(subject: Subject, table: pa.Table, first: _Run) -> _Run:
    """Train on the neighbouring table, where each release returns the output of the first run."""
    draws: list[Draw] = []
    choices: list[Choice] = []
    event, moved = subject.certificate.training, list[Doubles]()

    def answer(honest: AddNoise, noise: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Doubles:
        number = len(draws)
        if number >= len(first.draws) or first.draws[number].noise != noise:
            draws.append(Draw(noise, vector.copy(), vector))
            return honest(noise, vector, random_bytes)
        released = first.draws[number].released
        if isinstance(event, ObjectivePerturbation) and noise == event.linear and moved:
            # The term with which this table has the same minimiser: its distance from the first term is compared.
            move = moved.pop(0)
            draws.append(Draw(noise, move, released))
            return released + move
        draws.append(Draw(noise, vector.copy(), released))
        return released.copy()

    def answer_choice(
        honest: Choose, errors: Sequence[int], *, epsilon: float, random_bytes: RandomBytes, changes: int = 1
    ) -> int:
        if len(choices) < len(first.choices):
            chosen = first.choices[len(choices)].chosen
        else:
            chosen = honest(errors, epsilon=epsilon, random_bytes=random_bytes, changes=changes)
        choices.append(Choice(np.array(errors), epsilon, changes, chosen))
        return chosen

    intercepted = intercept_noise(answer), intercept_choices(answer_choice)
    with intercepted[0], intercepted[1], _prepare_table(subject, table) as (prepared, _, train):
        for one, other in zip(first.gradients, _sum_gradients(subject, prepared, first.draws), strict=True):
            moved.append(event.problem.loss.to_basis(one - other).ravel())
        return _Run(draws, choices, train())


#: Held while noise is intercepted: only one audit at a time may replace the functions.
_INTERCEPTING = threading.RLock()


def intercept_noise(
    observe: Callable[[AddNoise, Mechanism, Doubles, RandomBytes], Doubles],
) -> AbstractContextManager[None]:
    """Call `observe` whenever this thread adds noise; another audit waits until this one is done."""
    return _intercept("add_noise", observe)


def intercept_choices(observe: Callable[..., int]) -> AbstractContextManager[None]:
    """Call `observe` whenever this thread draws a choice that is released as one, as `intercept_noise` does."""
    return _intercept("choose_by_errors", observe)


@contextmanager
def _intercept(name: str, observe: Callable[..., Any]) -> Iterator[None]:
    """Call `observe` with a function of `release_with_noise` and its arguments whenever this thread calls it there."""
    thread = threading.get_ident()
    with _INTERCEPTING:
        honest: Callable[..., Any] = getattr(release_with_noise, name)
        active = True

        def call(*given: Any, **named: Any) -> Any:
            if not active or threading.get_ident() != thread:
                return honest(*given, **named)
            return observe(honest, *given, **named)

        setattr(release_with_noise, name, call)
        try:
            yield
        finally:
            active = False
            setattr(release_with_noise, name, honest)


@contextmanager
def _prepare_table(subject: Subject, table: pa.Table) -> Iterator[tuple[PreparedRows, Schema, Callable[[], str]]]:
    """Prepare a table as `boltdp.train` does; yield rows and schema, and a function that trains and shows the model."""
    from boltdp.engines.in_memory import ArrayEngine

    context, certificate = Context(seed=ORDER, threads=1), subject.certificate
    permuted = get_algorithm(certificate.algorithm).needs_permutation
    with (
        ArrayEngine.from_arrow(table) as engine,
        prepare_rows(engine, subject.schema, certificate, context, permuted=permuted) as (prepared, schema),
    ):
        yield prepared, schema, lambda: repr(train_prepared(prepared, schema, certificate, context).to_dict())


def _sum_gradients(subject: Subject, prepared: PreparedRows, draws: Sequence[Draw]) -> list[Doubles]:
    """Return the gradient of all rows at the weights of each model of objective perturbation."""
    from boltdp.kernel.loss_derivatives import DerivativeSums

    event = subject.certificate.training
    if not isinstance(event, ObjectivePerturbation):
        return []
    problem, loss = event.problem, event.problem.loss
    weights = _list_weights(event, draws)
    sums = [
        DerivativeSums(
            loss,
            at,
            positive=positive,
            classes=subject.schema.target.kernel_class_count,
            class_weights=problem.class_weights,
            feature_map=prepared.feature_map,
        )
        for at, positive in zip(weights, [1] if len(weights) == 1 else range(len(weights)), strict=True)
    ]
    prepared.add_to_sums(sums)
    return [one.value for one in sums]


def _list_weights(event: ObjectivePerturbation, draws: Sequence[Draw]) -> list[Doubles]:
    """Return the weights of each model before their release."""
    loss, dims = event.problem.loss, event.problem.dims
    return [loss.from_basis(draw.vector.reshape(-1, dims)) for draw in draws if draw.noise == event.end]


def _are_minimal(subject: Subject, schema: Schema, gradients: Sequence[Doubles], draws: Sequence[Draw]) -> bool:
    """Return whether the gradient of each noisy objective at its weights is within the tolerance of the proof.

    Proof: events/objective_perturbation.md 4, 8
    """
    event = subject.certificate.training
    if not isinstance(event, ObjectivePerturbation):
        return True
    problem, loss = event.problem, event.problem.loss
    terms = [loss.from_basis(draw.released.reshape(-1, problem.dims)) for draw in draws if draw.noise == event.linear]
    count = subject.certificate.class_count
    counted = [float(draw.released[0]) for draw in draws if count is not None and draw.noise == count.noise]
    center = compute_penalty_center(counted[0], schema, rows=problem.rows) if counted else None
    whole = [
        gradient + problem.rows * problem.regularization * (weights if center is None else weights - center) + term
        for gradient, weights, term in zip(gradients, _list_weights(event, draws), terms, strict=False)
    ]
    return all(np.linalg.norm(one) <= choose_gradient_tolerance(problem, event.linear) for one in whole)
