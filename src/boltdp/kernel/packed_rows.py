"""Operations on packed rows: C in `packed_rows.c`, without the GIL."""

from __future__ import annotations

import math
from ctypes import c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, Integers, PackedRows
from boltdp._native import load_library
from boltdp.errors import ParameterError

#: Rows that are sampled per call, which fit in the processor's cache.
_SAMPLE_BLOCK_ROWS = 4096
#: A bucket has at most 2^MAX_SHIFT positions.
MAX_SHIFT = 32


def take_rows(rows: PackedRows, places: Integers, out: PackedRows) -> None:
    """Copy rows by source position: `out[i] = rows[places[i]]`."""
    _check_places(places, rows=len(rows))
    _move_rows(_library.packing_take, rows, places, out, count=len(out))


def put_rows(rows: PackedRows, places: Integers, out: PackedRows) -> None:
    """Copy rows by target position: `out[places[i]] = rows[i]`; of duplicate places, one wins."""
    _check_places(places, rows=len(out))
    _move_rows(_library.packing_put, rows, places, out, count=len(rows))


def sample_packed_rows(rows: PackedRows, share: float) -> PackedRows:
    """Return the sample of packed rows, about this share of them, that a hash of their contents selects."""
    _check_rows("rows", rows)
    hashes = count_sampled_hashes(share)
    buffer = np.empty((min(len(rows), _SAMPLE_BLOCK_ROWS), rows.shape[1]), np.float32)

    def sample(part: PackedRows) -> PackedRows:
        taken = _library.packing_sample(part.ctypes.data, *part.shape, hashes, buffer.ctypes.data)
        return buffer[:taken].copy()

    return np.concatenate(
        [buffer[:0], *(sample(rows[at : at + len(buffer)]) for at in range(0, len(rows), max(len(buffer), 1)))]
    )


def count_sampled_hashes(share: float) -> int:
    """Return the number of 32-bit hash values that belong to a sample of this share."""
    if not 0 < share <= 1:
        raise ParameterError(f"share must be above 0 and at most 1, got {share}")
    return math.ceil(share * 2**32)


def sort_by_bucket(
    positions: Integers, *, shift: int, buckets: int
) -> tuple[Integers, npt.NDArray[np.uint32], Integers]:
    """Sort rows by bucket of 2^shift positions; return their order, positions in buckets, and the bucket sizes."""
    if not 0 <= shift <= MAX_SHIFT or buckets < 1:
        raise ParameterError(f"shift must be from 0 to {MAX_SHIFT} and buckets >= 1, got {shift} and {buckets}")
    _check_places(positions, rows=buckets << shift)
    order, slots = np.empty(len(positions), np.int64), np.empty(len(positions), np.uint32)
    counts = np.empty(buckets, np.int64)
    arrays = (order.ctypes.data, slots.ctypes.data, counts.ctypes.data)
    _library.packing_sort(positions.ctypes.data, len(positions), shift, buckets, *arrays)
    return order, slots, counts


def project_rows(rows: PackedRows, matrix: Doubles, out: PackedRows) -> None:
    """Multiply the features of packed rows by a matrix, after scaling them into the unit ball as the row guard does.

    The projected features of a neutral row are NaN, so that it stays neutral.
    """
    _check_rows("rows", rows)
    _check_rows("out", out)
    dims, outputs = matrix.shape
    if rows.shape[1] != 1 + dims or out.shape != (len(rows), 1 + outputs):
        raise ParameterError(
            f"rows must have 1 + {dims} columns and out {len(rows)} rows of 1 + {outputs}, got shapes {rows.shape} and "
            f"{out.shape}"
        )
    matrix = np.ascontiguousarray(matrix, dtype=np.float64)
    _library.packing_project(rows.ctypes.data, rows.shape[0], dims, matrix.ctypes.data, outputs, out.ctypes.data)


def permuted_position(start: int, count: int, *, rows: int, seed: int) -> Integers:
    """Return the new positions of the rows start .. start+count-1 under the permutation of the seed."""
    return _compute_positions(_library.packing_permuted, start, count, rows=rows, seed=seed)


def source_position(start: int, count: int, *, rows: int, seed: int) -> Integers:
    """Return which rows the permutation of the seed moves to the positions start .. start+count-1."""
    return _compute_positions(_library.packing_source, start, count, rows=rows, seed=seed)


def _compute_positions(function: Any, start: int, count: int, *, rows: int, seed: int) -> Integers:
    if not 1 <= rows <= 2**62:
        raise ParameterError(f"rows must be from 1 to 2^62, got {rows}")
    if start < 0 or count < 0 or start + count > rows:
        raise ParameterError(f"start and count must stay within the {rows} rows, got {start} and {count}")
    if not 0 <= seed < 2**64:
        raise ParameterError(f"seed must be from 0 to 2^64 - 1, got {seed}")
    out = np.empty(count, dtype=np.int64)
    function(start, count, rows, seed, out.ctypes.data)
    return out


def _move_rows(function: Any, rows: PackedRows, places: Integers, out: PackedRows, *, count: int) -> None:
    _check_rows("rows", rows)
    _check_rows("out", out)
    if len(places) != count or rows.shape[1] != out.shape[1]:
        raise ParameterError(
            f"there must be a place for each row, and rows must be as wide as out, got {len(places)} places for "
            f"{count} rows, and widths {rows.shape[1]} and {out.shape[1]}"
        )
    function(rows.ctypes.data, places.ctypes.data, count, rows.shape[1], out.ctypes.data)


def _check_rows(name: str, rows: PackedRows) -> None:
    if rows.dtype != np.float32 or rows.ndim != 2 or not rows.flags.c_contiguous:
        raise ParameterError(f"{name} must be a C-contiguous 2-D array of float32, got {rows.ndim}-D {rows.dtype}")
    if name == "out" and not rows.flags.writeable:
        raise ParameterError("out must be writable, got a read-only array")


def _check_places(places: Integers, *, rows: int) -> None:
    if places.dtype != np.int64 or places.ndim != 1 or not places.flags.c_contiguous:
        raise ParameterError(f"places must be a C-contiguous 1-D array of int64, got {places.ndim}-D {places.dtype}")
    if len(places) and not (places.min() >= 0 and places.max() < rows):
        raise ParameterError(f"places must be from 0 to {rows - 1}, got one outside")


_library = load_library(
    {
        "packing_take": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_void_p]),
        "packing_put": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_void_p]),
        "packing_sample": (c_size_t, [c_void_p, c_size_t, c_size_t, c_uint64, c_void_p]),
        "packing_project": (None, [c_void_p, c_size_t, c_size_t, c_void_p, c_size_t, c_void_p]),
        "packing_permuted": (None, [c_uint64, c_size_t, c_uint64, c_uint64, c_void_p]),
        "packing_source": (None, [c_uint64, c_size_t, c_uint64, c_uint64, c_void_p]),
        "packing_sort": (None, [c_void_p, c_size_t, c_int, c_size_t, c_void_p, c_void_p, c_void_p]),
    }
)
