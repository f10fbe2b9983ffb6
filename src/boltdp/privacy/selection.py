"""Choosing among candidates: what each way costs, and the random choices it makes. Proofs: `selection.md`.

A record of one of three kinds stands in the certificate of a tuned model:

`Portions`    the paper's Algorithm 3: each candidate is trained on rows of its own, the last rows choose among them
`Trials`      a random number of trials on all rows, each a random candidate with a noisy score; the best is released
`PublicRows`  rows that are declared public chose, and the private ones were used only once
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from flint import arb

from boltdp.errors import ParameterError, real_number, whole_number
from boltdp.privacy.noise import Budget, RandomBytes, Uniforms, calibrate, precision

#: One part in this many of a trial's epsilon pays for its score: a count of errors bears noise better than weights do.
SCORE_SHARE = 8


@dataclass(frozen=True, kw_only=True)
class Portions:
    """Algorithm 3: candidates + 1 portions of the rows, by position, whose sizes differ by at most one.

    >>> Portions(candidates=2, chosen=0, rows=10).bounds(2)
    (6, 10)
    """

    method: ClassVar[str] = "portions"
    candidates: int
    chosen: int  #: from 0
    rows: int  #: of all portions

    def __post_init__(self) -> None:
        _check(self)
        if self.rows < 2 * (self.candidates + 1):
            raise ParameterError(
                f"the data must have at least 2 rows for each of {self.candidates} candidates and for the choice, "
                f"got {self.rows} rows"
            )

    def bounds(self, portion: int) -> tuple[int, int]:
        """Where a portion starts and stops: that of each candidate, then the one that chooses."""
        parts = self.candidates + 1
        return portion * self.rows // parts, (portion + 1) * self.rows // parts

    @property
    def training_rows(self) -> int:
        """Rows the chosen model was trained on."""
        start, stop = self.bounds(self.chosen)
        return stop - start

    def model_budget(self, whole: Budget) -> Budget:
        """Section 1: portions are disjoint, so each model may spend the whole, and so may the choice."""
        return whole

    def describe(self) -> str:
        """How the model was chosen, in plain words."""
        return (
            f"candidate {self.chosen + 1} of {self.candidates}, each trained on rows of its own "
            f"({self.training_rows:,} of {self.rows:,}), chosen by the exponential mechanism on others"
        )


@dataclass(frozen=True, kw_only=True)
class Trials:
    """A geometric number of trials: after each, another one follows with probability 1 - 1/mean.

    >>> Trials(candidates=5, chosen=0, rows=1000, mean=100.0).training_rows
    1000
    """

    method: ClassVar[str] = "trials"
    candidates: int
    chosen: int
    rows: int
    mean: float  #: expected number of trials, 1/gamma

    def __post_init__(self) -> None:
        _check(self)
        if not 1 < real_number(self.mean, "mean") <= 1e6:
            raise ParameterError(f"the mean number of trials must be above 1 and at most 1000000, got {self.mean}")

    @property
    def training_rows(self) -> int:
        """Rows each model was trained on: all of them."""
        return self.rows

    def model_budget(self, whole: Budget) -> Budget:
        """What a trial may spend on its model: section 2 turns (e, d) of a trial into (3e, mean*d) of the whole.

        >>> round(Trials(candidates=5, chosen=0, rows=1000, mean=100.0).model_budget(Budget(2.4)).epsilon, 6)
        0.7
        """
        epsilon = math.nextafter(whole.split(3).epsilon - self.score_budget(whole).epsilon, 0.0)
        return Budget(epsilon, math.nextafter(whole.delta / self.mean, 0.0) if whole.delta else 0.0)

    def score_budget(self, whole: Budget) -> Budget:
        """What a trial may spend on its score."""
        return Budget(whole.split(3 * SCORE_SHARE).epsilon)

    def draw_count(self, random_bytes: RandomBytes) -> int:
        """How many trials to make. It must stay secret: section 2.3.

        >>> from boltdp.privacy.noise import seeded_bytes
        >>> Trials(candidates=5, chosen=0, rows=1000, mean=100.0).draw_count(seeded_bytes(1)) >= 1
        True
        """
        uniforms = Uniforms(1, random_bytes)
        while True:
            with precision(uniforms.bits + 64):
                (u,) = uniforms.intervals()
                more = (u.log() / (1 - 1 / arb(self.mean)).log()).floor().unique_fmpz()
            if more is not None:
                return 1 + int(more)
            uniforms.refine()

    def describe(self) -> str:
        """How the model was chosen, in plain words."""
        return (
            f"candidate {self.chosen + 1} of {self.candidates}, the best by noisy score in a random number of trials "
            f"on all {self.rows:,} rows"
        )


@dataclass(frozen=True, kw_only=True)
class PublicRows:
    """Candidates were compared in the open, on rows declared public; private rows had no part in it.

    >>> PublicRows(candidates=2, chosen=0, rows=10_000, public_rows=500).training_rows
    10000
    """

    method: ClassVar[str] = "public"
    candidates: int
    chosen: int
    rows: int  #: the private ones
    public_rows: int

    def __post_init__(self) -> None:
        _check(self)
        whole_number(self.public_rows, "public_rows", least=1)

    @property
    def training_rows(self) -> int:
        """Rows the released model was trained on: all private ones."""
        return self.rows

    def model_budget(self, whole: Budget) -> Budget:
        """Choosing cost nothing."""
        return whole

    def describe(self) -> str:
        """How the model was chosen, in plain words."""
        return (
            f"candidate {self.chosen + 1} of {self.candidates}, chosen on {self.public_rows:,} rows that were "
            f"declared public, then trained on {self.rows:,} others"
        )


Selection: TypeAlias = Portions | Trials | PublicRows


def read_selection(record: dict[str, Any]) -> Selection:
    """Read what `selection_record` wrote.

    >>> read_selection({"method": "portions", "candidates": 2, "chosen": 1, "rows": 30})
    Portions(candidates=2, chosen=1, rows=30)
    """
    kinds: dict[str, type[Selection]] = {kind.method: kind for kind in (Portions, Trials, PublicRows)}
    fields = dict(record)
    method = fields.pop("method")
    if method not in kinds:
        raise ParameterError(f"the method of a selection must be one of {', '.join(kinds)}, got {method!r}")
    return kinds[method](**fields)


def selection_record(selection: Selection) -> dict[str, Any]:
    """As JSON-able values.

    >>> selection_record(Portions(candidates=2, chosen=1, rows=30))["method"]
    'portions'
    """
    return {"method": selection.method, **dataclasses.asdict(selection)}


def choose(errors: Sequence[int], *, epsilon: float, random_bytes: RandomBytes) -> int:
    """The exponential mechanism: position i with probability ~ exp(-epsilon * errors[i] / 2).

    Exact: the smallest of ln(-ln U_i) + epsilon*errors[i]/2 has this distribution (section 1.2), and more bits of the
    uniforms are read until one of them is the smallest for certain.

    >>> from boltdp.privacy.noise import seeded_bytes
    >>> choose([900, 10, 800], epsilon=1.0, random_bytes=seeded_bytes(1))
    1
    """
    Budget(epsilon)  # refuses what is no epsilon
    if not errors:
        raise ParameterError("errors must have at least one count, got none")
    uniforms = Uniforms(len(errors), random_bytes)
    while True:
        with precision(uniforms.bits + 64):
            penalties = [arb(epsilon) * int(count) / 2 for count in errors]
            keys = [(-u.log()).log() + penalty for u, penalty in zip(uniforms.intervals(), penalties, strict=True)]
            for i, key in enumerate(keys):
                if all(bool(key < other) for j, other in enumerate(keys) if j != i):
                    return i
        uniforms.refine()


def noisy_count(count: int, *, epsilon: float, random_bytes: RandomBytes) -> float:
    """A count that one row can change by 1, with Laplace noise of scale 1/epsilon.

    >>> from boltdp.privacy.noise import seeded_bytes
    >>> abs(noisy_count(1000, epsilon=1.0, random_bytes=seeded_bytes(1)) - 1000) < 30
    True
    """
    # In one dimension the spherical mechanism is Laplace's.
    mechanism = calibrate(1.0, dimensions=1, budget=Budget(epsilon))
    return float(mechanism.add(np.array([float(count)]), random_bytes)[0])


def _check(selection: Selection) -> None:
    whole_number(selection.candidates, "candidates", least=1)
    whole_number(selection.rows, "rows", least=2)
    if whole_number(selection.chosen, "chosen", least=0) >= selection.candidates:
        raise ParameterError(f"chosen must be from 0 to {selection.candidates - 1}, got {selection.chosen}")
