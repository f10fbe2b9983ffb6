"""What C knows of the losses (losses.h) is what Python knows of them (losses.py)."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.sgd import State, _library, run
from boltdp.losses import (
    LOSSES,
    MAX_ABS_LABEL,
    MAX_MARGIN,
    MIN_TAU,
    HuberSVM,
    Loss,
    MarginLogistic,
    Mean,
    Multinomial,
    Quantile,
    Robust,
)
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.example_losses import every_loss
from tests.kernel.reference import reference_sgd

CLASSES = 3


EXAMPLES: list[Loss] = [*every_loss(classes=CLASSES), HuberSVM(2.0), MarginLogistic(0.25), MarginLogistic(16.0)]
MARGIN_LOSSES = [loss for loss in EXAMPLES if (loss.target, loss.vector_count) == ("classes", 1)]
NUMBER_LOSSES: list[Loss] = [Robust(), Mean(), *map(Quantile, (0.001, 0.1, 0.5, 0.9, 0.999))]
MARGINS = [*np.linspace(-6.0, 6.0, 97).tolist(), -800.0, -40.0, 40.0, 800.0, 1e300, -1e300]


class Facts(ctypes.Structure):
    """`struct loss_facts`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("is_joint", ctypes.c_int),
        ("has_kinks", ctypes.c_int),
        ("has_odds", ctypes.c_int),
        ("has_label", ctypes.c_int),
        ("unit", ctypes.c_double),
        ("max_curvature", ctypes.c_double),
    )


def facts(number: int) -> Facts:
    found = Facts()
    _library.losses_facts(number, ctypes.addressof(found))
    return found


def test_every_loss_has_its_number_and_name_in_c() -> None:
    assert sorted(kind.number for kind in LOSSES.values()) == list(range(len(LOSSES)))
    for kind in LOSSES.values():
        assert facts(kind.number).name.decode() == kind.name
    assert facts(len(LOSSES)).name is None


@pytest.mark.parametrize("loss", EXAMPLES, ids=str)
def test_vectors_target_kinks_and_probabilities_are_those_of_python(loss: Loss) -> None:
    assert _library.losses_vectors(loss.number, CLASSES) == loss.vector_count
    assert facts(loss.number).target.decode() == loss.target
    has_kinks = loss.simplex.kink_curvature is not None
    assert bool(facts(loss.number).has_kinks) == has_kinks
    if loss.vector_count == 1:
        assert facts(loss.number).max_curvature == (1.0 if has_kinks else loss.smoothness)
    tells = loss.compute_probabilities(np.zeros((1, loss.vector_count))) is not None
    assert bool(facts(loss.number).has_odds) == tells
    assert bool(facts(loss.number).has_label) == (loss.predict_labels(np.zeros(1)) is not None)


@pytest.mark.parametrize("loss", MARGIN_LOSSES, ids=str)
def test_slopes_are_those_of_python_and_never_longer_than_the_bound(loss: Loss) -> None:
    for margin in MARGINS:
        slope = _library.losses_slope(loss.number, loss.parameter, margin, 0.0)
        for label, y in ((1, 1.0), (0, -1.0)):
            expected = y * loss.compute_slopes(np.array([y * margin]), label, positive=1)[0]
            assert slope == pytest.approx(expected, rel=1e-13, abs=1e-300)
        assert -loss.lipschitz <= slope <= 0.0


@pytest.mark.parametrize("loss", NUMBER_LOSSES, ids=str)
def test_slopes_and_curvature_of_numbers_are_those_of_python_and_within_the_bounds(loss: Loss) -> None:
    most = loss.max_abs_label or 1.0
    for label in (-most, -0.75, 0.0, 0.3, most):
        for score in (*MARGINS, *(label + np.array([-37.0, -1e-9, 0.0, 1e-9, 37.0])).tolist()):
            slope = _library.losses_slope(loss.number, loss.parameter, score, label)
            curvature = _library.losses_curvature(loss.number, loss.parameter, score, label)
            place = np.array([score])
            # A slope is a difference of two numbers of at most 1; near its zero it is as precise as they are.
            assert slope == pytest.approx(loss.compute_slopes(place, label, positive=1)[0], rel=1e-13, abs=4e-14)
            assert loss.compute_hessians(place, label, positive=1) == pytest.approx(curvature, rel=1e-12, abs=4e-14)
            assert abs(slope) <= loss.lipschitz
            assert 0.0 <= curvature <= loss.smoothness


@given(
    score=st.floats() | st.floats(-130, 130),
    label=st.floats(-1, 1),
    tau=st.floats(MIN_TAU, 1 - MIN_TAU) | st.sampled_from([MIN_TAU, 1 - MIN_TAU]),
)
def test_no_number_whatever_has_a_slope_outside_of_the_bounds(score: float, label: float, tau: float) -> None:
    for loss in (Robust(), Quantile(tau), Mean()):
        y = label * (loss.max_abs_label or 1.0)
        assert abs(_library.losses_slope(loss.number, loss.parameter, score, y)) <= loss.lipschitz
        assert 0.0 <= _library.losses_curvature(loss.number, loss.parameter, score, y) <= loss.smoothness


def test_python_and_c_clip_numbers_at_the_same_place() -> None:
    """One step from zero weights: beyond the largest label nothing changes, below it something does."""
    recipe = Recipe(
        loss=Robust(), dims=1, rows=2, batch_size=1, passes=1, schedule=make_constant_schedule(MAX_ABS_LABEL - 1)
    )

    def step(label: float, factor: float) -> float:
        # From a weight of 63 the slope of a label near 64 is far from its limit.
        feature_map = FeatureMap([Segment("numbers", np.zeros(1), np.ones(1))], label_reading=(0.0, factor))
        state = State(recipe, feature_map=feature_map)
        run([state], np.array([[1.0, 1.0], [label, 1.0]], np.float32))
        return float(state.weights[0, 0])

    assert step(1.0, MAX_ABS_LABEL) == step(1.0, MAX_ABS_LABEL + 1) == step(0.75, 1000.0)
    assert step(1.0, MAX_ABS_LABEL - 0.125) < step(1.0, MAX_ABS_LABEL)
    assert step(-1.0, MAX_ABS_LABEL) == step(-1.0, 1e300)


def test_a_share_of_the_bounds_is_read_as_it_is_packed_whatever_the_centre_and_the_factor_are() -> None:
    """Its slope would leave the bounds otherwise: from zero weights it is half of the label."""
    recipe = Recipe(loss=Mean(), dims=1, rows=2, batch_size=1, passes=1, schedule=make_constant_schedule(1.0))
    feature_map = FeatureMap([Segment("numbers", np.zeros(1), np.ones(1))], label_reading=(-0.5, 40.0))
    state, sums = (
        State(recipe, feature_map=feature_map),
        DerivativeSums(Mean(), np.zeros((1, 1)), feature_map=feature_map),
    )
    rows = np.array([[0.75, 0.5], [np.nan, 0.5]], np.float32)
    run([state], rows)
    sums.add(rows)
    assert (state.weights[0, 0], sums.value[0, 0]) == (0.75 / 4, -0.75 / 4)


@given(
    margin=st.floats() | st.floats(-60, 60),
    wanted=st.floats(0, MAX_MARGIN, exclude_min=True) | st.sampled_from([5e-324, 1e-16, MAX_MARGIN]),
)
def test_no_number_whatever_has_a_slope_outside_of_the_bounds_with_a_margin(margin: float, wanted: float) -> None:
    loss = MarginLogistic(wanted)
    assert -1.0 <= _library.losses_slope(loss.number, loss.parameter, margin, 0.0) <= 0.0
    assert 0.0 <= _library.losses_curvature(loss.number, loss.parameter, margin, 0.0) <= 0.25


@pytest.mark.parametrize("loss", [loss for loss in MARGIN_LOSSES if loss.simplex.kink_curvature is None], ids=str)
def test_curvature_is_the_derivative_of_the_slope(loss: Loss) -> None:
    small = 1e-5
    for margin in MARGINS[:-2]:
        ahead, behind = (loss.compute_slopes(np.array([margin + step]), 1, positive=1)[0] for step in (small, -small))
        curvature = _library.losses_curvature(loss.number, loss.parameter, margin, 0.0)
        assert loss.compute_hessians(np.array([margin]), 1, positive=1) == pytest.approx(
            curvature, rel=1e-12, abs=1e-15
        )
        assert curvature == pytest.approx((ahead - behind) / (2 * small), abs=1e-9)
        assert 0.0 <= curvature <= loss.smoothness


@pytest.mark.parametrize("loss", [loss for loss in MARGIN_LOSSES if loss.simplex.kink_curvature is not None], ids=str)
def test_curvature_between_kinks_is_in_units_of_the_largest(loss: Loss) -> None:
    for margin in MARGINS:
        curvature = _library.losses_curvature(loss.number, loss.parameter, margin, 0.0)
        expected = loss.compute_hessians(np.array([margin]), 1, positive=1)
        assert curvature * loss.smoothness == expected[..., 0]


@pytest.mark.parametrize("loss", [loss for loss in EXAMPLES if loss.vector_count > 1], ids=str)
def test_a_loss_of_several_scores_has_no_curvature_of_one_in_c(loss: Loss) -> None:
    assert np.isnan(_library.losses_curvature(loss.number, loss.parameter, 1.0, 0.0))


def test_what_is_no_loss_has_no_slope_in_c() -> None:
    assert np.isnan(_library.losses_slope(len(LOSSES), 1.0, 0.5, 0.0))
    assert facts(len(LOSSES)).target is None


def test_a_loss_with_one_vector_a_class_decides_which_labels_are_declared() -> None:
    """In the kernel and in its reference: a row with the label 3 has no gradient, whatever else is claimed."""
    loss = Multinomial(CLASSES)
    recipe = Recipe(loss=loss, dims=2, rows=4, batch_size=2, passes=1, schedule=make_constant_schedule(0.5))
    rows = np.array([[0, 0.5, 0.1], [3, 0.9, -0.2], [1, -0.3, 0.4], [2, 0.2, 0.6]])
    state = State(recipe, classes=5)
    run([state], rows)
    assert reference_sgd(recipe, rows, classes=5) == pytest.approx(state.weights, rel=1e-13)
