"""What the figures of run times share: the ways, a clock, and rows in PostgreSQL."""

from __future__ import annotations

import fcntl
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._array_types import PackedRows
from boltdp.engines.base import Engine, PreparedRows
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import certify
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.workflows.train import train_prepared
from experiments.reproduce.figure import Figure, Runs, commit, mean_and_spread
from experiments.reproduce.methods import REGULARIZATION, Cell, planned
from experiments.store import lines

#: Features and labels, a block at a time.
Blocks: TypeAlias = Iterable[tuple[PackedRows, npt.NDArray[np.int32]]]

CONTEXT = Context(seed=1)
EPSILON = 0.1
#: Of those that are timed, the way of a cell; test 4, as in the paper.
WAYS: Mapping[str, str] = {"noiseless": "noiseless", "valid": "ours", "scs13": "SCS13", "bst14": "BST14"}
#: A file that is locked while something is timed, so that others who do the same wait.
LOCK = "BOLTDP_TIMING_LOCK"
TURN_SECONDS = 150.0


class Turns:
    """A lock that the environment may name: shared while rows are loaded, held alone while something is timed.

    >>> with Turns() as turns, turns.alone():
    ...     pass
    """

    def __init__(self) -> None:
        named = os.environ.get(LOCK)
        self._file = os.open(named, os.O_RDWR | os.O_CREAT, 0o666) if named else None
        self._since = 0.0

    def __enter__(self) -> Turns:
        self._take(fcntl.LOCK_SH)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody else has it, and let nobody have it."""
        self._take(fcntl.LOCK_EX)
        yield
        self._take(fcntl.LOCK_SH)

    def pause(self) -> bool:
        """Between two measurements: let others have it if it was held alone for minutes; whether that was so."""
        long = self._file is not None and time.monotonic() - self._since > TURN_SECONDS
        if long:
            self._take(fcntl.LOCK_SH)
            self._take(fcntl.LOCK_EX)
        return long

    def _take(self, how: int) -> None:
        if self._file is not None:
            fcntl.flock(self._file, how)
            self._since = time.monotonic()


@contextmanager
def postgres_server(shared_buffers: str) -> Iterator[str]:
    """A server of its own, with the extension's files in place; its URI."""
    from boltdp.engines.postgres.local_server import run_private_server

    with run_private_server(settings={"shared_buffers": shared_buffers, "max_wal_size": "8GB"}) as server:
        yield server.uri


@contextmanager
def in_postgres(blocks: Blocks, *, dims: int, shared_buffers: str, memory: str) -> Iterator[tuple[Engine, Clock]]:
    """Rows in a table of a server, and a clock that counts the work of the server's process too.

    `memory` is what preparing may use in this process and for what it draws.
    """
    import psycopg
    from bench.postgres import backend_seconds, load_arrays

    from boltdp.engines.postgres import PostgresEngine

    with postgres_server(shared_buffers) as uri, psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS boltdp")
        load_arrays(uri, "reproduced", blocks, dims=dims)
        connection.execute("CHECKPOINT")
        with PostgresEngine(uri, table="reproduced", where="server", memory=memory) as engine:
            ((pid,),) = engine._session.ask("SELECT pg_backend_pid()", fault="the server cannot be asked")
            yield engine, Clock(lambda: backend_seconds(pid))
        connection.execute("DROP TABLE reproduced")


def train_once(prepared: PreparedRows, schema: Schema, way: str, *, batch_size: int, passes: int) -> None:
    """All passes and the release of one model of two classes; strongly convex, (epsilon, delta)."""
    cell = Cell("", 4, way, EPSILON, batch_size=batch_size, passes=passes, regularization=REGULARIZATION)
    budget = None if way == "noiseless" else Budget(EPSILON, float(prepared.rows) ** -2)
    event = planned(cell, rows=prepared.rows, dims=prepared.dims, classes=2, budget=budget)
    train_prepared(prepared, schema, certify(event, budget), CONTEXT)


@dataclass(frozen=True)
class Clock:
    """Seconds by the clock and of the processor, of this process and a backend of the server's."""

    backend: Callable[[], float] = lambda: 0.0

    def measure(self, work: Callable[[], object]) -> dict[str, float]:
        """What a piece of work takes."""
        clock, processor = time.perf_counter(), time.process_time() + self.backend()
        work()
        taken = time.perf_counter() - clock
        return {"seconds": taken, "processor": time.process_time() + self.backend() - processor}


def interval(runs: Runs, metric: str) -> float:
    """Half of the 90 % confidence interval of the mean, as the paper's error bars have it.

    >>> round(interval({0: {"seconds": 1.0}, 1: {"seconds": 2.0}}, "seconds"), 3)
    3.157
    """
    from scipy.stats import t

    if len(runs) < 2:
        return 0.0
    spread = statistics.stdev(run[metric] for run in runs.values())
    return float(t.ppf(0.95, len(runs) - 1)) * spread / math.sqrt(len(runs))


class TimingFigure(Figure):
    """A figure whose keys are a few names and numbers, and whose runs are times."""

    fields: tuple[str, ...]  #: of a key

    def read(self, results: Path) -> dict[tuple[Any, ...], Runs]:
        """The runs in the file, by their keys."""
        found: dict[tuple[Any, ...], Runs] = {}
        for record in lines(self.path(results)):
            key = tuple(record["cell"][name] for name in self.fields)
            found.setdefault(key, {})[record["repeat"]] = record["measured"]
        return found

    def record(self, key: tuple[Any, ...], repeat: int, measured: Mapping[str, float]) -> dict[str, Any]:
        """A line of the file."""
        rounded = {name: round(value, 6) for name, value in measured.items()}
        cell = dict(zip(self.fields, key, strict=True))
        return {"cell": cell, "repeat": repeat, "measured": rounded, "commit": commit()}

    def rows(self, results: Path) -> list[dict[str, Any]]:
        """A row for each key."""
        rows = []
        for key, runs in self.read(results).items():
            row: dict[str, Any] = {**dict(zip(self.fields, key, strict=True)), "runs": len(runs)}
            for name in ("seconds", "processor"):
                row[name], row[f"{name} sd"] = (round(one, 5) for one in mean_and_spread(runs, name))
            rows.append(row)
        return rows
