"""Which rows an update sees, where a proof asks for random samples: drawn from bytes that are as secret as the noise.

Positions depend on public numbers and the random bytes only. They must not be told to anyone: the promise of BST14 and
DP-SGD counts on nobody knowing whether a row was in a batch. A -1 among them is the end of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from boltdp.privacy.noise import RandomBytes

Positions = npt.NDArray[np.int64]

#: Positions made at a time, about.
CHUNK = 1 << 14


def fixed_size_batches(*, rows: int, batches: int, random_bytes: RandomBytes) -> Iterator[Positions]:
    """One pass of BST14: batch j has as many rows as in a permutation, uniform among all sets of this size.

    >>> from boltdp.privacy.noise import seeded_bytes
    >>> [len(chunk) for chunk in fixed_size_batches(rows=10, batches=3, random_bytes=seeded_bytes(1))]
    [10]
    """
    largest = -(-rows // batches)
    at_once = max(1, CHUNK // largest)
    for start in range(0, batches, at_once):
        count = min(at_once, batches - start)
        sizes = np.diff([j * rows // batches for j in range(start, start + count + 1)])
        drawn = _distinct(count, largest, rows, random_bytes)
        # The beginning of a uniform sample is a uniform sample.
        yield drawn[np.arange(largest) < sizes[:, None]]


def poisson_batches(*, rows: int, batches: int, random_bytes: RandomBytes) -> Iterator[Positions]:
    """One pass of DP-SGD: every row is in every batch with probability 1/batches; -1 ends a batch.

    >>> from boltdp.privacy.noise import seeded_bytes
    >>> chunks = list(poisson_batches(rows=1000, batches=10, random_bytes=seeded_bytes(1)))
    >>> int(sum((chunk == -1).sum() for chunk in chunks))
    10
    """
    # A coin for each row of each batch; between two heads there is a geometric number of them.
    batch, at, count = 0, -1, min(CHUNK, 2 * rows + 16)
    while batch < batches:
        heads = at + np.cumsum(_geometric(count, batches, random_bytes))
        which = batch + heads // rows
        inside = which < batches
        ends = np.searchsorted(which, np.arange(batch, min(int(which[-1]), batches)), side="right")
        yield np.insert(heads[inside] % rows, ends, -1)
        batch, at = int(which[-1]), int(heads[-1] % rows)


def _distinct(count: int, size: int, rows: int, random_bytes: RandomBytes) -> Positions:
    """`count` samples of `size` different positions each; every ordered sample is equally likely."""
    if size * size <= rows:
        drawn = _uniform(count * size, rows, random_bytes).reshape(count, size)
        # A sample with a repetition, which is rare, is drawn anew as a whole.
        while True:
            ordered = np.sort(drawn, axis=1)
            again = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
            if not len(again):
                return drawn
            drawn[again] = _uniform(len(again) * size, rows, random_bytes).reshape(-1, size)
    samples = []
    for _ in range(count):
        seen = np.empty(0, np.int64)
        while len(seen) < size:
            more = np.concatenate([seen, _uniform(size, rows, random_bytes)])
            seen = more[np.sort(np.unique(more, return_index=True)[1])]
        samples.append(seen[:size])
    return np.stack(samples)


def _uniform(count: int, below: int, random_bytes: RandomBytes) -> Positions:
    """Whole numbers from 0 to below - 1, each exactly equally likely."""
    shift = 64 - (below - 1).bit_length()
    found = np.empty(0, np.int64)
    while len(found) < count:
        words = _words(count - len(found) + 16, random_bytes) >> np.uint64(shift)
        kept = words[words < below].astype(np.int64)
        found = np.concatenate([found, kept]) if len(found) else kept
    return found[:count]


def _geometric(count: int, batches: int, random_bytes: RandomBytes) -> Positions:
    """How many coins until the next head, which has the probability 1/batches."""
    if batches == 1:
        return np.ones(count, np.int64)
    # In (0, 1], with 53 bits.
    uniforms = ((_words(count, random_bytes) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
    gaps: Positions = 1 + np.floor(np.log(uniforms) / np.log1p(-1.0 / batches)).astype(np.int64)
    return gaps


def _words(count: int, random_bytes: RandomBytes) -> npt.NDArray[np.uint64]:
    return np.frombuffer(random_bytes(8 * count), np.uint64)
