"""How the packed rows of a schema are read: what becomes of each cell, by public numbers and what was released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from boltdp._arrays import Doubles, PackedRows
from boltdp.kernel.feature_map import FeatureMap, Kind, Segment
from boltdp.schema.schema import Categorical, Column, Schema, Vector


def reading(schema: Schema) -> FeatureMap | None:
    """How the cells of the rows of a schema are read; None for one with a projection, whose cells are the features.

    >>> from boltdp.schema.schema import Categorical, Numeric, Classes, Schema
    >>> schema = Schema(Classes("y", (0, 1)), (Numeric("age", 0, 100), Categorical("sex", ("F", "M"))), clip_norm=2.0)
    >>> reading(schema).features(np.array([[1, 0.5, 1], [0, np.nan, -1]], np.float32))
    array([[1.  , 0.25, 0.  , 0.5 , 0.5 ],
           [0.  , 0.  , 0.  , 0.  , 0.5 ]])
    """
    return None if schema.projection is not None else unprojected_reading(schema)


class ColumnReading(NamedTuple):
    """A column and the two numbers of each of its features: a centre and a factor, or the values 0 and 1 stand for."""

    column: Column
    a: Doubles
    b: Doubles

    @property
    def numbers(self) -> int:
        """How many of the features are numbers; the others are categories or steps."""
        return len(self.a) - self.column.indicators


def column_readings(schema: Schema) -> Iterator[ColumnReading]:
    """How each column is read, before a projection.

    >>> from boltdp.schema.schema import Classes, Numeric
    >>> schema = Schema(Classes("y", (0, 1)), (Numeric("age", 0, 100, curve=(18,)),), clip_norm=2.0)
    >>> [reading[1:] for reading in column_readings(schema)]
    [(array([ 0.   , -0.125]), array([0.5  , 0.125]))]
    """
    for (column, centers, factors), (_, middles, steepness) in zip(schema.scalings(), schema.transforms(), strict=True):
        numbers = len(centers) - column.indicators
        absent, present = ((x - middles[numbers:]) * steepness[numbers:] for x in (0.0, 1.0))
        yield ColumnReading(
            column, np.concatenate([centers[:numbers], absent]), np.concatenate([factors[:numbers], present])
        )


def unprojected_reading(schema: Schema) -> FeatureMap:
    """How the cells are read, before they are projected."""
    segments = []
    for column, a, b in column_readings(schema):
        numbers = len(a) - column.indicators
        if numbers:
            segments.append(Segment("numbers", a[:numbers], b[:numbers]))
        if column.indicators:
            kind: Kind = "category" if isinstance(column, Categorical) else "steps"
            segments.append(Segment(kind, a[numbers:], b[numbers:]))
    if schema.intercept:
        segments.append(Segment("constant", np.array([schema.constant]), np.zeros(1)))
    return FeatureMap(segments)


def features(packed: PackedRows, schema: Schema) -> Doubles:
    """The labels and features of packed rows of a schema, for those who want all of them: (rows, 1 + dims).

    >>> from boltdp.schema.schema import Categorical, Classes, Schema
    >>> schema = Schema(Classes("y", (0, 1)), (Categorical("sex", ("F", "M")),), intercept=False)
    >>> features(np.array([[1, 0], [0, 1]], np.float32), schema)
    array([[1., 1., 0.],
           [0., 0., 1.]])
    """
    by = reading(schema)
    return packed.astype(np.float64) if by is None else by.features(packed)


def cells_of(schema: Schema) -> int:
    """How many cells the rows of a schema have.

    >>> from boltdp.schema.schema import Categorical, Numeric, Classes, Schema
    >>> cells_of(Schema(Classes("y", (0, 1)), (Numeric("age", 0, 100, curve=(18,)), Categorical("sex", ("F", "M")))))
    3
    """
    if schema.projection is not None:
        return schema.dims
    return unprojected_reading(schema).cells


def cell_of(schema: Schema, name: str) -> int:
    """The place of a column's first cell in the packed rows of a schema without a projection; the label has place 0.

    >>> from boltdp.schema.schema import Categorical, Numeric, Classes, Schema
    >>> columns = (Numeric("age", 0, 100, curve=(18,)), Categorical("sex", ("F", "M")))
    >>> cell_of(Schema(Classes("y", (0, 1)), columns), "sex")
    3
    """
    place = 1
    for column in schema.columns:
        if column.name == name:
            break
        place += column.length if isinstance(column, Vector) else 1 + bool(getattr(column, "curve", ()))
    return place


def plain(schema: Schema) -> Schema:
    """The schema of the features as moments are taken of them.

    >>> from boltdp.schema.schema import Classes, Numeric
    >>> plain(Schema(Classes("y", (0, 1)), (Numeric("age", 0, 1),))).feature_names
    ('age',)
    """
    return replace(schema, clip_norm=1.0, intercept=False, projection=None, standardization=None)
