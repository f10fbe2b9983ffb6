"""Sums of derivatives: they agree with the equations, within their rounding bound, and guard rows as the passes do."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.errors import DataError, ParameterError
from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.kernel.loss_derivatives import DerivativeSums, _find_exponent_above
from boltdp.kernel.sgd import list_builds
from boltdp.losses import HuberSVM, Logistic, Loss, MarginLogistic, Mean, MulticlassHuber, Multinomial, Quantile, Robust
from boltdp.privacy.events.objective_perturbation import bound_gradient_rounding, bound_term_rounding
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.example_losses import every_loss
from tests.kernel.cases import DIMS, declared_classes, packed_rows, weights_for
from tests.kernel.reference import guarded, read_label, row_gradient

Matrix = npt.NDArray[np.float64]

LOSSES: tuple[Loss, ...] = (*every_loss(classes=5), MarginLogistic(8.0), Multinomial(2), Quantile(0.9))
OF_CLASSES: tuple[Loss, ...] = tuple(loss for loss in LOSSES if loss.target == "classes")


def plan(loss: Loss, *, dims: int, rows: int) -> Recipe:
    return Recipe(
        loss=loss,
        dims=dims,
        rows=rows,
        batch_size=1,
        passes=1,
        schedule=make_constant_schedule(0.1),
        regularization=1e-12,
    )


def a_case(loss: Loss, *, dims: int, rows: int = 600, seed: int = 0, bad: float = 0.1) -> tuple[Any, Matrix, Matrix]:
    random = np.random.default_rng(seed)
    packed = packed_rows(plan(loss, dims=dims, rows=rows), seed=seed, element=np.float32, bad=bad)
    weights, direction = random.standard_normal((2, loss.vector_count, dims)) * 2
    return packed, weights, direction


def summed(loss: Loss, rows: Any, weights: Matrix, **options: Any) -> Matrix:
    build = options.pop("build", None)
    sums = DerivativeSums(loss, weights, classes=declared_classes(loss), **options)
    sums.add(rows, build=build)
    return sums.value


def reference_gradient(
    loss: Loss, rows: Any, weights: Matrix, *, positive: int = 1, class_weights: tuple[float, ...] | None = None
) -> Matrix:
    total = np.zeros_like(weights)
    for row in rows.astype(np.float64):
        label, x = read_label(loss, row[0], classes=declared_classes(loss)), guarded(row[1:])
        if x is not None and label is not None:
            weight = 1.0 if class_weights is None else class_weights[int(label)]
            total += weight * row_gradient(loss, weights, x, label, positive=positive)
    return total


def reference_product(
    loss: Loss, rows: Any, weights: Matrix, direction: Matrix, class_weights: tuple[float, ...] | None
) -> Matrix:
    total = np.zeros_like(weights)
    for row in rows.astype(np.float64):
        label, x = read_label(loss, row[0], classes=declared_classes(loss)), guarded(row[1:])
        if x is not None and label is not None:
            weight = 1.0 if class_weights is None else class_weights[int(label)]
            total += weight * np.outer(loss.compute_hessians(weights @ x, label, positive=1) @ (direction @ x), x)
    return total


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dims", DIMS)
def test_gradient_agrees_with_the_reference_bad_rows_among_them(loss: Loss, dims: int) -> None:
    rows, weights, _ = a_case(loss, dims=dims)
    for by_class in (None, weights_for(loss, seed=dims)):
        expected = reference_gradient(loss, rows, weights, positive=0, class_weights=by_class)
        found = summed(loss, rows, weights, positive=0, class_weights=by_class)
        assert np.abs(found - expected).max() < 1e-11


@pytest.mark.parametrize("loss", [*every_loss(classes=5), Multinomial(70)])
@pytest.mark.parametrize("dims", [1, 6, 50, 300])
@pytest.mark.parametrize("clip", [0.1, 0.5, 1.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_long_gradients_are_clipped_and_short_ones_are_not(loss: Loss, dims: int, clip: float, weighted: bool) -> None:
    """After the weight of the class is in them: a short weighted gradient stays as it is."""
    rows, weights, _ = a_case(loss, dims=dims, rows=120)
    by_class = weights_for(loss, seed=dims) if weighted else None
    expected = np.zeros_like(weights)
    for row in rows:
        one = reference_gradient(loss, row[None], weights, class_weights=by_class)
        expected += one * min(1.0, clip / max(float(np.linalg.norm(one)), 1e-300))
        alone = summed(loss, row[None], weights, clip=clip, class_weights=by_class)
        on_grid = bound_term_rounding(plan(loss, dims=dims, rows=2))
        assert np.linalg.norm(alone) <= clip * (1 + (dims + loss.vector_count + 32) * 2.0**-53) + on_grid
    assert np.abs(summed(loss, rows, weights, clip=clip, class_weights=by_class) - expected).max() < 1e-11


@pytest.mark.parametrize("loss", LOSSES)
def test_a_clip_that_no_gradient_reaches_changes_no_bit(loss: Loss) -> None:
    rows, weights, _ = a_case(loss, dims=7)
    assert summed(loss, rows, weights, clip=2.0).tobytes() == summed(loss, rows, weights).tobytes()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dims", [1, 6, 50])
def test_product_is_the_derivative_of_the_gradient(loss: Loss, dims: int) -> None:
    rows, weights, direction = a_case(loss, dims=dims)
    small = 1e-5
    for by_class in (None, weights_for(loss, seed=dims)):
        ahead, behind = (
            summed(loss, rows, weights + sign * small * direction, class_weights=by_class) for sign in (1, -1)
        )
        product = summed(loss, rows, weights, direction=direction, class_weights=by_class)
        if loss.simplex.kink_curvature is None:
            assert product == pytest.approx((ahead - behind) / (2 * small), rel=1e-6, abs=1e-6)
        else:
            assert product == pytest.approx(reference_product(loss, rows, weights, direction, by_class), abs=1e-9)
        assert np.vdot(direction, product) > (0 if loss.simplex.kink_curvature is None else -1e-12)


@pytest.mark.parametrize("loss", [*LOSSES, Multinomial(70)])
@pytest.mark.parametrize("dims", DIMS)
def test_hessian_has_the_products_with_each_feature_of_each_vector_as_columns(loss: Loss, dims: int) -> None:
    rows, weights, _ = a_case(loss, dims=dims, rows=60)
    by_class = weights_for(loss, seed=dims)
    hessian = summed(loss, rows, weights, hessian=True, class_weights=by_class)
    assert hessian.shape == (loss.vector_count, dims, dims)
    assert (hessian == hessian.transpose(0, 2, 1)).all()
    for vector, feature in ((0, 0), (loss.vector_count - 1, dims - 1), (loss.vector_count // 2, dims // 2)):
        along = np.zeros_like(weights)
        along[vector, feature] = 1.0
        product = summed(loss, rows, weights, direction=along, class_weights=by_class)[vector]
        assert hessian[vector, :, feature] == pytest.approx(product, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
def test_hessian_agrees_with_its_equation_bad_rows_among_them(loss: Loss) -> None:
    rows, weights, _ = a_case(loss, dims=6)
    expected = np.zeros((loss.vector_count, 6, 6))
    for row in rows.astype(np.float64):
        label, x = read_label(loss, row[0], classes=declared_classes(loss)), guarded(row[1:])
        if x is not None and label is not None:
            hessian = loss.compute_hessians(weights @ x, label, positive=0)
            assert hessian is not None
            expected += np.diagonal(hessian)[:, None, None] * np.outer(x, x)
    assert summed(loss, rows, weights, hessian=True, positive=0) == pytest.approx(expected, rel=1e-11, abs=1e-13)


def kinds(direction: Matrix) -> list[dict[str, Any]]:
    """The options of every derivative."""
    return [{}, {"direction": direction}, {"hessian": True}, {"clip": 0.3}]


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("loss", OF_CLASSES)
def test_weights_that_are_all_1_change_no_bit(loss: Loss, kind: int) -> None:
    rows, weights, direction = a_case(loss, dims=7)
    options = kinds(direction)[kind]
    ones = (1.0,) * declared_classes(loss)
    plain = summed(loss, rows, weights, **options)
    assert summed(loss, rows, weights, class_weights=ones, **options).tobytes() == plain.tobytes()


@pytest.mark.parametrize("loss", LOSSES)
@given(
    cuts=st.lists(st.integers(0, 600), max_size=5),
    dims=st.sampled_from([1, 7, 16]),
    kind=st.integers(0, 3),
    weighted=st.booleans(),
)
def test_cutting_the_rows_and_the_build_change_no_bit(
    loss: Loss, cuts: list[int], dims: int, kind: int, weighted: bool
) -> None:
    rows, weights, direction = a_case(loss, dims=dims)
    options = kinds(direction)[kind] | ({"class_weights": weights_for(loss, seed=dims)} if weighted else {})
    whole = summed(loss, rows, weights, **options)
    for build in list_builds():
        sums = DerivativeSums(loss, weights, classes=declared_classes(loss), **options)
        for part in np.split(rows, sorted(cuts)):
            sums.add(part, build=build)
        assert sums.value.tobytes() == whole.tobytes()


def test_neutral_rows_and_rows_beyond_the_ball_do_as_in_a_pass() -> None:
    weights = np.array([[0.5, -0.25]])
    nan, inf = np.nan, np.inf
    neutral = np.array(
        [[1, nan, 0], [1, inf, 0], [nan, 1, 0], [-1, 1, 0], [0.5, 1, 0], [2, 1, 0], [1, 3e38, 3e38]], np.float32
    )
    assert np.linalg.norm(summed_two_classes(neutral[:-1], weights)) == 0
    assert np.linalg.norm(summed_two_classes(neutral[:-1], weights, hessian=True)) == 0
    long = np.array([[1, 300, 400]], np.float32)
    short = np.array([[1, 0.6, 0.8]], np.float32)
    for hessian in (False, True):
        found, expected = (summed_two_classes(rows, weights, hessian=hessian) for rows in (long, short))
        assert found == pytest.approx(expected, rel=1e-6)
    assert np.linalg.norm(summed_two_classes(neutral[-1:], weights)) <= 1.0


def summed_two_classes(rows: npt.NDArray[np.float32], weights: Matrix, *, hessian: bool = False) -> Matrix:
    sums = DerivativeSums(Logistic(), weights, hessian=hessian)
    sums.add(rows)
    return sums.value


@pytest.mark.parametrize("reading", [(-0.25, 3.0), (0.9, 500.0)])
@pytest.mark.parametrize("loss", [Robust(), Quantile(0.5), Quantile(0.9)], ids=str)
def test_numbers_are_read_by_their_centre_and_factor_and_clipped(loss: Loss, reading: tuple[float, float]) -> None:
    rows, weights, direction = a_case(loss, dims=7, rows=200, bad=0.0)
    rows[::20, 0] = [np.nan, np.inf, -np.inf, 1.5, -1.5, np.nextafter(np.float32(1), 2), 1.0, -1.0, 0.0, 1e30]
    as_they_are = FeatureMap([Segment("numbers", np.zeros(7), np.ones(7))], label_reading=reading)
    expected, product = np.zeros((2, 1, 7))
    for row in rows.astype(np.float64):
        label, x = read_label(loss, row[0], classes=2, reading=reading), guarded(row[1:])
        if x is not None and label is not None:
            expected += row_gradient(loss, weights, x, label, positive=1)
            curvature = loss.compute_hessians(weights @ x, label, positive=1)
            assert curvature is not None
            product += curvature[0] * (direction @ x) * x
    for build in list_builds():
        found = summed(loss, rows, weights, feature_map=as_they_are, build=build)
        assert np.abs(found - expected).max() < 1e-11
        found = summed(loss, rows, weights, direction=direction, feature_map=as_they_are, build=build)
        assert found == pytest.approx(product, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(
    ("loss", "reading"),
    [*((loss, (0.0, 1.0)) for loss in LOSSES), *((loss, (0.25, 51.0)) for loss in LOSSES if loss.max_abs_label)],
)
@pytest.mark.parametrize("size", [0.1, 30.0])
def test_rounding_stays_within_its_bound(loss: Loss, reading: tuple[float, float], size: float) -> None:
    """Against the same sum in 50 digits, with the very factors by which the guard scales rows, and the labels read."""
    rows, weights, _ = a_case(loss, dims=3, rows=300, bad=0.0)
    rows[:, 1:] /= 4 * np.linalg.norm(rows[:, 1:], axis=1, keepdims=True)  # inside the ball: scaled by exactly 1
    weights *= size
    with mpmath.workdps(50):
        exact = [[mpmath.mpf(0)] * 3 for _ in range(loss.vector_count)]
        for packed, *features in rows.astype(float).tolist():
            label = read_label(loss, packed, classes=declared_classes(loss), reading=reading)
            if label is None:
                continue
            scores = [mpmath.fdot(vector, features) for vector in weights.tolist()]
            if isinstance(loss, Robust):
                factors = [mpmath.tanh(scores[0] - label)]
            elif isinstance(loss, Quantile):
                factors = [1 / (1 + mpmath.exp(label - scores[0])) - mpmath.mpf(loss.tau)]
            elif isinstance(loss, Mean):
                factors = [1 / (1 + mpmath.exp(-scores[0])) - (1 + mpmath.mpf(label)) / 2]
            elif isinstance(loss, HuberSVM):
                y = 1 if label == 1 else -1
                h = mpmath.mpf(loss.width)
                factors = [-y * min(max((1 + h - y * scores[0]) / (2 * h), 0), 1)]
            elif isinstance(loss, MulticlassHuber):
                ahead = [(score + (k != label)) / mpmath.mpf(loss.width) for k, score in enumerate(scores)]
                largest = sorted(ahead, reverse=True)
                above = [(mpmath.fsum(largest[:n]) - 1) / n for n in range(1, len(ahead) + 1)]
                threshold = next(t for t, one in reversed(list(zip(above, largest, strict=True))) if one > t)
                factors = [max(one - threshold, 0) for one in ahead]
                factors[int(label)] -= 1
            elif isinstance(loss, Multinomial):
                powers = [mpmath.exp(score) for score in scores]
                factors = [power / mpmath.fsum(powers) for power in powers]
                factors[int(label)] -= 1
            else:
                assert isinstance(loss, Logistic)
                y = 1 if label == 1 else -1
                # The margin as it is, not as its parameter rounds: that is another margin, by half a bit.
                shift = -mpmath.log(mpmath.mpf(loss.parameter))
                factors = [-y / (1 + mpmath.exp(y * scores[0] - shift))]
            for vector, factor in zip(exact, factors, strict=True):
                for j, feature in enumerate(features):
                    vector[j] += factor * feature
        as_they_are = FeatureMap([Segment("numbers", np.zeros(3), np.ones(3))], label_reading=reading)
        found = summed(loss, rows, weights, feature_map=as_they_are)
        gap = mpmath.sqrt(
            mpmath.fsum(
                (mpmath.mpf(float(found[k, j])) - exact[k][j]) ** 2 for k in range(len(exact)) for j in range(3)
            )
        )
    bound = bound_gradient_rounding(plan(loss, dims=3, rows=300), weights=float(np.linalg.norm(weights)), noise=0.0)
    assert gap <= bound
    assert bound < 2e-11 * (1 + size) * max(1.0, loss.smoothness)


def test_sums_go_on_from_bytes_and_unsound_ones_are_refused() -> None:
    rows, weights, _ = a_case(Logistic(), dims=3)
    there, here = (DerivativeSums(Logistic(), weights, classes=3) for _ in range(2))
    there.add(rows)
    here.update(there.to_bytes())
    assert here.value.tobytes() == there.value.tobytes()
    with pytest.raises(DataError, match="cannot continue from these bytes: the state is corrupt"):
        here.update(there.to_bytes()[:-1])
    # The second has the same length.
    for other in (
        DerivativeSums(Multinomial(2), np.zeros((2, 3))),
        DerivativeSums(Logistic(), weights, direction=weights, classes=3),
        DerivativeSums(Logistic(), weights, classes=3, class_weights=(1.0, 0.5, 0.5)),
    ):
        with pytest.raises(DataError, match="must stay those of the same derivative"):
            here.update(other.to_bytes())
    assert here.value.tobytes() == there.value.tobytes()


def test_bytes_that_are_as_long_but_read_in_another_way_are_refused() -> None:
    one, two = np.ones(1), np.ones(2)
    feature_map = FeatureMap(
        [Segment("numbers", one, one), Segment("category", np.ones(3), np.ones(3)), Segment("numbers", one, one)]
    )
    other = FeatureMap([Segment("numbers", np.ones(3), np.ones(3)), Segment("steps", two, two, two)])
    here, there = (DerivativeSums(Logistic(), np.ones((1, 5)), feature_map=each) for each in (feature_map, other))
    assert len(here.to_bytes()) == len(there.to_bytes())
    assert other.slots > feature_map.slots  # there is no room here for the sums of so many
    before = here.to_bytes()
    with pytest.raises(DataError, match="sums must stay those of the same derivative"):
        here.update(there.to_bytes())
    with pytest.raises(DataError, match="sums must stay those of the same derivative"):
        here.update(DerivativeSums(Logistic(), np.zeros((1, 5)), feature_map=feature_map).to_bytes())
    assert here.to_bytes() == before


def test_states_with_a_header_that_is_not_sound_are_refused() -> None:
    gradient, hessian = (DerivativeSums(Logistic(), np.ones((1, 3)), hessian=kind) for kind in (False, True))
    fields = ["magic", "bytes", "cells", "feature map", "summed", "loss", "classes", "positive", "kind", "parameter"]
    fields += ["clip", "weighted", "share", "unused", "unused", "waiting"]
    for sums in (gradient, hessian):
        good = sums.to_bytes()
        wrong = {"magic": 0x316A626F746C6F62, "loss": 8, "cells": 2**62, "classes": 1, "positive": 2, "kind": 4}
        wrong |= {"parameter": 0, "clip": 0, "weighted": 1, "feature map": 8, "share": 2**33, "waiting": 1024}
        wrong |= {"summed": 2**34, "unused": 1}
        for field, bad in wrong.items():
            at = 8 * fields.index(field)
            with pytest.raises(DataError, match="the state is corrupt"):
                sums.update(good[:at] + bad.to_bytes(8, "little") + good[at + 8 :])
    # The kind of one with the numbers of the other.
    at = 8 * fields.index("kind")
    for sums, kind in ((gradient, 2), (gradient, 3), (hessian, 0), (hessian, 1)):
        with pytest.raises(DataError, match="the state is corrupt"):
            sums.update(sums.to_bytes()[:at] + kind.to_bytes(8, "little") + sums.to_bytes()[at + 8 :])


def test_misuse_is_refused() -> None:
    weights = np.zeros((1, 2))
    sums = DerivativeSums(Logistic(), weights)
    with pytest.raises(ParameterError, match="rows must have 1 \\+ 2 columns, got 5"):
        sums.add(np.zeros((3, 5), np.float32))
    with pytest.raises(ParameterError, match="2-D array of float32, got 2-D float64"):
        sums.add(np.zeros((3, 3)))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="build must be one of"):
        sums.add(np.zeros((3, 3), np.float32), build="fast")
    cases: list[tuple[float, dict[str, Any]]]
    cases = [(0.0, {}), (np.nan, {}), (1.0, {"hessian": True}), (1.0, {"direction": weights})]
    for clip, options in cases:
        with pytest.raises(ParameterError, match="clip must be > 0, and infinite for anything but the gradient"):
            DerivativeSums(Logistic(), weights, clip=clip, **options)
    with pytest.raises(ParameterError, match="weights must be finite numbers of shape"):
        DerivativeSums(Logistic(), np.full((1, 2), np.nan))
    with pytest.raises(ParameterError, match="direction must be finite numbers of shape"):
        DerivativeSums(Logistic(), weights, direction=np.zeros((2, 2)))
    with pytest.raises(ParameterError, match="class_weights must be one for each of the 2 classes, got 3"):
        DerivativeSums(Logistic(), weights, class_weights=(1.0, 0.5, 0.5))
    for bad in (0.0, 1.5, np.nan):
        with pytest.raises(ParameterError, match="class_weights must be above 0 and at most 1"):
            DerivativeSums(Logistic(), weights, class_weights=(1.0, bad))
    for positive, classes in ((2, 2), (-1, 2), (0, 1)):
        with pytest.raises(ParameterError, match="positive must be one of 2 or more classes"):
            DerivativeSums(Logistic(), weights, positive=positive, classes=classes)
    with pytest.raises(ParameterError, match="one of hessian, outer and a direction must be given at most"):
        DerivativeSums(Logistic(), weights, direction=weights, hessian=True)
    with pytest.raises(ParameterError, match="weights must be of <= 1024 slots for a matrix, got 1025"):
        DerivativeSums(Logistic(), np.zeros((1, 1025)), hessian=True)
    assert DerivativeSums(Logistic(), np.zeros((1, 1024)), hessian=True).value.shape == (1, 1024, 1024)
    for share in (0.0, 1.5, np.nan):
        with pytest.raises(ParameterError, match="share must be above 0 and at most 1"):
            DerivativeSums(Logistic(), weights, hessian=True, share=share)


def test_the_exponent_is_of_a_power_above_the_norm() -> None:
    assert (_find_exponent_above(np.array([[3.0, 4.0]])), _find_exponent_above(np.zeros(2))) == (3, 0)
