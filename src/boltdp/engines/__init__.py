"""Engines that read rows: one module or package per engine, a common base class, and the registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boltdp.engines.registry import Options, open_engine

if TYPE_CHECKING:
    from boltdp.engines.base import Engine, Where


def open_source(
    source: Any,
    *,
    table: str | None = None,
    query: Any = None,
    spool: str | Path | None = None,
    where: Where = "auto",
) -> Engine:
    """Open the engine for a file, a directory, a database, a pair of arrays (X, y), a data frame or an Arrow table.

    The format of a file follows from its suffix: .csv, .tsv, .jsonl, .ndjson (and .gz), .parquet, .pq, .arrow, .ipc,
    .feather. A directory has files of one format, in the order of their paths. Addresses such as s3://... and
    https://... need `boltdp[remote]`. A query over files names them as tables. Databases take a table or a query:
    .duckdb, .ddb and .db files, postgresql://..., Spark (local[2], spark://... or sc://...), and an engine or a
    connection of SQLAlchemy, whose query may be a selectable. An open `Engine` is returned unchanged.

    Tables are those of pandas, Polars (also lazy), Arrow (also datasets and readers) and ibis, relations of DuckDB,
    and data frames of PySpark, whose rows stay in its cluster.
    `spool` is the directory for prepared rows that do not fit in memory. `where` is for PostgreSQL: with "server",
    rows are never streamed to this process.

    >>> import pyarrow
    >>> open_source(pyarrow.table({"age": [30, 40]})).count()
    2
    """
    return open_engine(source, Options(table, query, spool, where))


@contextmanager
def use_source(source: Any, **options: Any) -> Iterator[Engine]:
    """Open a source with `open_source`, and close it at the end unless it is an open engine."""
    engine = open_source(source, **options)
    try:
        yield engine
    finally:
        if engine is not source:
            engine.close()
