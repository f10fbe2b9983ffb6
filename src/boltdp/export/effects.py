"""The effect of each column on the margin, in its original units, and the standard deviation of the noise in it.

The effect of a value is the margin with it minus the margin with the value missing. It is computed from the model
alone: no row is read. In rows that are clipped to the clip norm, all effects are scaled by the same factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from boltdp._array_types import Doubles
from boltdp.encoding.declared_values import format_value
from boltdp.encoding.plan import STEP_HEIGHT, NumberListRule, NumberRule, Rule, RuleVisitor, ScaledRule
from boltdp.errors import InferenceError
from boltdp.export.coefficients import Coefficients
from boltdp.export.original_units import unproject_weights
from boltdp.model import Model
from boltdp.privacy.weight_uncertainty import WeightDeviation, compute_weight_deviation, find_critical_value
from boltdp.schema.schema import Schema

EffectKind = Literal["number", "categories", "vector"]

#: The maximum number of classes that are shown.
MAX_PANELS = 100
#: The maximum extent of a drawing's axis, as a multiple of the largest effect.
MAX_REACH = 2.5
#: The number of segments in which the noise of a number with steps is interpolated linearly.
MAX_SEGMENTS = 32
#: The largest probability that, if no column has an effect, any column is significant.
LEVEL = 0.05
#: How far clipping to the root mean square norm moves the mean of a centred feature, in its standard deviations.
CLIPPED_SHARE = 0.27

_EXACT = (
    "added to the trained weights; its standard deviation in each effect is shown, and in drawings one and two of them "
    "to each side"
)
_BOUND = (
    "added before training: in any one direction it pulls as {pull:.2g} rows can, of {rows:,} (a standard deviation). "
    "What that does to an effect depends on the rows, which are private: only a bound on its standard deviation is "
    "known, noise / (rows x regularization), which is often far too wide; a larger --regularization makes it smaller"
)
_NONE = "none was added"
_UNKNOWN = "added in every update; what it does to an effect is not known"
_MONOTONE = ". Of monotone columns, it is that before the weights were changed to make them so"
_CHOSEN = ". The model was chosen among several, which prefers noise that did well: that is not covered"
_SIGNIFICANT = (
    "{count} of {columns}: those whose largest difference is more than noise, the sampling of rows and a common class "
    "make of columns without any effect, with 95 % confidence for all columns together; by bounds from public numbers "
    "and the intercept. Not covered: what regularization, clipping and other columns take from an effect or give to it"
)
_TESTED = (
    "{count} of {columns}: those whose coefficients differ from 0, tested with standard errors that include the noise "
    "(`boltdp coefficients`), with 95 % confidence for all columns together"
)
_NO_BOUND = "none of {columns}: public numbers give no bound on what {cause} to an effect"


@dataclass(frozen=True)
class Effect:
    """The effect of one column on the margin of one class."""

    name: str
    kind: EffectKind
    places: tuple[float, ...]  #: of a number: the ends, the middle and, twice, each step
    labels: tuple[str, ...]  #: of categories: their names
    effects: tuple[float, ...]  #: at each place or category; of a vector, the norm of its weights
    deviations: tuple[float, ...] | None  #: the standard deviations of the noise in `effects`, or bounds on them
    difference: float  #: of the effects at both ends, or of the largest and smallest categories
    deviation: float | None  #: the standard deviation of the noise in `difference`, or a bound on it
    importance: float  #: the largest difference of margins between two values of the column
    largest: float = 0.0  #: the largest difference that is tested; of a vector, the largest weight
    norm: float = 1.0  #: of the combination of weights that `largest` is
    mean: float = 0.0  #: a bound on the absolute mean of the same combination of features
    comparisons: int = 1  #: the number of differences of which it is the largest
    missing: float | None = None  #: the number as which a missing value counts, where the effect is a straight line
    significant: bool = False  #: whether it is more than noise and sampling explain

    @property
    def corners(self) -> tuple[tuple[float, float, float | None], ...]:
        """The value, effect and standard deviation of noise at the bounds of a numeric column and at its steps."""
        noise = (None,) * len(self.effects) if self.deviations is None else self.deviations
        points = tuple(zip(self.places, self.effects, noise, strict=True))
        twice = {one for one, other in zip(self.places, self.places[1:], strict=False) if one == other}
        return tuple(point for point in points if point[0] in twice or point in (points[0], points[-1]))

    def find_largest_categories(self, count: int) -> tuple[int, ...]:
        """Return the indices of the `count` categories with the largest effects, in ascending order."""
        order = sorted(range(len(self.labels)), key=lambda index: -abs(self.effects[index]))[:count]
        return tuple(sorted(order))

    def compute_axis_limit(self, *, exact: bool) -> float:
        """Return where the axis of a drawing ends: the largest effect, with two deviations of noise if `exact`.

        It is at most `MAX_REACH` times the largest effect.
        """
        noise = self.deviations if exact and self.deviations is not None else (0.0,) * len(self.effects)
        ends = [abs(value) + 2.0 * one for value, one in zip(self.effects, noise, strict=True)]
        return min(max(ends), MAX_REACH * max(map(abs, self.effects))) or 1.0


@dataclass(frozen=True)
class PairEffect:
    """The effect of a pair of columns on the margin of one class, beyond what each of the two does alone.

    The effect of a missing value is 0.
    """

    columns: tuple[str, str]
    rows: tuple[str, ...]  #: the intervals or categories of the first column
    across: tuple[str, ...]  #: those of the second
    effects: tuple[tuple[float, ...], ...]  #: a row for each of `rows`
    deviations: tuple[tuple[float, ...], ...] | None  #: the standard deviations of the noise in them, or bounds
    importance: float  #: the largest difference of two effects
    significant: bool  #: whether it is more than noise and sampling explain

    @property
    def name(self) -> str:
        return " & ".join(self.columns)

    @property
    def largest(self) -> float:
        """The largest absolute effect."""
        return max(abs(value) for row in self.effects for value in row)

    def transpose(self) -> PairEffect:
        """Return the effect with the two columns exchanged."""
        noises = None if self.deviations is None else tuple(zip(*self.deviations, strict=True))
        effects = tuple(zip(*self.effects, strict=True))
        columns = (self.columns[1], self.columns[0])
        return replace(self, columns=columns, rows=self.across, across=self.rows, effects=effects, deviations=noises)

    def list_cells(self) -> list[tuple[str, str, float, float | None]]:
        """List the two values, the effect and its noise of each cell, the largest effects first."""
        noises = self.deviations or ((None,) * len(self.across),) * len(self.rows)
        cells = [
            (row, column, value, noise)
            for row, values, deviations in zip(self.rows, self.effects, noises, strict=True)
            for column, value, noise in zip(self.across, values, deviations, strict=True)
        ]
        return sorted(cells, key=lambda cell: -abs(cell[2]))


@dataclass(frozen=True)
class Panel:
    """The effects on the margin of one class: significant columns first, and within both the largest effects first."""

    favours: str  #: the class that a positive effect makes likelier
    constant: float | None  #: the margin of a row with everything missing
    constant_deviation: float | None
    effects: tuple[Effect, ...]
    pairs: tuple[PairEffect, ...] = ()  #: in the same order


@dataclass(frozen=True)
class Effects:
    """The effects of all columns of a model."""

    unit: str
    panels: tuple[Panel, ...]  #: one for two classes, else one for each class, up to a hundred
    left_out: int  #: the number of classes without a panel
    spread: WeightDeviation | None
    noise: str  #: a description of the noise
    significance: str  #: a description of which columns are significant

    @property
    def exact(self) -> bool:
        """Whether the standard deviations of the noise are known, and not only bounds on them."""
        return self.spread is not None and self.spread.exact

    @property
    def noise_name(self) -> str:
        """The name of what is known of the noise, for a heading."""
        if self.spread is None:
            return "noise"
        return "noise std" if self.spread.exact else "bound on noise std"


def compute_effects(model: Model) -> Effects:
    """Compute the effect of each column of a model, for each class, with the noise in it."""
    schema, loss = model.schema, model.certificate.problem.loss
    names = schema.target.name_weight_vectors(loss)
    spread = compute_weight_deviation(model.certificate.training)
    matrix = schema.encoding.projection_matrix
    offset, unit = schema.target.find_score_units(loss)
    if spread is not None:
        spread = replace(spread, deviation=unit * spread.deviation, combined=unit * spread.combined)
    family = (len(schema.encoding.rules) + len(schema.pairs)) * len(names)
    tested = _test_columns(model)
    panels = []
    shown = unit * unproject_weights(schema, model.weights[:MAX_PANELS])
    for favours, weights in zip(names[:MAX_PANELS], shown, strict=True):
        at, found = 0, []
        for scaled in schema.encoding.scaled_rules:
            part = slice(at, at + scaled.rule.feature_count)
            at = part.stop
            noise = _NoiseDeviation(spread, None if matrix is None else matrix[part])
            found.append(scaled.rule.accept(_EffectVisitor(scaled, weights[part], noise, _bound_means(model, scaled))))
        if tested is not None:
            found = [replace(one, significant=tested[one.name] < LEVEL / family) for one in found]
        elif spread is not None and schema.intercept and matrix is None:
            slope = abs(float(weights[-1])) / schema.intercept_value
            found = [replace(one, significant=_is_significant(one, spread, slope, family)) for one in found]
        found.sort(key=lambda one: (not one.significant, -one.importance))
        constant = deviation = None
        if schema.intercept:
            constant = offset + float(weights[-1]) * schema.intercept_value
            deviation = _NoiseDeviation(spread, None if matrix is None else matrix[-1:]).compute_deviations(
                np.array([schema.intercept_value])
            )
        pairs = _compute_pair_effects(schema, weights, spread, family)
        panels.append(Panel(favours, constant, deviation, tuple(found), pairs))
    return Effects(
        schema.target.describe_scores(loss),
        tuple(panels),
        len(names) - len(panels),
        spread,
        _describe_noise(model, spread),
        _describe_significance(
            model,
            spread,
            [*(one.significant for panel in panels for one in panel.effects)]
            + [pair.significant for panel in panels for pair in panel.pairs],
            tested=tested is not None,
        ),
    )


def _test_columns(model: Model) -> dict[str, float] | None:
    """Return the p-value of each column by its coefficients, 1 if they are doubtful; None if there are no intervals."""
    try:
        found = None if model.inference is None else Coefficients(model)
    except InferenceError:
        found = None
    if found is None:
        return None
    joint, lines, first = {test.column: test.p_value for test in found.joint_tests}, [*found], 0
    tested = {}
    for column in model.schema.columns:
        count = column.encoding_rule.feature_count
        own = lines[first : first + count]
        single = min((line.p_value for line in own), default=1.0) * count  # by Bonferroni's inequality
        is_doubtful = any(line.term in found.doubtful_terms for line in own)
        tested[column.name] = 1.0 if is_doubtful else joint.get(column.name, single)
        first += count
    return tested


def _bound_means(model: Model, scaled: ScaledRule) -> Doubles:
    """Return bounds on the absolute means of a column's features: by their range, or less if they were centred.

    Proof: weight_uncertainty.md 6
    """
    rule, moments, half = scaled.rule, model.certificate.moments, STEP_HEIGHT / 2.0
    counts = [rule.number_count, len(rule.thresholds), len(rule.values)]
    low, high = np.repeat([-1.0, -half, 0.0], counts), np.repeat([1.0, half, 1.0], counts)
    if moments is None:
        return np.asarray(scaled.factors * np.maximum(-low, high))
    error = 2.0 * moments.mean_deviation / model.certificate.rows
    variances = np.maximum((high - scaled.centers) * (scaled.centers - low), 0.0) + (high - low) * error
    return np.asarray(scaled.factors * (CLIPPED_SHARE * np.sqrt(variances) + error))


def _is_significant(effect: Effect, spread: WeightDeviation, slope: float, family: int) -> bool:
    """Return whether the largest difference of a column is more than noise and sampling explain.

    The test is corrected for a `family` of columns. `slope` bounds the part of the difference that a common class
    causes, by the weight of the intercept.
    """
    critical = find_critical_value(spread.noise, LEVEL / family / effect.comparisons)
    return abs(effect.largest) > critical * spread.combined * effect.norm + slope * effect.mean


def _compute_pair_effects(
    schema: Schema, weights: Doubles, spread: WeightDeviation | None, family: int
) -> tuple[PairEffect, ...]:
    """Compute the effects of pairs of columns, whose features follow those of all columns."""
    found, first = [], schema.column_feature_count
    slope = abs(float(weights[-1])) / schema.intercept_value if schema.intercept else None
    plan = schema.encoding
    for names, (one, other) in zip(schema.pairs, plan.pair_sides, strict=True):
        features = plan.pair_factor * np.kron(one.levels, other.levels)
        part = slice(first, first := first + features.shape[1])
        values, shape = features @ weights[part], (len(one.levels), len(other.levels))
        largest, deviations = features[values.argmax()] - features[values.argmin()], None
        importance, significant = float(np.ptp(values)), False
        if spread is not None:
            norms = spread.deviation * np.linalg.norm(features, axis=1)
            deviations = tuple(map(tuple, norms.reshape(shape).tolist()))
        if spread is not None and slope is not None:
            # A mean is at most as large as the largest value.
            mean, comparisons = float(np.abs(largest) @ np.abs(features).max(axis=0)), math.comb(len(values), 2)
            critical = find_critical_value(spread.noise, LEVEL / family / comparisons)
            significant = importance > critical * spread.combined * float(np.linalg.norm(largest)) + slope * mean
        table = tuple(map(tuple, values.reshape(shape).tolist()))
        found.append(PairEffect(names, one.level_names, other.level_names, table, deviations, importance, significant))
    return tuple(sorted(found, key=lambda pair: (not pair.significant, -pair.importance)))


@dataclass(frozen=True)
class _NoiseDeviation:
    """The standard deviation of the noise in linear combinations of one column's features."""

    spread: WeightDeviation | None
    rows: Doubles | None  #: the rows of the projection for these features; None without a projection

    def compute_norms(self, directions: Doubles) -> Any:
        """Compute the norm of the combination <weights, direction> for one or each row of `directions`."""
        return np.linalg.norm(directions if self.rows is None else directions @ self.rows, axis=-1)

    def compute_deviations(self, directions: Doubles) -> Any:
        """Compute the standard deviation of the noise in <weights, direction>, for one or each row of `directions`."""
        return None if self.spread is None else (self.spread.deviation * self.compute_norms(directions)).tolist()

    def compute_feature_deviations(self, factors: Doubles) -> tuple[float, ...] | None:
        """Compute the standard deviation of the noise in each weight times its factor; None if it is unknown."""
        if self.spread is None:
            return None
        lengths = 1.0 if self.rows is None else np.linalg.norm(self.rows, axis=1)
        return tuple((self.spread.deviation * np.abs(factors) * lengths).tolist())


class _EffectVisitor(RuleVisitor[Effect]):
    """Computes the effect of a column from the weights of its features."""

    def __init__(self, scaled: ScaledRule, weights: Doubles, noise: _NoiseDeviation, means: Doubles) -> None:
        (self.middles, self.factors), self.weights, self.noise = scaled.original_units, weights, noise
        self.means = means

    def _measure_combination(self, combination: Doubles) -> tuple[float, float]:
        """Return the norm and the largest mean of a combination of the features."""
        return float(self.noise.compute_norms(combination)), float(np.abs(combination) @ self.means)

    def visit_number(self, rule: NumberRule) -> Effect:
        places, features = self._sample_features(rule)
        values, deviations = features @ self.weights, self.noise.compute_deviations(features)
        largest = features[values.argmax()] - features[values.argmin()]
        ends = 2 + 2 * len(rule.thresholds)
        return Effect(
            rule.column,
            "number",
            places,
            (),
            tuple(values.tolist()),
            None if deviations is None else tuple(deviations),
            float(values[-1] - values[0]),
            self.noise.compute_deviations(features[-1] - features[0]),
            float(np.ptp(values)),
            float(np.ptp(values)),
            *self._measure_combination(largest),
            ends * (ends - 1) // 2,
            None if rule.thresholds else float(self.middles[0]),
        )

    def visit_number_list(self, rule: NumberListRule) -> Effect:
        weights = self.weights
        length, each = float(np.linalg.norm(weights)), self.noise.compute_feature_deviations(np.ones(len(weights)))
        deviation = None if each is None else float(np.linalg.norm(each))
        # The norm of a row is at most 1, and its values are within the bounds.
        widest = min(2.0 * length, float(np.abs(weights * self.factors).sum()) * (rule.high - rule.low))
        deviations = None if deviation is None else (deviation,)
        first = np.zeros(len(weights))
        first[np.abs(weights).argmax()] = 1.0
        tested = (float(np.abs(weights).max()), *self._measure_combination(first), len(weights))
        return Effect(rule.column, "vector", (), (), (length,), deviations, length, deviation, widest, *tested)

    def visit_value(self, rule: Rule) -> Effect:
        labels, values = tuple(map(format_value, rule.values)), self.factors * self.weights
        # A single category is compared with a missing value, several with each other.
        direction = np.zeros(len(values))
        direction[values.argmin()] -= self.factors[values.argmin()] if len(values) > 1 else 0.0
        direction[values.argmax()] += self.factors[values.argmax()]
        difference = float(direction @ self.weights)
        return Effect(
            rule.column,
            "categories",
            (),
            labels,
            tuple(values.tolist()),
            self.noise.compute_feature_deviations(self.factors),
            difference,
            self.noise.compute_deviations(direction),
            abs(difference),
            difference,
            *self._measure_combination(direction),
            max(1, len(values) * (len(values) - 1) // 2),
        )

    visit_time_part = visit_value

    def _sample_features(self, rule: NumberRule) -> tuple[tuple[float, ...], Doubles]:
        """Return numbers at which to compute the effect of a column, and their features; each step is there twice.

        The first of the two is the limit from below the step, the second is at the step.
        """
        steps = np.array(rule.thresholds, dtype=np.float64)
        ends = [rule.low, float(self.middles[0]), rule.high]
        if len(steps):
            ends += np.linspace(rule.low, rule.high, MAX_SEGMENTS + 1).tolist()
        # Pairs of a place, and whether it is just below the step there.
        found = {(place, False) for place in ends} | {
            (place, before) for place in steps.tolist() for before in (True, False)
        }
        ordered = sorted(found, key=lambda one: (one[0], not one[1]))
        places = np.array([place for place, _ in ordered])
        before = np.array([still for _, still in ordered])
        passed = (places[:, None] > steps) | ((places[:, None] == steps) & ~before[:, None])
        return tuple(places.tolist()), (np.column_stack([places, passed]) - self.middles) * self.factors


def _describe_noise(model: Model, spread: WeightDeviation | None) -> str:
    """Describe where noise was added, and what is known of what it does to effects."""
    if spread is None:
        return _UNKNOWN
    if not spread.deviation:
        return _NONE
    problem, noise = model.certificate.problem, model.certificate.training_noise
    text = _EXACT
    if not spread.exact:
        assert noise is not None
        text = _BOUND.format(pull=noise.deviation / problem.loss.lipschitz, rows=problem.rows)
    text += _MONOTONE if model.schema.is_monotone else ""
    return text + ("" if model.certificate.selection is None else _CHOSEN)


def _describe_significance(
    model: Model, spread: WeightDeviation | None, significant: Sequence[bool], *, tested: bool
) -> str:
    """Describe which columns are significant, by which rule, and what it does not cover."""
    if tested:
        return _TESTED.format(count=sum(significant), columns=len(significant))
    cause = None
    if spread is None:
        cause = "noise in every update does"
    elif math.isinf(spread.combined):
        cause = "the sampling of rows does"
    elif not model.schema.intercept or model.schema.projection is not None:
        cause = "a common class does, without an intercept or with a projection,"
    text = _SIGNIFICANT if cause is None else _NO_BOUND
    return text.format(count=sum(significant), columns=len(significant), cause=cause)
