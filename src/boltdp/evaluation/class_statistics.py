"""Evaluation of classifiers: the metrics that follow from counts of the rows, and their exact and noisy counts.

Exact scores are counted in up to 2^20 bins, so that areas are exact up to `area_error`. Noisy counts are of one
histogram: each row is in one bin, by its subgroup, class and score. Metrics that bins and noise would bias are omitted:
the average precision and the calibration error, and with more than two classes the areas, the precisions and the
confusion matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, Integers
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
from boltdp.evaluation.statistics import EVERY_CELL, Bins, Indices, Statistics, Tally
from boltdp.model import Model

if TYPE_CHECKING:
    from boltdp.evaluation.evaluation import Evaluation

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


@dataclass(frozen=True, eq=False)
class ClassStatistics(Statistics):
    """Exact or noisy counts of rows with a declared class, from which every metric follows."""

    classes: tuple[str, ...]
    threshold: float | None
    probabilistic: bool
    counts: Counts  #: rows by subgroup, class and outcome, which is a predicted class or a bin of scores
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

    kind = "classes"
    usable_label = "declared class"

    @classmethod
    def start_tally(cls, model: Model, groups: int) -> ClassTally:
        _check_weight_vectors(model)
        return ClassTally(model, groups)

    @classmethod
    def plan_bins(cls, model: Model, *, rows: int, groups: int, noise: float) -> ClassBins:
        _check_weight_vectors(model)
        classes, loss = len(model.classes), model.certificate.problem.loss
        declared = model.schema.target.require_classes().names, model.threshold, loss.probabilistic

        def estimate_error(half: int) -> float:
            return noise * math.sqrt(classes * groups * half / 2.0) / max(rows, 1) + BIN_ERROR / (2.0 * half) ** 2

        half = min(range(1, MAX_NOISY_BINS + 1), key=estimate_error) if classes == 2 or loss.probabilistic else 1
        if classes > 2:
            low, high = _make_probability_edges(0.0, 0.5, half), _make_probability_edges(1.0 / classes, 1.0, half)
            return ClassBins(groups, *declared, low, high)
        # No row has a norm above 1, so that margins are at most the norm of the weights.
        reach = float(np.linalg.norm(model.weights)) or 1.0
        least, middle, most = -reach, model.margin_threshold, reach
        if loss.probabilistic:
            least, most = (float(one) for one in model.probabilities(np.array([[-reach], [reach]]))[:, 1])
            middle = 0.5 if model.threshold is None else model.threshold
        if not least < middle:
            least = 0.0 if loss.probabilistic else middle - reach
        if not middle < most:
            most = 1.0 if loss.probabilistic else middle + reach
        edges = _make_probability_edges if loss.probabilistic else _make_uniform_edges
        return ClassBins(groups, *declared, edges(least, middle, half), edges(middle, most, half))

    @property
    def is_binary(self) -> bool:
        return len(self.classes) == 2

    @cached_property
    def by_class(self) -> tuple[ClassFigures, ...]:
        return tuple(self._compute_class_figures(index) for index in range(len(self.classes)))

    @property
    def calibration_error(self) -> float | None:
        return compute_calibration_error(self.calibration)

    @cached_property
    def area_error(self) -> float | None:
        """An upper bound on the error of the area under the curve from binning the scores."""
        errors = [error for counts in self.rankings if (error := counts.bound_area_error()) is not None]
        known = any(counts.compute_area(EVERY_CELL) for counts in self.rankings)
        return math.fsum(errors) / len(errors) if errors and known else None

    @cached_property
    def confusion(self) -> Doubles | Integers | None:
        """The confusion matrix: rows by true and predicted class; None if only errors are known."""
        if self.is_predicted is None:
            return None
        table: Doubles = self.counts.table.sum(axis=0) @ self.is_predicted.T
        return table if self.counts.noise else table.astype(np.int64)

    @property
    def _class_masks(self) -> Doubles:
        """For each class, the mask of its cells in the table of counts."""
        return np.eye(len(self.classes))[:, None, :, None]

    def _get_ranking(self, index: int) -> Counts | None:
        """Return the counts of rows by their score for a class; None if unknown."""
        rankings = self.rankings
        if not self.is_binary or not rankings:
            return rankings[index] if rankings else None
        # Of two classes, the first has the scores of the second, reversed.
        return rankings[0] if index else replace(rankings[0], table=rankings[0].table[:, ::-1, ::-1])

    def compute_group_scores(self, mask: Doubles) -> dict[str, Score | None]:
        cells = mask[:, None, None]
        recalls = {
            f"recall of {name}": self.counts.compute_mean(self.is_correct, cells * own)
            for name, own in zip(self.classes, self._class_masks, strict=True)
        }
        return {**super().compute_group_scores(mask), **recalls}

    def compute_scores(self, mask: Doubles) -> dict[str, Score | None]:
        counts, cells = self.counts, mask[:, None, None]
        own = cells * self._class_masks
        largest = int(np.argmax([(one * counts.table).sum() for one in own]))
        scores = {
            "accuracy": counts.compute_mean(self.is_correct, cells),
            "commonest class always": counts.compute_mean(own[largest], cells),
            "balanced accuracy": None,
        }
        recalls = [one for each in own if (one := counts.compute_mean_and_gradient(self.is_correct, each)) is not None]
        # With noise, a class that seems to have no rows may have some.
        if len(recalls) == len(own) or (recalls and not counts.noise):
            value = math.fsum(value for value, _ in recalls) / len(recalls)
            scores["balanced accuracy"] = counts.add_interval((value, np.mean([one for _, one in recalls], axis=0)))
        if self.rankings:
            scores["area under the curve"] = average_scores([one.compute_area(cells) for one in self.rankings])
        if not counts.noise:
            curves = [Curve.from_counts(np.tensordot(mask, one.table, axes=1)) for one in self.rankings]
            scores["average precision"] = average_scores([one.average_precision(counts.person_rows) for one in curves])
        for name, (means, variances) in self.losses.items():
            scores[name] = counts.compute_mean(means, cells, variances=variances, most=math.inf)
        return scores

    def _compute_class_figures(self, index: int) -> ClassFigures:
        counts, own, ranking = self.counts, self._class_masks[index], self._get_ranking(index)
        predicted = self.is_predicted
        curve = None if ranking is None else Curve.from_counts(ranking.table.sum(axis=0))
        scores = {
            "rows": counts.count_rows_in(own),
            "precision": None if predicted is None else counts.compute_mean(own, predicted[index][None, None]),
            "recall": counts.compute_mean(self.is_correct, own),
            "area under the curve": None if ranking is None else ranking.compute_area(EVERY_CELL),
            "average precision": curve.average_precision(counts.person_rows) if curve and not counts.noise else None,
        }
        return ClassFigures(self.classes[index], scores, self.calibration_errors[index], curve)

    def make_tables(self, *, detailed: bool) -> list[Table]:
        """Return the table of the classes, with `detailed` between the confusion matrix and the calibration."""
        tables = [tabulate_scores("class against the others", {one.name: one.scores for one in self.by_class})]
        if detailed and self.confusion is not None:
            counts = zip(self.classes, self.confusion, strict=True)
            rows = [(name, *(f"{count:,.0f}" for count in row)) for name, row in counts]
            tables.insert(0, Table(("true class, predicted as:", *self.classes), rows))
        if detailed and self.calibration:
            means = [one.mean_probability for one in self.calibration]
            known = [] if None in means else ["mean probability"]
            bins = [
                (
                    f"{one.low:.3f} to {one.high:.3f}",
                    f"{one.rows.value:,.0f}",
                    *([f"{one.mean_probability:.4f}"] if known else []),
                    *(("-", "") if one.share is None else (one.share.text, one.share.interval)),
                )
                for one in self.calibration
            ]
            of = self.classes[1] if self.is_binary else "the likeliest class"
            headings = (f"probability of {of}", "rows", *known, "observed share", "95 % interval")
            tables.append(Table(headings, bins))
        return tables

    def describe_other_figures(self) -> list[tuple[str, str]]:
        lines = [] if self.threshold is None else [("threshold", f"{self.threshold:g}")]
        error = self.calibration_error
        return [*lines, *([] if error is None else [("calibration error", f"{error:.4f}")])]

    def to_dict(self) -> dict[str, Any]:
        curved = self.by_class[1:] if self.is_binary else self.by_class
        return {
            "classes": list(self.classes),
            "threshold": self.threshold,
            "area_error": self.area_error,
            "calibration_error": self.calibration_error,
            "confusion": None if self.confusion is None else self.confusion.tolist(),
            "by_class": [one.to_dict() for one in self.by_class],
            "calibration": [one.to_dict() for one in self.calibration],
            "curves": [self._describe_curve(one.name, one.curve) for one in curved if one.curve is not None],
        }

    def _describe_curve(self, name: str, curve: Curve) -> dict[str, Any]:
        points = curve.select_points()
        thresholds = {"threshold": self.lowest_scores[curve.bins[points]].tolist()}
        return {
            "class": name,
            **(thresholds if self.is_binary and self.probabilistic else {}),
            "false_positive_rate": curve.false_positive_rate[1:][points].tolist(),
            "true_positive_rate": curve.true_positive_rate[1:][points].tolist(),
            "precision": curve.precision[points].tolist(),
        }

    def draw(self, evaluation: Evaluation, path: str | Path) -> None:
        from boltdp.evaluation.plots import draw_class_evaluation  # imported late: it needs matplotlib

        draw_class_evaluation(evaluation, self, path)

    def require_classes(self) -> ClassStatistics:
        return self


class ClassTally(Tally):
    """Exact counts of the rows with a declared class."""

    def __init__(self, model: Model, groups: int) -> None:
        self._model = model
        self.classes = model.schema.target.require_classes().names
        self.probabilistic = model.certificate.problem.loss.probabilistic
        classes, self.is_binary = len(self.classes), len(self.classes) == 2
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

    def add(self, labels: npt.NDArray[Any], margins: Doubles, groups: Indices) -> None:
        own, step = labels.astype(np.intp), max(1, MAX_CELLS // len(self.classes))
        for part in (slice(at, at + step) for at in range(0, len(own), step)):
            self._count_chunk(own[part], margins[part], groups[part])

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

    def make_statistics(self, rows: int) -> ClassStatistics:
        def make_counts(table: Doubles | Integers) -> Counts:
            return Counts(table, max(rows, 1), self._model.schema.max_rows_per_person or 1)

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
        return ClassStatistics(
            classes=self.classes,
            threshold=self._model.threshold,
            probabilistic=self.probabilistic,
            counts=make_counts(self._decisions),
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


@dataclass(frozen=True)
class ClassBins(Bins):
    """The bins of a noisy evaluation of a classifier.

    With two classes, scores are probabilities of the second (or margins): `low` are the edges of the bins in which the
    first is predicted, `high` those of the other bins. With more classes, scores are probabilities of a row's true
    class: `low` are the edges of the bins of misclassified rows, `high` those of the others.
    """

    classes: tuple[str, ...]
    threshold: float | None
    probabilistic: bool
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        edges = (*self.low, *self.high)
        if len(self.low) != len(self.high) or len(self.low) < 2 or min(self.groups, len(self.classes) - 1) < 1:
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
        return self.groups, len(self.classes), 2 * self.bins_per_side

    def compute_mean_losses(self, name: str) -> Doubles:
        """Return the mean "log loss" or "Brier score" by class and bin, for probabilities uniform in each bin."""
        integrals: dict[str, Callable[[Doubles], Doubles]] = {
            "log loss": lambda p: p - p * np.log(np.maximum(p, np.finfo(np.float64).tiny)),
            "Brier score": lambda p: -((1.0 - p) ** 3) / 3.0,
        }
        integral = integrals[name]
        left, right = np.array([*self.low[:-1], *self.high[:-1]]), np.array([*self.low[1:], *self.high[1:]])
        second = (integral(right) - integral(left)) / (right - left)
        if len(self.classes) > 2:
            return np.tile(second, (len(self.classes), 1))
        first = (integral(1.0 - left) - integral(1.0 - right)) / (right - left)
        return np.array([first, second])

    def locate_rows(self, model: Model, labels: npt.NDArray[Any], margins: Doubles) -> Indices:
        own = labels.astype(np.intp)
        if len(self.classes) == 2:
            bins = np.searchsorted(self._compute_margin_edges(model), margins[:, 0], side="left")
        else:
            right = model.predict_indices(margins) == own
            bins = self.bins_per_side * right
            if self.bins_per_side > 1:
                scores = model.probabilities(margins)[np.arange(len(own)), own]
                low, high = (np.searchsorted(edges[1:-1], scores, side="left") for edges in (self.low, self.high))
                bins += np.where(right, high, low)
        return own * 2 * self.bins_per_side + bins

    def _compute_margin_edges(self, model: Model) -> Doubles:
        """Return the margins between the bins of two classes; the middle one is the decision threshold."""
        edges = np.array([*self.low[1:], *self.high[1:-1]])
        if self.probabilistic:
            invert_link = model.certificate.problem.loss.invert_link
            edges = np.array([invert_link(float(edge)) for edge in edges])
        edges[self.bins_per_side - 1] = model.margin_threshold
        return np.maximum.accumulate(edges)

    def make_statistics(self, counts: Counts) -> ClassStatistics:
        half, is_binary = self.bins_per_side, len(self.classes) == 2
        low, high = (np.arange(2 * half) < half).astype(np.float64), (np.arange(2 * half) >= half).astype(np.float64)
        edges, step = np.array([*self.low, *self.high[1:]]), math.ceil(half / (TABLE_ROWS // 2))
        places = [*range(0, half, step), *range(half, 2 * half, step), 2 * half]
        names = ("log loss", "Brier score")[: 2 if is_binary else 1] if self.probabilistic else ()
        calibrated = is_binary and self.probabilistic
        calibration = make_calibration_bins(counts, edges.tolist(), places) if calibrated else ()
        return ClassStatistics(
            classes=self.classes,
            threshold=self.threshold,
            probabilistic=self.probabilistic,
            counts=counts,
            is_correct=np.array([low, high] if is_binary else [high] * len(self.classes)),
            is_predicted=np.array([low, high]) if is_binary else None,
            losses={name: (losses := self.compute_mean_losses(name), np.zeros(losses.shape)) for name in names},
            rankings=(counts,) if is_binary else (),
            lowest_scores=edges[:-1],
            scored=counts if is_binary else None,
            edges=edges,
            calibration=calibration,
            calibration_errors=(None,) * len(self.classes),
        )


def _make_uniform_edges(least: float, most: float, bins: int) -> tuple[float, ...]:
    return tuple(np.linspace(least, most, bins + 1).tolist())


def _make_probability_edges(least: float, most: float, bins: int) -> tuple[float, ...]:
    """Return the edges of bins of probabilities, narrower near 0 and 1: they are uniform in arcsin sqrt p."""
    inside = np.sin(_make_uniform_edges(math.asin(math.sqrt(least)), math.asin(math.sqrt(most)), bins)[1:-1]) ** 2
    return (least, *inside.tolist(), most)


def _check_weight_vectors(model: Model) -> None:
    if len(model.classes) == 2 and len(model.weights) != 1:
        raise ParameterError(f"a model of two classes must have one weight vector, got {len(model.weights)}")
