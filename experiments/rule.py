"""What `auto` chooses against its neighbours, on rows of TRAINING parts alone: of Adult, Covertype, MNIST and Credit.

    python -m experiments.rule run --repeats 5      # adds to rule.json what is not in it yet
    python -m experiments.rule table                # how far each choice is below the best one, by each metric

Four of the tasks are the benchmarks themselves; four have a rare class: Adult with a twelfth of its rich, two rare
forests of Covertype and one digit of MNIST against the rest. A fifth of the rows judges; the test rows of the
benchmarks are in no part of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from boltdp._files.outputs import replace_file
from boltdp.algorithms import noisy_gd, objective
from boltdp.engines.base import Engine
from boltdp.engines.in_memory import ArrayEngine
from boltdp.schema import target
from boltdp.schema.schema import Classes, Schema
from boltdp.settings import Settings
from boltdp.workflows import plan_training, standardize
from boltdp.workflows.train import train
from experiments.datasets import BENCHMARKS
from experiments.tasks import Answer, Scores, Task, better, halves, judged

EPSILONS: Mapping[str, Sequence[float]] = {
    "adult": (0.1, 0.4, 1.0),
    "credit": (0.1, 0.4, 1.0),
    "covtype": (0.05, 0.2, 0.8),
    "mnist50": (0.2, 1.0, 4.0),
    "adult, few rich": (0.1, 0.4, 1.0),
    "covtype, forest 3": (0.05, 0.2, 0.8),
    "covtype, forest 7": (0.05, 0.2, 0.8),
    "mnist50, digit 3": (0.05, 0.2, 0.8),
}
METRICS = ("accuracy", "auc", "log loss")
MAX_ROWS = 100_000
JUDGING = 0.2


def _times(module: Any, name: str, factor: float) -> tuple[Any, str, Any]:
    return module, name, factor * getattr(module, name)


#: What is changed of the settings, and of the rule: a module, a name in it, and another value.
CHOICES: Mapping[str, tuple[dict[str, Any], Sequence[tuple[Any, str, Any]]]] = {
    "in use": ({}, ()),
    "no margin": ({"loss": "logistic"}, ()),
    "margin 1": ({"loss": "margin", "loss_parameter": 1.0}, ()),
    "margin 3": ({"loss": "margin", "loss_parameter": 3.0}, ()),
    "Lambda / 2, steps * 2": (
        {},
        [
            _times(objective, "REGULARIZATION", 0.5),
            _times(noisy_gd, "REACH", 2.0),
            _times(noisy_gd, "JOINT_REACH", 2.0),
        ],
    ),
    "Lambda * 2, steps / 2": (
        {},
        [
            _times(objective, "REGULARIZATION", 2.0),
            _times(noisy_gd, "REACH", 0.5),
            _times(noisy_gd, "JOINT_REACH", 0.5),
        ],
    ),
    "no curves": ({"curves": 0}, ()),
    "half the steps of curves": (
        {},
        [(target, "CURVE_STEPS", {most: n // 2 for most, n in target.CURVE_STEPS.items()})],
    ),
    "twice the steps of curves": (
        {},
        [(target, "CURVE_STEPS", {most: n * 2 for most, n in target.CURVE_STEPS.items()})],
    ),
    "intercept 0.15": ({}, [(standardize, "INTERCEPT", 0.15)]),
    "intercept 0.6": ({}, [(standardize, "INTERCEPT", 0.6)]),
    "always objective": ({"algorithm": "objective", "standardize": "private"}, ()),
    "always noisy-gd": ({"algorithm": "noisy-gd", "standardize": "private"}, ()),
}


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
        for choice, (changes, patches) in CHOICES.items():
            settings = Settings(**{"epsilon": epsilon, "delta": delta, "anyway": True, **changes})
            if settings.algorithm == "noisy-gd" and delta == 0:
                continue
            if settings.algorithm != "auto":
                # The curves and the loss that "auto" would have.
                auto = replace(settings, algorithm="auto", standardize="auto")
                shaped, _ = plan_training.add_auto_curves(auto, schema, rows=rows)
                settings = replace(settings, loss="margin" if settings.algorithm == "objective" else "logistic")
            else:
                shaped = schema
            key = _key(task, "pure" if delta == 0 else "approximate", epsilon, choice)
            with ExitStack() as stack:
                for patch in patches:
                    stack.enter_context(mock.patch.object(*patch))
                for _ in range(len(results.get(key, [])), repeats):
                    model = train(training, shaped, settings)
                    results.setdefault(key, []).append(judged(Answer.of_model(model, judging), labels))
        with replace_file(output) as aside:
            aside.write_text(json.dumps(results, indent=0), "utf-8")
        print(f"{task}, epsilon {epsilon:g}, delta {delta:.2g}", flush=True)


def _key(task: str, kind: str, epsilon: float, choice: str) -> str:
    return f"{task}|{kind}|{epsilon:g}|{choice}"


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
        schema = replace(schema, target=Classes(schema.label, (0, 1)))
    kept = kept[:MAX_ROWS]
    engine = ArrayEngine.from_arrow(table.take(kept))
    cut = len(kept) - round(JUDGING * len(kept))
    return engine.slice(0, cut), engine.slice(cut, len(kept)), schema


def tables(results: Mapping[str, list[Scores]]) -> Iterator[str]:
    """For each metric and task, how far each choice is from the best one of a cell, as a mean over the cells."""
    for metric in METRICS:
        yield f"\n**{metric}, worse than the best of a cell, in thousandths**\n"
        yield "| | " + " | ".join(EPSILONS) + " | mean |"
        yield "|---|" + "---|" * (1 + len(EPSILONS))
        lost = {task: below_the_best(results, task, metric) for task in EPSILONS}
        for choice in CHOICES:
            means = [by_choice.get(choice) for by_choice in lost.values()]
            known = [mean for mean in means if mean is not None]
            cells = ["" if mean is None else f"{1000 * mean:.1f}" for mean in means]
            yield f"| {choice} | {' | '.join(cells)} | {1000 * statistics.mean(known or [0.0]):.1f} |"


def below_the_best(results: Mapping[str, list[Scores]], task: str, metric: str) -> Mapping[str, float]:
    """The mean over the epsilons, pure and not, of what each choice lacks; nothing where the metric has no meaning."""
    lost: dict[str, list[float]] = {}
    for kind, epsilon in itertools.product(("pure", "approximate"), EPSILONS[task]):
        means = {}
        for choice in CHOICES:
            runs = results.get(_key(task, kind, epsilon, choice), [])
            if runs and metric in runs[0]:
                means[choice] = better(metric) * statistics.mean(run[metric] for run in runs)
        for choice, mean in means.items():
            lost.setdefault(choice, []).append(max(means.values()) - mean)
    return {choice: statistics.mean(values) for choice, values in lost.items()}


if __name__ == "__main__":
    main()
