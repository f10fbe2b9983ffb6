"""The worst that one row, or one person, can do, in few features: rows against each other, and others that let them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from boltdp._arrays import Floats, Integers
from boltdp.audit.audited_training import Stage, resized
from boltdp.audit.objective_density import Row
from boltdp.audit.synthetic_rows import ORDER
from boltdp.context import Context
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.noisy_gradient_descent import NoisyGradients
from boltdp.privacy.training_problem import Problem

#: Steps of the search for the worst, and how far they go in its first half and then.
STEPS, FAR, NEAR = 40, 0.5, 0.15
#: Places among the others that are tried.
PLACES = 8
#: A step of gradient descent that leaves the weights at zero, nearly.
SHORT_STEP = 1e-6


@dataclass(frozen=True)
class Opposed:
    """Two persons with rows of one class: those of the one have a first feature that is opposite to the other's.

    Where rows are protected, and not persons, it is one row against another. The others are all alike, but that some
    may be turned around and of another class. They drive the weights to where both persons' rows are wrong: then these
    pull with all their force, whatever the noise does. Short ones drive the weights farther, and those that lean to the
    first feature let the noise do it.
    """

    label: int = 1  #: the class of the rows that differ: none weighs more
    rival: int = 0  #: the class that they are to be taken for
    angle: float = 0.0  #: of these rows to the first feature, to either side
    length: float = 0.0  #: of the others: 0 is neutral
    lean: float = math.pi / 2  #: of the others to the first feature
    rivals: float = 0.0  #: the share of the others that are of the rival class
    turned: int | None = None  #: the class of the rest of them, which are turned around; None: as the rows that differ
    count: int = 1  #: rows of a person
    place: float = 1.0  #: of these among all rows, from 0 to 1
    spread: bool = False  #: whether they are far from each other

    def __str__(self) -> str:
        rows = "two rows" if self.count == 1 else f"{self.count} rows and {self.count} others"
        apart = f"{rows} {math.degrees(math.pi - 2 * self.angle):.0f} degrees apart"
        return f"{apart}, all wrong" if self.length > 0 else apart

    @property
    def differing(self) -> tuple[Row, Row]:
        """A row of the one, and a row of the other."""
        along, across = math.cos(self.angle), math.sin(self.angle)
        return (self.label, np.array([along, across])), (self.label, np.array([-along, across]))

    @property
    def others(self) -> tuple[Row, Row]:
        """A row of the rival class, and one that is turned around."""
        along = self.length * np.array([math.cos(self.lean), math.sin(self.lean)])
        return (self.rival, along), (self.label if self.turned is None else self.turned, -along)

    def places(self, rows: int) -> Integers:
        """Where the rows of a person are."""
        count = min(self.count, rows)
        if self.spread:
            return np.arange(count) * rows // count + round(self.place * (rows // count - 1))
        return np.arange(count) + round(self.place * (rows - count))

    def rows(self, rows: int, *, dims: int) -> tuple[Floats, Floats]:
        """Both datasets, as the kernel reads them: the class, then the features."""

        def packed(row: Row) -> Floats:
            label, features = row
            found = np.zeros(1 + dims, np.float32)
            found[0], found[1:3] = label, features[:dims]
            return found

        number = np.arange(rows)
        rival = np.floor((number + 1) * self.rivals) > np.floor(number * self.rivals)
        table = np.where(rival[:, None], *(packed(row) for row in self.others))
        tables = []
        for row in self.differing:
            table = table.copy()
            table[self.places(rows)] = packed(row)
            tables.append(table)
        return tables[0], tables[1]


def classes_of(problem: Problem) -> int:
    """As many as rows of it may have, at least."""
    return max(2, problem.loss.vectors, len(problem.class_weights or ()))


def opposed(problem: Problem) -> Opposed:
    """Rows against each other of the class that weighs most, as many as a person has that count.

    >>> from boltdp.losses import Logistic
    >>> pair = opposed(Problem(loss=Logistic(), dims=2, rows=9, class_weights=(1.0, 0.2), person_rows=3))
    >>> pair.label, pair.rival, pair.count
    (0, 1, 3)
    """
    label, rival, *_ = _by_weight(problem)
    return Opposed(label=label, rival=rival, count=min(problem.person_rows or 1, problem.rows))


def _by_weight(problem: Problem) -> list[int]:
    """The heaviest class, and then those that its rows can be taken for."""
    weights = problem.class_weights or (1.0,) * classes_of(problem)
    first, *others = sorted(range(len(weights)), key=lambda label: (-weights[label], label != 1))
    # A model with one vector tells the second class from all others.
    return [first, *(one for one in others if problem.loss.vectors > 1 or 1 in (first, one))]


#: Where a search begins: the angle of the rows that differ, and the length of the others.
STARTS = ((0.0, 0.0), (0.1, 1.0), (0.3, 1.0), (0.5, 1.0), (0.2, 0.3), (0.4, 0.3))
#: And, where they lean: the angle of the rows that differ, and the lean of the others.
LEANING = ((0.2, 0.04), (0.3, 0.1), (0.5, 0.3))

Move: TypeAlias = Callable[[Opposed, np.random.Generator, float], Opposed]


def worst(
    harm: Callable[[Opposed], float],
    problem: Problem,
    *,
    random: np.random.Generator,
    also: Move | None = None,
    steps: int = STEPS,
) -> Opposed:
    """The pair that does most harm, by climbing from the best of a few; `also` is tried, where it matters.

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=2, rows=9)
    >>> round(worst(lambda pair: -abs(pair.angle - 0.2), problem, random=np.random.default_rng(1)).angle, 1)
    0.2
    """
    first, (_, _, *more), several = opposed(problem), _by_weight(problem), problem.loss.vectors > 1
    starts = [replace(first, angle=angle, length=length) for angle, length in STARTS]
    if also is leant:
        starts += [replace(first, angle=angle, length=1.0, lean=lean) for angle, lean in LEANING]
    starts = [replace(start, rivals=rivals) for start in starts for rivals in ((1.0, 0.5) if several else (0.0,))]
    if several and more:
        # Between two classes, to either side: one feature is enough.
        between = replace(first, lean=0.0, rivals=0.5, turned=more[0])
        starts += [replace(between, length=length) for length in (0.3, 1.0)]
    moves: list[Move] = [widened, stretched, *([] if also is None else [also]), *([mixed] if several else [])]
    found = [harm(start) for start in starts]
    most = max(found)
    best = starts[found.index(most)]
    for step in range(steps):
        tried = moves[step % len(moves)](best, random, FAR if step < steps // 2 else NEAR)
        if tried != best and (reached := harm(tried)) > most:
            best, most = tried, reached
    return best


def widened(pair: Opposed, random: np.random.Generator, far: float) -> Opposed:
    """With rows that differ at another angle."""
    return replace(pair, angle=min(max(pair.angle, 0.01) * math.exp(far * random.standard_normal()), 1.4))


def stretched(pair: Opposed, random: np.random.Generator, far: float) -> Opposed:
    """With shorter or longer others."""
    return replace(pair, length=min(pair.length * math.exp(far * random.standard_normal()), 1.0))


def leant(pair: Opposed, random: np.random.Generator, far: float) -> Opposed:
    """With others that lean otherwise: only where the noise has no bound."""
    return replace(pair, lean=min(pair.lean * math.exp(far * random.standard_normal()), 2.0))


def mixed(pair: Opposed, random: np.random.Generator, far: float) -> Opposed:
    """With more or less of the others in the rival class."""
    return replace(pair, rivals=float(np.clip(pair.rivals + far * random.standard_normal(), 0.0, 1.0)))


def placed(pair: Opposed, random: np.random.Generator, _: float) -> Opposed:
    """With rows that differ at other places: only where the order matters."""
    place = float(random.integers(PLACES + 1)) / PLACES
    return replace(pair, place=place, spread=pair.count > 1 and bool(random.integers(2)))


def small(stage: Stage, *, rows: int, dims: int = 2, scans: int | None = None) -> Training:
    """The training of a stage with few features, and enough rows for a person.

    Gradients that are as long as the clip at weights of zero stay so if the steps are short, which no guarantee depends
    on: then nothing that is released in one scan lets a later one tell less.
    """
    event = stage.event
    assert isinstance(event, Training)
    problem, step = event.problem, None
    if isinstance(event, NoisyGradients) and at_zero(problem) >= event.clip:
        step = SHORT_STEP
    rows = max(rows, min(2 * (problem.person_rows or 1), problem.rows))
    return resized(event, stage.budget, rows=rows, dims=min(dims, problem.dims), scans=scans, step=step)


def at_zero(problem: Problem) -> float:
    """How long the gradient of a row of length 1 is, at weights of zero."""
    pair = opposed(problem)
    return float(np.linalg.norm(problem.loss.slopes(np.zeros(problem.loss.vectors), pair.label, positive=1)))


def certified(event: Training, budget: Budget) -> Certificate:
    """The certificate of such a training alone."""
    return Certificate(budget=budget, spent=event)


def prepared(rows: Floats) -> PreparedRows:
    """The rows, ready for training."""
    from boltdp.engines.local_store import store_rows

    context = Context(seed=ORDER, threads=1)
    return store_rows([rows], rows=len(rows), width=rows.shape[1], context=context, in_memory=True)
