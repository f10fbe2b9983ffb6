"""How often what is predicted with a probability comes true: reliability tables of `auto`, on test rows.

    python -m experiments.calibration adult credit --epsilon 1      # prints Markdown

Beside the link of the margin loss stands the plain logistic function of the same margins: what one would tell who
forgot the margin.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy as np

from boltdp._array_types import Doubles, Integers
from boltdp.losses import Logistic
from boltdp.settings import Settings
from boltdp.workflows.predict import score_batches
from boltdp.workflows.train import train
from experiments.tasks import Task, budget_of

EDGES = np.array([0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", default=["adult", "credit"], metavar="benchmark", help="of two classes")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    for name in chosen.data:
        task = Task.of(name)
        budget = budget_of("approximate", chosen.epsilon, task.rows)
        margins, labels, predicted = [], [], []
        for _ in range(chosen.repeats):
            model = train(task.training, task.schema, Settings(epsilon=budget.epsilon, delta=budget.delta, anyway=True))
            found = np.concatenate(list(score_batches(model, task.testing)))
            margins.append(found)
            predicted.append(model.probabilities(found)[:, 1])
            labels.append(task.labels)
        print(f"\n**{name}, epsilon {chosen.epsilon:g}, delta 1/m², {chosen.repeats} trainings**\n")
        plain = Logistic().compute_probabilities(np.concatenate(margins))[:, 0]
        for line in table(np.concatenate(predicted), plain, np.concatenate(labels)):
            print(line)


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
