"""What noise in every update costs: run time over noiseless training, in memory and in PostgreSQL.

50 features; SCS13 and bolt-on read the rows in order, BST14 and DP-SGD at random places. Each is measured in pairs with
noiseless training, in turning order, by processor time, that of the server's backend too; the ratio is the median of
all pairs. The targets are for bolt-on only, which has more pairs since it is so near to 1: the others are reported as
they are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import psycopg
from tests.plans import plan_certificate

from bench.postgres import SCHEMA, backend, backend_seconds, load, prepared
from bench.ratio import Ratio
from boltdp.engines.base import PreparedRows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.engines.postgres.local_server import run_private_server
from boltdp.privacy.certificate import Certificate
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows.synthesize import draw_synthetic_blocks
from boltdp.workflows.train import train_prepared

BATCH_SIZES = (1, 10, 50, 500)
PASSES = 2
#: Pairs of bolt-on and noiseless training, and of the slower ones.
PAIRS, SLOW_PAIRS = 60, 6

_PRIVATE = Settings(epsilon=1.0, delta=1e-6, algorithm="bolton", passes=PASSES, step_size=0.01)
WAYS: Mapping[str, Settings] = {
    "noiseless": replace(_PRIVATE, epsilon=None, delta=0.0),
    "bolton": _PRIVATE,
    "scs13": replace(_PRIVATE, algorithm="scs13"),
    "bst14": replace(_PRIVATE, algorithm="bst14"),
    "dpsgd": replace(_PRIVATE, algorithm="dpsgd"),
}


def run(rows: int = 200_000) -> list[Ratio]:
    features, labels = map(np.concatenate, zip(*draw_synthetic_blocks(rows=rows, dims=SCHEMA.dims), strict=True))
    with ArrayEngine.from_numpy(features, labels).prepare(SCHEMA, Context(seed=1)) as array:
        ratios = measured(array, SCHEMA, "in memory", time.process_time)
    with run_private_server() as server:
        with psycopg.connect(server.uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp")
        load(server, "small", rows)
        with prepared(server, "small") as table:
            pid = backend(table)
            clock = lambda: time.process_time() + backend_seconds(pid)  # noqa: E731
            return [*ratios, *measured(table, SCHEMA, "PostgreSQL", clock)]


def measured(prepared: PreparedRows, schema: Schema, where: str, clock: Callable[[], float]) -> list[Ratio]:
    """The passes and the release, over noiseless ones; preparing the rows is the same for all."""
    ratios = []
    for batch_size in BATCH_SIZES:
        plans = {
            name: plan_certificate(replace(way, batch_size=batch_size), rows=prepared.rows, dims=schema.dims, classes=2)
            for name, way in WAYS.items()
        }

        def seconds(planned: Certificate) -> float:
            start = clock()
            train_prepared(prepared, schema, planned, Context(seed=1))
            return clock() - start

        noiseless = plans.pop("noiseless")
        for name, private in plans.items():
            seconds(private), seconds(noiseless)
            pairs = []
            for number in range(PAIRS if name == "bolton" else SLOW_PAIRS):
                first, second = (private, noiseless) if number % 2 else (noiseless, private)
                times = {first: seconds(first), second: seconds(second)}
                pairs.append(times[private] / times[noiseless])
            ratios.append(
                Ratio(
                    name=f"{name} over noiseless, {where}, {prepared.rows:,} x {schema.dims}, b = {batch_size}",
                    value=statistics.median(pairs),
                    at_most=1.03 if name == "bolton" else float("inf"),
                )
            )
    return ratios
