"""What C knows of the losses (losses.h) is what Python knows of them (losses.py)."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.kernel.sgd import State, _library, run
from boltdp.losses import LOSSES, MAX_MARGIN, HuberSVM, Loss, MarginLogistic, Multinomial
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.example_losses import every_loss
from tests.kernel.reference import reference_sgd

CLASSES = 3


EXAMPLES: list[Loss] = [*every_loss(classes=CLASSES), HuberSVM(2.0), MarginLogistic(0.25), MarginLogistic(16.0)]
MARGIN_LOSSES = [loss for loss in EXAMPLES if loss.vector_count == 1]
MARGINS = [*np.linspace(-6.0, 6.0, 97).tolist(), -800.0, -40.0, 40.0, 800.0, 1e300, -1e300]


class Facts(ctypes.Structure):
    """`struct loss_facts`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("is_joint", ctypes.c_int),
        ("has_hessian", ctypes.c_int),
        ("has_odds", ctypes.c_int),
        ("has_label", ctypes.c_int),
        ("unit", ctypes.c_double),
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
def test_vectors_target_hessian_and_probabilities_are_those_of_python(loss: Loss) -> None:
    assert _library.losses_vectors(loss.number, CLASSES) == loss.vector_count
    assert facts(loss.number).target.decode() == loss.target
    has_hessian = bool(facts(loss.number).has_hessian)
    assert has_hessian == (loss.simplex is not None)
    assert has_hessian == (loss.hessians(np.zeros(loss.vector_count), 0, positive=1) is not None)
    tells = loss.probabilities(np.zeros((1, loss.vector_count))) is not None
    assert bool(facts(loss.number).has_odds) == tells


@pytest.mark.parametrize("loss", MARGIN_LOSSES, ids=str)
def test_slopes_are_those_of_python_and_never_longer_than_the_bound(loss: Loss) -> None:
    for margin in MARGINS:
        slope = _library.losses_slope(loss.number, loss.parameter, margin, 0.0)
        for label, y in ((1, 1.0), (0, -1.0)):
            expected = y * loss.slopes(np.array([y * margin]), label, positive=1)[0]
            assert slope == pytest.approx(expected, rel=1e-13, abs=1e-300)
        assert -loss.lipschitz <= slope <= 0.0


@given(
    margin=st.floats() | st.floats(-60, 60),
    wanted=st.floats(0, MAX_MARGIN, exclude_min=True) | st.sampled_from([5e-324, 1e-16, MAX_MARGIN]),
)
def test_no_number_whatever_has_a_slope_outside_of_the_bounds_with_a_margin(margin: float, wanted: float) -> None:
    loss = MarginLogistic(wanted)
    assert -1.0 <= _library.losses_slope(loss.number, loss.parameter, margin, 0.0) <= 0.0
    assert 0.0 <= _library.losses_curvature(loss.number, loss.parameter, margin, 0.0) <= 0.25


@pytest.mark.parametrize("loss", [loss for loss in MARGIN_LOSSES if loss.simplex is not None], ids=str)
def test_curvature_is_the_derivative_of_the_slope(loss: Loss) -> None:
    small = 1e-5
    for margin in MARGINS[:-2]:
        ahead, behind = (loss.slopes(np.array([margin + step]), 1, positive=1)[0] for step in (small, -small))
        curvature = _library.losses_curvature(loss.number, loss.parameter, margin, 0.0)
        assert loss.hessians(np.array([margin]), 1, positive=1) == pytest.approx(curvature, rel=1e-12, abs=1e-15)
        assert curvature == pytest.approx((ahead - behind) / (2 * small), abs=1e-9)
        assert 0.0 <= curvature <= loss.smoothness


@pytest.mark.parametrize("loss", [loss for loss in EXAMPLES if loss.vector_count > 1 or loss.simplex is None], ids=str)
def test_a_loss_without_a_curvature_of_one_score_has_none_in_c(loss: Loss) -> None:
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
