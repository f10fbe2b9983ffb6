"""Exact loss: how much likelier what is released is with one row than with another, on the worst rows that are found.

Averaged over what is released, (1 - e^(epsilon - loss))+ is the delta that is spent at epsilon: so much is spent, and
whoever claims less is wrong. Where the noise is added to a number, the average is known in closed form as soon as it is
known how far the row moves that number. Scans of gradient descent are sampled, from noise that leans to where the loss
is large, each sample weighed by how likely it is. The minimiser of a noisy objective has a density (objective.md 1, 2),
which is integrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boltdp._arrays import Doubles, Floats
from boltdp.algorithms import ALGORITHMS, Job
from boltdp.audit.audited_training import Stage
from boltdp.audit.confidence import largest_epsilon, least_spent
from boltdp.audit.objective_density import Neighbours, log_ratio, quadrature, sample
from boltdp.audit.replay import AddNoise, Draw, Replayed, watched
from boltdp.audit.worst_rows import Opposed, certified, classes_of, leant, placed, prepared, small, worst
from boltdp.context import Context
from boltdp.privacy.events.event import Event
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.events.sgd_sensitivity import sensitivity
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release import RandomBytes, Randomness

#: Descents that are sampled, and standard errors of what is found in them that are taken from it.
DESCENTS, ERRORS = 400, 3.3
#: Rows that are trained on, at most: by SGD, and in each of the descents.
MAX_TRAINED, MAX_DESCENDED = 20_000, 200
#: Of a search, and of what is found by it: pieces of the quadrature; and draws where there are more dimensions.
COARSE, FINE, PILOT_DRAWS, DRAWS = 3, 8, 3_000, 40_000
#: How far draws lean to where the loss is large, in scales of the noise: as many by each.
LEANS = (0.0, 3.0, 6.0, 12.0, 24.0)
#: Lengths of the linear term at which the largest loss is looked for.
LENGTHS = 48
#: Epsilon is looked for up to this many times what is claimed.
FARTHEST = 64.0
#: Points of a drawn curve.
POINTS = 25


@dataclass(frozen=True)
class Exact:
    """What was found out of a stage."""

    stage: Stage
    epsilon: float  #: spent at the claimed delta, at least
    delta: float  #: spent at the claimed epsilon
    delta_range: tuple[float, float]  #: and what it certainly is between, where it is an estimate
    curve: tuple[tuple[float, float, float], ...]  #: epsilon, the delta that is claimed there, and the one found
    pair: str
    how: str

    @property
    def broken(self) -> bool:
        """Whether more is spent than was planned for."""
        budget = self.stage.budget
        return self.epsilon > budget.epsilon * (1 + 1e-6) or self.delta_range[0] > budget.delta * (1 + 1e-6)


def exact_loss(stage: Stage, replayed: Replayed | None, *, random: np.random.Generator) -> Exact | None:
    """The loss of a stage on the worst rows; None where the map from noise to what is released is not known."""
    event = stage.event
    match event:
        case NoisyMoments():
            assert replayed is not None
            noise = replayed.limit.noise
            distance = replayed.ratio * replayed.limit.sensitivity
            return _closed(stage, event, noise, distance, str(replayed.worst), "closed form, distance from the replay")
        case OutputPerturbation():
            return _output(stage, random)
        case NoisyGradients():
            return _gradients(stage, random)
        case ObjectivePerturbation():
            return _objective(stage, random)
    return None


def _closed(stage: Stage, event: Event, noise: Mechanism, distance: float, pair: str, how: str) -> Exact:
    def spent(epsilon: float) -> float:
        return least_spent(noise, epsilon, distance=distance)

    return _found(stage, spent, spent, spent, pair, how, event=event)


def _found(
    stage: Stage,
    spent: Callable[[float], float],
    low: Callable[[float], float],
    high: Callable[[float], float],
    pair: str,
    how: str,
    *,
    event: Event,
    estimated: bool = False,
) -> Exact:
    claimed = stage.budget
    at = claimed.epsilon
    if estimated:
        # A sample that was made for the claimed epsilon tells little far from it.
        near = np.linspace(0.3 * at, 2.0 * at, 341).tolist()
        epsilon = max((one for one in near if low(one) > claimed.delta), default=0.0)
    else:
        epsilon = largest_epsilon(low, delta=claimed.delta, most=FARTHEST * at)
    curve = tuple(
        (one, event.delta(one, target=claimed.delta or 1e-9), spent(one))
        for one in np.linspace((0.6 if estimated else 0.2) * at, 1.3 * at, POINTS).tolist()
    )
    return Exact(stage, epsilon, spent(at), (low(at), high(at)), curve, pair, how)


# ---- noise after training ---------------------------------------------------------------------------------------


def trained(rows: Floats, stage: Stage, event: OutputPerturbation) -> Doubles:
    """The weights before the noise."""
    job = Job(certified(event, stage.budget), Randomness())
    with prepared(rows) as held:
        context, classes = Context(seed=1, threads=1), classes_of(event.problem)
        (weights,) = ALGORITHMS[event.algorithm].run(held, [job], classes=classes, context=context)
    return weights


def output_distance(stage: Stage, event: OutputPerturbation, pair: Opposed) -> float:
    """How far the two datasets' weights are apart before the noise."""
    one, other = (trained(rows, stage, event) for rows in pair.rows(event.problem.rows, dims=event.problem.dims))
    return float(np.linalg.norm(one - other))


def _output(stage: Stage, random: np.random.Generator) -> Exact:
    assert isinstance(stage.event, OutputPerturbation)
    rows = min(stage.event.problem.rows, MAX_TRAINED)
    event, whole = small(stage, rows=rows), small(stage, rows=rows, dims=stage.event.problem.dims)
    assert isinstance(event, OutputPerturbation)
    assert isinstance(whole, OutputPerturbation)
    pair = worst(lambda pair: output_distance(stage, event, pair), event.problem, random=random, also=placed)
    distance = output_distance(stage, event, pair)
    reached = distance / sensitivity(event.problem).total
    return _closed(
        stage, whole, whole.noise, distance, str(pair), f"closed form, {reached:.0%} of the proved sensitivity"
    )


# ---- noise in every scan ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Descents:
    """Many descents on one dataset: what each scan had noise added to, there and on the neighbour, and the noise."""

    given: Doubles  #: of shape (scans, descents, dimensions), as the others are
    other: Doubles
    noise: Doubles
    deviation: float

    @property
    def losses(self) -> Doubles:
        """Of each descent: the logarithm of how much likelier all its sums are than on the neighbour."""
        moved = self.other - self.given
        return np.asarray(np.sum(moved * (moved - 2.0 * self.noise), axis=(0, 2)) / (2.0 * self.deviation**2))

    def log_weights(self, lean: Doubles) -> Doubles:
        """How likely the noise is beside noise that leans by so much in each scan."""
        leaning = np.sum(lean * (lean - 2.0 * self.noise), axis=(0, 2))
        return np.asarray(leaning / (2.0 * self.deviation**2))


def descents(stage: Stage, event: NoisyGradients, pair: Opposed, *, count: int, lean: Doubles) -> Descents:
    """Descents whose noise leans by `lean` in each scan; the neighbour is given what the first one released."""
    certificate = certified(event, stage.budget)
    classes = classes_of(event.problem)
    draws: list[Draw] = []
    answers: list[Doubles] = []

    def record(honest: AddNoise, noise: Mechanism, given: Doubles, random_bytes: RandomBytes) -> Doubles:
        released = honest(noise, given, random_bytes) + lean
        draws.append(Draw(noise, given.copy(), released))
        return released

    def answer(_: AddNoise, __: Mechanism, given: Doubles, ___: RandomBytes) -> Doubles:
        answers.append(given.copy())
        return draws[len(answers) - 1].released

    context = Context(threads=1)
    for rows, observe in zip(pair.rows(event.problem.rows, dims=event.problem.dims), (record, answer), strict=True):
        with prepared(rows) as held, watched(observe):
            jobs = [Job(certificate, Randomness())] * count
            ALGORITHMS[event.algorithm].run(held, jobs, classes=classes, context=context)
    shape = event.scans, count, -1
    given = np.array([draw.given for draw in draws]).reshape(shape)
    released = np.array([draw.released for draw in draws]).reshape(shape)
    return Descents(given, np.array(answers).reshape(shape), released - given, event.noise.scale)


def _gradients(stage: Stage, random: np.random.Generator) -> Exact:
    assert isinstance(stage.event, NoisyGradients)
    event = small(stage, rows=min(stage.event.problem.rows, MAX_DESCENDED))
    assert isinstance(event, NoisyGradients)
    none = np.zeros(event.problem.dimensions)

    def harm(pair: Opposed) -> float:
        few = descents(stage, event, pair, count=3, lean=none)
        return float(np.sum((few.other - few.given) ** 2))

    pair = worst(harm, event.problem, random=random, steps=8)
    few = descents(stage, event, pair, count=3, lean=none)
    move = (few.other - few.given).mean(axis=(0, 1))
    square = max(event.scans * float(move @ move) / event.noise.scale**2, 1e-12)
    # So that the mean of the losses is the epsilon at which delta is asked for.
    lean = -max(stage.budget.epsilon / square - 0.5, 0.0) * move
    made = descents(stage, event, pair, count=DESCENTS, lean=lean)
    losses, weights = made.losses, np.exp(made.log_weights(lean))

    def terms(epsilon: float) -> Doubles:
        return np.asarray(weights * -np.expm1(np.minimum(epsilon - losses, 0.0)))

    def error(epsilon: float) -> float:
        return ERRORS * float(np.std(terms(epsilon), ddof=1)) / math.sqrt(DESCENTS)

    def mean(epsilon: float) -> float:
        return float(terms(epsilon).mean())

    return _found(
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


def minimised(event: ObjectivePerturbation, pair: Opposed) -> Neighbours:
    """The same two datasets, for the density of the minimiser."""
    problem = event.problem
    (one, other), (rival, like) = ([(k, x[: problem.dims]) for k, x in rows] for rows in (pair.differing, pair.others))
    left = problem.rows - pair.count if pair.length > 0 else 0
    rivals = round(pair.rivals * left)
    shared = tuple((row, count) for row, count in ((rival, rivals), (like, left - rivals)) if count)
    return Neighbours(problem, one, other, shared=shared, times=pair.count)


@dataclass(frozen=True)
class SampledLosses:
    """The loss at values of q, and what each of these weighs: exactly, or, drawn at random, on average."""

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


def _objective(stage: Stage, random: np.random.Generator) -> Exact:
    assert isinstance(stage.event, ObjectivePerturbation)
    event = small(stage, rows=stage.event.problem.rows)
    assert isinstance(event, ObjectivePerturbation)
    noise, claimed, problem = event.linear, stage.budget, event.problem
    exact = problem.loss.vectors == 1 and problem.dims == 2
    lengths = np.geomspace(0.1 * noise.scale, problem.rows * problem.loss.lipschitz + noise.scale, LENGTHS)

    def largest(neighbours: Neighbours) -> float:
        return float(neighbours.losses_at(noise, neighbours.aligned(lengths)).max())

    def integrated(neighbours: Neighbours, *, fine: int) -> SampledLosses:
        places, masses = quadrature(noise, fine=fine)
        return SampledLosses(neighbours.losses(noise, places), masses, exact=True)

    def drawn(neighbours: Neighbours, from_noise: Doubles) -> SampledLosses:
        (towards,) = neighbours.moves(neighbours.minimisers(np.zeros((1, noise.dimensions))))
        towards *= noise.scale / max(float(np.linalg.norm(towards)), 1e-300)
        leans = np.outer(LEANS, towards)
        places = from_noise + np.resize(leans, from_noise.shape)
        # How likely each place is by one of the leans, beside how likely it is without.
        likelier = [np.exp(-log_ratio(noise, places, np.broadcast_to(-lean, places.shape))) for lean in leans]
        weights = len(leans) / np.sum(likelier, axis=0) / len(places)
        return SampledLosses(neighbours.losses(noise, places), weights, exact=False)

    def proved(found: SampledLosses) -> float:
        return largest_epsilon(found.least, delta=claimed.delta, most=FARTHEST * claimed.epsilon)

    def harm(pair: Opposed) -> float:
        neighbours = minimised(event, pair)
        if not claimed.delta:
            return largest(neighbours)
        return proved(integrated(neighbours, fine=COARSE) if exact else drawn(neighbours, few))

    few = sample(noise, PILOT_DRAWS, random)
    pair = worst(harm, problem, random=random, also=None if claimed.delta else leant)
    neighbours = minimised(event, pair)
    if exact:
        found, how = integrated(neighbours, fine=FINE), "integrated over the density"
    else:
        found = drawn(neighbours, sample(noise, DRAWS, random))
        how = f"{DRAWS:,} draws of the density, weighed"
    most = max(largest(neighbours), float(found.losses.max()))
    return _found(
        stage,
        found.spent,
        found.least if claimed.delta else lambda epsilon: float(most > epsilon),
        lambda epsilon: found.spent(epsilon) + found.error(epsilon),
        str(pair),
        how,
        event=event,
    )
