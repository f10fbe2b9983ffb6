"""A number to predict, through the commands: from the draft of its schema to its predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from boltdp.model import Model
from boltdp.schema.schema import Number, Schema

from .conftest import Run

ROWS = 5000
COLUMNS = '\n[numeric]\ncarat = [0, 5]\n\n[categorical]\ncut = ["Fair", "Ideal"]\n'


@pytest.fixture(autouse=True)
def diamonds(tmp_path: Path) -> pd.DataFrame:
    """Rows and a schema, in the directory in which commands run."""
    rng = np.random.default_rng(0)
    carat = rng.uniform(0.2, 4, ROWS).round(2)
    price = (4000 * carat + rng.normal(0, 500, ROWS)).round().clip(300, 18_800)
    frame = pd.DataFrame({"carat": carat, "cut": rng.choice(["Fair", "Ideal"], ROWS), "price": price})
    frame.to_csv(tmp_path / "diamonds.csv", index=False)
    frame.to_parquet(tmp_path / "diamonds.parquet")
    (tmp_path / "schema.toml").write_text('target = "price"\nbounds = [0, 20000]\n' + COLUMNS)
    return frame


@pytest.mark.parametrize("rows", ["diamonds.csv", "diamonds.parquet"])
def test_a_public_draft_has_bounds_and_the_range_of_most_values(run: Run, diamonds: pd.DataFrame, rows: str) -> None:
    drafted = run("schema", rows, "--target", "price", "--public", "-o", "draft.toml")
    assert drafted.exit_code == 0, drafted.output
    target = Schema.load("draft.toml").target
    assert isinstance(target, Number)
    assert (target.low, target.high) == (0, 18_000)
    assert target.typical == pytest.approx(tuple(diamonds["price"].quantile([0.1, 0.9])), rel=0.02)


def test_a_draft_leaves_the_bounds_to_be_completed(run: Run) -> None:
    lines = run("schema", "diamonds.parquet", "--target", "price").stdout.splitlines()
    assert lines[0] == 'target = "price"'
    assert lines[1].startswith("bounds = []  # [low, high]")
    assert lines[2].startswith("# typical = [low, high]")


def test_a_private_draft_finds_the_bounds_of_the_number_without_a_delta(run: Run) -> None:
    drafted = run("schema", "diamonds.csv", "--target", "price", "--epsilon", 4, "-o", "draft.toml")
    assert drafted.exit_code == 0, drafted.output
    first = Path("draft.toml").read_text().splitlines()[4:7]
    assert first[0] == 'target = "price"'
    low, high = json.loads(first[1].removeprefix("bounds = ").partition("  #")[0])
    assert 0 <= low < 1500
    assert 15_000 < high <= 20_000
    assert first[2].startswith("# typical")


def test_a_target_of_typed_texts_has_no_private_draft(run: Run) -> None:
    refused = run("schema", "diamonds.parquet", "--target", "cut", "--epsilon", 4)
    assert refused.exit_code == 1
    assert "column 'cut' must have numbers, its type is 'text'" in refused.stderr


def test_the_draft_of_a_label_with_many_numbers_names_the_other_way(run: Run) -> None:
    drafted = run("schema", "diamonds.csv", "--label", "price", "--public", "-o", "draft.toml")
    assert drafted.exit_code == 0
    assert "for a number, draft with --target" in Path("draft.toml").read_text()
    refused = run("train", "diamonds.csv", "--schema", "draft.toml", "--epsilon", 1, "-o", "model.json")
    assert "hint: to predict a number, declare a target with bounds instead of a label" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give --label or --target, the column to predict"),
        (("--label", "cut", "--target", "price"), "give either label or target"),
        (("--target", "prize"), "the data must have the column 'prize'"),
    ],
)
def test_a_draft_asks_for_the_column(run: Run, options: tuple[str, ...], message: str) -> None:
    refused = run("schema", "diamonds.parquet", *options)
    assert refused.exit_code == 1
    assert message in refused.stderr


def test_training_states_what_is_predicted_and_no_accuracy(run: Run, diamonds: pd.DataFrame) -> None:
    trained = run("train", "diamonds.csv", "--schema", "schema.toml", "--epsilon", 2, "-o", "model.json")
    assert trained.exit_code == 0, trained.output
    target = Model.load("model.json").schema.target
    assert isinstance(target, Number)
    low, high = target.typical or (0, 0)
    assert (
        f"the typical value of 'price', from 0 to 20000; most values are from {low:g} to {high:g} (found privately)"
        in (trained.stdout)
    )
    assert "of 'price', 1 of its spread" in trained.stdout
    assert "weights for numbers from 0 to 20000" in trained.stdout
    assert "accuracy" not in trained.stdout
    predicted = run("predict", "model.json", "diamonds.csv").stdout.splitlines()[1:]
    errors = np.array(predicted, float) - diamonds["price"]
    assert np.sqrt((errors**2).mean()) < 0.5 * diamonds["price"].std()
    assert "Certificate verified." in run("verify", "model.json").stdout
    assert "regression of price" in run("card", "model.json").stdout
    assert "change of 'price'" in run("show", "model.json").stdout
    assert "greatest" in run("sql", "model.json").stdout


@pytest.mark.parametrize(
    ("options", "predicts"),
    [
        (("--loss", "mean"), "the mean of 'price'"),
        (("--loss", "quantile", "--loss-parameter", 0.9), "the 0.9-quantile of 'price'"),
    ],
)
def test_plans_and_trainings_state_the_loss(run: Run, options: tuple[object, ...], predicts: str) -> None:
    trained = run("train", "diamonds.csv", "--schema", "schema.toml", "--epsilon", 2, "-o", "m.json", *options)
    assert trained.exit_code == 0, trained.output
    assert f"{predicts}, from 0 to 20000" in trained.stdout
    planned = run("plan", "--rows", ROWS, "--schema", "schema.toml", "--epsilon", 2, *options)
    assert f"{predicts}, from 0 to 20000" in planned.stdout
    assert "accuracy loss" not in planned.stdout
    assert "expected_accuracy_loss" not in run("plan", "--rows", ROWS, "--schema", "schema.toml", "--json").stdout


@pytest.mark.parametrize("command", [("predict", "model.json", "diamonds.csv"), ("sql", "model.json")])
def test_a_number_has_neither_probabilities_nor_a_threshold(run: Run, command: tuple[str, ...]) -> None:
    run("train", "diamonds.csv", "--schema", "schema.toml", "--epsilon", 2, "-o", "model.json")
    refused = run(*command, "--proba")
    assert refused.exit_code == 1
    assert "--proba must be for a label with classes, got the target 'price' with numbers from 0" in refused.stderr
    assert "a threshold must be for a label with classes" in run(*command, "--threshold", 0.3).stderr


def test_a_target_beside_a_schema_must_be_its_own(run: Run) -> None:
    command = ("train", "diamonds.csv", "--schema", "schema.toml", "--epsilon", 2, "-o", "model.json")
    assert run(*command, "--target", "price").exit_code == 0
    for wrong in (("--label", "price"), ("--target", "carat")):
        refused = run(*command, *wrong, "--overwrite")
        assert refused.exit_code == 1
        assert "of the schema, which has the target 'price'" in refused.stderr


def test_a_number_is_planned_and_audited_without_a_schema(run: Run) -> None:
    planned = run("plan", "--rows", 20_000, "--features", 5, "--number")
    assert planned.exit_code == 0, planned.output
    assert "the typical value of 'target', from -1 to 1" in planned.stdout
    assert "quantiles of the target" in planned.stdout
    for wrong, message in (
        (("--features", 5, "--classes", 3, "--number"), "give either --classes or --number"),
        (("--number",), "give either --schema, or --features with --classes or --number"),
    ):
        assert message in run("plan", "--rows", 20_000, *wrong).stderr


def test_a_check_judges_the_number(run: Run, diamonds: pd.DataFrame) -> None:
    fits = run("check", "diamonds.csv", "--schema", "schema.toml")
    assert fits.exit_code == 0, fits.output
    Path("narrow.toml").write_text('target = "price"\nbounds = [0, 1000]\n' + COLUMNS)
    narrow = run("check", "diamonds.csv", "--schema", "narrow.toml", "--html", "checked.html")
    assert narrow.exit_code == 1
    assert "target 'price': 9" in narrow.stderr
    assert "are above 1000 and clipped to it, as far as 1" in narrow.stdout
    Path("wide.toml").write_text('target = "price"\nbounds = [0, 5e6]\n' + COLUMNS)
    assert "over 50 times as wide" in run("check", "diamonds.csv", "--schema", "wide.toml").stderr
    diamonds.assign(price=500).to_csv("same.csv", index=False)
    assert "target 'price': all numbers are the same" in run("check", "same.csv", "--schema", "schema.toml").stderr


@pytest.mark.parametrize("method", ["trials", "portions"])
def test_an_explicit_method_is_not_overridden_by_public_rows(run: Run, method: str) -> None:
    command = ("tune", "diamonds.csv", "--schema", "schema.toml", "--epsilon", 5, "--grid", "regularization=0.1,1")
    refused = run(*command, "-o", "model.json", "--public-rows", 500, "--method", method)
    assert refused.exit_code == 1
    assert "--method must not be given with public rows" in refused.stderr
    assert not Path("model.json").exists()
    assert run(*command, "-o", "model.json", "--public-rows", 500).exit_code == 0


def test_a_plan_states_the_r2_that_the_default_is_expected_to_lose(run: Run) -> None:
    planned = run("plan", "--rows", ROWS, "--schema", "schema.toml")
    assert "expected R2 loss" in planned.stdout
    assert "lost no more R2 than that" in planned.stdout
    assert "accuracy loss" not in planned.stdout
    assert '"expected_r2_loss"' in run("plan", "--rows", ROWS, "--schema", "schema.toml", "--json").stdout
