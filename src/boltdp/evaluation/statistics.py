"""The statistics that evaluations follow from: exact or noisy counts of rows, in one class per kind of target.

A kind has three classes: `Statistics`, from which every figure follows; a `Tally`, which counts rows exactly, in memory
that does not grow with them; and `Bins`, which are public and count private rows, for noise to be added.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Booleans, Doubles, Integers, PackedRows
from boltdp.encoding.declared_values import format_value
from boltdp.errors import ParameterError
from boltdp.evaluation.metrics import Counts, Score, Table
from boltdp.model import Model
from boltdp.schema.schema import Schema

if TYPE_CHECKING:
    from boltdp.evaluation.class_statistics import ClassStatistics
    from boltdp.evaluation.evaluation import Evaluation

Indices: TypeAlias = npt.NDArray[np.intp]

NO_GROUP = "none declared"
#: The mask of all cells of a table of counts.
EVERY_CELL: Doubles = np.ones((1, 1, 1))


class Statistics(ABC):
    """Exact or noisy counts of rows with a usable label, from which every figure follows."""

    kind: ClassVar[str]  #: of the target
    usable_label: ClassVar[str]  #: what a row must have to be counted, in words

    counts: Counts  #: rows by subgroup and two more indices

    @classmethod
    @abstractmethod
    def start_tally(cls, model: Model, groups: int) -> Tally:
        """Return an empty count of rows for an exact evaluation."""

    @classmethod
    @abstractmethod
    def plan_bins(cls, model: Model, *, rows: int, groups: int, noise: float) -> Bins:
        """Choose the bins of a noisy evaluation from public numbers; their number balances noise and error."""

    @property
    def cells(self) -> Doubles:
        """The mask of the cells of the counts that a row can be in."""
        return EVERY_CELL

    @abstractmethod
    def compute_scores(self, mask: Doubles) -> dict[str, Score | None]:
        """Compute the metrics of all rows in the subgroups of `mask`; None for those that noise hides."""

    def compute_group_scores(self, mask: Doubles) -> dict[str, Score | None]:
        """Compute the metrics of the subgroups in `mask`, with their number of rows."""
        rows = self.counts.count_rows_in(self.cells * mask[:, None, None])
        return {"rows": rows, **self.compute_scores(mask)}

    def make_tables(self, *, detailed: bool) -> list[Table]:
        """Return the tables of a card, or with `detailed` all."""
        return []

    def describe_other_figures(self) -> list[tuple[str, str]]:
        """Return names and texts of figures without an interval."""
        return []

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def draw(self, evaluation: Evaluation, path: str | Path) -> None: ...

    def require_classes(self) -> ClassStatistics:
        """Return the statistics if they are of classes; raise a ParameterError otherwise."""
        raise ParameterError("the evaluation must be of a label with classes for this figure")


class Tally(ABC):
    """A growing count of rows."""

    @abstractmethod
    def add(self, labels: npt.NDArray[Any], margins: Doubles, groups: Indices) -> None:
        """Count rows by their encoded labels, which are usable, margins and subgroups."""

    @abstractmethod
    def make_statistics(self, rows: int) -> Statistics:
        """Return the statistics of `rows` rows, including those without a usable label."""


@dataclass(frozen=True)
class Bins(ABC):
    """The bins of a noisy evaluation, which are public; the last one is of all rows without a usable label."""

    groups: int  #: subgroups, including that of rows without a declared category

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """The shape of the table of counts by subgroup and two more indices."""

    @property
    def bin_count(self) -> int:
        """The number of bins: those of the table, and that of rows without a usable label."""
        return math.prod(self.shape) + 1

    @abstractmethod
    def locate_rows(self, model: Model, labels: npt.NDArray[Any], margins: Doubles) -> Indices:
        """Return for each row the index of its bin within its subgroup."""

    @abstractmethod
    def make_statistics(self, counts: Counts) -> Statistics: ...

    def count_rows(self, model: Model, packed: PackedRows, group_cell: int | None) -> Integers:
        """Count packed rows in each bin of a noisy evaluation; `group_cell` is the index of the subgroup's cell."""
        codes = None if group_cell is None else packed[:, group_cell]
        known, group = index_groups(packed[:, 0], codes, self.groups)
        cells = self.locate_rows(model, packed[known, 0], model.margins(packed)[known])
        counts: Integers = np.bincount(group * math.prod(self.shape[1:]) + cells, minlength=self.bin_count).astype(
            np.int64
        )
        counts[-1] = len(packed) - len(cells)
        return counts


def index_groups(labels: npt.NDArray[Any], codes: npt.NDArray[Any] | None, groups: int) -> tuple[Booleans, Indices]:
    """Return which rows have a usable label, and the indices of their subgroups."""
    known = ~np.isnan(labels)
    group = np.zeros(int(known.sum()), np.intp) if codes is None else codes[known].astype(np.intp)
    return known, np.where(group < 0, groups - 1, group)


def list_group_names(schema: Schema, by: str | None) -> tuple[str, ...]:
    """Return the names of the subgroups by a categorical column of the schema; one empty name without a column."""
    if by is None:
        return ("",)
    declared = [column for column in schema.columns if column.encoding_rule.values]
    column = next((one for one in declared if one.name == by), None)
    names = ", ".join(repr(one.name) for one in declared) or "none"
    if column is None or schema.projection is not None:
        raise ParameterError(
            f"by must be a categorical column of the model's schema, without a projection, got {by!r}",
            hint=f"the schema has {names}",
        )
    return (*(format_value(value) for value in column.encoding_rule.values), NO_GROUP)
