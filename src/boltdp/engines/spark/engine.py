"""The Spark engine."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from boltdp._array_types import PackedRows
from boltdp.engines.base import Engine, Kinds, PreparedRows, RecordBatches, Slice, check_columns, check_names
from boltdp.engines.person_limit import check_person_id
from boltdp.engines.spark import executor_tasks, prepared_rows
from boltdp.engines.spark.executor_tasks import RowRange
from boltdp.engines.spark.prepared_rows import BlockInfo, PreparedBlocks, SharedBlocks, StoredBlocks
from boltdp.engines.spark.session import Session, silence_pyspark
from boltdp.errors import DataError, ParameterError, list_names, suggest_names
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType, Kind

R = TypeVar("R")

#: Expressions of the file of a row and the start of its split, which only the task that reads it can evaluate. Managed
#: services refuse the functions and have a hidden column, which views do not show.
ORIGINS = [["input_file_name()", "input_file_block_start()"], ["_metadata.file_path", "_metadata.file_block_start"]]

#: Minimal number of float columns of one type that are transferred as one array.
MIN_ARRAY_COLUMNS = 4

_FLOATS = ("FloatType", "DoubleType")
_NUMBERS = ("ByteType", "ShortType", "IntegerType", "LongType", *_FLOATS, "DecimalType")
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(_NUMBERS, "number"),
    **dict.fromkeys(("StringType", "CharType", "VarcharType"), "text"),
    **dict.fromkeys(("TimestampType", "TimestampNTZType"), "timestamp"),
    "DateType": "date",
    "BooleanType": "bool",
    "NullType": "untyped",
}


class SparkEngine(Engine):
    """The rows of a DataFrame of PySpark, classic or Connect.

    `parts` is the number of partitions of permuted rows; the default depends on their size.

    The guarantee is for rows at fixed positions. Rows of files are ordered by file name and position in the file,
    however Spark splits them; all others, also cached ones, by partition and position in it. So each row must come from
    one person's row, and rows must be selected and ordered by public columns only: a DataFrame that is not read
    directly from files should end in an `orderBy` of a public key. Sums need no order.
    """

    def __init__(
        self, frame: Any, *, session: Session | None = None, parts: int | None = None, spool: str | Path | None = None
    ) -> None:
        if parts is not None and parts < 1:
            raise ParameterError(f"parts must be >= 1, got {parts}")
        self._session = Session(frame.sparkSession) if session is None else session
        self._frame = frame
        self.parts = parts
        self.spool = spool
        self._count: int | None = None

    @classmethod
    def open(
        cls, address: str, *, table: str | None = None, query: str | None = None, spool: str | Path | None = None
    ) -> SparkEngine:
        """Open a table or query by the address of a master (local[2], spark://host:7077) or Connect server (sc://).

        Files are tables too: "parquet.`/data/visits`".
        """
        if (table is None) == (query is None):
            raise ParameterError(
                "give either table or query to say which rows of Spark to use",
                hint="files are tables too: --table 'parquet.`/data/visits`'",
            )
        session = Session.open(address)
        try:
            spark = session.spark
            if table is not None:
                frame = _read_table(session, table)
            else:
                frame = session.ask(
                    lambda: _resolve_names(spark.sql(query)), "the query cannot be run", names_only=True
                )
            return cls(frame, session=session, spool=spool)
        except BaseException:
            session.close()
            raise

    @property
    def where(self) -> str:
        return "in Spark"

    @property
    def exposure_warnings(self) -> tuple[str, ...]:
        return self._session.exposure_warnings

    def count(self) -> int:
        if self._count is None:
            self._count = int(self._session.ask(self._frame.count, "the rows cannot be counted"))
        return self._count

    @cached_property
    def _spark_types_by_name(self) -> dict[str, Any]:
        fields = self._session.ask(lambda: self._frame.schema.fields, "the columns cannot be read", names_only=True)
        check_names([field.name for field in fields])
        return {field.name: field.dataType for field in fields}

    def _get_spark_type(self, name: str) -> str:
        return type(self._spark_types_by_name.get(name)).__name__

    def columns(self) -> dict[str, ColumnType]:
        return {name: _make_column_type(spark) for name, spark in self._spark_types_by_name.items()}

    def batches(self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Kinds = None) -> RecordBatches:
        del parse  # every column has a type
        names = [*columns, *keep]
        for result in self._collect_results([*dict.fromkeys(names)], None):
            with pa.ipc.open_stream(result) as reader:
                yield reader.read_next_batch().select(names)

    def slice(self, start: int, stop: int) -> SparkSlice:
        return SparkSlice(self, start, stop)

    def scan(
        self, schema: Schema, work: Callable[[PackedRows], R], context: Context, *, label: bool = True
    ) -> Iterator[R]:
        make = executor_tasks.EncodedFunction(schema, context.on_bad_row, work)
        for result in self._collect_results(schema.training_sources if label else schema.sources, make):
            yield pickle.loads(executor_tasks.unmask_bytes(result))

    def prepare(self, schema: Schema, context: Context, *, permuted: bool = True) -> PreparedRows:
        return self._prepare_range(schema, context, 0, self.count(), permuted=permuted)

    def close(self) -> None:
        self._session.close()

    def _prepare_range(
        self, schema: Schema, context: Context, start: int, stop: int, *, permuted: bool
    ) -> PreparedBlocks:
        """Encode the rows at positions start to stop - 1 as packed blocks, in the order of the seed if `permuted`."""
        check_columns(schema, self.columns())
        check_person_id(schema, self.columns(), context)
        rows, names = self.count(), [*schema.training_sources]
        session, width = self._session, 1 + schema.encoding.cell_count
        whole = (start, stop) == (0, rows)
        if schema.person_id is None or schema.max_rows_per_person is None:
            source, batches, files = self._select_columns(names, with_positions=permuted or not whole)
        else:
            # The session's number of shuffle partitions is too large for few rows.
            parts = len(prepared_rows.choose_partition_bounds(rows, width=width, scanned=rows, parts=self.parts)) - 1
            counted = self._limit_rows_per_person(names, schema.person_id, schema.max_rows_per_person, parts=parts)
            source, batches, files = self._select_columns(names, with_positions=False, frame=counted)
        # Ordered rows are scanned at most once before they are permuted, so caching them does not pay.
        run = session.make_cache_name() if whole and not permuted else None
        encode = executor_tasks.EncodeTask(schema, context.on_bad_row, batches, run=run)
        context.report_rows(0)
        stored = StoredBlocks(session, session.map_partitions(source, encode), width=width, run=run)
        with ExitStack() as after:
            after.callback(stored.drop)
            if stored.rows != rows:
                raise DataError(f"the data must keep its {rows} rows while it is read, and it has changed")
            starts = _compute_start_positions(stored.infos, files)
            if permuted:
                bounds = prepared_rows.choose_partition_bounds(
                    stop - start, width=width, scanned=stored.parts, parts=self.parts
                )
                blocks = SharedBlocks(stored, starts=[at - start for at in starts], bounds=bounds, spool=self.spool)
                blocks.add_permutations([(0, stop - start, context.seed)])
            elif whole:
                blocks = SharedBlocks(stored)
            else:
                run, block_starts = session.make_cache_name(), stored.map_block_starts(starts)
                select = executor_tasks.SelectRangeTask(block_starts, RowRange(start, stop), width, run=run)
                selected = session.map_partitions(stored.frame, select)
                blocks = SharedBlocks(StoredBlocks(session, selected, width=width, run=run, rows=stop - start))
            if permuted or whole:
                after.pop_all()  # the blocks are used
        context.report_rows(stop - start)
        return PreparedBlocks(blocks, feature_map=schema.encoding.feature_map)

    def _select_columns(
        self, names: Sequence[str], *, with_positions: bool, encoded: bool = True, frame: Any = None
    ) -> tuple[Any, executor_tasks.Batches, dict[int, str]]:
        """Select columns, and if `with_positions`, files and splits; return the frame, its `Batches` and file names.

        With `encoded`, missing floats may become NaN, so that several columns can be transferred as one array.
        """
        from pyspark.sql import functions

        frame = self._frame if frame is None else frame
        floats = [[name for name in names if self._get_spark_type(name) == kind] for kind in _FLOATS]
        arrays = tuple(tuple(group) for group in floats if encoded and len(group) >= MIN_ARRAY_COLUMNS)
        single = [name for name in names if not any(name in group for group in arrays)]
        files, origin = self._find_files() if with_positions else ({}, [])

        def select() -> Any:
            cells = [functions.col(_quote_name(name)).alias(f"c{place}") for place, name in enumerate(single)]
            for place, group in enumerate(arrays):
                cells.append(functions.array(*map(_quote_name, group)).alias(f"a{place}"))
            if files:
                path, begin = map(functions.expr, origin)
                cells += [functions.xxhash64(path).alias("file"), begin.cast("long").alias("split")]
            return _resolve_names(frame.select(*cells))

        source = self._session.ask(select, "the columns cannot be read")
        return source, executor_tasks.Batches(tuple(single), bool(files), arrays=arrays), files

    def _limit_rows_per_person(self, names: Sequence[str], person_id: str, limit: int, *, parts: int) -> Any:
        """Return the columns in the original order, with NULL in all cells beyond the limit (`person_limit`)."""
        from pyspark.sql import functions

        files, origin = self._find_files()
        of_floats = self._get_spark_type(person_id) in _FLOATS

        def number_rows() -> Any:
            cells = [functions.col(_quote_name(name)).alias(f"c{place}") for place, name in enumerate(names)]
            person = functions.col(_quote_name(person_id))
            if of_floats:  # NaN is no id
                person = functions.when(~functions.isnan(person), person)
            split = [functions.expr(one).alias(name) for one, name in zip(origin, ("path", "split"), strict=False)]
            number = functions.expr("monotonically_increasing_id()").alias("number")
            return _resolve_names(self._frame.select(*cells, person.alias("person_id"), *split, number))

        numbered = self._session.ask(number_rows, "the columns cannot be read")
        keys = ["path", "split", "number"] if files and self._are_contiguous(numbered) else ["number"]
        place = f"row_number() OVER (PARTITION BY person_id ORDER BY {', '.join(keys)})"
        with silence_pyspark():
            counted = [
                functions.when(functions.col("place") <= limit, functions.col(f"c{i}")).alias(name)
                for i, name in enumerate(names)
            ]
            placed = numbered.withColumn("place", functions.expr(place))
            return placed.repartitionByRange(parts, *keys).sortWithinPartitions(*keys).select(*counted)

    def _are_contiguous(self, numbered: Any) -> bool:
        """Whether each split of a file is contiguous in one partition, as `sort_by_file` requires."""
        from pyspark.sql import functions

        def collect_splits() -> Any:
            # The upper bits of a number are the partition, the lower 33 bits the position in it.
            pieces = numbered.groupBy("path", "split", functions.expr("shiftright(number, 33)").alias("part"))
            spans = functions.expr("max(number) - min(number) + 1 = count(*)").alias("whole")
            return pieces.agg(spans).select("path", "split", "whole").collect()

        found = self._session.ask(collect_splits, "the files cannot be listed")
        pieces = {(one["path"], one["split"]) for one in found}
        return len(pieces) == len(found) and all(one["whole"] for one in found)

    def _find_files(self) -> tuple[dict[int, str], list[str]]:
        """Return the names of the source files by their hashes, and expressions of the file and split of a row.

        Both are empty if the rows do not come from files or are cached.
        """
        from pyspark.sql import functions

        def collect_files() -> tuple[list[Any], list[str]]:
            level = self._frame.storageLevel
            cached = level.useMemory or level.useDisk
            if not cached and self._frame.inputFiles():
                for origin in ORIGINS:
                    path = functions.expr(origin[0])
                    try:
                        named = _resolve_names(
                            self._frame.select(path.alias("path"), functions.xxhash64(path).alias("file"))
                        )
                    except Exception:  # as after a join of files
                        continue
                    return named.distinct().collect(), origin
            return [], []

        found, origin = self._session.ask(collect_files, "the files cannot be listed")
        names = {one["file"]: one["path"] for one in found if one["path"]}
        return (names, origin) if len(names) == len(found) else ({}, [])

    def _collect_results(self, columns: Sequence[str], make: executor_tasks.EncodedFunction | None) -> Iterator[bytes]:
        """Yield the results of `make` for batches of rows, or the batches themselves, in the original order.

        The executors compute and persist all results, which are then sent here one after another, after a shuffle if
        Spark reads files in another order.
        """
        session = self._session
        source, batches, files = self._select_columns(columns, with_positions=True, encoded=make is not None)
        frame = session.map_partitions(source, executor_tasks.CollectTask(batches, make))
        stored = StoredBlocks(session, frame, fault="the rows cannot be read")
        try:
            infos = stored.infos
            order = sort_by_file(infos, files)
            if order != list(range(len(infos))):
                runs = groupby(order, key=lambda i: _get_split_key(infos[i]))
                targets = {
                    (infos[i].part, infos[i].number): target for target, (_, run) in enumerate(runs) for i in run
                }
                frame = session.map_partitions(frame, executor_tasks.AssignTask(targets))
                frame = frame.repartitionById(1 + max(targets.values()), "target").sortWithinPartitions("number")
            for one in prepared_rows.iterate_result_rows(session, frame):
                yield bytes(one["packed"])
        finally:
            stored.drop()


class SparkSlice(Slice):
    """A range of rows of a DataFrame, by their positions, which is prepared in the cluster."""

    _engine: SparkEngine

    @property
    def where(self) -> str:
        return self._engine.where

    def prepare(self, schema: Schema, context: Context, *, permuted: bool = True) -> PreparedRows:
        if schema.person_id is not None:
            raise ParameterError(
                "a schema with a person_id must be of all rows of a DataFrame, got some of them",
                hint="make a table of these rows, or a DataFrame",
            )
        return self._engine._prepare_range(schema, context, self._start, self._stop, permuted=permuted)


def sort_by_file(infos: Sequence[BlockInfo], files: Mapping[int, str]) -> list[int]:
    """Return the indices of blocks sorted by file and position in it, if each split of a file is contiguous.

    Spark sorts the splits of files by size, which depends on their content. Where splits are mixed, as after a shuffle,
    the order is that of the partitions.

    >>> infos = [BlockInfo(0, 0, 7, 0, 0, 2, b""), BlockInfo(1, 0, 5, 0, 0, 3, b"")]
    >>> sort_by_file(infos, {5: "a.parquet", 7: "b.parquet"}), sort_by_file(infos, {})
    ([1, 0], [0, 1])
    """
    plain = list(range(len(infos)))
    runs = [key for key, _ in groupby(map(_get_split_key, infos))]
    if not files or len({key[1:] for key in runs}) < len(runs) or any(info.file not in files for info in infos):
        return plain
    return sorted(plain, key=lambda i: (files[infos[i].file], infos[i].split, i))


def _get_split_key(info: BlockInfo) -> tuple[int, int, int]:
    return info.part, info.file, info.split


def _compute_start_positions(infos: Sequence[BlockInfo], files: Mapping[int, str]) -> list[int]:
    """Return the position of the first row of each block in the order of the files."""
    order = sort_by_file(infos, files)
    starts = accumulate((infos[i].rows for i in order), initial=0)
    return [start for _, start in sorted(zip(order, starts, strict=False))]


def _read_table(session: Session, name: str) -> Any:
    """Return a table or view; the error for an unknown one names the tables of the catalogue."""
    spark = session.spark
    try:
        return session.ask(
            lambda: _resolve_names(spark.table(name)), f"the table {name!r} cannot be read", names_only=True
        )
    except DataError as error:
        fault = str(error)
    names = session.ask(lambda: [one.name for one in spark.catalog.listTables()], "the tables cannot be listed")
    hint = suggest_names(name, names) or (f"there are the tables {list_names(names)}" if names else None)
    raise DataError(fault, hint=hint)


def _resolve_names(frame: Any) -> Any:
    """Resolve the names in a DataFrame now; Connect would report unknown names only later."""
    frame.schema  # noqa: B018 - the property resolves them
    return frame


def _make_column_type(spark_type: Any) -> ColumnType:
    kind = type(spark_type).__name__
    if kind == "ArrayType":
        element = _KINDS.get(type(spark_type.elementType).__name__, "other")
        if element in ("number", "untyped"):
            return ColumnType("list")
    return ColumnType(_KINDS[kind]) if kind in _KINDS else ColumnType("other", called=spark_type.simpleString())


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
