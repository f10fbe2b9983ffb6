"""The registry of engines: which sources each one opens, and what it can do.

Descriptions do not import the libraries of their engines, since most commands need at most one.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from boltdp.engines._frame_types import is_pandas_frame, is_table
from boltdp.errors import DataError, ParameterError, require

if TYPE_CHECKING:
    from boltdp.engines.base import Engine, Where

#: Wildcards in the name of a file.
PATTERN_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True)
class Options:
    """The options of `open_source`."""

    table: str | None = None
    query: Any = None
    spool: str | Path | None = None
    where: Where = "auto"


class EngineDescription(ABC):
    """The sources that an engine opens, and its capabilities."""

    has_tables: ClassVar[bool] = False  #: whether `table` or `query` may select rows
    chooses_where: ClassVar[bool] = False  #: whether `where` may select where passes run
    declares_schema: ClassVar[bool] = False  #: whether columns declare bounds and categories
    holds_ledger: ClassVar[bool] = False  #: whether the source can store a ledger
    writes_tables: ClassVar[bool] = False  #: whether `write_table` is supported

    @abstractmethod
    def can_open(self, source: Any) -> bool:
        """Return whether this engine can open the source."""

    @abstractmethod
    def open(self, source: Any, options: Options) -> Engine:
        """Open a source for which `can_open` is true."""

    def list_local_paths(self, source: Any, table: str | None, query: Any) -> list[str]:
        """Return the local files, patterns and directories that a source and a table or a query of it name."""
        return []

    def find_dataset_name(self, source: Any, table: str | None) -> str | None:
        """Return the name by which a ledger knows the rows of a source, or of a table in it, if they have one."""
        return table

    def write_table(
        self, source: str, table: str, blocks: Iterable[Any], *, dims: int, progress: Callable[[int], None] | None
    ) -> None:
        """Write blocks of features and labels to a new table; only if `writes_tables` is true."""
        raise NotImplementedError


class _OpenEngine(EngineDescription):
    """An open engine, with which no options are allowed."""

    has_tables = chooses_where = True

    def can_open(self, source: Any) -> bool:
        # If the module is not imported, the source cannot be one of its objects; likewise below.
        base = sys.modules.get("boltdp.engines.base")
        return base is not None and isinstance(source, base.Engine)

    def open(self, source: Any, options: Options) -> Engine:
        if options != Options():
            raise ParameterError("table, query, spool and where must be given when an engine is opened, not beside it")
        return source  # type: ignore[no-any-return]


class _Postgres(EngineDescription):
    has_tables = chooses_where = declares_schema = holds_ledger = writes_tables = True

    def can_open(self, source: Any) -> bool:
        return isinstance(source, str) and source.startswith(("postgresql://", "postgres://"))

    def open(self, source: Any, options: Options) -> Engine:
        require("postgres", "reading from PostgreSQL")
        from boltdp.engines.postgres import PostgresEngine

        return PostgresEngine(source, **vars(options))

    def find_dataset_name(self, source: Any, table: str | None) -> str | None:
        # One name for each table, whatever the search path.
        from boltdp.engines.postgres.source import get_dataset_name

        return None if table is None else get_dataset_name(source, table)

    def write_table(
        self, source: str, table: str, blocks: Iterable[Any], *, dims: int, progress: Callable[[int], None] | None
    ) -> None:
        require("postgres", "writing to PostgreSQL")
        from boltdp.engines.postgres.load_table import load_table

        load_table(source, table, blocks, dims=dims, progress=progress)


class _SparkAddress(EngineDescription):
    has_tables = chooses_where = True

    def can_open(self, source: Any) -> bool:
        pattern = r"local(\[.*\])?|local-cluster\[.*\]|yarn|(spark|sc|k8s)://.+"
        return isinstance(source, str) and re.fullmatch(pattern, source) is not None

    def open(self, source: Any, options: Options) -> Engine:
        if options.where == "client":
            raise ParameterError("where must be 'auto' or 'server' with Spark, whose rows stay there, got 'client'")
        from boltdp.engines.spark import SparkEngine

        return SparkEngine.open(source, table=options.table, query=options.query, spool=options.spool)

    def list_local_paths(self, source: Any, table: str | None, query: Any) -> list[str]:
        return _select_local_paths(_find_spark_paths(f"{table or ''} {query or ''}"))

    def find_dataset_name(self, source: Any, table: str | None) -> str | None:
        paths = _find_spark_paths(table or "")
        return Path(paths[0]).name if paths else table


class _SparkFrame(EngineDescription):
    def can_open(self, source: Any) -> bool:
        return type(source).__module__.startswith("pyspark.sql.") and type(source).__name__ == "DataFrame"

    def open(self, source: Any, options: Options) -> Engine:
        from boltdp.engines.spark import SparkEngine

        return SparkEngine(source, spool=options.spool)

    def list_local_paths(self, source: Any, table: str | None, query: Any) -> list[str]:
        from boltdp.engines.spark.session import Session

        with closing(Session(source.sparkSession)) as session:
            files = session.ask(source.inputFiles, "the files of the DataFrame cannot be listed")
        return _select_local_paths(map(unquote, files))


class _Files(EngineDescription):
    """Files by name, pattern, directory or query, and DuckDB databases."""

    has_tables = True

    def can_open(self, source: Any) -> bool:
        return isinstance(source, (str, Path))

    def open(self, source: Any, options: Options) -> Engine:
        from boltdp.engines.duckdb import DuckDBEngine

        return DuckDBEngine.open(source, table=options.table, query=options.query, spool=options.spool)

    def list_local_paths(self, source: Any, table: str | None, query: Any) -> list[str]:
        paths = [str(source)]
        if query is not None:
            from boltdp.engines.duckdb import find_paths_in_query

            paths += find_paths_in_query(paths[0], query)
        return _select_local_paths(paths)

    def find_dataset_name(self, source: Any, table: str | None) -> str | None:
        if table is not None:
            from boltdp.engines.duckdb import get_dataset_name

            return get_dataset_name(source, table)
        return None if PATTERN_CHARACTERS & set(str(source)) else Path(source).name


class _DuckDBObject(EngineDescription):
    """A DuckDB relation, or an Arrow dataset, which DuckDB reads."""

    def can_open(self, source: Any) -> bool:
        kinds = (("duckdb", "DuckDBPyRelation"), ("pyarrow.dataset", "Dataset"))
        return any(
            module in sys.modules and isinstance(source, getattr(sys.modules[module], kind)) for module, kind in kinds
        )

    def open(self, source: Any, options: Options) -> Engine:
        from boltdp.engines.duckdb import DuckDBEngine

        return DuckDBEngine.from_object(source, spool=options.spool)

    def list_local_paths(self, source: Any, table: str | None, query: Any) -> list[str]:
        if hasattr(source, "sql_query"):
            from boltdp.engines.duckdb import find_paths_in_query

            return find_paths_in_query("", source.sql_query())
        parts = getattr(source, "children", ())  # of a union of datasets
        return [
            *(str(name) for name in getattr(source, "files", ())),
            *(path for part in parts for path in self.list_local_paths(part, table, query)),
        ]


class _SQLAlchemy(EngineDescription):
    has_tables = True

    def can_open(self, source: Any) -> bool:
        return type(source).__module__.startswith("sqlalchemy.") and hasattr(source, "dialect")

    def open(self, source: Any, options: Options) -> Engine:
        from boltdp.engines.sqlalchemy import SQLAlchemyEngine

        return SQLAlchemyEngine(source, table=options.table, query=options.query, spool=options.spool)

    def list_local_paths(self, source: Any, table: str | None, query: Any) -> list[str]:
        path = source.engine.url.database if source.dialect.name in ("sqlite", "duckdb") else None
        return _select_local_paths([] if path in (None, "", ":memory:") else [path])


class _Arrays(EngineDescription):
    """A pair (X, y), a pandas data frame, or an object that Arrow can read as a table."""

    def can_open(self, source: Any) -> bool:
        return (isinstance(source, tuple) and len(source) == 2) or is_pandas_frame(source) or is_table(source)

    def open(self, source: Any, options: Options) -> Engine:
        del options  # rows in memory stay there
        from boltdp.engines.in_memory import ArrayEngine

        if isinstance(source, tuple):
            return ArrayEngine.from_pair(*source)
        return ArrayEngine.from_pandas(source) if is_pandas_frame(source) else ArrayEngine.from_arrow(source)


def _find_spark_paths(query: str) -> list[str]:
    """Return the files that a query of Spark names as tables, by their format and their path.

    >>> _find_spark_paths("SELECT * FROM parquet.`data/rows.parquet` JOIN seen USING (id)")
    ['data/rows.parquet']
    """
    return re.findall(r"(?i)\b(?:avro|csv|delta|json|orc|parquet|text|xml)\s*\.\s*`([^`]+)`", query)


def _select_local_paths(paths: Iterable[str]) -> list[str]:
    """Return the paths of local files, without the scheme of an address."""
    return [
        re.sub(r"^file:(//(localhost)?(?=/))?", "", path)
        for path in paths
        if path.startswith("file:") or "://" not in path
    ]


#: The engines, in order of precedence.
ENGINES: tuple[EngineDescription, ...] = (
    _OpenEngine(),
    _Postgres(),
    _SparkAddress(),
    _Files(),
    _SQLAlchemy(),
    _DuckDBObject(),
    _SparkFrame(),
    _Arrays(),
)


def find_engine(source: Any) -> EngineDescription:
    """Return the description of the engine that opens a source.

    >>> find_engine("postgresql://localhost/hospital").declares_schema
    True
    >>> find_engine("data/rows.csv").find_dataset_name("data/rows.csv", None)
    'rows.csv'
    """
    found = next((engine for engine in ENGINES if engine.can_open(source)), None)
    if found is None:
        raise DataError(
            "the data must be a file name, a pair of arrays (X, y), a data frame, an Arrow table, a DuckDB relation or "
            f"an engine of SQLAlchemy, got an object of type {type(source).__name__!r}"
        )
    return found


def open_engine(source: Any, options: Options) -> Engine:
    """Open a source with its engine; raise ParameterError for options that the engine does not support."""
    engine = find_engine(source)
    if options.where != "auto" and not engine.chooses_where:
        raise ParameterError("where must be given only with a PostgreSQL database")
    if (options.table is not None or options.query is not None) and not engine.has_tables:
        raise ParameterError("table and query must be given only with a database or files")
    return engine.open(source, options)
