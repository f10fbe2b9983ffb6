"""Exact loss: the privacy loss of a release on the worst neighbouring datasets that a search finds.

The mean of (1 - e^(epsilon - loss))+ over the releases is delta(epsilon) of these datasets, which is a lower bound on
the delta that is spent. Where noise is added to a vector, it has a closed form in the distance that the row moves the
vector. Scans of gradient descent are estimated by importance sampling, from noise that is shifted to where the loss is
large. The minimiser of a noisy objective has a density, which is integrated: objective_perturbation.md 1, 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from boltdp._array_types import Doubles, Integers
from boltdp.audit.neighbouring_tables import TablePair
from boltdp.audit.objective_density import Neighbours, compute_log_ratio, draw_noise, make_quadrature
from boltdp.audit.replay_on_neighbours import (
    AddNoise,
    Choice,
    Choose,
    Draw,
    ReplayedRelease,
    intercept_choices,
    intercept_noise,
)
from boltdp.audit.statistical_tests import compute_exact_delta, compute_normal_cdf, find_largest_epsilon
from boltdp.audit.subject import Claim
from boltdp.audit.worst_neighbours import (
    STRONG_NOISE,
    OpposedPair,
    find_worst_pair,
    move_changed_rows,
    run_training,
    shrink_training,
    tilt_others,
)
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Event
from boltdp.privacy.events.label_quantiles import LabelQuantiles
from boltdp.privacy.events.noisy_counts import NoisyHistograms, NoisyUnusableLabelCount
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients
from boltdp.privacy.events.noisy_matrix import NoisyMatrix, flatten_matrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.events.sgd_sensitivity import compute_sgd_sensitivity
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release_with_noise import RandomBytes, Randomness, release_label_quantiles

#: Descents that are sampled, and standard errors on either side of an estimate.
DESCENTS, ERRORS = 400, 3.3
#: Maximum number of rows of a training by SGD, and of each sampled descent.
MAX_TRAINED, MAX_DESCENDED = 20_000, 200
#: The norm of long rows whose curvature is summed, and the score at which the slope of a row is as steep as it can be.
MATRIX_ROW_NORM, STEEP_SCORE = 3.0, 40.0
#: Labels whose quantiles are chosen, for each row in which neighbours differ.
QUANTILE_ROWS = 1_000_000
#: Resolution of the quadrature in a search and of its result; and draws of both, where there are more dimensions.
COARSE, FINE, PILOT_DRAWS, DRAWS = 3, 8, 3_000, 40_000
#: Shifts of the draws to where the loss is large, in scales of the noise; each is used equally often.
NOISE_SHIFTS = (0.0, 3.0, 6.0, 12.0, 24.0)
#: Number of norms of the linear term in the search for the largest loss.
LINEAR_TERM_NORMS = 48
#: Epsilon is searched up to this multiple of the claimed one.
MAX_EPSILON_RATIO = 64.0
#: Points of a plotted privacy profile.
POINTS = 25


@dataclass(frozen=True)
class ExactLoss:
    """The privacy loss of a claim on the worst rows."""

    claim: Claim
    epsilon: float  #: a lower bound at the claimed delta
    delta: float  #: at the claimed epsilon
    delta_range: tuple[float, float]  #: lower and upper bound of `delta`, where that is an estimate
    curve: tuple[tuple[float, float, float], ...]  #: epsilon, claimed delta, and delta on the worst rows
    pair: str
    how: str

    @property
    def broken(self) -> bool:
        """Whether the lower bounds on epsilon or delta exceed the claimed budget by more than rounding."""
        budget = self.claim.budget
        return self.epsilon > budget.epsilon * (1 + 1e-6) or self.delta_range[0] > budget.delta * (1 + 1e-6)


def compute_exact_loss(
    claim: Claim, replayed: ReplayedRelease | None, *, random: np.random.Generator
) -> ExactLoss | None:
    """Return the privacy loss of one release on the worst rows; None where the density of the release is unknown."""
    match claim.event:
        case NoisyUnusableLabelCount() | NoisyMoments() | NoisyHistograms() as event:
            if replayed is None:
                raise ParameterError(f"the exact loss of {event.kind!r} must follow from its replay, got none")
            distance = replayed.ratio * replayed.release.sensitivity
            spent = partial(compute_exact_delta, replayed.release.noise, distance=distance)
            return _make_exact_loss(claim, event, spent, replayed.worst, "closed form, distance from the replay")
        case NoisyMatrix() as event:
            return _audit_matrix(claim, event, replayed)
        case LabelQuantiles() as event:
            return _audit_label_quantiles(claim, event)
        case OutputPerturbation() as event:
            return _audit_output_perturbation(claim, event, random)
        case NoisyGradients() as event:
            return _audit_gradient_descent(claim, event, random)
        case ObjectivePerturbation() as event:
            return _audit_objective_perturbation(claim, event, random)
    return None


def _audit_matrix(claim: Claim, event: NoisyMatrix, replayed: ReplayedRelease | None) -> ExactLoss | None:
    """Return the privacy loss of a noisy matrix on two orthogonal rows, or two persons with such rows.

    The kernel sums their matrices. The rows have the largest curvature for a Hessian and the steepest slope for outer
    products; where long rows are downweighted, those for a Hessian are long.

    Proof: events/noisy_matrix.md 1
    """
    from boltdp.kernel.loss_derivatives import DerivativeSums

    if event.noise is None:
        return None
    hessian, changed = event.matrix == "hessian", event.problem.changed_rows
    size = MATRIX_ROW_NORM if hessian and event.problem.downweighted else 1.0
    features = FeatureMap([Segment("numbers", np.zeros(2), np.full(2, size))], downweights=event.problem.downweighted)
    weights = np.full((1, 2), 0.0 if hessian else STEEP_SCORE)
    vectors = []
    for cells in ([1.0, 0.0], [0.0, 1.0]):
        sums = DerivativeSums(event.problem.loss, weights, hessian=hessian, outer=not hessian, feature_map=features)
        sums.add(np.array([[0.0, *cells]], np.float32))
        vectors.append(flatten_matrix(changed * sums.value[0]))
    distance, worst = float(np.linalg.norm(vectors[0] - vectors[1])), "two orthogonal rows"
    if replayed is not None and replayed.ratio * replayed.release.sensitivity > distance:
        distance, worst = replayed.ratio * replayed.release.sensitivity, str(replayed.worst)
    spent = partial(compute_exact_delta, event.noise, distance=distance)
    return _make_exact_loss(claim, event, spent, worst, "closed form, distance by the sums of the worst rows")


def _make_exact_loss(
    claim: Claim,
    event: Event,
    delta: Callable[[float], float],
    pair: TablePair | OpposedPair | str | None,
    how: str,
    *,
    low: Callable[[float], float] | None = None,
    error: Callable[[float], float] = lambda _: 0.0,
    estimated: bool = False,
) -> ExactLoss:
    """Make the result; `delta` returns the delta on the worst rows at an epsilon, and `low` a lower bound on it."""
    claimed, low = claim.budget, low or delta
    at = claimed.epsilon
    if estimated:
        # A sample that is drawn for the claimed epsilon is inaccurate far from it.
        near = np.linspace(0.3 * at, 2.0 * at, 341).tolist()
        epsilon = max((one for one in near if low(one) > claimed.delta), default=0.0)
    else:
        epsilon = find_largest_epsilon(low, delta=claimed.delta, most=MAX_EPSILON_RATIO * at)
    curve = tuple(
        (one, claim.compute_delta(event, one), delta(one))
        for one in np.linspace((0.6 if estimated else 0.2) * at, 1.3 * at, POINTS).tolist()
    )
    return ExactLoss(claim, epsilon, delta(at), (low(at), delta(at) + error(at)), curve, str(pair), how)


def _audit_label_quantiles(claim: Claim, event: LabelQuantiles) -> ExactLoss:
    """Compute the privacy loss of choosing quantiles, all of them together, on the worst labels."""
    changed = 1 if event.person_rows is None else event.person_rows
    counts = make_worst_labels(event, rows=QUANTILE_ROWS * changed)
    moved = counts.copy()
    moved[[0, -1]] += [-changed, changed]
    found: list[Choice] = []

    def observe(_: Choose, errors: Sequence[int], *, epsilon: float, changes: int, **__: object) -> int:
        found.append(Choice(np.array(errors), epsilon, changes, 0))
        return 0

    with intercept_choices(observe):
        for labels in (moved, counts):
            release_label_quantiles(labels, event, Randomness())
    half = len(found) // 2
    masses, losses = np.ones(1), np.zeros(1)
    for one, other in zip(found[:half], found[half:], strict=True):
        # Few different losses, since a score changes by the sensitivity or not at all.
        each, kinds = np.unique((one.log_probabilities - other.log_probabilities).round(12), return_inverse=True)
        masses = np.outer(masses, np.bincount(kinds, np.exp(one.log_probabilities))).ravel()
        losses = np.add.outer(losses, each).ravel()
    sampled, most = SampledLosses(losses, masses, exact=True), float(losses.max()) * (1.0 - 1e-9)
    how = f"all probabilities, {QUANTILE_ROWS * changed:,} labels"
    worst = "labels that go from the lowest bin to the highest"
    return _make_exact_loss(claim, event, sampled.delta, worst, how, low=lambda epsilon: float(most > epsilon))


def make_worst_labels(event: LabelQuantiles, *, rows: int) -> Integers:
    """Return a histogram of labels for which moving one from the lowest to the highest bin costs the most privacy.

    The score of an edge just below each percentile then gets worse, and that of one far above it better. So there is a
    heap of labels for each percentile: it ends just below that, in a bin after many empty ones.
    """
    percentiles = sorted(set(event.percentiles))
    shares = [percentile * rows // 100 - 1 for percentile in percentiles]
    counts = np.zeros(event.bins, np.int64)
    counts[0], counts[-1] = shares[0], rows - shares[-1] - rows // 100
    places = np.linspace(0, event.bins - 2, 1 + len(percentiles)).astype(np.int64)
    for place, heap in zip(places[1:], (*np.diff(shares), rows // 100), strict=True):
        counts[place] += heap
    return counts


def find_worst_outputs(
    event: OutputPerturbation, budget: Budget, random: np.random.Generator
) -> tuple[OpposedPair, list[Doubles]]:
    """Return the pair of datasets whose weights are farthest apart before noise is added, and these weights."""

    def train_both(pair: OpposedPair) -> list[Doubles]:
        return [weights for rows in pair.make_datasets(event.problem) for weights in run_training(event, budget, rows)]

    def measure_distance(pair: OpposedPair) -> float:
        return float(np.linalg.norm(np.subtract(*train_both(pair))))

    pair = find_worst_pair(measure_distance, event.problem, random=random, extra_move=move_changed_rows)
    return pair, train_both(pair)


def _audit_output_perturbation(claim: Claim, event: OutputPerturbation, random: np.random.Generator) -> ExactLoss:
    """Compute the exact loss of output perturbation from the largest distance between weights that a search finds."""
    rows, budget = min(event.problem.rows, MAX_TRAINED), claim.budget
    small = shrink_training(event, budget, rows=rows)
    whole = shrink_training(event, budget, rows=rows, dims=event.problem.dims)
    pair, (one, other) = find_worst_outputs(small, budget, random)
    distance = float(np.linalg.norm(one - other))
    how = f"closed form, {distance / compute_sgd_sensitivity(small.problem).total:.0%} of the proved sensitivity"
    return _make_exact_loss(claim, whole, partial(compute_exact_delta, whole.noise, distance=distance), pair, how)


@dataclass(frozen=True)
class Descents:
    """Many descents on one dataset: their noise, and how far the neighbour's gradient sums are from theirs."""

    moves: Doubles  #: of shape (scans, descents, dimensions), like the noise
    noise: Doubles
    deviation: float

    def compute_log_ratio(self, shift: Doubles) -> Doubles:
        """Return the log density ratio of each descent's noise to the same noise shifted by `shift` in each scan."""
        return np.asarray(np.sum(shift * (shift - 2.0 * self.noise), axis=(0, 2)) / (2.0 * self.deviation**2))


def run_descents(event: NoisyGradients, budget: Budget, pair: OpposedPair, *, count: int, lean: Doubles) -> Descents:
    """Run noisy gradient descents, with noise shifted by `lean`; those on the other dataset release the same sums."""
    draws: list[Draw] = []
    answers: list[Doubles] = []

    def record(honest: AddNoise, noise: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Doubles:
        released = honest(noise, vector, random_bytes) + lean
        draws.append(Draw(noise, vector.copy(), released))
        return released

    def answer(_: AddNoise, __: Mechanism, vector: Doubles, ___: RandomBytes) -> Doubles:
        answers.append(vector.copy())
        return draws[len(answers) - 1].released

    for rows, observe in zip(pair.make_datasets(event.problem), (record, answer), strict=True):
        with intercept_noise(observe):
            run_training(event, budget, rows, count=count)
    shape = event.scans, count, -1
    sums = np.array([draw.vector for draw in draws]).reshape(shape)
    released = np.array([draw.released for draw in draws]).reshape(shape)
    return Descents(np.array(answers).reshape(shape) - sums, released - sums, event.noise.scale)


def _audit_gradient_descent(claim: Claim, event: NoisyGradients, random: np.random.Generator) -> ExactLoss:
    """Estimate the privacy loss of noisy gradient descent on the worst rows, from sampled descents."""
    event, budget = shrink_training(event, claim.budget, rows=min(event.problem.rows, MAX_DESCENDED)), claim.budget

    def find_moves(pair: OpposedPair) -> Doubles:
        return run_descents(event, budget, pair, count=3, lean=np.zeros(event.problem.dimensions)).moves

    pair = find_worst_pair(lambda pair: float(np.sum(find_moves(pair) ** 2)), event.problem, random=random, steps=8)
    move = find_moves(pair).mean(axis=(0, 1))
    square = max(event.scans * float(move @ move) / event.noise.scale**2, 1e-12)
    # With this shift the mean of the losses is the claimed epsilon.
    lean = -max(budget.epsilon / square - 0.5, 0.0) * move
    made = run_descents(event, budget, pair, count=DESCENTS, lean=lean)
    found = SampledLosses(
        made.compute_log_ratio(made.moves), np.exp(made.compute_log_ratio(lean)) / DESCENTS, exact=False
    )
    how = f"{DESCENTS} descents, weighed"
    return _make_exact_loss(
        claim, event, found.delta, pair, how, low=found.compute_min_delta, error=found.compute_error, estimated=True
    )


def make_neighbours(event: ObjectivePerturbation, pair: OpposedPair) -> Neighbours:
    """Convert a pair of datasets to `Neighbours`, which have the density of their minimisers."""
    problem = event.problem
    (one, other), (rival, like) = (
        [(k, x[: problem.dims]) for k, x in rows] for rows in (pair.differing_rows, pair.others)
    )
    left = problem.rows - pair.count if pair.length > 0 else 0
    rivals = round(pair.rivals * left)
    shared = tuple((row, count) for row, count in ((rival, rivals), (like, left - rivals)) if count)
    return Neighbours(problem, one, other, shared=shared, times=pair.count)


@dataclass(frozen=True)
class SampledLosses:
    """Privacy losses with their weights, whose sum is 1: of a quadrature, or of random draws."""

    losses: Doubles
    weights: Doubles
    exact: bool
    moves: Doubles | None = None  #: for each loss, how far the rows move Gaussian releases, in their deviations

    def delta(self, epsilon: float) -> float:
        """Return the estimate of delta at an epsilon: the mean of (1 - e^(epsilon - loss))+."""
        return float(self._compute_delta_terms(epsilon).sum())

    def compute_error(self, epsilon: float) -> float:
        """Return the half-width of the confidence interval of `delta`; 0 for a quadrature."""
        if self.exact:
            return 0.0
        return ERRORS * float(np.std(self._compute_delta_terms(epsilon), ddof=1)) * math.sqrt(len(self.losses))

    def compute_min_delta(self, epsilon: float) -> float:
        """Return the lower end of the confidence interval of `delta`."""
        return self.delta(epsilon) - self.compute_error(epsilon)

    def _compute_delta_terms(self, epsilon: float) -> Doubles:
        left = epsilon - self.losses
        if self.moves is None:
            return np.asarray(self.weights * -np.expm1(np.minimum(left, 0.0)))
        middle, half = left / self.moves, self.moves / 2.0
        # Where the factor would overflow, what it multiplies is 0.
        moved = compute_normal_cdf(half - middle) - np.exp(np.minimum(left, 700.0)) * compute_normal_cdf(-half - middle)
        return np.asarray(self.weights * moved)


def _measure_moves(events: Sequence[Event], neighbours: Neighbours, weights: Doubles) -> Doubles | None:
    """Return how far the rows move Gaussian releases, together and in their deviations, at each of the weights.

    A row as long as the clip norm of moments can have the norm 1 when it is standardized, so that it moves both. Counts
    are left out: rows of one class do not move them.
    """
    if not events:
        return None
    (gradient, hessian), (others, other) = (
        neighbours.compute_derivatives(row, weights) for row in (neighbours.row, neighbours.other)
    )
    squares = np.full(len(weights), 1e-24)
    for event in events:
        if isinstance(event, NoisyHistograms):
            # Rows of different values in each column move as many counts whatever their features are.
            squares += (event.mu or 0.0) ** 2
        elif isinstance(event, NoisyMoments) and event.noise is not None:
            length = event.clip_norm * float(np.linalg.norm(neighbours.row[1] - neighbours.other[1]))
            squares += (neighbours.times * length / event.noise.scale) ** 2
        elif isinstance(event, NoisyMatrix) and event.noise is not None:
            outer = gradient[:, :, None] * gradient[:, None] - others[:, :, None] * others[:, None]
            apart = np.linalg.norm(hessian - other if event.matrix == "hessian" else outer, axis=(1, 2))
            squares += (neighbours.times * apart / event.noise.scale) ** 2
    return np.asarray(np.sqrt(squares))


def _audit_objective_perturbation(claim: Claim, event: ObjectivePerturbation, random: np.random.Generator) -> ExactLoss:
    """Compute the privacy loss of objective perturbation on the worst rows, from the density of the minimiser."""
    event = shrink_training(event, claim.budget, rows=event.problem.rows, other_mu=claim.other_mu)
    noise, claimed, problem = event.linear, claim.budget, event.problem
    exact = problem.loss.vector_count == 1 and problem.dims == 2
    lengths = np.geomspace(0.1 * noise.scale, problem.rows * problem.loss.lipschitz + noise.scale, LINEAR_TERM_NORMS)

    def find_largest_loss(neighbours: Neighbours) -> float:
        return float(neighbours.compute_losses_at_weights(noise, neighbours.find_aligned_weights(lengths)).max())

    def integrate_losses(neighbours: Neighbours, *, fine: int) -> SampledLosses:
        places, masses = make_quadrature(noise, fine=fine)
        weights = neighbours.find_minimisers(places)
        moved = _measure_moves(claim.other_events, neighbours, weights)
        return SampledLosses(neighbours.compute_losses_at_weights(noise, weights), masses, exact=True, moves=moved)

    def draw_losses(neighbours: Neighbours, from_noise: Doubles) -> SampledLosses:
        (towards,) = neighbours.compute_moves(neighbours.find_minimisers(np.zeros((1, noise.dimensions))))
        towards *= noise.scale / max(float(np.linalg.norm(towards)), 1e-300)
        leans = np.outer(NOISE_SHIFTS, towards)
        places = from_noise + np.resize(leans, from_noise.shape)
        # Ratios of the density of each place under one of the shifts to that without a shift.
        likelier = [np.exp(-compute_log_ratio(noise, places, np.broadcast_to(-lean, places.shape))) for lean in leans]
        weights = len(leans) / np.sum(likelier, axis=0) / len(places)
        return SampledLosses(neighbours.compute_losses_of_noise(noise, places), weights, exact=False)

    def prove_epsilon(found: SampledLosses) -> float:
        most = MAX_EPSILON_RATIO * claimed.epsilon
        return find_largest_epsilon(found.compute_min_delta, delta=claimed.delta, most=most)

    def find_epsilon_of_pair(pair: OpposedPair) -> float:
        neighbours = make_neighbours(event, pair)
        if not claimed.delta:
            return find_largest_loss(neighbours)
        return prove_epsilon(integrate_losses(neighbours, fine=COARSE) if exact else draw_losses(neighbours, few))

    few = draw_noise(noise, PILOT_DRAWS, random)
    pair = find_worst_pair(
        find_epsilon_of_pair,
        problem,
        random=random,
        extra_move=None if claimed.delta else tilt_others,
        more=(STRONG_NOISE,) if claim.other_events else (),
    )
    neighbours = make_neighbours(event, pair)
    if exact:
        found, how = integrate_losses(neighbours, fine=FINE), "integrated over the density"
    else:
        found = draw_losses(neighbours, draw_noise(noise, DRAWS, random))
        how = f"{DRAWS:,} draws of the density, weighed"
    most = max(find_largest_loss(neighbours), float(found.losses.max()))
    low = found.compute_min_delta if claimed.delta else lambda epsilon: float(most > epsilon)
    return _make_exact_loss(claim, event, found.delta, pair, how, low=low, error=found.compute_error)
