"""What training in partitions costs: accuracy of bolton on Covertype, by the number of partitions and epsilon.

    python -m experiments.partitions --repeats 30

prints a Markdown table of the sensitivity and the accuracy on test rows, mean and standard deviation; docs/accuracy.md
has it. 10 passes, batches of 50, pure epsilon; each repeat has another order of the rows and other noise. "Convex" is
without regularization, with the step that boltdp chooses from public numbers. The data is looked for in BOLTDP_DATA.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from tests.plans import plan_certificate

from boltdp.engines import open_source
from boltdp.engines.base import PreparedRows
from boltdp.run_context import Context
from boltdp.settings import Settings
from boltdp.workflows.train import train_prepared
from experiments.datasets import BENCHMARKS
from experiments.whitebox import TRAINING, accuracies

DATA = "covtype"
PARTITIONS = (1, 2, 8, 32)
EPSILONS = (0.1, 1.0, None)
WAYS: Mapping[str, Settings] = {
    "convex": Settings(epsilon=None, algorithm="bolton"),
    "lambda = 0.001": Settings(epsilon=None, algorithm="bolton", regularization=1e-3),
    "lambda = 0.0001": Settings(epsilon=None, algorithm="bolton", regularization=1e-4),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    chosen = parser.parse_args()
    benchmark, cut = BENCHMARKS[DATA], TRAINING[DATA]
    print(f"| epsilon | partitions | {' | '.join(WAYS)} |\n|---|---|{'---|' * len(WAYS)}", flush=True)
    with open_source(benchmark.source()).prepare(benchmark.schema, Context(seed=1)) as prepared:
        training, testing = prepared.slice(0, cut), prepared.slice(cut, prepared.rows)
        for epsilon in EPSILONS:
            for partitions in PARTITIONS:
                settings = [replace(way, epsilon=epsilon, partitions=partitions) for way in WAYS.values()]
                cells = [cell(one, training, testing, repeats=chosen.repeats) for one in settings]
                named = "none" if epsilon is None else f"{epsilon:g}"
                print(f"| {named} | {partitions} | {' | '.join(cells)} |", flush=True)


def cell(settings: Settings, training: PreparedRows, testing: PreparedRows, *, repeats: int) -> str:
    """What the models reach, and in brackets how far one row can move each."""
    certificate = plan_certificate(settings, rows=training.rows, dims=training.dims, classes=2)
    models = []
    for repeat in range(repeats):
        training.reshuffle(repeat)
        models.append(train_prepared(training, BENCHMARKS[DATA].schema, certificate, Context(seed=repeat)))
    reached = accuracies(models, testing)[:, 0]
    moved = "" if certificate.training.sensitivity is None else f" ({certificate.training.sensitivity.total:.3g})"
    return f"{reached.mean():.3f} ± {reached.std():.3f}{moved}"


if __name__ == "__main__":
    main()
