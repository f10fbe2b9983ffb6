from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.selection import PortionSelection, PublicSelection, Selection, TrialSelection

from .conftest import SECRET, Run, find_events
from .test_bad_input import start

GRID = ("--grid", "passes=2,5", "--grid", "step-size=0.1,0.5")
TUNE = ("--schema", "schema.toml", "--epsilon", 10, "-o", "model.json", *GRID)


def test_tune_writes_a_model_that_verifies_and_says_how_it_was_chosen(run: Run, rows: Path) -> None:
    result = run("tune", rows, *TUNE, "--method", "portions")
    assert result.exit_code == 0, result.output
    assert "(ε = 10)-differentially private" in result.stdout
    certificate = Model.load("model.json").certificate
    selection = certificate.selection
    assert isinstance(selection, PortionSelection)
    assert (selection.candidates, selection.rows, certificate.rows) == (4, 2000, 2000)
    assert certificate.problem.rows == 400
    # A row is in one portion: each candidate, and the choice, has all that the label check and standardizing left.
    left = Budget(10.0).subtract(Budget(0.1)).take_share(0.05)[1]
    assert {part.budget for part in selection.trained} == {Budget(selection.epsilon or 0.0)} == {left}
    assert f"candidate {selection.chosen + 1} of 4" in result.stdout
    assert "step size" in result.stdout
    assert SECRET not in result.output
    verified = run("verify", "model.json")
    assert verified.exit_code == 0
    assert "Certificate verified." in verified.stdout
    assert f"candidate {selection.chosen + 1} of 4" in verified.stdout


@pytest.mark.parametrize(
    ("options", "kind", "expected"),
    [
        (("--trials", 20), TrialSelection, {"rows": 2000, "mean": 20.0}),
        (("--public-rows", 500), PublicSelection, {"rows": 1500, "public_rows": 500}),
        (("--public", "public.parquet"), PublicSelection, {"rows": 2000, "public_rows": 300}),
    ],
)
def test_tune_knows_other_ways(
    run: Run,
    rows: Path,
    table: pa.Table,
    options: tuple[object, ...],
    kind: type[Selection],
    expected: dict[str, float],
) -> None:
    pa.parquet.write_table(table.slice(0, 300), "public.parquet")
    result = run("tune", rows, *TUNE, *options, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["private"]
    (event,) = find_events(record, kind.kind)
    assert event["chosen"] in range(4)
    assert {name: event[name] for name in expected} == expected
    selection = Model.load("model.json").certificate.selection
    assert type(selection) is kind
    assert selection is not None
    assert (selection.chosen, selection.candidates) == (event["chosen"], 4)
    assert {name: getattr(selection, name) for name in expected} == expected
    assert record["rows"] == expected["rows"]
    assert ("rows are treated as public data" in result.stderr) == (kind is PublicSelection)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--grid", "epsilon=1,2"), "--grid must be over some of regularization, passes"),
        (("--grid", "radius=a"), "--grid radius must be a number, got 'a'"),
        (("--grid", "averaging=best"), "--grid averaging must be one of last, all, tail, got 'best'"),
        (("--grid", "passes=3"), "--grid must be given once for each name"),
        (("--public", "x.csv", "--public-rows", 5), "give either --public or --public-rows"),
        (("--public-rows", 5000), "a slice must have"),
    ],
)
def test_a_bad_request_is_one_sentence_and_writes_nothing(
    run: Run, rows: Path, options: tuple[object, ...], message: str
) -> None:
    result = run("tune", rows, *TUNE, *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert not Path("model.json").exists()


def test_compare_prints_a_table_and_keeps_results_and_a_picture(run: Run, rows: Path) -> None:
    command = ("compare", rows, "--schema", "schema.toml", "--epsilon", "0.1,1", "--repeats", 2, "--passes", 2)
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert "NOT PRIVATE" in result.stdout
    assert "for non-sensitive data" in result.stderr
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith(("bolton", "noiseless"))]
    assert [line[:2] for line in lines] == [["noiseless", "(not"], ["bolton", "0.1"], ["bolton", "1"]]
    assert Path("comparison.png").read_bytes().startswith(b"\x89PNG")
    first = json.loads(Path("comparison.json").read_text())
    assert len(first["runs"]) == 6
    assert SECRET not in result.output + Path("comparison.json").read_text()
    more = run(*command[:-3], 3, "--passes", 2, "--json")
    assert more.exit_code == 0, more.output
    assert json.loads(more.stdout)["runs"][:6] == first["runs"]
    assert len(json.loads(more.stdout)["runs"]) == 9


def test_compare_goes_on_after_an_interrupt(run: Run, rows: Path) -> None:
    options = ("--schema", "schema.toml", "--epsilon", "1", "--algorithms", "bolton", "--passes", 20)
    process = start("compare", rows, *options, "--repeats", 100_000, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not Path("comparison.json").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate()
    assert process.returncode == 130
    assert b"the same command goes on from there" in message
    assert b"Traceback" not in message
    kept = json.loads(Path("comparison.json").read_text())["runs"]
    assert len(kept) >= 1
    result = run("compare", rows, *options, "--repeats", len(kept) + 1, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["runs"][:-1] == kept


def test_compare_never_mixes_results(run: Run, rows: Path) -> None:
    command = ("compare", rows, "--schema", "schema.toml", "--epsilon", "1", "--repeats", 1)
    assert run(*command).exit_code == 0
    before = Path("comparison.json").read_text()
    other = run(*command, "--passes", 1)
    assert other.exit_code == 1
    assert "the results so far are of other data or settings" in other.stderr
    assert Path("comparison.json").read_text() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--epsilon", "a,b"), "--epsilon must be numbers with commas between them, got 'a,b'"),
        (("--epsilon", "1", "--algorithms", "magic"), "algorithms must be some of"),
        (("--epsilon", "1", "--test", "missing.csv"), "missing.csv"),
    ],
)
def test_a_bad_comparison_is_refused(run: Run, rows: Path, options: tuple[str, ...], message: str) -> None:
    result = run("compare", rows, "--schema", "schema.toml", *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert not Path("comparison.json").exists()
