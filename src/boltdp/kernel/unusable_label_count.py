"""The number of rows without a usable label: C in `unusable_label_count.c`."""

from __future__ import annotations

import numpy as np

from boltdp._array_types import PackedRows
from boltdp.errors import ParameterError
from boltdp.kernel.sgd import _library
from boltdp.kernel.sparse_rows import SparseRows
from boltdp.kernel.sum_state import Summation

_COUNT_AT = 7 * 8


class UnusableLabelCount(Summation):
    """The number of rows whose label is missing or not the index of one of `classes` classes; 0: no number.

    `neutral` is a packed row: rows with its cells, as those beyond a limit per person have, are not counted. One row
    changes the count by at most 1. The count is as sensitive as the rows.
    """

    _mismatch = "counts must stay those of the same classes and neutral row"

    def __init__(self, *, cells: int, classes: int, neutral: PackedRows | None = None) -> None:
        skipped = None
        if neutral is not None:
            if neutral.shape != (1, 1 + cells) or neutral.dtype != np.float32:
                raise ParameterError(f"neutral must be one packed row of {cells} cells, got shape {neutral.shape}")
            skipped = np.ascontiguousarray(neutral[0, 1:])
        self._skips_neutral = neutral is not None
        address = None if skipped is None else skipped.ctypes.data
        if self._allocate_block("unusable_label_count", cells, (cells, classes), None, address):
            raise ParameterError(f"there must be cells, and classes or none, got {cells} and {classes}")

    def add(self, rows: PackedRows | SparseRows, *, build: str | None = None) -> None:
        """Add a block of packed rows; of sparse ones the labels are enough, unless there is a neutral row."""
        if not isinstance(rows, SparseRows) or self._skips_neutral:
            super().add(rows, build=build)
            return
        labels = rows.labels
        _library.unusable_label_count_add_labels(
            self._block.ctypes.data, self._block.size, labels.ctypes.data, len(labels)
        )

    @property
    def count(self) -> int:
        return int(np.frombuffer(self._block, np.uint64, 1, _COUNT_AT)[0])
