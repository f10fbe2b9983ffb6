"""The minimiser of the loss plus a random linear term, precisely enough, for objective perturbation.

Everything is scans of the rows that sum a derivative. The minimum of a sample of the rows is found first, by scans that
are short, and the way of all rows begins there. Most steps are guessed (BFGS) from the Hessian of the sample and from
how the gradient changed along the steps before, at the cost of one scan each. A guess that does not
shorten the gradient by a quarter is dropped for a step of Newton's method, whose linear system conjugate gradients
solve: that one does, so that the method ends for every dataset. No value of the objective is needed, which would lose
half of its digits near the minimum.

A solver does not read rows: it asks for sums and waits for them, so that one scan can serve several solvers.

How many scans are made depends on the rows, as the run time does, which is outside the guarantee: nothing is reported
of them but that they are being made.

Proof: objective_perturbation.md 6
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from boltdp._arrays import Doubles
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import SolverError
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.loss_derivatives import MAX_HESSIAN_SLOTS, DerivativeSums
from boltdp.privacy.events.objective_perturbation import (
    MIN_STEP,
    SUM_GRID,
    check_objective,
    check_solvable,
    drawing_error,
    gradient_rounding,
    tolerance,
)
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.training_problem import Problem

Linear: TypeAlias = Callable[[Doubles], Doubles]
#: Asks for sums, goes on when they are there, and returns weights that are as private as the rows.
Solver: TypeAlias = Generator[DerivativeSums, None, Doubles]

#: The part of the gradient that a Newton step may leave.
MAX_NEWTON_REST = 0.1
#: The part of the gradient that a step may leave by the proof.
MAX_STEP_REST = 0.4
#: The limit of conjugate gradients' rounds for a step that leaves more, in units of the usual number.
MAX_ROUNDS = 10
#: The Hessian of the sample is summed again where a step leaves more than this part of the gradient
SLOW = 0.35
#: and at least this many steps were made with the last one.
OLD = 3
#: The number of remembered steps.
MAX_STEPS = 40
#: The largest number of cells of a sample: more of them tell little.
MAX_SAMPLED = 10_000_000
#: The largest share of the rows for which the minimum of the sample is found first.
MAX_SAMPLE = 0.25
#: The precision of that minimum, in units of the root of rows / share, by which a sample differs from all rows.
SAMPLE_PRECISION = 0.1
#: The largest number of features for which a matrix is factored.
MAX_FACTORED = 200
#: The largest size of all classes' matrices: 100 MB, as the kernel sums them.
MAX_NUMBERS = 4_000_000


def solve(prepared: PreparedRows, solvers: Sequence[Solver]) -> list[Doubles]:
    """What each solver finds; every scan serves all that wait."""
    solutions: dict[int, Doubles] = {}
    waiting: dict[int, DerivativeSums] = {}
    samples: dict[float, PreparedRows] = {}

    def resume(number: int) -> None:
        waiting.pop(number, None)
        try:
            waiting[number] = next(solvers[number])
        except StopIteration as end:
            solutions[number] = end.value

    # Matrices this small are factored sooner than several threads have solutions a processor each. A guess may be far
    # off, and a warning that it is would tell something of the rows.
    with (
        threadpool_limits(1, user_api="blas"),
        np.errstate(over="ignore", invalid="ignore", divide="ignore"),
        ExitStack() as held,
    ):
        for number in range(len(solvers)):
            resume(number)
        while waiting:
            # Those that wait for few rows first, so that a scan of all serves as many as can be.
            share = min(sums.share for sums in waiting.values())
            served = {number: sums for number, sums in waiting.items() if sums.share == share}
            if share < 1.0 and share not in samples:
                samples[share] = held.enter_context(prepared.sample_rows(share))
            samples.get(share, prepared).sum(list(served.values()))
            for number in served:
                resume(number)
    return [solutions[number] for number in range(len(solvers))]


def minimise(
    problem: Problem,
    linear: Doubles,
    *,
    noise: Mechanism | None,
    positive: int = 1,
    classes: int = 2,
    feature_map: FeatureMap | None = None,
) -> Solver:
    """A solver of the weights at which the gradient is certainly within the tolerance.

    `linear` is q, of shape (vectors, dims), and `noise` what it was drawn from. The objective is the sum of the losses
    plus (m*Lambda/2)*||w||^2 + <q, w>.

    >>> from boltdp.context import Context
    >>> from boltdp.engines.local_store import store_rows
    >>> from boltdp.losses import Logistic
    >>> rows = np.array([[1, 0.5], [0, -0.5]], dtype=np.float32)
    >>> problem = Problem(loss=Logistic(), dims=1, rows=2, regularization=0.1)
    >>> with store_rows([rows], rows=2, width=2, context=Context(seed=1)) as prepared:
    ...     solve(prepared, [minimise(problem, np.zeros((1, 1)), noise=None)])[0].round(4)
    array([[1.5675]])
    """
    check_objective(problem)
    check_solvable(problem, noise)
    strength = problem.rows * problem.regularization
    drawn, length = drawing_error(noise), float(np.linalg.norm(linear))
    few = choose_sample(problem, feature_map)
    new_sums = partial(
        DerivativeSums,
        problem.loss,
        positive=positive,
        classes=classes,
        class_weights=problem.class_weights,
        feature_map=feature_map,
    )

    def summed(weights: Doubles, **what: Any) -> Generator[DerivativeSums, None, Doubles]:
        sums = new_sums(weights, **what)
        yield sums
        # Rows that are alike are all in the sample or none of them is, so that it can be empty.
        return sums.value if sums.share == 1.0 else problem.rows / max(sums.rows, 1) * sums.value

    def at(weights: Doubles, share: float) -> Generator[DerivativeSums, None, _Point]:
        return _Point(weights, (yield from summed(weights, share=share)) + strength * weights + linear)

    def curvature(weights: Doubles, share: float, along: Doubles) -> Generator[DerivativeSums, None, Doubles]:
        return (yield from summed(weights, direction=along, share=share)) + strength * along

    def rough_inverse(weights: Doubles) -> Generator[DerivativeSums, None, Linear | None]:
        if not few:
            return None
        hessian = yield from summed(weights, hessian=True, share=few)
        return _rough_inverse(strength, hessian, unsure=problem.rows * SUM_GRID)

    def newton_move(
        point: _Point, known: _Curvature, share: float, left: float
    ) -> Generator[DerivativeSums, None, _Point]:
        """Along Newton's step as far as shortens the gradient: it always does so somewhere."""
        step = yield from _newton_step(
            partial(curvature, point.weights, share), known.roughly, point.slope, precision=left * point.left
        )
        size = 1.0
        while True:
            ahead = yield from at(point.weights + size * step, share)
            if ahead.left <= (1.0 - size / 4.0) * point.left:
                return ahead
            size /= 2.0
            if size < MIN_STEP:
                raise SolverError("the minimum could not be found to the precision that the privacy proof needs")

    def descend(point: _Point, share: float, within: float) -> Generator[DerivativeSums, None, _Point]:
        """From a point to one at which the gradient is certainly within the tolerance."""
        first, known = point.left, _Curvature((yield from rough_inverse(point.weights)), strength)
        while True:
            unsure = gradient_rounding(problem, weights=float(np.linalg.norm(point.weights)), noise=length) + drawn
            if 1.01 * point.left + unsure <= within:
                return point
            guess = point.weights - known.solved(point.slope)
            ahead = (yield from at(guess, share)) if np.isfinite(guess).all() else point
            if ahead.left <= 0.75 * point.left:
                known.learn(ahead.weights - point.weights, ahead.slope - point.slope)
                if ahead.left > SLOW * point.left and known.age >= OLD:
                    known.renew((yield from rough_inverse(ahead.weights)))
            elif known.age:
                known = _Curvature((yield from rough_inverse(point.weights)), strength)
                continue
            else:
                # Coarse far from the minimum, precise near it, and never more than is needed to end.
                left = max(
                    min(MAX_NEWTON_REST, math.sqrt(point.left / first)),
                    min(MAX_STEP_REST, 0.25 * within / point.left),
                )
                ahead = yield from newton_move(point, known, share, left)
                known.learn(ahead.weights - point.weights, ahead.slope - point.slope)
                known.renew((yield from rough_inverse(ahead.weights)))
            point = ahead

    within, origin = tolerance(problem, noise), np.zeros_like(linear)
    if not 0.0 < few <= MAX_SAMPLE:
        return (yield from descend((yield from at(origin, 1.0)), 1.0, within)).weights
    nearby = yield from descend(
        (yield from at(origin, few)), few, max(within, SAMPLE_PRECISION * math.sqrt(problem.rows / few))
    )
    point = yield from at(nearby.weights, 1.0)
    # The proof is of a gradient that is no longer than it can be at the origin.
    if not point.left <= problem.rows * problem.loss.lipschitz + length:
        point = yield from at(origin, 1.0)
    return (yield from descend(point, 1.0, within)).weights


class _Point:
    """Weights, the gradient there and its length."""

    def __init__(self, weights: Doubles, slope: Doubles) -> None:
        self.weights, self.slope, self.left = weights, slope, float(np.linalg.norm(slope))


class _Curvature:
    """What is known of the Hessian: roughly its inverse, or only its least eigenvalue, and how gradients changed.

    >>> known = _Curvature(lambda vector: vector, 1.0)
    >>> known.learn(np.array([1.0, 0.0]), np.array([4.0, 0.0]))
    >>> known.solved(np.array([4.0, 3.0]))
    array([1., 3.])
    """

    def __init__(self, inverse: Linear | None, least: float) -> None:
        self._inverse, self._least = inverse, least
        self.age = 0  #: steps since the rough inverse was that at the weights
        self._steps: list[tuple[Doubles, Doubles, float]] = []

    def renew(self, inverse: Linear | None) -> None:
        """Take another rough inverse, and keep what the steps tell."""
        self._inverse, self.age = inverse, 0

    def roughly(self, vector: Doubles) -> Doubles:
        """About the inverse of the Hessian times a vector, were there no steps."""
        if self._inverse is not None:
            return self._inverse(vector)
        if not self._steps:
            return vector / self._least
        _, change, product = self._steps[-1]
        return product / float(np.vdot(change, change)) * vector

    def learn(self, step: Doubles, change: Doubles) -> None:
        """Take note of how the gradient changed along a step."""
        self.age += 1
        product = float(np.vdot(step, change))
        # In exact arithmetic it is at least twice that; what rounding makes of a short step tells nothing.
        if product > 0.5 * self._least * float(np.vdot(step, step)):
            self._steps = [*self._steps[1 - MAX_STEPS :], (step, change, product)]

    def solved(self, slope: Doubles) -> Doubles:
        """About the inverse of the Hessian times the slope: BFGS, of all steps that are known."""
        shares: list[float] = []
        for step, change, product in reversed(self._steps):
            shares.append(float(np.vdot(step, slope)) / product)
            slope = slope - shares[-1] * change
        solution = self.roughly(slope)
        for (step, change, product), share in zip(self._steps, reversed(shares), strict=True):
            solution = solution + (share - float(np.vdot(change, solution)) / product) * step
        return solution


def choose_sample(problem: Problem, feature_map: FeatureMap | None = None) -> float:
    """The part of the rows that tells the shape of the Hessian well; 0 where factoring it takes longer than scans.

    >>> from boltdp.losses import Logistic
    >>> round(choose_sample(Problem(loss=Logistic(), dims=50, rows=10**6)), 3)
    0.042
    """
    slots = problem.dims if feature_map is None else feature_map.slots
    if problem.dims > MAX_FACTORED or slots > MAX_HESSIAN_SLOTS or problem.loss.vectors * slots**2 > MAX_NUMBERS:
        return 0.0
    return min(1.0, max(1000 + 40 * problem.dims, min(problem.rows // 24, MAX_SAMPLED // problem.dims)) / problem.rows)


def _newton_step(
    curvature: Callable[[Doubles], Generator[DerivativeSums, None, Doubles]],
    roughly: Linear,
    slope: Doubles,
    *,
    precision: float,
) -> Solver:
    """The step p with ||H p + slope|| <= precision, by conjugate gradients.

    `curvature` multiplies by H, `roughly` by about its inverse. In real arithmetic as many rounds as dimensions are
    enough. Rounding may ask for more: after twice as many, what the proof can bear is precise enough. A step that is
    less precise after all the rounds is a step all the same, which is taken only if it shortens the gradient.

    Proof: objective_perturbation.md 6
    """
    step, residual = np.zeros_like(slope), -slope
    along = better = roughly(residual)
    square = float(np.vdot(residual, better))
    usual, enough = 2 * slope.size + 10, MAX_STEP_REST * float(np.linalg.norm(slope))
    for rounds in range(1, MAX_ROUNDS * usual + 1):
        product = yield from curvature(along)
        rate = square / float(np.vdot(along, product))
        step = step + rate * along
        residual = residual - rate * product
        if float(np.linalg.norm(residual)) <= (precision if rounds < usual else enough):
            break
        better = roughly(residual)
        previous, square = square, float(np.vdot(residual, better))
        along = better + (square / previous) * along
    return step


def _rough_inverse(strength: float, hessian: Doubles, *, unsure: float) -> Linear:
    """Multiplication by about the inverse of the Hessian, one class at a time; its numbers are off by `unsure`."""

    def inverse_factor(block: Doubles) -> Doubles:
        # Rounding can leave a little less than nothing in a direction that no row has.
        rounding = len(block) * (2.0**-50 * float(np.trace(block)) + unsure)
        # Its square is symmetric and positive, however it is rounded, as conjugate gradients and BFGS need.
        return np.linalg.inv(np.linalg.cholesky(block + (strength + rounding) * np.eye(len(block))))

    factors = [inverse_factor(block) for block in hessian]

    def roughly(vector: Doubles) -> Doubles:
        solved = np.stack([(factor @ one) @ factor for factor, one in zip(factors, vector, strict=True)])
        # The classes' vectors sum to zero, and so must any step between them.
        return solved - solved.mean(axis=0) if len(solved) > 1 else solved

    return roughly
