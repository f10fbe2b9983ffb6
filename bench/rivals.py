"""What noise in every update costs: run time over noiseless training, in memory and in PostgreSQL.

50 features; SCS13 and bolt-on read the rows in order, BST14 at random places. All of a batch size are measured in
turns. The targets are for bolt-on only: the others are reported as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import psycopg

from bench.postgres import SCHEMA, load
from bench.ratio import Ratio
from boltdp.data.schema import Schema
from boltdp.data.synth import synthetic_blocks
from boltdp.engines import ArrayEngine
from boltdp.engines.base import Prepared
from boltdp.engines.postgres import PostgresEngine
from boltdp.postgres.server import private_server
from boltdp.settings import Settings
from boltdp.train import train_prepared

BATCH_SIZES = (1, 10, 50, 500)
PASSES = 2
ROUNDS = 5

_PRIVATE = Settings(epsilon=1.0, delta=1e-6, algorithm="bolton", passes=PASSES, step_size=0.01)
WAYS: Mapping[str, Settings] = {
    "noiseless": replace(_PRIVATE, epsilon=None, delta=0.0),
    "bolton": _PRIVATE,
    "scs13": replace(_PRIVATE, algorithm="scs13"),
    "bst14": replace(_PRIVATE, algorithm="bst14"),
    "dpsgd": replace(_PRIVATE, algorithm="dpsgd"),
}


def run(rows: int = 200_000) -> list[Ratio]:
    features, labels = map(np.concatenate, zip(*synthetic_blocks(rows=rows, dims=SCHEMA.dims), strict=True))
    with ArrayEngine.from_numpy(features, labels).prepare(SCHEMA, seed=1) as prepared:
        ratios = measured(prepared, SCHEMA, "in memory", time.process_time)
    with private_server() as server:
        with psycopg.connect(server.uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp")
        load(server, "small", rows)
        with (
            PostgresEngine(server.uri, table="small", where="server") as engine,
            engine.prepare(SCHEMA, seed=1) as table,
        ):
            return [*ratios, *measured(table, SCHEMA, "PostgreSQL", time.perf_counter)]


def measured(prepared: Prepared, schema: Schema, where: str, clock: Callable[[], float]) -> list[Ratio]:
    """The passes and the release, over noiseless ones; preparing the rows is the same for all.

    The clock is that of the processor where all work is done in this process: other programs don't count then.
    """
    ratios = []
    for batch_size in BATCH_SIZES:
        plans = {
            name: replace(way, batch_size=batch_size).plan(rows=prepared.rows, dims=schema.dims, classes=2)
            for name, way in WAYS.items()
        }
        best = dict.fromkeys(plans, float("inf"))
        for _ in range(ROUNDS):
            for name, plan in plans.items():
                start = clock()
                train_prepared(prepared, schema, plan, seed=1)
                best[name] = min(best[name], clock() - start)
        ratios += [
            Ratio(
                name=f"{name} over noiseless, {where}, {prepared.rows:,} x {schema.dims}, b = {batch_size}",
                value=best[name] / best["noiseless"],
                at_most=1.03 if name == "bolton" else float("inf"),
            )
            for name in WAYS
            if name != "noiseless"
        ]
    return ratios
