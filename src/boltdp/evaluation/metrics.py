"""Exact or noisy counts of rows, and the metrics that follow from them, each with its 95 % confidence interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, Integers

#: A function of the counts: its value and its gradient.
ValueAndGradient: TypeAlias = tuple[float, Doubles]

#: Minimum denominator of a share, in standard deviations of its noise.
MIN_DEVIATIONS = 4.0
#: The 97.5 % quantile of the standard normal distribution.
NORMAL_QUANTILE = 1.959964
#: Maximum number of points of a curve in JSON.
MAX_POINTS = 200


class Table(NamedTuple):
    """A table of texts."""

    headings: tuple[str, ...]
    lines: list[tuple[str, ...]]


@dataclass(frozen=True)
class Score:
    """A metric with its 95 % confidence interval, for sampling error and noise."""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.value:,.{self._choose_decimals(4)}f}"

    @property
    def interval(self) -> str:
        decimals = self._choose_decimals(4)
        return f"{self.low:,.{decimals}f} to {self.high:,.{decimals}f}"

    def _choose_decimals(self, least: int) -> int:
        """Return the number of decimals: `least` for shares, fewer for large and more for tiny numbers."""
        size = max(abs(self.value), abs(self.low), abs(self.high))
        return least if 1e-3 <= size < 10.0 or not size else max(0, least - math.floor(math.log10(size)))

    def describe(self, *, whole: bool = False) -> str:
        """Format the metric and half the width of its interval; `whole` is for counts."""
        half, digits = 0.5 * (self.high - self.low), f",.{0 if whole else self._choose_decimals(3)}f"
        return f"{self.value:{digits}}" + (f" ± {half:{digits}}" if half or not whole else "")


def convert_scores(scores: Mapping[str, Score | None]) -> dict[str, dict[str, float] | None]:
    """Convert the scores of metrics to JSON values."""
    return {name: None if score is None else asdict(score) for name, score in scores.items()}


def tabulate_scores(heading: str, parts: Mapping[str, Mapping[str, Score | None]]) -> Table:
    """Make a table of scores with a line per class or subgroup, without metrics that are unknown for all."""
    names = [name for name in next(iter(parts.values())) if any(scores[name] for scores in parts.values())]
    lines = []
    for part, scores in parts.items():
        cells = ("-" if (one := scores[name]) is None else one.describe(whole=name == "rows") for name in names)
        lines.append((part, *cells))
    return Table((heading, *names), lines)


@dataclass(frozen=True, eq=False)
class Counts:
    """Exact or noisy counts of rows by subgroup and two more indices, such as class and bin.

    Methods take a mask `cells` that is broadcast to the table. A metric whose denominator is small compared to the
    noise is None.
    """

    table: Doubles | Integers
    rows: int  #: of the dataset, including rows that are in no cell
    person_rows: int = 1  #: maximum number of rows per person
    noise: float = 0.0  #: the standard deviation of the noise of each count
    released: int = 1  #: the number of noisy counts, whose exact sum is public

    def count_rows_in(self, cells: Doubles) -> Score:
        """Return the exact or noisy number of rows in some cells, with its confidence interval."""
        cells = np.broadcast_to(cells, self.table.shape)
        reach = NORMAL_QUANTILE * math.sqrt(self.compute_noise_variance(cells))
        value = float((cells * self.table).sum())
        return Score(max(0.0, value), max(0.0, value - reach), max(0.0, value + reach))

    def compute_mean(
        self, values: Doubles, cells: Doubles, *, variances: Doubles | None = None, most: float = 1.0
    ) -> Score | None:
        """Return the mean of `values` over the rows in some cells, as a metric; `variances` are those within a cell."""
        linear = self.compute_mean_and_gradient(values, cells)
        within = 0.0
        if linear is not None and variances is not None:
            counts = cells * self.table
            within = float((counts * variances).sum() / counts.sum() ** 2)
        return self.add_interval(linear, most=most, within=within)

    def compute_mean_and_gradient(self, values: Doubles, cells: Doubles) -> ValueAndGradient | None:
        """Return the mean of `values` over the rows in some cells, and its gradient with respect to the counts."""
        cells = np.broadcast_to(cells, self.table.shape)
        if not self._exceeds_noise(cells):
            return None
        rows = float((cells * self.table).sum())
        value = float((cells * values * self.table).sum()) / rows
        return value, cells * (values - value) / rows

    def compute_area(self, cells: Doubles) -> Score | None:
        """Return the area under the ROC curve of the second class, with its interval; ties in a bin count half."""
        cells = np.broadcast_to(cells, self.table.shape)
        if not all(self._exceeds_noise(cells * one[None, :, None]) for one in np.eye(2)):
            return None
        outside, inside = (cells * self.table).sum(axis=0)
        below = np.cumsum(outside) - 0.5 * outside
        above = inside.sum() - np.cumsum(inside) + 0.5 * inside
        others, members = float(outside.sum()), float(inside.sum())
        value = float(inside @ below) / (others * members)
        slopes = np.array([above / (others * members) - value / others, below / (others * members) - value / members])
        return self.add_interval((value, cells * slopes))

    def bound_area_error(self) -> float | None:
        """Return an upper bound on the binning error of the area: half the share of pairs that are in one bin."""
        outside, inside = self.table.sum(axis=0)
        pairs = float(outside.sum()) * float(inside.sum())
        return max(0.0, float(outside @ inside) / (2.0 * pairs)) if pairs else None

    def add_interval(
        self, linear: ValueAndGradient | None, *, least: float = 0.0, most: float = 1.0, within: float = 0.0
    ) -> Score | None:
        """Return a value with its confidence interval, from its gradient in the counts and the variance `within` cells.

        Proof: noisy_counts.md 6
        """
        if linear is None:
            return None
        value, gradient = linear
        counts = np.maximum(self.table, 0.0)
        sampled = float((counts * gradient**2).sum() - (counts * gradient).sum() ** 2 / self.rows)
        sampling = self.person_rows * max(0.0, sampled + within)
        return make_score(value, self.compute_noise_variance(gradient) + sampling, least=least, most=most)

    def compute_noise_variance(self, gradient: Doubles) -> float:
        """Return the variance that the noise of the counts causes in a metric with this gradient."""
        return self.noise**2 * float((gradient**2).sum() - gradient.sum() ** 2 / self.released) if self.noise else 0.0

    def _exceeds_noise(self, cells: Doubles) -> bool:
        """Return whether the number of rows in some cells is above 0 by more than the noise explains."""
        rows = float((cells * self.table).sum())
        if not self.noise:
            return rows > 0.0
        count = float(np.count_nonzero(cells))
        noise = self.noise * math.sqrt(count * (1.0 - count / self.released))
        return rows > max(MIN_DEVIATIONS * noise, 1.0)


def make_score(value: float, variance: float, *, least: float = 0.0, most: float = 1.0) -> Score:
    """Make the score of a metric, clipped to [`least`, `most`], with the normal 95 % interval of its variance."""
    reach = NORMAL_QUANTILE * math.sqrt(max(0.0, variance))
    middle, low, high = (max(least, min(one, most)) for one in (value, value - reach, value + reach))
    return Score(middle, low, high)


def average_scores(scores: Sequence[Score | None]) -> Score | None:
    """Return the mean of the known scores, with an interval that is valid under any dependence between them.

    The standard deviation of a mean is at most the mean of the standard deviations.
    """
    known = [(one.value, one.low, one.high) for one in scores if one is not None]
    return Score(*(math.fsum(column) / len(known) for column in zip(*known, strict=True))) if known else None


@dataclass(frozen=True, eq=False)
class Curve:
    """The ROC and precision-recall curves of a class: cumulative rows from the highest score down."""

    bins: npt.NDArray[np.intp]  #: of the scores
    inside: Doubles = field(repr=False)  #: rows of the class
    outside: Doubles = field(repr=False)  #: rows of the other classes

    @classmethod
    def from_counts(cls, counts: Doubles | Integers) -> Curve:
        """Make the curve from counts of negative and positive rows by score bin; noisy counts below 0 are set to 0."""
        counts = np.maximum(counts, 0)
        bins = np.flatnonzero(counts.any(axis=0))[::-1]
        outside, inside = np.cumsum(counts[:, bins], axis=1, dtype=np.float64)
        return cls(bins, inside, outside)

    @property
    def has_both_classes(self) -> bool:
        """Whether there are positive and negative rows: else there is no curve."""
        return bool(len(self.bins) and self.inside[-1] and self.outside[-1])

    @cached_property
    def true_positive_rate(self) -> Doubles:
        return np.concatenate([[0.0], self.inside / max(self.inside[-1], 1)])

    @cached_property
    def false_positive_rate(self) -> Doubles:
        return np.concatenate([[0.0], self.outside / max(self.outside[-1], 1)])

    @cached_property
    def precision(self) -> Doubles:
        shares: Doubles = self.inside / (self.inside + self.outside)
        return shares

    def average_precision(self, person_rows: int = 1) -> Score | None:
        """Return the average precision, for exact counts; None without positive and negative rows."""
        if not self.has_both_classes:
            return None
        members, above = self.inside[-1], self.inside + self.outside
        inside, outside = (np.diff(one, prepend=0.0) for one in (self.inside, self.outside))
        value = float(inside @ self.precision) / members
        # A row also changes the precision at every lower score.
        gained, lost = (np.cumsum((inside * one / above**2)[::-1])[::-1] for one in (self.outside, self.inside))
        variance = inside @ ((self.precision + gained - value) / members) ** 2 + outside @ (lost / members) ** 2
        return make_score(value, person_rows * float(variance))

    def select_points(self, most: int = MAX_POINTS) -> npt.NDArray[np.intp]:
        """Return the indices of at most `most` points, about equidistant along the ROC curve."""
        along = np.abs(np.diff(self.true_positive_rate)) + np.abs(np.diff(self.false_positive_rate))
        steps = np.floor(np.cumsum(along) * (most - 1) / 2.0 - 1e-9)
        kept: npt.NDArray[np.intp] = np.flatnonzero(np.diff(steps, append=np.inf) > 0)
        return kept if self.has_both_classes else kept[:0]


@dataclass(frozen=True)
class CalibrationBin:
    """A calibration bin: the rows with a probability between two bounds, and the observed share of positives."""

    low: float
    high: float
    rows: Score
    share: Score | None
    mean_probability: float | None = None  #: None for noisy counts

    def to_dict(self) -> dict[str, Any]:
        figures = convert_scores({"rows": self.rows, "share": self.share})
        mean = {} if self.mean_probability is None else {"mean_probability": self.mean_probability}
        return {"from": self.low, "to": self.high, **figures, **mean}


def make_calibration_bins(
    counts: Counts, edges: Sequence[float], cuts: Sequence[int], probabilities: Doubles | None = None
) -> tuple[CalibrationBin, ...]:
    """Return calibration bins that merge the bins between successive `cuts`, from counts of negatives and positives.

    `edges` are the edges of the bins. `probabilities` are the sums of the probabilities in each bin, if known; then
    empty bins are omitted.
    """
    found = []
    for first, last in pairwise(cuts):
        cells = np.zeros((1, 1, counts.table.shape[2]))
        cells[..., first:last] = 1.0
        rows, share = counts.count_rows_in(cells), counts.compute_mean(np.array([[0.0], [1.0]]), cells)
        if probabilities is None:
            found.append(CalibrationBin(edges[first], edges[last], rows, share))
        elif rows.value:
            mean = float(probabilities[first:last].sum()) / rows.value
            found.append(CalibrationBin(edges[first], edges[last], rows, share, mean))
    return tuple(found)


def compute_calibration_error(bins: Sequence[CalibrationBin]) -> float | None:
    """Return the expected calibration error over all rows; None for noisy counts."""
    known = [
        (one.rows.value, abs(one.share.value - one.mean_probability))
        for one in bins
        if one.share is not None and one.mean_probability is not None
    ]
    return math.fsum(rows * error for rows, error in known) / math.fsum(rows for rows, _ in known) if known else None
