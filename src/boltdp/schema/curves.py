"""Curves: step functions of a number at public places between its bounds.

A linear model of a number and its steps is a piecewise linear curve that can jump at every place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from boltdp._array_types import Doubles
from boltdp.encoding.declared_values import check_integer
from boltdp.errors import ParameterError, show_value
from boltdp.privacy.events.noisy_counts import BINS

if TYPE_CHECKING:
    from boltdp.schema.columns import Numeric
    from boltdp.schema.schema import Schema

#: "even": equal distances; "log": distances that grow exponentially from the lower bound, or from 0.
Spacing = Literal["even", "log"]

MAX_PLACES = 64
#: The ratio of the largest to the smallest distance for the spacing "log".
BASE = 1000.0
#: The number of significant digits of the distance of a place from the start of its range.
PLACE_DIGITS = 3
#: Automatic curves of ranges at least this wide, from or around 0, have the spacing "log".
MIN_LOG_WIDTH = 1000.0
#: The number of evenly spaced bins, and the ratio of the distances of the edges of all others from their anchor.
EVEN_BINS, BIN_RATIO = 32, 1.5


def compute_step_thresholds(column: Numeric, count: Any, spacing: Any = "even") -> tuple[float, ...]:
    """Compute the thresholds of a curve of `count` steps from the public bounds of a column alone."""
    what = f"the curve of {column.name!r}"
    check_integer(count, what, least=1)
    if count > MAX_PLACES:
        raise ParameterError(f"{what} must have at most {MAX_PLACES} places, got {show_value(count)}")
    if spacing not in get_args(Spacing):
        raise ParameterError(
            f"the spacing of {what} must be one of {', '.join(get_args(Spacing))}, got {show_value(spacing)}"
        )
    low, high, last = column.low, column.high, count + 1
    if spacing == "even":
        return tuple(_add_rounded(low, (high - low) * step / last) for step in range(1, last))
    if low >= 0:
        return tuple(_add_rounded(low, _space_exponentially(high - low, step / last)) for step in range(1, last))
    if low != -high:
        raise ParameterError(
            f"the spacing of {what} must be even unless its bounds are at least 0 or symmetric around 0, "
            f"got [{low:g}, {high:g}]"
        )
    steps = [2 * step - last for step in range(1, last)]
    return tuple(_add_rounded(0.0, math.copysign(_space_exponentially(high, abs(step) / last), step)) for step in steps)


def _add_rounded(start: float, distance: float) -> float:
    """Return start + distance, rounded to a few digits of the distance, for readable feature names."""
    if not 0 < abs(distance) < math.inf:
        return start + distance
    digits = PLACE_DIGITS - 1 - math.floor(math.log10(abs(distance)))
    # Not rounded if doubles are too coarse for it.
    short = round(start + distance, digits)
    return short if abs(short - start - distance) <= 0.01 * abs(distance) else start + distance


def add_curves(schema: Schema, count: int) -> Schema:
    """Return the schema with curves of at most `count` steps, chosen by its bounds alone, where none is declared.

    Numbers within [-1, 1] have none: they are indicators or already scaled. Wide ranges from or around 0 have the
    spacing "log", and ranges of few whole numbers at most one threshold between two neighbours. A schema with a
    projection or a standardization is returned unchanged.
    """
    if count == 0 or schema.projection is not None or schema.standardization is not None:
        return schema
    return replace(schema, columns=tuple(column.add_curve(count) for column in schema.columns))


def choose_step_thresholds(column: Numeric, count: int) -> tuple[float, ...]:
    """Choose the thresholds of an automatic curve of at most `count` steps from the public bounds of a column."""
    low, high = column.low, column.high
    width = high - low
    if low >= -1 and high <= 1:
        return ()
    if low.is_integer() and high.is_integer() and width - 1 < 2 * count + 2:
        gaps, taken = int(width), min(int(width), count)
        thresholds = tuple(low + (2 * step + 1) * gaps // (2 * taken) + 0.5 for step in range(taken))
    else:
        thresholds = compute_step_thresholds(column, count, "log" if _is_wide(column) else "even")
    # If the bounds are extremely close or far apart, rounding can move thresholds outside.
    return tuple(sorted({one for one in thresholds if low < one < high}))


@lru_cache(maxsize=4096)
def choose_bin_edges(column: Numeric) -> tuple[float, ...]:
    """Choose the inner edges of the bins in which the numbers of a column are counted, from its public bounds alone.

    Half of the bins are even. The others get narrower towards 0, or the bound that is nearest to it, so that numbers
    are distinguished there even if the bounds are far too wide.
    """
    low, high, anchor = column.low, column.high, _find_anchor(column)
    edges = {edge for edge in (*compute_step_thresholds(column, EVEN_BINS - 1), anchor) if low < edge < high}
    for power in range(1, BINS):
        for bound in (high, low):
            edge = _add_rounded(anchor, (bound - anchor) / BIN_RATIO**power)
            if len(edges) < BINS - 1 and low < edge < high:
                edges.add(edge)
    return tuple(sorted(edges))


def place_steps(column: Numeric, shares: Doubles) -> Numeric:
    """Return the column with the steps of its curve moved to quantiles of the shares of rows that are in each bin.

    Many rows in the first or last bin, such as zeros, are mostly equal to the bound: more than a step or two there
    would not tell them apart.
    """
    count, edges = len(column.curve), np.array([column.low, *choose_bin_edges(column), column.high])
    shares = shares.copy()
    shares[[0, -1]] = np.minimum(shares[[0, -1]], 1.0 / (count + 1))
    ranks = np.append(0.0, np.cumsum(shares)) / max(float(shares.sum()), 1e-9)
    places = np.interp(np.arange(1, count + 1) / (count + 1), ranks, edges)
    anchor = _find_anchor(column)
    rounded = [_add_rounded(anchor, place - anchor) for place in places.tolist()]
    curve = rounded if _are_inside(column, rounded) else places.tolist()
    return replace(column, curve=tuple(curve), curve_source="private") if _are_inside(column, curve) else column


def _find_anchor(column: Numeric) -> float:
    """Return 0, or the bound that is nearest to it: bins are narrowest there."""
    return min(max(0.0, column.low), column.high)


def _are_inside(column: Numeric, places: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise((column.low, *places, column.high)))


def _is_wide(column: Numeric) -> bool:
    """Return whether the bounds are those of amounts: from or around 0 and wide. Others are evenly spaced."""
    return column.low in (0.0, -column.high) and column.high - column.low >= MIN_LOG_WIDTH


def _space_exponentially(width: float, exponent: float) -> float:
    """Compute width (BASE^exponent - 1) / (BASE - 1): a distance that grows exponentially from 0 to `width`."""
    # Rounded, so that the last bit of a C library's power cannot make it differ between machines.
    return width * round(math.pow(BASE, exponent) - 1.0, 9) / (BASE - 1.0)
