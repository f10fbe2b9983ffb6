"""Sums over rows, in one block of bytes that an engine can send to where the rows are stored, and back."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, PackedRows
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.feature_map import check_packed_rows
from boltdp.kernel.sgd import _allocate_aligned, _find_build_number, _get_address, _get_error_text, _library
from boltdp.kernel.sparse_rows import SparseRows

if TYPE_CHECKING:
    from typing_extensions import Self

    from boltdp.kernel.feature_map import FeatureMap


class Summation:
    """A sum over rows, which does not depend on their order or on how they are split into parts that are joined.

    In PostgreSQL, the aggregate boltdp.sums replaces `add`.
    """

    _mismatch: ClassVar[str]  #: error message for the block of another sum

    _vectors: int = 1  #: weight vectors by which a row is multiplied

    @property
    def row_work(self) -> int:
        """About how many multiplications a row takes."""
        return self._vectors * self.cells

    def _allocate_block(
        self,
        kind: str,
        cells: int,
        shape: tuple[int, ...],
        feature_map: FeatureMap | None,
        *arguments: float | None,
    ) -> int:
        """Make the block by the functions KIND_bytes and KIND_init of C, and return the error code."""
        pointer = _get_address(feature_map)
        self._feature_map = feature_map
        self.cells = cells  #: numbers per packed row, without the label
        self._block = _allocate_aligned(getattr(_library, f"{kind}_bytes")(*shape, pointer))
        init = getattr(_library, f"{kind}_init")
        code: int = init(self._block.ctypes.data, self._block.size, *shape, pointer, *arguments)
        self._first = self._block.copy()
        return code

    def add(self, rows: PackedRows | SparseRows, *, build: str | None = None) -> None:
        """Add a block of packed rows; for `build` see `sgd.run`."""
        if isinstance(rows, SparseRows):
            for block in rows.read_blocks():
                self.add(block, build=build)
            return
        number = _find_build_number(build)
        check_packed_rows("rows", rows)
        if rows.shape[1] != 1 + self.cells:
            raise ParameterError(f"rows must have 1 + {self.cells} columns, got {rows.shape[1]}")
        code = _library.sum_add(self._block.ctypes.data, self._block.size, rows.ctypes.data, len(rows), number)
        if code:
            raise ParameterError(_get_error_text(code))

    def copy_empty(self) -> Self:
        """Return a copy of this sum before its first row."""
        other = copy.copy(self)
        other._block = _allocate_aligned(self._first.size)
        other._block[:] = self._first
        return other

    def join(self, other: Self) -> None:
        """Add another sum, over other rows, that began as a copy by `copy_empty`."""
        if not self._join_block(other._block):
            raise ParameterError(self._mismatch)

    def _join_block(self, block: npt.NDArray[np.uint8]) -> bool:
        """Add the block of another sum; return False if it belongs to one with other weights or another feature map."""
        mine = self._block
        return block.size == mine.size and not _library.sum_join(mine.ctypes.data, mine.size, block.ctypes.data)

    def to_bytes(self) -> bytes:
        """Serialize the sum. It has weights and sums without noise: as sensitive as the rows."""
        return self._block.tobytes()

    def update(self, data: bytes) -> None:
        """Replace this sum by the bytes (of `to_bytes`) of its continuation in another process."""
        block = _allocate_aligned(len(data))
        block[:] = np.frombuffer(data, dtype=np.uint8)
        code = _library.sum_check(block.ctypes.data, block.size)
        if code:
            raise DataError(f"cannot continue from these bytes: {_get_error_text(code)}")
        if not self.copy_empty()._join_block(block):
            raise DataError(self._mismatch)
        self._block = block


def check_finite(name: str, numbers: Doubles, shape: tuple[int, ...]) -> Doubles:
    """Return a C-contiguous array; raise ParameterError unless it is finite and has the shape."""
    if numbers.shape != shape or not np.isfinite(numbers).all():
        raise ParameterError(f"{name} must be finite numbers of shape {shape}, got shape {numbers.shape}")
    return np.ascontiguousarray(numbers, dtype=np.float64)
