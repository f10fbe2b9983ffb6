"""Standardizing privately: one scan, noisy moments, and the centres, scales and clip norm that follow from them.

What is computed from released moments and public numbers alone costs no privacy: the rule below may be changed freely.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from boltdp._arrays import Booleans, Doubles, Integers
from boltdp.algorithms import choose_algorithm
from boltdp.algorithms._base import check_rows as check_count
from boltdp.context import Context
from boltdp.encoding.plan import STEP_HEIGHT
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import ParameterError
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import BudgetedEvent
from boltdp.privacy.events.noisy_moments import NoisyMoments, ReleasedMoments, check_rows, make_noisy_moments
from boltdp.privacy.mechanisms import calibrate
from boltdp.privacy.release import Randomness, release_moments
from boltdp.schema.schema import Schema, Standardization
from boltdp.settings import Settings

if TYPE_CHECKING:
    from boltdp.engines.base import Engine

#: Of the budget, at least and at most, for centring; and its noise, wanted and tolerated, in lengths of a row.
SHARES = (0.05, 0.25)
CENTRE_NOISE, MAX_CENTRE_NOISE = 0.35, 0.7
#: Before noisy gradient descent, whose noise is Gaussian too: this many times that share, which costs the scans little.
GAUSSIAN_SHARE = 2.0
#: The clip norm, in root mean square norms of standardized rows: longer rows are shortened.
CLIP_NORM = 1.0
#: The intercept's feature, in the same unit.
INTERCEPT = 0.3
#: No feature is taken to vary less than this: what hardly varies is mostly noise once it is scaled up.
MIN_SCALE = 0.1
#: Nor is a row as a whole, in square roots of the number of features.
MIN_NORM = 0.1


def plan_standardization(settings: Settings, schema: Schema, *, rows: int) -> BudgetedEvent | None:
    """Plan what standardizing the features of `schema` takes of the budget; None if it is not done.

    "auto" does it for algorithm "auto" where it pays: where the noise of the means is small beside a row.

    >>> from boltdp.schema.schema import Classes, Numeric
    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    >>> plan_standardization(Settings(epsilon=1.0), schema, rows=10_000).budget
    Budget(epsilon=0.05, delta=0.0)
    >>> plan_standardization(Settings(epsilon=1.0), schema, rows=10) is None
    True
    """
    if schema.standardization is not None and schema.standardization.source == "private":
        raise ParameterError(
            "the schema must not have a standardization that was found privately: it was paid for by another model",
            hint='remove it, or write source = "declared" if the rows of this training had no part in it',
        )
    settings.check()
    if settings.standardize == "none":
        return None
    budget, features = settings.budget, schema.encoded_dims - schema.intercept
    rows = max(rows, 1)  # none at all are refused by the plan
    share = (
        SHARES[0]
        if budget is None
        else choose_share(budget, features=features, rows=rows, changed=schema.max_rows_per_person or 1)
    )
    if settings.standardize == "auto":
        if settings.algorithm != "auto" or budget is None or share is None or schema.standardization is not None:
            return None
    elif schema.standardization is not None:
        raise ParameterError("standardize must be 'none' for a schema that has a standardization already")
    gaussian = budget is not None and budget.delta > 0 and _before_gaussian(settings, schema, budget)
    if gaussian and share is not None:
        share *= GAUSSIAN_SHARE
    if settings.standardize_share is not None:
        share = settings.standardize_share
        if not 0 < share < 1:
            raise ParameterError(f"the share of standardization must be above 0 and below 1, got {share}")
    taken = None if budget is None else budget.take(SHARES[1] if share is None else share)[0]
    event = make_noisy_moments(
        moments=settings.standardize_moments,
        features=features,
        numbers=schema.numbers,
        clip_norm=schema.feature_clip_norm,
        budget=taken,
        gaussian=gaussian,
        person_rows=schema.max_rows_per_person,
    )
    return BudgetedEvent(taken, event)


def _before_gaussian(settings: Settings, schema: Schema, budget: Budget) -> bool:
    """Whether the noise of the training is Gaussian too, so that both compose as one: noisy_gradient_descent.md 2."""
    loss, models = settings.choose_loss(schema.target)
    return models == 1 and choose_algorithm([settings], loss, budget).gaussian


def describe_moments(certificate: Certificate) -> list[str]:
    """What was released before training, and for how much of the budget; nothing if nothing was."""
    return [
        part.event.describe() + ("" if part.budget is None else f", for {part.budget.describe()}")
        for part in certificate.parts
        if isinstance(part.event, NoisyMoments)
    ]


def choose_share(budget: Budget, *, features: int, rows: int, changed: int = 1) -> float | None:
    """The part of a budget that buys centring: as much as leaves the noise of the means a third of a row's length.

    None where even a quarter of the budget would leave too much. `changed` is how many rows neighbours differ in.

    >>> choose_share(Budget(1.0), features=50, rows=60_000)
    0.05
    >>> choose_share(Budget(0.01), features=784, rows=10_000) is None
    True
    """
    noise = calibrate(2.0 * changed / rows, dimensions=features + 1, budget=budget).expected_norm
    least, most = SHARES
    if noise / most > MAX_CENTRE_NOISE:
        return None
    return min(max(noise / CENTRE_NOISE, least), most)


@contextmanager
def prepare_rows(
    engine: Engine, schema: Schema, event: NoisyMoments | None, context: Context, *, rows: int, ordered: bool
) -> Iterator[tuple[PreparedRows, Schema]]:
    """Prepare as many rows as were planned for, and give them with the schema, standardized if there is an event.

    Rows are encoded once: standardizing changes how cells are read as features. Only a projection, which follows it,
    needs rows that are encoded again.
    """
    if event is not None:
        check_rows(rows, clip_norm=event.clip_norm)
        if schema.projection is not None:
            with engine.prepare(
                schema.unscaled, context.start_stage("standardizing", rows), ordered=False
            ) as unprojected:
                schema = standardize_schema(unprojected, schema, event, context.randomness, rows=rows)
    with engine.prepare(schema, context.start_stage("preparing", rows), ordered=ordered) as prepared:
        schema = standardize_schema(prepared, schema, event, context.randomness, rows=rows)
        yield prepared.read_by(schema.encoding.feature_map), schema


def standardize_schema(
    prepared: PreparedRows, schema: Schema, event: NoisyMoments | None, randomness: Randomness, *, rows: int
) -> Schema:
    """Return the schema standardized by noisy moments of the rows; unchanged without an event, or if it already is."""
    if event is None or schema.standardization is not None:
        return schema
    check_count(prepared, rows)
    return apply_moments(sum_moments(prepared, schema), schema, event, randomness, rows=rows)


def sum_moments(prepared: PreparedRows, schema: Schema) -> Integers:
    """Sum the encoded features, of rows clipped to the clip norm, and their squares, exactly: `kernel.moments`.

    Before any division, standardization or projection, and without the intercept. The sums are as private as the rows.
    """
    sums = FeatureSums(schema.unscaled.encoding.feature_map, clip_norm=schema.feature_clip_norm)
    prepared.sum([sums])
    return sums.value


def apply_moments(sums: Integers, schema: Schema, event: NoisyMoments, randomness: Randomness, *, rows: int) -> Schema:
    """Return the schema with the standardization that follows from `sums` of `sum_moments`, noise added."""
    released = release_moments(sums, event, randomness, rows=rows, numbers=_numbers(schema))
    return replace(schema, standardization=derive_standardization(schema, released))


def derive_standardization(schema: Schema, released: ReleasedMoments) -> Standardization:
    """Derive centres, scales and the clip norm from released moments.

    Where the noise is larger than a moment, centres are shrunk towards what would be guessed without looking: the
    middle of a number's bounds, equally many of each category and between each two places of a curve.

    >>> from boltdp.schema.schema import Classes, Numeric
    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    >>> derive_standardization(schema, ReleasedMoments(np.array([0.5]), np.array([0.26]), None, 0.0)).centers
    (0.5,)
    """
    numbers, prior = _numbers(schema), np.concatenate([rule.expected_means for rule in schema.encoding.rules])
    steps, half = _steps(schema), STEP_HEIGHT / 2.0
    lowest, highest = np.where(numbers, -1.0, np.where(steps, -half, 0.0)), np.where(steps, half, 1.0)
    means = np.clip(released.means, lowest, highest)
    centers = prior + _shrunk(means - prior, released.deviation)
    if released.squares is not None:
        squares = np.where(steps, half**2, means)  # of a category x = x^2
        squares[numbers] = np.clip(released.squares, 0.0, 1.0)
        variances = np.maximum(squares - centers * (2.0 * means - centers), 0.0)
        scales = np.sqrt(np.maximum(variances, max(released.deviation, MIN_SCALE**2)))
        squared_norm = float(np.sum(variances / scales**2))
    else:
        assert released.squared_norm is not None
        scales = np.ones(len(centers))
        squared_norm = released.squared_norm - float(np.sum(centers * (2.0 * means - centers)))
    least = MIN_NORM**2 * len(centers)
    norm = float(np.sqrt(np.clip(squared_norm, least, len(centers))))
    return Standardization(
        centers=tuple(np.clip(centers, -1.0, 1.0).tolist()),
        scales=tuple(scales.tolist()),
        clip_norm=CLIP_NORM * norm,
        intercept=INTERCEPT * norm,
        source="private",
    )


def _numbers(schema: Schema) -> Booleans:
    """Which features are numbers, not categories or steps."""
    return np.concatenate([np.arange(rule.features) < rule.numbers for rule in schema.encoding.rules])


def _steps(schema: Schema) -> Booleans:
    """Which features are the steps of a curve."""
    return np.concatenate(
        [
            np.repeat([False, True, False], [rule.numbers, len(rule.places), len(rule.values)])
            for rule in schema.encoding.rules
        ]
    )


def _shrunk(offsets: Doubles, deviation: float) -> Doubles:
    """James and Stein's positive part, each coordinate by itself: an offset that noise alone could make becomes 0."""
    sizes = np.maximum(offsets**2, 1e-300)
    return offsets * np.maximum(0.0, 1.0 - deviation**2 / sizes)
