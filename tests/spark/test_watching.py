"""Nothing that watches Spark sees a row, a sum or a model before noise: not its event log, nor its own log."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from tests.spark.connect import connect_server
from tests.spark.watched import rows

ROOT = Path(__file__).parents[2]


def texts(word: bytes) -> set[bytes]:
    """How the 8 bytes of a number could stand in a log: as they are, in hexadecimal or base64, or as its digits.

    In base64, they may be at any of three places, and what their neighbours decide is left out.
    """
    (number,) = struct.unpack("<d", word)
    hexadecimal = {form for data in (word, word[::-1]) for form in (data.hex(), data.hex().upper())}
    whole = {str(int.from_bytes(word, "little")), str(int.from_bytes(word, "little", signed=True))}
    digits = {repr(number), repr(abs(number))} if 1e-12 < abs(number) < 1e12 else set()
    coded = {base64.b64encode(bytes(shift) + word)[(0, 2, 3)[shift] : -4] for shift in range(3)}
    return {word, *coded, *(text.encode() for text in (hexadecimal | whole | digits))}


def everything(folder: Path) -> bytes:
    """All that was written there, but for the rows."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".parquet":
            data = path.read_bytes()
            if path.suffix == ".zstd":
                data = zstandard.ZstdDecompressor().stream_reader(data).read()
            found.append(data)
    return b"\n".join(found)


def test_a_number_is_found_in_whatever_notation_it_is_written() -> None:
    word = struct.pack("<d", 12.345678901234567)
    around = [b"ab" + word + b"cdefgh", b"a" + word + b"cdefgh", b"abc" + word + b"cdefgh"]
    (whole,) = struct.unpack("<q", word)
    written = [b"12.345678901234567", word.hex().encode(), str(whole).encode(), *map(base64.b64encode, around)]
    assert all(any(text in line for text in texts(word)) for line in written)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_nothing_that_watches_spark_sees_a_row_a_sum_or_a_model(tmp_path: Path, kind: str) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "events").mkdir()
    for part in range(2):
        pq.write_table(rows().slice(350 * part, 350), tmp_path / "rows" / f"{part}.parquet")
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{tmp_path / 'events'}",
        "spark.eventLog.logBlockUpdates.enabled": "true",
        "spark.eventLog.longForm.enabled": "true",
        "spark.sql.debug.maxToStringFields": "1000",
        "spark.sql.maxPlanStringLength": str(2**30),
        "spark.log.level": "INFO",
    }
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    table = f"parquet.`{tmp_path / 'rows'}`"

    def run(address: str) -> list[bytes]:
        command = [sys.executable, "-m", "tests.spark.watched", address, table]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        (tmp_path / "client.log").write_text(done.stderr)
        return [bytes.fromhex(word) for word in json.loads(done.stdout.splitlines()[-1])]

    if kind == "classic":
        arguments = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        environment["PYSPARK_SUBMIT_ARGS"] = " ".join([*arguments, "pyspark-shell"])
        secret = run("local[2]")
    else:
        with connect_server(tmp_path, settings) as address:
            secret = run(address)
    written = everything(tmp_path)
    # They are the logs of these trainings: the tasks are named, and jobs were run.
    assert all(name in written for name in (b"MapInArrow Encode(", b"MapInArrow Train(", b"SparkListenerJobEnd"))
    assert len(secret) > 300
    cells = rows().to_pydict()
    numbers = [struct.pack("<d", number) for number in (*cells["age"], *cells["dose"])]
    assert not [text for word in (*secret, *numbers) for text in texts(word) if text in written]
    assert b"Unterwurmbach" not in written
