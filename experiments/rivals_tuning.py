"""The choice of the rivals' settings, on rows of TRAINING parts and on nothing else: of Adult and Covertype.

    python -m experiments.rivals_tuning naive-bayes dp-ebm     # prints the settings of each, from the best to the worst

A fifth of the training rows judges. Settings are ranked by how far they are below the best of a cell in accuracy and
in AUC, the two added, as a mean over all cells: over the tasks, the budgets, with delta = 1/m^2 and without. Settings
with two classes are for all benchmarks with two, and for those with more. Those of numbers are ranked by R2 on rows of
four benchmarks, where worse than -1 counts as -1.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from experiments import regression_rivals, rivals, tree_rivals
from experiments.rivals import Rival
from experiments.tasks import Scores, Task, budget_of, judged

NUMBERS = ("houses", "wages", "hours", "limits")
EPSILONS: Mapping[str, Sequence[float]] = {
    "adult": (0.1, 0.4, 1.0),
    "covtype": (0.05, 0.2, 0.8),
    **dict.fromkeys(NUMBERS, (0.1, 0.4, 1.0)),
}
MAX_ROWS = 100_000
BOTH, PURE, APPROXIMATE = ("pure", "approximate"), ("pure",), ("approximate",)
_SAMPLED = {"batches": (None, 200, 50, 10), "passes": (10, 30), "stretch": (1.0, 3.0, 10.0)}
_PERMUTED = {"batches": (20, 4, 1), "passes": (1, 3, 10), "stretch": (1.0, 3.0, 10.0)}

#: Of each way: its function, the kinds of budget it takes, the benchmarks, and the values tried.
GRIDS: Mapping[str, tuple[Rival, Sequence[str], Sequence[str], Mapping[str, Sequence[Any]]]] = {
    "naive-bayes": (
        rivals.naive_bayes,
        BOTH,
        ("adult",),
        {"bins": (5, 10, 20, 32), "floor": (0.25, 0.5, 1.0, 2.0), "wide": (1e3, 1e4, math.inf)},
    ),
    "dp-ebm": (
        rivals.explainable_boosting,
        APPROXIMATE,
        ("adult",),
        {
            "max_rounds": (30, 100, 300),
            "learning_rate": (0.03, 0.06, 0.1, 0.2, 0.3, 0.6),
            "max_bins": (8, 32, 64),
            "wide": (1e4, math.inf),
        },
    ),
    "diffprivlib": (rivals.diffprivlib_regression, PURE, ("adult",), {"strength": (None, 1, 3, 7, 14, 20, 30, 100)}),
    "diffprivlib-nb": (rivals.diffprivlib_bayes, PURE, ("adult",), {"centred": (False, True)}),
    "dpsgd": (rivals.white_box, APPROXIMATE, ("adult", "covtype"), {"algorithm": ("dpsgd",), **_SAMPLED}),
    "bst14": (
        rivals.white_box,
        APPROXIMATE,
        ("adult", "covtype"),
        {"algorithm": ("bst14",), **_SAMPLED, "radius": (None, 30.0)},
    ),
    "scs13": (rivals.white_box, BOTH, ("adult", "covtype"), {"algorithm": ("scs13",), **_PERMUTED}),
    "privatree": (
        tree_rivals.permuted_tree,
        PURE,
        ("adult",),
        {
            "depth": (3, 4, 5, 6),
            "levels": (3, 4),
            "quantiles": (0.0, 0.05),
            "error": (0.01, 0.03),
            "smoothing": (1.0, 3.0),
        },
    ),
    "dp-gbdt": (
        tree_rivals.boosted_trees,
        APPROXIMATE,
        ("adult", "covtype"),
        {
            "trees": (300,),
            "depth": (3, 4, 5),
            "rate": (0.3, 0.6),
            "ridge": (3.0, 10.0),
            "quantiles": (0.05,),
        },
    ),
    "adassp": (
        regression_rivals.sufficient_statistics,
        BOTH,
        NUMBERS,
        {"prepared": (False,), "ridge": (0.5, 0.7, 1.0, 1.4, 2.0, 4.0)},
    ),
    "adassp prepared": (
        regression_rivals.sufficient_statistics,
        BOTH,
        NUMBERS,
        {"prepared": (True,), "ridge": (1.0, 1.4, 2.0, 4.0), "reach": (1.5, 2.5, 4.0)},
    ),
    "boosted adassp": (
        regression_rivals.sufficient_statistics,
        APPROXIMATE,
        NUMBERS,
        {"prepared": (True,), "ridge": (2.0, 4.0, 8.0), "reach": (0.25, 0.5, 1.0), "rounds": (10, 30, 100)},
    ),
    "least squares gd": (
        regression_rivals.least_squares_descent,
        APPROXIMATE,
        NUMBERS,
        {"clip": (0.5, 1.0, 2.0, 4.0), "length": (0.5, 1.0, 2.0, 4.0, 8.0)},
    ),
    "tukey-em": (regression_rivals.deep_models, APPROXIMATE, NUMBERS, {"models": (500, 1000, 2000, 4000)}),
}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=list(GRIDS), metavar="way", help=", ".join(GRIDS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shown", type=int, default=8)
    chosen = parser.parse_args()
    with threadpool_limits(1):
        for way in chosen.ways:
            metrics = metrics_of(way)
            print(f"**{way}**, thousandths below the best of a cell, {' and '.join(metrics)}")
            for lost, settings in ranked(way, repeats=chosen.repeats)[: chosen.shown]:
                print(*(f"{1000 * part:5.1f}" for part in lost), settings, flush=True)


def metrics_of(way: str) -> Sequence[str]:
    """By which the settings of a way are ranked."""
    return ("r2",) if set(GRIDS[way][2]) <= set(NUMBERS) else ("accuracy", "auc")


def ranked(way: str, *, repeats: int) -> list[tuple[list[float], dict[str, Any]]]:
    """What all settings of a way lack, the best first."""
    rival, kinds, names, grid = GRIDS[way]
    settings = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    lost: list[list[list[float]]] = [[[] for _ in metrics_of(way)] for _ in settings]
    for name in names:
        task = Task.within(name, most_rows=MAX_ROWS)
        for kind, epsilon in itertools.product(kinds, EPSILONS[name]):
            means = [list(mean_scores(task, rival, kind, epsilon, one, repeats, metrics_of(way))) for one in settings]
            for metric, best in enumerate(np.max(means, axis=0)):
                for place, mean in enumerate(means):
                    lost[place][metric].append(float(best) - mean[metric])
    totals = [[statistics.mean(of_metric) for of_metric in of_settings] for of_settings in lost]
    return sorted(zip(totals, settings, strict=True), key=lambda pair: sum(pair[0]))


def mean_scores(
    task: Task,
    rival: Rival,
    kind: str,
    epsilon: float,
    settings: Mapping[str, Any],
    repeats: int,
    metrics: Sequence[str],
) -> Iterator[float]:
    """The mean of each metric."""
    rng, budget = np.random.default_rng(), budget_of(kind, epsilon, task.rows)
    runs: list[Scores] = [judged(rival(task, budget, rng, **settings), task.labels) for _ in range(repeats)]
    for metric in metrics:
        yield statistics.mean(max(run[metric], -1.0) for run in runs)


if __name__ == "__main__":
    main()
