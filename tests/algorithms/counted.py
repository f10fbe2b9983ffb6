"""Engines and prepared rows that count how often they are read, and otherwise do what those inside them do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from boltdp._array_types import Integers, PackedRows
from boltdp.engines.base import Engine, PreparedRows
from boltdp.kernel.sgd import State
from boltdp.kernel.sum_state import Summation
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType, Kind


class CountedRows(PreparedRows):
    """Prepared rows that count their scans, by name; `states` is how many states all passes together fed."""

    def __init__(self, inside: PreparedRows, counts: Counter[str] | None = None) -> None:
        self._inside = inside
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.rows, self.cells, self.feature_map, self.permuted = (
            inside.rows,
            inside.cells,
            inside.feature_map,
            inside.permuted,
        )
        self.fed: list[State] = []

    def read_blocks(self) -> Iterator[PackedRows]:
        return self._inside.read_blocks()

    def slice(self, start: int, stop: int) -> PreparedRows:
        return CountedRows(self._inside.slice(start, stop), self.counts)

    def reshuffle(self, seed: int) -> None:
        self.counts["reshuffle"] += 1
        self._inside.reshuffle(seed)

    def run_sampled_batches(self, states: Sequence[State], positions: Iterable[Integers]) -> None:
        self.counts["run_sampled_batches"] += 1
        self.fed += states
        self._inside.run_sampled_batches(states, positions)

    def run_pass(self, states: Sequence[State], context: Context) -> None:
        self.counts["run_pass"] += 1
        self.counts["states"] += len(states)
        self.fed += states
        self._inside.run_pass(states, context)

    def add_to_sums(self, sums: Sequence[Summation]) -> None:
        self.counts["sum"] += 1
        self._inside.add_to_sums(sums)

    @contextmanager
    def open_sample(self, share: float) -> Iterator[PreparedRows]:
        self.counts["sampled"] += 1
        with self._inside.open_sample(share) as few:
            counted = CountedRows(few)
            yield counted
        self.counts["sum of sample"] += counted.counts["sum"]

    def close(self) -> None:
        self._inside.close()


class CountedEngine(Engine):
    """An engine whose prepared rows count their scans."""

    def __init__(self, inside: Engine) -> None:
        self._inside = inside
        self.counts: Counter[str] = Counter()

    def count(self) -> int:
        return self._inside.count()

    def columns(self) -> dict[str, ColumnType]:
        return self._inside.columns()

    def batches(
        self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Mapping[str, Kind] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._inside.batches(columns, keep, parse=parse)

    def prepare(self, schema: Schema, context: Context, *, permuted: bool = True) -> PreparedRows:
        self.counts["prepare"] += 1
        return CountedRows(self._inside.prepare(schema, context, permuted=permuted), self.counts)
