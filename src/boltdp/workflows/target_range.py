"""The range of a target that is a number: two of its quantiles, chosen privately, by which its values are scaled.

Declared bounds are often much wider than most values. Whether the range is found, and its cost, follow from public
numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import BudgetedEvent
from boltdp.privacy.events.label_quantiles import find_exact_quantiles, make_label_quantiles
from boltdp.privacy.release_with_noise import Randomness, release_label_quantiles

if TYPE_CHECKING:
    from boltdp._array_types import Integers
    from boltdp.privacy.certificate import Certificate
    from boltdp.schema.schema import Schema
    from boltdp.settings import Settings

#: The bins of the labels between the bounds, which are those to choose from.
BINS = 4096
#: The percentiles that are the range.
PERCENTILES = (10, 90)
#: The smallest and the largest share of epsilon for the range.
SHARES = (0.02, 0.3)
#: The desired exponent of a bin beyond all labels: its probability is that of the best bin times exp(-12).
EXPONENT = 12.0


def plan_target_range(settings: Settings, schema: Schema, *, rows: int) -> tuple[Settings, BudgetedEvent | None]:
    """Plan the range of the target: return the settings with the remaining budget, and the event and its budget.

    The event is None if there is no budget, or if the loss needs no range, or has a declared one.
    """
    budget, person_rows = settings.budget, schema.max_rows_per_person
    if schema.target != schema.target.without_range():
        raise ParameterError(
            "the schema must not have a typical range that was found privately: it was paid for by another model",
            hint="remove typical and typical_source, or declare what is known without looking at the data",
        )
    if budget is None or not schema.target.needs_range(settings.choose_loss(schema.target)[0]):
        return settings, None
    taken = Budget(budget.epsilon * choose_quantile_share(budget.epsilon, rows=rows, person_rows=person_rows))
    event = make_label_quantiles(taken, bins=BINS, percentiles=PERCENTILES, person_rows=person_rows)
    return replace(settings, epsilon=budget.subtract(taken).epsilon), BudgetedEvent(taken, event)


def choose_quantile_share(epsilon: float, *, rows: int, person_rows: int | None = None) -> float:
    """Return the share of epsilon with which bins beyond all labels are unlikely, within `SHARES`.

    Unless the largest share is too small for that, the expected rank error of each quantile is below 5 % of the rows.

    >>> choose_quantile_share(1.0, rows=10_000)
    0.048

    Proof: label_quantiles.md 4
    """
    outside = min(min(percentile, 100 - percentile) for percentile in PERCENTILES) / 100 * max(rows, 1)
    needed = len(PERCENTILES) * EXPONENT * 2 * (person_rows or 1) / outside
    least, most = SHARES
    return min(max(needed / epsilon, least), most)


def apply_label_quantiles(counts: Integers, schema: Schema, certificate: Certificate, randomness: Randomness) -> Schema:
    """Choose the range from the counts of a `LabelHistogram`, and return the schema whose target has it.

    In a training without noise the range is exact.
    """
    event = certificate.label_quantiles
    if event is None and certificate.budget is not None:
        raise ParameterError("the range of the target must be found only if the certificate states it, and it does not")
    if event is None:
        ends = find_exact_quantiles(counts, PERCENTILES)
    else:
        ends = release_label_quantiles(counts, event, randomness)
    # The choices are independent, and may be in any order.
    target = schema.target.with_range(min(ends), max(ends), "exact" if event is None else "private")
    return replace(schema, target=target)
