from __future__ import annotations

from contextlib import nullcontext

import click

from boltdp._files.outputs import write_text
from boltdp.cli._command_group import command
from boltdp.cli._options import Data, check_file_absent, file_option, ledger_options, source_options
from boltdp.cli._terminal import emit, note, show_bar, state_condition
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget


@command(
    "boltdp schema patients.parquet --label outcome -o schema.toml",
    "boltdp schema census.csv --label income --public",
    "boltdp schema diamonds.csv --target price --public",
    "boltdp schema patients.csv --label outcome --epsilon 0.3 --delta 1e-7 -o schema.toml",
    "boltdp schema postgresql://localhost/hospital --table patients --label outcome -o schema.toml",
)
@source_options
@click.option("--label", help="The column to predict, if it has classes.")
@click.option("--target", help="The column to predict, if it is a number.")
@click.option("--public", is_flag=True, help="Fill in the draft from the values, for non-sensitive data.")
@click.option("--epsilon", type=float, help="Infer bounds within this budget, which each model of the schema pays for.")
@click.option("--delta", type=float, default=0.0, show_default=True, help="Above 0: infer categories and classes too.")
@file_option("-o", "--output", metavar="TOML", help="Where to write the draft, instead of standard output.")
@ledger_options
def schema(*, data: Data, public: bool, epsilon: float | None, delta: float, output: str | None) -> None:
    """Draft a schema for SOURCE from the names and types of its columns.

    What a PostgreSQL database declares by enum types and CHECK constraints is filled in. Bounds, categories and
    classes that are not declared are left empty, to be completed from public knowledge: whatever is learned from
    private rows is not covered by the guarantee.

    With --epsilon they are inferred from the rows within the guarantee, by noisy counts: bounds of the middle 99 % of a
    column's numbers, or of what noise does not hide of them, and, with a --delta, the values of text columns and of the
    label that are frequent enough. The schema states what this has cost, and `boltdp train` subtracts it: its
    --epsilon is that of schema and model together.
    """
    from boltdp.run_context import Context
    from boltdp.workflows.draft_schema import draft_private_schema, draft_schema

    kind, name = data.resolve_target_name()
    if name is None:
        raise ParameterError("give --label or --target, the column to predict: --label has classes, --target numbers")
    if public and epsilon is not None:
        raise ParameterError("give either --public or --epsilon")
    if epsilon is None and delta:
        raise ParameterError("--delta must be given only with --epsilon")
    if epsilon is None and (data.ledger or data.dataset or data.blocks):
        raise ParameterError("--ledger, --dataset and --blocks must be given only with --epsilon")
    if output is not None:
        check_file_absent(output)
    with data.locate_csv_errors() if public else nullcontext(), data.open() as engine:
        if epsilon is None:
            text = draft_schema(engine, name, kind=kind, public=public)
        else:
            account, budget = data.find_account(), Budget(epsilon, delta)
            data.state_query_condition()
            if not delta:
                note("without --delta no categories and no classes can be inferred from the rows: they are left empty")
            with show_bar() as bar:
                context = Context(progress=bar)
                text = draft_private_schema(engine, name, budget, kind=kind, context=context, account=account)
            note(f"the draft has spent {budget.describe()}, which it states and every model trained with it pays for")
    if public:
        state_condition("the draft was filled in from the values, which must be public data")
    if output is None:
        emit(text, newline=False)
        return
    write_text(output, text)
    empty = any("[]" in line.partition("#")[0] for line in text.splitlines())
    task = "fill in what is empty from public knowledge" if empty else "drop what is not to be used"
    note(f"review {output}: {task}")
