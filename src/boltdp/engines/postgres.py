"""Rows in PostgreSQL, which stay there: a pass is one statement, an aggregate of the extension around the kernel.

Prepare once: encode, project, permute, and write packed rows into a temporary table. It is private to the session,
not logged, and the server drops it however the session ends. Then one statement a pass.

The un-noised models go from pass to pass in the memory of the session (`boltdp.keep`) and come back as results. They
get there by COPY into a view that keeps them and stores nothing (`boltdp.inbox`). Statements have no values, and
their parameters are public: a server that logs every statement with its parameters logs nothing private.

Without the extension, or where no temporary table may be made, the rows are streamed once to this process by
COPY and spooled here; the bits are the same.

PostgreSQL's messages may quote rows, so only those that cannot are passed on, and its exceptions are not chained.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg import sql

from boltdp.data.encode import OnBadRow, projection_matrix
from boltdp.data.schema import Categorical, Matcher, Numbers, Numeric, Schema, Vector
from boltdp.engines.base import (
    BATCH_ROWS,
    ColumnType,
    Kind,
    Prepared,
    Progress,
    check_columns,
    encoded,
    joined_positions,
    plain,
    streamed_moments,
)
from boltdp.engines.spool import BUCKET_BYTES, spool
from boltdp.errors import DataError, ParameterError
from boltdp.kernel import State
from boltdp.kernel.objective import Sums
from boltdp.postgres.declared import Field, declarations
from boltdp.postgres.extension import VERSION
from boltdp.privacy.losses import Loss

if TYPE_CHECKING:
    from typing_extensions import LiteralString

T = TypeVar("T")
Where = Literal["auto", "server", "client"]
Layout = Literal["packed", "rows"]
Shuffle = Literal["seeded", "random"]
Composed = sql.Composed | sql.SQL

#: A tuple as large as fits on a page, with room for its header and the array's.
TUPLE_BYTES = 8160 - 96

#: jit and parallel plans have nothing to gain; scans that join others midway would change the order of rows.
SESSION = {
    "application_name": "boltdp",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "synchronize_seqscans": "off",
    "DateStyle": "ISO",
}

_INTEGERS = ("int2", "int4", "int8")
_NUMBERS = (*_INTEGERS, "float4", "float8", "numeric")
_VECTORS = ("vector", "halfvec")  # pgvector's

#: SQLSTATE classes whose messages are about the statement, the connection or the machine, never about a value.
_SAFE_CLASSES = ("08", "25", "28", "3D", "3F", "42", "53", "55", "57", "58")


class PostgresEngine:
    """A table, view or query of a PostgreSQL database.

    `where` says where the passes are run: in the server, which needs the extension and the right to make temporary
    tables; in this process, to which the rows are streamed; or "auto", in the server if it can be. `layout` is how
    the server keeps the prepared rows: packed to blocks, or a row a tuple. `shuffle` is the permutation that all
    engines share, given by a seed, or the server's ORDER BY random(), which no one can repeat.

    The promise is about rows at their places. A table is read as it is stored; a query, or the one inside a view, must
    give one row for each person's row and nothing of others', and choose (WHERE, LIMIT, joins) and order (ORDER BY,
    windows) rows by public columns only. So must a table that is partitioned or clustered: by a public column.
    """

    def __init__(
        self,
        uri: str,
        *,
        table: str | None = None,
        query: str | None = None,
        where: Where = "auto",
        layout: Layout = "packed",
        shuffle: Shuffle = "seeded",
        spool: str | Path | None = None,
    ) -> None:
        if (table is None) == (query is None):
            raise ParameterError("give either table or query to say which rows of the database to use")
        for name, value, allowed in (
            ("where", where, Where),
            ("layout", layout, Layout),
            ("shuffle", shuffle, Shuffle),
        ):
            if value not in get_args(allowed):
                raise ParameterError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}")
        self.layout = layout
        self.shuffle = shuffle
        self.spool = spool  #: directory for rows that are streamed, see `boltdp.engines.spool`
        self.bucket_bytes = BUCKET_BYTES  #: streamed rows above this are spooled to a file
        self._session = Session(uri)
        self._columns: dict[str, _Column] | None = None
        self._count: int | None = None
        try:
            self._source = _query_source(query) if query is not None else self._session.find_table(str(table))
            self.in_server = self._decide(where)
        except BaseException:
            self.close()
            raise

    def _decide(self, where: Where) -> bool:
        missing = None if where == "client" else self._session.missing()
        if where == "server" and missing is not None:
            raise DataError(f"the passes cannot be run in the server: {missing}")
        in_server = where != "client" and missing is None
        if self.shuffle == "random" and not in_server:
            raise ParameterError("shuffle 'random' is the server's; rows that are streamed need 'seeded'")
        return in_server

    def count(self) -> int:
        """Number of rows; from here until the rows are prepared, other sessions' changes are not seen."""
        if self._count is None:
            self._session.begin()
            answer = self._session.ask(
                sql.SQL("SELECT count(*) FROM {}").format(self._source), fault="the rows cannot be counted"
            )
            self._count = int(answer[0][0])
        return self._count

    def columns(self) -> dict[str, ColumnType]:
        """Names and types of the columns, with what the database declares of them, and nothing about their values."""
        return {name: column.type for name, column in self._described().items()}

    def batches(self, columns: Sequence[str], *, parse: Mapping[str, Kind] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows in order, only the columns asked for, by binary COPY; columns parsed as numbers come as floats."""
        described = self._described()
        numbers = [name for name in columns if (parse or {}).get(name) == "number"]
        others = [name for name in columns if name not in numbers]
        fields = [described[name].cell() for name in others]
        if numbers:
            # One field of fixed length: far quicker to read than one a column.
            floats = [sql.SQL("COALESCE({}, 'NaN')").format(described[name].number()) for name in numbers]
            fields.append(sql.SQL("ARRAY[{}]::float8[]").format(sql.SQL(", ").join(floats)))
        select = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(fields), self._source)
        types = [described[name].wire for name in others] + ["bytea"] * bool(numbers)
        for rows in self._session.stream(select, types):
            cells = list(zip(*rows, strict=True))
            arrays = {name: described[name].to_arrow(cells[i]) for i, name in enumerate(others)}
            if numbers:
                block = _read_arrays(cells[-1], len(numbers))
                arrays.update({name: pa.array(np.ascontiguousarray(block[:, i])) for i, name in enumerate(numbers)})
            yield pa.RecordBatch.from_pydict({name: arrays[name] for name in columns})

    def moments(
        self, schema: Schema, *, radius: float, on_bad_row: OnBadRow = "neutral", progress: Progress | None = None
    ) -> npt.NDArray[np.int64]:
        """Exact sums of the encoded features and of their squares: added up in the server, or streamed."""
        check_columns(schema, self.columns())
        rows = self.count()
        try:
            if not self.in_server or on_bad_row != "neutral":
                return streamed_moments(self, schema, radius=radius, on_bad_row=on_bad_row, progress=progress)
            packed = _packed_rows(plain(schema), self._described())
            query = sql.SQL("SELECT boltdp.moments({}, {}::float8) FROM {}").format(
                packed.text, _bind(packed.values, radius), self._source
            )
            (sums,) = self._session.ask(query, packed.values, fault="the rows cannot be added up")[0]
        except BaseException:
            self._session.rollback()
            self._count = None
            raise
        if progress is not None:
            progress(rows)
        n = schema.encoded_dims - schema.intercept
        return np.array([0] * (2 * n) if sums is None else sums, np.int64).reshape(2, n)

    def prepare(
        self,
        schema: Schema,
        *,
        seed: int,
        on_bad_row: OnBadRow = "neutral",
        progress: Progress | None = None,
    ) -> Prepared:
        """Encode, project and permute the rows as they are now: in the server, or streamed to this process."""
        check_columns(schema, self.columns())
        rows = self.count()
        prepared: Prepared
        try:
            # Reporting a bad row is for data that is not private, and needs the encoder that can.
            if self.in_server and on_bad_row == "neutral":
                table = PreparedTable.create(
                    self._session,
                    _placed(schema, self._described(), self._source, rows=rows, seed=seed, shuffle=self.shuffle),
                    rows=rows,
                    dims=schema.dims,
                    layout=self.layout,
                    shuffle=self.shuffle,
                )
                if progress is not None:
                    progress(rows)
                prepared = table
            else:
                prepared = spool(
                    encoded(self, schema, on_bad_row=on_bad_row),
                    rows=rows,
                    width=1 + schema.dims,
                    seed=seed,
                    directory=self.spool,
                    bucket_bytes=self.bucket_bytes,
                    progress=progress,
                )
            self._session.commit()
            if isinstance(prepared, PreparedTable):
                prepared.settle()
        except BaseException:
            self._session.rollback()
            raise
        finally:
            self._count = None
        return prepared

    def close(self) -> None:
        """End the session, and with it everything it has made."""
        self._session.close()

    def __enter__(self) -> PostgresEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _described(self) -> dict[str, _Column]:
        if self._columns is None:
            self._columns = self._session.describe(self._source)
        return self._columns


class Session:
    """One connection, set up for training; faults are told in words that quote no row."""

    def __init__(self, uri: str) -> None:
        self.handle = secrets.randbits(63)  #: under which the server keeps a state
        self.known: bytes | None = None  #: what it keeps there
        self._connection = _attempt(
            lambda: psycopg.connect(uri, autocommit=True, prepare_threshold=None),
            "PostgreSQL cannot be reached",
        )
        self._copying: Generator[list[tuple[Any, ...]], None, None] = _nothing()
        for name, value in SESSION.items():
            self.ask("SELECT set_config($1, $2, false)", [name, value], fault="the session cannot be set up")
        self._snapshot = False

    def ask(
        self, query: LiteralString | Composed, values: Sequence[Any] = (), *, fault: str, ours: bool = False
    ) -> list[Any]:
        """Run a statement and return its rows, in binary; `ours` says that it reads nothing but prepared rows."""

        def run() -> list[Any]:
            # A COPY that nobody reads to its end would keep the connection busy for ever.
            self._copying.close()
            with psycopg.RawCursor(self._connection) as cursor:
                cursor.execute(query, values, binary=True)
                return cursor.fetchall() if cursor.description is not None else []

        return _attempt(run, fault, ours=ours)

    def stream(self, select: Composed, types: Sequence[str]) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a query by binary COPY, at most BATCH_ROWS at a time; another statement ends it."""
        self._copying.close()
        self._copying = self._copy(select, types)
        return self._copying

    def _copy(self, select: Composed, types: Sequence[str]) -> Generator[list[tuple[Any, ...]], None, None]:
        fault = "the rows cannot be read"
        statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT BINARY)").format(select)
        with psycopg.RawCursor(self._connection) as cursor:
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

    def send(self, table: sql.Identifier, positions: Iterable[npt.NDArray[np.int64]]) -> int:
        """Fill a table (ordinal, position) by binary COPY, which no log shows; returns how many there are."""
        form = np.dtype([("fields", ">i2"), ("l1", ">i4"), ("ordinal", ">i8"), ("l2", ">i4"), ("position", ">i8")])
        done = 0

        def tuples() -> Iterator[bytes]:
            nonlocal done
            for part in positions:
                packed = np.empty(len(part), form)
                packed["fields"], packed["l1"], packed["l2"] = 2, 8, 8
                packed["ordinal"], packed["position"] = np.arange(done, done + len(part)), part
                done += len(part)
                yield packed.tobytes()

        self._fill(table, tuples(), fault="the drawn positions cannot be sent")
        return done

    def lend(self, state: bytes) -> None:
        """Have the server keep a state under the handle, in the place of what is there, until `forget`."""
        self.known = None
        header = struct.pack(">hiqi", 2, 8, self.handle, len(state))  # two fields, each after its length
        self._fill(sql.Identifier("boltdp", "inbox"), [header, state], fault="a state cannot be sent")
        self.known = state

    def forget(self) -> None:
        """Drop what is kept under the handle; where the session has ended, the server has done so."""
        self.known = None
        if not self.closed:
            self.ask("SELECT boltdp.forget($1)", [self.handle], fault="a state cannot be dropped")

    def _fill(self, target: sql.Identifier, parts: Iterable[bytes], *, fault: str) -> None:
        """COPY tuples in their binary form, which not even the context of an error quotes."""

        def run() -> None:
            self._copying.close()
            statement = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(target)
            with psycopg.RawCursor(self._connection) as cursor, cursor.copy(statement) as copy:
                copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
                for part in parts:
                    copy.write(part)
                copy.write(b"\xff\xff")

        _attempt(run, fault)

    def begin(self) -> None:
        """From here to the end of the transaction, see the rows as they are now."""
        if not self._snapshot:
            self.ask("BEGIN ISOLATION LEVEL REPEATABLE READ", fault="a transaction cannot be begun")
            self._snapshot = True

    def reserve(self, size: int) -> None:
        """Let temporary tables of so many bytes stay in memory, up to as much as the server's own cache may have.

        It can be set only before the session's first temporary table; the memory is the session's, and goes with it.
        """
        self.ask(
            "SELECT set_config('temp_buffers', greatest(t.setting::bigint,"
            " least(s.setting::bigint, $1::bigint / current_setting('block_size')::bigint + 1))::text, false)"
            " FROM pg_catalog.pg_settings t, pg_catalog.pg_settings s"
            " WHERE t.name = 'temp_buffers' AND s.name = 'shared_buffers' AND pg_my_temp_schema() = 0",
            [size],
            fault="the session cannot be set up",
        )

    def commit(self) -> None:
        """End the transaction."""
        if self._snapshot:
            self._snapshot = False
            self.ask("COMMIT", fault="the transaction cannot be ended")

    def rollback(self) -> None:
        """Undo the transaction, if the connection still stands."""
        self._snapshot = False
        if not self._connection.closed:
            self.ask("ROLLBACK", fault="the transaction cannot be undone")

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    @property
    def closed(self) -> bool:
        """Whether the session has ended, or was ended by the server."""
        return self._connection.closed

    def missing(self) -> str | None:
        """What the server lacks for running the passes, if anything."""
        answer = self.ask(
            "SELECT (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'boltdp'),"
            " has_database_privilege(current_database(), 'TEMP'),"
            " pg_is_in_recovery() OR current_setting('transaction_read_only')::bool",
            fault="the server cannot be asked what it can do",
        )
        version, may_make_tables, read_only = answer[0]
        if version is None:
            return "the extension is not there; CREATE EXTENSION boltdp makes it, once it is installed"
        if version != VERSION:
            return f"the extension must have version {VERSION}, it has {version}"
        if read_only:
            return "the session is read-only, so no temporary table can be made"
        if not may_make_tables:
            return "the role may not make temporary tables"
        return None

    def find_table(self, name: str) -> Composed:
        """A table or view by its name, with or without a schema. Names are taken as they are: dots, quotes, case."""
        found = self.ask(
            "SELECT nspname, relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = relnamespace"
            " WHERE relkind IN ('r', 'v', 'm', 'p', 'f')"
            " AND ((relname::text = $1::text AND pg_table_is_visible(c.oid))"
            " OR nspname::text || '.' || relname::text = $1::text)",
            [name],
            fault="the table cannot be looked up",
        )
        if len(found) != 1:
            raise DataError(
                f"the database must have one table or view named {name!r}, it has {len(found) or 'none'}",
                hint="names are as PostgreSQL keeps them: lower case unless quoted when made, and schema.table "
                "outside the search path",
            )
        return sql.SQL("{} AS source").format(sql.Identifier(*found[0]))

    def describe(self, source: Composed) -> dict[str, _Column]:
        """The columns of a source."""

        def run() -> list[Field]:
            with psycopg.RawCursor(self._connection) as cursor:
                cursor.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(source))
                result = cursor.pgresult
                assert result is not None
                names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
                return [
                    Field(name, result.ftype(i), result.fmod(i), result.ftable(i), result.ftablecol(i))
                    for i, name in enumerate(names)
                ]

        fields = _attempt(run, "the rows cannot be read")
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise DataError(f"the columns of the data must have different names, got {twice!r} more than once")
        fault = "the types of the columns cannot be looked up"
        kinds = {
            oid: (base, category, element)
            for oid, base, category, element in self.ask(
                # A domain is what it is based on.
                "WITH RECURSIVE base AS (SELECT oid AS given, * FROM pg_catalog.pg_type WHERE oid = ANY($1::oid[])"
                " UNION ALL SELECT given, t.* FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typbasetype"
                " WHERE b.typtype = 'd')"
                " SELECT given::bigint, b.typname::text, b.typcategory::text, e.typname::text FROM base b"
                " LEFT JOIN pg_catalog.pg_type e ON e.oid = b.typelem AND b.typcategory = 'A' WHERE b.typtype <> 'd'",
                [[field.type for field in fields]],
                fault=fault,
            )
        }
        declared = declarations(partial(self.ask, fault=fault), fields)
        columns = [_Column.of(field.name, *kinds[field.type], field.modifier) for field in fields]
        return {column.name: replace(column, type=declared[column.name].apply(column.type)) for column in columns}


class PreparedTable:
    """Packed rows in a temporary table, or those of them from one position to another."""

    rows_are_here = False

    def __init__(self, table: _Table, start: int, stop: int) -> None:
        self._table = table
        self._start = start
        self.rows = stop - start
        self.dims = table.dims

    @classmethod
    def create(
        cls, session: Session, placed: _Query, *, rows: int, dims: int, layout: Layout, shuffle: Shuffle
    ) -> PreparedTable:
        """Write rows, each with the place it has in the permuted order, into a new table."""
        table = _Table(session, rows=rows, dims=dims, layout=layout, shuffle=shuffle)
        table.write(placed)
        return cls(table, 0, rows)

    def settle(self) -> None:
        """Make the rows quicker to scan, once the transaction that wrote them has ended."""
        self._table.settle()

    def run_pass(self, states: Sequence[State], *, progress: Progress | None = None) -> None:
        """Feed every row once, in order, to every state: one statement."""
        self._check(states)
        self._table.run(states, self._start, self._start + self.rows)
        if progress is not None:
            progress(self.rows)

    def run_drawn(
        self,
        states: Sequence[State],
        positions: Iterable[npt.NDArray[np.int64]],
        *,
        progress: Progress | None = None,
    ) -> None:
        """Feed the rows at these positions, in this order, to every state: one statement. -1 stands for a marker."""
        self._check(states)
        parts = joined_positions(positions, start=self._start, stop=self._start + self.rows, size=BATCH_ROWS)
        drawn = self._table.run_drawn(states, parts)
        if progress is not None:
            progress(drawn)

    def derivative(
        self,
        loss: Loss,
        weights: npt.NDArray[np.float64],
        *,
        direction: npt.NDArray[np.float64] | None = None,
        positive: int = 1,
        classes: int = 2,
        progress: Progress | None = None,
    ) -> npt.NDArray[np.float64]:
        """Sum a derivative of the loss over all rows where they are."""
        sums = Sums(loss, weights, direction=direction, positive=positive, classes=classes)
        if weights.shape[1] != self.dims:
            raise ParameterError(f"rows must have 1 + {weights.shape[1]} columns, got {1 + self.dims}")
        self._table.sum(sums, self._start, self._start + self.rows)
        if progress is not None:
            progress(self.rows)
        return sums.value

    def reshuffle(self, seed: int) -> None:
        """Permute the current order again: position p takes the row now at source_position(p; seed)."""
        self._table.shuffle(self._start, self._start + self.rows, seed)

    def portion(self, start: int, stop: int) -> PreparedTable:
        """The rows at positions start to stop - 1, as a view: it shares the rows and needs no closing."""
        if not 0 <= start < stop <= self.rows:
            raise ParameterError(
                f"a portion must have 0 <= start < stop <= {self.rows}, got start={start} and stop={stop}"
            )
        return PreparedTable(self._table, self._start + start, self._start + stop)

    def blocks(self) -> Iterator[npt.NDArray[np.float32]]:
        """The packed rows in order, a block at a time; they leave the server."""
        return self._table.blocks(self._start, self._start + self.rows)

    def close(self) -> None:
        """Drop the table and the models."""
        self._table.drop()

    def __enter__(self) -> PreparedTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, states: Sequence[State]) -> None:
        for state in states:
            if state.dims != self.dims:
                raise ParameterError(f"rows must have 1 + {state.dims} columns, got {1 + self.dims}")


@dataclass(frozen=True)
class _Query:
    """A query, or a part of one, and the values bound to it."""

    text: Composed
    values: list[Any]


class _Table:
    """A temporary table of packed rows. CREATE TABLE AS appends, so a scan meets the rows in the order written."""

    def __init__(self, session: Session, *, rows: int, dims: int, layout: Layout, shuffle: Shuffle) -> None:
        self.dims = dims
        self._session = session
        self._rows = rows
        self._packed = layout == "packed"
        self._random = shuffle == "random"
        self._block_rows = max(1, TUPLE_BYTES // (4 * (1 + dims))) if self._packed else 1
        self._name = sql.Identifier(f"boltdp_{secrets.token_hex(8)}")

    def write(self, placed: _Query) -> None:
        """Make the table of `placed`: rows (place, packed) in any order."""
        if self._packed:
            # Each row finds its slot by its place, so it does not matter how the server gets a block's rows together.
            select = sql.SQL(
                "SELECT nth * {n} AS start, boltdp.pack(slot, packed) AS block FROM"
                " (SELECT place / {n} AS nth, (place % {n})::int AS slot, packed FROM ({placed}) AS placed) AS slotted"
                " GROUP BY nth ORDER BY nth"
            )
        else:
            select = sql.SQL(
                "SELECT packed[1] AS label, packed[2:] AS features, place AS start FROM ({placed}) AS placed"
                " ORDER BY place"
            )
        create = sql.SQL(
            "CREATE TEMPORARY TABLE {name} USING heap WITH (toast_tuple_target = 8160) AS {select}"
        ).format(name=self._name, select=select.format(n=sql.Literal(self._block_rows), placed=placed.text))
        # Tuples have a header and alignment, and pages a margin: an eighth more, rounded up to whole blocks.
        self._session.reserve(
            -(-self._rows // self._block_rows) * (self._block_rows * (4 * self.dims + 4) * 9 // 8 + 64)
        )
        self._session.ask("SET enable_hashagg = off", fault="the session cannot be set up")
        self._session.ask(create, placed.values, fault="the rows cannot be prepared")

    def settle(self) -> None:
        """Mark pages as visible to all, so that scans need not check each tuple; blocks are too few to gain by it."""
        if not self._packed:
            self._session.ask(sql.SQL("VACUUM {}").format(self._name), fault="the rows cannot be prepared")

    def run(self, states: Sequence[State], start: int, stop: int) -> None:
        """Feed the rows from start to stop - 1 to the models."""
        arguments = self._block(start, stop) if self._packed else sql.SQL("label, features")
        source = sql.SQL("{} WHERE {}").format(self._name, self._within(start, stop))
        self._feed(states, arguments, source)

    def run_drawn(self, states: Sequence[State], parts: Iterable[npt.NDArray[np.int64]]) -> int:
        """Feed drawn rows to the models."""
        drawn = sql.Identifier(f"boltdp_{secrets.token_hex(8)}")
        fault = "the rows cannot be drawn"
        try:
            self._session.ask(
                sql.SQL("CREATE TEMPORARY TABLE {} (ordinal bigint, position bigint)").format(drawn), fault=fault
            )
            count = self._session.send(drawn, parts)
            arguments = sql.SQL("block" if self._packed else "label, features")
            if count:  # the aggregate of no rows would be no models
                self._feed(states, arguments, self._drawn(drawn))
            return count
        finally:
            if not self._session.closed:
                self._session.ask(sql.SQL("DROP TABLE IF EXISTS {}").format(drawn), fault=fault)

    def sum(self, sums: Sums, start: int, stop: int) -> None:
        """Add the rows from start to stop - 1 to sums."""
        block = self._block(start, stop) if self._packed else sql.SQL("ARRAY[label || features]")
        query = sql.SQL("SELECT boltdp.derivative((SELECT boltdp.kept($1)), {}) FROM {} WHERE {}").format(
            block, self._name, self._within(start, stop)
        )
        try:
            self._session.lend(sums.to_bytes())
            answer = self._session.ask(query, [self._session.handle], fault="a derivative cannot be summed", ours=True)
            sums.update(bytes(answer[0][0]))
        finally:
            self._session.forget()

    def _feed(self, states: Sequence[State], arguments: Composed, source: Composed) -> None:
        models = [state.to_bytes() for state in states]
        joined = b"".join(models)
        if joined != self._session.known:
            self._session.lend(joined)
        self._session.known = None
        query = sql.SQL("SELECT boltdp.keep($1, boltdp.sgd((SELECT boltdp.kept($1)), {})) FROM {}").format(
            arguments, source
        )
        answer = self._session.ask(query, [self._session.handle], fault="a pass cannot be run", ours=True)
        done = bytes(answer[0][0])
        self._session.known = done
        at = 0
        for state, model in zip(states, models, strict=True):
            state.update(done[at : at + len(model)])
            at += len(model)

    def blocks(self, start: int, stop: int) -> Iterator[npt.NDArray[np.float32]]:
        """The rows from start to stop - 1."""
        block = self._block(start, stop) if self._packed else sql.SQL("ARRAY[label || features]")
        select = sql.SQL("SELECT {} FROM {} WHERE {}").format(block, self._name, self._within(start, stop))
        for gathered in self._session.stream(select, ["bytea"]):
            for (raw,) in gathered:
                # Two dimensions take 28 bytes of header, each number its length and itself.
                numbers = np.frombuffer(raw, [("length", ">i4"), ("number", ">f4")], offset=28)["number"]
                yield numbers.astype(np.float32).reshape(-1, 1 + self.dims)

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        """Permute the rows from start to stop - 1, into a new table."""
        place = sql.SQL("(start + i - 1)") if self._packed else sql.SQL("start")
        inside = sql.SQL("({p} >= {start} AND {p} < {stop})").format(
            p=place, start=sql.Literal(start), stop=sql.Literal(stop)
        )
        moved = (
            sql.SQL("row_number() OVER (PARTITION BY {inside} ORDER BY random()) - 1").format(inside=inside)
            if self._random
            else _permuted(sql.SQL("{} - {}").format(place, sql.Literal(start)), rows=stop - start, seed=seed)
        )
        row = sql.SQL("block[i:i]") if self._packed else sql.SQL("label || features")
        each = sql.SQL(", generate_series(1, array_length(block, 1)) AS i") if self._packed else sql.SQL("")
        # OFFSET 0 has the rows taken out of their blocks before they are sorted, not each sorted with its whole block.
        placed = sql.SQL(
            "SELECT CASE WHEN {inside} THEN {start} + {moved} ELSE {place} END AS place, {row} AS packed"
            " FROM {name}{each} OFFSET 0"
        ).format(
            inside=inside,
            start=sql.Literal(start),
            moved=moved,
            place=place,
            row=row,
            name=self._name,
            each=each,
        )
        old = self._name
        self._name = sql.Identifier(f"boltdp_{secrets.token_hex(8)}")
        try:
            self.write(_Query(placed, []))
        except BaseException:
            self._name = old
            raise
        self._session.ask(sql.SQL("DROP TABLE {}").format(old), fault="the rows cannot be dropped")
        self.settle()

    def drop(self) -> None:
        """Drop the table and the models; where the session has ended, the server has done so."""
        self._session.forget()
        if not self._session.closed:
            self._session.ask(sql.SQL("DROP TABLE {}").format(self._name), fault="the rows cannot be dropped")

    def _drawn(self, drawn: sql.Identifier) -> Composed:
        """The rows at the positions of a table, in the order of its ordinals; those at -1 find none and are markers."""
        zeros = sql.SQL("array_fill(0::real, ARRAY[{}])").format(sql.Literal(self.dims))
        row = sql.SQL(
            "COALESCE(block[position - start + 1 : position - start + 1], ARRAY[(-1)::real || {}]) AS block"
            if self._packed
            else "COALESCE(label, -1) AS label, COALESCE(features, {}) AS features"
        ).format(zeros)
        # Sorted below the aggregate, not by it: it would sort the models along with every row.
        return sql.SQL(
            "(SELECT {row} FROM {drawn} LEFT JOIN {name} ON position >= 0 AND start = position - position % {n}"
            " ORDER BY ordinal) AS drawn"
        ).format(row=row, drawn=drawn, name=self._name, n=sql.Literal(self._block_rows))

    def _within(self, start: int, stop: int) -> Composed:
        """Which tuples have rows from start to stop - 1."""
        if (start, stop) == (0, self._rows):
            return sql.SQL("true")
        return sql.SQL("start > {} AND start < {}").format(sql.Literal(start - self._block_rows), sql.Literal(stop))

    def _block(self, start: int, stop: int) -> Composed:
        """The rows of a block that lie within."""
        if (start, stop) == (0, self._rows):
            return sql.SQL("block")
        return sql.SQL(
            "CASE WHEN start >= {start} AND start + {n} <= {stop} THEN block"
            " ELSE block[greatest({start} - start, 0) + 1 : least({stop} - start, {n})] END"
        ).format(start=sql.Literal(start), stop=sql.Literal(stop), n=sql.Literal(self._block_rows))


@dataclass(frozen=True)
class _Column:
    """A column of the data, and the expressions that read it. Nothing in them can fail for a value."""

    name: str
    base: str  #: PostgreSQL's name of its type, or of the elements' if it is a list
    type: ColumnType

    @classmethod
    def of(cls, name: str, base: str, category: str, element: str | None, modifier: int) -> _Column:
        """From what the catalogue says of its type."""
        if base in _NUMBERS:
            return cls(name, base, ColumnType("number"))
        if base == "bool":
            return cls(name, base, ColumnType("bool"))
        if base in _VECTORS:
            return cls(name, base, ColumnType("list", modifier if modifier > 0 else None))
        if element in _NUMBERS:
            return cls(name, element, ColumnType("list"))
        if category in ("S", "E"):
            return cls(name, base, ColumnType("text"))
        return cls(name, base, ColumnType("other"))

    @property
    def _column(self) -> sql.Identifier:
        return sql.Identifier("source", self.name)

    def number(self) -> Composed:
        """As double precision."""
        if self.base == "numeric":
            return _double(self._column)
        return sql.SQL("{}::int::float8" if self.base == "bool" else "{}::float8").format(self._column)

    def numbers(self) -> Composed:
        """A list as real[] or double precision[]."""
        if self.base in ("float4", "float8"):
            return sql.SQL("{}").format(self._column)
        if self.base == "numeric":
            return sql.SQL(
                "CASE WHEN array_ndims({c}) = 1 THEN ARRAY(SELECT {double} FROM unnest({c}) AS element) END"
            ).format(c=self._column, double=_double(sql.Identifier("element")))
        return sql.SQL("{}::real[]" if self.base in _VECTORS else "{}::float8[]").format(self._column)

    def code(self, matcher: Matcher, values: list[Any]) -> Composed:
        """The position of the declared value that it matches, as `Matcher` says, or NULL; binds what it looks for."""
        if self.base == "bool":
            codes = [matcher.truth(True), matcher.truth(False)]
            cases = [sql.Literal(code) if code >= 0 else sql.SQL("NULL") for code in codes]
            return sql.SQL("CASE WHEN {c} THEN {} WHEN NOT {c} THEN {} END::int").format(*cases, c=self._column)
        if self.type.kind == "text":
            sought = {text: code for text, code in matcher.texts.items() if "\0" not in text}
            return _position(sought, "text", sql.SQL('{}::text COLLATE "C"').format(self._column), values)
        if self.base in _INTEGERS:
            exact = {int(n): code for n, code in matcher.numbers.items() if n == int(n)}
            return _position(exact, "bigint", sql.SQL("{}::bigint").format(self._column), values)
        floats = {float(n): code for n, code in matcher.numbers.items()}
        if self.base == "float4":
            # In the column's own type, so that the real nearest to 0.1 is met by the declared 0.1.
            return _position(floats, "real", sql.SQL("{}").format(self._column), values)
        return _position(floats, "float8", self.number(), values)

    def cell(self) -> Composed:
        """As it is sent to this process."""
        if self.type.kind == "list":
            return sql.SQL("{}::float8[]").format(self.numbers())
        if self.base in _INTEGERS:
            return sql.SQL("{}::bigint").format(self._column)
        if self.base == "numeric":
            return self.number()
        return sql.SQL("{}::text" if self.type.kind == "text" else "{}").format(self._column)

    @property
    def wire(self) -> str:
        """The type in which `cell` is read; lists are read by ourselves."""
        if self.type.kind == "list":
            return "bytea"
        if self.type.kind == "text":
            return "text"
        return {"int2": "int8", "int4": "int8", "numeric": "float8"}.get(self.base, self.base)

    def to_arrow(self, cells: Sequence[Any]) -> pa.Array:
        """What was read, as Arrow."""
        if self.type.kind == "list":
            return _lists(cells)
        types = {"text": pa.string(), "bool": pa.bool_(), "int8": pa.int64(), "float4": pa.float32()}
        return pa.array(cells, types.get(self.wire, pa.float64()))


def _placed(
    schema: Schema, columns: Mapping[str, _Column], source: Composed, *, rows: int, seed: int, shuffle: Shuffle
) -> _Query:
    """Every row encoded, with its place in the permuted order, which depends on its position and the seed alone."""
    packed = _packed_rows(schema, columns)
    if shuffle == "random":
        place: Composed = sql.SQL("row_number() OVER (ORDER BY random()) - 1")
    else:
        place = _permuted(sql.SQL("row_number() OVER () - 1"), rows=rows, seed=seed)
    text = sql.SQL("SELECT {} AS place, {} AS packed FROM {}").format(place, packed.text, source)
    return _Query(text, packed.values)


def _packed_rows(schema: Schema, columns: Mapping[str, _Column]) -> _Query:
    """The expression that encodes a row."""
    values: list[Any] = []
    label = columns[schema.label].code(Matcher.of(schema.classes), values)
    parts: list[Composed] = [sql.SQL("ARRAY[COALESCE({}::real, 'NaN')]").format(label)]
    numeric = [(c, middles, factors) for c, middles, factors in schema.transforms() if isinstance(c, Numeric)]
    if numeric:
        cells = sql.SQL(", ").join(columns[column.name].number() for column, *_ in numeric)
        parts.append(_packed(sql.SQL("ARRAY[{}]::float8[]").format(cells), numeric, values))
    categorical = [(c, middles, factors) for c, middles, factors in schema.transforms() if isinstance(c, Categorical)]
    if categorical:
        codes = [columns[column.name].code(Matcher.of(column.categories), values) for column, *_ in categorical]
        absent, present = (
            [float(x) for _, middles, factors in categorical for x in ((cell - middles) * factors).astype(np.float32)]
            for cell in (0.0, 1.0)
        )
        parts.append(
            sql.SQL("boltdp.pack_categories(ARRAY[{}]::int[], {}::int[], {}::real[], {}::real[])").format(
                sql.SQL(", ").join(codes),
                _bind(values, [len(column.categories) for column, *_ in categorical]),
                _bind(values, absent),
                _bind(values, present),
            )
        )
    for column, middles, factors in schema.transforms():
        if isinstance(column, Vector):
            parts.append(_packed(columns[column.name].numbers(), [(column, middles, factors)], values))
    if schema.intercept:
        parts.append(sql.SQL("ARRAY[{}::real]").format(_bind(values, float(np.float32(schema.constant)))))
    packed: Composed = sql.SQL(" || ").join(parts)
    if schema.projection is not None:
        matrix = projection_matrix(schema.projection, schema.encoded_dims)
        packed = sql.SQL("boltdp.project({}, {}::float8[])").format(packed, _bind(values, matrix.tolist()))
    return _Query(packed, values)


def _packed(
    cells: Composed, transforms: Sequence[tuple[Numeric | Vector, Numbers, Numbers]], values: list[Any]
) -> Composed:
    """Numbers clipped, centred and scaled, each with its own bounds."""
    return sql.SQL("boltdp.pack_numbers({}, {}::float8[], {}::float8[], {}::float8[], {}::float8[])").format(
        cells,
        _bind(values, [column.low for column, middles, _ in transforms for _ in middles]),
        _bind(values, [column.high for column, middles, _ in transforms for _ in middles]),
        _bind(values, [middle for _, middles, _ in transforms for middle in middles.tolist()]),
        _bind(values, [factor for _, _, factors in transforms for factor in factors.tolist()]),
    )


def _permuted(position: Composed, *, rows: int, seed: int) -> Composed:
    signed = seed - 2**64 if seed >= 2**63 else seed
    return sql.SQL("boltdp.permuted_position({}, {}, {})").format(position, sql.Literal(rows), sql.Literal(signed))


def _position(sought: Mapping[Any, int], kind: LiteralString, cell: Composed, values: list[Any]) -> Composed:
    """The code of what the cell equals, NULL if it equals none."""
    return sql.SQL("({}::int[])[array_position({}::{}[], {})]").format(
        _bind(values, list(sought.values())), _bind(values, list(sought)), sql.SQL(kind), cell
    )


def _bind(values: list[Any], value: Any) -> Composed:
    """The placeholder of a value."""
    values.append(value)
    return sql.SQL(f"${len(values)}")


def _double(number: Composed | sql.Identifier) -> Composed:
    """A numeric as double precision. The plain cast of one out of range is an error, and the message quotes it."""
    return sql.SQL(
        "CASE WHEN {n} = 'NaN' THEN 'NaN'::float8 WHEN {n} >= 1e308 THEN 'Infinity' WHEN {n} <= -1e308 THEN '-Infinity'"
        " WHEN abs({n}) < 1e-307 THEN 0 ELSE {n}::float8 END"
    ).format(n=number)


def _query_source(query: str) -> Composed:
    return sql.SQL("(\n{}\n) AS source").format(sql.SQL(query))


def _read_arrays(raws: Sequence[bytes], length: int) -> npt.NDArray[np.float64]:
    """Arrays of `length` doubles without NULL, in PostgreSQL's binary form: a header of 20 bytes, then (4, number)."""
    row = np.dtype([("header", "V20"), ("cells", [("length", ">i4"), ("number", ">f8")], (length,))])
    return np.frombuffer(b"".join(raws), row)["cells"]["number"].astype(np.float64)


def _lists(raws: Sequence[bytes | None]) -> pa.Array:
    """Lists of doubles in PostgreSQL's binary form; one with a NULL inside or more dimensions is read cell by cell."""
    sizes = {None if raw is None else len(raw) for raw in raws}
    if len(sizes) == 1 and None not in sizes and all(_is_plain(raw) for raw in raws):
        length = (len(raws[0] or b"") - 20) // 12
        block = _read_arrays([raw for raw in raws if raw is not None], length)
        return pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), length)
    return pa.array([None if raw is None else _list(raw) for raw in raws], pa.list_(pa.float64()))


def _is_plain(raw: bytes | None) -> bool:
    """One dimension, not empty, and no NULL."""
    return raw is not None and raw[:8] == b"\0\0\0\1\0\0\0\0"


def _list(raw: bytes) -> list[float | None] | None:
    if int.from_bytes(raw[:4], "big") != 1:
        return None
    numbers: list[float | None] = []
    at = 20
    while at < len(raw):
        present = raw[at : at + 4] != b"\xff\xff\xff\xff"
        numbers.append(float(np.frombuffer(raw, ">f8", 1, at + 4)[0]) if present else None)
        at += 12 if present else 4
    return numbers


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


def _reason(error: psycopg.Error, *, ours: bool) -> tuple[str, str | None]:
    state = error.sqlstate
    # Between two statements the server's last words get lost.
    if (state or "").startswith("57P") or (state is None and "server closed the connection" in str(error)):
        return "the server ended the connection", "nothing was released, and nothing is left in the server"
    if state is None:
        text = str(error).strip().splitlines()
        if isinstance(error, psycopg.OperationalError) and text:
            return text[0].strip(), None
        return type(error).__name__, None
    if state == "57014":
        return "the statement was cancelled", None
    if state == "53100":
        return "the server's disk is full", "temp_tablespaces names another place for temporary tables"
    if ours or state[:2] in _SAFE_CLASSES:
        return error.diag.message_primary or type(error).__name__, None
    return f"the server reports {type(error).__name__} ({state})", None
