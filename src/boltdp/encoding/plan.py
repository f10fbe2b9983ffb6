"""The encoding plan of a schema: the rules by which columns become packed cells, and cells become features.

A packed row is the class index, then the cells, as float32: numbers are clipped to their bounds and scaled to [-1, 1],
a category is its index. Rows are encoded once: the centres and scales that are found later are part of the feature map,
as are the steps of curves, the one-hot categories, the intercept and the division by the row norm.

Nothing is learned from the values. A missing or undeclared number becomes NaN, a category -1, which the feature map
makes 0 or no category; a label NaN, for which the kernel adds no gradient.

A pair of columns has features of its own, but no cells: the products of features of the two. They follow those of all
columns.

Every kind of column compiles to one of four rules. Code that treats them differently (Arrow batches, PostgreSQL's
plan, SQL) derives from `RuleVisitor`, which is abstract until all of them are handled.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Generic, TypeVar

import numpy as np

from boltdp._array_types import Doubles, PackedRows
from boltdp._bisect import bisect_integers
from boltdp.encoding.declared_values import Value, format_value
from boltdp.encoding.projection import Projection
from boltdp.encoding.timestamp_parts import PARTS, TimestampPart
from boltdp.kernel.feature_map import Axis, FeatureMap, PairSegment, Segment

T = TypeVar("T")

#: The difference between the values of a step below and above its place.
STEP_HEIGHT = 0.5
#: The number of steps of a curve that a pair of columns uses.
PAIR_STEPS = 3
#: The factor of the features of a pair: products of steps from -1 to 1, or of categories of 0 or 1, less their centres.
PAIR_WEIGHT = 0.25
_MAX_ORDINAL = 2**63 - 1


@dataclass(frozen=True)
class Rule(ABC):
    """The rule that encodes one column as features: numbers, then steps of a curve, then categories."""

    reads_lists: ClassVar[bool] = False  #: whether a cell of the data holds all numbers of a row

    column: str  #: the declared column
    source: str  #: the column of the data

    @property
    def number_count(self) -> int:
        """The number of features of the column that are numbers, not steps or categories."""
        return 0

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of the numbers; -1 and 1 without numbers."""
        return -1.0, 1.0

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The thresholds of the step features of a curve."""
        return ()

    @property
    def places(self) -> Doubles:
        """The cells of the thresholds: a number reaches those that are at most its own cell."""
        return np.zeros(0)

    @cached_property
    def exact_thresholds(self) -> tuple[float, ...]:
        """The smallest doubles that reach the thresholds; -inf where every number does."""
        return self.find_exact_thresholds(self.thresholds)

    def find_exact_thresholds(self, thresholds: tuple[float, ...]) -> tuple[float, ...]:
        """Find the smallest doubles that reach `thresholds` of numbers; -inf where every number does."""
        return ()

    @property
    def direction(self) -> int:
        """1 if scores must never fall while the number rises, -1 if they must never rise; 0: they may do both."""
        return 0

    @property
    def values(self) -> tuple[Value, ...]:
        """The declared categories, or those of a part of a timestamp."""
        return ()

    @property
    def known_values(self) -> tuple[Value, ...]:
        """The values that a cell is matched with, and becomes the index of; those with a feature come first."""
        return self.values

    @property
    @abstractmethod
    def invalid_cell_phrase(self) -> str:
        """How an error message describes an invalid cell."""

    @abstractmethod
    def accept(self, visitor: RuleVisitor[T]) -> T:
        """Call the method of the visitor for this kind of rule, and return its result."""

    @property
    def feature_count(self) -> int:
        return self.number_count + len(self.thresholds) + len(self.values)

    @property
    def cell_count(self) -> int:
        return self.number_count + bool(self.values)

    @property
    def squared_norm(self) -> float:
        """An upper bound on the squared norm of the features."""
        return self.number_count + len(self.thresholds) * (STEP_HEIGHT / 2.0) ** 2 + bool(self.values)

    @property
    def expected_means(self) -> Doubles:
        """The prior means of the features, for evenly spread numbers and equally likely categories."""
        steps = STEP_HEIGHT * (0.5 - np.arange(1, 1 + len(self.thresholds)) / (1 + len(self.thresholds)))
        categories = [1.0 / len(self.values) for _ in self.values]
        return np.concatenate([np.zeros(self.number_count), steps, categories])

    @property
    def pair_steps(self) -> tuple[int, ...]:
        """The steps of the curve that pairs of columns use: at most PAIR_STEPS in the middles of equal parts."""
        count = len(self.thresholds)
        used = min(count, PAIR_STEPS)
        return tuple((2 * part + 1) * count // (2 * used) for part in range(used))

    @property
    def pair_feature_count(self) -> int:
        """The number of features with which the column is in a pair: 1 of a number without a curve."""
        return len(self.values) or len(self.pair_steps) or 1

    @property
    def pair_squared_norm(self) -> float:
        """An upper bound on the squared norm of the features with which the column is in a pair, without centring."""
        return 1.0 if self.values else float(self.pair_feature_count)

    def has_missing(self, cells: PackedRows) -> bool:
        """Return whether any of these packed cells of the column is missing."""
        return bool((np.isnan(cells) if self.number_count else cells < 0).any())


@dataclass(frozen=True)
class BoundedRule(Rule):
    """Numbers that are clipped to public bounds."""

    invalid_cell_phrase = "one that is no number"

    low: float
    high: float

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True)
class NumberRule(BoundedRule):
    """A number, and a step at each threshold of its curve, which a number reaches if its cell is at least as large."""

    number_count = 1

    thresholds: tuple[float, ...] = ()
    direction: int = 0

    @cached_property
    def places(self) -> Doubles:
        return np.array([self._compute_cell(threshold) for threshold in self.thresholds])

    def find_exact_thresholds(self, thresholds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(map(self._find_exact_threshold, thresholds))

    def _find_exact_threshold(self, threshold: float) -> float:
        place = self._compute_cell(threshold)
        ordinal = bisect_integers(
            lambda middle: self._compute_cell(_convert_from_ordinal(middle)) >= place,
            _convert_to_ordinal(-math.inf) - 1,
            _convert_to_ordinal(threshold),
        )
        return _convert_from_ordinal(ordinal)

    def _compute_cell(self, number: float) -> float:
        """Compute the cell of a number with the operations of `encoding_number_cell` (`kernel/columns_to_cells.h`)."""
        low, high = map(float, self.bounds)
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        cell = float(np.float32((min(max(number, low), high) - middle) / half))
        return min(max(cell, -1.0), 1.0)

    def accept(self, visitor: RuleVisitor[T]) -> T:
        return visitor.visit_number(self)


def _convert_to_ordinal(number: float) -> int:
    """Convert a double to an integer, in the order of doubles: their bits, but for those of negative ones."""
    bits = int(np.float64(number).view(np.int64))
    return bits if bits >= 0 else bits ^ _MAX_ORDINAL


def _convert_from_ordinal(ordinal: int) -> float:
    bits = ordinal if ordinal >= 0 else ordinal ^ _MAX_ORDINAL
    return float(np.int64(bits).view(np.float64))


@dataclass(frozen=True)
class NumberListRule(BoundedRule):
    """A list of `length` numbers."""

    reads_lists = True

    length: int

    @property
    def number_count(self) -> int:
        return self.length

    def accept(self, visitor: RuleVisitor[T]) -> T:
        return visitor.visit_number_list(self)


@dataclass(frozen=True)
class ValueRule(Rule):
    """A value that is matched with declared ones, see `boltdp.encoding.declared_values`."""

    invalid_cell_phrase = "an undeclared category"

    values: tuple[Value, ...] = ()
    reference: Value | None = None  #: a declared value without a feature

    @property
    def known_values(self) -> tuple[Value, ...]:
        return self.values if self.reference is None else (*self.values, self.reference)

    def accept(self, visitor: RuleVisitor[T]) -> T:
        return visitor.visit_value(self)


@dataclass(frozen=True)
class TimePartRule(Rule):
    """A part of a timestamp, see `boltdp.encoding.timestamp_parts`."""

    part: TimestampPart

    @property
    def values(self) -> tuple[Value, ...]:
        return PARTS[self.part]

    @property
    def invalid_cell_phrase(self) -> str:
        return f"one without {'an' if self.part == 'hour' else 'a'} {self.part}"

    def accept(self, visitor: RuleVisitor[T]) -> T:
        return visitor.visit_time_part(self)


def count_pair_features(one: Rule, other: Rule) -> int:
    """Return the number of features of a pair of columns."""
    return one.pair_feature_count * other.pair_feature_count


class RuleVisitor(ABC, Generic[T]):
    """An operation on encoding rules, with one method for each kind of rule."""

    @abstractmethod
    def visit_number(self, rule: NumberRule) -> T: ...

    @abstractmethod
    def visit_number_list(self, rule: NumberListRule) -> T: ...

    @abstractmethod
    def visit_value(self, rule: ValueRule) -> T: ...

    @abstractmethod
    def visit_time_part(self, rule: TimePartRule) -> T: ...


@dataclass(frozen=True, eq=False)
class ScaledRule:
    """A rule with the centre of each feature and its factor after centring."""

    rule: Rule
    centers: Doubles
    factors: Doubles

    @cached_property
    def original_units(self) -> tuple[Doubles, Doubles]:
        """The middles and factors by which a value of the data becomes the feature (value - middle) * factor.

        The value is clipped to its bounds; it is 0 or 1 for a category or a step.
        """
        (low, high), count = self.rule.bounds, self.rule.number_count
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        middles, factors = self.centers.copy(), self.factors.copy()
        # Clipped against rounding: outside the bounds a missing number would not become 0 in SQL.
        middles[:count] = np.clip(middle + half * self.centers[:count], low, high)
        factors[:count] /= half
        steps = slice(count, count + len(self.rule.thresholds))
        middles[steps] = 0.5 + self.centers[steps] / STEP_HEIGHT
        factors[steps] *= STEP_HEIGHT
        return middles, factors

    @cached_property
    def indicator_values(self) -> tuple[Doubles, Doubles]:
        """The features of absent and of present steps and categories."""
        middles, factors = (numbers[self.rule.number_count :] for numbers in self.original_units)
        return (0.0 - middles) * factors, (1.0 - middles) * factors

    def iterate_segments(self) -> Iterator[Segment]:
        """Yield the segments of the feature map for this column: numbers, steps, and categories."""
        numbers, steps = self.rule.number_count, len(self.rule.thresholds)
        if numbers:
            yield Segment("numbers", self.centers[:numbers], self.factors[:numbers])
        if self.rule.feature_count == numbers:
            return
        absent, present = self.indicator_values
        if steps:
            yield Segment("steps", absent[:steps], present[:steps], self.rule.places)
        if self.rule.values:
            yield Segment("category", absent[steps:], present[steps:])

    @cached_property
    def pair_side(self) -> PairSide:
        """The features with which the column is in pairs."""
        rule, numbers = self.rule, self.rule.number_count
        if rule.values:
            shares = self.centers[numbers + len(rule.thresholds) :]
            names = tuple(f"{rule.column}={format_value(value)}" for value in rule.values)
            return PairSide(rule, Segment("category", 0.0 - shares, 1.0 - shares), shares * (1.0 - shares), names)
        half = STEP_HEIGHT / 2.0
        if rule.thresholds:
            chosen = [*rule.pair_steps]
            thresholds, places = tuple(rule.thresholds[step] for step in chosen), rule.places[chosen]
            means = self.centers[numbers:][chosen] / half
        else:
            # One step in the middle: of two values at the bounds the mean of the number tells that of the step.
            low, high = rule.bounds
            thresholds, places, means = ((low + high) / 2.0,), np.zeros(1), self.centers[:1]
        names = tuple(f"{rule.column}>={repr(place).removesuffix('.0')}" for place in thresholds)
        segment = Segment("steps", -1.0 - means, 1.0 - means, places)
        return PairSide(rule, segment, np.maximum(1.0 - means**2, 0.0), names, thresholds)


@dataclass(frozen=True, eq=False)
class PairSide:
    """The features with which a column is in pairs: steps of -1 or 1, or categories of 0 or 1, less their centres."""

    rule: Rule
    segment: Segment
    variances: Doubles  #: of the features, by their centres
    feature_names: tuple[str, ...]
    thresholds: tuple[float, ...] = ()  #: of the steps

    def make_axis(self, cell: int) -> Axis:
        """Make the axis that reads the column in this cell of a row."""
        return Axis(cell, self.segment, len(self.rule.known_values) > len(self.rule.values))

    @property
    def level_names(self) -> tuple[str, ...]:
        """The names of the levels: intervals between steps, or categories."""
        if self.rule.values:
            return tuple(map(format_value, self.rule.known_values))
        ends = [f"{threshold:.6g}" for threshold in self.thresholds]
        inner = [f"{low} to {high}" for low, high in pairwise(ends)]
        return (f"below {ends[0]}", *inner, f"from {ends[-1]}")

    @property
    def levels(self) -> Doubles:
        """The features of each interval between steps, or of each category, of shape (levels, features)."""
        return self.make_axis(0).features

    @cached_property
    def exact_thresholds(self) -> tuple[float, ...]:
        """The smallest doubles that reach the thresholds."""
        return self.rule.find_exact_thresholds(self.thresholds)


@dataclass(frozen=True, eq=False)
class EncodingPlan:
    """The rules of the label and the columns of a schema; use `Schema.encoding`."""

    label: Rule
    rules: tuple[Rule, ...]
    centers: Doubles  #: of all features but the intercept
    factors: Doubles
    constant: float | None  #: the feature of the intercept, if there is one
    projection: Projection | None
    label_reading: tuple[float, float] = (0.0, 1.0)  #: the centre and the factor of a label that is a number
    weight: Rule | None = None  #: of the weight of a row, which is its last cell and no feature
    downweights: bool = False  #: whether rows longer than 1 are downweighted, not shortened
    pairs: tuple[tuple[int, int], ...] = ()  #: which rules are pairs of columns
    pair_factor: float = 0.0  #: of the product of a feature of each

    @cached_property
    def scaled_rules(self) -> tuple[ScaledRule, ...]:
        ends = np.cumsum([rule.feature_count for rule in self.rules])[:-1]
        parts = zip(self.rules, np.split(self.centers, ends), np.split(self.factors, ends), strict=True)
        return tuple(ScaledRule(*part) for part in parts)

    @property
    def encoded_rules(self) -> tuple[Rule, ...]:
        """The rules of all cells of a packed row, in their order: the label, the features and the weight."""
        return (self.label, *self.rules, *([] if self.weight is None else [self.weight]))

    @property
    def dims(self) -> int:
        """The number of features before the projection, including the intercept."""
        return len(self.centers) + self.pair_feature_count + (self.constant is not None)

    @property
    def pair_feature_count(self) -> int:
        """The number of features of all pairs."""
        return sum(count_pair_features(self.rules[one], self.rules[other]) for one, other in self.pairs)

    @cached_property
    def pair_sides(self) -> tuple[tuple[PairSide, PairSide], ...]:
        """The two sides of each pair of columns."""
        sides = {number: self.scaled_rules[number].pair_side for pair in self.pairs for number in pair}
        return tuple((sides[one], sides[other]) for one, other in self.pairs)

    @property
    def cell_count(self) -> int:
        """The number of cells of a packed row; the cells of projected rows are the features."""
        if self.projection is not None:
            return self.projection.dims
        return sum(rule.cell_count for rule in self.encoded_rules[1:])

    @cached_property
    def unprojected_map(self) -> FeatureMap:
        """The map from cells to features before the projection."""
        segments: list[Segment | PairSegment] = [
            segment for scaled in self.scaled_rules for segment in scaled.iterate_segments()
        ]
        axes = {number: self._make_axis(number) for pair in self.pairs for number in pair}
        segments += [PairSegment(axes[one], axes[other], self.pair_factor) for one, other in self.pairs]
        if self.constant is not None:
            segments.append(Segment("constant", np.array([self.constant]), np.zeros(1)))
        return FeatureMap(
            segments,
            label_reading=self.label_reading,
            row_weights=self.weight is not None,
            downweights=self.downweights,
        )

    def _make_axis(self, number: int) -> Axis:
        return self.scaled_rules[number].pair_side.make_axis(sum(rule.cell_count for rule in self.rules[:number]))

    @cached_property
    def feature_map(self) -> FeatureMap | None:
        """The map from the cells of packed rows to features; None for projected rows, whose cells are features.

        Where labels are numbers with a reading of their own, the map of projected rows leaves the features as they are.
        """
        if self.projection is None:
            return self.unprojected_map
        if self.label_reading == (0.0, 1.0):
            return None
        ones = np.ones(self.projection.dims)
        return FeatureMap([Segment("numbers", np.zeros_like(ones), ones)], label_reading=self.label_reading)

    @cached_property
    def projection_matrix(self) -> Doubles | None:
        return None if self.projection is None else self.projection.make_matrix(self.dims)

    def read_features(self, packed: PackedRows) -> Doubles:
        """Return the labels and features of packed rows, of shape (rows, 1 + dims)."""
        return packed.astype(np.float64) if self.feature_map is None else self.feature_map.compute_features(packed)

    def locate_cell(self, column: str) -> int:
        """Return the index of a column's first cell in unprojected packed rows; the label has index 0."""
        place = 1
        for rule in self.rules:
            if rule.column == column:
                return place
            place += rule.cell_count
        raise KeyError(column)
