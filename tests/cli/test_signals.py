"""Ctrl-C and SIGTERM: a run that was asked to stop stops, whatever swallows the exception, and writes whole files."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

import boltdp
from boltdp._files.outputs import replace_file
from boltdp.cli import train
from boltdp.encoding.encode import Encoder
from boltdp.errors import DataError
from boltdp.kernel import loss_derivatives
from boltdp.model import Model

from .conftest import Run
from .test_bad_input import BEFORE, start

SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds after which a run that does not end is taken for one that never will.
HANGS = 20.0


def swallowing(function: Callable[..., Any], number: signal.Signals) -> Callable[..., Any]:
    """The function, after a signal whose exception got lost, as in an import that Arrow tries."""

    def swallowed(*args: Any, **kwargs: Any) -> Any:
        try:
            os.kill(os.getpid(), number)
            time.sleep(1.0)  # the handler comes first
        except KeyboardInterrupt:
            pass
        return function(*args, **kwargs)

    return swallowed


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "place", [(Encoder, "encode"), (loss_derivatives.DerivativeSums, "add"), (train, "train_model")]
)
def test_a_signal_that_a_library_swallows_ends_the_run_all_the_same(
    run: Run, rows: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str], number: signal.Signals
) -> None:
    model = rows.with_name("model.json")
    model.write_text(BEFORE)
    monkeypatch.setattr(*place, swallowing(getattr(*place), number))
    result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "--overwrite", "-o", "model.json")
    assert result.exit_code == 128 + number, result.output
    assert result.stdout == ""
    assert "interrupted; no output file was changed" in result.stderr
    assert model.read_text() == BEFORE
    # What was before is as before.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    monkeypatch.chdir(rows.parent)
    assert run("verify", rows).exit_code == 1  # not interrupted


@pytest.mark.parametrize("error", [DataError("the query cannot be run"), OSError("broken"), MemoryError()])
def test_an_error_that_a_library_makes_of_a_signal_is_told_as_an_interruption(
    run: Run, rows: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(train, "train_model", swallowing(fail, signal.SIGTERM))
    result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert result.exit_code == 128 + signal.SIGTERM
    assert result.stderr.endswith("error: interrupted; no output file was changed\n")


def test_a_signal_after_the_model_was_written_is_told_as_such(
    run: Run, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "print_model_report", swallowing(lambda *_, **__: None, signal.SIGTERM))
    result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert result.exit_code == 128 + signal.SIGTERM
    assert "interrupted; the output was written already" in result.stderr
    Model.load(rows.with_name("model.json")).verify()


def test_outside_the_commands_nobody_asks_to_stop(tmp_path: Path) -> None:
    with replace_file(tmp_path / "a.txt") as aside:
        aside.write_text("whole")
    assert (tmp_path / "a.txt").read_text() == "whole"


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_reading_rows_does_not_import_pandas(rows: Path, table: pa.Table, ending: str) -> None:
    """Arrow imports it by itself, and swallows the interrupt that comes meanwhile."""
    pa.csv.write_csv(table, rows.with_suffix(".csv"))
    program = "import sys\nfrom boltdp.cli import main\n"
    program += "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    assert not end.code\n"
    program += "assert 'pandas' not in sys.modules"
    for command in (
        ["train", f"rows.{ending}", "--schema", "schema.toml", "--epsilon", "1", "-o", "model.json"],
        ["predict", "model.json", f"rows.{ending}"],
    ):
        made = subprocess.run(
            [sys.executable, "-c", program, *command],
            cwd=rows.parent,
            env=os.environ | {"PYTHONPATH": str(Path(boltdp.__file__).parents[1])},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert made.returncode == 0, made.stderr.decode()


def signalled(run: Run, folder: Path, *, count: int, seed: int) -> list[float]:
    """Train so many times with a signal at a random moment of each; the seconds that each took to end."""
    run("synth", "many.parquet", "--rows", 100_000, "--dims", 10, "--schema", "many.toml")
    model, spool = folder / "model.json", folder / "spool"
    spool.mkdir()
    arguments = "train many.parquet --schema many.toml --epsilon 1 --passes 20 --spool spool --overwrite -o model.json"
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    whole, generator, taken = HANGS, random.Random(seed), list[float]()
    while len(taken) < count:
        number = SIGNALS[len(taken) % 2]
        model.write_text(BEFORE)
        began = time.monotonic()
        with start(*arguments.split(), **options) as process:
            try:
                # The first run has the time it needs, and so shows how long one takes.
                moment = generator.uniform(0.0, whole)
                process.wait(moment if whole < HANGS else None)
                whole = min(whole, time.monotonic() - began)
                assert process.returncode == 0
                continue
            except subprocess.TimeoutExpired:
                released = model.read_text() != BEFORE
                process.send_signal(number)
            sent = time.monotonic()
            try:
                _, message = process.communicate(timeout=HANGS)
            except subprocess.TimeoutExpired:
                process.kill()
                pytest.fail(f"{number.name} was ignored")
        taken.append(time.monotonic() - sent)
        if model.read_text() == BEFORE:
            # Before the command has begun, Python ends in its own ways.
            assert process.returncode != 0, message.decode()
        else:
            Model.load(model).verify()
            # A signal right before the release may come a moment too late, but then it is told.
            assert released or process.returncode != 0, f"{number.name} after {moment:.3f} of {whole:.3f} seconds"
        assert sorted(os.listdir(folder)) == ["many.parquet", "many.toml", "model.json", "spool"]
        assert os.listdir(spool) == []
    return taken


def test_a_signal_at_any_moment_ends_a_training(run: Run, tmp_path: Path) -> None:
    taken = signalled(run, tmp_path, count=12, seed=1)
    assert max(taken) < 10.0


@pytest.mark.slow
def test_two_hundred_signals_each_end_a_training_within_two_seconds(run: Run, tmp_path: Path) -> None:
    taken = signalled(run, tmp_path, count=200, seed=0)
    print(f"{len(taken)} signals, the longest took {max(taken):.2f} s to end a training")
    assert max(taken) < 2.0
