"""Evaluations: scikit-learn's figures are the oracle, up to what bins can change."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    precision_recall_fscore_support,
    roc_auc_score,
)

from boltdp import Model
from boltdp.engines import open_source
from boltdp.errors import DataError, ParameterError
from boltdp.evaluation.class_statistics import ClassFigures
from boltdp.evaluation.evaluation import ExactEvaluation
from boltdp.evaluation.metrics import (
    Counts,
    Curve,
    Score,
    compute_calibration_error,
    make_calibration_bins,
)
from boltdp.evaluation.statistics import NO_GROUP
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from boltdp.settings import Multiclass
from tests.export.test_sql import make_model

ROWS = 3000


def rows_of(classes: int, *, seed: int = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (ROWS, 3))
    label = np.argmax(x @ generator.normal(0, 2, (3, classes)) + generator.gumbel(0, 1, (ROWS, classes)), axis=1)
    names = np.array([*"abcdefgh"], dtype=object)[label]
    names[::100] = "undeclared"
    return pa.table({**{f"f{i}": x[:, i] for i in range(3)}, "y": pa.array(names.tolist())})


def model_of(classes: int, *, loss: str = "logistic", multiclass: Multiclass = "multinomial") -> Model:
    columns = tuple(Numeric(f"f{i}", -1, 1) for i in range(3))
    return make_model(
        Schema(Classes("y", tuple("abcdefgh"[:classes])), columns), loss=loss, multiclass=multiclass, seed=3
    )


def value(one: ClassFigures, name: str) -> float:
    score = one.scores[name]
    assert score is not None
    return score.value


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
@pytest.mark.parametrize("loss", ["logistic", "margin"])
def test_figures_are_those_of_scikit_learn(classes: int, multiclass: Multiclass, loss: str) -> None:
    model, table = model_of(classes, loss=loss, multiclass=multiclass), rows_of(classes)
    found = model.evaluate(table)
    truth = np.array(table["y"].to_pylist())
    known, names = truth != "undeclared", [*model.classes]
    truth = truth[known]
    margins = np.concatenate([*model.score_batches(open_source(table))])[known]
    odds, predicted = model.probabilities(margins), np.array(names)[model.predict_indices(margins)]
    assert (found.rows, found.rows_without_label.value) == (ROWS, 30)
    assert found.accuracy == pytest.approx(accuracy_score(truth, predicted))
    commonest = found.scores["commonest class always"]
    assert commonest is not None
    assert commonest.value == pytest.approx(np.unique(truth, return_counts=True)[1].max() / len(truth))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(truth, predicted))
    assert found.log_loss == pytest.approx(log_loss(truth, odds, labels=names))
    assert found.confusion is not None
    assert found.confusion.tolist() == confusion_matrix(truth, predicted, labels=names).tolist()
    precision, recall, _, rows = precision_recall_fscore_support(truth, predicted, labels=names)
    for place, one in enumerate(found.by_class):
        assert one.scores["rows"] == Score(rows[place], rows[place], rows[place])
        error = Counts.bound_area_error(found.statistics.require_classes().rankings[0 if classes == 2 else place])
        assert error is not None
        assert error < 2e-4
        assert value(one, "precision") == pytest.approx(precision[place])
        assert value(one, "recall") == pytest.approx(recall[place])
        assert (
            abs(value(one, "area under the curve") - roc_auc_score(truth == names[place], odds[:, place]))
            <= error + 1e-12
        )
        expected = average_precision_score(truth == names[place], odds[:, place])
        assert value(one, "average precision") == pytest.approx(expected, abs=1e-4)
    if classes == 2:
        assert found.brier_score == pytest.approx(brier_score_loss(truth == "b", odds[:, 1]))
        assert found.scores["area under the curve"] == found.by_class[1].scores["area under the curve"]
    else:
        ones = truth[:, None] == np.array(names)
        assert found.brier_score == pytest.approx(np.square(odds - ones).sum(axis=1).mean())
        ranked = roc_auc_score(truth, odds, multi_class="ovr", labels=names)
        assert found.area_under_the_curve == pytest.approx(ranked, abs=1e-4)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_calibration_table_counts_what_has_which_probability(classes: int) -> None:
    model, table = model_of(classes), rows_of(classes)
    found = model.evaluate(table)
    truth = np.array(table["y"].to_pylist())
    known = truth != "undeclared"
    odds = model.probabilities(np.concatenate([*model.score_batches(open_source(table))]))[known]
    names = np.array(model.classes)
    shown = odds[:, 1] if classes == 2 else odds.max(axis=1)
    so = truth[known] == ("b" if classes == 2 else names[odds.argmax(axis=1)])
    assert sum(one.rows.value for one in found.calibration) == known.sum()
    error = 0.0
    for line in found.calibration:
        inside = (shown >= line.low) & ((shown < line.high) | (line.high == 1.0))
        assert line.rows.value == inside.sum()
        assert line.mean_probability == pytest.approx(shown[inside].mean())
        assert line.share is not None
        assert line.share.value == pytest.approx(so[inside].mean())
        error += abs(shown[inside].sum() - so[inside].sum())
    assert found.calibration_error == pytest.approx(error / known.sum())


@hypothesis_settings(max_examples=60)
@given(
    scores=st.lists(st.integers(0, 8), min_size=2, max_size=60),
    labels=st.integers(0, 2**60 - 1),
)
def test_a_curve_of_bins_has_the_area_of_its_bins(scores: list[int], labels: int) -> None:
    truth = np.array([(labels >> place) & 1 for place in range(len(scores))])
    counts = np.array([np.bincount(np.array(scores)[truth == so], minlength=9) for so in (0, 1)])
    table = Counts(counts[None], rows=len(scores))
    area, precision, error = (
        table.compute_area(np.ones((1, 1, 1))),
        Curve.from_counts(counts).average_precision(),
        table.bound_area_error(),
    )
    if len(set(truth.tolist())) < 2:
        assert [area, precision, error] == [None] * 3
        return
    assert area is not None
    assert precision is not None
    assert area.value == pytest.approx(roc_auc_score(truth, scores))
    assert precision.value == pytest.approx(average_precision_score(truth, scores))
    # Whatever order ties have without bins, the area is no farther away.
    fine = np.array(scores) + np.random.default_rng(0).uniform(0, 0.9, len(scores))
    assert error is not None
    assert abs(roc_auc_score(truth, fine) - area.value) <= error + 1e-12


def compare_figures(one: Any, other: Any) -> None:
    """Nested figures are equal up to rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
    if isinstance(one, (dict, list)):
        for first, second in zip(
            *(each.values() if isinstance(each, dict) else each for each in (one, other)), strict=True
        ):
            compare_figures(first, second)
    else:
        assert one == pytest.approx(other)


def test_the_sums_do_not_depend_on_how_rows_are_cut() -> None:
    model, generator = model_of(4), np.random.default_rng(1)
    labels = np.where(generator.random(500) < 0.1, np.nan, generator.integers(0, 4, 500))
    margins = generator.normal(0, 1, (500, 4))
    whole, parts = ExactEvaluation(model), ExactEvaluation(model)
    whole.add(labels, margins)
    for at in range(0, 500, 70):
        parts.add(labels[at : at + 70], margins[at : at + 70])
    assert str(np.round(whole.to_dict()["confusion"])) == str(np.round(parts.to_dict()["confusion"]))
    compare_figures(whole.to_dict(), parts.to_dict())


def test_a_loss_without_probabilities_has_curves_and_no_calibration(tmp_path: Path) -> None:
    for classes in (2, 3):
        model, table = model_of(classes, loss="huber"), rows_of(classes)
        found = model.evaluate(table)
        assert [found.log_loss, found.brier_score, found.calibration_error] == [None] * 3
        assert found.calibration == ()
        assert found.area_under_the_curve is not None
        assert "log loss" not in found.to_dict()["scores"]
        found.plot(tmp_path / "huber.svg")
        assert b"gives no probabilities" in (tmp_path / "huber.svg").read_bytes()


def test_rows_of_one_class_have_no_curve_and_can_be_drawn(tmp_path: Path) -> None:
    frame = rows_of(2).to_pandas()
    found = model_of(2).evaluate(frame[frame.y == "b"])
    assert found.area_under_the_curve is None
    assert found.by_class[0].scores["recall"] is None
    assert found.to_dict()["curves"][0]["precision"] == []
    found.plot(tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("ending", "begins", "classes"), [("png", b"\x89PNG", 2), ("svg", b"<?xml", 4), ("pdf", b"%PDF", 2)]
)
def test_an_evaluation_is_drawn_in_every_form(tmp_path: Path, ending: str, begins: bytes, classes: int) -> None:
    path = tmp_path / f"evaluation.{ending}"
    model_of(classes).evaluate(rows_of(classes)).plot(path)
    assert path.read_bytes().startswith(begins)


def test_names_that_look_like_formulas_are_drawn_as_they_are(tmp_path: Path) -> None:
    columns = (Numeric("f0", -1, 1),)
    model = make_model(Schema(Classes("y", ("$a_1$", r"\frac{")), columns))
    table = pa.table({"f0": [0.1, -0.5, 0.7, -0.9], "y": ["$a_1$", r"\frac{", "$a_1$", r"\frac{"]})
    model.evaluate(table).plot(tmp_path / "names.svg")
    assert r"probability of \frac{" in (tmp_path / "names.svg").read_text("utf-8")


def test_a_picture_of_another_kind_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^a picture must end in \.png, \.svg, \.pdf, got 'x\.bmp'"):
        model_of(2).evaluate(rows_of(2)).plot("x.bmp")


def test_a_data_frame_is_evaluated_and_told_in_one_line() -> None:
    frame = pd.DataFrame({"f0": [0.1], "f1": [0.2], "f2": [0.3], "y": ["a"]})
    found = model_of(2).evaluate(frame)
    assert repr(found).startswith("ExactEvaluation(rows=1, accuracy=")
    with pytest.raises(DataError, match="got none of 1"):
        model_of(2).evaluate(frame.assign(y="A"))


def test_the_points_of_a_curve_are_few_and_reach_its_end() -> None:
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 3, (2, 100_000))
    curve = Curve.from_counts(counts)
    points = curve.select_points()
    assert len(points) <= 200
    assert points[-1] == len(curve.bins) - 1
    assert np.diff(curve.true_positive_rate[1:][points]).max() < 0.02


def test_empty_bins_are_left_out_of_a_calibration_table() -> None:
    counts = Counts(np.array([[[0, 1, 0, 0], [0, 1, 0, 2]]]), rows=4)
    bins = make_calibration_bins(counts, (0.0, 0.25, 0.5, 0.75, 1.0), range(5), np.array([0, 0.8, 0, 1.9]))
    assert [one.low for one in bins] == [0.25, 0.75]
    assert compute_calibration_error(bins) == pytest.approx((abs(0.8 - 1) + abs(1.9 - 2)) / 4)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_subgroup_has_the_figures_of_its_rows(classes: int) -> None:
    columns = (Numeric("f0", -1, 1), Categorical("ward", ("north", "south")))
    model = make_model(Schema(Classes("y", tuple("abcd"[:classes])), columns), seed=3)
    table = rows_of(classes)
    wards = np.array(["north", "south", "west"])[np.arange(ROWS) % 3]
    table = table.append_column("ward", pa.array(wards))
    found = model.evaluate(table, by="ward")
    assert [*found.by_group] == ["north", "south", NO_GROUP]
    for place, scores in enumerate(found.by_group.values()):
        alone = model.evaluate(table.filter(pa.array(np.arange(ROWS) % 3 == place)))
        recalls = {f"recall of {one.name}": one.scores["recall"] for one in alone.by_class}
        for name, score in {**alone.scores, **recalls}.items():
            one = scores[name]
            assert one is not None
            assert score is not None
            assert [one.value, one.low, one.high] == pytest.approx([score.value, score.low, score.high], abs=1e-3)


def test_intervals_cover_the_figures_of_the_population() -> None:
    """Samples of 300 rows, of a population of 3,000."""
    model, table, generator = model_of(2), rows_of(2), np.random.default_rng(0)
    truth, covered = model.evaluate(table).scores, Counter[str]()
    for _ in range(60):
        for name, found in model.evaluate(table.take(generator.integers(0, ROWS, 300))).scores.items():
            score = truth[name]
            assert found is not None
            assert score is not None
            covered[name] += found.low <= score.value <= found.high
    assert min(covered[name] for name in truth if name != "commonest class always") >= 53
