"""What privacy costs: a private training over the same one without noise, from the arrays to the released model."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np

from bench.ratio import Ratio
from boltdp.engines.in_memory import ArrayEngine
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.train import train

DIMS = 50
REPEATS = 9

#: Batches as by default, and the slowest case for the analysis: as many updates as rows, and steps that change.
CASES = {
    "constant step, batches of 50": Settings(epsilon=1.0, algorithm="bolton", step_size=0.01, seed=1),
    "strongly convex, batches of 1": Settings(
        epsilon=1.0, algorithm="bolton", regularization=1e-4, batch_size=1, seed=1
    ),
}


def run(rows: int = 1_000_000) -> list[Ratio]:
    random = np.random.default_rng(1)
    features = random.standard_normal((rows, DIMS), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = (features[:, 0] > 0).astype(np.int64)
    engine, schema = ArrayEngine.from_numpy(features, labels), make_array_schema(dims=DIMS, classes=(0, 1))

    def seconds(settings: Settings) -> float:
        # Time on the processor, not on the wall: that of a few percent drowns in what else the machine does.
        start = time.process_time()
        train(engine, schema, settings)
        return time.process_time() - start

    ratios = []
    for name, private in CASES.items():
        noiseless = replace(private, epsilon=None)
        seconds(private), seconds(noiseless)
        # Pairs side by side, in turning order: what disturbs one disturbs the other.
        pairs = [(seconds(private), seconds(noiseless)) for _ in range(REPEATS)]
        pairs += [(seconds(noiseless), seconds(private))[::-1] for _ in range(REPEATS)]
        ours, plain = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"  {name}: {ours:.2f} s private, {plain:.2f} s noiseless, medians of {len(pairs)}")
        ratios.append(
            Ratio(name=f"private over noiseless, {rows:,} x {DIMS}, {name}", value=ours / plain, at_most=1.03)
        )
    return ratios
