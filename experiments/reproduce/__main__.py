"""Run the paper's figures again, and make the report of what came out.

python -m experiments.reproduce all --quick        # every figure, smaller: under 20 minutes on two cores
python -m experiments.reproduce public-tuning      # one figure, by its name or its number; again: it goes on
python -m experiments.reproduce all --jobs 2       # everything, as docs/reproduction.md has it
python -m experiments.reproduce report             # from the results alone: pictures, tables, one HTML page
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.reproduce.figure import Figure, Options
from experiments.reproduce.figures import FIGURES


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="figures: " + ", ".join(f"{one.number} {one.name}" for one in FIGURES.values()),
    )
    parser.add_argument("figure", help="the name or the number of a figure, `all` of them, or `report`")
    parser.add_argument("--quick", action="store_true", help="fewer epsilons and sizes, and 2 repeats")
    parser.add_argument("--data", type=Path, help="folder of Parquet files; default: BOLTDP_DATA, or ../shared/data")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results; default: %(default)s")
    parser.add_argument("--repeats", type=int, help="10 unless said, or 2 with --quick")
    parser.add_argument("--jobs", type=int, default=1, help="processes for accuracies; times are measured by one")
    parser.add_argument("--minutes", type=float, help="stop after so long; the same command then goes on")
    parser.add_argument("--docs", type=Path, help="of report: folder whose reproduction.md gets the verdicts")
    chosen = parser.parse_args(arguments)
    if chosen.data is not None:
        os.environ["BOLTDP_DATA"] = str(chosen.data)
    chosen.results.mkdir(parents=True, exist_ok=True)
    if chosen.figure == "report":
        from experiments.reproduce.report import publish, write

        print(write(chosen.results))
        if chosen.docs is not None:
            publish(chosen.results, chosen.docs)
        return
    figures = chosen_figures(chosen.figure)
    if not figures:
        parser.error(f"no such figure: {chosen.figure!r}; there are {', '.join(FIGURES)}, all and report")
    until = float("inf") if chosen.minutes is None else time.monotonic() + 60.0 * chosen.minutes
    options = Options(chosen.results, chosen.quick, chosen.repeats, chosen.jobs, until)
    for figure in figures:
        start = time.monotonic()
        left = figure.run(options)
        figure.save_about(options, time.monotonic() - start)
        figure.save_table(options.results)
        print(f"{figure.name}: {f'{left} to go' if left else 'done'}", flush=True)


def chosen_figures(name: str) -> list[Figure]:
    """The figures of a name or number."""
    return [one for one in FIGURES.values() if name in ("all", one.name, str(one.number))]


if __name__ == "__main__":
    main()
