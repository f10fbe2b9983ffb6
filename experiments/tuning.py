"""When does which way of tuning win? Accuracy of a tuned model on public data, for each way and each epsilon.

    python -m experiments.tuning adult mnist50 covtype --repeats 5

It prints a Markdown table; docs/tuning.md has one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from boltdp.engines import open_source
from boltdp.engines.base import Engine, encode_rows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.model import Model
from boltdp.run_context import Context
from boltdp.schema.schema import Schema, make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.select import count_errors
from boltdp.workflows.train import train
from boltdp.workflows.tune import Method, expand_grid, tune
from experiments.datasets import BENCHMARKS

EPSILONS = (0.1, 0.5, 2.0)
#: The paper's grid: k in {5, 10}, b = 50, and lambda, with R = 1/lambda.
GRID: dict[str, Sequence[Any]] = {"passes": [5, 10], "regularization": [1e-4, 1e-3, 1e-2]}
#: The part of the rows that public tuning takes away from the private ones.
PUBLIC = 0.05
#: The part of the rows to train on, where a dataset has no rows for testing.
TRAINING = 0.8

Way = Callable[[ArrayEngine, Schema, float], Model]


def untuned(engine: ArrayEngine, schema: Schema, epsilon: float) -> Model:
    """One training with the settings that boltdp chooses from public numbers."""
    return train(engine, schema, Settings(epsilon=epsilon, algorithm="bolton"))


def guessed(engine: ArrayEngine, schema: Schema, epsilon: float) -> Model:
    """One training with the candidate in the middle of the grid."""
    return train(engine, schema, Settings(epsilon=epsilon, algorithm="bolton", regularization=1e-3, radius=1e3))


def tuned(method: Method) -> Way:
    """Tuning over the grid."""

    def way(engine: ArrayEngine, schema: Schema, epsilon: float) -> Model:
        grid = expand_grid(Settings(epsilon=epsilon, algorithm="bolton"), GRID, inverse_radius=True)
        if method != "public":
            return tune(engine, schema, grid, method=method)
        cut, rows = round(PUBLIC * engine.count()), engine.count()
        return tune(engine.slice(cut, rows), schema, grid, method=method, public=engine.slice(0, cut))

    return way


WAYS: dict[str, Way] = {
    "untuned": untuned,
    "a guess": guessed,
    "portions": tuned("portions"),
    "trials": tuned("trials"),
    "public": tuned("public"),
}


def packed(engine: Engine, schema: Schema) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The labels and features of the rows, shuffled."""
    rows = schema.encoding.read_features(np.concatenate([*encode_rows(engine, schema)]))
    return np.random.default_rng(0).permutation(rows)


def opened(name: str) -> tuple[ArrayEngine, ArrayEngine, Schema]:
    """The rows for training and for testing, encoded once for all trainings."""
    benchmark = BENCHMARKS[name]
    with open_source(benchmark.source()) as engine:
        rows = packed(engine, benchmark.schema)
    if benchmark.test is None:
        parts = np.split(rows, [round(TRAINING * len(rows))])
    else:
        with open_source(benchmark.source("test")) as engine:
            parts = [rows, packed(engine, benchmark.schema)]
    classes = tuple(range(len(benchmark.schema.classes)))
    schema = make_array_schema(dims=benchmark.schema.dims, classes=classes)
    training, testing = (ArrayEngine.from_numpy(part[:, 1:], part[:, 0]) for part in parts)
    return training, testing, schema


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+", choices=sorted(BENCHMARKS))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print("| data | rows | epsilon |", " | ".join(WAYS), "|")
    print("|---|---|---|" + "---|" * len(WAYS))
    for name in arguments.data:
        training, testing, schema = opened(name)
        with testing.prepare(schema, Context(seed=0)) as rows:
            for epsilon in EPSILONS:
                cells = []
                for way in WAYS.values():
                    models = [way(training, schema, epsilon) for _ in range(arguments.repeats)]
                    counts = count_errors([model.weights for model in models], rows, classes=len(schema.classes))
                    measured = [1 - errors / rows.rows for errors in counts]
                    cells.append(f"{statistics.mean(measured):.3f} ± {statistics.stdev(measured):.3f}")
                print(f"| {name} | {training.count():,} | {epsilon:g} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
