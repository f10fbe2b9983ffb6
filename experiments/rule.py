"""What `auto` chooses against its neighbours: on rows of TRAINING parts, and on datasets kept out of its making.

    python -m experiments.rule unseen --jobs 2      # adds to rule.jsonl what is not in it yet, and prints the tables
    python -m experiments.rule training --jobs 2

Five of the training tasks are benchmarks themselves, by which constants of `auto` were chosen; four have a rare class:
Adult with a twelfth of its rich, two rare forests of Covertype and one digit of MNIST against the rest. A fifth of the
rows judges; the test rows of the benchmarks are in no part of it. The unseen datasets need `pip install '.[unseen]'`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import pyarrow as pa

from boltdp.algorithms import noisy_gd, objective
from boltdp.engines.base import Engine
from boltdp.engines.in_memory import ArrayEngine
from boltdp.schema import target
from boltdp.schema.schema import Classes, Schema
from boltdp.settings import Settings
from boltdp.workflows import histograms, plan_training, standardize
from boltdp.workflows.label_check import plan_label_check
from boltdp.workflows.plan_training import choose_histograms, choose_loss_by_noise, make_plan, resolve_settings
from boltdp.workflows.train import train
from experiments.datasets import BENCHMARKS
from experiments.store import add_line, lines
from experiments.tasks import Answer, Scores, Task, better, budget_of, halves, judged
from experiments.unseen_datasets import UNSEEN

#: The epsilons by the tasks.
TASKS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "training": {
        "adult": (0.1, 0.4, 1.0),
        "credit": (0.1, 0.4, 1.0),
        "covtype": (0.05, 0.2, 0.8),
        "mnist50": (0.2, 1.0, 4.0),
        "adult, few rich": (0.1, 0.4, 1.0),
        "covtype, forest 3": (0.05, 0.2, 0.8),
        "covtype, forest 7": (0.05, 0.2, 0.8),
        "mnist50, digit 3": (0.05, 0.2, 0.8),
        "covtype7": (0.1, 1.0, 4.0),
    },
    "unseen": dict.fromkeys(UNSEEN, (0.1, 1.0, 4.0)),
}
KINDS = ("pure", "approximate")
METRICS = ("accuracy", "auc", "log loss")
MAX_ROWS = 100_000
JUDGING = 0.2
#: The trainings of a choice in a cell, and of `auto`, with which all others are compared.
REPEATS, AUTO_REPEATS = 3, 9
#: The cells of each metric that are shown.
FURTHEST = 5


@dataclass(frozen=True)
class Choice:
    """A neighbour of the rule: what it changes of the settings that `auto` chooses, and of the rule's constants."""

    change: Callable[[Settings], Settings] = lambda auto: auto
    patches: Sequence[tuple[Any, str, Any]] = field(default=(), kw_only=True)  #: modules, names, and other values

    @contextmanager
    def patch(self) -> Iterator[None]:
        """Let the constants have the other values."""
        with ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(mock.patch.object(*patch))
            yield


def _times(module: Any, name: str, factor: float) -> tuple[Any, str, Any]:
    return module, name, factor * getattr(module, name)


def _with_margin(margin: float | None) -> Choice:
    loss = "logistic" if margin is None else "margin"
    return Choice(
        lambda auto: auto if auto.algorithm == "noisy-gd" else replace(auto, loss=loss, loss_parameter=margin)
    )


def _with_steps(factor: float) -> Choice:
    def change(auto: Settings) -> Settings:
        steps = histograms.STEPS if auto.curves is None else auto.curves
        return replace(auto, curves=int(factor * steps)) if auto.standardize_moments == "histograms" else auto

    scaled = {most: int(factor * steps) for most, steps in target.CURVE_STEPS.items()}
    return Choice(change, patches=[(target, "CURVE_STEPS", scaled)])


def _without_curves(auto: Settings) -> Settings:
    standardizing: Any = "auto" if auto.algorithm == "auto" else "private"
    return replace(auto, curves=0, standardize=standardizing, standardize_moments="mean")


def _forget_algorithm(auto: Settings) -> Settings:
    return replace(auto, algorithm="auto", loss="auto", loss_parameter=None)


def _has_delta(_: object, settings: Settings, *__: object, **___: object) -> bool:
    return settings.delta > 0


def _with_noisy_gd(auto: Settings) -> Settings:
    return replace(_forget_algorithm(auto), loss="logistic") if auto.delta else auto


def _with_interactions(auto: Settings) -> Settings:
    detailed = auto.standardize_moments == "histograms" and auto.curves == plan_training.DETAILED_STEPS
    return replace(auto, interactions="numbers") if detailed else auto


CHOICES: Mapping[str, Choice] = {
    "auto": Choice(),
    "no margin": _with_margin(None),
    "margin 1": _with_margin(1.0),
    "margin 3": _with_margin(3.0),
    "Lambda / 2, steps * 2": Choice(
        patches=[
            _times(objective, "REGULARIZATION", 0.5),
            _times(noisy_gd, "REACH", 2.0),
            _times(noisy_gd, "JOINT_REACH", 2.0),
        ]
    ),
    "Lambda * 2, steps / 2": Choice(
        patches=[
            _times(objective, "REGULARIZATION", 2.0),
            _times(noisy_gd, "REACH", 0.5),
            _times(noisy_gd, "JOINT_REACH", 0.5),
        ]
    ),
    "no curves": Choice(_without_curves),
    "half the steps of curves": _with_steps(0.5),
    "twice the steps of curves": _with_steps(2.0),
    "no histograms": Choice(
        lambda auto: (
            replace(_forget_algorithm(auto), curves=None, standardize_moments="mean")
            if auto.standardize_moments == "histograms"
            else auto
        )
    ),
    "always histograms": Choice(lambda auto: replace(auto, standardize_moments="histograms")),
    "no interactions": Choice(lambda auto: replace(auto, interactions="none")),
    "more interactions": Choice(_with_interactions),
    "intercept 0.15": Choice(patches=[(standardize, "INTERCEPT", 0.15)]),
    "intercept 0.6": Choice(patches=[(standardize, "INTERCEPT", 0.6)]),
    "always objective": Choice(_forget_algorithm, patches=[(noisy_gd.NoisyGD, "fits_auto", lambda *_, **__: False)]),
    "always noisy-gd": Choice(_with_noisy_gd, patches=[(noisy_gd.NoisyGD, "fits_auto", _has_delta)]),
}


@dataclass(frozen=True)
class Cell:
    """Where choices are compared."""

    task: str
    kind: str
    epsilon: float

    def __str__(self) -> str:
        return f"{self.task} {self.kind} {self.epsilon:g}"


#: The trainings of each choice; those of one that plans the same as `auto` are of `auto`.
Results: TypeAlias = dict[tuple[Cell, str], list[Scores]]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", choices=TASKS)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with one thread")
    parser.add_argument("--output", type=Path, default=Path("rule.jsonl"))
    chosen = parser.parse_args()
    epsilons = {task: tried for task, tried in TASKS[chosen.tasks].items() if _is_available(task)}
    if missing := [task for task in TASKS[chosen.tasks] if task not in epsilons]:
        needed = (
            "pip install '.[unseen]'" if chosen.tasks == "unseen" else "set BOLTDP_DATA to the directory that has it"
        )
        print(f"left out, since the data is not here: {'; '.join(missing)}\nhint: {needed}", file=sys.stderr)
    if not epsilons:
        sys.exit(1)
    cells = [Cell(task, kind, one) for task in epsilons for kind in KINDS for one in epsilons[task]]
    results = run(cells, jobs=chosen.jobs, output=chosen.output)
    print(*tables(results, cells), "", *gains(results, cells), sep="\n")


def _is_available(task: str) -> bool:
    benchmark = UNSEEN.get(task) or BENCHMARKS[task.partition(", ")[0]]
    return benchmark.available()


def run(cells: Sequence[Cell], *, jobs: int, output: Path) -> Results:
    """Train with every choice in every cell, add the scores that are not in `output` to it, and return all."""
    results: Results = {}
    for one in lines(output):
        results[Cell(one["task"], one["kind"], one["epsilon"]), one["choice"]] = one["runs"]
    left = [pair for pair in itertools.product(cells, CHOICES) if pair not in results]
    # Read by the libraries of the new processes when they start.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for (cell, choice), runs in zip(left, pool.map(measure, *zip(*left, strict=True)), strict=True):
            add_line(output, {**asdict(cell), "choice": choice, "runs": runs})
            results[cell, choice] = runs
    return results


def measure(cell: Cell, choice: str) -> list[Scores]:
    """Return the scores of some trainings; none if the choice plans the same as `auto`."""
    task = _load(cell.task)
    budget = budget_of(cell.kind, cell.epsilon, task.rows)
    asked = Settings(epsilon=budget.epsilon, delta=budget.delta, anyway=True)
    auto = resolve_auto(asked, task.schema, rows=task.rows)
    if choice != "auto" and not differs(CHOICES[choice], auto, task.schema, rows=task.rows):
        return []
    repeats = AUTO_REPEATS if choice == "auto" else REPEATS
    with CHOICES[choice].patch():
        models = (train(task.training, task.schema, CHOICES[choice].change(auto)) for _ in range(repeats))
        return [judged(Answer.of_model(model, task.testing), task.labels) for model in models]


def resolve_auto(asked: Settings, schema: Schema, *, rows: int) -> Settings:
    """Return settings that ask for what `auto` chooses by the number of rows, whatever else is changed of them."""
    within, _ = plan_label_check(resolve_settings(asked, schema), schema, rows=rows)
    chosen = choose_loss_by_noise(choose_histograms(within, schema, rows=rows), schema, rows=rows)
    moments: Any = "mean" if chosen.standardize_moments == "auto" else chosen.standardize_moments
    return replace(chosen, epsilon=asked.epsilon, delta=asked.delta, standardize_moments=moments)


def differs(choice: Choice, auto: Settings, schema: Schema, *, rows: int) -> bool:
    """Return whether a choice trains otherwise than `auto`."""

    def plan(settings: Settings) -> tuple[Any, ...]:
        made = make_plan(schema, rows, settings)
        return made, standardize.INTERCEPT if made.certificate.moments else None

    usual = plan(auto)
    with choice.patch():
        return plan(choice.change(auto)) != usual


@lru_cache(maxsize=1)
def _load(task: str) -> Task:
    return Task(task, *(halves(UNSEEN[task]) if task in UNSEEN else rows_of(task)))


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


def tables(results: Results, cells: Sequence[Cell]) -> Iterator[str]:
    """Say how far each choice is below the best of a cell, in thousandths, and where `auto` is furthest."""
    judgements = {metric: [one for cell in cells if (one := judge(results, cell, metric))] for metric in METRICS}
    yield "| | other plans |" + "".join(f" {metric}: mean | worst | near |" for metric in METRICS)
    yield "|---|---|" + "---|---|---|" * len(METRICS)
    for choice in CHOICES:
        figures = ["" if choice == "auto" else str(sum(bool(results[cell, choice]) for cell in cells))]
        for known in judgements.values():
            lost = [1000.0 * one.lost[choice] for one in known]
            near = [one.lost[choice] <= one.deviation for one in known]
            figures += (
                [f"{statistics.mean(lost):.1f}", f"{max(lost):.0f}", f"{statistics.mean(near):.0%}"]
                if lost
                else 3 * [""]
            )
        yield f"| {choice} | {' | '.join(figures)} |"
    yield ""
    yield "| `auto` is furthest from the best | | lost | deviation | best |"
    yield "|---|---|---|---|---|"
    for metric, known in judgements.items():
        for one in sorted(known, key=lambda one: -one.lost["auto"])[:FURTHEST]:
            best = min(one.lost, key=lambda choice: one.lost[choice])
            yield f"| {metric} | {one.cell} | {1000 * one.lost['auto']:.0f} | {1000 * one.deviation:.0f} | {best} |"


def gains(results: Results, cells: Sequence[Cell]) -> Iterator[str]:
    """Say what each choice gains on `auto`, in thousandths with the standard error, in each kind of cell."""
    groups = {
        f"{classes} classes, {kind}": [
            cell for cell in cells if cell.kind == kind and ("auc" in results[cell, "auto"][0]) == (classes == "two")
        ]
        for classes in ("two", "several")
        for kind in KINDS
    }
    columns = [(name, group, metric) for name, group in groups.items() for metric in METRICS]
    columns = [one for one in columns if one[1] and one[2] in results[one[1][0], "auto"][0]]
    yield "| gain on `auto` | " + " | ".join(f"{name}: {metric}" for name, _, metric in columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for choice in CHOICES:
        figures = [_show_gain(results, group, choice, metric) for _, group, metric in columns]
        if any(figures):
            yield f"| {choice} | {' | '.join(figures)} |"


def _show_gain(results: Results, cells: Sequence[Cell], choice: str, metric: str) -> str:
    """Return the mean over the cells and its standard error; nothing where the choice is never another plan."""
    means, variances = [], []
    for cell in cells:
        runs = [[run[metric] for run in results[cell, one]] for one in ("auto", choice)]
        if choice != "auto" and runs[1]:
            means.append(better(metric) * (statistics.mean(runs[1]) - statistics.mean(runs[0])))
            variances.append(sum(statistics.variance(each) / len(each) for each in runs))
    if not means:
        return ""
    # In a cell of the same plan there is no gain.
    return f"{1000 * sum(means) / len(cells):+.1f} ± {1000 * sum(variances) ** 0.5 / len(cells):.1f}"


@dataclass(frozen=True)
class Judgement:
    """How far each choice is below the best in a cell, by a metric."""

    cell: Cell
    lost: Mapping[str, float]
    deviation: float  #: of one training, pooled over the choices


def judge(results: Results, cell: Cell, metric: str) -> Judgement | None:
    """Compare the choices in a cell; return None where the metric has no meaning."""
    runs = {choice: results[cell, choice] or results[cell, "auto"] for choice in CHOICES}
    if metric not in runs["auto"][0]:
        return None
    values = {choice: [better(metric) * run[metric] for run in each] for choice, each in runs.items()}
    best = max(statistics.mean(each) for each in values.values())
    variance = statistics.mean(statistics.variance(each) for each in values.values())
    return Judgement(cell, {choice: best - statistics.mean(each) for choice, each in values.items()}, variance**0.5)


if __name__ == "__main__":
    main()
