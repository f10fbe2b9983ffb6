"""Other people's ways to a private regression, each at its best: from rows and a budget to answers for testing rows.

All are calibrated for one row that is replaced by any other, as boltdp is; where a paper counts a row more or less, its
sensitivities are those of a replaced row here, and nothing else is changed. Those with "prepared" get the private
centring that "auto" does, for the same share of the budget, and the range of the target exactly and for nothing, for
which "auto" pays. Where a public code does not keep the guarantee of its paper, the paper's algorithm is taken, with
the noise that it needs. Settings were chosen on training rows of four benchmarks and on nothing else: `python -m
experiments.rivals_tuning` repeats that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boltdp._array_types import Doubles
from boltdp.privacy.budget import Budget
from boltdp.schema.schema import Schema
from boltdp.schema.target import TYPICAL_WIDTH, Number
from experiments import rivals
from experiments.rivals import Rng
from experiments.tasks import Answer, Task


@dataclass(frozen=True)
class Noise:
    """Noise that shares a budget: releases of vectors, each for a share of it.

    With a delta it is Gaussian, and shares are those of mu^2 = 1/deviation^2: all releases are one Gaussian. Without
    one it is spherical, of density exp(-epsilon |z| / sensitivity), and shares are those of epsilon.
    """

    rng: Rng
    deviation: float | None
    epsilon: float

    def scale(self, sensitivity: float, share: float, size: int) -> float:
        """The deviation of a coordinate, for this L2 sensitivity."""
        if self.deviation is not None:
            return sensitivity * self.deviation / math.sqrt(share)
        return sensitivity / (share * self.epsilon) * math.sqrt(size + 1.0)

    def draw(self, sensitivity: float, share: float, size: int) -> Doubles:
        """Noise for a vector of this size."""
        drawn = self.rng.normal(size=size)
        if self.deviation is None:
            drawn *= self.rng.gamma(size, sensitivity / (share * self.epsilon)) / np.linalg.norm(drawn)
            return drawn
        return np.asarray(self.scale(sensitivity, share, size) * drawn)

    def draw_symmetric(self, sensitivity: float, share: float, dims: int) -> Doubles:
        """Noise for a symmetric matrix, for its sensitivity by the Frobenius norm."""
        drawn = self.draw(sensitivity, share, dims * (dims + 1) // 2)
        matrix = np.zeros((dims, dims))
        matrix[np.triu_indices(dims)] = drawn
        matrix[np.triu_indices(dims, 1)] /= math.sqrt(2.0)
        return np.asarray(np.triu(matrix) + np.triu(matrix, 1).T)


@dataclass(frozen=True)
class Rows:
    """Rows of length at most 1, labels as numbers, and how to read them: the label 0 is `centre`, 1 a `unit` more."""

    trained: Doubles
    labels: Doubles
    tested: Doubles
    target: Number
    centre: float
    unit: float

    @classmethod
    def of(cls, task: Task, schema: Schema, *, prepared: bool) -> Rows:
        """By a schema; in spreads around the middle of most labels, or in halves of the bounds."""
        target = schema.target
        assert isinstance(target, Number)
        trained, labels, tested = task.unit_parts(schema)
        centre, unit = (target.low + target.high) / 2.0, (target.high - target.low) / 2.0
        if prepared:
            low, high = np.quantile(labels, (0.1, 0.9))
            centre, unit = (low + high) / 2.0, max((high - low) / TYPICAL_WIDTH, 1e-9)
        return cls(trained, (labels - centre) / unit, tested, target, centre, unit)

    def answer(self, weights: Doubles) -> Answer:
        """Predictions for the testing rows, within the bounds."""
        return Answer(np.clip(self.centre + self.unit * (self.tested @ weights), self.target.low, self.target.high))


def _start(task: Task, budget: Budget, rng: Rng, *, prepared: bool) -> tuple[Rows, Noise]:
    """The rows, centred if they are to be prepared, and noise for what is left of the budget."""
    schema, deviation, left = task.schema, None, budget
    if budget.delta > 0:
        deviation = rivals.gaussian_deviation(budget.epsilon, budget.delta)
        if prepared:
            schema, deviation = task.gaussian_centring(budget)
    elif prepared:
        schema, left = task.centring(budget)
    return Rows.of(task, schema, prepared=prepared), Noise(rng, deviation, left.epsilon)


def sufficient_statistics(
    task: Task,
    budget: Budget,
    rng: Rng,
    *,
    prepared: bool,
    ridge: float,
    reach: float = 1.0,
    rounds: int = 1,
    shares: tuple[float, float] = (0.05, 0.45),
) -> Answer:
    """AdaSSP (Wang 2018), and with rounds BoostedAdaSSP (Tang and others 2023), for one row replaced.

    X'X and its smallest eigenvalue are released once. Replacing a row of length at most 1 moves X'X by sqrt(2) and the
    eigenvalue by 1; it moves X'r, for residuals r that are cut at `reach`, by 2*reach. A round releases X'r and adds
    the ridge regression of r to the weights; in the first one r is y. The ridge is `ridge` times the length of the
    noise in X'X, less the eigenvalue. `shares` of the budget are for the eigenvalue and X'X, the rest is for the
    rounds.
    """
    rows, noise = _start(task, budget, rng, prepared=prepared)
    trained, dims = rows.trained, rows.trained.shape[1]
    of_eigenvalue, of_squares = shares
    of_round = (1.0 - sum(shares)) / rounds
    squares = trained.T @ trained
    smallest = float(np.linalg.eigvalsh(squares)[0]) + float(noise.draw(1.0, of_eigenvalue, 1)[0])
    # The largest eigenvalue of symmetric noise is about sqrt(2d) of its deviations.
    size = noise.scale(math.sqrt(2.0), of_squares, dims * (dims + 1) // 2) * math.sqrt(2.0 * dims)
    noisy = squares + noise.draw_symmetric(math.sqrt(2.0), of_squares, dims)
    noisy += max(0.0, ridge * size - max(smallest, 0.0)) * np.eye(dims)
    weights = np.zeros(dims)
    for _ in range(rounds):
        residuals = np.clip(rows.labels - trained @ weights, -reach, reach)
        moments = trained.T @ residuals + noise.draw(2.0 * reach, of_round, dims)
        weights = weights + np.linalg.solve(noisy, moments)
    return rows.answer(weights)


def least_squares_descent(
    task: Task, budget: Budget, rng: Rng, *, clip: float, length: float, scans: int = 100, momentum: float = 0.9
) -> Answer:
    """Full gradients of squared errors, clipped, with Gaussian noise in each; for delta > 0 and one row replaced.

    The noise and the steps are those of `rivals.clipped_gradient_descent`, and no step is longer than the curvature of
    the squared errors of even rows allows.
    """
    rows, noise = _start(task, budget, rng, prepared=True)
    assert noise.deviation is not None
    trained, dims = rows.trained, rows.trained.shape[1]
    most = clip / np.maximum(np.sqrt(np.einsum("ij,ij->i", trained, trained)), 1e-9)

    def gradient(weights: Doubles) -> Doubles:
        errors = np.clip(trained @ weights - rows.labels, -most, most)
        return np.asarray(errors @ trained / len(trained))

    noise_a_row = 2.0 * noise.deviation * math.sqrt(dims) / len(trained)
    step = min(length / noise_a_row / scans / clip, 4.0 * dims)
    deviation = 2.0 * clip * noise.deviation * math.sqrt(scans) / len(trained)
    return rows.answer(
        rivals.descend(gradient, np.zeros(dims), rng, step=step, deviation=deviation, scans=scans, momentum=momentum)
    )


def deep_models(task: Task, budget: Budget, rng: Rng, *, models: int) -> Answer:
    """TukeyEM (Amin, Joseph, Ribero and Vassilvitskii 2023), for delta > 0 and one row replaced.

    Least squares of each of many parts of the rows; replacing a row changes one of them. A point in the box of models
    is deep if in every coordinate many of them are on both sides: its depth changes by at most 1. The exponential
    mechanism with half of epsilon draws a point that is at least k/4 deep, of k models. Whether that is private here
    is tested first with the other half: `_safe_distance` is how many models would have to change until it were not.
    Where the test fails there is no model, and the middle of the bounds is predicted.
    """
    rows, half = Rows.of(task, task.schema, prepared=False), budget.epsilon / 2.0
    order = rng.permutation(len(rows.trained))
    fitted = [np.linalg.lstsq(rows.trained[part], rows.labels[part])[0] for part in np.array_split(order, models)]
    ordered = np.sort(np.stack(fitted) + rng.normal(0.0, 1e-6, (models, rows.trained.shape[1])), axis=0)  # without ties
    depths = models // 2
    # Of depth at least i: between the i-th model from below and the i-th from above, in every coordinate.
    log_volumes = np.log(ordered[::-1][:depths] - ordered[:depths]).sum(axis=1)
    least = models // 4
    distance = _safe_distance(log_volumes, least, half, budget.delta / 2.0)
    if distance + rng.laplace(0.0, 1.0 / half) <= math.log(1.0 / budget.delta) / half:
        return rows.answer(np.zeros(rows.trained.shape[1]))
    deep = log_volumes[least - 1 :]
    shells = deep + np.log1p(-np.exp(np.append(deep[1:], -np.inf) - deep))
    # The largest of the logarithms with Gumbel noise is drawn with the odds of the exponential mechanism.
    chosen = least - 1 + int(np.argmax(half / 2.0 * np.arange(len(deep)) + shells + rng.gumbel(size=len(deep))))
    low, high = ordered[chosen], ordered[::-1][chosen]
    inner = min(chosen + 1, depths - 1)
    while True:  # a point of exactly this depth: outside of the next box
        point = rng.uniform(low, high)
        if inner == chosen or ((point < ordered[inner]) | (point > ordered[::-1][inner])).any():
            return rows.answer(point)


def _safe_distance(log_volumes: Doubles, least: int, epsilon: float, delta: float) -> int:
    """How many models may change at least until the restricted exponential mechanism is not private; -1: it is not.

    After k changes a depth is within k of what it was. What the mechanism gives to points whose depth may fall below
    `least` is then at most V(least - k - 1) / V(least + k + g) * exp(-epsilon * g / 2), for every g > 0, where V(i) is
    the volume of depth at least i. If that is at most delta / (4 exp(epsilon)), changing one more row is private.
    """
    bound, deepest = math.log(delta / 4.0) - epsilon, len(log_volumes)
    safe = -1
    for changes in range(least - 1):
        outer = log_volumes[max(least - changes - 2, 0)]
        inner = log_volumes[least + changes : deepest]
        odds = outer - inner - epsilon / 2.0 * np.arange(1, len(inner) + 1)
        if not len(inner) or odds.min() > bound:
            break
        safe = changes
    return safe


def diffprivlib_linear(task: Task, budget: Budget, rng: Rng, *, reach: float) -> Answer:
    """The linear regression of diffprivlib 0.6.6 (the functional mechanism, Zhang and others 2012), pure, prepared.

    Laplace noise is added to each sum of y^2, x_i*y and x_i*x_j, each with the same share of epsilon. Its
    sensitivities are those of one row replaced. That of x_i^2 is taken from the lower bound alone: bounds are given as
    even on both sides of 0, where that is right. It does not clip: labels are cut at `reach`, and features are within
    their bounds. Where noise makes the sum of squares indefinite there is no minimum, and what its minimiser stops at
    is taken.
    """
    model_of: Callable[..., object] = rivals.diffprivlib("linear_regression").LinearRegression
    schema, left = task.centring(budget)
    rows = Rows.of(task, schema, prepared=True)
    lows, highs = rivals.feature_bounds(schema)
    sizes = np.maximum(np.maximum(np.abs(lows), np.abs(highs)), 1e-9)
    # The intercept is the same number in all rows that are not shortened.
    sizes = np.append(sizes, rows.trained[:, len(sizes) :].max(axis=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_of(
            epsilon=left.epsilon,
            bounds_X=(-sizes, sizes),
            bounds_y=(-reach, reach),
            fit_intercept=False,
            random_state=int(rng.integers(2**31)),
        )
        model.fit(rows.trained, np.clip(rows.labels, -reach, reach))  # type: ignore[attr-defined]
    return rows.answer(np.asarray(model.coef_, np.float64))  # type: ignore[attr-defined]
