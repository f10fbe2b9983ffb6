"""`boltdp evaluate` of models whose target is a number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from sklearn.metrics import mean_absolute_error, r2_score

from boltdp import Model
from boltdp.evaluation.noisy_evaluation import NoisyEvaluation

from .conftest import Run

SCHEMA = """
target = "price"
bounds = [0, 1000]
typical = [100, 700]

[numeric]
size = [0, 10]

[categorical]
ward = ["A", "B"]
"""


@pytest.fixture
def priced(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    """A model of prices in model.json, its rows in rows.parquet; every fiftieth has no price."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    size = generator.uniform(0, 10, 3000)
    price = np.clip(80 * size + generator.normal(0, 60, 3000), 0, 1000)
    missing = np.arange(3000) % 50 == 0
    ward = pa.array(np.array(["A", "B"])[generator.integers(0, 2, 3000)])
    table = pa.table({"size": size, "ward": ward, "price": pa.array(price, mask=missing)})
    pa.parquet.write_table(table, "rows.parquet")
    Path("schema.toml").write_text(SCHEMA)
    trained = run("train", "rows.parquet", "--schema", "schema.toml", "--epsilon", 5, "-o", "model.json")
    assert trained.exit_code == 0, trained.output
    return table


def test_evaluate_measures_numbers(run: Run, priced: pa.Table) -> None:
    result = run("evaluate", "model.json", "rows.parquet", "--json", "--plot", "evaluation.png")
    assert result.exit_code == 0, result.output
    assert "must be non-sensitive data" in result.stderr
    assert Path("evaluation.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads(result.stdout)
    known = np.arange(3000) % 50 != 0
    true, predicted = (
        np.array(priced["price"].to_pylist())[known].astype(float),
        Model.load("model.json").predict(priced),
    )
    assert (record["rows"], record["rows_without_label"]["value"]) == (3000, 60)
    assert record["scores"]["R2"]["value"] == pytest.approx(r2_score(true, predicted[known]), rel=1e-5)
    assert record["scores"]["MAE"]["value"] == pytest.approx(mean_absolute_error(true, predicted[known]), rel=1e-5)
    assert np.sum(record["histogram"]["rows"]) == 2940
    shown = run("evaluate", "model.json", "rows.parquet", "--by", "ward").stdout.splitlines()
    assert shown[2].split() == ["rows", "without", "a", "number", "60"]
    assert shown[3].split()[:2] == ["R2", f"{record['scores']['R2']['value']:.4f}"]
    assert any(line.startswith("ward") and "MAE of the median always" in line for line in shown)


def test_private_numbers_are_measured_with_noise_and_written(run: Run, priced: pa.Table) -> None:
    del priced
    options = ("--epsilon", 1, "--by", "ward", "-o", "evaluation.json")
    result = run("evaluate", "model.json", "rows.parquet", *options)
    assert result.exit_code == 0, result.output
    for said in ("Differentially private with epsilon = 1", "rows without a number", "error of the MAE from bins", "±"):
        assert said in result.stdout
    assert NoisyEvaluation.load("evaluation.json").groups == ("A", "B", "none declared")
    card = run("card", "model.json", "--evaluation", "evaluation.json")
    assert card.exit_code == 0, card.output
    assert "| R2 |" in card.stdout


def test_rows_without_a_number_are_told_and_refused(run: Run, priced: pa.Table) -> None:
    for missing, told in ((400, "400 of 3,000 rows have no number in column 'price'"), (1600, "got 1,400 of")):
        column = pa.array(np.full(3000, 10.0), mask=np.arange(3000) < missing)
        pa.parquet.write_table(priced.set_column(2, "price", column), "other.parquet")
        result = run("evaluate", "model.json", "other.parquet")
        assert result.exit_code == (missing > 1500)
        assert told in result.stderr
        assert "training uses numbers" in result.stderr
