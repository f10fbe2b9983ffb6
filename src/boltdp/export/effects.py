"""The effect of each column on the margin, in its original units, and the standard deviation of the noise in it.

The effect of a value is the margin with it minus the margin with the value missing. It is computed from the model
alone: no row is read. In rows that are clipped to the clip norm, all effects are scaled by the same factor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from boltdp._array_types import Doubles
from boltdp.encoding.declared_values import format_value
from boltdp.encoding.plan import NumberListRule, NumberRule, Rule, RuleVisitor, ScaledRule
from boltdp.export.original_units import unproject_weights
from boltdp.model import Model
from boltdp.privacy.weight_uncertainty import WeightDeviation, compute_weight_deviation

Kind = Literal["number", "categories", "vector"]

#: The maximum number of classes that are shown.
MAX_PANELS = 100
#: The maximum extent of a picture's axis, as a multiple of the largest effect.
MAX_REACH = 2.5
#: The number of segments in which the noise of a number with steps is interpolated linearly.
MAX_SEGMENTS = 32

_EXACT = (
    "added to the trained weights. Bands are one and two standard deviations of what it does to an effect, to each side"
)
_AT_MOST = (
    "added before training: in any one direction it pulls as {pull:.2g} rows can, of {rows:,} (a standard deviation). "
    "What that does to an effect depends on the rows, which are private. The bands are the most that one and two "
    "standard deviations of it can be, whatever the rows are; where they tell much about an effect, it is far less"
)
_NONE = "none was added, so that there are no bands"
_UNKNOWN = "added in every update. What it does to an effect is not known, so that there are no bands"
_CHOSEN = ". The model was chosen among several, which prefers noise that did well: that is not in the bands"


@dataclass(frozen=True)
class Effect:
    """The effect of one column on the margin of one class."""

    name: str
    kind: Kind
    places: tuple[float, ...]  #: of a number: the ends, the middle and, twice, each step
    labels: tuple[str, ...]  #: of categories: their names
    effects: tuple[float, ...]  #: at each place or category; of a vector, the norm of its weights
    deviations: tuple[float, ...] | None  #: the standard deviations of the noise in `effects`
    difference: float  #: of the effects at both ends, or of the largest and smallest categories
    deviation: float | None  #: the standard deviation of the noise in `difference`
    importance: float  #: the largest difference of margins between two values of the column

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


@dataclass(frozen=True)
class Panel:
    """The effects on the margin of one class, the most important column first."""

    favours: str  #: the class that a positive effect makes likelier
    constant: float | None  #: the margin of a row with everything missing
    constant_deviation: float | None
    effects: tuple[Effect, ...]

    def compute_axis_limit(self, top: int, *, max_reach: float = MAX_REACH) -> float:
        """Return where the axis of effects ends, for drawings of the first `top` columns.

        That is the largest effect with two standard deviations of noise, or `max_reach` times the largest effect
        if that is less.
        """
        found = [one for one in self.effects[:top] if one.kind != "vector"]
        effects = max((abs(value) for one in found for value in one.effects), default=0.0)
        ends = [
            abs(value) + 2.0 * noise
            for one in found
            for value, noise in zip(one.effects, one.deviations or (0.0,) * len(one.effects), strict=True)
        ]
        return min(max(ends, default=0.0), max_reach * effects) or 1.0


@dataclass(frozen=True)
class Effects:
    """The effects of all columns of a model."""

    unit: str
    panels: tuple[Panel, ...]  #: one for two classes, else one for each class, up to a hundred
    left_out: int  #: the number of classes without a panel
    spread: WeightDeviation | None
    noise: str  #: a description of the noise

    @property
    def has_upper_bounds(self) -> bool:
        """Whether the standard deviations of the noise are only known as upper bounds."""
        return self.spread is not None and not self.spread.exact


def compute_effects(model: Model) -> Effects:
    """Compute the effect of each column of a model, for each class, with the noise in it."""
    schema, loss = model.schema, model.certificate.problem.loss
    names = schema.target.name_weight_vectors(loss)
    spread = compute_weight_deviation(model.certificate.training)
    matrix = schema.encoding.projection_matrix
    offset, unit = schema.target.find_score_units(loss)
    if spread is not None:
        spread = replace(spread, deviation=unit * spread.deviation)
    panels = []
    shown = unit * unproject_weights(schema, model.weights[:MAX_PANELS])
    for favours, weights in zip(names[:MAX_PANELS], shown, strict=True):
        at, found = 0, []
        for scaled in schema.encoding.scaled_rules:
            part = slice(at, at + scaled.rule.feature_count)
            at = part.stop
            noise = _NoiseDeviation(spread, None if matrix is None else matrix[part])
            found.append(scaled.rule.accept(_EffectVisitor(scaled, weights[part], noise)))
        found.sort(key=lambda one: -one.importance)
        constant = deviation = None
        if schema.intercept:
            constant = offset + float(weights[-1]) * schema.intercept_value
            deviation = _NoiseDeviation(spread, None if matrix is None else matrix[-1:]).compute_deviations(
                np.array([schema.intercept_value])
            )
        panels.append(Panel(favours, constant, deviation, tuple(found)))
    return Effects(
        schema.target.describe_scores(loss),
        tuple(panels),
        len(names) - len(panels),
        spread,
        _describe_noise(model, spread),
    )


@dataclass(frozen=True)
class _NoiseDeviation:
    """The standard deviation of the noise in linear combinations of one column's features."""

    spread: WeightDeviation | None
    rows: Doubles | None  #: the rows of the projection for these features; None without a projection

    def compute_deviations(self, directions: Doubles) -> Any:
        """Compute the standard deviation of the noise in <weights, direction>, for one or each row of `directions`."""
        if self.spread is None:
            return None
        turned = directions if self.rows is None else directions @ self.rows
        return (self.spread.deviation * np.linalg.norm(turned, axis=-1)).tolist()

    def compute_feature_deviations(self, factors: Doubles) -> tuple[float, ...] | None:
        """Compute the standard deviation of the noise in each weight times its factor; None if it is unknown."""
        if self.spread is None:
            return None
        lengths = 1.0 if self.rows is None else np.linalg.norm(self.rows, axis=1)
        return tuple((self.spread.deviation * np.abs(factors) * lengths).tolist())


class _EffectVisitor(RuleVisitor[Effect]):
    """Computes the effect of a column from the weights of its features."""

    def __init__(self, scaled: ScaledRule, weights: Doubles, noise: _NoiseDeviation) -> None:
        (self.middles, self.factors), self.weights, self.noise = scaled.original_units, weights, noise

    def visit_number(self, rule: NumberRule) -> Effect:
        places, features = self._sample_features(rule)
        values, deviations = features @ self.weights, self.noise.compute_deviations(features)
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
        )

    def visit_number_list(self, rule: NumberListRule) -> Effect:
        weights = self.weights
        length, each = float(np.linalg.norm(weights)), self.noise.compute_feature_deviations(np.ones(len(weights)))
        deviation = None if each is None else float(np.linalg.norm(each))
        # The norm of a row is at most 1, and its values are within the bounds.
        widest = min(2.0 * length, float(np.abs(weights * self.factors).sum()) * (rule.high - rule.low))
        deviations = None if deviation is None else (deviation,)
        return Effect(rule.column, "vector", (), (), (length,), deviations, length, deviation, widest)

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
    """Describe where noise was added, and what the bands of noise that are drawn around each effect mean."""
    if spread is None:
        return _UNKNOWN
    if not spread.deviation:
        return _NONE
    problem, noise = model.certificate.problem, model.certificate.training_noise
    text = _EXACT
    if not spread.exact:
        assert noise is not None
        text = _AT_MOST.format(pull=noise.deviation / problem.loss.lipschitz, rows=problem.rows)
    return text + ("" if model.certificate.selection is None else _CHOSEN)
