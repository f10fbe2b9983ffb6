"""A program that trains in Spark on rows of which one can be replaced, so that what Spark logs of both can be compared.

`python -m tests.spark.neighbours FOLDER ALGORITHM SOURCE ROW`: FOLDER gets the rows and the event log; ALGORITHM is one
of `SETTINGS`, or `EVALUATION`; SOURCE is "csv" (files whose cells all have one width) or "frame" (of this process); ROW
says what stands for the row at `REPLACED`: one of `ROWS_INSTEAD`.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from boltdp import settings as boltdp_settings
from boltdp.algorithms import _newton
from boltdp.engines.spark import SparkEngine
from boltdp.engines.spark.session import Session
from boltdp.evaluation.evaluate import evaluate_privately
from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.privacy.release_with_noise import Randomness
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from boltdp.workflows.train import train
from tests.plans import plan_certificate

ROWS, FILES, REPLACED = 6000, 3, 2345
DIMS = 6
SCHEMA = Schema(
    Classes("sick", (0, 1)),
    (*(Numeric(f"x{place}", -1, 1) for place in range(DIMS)), Categorical("town", ("Ulm", "Bonn"))),
)
Settings = boltdp_settings.Settings
SETTINGS = {
    "objective": Settings(epsilon=1.0, delta=1e-6, algorithm="objective", seed=7, noise_seed=1),
    "noisy-gd": Settings(epsilon=1.0, delta=1e-6, algorithm="noisy-gd", seed=7, noise_seed=1, passes=3),
    "bolton": Settings(
        epsilon=1.0, algorithm="bolton", seed=7, noise_seed=1, passes=2, partitions=2, permutation="fresh"
    ),
}
#: A model is measured, instead of trained.
EVALUATION = "evaluation"
#: What may stand for the replaced row: six numbers, a town and a class. All of one width, as they are written.
ROWS_INSTEAD: dict[str, tuple[list[float], str, int] | None] = {
    "none": None,
    "zeros": ([0.0] * DIMS, "Ulm.", 0),
    "far": ([9.0] * DIMS, "Bonn", 1),
    "unknown": ([-9.0] * DIMS, "xxxx", 0),
}
EVENT_SETTINGS = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.logBlockUpdates.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.broadcast.compress": "false",  # of which Spark's own have times in them
    "spark.sql.shuffle.partitions": "2",
    "spark.cleaner.referenceTracking": "false",  # which forgets at times that the garbage collector chooses
}


def rows(instead: str) -> pa.Table:
    random = np.random.default_rng(5)
    x = random.uniform(-1, 1, (ROWS, DIMS)).round(5)
    town = random.choice(["Ulm.", "Bonn", "else"], ROWS).tolist()
    sick = (x[:, 0] + 0.3 * random.normal(size=ROWS) > 0).astype(int)
    given = ROWS_INSTEAD[instead]
    if given is not None:
        x[REPLACED], town[REPLACED], sick[REPLACED] = given
    return pa.table({**{f"x{place}": x[:, place] for place in range(DIMS)}, "town": town, "sick": sick})


def written(table: pa.Table, folder: Path) -> str:
    """Files of lines that have one length, whatever is in them; where."""
    folder.mkdir()
    lines = [
        ",".join([*(f"{row[f'x{place}']:+.5f}" for place in range(DIMS)), row["town"], str(row["sick"])])
        for row in table.to_pylist()
    ]
    assert len({len(line) for line in lines}) == 1
    for part in range(FILES):
        some = lines[part * ROWS // FILES : (part + 1) * ROWS // FILES]
        (folder / f"{part}.csv").write_text("\n".join(some) + "\n")
    return str(folder)


def columns() -> str:
    return ", ".join([*(f"x{place} double" for place in range(DIMS)), "town string", "sick long"])


def frame(spark: Any, source: str, table: pa.Table, folder: Path) -> Any:
    if source == "csv":
        return spark.read.schema(columns()).csv(written(table, folder / "rows"))
    return spark.createDataFrame(table, columns()).coalesce(FILES)


def settle_chance() -> None:
    """Keys and names are drawn from a seed, so that they are the same in every run of this program."""
    random = np.random.default_rng(11)
    secrets.token_bytes = lambda nbytes=None: random.bytes(nbytes or 32)
    secrets.token_hex = lambda nbytes=None: random.bytes(nbytes or 32).hex()


def main(folder: Path, algorithm: str, source: str, instead: str) -> None:
    settle_chance()
    (folder / "events").mkdir()
    given = EVENT_SETTINGS | {"spark.eventLog.dir": f"file:{folder / 'events'}"}
    arguments = [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
    before = os.environ.get("PYSPARK_SUBMIT_ARGS", "").removesuffix("pyspark-shell")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{before} {shlex.join(arguments)} pyspark-shell"
    # A sample is taken of large tables only; here of a small one.
    _newton.MAX_SAMPLED = 6000
    # One thread: of two, the one that ends first is another every time.
    session = Session.open("local[1]")
    engine = SparkEngine(frame(session.spark, source, rows(instead), folder), session=session, parts=2)
    if algorithm == EVALUATION:
        weights = np.linspace(-2.0, 2.0, SCHEMA.dims)[None]
        model = Model(SCHEMA, weights, plan_certificate(Settings(epsilon=None), rows=ROWS, dims=SCHEMA.dims, classes=2))
        context = Context(randomness=Randomness(1))
        print(evaluate_privately(model, engine, Budget(1.0), by="town", context=context).counts)
    else:
        print(train(engine, SCHEMA, SETTINGS[algorithm]).weights.tobytes().hex())
    session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
