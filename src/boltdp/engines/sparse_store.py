"""Prepared sparse rows, in the memory of this process: what they take is proportional to the numbers other than 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from boltdp import _interrupts
from boltdp._array_types import Integers, PackedRows
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.sgd import State
from boltdp.kernel.sparse_rows import SparseRows
from boltdp.kernel.sum_state import Summation

#: The number of rows that a sum takes between checks for an interrupt.
SCANNED_ROWS = 1 << 16


class PreparedSparseRows(PreparedRows):
    """Sparse rows for sums only. Gradients and products of Hessians take them as they are, other sums in full."""

    def __init__(self, rows: SparseRows, feature_map: FeatureMap | None) -> None:
        super().__init__(0, len(rows), cells=rows.width - 1, feature_map=feature_map, permuted=False)
        self._sparse = rows

    def read_blocks(self) -> Iterator[PackedRows]:
        return self._sparse.read_blocks()

    def add_to_sums(self, sums: Sequence[Summation]) -> None:
        self._check_width(sums)
        for part in self._sparse.split(SCANNED_ROWS):
            _interrupts.check()
            for each in sums:
                each.add(part)

    def reshuffle(self, seed: int) -> None:
        self._check_permuted()

    def run_sampled_batches(self, states: Sequence[State], positions: Iterable[Integers]) -> None:
        self._check_permuted()

    def close(self) -> None:
        del self._sparse
