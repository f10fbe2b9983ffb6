"""Evaluate a model on rows: exactly, for non-sensitive data, or with noisy counts within a budget."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from boltdp._array_types import Doubles, PackedRows
from boltdp.errors import DataError
from boltdp.evaluation.evaluation import Evaluation, ExactEvaluation
from boltdp.evaluation.noisy_evaluation import NoisyEvaluation, digest_model, plan_bins
from boltdp.evaluation.statistics import list_group_names
from boltdp.privacy.accounting.spent_budget import Release
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import SEEDED, mark_non_private
from boltdp.privacy.events.noisy_counts import make_noisy_counts
from boltdp.privacy.release_with_noise import release_counts
from boltdp.run_context import Context

if TYPE_CHECKING:
    from boltdp.engines.base import Engine
    from boltdp.ledger import Account
    from boltdp.model import Model

#: The largest share of rows without a usable label for which there is no warning.
MAX_WITHOUT_LABEL = 0.1
#: Maximum number of classes in a message.
MAX_QUOTED = 20


def evaluate(model: Model, engine: Engine, *, by: str | None = None, context: Context | None = None) -> ExactEvaluation:
    """Evaluate `model` without noise on the rows of `engine`, which must have the label and not be sensitive.

    It raises a DataError if most rows have no usable label, since figures of the others would say little.
    `by` is a categorical column of the schema, for metrics of each of its categories.
    """
    from boltdp.engines.base import scan_rows  # imported late: reading a model needs no engine

    model = model.without_weight
    found = ExactEvaluation(model, by)
    place = None if by is None else model.schema.encoding.locate_cell(by)

    def score_rows(packed: PackedRows) -> tuple[PackedRows, Doubles, PackedRows | None]:
        return packed[:, 0].copy(), model.margins(packed), None if place is None else packed[:, place].copy()

    for labels, margins, codes in scan_rows(engine, model.schema, score_rows, context=context):
        found.add(labels, margins, codes)
    usable = found.rows - round(found.rows_without_label.value)
    if not usable or 2 * usable < found.rows:
        raise DataError(
            f"most rows must have a {found.statistics.usable_label} to compare with, "
            f"got {f'{usable:,}' if usable else 'none'} of {found.rows:,}",
            hint=f"check column {model.schema.label!r}: {_describe_used_labels(model)}",
        )
    return found


def describe_rows_without_label(model: Model, found: Evaluation) -> str | None:
    """Return a warning if a notable share of the rows has no usable label; of private rows, by released counts."""
    without = found.rows_without_label
    if without.low <= MAX_WITHOUT_LABEL * found.rows:
        return None
    return (
        f"{'' if found.is_exact else 'about '}{without.value:,.0f} of {found.rows:,} rows have no "
        f"{found.statistics.usable_label} in column {model.schema.label!r} and are left out: "
        f"{_describe_used_labels(model)}"
    )


def _describe_used_labels(model: Model) -> str:
    used = model.schema.target.describe_used_labels(MAX_QUOTED)
    return f"training uses {used}, and has ignored other labels too, if it was on rows like these"


def evaluate_privately(
    model: Model,
    engine: Engine,
    budget: Budget,
    *,
    by: str | None = None,
    context: Context | None = None,
    account: Account | None = None,
) -> NoisyEvaluation:
    """Evaluate `model` on the private rows of `engine`, which must have the label, within a budget.

    If the model protects persons, at most `max_rows_per_person` rows of each count, and the counts protect persons too.
    `by` is as for `evaluate`. `account` is charged before a row is read.
    """
    from boltdp.engines.base import check_columns, scan_rows
    from boltdp.engines.person_limit import check_person_id

    model, context = model.without_weight, replace(context or Context(), on_bad_row="neutral")
    groups = list_group_names(model.schema, by)
    check_columns(model.schema, engine.columns())
    check_person_id(model.schema, engine.columns(), context)
    rows = engine.count()
    event = make_noisy_counts(budget, releases=1, summed=True, person_rows=model.schema.max_rows_per_person)
    bins = plan_bins(model, rows=rows, groups=len(groups), noise=event.noise.deviation)
    spent = mark_non_private(event, () if context.randomness.seed is None else (SEEDED,))
    adjacency = Adjacency.from_person_rows(event.person_rows)

    def release_evaluation() -> NoisyEvaluation:
        place = None if by is None else model.schema.encoding.locate_cell(by)
        count = partial(bins.count_rows, model, group_cell=place)  # not a lambda: engines may pickle it
        counts, stage = np.zeros(bins.bin_count, np.int64), context.start_stage("counting", rows)
        for block in scan_rows(engine, model.schema, count, limited=True, context=context):
            counts += block
            stage.report_rows(int(counts.sum()))
        if counts.sum() != rows:
            raise DataError(f"the data must not change while it is read: it had {rows:,} rows before")
        noisy = release_counts(counts.tolist(), event, context.randomness.make_stream("evaluation"))
        return NoisyEvaluation(
            model=digest_model(model),
            rows=rows,
            by=by,
            groups=groups,
            bins=bins,
            counts=tuple(noisy),
            budget=budget,
            spent=spent,
            adjacency=adjacency,
        )

    if account is None:
        return release_evaluation()
    with account.reserve(Release(budget, spent, adjacency), drawn=lambda: context.randomness.drawn) as reservation:
        found = release_evaluation()
        reservation.commit_or_warn(found.seal()["digest"])
    return found
