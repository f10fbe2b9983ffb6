"""Evaluation of classifiers: exact or noisy counts of the rows, and the metrics that follow from them.

`ExactEvaluation` is computed without noise, so that no guarantee covers it. Its memory does not grow with the number of
rows: scores are counted in up to 2^20 bins, and areas are exact up to `area_error`.

`NoisyEvaluation` is computed from one noisy histogram: each row is in one bin, by its subgroup, class and score;
all rows without a declared class are in one bin. The bins depend only on the model and public numbers. Metrics that
bins and noise would bias are omitted: the average precision and the calibration error, and with more than two classes
the areas, the precisions and the confusion matrix.

Proof: noisy_counts.md 6
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._arrays import Doubles, Integers, PackedRows
from boltdp._files.sealed import OUTSIDE, ModelFileError, add_digest, compute_digest, read_sealed_file
from boltdp._version import __version__
from boltdp.encoding.declared_values import format_value
from boltdp.errors import ParameterError
from boltdp.evaluation.scores_with_intervals import (
    CalibrationBin,
    Counts,
    Curve,
    Score,
    Table,
    average_scores,
    expected_calibration_error,
    make_calibration_bins,
    tabulate_scores,
    to_records,
)
from boltdp.model import Model
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import CertificateError, compare_records, why_not_private
from boltdp.privacy.events.event import Event, NonPrivate
from boltdp.privacy.events.noisy_counts import NoisyCounts
from boltdp.privacy.serialization import from_record, to_record
from boltdp.schema.schema import Schema

Indices: TypeAlias = npt.NDArray[np.intp]

FORMAT = "boltdp-evaluation"
FORMAT_VERSION = 2

#: Bins of exactly counted probabilities, and rows of the calibration table.
CALIBRATION_BINS, TABLE_ROWS = 100, 10
#: Bins of exactly counted scores: in total, and maximum and minimum per class and subgroup.
ALL_SCORE_BINS, MAX_SCORE_BINS, MIN_SCORE_BINS = 1 << 21, 1 << 20, 1 << 8
#: Maximum number of probabilities that are computed at a time.
MAX_CELLS = 1 << 20
#: Maximum number of noisy bins of scores on either side of the decision threshold.
MAX_NOISY_BINS = 20
#: The error of an area or a loss from n bins is about BIN_ERROR / n^2.
BIN_ERROR = 0.5
NO_GROUP = "none declared"


@dataclass(frozen=True, eq=False)
class Statistics:
    """Exact or noisy counts, from which every metric follows."""

    decisions: Counts  #: rows by subgroup, class and outcome, which is a predicted class or a bin of scores
    is_correct: Doubles  #: 1 for each class and outcome that is a correct prediction, else 0
    is_predicted: Doubles | None  #: 1 for each predicted class and its outcomes, else 0; None if only errors are known
    losses: Mapping[str, tuple[Doubles, Doubles]]  #: mean and variance of each loss, by class and outcome
    #: For the second of two classes, or each of more: rows by subgroup, negative or positive, and bin of scores.
    rankings: tuple[Counts, ...]
    lowest_scores: Doubles  #: the lower edges of these bins; probabilities, if the two classes have them
    scored: Counts | None  #: negative and positive rows by bin of the probability or margin
    edges: Doubles  #: the edges of these bins
    calibration: tuple[CalibrationBin, ...]  #: of the second of two classes, or of the most likely; empty if unknown
    calibration_errors: tuple[float | None, ...]  #: of the probability of each class


@dataclass(frozen=True, eq=False)
class ClassFigures:
    """The metrics of one class against the rest."""

    name: str
    scores: Mapping[str, Score | None]  #: rows, precision, recall, area under the curve, average precision
    calibration_error: float | None
    curve: Curve | None

    def to_dict(self) -> dict[str, Any]:
        figures = {name.replace(" ", "_"): one for name, one in to_records(self.scores).items()}
        return {"class": self.name, **figures, "calibration_error": self.calibration_error}


def _make_score_property(name: str) -> property:
    """Make a property of an evaluation that is the value of one metric; None if that is unknown."""

    def value(self: Evaluation) -> float | None:
        score = self.scores.get(name)
        return None if score is None else score.value

    return property(value, doc=f"The {name}; None if it is unknown.")


class Evaluation(ABC):
    """The evaluation of a classifier on some rows."""

    rows: int  #: including those without a declared class, which no metric includes
    classes: tuple[str, ...]
    threshold: float | None
    by: str | None  #: the column of the subgroups
    groups: tuple[str, ...]  #: the category of each subgroup, then NO_GROUP; or one empty name
    probabilistic: bool

    accuracy = _make_score_property("accuracy")
    balanced_accuracy = _make_score_property("balanced accuracy")
    #: This and the next are of the second of two classes; of more, the mean over the classes that have one.
    area_under_the_curve = _make_score_property("area under the curve")
    average_precision = _make_score_property("average precision")
    log_loss = _make_score_property("log loss")
    #: The mean squared error of the probability; with more than two classes, summed over them.
    brier_score = _make_score_property("Brier score")

    @cached_property
    @abstractmethod
    def statistics(self) -> Statistics:
        """The counts, from which every metric follows."""

    @abstractmethod
    def guarantee(self) -> str:
        """Return the privacy guarantee of the evaluation in words."""

    @property
    def is_binary(self) -> bool:
        return len(self.classes) == 2

    @property
    def is_exact(self) -> bool:
        return not self.statistics.decisions.noise

    @cached_property
    def scores(self) -> dict[str, Score | None]:
        """The metrics of all rows with a declared class; None where there are too few rows."""
        return self._compute_scores(np.ones(len(self.groups)))

    @cached_property
    def by_class(self) -> tuple[ClassFigures, ...]:
        """The metrics of each class against the rest."""
        return tuple(self._compute_class_figures(place) for place in range(len(self.classes)))

    @cached_property
    def by_group(self) -> dict[str, dict[str, Score | None]]:
        """The metrics of each subgroup, with its number of rows and the recall of each class."""
        masks = np.eye(len(self.groups))
        return {} if self.by is None else dict(zip(self.groups, map(self._compute_group_scores, masks), strict=True))

    @property
    def calibration(self) -> tuple[CalibrationBin, ...]:
        """The calibration of the second of two classes, or of the most likely class; empty if unknown."""
        return self.statistics.calibration

    @property
    def calibration_error(self) -> float | None:
        return expected_calibration_error(self.calibration)

    @cached_property
    def area_error(self) -> float | None:
        """An upper bound on the error of the area under the curve from binning the scores."""
        errors = [error for counts in self.statistics.rankings if (error := counts.area_error()) is not None]
        return math.fsum(errors) / len(errors) if errors and self.area_under_the_curve is not None else None

    @property
    def rows_without_class(self) -> Score:
        counted = self.statistics.decisions.total_rows(np.ones((1, 1, 1)))
        value, low, high = (max(0.0, self.rows - one) for one in (counted.value, counted.high, counted.low))
        return Score(value, low, high)

    @cached_property
    def confusion(self) -> Doubles | Integers | None:
        """The confusion matrix: rows by true and predicted class; None if only errors are known."""
        if self.statistics.is_predicted is None:
            return None
        table: Doubles = self.statistics.decisions.table.sum(axis=0) @ self.statistics.is_predicted.T
        return table.astype(np.int64) if self.is_exact else table

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={score.value:.4g}" for name, score in self.scores.items() if score is not None)
        return f"{type(self).__name__}(rows={self.rows}, {known})"

    @property
    def _class_masks(self) -> Doubles:
        """For each class, the mask of its cells in the table of counts."""
        return np.eye(len(self.classes))[:, None, :, None]

    def _get_ranking(self, place: int) -> Counts | None:
        """Return the counts of a class by score, if any; of two classes the first has those of the second reversed."""
        rankings = self.statistics.rankings
        if not self.is_binary or not rankings:
            return rankings[place] if rankings else None
        return rankings[0] if place else replace(rankings[0], table=rankings[0].table[:, ::-1, ::-1])

    def _compute_group_scores(self, mask: Doubles) -> dict[str, Score | None]:
        """Compute the metrics of the subgroups in `mask`, with their number of rows and the recall of each class."""
        counts, cells = self.statistics.decisions, mask[:, None, None]
        recalls = {
            f"recall of {name}": counts.mean(self.statistics.is_correct, cells * own)
            for name, own in zip(self.classes, self._class_masks, strict=True)
        }
        return {"rows": counts.total_rows(cells), **self._compute_scores(mask), **recalls}

    def _compute_scores(self, mask: Doubles) -> dict[str, Score | None]:
        """Compute the metrics of all rows in the subgroups of `mask`; None for those that noise hides."""
        known, cells = self.statistics, mask[:, None, None]
        counts, own = known.decisions, cells * self._class_masks
        largest = int(np.argmax([(one * counts.table).sum() for one in own]))
        scores = {
            "accuracy": counts.mean(known.is_correct, cells),
            "commonest class always": counts.mean(own[largest], cells),
            "balanced accuracy": None,
        }
        recalls = [one for each in own if (one := counts.mean_with_gradient(known.is_correct, each)) is not None]
        # With noise, a class that seems to have no rows may have some.
        if len(recalls) == len(own) or (recalls and self.is_exact):
            value = math.fsum(value for value, _ in recalls) / len(recalls)
            scores["balanced accuracy"] = counts.add_interval((value, np.mean([one for _, one in recalls], axis=0)))
        if known.rankings:
            scores["area under the curve"] = average_scores([one.area_under_curve(cells) for one in known.rankings])
        if self.is_exact:
            curves = [Curve.from_counts(np.tensordot(mask, one.table, axes=1)) for one in known.rankings]
            scores["average precision"] = average_scores([one.average_precision(counts.person_rows) for one in curves])
        for name, (means, variances) in known.losses.items():
            scores[name] = counts.mean(means, cells, variances=variances, most=math.inf)
        return scores

    def _compute_class_figures(self, place: int) -> ClassFigures:
        known, own, ranking = self.statistics, self._class_masks[place], self._get_ranking(place)
        counts, predicted, every = known.decisions, known.is_predicted, np.ones((1, 1, 1))
        curve = None if ranking is None else Curve.from_counts(ranking.table.sum(axis=0))
        scores = {
            "rows": counts.total_rows(own),
            "precision": None if predicted is None else counts.mean(own, predicted[place][None, None]),
            "recall": counts.mean(known.is_correct, own),
            "area under the curve": None if ranking is None else ranking.area_under_curve(every),
            "average precision": curve.average_precision(counts.person_rows) if curve and self.is_exact else None,
        }
        return ClassFigures(self.classes[place], scores, known.calibration_errors[place], curve)

    def make_tables(self) -> list[Table]:
        """Return a table of the classes and one of the subgroups, without unknown metrics."""
        classes = {one.name: one.scores for one in self.by_class}
        groups = [] if self.by is None else [tabulate_scores(self.by, self.by_group)]
        return [tabulate_scores("class against the others", classes), *groups]

    def to_dict(self) -> dict[str, Any]:
        curved = self.by_class[1:] if self.is_binary else self.by_class
        return {
            "rows": self.rows,
            "rows_without_class": asdict(self.rows_without_class),
            "classes": list(self.classes),
            "threshold": self.threshold,
            "by": self.by,
            "scores": to_records(self.scores),
            "area_error": self.area_error,
            "calibration_error": self.calibration_error,
            "confusion": None if self.confusion is None else self.confusion.tolist(),
            "by_class": [one.to_dict() for one in self.by_class],
            "by_group": {name: to_records(scores) for name, scores in self.by_group.items()},
            "calibration": [one.to_dict() for one in self.calibration],
            "curves": [self._describe_curve(one.name, one.curve) for one in curved if one.curve is not None],
        }

    def _describe_curve(self, name: str, curve: Curve) -> dict[str, Any]:
        points = curve.select_points()
        thresholds = {"threshold": self.statistics.lowest_scores[curve.bins[points]].tolist()}
        return {
            "class": name,
            **(thresholds if self.is_binary and self.probabilistic else {}),
            "false_positive_rate": curve.false_positive_rate[1:][points].tolist(),
            "true_positive_rate": curve.true_positive_rate[1:][points].tolist(),
            "precision": curve.precision[points].tolist(),
        }

    def plot(self, path: str | Path) -> None:
        """Save a chart as a .png, .svg or .pdf file. Needs `pip install 'boltdp[plot]'`."""
        from boltdp.evaluation.plots import draw_evaluation  # imported late: it needs matplotlib

        draw_evaluation(self, path)


class ExactEvaluation(Evaluation):
    """An evaluation without noise, for non-sensitive data: no guarantee covers it."""

    def __init__(self, model: Model, by: str | None = None) -> None:
        self._model = model
        self.rows = 0
        self.classes = model.schema.target.require_classes().names
        self.threshold = model.threshold
        self.by, self.groups = by, name_groups(model.schema, by)
        self.probabilistic = model.certificate.problem.loss.probabilistic
        groups, classes = len(self.groups), len(self.classes)
        #: The classes that have a ranking of their own.
        self._ranked = (1,) if self.is_binary else tuple(range(classes))
        self._decisions: Integers = np.zeros((groups, classes, classes), np.int64)
        #: The sum and the sum of squares of the log loss and of the Brier score.
        self._losses: Doubles = np.zeros((2, 2, groups, classes, classes))
        #: By bins of the probability of each ranked class, and of the most likely class: negative rows, positive rows,
        #: and the sum of the probabilities.
        self._calibration: Doubles = np.zeros((len(self._ranked) + 1, 3, CALIBRATION_BINS))
        bins = max(MIN_SCORE_BINS, min(MAX_SCORE_BINS, ALL_SCORE_BINS // (len(self._ranked) * groups)))
        self._rankings: Integers = np.zeros((len(self._ranked), groups, 2, bins), np.int64)
        # No row has a norm above 1: margins are at most the norm of the weights, and log odds at most this bound.
        norm = float(np.linalg.norm(model.weights, axis=1).max())
        has_log_odds = self.probabilistic and not self.is_binary
        self._reach = (2.0 * norm + math.log(classes) + 1.0 if has_log_odds else norm) or 1.0

    def add(self, labels: npt.NDArray[Any], margins: Doubles, codes: npt.NDArray[Any] | None = None) -> None:
        """Count rows by their class indices (NaN: no declared class), margins and subgroups."""
        self.rows += len(labels)
        known, own, groups = _index_rows(labels, codes, len(self.groups))
        scores, step = margins[known], max(1, MAX_CELLS // len(self.classes))
        for part in (slice(at, at + step) for at in range(0, len(own), step)):
            self._add_chunk(own[part], scores[part], groups[part])

    def _add_chunk(self, own: Indices, scores: Doubles, groups: Indices) -> None:
        cells = (groups, own, self._model.predict_indices(scores))
        np.add.at(self._decisions, cells, 1)
        if self.probabilistic:
            odds, rows = self._model.probabilities(scores), np.arange(len(own))
            truth = np.eye(len(self.classes))[own]
            logs = -np.log(np.maximum(odds[rows, own], np.finfo(np.float64).eps))
            squares = np.square(odds - truth).sum(axis=1) / (2.0 if self.is_binary else 1.0)
            for sums, losses in zip(self._losses, (logs, squares), strict=True):
                np.add.at(sums[0], cells, losses)
                np.add.at(sums[1], cells, losses**2)
            likeliest = odds.argmax(axis=1)
            pairs = [(odds[:, column], own == column) for column in self._ranked]
            for found, (probability, true) in zip(
                self._calibration, [*pairs, (odds[rows, likeliest], likeliest == own)], strict=True
            ):
                bins = np.minimum((probability * CALIBRATION_BINS).astype(np.intp), CALIBRATION_BINS - 1)
                for total, weights in zip(found, (~true, true, probability), strict=True):
                    total += np.bincount(bins, weights, minlength=CALIBRATION_BINS)
            if not self.is_binary:
                with np.errstate(divide="ignore"):
                    scores = np.log(odds) - np.log1p(-odds)
        count = self._rankings.shape[3]
        places = np.clip((scores / self._reach + 1.0) * (count / 2.0), 0, count - 1).astype(np.intp)
        for place, column in enumerate(self._ranked):
            np.add.at(self._rankings[place], (groups, (own == column).astype(np.intp), places[:, place]), 1)

    @cached_property
    def statistics(self) -> Statistics:
        def make_counts(table: Doubles | Integers) -> Counts:
            return Counts(table, max(self.rows, 1), self._model.schema.max_rows_per_person or 1)

        losses = {}
        if self.probabilistic:
            means, squares = np.moveaxis(self._losses / np.maximum(self._decisions, 1), 1, 0)
            losses = dict(zip(("log loss", "Brier score"), zip(means, squares - means**2, strict=True), strict=True))
        bins = self._rankings.shape[3]
        lowest: Doubles = self._reach * (2.0 * np.arange(bins) / bins - 1.0)
        scored, edges = make_counts(self._rankings[-1]), np.array([*lowest, self._reach])
        tables: list[tuple[CalibrationBin, ...]] = [()] * len(self._calibration)
        if self.probabilistic:
            scored = make_counts(self._calibration[None, 0 if self.is_binary else -1, :2])
            edges = np.arange(CALIBRATION_BINS + 1) / CALIBRATION_BINS
            if self.is_binary:  # only of the bins that have rows, like the ranking
                met = lowest[self._rankings[0].any(axis=(0, 1))]
                lowest = self._model.probabilities(met[:, None])[:, 1]
            places = range(0, CALIBRATION_BINS + 1, CALIBRATION_BINS // TABLE_ROWS)
            tables = [
                make_calibration_bins(make_counts(one[None, :2]), edges.tolist(), places, one[2])
                for one in self._calibration
            ]
        errors = [expected_calibration_error(one) for one in tables]
        return Statistics(
            decisions=make_counts(self._decisions),
            is_correct=np.eye(len(self.classes)),
            is_predicted=np.eye(len(self.classes)),
            losses=losses,
            rankings=tuple(make_counts(one[..., one.any(axis=(0, 1))]) for one in self._rankings),
            lowest_scores=lowest,
            scored=scored,
            edges=edges,
            calibration=tables[0 if self.is_binary else -1],
            # The errors of two classes are equal.
            calibration_errors=tuple(errors[:1] * 2 if self.is_binary else errors[:-1]),
        )

    def guarantee(self) -> str:
        return "Computed from the rows without noise: no guarantee covers it."


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
        """The number of bins on either side of the threshold."""
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

    def count_rows(self, model: Model, packed: PackedRows, place: int | None) -> Integers:
        """Count packed rows in each bin; `place` is the position of the cell with the subgroup."""
        known, own, group = _index_rows(packed[:, 0], None if place is None else packed[:, place], self.groups)
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
            cut = model.certificate.problem.loss.cut
            edges = np.array([cut(float(edge)) for edge in edges])
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
        if self.adjacency is not Adjacency.of(self.person_rows):
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
        """Return the record of a file: the evaluation with its digest."""
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


def _index_rows(
    labels: npt.NDArray[Any], codes: npt.NDArray[Any] | None, groups: int
) -> tuple[npt.NDArray[np.bool_], Indices, Indices]:
    """Return which rows have a declared class, and the indices of their classes and subgroups."""
    known = ~np.isnan(labels)
    own = labels[known].astype(np.intp)
    group = np.zeros(len(own), np.intp) if codes is None else codes[known].astype(np.intp)
    return known, own, np.where(group < 0, groups - 1, group)


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


def name_groups(schema: Schema, by: str | None) -> tuple[str, ...]:
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
