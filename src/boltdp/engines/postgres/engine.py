"""The PostgreSQL engine.

In a server with the extension, rows are counted, encoded, summed and prepared there and never leave it. Otherwise they
are streamed to this process, which does everything but counting and numbering.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from psycopg import sql

from boltdp.engines.base import Engine, Kinds, PreparedRows, RecordBatches, Where, check_columns, check_names
from boltdp.engines.person_limit import check_person_id
from boltdp.engines.postgres import source as source_sql
from boltdp.engines.postgres.catalog_constraints import read_declarations
from boltdp.engines.postgres.prepared_rows import Layout, PackArguments, PreparedTable, Shuffle
from boltdp.engines.postgres.session import MEMORY, POOL_HINT, TRANSACTION_POOL, Composed, Session
from boltdp.engines.postgres.source import SourceColumn
from boltdp.engines.prepared_rows import check_range
from boltdp.errors import DataError, ParameterError
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType, Kind

MIN_MEMORY = 2**20
#: Maximal number of groups: each has a table during training, and the locks of a server are limited.
MAX_GROUPS = 500

ROW_SECURITY = (
    "row-level security is active: only the rows that its policies show to this role are read, so policies must "
    "select rows by public columns only"
)


class PostgresEngine(Engine):
    """A table, view or query of a PostgreSQL database.

    `where` is "server", which needs the extension and the right to create temporary tables; "client", which streams the
    rows to this process; or "auto", the server if possible. `layout` is the storage of prepared rows in the server:
    packed blocks, or one row per tuple. `shuffle` is "seeded", the permutation that all engines share, or "random", a
    seed that only the server knows. `memory` limits each of temporary tables, sorts and drawn rows: bytes, or a size
    such as "1GB"; the default is the environment variable BOLTDP_PG_MEMORY, or 256MB.

    The guarantee is for rows at fixed positions. A query or view must produce each row from one person's row alone, and
    select (WHERE, LIMIT, joins) and order (ORDER BY, windows) rows by public columns only. A table must be partitioned
    or clustered by public columns only.
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
        self._session = Session(uri, memory=parse_memory(memory))
        self._columns: dict[str, SourceColumn] | None = None
        self._count: int | None = None
        self._slices: list[PostgresSlice] = []
        self._why_streamed: str | None = None  #: the reason, if rows are sent to this process
        try:
            self._user_path = query is not None  # names in a query are resolved by the user's search path
            if table is not None:
                self._source = source_sql.find_table(self._session, table)
            else:  # a query may end in a comment
                self._source = sql.SQL("(\n{}\n) AS source").format(sql.SQL(str(query)))
            self.in_server = self._decide_where(where)
        except BaseException:
            self.close()
            raise

    def _decide_where(self, where: Where) -> bool:
        """Return whether passes run in the server, as `where` asks or as is possible."""
        self._why_streamed = "as asked for" if where == "client" else self._session.find_missing_requirement()
        if where == "server" and self._why_streamed is not None:
            hint = POOL_HINT if self._why_streamed == TRANSACTION_POOL else None
            raise DataError(f"the passes cannot be run in the server: {self._why_streamed}", hint=hint)
        if self.shuffle == "random" and self._why_streamed is not None:
            raise ParameterError("shuffle 'random' is the server's; rows that are streamed need 'seeded'")
        return self._why_streamed is None

    @property
    def where(self) -> str:
        return "in the server" if self._why_streamed is None else f"streamed to this process: {self._why_streamed}"

    @property
    def guarantee_conditions(self) -> Sequence[str]:
        self._describe_columns()  # tells why a source cannot be read
        return (ROW_SECURITY,) if self._session.hides_rows(self._source, user_path=self._user_path) else ()

    def count(self) -> int:
        if self._count is None:
            ((rows,),) = self._count_rows(sql.SQL("SELECT pg_catalog.count(*) FROM {}").format(self._source))
            self._count = int(rows)
        return self._count

    def _count_rows(self, query: Composed) -> list[Any]:
        """Count rows in the transaction in which they are prepared."""
        self._session.begin()
        return self._session.ask(query, fault="the rows cannot be counted", user_path=self._user_path)

    def columns(self) -> dict[str, ColumnType]:
        return {name: column.type for name, column in self._describe_columns().items()}

    def batches(self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Kinds = None) -> RecordBatches:
        kept = [self._describe_columns()[name].to_readable_column() for name in keep]
        return self._read_batches(self._source, columns, kept, parse or {})

    def batches_with_persons(self, columns: Sequence[str], person_id: str, *, parse: Kinds = None) -> RecordBatches:
        column = self._describe_columns()[person_id]
        collations = "SELECT pg_catalog.bool_and(collisdeterministic) FROM pg_catalog.pg_collation"
        ((plain,),) = self._session.ask(collations, fault="the collations cannot be looked up")
        if column.is_equal_as_text(plain_collations=plain):
            return self.batches(columns, [person_id], parse=parse)
        # The server compares the ids, since no other process knows how their type does.
        number = SourceColumn(f"boltdp_{secrets.token_hex(8)}", "int8", ColumnType("number"))
        source = source_sql.number_persons(self._source, column, number.name)
        return self._read_batches(source, columns, [number], parse or {})

    def _read_batches(
        self, source: Composed, columns: Sequence[str], keep: Sequence[SourceColumn], parse: Mapping[str, Kind]
    ) -> RecordBatches:
        described = self._describe_columns()
        numbers = [name for name in columns if parse.get(name) == "number"]
        single = [described[name] for name in columns if name not in numbers] + [*keep]
        forms = [column.write_cell_sql() for column in single]
        fields, types = [field for field, _, _ in forms], [copied for _, copied, _ in forms]
        if numbers:
            # One array field is much faster to read than one field per column.
            floats = [sql.SQL("COALESCE({}, 'NaN')").format(described[name].write_number_sql()) for name in numbers]
            fields.append(sql.SQL("ARRAY[{}]::pg_catalog.float8[]").format(sql.SQL(", ").join(floats)))
            types.append("bytea")
        select = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(fields), source)
        for rows in self._session.stream(select, types, user_path=self._user_path):
            cells = list(zip(*rows, strict=True))
            block = source_sql.read_arrays(cells.pop(), len(numbers)) if numbers else np.empty((0, 0))
            parsed = {name: pa.array(np.ascontiguousarray(block[:, i])) for i, name in enumerate(numbers)}
            others = (source_sql.read_cells(values, arrow) for values, (_, _, arrow) in zip(cells, forms, strict=True))
            found = [parsed[name] if name in parsed else next(others) for name in columns] + [*others]
            yield pa.RecordBatch.from_arrays(found, [*columns, *(column.name for column in keep)])

    def slice(self, start: int, stop: int) -> PostgresSlice:
        check_range(start, stop, rows=self.count(), what="a slice")
        part = PostgresSlice(self, source_sql.slice_source(self._source, start, stop), stop - start)
        self._slices.append(part)
        return part

    def group_by(self, column: str, values: Sequence[str]) -> PostgresGroups:
        """Count the rows of each value of a public column, as text, and return groups that are prepared together."""
        return PostgresGroups(self, column, values)

    def prepare(self, schema: Schema, context: Context, *, permuted: bool = True) -> PreparedRows:
        check_columns(schema, self.columns())
        check_person_id(schema, self.columns(), context)
        rows = self.count()
        with self._transaction():
            if not self._runs_in_server(context):
                return super().prepare(schema, context, permuted=permuted)
            arguments = self._make_pack_arguments(schema, rows=rows, permuted=permuted)
            (prepared,) = self._create_tables([arguments], self._write_training_source(schema), context)
        prepared.vacuum()
        return prepared

    @contextmanager
    def _transaction(self, *, last: bool = True) -> Iterator[None]:
        """Run a block in the transaction of the row snapshot, which ends with the `last` block or a failed one."""
        self._session.begin()
        try:
            yield
            if last:
                self._end_snapshot()
        except BaseException:
            self._session.rollback()  # which drops a table that cannot be filled
            self._count = None
            raise

    def close(self) -> None:
        for part in self._slices:
            part.close()
        self._session.close()

    def _end_snapshot(self) -> None:
        self._session.commit()
        self._count = None

    def _runs_in_server(self, context: Context) -> bool:
        """Whether rows stay in the server. Bad rows of public data are reported by the encoder of this process."""
        if self.in_server:
            self._why_streamed = None if context.on_bad_row == "neutral" else "bad rows are reported"
        return self._why_streamed is None

    def _make_pack_arguments(
        self, schema: Schema, *, rows: int, permuted: bool, condition: Composed | None = None
    ) -> PackArguments:
        plan, columns = source_sql.compile_source_plan(schema.encoding, self._describe_columns())
        return PackArguments(schema.encoding, plan, columns, rows, permuted, condition)

    def _create_tables(
        self, arguments: Sequence[PackArguments], source: Composed, context: Context
    ) -> list[PreparedTable]:
        tables = PreparedTable.create(
            self._session,
            arguments,
            source=source,
            user_path=self._user_path,
            layout=self.layout,
            seed=None if self.shuffle == "random" else context.seed,
        )
        context.report_rows(sum(one.rows for one in arguments))
        return tables

    def _write_training_source(self, schema: Schema) -> Composed:
        """Return the SQL of the rows for training, in which rows beyond the limit per person are neutral."""
        if schema.person_id is None or schema.max_rows_per_person is None:
            return self._source
        described = self._describe_columns()
        names = schema.training_sources
        return source_sql.limit_rows_per_person(
            self._source, [described[name] for name in names], described[schema.person_id], schema.max_rows_per_person
        )

    def _describe_columns(self) -> dict[str, SourceColumn]:
        if self._columns is None:
            fields = self._session.describe_fields(self._source, user_path=self._user_path)
            check_names([field.name for field in fields])
            run_query = partial(self._session.ask, fault="the types of the columns cannot be looked up")
            described = [SourceColumn.from_catalog(*found) for found in read_declarations(run_query, fields)]
            self._columns = {column.name: column for column in described}
        return self._columns


def parse_memory(memory: int | str | None) -> int:
    """Parse a memory size in the notation of PostgreSQL; None is BOLTDP_PG_MEMORY or the default.

    >>> parse_memory("1GB"), parse_memory(2**20), parse_memory("64 MB")
    (1073741824, 1048576, 67108864)
    """
    memory = os.environ.get("BOLTDP_PG_MEMORY") or MEMORY if memory is None else memory
    size = re.fullmatch(r"(\d+)\s*(B|kB|MB|GB|TB)?", str(memory).strip())
    units = {None: 0, "B": 0, "kB": 1, "MB": 2, "GB": 3, "TB": 4}
    number = int(size[1]) * 1024 ** units[size[2]] if size else 0
    if number < MIN_MEMORY:
        raise ParameterError(f"memory must be a size of at least 1MB, such as 256MB, got {memory!r}")
    return number


class PostgresSlice(PostgresEngine):
    """A range of rows of a table, view or query, by their positions in a scan.

    It has its own session and transaction, closed with the session of the whole engine. Until it is prepared, it sees
    the snapshot of the whole engine at the time of slicing, so slices made before any of them is prepared never share
    a row. Preparing it again reads the rows that are then at the same positions.
    """

    def __init__(self, whole: PostgresEngine, source: Composed, rows: int) -> None:
        """Use `PostgresEngine.slice`."""
        whole._describe_columns()
        vars(self).update(vars(whole))  # the same columns and options
        self._whole, self._source, self._slices = whole, source, []
        self._rows = self._count = rows
        self._session = whole._session.open_same_snapshot()

    def count(self) -> int:
        if super().count() != self._rows:
            self._session.rollback()
            self._count = None
            raise DataError(f"the data must keep its {self._rows} rows while it is read, and it has changed")
        return self._rows

    def prepare(self, schema: Schema, context: Context, *, permuted: bool = True) -> PreparedRows:
        prepared = super().prepare(schema, context, permuted=permuted)
        # Passes may take hours, so no transaction stays open.
        self._whole._end_snapshot()
        return prepared


class PostgresGroups:
    """Groups of rows by the value of a public column; rows with other values are ignored.

    One statement counts all groups and one prepares them, in one snapshot, so no row is in two groups and the number
    of scans does not depend on the number of groups. Groups are prepared in the server only.
    """

    def __init__(self, whole: PostgresEngine, column: str, values: Sequence[str]) -> None:
        """Use `PostgresEngine.group_by`."""
        if not 0 < len(set(values)) == len(values) <= MAX_GROUPS:
            raise ParameterError(f"groups must be 1 to {MAX_GROUPS} different values, got {len(values)}")
        described = whole._describe_columns()
        if column not in described:
            raise DataError(f"the data must have the column {column!r}, by which it is in groups")
        self._whole = whole
        number = f"boltdp_{secrets.token_hex(8)}"
        self._source = source_sql.add_group_numbers(whole._source, described[column], values, number)
        self._number = sql.Identifier("source", number)
        query = sql.SQL("SELECT {number}, pg_catalog.count(*) FROM {source} GROUP BY {number}")
        found = dict(whole._count_rows(query.format(number=self._number, source=self._source)))
        self.rows = [int(found.get(number, 0)) for number in range(1, 1 + len(values))]  #: of each group

    @property
    def where(self) -> str:
        return self._whole.where

    @contextmanager
    def prepare(
        self, schemas: Sequence[Schema], context: Context, *, permuted: Sequence[bool], last: bool = True
    ) -> Iterator[list[PreparedTable]]:
        """Encode the rows of each group by its schema, in one scan, into tables that are dropped at the end.

        `last` says that the groups are not prepared again, so that the transaction can end.
        """
        whole = self._whole
        if any(schema.person_id is not None for schema in schemas):
            raise ParameterError("groups must be of rows: a person's may be in several")
        if not whole._runs_in_server(context):
            raise ParameterError(f"groups must be prepared in the server, got rows {whole.where}")
        for schema in schemas:
            check_columns(schema, whole.columns())
        equals = sql.SQL("{} OPERATOR(pg_catalog.=) {}")
        with whole._transaction(last=last):
            arguments = [
                whole._make_pack_arguments(
                    schema, rows=rows, permuted=order, condition=equals.format(self._number, number)
                )
                for number, (schema, rows, order) in enumerate(zip(schemas, self.rows, permuted, strict=True), 1)
            ]
            tables = whole._create_tables(arguments, self._source, context)
        with ExitStack() as closing:
            for table in tables:
                closing.enter_context(table)
                if last:
                    table.vacuum()
            yield tables
