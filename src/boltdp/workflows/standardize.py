"""Private standardization: one scan, noisy moments, and the centres, scales and clip norm derived from them.

Post-processing of the released moments costs no privacy: the rule below may be changed freely.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from boltdp._array_types import Booleans, Doubles, Integers
from boltdp.algorithms import choose_algorithm
from boltdp.algorithms._base import check_row_count
from boltdp.encoding.plan import PAIR_WEIGHT, STEP_HEIGHT
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import ParameterError
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.label_histogram import LabelHistogram
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import BudgetedEvent
from boltdp.privacy.events.noisy_counts import NoisyHistograms
from boltdp.privacy.events.noisy_moments import Moments, NoisyMoments, ReleasedMoments, check_moment_rows
from boltdp.privacy.mechanisms import calibrate
from boltdp.privacy.release_with_noise import Randomness, release_moments
from boltdp.privacy.training_problem import Problem
from boltdp.run_context import Context
from boltdp.schema.schema import Schema, Standardization
from boltdp.settings import Settings
from boltdp.workflows.histograms import apply_histograms, make_histogram_sums, plan_histograms
from boltdp.workflows.target_range import BINS, apply_label_quantiles

if TYPE_CHECKING:
    from boltdp.engines.base import Engine

#: The smallest and the largest share of the budget for standardization.
SHARES = (0.05, 0.25)
#: The desired and the largest norm of the noise of the means, relative to the norm of a row.
CENTRE_NOISE, MAX_CENTRE_NOISE = 0.35, 0.7
#: The factor of that share before noisy gradient descent, whose Gaussian noise composes with that of the moments.
GAUSSIAN_SHARE = 2.0
#: The clip norm of standardized rows, in units of their root mean square norm.
CLIP_NORM = 1.0
#: The intercept's feature, in the same unit.
INTERCEPT = 0.3
#: The same two for inference, where long rows lose weight instead of length, and a larger clip norm for robust errors:
#: weights of rows change what a model that does not hold estimates.
INFERENCE_CLIP, ROBUST_CLIP, INFERENCE_INTERCEPT = math.sqrt(1.55), math.sqrt(2.5), 0.5
#: The smallest scale of a feature: a smaller one would mostly scale up noise.
MIN_SCALE = 0.1
#: The smallest root mean square norm of a centred row, relative to the largest norm that a row can have.
MIN_NORM = 0.1


def plan_standardization(settings: Settings, schema: Schema, *, rows: int) -> BudgetedEvent | None:
    """Plan the standardization of the features of `schema`: its event and budget; None if there is none.

    "auto" standardizes for the algorithm "auto" if the noise of the means is small relative to a row. A schema with
    provisional curves has them moved to quantiles by histograms.
    """
    if settings.standardize == "none":
        return None
    if schema.has_private_curves:
        return plan_histograms(settings, schema, rows=rows)
    budget, features = settings.budget, schema.column_feature_count
    rows = max(rows, 1)  # the plan raises an error for 0 rows
    share: float | None = SHARES[0]
    if budget is not None:
        share = choose_budget_share(budget, features=features, rows=rows, changed=schema.max_rows_per_person or 1)
    if settings.standardize == "auto":
        if settings.algorithm != "auto" or budget is None or share is None or schema.standardization is not None:
            return None
    elif schema.standardization is not None:
        raise ParameterError("standardize must be 'none' for a schema that has a standardization already")
    gaussian = False
    if budget is not None and budget.delta > 0:
        # If the training has Gaussian noise too, both compose as one: noisy_gradient_descent.md 2.
        loss, models = settings.choose_loss(schema.target)
        chosen = choose_algorithm([settings], loss, budget, dims=schema.dims, rows=rows)
        gaussian = models == 1 and chosen.gaussian
    if gaussian and share is not None:
        share *= GAUSSIAN_SHARE
    if settings.standardize_share is not None:
        share = settings.standardize_share
        if not 0 < share < 1:
            raise ParameterError(f"the share of standardization must be above 0 and below 1, got {share}")
    taken = None if budget is None else budget.take_share(SHARES[1] if share is None else share)[0]
    return BudgetedEvent(
        taken,
        make_moments(schema, "squares" if settings.standardize_moments == "squares" else "mean").calibrate_noise(
            taken, gaussian=gaussian
        ),
    )


def check_standardization(schema: Schema) -> None:
    """Raise ParameterError for a standardization or curves that were found privately, for another model."""
    if schema.has_private_curves:
        raise ParameterError(
            "the schema must not have curves that were found privately: they were paid for by another model",
            hint="remove them, or their key curve_source if the rows of this training had no part in it",
        )
    if schema.standardization is not None and schema.standardization.source == "private":
        raise ParameterError(
            "the schema must not have a standardization that was found privately: it was paid for by another model",
            hint='remove it, or write source = "declared" if the rows of this training had no part in it',
        )


def make_moments(schema: Schema, moments: Moments) -> NoisyMoments:
    """Return the event of the moments of the features of `schema`, without noise."""
    return NoisyMoments(
        moments=moments,
        features=schema.column_feature_count,
        numbers=schema.numeric_feature_count,
        clip_norm=schema.feature_clip_norm,
        person_rows=schema.max_rows_per_person,
    )


def choose_budget_share(budget: Budget, *, features: int, rows: int, changed: int = 1) -> float | None:
    """Return the share of a budget for standardization: the noise of the means is then a third of a row's norm.

    Return None if even the largest share leaves too much noise. `changed` is the number of rows in which neighbouring
    datasets differ.
    """
    noise = calibrate(2.0 * changed / rows, dimensions=features + 1, budget=budget).expected_norm
    least, most = SHARES
    if noise / most > MAX_CENTRE_NOISE:
        return None
    return min(max(noise / CENTRE_NOISE, least), most)


@contextmanager
def prepare_rows(
    engine: Engine, schema: Schema, certificate: Certificate, context: Context, *, permuted: bool
) -> Iterator[tuple[PreparedRows, Schema]]:
    """Prepare rows for training, and yield them with their schema, standardized as the certificate states.

    Rows are encoded once: standardization only changes the feature map. With a projection, which follows it, rows are
    encoded twice.
    """
    rows = certificate.rows
    if certificate.moments is not None:
        if isinstance(certificate.moments, NoisyMoments):
            check_moment_rows(rows, clip_norm=certificate.moments.clip_norm)
        if schema.projection is not None:
            stage = context.start_stage("standardizing", rows)
            with engine.prepare(schema.unscaled, stage, permuted=False) as unprojected:
                schema = standardize_schema(unprojected, schema, certificate, context.randomness)
    with engine.prepare(schema, context.start_stage("preparing", rows), permuted=permuted) as prepared:
        schema = standardize_schema(prepared, schema, certificate, context.randomness)
        yield prepared.with_feature_map(schema.encoding.feature_map), schema


def standardize_schema(
    prepared: PreparedRows, schema: Schema, certificate: Certificate, randomness: Randomness
) -> Schema:
    """Return the schema with a standardization and a range of the target, found in one scan, if it lacks them.

    The certificate states which releases find them.
    """
    sums: list[FeatureSums] = []
    histograms: list[LabelHistogram] = []
    if certificate.moments is not None and schema.standardization is None:
        sums.append(_make_moment_sums(schema, certificate.moments))
    if schema.target.needs_range(certificate.problem.loss):
        histograms.append(LabelHistogram(cells=prepared.cells, bins=BINS))
    if not sums and not histograms:
        return schema
    check_row_count(prepared, certificate.rows)
    prepared.add_to_sums([*sums, *histograms])
    for one in sums:
        assert certificate.moments is not None
        problem = certificate.problem
        clip = find_inference_clip(problem, robust=len(certificate.matrices) > 1) if problem.downweighted else None
        schema = apply_moments(
            one.value, schema, certificate.moments, randomness, rows=certificate.rows, inference_clip=clip
        )
    for histogram in histograms:
        schema = apply_label_quantiles(histogram.counts, schema, certificate, randomness)
    return schema


def sum_moments(prepared: PreparedRows, schema: Schema, event: NoisyMoments | NoisyHistograms) -> Integers:
    """Sum what an event releases exactly: the features of clipped rows and their squares, or those of bins.

    The intercept is left out. The sums are as sensitive as the rows.
    """
    sums = _make_moment_sums(schema, event)
    prepared.add_to_sums([sums])
    return sums.value


def _make_moment_sums(schema: Schema, event: NoisyMoments | NoisyHistograms) -> FeatureSums:
    if isinstance(event, NoisyHistograms):
        return make_histogram_sums(schema)
    return FeatureSums(schema.unscaled.encoding.feature_map, clip_norm=schema.feature_clip_norm)


def apply_moments(
    sums: Integers,
    schema: Schema,
    event: NoisyMoments | NoisyHistograms,
    randomness: Randomness,
    *,
    rows: int,
    inference_clip: float | None = None,
) -> Schema:
    """Add noise to the `sums` of `sum_moments`, and return the schema with the standardization derived from them."""
    if isinstance(event, NoisyHistograms):
        schema, released = apply_histograms(sums, schema, event, randomness, rows=rows)
        return replace(schema, standardization=derive_standardization(schema, released))
    released = release_moments(sums, event, randomness, rows=rows, numbers=_mask_numbers(schema))
    return replace(schema, standardization=derive_standardization(schema, released, inference_clip))


def find_inference_clip(problem: Problem, *, robust: bool) -> float:
    """Return the clip norm for inference, in units of the root mean square norm of standardized rows."""
    return ROBUST_CLIP if robust and problem.loss.target == "classes" else INFERENCE_CLIP


def derive_standardization(
    schema: Schema, released: ReleasedMoments, inference_clip: float | None = None
) -> Standardization:
    """Derive centres, scales and the clip norm from released moments; for inference, longer rows are downweighted.

    If the noise is larger than a moment, the centre is shrunk towards a prior: the middle of a number's bounds, equal
    shares of all categories, and equal shares between the places of a curve.
    """
    rules, numbers, half = schema.encoding.rules, _mask_numbers(schema), STEP_HEIGHT / 2.0
    prior = np.concatenate([rule.expected_means for rule in rules])
    counts = [count for rule in rules for count in (rule.number_count, len(rule.thresholds), len(rule.values))]
    steps = np.repeat([False, True, False] * len(rules), counts)
    lowest, highest = np.where(numbers, -1.0, np.where(steps, -half, 0.0)), np.where(steps, half, 1.0)
    means = np.clip(released.means, lowest, highest)
    # The positive-part James-Stein estimator of each coordinate: an offset below the noise becomes 0.
    offsets = means - prior
    centers = prior + offsets * np.maximum(0.0, 1.0 - released.deviation**2 / np.maximum(offsets**2, 1e-300))
    if released.squares is not None:
        squares = np.where(steps, half**2, means)  # of a category x = x^2
        squares[numbers] = np.clip(released.squares, 0.0, 1.0)
        variances = np.maximum(squares - centers * (2.0 * means - centers), 0.0)
        scales = np.sqrt(np.maximum(variances, np.maximum(released.deviation, MIN_SCALE**2)))
        squared_norm, longest = float(np.sum(variances / scales**2)), math.sqrt(len(centers))
    else:
        assert released.squared_norm is not None
        scales, longest = np.ones(len(centers)), min(schema.feature_clip_norm, math.sqrt(len(centers)))
        squared_norm = released.squared_norm - float(np.sum(centers * (2.0 * means - centers)))
    squared_norm = min(max(squared_norm, (MIN_NORM * longest) ** 2), len(centers))
    norm = math.sqrt(squared_norm + _expect_pair_squares(schema, np.clip(centers, -1.0, 1.0)))
    downweights = inference_clip is not None
    clip, intercept = (inference_clip or CLIP_NORM), INFERENCE_INTERCEPT if downweights else INTERCEPT
    return Standardization(
        centers=tuple(np.clip(centers, -1.0, 1.0).tolist()),
        scales=tuple(scales.tolist()),
        clip_norm=clip * norm,
        intercept=intercept * norm,
        source="private",
        downweights=downweights,
    )


def _expect_pair_squares(schema: Schema, centers: Doubles) -> float:
    """Return the expected squared norm of the features of pairs, if the columns of each are independent."""
    centred = replace(schema.encoding, centers=centers)
    variances = ((one.variances.sum(), other.variances.sum()) for one, other in centred.pair_sides)
    return PAIR_WEIGHT**2 * sum(float(one * other) for one, other in variances)


def _mask_numbers(schema: Schema) -> Booleans:
    """Return the mask of the features that are numbers, not categories or steps."""
    return np.concatenate([np.arange(rule.feature_count) < rule.number_count for rule in schema.encoding.rules])
