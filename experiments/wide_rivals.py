"""The rival of `experiments.wide`: DP-SGD of a linear model on public features of images (Tramèr and Boneh 2021).

    python -m experiments.wide_rivals fashion hog --within     # the last tenth of the TRAINING rows judges all settings
    python -m experiments.wide_rivals                          # test rows, with the settings chosen so

Batches are Poisson samples of 8,192 rows on average, gradients are clipped to 0.1, with momentum of 0.9. At each
epsilon there is a training for a row more or less, as is usual for DP-SGD, and one for a row replaced, as for `auto`.
All updates are accounted for by privacy loss distributions, so that neither has more noise than it needs. Settings that
are judged by training rows share samples and noise, since nothing is released there.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from scipy.special import ndtr

from boltdp._array_types import Doubles
from boltdp._bisect import bisect
from boltdp.privacy.accounting.privacy_loss_distributions import (
    PrivacyLossDistribution,
    bound_delta_of_losses,
    find_smallest_deviation,
    make_poisson_profile,
)
from boltdp.privacy.budget import Budget
from experiments.tasks import Answer, judged
from experiments.wide import DELTA, FEATURES, IMAGES, write_rows

Rows: TypeAlias = npt.NDArray[np.float32]

BATCH, CLIP, MOMENTUM, CLASSES = 8192, 0.1, 0.9, 10
#: The last feature of each row, beside features of norm at most 1.
INTERCEPT = 0.1
EPSILONS = (1.0, 3.0)
#: What is tried on training rows: passes over the rows, and steps in units of the clip.
PASSES, STEPS = (15, 40, 80), (2.0, 5.0, 10.0, 20.0, 40.0)


def compute_added_delta(epsilon: Doubles, deviation: float, rate: float) -> Doubles:
    """Return delta for a row that one table has more: (1 - q)*N(0, s^2) + q*N(1, s^2) against N(0, s^2).

    >>> compute_added_delta(np.array([0.0]), 1.0, 1.0).round(3)
    array([0.383])
    """
    ratio = np.exp(epsilon)
    with np.errstate(divide="ignore"):
        edge = 0.5 + deviation**2 * np.log(np.maximum((ratio - 1.0 + rate) / rate, 0.0))
    return np.asarray((1.0 - rate - ratio) * ndtr(-edge / deviation) + rate * ndtr((1.0 - edge) / deviation))


def compute_removed_delta(epsilon: Doubles, deviation: float, rate: float) -> Doubles:
    """Return delta for the same pair in the other order."""
    ratio = np.exp(epsilon)
    with np.errstate(divide="ignore"):
        edge = 0.5 + deviation**2 * np.log(np.maximum((1.0 / ratio - 1.0 + rate) / rate, 0.0))
    inside = rate * ndtr((edge - 1.0) / deviation)
    return np.asarray((1.0 - ratio * (1.0 - rate)) * ndtr(edge / deviation) - ratio * inside)


def bound_unpaired_delta(deviation: float, *, rate: float, updates: int, budget: Budget) -> float:
    """Return the delta, for a row more or less, of that many Poisson-subsampled Gaussians on vectors of norm <= 1."""
    return max(
        bound_delta_of_losses(
            [(_discretise(partial(delta, deviation=deviation, rate=rate), updates, budget), updates)], budget
        )
        for delta in (compute_added_delta, compute_removed_delta)
    )


def _discretise(profile: Callable[[Doubles], Doubles], updates: int, budget: Budget) -> PrivacyLossDistribution:
    """Return a loss distribution whose profile is the chords of this one between the points of a grid: above it."""
    longest = budget.epsilon / math.sqrt(updates)
    while updates * profile(np.array([longest]))[0] > 1e-6 * budget.delta and longest < 50.0:
        longest *= 1.25
    width = budget.epsilon / (40.0 * math.sqrt(updates))
    last = math.ceil(longest / width)
    places = np.arange(-last, last + 1)
    grid: Doubles = width * places.astype(np.float64)
    deltas = np.maximum(profile(grid), np.maximum(-np.expm1(grid), 0.0))
    falls = np.append(-np.diff(deltas), 0.0)
    above = np.maximum((falls[:-1] * math.exp(width) - falls[1:]) / math.expm1(width), 0.0)
    lowest = max(0.0, 1.0 - float(deltas[-1]) - float(above.sum()))
    return PrivacyLossDistribution(width, places, np.append(lowest, above), float(deltas[-1]))


NEIGHBOURS = ("a row more or less", "a row replaced")


def find_deviation(neighbours: str, budget: Budget, *, rows: int, updates: int) -> float:
    """Return the deviation of the noise of a sum of vectors of norm at most 1."""
    rate = BATCH / rows
    replaced = find_smallest_deviation(partial(make_poisson_profile, rate=rate), updates=updates, budget=budget)
    if neighbours == "a row replaced":
        return replaced

    def holds(deviation: float) -> bool:
        return bound_unpaired_delta(deviation, rate=rate, updates=updates, budget=budget) <= budget.delta

    # A row replaced is one less and one more.
    return bisect(holds, replaced / 4.0, replaced, tolerance=1e-3)[1]


def count_updates(rows: int, passes: int) -> int:
    """Return the number of batches in this number of passes.

    >>> count_updates(60_000, 40)
    293
    """
    return round(passes * rows / BATCH)


def descend(
    rows: Rows, labels: Any, steps: Sequence[float], *, deviation: float, updates: int, rng: np.random.Generator
) -> Rows:
    """Return the weights of a model for each step, of shape (steps, classes, features)."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    weights: Any = np.zeros((len(steps), CLASSES, rows.shape[1]), np.float32)
    velocity: Any = np.zeros_like(weights)
    scales = np.array(steps, np.float32)[:, None, None]
    for _ in range(updates):
        chosen = np.flatnonzero(rng.random(len(rows)) < BATCH / len(rows))
        sums = sum_clipped(rows[chosen], norms[chosen], labels[chosen], weights)
        noise = rng.standard_normal((CLASSES, rows.shape[1]), np.float32) * np.float32(deviation)
        velocity = np.float32(MOMENTUM) * velocity + (sums + noise) / np.float32(BATCH)
        weights = weights - scales * velocity
    return np.asarray(weights)


def sum_clipped(batch: Rows, norms: Rows, labels: Any, weights: Rows) -> Rows:
    """Return for each model the sum of the gradients of the multinomial loss, clipped, in units of the clip."""
    models = len(weights)
    scores = (batch @ weights.reshape(models * CLASSES, -1).T).reshape(len(batch), models, CLASSES)
    odds = np.exp(scores - scores.max(axis=2, keepdims=True))
    odds /= odds.sum(axis=2, keepdims=True)
    odds[np.arange(len(batch)), :, labels] -= 1.0
    lengths = norms[:, None] * np.sqrt(np.einsum("ijk,ijk->ij", odds, odds))
    odds *= (1.0 / np.maximum(lengths, np.float32(CLIP)))[:, :, None]
    return np.asarray((odds.reshape(len(batch), -1).T @ batch).reshape(weights.shape))


def read_rows(path: Path) -> tuple[Rows, Any]:
    """Return the features, with the intercept, and the labels."""
    table = pq.read_table(path)
    lists = table["x"].combine_chunks()
    found = lists.values.to_numpy(zero_copy_only=False).reshape(len(lists), -1)
    rows = np.full((len(found), found.shape[1] + 1), INTERCEPT, np.float32)
    rows[:, :-1] = found
    return rows, table["label"].to_numpy().astype(np.int64)


def score_models(rows: Rows, labels: Any, weights: Rows) -> Iterator[dict[str, float]]:
    """Yield the scores of each model."""
    for model in weights:
        yield judged(Answer.of_scores((rows @ model.T).astype(np.float64)), labels)


#: Passes and step, by neighbours and epsilon: chosen on HOG of training rows of Fashion-MNIST, for all features, since
#: the noise in the score of a row of norm 1 does not depend on their number.
CHOSEN: Mapping[tuple[str, float], tuple[int, float]] = {
    ("a row more or less", 1.0): (40, 10.0),
    ("a row more or less", 3.0): (80, 10.0),
    ("a row replaced", 1.0): (40, 5.0),
    ("a row replaced", 3.0): (80, 10.0),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="what", help=", ".join([*IMAGES, *FEATURES]))
    parser.add_argument("--epsilons", type=float, nargs="+", choices=EPSILONS, default=EPSILONS)
    parser.add_argument("--neighbours", choices=NEIGHBOURS, action="append", help="one of the two only")
    parser.add_argument("--within", action="store_true", help="look at training rows alone, with many settings")
    chosen = parser.parse_args()
    print("| images | features | neighbours | epsilon | passes | step | accuracy | log loss | CPU seconds |")
    print("|" + "---|" * 9)
    for images in [name for name in IMAGES if name in chosen.only] or IMAGES:
        for features in [name for name in FEATURES if name in chosen.only] or FEATURES:
            with tempfile.TemporaryDirectory() as directory:
                write_rows(images, features, Path(directory), within=chosen.within, rows=60_000)
                trained, tested = (read_rows(Path(directory) / f"{part}.parquet") for part in ("train", "test"))
            for epsilon, neighbours in itertools.product(chosen.epsilons, chosen.neighbours or NEIGHBOURS):
                for passes, steps in list_settings(neighbours, epsilon, within=chosen.within):
                    for line in train(trained, tested, neighbours, epsilon, passes, steps):
                        print(f"| {images} | {features} | {neighbours} | {epsilon:g} | {line} |", flush=True)


def list_settings(neighbours: str, epsilon: float, *, within: bool) -> list[tuple[int, Sequence[float]]]:
    """Return the passes and steps to train with."""
    if within:
        return [(passes, STEPS) for passes in PASSES]
    passes, step = CHOSEN[neighbours, epsilon]
    return [(passes, [step])]


def train(
    trained: tuple[Rows, Any],
    tested: tuple[Rows, Any],
    neighbours: str,
    epsilon: float,
    passes: int,
    steps: Sequence[float],
) -> Iterator[str]:
    """Yield the last cells of a row of the table for each step."""
    rows = len(trained[0])
    updates = count_updates(rows, passes)
    deviation = find_deviation(neighbours, Budget(epsilon, DELTA), rows=rows, updates=updates)
    start = time.process_time()
    weights = descend(*trained, steps, deviation=deviation, updates=updates, rng=np.random.default_rng())
    seconds = time.process_time() - start
    for step, scores in zip(steps, score_models(*tested, weights), strict=True):
        yield f"{passes} | {step:g} | {scores['accuracy']:.3f} | {scores['log loss']:.3f} | {seconds:.0f}"


if __name__ == "__main__":
    main()
