"""Sparse rows give the bits of the same rows in full, and are refused where a place is not one of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from boltdp._array_types import PackedRows
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import FeatureMap, Segment, compute_scores, compute_scores_and_norms
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.sparse_rows import SparseRows
from boltdp.kernel.unusable_label_count import UnusableLabelCount
from boltdp.losses import Logistic, Loss
from tests.example_losses import every_loss

CELLS = 11
LOGISTIC = Logistic()
LOSSES: tuple[Loss, ...] = tuple(every_loss(classes=3))


def make_rows(loss: Loss = LOGISTIC, *, rows: int = 300, cells: int = CELLS) -> PackedRows:
    """Return rows of few numbers, some of them longer than 1, of odd labels, or with numbers that are not finite."""
    random = np.random.default_rng(cells)
    packed = random.normal(size=(rows, 1 + cells)).astype(np.float32)
    packed *= random.random((rows, 1 + cells)) < 0.3
    labels = [0, 1, -1, 7, np.nan] if loss.target == "classes" else [0.5, -0.25, 0, 2, np.nan]
    packed[:, 0] = random.choice(labels, rows, p=[0.4, 0.3, 0.1, 0.1, 0.1])
    for number, odd in enumerate((np.nan, np.inf, -np.inf, 3e38, -0.0)):
        packed[20 * number + 3, 1 + number] = odd
    packed[7, 1:] = 0.0
    return packed


def to_sparse(packed: PackedRows) -> SparseRows:
    rows, places = np.nonzero(packed[:, 1:].view(np.uint32))  # -0.0 is stored, as any 0 may be
    starts = np.searchsorted(rows, np.arange(1 + len(packed)))
    cells = packed[:, 1:][rows, places]
    return SparseRows(packed[:, 0].copy(), starts, places.astype(np.int32), cells, width=packed.shape[1])


def make_map(cells: int = CELLS, *, center: float = 0.0, constants: int = 1, downweights: bool = False) -> FeatureMap:
    random = np.random.default_rng(1)
    segments = [Segment("numbers", np.full(cells, center), random.random(cells) + 0.5)]
    if constants:
        segments.append(Segment("constant", random.random(constants), np.zeros(constants)))
    return FeatureMap(segments, downweights=downweights)


def sum_both(packed: PackedRows, loss: Loss, feature_map: FeatureMap, **options: Any) -> tuple[Any, Any]:
    """Return the sum over rows in full, and over the same rows as sparse ones, each with the rows that it counts."""
    random = np.random.default_rng(2)
    weights, direction = random.normal(size=(2, loss.vector_count, feature_map.dims))
    if options.pop("product", False):
        options["direction"] = direction
    classes = loss.vector_count if loss.vector_count > 1 else 2
    sums = [DerivativeSums(loss, weights, classes=classes, feature_map=feature_map, **options) for _ in range(2)]
    sums[0].add(packed)
    for part in to_sparse(packed).split(41):
        sums[1].add(part)
    return tuple((one.value.tobytes(), one.rows) for one in sums)  # type: ignore[return-value]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("product", [False, True])
def test_sums_of_every_loss_have_the_bits_of_rows_in_full(loss: Loss, product: bool) -> None:
    full, sparse = sum_both(make_rows(loss), loss, make_map(), product=product)
    assert sparse == full
    assert 0 < full[1] < 300


@pytest.mark.parametrize("cells", [1, 4, 5, 6, 7, 8, 64])
@pytest.mark.parametrize("constants", [0, 1, 2])
def test_rows_of_every_width_have_the_same_bits(cells: int, constants: int) -> None:
    packed, feature_map = make_rows(cells=max(cells, 5))[:, : 1 + cells].copy(), make_map(cells, constants=constants)
    full, sparse = sum_both(packed, Logistic(), feature_map)
    assert sparse == full
    weights = np.random.default_rng(3).normal(size=(2, feature_map.dims))
    for found, expected in zip(
        compute_scores_and_norms(to_sparse(packed), weights, feature_map),
        compute_scores_and_norms(packed, weights, feature_map),
        strict=True,
    ):
        assert found.tobytes() == expected.tobytes()
    np.testing.assert_array_equal(
        compute_scores(to_sparse(packed), weights, feature_map), compute_scores(packed, weights, feature_map)
    )


@pytest.mark.parametrize(
    "options",
    [{"clip": 0.2}, {"class_weights": (0.5, 1.0)}, {"positive": 0}, {"share": 0.5}, {"hessian": True}, {"outer": True}],
    ids=str,
)
def test_sums_of_every_kind_have_the_same_bits(options: dict[str, Any]) -> None:
    for feature_map in (make_map(), make_map(downweights=True), make_map(center=0.25)):
        full, sparse = sum_both(make_rows(), Logistic(), feature_map, **options)
        assert sparse == full


def test_sums_of_sparse_rows_and_rows_in_full_can_be_joined() -> None:
    packed, feature_map = make_rows(rows=3000), make_map()
    weights = np.random.default_rng(4).normal(size=(1, feature_map.dims))
    whole = DerivativeSums(Logistic(), weights, feature_map=feature_map)
    whole.add(packed)
    joined, other = (DerivativeSums(Logistic(), weights, feature_map=feature_map) for _ in range(2))
    joined.add(to_sparse(packed[:1000]))
    joined.add(packed[1000:1100])
    other.add(packed[1100:2000])
    other.add(to_sparse(packed[2000:]))
    joined.join(other)
    assert (joined.value.tobytes(), joined.rows) == (whole.value.tobytes(), whole.rows)


def test_carries_of_many_rows_are_exact() -> None:
    """Lower halves of terms, all ones, carry into the upper half more often than the sum waits for rows in full."""
    packed = np.tile(np.array([1.0, -1.0 / 3.0, 0.0, 1.0 / 7.0], np.float32), (5000, 1))
    full, sparse = sum_both(packed, Logistic(), make_map(3))
    assert sparse == full


def test_no_row_is_needed_in_full_for_gradients_products_labels_and_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SparseRows, "read_blocks")
    rows, feature_map, weights = to_sparse(make_rows()), make_map(), np.ones((1, CELLS + 1))
    for direction in (None, weights):
        DerivativeSums(Logistic(), weights, direction=direction, feature_map=feature_map).add(rows)
    UnusableLabelCount(cells=CELLS, classes=2).add(rows)
    compute_scores(rows, weights, feature_map)


@pytest.mark.parametrize("classes", [0, 2])
@pytest.mark.parametrize("neutral", [None, np.zeros((1, 1 + CELLS), np.float32)], ids=["all", "but neutral"])
def test_labels_are_counted_as_those_of_rows_in_full(classes: int, neutral: PackedRows | None) -> None:
    packed = make_rows()
    packed[7, 0] = np.nan
    counts = [UnusableLabelCount(cells=CELLS, classes=classes, neutral=neutral) for _ in range(2)]
    counts[0].add(packed)
    counts[1].add(to_sparse(packed))
    assert counts[0].to_bytes() == counts[1].to_bytes()
    assert counts[0].count > 0


@pytest.mark.parametrize(
    ("starts", "places"),
    [
        ([0, 2, 3], [0, CELLS, 1]),
        ([0, 2, 3], [-1, 0, 1]),
        ([0, 2, 3], [1, 1, 0]),
        ([0, 2, 3], [2, 1, 0]),
        ([0, 2, 4], [0, 1, 2]),
        ([-1, 2, 3], [0, 1, 2]),
        ([0, 2, 1], [0, 1, 2]),
    ],
    ids=["beyond", "before", "twice", "descending", "unstored", "negative", "backwards"],
)
def test_places_that_are_not_those_of_cells_are_refused_before_anything_is_added(
    starts: Sequence[int], places: Sequence[int]
) -> None:
    numbers = np.ones(3, np.float32)
    rows = SparseRows(numbers[:2], np.array(starts), np.array(places, np.int32), numbers, width=1 + CELLS)
    weights, feature_map = np.ones((1, CELLS + 1)), make_map()
    sums = DerivativeSums(Logistic(), weights, feature_map=feature_map)
    for refused in (lambda: sums.add(rows), lambda: compute_scores(rows, weights, feature_map)):
        with pytest.raises(ParameterError, match=r"^the places of each sparse row must be ascending, and places of"):
            refused()
    assert sums.rows == 0
    assert not sums.value.any()


def test_rows_of_another_width_and_maps_with_centres_are_refused() -> None:
    weights, feature_map = np.ones((1, CELLS + 1)), make_map()
    narrow = to_sparse(make_rows(cells=CELLS - 1))
    with pytest.raises(ParameterError):
        DerivativeSums(Logistic(), weights, feature_map=feature_map).add(narrow)
    for rows, odd in ((narrow, feature_map), (to_sparse(make_rows()), make_map(center=0.5))):
        with pytest.raises(ParameterError, match=r"^sparse rows must have a feature map of their cells that keeps"):
            compute_scores(rows, weights, odd)


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    one, starts, place = np.ones(1, np.float32), np.array([0, 1]), np.array([0], np.int32)
    for cells, begun in ((one[:0], starts), (one, starts[:1])):
        with pytest.raises(ParameterError, match="must have one more start"):
            SparseRows(one, begun, place, cells, width=2)
    with pytest.raises(ParameterError, match="must be arrays of float32"):
        SparseRows(one.astype(np.float64), starts, place, one, width=2)


def test_maps_of_anything_but_numbers_and_constants_keep_no_zeros() -> None:
    numbers, ones = Segment("numbers", np.zeros(2), np.ones(2)), np.ones(2)
    assert FeatureMap([numbers]).keeps_zeros
    assert not FeatureMap([numbers], row_weights=True).keeps_zeros
    assert not FeatureMap([numbers, Segment("category", -ones, ones)]).keeps_zeros
    assert not FeatureMap([Segment("category", -ones, ones)]).keeps_zeros
    assert not FeatureMap([replace(numbers, a=ones)]).keeps_zeros
