"""Load numeric rows into a new PostgreSQL table by binary COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import sql

from boltdp._arrays import PackedRows
from boltdp.errors import DataError

Blocks = Iterable[tuple[PackedRows, npt.NDArray[np.int32]]]

#: Header of the binary COPY format: signature, no flags, no extension.
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_REAL = psycopg.postgres.types["float4"].oid
MAX_COLUMNS = 1600


def load_rows(
    uri: str,
    table: str,
    blocks: Blocks,
    *,
    dims: int,
    as_array: bool = False,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Create and fill a table with the columns f0, f1, ... and label, or x real[] and label, in one transaction.

    `progress` is called with the number of rows written so far.
    """
    if not as_array and dims >= MAX_COLUMNS:
        raise DataError(f"a PostgreSQL table can have {MAX_COLUMNS} columns, {dims} features and a label are more")
    try:
        with psycopg.connect(uri) as connection:
            _copy_blocks(connection, table, blocks, dims=dims, as_array=as_array, progress=progress)
    except psycopg.Error as error:
        reason = error.diag.message_primary or str(error).strip().splitlines()[0]
        raise DataError(f"the table {table!r} cannot be written: {reason}") from None


def _copy_blocks(
    connection: psycopg.Connection[Any],
    table: str,
    blocks: Blocks,
    *,
    dims: int,
    as_array: bool,
    progress: Callable[[int], None] | None,
) -> None:
    columns = ["x real[]"] if as_array else [f"f{i} real" for i in range(dims)]
    create = "CREATE TABLE {} (" + ", ".join([*columns, "label integer"]) + ")"
    connection.execute(sql.SQL(create).format(sql.Identifier(table)))
    if as_array:
        # Set before loading: compressed or toasted rows take several times as long to read.
        connection.execute(sql.SQL("ALTER TABLE {} ALTER x SET STORAGE PLAIN").format(sql.Identifier(table)))
    row = _make_row_template(dims, as_array=as_array)
    done = 0
    with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(sql.Identifier(table))) as copy:
        copy.write(_SIGNATURE)
        for features, labels in blocks:
            records = np.repeat(row, len(labels))
            records["numbers"]["number"] = features
            records["label"] = labels
            copy.write(records.tobytes())
            done += len(labels)
            if progress is not None:
                progress(done)


def _make_row_template(dims: int, *, as_array: bool) -> npt.NDArray[np.void]:
    """Return a row in the binary COPY format, where each number follows its length, with zeros as values."""
    number = [("length", ">i4"), ("number", ">f4")]
    array: list[Any] = [("array_length", ">i4"), ("header", ">i4", (5,))] if as_array else []
    fields = [("fields", ">i2"), *array, ("numbers", number, (dims,)), ("label_length", ">i4"), ("label", ">i4")]
    row = np.zeros(1, np.dtype(fields))
    row["fields"] = 2 if as_array else dims + 1
    if as_array:
        row["array_length"] = 20 + 8 * dims
        row["header"] = [1, 0, _REAL, dims, 1]  # dimensions, no NULL, element type, length, first index
    row["numbers"]["length"] = 4
    row["label_length"] = 4
    return row
