"""Encoded rows in memory, or in an unnamed row-major file.

Random access to rows costs several times a sequential pass, so rows are permuted once, while they are written, and
every pass is a sequential scan. A file is written in two steps with bounded memory, by several threads whose order does
not change the result: each row is appended to the bucket of its output position, and its slot there to another file;
then each bucket is sorted. Rows for sums are written in their original order.

The spool file holds private rows. It has mode 0600 and no name (O_TMPFILE, or unlinked at once), so the system removes
it however the process ends. Its directory is the one given, else BOLTDP_SPOOL, else TMPDIR.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from boltdp import _interrupts
from boltdp._array_types import Integers, PackedRows
from boltdp._threads import close_at_end, map_in_order, run_all
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import DataError
from boltdp.kernel import sgd
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.hash_sampling import sample_packed_rows
from boltdp.kernel.row_permutation import compute_permuted_positions, put_rows, sort_by_bucket, take_rows
from boltdp.kernel.sum_state import Summation
from boltdp.run_context import Context

T = TypeVar("T", bound=Sized)
R = TypeVar("R")

SPOOL_HINT = "choose another directory with BOLTDP_SPOOL"
#: Rows up to this size stay in memory, if four times as much is available.
MEMORY_BYTES = 1 << 30
#: Memory for drawing rows from a file, and size of the blocks of rows in memory, between which interrupts are checked.
BUCKET_BYTES = 64 << 20
#: Maximum size of a bucket of a file; a thread needs twice this to sort it.
MAX_BUCKET_BYTES = 16 << 20
#: Maximum memory of all threads that sort buckets.
ORDERING_BYTES = 128 << 20
#: Rows that all threads together encode before they write, so that writes to a bucket are long.
GATHER_BYTES = 32 << 20
#: Size of the memory-mapped window of a pass.
WINDOW_BYTES = 32 << 20
#: Sums of up to this many multiplications are made by one thread.
SINGLE_THREAD_WORK = 4 << 20
#: The shortest time for which fetched rows are open.
MIN_FETCHED_SECONDS = 0.25
#: Drawn positions per call of the kernel for rows in memory, which fit in the processor's cache.
MAX_DRAWS = 1 << 14


def find_spool_directory(directory: str | Path | None = None) -> Path:
    """Return the directory for spool files of encoded rows: the one given, else BOLTDP_SPOOL, else TMPDIR."""
    return Path(directory or os.environ.get("BOLTDP_SPOOL") or tempfile.gettempdir())


def read_available_memory() -> int:
    """Return the available memory in bytes, within the limit of the control group; 0 if unknown."""
    try:
        free = 1024 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return 0
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # without a limit, the file says "max"
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, max(limit - used, 0))
    return free


def run_in_spool(action: Callable[[], R], directory: Path) -> R:
    """Run a file operation in the spool directory and return its result; an OSError becomes a DataError."""
    try:
        return action()
    except OSError as fault:
        reason = fault.strerror
    raise DataError(f"the spool in {str(directory)!r} cannot be used: {reason}", hint=SPOOL_HINT)


def split_range(start: int, stop: int, step: int) -> Iterator[range]:
    """Split the row positions start to stop - 1 into ranges of at least one and at most `step` positions."""
    step = max(1, step)
    return (range(at, min(at + step, stop)) for at in range(start, stop, step))


class LocalRows(PreparedRows):
    """Prepared rows in the memory or in a spool file of this process, or a range of them."""

    def __init__(
        self,
        store: MemoryStore | FileStore,
        start: int,
        stop: int,
        *,
        feature_map: FeatureMap | None = None,
        permuted: bool = True,
        threads: int = 1,
    ) -> None:
        super().__init__(start, stop, cells=store.width - 1, feature_map=feature_map, permuted=permuted)
        self._store, self._threads = store, threads

    def read_blocks(self) -> Iterator[PackedRows]:
        return self._store.read_blocks(self._start, self._stop)

    def reshuffle(self, seed: int) -> None:
        self._check_permuted()
        self._store.shuffle(self._start, self._stop, seed)

    def run_sampled_batches(self, states: Sequence[sgd.State], positions: Iterable[Integers]) -> None:
        parts = self._translate_positions(states, positions, self._store.max_draws)
        for block, drawn in self._store.read_at_positions(parts):
            _interrupts.check()
            sgd.run(states, block, positions=drawn)

    def add_to_sums(self, sums: Sequence[Summation]) -> None:
        if self._threads == 1 or self.rows * sum(each.row_work for each in sums) <= SINGLE_THREAD_WORK:
            super().add_to_sums(sums)
            return
        self._check_width(sums)

        def sum_part(part: range) -> list[Summation]:
            summed = [each.copy_empty() for each in sums]
            for block in self._store.read_blocks(part.start, part.stop):
                for each in summed:
                    each.add(block)
            return summed

        for summed in map_in_order(sum_part, self._split_positions(), threads=self._threads):
            for each, other in zip(sums, summed, strict=True):
                each.join(other)

    def _split_positions(self) -> Iterator[range]:
        """Split all positions into several ranges per thread, to balance the load."""
        window, share = WINDOW_BYTES // (4 * self._store.width), -(-self.rows // (4 * self._threads))
        return split_range(self._start, self._stop, min(window, share))

    @contextmanager
    def open_sample(self, share: float) -> Iterator[LocalRows]:
        def sample(part: range) -> list[PackedRows]:
            return [sample_packed_rows(block, share) for block in self._store.read_blocks(part.start, part.stop)]

        parts = map_in_order(sample, self._split_positions(), threads=self._threads)
        chosen = np.concatenate([np.empty((0, self._store.width), np.float32), *chain.from_iterable(parts)])
        yield LocalRows(
            MemoryStore(chosen), 0, len(chosen), feature_map=self.feature_map, permuted=False, threads=self._threads
        )

    def close(self) -> None:
        self._store.close()


class MemoryStore:
    """A store of prepared rows in an array."""

    def __init__(self, array: PackedRows) -> None:
        self._array = array
        self.width = array.shape[1]
        self.max_draws = MAX_DRAWS  #: maximum number of positions per array in `read_at_positions`

    def read_blocks(self, start: int, stop: int) -> Iterator[PackedRows]:
        # The kernel splits blocks to the size of the cache itself.
        for part in split_range(start, stop, BUCKET_BYTES // (4 * self.width)):
            yield self._array[part.start : part.stop]

    def read_at_positions(self, parts: Iterable[Integers]) -> Iterator[tuple[PackedRows, Integers]]:
        """Yield blocks that contain the rows at these positions, each with the positions in it, or `BATCH_END`."""
        # The kernel prefetches the rows at these positions.
        for part in parts:
            yield self._array, part

    def write_rows(self, parts: Iterable[RowGroup[Any]], *, permuted: bool, context: Context) -> None:
        """Encode all groups of rows and write them to the store, at permuted positions if `permuted`."""

        def write(part: RowGroup[Any]) -> int:
            if permuted:
                with part.encode() as block:
                    put_rows(block, part.compute_permuted_positions(len(self._array), context.seed), self._array)
            else:
                part.encode_into(self._array[part.start : part.start + part.rows])
            return part.rows

        _write_groups(write, parts, context)

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        part = self._array[start:stop]
        put_rows(part.copy(), compute_permuted_positions(0, len(part), rows=len(part), seed=seed), part)

    def close(self) -> None:
        self._array = self._array[:0]


class FileStore:
    """A store of prepared rows in an unnamed spool file, with the same methods as `MemoryStore`."""

    def __init__(self, *, rows: int, width: int, directory: Path, bucket_bytes: int, threads: int = 1) -> None:
        self.width = width
        self._row_bytes = 4 * width
        self._window_rows = max(1, WINDOW_BYTES // self._row_bytes)
        self._rows, self._directory = rows, directory
        # A power of two, so that shifts split a position into bucket and slot.
        bucket_rows = max(1, min(bucket_bytes, MAX_BUCKET_BYTES) // self._row_bytes)
        self._shift = bucket_rows.bit_length() - 1
        self._threads = threads
        # A position, its rank and the inverse take 8 bytes each: together less than two buckets.
        self.max_draws = max(1, bucket_bytes // 16)
        # One shuffle at a time, since it uses all threads and memory for buckets.
        self._shuffling = threading.Lock()
        self._file = self._create_spool_file(rows * self._row_bytes)

    def write_rows(self, parts: Iterable[RowGroup[Any]], *, permuted: bool, context: Context) -> None:
        with self._open_bucket_sort(self._rows, self._file) if permuted else nullcontext() as sorter:

            def write(part: RowGroup[Any]) -> int:
                with part.encode() as block:
                    if sorter is None:
                        self.transfer(os.pwritev, self._file, block, part.start)
                    else:
                        sorter.add(block, part.compute_permuted_positions(self._rows, context.seed))
                return part.rows

            _write_groups(write, parts, context)
            if sorter is not None:
                self._write_buckets(sorter, 0)

    def read_blocks(self, start: int, stop: int) -> Iterator[PackedRows]:
        mapped = self._map_row_ranges(start, stop)
        if self._threads == 1 or stop - start <= self._window_rows:
            return mapped
        return map_in_order(_fetch_pages, mapped, threads=2)

    def _map_row_ranges(self, start: int, stop: int) -> Iterator[PackedRows]:
        """Map ranges of rows of the file to memory one by one, since mapped pages count as resident memory."""
        for part in split_range(start, stop, self._window_rows):
            # Windows start at a page boundary; the array keeps its window mapped.
            skip = part.start * self._row_bytes % mmap.ALLOCATIONGRANULARITY
            size, offset = skip + len(part) * self._row_bytes, part.start * self._row_bytes - skip
            window = mmap.mmap(self._file.fileno(), size, offset=offset, access=mmap.ACCESS_READ)
            yield np.frombuffer(window, np.float32, len(part) * self.width, skip).reshape(len(part), self.width)

    def read_at_positions(self, parts: Iterable[Integers]) -> Iterator[tuple[PackedRows, Integers]]:
        """Read the rows of each part in file order, then permute them to the drawn order with a second file."""
        for part in parts:
            order = np.argsort(part)
            with self._open_bucket_sort(len(part)) as sorter:
                done = 0
                for block in self._read_at_sorted_positions(part[order]):
                    sorter.add(block, order[done : done + len(block)])
                    done += len(block)
                for bucket in range(sorter.buckets):
                    with sorter.read_bucket(bucket) as block:
                        positions = np.where(part[: len(block)] < 0, sgd.BATCH_END, np.arange(len(block)))
                        yield block, positions
                        part = part[len(block) :]

    def _read_at_sorted_positions(self, positions: Integers) -> Iterator[PackedRows]:
        at = 0
        while at < len(positions):
            first = max(int(positions[at]), 0)
            # Repeated positions must not make the block larger than a window.
            within = int(np.searchsorted(positions, first + self._window_rows))
            part = positions[at : min(within, at + self._window_rows)]
            (window,) = self.read_blocks(first, max(int(part[-1]), first) + 1)
            # Ends of batches sort first; the rows taken for them are not used.
            taken = np.empty((len(part), self.width), np.float32)
            take_rows(window, np.maximum(part - first, 0), taken)
            yield taken
            at += len(part)

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        rows = stop - start
        with self._shuffling, self._open_bucket_sort(rows) as sorter:

            def write(part: range) -> None:
                for block in self.read_blocks(part.start, part.stop):
                    at = part.start - start
                    sorter.add(block, compute_permuted_positions(at, len(block), rows=rows, seed=seed))

            run_all(write, split_range(start, stop, self._window_rows), threads=self._threads)
            self._write_buckets(sorter, start)

    def close(self) -> None:
        self._file.close()

    def _write_buckets(self, sorter: _BucketSort, start: int) -> None:
        """Write the sorted rows of all buckets to the file, from row `start` on."""

        def write(bucket: int) -> None:
            with sorter.read_bucket(bucket) as block:
                self.transfer(os.pwritev, self._file, block, start + (bucket << self._shift))

        threads = max(1, min(self._threads, ORDERING_BYTES // (2 * (self._row_bytes << self._shift))))
        run_all(write, range(sorter.buckets), threads=threads)

    @contextmanager
    def _open_bucket_sort(self, rows: int, file: IO[bytes] | None = None) -> Iterator[_BucketSort]:
        """Yield a bucket sort of this number of rows, in the given file or a new one."""
        with (
            self._create_spool_file(rows * self._row_bytes) if file is None else nullcontext(file) as bucket_file,
            self._create_spool_file(4 * rows) as slots,
        ):
            yield _BucketSort(self, bucket_file, slots, rows=rows, shift=self._shift)

    def _create_spool_file(self, needed: int) -> IO[bytes]:
        free = run_in_spool(lambda: shutil.disk_usage(self._directory).free, self._directory)
        if free < needed:
            raise DataError(
                f"the spool needs {needed / 1e9:.1f} GB in {str(self._directory)!r}, which has {free / 1e9:.1f} GB",
                hint=SPOOL_HINT,
            )
        return run_in_spool(lambda: tempfile.TemporaryFile(dir=self._directory, buffering=0), self._directory)

    def transfer(self, move: Callable[..., int], file: IO[bytes], block: npt.NDArray[Any], at: int) -> None:
        """Write a block to a file from row `at` on with os.pwritev, or read it with os.preadv."""
        data, offset = block.data.cast("B"), at * block.strides[0]
        while data:
            moved = run_in_spool(partial(move, file.fileno(), [data], offset), self._directory)
            if moved == 0:
                raise DataError(f"the spool in {str(self._directory)!r} is shorter than it was written")
            data, offset = data[moved:], offset + moved


class _BucketSort:
    """An external bucket sort of packed rows by position: rows in one file, their positions in buckets in another."""

    def __init__(self, store: FileStore, file: IO[bytes], slots: IO[bytes], *, rows: int, shift: int) -> None:
        self._store, self._file, self._slots = store, file, slots
        self._rows, self._shift = rows, shift
        self.buckets = -(-rows >> shift)
        self._ends = np.arange(self.buckets, dtype=np.int64) << shift  # the position of the next row of each bucket
        self._lock = threading.Lock()
        self._buffers = _Buffers(store.width)

    def add(self, block: PackedRows, positions: Integers) -> None:
        """Append the rows of a block to the buckets of their output positions."""
        order, slots, counts = sort_by_bucket(positions, shift=self._shift, buckets=self.buckets)
        with self._lock:
            starts = self._ends.copy()
            self._ends += counts
        stops = np.cumsum(counts)
        with self._buffers.lend(len(block)) as sorted_rows:
            take_rows(block, order, sorted_rows)
            for bucket in np.flatnonzero(counts).tolist():
                part, at = slice(int(stops[bucket] - counts[bucket]), int(stops[bucket])), int(starts[bucket])
                self._store.transfer(os.pwritev, self._file, sorted_rows[part], at)
                self._store.transfer(os.pwritev, self._slots, slots[part], at)

    @contextmanager
    def read_bucket(self, bucket: int) -> Iterator[PackedRows]:
        """Yield the rows of a bucket, sorted by output position."""
        start = bucket << self._shift
        count = min(1 << self._shift, self._rows - start)
        slots = np.empty(count, np.uint32)
        with self._buffers.lend(count) as arrived, self._buffers.lend(count) as sorted_rows:
            self._store.transfer(os.preadv, self._file, arrived, start)
            self._store.transfer(os.preadv, self._slots, slots, start)
            put_rows(arrived, slots.astype(np.int64), sorted_rows)
            yield sorted_rows


class _Buffers:
    """A pool of buffers for rows, since allocating memory costs as much as writing to it."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._idle: list[PackedRows] = []

    @contextmanager
    def lend(self, rows: int) -> Iterator[PackedRows]:
        """Yield an uninitialised buffer for `rows` packed rows, which is reused afterwards."""
        try:
            buffer = self._idle.pop()
        except IndexError:
            buffer = None
        if buffer is None or len(buffer) < rows:
            buffer = np.empty((rows, self._width), np.float32)
        yield buffer[:rows]
        self._idle.append(buffer)


@dataclass(frozen=True)
class RowGroup(Generic[T]):
    """Consecutive batches of a source, or other items, whose rows are encoded together."""

    start: int  #: position of the first row
    rows: int
    items: Sequence[T]
    encode_item: Callable[[T, PackedRows], object]
    buffers: _Buffers

    def encode_into(self, out: PackedRows) -> None:
        at = 0
        for item in self.items:
            self.encode_item(item, out[at : at + len(item)])
            at += len(item)

    @contextmanager
    def encode(self) -> Iterator[PackedRows]:
        """Yield the encoded rows in a buffer that is reused afterwards."""
        with self.buffers.lend(self.rows) as block:
            self.encode_into(block)
            yield block

    def compute_permuted_positions(self, rows: int, seed: int) -> Integers:
        """Return the position of each row after the permutation of all `rows` rows by `seed`."""
        return compute_permuted_positions(self.start, self.rows, rows=rows, seed=seed)


def _copy_rows(block: Any, out: PackedRows) -> None:
    out[:] = block


def store_rows(
    items: Iterable[T],
    *,
    rows: int,
    width: int,
    context: Context,
    encode: Callable[[T, PackedRows], object] = _copy_rows,
    feature_map: FeatureMap | None = None,
    permuted: bool = True,
    directory: str | Path | None = None,
    memory_bytes: int | None = None,
    in_memory: bool = False,
) -> LocalRows:
    """Encode and permute rows that come in original order, in memory if they fit or with `in_memory`, else in a file.

    Items are blocks of packed rows, or items that `encode` converts to rows in the context's threads.
    """
    threads = context.threads
    if memory_bytes is None:
        memory_bytes = max(BUCKET_BYTES, min(MEMORY_BYTES, read_available_memory() // 4))
    store: MemoryStore | FileStore
    if in_memory or rows * width * 4 <= memory_bytes:
        store = MemoryStore(np.empty((rows, width), np.float32))
    else:
        store = FileStore(
            rows=rows,
            width=width,
            directory=find_spool_directory(directory),
            bucket_bytes=min(memory_bytes, BUCKET_BYTES),
            threads=threads,
        )
    try:
        parts = _group_items(items, encode, rows=rows, width=width, threads=threads)
        store.write_rows(parts, permuted=permuted, context=context)
    except BaseException:
        store.close()
        raise
    return LocalRows(store, 0, rows, feature_map=feature_map, permuted=permuted, threads=threads)


@contextmanager
def fetch_rows(prepared: PreparedRows, context: Context) -> Iterator[LocalRows]:
    """Yield a copy of prepared rows in this process, so that nobody counts scans where the rows are.

    It is open for a power of two of seconds, so that its time tells little about the number of scans.
    """
    start, width = time.monotonic(), 1 + prepared.cells
    blocks, feature_map = prepared.read_blocks(), prepared.feature_map
    with store_rows(
        blocks, rows=prepared.rows, width=width, context=context, feature_map=feature_map, permuted=False
    ) as rows:
        yield rows
    end = start + 2.0 ** math.ceil(math.log2(max(time.monotonic() - start, MIN_FETCHED_SECONDS)))
    while (left := end - time.monotonic()) > 0:
        _interrupts.check()
        time.sleep(min(left, 1.0))


def _write_groups(write: Callable[[RowGroup[Any]], int], parts: Iterable[RowGroup[Any]], context: Context) -> None:
    """Write groups of rows in several threads, and report progress by the numbers of rows that `write` returns."""
    for done in accumulate(map_in_order(write, parts, threads=context.threads)):
        context.report_rows(done)


def _group_items(
    items: Iterable[T], encode: Callable[[T, PackedRows], object], *, rows: int, width: int, threads: int
) -> Iterator[RowGroup[T]]:
    """Yield groups of items that are encoded together; raise DataError unless they have `rows` rows in total."""
    max_rows = max(1, GATHER_BYTES // (4 * width * threads))
    buffers = _Buffers(width)
    group: list[T] = []
    start, count = 0, 0
    with close_at_end(items):
        for item in items:
            if start + count + len(item) > rows:
                raise DataError(_CHANGED_ROWS.format(rows))
            if group and count + len(item) > max_rows:
                yield RowGroup(start, count, group, encode, buffers)
                group, start, count = [], start + count, 0
            group.append(item)
            count += len(item)
    if start + count != rows:
        raise DataError(_CHANGED_ROWS.format(rows))
    if group:
        yield RowGroup(start, count, group, encode, buffers)


_CHANGED_ROWS = "the data must keep its {} rows while it is read, and it has changed"


def _fetch_pages(block: PackedRows) -> PackedRows:
    """Read a byte of each mapped page, so that the rows are in memory, and return them."""
    block.reshape(-1)[:: mmap.PAGESIZE // block.itemsize].max()
    return block
