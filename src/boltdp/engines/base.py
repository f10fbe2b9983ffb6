"""The base class of engines, and the functions that scan and encode their rows.

An engine never logs a value, never decides a sensitivity and never draws noise. The order of its rows depends on
their positions and a seed, never on their values:

    the prepared row at position p is the original row  compute_source_positions(p, ...; rows=m, seed)

A new engine implements `count`, `columns` and `batches`. The other methods are built on these; engines that can process
rows where they are stored override them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import pyarrow as pa

from boltdp._array_types import PackedRows
from boltdp._threads import close_at_end, map_in_order
from boltdp.encoding.encode import Encoder
from boltdp.engines.local_store import store_rows
from boltdp.engines.person_limit import LimitingEncoder, check_person_id, mark_rows_within_limit
from boltdp.engines.prepared_rows import PreparedRows as PreparedRows
from boltdp.engines.prepared_rows import check_range
from boltdp.engines.sparse_store import PreparedSparseRows
from boltdp.errors import DataError, suggest_names
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType, Kind

if TYPE_CHECKING:
    from typing_extensions import Self

    from boltdp.kernel.sparse_rows import SparseRows

R = TypeVar("R")
Where: TypeAlias = Literal["auto", "server", "client"]
#: Rows of a source, and the kinds as which untyped columns are parsed.
RecordBatches: TypeAlias = Iterator[pa.RecordBatch]
Kinds: TypeAlias = Mapping[str, Kind] | None


class Engine(ABC):
    """A source of rows, and the place where they are prepared for training."""

    spool: str | Path | None = None  #: directory for prepared rows that are written to a file
    memory_bytes: int | None = None  #: prepared rows above this size go to a file; None: see `store_rows`
    threads: int = 1  #: number of threads that process the rows while they are read

    @property
    def where(self) -> str:
        """A phrase for where rows are prepared and passes run, such as "in Spark"."""
        return "in this process"

    @property
    def exposure_warnings(self) -> tuple[str, ...]:
        """Warnings about who else could read the private rows where the engine prepares them."""
        return ()

    @property
    def guarantee_conditions(self) -> Sequence[str]:
        """Conditions of the guarantee that concern this source, in sentences; no row is read for them."""
        return ()

    @abstractmethod
    def count(self) -> int:
        """Return the number of rows of the source, m."""

    @abstractmethod
    def columns(self) -> dict[str, ColumnType]:
        """Return names and types of the columns of the source, without looking at values."""

    def list_columns(self) -> dict[str, ColumnType]:
        """Return the columns to draft a schema from; those of JSON lines are the keys of the first row."""
        return self.columns()

    @abstractmethod
    def batches(self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Kinds = None) -> RecordBatches:
        """Yield all rows in a stable order, at most MAX_BATCH_ROWS at a time: `columns`, then the columns `keep`.

        Untyped columns are text, except that those with `parse` "number" or "list" are parsed, with unparsable cells
        missing. Columns with `parse` "timestamp" are text in ISO 8601. Columns of `keep`, which may be in both lists,
        are not parsed, unless they are untyped.
        """

    def batches_with_persons(self, columns: Sequence[str], person_id: str, *, parse: Kinds = None) -> RecordBatches:
        """Yield batches of `columns` followed by values that are equal for the rows of one person."""
        return self.batches(columns, [person_id], parse=parse)

    def slice(self, start: int, stop: int) -> Engine:
        """Return an engine of the rows at positions start to stop - 1, usable until this engine is closed."""
        return Slice(self, start, stop)

    def scan(
        self, schema: Schema, work: Callable[[PackedRows], R], context: Context, *, label: bool = True
    ) -> Iterator[R]:
        """Apply `work` to each block of packed rows in several threads, and yield the results in the original order.

        An engine may run it where the rows are stored. Use `scan_rows`, which checks the columns first.
        """
        encoder = Encoder(schema.encoding, on_bad_row=context.on_bad_row)
        batches = _read_batches(self, schema, context, label=label)
        return map_in_order(lambda batch: work(encoder.encode(batch)), batches, threads=context.threads)

    def encode_sparse_rows(self, schema: Schema, context: Context, *, label: bool = True) -> SparseRows | None:
        """Encode all rows in their original order as sparse ones; None unless the source and the schema have such.

        Their feature map keeps zeros, until it gets centres. Call `check_columns` first.
        """
        return None

    def prepare(self, schema: Schema, context: Context, *, permuted: bool = True) -> PreparedRows:
        """Encode the rows once, permuted unless they are for sums only, in memory or, if they are large, in a file."""
        check_columns(schema, self.columns())
        check_person_id(schema, self.columns(), context)
        sparse = None if permuted else self.encode_sparse_rows(schema, context)
        if sparse is not None:
            return PreparedSparseRows(sparse, schema.encoding.feature_map)
        batches, encoder = _prepare_encoding(self, schema, context)
        return store_rows(
            batches,
            encode=encoder.encode,
            rows=self.count(),
            width=1 + schema.encoding.cell_count,
            feature_map=schema.encoding.feature_map,
            permuted=permuted,
            context=context,
            directory=self.spool,
            memory_bytes=self.memory_bytes,
        )

    def close(self) -> None:  # noqa: B027 - most engines hold nothing open
        """Close the connections and files of the engine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Slice(Engine):
    """A range of rows of another engine, such as a part of the data that is declared public.

    The engine is streamed through this process from its first row to the last row of the slice.
    """

    def __init__(self, engine: Engine, start: int, stop: int) -> None:
        check_range(start, stop, rows=engine.count(), what="a slice")
        self._engine, self._start, self._stop = engine, start, stop
        self.spool, self.memory_bytes = engine.spool, engine.memory_bytes

    def count(self) -> int:
        return self._stop - self._start

    def columns(self) -> dict[str, ColumnType]:
        return self._engine.columns()

    def batches(self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Kinds = None) -> RecordBatches:
        self._engine.threads = self.threads
        return self._slice_batches(self._engine.batches(columns, keep, parse=parse))

    def batches_with_persons(self, columns: Sequence[str], person_id: str, *, parse: Kinds = None) -> RecordBatches:
        self._engine.threads = self.threads
        return self._slice_batches(self._engine.batches_with_persons(columns, person_id, parse=parse))

    def _slice_batches(self, batches: RecordBatches) -> RecordBatches:
        at = 0
        with close_at_end(batches):
            for batch in batches:
                first, last = max(self._start - at, 0), min(self._stop - at, len(batch))
                if first < last:
                    yield batch.slice(first, last - first)
                at += len(batch)
                if at >= self._stop:
                    break


def check_names(names: Sequence[str]) -> None:
    """Raise DataError if two columns of a source have the same name."""
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"the columns of the data must have different names, got {twice!r} more than once")


def check_columns(schema: Schema, columns: Mapping[str, ColumnType], *, label: bool = True) -> None:
    """Raise DataError if columns of the schema are missing or have another type, before any row is read."""
    names = [*(schema.training_sources if label else schema.sources)]
    absent = next((name for name in names if name not in columns), None)
    if absent is not None:
        raise DataError(
            f"the data must have the column {absent!r}, which the schema declares",
            hint=_suggest_missing_column(absent, names, columns),
        )
    for column in schema.columns:
        column.check_type(columns[column.source])
    if label:
        for declared in schema.training_only_columns:
            declared.check_type(columns[declared.source])


def _suggest_missing_column(absent: str, declared: Sequence[str], columns: Mapping[str, ColumnType]) -> str | None:
    untyped = all(column.kind == "untyped" for column in columns.values())
    if untyped and len(columns) == 1 and len(declared) > 1:
        return (
            "the header is a single name: columns must be separated by a comma, a semicolon, a tab or a bar, outside "
            "quotes"
        )
    # The names may be values of a file without a header: they are quoted only if some match the schema.
    if untyped and not any(name in columns for name in declared):
        return "none of the schema's columns is there: is there a header, and is it the right file?"
    return suggest_names(absent, [name for name in columns if name not in declared])


def encode_rows(
    engine: Engine, schema: Schema, *, label: bool = True, context: Context | None = None
) -> Iterator[PackedRows]:
    """Yield packed rows in the original order; with `label=False`, the data needs no label column."""
    return scan_rows(engine, schema, lambda block: block, label=label, context=context)


def scan_rows(
    engine: Engine,
    schema: Schema,
    work: Callable[[PackedRows], R],
    *,
    label: bool = True,
    limited: bool = False,
    context: Context | None = None,
) -> Iterator[R]:
    """Check the columns, apply `work` to each block of packed rows, and yield the results in order.

    With `limited`, rows beyond `max_rows_per_person` are neutral; rows with a person_id then go through this process.
    """
    context = Context() if context is None else context
    check_columns(schema, engine.columns(), label=label)
    if not limited or schema.person_id is None:
        return engine.scan(schema, work, context, label=label)
    check_person_id(schema, engine.columns(), context)
    batches, encoder = _prepare_encoding(engine, schema, context)
    return map_in_order(lambda batch: work(encoder.encode(batch)), batches, threads=context.threads)


def scan_rows_with_columns(
    engine: Engine,
    schema: Schema,
    work: Callable[[PackedRows], R],
    keep: Sequence[str],
    *,
    context: Context | None = None,
) -> Iterator[tuple[R, pa.RecordBatch]]:
    """Apply `work` to each block of packed rows without labels, and yield the results with the columns `keep`."""
    context = Context() if context is None else context
    types = engine.columns()
    check_columns(schema, types, label=False)
    for name in keep:
        if name not in types:
            raise DataError(
                f"the column to keep must be one of the data, got {name!r}",
                hint=f"the columns are {', '.join([*types][:20])}{', …' if len(types) > 20 else ''}",
            )
    encoder = Encoder(schema.encoding, on_bad_row=context.on_bad_row)

    def encode_batch(batch: pa.RecordBatch) -> tuple[R, pa.RecordBatch]:
        indices = [*range(batch.num_columns)]
        cells, kept = batch.select(indices[: -len(keep)]), batch.select(indices[-len(keep) :])
        return work(encoder.encode(cells)), kept

    batches = _read_batches(engine, schema, context, label=False, keep=keep)
    return map_in_order(encode_batch, batches, threads=context.threads)


def _read_batches(
    engine: Engine,
    schema: Schema,
    context: Context,
    *,
    label: bool = True,
    keep: Sequence[str] = (),
    person_id: str | None = None,
) -> RecordBatches:
    """Yield batches of the source columns of a schema, its label, and the columns `keep` or the persons."""
    names = [*(schema.training_sources if label else schema.sources)]
    declared = (*schema.columns, *(schema.training_only_columns if label else ()))
    parse = {column.source: column.parsed_as for column in declared if column.parsed_as is not None}
    engine.threads = context.threads
    if person_id is not None:
        return engine.batches_with_persons(names, person_id, parse=parse)
    return engine.batches(names, keep, parse=parse)


def _prepare_encoding(
    engine: Engine, schema: Schema, context: Context
) -> tuple[RecordBatches, Encoder | LimitingEncoder]:
    """Return batches for training and their encoder, which enforces `max_rows_per_person`."""
    encoder = Encoder(schema.encoding, on_bad_row=context.on_bad_row)
    if schema.person_id is None or schema.max_rows_per_person is None:
        return _read_batches(engine, schema, context), encoder
    batches = _read_batches(engine, schema, context, person_id=schema.person_id)
    return mark_rows_within_limit(batches, schema.max_rows_per_person), LimitingEncoder(encoder)
