"""From columns to packed rows in SQL: the plan by which `boltdp.pack` encodes a row as `encoding.encode` does."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import numpy as np
from psycopg import sql

from boltdp.encoding.encode import projection_matrix
from boltdp.encoding.plan import unprojected_reading
from boltdp.encoding.values import Matcher
from boltdp.engines.postgres.session import Composed
from boltdp.engines.postgres.source import INTEGERS, SourceColumn
from boltdp.schema.schema import Categorical, Column, Schema, TimePart, Vector

#: Columns that are arguments of their own; more of them are the fields of one. A function may have 100.
MOST_ARGUMENTS = 90

# The words of a plan, as columns.c has them.
_MAGIC = b"boltpln1"
_CLASS, _CATEGORY, _NUMBER, _VECTOR = range(4)
_BY_TEXT, _BY_INTEGER, _BY_FLOAT = range(3)


def packed_columns(schema: Schema, columns: Mapping[str, SourceColumn]) -> tuple[bytes, Composed]:
    """The plan by which rows are encoded, made of public facts alone, and the columns that it is for."""
    given = [columns[schema.label].argument(), *(_argument(column, columns) for column in schema.columns)]
    arguments: Composed = sql.SQL(", ").join(given)
    if len(given) > MOST_ARGUMENTS:
        arguments = sql.SQL("ROW({})").format(arguments)
    parts = [
        _MAGIC,
        _words(len(given), _CLASS),
        _entries(columns[schema.label], Matcher.of(schema.classes)),
        *(_column(column, columns[column.source]) for column in schema.columns),
        _projection(schema),
    ]
    return b"".join(parts), arguments


def _argument(column: Column, columns: Mapping[str, SourceColumn]) -> Composed:
    source = columns[column.source]
    return source.part(column.part) if isinstance(column, TimePart) else source.argument()


def _column(column: Column, source: SourceColumn) -> bytes:
    if isinstance(column, TimePart):  # which the server has made a code of
        return _words(_CATEGORY) + _numbers(_BY_INTEGER, ((code, code) for code in range(len(column.categories))))
    if isinstance(column, Categorical):
        return _words(_CATEGORY) + _entries(source, Matcher.of(column.categories))
    if isinstance(column, Vector):
        return _words(_VECTOR, column.low, column.high, column.length)
    return _words(_NUMBER, column.low, column.high, len(column.curve), *column.curve)


def _entries(column: SourceColumn, matcher: Matcher) -> bytes:
    """What cells are compared with, as `Matcher` says, and the code of each."""
    if column.type.kind == "text":
        texts = {text.encode(): code for text, code in matcher.texts.items() if "\0" not in text}
        entries = (_words(code, len(text)) + text + bytes(-len(text) % 8) for text, code in texts.items())
        return _words(_BY_TEXT, len(texts)) + b"".join(entries)
    if column.base == "bool":
        truths = {truth: matcher.match_boolean(bool(truth)) for truth in (0, 1)}
        return _numbers(_BY_INTEGER, ((truth, code) for truth, code in truths.items() if code >= 0))
    if column.base in INTEGERS:
        return _numbers(_BY_INTEGER, ((int(n), code) for n, code in matcher.numbers.items() if n == int(n)))
    # In the column's own type, so that the real nearest to 0.1 is met by the declared 0.1.
    own = np.float32 if column.base == "float4" else np.float64
    return _numbers(_BY_FLOAT, ((float(own(n)), code) for n, code in matcher.numbers.items()))


def _numbers(match: int, numbers: Iterable[tuple[int | float, int]]) -> bytes:
    entries = [_words(code, number) for number, code in numbers]
    return _words(match, len(entries)) + b"".join(entries)


def _projection(schema: Schema) -> bytes:
    """How encoded rows are read and projected, if they are."""
    if schema.projection is None:
        return _words(0)
    matrix = projection_matrix(schema.projection, schema.encoded_dims)
    block = unprojected_reading(schema).block.tobytes()
    return _words(len(block)) + block + _words(schema.projection.dims) + matrix.tobytes()


def _words(*numbers: int | float) -> bytes:
    """Whole numbers and floats, 8 bytes each.

    >>> _words(1, 0.5).hex(" ", 8)
    '0100000000000000 000000000000e03f'
    """
    return b"".join(struct.pack("<q" if isinstance(number, int) else "<d", number) for number in numbers)
