"""Exact loss: the privacy loss of a release on the worst neighbouring datasets that a search finds.

The mean of (1 - e^(epsilon - loss))+ over the releases is delta(epsilon) of these datasets, which is a lower bound on
the delta that is spent. Where noise is added to a vector, it has a closed form in the distance that the row moves the
vector. Scans of gradient descent are estimated by importance sampling, from noise that is shifted to where the loss is
large. The minimiser of a noisy objective has a density (objective.md 1, 2), which is integrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boltdp._arrays import Doubles, Floats
from boltdp.algorithms import ALGORITHMS, Job
from boltdp.audit.audited_training import Stage
from boltdp.audit.confidence import exact_delta, largest_epsilon
from boltdp.audit.objective_density import Neighbours, log_ratio, quadrature, sample
from boltdp.audit.replay import AddNoise, Draw, ReplayedRelease, intercept_noise
from boltdp.audit.worst_rows import (
    OpposedPair,
    count_classes,
    find_worst_pair,
    make_prepared_rows,
    move_places,
    shrink_training,
    tilt_others,
)
from boltdp.context import Context
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Event
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.events.sgd_sensitivity import sensitivity
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release import RandomBytes, Randomness

#: Descents that are sampled, and standard errors on either side of an estimate.
DESCENTS, ERRORS = 400, 3.3
#: Maximum number of rows of a training by SGD, and of each sampled descent.
MAX_TRAINED, MAX_DESCENDED = 20_000, 200
#: Resolution of the quadrature in a search and of its result; and draws of both, where there are more dimensions.
COARSE, FINE, PILOT_DRAWS, DRAWS = 3, 8, 3_000, 40_000
#: Shifts of the draws to where the loss is large, in scales of the noise; each is used equally often.
LEANS = (0.0, 3.0, 6.0, 12.0, 24.0)
#: Number of norms of the linear term in the search for the largest loss.
LENGTHS = 48
#: Epsilon is searched up to this multiple of the claimed one.
MAX_EPSILON_RATIO = 64.0
#: Points of a plotted privacy profile.
POINTS = 25


@dataclass(frozen=True)
class ExactLoss:
    """The privacy loss of a stage on the worst rows."""

    stage: Stage
    epsilon: float  #: a lower bound at the claimed delta
    delta: float  #: at the claimed epsilon
    delta_range: tuple[float, float]  #: lower and upper bound of `delta`, where that is an estimate
    curve: tuple[tuple[float, float, float], ...]  #: epsilon, claimed delta, and delta on the worst rows
    pair: str
    how: str

    @property
    def broken(self) -> bool:
        """Whether the loss exceeds the budget of the stage."""
        budget = self.stage.budget
        return self.epsilon > budget.epsilon * (1 + 1e-6) or self.delta_range[0] > budget.delta * (1 + 1e-6)


def exact_loss(stage: Stage, replayed: ReplayedRelease | None, *, random: np.random.Generator) -> ExactLoss | None:
    """Return the loss of a stage on the worst rows; None where the density of the release is unknown."""
    event = stage.event
    match event:
        case NoisyMoments():
            assert replayed is not None
            noise = replayed.limit.noise
            distance = replayed.ratio * replayed.limit.sensitivity
            return _make_closed_form(
                stage, event, noise, distance, str(replayed.worst), "closed form, distance from the replay"
            )
        case OutputPerturbation():
            return _audit_output(stage, random)
        case NoisyGradients():
            return _audit_gradients(stage, random)
        case ObjectivePerturbation():
            return _audit_objective(stage, random)
    return None


def _make_closed_form(stage: Stage, event: Event, noise: Mechanism, distance: float, pair: str, how: str) -> ExactLoss:
    def spent(epsilon: float) -> float:
        return exact_delta(noise, epsilon, distance=distance)

    return _make_exact_loss(stage, spent, spent, spent, pair, how, event=event)


def _make_exact_loss(
    stage: Stage,
    spent: Callable[[float], float],
    low: Callable[[float], float],
    high: Callable[[float], float],
    pair: str,
    how: str,
    *,
    event: Event,
    estimated: bool = False,
) -> ExactLoss:
    claimed = stage.budget
    at = claimed.epsilon
    if estimated:
        # A sample that is drawn for the claimed epsilon is inaccurate far from it.
        near = np.linspace(0.3 * at, 2.0 * at, 341).tolist()
        epsilon = max((one for one in near if low(one) > claimed.delta), default=0.0)
    else:
        epsilon = largest_epsilon(low, delta=claimed.delta, most=MAX_EPSILON_RATIO * at)
    curve = tuple(
        (one, event.delta(one, target=claimed.delta or 1e-9), spent(one))
        for one in np.linspace((0.6 if estimated else 0.2) * at, 1.3 * at, POINTS).tolist()
    )
    return ExactLoss(stage, epsilon, spent(at), (low(at), high(at)), curve, pair, how)


# ---- noise after training ---------------------------------------------------------------------------------------


def train_weights(rows: Floats, stage: Stage, event: OutputPerturbation) -> Doubles:
    """Return the weights before noise is added."""
    job = Job(Certificate(budget=stage.budget, spent=event), Randomness())
    with make_prepared_rows(rows) as held:
        context, classes = Context(seed=1, threads=1), count_classes(event.problem)
        (weights,) = ALGORITHMS[event.algorithm].run(held, [job], classes=classes, context=context)
    return weights


def output_distance(stage: Stage, event: OutputPerturbation, pair: OpposedPair) -> float:
    """Return the distance of the weights of the two datasets before noise is added."""
    one, other = (train_weights(rows, stage, event) for rows in pair.rows(event.problem.rows, dims=event.problem.dims))
    return float(np.linalg.norm(one - other))


def _audit_output(stage: Stage, random: np.random.Generator) -> ExactLoss:
    assert isinstance(stage.event, OutputPerturbation)
    rows = min(stage.event.problem.rows, MAX_TRAINED)
    event, whole = shrink_training(stage, rows=rows), shrink_training(stage, rows=rows, dims=stage.event.problem.dims)
    assert isinstance(event, OutputPerturbation)
    assert isinstance(whole, OutputPerturbation)
    pair = find_worst_pair(
        lambda pair: output_distance(stage, event, pair), event.problem, random=random, also=move_places
    )
    distance = output_distance(stage, event, pair)
    reached = distance / sensitivity(event.problem).total
    return _make_closed_form(
        stage, whole, whole.noise, distance, str(pair), f"closed form, {reached:.0%} of the proved sensitivity"
    )


# ---- noise in every scan ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Descents:
    """Many descents on one dataset: the sums of each scan before noise, there and on the neighbour, and the noise."""

    sums: Doubles  #: of shape (scans, descents, dimensions), like the next two
    neighbour_sums: Doubles
    noise: Doubles
    deviation: float

    @property
    def losses(self) -> Doubles:
        """The privacy loss of each descent against the neighbour."""
        moved = self.neighbour_sums - self.sums
        return np.asarray(np.sum(moved * (moved - 2.0 * self.noise), axis=(0, 2)) / (2.0 * self.deviation**2))

    def log_weights(self, lean: Doubles) -> Doubles:
        """Return log importance weights: of the noise to noise that is shifted by `lean` in each scan."""
        leaning = np.sum(lean * (lean - 2.0 * self.noise), axis=(0, 2))
        return np.asarray(leaning / (2.0 * self.deviation**2))


def run_descents(stage: Stage, event: NoisyGradients, pair: OpposedPair, *, count: int, lean: Doubles) -> Descents:
    """Run descents with noise shifted by `lean` in each scan; the neighbour's run gets the same releases."""
    certificate = Certificate(budget=stage.budget, spent=event)
    classes = count_classes(event.problem)
    draws: list[Draw] = []
    answers: list[Doubles] = []

    def record(honest: AddNoise, noise: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Doubles:
        released = honest(noise, vector, random_bytes) + lean
        draws.append(Draw(noise, vector.copy(), released))
        return released

    def answer(_: AddNoise, __: Mechanism, vector: Doubles, ___: RandomBytes) -> Doubles:
        answers.append(vector.copy())
        return draws[len(answers) - 1].released

    context = Context(threads=1)
    for rows, observe in zip(pair.rows(event.problem.rows, dims=event.problem.dims), (record, answer), strict=True):
        with make_prepared_rows(rows) as held, intercept_noise(observe):
            jobs = [Job(certificate, Randomness())] * count
            ALGORITHMS[event.algorithm].run(held, jobs, classes=classes, context=context)
    shape = event.scans, count, -1
    sums = np.array([draw.vector for draw in draws]).reshape(shape)
    released = np.array([draw.released for draw in draws]).reshape(shape)
    return Descents(sums, np.array(answers).reshape(shape), released - sums, event.noise.scale)


def _audit_gradients(stage: Stage, random: np.random.Generator) -> ExactLoss:
    assert isinstance(stage.event, NoisyGradients)
    event = shrink_training(stage, rows=min(stage.event.problem.rows, MAX_DESCENDED))
    assert isinstance(event, NoisyGradients)
    none = np.zeros(event.problem.dimensions)

    def harm(pair: OpposedPair) -> float:
        few = run_descents(stage, event, pair, count=3, lean=none)
        return float(np.sum((few.neighbour_sums - few.sums) ** 2))

    pair = find_worst_pair(harm, event.problem, random=random, steps=8)
    few = run_descents(stage, event, pair, count=3, lean=none)
    move = (few.neighbour_sums - few.sums).mean(axis=(0, 1))
    square = max(event.scans * float(move @ move) / event.noise.scale**2, 1e-12)
    # With this shift the mean of the losses is the claimed epsilon.
    lean = -max(stage.budget.epsilon / square - 0.5, 0.0) * move
    made = run_descents(stage, event, pair, count=DESCENTS, lean=lean)
    losses, weights = made.losses, np.exp(made.log_weights(lean))

    def terms(epsilon: float) -> Doubles:
        return np.asarray(weights * -np.expm1(np.minimum(epsilon - losses, 0.0)))

    def error(epsilon: float) -> float:
        return ERRORS * float(np.std(terms(epsilon), ddof=1)) / math.sqrt(DESCENTS)

    def mean(epsilon: float) -> float:
        return float(terms(epsilon).mean())

    return _make_exact_loss(
        stage,
        mean,
        lambda epsilon: mean(epsilon) - error(epsilon),
        lambda epsilon: mean(epsilon) + error(epsilon),
        str(pair),
        f"{DESCENTS} descents, weighed",
        event=event,
        estimated=True,
    )


# ---- noise before training --------------------------------------------------------------------------------------


def make_neighbours(event: ObjectivePerturbation, pair: OpposedPair) -> Neighbours:
    """Return the two datasets in the form of which the density of the minimiser is known."""
    problem = event.problem
    (one, other), (rival, like) = ([(k, x[: problem.dims]) for k, x in rows] for rows in (pair.differing, pair.others))
    left = problem.rows - pair.count if pair.length > 0 else 0
    rivals = round(pair.rivals * left)
    shared = tuple((row, count) for row, count in ((rival, rivals), (like, left - rivals)) if count)
    return Neighbours(problem, one, other, shared=shared, times=pair.count)


@dataclass(frozen=True)
class SampledLosses:
    """Privacy losses at values of the linear term q with their weights: of a quadrature, or of random draws."""

    losses: Doubles
    weights: Doubles
    exact: bool

    def spent(self, epsilon: float) -> float:
        return float(self._terms(epsilon).sum())

    def error(self, epsilon: float) -> float:
        if self.exact:
            return 0.0
        return ERRORS * float(np.std(self._terms(epsilon), ddof=1)) * math.sqrt(len(self.losses))

    def least(self, epsilon: float) -> float:
        return self.spent(epsilon) - self.error(epsilon)

    def _terms(self, epsilon: float) -> Doubles:
        return np.asarray(self.weights * -np.expm1(np.minimum(epsilon - self.losses, 0.0)))


def _audit_objective(stage: Stage, random: np.random.Generator) -> ExactLoss:
    assert isinstance(stage.event, ObjectivePerturbation)
    event = shrink_training(stage, rows=stage.event.problem.rows)
    assert isinstance(event, ObjectivePerturbation)
    noise, claimed, problem = event.linear, stage.budget, event.problem
    exact = problem.loss.vectors == 1 and problem.dims == 2
    lengths = np.geomspace(0.1 * noise.scale, problem.rows * problem.loss.lipschitz + noise.scale, LENGTHS)

    def largest(neighbours: Neighbours) -> float:
        return float(neighbours.losses_at(noise, neighbours.find_aligned_weights(lengths)).max())

    def integrated(neighbours: Neighbours, *, fine: int) -> SampledLosses:
        places, masses = quadrature(noise, fine=fine)
        return SampledLosses(neighbours.losses(noise, places), masses, exact=True)

    def drawn(neighbours: Neighbours, from_noise: Doubles) -> SampledLosses:
        (towards,) = neighbours.moves(neighbours.minimisers(np.zeros((1, noise.dimensions))))
        towards *= noise.scale / max(float(np.linalg.norm(towards)), 1e-300)
        leans = np.outer(LEANS, towards)
        places = from_noise + np.resize(leans, from_noise.shape)
        # Ratios of the density of each place under one of the shifts to that without a shift.
        likelier = [np.exp(-log_ratio(noise, places, np.broadcast_to(-lean, places.shape))) for lean in leans]
        weights = len(leans) / np.sum(likelier, axis=0) / len(places)
        return SampledLosses(neighbours.losses(noise, places), weights, exact=False)

    def proved(found: SampledLosses) -> float:
        return largest_epsilon(found.least, delta=claimed.delta, most=MAX_EPSILON_RATIO * claimed.epsilon)

    def harm(pair: OpposedPair) -> float:
        neighbours = make_neighbours(event, pair)
        if not claimed.delta:
            return largest(neighbours)
        return proved(integrated(neighbours, fine=COARSE) if exact else drawn(neighbours, few))

    few = sample(noise, PILOT_DRAWS, random)
    pair = find_worst_pair(harm, problem, random=random, also=None if claimed.delta else tilt_others)
    neighbours = make_neighbours(event, pair)
    if exact:
        found, how = integrated(neighbours, fine=FINE), "integrated over the density"
    else:
        found = drawn(neighbours, sample(noise, DRAWS, random))
        how = f"{DRAWS:,} draws of the density, weighed"
    most = max(largest(neighbours), float(found.losses.max()))
    return _make_exact_loss(
        stage,
        found.spent,
        found.least if claimed.delta else lambda epsilon: float(most > epsilon),
        lambda epsilon: found.spent(epsilon) + found.error(epsilon),
        str(pair),
        how,
        event=event,
    )
