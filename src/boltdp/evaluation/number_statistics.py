"""Evaluation of models of a number: the figures that follow from counts of the rows, by prediction and error.

The error of a row is its prediction less its label. Each row is in one cell, by its subgroup and the bins of its
prediction and error: wide ones far from what is expected, for an error on either side of 0. Exact counts know the means
of each cell. Noisy ones take the middle of it, which `error_resolution` bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, Integers
from boltdp.errors import ParameterError
from boltdp.evaluation.metrics import MIN_DEVIATIONS, Counts, Score, ValueAndGradient
from boltdp.evaluation.statistics import EVERY_CELL, Bins, Indices, Statistics, Tally
from boltdp.model import Model
from boltdp.schema.target import Number

if TYPE_CHECKING:
    from boltdp.evaluation.evaluation import Evaluation

#: Cells of exact counts for all subgroups together, and bins of predictions, and of errors on either side of 0.
ALL_EXACT_CELLS, MAX_EXACT_BINS = 1 << 20, 50
#: Bins of exactly counted labels and absolute errors: for all subgroups together, and minimum for each.
ALL_FINE_BINS, MIN_FINE_BINS = 1 << 20, 1 << 12
#: Minimum and maximum number of noisy bins of predictions, and of errors on either side of 0.
MIN_NOISY_BINS, MAX_NOISY_BINS = 4, 20
#: The error of the mean absolute error from n bins is about BIN_ERROR / n^2 of the labels' spread.
BIN_ERROR = 1.0
#: Errors are in bins of equal width up to about this share of the labels' spread, and in wider ones beyond it.
NARROW_ERRORS = 0.25
#: Maximum width of the bounds, in spreads of the labels.
MAX_WIDTH_RATIO = 1 << 14
#: The tolerance for rounding when a cell is found to be impossible, in ranges of the labels.
TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class NumberStatistics(Statistics):
    """Exact or noisy counts of rows whose label is a number, from which every figure follows."""

    counts: Counts  #: rows by subgroup and bins of the prediction and of the error
    bins: NumberBins
    means: Mapping[str, Doubles]  #: by the same cells; labels are in half ranges from the middle of the bounds
    labels: Counts  #: rows by subgroup and label
    label_values: Doubles  #: the label of each cell of these
    errors: Doubles  #: rows by subgroup and bin of the absolute error
    error_edges: Doubles

    kind = "number"
    usable_label = "number"

    @classmethod
    def start_tally(cls, model: Model, groups: int) -> NumberTally:
        return NumberTally(model, groups)

    @classmethod
    def plan_bins(cls, model: Model, *, rows: int, groups: int, noise: float) -> NumberBins:
        _, spread = _find_center_and_spread(model)

        def estimate_error(bins: NumberBins) -> float:
            squares = float((bins.possible * bins.means["error"] ** 2).sum())
            noisy = noise * math.sqrt(groups * squares) / (max(rows, 1) * spread)
            return noisy + BIN_ERROR / bins.size**2

        sizes = range(MIN_NOISY_BINS, MAX_NOISY_BINS + 1)
        return min((NumberBins.from_model(model, groups, size) for size in sizes), key=estimate_error)

    @property
    def cells(self) -> Doubles:
        return self.bins.possible

    def compute_scores(self, mask: Doubles) -> dict[str, Score | None]:
        cells, counts, bins = self.cells * mask[:, None, None], self.counts, self.bins
        known = {name: counts.compute_mean_and_gradient(means, cells) for name, means in self.means.items()}
        squares, variance = known["squared error"], self._compute_variance(known["label"], known["squared label"])
        if squares is not None and counts.noise and squares[0] <= 0.0:
            squares = None  # the noise is larger than the errors
        ratio = None
        if squares is not None and variance is not None:
            share = squares[0] / variance[0]
            ratio = 1.0 - share, (share * variance[1] - squares[1]) / variance[0]
        scores = {
            "R2": counts.add_interval(ratio, least=-math.inf),
            "MAE": counts.compute_mean(np.abs(self.means["error"]), cells, most=math.inf),
            "MAE of the median always": self._compute_constant_loss(mask, 0.5, factor=2.0),
            "RMSE": _take_root(counts.add_interval(squares, most=math.inf)),
            "RMSE of the mean always": _take_root(counts.add_interval(variance, most=math.inf)),
            "median absolute error": self._find_median_error(mask, cells),
        }
        if bins.tau is not None:
            slopes = np.where(bins.is_above, 1.0 - bins.tau, -bins.tau)
            scores["pinball loss"] = counts.compute_mean(slopes * self.means["error"], cells, most=math.inf)
            scores[f"pinball loss of the {bins.tau:g}-quantile always"] = self._compute_constant_loss(mask, bins.tau)
        scores["share below the prediction"] = counts.compute_mean(bins.is_above.astype(np.float64), cells)
        if "Poisson deviance" in known:
            scores["Poisson deviance"] = counts.add_interval(known["Poisson deviance"], most=math.inf)
        return scores

    def _compute_variance(
        self, label: ValueAndGradient | None, square: ValueAndGradient | None
    ) -> ValueAndGradient | None:
        """Return the variance of the labels; None if noise hides it, or if it is 0."""
        if label is None or square is None:
            return None
        value, gradient = square[0] - label[0] ** 2, square[1] - 2.0 * label[0] * label[1]
        if not value > MIN_DEVIATIONS * math.sqrt(self.counts.compute_noise_variance(gradient)):
            return None
        scale = self.bins.half_range**2
        return scale * value, scale * gradient

    def _compute_constant_loss(self, mask: Doubles, share: float, *, factor: float = 1.0) -> Score | None:
        """Return the pinball loss, times `factor`, of always predicting the label's quantile for `share`.

        Since that quantile minimises the loss, its own error does not change the loss to first order.
        """
        possible = self.cells if self.labels is self.counts else EVERY_CELL
        cells = np.broadcast_to(mask[:, None, None] * possible, self.labels.table.shape)
        rows = (cells * self.labels.table).sum(axis=0).ravel()
        values = np.broadcast_to(self.label_values, self.labels.table.shape[1:])
        order = np.argsort(values, axis=None, kind="stable")
        reached = np.maximum.accumulate(np.cumsum(rows[order]))
        place = min(int(np.searchsorted(reached, share * rows.sum())), len(order) - 1)
        above = values - values.ravel()[order[place]]
        losses = factor * np.where(above > 0, share * above, (share - 1.0) * above)
        return self.labels.compute_mean(losses, cells, most=math.inf)

    def _find_median_error(self, mask: Doubles, cells: Doubles) -> Score | None:
        """Return the median of the absolute error, with whole bins for the interval of the share of errors below it."""
        reached = np.maximum.accumulate(np.concatenate([[0.0], np.cumsum(mask @ self.errors)]))

        def find_quantile(share: float) -> float:
            # Between two rows, the mean of both.
            places = share * reached[-1] + np.array([-0.25, 0.25])
            return float(np.interp(places, reached, self.error_edges).mean())

        median = find_quantile(0.5)
        below = self.counts.compute_mean((np.abs(self.means["error"]) <= median).astype(np.float64), cells)
        if below is None:
            return None
        half = 0.5 * (below.high - below.low)
        first = np.searchsorted(self.error_edges, find_quantile(0.5 - half), side="right") - 1
        last = np.searchsorted(self.error_edges, find_quantile(0.5 + half), side="left")
        return Score(median, float(self.error_edges[first]), float(self.error_edges[last]))

    @cached_property
    def error_resolution(self) -> float:
        """An upper bound on the error of the mean absolute error from bins; 0 for exact counts."""
        if not self.counts.noise:
            return 0.0
        rows = (self.cells * np.maximum(self.counts.table, 0.0)).sum(axis=(0, 1))
        return float(rows @ np.diff(self.bins.errors.edges) / 2.0 / max(rows.sum(), 1.0))

    def describe_other_figures(self) -> list[tuple[str, str]]:
        error = self.error_resolution
        return [("error of the MAE from bins", f"≤ {error:.3g}")] if error else []

    def to_dict(self) -> dict[str, Any]:
        return {
            "error_resolution": self.error_resolution,
            "histogram": {
                "predictions": self.bins.predictions.edges.tolist(),
                "errors": self.bins.errors.edges.tolist(),
                "rows": (self.cells * self.counts.table).sum(axis=0).tolist(),
            },
        }

    def draw(self, evaluation: Evaluation, path: str | Path) -> None:
        from boltdp.evaluation.plots import draw_number_evaluation  # imported late: it needs matplotlib

        draw_number_evaluation(evaluation, self, path)


class NumberTally(Tally):
    """Exact counts of the rows whose label is a number, and the means of each cell."""

    def __init__(self, model: Model, groups: int) -> None:
        self._model = model
        size = max(MIN_NOISY_BINS, min(MAX_EXACT_BINS, math.isqrt(ALL_EXACT_CELLS // (2 * groups))))
        self._bins = NumberBins.from_model(model, groups, size)
        self._counts: Integers = np.zeros(math.prod(self._bins.shape), np.int64)
        self._sums: dict[str, Doubles] = {name: np.zeros(len(self._counts)) for name in self._bins.means}
        fine = max(MIN_FINE_BINS, ALL_FINE_BINS // groups)
        self._labels: Integers = np.zeros((groups, fine), np.int64)
        self._errors: Integers = np.zeros((groups, fine), np.int64)

    def add(self, labels: npt.NDArray[Any], margins: Doubles, groups: Indices) -> None:
        bins = self._bins
        predicted, label = self._model.predict_margins(margins), bins.decode_labels(labels)
        cells = groups * math.prod(bins.shape[1:]) + bins.locate_cells(predicted, predicted - label)
        self._counts += np.bincount(cells, minlength=len(self._counts))
        for name, values in bins.compute_moments(predicted, label).items():
            self._sums[name] += np.bincount(cells, values, minlength=len(self._counts))
        for table, share in ((self._labels, label - bins.low), (self._errors, np.abs(predicted - label))):
            places = (share * (table.shape[1] / (2.0 * bins.half_range))).astype(np.intp)
            np.add.at(table, (groups, np.clip(places, 0, table.shape[1] - 1)), 1)

    def make_statistics(self, rows: int) -> NumberStatistics:
        def make_counts(table: Integers) -> Counts:
            return Counts(table, max(rows, 1), self._model.schema.max_rows_per_person or 1)

        bins, fine, rows_in = self._bins, self._labels.shape[1], np.maximum(self._counts, 1)
        step, met = 2.0 * bins.half_range / fine, self._labels.any(axis=0)
        return NumberStatistics(
            counts=make_counts(self._counts.reshape(bins.shape)),
            bins=bins,
            means={name: (sums / rows_in).reshape(bins.shape) for name, sums in self._sums.items()},
            labels=make_counts(self._labels[:, None, met]),
            label_values=(bins.low + step * (np.arange(fine) + 0.5))[met],
            errors=self._errors.astype(np.float64),
            error_edges=step * np.arange(fine + 1.0),
        )


@dataclass(frozen=True, eq=False)
class Axis:
    """Bins of numbers, of equal width in asinh((number - center) / narrow)."""

    edges: Doubles
    means: Doubles  #: of each bin, for numbers that are uniform in asinh
    variances: Doubles

    @classmethod
    def from_ends(cls, least: float, most: float, *, center: float, narrow: float, bins: int) -> Axis:
        first, last = (math.asinh((end - center) / narrow) for end in (least, most))
        places = first + (last - first) / bins * np.arange(bins + 1.0)
        places[np.abs(places) < 1e-12 * (last - first)] = 0.0
        steps = np.diff(places)
        means, squares = np.diff(np.cosh(places)) / steps, np.diff(np.sinh(2.0 * places)) / (4.0 * steps) - 0.5
        edges = np.array([least, *(center + narrow * np.sinh(places[1:-1])), most])
        return cls(edges, center + narrow * means, narrow**2 * np.maximum(squares - means**2, 0.0))


@dataclass(frozen=True)
class NumberBins(Bins):
    """Bins of predictions and of errors on either side of 0, `size` of each; they are wider far from what is expected.

    A number at the distance z of what is expected, in spreads, is at asinh(z): there, bins have equal widths.
    """

    size: int
    low: float  #: of the labels
    high: float
    least: float  #: of the predictions
    most: float
    center: float  #: about where most labels are
    spread: float  #: of the labels, about
    tau: float | None  #: the quantile that the model predicts, if it does

    def __post_init__(self) -> None:
        if not (self.groups >= 1 and 1 <= self.size <= MAX_EXACT_BINS and (self.tau is None or 0.0 < self.tau < 1.0)):
            raise ParameterError("the bins of an evaluation must be those of groups, a size and a quantile")
        inside = self.low <= self.least < self.most <= self.high and self.low <= self.center <= self.high
        width = self.high - self.low
        if not (inside and math.isfinite(width) and width / MAX_WIDTH_RATIO <= self.spread <= width):
            raise ParameterError("the bins of an evaluation must be within bounds, with a spread that is not 0")

    @classmethod
    def from_model(cls, model: Model, groups: int, size: int) -> NumberBins:
        """Make the bins from public numbers: the bounds of the target, and the center and spread that are expected."""
        target = _get_target(model)
        # No row has a norm above 1, so that scores are at most the norm of the weights.
        reach = float(np.linalg.norm(model.weights))
        least, most = np.sort(model.predict_margins(np.array([[-reach], [reach]]))).tolist()
        if not least < most:
            least, most = target.low, target.high
        tau = getattr(model.certificate.problem.loss, "tau", None)
        return cls(groups, size, target.low, target.high, least, most, *_find_center_and_spread(model), tau)

    @cached_property
    def predictions(self) -> Axis:
        return Axis.from_ends(self.least, self.most, center=self.center, narrow=self.spread, bins=self.size)

    @cached_property
    def errors(self) -> Axis:
        """The bins of the errors; the middle edge is 0."""
        narrow, most = NARROW_ERRORS * self.spread, max(self.most - self.low, self.high - self.least)
        return Axis.from_ends(-most, most, center=0.0, narrow=narrow, bins=2 * self.size)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.groups, self.size, 2 * self.size

    @property
    def half_range(self) -> float:
        return (self.high - self.low) / 2.0

    @property
    def is_above(self) -> npt.NDArray[np.bool_]:
        """Whether the prediction is at least the label, by bin of the error."""
        return np.arange(2 * self.size) >= self.size

    @cached_property
    def possible(self) -> Doubles:
        """The mask of the cells that a row with a label within the bounds can be in."""
        left, errors = self.predictions.edges[:, None], self.errors.edges
        slack = 2.0 * TOLERANCE * self.half_range
        highest, lowest = left[1:] - errors[:-1], left[:-1] - errors[1:]
        mask: Doubles = ((highest >= self.low - slack) & (lowest <= self.high + slack)).astype(np.float64)
        return mask

    @cached_property
    def means(self) -> dict[str, Doubles]:
        """The mean of each moment in each cell, for predictions and errors spread within a bin as `Axis` assumes."""
        predicted, errors = self.predictions, self.errors
        labels = np.clip(predicted.means[:, None] - errors.means, self.low, self.high)
        means = self.compute_moments(np.broadcast_to(predicted.means[:, None], labels.shape), labels)
        within = (predicted.variances[:, None] + errors.variances) / self.half_range**2
        return {
            **means,
            "squared label": means["squared label"] + within,
            "error": np.broadcast_to(errors.means, labels.shape),
            "squared error": np.broadcast_to(errors.means**2 + errors.variances, labels.shape),
        }

    @property
    def label_values(self) -> Doubles:
        """The label in the middle of each cell."""
        return self.decode_labels(self.means["label"])

    def compute_moments(self, predicted: Doubles, label: Doubles) -> dict[str, Doubles]:
        """Return the quantities of each row whose means are the metrics, such as the squared error, by name."""
        centered, error = (label - self.low) / self.half_range - 1.0, predicted - label
        found = {"label": centered, "squared label": centered**2, "error": error, "squared error": error**2}
        if self.low >= 0.0 and self.least > 0.0:
            ratio = np.where(label > 0.0, label, predicted) / predicted
            found["Poisson deviance"] = 2.0 * (label * np.log(ratio) + error)
        return found

    def decode_labels(self, encoded: npt.NDArray[Any]) -> Doubles:
        """Return labels in their own units, from -1 to 1 as they are encoded."""
        return np.clip(self.low + self.half_range * (encoded.astype(np.float64) + 1.0), self.low, self.high)

    def locate_cells(self, predicted: Doubles, error: Doubles) -> Indices:
        """Return for each row the index of its cell within its subgroup."""
        across = np.searchsorted(self.predictions.edges[1:-1], predicted, side="right")
        cells: Indices = across * 2 * self.size + np.searchsorted(self.errors.edges[1:-1], error, side="right")
        return cells

    def locate_rows(self, model: Model, labels: npt.NDArray[Any], margins: Doubles) -> Indices:
        predicted = model.predict_margins(margins)
        return self.locate_cells(predicted, predicted - self.decode_labels(labels))

    def make_statistics(self, counts: Counts) -> NumberStatistics:
        table = (self.possible * counts.table).sum(axis=1)
        return NumberStatistics(
            counts=counts,
            bins=self,
            means=self.means,
            labels=counts,
            label_values=self.label_values,
            errors=table[:, self.size :] + table[:, self.size - 1 :: -1],
            error_edges=self.errors.edges[self.size :],
        )


def _get_target(model: Model) -> Number:
    return cast(Number, model.schema.target)


def _find_center_and_spread(model: Model) -> tuple[float, float]:
    """Estimate the center and the spread of most labels, from the schema and the model alone."""
    target, schema = _get_target(model), model.schema
    if target.typical is not None:
        return target.center, target.scale / target.unit
    # The prediction for a row whose features are all 0, and of labels that are as far from it as the nearer bound.
    score = model.weights[0, -1] * schema.intercept_value if schema.intercept and schema.projection is None else 0.0
    center = float(model.predict_margins(np.array([[score]]))[0])
    nearer = min(center - target.low, target.high - center)
    return center, max(nearer / 2.0, (target.high - target.low) / 64.0)


def _take_root(score: Score | None) -> Score | None:
    """Return the square root of a metric and of the ends of its interval."""
    return None if score is None else Score(*(math.sqrt(one) for one in (score.value, score.low, score.high)))
