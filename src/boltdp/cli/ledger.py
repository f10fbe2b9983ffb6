from __future__ import annotations

from typing import Any, get_args

import click

from boltdp.cli._command_group import command, format_examples
from boltdp.cli._options import json_option
from boltdp.cli._terminal import emit, emit_json, emit_table, state_condition, warn
from boltdp.ledger.entries import Entry
from boltdp.ledger.ledger import CONDITIONS, DatasetReport, open_ledger
from boltdp.privacy.accounting.spent_budget import CompositionRule, SpentBudget
from boltdp.privacy.budget import Budget
from boltdp.privacy.serialization import to_record

MAX_SHOWN_DIGEST = 19

ledger_argument = click.argument("ledger_address", metavar="LEDGER")


@click.group(
    epilog=format_examples(
        "boltdp ledger set-budget . patients.csv --epsilon 3 --delta 1e-6",
        "boltdp train patients.csv --schema schema.toml --epsilon 0.5 -o model.json",
        "boltdp ledger show .",
        "boltdp ledger check .",
    )
)
def ledger() -> None:
    """Keep the budget of a dataset: every release is charged before a row is read, or refused.

    LEDGER is a SQLite file, a directory (for .boltdp-ledger.db in it), or the URI of a PostgreSQL database. Whatever
    trains on a file beside such a ledger, or in such a database, is charged without being asked to.
    """


@command(
    "boltdp ledger set-budget . patients.csv --epsilon 3 --delta 1e-6",
    "boltdp ledger set-budget . visits --epsilon 1 --composition basic",
    "boltdp ledger set-budget postgresql://localhost/hospital patients --epsilon 3 --delta 1e-6 --writer trainer",
    name="set-budget",
    group=ledger,
)
@ledger_argument
@click.argument("dataset", metavar="DATASET")
@click.option("--epsilon", type=float, required=True, help="That all releases together may spend.")
@click.option("--delta", type=float, default=0.0, show_default=True, help="With 0 epsilons are added, by any rule.")
@click.option(
    "--composition",
    type=click.Choice(get_args(CompositionRule)),
    default="adaptive",
    show_default=True,
    help="How releases compose. adaptive: by sums or zCDP, however each is chosen by what earlier ones showed; curves: "
    "by their privacy profiles, for releases whose budgets and settings are not chosen so; basic: by sums alone.",
)
@click.option("--allow-not-private", is_flag=True, help="Allow releases that are not private, and record them.")
@click.option("--writer", "writers", metavar="ROLE", multiple=True, help="PostgreSQL: let a role append charges.")
def set_budget(
    ledger_address: str,
    dataset: str,
    *,
    epsilon: float,
    delta: float,
    composition: CompositionRule,
    allow_not_private: bool,
    writers: tuple[str, ...],
) -> None:
    """Set the budget of DATASET, or of each of its blocks; makes LEDGER if there is none.

    What was spent before stays spent. In PostgreSQL the role that makes the ledger owns it: nobody else may set a
    budget.
    """
    found, budget = open_ledger(ledger_address), Budget(epsilon, delta)
    found.set_budget(dataset, budget, composition=composition, allow_not_private=allow_not_private)
    for role in writers:
        found.allow(role)
    emit(f"{dataset}: a budget of {budget.describe()}, composition {composition}, in {found.address}")
    spent = found.spent(dataset).spent
    if spent.releases:
        emit(f"{dataset}: {spent.describe(budget)}")
    if composition in CONDITIONS:
        state_condition(CONDITIONS[composition])
    if allow_not_private:
        warn("releases that are not private are let through: then no budget holds for these rows")


@command("boltdp ledger show .", "boltdp ledger show postgresql://localhost/hospital --json", group=ledger)
@ledger_argument
@json_option
def show(ledger_address: str, *, as_json: bool) -> None:
    """Show what was spent of every budget in LEDGER."""
    found = open_ledger(ledger_address)
    reports = found.show(always_compose=True)
    if as_json:
        emit_json({"ledger": found.address, "datasets": [_make_budget_record(one) for one in reports]})
        return
    if not reports:
        emit("no budget was set")
        return
    lines = []
    for one in reports:
        lines.append(_format_spent(one.dataset, one, one.spent, unfinished=str(one.unfinished or "")))
        lines += [_format_spent(f"  {block}", one, spent, unfinished="") for block, spent in one.blocks.items()]
    emit_table(lines, header=("dataset", "releases", "epsilon", "delta", "by", "epsilon remaining", "of", "unfinished"))
    for one in reports:
        if one.spent.not_private:
            warn(f"{one.dataset}: {one.spent.not_private} releases were not private: no budget holds for its rows")


@command("boltdp ledger history . patients.csv", "boltdp ledger history . --json", group=ledger)
@ledger_argument
@click.argument("dataset", metavar="[DATASET]", required=False)
@json_option
def history(ledger_address: str, dataset: str | None, *, as_json: bool) -> None:
    """List the entries of LEDGER, or those about DATASET: who was charged what, when, and what was released."""
    found = open_ledger(ledger_address)
    entries = found.history(dataset)
    if as_json:
        emit_json({"ledger": found.address, "entries": [to_record(entry) for entry in entries]})
        return
    if not entries:
        emit("no entries")
        return
    header = ("entry", "when", "by", "dataset", "", "epsilon", "delta", "blocks", "what")
    emit_table([_format_entry(entry) for entry in entries], header=header)


@command("boltdp ledger check .", "boltdp ledger check postgresql://localhost/hospital", group=ledger)
@ledger_argument
@json_option
def check(ledger_address: str, *, as_json: bool) -> None:
    """Recompute every digest of LEDGER, and what each charge says it spends, from its events."""
    found = open_ledger(ledger_address)
    count = found.check()
    if as_json:
        emit_json({"ledger": found.address, "entries": count, "whole": True})
        return
    emit(f"{found.address}: {count:,} entries, each as it was written and in its place")


def _format_spent(name: str, report: DatasetReport, spent: SpentBudget, *, unfinished: str) -> tuple[str, ...]:
    budget = report.budget
    by = "basic" if spent.composed is None or spent.sums_fit(budget) else spent.rule
    amounts = (f"{spent.epsilon:.4g}", f"{spent.delta:.3g}", by, f"{spent.remaining:.3g}", budget.describe())
    return (name, str(spent.releases), *amounts, unfinished)


def _make_budget_record(report: DatasetReport) -> dict[str, Any]:
    return {
        "dataset": report.dataset,
        "epsilon": report.budget.epsilon,
        "delta": report.budget.delta,
        "composition": report.composition,
        "allow_not_private": report.not_private,
        "unfinished": report.unfinished,
        "spent": to_record(report.spent),
        "blocks": {block: to_record(spent) for block, spent in report.blocks.items()},
    }


def _format_entry(entry: Entry) -> tuple[str, ...]:
    epsilon, delta = ("", "") if entry.budget is None else (f"{entry.budget.epsilon:g}", f"{entry.budget.delta:g}")
    what = {
        "budget": f"composition {entry.composition}",
        "reserve": str(entry.event.get("kind", "")) if isinstance(entry.event, dict) else "",
        "release": f"entry {entry.reserved}: {(entry.released or '')[:MAX_SHOWN_DIGEST]}",
        "return": f"entry {entry.reserved}",
    }[entry.kind]
    blocks = ", ".join(entry.blocks)
    return (str(entry.number), entry.when, entry.by, entry.dataset, entry.kind, epsilon, delta, blocks, what)
