"""Prepared rows: what an engine makes of its rows once, for any number of passes, draws and sums."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from boltdp import _interrupts
from boltdp._arrays import Integers, PackedRows
from boltdp.context import Context
from boltdp.errors import ParameterError
from boltdp.kernel import sgd
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.sgd import State
from boltdp.kernel.sum_state import Summation

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Partition:
    """The rows at positions start to stop - 1, the states that see these rows alone, and all passes over them."""

    start: int
    stop: int
    states: Sequence[State]
    seeds: Sequence[int | None]  #: one a pass: what the rows are reshuffled by before it; None: they stay as they are

    @property
    def rows(self) -> int:
        return self.stop - self.start


class PreparedRows(ABC):
    """Encoded rows, in permuted order unless they are there for sums only. Closing it removes them.

    States and sums that are fed with the rows must have been made with its `feature_map`. `run_pass` and `sum` are made
    of `blocks`, and `run_parts` of `portion`, `reshuffle` and `run_pass`; an engine overrides them to run where the
    rows are.
    """

    rows: int
    cells: int  #: of a row, which has a label in front of them
    feature_map: FeatureMap | None  #: how the cells are read as features; None: they are the features
    ordered: bool = True  #: whether the order is the permuted one; else it is any, and good for sums only

    @property
    def dims(self) -> int:
        return self.cells if self.feature_map is None else self.feature_map.dims

    def read_by(self, feature_map: FeatureMap | None) -> Self:
        """The same rows with another feature map, as a view, which needs no closing."""
        if feature_map is not None and feature_map.cells != self.cells:
            raise ParameterError(f"feature_map must be of {self.cells} cells, got {feature_map.cells}")
        view = copy.copy(self)
        view.feature_map = feature_map
        return view

    @abstractmethod
    def blocks(self) -> Iterator[PackedRows]:
        """The packed rows in order, a block at a time."""

    @abstractmethod
    def portion(self, start: int, stop: int) -> PreparedRows:
        """The rows at positions start to stop - 1, as a view: it shares the rows and needs no closing."""

    @abstractmethod
    def reshuffle(self, seed: int) -> None:
        """Permute the current order again: position p takes the row now at source_position(p; seed)."""

    @abstractmethod
    def run_drawn(self, states: Sequence[State], positions: Iterable[Integers]) -> None:
        """Feed the rows at these positions, in this order, to every state: for batches that are drawn at random.

        `sgd.BATCH_END` among the positions ends a batch. How the positions are cut into arrays changes nothing. They
        are as secret as the rows, since the guarantee of a sampled algorithm rests on them, and so is their number: no
        message, statement or file that stays has any, and no progress is reported.
        """

    @abstractmethod
    def close(self) -> None:
        """Remove the rows."""

    def run_pass(self, states: Sequence[State], context: Context) -> None:
        """Feed every row once, in order, to every state."""
        check_ordered(self)
        done = 0
        for block in self.blocks():
            sgd.run(states, block)
            done += len(block)
            context.report_rows(done)

    def run_parts(self, parts: Sequence[Partition], context: Context) -> None:
        """Make all passes over each of several parts of the rows; a state takes part in as many as it has.

        Nothing is asked between passes: an engine may send each part's states to where its rows are, have all passes
        made there, and take the states back. In which order parts are done, and where, changes no bit.
        """
        check_parts(self, parts)
        passes = Passes(parts, context)
        for part in parts:
            run_part(self, part, passes)

    def sum(self, sums: Sequence[Summation]) -> None:
        """Add every row once to each of the sums, in one scan.

        No progress is reported: how many scans a solver makes depends on the rows.
        """
        check_width(sums, self.cells)
        for block in self.blocks():
            _interrupts.check()
            for each in sums:
                each.add(block)

    @contextmanager
    def sample_rows(self, share: float) -> Iterator[PreparedRows]:
        """Rows that are all that sums of this share take, in any order: these, or a copy of the few, quick to scan."""
        del share
        yield self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Passes:
    """How far the passes over parts are: of one part each is reported as it goes, of several their sum."""

    def __init__(self, parts: Sequence[Partition], context: Context) -> None:
        self._several = len(parts) > 1
        self._passes = max((len(part.seeds) for part in parts), default=0)
        total = sum(part.rows * len(part.seeds) for part in parts)
        self._context = context.start_stage(f"{self._passes} passes over {len(parts)} partitions", total)
        self._done = 0
        self._lock = threading.Lock()

    def start_pass(self, number: int, part: Partition) -> Context:
        """The context of a pass over a part."""
        if self._several:
            return self._context.mute()
        return self._context.start_stage(f"pass {number} of {self._passes}", part.rows)

    def finish_pass(self, part: Partition) -> None:
        """Count a pass over a part; several threads may do so."""
        if self._several:
            with self._lock:
                self._done += part.rows
                self._context.report_rows(self._done)


def run_part(prepared: PreparedRows, part: Partition, passes: Passes) -> None:
    """Make all passes over one part."""
    own = prepared if part.rows == prepared.rows else prepared.portion(part.start, part.stop)
    for number, seed in enumerate(part.seeds, 1):
        if seed is not None:
            own.reshuffle(seed)
        own.run_pass([state for state in part.states if not state.finished], passes.start_pass(number, part))
        passes.finish_pass(part)


class _HasCells(Protocol):
    """A state or a sum."""

    @property
    def cells(self) -> int: ...


class StoredRows(PreparedRows):
    """The rows of a store from one position to another; a part of them is a view with other positions."""

    def __init__(
        self, start: int, stop: int, *, cells: int, feature_map: FeatureMap | None, ordered: bool = True
    ) -> None:
        self._start, self.rows = start, stop - start
        self.cells, self.feature_map, self.ordered = cells, feature_map, ordered

    @property
    def _stop(self) -> int:
        return self._start + self.rows

    def portion(self, start: int, stop: int) -> Self:
        check_ordered(self)
        check_part(start, stop, rows=self.rows, what="a portion")
        view = copy.copy(self)
        view._start, view.rows = self._start + start, stop - start
        return view

    def reshuffle(self, seed: int) -> None:
        check_ordered(self)
        self._shuffle(seed)

    @abstractmethod
    def _shuffle(self, seed: int) -> None:
        """Permute the rows of the store from `_start` to `_stop` - 1."""

    def _join_positions(self, states: Sequence[State], positions: Iterable[Integers], size: int) -> Iterator[Integers]:
        """Check draws and the states that they are for, and return them as positions in the store."""
        check_ordered(self)
        check_width(states, self.cells)
        return join_positions(positions, start=self._start, stop=self._stop, size=size)


def check_width(fed: Iterable[_HasCells], cells: int) -> None:
    """Refuse states or sums for rows of another width, before anything is read or sent."""
    for each in fed:
        if each.cells != cells:
            raise ParameterError(f"rows must have 1 + {each.cells} columns, got {1 + cells}")


def check_ordered(prepared: PreparedRows) -> None:
    """Refuse rows in any order for what needs them in the permuted one."""
    if not prepared.ordered:
        raise ParameterError("rows must be prepared in a permuted order for anything but sums, these are in any")


def check_parts(prepared: PreparedRows, parts: Sequence[Partition]) -> None:
    """Refuse parts that share rows, and rows or states that cannot be passed over, before anything is read or sent."""
    check_ordered(prepared)
    for part in parts:
        check_part(part.start, part.stop, rows=prepared.rows, what="a partition")
        check_width(part.states, prepared.cells)
    bounds = sorted((part.start, part.stop) for part in parts)
    if any(stop > start for (_, stop), (start, _) in pairwise(bounds)):
        raise ParameterError("partitions must not share rows, got some that do")


def check_part(start: int, stop: int, *, rows: int, what: str) -> None:
    """Refuse a part that is empty or outside the rows.

    >>> check_part(0, 0, rows=9, what="a slice")
    Traceback (most recent call last):
    boltdp.errors.ParameterError: a slice must have 0 <= start < stop <= 9, got start=0 and stop=0
    """
    if not 0 <= start < stop <= rows:
        raise ParameterError(f"{what} must have 0 <= start < stop <= {rows}, got start={start} and stop={stop}")


def join_positions(positions: Iterable[Integers], *, start: int, stop: int, size: int) -> Iterator[Integers]:
    """Positions drawn of the rows start to stop - 1 and counted from there, made positions of the whole; -1 stays.

    They are checked, and come `size` at a time, in a buffer that is used again, however they were cut.

    >>> drawn = [np.array([2, -1]), np.array([0, 0, -1])]
    >>> [part.tolist() for part in join_positions(drawn, start=10, stop=13, size=4)]
    [[12, -1, 10, 10], [-1]]
    """
    buffer = np.empty(size, np.int64)
    used = 0
    for given in positions:
        if given.dtype != np.int64 or given.ndim != 1:
            raise ParameterError(f"positions must be 1-D arrays of int64, got {given.ndim}-D {given.dtype}")
        if len(given) and not (given.min() >= -1 and given.max() < stop - start):
            raise ParameterError(f"positions must be from -1 to {stop - start - 1}, got one outside")
        while len(given):
            taken = min(len(given), size - used)
            part = given[:taken]
            buffer[used : used + taken] = part if start == 0 else np.where(part < 0, -1, part + start)
            used, given = used + taken, given[taken:]
            if used == size:
                yield buffer
                used = 0
    if used:
        yield buffer[:used]
