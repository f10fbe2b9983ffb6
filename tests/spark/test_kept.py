"""Blocks that executors keep: private, found again, done without where they are gone, and gone at the end."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boltdp.engines.spark import PreparedBlocks, SparkEngine, block_cache
from boltdp.engines.spark.session import Session
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.losses import Logistic
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema

SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))


@pytest.fixture
def prepared(spark: Any) -> Iterator[PreparedBlocks]:
    frame = spark.range(0, 1000, 1, 3).selectExpr("CAST(id AS double) / 10 AS age", "id % 2 AS sick")
    with SparkEngine(frame).prepare(SCHEMA, Context(seed=1), permuted=False) as rows:
        assert isinstance(rows, PreparedBlocks)
        yield rows


def files(directory: Path) -> list[Path]:
    return [path for folder in directory.glob("boltdp-*") for path in folder.iterdir()]


def moments(prepared: PreparedBlocks) -> list[Any]:
    sums = FeatureSums(prepared.feature_map, clip_norm=1.0)
    prepared.add_to_sums([sums])
    found: list[Any] = sums.value.tolist()
    return found


def test_kept_blocks_are_private_and_gone_when_rows_are_closed(directory: Path, prepared: PreparedBlocks) -> None:
    assert len(files(directory)) == 3
    assert sum(path.stat().st_size for path in files(directory)) == 1000 * 2 * 4
    for path in files(directory):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    prepared.close()
    assert list(directory.glob("boltdp-*")) == []


@pytest.mark.parametrize("damage", ["gone", "shorter", "folder gone"])
def test_blocks_that_are_not_kept_any_more_are_those_that_spark_has(
    directory: Path, prepared: PreparedBlocks, damage: str
) -> None:
    expected = moments(prepared)
    before = sorted(path.name for path in files(directory))
    if damage == "folder gone":
        for path in files(directory):
            path.unlink()
        for folder in directory.glob("boltdp-*"):
            folder.rmdir()
    elif damage == "gone":
        files(directory)[0].unlink()
    else:
        os.truncate(files(directory)[0], 8)
    assert moments(prepared) == expected
    # They are kept again.
    assert sorted(path.name for path in files(directory)) == before
    assert moments(prepared) == expected


def test_sums_read_kept_blocks_and_no_others(directory: Path, prepared: PreparedBlocks) -> None:
    """What is in the files is what is summed: the tests above would not see it if they were never read."""
    expected = moments(prepared)
    (path, *_) = files(directory)
    rows = np.fromfile(path, np.float32).reshape(-1, 2)
    rows[:, 1] = 0
    rows.tofile(path)
    assert moments(prepared) != expected


def test_rows_of_a_sample_are_kept_beside_the_blocks_and_spark_knows_nothing_of_them(
    directory: Path, prepared: PreparedBlocks
) -> None:
    """How many they are depends on what is in the rows, and what Spark stores or moves has its size in its logs."""

    def summed(rows: PreparedBlocks) -> list[Any]:
        sums = DerivativeSums(Logistic(), np.ones((1, 2)), feature_map=rows.feature_map, share=0.1)
        rows.add_to_sums([sums])
        return [sums.rows, *sums.value.ravel().tolist()]

    expected, stored = summed(prepared), set(files(directory))
    with prepared.open_sample(0.1) as few:
        for damage in (False, False, True):
            if damage:
                for path in files(directory):
                    path.unlink()
            assert summed(few) == expected
        assert few._blocks is prepared._blocks
        summed(few)
    beside = set(files(directory)) - stored
    assert len(beside) == len(stored)
    assert sum(path.stat().st_size for path in beside) == expected[0] * 2 * 4
    prepared.close()
    assert files(directory) == []


def test_nothing_is_kept_where_spark_encrypts(spark: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_is_encrypted", True)
    frame = spark.range(100).selectExpr("CAST(id AS double) AS age", "id % 2 AS sick")
    with SparkEngine(frame).prepare(SCHEMA, Context(seed=1), permuted=False) as prepared:
        assert files(directory) == []
        assert isinstance(prepared, PreparedBlocks)
        assert moments(prepared)
    session = Session(spark)
    assert session.make_cache_name() is None
    assert session.memory_bytes == sys.maxsize


def test_there_may_be_no_place_to_keep_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = np.ones((3, 2), np.float32)
    for place in (None, str(tmp_path / "nowhere")):
        if place is None:
            monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
        else:
            monkeypatch.setenv("SPARK_LOCAL_DIRS", place)
        block_cache.save_block("run", "block", rows)
        assert block_cache.load_block("run", "block", rows=3, width=2) is None
        block_cache.restart_timeout("run")
        block_cache.remove_blocks("run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["of the executor", "of its use"])
def test_kept_blocks_go_by_themselves(tmp_path: Path, end: str) -> None:
    folder = tmp_path / "boltdp-run"
    folder.mkdir()
    (folder / "block").write_bytes(b"private")
    with subprocess.Popen(["sleep", "600"]) as executor:
        watching = subprocess.Popen(["sh", "-c", block_cache.WATCHDOG, "sh", str(folder), str(executor.pid)])
        time.sleep(0.5)
        assert (folder / "block").exists()
        if end == "of the executor":
            executor.kill()
            executor.wait()
        else:
            long_ago = time.time() - 60 * (block_cache.MINUTES + 1)
            os.utime(folder, (long_ago, long_ago))
        watching.wait(60)
        assert not folder.exists()
        executor.kill()
