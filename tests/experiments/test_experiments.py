"""The harness of docs/accuracy.md and the rivals in it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from experiments.accuracy import Cell
from experiments.datasets import BENCHMARKS
from experiments.tasks import Answer, Task, judged, split

from boltdp.engines.in_memory import ArrayEngine
from boltdp.evaluation.evaluate import evaluate
from boltdp.privacy.budget import Budget
from boltdp.privacy.mechanisms import calibrate_unit_gaussian
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.predict import predict
from boltdp.workflows.standardize import plan_standardization
from boltdp.workflows.train import train
from experiments import accuracy, calibration, rivals

SCHEMA = Schema(
    Classes("label", (0, 1)),
    (Numeric("age", 0, 100), Numeric("income", 0, 50_000), Categorical("home", ("own", "rent"))),
)
with_data = pytest.mark.skipif(
    not BENCHMARKS["credit"].available(), reason="the benchmark data is not in the directory that BOLTDP_DATA names"
)


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not rivals.installed(package), reason=f"{package} is not installed")


def people(rows: int = 4000, *, classes: int = 2, seed: int = 3) -> Task:
    """A made-up task in which every column tells something."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    table = pa.table(
        {
            "age": 20.0 + 60.0 * labels / (classes - 1) + rng.normal(0, 12, rows),
            "income": np.exp(4.0 + 4.0 * labels / (classes - 1) + rng.normal(0, 1, rows)),
            "home": np.where(rng.random(rows) < 0.2 + 0.6 * labels / (classes - 1), "own", "rent"),
            "label": labels,
        }
    )
    schema = Schema(Classes("label", tuple(range(classes))), SCHEMA.columns)
    return Task("people", *split(ArrayEngine.from_arrow(table), schema, share=0.25, seed=1), schema)


def scores_of(task: Task, rival: rivals.Rival, budget: Budget, **settings: Any) -> dict[str, float]:
    return judged(rival(task, budget, np.random.default_rng(1), **settings), task.labels)


# -- the rivals


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-9), (0.4, 1e-10), (1.0, 1e-5), (4.0, 1e-12)])
def test_the_deviation_of_gaussian_noise_is_that_of_the_certified_one(epsilon: float, delta: float) -> None:
    assert rivals.gaussian_deviation(epsilon, delta) == pytest.approx(
        calibrate_unit_gaussian(Budget(epsilon, delta)), rel=1e-6
    )


@pytest.mark.parametrize("classes", [2, 5])
def test_the_gradient_of_a_row_is_no_longer_than_the_clip(classes: int) -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(50, 4)).astype(np.float32)
    labels = rng.integers(classes, size=50)
    gradients = rivals._two_classes if classes == 2 else rivals._many_classes
    weights = 3.0 * rng.normal(size=(1 if classes == 2 else classes, 4))
    lengths = []
    for place in range(len(rows)):
        one = rows[place : place + 1], labels[place : place + 1]
        clipped, whole = (gradients(*one, clip)(weights) for clip in (0.4, 1e9))
        lengths.append(np.linalg.norm(clipped))
        assert clipped == pytest.approx(whole * min(1.0, 0.4 / float(np.linalg.norm(whole))), rel=1e-4, abs=1e-6)
    assert max(lengths) == pytest.approx(0.4, rel=1e-5)  # some are shortened
    assert min(lengths) < 0.39  # and some are not


def test_gradients_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(6)
    rows, labels = rng.normal(size=(30, 3)).astype(np.float32), rng.integers(3, size=30)
    weights = rng.normal(size=(3, 3))

    def loss(weights: Any) -> float:
        scores = rows @ weights.T
        return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(30), labels]))

    gradient = rivals._many_classes(rows, labels, 1e9)(weights)
    step = np.zeros((3, 3))
    step[1, 2] = 1e-4
    assert gradient[1, 2] == pytest.approx((loss(weights + step) - loss(weights - step)) / 2e-4, rel=1e-3)


def test_replacing_a_row_moves_two_counts_of_a_column_at_most() -> None:
    one, other = people(), people(seed=4)
    for (places, bins), (others, _) in zip(rivals.cut(one, 0, 10, 1e4), rivals.cut(other, 0, 10, 1e4), strict=True):
        labels = one.parts[0].labels.copy()
        before = rivals.counts_of(labels, places, classes=2, bins=bins)
        places[7], labels[7] = others[7], 1 - labels[7]
        moved = np.abs(before - rivals.counts_of(labels, places, classes=2, bins=bins))
        assert moved.sum() == 2
        assert moved.max() == 1


@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_naive_bayes_draws_the_noise_of_all_its_columns(delta: float) -> None:
    drawn: list[tuple[str, float]] = []

    class Recording:
        def laplace(self, _: float, scale: float, shape: tuple[int, ...]) -> Any:
            drawn.append(("laplace", scale))
            return np.zeros(shape)

        def normal(self, _: float, scale: float, shape: tuple[int, ...]) -> Any:
            drawn.append(("normal", scale))
            return np.zeros(shape)

    rivals.naive_bayes(people(), Budget(0.5, delta), Recording(), bins=10, floor=0.5)  # type: ignore[arg-type]
    scale = 2 * 3 / 0.5 if delta == 0 else math.sqrt(2 * 3) * calibrate_unit_gaussian(Budget(0.5, delta))
    assert [kind for kind, _ in drawn] == 3 * ["laplace" if delta == 0 else "normal"]
    assert [one for _, one in drawn] == pytest.approx(3 * [scale], rel=1e-6)


def test_wide_numbers_are_cut_at_even_places_of_their_logarithms() -> None:
    numbers = np.array([0.0, 10.0, 40_000.0])
    stretched, (low, high) = rivals.widened(numbers, 0, 50_000, wide=1e4)
    assert [low, high] == pytest.approx([0.0, math.log(50_001)])
    assert stretched == pytest.approx(np.log1p(numbers))
    assert rivals.widened(numbers, 0, 50_000, wide=1e5)[0] is numbers


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(
    ("rival", "delta", "settings"),
    [
        (rivals.clipped_gradient_descent, 1e-6, {"clip": 0.4, "length": 12.0}),
        (rivals.naive_bayes, 0.0, {"bins": 20, "floor": 0.25}),
        (rivals.naive_bayes, 1e-6, {"bins": 20, "floor": 0.25}),
    ],
)
def test_rivals_learn_from_a_large_budget_and_not_from_a_tiny_one(
    rival: rivals.Rival, delta: float, settings: dict[str, Any], classes: int
) -> None:
    task = people(classes=classes)
    learnt = scores_of(task, rival, Budget(20.0, delta), **settings)
    guessed = scores_of(task, rival, Budget(1e-4, delta), **settings)
    assert learnt["accuracy"] > 0.55 + 0.7 / classes - 0.1
    assert guessed["accuracy"] < learnt["accuracy"] - 0.1
    assert learnt["log loss"] < guessed["log loss"]


def test_dpsgd_learns_with_steps_and_batches_of_its_own() -> None:
    settings = {"algorithm": "dpsgd", "batches": 20, "passes": 10, "stretch": 3.0}
    assert scores_of(people(), rivals.white_box, Budget(2.0, 1e-6), **settings)["auc"] > 0.8


@needs("diffprivlib")
@pytest.mark.parametrize("rival", [rivals.diffprivlib_regression, rivals.diffprivlib_bayes])
def test_diffprivlib_learns_from_a_large_budget(rival: rivals.Rival) -> None:
    settings: dict[str, Any] = {"centred": True} if rival is rivals.diffprivlib_bayes else {"strength": 20.0}
    assert scores_of(people(), rival, Budget(50.0), **settings)["auc"] > 0.9


@needs("diffprivlib")
def test_diffprivlib_tells_several_classes_apart() -> None:
    assert scores_of(people(classes=3), rivals.diffprivlib_regression, Budget(100.0))["accuracy"] > 0.5


@needs("interpret")
def test_explainable_boosting_learns_from_a_large_budget() -> None:
    assert scores_of(people(), rivals.explainable_boosting, Budget(20.0, 1e-6), max_rounds=50)["auc"] > 0.9


def test_features_stay_within_their_bounds() -> None:
    task = people()
    schema, _ = task.centring(Budget(5.0, 1e-6))
    lows, highs = rivals.feature_bounds(schema)
    trained, _, tested = task.unit_parts(schema)
    for rows in (trained[:, :-1], tested[:, :-1]):
        assert (lows - 1e-6 <= rows).all()
        assert (rows <= highs + 1e-6).all()


def test_centring_costs_what_auto_pays_for_it() -> None:
    task, budget = people(), Budget(2.0, 1e-6)
    schema, left = task.centring(budget)
    planned = plan_standardization(Settings(epsilon=2.0, delta=1e-6), task.schema, rows=task.rows)
    assert planned is not None
    assert planned.budget is not None
    assert left == budget.subtract(planned.budget)
    assert schema.standardization is not None
    assert rivals.centred_settings(task, budget, algorithm="bolton").standardize == "private"


def test_centring_before_gaussian_noise_leaves_more_than_the_rest() -> None:
    task, budget = people(), Budget(2.0, 1e-6)
    schema, deviation = task.gaussian_centring(budget)
    assert schema.standardization is not None
    _, left = task.centring(budget)
    assert calibrate_unit_gaussian(budget) < deviation < calibrate_unit_gaussian(left)
    little = Budget(0.001, 1e-6)
    assert task.gaussian_centring(little) == (task.schema, calibrate_unit_gaussian(little))


def test_centring_is_left_out_where_auto_leaves_it_out() -> None:
    task, budget = people(), Budget(0.001)
    assert task.centring(budget) == (task.schema, budget)
    assert rivals.centred_settings(task, budget, algorithm="bolton").standardize == "none"


# -- judging


def test_log_loss_is_finite_for_whoever_is_sure_and_wrong() -> None:
    sure = Answer.of_probabilities(np.array([[0.0, 1.0], [0.0, 1.0]]))
    assert judged(sure, np.array([0, 1]))["log loss"] == pytest.approx(-math.log(1e-6) / 2, rel=1e-5)


def test_ways_without_probabilities_have_no_log_loss() -> None:
    answer = Answer(np.array([0, 1]), np.array([-1.0, 1.0]), None)
    assert judged(answer, np.array([0, 1])) == {"accuracy": 1.0, "auc": 1.0, "balanced": 1.0}


def test_several_classes_have_no_ranking() -> None:
    assert set(judged(Answer.of_scores(np.eye(3)), np.arange(3))) == {"accuracy", "log loss"}


def test_a_model_is_judged_as_it_would_predict() -> None:
    from boltdp.workflows.train import train

    task = people()
    model = train(task.training, task.schema, Settings(epsilon=5.0))
    answer = Answer.of_model(model, task.testing)
    assert answer.chosen.tolist() == predict(model, task.testing).tolist()
    assert answer.probabilities is not None
    assert answer.chosen.tolist() == (answer.probabilities[:, 1] > 0.5).astype(int).tolist()


# -- the command

CELL = Cell("adult", "pure", 0.1, "auto")


def test_results_are_read_back_and_a_torn_line_is_not(tmp_path: Path) -> None:
    output = tmp_path / "accuracy.jsonl"
    assert accuracy.read(output) == {}
    accuracy.add(output, CELL, 0, {"accuracy": 0.8, "seconds": 1.0})
    with output.open("a") as file:
        file.write('{"data": "adult", "kind": "pu')
    accuracy.add(output, CELL, 1, {"accuracy": 0.9, "seconds": 1.0})
    assert accuracy.read(output) == {CELL: {0: {"accuracy": 0.8, "seconds": 1.0}, 1: {"accuracy": 0.9, "seconds": 1.0}}}


def test_forgetting_a_way_keeps_the_others(tmp_path: Path) -> None:
    output = tmp_path / "accuracy.jsonl"
    other = Cell("adult", "pure", 0.1, "bolton")
    for cell in (CELL, other):
        accuracy.add(output, cell, 0, {"accuracy": 0.8, "seconds": 1.0})
    accuracy.main(["forget", "adult", "--ways", "auto", "--output", str(output)])
    assert set(accuracy.read(output)) == {other}


def test_ways_are_only_asked_for_what_they_can_do() -> None:
    wanted = list(accuracy.cells(accuracy.EPSILONS, accuracy.WAYS, accuracy.KINDS, accuracy.EPSILONS))
    assert len(wanted) == len(set(wanted))
    assert not [cell for cell in wanted if cell.data == "mnist50" and cell.way.startswith("dp-ebm")]
    assert {cell.kind for cell in wanted if cell.way == "clipped-gd"} == {"approximate"}
    assert {cell.kind for cell in wanted if cell.way == "diffprivlib"} == {"pure"}
    assert [cell.epsilon for cell in wanted if cell.way == "noiseless"] == [None] * len(accuracy.EPSILONS)
    assert "adassp" not in {cell.way for cell in wanted if cell.data == "adult"}
    assert {"auto", "mean", "tukey-em"} <= {cell.way for cell in wanted if cell.data == "houses"}
    assert not {"naive-bayes", "dp-ebm"} & {cell.way for cell in wanted if cell.data == "houses"}


def test_the_cells_that_are_singled_out_are_measured() -> None:
    for singled in (accuracy.FIRST_CELLS, accuracy.RANKED_CELLS):
        assert all(set(epsilons) <= set(accuracy.EPSILONS[name]) for name, epsilons in singled.items())
    assert sum(map(len, accuracy.FIRST_CELLS.values())) == 15


def test_slow_trainings_are_repeated_less_often() -> None:
    assert accuracy.repeats_of({}, 10) == 10
    assert accuracy.repeats_of({0: {"seconds": 1.0}}, 10) == 10
    assert accuracy.repeats_of({0: {"seconds": 25.0}}, 10) == 3
    assert accuracy.repeats_of({0: {"seconds": 25.0}}, 2) == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "metric", "verdict"),
    [
        ((0.81, 0.83), (0.80, 0.82), "accuracy", "above"),
        ((0.80, 0.82), (0.81, 0.83), "accuracy", "even"),
        ((0.80, 0.82), (0.90, 0.92), "accuracy", "below"),
        ((0.40, 0.42), (0.50, 0.52), "log loss", "above"),
        ((0.50, 0.52), (0.40, 0.42), "log loss", "below"),
        ((0.50, 0.52), (), "log loss", None),
        ((40.0, 42.0), (50.0, 52.0), "mae", "above"),
        ((0.40, 0.42), (0.50, 0.52), "r2", "below"),
    ],
)
def test_less_than_a_deviation_below_is_even(
    ours: tuple[float, ...], theirs: tuple[float, ...], metric: str, verdict: str | None
) -> None:
    one, other = (dict(enumerate({metric: value} for value in values)) for values in (ours, theirs))
    assert accuracy.compared(one, other, metric) == verdict


def test_tables_show_every_way_and_say_which_cells_are_blind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "accuracy.jsonl"
    ways = ("adult", "auto", 0.8), ("bank", "auto", 0.7), ("bank", "naive-bayes", 0.9), ("protein", "auto", 0.6)
    for data, way, value in ways:
        for repeat in range(10):
            accuracy.add(output, Cell(data, "pure", 0.1, way), repeat, {"auc": value, "seconds": 1.0})
    accuracy.main(["table", "--output", str(output)])
    lines = capsys.readouterr().out.splitlines()
    assert "| | epsilon | noiseless | auto | naive-bayes |" in lines
    assert "| adult | 0.1 |  | 0.800 ± 0.000 |  |" in lines
    assert "| bank | 0.1 |  | 0.700 ± 0.000 | 0.900 ± 0.000 |" in lines
    assert "| protein, blind | 0.1 |  | 0.600 ± 0.000 |  |" in lines
    assert "| naive-bayes, pure | auc | 1 | 0 | 0 | 1 | bank pure 0.1 |" in lines


def test_what_is_not_installed_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda _: None)
    accuracy.main(["run", "--quick", "--ways", "dp-ebm", "--output", str(tmp_path / "accuracy.jsonl")])
    assert "dp-ebm is left out: the package interpret is not installed" in capsys.readouterr().out
    assert not (tmp_path / "accuracy.jsonl").exists()


def test_data_that_is_not_there_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOLTDP_DATA", str(tmp_path))
    accuracy.main(["run", "credit", "--ways", "naive-bayes", "--output", str(tmp_path / "accuracy.jsonl")])
    assert "credit is left out" in capsys.readouterr().out


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        accuracy.main(["run", "--ways", "magic"])
    assert "no such way or benchmark: magic" in capsys.readouterr().err


@with_data
def test_a_run_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "accuracy.jsonl"
    command = ["run", "credit", "--quick", "--budget", "pure", "--ways", "naive-bayes;auto", "--output", str(output)]
    accuracy.main([*command, "--repeats", "1"])
    accuracy.main([*command, "--repeats", "2"])
    assert "credit pure 0.4 naive-bayes: accuracy" in capsys.readouterr().out
    accuracy.main([*command, "--repeats", "2"])
    assert capsys.readouterr().out == ""
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert sorted((line["way"], line["repeat"]) for line in lines) == [
        ("auto", 0),
        ("auto", 1),
        ("naive-bayes", 0),
        ("naive-bayes", 1),
    ]
    assert all(0.6 < line["auc"] < 0.8 and 0 < line["log loss"] < 2 for line in lines)


@with_data
@pytest.mark.parametrize("name", ["wages:3", "bank"])
def test_more_budget_or_a_delta_makes_no_worse_probabilities_of_real_rows(name: str) -> None:
    task, last = calibration.task_of(name), math.inf
    for epsilon in (0.1, 1.0, 10.0):
        asked = Settings(epsilon=epsilon, delta=task.rows**-2.0, noise_seed=1, anyway=True)
        losses = [
            evaluate(train(task.training, task.schema, one), task.testing).log_loss
            for one in (asked, replace(asked, delta=0.0))
        ]
        assert losses[0] < min(last, losses[1]) + 0.01
        last = losses[0]
