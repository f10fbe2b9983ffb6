"""How well a model predicts private rows, within a budget: one histogram with noise, and figures computed of it.

Every row is in one bin: by its subgroup, its class and the interval that its score is in; the rows without a declared
class are in one bin together. The bins follow from the model and from public numbers. Their counts are released once,
with noise; accuracy, areas, losses, errors by subgroup and the intervals of all of them cost nothing more.

Proof: noisy_counts.md 6
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from boltdp import __version__
from boltdp._arrays import Doubles, Integers, PackedRows
from boltdp._files.sealed import OUTSIDE, ModelFileError, digest, read_sealed, sealed
from boltdp.encoding.plan import cell_of
from boltdp.encoding.values import format_value
from boltdp.errors import DataError, ParameterError
from boltdp.privacy.accounting.charges import Release
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import CertificateError, compare_records, why_not_private
from boltdp.privacy.events.event import SEEDED, Event, NonPrivate, mark_non_private
from boltdp.privacy.events.noisy_counts import NoisyCounts, make_noisy_counts
from boltdp.privacy.release import release_counts
from boltdp.privacy.serialization import from_record, to_record
from boltdp.schema.schema import Categorical, Schema

if TYPE_CHECKING:
    from pathlib import Path

    from boltdp.context import Context
    from boltdp.engines.base import Engine
    from boltdp.ledger import Account
    from boltdp.model import Model

FORMAT = "boltdp-evaluation"
FORMAT_VERSION = 1

#: Bins of scores on either side of where the prediction changes, at most.
MOST_BINS = 20
#: Of these, how many the table of the calibration has on either side, at most.
TABLE_BINS = 5
#: What bins change of an area or a loss, about: this, divided by the square of their number.
COARSENESS = 0.5
#: A share is told where what it is a share of is as many deviations of the noise, or more.
DISTINCT = 4.0
#: Of a normal distribution: 95 % of it is within so many deviations of its middle.
TWO_SIDED = 1.959964
#: The rows of a subgroup that have none of the declared categories.
NO_GROUP = "none declared"


@dataclass(frozen=True)
class Bins:
    """Where the rows of an evaluation are counted; all of it is public.

    Of two classes, scores are probabilities of the second (margins, where there are none): `low` are the edges of the
    bins for which the first is predicted, `high` of the others. Of more classes, scores are probabilities of a row's
    own class: `low` are the edges of the bins of rows that are predicted wrongly, `high` of the others.

    >>> bins = Bins(groups=1, classes=2, probabilistic=True, low=(0.0, 0.25, 0.5), high=(0.5, 0.75, 1.0))
    >>> bins.shape, bins.cells
    ((1, 2, 4), 9)
    """

    groups: int  #: subgroups of rows, the one of those that have no declared category included
    classes: int
    probabilistic: bool
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        edges = (*self.low, *self.high)
        if len(self.low) != len(self.high) or len(self.low) < 2 or min(self.groups, self.classes - 1) < 1:
            raise ParameterError("the bins of an evaluation must be those of groups, classes and as many edges twice")
        if not all(map(math.isfinite, edges)) or not all(np.diff(self.low) > 0) or not all(np.diff(self.high) > 0):
            raise ParameterError("the edges of the bins of an evaluation must be numbers that grow")
        if self.probabilistic and not all(0.0 <= edge <= 1.0 for edge in edges):
            raise ParameterError("the edges of the bins of an evaluation must be probabilities")

    @property
    def half(self) -> int:
        """Bins on either side."""
        return len(self.low) - 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, classes, and bins of scores."""
        return self.groups, self.classes, 2 * self.half

    @property
    def cells(self) -> int:
        """All bins, with the last one, which has the rows without a declared class."""
        return math.prod(self.shape) + 1

    @property
    def right(self) -> Doubles:
        """1 for each class and bin of scores whose rows are predicted rightly, else 0."""
        high = np.arange(2 * self.half) >= self.half
        rows = [~high, high] if self.classes == 2 else [high] * self.classes
        return np.array(rows, np.float64)

    @property
    def log_losses(self) -> Doubles:
        """For each class and bin of scores: the mean log loss of rows that are spread evenly in the bin."""
        return self._of_own_class(lambda p: p - p * np.log(np.maximum(p, np.finfo(np.float64).tiny)))

    @property
    def squares(self) -> Doubles:
        """The same, of the square of 1 minus the probability of the own class."""
        return self._of_own_class(lambda p: -((1.0 - p) ** 3) / 3.0)

    def _of_own_class(self, integral: Any) -> Doubles:
        """The mean over each bin of a function of the probability of the row's own class, by its integral."""
        left = np.array([*self.low[:-1], *self.high[:-1]])
        right = np.array([*self.low[1:], *self.high[1:]])
        second = (integral(right) - integral(left)) / (right - left)
        if self.classes > 2:
            return np.tile(second, (self.classes, 1))
        first = (integral(1.0 - left) - integral(1.0 - right)) / (right - left)
        return np.array([first, second])

    def count(self, model: Model, packed: PackedRows, place: int | None) -> Integers:
        """How many rows are in each bin; `place` is that of the cell that tells the subgroup."""
        labels = packed[:, 0]
        known = ~np.isnan(labels)
        own = labels[known].astype(np.intp)
        found = model.margins(packed)[known]
        group = np.zeros(len(own), np.intp)
        if place is not None:
            codes = packed[known, place].astype(np.intp)
            group = np.where(codes < 0, self.groups - 1, codes)
        if self.classes == 2:
            bins = np.searchsorted(self._margins(model), found[:, 0], side="left")
        else:
            right = model.choices(found) == own
            bins = self.half * right
            if self.half > 1:
                scores = model.probabilities(found)[np.arange(len(own)), own]
                low, high = (np.searchsorted(edges[1:-1], scores, side="left") for edges in (self.low, self.high))
                bins += np.where(right, high, low)
        cells = (group * self.classes + own) * 2 * self.half + bins
        counts: Integers = np.bincount(cells, minlength=self.cells).astype(np.int64)
        counts[-1] = len(labels) - len(own)
        return counts

    def _margins(self, model: Model) -> Doubles:
        """The margins between the bins of two classes; the middle one is where the prediction changes."""
        edges = np.array([*self.low[1:], *self.high[1:-1]])
        if self.probabilistic:
            cut = model.certificate.problem.loss.cut
            edges = np.array([cut(float(edge)) for edge in edges])
        edges[self.half - 1] = model.cut
        return np.maximum.accumulate(edges)


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
        """The figure and half the length of its interval; `whole` is for counts.

        >>> Score(0.75, 0.7, 0.8).describe()
        '0.750 ± 0.050'
        """
        half = 0.5 * (self.high - self.low)
        return f"{self.value:,.0f} ± {half:,.0f}" if whole else f"{self.value:.3f} ± {half:.3f}"


@dataclass(frozen=True)
class NoisyEvaluation:
    """How well a model predicts private rows: released counts, and what follows from them. All of it may be shown.

    `scores` are the figures of all rows, `by_group` those of each subgroup; None is one that the noise is too strong
    for.
    """

    model: str  #: the digest of the model, whatever its threshold is
    rows: int
    classes: tuple[str, ...]
    threshold: float | None
    by: str | None  #: the column of the subgroups
    groups: tuple[str, ...]  #: of each subgroup the category, then NO_GROUP; one of all rows has no name
    bins: Bins
    counts: tuple[float, ...]  #: as they were released
    budget: Budget
    spent: Event
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    version: str = __version__

    def __post_init__(self) -> None:
        if len(self.counts) != self.bins.cells or not np.isfinite(self.counts).all():
            raise ParameterError(f"an evaluation must have {self.bins.cells} counts, got {len(self.counts)}")
        if len(self.classes) != self.bins.classes or len(self.groups) != self.bins.groups:
            raise ParameterError("an evaluation must have the classes and groups of its bins")
        if not isinstance(self._event, NoisyCounts) or (self._event.releases, self._event.unknown) != (1, 0):
            raise ParameterError("an evaluation must be of counts that were released once, of public bins")
        if self.adjacency is not Adjacency.of(self.person_rows):
            raise ParameterError("an evaluation must be about the relation of its counts")

    @property
    def person_rows(self) -> int | None:
        """How many of a person's rows count, if persons are protected and not rows."""
        return self.spent.person_rows

    @property
    def _event(self) -> Event:
        return self.spent.spent if isinstance(self.spent, NonPrivate) else self.spent

    @property
    def noise(self) -> float:
        """The standard deviation of the noise of each count."""
        assert isinstance(self._event, NoisyCounts)
        return self._event.noise.deviation

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not private; empty if it is."""
        return why_not_private(self.spent, self.budget)

    def guarantee(self) -> str:
        """What is promised, in plain words."""
        if self.reasons:
            return f"NOT PRIVATE: {'; '.join(self.reasons)}."
        protected = "" if self.person_rows is None else f" Protected is a person, of whom {_first(self.person_rows)}."
        return (
            f"Differentially private with {self.budget.describe()}: all figures are computed from {len(self.counts):,} "
            f"counts of the {self.rows:,} rows, each with noise of deviation {self.noise:.3g}.{protected}"
        )

    @cached_property
    def _table(self) -> Doubles:
        """The counts by group, class and bin; all of them, and the last one, add up to the rows.

        Proof: noisy_counts.md 6
        """
        counts = np.array(self.counts)
        counts += (self.rows - counts.sum()) / len(counts)
        return counts[:-1].reshape(self.bins.shape)

    @property
    def rows_without_class(self) -> Score:
        """How many rows have no declared class."""
        counted = self._sum(np.ones(self.bins.shape))
        left, low, high = (max(0.0, self.rows - one) for one in (counted.value, counted.high, counted.low))
        return Score(left, low, high)

    @cached_property
    def scores(self) -> dict[str, Score | None]:
        """Of all rows that have a declared class."""
        return self._scores(np.ones(self.bins.groups))

    @cached_property
    def by_group(self) -> dict[str, dict[str, Score | None]]:
        """Of the rows of each subgroup, if there are any; "rows" is how many they are."""
        if self.by is None:
            return {}
        every = np.eye(self.bins.groups)
        sizes = [self._sum(np.ones(self.bins.shape) * mask[:, None, None]) for mask in every]
        return {
            name: {"rows": size, **self._scores(mask)}
            for name, size, mask in zip(self.groups, sizes, every, strict=True)
        }

    @property
    def area_error(self) -> float | None:
        """Half the share of pairs of rows that share a bin: bins cannot change the area by more."""
        if self.scores.get("area under the curve") is None:
            return None
        outside, inside = self._table.sum(axis=0)
        return max(0.0, float(outside @ inside / (2.0 * outside.sum() * inside.sum())))

    @property
    def calibration(self) -> list[dict[str, Any]]:
        """Of two classes, for a few intervals of probabilities: the rows, and the share of the second class."""
        if self.bins.classes > 2 or not self.bins.probabilistic:
            return []
        edges, half, told = [*self.bins.low, *self.bins.high[1:]], self.bins.half, []
        several = math.ceil(half / TABLE_BINS)
        places = [*range(0, half, several), *range(half, 2 * half, several), 2 * half]
        for first, last in pairwise(places):
            inside = np.zeros(self.bins.shape)
            inside[:, :, first:last] = 1.0
            second = inside.copy()
            second[:, 0] = 0.0
            told.append(
                {
                    "from": edges[first],
                    "to": edges[last],
                    "rows": _record(self._sum(inside)),
                    "share": _record(self._share(second, inside)),
                }
            )
        return told

    def _scores(self, mask: Doubles) -> dict[str, Score | None]:
        bins, own = self.bins, mask[:, None, None] * np.ones(self.bins.shape)
        by_class = [own * one[None, :, None] for one in np.eye(bins.classes)]
        scores = {"accuracy": self._share(own * bins.right, own)}
        recalls = [self._linear(one * bins.right, one) for one in by_class]
        known = [one for one in recalls if one is not None]
        scores["balanced accuracy"] = None
        if len(known) == len(recalls):
            value = math.fsum(value for value, _ in known) / len(known)
            scores["balanced accuracy"] = self._score(value, np.mean([one for _, one in known], axis=0), most=1.0)
        if bins.classes == 2:
            scores["area under the curve"] = self._area(own)
        if bins.probabilistic:
            scores["log loss"] = self._share(own * bins.log_losses, own, most=math.inf)
        if bins.probabilistic and bins.classes == 2:
            scores["Brier score"] = self._share(own * bins.squares, own)
        for name, one in zip(self.classes, recalls, strict=True):
            scores[f"recall of {name}"] = None if one is None else self._score(*one, most=1.0)
        return scores

    def _distinct(self, of: Doubles) -> bool:
        """Whether the rows in some bins are so many that shares of them can be told."""
        cells = float(np.count_nonzero(of))
        noise = self.noise * math.sqrt(cells * (1.0 - cells / len(self.counts)))
        return float((of * self._table).sum()) > max(DISTINCT * noise, 1.0)

    def _linear(self, part: Doubles, of: Doubles) -> tuple[float, Doubles] | None:
        """The mean of `part` over the rows in the bins `of`, with its gradient; None where these are too few."""
        if not self._distinct(of):
            return None
        rows = float((of * self._table).sum())
        value = float((part * self._table).sum()) / rows
        return value, (part - value * of) / rows

    def _share(self, part: Doubles, of: Doubles, *, most: float = 1.0) -> Score | None:
        found = self._linear(part, of)
        return None if found is None else self._score(*found, most=most)

    def _area(self, own: Doubles) -> Score | None:
        """The area under the ROC curve: the share of pairs of rows whose second class has the higher score."""
        if not all(self._distinct(own * one[None, :, None]) for one in np.eye(2)):
            return None
        outside, inside = (own * self._table).sum(axis=0)
        below = np.cumsum(outside) - 0.5 * outside
        above = inside.sum() - np.cumsum(inside) + 0.5 * inside
        others, members = float(outside.sum()), float(inside.sum())
        value = float(inside @ below) / (others * members)
        slopes = np.array([above / (others * members) - value / others, below / (others * members) - value / members])
        return self._score(value, own * slopes, most=1.0)

    def _sum(self, of: Doubles) -> Score:
        """How many rows are in some bins."""
        return self._score(float((of * self._table).sum()), of, most=math.inf, sampled=False)

    def _score(self, value: float, gradient: Doubles, *, most: float, sampled: bool = True) -> Score:
        """With its interval, by the gradient in the counts.

        Proof: noisy_counts.md 6
        """
        variance = self.noise**2 * float((gradient**2).sum() - gradient.sum() ** 2 / len(self.counts))
        if sampled:
            counts = np.maximum(self._table, 0.0)
            spread = float((counts * gradient**2).sum() - (counts * gradient).sum() ** 2 / self.rows)
            variance += (self.person_rows or 1) * max(0.0, spread)
        reach = TWO_SIDED * math.sqrt(variance)
        low, middle, high = (max(0.0, min(one, most)) for one in (value - reach, value, value + reach))
        return Score(middle, low, high)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "private": not self.reasons,
            "reasons": list(self.reasons),
            **to_record(self),
            "rows_without_class": _record(self.rows_without_class),
            "scores": _records(self.scores),
            "area_error": self.area_error,
            "by_group": {name: _records(scores) for name, scores in self.by_group.items()},
            "calibration": self.calibration,
        }

    def sealed(self) -> dict[str, Any]:
        """The same with its digest, as files have it."""
        return sealed(self.to_dict())

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> NoisyEvaluation:
        """Read what `to_dict` wrote; figures that do not follow from the counts are refused."""
        if record.get("format") != FORMAT or record.get("format_version") != FORMAT_VERSION:
            raise ModelFileError(
                "this is not an evaluation that this boltdp can read",
                hint="`boltdp evaluate MODEL SOURCE --epsilon E -o evaluation.json` writes one",
            )
        names = {name for name in cls.__dataclass_fields__ if name in record}
        try:
            found = from_record(cls, {name: record[name] for name in names})
            compare_records(dict(record), found.to_dict(), "the evaluation")
        except CertificateError as fault:
            raise ModelFileError(str(fault)) from None
        except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as fault:
            raise ModelFileError(f"the evaluation cannot be read: {fault}") from None
        return found

    @classmethod
    def load(cls, path: str | Path) -> NoisyEvaluation:
        """Read a file of `boltdp evaluate -o`; one that was changed after it was written is refused."""
        return cls.from_dict({key: value for key, value in read_sealed(path).items() if key not in OUTSIDE})


def measure(
    model: Model,
    engine: Engine,
    budget: Budget,
    *,
    by: str | None = None,
    context: Context | None = None,
    account: Account | None = None,
) -> NoisyEvaluation:
    """How well `model` predicts the private rows of `engine`, which must have the label, within a budget.

    A model that protects persons is evaluated on those of their rows that count, and the counts protect persons too.
    `by` is a categorical column of the schema: figures are also given for each of its categories. `account` is charged
    before a row is read.

    >>> import pyarrow as pa
    >>> from boltdp import train
    >>> from boltdp.engines import open_source
    >>> age = np.arange(5000) % 100
    >>> rows = pa.table({"age": age, "ill": age > 60})
    >>> model = train(rows, label="ill", epsilon=1, bounds={"age": (0, 110)})
    >>> found = measure(model, open_source(rows), Budget(1.0))
    >>> found.scores["accuracy"].value > 0.8, found.reasons
    (True, ())
    """
    from boltdp.context import Context
    from boltdp.engines.base import check_columns, scan_limited_rows
    from boltdp.engines.person_limit import check_person_id

    context = replace(Context() if context is None else context, on_bad_row="neutral")
    categories = _categories(model.schema, by)
    check_columns(model.schema, engine.columns())
    check_person_id(model.schema, engine.columns(), context)
    rows = engine.count()
    event = make_noisy_counts(budget, releases=1, summed=True, person_rows=model.schema.max_rows_per_person)
    bins = plan_bins(model, rows=rows, groups=len(categories), noise=event.noise.deviation)
    spent = mark_non_private(event, () if context.randomness.seed is None else (SEEDED,))
    adjacency = Adjacency.of(event.person_rows)

    def released() -> NoisyEvaluation:
        place = None if by is None else cell_of(model.schema, by)
        counts, stage = np.zeros(bins.cells, np.int64), context.at("counting", rows)
        for block in scan_limited_rows(engine, model.schema, _Counting(model, bins, place), context=context):
            counts += block
            stage.done(int(counts.sum()))
        if counts.sum() != rows:
            raise DataError(f"the data must stay as it is while it is read: it had {rows:,} rows before")
        noisy = release_counts(counts.tolist(), event, context.randomness.stream("evaluation"))
        return NoisyEvaluation(
            model=digest_of_model(model),
            rows=rows,
            classes=tuple(format_value(value) for value in model.classes),
            threshold=model.threshold,
            by=by,
            groups=categories,
            bins=bins,
            counts=tuple(noisy),
            budget=budget,
            spent=spent,
            adjacency=adjacency,
        )

    if account is None:
        return released()
    with account.charged(Release(budget, spent, adjacency), drawn=lambda: context.randomness.drawn) as reservation:
        found = released()
        reservation.note(found.sealed()["digest"])
    return found


@dataclass(frozen=True)
class _Counting:
    """Counts a block of rows; it may be sent to where the rows are."""

    model: Model
    bins: Bins
    place: int | None

    def __call__(self, packed: PackedRows) -> Integers:
        return self.bins.count(self.model, packed, self.place)


def plan_bins(model: Model, *, rows: int, groups: int, noise: float) -> Bins:
    """The bins of an evaluation: as many as balance what they hide and what the noise of all of them adds up to.

    From the model and public numbers alone.
    """
    classes, loss = len(model.classes), model.certificate.problem.loss
    probabilistic = loss.probabilistic
    if classes > 2:
        half = _half(rows, classes * groups, noise) if probabilistic else 1
        return Bins(groups, classes, probabilistic, _edges(0.0, 0.5, half), _edges(1.0 / classes, 1.0, half))
    half = _half(rows, classes * groups, noise)
    # No margin is beyond the length of the weights, since no row is longer than 1.
    reach = float(np.linalg.norm(model.weights)) or 1.0
    least, middle, most = -reach, model.cut, reach
    if probabilistic:
        least, most = (float(one) for one in model.probabilities(np.array([[-reach], [reach]]))[:, 1])
        middle = 0.5 if model.threshold is None else model.threshold
    if not least < middle:
        least = 0.0 if probabilistic else middle - reach
    if not middle < most:
        most = 1.0 if probabilistic else middle + reach
    edges = _edges if probabilistic else _even
    return Bins(groups, classes, probabilistic, edges(least, middle, half), edges(middle, most, half))


def _even(least: float, most: float, bins: int) -> tuple[float, ...]:
    return tuple(np.linspace(least, most, bins + 1).tolist())


def _edges(least: float, most: float, bins: int) -> tuple[float, ...]:
    """Edges of bins of probabilities, which are closer to each other near 0 and 1: even on the scale of arcsin sqrt p.

    >>> [round(edge, 3) for edge in _edges(0.0, 0.5, 4)]
    [0.0, 0.038, 0.146, 0.309, 0.5]
    """
    inside = np.sin(_even(math.asin(math.sqrt(least)), math.asin(math.sqrt(most)), bins)[1:-1]) ** 2
    return (least, *inside.tolist(), most)


def _half(rows: int, tables: int, noise: float) -> int:
    """Bins on either side: with the fewest errors of both kinds, about."""

    def error(half: int) -> float:
        return noise * math.sqrt(tables * half / 2.0) / max(rows, 1) + COARSENESS / (2.0 * half) ** 2

    return min(range(1, MOST_BINS + 1), key=error)


def _first(rows: int) -> str:
    return "the first row counts" if rows == 1 else f"the first {rows:,} rows count"


def digest_of_model(model: Model) -> str:
    """The digest by which an evaluation knows its model: of all of it but the threshold, which may be changed."""
    return digest(replace(model, threshold=None).to_dict())


def _categories(schema: Schema, by: str | None) -> tuple[str, ...]:
    """The names of the subgroups."""
    if by is None:
        return ("",)
    declared = [column for column in schema.columns if isinstance(column, Categorical)]
    column = next((one for one in declared if one.name == by), None)
    names = ", ".join(repr(one.name) for one in declared) or "none"
    if column is None or schema.projection is not None:
        raise ParameterError(
            f"by must be a categorical column of the model's schema, without a projection, got {by!r}",
            hint=f"the schema has {names}",
        )
    return (*(format_value(value) for value in column.categories), NO_GROUP)


def _record(score: Score | None) -> dict[str, float] | None:
    return None if score is None else {"value": score.value, "low": score.low, "high": score.high}


def _records(scores: Mapping[str, Score | None]) -> dict[str, dict[str, float] | None]:
    return {name: _record(score) for name, score in scores.items()}
