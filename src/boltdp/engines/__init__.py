"""Where the rows are: one file per engine, behind one base class."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from boltdp.errors import DataError, ParameterError, require

__all__ = [
    "ArrayEngine",
    "ColumnType",
    "DuckDBEngine",
    "Engine",
    "Prepared",
    "Slice",
    "Summation",
    "open_source",
    "opened",
]

if TYPE_CHECKING:
    from boltdp.engines.arrays import ArrayEngine
    from boltdp.engines.base import Engine, Prepared, Slice, Summation
    from boltdp.engines.duckdb import DuckDBEngine
    from boltdp.schema.source_columns import ColumnType
else:
    # Each engine brings a library of its own, and most commands need one of them or none.
    from boltdp._lazy import attributes

    __getattr__, __dir__ = attributes(
        __name__,
        {
            "ArrayEngine": "boltdp.engines.arrays",
            "ColumnType": "boltdp.schema.source_columns",
            "DuckDBEngine": "boltdp.engines.duckdb",
            "Engine": "boltdp.engines.base",
            "Prepared": "boltdp.engines.prepared_rows",
            "Slice": "boltdp.engines.base",
            "Summation": "boltdp.engines.prepared_rows",
        },
    )

#: How the URI of a PostgreSQL database starts.
POSTGRES = ("postgresql://", "postgres://")
#: The address of a Spark master, or of a Connect server.
SPARK = re.compile(r"local(\[.*\])?|local-cluster\[.*\]|yarn|(spark|sc|k8s)://.+")


def open_source(
    source: Any,
    *,
    table: str | None = None,
    query: Any = None,
    spool: str | Path | None = None,
    where: Literal["auto", "server", "client"] = "auto",
) -> Engine:
    """The engine for a file, a directory, a database, a pair of arrays (X, y), a data frame or an Arrow table.

    Files are known by their endings: .csv, .tsv, .jsonl, .ndjson (and .gz), .parquet, .pq, .arrow, .ipc, .feather. A
    directory has files of one kind, in the order of their paths; addresses such as s3://... and https://... need
    `boltdp[remote]`. A query over files names them as tables. .duckdb, .ddb and .db are databases, with a table or a
    query; so are postgresql://..., Spark by local[2], spark://... or sc://..., and an engine or a connection of
    SQLAlchemy, whose query may be a selectable. An engine of ours is taken as it is.

    Tables are those of pandas, Polars (lazy ones too), Arrow (data sets and readers too) and ibis, relations of DuckDB,
    and data frames of PySpark, whose rows stay in its cluster.
    `spool` is the directory for prepared rows that do not fit in memory. `where` is for PostgreSQL: "server" refuses to
    stream the rows to this process.

    >>> import pyarrow
    >>> open_source(pyarrow.table({"age": [30, 40]})).count()
    2
    """
    if "boltdp.engines.base" in sys.modules and isinstance(source, sys.modules["boltdp.engines.base"].Engine):
        if (table, query, spool, where) != (None, None, None, "auto"):
            raise ParameterError("table, query, spool and where must be given when an engine is opened, not beside it")
        return source  # type: ignore[no-any-return]
    if isinstance(source, str) and source.startswith(POSTGRES):
        return _open_postgres(source, table=table, query=query, spool=spool, where=where)
    if isinstance(source, str) and SPARK.fullmatch(source):
        return _open_spark(source, table=table, query=query, spool=spool, where=where)
    if where != "auto":
        raise ParameterError("where must be given only with a PostgreSQL database")
    if isinstance(source, (str, Path)):
        engine = _open_file(source, table=table, query=query, spool=spool)
        engine.spool = spool
        return engine
    if type(source).__module__.startswith("sqlalchemy.") and hasattr(source, "dialect"):
        from boltdp.engines.sqlalchemy import SQLAlchemyEngine

        return SQLAlchemyEngine(source, table=table, query=query, spool=spool)
    if table is not None or query is not None:
        raise ParameterError("table and query must be given only with a database or files")
    from boltdp.engines.arrays import ArrayEngine, is_table

    if isinstance(source, tuple) and len(source) == 2:
        return ArrayEngine.from_pair(*source)
    # Whoever has a relation has imported its library.
    if "duckdb" in sys.modules and isinstance(source, sys.modules["duckdb"].DuckDBPyRelation):
        from boltdp.engines.duckdb import DuckDBEngine

        engine = DuckDBEngine.from_relation(source)
        engine.spool = spool
        return engine
    if "pyarrow.dataset" in sys.modules and isinstance(source, sys.modules["pyarrow.dataset"].Dataset):
        from boltdp.engines.duckdb import DuckDBEngine

        engine = DuckDBEngine.from_dataset(source)
        engine.spool = spool
        return engine
    if type(source).__module__.startswith("pyspark.sql.") and type(source).__name__ == "DataFrame":
        from boltdp.engines.spark import SparkEngine

        return SparkEngine(source, spool=spool)
    if type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns"):
        return ArrayEngine.from_pandas(source)
    if is_table(source):
        return ArrayEngine.from_arrow(source)
    raise DataError(
        "the data must be a file name, a pair of arrays (X, y), a data frame, an Arrow table, a DuckDB relation or an "
        f"engine of SQLAlchemy, got an object of type {type(source).__name__!r}"
    )


@contextmanager
def opened(source: Any, **options: Any) -> Iterator[Engine]:
    """The engine of a source as `open_source` opens it, closed at the end, unless it was open before.

    >>> import pyarrow
    >>> with opened(pyarrow.table({"age": [30, 40]})) as engine:
    ...     engine.count()
    2
    """
    engine = open_source(source, **options)
    try:
        yield engine
    finally:
        if engine is not source:
            engine.close()


def _open_postgres(uri: str, **options: Any) -> Engine:
    require("postgres", "reading from PostgreSQL")
    from boltdp.engines.postgres import PostgresEngine

    return PostgresEngine(uri, **options)


def _open_spark(address: str, *, where: str, **options: Any) -> Engine:
    if where == "client":
        raise ParameterError("where must be 'auto' or 'server' with Spark, whose rows stay there, got 'client'")
    from boltdp.engines.spark import SparkEngine

    return SparkEngine.open(address, **options)


def _open_file(source: str | Path, *, table: str | None, query: str | None, spool: str | Path | None) -> Engine:
    from boltdp.engines._file_patterns import format_of
    from boltdp.engines.duckdb import DuckDBEngine

    if format_of(source) == "duckdb":
        return DuckDBEngine.from_database(source, table=table, query=query, spool=spool)
    if table is not None:
        raise ParameterError("table must be given only with a database")
    if query is not None:
        return DuckDBEngine.from_query(source, query, spool=spool)
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
    return DuckDBEngine.from_files(source, spool=spool)
