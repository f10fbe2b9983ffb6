"""The minimiser of the loss plus a random linear term, to the precision that objective perturbation needs.

All work is done in scans of the rows that sum a derivative. The minimum over a sample of the rows is found first, in
short scans, and is the starting point for all rows. Most steps are quasi-Newton (BFGS), with the Hessian of the sample
as the initial matrix, and cost one scan each. A step that does not shorten the gradient by a quarter is replaced by a
Newton step, solved by conjugate gradients, with a line search: it always shortens the gradient, so that the method
ends for every dataset. The value of the objective is not needed; it would lose half of its digits near the minimum.

A solver does not read rows: it yields the sums that it needs, so that one scan can serve several solvers.

The number of scans depends on the rows, as the run time does, which is outside the guarantee; it is not reported.

Proof: objective_perturbation.md 6
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from boltdp._array_types import Doubles
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import SolverError
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.loss_derivatives import MAX_HESSIAN_SLOTS, DerivativeSums
from boltdp.privacy.events.objective_perturbation import (
    MIN_KINKED_STEP,
    MIN_STEP,
    SUM_GRID,
    bound_gradient_rounding,
    bound_grid_error,
    check_objective,
    check_solvable,
    choose_gradient_tolerance,
)
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.training_problem import Problem

Linear: TypeAlias = Callable[[Doubles], Doubles]
#: Yields the sums that it needs, and returns weights that are as sensitive as the rows.
Solver: TypeAlias = Generator[DerivativeSums, None, Doubles]

#: The largest residual of a Newton step, relative to the gradient.
MAX_NEWTON_RESIDUAL = 0.1
#: The largest residual for which the proof holds, relative to the gradient.
MAX_PROVED_RESIDUAL = 0.4
#: The largest number of rounds of conjugate gradients, in units of the usual number.
MAX_ROUNDS = 10
#: The number of Newton steps, where slopes have kinks, that lower the objective but do not shorten the gradient.
MAX_FALLS = 200
#: The Hessian of the sample is summed again after a step that leaves more than this part of the gradient,
SLOW_DECREASE = 0.35
#: if at least this many steps were made with the last one.
MIN_HESSIAN_AGE = 3
#: The largest number of steps that BFGS remembers.
MAX_STEPS = 40
#: The largest number of cells of a sample.
MAX_SAMPLED = 10_000_000
#: The largest share of the rows for which the minimum of the sample is found first.
MAX_SAMPLE = 0.25
#: The precision of that minimum, in units of the root of rows / share, by which a sample differs from all rows.
SAMPLE_PRECISION = 0.1
#: The largest number of features for which a matrix is factored.
MAX_FACTORED = 1024
#: The largest size of all classes' matrices: 100 MB, as the kernel sums them.
MAX_NUMBERS = 4_000_000


def run_solvers(prepared: PreparedRows, solvers: Sequence[Solver]) -> list[Doubles]:
    """Run solvers of objective perturbation in shared scans of the rows, and return the weights that each finds."""
    solutions: dict[int, Doubles] = {}
    waiting: dict[int, DerivativeSums] = {}
    samples: dict[float, PreparedRows] = {}

    def resume_solver(number: int) -> None:
        """Run a solver until it needs further sums, or has found its weights."""
        waiting.pop(number, None)
        try:
            waiting[number] = next(solvers[number])
        except StopIteration as end:
            solutions[number] = end.value

    # Matrices this small are factored faster by one thread. A step may overflow, and a warning about it would reveal
    # something about the rows.
    with (
        threadpool_limits(1, user_api="blas"),
        np.errstate(over="ignore", invalid="ignore", divide="ignore"),
        ExitStack() as stack,
    ):
        for number in range(len(solvers)):
            resume_solver(number)
        while waiting:
            # Small samples first, so that a scan of all rows serves as many solvers as possible.
            share = min(sums.share for sums in waiting.values())
            served = {number: sums for number, sums in waiting.items() if sums.share == share}
            if share < 1.0 and share not in samples:
                samples[share] = stack.enter_context(prepared.open_sample(share))
            samples.get(share, prepared).add_to_sums(list(served.values()))
            for number in served:
                resume_solver(number)
    return [solutions[number] for number in range(len(solvers))]


def make_objective_solver(
    problem: Problem,
    linear: Doubles,
    *,
    noise: Mechanism | None,
    positive: int = 1,
    classes: int = 2,
    feature_map: FeatureMap | None = None,
) -> Solver:
    """Return a solver for the minimiser of the perturbed objective, to the precision that the privacy proof needs.

    `linear` is q, of shape (vectors, dims), and `noise` the mechanism it was drawn from. The objective is the sum of
    the losses plus (m*Lambda/2)*||w||^2 + <q, w>.
    """
    check_objective(problem)
    check_solvable(problem, noise)
    kinks, falls, failures = problem.loss.simplex.kink_curvature is not None, iter(range(MAX_FALLS)), count()
    strength = problem.rows * problem.regularization
    draw_error, linear_norm = bound_grid_error(noise), float(np.linalg.norm(linear))
    sample_share = choose_sample_share(problem, feature_map)
    make_sums = partial(
        DerivativeSums,
        problem.loss,
        positive=positive,
        classes=classes,
        class_weights=problem.class_weights,
        feature_map=feature_map,
    )

    def sum_derivative(weights: Doubles, **what: Any) -> Generator[DerivativeSums, None, Doubles]:
        sums = make_sums(weights, **what)
        yield sums
        # Identical rows are all in the sample or none of them is, so that it can be empty.
        return sums.value if sums.share == 1.0 else problem.rows / max(sums.rows, 1) * sums.value

    def evaluate(weights: Doubles, share: float) -> Generator[DerivativeSums, None, _Iterate]:
        return _Iterate(weights, (yield from sum_derivative(weights, share=share)) + strength * weights + linear)

    def multiply_hessian(weights: Doubles, share: float, vector: Doubles) -> Generator[DerivativeSums, None, Doubles]:
        return (yield from sum_derivative(weights, direction=vector, share=share)) + strength * vector

    def invert_sample_hessian(weights: Doubles) -> Generator[DerivativeSums, None, Linear | None]:
        if not sample_share:
            return None
        hessian = yield from sum_derivative(weights, hessian=True, share=sample_share)
        return _approximate_inverse(strength, hessian, unsure=problem.rows * SUM_GRID)

    def make_newton_step(
        point: _Iterate, curvature: _Curvature, share: float, residual: float
    ) -> Generator[DerivativeSums, None, _Iterate]:
        """Make a Newton step with a backtracking line search on the norm of the gradient.

        Where slopes have kinks the search may find none. Up to a number of times it then takes a step along which the
        objective falls; after that it makes steps along the gradient, twice as many as the last time.
        """
        step = yield from _solve_newton_step(
            partial(multiply_hessian, point.weights, share),
            curvature.precondition,
            point.gradient,
            precision=residual * point.norm,
        )
        size = 1.0
        while True:
            ahead = yield from evaluate(point.weights + size * step, share)
            if ahead.norm <= (1.0 - size / 4.0) * point.norm:
                return ahead
            # The objective is convex: it has its minimum along the step further on.
            if kinks and float(np.vdot(ahead.gradient, step)) <= 0.0 and next(falls, None) is not None:
                return ahead
            size /= 2.0
            if kinks and size < MIN_KINKED_STEP:
                for _ in range(2 ** next(failures)):
                    along = point.gradient / (problem.rows * problem.loss.smoothness + strength)
                    point = yield from evaluate(point.weights - along, share)
                return point
            if size < MIN_STEP:
                raise SolverError("the minimum could not be found to the precision that the privacy proof needs")

    def descend(point: _Iterate, share: float, limit: float) -> Generator[DerivativeSums, None, _Iterate]:
        """Descend to a point at which the norm of the gradient, with all rounding errors, is at most `limit`."""
        first, curvature = point.norm, _Curvature((yield from invert_sample_hessian(point.weights)), strength)
        while True:
            weights_norm = float(np.linalg.norm(point.weights))
            error = bound_gradient_rounding(problem, weights=weights_norm, noise=linear_norm) + draw_error
            if 1.01 * point.norm + error <= limit:
                return point
            guess = point.weights - curvature.solve(point.gradient)
            ahead = (yield from evaluate(guess, share)) if np.isfinite(guess).all() else point
            if ahead.norm <= 0.75 * point.norm:
                curvature.update(ahead.weights - point.weights, ahead.gradient - point.gradient)
                if ahead.norm > SLOW_DECREASE * point.norm and curvature.age >= MIN_HESSIAN_AGE:
                    curvature.replace_inverse((yield from invert_sample_hessian(ahead.weights)))
            elif curvature.age:
                curvature = _Curvature((yield from invert_sample_hessian(point.weights)), strength)
                continue
            else:
                # Coarse far from the minimum, precise near it, and never more precise than the limit needs.
                residual = max(
                    min(MAX_NEWTON_RESIDUAL, math.sqrt(point.norm / first)),
                    min(MAX_PROVED_RESIDUAL, 0.25 * limit / point.norm),
                )
                ahead = yield from make_newton_step(point, curvature, share, residual)
                curvature.update(ahead.weights - point.weights, ahead.gradient - point.gradient)
                curvature.replace_inverse((yield from invert_sample_hessian(ahead.weights)))
            point = ahead

    limit, origin = choose_gradient_tolerance(problem, noise), np.zeros_like(linear)
    if not 0.0 < sample_share <= MAX_SAMPLE:
        return (yield from descend((yield from evaluate(origin, 1.0)), 1.0, limit)).weights
    sample_limit = max(limit, SAMPLE_PRECISION * math.sqrt(problem.rows / sample_share))
    sample_minimum = yield from descend((yield from evaluate(origin, sample_share)), sample_share, sample_limit)
    point = yield from evaluate(sample_minimum.weights, 1.0)
    # The proof assumes a gradient whose norm is at most the largest possible one at the origin.
    if not point.norm <= problem.rows * problem.loss.lipschitz + linear_norm:
        point = yield from evaluate(origin, 1.0)
    return (yield from descend(point, 1.0, limit)).weights


class _Iterate:
    """Weights, the gradient of the noisy objective there, and its norm."""

    def __init__(self, weights: Doubles, gradient: Doubles) -> None:
        self.weights, self.gradient, self.norm = weights, gradient, float(np.linalg.norm(gradient))


class _Curvature:
    """The BFGS approximation of the inverse Hessian: an initial inverse and the latest steps.

    Without an initial inverse only the smallest eigenvalue of the Hessian is known.
    """

    def __init__(self, inverse: Linear | None, smallest_eigenvalue: float) -> None:
        self._inverse, self._smallest_eigenvalue = inverse, smallest_eigenvalue
        self.age = 0  #: steps since the initial inverse was computed
        self._steps: list[tuple[Doubles, Doubles, float]] = []

    def replace_inverse(self, inverse: Linear | None) -> None:
        self._inverse, self.age = inverse, 0

    def precondition(self, vector: Doubles) -> Doubles:
        """Return the product of the initial inverse Hessian and a vector."""
        if self._inverse is not None:
            return self._inverse(vector)
        if not self._steps:
            return vector / self._smallest_eigenvalue
        _, change, product = self._steps[-1]
        return product / float(np.vdot(change, change)) * vector

    def update(self, step: Doubles, change: Doubles) -> None:
        """Add a step, and the change of the gradient along it, to the approximation of the inverse Hessian."""
        self.age += 1
        product = float(np.vdot(step, change))
        # In exact arithmetic it is at least twice that; a smaller product of a short step is a rounding error.
        if product > 0.5 * self._smallest_eigenvalue * float(np.vdot(step, step)):
            self._steps = [*self._steps[1 - MAX_STEPS :], (step, change, product)]

    def solve(self, gradient: Doubles) -> Doubles:
        """Return the product of the approximate inverse Hessian and the gradient, by the two-loop recursion of BFGS."""
        shares: list[float] = []
        for step, change, product in reversed(self._steps):
            shares.append(float(np.vdot(step, gradient)) / product)
            gradient = gradient - shares[-1] * change
        solution = self.precondition(gradient)
        for (step, change, product), share in zip(self._steps, reversed(shares), strict=True):
            solution = solution + (share - float(np.vdot(change, solution)) / product) * step
        return solution


def choose_sample_share(problem: Problem, feature_map: FeatureMap | None = None) -> float:
    """Return the share of the rows that approximates the Hessian well; 0 if scans are faster than factoring it."""
    slots = problem.dims if feature_map is None else feature_map.slots
    if problem.dims > MAX_FACTORED or slots > MAX_HESSIAN_SLOTS or problem.loss.vector_count * slots**2 > MAX_NUMBERS:
        return 0.0
    return min(1.0, max(1000 + 40 * problem.dims, min(problem.rows // 24, MAX_SAMPLED // problem.dims)) / problem.rows)


def _solve_newton_step(
    multiply_hessian: Callable[[Doubles], Generator[DerivativeSums, None, Doubles]],
    precondition: Linear,
    gradient: Doubles,
    *,
    precision: float,
) -> Solver:
    """Return a step p with ||H p + gradient|| <= precision, by preconditioned conjugate gradients.

    In exact arithmetic as many rounds as dimensions are enough. Rounding may need more: after twice as many, the
    largest residual of the proof is precise enough. A less precise step after all rounds is still returned; the line
    search takes it only if it shortens the gradient.

    Proof: objective_perturbation.md 6
    """
    step, residual = np.zeros_like(gradient), -gradient
    direction = preconditioned = precondition(residual)
    square = float(np.vdot(residual, preconditioned))
    usual, enough = 2 * gradient.size + 10, MAX_PROVED_RESIDUAL * float(np.linalg.norm(gradient))
    for rounds in range(1, MAX_ROUNDS * usual + 1):
        product = yield from multiply_hessian(direction)
        rate = square / float(np.vdot(direction, product))
        step = step + rate * direction
        residual = residual - rate * product
        if float(np.linalg.norm(residual)) <= (precision if rounds < usual else enough):
            break
        preconditioned = precondition(residual)
        previous, square = square, float(np.vdot(residual, preconditioned))
        direction = preconditioned + (square / previous) * direction
    return step


def _approximate_inverse(strength: float, hessian: Doubles, *, unsure: float) -> Linear:
    """Return a function that multiplies by an approximate inverse of a Hessian with errors of `unsure` per entry."""

    def invert_factor(block: Doubles) -> Doubles:
        # Rounding can make an eigenvalue slightly negative in a direction that no row has.
        rounding = len(block) * (2.0**-50 * float(np.trace(block)) + unsure)
        # Its square is symmetric and positive definite however it is rounded, as conjugate gradients and BFGS need.
        return np.linalg.inv(np.linalg.cholesky(block + (strength + rounding) * np.eye(len(block))))

    factors = [invert_factor(block) for block in hessian]

    def multiply(vector: Doubles) -> Doubles:
        product = np.stack([(factor @ one) @ factor for factor, one in zip(factors, vector, strict=True)])
        # The classes' vectors sum to zero, and so must any step between them.
        return product - product.mean(axis=0) if len(product) > 1 else product

    return multiply
