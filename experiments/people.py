"""What the guarantee for persons costs: Diabetes 130-hospitals, where 71,518 patients have 101,766 stays.

    python -m experiments.people --repeats 10

prints a Markdown table of the accuracy and the AUC on the stays of other patients, mean and standard deviation of the
models; docs/people.md has it. Whether a patient comes back within 30 days is predicted, by `boltdp train` as it is:
"rows" guarantees for a stay, g for a patient of whom the first g stays count. A fifth of the patients, by a hash of
their number, are for testing. The data is looked for in BOLTDP_DATA.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pyarrow as pa

from boltdp.engines import open_source
from boltdp.evaluation.evaluate import evaluate
from boltdp.settings import Settings
from boltdp.workflows.train import train
from experiments.datasets import BENCHMARKS

DATA, UNIT = BENCHMARKS["diabetes"], "patient_nbr"
EPSILONS = (0.1, 0.5, 1.0, None)
DELTAS = (0.0, 1e-6)
MAX_ROWS = (None, 1, 2, 5)
#: One patient in this many is for testing.
TESTED = 5


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    training, testing = split()
    print(f"{training.num_rows:,} stays for training, {testing.num_rows:,} for testing; those that count:")
    for most in MAX_ROWS[1:]:
        print(f"- at most {most} of a patient: {counting(training, most):,}")
    titles = ["rows", *(f"g = {most}" for most in MAX_ROWS[1:])]
    print(f"\n| epsilon | delta | | {' | '.join(titles)} |\n|---|---|---|{'---|' * len(titles)}", flush=True)
    for epsilon in EPSILONS:
        for delta in DELTAS if epsilon is not None else (0.0,):
            settings = Settings(epsilon=epsilon, delta=delta, anyway=True)
            cells = [cell(settings, training, testing, most, repeats=repeats) for most in MAX_ROWS]
            for place, name in enumerate(("accuracy", "AUC")):
                reached = " | ".join(f"{each[place].mean():.4f} ± {each[place].std():.4f}" for each in cells)
                named = "none" if epsilon is None else f"{epsilon:g}"
                print(f"| {named} | {delta:g} | {name} | {reached} |", flush=True)


def split() -> tuple[pa.Table, pa.Table]:
    """The stays of the patients for training and of those for testing, in the order of the file."""
    stays = pa.table(DATA.source())
    hashed = stays.column(UNIT).to_numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    tested = (hashed >> np.uint64(40)) % np.uint64(TESTED) == 0
    return stays.filter(pa.array(~tested)), stays.filter(pa.array(tested))


def counting(training: pa.Table, most: int) -> int:
    """How many stays count."""
    stays = np.unique(training.column(UNIT).to_numpy(), return_counts=True)[1]
    return int(np.minimum(stays, most).sum())


def cell(
    settings: Settings, training: pa.Table, testing: pa.Table, most: int | None, *, repeats: int
) -> tuple[np.ndarray, np.ndarray]:
    """The accuracies and AUCs of the models."""
    schema = DATA.schema if most is None else replace(DATA.schema, person_id=UNIT, max_rows_per_person=most)
    reached = []
    for _ in range(repeats if settings.epsilon is not None else 1):
        model = train(open_source(training), schema, settings)
        evaluated = evaluate(model, open_source(testing))
        reached.append((evaluated.accuracy, evaluated.area_under_the_curve))
    accuracy, auc = np.array(reached, np.float64).T
    return accuracy, auc


if __name__ == "__main__":
    main()
