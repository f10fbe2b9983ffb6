"""Columns that are declared monotone: released weights that make scores so, and how rows are scored by them.

Nothing here reads rows: what is computed from released weights and a public plan is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from boltdp._array_types import Doubles
from boltdp.encoding.plan import STEP_HEIGHT, EncodingPlan, ScaledRule

#: The smallest share of rows between two places, in units of an equal share: noise can make shares negative.
MIN_SHARE = 0.01
#: Monotone features are scored in units so large that the squares of their values are rounded off the norm of a row.
UNIT = 2.0**128


def make_monotone(plan: EncodingPlan, weights: Doubles) -> Doubles:
    """Return the nearest weights, of one vector, with which scores follow each monotone column as declared.

    Weights that do so already are returned as they are. Distances are root mean squares over rows, so that the result
    is never farther from any monotone curve than before, if rows are spread as the centres of the steps say.
    """
    weights = weights.copy()
    for scaled, part in _find_monotone(plan):
        before, direction = weights[part].copy(), scaled.rule.direction
        if (direction * before < 0).any():
            deviations, means = _spread_rows(scaled), _find_means(scaled)
            weights[part] = after = direction * _fit_nonnegative(deviations, deviations @ (direction * before)) + 0.0
            if plan.constant is not None:  # keeps the mean where the column is not centred at it
                weights[-1] += (before - after) * scaled.factors @ (means - scaled.centers) / plan.constant
    return weights


def make_scoring_plan(plan: EncodingPlan, weights: Doubles) -> tuple[EncodingPlan, Doubles]:
    """Return the plan and the weights, of shape (vectors, features), by which rows are scored.

    A score is divided by the norm of a long row. That of a monotone column would make it fall again, so that its
    features count with their mean square instead, beside the intercept.
    """
    found = [part for _, part in _find_monotone(plan)]
    if not found:
        return plan, weights
    weights, factors, constant, squares = weights.copy(), plan.factors.copy(), plan.constant, _expect_squares(plan)
    for part in found:
        factors[part] /= UNIT
        weights[:, part] *= UNIT
        if constant is not None:
            longer = math.sqrt(constant**2 + squares[part].sum())
            weights[:, -1] *= constant / longer
            constant = longer
    return replace(plan, factors=factors, constant=constant), weights


def _expect_squares(plan: EncodingPlan) -> Doubles:
    """Return the mean squares of features, by their means and ranges; those of a whole row are 1 at most.

    Rows are clipped to their root mean square norm where noise hides how they are spread.
    """
    rules, half = plan.rules, STEP_HEIGHT / 2.0
    counts = [count for rule in rules for count in (rule.number_count, len(rule.thresholds), len(rule.values))]
    low, high, share = (
        np.repeat(of_kinds * len(rules), counts)
        for of_kinds in ([-1.0, -half, 0.0], [1.0, half, 1.0], [1.0 / 3.0, 1.0, 1.0])
    )
    means = np.clip(np.concatenate([_find_means(scaled) for scaled in plan.scaled_rules]), low, high)
    squares = share * (high - means) * (means - low) * plan.factors**2
    return np.asarray(squares / max(1.0, squares.sum()))


def _find_monotone(plan: EncodingPlan) -> Iterator[tuple[ScaledRule, slice]]:
    """Yield the monotone columns, and where their features are."""
    stop = 0
    for scaled in plan.scaled_rules:
        start, stop = stop, stop + scaled.rule.feature_count
        if scaled.rule.direction:
            yield scaled, slice(start, stop)


def _find_means(scaled: ScaledRule) -> Doubles:
    """Return the means of encoded features: their centres, or what is expected where they are not centred."""
    return scaled.centers if scaled.centers.any() else scaled.rule.expected_means


def _spread_rows(scaled: ScaledRule) -> Doubles:
    """Return features of a number less their means, between its steps, times the roots of the shares of rows there.

    The last row is the deviation of the number between steps.
    """
    edges, count = np.concatenate([[-1.0], scaled.rule.places, [1.0]]), len(scaled.rule.thresholds)
    above = 0.5 + _find_means(scaled)[1:] / STEP_HEIGHT
    shares = np.maximum(-np.diff(above, prepend=1.0, append=0.0), MIN_SHARE / (1 + count))
    shares /= shares.sum()
    middles, widths = (edges[1:] + edges[:-1]) / 2.0, np.diff(edges)
    features = np.column_stack([middles, STEP_HEIGHT * np.tri(1 + count, count, -1)])
    within = np.append(math.sqrt(shares @ widths**2 / 12.0), np.zeros(count))
    deviations = (features - shares @ features) * np.sqrt(shares)[:, np.newaxis]
    return np.asarray(np.vstack([deviations, within]) * scaled.factors)


def _fit_nonnegative(design: Doubles, target: Doubles) -> Doubles:
    """Return the least squares fit by weights that are at least 0, by the active sets of Lawson and Hanson (1974)."""
    count = design.shape[1]
    weights, used = np.zeros(count), np.zeros(count, bool)
    for _ in range(3 * count):  # two of each weight are rarely needed; rounding must not make it endless
        gradient = np.where(used, 0.0, design.T @ (target - design @ weights))
        if gradient.max() <= 1e-12 * np.abs(design.T @ target).max():
            break
        used[gradient.argmax()] = True
        while True:
            fitted = np.zeros(count)
            fitted[used] = np.linalg.lstsq(design[:, used], target, rcond=None)[0]
            reached = np.where(used & (fitted <= 0), weights / np.maximum(weights - fitted, 1e-300), np.inf)
            share = min(1.0, reached.min())
            weights = np.where(reached <= share, 0.0, weights + share * (fitted - weights))
            used &= weights > 0
            if share == 1.0:
                break
    return weights
