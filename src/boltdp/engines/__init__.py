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
    from boltdp.data.source import ColumnType
    from boltdp.engines.arrays import ArrayEngine
    from boltdp.engines.base import Engine, Prepared, Slice, Summation
    from boltdp.engines.files import DuckDBEngine
else:
    # Each engine brings a library of its own, and most commands need one of them or none.
    from boltdp.lazy import attributes

    __getattr__, __dir__ = attributes(
        __name__,
        {
            "ArrayEngine": "boltdp.engines.arrays",
            "ColumnType": "boltdp.data.source",
            "DuckDBEngine": "boltdp.engines.files",
            "Engine": "boltdp.engines.base",
            "Prepared": "boltdp.engines.prepared",
            "Slice": "boltdp.engines.base",
            "Summation": "boltdp.engines.prepared",
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
    query: str | None = None,
    spool: str | Path | None = None,
    where: Literal["auto", "server", "client"] = "auto",
) -> Engine:
    """The engine for a file name, a pair (X, y), a data frame, an Arrow table or a DuckDB relation; or itself.

    Files are known by their endings: .csv, .tsv (and .gz), .parquet, .pq; .duckdb, .ddb, .db with a table or a query.
    postgresql://... is a PostgreSQL database, and local[2], spark://... or sc://... a Spark cluster, with a table or a
    query. A data frame may be one of PySpark, whose rows stay in its cluster.
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
    if table is not None or query is not None:
        raise ParameterError("table and query must be given only with a database")
    from boltdp.engines.arrays import ArrayEngine

    if isinstance(source, tuple) and len(source) == 2:
        return ArrayEngine.from_pair(*source)
    # Whoever has a relation has imported its library.
    if "duckdb" in sys.modules and isinstance(source, sys.modules["duckdb"].DuckDBPyRelation):
        from boltdp.engines.files import DuckDBEngine

        engine = DuckDBEngine.from_relation(source)
        engine.spool = spool
        return engine
    if type(source).__module__.startswith("pyspark.sql.") and type(source).__name__ == "DataFrame":
        from boltdp.engines.spark import SparkEngine

        return SparkEngine(source, spool=spool)
    # pandas offers Arrow's stream interface too, but raises errors that quote values.
    if type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns"):
        return ArrayEngine.from_pandas(source)
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return ArrayEngine.from_arrow(source)
    raise DataError(
        "the data must be a file name, a pair of arrays (X, y), a data frame, an Arrow table or a DuckDB relation, "
        f"got an object of type {type(source).__name__!r}"
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
    from boltdp.engines.files import DuckDBEngine

    suffixes = [suffix.lower() for suffix in Path(source).suffixes]
    ending = next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")
    if ending in (".duckdb", ".ddb", ".db"):
        return DuckDBEngine.from_database(source, table=table, query=query, spool=spool)
    if table is not None or query is not None:
        raise ParameterError("table and query must be given only with a database")
    if ending in (".csv", ".tsv"):
        return DuckDBEngine.from_csv(source)
    if ending in (".parquet", ".pq"):
        return DuckDBEngine.from_parquet(source)
    raise DataError(
        f"the file {str(source)!r} must be CSV, Parquet or DuckDB, with a name ending in .csv, .tsv, .parquet, .pq, "
        ".duckdb, .ddb or .db"
    )
