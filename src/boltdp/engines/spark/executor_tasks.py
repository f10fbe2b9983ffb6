"""The tasks that run in the Python workers of executors: callables that map the batches of a partition to results.

Tasks are pickled by reference, so executors need the same version of boltdp. An error that the user can fix is returned
as a row of the result; any other exception is replaced by one that quotes nothing, because Spark logs it, and then
Spark runs the task again.
"""

from __future__ import annotations

import pickle
import secrets
import struct
import tempfile
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp._arrays import Integers, PackedRows
from boltdp._version import __version__
from boltdp.context import Context
from boltdp.encoding.arrow_buffers import missing, values
from boltdp.encoding.declared_values import OnBadRow
from boltdp.encoding.encode import Encoder
from boltdp.engines.local_store import LocalRows, MemoryStore, store_rows
from boltdp.engines.prepared_rows import Partition, Passes, run_part
from boltdp.engines.spark import block_cache
from boltdp.errors import BoltdpError, DataError
from boltdp.kernel import packing, sgd
from boltdp.kernel.sgd import State
from boltdp.kernel.sum_state import Summation
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import MAX_BATCH_ROWS

#: Approximate size of a block, which matches the batches of Spark's cache.
BLOCK_BYTES = 4 << 20
#: Upper bound on the bytes of rows that a task sorts in memory; larger ranges are sorted in a file.
MEMORY_BYTES = 256 << 20
DIGEST_BYTES = 16
PAGE_BYTES = 4096

#: The error for blocks that differ from those computed first.
CHANGED = "the data must stay as it is while it is read, and Spark has computed some rows again, differently"
CHANGED_HINT = "write the rows to a table first, and train on that"

#: Schemas of the results of tasks, in Spark's notation.
BLOCKS = "part int, number int, file long, split long, start long, rows int, digest binary, packed binary, fault string"
#: The columns of BLOCKS without the packed rows.
PLACES = ("part", "number", "file", "split", "start", "rows", "digest", "fault")
CHUNKS = "part int, slots binary, packed binary, fault string"
RESULTS = "part int, rows long, fingerprint binary, result binary, missing binary, fault string"
SHIPPED = "part int, number int, file long, split long, rows int, shipped binary, fault string"
ORDERED = "target int, place int, shipped binary, fault string"

_ARROW = {"int": pa.int32(), "long": pa.int64(), "binary": pa.binary(), "string": pa.string()}


class Task(ABC):
    """A function for `mapInArrow`."""

    columns: ClassVar[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.work(batches)
        except BoltdpError as fault:
            message = str(fault)
        except GeneratorExit:
            raise
        except BaseException as error:
            # The message may quote a row, and Spark logs it.
            raise RuntimeError(f"a task of boltdp failed: {type(error).__name__}") from None
        else:
            return
        yield self.row(fault=message)

    @abstractmethod
    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the result for a partition."""

    def row(self, **values: Any) -> pa.RecordBatch:
        return result_row(self.columns, **values)


def result_row(columns: str, **values: Any) -> pa.RecordBatch:
    """Return a batch of one row with these columns; values not given are NULL."""
    names = [column.split() for column in columns.split(", ")]
    arrays = [pa.array([values.get(name)], _ARROW[kind]) for name, kind in names]
    return pa.RecordBatch.from_arrays(arrays, [name for name, _ in names])


def partition_number() -> int:
    """Return the number of the partition that this task processes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number: int = context.partitionId()
    return number


def block_digest(key: bytes, rows: PackedRows, *numbers: int) -> bytes:
    """Return a keyed digest of a block and its place, which reveals nothing without the key of the run."""
    state = blake2b(struct.pack(f"<{len(numbers)}q", *numbers), key=key, digest_size=DIGEST_BYTES)
    state.update(rows.data.cast("B"))
    digest: bytes = state.digest()
    return digest


def fingerprint(digests: Iterator[bytes] | Sequence[bytes]) -> bytes:
    """Combine the digests of blocks, independently of their order.

    >>> fingerprint([b"a" * 16, b"b" * 16]) == fingerprint([b"b" * 16, b"a" * 16])
    True
    """
    total = sum(int.from_bytes(digest, "little") for digest in digests)
    return (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES, "little")


@dataclass(frozen=True)
class Sealing:
    """Adds digests to new blocks, and caches them on the executor if the run has a name."""

    key: bytes
    run: str | None = None

    def row(
        self, rows: PackedRows, *, part: int, number: int, file: int = 0, split: int = 0, start: int | None = None
    ) -> pa.RecordBatch:
        digest = block_digest(self.key, rows, part, number, file, split, -1 if start is None else start)
        if self.run is not None:
            block_cache.save(self.run, digest.hex(), rows)
        places = {"part": part, "number": number, "file": file, "split": split, "start": start, "rows": len(rows)}
        return result_row(BLOCKS, **places, digest=digest, packed=rows.tobytes())


@dataclass(frozen=True)
class Batches:
    """The columns of the source's batches: single columns, then arrays, then, if `placed`, file and split.

    An array contains the floats of several columns, which Spark transfers faster than separate columns.
    """

    names: tuple[str, ...]
    placed: bool
    version: str
    arrays: tuple[tuple[str, ...], ...] = ()

    def runs(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield the file, the start of the split and the rows of each run of rows from one split of a file."""
        if self.version != __version__:
            raise DataError(f"the executors must have boltdp {self.version}, they have {__version__}")
        for batch in batches:
            columns = dict(zip(self.names, batch.columns, strict=False))
            for names, cells in zip(self.arrays, batch.columns[len(self.names) :], strict=False):
                columns.update(zip(names, _unpack_columns(cells, len(names)), strict=True))
            table = pa.RecordBatch.from_arrays([*columns.values()], [*columns])
            if not self.placed or not batch.num_rows:
                yield 0, 0, table
                continue
            file, split = map(values, batch.columns[-2:])
            cuts = np.flatnonzero((np.diff(file) != 0) | (np.diff(split) != 0)) + 1
            for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(table)], strict=True):
                yield int(file[start]), int(split[start]), table.slice(start, stop - start)


def _unpack_columns(cells: pa.Array, count: int) -> Iterator[pa.Array]:
    """Yield the columns of arrays of this length, with NaN for missing values, as in the encoder."""
    floats = cells.flatten()
    numbers, gaps = values(floats), missing(floats)
    if gaps is not None:
        numbers = np.where(gaps, numbers.dtype.type(np.nan), numbers)
    for column in np.ascontiguousarray(numbers.reshape(-1, count).T):
        yield pa.Array.from_buffers(floats.type, len(column), [None, pa.py_buffer(column)])


@dataclass(frozen=True)
class Encode(Task):
    """Encodes the columns of the source to packed blocks, in the order in which Spark reads them."""

    schema: Schema
    on_bad_row: OnBadRow
    batches: Batches
    sealing: Sealing

    columns: ClassVar[str] = BLOCKS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = Encoder(self.schema.encoding, on_bad_row=self.on_bad_row)
        block_rows = max(1, BLOCK_BYTES // (4 * encoder.width))
        block = np.empty((block_rows, encoder.width), np.float32)
        part, number, used, last = partition_number(), 0, 0, (0, 0)

        def make_block() -> pa.RecordBatch:
            return self.sealing.row(block[:used], part=part, number=number, file=last[0], split=last[1])

        for file, split, table in self.batches.runs(batches):
            if used and (file, split) != last:
                yield make_block()
                number, used = number + 1, 0
            last, at = (file, split), 0
            while at < len(table):
                count = min(block_rows - used, len(table) - at)
                encoder.encode(table.slice(at, count), block[used : used + count])
                used, at = used + count, at + count
                if used == block_rows:
                    yield make_block()
                    number, used = number + 1, 0
        if used:
            yield make_block()


@dataclass(frozen=True)
class Ship(Task):
    """Sends the results of `make` for the source's batches, or the batches themselves, to the driver."""

    batches: Batches
    make: EncodedWork | None

    columns: ClassVar[str] = SHIPPED

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, number = partition_number(), 0
        make = arrow_bytes if self.make is None else self.make.start()
        for file, split, table in self.batches.runs(batches):
            for at in range(0, len(table), MAX_BATCH_ROWS):
                chunk = table.slice(at, MAX_BATCH_ROWS)
                shipped = make(chunk)
                if self.make is not None:
                    at_place = b"".join(place.to_bytes(8, "little") for place in (part, number))
                    shipped = hide(shipped, self.make.key + at_place)
                places = {"part": part, "number": number, "file": file, "split": split}
                yield self.row(**places, rows=len(chunk), shipped=shipped)
                number += 1


@dataclass(frozen=True)
class EncodedWork:
    """A function of encoded rows, whose results are masked by `hide` with this key."""

    schema: Schema
    on_bad_row: OnBadRow
    work: Callable[[PackedRows], object]
    key: bytes

    def start(self) -> Callable[[pa.RecordBatch], bytes]:
        encoder = Encoder(self.schema.encoding, on_bad_row=self.on_bad_row)
        return lambda batch: pickle.dumps(self.work(encoder.encode(batch)))


@dataclass(frozen=True)
class Order(Task):
    """Assigns shipped results to partitions in the order of the rows."""

    targets: Mapping[tuple[int, int], tuple[int, int]]

    columns: ClassVar[str] = ORDERED

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for one in batch.to_pylist():
                check_fault(one["fault"])
                found = self.targets.get((one["part"], one["number"]))
                if found is None:
                    raise DataError(CHANGED)
                yield self.row(target=found[0], place=found[1], shipped=one["shipped"])


def arrow_bytes(batch: pa.RecordBatch) -> bytes:
    """Serialize a batch in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def arrow_batch(data: bytes) -> pa.RecordBatch:
    """Deserialize the batch of `arrow_bytes`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def check_fault(fault: str | None) -> None:
    """Raise the error that an earlier task reported, if any."""
    if fault is not None:
        raise DataError(fault)


@dataclass(frozen=True)
class Block:
    """A block with its rows."""

    part: int
    number: int
    start: int | None
    digest: bytes
    rows: PackedRows


def read_blocks(batches: Iterator[pa.RecordBatch], width: int) -> Iterator[Block]:
    """Yield the blocks of a partition without copying them."""
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        for index in range(batch.num_rows):
            check_fault(columns["fault"][index].as_py())
            packed = columns["packed"][index].as_buffer()
            rows = np.frombuffer(packed, np.float32).reshape(-1, width)
            part, number, start = (columns[name][index].as_py() for name in ("part", "number", "start"))
            yield Block(part, number, start, columns["digest"][index].as_py(), rows)


@dataclass(frozen=True)
class Window:
    """A range of positions of ordered rows; None in its place is all rows, in any order."""

    start: int
    stop: int

    def select_rows(self, block: Block) -> PackedRows:
        assert block.start is not None
        first, last = max(self.start - block.start, 0), min(self.stop - block.start, len(block.rows))
        return block.rows[first : max(first, last)]


@dataclass(frozen=True)
class Places:
    """The original position of the first row and the digest of each block, by its part and number."""

    of: Mapping[tuple[int, int], tuple[int, bytes]]

    def start(self, block: Block) -> int:
        """Return the position of the first row of a block; raises if the block has changed."""
        start, digest = self.of.get((block.part, block.number), (0, b""))
        if digest != block.digest:
            raise DataError(CHANGED)
        return start


@dataclass(frozen=True)
class SelectRange(Task):
    """Selects the rows at positions 0 to rows - 1 from all blocks, in any order."""

    places: Places
    rows: int
    width: int
    sealing: Sealing

    columns: ClassVar[str] = BLOCKS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in read_blocks(batches, self.width):
            at = self.places.start(block)
            first, last = max(-at, 0), min(self.rows - at, len(block.rows))
            if first < last:
                yield self.sealing.row(block.rows[first:last], part=block.part, number=block.number)


#: Start and stop of a range of rows, and the seed that permutes them.
Move: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Scatter(Task):
    """Computes the new positions of rows and splits each block by ranges of positions.

    Rows of a move are permuted, others keep their positions, and rows outside all ranges are dropped. Moves are sorted
    and disjoint, and so are ranges.
    """

    places: Places
    moves: tuple[Move, ...]
    ranges: tuple[tuple[int, int], ...]
    width: int
    key: bytes  #: masks the chunks

    columns: ClassVar[str] = CHUNKS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        starts, stops = (np.array(edges, np.int64) for edges in zip(*self.ranges, strict=True))
        for block in read_blocks(batches, self.width):
            positions = self._positions(self.places.start(block), len(block.rows))
            parts = np.searchsorted(starts, positions, side="right") - 1
            met = np.flatnonzero((parts >= 0) & (positions < stops[parts]))
            order = met[np.argsort(parts[met], kind="stable")]
            rows = np.empty((len(order), self.width), np.float32)
            packing.take(block.rows, order, rows)
            slots = (positions - starts[parts])[order].astype(np.uint32)
            counts = np.bincount(parts[met], minlength=len(starts))
            ends = np.cumsum(counts)
            for part in np.flatnonzero(counts).tolist():
                of = slice(int(ends[part] - counts[part]), int(ends[part]))
                goal = slots[of].tobytes()
                yield self.row(part=part, slots=goal, packed=hide(rows[of].tobytes(), self.key + goal))

    def _positions(self, at: int, count: int) -> Integers:
        """Return the new positions of `count` rows from position `at` on."""
        positions = np.arange(at, at + count)
        # Starts with the first move that ends after the first row.
        for start, stop, seed in self.moves[bisect_right(self.moves, at, key=lambda move: move[1]) :]:
            first, last = max(start - at, 0), min(stop - at, count)
            if first >= last:
                break
            moved = packing.permuted_position(at + first - start, last - first, rows=stop - start, seed=seed)
            positions[first:last] = start + moved
        return positions


class _RangeBuffer:
    """Collects the rows of a range in their slots, in memory or in an anonymous file."""

    def __init__(self, rows: int, width: int, memory_bytes: int) -> None:
        shape = (rows, width)
        if 4 * rows * width <= memory_bytes:
            self._rows: PackedRows = np.empty(shape, np.float32)
        else:
            with tempfile.TemporaryFile(dir=block_cache.local_directory()) as file:
                self._rows = np.memmap(file, np.float32, "w+", shape=shape)
        self._seen = np.zeros(rows, np.bool_)
        self._count = 0

    def put(self, slots: Integers, packed: npt.NDArray[np.float32]) -> None:
        packing.put(packed.reshape(len(slots), -1), slots, self._rows)
        self._seen[slots] = True
        self._count += len(slots)

    def finish(self) -> PackedRows:
        """Return all rows; raises unless each was received exactly once."""
        if self._count != len(self._rows) or not self._seen.all():
            raise DataError(CHANGED)
        return self._rows


def gather_rows(
    batches: Iterator[pa.RecordBatch], sizes: Sequence[int], width: int, memory_bytes: int
) -> dict[int, PackedRows]:
    """Sort the chunks of a partition into the rows of ranges, by the number of the range."""
    parts: dict[int, _RangeBuffer] = {}
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        for index in range(batch.num_rows):
            check_fault(columns["fault"][index].as_py())
            part = columns["part"][index].as_py()
            if part not in parts:
                parts[part] = _RangeBuffer(sizes[part], width, memory_bytes)
            slots = np.frombuffer(columns["slots"][index].as_buffer(), np.uint32).astype(np.int64)
            parts[part].put(slots, np.frombuffer(reveal(columns["packed"][index].as_buffer()), np.float32))
    return {part: parts.pop(part).finish() for part in sorted(parts)}


@dataclass(frozen=True)
class PutInOrder(Task):
    """Sorts the chunks of a range into blocks."""

    bounds: tuple[int, ...]  #: the starts of ranges, and the end of the last
    width: int
    sealing: Sealing
    memory_bytes: int = MEMORY_BYTES

    columns: ClassVar[str] = BLOCKS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        block_rows, sizes = max(1, BLOCK_BYTES // (4 * self.width)), np.diff(self.bounds).tolist()
        for part, rows in gather_rows(batches, sizes, self.width, self.memory_bytes).items():
            for number, at in enumerate(range(0, len(rows), block_rows)):
                yield self.sealing.row(
                    rows[at : at + block_rows], part=part, number=number, start=self.bounds[part] + at
                )


@dataclass(frozen=True)
class Train(Task):
    """Runs all passes over each range, each with its own states."""

    parts: bytes  #: number of rows, states and seeds of passes of each range, by `pack_payload`
    width: int
    memory_bytes: int = MEMORY_BYTES

    columns: ClassVar[str] = RESULTS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts: list[tuple[int, list[bytes], list[int | None]]] = unpack_payload(self.parts)
        sizes = [size for size, *_ in parts]
        for part, rows in gather_rows(batches, sizes, self.width, self.memory_bytes).items():
            size, initial, seeds = parts[part]
            states = [State.from_bytes(state) for state in initial]
            own = Partition(0, size, states, seeds)
            with _spool(rows, shuffled=any(seed is not None for seed in seeds)) as prepared:
                run_part(prepared, own, Passes([own], Context(seed=0, threads=1)))
            yield self.row(part=part, rows=size, result=hide_results(states, self.parts, part))


def _spool(rows: PackedRows, *, shuffled: bool) -> LocalRows:
    """Return rows as local rows; those in a file that will be shuffled are copied to a store that supports it."""
    size, width = rows.shape
    if isinstance(rows, np.memmap) and shuffled:
        step = max(1, MEMORY_BYTES // (4 * width))
        prepared = store_rows(
            (rows[at : at + step] for at in range(0, size, step)),
            rows=size,
            width=width,
            ordered=False,
            context=Context(seed=0, threads=1),
            directory=block_cache.local_directory(),
            memory_bytes=0,
        )
        prepared.ordered = True  # already permuted
        return prepared
    return LocalRows(MemoryStore(rows), 0, size)


def hide(data: bytes, key: bytes) -> bytes:
    """Mask bytes with a pseudorandom stream, so that compression cannot shorten them.

    Spark compresses closures, results and shuffles and logs their sizes, which would depend on weights, sums and rows.
    This is no encryption: the result contains the seed of the stream. Use each key once.

    >>> one, other = hide(bytes(1000), b"key"), hide(bytes(1000), b"other")
    >>> one == other, reveal(one) == reveal(other) == bytes(1000)
    (False, True)
    """
    seed = blake2b(key, digest_size=16).digest()
    return seed + _mask(np.frombuffer(data, np.uint8), seed).tobytes()


def reveal(data: bytes) -> bytes:
    """Undo `hide`."""
    masked = np.frombuffer(data, np.uint8)
    return _mask(masked[16:], masked[:16].tobytes()).tobytes()


def _mask(data: npt.NDArray[np.uint8], seed: bytes) -> npt.NDArray[np.uint8]:
    stream = np.random.Philox(key=int.from_bytes(seed, "little")).random_raw(-(-len(data) // 8))
    return data ^ stream.view(np.uint8)[: len(data)]


def pack_payload(objects: object) -> bytes:
    """Pickle and mask objects, without pages of zeros, which empty sums have many of.

    >>> data = pack_payload([bytes(10**6), b"x"])
    >>> len(data) < 10**4, unpack_payload(data) == [bytes(10**6), b"x"]
    (True, True)
    """
    data = pickle.dumps(objects)
    pages = np.frombuffer(data + bytes(-len(data) % PAGE_BYTES), np.uint8).reshape(-1, PAGE_BYTES)
    nonzero = pages.any(axis=1)
    packed = pickle.dumps((len(data), np.packbits(nonzero).tobytes(), pages[nonzero].tobytes()))
    return hide(packed, secrets.token_bytes(16))


def unpack_payload(data: bytes) -> Any:
    """Undo `pack_payload`."""
    size, bits, nonzero = pickle.loads(reveal(data))
    pages = np.zeros((-(-size // PAGE_BYTES), PAGE_BYTES), np.uint8)
    met = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(pages)).astype(np.bool_)
    pages[met] = np.frombuffer(nonzero, np.uint8).reshape(-1, PAGE_BYTES)
    return pickle.loads(pages.tobytes()[:size])


def hide_results(results: Sequence[Summation] | Sequence[State], payload: bytes, part: int) -> bytes:
    """Pickle and mask the sums or states of a part, with a key derived from the task's payload."""
    return hide(pickle.dumps([each.to_bytes() for each in results]), payload[:16] + part.to_bytes(8, "little"))


def read_results(data: bytes) -> list[bytes]:
    """Undo `hide_results`; return the bytes of sums or states."""
    results: list[bytes] = pickle.loads(reveal(data))
    return results


class _ResultTask(Task):
    """A task that returns sums or states, with a fingerprint of the blocks it has read."""

    columns: ClassVar[str] = RESULTS

    def result(
        self,
        results: Sequence[Summation] | Sequence[State],
        payload: bytes,
        *,
        rows: int,
        digests: Sequence[bytes],
        missing: Sequence[bytes] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Yield one row, unless the partition has no blocks."""
        if digests or missing:
            part = partition_number()
            yield self.row(
                part=part,
                rows=rows,
                fingerprint=fingerprint(digests),
                result=hide_results(results, payload, part),
                missing=b"".join(missing),
            )


@dataclass(frozen=True)
class Sum(_ResultTask):
    """Computes the sums of a partition, over all blocks or those missing in a cached scan, and caches the blocks."""

    sums: bytes  #: empty sums, by `pack_payload`
    window: Window | None
    width: int
    missed: frozenset[bytes] | None = None
    run: str | None = None

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums: list[Summation] = [each.fresh() for each in unpack_payload(self.sums)]
        digests, count = [], 0
        for block in read_blocks(batches, self.width):
            if self.missed is not None and block.digest not in self.missed:
                continue
            if self.run is not None:
                block_cache.save(self.run, block.digest.hex(), block.rows)
            rows = block.rows if self.window is None else self.window.select_rows(block)
            for each in sums:
                each.add(rows)
            digests.append(block.digest)
            count += len(rows)
        yield from self.result(sums, self.sums, rows=count, digests=digests)


@dataclass(frozen=True)
class SumCached(_ResultTask):
    """Computes the sums of a partition from cached blocks; Spark passes only their digests.

    The rows sampled by sums of a share are cached too. Spark never sees them, because their number is private.
    """

    sums: bytes
    width: int
    run: str
    share: float = 1.0

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums: list[Summation] = [each.fresh() for each in unpack_payload(self.sums)]
        digests: list[bytes] = []
        missing: list[bytes] = []
        count = 0
        block_cache.touch(self.run)
        for batch in batches:
            for one in batch.to_pylist():
                check_fault(one["fault"])
                rows = self._load_rows(one["digest"], one["rows"])
                if rows is None:
                    missing.append(one["digest"])
                    continue
                for each in sums:
                    each.add(rows)
                digests.append(one["digest"])
                count += one["rows"]
        yield from self.result(sums, self.sums, rows=count, digests=digests, missing=missing)

    def _load_rows(self, digest: bytes, count: int) -> PackedRows | None:
        if self.share == 1.0:
            return block_cache.load(self.run, digest.hex(), rows=count, width=self.width)
        name = f"{digest.hex()}-{self.share!r}"
        sample = block_cache.load(self.run, name, width=self.width)
        if sample is None:
            rows = block_cache.load(self.run, digest.hex(), rows=count, width=self.width)
            if rows is None:
                return None
            sample = packing.sampled(rows, self.share)
            block_cache.save(self.run, name, sample)
        return sample


@dataclass(frozen=True)
class RemoveBlocks(Task):
    """Removes the cached blocks of a run from the executor."""

    run: str

    columns: ClassVar[str] = RESULTS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        block_cache.remove(self.run)
        for _ in batches:  # Spark kills a worker that does not read all
            yield from ()


@dataclass(frozen=True)
class JoinSums(_ResultTask):
    """Adds up the sums of several partitions, where they are too large to be added by the driver alone."""

    sums: bytes

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums: list[Summation] = [each.fresh() for each in unpack_payload(self.sums)]
        fingerprints: list[bytes] = []
        missing: list[bytes] = []
        count = 0
        for batch in batches:
            for one in batch.to_pylist():
                check_fault(one["fault"])
                join_results(sums, one["result"])
                fingerprints.append(one["fingerprint"])
                missing.append(one["missing"] or b"")
                count += one["rows"]
        yield from self.result(sums, self.sums, rows=count, digests=fingerprints, missing=missing)


def join_results(sums: Sequence[Summation], result: bytes) -> None:
    """Add the partial sums of a task's result to `sums`."""
    for each, summed in zip(sums, read_results(result), strict=True):
        other = each.fresh()
        other.update(summed)
        each.join(other)


@dataclass(frozen=True)
class Run(_ResultTask):
    """Runs a pass of the states over the rows of one part of the blocks, in order."""

    states: bytes  #: by `pack_payload`
    window: Window
    width: int

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states = [State.from_bytes(state) for state in unpack_payload(self.states)]
        digests: list[bytes] = []
        expected, count = None, 0
        for block in read_blocks(batches, self.width):
            if expected is not None and block.start != expected:
                raise DataError(CHANGED)
            rows = self.window.select_rows(block)
            sgd.run(states, rows)
            expected, count = (block.start or 0) + len(block.rows), count + len(rows)
            digests.append(block.digest)
        yield from self.result(states, self.states, rows=count, digests=digests)
