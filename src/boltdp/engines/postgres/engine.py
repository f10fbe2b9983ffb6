"""The engine: whose rows, where its passes are run, and the order of the steps that prepare them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from psycopg import sql

from boltdp.arraytypes import Integers
from boltdp.data.encode import OnBadRow
from boltdp.data.schema import Schema
from boltdp.data.source import ColumnType, Kind
from boltdp.engines.base import (
    Prepared,
    Progress,
    check_columns,
    encoded,
    plain,
    streamed_moments,
)
from boltdp.engines.postgres.encoding import Shuffle, bind, packed_rows, placed_rows
from boltdp.engines.postgres.session import Session
from boltdp.engines.postgres.source import Column, describe, find_table, query_source, read_arrays
from boltdp.engines.postgres.table import Layout, PreparedTable
from boltdp.engines.spool import BUCKET_BYTES, spool
from boltdp.errors import DataError, ParameterError

Where = Literal["auto", "server", "client"]


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
        self._columns: dict[str, Column] | None = None
        self._count: int | None = None
        try:
            self._source = query_source(query) if query is not None else find_table(self._session, str(table))
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
                block = read_arrays(cells[-1], len(numbers))
                arrays.update({name: pa.array(np.ascontiguousarray(block[:, i])) for i, name in enumerate(numbers)})
            yield pa.RecordBatch.from_pydict({name: arrays[name] for name in columns})

    def moments(
        self, schema: Schema, *, radius: float, on_bad_row: OnBadRow = "neutral", progress: Progress | None = None
    ) -> Integers:
        """Exact sums of the encoded features and of their squares: added up in the server, or streamed."""
        check_columns(schema, self.columns())
        rows = self.count()
        try:
            if not self.in_server or on_bad_row != "neutral":
                return streamed_moments(self, schema, radius=radius, on_bad_row=on_bad_row, progress=progress)
            packed = packed_rows(plain(schema), self._described())
            query = sql.SQL("SELECT boltdp.moments({}, {}::float8) FROM {}").format(
                packed.text, bind(packed.values, radius), self._source
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
                    placed_rows(schema, self._described(), self._source, rows=rows, seed=seed, shuffle=self.shuffle),
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

    def _described(self) -> dict[str, Column]:
        if self._columns is None:
            self._columns = describe(self._session, self._source)
        return self._columns
