"""The number of labels in each of equal bins from -1 to 1: C in `label_histogram.c`."""

from __future__ import annotations

import numpy as np

from boltdp._array_types import Integers
from boltdp.errors import ParameterError
from boltdp.kernel.sum_state import Summation

_COUNTS_AT = 6 * 8


class LabelHistogram(Summation):
    """The number of rows whose label is in each of `bins` equal bins from -1 to 1, a power of two.

    Rows with a missing label are in none. Replacing one row takes 1 from at most one count, and adds 1 to at most one.
    The counts are as sensitive as the rows.
    """

    _mismatch = "histograms must stay those of the same bins"

    def __init__(self, *, cells: int, bins: int) -> None:
        if self._allocate_block("label_histogram", cells, (cells, bins), None):
            raise ParameterError(f"there must be cells, and bins that are a power of two, got {cells} and {bins}")

    @property
    def counts(self) -> Integers:
        return np.frombuffer(self._block, np.uint64, -1, _COUNTS_AT).astype(np.int64)
