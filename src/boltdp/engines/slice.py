"""Some of the rows of another engine, by their position: to declare a part of the data public, for example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from boltdp.arraytypes import Integers
from boltdp.data.encode import OnBadRow
from boltdp.data.schema import Schema
from boltdp.data.source import ColumnType, Kind
from boltdp.engines.base import Engine, Progress, encoded, streamed_moments
from boltdp.engines.spool import PreparedRows, spool
from boltdp.errors import ParameterError


class Slice:
    """The rows from position start to stop - 1 of an engine, in its own order.

    >>> from boltdp.engines.arrays import ArrayEngine
    >>> ages = Slice(ArrayEngine.from_arrow(pa.table({"age": [30, 40, 50]})), 1, 3)
    >>> ages.count(), [batch.to_pydict() for batch in ages.batches(["age"])]
    (2, [{'age': [40, 50]}])
    """

    def __init__(self, engine: Engine, start: int, stop: int) -> None:
        rows = engine.count()
        if not 0 <= start < stop <= rows:
            raise ParameterError(f"a slice must have 0 <= start < stop <= {rows}, got start={start} and stop={stop}")
        self._engine, self._start, self._stop = engine, start, stop

    def count(self) -> int:
        """Number of rows."""
        return self._stop - self._start

    def columns(self) -> dict[str, ColumnType]:
        """Names and types of the columns."""
        return self._engine.columns()

    def batches(self, columns: Sequence[str], *, parse: Mapping[str, Kind] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows in order."""
        at = 0
        for batch in self._engine.batches(columns, parse=parse):
            first, last = max(self._start - at, 0), min(self._stop - at, len(batch))
            if first < last:
                yield batch.slice(first, last - first)
            at += len(batch)
            if at >= self._stop:
                break

    def moments(
        self, schema: Schema, *, radius: float, on_bad_row: OnBadRow = "neutral", progress: Progress | None = None
    ) -> Integers:
        """Exact sums of the encoded features and of their squares."""
        return streamed_moments(self, schema, radius=radius, on_bad_row=on_bad_row, progress=progress)

    def prepare(
        self,
        schema: Schema,
        *,
        seed: int,
        on_bad_row: OnBadRow = "neutral",
        progress: Progress | None = None,
    ) -> PreparedRows:
        """Encode, project and permute the rows, in memory if they fit in one bucket of the spool."""
        blocks = encoded(self, schema, on_bad_row=on_bad_row)
        return spool(
            blocks,
            rows=self.count(),
            width=1 + schema.dims,
            seed=seed,
            directory=getattr(self._engine, "spool", None),
            progress=progress,
        )

    def close(self) -> None:
        """Nothing: the engine is closed by whoever opened it."""

    def __enter__(self) -> Slice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
