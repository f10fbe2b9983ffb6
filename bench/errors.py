"""Counting the errors of many models, as choosing among them does: the kernel over the same in NumPy."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from bench.ratio import Ratio
from boltdp.engines.base import PreparedRows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.run_context import Context
from boltdp.schema.schema import make_array_schema
from boltdp.workflows.select import count_errors

DIMS = 50
MODELS = 100  #: as many as tuning by trials makes in the mean
CLASSES = (2, 10)
REPEATS = 5


def run(rows: int = 100_000) -> list[Ratio]:
    ratios = []
    for classes in CLASSES:
        random = np.random.default_rng(1)
        features = random.standard_normal((rows, DIMS), dtype=np.float32)
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        labels = random.integers(0, classes, rows)
        weights = random.standard_normal((MODELS, 1 if classes == 2 else classes, DIMS))
        schema = make_array_schema(dims=DIMS, classes=range(classes))
        times: dict[str, list[float]] = {"kernel": [], "NumPy": []}
        with ArrayEngine.from_numpy(features, labels).prepare(schema, Context(seed=1)) as prepared:
            # What disturbs one disturbs the other: they take turns, and the best of each counts.
            for _ in range(REPEATS):
                start = time.process_time()
                ours = count_errors(list(weights), prepared, classes=classes)
                times["kernel"].append(time.process_time() - start)
                start = time.process_time()
                theirs = in_numpy(weights, prepared)
                times["NumPy"].append(time.process_time() - start)
                # A margin that is nearly 0 may be rounded to the other side.
                assert np.abs(np.subtract(ours, theirs)).max() <= 2
        kernel, numpy = (min(each) for each in times.values())
        vectors = weights.shape[0] * weights.shape[1]
        print(
            f"  {MODELS} models of {classes} classes: the kernel {1e9 * kernel / rows / vectors:.2f} ns a row and "
            f"weight vector, NumPy {1e9 * numpy / rows / vectors:.2f}"
        )
        name = f"counting the errors of {MODELS} models of {classes} classes, kernel over NumPy, {rows:,} x {DIMS}"
        ratios.append(Ratio(name=name, value=kernel / numpy, at_most=1.0))
    return ratios


def in_numpy(weights: npt.NDArray[np.float64], prepared: PreparedRows) -> npt.NDArray[np.int64]:
    """The same counts by matrix products."""
    models, vectors, dims = weights.shape
    counts = np.zeros(models, np.int64)
    for block in prepared.read_blocks():
        rows = block[:, 1:].astype(np.float64)
        rows /= np.maximum(1.0, np.sqrt(np.einsum("ij,ij->i", rows, rows)))[:, None]
        margins = (rows @ weights.reshape(-1, dims).T).reshape(len(block), models, vectors)
        chosen = margins[:, :, 0] > 0 if vectors == 1 else np.argmax(margins, axis=2)
        counts += np.count_nonzero(chosen != block[:, :1], axis=0)
    return counts
