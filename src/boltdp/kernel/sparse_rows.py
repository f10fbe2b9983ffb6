"""Packed rows most of whose cells are 0, as the cells that are not: see `sparse_rows.h`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Integers, PackedRows
from boltdp.errors import ParameterError

#: The number of cells of a block of rows in full.
BLOCK_CELLS = 1 << 20

PLACES_MESSAGE = "the places of each sparse row must be ascending, and places of its cells"


class SparseRows:
    """Packed rows of `width` numbers, the label first: row i has `cells[k]` at `places[k]` for k from starts[i] on.

    The places of a row are ascending, and end before starts[i + 1]; all its other cells are 0.

    >>> labels, cells = np.array([1, 0], np.float32), np.array([5, 6, 7], np.float32)
    >>> rows = SparseRows(labels, np.array([0, 1, 3]), np.array([2, 0, 1], np.int32), cells, width=4)
    >>> [*rows.read_blocks()]
    [array([[1., 0., 0., 5.],
           [0., 6., 7., 0.]], dtype=float32)]
    """

    def __init__(
        self, labels: PackedRows, starts: Integers, places: npt.NDArray[np.int32], cells: PackedRows, *, width: int
    ) -> None:
        arrays: tuple[npt.NDArray[Any], ...] = (labels, starts, places, cells)
        kinds = (np.float32, np.int64, np.int32, np.float32)
        if any(
            array.dtype != kind or array.ndim != 1 or not array.flags.c_contiguous
            for array, kind in zip(arrays, kinds, strict=True)
        ):
            raise ParameterError("labels and cells must be arrays of float32, starts of int64 and places of int32")
        if len(starts) != 1 + len(labels) or len(places) != len(cells):
            raise ParameterError(
                f"{len(labels)} labels must have one more start, got {len(starts)}, and {len(cells)} cells as many "
                f"places, got {len(places)}"
            )
        self._labels, self._starts, self._places, self._cells = labels, starts, places, cells
        self.width = width  #: numbers per packed row

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def labels(self) -> PackedRows:
        return self._labels

    @cached_property
    def block(self) -> npt.NDArray[np.uint64]:
        """`struct sparse_rows`, which is valid while this object lives."""
        arrays = (self._labels, self._starts, self._places, self._cells)
        return np.array([*(array.ctypes.data for array in arrays), len(self), len(self._cells)], np.uint64)

    def split(self, rows: int) -> Iterator[SparseRows]:
        """Yield views of the rows in order, at most this many at a time."""
        for at in range(0, len(self), rows):
            stop = min(at + rows, len(self))
            starts = self._starts[at : stop + 1]
            yield SparseRows(self._labels[at:stop], starts, self._places, self._cells, width=self.width)

    def read_blocks(self) -> Iterator[PackedRows]:
        """Yield the packed rows in full, in blocks of about BLOCK_CELLS cells."""
        for part in self.split(max(1, BLOCK_CELLS // self.width)):
            block = np.zeros((len(part), self.width), np.float32)
            first, last = int(part._starts[0]), int(part._starts[-1])
            rows = np.repeat(np.arange(len(part)), np.diff(part._starts))
            block[:, 0] = part._labels
            block[rows, 1 + self._places[first:last]] = self._cells[first:last]
            yield block
