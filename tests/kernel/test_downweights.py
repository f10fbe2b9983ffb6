"""Rows longer than 1 that keep their length and get a weight instead, and sums of outer products of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.errors import DataError, ParameterError
from boltdp.kernel.feature_map import FeatureMap, Segment, compute_scores
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.sgd import State, list_builds
from boltdp.losses import HuberSVM, Logistic, Loss, Multinomial, Quantile, Robust
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.kernel.cases import declared_classes, weights_for
from tests.kernel.feature_maps import SHAPES, Shape, cells_for, random_feature_map
from tests.kernel.reference import read_label, row_gradient

Matrix = npt.NDArray[np.float64]
LOSSES: tuple[Loss, ...] = (Logistic(), Robust(), Quantile(0.9), Multinomial(3))


def make_map(shape: Shape, *, size: float = 2.0, row_weights: bool = False) -> FeatureMap:
    """Of which most rows are longer than 1, and some not."""
    plain = random_feature_map(shape, seed=len(shape), size=size)
    return FeatureMap(plain.segments, downweights=True, row_weights=row_weights)


def make_rows(feature_map: FeatureMap, loss: Loss, *, rows: int = 300) -> Any:
    plain = FeatureMap(feature_map.segments)
    cells = cells_for(plain, rows=rows, seed=1, classes=declared_classes(loss), loss=loss)
    if feature_map.row_weights:
        cells = np.column_stack([cells, np.random.default_rng(2).uniform(-1, 1, rows).astype(np.float32)])
    return cells


def find_shares(rows: Any, features: Matrix, feature_map: FeatureMap) -> Matrix:
    """The weight of each row: its own, times 1 over the square of its norm if it is longer than 1."""
    squares = (features**2).sum(axis=1)
    shares = np.minimum(1.0, 1.0 / np.maximum(squares, 1e-300))
    return np.asarray(shares * (rows[:, -1].astype(float) + 1.0) / 2.0 if feature_map.row_weights else shares)


def expected_sums(
    loss: Loss, rows: Any, weights: Matrix, feature_map: FeatureMap, by_class: tuple[float, ...] | None, **options: Any
) -> Matrix:
    dims, total = weights.shape[1], np.zeros_like(weights)
    matrix = np.zeros((loss.vector_count, dims, dims))
    features = feature_map.compute_features(np.ascontiguousarray(rows))[:, 1:]
    for packed, x, share in zip(rows[:, 0], features, find_shares(rows, features, feature_map), strict=True):
        label = read_label(loss, float(packed), classes=declared_classes(loss))
        if label is None or not np.isfinite(x).all():
            continue
        share *= 1.0 if by_class is None else by_class[int(label)]
        gradient, curvature = (
            row_gradient(loss, weights, x, label, positive=1),
            loss.compute_hessians(weights @ x, label, positive=1),
        )
        assert curvature is not None
        if options.get("outer"):
            matrix += share**2 * np.outer(gradient[0], gradient[0])
        elif options.get("hessian"):
            matrix += share * np.diagonal(curvature)[:, None, None] * np.outer(x, x)
        elif "direction" in options:
            total += share * np.outer(curvature @ (options["direction"] @ x), x)
        else:
            total += share * gradient
    return matrix if options.get("outer") or options.get("hessian") else total


def list_kinds(loss: Loss, direction: Matrix) -> list[dict[str, Any]]:
    kinds: list[dict[str, Any]] = [{}, {"direction": direction}, {"hessian": True}]
    return kinds if loss.vector_count > 1 else [*kinds, {"outer": True}]


def make_case(loss: Loss, shape: int, *, row_weights: bool) -> tuple[FeatureMap, Any, Matrix, Matrix]:
    feature_map = make_map(SHAPES[shape], row_weights=row_weights)
    weights, direction = np.random.default_rng(5).normal(size=(2, loss.vector_count, feature_map.dims)) * 0.4
    return feature_map, make_rows(feature_map, loss), weights, direction


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("row_weights", [False, True])
def test_every_derivative_agrees_with_its_equation_in_every_build(loss: Loss, shape: int, row_weights: bool) -> None:
    feature_map, rows, weights, direction = make_case(loss, shape, row_weights=row_weights)
    for options in list_kinds(loss, direction):
        for by_class in (None, weights_for(loss, seed=3)) if loss.target == "classes" else (None,):
            expected = expected_sums(loss, rows, weights, feature_map, by_class, **options)
            found = []
            for build in list_builds():
                sums = DerivativeSums(
                    loss,
                    weights,
                    classes=declared_classes(loss),
                    class_weights=by_class,
                    feature_map=feature_map,
                    **options,
                )
                sums.add(rows, build=build)
                found.append(sums.value)
            assert all(one.tobytes() == found[0].tobytes() for one in found)
            scale = 1.0 if "direction" not in options else float(np.linalg.norm(direction))
            assert np.abs(found[0] - expected).max() < 1e-10 * scale


@given(
    cuts=st.lists(st.integers(0, 300), max_size=4),
    shape=st.integers(0, len(SHAPES) - 1),
    kind=st.integers(0, 3),
    row_weights=st.booleans(),
    seed=st.integers(0, 9),
)
def test_order_chunks_and_joined_states_change_no_bit(
    cuts: list[int], shape: int, kind: int, row_weights: bool, seed: int
) -> None:
    """What threads and servers do: each adds some of the rows, in any order, and their states are joined."""
    loss = Logistic()
    feature_map, rows, weights, direction = make_case(loss, shape, row_weights=row_weights)
    options = list_kinds(loss, direction)[kind]

    def start() -> DerivativeSums:
        return DerivativeSums(loss, weights, feature_map=feature_map, **options)

    whole = start()
    whole.add(rows)
    parts, joined = np.split(np.random.default_rng(seed).permutation(rows), sorted(cuts)), start()
    for part in parts:
        own = start()
        own.add(np.ascontiguousarray(part))
        joined.join(own)
    assert joined.value.tobytes() == whole.value.tobytes()
    assert joined.rows == whole.rows


def test_one_row_adds_the_bits_that_numpy_computes() -> None:
    """In the kernel's order: the guard's factor, its square, and a multiple of the grid for each number."""
    feature_map = FeatureMap([Segment("numbers", np.zeros(2), np.full(2, 8.0))], downweights=True)
    row, weights = np.array([[1, 0.5, 0.25]], np.float32), np.zeros((1, 2))
    x = np.array([4.0, 2.0])
    scale = (1.0 - 2.0 * (2 + 16) * 2.0**-53) / np.sqrt(20.0)
    share = scale * scale
    for options, factor in (({"hessian": True}, 0.25 * share), ({"outer": True}, (0.5 * share) ** 2 * 0.25)):
        sums = DerivativeSums(Logistic(), weights, feature_map=feature_map, **options)  # type: ignore[arg-type]
        sums.add(row)
        terms = (factor * x)[:, None] * x
        expected = np.rint(terms * 2.0**50) * 2.0**-50 * (1.0 if "hessian" in options else 4.0)
        assert sums.value[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [1.5, 50.0, 1e6])
def test_no_downweighted_row_has_more_than_a_slope_and_a_curvature(size: float) -> None:
    random = np.random.default_rng(4)
    feature_map = FeatureMap([Segment("numbers", np.zeros(5), np.full(5, size))], downweights=True)
    for _ in range(200):
        row = np.append(float(random.integers(2)), random.uniform(-1, 1, 5)).astype(np.float32)[None]
        weights = random.normal(size=(1, 5)) / size
        norms = []
        for options in list_kinds(Logistic(), weights):
            sums = DerivativeSums(Logistic(), weights, feature_map=feature_map, **options)
            sums.add(row)
            norms.append(float(np.linalg.norm(sums.value)))
        gradient, product, hessian, outer = norms
        assert max(gradient, outer) <= 1.0
        assert hessian <= 0.25
        assert product <= 0.25 * float(np.linalg.norm(weights)) * (1 + 1e-12)


def test_rows_within_the_ball_are_not_changed_at_all() -> None:
    segments = [Segment("numbers", np.zeros(4), np.full(4, 0.4)), Segment("constant", np.array([0.3]), np.zeros(1))]
    rows = np.random.default_rng(0).uniform(-1, 1, (50, 5)).astype(np.float32)
    rows[:, 0] = np.arange(50) % 2
    weights = np.ones((1, 5))
    values = []
    for downweights in (False, True):
        sums = DerivativeSums(Logistic(), weights, feature_map=FeatureMap(segments, downweights=downweights))
        sums.add(rows)
        values.append(sums.value.tobytes())
    assert values[0] == values[1]


def test_scores_of_long_rows_are_not_shortened() -> None:
    segments = [Segment("numbers", np.zeros(2), np.full(2, 3.0)), Segment("category", np.zeros(2), np.ones(2))]
    rows = np.array([[0, 1.0, 1.0, 1.0], [0, 0.1, 0.0, -1.0]], np.float32)
    weights = np.array([[1.0, 2.0, 0.5, -0.5]])
    plain, long = (compute_scores(rows, weights, FeatureMap(segments, downweights=flag)) for flag in (False, True))
    assert long[:, 0] == pytest.approx([3.0 + 6.0 - 0.5, 0.3], rel=1e-6)
    assert plain[:, 0] == pytest.approx([8.5 / np.sqrt(19.0), 0.3], rel=1e-6)


def test_passes_of_sgd_refuse_a_map_that_downweights() -> None:
    recipe = Recipe(loss=Logistic(), dims=2, rows=4, batch_size=1, passes=1, schedule=make_constant_schedule(0.1))
    segments = [Segment("numbers", np.zeros(2), np.ones(2))]
    State(recipe, feature_map=FeatureMap(segments))
    with pytest.raises(ParameterError):
        State(recipe, feature_map=FeatureMap(segments, downweights=True))
    # A state whose map was changed to one that downweights is no state.
    state = bytearray(State(recipe, feature_map=FeatureMap(segments)).to_bytes())
    plain, changed = (FeatureMap(segments, downweights=flag).block.tobytes() for flag in (False, True))
    at = bytes(state).index(plain)
    state[at : at + len(plain)] = changed
    with pytest.raises(DataError, match="corrupt"):
        State.from_bytes(state)
    with pytest.raises(ParameterError, match="shortened for passes of SGD"):
        Recipe(
            loss=Logistic(),
            dims=2,
            rows=4,
            batch_size=1,
            passes=1,
            schedule=make_constant_schedule(0.1),
            downweighted=True,
        )


def test_what_outer_products_cannot_be_of() -> None:
    weights = np.zeros((1, 3))
    with pytest.raises(ParameterError, match="one weight vector for outer products"):
        DerivativeSums(Multinomial(3), np.zeros((3, 3)), outer=True)
    with pytest.raises(ParameterError, match="one of hessian, outer and a direction"):
        DerivativeSums(Logistic(), weights, outer=True, hessian=True)
    with pytest.raises(ParameterError, match="one of hessian, outer and a direction"):
        DerivativeSums(Logistic(), weights, outer=True, direction=weights)
    with pytest.raises(ParameterError, match="clip must be > 0, and infinite"):
        DerivativeSums(Logistic(), weights, outer=True, clip=0.5)
    with pytest.raises(ParameterError, match="slots for a matrix"):
        DerivativeSums(Logistic(), np.zeros((1, 2000)), outer=True)
    DerivativeSums(HuberSVM(0.1), weights)
