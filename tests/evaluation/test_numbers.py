"""Evaluations of models of a number: scikit-learn's figures are the oracle, exactly and for noisy counts about."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    mean_absolute_error,
    mean_pinball_loss,
    mean_poisson_deviance,
    median_absolute_error,
    r2_score,
    root_mean_squared_error,
)

from boltdp import Model
from boltdp._array_types import Doubles
from boltdp._files.sealed import ModelFileError, add_digest
from boltdp.engines import open_source
from boltdp.errors import DataError, ParameterError
from boltdp.evaluation.evaluate import evaluate_privately
from boltdp.evaluation.evaluation import ExactEvaluation
from boltdp.evaluation.metrics import Score
from boltdp.evaluation.noisy_evaluation import NoisyEvaluation, plan_bins
from boltdp.evaluation.number_statistics import NumberBins, NumberStatistics
from boltdp.evaluation.statistics import NO_GROUP
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.noisy_counts import make_noisy_counts
from boltdp.privacy.release_with_noise import Randomness, release_counts
from boltdp.schema.schema import Categorical, Number, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan

ROWS = 4000
#: So much that the noise is nothing.
ALL = 1e6
PRICE = Number("price", 0, 1000, typical=(150, 600))
LOSSES = [("robust", None), ("quantile", 0.9), ("mean", None)]


def model_of(loss: str = "robust", parameter: float | None = None, *, target: Number = PRICE, **persons: Any) -> Model:
    columns = (*(Numeric(f"f{i}", -1, 1) for i in range(3)), Categorical("ward", ("north", "south")))
    settings = Settings(epsilon=None, loss=loss, loss_parameter=parameter, standardize="none", label_check=0.0)
    plan = make_plan(Schema(target, columns, **persons), 100, settings)
    weights = np.random.default_rng(3).normal(0, 1.5, (1, plan.schema.dims)) - (2.0 if loss == "mean" else 0.0)
    return Model(schema=plan.schema, weights=weights, certificate=plan.certificate)


def rows_of(model: Model, *, rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Rows whose label is what the model predicts, up to an error with heavy tails, some of them beyond the bounds."""
    generator = np.random.default_rng(seed)
    columns = {f"f{i}": pa.array(generator.uniform(-1, 1, rows)) for i in range(3)}
    ward = pa.array(np.array(["north", "south", None], dtype=object)[generator.integers(0, 3, rows)], pa.string())
    table = pa.table({**columns, "ward": ward})
    labels = model.predict(table) + 40.0 * generator.standard_t(3, rows) + 15.0
    labels[1::100], labels[::50] = 5000.0, math.nan
    return table.append_column("price", pa.array(labels, mask=np.isnan(labels)))


def truth_of(model: Model, table: pa.Table) -> tuple[Doubles, Doubles]:
    """The labels of the rows that have one, moved to the bounds, and what the model predicts for them."""
    labels = np.array(table["price"].to_pylist(), dtype=np.float64)
    known = ~np.isnan(labels)
    return np.clip(labels[known], 0, 1000), model.predict(table)[known]


def figures_of(model: Model, table: pa.Table) -> dict[str, float]:
    """The figures by scikit-learn."""
    true, predicted = truth_of(model, table)
    figures = {
        "R2": r2_score(true, predicted),
        "MAE": mean_absolute_error(true, predicted),
        "MAE of the median always": np.abs(true - np.median(true)).mean(),
        "RMSE": root_mean_squared_error(true, predicted),
        "RMSE of the mean always": true.std(),
        "median absolute error": median_absolute_error(true, predicted),
        "share below the prediction": (true <= predicted).mean(),
    }
    tau = model.certificate.problem.loss.parameter
    if model.certificate.problem.loss.name == "quantile":
        figures["pinball loss"] = mean_pinball_loss(true, predicted, alpha=tau)
        constant = np.full(len(true), np.quantile(true, tau))
        figures["pinball loss of the 0.9-quantile always"] = mean_pinball_loss(true, constant, alpha=tau)
    if model.predict_margins(np.array([[-np.linalg.norm(model.weights)]]))[0] > 0.0:  # the least prediction
        figures["Poisson deviance"] = mean_poisson_deviance(true, predicted)
    return figures


def value(scores: dict[str, Score | None], name: str) -> float:
    score = scores[name]
    assert score is not None
    assert score.low <= score.value <= score.high
    return score.value


# ---- without noise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "parameter"), LOSSES)
def test_figures_are_those_of_scikit_learn(loss: str, parameter: float | None) -> None:
    model = model_of(loss, parameter)
    table = rows_of(model)
    found = model.evaluate(table)
    expected = figures_of(model, table)
    assert found.scores.keys() == expected.keys()
    for name, figure in expected.items():
        assert value(found.scores, name) == pytest.approx(figure, rel=2e-5), name
    assert (found.rows, found.rows_without_label.value) == (ROWS, ROWS / 50)
    assert (found.r2, found.mean_absolute_error) == (value(found.scores, "R2"), value(found.scores, "MAE"))
    assert found.accuracy is None


def test_a_subgroup_has_the_figures_of_its_rows() -> None:
    model = model_of()
    table = rows_of(model)
    found = model.evaluate(table, by="ward")
    wards = table["ward"].to_pylist()
    assert [*found.by_group] == ["north", "south", NO_GROUP]
    for ward, scores in zip(["north", "south", None], found.by_group.values(), strict=True):
        part = table.filter(pa.array([one == ward for one in wards]))
        alone = model.evaluate(part).scores
        assert value(scores, "rows") == len(truth_of(model, part)[0])
        for name, figure in figures_of(model, part).items():
            assert value(scores, name) == pytest.approx(figure, rel=1e-4)
            assert [scores[name].low, scores[name].high] == pytest.approx(  # type: ignore[union-attr]
                [alone[name].low, alone[name].high],  # type: ignore[union-attr]
                rel=1e-3,
            )


def test_the_sums_do_not_depend_on_how_rows_are_cut() -> None:
    model, generator = model_of("mean"), np.random.default_rng(1)
    labels = np.where(generator.random(500) < 0.1, np.nan, generator.uniform(-1, 1, 500))
    margins = generator.normal(0, 1, (500, 1))
    whole, parts = ExactEvaluation(model), ExactEvaluation(model)
    whole.add(labels, margins)
    for at in range(0, 500, 70):
        parts.add(labels[at : at + 70], margins[at : at + 70])
    for name, score in whole.scores.items():
        assert value(parts.scores, name) == pytest.approx(score.value)  # type: ignore[union-attr]


def test_labels_far_from_0_have_their_variance() -> None:
    model = model_of(target=Number("price", 1e9, 1e9 + 10, typical=(1e9 + 2, 1e9 + 8)))
    table = rows_of(model_of()).drop_columns("price")
    labels = np.random.default_rng(0).integers(0, 11, ROWS) + 1e9
    table = table.append_column("price", pa.array(labels))
    assert value(model.evaluate(table).scores, "RMSE of the mean always") == pytest.approx(labels.std(), rel=1e-5)


def test_labels_that_are_all_equal_have_no_r2() -> None:
    model = model_of()
    table = rows_of(model).drop_columns("price").append_column("price", pa.array([300.0] * ROWS))
    found = model.evaluate(table)
    assert found.r2 is None
    assert value(found.scores, "MAE of the median always") == pytest.approx(0.0, abs=1e-2)


def test_a_prediction_of_0_has_no_deviance() -> None:
    assert "Poisson deviance" not in model_of().evaluate(rows_of(model_of())).scores
    below = model_of("mean", target=replace(PRICE, low=-1.0))
    assert "Poisson deviance" not in below.evaluate(rows_of(below)).scores


def test_what_only_classes_have_is_refused() -> None:
    found = model_of().evaluate(rows_of(model_of()))
    with pytest.raises(ParameterError, match="must be of a label with classes"):
        _ = found.confusion


def test_rows_without_a_number_are_refused_if_they_are_most() -> None:
    model = model_of()
    table = rows_of(model)
    missing = np.arange(ROWS) < 2500
    labels = pa.array(np.full(ROWS, 10.0), mask=missing)
    with pytest.raises(DataError, match=r"^most rows must have a number to compare with, got 1,500 of 4,000") as fault:
        model.evaluate(table.set_column(4, "price", labels))
    assert str(fault.value.hint).startswith("check column 'price': training uses numbers")


def test_intervals_cover_the_figures_of_the_population() -> None:
    model, generator = model_of("quantile", 0.9), np.random.default_rng(0)
    table, covered = rows_of(model), Counter[str]()
    truth = model.evaluate(table).scores
    for _ in range(60):
        for name, found in model.evaluate(table.take(generator.integers(0, ROWS, 400))).scores.items():
            assert found is not None
            covered[name] += found.low <= value(truth, name) <= found.high
    assert min(covered.values()) >= 52, covered


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_predicted_and_true_numbers_are_drawn(tmp_path: Path, epsilon: float | None) -> None:
    model = model_of("mean")
    table = rows_of(model)
    found = model.evaluate(table) if epsilon is None else model.evaluate_privately(table, epsilon=epsilon)
    found.plot(tmp_path / "evaluation.svg")
    drawn = (tmp_path / "evaluation.svg").read_text("utf-8")
    for said in ("True against predicted", "Errors by prediction", "Poisson deviance"):
        assert said in drawn
    assert ("Differentially private" in drawn) == (epsilon is not None)


# ---- with noise -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "parameter"), LOSSES)
def test_without_noise_the_noisy_figures_are_about_those_of_evaluate(loss: str, parameter: float | None) -> None:
    model = model_of(loss, parameter)
    table = rows_of(model)
    found = model.evaluate_privately(table, epsilon=ALL, by="ward")
    assert found.scores.keys() == figures_of(model, table).keys()
    wards = table["ward"].to_pylist()
    north = table.filter(pa.array([one == "north" for one in wards]))
    for scores, part in ((found.scores, table), (found.by_group["north"], north)):
        for name, figure in figures_of(model, part).items():
            if name == "share below the prediction":  # 0 is an edge of the bins
                assert value(scores, name) == pytest.approx(figure, abs=1e-6)
            elif name == "R2":
                assert value(scores, name) == pytest.approx(figure, abs=0.02)
            else:
                assert value(scores, name) == pytest.approx(figure, rel=0.2 if name == "Poisson deviance" else 0.06), (
                    name
                )
    statistics = found.statistics
    assert isinstance(statistics, NumberStatistics)
    off = abs(value(found.scores, "MAE") - figures_of(model, table)["MAE"])
    assert off <= statistics.error_resolution < 60.0
    assert found.rows_without_label.value == pytest.approx(ROWS / 50, abs=0.01)


def test_noisy_figures_are_unbiased_and_their_intervals_cover() -> None:
    """Rows are drawn from a population whose shares of all bins are known, and get noise that is as large as that."""
    model, rows, budget = model_of(), 4000, Budget(2.0)
    event = make_noisy_counts(budget, releases=1, summed=True)
    table = rows_of(model, rows=20_000)
    whole = model.evaluate_privately(table, epsilon=ALL)
    bins = plan_bins(model, rows=rows, groups=1, noise=event.noise.deviation)
    packed = np.concatenate([*_pack(model, table)])
    shares = bins.count_rows(model, packed, None) / len(packed)
    exact = tuple((rows * shares).tolist())
    truth = replace(whole, rows=rows, bins=bins, counts=exact).scores
    generator, random_bytes = np.random.default_rng(5), Randomness(5).make_stream()
    covered = Counter[str]()
    values: dict[str, list[float]] = {name: [] for name in truth}
    for _ in range(300):
        counts = tuple(release_counts(generator.multinomial(rows, shares).tolist(), event, random_bytes))
        found = replace(whole, rows=rows, bins=bins, counts=counts, budget=budget, spent=event).scores
        for name, score in found.items():
            assert score is not None
            covered[name] += score.low <= value(truth, name) <= score.high
            values[name].append(score.value)
    for name, drawn in values.items():
        # The interval of the median has whole bins.
        assert 0.90 <= covered[name] / 300 <= (1.0 if name == "median absolute error" else 0.99), (name, covered)
        error = np.std(drawn) / math.sqrt(300)
        # R2 and the square roots are curved in the counts, and the median always is the best constant for the noise.
        assert abs(np.mean(drawn) - value(truth, name)) <= 4 * error + 0.02 * abs(value(truth, name)), name


def _pack(model: Model, table: pa.Table) -> Any:
    from boltdp.engines.base import encode_rows

    return encode_rows(open_source(table), model.schema)


def test_what_noise_hides_is_not_told() -> None:
    model = model_of()
    found = model.evaluate_privately(rows_of(model, rows=300), epsilon=0.01, by="ward")
    assert all(score is None for name, score in found.by_group["north"].items() if name != "rows")
    assert json.loads(json.dumps(found.to_dict()))["by_group"]["north"]["R2"] is None


def test_more_noise_and_more_groups_have_fewer_bins() -> None:
    model = model_of()
    sizes = [
        plan_bins(model, rows=ROWS, groups=groups, noise=noise).shape[1]
        for groups, noise in ((1, 0.1), (1, 10), (50, 10))
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_model_of_zero_weights_has_bins_too() -> None:
    model = model_of()
    table = rows_of(model)
    model = replace(model, weights=np.zeros_like(model.weights))
    truth, found = model.evaluate(table), model.evaluate_privately(table, epsilon=ALL)
    assert value(found.scores, "share below the prediction") == pytest.approx(truth.coverage, abs=1e-6)
    assert value(found.scores, "RMSE") == pytest.approx(truth.root_mean_squared_error, rel=0.1)


cell = st.sampled_from([math.nan, -1.0, -0.3, 0.0, 0.2, 1.0])
packed_row = st.tuples(cell, cell, cell, cell, st.sampled_from([-1.0, 0.0, 1.0]))


@given(
    rows=st.lists(packed_row, min_size=1, max_size=8),
    other=packed_row,
    noise=st.sampled_from([0.1, 1e4]),
    loss=st.sampled_from(["robust", "mean"]),
)
def test_one_row_moves_two_counts_by_one_at_most(rows: list[Any], other: Any, noise: float, loss: str) -> None:
    model = model_of(loss)
    bins = plan_bins(model, rows=len(rows), groups=3, noise=noise)
    before, after = (bins.count_rows(model, np.array(one, np.float32), 4) for one in ([*rows], [other, *rows[1:]]))
    assert before.sum() == after.sum() == len(rows)
    assert np.abs(after - before).sum() in (0, 2)
    assert np.abs(after - before).max() <= 1
    # No row is in a cell that is taken for impossible.
    assert isinstance(bins, NumberBins)
    assert (before[:-1].reshape(bins.shape) * (1.0 - bins.possible)).sum() == 0


@pytest.mark.parametrize("budget", [Budget(1.0), Budget(1.0, 0.3)])
def test_rows_of_a_person_move_the_counts_by_what_the_noise_is_for_and_no_more(budget: Budget) -> None:
    most, model = 4, model_of(person_id="patient", max_rows_per_person=4)
    table = rows_of(model_of())
    table = table.append_column("patient", pa.array([i % 500 for i in range(ROWS)]))
    mine = np.arange(ROWS) % 500 == 7
    assert mine.sum() > most

    def count(label: float) -> Doubles:
        """With another label in all rows of this person, which are alike."""
        changed = table
        for place, cells in ((0, 0.5), (1, 0.5), (2, 0.5), (4, label)):
            column = np.array(table.column(place).to_pylist(), dtype=np.float64)
            column[mine] = cells
            changed = changed.set_column(place, table.column_names[place], pa.array(column, mask=np.isnan(column)))
        ward = pa.array(["north" if one else "south" for one in mine])
        changed = changed.set_column(3, "ward", ward)
        return np.array(evaluate_privately(model, open_source(changed), Budget(ALL), by="ward").counts)

    moved = np.rint(count(10.0) - count(900.0))
    event = make_noisy_counts(budget, releases=1, summed=True, person_rows=most)
    norm = np.linalg.norm(moved) if budget.delta else np.abs(moved).sum()
    assert norm == pytest.approx(event.sensitivity)


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "parameter"), LOSSES)
def test_a_file_is_read_as_it_was_written(tmp_path: Path, loss: str, parameter: float | None) -> None:
    model = model_of(loss, parameter)
    found = model.evaluate_privately(rows_of(model), epsilon=1.0, delta=1e-6, by="ward")
    assert not found.reasons
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(found.seal()))
    assert NoisyEvaluation.load(path) == found


def changed(place: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(record: dict[str, Any]) -> None:
        record[place] = change(record[place])

    return apply


@pytest.mark.parametrize(
    "change",
    [
        changed("counts", lambda counts: [counts[0] + 100.0, *counts[1:]]),
        changed("counts", lambda counts: counts[1:]),
        changed("scores", lambda scores: {**scores, "R2": {"value": 1.0, "low": 1.0, "high": 1.0}}),
        changed("error_resolution", lambda error: error / 2),
        changed("histogram", lambda histogram: {**histogram, "rows": []}),
        changed("bins", lambda bins: {**bins, "size": bins["size"] + 1}),
        changed("bins", lambda bins: {**bins, "size": 10**9}),
        changed("bins", lambda bins: {**bins, "spread": 0.0}),
        changed("bins", lambda bins: {**bins, "low": bins["high"]}),
        changed("bins", lambda bins: {**bins, "tau": 1.5}),
        changed("bins", lambda bins: {**bins, "center": 1e300}),
        changed("bins", lambda bins: {**bins, "classes": ["a", "b"]}),
    ],
)
def test_a_file_whose_parts_do_not_follow_from_each_other_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    model = model_of()
    record = model.evaluate_privately(rows_of(model), epsilon=1.0).to_dict()
    change(record)
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(add_digest(record)))
    with pytest.raises(ModelFileError):
        NoisyEvaluation.load(path)
