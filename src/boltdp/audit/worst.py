"""The worst that one row can do, in few features: two rows against each other, and others that let them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from boltdp.algorithms.shared.base import with_problem
from boltdp.arraytypes import Doubles, Floats
from boltdp.audit.subject import Stage, resized
from boltdp.audit.tables import ORDER
from boltdp.context import Context
from boltdp.engines.prepared import Prepared
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events import Training
from boltdp.privacy.gradients import NoisyGradients
from boltdp.privacy.recipe import Problem

#: Steps of the search for the worst.
STEPS = 14
#: Places among the others that are tried.
PLACES = 8
#: A step of gradient descent that leaves the weights at zero, nearly.
SHORT_STEP = 1e-6


@dataclass(frozen=True)
class Opposed:
    """Two rows of the second class with opposite first features; or one row of the second class, or of the first.

    The others, all alike and of the first class, drive the weights along the second feature to where both rows are
    wrong: then both pull with all their force, whatever the noise does.
    """

    angle: float = 0.3  #: of the two rows to the first feature
    loud: float = 1.0  #: the share of the others that are not neutral
    flipped: bool = False  #: whether only the class differs
    place: float = 1.0  #: among all rows, from 0 to 1

    def __str__(self) -> str:
        if self.flipped:
            return "a row of one class or of the other"
        return f"two rows {math.degrees(math.pi - 2 * self.angle):.0f} degrees apart, both wrong"

    def rows(self, rows: int, *, dims: int) -> tuple[Floats, Floats]:
        """Both data sets, as the kernel reads them: the class, then the features."""
        shared = np.zeros((rows, 1 + dims), np.float32)
        if dims > 1:
            shared[: round(self.loud * rows), 2] = 1.0
        one, other = shared.copy(), shared
        place = round(self.place * (rows - 1))
        along = 1.0 if self.flipped or dims == 1 else math.cos(self.angle)
        across = 0.0 if self.flipped or dims == 1 else math.sin(self.angle)
        for table, side in ((one, 1), (other, -1)):
            row = np.zeros(1 + dims, np.float32)
            row[0] = 1.0 if not self.flipped or side > 0 else 0.0
            row[1] = along if self.flipped else side * along
            if dims > 1:
                row[2] = across
            table[place] = row
        return one, other

    def features(self) -> tuple[tuple[int, Doubles], tuple[int, Doubles]]:
        """The two rows, in two features."""
        one, other = self.rows(1, dims=2)
        return (int(one[0, 0]), one[0, 1:].astype(float)), (int(other[0, 0]), other[0, 1:].astype(float))


STARTS = (
    Opposed(1e-3, loud=0.0),
    Opposed(0.1),
    Opposed(0.3),
    Opposed(0.5),
    Opposed(loud=0.0, flipped=True),
    Opposed(loud=0.0, flipped=True, place=0.0),
)


def worst(harm: Callable[[Opposed], float], *, random: np.random.Generator, steps: int = STEPS) -> Opposed:
    """The pair that does most harm, by climbing from the best of a few.

    >>> round(worst(lambda pair: -abs(pair.angle - 0.2), random=np.random.default_rng(1)).angle, 1)
    0.2
    """
    best = max(STARTS, key=harm)
    most = harm(best)
    for step in range(steps):
        if best.flipped or step % 3 == 2:
            tried = replace(best, place=float(random.integers(PLACES + 1)) / PLACES)
        else:
            tried = replace(
                best, angle=float(np.clip(best.angle * math.exp(0.4 * random.standard_normal()), 0.01, 1.4))
            )
        found = harm(tried)
        if found > most:
            best, most = tried, found
    return best


def small(stage: Stage, *, rows: int, dims: int = 2, scans: int | None = None) -> Training:
    """The training of a stage with few features, all classes weighing the same.

    Gradients that are as long as the clip at weights of zero stay so if the steps are short, which no promise depends
    on: then nothing that is released in one scan lets a later one tell less.
    """
    event = stage.event
    assert isinstance(event, Training)
    problem, step = replace(event.problem, class_weights=None), None
    if isinstance(event, NoisyGradients) and at_zero(problem) >= event.clip:
        step = SHORT_STEP
    event = with_problem(event, problem)
    return resized(event, stage.budget, rows=rows, dims=min(dims, problem.dims), scans=scans, step=step)


def at_zero(problem: Problem) -> float:
    """How long the gradient of a row of length 1 is, at weights of zero."""
    return float(np.linalg.norm(problem.loss.slopes(np.zeros(problem.loss.vectors), 1, positive=1)))


def certified(event: Training, budget: Budget) -> Certificate:
    """The certificate of such a training alone."""
    return Certificate(budget=budget, spent=event)


def prepared(rows: Floats) -> Prepared:
    """The rows, ready for training."""
    from boltdp.engines.spool import spool

    context = Context(seed=ORDER, threads=1)
    return spool([rows], rows=len(rows), width=rows.shape[1], context=context, in_memory=True)
