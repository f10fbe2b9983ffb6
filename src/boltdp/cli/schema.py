"""`boltdp schema` and `boltdp synth`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boltdp._files import OutputError, check_writable, replacing
from boltdp.cli._options import (
    FILE,
    as_json,
    charged_account,
    ledger_options,
    quiet,
    source_options,
    telling_csv_fault,
)
from boltdp.cli._terminal import RowsBar, emit, emit_json, examples, note
from boltdp.engines import POSTGRES, open_source
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.schema.schema import Schema
from boltdp.workflows.synthesize import TABLE, synthesize

if TYPE_CHECKING:
    from boltdp.engines.base import Engine
    from boltdp.ledger import Account


@click.command(
    epilog=examples(
        "boltdp schema patients.parquet --label outcome -o schema.toml",
        "boltdp schema census.csv --label income --public",
        "boltdp schema patients.csv --label outcome --epsilon 0.3 --delta 1e-7 -o schema.toml",
        "boltdp schema postgresql://localhost/hospital --table patients --label outcome -o schema.toml",
    )
)
@source_options
@click.option("--label", required=True, help="The column to predict.")
@click.option("--public", is_flag=True, help="Look at the values, for data that is no secret, to fill in the draft.")
@click.option("--epsilon", type=float, help="Find bounds within this budget, which each model of the schema pays for.")
@click.option("--delta", type=float, default=0.0, show_default=True, help="Above 0: find categories and classes too.")
@click.option("-o", "--output", metavar="TOML", type=FILE, help="Where to write the draft, instead of standard output.")
@ledger_options
@quiet
def schema(
    source: str,
    *,
    table: str | None,
    query: str | None,
    label: str,
    public: bool,
    epsilon: float | None,
    delta: float,
    output: str | None,
    ledger: str | None,
    dataset: str | None,
    blocks: str | None,
    quiet: bool,
) -> None:
    """Draft a schema for SOURCE from the names and types of its columns.

    What a PostgreSQL database declares by enum types and CHECK constraints is filled in. What only the values could
    tell (bounds, categories, classes) is left empty, to be completed from what is publicly known: whatever is
    learned from private rows is not covered by the promise.

    With --epsilon the rows are looked at within the promise, by noisy counts: bounds of the middle 99 % of a column's
    numbers, or of what noise does not hide of them, and, with a --delta, the values of text columns and of the label
    that are frequent enough. The schema states what this has cost, and `boltdp train` adds it up: its --epsilon is that
    of schema and model together.
    """
    from boltdp.workflows.summarize import draft_schema

    if public and epsilon is not None:
        raise ParameterError("give either --public or --epsilon")
    if epsilon is None and delta:
        raise ParameterError("--delta must be given only with --epsilon")
    if epsilon is None and (ledger or dataset or blocks):
        raise ParameterError("--ledger, --dataset and --blocks must be given only with --epsilon")
    if output is not None:
        _refuse_existing(output)
        check_writable(output)
    told = telling_csv_fault(source, query) if public else nullcontext()
    with told, open_source(source, table=table, query=query) as engine:
        if epsilon is None:
            text = draft_schema(engine, label, public=public)
        else:
            account = charged_account(source, table=table, query=query, ledger=ledger, dataset=dataset, blocks=blocks)
            text = _drafted(engine, label, Budget(epsilon, delta), query=query, quiet=quiet, account=account)
    if public:
        note("the draft was filled in from the values, which is safe only if they are public")
    if output is None:
        emit(text, newline=False)
        return
    with replacing(output) as aside:
        aside.write_text(text, "utf-8")
    empty = any("[]" in line.partition("#")[0] for line in text.splitlines())
    what = (
        "what is empty is to be filled in from what is publicly known" if empty else "and drop what is not to be used"
    )
    note(f"look through {output}{':' if empty else ','} {what}")


def _drafted(
    engine: Engine, label: str, budget: Budget, *, query: str | None, quiet: bool, account: Account | None
) -> str:
    """A draft from private rows, and what must be said of it."""
    from boltdp.cli._options import QUERY_PROMISE
    from boltdp.context import Context
    from boltdp.workflows.summarize import draft_private_schema

    if query is not None:
        note(QUERY_PROMISE)
    if not budget.delta:
        note("without --delta no category and no class can be found from the rows: they are left empty")
    with RowsBar(quiet=quiet) as bar:
        text = draft_private_schema(engine, label, budget, context=Context(progress=bar), account=account)
    note(
        f"the rows were looked at for {budget.describe()}, which the draft states and every model trained with it pays"
    )
    return text


@click.command(
    epilog=examples(
        "boltdp synth rows.parquet --rows 1000000 --dims 50 --schema rows.toml",
        "boltdp synth rows.duckdb --rows 60000 --dims 20 --classes 10 --seed 1",
        "boltdp synth postgresql://localhost/db --table patients --rows 60000 --dims 20",
    ),
)
@click.argument("output", type=FILE)
@click.option("--rows", type=int, required=True)
@click.option("--dims", type=int, required=True, help="Features of a row.")
@click.option("--classes", type=int, default=2, show_default=True)
@click.option(
    "--separation", type=float, default=1.5, show_default=True, help="How far apart the classes are: 0 is not at all."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--table", metavar="NAME", default=TABLE, show_default=True, help="Table of the database to make.")
@click.option("--schema", "schema_path", metavar="TOML", type=FILE, help="Also write the schema that fits the data.")
@as_json
@quiet
def synth(
    output: str,
    *,
    rows: int,
    dims: int,
    classes: int,
    separation: float,
    seed: int,
    table: str,
    schema_path: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write synthetic rows to OUTPUT: a .parquet file, a new .duckdb file, or a PostgreSQL database by its URI."""
    is_file = not output.startswith(POSTGRES)
    for path in (output if is_file else None, schema_path):
        if path is not None:
            _refuse_existing(path)
            check_writable(path)
    try:
        with RowsBar(quiet=quiet) as bar:
            made = _synthesizer(output)(
                output,
                rows=rows,
                dims=dims,
                classes=classes,
                separation=separation,
                seed=seed,
                table=table,
                progress=lambda done: bar("writing", done, rows),
            )
    except BaseException:
        # It did not exist before, so what is there now is a part of ours.
        if is_file:
            Path(output).unlink(missing_ok=True)
        raise
    if schema_path is not None:
        with replacing(schema_path) as aside:
            made.save(aside)
    if as_json:
        emit_json({"output": output, "rows": rows, "dims": dims, "classes": classes, "schema": schema_path})
    else:
        emit(f"{output}: {rows:,} rows of {dims} features, {classes} classes")


def _synthesizer(output: str) -> Callable[..., Schema]:
    if not output.startswith(POSTGRES):
        return synthesize
    from boltdp.engines.postgres.copy_rows import synthesize_table  # only here: psycopg is optional

    return synthesize_table


def _refuse_existing(path: str) -> None:
    if Path(path).exists():
        raise OutputError(f"the file {path!r} exists already", hint="choose another name, or remove it first")
