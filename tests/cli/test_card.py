"""`boltdp evaluate --epsilon` and `boltdp card`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from boltdp.evaluation.noisy_evaluation import NoisyEvaluation
from boltdp.ledger import open_ledger
from boltdp.privacy.budget import Budget

from .conftest import SECRET, Run


@pytest.fixture
def evaluation(run: Run, model: Path, rows: Path) -> Path:
    result = run("evaluate", model, rows, "--epsilon", 1, "--by", "ward", "-o", "evaluation.json")
    assert result.exit_code == 0, result.output
    return rows.with_name("evaluation.json")


def test_private_rows_are_measured_with_noise_and_nothing_else_is_told(run: Run, model: Path, rows: Path) -> None:
    result = run("evaluate", model, rows, "--epsilon", 1, "--delta", 1e-6, "--by", "ward", "-o", "evaluation.json")
    assert result.exit_code == 0, result.output
    for told in (
        "Differentially private with epsilon = 1, delta = 1e-06",
        "area under the curve",
        "none declared",
        "±",
    ):
        assert told in result.stdout
    assert "no ledger is charged" in result.stderr
    # The model of these tests has a seed.
    assert "the model itself is not private" in result.stderr
    found = NoisyEvaluation.load("evaluation.json")
    assert found.groups == ("A", "B", "C", "none declared")
    assert SECRET not in result.output + Path("evaluation.json").read_text()


def test_json_is_what_the_file_has(run: Run, model: Path, rows: Path) -> None:
    result = run("evaluate", model, rows, "--epsilon", 1, "-o", "evaluation.json", "--json")
    assert json.loads(result.stdout) == json.loads(Path("evaluation.json").read_text())


def test_the_ledger_beside_the_rows_is_charged_and_refuses(run: Run, model: Path, rows: Path) -> None:
    ledger = open_ledger(rows.with_name(".boltdp-ledger.db"))
    ledger.set_budget("rows.parquet", Budget(1.0), composition="basic")
    first = run("evaluate", model, "rows.parquet", "--epsilon", 0.75)
    assert first.exit_code == 0, first.output
    assert "epsilon 0.25 of 1 remaining; 1 release spent epsilon 0.75" in first.stdout
    second = run("evaluate", model, "rows.parquet", "--epsilon", 0.75, "-o", "second.json")
    assert second.exit_code == 1
    assert "budget exceeded" in second.stderr
    assert not second.stdout
    assert not Path("second.json").exists()
    assert ledger.spent("rows.parquet").spent.epsilon == 0.75


@pytest.mark.parametrize(
    "options",
    [("--delta", 0), ("-o", "e.json"), ("--ledger", "l.db"), ("--dataset", "x"), ("--blocks", "b")],
)
def test_what_belongs_to_an_epsilon_is_refused_without_one(
    run: Run, model: Path, rows: Path, options: tuple[object, ...]
) -> None:
    result = run("evaluate", model, rows, *options)
    assert result.exit_code == 1
    assert "must be given with --epsilon" in result.stderr


def test_nothing_is_spent_for_what_cannot_be_written(run: Run, model: Path, rows: Path) -> None:
    ledger = open_ledger(rows.with_name(".boltdp-ledger.db"))
    ledger.set_budget("rows.parquet", Budget(1.0))
    Path("there.json").write_text("{}")
    for options in (("--plot", "x.bmp"), ("-o", "there.json"), ("--by", "age"), ("-o", "no/such/folder.json")):
        result = run("evaluate", model, rows, "--epsilon", 0.5, *options)
        assert result.exit_code == 1, result.output
    assert ledger.spent("rows.parquet").spent.releases == 0
    written = run("evaluate", model, rows, "--epsilon", 0.5, "-o", "there.json", "--overwrite", "--plot", "x.png")
    assert written.exit_code == 0
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")


def test_a_card_is_written_in_every_form(run: Run, rows: Path, evaluation: Path) -> None:
    trained = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "private.json")
    assert trained.exit_code == 0, trained.output
    del evaluation
    assert run("evaluate", "private.json", rows, "--epsilon", 1, "--by", "ward", "-o", "private-e.json").exit_code == 0
    for name, begins in (
        ("card.md", "---\n"),
        ("card.html", "<!DOCTYPE html>"),
        ("card.json", "{"),
        ("card.yaml", "url"),
    ):
        result = run("card", "private.json", "--evaluation", "private-e.json", "--curator", "A  hospital\n", "-o", name)
        assert result.exit_code == 0, result.output
        assert not result.stdout
        assert "left blank" in result.stderr
        assert "--curator," not in result.stderr
        text = Path(name).read_text()
        assert text.startswith(begins)
        assert "A hospital" in text
        assert SECRET not in text
    shown = run("card", "private.json", "--evaluation", "private-e.json", "--curator", "A hospital")
    assert shown.stdout == Path("card.md").read_text()


def test_a_card_is_not_written_of_what_does_not_belong_together(
    run: Run, model: Path, rows: Path, evaluation: Path
) -> None:
    assert run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "other.json").exit_code == 0
    result = run("card", "other.json", "--evaluation", evaluation)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "must be of this model" in result.stderr
    text = evaluation.read_text().replace('"rows": 2000', '"rows": 2001')
    Path("changed.json").write_text(text)
    for path in ("changed.json", model, "missing.json"):
        result = run("card", model, "--evaluation", path)
        assert result.exit_code == 1, result.output
    assert run("card", model, "-o", "card.txt").exit_code == 1
    assert run("card", model, "-o", "card.yaml").exit_code == 1, "it has a seed"
    assert not Path("card.yaml").exists()
