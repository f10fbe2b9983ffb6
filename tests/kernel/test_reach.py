"""How far one row can move the weights: never further than the privacy analysis allows, in exact arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boltdp._array_types import Floats
from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.kernel.sgd import State, _library, run
from boltdp.losses import HuberSVM, Logistic, Loss
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.example_losses import every_loss
from tests.kernel.cases import DIMS, ELEMENTS, Element, draw_labels, exact_square, packed_rows

Vector = npt.NDArray[np.float64]

LOSSES: tuple[Loss, ...] = every_loss(classes=2)
BAD_LABELS = [2.0, 3.0, 1.0 + 2.0**-20, 2.0**24, 2.0**53, 1e30, -1e30, np.inf, -np.inf, np.nan]


def trained(recipe: Recipe, rows: npt.ArrayLike, *, element: Element = np.float64) -> State:
    """All passes over the same rows."""
    packed: Floats = np.array(rows, dtype=np.dtype(element))
    state = State(recipe)
    for _ in range(recipe.passes):
        run([state], packed)
    return state


def two_rows(loss: Loss, *, dims: int, batch_size: int = 1, regularization: float = 0.0) -> Recipe:
    """One pass over two rows, the least a recipe can have, with a step that is exact in binary."""
    return Recipe(
        loss=loss,
        dims=dims,
        rows=2,
        batch_size=batch_size,
        passes=1,
        schedule=make_constant_schedule(0.25),
        regularization=regularization,
    )


def near_unit_row(dims: int, seed: int, roundings: int) -> list[float]:
    """A row whose norm is 1 but for about so many roundings."""
    x = np.random.default_rng(seed).standard_normal(dims)
    row: list[float] = (x / np.linalg.norm(x) * (1.0 + roundings * 2.0**-53)).tolist()
    return row


def awkward_rows() -> st.SearchStrategy[list[float]]:
    """Rows on which a careless norm fails: all numbers equal, one huge, denormals, a norm just around 1."""
    sizes = st.sampled_from([*DIMS, 100])
    equal = st.builds(lambda x, n: [x] * n, st.floats(-1e150, 1e150), sizes)
    lone = st.builds(lambda big, small, n: [big] + [small] * (n - 1), st.floats(1, 1e153), st.floats(-1, 1), sizes)
    denormal = st.lists(st.floats(-1e-150, 1e-150), min_size=1, max_size=20)
    finite = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20)
    around_one = st.builds(near_unit_row, sizes, st.integers(0, 2**32), st.integers(-300, 300))
    return st.one_of(equal, lone, denormal, finite, around_one)


@settings(max_examples=400)
@given(awkward_rows())
@example([0.1] * 100)
@example([1.0])
@example([1.0 + 2.0**-52])
@example([1e153, 1e-300])
@example([5e-324] * 3)
@example([1e200, 1.0])
def test_what_a_row_stands_for_has_norm_at_most_one_in_exact_arithmetic(x: list[float]) -> None:
    """The Huber loss pulls with full force at weight 0, so one step of eta from there is eta * s * x, rounded."""
    rows = np.zeros((2, 1 + len(x)))
    rows[0] = [1.0, *x]
    eta, little = Fraction(1, 4), Fraction(1, 2**40)
    moved = exact_square(trained(two_rows(HuberSVM(0.1), dims=len(x)), rows).weights)
    true_square = exact_square(x)
    assert moved <= eta**2
    # And the guard takes no more than it must, unless the squares overflow or the steps are denormal.
    if 2**-200 < true_square < Fraction(10) ** 300:
        assert moved >= eta**2 * min(Fraction(1), true_square) * (1 - little)


@given(awkward_rows())
def test_the_factor_of_the_guard_holds_for_any_order_of_the_sum(x: list[float]) -> None:
    """Projection sums squares in another order than the scan of rows does: forward, backward and pairwise here."""
    with np.errstate(over="ignore", under="ignore"):
        squares = np.square(np.array(x))
        sums = [sum(squares.tolist()), sum(squares[::-1].tolist()), float(squares.sum())]
    for total in sums:
        scale = Fraction(_library.sgd_row_scale(total, len(x)))
        assert scale**2 * exact_square(x) <= 1
        assert (scale == 0) == (total > 1e300)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("length", [1.5, 1e3, 1e30])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_long_row_behaves_as_the_same_row_of_length_one(loss: Loss, length: float, element: Element) -> None:
    recipe = Recipe(loss=loss, dims=7, rows=20, batch_size=3, passes=2, schedule=make_constant_schedule(0.2))
    unit = packed_rows(recipe, seed=1)
    if loss.target == "classes":
        unit[:, 0] %= 2
    unit[:, 1:] /= np.linalg.norm(unit[:, 1:], axis=1, keepdims=True)
    long = unit.copy()
    long[:, 1:] *= length
    tolerance = 1e-12 if element is np.float64 else 1e-6
    np.testing.assert_allclose(
        trained(recipe, long, element=element).weights, trained(recipe, unit).weights, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("batch_size", [1, 2, 9])
@pytest.mark.parametrize(
    ("loss", "label"),
    [
        *itertools.product(LOSSES, BAD_LABELS),
        *itertools.product((loss for loss in LOSSES if loss.target == "classes"), (0.5, -0.5, -1.0)),
    ],
    ids=str,
)
def test_a_long_row_with_an_undeclared_label_is_neutral_wherever_it_stands(
    loss: Loss, label: float, batch_size: int, element: Element
) -> None:
    """It has the effect of a row of zeros: none but to count."""
    recipe = Recipe(
        loss=loss,
        dims=2,
        rows=9,
        batch_size=batch_size,
        passes=2,
        schedule=make_constant_schedule(0.25),
        regularization=0.1,
        averaging="tail",
    )
    rows = packed_rows(recipe, seed=5)
    if loss.target == "classes":
        rows[:, 0] %= 2

    def weights_with(row: list[float], *, at: int) -> Vector:
        changed = rows.copy()
        changed[at] = row
        return trained(recipe, changed, element=element).weights

    for at in (0, 4, 8):
        ours = weights_with([label, 600.0, -600.0], at=at)
        assert np.array_equal(ours, weights_with([1.0, 0.0, 0.0], at=at))
        assert not np.array_equal(ours, weights_with([1.0, 600.0, -600.0], at=at))


@pytest.mark.parametrize("bad_row", [[1.0, np.nan], [0.5, 0.5], [np.nan, 0.5], [7.0, 0.5]])
def test_a_neutral_row_does_nothing_but_the_step_of_the_regularisation(bad_row: list[float]) -> None:
    """Every number here is exact in binary: at weight 0 the logistic slope is 1/2."""
    rows = [[1.0, 0.5], bad_row]
    first_step = 0.25 * 0.5 * 0.5
    assert trained(two_rows(Logistic(), dims=1), rows).weights[0, 0] == first_step
    regularized = two_rows(Logistic(), dims=1, regularization=0.5)
    assert trained(regularized, rows).weights[0, 0] == (1 - 0.25 * 0.5) * first_step
    in_one_batch = two_rows(Logistic(), dims=1, batch_size=2)
    assert trained(in_one_batch, rows).weights[0, 0] == first_step / 2


def test_a_label_is_judged_for_each_model_of_a_scan_by_its_own_classes() -> None:
    recipe = two_rows(Logistic(), dims=1)
    few, many = State(recipe, classes=2), State(recipe, classes=4)
    run([few, many], np.array([[3.0, 0.5], [3.0, 0.5]]))
    assert few.weights[0, 0] == 0.0
    assert many.weights[0, 0] < 0.0


def bare_steps(loss: Loss, rows: Floats, *, eta: float) -> list[Vector]:
    """Weights after every second row, with eta * lambda = 1: nothing is kept, so each is one gradient step alone."""
    recipe = Recipe(
        loss=loss,
        dims=rows.shape[1] - 1,
        rows=2,
        batch_size=1,
        passes=len(rows) // 2,
        schedule=make_constant_schedule(2.0**-10),
        regularization=2.0**10,
    )
    state = State(recipe)
    # A recipe binds its steps to the smoothness of the loss; slopes must be right wherever the weights are.
    header = state._header
    header.recipe.scale, header.recipe.regularization = eta, 1.0 / eta
    steps = []
    for start in range(0, len(rows), 2):
        run([state], rows[start : start + 2])
        steps.append(state.weights)
    return steps


@given(
    st.sampled_from([*LOSSES, HuberSVM(2.0)]),
    st.sampled_from([2.0**k for k in (-30, -2, 0, 3, 6, 9, 30)]),
    st.sampled_from(DIMS),
    st.integers(0, 2**32),
)
def test_no_row_moves_the_weights_by_more_than_the_step_times_the_lipschitz_constant(
    loss: Loss, eta: float, dims: int, seed: int
) -> None:
    """In exact arithmetic, with margins from nothing to far beyond the range of exp."""
    random = np.random.default_rng(seed)
    labels = draw_labels(loss, random, 12, classes=2)[:, None]
    rows = np.hstack([labels, random.standard_normal((12, dims))])
    rows[::3, 1:] = rows[0, 1:]  # alike but for the label: the most a loss can pull
    squared_lipschitz = Fraction(loss.lipschitz) ** 2 if loss.vector_count == 1 else Fraction(2)
    largest = max(exact_square(step) for step in bare_steps(loss, rows, eta=eta))
    assert largest <= Fraction(eta) ** 2 * squared_lipschitz


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_row_deep_on_the_wrong_side_pulls_with_full_force(loss: Loss) -> None:
    """So the bound above is met, not missed by a wide margin."""
    eta, other = 2.0**20, -1.0 if loss.target == "number" else 0.0
    last = bare_steps(loss, np.array([[1.0, 1.0], [other, 1.0]] * 2), eta=eta)[-1]
    assert float(exact_square(last)) == pytest.approx(eta**2 * loss.lipschitz**2, rel=1e-12)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.max_abs_label], ids=str)
def test_no_number_is_read_so_far_away_that_a_row_pulls_with_more_force(loss: Loss) -> None:
    feature_map = FeatureMap([Segment("numbers", np.zeros(1), np.ones(1))], label_reading=(-0.75, 1e200))
    state = State(two_rows(loss, dims=1), feature_map=feature_map)
    run([state], np.array([[1.0, 1.0], [2.0, 1.0]], np.float32))
    assert 0.25 * loss.lipschitz * (1 - 1e-12) <= state.weights[0, 0] <= 0.25 * loss.lipschitz


def test_a_row_deep_on_the_right_side_does_not_pull() -> None:
    rows = np.array([[1.0, 1.0], [1.0, 1.0]])
    assert np.abs(bare_steps(Logistic(), rows, eta=2.0**20)[-1]).max() < 1e-200
    assert bare_steps(HuberSVM(0.1), rows, eta=2.0**20)[-1][0, 0] == 0.0
