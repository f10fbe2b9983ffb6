"""The C kernel, by way of its states and rows: run it with the sanitizers (`fuzz/sanitized.py`)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.kernel.projection import project_rows

from boltdp.kernel import sgd
from boltdp.kernel.feature_map import Axis, FeatureMap, PairSegment, Segment, SegmentKind, compute_scores
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.label_histogram import LabelHistogram
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.misclassification import ErrorCounts
from boltdp.kernel.row_permutation import compute_permuted_positions
from boltdp.kernel.sgd import State
from boltdp.kernel.unusable_label_count import UnusableLabelCount
from boltdp.losses import HuberSVM, Logistic, Loss, Mean, Multinomial, Quantile, Robust
from boltdp.privacy.mechanisms import Mechanism, NoiseKind
from boltdp.privacy.sgd_recipe import Averaging, Recipe
from boltdp.privacy.step_schedules import Growth, Schedule
from fuzz.target import Target, scrambled

_ODD = (np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45, 0.0)
_AVERAGING: tuple[Averaging, ...] = ("last", "all", "tail")
_GROWTHS: tuple[Growth, ...] = ("linear", "sqrt")
_NOISES: tuple[NoiseKind, ...] = ("gaussian", "spherical")


def _loss(dice: random.Random) -> Loss:
    classes = (Logistic(), HuberSVM(dice.choice((1e-3, 0.1, 3.0))), Multinomial(dice.choice((2, 3, 5, 9))))
    return dice.choice((*classes, Robust(), Quantile(dice.choice((0.001, 0.5, 0.9))), Mean()))


def _class_weights(dice: random.Random, loss: Loss, classes: int) -> tuple[float, ...] | None:
    if loss.target != "classes":
        return None
    return None if dice.random() < 0.5 else (1.0, *(dice.choice((1.0, 0.5, 1e-4)) for _ in range(classes - 1)))


def _rows(dice: random.Random, dims: int, count: int, element: Any = np.float32) -> npt.NDArray[Any]:
    numbers = np.random.default_rng(dice.getrandbits(32))
    rows = numbers.normal(size=(count, 1 + dims)).astype(element)
    rows[:, 0] = numbers.integers(-2, 6, count) / dice.choice((1, 1, 4))
    for _ in range(dice.choice((0, 0, 1, 3))):
        if count:
            rows[dice.randrange(count), dice.randrange(1 + dims)] = dice.choice(_ODD)
    return rows


def _feature_map(dice: random.Random, dims: int, *, with_pairs: bool = True) -> FeatureMap | None:
    """None, or one with this many features, of all kinds."""
    if dice.random() < 0.4:
        return None
    numbers, segments, left = np.random.default_rng(dice.getrandbits(32)), list[Segment](), dims
    axes = tuple(dice.randrange(1, 4) for _ in range(2)) if with_pairs and dice.random() < 0.4 else (0, 0)
    left -= axes[0] * axes[1] if axes[0] * axes[1] < dims else 0
    pairs = left < dims
    while left:
        kind: SegmentKind = dice.choice(("numbers", "category", "steps", "constant")) if segments else "numbers"
        if kind == "steps" and segments[-1].kind != "numbers":
            kind = "numbers"
        count = dice.randrange(1, left + 1)
        (a, b), places = numbers.normal(size=(2, count)), np.sort(numbers.normal(size=count * (kind == "steps")))
        segments.append(Segment(kind, a, b, places))
        left -= count
    reading = dice.choice(((0.0, 1.0), (-0.75, 3.0), (1.0, 1e300)))
    if not pairs:
        return FeatureMap(segments, label_reading=reading)
    sides = []
    for count in axes:
        (a, b), places = numbers.normal(size=(2, count)), np.sort(numbers.normal(size=count))
        part = Segment("steps", a, b, places) if dice.random() < 0.5 else Segment("category", a, b)
        has_reference = part.kind == "category" and dice.random() < 0.5
        sides.append(Axis(dice.randrange(FeatureMap(segments).cells), part, has_reference))
    pair = PairSegment(sides[0], sides[1], dice.choice((0.25, -1e3)))
    return FeatureMap([*segments, pair], label_reading=reading)


def feed_state(dice: random.Random) -> None:
    """A run of SGD, sound or from a damaged state, over rows that may be odd, in any build."""
    dims, rows = dice.choice((1, 2, 3, 4, 5, 8, 17, 64, 1100)), dice.randrange(2, 40)
    schedule = (
        Schedule("none", scale=dice.choice((1e-3, 0.1)), offset=1.0)
        if dice.random() < 0.5
        else Schedule(dice.choice(_GROWTHS), scale=0.1, offset=dice.choice((0.0, 3.0)))
    )
    loss = _loss(dice)
    classes = loss.vector_count if loss.vector_count > 1 else dice.choice((2, 3))
    recipe = Recipe(
        loss=loss,
        dims=dims,
        rows=rows,
        batch_size=dice.randrange(1, rows + 1),
        passes=dice.choice((1, 2)),
        schedule=schedule,
        regularization=dice.choice((0.0, 0.1)),
        radius=dice.choice((np.inf, 0.5)),
        averaging=dice.choice(_AVERAGING),
        class_weights=_class_weights(dice, loss, classes),
    )
    noise = Mechanism(dice.choice(_NOISES), 0.1, recipe.dimensions) if dice.random() < 0.4 else None
    marked = dice.random() < 0.3
    state = State(
        recipe,
        positive=dice.randrange(2),
        classes=classes,
        noise=noise,
        key=None if noise is None else dice.randbytes(32),
        marked=marked,
        feature_map=_feature_map(dice, dims),
    )
    cells = state.cells
    if dice.random() < 0.7:
        state = State.from_bytes(scrambled(state.to_bytes(), dice))
    element = dice.choice((np.float32, np.float64))
    block = _rows(dice, state.cells if dice.random() < 0.9 else cells, dice.randrange(2 * rows), element)
    positions = None
    if dice.random() < 0.4:
        positions = np.array([dice.randrange(-1, len(block) + 1) for _ in range(dice.randrange(20))], np.int64)
    sgd.run([state], block, positions=positions, build=dice.choice(sgd.list_builds()))
    assert state.weights.shape[1] == state._header.recipe.dims


def feed_sums(dice: random.Random) -> None:
    """A sum of derivatives or of moments, or a count of errors or of labels, alike; and one more that joins it."""
    dims = dice.choice((1, 2, 5, 16, 33, 256, 300))
    numbers = np.random.default_rng(dice.getrandbits(32))
    sums: DerivativeSums | ErrorCounts | FeatureSums | UnusableLabelCount | LabelHistogram
    kind = dice.randrange(6)
    feature_map = _feature_map(dice, dims, with_pairs=kind < 5)
    if kind < 2:
        loss = _loss(dice)
        weights = numbers.normal(size=(loss.vector_count, dims))
        kind = dice.randrange(3)
        sums = DerivativeSums(
            loss,
            weights,
            direction=weights if kind == 1 else None,
            hessian=kind == 2,
            positive=dice.randrange(3),
            classes=3,
            class_weights=_class_weights(dice, loss, loss.vector_count if loss.vector_count > 1 else 3),
            feature_map=feature_map,
            share=dice.choice((1.0, 0.3)),
        )
    elif kind == 2:
        vectors = dice.choice((1, 3))
        sums = ErrorCounts(
            numbers.normal(size=(dice.randrange(1, 20), vectors, dims)), classes=3, feature_map=feature_map
        )
    elif kind == 3:
        neutral = numbers.normal(size=(1, 1 + dims)).astype(np.float32)
        sums = UnusableLabelCount(cells=dims, classes=dice.choice((0, 3)), neutral=dice.choice((None, neutral)))
    elif kind == 4:
        sums = LabelHistogram(cells=dims, bins=dice.choice((2, 8, 4096)))
    else:
        norm = dice.choice((1e-3, 1.0, 50.0))
        sums = FeatureSums(feature_map, clip_norm=norm) if feature_map else FeatureSums(clip_norm=norm, cells=dims)
    other, cells = sums.copy_empty(), sums.cells
    if dice.random() < 0.6:
        sums.update(scrambled(sums.to_bytes(), dice))
    sums.add(_rows(dice, cells, dice.randrange(40)), build=dice.choice(sgd.list_builds()))
    other.add(_rows(dice, cells, dice.randrange(40)))
    sums.join(other)  # type: ignore[arg-type]


def feed_rows(dice: random.Random) -> None:
    """Projection, scores and places."""
    dims, count = dice.choice((1, 3, 8, 50)), dice.randrange(40)
    rows = _rows(dice, dims, count)
    feature_map = _feature_map(dice, dims)
    compute_scores(
        _rows(dice, feature_map.cells, count) if feature_map else rows,
        np.ones((dice.choice((1, 3)), dims)),
        feature_map,
    )
    out = np.empty((count, 1 + dice.choice((1, 4))), np.float32)
    project_rows(rows, np.random.default_rng(1).normal(size=(dims, out.shape[1] - 1)), out)
    total = dice.randrange(1, 1000)
    start = dice.randrange(total)
    compute_permuted_positions(start, dice.randrange(total - start + 2), rows=total, seed=dice.getrandbits(64))


TARGETS = (
    Target("kernel: states", feed_state),
    Target("kernel: sums", feed_sums),
    Target("kernel: rows", feed_rows),
)
