"""Prepared rows in Spark: packed blocks in a persisted DataFrame.

A scan is one job over all blocks. SGD passes over parts of the rows are one job too, which collects the rows of each
part on one executor. Only the draws of some white-box algorithms need all rows in this process, where they are spooled.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from boltdp import _interrupts
from boltdp._array_types import Integers, PackedRows
from boltdp.engines.local_store import LocalRows
from boltdp.engines.prepared_rows import Partition, PassProgress, PreparedRows
from boltdp.engines.spark import executor_tasks
from boltdp.engines.spark.executor_tasks import ALL_ROWS, BLOCK_INFO, CHANGED, CHANGED_HINT, BlockStarts, RowRange
from boltdp.engines.spark.session import Session
from boltdp.errors import DataError
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.sgd import State
from boltdp.kernel.sum_state import Summation
from boltdp.run_context import Context

#: Upper bound on the size of a part, which a task sorts in memory.
PART_BYTES = 128 << 20
#: Lower bound on the size of a part: smaller ones are not worth a task.
MIN_PART_BYTES = 8 << 20
#: Upper bound on the partial sums that this process adds up; executors first reduce larger ones.
JOINED_BYTES = 256 << 20
#: Upper bound on a part whose passes run on one executor, which has the rows in memory or on its disk.
ONE_PLACE_BYTES = 64 << 30
#: Minimal number of tasks that remove cached blocks from executors.
MIN_REMOVAL_TASKS = 4


@dataclass(frozen=True)
class BlockInfo:
    """The position of a block, the number of its rows and their digest: all that this process knows of it."""

    part: int
    number: int
    file: int
    split: int
    start: int
    rows: int
    digest: bytes


class StoredBlocks:
    """A persisted Spark DataFrame of packed blocks, and the info of each block."""

    def __init__(
        self,
        session: Session,
        frame: Any,
        *,
        width: int = 1,
        run: str | None = None,
        rows: int | None = None,
        fault: str = "the rows cannot be prepared",
    ) -> None:
        """Compute and persist the blocks in one job, and check the number of `rows` if it is given.

        `run` is the name of the blocks in the cache of executors, and `fault` the message if the job fails.
        """
        from pyspark import StorageLevel

        self.session, self.width, self._run, self._fault = session, width, run, fault
        self.frame = frame
        # Deserialized, which is faster to scan than serialized storage.
        level = StorageLevel.MEMORY_AND_DISK_DESER
        # The infos of blocks are persisted separately, so that a scan of cached blocks does not read Spark's copies.
        self._named = session.ask(lambda: frame.persist(level).select(*BLOCK_INFO).persist(level), fault)
        self.infos: list[BlockInfo] = []
        try:
            self.infos = self._collect_block_infos()
            if rows not in (None, self.rows):
                raise DataError(CHANGED, hint=CHANGED_HINT)
        except BaseException:
            with suppress(DataError):  # keep the first error
                self.drop()
            raise

    @property
    def rows(self) -> int:
        return sum(info.rows for info in self.infos)

    @property
    def parts(self) -> int:
        return len({info.part for info in self.infos})

    def drop(self) -> None:
        """Remove the blocks from Spark and from the cache of executors."""
        fault = "the rows cannot be dropped"
        if self._run is not None:
            # About as many tasks as executors; on an executor without a task, the watchdog removes the blocks.
            tries = max(MIN_REMOVAL_TASKS, self.parts)
            removal, empty = executor_tasks.RemoveBlocksTask(self._run), self.session.spark.range(0, tries, 1, tries)
            with suppress(DataError):
                self.session.ask(self.session.map_partitions(empty, removal).collect, fault)
        for frame in (self._named, self.frame):
            self.session.ask(frame.unpersist, fault)

    def add_sums(self, sums: Sequence[Summation], row_range: RowRange, share: float) -> None:
        """Add the rows of a range to sums in one Spark job; `share` is the share of rows that the sums sample."""
        payload = executor_tasks.pack_payload([each.copy_empty() for each in sums])
        if self._run is None or row_range != ALL_ROWS:
            task = executor_tasks.SumTask(payload, row_range, self.width)
            found = self._collect_sums(self.filter_blocks(row_range), task, sums)
        else:
            cached = executor_tasks.CachedSumTask(payload, self.width, self._run, share)
            found = self._collect_sums(self._named, cached, sums)
            found += self._sum_uncached_blocks(found, sums, payload)
        self.check_blocks(found, self.find_overlapping_blocks(row_range))
        for one in found:
            executor_tasks.join_results(sums, bytes(one["result"]))

    def _collect_sums(self, frame: Any, task: executor_tasks.ScanTask, sums: Sequence[Summation]) -> list[Any]:
        partial = self.session.map_partitions(frame, task)
        join_tasks = max(1, JOINED_BYTES // sum(len(each.to_bytes()) for each in sums))
        if self.parts > join_tasks:
            join = executor_tasks.JoinSumsTask(task.payload)
            partial = self.session.map_partitions(partial.repartitionById(join_tasks, "part"), join)
        return [*self.session.ask(partial.collect, "the rows cannot be summed")]

    def _sum_uncached_blocks(self, found: Sequence[Any], sums: Sequence[Summation], payload: bytes) -> list[Any]:
        """Sum the blocks missing in the cache of executors from Spark's persisted copies."""
        raise_reported_error(found)
        missing = b"".join(bytes(one["missing"] or b"") for one in found)
        size = executor_tasks.DIGEST_BYTES
        missed = frozenset(missing[at : at + size] for at in range(0, len(missing), size))
        if not missed:
            return []
        parts = ", ".join(str(part) for part in sorted({p.part for p in self.infos if p.digest in missed}))
        task = executor_tasks.SumTask(payload, ALL_ROWS, self.width, missed, self._run)
        return self._collect_sums(self.frame.where(f"part IN ({parts or -1})"), task, sums)

    def _collect_block_infos(self) -> list[BlockInfo]:
        found = self.session.ask(self._named.collect, self._fault)
        raise_reported_error(found)
        named = ({name: one[name] for name in BLOCK_INFO[:-2]} | {"digest": bytes(one["digest"])} for one in found)
        infos = [BlockInfo(**one) for one in named]
        return sorted(infos, key=lambda info: (info.part, info.number))

    def map_block_starts(self, starts: Sequence[int]) -> BlockStarts:
        """Return the position of the first row and the digest of each block, by its part and number."""
        known = zip(self.infos, starts, strict=True)
        return {(info.part, info.number): (start, info.digest) for info, start in known}

    def filter_blocks(self, row_range: RowRange) -> Any:
        """Return the DataFrame of the blocks with rows in the range, and of reported errors."""
        overlapping = f"start < {row_range.stop} AND start + rows > {row_range.start}"
        return self.frame.where(f"fault IS NOT NULL OR ({overlapping})")

    def check_blocks(self, found: Sequence[Any], chosen: Sequence[BlockInfo]) -> None:
        """Raise DataError unless the results are of exactly these blocks, and the blocks are unchanged."""
        raise_reported_error(found)
        met = executor_tasks.combine_digests([bytes(one["fingerprint"]) for one in found])
        if met != executor_tasks.combine_digests([info.digest for info in chosen]):
            raise DataError(CHANGED, hint=CHANGED_HINT)

    def stream_rows(self, row_range: RowRange) -> Iterator[PackedRows]:
        """Yield the packed rows in the range, in order, block by block; raise DataError if a block has changed."""
        expected, last = {info.digest: info for info in self.find_overlapping_blocks(row_range)}, 0
        for one in iterate_result_rows(self.session, self.filter_blocks(row_range)):
            info = expected.pop(bytes(one["digest"]), None)
            if info is None or info.start < last:
                raise DataError(CHANGED, hint=CHANGED_HINT)
            last = info.start
            yield row_range.select_rows(last, np.frombuffer(one["packed"], np.float32).reshape(-1, self.width))
        if expected:
            raise DataError(CHANGED, hint=CHANGED_HINT)

    def find_overlapping_blocks(self, row_range: RowRange) -> list[BlockInfo]:
        return [info for info in self.infos if info.start < row_range.stop and info.start + info.rows > row_range.start]


class PreparedBlocks(PreparedRows):
    """Prepared rows in a Spark cluster, as packed blocks, or a range of them."""

    def __init__(self, blocks: SharedBlocks, *, feature_map: FeatureMap | None) -> None:
        super().__init__(0, blocks.rows, cells=blocks.width - 1, feature_map=feature_map, permuted=blocks.permuted)
        self._blocks, self._share = blocks, 1.0

    def read_blocks(self) -> Iterator[PackedRows]:
        return self._blocks.apply_permutations().stream_rows(self._row_range)

    def reshuffle(self, seed: int) -> None:
        self._check_permuted()
        self._blocks.add_permutations([(self._start, self._stop, seed)])

    def run_pass(self, states: Sequence[State], context: Context) -> None:
        self._check_permuted()
        self._check_width(states)
        context.report_rows(0)
        for done in self._blocks.run_pass(states, RowRange(self._start, self._stop)):
            context.report_rows(done)

    def run_partitions(self, parts: Sequence[Partition], context: Context) -> None:
        """Run all SGD passes over several partitions in one Spark job, with one task per partition.

        If a part is too large for the disk of an executor, each pass reads the blocks where they are.
        """
        self._check_partitions(parts)
        _interrupts.check()
        if any(4 * self._blocks.width * part.rows > ONE_PLACE_BYTES for part in parts):
            super().run_partitions(parts, context)
            return
        if parts:
            self._blocks.run_partitions(parts, self._start)
        passes = PassProgress(parts, context)
        for part in parts:
            for number in range(1, 1 + len(part.seeds)):
                passes.start_pass(number, part).report_rows(part.rows)
                passes.finish_pass(part)

    def run_sampled_batches(self, states: Sequence[State], positions: Iterable[Integers]) -> None:
        self._blocks.fetch_rows().run_sampled_batches(states, self._translate_positions(states, positions, 1 << 16))

    def add_to_sums(self, sums: Sequence[Summation]) -> None:
        _interrupts.check()
        self._check_width(sums)
        if sums:
            self._blocks.add_sums(sums, self._row_range, self._share)

    @contextmanager
    def open_sample(self, share: float) -> Iterator[PreparedBlocks]:
        """Yield a view of the rows, for sums over a hash sample of this share of them."""
        view = copy.copy(self)
        view._share = min(share, self._share)
        yield view

    def close(self) -> None:
        self._blocks.close()

    @property
    def _row_range(self) -> RowRange:
        row_range = RowRange(self._start, self._stop)
        return ALL_ROWS if row_range == RowRange(0, self._blocks.rows) else row_range


class SharedBlocks:
    """The stored blocks and pending permutations of rows that all views of prepared blocks share.

    Moves are applied when the rows are next needed in order: sums of all rows need no order, and passes over parts
    apply the last permutations together with the shuffle to parts.
    """

    def __init__(
        self,
        stored: StoredBlocks,
        *,
        starts: Sequence[int] | None = None,
        bounds: tuple[int, ...] = (),
        spool: str | Path | None = None,
    ) -> None:
        self._stored, self.width = stored, stored.width
        self.permuted, self.bounds = starts is not None, bounds
        self.rows = bounds[-1] if bounds else stored.rows
        self._starts = starts or []
        self._rounds: list[tuple[executor_tasks.RangePermutation, ...]] = []  #: the ranges of a round are disjoint
        self._spool = spool
        self._local: LocalRows | None = None

    def add_permutations(self, moves: Sequence[executor_tasks.RangePermutation]) -> None:
        """Add permutations of ranges of rows, which are applied when rows are next needed in order."""
        if moves:
            self._rounds.append(tuple(sorted(moves)))
            self._drop_local()

    def apply_permutations(self) -> StoredBlocks:
        """Apply all pending permutations, and return the blocks in order."""
        while self._rounds:
            self._apply_first_round()
        return self._stored

    def _apply_first_round(self) -> None:
        """Apply the first permutations, of disjoint ranges, by one Spark shuffle to a partition per part."""
        old, session = self._stored, self._stored.session
        order = executor_tasks.GatherTask(self.bounds, self.width, session.memory_bytes)
        blocks = session.map_partitions(self._scatter_rows([*pairwise(self.bounds)]), order)
        self._stored = StoredBlocks(session, blocks, width=self.width, rows=self.rows)
        self._starts = [info.start for info in self._stored.infos]
        self._rounds.pop(0)
        old.drop()

    def _scatter_rows(self, ranges: Sequence[tuple[int, int]]) -> Any:
        """Shuffle the rows, by the first permutations, to one Spark partition per range of positions."""
        moves = self._rounds[0] if self._rounds else ()
        known = self._stored.map_block_starts(self._starts)
        scatter = executor_tasks.ScatterTask(known, moves, tuple(ranges), self.width)
        return self._stored.session.map_partitions(self._stored.frame, scatter).repartitionById(len(ranges), "part")

    def add_sums(self, sums: Sequence[Summation], row_range: RowRange, share: float) -> None:
        # Sums of all rows need no order.
        unmoved = row_range == ALL_ROWS and self._stored.rows == self.rows
        (self._stored if unmoved else self.apply_permutations()).add_sums(sums, row_range, share)

    def run_pass(self, states: Sequence[State], row_range: RowRange) -> Iterator[int]:
        """Run one SGD pass with a job per partition, in order, and yield the number of rows done so far."""
        stored = self.apply_permutations()
        for part, of_part in groupby(stored.find_overlapping_blocks(row_range), key=lambda info: info.part):
            payload = executor_tasks.pack_payload([state.to_bytes() for state in states])
            blocks = stored.filter_blocks(row_range).where(f"part = {part}")
            results = stored.session.map_partitions(blocks, executor_tasks.PassTask(payload, row_range, self.width))
            found, infos = stored.session.ask(results.collect, "a pass cannot be run"), [*of_part]
            stored.check_blocks(found, infos)
            (one,) = found
            _update_from_result(states, one)
            yield min(infos[-1].start + infos[-1].rows, row_range.stop) - row_range.start

    def run_partitions(self, parts: Sequence[Partition], offset: int) -> None:
        """Run all SGD passes over each partition in one job, and add the permutations of these passes."""
        while len(self._rounds) > 1:
            self._apply_first_round()
        parts = sorted(parts, key=lambda part: part.start)
        ranges = [(offset + part.start, offset + part.stop) for part in parts]
        given = [(part.rows, [state.to_bytes() for state in part.states], [*part.seeds]) for part in parts]
        session = self._stored.session
        task = executor_tasks.TrainTask(executor_tasks.pack_payload(given), self.width, session.memory_bytes)
        results = session.map_partitions(self._scatter_rows(ranges), task)
        found = session.ask(results.collect, "the passes cannot be run")
        raise_reported_error(found)
        if sorted(one["part"] for one in found) != [*range(len(parts))]:
            raise DataError(CHANGED, hint=CHANGED_HINT)
        for one in found:
            _update_from_result(parts[one["part"]].states, one)
        for number in range(max(len(part.seeds) for part in parts)):
            seeds = [part.seeds[number] if number < len(part.seeds) else None for part in parts]
            self.add_permutations([(*of, seed) for of, seed in zip(ranges, seeds, strict=True) if seed is not None])

    def fetch_rows(self) -> LocalRows:
        """Copy all rows, in order, to this process; the copy is kept."""
        stored = self.apply_permutations()
        if self._local is None:
            shape = self.rows, self.width
            self._local = executor_tasks.store_permuted(
                stored.stream_rows(ALL_ROWS), shape=shape, directory=self._spool
            )
        return self._local

    def close(self) -> None:
        self._drop_local()
        self._stored.drop()

    def _drop_local(self) -> None:
        if self._local is not None:
            self._local.close()
            self._local = None


def _update_from_result(states: Sequence[State], row: Any) -> None:
    for state, data in zip(states, executor_tasks.unpack_results(bytes(row["result"])), strict=True):
        state.update(data)


def choose_partition_bounds(rows: int, *, width: int, scanned: int, parts: int | None = None) -> tuple[int, ...]:
    """Split rows into partitions, by default one per source partition; return their starts and the last end.

    >>> choose_partition_bounds(10, width=51, scanned=200, parts=3)
    (0, 3, 6, 10)
    >>> [len(choose_partition_bounds(rows, width=51, scanned=2)) - 1 for rows in (10_000_000, 10**9)]
    [16, 1520]
    """
    if parts is None:
        size = 4 * width * rows
        parts = max(-(-size // PART_BYTES), min(scanned, size // MIN_PART_BYTES), 1)
    parts = min(parts, rows)
    return tuple(part * rows // parts for part in range(parts + 1))


def iterate_result_rows(session: Session, frame: Any) -> Iterator[Any]:
    """Yield the rows of a task's result in order, one partition at a time; raise the error it reported, if any."""
    fault = "the rows cannot be read"
    rows = session.ask(frame.toLocalIterator, fault)
    while (one := session.ask(lambda: next(rows, None), fault)) is not None:
        raise_reported_error([one])
        yield one


def raise_reported_error(found: Sequence[Any]) -> None:
    """Raise the first error that tasks reported, if any."""
    for one in found:
        fault = one["fault"]
        if fault is not None:
            raise DataError(fault, hint=CHANGED_HINT if fault == CHANGED else None)
