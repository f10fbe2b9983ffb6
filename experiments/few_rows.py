"""Models of few rows: how much better than always answering the larger class, by the noise per row and weight.

    python -m experiments.few_rows --repeats 10     # the table of docs/accuracy.md

Each training has rows of its own, drawn from the training part of a benchmark of two classes, and is judged by 10,000
others: of the training part too, or with --blind of the test part. It is below the larger class if its accuracy is so
by more than two standard errors of it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from boltdp.engines.base import Engine
from boltdp.engines.in_memory import ArrayEngine
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows.noise_check import MAX_USEFUL_NOISE, compute_noise_per_row_and_weight
from boltdp.workflows.train import train
from experiments.datasets import BENCHMARKS
from experiments.tasks import Answer, Scores, Task, halves, judged

NAMES = ("adult", "bank", "credit", "diabetes", "higgs")
ROWS, EPSILONS = (500, 1_000, 2_000, 5_000), (0.1, 0.4, 1.0)
MAX_TESTED = 10_000
#: The ends of the ranges of noise of the table.
ENDS = (0.0, 0.005, 0.01, MAX_USEFUL_NOISE, 0.02, 0.04, math.inf)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="benchmark", help=", ".join(NAMES))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--blind", action="store_true", help="judge by the test part")
    chosen = parser.parse_args()
    runs = [run for name in chosen.names for run in measure(name, chosen.repeats, blind=chosen.blind)]
    for line in table(runs):
        print(line)


def measure(name: str, repeats: int, *, blind: bool = False) -> Iterator[tuple[float, Scores]]:
    """Train on few rows of a benchmark with every budget; yield the noise and the scores of each training."""
    training, testing, schema = halves(BENCHMARKS[name])
    rows_of_training, order = _read(training, schema), np.random.default_rng(5).permutation(training.count())
    unused = order if blind else order[MAX_TESTED:]
    taken = ArrayEngine.from_arrow((_read(testing, schema) if blind else rows_of_training.take(order))[:MAX_TESTED])
    labels = Task(name, training, taken, schema).labels
    shares = np.bincount(labels) / len(labels)
    for rows, epsilon, repeat in itertools.product(ROWS, EPSILONS, range(repeats)):
        places = np.random.default_rng([rows, repeat]).choice(unused, rows, replace=False)
        engine = ArrayEngine.from_arrow(rows_of_training.take(places))
        for delta in (0.0, rows**-2.0):
            model = train(engine, schema, Settings(epsilon=epsilon, delta=delta, anyway=True))
            scores = judged(Answer.of_model(model, taken), labels)
            error = math.sqrt(scores["accuracy"] * (1.0 - scores["accuracy"]) / len(labels))
            gain = scores["accuracy"] - float(shares.max())
            noise = compute_noise_per_row_and_weight(model.certificate)
            assert noise is not None
            yield noise, {**scores, "gain": gain, "below": float(gain < -2.0 * error)}


def _read(engine: Engine, schema: Schema) -> pa.Table:
    return pa.Table.from_batches(list(engine.batches([*(column.name for column in schema.columns), schema.label])))


def table(runs: Sequence[tuple[float, Scores]]) -> Iterator[str]:
    """Yield the lines of a table: means of the trainings in each range of noise, and of those not refused."""
    headings = "accuracy above the larger class | AUC | log loss | below the larger class |"
    yield f"| noise per row and weight | trainings | {headings}"
    yield "|---|---|---|---|---|---|"
    ranges = [(f"{low:g} to {high:g}", low, high) for low, high in itertools.pairwise(ENDS)]
    for name, low, high in (*ranges, ("not refused", 0.0, MAX_USEFUL_NOISE)):
        found = [scores for noise, scores in runs if low <= noise < high]
        if found:
            means = {metric: statistics.mean(one[metric] for one in found) for metric in found[0]}
            yield (
                f"| {name} | {len(found)} | {means['gain']:+.4f} | {means['auc']:.3f} | {means['log loss']:.3f} "
                f"| {means['below']:.1%} |"
            )


if __name__ == "__main__":
    main()
