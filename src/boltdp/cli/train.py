"""`boltdp train`."""

from __future__ import annotations

from typing import Any, Literal

import click

from boltdp.cli._help import GroupedCommand
from boltdp.cli._options import (
    QUERY_CONDITION,
    check_output,
    json_option,
    ledger_options,
    load_schema,
    make_settings,
    model_options,
    open_account,
    settings_options,
    source_options,
    threads_option,
    training_options,
    training_threshold_option,
)
from boltdp.cli._report import report
from boltdp.cli._terminal import RowsBar, examples, state_condition
from boltdp.context import OnBadRow
from boltdp.engines import open_source
from boltdp.errors import ParameterError
from boltdp.model import Threshold
from boltdp.workflows.train import train as train_model


@click.command(
    cls=GroupedCommand,
    epilog=examples(
        "boltdp train patients.csv --schema schema.toml --epsilon 1 -o model.json",
        "boltdp train 'visits-*.parquet' --schema schema.toml --epsilon 0.5 --delta 1e-6 -o model.json",
        "boltdp train visits/ --schema schema.toml --epsilon 1 -o model.json",
        "boltdp train --query \"SELECT * FROM 'visits.parquet' WHERE year < 2025\" --schema schema.toml --epsilon 1 "
        "-o model.json",
        "boltdp train hospital.duckdb --table visits --schema schema.toml --epsilon 1 -o model.json",
        "boltdp train postgresql://localhost/hospital --table patients --label outcome --epsilon 0.5 -o model.json",
        "boltdp train 'local[*]' --table db.visits --schema schema.toml --epsilon 1 -o model.json",
        "boltdp train public.csv --schema schema.toml --noiseless -o baseline.json",
    ),
)
@source_options
@training_options
@model_options
@click.option("--epsilon", type=float, help="The privacy budget: smaller is more private.")
@click.option("--noiseless", is_flag=True, help="Train without noise, and so without privacy, instead of --epsilon.")
@click.option("--in-server", is_flag=True, help="PostgreSQL: fail rather than let the rows leave the server.")
@settings_options
@training_threshold_option
@click.option(
    "--on-bad-row",
    type=click.Choice(["neutral", "error"]),
    default="neutral",
    show_default=True,
    help="error: stop at a missing or undeclared value, for data that is not private.",
)
@threads_option
@ledger_options
@json_option
def train(
    source: str,
    *,
    table: str | None,
    query: str | None,
    schema_path: str | None,
    label: str | None,
    person_id: str | None,
    max_rows_per_person: int | None,
    output: str,
    overwrite: bool,
    epsilon: float | None,
    noiseless: bool,
    in_server: bool,
    spool: str | None,
    on_bad_row: OnBadRow,
    threshold: Threshold | None,
    threads: int | None,
    ledger: str | None,
    dataset: str | None,
    blocks: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Train a model on the rows of SOURCE: files, a directory or a pattern of them, a DuckDB file, PostgreSQL or Spark.

    Files are CSV (also separated by semicolons, tabs or bars), JSON lines, Parquet or Arrow, and are read in the order
    of their paths; directories named key=value add columns. s3://, gs:// and https:// need `boltdp[remote]`.
    A PostgreSQL database is given by its URI, and its rows stay in it, if it has the extension; see `boltdp postgres`.
    Spark is given by its address: local[*], spark://host:7077 or, for Spark Connect, sc://host:15002. Its rows stay
    there; files are tables too: --table 'parquet.`/data/visits`'.

    Everything that is not set is chosen from public numbers, before a row is read. A missing or undeclared value
    is neutral: a number counts as the middle of its bounds, or as the mean if columns are standardized; a category as
    none of those declared. A row without a declared class is ignored.
    """
    settings = make_settings(epsilon=epsilon, noiseless=noiseless, chosen=chosen)
    schema = load_schema(
        schema_path,
        source=source,
        table=table,
        query=query,
        label=label,
        person_id=person_id,
        max_rows_per_person=max_rows_per_person,
    )
    if threshold is not None:
        # Before a row is read: what a model costs is not given back.
        schema.target.resolve_threshold(threshold, settings.choose_loss(schema.target)[0])
    check_output(output, overwrite=overwrite)
    if query is not None and settings.epsilon is not None:
        state_condition(QUERY_CONDITION)
    if in_server and on_bad_row == "error":
        raise ParameterError("--on-bad-row error looks at the rows here, and must not be given with --in-server")
    where: Literal["auto", "server"] = "server" if in_server else "auto"
    with open_source(source, table=table, query=query, spool=spool, where=where) as engine, RowsBar() as bar:
        account = open_account(source, table=table, query=query, ledger=ledger, dataset=dataset, blocks=blocks)
        context = settings.context(on_bad_row=on_bad_row, progress=bar, threads=threads)
        model = train_model(engine, schema, settings, context=context, account=account)
    model = model.with_threshold(threshold)
    model.save(output)
    report(model, output, as_json=as_json, account=account)
