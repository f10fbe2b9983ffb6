"""Random projections of encoded rows to fewer features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boltdp._array_types import Doubles, PackedRows
from boltdp.encoding.declared_values import check_integer


@dataclass(frozen=True)
class Projection:
    """Random Gaussian projection of the encoded row, including the intercept, to `dims` features.

    The seed is public: it is part of the schema and the model.
    """

    dims: int
    seed: int

    def __post_init__(self) -> None:
        check_integer(self.dims, "the dims of the projection", least=1)
        check_integer(self.seed, "the seed of the projection", least=0)

    def make_matrix(self, input_dims: int) -> Doubles:
        """Draw the matrix from `input_dims` features to `dims` features, with entries N(0, 1/dims).

        It is drawn from NumPy's PCG64 with the public seed, and rounded to float32, so that the last bit of a C
        library's logarithm cannot make it differ between machines.
        """
        drawn = np.random.Generator(np.random.PCG64(self.seed)).standard_normal((input_dims, self.dims))
        rounded: PackedRows = (drawn / np.sqrt(self.dims)).astype(np.float32)
        return rounded.astype(np.float64)
