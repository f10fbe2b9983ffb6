"""Figure 4: run time in PostgreSQL against the number of epochs and the size of batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from boltdp.errors import DataError
from boltdp.schema.schema import make_array_schema
from experiments.reproduce import data
from experiments.reproduce.figure import QUICK_REPEATS, Options, Runs, mean_and_spread
from experiments.reproduce.panels import Panel, Series
from experiments.reproduce.timing import (
    CONTEXT,
    WAYS,
    TimingFigure,
    Turns,
    in_postgres,
    interval,
    train_once,
)
from experiments.store import add_line

EPOCHS, BATCH_SIZES = (1, 5, 10, 20), (1, 10, 100, 500)
REPEATS = 4  #: as in the paper


class Runtime(TimingFigure):
    """Noise in every update against noise once."""

    number, name = 4, "runtime"
    title = "Run time in PostgreSQL"
    settings = (
        "Strongly convex, (ε, δ), ε = 0.1, λ = 0.0001; above b = 10 and 1 to 20 epochs, below 1 epoch and b = 1 to "
        "500. Rows are in the server, packed; times are of the passes and the release, warm: means of 4 runs and their "
        "90 % confidence interval. MNIST is the model of one digit, “is it a 0?”."
    )
    data: Sequence[str] = ("mnist", "protein", "covertype")
    fields = ("data", "epochs", "batch_size", "way")

    def keys(self, name: str, *, quick: bool) -> Iterator[tuple[str, int, int, str]]:
        """All that is timed, in turns of the ways."""
        pairs = [(epochs, 10) for epochs in EPOCHS] + [(1, size) for size in BATCH_SIZES]
        for epochs, size in dict.fromkeys(pairs):
            if not quick or epochs in (1, 20):
                yield from ((name, epochs, size, way) for way in WAYS)

    def run(self, options: Options) -> int:
        """Load each dataset once, and time what is not there yet."""
        repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
        left = 0
        for name in self.data:
            done = self.read(options.results)
            pending = [
                (key, repeat)
                for repeat in range(repeats)
                for key in self.keys(name, quick=options.quick)
                if repeat not in done.get(key, {})
            ]
            if pending and not options.late:
                pending = self._measure(name, pending, options)
            left += len(pending)
        return left

    def _measure(
        self, name: str, pending: list[tuple[tuple[str, int, int, str], int]], options: Options
    ) -> list[tuple[tuple[str, int, int, str], int]]:
        try:
            rows = data.on_the_sphere(name)
        except DataError as fault:
            print(f"{self.name}: {name} is left out: {fault}", flush=True)
            return []
        positive = 0 if rows.classes > 2 else 1
        labels = (rows.labels == positive).astype(np.int32)
        blocks = ((rows.training[at : at + 8192], labels[at : at + 8192]) for at in range(0, rows.rows, 8192))
        schema = make_array_schema(dims=rows.dims, classes=(0, 1))
        with Turns() as turns, ExitStack() as stack:
            opened = in_postgres(blocks, dims=rows.dims, shared_buffers="1GB", memory="1TB")
            engine, clock = stack.enter_context(opened)
            table = stack.enter_context(engine.prepare(schema, CONTEXT))
            stack.enter_context(turns.alone())
            train_once(table, schema, "noiseless", batch_size=10, passes=1)  # warm
            while pending and not options.late:
                key, repeat = pending[0]
                _, epochs, size, way = key
                work = partial(train_once, table, schema, way, batch_size=size, passes=epochs)
                measured = clock.measure(work)
                add_line(self.path(options.results), self.record(key, repeat, measured))
                pending.pop(0)
        return pending

    def panels(self, results: Path) -> list[Panel]:
        """Against epochs, then against batch sizes."""
        found = self.read(results)
        panels = []
        for xlabel, places in (
            ("epochs, b = 10", [(epochs, epochs, 10) for epochs in EPOCHS]),
            ("batch size, 1 epoch", [(size, 1, size) for size in BATCH_SIZES]),
        ):
            for name in self.data:
                series = []
                for way, title in WAYS.items():
                    points = [
                        (x, mean_and_spread(runs, "seconds")[0], interval(runs, "seconds"))
                        for x, epochs, size in places
                        if (runs := found.get((name, epochs, size, way)))
                    ]
                    if points:
                        series.append(Series.through(way, points, name=title))
                if series:
                    epochs = xlabel.startswith("epochs")
                    panels.append(
                        Panel(data.SOURCES[name].title, xlabel, "seconds", series, log_x=not epochs, log_y=not epochs)
                    )
        return panels


def ratio(
    found: Mapping[tuple[Any, ...], Runs], name: str, epochs: int, size: int, way: str
) -> tuple[float, float] | None:
    """How many times as long as ours a way takes, by processor time, and the deviation of this ratio."""
    theirs, ours = found.get((name, epochs, size, way)), found.get((name, epochs, size, "valid"))
    if not theirs or not ours:
        return None
    (top, above), (bottom, below) = (mean_and_spread(runs, "processor") for runs in (theirs, ours))
    return top / bottom, top / bottom * math.hypot(above / top, below / bottom)
