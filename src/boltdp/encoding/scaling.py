"""The encoding of numbers as plain lists, for those who do it elsewhere: in a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from boltdp.schema.schema import Categorical, Numeric, Transform


def number_scaling(transforms: Sequence[Transform]) -> dict[str, list[float]]:
    """Low, high, middle and factor of each number; a category is the number 0 or 1 here.

    >>> from boltdp.schema.schema import Classes, Schema
    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100, curve=(18,)), Categorical("sex", ("F", "M"))))
    >>> number_scaling([*schema.transforms()])["high"]
    [100.0, 1.0, 1.0]
    """
    scaling: dict[str, list[float]] = {"low": [], "high": [], "middle": [], "factor": []}
    for column, middles, factors in transforms:
        low, high = (-1.0, 1.0) if isinstance(column, Categorical) else (column.low, column.high)
        # The steps of a number follow from it.
        count = 1 if isinstance(column, Numeric) else len(middles)
        scaling["low"] += [low] * count
        scaling["high"] += [high] * count
        scaling["middle"] += middles[:count].tolist()
        scaling["factor"] += factors[:count].tolist()
    return scaling


def step_values(transforms: Sequence[Transform]) -> dict[str, list[Any]] | None:
    """How many steps each of these numbers has; and of all steps, their places and what is below and from there on.

    None if there are no steps at all.

    >>> from boltdp.schema.schema import Classes, Schema
    >>> columns = (Numeric("age", 0, 100, curve=(18,)), Numeric("bmi", 0, 80))
    >>> schema = Schema(Classes("y", (0, 1)), columns, clip_norm=2.0)
    >>> step_values([*schema.transforms()])
    {'steps': [1, 0], 'places': [18.0], 'absent': [-0.125], 'present': [0.125]}
    """
    values: dict[str, list[Any]] = {"steps": [], "places": [], "absent": [], "present": []}
    for column, middles, factors in transforms:
        if isinstance(column, Numeric):
            absent, present = ((x - middles[1:]) * factors[1:] for x in (0.0, 1.0))
            values["steps"].append(len(column.curve))
            values["places"] += column.curve
            values["absent"] += absent.tolist()
            values["present"] += present.tolist()
        else:
            values["steps"] += [0] * len(middles)
    return values if values["places"] else None
