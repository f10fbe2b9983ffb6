"""`boltdp train` and `boltdp plan`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import click

from boltdp.algorithms import get_algorithm
from boltdp.algorithms._base import main_noise, noise_per_weight
from boltdp.cli._help import Grouped
from boltdp.cli._options import (
    FILE,
    QUERY_PROMISE,
    algorithm_option,
    as_json,
    charged_account,
    check_output,
    ledger_line,
    ledger_options,
    load_schema,
    make_settings,
    max_rows_option,
    model_options,
    quiet,
    remind_of_classes,
    settings_options,
    source_options,
    threads_option,
    training_options,
    training_threshold,
    with_people,
)
from boltdp.cli._terminal import RowsBar, emit, emit_json, emit_promise, emit_table, examples, note
from boltdp.context import OnBadRow
from boltdp.engines import open_source
from boltdp.errors import ParameterError
from boltdp.ledger.ledger import Account
from boltdp.model import Model, Threshold, checked_threshold
from boltdp.privacy.certificate import Certificate
from boltdp.schema.schema import Numeric, Schema, check_size
from boltdp.schema.values import spellings
from boltdp.workflows.plan import make_plan
from boltdp.workflows.standardize import describe_moments
from boltdp.workflows.train import train as train_model

#: The budgets that `plan` shows beside the one asked for.
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)

#: Of more columns with curves than these, not all are named.
SHOWN_CURVES = 5


@click.command(
    cls=Grouped,
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
@algorithm_option
@settings_options
@training_threshold
@click.option(
    "--on-bad-row",
    type=click.Choice(["neutral", "error"]),
    default="neutral",
    show_default=True,
    help="error: stop at a missing or undeclared value, for data that is not private.",
)
@threads_option
@ledger_options
@as_json
@quiet
def train(
    source: str,
    *,
    table: str | None,
    query: str | None,
    schema_path: str | None,
    label: str | None,
    unit: str | None,
    max_rows: int | None,
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
    quiet: bool,
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
    none of those declared. A row without a declared class teaches nothing.
    """
    settings = make_settings(epsilon=epsilon, noiseless=noiseless, chosen=chosen)
    schema = load_schema(
        schema_path, source=source, table=table, query=query, label=label, unit=unit, max_rows=max_rows
    )
    if threshold is not None:
        # Before a row is read: what a model costs is not given back.
        checked_threshold(threshold, schema, settings.losses(len(schema.classes))[0])
    check_output(output, overwrite=overwrite)
    if query is not None and settings.epsilon is not None:
        note(QUERY_PROMISE)
    if in_server and on_bad_row == "error":
        raise ParameterError("--on-bad-row error looks at the rows here, and must not be given with --in-server")
    where: Literal["auto", "server"] = "server" if in_server else "auto"
    with open_source(source, table=table, query=query, spool=spool, where=where) as engine, RowsBar(quiet=quiet) as bar:
        account = charged_account(source, table=table, query=query, ledger=ledger, dataset=dataset, blocks=blocks)
        context = settings.context(on_bad_row=on_bad_row, progress=bar, threads=threads)
        model = train_model(engine, schema, settings, context=context, account=account)
    model = model.with_threshold(threshold)
    model.save(output)
    report(model, output, as_json=as_json, account=account)


def report(model: Model, output: str, *, as_json: bool, account: Account | None = None) -> None:
    """Print what a new model promises, what that costs, and where it is."""
    remind_of_classes(model.schema)
    certificate = model.certificate
    if as_json:
        cost = {"noise_per_weight": noise_per_weight(certificate)}
        told: dict[str, Any] = {"model": output, "promise": certificate.promise(), "where": model.trained_where}
        if model.threshold is not None:
            told["threshold"] = model.threshold
        if account is not None:
            told["ledger"] = account.ledger.address
            told["dataset"] = account.dataset
        emit_json({**told, **cost, **certificate.to_dict()})
        return
    emit_promise(certificate.promise(), private=certificate.private)
    selection, algorithm = certificate.selection, get_algorithm(certificate.algorithm)
    emit_table(
        [
            *algorithm.cost(certificate),
            *persons(certificate),
            *spent_before(certificate),
            *_curves(model.schema),
            *([] if selection is None else [("chosen", selection.describe())]),
            ("training", algorithm.trained(certificate)),
            *([] if model.trained_where is None else [("rows", model.trained_where)]),
            *decision(model),
            *ledger_line(account),
            ("model", f"{output}: {model.weights.size:,} weights for {len(model.classes)} classes"),
        ]
    )


def decision(model: Model) -> list[tuple[str, str]]:
    """By which threshold it decides, if it has one."""
    if model.threshold is None:
        return []
    second = spellings(model.classes[1])[0]
    return [("threshold", f"{second!r} where its probability exceeds {model.threshold:g}; this costs no privacy")]


@click.command(
    cls=Grouped,
    epilog=examples(
        "boltdp plan --rows 60000 --features 51 --classes 10 --epsilon 0.5",
        "boltdp plan --rows 20190 --schema schema.toml --epsilon 1 --delta 1e-6",
    ),
)
@click.option("--rows", type=int, required=True, help="How many rows there are.")
@click.option("--features", type=int, help="Numbers in an encoded row, with the constant one for the intercept.")
@click.option("--classes", type=int, default=2, show_default=True)
@click.option(
    "--schema", "schema_path", metavar="TOML", type=FILE, help="A schema, instead of --features and --classes."
)
@max_rows_option
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The privacy budget.")
@algorithm_option
@settings_options
@as_json
def plan(
    *,
    rows: int,
    features: int | None,
    classes: int,
    schema_path: str | None,
    max_rows: int | None,
    epsilon: float,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Tell how much noise the weights will carry, and which settings will be used, without seeing data."""
    schema = public_schema(schema_path, features=features, classes=classes)
    if max_rows is not None:
        schema = with_people(schema, unit=schema.unit or "unit", max_rows=max_rows)
    settings = make_settings(epsilon=epsilon, noiseless=False, chosen=chosen)
    cost = 0.0 if schema.spent is None or schema.spent.budget is None else schema.spent.budget.epsilon
    dims = None if schema_path is not None else features
    plans = {
        budget: make_plan(schema, rows, replace(settings, epsilon=budget), dims=dims)
        for budget in (epsilon, *(other for other in EPSILONS if other > cost))
    }
    certificate = plans[epsilon].certificate
    by_epsilon = [_forecast(plans[budget].certificate) for budget in sorted(plans)]
    if as_json:
        emit_json({**certificate.to_dict(), **_forecast(certificate), "by_epsilon": by_epsilon})
        return
    emit_promise(certificate.promise(planned=True), private=certificate.private)
    algorithm = get_algorithm(certificate.algorithm)
    emit_table(
        [
            *algorithm.cost(certificate),
            *persons(certificate),
            *spent_before(certificate),
            *_curves(plans[epsilon].schema),
            *algorithm.choices(certificate, settings),
        ]
    )
    emit("")
    lines = [(f"{one['epsilon']:g}", one["noise"], *algorithm.forecast_line(one)) for one in by_epsilon]
    emit_table(lines, header=algorithm.headings, numbers=True)
    emit(f"\n{algorithm.explanation}")


def public_schema(path: str | None, *, features: int | None, classes: int) -> Schema:
    """The schema of --schema, or one of as many columns of numbers as --features says."""
    if path is not None and features is None:
        return Schema.load(path)
    if features is None or path is not None:
        raise ParameterError("give either --features or --schema")
    if classes < 2:
        raise ParameterError(f"classes must be >= 2, got {classes}")
    check_size(features=features, classes=classes)
    # Columns of numbers: what standardizing costs depends on how many there are.
    columns = tuple(Numeric(f"feature {i}", -1, 1) for i in range(max(features - 1, 1)))
    return Schema("label", tuple(range(classes)), columns)


def _forecast(certificate: Certificate) -> dict[str, Any]:
    assert certificate.budget is not None
    noise = {"epsilon": certificate.budget.epsilon, "noise": main_noise(certificate).kind}
    return {**noise, **get_algorithm(certificate.algorithm).forecast(certificate)}


def persons(certificate: Certificate) -> list[tuple[str, str]]:
    """How many rows of a person count, if the promise is about persons."""
    if certificate.person_rows is None:
        return []
    count = "row of each counts" if certificate.person_rows == 1 else "rows of each count"
    return [("persons", f"the first {certificate.person_rows:,} {count}, and others are read as empty ones")]


def spent_before(certificate: Certificate) -> list[tuple[str, str]]:
    """What was spent before training, if anything was."""
    draft = certificate.draft
    drafted = (
        [] if draft is None or draft.budget is None else [("schema", f"found privately, for {draft.budget.describe()}")]
    )
    return [*drafted, *(("standardizing", text) for text in describe_moments(certificate))]


def _curves(schema: Schema) -> list[tuple[str, str]]:
    """Which numbers have curves, if any have."""
    steps = {
        column.name: len(column.curve) for column in schema.columns if isinstance(column, Numeric) and column.curve
    }
    if not steps:
        return []
    first, *others = [f"{count} of {name}" for name, count in list(steps.items())[:SHOWN_CURVES]]
    told = ", ".join([first.replace(" of ", " steps of ", 1), *others])
    more = len(steps) - SHOWN_CURVES
    return [("curves", told + (f" and {sum(list(steps.values())[SHOWN_CURVES:])} of {more} more" if more > 0 else ""))]
