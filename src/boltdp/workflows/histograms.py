"""Private histograms of the columns: the quantiles at which their curves have steps, and the centres of all features.

The bins are public, and their noisy counts are released in one scan. What is computed from released counts is
post-processing: the rules below may be changed freely.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from boltdp._array_types import Doubles, Integers
from boltdp.algorithms import choose_algorithm
from boltdp.encoding.plan import STEP_HEIGHT
from boltdp.errors import ParameterError
from boltdp.kernel.feature_sums import UNIT, FeatureSums
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import BudgetedEvent
from boltdp.privacy.events.noisy_counts import BINS, NoisyHistograms, make_noisy_histograms
from boltdp.privacy.events.noisy_moments import ReleasedMoments
from boltdp.privacy.release_with_noise import Randomness, release_counts
from boltdp.privacy.training_problem import Problem
from boltdp.schema.columns import MAX_FEATURES, Column, Numeric, Vector
from boltdp.schema.curves import add_curves, choose_bin_edges, place_steps
from boltdp.schema.schema import Schema
from boltdp.settings import Settings

#: The steps of each curve.
STEPS = 8
#: The share of the budget that histograms have, and that of Gaussian ones, which is less of the squared mu.
SHARE, GAUSSIAN_SHARE = 0.15, 0.38


def can_have_histograms(schema: Schema) -> bool:
    """Return whether a schema has no projection and no vectors, at least one curve to add, and not too many bins."""
    if schema.projection is not None or any(isinstance(column, Vector) for column in schema.columns):
        return False
    numbers = [column for column in schema.columns if isinstance(column, Numeric)]
    if schema.encoded_dims + BINS * len(numbers) > MAX_FEATURES or add_curves(schema, STEPS) == schema:
        return False
    # Bounds without a number between them have no bins.
    return all(choose_bin_edges(column) for column in numbers)


def add_provisional_curves(schema: Schema, steps: int = STEPS) -> Schema:
    """Return the schema with evenly spaced curves, which a training moves to the quantiles that it finds."""
    return replace(schema, columns=tuple(_add_provisional_curve(column, steps) for column in schema.columns))


def plan_histograms(settings: Settings, schema: Schema, *, rows: int) -> BudgetedEvent:
    """Plan the histograms of the columns of a schema with provisional curves: their event and budget.

    Their noise is Gaussian if it composes with that of the training as one, and they have a larger share then.
    """
    budget, columns = settings.budget, len(schema.columns)
    if budget is None:
        raise ParameterError("histograms of columns must have an epsilon: without noise they are not needed")
    gaussian = budget.delta > 0 and _can_share_budget(settings, schema, budget, rows=rows)
    share = (
        (GAUSSIAN_SHARE if gaussian else SHARE) if settings.standardize_share is None else settings.standardize_share
    )
    if not 0 < share < 1:
        raise ParameterError(f"the share of standardization must be above 0 and below 1, got {share}")
    taken = budget.take_share(share)[0] if gaussian else Budget(share * budget.epsilon)
    persons = schema.max_rows_per_person
    return BudgetedEvent(taken, make_noisy_histograms(taken, columns=columns, gaussian=gaussian, person_rows=persons))


def _can_share_budget(settings: Settings, schema: Schema, budget: Budget, *, rows: int) -> bool:
    """Return whether the training of these settings composes with Gaussian noise as one."""
    loss, models = settings.choose_loss(schema.target)
    chosen = choose_algorithm([settings], loss, budget, dims=schema.dims, rows=rows)
    problem = Problem(loss=loss, dims=schema.dims, rows=rows, person_rows=schema.max_rows_per_person)
    return models == 1 and chosen.can_share_budget(problem)


def make_histogram_sums(schema: Schema) -> FeatureSums:
    """Make the sums that count rows by the bins of each column."""
    counted = _make_counted_schema(schema)
    return FeatureSums(counted.encoding.feature_map, clip_norm=2.0 * counted.largest_norm)


def read_histograms(sums: Integers, schema: Schema) -> list[Integers]:
    """Return the counts of the bins of each column from sums of features; they are as sensitive as the rows.

    A row with a missing or undeclared value is in no bin of the column.
    """
    histograms, first, step = [], 0, round(STEP_HEIGHT / 2.0 / UNIT)
    for column in _make_counted_schema(schema).columns:
        rule = column.encoding_rule
        last = first + rule.feature_count
        if rule.values:
            histograms.append(sums[0, first:last] // round(1.0 / UNIT))
        else:
            # A step is as far above 0 as below: its sum is that of rows above less that of rows below.
            differences, squares = sums[:, first + rule.number_count : last]
            total = squares[0] // round(STEP_HEIGHT**2 / 4.0 / UNIT)
            above = (differences // step + total) // 2
            histograms.append(-np.diff(above, prepend=total, append=0))
        first = last
    return histograms


def apply_histograms(
    sums: Integers, schema: Schema, event: NoisyHistograms, randomness: Randomness, *, rows: int
) -> tuple[Schema, ReleasedMoments]:
    """Add noise to the counts, and return the schema with its curves at quantiles, and the means of its features."""
    random_bytes = randomness.make_stream("moments")
    released = [
        np.array(release_counts(counts.tolist(), event, random_bytes)) for counts in read_histograms(sums, schema)
    ]
    columns, means, deviations, squared_norm = [], [], [], 0.0
    for column, counts in zip(schema.columns, released, strict=True):
        if isinstance(column, Numeric):
            column, average, square = _place_and_average(column, counts, event.noise.deviation)
            means.append(average)
            squared_norm += square
            noise = np.append(1.0, np.full(len(column.curve), STEP_HEIGHT)) * math.sqrt(len(counts)) / 2.0
        else:
            means.append(np.clip(counts / rows, 0.0, 1.0))
            squared_norm += min(float(means[-1].sum()), 1.0)
            noise = np.ones(len(counts))
        deviations.append(noise * event.noise.deviation / rows)
        columns.append(column)
    moments = ReleasedMoments(np.concatenate(means), None, squared_norm, np.concatenate(deviations))
    return replace(schema, columns=tuple(columns)), moments


def _place_and_average(column: Numeric, counts: Doubles, deviation: float) -> tuple[Numeric, Doubles, float]:
    """Return the column with its steps at quantiles, the means of its features, and that of their squared norm.

    All are of the rows whose value is not missing.
    """
    ranks, edges = (
        fit_ranks(reduce_noise(counts, deviation)),
        np.array([column.low, *choose_bin_edges(column), column.high]),
    )
    shares = np.diff(ranks)
    if column.curve_source == "private":
        column = place_steps(column, shares)
    scaled = (edges - (column.low + column.high) / 2.0) / ((column.high - column.low) / 2.0)
    middles = (scaled[1:] + scaled[:-1]) / 2.0
    steps = STEP_HEIGHT * (0.5 - np.interp(column.curve, edges, ranks))
    squared_norm = float(shares @ middles**2) + len(steps) * (STEP_HEIGHT / 2.0) ** 2
    return column, np.append(shares @ middles, steps), squared_norm


def reduce_noise(counts: Doubles, deviation: float) -> Doubles:
    """Return counts with less noise: differences of halves, of quarters and so on are shrunk if noise explains them.

    These are the coefficients of Haar wavelets, and those of each level have a positive-part James-Stein estimator.
    """
    if len(counts) % 2:
        return counts
    means, differences = counts.reshape(-1, 2).mean(axis=1), counts.reshape(-1, 2) @ [0.5, -0.5]
    noise = len(differences) * deviation**2 / 2.0
    differences = differences * max(0.0, 1.0 - noise / max(float(differences @ differences), 1e-300))
    smooth = reduce_noise(means, deviation / math.sqrt(2.0))
    return np.stack([smooth + differences, smooth - differences], axis=1).ravel()


def fit_ranks(counts: Doubles) -> Doubles:
    """Return the share of rows below each edge, from 0 to 1: increasing numbers near the sums of noisy counts."""
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    total = max(float(sums[-1]), 1.0)
    sums = np.clip(sums / total, 0.0, 1.0)
    rising = (np.maximum.accumulate(sums) + np.minimum.accumulate(sums[::-1])[::-1]) / 2.0
    rising[0], rising[-1] = 0.0, 1.0
    return rising


def _make_counted_schema(schema: Schema) -> Schema:
    """Return the schema whose features tell the bin of each column."""
    columns = [
        replace(column, curve=choose_bin_edges(column), curve_source="declared")
        if isinstance(column, Numeric)
        else column
        for column in schema.columns
    ]
    return replace(schema.unscaled, columns=tuple(columns))


def _add_provisional_curve(column: Column, steps: int) -> Column:
    if not isinstance(column, Numeric) or column.curve or column.add_curve(1) == column:
        return column
    edges = choose_bin_edges(column)
    if len(edges) < steps:
        return column.add_curve(steps)
    return replace(
        column, curve=edges[len(edges) // (2 * steps) :: len(edges) // steps][:steps], curve_source="private"
    )
