"""Black box: train many times on each of two neighbouring datasets, and prove how well an attacker distinguishes them.

The attacker knows everything but which of the two datasets was used, scores each release, and compares the score with a
threshold. The threshold follows from the density where that is known; else it is chosen on one half of the trainings
and tested on the other. Clopper-Pearson bounds on both rates prove a lower bound on epsilon. There are few rows and two
features, so that thousands of trainings take seconds; noise that is added once, after training, is drawn repeatedly for
the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boltdp._array_types import Doubles
from boltdp.audit.exact_loss import MAX_TRAINED, find_worst_outputs, make_neighbours
from boltdp.audit.objective_density import compute_log_ratio, draw_noise
from boltdp.audit.statistical_tests import bound_rate, compute_normal_quantile
from boltdp.audit.subject import Claim
from boltdp.audit.worst_neighbours import OpposedPair, find_worst_pair, make_opposed_pair, run_training, shrink_training
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.mechanisms import compute_gaussian_epsilon
from boltdp.privacy.release_with_noise import Randomness, release_weights

#: Confidence levels at which an epsilon is proved.
CONFIDENCES = (0.95, 0.999)
#: Default number of trainings on each of the two datasets, by the kind of training.
TRIALS = {OutputPerturbation: 50_000, NoisyGradients: 6_000, ObjectivePerturbation: 3_000}
OTHER_TRIALS = 3_000
#: Rows of a training that is repeated, and scans of gradient descent.
ROWS, SCANS = 2_000, 4
#: Maximum number of trainings that run together.
BATCH = 250
#: Draws of the noise in the search for the worst rows, and for the choice of the threshold.
SEARCH_DRAWS, THRESHOLD_DRAWS = 3_000, 30_000
#: Number of thresholds that are tried.
THRESHOLDS = 99


@dataclass(frozen=True)
class BlackBox:
    """The result of the attack on a claim."""

    claim: Claim
    trials: int  #: on each of the two datasets
    epsilon: tuple[float, ...]  #: the proved lower bound at each confidence level, at the claimed delta
    rates: tuple[tuple[float, float], ...]  #: false and true positive rates of all thresholds
    chosen: tuple[float, float]  #: false and true positive rate of the chosen threshold
    claimed: tuple[tuple[float, float], ...]  #: the maximum true positive rate at each false positive rate
    pair: str

    @property
    def broken(self) -> bool:
        """Whether the epsilon that is proved at the higher confidence exceeds the claimed one."""
        return self.epsilon[-1] > self.claim.budget.epsilon * (1 + 1e-9)


def run_black_box(claim: Claim, *, trials: int | None, random: np.random.Generator, done: Progress) -> BlackBox:
    """Attack one release by `trials` trainings on each of two neighbouring datasets; return the epsilon it proves."""
    event = claim.event
    if not isinstance(event, Training):
        raise ParameterError(f"an attack by trainings must be on a training, got {event.kind!r}")
    if trials is None:
        trials = TRIALS.get(type(event), OTHER_TRIALS)
    if trials < 100:
        raise ParameterError(f"trials must be at least 100, got {trials}")
    if isinstance(event, OutputPerturbation):
        scores, threshold, pair, audited = _attack_output_perturbation(event, claim.budget, trials, random, done)
    elif isinstance(event, ObjectivePerturbation):
        scores, threshold, pair, audited = _attack_objective_perturbation(event, claim, trials, random, done)
    else:
        scores, threshold, pair, audited = _attack_by_projection(event, claim.budget, trials, done)
    gaussian = audited.mu is not None
    judged = scores
    if threshold is None:
        half = trials // 2
        threshold = _choose_threshold([one[:half] for one in scores], claim, gaussian=gaussian)
        judged = [one[half:] for one in scores]
    epsilon = tuple(_prove_epsilon(judged, threshold, claim, gaussian=gaussian, confidence=one) for one in CONFIDENCES)
    thresholds = np.quantile(np.concatenate(judged), np.linspace(0.0, 1.0, THRESHOLDS + 2))
    rates = tuple((float(np.mean(judged[1] > one)), float(np.mean(judged[0] > one))) for one in thresholds)
    point = float(np.mean(judged[1] > threshold)), float(np.mean(judged[0] > threshold))
    return BlackBox(claim, trials, epsilon, rates, point, _compute_trade_off(audited, claim), str(pair))


Progress = Callable[[int, int], None]  #: is called with the trainings done so far and all trainings
Scores = list[Doubles]  #: the attacker's scores of the releases on each of the two datasets: higher on the first
#: Scores, the threshold (None: it is chosen on one half of the scores), the rows, and the training.
Attack = tuple[Scores, float | None, OpposedPair, Training]


def predict_epsilon(losses: Doubles, trials: int) -> tuple[float, float]:
    """Return the epsilon that `trials` trainings are expected to prove by the best threshold, and that threshold.

    `losses` are privacy losses of draws on the first dataset. A draw with loss l is e^-l times as likely on the second.
    """
    ordered = np.sort(losses)[::-1]
    count = np.arange(1, len(ordered) + 1)
    first, second = count / len(ordered), np.cumsum(np.exp(-ordered)) / len(ordered)
    spread = 2.0 / math.sqrt(trials)
    low = first - spread * np.sqrt(first * np.maximum(1.0 - first, 0.0) + 1.0 / trials)
    proved = np.log(np.maximum(low, 1e-12) / (second + spread * np.sqrt(second + 1.0 / trials)))
    best = int(np.argmax(proved))
    return float(proved[best]), float(ordered[best])


def _attack_output_perturbation(
    event: OutputPerturbation, budget: Budget, trials: int, random: np.random.Generator, done: Progress
) -> Attack:
    """Attack output perturbation: score each release by its log density ratio, and train only once."""
    event = shrink_training(event, budget, rows=min(max(ROWS, event.problem.rows), MAX_TRAINED))
    pair, centres = find_worst_outputs(event, budget, random)
    certificate = Certificate(budget=budget, spent=event)
    centre, move = _project_weights(event, centres[0]), _project_weights(event, centres[0] - centres[1])
    tried = draw_noise(event.noise, THRESHOLD_DRAWS, random)
    _, threshold = predict_epsilon(compute_log_ratio(event.noise, tried, np.broadcast_to(move, tried.shape)), trials)
    scores: Scores = []
    for which, weights in enumerate(centres):
        drawn = np.empty((trials, *weights.shape))
        for number in range(trials):
            drawn[number] = release_weights(weights, certificate, Randomness())
            if number % 1000 == 999:
                done(which * trials + number + 1, 2 * trials)
        noise = _project_weights(event, drawn) - centre
        scores.append(compute_log_ratio(event.noise, noise, np.broadcast_to(move, noise.shape)))
    return scores, threshold, pair, event


def _attack_objective_perturbation(
    event: ObjectivePerturbation, claim: Claim, trials: int, random: np.random.Generator, done: Progress
) -> Attack:
    """Attack objective perturbation: score each release by the log ratio of the densities of the minimiser."""
    # The fewer dimensions the noise has, the more these trainings prove.
    dims, budget = 1 if event.problem.loss.vector_count > 2 else 2, claim.budget
    event = shrink_training(event, budget, rows=ROWS, dims=dims, other_mu=claim.other_mu)
    drawn = draw_noise(event.linear, SEARCH_DRAWS, random)

    def predict_epsilon_of_pair(pair: OpposedPair) -> float:
        return predict_epsilon(make_neighbours(event, pair).compute_losses_of_noise(event.linear, drawn), trials)[0]

    pair = find_worst_pair(predict_epsilon_of_pair, event.problem, random=random)
    neighbours = make_neighbours(event, pair)
    _, threshold = predict_epsilon(
        neighbours.compute_losses_of_noise(event.linear, draw_noise(event.linear, THRESHOLD_DRAWS, random)), trials
    )
    released = _run_trainings(event, budget, pair, trials, done)
    scores = [
        neighbours.compute_losses_at_weights(event.linear, _project_weights(event, weights)) for weights in released
    ]
    return scores, threshold, pair, event


def _project_weights(event: Training, weights: Doubles) -> Doubles:
    """Return released weights in the basis of the loss, one row per training."""
    return event.problem.loss.to_basis(weights).reshape(-1, event.problem.dimensions)


def _attack_by_projection(event: Training, budget: Budget, trials: int, done: Progress) -> Attack:
    """Attack a training whose density is unknown: score each release by its projection on one direction."""
    if isinstance(event, NoisyGradients):
        event = shrink_training(event, budget, rows=10, scans=SCANS)
    else:
        event = shrink_training(event, budget, rows=4, dims=1)
    pair = make_opposed_pair(event.problem)
    first, second = (released.reshape(trials, -1) for released in _run_trainings(event, budget, pair, trials, done))
    if isinstance(event, NoisyGradients):
        # The two datasets mirror each other, and so do their weights: the threshold is 0.
        loss, dims = event.problem.loss, event.problem.dims
        slopes = loss.compute_slopes(np.zeros(loss.vector_count), pair.label, positive=1)
        towards = -np.outer(slopes, np.eye(dims)[0]).ravel()
        return [first @ towards, second @ towards], 0.0, pair, event
    # Without a density the score is the projection on the line through both means, estimated on the first halves.
    half = trials // 2
    towards = first[:half].mean(axis=0) - second[:half].mean(axis=0)
    return [first @ towards, second @ towards], None, pair, event


def _run_trainings(event: Training, budget: Budget, pair: OpposedPair, trials: int, done: Progress) -> list[Doubles]:
    """Train and release `trials` times on each of two datasets; return weights (trials, vectors, dims) of each."""
    certificate, released = Certificate(budget=budget, spent=event), []
    for which, rows in enumerate(pair.make_datasets(event.problem)):
        found: list[Doubles] = []
        while len(found) < trials:
            for weights in run_training(event, budget, rows, count=min(BATCH, trials - len(found))):
                found.append(release_weights(weights, certificate, Randomness())[0])
            done(which * trials + len(found), 2 * trials)
        released.append(np.array(found))
    return released


def _choose_threshold(scores: Scores, claim: Claim, *, gaussian: bool) -> float:
    thresholds = np.unique(np.quantile(np.concatenate(scores), np.linspace(0.005, 0.995, THRESHOLDS)))
    if gaussian:
        return float(np.median(np.concatenate(scores)))  # the best threshold for two close normal distributions
    return float(
        max(thresholds, key=lambda one: _prove_epsilon(scores, one, claim, gaussian=False, confidence=CONFIDENCES[0]))
    )


def _prove_epsilon(scores: Scores, threshold: float, claim: Claim, *, gaussian: bool, confidence: float) -> float:
    """Return the lower bound on epsilon that a threshold on the scores proves at the claimed delta."""
    first, second = scores
    mistake, delta = (1.0 - confidence) / 2.0, claim.budget.delta
    low, _ = bound_rate(int(np.sum(first > threshold)), len(first), mistake=mistake)
    _, most = bound_rate(int(np.sum(second > threshold)), len(second), mistake=mistake)
    proved = [0.0]
    for often, seldom in ((low, most), (1.0 - most, 1.0 - low)):
        if often - delta > seldom > 0:
            proved.append(math.log((often - delta) / seldom))
    if gaussian and delta > 0 and (apart := compute_normal_quantile(low) - compute_normal_quantile(most)) > 0:
        proved.append(compute_gaussian_epsilon(apart, delta))
    return max(proved)


def _compute_trade_off(event: Training, claim: Claim) -> tuple[tuple[float, float], ...]:
    """Return the trade-off curve of the claim: at each false positive rate, the maximum true positive rate."""
    false = np.concatenate([np.geomspace(1e-4, 0.02, 12), np.linspace(0.03, 1.0, 60)])
    true = np.ones_like(false)
    for epsilon in np.linspace(0.0, 1.0, 17)[1:] * claim.budget.epsilon:
        delta = event.delta(float(epsilon), target=claim.budget.delta or 1e-9)
        growth = math.exp(epsilon)
        true = np.minimum(true, np.minimum(growth * false + delta, 1.0 - (1.0 - delta - false) / growth))
    return tuple(zip([0.0, *false.tolist()], [0.0, *np.clip(true, 0.0, 1.0).tolist()], strict=True))
