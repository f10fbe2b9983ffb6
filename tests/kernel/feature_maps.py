"""Readings for tests, and rows of cells for them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from boltdp.kernel.feature_map import Axis, FeatureMap, PairSegment, Segment, SegmentKind
from boltdp.losses import Logistic, Loss
from tests.kernel.cases import draw_labels, undeclared_labels

#: A pair of axes, each of steps or of a category, its length, and its cell, counted from the last one.
PairShape = tuple[Literal["pair"], tuple[SegmentKind, int, int], tuple[SegmentKind, int, int]]
Shape = tuple[tuple[SegmentKind, int] | PairShape, ...]

#: Segments of these kinds and lengths.
SHAPES: tuple[Shape, ...] = (
    (("numbers", 1),),
    (("numbers", 50), ("constant", 1)),
    (("category", 3),),
    (("numbers", 1), ("steps", 1), ("constant", 1)),
    (("numbers", 5), ("category", 4), ("numbers", 2), ("steps", 3), ("constant", 1), ("category", 1)),
    (("category", 100), ("category", 2), ("numbers", 17), ("steps", 9), ("numbers", 1), ("steps", 2)),
    (("constant", 2), ("numbers", 19)),
    (("numbers", 20), ("steps", 4)),
    (("numbers", 2), ("pair", ("steps", 3, 1), ("steps", 1, 2))),
    (
        ("numbers", 1),
        ("steps", 5),
        ("category", 4),
        ("numbers", 3),
        ("pair", ("steps", 2, 5), ("category", 4, 4)),
        ("pair", ("category", 1, 4), ("category", 3, 4)),
        ("constant", 1),
    ),
)


def random_feature_map(shape: Shape, *, seed: int, size: float = 0.3) -> FeatureMap:
    """Segments with random numbers; some rows are longer than 1, some slots have no length at all."""
    random = np.random.default_rng(seed)

    def segment(kind: SegmentKind, count: int) -> Segment:
        a, b = random.normal(size=(2, count)) * size
        if kind in ("category", "steps"):
            a[random.random(count) < 0.3] = 0.0
            b[random.random(count) < 0.1] = 0.0
        places = np.sort(random.uniform(-1, 1, count if kind == "steps" else 0).astype(np.float32))
        return Segment(kind, a, b, places.astype(np.float64))

    cells = sum(part[1] if part[0] == "numbers" else part[0] == "category" for part in shape if len(part) == 2)

    def axis(kind: SegmentKind, count: int, before: int) -> Axis:
        return Axis(cells - before, segment(kind, count), has_reference=kind == "category" and count > 1)

    return FeatureMap(
        [
            segment(*part) if len(part) == 2 else PairSegment(axis(*part[1]), axis(*part[2]), random.normal())
            for part in shape
        ]
    )


def cells_for(
    feature_map: FeatureMap, *, rows: int, seed: int, classes: int = 2, loss: Loss | None = None
) -> npt.NDArray[np.float32]:
    """Packed rows, with missing cells, cells that are no index, and labels that are none of the loss among them."""
    random, loss = np.random.default_rng(seed), loss or Logistic()
    packed = [draw_labels(loss, random, rows, classes=classes)]
    for part in feature_map.segments:
        if part.kind == "numbers":
            packed += list(random.uniform(-1, 1, (len(part.a), rows)))
        elif part.kind == "category":
            packed.append(random.integers(-1, len(part.a) + 2, rows).astype(np.float32))
        elif part.kind == "steps":
            packed[-1] = np.where(random.random(rows) < 0.3, random.choice(part.places, rows), packed[-1])
    cells: npt.NDArray[np.float32] = np.stack(packed, axis=1).astype(np.float32)
    cells[random.random(cells.shape) < 0.02] = np.nan
    cells[random.random(rows) < 0.02, 0] = random.choice(undeclared_labels(loss, classes))
    return cells
