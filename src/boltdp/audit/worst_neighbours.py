"""The worst neighbouring datasets of one row or one person, in few features, by a random search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np

from boltdp._array_types import Doubles, Floats, Integers
from boltdp.algorithms import ALGORITHMS, Job
from boltdp.audit.neighbouring_tables import ORDER
from boltdp.audit.objective_density import Row
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients
from boltdp.privacy.events.objective_perturbation import make_objective_perturbation
from boltdp.privacy.release_with_noise import Randomness
from boltdp.privacy.training_problem import Problem
from boltdp.run_context import Context

T = TypeVar("T", bound=Training)

#: Steps of the search, and their size in its first and its second half.
STEPS, FAR, NEAR = 40, 0.5, 0.15
#: Positions of the rows that differ, between the first and the last, that are tried.
PLACES = 8
#: A step size of gradient descent that leaves the weights close to zero.
SHORT_STEP = 1e-6
#: Starts of the search: the angle of the rows that differ, and the norm of the other rows.
STARTS = ((0.0, 0.0), (0.1, 1.0), (0.3, 1.0), (0.5, 1.0), (0.2, 0.3), (0.4, 0.3))
#: Another one, for noise so strong that only short rows drive the weights far enough.
STRONG_NOISE = (0.4, 0.03)
#: More starts for `tilt_others`: the angle of the rows that differ, and that of the other rows.
TILTED_STARTS = ((0.2, 0.04), (0.3, 0.1), (0.5, 0.3))


@dataclass(frozen=True)
class OpposedPair:
    """Two persons with rows of one class, whose first features are opposite; or two rows, where rows are protected.

    The other rows are equal, except that some may be negated and of another class. They drive the weights to where the
    rows that differ are misclassified, so that these have gradients of maximum norm whatever the noise is. Short rows
    drive the weights farther; with rows close to the first axis, the noise does so.
    """

    label: int = 1  #: the class of the rows that differ: the one with the largest weight
    rival: int = 0  #: the class that is predicted for them
    angle: float = 0.0  #: between these rows and the first axis
    length: float = 0.0  #: the norm of the other rows; 0 is neutral
    lean: float = math.pi / 2  #: the angle between the other rows and the first axis
    rivals: float = 0.0  #: the share of the other rows that are of the rival class
    turned: int | None = None  #: the class of the rest, which are negated; None: that of the rows that differ
    count: int = 1  #: rows of a person
    place: float = 1.0  #: position of these among all rows, from 0 to 1
    spread: bool = False  #: whether they are far from each other

    def __str__(self) -> str:
        rows = "two rows" if self.count == 1 else f"{self.count} rows and {self.count} others"
        apart = f"{rows} {math.degrees(math.pi - 2 * self.angle):.0f} degrees apart"
        return f"{apart}, all wrong" if self.length > 0 else apart

    @property
    def differing_rows(self) -> tuple[Row, Row]:
        """The row that only the first dataset has, and the one that only the second has."""
        along, across = math.cos(self.angle), math.sin(self.angle)
        return (self.label, np.array([along, across])), (self.label, np.array([-along, across]))

    @property
    def others(self) -> tuple[Row, Row]:
        """The rows that both datasets have: one of the rival class, and a negated one."""
        along = self.length * np.array([math.cos(self.lean), math.sin(self.lean)])
        return (self.rival, along), (self.label if self.turned is None else self.turned, -along)

    def find_changed_positions(self, rows: int) -> Integers:
        count = min(self.count, rows)
        if self.spread:
            return np.arange(count) * rows // count + round(self.place * (rows // count - 1))
        return np.arange(count) + round(self.place * (rows - count))

    def make_datasets(self, problem: Problem) -> list[Floats]:
        """Return both datasets as packed rows: the class, then the features."""

        def pack_row(row: Row) -> Floats:
            label, features = row
            found = np.zeros(1 + problem.dims, np.float32)
            found[0], found[1:3] = label, features[: problem.dims]
            return found

        number = np.arange(problem.rows)
        rival = np.floor((number + 1) * self.rivals) > np.floor(number * self.rivals)
        tables = [np.where(rival[:, None], *(pack_row(row) for row in self.others)) for _ in range(2)]
        for table, row in zip(tables, self.differing_rows, strict=True):
            table[self.find_changed_positions(problem.rows)] = pack_row(row)
        return tables


def count_classes(problem: Problem) -> int:
    """Return the number of classes of a problem, at least two."""
    return max(2, problem.loss.vector_count, len(problem.class_weights or ()))


def make_opposed_pair(problem: Problem) -> OpposedPair:
    """Return a pair that differs in rows of the class with the largest weight: one row, or all of a person."""
    label, rival, *_ = _order_classes(problem)
    return OpposedPair(label=label, rival=rival, count=min(problem.person_rows or 1, problem.rows))


def _order_classes(problem: Problem) -> list[int]:
    """List the class with the largest weight, then the classes that some weight vector separates from it."""
    weights = problem.class_weights or (1.0,) * count_classes(problem)
    first, *others = sorted(range(len(weights)), key=lambda label: (-weights[label], label != 1))
    # A model with one vector separates the second class from all others.
    return [first, *(one for one in others if problem.loss.vector_count > 1 or 1 in (first, one))]


Move: TypeAlias = Callable[[OpposedPair, np.random.Generator, float], OpposedPair]


def find_worst_pair(
    harm: Callable[[OpposedPair], float],
    problem: Problem,
    *,
    random: np.random.Generator,
    extra_move: Move | None = None,
    steps: int = STEPS,
    more: Sequence[tuple[float, float]] = (),
) -> OpposedPair:
    """Return the neighbouring datasets that maximize `harm`, by hill climbing with the usual moves and `extra_move`.

    `more` are starts beside the usual ones.
    """
    first, (_, _, *others), several = make_opposed_pair(problem), _order_classes(problem), problem.loss.vector_count > 1
    starts = [replace(first, angle=angle, length=length) for angle, length in (*STARTS, *more)]
    if extra_move is tilt_others:
        starts += [replace(first, angle=angle, length=1.0, lean=lean) for angle, lean in TILTED_STARTS]
    starts = [replace(start, rivals=rivals) for start in starts for rivals in ((1.0, 0.5) if several else (0.0,))]
    if several and others:
        # The predictions are between two classes: one feature is enough.
        between = replace(first, lean=0.0, rivals=0.5, turned=others[0])
        starts += [replace(between, length=length) for length in (0.3, 1.0)]
    moves: list[Move] = [change_angle, scale_others]
    moves += ([] if extra_move is None else [extra_move]) + ([mix_classes] if several else [])
    found = [harm(start) for start in starts]
    most = max(found)
    best = starts[found.index(most)]
    for step in range(steps):
        tried = moves[step % len(moves)](best, random, FAR if step < steps // 2 else NEAR)
        if tried != best and (reached := harm(tried)) > most:
            best, most = tried, reached
    return best


def change_angle(pair: OpposedPair, random: np.random.Generator, far: float) -> OpposedPair:
    """Change the angle of the rows in which the neighbouring datasets differ."""
    return replace(pair, angle=min(max(pair.angle, 0.01) * math.exp(far * random.standard_normal()), 1.4))


def scale_others(pair: OpposedPair, random: np.random.Generator, far: float) -> OpposedPair:
    """Change the norm of the rows that both neighbouring datasets have."""
    return replace(pair, length=min(pair.length * math.exp(far * random.standard_normal()), 1.0))


def tilt_others(pair: OpposedPair, random: np.random.Generator, far: float) -> OpposedPair:
    """Change the angle of the rows that both datasets have: only for pure differential privacy."""
    return replace(pair, lean=min(pair.lean * math.exp(far * random.standard_normal()), 2.0))


def mix_classes(pair: OpposedPair, random: np.random.Generator, far: float) -> OpposedPair:
    """Change the share of the rival class among the rows that both datasets have."""
    return replace(pair, rivals=float(np.clip(pair.rivals + far * random.standard_normal(), 0.0, 1.0)))


def move_changed_rows(pair: OpposedPair, random: np.random.Generator, _: float) -> OpposedPair:
    """Change the positions of the rows in which the datasets differ: only where the order of rows matters."""
    place = float(random.integers(PLACES + 1)) / PLACES
    return replace(pair, place=place, spread=pair.count > 1 and bool(random.integers(2)))


def shrink_training(
    event: T, budget: Budget, *, rows: int, dims: int = 2, scans: int | None = None, other_mu: float = 0.0
) -> T:
    """Return the same training for few features and rows, with noise calibrated to the budget.

    Of objective perturbation, Gaussian mechanisms of mu `other_mu` share the budget.

    Where gradients at weights of zero have at least the clip norm, short steps keep them there in every scan; no
    guarantee depends on the step size.
    """
    problem, changed = event.problem, event
    if isinstance(event, NoisyGradients):
        label = make_opposed_pair(problem).label
        # Of a row of norm 1, at weights of zero.
        gradient = problem.loss.compute_slopes(np.zeros(problem.loss.vector_count), label, positive=1)
        step = SHORT_STEP if float(np.linalg.norm(gradient)) >= event.clip else event.step
        changed = replace(event, step=step, scans=event.scans if scans is None else min(scans, event.scans))
    rows = max(rows, min(2 * (problem.person_rows or 1), problem.rows))
    small = ALGORITHMS[event.algorithm].resize(changed, budget, rows=rows, dims=min(dims, problem.dims))
    if other_mu:
        small = make_objective_perturbation(small.problem, budget, other_mu=other_mu)
    assert isinstance(small, type(event))
    return small


def run_training(event: Training, budget: Budget, rows: Floats, *, count: int = 1) -> list[Doubles]:
    """Train `count` times on packed rows, and return the weights of each training before their release."""
    from boltdp.engines.local_store import store_rows

    context, job = Context(seed=ORDER, threads=1), Job(Certificate(budget=budget, spent=event), Randomness())
    with store_rows([rows], rows=len(rows), width=rows.shape[1], context=context, in_memory=True) as held:
        classes = count_classes(event.problem)
        return ALGORITHMS[event.algorithm].run(held, [job] * count, classes=classes, context=context)
