"""The training problem in public numbers, from which the kernel's state and every sensitivity are derived."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from boltdp.errors import ParameterError, check_number, check_whole_number
from boltdp.losses import Loss

#: The smallest class weight, where the largest is 1.
MIN_CLASS_WEIGHT = 1e-4

#: The largest maximum of rows per person: far above any practical number, and exact in products with doubles.
MAX_PERSON_ROWS = 1_000_000

#: The metadata of fields that are recorded only if not the default, which keeps older files valid.
IF_GIVEN = {"record": "if given"}


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

    #: whether rows longer than 1 keep their length and are weighted by 1 / ||x||^2, instead of being shortened to 1
    downweighted: bool = field(default=False, metadata=IF_GIVEN)

    def __post_init__(self) -> None:
        if not isinstance(self.downweighted, bool):
            raise ParameterError(f"downweighted must be true or false, got {self.downweighted!r}")
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
        if self.loss.target != "classes":
            raise ParameterError(f"class_weights must be for a loss of classes, got {self.loss.name!r}")
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
