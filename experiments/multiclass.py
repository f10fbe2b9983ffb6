"""Many classes: one multinomial model against one-vs-all, on MNIST in 50 random directions.

`python -m experiments.multiclass` prints test accuracies, mean and standard deviation of ten releases each, at the
settings of the paper's evaluation: 10 passes, batches of 50, delta = 1/m^2. The data is looked for in BOLTDP_DATA.
"""

from __future__ import annotations

import numpy as np
from tests.plans import plan_certificate

from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.run_context import Context
from boltdp.settings import Multiclass, Settings
from boltdp.workflows.train import train_prepared
from experiments.datasets import BENCHMARKS

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
REPEATS = 10
WAYS: tuple[Multiclass, ...] = ("multinomial", "one-vs-all")


def main() -> None:
    """Print the table."""
    mnist = BENCHMARKS["mnist50"]
    test = np.concatenate(list(encode_rows(open_source(mnist.source("test")), mnist.schema)))
    with open_source(mnist.source("train")).prepare(mnist.schema, Context(seed=1)) as prepared:

        def accuracies(settings: Settings, repeats: int) -> str:
            certificate = plan_certificate(settings, rows=prepared.rows, dims=prepared.dims, classes=10)
            models = [train_prepared(prepared, mnist.schema, certificate, Context(seed=1)) for _ in range(repeats)]
            reached = [(model.predict_indices(model.margins(test)) == test[:, 0]).mean() for model in models]
            return f"{np.mean(reached):.3f} ± {np.std(reached):.3f}"

        print("| epsilon | delta | multinomial | one-vs-all |\n|---|---|---|---|")
        for delta in (0.0, prepared.rows**-2.0):
            for epsilon in EPSILONS:
                cells = [
                    accuracies(
                        Settings(epsilon=epsilon, delta=delta, algorithm="bolton", multiclass=way, batch_size=50),
                        REPEATS,
                    )
                    for way in WAYS
                ]
                print(f"| {epsilon:g} | {delta:.1g} | {' | '.join(cells)} |", flush=True)
        cells = [
            accuracies(Settings(epsilon=None, algorithm="bolton", multiclass=way, batch_size=50), 1).split(" ")[0]
            for way in WAYS
        ]
        print(f"| none | | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
