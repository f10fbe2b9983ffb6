"""The link of models whose gradients were clipped: where the descent ends, probabilities are the shares of classes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from boltdp import Model
from boltdp._array_types import Doubles
from boltdp._files.sealed import ModelFileError
from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.errors import ParameterError
from boltdp.evaluation.evaluate import evaluate
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.losses import HuberSVM, Logistic, Loss, MarginLogistic, Multinomial, Robust
from boltdp.model import CLIPPED_LINK
from boltdp.schema.schema import Classes, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.predict import predict, predict_proba, score_batches
from boltdp.workflows.train import train
from tests.kernel.reference import guarded

RAW = np.array([0.3, -0.8, 0.5], np.float32)


def descend_to_the_end(
    loss: Loss, x: Any, counts: list[int], clip: float, weights: tuple[float, ...] | None
) -> Doubles:
    """The score of a row after descending by the kernel's sums of clipped gradients until they are 0.

    All rows have the features x; `counts` are how many there are of each class.
    """
    rows = np.repeat(np.hstack([np.arange(len(counts))[:, None], np.tile(x, (len(counts), 1))]), counts, axis=0)
    point, step = np.zeros((loss.vector_count, len(x))), 4.0 / max(float(np.sum(x**2)), 1e-3)
    for _ in range(20_000):
        sums = DerivativeSums(loss, point, clip=clip, classes=len(counts), class_weights=weights)
        sums.add(rows.astype(np.float32))
        gradient = sums.value / len(rows)
        if np.abs(gradient).max() < 1e-13:
            break
        point = point - step * gradient
    else:
        raise AssertionError("the descent has not come to its end")
    shortened = guarded(np.asarray(x, np.float64))
    assert shortened is not None
    return np.asarray(point @ shortened)


@pytest.mark.parametrize(
    ("counts", "weights"),
    [
        ([700, 300], None),
        ([30, 970], None),
        ([900, 100], (0.2, 1.0)),
        ([100, 900], (0.2, 1.0)),
        ([600, 300, 100], None),
        ([20, 180, 800], (1.0, 0.3, 0.5)),
        ([100, 400, 250, 200, 50], None),
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [0.3, 0.8, 1.0, 1.7])
@pytest.mark.parametrize("clip", [0.5, 0.8])
def test_the_end_of_a_clipped_descent_has_the_shares_of_the_classes(
    counts: list[int], weights: tuple[float, ...] | None, length: float, clip: float
) -> None:
    """With class weights, the shares are those of a world in which a class counts as its weight says."""
    loss: Loss = Logistic() if len(counts) == 2 else Multinomial(len(counts))
    x = (RAW * length / np.linalg.norm(RAW)).astype(np.float32)
    scores = descend_to_the_end(loss, x, counts, clip, weights)[None, :]
    norm = min(1.0, float(np.linalg.norm(x.astype(np.float64))))
    excess = norm * np.array([weights or (1.0,)]) / clip
    corrected = loss.correct_clipping(scores, excess)
    assert corrected is not None
    target = Classes("y", tuple(range(len(counts))))
    shares = np.array(counts) * (weights or 1.0)
    shares = shares / shares.sum()
    np.testing.assert_allclose(target.probabilities(corrected, loss)[0], shares, atol=1e-8)
    slopes = [np.linalg.norm(loss.compute_slopes(scores, label, positive=1)) for label in range(len(counts))]
    clipped = bool((np.array(slopes) * excess > 1.0).any())
    assert (np.abs(target.probabilities(scores, loss)[0] - shares).max() > 1e-4) == clipped


@pytest.mark.parametrize("weights", [None, (1.0, 0.1), (0.01, 1.0)])
@pytest.mark.parametrize("clip", [0.01, 0.3, 0.5, 0.9])
def test_the_score_of_two_classes_keeps_its_sign_and_order(weights: tuple[float, ...] | None, clip: float) -> None:
    scores = np.sort(np.concatenate([np.linspace(-40, 40, 4001), *(s * np.logspace(-18, 0, 400) for s in (-1, 1))]))
    for norm in (0.0, 0.2, 0.999, 1.0):
        excess = np.tile(norm * np.array([weights or (1.0,)]) / clip, (len(scores), 1))
        corrected = Logistic().correct_clipping(scores[:, None], excess)
        assert corrected is not None
        assert (np.sign(corrected[:, 0]) == np.sign(scores)).all()
        assert (np.abs(corrected[:, 0]) <= np.abs(scores)).all()
        assert (np.diff(corrected[:, 0]) >= -1e-15).all()
        assert (np.diff(corrected[::50, 0]) > 0).all()


def test_the_order_of_many_classes_is_kept_without_class_weights() -> None:
    random = np.random.default_rng(3)
    for classes in (3, 4, 10):
        scores = random.normal(0, 1, (20_000, classes)) * random.uniform(0, 8, (20_000, 1))
        excess = random.uniform(0, 1, (20_000, 1)) / random.choice([0.1, 0.4, 0.7], (20_000, 1))
        corrected = Multinomial(classes).correct_clipping(scores, excess)
        order = np.argsort(scores, axis=1)
        assert (np.diff(np.take_along_axis(corrected, order, axis=1)) > -1e-12).all()
        assert not np.allclose(corrected, scores)
    # A light class is clipped less, so that what is likeliest can be another one.
    scores = np.log([[0.5, 0.4, 0.1]])
    weighted = Multinomial(3).correct_clipping(scores, np.array([[0.1, 1.0, 0.1]]) / 0.4)
    assert weighted.argmax() == 1


def test_gradients_that_are_not_clipped_leave_scores_as_they_are() -> None:
    random = np.random.default_rng(4)
    for loss in (Logistic(), Multinomial(3)):
        scores = random.normal(0, 3, (100, loss.vector_count))
        found = loss.correct_clipping(scores, np.full((100, 1), 0.7))
        np.testing.assert_array_equal(found, scores)
    for other in (HuberSVM(), MarginLogistic(), Robust()):
        assert other.correct_clipping(np.zeros((1, 1)), np.ones((1, 1))) is None


def some_rows(classes: int, *, rows: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (rows, 3))
    scores = x @ np.random.default_rng(1).normal(0, 1, (3, classes)) + np.linspace(0, 2, classes)
    labels = (scores + random.gumbel(size=scores.shape)).argmax(axis=1)
    return pa.table({**{f"x{place}": x[:, place] for place in range(3)}, "u": random.uniform(0, 1, rows), "y": labels})


def trained(classes: int = 2, *, weight: Numeric | None = None, **settings: Any) -> Model:
    columns = tuple(Numeric(f"x{place}", -1, 1) for place in range(3))
    schema = Schema(Classes("y", tuple(range(classes))), columns, weight=weight)
    asked = {
        "epsilon": 10.0,
        "delta": 1e-6,
        "algorithm": "noisy-gd",
        "standardize": "private",
        "noise_seed": 1,
        **settings,
    }
    return Model.from_released(train(open_source(some_rows(classes, rows=6_000, seed=2)), schema, Settings(**asked)))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("class_weights", [None, "some"])
def test_probabilities_of_a_trained_model_are_closer_with_the_link(classes: int, class_weights: str | None) -> None:
    weights = None if class_weights is None else (1.0, 0.3, 0.5)[:classes]
    model, others = trained(classes, class_weights=weights), some_rows(classes, rows=20_000, seed=3)
    plain = replace(model, link=None)
    assert model.link == CLIPPED_LINK
    found, without = (predict_proba(one, others) for one in (model, plain))
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    # The shares of a world in which a class counts as its weight says.
    counts = np.array(weights or (1.0,) * classes)[others["y"].to_numpy()]
    rows = np.arange(len(counts))
    losses = [-np.average(np.log(one[rows, others["y"].to_numpy()]), weights=counts) for one in (found, without)]
    assert losses[0] < losses[1]
    assert predict(model, others).tolist() == found.argmax(axis=1).tolist()
    if weights is None or classes == 2:
        assert predict(model, others).tolist() == predict(plain, others).tolist()


@pytest.mark.parametrize("classes", [2, 3])
def test_a_short_row_is_corrected_by_its_norm(classes: int) -> None:
    """Rows are short where values are missing: their gradients were clipped by less, or not at all."""
    model, x = trained(classes), some_rows(classes, rows=200, seed=5)["x0"].to_numpy()
    table = pa.table(
        {
            name: [None if (row >> place) % 2 else value for row, value in enumerate(x)]
            for place, name in enumerate(("x0", "x1", "x2"))
        }
    )
    packed = np.concatenate([*encode_rows(open_source(table), model.schema, label=False)])
    norms = np.minimum(np.linalg.norm(model.schema.encoding.read_features(packed)[:, 1:], axis=1), 1.0)
    assert norms.min() < 0.5
    assert (norms == 1.0).any()
    scores, clip = replace(model, link=None).margins(packed), model.certificate.training.gradient_clip
    assert clip is not None
    expected = model.certificate.problem.loss.correct_clipping(scores, norms[:, None] / clip)
    assert expected is not None
    np.testing.assert_allclose(model.margins(packed), expected, rtol=1e-12, atol=1e-14)
    assert (expected != scores).any()


def test_evaluations_judge_the_probabilities_of_the_link() -> None:
    model, others = trained(), some_rows(2, rows=4_000, seed=3)
    of_truth = predict_proba(model, others)[np.arange(4_000), others["y"].to_numpy()]
    found = evaluate(model, open_source(others))
    assert found.log_loss == pytest.approx(-np.log(of_truth).mean(), rel=1e-9)
    assert found.log_loss < evaluate(replace(model, link=None), open_source(others)).log_loss


def test_a_threshold_is_compared_with_the_probability_of_the_link() -> None:
    others = some_rows(2, rows=4_000, seed=3)
    for threshold in (0.1, 0.5, 0.8):
        model = trained().with_threshold(threshold)
        assert predict(model, others).tolist() == (predict_proba(model, others)[:, 1] > threshold).tolist()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("threshold", [None, 0.2])
@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
def test_scikit_learn_has_the_probabilities_of_the_link(classes: int, threshold: float | None, multiclass: str) -> None:
    model, others = trained(classes, multiclass=multiclass), some_rows(classes, rows=1_000, seed=3)
    model = model.with_threshold(threshold) if classes == 2 else model
    estimator, X = model.to_sklearn(), others.select(["x0", "x1", "x2"]).to_pandas()
    np.testing.assert_allclose(estimator.predict_proba(X), predict_proba(model, others), rtol=1e-5, atol=1e-6)
    assert estimator.predict(X).tolist() == predict(model, others).tolist()


def test_only_where_the_clip_is_known_do_scores_have_the_link() -> None:
    assert trained(algorithm="objective").link is None
    assert trained(loss="margin").link is None
    assert trained(weight=Numeric("u", 0, 1)).link is None, "whose weight a row has is not known where it is scored"
    assert trained(4).link is None
    assert trained(3, multiclass="one-vs-all").link == CLIPPED_LINK
    assert trained(3, multiclass="one-vs-all", class_weights=(1.0, 0.5, 0.5)).link is None
    with pytest.raises(ParameterError, match=r"^the link must be 'clipped gradients', of a model that can"):
        replace(trained(algorithm="objective"), link=CLIPPED_LINK)
    with pytest.raises(ParameterError, match=r"^the link must be 'clipped gradients', of a model that can"):
        replace(trained(weight=Numeric("u", 0, 1)), link=CLIPPED_LINK)
    with pytest.raises(ParameterError, match=r"got 'probit'$"):
        replace(trained(), link="probit")
    with pytest.raises(ParameterError, match=r"^the link must be ") as caught:
        replace(trained(), link="x" * 10**6)
    assert len(str(caught.value)) < 300


def test_the_file_says_whether_there_is_a_link(tmp_path: Path) -> None:
    """So a file from before scores as it did."""
    model, others, path = trained(), open_source(some_rows(2, rows=100, seed=3)), tmp_path / "model.json"
    model.save(path)
    record = json.loads(path.read_text())
    assert record["link"] == CLIPPED_LINK
    again = Model.load(path)
    again.verify()
    np.testing.assert_array_equal(predict_proba(again, others), predict_proba(model, others))
    (margins,) = score_batches(model, others)
    old = Model.from_dict({key: value for key, value in record.items() if key not in ("link", "digest")})
    assert old.link is None
    (plain,) = score_batches(old, others)
    assert (np.abs(plain) >= np.abs(margins)).all()
    assert (np.abs(plain) > 1.1 * np.abs(margins)).any()
    assert "link" not in old.to_dict()
    for wrong in (1, None, "probit"):
        with pytest.raises(ModelFileError, match="link"):
            Model.from_dict({**old.to_dict(), "link": wrong})
