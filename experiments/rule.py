"""The fit of what `auto` chooses, on rows of the TRAINING parts of Adult, Covertype and MNIST and on nothing else.

    python -m experiments.rule run --repeats 5      # adds to rule.json what is not in it yet
    python -m experiments.rule table                # mean accuracy, balanced accuracy and AUC of each choice

Three of the tasks are the benchmarks themselves; four have a rare class: Adult with a twelfth of its rich, two rare
forests of Covertype and one digit of MNIST against the rest. A fifth of the rows judges; the test rows of the
benchmarks are in no part of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa

import boltdp.algorithms.objective
import boltdp.algorithms.standardize
from boltdp.data.benchmarks import BENCHMARKS
from boltdp.data.schema import Schema
from boltdp.engines.arrays import ArrayEngine
from boltdp.engines.base import Engine
from boltdp.files import replacing
from boltdp.settings import Settings
from boltdp.training import train
from experiments.tasks import Answer, Scores, Task, halves, judged

EPSILONS: Mapping[str, Sequence[float]] = {
    "adult": (0.1, 0.4, 1.0),
    "covtype": (0.05, 0.2, 0.8),
    "mnist50": (0.2, 1.0, 4.0),
    "adult, few rich": (0.1, 0.4, 1.0),
    "covtype, forest 3": (0.05, 0.2, 0.8),
    "covtype, forest 7": (0.05, 0.2, 0.8),
    "mnist50, digit 3": (0.05, 0.2, 0.8),
}
INTERCEPTS = (0.15, 0.3, 0.6, 1.0)
REGULARIZATIONS = (0.25, 0.5, 1.0, 2.0)
MOST_ROWS = 100_000
JUDGING = 0.2


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("tasks", nargs="*", default=list(EPSILONS), metavar="task", help="; ".join(EPSILONS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("rule.json"))
    chosen = parser.parse_args()
    if chosen.command == "table":
        for line in tables(json.loads(chosen.output.read_text("utf-8"))):
            print(line)
        return
    for task in chosen.tasks:
        run(task, chosen.repeats, chosen.output)


def run(task: str, repeats: int, output: Path) -> None:
    """Train with every choice at every epsilon, and add the scores to `output`."""
    results: dict[str, list[Scores]] = json.loads(output.read_text("utf-8")) if output.exists() else {}
    training, judging, schema = rows_of(task)
    rows, labels = training.count(), Task(task, training, judging, schema).labels
    for epsilon, delta in itertools.product(EPSILONS[task], (0.0, float(rows) ** -2)):
        for intercept, regularization in itertools.product(INTERCEPTS, REGULARIZATIONS):
            key = f"{task}|{'pure' if delta == 0 else 'approximate'}|{epsilon:g}|{intercept:g}|{regularization:g}"
            settings = Settings(epsilon=epsilon, delta=delta)
            with (
                mock.patch.object(boltdp.algorithms.standardize, "INTERCEPT", intercept),
                mock.patch.object(boltdp.algorithms.objective, "REGULARIZATION", regularization),
            ):
                for _ in range(len(results.get(key, [])), repeats):
                    model = train(training, schema, settings)
                    results.setdefault(key, []).append(judged(Answer.of_model(model, judging), labels))
        with replacing(output) as aside:
            aside.write_text(json.dumps(results, indent=0), "utf-8")
        print(f"{task}, epsilon {epsilon:g}, delta {delta:.2g}", flush=True)


def rows_of(task: str) -> tuple[Engine, Engine, Schema]:
    """The rows to train on and those to judge by, all of a training part."""
    name, _, what = task.partition(", ")
    whole, _, schema = halves(BENCHMARKS["covtype7" if what.startswith("forest") else name])
    names = [*(column.name for column in schema.columns), schema.label]
    table = pa.Table.from_batches(list(whole.batches(names)))
    rng = np.random.default_rng(29)
    labels = table[schema.label].to_numpy()
    kept = rng.permutation(len(labels))
    if what == "few rich":
        kept = kept[(labels[kept] == 0) | (rng.random(len(kept)) < 1 / 12)]
    elif what:
        labels = (labels == int(what.split()[-1])).astype(np.int64)
        table = table.set_column(len(names) - 1, schema.label, pa.array(labels))
        schema = replace(schema, classes=(0, 1))
    kept = kept[:MOST_ROWS]
    engine = ArrayEngine.from_arrow(table.take(kept))
    cut = len(kept) - round(JUDGING * len(kept))
    return engine.slice(0, cut), engine.slice(cut, len(kept)), schema


def tables(results: Mapping[str, list[Scores]]) -> Iterator[str]:
    """For each metric and task, how far each choice is below the best one of a cell, as a mean over the cells."""
    for metric in ("accuracy", "auc"):
        yield f"\n**{metric}, below the best of a cell, in thousandths**\n"
        yield "| intercept, regularization | " + " | ".join(EPSILONS) + " | mean |"
        yield "|---|" + "---|" * (1 + len(EPSILONS))
        lost = {task: below_the_best(results, task, metric) for task in EPSILONS}
        for choice in itertools.product(INTERCEPTS, REGULARIZATIONS):
            means = [by_choice.get(choice) for by_choice in lost.values()]
            known = [mean for mean in means if mean is not None]
            cells = ["" if mean is None else f"{1000 * mean:.1f}" for mean in (*means, statistics.mean(known))]
            yield f"| {choice[0]:g}, {choice[1]:g} | {' | '.join(cells)} |"


def below_the_best(results: Mapping[str, list[Scores]], task: str, metric: str) -> Mapping[tuple[float, float], float]:
    """The mean over the epsilons, pure and not, of what each choice lacks; nothing where the metric has no meaning."""
    lost: dict[tuple[float, float], list[float]] = {}
    for kind, epsilon in itertools.product(("pure", "approximate"), EPSILONS[task]):
        means = {}
        for choice in itertools.product(INTERCEPTS, REGULARIZATIONS):
            runs = results.get(f"{task}|{kind}|{epsilon:g}|{choice[0]:g}|{choice[1]:g}", [])
            if runs and metric in runs[0]:
                means[choice] = statistics.mean(run[metric] for run in runs)
        for choice, mean in means.items():
            lost.setdefault(choice, []).append(max(means.values()) - mean)
    return {choice: statistics.mean(values) for choice, values in lost.items()}


if __name__ == "__main__":
    main()
