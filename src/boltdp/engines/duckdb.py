"""Rows that DuckDB reads inside this process: CSV, JSON lines, Parquet and Arrow files, DuckDB tables, queries.

DuckDB counts rows, selects columns and parses cells; rows are streamed and encoded here.

DuckDB's error messages quote rows, so they are replaced by messages of our own, and its exceptions are not chained.
Only errors in a query that are found before any row is read are passed on, if they quote nothing but the query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from boltdp._files.temporary_directories import open_temporary_directory
from boltdp._threads import await_result, close_at_end
from boltdp.encoding.python_to_arrow import to_person_keys
from boltdp.engines import _text_files
from boltdp.engines._file_patterns import Files, find_files, find_format, suggest_file
from boltdp.engines._remote_files import fetch_files, is_remote
from boltdp.engines.base import Engine, Kinds, RecordBatches
from boltdp.engines.local_store import find_spool_directory, run_in_spool
from boltdp.errors import DataError, ParameterError, list_names, make_printable, suggest_names
from boltdp.schema.source_columns import ColumnType, Kind, OpenColumns, choose_batch_rows

T = TypeVar("T")

#: Memory limit of DuckDB in MB, above which queries that sort or join spill to disk, and what is added to it for each
#: column and thread: a block of 2,048 rows has a text of 16 bytes and the number made of it per cell, more than once.
MEMORY_LIMIT, COLUMN_MEMORY = 1000, 0.2
#: Hint where that is too little.
MEMORY_HINT = (
    "select fewer columns, or make one column of lists of numbers that are alike, which a schema declares under "
    "[vector]; a query needs less if it sorts and joins few columns"
)
#: Prefixes of the directories for spilled rows and for downloaded files.
SPILL_PREFIX, FETCHED_PREFIX = "boltdp-spill-", "boltdp-fetched-"
#: The table name of the source in a query over files.
SOURCE = "source"
#: A key of JSON lines to count them by, which need not be there.
NO_KEY = "boltdp: no key"
#: The condition of JSON lines.
JSON_KEYS = (
    "the keys of JSON lines are private, so the schema names the columns: each line must be an object, and a key that "
    "no line has is a column of missing cells and no error; `boltdp check` finds it, if the rows are public"
)
#: The condition of text files that are read by DuckDB's or Arrow's own rules, in a relation, a view or a dataset.
DETECTED = (
    "DuckDB and Arrow detect the columns and types of CSV and JSON files from rows, so one private row may decide "
    "whether the training succeeds: declare them there, or name the files to boltdp, which detects nothing"
)
#: Hint for malformed CSV data; the line number is private, as it depends on the rows.
CSV_HINT = f"`boltdp check` names the line, if the rows are public; {_text_files.ENCODING_HINT}"
#: Names of types in messages of DuckDB.
_TYPE_NAMES = frozenset(
    (
        *("boolean", "tinyint", "smallint", "integer", "bigint", "hugeint", "float", "double", "decimal", "varchar"),
        *("utinyint", "usmallint", "uinteger", "ubigint", "date", "time", "timestamp", "interval", "blob", "json"),
    )
)
#: Optimizers of DuckDB that push casts down into file readers; not every version has them.
_CAST_PUSHDOWN_OPTIMIZERS = ("type_pushdown", "scalar_fn_pushdown")
#: Errors in a query that DuckDB finds before it reads a row.
_QUERY_ERRORS = (duckdb.ParserException, duckdb.SyntaxException, duckdb.BinderException, duckdb.CatalogException)


class DuckDBEngine(Engine):
    """Rows of a DuckDB relation, in insertion order."""

    def __init__(
        self,
        relation: duckdb.DuckDBPyRelation,
        scan: _Scan,
        *,
        connection: duckdb.DuckDBPyConnection | None = None,
        held: ExitStack | None = None,
        spool: str | Path | None = None,
    ) -> None:
        """Use one of the `from_` constructors.

        `connection` is the relation's connection if the engine owns it, so that a signal can interrupt it; `held` is
        closed with the engine.
        """
        self._relation, self._scan, self.spool = relation, scan, spool
        self._connection = connection
        self._worker = ThreadPoolExecutor(1)  # its thread starts with the first task
        self._held = ExitStack() if held is None else held.pop_all()
        self._checked = False
        self._count: int | None = None
        self._types: dict[str, ColumnType] | None = None

    @classmethod
    def open(
        cls,
        source: str | Path,
        *,
        table: str | None = None,
        query: str | None = None,
        spool: str | Path | None = None,
    ) -> DuckDBEngine:
        """Open a table or a query of a DuckDB file, or files, or a query over files."""
        if find_format(source) == "duckdb":
            return cls.from_database(source, table=table, query=query, spool=spool)
        if table is not None:
            raise ParameterError("table must be given only with a database")
        if query is not None:
            return cls.from_query(source, query, spool=spool)
        if not str(source):
            raise ParameterError(
                "give SOURCE, which says where the rows are",
                hint="a file, a directory, a database, or only --query \"SELECT ... FROM 'visits.parquet'\"",
            )
        if str(source) == "-" or Path(source).is_fifo() or Path(source).is_char_device():
            raise ParameterError(
                "SOURCE must be a file and not the standard input or a pipe, since rows are read more than once",
                hint="write them to a file first: ... > rows.csv",
            )
        return cls.from_files(source, spool=spool)

    @classmethod
    def from_files(
        cls, name: str | Path, *, delimiter: str | None = None, spool: str | Path | None = None
    ) -> DuckDBEngine:
        """Open a local or remote file, or the files of a pattern or a directory, sorted by path.

        Keys of directories named key=value are columns too. These and the columns of text files are untyped: cells are
        converted to the type in the schema, and unparsable cells are missing.

        A CSV file has a header. The separator is `delimiter`, or the most frequent of comma, semicolon, tab and bar in
        the header. A line with too many or too few cells, or longer than DuckDB's limit of 2 MB, is an error; so is a
        blank line, except in a file with one column, where it is a missing cell. The columns of JSON lines are the keys
        that a schema names. A line without a key has a missing cell; one that is not an object is a row of missing
        cells, except that a file whose first line is none is an error, and blank lines are skipped.
        """
        with ExitStack() as held:
            files = _find_or_fetch_files(name, held, spool)
            connection = held.enter_context(closing(_connect(":memory:")))
            scan = _make_scan(connection, files, delimiter=delimiter)
            relation = _call_duckdb(lambda: connection.sql(scan.sql), scan.fault)
            return cls(relation, scan, connection=connection, held=held, spool=spool)

    @classmethod
    def from_object(cls, source: duckdb.DuckDBPyRelation | Any, *, spool: str | Path | None = None) -> DuckDBEngine:
        """Wrap a relation of an open connection, or an Arrow dataset in the order of its fragments.

        A relation must satisfy the conditions for queries in `from_database`.
        """
        if isinstance(source, duckdb.DuckDBPyRelation):
            conditions = _list_detection_conditions(source.sql_query())
            return cls(source, _Scan("the DuckDB relation cannot be read", conditions=conditions), spool=spool)
        detects = type(getattr(source, "format", None)).__name__ in ("CsvFileFormat", "JsonFileFormat")
        conditions = (DETECTED,) if detects else ()
        scan = _Scan("the Arrow dataset cannot be read", f"SELECT * FROM {SOURCE}", conditions=conditions)
        with ExitStack() as held:
            connection = held.enter_context(closing(_connect(":memory:")))
            connection.register(SOURCE, source)
            relation = _call_duckdb(lambda: connection.sql(scan.sql), scan.fault)
            return cls(relation, scan, connection=connection, held=held, spool=spool)

    @classmethod
    def from_database(
        cls,
        path: str | Path,
        *,
        table: str | None = None,
        query: str | None = None,
        spool: str | Path | None = None,
    ) -> DuckDBEngine:
        """Open a table or a query of a DuckDB file, read-only.

        The guarantee is about replacing one row of the query's result, with all other rows and positions unchanged. So
        each row of the result must come from one person's row, and positions must not depend on private values: select
        and order rows by public columns only, such as an id, and use no window function, aggregate or LIMIT by which
        one row changes others. The order must be the same each time the query runs.

        Queries spill to the spool directory.
        """
        if not Path(path).is_file():
            raise DataError(f"the DuckDB file {str(path)!r} does not exist", hint=suggest_file(str(path)))
        with ExitStack() as held:
            spill = "" if query is None else _make_directory(held, spool, SPILL_PREFIX)
            connection = held.enter_context(closing(_connect(str(path), spill=spill)))
            tables = _list_tables(connection)
            names = [*tables]
            if (table is None) == (query is None):
                raise ParameterError(
                    "give either table or query to say which rows of the database to use",
                    hint=_describe_tables(names) if table is None else None,
                )
            if query is not None:
                fault = f"the query on {str(path)!r} cannot be run"
                relation = _plan_query(connection, query, fault, tables=_describe_tables(names))
            else:
                assert table is not None
                if table.casefold() not in map(str.casefold, names):
                    hint = suggest_names(table, names) or _describe_tables(names)
                    raise DataError(f"the table {table!r} of {str(path)!r} does not exist", hint=hint)
                fault = f"the table {table!r} of {str(path)!r} cannot be read"
                select = f"SELECT * FROM {_quote_identifier(table)}"
                relation = _call_duckdb(lambda: connection.sql(select), fault)
            scan = _Scan(fault, conditions=_list_detection_conditions(query or select, tables))
            return cls(relation, scan, connection=connection, held=held, spool=spool)

    @classmethod
    def from_query(cls, source: str | Path, query: str, *, spool: str | Path | None = None) -> DuckDBEngine:
        """Open a query over files, which must satisfy the conditions for queries in `from_database`.

        Files are named as tables, as in FROM 'visits.parquet', relative to `source` if it is a directory, else to the
        current directory, and read as by `from_files`. The rows of `source` itself are the table named source. The
        query can read nothing else. Columns of text in its result are untyped.
        """
        fault = "the query cannot be run"
        with ExitStack() as held:
            spill = _make_directory(held, spool, SPILL_PREFIX)
            connection = held.enter_context(closing(_connect(":memory:", spill=spill)))
            checks: list[Callable[[], object]] = []
            paths: list[str] = []
            for table in _find_tables_in_query(connection, query, fault):
                is_source = str(source) and table.casefold() == SOURCE
                name = source if is_source else table if is_remote(table) else _find_table_path(table, str(source))
                if name is not None:
                    files = _find_or_fetch_files(name, held, spool)
                    if files.format == "json":
                        raise DataError(
                            f"{fault}: it may not read JSON lines, whose columns would be the keys of a row",
                            hint="train on the file itself, or write it to Parquet with columns that you declare",
                        )
                    scan = _make_scan(connection, files)
                    view = f"CREATE VIEW {_quote_identifier(table)} AS {scan.sql}"
                    _call_duckdb(partial(connection.execute, view), scan.fault).fetchall()
                    checks += scan.checks
                    paths += files.paths
            connection.execute(f"SET allowed_paths = {_quote_list(paths)}").fetchall()
            connection.execute("SET enable_external_access = false").fetchall()
            tables = "name files as tables, FROM 'visits.parquet'; the rows of SOURCE are the table named source"
            relation = _plan_query(connection, query, fault, tables=tables)
            types = _call_duckdb(lambda: relation.limit(0).to_arrow_table(), fault).schema
            untyped = frozenset(field.name for field in types if ColumnType.from_arrow(field.type).kind == "text")
            scan = _Scan(fault, untyped=untyped, checks=checks)
            return cls(relation, scan, connection=connection, held=held, spool=spool)

    @property
    def guarantee_conditions(self) -> Sequence[str]:
        return self._scan.conditions if self._scan.select is None else (JSON_KEYS,)

    def count(self) -> int:
        if self._count is None:
            self._check_files_once()
            answer = self._run_interruptible(lambda: self._relation.aggregate("count(*)").fetchall())
            self._count = int(answer[0][0])
        return self._count

    def columns(self) -> dict[str, ColumnType]:
        untyped = self._scan.untyped
        if self._scan.select is not None:
            return OpenColumns(dict.fromkeys(untyped, ColumnType("untyped")))
        if untyped.issuperset(self._relation.columns):
            return dict.fromkeys(self._relation.columns, ColumnType("untyped"))
        if self._types is None:
            empty = _call_duckdb(lambda: self._relation.limit(0).to_arrow_table(), self._scan.fault)
            self._types = {
                field.name: ColumnType("untyped") if field.name in untyped else ColumnType.from_arrow(field.type)
                for field in empty.schema
            }
        return dict(self._types)

    def list_columns(self) -> dict[str, ColumnType]:
        keys = [*self._scan.read_keys(), *self._scan.untyped]
        return dict.fromkeys(keys, ColumnType("untyped")) if self._scan.select is not None else self.columns()

    def batches(self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Kinds = None) -> RecordBatches:
        parse = parse or {}
        asked = [self._write_column_sql(name, parse.get(name)) for name in columns]
        # DuckDB would rename duplicate columns, so these have aliases of their own.
        kept = [f"{_quote_identifier(name)} AS {_quote_identifier(f'kept {index}')}" for index, name in enumerate(keep)]
        names, select = [*columns, *keep], ", ".join([*asked, *kept])
        rows = choose_batch_rows(len(names), lists="list" in parse.values(), threads=self.threads)
        self._check_files_once()
        if self._connection is not None:
            self._connection.execute(f"SET threads = {self.threads}")
            limit = MEMORY_LIMIT + COLUMN_MEMORY * len(names) * self.threads
            self._connection.execute(f"SET memory_limit = '{limit:.0f}MB'")
        relation = self._relation
        if self._scan.select is not None and self._connection is not None:
            sql = self._scan.select(names)
            relation = _call_duckdb(partial(self._connection.sql, sql), self._scan.fault)
        reader = self._run_interruptible(lambda: relation.project(select).to_arrow_reader(rows))
        try:
            for batch in self._iterate_batches(lambda: next(reader, None)):
                yield batch.rename_columns(names) if keep else batch
        finally:
            # An open reader would keep the connection busy.
            reader.close()

    def batches_with_persons(self, columns: Sequence[str], person_id: str, *, parse: Kinds = None) -> RecordBatches:
        batches = self.batches(columns, [person_id], parse=parse)
        return _convert_persons(batches) if self.columns()[person_id].kind == "untyped" else batches

    def _iterate_batches(self, fetch: Callable[[], pa.RecordBatch | None]) -> RecordBatches:
        """Yield all batches of rows; with several threads, the next one is fetched while the last is processed."""
        if self._connection is None or self.threads == 1:
            yield from iter(lambda: self._run_interruptible(fetch), None)
            return
        ahead = self._submit_to_worker(fetch)
        try:
            while (batch := self._await_worker(ahead)) is not None:
                ahead = self._submit_to_worker(fetch)
                yield batch
        finally:
            wait([ahead])

    def close(self) -> None:
        self._interrupt_worker()
        self._worker.shutdown()
        self._held.close()

    def _check_files_once(self) -> None:
        for check in () if self._checked else self._scan.checks:
            check()
        self._checked = True

    def _run_interruptible(self, action: Callable[[], T]) -> T:
        """Run a DuckDB action in the worker thread, where a signal can interrupt it."""
        if self._connection is None:
            return _call_duckdb(action, self._scan.fault, hint=self._scan.hint)
        # Python handles no signal while DuckDB runs in the main thread.
        return self._await_worker(self._submit_to_worker(action))

    def _submit_to_worker(self, action: Callable[[], T]) -> Future[T]:
        return self._worker.submit(_call_duckdb, action, self._scan.fault, hint=self._scan.hint)

    def _await_worker(self, begun: Future[T]) -> T:
        """Return the result of an action of the worker thread; Ctrl-C interrupts its DuckDB query."""
        try:
            return await_result(begun)
        except KeyboardInterrupt:
            self._interrupt_worker()
            raise

    def _interrupt_worker(self) -> None:
        """Interrupt the DuckDB query that runs in the worker thread, if any."""
        if self._connection is None:
            return
        with suppress(RuntimeError):  # the worker is shut down
            last = self._worker.submit(int)
            # Repeated, since an interrupt has no effect before the query starts.
            while not wait([last], timeout=0.05).done:
                self._connection.interrupt()

    def _write_column_sql(self, name: str, parse: Kind | None) -> str:
        """Return the SQL that selects a column, parsed as numbers or lists if it is untyped."""
        column = _quote_identifier(name)
        typed = self._scan.select is None and name not in self._scan.untyped
        if typed or parse not in ("number", "list"):
            return column
        return f"TRY_CAST({column} AS {'DOUBLE' if parse == 'number' else 'DOUBLE[]'}) AS {column}"


def _convert_persons(batches: RecordBatches) -> RecordBatches:
    """Convert texts in the last column, since files may have one id as 1, as 1.0 and in quotes."""
    with close_at_end(batches):
        for batch in batches:
            *cells, ids = batch.columns
            yield pa.RecordBatch.from_arrays([*cells, to_person_keys(ids)], batch.schema.names)


def _call_duckdb(
    action: Callable[[], T],
    fault: str,
    *,
    query: str | None = None,
    tables: str | None = None,
    hint: str | None = None,
) -> T:
    """Run an action with DuckDB; errors are raised as DataError with the message `fault`, without DuckDB's exception.

    If the action only plans the user's `query`, the message of DuckDB is added, with `tables` as a hint.
    """
    try:
        return action()
    except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
        caught = error
    # Raised outside the handler, so that DuckDB's exception is not the context.
    if isinstance(caught, duckdb.InterruptException) or str(caught) == "Query interrupted":  # by Ctrl-C
        raise KeyboardInterrupt
    if isinstance(caught, duckdb.OutOfMemoryException):
        # Not with `fault`, since nothing is wrong with the rows.
        raise DataError("the rows need more memory than DuckDB may use here", hint=MEMORY_HINT)
    reason = None
    if query is not None:
        reason, hint = _filter_message(caught, query), tables if isinstance(caught, duckdb.CatalogException) else None
        if isinstance(caught, duckdb.PermissionException):
            reason, hint = "it may read only the files that it names as tables", tables
    raise DataError(fault if reason is None else f"{fault}: {reason}", hint=hint)


def _connect(path: str, *, spill: str = "") -> duckdb.DuckDBPyConnection:
    config: dict[str, Any] = {
        "memory_limit": f"{MEMORY_LIMIT}MB",
        "preserve_insertion_order": "true",
        # Private rows are spilled only to a directory that is removed; without one, never.
        "temp_directory": spill,
        "autoinstall_known_extensions": "false",
        # Else it reads a row group of Parquet at once, which may be larger than the memory limit.
        "disable_parquet_prefetching": "true",
    }
    connection = _call_duckdb(
        lambda: duckdb.connect(path, read_only=path != ":memory:", config=config),
        f"{path!r} cannot be opened: it is no DuckDB file, or another process writes to it",
    )
    # The progress bar would go to standard output, which is for results.
    connection.execute("SET enable_progress_bar = false")
    # DuckDB 2.0 pushes TRY_CAST down into the CSV reader, which fails at the first unparsable cell.
    known = connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()
    pushing = [name for (name,) in known if name in _CAST_PUSHDOWN_OPTIMIZERS]
    connection.execute(f"SET disabled_optimizers = {_quote_literal(','.join(pushing))}")
    return connection


def _make_directory(held: ExitStack, spool: str | Path | None, prefix: str) -> str:
    """Make a directory for spilled private rows, removed when `held` is closed; remove those of killed processes."""
    parent = find_spool_directory(spool)
    return str(run_in_spool(lambda: held.enter_context(open_temporary_directory(parent, prefix=prefix)), parent))


@dataclass(frozen=True)
class _Scan:
    """The SQL that reads rows, and what is known about them."""

    fault: str  #: the error message if DuckDB cannot read them
    sql: str = ""
    untyped: frozenset[str] = frozenset()  #: columns of text whose type the schema declares
    checks: Sequence[Callable[[], object]] = ()  #: called once before rows are counted or read
    hint: str | None = None  #: the hint for the error message
    conditions: tuple[str, ...] = ()  #: of the guarantee
    select: Callable[[Sequence[str]], str] | None = None  #: the SQL that reads columns by name, if every name is one
    read_keys: Callable[[], list[str]] = list  #: read the keys of the first row, if every name is a column


def _make_scan(connection: duckdb.DuckDBPyConnection, files: Files, *, delimiter: str | None = None) -> _Scan:
    """Make the SQL that reads files. Nothing is detected from the rows: one row could silently change it."""
    what, partitions = repr(files.name), frozenset(files.partitions)
    if files.format == "duckdb":
        raise DataError(
            f"the DuckDB file {what} must be given as the source, with a table or a query on it",
            hint="boltdp train rows.duckdb --table visits ...",
        )
    if files.format == "arrow":
        fault = f"the Arrow data of {what} cannot be read: a file is damaged, or a stream, or its columns differ"
        dataset = _call_duckdb(lambda: _make_arrow_dataset(files), fault)
        table = f"boltdp arrow {what}"
        _call_duckdb(lambda: connection.register(table, dataset), fault)
        return _Scan(fault, f"SELECT * FROM {_quote_identifier(table)}", partitions)
    paths = [str(Path(path).absolute()) for path in files.paths] if partitions else [*files.paths]
    names: list[str] = []
    options: list[str] = []
    checks: list[Callable[[], object]] = []
    if files.format == "csv":
        separator = _text_files.find_separator(paths[0]) if delimiter is None else delimiter
        names = _text_files.read_csv_header(files, separator)
        fault = (
            f"the CSV data of {what} cannot be read: every line must have the {len(names)} cells of the "
            "header, none may be blank, quotes must be closed, and the text must be UTF-8"
        )

        def check() -> None:
            # DuckDB skips blank lines and would lose rows, except with one column, where they are missing cells.
            if len(names) > 1 and any(_text_files.has_blank_line(file, separator) for file in paths):
                raise DataError(fault, hint=CSV_HINT)

        checks.append(check)
        options = [f"delim = {_quote_literal(separator)}", "header = true", "quote = '\"'", "escape = '\"'"]
    elif files.format == "json":
        _text_files.check_json_lines(files)
        fault = f"the JSON lines of {what} cannot be read: a file is damaged"
        options = ["format = 'newline_delimited'", "records = 'true'", "ignore_errors = true"]
    else:
        fault = f"the Parquet data of {what} cannot be read: a file is damaged or incomplete, or its columns differ"
    hive = f"hive_partitioning = {'true, hive_types_autocast = false' if partitions else 'false'}"
    # DuckDB makes columns of all key=value directories of a path, also of those above the root.
    outside = {part.partition("=")[0] for path in paths for part in Path(path).parent.parts if part.find("=") > 0}
    without = ", ".join(map(_quote_identifier, sorted(outside - partitions))) if partitions else ""
    columns = f"* EXCLUDE ({without})" if without else "*"

    def select(names: Sequence[str]) -> str:
        types = ", ".join(f"{_quote_literal(name)}: 'VARCHAR'" for name in names)
        declared = [f"columns = {{{types}}}", "auto_detect = false"] if names else []
        given = ", ".join([*options, *declared, hive])
        # Wildcards are escaped: a[1].csv must not match a1.csv.
        exact = _quote_list([re.sub(r"([*?[])", r"[\1]", path) for path in paths])
        return f"SELECT {columns} FROM read_{files.format}({exact}, {given})"

    if files.format == "json":
        # The columns are those that a schema names: keys of the first line would be those of one row.
        def select_keys(names: Sequence[str]) -> str:
            keys = _text_files.check_distinct_names([*dict.fromkeys(names)], "the keys of JSON lines")
            return select([name for name in keys if name not in partitions] or [NO_KEY])

        read_keys = partial(_text_files.read_json_keys, files)
        return _Scan(fault, select([NO_KEY]), partitions, select=select_keys, read_keys=read_keys)
    hint = CSV_HINT if files.format == "csv" else None
    return _Scan(fault, select(names), partitions | frozenset(names), checks, hint)


def _make_arrow_dataset(files: Files) -> Any:
    import pyarrow.dataset as ds

    schemas = []
    for path in files.paths:
        with pa.memory_map(path) as mapped, pa.ipc.open_file(mapped) as opened:
            schemas.append(opened.schema)
    if any(not schema.equals(schemas[0]) for schema in schemas):
        raise pa.ArrowInvalid
    keys = pa.schema([(name, pa.string()) for name in files.partitions])
    hive = {"partitioning": ds.partitioning(keys, flavor="hive"), "partition_base_dir": files.root}
    return ds.dataset(list(files.paths), format="ipc", **(hive if files.partitions else {}))


def _find_or_fetch_files(name: str | Path, held: ExitStack, spool: str | Path | None) -> Files:
    """Find local files, or download remote ones to a directory that is removed when `held` is closed."""
    if not is_remote(str(name)):
        return find_files(name)
    return fetch_files(str(name), Path(_make_directory(held, spool, FETCHED_PREFIX)))


def _find_table_path(table: str, source: str) -> Path | None:
    """Return the file, pattern or directory that a table in a query names, or None."""
    path = Path(source, table) if source and Path(source).is_dir() else Path(table)
    return path if find_format(path) is not None or path.is_dir() else None


def find_paths_in_query(source: str, query: str) -> list[str]:
    """Return the local files, patterns and directories that a query names, as tables or for functions that read files.

    >>> sorted(find_paths_in_query("", "SELECT * FROM 'visits.parquet' JOIN read_csv(['ids.csv']) USING (id), seen"))
    ['ids.csv', 'visits.parquet']
    """
    with closing(duckdb.connect()) as connection:
        tables = _find_tables_in_query(connection, query, "the query cannot be run", functions=True)
    paths = [_find_table_path(table, source) for table in tables if not is_remote(table)]
    return [str(path) for path in paths if path is not None]


def _find_tables_in_query(
    connection: duckdb.DuckDBPyConnection, query: str, fault: str, *, functions: bool = False
) -> list[str]:
    """Return the tables without a schema that a query reads from, and with `functions` all texts given to functions."""
    _check_query(connection, query, fault)
    answer = _call_duckdb(lambda: connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall(), fault)
    found: dict[str, None] = {}

    def note_table(node: dict[str, Any]) -> None:
        if node.get("type") == "BASE_TABLE" and not node.get("schema_name"):
            found[node["table_name"]] = None
        # DuckDB 2 writes a text as a literal, and earlier versions as a value.
        text = node.get("text") if node.get("kind") == "STRING" else node.get("value")
        if functions and isinstance(text, str):
            found[text] = None

    json.loads(answer[0][0], object_hook=note_table)
    return [*found]


def _plan_query(
    connection: duckdb.DuckDBPyConnection, query: str, fault: str, *, tables: str | None
) -> duckdb.DuckDBPyRelation:
    """Plan a query without reading rows; `tables` is the hint if a table does not exist."""
    _check_query(connection, query, fault)
    return _call_duckdb(lambda: connection.sql(f"SELECT * FROM (\n{query}\n)"), fault, query=query, tables=tables)


def _check_query(connection: duckdb.DuckDBPyConnection, query: str, fault: str) -> None:
    """Raise DataError unless the query is one SELECT; later errors would refer to the statement around it."""
    statements = _call_duckdb(lambda: connection.extract_statements(query), fault, query=query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise DataError(f"{fault}: it must be one SELECT statement")


def get_dataset_name(path: str | Path, table: str) -> str:
    """Return the name by which a ledger knows a table of a DuckDB file: as stored, since DuckDB ignores its case."""
    if find_format(path) != "duckdb" or not Path(path).is_file():
        return table
    with closing(_connect(str(path), spill="")) as connection:
        names = _list_tables(connection)
    return next((name for name in names if name.casefold() == table.casefold()), table)


def _list_tables(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Return the SELECT of each view by its name, and an empty text for each table."""
    query = (
        "SELECT table_name, '' FROM duckdb_tables() WHERE NOT internal "
        "UNION ALL SELECT view_name, sql FROM duckdb_views() WHERE NOT internal"
    )
    found = _call_duckdb(lambda: connection.execute(query).fetchall(), "the tables cannot be listed")
    # The text of a view is CREATE VIEW name [(columns)] AS SELECT ...;
    return {name: re.split(r"\bAS\s", sql, maxsplit=1)[-1].rstrip("; \n") for name, sql in found}


def _list_detection_conditions(query: str, tables: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the condition of the guarantee for a query that reads CSV or JSON files, itself or by views; else none."""
    views = {name.casefold(): sql for name, sql in (tables or {}).items() if sql}
    read: set[str] = set()
    waiting = [query]
    with closing(duckdb.connect()) as connection:
        while waiting:
            names: set[str] = set()
            with suppress(DataError):  # it is no single SELECT in the words of DuckDB
                names = {*map(str.casefold, _find_tables_in_query(connection, waiting.pop(), "", functions=True))}
            waiting += [views[name] for name in names - read if name in views]
            read |= names
    return (DETECTED,) if {find_format(name) for name in read} & {"csv", "json"} else ()


def _describe_tables(tables: Sequence[str]) -> str:
    return f"there are the tables {list_names(tables)}" if tables else "there are no tables"


def _filter_message(error: Exception, query: str) -> str | None:
    """Return DuckDB's message about a query, or None if it quotes words that are not in the query.

    Suggested names, and columns that a * stands for, may be values of rows, by a PIVOT or in a file without a header.
    """
    if not isinstance(error, _QUERY_ERRORS):
        return None
    text = str(error).strip().split("\n")[0]
    text = text.partition(" Error: ")[2] or text
    known = {*re.findall(r"\w+", query.casefold()), *_TYPE_NAMES}
    quoted = " ".join(part for pair in re.findall(r"\"([^\"]*)\"|'([^']*)'|(\d+)", text) for part in pair)
    if not set(re.findall(r"\w+", quoted.casefold())) <= known:
        return None
    return make_printable(text.rstrip("!."), longest=300)


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quote_list(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quote_literal, texts))}]"
