"""Private evaluation of models, from noisy counts of the rows.

`NoisyEvaluation` is computed from one noisy histogram: each row is in one bin, by its subgroup, label and prediction;
all rows without a usable label are in one bin. The bins depend only on the model and public numbers.

Proof: noisy_counts.md 6
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from boltdp._files.sealed import OUTSIDE, ModelFileError, add_digest, compute_digest, read_sealed_file
from boltdp._version import __version__
from boltdp.errors import ParameterError
from boltdp.evaluation.evaluation import Evaluation, choose_statistics
from boltdp.evaluation.metrics import Counts
from boltdp.evaluation.statistics import Bins, Statistics
from boltdp.model import Model
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import CertificateError, compare_records, find_non_private_reasons
from boltdp.privacy.events.event import Event, NonPrivateEvent
from boltdp.privacy.events.noisy_counts import NoisyCounts
from boltdp.privacy.serialization import from_record, to_record

FORMAT = "boltdp-evaluation"
FORMAT_VERSION = 3


@dataclass(frozen=True, repr=False)
class NoisyEvaluation(Evaluation):
    """An evaluation from noisy counts of private rows. All of it may be published."""

    model: str  #: the digest of the model without its threshold
    rows: int
    by: str | None
    groups: tuple[str, ...]
    bins: Bins
    counts: tuple[float, ...]  #: as they were released
    budget: Budget
    spent: Event
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    version: str = __version__

    def __post_init__(self) -> None:
        if len(self.counts) != self.bins.bin_count or not np.isfinite(self.counts).all():
            raise ParameterError(f"an evaluation must have {self.bins.bin_count} counts, got {len(self.counts)}")
        if len(self.groups) != self.bins.groups:
            raise ParameterError("an evaluation must have the groups of its bins")
        if not isinstance(self._event, NoisyCounts) or (self._event.releases, self._event.unknown) != (1, 0):
            raise ParameterError("an evaluation must be of counts that were released once, of public bins")
        if self.adjacency is not Adjacency.from_person_rows(self.person_rows):
            raise ParameterError("an evaluation must be about the relation of its counts")

    @property
    def person_rows(self) -> int | None:
        """The maximum number of rows per person, if persons are protected; None: rows are."""
        return self.spent.person_rows

    @property
    def _event(self) -> Event:
        """The privacy event of the counts, even if it is marked as non-private."""
        return self.spent.spent if isinstance(self.spent, NonPrivateEvent) else self.spent

    @property
    def noise(self) -> float:
        """The standard deviation of the noise of each count."""
        assert isinstance(self._event, NoisyCounts)
        return self._event.noise.deviation

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Why the evaluation is not private; empty if it is."""
        return find_non_private_reasons(self.spent, self.budget)

    def guarantee(self) -> str:
        if self.reasons:
            return f"NOT PRIVATE: {'; '.join(self.reasons)}."
        protected = ""
        if self.person_rows is not None:
            first = "the first row counts" if self.person_rows == 1 else f"the first {self.person_rows:,} rows count"
            protected = f" Protected is a person, of whom {first}."
        return (
            f"Differentially private with {self.budget.describe()}: all figures are computed from {len(self.counts):,} "
            f"counts of the {self.rows:,} rows, each with noise of deviation {self.noise:.3g}.{protected}"
        )

    @cached_property
    def statistics(self) -> Statistics:
        """The counts, corrected by their total, which is public: its noise is divided among all counts.

        Proof: noisy_counts.md 6
        """
        counts = np.array(self.counts)
        counts += (self.rows - counts.sum()) / len(counts)
        table = counts[:-1].reshape(self.bins.shape)
        return self.bins.make_statistics(Counts(table, self.rows, self.person_rows or 1, self.noise, len(counts)))

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "private": not self.reasons,
            "reasons": list(self.reasons),
            **to_record(self),
            **super().to_dict(),
        }

    def seal(self) -> dict[str, Any]:
        """Return the record of an evaluation file: the evaluation with its digest."""
        return add_digest(self.to_dict())

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> NoisyEvaluation:
        """Read the result of `to_dict`; raise ModelFileError if metrics do not follow from the counts."""
        if record.get("format") != FORMAT or record.get("format_version") != FORMAT_VERSION:
            raise ModelFileError(
                "this is not an evaluation that this boltdp can read",
                hint="`boltdp evaluate MODEL SOURCE --epsilon E -o evaluation.json` writes one",
            )
        try:
            found = from_record(cls, {name: record[name] for name in cls.__dataclass_fields__ if name in record})
            compare_records(dict(record), found.to_dict(), "the evaluation")
        except CertificateError as fault:
            raise ModelFileError(str(fault)) from None
        except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as fault:
            raise ModelFileError(f"the evaluation cannot be read: {fault}") from None
        return found

    @classmethod
    def load(cls, path: str | Path) -> NoisyEvaluation:
        """Read a file of `boltdp evaluate -o`; raise ModelFileError if it was changed after it was written."""
        return cls.from_dict({key: value for key, value in read_sealed_file(path).items() if key not in OUTSIDE})


def plan_bins(model: Model, *, rows: int, groups: int, noise: float) -> Bins:
    """Choose the bins of a noisy evaluation from public numbers; their number balances noise and error."""
    return choose_statistics(model).plan_bins(model, rows=rows, groups=groups, noise=noise)


def digest_model(model: Model) -> str:
    """Return the digest by which an evaluation identifies its model: without the threshold, which may be changed."""
    return compute_digest(replace(model, threshold=None).to_dict())
