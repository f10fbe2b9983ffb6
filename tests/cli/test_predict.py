"""`boltdp predict` keeps columns, `boltdp evaluate` draws, and `boltdp sql` has probabilities of all classes."""

from __future__ import annotations

import csv
import io
import json
from datetime import date
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from boltdp import Model
from boltdp.engines import open_source

from .conftest import Run


@pytest.fixture
def kept(table: pa.Table, rows: Path) -> pa.Table:
    """The rows with an id and a date, in the file."""
    days = pa.array([date(2025, 1, 1 + place % 28) for place in range(len(table))])
    told = table.append_column("id", pa.array([f"p,{place}" for place in range(len(table))]))
    told = told.append_column("visit date", days)
    pa.parquet.write_table(told, rows)
    return told


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_keep_the_columns_asked_for_beside_their_rows(
    run: Run, model: Path, rows: Path, kept: pa.Table
) -> None:
    expected = Model.load(model).predict(open_source(rows)).tolist()
    result = run("predict", model, rows, "--keep", "id,age", "--keep", "visit date")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "id,age,visit date,prediction"
    lines = read(result.stdout)
    assert [line["id"] for line in lines] == kept["id"].to_pylist()
    assert [line["visit date"] for line in lines] == [str(day) for day in kept["visit date"].to_pylist()]
    ages = [None if not line["age"] else float(line["age"]) for line in lines]
    assert ages == kept["age"].to_pylist()
    assert [line["prediction"] for line in lines] == expected


def test_cells_of_a_csv_file_are_kept_as_they_are_written(run: Run, model: Path) -> None:
    text = 'id,age,pulse,ward\n007,05h,1e2,A\n"a,b",34,80.10,\n'
    Path("new.csv").write_text(text)
    result = run("predict", model, "new.csv", "--keep", "*")
    assert result.exit_code == 0, result.output
    lines = read(result.stdout)
    assert [{name: line[name] for name in ("id", "age", "pulse", "ward")} for line in lines] == read(text)
    # What is kept does not change what is predicted.
    assert [line["prediction"] for line in lines] == run("predict", model, "new.csv").stdout.splitlines()[1:]


def test_kept_columns_keep_their_types_in_parquet(run: Run, model: Path, rows: Path, kept: pa.Table) -> None:
    assert run("predict", model, rows, "--keep", "*", "--proba", "-o", "out.parquet").exit_code == 0
    found = pa.parquet.read_table("out.parquet")
    assert found.column_names == [*kept.column_names, "prediction", "probability_no", "probability_yes"]
    assert found.select(kept.column_names).equals(kept)


def test_rows_of_a_database_keep_their_columns_too(run: Run, model: Path, rows: Path, kept: pa.Table) -> None:
    with duckdb.connect("rows.duckdb") as connection:
        connection.execute(f"CREATE TABLE people AS FROM '{rows}'")
    query = "SELECT *, 2 * age AS \"Twice, 'it'\" FROM people"
    result = run("predict", model, "rows.duckdb", "--query", query, "--keep", "\"Twice, 'it'\",id", "-o", "out.csv")
    assert result.exit_code == 0, result.output
    lines = read(Path("out.csv").read_text())
    assert [*lines[0]] == ["Twice, 'it'", "id", "prediction"]
    assert [line["id"] for line in lines] == kept["id"].to_pylist()


def test_lists_and_missing_cells_are_written_to_csv(run: Run, model: Path, rows: Path, kept: pa.Table) -> None:
    lists = [[1.5, 2.0], None, []] * (len(kept) // 3) + [[1.0]] * (len(kept) % 3)
    pa.parquet.write_table(kept.append_column("scan", pa.array(lists)), rows)
    lines = read(run("predict", model, rows, "--keep", "scan").stdout)
    assert [line["scan"] for line in lines[:3]] == ["[1.5, 2.0]", "", "[]"]


def test_a_kept_column_that_is_not_there_is_told_before_anything_is_written(run: Run, model: Path, rows: Path) -> None:
    result = run("predict", model, rows, "--keep", "Age")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "the column to keep must be one of the data, got 'Age'" in result.stderr
    assert "hint: the columns are age, pulse, ward, sick" in result.stderr


@pytest.mark.parametrize("name", ["prediction", "Prediction", "probability_yes"])
def test_an_added_column_never_takes_the_name_of_a_kept_one(
    run: Run, model: Path, rows: Path, table: pa.Table, name: str
) -> None:
    pa.parquet.write_table(table.append_column(name, pa.array(range(len(table)))), rows)
    options = ("--proba", "-o", "out.parquet")
    refused = run("predict", model, rows, "--keep", "*", *options)
    assert refused.exit_code == 1
    assert f"an added column must have a name of its own, and {name!r}, which is kept" in refused.stderr
    assert not Path("out.parquet").exists()
    assert run("predict", model, rows, *options).exit_code == 0, "it is not kept"
    assert run("predict", model, rows, "--keep", "*", "--prefix", "model_", *options).exit_code == 0
    assert pa.parquet.read_table("out.parquet").column_names[-3:] == [
        "model_prediction",
        "model_probability_no",
        "model_probability_yes",
    ]


def test_evaluate_draws_and_tells_each_class(run: Run, model: Path, rows: Path) -> None:
    result = run("evaluate", model, rows, "--plot", "evaluation.png")
    assert result.exit_code == 0, result.output
    assert Path("evaluation.png").read_bytes().startswith(b"\x89PNG")
    assert "the picture is in evaluation.png" in result.stderr
    assert "must be non-sensitive data" in result.stderr
    for figure in ("Brier score", "calibration error", "average precision", "probability of yes", "observed share"):
        assert figure in result.stdout
    record = json.loads(run("evaluate", model, rows, "--json").stdout)
    assert [one["class"] for one in record["by_class"]] == ["no", "yes"]
    curve = record["curves"][0]
    assert curve["class"] == "yes"
    assert len(curve["threshold"]) == len(curve["true_positive_rate"]) == len(curve["precision"]) <= 200
    assert curve["false_positive_rate"][-1] == curve["true_positive_rate"][-1] == 1.0
    # A threshold of the curve decides as the curve says.
    place = len(curve["threshold"]) // 2
    decided = json.loads(run("evaluate", model, rows, "--threshold", curve["threshold"][place], "--json").stdout)
    assert decided["by_class"][1]["recall"]["value"] == pytest.approx(curve["true_positive_rate"][place], abs=0.005)


def test_a_picture_that_cannot_be_drawn_is_refused_before_a_row_is_read(run: Run, model: Path, rows: Path) -> None:
    rows.unlink()
    for path, said in (("x.bmp", "a picture must end in .png"), ("nowhere/x.png", "nowhere")):
        result = run("evaluate", model, rows, "--plot", path)
        assert result.exit_code == 1
        assert said in result.stderr


def test_probabilities_of_many_classes_in_sql_are_an_array_or_that_of_one_class(run: Run) -> None:
    made = run("synth", "rows.parquet", "--rows", 500, "--dims", 4, "--classes", 3, "--schema", "rows.toml")
    assert made.exit_code == 0
    options = ("--schema", "rows.toml", "--epsilon", 1, "-o", "model.json")
    assert run("train", "rows.parquet", *options).exit_code == 0
    assert run("predict", "model.json", "rows.parquet", "--proba", "-o", "out.parquet").exit_code == 0
    expected = pa.parquet.read_table("out.parquet").drop_columns(["prediction"]).to_pandas().to_numpy()
    every, last = run("sql", "model.json", "--proba"), run("sql", "model.json", "--proba", "--class", 2)
    assert "note: this is an array: [1] 0, [2] 1, [3] 2; --class gives one of them" in every.stderr
    assert last.stderr == ""
    query = f"SELECT {every.stdout}, {last.stdout} FROM 'rows.parquet'"
    with duckdb.connect() as connection:
        found = connection.execute(query).fetchall()
    np.testing.assert_allclose([row[0] for row in found], expected, rtol=1e-12)
    np.testing.assert_allclose([row[1] for row in found], expected[:, 2], rtol=1e-12)
    assert json.loads(run("sql", "model.json", "--proba", "--json").stdout)["classes"] == [0, 1, 2]


def test_a_class_in_sql_must_be_one_of_the_model_and_a_probability(run: Run, model: Path) -> None:
    unknown = run("sql", model, "--proba", "--class", "maybe")
    assert unknown.exit_code == 1
    assert "--class must be one of no, yes, got 'maybe'" in unknown.stderr
    assert "--class is for probabilities" in run("sql", model, "--class", "yes").stderr
