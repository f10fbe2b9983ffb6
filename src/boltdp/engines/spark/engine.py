"""The engine: whose rows, in which order, and the steps that prepare them."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from boltdp._arrays import PackedRows
from boltdp._version import __version__
from boltdp.context import Context
from boltdp.engines.base import Engine, PreparedRows, Slice, check_columns
from boltdp.engines.person_limit import check_person_id
from boltdp.engines.spark import executor_tasks
from boltdp.engines.spark.packed_blocks import Place, PreparedBlocks, Stored, level, part_bounds, raise_faults, rows_of
from boltdp.engines.spark.session import Session, quietly
from boltdp.errors import DataError, ParameterError, listed, near
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType, Kind

R = TypeVar("R")

#: Where a row is from, as it is known to the task that reads it, but to none after a shuffle; managed services refuse
#: this and have a hidden column, which is not to be seen through views.
ORIGINS = [
    ["input_file_name()", "input_file_block_start()"],
    ["_metadata.file_path", "_metadata.file_block_start"],
]

#: Columns of floats of one type that are handed over in one.
MIN_TOGETHER = 4

_CHANGED = "the data must keep its {} rows while it is read, and it has changed"
_NUMBERS = ("ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType")
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

    `parts` is how many partitions ordered rows are prepared in; without it, as many as fit them.

    The guarantee is about rows at their places. Rows of files are at their places in these, in the order of the files'
    names, however Spark cuts them to partitions; others, cached ones too, are where they are in the partitions. So each
    row must come from one person's row, and rows must be chosen and ordered by public columns only: a DataFrame that is
    not read from files as it is should end in an `orderBy` of a public key. Sums need no order.
    """

    def __init__(
        self,
        frame: Any,
        *,
        session: Session | None = None,
        parts: int | None = None,
        spool: str | Path | None = None,
    ) -> None:
        if parts is not None and parts < 1:
            raise ParameterError(f"parts must be >= 1, got {parts}")
        self._session = Session(frame.sparkSession) if session is None else session
        self._frame = frame
        self.parts = parts
        self.spool = spool
        self._count: int | None = None
        self._types: dict[str, ColumnType] | None = None
        self._kinds: dict[str, str] = {}  #: Spark's types, once they are known

    @classmethod
    def open(
        cls,
        address: str,
        *,
        table: str | None = None,
        query: str | None = None,
        spool: str | Path | None = None,
    ) -> SparkEngine:
        """A table or a query of a cluster, by the address of its master (local[2], spark://host:7077) or server (sc://).

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
            if query is not None:
                frame = session.ask(lambda: _analysed(spark.sql(query)), "the query cannot be run", names_only=True)
            else:
                assert table is not None
                frame = _table(session, table)
            return cls(frame, session=session, spool=spool)
        except BaseException:
            session.close()
            raise

    @property
    def where(self) -> str:
        return "in Spark"

    def count(self) -> int:
        if self._count is None:
            self._count = int(self._session.ask(lambda: self._frame.count(), "the rows cannot be counted"))
        return self._count

    def columns(self) -> dict[str, ColumnType]:
        if self._types is None:
            fields = self._session.ask(lambda: self._frame.schema.fields, "the columns cannot be read", names_only=True)
            names = [field.name for field in fields]
            if len(set(names)) < len(names):
                twice = next(name for i, name in enumerate(names) if name in names[:i])
                raise DataError(f"the columns of the data must have different names, got {twice!r} more than once")
            self._types = {field.name: _type(field.dataType) for field in fields}
            self._kinds = {field.name: type(field.dataType).__name__ for field in fields}
        return dict(self._types)

    def batches(self, columns: Sequence[str], *, parse: Mapping[str, Kind] | None = None) -> Iterator[pa.RecordBatch]:
        del parse  # every column has a type
        for shipped in self._shipped(columns, None):
            yield executor_tasks.arrow_batch(shipped)

    def slice(self, start: int, stop: int) -> SparkSlice:
        return SparkSlice(self, start, stop)

    def scan(
        self, schema: Schema, work: Callable[[PackedRows], R], context: Context, *, label: bool = True
    ) -> Iterator[R]:
        names = schema.sources
        make = executor_tasks.EncodedWork(schema, context.on_bad_row, work, secrets.token_bytes(16))
        for shipped in self._shipped([*names, schema.label] if label else names, make):
            yield pickle.loads(executor_tasks.reveal(shipped))

    def prepare(self, schema: Schema, context: Context, *, ordered: bool = True) -> PreparedRows:
        return self._prepared(schema, context, 0, self.count(), ordered=ordered)

    def close(self) -> None:
        self._session.close()

    def _prepared(self, schema: Schema, context: Context, start: int, stop: int, *, ordered: bool) -> PreparedBlocks:
        """Of the rows at positions start to stop - 1."""
        check_columns(schema, self.columns())
        check_person_id(schema, self.columns(), context)
        rows, names = self.count(), [*schema.sources, schema.label]
        whole = (start, stop) == (0, rows)
        if schema.person_id is None or schema.max_rows_per_person is None:
            source, batches, files = self._source(names, placed=ordered or not whole)
        else:
            # Not as many parts as the session shuffles into, which few rows are not worth.
            parts = len(part_bounds(rows, width=1 + schema.encoding.cells, scanned=rows, parts=self.parts)) - 1
            counted = self._limit_rows_per_person(names, schema.person_id, schema.max_rows_per_person, parts=parts)
            source, batches, files = self._source(names, placed=False, frame=counted)
        width, read_by = 1 + schema.encoding.cells, schema.encoding.feature_map
        # Rows in order are scanned once, if at all, before they move.
        run = self._session.new_run() if whole and not ordered else None
        encode = executor_tasks.Encode(
            schema, context.on_bad_row, batches, executor_tasks.Sealing(secrets.token_bytes(16), run)
        )
        context.report_rows(0)
        stored = Stored(self._session, self._session.map_partitions(source, encode), width=width, run=run)
        kept = False
        try:
            if stored.rows != rows:
                raise DataError(_CHANGED.format(rows))
            starts = [at - start for at in _starts(stored.places, files)]
            if ordered:
                prepared = PreparedBlocks.permuted(
                    stored,
                    starts,
                    rows=stop - start,
                    seed=context.seed,
                    parts=self.parts,
                    feature_map=read_by,
                    spool=self.spool,
                )
                kept = True
            elif whole:
                prepared, kept = PreparedBlocks.of_any_order(stored, feature_map=read_by), True
            else:
                run = self._session.new_run()
                sealing = executor_tasks.Sealing(secrets.token_bytes(16), run)
                cut = executor_tasks.Cut(stored.known(starts), stop - start, width, sealing)
                some = Stored(self._session, self._session.map_partitions(stored.frame, cut), width=width, run=run)
                if some.rows != stop - start:
                    some.drop()
                    raise DataError(executor_tasks.CHANGED, hint=executor_tasks.CHANGED_HINT)
                prepared = PreparedBlocks.of_any_order(some, feature_map=read_by)
        finally:
            if not kept:
                stored.drop()
        context.report_rows(stop - start)
        return prepared

    def _source(
        self, names: Sequence[str], *, placed: bool, encoded: bool = True, frame: Any = None
    ) -> tuple[Any, executor_tasks.Batches, dict[int, str]]:
        """The columns, with places in files after them if these are known; how to read them; the files' names.

        They are those of the rows, or of another frame that was made of them. What will be encoded may come with NaN
        for what is missing, and so several columns in one.
        """
        from pyspark.sql import functions

        frame = self._frame if frame is None else frame
        floats = [[name for name in names if self._kinds.get(name) == kind] for kind in ("FloatType", "DoubleType")]
        arrays = tuple(tuple(some) for some in floats if encoded and len(some) >= MIN_TOGETHER)
        single = [name for name in names if not any(name in some for some in arrays)]
        with quietly():
            cells = [functions.col(_identifier(name)).alias(f"c{place}") for place, name in enumerate(single)]
            for place, some in enumerate(arrays):
                cells.append(functions.array(*(functions.col(_identifier(name)) for name in some)).alias(f"a{place}"))
        files, origin = self._files() if placed else ({}, [])
        if files:
            with quietly():
                path, begin = map(functions.expr, origin)
                cells += [functions.xxhash64(path).alias("file"), begin.cast("long").alias("split")]
        source = self._session.ask(lambda: _analysed(frame.select(*cells)), "the columns cannot be read")
        return source, executor_tasks.Batches(tuple(single), bool(files), __version__, arrays), files

    def _limit_rows_per_person(self, names: Sequence[str], person_id: str, most: int, *, parts: int) -> Any:
        """The columns, in the original order; of rows that do not count all cells are missing (`person_limit`)."""
        from pyspark.sql import functions

        files, origin = self._files()
        with quietly():
            cells = [functions.col(_identifier(name)).alias(f"c{place}") for place, name in enumerate(names)]
            person = functions.col(_identifier(person_id))
            if self._kinds.get(person_id) in ("FloatType", "DoubleType"):  # NaN is no id
                person = functions.when(~functions.isnan(person), person)
            places = [functions.expr(one).alias(name) for one, name in zip(origin, ("path", "split"), strict=False)]
            number = functions.expr("monotonically_increasing_id()").alias("number")
        numbered = self._session.ask(
            lambda: _analysed(self._frame.select(*cells, person.alias("person_id"), *places, number)),
            "the columns cannot be read",
        )
        keys = ["path", "split", "number"] if files and self._in_pieces(numbered) else ["number"]
        place = f"row_number() OVER (PARTITION BY person_id ORDER BY {', '.join(keys)})"
        with quietly():
            counted = [
                functions.when(functions.col("place") <= most, functions.col(f"c{i}")).alias(name)
                for i, name in enumerate(names)
            ]
            placed = numbered.withColumn("place", functions.expr(place))
            return placed.repartitionByRange(parts, *keys).sortWithinPartitions(*keys).select(*counted)

    def _in_pieces(self, numbered: Any) -> bool:
        """Whether each part of a file is in one piece, as `in_file_order` asks."""
        from pyspark.sql import functions

        def asked() -> Any:
            # The upper bits of a number are the partition, the others the place in it.
            pieces = numbered.groupBy("path", "split", functions.expr("shiftright(number, 33)").alias("part"))
            spans = functions.expr("max(number) - min(number) + 1 = count(*)").alias("whole")
            return pieces.agg(spans).select("path", "split", "whole").collect()

        found = self._session.ask(asked, "the files cannot be listed")
        pieces = {(one["path"], one["split"]) for one in found}
        return len(pieces) == len(found) and all(one["whole"] for one in found)

    def _files(self) -> tuple[dict[int, str], list[str]]:
        """The names of the files that rows come from, by their hashes, and expressions of a row's file and place there.

        None if they come from none, or are cached.
        """
        from pyspark.sql import functions

        def asked() -> tuple[list[Any], list[str]]:
            level = self._frame.storageLevel
            cached = level.useMemory or level.useDisk
            if not cached and self._frame.inputFiles():
                for origin in ORIGINS:
                    path = functions.expr(origin[0])
                    try:
                        named = _analysed(
                            self._frame.select(path.alias("path"), functions.xxhash64(path).alias("file"))
                        )
                    except Exception:  # as after a join of files
                        continue
                    return named.distinct().collect(), origin
            return [], []

        found, origin = self._session.ask(asked, "the files cannot be listed")
        names = {one["file"]: one["path"] for one in found if one["path"]}
        return (names, origin) if len(names) == len(found) else ({}, [])

    def _shipped(self, columns: Sequence[str], make: executor_tasks.EncodedWork | None) -> Iterator[bytes]:
        """What is made of batches of rows in the cluster, in the original order.

        It is made by all executors at once and persisted, and then sent here one after another; by way of a shuffle
        where Spark reads files in another order.
        """
        session, fault = self._session, "the rows cannot be read"
        source, batches, files = self._source(columns, placed=True, encoded=make is not None)
        frame = session.map_partitions(source, executor_tasks.Ship(batches, make))
        session.ask(lambda: frame.persist(level()), fault)
        try:
            names = ("part", "number", "file", "split", "rows", "fault")
            found = session.ask(lambda: frame.select(*names).collect(), fault)
            raise_faults(found)
            places = [
                Place(one["part"], one["number"], one["file"], one["split"], None, one["rows"], b"") for one in found
            ]
            places.sort(key=lambda place: (place.part, place.number))
            order = in_file_order(places, files)
            if order == list(range(len(places))):
                for one in rows_of(session, frame, fault):
                    raise_faults([one])
                    yield bytes(one["shipped"])
                return
            runs = [[*run] for _, run in groupby(order, key=lambda i: _run(places[i]))]
            targets = {
                (places[i].part, places[i].number): (target, place)
                for target, run in enumerate(runs)
                for place, i in enumerate(run)
            }
            ordered = session.map_partitions(frame, executor_tasks.Order(targets)).repartitionById(len(runs), "target")
            for _, several in groupby(rows_of(session, ordered, fault), key=lambda one: one["target"]):
                for one in sorted(several, key=lambda one: one["place"] or 0):
                    raise_faults([one])
                    yield bytes(one["shipped"])
        finally:
            session.ask(lambda: frame.unpersist(), fault)


class SparkSlice(Slice):
    """Some rows of a DataFrame, by their positions; they are prepared in the cluster too."""

    def __init__(self, engine: SparkEngine, start: int, stop: int) -> None:
        """Use `SparkEngine.slice`."""
        super().__init__(engine, start, stop)
        self._of = engine

    @property
    def where(self) -> str:
        return self._of.where

    def prepare(self, schema: Schema, context: Context, *, ordered: bool = True) -> PreparedRows:
        if schema.person_id is not None:
            raise ParameterError(
                "a schema with a person_id must be of all rows of a DataFrame, got some of them",
                hint="make a table of these rows, or a DataFrame",
            )
        return self._of._prepared(schema, context, self._start, self._stop, ordered=ordered)


def in_file_order(places: Sequence[Place], files: Mapping[int, str]) -> list[int]:
    """Which place comes first, second and so on: by file and place in it, where each part of a file is in one piece.

    Spark sorts the parts of files by their sizes, which depend on what is in them. Where parts of files are mixed, as
    after a shuffle, the order is that of the partitions.

    >>> places = [Place(0, 0, 7, 0, None, 2, b""), Place(1, 0, 5, 0, None, 3, b"")]
    >>> in_file_order(places, {5: "a.parquet", 7: "b.parquet"}), in_file_order(places, {})
    ([1, 0], [0, 1])
    """
    plain = list(range(len(places)))
    runs = [key for key, _ in groupby(map(_run, places))]
    if not files or len({key[1:] for key in runs}) < len(runs) or any(place.file not in files for place in places):
        return plain
    return sorted(plain, key=lambda i: (files[places[i].file or 0], places[i].split or 0, i))


def _run(place: Place) -> tuple[int, int | None, int | None]:
    """What follows each other in a part of a file, as Spark reads it."""
    return place.part, place.file, place.split


def _starts(places: Sequence[Place], files: Mapping[int, str]) -> list[int]:
    starts, at = [0] * len(places), 0
    for i in in_file_order(places, files):
        starts[i] = at
        at += places[i].rows
    return starts


def _table(session: Session, name: str) -> Any:
    """A table or view; if it cannot be read, the error names the tables of the catalogue."""
    spark = session.spark
    try:
        return session.ask(lambda: _analysed(spark.table(name)), f"the table {name!r} cannot be read", names_only=True)
    except DataError as error:
        fault = str(error)
    names = session.ask(lambda: [one.name for one in spark.catalog.listTables()], "the tables cannot be listed")
    hint = near(name, names) or (f"there are the tables {listed(names)}" if names else None)
    raise DataError(fault, hint=hint)


def _analysed(frame: Any) -> Any:
    """A DataFrame whose names are resolved: Connect would tell only later that one is not."""
    frame.schema  # noqa: B018 - asking is what resolves them
    return frame


def _type(spark: Any) -> ColumnType:
    kind = type(spark).__name__
    if kind == "ArrayType":
        element = _KINDS.get(type(spark.elementType).__name__, "other")
        if element in ("number", "untyped"):
            return ColumnType("list")
    return ColumnType(_KINDS[kind]) if kind in _KINDS else ColumnType("other", called=spark.simpleString())


def _identifier(name: str) -> str:
    """A column by its name, whatever is in it.

    >>> _identifier("a.b`c")
    '`a.b``c`'
    """
    return "`" + name.replace("`", "``") + "`"
