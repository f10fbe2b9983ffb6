"""The label check: a noisy count of the rows of a training without a usable label, and the warning if there are many.

A class that is misspelt, or a column that has other values than the declared ones, leaves rows that training ignores.
Whether the check is made, and its cost, follow from public numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from boltdp.errors import ParameterError
from boltdp.kernel.unusable_label_count import UnusableLabelCount
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import BudgetedEvent
from boltdp.privacy.events.noisy_counts import (
    TAIL_PROBABILITY,
    NoisyClassCount,
    NoisyUnusableLabelCount,
    find_upper_quantile,
    make_noisy_unusable_label_count,
)
from boltdp.privacy.release_with_noise import Randomness, release_label_count
from boltdp.settings import Settings

if TYPE_CHECKING:
    from boltdp._array_types import PackedRows
    from boltdp.engines.prepared_rows import PreparedRows
    from boltdp.model import Model
    from boltdp.schema.schema import Schema

#: The share of rows without a usable label above which a warning is due.
NOTABLE_SHARE = 0.05
#: The estimated share above which nearly all rows are unusable.
OVERWHELMING_SHARE = 0.9
#: The check is made if the noise exceeds this share of the rows with a probability of at most TAIL_PROBABILITY.
MAX_NOISE_SHARE = 0.4
#: The smallest share of epsilon that can be asked for.
MIN_SHARE = 1e-6
#: The number of classes that a warning quotes.
MAX_QUOTED = 5


def plan_label_check(settings: Settings, schema: Schema, *, rows: int) -> tuple[Settings, BudgetedEvent | None]:
    """Plan the label check: return the settings with the remaining budget, and the event and its budget.

    The event is None if the check is switched off, if there is no budget, or if the rows are too few for its noise.
    """
    share, budget, person_rows = settings.label_check, settings.budget, schema.max_rows_per_person
    if share and not MIN_SHARE <= share < 1:
        raise ParameterError(f"label_check must be 0, or at least {MIN_SHARE:g} and below 1, got {share}")
    if budget is None or not share or rows < count_needed_rows(settings, schema):
        return settings, None
    taken = Budget(share * budget.epsilon)
    left = budget.subtract(taken)
    event = make_noisy_unusable_label_count(taken, person_rows=person_rows)
    return replace(settings, epsilon=left.epsilon), BudgetedEvent(taken, event)


def count_needed_rows(settings: Settings, schema: Schema) -> float:
    """Return the number of rows below which the label check is not made: its noise would hide what it looks for."""
    assert settings.epsilon is not None
    # The upper quantile of Laplace noise of scale 1 for one row; the budget may be too small to exist.
    tail = (schema.max_rows_per_person or 1) * -math.log(2 * TAIL_PROBABILITY)
    return tail / (MAX_NOISE_SHARE * settings.label_check * settings.epsilon)


def count_labels(
    prepared: PreparedRows,
    schema: Schema,
    event: NoisyUnusableLabelCount | None,
    certificate: Certificate,
    randomness: Randomness,
) -> float | None:
    """Release the noisy count of rows that `event` of the certificate states; None without an event.

    Rows are counted that have no usable label, or are not of the first class.
    """
    if event is None:
        return None
    neutral = None if schema.person_id is None else encode_neutral_row(schema)
    classes = 1 if isinstance(event, NoisyClassCount) else schema.target.class_count
    labels = UnusableLabelCount(cells=prepared.cells, classes=classes, neutral=neutral)
    prepared.add_to_sums([labels])
    return release_label_count(labels.count, event, certificate, randomness)


def encode_neutral_row(schema: Schema) -> PackedRows:
    """Return a packed row with only missing cells, like those that replace the rows beyond the limit per person."""
    import pyarrow as pa  # only here: plans do not need it

    from boltdp.encoding.encode import Encoder

    names = [*schema.training_sources]
    return Encoder(schema.encoding).encode(pa.RecordBatch.from_arrays([pa.nulls(1)] * len(names), names))


def describe_unusable_labels(model: Model) -> str | None:
    """Return a warning if a notable share of the rows had no usable label, beyond what noise explains; else None."""
    event, count, rows = model.certificate.unusable_label_count, model.unusable_labels, model.certificate.rows
    if event is None or count is None:
        return None
    if count - find_upper_quantile(event.noise, TAIL_PROBABILITY) <= NOTABLE_SHARE * rows:
        return None
    target, share, error = model.schema.target, min(count / rows, 1.0), event.noise.deviation / rows
    useless = "nearly all rows were ignored, so that the model is useless: "
    return (
        f"{useless if share > OVERWHELMING_SHARE else ''}about {share:.0%} (± {100 * error:.2g}%) of the {rows:,} "
        f"rows were ignored, since their {target.key} {target.column!r} is missing or "
        f"{target.describe_unusable_labels(MAX_QUOTED)}"
    )
