"""The recipe of an SGD run in public numbers: the training problem with its batches, passes and steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from boltdp.errors import ParameterError, check_choice, check_number, check_whole_number
from boltdp.privacy.step_schedules import Schedule
from boltdp.privacy.training_problem import IF_GIVEN, Problem

#: Far above any practical number, and small enough for a list.
MAX_PASSES = 10_000_000
#: Far above any practical number, and small enough for a small rounding error of the average.
MAX_PARTITIONS = 1_000_000
#: Far below any practical step, and far above subnormal numbers.
MIN_STEP = 1e-100

Averaging = Literal["last", "all", "tail"]
Permutation = Literal["once", "fresh"]


@dataclass(frozen=True, kw_only=True)
class Recipe(Problem):
    """The batches, passes and steps of one model's SGD run.

    With several partitions, each has its own run over its own rows, from the same initial weights, and the result is
    the average of the runs weighted by their rows. Batches and updates are then those of the largest partition.
    """

    batch_size: int  #: b, as requested; the actual sizes of batches differ by at most one
    passes: int  #: k
    schedule: Schedule
    radius: float = math.inf  #: R: weights are projected on the ball of this radius after each update
    averaging: Averaging = "last"  #: the last iterate, the average of all, or of the last ceil(ln T)
    permutation: Permutation = "once"  #: one permutation for all passes, or a fresh one each pass
    partitions: int = field(default=1, metadata=IF_GIVEN)  #: P

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.downweighted:
            raise ParameterError("rows must be shortened for passes of SGD, got downweighted ones")
        for name in ("batch_size", "passes", "partitions"):
            object.__setattr__(self, name, check_whole_number(getattr(self, name), name, least=1))
        object.__setattr__(self, "radius", check_number(self.radius, "radius"))
        if self.passes > MAX_PASSES:
            raise ParameterError(f"passes must be at most {MAX_PASSES:,}, got {self.passes}")
        if self.partitions > MAX_PARTITIONS:
            raise ParameterError(f"partitions must be at most {MAX_PARTITIONS:,}, got {self.partitions}")
        fewest = self.rows // self.partitions
        if fewest < 2:
            raise ParameterError(f"partitions must have at least 2 of the {self.rows} rows each, got {self.partitions}")
        if self.batch_size > fewest:
            rows = "rows of a partition" if self.partitions > 1 else "rows"
            raise ParameterError(f"batch_size must be at most the number of {rows}, {fewest}, got {self.batch_size}")
        if not self.radius > 0:
            raise ParameterError(f"radius must be > 0, got {self.radius}")
        check_choice(self.averaging, "averaging", Averaging)
        check_choice(self.permutation, "permutation", Permutation)
        smallest = float(self.schedule.compute_steps(self.updates)[0]) / self.largest_batch
        if smallest < MIN_STEP:
            raise ParameterError(f"the step of one row must be at least {MIN_STEP:g}, got {smallest:g}")

    def compute_partition_bounds(self, number: int) -> tuple[int, int]:
        """Return the start and stop of a partition among the permuted rows: floor(p*m/P) and floor((p+1)*m/P)."""
        return number * self.rows // self.partitions, (number + 1) * self.rows // self.partitions

    def restrict_to_partition(self, rows: int) -> Recipe:
        """Return the recipe of the run over a partition of `rows` rows."""
        return replace(self, rows=rows, partitions=1)

    @property
    def partition_recipes(self) -> tuple[Recipe, ...]:
        """The recipes of the partitions of each size, of which there are at most two, the largest last."""
        fewest, most = self.rows // self.partitions, self.partition_rows
        return tuple(self.restrict_to_partition(rows) for rows in (fewest, most)[fewest == most :])

    @property
    def partition_rows(self) -> int:
        """The number of rows of the largest partition."""
        return -(-self.rows // self.partitions)

    @property
    def batches(self) -> int:
        """n, the number of batches of one pass, round(m/b); their sizes differ by at most one."""
        return max(1, (2 * self.partition_rows + self.batch_size) // (2 * self.batch_size))

    @property
    def smallest_batch(self) -> int:
        return self.partition_rows // self.batches

    @property
    def largest_batch(self) -> int:
        return -(-self.partition_rows // self.batches)

    @property
    def updates(self) -> int:
        """T, the number of updates of the whole run."""
        return self.batches * self.passes

    @property
    def averaged(self) -> int:
        """The number of last updates whose weights are averaged."""
        if self.averaging == "last":
            return 1
        if self.averaging == "all":
            return self.updates
        return max(1, math.ceil(math.log(self.updates)))


def check_undivided(recipe: Recipe, what: str) -> None:
    """Raise ParameterError for a recipe with several partitions, which `what` does not support."""
    if recipe.partitions > 1:
        raise ParameterError(f"partitions must be 1 for {what}, got {recipe.partitions}")
