"""Draft a schema from private rows, within a budget: bounds by noisy counts of numbers, categories by those of values.

What is looked at, and what that costs, follows from names and types alone: `plan_draft`. Then the rows are scanned
twice. The first time numbers are counted in wide intervals, ten for each power of ten and sign, and values by what they
are; the second time numbers are counted in narrow intervals within the wide ones that were found.
What is made of the released counts costs nothing more.

Proof: noisy_counts.md 5
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from boltdp._arrays import Doubles, Integers
from boltdp._files.sealed import digest
from boltdp.context import Context
from boltdp.encoding.values import Matcher, Value
from boltdp.errors import DataError, ParameterError
from boltdp.privacy.accounting.charges import Release
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import BudgetedEvent, mark_non_private
from boltdp.privacy.events.noisy_counts import NoisyCounts, make_noisy_counts, upper_quantile
from boltdp.privacy.release import RandomBytes, release_counts, release_values

if TYPE_CHECKING:
    import pyarrow as pa

    from boltdp.engines.base import Engine
    from boltdp.ledger import Account
    from boltdp.schema.infer import Found
    from boltdp.schema.source_columns import ColumnType

#: The ends of wide intervals: a number beyond all of them is clipped to the last.
DIGITS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
ENDS: Doubles = np.array([float(f"{digit}e{power}") for power in range(-6, 15) for digit in DIGITS])
WIDE: Doubles = np.concatenate([-ENDS[::-1], [0.0], ENDS])
#: Narrow intervals between the bounds that the wide ones give, about.
NARROW = 100
#: Where the interval next to a bound has less than this part of what the one at it has, numbers lie on the bound.
LONELY = 0.25
#: The part of the numbers that may lie beyond each bound.
TAIL = 0.005
#: The probability that noise alone lets one of all intervals of a column stand out, or one of all runs of a length.
MISTAKEN = 1e-4
#: Deviations of noise that the numbers beyond a bound are not told from: those that sums of empty intervals, from one
#: end on, rarely reach anywhere, and those that a single sum rarely has.
BEARABLE, DEVIATIONS = 3.5, 2.0
#: Categories of a column, at most.
MOST_CATEGORIES = 100

SEEDED_DRAFT = "the noise in the draft of the schema came from a seed"
NOTHING = "nothing stood out of the noise"
NO_DELTA = "its values can be told only with a delta"
NO_NUMBERS = f"no numbers stood out of the noise, and {NO_DELTA}"
MOMENTS = "; timestamps are declared under [timestamp]"
ZEROS = "a guess: nearly all are 0, and noise hides the others"

Role = Literal["numbers", "values", "either"]


@dataclass(frozen=True)
class PlannedColumn:
    """A column that is looked at: once for its values, twice if they are, or may be, numbers."""

    name: str
    role: Role

    @property
    def releases(self) -> int:
        """How often it is counted."""
        return 1 if self.role == "values" else 2


@dataclass(frozen=True)
class DraftPlan:
    """What will be looked at, and all that this spends; from public facts alone."""

    budget: Budget
    event: NoisyCounts
    columns: tuple[PlannedColumn, ...]
    without_delta: tuple[str, ...]  #: columns that are not looked at, since there is no delta


def plan_draft(columns: Mapping[str, ColumnType], label: str, budget: Budget) -> DraftPlan:
    """How columns whose types alone tell neither bounds nor values are looked at within a budget. No row is read.

    >>> from boltdp.schema.source_columns import ColumnType
    >>> columns = {"age": ColumnType("number"), "ward": ColumnType("text"), "sick": ColumnType("bool")}
    >>> plan = plan_draft(columns, "sick", Budget(1.0, 1e-6))
    >>> [(column.name, column.role) for column in plan.columns], plan.event.releases
    ([('age', 'numbers'), ('ward', 'values')], 3)
    """
    from boltdp.schema.infer import LEFT_OUT, check_label, declared_column

    check_label(columns, label)
    if columns[label].kind in ("list", *LEFT_OUT):
        raise DataError(f"column {label!r} must have texts, numbers or booleans, its type is {columns[label].kind!r}")
    roles: dict[str, Role] = {}
    without_delta = []
    for name, column in columns.items():
        if name == label:
            declared = column.kind == "bool" or column.values is not None
        else:
            declared = column.kind in LEFT_OUT or column.key or declared_column(name, column) is not None
        if declared:
            continue
        if name == label or column.kind == "text":
            roles[name] = "values"
        else:
            roles[name] = "either" if column.kind == "untyped" else "numbers"
        if roles[name] == "values" and not budget.delta:
            without_delta.append(name)
            del roles[name]
    if not roles:
        raise ParameterError(
            "there is nothing to find from the rows for this budget: the types of the columns tell the rest",
            hint="without --epsilon the draft costs nothing; texts and classes can be told only with a --delta",
        )
    planned = tuple(PlannedColumn(name, role) for name, role in roles.items())
    unknown = sum(column.role != "numbers" for column in planned) if budget.delta else 0
    event = make_noisy_counts(budget, releases=sum(column.releases for column in planned), unknown=unknown)
    return DraftPlan(budget, event, planned, tuple(without_delta))


def draft_privately(
    engine: Engine,
    label: str,
    budget: Budget,
    *,
    context: Context | None = None,
    account: Account | None = None,
) -> str:
    """TOML text of a schema whose bounds, categories and classes were found within a budget, which it states.

    What does not stand out of the noise is left out, in a comment. `account` is what it is charged to, before a row is
    read.

    >>> import pyarrow as pa
    >>> from boltdp.schema.schema import Schema
    >>> from boltdp.engines import open_source
    >>> rows = pa.table({"age": np.arange(20_000) % 90, "sick": np.arange(20_000) % 3 == 0})
    >>> schema = Schema.from_toml(draft_privately(open_source(rows), "sick", Budget(1.0)))
    >>> schema.columns[0].low, 80 <= schema.columns[0].high <= 100, schema.spent.budget.epsilon
    (0.0, True, 1.0)
    """
    context = Context() if context is None else context
    plan = plan_draft(engine.columns(), label, budget)
    rows = engine.count()
    _check_rows(plan, rows)
    if account is None:
        return _drafted(engine, label, plan, rows, context)
    with account.charged(Release(plan.budget, plan.event), drawn=lambda: context.randomness.drawn) as reservation:
        text = _drafted(engine, label, plan, rows, context)
        reservation.commit(digest({"draft": text}))
    return text


def _drafted(engine: Engine, label: str, plan: DraftPlan, rows: int, context: Context) -> str:
    """The draft that was planned."""
    from boltdp.schema.infer import Found, write_draft

    columns = engine.columns()
    random_bytes = context.randomness.stream("draft")
    looks = {column.name: _Look(column.role, columns[column.name].kind, plan.event) for column in plan.columns}
    for batch in _scanned(engine, [*looks], context.at("counting", rows)):
        for name, look in looks.items():
            look.count(batch.column(name))
    for look in looks.values():
        look.release(random_bytes)
    again = {name: look for name, look in looks.items() if look.bounds is not None}
    for batch in _scanned(engine, [*again], context.at("counting again", rows)) if again else ():
        for name, look in again.items():
            look.count_narrowly(batch.column(name))
    found = {name: look.found(random_bytes, classes=name == label) for name, look in looks.items()}
    found |= {name: Found(nothing=NO_DELTA + ("" if name == label else MOMENTS)) for name in plan.without_delta}
    keys = {name: Found(nothing="a key") for name, column in columns.items() if column.key and name not in found}
    reasons = () if context.randomness.seed is None else (SEEDED_DRAFT,)
    spent = BudgetedEvent(plan.budget, mark_non_private(plan.event, reasons))
    comments = [
        f"Found from {rows:,} rows with {plan.budget.describe()}, by noisy counts of {len(plan.columns)} columns.",
        "Bounds are meant to hold the middle 99 % of a column's numbers. Noise can hide what is rare: each line says",
        "what part they hold at least, as far as can be seen through the noise. Values that are rare are not told.",
        "Whatever you know better from public knowledge, change: it costs nothing.",
    ]
    return write_draft(columns, label, {**keys, **found}, spent=spent, comments=comments)


class _Look:
    """The counts of one column, which are private until they are released."""

    def __init__(self, role: Role, kind: str, event: NoisyCounts) -> None:
        self._role, self._kind, self._event = role, kind, event
        self._wide: Integers = np.zeros(len(WIDE) + 1, np.int64)
        self._values: Counter[Value] = Counter()
        self._texts = 0
        self.bounds: tuple[float, float] | None = None  #: that the wide intervals give
        self._beyond = (math.inf, math.inf)  # numbers below and above these, at most about
        self._zeros = False
        self._told: dict[Value, float] = {}
        self._step, self._first = 1.0, 0
        self._narrow: Integers = np.zeros(0, np.int64)

    def count(self, cells: pa.Array) -> None:
        """Count the cells of one batch: each row once, by its number or by its value."""
        from boltdp.schema.cell_counts import numbers_and_texts, value_counts

        if self._role == "values":
            self._values.update(value_counts(cells))
            return
        numbers, texts = numbers_and_texts(cells, self._kind)
        self._wide += np.bincount(np.searchsorted(WIDE, numbers, side="right"), minlength=len(self._wide))
        if self._event.threshold is not None:
            self._values.update(texts)
        else:
            self._texts += texts.total()

    def release(self, random_bytes: RandomBytes) -> None:
        """Release what was counted, and decide by it whether and where numbers are."""
        event = self._event
        if event.threshold is not None:
            self._told = release_values(self._values, event, random_bytes)
        if self._role == "values":
            return
        *wide, texts = release_counts([*self._wide.tolist(), self._texts], event, random_bytes)
        counts = np.array(wide)
        present = standing_out(counts, event)
        if present is None or counts[present].sum() < max(texts, sum(self._told.values())):
            return
        low, high = WIDE[max(present.start - 1, 0)], WIDE[min(present.stop - 1, len(WIDE) - 1)]
        if max(-low, high) <= ENDS[0]:
            self._zeros = True
            return
        noise = event.noise.deviation
        self._beyond = at_most(counts[: present.start], noise=noise), at_most(counts[present.stop :], noise=noise)
        if self._kind == "list":
            low, high = -max(-low, high), max(-low, high)
        self.narrow((float(low), float(high)))

    def narrow(self, bounds: tuple[float, float]) -> None:
        """Count between these bounds the next time."""
        self.bounds, self._step = bounds, step_of(bounds[1] - bounds[0])
        self._first, last = self._nearest(np.array(bounds)).tolist()
        self._narrow = np.zeros(last - self._first + 1, np.int64)

    def count_narrowly(self, cells: pa.Array) -> None:
        """Count the numbers of one batch between the bounds, by the nearest multiple of a step."""
        from boltdp.schema.cell_counts import numbers_and_texts

        assert self.bounds is not None
        numbers, _ = numbers_and_texts(cells, self._kind)
        # Clipped first: a warning about a quotient that is too large would tell that there is such a number.
        nearest = self._nearest(np.clip(numbers, *self.bounds)) - self._first
        self._narrow += np.bincount(nearest, minlength=len(self._narrow))

    def _nearest(self, numbers: Doubles) -> Integers:
        """The multiples of the step that numbers are counted by."""
        return np.rint(numbers / self._step).astype(np.int64)

    def found(self, random_bytes: RandomBytes, *, classes: bool) -> Found:
        """What a draft says of the column, from released counts alone."""
        from boltdp.schema.infer import Found, in_order

        if self._zeros:
            return Found(bounds=(-1.0 if self._kind == "list" else 0.0, 1.0), remark=ZEROS)
        if self.bounds is None:
            values = in_order(different([*self._told]))
            if len(values) > classes:
                return Found(values=values)
            unseen = self._role != "numbers" and self._event.threshold is None
            texts = self._role != "numbers" and not classes
            return Found(nothing=(NO_NUMBERS if unseen else NOTHING) + (MOMENTS if texts else ""))
        counts = np.array(release_counts(self._narrow.tolist(), self._event, random_bytes))
        noise = self._event.noise.deviation
        first, last = middle(counts, noise=noise, alone=cutoff(self._event, intervals=len(counts)))
        if first == last:
            # All in one place, as far as can be seen: what the wide intervals could not exclude stays.
            first, last = 0, len(counts) - 1
        low, high = self.bounds
        # What lies beyond the wide bounds was counted in the first and the last interval.
        below, above = (
            min(at_most(end, noise=noise), beyond)
            for end, beyond in zip((counts[:1], counts[-1:]), self._beyond, strict=True)
        )
        if first > 0:
            low = max(low, self._at(first - wider(counts[first:])))
            below = at_most(counts[:first], noise=noise)
        if last < len(counts) - 1:
            high = min(high, self._at(last + wider(counts[last::-1])))
            above = at_most(counts[last + 1 :], noise=noise)
        if self._kind == "list":
            low, high = -max(-low, high), max(-low, high)
        inside = 1.0 - (below + above) / max(counts.sum(), 1.0)
        return Found(bounds=(low, high), remark=_part(inside))

    def _at(self, place: float) -> float:
        """Where a narrow interval is."""
        return float(f"{(self._first + place) * self._step:.12g}")


def standing_out(counts: Doubles, event: NoisyCounts) -> slice | None:
    """From the first to the last interval that stands out of the noise, alone or in a run with its neighbours.

    >>> event = make_noisy_counts(Budget(1.0), releases=2)
    >>> standing_out(np.array([0, 3, 90, 0, 5, 2]), event), standing_out(np.array([40.0] * 8), event)
    (slice(2, 3, None), slice(0, 8, None))
    """
    found: slice | None = None
    length = 1
    while length <= len(counts):
        enough = cutoff(event, intervals=len(counts), run=length)
        sums = np.convolve(counts, np.ones(length), mode="valid")
        while True:
            if found is not None:
                # A run with what was found already would say nothing of its other intervals.
                sums[max(found.start - length + 1, 0) : found.stop] = -np.inf
            best = int(np.argmax(sums))
            if not sums[best] > enough:
                break
            start, stop = best, best + length
            found = slice(start, stop) if found is None else slice(min(start, found.start), max(stop, found.stop))
        length *= 2
    return found


def cutoff(event: NoisyCounts, *, intervals: int, run: int = 1) -> float:
    """A noisy count, or sum of a run of them, that none of so many empty ones exceeds, but for a small probability.

    Of Laplace's noise s the sum of n is above s(2√(nL) + L) with a probability of at most exp(-L): its moment
    generating function is 1/(1 - s²t²)^n, of which the logarithm is at most ns²t²/(1 - st).

    >>> event = make_noisy_counts(Budget(1.0), releases=2)
    >>> round(cutoff(event, intervals=100), 1), round(cutoff(event, intervals=100, run=4), 1)
    (52.5, 114.7)
    """
    noise, probability = event.noise, MISTAKEN / intervals
    if run == 1 or noise.kind == "gaussian":
        return upper_quantile(noise, probability) * math.sqrt(run)
    rarity = -math.log(probability)
    return noise.scale * (2.0 * math.sqrt(run * rarity) + rarity)


def step_of(width: float) -> float:
    """The length of narrow intervals: 1, 2 or 5 times a power of ten.

    >>> step_of(100.0), step_of(90.0), step_of(0.7)
    (1.0, 1.0, 0.01)
    """
    least = width / NARROW
    power = math.floor(math.log10(least))
    return next(step for digit in ("1", "2", "5", "10") if (step := float(f"{digit}e{power}")) >= least * (1 - 1e-9))


def middle(counts: Doubles, *, noise: float, alone: float = math.inf) -> tuple[int, int]:
    """The first and the last interval of what is left when the tails, or what noise could be, are cut from both ends.

    A single count above `alone` is not noise.

    >>> middle(np.array([0, 1, 2000, 3000, -1, 0]), noise=1.0), middle(np.array([0, 0, 1000]), noise=1.0)
    ((2, 3), (2, 2))
    """
    allowed = TAIL * max(float(counts.sum()), 0.0)

    def cut(ordered: Doubles) -> int:
        sums = np.cumsum(ordered)
        bearable = np.maximum(allowed, BEARABLE * noise * np.sqrt(np.arange(1, len(sums) + 1)))
        kept = (sums > bearable) | (ordered > max(alone, allowed))
        return int(np.argmax(kept)) if kept.any() else 0

    return cut(counts), len(counts) - 1 - cut(counts[::-1])


def wider(counts: Doubles) -> float:
    """How far a bound is moved outwards from the multiple that numbers near it were rounded to, in steps.

    Not at all where the next interval inwards has few: then they are not spread but lie where they were counted.

    >>> wider(np.array([80.0, 90.0])), wider(np.array([800.0, 3.0]))
    (0.5, 0.0)
    """
    return 0.5 if counts[1] > LONELY * counts[0] else 0.0


def at_most(counts: Doubles, *, noise: float) -> float:
    """What is counted in some intervals together, and what noise may hide of it.

    >>> at_most(np.array([10.0, -2.0, 4.0, 4.0]), noise=1.0)
    20.0
    """
    return max(float(counts.sum()), 0.0) + DEVIATIONS * noise * math.sqrt(len(counts))


def _part(inside: float) -> str:
    return f"at least about {math.floor(100 * max(inside, 0.0)):d} % of the numbers"


def different(values: Sequence[Value]) -> list[Value]:
    """The first values that can be declared together: of two spellings of one the first, and not too many.

    >>> different(["1", "yes", "1.0", "true"])
    ['1', 'yes']
    """
    kept: list[Value] = []
    for value in values:
        try:
            Matcher.of([*kept, value])
        except ParameterError:
            continue
        kept.append(value)
        if len(kept) == MOST_CATEGORIES:
            break
    return kept


def _scanned(engine: Engine, names: Sequence[str], context: Context) -> Iterator[Any]:
    """All rows of some columns; how many were read is told, which is public."""
    done = 0
    for batch in engine.batches(names):
        yield batch
        done += batch.num_rows
        context.done(done)


def _check_rows(plan: DraftPlan, rows: int) -> None:
    """Refuse a budget so small that nothing could stand out, before a row is read: what is spent is not given back."""
    needed = max(plan.event.threshold or 0, cutoff(plan.event, intervals=len(WIDE) + 1))
    if needed * 2 > rows:
        raise ParameterError(
            f"{plan.budget.describe()}, divided among {len(plan.columns)} columns, must be more for {rows:,} rows: "
            f"what stands out of the noise is what {math.ceil(needed):,} of them have; nothing was spent",
            hint="give a larger epsilon, or the columns to use alone; without --epsilon the draft has names and types",
        )
