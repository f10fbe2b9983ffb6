"""Misclassification counts of several models: C in `misclassification.c`."""

from __future__ import annotations

import numpy as np

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap, convert_to_slot_weights
from boltdp.kernel.sum_state import Summation, check_finite

_HEADER_BYTES = 8 * 8


class ErrorCounts(Summation):
    """The number of misclassified rows of each model; weights of shape (models, vectors, dims).

    A model with one vector predicts class 1 if <w, x> > 0, else class 0; with one vector per class, it predicts the
    first class with the greatest <w, x>. A feature map converts cells to features, if given. Rows with an unknown
    class, or, without a feature map, with a feature that is not finite, are errors of every model. One row changes each
    count by at most 1. The counts are as sensitive as the rows.
    """

    _mismatch = "counts must stay those of the same models"

    def __init__(self, weights: Doubles, *, classes: int, feature_map: FeatureMap | None = None) -> None:
        if weights.ndim != 3:
            raise ParameterError(f"weights must have shape (models, vectors, dims), got {weights.ndim}-D")
        models, vectors, dims = weights.shape
        weights = check_finite("weights", weights, weights.shape)
        self._models, self._vectors = models, models * vectors
        cells = dims if feature_map is None else feature_map.cells
        of_slots = convert_to_slot_weights(weights, feature_map)
        if self._allocate_block(
            "misclassification", cells, (cells, classes, models, vectors), feature_map, of_slots.ctypes.data
        ):
            raise ParameterError(
                f"weights must be of 1 or more models with 1 vector, or one for each of 2 or more classes, got shape "
                f"{(models, vectors, dims)} for {classes} classes"
            )

    @property
    def counts(self) -> list[int]:
        counts: list[int] = np.frombuffer(self._block, np.uint64, self._models, _HEADER_BYTES).tolist()
        return counts
