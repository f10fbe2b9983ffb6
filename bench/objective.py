"""What `auto` does, over ten passes of SGD, on rows that are prepared already: for two classes, and for ten."""

from __future__ import annotations

import time

import numpy as np
from tests.plans import plan_certificate

from bench.ratio import Ratio
from boltdp.engines.in_memory import ArrayEngine
from boltdp.run_context import Context
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.train import train_prepared

DIMS = 50
REPEATS = 5


def run(rows: int = 1_000_000) -> list[Ratio]:
    return [*_default(rows, 2), *_default(rows // 5, 10)]


def _default(rows: int, classes: int) -> list[Ratio]:
    random = np.random.default_rng(1)
    features = random.standard_normal((rows, DIMS), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    noisy = features[:, :classes] + 0.1 * random.standard_normal((rows, classes))
    labels = np.argmax(noisy, axis=1).astype(np.int64)
    schema = make_array_schema(dims=DIMS, classes=range(classes))
    settings = {name: Settings(epsilon=1.0, delta=1e-8, algorithm=name) for name in ("auto", "bolton")}
    plans = {
        name: plan_certificate(one, rows=rows, dims=schema.dims, classes=classes) for name, one in settings.items()
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in plans}
    with ArrayEngine.from_numpy(features, labels).prepare(schema, Context(seed=1)) as prepared:
        for _ in range(REPEATS):
            for name, planned in plans.items():
                start, busy = time.perf_counter(), time.process_time()
                train_prepared(prepared, schema, planned, Context(seed=1))
                times[name].append((time.perf_counter() - start, time.process_time() - busy))
    found, passes = (np.median(times[name], axis=0) for name in ("auto", "bolton"))
    chosen, ratios = plans["auto"].algorithm, []
    for clock, ours, theirs in zip(("by the clock", "of processors"), found.tolist(), passes.tolist(), strict=True):
        print(f"  {ours:.2f} s {clock} for {chosen}, {theirs:.2f} s for 10 passes, medians of {REPEATS}")
        name = f"{chosen} over 10 passes, {rows:,} x {DIMS}, {classes} classes, seconds {clock}"
        ratios.append(Ratio(name=name, value=ours / theirs, at_most=4.0))
    return ratios
