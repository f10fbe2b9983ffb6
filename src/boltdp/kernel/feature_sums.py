"""Sums of features and of their squares over all rows, for standardization: C in `feature_sums.c`."""

from __future__ import annotations

import numpy as np

from boltdp._array_types import Integers
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.sum_state import Summation

_HEADER_BYTES = 8 * 8
#: Sums are integer multiples of this unit.
UNIT = 2.0**-20


class FeatureSums(Summation):
    """The sums of the features and of their squares over all rows added so far, in multiples of UNIT.

    Features are clipped to [-1, 1] and rows to the norm `clip_norm` first. Each row is rounded by itself and the sums
    are exact, so that replacing one row changes only its own terms. The feature map must leave numbers unchanged, have
    0 and 1 for a category, and steps of one height, above or below zero.
    """

    _mismatch = "moments must stay those of the same features"

    def __init__(self, feature_map: FeatureMap | None = None, *, clip_norm: float, cells: int | None = None) -> None:
        if (feature_map is None) == (cells is None):
            raise ParameterError("either a feature map or the number of cells must be given")
        width = int(cells or 0) if feature_map is None else feature_map.cells
        if self._allocate_block("feature_sums", width, (width,), feature_map, clip_norm):
            raise ParameterError(f"clip_norm must be > 0 and rows have cells, got {clip_norm} and {width}")

    @property
    def value(self) -> Integers:
        """The sums of features and of their squares, of shape (2, dims), which are as sensitive as the rows."""
        slots = self.cells if self._feature_map is None else self._feature_map.slots
        sums = np.frombuffer(self._block, np.float64, 2 * slots, _HEADER_BYTES).astype(np.int64).reshape(2, slots)
        if self._feature_map is None:
            return sums
        parts = []
        for part, own in self._feature_map.split_slots(sums):
            # All features of a slot have the same height, so multiples of UNIT stay multiples of UNIT.
            if part.kind == "category":
                own = own[:, 1:]
            elif part.kind == "steps":
                below = np.cumsum(own[:, 1:], axis=1)
                above = below[:, -1:] - below
                own = np.stack([above[0] - below[0], above[1] + below[1]])[:, :-1]
            parts.append(own)
        return np.concatenate(parts, axis=1)
