"""Rows of any database that SQLAlchemy supports, streamed through this process.

PostgreSQL has an engine of its own, with which rows can stay in the database. Error messages of databases may quote
rows, so they are neither passed on nor chained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import sqlalchemy as sa

from boltdp.encoding import python_to_arrow
from boltdp.engines.base import Engine, Kinds, RecordBatches, check_names
from boltdp.errors import DataError, ParameterError, list_names, suggest_names
from boltdp.schema.source_columns import BATCH_ROWS, ColumnType

T = TypeVar("T")

UNORDERED = (
    "the database chooses the order of the rows, which may be that of an index on private columns: use a query with "
    "ORDER BY on a public key"
)


class SQLAlchemyEngine(Engine):
    """A table, or the rows of a query (SQL text or a selectable), of an engine or a connection of SQLAlchemy.

    As with any database, each row of a query must come from one person's row, and rows must be selected and ordered by
    public columns only. Use ORDER BY with a key if the database has no stable order. Columns are untyped: each cell is
    converted to the type in the schema, or is missing.
    """

    def __init__(
        self, bind: Any, *, table: str | None = None, query: Any = None, spool: str | Path | None = None
    ) -> None:
        if bind.dialect.name == "postgresql":
            raise DataError(
                "PostgreSQL must be given by its address, not by way of SQLAlchemy, so that the rows can stay there",
                hint="open_source('postgresql://...', query=...); str(select.compile(engine, compile_kwargs="
                "{'literal_binds': True})) is the text of a selectable",
            )
        if (table is None) == (query is None):
            raise ParameterError("give either table or query to say which rows of the database to use")
        self.spool = spool
        with ExitStack() as held:
            self._connection = bind
            if not isinstance(bind, sa.Connection):
                opened = _call_database(bind.connect, "the database of SQLAlchemy cannot be reached")
                self._connection = held.enter_context(opened)
            self._fault = "the query cannot be run" if table is None else f"the table {table!r} cannot be read"
            self._rows = self._select_table(table) if table is not None else query
            self._ordered = re.search(r"(?i)\border\s+by\b", str(query)) is not None
            self._names = self._call_database(lambda: [*self._execute(self._wrap_rows("*", no_rows=True)).keys()])
            check_names(self._names)
            self._held = held.pop_all()

    @property
    def guarantee_conditions(self) -> Sequence[str]:
        return () if self._ordered else (UNORDERED,)

    def count(self) -> int:
        return int(self._call_database(lambda: self._execute(self._wrap_rows("count(*)")).scalar_one()))

    def columns(self) -> dict[str, ColumnType]:
        return dict.fromkeys(self._names, ColumnType("untyped"))

    def batches_with_persons(self, columns: Sequence[str], person_id: str, *, parse: Kinds = None) -> RecordBatches:
        return self.batches(columns, [person_id], parse=parse, kept_as="person")

    def batches(
        self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Kinds = None, kept_as: str = "kept"
    ) -> RecordBatches:
        names, kinds = [*columns, *keep], [*((parse or {}).get(name) for name in columns), *(kept_as for _ in keep)]
        places = [self._names.index(name) for name in names]
        result = self._call_database(lambda: self._execute(self._rows, stream_results=True))
        try:
            while rows := self._call_database(lambda: result.fetchmany(BATCH_ROWS)):
                cells = ([row[place] for row in rows] for place in places)
                parts = [python_to_arrow.to_arrow_column(part, kind) for kind, part in zip(kinds, cells, strict=True)]
                yield pa.RecordBatch.from_arrays(parts, names)
        finally:
            self._call_database(result.close)

    def close(self) -> None:
        self._held.close()

    def _select_table(self, name: str) -> Any:
        inspector = self._call_database(lambda: sa.inspect(self._connection))
        names = self._call_database(lambda: [*inspector.get_table_names(), *inspector.get_view_names()])
        if name not in names:
            hint = suggest_names(name, names) or f"there are the tables {list_names(names)}"
            raise DataError(f"the table {name!r} does not exist", hint=hint)
        return sa.select(sa.literal_column("*")).select_from(sa.table(name))

    def _wrap_rows(self, columns: str, *, no_rows: bool = False) -> Any:
        """Return a SELECT of `columns` from all rows, or from none of them."""
        if isinstance(self._rows, str):
            return f"SELECT {columns} FROM (\n{self._rows}\n) source" + (" WHERE 1 = 0" if no_rows else "")
        around: Any = sa.select(sa.literal_column(columns)).select_from(self._rows.subquery("source"))
        return around.where(sa.literal_column("1 = 0")) if no_rows else around

    def _execute(self, statement: Any, **options: Any) -> Any:
        # SQL text goes to the driver unchanged: SQLAlchemy would treat a colon as a parameter.
        if isinstance(statement, str):
            return self._connection.exec_driver_sql(statement, execution_options=options)
        return self._connection.execute(statement, execution_options=options)

    def _call_database(self, action: Callable[[], T]) -> T:
        return _call_database(action, self._fault)


def _call_database(action: Callable[[], T], fault: str) -> T:
    """Run an action with a database; errors are raised as DataError without the original exception."""
    try:
        return action()
    except Exception as error:  # of any driver
        kind = type(error).__name__
    raise DataError(f"{fault}: the database reports {kind}")
