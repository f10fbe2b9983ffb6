"""Public features of images, as a user would take embeddings from a public model: wavelet scattering and HOG.

Both are fixed functions of one image, so that they cost no privacy, and their rows have a norm of at most 1.
Scattering is that of Tramèr and Boneh (2021): two orders of Morlet wavelets at two scales and eight angles, 81 averages
at each of 7 x 7 places of a 28 x 28 image, normalized in groups of three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Images: TypeAlias = npt.NDArray[np.float32]  #: of shape (images, height, width), from 0 to 1
Features: TypeAlias = npt.NDArray[np.float32]  #: of shape (images, features)

SCALES, ANGLES = 2, 8
#: The distance of averages, in pixels.
STRIDE = 2**SCALES
#: Images transformed at once.
BATCH = 250
#: Averages that are normalized together, at all places.
GROUP = 3


def scatter(images: Images) -> Features:
    """Return the scattering coefficients of each image, 81 by places.

    >>> scatter(np.ones((2, 28, 28), np.float32)).shape
    (2, 3969)
    """
    side = images.shape[1]
    pad = STRIDE
    length = side + 2 * pad
    wavelets = {
        scale: np.stack([_make_wavelet(length, scale, angle) for angle in range(ANGLES)]) for scale in range(SCALES)
    }
    # The Gaussian average of rows or columns, at every fourth place; the margin is left out.
    average = np.fft.ifft(np.fft.fft(np.eye(length), axis=0) * _make_gaussian(length)[:, None], axis=0).real
    average = average[pad : pad + side : STRIDE].astype(np.float32)

    def smooth(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.asarray(average @ pixels @ average.T)

    def batches() -> Iterator[npt.NDArray[np.float32]]:
        for start in range(0, len(images), BATCH):
            padded = np.pad(images[start : start + BATCH], [(0, 0), (pad, pad), (pad, pad)], mode="reflect")
            found = [smooth(padded)[:, None]]
            for scale, filters in wavelets.items():
                first = np.abs(np.fft.ifft2(np.fft.fft2(padded)[:, None] * filters)).astype(np.float32)
                found.append(smooth(first))
                for wider in range(scale + 1, SCALES):
                    for angle in range(ANGLES):
                        again = np.fft.fft2(first[:, angle])[:, None] * wavelets[wider]
                        found.append(smooth(np.abs(np.fft.ifft2(again)).astype(np.float32)))
            yield _normalize_groups(np.concatenate(found, axis=1))

    return np.concatenate(list(batches()))


def _normalize_groups(averages: npt.NDArray[np.float32]) -> Features:
    """Return the averages of images with mean 0 and the same norm in each group."""
    images, channels, height, width = averages.shape
    groups = averages.reshape(images, channels // GROUP, GROUP * height * width)
    groups = groups - groups.mean(axis=2, keepdims=True)
    deviations = np.sqrt((groups**2).mean(axis=2, keepdims=True) + 1e-5)
    return np.asarray(groups / deviations / math.sqrt(averages[0].size), np.float32).reshape(images, -1)


def _make_gaussian(length: int) -> npt.NDArray[np.float64]:
    """Return the Fourier transform of the Gaussian that averages."""
    frequency = 2.0 * math.pi * np.fft.fftfreq(length)
    return np.asarray(np.exp(-((0.8 * 2 ** (SCALES - 1) * frequency) ** 2) / 2.0))


def _make_wavelet(length: int, scale: int, angle: int) -> npt.NDArray[np.complex64]:
    """Return the Fourier transform of a Morlet wavelet: a wave in a Gaussian window, less what makes its mean 0."""
    turn = (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
    width, wave, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4.0 / ANGLES
    place = np.arange(-2 * length, 3 * length, dtype=np.float64)
    x, y = np.meshgrid(place, place, indexing="ij")
    along, across = x * math.cos(turn) + y * math.sin(turn), y * math.cos(turn) - x * math.sin(turn)
    window = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * width**2)) * slant / (2.0 * math.pi * width**2)
    # Periodic: what is beyond the image comes in again on its other side.
    waving, plain = (
        values.reshape(5, length, 5, length).sum(axis=(0, 2)) for values in (window * np.exp(1j * wave * along), window)
    )
    return np.asarray(np.fft.fft2(waving - waving.sum() / plain.sum() * plain), np.complex64)


def orient(images: Images, *, cell: int = 4, angles: int = 9) -> Features:
    """Return histograms of oriented gradients: of each cell of pixels, in blocks of 2 x 2 cells of the same norm.

    >>> orient(np.ones((2, 28, 28), np.float32)).shape
    (2, 1296)
    """
    down, right = np.gradient(images, axis=(1, 2))
    bins = np.floor(np.arctan2(down, right) % math.pi * (angles / math.pi)).astype(int) % angles
    of_angles = np.hypot(down, right)[..., None] * (bins[..., None] == np.arange(angles))
    cells = images.shape[1] // cell
    histograms = of_angles.reshape(len(images), cells, cell, cells, cell, angles).sum(axis=(2, 4))
    blocks = sliding_window_view(histograms, (2, 2), axis=(1, 2)).reshape(len(images), (cells - 1) ** 2, -1)
    norms = np.linalg.norm(blocks, axis=2, keepdims=True) + 0.1
    return np.asarray(blocks / norms / (cells - 1), np.float32).reshape(len(images), -1)
