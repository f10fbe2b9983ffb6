"""The losses: every constant that is stated against the function itself, and what a model makes of its margins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.losses import (
    LOSSES,
    MAX_ABS_LABEL,
    HuberSVM,
    Logistic,
    Loss,
    MarginLogistic,
    Mean,
    MulticlassHuber,
    Multinomial,
    NumberLoss,
    Quantile,
    Robust,
    Simplex,
    make_contrast_basis,
)
from tests.example_losses import every_loss

WIDE: tuple[Loss, ...] = (HuberSVM(3.0), MulticlassHuber(2, 3.0), MulticlassHuber(4, 40.0))
MORE: tuple[Loss, ...] = (MarginLogistic(0.5), Multinomial(2), Quantile(0.1), Quantile(0.999), *WIDE)
EVERY: list[Loss] = [*every_loss(classes=5), *MORE]
ids = [f"{loss.name} {loss.parameter:g} {loss.vector_count}" for loss in EVERY]
every = pytest.mark.parametrize("loss", EVERY, ids=ids)
NUMBER_LOSSES = [loss for loss in EVERY if isinstance(loss, NumberLoss)]
of_numbers = pytest.mark.parametrize("loss", NUMBER_LOSSES, ids=lambda loss: f"{loss.name} {loss.parameter:g}")


def value(loss: Loss, scores: Doubles, label: float) -> float:
    """The loss of a row with these scores, straight from its definition; the second class is the positive one."""
    if isinstance(loss, NumberLoss):
        return number_value(loss, float(scores[0]), label)
    if isinstance(loss, Multinomial):
        return float(np.log(np.exp(scores - scores[int(label)]).sum()))
    if isinstance(loss, MulticlassHuber):
        return multiclass_value(loss, scores + (np.arange(loss.classes) != label)) - float(scores[int(label)])
    margin = float(scores[0]) if label == 1 else -float(scores[0])
    if isinstance(loss, MarginLogistic):
        margin -= loss.margin
    if isinstance(loss, Logistic):
        return math.log1p(math.exp(-margin))
    assert isinstance(loss, HuberSVM)
    if margin >= 1 + loss.width:
        return 0.0
    return 1 - margin if margin <= 1 - loss.width else (1 + loss.width - margin) ** 2 / (4 * loss.width)


def multiclass_value(loss: MulticlassHuber, ahead: Doubles) -> float:
    """The largest <p, ahead> + h/2 * (1 - ||p||^2): of some set of classes, the largest for odds that sum to 1."""
    values = []
    for size in range(1, loss.classes + 1):
        for several in map(list, itertools.combinations(range(loss.classes), size)):
            odds = (ahead[several] - ahead[several].mean()) / loss.width + 1 / size
            if odds.min() >= 0:
                values.append(float(odds @ ahead[several]) + loss.width / 2 * (1 - float(odds @ odds)))
    return max(values)


def number_value(loss: NumberLoss, score: float, label: float) -> float:
    """The same for a label that is a number."""
    if isinstance(loss, Mean):
        return float(np.logaddexp(0.0, score)) - (1 + label) / 2 * score
    if isinstance(loss, Quantile):
        return loss.tau * (label - score) + float(np.logaddexp(0.0, score - label))
    assert isinstance(loss, Robust)
    return float(np.logaddexp(score - label, label - score)) - math.log(2)


def middle(loss: Loss, label: float) -> float:
    """The score at which the slope changes fastest."""
    if isinstance(loss, Robust | Quantile):
        return label
    sign = 1.0 if label == 1 else -1.0
    if isinstance(loss, MulticlassHuber):
        return 0.0
    if isinstance(loss, HuberSVM | MarginLogistic):
        return sign if isinstance(loss, HuberSVM) else sign * loss.margin
    assert isinstance(loss, Logistic | Multinomial | Mean)
    return 0.0


def labels(loss: Loss) -> Sequence[float]:
    """All classes; of numbers, some between the extreme ones, which are among them."""
    if isinstance(loss, NumberLoss):
        most = loss.max_abs_label or 1.0
        return (-most, -1.0, -0.3, 0.0, 1.0, most)
    return range(max(2, loss.vector_count))


def some_scores(loss: Loss, seed: int, scale: float) -> Doubles:
    return scale * np.random.default_rng(seed).standard_normal(loss.vector_count)


scales = st.sampled_from([0.0, 0.3, 1.0, 4.0])


@every
@given(seed=st.integers(0, 10**6), scale=scales)
def test_slopes_are_the_derivative(loss: Loss, seed: int, scale: float) -> None:
    scores, step = some_scores(loss, seed, scale), 1e-6
    for label in labels(loss):
        slopes = loss.compute_slopes(scores, label, positive=1)
        moved = step * np.eye(loss.vector_count)
        expected = [(value(loss, scores + one, label) - value(loss, scores - one, label)) / (2 * step) for one in moved]
        # The slope of the Huber loss has a kink, over which a difference is off by a half of its step.
        assert slopes == pytest.approx(expected, abs=1e-5)


@every
@given(seed=st.integers(0, 10**6), scale=scales)
def test_no_slope_is_longer_than_the_constant_and_none_changes_faster(loss: Loss, seed: int, scale: float) -> None:
    scores, other = some_scores(loss, seed, scale), some_scores(loss, seed + 1, scale)
    for label in labels(loss):
        one, two = (loss.compute_slopes(place, label, positive=1) for place in (scores, other))
        assert np.linalg.norm(one) <= loss.lipschitz * (1 + 1e-12)
        assert np.linalg.norm(one - two) <= loss.smoothness * np.linalg.norm(scores - other) * (1 + 1e-9) + 1e-15
        assert (one - two) @ (scores - other) >= -1e-12, "it must be convex"


@every
@given(seed=st.integers(0, 10**6), scale=scales)
def test_hessians_are_the_derivative_of_the_slopes(loss: Loss, seed: int, scale: float) -> None:
    several, step = np.stack([some_scores(loss, seed + k, scale) for k in range(3)]), 1e-6
    for label in labels(loss):
        hessians, moved = loss.compute_hessians(several, label, positive=1), step * np.eye(loss.vector_count)
        places = [several[:, None] + s * moved for s in (1, -1)]
        if loss.simplex.kink_curvature is not None:
            beside = [loss.compute_hessians(place, label, positive=1) for place in places]
            if not all((one == hessians[:, None]).all() for one in beside):
                continue  # there is a kink between
        ahead, behind = (loss.compute_slopes(place, label, positive=1) for place in places)
        assert hessians == pytest.approx((ahead - behind) / (2 * step), abs=1e-8)


def test_a_loss_must_state_everything() -> None:
    with pytest.raises(TypeError, match="the loss Unfinished must state its target"):
        type("Unfinished", (Loss,), {"name": "unfinished", "number": 9})


@every
def test_the_constants_are_reached(loss: Loss) -> None:
    """A smaller one would be wrong, and a larger one would be noise for nothing."""
    far = np.full(loss.vector_count, 0.0)
    far[0] = -60.0 if loss.vector_count == 1 else 0.0
    far[-1] = far[-1] if loss.vector_count == 1 else 60.0
    places = (far, -far) if isinstance(loss, NumberLoss) else (far,)
    steepest = max(
        np.linalg.norm(loss.compute_slopes(at, 1 if loss.vector_count == 1 else 0, positive=1)) for at in places
    )
    assert steepest == pytest.approx(loss.lipschitz, rel=1e-12)
    at = np.full(loss.vector_count, middle(loss, 1))
    if isinstance(loss, MulticlassHuber):
        at[1] = 1.0
    if loss.vector_count > 2:
        at[2:] = -60.0  # two classes that are equally likely, and no other
    step = np.zeros(loss.vector_count)
    step[:2] = (1e-4, -1e-4)[: loss.vector_count]
    change = loss.compute_slopes(at + step, 1, positive=1) - loss.compute_slopes(at - step, 1, positive=1)
    assert np.linalg.norm(change) / np.linalg.norm(2 * step) == pytest.approx(loss.smoothness, rel=1e-6)


@every
def test_the_loss_at_zero_is_that_of_any_row(loss: Loss) -> None:
    """Or the largest one, where rows differ, but for what rounding a kink takes from it."""
    at_zero = [value(loss, np.zeros(loss.vector_count), label) for label in labels(loss)]
    if loss.max_abs_label == 0:
        assert at_zero == pytest.approx([loss.loss_at_zero] * len(at_zero))
    else:
        assert loss.loss_at_zero - 0.7 <= max(at_zero) <= loss.loss_at_zero


def test_far_away_nothing_overflows() -> None:
    for margin in (1e3, 1e300):
        assert Logistic().compute_slopes(np.array([margin]), 1, positive=1).tolist() == [0.0]
        assert Logistic().compute_slopes(np.array([-margin]), 1, positive=1).tolist() == [-1.0]
        assert Multinomial(2).compute_slopes(np.array([margin, -margin]), 0, positive=1).tolist() == [0.0, 0.0]
        assert HuberSVM(0.1).compute_slopes(np.array([margin]), 0, positive=1).tolist() == [1.0]
        assert MulticlassHuber(2).compute_slopes(np.array([-margin, margin]), 0, positive=1).tolist() == [-1.0, 1.0]
        for loss in NUMBER_LOSSES:
            places = np.array([[margin], [-margin]])
            slopes, hessians = (
                loss.compute_slopes(places, 1.0, positive=1),
                loss.compute_hessians(places, 1.0, positive=1),
            )
            assert np.abs(slopes).max() <= loss.lipschitz
            assert slopes[0] - slopes[1] == math.sqrt(loss.simplex.edge_squared)
            assert hessians.ravel().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("positive", [0, 1, 2])
@pytest.mark.parametrize("loss", [Logistic(), HuberSVM(0.1)])
def test_one_class_is_told_from_all_others(loss: Loss, positive: int) -> None:
    slopes = [float(loss.compute_slopes(np.array([0.2]), label, positive=positive)[0]) for label in range(3)]
    assert [slope < 0 for slope in slopes] == [label == positive for label in range(3)]


def vertices(loss: Loss) -> Doubles:
    """One of the regular simplices that the loss states, a row each, such that a slope has as many coordinates."""
    edge_squared = loss.simplex.edge_squared
    if loss.vector_count == 1:
        return math.sqrt(edge_squared) * np.array([[-0.5], [0.5]])
    return math.sqrt(edge_squared / 2) * np.eye(loss.vector_count)


def anchor(loss: Loss, label: float) -> Doubles:
    """The vertex of a class, or the place of a number on the edge."""
    share, corners = loss.simplex.anchor, vertices(loss)
    if share == "vertex":
        return np.asarray(corners[int(label)])
    if share == "any":
        share = (1 + label) / 2
    return np.asarray((1 - share) * corners[0] + share * corners[1])


@every
@given(seed=st.integers(0, 10**6), scale=scales)
def test_slopes_and_curvature_are_those_of_the_simplex(loss: Loss, seed: int, scale: float) -> None:
    """A slope is a mean of the vertices minus the label's anchor, and its curvature no more than their variance.

    With kinks, its curvature is no more than is stated.
    """
    scores, step, corners = some_scores(loss, seed, scale), 1e-5, vertices(loss)
    assert loss.simplex.directions == loss.directions
    for label in labels(loss):
        slope = loss.compute_slopes(scores, label, positive=1)
        system = np.vstack([corners.T, np.ones(len(corners))])
        mean = slope + anchor(loss, label)
        odds = np.linalg.lstsq(system, np.append(mean, 1.0), rcond=None)[0]
        assert system @ odds == pytest.approx([*mean, 1.0], abs=1e-12)
        assert odds.min() > -1e-12
        moved = step * np.eye(loss.vector_count)
        hessian = np.array(
            [
                (
                    loss.compute_slopes(scores + one, label, positive=1)
                    - loss.compute_slopes(scores - one, label, positive=1)
                )
                / (2 * step)
                for one in moved
            ]
        )
        assert np.linalg.matrix_rank(hessian, tol=1e-8) <= loss.simplex.directions
        if loss.simplex.kink_curvature is not None:
            assert np.linalg.norm(hessian, 2) <= loss.simplex.kink_curvature * (1 + 1e-6)
            continue
        variance = loss.simplex.edge_squared / 2 * (1 - (odds**2).sum())
        assert np.trace(hessian) <= variance + 1e-9
        assert variance <= loss.simplex.directions * loss.simplex.mean_curvature + 1e-12


@every
def test_the_simplex_is_no_larger_than_it_must_be(loss: Loss) -> None:
    """The longest slope goes from an anchor to the vertex that is farthest from it, and its variance is reached."""
    share = loss.simplex.anchor if isinstance(loss.simplex.anchor, float) else 1.0
    assert math.sqrt(loss.simplex.edge_squared) * max(share, 1 - share) == pytest.approx(loss.lipschitz)
    assert loss.simplex.vertices == max(2, loss.vector_count)
    step, zero = 1e-5, np.full(loss.vector_count, middle(loss, 0))
    if isinstance(loss, MulticlassHuber):
        zero[0] = 1.0
    bends = [
        (loss.compute_slopes(zero + one, 0, positive=1)[i] - loss.compute_slopes(zero - one, 0, positive=1)[i])
        / (2 * step)
        for i, one in enumerate(step * np.eye(loss.vector_count))
    ]
    assert sum(bends) == pytest.approx(loss.simplex.directions * loss.simplex.mean_curvature, rel=1e-6)


@every
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.0, 1.0, 900.0]))
def test_odds_are_those_of_the_loss(loss: Loss, seed: int, scale: float) -> None:
    margins = scale * np.random.default_rng(seed).standard_normal((4, loss.vector_count))
    odds = loss.compute_probabilities(margins)
    assert loss.probabilistic == (odds is not None) == (not isinstance(loss, HuberSVM | MulticlassHuber | NumberLoss))
    if odds is None:
        return
    assert odds.shape == margins.shape
    assert np.isfinite(odds).all()
    for row, told in zip(margins, odds, strict=True):
        shares = told / told.sum() if loss.vector_count > 1 else np.array([1 - told[0], told[0]])
        for label in labels(loss):
            slope = loss.compute_slopes(row, label, positive=1)[int(label) if loss.vector_count > 1 else 0]
            if loss.softmax:
                # A loss that is the logarithm of a probability: its derivative tells how far that is from sure.
                assert shares[int(label)] == pytest.approx(1 - abs(slope), abs=1e-12)
        # Among rows with these shares the loss would not move the scores.
        slopes = np.array([loss.compute_slopes(row, label, positive=1) for label in labels(loss)])
        assert shares @ slopes == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("loss", [Logistic(), MarginLogistic(), MarginLogistic(16.0)], ids=str)
@pytest.mark.parametrize("margin", [-900.0, -2.0, 0.0, 0.3, 900.0])
def test_the_link_is_the_probability(loss: Logistic, margin: float) -> None:
    """Written in words that Python understands as well."""
    text = loss.write_sql_link("margin", repr)
    (expected,) = loss.compute_probabilities(np.array([margin]))
    assert eval(text, {"tanh": math.tanh, "margin": margin}) == pytest.approx(expected, abs=1e-15)
    others: list[Loss] = [HuberSVM(0.1), Multinomial(3), MulticlassHuber(3)]
    assert [loss.write_sql_link("margin", repr) for loss in others] == [None] * 3


class Halved(Logistic):
    """The logistic loss with the inverse of its link found by halving."""

    invert_link = Loss.invert_link


class Doubtful(Halved):
    """A loss that is never sure."""

    def compute_probabilities(self, margins: Doubles) -> Doubles:
        return 0.1 + 0.8 * super().compute_probabilities(margins)


PROBABILITIES = [1e-12, 0.01, 0.11, 0.3, 0.5, 0.75, 0.999, 1 - 1e-12]


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_the_cut_is_the_margin_of_a_probability(probability: float) -> None:
    exact, halved = Logistic().invert_link(probability), Halved().invert_link(probability)
    assert exact == pytest.approx(halved, rel=1e-4, abs=1e-15)
    assert Logistic().compute_probabilities(np.array([[exact]])) == pytest.approx(probability, rel=1e-4)
    # By halving it is the last margin at which the probability does not exceed it.
    below, above = Halved().compute_probabilities(np.array([halved, np.nextafter(halved, np.inf)]))
    assert below <= probability < above


def test_the_cut_of_a_half_is_no_margin_at_all() -> None:
    assert Logistic().invert_link(0.5) == 0.0


def test_a_probability_that_is_never_reached_has_no_cut() -> None:
    assert Doubtful().invert_link(0.5) == pytest.approx(0.0, abs=1e-12)
    for probability in (0.05, 0.95):
        with pytest.raises(ParameterError, match=r"^the loss 'logistic' has no margin with a probability of 0"):
            Doubtful().invert_link(probability)


@pytest.mark.parametrize("loss", [HuberSVM(0.1), Multinomial(2), MulticlassHuber(2), *NUMBER_LOSSES])
def test_a_loss_without_a_link_has_no_cut(loss: Loss) -> None:
    with pytest.raises(ParameterError, match=r"has no margin that stands for a probability$"):
        loss.invert_link(0.5)


def test_a_loss_for_several_classes() -> None:
    curved: list[Loss] = [Logistic(), MarginLogistic(), Multinomial(3)]
    kinked: list[Loss] = [HuberSVM(0.3), MulticlassHuber(3, 0.3)]
    joint = [loss.make_joint_loss(7) for loss in (*curved, *kinked, *NUMBER_LOSSES)]
    assert joint == [*[Multinomial(7)] * 3, *[MulticlassHuber(7, 0.3)] * 2, *[None] * len(NUMBER_LOSSES)]


@of_numbers
@pytest.mark.parametrize("score", [-900.0, -2.0, 0.0, 0.3, 900.0])
def test_the_predicted_number_is_written_as_it_is_computed(loss: NumberLoss, score: float) -> None:
    text = loss.write_sql_link("score", repr)
    assert text is not None
    (expected,) = predicted(loss, np.array([score]))
    assert eval(text, {"tanh": math.tanh, "score": score}) == pytest.approx(expected, abs=1e-15)


def predicted(loss: Loss, scores: Doubles) -> Doubles:
    found = loss.predict_labels(scores)
    assert found is not None
    return found


def test_classes_have_no_predicted_number() -> None:
    for loss in EVERY:
        assert (loss.predict_labels(np.zeros(1)) is None) == (loss.target == "classes")


@of_numbers
def test_the_score_with_the_least_loss_predicts_what_the_loss_is_named_after(loss: NumberLoss) -> None:
    """The mean, the quantile, and for symmetric labels their middle: all of them a good deal wider than the kink."""
    random = np.random.default_rng(1)
    some = random.normal(0.0, 30.0, 401) if isinstance(loss, Quantile) else random.uniform(-0.9, 0.5, 401)
    low, high = -100.0, 100.0
    for _ in range(50):
        score = (low + high) / 2
        total = sum(float(loss.compute_slopes(np.array([score]), label, positive=1)[0]) for label in some.tolist())
        low, high = (score, high) if total < 0 else (low, score)
    (found,) = predicted(loss, np.array([low]))
    if isinstance(loss, Quantile):
        assert float((some < found).mean()) == pytest.approx(loss.tau, abs=0.03)
    else:
        assert found == pytest.approx(some.mean(), abs=1e-9 if isinstance(loss, Mean) else 0.02)


@pytest.mark.parametrize("tau", [0.0, 1.0, 0.0009, 0.9991, -0.5, math.nan, math.inf])
def test_a_quantile_is_well_between_0_and_1(tau: float) -> None:
    with pytest.raises(ParameterError, match="tau must be"):
        Quantile(tau)


@pytest.mark.parametrize("margin", [0.0, -1.0, 16.5, math.nan, math.inf])
def test_a_margin_is_above_zero_and_not_too_large(margin: float) -> None:
    with pytest.raises(ParameterError, match="margin must be"):
        MarginLogistic(margin)


@every
def test_the_space_of_the_weights(loss: Loss) -> None:
    """Several vectors sum to zero, as all their slopes do."""
    if loss.vector_count == 1:
        assert (loss.directions, loss.basis) == (1, None)
        return
    assert loss.directions == loss.vector_count - 1
    assert loss.basis is not None
    np.testing.assert_array_equal(loss.basis, make_contrast_basis(loss.vector_count))
    assert loss.basis.shape == (loss.directions, loss.vector_count)
    for label in labels(loss):
        assert abs(loss.compute_slopes(some_scores(loss, int(label), 1.0), label, positive=1).sum()) < 1e-15


def test_a_loss_is_listed_once_under_its_name() -> None:
    margin, numbers = {"margin": MarginLogistic}, {"robust": Robust, "quantile": Quantile, "mean": Mean}
    hinges = {"huber": HuberSVM, "multiclass_huber": MulticlassHuber}
    assert dict(LOSSES) == {"logistic": Logistic, **margin, **hinges, "multinomial": Multinomial, **numbers}
    assert sorted(kind.number for kind in LOSSES.values()) == list(range(8))
    assert [Logistic().simplex, MarginLogistic().simplex] == [Simplex(2, 1.0)] * 2
    # Above 1/(2h) and 1/h, which round.
    above = [math.nextafter(curvature, math.inf) for curvature in (5.0, 10.0)]
    kinked = [Simplex(2, 1.0, kink_curvature=above[0]), Simplex(7, 2.0, kink_curvature=above[1])]
    assert [HuberSVM(0.1).simplex, MulticlassHuber(7, 0.1).simplex] == kinked
    assert Multinomial(7).simplex == Simplex(7, 2.0)
    assert [HuberSVM(0.3).parameter, Logistic().parameter, Multinomial(3).parameter] == [0.3, 1.0, 1.0]
    anchored = [Simplex(2, 4.0, 0.5), Simplex(2, 1.0, 0.9), Simplex(2, 1.0, "any")]
    assert [Robust().simplex, Quantile(0.9).simplex, Mean().simplex] == anchored
    assert [Robust().max_abs_label, Quantile().max_abs_label, Mean().max_abs_label] == [MAX_ABS_LABEL] * 2 + [0.0]


@given(seed=st.integers(0, 10**6), width=st.sampled_from([0.1, 1.0, 30.0]))
def test_of_two_classes_the_hinge_of_all_is_that_of_their_difference(seed: int, width: float) -> None:
    scores = some_scores(MulticlassHuber(2), seed, 2.0)
    (slope,) = HuberSVM(width).compute_slopes(scores[1:] - scores[:1], 1, positive=1)
    assert MulticlassHuber(2, width).compute_slopes(scores, 1, positive=1) == pytest.approx([-slope, slope], abs=1e-14)
