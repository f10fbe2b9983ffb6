"""The limit `max_rows_per_person`: the first rows of each person are used, and the others become neutral rows.

Which rows are used depends on the order of the rows and on their ids alone. Neutral rows keep their positions, so the
number of rows does not change. Rows without an id count as those of one unknown person.

Proof: adjacency.md 1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from boltdp._array_types import Booleans, Integers, PackedRows
from boltdp._threads import close_at_end
from boltdp.encoding.arrow_buffers import to_arrow_array, view_values
from boltdp.encoding.encode import Encoder
from boltdp.errors import DataError, ParameterError, suggest_names
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType


def check_person_id(schema: Schema, columns: Mapping[str, ColumnType], context: Context) -> None:
    """Raise an error if the column of the schema's person_id is missing or unusable, before any row is read."""
    if schema.person_id is None:
        return
    if schema.person_id not in columns:
        used = {*schema.training_sources}
        raise DataError(
            f"the data must have the column {schema.person_id!r}, which the schema declares as its person_id",
            hint=suggest_names(schema.person_id, [name for name in columns if name not in used]),
        )
    if columns[schema.person_id].kind == "list":
        raise DataError(f"column {schema.person_id!r}, the person_id, must have ids, its type is 'list'")
    if context.on_bad_row == "error":
        raise ParameterError(
            "on_bad_row must be 'neutral' for a schema with a person_id: rows beyond max_rows_per_person are neutral"
        )


class FirstRows:
    """Finds the first `limit` rows of each person, batch by batch, with a counter per person."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counted: dict[Any, int] = {}

    def mark_next_rows(self, ids: pa.Array) -> Booleans:
        """Return which of the next rows, given by the ids of their persons, are within the limit."""
        codes, persons = _encode_ids(ids)
        earlier = np.fromiter((self._counted.get(person, 0) for person in persons), np.int64, len(persons))
        here = np.bincount(codes, minlength=len(persons))
        # The rank of each row among the rows of its person in this batch, by a stable sort.
        order = np.argsort(codes, kind="stable")
        begin = np.cumsum(here) - here
        rank = np.empty(len(codes), np.int64)
        rank[order] = np.arange(len(codes)) - begin[codes[order]]
        self._counted.update(zip(persons, np.minimum(earlier + here, self._limit).tolist(), strict=True))
        within: Booleans = earlier[codes] + rank < self._limit
        return within


def mark_rows_within_limit(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Replace the ids in the last column of each batch by whether the row is within the limit."""
    first = FirstRows(limit)
    with close_at_end(batches):
        for batch in batches:
            *cells, ids = batch.columns
            yield pa.RecordBatch.from_arrays([*cells, to_arrow_array(first.mark_next_rows(ids))], batch.schema.names)


class LimitingEncoder:
    """Encodes batches of `mark_rows_within_limit`; rows beyond the limit become neutral rows."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        names = [*dict.fromkeys(rule.source for rule in encoder.plan.encoded_rules)]
        self._neutral = Encoder(encoder.plan).encode(pa.RecordBatch.from_arrays([pa.nulls(1)] * len(names), names))

    def encode(self, batch: pa.RecordBatch, out: PackedRows | None = None) -> PackedRows:
        *cells, within = batch.columns
        rows = self._encoder.encode(pa.RecordBatch.from_arrays(cells, batch.schema.names[:-1]), out)
        rows[~view_values(within)] = self._neutral
        return rows


def _encode_ids(ids: pa.Array) -> tuple[Integers, list[Any]]:
    """Return the integer code of each row's person, and the id of each code; None is the unknown person."""
    import pyarrow.compute as pc  # imported here, as most schemas declare no person_id

    kind = ids.type
    try:
        if pa.types.is_dictionary(kind):
            return _encode_ids(ids.dictionary_decode())
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            ids = ids.cast(pa.large_binary())  # Arrow strings may be invalid UTF-8
        elif pa.types.is_floating(kind):
            ids = pc.add(pc.if_else(pc.is_nan(ids), None, ids), 0.0)  # -0.0 becomes 0.0
        elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
            ids = ids.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        found = ids.dictionary_encode()
    except pa.ArrowNotImplementedError:
        raise DataError(
            f"the person_id must be a column of ids, such as numbers or texts, its type is {kind}"
        ) from None
    persons = found.dictionary.to_pylist()
    codes = found.indices.fill_null(len(persons)).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [*persons, None]
