"""The noisy Hessian of a training at its released weights, and the outer products of its gradients, for inference.

Each is a sum over rows, released once with noise: as a vector of its diagonal and, times the root of 2, of what is
above it, so that the norm of the vector is the Frobenius norm of the matrix. `noisy_matrix.md` has the sensitivities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError, check_choice
from boltdp.privacy.events.event import NoisyRelease, round_up
from boltdp.privacy.events.output_perturbation import check_dimensions
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.training_problem import Problem

#: The Hessian of the losses, or the sum of g g^T over the gradients g of the rows: the meat of a sandwich.
Matrix = Literal["hessian", "outer products"]


@dataclass(frozen=True)
class NoisyMatrix(NoisyRelease):
    """One release of a matrix."""

    kind = "noisy matrix"
    matrix: Matrix
    problem: Problem  #: of the training at whose released weights it is summed
    noise: Mechanism | None = None  #: of the released vector; None: noiseless

    def __post_init__(self) -> None:
        check_choice(self.matrix, "matrix", Matrix)
        if self.problem.loss.vector_count != 1:
            raise ParameterError(f"a noisy matrix must be of one weight vector, got {self.problem.loss.name!r}")
        if self.noise is not None:
            check_dimensions(self.noise, self.dimensions)

    @property
    def dimensions(self) -> int:
        """The length of the released vector."""
        return self.problem.dims * (self.problem.dims + 1) // 2

    @property
    def person_rows(self) -> int | None:
        return self.problem.person_rows

    @property
    def max_row_norm(self) -> float:
        """The largest Frobenius norm of the matrix of one row: of its curvature, or of its squared slope.

        Proof: noisy_matrix.md 1
        """
        loss = self.problem.loss
        return loss.smoothness if self.matrix == "hessian" else loss.lipschitz**2

    @property
    def sensitivity(self) -> float:
        """The L2-sensitivity of the released vector to one row, or one person, rounding included.

        Proof: noisy_matrix.md 1, 2
        """
        problem, norm = self.problem, self.max_row_norm * (1.0 + (self.problem.dims + 64) * 2.0**-50)
        rounding = problem.rows * problem.dims * (2.0 * problem.dims + 64.0) * 2.0**-51 * max(norm, 1.0)
        return round_up(problem.changed_rows * math.sqrt(2.0) * norm + rounding)

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        return 1.0 if self.noise is None else self.noise.delta(epsilon, sensitivity=self.sensitivity)

    def describe(self) -> str:
        what = "the Hessian" if self.matrix == "hessian" else "the outer products of the gradients"
        return f"{what} of {self.problem.dims:,} features" + (", without noise" if self.noise is None else "")


def flatten_matrix(matrix: Doubles) -> Doubles:
    """Return a symmetric matrix as a vector of the same norm: its upper triangle, row by row.

    >>> flatten_matrix(np.array([[1.0, 0.0], [0.0, 3.0]]))
    array([1., 0., 3.])
    """
    rows, columns = np.triu_indices(len(matrix))
    return np.asarray(np.where(rows == columns, 1.0, math.sqrt(2.0)) * matrix[rows, columns])


def unflatten_matrix(vector: Doubles) -> Doubles:
    """Return the symmetric matrix that `flatten_matrix` turns into this vector.

    >>> unflatten_matrix(np.array([1.0, 0.0, 3.0]))
    array([[1., 0.],
           [0., 3.]])
    """
    size = math.isqrt(2 * len(vector))
    rows, columns = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[rows, columns] = vector * np.where(rows == columns, 1.0, math.sqrt(0.5))
    return np.asarray(matrix + np.triu(matrix, 1).T)
