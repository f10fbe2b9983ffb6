from __future__ import annotations

from typing import Any

import click

from boltdp.cli import _options
from boltdp.cli._command_group import command
from boltdp.cli._help import GroupedCommand
from boltdp.cli._report import print_model_report
from boltdp.cli._terminal import show_bar
from boltdp.errors import ParameterError
from boltdp.model import Threshold
from boltdp.run_context import OnBadRow
from boltdp.workflows.train import train as train_model


@command(
    "boltdp train patients.csv --schema schema.toml --epsilon 1 -o model.json",
    "boltdp train 'visits-*.parquet' --schema schema.toml --epsilon 0.5 --delta 1e-6 -o model.json",
    "boltdp train visits/ --schema schema.toml --epsilon 1 -o model.json",
    "boltdp train --query \"SELECT * FROM 'visits.parquet' WHERE year < 2025\" --schema schema.toml --epsilon 1 "
    "-o model.json",
    "boltdp train hospital.duckdb --table visits --schema schema.toml --epsilon 1 -o model.json",
    "boltdp train postgresql://localhost/hospital --table patients --label outcome --epsilon 0.5 -o model.json",
    "boltdp train postgresql://localhost/shop --table diamonds --target price --epsilon 0.5 -o model.json",
    "boltdp train visits.csv --schema schema.toml --loss quantile --loss-parameter 0.9 --epsilon 1 -o model.json",
    "boltdp train visits.csv --schema schema.toml --inference --epsilon 1 -o model.json",
    "boltdp train 'local[*]' --table db.visits --schema schema.toml --epsilon 1 -o model.json",
    "boltdp train public.csv --schema schema.toml --noiseless -o baseline.json",
    cls=GroupedCommand,
)
@_options.make_release_options()
@click.option("--epsilon", type=float, help="The privacy budget: smaller is more private.")
@click.option("--noiseless", is_flag=True, help="Train without noise, and so without privacy, instead of --epsilon.")
@click.option("--in-server", is_flag=True, help="PostgreSQL: fail rather than let the rows leave the server.")
@click.option(
    "--on-bad-row",
    type=click.Choice(["neutral", "error"]),
    default="neutral",
    show_default=True,
    help="error: stop at a missing or undeclared value, for data that is not private.",
)
def train(
    *,
    data: _options.Data,
    output: str,
    overwrite: bool,
    epsilon: float | None,
    noiseless: bool,
    in_server: bool,
    on_bad_row: OnBadRow,
    threshold: Threshold | None,
    threads: int,
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
    none of those declared. A row without a declared class, or without a number where that is predicted, is ignored.
    """
    settings = _options.make_settings(epsilon=epsilon, noiseless=noiseless, chosen=chosen)
    schema = _options.load_and_check_schema(data, settings, threshold=threshold, output=output, overwrite=overwrite)
    if in_server and on_bad_row == "error":
        raise ParameterError("--on-bad-row error looks at the rows here, and must not be given with --in-server")
    with data.open(where="server" if in_server else "auto") as engine, show_bar() as bar:
        account = data.find_account()
        context = settings.context(on_bad_row=on_bad_row, progress=bar, threads=threads)
        model = train_model(engine, schema, settings, context=context, account=account)
    model = model.with_threshold(threshold)
    model.save(output)
    print_model_report(model, output, as_json=as_json, account=account)
