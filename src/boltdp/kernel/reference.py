"""The kernel's readable twin: one row at a time, straight from the equations. The tests' oracle, and slow."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from boltdp.privacy.losses import HuberSVM, Logistic, Loss, Multinomial
from boltdp.privacy.recipe import Recipe

Vector = npt.NDArray[np.float64]


def reference_sgd(recipe: Recipe, rows: npt.NDArray[np.floating], *, positive: int = 1, classes: int = 2) -> Vector:
    """Run all passes over the packed rows (the same m of them each pass) and return the weights, (vectors, dims).

    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=1, rows=2, batch_size=1, passes=1, schedule=constant(1.0))
    >>> reference_sgd(recipe, np.array([[1, 0.5], [0, -0.5]])).round(4)
    array([[0.4844]])
    """
    if isinstance(recipe.loss, Multinomial):
        classes = recipe.loss.classes
    m, n = recipe.rows, recipe.batches
    steps = recipe.schedule.steps(1, recipe.updates + 1)
    w = np.zeros((recipe.loss.vectors, recipe.dims))
    total = np.zeros_like(w)
    for update in range(recipe.updates):
        j = update % n
        batch = rows[j * m // n : (j + 1) * m // n].astype(np.float64)
        gradient = np.zeros_like(w)
        for label, x in ((row[0], guarded(row[1:])) for row in batch):
            if x is not None and label in range(classes):
                gradient += row_gradient(recipe.loss, w, x, int(label), positive=positive)
        eta = steps[update]
        w = (1.0 - eta * recipe.regularization) * w - (eta / len(batch)) * gradient
        norm = math.sqrt(np.sum(w * w))
        if norm > recipe.radius:
            w *= recipe.radius / norm
        if update >= recipe.updates - recipe.averaged:
            total += w
    return total / recipe.averaged


def guarded(x: Vector) -> Vector | None:
    """The row inside the unit ball, or None if it must have no gradient.

    >>> guarded(np.array([3.0, 4.0]))
    array([0.6, 0.8])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.sum(x * x))
    if not squares <= 1e300:  # no number, or so large that products of two rows could overflow
        return None
    # A margin that keeps the exact norm at most 1: the row guard of sgd.c has the reasoning.
    margin = (x.size + 16) * 2.0**-53
    return x if squares <= 1.0 - 4.0 * margin else x * ((1.0 - 2.0 * margin) / math.sqrt(squares))


def row_gradient(loss: Loss, w: Vector, x: Vector, label: int, *, positive: int) -> Vector:
    """The gradient of the loss of one row, with the shape of the weights.

    >>> row_gradient(Logistic(), np.zeros((1, 2)), np.array([0.6, 0.8]), 1, positive=1)
    array([[-0.3, -0.4]])
    """
    scores = w @ x
    if isinstance(loss, Multinomial):
        powers = np.exp(scores - scores.max())
        slopes = powers / powers.sum()
        slopes[label] -= 1.0
    else:
        y = 1.0 if label == positive else -1.0
        slopes = np.array([y * _margin_slope(loss, y * float(scores[0]))])
    return np.outer(slopes, x)


def _margin_slope(loss: Logistic | HuberSVM, z: float) -> float:
    """The derivative of the loss in its margin z = y <w, x>."""
    if isinstance(loss, Logistic):
        return -1.0 / (1.0 + math.exp(z)) if z < 700 else 0.0
    if z > 1.0 + loss.width:
        return 0.0
    if z < 1.0 - loss.width:
        return -1.0
    return -(1.0 + loss.width - z) / (2.0 * loss.width)


_WORD = 2**64 - 1


def reference_permuted_position(position: int, *, rows: int, seed: int) -> int:
    """Where one row goes: the Feistel network of rows.c, in Python's integers.

    >>> sorted(reference_permuted_position(i, rows=4, seed=1) for i in range(4))
    [0, 1, 2, 3]
    """
    bits = (rows - 1).bit_length()
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    keys = [_mix((seed + i * 0x9E3779B97F4A7C15) & _WORD) for i in range(1, 9)]
    while True:
        low, high = position & low_mask, position >> low_bits
        for i, key in enumerate(keys):
            if i % 2 == 0:
                low ^= _mix(high ^ key) & low_mask
            else:
                high ^= _mix(low ^ key) & high_mask
        position = high << low_bits | low
        if position < rows:
            return position


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
