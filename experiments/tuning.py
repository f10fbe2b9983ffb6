"""When does which way of tuning win? Accuracy of a tuned model on public data, for each way and each epsilon.

    python -m experiments.tuning adult mnist50 --repeats 5

It prints a Markdown table; docs/tuning.md has one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

from boltdp.data.benchmarks import BENCHMARKS
from boltdp.data.schema import Schema
from boltdp.engines.base import Engine
from boltdp.engines.slice import Slice
from boltdp.model import Model
from boltdp.settings import Settings
from boltdp.train import train
from boltdp.tune import candidates, error_counts, tune

EPSILONS = (0.1, 0.5, 2.0)
#: The paper's grid: k in {5, 10}, b = 50, and lambda, with R = 1/lambda.
GRID = {"passes": [5, 10], "regularization": [1e-4, 1e-3, 1e-2]}
#: The part of the rows that public tuning takes away from the private ones.
PUBLIC = 0.05

Way = Callable[[Engine, Schema, float], Model]


def untuned(engine: Engine, schema: Schema, epsilon: float) -> Model:
    """One training with the settings that boltdp chooses from public numbers."""
    return train(engine, schema, Settings(epsilon=epsilon))


def middle(engine: Engine, schema: Schema, epsilon: float) -> Model:
    """One training with the candidate in the middle of the grid: what a guess gives."""
    return train(engine, schema, Settings(epsilon=epsilon, regularization=1e-3, radius=1e3))


def portions(engine: Engine, schema: Schema, epsilon: float) -> Model:
    return tune(engine, schema, candidates(Settings(epsilon=epsilon), GRID, inverse_radius=True), method="portions")


def trials(engine: Engine, schema: Schema, epsilon: float) -> Model:
    return tune(engine, schema, candidates(Settings(epsilon=epsilon), GRID, inverse_radius=True), method="trials")


def public(engine: Engine, schema: Schema, epsilon: float) -> Model:
    rows = engine.count()
    cut = round(PUBLIC * rows)
    grid = candidates(Settings(epsilon=epsilon), GRID, inverse_radius=True)
    return tune(Slice(engine, cut, rows), schema, grid, method="public", public=Slice(engine, 0, cut))


WAYS: dict[str, Way] = {
    "untuned": untuned,
    "a guess": middle,
    "portions": portions,
    "trials": trials,
    "public": public,
}


def accuracies(name: str, epsilon: float, way: Way, *, repeats: int) -> list[float]:
    benchmark = BENCHMARKS[name]
    with benchmark.open("train") as engine, benchmark.open("test") as other:
        models = [way(engine, benchmark.schema, epsilon) for _ in range(repeats)]
        with other.prepare(benchmark.schema, seed=0) as rows:
            # One count for each model: the settings may differ, the form of the weights does not.
            return [1 - errors / rows.rows for errors in error_counts(models, rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+", choices=sorted(BENCHMARKS))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print("| data | epsilon |", " | ".join(WAYS), "|")
    print("|---|---|" + "---|" * len(WAYS))
    for name in arguments.data:
        for epsilon in EPSILONS:
            cells = []
            for way in WAYS.values():
                measured = accuracies(name, epsilon, way, repeats=arguments.repeats)
                cells.append(f"{statistics.mean(measured):.3f} ± {statistics.stdev(measured):.3f}")
            print(f"| {name} | {epsilon:g} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
