"""Figure 5: run time of an epoch against the number of rows, in PostgreSQL and DuckDB, in memory and beyond it."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from boltdp.engines.base import Engine, PreparedRows
from boltdp.engines.duckdb import DuckDBEngine
from boltdp.schema.schema import Schema, make_array_schema
from boltdp.workflows.synthesize import TABLE, draw_synthetic_blocks, make_synthetic_schema, synthesize
from experiments.reproduce.figure import Options, Runs, mean_and_spread
from experiments.reproduce.panels import Panel, Series
from experiments.reproduce.timing import CONTEXT, WAYS, Clock, TimingFigure, Turns, in_postgres, train_once
from experiments.store import add_line

DIMS = 50
REPEATS, QUICK_REPEATS = 3, 1


@dataclass(frozen=True)
class Place:
    """An engine with so much memory for the rows, and how many rows it gets."""

    engine: str
    memory: str
    title: str
    rows: Sequence[int]
    quick: Sequence[int]


_MILLIONS = (2_500_000, 5_000_000, 7_500_000, 10_000_000)
_BEYOND = (5_000_000, 10_000_000, 15_000_000, 20_000_000)
_QUICK, _QUICK_BEYOND = (100_000, 250_000, 500_000), (700_000, 1_000_000, 1_400_000)
PLACES: Mapping[str, Place] = {
    "postgres": Place("PostgreSQL", "6GB", "PostgreSQL, in memory (6 GB)", _MILLIONS, _QUICK),
    "postgres-disk": Place(
        "PostgreSQL",
        "128MB",
        "PostgreSQL, beyond memory (128 MB)",
        _BEYOND,
        _QUICK_BEYOND,
    ),
    "duckdb": Place("DuckDB", "6GB", "DuckDB, in memory (6 GB)", _MILLIONS, _QUICK),
    "duckdb-disk": Place("DuckDB", "128MB", "DuckDB, beyond memory (128 MB)", _BEYOND, _QUICK_BEYOND),
}
Key = tuple[str, int, str]


class Scale(TimingFigure):
    """Whether time grows with the rows in a straight line."""

    number, name = 5, "scale"
    title = "Scalability in PostgreSQL and DuckDB"
    settings = (
        "Synthetic rows of 50 features, b = 1, ε = 0.1, λ = 0.0001, (ε, δ): seconds of an epoch, and of preparing the "
        "rows once before all epochs. A row takes 204 bytes when it is prepared: 20,000,000 are 4.1 GB. What the "
        "engine may use is in brackets: shared_buffers of PostgreSQL, or what rows may take in DuckDB. What the system "
        "keeps of its files is not limited."
    )
    fields = ("place", "rows", "way")

    def run(self, options: Options) -> int:
        """A size after the other, the smallest first, each prepared once."""
        repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
        left = 0
        for place, rows in self.sizes(quick=options.quick):
            done = self.read(options.results)
            ways = ("prepare", *WAYS)
            pending = [
                ((place, rows, way), repeat)
                for repeat in range(repeats)
                for way in ways
                if repeat not in done.get((place, rows, way), {}) and (way != "prepare" or repeat == 0)
            ]
            if pending and not options.late:
                self._measure(place, rows, pending, options)
                pending = []
            left += len(pending)
        return left

    def sizes(self, *, quick: bool) -> Iterator[tuple[str, int]]:
        """All places with all their sizes."""
        for name, place in PLACES.items():
            yield from ((name, rows) for rows in (place.quick if quick else place.rows))

    def _measure(self, place: str, rows: int, pending: Sequence[tuple[Key, int]], options: Options) -> None:
        with Turns() as turns, ExitStack() as stack:
            opened = _postgres if PLACES[place].engine == "PostgreSQL" else _duckdb
            engine, schema, clock = opened(stack, rows, PLACES[place].memory)
            made: list[PreparedRows] = []
            stack.enter_context(turns.alone())
            prepared_in = clock.measure(lambda: made.append(engine.prepare(schema, CONTEXT)))
            prepared = stack.enter_context(made[0])
            warm = partial(train_once, prepared, schema, "noiseless", batch_size=1, passes=1)
            warm()
            for key, repeat in pending:
                if turns.pause():
                    warm()
                once = partial(train_once, prepared, schema, key[2], batch_size=1, passes=1)
                taken = prepared_in if key[2] == "prepare" else clock.measure(once)
                add_line(self.path(options.results), self.record(key, repeat, taken))
        print(f"{self.name}: {place}, {rows:,} rows", flush=True)

    def panels(self, results: Path) -> list[Panel]:
        """A panel for each place."""
        found = self.read(results)
        panels = []
        for place, about in PLACES.items():
            series = []
            for way, title in {**WAYS, "prepare": "preparing, once"}.items():
                points = [(rows / 1e6, *mean_and_spread(runs, "seconds")) for rows, runs in _sizes(found, place, way)]
                if points:
                    series.append(Series.through(way, points, name=title))
            if series:
                panels.append(Panel(about.title, "million rows", "seconds an epoch", series, log_x=False))
        return panels

    def notes(self, results: Path) -> list[str]:
        """The slope of each line, and how straight it is."""
        found = self.read(results)
        notes = []
        for place, about in PLACES.items():
            parts = []
            for way, title in {**WAYS, "prepare": "preparing"}.items():
                if (line := straight(found, place, way)) is not None:
                    parts.append(f"{title} {line.nanoseconds:.0f} ns a row (R² = {line.squared:.4f})")
            if parts:
                most = max(rows for name, rows, _ in found if name == place)
                notes.append(f"{about.title}, to {most:,} rows: {'; '.join(parts)}.")
        return notes


@dataclass(frozen=True)
class Line:
    """The straight line nearest to the times of several sizes."""

    nanoseconds: float  #: a row
    squared: float  #: R^2
    rows: int  #: at most


def straight(found: Mapping[tuple[Any, ...], Runs], place: str, way: str) -> Line | None:
    """The slope and R^2 of the median times; None for fewer than three sizes.

    >>> runs = {("duckdb", rows, "valid"): {0: {"seconds": rows * 1e-8}} for rows in (10, 20, 30)}
    >>> line = straight(runs, "duckdb", "valid")
    >>> round(line.nanoseconds), round(line.squared, 3)
    (10, 1.0)
    """
    points = [
        (rows, statistics.median(run["seconds"] for run in runs.values())) for rows, runs in _sizes(found, place, way)
    ]
    if len(points) < 3:
        return None
    xs, ys = np.array(points).T
    slope, start = np.polyfit(xs, ys, 1)
    lost = float(((ys - start - slope * xs) ** 2).sum() / ((ys - ys.mean()) ** 2).sum())
    return Line(1e9 * float(slope), 1.0 - lost, int(xs.max()))


def _sizes(found: Mapping[tuple[Any, ...], Runs], place: str, way: str) -> list[tuple[int, Runs]]:
    return sorted((key[1], runs) for key, runs in found.items() if key[0] == place and key[2] == way)


def _postgres(stack: ExitStack, rows: int, memory: str) -> tuple[Engine, Schema, Clock]:
    opened = in_postgres(draw_synthetic_blocks(rows=rows, dims=DIMS), dims=DIMS, shared_buffers=memory, memory="128MB")
    engine, clock = stack.enter_context(opened)
    return engine, make_array_schema(dims=DIMS, classes=(0, 1)), clock


def _duckdb(stack: ExitStack, rows: int, memory: str) -> tuple[Engine, Schema, Clock]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="boltdp-scale-")))
    path = folder / "rows.duckdb"
    synthesize(path, rows=rows, dims=DIMS)
    os.sync()
    engine = stack.enter_context(DuckDBEngine.from_database(path, table=TABLE))
    engine.memory_bytes = int(memory.removesuffix("GB")) << 30 if memory.endswith("GB") else 128 << 20
    return engine, make_synthetic_schema(dims=DIMS), Clock()
