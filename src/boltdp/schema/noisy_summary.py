"""Summaries of private columns from noisy counts of their cells.

Numbers are counted twice: in wide intervals, ten for each power of ten and sign, and then in narrow ones within the
significant wide ones. Values are counted once. Post-processing of released counts costs nothing.

Proof: noisy_counts.md 5
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

import numpy as np
import pyarrow as pa

from boltdp._array_types import Doubles
from boltdp.encoding.declared_values import Value
from boltdp.privacy.events.noisy_counts import NoisyCounts, find_upper_quantile
from boltdp.privacy.release_with_noise import RandomBytes, release_counts, release_values
from boltdp.schema.source_columns import Kind
from boltdp.schema.summary import Histogram, Summary, count_values, read_largest_numbers, read_numbers, split_numbers

#: The edges of wide intervals; numbers beyond all edges are counted in the first or the last interval.
DIGITS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
POSITIVE_EDGES: Doubles = np.array([float(f"{digit}e{power}") for power in range(-6, 15) for digit in DIGITS])
WIDE_EDGES: Doubles = np.concatenate([-POSITIVE_EDGES[::-1], [0.0], POSITIVE_EDGES])
NARROW_INTERVALS = 100
#: If the interval next to a bound has less than this share of the count at the bound, numbers lie on the bound.
MIN_NEIGHBOUR = 0.25
#: The share of the numbers that may lie beyond each bound.
TAIL = 0.005
#: The probability that an empty column has a significant interval, or a significant run of a length.
MISTAKE_PROBABILITY = 1e-4
#: The threshold for cumulative sums of empty intervals from one end, in standard deviations of the noise.
MAX_TAIL_DEVIATIONS = 3.5
#: The threshold for a single sum, in standard deviations of the noise.
MAX_SUM_DEVIATIONS = 2.0

#: The counted cells of a column: its numbers, its values, or, if it is untyped, both.
CountedCells = Literal["numbers", "values", "either"]


class PrivateCounts:
    """The counts of one column, which are as sensitive as the rows until noise is added in their release."""

    def __init__(self, counted: CountedCells, kind: Kind, event: NoisyCounts) -> None:
        self._counted, self._kind, self._event = counted, kind, event
        self.wide = Histogram(WIDE_EDGES)
        self.values: Counter[Value] = Counter()
        self.texts = 0  #: cells that are not numbers, if their values cannot be released
        self.narrow: Histogram | None = None  #: within the range of the significant wide intervals
        self._released = Summary(noise=event)
        self._beyond = (math.inf, math.inf)  # upper bounds on the counts of numbers below and above the range

    def add_cells(self, cells: pa.Array) -> None:
        """Count each cell once: a number in its wide interval, another value by itself."""
        if self._counted == "values":
            self.values.update(count_values(cells))
            return
        numbers, texts = self._separate_numbers(cells)
        self.wide.add_numbers(numbers)
        if self._event.threshold is not None:
            self.values.update(texts)
        else:
            self.texts += texts.total()

    def _separate_numbers(self, cells: pa.Array) -> tuple[Doubles, Counter[Value]]:
        """Return the numbers among cells (of a list the one largest in absolute value), and counts of other values."""
        if self._counted == "either":
            return split_numbers(count_values(cells))
        return read_largest_numbers(cells) if self._kind == "list" else read_numbers(cells), Counter()

    def release(self, random_bytes: RandomBytes) -> None:
        """Add noise to the counts and release them; start narrow intervals over the range with significant counts."""
        event = self._event
        if event.threshold is not None:
            self._released.values = Counter(release_values(self.values, event, random_bytes))
        if self._counted == "values":
            return
        *wide, texts = release_counts([*self.wide.counts.tolist(), self.texts], event, random_bytes)
        counts = np.array(wide)
        found = find_significant_range(counts, event)
        if found is None or counts[found].sum() < max(texts, sum(self._released.values.values())):
            return
        low, high = WIDE_EDGES[max(found.start - 1, 0)], WIDE_EDGES[min(found.stop - 1, len(WIDE_EDGES) - 1)]
        if max(-low, high) <= POSITIVE_EDGES[0]:
            self._set_released_range(0.0, 1.0)  # nearly all numbers are 0
            return
        noise = event.noise.deviation
        self._beyond = bound_count(counts[: found.start], noise=noise), bound_count(counts[found.stop :], noise=noise)
        self._set_released_range(float(low), float(high))
        self.start_narrow_intervals(self._released.low, self._released.high)

    def _set_released_range(self, low: float, high: float) -> None:
        """Set the released range of the numbers; that of lists is made symmetric around 0."""
        if self._kind == "list":
            low, high = -max(-low, high), max(-low, high)
        self._released.low, self._released.high = low, high

    def start_narrow_intervals(self, low: float, high: float) -> None:
        """Start to count in narrow intervals, centred at the multiples of their width between these bounds."""
        step = choose_interval_width(high - low)
        first, last = round(low / step), round(high / step)
        self._step, self._first = step, first
        self.narrow = Histogram(np.arange(first + 0.5, last) * step)

    def add_cells_to_narrow_intervals(self, cells: pa.Array) -> None:
        """Count numbers, in a second scan, in equal intervals over the released range; the end ones get the rest."""
        assert self.narrow is not None
        self.narrow.add_numbers(self._separate_numbers(cells)[0])

    def summarize(self, random_bytes: RandomBytes) -> Summary:
        """Release the narrow counts with noise, and summarize the column from released counts alone."""
        summary = self._released
        if self.narrow is None:
            return summary
        counts = np.array(release_counts(self.narrow.counts.tolist(), self._event, random_bytes))
        noise = self._event.noise.deviation
        threshold = compute_significance_threshold(self._event, intervals=len(counts))
        first, last = trim_tails(counts, noise=noise, alone=threshold)
        if first >= last:
            # One interval is significant, or none is between the tails: keep the range of the wide intervals.
            first, last = 0, len(counts) - 1
        low, high = summary.low, summary.high
        # Numbers beyond the wide range were counted in the first and the last interval.
        below, above = (
            min(bound_count(end, noise=noise), beyond)
            for end, beyond in zip((counts[:1], counts[-1:]), self._beyond, strict=True)
        )
        if first > 0:
            low = max(low, self._convert_position_to_number(first - compute_bound_offset(counts[first:])))
            below = bound_count(counts[:first], noise=noise)
        if last < len(counts) - 1:
            high = min(high, self._convert_position_to_number(last + compute_bound_offset(counts[last::-1])))
            above = bound_count(counts[last + 1 :], noise=noise)
        self._set_released_range(low, high)
        summary.inside = max(1.0 - (below + above) / max(counts.sum(), 1.0), 0.0)
        return summary

    def _convert_position_to_number(self, position: float) -> float:
        """Convert a position among the narrow intervals, counted from 0, to the number at their centre."""
        return float(f"{(self._first + position) * self._step:.12g}")


def find_significant_range(counts: Doubles, event: NoisyCounts) -> slice | None:
    """Return the slice from the first to the last interval whose count, or sum with neighbours, is above the noise."""
    found: slice | None = None
    length = 1
    while length <= len(counts):
        least = compute_significance_threshold(event, intervals=len(counts), run=length)
        sums = np.convolve(counts, np.ones(length), mode="valid")
        while True:
            if found is not None:
                # Runs that overlap significant intervals are no evidence for the others.
                sums[max(found.start - length + 1, 0) : found.stop] = -np.inf
            start = int(np.argmax(sums))
            if not sums[start] > least:
                break
            stop = start + length
            found = slice(start, stop) if found is None else slice(min(start, found.start), max(stop, found.stop))
        length *= 2
    return found


def compute_significance_threshold(event: NoisyCounts, *, intervals: int, run: int = 1) -> float:
    """Return the threshold above which a noisy count, or a sum of `run` adjacent ones, is significant.

    For Laplace noise of scale s the sum of n is above s(2√(nL) + L) with a probability of at most exp(-L): its moment
    generating function is 1/(1 - s²t²)^n, whose logarithm is at most ns²t²/(1 - st).
    """
    noise, probability = event.noise, MISTAKE_PROBABILITY / intervals
    if run == 1 or noise.kind == "gaussian":
        return find_upper_quantile(noise, probability) * math.sqrt(run)
    rarity = -math.log(probability)
    return noise.scale * (2.0 * math.sqrt(run * rarity) + rarity)


def choose_interval_width(range_width: float) -> float:
    """Return the width of the narrow intervals for a range of numbers: 1, 2 or 5 times a power of ten."""
    least = range_width / NARROW_INTERVALS
    power = math.floor(math.log10(least))
    return next(step for digit in ("1", "2", "5", "10") if (step := float(f"{digit}e{power}")) >= least * (1 - 1e-9))


def trim_tails(counts: Doubles, *, noise: float, alone: float = math.inf) -> tuple[int, int]:
    """Return the indices of the first and last interval that remain after tails and noise are trimmed from both ends.

    A single count above `alone` is significant.
    """
    allowed = TAIL * max(float(counts.sum()), 0.0)

    def find_first_significant(counts: Doubles) -> int:
        sums = np.cumsum(counts)
        largest = np.maximum(allowed, MAX_TAIL_DEVIATIONS * noise * np.sqrt(np.arange(1, len(sums) + 1)))
        return int(np.argmax((sums > largest) | (counts > max(alone, allowed))))

    return find_first_significant(counts), len(counts) - 1 - find_first_significant(counts[::-1])


def compute_bound_offset(counts: Doubles) -> float:
    """Return how far a bound is moved outwards from the centre of its interval, in widths of an interval.

    It is not moved if the next interval inwards has few numbers: then they lie on the bound.
    """
    return 0.5 if counts[1] > MIN_NEIGHBOUR * counts[0] else 0.0


def bound_count(counts: Doubles, *, noise: float) -> float:
    """Return an upper bound, with high probability, on the true sum of noisy counts."""
    return max(float(counts.sum()), 0.0) + MAX_SUM_DEVIATIONS * noise * math.sqrt(len(counts))
