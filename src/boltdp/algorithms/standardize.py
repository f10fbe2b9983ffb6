"""Standardizing privately: one scan, noisy moments, and the centres, scales and radius that follow from them.

What is computed from released moments and public numbers alone costs no privacy: the rule below may be changed freely.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from boltdp.arraytypes import Booleans, Doubles, Integers
from boltdp.data.encode import OnBadRow
from boltdp.data.schema import Categorical, Schema, Standardization
from boltdp.engines.base import Engine, Progress
from boltdp.privacy.standardization import NoisyMoments, Standardized, check_rows, release_moments

#: The radius, in root mean square norms of standardized rows: longer rows are shortened.
RADIUS = 1.0
#: The intercept's feature, in the same unit.
INTERCEPT = 0.3
#: No feature is taken to vary less than this: what hardly varies is mostly noise once it is scaled up.
SMALLEST_SCALE = 0.1
#: Nor is a row as a whole, in square roots of the number of features.
SMALLEST_NORM = 0.1


def standardize(
    engine: Engine,
    schema: Schema,
    record: Standardized | None,
    *,
    on_bad_row: OnBadRow = "neutral",
    noise_seed: int | None = None,
    progress: Progress | None = None,
) -> Schema:
    """The schema with a standardization found from noisy moments of the rows; without a record, the schema as it is.

    >>> import pyarrow as pa
    >>> from boltdp.data.schema import Numeric
    >>> from boltdp.engines import open_source
    >>> from boltdp.settings import Settings
    >>> rows = open_source(pa.table({"age": [30, 40] * 50_000}))
    >>> schema = Schema("sick", (0, 1), (Numeric("age", 0, 100),))
    >>> record = Settings(epsilon=1.0, standardize="private").standardization(schema, rows=100_000)
    >>> round(standardize(rows, schema, record).standardization.centers[0], 1)
    -0.3
    """
    if record is None:
        return schema
    rows = engine.count()
    check_rows(rows, radius=record.radius)
    sums = engine.moments(schema, radius=record.radius, on_bad_row=on_bad_row, progress=progress)
    return standardized_by(sums, schema, record, rows=rows, noise_seed=noise_seed)


def standardized_by(
    sums: Integers, schema: Schema, record: Standardized, *, rows: int, noise_seed: int | None = None
) -> Schema:
    """The schema with the standardization that follows from the sums of `Engine.moments`, noise added."""
    found = release_moments(sums, record, rows=rows, numbers=_numbers(schema), seed=noise_seed)
    return replace(schema, standardization=standardization(schema, found))


def standardization(schema: Schema, found: NoisyMoments) -> Standardization:
    """Centres, scales and the radius by released moments.

    Where the noise is larger than a moment, centres are shrunk towards what would be guessed without looking: the
    middle of a number's bounds, equally many of each category.

    >>> from boltdp.data.schema import Numeric
    >>> schema = Schema("sick", (0, 1), (Numeric("age", 0, 100),))
    >>> standardization(schema, NoisyMoments(np.array([0.5]), np.array([0.26]), None, 0.0)).centers
    (0.5,)
    """
    numbers, prior = _numbers(schema), _prior(schema)
    means = np.clip(found.means, np.where(numbers, -1.0, 0.0), 1.0)
    centers = prior + _shrunk(means - prior, found.deviation)
    if found.squares is not None:
        squares = means.copy()  # of a category x = x^2
        squares[numbers] = np.clip(found.squares, 0.0, 1.0)
        variances = np.maximum(squares - centers * (2.0 * means - centers), 0.0)
        scales = np.sqrt(np.maximum(variances, max(found.deviation, SMALLEST_SCALE**2)))
        squared_norm = float(np.sum(variances / scales**2))
    else:
        assert found.squared_norm is not None
        scales = np.ones(len(centers))
        squared_norm = found.squared_norm - float(np.sum(centers * (2.0 * means - centers)))
    least = SMALLEST_NORM**2 * len(centers)
    norm = float(np.sqrt(np.clip(squared_norm, least, len(centers))))
    return Standardization(
        centers=tuple(np.clip(centers, -1.0, 1.0).tolist()),
        scales=tuple(scales.tolist()),
        radius=RADIUS * norm,
        intercept=INTERCEPT * norm,
        source="private",
    )


def _numbers(schema: Schema) -> Booleans:
    """Which features are numbers, not categories."""
    return np.concatenate([np.full(len(c.names), not isinstance(c, Categorical)) for c in schema.columns])


def _prior(schema: Schema) -> Doubles:
    """What the means are taken for where nothing is known."""
    return np.concatenate(
        [np.full(len(c.names), 1.0 / len(c.names) if isinstance(c, Categorical) else 0.0) for c in schema.columns]
    )


def _shrunk(offsets: Doubles, deviation: float) -> Doubles:
    """James and Stein's positive part, each coordinate by itself: an offset that noise alone could make becomes 0."""
    sizes = np.maximum(offsets**2, 1e-300)
    return offsets * np.maximum(0.0, 1.0 - deviation**2 / sizes)
