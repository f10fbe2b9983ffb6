"""Random projections of encoded rows to fewer features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boltdp._arrays import Doubles, PackedRows
from boltdp.encoding.declared_values import check_int


@dataclass(frozen=True)
class Projection:
    """Random Gaussian projection of the encoded row (the intercept included) to `dims` features.

    The seed is public: it is kept in the schema and the model.

    >>> Projection(dims=50, seed=17).dims
    50
    """

    dims: int
    seed: int

    def __post_init__(self) -> None:
        check_int(self.dims, "the dims of the projection", least=1)
        check_int(self.seed, "the seed of the projection", least=0)

    def make_matrix(self, dims: int) -> Doubles:
        """Make the Gaussian matrix that takes `dims` features to the projected ones: entries N(0, 1/projected dims).

        It is NumPy's PCG64 with the public seed, drawn row by row and rounded to float32, so that the last bit of a
        C library's logarithm cannot make it differ between machines.

        >>> Projection(dims=2, seed=17).make_matrix(3).shape
        (3, 2)
        """
        drawn = np.random.Generator(np.random.PCG64(self.seed)).standard_normal((dims, self.dims))
        rounded: PackedRows = (drawn / np.sqrt(self.dims)).astype(np.float32)
        return rounded.astype(np.float64)
