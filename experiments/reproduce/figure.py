"""What a figure is: something that runs and resumes, and pictures that are made of its results alone."""

from __future__ import annotations

import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from boltdp._files.outputs import replace_file
from boltdp.errors import DataError
from experiments.reproduce import data, methods
from experiments.reproduce.methods import Cell
from experiments.reproduce.panels import Panel, Series
from experiments.store import add_line, lines

#: All runs of one key: the numbers that each gave.
Runs: TypeAlias = dict[int, dict[str, float]]
Results: TypeAlias = Mapping[Any, Runs]

REPEATS, QUICK_REPEATS = 10, 2
EPSILONS: Mapping[str, Sequence[float]] = {
    "mnist": (0.1, 0.2, 0.5, 1.0, 2.0, 4.0),
    **dict.fromkeys(("protein", "covertype", "higgs", "kddcup99"), (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)),
}
QUICK_EPSILONS: Mapping[str, Sequence[float]] = {
    "mnist": (0.5, 4.0),
    **dict.fromkeys(("protein", "covertype", "higgs", "kddcup99"), (0.05, 0.4)),
}


@dataclass(frozen=True)
class Options:
    """How a figure is run."""

    results: Path
    quick: bool = False
    repeats: int | None = None
    jobs: int = 1
    until: float = field(default=float("inf"))  #: `time.monotonic()` at which to stop

    @property
    def late(self) -> bool:
        """Whether it is time to stop."""
        return time.monotonic() > self.until


class Figure(ABC):
    """One figure of the paper."""

    number: ClassVar[int]
    name: ClassVar[str]
    title: ClassVar[str]
    settings: ClassVar[str]  #: in words, for the report

    def path(self, results: Path) -> Path:
        """The file of its results."""
        return results / f"{self.name}.jsonl"

    @abstractmethod
    def run(self, options: Options) -> int:
        """Measure what is not in the file yet; how many keys are left when it stops."""

    @abstractmethod
    def panels(self, results: Path) -> list[Panel]:
        """What is drawn."""

    @abstractmethod
    def rows(self, results: Path) -> list[dict[str, Any]]:
        """The results as a table: a row for each key, with means, deviations and how many runs there are."""

    def notes(self, results: Path) -> list[str]:
        """What to say under the pictures."""
        del results
        return []

    def save_table(self, results: Path) -> None:
        """Write the table as CSV beside the results."""
        if rows := self.rows(results):
            names = list(dict.fromkeys(name for row in rows for name in row))
            with replace_file(results / f"{self.name}.csv") as aside, aside.open("w", newline="") as file:
                writer = csv.DictWriter(file, names)
                writer.writeheader()
                writer.writerows(rows)

    def save_about(self, options: Options, seconds: float) -> None:
        """Write what made the results, and add the seconds of this run to those before."""
        path = options.results / f"{self.name}.json"
        before = json.loads(path.read_text("utf-8")).get("seconds", 0.0) if path.exists() else 0.0
        about = {"figure": self.number, "title": self.title, "settings": self.settings, **made_with()}
        with replace_file(path) as aside:
            aside.write_text(json.dumps({**about, "seconds": round(before + seconds, 1)}, indent=1) + "\n", "utf-8")


class AccuracyFigure(Figure):
    """A figure of test accuracies: cells that are trained again and again."""

    ways: ClassVar[Sequence[str]] = methods.WAYS

    @abstractmethod
    def cells(self, *, quick: bool) -> Iterator[Cell]:
        """All that is trained; two may have the same result."""

    def wanted(self, *, quick: bool) -> list[Cell]:
        """Each cell once, those of a dataset after the other."""
        unique = dict.fromkeys(cell.normal() for cell in self.cells(quick=quick) if cell.able)
        return sorted(unique, key=lambda cell: list(data.SOURCES).index(cell.data))

    def run(self, options: Options) -> int:
        """Train what is not there yet: a process takes all cells of one dataset and one repeat."""
        repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
        wanted = self.wanted(quick=options.quick)
        for name in sorted({cell.data for cell in wanted}):
            try:
                data.ensure(name)
            except DataError as fault:
                print(f"{self.name}: {name} is left out: {fault}", flush=True)
                wanted = [cell for cell in wanted if cell.data != name]
        done = {(cell, repeat) for cell, runs in self.read(options.results).items() for repeat in runs}
        parts = [
            (repeat, [cell for cell in cells if (cell, repeat) not in done])
            for repeat in range(repeats)
            for cells in (list(group) for _, group in groupby(wanted, lambda cell: cell.data))
        ]
        pending = [(self.path(options.results), repeat, cells, options.until) for repeat, cells in parts if cells]
        if options.jobs == 1 or len(pending) < 2:
            return sum(_measure(*part) for part in pending)
        os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            return sum(pool.map(_measure, *zip(*pending, strict=True)))

    def read(self, results: Path) -> dict[Cell, Runs]:
        """The runs in the file, by their cells."""
        found: dict[Cell, Runs] = {}
        for record in lines(self.path(results)):
            found.setdefault(Cell(**record["cell"]), {})[record["repeat"]] = record["measured"]
        return found

    def rows(self, results: Path) -> list[dict[str, Any]]:
        """A row for each cell."""
        rows = []
        for cell, runs in self.read(results).items():
            row: dict[str, Any] = {**asdict(cell), "runs": len(runs)}
            for name in ("accuracy", "balanced"):
                row[name], row[f"{name} sd"] = (round(one, 5) for one in mean_and_spread(runs, name))
            if values := [run["spent"] for run in runs.values() if "spent" in run]:
                row["spent epsilon"] = round(statistics.mean(values), 4)
            rows.append(row)
        return rows

    def notes(self, results: Path) -> list[str]:
        """The epsilon that the published noise really keeps, where that is not the one it claims."""
        times: dict[tuple[str, int], list[float]] = {}
        for cell, runs in self.read(results).items():
            if cell.epsilon is not None and (spent := [run["spent"] for run in runs.values() if "spent" in run]):
                times.setdefault((cell.data, cell.test), []).append(statistics.mean(spent) / cell.epsilon)
        return [
            f"As published, {data.SOURCES[name].title}, Test {test}, is not private: by our proof its noise keeps "
            f"{_span(many)} times the ε that is claimed."
            for (name, test), many in sorted(times.items())
            if max(many) > 1.01
        ]


def _span(values: Sequence[float]) -> str:
    """The least and the most, or the one that they are.

    >>> _span([1.0, 2.5]), _span([1.0, 1.01])
    ('1.0 to 2.5', '1.0')
    """
    low, high = (f"{pick(values):.1f}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _measure(path: Path, repeat: int, cells: Sequence[Cell], until: float) -> int:
    """Train cells of one dataset; how many are left when it is time to stop."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        for place, cell in enumerate(cells):
            if time.monotonic() > until:
                return len(cells) - place
            start = time.perf_counter()
            measured = {name: round(value, 6) for name, value in methods.measure(cell, repeat).items()}
            taken = {"seconds": round(time.perf_counter() - start, 3), "commit": commit()}
            add_line(path, {"cell": asdict(cell), "repeat": repeat, "measured": measured, **taken})
    print(f"{path.stem}: {cells[0].data}, repeat {repeat + 1}: {len(cells)} trainings", flush=True)
    return 0


def mean_and_spread(runs: Runs, metric: str) -> tuple[float, float]:
    """Mean and standard deviation.

    >>> mean_and_spread({0: {"accuracy": 0.5}, 1: {"accuracy": 0.7}}, "accuracy")
    (0.6, 0.14142135623730948)
    """
    values = [run[metric] for run in runs.values()]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def against_epsilon(
    results: Results, cells: Mapping[str, Cell], epsilons: Sequence[float], *, names: Mapping[str, str] | None = None
) -> list[Series]:
    """A line for each way, by its cell without an epsilon; what has none is level."""
    series = []
    for style, cell in cells.items():
        points = []
        for epsilon in epsilons:
            runs = results.get(replace(cell, epsilon=epsilon).normal())
            if runs:
                points.append((epsilon, *mean_and_spread(runs, "accuracy")))
        if points:
            series.append(Series.through(style, points, name=(names or {}).get(style)))
    return series


@lru_cache(maxsize=1)
def commit() -> str:
    """The version of the source, for every line of results: a run may go on with a later one."""
    try:
        asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def made_with() -> dict[str, Any]:
    """Versions and machine."""
    packages = ("boltdp", "numpy", "scipy", "scikit-learn", "pyarrow", "duckdb", "matplotlib", "psycopg")
    versions = {}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "commit": commit(),
        "versions": {"python": sys.version.split()[0], **versions},
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, {platform.system()}",
    }
