"""What tuning costs: Algorithm 3 over six candidates against training one of them on all rows."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from bench.ratio import Ratio
from boltdp.engines.in_memory import ArrayEngine
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune

DIMS = 50
REPEATS = 5


def run(rows: int = 1_000_000) -> list[Ratio]:
    random = np.random.default_rng(1)
    features = random.standard_normal((rows, DIMS), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = (features[:, 0] > 0).astype(np.int64)
    engine, schema = ArrayEngine.from_numpy(features, labels), make_array_schema(dims=DIMS, classes=(0, 1))
    one = Settings(epsilon=1.0, algorithm="bolton", seed=1)
    # Candidates of as many passes as the one: what differs is what tuning adds.
    grid = expand_grid(one, {"regularization": [1e-4, 1e-3, 1e-2], "batch_size": [10, 50]}, inverse_radius=True)

    def training() -> float:
        start = time.perf_counter()
        train(engine, schema, replace(one, regularization=1e-3, radius=1e3))
        return time.perf_counter() - start

    def tuning() -> float:
        start = time.perf_counter()
        tune(engine, schema, grid, method="portions")
        return time.perf_counter() - start

    training(), tuning()
    pairs = [(tuning(), training()) for _ in range(REPEATS)]
    tuned, trained = (min(times) for times in zip(*pairs, strict=True))
    print(f"  {len(grid)} candidates {tuned:.2f} s, one on all rows {trained:.2f} s at best")
    return [
        Ratio(
            name=f"Algorithm 3 of {len(grid)} candidates over one, {rows:,} x {DIMS}",
            value=tuned / trained,
            at_most=1.3,
        )
    ]
