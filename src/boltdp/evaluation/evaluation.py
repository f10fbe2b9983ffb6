"""Evaluation of classifiers: the metrics that follow from counts of the rows, and the exact counts.

`ExactEvaluation` is computed without noise, so that no guarantee covers it. Its memory does not grow with the number of
rows: scores are counted in up to 2^20 bins, and areas are exact up to `area_error`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, Integers
from boltdp.encoding.declared_values import format_value
from boltdp.errors import ParameterError
from boltdp.evaluation.metrics import (
    CalibrationBin,
    Counts,
    Curve,
    Score,
    Table,
    average_scores,
    compute_calibration_error,
    convert_scores,
    make_calibration_bins,
    tabulate_scores,
)
from boltdp.model import Model
from boltdp.schema.schema import Schema

Indices: TypeAlias = npt.NDArray[np.intp]

#: Bins of exactly counted probabilities, and rows of the calibration table.
CALIBRATION_BINS, TABLE_ROWS = 100, 10
#: Bins of exactly counted scores: in total, and maximum and minimum per class and subgroup.
ALL_SCORE_BINS, MAX_SCORE_BINS, MIN_SCORE_BINS = 1 << 21, 1 << 20, 1 << 8
#: Maximum number of probabilities that are computed at a time.
MAX_CELLS = 1 << 20
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
        figures = {name.replace(" ", "_"): one for name, one in convert_scores(self.scores).items()}
        return {"class": self.name, **figures, "calibration_error": self.calibration_error}


def _make_score_property(name: str) -> property:
    """Make a property of an evaluation that is the value of one metric; None if that is unknown."""

    def get_value(self: Evaluation) -> float | None:
        score = self.scores.get(name)
        return None if score is None else score.value

    return property(get_value, doc=f"The {name}; None if it is unknown.")


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
        return tuple(self._compute_class_figures(index) for index in range(len(self.classes)))

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
        return compute_calibration_error(self.calibration)

    @cached_property
    def area_error(self) -> float | None:
        """An upper bound on the error of the area under the curve from binning the scores."""
        errors = [error for counts in self.statistics.rankings if (error := counts.bound_area_error()) is not None]
        return math.fsum(errors) / len(errors) if errors and self.area_under_the_curve is not None else None

    @property
    def rows_without_class(self) -> Score:
        """The number of rows without a declared class, which no metric includes."""
        counted = self.statistics.decisions.count_rows_in(np.ones((1, 1, 1)))
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

    def _get_ranking(self, index: int) -> Counts | None:
        """Return the counts of rows by their score for a class; None if unknown."""
        rankings = self.statistics.rankings
        if not self.is_binary or not rankings:
            return rankings[index] if rankings else None
        # Of two classes, the first has the scores of the second, reversed.
        return rankings[0] if index else replace(rankings[0], table=rankings[0].table[:, ::-1, ::-1])

    def _compute_group_scores(self, mask: Doubles) -> dict[str, Score | None]:
        counts, cells = self.statistics.decisions, mask[:, None, None]
        recalls = {
            f"recall of {name}": counts.compute_mean(self.statistics.is_correct, cells * own)
            for name, own in zip(self.classes, self._class_masks, strict=True)
        }
        return {"rows": counts.count_rows_in(cells), **self._compute_scores(mask), **recalls}

    def _compute_scores(self, mask: Doubles) -> dict[str, Score | None]:
        """Compute the metrics of all rows in the subgroups of `mask`; None for those that noise hides."""
        known, cells = self.statistics, mask[:, None, None]
        counts, own = known.decisions, cells * self._class_masks
        largest = int(np.argmax([(one * counts.table).sum() for one in own]))
        scores = {
            "accuracy": counts.compute_mean(known.is_correct, cells),
            "commonest class always": counts.compute_mean(own[largest], cells),
            "balanced accuracy": None,
        }
        recalls = [one for each in own if (one := counts.compute_mean_and_gradient(known.is_correct, each)) is not None]
        # With noise, a class that seems to have no rows may have some.
        if len(recalls) == len(own) or (recalls and self.is_exact):
            value = math.fsum(value for value, _ in recalls) / len(recalls)
            scores["balanced accuracy"] = counts.add_interval((value, np.mean([one for _, one in recalls], axis=0)))
        if known.rankings:
            scores["area under the curve"] = average_scores([one.compute_area(cells) for one in known.rankings])
        if self.is_exact:
            curves = [Curve.from_counts(np.tensordot(mask, one.table, axes=1)) for one in known.rankings]
            scores["average precision"] = average_scores([one.average_precision(counts.person_rows) for one in curves])
        for name, (means, variances) in known.losses.items():
            scores[name] = counts.compute_mean(means, cells, variances=variances, most=math.inf)
        return scores

    def _compute_class_figures(self, index: int) -> ClassFigures:
        known, own, ranking = self.statistics, self._class_masks[index], self._get_ranking(index)
        counts, predicted, every = known.decisions, known.is_predicted, np.ones((1, 1, 1))
        curve = None if ranking is None else Curve.from_counts(ranking.table.sum(axis=0))
        scores = {
            "rows": counts.count_rows_in(own),
            "precision": None if predicted is None else counts.compute_mean(own, predicted[index][None, None]),
            "recall": counts.compute_mean(known.is_correct, own),
            "area under the curve": None if ranking is None else ranking.compute_area(every),
            "average precision": curve.average_precision(counts.person_rows) if curve and self.is_exact else None,
        }
        return ClassFigures(self.classes[index], scores, known.calibration_errors[index], curve)

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
            "scores": convert_scores(self.scores),
            "area_error": self.area_error,
            "calibration_error": self.calibration_error,
            "confusion": None if self.confusion is None else self.confusion.tolist(),
            "by_class": [one.to_dict() for one in self.by_class],
            "by_group": {name: convert_scores(scores) for name, scores in self.by_group.items()},
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
        known, own, groups = index_rows(labels, codes, len(self.groups))
        scores, step = margins[known], max(1, MAX_CELLS // len(self.classes))
        for part in (slice(at, at + step) for at in range(0, len(own), step)):
            self._count_chunk(own[part], scores[part], groups[part])

    def _count_chunk(self, own: Indices, scores: Doubles, groups: Indices) -> None:
        """Count rows by the indices of their classes and subgroups, their margins and what the model predicts."""
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
        errors = [compute_calibration_error(one) for one in tables]
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


def index_rows(
    labels: npt.NDArray[Any], codes: npt.NDArray[Any] | None, groups: int
) -> tuple[npt.NDArray[np.bool_], Indices, Indices]:
    """Return which rows have a declared class, and the indices of their classes and subgroups."""
    known = ~np.isnan(labels)
    own = labels[known].astype(np.intp)
    group = np.zeros(len(own), np.intp) if codes is None else codes[known].astype(np.intp)
    return known, own, np.where(group < 0, groups - 1, group)


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
