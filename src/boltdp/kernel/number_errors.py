"""Sums of the errors of predicted numbers: C in `number_errors.c`."""

from __future__ import annotations

import numpy as np

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap, convert_to_slot_weights
from boltdp.kernel.sum_state import Summation, check_finite
from boltdp.losses import Loss

_HEADER_BYTES = 9 * 8
_UNIT = 2.0**-20


class NumberErrors(Summation):
    """The sum over rows of the error of each model, of which `loss.whole_error` counts as 1, and larger ones too.

    `weights` have shape (models, dims). A row without a usable label is a whole error of every model. One row changes
    each sum by at most 1. The sums are as sensitive as the rows.
    """

    _mismatch = "errors must stay those of the same models"

    def __init__(self, loss: Loss, weights: Doubles, *, feature_map: FeatureMap | None = None) -> None:
        models, dims = weights.shape
        of_slots = convert_to_slot_weights(check_finite("weights", weights, weights.shape), feature_map)
        cells = dims if feature_map is None else feature_map.cells
        self._models = self._vectors = models
        numbers = (loss.parameter, loss.whole_error, of_slots.ctypes.data)
        if self._allocate_block("number_errors", cells, (cells, loss.number, models), feature_map, *numbers):
            raise ParameterError(f"errors of numbers must be of a loss that predicts one, got {loss.name!r}")

    @property
    def counts(self) -> list[float]:
        sums = np.frombuffer(self._block, np.uint64, self._models, _HEADER_BYTES)
        return [_UNIT * int(one) for one in sums]
