"""Rows in files and databases, read by DuckDB inside this process: CSV, Parquet, a DuckDB table or query.

DuckDB counts the rows, chooses the columns and parses cells; the rest is done here, as they are streamed.

DuckDB's own error messages quote rows, so none of them leaves this file: a fault is told in our words, and
DuckDB's exception is not chained to it.
"""

from __future__ import annotations

import csv
import glob
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from boltdp import stopping
from boltdp.data.source import ColumnType, Kind, batch_rows
from boltdp.engines.base import Engine
from boltdp.engines.spool import spool_directory
from boltdp.errors import DataError, ParameterError
from boltdp.files import own_directory
from boltdp.parallel import await_result

T = TypeVar("T")

#: A scan needs far less; a query that sorts or joins more than this is spilled to disk.
MEMORY_LIMIT = "1GB"
#: Of the directories for what a query spills.
SPILL_PREFIX = "boltdp-spill-"
#: Bytes of a CSV file that are looked through at a time for blank lines.
LOOK_BYTES = 1 << 18
#: Longest cell of a CSV file: DuckDB reads no longer line.
CELL_BYTES = 1 << 22


class DuckDBEngine(Engine):
    """Rows that a DuckDB relation gives, in the order in which they were inserted.

    >>> import duckdb
    >>> engine = DuckDBEngine.from_relation(duckdb.sql("SELECT 30 AS age, 'yes' AS sick"))
    >>> engine.count(), engine.columns()["sick"].kind
    (1, 'text')
    """

    def __init__(
        self,
        relation: duckdb.DuckDBPyRelation,
        *,
        fault: str,
        untyped: bool = False,
        connection: duckdb.DuckDBPyConnection | None = None,
        close: Callable[[], object] | None = None,
        check: Callable[[], object] | None = None,
    ) -> None:
        """Use one of the `from_` constructors; `fault` is what to say when DuckDB cannot read the rows.

        `connection` is that of the relation, if it is the engine's own, which a signal may interrupt. `check` is done
        once before rows are counted or read.
        """
        self._relation = relation
        self._fault = fault
        self._untyped = untyped
        self._connection = connection
        self._worker = ThreadPoolExecutor(1)  # its thread begins with the first task
        self._close = close
        self._check = check
        self._count: int | None = None

    @classmethod
    def from_csv(cls, path: str | Path, *, delimiter: str | None = None) -> DuckDBEngine:
        """A CSV file with a header, or several, by a glob pattern; gzipped ones too.

        Cells are texts until the schema says otherwise; a cell that should be a number and is not is a missing one.
        A line that has too many or too few cells, or is longer than DuckDB's limit of 2 MB, makes the file unreadable;
        so does a blank one, but in a file of one column it is a missing cell.
        """
        files = _files(path)
        if delimiter is None:
            delimiter = "\t" if ".tsv" in Path(files[0]).suffixes else ","
        header = _header(files[0], delimiter)
        for file in files[1:]:
            if _header(file, delimiter) != header:
                raise DataError(f"the CSV files of {str(path)!r} must have the same header, {file!r} has another")
        connection = _connect(":memory:")
        # The dialect is fixed: guessed from the rows, it could silently change with one of them.
        query = (
            "SELECT * FROM read_csv(?, columns = ?, delim = ?, header = true, auto_detect = false, "
            "quote = '\"', escape = '\"')"
        )
        fault = (
            f"the CSV data of {str(path)!r} cannot be read: every line must have the {len(header)} cells of the "
            "header, none may be blank, quotes must be closed, and the text must be UTF-8"
        )
        values = [files, dict.fromkeys(header, "VARCHAR"), delimiter]
        relation = _ask(lambda: connection.sql(query, params=values), fault)

        def check() -> None:
            # DuckDB skips blank lines, and so would lose rows; but those of one column it takes for missing cells.
            if len(header) > 1 and any(_has_blank_line(file, delimiter) for file in files):
                raise DataError(fault)

        return cls(relation, fault=fault, untyped=True, connection=connection, close=connection.close, check=check)

    @classmethod
    def from_parquet(cls, path: str | Path) -> DuckDBEngine:
        """A Parquet file, or several with the same columns, by a glob pattern, in the order of their names."""
        files = _files(path)
        connection = _connect(":memory:")
        fault = (
            f"the Parquet data of {str(path)!r} cannot be read: a file is damaged or incomplete, or its columns differ"
        )
        query = "SELECT * FROM read_parquet(?, hive_partitioning = false)"
        relation = _ask(lambda: connection.sql(query, params=[files]), fault)
        return cls(relation, fault=fault, connection=connection, close=connection.close)

    @classmethod
    def from_database(
        cls,
        path: str | Path,
        *,
        table: str | None = None,
        query: str | None = None,
        spool: str | Path | None = None,
    ) -> DuckDBEngine:
        """A table, or the rows of a query, in a DuckDB file, which is opened for reading only.

        The promise is about one row of the query's result being another, at its place, while all others stay as and
        where they are. So each row of the result must come from one person's row, and the places must not depend on
        private values: choose and order rows by public columns only, such as an id, and use no window function,
        aggregate or LIMIT that lets one row change others. The order must be the same each time the query runs.

        What it spills to disk goes to the directory of the spool.
        """
        if (table is None) == (query is None):
            raise ParameterError("give either table or query to say which rows of the database to use")
        if not Path(path).is_file():
            raise DataError(f"the DuckDB file {str(path)!r} does not exist")
        if table is not None:
            connection = _connect(str(path))
            fault = f"the table {table!r} of {str(path)!r} cannot be read"
            relation = _ask(lambda: connection.sql(f"SELECT * FROM {_identifier(table)}"), fault)
            return cls(relation, fault=fault, connection=connection, close=connection.close)
        fault = f"the query on {str(path)!r} cannot be run"
        with ExitStack() as held:
            spill = held.enter_context(_spill_directory(spool_directory(spool)))
            connection = held.enter_context(closing(_connect(str(path), spill=spill)))
            relation = _ask(lambda: connection.sql(f"SELECT * FROM (\n{query}\n)"), fault)
            engine = cls(relation, fault=fault, connection=connection, close=held.pop_all().close)
        engine.spool = spool
        return engine

    @classmethod
    def from_relation(cls, relation: duckdb.DuckDBPyRelation) -> DuckDBEngine:
        """A relation of a connection that is open already, of which the same is asked as of a query."""
        return cls(relation, fault="the DuckDB relation cannot be read")

    def count(self) -> int:
        """Number of rows."""
        if self._count is None:
            self._check_once()
            answer = self._await(lambda: self._relation.aggregate("count(*)").fetchall())
            self._count = int(answer[0][0])
        return self._count

    def columns(self) -> dict[str, ColumnType]:
        """Names and types of the columns."""
        if self._untyped:
            return dict.fromkeys(self._relation.columns, ColumnType("untyped"))
        empty = _ask(lambda: self._relation.limit(0).to_arrow_table(), self._fault)
        return {field.name: ColumnType.of(field.type) for field in empty.schema}

    def batches(self, columns: Sequence[str], *, parse: Mapping[str, Kind] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows in order, only the columns asked for; cells of untyped columns that do not parse are missing."""
        return self.batches_keeping(columns, (), parse=parse)

    def batches_keeping(
        self, columns: Sequence[str], keep: Sequence[str], *, parse: Mapping[str, Kind] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same with other columns, or the same ones again, as they are."""
        parse = parse or {}
        asked = [self._expression(name, parse.get(name)) for name in columns]
        # Under names of their own: DuckDB would make up others for those that are there already.
        kept = [f"{_identifier(name)} AS {_identifier(f'kept {place}')}" for place, name in enumerate(keep)]
        names, select = [*columns, *keep], ", ".join([*asked, *kept])
        rows = batch_rows(len(names), lists="list" in parse.values(), threads=self.threads)
        self._check_once()
        if self._connection is not None:
            self._connection.execute(f"SET threads = {self.threads}")
        reader = self._await(lambda: self._relation.project(select).to_arrow_reader(rows))
        try:
            for batch in self._fetched(lambda: next(reader, None)):
                yield batch.rename_columns(names) if keep else batch
        finally:
            # An open reader would keep the connection busy.
            reader.close()

    def _fetched(self, fetch: Callable[[], pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
        """Batches until there are no more; if there are threads for it, the next while one is worked on."""
        if self._connection is None or self.threads == 1:
            while (batch := self._await(fetch)) is not None:
                yield batch
            return
        ahead = self._begin(fetch)
        try:
            while (batch := self._finish(ahead)) is not None:
                ahead = self._begin(fetch)
                yield batch
        finally:
            wait([ahead])

    def close(self) -> None:
        """Close the connection, if the engine opened it."""
        self._end_work()
        self._worker.shutdown()
        if self._close is not None:
            self._close()

    def _check_once(self) -> None:
        if self._check is not None:
            self._check()
            self._check = None

    def _await(self, action: Callable[[], T]) -> T:
        """Do something that may take long, where a signal can end it."""
        if self._connection is None:
            return _ask(action, self._fault)
        # In another thread: Python hears no signal while DuckDB is busy in the main one.
        return self._finish(self._begin(action))

    def _begin(self, action: Callable[[], T]) -> Future[T]:
        return self._worker.submit(_ask, action, self._fault)

    def _finish(self, begun: Future[T]) -> T:
        try:
            return await_result(begun)
        except KeyboardInterrupt:
            self._end_work()
            raise

    def _end_work(self) -> None:
        """Have the worker give up what it may still be doing."""
        if self._connection is None:
            return
        with suppress(RuntimeError):  # it takes no task since it was shut down
            last = self._worker.submit(int)
            # More than once, as it does nothing before the query has begun.
            while not wait([last], timeout=0.05).done:
                self._connection.interrupt()

    def _expression(self, name: str, parse: Kind | None) -> str:
        column = _identifier(name)
        if not self._untyped or parse not in ("number", "list"):
            return column
        return f"TRY_CAST({column} AS {'DOUBLE' if parse == 'number' else 'DOUBLE[]'}) AS {column}"


def _ask(action: Callable[[], T], fault: str) -> T:
    """Do something with DuckDB; if it fails, say so in our words and leave no trace of its own."""
    try:
        return action()
    except duckdb.InterruptException:
        interrupted, memory = True, False
    except duckdb.OutOfMemoryException:
        interrupted, memory = False, True
    except RuntimeError as error:  # what DuckDB makes of Ctrl-C while it reads
        interrupted, memory = str(error) == "Query interrupted", False
    except (duckdb.Error, pa.ArrowException, OSError):
        interrupted, memory = False, False
    # Raised here, outside the handlers, so that DuckDB's exception is not even its context.
    if interrupted:
        raise KeyboardInterrupt
    if memory:
        raise DataError(f"{fault}: DuckDB needs more than {MEMORY_LIMIT} of memory for it")
    raise DataError(fault)


def _connect(path: str, *, spill: str = "") -> duckdb.DuckDBPyConnection:
    config: dict[str, Any] = {
        "memory_limit": MEMORY_LIMIT,
        "preserve_insertion_order": "true",
        # Private rows are spilled only where we can remove them; without a directory, nowhere.
        "temp_directory": spill,
        "autoinstall_known_extensions": "false",
    }
    connection = _ask(
        lambda: duckdb.connect(path, read_only=path != ":memory:", config=config),
        f"{path!r} cannot be opened: it is no DuckDB file, or another process writes to it",
    )
    # Its own progress bar would go to standard output, which is for results.
    connection.execute("SET enable_progress_bar = false")
    return connection


@contextmanager
def _spill_directory(parent: Path) -> Iterator[str]:
    """A directory for what DuckDB spills, which is removed at the end; what killed processes left goes first."""
    with ExitStack() as held:
        try:
            folder, reason = held.enter_context(own_directory(parent, prefix=SPILL_PREFIX)), None
        except OSError as fault:
            reason = fault.strerror
        if reason is not None:
            raise DataError(
                f"the spool in {str(parent)!r} cannot be used: {reason}",
                hint="choose another directory with BOLTDP_SPOOL",
            )
        yield str(folder)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _files(path: str | Path) -> list[str]:
    if Path(path).is_file():
        return [str(path)]
    files = sorted(file for file in glob.glob(str(path), recursive=True) if Path(file).is_file())
    if not files:
        raise DataError(f"no file is named {str(path)!r}, or matches it")
    return files


def _has_blank_line(file: str, delimiter: str) -> bool:
    """Whether a CSV file has a blank line, not counting those inside quotes."""
    opener = gzip.open if file.endswith(".gz") else open
    try:
        # Two ends of lines in a row are rare and quickly found; only where there are any, it matters what is quoted.
        with opener(file, "rb") as raw:
            before, found = b"", False
            while not found and (part := raw.read(LOOK_BYTES)):
                stopping.check()
                seen = np.frombuffer(before + part, np.uint8)
                feeds, returns = seen == ord("\n"), seen == ord("\r")
                found = bool(((feeds | returns)[1:] & (feeds[:-1] | (returns[:-1] & returns[1:]))).any())
                before = part[-1:]
        if not found:
            return False
        csv.field_size_limit(max(csv.field_size_limit(), CELL_BYTES))
        with _text(file) as text:
            # DuckDB too takes a quote for one that opens if only spaces are before it.
            return any(not cells for cells in csv.reader(text, delimiter=delimiter, skipinitialspace=True))
    except (OSError, EOFError, zlib.error, csv.Error):
        return False  # DuckDB will find so too, or reads what Python does not


def _text(file: str) -> IO[str]:
    """A CSV file as text. What is not UTF-8 is left for DuckDB to find, in the header as in the rows."""
    opened: IO[str] = (gzip.open if file.endswith(".gz") else open)(
        file, "rt", encoding="utf-8-sig", errors="replace", newline=""
    )
    return opened


def _header(file: str, delimiter: str) -> list[str]:
    """Names of the columns. A file without a header would have values here: no message may repeat them."""
    try:
        with _text(file) as text:
            names = next(csv.reader(text, delimiter=delimiter), [])
    except (OSError, EOFError, csv.Error):
        names = None
    if names is None:
        raise DataError(f"the CSV file {file!r} cannot be read: it must be text that starts with a header")
    if not names:
        raise DataError(f"the CSV file {file!r} must start with a header, and it is empty")
    # Such as the index column that pandas writes.
    names = [name or f"column{i}" for i, name in enumerate(names)]
    # DuckDB's names are the same in either case.
    if len({name.lower() for name in names}) < len(names):
        raise DataError(f"the header of the CSV file {file!r} must have different names (in either case)")
    return names
