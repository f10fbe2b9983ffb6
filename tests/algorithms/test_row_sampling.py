"""Samples have the distribution that the proofs ask for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from boltdp._array_types import Integers
from boltdp.algorithms._row_sampling import CHUNK, draw_fixed_size_batches, draw_poisson_batches
from boltdp.errors import ParameterError
from boltdp.privacy.exact_noise import make_seeded_bytes


def batches_of(rows: int, batches: int, seed: int) -> list[npt.NDArray[np.int64]]:
    """The batches of one pass of DP-SGD, markers removed."""
    drawn = np.concatenate([*draw_poisson_batches(rows=rows, batches=batches, random_bytes=make_seeded_bytes(seed))])
    assert drawn[-1] == -1
    return np.split(drawn[drawn >= 0], np.cumsum(np.diff(np.flatnonzero(drawn < 0), prepend=-1) - 1))[:-1]


@pytest.mark.parametrize(
    ("rows", "batches"), [(1, 1), (10, 3), (1000, 1000), (7, 1), (50, 2), (CHUNK + 5, 1), (3 * CHUNK, 700)]
)
def test_batches_of_fixed_size_have_no_row_twice(rows: int, batches: int) -> None:
    drawn = np.concatenate([*draw_fixed_size_batches(rows=rows, batches=batches, random_bytes=make_seeded_bytes(2))])
    edges = [j * rows // batches for j in range(batches + 1)]
    assert len(drawn) == rows
    for start, stop in itertools.pairwise(edges):
        batch = drawn[start:stop]
        assert len(np.unique(batch)) == stop - start
        assert batch.min() >= 0
        assert batch.max() < rows


@pytest.mark.parametrize(("rows", "batches", "sets"), [(5, 2, 10), (4, 4, 4), (9, 4, 36)])
def test_every_batch_of_fixed_size_is_equally_likely(rows: int, batches: int, sets: int) -> None:
    size, random_bytes = rows // batches, make_seeded_bytes(3)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(3000):
        drawn = np.concatenate([*draw_fixed_size_batches(rows=rows, batches=batches, random_bytes=random_bytes)])
        key = tuple(sorted(drawn[:size].tolist()))
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == sets
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


@pytest.mark.parametrize(("rows", "batches"), [(1, 1), (10, 3), (7, 1), (1000, 1000), (2 * CHUNK, 3)])
def test_poisson_batches_are_sets_of_rows_in_order(rows: int, batches: int) -> None:
    made = batches_of(rows, batches, seed=4)
    assert len(made) == batches
    for batch in made:
        assert (np.diff(batch) > 0).all()
        assert not len(batch) or (batch[0] >= 0 and batch[-1] < rows)
    if batches == 1:
        assert made[0].tolist() == list(range(rows))


def test_poisson_sampling_takes_each_row_into_each_batch_independently() -> None:
    rows, batches, passes = 4, 3, 3000
    inside = np.zeros((passes, batches, rows))
    for seed in range(passes):
        for j, batch in enumerate(batches_of(rows, batches, seed)):
            inside[seed, j, batch] = 1
    flat = inside.reshape(passes, -1)
    hits = flat.sum(axis=0)
    assert (stats.binomtest(int(hits.sum()), passes * rows * batches, 1 / batches).pvalue) > 1e-4
    assert np.abs(hits / passes - 1 / 3).max() < 5 * np.sqrt(2 / 9 / passes)
    # Of two coins neither tells anything of the other.
    between = np.corrcoef(flat.T) - np.eye(rows * batches)
    assert np.abs(between).max() < 5 / np.sqrt(passes)


@pytest.mark.parametrize("batches", [2, 50, 20_000])
def test_the_gaps_between_the_rows_of_poisson_batches_are_geometric(batches: int) -> None:
    """Coins in a line, batch after batch; parts of a pass join without a trace."""
    rows = 40_000
    drawn = np.concatenate([*draw_poisson_batches(rows=rows, batches=batches, random_bytes=make_seeded_bytes(7))])
    assert len(drawn) > CHUNK
    coins = (np.cumsum(drawn < 0) * rows + drawn)[drawn >= 0]
    gaps = np.diff(coins, prepend=-1)
    edges = np.unique(stats.geom.ppf(np.linspace(0, 1, 21)[1:-1], 1 / batches))
    shares = np.diff(stats.geom.cdf(edges, 1 / batches), prepend=0, append=1)
    counts = np.bincount(np.searchsorted(edges, gaps), minlength=len(shares))
    assert stats.chisquare(counts, shares * len(gaps)).pvalue > 1e-4


def test_passes_and_parts_of_a_pass_are_drawn_anew() -> None:
    random_bytes = make_seeded_bytes(8)
    passes = [
        np.concatenate([*draw_fixed_size_batches(rows=2 * CHUNK, batches=2 * CHUNK, random_bytes=random_bytes)])
        for _ in range(2)
    ]
    halves = np.concatenate(passes).reshape(4, CHUNK)
    for one, other in itertools.combinations(halves, 2):
        assert (one == other).mean() < 0.01


@pytest.mark.parametrize("draw", [draw_fixed_size_batches, draw_poisson_batches])
@pytest.mark.parametrize("batches", [0, 2, 10**6])
def test_more_batches_than_rows_and_none_are_refused(draw: Callable[..., Iterator[Integers]], batches: int) -> None:
    """The gap to the next row of a batch could pass more ends of batches than C has room for."""
    with pytest.raises(ParameterError, match=f"batches must be from 1 to the number of rows, 1, got {batches}"):
        next(draw(rows=1, batches=batches, random_bytes=make_seeded_bytes(1)))
