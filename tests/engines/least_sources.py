"""The least that an engine can be: three methods over a list of record batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pytest

from boltdp.engines.base import Engine
from boltdp.schema.source_columns import ColumnType, Kind
from tests.engines.sources import (
    BUCKETS,
    MIDDLE,
    SCHEMA,
    Source,
    curved,
    longer_table,
    projected,
    reference,
    register,
    table,
)


class BatchesEngine(Engine):
    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = batches

    def count(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    def columns(self) -> dict[str, ColumnType]:
        return {field.name: ColumnType.from_arrow(field.type) for field in self._batches[0].schema}

    def batches(
        self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Mapping[str, Kind] | None = None
    ) -> Iterator[pa.RecordBatch]:
        del parse  # every column has a type
        for batch in self._batches:
            yield batch.select([*columns, *keep])


@register("batches", buckets=tuple(BUCKETS))
def from_batches(_: pytest.FixtureRequest) -> Iterator[Source]:
    yield Source(BatchesEngine(table().to_batches(max_chunksize=300)), SCHEMA, reference())


@register("batches projected", buckets=("few buckets",))
def from_batches_projected(_: pytest.FixtureRequest) -> Iterator[Source]:
    yield projected(BatchesEngine(table().to_batches(max_chunksize=300)))


@register("batches curved", buckets=("few buckets",))
def from_batches_curved(_: pytest.FixtureRequest) -> Iterator[Source]:
    yield curved(BatchesEngine(table().to_batches(max_chunksize=300)))


@register("slice of a slice of batches")
def from_slice(_: pytest.FixtureRequest) -> Iterator[Source]:
    engine = BatchesEngine(longer_table().to_batches(max_chunksize=300))
    part = engine.slice(MIDDLE[0] - 7, MIDDLE[1] + 9)
    yield Source(part.slice(7, part.count() - 9), SCHEMA, reference())
