"""Labels are counted in their bins exactly, in any order, and a damaged state is refused."""

from __future__ import annotations

import numpy as np
import pytest

from boltdp._array_types import Integers, PackedRows
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.label_histogram import LabelHistogram

#: Labels that are in no bin.
MISSING = (np.nan, np.inf, -np.inf, np.nextafter(np.float32(1), np.float32(2)), -1.5, 1e30)


def make_rows(labels: list[float], cells: int = 3) -> PackedRows:
    packed = np.random.default_rng(1).normal(size=(len(labels), 1 + cells)).astype(np.float32)
    packed[:, 0] = labels
    return packed


def count(labels: list[float], *, bins: int, build: str | None = None) -> Integers:
    found = LabelHistogram(cells=3, bins=bins)
    found.add(make_rows(labels), build=build)
    return found.counts


@pytest.mark.parametrize("bins", [2, 8, 4096, 65536])
def test_a_label_at_an_edge_is_in_the_bin_above_it_and_one_just_below_in_the_other(bins: int) -> None:
    edges = np.linspace(-1, 1, bins + 1, dtype=np.float32)
    np.testing.assert_array_equal(count(edges[:-1].tolist(), bins=bins), 1)
    below = np.nextafter(edges[1:], np.float32(-2))
    np.testing.assert_array_equal(count(below.tolist(), bins=bins), 1)


def test_the_ends_and_the_smallest_numbers_are_in_their_bins() -> None:
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    assert count([-1.0, 1.0, 1.0], bins=4).tolist() == [1, 0, 0, 2]
    assert count([-tiny, -0.0, 0.0, tiny], bins=4).tolist() == [0, 1, 3, 0]


@pytest.mark.parametrize("label", MISSING)
def test_a_missing_label_and_one_outside_are_in_no_bin(label: float) -> None:
    assert count([0.5, label], bins=8).tolist() == [0, 0, 0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("build", ["portable", None])
def test_the_counts_are_those_of_numpy_however_rows_are_split(build: str | None) -> None:
    random = np.random.default_rng(2)
    labels = np.append(random.uniform(-1, 1, 900), random.choice([-1.0, 0.0, 1.0, *MISSING], 100)).astype(np.float32)
    expected = np.histogram(labels[np.abs(labels) <= 1], 64, (-1, 1))[0]
    whole = LabelHistogram(cells=3, bins=64)
    for part in np.array_split(make_rows(labels.tolist()), 7):
        other = whole.copy_empty()
        other.add(np.ascontiguousarray(part), build=build)
        whole.join(other)
    np.testing.assert_array_equal(whole.counts, expected)
    np.testing.assert_array_equal(count(labels.tolist(), bins=64, build=build), expected)
    again = LabelHistogram(cells=3, bins=64)
    again.update(whole.to_bytes())
    np.testing.assert_array_equal(again.counts, expected)


def test_a_damaged_or_other_state_is_refused() -> None:
    here = LabelHistogram(cells=3, bins=8)
    here.add(make_rows([0.0, np.nan]))
    good = here.to_bytes()
    # Bytes, cells, the length of a feature map, the rows and the bins.
    for word, bad in ((1, 8), (2, 0), (3, 8), (4, 2**63), (5, 0), (5, 16), (5, 6), (5, 2**61)):
        with pytest.raises(DataError, match="the state is corrupt"):
            here.update(good[: 8 * word] + bad.to_bytes(8, "little") + good[8 * word + 8 :])
    for other in (LabelHistogram(cells=3, bins=16), LabelHistogram(cells=2, bins=8)):
        with pytest.raises(ParameterError, match="histograms must stay those of the same bins"):
            here.join(other)
    assert (here.to_bytes(), here.counts.sum()) == (good, 1)


@pytest.mark.parametrize(("cells", "bins"), [(0, 8), (3, 0), (3, 1), (3, 12), (3, 131072)])
def test_misuse_is_refused(cells: int, bins: int) -> None:
    with pytest.raises(ParameterError, match=f"a power of two, got {cells} and {bins}"):
        LabelHistogram(cells=cells, bins=bins)
