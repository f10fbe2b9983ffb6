"""Public features of images: their shapes and norms, and that they are functions of one image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from experiments.image_features import Features, Images, orient, scatter
from experiments.wide import normalize_pixels


@pytest.mark.parametrize(("features", "width"), [(normalize_pixels, 784), (orient, 1_296), (scatter, 3_969)])
def test_features_are_of_one_image_and_of_norm_1_at_most(features: Callable[[Images], Features], width: int) -> None:
    images = np.random.default_rng(1).random((3, 28, 28), np.float32)
    images[2] = 1.0
    found = features(images)
    assert found.shape == (3, width)
    assert found.dtype == np.float32
    assert np.linalg.norm(found, axis=1).max() <= 1.0 + 1e-6
    np.testing.assert_allclose(features(images[1:2]), found[1:2], atol=1e-6)


def test_scattering_tells_the_direction_of_a_wave() -> None:
    """The energy of a wave along the columns is in other channels than that of one along the rows."""
    wave = np.tile(np.sin(np.arange(28) * 0.75 * np.pi), (28, 1)).astype(np.float32) / np.float32(2.0) + np.float32(0.5)
    along, across = (scatter(one[None]).reshape(81, -1)[1:9].sum(axis=1) for one in (wave, wave.T))
    assert along.argmax() != across.argmax()
    assert (along.argmax() - across.argmax()) % 8 == 4
