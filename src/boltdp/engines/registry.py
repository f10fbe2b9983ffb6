"""The registry of engines: which sources each one opens, and what it can do.

A description is known before the libraries of its engine are imported, since most commands need one of them or none.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from boltdp.engines._data_frames import is_pandas_frame, is_table
from boltdp.errors import DataError, ParameterError, require

if TYPE_CHECKING:
    from boltdp.engines.base import Engine

Where: TypeAlias = Literal["auto", "server", "client"]

#: Characters that stand for others in the name of a file.
PATTERN_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True)
class Options:
    """How a source is opened: the arguments of `open_source`."""

    table: str | None = None
    query: Any = None
    spool: str | Path | None = None
    where: Where = "auto"


class EngineDescription(ABC):
    """What an engine opens, and what it can do."""

    has_tables: ClassVar[bool] = False  #: whether `table` or `query` may say which rows are meant
    chooses_where: ClassVar[bool] = False  #: whether `where` may say where the passes are run
    declares_schema: ClassVar[bool] = False  #: whether its columns declare bounds and categories
    holds_ledger: ClassVar[bool] = False  #: whether a ledger can be in the source itself
    writes_tables: ClassVar[bool] = False  #: whether `write_table` can make a table of rows there

    @abstractmethod
    def opens(self, source: Any) -> bool:
        """Whether the source is one of this engine's."""

    @abstractmethod
    def open(self, source: Any, options: Options) -> Engine:
        """Open a source that this engine `opens`."""

    def local_paths(self, source: Any, query: str | None) -> list[str]:
        """Return the files, patterns and directories of this machine that a source and a query name."""
        del source, query
        return []

    def dataset_name(self, source: Any) -> str | None:
        """Return the name of a source without a table or a query, if it has one."""
        del source
        return None

    def write_table(
        self, source: str, table: str, blocks: Iterable[Any], *, dims: int, progress: Callable[[int], None] | None
    ) -> None:
        """Make a table of blocks of features and labels, where `writes_tables` says so."""
        raise NotImplementedError


class _OpenEngine(EngineDescription):
    """An engine that is open already, beside which nothing may be given."""

    has_tables = chooses_where = True

    def opens(self, source: Any) -> bool:
        # Whoever has an object of a library has imported it, here and below.
        base = sys.modules.get("boltdp.engines.base")
        return base is not None and isinstance(source, base.Engine)

    def open(self, source: Any, options: Options) -> Engine:
        if options != Options():
            raise ParameterError("table, query, spool and where must be given when an engine is opened, not beside it")
        return source  # type: ignore[no-any-return]


class _Postgres(EngineDescription):
    has_tables = chooses_where = declares_schema = holds_ledger = writes_tables = True

    def opens(self, source: Any) -> bool:
        return isinstance(source, str) and source.startswith(("postgresql://", "postgres://"))

    def open(self, source: Any, options: Options) -> Engine:
        require("postgres", "reading from PostgreSQL")
        from boltdp.engines.postgres import PostgresEngine

        return PostgresEngine(source, **vars(options))

    def write_table(
        self, source: str, table: str, blocks: Iterable[Any], *, dims: int, progress: Callable[[int], None] | None
    ) -> None:
        require("postgres", "writing to PostgreSQL")
        from boltdp.engines.postgres.copy_rows import load_rows

        load_rows(source, table, blocks, dims=dims, progress=progress)


class _SparkAddress(EngineDescription):
    """The address of a Spark master, or of a Connect server."""

    has_tables = chooses_where = True

    def opens(self, source: Any) -> bool:
        pattern = r"local(\[.*\])?|local-cluster\[.*\]|yarn|(spark|sc|k8s)://.+"
        return isinstance(source, str) and re.fullmatch(pattern, source) is not None

    def open(self, source: Any, options: Options) -> Engine:
        if options.where == "client":
            raise ParameterError("where must be 'auto' or 'server' with Spark, whose rows stay there, got 'client'")
        from boltdp.engines.spark import SparkEngine

        return SparkEngine.open(source, table=options.table, query=options.query, spool=options.spool)


class _SparkFrame(EngineDescription):
    def opens(self, source: Any) -> bool:
        return type(source).__module__.startswith("pyspark.sql.") and type(source).__name__ == "DataFrame"

    def open(self, source: Any, options: Options) -> Engine:
        from boltdp.engines.spark import SparkEngine

        return SparkEngine(source, spool=options.spool)


class _Files(EngineDescription):
    """A file, those of a pattern or a directory, files that a query names, or a database of DuckDB."""

    has_tables = True

    def opens(self, source: Any) -> bool:
        return isinstance(source, (str, Path))

    def open(self, source: Any, options: Options) -> Engine:
        from boltdp.engines.duckdb import DuckDBEngine

        return DuckDBEngine.open(source, table=options.table, query=options.query, spool=options.spool)

    def local_paths(self, source: Any, query: str | None) -> list[str]:
        paths = [str(source)]
        if query is not None:
            from boltdp.engines.duckdb import paths_in_query

            paths += paths_in_query(paths[0], query)
        return [path.removeprefix("file://") for path in paths]

    def dataset_name(self, source: Any) -> str | None:
        return None if PATTERN_CHARACTERS & set(str(source)) else Path(source).name


class _DuckDBObject(EngineDescription):
    """A relation of DuckDB, or a dataset of Arrow, which DuckDB reads."""

    def opens(self, source: Any) -> bool:
        kinds = (("duckdb", "DuckDBPyRelation"), ("pyarrow.dataset", "Dataset"))
        return any(
            module in sys.modules and isinstance(source, getattr(sys.modules[module], kind)) for module, kind in kinds
        )

    def open(self, source: Any, options: Options) -> Engine:
        from boltdp.engines.duckdb import DuckDBEngine

        return DuckDBEngine.from_object(source, spool=options.spool)


class _SQLAlchemy(EngineDescription):
    """An engine or a connection of SQLAlchemy."""

    has_tables = True

    def opens(self, source: Any) -> bool:
        return type(source).__module__.startswith("sqlalchemy.") and hasattr(source, "dialect")

    def open(self, source: Any, options: Options) -> Engine:
        from boltdp.engines.sqlalchemy import SQLAlchemyEngine

        return SQLAlchemyEngine(source, table=options.table, query=options.query, spool=options.spool)


class _Arrays(EngineDescription):
    """A pair (X, y), a data frame of pandas, or whatever Arrow can read as a table."""

    def opens(self, source: Any) -> bool:
        return (isinstance(source, tuple) and len(source) == 2) or is_pandas_frame(source) or is_table(source)

    def open(self, source: Any, options: Options) -> Engine:
        del options  # rows in memory stay there
        from boltdp.engines.arrays import ArrayEngine

        if isinstance(source, tuple):
            return ArrayEngine.from_pair(*source)
        return ArrayEngine.from_pandas(source) if is_pandas_frame(source) else ArrayEngine.from_arrow(source)


#: The engines, in the order in which they are asked.
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

    >>> find_engine("postgresql://localhost/hospital").declares_schema, find_engine("rows.csv").dataset_name("rows.csv")
    (True, 'rows.csv')
    """
    found = next((engine for engine in ENGINES if engine.opens(source)), None)
    if found is None:
        raise DataError(
            "the data must be a file name, a pair of arrays (X, y), a data frame, an Arrow table, a DuckDB relation or "
            f"an engine of SQLAlchemy, got an object of type {type(source).__name__!r}"
        )
    return found


def open_engine(source: Any, options: Options) -> Engine:
    """Open a source by the engine that opens it, and refuse options that this engine does not have."""
    engine = find_engine(source)
    if options.where != "auto" and not engine.chooses_where:
        raise ParameterError("where must be given only with a PostgreSQL database")
    if (options.table is not None or options.query is not None) and not engine.has_tables:
        raise ParameterError("table and query must be given only with a database or files")
    return engine.open(source, options)
