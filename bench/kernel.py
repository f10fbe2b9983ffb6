"""The kernel: a pass with batches of one row against reading the array once, and against scikit-learn's own SGD.

Reading is measured twice: by NumPy's sum, and by a vectorised loop in C that does nothing but stream memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import SGDClassifier

from bench.ratio import Ratio
from boltdp.kernel import sgd
from boltdp.losses import Logistic
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule

SHAPES = ((1_000_000, 50), (60_000, 784))
REPEATS = 15


def run() -> list[Ratio]:
    ratios = []
    for rows, dims in SHAPES:
        random = np.random.default_rng(1)
        packed = np.empty((rows, 1 + dims), dtype=np.float32)
        packed[:, 1:] = random.standard_normal((rows, dims), dtype=np.float32)
        packed[:, 1:] /= np.linalg.norm(packed[:, 1:], axis=1, keepdims=True) * np.float32(1.0001)
        packed[:, 0] = packed[:, 1] > 0
        recipe = Recipe(
            loss=Logistic(),
            dims=dims,
            rows=rows,
            batch_size=1,
            passes=REPEATS,
            schedule=make_constant_schedule(rows**-0.5),
        )
        state = sgd.State(recipe)
        rivals = {kind: _scikit_learn(packed, kind) for kind in ("float32", "float64")}

        # What disturbs one disturbs the others: they take turns, and the best of each counts.
        feature_map, streaming, ours, theirs = [], [], [], []
        for repeat in range(REPEATS):
            feature_map.append(_seconds(packed.sum))
            streaming.append(_seconds(partial(sgd._library.sgd_read_memory, packed.ctypes.data, packed.size)))
            ours.append(_seconds(partial(sgd.run, [state], packed)))
            if repeat < 3:
                theirs += [_seconds(rival) for rival in rivals.values()]
        read, stream, own, other = min(feature_map), min(streaming), min(ours), min(theirs)
        print(
            f"  {rows:,} x {dims}: NumPy's sum {1e9 * read / rows:.1f} ns a row, the fastest read we know "
            f"{1e9 * stream / rows:.1f}, our pass {1e9 * own / rows:.1f}, scikit-learn's {1e9 * other / rows:.1f}"
        )
        size = f"{rows:,} x {dims}"
        ratios += [
            Ratio(name=f"a pass over reading the array once (NumPy's sum), {size}", value=own / read, at_most=3.0),
            Ratio(name=f"a pass over the fastest read, {size}", value=own / stream, at_most=3.0),
            Ratio(name=f"scikit-learn's partial_fit over a pass, {size}", value=other / own, at_least=4.0),
        ]
    return ratios


def _scikit_learn(packed: npt.NDArray[np.float32], kind: str) -> Callable[[], object]:
    features, labels = np.ascontiguousarray(packed[:, 1:], dtype=kind), packed[:, 0].astype(np.int64)
    rival = SGDClassifier(
        loss="log_loss",
        shuffle=False,
        penalty=None,
        fit_intercept=False,
        learning_rate="constant",
        eta0=len(packed) ** -0.5,
    )
    return partial(rival.partial_fit, features, labels, classes=[0, 1])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
