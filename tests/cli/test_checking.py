"""`boltdp check` is loud about looking at rows, and its exit code tells garbage."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import SCHEMA, SECRET, Run


def test_rows_that_fit_pass_and_the_report_names_what_does_not(run: Run, rows: Path) -> None:
    result = run("check", rows, "--schema", "schema.toml", "--html", "checked.html")
    assert result.exit_code == 0, result.output
    assert "NOT PRIVATE" in result.stderr
    assert SECRET in result.stdout
    assert "missing" in result.stdout
    assert SECRET in Path("checked.html").read_text()


def test_garbage_is_exit_code_1_with_the_rule(run: Run, rows: Path) -> None:
    Path("wrong.toml").write_text(SCHEMA.replace('["no", "yes"]', '["No", "Yes"]').replace("[30, 200]", "[0, 5]"))
    result = run("check", rows, "--schema", "wrong.toml", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["ok"] is False
    assert report["private"] is False
    assert [odd["looks_like"] for odd in report["columns"][0]["undeclared_values"]] == ["No", "Yes", None]
    assert "training would learn garbage if" in result.stderr
    assert "'pulse': 100 % of the cells" in result.stderr


def test_training_points_to_it(run: Run, rows: Path) -> None:
    result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert "boltdp check" in result.stderr
