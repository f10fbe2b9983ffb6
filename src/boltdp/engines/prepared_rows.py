"""Prepared rows: encoded once by an engine, and read by any number of passes, draws and sums."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from boltdp import _interrupts
from boltdp._array_types import Integers, PackedRows
from boltdp._threads import run_all
from boltdp.errors import ParameterError
from boltdp.kernel import sgd
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.sgd import State
from boltdp.kernel.sum_state import Summation
from boltdp.run_context import Context

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Partition:
    """The rows at positions start to stop - 1, the states trained on these rows alone, and their passes."""

    start: int
    stop: int
    states: Sequence[State]
    seeds: Sequence[int | None]  #: one per pass: the seed of the reshuffle before it, or None for no reshuffle

    @property
    def rows(self) -> int:
        return self.stop - self.start


class PreparedRows(ABC):
    """Rows that an engine has encoded, in permuted order unless they are for sums only. Closing removes them.

    States and sums must have been made with the same `feature_map`. `run_pass` and `add_to_sums` use `read_blocks`, and
    `run_partitions` uses `slice`, `reshuffle` and `run_pass`; an engine may override them to run where the rows are.
    """

    _threads: int = 1  #: number of threads in which this process may scan the rows

    def __init__(
        self, start: int, stop: int, *, cells: int, feature_map: FeatureMap | None, permuted: bool = True
    ) -> None:
        self._start, self.rows = start, stop - start  #: a range of the rows of a store
        self.cells = cells  #: cells per row, after the label
        self.feature_map = feature_map  #: maps cells to features; None: the cells are the features
        self.permuted = permuted  #: whether rows are permuted; if not, they are for sums only

    @property
    def _stop(self) -> int:
        return self._start + self.rows

    @property
    def dims(self) -> int:
        """The number of features of a row."""
        return self.cells if self.feature_map is None else self.feature_map.dims

    def with_feature_map(self, feature_map: FeatureMap | None) -> Self:
        """Return a view of the prepared rows with another feature map, which needs no closing."""
        if feature_map is not None and feature_map.cells != self.cells:
            raise ParameterError(f"feature_map must be of {self.cells} cells, got {feature_map.cells}")
        view = copy.copy(self)
        view.feature_map = feature_map
        return view

    @abstractmethod
    def read_blocks(self) -> Iterator[PackedRows]:
        """Yield the packed rows in order, in blocks of many rows."""

    def slice(self, start: int, stop: int) -> PreparedRows:
        """Return a view of the prepared rows at positions start to stop - 1, which needs no closing."""
        self._check_permuted()
        check_range(start, stop, rows=self.rows, what="a slice")
        view = copy.copy(self)
        view._start, view.rows = self._start + start, stop - start
        return view

    @abstractmethod
    def reshuffle(self, seed: int) -> None:
        """Permute the rows again: position p takes the row now at position compute_source_positions(p, ...; seed)."""

    @abstractmethod
    def run_sampled_batches(self, states: Sequence[State], positions: Iterable[Integers]) -> None:
        """Update every SGD state with the rows at sampled positions, in this order.

        `sgd.BATCH_END` among the positions ends a batch. How the positions are split into arrays does not matter.
        Positions and their number are as sensitive as the rows, since privacy amplification by sampling relies on them:
        they appear in no message, statement or permanent file, and no progress is reported.
        """

    def _translate_positions(
        self, states: Sequence[State], positions: Iterable[Integers], size: int
    ) -> Iterator[Integers]:
        """Check SGD states and sampled positions, and yield the positions within the whole store, `size` at a time."""
        self._check_permuted()
        self._check_width(states)
        return offset_positions(positions, start=self._start, stop=self._stop, size=size)

    @abstractmethod
    def close(self) -> None:
        """Remove the prepared rows from memory, disk or server."""

    def run_pass(self, states: Sequence[State], context: Context) -> None:
        """Run one SGD pass: update every state with each row once, in order."""
        self._check_permuted()
        done = 0
        for block in self.read_blocks():
            sgd.run(states, block)
            done += len(block)
            context.report_rows(done)

    def run_partitions(self, parts: Sequence[Partition], context: Context) -> None:
        """Run all SGD passes over each of several disjoint partitions; a finished state skips the remaining passes.

        An engine may send the states of a part to its rows, run all passes there, and take the states back. The order
        and the place of execution do not change the result.
        """
        self._check_partitions(parts)
        passes = PassProgress(parts, context)
        # A single part runs in the calling thread, which can be interrupted.
        threads = min(self._threads, max(len(parts), 1))
        run_all(lambda part: run_partition(self, part, passes), parts, threads=threads)

    def add_to_sums(self, sums: Sequence[Summation]) -> None:
        """Add every row to each of the sums over rows (such as gradients), in one scan.

        No progress is reported, since the number of scans of a solver depends on the rows.
        """
        self._check_width(sums)
        for block in self.read_blocks():
            _interrupts.check()
            for each in sums:
                each.add(block)

    @contextmanager
    def open_sample(self, share: float) -> Iterator[PreparedRows]:
        """Yield prepared rows for sums over a hash sample of this share of rows: a copy of the sample, or all rows."""
        yield self

    def _check_width(self, fed: Iterable[State | Summation]) -> None:
        """Raise ParameterError if SGD states or sums are for rows with another number of cells."""
        for each in fed:
            if each.cells != self.cells:
                raise ParameterError(f"rows must have 1 + {each.cells} columns, got {1 + self.cells}")

    def _check_permuted(self) -> None:
        if not self.permuted:
            raise ParameterError("rows must be prepared in a permuted order for anything but sums, these are in any")

    def _check_partitions(self, parts: Sequence[Partition]) -> None:
        """Raise ParameterError if partitions overlap or are out of range, or if their states do not fit the rows."""
        self._check_permuted()
        for part in parts:
            check_range(part.start, part.stop, rows=self.rows, what="a partition")
            self._check_width(part.states)
        bounds = sorted((part.start, part.stop) for part in parts)
        if any(stop > start for (_, stop), (start, _) in pairwise(bounds)):
            raise ParameterError("partitions must not share rows, got some that do")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PassProgress:
    """Reports progress of each pass if there is one partition, else the total of all partitions."""

    def __init__(self, parts: Sequence[Partition], context: Context) -> None:
        self._several = len(parts) > 1
        self._passes = max((len(part.seeds) for part in parts), default=0)
        total = sum(part.rows * len(part.seeds) for part in parts)
        self._context = context.start_stage(f"{self._passes} passes over {len(parts)} partitions", total)
        self._done = 0
        self._lock = threading.Lock()

    def start_pass(self, number: int, part: Partition) -> Context:
        """Return the context to which a pass over a partition reports its rows."""
        if self._several:
            return self._context.mute()
        return self._context.start_stage(f"pass {number} of {self._passes}", part.rows)

    def finish_pass(self, part: Partition) -> None:
        """Report the rows of a finished pass, if there are several partitions."""
        if self._several:
            with self._lock:
                self._done += part.rows
                self._context.report_rows(self._done)


def run_partition(prepared: PreparedRows, part: Partition, passes: PassProgress) -> None:
    """Run all SGD passes over the rows of one partition."""
    rows = prepared if part.rows == prepared.rows else prepared.slice(part.start, part.stop)
    for number, seed in enumerate(part.seeds, 1):
        if seed is not None:
            rows.reshuffle(seed)
        rows.run_pass([state for state in part.states if not state.is_finished], passes.start_pass(number, part))
        passes.finish_pass(part)


def check_range(start: int, stop: int, *, rows: int, what: str) -> None:
    """Raise ParameterError if a range is empty or out of bounds."""
    if not 0 <= start < stop <= rows:
        raise ParameterError(f"{what} must have 0 <= start < stop <= {rows}, got start={start} and stop={stop}")


def offset_positions(positions: Iterable[Integers], *, start: int, stop: int, size: int) -> Iterator[Integers]:
    """Yield sampled positions relative to `start` as positions in the whole store; -1, the end of a batch, stays.

    Positions are checked and yielded in arrays of `size`, in a buffer that is reused.
    """
    buffer = np.empty(size, np.int64)
    used = 0
    for drawn in positions:
        if drawn.dtype != np.int64 or drawn.ndim != 1:
            raise ParameterError(f"positions must be 1-D arrays of int64, got {drawn.ndim}-D {drawn.dtype}")
        if len(drawn) and not (drawn.min() >= -1 and drawn.max() < stop - start):
            raise ParameterError(f"positions must be from -1 to {stop - start - 1}, got one outside")
        while len(drawn):
            taken = min(len(drawn), size - used)
            part = drawn[:taken]
            buffer[used : used + taken] = part if start == 0 else np.where(part < 0, -1, part + start)
            used, drawn = used + taken, drawn[taken:]
            if used == size:
                yield buffer
                used = 0
    if used:
        yield buffer[:used]
