"""Black box: train many times on each of two neighbouring datasets, and prove how well the results tell them apart.

What an attacker would do, who knows everything but which of the two it was: a score of what was released, and a
threshold that is chosen beforehand where the density is known, else on one half of the trainings and judged on the
other. Clopper and Pearson's bounds on both rates then prove an epsilon. Few rows and two features, so that thousands of
trainings take seconds; noise that is added once, after training, is drawn again for the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boltdp._arrays import Doubles
from boltdp.algorithms import ALGORITHMS, Job
from boltdp.audit.audited_training import Stage
from boltdp.audit.confidence import normal_quantile, rate_bounds
from boltdp.audit.exact_loss import MAX_TRAINED, minimised, output_distance, trained
from boltdp.audit.objective_density import log_ratio, sample
from boltdp.audit.worst_rows import Opposed, certified, classes_of, opposed, placed, prepared, small, worst
from boltdp.context import Context
from boltdp.errors import ParameterError
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.mechanisms import gaussian_epsilon
from boltdp.privacy.release import Randomness, release_weights

#: With what confidence an epsilon is proved.
CONFIDENCES = (0.95, 0.999)
#: Trainings on each of the two datasets, if nothing else is asked for: noise alone, descents, minimisers, others.
TRIALS = {OutputPerturbation: 50_000, NoisyGradients: 6_000, ObjectivePerturbation: 3_000}
OTHER_TRIALS = 3_000
#: Rows, where each of many trainings reads them, and scans of gradient descent.
ROWS, SCANS = 2_000, 4
#: Trainings at once, at most.
AT_ONCE = 250
#: Draws by which the worst rows are searched for, and then the threshold.
SEARCHED, FINELY = 3_000, 30_000
#: Thresholds that are tried.
THRESHOLDS = 99


@dataclass(frozen=True)
class BlackBox:
    """What the trainings of a stage have proved."""

    stage: Stage
    trials: int  #: on each of the two datasets
    epsilon: tuple[float, ...]  #: for each of the confidences, at the claimed delta
    rates: tuple[tuple[float, float], ...]  #: false and true positive rates of all thresholds, on the second half
    chosen: tuple[float, float]  #: those of the threshold that was chosen
    claimed: tuple[tuple[float, float], ...]  #: the largest true positive rate that the claim allows at each false one
    pair: str

    @property
    def broken(self) -> bool:
        """Whether more is proved, at the higher confidence, than was claimed."""
        return self.epsilon[-1] > self.stage.budget.epsilon * (1 + 1e-9)


def black_box(
    stage: Stage, *, trials: int | None, random: np.random.Generator, done: Callable[[int, int], None]
) -> BlackBox:
    """Attack a stage."""
    event = stage.event
    assert isinstance(event, Training)
    if trials is None:
        trials = TRIALS.get(type(event), OTHER_TRIALS)
    if trials < 100:
        raise ParameterError(f"trials must be at least 100, got {trials}")
    if isinstance(event, OutputPerturbation):
        scores, cut, pair, audited = _outputs(stage, trials, random, done)
    elif isinstance(event, ObjectivePerturbation):
        scores, cut, pair, audited = _minimisers(stage, trials, random, done)
    else:
        scores, cut, pair, audited = _others(stage, trials, done)
    gaussian = audited.mu is not None
    judged = scores
    if cut is None:
        half = trials // 2
        cut = _threshold([one[:half] for one in scores], stage, gaussian=gaussian)
        judged = [one[half:] for one in scores]
    epsilon = tuple(_proved(judged, cut, stage, gaussian=gaussian, confidence=one) for one in CONFIDENCES)
    cuts = np.quantile(np.concatenate(judged), np.linspace(0.0, 1.0, THRESHOLDS + 2))
    rates = tuple((float(np.mean(judged[1] > one)), float(np.mean(judged[0] > one))) for one in cuts)
    point = float(np.mean(judged[1] > cut)), float(np.mean(judged[0] > cut))
    return BlackBox(stage, trials, epsilon, rates, point, _trade_off(audited, stage), str(pair))


Scores = list[Doubles]  #: of what was released on each of the two datasets: higher on the first
#: Scores, the threshold (None: one half of the scores must tell), the rows, and what was trained.
Attacked = tuple[Scores, float | None, Opposed, Training]


def expected(losses: Doubles, trials: int) -> tuple[float, float]:
    """The epsilon that this many trainings are expected to prove by a threshold of the loss, and that threshold.

    `losses` are of draws on the first dataset. On the second, a draw with the loss l is e^-l times as likely.
    """
    ordered = np.sort(losses)[::-1]
    count = np.arange(1, len(ordered) + 1)
    first, second = count / len(ordered), np.cumsum(np.exp(-ordered)) / len(ordered)
    spread = 2.0 / math.sqrt(trials)
    low = first - spread * np.sqrt(first * np.maximum(1.0 - first, 0.0) + 1.0 / trials)
    proved = np.log(np.maximum(low, 1e-12) / (second + spread * np.sqrt(second + 1.0 / trials)))
    best = int(np.argmax(proved))
    return float(proved[best]), float(ordered[best])


def _outputs(stage: Stage, trials: int, random: np.random.Generator, done: Callable[[int, int], None]) -> Attacked:
    assert isinstance(stage.event, OutputPerturbation)
    event = small(stage, rows=min(max(ROWS, stage.event.problem.rows), MAX_TRAINED))
    assert isinstance(event, OutputPerturbation)
    pair = worst(lambda pair: output_distance(stage, event, pair), event.problem, random=random, also=placed)
    certificate = certified(event, stage.budget)
    centres = [trained(rows, stage, event) for rows in pair.rows(event.problem.rows, dims=event.problem.dims)]
    centre, move = _free(event, centres[0]), _free(event, centres[0] - centres[1])
    tried = sample(event.noise, FINELY, random)
    _, cut = expected(log_ratio(event.noise, tried, np.broadcast_to(move, tried.shape)), trials)
    scores: Scores = []
    for which, weights in enumerate(centres):
        drawn = np.empty((trials, *weights.shape))
        for number in range(trials):
            drawn[number] = release_weights(weights, certificate, Randomness())
            if number % 1000 == 999:
                done(which * trials + number + 1, 2 * trials)
        noise = _free(event, drawn) - centre
        scores.append(log_ratio(event.noise, noise, np.broadcast_to(move, noise.shape)))
    return scores, cut, pair, event


def _minimisers(stage: Stage, trials: int, random: np.random.Generator, done: Callable[[int, int], None]) -> Attacked:
    assert isinstance(stage.event, ObjectivePerturbation)
    # Noise in few dimensions hides least from so few trainings.
    event = small(stage, rows=ROWS, dims=1 if stage.event.problem.loss.vectors > 2 else 2)
    assert isinstance(event, ObjectivePerturbation)
    drawn = sample(event.linear, SEARCHED, random)

    def harm(pair: Opposed) -> float:
        return expected(minimised(event, pair).losses(event.linear, drawn), trials)[0]

    pair = worst(harm, event.problem, random=random)
    neighbours = minimised(event, pair)
    _, cut = expected(neighbours.losses(event.linear, sample(event.linear, FINELY, random)), trials)
    scores: Scores = []
    for released in _trainings(stage, event, pair, trials, done):
        scores.append(neighbours.losses_at(event.linear, _free(event, released)))
    return scores, cut, pair, event


def _free(event: Training, weights: Doubles) -> Doubles:
    """Weights in the coordinates in which they can move: of each training, if there are several."""
    basis, dimensions = event.problem.loss.basis, event.problem.dimensions
    return np.asarray(weights if basis is None else basis @ weights).reshape(-1, dimensions)


def _others(stage: Stage, trials: int, done: Callable[[int, int], None]) -> Attacked:
    if isinstance(stage.event, NoisyGradients):
        event = small(stage, rows=10, scans=SCANS)
    else:
        event = small(stage, rows=4, dims=1)
    pair = opposed(event.problem)
    first, second = (released.reshape(trials, -1) for released in _trainings(stage, event, pair, trials, done))
    if isinstance(event, NoisyGradients):
        # The two datasets mirror each other: so do their weights, and the middle is 0.
        loss, dims = event.problem.loss, event.problem.dims
        towards = -np.outer(loss.slopes(np.zeros(loss.vectors), pair.label, positive=1), np.eye(dims)[0]).ravel()
        return [first @ towards, second @ towards], 0.0, pair, event
    # Without a density the score is the projection on the line through both means, which the first halves tell.
    half = trials // 2
    towards = first[:half].mean(axis=0) - second[:half].mean(axis=0)
    return [first @ towards, second @ towards], None, pair, event


def _trainings(
    stage: Stage, event: Training, pair: Opposed, trials: int, done: Callable[[int, int], None]
) -> list[Doubles]:
    """Released weights, of shape (trials, vectors, dims), for each of the two datasets."""
    certificate, algorithm = certified(event, stage.budget), ALGORITHMS[event.algorithm]
    classes, context, released = classes_of(event.problem), Context(seed=1, threads=1), []
    for which, rows in enumerate(pair.rows(event.problem.rows, dims=event.problem.dims)):
        found: list[Doubles] = []
        with prepared(rows) as held:
            while len(found) < trials:
                jobs = [Job(certificate, Randomness())] * min(AT_ONCE, trials - len(found))
                for weights in algorithm.run(held, jobs, classes=classes, context=context):
                    found.append(release_weights(weights, certificate, Randomness())[0])
                done(which * trials + len(found), 2 * trials)
        released.append(np.array(found))
    return released


def _threshold(scores: Scores, stage: Stage, *, gaussian: bool) -> float:
    """The one that proves most on these."""
    cuts = np.unique(np.quantile(np.concatenate(scores), np.linspace(0.005, 0.995, THRESHOLDS)))
    if gaussian:
        return float(np.median(np.concatenate(scores)))  # the best for two normals that are close
    return float(max(cuts, key=lambda cut: _proved(scores, cut, stage, gaussian=False, confidence=CONFIDENCES[0])))


def _proved(scores: Scores, cut: float, stage: Stage, *, gaussian: bool, confidence: float) -> float:
    """The epsilon that a threshold proves at the claimed delta: to each side of it, and by what one Gaussian allows."""
    first, second = scores
    mistake, delta = (1.0 - confidence) / 2.0, stage.budget.delta
    low, _ = rate_bounds(int(np.sum(first > cut)), len(first), mistake=mistake)
    _, most = rate_bounds(int(np.sum(second > cut)), len(second), mistake=mistake)
    proved = [0.0]
    for often, seldom in ((low, most), (1.0 - most, 1.0 - low)):
        if often - delta > seldom > 0:
            proved.append(math.log((often - delta) / seldom))
    if gaussian and delta > 0 and (apart := normal_quantile(low) - normal_quantile(most)) > 0:
        proved.append(gaussian_epsilon(apart, delta))
    return max(proved)


def _trade_off(event: Training, stage: Stage) -> tuple[tuple[float, float], ...]:
    """What the curve of the claim allows: at each rate of false positives, the largest of true ones."""
    false = np.concatenate([np.geomspace(1e-4, 0.02, 12), np.linspace(0.03, 1.0, 60)])
    true = np.ones_like(false)
    for epsilon in np.linspace(0.0, 1.0, 17)[1:] * stage.budget.epsilon:
        delta = event.delta(float(epsilon), target=stage.budget.delta or 1e-9)
        growth = math.exp(epsilon)
        true = np.minimum(true, np.minimum(growth * false + delta, 1.0 - (1.0 - delta - false) / growth))
    return tuple(zip([0.0, *false.tolist()], [0.0, *np.clip(true, 0.0, 1.0).tolist()], strict=True))
