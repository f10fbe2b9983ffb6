"""A PostgreSQL connection for training: statements, COPY in both directions, and errors that quote no values.

PostgreSQL's error messages may quote rows, so only those that cannot are passed on, and exceptions are not chained.

Anyone who may create objects in a schema of the search path can define a function or operator that overrides the
server's own. So all functions, operators, types and collations in our SQL are qualified with a schema, and only
statements that contain the user's query run with the user's search path.

A pooler may give each transaction another backend of the server. So every setting is local to the transaction that
needs it, and once something is kept in the backend, such as prepared rows, a transaction in another one is refused.
"""

from __future__ import annotations

import re
import secrets
import selectors
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from boltdp._array_types import Integers
from boltdp.engines.postgres.build import explain_unusable_version
from boltdp.engines.postgres.catalog_constraints import Field
from boltdp.errors import DataError
from boltdp.schema.source_columns import BATCH_ROWS

if TYPE_CHECKING:
    from typing_extensions import LiteralString

T = TypeVar("T")
Composed: TypeAlias = sql.Composed | sql.SQL
Cursor: TypeAlias = psycopg.RawCursor[Any]
Rows: TypeAlias = Generator[list[tuple[Any, ...]], None, None]

#: Settings of each transaction. jit and parallel plans bring no speedup; synchronized scans would change the order of
#: rows, and scans of an index, unlike those of a bitmap made of it, would order rows by private values.
SETTINGS = {
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "synchronize_seqscans": "off",
    "enable_indexonlyscan": "off",
    "enable_indexscan": "off",
    "DateStyle": "ISO",
}

SET_LOCAL: LiteralString = "SELECT pg_catalog.set_config($1, $2, true)"

#: Default memory limit of the session, in bytes.
MEMORY = 256 * 2**20
#: How often a running statement checks that its client is still connected.
CHECK_INTERVAL = "1s"
#: How long to wait for a connection, or for a pooler that has none to spare.
CONNECT_SECONDS = 30.0
#: How long to wait for a second connection that tells whether a pooler lends the first one to others.
PROBE_SECONDS = 1.0

#: After a crash, the restarting server removes the files of temporary tables; autovacuum, or another session that
#: creates temporary tables in the same slot, removes their entries in pg_class.
SESSION_ENDED_HINT = (
    "nothing was released; the server drops the prepared rows with the session, or as it restarts after a crash, which "
    "may leave an entry without rows in its catalogue until the session's slot is used again"
)

#: Why passes cannot be run in the server behind a pooler that gives each transaction another connection.
TRANSACTION_POOL = "the connection goes through a transaction pool, and prepared rows are kept in one server session"
POOL_HINT = "use a session pool or a direct connection; rows that are streamed (where='client') need neither"

#: Header of the binary COPY format: signature, no flags, no extension.
COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)

#: The search path for all statements without the user's query.
SAFE_SEARCH_PATH = "pg_catalog, pg_temp"

_BEGIN_FAULT = "a transaction cannot be begun"
#: SQLSTATE classes whose messages concern the statement, the connection or the machine, never a value.
_SAFE_CLASSES = ("08", "25", "28", "3D", "3F", "42", "53", "55", "57", "58")


class Session:
    """A connection for training whose errors quote no row."""

    def __init__(self, uri: str, *, memory: int = MEMORY) -> None:
        self.memory = memory  #: limit in bytes for each of temporary tables, sorts and drawn rows
        self.handle = secrets.randbits(63)  #: of the first state in the server's memory
        self.kept_state: bytes | None = None  #: the state under this handle
        self._handles = [self.handle]
        self._drawn_handle = secrets.randbits(63)  #: of drawn positions
        self._uri = uri
        self._connection = _run_quoting_no_row(
            lambda: connect(uri, autocommit=True, prepare_threshold=None, application_name="boltdp"),
            "PostgreSQL cannot be reached",
        )
        self._copying: Rows | None = None  #: the rows of the last COPY
        self._snapshot = False
        self._path: str | None = None  #: the search path in the transaction of the snapshot
        self._user_search_path = SAFE_SEARCH_PATH
        self._settings = dict(SETTINGS)
        self._backend: int | None = None  #: the process of the server in the last transaction
        self._buffers: str | None = None  #: temp_buffers, once they are chosen
        self._kept_since: Any = None  #: when that process began, once something is kept in it
        self.moved = False  #: whether transactions were seen in different processes, as in a transaction pool
        try:
            self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def _set_up(self) -> None:
        fault = "the session cannot be set up"
        found = dict(
            self._run_outside_transaction(
                "SELECT name, setting FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.=)"
                " ANY (ARRAY['search_path', 'work_mem', 'maintenance_work_mem'])",
                fault,
            )
        )
        self._user_search_path = found.pop("search_path")
        # Sorts use at most the memory of the session.
        limit = self.memory // 1024
        self._settings |= {name: str(limit) for name, kilobytes in found.items() if int(kilobytes) > limit}
        with suppress(DataError):  # some platforms do not support this check and refuse the setting
            self.ask(SET_LOCAL, ["client_connection_check_interval", CHECK_INTERVAL], fault=fault)
            self._settings["client_connection_check_interval"] = CHECK_INTERVAL

    def ask(
        self,
        query: LiteralString | Composed,
        values: Sequence[Any] = (),
        *,
        fault: str,
        prepared_only: bool = False,
        user_path: bool = False,
    ) -> list[Any]:
        """Run a statement and return its rows, read in binary.

        `prepared_only` says that it reads prepared rows only, `user_path` that it runs with the user's search path.
        """
        return self._run_action(
            lambda cursor: _execute_and_fetch(cursor, query, values),
            fault,
            user_path=user_path,
            prepared_only=prepared_only,
        )

    def _run_outside_transaction(self, statement: LiteralString | Composed, fault: str) -> list[Any]:
        """Run a statement without the transaction and the settings that others run in."""
        return self._run_action(lambda cursor: _execute_and_fetch(cursor, statement), fault, user_path=None)

    def _run_action(
        self, action: Callable[[Cursor], T], fault: str, *, user_path: bool | None = False, prepared_only: bool = False
    ) -> T:
        """Run an action in a transaction with the user's or the safe search path; for None, in no transaction."""

        def run() -> T:
            if self._copying is not None:
                self._copying.close()  # an unfinished COPY keeps the connection busy
            own = nullcontext() if user_path is None else self._transaction(user_path=user_path)
            with own, psycopg.RawCursor(self._connection) as cursor:
                return action(cursor)

        return _run_quoting_no_row(run, fault, prepared_only=prepared_only)

    @contextmanager
    def _transaction(self, *, user_path: bool) -> Iterator[None]:
        """Run a block in the open transaction, or in a new one if none is open."""
        if not self._snapshot:
            with self._connection.transaction():
                self._configure_transaction(user_path=user_path)
                yield
            return
        path = self._user_search_path if user_path else SAFE_SEARCH_PATH
        if path != self._path:
            self._path = None
            with psycopg.RawCursor(self._connection) as cursor:
                cursor.execute(SET_LOCAL, ["search_path", path])
            self._path = path
        yield

    def _configure_transaction(self, *, user_path: bool = False) -> None:
        """Set the settings of a new transaction, and check that it runs in the server process that keeps our states."""
        path = self._user_search_path if user_path else SAFE_SEARCH_PATH
        setter = sql.SQL("pg_catalog.set_config({}, {}, true)")
        calls = [setter.format(*setting) for setting in {**self._settings, "search_path": path}.items()]
        if self._buffers is not None:  # another backend, which is refused, may not be able to change them
            own = sql.SQL("CASE WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) {} THEN {} END")
            calls.append(own.format(self._backend, setter.format("temp_buffers", self._buffers)))
        statement = sql.SQL("SELECT pg_catalog.pg_backend_pid(), {}").format(sql.SQL(", ").join(calls))
        with psycopg.RawCursor(self._connection) as cursor:
            backend = cursor.execute(statement).fetchall()[0][0]
            last, self._backend = self._backend, backend
            self.moved = self.moved or last not in (None, backend)
            if not self.moved or self._kept_since is None:
                return
            # Its rows must not stay in the pool. Its role is our own, which may end it.
            cursor.execute(
                "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity"
                " WHERE pid OPERATOR(pg_catalog.=) $1 AND backend_start OPERATOR(pg_catalog.=) $2",
                [last, self._kept_since],
            )
        self._connection.close()
        raise DataError(f"the training cannot go on: {TRANSACTION_POOL}", hint=POOL_HINT)

    def stream(self, select: Composed, types: Sequence[str], *, user_path: bool = False) -> Rows:
        """Yield lists of at most BATCH_ROWS rows of a query, read by binary COPY; another statement ends the stream."""
        if self._copying is not None:
            self._copying.close()
        self._copying = rows = self._stream_copy(select, types, user_path=user_path)
        while gathered := _run_quoting_no_row(lambda: next(rows, None), "the rows cannot be read"):
            yield gathered

    def _stream_copy(self, select: Composed, types: Sequence[str], *, user_path: bool) -> Rows:
        statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT BINARY)").format(select)
        # A savepoint protects the transaction of the snapshot from an error or an early end. The search path is set
        # before it, since going back to it would undo that.
        with (
            self._transaction(user_path=user_path),
            self._connection.transaction(),
            self._connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            copy.set_types(types)
            rows = copy.rows()
            while gathered := list(islice(rows, BATCH_ROWS)):
                yield gathered

    def send_states(self, *states: bytes) -> list[int]:
        """Send SGD states or sums to the server's memory and return their handles, of which the first is `handle`."""
        self.kept_state = None
        self._handles += [secrets.randbits(63) for _ in range(len(states) - len(self._handles))]
        handles = self._handles[: len(states)]
        self._send_to_memory(dict(zip(handles, states, strict=True)), fault="a state cannot be sent")
        self.kept_state = states[0] if len(states) == 1 else None
        return handles

    def drop_states(self) -> None:
        """Drop all SGD states and sums in the server's memory, unless the end of the session has done so."""
        self.kept_state = None
        self._drop_handles(self._handles, fault="a state cannot be dropped")

    @contextmanager
    def send_positions(self, positions: Integers) -> Iterator[int]:
        """Keep drawn positions, which are as secret as the rows, in the server's memory during the block."""
        try:
            drawn = {self._drawn_handle: positions.astype(">i8").tobytes()}
            self._send_to_memory(drawn, fault="the drawn positions cannot be sent")
            yield self._drawn_handle
        finally:
            self._drop_handles([self._drawn_handle], fault="the drawn positions cannot be dropped")

    def _send_to_memory(self, kept: Mapping[int, bytes], *, fault: str) -> None:
        """Send bytes to the memory of the session by binary COPY, which appears in no log and no error message."""

        def copy_in(cursor: Cursor) -> None:
            with cursor.copy("COPY boltdp.inbox FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(COPY_HEADER)
                for handle, data in kept.items():
                    copy.write(struct.pack(">hiqi", 2, 8, handle, len(data)))  # two fields, each preceded by its length
                    copy.write(data)
                copy.write(b"\xff\xff")

        self._run_action(copy_in, fault)

    def _drop_handles(self, handles: Sequence[int], *, fault: str) -> None:
        if not self.closed:
            query: LiteralString = "SELECT boltdp.drop_state(handle) FROM pg_catalog.unnest($1::bigint[]) AS handle"
            self.ask(query, [handles], fault=fault)

    def begin(self, snapshot: str | None = None) -> None:
        """Begin a transaction with a snapshot of the rows, new or exported by another session, unless there is one."""
        if self._snapshot:
            return
        self._run_outside_transaction("BEGIN ISOLATION LEVEL REPEATABLE READ", _BEGIN_FAULT)
        try:
            if snapshot is not None:
                self._run_outside_transaction(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot), _BEGIN_FAULT)
            self._run_action(lambda _: self._configure_transaction(), _BEGIN_FAULT, user_path=None)
        except BaseException:
            self.rollback()
            raise
        self._snapshot, self._path = True, SAFE_SEARCH_PATH

    def open_same_snapshot(self) -> Session:
        """Open another session whose transaction has the same snapshot."""
        self.begin()
        ((snapshot,),) = self.ask("SELECT pg_catalog.pg_export_snapshot()", fault=_BEGIN_FAULT)
        other = Session(self._uri, memory=self.memory)
        try:
            other.begin(snapshot)
        except BaseException:
            other.close()
            raise
        return other

    def reserve(self, size: int) -> None:
        """Bind the session to its backend, and choose temp_buffers for temporary tables of this size.

        At most `memory` and the size of shared_buffers. The server allows it only before the first temporary table of
        a backend, which keeps its buffers; so those of a pool are never fewer than usual.
        """
        fault = "the rows cannot be prepared"
        if self.moved:
            raise DataError(f"{fault}: {TRANSACTION_POOL}", hint=POOL_HINT)
        ((self._kept_since, usual, shared, block, first),) = self.ask(
            "SELECT a.backend_start, t.setting::bigint, s.setting::bigint,"
            " pg_catalog.current_setting('block_size')::bigint,"
            " pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.=) 0::pg_catalog.oid"
            " FROM pg_catalog.pg_stat_activity a, pg_catalog.pg_settings t, pg_catalog.pg_settings s"
            " WHERE a.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()"
            " AND t.name OPERATOR(pg_catalog.=) 'temp_buffers' AND s.name OPERATOR(pg_catalog.=) 'shared_buffers'",
            fault=fault,
        )
        if first:
            buffers = min(max(usual, min(shared, size // block + 1)), self.memory // block)
            self._buffers = str(max(usual, buffers) if self.pooled else buffers)
            self.ask(SET_LOCAL, ["temp_buffers", self._buffers], fault=fault)

    def vacuum(self, table: sql.Identifier) -> None:
        """Set the visibility map of a table, which speeds up scans, if that is possible."""
        with suppress(DataError):
            self._run_outside_transaction(sql.SQL("VACUUM {}").format(table), "the rows cannot be vacuumed")

    def commit(self) -> None:
        if self._snapshot:
            self._snapshot = False
            self._run_outside_transaction("COMMIT", "the transaction cannot be ended")

    def rollback(self) -> None:
        self._snapshot = False
        # A rollback undoes changed settings and drops new states.
        self._path = self.kept_state = None
        if not self.closed:
            self._run_outside_transaction("ROLLBACK", "the transaction cannot be undone")

    def close(self) -> None:
        """Close the connection; behind a pooler, whose connection stays open, drop our states and tables first."""
        if self._kept_since is not None and not self.closed and self.pooled:
            with suppress(DataError):
                self.rollback()
                self.ask("DISCARD TEMP", fault="the prepared rows cannot be dropped")
        self._connection.close()

    @property
    def pooled(self) -> bool:
        """Whether a pooler is between this process and the server, which then has another process number."""
        return self._connection.info.backend_pid != self._backend

    def _shares_backends(self) -> bool:
        """Whether another connection gets the server process of this one, as a transaction pool lends it."""
        if self.moved or not self.pooled:
            return self.moved
        try:
            with connect(self._uri, wait=PROBE_SECONDS) as other:
                ((backend,),) = other.execute("SELECT pg_catalog.pg_backend_pid()").fetchall()
        except psycopg.Error:  # a session pool has no other to spare
            return False
        return bool(backend == self._backend)

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def find_missing_requirement(self) -> str | None:
        """Return the requirement of in-server passes that the server lacks, or None."""
        answer = self.ask(
            "SELECT e.extversion, e.extowner OPERATOR(pg_catalog.=) n.nspowner OR EXISTS (SELECT"
            " FROM pg_catalog.pg_roles r WHERE r.oid OPERATOR(pg_catalog.=) n.nspowner AND r.rolsuper),"
            " pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMP'),"
            " pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only')::boolean"
            " FROM (SELECT) AS always LEFT JOIN pg_catalog.pg_extension e ON e.extname OPERATOR(pg_catalog.=) 'boltdp'"
            " LEFT JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace",
            fault="the server cannot be asked what it can do",
        )
        version, own_schema, may_make_tables, read_only = answer[0]
        if version is None:
            return "the extension is not there; CREATE EXTENSION boltdp makes it, once it is installed"
        problem = None if may_make_tables else "the role may not make temporary tables"
        if read_only:
            problem = "the session is read-only, so no temporary table can be made"
        if self._shares_backends():
            problem = TRANSACTION_POOL
        if not own_schema:
            problem = "the schema boltdp belongs to another role than the extension, which could change what is run"
        return explain_unusable_version(version) or problem

    def describe_fields(self, source: Composed, *, user_path: bool = False) -> list[Field]:
        """Return the columns of a source, which the server describes without reading a row."""

        def describe(cursor: Cursor) -> list[Field]:
            result = cursor.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(source)).pgresult
            assert result is not None
            names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
            return [
                Field(name, result.ftype(i), result.fmod(i), result.ftable(i), result.ftablecol(i))
                for i, name in enumerate(names)
            ]

        return self._run_action(describe, "the rows cannot be read", user_path=user_path)

    def hides_rows(self, source: Composed, *, user_path: bool = False) -> bool:
        """Whether policies of row-level security apply to this role in a source that it may read."""

        def is_refused(cursor: Cursor) -> bool:
            try:
                with self._connection.transaction():  # behind a savepoint
                    # It is refused, before a row is read, if a policy would apply.
                    cursor.execute(SET_LOCAL, ["row_security", "off"])
                    cursor.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(source))
                    raise psycopg.Rollback  # of the setting
            except psycopg.errors.InsufficientPrivilege:
                return True
            return False

        return self._run_action(is_refused, "the rows cannot be read", user_path=user_path)


def connect(uri: str, *, wait: float | None = None, **options: Any) -> psycopg.Connection[Any]:
    """Connect to PostgreSQL, and wait for a first answer, since a pooler accepts connections before it has one."""
    wait = CONNECT_SECONDS if wait is None else wait
    if "connect_timeout" not in conninfo_to_dict(uri):
        options["connect_timeout"] = max(2, round(wait))
    connection = psycopg.connect(uri, **options)
    try:
        connection.pgconn.send_query(b"SELECT 1")
        connection.pgconn.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            if not selector.select(wait):
                raise NoFreeConnection(f"the pooler had no free connection within {wait:g} seconds")
        while connection.pgconn.get_result() is not None:
            pass
    except BaseException:
        connection.close()
        raise
    return connection


class NoFreeConnection(psycopg.OperationalError):
    """A pooler has given no connection within the time that we wait for one."""

    hint = "a training needs a connection for its rows, one for each slice, and one for a ledger in the database"


def _execute_and_fetch(cursor: Cursor, query: LiteralString | Composed, values: Sequence[Any] = ()) -> list[Any]:
    cursor.execute(query, values, binary=True)
    return cursor.fetchall() if cursor.description is not None else []


def _run_quoting_no_row(action: Callable[[], T], fault: str, *, prepared_only: bool = False) -> T:
    """Return the result of an action on the server; raises an error that quotes no row if it fails."""
    try:
        return action()
    except psycopg.Error as error:
        reason, hint = _explain_error(error, prepared_only=prepared_only)
    # Raised outside the handler, so that the server's exception is not its context.
    raise DataError(f"{fault}: {reason}", hint=hint)


def explain_unreachable(error: psycopg.Error) -> str:
    """Return why PostgreSQL cannot be reached; part of a password with an @, parsed as a host name, is removed.

    >>> explain_unreachable(psycopg.OperationalError("failed to resolve host 'ret@host': unknown"))
    "failed to resolve host 'host': unknown"
    """
    text = str(error).strip().splitlines()
    if isinstance(error, psycopg.OperationalError) and text:
        return re.sub(r"""(['\"])[^'\"]*@""", r"\1", text[0].strip())
    return type(error).__name__  # the message would quote an address that cannot be parsed


def _explain_error(error: psycopg.Error, *, prepared_only: bool) -> tuple[str, str | None]:
    """Return the reason of a server error without quoting a row, and a hint if there is one."""
    if isinstance(error, NoFreeConnection):
        return str(error), error.hint
    state = error.sqlstate
    # Between two statements the server's last message is lost.
    if (state or "").startswith("57P") or (state is None and "server closed the connection" in str(error)):
        return "the server ended the connection", SESSION_ENDED_HINT
    if state is None:
        return explain_unreachable(error), None
    if state == "57014":
        return "the statement was cancelled", None
    if state == "53100":
        return "the server's disk is full", "temp_tablespaces names another place for temporary tables"
    if prepared_only or state[:2] in _SAFE_CLASSES:
        return error.diag.message_primary or type(error).__name__, None
    return f"the server reports {type(error).__name__} ({state})", None
