"""The projection of packed rows by the C of `row_projection.c`, which encodes rows inside the package only."""

from __future__ import annotations

from ctypes import c_size_t, c_void_p

import numpy as np

from boltdp._array_types import Doubles, PackedRows
from boltdp._native import load_library
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import check_packed_rows


def project_rows(rows: PackedRows, matrix: Doubles, out: PackedRows) -> None:
    """Multiply the features of packed rows by a matrix, after scaling them into the unit ball as the row guard does.

    The projected features of a neutral row are NaN, so that it stays neutral.
    """
    check_packed_rows("rows", rows)
    check_packed_rows("out", out)
    dims, outputs = matrix.shape
    if rows.shape[1] != 1 + dims or out.shape != (len(rows), 1 + outputs):
        raise ParameterError(
            f"rows must have 1 + {dims} columns and out {len(rows)} rows of 1 + {outputs}, got shapes {rows.shape} and "
            f"{out.shape}"
        )
    matrix = np.ascontiguousarray(matrix, dtype=np.float64)
    _library.project_features(rows.ctypes.data, rows.shape[0], dims, matrix.ctypes.data, outputs, out.ctypes.data)


_library = load_library({"project_features": (None, [c_void_p, c_size_t, c_size_t, c_void_p, c_size_t, c_void_p])})
