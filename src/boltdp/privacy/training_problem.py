"""The training problem in public numbers, from which the kernel's state and every sensitivity are derived."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from boltdp.errors import ParameterError, check_choice, check_number, check_whole_number
from boltdp.losses import Loss
from boltdp.privacy.step_schedules import Schedule

#: Far above any practical number, and small enough for a list.
MAX_PASSES = 10_000_000
#: Far above any practical number, and small enough for a small rounding error of the average.
MAX_PARTITIONS = 1_000_000
#: Far below any practical step, and far above subnormal numbers.
MIN_STEP = 1e-100

#: The smallest class weight, where the largest is 1.
MIN_CLASS_WEIGHT = 1e-4

#: The largest maximum of rows per person: far above any practical number, and exact in products with doubles.
MAX_PERSON_ROWS = 1_000_000

#: The metadata of fields that are recorded only if not the default, which keeps older files valid.
IF_GIVEN = {"record": "if given"}

Averaging = Literal["last", "all", "tail"]
Permutation = Literal["once", "fresh"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The objective of one model: the mean loss of the rows, plus (lambda/2)||w||^2.

    Class weights multiply the loss of each row. The largest weight is 1, so that every bound on the loss holds for the
    weighted loss too.

    Proof: sgd_sensitivity.md 7
    """

    loss: Loss
    dims: int  #: the features of a row, including the constant feature
    rows: int  #: m
    regularization: float = 0.0  #: lambda, the strong convexity of the whole objective
    class_weights: tuple[float, ...] | None = field(default=None, metadata=IF_GIVEN)  #: one per class; None: all are 1
    #: g, the maximum number of rows per person, if neighbours differ in a person; None: they differ in a row
    person_rows: int | None = field(default=None, metadata=IF_GIVEN)

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise ParameterError(f"loss must be a Loss that states its constants, got {type(self.loss).__name__!r}")
        for name, least in (("rows", 0), ("dims", 1)):
            object.__setattr__(self, name, check_whole_number(getattr(self, name), name, least=least))
        object.__setattr__(self, "regularization", check_number(self.regularization, "regularization"))
        if max(self.dims, self.rows) >= 2**63:
            raise ParameterError(f"dims and rows must fit in 63 bits, got {self.dims} and {self.rows}")
        if self.rows < 2:
            raise ParameterError(f"the data must have at least 2 rows, got {self.rows}")
        if not 0 <= self.regularization < math.inf:
            raise ParameterError(f"regularization must be a finite number >= 0, got {self.regularization}")
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", self._validate_class_weights(self.class_weights))
        check_person_rows(self.person_rows)

    def _validate_class_weights(self, class_weights: tuple[float, ...]) -> tuple[float, ...]:
        weights = tuple(check_number(weight, "each of the class_weights") for weight in class_weights)
        classes = self.loss.vector_count if self.loss.vector_count > 1 else max(2, len(weights))
        if len(weights) != classes:
            raise ParameterError(f"class_weights must be one for each of the {classes} classes, got {len(weights)}")
        if not all(MIN_CLASS_WEIGHT <= weight <= 1 for weight in weights) or max(weights) != 1:
            raise ParameterError(f"class_weights must be from {MIN_CLASS_WEIGHT:g} to 1, and the largest of them 1")
        return weights

    @property
    def changed_rows(self) -> int:
        """The maximum number of rows that are replaced between neighbours.

        Proof: adjacency.md 1
        """
        return 1 if self.person_rows is None else self.person_rows

    @property
    def beta(self) -> float:
        """The smoothness of the whole objective: of the loss and the penalty."""
        return self.loss.smoothness + self.regularization

    @property
    def weight_count(self) -> int:
        """D, the number of weights of one model."""
        return self.loss.vector_count * self.dims

    @property
    def dimensions(self) -> int:
        """The dimension of the space of possible weights, in which noise is added."""
        return self.loss.directions * self.dims


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
        smallest = float(self.schedule.at(self.updates)[0]) / self.largest_batch
        if smallest < MIN_STEP:
            raise ParameterError(f"the step of one row must be at least {MIN_STEP:g}, got {smallest:g}")

    def partition_bounds(self, number: int) -> tuple[int, int]:
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


def check_person_rows(person_rows: int | None) -> None:
    """Raise ParameterError unless the number of rows per person is None or from 1 to MAX_PERSON_ROWS."""
    if person_rows is not None and check_whole_number(person_rows, "person_rows", least=1) > MAX_PERSON_ROWS:
        raise ParameterError(f"person_rows must be at most {MAX_PERSON_ROWS:,}, got {person_rows}")


def check_single_rows(person_rows: int | None, what: str, *, hint: str | None = None) -> None:
    """Raise ParameterError if neighbours differ in a person instead of a row, for which `what` has no proof."""
    if person_rows is not None:
        raise ParameterError(
            f"a person_id must not be given for {what}, which is proved for single rows only", hint=hint
        )


def check_undivided(recipe: Recipe, what: str) -> None:
    """Raise ParameterError for a recipe with several partitions, which `what` does not support."""
    if recipe.partitions > 1:
        raise ParameterError(f"partitions must be 1 for {what}, got {recipe.partitions}")
