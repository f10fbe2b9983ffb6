"""The prepared rows: packed blocks in a DataFrame that Spark persists, in memory and on disk, until they are closed.

A scan is one job over all blocks. A pass of SGD goes through the parts one after another, a job for each. Only drawn
rows, which white-box algorithms ask for, are brought to this process once, and spooled here.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boltdp import stopping
from boltdp.arraytypes import Integers, PackedRows
from boltdp.context import Context
from boltdp.engines.prepared import Prepared, check_ordered, check_part, check_width, joined_positions
from boltdp.engines.spark import tasks
from boltdp.engines.spark.session import Session
from boltdp.engines.spark.tasks import CHANGED, CHANGED_HINT, PLACES, Places, Window
from boltdp.engines.spool import PreparedRows, spool
from boltdp.errors import DataError
from boltdp.kernel import State
from boltdp.kernel.reading import Reading
from boltdp.kernel.sums import Summation

#: Bytes of a part, at most: a task that puts one in order has all of it in memory.
PART_BYTES = 128 << 20
#: Smaller parts are not worth a task.
LEAST_PART_BYTES = 8 << 20
#: Bytes of partial sums that this process joins; executors join more than that among themselves first.
JOINED_BYTES = 256 << 20

FAULT = "the rows cannot be prepared"


@dataclass(frozen=True)
class Place:
    """What this process knows of a block: where it is, and nothing of its rows but their number and a digest."""

    part: int
    number: int
    file: int | None
    split: int | None
    start: int | None
    rows: int
    digest: bytes


class Stored:
    """A persisted DataFrame of blocks, and where they are."""

    def __init__(self, session: Session, frame: Any, *, width: int) -> None:
        """Persist and make the blocks: the one job that computes them."""
        self.session, self.width = session, width
        self.frame = frame
        self.places: list[Place] = []
        session.ask(lambda: frame.persist(_level()), FAULT)
        try:
            self.places = self._made()
        except BaseException:
            self.drop()
            raise

    @property
    def rows(self) -> int:
        """Of all blocks."""
        return sum(place.rows for place in self.places)

    def drop(self) -> None:
        """Let Spark forget the blocks."""
        self.session.ask(lambda: self.frame.unpersist(), "the rows cannot be dropped")

    def _made(self) -> list[Place]:
        found = self.session.ask(lambda: self.frame.select(*PLACES).collect(), FAULT)
        _check_faults(found)
        return [
            Place(
                one["part"], one["number"], one["file"], one["split"], one["start"], one["rows"], bytes(one["digest"])
            )
            for one in sorted(found, key=lambda one: (one["part"], one["number"]))
        ]

    def known(self, starts: Sequence[int]) -> Places:
        """The places as tasks look them up, with the position of each block's first row."""
        return Places(
            {
                (place.part, place.number): (start, place.digest)
                for place, start in zip(self.places, starts, strict=True)
            }
        )

    def results(self, task: tasks.Task, chosen: Sequence[Place], fault: str, *, where: str | None = None) -> list[Any]:
        """Run a task over blocks, in one job, and see to it that they were the chosen ones, as they were made first."""
        frame = self.frame if where is None else self.frame.where(where)
        return self.checked(self.session.mapped(frame, task), chosen, fault)

    def checked(self, frame: Any, chosen: Sequence[Place], fault: str) -> list[Any]:
        """The rows of results, if they are of the chosen blocks, as these were made first."""
        found = self.session.ask(lambda: frame.collect(), fault)
        _check_faults(found)
        met = tasks.fingerprint([bytes(one["fingerprint"]) for one in found])
        if met != tasks.fingerprint([place.digest for place in chosen]):
            raise DataError(CHANGED, hint=CHANGED_HINT)
        return sorted(found, key=lambda one: one["part"])

    def streamed(self, window: Window | None) -> Iterator[PackedRows]:
        """The blocks, brought to this process one after another."""
        frame = self.frame if window is None else self.frame.where(_overlap(window))
        expected = iter(self.overlapping(window))
        for one in rows_of(self.session, frame, "the rows cannot be read"):
            _check_faults([one])
            place = next(expected, None)
            if place is None or place.digest != bytes(one["digest"]):
                raise DataError(CHANGED, hint=CHANGED_HINT)
            packed = np.frombuffer(one["packed"], np.float32).reshape(-1, self.width)
            block = tasks.Block(place.part, place.number, place.start, place.digest, packed)
            yield packed if window is None else window.within(block)
        if next(expected, None) is not None:
            raise DataError(CHANGED, hint=CHANGED_HINT)

    def overlapping(self, window: Window | None) -> list[Place]:
        """The blocks that have rows of a window."""
        if window is None:
            return self.places
        return [
            place
            for place in self.places
            if place.start is not None and place.start < window.stop and place.start + place.rows > window.start
        ]


class PreparedBlocks(Prepared):
    """Packed blocks in a cluster, or those of them from one position to another."""

    def __init__(
        self,
        blocks: _Blocks,
        start: int,
        stop: int,
        *,
        reading: Reading | None,
    ) -> None:
        self._blocks = blocks
        self._start = start
        self.rows = stop - start
        self.cells = blocks.stored.width - 1
        self.reading = reading
        self.ordered = blocks.ordered

    @classmethod
    def of_any_order(cls, stored: Stored, *, reading: Reading | None, spool: str | Path | None) -> PreparedBlocks:
        """Blocks as they are, for sums alone."""
        return cls(_Blocks(stored, ordered=False, spool=spool), 0, stored.rows, reading=reading)

    @classmethod
    def shuffled(
        cls,
        stored: Stored,
        starts: Sequence[int],
        *,
        start: int,
        stop: int,
        seed: int,
        parts: int | None,
        reading: Reading | None,
        spool: str | Path | None,
    ) -> PreparedBlocks:
        """The rows at positions start to stop - 1 of blocks, permuted; `starts` says where the blocks begin."""
        rows = stop - start
        scanned = len({place.part for place in stored.places})
        bounds = part_bounds(rows, width=stored.width, scanned=scanned, parts=parts)
        ordered = _shuffle(stored, starts, start=start, stop=stop, others=False, bounds=bounds, seed=seed)
        return cls(_Blocks(ordered, ordered=True, spool=spool, bounds=bounds), 0, rows, reading=reading)

    @property
    def parts(self) -> int:
        """How many parts the rows are stored in."""
        return max(len(self._blocks.bounds) - 1, 1)

    def blocks(self) -> Iterator[PackedRows]:
        """The packed rows in order, a block at a time; they leave the cluster."""
        return self._blocks.stored.streamed(self._window)

    def portion(self, start: int, stop: int) -> PreparedBlocks:
        """The rows at positions start to stop - 1, as a view: it shares the rows and needs no closing."""
        check_ordered(self)
        check_part(start, stop, rows=self.rows, what="a portion")
        return PreparedBlocks(self._blocks, self._start + start, self._start + stop, reading=self.reading)

    def reshuffle(self, seed: int) -> None:
        """Permute the current order again: position p takes the row now at source_position(p; seed)."""
        check_ordered(self)
        self._blocks.shuffle(self._start, self._start + self.rows, seed)

    def run_pass(self, states: Sequence[State], context: Context) -> None:
        """Feed every row once, in order, to every state: a job for each part, one after another."""
        check_ordered(self)
        check_width(states, self.cells)
        context.done(0)
        for done in self._blocks.run(states, Window(self._start, self._start + self.rows)):
            context.done(done)

    def run_drawn(self, states: Sequence[State], positions: Iterable[Integers]) -> None:
        """Feed the rows at these positions, in this order, to every state: in this process, to which they come once."""
        check_ordered(self)
        check_width(states, self.cells)
        stop = self._start + self.rows
        self._blocks.local().run_drawn(states, joined_positions(positions, start=self._start, stop=stop, size=1 << 16))

    def sum(self, sums: Sequence[Summation]) -> None:
        """Add every row once to each of the sums, where the rows are: one job."""
        stopping.check()
        check_width(sums, self.cells)
        if sums:
            self._blocks.sum(sums, self._window)

    def close(self) -> None:
        """Let Spark forget the rows."""
        self._blocks.close()

    @property
    def _window(self) -> Window | None:
        whole = (self._start, self.rows) == (0, self._blocks.stored.rows)
        return None if whole else Window(self._start, self._start + self.rows)


class _Blocks:
    """What the views of prepared blocks share."""

    def __init__(
        self, stored: Stored, *, ordered: bool, spool: str | Path | None, bounds: tuple[int, ...] = ()
    ) -> None:
        self.stored, self.ordered, self.bounds = stored, ordered, bounds
        self._spool = spool
        self._local: PreparedRows | None = None

    def sum(self, sums: Sequence[Summation], window: Window | None) -> None:
        """One job, whose partial sums are joined here, or by executors first where they are large."""
        chosen, carried = self.stored.overlapping(window), tasks.carried([each.fresh() for each in sums])
        task, fault = tasks.Sum(carried, window, self.stored.width), "the rows cannot be summed"
        frame = self.stored.frame if window is None else self.stored.frame.where(_overlap(window))
        session = self.stored.session
        partial = session.mapped(frame, task)
        size = sum(len(each.to_bytes()) for each in sums)
        joiners = max(1, JOINED_BYTES // size)
        if len({place.part for place in chosen}) > joiners:
            partial = session.mapped(partial.repartitionById(joiners, "part"), tasks.Join(carried))
        for one in self.stored.checked(partial, chosen, fault):
            tasks.join_results(sums, bytes(one["result"]))

    def run(self, states: Sequence[State], window: Window) -> Iterator[int]:
        """A job for each part, which goes on where the last has ended; how many rows are done."""
        done = 0
        for part in sorted({place.part for place in self.stored.overlapping(window)}):
            chosen = [place for place in self.stored.overlapping(window) if place.part == part]
            task = tasks.Run(tasks.carried([state.to_bytes() for state in states]), window, self.stored.width)
            where = f"part = {part} AND {_overlap(window)}"
            (one,) = self.stored.results(task, chosen, "a pass cannot be run", where=where)
            for state, data in zip(states, pickle.loads(one["result"]), strict=True):
                state.update(data)
            done += one["rows"]
            yield done

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        """Permute the rows from start to stop - 1, into new blocks."""
        old = self.stored
        starts = [place.start or 0 for place in old.places]
        self.stored = _shuffle(old, starts, start=start, stop=stop, others=True, bounds=self.bounds, seed=seed)
        self._forget()
        old.drop()

    def local(self) -> PreparedRows:
        """The rows in this process, in their order."""
        if self._local is None:
            context = Context(seed=0, threads=1)
            self._local = spool(
                self.stored.streamed(None),
                rows=self.stored.rows,
                width=self.stored.width,
                ordered=False,
                context=context,
                directory=self._spool,
            )
            self._local.ordered = True  # as they are
        return self._local

    def close(self) -> None:
        """Drop them here and there."""
        self._forget()
        self.stored.drop()

    def _forget(self) -> None:
        if self._local is not None:
            self._local.close()
            self._local = None


def part_bounds(rows: int, *, width: int, scanned: int, parts: int | None = None) -> tuple[int, ...]:
    """Where parts begin, and the end: as many as the source has partitions, if that makes them neither small nor large.

    >>> part_bounds(10, width=51, scanned=200, parts=3)
    (0, 3, 6, 10)
    >>> len(part_bounds(10_000_000, width=51, scanned=2)) - 1, len(part_bounds(10**9, width=51, scanned=2)) - 1
    (16, 1520)
    """
    if parts is None:
        size = 4 * width * rows
        parts = max(-(-size // PART_BYTES), min(scanned, size // LEAST_PART_BYTES), 1)
    parts = min(parts, rows)
    return tuple(part * rows // parts for part in range(parts + 1))


def rows_of(session: Session, frame: Any, fault: str) -> Iterator[Any]:
    """The rows of a DataFrame, in order and a partition at a time."""
    rows = session.ask(lambda: frame.toLocalIterator(), fault)
    while (one := session.ask(lambda: next(rows, None), fault)) is not None:
        yield one


def _shuffle(
    stored: Stored,
    starts: Sequence[int],
    *,
    start: int,
    stop: int,
    others: bool,
    bounds: tuple[int, ...],
    seed: int,
) -> Stored:
    """New blocks, one partition for each part."""
    width = stored.width
    scatter = tasks.Scatter(stored.known(starts), start, stop, others, bounds, seed, width)
    settle = tasks.Settle(bounds, width, secrets.token_bytes(16))
    session = stored.session
    parts = session.mapped(stored.frame, scatter).repartitionById(len(bounds) - 1, "part")
    ordered = Stored(session, session.mapped(parts, settle), width=width)
    if ordered.rows != bounds[-1]:
        ordered.drop()
        raise DataError(CHANGED, hint=CHANGED_HINT)
    return ordered


def _overlap(window: Window) -> str:
    """Which blocks have rows of a window."""
    return f"start < {window.stop} AND start + rows > {window.start}"


def _check_faults(found: Sequence[Any]) -> None:
    for one in found:
        fault = one["fault"]
        if fault is not None:
            raise DataError(fault, hint=CHANGED_HINT if fault == CHANGED else None)


def _level() -> Any:
    """Memory and disk, as Spark's own objects: quicker to scan than serialized ones."""
    from pyspark import StorageLevel

    return StorageLevel.MEMORY_AND_DISK_DESER
