"""The engine: whose rows, where its passes are run, and the order of the steps that prepare them.

In the server, where it has the extension: rows are counted, numbered, encoded, summed and prepared there, and stay
there. Else they are streamed, and everything but counting and numbering is done here.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from psycopg import sql

from boltdp.context import Context
from boltdp.engines.base import Engine, PreparedRows, check_columns
from boltdp.engines.person_limit import check_person_id
from boltdp.engines.postgres.encoding_plan import compile_plan
from boltdp.engines.postgres.packed_table import Layout, Packing, PreparedTable, Shuffle
from boltdp.engines.postgres.session import MEMORY, Composed, Session
from boltdp.engines.postgres.source import (
    SourceColumn,
    describe,
    find_table,
    grouped_source,
    limited_source,
    part_source,
    query_source,
    read_arrays,
)
from boltdp.engines.prepared_rows import check_part
from boltdp.errors import DataError, ParameterError
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType, Kind

Where = Literal["auto", "server", "client"]
MIN_MEMORY = 2**20
#: Each has a table while models are trained, for which the server keeps some locks.
MAX_GROUPS = 500


class PostgresEngine(Engine):
    """A table, view or query of a PostgreSQL database.

    `where` says where the passes are run: in the server, which needs the extension and the right to make temporary
    tables; in this process, to which the rows are streamed; or "auto", in the server if it can be. `layout` is how
    the server keeps the prepared rows: packed to blocks, or one row per tuple. `shuffle` is the permutation that all
    engines share, given by a seed, or the server's ORDER BY random(), which no one can repeat. `memory` is what the
    session may take for each of temporary tables, a sort and drawn rows: bytes, or a size such as "1GB"; without it,
    that of the environment variable BOLTDP_PG_MEMORY, or 256MB.

    The guarantee is about rows at their places. A table is read as it is stored; a query, or the one inside a view,
    must give one row for each person's row and nothing of others', and choose (WHERE, LIMIT, joins) and order (ORDER
    BY, windows) rows by public columns only. So must a table that is partitioned or clustered: by a public column.
    """

    def __init__(
        self,
        uri: str,
        *,
        table: str | tuple[str, str] | None = None,
        query: str | None = None,
        where: Where = "auto",
        layout: Layout = "packed",
        shuffle: Shuffle = "seeded",
        spool: str | Path | None = None,
        memory: int | str | None = None,
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
        self.spool = spool
        self._session = Session(uri, memory=memory_bytes(memory))
        self._columns: dict[str, SourceColumn] | None = None
        self._count: int | None = None
        self._slices: list[PostgresSlice] = []
        self._streamed: str | None = None  #: why rows are sent to this process, if they are
        try:
            self._theirs = query is not None  # so names in it are looked up as they would be in their own session
            self._source = find_table(self._session, table) if table is not None else query_source(str(query))
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
        self._streamed = None if in_server else missing or "as asked for"
        return in_server

    @property
    def where(self) -> str:
        return "in the server" if self._streamed is None else f"streamed to this process: {self._streamed}"

    def count(self) -> int:
        if self._count is None:
            self._session.begin()
            answer = self._session.ask(
                sql.SQL("SELECT pg_catalog.count(*) FROM {}").format(self._source),
                fault="the rows cannot be counted",
                theirs=self._theirs,
            )
            self._count = int(answer[0][0])
        return self._count

    def columns(self) -> dict[str, ColumnType]:
        return {name: column.type for name, column in self._described().items()}

    def batches(self, columns: Sequence[str], *, parse: Mapping[str, Kind] | None = None) -> Iterator[pa.RecordBatch]:
        return self.batches_keeping(columns, (), parse=parse)

    def batches_keeping(
        self, columns: Sequence[str], keep: Sequence[str], *, parse: Mapping[str, Kind] | None = None
    ) -> Iterator[pa.RecordBatch]:
        described = self._described()
        kept = [described[name].as_printed() for name in keep]
        numbers = [name for name in columns if (parse or {}).get(name) == "number"]
        others = [name for name in columns if name not in numbers]
        fields = [described[name].cell() for name in others]
        if numbers:
            # One field of fixed length: far quicker to read than one a column.
            floats = [sql.SQL("COALESCE({}, 'NaN')").format(described[name].number()) for name in numbers]
            fields.append(sql.SQL("ARRAY[{}]::pg_catalog.float8[]").format(sql.SQL(", ").join(floats)))
        fields += [column.cell() for column in kept]
        select = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(fields), self._source)
        types = [described[name].wire for name in others] + ["bytea"] * bool(numbers) + [one.wire for one in kept]
        for rows in self._session.stream(select, types, theirs=self._theirs):
            cells = list(zip(*rows, strict=True))
            arrays = {name: described[name].to_arrow(cells[i]) for i, name in enumerate(others)}
            if numbers:
                block = read_arrays(cells[len(others)], len(numbers))
                arrays.update({name: pa.array(np.ascontiguousarray(block[:, i])) for i, name in enumerate(numbers)})
            found = [arrays[name] for name in columns]
            found += [one.to_arrow(some) for one, some in zip(kept, cells[len(cells) - len(kept) :], strict=True)]
            yield pa.RecordBatch.from_arrays(found, [*columns, *keep])

    def slice(self, start: int, stop: int) -> PostgresSlice:
        check_part(start, stop, rows=self.count(), what="a slice")
        part = PostgresSlice(self, part_source(self._source, start, stop), stop - start)
        self._slices.append(part)
        return part

    def groups(self, column: str, values: Sequence[str]) -> PostgresGroups:
        """The rows whose public `column`, as text, is each of the values: counted now, to be prepared together."""
        return PostgresGroups(self, column, values)

    def prepare(self, schema: Schema, context: Context, *, ordered: bool = True) -> PreparedRows:
        check_columns(schema, self.columns())
        check_person_id(schema, self.columns(), context)
        rows = self.count()
        prepared: PreparedRows
        try:
            if self._stays(context):
                self._session.begin()  # so that a table that cannot be filled goes with the transaction
                packing = self._packing(schema, rows=rows, ordered=ordered)
                (prepared,) = self._packed([packing], self._counted(schema), context)
                context.report_rows(rows)
            else:
                prepared = super().prepare(schema, context, ordered=ordered)
            self._session.commit()
            if isinstance(prepared, PreparedTable):
                prepared.vacuum()
        except BaseException:
            self._session.rollback()
            raise
        finally:
            self._count = None
        return prepared

    def close(self) -> None:
        for part in self._slices:
            part.close()
        self._session.close()

    def _end_snapshot(self) -> None:
        self._session.commit()
        self._count = None

    def _stays(self, context: Context) -> bool:
        """Whether rows stay in the server: reporting a bad one, for public data, needs the encoder that can."""
        if self.in_server:
            self._streamed = None if context.on_bad_row == "neutral" else "bad rows are reported"
        return self._streamed is None

    def _packing(self, schema: Schema, *, rows: int, ordered: bool, which: Composed | None = None) -> Packing:
        plan, columns = compile_plan(schema.encoding, self._described())
        return Packing(plan, columns, schema.encoding.cells, schema.encoding.feature_map, rows, ordered, which)

    def _packed(self, packings: Sequence[Packing], source: Composed, context: Context) -> list[PreparedTable]:
        return PreparedTable.create(
            self._session,
            packings,
            source=source,
            theirs=self._theirs,
            layout=self.layout,
            seed=None if self.shuffle == "random" else context.seed,
        )

    def _counted(self, schema: Schema) -> Composed:
        """The source of a schema's rows, for training: rows of a person beyond those that count are neutral."""
        if schema.person_id is None or schema.max_rows_per_person is None:
            return self._source
        described = self._described()
        names = [schema.label, *schema.sources]
        return limited_source(
            self._source, [described[name] for name in names], described[schema.person_id], schema.max_rows_per_person
        )

    def _described(self) -> dict[str, SourceColumn]:
        if self._columns is None:
            self._columns = describe(self._session, self._source, theirs=self._theirs)
        return self._columns


def memory_bytes(memory: int | str | None) -> int:
    """A size of memory as PostgreSQL writes it, in bytes; that of the environment, or the usual one, if none is given.

    >>> memory_bytes("1GB"), memory_bytes(2**20), memory_bytes("64 MB")
    (1073741824, 1048576, 67108864)
    """
    given = os.environ.get("BOLTDP_PG_MEMORY") or MEMORY if memory is None else memory
    size = re.fullmatch(r"(\d+)\s*(B|kB|MB|GB|TB)?", str(given).strip())
    units = {None: 0, "B": 0, "kB": 1, "MB": 2, "GB": 3, "TB": 4}
    number = int(size[1]) * 1024 ** units[size[2]] if size else 0
    if number < MIN_MEMORY:
        raise ParameterError(f"memory must be a size of at least 1MB, such as 256MB, got {given!r}")
    return number


class PostgresSlice(PostgresEngine):
    """Some rows of a table, view or query, by their positions in the order of a scan.

    It has a session of its own, which is closed with that of the whole, so that neither disturbs the other's
    transaction, and it sees the rows as the whole did when the slice was made, until they are prepared. So slices that
    are made before any of them is prepared never share a row. Prepared again, its rows are those at the same positions
    as they are then.
    """

    def __init__(self, whole: PostgresEngine, source: Composed, rows: int) -> None:
        """Use `PostgresEngine.slice`."""
        self.layout, self.shuffle, self.in_server = whole.layout, whole.shuffle, whole.in_server
        self.spool, self.memory_bytes = whole.spool, whole.memory_bytes
        self._whole, self._theirs, self._streamed = whole, whole._theirs, whole._streamed
        self._columns = whole._described()
        self._source = source
        self._rows = self._count = rows
        self._slices = []
        self._session = whole._session.beside()

    def count(self) -> int:
        if super().count() != self._rows:
            self._session.rollback()
            self._count = None
            raise DataError(f"the data must keep its {self._rows} rows while it is read, and it has changed")
        return self._rows

    def prepare(self, schema: Schema, context: Context, *, ordered: bool = True) -> PreparedRows:
        prepared = super().prepare(schema, context, ordered=ordered)
        # Passes may take hours: no transaction stays open for them.
        self._whole._end_snapshot()
        return prepared


class PostgresGroups:
    """Rows in groups, by a public column; those that are in none of them are left out.

    All groups are counted by one statement, and prepared by one, as of one moment. So no row is in two of them, and how
    often the rows are read does not depend on how many groups there are. They are prepared in the server only.
    """

    def __init__(self, whole: PostgresEngine, column: str, values: Sequence[str]) -> None:
        """Use `PostgresEngine.groups`."""
        if not 0 < len(set(values)) == len(values) <= MAX_GROUPS:
            raise ParameterError(f"groups must be 1 to {MAX_GROUPS} different values, got {len(values)}")
        if column not in whole.columns():
            raise DataError(f"the data must have the column {column!r}, by which it is in groups")
        self._whole, self._session = whole, whole._session
        number = f"boltdp_{secrets.token_hex(8)}"
        self._source = grouped_source(whole._source, column, values, number)
        self._number = sql.Identifier("source", number)
        self._session.begin()
        query = sql.SQL("SELECT {number}, pg_catalog.count(*) FROM {source} GROUP BY {number}").format(
            number=self._number, source=self._source
        )
        found = dict(self._session.ask(query, fault="the rows cannot be counted", theirs=whole._theirs))
        self.rows = [int(found.get(number, 0)) for number in range(1, 1 + len(values))]  #: of each group

    @property
    def where(self) -> str:
        return self._whole.where

    @contextmanager
    def prepared(
        self, schemas: Sequence[Schema], context: Context, *, ordered: Sequence[bool], last: bool = True
    ) -> Iterator[list[PreparedTable]]:
        """Encode the rows of each group by a schema of its own, in one scan, into tables that go at the end of this.

        `last`: they are not prepared again, so that the transaction can end.
        """
        whole = self._whole
        if any(schema.person_id is not None for schema in schemas):
            raise ParameterError("groups must be of rows: a person's may be in several")
        if not whole._stays(context):
            raise ParameterError(f"groups must be prepared in the server, got rows {whole.where}")
        for schema in schemas:
            check_columns(schema, whole.columns())
        try:
            self._session.begin()
            packings = [
                whole._packing(schema, rows=rows, ordered=order, which=self._which(number))
                for number, (schema, rows, order) in enumerate(zip(schemas, self.rows, ordered, strict=True), 1)
            ]
            tables = whole._packed(packings, self._source, context)
            context.report_rows(sum(self.rows))
            if last:
                whole._end_snapshot()
                for table in tables:
                    table.vacuum()
        except BaseException:
            self._session.rollback()
            whole._count = None
            raise
        with ExitStack() as closing:
            for table in tables:
                closing.enter_context(table)
            yield tables

    def _which(self, number: int) -> Composed:
        return sql.SQL("{} OPERATOR(pg_catalog.=) {}").format(self._number, sql.Literal(number))
