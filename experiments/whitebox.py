"""Bolt-on against the white-box algorithms on Covertype and Protein, all in valid forms, at the paper's epsilons.

    python -m experiments.whitebox protein covtype --repeats 10

prints Markdown tables of accuracy and balanced accuracy on test rows, mean and standard deviation; docs/whitebox.md has
them. As in the paper: 10 passes, batches of 50, delta = 1/m^2, convex. Every algorithm has the settings that boltdp
chooses from public numbers; "own steps" are SCS13 and BST14 with the constant step that DP-SGD gets instead of the
published ones. The data is looked for in BOLTDP_DATA.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from tests.plans import plan_certificate

from boltdp.engines import open_source
from boltdp.engines.base import PreparedRows
from boltdp.model import Model
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows.train import train_prepared
from experiments.datasets import BENCHMARKS

EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
#: Rows to train on, as many as in the paper; the others are for testing.
TRAINING = {"covtype": 498_010, "protein": 72_876}
NOISELESS = Settings(epsilon=None, algorithm="bolton")
PURE: Mapping[str, Settings] = {
    "bolton": Settings(epsilon=1.0, algorithm="bolton"),
    "scs13": Settings(epsilon=1.0, algorithm="scs13"),
    "scs13, own steps": Settings(epsilon=1.0, algorithm="scs13", schedule="constant"),
}
APPROXIMATE: Mapping[str, Settings] = {
    **PURE,
    "bst14": Settings(epsilon=1.0, algorithm="bst14"),
    "bst14, own steps": Settings(epsilon=1.0, algorithm="bst14", schedule="constant"),
    "dpsgd": Settings(epsilon=1.0, algorithm="dpsgd"),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=list(TRAINING), choices=list(TRAINING))
    parser.add_argument("--repeats", type=int, default=10)
    chosen = parser.parse_args()
    for name in chosen.data:
        benchmark, cut = BENCHMARKS[name], TRAINING[name]
        with open_source(benchmark.source()).prepare(benchmark.schema, Context(seed=1)) as prepared:
            portions = prepared.slice(0, cut), prepared.slice(cut, prepared.rows)
            print(f"\n{name}: noiseless {cell(NOISELESS, benchmark.schema, *portions, repeats=1)}")
            for delta, ways in ((0.0, PURE), (cut**-2.0, APPROXIMATE)):
                print(
                    f"\n| epsilon, delta = {delta:.2g} | {' | '.join(ways)} |\n|{'---|' * (1 + len(ways))}", flush=True
                )
                for epsilon in EPSILONS:
                    cells = [
                        cell(
                            replace(way, epsilon=epsilon, delta=delta),
                            benchmark.schema,
                            *portions,
                            repeats=chosen.repeats,
                        )
                        for way in ways.values()
                    ]
                    print(f"| {epsilon:g} | {' | '.join(cells)} |", flush=True)


def cell(settings: Settings, schema: Schema, training: PreparedRows, testing: PreparedRows, *, repeats: int) -> str:
    """What the models reach: accuracy, and in brackets balanced accuracy."""
    certificate = plan_certificate(settings, rows=training.rows, dims=training.dims, classes=2)
    models = [train_prepared(training, schema, certificate, Context(seed=1)) for _ in range(repeats)]
    reached = accuracies(models, testing)
    (mean, balanced), (spread, balanced_spread) = reached.mean(axis=0), reached.std(axis=0)
    return f"{mean:.3f} ± {spread:.3f} ({balanced:.3f} ± {balanced_spread:.3f})"


def accuracies(models: list[Model], testing: PreparedRows) -> npt.NDArray[np.float64]:
    """The accuracy and the balanced accuracy of each model, one model a row."""
    right = np.zeros((len(models), 2))
    of_class = np.zeros(2)
    for block in testing.read_blocks():
        for label in (0, 1):
            rows = block[block[:, 0] == label]
            of_class[label] += len(rows)
            right[:, label] += [
                np.count_nonzero(model.predict_indices(model.margins(rows)) == label) for model in models
            ]
    return np.stack([right.sum(axis=1) / of_class.sum(), (right / of_class).mean(axis=1)], axis=1)


if __name__ == "__main__":
    main()
