"""Objective perturbation: find the minimiser of the loss plus a random linear term, precisely enough to be released.

Newton's method, whose linear systems are solved by conjugate gradients, so that everything is scans of the rows that
sum a derivative; the Hessian of a few rows, summed where they are, makes the scans fewer. A step is taken if it
shortens the gradient: that needs no value of the objective, which would lose half of its digits near the minimum, and
it makes the method end for every data set (`privacy/objective.md`, section 6).

How many scans are made depends on the rows, as the run time does, which is outside the guarantee: nothing is told of
them but that they are being made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from boltdp.arraytypes import Doubles
from boltdp.errors import SolverError
from boltdp.privacy.noise import Mechanism
from boltdp.privacy.objective import check_objective, drawing_error, gradient_rounding, tolerance
from boltdp.privacy.recipe import Recipe

#: From weights and a direction to the sum over all rows: the gradient (no direction), or the Hessian times it.
Derivative: TypeAlias = Callable[[Doubles, Doubles | None], Doubles]
Linear: TypeAlias = Callable[[Doubles], Doubles]
#: From weights to about the Hessian of the losses with respect to each class's weights: a matrix for each.
Shape: TypeAlias = Callable[[Doubles], Doubles]

#: How much of the gradient a Newton step may leave.
COARSEST_SOLUTION = 0.1
#: A step that must be shorter than this share of Newton's is no progress.
SHORTEST_STEP = 2.0**-30
#: Rows of which the Hessian is taken, at most: more tell little that is new.
MOST_SAMPLED = 100_000
#: Features up to which a matrix of them is factored,
WIDEST_FACTORS = 200
#: and the numbers of all classes' matrices: 100 MB, as the kernel sums them.
MOST_NUMBERS = 4_000_000


def minimise(
    recipe: Recipe,
    derivative: Derivative,
    linear: Doubles,
    *,
    noise: Mechanism | None,
    shape: Shape | None = None,
) -> Doubles:
    """The weights, as private as the rows, at which the gradient is certainly within the tolerance.

    `linear` is q, of shape (vectors, dims), and `noise` what it was drawn from. The objective is the sum of the losses
    plus (m*Lambda/2)*||w||^2 + <q, w>. `shape` makes the scans fewer, and changes nothing in what is found.

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

    def gradient(weights: Doubles) -> Doubles:
        return derivative(weights, None) + strength * weights + linear

    def bent(weights: Doubles) -> Linear:
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
        roughly = _rough_inverse(strength, None if shape is None else shape(weights))
        step = _newton_step(bent(weights), roughly, slope, precision=share * left)
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


def sample_rows(recipe: Recipe) -> int:
    """How many rows tell the shape of the Hessian well enough; 0 where factoring it would take longer than scans.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=1, passes=1, schedule=constant(1.0))
    >>> sample_rows(recipe)
    41666
    """
    if recipe.dims > WIDEST_FACTORS or recipe.loss.vectors * recipe.dims**2 > MOST_NUMBERS:
        return 0
    return min(recipe.rows, max(1000 + 40 * recipe.dims, min(recipe.rows // 24, MOST_SAMPLED)))


def _newton_step(curvature: Linear, roughly: Linear, slope: Doubles, *, precision: float) -> Doubles:
    """The step p with ||H p + slope|| <= precision, by conjugate gradients.

    `curvature` multiplies by H, `roughly` by about its inverse.
    """
    step, residual = np.zeros_like(slope), -slope
    along = better = roughly(residual)
    square = float(np.vdot(residual, better))
    # In real arithmetic as many rounds as dimensions are enough; a step that is not precise is a step all the same.
    for _ in range(2 * slope.size + 10):
        bent = curvature(along)
        rate = square / float(np.vdot(along, bent))
        step = step + rate * along
        residual = residual - rate * bent
        if float(np.linalg.norm(residual)) <= precision:
            break
        better = roughly(residual)
        previous, square = square, float(np.vdot(residual, better))
        along = better + (square / previous) * along
    return step


def _rough_inverse(strength: float, hessian: Doubles | None) -> Linear:
    """Multiplication by about the inverse of the Hessian, one class at a time."""
    if hessian is None:
        return lambda vector: vector / strength

    def factor(block: Doubles) -> tuple[Doubles, bool]:
        # Rounding can leave a little less than nothing in a direction that no row has.
        rounding = len(block) * 2.0**-50 * float(np.trace(block))
        found: tuple[Doubles, bool] = cho_factor(block + (strength + rounding) * np.eye(len(block)))
        return found

    factors = [factor(block) for block in hessian]

    def roughly(vector: Doubles) -> Doubles:
        solved = np.stack([cho_solve(factor, one) for factor, one in zip(factors, vector, strict=True)])
        # The classes' vectors sum to zero, and so must any step between them.
        return solved - solved.mean(axis=0) if len(solved) > 1 else solved

    return roughly
