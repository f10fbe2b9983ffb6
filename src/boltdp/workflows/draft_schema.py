"""Summarize the rows of an engine: to draft a schema for them, within a budget if they are private, or to check one.

The counts of private rows, and their cost, depend on names and types alone: `plan_private_draft`. Post-processing of
the released counts costs nothing.

Proof: noisy_counts.md 5
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boltdp._files.sealed import compute_digest
from boltdp.engines import use_source
from boltdp.engines.base import Engine
from boltdp.errors import DataError, ParameterError
from boltdp.ledger import Account
from boltdp.privacy.accounting.spent_budget import Release
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import BudgetedEvent, Event, mark_non_private
from boltdp.privacy.events.noisy_counts import NoisyCounts, make_noisy_counts
from boltdp.run_context import Context
from boltdp.schema import infer
from boltdp.schema.check import CheckReport, check_source
from boltdp.schema.noisy_summary import WIDE_EDGES, CountedCells, PrivateCounts, compute_significance_threshold
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType, OpenColumns
from boltdp.schema.summary import Summary, scan_rows
from boltdp.schema.target import Classes, Target

SEEDED_DRAFT = "the noise in the draft of the schema came from a seed"


def check(
    source: Any, schema: Schema | str | Path, *, table: str | None = None, query: str | None = None
) -> CheckReport:
    """Compare non-sensitive rows, such as a sample or last year's public file, with `schema`.

    `source` is an engine, or a source for `open_source`; `schema` may be the name of a TOML file. The report is
    computed without noise: it is not private.
    """
    declared = Schema.from_any(schema)
    with use_source(source, table=table, query=query) as engine:
        return check_source(engine, declared)


def draft_schema(engine: Engine, label: str, *, kind: type[Target] = Classes, public: bool = False) -> str:
    """Return TOML text of a schema for the rows, to be completed by hand before it can be loaded.

    `kind` is that of the target. Only names, types and declared constraints of columns are read. With `public=True`,
    for non-sensitive data, bounds, categories and classes are taken from the values.
    """
    columns = engine.list_columns()
    infer.check_label(columns, label, public=public)
    names = [name for name, column in columns.items() if column.kind not in infer.NO_FEATURES] if public else []
    summaries = {name: Summary() for name in names}
    for batch in scan_rows(engine, names):
        for name, summary in summaries.items():
            summary.add(batch.column(name))
    if kind.numeric and label in summaries:
        scanned = scan_rows(engine, [label], parse={label: "number"})
        summaries[label].set_typical_range(batch.column(label) for batch in scanned)
    return infer.write_draft(columns, kind, label, summaries)


@dataclass(frozen=True)
class PrivateDraftPlan:
    """The counts of private rows to release, and their event and budget."""

    budget: Budget
    event: NoisyCounts
    counted: dict[str, CountedCells]  #: what is counted, by column
    without_delta: tuple[str, ...]  #: columns that are not counted because they need a delta


def plan_private_draft(
    columns: Mapping[str, ColumnType], label: str, budget: Budget, *, kind: type[Target] = Classes
) -> PrivateDraftPlan:
    """Plan the noisy counts, within a budget, that a draft needs of columns without declared bounds or values."""
    if isinstance(columns, OpenColumns):
        raise ParameterError(
            "the columns of a private draft must be declared, and JSON lines have only the keys of each row",
            hint="declare them in a schema, or convert the rows to CSV or Parquet",
        )
    infer.check_label(columns, label)
    unfit = ("list", *infer.NO_FEATURES, *(("text", "bool") if kind.numeric else ()))
    if columns[label].kind in unfit:
        what = "numbers" if kind.numeric else "texts, numbers or booleans"
        raise DataError(f"column {label!r} must have {what}, its type is {columns[label].kind!r}")
    counted: dict[str, CountedCells] = {}
    without_delta = []
    for name, column in columns.items():
        if name == label:
            declared = kind.from_type(name, column) is not None
        else:
            declared = column.kind in infer.NO_FEATURES or column.key or infer.derive_column(name, column) is not None
        if declared:
            continue
        if column.kind != "text" and (name != label or kind.numeric):
            counted[name] = "either" if column.kind == "untyped" else "numbers"
        elif budget.delta:
            counted[name] = "values"
        else:
            without_delta.append(name)
    if not counted:
        raise ParameterError(
            "there is nothing to find from the rows for this budget: the types of the columns give the rest",
            hint="without --epsilon the draft costs nothing; texts and classes can be released only with a --delta",
        )
    # Values are counted once; numbers and untyped cells twice.
    releases = sum(1 if what == "values" else 2 for what in counted.values())
    unknown = sum(what != "numbers" for what in counted.values()) if budget.delta else 0
    event = make_noisy_counts(budget, releases=releases, unknown=unknown)
    return PrivateDraftPlan(budget, event, counted, tuple(without_delta))


def draft_private_schema(
    engine: Engine,
    label: str,
    budget: Budget,
    *,
    kind: type[Target] = Classes,
    context: Context | None = None,
    account: Account | None = None,
) -> str:
    """Return TOML text of a schema with privately found bounds, categories and classes, and with their cost.

    Columns whose counts are not significant are commented out. `account` is charged before a row is read.
    """
    context = Context() if context is None else context
    plan = plan_private_draft(engine.columns(), label, budget, kind=kind)
    rows = engine.count()
    needed = max(plan.event.threshold or 0, compute_significance_threshold(plan.event, intervals=len(WIDE_EDGES) + 1))
    if needed * 2 > rows:
        raise ParameterError(
            f"{budget.describe()}, divided among {len(plan.counted)} columns, must be more for {rows:,} rows: "
            f"only what {math.ceil(needed):,} of them have stands out of the noise; nothing was spent",
            hint="give a larger epsilon, or the columns to use alone; without --epsilon the draft has names and types",
        )
    reasons = () if context.randomness.seed is None else (SEEDED_DRAFT,)
    event = mark_non_private(plan.event, reasons)
    if account is None:
        return _run_draft_plan(engine, kind, label, plan, event, context, rows=rows)
    with account.reserve(Release(plan.budget, event), drawn=lambda: context.randomness.drawn) as reservation:
        text = _run_draft_plan(engine, kind, label, plan, event, context, rows=rows)
        reservation.commit_or_warn(compute_digest({"draft": text}))
    return text


def _run_draft_plan(
    engine: Engine,
    kind: type[Target],
    label: str,
    plan: PrivateDraftPlan,
    event: Event,
    context: Context,
    *,
    rows: int,
) -> str:
    """Count the rows as planned, release the counts with noise, and return the TOML text of the schema."""
    columns = engine.columns()
    random_bytes = context.randomness.make_stream("draft")
    counts = {name: PrivateCounts(what, columns[name].kind, plan.event) for name, what in plan.counted.items()}
    for batch in scan_rows(engine, [*counts], progress=context.start_stage("counting", rows).report_rows):
        for name, column in counts.items():
            column.add_cells(batch.column(name))
    for column in counts.values():
        column.release(random_bytes)
    again = {name: column for name, column in counts.items() if column.narrow is not None}
    for batch in scan_rows(engine, [*again], progress=context.start_stage("counting again", rows).report_rows):
        for name, column in again.items():
            column.add_cells_to_narrow_intervals(batch.column(name))
    summaries = {name: column.summarize(random_bytes) for name, column in counts.items()}
    unused = {name: "a key" for name, column in columns.items() if column.key}
    unused |= {name: infer.NEEDS_DELTA + ("" if name == label else infer.TIMESTAMPS) for name in plan.without_delta}
    spent = BudgetedEvent(plan.budget, event)
    comments = [
        f"Inferred from {rows:,} rows with {plan.budget.describe()}, by noisy counts of {len(counts)} columns.",
        "Bounds are meant to hold the middle 99 % of a column's numbers. Noise can hide what is rare: each line says",
        "what share they hold at least, as far as can be seen through the noise. Rare values are not released.",
        "Whatever you know better from public knowledge, change: it costs nothing.",
    ]
    return infer.write_draft(columns, kind, label, summaries, unused=unused, spent=spent, comments=comments)
