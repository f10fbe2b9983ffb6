"""Run the benchmarks and print each ratio with its target: `python -m bench [NAME ...] [--rows N]`."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys

from rich.console import Console
from rich.table import Table

from bench.ratio import Ratio

#: In the order they are run. `scale` takes minutes at its default size; --rows makes it smaller.
BENCHES = (
    "startup",
    "install",
    "kernel",
    "overhead",
    "tuning",
    "errors",
    "objective",
    "preparing",
    "alternatives",
    "scale",
)
#: Run when asked for by name: they start a server, or a Spark.
ON_DEMAND = ("ledger", "postgres", "spark", "whitebox")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which of {', '.join(BENCHES)}; all by default; or {', '.join(ON_DEMAND)}",
    )
    parser.add_argument("--rows", type=int, help="rows, for the benchmarks that can be made smaller or larger")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {*BENCHES, *ON_DEMAND}
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    ratios: list[Ratio] = []
    for name in arguments.names or BENCHES:
        print(f"{name} ...", flush=True)
        run = importlib.import_module(f"bench.{name}").run
        takes_rows = arguments.rows is not None and "rows" in inspect.signature(run).parameters
        ratios += run(rows=arguments.rows) if takes_rows else run()
    table = Table("ratio", "value", "target", "met")
    for ratio in ratios:
        table.add_row(ratio.name, f"{ratio.value:.3f}", ratio.target, "yes" if ratio.met else "NO")
    Console(width=140).print(table)
    return 0 if all(ratio.met for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
