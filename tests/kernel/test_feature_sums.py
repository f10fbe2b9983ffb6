"""Moments: exact sums of rows that are rounded one by one, whatever their order is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.errors import DataError, ParameterError
from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.kernel.feature_sums import UNIT, FeatureSums
from boltdp.kernel.sgd import list_builds
from tests.kernel.feature_maps import cells_for


@given(
    rows=st.lists(st.lists(st.floats(-2, 2, width=32), min_size=3, max_size=3), min_size=1, max_size=20),
    radius=st.floats(0.1, 2.0),
    cut=st.integers(0, 20),
)
def test_moments_are_exact_sums_of_rows_rounded_one_by_one(rows: list[list[float]], radius: float, cut: int) -> None:
    packed = np.array([[0.0, *row] for row in rows], np.float32)
    expected = np.zeros((2, 3), np.int64)
    for row in packed[:, 1:].astype(np.float64).clip(-1, 1):
        short = row * min(1.0, radius / max(math.hypot(*row), 1e-300))
        expected += np.rint(np.stack([short, short * short]) / UNIT).astype(np.int64)
    cuts = FeatureSums(clip_norm=radius, cells=3)
    for part in (packed[:cut], packed[cut:]):
        cuts.add(np.ascontiguousarray(part))
    whole = FeatureSums(clip_norm=radius, cells=3)
    whole.add(packed[::-1].copy())
    np.testing.assert_array_equal(whole.value, cuts.value)
    # The norm may be rounded in another order here, and with it a term that lies between two units.
    assert np.abs(whole.value - expected).max() <= len(rows)


def test_a_row_with_a_nan_has_no_moments() -> None:
    moments = FeatureSums(clip_norm=2.0, cells=2)
    moments.add(np.array([[0, math.nan, 1], [math.nan, 1, math.inf]], np.float32))
    np.testing.assert_array_equal(moments.value * UNIT, [[1, 1], [1, 1]])


def plain_reading() -> FeatureMap:
    """Numbers as they stand, a category of 3, a number with 2 steps of a quarter, and a category of 1."""
    return FeatureMap(
        [
            Segment("numbers", np.zeros(5), np.ones(5)),
            Segment("category", np.zeros(3), np.ones(3)),
            Segment("numbers", np.zeros(1), np.ones(1)),
            Segment("steps", np.full(2, -0.25), np.full(2, 0.25), np.array([-0.5, 0.125])),
            Segment("category", np.zeros(1), np.ones(1)),
        ]
    )


@pytest.mark.parametrize("build", list_builds())
@pytest.mark.parametrize("radius", [0.8, 1.7, 9.0])
def test_moments_by_a_feature_map_are_those_of_the_features(radius: float, build: str) -> None:
    feature_map = plain_reading()
    cells = cells_for(feature_map, rows=500, seed=3)
    there, parts = FeatureSums(feature_map, clip_norm=radius), FeatureSums(feature_map, clip_norm=radius)
    there.add(cells, build=build)
    features = feature_map.compute_features(cells)
    expected = np.zeros((2, feature_map.dims), np.int64)
    for row in features[:, 1:].clip(-1, 1):
        short = row * min(1.0, radius / max(float(np.linalg.norm(row)), 1e-300))
        expected += np.rint(np.stack([short, short * short]) / UNIT).astype(np.int64)
    assert np.abs(there.value - expected).max() <= 500
    if radius == 9.0:
        np.testing.assert_array_equal(there.value, expected)
    other = parts.copy_empty()
    other.add(cells[::-2].copy())
    parts.add(cells[::-1][1::2].copy())
    parts.join(other)
    np.testing.assert_array_equal(parts.value, there.value)


def test_moments_go_on_from_bytes_and_unsound_ones_are_refused() -> None:
    feature_map = plain_reading()
    cells = cells_for(feature_map, rows=50, seed=1)
    there, here = (FeatureSums(feature_map, clip_norm=1.0) for _ in range(2))
    there.add(cells)
    here.update(there.to_bytes())
    np.testing.assert_array_equal(here.value, there.value)
    good = here.to_bytes()
    for field, bad in ((0, 1), (1, 8), (2, 0), (2, 2**40), (3, 8), (3, 2**63), (5, 0), (4, 2**34), (6, 1), (7, 1)):
        with pytest.raises(DataError, match="the state is corrupt"):
            here.update(good[: 8 * field] + bad.to_bytes(8, "little") + good[8 * field + 8 :])
    with pytest.raises(DataError, match="moments must stay those of the same features"):
        here.update(FeatureSums(feature_map, clip_norm=2.0).to_bytes())
    for other in (FeatureSums(feature_map, clip_norm=2.0), FeatureSums(clip_norm=1.0, cells=3)):
        with pytest.raises(ParameterError, match="moments must stay those of the same features"):
            here.join(other)
    assert here.to_bytes() == good


def test_misuse_is_refused() -> None:
    with pytest.raises(ParameterError, match="either a feature map or the number of cells must be given"):
        FeatureSums(clip_norm=1.0)
    for clip_norm, cells in ((0.0, 3), (math.nan, 3), (1.0, 0), (1.0, -1)):
        with pytest.raises(ParameterError, match="clip_norm must be > 0 and rows have cells"):
            FeatureSums(clip_norm=clip_norm, cells=cells)
