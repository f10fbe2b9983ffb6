"""Private evaluation of classifiers, from noisy counts of the rows.

`NoisyEvaluation` is computed from one noisy histogram: each row is in one bin, by its subgroup, class and score;
all rows without a declared class are in one bin. The bins depend only on the model and public numbers. Metrics that
bins and noise would bias are omitted: the average precision and the calibration error, and with more than two classes
the areas, the precisions and the confusion matrix.

Proof: noisy_counts.md 6
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from boltdp._array_types import Doubles, Integers, PackedRows
from boltdp._files.sealed import OUTSIDE, ModelFileError, add_digest, compute_digest, read_sealed_file
from boltdp._version import __version__
from boltdp.errors import ParameterError
from boltdp.evaluation.evaluation import TABLE_ROWS, Evaluation, Statistics, index_rows
from boltdp.evaluation.metrics import Counts, make_calibration_bins
from boltdp.model import Model
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import CertificateError, compare_records, why_not_private
from boltdp.privacy.events.event import Event, NonPrivate
from boltdp.privacy.events.noisy_counts import NoisyCounts
from boltdp.privacy.serialization import from_record, to_record

FORMAT = "boltdp-evaluation"
FORMAT_VERSION = 2

#: Maximum number of noisy bins of scores on either side of the decision threshold.
MAX_NOISY_BINS = 20
#: The error of an area or a loss from n bins is about BIN_ERROR / n^2.
BIN_ERROR = 0.5


@dataclass(frozen=True)
class Bins:
    """The bins of a noisy evaluation, which are public.

    With two classes, scores are probabilities of the second (or margins): `low` are the edges of the bins in which the
    first is predicted, `high` those of the other bins. With more classes, scores are probabilities of a row's true
    class: `low` are the edges of the bins of misclassified rows, `high` those of the others.
    """

    groups: int  #: subgroups, including that of rows without a declared category
    classes: int
    probabilistic: bool
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        edges = (*self.low, *self.high)
        if len(self.low) != len(self.high) or len(self.low) < 2 or min(self.groups, self.classes - 1) < 1:
            raise ParameterError("the bins of an evaluation must be those of groups, classes and as many edges twice")
        if not all(map(math.isfinite, edges)) or not all(np.diff(self.low) > 0) or not all(np.diff(self.high) > 0):
            raise ParameterError("the edges of the bins of an evaluation must be numbers that grow")
        if self.probabilistic and not all(0.0 <= edge <= 1.0 for edge in edges):
            raise ParameterError("the edges of the bins of an evaluation must be probabilities")

    @property
    def bins_per_side(self) -> int:
        """The number of bins of scores on either side of the decision threshold."""
        return len(self.low) - 1

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.groups, self.classes, 2 * self.bins_per_side

    @property
    def bin_count(self) -> int:
        """The number of bins, including the last one for rows without a declared class."""
        return math.prod(self.shape) + 1

    def compute_mean_losses(self, name: str) -> Doubles:
        """Return the mean "log loss" or "Brier score" by class and bin, for probabilities uniform in each bin."""
        integrals: dict[str, Callable[[Doubles], Doubles]] = {
            "log loss": lambda p: p - p * np.log(np.maximum(p, np.finfo(np.float64).tiny)),
            "Brier score": lambda p: -((1.0 - p) ** 3) / 3.0,
        }
        integral = integrals[name]
        left, right = np.array([*self.low[:-1], *self.high[:-1]]), np.array([*self.low[1:], *self.high[1:]])
        second = (integral(right) - integral(left)) / (right - left)
        if self.classes > 2:
            return np.tile(second, (self.classes, 1))
        first = (integral(1.0 - left) - integral(1.0 - right)) / (right - left)
        return np.array([first, second])

    def count_rows(self, model: Model, packed: PackedRows, group_cell: int | None) -> Integers:
        """Count packed rows in each bin of a noisy evaluation; `group_cell` is the index of the subgroup's cell."""
        codes = None if group_cell is None else packed[:, group_cell]
        known, own, group = index_rows(packed[:, 0], codes, self.groups)
        margins = model.margins(packed)[known]
        if self.classes == 2:
            bins = np.searchsorted(self._compute_margin_edges(model), margins[:, 0], side="left")
        else:
            right = model.predict_indices(margins) == own
            bins = self.bins_per_side * right
            if self.bins_per_side > 1:
                scores = model.probabilities(margins)[np.arange(len(own)), own]
                low, high = (np.searchsorted(edges[1:-1], scores, side="left") for edges in (self.low, self.high))
                bins += np.where(right, high, low)
        cells = (group * self.classes + own) * 2 * self.bins_per_side + bins
        counts: Integers = np.bincount(cells, minlength=self.bin_count).astype(np.int64)
        counts[-1] = len(packed) - len(own)
        return counts

    def _compute_margin_edges(self, model: Model) -> Doubles:
        """Return the margins between the bins of two classes; the middle one is the decision threshold."""
        edges = np.array([*self.low[1:], *self.high[1:-1]])
        if self.probabilistic:
            invert_link = model.certificate.problem.loss.invert_link
            edges = np.array([invert_link(float(edge)) for edge in edges])
        edges[self.bins_per_side - 1] = model.cut
        return np.maximum.accumulate(edges)


@dataclass(frozen=True, repr=False)
class NoisyEvaluation(Evaluation):
    """An evaluation from noisy counts of private rows. All of it may be published."""

    model: str  #: the digest of the model without its threshold
    rows: int
    classes: tuple[str, ...]
    threshold: float | None
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
        if len(self.classes) != self.bins.classes or len(self.groups) != self.bins.groups:
            raise ParameterError("an evaluation must have the classes and groups of its bins")
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
        return self.spent.spent if isinstance(self.spent, NonPrivate) else self.spent

    @property
    def noise(self) -> float:
        """The standard deviation of the noise of each count."""
        assert isinstance(self._event, NoisyCounts)
        return self._event.noise.deviation

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Why the evaluation is not private; empty if it is."""
        return why_not_private(self.spent, self.budget)

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

    @property
    def probabilistic(self) -> bool:  # type: ignore[override]
        return self.bins.probabilistic

    @cached_property
    def statistics(self) -> Statistics:
        """The counts, corrected by their total, which is public: its noise is divided among all counts.

        Proof: noisy_counts.md 6
        """
        counts, bins, half = np.array(self.counts), self.bins, self.bins.bins_per_side
        counts += (self.rows - counts.sum()) / len(counts)
        table = counts[:-1].reshape(bins.shape)
        decisions = Counts(table, self.rows, self.person_rows or 1, self.noise, len(counts))
        low, high = (np.arange(2 * half) < half).astype(np.float64), (np.arange(2 * half) >= half).astype(np.float64)
        edges, step = np.array([*bins.low, *bins.high[1:]]), math.ceil(half / (TABLE_ROWS // 2))
        places = [*range(0, half, step), *range(half, 2 * half, step), 2 * half]
        names = ("log loss", "Brier score")[: 2 if self.is_binary else 1] if bins.probabilistic else ()
        calibrated = self.is_binary and bins.probabilistic
        calibration = make_calibration_bins(decisions, edges.tolist(), places) if calibrated else ()
        return Statistics(
            decisions=decisions,
            is_correct=np.array([low, high] if self.is_binary else [high] * len(self.classes)),
            is_predicted=np.array([low, high]) if self.is_binary else None,
            losses={name: (losses := bins.compute_mean_losses(name), np.zeros(losses.shape)) for name in names},
            rankings=(decisions,) if self.is_binary else (),
            lowest_scores=edges[:-1],
            scored=decisions if self.is_binary else None,
            edges=edges,
            calibration=calibration,
            calibration_errors=(None,) * len(self.classes),
        )

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
    """Choose the bins of scores for a noisy evaluation from public numbers; their number balances noise and error."""
    classes, loss = len(model.classes), model.certificate.problem.loss

    def estimate_error(half: int) -> float:
        return noise * math.sqrt(classes * groups * half / 2.0) / max(rows, 1) + BIN_ERROR / (2.0 * half) ** 2

    half = min(range(1, MAX_NOISY_BINS + 1), key=estimate_error) if classes == 2 or loss.probabilistic else 1
    if classes > 2:
        low, high = _make_probability_edges(0.0, 0.5, half), _make_probability_edges(1.0 / classes, 1.0, half)
        return Bins(groups, classes, loss.probabilistic, low, high)
    # No row has a norm above 1, so that margins are at most the norm of the weights.
    reach = float(np.linalg.norm(model.weights)) or 1.0
    least, middle, most = -reach, model.cut, reach
    if loss.probabilistic:
        least, most = (float(one) for one in model.probabilities(np.array([[-reach], [reach]]))[:, 1])
        middle = 0.5 if model.threshold is None else model.threshold
    if not least < middle:
        least = 0.0 if loss.probabilistic else middle - reach
    if not middle < most:
        most = 1.0 if loss.probabilistic else middle + reach
    edges = _make_probability_edges if loss.probabilistic else _make_uniform_edges
    return Bins(groups, classes, loss.probabilistic, edges(least, middle, half), edges(middle, most, half))


def _make_uniform_edges(least: float, most: float, bins: int) -> tuple[float, ...]:
    return tuple(np.linspace(least, most, bins + 1).tolist())


def _make_probability_edges(least: float, most: float, bins: int) -> tuple[float, ...]:
    """Return the edges of bins of probabilities, narrower near 0 and 1: they are uniform in arcsin sqrt p."""
    inside = np.sin(_make_uniform_edges(math.asin(math.sqrt(least)), math.asin(math.sqrt(most)), bins)[1:-1]) ** 2
    return (least, *inside.tolist(), most)


def digest_model(model: Model) -> str:
    """Return the digest by which an evaluation identifies its model: without the threshold, which may be changed."""
    return compute_digest(replace(model, threshold=None).to_dict())
