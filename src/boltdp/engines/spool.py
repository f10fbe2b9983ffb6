"""The spool: encoded rows in permuted order, in memory or in one row-major file without a name.

Random access to rows costs several times a sequential pass, so the rows are permuted once, while they are written,
and every pass is a sequential scan. A file is written in two steps, with bounded memory: each row is appended to
the bucket of output positions that it belongs to, then each bucket is put in order.

The spool holds private rows. Its file has mode 0600 and no name from the moment it exists (O_TMPFILE, or unlinked
at once), so the system removes it however the process ends. It stands in the directory given, else in BOLTDP_SPOOL,
else where the system keeps temporary files (TMPDIR).
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol, TypeAlias

import numpy as np

from boltdp import kernel, stopping
from boltdp.arraytypes import Integers, PackedRows
from boltdp.context import Context
from boltdp.engines.prepared import Prepared, check_part, joined_positions
from boltdp.errors import DataError

#: The part of a permutation, or of its inverse, that starts at a position and has so many.
Order: TypeAlias = Callable[[int, int], Integers]

#: Rows that fit in one bucket stay in memory; a bucket and its ordered copy are what a shuffle needs.
BUCKET_BYTES = 64 << 20
#: Rows gathered before they are appended to their buckets, so that each write is long.
GATHER_BYTES = 32 << 20
#: Rows mapped at a time in a pass.
WINDOW_BYTES = 8 << 20
#: Positions of rows in memory that the kernel gets at a time: few enough to stay in the processor's cache.
DRAWN_AT_ONCE = 1 << 14


def spool_directory(directory: str | Path | None = None) -> Path:
    """Where a spool is put.

    >>> spool_directory("/somewhere")
    PosixPath('/somewhere')
    """
    return Path(directory or os.environ.get("BOLTDP_SPOOL") or tempfile.gettempdir())


class PreparedRows(Prepared):
    """The rows of a store from one position to another: the `Prepared` of engines that bring rows to the kernel."""

    def __init__(self, store: Store, start: int, stop: int) -> None:
        self._store = store
        self._start = start
        self.rows = stop - start
        self.dims = store.width - 1

    def blocks(self) -> Iterator[PackedRows]:
        """The packed rows in order, a block at a time."""
        return self._store.blocks(self._start, self._start + self.rows)

    def portion(self, start: int, stop: int) -> PreparedRows:
        """The rows at positions start to stop - 1, as a view: it shares the rows and needs no closing."""
        check_part(start, stop, rows=self.rows, what="a portion")
        return PreparedRows(self._store, self._start + start, self._start + stop)

    def reshuffle(self, seed: int) -> None:
        """Permute the current order again: position p takes the row now at source_position(p; seed)."""
        self._store.shuffle(self._start, self._start + self.rows, seed)

    def run_drawn(self, states: Sequence[kernel.State], positions: Iterable[Integers]) -> None:
        """Feed the rows at these positions, in this order, to every state; -1 stands for a marker."""
        stop = self._start + self.rows
        parts = joined_positions(positions, start=self._start, stop=stop, size=self._store.drawn_at_once)
        for block, drawn in self._store.drawn(parts):
            stopping.check()
            kernel.run(states, block, positions=drawn)

    def close(self) -> None:
        """Remove the rows."""
        self._store.close()


class Store(Protocol):
    """Packed rows that can be read in order, drawn and shuffled."""

    width: int
    drawn_at_once: int  #: most positions in a part of those drawn

    def blocks(self, start: int, stop: int) -> Iterator[PackedRows]:
        """The rows from start to stop - 1, a block at a time."""
        ...

    def drawn(self, parts: Iterable[Integers]) -> Iterator[tuple[PackedRows, Integers | None]]:
        """The rows at these positions, in this order, a block at a time: it is all of the block or what is drawn of it.

        Position -1 is a marker.
        """
        ...

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        """Permute the rows from start to stop - 1."""
        ...

    def close(self) -> None:
        """Remove the rows."""
        ...


class MemoryStore:
    """Rows in an array."""

    def __init__(self, array: PackedRows) -> None:
        self._array = array
        self.width = array.shape[1]
        self.drawn_at_once = DRAWN_AT_ONCE

    def blocks(self, start: int, stop: int) -> Iterator[PackedRows]:
        """Views of the rows, short enough for progress to be shown."""
        # The kernel cuts what it is given to the size of the cache itself.
        step = max(1, BUCKET_BYTES // (4 * self.width))
        for at in range(start, stop, step):
            yield self._array[at : min(at + step, stop)]

    def drawn(self, parts: Iterable[Integers]) -> Iterator[tuple[PackedRows, Integers | None]]:
        """All rows, and which to take: the kernel has them fetched while it works on others."""
        for part in parts:
            yield self._array, part

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        """Permute the rows from start to stop - 1."""
        part = self._array[start:stop]
        part[:] = np.take(part, kernel.source_position(0, len(part), rows=len(part), seed=seed), axis=0, mode="clip")

    def close(self) -> None:
        """Let go of the rows."""
        self._array = self._array[:0]


class FileStore:
    """Rows in a file without a name."""

    def __init__(self, *, rows: int, width: int, directory: Path, bucket_bytes: int) -> None:
        self.width = width
        self._row_bytes = 4 * width
        self._directory = directory
        self._bucket_rows = max(1, bucket_bytes // self._row_bytes)
        # Each takes 8 bytes, and so do its place in the sorted order and the way back: together less than two buckets.
        self.drawn_at_once = max(1, bucket_bytes // 16)
        self._file = self._create(rows)

    def fill(self, blocks: Iterable[PackedRows], *, rows: int, context: Context) -> None:
        """Write rows that come in original order to where the permutation puts them."""
        permuted, source = _permutation(rows, context.seed)
        self._scatter(blocks, self._file, rows=rows, permuted=permuted, context=context)
        self._replace(0, self._settled(self._file, rows=rows, source=source))

    def blocks(self, start: int, stop: int) -> Iterator[PackedRows]:
        """The rows, mapped a window at a time: mapped pages count as resident memory."""
        step = max(1, WINDOW_BYTES // self._row_bytes)
        for at in range(start, stop, step):
            count = min(step, stop - at)
            # Windows begin at a page; the array keeps its window mapped for as long as it is used.
            skip = at * self._row_bytes % mmap.ALLOCATIONGRANULARITY
            window = mmap.mmap(
                self._file.fileno(),
                skip + count * self._row_bytes,
                offset=at * self._row_bytes - skip,
                access=mmap.ACCESS_READ,
            )
            yield np.frombuffer(window, np.float32, count * self.width, skip).reshape(count, self.width)

    def drawn(self, parts: Iterable[Integers]) -> Iterator[tuple[PackedRows, Integers | None]]:
        """The rows of each part read in the order of the file, then shuffled to that drawn by way of a second file."""
        for part in parts:
            order = np.argsort(part)
            with self._create(len(part)) as scratch:
                self._scatter(self._ascending(part[order]), scratch, rows=len(part), permuted=_slice_of(order))
                for block in self._settled(scratch, rows=len(part), source=_slice_of(np.argsort(order))):
                    yield block, None

    def _ascending(self, positions: Integers) -> Iterator[PackedRows]:
        """The rows at sorted positions."""
        step = max(1, WINDOW_BYTES // self._row_bytes)
        at = 0
        while at < len(positions):
            first = max(int(positions[at]), 0)
            # A position that was drawn again and again must not make the block long.
            part = positions[at : min(int(np.searchsorted(positions, first + step)), at + step)]
            (window,) = self.blocks(first, max(int(part[-1]), first) + 1)
            yield _marked(np.take(window, part - first, axis=0, mode="clip"), part)
            at += len(part)

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        """Permute the rows from start to stop - 1, by way of a second file."""
        rows = stop - start
        permuted, source = _permutation(rows, seed)
        with self._create(rows) as scratch:
            self._scatter(self.blocks(start, stop), scratch, rows=rows, permuted=permuted)
            self._replace(start, self._settled(scratch, rows=rows, source=source))

    def close(self) -> None:
        """Close the file, which removes it."""
        self._file.close()

    def _create(self, rows: int) -> IO[bytes]:
        needed = rows * self._row_bytes
        with self._faults():
            free = shutil.disk_usage(self._directory).free
        if free < needed:
            raise DataError(
                f"the spool needs {needed / 1e9:.1f} GB in {str(self._directory)!r}, which has {free / 1e9:.1f} GB",
                hint="choose another directory with BOLTDP_SPOOL",
            )
        with self._faults():
            return tempfile.TemporaryFile(dir=self._directory, buffering=0)

    def _scatter(
        self,
        blocks: Iterable[PackedRows],
        file: IO[bytes],
        *,
        rows: int,
        permuted: Order,
        context: Context | None = None,
    ) -> None:
        """Append each row to the region of the file that its bucket of output positions will fill."""
        ends = np.arange(0, rows, self._bucket_rows, dtype=np.int64)  # where each bucket's next row goes
        code = np.min_scalar_type(len(ends))  # 16 bits or fewer are sorted by radix
        done = 0
        buffer = np.empty((_gathered_rows(self.width, rows), self.width), np.float32)
        for gathered in _gather(blocks, self.width, rows):
            stopping.check()
            target = permuted(done, len(gathered)) // self._bucket_rows
            order = np.argsort(target.astype(code), kind="stable")
            ordered = np.take(gathered, order, axis=0, mode="clip", out=buffer[: len(order)])
            lengths = np.bincount(target, minlength=len(ends))
            stops = np.cumsum(lengths)
            for bucket in np.flatnonzero(lengths):
                stop, length = stops[bucket], lengths[bucket]
                self._write(file, ordered[stop - length : stop], int(ends[bucket]))
            ends += lengths
            done += len(gathered)
            if context is not None:
                context.done(done)

    def _settled(self, file: IO[bytes], *, rows: int, source: Order) -> Iterator[PackedRows]:
        """Each bucket, whose rows stand in the order of arrival, put in the order of output."""
        arrived = np.empty((min(self._bucket_rows, rows), self.width), np.float32)
        ordered = np.empty_like(arrived)
        for start in range(0, rows, self._bucket_rows):
            stopping.check()
            count = min(self._bucket_rows, rows - start)
            self._read(file, arrived[:count], start)
            # Rows arrive in the order of their original positions, so the r-th smallest source arrived r-th.
            slots = np.argsort(source(start, count))
            _put(ordered, slots, arrived[:count])
            yield ordered[:count]

    def _replace(self, at: int, blocks: Iterable[PackedRows]) -> None:
        """Write blocks, one after the other, from row `at` of the spool."""
        for block in blocks:
            self._write(self._file, block, at)
            at += len(block)

    def _write(self, file: IO[bytes], block: PackedRows, at: int) -> None:
        data = block.data.cast("B")
        offset = at * self._row_bytes
        with self._faults():
            while data:
                written = os.pwrite(file.fileno(), data, offset)
                data, offset = data[written:], offset + written

    def _read(self, file: IO[bytes], block: PackedRows, at: int) -> None:
        data = block.data.cast("B")
        offset = at * self._row_bytes
        with self._faults():
            while data:
                read = os.preadv(file.fileno(), [data], offset)
                if read == 0:
                    raise DataError(f"the spool in {str(self._directory)!r} is shorter than it was written")
                data, offset = data[read:], offset + read

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            raise DataError(
                f"the spool in {str(self._directory)!r} cannot be used: {fault.strerror}",
                hint="choose another directory with BOLTDP_SPOOL",
            ) from None


def spool(
    blocks: Iterable[PackedRows],
    *,
    rows: int,
    width: int,
    context: Context,
    directory: str | Path | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    in_memory: bool = False,
) -> PreparedRows:
    """Permute packed rows that come in original order; in memory if asked to, or if they fit in one bucket.

    >>> block = np.array([[0, 0.5], [1, 0.25], [1, 0.75]], np.float32)
    >>> with spool([block], rows=3, width=2, context=Context(seed=7)) as prepared:
    ...     sorted(float(row[1]) for part in prepared.blocks() for row in part)
    [0.25, 0.5, 0.75]
    """
    if in_memory or rows * width * 4 <= bucket_bytes:
        array = np.empty((rows, width), np.float32)
        done = 0
        for block in _exactly(blocks, rows):
            _put(array, kernel.permuted_position(done, len(block), rows=rows, seed=context.seed), block)
            done += len(block)
            context.done(done)
        return PreparedRows(MemoryStore(array), 0, rows)
    store = FileStore(rows=rows, width=width, directory=spool_directory(directory), bucket_bytes=bucket_bytes)
    try:
        store.fill(_exactly(blocks, rows), rows=rows, context=context)
    except BaseException:
        store.close()
        raise
    return PreparedRows(store, 0, rows)


def _exactly(blocks: Iterable[PackedRows], rows: int) -> Iterator[PackedRows]:
    """The blocks, if together they have the promised number of rows: the permutation is one of that many."""
    done = 0
    for block in blocks:
        done += len(block)
        if done > rows:
            break
        yield block
    if done != rows:
        raise DataError(f"the data must keep its {rows} rows while it is read, and it has changed")


def _permutation(rows: int, seed: int) -> tuple[Order, Order]:
    """Where rows go, and where they come from."""
    return (
        lambda start, count: kernel.permuted_position(start, count, rows=rows, seed=seed),
        lambda start, count: kernel.source_position(start, count, rows=rows, seed=seed),
    )


def _slice_of(order: Integers) -> Order:
    return lambda start, count: order[start : start + count]


def _marked(rows: PackedRows, positions: Integers) -> PackedRows:
    """Drawn rows, with a marker wherever the position is -1."""
    markers = np.flatnonzero(positions < 0)
    rows[markers] = 0.0
    rows[markers, 0] = -1.0
    return rows


def _put(rows: PackedRows, places: Integers, block: PackedRows) -> None:
    """rows[places] = block, a whole row at a time, which NumPy does twice as fast as number by number."""
    whole = np.dtype((np.void, 4 * rows.shape[1]))
    rows.view(whole)[places, 0] = block.view(whole)[:, 0]


def _gathered_rows(width: int, rows: int) -> int:
    return min(rows, max(1, GATHER_BYTES // (4 * width)))


def _gather(blocks: Iterable[PackedRows], width: int, rows: int) -> Iterator[PackedRows]:
    """The blocks joined to longer ones, in a buffer that is used again."""
    buffer = np.empty((_gathered_rows(width, rows), width), np.float32)
    used = 0
    for block in blocks:
        while len(block):
            taken = min(len(block), len(buffer) - used)
            buffer[used : used + taken] = block[:taken]
            used, block = used + taken, block[taken:]
            if used == len(buffer):
                yield buffer
                used = 0
    if used:
        yield buffer[:used]
