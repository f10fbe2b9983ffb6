"""Sums over all rows of the gradient, its products, or the Hessian and its products: C in `loss_derivatives.c`."""

from __future__ import annotations

import math

import numpy as np

from boltdp._array_types import Doubles, PackedRows
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap, convert_to_slot_weights
from boltdp.kernel.hash_sampling import count_sampled_hashes
from boltdp.kernel.sgd import _convert_class_weights, _get_address, _library
from boltdp.kernel.sparse_rows import PLACES_MESSAGE, SparseRows
from boltdp.kernel.sum_state import Summation, check_finite
from boltdp.losses import Loss

#: Maximum number of slots of a matrix: one per feature, and up to two more per group.
MAX_HESSIAN_SLOTS = 1024

_GRADIENT, _PRODUCT, _HESSIAN, _OUTER = range(4)
_ROWS_OFFSET = 8 * 4


class DerivativeSums(Summation):
    """The derivative of the loss over all rows added so far, at fixed weights of shape (vectors, dims).

    It is the gradient; with a direction, the product of the Hessian and the direction; with `hessian`, the Hessian with
    respect to each of the vectors; with `outer`, the outer products of the rows' gradients. `class_weights` multiply
    the loss of each row. The gradient of each row is then clipped to the norm `clip`. `positive` and `classes` are
    those of `State`, as are the feature map and the checks of rows; neutral rows add nothing. With a `share` below 1,
    about this share of the rows is summed, sampled by a hash of their contents.

    Each row's terms are rounded to multiples of `SUM_GRID`, and their sums are exact: they do not depend on the order
    of the rows or on how rows are split.

    >>> from boltdp.losses import Logistic
    >>> sums = DerivativeSums(Logistic(), np.zeros((1, 1)))
    >>> sums.add(np.array([[1, 0.5], [0, -0.25]], dtype=np.float32))
    >>> sums.value, sums.rows
    (array([[-0.375]]), 2)
    """

    _mismatch = "sums must stay those of the same derivative"

    def __init__(
        self,
        loss: Loss,
        weights: Doubles,
        *,
        direction: Doubles | None = None,
        hessian: bool = False,
        outer: bool = False,
        clip: float = math.inf,
        positive: int = 1,
        classes: int = 2,
        class_weights: tuple[float, ...] | None = None,
        feature_map: FeatureMap | None = None,
        share: float = 1.0,
    ) -> None:
        matrix, second_order = hessian or outer, hessian or direction is not None
        if loss.vector_count > 1:
            classes = loss.vector_count
        weights = check_finite("weights", weights, (loss.vector_count, weights.shape[-1]))
        direction = None if direction is None else check_finite("direction", direction, weights.shape)
        dims = weights.shape[1]
        weights = convert_to_slot_weights(weights, feature_map)
        if not clip > 0 or ((matrix or second_order) and clip < math.inf):
            raise ParameterError(f"clip must be > 0, and infinite for anything but the gradient, got {clip}")
        if matrix + outer * hessian + (direction is not None) > 1:
            raise ParameterError("one of hessian, outer and a direction must be given at most, got several")
        if outer and loss.vector_count > 1:
            raise ParameterError(f"loss must have one weight vector for outer products, got {loss.name!r}")
        hashes = count_sampled_hashes(share)
        cells, slots = dims if feature_map is None else feature_map.cells, weights.shape[1]
        if matrix and slots > MAX_HESSIAN_SLOTS:
            raise ParameterError(f"weights must be of <= {MAX_HESSIAN_SLOTS} slots for a matrix, got {slots}")
        self._matrix, self._vectors = matrix, loss.vector_count
        # The kernel sums second derivatives of losses with kinks in units of the largest.
        self._unit = loss.smoothness if second_order and loss.simplex.kink_curvature is not None else 1.0
        self.share = share  #: the share of the rows that is summed
        self._shape = (loss.vector_count, slots, slots) if matrix else (loss.vector_count, slots)
        # The grid is fixed, so the direction is scaled to norm below 1, by a power of two, which is exact.
        self._exponent = 0
        if direction is not None:
            self._exponent = _find_exponent_above(direction)
            direction = convert_to_slot_weights(np.ldexp(direction, -self._exponent), feature_map)
        kind = _HESSIAN if hessian else _OUTER if outer else _GRADIENT if direction is None else _PRODUCT
        shape = (loss.number, cells, classes, positive, kind, class_weights is not None)
        by_class = _convert_class_weights(class_weights, classes)
        arrays = [_get_address(weights), _get_address(direction), _get_address(by_class)]
        code = self._allocate_block("derivatives", cells, shape, feature_map, loss.parameter, clip, hashes, *arrays)
        if not self._block.size:
            raise ParameterError(f"positive must be one of 2 or more classes, got {positive} of {classes}")
        if code:
            raise ParameterError("class_weights must be above 0 and at most 1")

    def add(self, rows: PackedRows | SparseRows, *, build: str | None = None) -> None:
        """Add a block of packed rows. The sum of a vector takes sparse ones as they are, for the same bits."""
        keeps_zeros = self._feature_map is not None and self._feature_map.keeps_zeros
        if not isinstance(rows, SparseRows) or self._matrix or self.share < 1.0 or not keeps_zeros:
            super().add(rows, build=build)
        elif rows.width != 1 + self.cells or _library.derivatives_add_sparse(
            self._block.ctypes.data, self._block.size, rows.block.ctypes.data
        ):
            raise ParameterError(PLACES_MESSAGE)

    @property
    def row_work(self) -> int:
        return super().row_work * (self.cells if self._matrix else 1)

    @property
    def rows(self) -> int:
        """The number of summed rows, without ignored ones, which is as sensitive as the rows."""
        return int(np.frombuffer(self._block, np.uint64, 1, _ROWS_OFFSET)[0])

    @property
    def value(self) -> Doubles:
        """The sum, of shape (vectors, dims) or (vectors, dims, dims), which is as sensitive as the rows."""
        out = np.empty(self._shape)
        _library.derivatives_sum(self._block.ctypes.data, self._block.size, out.ctypes.data)
        out = np.ldexp(out, self._exponent) * self._unit
        if self._feature_map is None:
            return out
        gathered = self._feature_map.gather_sums(out)
        if not self._matrix:
            return gathered
        return np.ascontiguousarray(self._feature_map.gather_sums(gathered.swapaxes(-1, -2)))


def _find_exponent_above(numbers: Doubles) -> int:
    """Return the exponent of a power of two above the L2 norm, without overflow or underflow."""
    largest = int(np.frexp(np.abs(numbers).max())[1])
    return largest + int(np.frexp(np.linalg.norm(np.ldexp(numbers, -largest)))[1])
