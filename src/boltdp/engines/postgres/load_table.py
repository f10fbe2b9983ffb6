"""Load numeric rows into a new PostgreSQL table, by binary COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import sql

from boltdp._array_types import PackedRows
from boltdp.engines.postgres.session import COPY_HEADER
from boltdp.errors import DataError

Blocks = Iterable[tuple[PackedRows, npt.NDArray[np.int32]]]

MAX_COLUMNS = 1600


def load_table(
    uri: str, table: str, blocks: Blocks, *, dims: int, progress: Callable[[int], None] | None = None
) -> None:
    """Create and fill a table with the columns f0, f1, ... and label, in one transaction.

    `progress` is called with the number of rows written so far.
    """
    if dims >= MAX_COLUMNS:
        raise DataError(f"a PostgreSQL table can have {MAX_COLUMNS} columns, {dims} features and a label are more")
    # In the binary COPY format, a row is its number of fields, and each field follows its length.
    number = [("length", ">i4"), ("number", ">f4")]
    row = np.zeros(1, [("fields", ">i2"), ("numbers", number, (dims,)), ("label_length", ">i4"), ("label", ">i4")])
    row["fields"], row["numbers"]["length"], row["label_length"] = dims + 1, 4, 4
    columns = ", ".join([*(f"f{i} real" for i in range(dims)), "label integer"])
    name = sql.Identifier(table)
    done = 0
    try:
        with psycopg.connect(uri) as connection, connection.cursor() as cursor:
            cursor.execute(sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(columns)))
            with cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(name)) as copy:
                copy.write(COPY_HEADER)
                for features, labels in blocks:
                    records = np.repeat(row, len(labels))
                    records["numbers"]["number"], records["label"] = features, labels
                    copy.write(records.tobytes())
                    done += len(labels)
                    if progress is not None:
                        progress(done)
    except psycopg.Error as error:
        reason = error.diag.message_primary or str(error).strip().splitlines()[0]
        raise DataError(f"the table {table!r} cannot be written: {reason}") from None
