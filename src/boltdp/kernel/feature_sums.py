"""Sums of features and of their squares over all rows, for standardization: C in `feature_sums.c`."""

from __future__ import annotations

import numpy as np

from boltdp._arrays import Integers
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.sgd import _library, feature_map_pointer
from boltdp.kernel.sum_state import Summation

_HEADER_BYTES = 8 * 8
#: Sums are integer multiples of this unit.
UNIT = 2.0**-20


class FeatureSums(Summation):
    """The sums of the features and of their squares over all rows added so far, in multiples of UNIT.

    Features are clipped to [-1, 1] and rows to the norm `clip_norm` first. Each row is rounded by itself and the sums
    are exact, so that replacing one row changes only its own terms. The feature map must leave numbers unchanged, have
    0 and 1 for a category, and steps of one height, above or below zero.

    >>> moments = FeatureSums(clip_norm=1.0, cells=2)
    >>> moments.add(np.array([[0, 0.5, 0], [1, 3, 0]], np.float32))
    >>> moments.value * UNIT
    array([[1.5 , 0.  ],
           [1.25, 0.  ]])
    """

    aggregate = "moments"

    _check = _library.feature_sums_check
    _add = _library.feature_sums_add
    _join = _library.feature_sums_join
    _mismatch = "moments must stay those of the same features"

    def __init__(self, feature_map: FeatureMap | None = None, *, clip_norm: float, cells: int | None = None) -> None:
        if (feature_map is None) == (cells is None):
            raise ParameterError("either a feature map or the number of cells must be given")
        self._feature_map = feature_map
        width = int(cells or 0) if feature_map is None else feature_map.cells
        size = _library.feature_sums_bytes(width, feature_map_pointer(feature_map)) if width > 0 else 0
        super().__init__(size, width)
        code = _library.feature_sums_init(
            self._block.ctypes.data, size, width, feature_map_pointer(feature_map), clip_norm
        )
        if code:
            raise ParameterError(f"clip_norm must be > 0 and rows have cells, got {clip_norm} and {width}")
        self._save_initial_block()

    @property
    def value(self) -> Integers:
        """The sums, of shape (2, dims), which are as private as the rows."""
        slots = self._cells if self._feature_map is None else self._feature_map.slots
        sums = np.frombuffer(self._block, np.float64, 2 * slots, _HEADER_BYTES).astype(np.int64).reshape(2, slots)
        if self._feature_map is None:
            return sums
        parts, dense, at = [], 0, self._feature_map.dense
        for part in self._feature_map.segments:
            if not part.is_group:
                parts.append(sums[:, dense : dense + len(part.a)])
                dense += len(part.a)
                continue
            # All features of a slot have the same height, so multiples of UNIT stay multiples of UNIT.
            slots_of_part, at = sums[:, at : at + part.slots], at + part.slots
            if part.kind == "category":
                parts.append(slots_of_part[:, 1:])
            else:
                below = np.cumsum(slots_of_part[:, 1:], axis=1)
                above = below[:, -1:] - below
                parts.append(np.stack([above[0] - below[0], above[1] + below[1]])[:, :-1])
        return np.concatenate(parts, axis=1)
