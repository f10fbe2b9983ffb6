"""Random batches of rows, for algorithms whose proof needs them: C in `kernel/row_sampling.c`.

Positions depend on public numbers and a key only, which is fresh for each pass. They are secret: the guarantee of BST14
and DP-SGD rests on nobody knowing whether a row was in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from boltdp._array_types import Integers
from boltdp.errors import ParameterError
from boltdp.kernel.sgd import _library
from boltdp.privacy.release_with_noise import RandomBytes, draw_sample_key

#: The approximate number of positions drawn in one call.
CHUNK = 1 << 14


def draw_fixed_size_batches(*, rows: int, batches: int, random_bytes: RandomBytes) -> Iterator[Integers]:
    """Yield the row positions of one pass of BST14: each batch is a uniform sample of a fixed size."""
    _check_batch_count(rows, batches)
    key = draw_sample_key(random_bytes)
    largest = -(-rows // batches)
    at_once = max(1, CHUNK // largest)
    seen = np.empty(2 << largest.bit_length(), np.int64)
    for first in range(0, batches, at_once):
        count = min(at_once, batches - first)
        drawn = np.empty(count * largest, np.int64)
        used = _library.sampling_fixed(
            key, first, rows, batches, first * rows % batches, count, seen.ctypes.data, len(seen), drawn.ctypes.data
        )
        yield drawn[:used]


def draw_poisson_batches(*, rows: int, batches: int, random_bytes: RandomBytes) -> Iterator[Integers]:
    """Yield the row positions of one pass of DP-SGD: Poisson batches at rate 1/batches, each ended by `BATCH_END`."""
    _check_batch_count(rows, batches)
    key, number = draw_sample_key(random_bytes), 0
    gap = -1.0 / math.log1p(-1.0 / batches) if batches > 1 else 0.0
    progress = np.zeros(2, np.uint64)
    while progress[0] < batches:
        drawn = np.empty(CHUNK, np.int64)
        used = _library.sampling_poisson(
            key, number, rows, batches, gap, progress.ctypes.data, drawn.ctypes.data, len(drawn)
        )
        number += 1
        yield drawn[:used]


def _check_batch_count(rows: int, batches: int) -> None:
    # The C buffer has room for the ends of batches only if each batch has at least one row on average.
    if not 1 <= batches <= rows:
        raise ParameterError(f"batches must be from 1 to the number of rows, {rows}, got {batches}")
