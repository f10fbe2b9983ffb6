"""Objective perturbation: find the minimiser of the loss plus a random linear term, precisely enough to be released.

Newton's method, whose linear systems are solved by conjugate gradients, so that everything is scans of the rows that
sum a derivative. A step is taken if it shortens the gradient: that needs no value of the objective, which would lose
half of its digits near the minimum, and it makes the method end for every data set (`privacy/objective.md`, section 6).

How many scans are made depends on the rows, as the run time does, which is outside the guarantee; progress therefore
tells of scans one by one, and never how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp.errors import SolverError
from boltdp.privacy.noise import Mechanism
from boltdp.privacy.objective import check_objective, drawing_error, gradient_rounding, tolerance
from boltdp.privacy.recipe import Recipe

Matrix = npt.NDArray[np.float64]
#: From weights and a direction to the sum over all rows: the gradient (no direction), or the Hessian times it.
Derivative: TypeAlias = Callable[[Matrix, Matrix | None], Matrix]

#: How much of the gradient a Newton step may leave.
COARSEST_SOLUTION = 0.1
#: A step that must be shorter than this share of Newton's is no progress.
SHORTEST_STEP = 2.0**-30


def minimise(recipe: Recipe, derivative: Derivative, linear: Matrix, *, noise: Mechanism | None) -> Matrix:
    """The weights, as private as the rows, at which the gradient is certainly within the tolerance.

    `linear` is q, of shape (vectors, dims), and `noise` what it was drawn from. The objective is the sum of the losses
    plus (m*Lambda/2)*||w||^2 + <q, w>.

    >>> from boltdp.kernel.objective import Sums
    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> def derivative(weights, direction):
    ...     sums = Sums(Logistic(), weights, direction=direction)
    ...     sums.add(np.array([[1, 0.5], [0, -0.5]], dtype=np.float32))
    ...     return sums.value
    >>> recipe = Recipe(loss=Logistic(), dims=1, rows=2, batch_size=1, passes=1, schedule=constant(1.0),
    ...                 regularization=0.1)
    >>> minimise(recipe, derivative, np.zeros((1, 1)), noise=None).round(4)
    array([[1.5675]])
    """
    check_objective(recipe)
    strength = recipe.rows * recipe.regularization
    within, drawn = tolerance(recipe, noise), drawing_error(noise)
    length = float(np.linalg.norm(linear))

    def gradient(weights: Matrix) -> Matrix:
        return derivative(weights, None) + strength * weights + linear

    def bent(weights: Matrix) -> Callable[[Matrix], Matrix]:
        return lambda along: derivative(weights, along) + strength * along

    weights = np.zeros_like(linear)
    slope = gradient(weights)
    first = left = float(np.linalg.norm(slope))
    while True:
        unsure = gradient_rounding(recipe, weights=float(np.linalg.norm(weights)), noise=length) + drawn
        if 1.01 * left + unsure <= within:
            return weights
        # Coarse far from the minimum, precise near it, and never more than is needed to end.
        share = max(min(COARSEST_SOLUTION, math.sqrt(left / first)), 0.25 * within / left)
        step = _newton_step(bent(weights), slope, precision=share * left)
        size = 1.0
        while True:
            ahead = weights + size * step
            slope_ahead = gradient(ahead)
            left_ahead = float(np.linalg.norm(slope_ahead))
            if left_ahead <= (1.0 - size / 4.0) * left:
                break
            size /= 2.0
            if size < SHORTEST_STEP:
                raise SolverError("the minimum could not be found to the precision that the privacy proof needs")
        weights, slope, left = ahead, slope_ahead, left_ahead


def _newton_step(curvature: Callable[[Matrix], Matrix], slope: Matrix, *, precision: float) -> Matrix:
    """The step p with ||H p + slope|| <= precision, by conjugate gradients; `curvature` multiplies by H."""
    step = np.zeros_like(slope)
    residual, along = -slope, -slope
    square = float(np.vdot(residual, residual))
    # In real arithmetic as many rounds as dimensions are enough; a step that is not precise is a step all the same.
    for _ in range(2 * slope.size + 10):
        bent = curvature(along)
        rate = square / float(np.vdot(along, bent))
        step = step + rate * along
        residual = residual - rate * bent
        previous, square = square, float(np.vdot(residual, residual))
        if math.sqrt(square) <= precision:
            break
        along = residual + (square / previous) * along
    return step
