"""What runs in the Python workers of executors: one class for each kind of job, called with a partition's batches.

They are pickled by reference, so that executors need the same boltdp, and their fields by value. A fault that the user
can mend is a row of the result, with its message; any other exception is replaced by one that quotes nothing, since
Spark logs it, and then Spark tries again.
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

#: Bytes of a block, about: large enough for a scan to move buffers, not rows; Spark's cache makes batches of 4 MB.
BLOCK_BYTES = 4 << 20
#: Rows of a range that a task puts in order in memory, at most; more go to a file.
MEMORY_BYTES = 256 << 20
DIGEST_BYTES = 16
PAGE_BYTES = 4096

#: What is said where blocks are not those that were made first.
CHANGED = "the data must stay as it is while it is read, and Spark has computed some rows again, differently"
CHANGED_HINT = "write the rows to a table first, and train on that"

#: Columns of what tasks make, as Spark is given them.
BLOCKS = "part int, number int, file long, split long, start long, rows int, digest binary, packed binary, fault string"
#: The same without the rows.
PLACES = ("part", "number", "file", "split", "start", "rows", "digest", "fault")
CHUNKS = "part int, slots binary, packed binary, fault string"
RESULTS = "part int, rows long, fingerprint binary, result binary, missing binary, fault string"
SHIPPED = "part int, number int, file long, split long, rows int, shipped binary, fault string"
ORDERED = "target int, place int, shipped binary, fault string"

_ARROW = {
    "int": pa.int32(),
    "long": pa.int64(),
    "binary": pa.binary(),
    "string": pa.string(),
}


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
            # Whatever it says may quote a row, and Spark logs it: only its type is named.
            kind = type(error).__name__
            raise RuntimeError(f"a task of boltdp failed: {kind}") from None
        else:
            return
        yield self.row(fault=message)

    @abstractmethod
    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the partition becomes."""

    def row(self, **values: Any) -> pa.RecordBatch:
        return result_row(self.columns, **values)


def result_row(columns: str, **values: Any) -> pa.RecordBatch:
    """One row of such columns; what is not given is missing."""
    names = [column.split() for column in columns.split(", ")]
    arrays = [pa.array([values.get(name)], _ARROW[kind]) for name, kind in names]
    return pa.RecordBatch.from_arrays(arrays, [name for name, _ in names])


def partition_number() -> int:
    """Of the partition that is worked on."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number: int = context.partitionId()
    return number


def block_digest(key: bytes, rows: PackedRows, *numbers: int) -> bytes:
    """Of a block and its place, by a key that only the run has, so that a digest tells nothing to others."""
    seal = blake2b(struct.pack(f"<{len(numbers)}q", *numbers), key=key, digest_size=DIGEST_BYTES)
    seal.update(rows.data.cast("B"))
    digest: bytes = seal.digest()
    return digest


def fingerprint(digests: Iterator[bytes] | Sequence[bytes]) -> bytes:
    """Of blocks in any order.

    >>> fingerprint([b"a" * 16, b"b" * 16]) == fingerprint([b"b" * 16, b"a" * 16])
    True
    """
    total = sum(int.from_bytes(digest, "little") for digest in digests)
    return (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES, "little")


@dataclass(frozen=True)
class Sealing:
    """How blocks are made: with a digest by a key, and, if the run has a name, kept where they are made."""

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
    """How the batches of a partition of the source are read: names of columns, then those of columns of arrays.

    An array has the floats of several columns: Spark hands it over sooner than as many columns. Places in files follow.
    """

    names: tuple[str, ...]
    placed: bool
    version: str
    arrays: tuple[tuple[str, ...], ...] = ()

    def runs(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """The rows, cut where another file or another part of a file begins: its number, where it begins, the rows."""
        if self.version != __version__:
            raise DataError(f"the executors must have boltdp {self.version}, they have {__version__}")
        for batch in batches:
            columns = dict(zip(self.names, batch.columns, strict=False))
            for names, cells in zip(self.arrays, batch.columns[len(self.names) :], strict=False):
                columns.update(zip(names, _unpacked(cells, len(names)), strict=True))
            table = pa.RecordBatch.from_arrays([*columns.values()], [*columns])
            if not self.placed or not batch.num_rows:
                yield 0, 0, table
                continue
            file, split = map(values, batch.columns[-2:])
            cuts = np.flatnonzero((np.diff(file) != 0) | (np.diff(split) != 0)) + 1
            for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(table)], strict=True):
                yield int(file[start]), int(split[start]), table.slice(start, stop - start)


def _unpacked(cells: pa.Array, count: int) -> Iterator[pa.Array]:
    """The columns whose floats are in arrays of this length; what is missing is NaN, as the encoder would make it."""
    floats = cells.flatten()
    numbers, gaps = values(floats), missing(floats)
    if gaps is not None:
        numbers = np.where(gaps, numbers.dtype.type(np.nan), numbers)
    for column in np.ascontiguousarray(numbers.reshape(-1, count).T):
        yield pa.Array.from_buffers(floats.type, len(column), [None, pa.py_buffer(column)])


@dataclass(frozen=True)
class Encode(Task):
    """Columns of the source to packed blocks, in the order in which Spark reads them."""

    schema: Schema
    on_bad_row: OnBadRow
    batches: Batches
    sealing: Sealing

    columns: ClassVar[str] = BLOCKS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Blocks of many rows, each from one part of one file."""
        encoder = Encoder(self.schema.encoding, on_bad_row=self.on_bad_row)
        most = max(1, BLOCK_BYTES // (4 * encoder.width))
        block = np.empty((most, encoder.width), np.float32)
        part, number, used, last = partition_number(), 0, 0, (0, 0)

        def made() -> pa.RecordBatch:
            return self.sealing.row(block[:used], part=part, number=number, file=last[0], split=last[1])

        for file, split, table in self.batches.runs(batches):
            if used and (file, split) != last:
                yield made()
                number, used = number + 1, 0
            last, at = (file, split), 0
            while at < len(table):
                count = min(most - used, len(table) - at)
                encoder.encode(table.slice(at, count), block[used : used + count])
                used, at = used + count, at + count
                if used == most:
                    yield made()
                    number, used = number + 1, 0
        if used:
            yield made()


@dataclass(frozen=True)
class Ship(Task):
    """What is made of the source's batches, to be sent to the driver; without anything, the batches themselves."""

    batches: Batches
    make: EncodedWork | None

    columns: ClassVar[str] = SHIPPED

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, number = partition_number(), 0
        make = arrow_bytes if self.make is None else self.make.start()
        for file, split, table in self.batches.runs(batches):
            for at in range(0, len(table), MAX_BATCH_ROWS):
                some = table.slice(at, MAX_BATCH_ROWS)
                shipped = make(some)
                if self.make is not None:
                    at_place = b"".join(place.to_bytes(8, "little") for place in (part, number))
                    shipped = hide(shipped, self.make.key + at_place)
                places = {"part": part, "number": number, "file": file, "split": split}
                yield self.row(**places, rows=len(some), shipped=shipped)
                number += 1


@dataclass(frozen=True)
class EncodedWork:
    """Something that is done with encoded rows; what comes of it is `hide` by a key, as sums of rows must be."""

    schema: Schema
    on_bad_row: OnBadRow
    work: Callable[[PackedRows], object]
    key: bytes

    def start(self) -> Callable[[pa.RecordBatch], bytes]:
        encoder = Encoder(self.schema.encoding, on_bad_row=self.on_bad_row)
        return lambda batch: pickle.dumps(self.work(encoder.encode(batch)))


@dataclass(frozen=True)
class Order(Task):
    """What was shipped, on its way to partitions that follow each other as the rows do."""

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
    """A batch in Arrow's format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def arrow_batch(data: bytes) -> pa.RecordBatch:
    """The batch of `arrow_bytes`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def check_fault(fault: str | None) -> None:
    """Raise what a task before this one has found."""
    if fault is not None:
        raise DataError(fault)


@dataclass(frozen=True)
class Block:
    """A block that was read."""

    part: int
    number: int
    start: int | None
    digest: bytes
    rows: PackedRows


def read_blocks(batches: Iterator[pa.RecordBatch], width: int) -> Iterator[Block]:
    """The blocks of a partition, which are not copied."""
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
    """Rows of ordered blocks from one position to another; all of them, in any order, without."""

    start: int
    stop: int

    def within(self, block: Block) -> PackedRows:
        assert block.start is not None
        first, last = max(self.start - block.start, 0), min(self.stop - block.start, len(block.rows))
        return block.rows[first : max(first, last)]


@dataclass(frozen=True)
class Places:
    """Where the rows of blocks are in the original order, by the blocks' parts and numbers, and their digests."""

    of: Mapping[tuple[int, int], tuple[int, bytes]]

    def start(self, block: Block) -> int:
        """The position of the first row of a block, which must be the one that was made first."""
        start, digest = self.of.get((block.part, block.number), (0, b""))
        if digest != block.digest:
            raise DataError(CHANGED)
        return start


@dataclass(frozen=True)
class Cut(Task):
    """The rows at positions 0 to rows - 1 of all blocks, in any order."""

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


#: Rows from one position to another, and the seed by which they are permuted among themselves.
Move: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Scatter(Task):
    """Rows on their way to new positions: those of each block, by the range of positions that they belong to.

    Rows of a move are permuted, others stay where they are, and what is in no range is dropped. Moves share no rows,
    nor do ranges, and both are in order.
    """

    places: Places
    moves: tuple[Move, ...]
    ranges: tuple[tuple[int, int], ...]
    width: int
    key: bytes  #: by which chunks are `hide`

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
        """Where the rows that stand at a position and after it go."""
        positions = np.arange(at, at + count)
        # The first move that ends behind the first row.
        for start, stop, seed in self.moves[bisect_right(self.moves, at, key=lambda move: move[1]) :]:
            first, last = max(start - at, 0), min(stop - at, count)
            if first >= last:
                break
            moved = packing.permuted_position(at + first - start, last - first, rows=stop - start, seed=seed)
            positions[first:last] = start + moved
        return positions


class _Part:
    """Rows on their way to their slots in a range: in memory, or in a file without a name if they are many."""

    def __init__(self, rows: int, width: int, memory_bytes: int) -> None:
        shape = (rows, width)
        if 4 * rows * width <= memory_bytes:
            self._rows: PackedRows = np.empty(shape, np.float32)
        else:
            with tempfile.TemporaryFile(dir=block_cache.local_directory()) as file:
                self._rows = np.memmap(file, np.float32, "w+", shape=shape)
        self._met = np.zeros(rows, np.bool_)
        self._count = 0

    def put(self, slots: Integers, packed: npt.NDArray[np.float32]) -> None:
        packing.put(packed.reshape(len(slots), -1), slots, self._rows)
        self._met[slots] = True
        self._count += len(slots)

    def whole(self) -> PackedRows:
        """All rows, if each came once: one that came twice would count twice."""
        if self._count != len(self._rows) or not self._met.all():
            raise DataError(CHANGED)
        return self._rows


def gathered(
    batches: Iterator[pa.RecordBatch], sizes: Sequence[int], width: int, memory_bytes: int
) -> dict[int, PackedRows]:
    """The rows of ranges, by their numbers, put in order from chunks that come in any."""
    parts: dict[int, _Part] = {}
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        for index in range(batch.num_rows):
            check_fault(columns["fault"][index].as_py())
            part = columns["part"][index].as_py()
            if part not in parts:
                parts[part] = _Part(sizes[part], width, memory_bytes)
            slots = np.frombuffer(columns["slots"][index].as_buffer(), np.uint32).astype(np.int64)
            parts[part].put(slots, np.frombuffer(reveal(columns["packed"][index].as_buffer()), np.float32))
    return {part: parts.pop(part).whole() for part in sorted(parts)}


@dataclass(frozen=True)
class PutInOrder(Task):
    """The chunks of a range, put in order to blocks."""

    bounds: tuple[int, ...]  #: where ranges begin, and the end of the last
    width: int
    sealing: Sealing
    memory_bytes: int = MEMORY_BYTES

    columns: ClassVar[str] = BLOCKS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        most, sizes = max(1, BLOCK_BYTES // (4 * self.width)), np.diff(self.bounds).tolist()
        for part, rows in gathered(batches, sizes, self.width, self.memory_bytes).items():
            for number, at in enumerate(range(0, len(rows), most)):
                yield self.sealing.row(rows[at : at + most], part=part, number=number, start=self.bounds[part] + at)


@dataclass(frozen=True)
class Train(Task):
    """All passes over each range, by states that see its rows alone."""

    parts: bytes  #: for each range its rows, its states and the seeds of its passes, `pack_payload`
    width: int
    memory_bytes: int = MEMORY_BYTES

    columns: ClassVar[str] = RESULTS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts: list[tuple[int, list[bytes], list[int | None]]] = unpack_payload(self.parts)
        sizes = [size for size, *_ in parts]
        for part, rows in gathered(batches, sizes, self.width, self.memory_bytes).items():
            size, given, seeds = parts[part]
            states = [State.from_bytes(state) for state in given]
            own = Partition(0, size, states, seeds)
            with _spooled(rows, fresh=any(seed is not None for seed in seeds)) as prepared:
                run_part(prepared, own, Passes([own], Context(seed=0, threads=1)))
            yield self.row(part=part, rows=size, result=hide_results(states, self.parts, part))


def _spooled(rows: PackedRows, *, fresh: bool) -> LocalRows:
    """Rows as they are; those that are many and will be permuted go to a file that can be."""
    size, width = rows.shape
    if isinstance(rows, np.memmap) and fresh:
        step = max(1, MEMORY_BYTES // (4 * width))
        windows = (rows[at : at + step] for at in range(0, size, step))
        context = Context(seed=0, threads=1)
        prepared = store_rows(
            windows,
            rows=size,
            width=width,
            ordered=False,
            context=context,
            directory=block_cache.local_directory(),
            memory_bytes=0,
        )
        prepared.ordered = True  # as they are
        return prepared
    return LocalRows(MemoryStore(rows), 0, size)


def hide(data: bytes, key: bytes) -> bytes:
    """Bytes that no compression makes fewer, whatever they were.

    Spark compresses closures, results and shuffles, and logs their sizes, which would depend on weights, sums and rows.
    It is no encryption: whoever has the bytes has the key, and can have them `reveal`. Use a key for one thing only.

    >>> one, other = hide(bytes(1000), b"key"), hide(bytes(1000), b"other")
    >>> one == other, reveal(one) == reveal(other) == bytes(1000)
    (False, True)
    """
    seed = blake2b(key, digest_size=16).digest()
    return seed + _masked(np.frombuffer(data, np.uint8), seed).tobytes()


def reveal(data: bytes) -> bytes:
    """What was `hide`."""
    everything = np.frombuffer(data, np.uint8)
    return _masked(everything[16:], everything[:16].tobytes()).tobytes()


def _masked(data: npt.NDArray[np.uint8], seed: bytes) -> npt.NDArray[np.uint8]:
    drawn = np.random.Philox(key=int.from_bytes(seed, "little")).random_raw(-(-len(data) // 8))
    return data ^ drawn.view(np.uint8)[: len(data)]


def pack_payload(objects: object) -> bytes:
    """Objects as bytes that are `hide`, without pages of zeros, of which sums before their first row have many.

    >>> data = pack_payload([bytes(10**6), b"x"])
    >>> len(data) < 10**4, unpack_payload(data) == [bytes(10**6), b"x"]
    (True, True)
    """
    data = pickle.dumps(objects)
    pages = np.frombuffer(data + bytes(-len(data) % PAGE_BYTES), np.uint8).reshape(-1, PAGE_BYTES)
    block_cache = pages.any(axis=1)
    packed = pickle.dumps((len(data), np.packbits(block_cache).tobytes(), pages[block_cache].tobytes()))
    return hide(packed, secrets.token_bytes(16))


def unpack_payload(data: bytes) -> Any:
    """What `pack_payload` was given."""
    size, bits, block_cache = pickle.loads(reveal(data))
    pages = np.zeros((-(-size // PAGE_BYTES), PAGE_BYTES), np.uint8)
    met = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(pages)).astype(np.bool_)
    pages[met] = np.frombuffer(block_cache, np.uint8).reshape(-1, PAGE_BYTES)
    return pickle.loads(pages.tobytes()[:size])


def hide_results(results: Sequence[Summation] | Sequence[State], given: bytes, part: int) -> bytes:
    """What a task has made of what it was given, for its part of the rows; `read_results` reads it."""
    return hide(pickle.dumps([each.to_bytes() for each in results]), given[:16] + part.to_bytes(8, "little"))


def read_results(data: bytes) -> list[bytes]:
    """The bytes of sums or states that were `hide_results`."""
    results: list[bytes] = pickle.loads(reveal(data))
    return results


class _ResultTask(Task):
    """A task whose result is what it made of sums or states, and of which blocks."""

    columns: ClassVar[str] = RESULTS

    def result(
        self,
        results: Sequence[Summation] | Sequence[State],
        given: bytes,
        *,
        rows: int,
        digests: Sequence[bytes],
        missing: Sequence[bytes] = (),
    ) -> Iterator[pa.RecordBatch]:
        """One row, if there was a block."""
        if digests or missing:
            part = partition_number()
            yield self.row(
                part=part,
                rows=rows,
                fingerprint=fingerprint(digests),
                result=hide_results(results, given, part),
                missing=b"".join(missing),
            )


@dataclass(frozen=True)
class Sum(_ResultTask):
    """A partition's part of sums, of all blocks or those that another scan has missed, which then are kept here."""

    sums: bytes  #: `pack_payload` ones before their first row
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
            rows = block.rows if self.window is None else self.window.within(block)
            for each in sums:
                each.add(rows)
            digests.append(block.digest)
            count += len(rows)
        yield from self.result(sums, self.sums, rows=count, digests=digests)


@dataclass(frozen=True)
class SumCached(_ResultTask):
    """A partition's part of sums, of blocks that are where they were packed; Spark tells only which they are.

    Sums of a share take few rows of a block, which are kept beside it. Spark knows nothing of them: how many there are
    depends on what is in the rows.
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
                rows = self._kept(one["digest"], one["rows"])
                if rows is None:
                    missing.append(one["digest"])
                    continue
                for each in sums:
                    each.add(rows)
                digests.append(one["digest"])
                count += one["rows"]
        yield from self.result(sums, self.sums, rows=count, digests=digests, missing=missing)

    def _kept(self, digest: bytes, count: int) -> PackedRows | None:
        if self.share == 1.0:
            return block_cache.load(self.run, digest.hex(), rows=count, width=self.width)
        name = f"{digest.hex()}-{self.share!r}"
        few = block_cache.load(self.run, name, width=self.width)
        if few is None:
            rows = block_cache.load(self.run, digest.hex(), rows=count, width=self.width)
            if rows is None:
                return None
            few = packing.sampled(rows, self.share)
            block_cache.save(self.run, name, few)
        return few


@dataclass(frozen=True)
class Forget(Task):
    """The end of blocks that are kept here."""

    run: str

    columns: ClassVar[str] = RESULTS

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        block_cache.remove(self.run)
        for _ in batches:  # all of them: Spark ends a worker that leaves some
            yield from ()


@dataclass(frozen=True)
class Join(_ResultTask):
    """What several partitions have summed, joined, where it is too much to be joined by the driver alone."""

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
    """Add what a task has summed."""
    for each, summed in zip(sums, read_results(result), strict=True):
        other = each.fresh()
        other.update(summed)
        each.join(other)


@dataclass(frozen=True)
class Run(_ResultTask):
    """States, fed with the rows of the one part of the blocks that are there, in order."""

    states: bytes  #: `pack_payload` ones
    window: Window
    width: int

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states = [State.from_bytes(state) for state in unpack_payload(self.states)]
        digests: list[bytes] = []
        expected, count = None, 0
        for block in read_blocks(batches, self.width):
            if expected is not None and block.start != expected:
                raise DataError(CHANGED)
            rows = self.window.within(block)
            sgd.run(states, rows)
            expected, count = (block.start or 0) + len(block.rows), count + len(rows)
            digests.append(block.digest)
        yield from self.result(states, self.states, rows=count, digests=digests)
