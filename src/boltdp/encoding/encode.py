"""Encode Arrow batches as packed rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from boltdp._array_types import PackedRows
from boltdp.encoding.arrow_cells import Cells, Readers
from boltdp.encoding.compiled_plan import PlanPacker
from boltdp.encoding.declared_values import OnBadRow
from boltdp.encoding.plan import EncodingPlan
from boltdp.errors import DataError, check_choice


class Encoder:
    """Encodes batches by an encoding plan; several threads may share one.

    With `on_bad_row="error"`, for data that is not private, missing and undeclared values raise a DataError.
    """

    def __init__(self, plan: EncodingPlan, *, on_bad_row: OnBadRow = "neutral") -> None:
        check_choice(on_bad_row, "on_bad_row", OnBadRow)
        self.plan = plan
        self.width = 1 + plan.cell_count  #: numbers of a packed row
        self._strict = on_bad_row == "error"
        self._readers = [(rule.source, rule.accept(Readers())) for rule in plan.encoded_rules]
        self._packer = PlanPacker(plan)

    def encode(self, batch: pa.RecordBatch, out: PackedRows | None = None) -> PackedRows:
        """Return the packed rows of a batch, in `out` if it is given; a missing label or weight column becomes NaN."""
        out = np.empty((batch.num_rows, self.width), np.float32) if out is None else out
        if not batch.num_rows:
            return out
        label, names = self.plan.label.source, {*batch.schema.names}
        absent = {rule.source for rule in (self.plan.label, self.plan.weight) if rule is not None} - names
        sources = {name: Cells(batch.column(name)) for name, _ in self._readers if name not in absent}
        sources |= {name: Cells(pa.nulls(batch.num_rows)) for name in absent}
        cells = self._packer.pack([read(sources[name]) for name, read in self._readers], out)
        if self._strict:
            self._check_complete(cells, labelled=label in names)
        return out

    def _check_complete(self, out: PackedRows, *, labelled: bool) -> None:
        if labelled and np.isnan(out[:, 0]).any():
            raise _make_incomplete_error(self.plan.label.source, "one that is not declared")
        start = 1
        for rule in self.plan.rules:
            if rule.has_missing(out[:, start : start + rule.cell_count]):
                raise _make_incomplete_error(rule.source, rule.invalid_cell_phrase)
            start += rule.cell_count


def _make_incomplete_error(name: str, what: str) -> DataError:
    return DataError(f"column {name!r} must be complete, got a missing value or {what}")
