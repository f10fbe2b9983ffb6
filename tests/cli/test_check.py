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


def test_a_drafted_schema_is_paid_for_by_the_model_and_verified(run: Run, rows: Path) -> None:
    drafted = run("schema", rows, "--label", "sick", "--epsilon", 8, "--delta", 1e-4, "-o", "drafted.toml")
    assert drafted.exit_code == 0, drafted.output
    assert SECRET not in Path("drafted.toml").read_text().replace(f'"{SECRET}"', "")
    plan = run("plan", "--rows", 2000, "--schema", "drafted.toml", "--epsilon", 12, "--delta", 1e-3)
    assert "found privately, for epsilon = 8, delta = 0.0001" in plan.stdout
    trained = run("train", rows, "--schema", "drafted.toml", "--epsilon", 12, "--delta", 1e-3, "-o", "drafted.json")
    assert trained.exit_code == 0, trained.output
    assert "(ε = 12, δ = 0.001)-differentially private" in trained.stdout
    verified = run("verify", "drafted.json")
    assert verified.exit_code == 0, verified.output
    assert "found privately, for epsilon = 8, delta = 0.0001" in verified.stdout


def test_options_of_a_draft_that_exclude_each_other_are_refused(run: Run, rows: Path) -> None:
    both = run("schema", rows, "--label", "sick", "--epsilon", 1, "--public")
    assert both.exit_code == 1
    assert "give either --public or --epsilon" in both.stderr
    alone = run("schema", rows, "--label", "sick", "--delta", 1e-6)
    assert "--delta must be given only with --epsilon" in alone.stderr
    pure = run("schema", rows, "--label", "sick", "--epsilon", 8)
    assert "without --delta no categories and no classes can be inferred" in pure.stderr
    assert "classes = []" in pure.stdout


def test_a_file_without_a_header_is_told_as_training_tells_it(run: Run, rows: Path) -> None:
    bare = rows.parent / "bare.csv"
    bare.write_text("30,F,yes\n" + 99 * "40,M,no\n")
    for command in (
        ["check", str(bare)],
        ["train", str(bare), "--epsilon", "1", "--anyway", "-o", str(rows.parent / "m")],
    ):
        done = run(*command, "--schema", str(rows.parent / "schema.toml"))
        assert "is there a header, and is it the right file?" in done.stderr


def test_the_line_at_fault_is_told(run: Run, rows: Path) -> None:
    broken = rows.parent / "broken.csv"
    broken.write_text("age,y\n1,0\n2,1,7\n")
    schema = rows.parent / "broken.toml"
    schema.write_text('label = "y"\nclasses = [0, 1]\n[numeric]\nage = [0, 9]\n')
    told = f"line 3 of {str(broken)!r} has 3 cells, and the header 2"
    assert told in run("check", str(broken), "--schema", str(schema)).stderr
    assert told in run("schema", str(broken), "--label", "y", "--public").stderr
    private = run("train", str(broken), "--schema", str(schema), "--epsilon", "1", "-o", str(rows.parent / "m"))
    assert "line 3" not in private.stderr
    assert "`boltdp check` names the line" in private.stderr


def test_decimal_commas_are_told_with_a_query_that_mends_them(run: Run, rows: Path) -> None:
    commas = rows.parent / "commas.csv"
    commas.write_text("temp;y\n80,96;0\n-1,5;1\n7;1\n")
    schema = rows.parent / "commas.toml"
    schema.write_text('label = "y"\nclasses = [0, 1]\n[numeric]\ntemp = [-10, 99]\n')
    query = "SELECT * REPLACE (replace(temp, ',', '.') AS temp) FROM source"
    assert f'--query "{query}"' in run("check", str(commas), "--schema", str(schema)).stdout
    assert "no numbers" not in run("check", str(commas), "--query", query, "--schema", str(schema)).stdout


def test_the_standard_input_is_refused_with_the_reason(run: Run, rows: Path) -> None:
    done = run("check", "-", "--schema", str(rows.parent / "schema.toml"))
    assert "rows are read more than once" in done.stderr


def test_choices_that_are_missing_are_told_in_one_line(run: Run) -> None:
    assert "Choose from: bash, zsh, fish\n" in run("completion").stderr
