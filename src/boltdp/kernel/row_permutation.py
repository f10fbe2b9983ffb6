"""The permutation of rows by a seed, and the copying of rows to their new positions: C in `row_permutation.c`."""

from __future__ import annotations

from ctypes import c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Integers, PackedRows
from boltdp._native import load_library
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import check_packed_rows

#: A bucket has at most 2^MAX_SHIFT positions.
MAX_SHIFT = 32


def compute_permuted_positions(start: int, count: int, *, rows: int, seed: int) -> Integers:
    """Return the new positions of the rows start .. start+count-1 under the permutation of the seed."""
    return _compute_positions(_library.permutation_apply, start, count, rows=rows, seed=seed)


def compute_source_positions(start: int, count: int, *, rows: int, seed: int) -> Integers:
    """Return which rows the permutation of the seed moves to the positions start .. start+count-1."""
    return _compute_positions(_library.permutation_invert, start, count, rows=rows, seed=seed)


def take_rows(rows: PackedRows, positions: Integers, out: PackedRows) -> None:
    """Copy rows by source position: `out[i] = rows[positions[i]]`."""
    _check_positions(positions, rows=len(rows))
    _copy_rows(_library.permutation_take, rows, positions, out, count=len(out))


def put_rows(rows: PackedRows, positions: Integers, out: PackedRows) -> None:
    """Copy rows by target position: `out[positions[i]] = rows[i]`; of rows with the same position, one wins."""
    _check_positions(positions, rows=len(out))
    _copy_rows(_library.permutation_put, rows, positions, out, count=len(rows))


def sort_by_bucket(
    positions: Integers, *, shift: int, buckets: int
) -> tuple[Integers, npt.NDArray[np.uint32], Integers]:
    """Sort rows by bucket of 2^shift positions; return their order, positions in buckets, and the bucket sizes."""
    if not 0 <= shift <= MAX_SHIFT or buckets < 1:
        raise ParameterError(f"shift must be from 0 to {MAX_SHIFT} and buckets >= 1, got {shift} and {buckets}")
    _check_positions(positions, rows=buckets << shift)
    order, slots = np.empty(len(positions), np.int64), np.empty(len(positions), np.uint32)
    counts = np.empty(buckets, np.int64)
    arrays = (order.ctypes.data, slots.ctypes.data, counts.ctypes.data)
    _library.permutation_sort(positions.ctypes.data, len(positions), shift, buckets, *arrays)
    return order, slots, counts


def _compute_positions(function: Any, start: int, count: int, *, rows: int, seed: int) -> Integers:
    """Check a range of rows, and return its positions under a permutation or its inverse."""
    if not 1 <= rows <= 2**62:
        raise ParameterError(f"rows must be from 1 to 2^62, got {rows}")
    if start < 0 or count < 0 or start + count > rows:
        raise ParameterError(f"start and count must stay within the {rows} rows, got {start} and {count}")
    if not 0 <= seed < 2**64:
        raise ParameterError(f"seed must be from 0 to 2^64 - 1, got {seed}")
    out = np.empty(count, dtype=np.int64)
    function(start, count, rows, seed, out.ctypes.data)
    return out


def _copy_rows(copy_in_c: Any, rows: PackedRows, positions: Integers, out: PackedRows, *, count: int) -> None:
    """Check the arrays, and copy packed rows with a C function, to or from the positions."""
    check_packed_rows("rows", rows)
    check_packed_rows("out", out)
    if len(positions) != count or rows.shape[1] != out.shape[1]:
        raise ParameterError(
            f"there must be a position for each row, and rows must be as wide as out, got {len(positions)} positions "
            f"for {count} rows, and widths {rows.shape[1]} and {out.shape[1]}"
        )
    copy_in_c(rows.ctypes.data, positions.ctypes.data, count, rows.shape[1], out.ctypes.data)


def _check_positions(positions: Integers, *, rows: int) -> None:
    if positions.dtype != np.int64 or positions.ndim != 1 or not positions.flags.c_contiguous:
        raise ParameterError(
            f"positions must be a C-contiguous 1-D array of int64, got {positions.ndim}-D {positions.dtype}"
        )
    if len(positions) and not (positions.min() >= 0 and positions.max() < rows):
        raise ParameterError(f"positions must be from 0 to {rows - 1}, got one outside")


_library = load_library(
    {
        "permutation_apply": (None, [c_uint64, c_size_t, c_uint64, c_uint64, c_void_p]),
        "permutation_invert": (None, [c_uint64, c_size_t, c_uint64, c_uint64, c_void_p]),
        "permutation_take": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_void_p]),
        "permutation_put": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_void_p]),
        "permutation_sort": (None, [c_void_p, c_size_t, c_int, c_size_t, c_void_p, c_void_p, c_void_p]),
    }
)
