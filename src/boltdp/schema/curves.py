"""Where the steps of a curve are: at public places, spread over the bounds of a column.

A linear model of a number and of its steps is a curve of the number: it may rise, fall and jump at every place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from boltdp.encoding.declared_values import check_int
from boltdp.errors import ParameterError, shown

if TYPE_CHECKING:
    from boltdp.schema.columns import Numeric
    from boltdp.schema.schema import Schema

#: "even": as far from each other; "log": the closer, the nearer to the lower bound, or to 0.
Spacing = Literal["even", "log"]

#: Places of a curve, at most.
MAX_PLACES = 64
#: How many times as far as at the lower end (or at 0) places spaced by "log" are from each other at the upper end.
BASE = 1000.0
#: Of the distance of a place from where its range begins.
PLACE_DIGITS = 3
#: A range this wide, from or around 0, has curves spaced by "log", unless its curve is declared.
WIDE = 1000.0


def curve_places(column: Numeric, count: Any, spacing: Any = "even") -> tuple[float, ...]:
    """Space the places of a curve of `count` steps, by the bounds of a column alone.

    >>> from boltdp.schema.columns import Numeric
    >>> curve_places(Numeric("age", 0, 100), 4)
    (20.0, 40.0, 60.0, 80.0)
    >>> [round(place) for place in curve_places(Numeric("pay", 0, 999_000), 2, "log")]
    [9000, 99000]
    >>> [round(place) for place in curve_places(Numeric("change", -999, 999), 5, "log")]
    [-99, -9, 0, 9, 99]
    """
    what = f"the curve of {column.name!r}"
    check_int(count, what, least=1)
    if count > MAX_PLACES:
        raise ParameterError(f"{what} must have at most {MAX_PLACES} places, got {shown(count)}")
    if spacing not in get_args(Spacing):
        raise ParameterError(
            f"the spacing of {what} must be one of {', '.join(get_args(Spacing))}, got {shown(spacing)}"
        )
    low, high, last = column.low, column.high, count + 1
    if spacing == "even":
        return tuple(_add_rounded(low, (high - low) * step / last) for step in range(1, last))
    if low >= 0:
        return tuple(_add_rounded(low, _scale(high - low, step / last)) for step in range(1, last))
    if low != -high:
        raise ParameterError(
            f"the spacing of {what} must be even unless its bounds are at least 0 or symmetric around 0, "
            f"got [{low:g}, {high:g}]"
        )
    steps = [2 * step - last for step in range(1, last)]
    return tuple(_add_rounded(0.0, math.copysign(_scale(high, abs(step) / last), step)) for step in steps)


def _add_rounded(start: float, distance: float) -> float:
    """Add a distance to a start, rounded to a few digits of it, for names that can be read."""
    if not 0 < abs(distance) < math.inf:
        return start + distance
    digits = PLACE_DIGITS - 1 - math.floor(math.log10(abs(distance)))
    # Where doubles are no finer than that, it is left as it is.
    short = round(start + distance, digits)
    return short if abs(short - start - distance) <= 0.01 * abs(distance) else start + distance


def add_curves(schema: Schema, count: int) -> Schema:
    """Return the schema with curves of at most `count` steps, chosen by its bounds alone, where none is declared.

    Numbers within [-1, 1] get none: they are indicators or scaled already. Those of wide ranges from or around 0 get
    places spaced by "log", and those of few whole numbers at most one place between two neighbours. A schema with a
    projection, or with a standardization, which counts the features, is returned as it is.

    >>> from boltdp.schema.schema import Classes, Numeric, Schema
    >>> columns = (Numeric("age", 0, 100), Numeric("rooms", 1, 3), Numeric("smokes", 0, 1))
    >>> schema = Schema(Classes("sick", (0, 1)), columns)
    >>> [column.curve for column in add_curves(schema, 4).columns]
    [(20.0, 40.0, 60.0, 80.0), (1.5, 2.5), ()]
    """
    if count == 0 or schema.projection is not None or schema.standardization is not None:
        return schema
    return replace(schema, columns=tuple(column.add_curve(count) for column in schema.columns))


def choose_places(column: Numeric, count: int) -> tuple[float, ...]:
    """Choose the places of a curve of at most `count` steps, by the bounds of a column alone."""
    low, high = column.low, column.high
    width = high - low
    if low >= -1 and high <= 1:
        return ()
    if low.is_integer() and high.is_integer() and width - 1 < 2 * count + 2:
        gaps, taken = int(width), min(int(width), count)
        places = tuple(low + (2 * step + 1) * gaps // (2 * taken) + 0.5 for step in range(taken))
    else:
        # Amounts and distances from 0 on; what is far from 0 already, as years and heights are, is as fine everywhere.
        wide = low in (0.0, -high) and width >= WIDE
        places = curve_places(column, count, "log" if wide else "even")
    # Where the bounds are as close to each other, or as far, as doubles can be, not every place is one.
    return tuple(sorted({place for place in places if low < place < high}))


def _scale(width: float, exponent: float) -> float:
    """Compute width (BASE^exponent - 1) / (BASE - 1)."""
    # Rounded, so that the last bit of a C library's power cannot make it differ between machines.
    return width * round(math.pow(BASE, exponent) - 1.0, 9) / (BASE - 1.0)
