"""One connection to PostgreSQL, set up for training: statements, COPY in both directions, and faults without values.

PostgreSQL's messages may quote rows, so only those that cannot are passed on, and its exceptions are not chained.

Whoever may create something in a schema of the search path can make a function or an operator that fits better than
the server's own. So every function, operator, type and collation in our SQL is named with its schema, and only
statements that contain the user's own query are run with the user's search path.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg
from psycopg import sql

from boltdp._arrays import Integers
from boltdp.engines.postgres.build import why_unusable
from boltdp.engines.postgres.declared_schema import Field
from boltdp.errors import DataError
from boltdp.schema.source_columns import BATCH_ROWS

if TYPE_CHECKING:
    from typing_extensions import LiteralString

T = TypeVar("T")
Composed: TypeAlias = sql.Composed | sql.SQL

#: jit and parallel plans have nothing to gain; scans that join others midway would change the order of rows. An index
#: that has all the columns asked for would make it that of their values, which are private.
SESSION = {
    "application_name": "boltdp",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "synchronize_seqscans": "off",
    "enable_indexonlyscan": "off",
    "DateStyle": "ISO",
}

#: Memory of the session, unless another number is given: bytes.
MEMORY = 256 * 2**20
#: How often a server at work looks whether its client is still there (PostgreSQL 14 and later).
CHECK_INTERVAL = "1s"

#: What becomes of a training whose session has ended. The files of a backend that crashed go as the server restarts,
#: the entry in pg_class when autovacuum meets it or another session makes temporary tables in its slot.
ENDED = (
    "nothing was released; the server drops the prepared rows with the session, or as it restarts after a crash, which "
    "may leave an entry without rows in its catalogue until the session's slot is used again"
)

#: Where the server looks for names, but for those in the user's own query.
SAFE_PATH = "pg_catalog, pg_temp"

#: SQLSTATE classes whose messages are about the statement, the connection or the machine, never about a value.
_SAFE_CLASSES = ("08", "25", "28", "3D", "3F", "42", "53", "55", "57", "58")


class Session:
    """One connection, set up for training; faults come in words that quote no row."""

    def __init__(self, uri: str, *, memory: int = MEMORY) -> None:
        self.memory = memory  #: bytes that temporary tables, a sort or drawn rows may take, each
        self.handle = secrets.randbits(63)  #: under which the server keeps a state
        self.known: bytes | None = None  #: what it keeps there
        self._handles = [self.handle]  #: of all states that are lent at once
        self._drawn_handle = secrets.randbits(63)  #: of drawn positions
        self._uri = uri
        self._connection = _attempt(
            lambda: psycopg.connect(uri, autocommit=True, prepare_threshold=None),
            "PostgreSQL cannot be reached",
        )
        self._copying: Generator[list[tuple[Any, ...]], None, None] = _nothing()
        self._snapshot = False
        self._path: str | None = None  #: the search path as it is, if that is known
        fault = "the session cannot be set up"
        answer = _attempt(lambda: self._execute("SELECT pg_catalog.current_setting('search_path')"), fault)
        self._users_path = str(answer[0][0])
        for name, value in SESSION.items():
            self.ask("SELECT pg_catalog.set_config($1, $2, false)", [name, value], fault=fault)
        self._limit_memory(fault)
        # Some platforms cannot look whether a client is still there, and refuse it.
        with suppress(DataError):
            watched = ["client_connection_check_interval", CHECK_INTERVAL]
            self.ask("SELECT pg_catalog.set_config($1, $2, false)", watched, fault=fault)

    def _limit_memory(self, fault: str) -> None:
        """Let a sort have no more memory than the session may, where the server would let it."""
        self.ask(
            "SELECT pg_catalog.set_config(name, $1::pg_catalog.text, false) FROM pg_catalog.pg_settings"
            " WHERE name OPERATOR(pg_catalog.=) ANY (ARRAY['work_mem', 'maintenance_work_mem'])"
            " AND setting::bigint OPERATOR(pg_catalog.>) $1::pg_catalog.text::bigint",
            [str(self.memory // 1024)],
            fault=fault,
        )

    def ask(
        self,
        query: LiteralString | Composed,
        values: Sequence[Any] = (),
        *,
        fault: str,
        ours: bool = False,
        theirs: bool = False,
    ) -> list[Any]:
        """Run a statement and return its rows, in binary.

        `ours` says that it reads nothing but prepared rows, `theirs` that names in it are the user's to resolve.
        """

        def run() -> list[Any]:
            # A COPY that nobody reads to its end would keep the connection busy for ever.
            self._copying.close()
            self._take_path(theirs=theirs)
            return self._execute(query, values)

        return _attempt(run, fault, ours=ours)

    def _control(self, statement: LiteralString | Composed, fault: str) -> None:
        """Run a statement about the transaction, which may have failed or not yet begun: nothing comes before it."""

        def run() -> None:
            self._copying.close()
            self._execute(statement)

        _attempt(run, fault)

    def _take_path(self, *, theirs: bool) -> None:
        path = self._users_path if theirs else SAFE_PATH
        if path != self._path:
            self._path = None
            self._execute("SELECT pg_catalog.set_config('search_path', $1, false)", [path])
            self._path = path

    def _execute(self, query: LiteralString | Composed, values: Sequence[Any] = ()) -> list[Any]:
        with psycopg.RawCursor(self._connection) as cursor:
            cursor.execute(query, values, binary=True)
            return cursor.fetchall() if cursor.description is not None else []

    def stream(
        self, select: Composed, types: Sequence[str], *, theirs: bool = False
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a query by binary COPY, at most BATCH_ROWS at a time; another statement ends it."""
        self._copying.close()
        self._copying = self._copy(select, types, theirs=theirs)
        return self._copying

    def _copy(
        self, select: Composed, types: Sequence[str], *, theirs: bool
    ) -> Generator[list[tuple[Any, ...]], None, None]:
        fault = "the rows cannot be read"
        statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT BINARY)").format(select)
        # Before the savepoint, so that it is not undone with it.
        _attempt(lambda: self._take_path(theirs=theirs), fault)
        with self._undone_alone(fault), psycopg.RawCursor(self._connection) as cursor:
            manager = cursor.copy(statement)
            copy = _attempt(manager.__enter__, fault)
            try:
                copy.set_types(types)
                rows = copy.rows()
                while gathered := _attempt(lambda: list(islice(rows, BATCH_ROWS)), fault):
                    yield gathered
            except BaseException as stop:
                caught = stop
                _attempt(lambda: manager.__exit__(type(caught), caught, None), fault)
                raise
            _attempt(lambda: manager.__exit__(None, None, None), fault)

    @contextmanager
    def _undone_alone(self, fault: str) -> Iterator[None]:
        """Something that may be given up midway, which must not abort the transaction that it is in, if any."""
        if not self._snapshot:
            yield
            return
        _attempt(lambda: self._execute("SAVEPOINT boltdp"), fault)
        try:
            yield
        except BaseException:
            if not self.closed:
                _attempt(lambda: self._execute("ROLLBACK TO SAVEPOINT boltdp"), fault)
            raise
        finally:
            if not self.closed:
                _attempt(lambda: self._execute("RELEASE SAVEPOINT boltdp"), fault)

    def lend(self, *states: bytes) -> list[int]:
        """Have the server keep each state under a handle of its own, until `forget`; the first is `handle`."""
        self.known = None
        self._handles += [secrets.randbits(63) for _ in range(len(states) - len(self._handles))]
        handles = self._handles[: len(states)]
        self._keep(dict(zip(handles, states, strict=True)), fault="a state cannot be sent")
        self.known = states[0] if len(states) == 1 else None
        return handles

    def forget(self) -> None:
        """Drop all states that are kept; where the session has ended, the server has done so."""
        self.known = None
        self._drop(self._handles, fault="a state cannot be dropped")

    @contextmanager
    def drawn(self, positions: Integers) -> Iterator[int]:
        """Have the server keep drawn positions, as secret as the rows, for a while; gives their handle."""
        try:
            drawn = {self._drawn_handle: positions.astype(">i8").tobytes()}
            self._keep(drawn, fault="the drawn positions cannot be sent")
            yield self._drawn_handle
        finally:
            self._drop([self._drawn_handle], fault="the drawn positions cannot be dropped")

    def _keep(self, kept: Mapping[int, bytes], *, fault: str) -> None:
        """Send bytes to the memory of the session, by binary COPY: no log shows them, and no error quotes them."""

        def run() -> None:
            self._copying.close()
            self._take_path(theirs=False)
            with (
                psycopg.RawCursor(self._connection) as cursor,
                cursor.copy("COPY boltdp.inbox FROM STDIN (FORMAT BINARY)") as copy,
            ):
                copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
                for handle, data in kept.items():
                    copy.write(struct.pack(">hiqi", 2, 8, handle, len(data)))  # two fields, each after its length
                    copy.write(data)
                copy.write(b"\xff\xff")

        _attempt(run, fault)

    def _drop(self, handles: Sequence[int], *, fault: str) -> None:
        if not self.closed:
            query: LiteralString = "SELECT boltdp.drop_state(handle) FROM pg_catalog.unnest($1::bigint[]) AS handle"
            self.ask(query, [handles], fault=fault)

    def begin(self) -> None:
        """From here to the end of the transaction, see the rows as they are now."""
        if not self._snapshot:
            self._control("BEGIN ISOLATION LEVEL REPEATABLE READ", "a transaction cannot be begun")
            self._snapshot = True

    def beside(self) -> Session:
        """Another session, whose transaction has begun and sees the rows as the one of this session does."""
        self.begin()
        fault = "a transaction cannot be begun"
        ((snapshot,),) = self.ask("SELECT pg_catalog.pg_export_snapshot()", fault=fault)
        other = Session(self._uri, memory=self.memory)
        try:
            other.begin()
            other._control(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)), fault)
        except BaseException:
            other.close()
            raise
        return other

    def reserve(self, size: int) -> None:
        """Let temporary tables of this many bytes stay in memory, up to `memory` and what the server's own cache has.

        It can be set only before the session's first temporary table; the memory is the session's, and goes with it.
        """
        self.ask(
            "SELECT pg_catalog.set_config('temp_buffers', LEAST(GREATEST(t.setting::bigint, LEAST(s.setting::bigint,"
            " ($1::bigint OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::bigint)"
            " OPERATOR(pg_catalog.+) 1)), $2::bigint OPERATOR(pg_catalog./)"
            " pg_catalog.current_setting('block_size')::bigint)::pg_catalog.text, false)"
            " FROM pg_catalog.pg_settings t, pg_catalog.pg_settings s"
            " WHERE t.name OPERATOR(pg_catalog.=) 'temp_buffers' AND s.name OPERATOR(pg_catalog.=) 'shared_buffers'"
            " AND pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.=) 0::pg_catalog.oid",
            [size, self.memory],
            fault="the session cannot be set up",
        )

    def commit(self) -> None:
        if self._snapshot:
            self._snapshot = False
            self._control("COMMIT", "the transaction cannot be ended")

    def rollback(self) -> None:
        """Undo the transaction, if the connection still stands."""
        self._snapshot = False
        # The server forgets with it what it was set to and what was kept since it began.
        self._path = self.known = None
        if not self._connection.closed:
            self._control("ROLLBACK", "the transaction cannot be undone")

    def close(self) -> None:
        self._connection.close()

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def missing(self) -> str | None:
        """What the server lacks for running the passes, if anything."""
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
        unusable = why_unusable(version)
        if unusable is not None:
            return unusable
        if not own_schema:
            return "the schema boltdp belongs to another role than the extension, which could change what is run"
        if read_only:
            return "the session is read-only, so no temporary table can be made"
        if not may_make_tables:
            return "the role may not make temporary tables"
        return None

    def fields(self, source: Composed, *, theirs: bool = False) -> list[Field]:
        """The columns of a source, as the server describes them without reading a row."""

        def run() -> list[Field]:
            self._copying.close()
            self._take_path(theirs=theirs)
            with psycopg.RawCursor(self._connection) as cursor:
                cursor.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(source))
                result = cursor.pgresult
                assert result is not None
                names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
                return [
                    Field(name, result.ftype(i), result.fmod(i), result.ftable(i), result.ftablecol(i))
                    for i, name in enumerate(names)
                ]

        return _attempt(run, "the rows cannot be read")


def _nothing() -> Generator[list[tuple[Any, ...]], None, None]:
    yield from ()


def _attempt(action: Callable[[], T], fault: str, *, ours: bool = False) -> T:
    """Do something with the server; if it fails, say so in words that quote no row and leave no trace of its own."""
    try:
        return action()
    except psycopg.Error as error:
        reason, hint = _reason(error, ours=ours)
    # Raised here, outside the handler, so that the server's exception is not even its context.
    raise DataError(f"{fault}: {reason}", hint=hint)


def unreachable(error: psycopg.Error) -> str:
    """Why there is no connection, in words without a password: one with an @ is taken for the name of a host.

    >>> unreachable(psycopg.OperationalError("failed to resolve host 'ret@host': unknown"))
    "failed to resolve host 'host': unknown"
    """
    text = str(error).strip().splitlines()
    if isinstance(error, psycopg.OperationalError) and text:
        return re.sub(r"""(['\"])[^'\"]*@""", r"\1", text[0].strip())
    return type(error).__name__  # of an address that cannot be read, which is quoted


def _reason(error: psycopg.Error, *, ours: bool) -> tuple[str, str | None]:
    state = error.sqlstate
    # Between two statements the server's last words get lost.
    if (state or "").startswith("57P") or (state is None and "server closed the connection" in str(error)):
        return "the server ended the connection", ENDED
    if state is None:
        return unreachable(error), None
    if state == "57014":
        return "the statement was cancelled", None
    if state == "53100":
        return "the server's disk is full", "temp_tablespaces names another place for temporary tables"
    if ours or state[:2] in _SAFE_CLASSES:
        return error.diag.message_primary or type(error).__name__, None
    return f"the server reports {type(error).__name__} ({state})", None
