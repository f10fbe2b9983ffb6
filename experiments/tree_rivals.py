"""Rivals that grow trees: one with chosen splits, without a delta, and many with random splits, boosted, with a delta.

Both are calibrated for one row replaced, and both are written after their papers. Columns are cut finely in their
public bounds, or in the logarithms of these, as for naive Bayes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from boltdp._array_types import Doubles, Integers
from boltdp.privacy.budget import Budget
from experiments.rivals import WIDE, Rng, counts_of, cut, gaussian_deviation
from experiments.tasks import Answer, Task

#: Bins, or nodes of a tree, of which there are 256 at most.
Places: TypeAlias = npt.NDArray[np.uint8]

#: Into how many cells a column of numbers is cut, of which bins are made.
CELLS = 256


@dataclass(frozen=True)
class Binned:
    """A column: the bin of each row, for training and for testing."""

    trained: Places
    tested: Places
    bins: int
    ordered: bool  #: False for categories

    def merge(self, edges: Sequence[int]) -> Binned:
        """Return the column with bins that begin at these ones."""
        trained, tested = (np.searchsorted(edges, places, side="right") for places in (self.trained, self.tested))
        return Binned(trained.astype(np.uint8), tested.astype(np.uint8), len(edges) + 1, self.ordered)


def read_columns(task: Task, wide: float) -> list[Binned]:
    """Return the columns of a task, in their finest bins."""
    ordered = (
        not categories for span, categories, _, _ in task.spans() for _ in range(1 if categories else _width(span))
    )
    parts = (cut(task, part, CELLS, wide) for part in (0, 1))
    return [
        Binned(trained.astype(np.uint8), tested.astype(np.uint8), bins, numeric)
        for (trained, bins), (tested, _), numeric in zip(*parts, ordered, strict=True)
    ]


def _width(span: slice) -> int:
    return int(span.stop - span.start)


def even_edges(cells: int, bins: int) -> list[int]:
    """Return where even bins begin, but the first.

    >>> even_edges(16, 4)
    [4, 8, 12]
    """
    return [cells * place // bins for place in range(1, bins)]


@dataclass(frozen=True)
class Level:
    """The splits of the nodes of one level of a tree."""

    columns: Integers  #: of each node
    right: npt.NDArray[np.bool_]  #: of each node and bin, whether its rows go to the right

    def send(self, places: Sequence[Places], nodes: Places) -> Places:
        """Return the nodes of the next level in which the rows are, from the bins of all columns."""
        sent = 2 * nodes
        for node, (column, right) in enumerate(zip(self.columns, self.right, strict=True)):
            sent += np.take(right, places[column]) & (nodes == node)
        return sent


def flip(utilities: Doubles, epsilon: float, sensitivity: float, rng: Rng) -> Integers:
    """Return the choices of permute-and-flip, one for each line of utilities.

    It is the largest utility with exponential noise of scale 2*sensitivity/epsilon (Ding et al. 2021).
    """
    noisy = utilities * (epsilon / (2.0 * sensitivity)) + rng.exponential(1.0, utilities.shape)
    return np.asarray(np.argmax(noisy, axis=-1), np.int64)


def choose_quantiles(counts: Integers, levels: int, epsilon: float, rng: Rng) -> list[int]:
    """Return cells at which 2^levels parts of nearly the same number of rows begin, but the first.

    Halves are halved (Kaplan, Schnapp and Stemmer 2022), for the same share of epsilon at each level. The utility of a
    cell is minus half the difference between the rows on its two sides. A row more or less in a part moves that by a
    half; a row replaced is one less and one more, in one part or in two, so that a sensitivity of 1 is that of a level.
    """

    def halve(low: int, high: int, left: int) -> Iterator[int]:
        if left == 0 or high - low < 2:
            return
        inside = counts[low:high]
        below = np.cumsum(inside)[:-1]
        middle = low + 1 + int(flip(-np.abs(below - inside.sum() / 2.0), epsilon / levels, 1.0, rng))
        yield from halve(low, middle, left - 1)
        yield middle
        yield from halve(middle, high, left - 1)

    return list(halve(0, len(counts), levels))


def rate_splits(counts: Any) -> Doubles:
    """Return the utilities of the splits of nodes, from how many rows of each class go to the left and to the right.

    `counts` has the axes side, node, split, class. The utility is the sum over both sides of sum_k n_k^2/n, which is
    the number of rows in the node, the same for all its splits, less its rows times the Gini impurity after the split.
    A row more in a side changes (sum_k n_k^2)/n by (2n_k + 1 - (sum_j n_j^2)/n)/(n + 1), which is above -1 and at most
    1. A row replaced is one less and one more: in one node, where they may add up to 2, or in two, each of which moves
    by at most 1. With a sensitivity of 2 permute-and-flip spends epsilon on the first, and epsilon/2 twice on the
    second, so that all nodes of a level are epsilon together.
    """
    rows = counts.sum(axis=-1)
    utilities: Doubles = (np.square(counts, dtype=np.float64).sum(axis=-1) / np.maximum(rows, 1)).sum(axis=0)
    return utilities


def permuted_tree(
    task: Task,
    budget: Budget,
    rng: Rng,
    *,
    depth: int,
    levels: int,
    quantiles: float,
    error: float,
    smoothing: float,
    wide: float = WIDE,
) -> Answer:
    """PrivaTree (Vos et al. 2023), pure, for one row replaced.

    A share `quantiles` of epsilon finds 2^levels bins of each column of numbers, in equal shares; without it bins are
    even. Leaves get as much as makes the rows that their labels lose by noise a share `error`, and half of epsilon at
    most, as published; the splits of each level the same share of what is left. Splits are at bins, or one category
    against the others, and chosen by permute-and-flip among all columns.

    Published are the labels of leaves. Here a leaf has a noisy count of each class, so that there are probabilities: a
    row replaced moves two counts by 1, an L1 distance of 2. Counts are raised to 0 and get `smoothing` noise scales of
    rows with the shares of the classes in all leaves.
    """
    labels, classes = task.parts[0].labels, task.classes
    for_quantiles = quantiles * budget.epsilon
    left = budget.epsilon - for_quantiles
    # Two counts with Laplace noise of scale b, g apart, are exchanged with probability exp(-g/b)(2 + g/b)/4, and g
    # times that is at most 0.293 b.
    for_leaves = min(left / 2.0, 0.293 * 2.0 * 2**depth / (error * task.rows))
    for_level = (left - for_leaves) / depth
    columns = _bin_purely(read_columns(task, wide), levels, for_quantiles, rng)
    trained, tested = ([getattr(column, part) for column in columns] for part in ("trained", "tested"))
    inside, outside = np.zeros(len(trained[0]), np.uint8), np.zeros(len(tested[0]), np.uint8)
    for nodes in (2**level for level in range(depth)):
        split = _choose_splits(columns, labels, classes, inside, nodes, for_level, rng)
        inside, outside = split.send(trained, inside), split.send(tested, outside)
    counts = counts_of(inside.astype(np.int64), labels, classes=2**depth, bins=classes)
    scale = 2.0 / for_leaves
    noisy = np.maximum(counts + rng.laplace(0.0, scale, counts.shape), 0.0)
    shares = np.maximum(noisy.sum(axis=0), 1.0)
    kept = noisy + smoothing * scale * shares / shares.sum()
    return Answer.of_probabilities((kept / kept.sum(axis=1, keepdims=True))[outside])


def _bin_purely(columns: Sequence[Binned], levels: int, epsilon: float, rng: Rng) -> list[Binned]:
    """Return the columns with bins of numbers that are even, or at quantiles if there is an epsilon for them."""
    numeric = max(1, sum(column.ordered for column in columns))

    def edges(column: Binned) -> list[int]:
        if epsilon == 0:
            return even_edges(column.bins, 2**levels)
        counts = np.bincount(column.trained, minlength=column.bins)
        return choose_quantiles(counts, levels, epsilon / numeric, rng)

    return [column.merge(edges(column)) if column.ordered else column for column in columns]


def _choose_splits(
    columns: Sequence[Binned], labels: Integers, classes: int, inside: Places, nodes: int, epsilon: float, rng: Rng
) -> Level:
    """Return a split of each node by permute-and-flip, all of a level for one epsilon."""
    utilities: list[Doubles] = []
    owners: list[int] = []
    firsts: list[int] = []
    for number, column in enumerate(columns):
        counts = counts_of(
            inside.astype(np.int64) * column.bins + column.trained, labels, classes=nodes * column.bins, bins=classes
        ).reshape(nodes, column.bins, classes)
        sides = np.cumsum(counts, axis=1)[:, :-1] if column.ordered else counts
        utilities.append(rate_splits(np.stack([sides, counts.sum(axis=1, keepdims=True) - sides])))
        owners += sides.shape[1] * [number]
        firsts += range(sides.shape[1])
    chosen = flip(np.concatenate(utilities, axis=1), epsilon, 2.0, rng)
    places = np.arange(max(column.bins for column in columns))
    where, first = np.array(owners)[chosen], np.array(firsts)[chosen][:, None]
    ordered = np.array([column.ordered for column in columns])[where][:, None]
    return Level(where, np.where(ordered, places > first, places != first))


#: What sums of h are multiplied by before they get the noise of sums of g.
_WEIGHT = 2.0


def reach_sensitivity(reach: float) -> float:
    """Return how far a row replaced moves the sums (g, 2h) of all leaves, where scores are within `reach`: 2G.

    With G = 1/(1 + exp(-reach)), the largest |g|, and h = |g|(1 - |g|). Let a and b be |g| before and after, s = a + b
    and t = a - b. In one leaf, with another label, the squared distance is s^2 + 4t^2(1 - s)^2. As |t| <= min(s, 2G -
    s), it is at most s^2 + 4s^2(1 - s)^2 <= 1 for s <= 1; beyond, 4(2G - s)(s - 1)^2 <= 16/27 <= 2G + s bounds it by
    4G^2. With the same label it is t^2 + 4t^2(1 - s)^2, no more. In two leaves it is the sum of a^2 + 4a^2(1 - a)^2 and
    the same of b, each at most 2G^2, since G >= 1/2: it grows with a, and (1 - G)^2 <= 1/4.
    """
    return 2.0 / (1.0 + math.exp(-reach))


def boosted_trees(
    task: Task,
    budget: Budget,
    rng: Rng,
    *,
    trees: int,
    depth: int,
    rate: float,
    ridge: float,
    quantiles: float,
    bins: int = 16,
    wide: float = WIDE,
) -> Answer:
    """Boosting of totally random trees with Newton's steps (Maddock et al. 2022), for delta > 0 and one row replaced.

    Splits are drawn at random: a column, then one of its bins, or half of its categories. Of each leaf the sums of the
    first and second derivatives of the logistic loss are released with Gaussian noise. The noisy counts of which the
    quantiles of numbers are made, for a share of the budget, and the sums of all trees are one Gaussian.
    The first trees have less noise, since the steps that are released so far bound the scores of all possible rows.

    A leaf is a step -rate*g/(h + ridge*s), where s is the deviation of the noise of its sum.
    """
    sigma = gaussian_deviation(budget.epsilon, budget.delta)
    columns = _bin_by_counts(read_columns(task, wide), bins, sigma / math.sqrt(quantiles) if quantiles else None, rng)
    trained, tested = ([getattr(column, part) for column in columns] for part in ("trained", "tested"))
    labels = task.parts[0].labels
    noise = sigma * math.sqrt(trees / (1.0 - quantiles))
    scores, answers, bound = np.zeros(len(trained[0])), np.zeros(len(tested[0])), 0.0
    for _ in range(trees):
        inside, outside = np.zeros(len(scores), np.uint8), np.zeros(len(answers), np.uint8)
        for nodes in (2**level for level in range(depth)):
            split = _draw_splits(columns, nodes, rng)
            inside, outside = split.send(trained, inside), split.send(tested, outside)
        deviation = noise * reach_sensitivity(bound)
        sums = sum_derivatives(scores, labels, inside, 2**depth)
        sums += rng.normal(0.0, deviation, sums.shape)
        steps = -rate * sums[0] / (np.maximum(sums[1] / _WEIGHT, 0.0) + ridge * deviation + 1.0)
        bound += float(np.abs(steps).max())
        scores += steps[inside]
        answers += steps[outside]
    return Answer.of_scores(answers)


def sum_derivatives(scores: Doubles, labels: Integers, leaves: Places, count: int) -> Doubles:
    """Return for each leaf the sums of g and 2h, the derivatives of the logistic loss of the rows."""
    odds = expit(scores)
    leaves = leaves.astype(np.int64)
    return np.stack(
        [
            np.bincount(leaves, odds - labels, minlength=count),
            np.bincount(leaves, _WEIGHT * odds * (1.0 - odds), minlength=count),
        ]
    )


def _bin_by_counts(columns: Sequence[Binned], bins: int, sigma: float | None, rng: Rng) -> list[Binned]:
    """Return the columns with bins of numbers that are even, or at the quantiles of noisy counts of 64 cells.

    Replacing a row moves two counts of each column: an L2 distance of sqrt(2p) in p columns.
    """
    numeric = sum(column.ordered for column in columns)

    def edges(column: Binned) -> list[int]:
        if sigma is None:
            return even_edges(column.bins, bins)
        counts = np.bincount(column.trained.astype(np.int64) * 64 // column.bins, minlength=64)
        below = np.cumsum(np.maximum(counts + rng.normal(0.0, sigma * math.sqrt(2.0 * numeric), 64), 0.0))
        found = np.searchsorted(below, below[-1] * np.arange(1, bins) / bins) + 1
        return sorted({int(place) * column.bins // 64 for place in found if place < 64}) or [column.bins // 2]

    return [column.merge(edges(column)) if column.ordered else column for column in columns]


def _draw_splits(columns: Sequence[Binned], nodes: int, rng: Rng) -> Level:
    """Return a random split of each node."""
    right = np.zeros((nodes, max(column.bins for column in columns)), bool)
    where = rng.integers(len(columns), size=nodes)
    for node, column in enumerate(columns[number] for number in where):
        if column.ordered:
            right[node, rng.integers(1, column.bins) :] = True
        else:
            right[node, rng.permutation(column.bins)[: column.bins // 2]] = True
    return Level(where, right)
