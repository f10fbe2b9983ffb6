"""Tasks that Spark runs again: whatever dies meanwhile, the model has the same bits, or there is an error."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from boltdp.engines.spark import PreparedBlocks, SparkEngine, executor_tasks
from boltdp.engines.spark.executor_tasks import CHANGED
from boltdp.engines.spark.prepared_rows import BlockInfo, StoredBlocks, choose_partition_bounds
from boltdp.engines.spark.session import silence_pyspark
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.row_permutation import compute_permuted_positions
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema

ROOT = Path(__file__).parents[2]
SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "exit", "kill"])
def test_model_has_the_same_bits_if_every_kind_of_task_fails_once(tmp_path: Path, how: str) -> None:
    """In a cluster of two executors: of an exception, of the end of a worker, and of an executor that is killed."""
    program = [sys.executable, "-m", "tests.spark.faulty", str(tmp_path), how]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # A cluster of one machine keeps its logs where Spark is, so that Spark is made to be here.
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(str(importlib.util.find_spec("pyspark").origin)).parent.iterdir():  # type: ignore[union-attr]
        (home / entry.name).symlink_to(entry)
    settings = {"PYTHONPATH": path, "SPARK_HOME": str(home)}
    done = subprocess.run(program, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "objective same CachedSumTask EncodeTask",
        "bolton same EncodeTask ScatterTask TrainTask",
        "sequential same EncodeTask GatherTask PassTask ScatterTask",
    ]
    logs = done.stdout + done.stderr + "".join(path.read_text() for path in (home / "work").rglob("std*"))
    assert ("a task of boltdp failed: ValueError" in logs) == (how == "raise")
    assert "secret value" not in logs


def test_a_replaced_row_moves_no_other_row(spark: Any) -> None:
    """Of 20,000 rows in 8 parts, by the places of all others before and after."""
    rows, parts = 20_000, 8
    ages = np.arange(rows) / rows * 100
    kept = []
    for value in (None, 99.0, -5.0):
        changed = ages.copy() if value is None else np.where(np.arange(rows) == 12_345, value, ages)
        table = pa.table({"age": changed, "sick": (ages > 50).astype(int)})
        engine = SparkEngine(spark.createDataFrame(table, "age double, sick long").coalesce(3), parts=parts)
        with engine.prepare(SCHEMA, Context(seed=5)) as prepared:
            assert isinstance(prepared, PreparedBlocks)
            assert len(prepared._blocks.bounds) - 1 == parts
            kept.append(np.concatenate([np.array(block) for block in prepared.read_blocks()]))
    at = int(compute_permuted_positions(12_345, 1, rows=rows, seed=5)[0])
    for other in kept[1:]:
        assert np.flatnonzero((kept[0] != other).any(axis=1)).tolist() == [at]


@pytest.mark.parametrize("permuted", [False, True])
def test_rows_that_are_computed_anew_and_differently_are_an_error(spark: Any, permuted: bool) -> None:
    """A source that gives other rows whenever it is asked, once Spark has lost what it had persisted."""

    def drawn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ages = np.random.default_rng().uniform(0, 100, len(batch))
            yield pa.RecordBatch.from_pydict({"age": ages, "sick": ages.astype(int) % 2})

    with silence_pyspark():
        frame = spark.range(1000).mapInArrow(drawn, "age double, sick long")
    with SparkEngine(frame, parts=2).prepare(SCHEMA, Context(seed=1), permuted=permuted) as prepared:
        sums = FeatureSums(prepared.feature_map, clip_norm=1.0)
        prepared.add_to_sums([sums])
        before = sums.value.tolist()
        # As if all executors were gone with what they had.
        assert isinstance(prepared, PreparedBlocks)
        stored = prepared._blocks.apply_permutations()
        for lost in (stored._named, stored.frame):
            lost.unpersist(blocking=True)
        with pytest.raises(DataError, match=f"^{CHANGED}$") as caught:
            prepared.add_to_sums([sums])
        assert caught.value.hint is not None
        with pytest.raises(DataError, match=f"^{CHANGED}$"):
            list(prepared.read_blocks())
        assert sums.value.tolist() == before


def some_blocks(rows: int = 100) -> Iterator[pa.RecordBatch]:
    packed = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    columns = {"part": [0], "number": [0], "start": [0], "digest": [b"x" * 16], "packed": [packed.tobytes()]}
    yield pa.RecordBatch.from_pydict({**columns, "fault": pa.array([None], pa.string())})


def scatter(digest: bytes = b"x" * 16) -> executor_tasks.ScatterTask:
    places = {(0, 0): (0, digest)}
    return executor_tasks.ScatterTask(places, ((0, 100, 3),), ((0, 30), (30, 100)), width=2, key=b"k" * 16)


def fault(batches: Iterator[pa.RecordBatch]) -> str | None:
    """What the last row of a result says is wrong."""
    *_, last = batches
    said: str | None = last.to_pylist()[-1]["fault"]
    return said


def test_a_block_that_is_not_the_first_one_made_is_not_shuffled() -> None:
    assert fault(scatter()(some_blocks())) is None
    assert fault(scatter(b"y" * 16)(some_blocks())) == CHANGED


@pytest.mark.parametrize("change", ["twice", "missing", "a fault"])
def test_chunks_that_come_twice_or_not_at_all_are_an_error(change: str) -> None:
    chunks = [chunk for chunk in scatter()(some_blocks()) if chunk["part"][0].as_py() == 1]
    settle = executor_tasks.GatherTask((0, 30, 100), 2)
    (block,) = settle(iter(chunks))
    assert block["start"][0].as_py() == 30
    one = chunks[0].to_pydict()
    slots, packed = one["slots"][0], executor_tasks.unmask_bytes(one["packed"][0])
    other = {
        "twice": {**one, "slots": [slots[:4] + slots[:4] + slots[8:]]},
        "missing": {**one, "slots": [slots[4:]], "packed": [executor_tasks.mask_bytes(packed[8:], b"k")]},
        "a fault": {**one, "fault": ["something else"]},
    }[change]
    changed = pa.RecordBatch.from_pydict(other, chunks[0].schema)
    assert fault(settle(iter([changed]))) == ("something else" if change == "a fault" else CHANGED)


def test_executors_with_another_boltdp_are_told() -> None:
    batch = pa.RecordBatch.from_pydict({"c0": [1.0]})
    with pytest.raises(DataError, match=r"^the executors must have boltdp 9\.9\.9, they have \d+\.\d+\.\d+$"):
        next(executor_tasks.Batches(("age",), False, "9.9.9").split_by_file(iter([batch])))


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("a secret: 0.123"), "a task of boltdp failed: ValueError"), (DataError("said"), None)],
)
def test_a_task_tells_nothing_of_what_went_wrong_but_our_own_words(error: Exception, told: str | None) -> None:
    class Failing(executor_tasks.Task):
        columns = executor_tasks.RESULTS

        def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            del batches
            raise error
            yield

    if told is None:
        assert fault(Failing()(iter([]))) == "said"
        return
    with pytest.raises(RuntimeError) as caught:
        next(Failing()(iter([])))
    assert str(caught.value) == told
    assert caught.value.__suppress_context__


def test_too_few_parts_are_refused(spark: Any) -> None:
    with pytest.raises(ParameterError, match=r"^parts must be >= 1, got 0$"):
        SparkEngine(spark.range(1), parts=0)
    assert choose_partition_bounds(3, width=2, scanned=1, parts=8) == (0, 1, 2, 3)


def test_places_are_known_and_nothing_of_the_rows(spark: Any) -> None:
    frame = spark.range(10).selectExpr("CAST(id AS double) AS age", "id % 2 AS sick")
    with SparkEngine(frame).prepare(SCHEMA, Context(seed=1), permuted=False) as prepared:
        assert isinstance(prepared, PreparedBlocks)
        stored: StoredBlocks = prepared._blocks.apply_permutations()
        assert sum(place.rows for place in stored.infos) == 10
        assert {type(place) for place in stored.infos} == {BlockInfo}
