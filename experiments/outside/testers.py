"""The testers of DP-Auditorium (Kong, Muñoz Medina, Ribero and Syed, arXiv 2307.05608), in our own code.

Each takes draws of a release on two neighbouring datasets, and returns a number that the delta of the release at
epsilon exceeds, except with the probability `mistake`. A claim is refuted if it is above the claimed delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from boltdp._array_types import Doubles

#: Bins of the histogram, and thresholds that a classifier tries.
BINS, THRESHOLDS = 10, 201

Tester: TypeAlias = Callable[..., float]


def bound_by_histogram(first: Doubles, second: Doubles, *, epsilon: float, mistake: float) -> float:
    """Histograms of the first number: Gilbert and McMillan (arXiv 1806.06427), algorithm 2, as DP-Auditorium bounds it.

    The bins are chosen by a tenth of the draws, which are not counted.
    """
    pilot = len(first) // 10
    places = np.unique(np.quantile(np.concatenate([first[:pilot, 0], second[:pilot, 0]]), np.linspace(0, 1, BINS + 1)))
    shares = []
    for drawn in (first[pilot:, 0], second[pilot:, 0]):
        bins = np.searchsorted(places[1:-1], drawn, side="right")
        shares.append(np.bincount(bins, minlength=len(places) + 1) / len(drawn))
    count, growth = len(first) - pilot, math.exp(epsilon)
    roots = float(np.sqrt(shares[0]).sum() + growth * np.sqrt(shares[1]).sum())
    spread = 6.0 * (1.0 + growth) * math.sqrt(math.log(4.0 / mistake) / (2.0 * count))
    return float(np.maximum(shares[0] - growth * shares[1], 0.0).sum()) - 2.0 * roots / math.sqrt(count) - spread


def bound_by_classifier(first: Doubles, second: Doubles, *, epsilon: float, mistake: float) -> float:
    """The hockey-stick divergence: a classifier learns on one half of the draws, and is tested on the other.

    It is linear, by least squares, with the threshold that is best on the first half. By Hoeffding's inequality, for
    both rates.
    """
    half, growth = len(first) // 2, math.exp(epsilon)

    def features(drawn: Doubles) -> Doubles:
        # Tails are long: signed roots keep them from deciding everything.
        roots, ones = np.sign(drawn) * np.sqrt(np.abs(drawn)), np.ones(len(drawn))
        return np.column_stack([roots, drawn, np.linalg.norm(drawn, axis=1), ones])

    learned = [features(drawn[:half]) for drawn in (first, second)]
    labels = np.repeat([1.0, 0.0], half)
    direction = np.linalg.lstsq(np.concatenate(learned), labels, rcond=None)[0]
    scores = [np.sort(one @ direction) for one in learned]
    thresholds = np.quantile(np.concatenate(scores), np.linspace(0.0, 1.0, THRESHOLDS))
    above, above_other = (1.0 - np.searchsorted(one, thresholds, side="right") / half for one in scores)
    threshold = thresholds[np.argmax(above - growth * above_other)]
    rates = [float(np.mean(features(drawn[half:]) @ direction > threshold)) for drawn in (first, second)]
    spread = (1.0 + growth) * math.sqrt(math.log(2.0 / mistake) / (2.0 * (len(first) - half)))
    return rates[0] - growth * rates[1] - spread


def bound_by_mean_discrepancy(first: Doubles, second: Doubles, *, epsilon: float, mistake: float) -> float:
    """The maximum mean discrepancy with a Laplacian kernel: it is at most 2, and finds gross faults only.

    By Hoeffding's or by the empirical Bernstein inequality.
    """
    count = len(first) // 2
    (x, other_x), (y, other_y) = ((drawn[:count], drawn[count : 2 * count]) for drawn in (first, second))
    width = float(np.median(np.abs(x - other_x).sum(axis=1))) or 1.0

    def kernel(one: Doubles, other: Doubles) -> Doubles:
        return np.asarray(np.exp(-np.abs(one - other).sum(axis=1) / width))

    terms = kernel(x, other_x) - 2.0 * kernel(x, y) + kernel(y, other_y)
    often, rare = math.exp(epsilon), math.exp(-epsilon)
    spreads = (
        math.sqrt(8.0 * math.log(2.0 / mistake) / count),
        math.sqrt(2.0 * float(terms.var()) * math.log(4.0 / mistake) / count)
        + 28.0 * math.log(4.0 / mistake) / (3.0 * (count - 1)),
    )
    # If delta is d, the discrepancy is at most (e^eps - 1)^2 + 2 (e^eps - e^-eps) d + (1 + e^-eps) d^2.
    linear, square = often - rare, 1.0 + rare
    excess = float(terms.mean()) - min(spreads) - (often - 1.0) ** 2
    return (math.sqrt(max(linear**2 + square * excess, 0.0)) - linear) / square


TESTERS: Mapping[str, Tester] = {
    "histogram": bound_by_histogram,
    "hockey stick": bound_by_classifier,
    "mean discrepancy": bound_by_mean_discrepancy,
}


def bound_delta(tester: Tester, first: Doubles, second: Doubles, *, epsilon: float, mistake: float) -> float:
    """Return the larger of the bounds of both directions."""
    return max(
        tester(one, other, epsilon=epsilon, mistake=mistake / 2.0) for one, other in ((first, second), (second, first))
    )
