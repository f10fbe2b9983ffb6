"""Training for persons, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from boltdp._files.sealed import add_digest
from boltdp.model import Model

from .conftest import SECRET, Run


@pytest.fixture
def visits(rows: Path, table: pa.Table) -> Path:
    """The rows with the id of a patient in each, some of them missing."""
    ids = [None if i % 11 == 0 else f"{SECRET}-{i % 700}" for i in range(table.num_rows)]
    pq.write_table(table.append_column("patient", pa.array(ids)), rows)
    return rows


def test_a_model_for_persons_says_so_wherever_it_is_shown(run: Run, visits: Path) -> None:
    options = ("--schema", "schema.toml", "--person-id", "patient", "--max-rows-per-person", 2, "--epsilon", 1)
    result = run("train", visits, *options, "-o", "model.json")
    assert result.exit_code == 0, result.output
    guaranteed = "changing the rows of any one person, of which at most 2 are used,"
    line = ["persons", "the first 2 rows of each are used, and others are ignored"]
    for told in (result, run("verify", "model.json")):
        assert guaranteed in told.stdout
        assert line in [text.split(maxsplit=1) for text in told.stdout.splitlines()]
    assert guaranteed in run("show", "model.json").stdout
    assert SECRET not in result.output + Path("model.json").read_text()
    assert json.loads(run("verify", "model.json", "--json").stdout)["adjacency"] == "replace-person"
    model = Model.load("model.json")
    assert (model.schema.person_id, model.schema.max_rows_per_person) == ("patient", 2)
    assert run("predict", "model.json", visits, "-o", "predicted.csv").exit_code == 0
    assert run("sql", "model.json").exit_code == 0


def test_more_rows_of_a_person_need_more_noise(run: Run) -> None:
    noise = []
    for options in ((), ("--max-rows-per-person", 1), ("--max-rows-per-person", 5)):
        told = run(
            "plan", "--rows", 10_000, "--features", 5, "--standardize", "none", "--label-check", 0, *options, "--json"
        )
        noise.append(json.loads(told.stdout)["noise_per_row"])
    assert noise[0] == noise[1]
    assert noise[2] == pytest.approx(5 * noise[0], rel=0.01)


def test_a_claim_about_more_rows_than_the_noise_is_for_is_caught(run: Run, visits: Path) -> None:
    options = (
        "--schema",
        "schema.toml",
        "--person-id",
        "patient",
        "--max-rows-per-person",
        2,
        "--epsilon",
        1,
        "--standardize",
        "none",
    )
    run("train", visits, *options, "-o", "model.json")
    record = json.loads(Path("model.json").read_text())
    record["certificate"]["spent"]["problem"]["person_rows"] = 3
    Path("model.json").write_text(json.dumps(add_digest(record)))
    assert run("verify", "model.json").exit_code == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--person-id", "patent", "--max-rows-per-person", 2), "must have the column 'patent'"),
        (("--person-id", "patient"), "must be declared together"),
        (("--max-rows-per-person", 2), "must be declared together"),
        (("--person-id", "age", "--max-rows-per-person", 2), "neither the label nor a feature"),
        (("--person-id", "patient", "--max-rows-per-person", 2, "--algorithm", "scs13"), "proved for single rows only"),
    ],
    ids=str,
)
def test_what_cannot_be_promised_is_refused(
    run: Run, visits: Path, options: tuple[str | int, ...], message: str
) -> None:
    result = run("train", visits, "--schema", "schema.toml", "--epsilon", 1, *options, "-o", "model.json")
    assert result.exit_code == 1
    assert message in result.stderr
    assert not Path("model.json").exists()


def test_candidates_are_tried_for_persons_but_not_on_portions(run: Run, visits: Path) -> None:
    options = (
        "--schema",
        "schema.toml",
        "--person-id",
        "patient",
        "--max-rows-per-person",
        2,
        "--epsilon",
        6,
        "--grid",
    )
    tried = run("tune", visits, *options, "regularization=0.05,0.1", "-o", "model.json")
    assert tried.exit_code == 0, tried.output
    assert "of which at most 2 are used" in tried.stdout
    refused = run("tune", visits, *options, "regularization=0.05,0.1", "--method", "portions", "-o", "other.json")
    assert refused.exit_code == 1
    assert "a person_id must not be given for portions" in refused.stderr


def test_rows_beyond_those_that_count_change_nothing(run: Run, table: pa.Table, tmp_path: Path) -> None:
    """The same bits, whatever is in them."""
    (tmp_path / "schema.toml").write_text(
        'label = "sick"\nclasses = ["no", "yes"]\nperson_id = "patient"\nmax_rows_per_person = 3\n'
        "[numeric]\nage = [0, 100]\n"
    )
    ids, found = pa.array(np.arange(table.num_rows) % 500), []
    for ages in (
        table.column("age"),
        pa.concat_arrays([table.column("age").combine_chunks()[:1500], pa.nulls(500, pa.float64())]),
    ):
        rows = pa.table({"patient": ids, "age": ages, "sick": table.column("sick")})
        pq.write_table(rows, "rows.parquet")
        options = ("--epsilon", 1, "--seed", 1, "--noise-seed", 1, "-o", "model.json", "--overwrite")
        assert run("train", "rows.parquet", "--schema", "schema.toml", *options).exit_code == 0
        found.append(Model.load("model.json").weights.tobytes())
    assert found[0] == found[1]
