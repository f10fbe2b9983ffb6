"""Counts of rows, exact or with noise, and the figures that follow from them, each with its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp._arrays import Doubles, Integers

#: A value for each cell of a table, with its gradient in the counts.
Linear: TypeAlias = tuple[float, Doubles]

#: A share is given where its denominator is at least this many standard deviations of the noise.
MIN_DEVIATIONS = 4.0
#: 95 % of a normal distribution is within this many standard deviations of its mean.
NORMAL_QUANTILE = 1.959964
#: Points of a curve in JSON, at most.
MAX_POINTS = 200


@dataclass(frozen=True)
class Score:
    """A figure with its 95 % interval, for the rows as a sample and for the noise."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> str:
        """The interval in words.

        >>> Score(0.75, 0.7, 0.8).interval
        '0.7000 to 0.8000'
        """
        return f"{self.low:.4f} to {self.high:.4f}"

    def describe(self, *, whole: bool = False) -> str:
        """The figure and half the width of its interval; `whole` is for counts.

        >>> Score(0.75, 0.7, 0.8).describe(), Score(1200, 1200, 1200).describe(whole=True)
        ('0.750 ± 0.050', '1,200')
        """
        half, digits = 0.5 * (self.high - self.low), ",.0f" if whole else ".3f"
        return f"{self.value:{digits}}" + (f" ± {half:{digits}}" if half or not whole else "")

    def to_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def to_records(scores: Mapping[str, Score | None]) -> dict[str, dict[str, float] | None]:
    """Scores as JSON-able values."""
    return {name: None if score is None else score.to_dict() for name, score in scores.items()}


@dataclass(frozen=True, eq=False)
class Counts:
    """Rows by subgroup, class and bin, exact or with noise.

    Methods take `cells`, an array of 1 for each cell that counts and 0 for the others, which need only be broadcastable
    to the table. A figure whose denominator is too small for the noise is None.

    >>> counts = Counts(np.array([[[3, 1], [0, 4]]]), rows=8)
    >>> counts.mean(np.eye(2), np.ones((1, 1, 1))).describe(), counts.area(np.ones((1, 1, 1))).describe()
    ('0.875 ± 0.177', '0.875 ± 0.169')
    """

    table: Doubles | Integers
    rows: int  #: of the dataset, those that are in no cell included
    person_rows: int = 1  #: of one person, at most
    noise: float = 0.0  #: the standard deviation of the noise of each count
    released: int = 1  #: how many counts have noise; as the sum of these is public, so is that of their noise

    def total(self, cells: Doubles) -> Score:
        """How many rows are in some cells."""
        cells = np.broadcast_to(cells, self.table.shape)
        reach = NORMAL_QUANTILE * math.sqrt(self._noise_variance(cells))
        value = float((cells * self.table).sum())
        return Score(max(0.0, value), max(0.0, value - reach), max(0.0, value + reach))

    def mean(
        self, values: Doubles, cells: Doubles, *, variances: Doubles | None = None, most: float = 1.0
    ) -> Score | None:
        """The mean of the values of the cells, over the rows in them; a share, where values are 0 and 1.

        `variances` are those of the values of the rows within a cell.
        """
        linear = self.linear(values, cells)
        within = 0.0
        if linear is not None and variances is not None:
            counts = cells * self.table
            within = float((counts * variances).sum() / counts.sum() ** 2)
        return self.score(linear, most=most, within=within)

    def linear(self, values: Doubles, cells: Doubles) -> Linear | None:
        """The same, with its gradient in the counts."""
        cells = np.broadcast_to(cells, self.table.shape)
        if not self._suffice(cells):
            return None
        rows = float((cells * self.table).sum())
        value = float((cells * values * self.table).sum()) / rows
        return value, cells * (values - value) / rows

    def area(self, cells: Doubles) -> Score | None:
        """The area under the ROC curve: how often a row of the second class is in a higher bin than one of the first.

        Rows of one bin are ties and count half.
        """
        cells = np.broadcast_to(cells, self.table.shape)
        if not all(self._suffice(cells * one[None, :, None]) for one in np.eye(2)):
            return None
        outside, inside = (cells * self.table).sum(axis=0)
        below = np.cumsum(outside) - 0.5 * outside
        above = inside.sum() - np.cumsum(inside) + 0.5 * inside
        others, members = float(outside.sum()), float(inside.sum())
        value = float(inside @ below) / (others * members)
        slopes = np.array([above / (others * members) - value / others, below / (others * members) - value / members])
        return self.score((value, cells * slopes))

    def area_error(self) -> float | None:
        """How far the area can be from that of scores without bins: half the share of pairs that share a bin."""
        outside, inside = self.table.sum(axis=0)
        pairs = float(outside.sum()) * float(inside.sum())
        return max(0.0, float(outside @ inside) / (2.0 * pairs)) if pairs else None

    def score(self, linear: Linear | None, *, most: float = 1.0, within: float = 0.0) -> Score | None:
        """A value with its interval, from its gradient in the counts and the variance `within` cells.

        Proof: noisy_counts.md 6
        """
        if linear is None:
            return None
        value, gradient = linear
        counts = np.maximum(self.table, 0.0)
        sampled = float((counts * gradient**2).sum() - (counts * gradient).sum() ** 2 / self.rows)
        sampling = self.person_rows * max(0.0, sampled + within)
        return make_score(value, self._noise_variance(gradient) + sampling, most=most)

    def _noise_variance(self, gradient: Doubles) -> float:
        return self.noise**2 * float((gradient**2).sum() - gradient.sum() ** 2 / self.released) if self.noise else 0.0

    def _suffice(self, cells: Doubles) -> bool:
        """Whether the rows in some cells stand out of the noise, so that shares of them mean something."""
        rows = float((cells * self.table).sum())
        if not self.noise:
            return rows > 0.0
        count = float(np.count_nonzero(cells))
        noise = self.noise * math.sqrt(count * (1.0 - count / self.released))
        return rows > max(MIN_DEVIATIONS * noise, 1.0)


def make_score(value: float, variance: float, *, most: float = 1.0) -> Score:
    """A score between 0 and `most`, of a value and its variance."""
    reach = NORMAL_QUANTILE * math.sqrt(max(0.0, variance))
    middle, low, high = (max(0.0, min(one, most)) for one in (value, value - reach, value + reach))
    return Score(middle, low, high)


def average(scores: Sequence[Score | None]) -> Score | None:
    """The mean of those scores that there are; its interval is wide enough however they depend on each other.

    A standard deviation of a mean is no larger than the mean of the standard deviations.
    """
    known = [(one.value, one.low, one.high) for one in scores if one is not None]
    return Score(*(math.fsum(column) / len(known) for column in zip(*known, strict=True))) if known else None


@dataclass(frozen=True, eq=False)
class Curve:
    """How the rows of a class rank among the others: rows at or above each score, from the highest score down."""

    bins: npt.NDArray[np.intp]  #: of the scores
    inside: Doubles = field(repr=False)  #: rows of the class
    outside: Doubles = field(repr=False)  #: rows of the others

    @classmethod
    def of(cls, counts: Doubles | Integers) -> Curve:
        """From the rows of other classes and of the class by bins; noisy counts below 0 are taken for 0.

        >>> curve = Curve.of(np.array([[1, 1, 0], [0, 1, 1]]))
        >>> curve.bins.tolist(), curve.true_rate.tolist(), curve.false_rate.tolist()
        ([2, 1, 0], [0.0, 0.5, 1.0, 1.0], [0.0, 0.0, 0.5, 1.0])
        """
        counts = np.maximum(counts, 0)
        bins = np.flatnonzero(counts.any(axis=0))[::-1]
        outside, inside = np.cumsum(counts[:, bins], axis=1, dtype=np.float64)
        return cls(bins, inside, outside)

    @property
    def both(self) -> bool:
        """Whether there are rows of the class and of others: else there is no curve."""
        return bool(len(self.bins) and self.inside[-1] and self.outside[-1])

    @cached_property
    def true_rate(self) -> Doubles:
        """The share of the class's rows, which is the recall; from 0."""
        return np.concatenate([[0.0], self.inside / max(self.inside[-1], 1)])

    @cached_property
    def false_rate(self) -> Doubles:
        """The share of the other rows; from 0."""
        return np.concatenate([[0.0], self.outside / max(self.outside[-1], 1)])

    @cached_property
    def precision(self) -> Doubles:
        """The share of the class among the rows at or above each score."""
        shares: Doubles = self.inside / (self.inside + self.outside)
        return shares

    def average_precision(self, person_rows: int = 1) -> Score | None:
        """The mean of the precision over the rows of the class, of exact counts; None without rows of both."""
        if not self.both:
            return None
        members, above = self.inside[-1], self.inside + self.outside
        inside, outside = (np.diff(one, prepend=0.0) for one in (self.inside, self.outside))
        value = float(inside @ self.precision) / members
        # A row also changes the precision at every lower score.
        gained, lost = (np.cumsum((inside * one / above**2)[::-1])[::-1] for one in (self.outside, self.inside))
        variance = inside @ ((self.precision + gained - value) / members) ** 2 + outside @ (lost / members) ** 2
        return make_score(value, person_rows * float(variance))

    def points(self, most: int = MAX_POINTS) -> npt.NDArray[np.intp]:
        """Indices of at most `most` points, about equally far from each other along the curve."""
        along = np.abs(np.diff(self.true_rate)) + np.abs(np.diff(self.false_rate))
        steps = np.floor(np.cumsum(along) * (most - 1) / 2.0 - 1e-9)
        kept: npt.NDArray[np.intp] = np.flatnonzero(np.diff(steps, append=np.inf) > 0)
        return kept if self.both else kept[:0]


@dataclass(frozen=True)
class CalibrationBin:
    """The rows whose probability of something is between two bounds, and the share of them for which it is true."""

    low: float
    high: float
    rows: Score
    share: Score | None
    mean_probability: float | None = None  #: unknown of noisy counts

    def to_dict(self) -> dict[str, Any]:
        figures = to_records({"rows": self.rows, "share": self.share})
        mean = {} if self.mean_probability is None else {"mean_probability": self.mean_probability}
        return {"from": self.low, "to": self.high, **figures, **mean}


def calibrate(
    counts: Counts, edges: Sequence[float], places: Sequence[int], probabilities: Doubles | None = None
) -> tuple[CalibrationBin, ...]:
    """A table of the bins between two successive `places`, from counts of what is false and of what is true.

    `edges` are those of the bins, `probabilities` the sums of the probabilities of the rows of each bin, where these
    are known; bins without rows are left out then.

    >>> rows = Counts(np.array([[[0, 1], [0, 3]]]), rows=4)
    >>> [found] = calibrate(rows, (0.0, 0.5, 1.0), (0, 1, 2), np.array([0.0, 3.2]))
    >>> found.low, found.rows.value, found.mean_probability, found.share.describe()
    (0.5, 4.0, 0.8, '0.750 ± 0.337')
    """
    found = []
    for first, last in pairwise(places):
        cells = np.zeros((1, 1, counts.table.shape[2]))
        cells[..., first:last] = 1.0
        rows, share = counts.total(cells), counts.mean(np.array([[0.0], [1.0]]), cells)
        mean = None
        if probabilities is not None:
            if not rows.value:
                continue
            mean = float(probabilities[first:last].sum()) / rows.value
        found.append(CalibrationBin(edges[first], edges[last], rows, share, mean))
    return tuple(found)


def expected_calibration_error(bins: Sequence[CalibrationBin]) -> float | None:
    """The mean distance of the observed share from the probability, over the rows; None of noisy counts."""
    known = [
        (one.rows.value, abs(one.share.value - one.mean_probability))
        for one in bins
        if one.share is not None and one.mean_probability is not None
    ]
    return math.fsum(rows * error for rows, error in known) / math.fsum(rows for rows, _ in known) if known else None
