"""What every engine is, and what all of them have in common.

An engine never logs a value, never decides a sensitivity and never draws noise. The order of its rows depends on
their positions and a seed, never on their values:

    the prepared row at position p is the original row  source_position(p; rows=m, seed)

A new engine needs three methods; everything else is made of them, and overridden where the rows can be worked on
where they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from boltdp._arrays import PackedRows
from boltdp._threads import close_at_end, map_in_order
from boltdp.context import Context
from boltdp.encoding.encode import Encoder
from boltdp.engines.local_store import LocalRows, store_rows
from boltdp.engines.person_limit import LimitingEncoder, check_person_id, mark_rows_within_limit
from boltdp.engines.prepared_rows import PreparedRows, check_part
from boltdp.errors import DataError, near
from boltdp.kernel.sum_state import Summation
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType, Kind

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Engine",
    "PreparedRows",
    "Slice",
    "Summation",
    "check_columns",
    "encode_rows",
    "scan_limited_rows",
    "scan_rows",
    "scan_rows_keeping",
]

R = TypeVar("R")


class Engine(ABC):
    """Where the rows are."""

    spool: str | Path | None = None  #: directory for prepared rows that do not stay where they are or in memory
    memory_bytes: int | None = (
        None  #: prepared rows above this go to a file; None: as `boltdp.engines.local_store` has it
    )
    threads: int = 1  #: how many threads work on the rows while they are read

    @property
    def where(self) -> str:
        """Where the rows are prepared and the passes run, in words."""
        return "in this process"

    @abstractmethod
    def count(self) -> int:
        """Number of rows, m."""

    @abstractmethod
    def columns(self) -> dict[str, ColumnType]:
        """Names and types of the columns; nothing about their values."""

    @abstractmethod
    def batches(self, columns: Sequence[str], *, parse: Mapping[str, Kind] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows in a stable order, at most MAX_BATCH_ROWS at a time.

        Untyped columns come as text, but those that `parse` declares "number" or "list" come as that, and a
        cell that does not parse as missing. One that is declared "timestamp" comes as text in ISO 8601.
        """

    def batches_keeping(
        self, columns: Sequence[str], keep: Sequence[str], *, parse: Mapping[str, Kind] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same, and in each batch after `columns` those of `keep`, as they are and not as `parse` declares them.

        A column may be among both, so that only places tell them apart. Here one without a type comes as it is parsed.
        """
        types = self.columns()
        parsed = {
            name: kind for name, kind in (parse or {}).items() if name not in keep or types[name].kind == "untyped"
        }
        names = [*columns, *keep]
        batches = self.batches([*dict.fromkeys(names)], parse=parsed)
        with close_at_end(batches):
            for batch in batches:
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], names)

    def slice(self, start: int, stop: int) -> Engine:
        """The rows at positions start to stop - 1. It needs no closing, and ends with this engine."""
        return Slice(self, start, stop)

    def scan(
        self, schema: Schema, work: Callable[[PackedRows], R], context: Context, *, label: bool = True
    ) -> Iterator[R]:
        """What `work` makes of each block of packed rows, in the original order: in several threads of this process.

        Where the rows are elsewhere, an engine may send it there. Use `scan_rows`, which looks at the columns first.
        """
        encoder = Encoder(schema.encoding, on_bad_row=context.on_bad_row)
        batches = _batches(self, schema, context, label=label)
        return map_in_order(lambda batch: work(encoder.encode(batch)), batches, threads=context.threads)

    def prepare(self, schema: Schema, context: Context, *, ordered: bool = True) -> PreparedRows:
        """Encode the rows once, and permute them unless they are for sums only: in memory if they are few, else a file.

        With a projection they are read and projected too.
        """
        return self._spooled(schema, context, ordered=ordered)

    def _spooled(self, schema: Schema, context: Context, *, ordered: bool, in_memory: bool = False) -> LocalRows:
        check_columns(schema, self.columns())
        check_person_id(schema, self.columns(), context)
        batches, encoder = _for_training(self, schema, context)
        return store_rows(
            batches,
            encode=encoder.encode,
            rows=self.count(),
            width=1 + schema.encoding.cells,
            feature_map=schema.encoding.feature_map,
            ordered=ordered,
            context=context,
            directory=self.spool,
            memory_bytes=self.memory_bytes,
            in_memory=in_memory,
        )

    def close(self) -> None:  # noqa: B027 - most engines hold nothing open
        """Let go of what the engine holds open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Slice(Engine):
    """Some rows of another engine, by their positions: a part of the data that is declared public, for example.

    They are streamed through this process, from the first row of the engine to the last of the slice.

    >>> from boltdp.engines.arrays import ArrayEngine
    >>> ages = ArrayEngine.from_arrow(pa.table({"age": [30, 40, 50]})).slice(1, 3)
    >>> ages.count(), [batch.to_pydict() for batch in ages.batches(["age"])]
    (2, [{'age': [40, 50]}])
    """

    def __init__(self, engine: Engine, start: int, stop: int) -> None:
        check_part(start, stop, rows=engine.count(), what="a slice")
        self._engine, self._start, self._stop = engine, start, stop
        self.spool, self.memory_bytes = engine.spool, engine.memory_bytes

    def count(self) -> int:
        return self._stop - self._start

    def columns(self) -> dict[str, ColumnType]:
        return self._engine.columns()

    def batches(self, columns: Sequence[str], *, parse: Mapping[str, Kind] | None = None) -> Iterator[pa.RecordBatch]:
        at, self._engine.threads = 0, self.threads
        batches = self._engine.batches(columns, parse=parse)
        with close_at_end(batches):
            for batch in batches:
                first, last = max(self._start - at, 0), min(self._stop - at, len(batch))
                if first < last:
                    yield batch.slice(first, last - first)
                at += len(batch)
                if at >= self._stop:
                    break


def check_columns(schema: Schema, columns: Mapping[str, ColumnType], *, label: bool = True) -> None:
    """Refuse data whose columns are not those the schema declares, before any row is read.

    >>> from boltdp.schema.schema import Classes, Numeric
    >>> check_columns(Schema(Classes("y", (0, 1)), (Numeric("age", 0, 1),)), {"y": ColumnType("number")})
    Traceback (most recent call last):
    boltdp.errors.DataError: the data must have the column 'age', which the schema declares
    """
    names = [*schema.sources, *([schema.label] if label else [])]
    absent = next((name for name in names if name not in columns), None)
    if absent is not None:
        raise DataError(
            f"the data must have the column {absent!r}, which the schema declares",
            hint=_missing(absent, names, columns),
        )
    for column in schema.columns:
        column.check_type(columns[column.source])
    if label:
        schema.target.as_column().check_type(columns[schema.label])


def _missing(absent: str, declared: Sequence[str], columns: Mapping[str, ColumnType]) -> str | None:
    """What may be wrong where a column is missing."""
    untyped = all(column.kind == "untyped" for column in columns.values())
    if untyped and len(columns) == 1 and len(declared) > 1:
        return (
            "the header is a single name: columns must be separated by a comma, a semicolon, a tab or a bar, outside "
            "quotes"
        )
    # A file without a header has values in its place: unless something of the schema is there, they are not named.
    if untyped and not any(name in columns for name in declared):
        return "none of the schema's columns is there: is there a header, and is it the right file?"
    return near(absent, [name for name in columns if name not in declared])


def encode_rows(
    engine: Engine, schema: Schema, *, label: bool = True, context: Context | None = None
) -> Iterator[PackedRows]:
    """Packed rows in the original order; without the label, for prediction, it need not be in the data."""
    return scan_rows(engine, schema, lambda block: block, label=label, context=context)


def scan_rows(
    engine: Engine,
    schema: Schema,
    work: Callable[[PackedRows], R],
    *,
    label: bool = True,
    context: Context | None = None,
) -> Iterator[R]:
    """What `work`, in several threads or where the rows are, makes of each block of packed rows, in their order."""
    check_columns(schema, engine.columns(), label=label)
    return engine.scan(schema, work, Context() if context is None else context, label=label)


def scan_limited_rows(
    engine: Engine, schema: Schema, work: Callable[[PackedRows], R], *, context: Context
) -> Iterator[R]:
    """What `work` makes of each block of packed rows, of which a person's rows beyond those that count are neutral.

    With a person_id, rows are streamed through this process.

    >>> from boltdp.engines.arrays import ArrayEngine
    >>> from boltdp.schema.schema import Classes, Numeric
    >>> rows = ArrayEngine.from_arrow(pa.table({"who": ["a", "a", "b"], "age": [3, 4, 5], "y": [1, 1, 1]}))
    >>> schema = Schema(Classes("y", (0, 1)), (Numeric("age", 0, 10),), person_id="who", max_rows_per_person=1)
    >>> [block[:, 1].tolist() for block in scan_limited_rows(rows, schema, lambda block: block, context=Context())]
    [[-0.4000000059604645, nan, 0.0]]
    """
    if schema.person_id is None:
        return scan_rows(engine, schema, work, context=context)
    check_columns(schema, engine.columns())
    check_person_id(schema, engine.columns(), context)
    batches, encoder = _for_training(engine, schema, context)
    return map_in_order(lambda batch: work(encoder.encode(batch)), batches, threads=context.threads)


def scan_rows_keeping(
    engine: Engine,
    schema: Schema,
    work: Callable[[PackedRows], R],
    keep: Sequence[str],
    *,
    context: Context | None = None,
) -> Iterator[tuple[R, pa.RecordBatch]]:
    """What `work` makes of each block of packed rows, for prediction, and columns of the same rows, as they are.

    >>> from boltdp.engines.arrays import ArrayEngine
    >>> from boltdp.schema.schema import Classes, Numeric
    >>> rows = ArrayEngine.from_arrow(pa.table({"id": ["a", "b"], "age": [30, 40]}))
    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    >>> [(found, kept.to_pydict()) for found, kept in scan_rows_keeping(rows, schema, len, ["id"])]
    [(2, {'id': ['a', 'b']})]
    """
    context = Context() if context is None else context
    types = engine.columns()
    check_columns(schema, types, label=False)
    for name in keep:
        if name not in types:
            raise DataError(
                f"the column to keep must be one of the data, got {name!r}",
                hint=f"the columns are {', '.join([*types][:20])}{', …' if len(types) > 20 else ''}",
            )
    names, parse = _parsed(schema)
    encoder = Encoder(schema.encoding, on_bad_row=context.on_bad_row)

    def both(batch: pa.RecordBatch) -> tuple[R, pa.RecordBatch]:
        kept = range(len(names), len(names) + len(keep))
        return work(encoder.encode(batch.select([*range(len(names))]))), batch.select([*kept])

    engine.threads = context.threads
    return map_in_order(both, engine.batches_keeping(names, keep, parse=parse), threads=context.threads)


def _parsed(schema: Schema) -> tuple[list[str], dict[str, Kind]]:
    """The columns of a schema, and what those without a type are parsed as."""
    parse: dict[str, Kind] = {
        column.source: column.parsed_as for column in schema.columns if column.parsed_as is not None
    }
    return [*schema.sources], parse


def _batches(engine: Engine, schema: Schema, context: Context, *, label: bool = True) -> Iterator[pa.RecordBatch]:
    names, parse = _parsed(schema)
    engine.threads = context.threads
    return engine.batches([*names, schema.label] if label else names, parse=parse)


def _for_training(
    engine: Engine, schema: Schema, context: Context
) -> tuple[Iterator[pa.RecordBatch], Encoder | LimitingEncoder]:
    """The columns of a schema, and what encodes them such that rows of a person beyond those that count are neutral."""
    encoder = Encoder(schema.encoding, on_bad_row=context.on_bad_row)
    if schema.person_id is None or schema.max_rows_per_person is None:
        return _batches(engine, schema, context), encoder
    names, parse = _parsed(schema)
    engine.threads = context.threads
    batches = engine.batches_keeping([*names, schema.label], [schema.person_id], parse=parse)
    return mark_rows_within_limit(batches, schema.max_rows_per_person), LimitingEncoder(encoder)
