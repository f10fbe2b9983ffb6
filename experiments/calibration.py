"""How often what is predicted with a probability comes true: reliability tables of `auto`, on test rows.

    python -m experiments.calibration adult credit --epsilon 1      # prints Markdown
    python -m experiments.calibration adult wages:3 --links --epsilon 0.1 1

Beside the model's link stands the plain one of the same weights: what one would tell who forgot the margin of the loss,
or that gradients were clipped. `wages:3` is a number cut into 3 classes of equal size. `--links` prints one line for
each epsilon, for any number of classes: log losses and mean gaps, of more than two classes those of the likeliest.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from boltdp._array_types import Doubles, Integers
from boltdp.engines.in_memory import ArrayEngine
from boltdp.losses import Logistic, Multinomial
from boltdp.model import CLIPPED_LINK, Model, can_correct_clipping
from boltdp.schema.target import Classes
from boltdp.settings import Settings
from boltdp.workflows.predict import score_batches
from boltdp.workflows.train import train
from experiments.tasks import Task, budget_of

EDGES = np.array([0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", default=["adult", "credit"], metavar="benchmark", help="of two classes")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--links", action="store_true", help="compare links, also where a model has none")
    chosen = parser.parse_args()
    if chosen.links:
        print("| | epsilon | log loss, plain | with the link | mean gap, plain | with the link | the model has |")
        print("|---|---|---|---|---|---|---|")
    for name, epsilon in itertools.product(chosen.data, chosen.epsilon):
        task = task_of(name)
        budget = budget_of("approximate", epsilon, task.rows)
        asked = Settings(epsilon=budget.epsilon, delta=budget.delta, anyway=True)
        models = [train(task.training, task.schema, asked) for _ in range(chosen.repeats)]
        labels: Integers = np.tile(task.labels, len(models))
        if chosen.links:
            print(compare_links(models, task, labels, f"| {task.name} | {epsilon:g}"), flush=True)
            continue
        predicted = np.concatenate([probabilities_of(model, task)[:, 1] for model in models])
        plain = np.concatenate([plain_probabilities_of(model, task)[:, 1] for model in models])
        print(f"\n**{name}, epsilon {epsilon:g}, delta 1/m², {chosen.repeats} trainings**\n")
        for line in table(predicted, plain, labels):
            print(line)


def task_of(name: str) -> Task:
    """Return a benchmark, or one whose number is cut into classes at quantiles of the training rows."""
    name, _, count = name.partition(":")
    task = Task.of(name)
    if not count:
        return task
    column = task.schema.target.column
    names = [*(one.name for one in task.schema.columns), column]
    tables = [pa.Table.from_batches(list(engine.batches(names))) for engine in (task.training, task.testing)]
    cuts = np.quantile(tables[0][column].to_numpy(), np.arange(1, int(count)) / int(count))
    parts = [
        ArrayEngine.from_arrow(
            one.set_column(len(names) - 1, column, pa.array(np.searchsorted(cuts, one[column].to_numpy())))
        )
        for one in tables
    ]
    schema = replace(task.schema, target=Classes(column, tuple(range(int(count)))))
    training, testing = parts
    return Task(f"{name} in {count}", training, testing, schema)


def probabilities_of(model: Model, task: Task) -> Doubles:
    """Return the probability of each class for each test row."""
    return model.probabilities(np.concatenate(list(score_batches(model, task.testing))))


def plain_probabilities_of(model: Model, task: Task) -> Doubles:
    """Return the same by the logistic function, or the softmax, of <w, x>."""
    scores = np.concatenate(list(score_batches(replace(model, link=None), task.testing)))
    loss = Logistic() if scores.shape[1] == 1 else Multinomial(scores.shape[1])
    return model.schema.target.probabilities(scores, loss)


def compare_links(models: list[Model], task: Task, labels: Integers, name: str) -> str:
    """Return a line of Markdown: log losses and gaps without and with the link of clipped gradients."""
    if not all(can_correct_clipping(model.certificate) for model in models):
        return f"{name} | by {models[0].certificate.algorithm} |  |  |  |  |"
    cells: list[list[str]] = [[], []]
    linked = [replace(model, link=CLIPPED_LINK) for model in models]
    for find, of in ((plain_probabilities_of, models), (probabilities_of, linked)):
        odds = np.concatenate([find(model, task) for model in of])
        of_truth = np.clip(odds[np.arange(len(labels)), labels], 1e-6, 1.0)
        second = odds[:, 1] if odds.shape[1] == 2 else odds.max(axis=1)
        true = labels if odds.shape[1] == 2 else odds.argmax(axis=1) == labels
        cells[0].append(f"{-np.log(of_truth).mean():.4f}")
        cells[1].append(f"{mean_gap(second, true):.3f}")
    has = "the link" if models[0].link is not None else "the plain one"
    return f"{name} | {' | '.join(cells[0] + cells[1])} | {has} |"


def mean_gap(predicted: Doubles, true: Integers) -> float:
    """Return the mean distance of probabilities from what came true, over the ranges of the tables.

    >>> mean_gap(np.array([0.05, 0.8]), np.array([0, 1]))
    0.125
    """
    ranges = np.clip(np.searchsorted(EDGES, predicted, side="right"), 1, len(EDGES) - 1)
    gaps = [abs(float((predicted - true)[ranges == one].sum())) for one in np.unique(ranges)]
    return round(sum(gaps) / len(predicted), 6)


def table(predicted: Doubles, plain: Doubles, labels: Integers) -> Iterator[str]:
    r"""Rows of each range of the probability: their share, the mean predicted, and how many were of the second class.

    >>> print(*table(np.array([0.05, 0.8]), np.array([0.25, 0.6]), np.array([0, 1])), sep="\n")
    | predicted | rows | mean predicted | came true | by the plain link: rows | mean predicted | came true |
    |---|---|---|---|---|---|---|
    | 0 to 0.1 | 0.500 | 0.050 | 0.000 | 0.000 |  |  |
    | 0.2 to 0.3 | 0.000 |  |  | 0.500 | 0.250 | 0.000 |
    | 0.5 to 0.7 | 0.000 |  |  | 0.500 | 0.600 | 1.000 |
    | 0.7 to 0.9 | 0.500 | 0.800 | 1.000 | 0.000 |  |  |
    | mean gap | | 0.125 | | | 0.325 | |
    """
    yield "| predicted | rows | mean predicted | came true | by the plain link: rows | mean predicted | came true |"
    yield "|---|---|---|---|---|---|---|"
    gaps = [0.0, 0.0]
    for low, high in itertools.pairwise(EDGES):
        cells = []
        for number, each in enumerate((predicted, plain)):
            inside = (each >= low) & ((each < high) | (high == 1.0))
            share = float(inside.mean())
            cells += [f"{share:.3f}", "", ""]
            if share > 0:
                said, came = float(each[inside].mean()), float(labels[inside].mean())
                cells[-2:] = [f"{said:.3f}", f"{came:.3f}"]
                gaps[number] += share * abs(said - came)
        if set(cells) != {"0.000", ""}:
            yield f"| {low:g} to {high:g} | {' | '.join(cells)} |"
    yield f"| mean gap | | {gaps[0]:.3f} | | | {gaps[1]:.3f} | |"


if __name__ == "__main__":
    main()
