"""How well a model predicts rows that may be looked at: sums over the rows, and what is computed of them.

Nothing here is covered by a model's promise: all of it is computed from the rows without noise.

The sums (`Sums`) have one size, however many rows there are. Probabilities are counted in bins of equal width for the
calibration. The scores that rank the rows are counted in up to 2^20 bins, and rows of one bin are taken for ties: so
the area under a curve is exact up to `Curve.error`, which is half the share of pairs of rows that share a bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._arrays import Doubles, PackedRows
from boltdp.encoding.values import Value, format_value
from boltdp.errors import DataError

if TYPE_CHECKING:
    from boltdp.context import Context
    from boltdp.engines.base import Engine
    from boltdp.model import Model

Counts: TypeAlias = npt.NDArray[np.int64]
Indices: TypeAlias = npt.NDArray[np.intp]

#: Bins of probabilities that are counted, and those of the table that is made of them.
FINE_BINS, TABLE_BINS = 100, 10
#: Bins of the scores that rank the rows, of all classes together, and of one of them at most.
ALL_SCORE_BINS, MOST_SCORE_BINS, LEAST_SCORE_BINS = 1 << 21, 1 << 20, 1 << 8
#: Probabilities that are worked on at a time, at most.
MOST_CELLS = 1 << 20
#: Points of a curve that are told, at most.
MOST_POINTS = 200


@dataclass(frozen=True, eq=False)
class Reliability:
    """How often what has a probability between two bounds is so: one entry for each of the bins that have rows."""

    low: Doubles
    high: Doubles
    rows: Counts
    mean_probability: Doubles
    share: Doubles  #: of the rows for which it is so

    @property
    def error(self) -> float:
        """The expected calibration error: how far the share is from the probability, in the mean over the rows."""
        return float(self.rows @ np.abs(self.share - self.mean_probability) / self.rows.sum())

    @classmethod
    def of(cls, rows: Counts, so: Counts, total: Doubles, *, bins: int = TABLE_BINS) -> Reliability:
        """From the rows in each fine bin, those for which it is so, and the sum of the probabilities.

        >>> table = Reliability.of(np.array([0, 4]), np.array([0, 3]), np.array([0.0, 3.2]), bins=2)
        >>> table.mean_probability.tolist(), table.share.tolist(), round(table.error, 12)
        ([0.8], [0.75], 0.05)
        """
        rows, so, total = (each.reshape(bins, -1).sum(axis=1) for each in (rows, so, total))
        met = rows > 0
        rows = rows.astype(np.int64)
        edges = np.arange(bins + 1) / bins
        mean, share = total[met] / rows[met], so[met] / rows[met]
        return cls(edges[:-1][met], edges[1:][met], rows[met], mean, share)

    def to_dict(self) -> list[dict[str, Any]]:
        """One record a bin."""
        names = ("from", "to", "rows", "mean_probability", "share")
        columns = (self.low, self.high, self.rows, self.mean_probability, self.share)
        return [dict(zip(names, line, strict=True)) for line in zip(*(each.tolist() for each in columns), strict=True)]


@dataclass(frozen=True, eq=False)
class Curve:
    """How the rows of a class rank among the others: counted from the highest score down, where there are any."""

    scores: Doubles  #: at least so high
    inside: Counts  #: rows of the class
    outside: Counts  #: rows of the others

    @classmethod
    def of(cls, counts: Counts, scores: Doubles) -> Curve:
        """From the rows of other classes and of the class in each bin, and the lowest score of each bin.

        >>> curve = Curve.of(np.array([[1, 1, 0], [0, 1, 1]]), np.array([-1.0, 0.0, 1.0]))
        >>> curve.area, curve.error, round(curve.average_precision, 4)
        (0.875, 0.125, 0.8333)
        """
        met = np.flatnonzero(counts.any(axis=0))[::-1]
        outside, inside = np.cumsum(counts[:, met], axis=1)
        return cls(scores[met], inside, outside)

    @property
    def both(self) -> bool:
        """Whether there are rows of the class and of others: else there is no curve."""
        return bool(len(self.scores) and self.inside[-1] and self.outside[-1])

    @property
    def true_rate(self) -> Doubles:
        """The share of the class's rows, the recall; from 0."""
        return np.concatenate([[0.0], self.inside / max(self.inside[-1], 1)])

    @property
    def false_rate(self) -> Doubles:
        """The share of the other rows; from 0."""
        return np.concatenate([[0.0], self.outside / max(self.outside[-1], 1)])

    @property
    def precision(self) -> Doubles:
        """The share of the class among the rows so high."""
        shares: Doubles = self.inside / (self.inside + self.outside)
        return shares

    @property
    def area(self) -> float | None:
        """How often a row of the class is ranked above one of another, ties counting half; None without both."""
        if not self.both:
            return None
        heights = self.true_rate
        return float(np.diff(self.false_rate) @ (heights[1:] + heights[:-1]) / 2.0)

    @property
    def error(self) -> float | None:
        """How far the area can be from that of scores without bins."""
        return float(np.diff(self.true_rate) @ np.diff(self.false_rate) / 2.0) if self.both else None

    @property
    def average_precision(self) -> float | None:
        """The mean of the precision over the rows of the class; None without both."""
        return float(np.diff(self.true_rate) @ self.precision) if self.both else None

    def points(self, most: int = MOST_POINTS) -> Indices:
        """Of as many of the points as suffice for a picture: about as far from each other along the curve."""
        along = np.abs(np.diff(self.true_rate)) + np.abs(np.diff(self.false_rate))
        steps = np.floor(np.cumsum(along) * (most - 1) / 2.0 - 1e-9)
        kept = np.flatnonzero(np.diff(steps, append=np.inf) > 0)
        return kept.astype(np.intp)


@dataclass(frozen=True, eq=False)
class ClassScores:
    """One class against all others."""

    name: Value
    rows: int
    precision: float | None  #: the share of it among the rows that are predicted to be of it
    recall: float | None  #: the share of its rows that are predicted to be of it
    curve: Curve
    reliability: Reliability | None  #: of its probability

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {
            "class": self.name,
            "rows": self.rows,
            "precision": self.precision,
            "recall": self.recall,
            "area_under_the_curve": self.curve.area,
            "average_precision": self.curve.average_precision,
            "calibration_error": self.reliability.error if self.reliability else None,
        }


class Sums:
    """What is summed over the rows: all that an evaluation is computed of.

    >>> from boltdp.schema.schema import Numeric, Classes, Schema
    >>> from boltdp.workflows.plan import plan_certificate
    >>> from boltdp.settings import Settings
    >>> from boltdp.model import Model
    >>> schema = Schema(Classes("sick", (False, True)), (Numeric("age", 0, 100),), intercept=False)
    >>> certificate = plan_certificate(Settings(epsilon=None, loss="logistic"), rows=2, dims=1, classes=2)
    >>> sums = Sums(Model(schema, np.array([[2.0]]), certificate))
    >>> sums.add(np.array([0.0, 1.0, np.nan]), np.array([[-1.0], [1.0], [0.5]]))
    >>> sums.confusion.tolist(), sums.without_class
    ([[1, 0], [0, 1]], 1)
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        classes = len(model.classes)
        self.probabilistic = model.certificate.problem.loss.probabilistic
        #: The classes that are ranked: of two only the second, as the first is ranked the other way round.
        self.ranked = classes if len(model.weights) > 1 else 1
        self.confusion: Counts = np.zeros((classes, classes), np.int64)  #: rows by true and by predicted class
        self.without_class = 0
        self.log_loss = 0.0
        self.squares = 0.0  #: of the differences between probabilities and what is so
        #: Rows, rows for which it is so, and probabilities, by bins: of each ranked class, and of the likeliest class.
        self.calibration: Doubles = np.zeros((self.ranked + 1, 3, FINE_BINS))
        bins = max(LEAST_SCORE_BINS, min(MOST_SCORE_BINS, ALL_SCORE_BINS // self.ranked))
        self.scores: Counts = np.zeros((self.ranked, 2, bins), np.int64)  #: rows of others, and of the class, by bins
        longest = float(np.linalg.norm(model.weights, axis=1).max())
        # No margin is beyond the length of its weights, since no row is longer than 1; and no log odds beyond this.
        joint = self.probabilistic and self.ranked > 1
        self._reach = (2.0 * longest + math.log(classes) + 1.0 if joint else longest) or 1.0

    @property
    def lowest_scores(self) -> Doubles:
        """Of each bin."""
        bins = self.scores.shape[2]
        edges: Doubles = self._reach * (2.0 * np.arange(bins) / bins - 1.0)
        return edges

    def add(self, labels: npt.NDArray[Any], margins: Doubles) -> None:
        """Rows, by their class indices, NaN for none that is declared, and their margins."""
        step = max(1, MOST_CELLS // len(self._model.classes))
        for at in range(0, len(labels), step):
            self._add(labels[at : at + step], margins[at : at + step])

    def _add(self, labels: npt.NDArray[Any], margins: Doubles) -> None:
        known = ~np.isnan(labels)
        self.without_class += int(len(labels) - known.sum())
        own, margins = labels[known].astype(np.intp), margins[known]
        chosen = self._model.choices(margins)
        np.add.at(self.confusion, (own, chosen), 1)
        if not self.probabilistic:
            self._rank(own, margins)
            return
        odds = self._model.probabilities(margins)
        rows = np.arange(len(own))
        self.log_loss += total_log_loss(odds, own)
        so = np.zeros(odds.shape)
        so[rows, own] = 1.0
        self.squares += float(np.square(odds - so).sum())
        likeliest = odds.argmax(axis=1)
        for place in range(self.ranked):
            column = place if self.ranked > 1 else 1
            self._calibrate(place, odds[:, column], so[:, column])
        self._calibrate(self.ranked, odds[rows, likeliest], likeliest == own)
        if self.ranked == 1:
            self._rank(own, margins)
            return
        with np.errstate(divide="ignore"):
            self._rank(own, np.log(odds) - np.log1p(-odds))

    def _calibrate(self, place: int, probability: Doubles, so: npt.NDArray[Any]) -> None:
        bins = np.minimum((probability * FINE_BINS).astype(np.intp), FINE_BINS - 1)
        for sums, weights in zip(self.calibration[place], (None, so, probability), strict=True):
            sums += np.bincount(bins, weights, minlength=FINE_BINS)

    def _rank(self, own: Indices, scores: Doubles) -> None:
        bins = self.scores.shape[2]
        places = np.clip((scores / self._reach + 1.0) * (bins / 2.0), 0, bins - 1).astype(np.intp)
        for place in range(self.ranked):
            inside = own == (place if self.ranked > 1 else 1)
            np.add.at(self.scores[place], (inside.astype(np.intp), places[:, place]), 1)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well a model predicts some rows. It is computed from them without noise: no promise covers it."""

    rows: int  #: that have a declared class; the others are left out of everything else
    rows_without_class: int
    classes: tuple[Value, ...]
    threshold: float | None
    confusion: Counts  #: rows by true class, then by predicted class
    accuracy: float
    commonest: float  #: the accuracy of always predicting the commonest class of these rows
    balanced_accuracy: float  #: the mean of the recall of the classes that there are
    log_loss: float | None  #: None where the loss of the model gives no probabilities, as the next three
    brier_score: float | None  #: the mean square of probability minus truth; of more than two classes, summed over them
    reliability: Reliability | None  #: of the second of two classes; of more, of the likeliest class of each row
    histogram: Doubles | None  #: rows by bins of that probability: those for which it is not so, and is so
    by_class: tuple[ClassScores, ...]
    curves: tuple[Curve, ...] = field(repr=False)  #: of the second of two classes, or of each class
    curve_thresholds: tuple[Doubles, ...] | None = field(repr=False)  #: of two classes: the probability at each point

    def __repr__(self) -> str:
        """The figures, without tables and curves."""
        told = ", ".join(f"{name}={value:.4g}" for name, value in self.scores.items() if value is not None)
        return f"Evaluation(rows={self.rows}, {told})"

    @classmethod
    def of(cls, model: Model, sums: Sums) -> Evaluation:
        """What the sums say."""
        confusion = sums.confusion
        rows = int(confusion.sum())
        names = [format_value(value) for value in model.classes]
        if not rows:
            raise DataError(
                f"the data must have rows with a declared class to compare with, got none of {sums.without_class:,}",
                hint=f"look at the spelling of column {model.schema.label!r}: the classes are {', '.join(names)}",
            )
        right, present, predicted = np.diagonal(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
        met = present > 0
        curves = tuple(Curve.of(counts, sums.lowest_scores) for counts in sums.scores)
        probabilistic, two = sums.probabilistic, sums.ranked == 1
        tables = [Reliability.of(*each) for each in sums.calibration] if probabilistic else []
        shown = 0 if two else -1
        count, so, _ = sums.calibration[shown]
        by_class = []
        for place, name in enumerate(model.classes):
            # The first of two classes is ranked by the same scores, the other way round.
            backwards = two and place == 0
            counts = sums.scores[0, ::-1, ::-1] if backwards else sums.scores[0 if two else place]
            scores = -sums.lowest_scores[::-1] if backwards else sums.lowest_scores
            table = None
            if probabilistic:
                table = _other_way_round(tables[0]) if backwards else tables[0 if two else place]
            by_class.append(
                ClassScores(
                    name,
                    int(present[place]),
                    float(right[place] / predicted[place]) if predicted[place] else None,
                    float(right[place] / present[place]) if present[place] else None,
                    Curve.of(counts, scores),
                    table,
                )
            )
        return cls(
            rows=rows,
            rows_without_class=sums.without_class,
            classes=model.classes,
            threshold=model.threshold,
            confusion=confusion,
            accuracy=float(right.sum() / rows),
            commonest=float(present.max() / rows),
            balanced_accuracy=float((right[met] / present[met]).mean()),
            log_loss=sums.log_loss / rows if probabilistic else None,
            brier_score=sums.squares / rows / (2.0 if two else 1.0) if probabilistic else None,
            reliability=tables[shown] if probabilistic else None,
            histogram=np.array([count - so, so]) if probabilistic else None,
            by_class=tuple(by_class),
            curves=curves,
            curve_thresholds=tuple(model.probabilities(curve.scores[:, None])[:, 1] for curve in curves)
            if probabilistic and two
            else None,
        )

    @cached_property
    def area_under_the_curve(self) -> float | None:
        """Of the second of two classes; of more, the mean over those that have one."""
        return _mean([curve.area for curve in self.curves])

    @cached_property
    def average_precision(self) -> float | None:
        """Of the second of two classes; of more, the mean over those that have one."""
        return _mean([curve.average_precision for curve in self.curves])

    @property
    def calibration_error(self) -> float | None:
        """The expected calibration error of `reliability`."""
        return self.reliability.error if self.reliability else None

    @property
    def scores(self) -> dict[str, float | None]:
        """The figures by their names; None is one that there is not."""
        return {
            "accuracy": self.accuracy,
            "commonest class always": self.commonest,
            "balanced accuracy": self.balanced_accuracy,
            "area under the curve": self.area_under_the_curve,
            "average precision": self.average_precision,
            "log loss": self.log_loss,
            "Brier score": self.brier_score,
            "calibration error": self.calibration_error,
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {
            "rows": self.rows,
            "rows_without_class": self.rows_without_class,
            **{name.lower().replace(" ", "_"): score for name, score in self.scores.items()},
            "area_error": _mean([curve.error for curve in self.curves]),
            "threshold": self.threshold,
            "classes": list(self.classes),
            "confusion": self.confusion.tolist(),
            "by_class": [one.to_dict() for one in self.by_class],
            "reliability": self.reliability.to_dict() if self.reliability else None,
            "curves": [self._curve(place) for place in range(len(self.curves))],
        }

    def _curve(self, place: int) -> dict[str, Any]:
        curve = self.curves[place]
        points = curve.points() if curve.both else np.empty(0, np.intp)
        told: dict[str, Any] = {"class": self.classes[place if len(self.curves) > 1 else 1]}
        if self.curve_thresholds is not None:
            told["threshold"] = self.curve_thresholds[place][points].tolist()
        told["false_positive_rate"] = curve.false_rate[1:][points].tolist()
        told["true_positive_rate"] = curve.true_rate[1:][points].tolist()
        told["precision"] = curve.precision[points].tolist()
        return told

    def plot(self, path: str | Path) -> None:
        """Draw it: a .png, .svg or .pdf file. Needs `pip install 'boltdp[plot]'`."""
        from boltdp.evaluation.plots import draw  # only here: matplotlib comes with it

        draw(self, path)


def evaluate(model: Model, engine: Engine, context: Context | None = None) -> Evaluation:
    """How well `model` predicts the rows of `engine`, which must have the label: for rows that may be looked at."""
    from boltdp.engines.base import scan_rows  # only here: a model is read and checked without any rows

    sums = Sums(model)

    def scored(packed: PackedRows) -> tuple[PackedRows, Doubles]:
        return packed[:, 0].copy(), model.margins(packed)

    for labels, margins in scan_rows(engine, model.schema, scored, context=context):
        sums.add(labels, margins)
    return Evaluation.of(model, sums)


def total_log_loss(probabilities: Doubles, labels: Indices) -> float:
    """-ln of the probability of each row's own class, added up; a smaller one than 2^-52 counts as that.

    >>> round(total_log_loss(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([1, 0])), 6)
    0.693147
    """
    own = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(own, np.finfo(np.float64).eps)).sum())


def _other_way_round(table: Reliability) -> Reliability:
    """Of the opposite."""
    mean, share = (1.0 - each[::-1] for each in (table.mean_probability, table.share))
    return Reliability(1.0 - table.high[::-1], 1.0 - table.low[::-1], table.rows[::-1], mean, share)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
