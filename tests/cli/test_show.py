from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boltdp.cli import show
from boltdp.encoding.plan import NumberRule
from boltdp.model import Model
from boltdp.privacy.release_with_noise import Randomness, release_weights
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from boltdp.settings import Settings
from tests.plans import plan_certificate

from .conftest import Run

#: Clears the screen, turns the direction of writing, rings.
CONTROLS = "\x1b[2J\u202e\a"


def test_a_model_is_shown_by_column_from_the_most_important_one(run: Run, model: Path) -> None:
    model.with_name("rows.parquet").unlink()
    result = run("show", model)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("NOT PRIVATE: the noise came from a seed")
    facts = {line[:17].strip(): line[17:] for line in lines if line[15:17] == "  "}
    assert facts["effects"].startswith("margin of 'yes' against 'no', compared with a missing value; less for rows")
    assert facts["missing"].startswith("a missing number counts as the noisy mean of its column, a missing category as")
    assert facts["told from noise"].startswith("0 of 3: ")
    assert "Not covered: what regularization, clipping" in facts["told from noise"]
    assert "added before training: in any one direction it pulls as" in result.stdout
    start = next(number for number, line in enumerate(lines) if line.startswith("column"))
    named = [line.split()[0] for line in lines[start + 1 :] if not line.startswith(" ")]
    assert named[:2] == ["NOT", "age"]
    assert {*named[1:]} == {"age", "pulse", "ward", "all"}
    assert lines[start].split("  ")[-1].strip() == "bound on noise std"
    assert "█" not in result.stdout
    assert "░" in result.stdout


def test_effects_that_are_told_from_noise_come_first_and_others_are_grey(run: Run, rows: Path) -> None:
    """The fixture's label depends on the age alone."""
    trained = ("--schema", "schema.toml", "--epsilon", 1, "--noise-seed", 1, "--algorithm", "bolton")
    assert run("train", rows, *trained, "--regularization", 0.01, "-o", "model.json").exit_code == 0
    result = run("show", "model.json", "--html", "model.html")
    lines = result.stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("column"))
    assert lines[start].split("  ")[-1].strip() == "noise std"
    headings = [line.split("  ")[0] for line in lines[start + 1 :] if line[:1] not in " "]
    assert (headings[0], headings[1]) == ("age", "NOT TOLD FROM NOISE:")
    told, grey = "\n".join(lines[start:]).split("NOT TOLD")
    assert ("█" in told, "░" in told, "█" in grey, "░" in grey) == (True, False, False, True)
    record: Any = json.loads(run("show", "model.json", "--json").stdout)
    assert [one["told_from_noise"] for one in record["panels"][0]["columns"]] == [True, False, False]
    before, after = Path("model.html").read_text().split("<h3>Not told from noise</h3>")
    assert ("<figcaption>age" in before, "<figcaption>age" in after) == (True, False)


def test_both_sides_of_a_step_are_told_apart(run: Run, rows: Path) -> None:
    model = rows.with_name("model.json")
    trained = ("--schema", "schema.toml", "--epsilon", 1, "--noise-seed", 1, "--curves", 1, "-o", model)
    assert run("train", rows, *trained).exit_code == 0
    lines = [line.split() for line in run("show", model).stdout.splitlines()]
    start = next(number for number, words in enumerate(lines) if words[:2] == ["age", "0"])
    assert [words[:2] for words in lines[start + 1 : start + 3]] == [["below", "50"], ["from", "50"]]
    assert lines[start + 3][0] == "100"


@pytest.mark.parametrize("steps", [0, 8])
def test_json_has_the_numbers_and_files_are_written(run: Run, rows: Path, steps: int) -> None:
    model = rows.with_name("model.json")
    trained = ("--schema", "schema.toml", "--epsilon", 1, "--noise-seed", 1, "--curves", steps, "-o", model)
    assert run("train", rows, *trained).exit_code == 0
    result = run("show", model, "--json", "--html", "model.html", "--picture", "model.svg")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    loaded = Model.load(model)
    assert (record["private"], record["epsilon"], record["rows"]) == (False, 1.0, 2000)
    assert record["noise"]["exact"] is False
    (panel,) = record["panels"]
    assert panel["favours"] == "yes"
    columns = {one["column"]: one for one in panel["columns"]}
    age = columns["age"]["points"]
    scaled = next(one for one in loaded.schema.encoding.scaled_rules if one.rule.column == "age")
    column, (middles, factors) = scaled.rule, scaled.original_units
    assert isinstance(column, NumberRule)
    assert [point["at"] for point in age] == [0.0, *np.repeat(column.thresholds, 2), 100.0]
    values = np.array([100.0, *np.ones(len(column.thresholds))])
    weights = loaded.weights[0, : len(values)]
    assert age[-1]["effect"] == pytest.approx(weights @ ((values - middles) * factors))
    assert [point["at"] for point in columns["ward"]["points"]] == ["A", "B", "C"]
    assert all(point["deviation"] > 0 for point in columns["ward"]["points"])
    assert "NOT PRIVATE" in Path("model.html").read_text()
    assert Path("model.svg").stat().st_size > 1000
    told = run("show", model, "--html", "again.html").stdout
    assert "page             again.html" in told


def test_fewer_columns_are_shown_if_asked_for(run: Run, model: Path) -> None:
    shown = run("show", model, "--top", 1).stdout
    assert "2 more columns: --top shows them" in shown
    assert "pulse" not in shown


def test_a_terminal_is_told_nothing_that_it_would_obey(run: Run, tmp_path: Path) -> None:
    columns = (Numeric(f"n{CONTROLS}", 0, 1), Categorical(f"c{CONTROLS}", tuple(f"{i}{CONTROLS}" for i in range(30))))
    schema = Schema(Classes(f"y{CONTROLS}", tuple(f"{i}{CONTROLS}" for i in range(3))), columns)
    certificate = plan_certificate(Settings(epsilon=1.0), rows=1000, dims=schema.dims, classes=3)
    weights = release_weights(np.ones((1, 3, schema.dims)), certificate, Randomness())
    Model(schema, weights[0], certificate, trained_where=CONTROLS).save("model.json")
    result = run("show", "model.json")
    assert result.exit_code == 0, result.output
    assert not set(CONTROLS[0] + CONTROLS[-2:]) & set(result.output)
    assert result.output.replace("\n", "").isprintable()
    assert r"0\x1b[2J\u202e\x07:" in result.stdout
    assert "and 18 with smaller effects" in result.stdout
    # Other commands print names of a file's classes too.
    (tmp_path / "rows.csv").write_text(f"n{CONTROLS},c{CONTROLS},y{CONTROLS}\n0.5,1{CONTROLS},2{CONTROLS}\n")
    evaluated = run("evaluate", "model.json", "rows.csv")
    assert evaluated.output.replace("\n", "").isprintable()


def test_a_changed_model_is_not_shown(run: Run, model: Path) -> None:
    record = json.loads(model.read_text())
    record["weights"][0][0] += 1.0
    model.write_text(json.dumps(record))
    result = run("show", model)
    assert result.exit_code == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("share", "bar"),
    [
        (1.0, "            │████████████"),
        (-0.5, "      ██████│"),
        (0.0, "            │"),
    ],
)
def test_bars(share: float, bar: str) -> None:
    assert show._draw_bar(share, "█", "│") == bar


def test_a_terminal_without_blocks_gets_letters(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boltdp.cli.show.can_encode", lambda text: text.isascii())
    shown = run("show", model).stdout
    assert "-|" in shown
    assert not set("█░│") & set(shown)
