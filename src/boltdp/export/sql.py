"""A model as one SQL expression, to score rows inside a database.

The expression predicts the class of `Model.predict`: numbers are clipped, scaled and rounded to float32 as in the
encoder, then centred; missing or undeclared values add 0. Thresholds of a curve are the exact ones, the smallest
doubles that the encoder takes to reach them. Clipping the norm of a row does not change the predicted
class, so it is omitted unless the threshold is not 0.5. Sums are in another order, so a row whose margins are equal up
to rounding (a relative error of about 1e-15; 1e-7 with a projection, which is folded into the weights and which the
encoder rounds to float32) may get another class. Probabilities are equal up to the same rounding. Scores that are
corrected for clipped gradients need the norm too, and the order of classes without weights does not depend on it.

A model of two classes and few features is a plain sum, in which all steps of a number are one term. Other models use
arrays, so that each column and each weight is written once: 784 columns and 10 classes are 200 kB.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from boltdp._array_types import Doubles
from boltdp.encoding.declared_values import Matcher, Value
from boltdp.encoding.plan import (
    BoundedRule,
    EncodingPlan,
    NumberListRule,
    NumberRule,
    PairSide,
    RuleVisitor,
    ScaledRule,
    TimePartRule,
    ValueRule,
)
from boltdp.encoding.timestamp_parts import HOUR_AT, PATTERN
from boltdp.errors import ParameterError
from boltdp.export.original_units import unproject_weights
from boltdp.export.sql_dialects import Dialect, find_dialect
from boltdp.model import Model

#: The maximum number of terms of a plain sum; databases take long to plan larger ones.
MAX_TERMS = 100
#: An expression with more characters than this is bound to a name instead of being repeated for each step.
MAX_REPEATED = 200
#: Bounds that are nearer to each other are written as constants, with the half of their width.
MIN_WIDTH = 1e-200


def write_scoring_expression(model: Model, dialect: str) -> str:
    """Write an SQL expression over the columns of the schema for the class that `model` predicts."""
    sql, target = find_dialect(dialect), model.schema.target

    def write_prediction(scores: Sequence[str]) -> str:
        return target.write_prediction(scores, model.margin_threshold, model.certificate.problem.loss, sql)

    reorders = len(model.weights) > 1 and len(model.slope_norms) > 1
    if reorders or target.depends_on_score_scale(model.margin_threshold):
        return _write_with_clipped_margins(model, sql, write_prediction)
    plan, weights = _fold_factors(model.schema.encoding, unproject_weights(model.schema, model.weights))
    if len(weights) == 1:
        return write_prediction([_write_margin(plan, weights[0], sql)])
    products = sql.make_array([sql.dot.format("x", sql.make_constant_array(row)) for row in weights])
    predicted = write_prediction([sql.write_element("margin", index) for index in range(len(weights))])
    return sql.bind("x", _write_row(plan, sql), sql.bind("margin", products, predicted))


def _fold_factors(plan: EncodingPlan, weights: Doubles) -> tuple[EncodingPlan, Doubles]:
    """Fold the factors of features into the weights, where no norm of the features is needed."""
    folded = weights.copy()
    folded[:, : len(plan.factors)] *= plan.factors
    return replace(plan, factors=np.ones_like(plan.factors)), folded


def write_probability_expression(model: Model, dialect: str, *, of: Value | None = None) -> str:
    """Write an SQL expression for the probability of the class `of`.

    Without `of`, it is the probability of the second of two classes, or an array of all, in the order of classes.
    """
    sql, classes = find_dialect(dialect), model.schema.target.require_classes().values
    loss = model.certificate.problem.loss
    if not loss.probabilistic:
        raise ParameterError(f"a probability must be that of a model that gives some, got the loss {loss.name!r}")
    if of is not None and of not in classes:
        raise ParameterError(f"the class must be one of {', '.join(map(str, classes))}, got {of!r}")
    if len(model.weights) == 1:
        expression = _write_with_clipped_margins(model, sql, lambda margins: _write_probability(model, margins[0], sql))
        return expression if of in (None, classes[1]) else f"{sql.write_constant(1.0)} - ({expression})"
    every = _write_with_clipped_margins(model, sql, lambda margins: _write_probabilities(model, margins, sql))
    return every if of is None else sql.write_element(f"({every})", classes.index(of))


def _write_probability(model: Model, margin: str, sql: Dialect) -> str:
    """Write the probability of a class as SQL of its margin; for one-vs-all models, before normalization."""
    linked = model.certificate.problem.loss.write_sql_link(margin, sql.write_constant)
    assert linked is not None  # a probabilistic loss of one vector has a link
    return linked


def _write_probabilities(model: Model, margins: Sequence[str], sql: Dialect) -> str:
    one, count = sql.write_constant(1.0), len(margins)
    # The minimum is e^-700, since underflow is an error in PostgreSQL.
    odds = f"exp({sql.write_maximum(['v - top', sql.write_constant(-700.0)])})"
    if model.certificate.problem.loss.vector_count == 1:
        odds = _write_probability(model, "v", sql)  # one-vs-all
    total = sql.dot.format("odds", sql.make_constant_array([1.0] * count))
    # If all odds are 0, all classes are equally likely.
    share = f"CASE WHEN total > {sql.write_constant(0.0)} THEN v / total ELSE {one} / {sql.write_constant(count)} END"
    shares = sql.bind("total", total, sql.map.format(name="v", value="odds", body=share))
    of_odds = sql.bind("odds", sql.map.format(name="v", value="margin", body=odds), shares)
    top = sql.write_maximum(sql.write_element("margin", index) for index in range(count))
    of_top = sql.bind("top", top, of_odds)
    return sql.bind("margin", sql.make_array(margins), of_top)


def _write_with_clipped_margins(model: Model, sql: Dialect, body: Callable[[Sequence[str]], str]) -> str:
    """Write the SQL that `body` makes of the margins, for a row clipped to norm 1 before and after any projection.

    Where long rows are downweighted in training, they are not clipped. A link corrects the margins.
    """
    body = _make_corrected_body(model, sql, body)
    plan, weights = model.scoring
    row, matrix = _write_row(plan, sql), plan.projection_matrix
    if plan.downweights:
        products = [sql.dot.format("x", sql.make_constant_array(each)) for each in weights]
        return sql.bind("x", row, body(products))
    margins = _divide_by_norm("x", "norm", weights, sql, body)
    if matrix is None:
        return sql.bind("x", row, margins)

    def write_projected(features: Sequence[str]) -> str:
        return sql.bind("x", sql.make_array(features), margins)

    whole = _divide_by_norm("whole", "outer_norm", matrix.T, sql, write_projected)
    return sql.bind("whole", row, whole)


def _divide_by_norm(
    name: str, length: str, weights: Doubles, sql: Dialect, body: Callable[[Sequence[str]], str]
) -> str:
    """Write the SQL that `body` makes of <weights, array>, divided by the norm of the array if that exceeds 1."""
    products = [f"{sql.dot.format(name, sql.make_constant_array(row))} / {length}" for row in weights]
    value = sql.write_maximum([sql.write_constant(1.0), f"sqrt({sql.dot.format(name, name)})"])
    return sql.bind(length, value, body(products))


def _make_corrected_body(
    model: Model, sql: Dialect, body: Callable[[Sequence[str]], str]
) -> Callable[[Sequence[str]], str]:
    """Return what writes `body` of margins corrected as `Model.correct_scores` does, where `x` is bound to the row."""
    slopes, write = model.slope_norms, sql.write_constant
    if not slopes:
        return body
    one, half, two = (write(value) for value in (1.0, 0.5, 2.0))
    loss, norm = model.certificate.problem.loss, f"least({one}, sqrt({sql.dot.format('x', 'x')}))"

    def correct_margin(margin: str) -> str:
        """Write `Logistic.correct_clipping`."""
        down, up = (f"least({two}, size * {write(each)})" for each in (slopes[0], slopes[-1]))
        tilts = (f"({half} {sign} {half} * tanh({half} * score))" for sign in "+-")
        lowered, raised = (
            f"ln({sql.write_maximum([one, f'{tilt} * {excess}'])})"
            for tilt, excess in zip(tilts, (down, up), strict=True)
        )
        return sql.bind("score", margin, f"score - {lowered} + {raised}")

    def write_margins(margins: Sequence[str]) -> str:
        return body([correct_margin(margin) for margin in margins])

    def write_joint_margins(margins: Sequence[str]) -> str:
        """Write `Multinomial.correct_clipping`."""
        count = len(margins)
        each = [*slopes] * (count // len(slopes))
        top = sql.write_maximum(sql.write_element("score", index) for index in range(count))
        power = f"exp({sql.write_maximum(['v - highest', write(-700.0)])})"
        powers = sql.map.format(name="v", value="score", body=power)
        ones = sql.make_constant_array([1.0] * count)
        shares = sql.map.format(name="v", value="powers", body=f"v / {sql.dot.format('powers', ones)}")
        lifted = [
            f"{sql.write_element('score', index)} + ln({sql.write_maximum([one, _write_slope(index, slope)])})"
            for index, slope in enumerate(each)
        ]
        corrected = body([sql.write_element("corrected", index) for index in range(count)])
        corrected = sql.bind("corrected", sql.make_array(lifted), corrected)
        corrected = sql.bind("square", f"{sql.dot.format('share', 'share')} + {one}", corrected)
        corrected = sql.bind("share", shares, corrected)
        corrected = sql.bind("powers", powers, corrected)
        return sql.bind("score", sql.make_array(margins), sql.bind("highest", top, corrected))

    def _write_slope(index: int, slope: float) -> str:
        squared = sql.write_maximum([write(0.0), f"square - {two} * {sql.write_element('share', index)}"])
        return f"sqrt({squared}) * (size * {write(slope)})"

    written = write_joint_margins if loss.vector_count > 1 else write_margins
    return lambda margins: sql.bind("size", norm, written(margins))


def _write_margin(plan: EncodingPlan, weights: Doubles, sql: Dialect) -> str:
    """Write the margin of a row as SQL: a sum of terms, or a product of two arrays if there are many terms."""
    columns = _make_column_writers(plan, sql)
    pairs = _make_pair_writers(plan, columns, sql)
    count = sum(column.term_count for column in columns) + sum(pair.feature_count for pair in pairs)
    if count + (plan.constant is not None) > MAX_TERMS:
        return sql.dot.format(_write_row(plan, sql), sql.make_constant_array(weights))
    counts = [*(column.scaled.rule.feature_count for column in columns), *(pair.feature_count for pair in pairs)]
    *parts, _ = np.split(weights, np.cumsum(counts))
    terms: list[str] = []
    for _, run in groupby(zip(columns, parts, strict=False), key=lambda pair: pair[0].group_key):
        group, of_group = zip(*run, strict=True)
        if sql.cells and len(group) > 1:
            # Each cell would be read by a query of its own.
            terms.append(sql.dot.format(group[0].make_array(group), sql.make_constant_array(np.concatenate(of_group))))
        else:
            terms += [term for column, part in zip(group, of_group, strict=True) for term in column.list_terms(part)]
    terms += [pair.write_term(part) for pair, part in zip(pairs, parts[len(columns) :], strict=True)]
    if plan.constant is not None:
        terms.append(f"{sql.write_constant(plan.constant)} * {sql.write_constant(weights[-1])}")
    return "\n+ ".join(terms)


def _write_row(plan: EncodingPlan, sql: Dialect) -> str:
    """Write the encoded row before its projection as an SQL array; adjacent columns alike share one map."""
    columns = _make_column_writers(plan, sql)
    runs = groupby(columns, key=lambda column: column.group_key)
    arrays = [first.make_array([first, *others]) for first, *others in (list(run) for _, run in runs)]
    arrays += [pair.make_array() for pair in _make_pair_writers(plan, columns, sql)]
    if plan.constant is not None:
        arrays.append(sql.make_array([sql.write_constant(plan.constant)]))
    return _concatenate(arrays)


def _concatenate(arrays: Sequence[str]) -> str:
    """Write arrays as one, in two halves: databases limit the depth of expressions, and copy what is concatenated."""
    if len(arrays) == 1:
        return arrays[0]
    middle = len(arrays) // 2
    return f"({_concatenate(arrays[:middle])}\n|| {_concatenate(arrays[middle:])})"


def _make_column_writers(plan: EncodingPlan, sql: Dialect) -> list[_ColumnSql]:
    return [scaled.rule.accept(_ColumnSqlMaker(scaled, sql)) for scaled in plan.scaled_rules]


def _make_pair_writers(plan: EncodingPlan, columns: Sequence[_ColumnSql], sql: Dialect) -> list[_PairSql]:
    pairs = zip(plan.pairs, plan.pair_sides, strict=True)
    return [_PairSql(columns[i], columns[j], *sides, plan.pair_factor, sql) for (i, j), sides in pairs]


class _PairSql:
    """The features of a pair of columns as SQL: products of elements of one array, which has the features of both."""

    def __init__(
        self, one: _ColumnSql, other: _ColumnSql, first: PairSide, second: PairSide, factor: float, sql: Dialect
    ) -> None:
        self.sql, self.feature_count = sql, first.segment.dims * second.segment.dims
        self._sides = f"{one.write_side(first, factor)} || {other.write_side(second, 1.0)}"
        # Only the array of both is bound to a name: a column of that name could not be read beside it.
        elements = [sql.write_element("sides", index) for index in range(first.segment.dims + second.segment.dims)]
        middle = first.segment.dims
        self._products = [f"{left} * {right}" for left in elements[:middle] for right in elements[middle:]]

    def write_term(self, weights: Doubles) -> str:
        """Write what the pair adds to a margin with these weights."""
        terms = (f"{each} * {self.sql.write_constant(w)}" for each, w in zip(self._products, weights, strict=True))
        return self.sql.bind("sides", self._sides, " + ".join(terms))

    def make_array(self) -> str:
        """Write an SQL array of the features."""
        return self.sql.bind("sides", self._sides, self.sql.make_array(self._products))


class _ColumnSql(ABC):
    """The features of one column as SQL."""

    def __init__(self, scaled: ScaledRule, sql: Dialect) -> None:
        self.scaled, self.sql = scaled, sql
        self.source = sql.quote_column(scaled.rule.source)
        self.cell = self.source  #: a cell, cast to the type from which features are computed

    @property
    def term_count(self) -> int:
        """The number of terms that the column adds to a margin."""
        return self.scaled.rule.feature_count

    def list_terms(self, weights: Doubles) -> Iterable[str]:
        """List SQL expressions whose sum is what the column adds to a margin with these weights."""
        for feature, weight in zip(self.list_features(), weights, strict=True):
            yield f"{feature} * {self.sql.write_constant(weight)}"

    @abstractmethod
    def list_features(self) -> Iterable[str]:
        """List an SQL expression for each feature of the column."""

    def write_side(self, side: PairSide, factor: float) -> str:
        """Write an SQL array of the features of the column in a pair, times a factor; zeros where it is missing."""
        levels, zeros = factor * side.levels, np.zeros(side.segment.dims)
        return self.choose_level(
            side, [*map(self.sql.make_constant_array, levels)], self.sql.make_constant_array(zeros)
        )

    @abstractmethod
    def choose_level(self, side: PairSide, values: Sequence[str], missing: str) -> str:
        """Write the one of `values`, written as SQL, for the level of the column in a pair, or `missing`."""

    @property
    def group_key(self) -> object:
        """The key by which adjacent columns with equal bounds and factors are encoded by one expression."""
        return self

    def make_array(self, group: Sequence[_ColumnSql]) -> str:
        """Write an SQL array of the features of adjacent columns with one key, of which this column is the first."""
        return self.sql.make_array([feature for column in group for feature in column.list_features()])


class _BoundedSql(_ColumnSql):
    """A number, or a list of numbers, between bounds as SQL."""

    def __init__(self, rule: BoundedRule, scaled: ScaledRule, sql: Dialect) -> None:
        super().__init__(scaled, sql)
        self.rule, numbers = rule, rule.number_count
        self.centers, self.factors = scaled.centers[:numbers].tolist(), scaled.factors[:numbers].tolist()

    @property
    def has_exact_ends(self) -> bool:
        """Whether the bounds are encoded as -1 and 1 without clipping; not if hardly a number is between them."""
        low, high = self.rule.bounds
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        return bool(np.float32((high - middle) / half) <= 1.0 and np.float32((low - middle) / half) >= -1.0)

    def write_number(self, double: str, index: int) -> str:
        """Write the feature of a number as SQL."""
        numbers = (*self.rule.bounds, self.centers[index], self.factors[index])
        if not self.centers[index] or len(double) <= MAX_REPEATED:
            return self.write_feature(double, numbers)
        return self.sql.bind("number", double, self.write_feature("number", numbers))

    def write_feature(self, double: str, numbers: Iterable[float | str]) -> str:
        """Write a number clipped, scaled to [-1, 1], rounded, centred and times a factor; 0 for NULL and NaN.

        `numbers` are the bounds, the centre and the factor, or SQL of those that are not constant.
        """
        sql, write, (low, high, center, factor) = self.sql, self.sql.write_constant, numbers
        if isinstance(low, str) or isinstance(high, str):
            low, high = map(self._write_operand, (low, high))
            middle, half = f"(({low} + {high}) / {write(2.0)})", f"(({high} - {low}) / {write(2.0)})"
            tiny = f"{half} * {write(1e-28)}"
        else:
            middle, half, tiny = map(write, ((low + high) / 2.0, (high - low) / 2.0, 1e-28 * (high - low) / 2.0))
            low, high = map(write, (low, high))
        known = double if center else f"coalesce(nullif({double}, {sql.write_special('NaN')}), {middle})"
        offset = f"least({sql.write_maximum([known, low])}, {high}) - {middle}"
        if sql.underflow:
            # Rounds values that underflow a float32 to 0; others change by at most a rounding error of a double.
            offset = f"{offset} + {tiny} - {tiny}"
        scaled = f"CAST(CAST(({offset}) / {half} AS {sql.real}) AS {sql.double})"
        if not self.has_exact_ends:
            scaled = f"least({sql.write_maximum([scaled, write(-1.0)])}, {write(1.0)})"
        product = "" if factor == 1.0 else f" * {self._write_operand(factor)}"
        if not center:
            return scaled + product
        centred = f"({scaled} - {self._write_operand(center)}){product}"
        return f"CASE WHEN {double} <= {sql.write_special('Infinity')} THEN {centred} ELSE {write(0.0)} END"

    def _write_operand(self, number: float | str) -> str:
        return number if isinstance(number, str) else self.sql.write_constant(number)


class _NumberSql(_BoundedSql):
    """A number as SQL: one term of the margin, and all its steps are another."""

    def __init__(self, rule: NumberRule, scaled: ScaledRule, sql: Dialect) -> None:
        super().__init__(rule, scaled, sql)
        self.cell = sql.cell.format(self.source)

    @property
    def term_count(self) -> int:
        return 1 + bool(self.rule.thresholds)

    def list_terms(self, weights: Doubles) -> Iterator[str]:
        yield f"{self.write_number(self.cell, 0)} * {self.sql.write_constant(weights[0])}"
        if self.rule.thresholds:
            below, above = (values * weights[1:] for values in self.scaled.indicator_values)
            sums = [math.fsum([*above[:passed], *below[passed:]]) for passed in range(1 + len(self.rule.thresholds))]
            yield self._write_steps(self.rule.exact_thresholds, [*map(self.sql.write_constant, sums)])

    def list_features(self) -> Iterator[str]:
        yield self.write_number(self.cell, 0)
        for place, *values in zip(self.rule.exact_thresholds, *self.scaled.indicator_values, strict=True):
            yield self._write_steps([place], [*map(self.sql.write_constant, values)])

    def choose_level(self, side: PairSide, values: Sequence[str], missing: str) -> str:
        return self._write_steps(side.exact_thresholds, values, missing)

    @property
    def group_key(self) -> object:
        low, high = self.rule.bounds
        if self.rule.thresholds or not self.has_exact_ends or high - low <= MIN_WIDTH:
            # SQL computes half the width of bounds that differ, and in PostgreSQL an underflow is an error.
            return self
        return _NumberSql if self.sql.zip else self.numbers

    @property
    def numbers(self) -> tuple[float, ...]:
        """The bounds, the centre and the factor."""
        return (*self.rule.bounds, *self.centers, *self.factors)

    def make_array(self, group: Sequence[_ColumnSql]) -> str:
        """Write an SQL array of the features of numbers: one expression, mapped over their cells.

        What differs between them is mapped over as well.
        """
        if len(group) == 1:
            return super().make_array(group)
        sql = self.sql
        cells = sql.make_cell_array([column.source for column in group], [column.cell for column in group])
        rows = [column.numbers for column in group if isinstance(column, _NumberSql)]
        columns = [*zip(*rows, strict=True)]
        varying = [place for place, values in enumerate(columns) if len(set(values)) > 1]

        def write_body(elements: Sequence[str]) -> str:
            double, *others = elements
            numbers: list[float | str] = [*self.numbers]
            for place, element in zip(varying, others, strict=True):
                numbers[place] = element
            return self.write_feature(double, numbers)

        if not varying:
            return sql.map.format(name="v", value=cells, body=write_body(["v"]))
        return sql.map_arrays([cells, *(sql.make_constant_array(columns[place]) for place in varying)], write_body)

    def _write_steps(self, places: Sequence[float], values: Sequence[str], missing: str | None = None) -> str:
        """Write an SQL step function: `values` below the first and from each of `places` on.

        It is `missing`, or 0, for NULL and NaN.
        """
        sql, write = self.sql, self.sql.write_constant
        name = "number" if len(self.cell) > MAX_REPEATED else self.cell
        ends = ["FALSE" if place == -math.inf else f"{name} < {write(place)}" for place in places]
        ends.append(f"{name} <= {sql.write_special('Infinity')}")
        cases = " ".join(f"WHEN {end} THEN {value}" for end, value in zip(ends, values, strict=True))
        steps = f"CASE {cases} ELSE {write(0.0) if missing is None else missing} END"
        return steps if name == self.cell else sql.bind(name, self.cell, steps)


class _NumberListSql(_BoundedSql):
    def __init__(self, rule: BoundedRule, scaled: ScaledRule, sql: Dialect) -> None:
        super().__init__(rule, scaled, sql)
        self.cell = sql.numbers.format(self.source)
        self._bound = self.cell != self.source
        self.source = "list" if self._bound else self.source

    def list_terms(self, weights: Doubles) -> Iterable[str]:
        terms = super().list_terms(weights)
        return [self._bind(" + ".join(terms))] if self._bound else terms

    def _bind(self, body: str) -> str:
        return self.sql.bind("list", self.cell, body) if self._bound else body

    def list_features(self) -> Iterator[str]:
        for index in range(self.rule.number_count):
            cell = f"CASE WHEN {self._length_condition} THEN {self.sql.write_element(self.source, index)} END"
            yield self.write_number(f"CAST({cell} AS {self.sql.double})", index)

    def make_array(self, group: Sequence[_ColumnSql]) -> str:
        """Write an SQL array of the features of a list: one expression, mapped over the list if it is alike for all."""
        if len(set(zip(self.centers, self.factors, strict=True))) > 1:
            return self._bind(super().make_array(group))
        nulls = self.sql.nulls.format(self.rule.number_count)
        cells = f"CASE WHEN {self._length_condition} THEN {self.source} ELSE {nulls} END"
        number = self.write_number(f"CAST(v AS {self.sql.double})", 0)
        return self._bind(self.sql.map.format(name="v", value=cells, body=number))

    def choose_level(self, side: PairSide, values: Sequence[str], missing: str) -> str:
        raise ParameterError("pairs must be of numbers or categories, got a vector")

    @property
    def _length_condition(self) -> str:
        return f"{self.sql.length.format(self.source)} = {self.rule.number_count}"


class _ValueSql(_ColumnSql):
    """A categorical column as SQL: one CASE per declared value."""

    def list_terms(self, weights: Doubles) -> Iterable[str]:
        terms = super().list_terms(weights)
        return [self.sql.read_cell(self.source, " + ".join(terms))] if self.sql.read else terms

    def make_array(self, group: Sequence[_ColumnSql]) -> str:
        return self.sql.read_cell(self.source, super().make_array(group))

    def list_features(self) -> Iterator[str]:
        write = self.sql.write_constant
        matches = self._list_matches(self.scaled.rule.values)
        for condition, absent, present in zip(matches, *self.scaled.indicator_values, strict=True):
            yield f"CASE WHEN {condition} THEN {write(present)} ELSE {write(absent)} END"

    def choose_level(self, side: PairSide, values: Sequence[str], missing: str) -> str:
        matches = self._list_matches(side.rule.known_values)
        cases = " ".join(f"WHEN {match} THEN {value}" for match, value in zip(matches, values, strict=True))
        return self.sql.read_cell(self.source, f"CASE {cases} ELSE {missing} END")

    def _list_matches(self, categories: Sequence[Value]) -> Iterator[str]:
        """List for each category the condition that a cell matches it, by the rule of `declared_values.list_texts`.

        The rule depends on the type of the cell, which the schema does not state; SQL checks it where it matters.
        """
        sql, matcher = self.sql, Matcher.from_values(categories)
        as_text = "cell" if sql.read else f"CAST({self.source} AS {sql.text})"
        kind = sql.type_name.format(self.source)
        for index in range(len(categories)):
            texts = [text for text, position in matcher.texts.items() if position == index]
            number = next((number for number, position in matcher.numbers.items() if position == index), None)
            booleans = [
                word for word, cell in (("true", True), ("false", False)) if matcher.match_boolean(cell) == index
            ]
            branches = []
            if booleans != [word for word in ("true", "false") if word in texts]:
                branches.append((sql.booleans, self._write_membership(as_text, booleans)))
            if any(map(_is_number_text, texts)):
                for kinds, type_name, largest in (
                    (sql.reals, sql.real, np.finfo(np.float32).max),
                    (sql.doubles, sql.double, np.finfo(np.float64).max),
                ):
                    equal = "FALSE"
                    if number is not None and abs(number) <= largest:
                        parsed = sql.parse.format(self.source, kind=type_name)
                        equal = f"{parsed} = CAST({sql.write_constant(number)} AS {type_name})"
                    branches.append((kinds, equal))
            whole = [] if number is None or number % 1 else [str(int(number))]
            if not set(whole) <= set(texts):
                branches.append((sql.integers, self._write_membership(as_text, whole)))
            by_text = self._write_membership(as_text, texts)
            cases = " ".join(f"WHEN {kind} IN ({kinds}) THEN {equal}" for kinds, equal in branches)
            yield f"CASE {cases} ELSE {by_text} END" if branches else by_text

    def _write_membership(self, operand: str, texts: Sequence[str]) -> str:
        if not texts:
            return "FALSE"
        return f"{operand} IN ({', '.join(map(self.sql.write_literal, texts))})"


class _TimePartSql(_ColumnSql):
    """A part of a timestamp as SQL: a single term of the margin, so that it is extracted once."""

    term_count = 1

    def __init__(self, rule: TimePartRule, scaled: ScaledRule, sql: Dialect) -> None:
        super().__init__(scaled, sql)
        self.code = _write_part_code(rule, sql)

    def list_terms(self, weights: Doubles) -> Iterator[str]:
        none, each = (values * weights for values in self.scaled.indicator_values)
        known = [math.fsum([*none[:k], each[k], *none[k + 1 :]]) for k in range(len(weights))]
        write = self.sql.write_constant
        yield self._write_choice(self.code, dict(enumerate(map(write, known))), write(math.fsum(none)))

    def list_features(self) -> Iterator[str]:
        for code, (absent, present) in enumerate(zip(*self.scaled.indicator_values, strict=True)):
            yield self._write_choice("part", {code: self.sql.write_constant(present)}, self.sql.write_constant(absent))

    def choose_level(self, side: PairSide, values: Sequence[str], missing: str) -> str:
        return self._write_choice(self.code, dict(enumerate(values)), missing)

    def make_array(self, group: Sequence[_ColumnSql]) -> str:
        return self.sql.bind("part", self.code, super().make_array(group))

    def _write_choice(self, code: str, values: Mapping[int, str], otherwise: str) -> str:
        """Write an SQL CASE that maps each code to its value, and other codes and NULL to `otherwise`."""
        cases = " ".join(f"WHEN {each} THEN {value}" for each, value in values.items())
        return f"CASE {code} {cases} ELSE {otherwise} END"


class _ColumnSqlMaker(RuleVisitor[_ColumnSql]):
    """Makes the SQL writer of a column by its rule."""

    def __init__(self, scaled: ScaledRule, sql: Dialect) -> None:
        self._scaled, self._sql = scaled, sql

    def visit_number(self, rule: NumberRule) -> _ColumnSql:
        return _NumberSql(rule, self._scaled, self._sql)

    def visit_number_list(self, rule: NumberListRule) -> _ColumnSql:
        return _NumberListSql(rule, self._scaled, self._sql)

    def visit_value(self, rule: ValueRule) -> _ColumnSql:
        return _ValueSql(self._scaled, self._sql)

    def visit_time_part(self, rule: TimePartRule) -> _ColumnSql:
        return _TimePartSql(rule, self._scaled, self._sql)


def _write_part_code(rule: TimePartRule, sql: Dialect) -> str:
    """Write the code of a part of a timestamp, such as its hour, as SQL; NULL where it is missing."""
    digits, first = {"hour": (HOUR_AT, 0), "month": (6, 1), "day": (9, 1), "weekday": (1, 0)}[rule.part]
    code = f"CAST(substr(moment, {digits}, 2) AS int) - {first}"
    if rule.part == "weekday":
        code = sql.weekday.format("substr(moment, 1, 10)")
    fits = f"{sql.fits.format('moment', PATTERN)} AND length(moment) > {digits}"
    timestamp = sql.moment.format(sql.quote_column(rule.source))
    return sql.bind("moment", timestamp, f"CASE WHEN {fits} THEN {code} END")


def _is_number_text(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
