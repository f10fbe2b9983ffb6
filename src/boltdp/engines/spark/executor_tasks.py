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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp._array_types import Booleans, Integers, PackedRows
from boltdp._version import __version__
from boltdp.encoding.arrow_buffers import mask_missing, view_values
from boltdp.encoding.declared_values import OnBadRow
from boltdp.encoding.encode import Encoder
from boltdp.engines.local_store import LocalRows, MemoryStore, store_rows
from boltdp.engines.prepared_rows import Partition, PassProgress, run_partition
from boltdp.engines.spark import block_cache
from boltdp.errors import BoltdpError, DataError
from boltdp.kernel import sgd
from boltdp.kernel.hash_sampling import sample_packed_rows
from boltdp.kernel.row_permutation import compute_permuted_positions, put_rows, take_rows
from boltdp.kernel.sgd import State
from boltdp.kernel.sum_state import Summation
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import MAX_BATCH_ROWS

#: Approximate size of a block, which matches the batches of Spark's cache.
BLOCK_BYTES = 4 << 20
#: Upper bound on the bytes of rows that a task sorts in memory; larger ranges are sorted in a file.
MEMORY_BYTES = 256 << 20
DIGEST_BYTES = KEY_BYTES = 16
PAGE_BYTES = 4096

#: The error for blocks that differ from those computed first.
CHANGED = "the data must stay as it is while it is read, and Spark has computed some rows again, differently"
CHANGED_HINT = "write the rows to a table first, and train on that"

#: Schemas of the results of tasks, in Spark's notation.
BLOCKS = "part int, number int, file long, split long, start long, rows int, digest binary, packed binary, fault string"
#: The columns of BLOCKS without the packed rows.
BLOCK_INFO = ("part", "number", "file", "split", "start", "rows", "digest", "fault")
CHUNKS = "part int, slots binary, packed binary, fault string"
RESULTS = "part int, fingerprint binary, result binary, missing binary, fault string"
COLLECTED = "target int, number int, packed binary, fault string"

_ARROW = {"int": pa.int32(), "long": pa.int64(), "binary": pa.binary(), "string": pa.string()}


class Task(ABC):
    """A function that Spark runs on each partition of a DataFrame, by `mapInArrow`."""

    columns: ClassVar[str] = RESULTS

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.process_partition(batches)
        except BoltdpError as fault:
            message = str(fault)
        except GeneratorExit:
            raise
        except BaseException as error:
            # The message may quote a row, and Spark logs it.
            raise RuntimeError(f"a task of boltdp failed: {type(error).__name__}") from None
        else:
            return
        yield self.make_result(fault=message)

    @abstractmethod
    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results of this task for the batches of one Spark partition."""

    def make_result(self, **values: Any) -> pa.RecordBatch:
        """Return one row of the task's result as a batch; columns without a value are NULL."""
        names = [column.split() for column in self.columns.split(", ")]
        arrays = [pa.array([values.get(name)], _ARROW[kind]) for name, kind in names]
        return pa.RecordBatch.from_arrays(arrays, [name for name, _ in names])


def get_partition_number() -> int:
    """Return the number of the Spark partition that this task processes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def count_rows_per_block(width: int) -> int:
    """Return how many packed rows of `width` numbers a full block holds."""
    return max(1, BLOCK_BYTES // (4 * width))


def combine_digests(digests: Iterator[bytes] | Sequence[bytes]) -> bytes:
    """Combine the digests of blocks, independently of their order.

    >>> combine_digests([b"a" * 16, b"b" * 16]) == combine_digests([b"b" * 16, b"a" * 16])
    True
    """
    total = sum(int.from_bytes(digest, "little") for digest in digests)
    return (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES, "little")


@dataclass(frozen=True, kw_only=True)
class BlockTask(Task):
    """A task that returns packed blocks, each with a keyed digest, which reveals nothing without the key."""

    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    run: str | None = None  #: the name of the blocks in the cache of executors; None: they are not cached

    columns: ClassVar[str] = BLOCKS

    def make_block_result(
        self, rows: PackedRows, *, part: int, number: int, file: int = 0, split: int = 0, start: int = 0
    ) -> pa.RecordBatch:
        """Return a block of packed rows as a result, with its position and a digest of its rows, and cache it."""
        place = {"part": part, "number": number, "file": file, "split": split, "start": start}
        state = blake2b(struct.pack("<5q", *place.values()), key=self.key, digest_size=DIGEST_BYTES)
        state.update(rows.data.cast("B"))
        digest = state.digest()
        if self.run is not None:
            block_cache.save_block(self.run, digest.hex(), rows)
        return self.make_result(**place, rows=len(rows), digest=digest, packed=rows.tobytes())


@dataclass(frozen=True)
class Batches:
    """The columns of the source's batches: single columns, then arrays, then, `with_positions`, file and split.

    An array contains the floats of several columns, which Spark transfers faster than separate columns.
    """

    names: tuple[str, ...]
    with_positions: bool
    version: str = __version__  #: of the driver
    arrays: tuple[tuple[str, ...], ...] = ()

    def split_by_file(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Split batches where the file or its split changes; yield the file, the start of the split and the rows."""
        if self.version != __version__:
            raise DataError(f"the executors must have boltdp {self.version}, they have {__version__}")
        for batch in batches:
            columns = dict(zip(self.names, batch.columns, strict=False))
            for names, cells in zip(self.arrays, batch.columns[len(self.names) :], strict=False):
                columns.update(zip(names, _unpack_columns(cells, len(names)), strict=True))
            table = pa.RecordBatch.from_arrays([*columns.values()], [*columns])
            if not self.with_positions or not batch.num_rows:
                yield 0, 0, table
                continue
            file, split = map(view_values, batch.columns[-2:])
            cuts = np.flatnonzero((np.diff(file) != 0) | (np.diff(split) != 0)) + 1
            for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(table)], strict=True):
                yield int(file[start]), int(split[start]), table.slice(start, stop - start)


def _unpack_columns(cells: pa.Array, count: int) -> Iterator[pa.Array]:
    """Yield the `count` columns that Spark sent as one array column, with NaN for missing values."""
    floats = cells.flatten()
    numbers, gaps = view_values(floats), mask_missing(floats)
    if gaps is not None:
        numbers = np.where(gaps, numbers.dtype.type(np.nan), numbers)
    for column in np.ascontiguousarray(numbers.reshape(-1, count).T):
        yield pa.Array.from_buffers(floats.type, len(column), [None, pa.py_buffer(column)])


@dataclass(frozen=True)
class EncodeTask(BlockTask):
    """Encodes the columns of the source to packed blocks, in the order in which Spark reads them."""

    schema: Schema
    on_bad_row: OnBadRow
    batches: Batches

    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = Encoder(self.schema.encoding, on_bad_row=self.on_bad_row)
        block = np.empty((count_rows_per_block(encoder.width), encoder.width), np.float32)
        part, number = get_partition_number(), 0
        for (file, split), runs in groupby(self.batches.split_by_file(batches), key=itemgetter(0, 1)):
            for rows in _fill_blocks(encoder, (table for *_, table in runs), block):
                yield self.make_block_result(rows, part=part, number=number, file=file, split=split)
                number += 1


def _fill_blocks(encoder: Encoder, tables: Iterator[pa.RecordBatch], block: PackedRows) -> Iterator[PackedRows]:
    """Yield the encoded rows in full blocks and a last one, all in the same array."""
    used = 0
    for table in tables:
        at = 0
        while at < len(table):
            count = min(len(block) - used, len(table) - at)
            encoder.encode(table.slice(at, count), block[used : used + count])
            used, at = used + count, at + count
            if used == len(block):
                yield block
                used = 0
    if used:
        yield block[:used]


@dataclass(frozen=True)
class CollectTask(Task):
    """Sends the results of `make` for the source's batches, or the batches themselves, to the driver."""

    batches: Batches
    make: EncodedFunction | None

    columns: ClassVar[str] = BLOCKS

    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, number = get_partition_number(), 0
        make = serialize_batch if self.make is None else self.make.make_function()
        for file, split, table in self.batches.split_by_file(batches):
            for at in range(0, len(table), MAX_BATCH_ROWS):
                chunk = table.slice(at, MAX_BATCH_ROWS)
                packed = make(chunk)
                if self.make is not None:
                    packed = mask_bytes(packed, self.make.key + struct.pack("<2q", part, number))
                place = {"part": part, "number": number, "file": file, "split": split, "start": 0}
                yield self.make_result(**place, rows=len(chunk), digest=b"", packed=packed)
                number += 1


@dataclass(frozen=True)
class EncodedFunction:
    """A function of encoded rows, whose results are masked by `mask_bytes` with this key."""

    schema: Schema
    on_bad_row: OnBadRow
    work: Callable[[PackedRows], object]
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))

    def make_function(self) -> Callable[[pa.RecordBatch], bytes]:
        """Return a function that encodes a batch, calls `work` with its rows, and pickles the result."""
        encoder = Encoder(self.schema.encoding, on_bad_row=self.on_bad_row)
        return lambda batch: pickle.dumps(self.work(encoder.encode(batch)))


@dataclass(frozen=True)
class AssignTask(Task):
    """Assigns the results of `CollectTask` to target partitions, by the part and number of each."""

    targets: Mapping[tuple[int, int], int]

    columns: ClassVar[str] = COLLECTED

    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in read_result_rows(batches):
            target = self.targets.get((one["part"], one["number"]))
            if target is None:
                raise DataError(CHANGED)
            yield self.make_result(target=target, number=one["number"], packed=one["packed"].to_pybytes())


def serialize_batch(batch: pa.RecordBatch) -> bytes:
    """Serialize a batch of rows in Arrow's stream format, to be collected from executors."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def read_result_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield the rows of another task's result, with packed rows as buffers, not copies; raise the error it reported."""
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        for index in range(batch.num_rows):
            cells = {name: column[index] for name, column in columns.items()}
            fault = cells["fault"].as_py()
            if fault is not None:
                raise DataError(fault)
            yield {name: cell.as_buffer() if name == "packed" else cell.as_py() for name, cell in cells.items()}


@dataclass(frozen=True)
class Block:
    """A block with its rows."""

    part: int
    number: int
    start: int
    digest: bytes
    rows: PackedRows

    def find_start(self, starts: BlockStarts) -> int:
        """Return the original position of the first row; raise DataError if the block has changed."""
        start, digest = starts.get((self.part, self.number), (0, b""))
        if digest != self.digest:
            raise DataError(CHANGED)
        return start


#: The original position of the first row and the digest of each block, by its part and number.
BlockStarts: TypeAlias = Mapping[tuple[int, int], tuple[int, bytes]]


def read_blocks(batches: Iterator[pa.RecordBatch], width: int) -> Iterator[Block]:
    """Yield the blocks of a partition without copying them."""
    for one in read_result_rows(batches):
        rows = np.frombuffer(one["packed"], np.float32).reshape(-1, width)
        yield Block(one["part"], one["number"], one["start"], one["digest"], rows)


@dataclass(frozen=True)
class RowRange:
    """A range of positions of permuted rows; blocks in any order start at position 0."""

    start: int
    stop: int

    def select_rows(self, start: int, rows: PackedRows) -> PackedRows:
        """Return the rows of a block, the first of which is at position `start`, that are in this range."""
        first, last = max(self.start - start, 0), min(self.stop - start, len(rows))
        return rows[first : max(first, last)]


#: The range of all rows.
ALL_ROWS = RowRange(0, (1 << 63) - 1)


@dataclass(frozen=True)
class SelectRangeTask(BlockTask):
    """Selects the rows in a range of original positions from all blocks, in any order."""

    starts: BlockStarts
    row_range: RowRange
    width: int

    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in read_blocks(batches, self.width):
            rows = self.row_range.select_rows(block.find_start(self.starts), block.rows)
            if len(rows):
                yield self.make_block_result(rows, part=block.part, number=block.number)


#: Start and stop of a range of rows, and the seed that permutes them.
RangePermutation: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class ScatterTask(Task):
    """Computes the new positions of rows and splits each block by ranges of positions.

    Rows of a move are permuted, others keep their positions, and rows outside all ranges are dropped. Moves are sorted
    and disjoint, and so are ranges.
    """

    starts: BlockStarts
    moves: tuple[RangePermutation, ...]
    ranges: tuple[tuple[int, int], ...]
    width: int
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))  #: masks the chunks

    columns: ClassVar[str] = CHUNKS

    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        starts, stops = (np.array(edges, np.int64) for edges in zip(*self.ranges, strict=True))
        for block in read_blocks(batches, self.width):
            positions = self._compute_positions(block.find_start(self.starts), len(block.rows))
            parts = np.searchsorted(starts, positions, side="right") - 1
            met = np.flatnonzero((parts >= 0) & (positions < stops[parts]))
            order = met[np.argsort(parts[met], kind="stable")]
            rows = np.empty((len(order), self.width), np.float32)
            take_rows(block.rows, order, rows)
            slots = (positions - starts[parts])[order].astype(np.uint32)
            counts = np.bincount(parts[met], minlength=len(starts))
            ends = np.cumsum(counts)
            for part in np.flatnonzero(counts).tolist():
                of = slice(int(ends[part] - counts[part]), int(ends[part]))
                goal = slots[of].tobytes()
                yield self.make_result(part=part, slots=goal, packed=mask_bytes(rows[of].tobytes(), self.key + goal))

    def _compute_positions(self, at: int, count: int) -> Integers:
        """Return the positions, after all permutations, of the `count` rows that start at position `at`."""
        positions = np.arange(at, at + count)
        # Starts with the first move that ends after the first row.
        for start, stop, seed in self.moves[bisect_right(self.moves, at, key=lambda move: move[1]) :]:
            first, last = max(start - at, 0), min(stop - at, count)
            if first >= last:
                break
            moved = compute_permuted_positions(at + first - start, last - first, rows=stop - start, seed=seed)
            positions[first:last] = start + moved
        return positions


def gather_rows(
    batches: Iterator[pa.RecordBatch], sizes: Sequence[int], width: int, memory_bytes: int
) -> dict[int, PackedRows]:
    """Join the chunks of a Spark partition to arrays of rows in order, one per range of positions, by its number.

    Each row must be received exactly once.
    """
    ranges: dict[int, PackedRows] = {}
    seen: dict[int, Booleans] = {}
    received: Counter[int] = Counter()
    for one in read_result_rows(batches):
        part = one["part"]
        if part not in ranges:
            ranges[part] = _allocate_rows(sizes[part], width, memory_bytes)
            seen[part] = np.zeros(sizes[part], np.bool_)
        slots = np.frombuffer(one["slots"], np.uint32).astype(np.int64)
        rows = np.frombuffer(unmask_bytes(one["packed"]), np.float32).reshape(len(slots), -1)
        put_rows(rows, slots, ranges[part])
        seen[part][slots] = True
        received[part] += len(slots)
    if any(received[part] != sizes[part] or not seen[part].all() for part in ranges):
        raise DataError(CHANGED)
    return dict(sorted(ranges.items()))


def _allocate_rows(rows: int, width: int, memory_bytes: int) -> PackedRows:
    """Return an array of packed rows, in memory of the executor or in an anonymous file."""
    if 4 * rows * width <= memory_bytes:
        return np.empty((rows, width), np.float32)
    with tempfile.TemporaryFile(dir=block_cache.find_local_directory()) as file:
        return np.memmap(file, np.float32, "w+", shape=(rows, width))


@dataclass(frozen=True)
class GatherTask(BlockTask):
    """Sorts the chunks of a range into blocks."""

    bounds: tuple[int, ...]  #: the starts of ranges, and the end of the last
    width: int
    memory_bytes: int = MEMORY_BYTES

    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        step, sizes = count_rows_per_block(self.width), np.diff(self.bounds).tolist()
        for part, rows in gather_rows(batches, sizes, self.width, self.memory_bytes).items():
            for number, at in enumerate(range(0, len(rows), step)):
                yield self.make_block_result(
                    rows[at : at + step], part=part, number=number, start=self.bounds[part] + at
                )


@dataclass(frozen=True)
class TrainTask(Task):
    """Runs all passes over each range, each with its own states."""

    parts: bytes  #: number of rows, states and seeds of passes of each range, by `pack_payload`
    width: int
    memory_bytes: int = MEMORY_BYTES

    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts: list[tuple[int, list[bytes], list[int | None]]] = unpack_payload(self.parts)
        sizes = [size for size, *_ in parts]
        for part, rows in gather_rows(batches, sizes, self.width, self.memory_bytes).items():
            size, initial, seeds = parts[part]
            states = [State.from_bytes(state) for state in initial]
            own = Partition(0, size, states, seeds)
            with _make_local_rows(rows, shuffled=any(seed is not None for seed in seeds)) as prepared:
                run_partition(prepared, own, PassProgress([own], Context(seed=0, threads=1)))
            yield self.make_result(part=part, result=pack_results(states, self.parts, part))


def _make_local_rows(rows: PackedRows, *, shuffled: bool) -> LocalRows:
    """Wrap packed rows as local rows; if they are in a file and will be shuffled, copy them to a store that can."""
    if not (isinstance(rows, np.memmap) and shuffled):
        return LocalRows(MemoryStore(rows), 0, len(rows))
    step = max(1, MEMORY_BYTES // (4 * rows.shape[1]))
    blocks = (rows[at : at + step] for at in range(0, len(rows), step))
    return store_permuted(blocks, shape=rows.shape, directory=block_cache.find_local_directory(), memory_bytes=0)


def store_permuted(
    blocks: Iterable[PackedRows],
    *,
    shape: tuple[int, ...],
    directory: str | Path | None,
    memory_bytes: int | None = None,
) -> LocalRows:
    """Store packed rows that are permuted already; `shape` is their number and width."""
    rows, width = shape
    context = Context(seed=0, threads=1)
    prepared = store_rows(
        blocks, rows=rows, width=width, permuted=False, context=context, directory=directory, memory_bytes=memory_bytes
    )
    prepared.permuted = True
    return prepared


def mask_bytes(data: bytes, key: bytes) -> bytes:
    """Mask bytes for Spark with a pseudorandom stream, so that its compression cannot shorten them.

    Spark compresses closures, results and shuffles and logs their sizes, which would depend on weights, sums and rows.
    This is no encryption: the result contains the seed of the stream. Use each key once.
    """
    seed = blake2b(key, digest_size=16).digest()
    return seed + _xor_with_stream(np.frombuffer(data, np.uint8), seed).tobytes()


def unmask_bytes(data: bytes) -> bytes:
    """Return the bytes that `mask_bytes` has masked."""
    masked = np.frombuffer(data, np.uint8)
    return _xor_with_stream(masked[16:], masked[:16].tobytes()).tobytes()


def _xor_with_stream(data: npt.NDArray[np.uint8], seed: bytes) -> npt.NDArray[np.uint8]:
    """XOR bytes with the pseudorandom stream of a seed; doing it twice restores them."""
    stream = np.random.Philox(key=int.from_bytes(seed, "little")).random_raw(-(-len(data) // 8))
    return data ^ stream.view(np.uint8)[: len(data)]


def pack_payload(objects: object) -> bytes:
    """Pickle the sums or states that a Spark task starts with, without pages of zeros, and apply `mask_bytes`."""
    data = pickle.dumps(objects)
    pages = np.frombuffer(data + bytes(-len(data) % PAGE_BYTES), np.uint8).reshape(-1, PAGE_BYTES)
    nonzero = pages.any(axis=1)
    packed = pickle.dumps((len(data), np.packbits(nonzero).tobytes(), pages[nonzero].tobytes()))
    return mask_bytes(packed, secrets.token_bytes(KEY_BYTES))


def unpack_payload(data: bytes) -> Any:
    """Return the objects that `pack_payload` has packed."""
    size, bits, nonzero = pickle.loads(unmask_bytes(data))
    pages = np.zeros((-(-size // PAGE_BYTES), PAGE_BYTES), np.uint8)
    met = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(pages)).astype(np.bool_)
    pages[met] = np.frombuffer(nonzero, np.uint8).reshape(-1, PAGE_BYTES)
    return pickle.loads(pages.tobytes()[:size])


def pack_results(results: Sequence[Summation] | Sequence[State], payload: bytes, part: int) -> bytes:
    """Serialize and mask the sums or states of a partition, with a key derived from the task's payload."""
    return mask_bytes(pickle.dumps([each.to_bytes() for each in results]), payload[:16] + part.to_bytes(8, "little"))


def unpack_results(data: bytes) -> list[bytes]:
    """Return the serialized sums or states that `pack_results` has packed."""
    return [*pickle.loads(unmask_bytes(data))]


@dataclass(frozen=True)
class ScanTask(Task):
    """Adds the blocks of a partition to sums or states, and returns these with a fingerprint of the blocks."""

    payload: bytes  #: empty sums, or the bytes of states, by `pack_payload`

    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fed = [
            State.from_bytes(one) if isinstance(one, bytes) else one.copy_empty()
            for one in unpack_payload(self.payload)
        ]
        digests, missing = [], []
        for digest, rows in self.read_blocks(batches):
            if rows is None:
                missing.append(digest)
            else:
                self.add_block(fed, rows)
                digests.append(digest)
        if digests or missing:
            part, found = get_partition_number(), combine_digests(digests)
            result = pack_results(fed, self.payload, part)
            yield self.make_result(part=part, fingerprint=found, result=result, missing=b"".join(missing))

    @abstractmethod
    def read_blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, Any]]:
        """Yield the digest and the rows of each block, or None for rows that are missing in the cache."""

    def add_block(self, fed: list[Any], rows: Any) -> None:
        """Add the rows of a block to each of the sums or states `fed`."""
        for each in fed:
            each.add(rows)


@dataclass(frozen=True)
class SumTask(ScanTask):
    """Computes the sums of a partition, over all blocks or those missing in a cached scan, and caches the blocks."""

    row_range: RowRange
    width: int
    missed: frozenset[bytes] | None = None
    run: str | None = None

    def read_blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, PackedRows]]:
        for block in read_blocks(batches, self.width):
            if self.missed is not None and block.digest not in self.missed:
                continue
            if self.run is not None:
                block_cache.save_block(self.run, block.digest.hex(), block.rows)
            yield block.digest, self.row_range.select_rows(block.start, block.rows)


@dataclass(frozen=True)
class CachedSumTask(ScanTask):
    """Computes the sums of a partition from cached blocks; Spark passes only their digests.

    The rows sampled by sums of a share are cached too. Spark never sees them, because their number is private.
    """

    width: int
    run: str
    share: float = 1.0

    def read_blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, PackedRows | None]]:
        block_cache.restart_timeout(self.run)
        for one in read_result_rows(batches):
            yield one["digest"], self._load_rows(one["digest"].hex(), one["rows"])

    def _load_rows(self, name: str, count: int) -> PackedRows | None:
        """Return a cached block, or the sample of it that the sums use; None if it is missing."""
        sample_name = f"{name}-{self.share!r}"
        sample = None if self.share == 1.0 else block_cache.load_block(self.run, sample_name, width=self.width)
        if sample is not None:
            return sample
        rows = block_cache.load_block(self.run, name, rows=count, width=self.width)
        if rows is None or self.share == 1.0:
            return rows
        sample = sample_packed_rows(rows, self.share)
        block_cache.save_block(self.run, sample_name, sample)
        return sample


@dataclass(frozen=True)
class JoinSumsTask(ScanTask):
    """Adds up the sums of several partitions, where they are too large to be added by the driver alone."""

    def read_blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes | None]]:
        for one in read_result_rows(batches):
            yield one["fingerprint"], one["result"]
            yield one["missing"], None

    def add_block(self, fed: list[Any], rows: bytes) -> None:
        join_results(fed, rows)


def join_results(sums: Sequence[Summation], result: bytes) -> None:
    """Add the partial sums in the packed result of a task to `sums`."""
    for each, summed in zip(sums, unpack_results(result), strict=True):
        other = each.copy_empty()
        other.update(summed)
        each.join(other)


@dataclass(frozen=True)
class PassTask(ScanTask):
    """Runs a pass of the states over the rows of one part of the blocks, in order."""

    row_range: RowRange
    width: int

    def read_blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, PackedRows]]:
        expected = None
        for block in read_blocks(batches, self.width):
            if expected is not None and block.start != expected:
                raise DataError(CHANGED)
            expected = block.start + len(block.rows)
            yield block.digest, self.row_range.select_rows(block.start, block.rows)

    def add_block(self, fed: list[Any], rows: PackedRows) -> None:
        sgd.run(fed, rows)


@dataclass(frozen=True)
class RemoveBlocksTask(Task):
    """Removes the cached blocks of a run from the executor."""

    run: str

    def process_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        block_cache.remove_blocks(self.run)
        for _ in batches:  # Spark kills a worker that does not read all
            yield from ()
