"""How the packed rows of a schema are read: what becomes of each cell, by public numbers and what was released."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from boltdp.arraytypes import Doubles, PackedRows
from boltdp.data.schema import Categorical, Schema
from boltdp.kernel.reading import Reading, Segment


def reading(schema: Schema) -> Reading | None:
    """How the cells of the rows of a schema are read; None for one with a projection, whose cells are the features.

    >>> from boltdp.data.schema import Categorical, Numeric, Schema
    >>> schema = Schema("y", (0, 1), (Numeric("age", 0, 100), Categorical("sex", ("F", "M"))), clip_norm=2.0)
    >>> reading(schema).features(np.array([[1, 0.5, 1], [0, np.nan, -1]], np.float32))
    array([[1.  , 0.25, 0.  , 0.5 , 0.5 ],
           [0.  , 0.  , 0.  , 0.  , 0.5 ]])
    """
    return None if schema.projection is not None else unprojected_reading(schema)


def unprojected_reading(schema: Schema) -> Reading:
    """How the cells are read, before they are projected."""
    segments = []
    for (column, centers, factors), (_, middles, steepness) in zip(schema.scalings(), schema.transforms(), strict=True):
        of = slice(len(centers) - column.indicators)
        if not isinstance(column, Categorical):
            segments.append(Segment("numbers", centers[of], factors[of]))
        if column.indicators:
            absent, present = ((x - middles[of.stop :]) * steepness[of.stop :] for x in (0.0, 1.0))
            segments.append(Segment("category" if isinstance(column, Categorical) else "steps", absent, present))
    if schema.intercept:
        segments.append(Segment("constant", np.array([schema.constant]), np.zeros(1)))
    return Reading(segments)


def features(packed: PackedRows, schema: Schema) -> Doubles:
    """The labels and features of packed rows of a schema, for those who want all of them: (rows, 1 + dims).

    >>> from boltdp.data.schema import Categorical, Schema
    >>> schema = Schema("y", (0, 1), (Categorical("sex", ("F", "M")),), intercept=False)
    >>> features(np.array([[1, 0], [0, 1]], np.float32), schema)
    array([[1., 1., 0.],
           [0., 0., 1.]])
    """
    by = reading(schema)
    return packed.astype(np.float64) if by is None else by.features(packed)


def cells_of(schema: Schema) -> int:
    """How many cells the rows of a schema have.

    >>> from boltdp.data.schema import Categorical, Numeric, Schema
    >>> cells_of(Schema("y", (0, 1), (Numeric("age", 0, 100, curve=(18,)), Categorical("sex", ("F", "M")))))
    3
    """
    if schema.projection is not None:
        return schema.dims
    return unprojected_reading(schema).cells


def plain(schema: Schema) -> Schema:
    """The schema of the features as moments are taken of them.

    >>> from boltdp.data.schema import Numeric
    >>> plain(Schema("y", (0, 1), (Numeric("age", 0, 1),))).feature_names
    ('age',)
    """
    return replace(schema, clip_norm=1.0, intercept=False, projection=None, standardization=None)
