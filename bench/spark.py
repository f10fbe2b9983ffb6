"""Training in Spark on this machine, local[2]: a scan and a pass over the arrays engine's, MLlib beside it, and sizes.

Each size is measured in a process of its own, with a Spark of its own that has been warmed up by few rows: from Parquet
files for how the time grows, and from a cached DataFrame beside MLlib's LogisticRegression on the same. By default they
are 1 and 10 million rows; --rows 40000000 adds a third size to what grows, which takes 8 GB of disk three times over.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from bench.ratio import Ratio
from boltdp.engines import open_source
from boltdp.engines.base import Engine
from boltdp.engines.local_store import find_spool_directory
from boltdp.engines.prepared_rows import Partition, PreparedRows
from boltdp.engines.spark import SparkEngine
from boltdp.engines.spark.session import Session
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.sgd import State
from boltdp.losses import Logistic
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.run_context import Context
from boltdp.settings import Settings
from boltdp.workflows.synthesize import make_synthetic_schema, synthesize
from boltdp.workflows.train import train

DIMS = 50
PASSES = 10
SCANS = 5
SIZES = (1_000_000, 10_000_000)
FEW = 20_000
#: MLlib's own default is 0; with this many rows it changes nothing but that it converges.
REGULARIZATION = 1e-5
SETTINGS = Settings(epsilon=1.0, delta=1e-8)
MEMORY = "8g"


class Measured(TypedDict, total=False):
    rows: int
    auto: float  #: seconds, from files
    cached: float  #: the same, from a cached DataFrame
    mllib: float
    prepare: float
    scan: float
    passes: float  #: all of them, and bringing the rows of each part together
    array_scan: float
    array_passes: float


def run(rows: int = SIZES[-1]) -> list[Ratio]:
    sizes = [*(size for size in SIZES if size < rows), rows]
    with tempfile.TemporaryDirectory(dir=find_spool_directory(), prefix="boltdp-bench-") as folder:
        measured = [measure(Path(folder), size) for size in sizes]
    for one in measured:
        unit = {key: 1e9 * seconds / one["rows"] for key, seconds in one.items() if isinstance(seconds, float)}
        timings = ", ".join(f"{key} {one[key]:.2f} s ({ns:.0f} ns a row)" for key, ns in unit.items())  # type: ignore[literal-required]
        print(f"  {one['rows']:>11,} rows: {timings}")
    ratios = []
    for one in measured:
        size = f"{one['rows']:,} x {DIMS}"
        if "mllib" not in one:
            continue
        ratios += [
            Ratio(name=f"auto over MLlib, cached, {size}", value=one["cached"] / one["mllib"], at_most=2.0),
            Ratio(name=f"a scan over that of arrays, {size}", value=one["scan"] / one["array_scan"], at_most=15.0),
            Ratio(
                name=f"{PASSES} passes in 2 parts over those of arrays, {size}",
                value=one["passes"] / one["array_passes"],
                at_most=15.0,
            ),
        ]
    if len(measured) > 1:
        slope, intercept, fit = line([one["rows"] for one in measured], [one["auto"] for one in measured])
        print(f"  auto: {intercept:.1f} s and {1e6 * slope:.2f} s a million rows, R^2 {fit:.4f}")
        ratios.append(Ratio(name=f"R^2 of auto's seconds by rows, up to {sizes[-1]:,}", value=fit, at_least=0.99))
    return ratios


def line(rows: list[int], seconds: list[float]) -> tuple[float, float, float]:
    """The slope and the intercept of the line of least squares, and R^2."""
    slope, intercept = np.polyfit(rows, seconds, 1)
    left = np.array(seconds) - (slope * np.array(rows) + intercept)
    return float(slope), float(intercept), float(1.0 - left.var() / np.var(seconds))


def measure(folder: Path, rows: int) -> Measured:
    """Write the data, and train on it in another process."""
    few, path = folder / "few.parquet", folder / f"{rows}.parquet"
    for target, count in ((few, FEW), (path, rows)):
        synthesize(target, rows=count, dims=DIMS, seed=1)
        with target.open("rb") as file:
            os.fsync(file.fileno())
    arguments = f"--driver-memory {MEMORY} --conf spark.ui.enabled=false --conf spark.local.dir={folder} pyspark-shell"
    everything = "everything" if rows in SIZES else "growth"
    answer = subprocess.run(
        [sys.executable, "-m", "bench.spark", str(path), str(few), everything],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYSPARK_SUBMIT_ARGS": arguments},
    )
    path.unlink()
    measured: Measured = json.loads(answer.stdout.splitlines()[-1])
    return measured


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measured(path: str, few: str, everything: bool) -> Measured:
    session, schema = Session.open("local[2]"), make_synthetic_schema(dims=DIMS)
    spark = session.spark
    read = {name: spark.read.parquet(name) for name in (few, path)}

    def auto(frame: Any) -> None:
        train(SparkEngine(frame, session=session), schema, SETTINGS)

    for _ in range(2):
        auto(read[few])
    with SparkEngine(read[path], session=session) as engine:
        found: Measured = {"rows": engine.count(), "auto": timed(lambda: auto(read[path]))}
        if everything:
            beside_mllib(found, read, auto)
            beside_arrays(found, path, session)
    return found


def beside_mllib(found: Measured, read: dict[str, Any], auto: Callable[[Any], None]) -> None:
    """Both on the same cached DataFrames, first of few rows."""
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import VectorAssembler

    def mllib(frame: Any) -> None:
        names = [f"f{place}" for place in range(DIMS)]
        vectors = VectorAssembler(inputCols=names, outputCol="x").transform(frame).select("x", "label")
        LogisticRegression(featuresCol="x", labelCol="label", regParam=REGULARIZATION).fit(vectors)

    for frame in read.values():
        cached = frame.select("*").persist()
        cached.count()
        found["cached"], found["mllib"] = timed(lambda: auto(cached)), timed(lambda: mllib(cached))  # noqa: B023
        cached.unpersist(True)


def beside_arrays(found: Measured, path: str, session: Session) -> None:
    """A scan and passes, in Spark and over the same rows in memory."""
    schema, context = make_synthetic_schema(dims=DIMS), Context(seed=1)

    def scan(prepared: PreparedRows) -> float:
        sums = [
            DerivativeSums(Logistic(), np.full((1, DIMS), 0.01 * i), feature_map=prepared.feature_map)
            for i in range(SCANS)
        ]
        return statistics.median(timed(lambda: prepared.add_to_sums([each])) for each in sums)  # noqa: B023

    def passes(prepared: PreparedRows) -> float:
        half = prepared.rows // 2
        recipe = Recipe(
            loss=Logistic(), dims=DIMS, rows=half, batch_size=50, passes=PASSES, schedule=make_constant_schedule(0.1)
        )
        states = [State(recipe, feature_map=prepared.feature_map) for _ in range(2)]
        parts = [Partition(half * i, half * (i + 1), [states[i]], [None] * PASSES) for i in range(2)]
        return timed(lambda: prepared.run_partitions(parts, context))

    def both(engine: Engine) -> tuple[float, float, float]:
        start = time.perf_counter()
        with engine.prepare(schema, context, permuted=False) as prepared:
            ready = time.perf_counter() - start
            scanned = scan(prepared)
        with engine.prepare(schema, context) as prepared:
            return ready, scanned, passes(prepared)

    found["prepare"], found["scan"], found["passes"] = both(
        SparkEngine(session.spark.read.parquet(path), session=session)
    )
    with open_source(path) as engine:
        engine.memory_bytes = 1 << 40
        _, found["array_scan"], found["array_passes"] = both(engine)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], sys.argv[2], sys.argv[3] == "everything")))
