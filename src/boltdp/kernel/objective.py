"""Sums over all rows of the loss's gradient, its Hessian times a direction, or the Hessian: C in `objective.c`."""

from __future__ import annotations

import numpy as np

from boltdp.arraytypes import Doubles, PackedRows
from boltdp.errors import DataError, ParameterError
from boltdp.kernel import _BUILDS, _FASTEST, _LOSSES, _aligned_block, _error_text, _library, builds
from boltdp.privacy.losses import HuberSVM, Loss, Multinomial

#: The Hessian is summed for up to so many features.
MAX_HESSIAN_DIMS = 256

_GRADIENT, _PRODUCT, _HESSIAN = range(3)
_HEADER = 7 * 8  #: bytes of a state that say what it sums


class Sums:
    """The derivative of the loss of all rows fed so far, at fixed weights of shape (vectors, dims).

    Without a direction it is the gradient, else the Hessian times the direction; with `hessian`, the Hessian with
    respect to each of the vectors. `positive` and `classes` are those of `State`. Packed rows are guarded as there, and
    neutral ones add nothing. How rows are cut into blocks never changes a bit.

    >>> from boltdp.privacy.losses import Logistic
    >>> sums = Sums(Logistic(), np.zeros((1, 1)))
    >>> sums.add(np.array([[1, 0.5], [0, -0.25]], dtype=np.float32))
    >>> sums.value
    array([[-0.375]])
    >>> sums = Sums(Logistic(), np.zeros((1, 1)), hessian=True)
    >>> sums.add(np.array([[1, 0.5], [0, -0.5]], dtype=np.float32))
    >>> sums.value
    array([[[0.125]]])
    """

    def __init__(
        self,
        loss: Loss,
        weights: Doubles,
        *,
        direction: Doubles | None = None,
        hessian: bool = False,
        positive: int = 1,
        classes: int = 2,
    ) -> None:
        if isinstance(loss, HuberSVM):
            raise ParameterError("loss must have a Hessian everywhere, got 'huber'")
        if isinstance(loss, Multinomial):
            classes = loss.classes
        self._weights = _numbers("weights", weights, (loss.vectors, weights.shape[-1]))
        self._direction = None if direction is None else _numbers("direction", direction, self._weights.shape)
        self._dims = self._weights.shape[1]
        if hessian and direction is not None:
            raise ParameterError("hessian must be False where there is a direction, got True")
        if hessian and self._dims > MAX_HESSIAN_DIMS:
            raise ParameterError(f"weights must have <= {MAX_HESSIAN_DIMS} dims for a Hessian, got {self._dims}")
        self._shape = (*self._weights.shape, self._dims) if hessian else self._weights.shape
        kind = _HESSIAN if hessian else _GRADIENT if direction is None else _PRODUCT
        shape = (_LOSSES[loss.name], self._dims, classes, positive, kind)
        size = 0 if min(shape) < 0 else _library.objective_bytes(*shape)
        if size == 0:
            raise ParameterError(f"positive must be one of 2 or more classes, got {positive} of {classes}")
        self._block = _aligned_block(size)
        along = None if self._direction is None else self._direction.ctypes.data
        _library.objective_init(self._block.ctypes.data, size, *shape, self._weights.ctypes.data, along)

    def add(self, rows: PackedRows, *, build: str | None = None) -> None:
        """Add a block of packed rows; `build` is that of `kernel.run`."""
        if build is not None and build not in builds():
            raise ParameterError(f"build must be one of {', '.join(builds())}, got {build!r}")
        if rows.dtype != np.float32 or rows.ndim != 2 or not rows.flags.c_contiguous:
            raise ParameterError(f"rows must be a C-contiguous 2-D array of float32, got {rows.ndim}-D {rows.dtype}")
        if rows.shape[1] != 1 + self._dims:
            raise ParameterError(f"rows must have 1 + {self._dims} columns, got {rows.shape[1]}")
        number = _FASTEST if build is None else _BUILDS[build]
        _library.objective_add(self._block.ctypes.data, self._block.size, rows.ctypes.data, len(rows), number)

    def combine(self, other: Sums) -> None:
        """Add what another has summed at the same weights and direction."""
        given = other._block
        code = _library.objective_combine(self._block.ctypes.data, self._block.size, given.ctypes.data, given.size)
        if code:
            raise DataError(f"cannot combine these sums: {_error_text(code)}")

    def to_bytes(self) -> bytes:
        """Everything needed to go on elsewhere. It holds un-noised weights: as private as the rows."""
        return self._block.tobytes()

    def update(self, data: bytes) -> None:
        """Go on from what another process has made of these sums: their `to_bytes`."""
        block = _aligned_block(len(data))
        block[:] = np.frombuffer(data, dtype=np.uint8)
        code = _library.objective_check(block.ctypes.data, block.size)
        if code:
            raise DataError(f"cannot go on from these bytes: {_error_text(code)}")
        if block[:_HEADER].tobytes() != self._block[:_HEADER].tobytes():
            raise DataError("sums must stay those of the same derivative")
        self._block = block

    @property
    def value(self) -> Doubles:
        """The sum, of shape (vectors, dims), or (vectors, dims, dims) for the Hessian: as private as the rows."""
        out = np.empty(self._shape)
        _library.objective_sum(self._block.ctypes.data, self._block.size, out.ctypes.data)
        return out


def _numbers(name: str, given: Doubles, shape: tuple[int, ...]) -> Doubles:
    """As a C array of the shape, all finite."""
    if given.shape != shape or not np.isfinite(given).all():
        raise ParameterError(f"{name} must be finite numbers of shape {shape}, got shape {given.shape}")
    return np.ascontiguousarray(given, dtype=np.float64)
