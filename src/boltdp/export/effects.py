"""What each column does to the margin, in its own units, and how far noise may have moved that.

The effect of a value is the margin with it minus the margin with the value missing. All numbers come from the model:
no row is read. Of rows that are longer than the clip norm, which are shortened, all effects shrink alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from boltdp.arraytypes import Doubles
from boltdp.data.encode import projection_matrix
from boltdp.data.schema import Categorical, Column, Numeric
from boltdp.data.values import spellings
from boltdp.export.linear import encoded_weights
from boltdp.privacy.losses import Logistic, Multinomial
from boltdp.privacy.spread import Spread, weight_spread

if TYPE_CHECKING:
    from boltdp.model import Model

Kind = Literal["number", "categories", "vector"]

#: From combinations of one column's encoded features, one a row, to their lengths as combinations of the weights.
Lengths: TypeAlias = Callable[[Doubles], Doubles]

#: How many times the largest effect a picture reaches, to show bands.
WIDEST = 2.5
#: Pieces of the line of a number with steps, between which the width of the noise is straight.
PIECES = 32

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
    """What one column does to the margin of one class."""

    name: str
    kind: Kind
    places: tuple[float, ...]  #: of a number: where its line has an end, the middle or a step; a step has two
    labels: tuple[str, ...]  #: of categories: each of them
    effects: tuple[float, ...]  #: there; of a vector only one: the length of its weights
    deviations: tuple[float, ...] | None  #: of noise, there; of a vector that of the length
    difference: float  #: from one end of a number to the other, or from the smallest of categories to the largest
    deviation: float | None  #: of noise, of that
    importance: float  #: how far apart two values of the column can put the margin

    @property
    def corners(self) -> tuple[tuple[float, float, float | None], ...]:
        """Of a number: place, effect and deviation at its ends and steps, without what is between them."""
        noise = (None,) * len(self.effects) if self.deviations is None else self.deviations
        points = tuple(zip(self.places, self.effects, noise, strict=True))
        twice = {one for one, other in zip(self.places, self.places[1:], strict=False) if one == other}
        return tuple(point for point in points if point[0] in twice or point in (points[0], points[-1]))

    def largest(self, most: int) -> tuple[int, ...]:
        """The positions of the categories with the largest effects, in their own order."""
        order = sorted(range(len(self.labels)), key=lambda index: -abs(self.effects[index]))[:most]
        return tuple(sorted(order))


@dataclass(frozen=True)
class Panel:
    """The effects on the margin of one class, the most important column first."""

    favours: str  #: the class that a positive effect makes likelier
    constant: float | None  #: the margin of a row with everything missing
    constant_deviation: float | None
    effects: tuple[Effect, ...]

    def reach(self, top: int) -> float:
        """How far from 0 pictures of the first `top` effects must reach.

        Bands may be much wider than any effect, and are cut where effects would be hard to see.
        """
        found = [one for one in self.effects[:top] if one.kind != "vector"]
        effects = max((abs(value) for one in found for value in one.effects), default=0.0)
        ends = [
            abs(value) + 2.0 * noise
            for one in found
            for value, noise in zip(one.effects, one.deviations or (0.0,) * len(one.effects), strict=True)
        ]
        return min(max(ends, default=0.0), WIDEST * effects) or 1.0


@dataclass(frozen=True)
class Effects:
    """Everything that there is to show of a model."""

    unit: str
    panels: tuple[Panel, ...]  #: one for two classes, else one for each class
    spread: Spread | None
    noise: str  #: what is said of noise, in words

    @property
    def at_most(self) -> bool:
        """Whether the deviations are only the most that they can be."""
        return self.spread is not None and not self.spread.exact


def effects(model: Model) -> Effects:
    """What the columns of a model do.

    >>> from boltdp.engines import open_source
    >>> from boltdp.settings import Settings
    >>> from boltdp.training import train
    >>> import pyarrow as pa
    >>> from boltdp.data.schema import Schema
    >>> rows = pa.table({"age": range(100), "sick": [age > 60 for age in range(100)]})
    >>> schema = Schema("sick", (False, True), (Numeric("age", 0, 100),))
    >>> (panel,) = effects(train(open_source(rows), schema, Settings(epsilon=None))).panels
    >>> panel.favours, panel.effects[0].name, panel.effects[0].places, panel.effects[0].difference > 0
    ('true', 'age', (0.0, 50.0, 100.0), True)
    """
    schema, names = model.schema, [spellings(value)[0] for value in model.classes]
    spread = weight_spread(model.certificate.training)
    matrix = None if schema.projection is None else projection_matrix(schema.projection, schema.encoded_dims)
    panels = []
    favoured = names[1:] if len(model.weights) == 1 else names
    for favours, weights in zip(favoured, encoded_weights(schema, model.weights), strict=True):
        at, found = 0, []
        for column, middles, factors in schema.transforms():
            part = slice(at, at + len(middles))
            at = part.stop
            lengths = _lengths(None if matrix is None else matrix[part])
            found.append(_effect(column, middles, factors, weights[part], spread, lengths))
        found.sort(key=lambda one: -one.importance)
        constant = deviation = None
        if schema.intercept:
            constant = float(weights[-1]) * schema.constant
            (length,) = _lengths(None if matrix is None else matrix[-1:])(np.array([[schema.constant]]))
            deviation = None if spread is None else spread.deviation * float(length)
        panels.append(Panel(favours, constant, deviation, tuple(found)))
    return Effects(_unit(model, names), tuple(panels), spread, _said_of_noise(model, spread))


def _effect(
    column: Column, middles: Doubles, factors: Doubles, weights: Doubles, spread: Spread | None, lengths: Lengths
) -> Effect:
    """The effect of one column; `weights` are those of its encoded features."""

    def deviations(directions: Doubles) -> tuple[float, ...] | None:
        return None if spread is None else tuple((spread.deviation * lengths(directions)).tolist())

    if not isinstance(column, (Numeric, Categorical)):
        length = float(np.linalg.norm(weights))
        # Of a row that is at most 1 long, and of values that are within the bounds.
        widest = min(2.0 * length, float(np.abs(weights * factors).sum()) * (column.high - column.low))
        noise = None if spread is None else spread.deviation * math.hypot(*lengths(np.eye(len(weights))))
        told = None if noise is None else (noise,)
        return Effect(column.name, "vector", (), (), (length,), told, length, noise, widest)
    kind: Kind = "number"
    labels: tuple[str, ...] = ()
    places: tuple[float, ...] = ()
    if isinstance(column, Categorical):
        kind, labels = "categories", tuple(spellings(value)[0] for value in column.categories)
        directions = np.diag(factors)
    else:
        places, directions = _line(column, middles, factors)
    values = directions @ weights
    low, high = (0, len(values) - 1) if kind == "number" else (int(values.argmin()), int(values.argmax()))
    apart = deviations((directions[high] - directions[low])[None])
    return Effect(
        column.name,
        kind,
        places,
        labels,
        tuple(values.tolist()),
        deviations(directions),
        # One category is compared with none of them.
        float(values[high] - values[low]) if len(values) > 1 else float(values[0]),
        None if apart is None else apart[0] if len(values) > 1 else (deviations(directions) or (0.0,))[0],
        float(np.ptp(values)) if len(values) > 1 else abs(float(values[0])),
    )


def _line(column: Numeric, middles: Doubles, factors: Doubles) -> tuple[tuple[float, ...], Doubles]:
    """Places of a number, and its encoded features there; at a step both below it and at it."""
    steps = np.array(getattr(column, "curve", ()), dtype=np.float64)
    ends = [column.low, float(middles[0]), column.high]
    if len(steps):
        ends += np.linspace(column.low, column.high, PIECES + 1).tolist()
    # A place, and whether the step there is still to come.
    found = {(place, False) for place in ends} | {
        (place, before) for place in steps.tolist() for before in (True, False)
    }
    ordered = sorted(found, key=lambda one: (one[0], not one[1]))
    places = np.array([place for place, _ in ordered])
    before = np.array([still for _, still in ordered])
    passed = (places[:, None] > steps) | ((places[:, None] == steps) & ~before[:, None])
    return tuple(places.tolist()), (np.column_stack([places, passed]) - middles) * factors


def _lengths(matrix: Doubles | None) -> Lengths:
    """How long combinations of encoded features are as combinations of the weights, behind a projection or not."""

    def lengths(directions: Doubles) -> Doubles:
        turned = directions if matrix is None else directions @ matrix
        found: Doubles = np.linalg.norm(turned, axis=1)
        return found

    return lengths


def _unit(model: Model, names: list[str]) -> str:
    loss = model.certificate.problem.loss
    if len(model.weights) == 1:
        known = "log odds" if type(loss) is Logistic else "margin"
        return f"{known} of {names[1]!r} against {names[0]!r}"
    if isinstance(loss, Multinomial):
        return "log odds of each class against the average of all"
    known = "log odds" if type(loss) is Logistic else "margin"
    return f"{known} of each class against all others"


def _said_of_noise(model: Model, spread: Spread | None) -> str:
    if spread is None:
        return _UNKNOWN
    if not spread.deviation:
        return _NONE
    problem, noise = model.certificate.problem, model.certificate.training_noise
    said = _EXACT
    if not spread.exact:
        assert noise is not None
        said = _AT_MOST.format(pull=noise.deviation / problem.loss.lipschitz, rows=problem.rows)
    return said + ("" if model.certificate.selection is None else _CHOSEN)
