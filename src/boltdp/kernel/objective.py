"""Sums over all rows of the loss's gradient, its Hessian times a direction, or the Hessian: C in `objective.c`."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from boltdp.arraytypes import Doubles
from boltdp.errors import ParameterError
from boltdp.kernel import _library, _pointer, _weights_of_classes
from boltdp.kernel.sums import Block, finite_numbers
from boltdp.privacy.losses import Loss

#: The Hessian is summed for up to so many features.
MAX_HESSIAN_DIMS = 256

_GRADIENT, _PRODUCT, _HESSIAN = range(3)


class Sums(Block):
    """The derivative of the loss of all rows fed so far, at fixed weights of shape (vectors, dims).

    Without a direction it is the gradient, else the Hessian times the direction; with `hessian`, the Hessian with
    respect to each of the vectors. The loss of a row is multiplied by the weight of its class, if `class_weights` are
    given; its gradient, if it is then longer than `clip`, is shortened to it. `positive` and `classes` are those of
    `State`. Packed rows are guarded as there, and neutral ones add nothing. How rows are cut
    into blocks never changes a bit.

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

    aggregate: ClassVar[str] = "derivative"

    _check = _library.objective_check
    _add = _library.objective_add
    _fixed = 8 * 10
    _other = "sums must stay those of the same derivative"

    def __init__(
        self,
        loss: Loss,
        weights: Doubles,
        *,
        direction: Doubles | None = None,
        hessian: bool = False,
        clip: float = math.inf,
        positive: int = 1,
        classes: int = 2,
        class_weights: tuple[float, ...] | None = None,
    ) -> None:
        bent = hessian or direction is not None
        if bent and loss.simplex is None:
            raise ParameterError(f"loss must have a Hessian everywhere, got {loss.name!r}")
        if loss.vectors > 1:
            classes = loss.vectors
        weights = finite_numbers("weights", weights, (loss.vectors, weights.shape[-1]))
        direction = None if direction is None else finite_numbers("direction", direction, weights.shape)
        dims = weights.shape[1]
        if not clip > 0 or (bent and clip < math.inf):
            raise ParameterError(f"clip must be > 0, and infinite for anything but the gradient, got {clip}")
        if hessian and direction is not None:
            raise ParameterError("hessian must be False where there is a direction, got True")
        if hessian and dims > MAX_HESSIAN_DIMS:
            raise ParameterError(f"weights must have <= {MAX_HESSIAN_DIMS} dims for a Hessian, got {dims}")
        self._shape = (*weights.shape, dims) if hessian else weights.shape
        kind = _HESSIAN if hessian else _GRADIENT if direction is None else _PRODUCT
        shape = (loss.number, dims, classes, positive, kind, class_weights is not None)
        size = 0 if min(shape) < 0 else _library.objective_bytes(*shape)
        if size == 0:
            raise ParameterError(f"positive must be one of 2 or more classes, got {positive} of {classes}")
        by_class = _weights_of_classes(class_weights, classes)
        super().__init__(size, dims)
        arrays = [_pointer(weights), _pointer(direction), _pointer(by_class)]
        code = _library.objective_init(self._block.ctypes.data, size, *shape, loss.parameter, clip, *arrays)
        if code:
            raise ParameterError("class_weights must be above 0 and at most 1")

    @property
    def value(self) -> Doubles:
        """The sum, of shape (vectors, dims), or (vectors, dims, dims) for the Hessian: as private as the rows."""
        out = np.empty(self._shape)
        _library.objective_sum(self._block.ctypes.data, self._block.size, out.ctypes.data)
        return out
