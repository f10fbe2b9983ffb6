"""The names and types of the columns of a source, which are known without reading values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import pyarrow as pa

from boltdp.encoding.declared_values import Value
from boltdp.errors import quote_names, suggest_names

Kind = Literal["number", "text", "bool", "list", "timestamp", "date", "untyped", "other"]

#: The largest number of rows of a batch.
MAX_BATCH_ROWS = 32768
#: The same for rows with lists, or that are converted one by one.
BATCH_ROWS = 8192
#: The largest number of cells of a batch.
BATCH_CELLS = 1 << 21
#: The largest number of cells of the batches of all threads together.
ALL_CELLS = 1 << 23


@dataclass(frozen=True)
class ColumnType:
    """The type and constraints of a column; columns of CSV files and of objects are "untyped"."""

    kind: Kind
    length: int | None = None  #: of every list, where the type fixes it
    bounds: tuple[float, float] | None = None  #: of every number, where a constraint declares them
    values: tuple[Value, ...] | None = None  #: all that there may be, where the type or a constraint declares them
    key: bool = False  #: it identifies rows, and so is not a feature
    parsed: bool = field(default=False, compare=False)  #: texts become numbers, cell by cell, where they are declared
    called: str | None = field(default=None, compare=False)  #: what the source calls the type, where it is another

    @classmethod
    def from_arrow(cls, arrow: Any) -> ColumnType:
        """Return the type of a column of this Arrow type."""
        types = pa.types
        if types.is_dictionary(arrow):
            return cls.from_arrow(arrow.value_type)
        lists = types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow)
        # Lists that are all empty have no element type.
        if lists and cls.from_arrow(arrow.value_type).kind in ("number", "untyped"):
            return cls("list", arrow.list_size if types.is_fixed_size_list(arrow) else None)
        tests: dict[Kind, Callable[[Any], bool]] = {
            "number": lambda t: types.is_integer(t) or types.is_floating(t) or types.is_decimal(t),
            "text": lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t),
            "bool": types.is_boolean,
            "timestamp": types.is_timestamp,
            "date": types.is_date,
            "untyped": types.is_null,
        }
        kind = next((kind for kind, test in tests.items() if test(arrow)), None)
        return cls("other", called=str(arrow)) if kind is None else cls(kind)


class OpenColumns(dict[str, ColumnType]):
    """The columns of a source that declares none, such as JSON lines, whose lines have keys of their own.

    Every name is an untyped column, whose cell is missing where a row does not have the key.
    """

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> ColumnType:
        return ColumnType("untyped")


def suggest_columns(columns: Mapping[str, ColumnType], declared: Iterable[str], missing: str | None = None) -> str:
    """Return a hint that names a column similar to the missing one, or all columns."""
    # The first line of a file without a header has values: names are quoted only if a declared one is among them.
    untyped = all(column.kind == "untyped" for column in columns.values())
    if untyped and not any(name in [*columns] for name in declared):
        return "none of these columns is there: is there a header that spells them so, and is it the right file?"
    return (None if missing is None else suggest_names(missing, columns)) or f"it has {quote_names(columns)}"


def choose_batch_rows(columns: int, *, lists: bool, threads: int = 1) -> int:
    """Choose the number of rows of a batch, such that the batches of all threads fit in memory."""
    cells = min(BATCH_CELLS, ALL_CELLS // threads)
    return max(1, min(BATCH_ROWS if lists else MAX_BATCH_ROWS, cells // max(columns, 1)))


class Source(Protocol):
    """A source of columns and rows, as every engine is; `boltdp.engines.base.Engine` describes its methods."""

    def columns(self) -> dict[str, ColumnType]: ...

    def batches(
        self, columns: Sequence[str], *, parse: Mapping[str, Kind] | None = None
    ) -> Iterator[pa.RecordBatch]: ...
