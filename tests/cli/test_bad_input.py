"""Bad input: a clear error, the right exit code, an existing model untouched, and no value of the data anywhere."""

from __future__ import annotations

import errno
import os
import pty
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import boltdp
from boltdp.cli import train

from .conftest import SCHEMA, SECRET, Run

BEFORE = "the model that was here before"


def replace_in_schema(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "schema.toml").write_text(SCHEMA.replace(old, new))


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def nothing(folder: Path) -> None:
    del folder


HEADER = "age,pulse,ward,sick\n"
ROW = f"50,80,{SECRET},yes\n"

FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "epsilon zero": (nothing, "rows.parquet --epsilon 0", "epsilon must be a finite number > 0, got 0.0"),
    "epsilon negative": (nothing, "rows.parquet --epsilon -1", "epsilon must be a finite number > 0, got -1.0"),
    "epsilon NaN": (nothing, "rows.parquet --epsilon nan", "epsilon must be a finite number > 0, got nan"),
    "epsilon infinite": (nothing, "rows.parquet --epsilon inf", "epsilon must be a finite number > 0, got inf"),
    "epsilon no number": (nothing, "rows.parquet --epsilon much", "'much' is not a valid float"),
    "no epsilon": (nothing, "rows.parquet", "give either --epsilon or --noiseless"),
    "epsilon and noiseless": (nothing, "rows.parquet --epsilon 1 --noiseless", "give either --epsilon or --noiseless"),
    "delta and noiseless": (nothing, "rows.parquet --delta 0.1 --noiseless", "--delta and --noise-seed are for noise"),
    "delta one": (nothing, "rows.parquet --epsilon 1 --delta 1", "delta must be in [0, 1), got 1.0"),
    "delta negative": (nothing, "rows.parquet --epsilon 1 --delta -0.1", "delta must be in [0, 1), got -0.1"),
    "step too large": (nothing, "rows.parquet --epsilon 1 --step-size 9", "at most 2/beta = 8, got 9"),
    "batch larger than the data": (nothing, "rows.parquet --epsilon 1 --batch-size 2001", "2000, got 2001"),
    "no passes": (nothing, "rows.parquet --epsilon 1 --passes 0", "passes must be >= 1, got 0"),
    "passes without passes": (
        nothing,
        "rows.parquet --epsilon 1 --algorithm objective --passes 10",
        "passes must not be given for the algorithm objective, which has none",
    ),
    "loss parameter of a loss without one": (
        nothing,
        "rows.parquet --epsilon 1 --loss logistic --loss-parameter 0.1",
        "loss_parameter must not be given for the loss 'logistic', which has none",
    ),
    "no row": (write("d.csv", HEADER), "d.csv --epsilon 1", "at least 2 rows, got 0"),
    "one row": (write("d.csv", HEADER + ROW), "d.csv --epsilon 1", "at least 2 rows, got 1"),
    "label not that of the schema": (
        nothing,
        "rows.parquet --epsilon 1 --label age",
        "the label of the schema, which has the label 'sick'",
    ),
    "no label in the schema": (replace_in_schema('label = "sick"', ""), "rows.parquet --epsilon 1", "declare 'label'"),
    "no label in the data": (replace_in_schema('"sick"', '"cured"'), "rows.parquet --epsilon 1", "column 'cured'"),
    "missing column": (replace_in_schema("pulse", "height"), "rows.parquet --epsilon 1", "the column 'height'"),
    "text in a numeric column": (
        replace_in_schema('[categorical]\nward = ["A", "B", "C"]', "ward = [0, 1]"),
        "rows.parquet --epsilon 1",
        "column 'ward' must have numbers",
    ),
    "bounds missing": (replace_in_schema("[30, 200]", "[]"), "rows.parquet --epsilon 1", "bounds of 'pulse' must be"),
    "bounds reversed": (replace_in_schema("[30, 200]", "[200, 30]"), "rows.parquet --epsilon 1", "low < high"),
    "one class": (replace_in_schema('["no", "yes"]', '["no"]'), "rows.parquet --epsilon 1", "at least 2 values"),
    "schema no TOML": (write("schema.toml", "label = = 1"), "rows.parquet --epsilon 1", "the schema must be TOML"),
    "bad rows refused": (nothing, "rows.parquet --epsilon 1 --on-bad-row error", "must be complete"),
    "ragged CSV": (
        write("d.csv", HEADER + ROW + f"1,2,{SECRET}\n" + ROW),
        "d.csv --epsilon 1",
        "4 cells of the header",
    ),
    "empty CSV": (write("d.csv", ""), "d.csv --epsilon 1", "must start with a header"),
    "CSV not UTF-8": (write("d.csv", HEADER.encode() + b"1,2,\xff\xfe,yes\n" * 3), "d.csv --epsilon 1", "UTF-8"),
    "Parquet of text": (write("d.parquet", ROW), "d.parquet --epsilon 1", "damaged or incomplete"),
    "DuckDB of text": (write("d.duckdb", ROW), "d.duckdb --table t --epsilon 1", "no DuckDB file"),
    "no such file": (nothing, "none.parquet --epsilon 1", "no file is named 'none.parquet'"),
    "unknown kind of file": (write("d.xlsx", ROW), "d.xlsx --epsilon 1", "must be CSV, JSON lines, Parquet, Arrow or"),
    "no source": (nothing, "--epsilon 1", "give SOURCE"),
    "table of a file": (nothing, "rows.parquet --table t --epsilon 1", "only with a database"),
    "unknown option": (nothing, "rows.parquet --epsilon 1 --secret", "No such option"),
    "unknown choice": (nothing, "rows.parquet --epsilon 1 --loss hinge", "'hinge' is not one of"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_train_refuses_and_leaves_the_old_model(run: Run, rows: Path, name: str) -> None:
    prepare, arguments, message = FAULTS[name]
    prepare(rows.parent)
    model = rows.with_name("model.json")
    model.write_text(BEFORE)
    files = sorted(os.listdir(rows.parent))
    result = run("train", "--schema", "schema.toml", "--overwrite", "--anyway", "-o", "model.json", *arguments.split())
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert SECRET not in result.output
    assert model.read_text() == BEFORE
    assert sorted(os.listdir(rows.parent)) == files


def test_a_parquet_file_cut_short_is_told_without_quoting_it(run: Run, rows: Path) -> None:
    whole = rows.read_bytes()
    for length in (len(whole) // 2, len(whole) - 4, 3):
        rows.write_bytes(whole[:length])
        result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
        assert result.exit_code == 1
        assert "damaged or incomplete" in result.stderr
        assert SECRET not in result.output
        assert not rows.with_name("model.json").exists()


@pytest.mark.usefixtures("rows")
def test_text_in_a_numeric_column_of_a_csv_is_a_missing_value(run: Run, table: pa.Table) -> None:
    texts = pa.array([SECRET if i % 7 == 0 else "50" for i in range(2000)])
    pa.csv.write_csv(table.set_column(0, "age", texts), "d.csv")
    result = run("train", "d.csv", "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert result.exit_code == 0
    assert SECRET not in result.output


def test_train_without_a_schema_says_how_to_make_one(run: Run, rows: Path) -> None:
    result = run("train", rows, "--label", "sick", "--epsilon", 1, "-o", "model.json")
    assert result.exit_code == 1
    assert "give --schema" in result.stderr
    assert "hint: `boltdp schema" in result.stderr
    assert "--label sick" in result.stderr


def test_a_hint_has_no_password_of_the_address_in_it(run: Run) -> None:
    address = f"https://me:{SECRET}@host/rows.csv?signature={SECRET}"
    result = run("train", address, "--label", "sick", "--epsilon", 1, "-o", "model.json")
    assert "`boltdp schema https://host/rows.csv --label sick" in " ".join(result.stderr.split())
    assert SECRET not in result.output


@pytest.mark.parametrize("output", ["no/such/folder/model.json", "rows.parquet/model.json", ".", "/dev/full"])
@pytest.mark.usefixtures("rows")
def test_an_output_that_cannot_be_written_is_told_before_a_row_is_read(run: Run, output: str) -> None:
    result = run("train", "not-even-there.parquet", "--schema", "schema.toml", "--epsilon", 1, "-o", output)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: the output '{output}' ")
    assert not Path("/dev/full").is_file()


def test_predict_refuses_other_outputs_and_models_without_probabilities(run: Run, rows: Path, model: Path) -> None:
    result = run("predict", model, rows, "-o", "out.xlsx")
    assert result.exit_code == 1
    assert ".csv or .parquet" in result.stderr
    run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "--loss", "huber", "-o", "huber.json")
    result = run("predict", "huber.json", rows, "--proba", "-o", "out.csv")
    assert result.exit_code == 1
    assert "gives no probabilities" in result.stderr
    assert not Path("out.csv").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "boltdp-model"}', "\0", '{"format": NaN}'])
def test_a_file_that_is_no_model_is_refused(run: Run, rows: Path, content: str) -> None:
    Path("model.json").write_text(content)
    for command in (
        ("verify", "model.json"),
        ("show", "model.json"),
        ("sql", "model.json"),
        ("predict", "model.json", rows),
    ):
        result = run(*command)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")


def test_plan_and_synth_refuse_impossible_numbers(run: Run) -> None:
    assert "give either --schema, or --features with --classes or --number" in run("plan", "--rows", 9).stderr
    assert "at least 2 rows, got 1" in run("plan", "--rows", 1, "--features", 3).stderr
    assert "classes must be >= 2, got 1" in run("plan", "--rows", 9, "--features", 3, "--classes", 1).stderr
    assert "dims must be >= 1, got 0" in run("plan", "--rows", 9, "--features", 0).stderr
    assert "rows must be >= 1, got 0" in run("synth", "out.parquet", "--rows", 0, "--dims", 1).stderr
    assert "must end in .parquet or .duckdb" in run("synth", "out.csv", "--rows", 1, "--dims", 1).stderr
    assert os.listdir() == []


def test_an_unexpected_exception_is_ours_and_its_text_is_not_shown(
    run: Run, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(train, "train_model", fail)
    arguments = ("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "RuntimeError in cli/train.py:" in result.stderr
    assert "please report" in result.stderr
    assert SECRET not in result.output
    monkeypatch.setenv("BOLTDP_DEBUG", "1")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "may show private values" in result.stderr
    assert SECRET in result.stderr


# ---- real processes ---------------------------------------------------------------------------------------------


def start(*arguments: object, environment: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    package = {"PYTHONPATH": str(Path(boltdp.__file__).parents[1])}
    command = [sys.executable, "-m", "boltdp", *map(str, arguments)]
    return subprocess.Popen(command, env=inherited | package | (environment or {}), **options)


def read_all(terminal: int) -> bytes:
    text = b""
    while True:
        try:
            text += os.read(terminal, 4096)
        except OSError:  # the process closed its end
            os.close(terminal)
            return text


@pytest.mark.usefixtures("run")
def test_a_disk_that_fills_up_leaves_the_old_model_and_no_rest(rows: Path) -> None:
    model = rows.with_name("model.json")
    model.write_text(BEFORE)
    files = sorted(os.listdir(rows.parent))

    def little_space() -> None:
        # Python ignores SIGXFSZ, so a longer file is an error of the write, as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

    arguments = ("train", rows, "--schema", "schema.toml", "--epsilon", 1, "--overwrite", "-o", "model.json")
    process = start(*arguments, preexec_fn=little_space, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, message = process.communicate()
    assert process.returncode == 1
    assert message.decode() == f"error: the output 'model.json' cannot be written: {os.strerror(errno.EFBIG)}\n"
    assert model.read_text() == BEFORE
    assert sorted(os.listdir(rows.parent)) == files


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_told(rows: Path, model: Path) -> None:
    with open("/dev/full", "w") as full:
        process = start("predict", model, rows, stdout=full, stderr=subprocess.PIPE)
        _, message = process.communicate()
    assert process.returncode == 1
    assert message.decode() == f"error: the standard output cannot be written: {os.strerror(errno.ENOSPC)}\n"


def test_a_broken_pipe_is_quiet(rows: Path, model: Path) -> None:
    feature_map, writing = os.pipe()
    os.close(feature_map)
    process = start("predict", model, rows, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    _, message = process.communicate()
    assert process.returncode == 1
    assert message == b""


def test_interrupt_in_a_pass_writes_no_model_and_removes_the_spool(run: Run, tmp_path: Path) -> None:
    run("synth", "many.parquet", "--rows", 400_000, "--dims", 50, "--schema", "many.toml")
    spool = tmp_path / "spool"
    spool.mkdir()
    (tmp_path / "model.json").write_text(BEFORE)
    # With a terminal on standard error there is a progress bar, which says when a pass has begun.
    shown, terminal = pty.openpty()
    arguments = "--epsilon 1 --passes 1000000 --spool spool --schema many.toml --overwrite -o model.json"
    process = start("train", "many.parquet", *arguments.split(), stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    text = b""
    while b"pass 2 of" not in text and process.poll() is None:
        text += os.read(shown, 4096)
    process.send_signal(signal.SIGINT)
    text += read_all(shown)
    assert process.communicate()[0] == b""
    assert process.returncode == 130
    assert b"interrupted; no output file was changed" in text
    assert b"Traceback" not in text
    assert (tmp_path / "model.json").read_text() == BEFORE
    assert os.listdir(spool) == []
    assert sorted(os.listdir(tmp_path)) == ["many.parquet", "many.toml", "model.json", "spool"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_query_leaves_no_private_rows_behind(tmp_path: Path, rows: Path, number: signal.Signals) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    duckdb.connect(str(tmp_path / "rows.duckdb")).close()
    # It takes years to count, all of them inside DuckDB.
    query = "SELECT a.i AS age, b.j AS pulse, 'A' AS ward, 'no' AS sick FROM range(10**9) a(i), range(10**9) b(j)"
    query += " WHERE a.i + b.j < 0"
    arguments = ("--query", query, "--spool", spool, "--schema", rows.with_name("schema.toml"), "--epsilon", 1)
    process = start(
        "train", tmp_path / "rows.duckdb", *arguments, "-o", tmp_path / "model.json", stderr=subprocess.PIPE
    )
    while not (folders := list(spool.iterdir())) and process.poll() is None:
        os.sched_yield()
    (folders[0] / "duckdb_temp_storage.tmp").write_text(SECRET)  # what DuckDB would spill
    process.send_signal(number)
    _, message = process.communicate()
    assert process.returncode == 128 + number
    assert message.decode().endswith("error: interrupted; no output file was changed\n")
    assert list(spool.iterdir()) == []
    assert not (tmp_path / "model.json").exists()


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_that_want_them(tmp_path: Path, environment: dict[str, str], coloured: bool) -> None:
    shown, terminal = pty.openpty()
    process = start(
        "verify", tmp_path / "none.json", environment={"TERM": "xterm-256color", **environment}, stderr=terminal
    )
    os.close(terminal)
    text = read_all(shown)
    assert process.wait() == 1
    assert b"error:" in text
    assert (b"31m" in text) == coloured


@pytest.mark.parametrize("megabytes", [300, 600, 1000, 1400])
def test_too_little_memory_is_told_and_not_the_c_librarys_end(tmp_path: Path, rows: Path, megabytes: int) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 10**6, megabytes * 10**6))

    arguments = (
        "train",
        rows,
        "--schema",
        rows.with_name("schema.toml"),
        "--epsilon",
        1,
        "-o",
        tmp_path / "model.json",
    )
    process = start(*arguments, preexec_fn=limited, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 1
    assert message.decode().startswith(f"error: there is not enough memory: the process may have {megabytes:,} MB")
    assert len(message.splitlines()) == 1


def test_a_thread_that_cannot_be_started_is_a_lack_of_memory(
    run: Run, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(train, "train_model", fail)
    result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert result.exit_code == 1
    assert result.stderr == "error: there is not enough memory\n"
