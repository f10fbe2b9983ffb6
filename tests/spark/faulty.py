"""A program that trains in a cluster of two executors whose tasks fail, each kind of them once, and prints what it got.

`python -m tests.spark.faulty FOLDER HOW`: HOW is "kill" (the executor), "exit" (the Python worker) or "raise".
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from boltdp.engines import open_source
from boltdp.engines.base import Engine
from boltdp.engines.spark import SparkEngine, executor_tasks, prepared_rows
from boltdp.engines.spark.session import Session
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.train import train

ROWS, DIMS = 20_000, 5
SCHEMA = make_array_schema(dims=DIMS, classes=(0, 1), clip_norm=2.0)
BOLTON = Settings(epsilon=1.0, algorithm="bolton", seed=7, noise_seed=1, passes=2, partitions=2)
#: Each has some tasks of its own.
SETTINGS = {
    "objective": Settings(epsilon=1.0, algorithm="objective", seed=7, noise_seed=1),
    "bolton": BOLTON,
    "sequential": replace(BOLTON, partitions=1),
}
TASKS = {
    "objective": ("EncodeTask", "CachedSumTask"),
    "bolton": ("EncodeTask", "ScatterTask", "TrainTask"),
    "sequential": ("EncodeTask", "ScatterTask", "GatherTask", "PassTask"),
}


def rows() -> pa.Table:
    X = np.random.default_rng(0).normal(0, 0.5, (ROWS, DIMS))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), DIMS)
    return pa.table({"x": vectors.cast(pa.list_(pa.float64())), "label": (X[:, 0] > 0).astype(int)})


def fails_once(task: type[executor_tasks.Task], folder: Path, how: str) -> type[executor_tasks.Task]:
    """The task, but the first that has begun to give results fails."""
    work, flag = task.process_partition, folder / task.__name__

    def failing(self: executor_tasks.Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        results = work(self, batches)
        for number, one in enumerate(results):
            yield one
            if number == 0:
                fail_once(flag, how)

    return type(task.__name__, (task,), {"process_partition": failing})


def fail_once(flag: Path, how: str) -> None:
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if how == "raise":
        raise ValueError("a secret value: 0.123456789")
    if how == "exit":
        os._exit(3)
    # A worker is a child of a daemon, which is one of the executor.
    java = next(process for process in psutil.Process().parents() if "java" in process.name())
    os.kill(java.pid, signal.SIGKILL)
    signal.pause()


def trained(engine: Engine, name: str) -> str:
    return train(engine, SCHEMA, SETTINGS[name]).weights.tobytes().hex()


def main(folder: Path, how: str) -> None:
    parts = folder / "rows"
    parts.mkdir()
    for number in range(4):
        pq.write_table(rows().slice(number * ROWS // 4, ROWS // 4), parts / f"{number}.parquet")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # its processes listen there
    session = Session.open("local-cluster[2,1,1024]")
    plain = {name: getattr(executor_tasks, name) for names in TASKS.values() for name in names}
    for algorithm, names in TASKS.items():
        (folder / algorithm).mkdir()
        # Passes are made over rows where they are, if they are too many for one executor.
        prepared_rows.ONE_PLACE_BYTES = 0 if algorithm == "sequential" else 1 << 30
        for name in names:
            setattr(executor_tasks, name, fails_once(plain[name], folder / algorithm, how))
        engine = SparkEngine(session.spark.read.parquet(str(parts)), session=session, parts=3)
        same = trained(engine, algorithm) == trained(open_source(rows()), algorithm)
        failed = sorted(path.name for path in (folder / algorithm).iterdir())
        print(algorithm, "same" if same else "different", *failed, flush=True)
    session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
