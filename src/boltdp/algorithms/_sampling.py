"""Random batches of rows, for algorithms whose proof needs them: C in `kernel/sampling.c`.

Positions depend on public numbers and a key only, which is fresh for each pass. They are secret: the guarantee of BST14
and DP-SGD rests on nobody knowing whether a row was in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from boltdp._arrays import Integers
from boltdp.errors import ParameterError
from boltdp.kernel.sgd import _library
from boltdp.privacy.release import RandomBytes, draw_sample_key

#: Positions drawn in one call, about.
CHUNK = 1 << 14


def fixed_size_batches(*, rows: int, batches: int, random_bytes: RandomBytes) -> Iterator[Integers]:
    """One pass of BST14: batch j has as many rows as in a permutation, uniform among all sets of this size.

    >>> from boltdp.privacy.exact_sampling import seeded_bytes
    >>> [len(chunk) for chunk in fixed_size_batches(rows=10, batches=3, random_bytes=seeded_bytes(1))]
    [10]
    """
    _check(rows, batches)
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


def poisson_batches(*, rows: int, batches: int, random_bytes: RandomBytes) -> Iterator[Integers]:
    """One pass of DP-SGD: every row is in every batch with probability 1/batches; `BATCH_END` ends a batch.

    >>> from boltdp.privacy.exact_sampling import seeded_bytes
    >>> chunks = list(poisson_batches(rows=1000, batches=10, random_bytes=seeded_bytes(1)))
    >>> int(sum((chunk == -1).sum() for chunk in chunks))
    10
    """
    _check(rows, batches)
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


def _check(rows: int, batches: int) -> None:
    """C has room for as many ends of batches at once as there can be if no batch is expected to be empty."""
    if not 1 <= batches <= rows:
        raise ParameterError(f"batches must be from 1 to the number of rows, {rows}, got {batches}")
