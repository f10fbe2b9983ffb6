"""Samples of packed rows, selected by a hash of each row: C in `hash_sampling.c`, without the GIL."""

from __future__ import annotations

import math
from ctypes import c_size_t, c_uint64, c_void_p

import numpy as np

from boltdp._array_types import PackedRows
from boltdp._native import load_library
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import check_packed_rows

#: Rows that are sampled per call, which fit in the processor's cache.
_SAMPLE_BLOCK_ROWS = 4096


def sample_packed_rows(rows: PackedRows, share: float) -> PackedRows:
    """Return the sample of packed rows, about this share of them, that a hash of their contents selects."""
    check_packed_rows("rows", rows)
    hashes = count_sampled_hashes(share)
    buffer = np.empty((min(len(rows), _SAMPLE_BLOCK_ROWS), rows.shape[1]), np.float32)

    def sample(part: PackedRows) -> PackedRows:
        taken = _library.hash_sample(part.ctypes.data, *part.shape, hashes, buffer.ctypes.data)
        return buffer[:taken].copy()

    return np.concatenate(
        [buffer[:0], *(sample(rows[at : at + len(buffer)]) for at in range(0, len(rows), max(len(buffer), 1)))]
    )


def count_sampled_hashes(share: float) -> int:
    """Return the number of 32-bit hash values that belong to a sample of this share."""
    if not 0 < share <= 1:
        raise ParameterError(f"share must be above 0 and at most 1, got {share}")
    return math.ceil(share * 2**32)


_library = load_library({"hash_sample": (c_size_t, [c_void_p, c_size_t, c_size_t, c_uint64, c_void_p])})
