from __future__ import annotations

import json
from pathlib import Path

import pytest

from boltdp.model import Model

from .conftest import Run

TRAINED = ("--schema", "schema.toml", "--epsilon", 20, "--noise-seed", 1, "--inference", "-o", "model.json")


@pytest.fixture
def inferred(run: Run, rows: Path) -> Path:
    """A model trained on the rows for inference."""
    result = run("train", rows, *TRAINED)
    assert result.exit_code == 0, result.output
    return rows.with_name("model.json")


def test_training_says_what_was_released_and_where_coefficients_are(run: Run, rows: Path) -> None:
    result = run("train", rows, *TRAINED, "--robust-errors")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith("inference")]
    assert [line.split("  ")[-1].strip().split(",")[0].split(" of ")[0] for line in lines] == [
        "rows",
        "the Hessian",
        "the outer products",
    ]
    assert all(", for epsilon = " in line for line in lines)
    assert "`boltdp coefficients model.json` prints coefficients" in result.stderr


def test_coefficients_are_printed_without_rows(run: Run, inferred: Path) -> None:
    inferred.with_name("rows.parquet").unlink()
    result = run("coefficients", inferred)
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()[:6]] == [
        *("term", "age", "pulse", "ward=B", "ward=C", "intercept")
    ]
    assert "reference   ward: A" in result.stdout


@pytest.mark.parametrize(
    ("output", "start"),
    [
        ("a.csv", "term,coef"),
        ("a.tex", r"\begin{table}"),
        ("a.html", "<!DOCTYPE html>"),
        ("a.txt", "term "),
        ("a", "term"),
    ],
)
def test_the_ending_of_a_file_chooses_the_format(run: Run, inferred: Path, output: str, start: str) -> None:
    result = run("coefficients", inferred, "-o", output)
    assert (result.exit_code, result.stdout) == (0, "")
    assert inferred.with_name(output).read_text("utf-8").startswith(start)


def test_the_level_sets_the_width(run: Run, inferred: Path) -> None:
    narrow, wide = (
        json.loads(run("coefficients", inferred, "--format", "json", "--level", level).stdout)["coefficients"][0]
        for level in (0.5, 0.99)
    )
    assert (wide["high"] - wide["low"]) / (narrow["high"] - narrow["low"]) == pytest.approx(2.5758 / 0.6745, rel=1e-3)
    assert run("coefficients", inferred, "--level", 1).exit_code == 1


def test_a_model_that_was_not_trained_for_it_is_refused(run: Run, model: Path) -> None:
    result = run("coefficients", model)
    assert result.exit_code == 1
    assert "it was not trained for inference" in result.stderr
    assert "hint: train it with --inference" in result.stderr


def test_a_changed_hessian_is_refused(run: Run, inferred: Path) -> None:
    record = Model.load(inferred).to_dict()
    record["inference"]["hessian"][0] *= 1.0 + 1e-9
    Model.from_dict(record).save(inferred)
    result = run("coefficients", inferred)
    assert result.exit_code == 1
    assert "the hessian is not the released one: it is off its grid" in result.stderr


def test_coefficients_are_refused_where_noise_hides_them(run: Run, rows: Path) -> None:
    trained = ("--schema", "schema.toml", "--epsilon", 0.02, "--noise-seed", 1, "--inference", "-o", "model.json")
    assert run("train", rows, *trained).exit_code == 0
    result = run("coefficients", "model.json")
    assert result.exit_code == 1
    assert "the intervals are refused" in result.stderr


def test_plan_expects_wider_intervals_of_less_epsilon(run: Run) -> None:
    asked = ("plan", "--rows", 20_000, "--features", 6, "--inference", "--epsilon")
    assert "times as wide as without privacy" in run(*asked, 1).stdout
    assert "probably be refused" in run(*asked, 0.01).stdout
    widths = [one["expected_width"] for one in json.loads(run(*asked, 1, "--json").stdout)["by_epsilon"]]
    assert widths == sorted(widths, reverse=True)
    assert 1 < widths[-1] < 1.01
