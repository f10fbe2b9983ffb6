from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from boltdp import Model
from boltdp._files.sealed import add_digest
from boltdp.engines import open_source

from .conftest import SECRET, Run, find_events

OPTIONS = (
    *("--schema", "schema.toml", "--epsilon", 1, "--standardize", "private", "--standardize-share", 0.2),
    *("--curves", 0, "--standardize-moments", "squares"),
)


def test_train_standardizes_and_says_what_it_cost(run: Run, rows: Path) -> None:
    result = run("train", rows, *OPTIONS, "-o", "model.json")
    assert result.exit_code == 0, result.output
    assert "(ε = 1)-differentially private:" in result.stdout
    assert "centres and scales of 5 features, for epsilon = 0.2\n" in result.stdout
    model = Model.load("model.json")
    assert model.schema.standardization is not None
    assert SECRET not in result.output + Path("model.json").read_text()
    verified = run("verify", "model.json")
    assert verified.exit_code == 0, verified.output
    lines = [line.split(maxsplit=1) for line in verified.stdout.splitlines()]
    assert ["standardizing", "centres and scales of 5 features, for epsilon = 0.2"] in lines
    assert ["spent", "at epsilon = 1, delta = 0: recomputed"] in lines
    (spent,) = find_events(json.loads(run("verify", "model.json", "--json").stdout), "composition")
    assert [part["event"]["kind"] for part in spent["parts"]] == ["noisy moments", "objective perturbation"]
    first, second = (part["budget"]["epsilon"] for part in spent["parts"])
    assert (first, second) == (0.2, pytest.approx(0.8, rel=1e-15))
    assert first + second <= 1.0


@pytest.mark.parametrize("shares", [(0.1, 0.8), (0.1, 0.9), (0.3, 0.7)])
def test_a_tampered_share_is_caught(run: Run, rows: Path, shares: tuple[float, float]) -> None:
    run("train", rows, *OPTIONS, "-o", "model.json")
    assert run("verify", "model.json").exit_code == 0
    record = json.loads(Path("model.json").read_text())
    (spent,) = find_events(record["certificate"], "composition")
    for part, share in zip(spent["parts"], shares, strict=True):
        part["budget"]["epsilon"] = share
    Path("model.json").write_text(json.dumps(add_digest(record)))
    result = run("verify", "model.json")
    assert result.exit_code == 1
    assert "in 'private', says True" in result.stderr


def test_sql_of_a_standardized_model_predicts_what_predict_does(run: Run, rows: Path) -> None:
    run("train", rows, *OPTIONS[:-1], "mean", "--delta", 1e-6, "-o", "model.json")
    expression = run("sql", "model.json").stdout
    with duckdb.connect() as connection:
        scored = connection.execute(f"SELECT {expression} FROM read_parquet(?)", [str(rows)]).fetchall()
    assert [row[0] for row in scored] == Model.load("model.json").predict(open_source(rows)).tolist()


def test_plan_shows_the_share(run: Run, rows: Path) -> None:
    del rows
    plain = json.loads(run("plan", "--rows", 2000, *OPTIONS, "--standardize", "none", "--json").stdout)
    result = run("plan", "--rows", 2000, *OPTIONS, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    (spent,) = find_events(record, "composition")
    assert spent["parts"][0]["event"]["kind"] == "noisy moments"
    assert spent["parts"][0]["budget"] == {"epsilon": 0.2, "delta": 0.0}
    assert find_events(plain, "composition") == find_events(plain, "noisy moments") == []
    assert record["noise_per_row"] > plain["noise_per_row"]
    shown = run("plan", "--rows", 2000, *OPTIONS, "--delta", 1e-6).stdout
    assert "centres and scales of 5 features, for epsilon = 0.2, delta = 2e-07\n" in shown
    by_number = run("plan", "--rows", 2000, "--features", 6, *OPTIONS[2:], "--json")
    assert json.loads(by_number.stdout)["noise_per_row"] == record["noise_per_row"]


@pytest.mark.parametrize("command", ["tune", "compare"])
def test_other_commands_standardize_too(run: Run, rows: Path, command: str) -> None:
    if command == "tune":
        result = run("tune", rows, *OPTIONS, "--grid", "passes=1,2", "--trials", 2, "-o", "model.json")
        assert "centres and scales of 5 features, for epsilon = 0.2\n" in result.stdout
    else:
        options = ("--schema", "schema.toml", "--standardize", "private", "--repeats", 1, "--passes", 1)
        result = run("compare", rows, *options, "--epsilon", "1,2", "--algorithms", "bolton")
        assert len(json.loads(Path("comparison.json").read_text())["runs"]) == 2
    assert result.exit_code == 0, result.output
