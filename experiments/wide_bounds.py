"""What bounds cost that are far too wide: accuracy and AUC of `auto` with all bounds multiplied by up to 1,000.

    python -m experiments.wide_bounds               # the table of docs/accuracy.md, on training rows

Bounds within [-1, 1] stay: they are those of indicators.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import replace

from boltdp.engines.base import Engine
from boltdp.schema.columns import Column, Numeric
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows.train import train
from experiments.rule import rows_of
from experiments.tasks import Answer, Scores, Task, judged

NAMES = ("adult", "credit")
FACTORS = (1, 10, 100, 1_000)
#: Epsilon, and whether there is a delta of 1/m^2.
BUDGETS = ((0.1, True), (1.0, True), (1.0, False))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    print("| | budget | " + " | ".join(f"bounds x {factor:,}" for factor in FACTORS) + " |")
    print("|---" * (2 + len(FACTORS)) + "|")
    for name in NAMES:
        rows, judging, schema = rows_of(name)
        for epsilon, gaussian in BUDGETS:
            settings = Settings(epsilon=epsilon, delta=rows.count() ** -2.0 if gaussian else 0.0)
            cells = []
            for factor in FACTORS:
                wide = widen_bounds(schema, factor)
                runs = [*measure(name, rows, judging, wide, settings, chosen.repeats)]
                cells.append(" / ".join(f"{statistics.mean(run[what] for run in runs):.3f}" for what in runs[0]))
            print(f"| {name} | {epsilon:g}{' with a delta' if gaussian else ''} | {' | '.join(cells)} |", flush=True)


def measure(
    name: str, rows: Engine, judging: Engine, schema: Schema, settings: Settings, repeats: int
) -> Iterator[Scores]:
    """Yield the accuracy and the AUC of each training."""
    labels = Task(name, rows, judging, schema).labels
    for _ in range(repeats):
        scores = judged(Answer.of_model(train(rows, schema, settings), judging), labels)
        yield {what: scores[what] for what in ("accuracy", "auc")}


def widen_bounds(schema: Schema, factor: int) -> Schema:
    """Return the schema with the bounds of its numbers multiplied by a factor, but lower bounds above 0.

    >>> from boltdp.schema.schema import Classes
    >>> schema = Schema(Classes("ill", (0, 1)), (Numeric("age", 17, 90), Numeric("change", -5, 5)))
    >>> [column.encoding_rule.bounds for column in widen_bounds(schema, 10).columns]
    [(17.0, 900.0), (-50.0, 50.0)]
    """
    return replace(schema, columns=tuple(_widen(column, factor) for column in schema.columns))


def _widen(column: Column, factor: int) -> Column:
    if not isinstance(column, Numeric) or (column.low >= -1 and column.high <= 1):
        return column
    return replace(column, low=column.low * (factor if column.low < 0 else 1), high=column.high * factor)


if __name__ == "__main__":
    main()
