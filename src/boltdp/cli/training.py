"""`boltdp train` and `boltdp plan`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import click

from boltdp.cli.options import (
    algorithm,
    as_json,
    load_schema,
    make_settings,
    quiet,
    settings_options,
    source_options,
    training_options,
)
from boltdp.cli.terminal import RowsBar, emit, emit_json, emit_promise, emit_table, examples, note
from boltdp.data.encode import OnBadRow
from boltdp.data.schema import Numeric, Schema
from boltdp.engines import open_source
from boltdp.errors import ParameterError
from boltdp.files import check_writable
from boltdp.model import Model
from boltdp.privacy.algorithms import RIVALS
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.noise import Mechanism
from boltdp.settings import TYPICAL_NORM, Settings, accuracy_lost
from boltdp.train import train as train_model

#: The budgets that `plan` shows beside the one asked for.
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)

#: Said whatever the query is: whether it holds cannot be told from its text.
QUERY_PROMISE = (
    "the promise is about rows of the query's result at their places: each must come from one person's row, and rows "
    "must be chosen and ordered by public columns only"
)


@click.command(
    short_help="Train a model on the rows of SOURCE.",
    epilog=examples(
        "boltdp train patients.csv --schema schema.toml --epsilon 1 -o model.json",
        "boltdp train 'visits-*.parquet' --schema schema.toml --epsilon 0.5 --delta 1e-6 -o model.json",
        "boltdp train hospital.duckdb --table visits --schema schema.toml --epsilon 1 -o model.json",
        "boltdp train postgresql://localhost/hospital --table patients --label outcome --epsilon 0.5 -o model.json",
        "boltdp train public.csv --schema schema.toml --noiseless -o baseline.json",
    ),
)
@source_options
@training_options
@click.option("-o", "--output", required=True, metavar="JSON", help="Where to write the model.")
@click.option("--epsilon", type=float, help="The privacy budget: smaller is more private.")
@click.option("--noiseless", is_flag=True, help="Train without noise, and so without privacy, instead of --epsilon.")
@click.option("--in-server", is_flag=True, help="PostgreSQL: fail rather than let the rows leave the server.")
@algorithm
@settings_options
@click.option(
    "--on-bad-row",
    type=click.Choice(["neutral", "error"]),
    default="neutral",
    show_default=True,
    help="error: stop at a missing or undeclared value, for data that is not private.",
)
@as_json
@quiet
def train(
    source: str,
    *,
    table: str | None,
    query: str | None,
    schema_path: str | None,
    label: str | None,
    output: str,
    epsilon: float | None,
    noiseless: bool,
    in_server: bool,
    spool: str | None,
    on_bad_row: OnBadRow,
    as_json: bool,
    quiet: bool,
    **chosen: Any,
) -> None:
    """Train a model on the rows of SOURCE: CSV or Parquet files ('part-*.parquet'), a DuckDB file or a PostgreSQL URI.

    The rows of a PostgreSQL database stay in it, if it has the extension; see `boltdp postgres`.

    Everything that is not set is chosen from public numbers, before a row is read. A missing or undeclared value
    counts as the middle of its bounds, or as no category; a row without a declared class teaches nothing.
    """
    settings = make_settings(epsilon=epsilon, noiseless=noiseless, chosen=chosen)
    schema = load_schema(schema_path, source=source, table=table, query=query, label=label)
    check_writable(output)
    if query is not None and settings.epsilon is not None:
        note(QUERY_PROMISE)
    if in_server and on_bad_row == "error":
        raise ParameterError("--on-bad-row error looks at the rows here, and must not be given with --in-server")
    where: Literal["auto", "server"] = "server" if in_server else "auto"
    with open_source(source, table=table, query=query, spool=spool, where=where) as engine, RowsBar(quiet=quiet) as bar:
        model = train_model(engine, schema, settings, on_bad_row=on_bad_row, progress=bar)
    model.save(output)
    report(model, output, as_json=as_json)


def report(model: Model, output: str, *, as_json: bool) -> None:
    """Print what a new model promises, what that costs, and where it is."""
    certificate = model.certificate
    if as_json:
        cost = {"noise_per_weight": _noise_per_weight(certificate)}
        emit_json({"model": output, "promise": certificate.promise(), **cost, **certificate.to_dict()})
        return
    emit_promise(certificate.promise(), private=certificate.private)
    selection = certificate.selection
    emit_table(
        [
            *_cost(certificate),
            *_standardizing(certificate),
            *([] if selection is None else [("chosen", selection.describe())]),
            ("training", _training(certificate)),
            ("model", f"{output}: {model.weights.size:,} weights for {len(model.classes)} classes"),
        ]
    )


@click.command(
    short_help="Tell how much noise there will be, without data.",
    epilog=examples(
        "boltdp plan --rows 60000 --features 51 --classes 10 --epsilon 0.5",
        "boltdp plan --rows 20190 --schema schema.toml --epsilon 1 --delta 1e-6",
    ),
)
@click.option("--rows", type=int, required=True, help="How many rows there are.")
@click.option("--features", type=int, help="Numbers in an encoded row, with the constant one for the intercept.")
@click.option("--classes", type=int, default=2, show_default=True)
@click.option("--schema", "schema_path", metavar="TOML", help="A schema, instead of --features and --classes.")
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The privacy budget.")
@algorithm
@settings_options
@as_json
def plan(
    *,
    rows: int,
    features: int | None,
    classes: int,
    schema_path: str | None,
    epsilon: float,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Tell how much noise the weights will carry, and which settings will be used, without seeing data."""
    if schema_path is not None and features is None:
        schema = Schema.load(schema_path)
        features, classes = schema.dims, len(schema.classes)
    elif features is None or schema_path is not None:
        raise ParameterError("give either --features or --schema")
    elif classes < 2:
        raise ParameterError(f"classes must be >= 2, got {classes}")
    else:
        # Columns of numbers: what standardizing costs depends on how many there are.
        columns = tuple(Numeric(f"feature {i}", -1, 1) for i in range(max(features - 1, 1)))
        schema = Schema("label", tuple(range(classes)), columns)
    settings = make_settings(epsilon=epsilon, noiseless=False, chosen=chosen)
    plans = {}
    for budget in (epsilon, *EPSILONS):
        one = replace(settings, epsilon=budget)
        record = one.standardization(schema, rows=rows)
        plans[budget] = one.plan(rows=rows, dims=features, classes=classes, standardization=record)
    certificate = plans[epsilon]
    by_epsilon = [_noise(plans[budget]) for budget in sorted(plans)]
    if as_json:
        emit_json({**certificate.to_dict(), **_noise(certificate), "by_epsilon": by_epsilon})
        return
    emit_promise(certificate.promise(planned=True), private=certificate.private)
    emit_table([*_cost(certificate), *_standardizing(certificate), *_choices(certificate, settings)])
    emit("")
    if certificate.algorithm == "objective":
        header: tuple[str, ...] = ("epsilon", "noise", "noise a row", "regularization", "accuracy lost")
        lines: list[tuple[str, ...]] = [
            (
                f"{noise['epsilon']:g}",
                noise["noise"],
                f"{noise['noise_per_row']:.2g}",
                f"{noise['regularization']:.2g}",
                "{:.3f} to {:.3f}".format(*noise["accuracy_lost"]),
            )
            for noise in by_epsilon
        ]
    else:
        header = ("epsilon", "noise", "noise a weight", "noise / weights")
        lines = [
            (
                f"{noise['epsilon']:g}",
                noise["noise"],
                f"{noise['noise_per_weight']:.3g}",
                f"{noise['noise_to_weights']:.2g}",
            )
            for noise in by_epsilon
        ]
    emit_table(lines, header=header, numbers=True)
    emit(_EXPLAINED["updates" if certificate.algorithm in RIVALS else certificate.algorithm])


_EXPLAINED = {
    "objective": "\nThe noise is added to the sum of all rows' losses; a row's own gradient is about 1 long."
    "\nAccuracy lost is what nine of ten measurements on public data sets lay between (docs/accuracy.md)."
    "\nMore rows, fewer features (a projection), a larger epsilon or some delta make the noise smaller.",
    "updates": "\nThe noise is that of the averaged gradient of each update; the last column compares it with 1.",
    "bolton": "\nThe noise of a weight is also that of the margin <w, x> of a row of length 1, where 1 is a confident "
    f"margin.\nThe last column compares the noise with weights of length {TYPICAL_NORM:g}, which are typical."
    "\nMore rows, fewer features (a projection), a larger epsilon or some delta make the noise smaller.",
}


def _noise_per_weight(certificate: Certificate) -> float | None:
    """The noise of a weight, or of its gradient in an update: the expected length of all, divided evenly."""
    mechanism = _mechanism(certificate)
    return None if mechanism is None else mechanism.expected_norm / math.sqrt(certificate.recipe.weights)


def _mechanism(certificate: Certificate) -> Mechanism | None:
    """The noise, wherever it is added; that of the release is next to nothing if there is any inside training."""
    return certificate.training_noise or certificate.mechanism


def _noise(certificate: Certificate) -> dict[str, Any]:
    assert certificate.budget is not None
    mechanism = _mechanism(certificate)
    assert mechanism is not None
    noise = {"epsilon": certificate.budget.epsilon, "noise": mechanism.kind}
    if certificate.algorithm == "objective":
        return {
            **noise,
            "noise_per_row": mechanism.expected_norm / certificate.recipe.rows,
            "regularization": certificate.recipe.regularization,
            "accuracy_lost": list(accuracy_lost(certificate)),
        }
    compared = 1.0 if certificate.algorithm in RIVALS else TYPICAL_NORM
    return {
        **noise,
        "noise_per_weight": _noise_per_weight(certificate),
        "noise_to_weights": mechanism.expected_norm / compared,
    }


def _cost(certificate: Certificate) -> list[tuple[str, str]]:
    """What the promise costs."""
    sensitivity, mechanism = certificate.sensitivity, _mechanism(certificate)
    if mechanism is None:
        return []
    each = f" in each of {certificate.models} models" if certificate.models > 1 else ""
    kind = f"({mechanism.kind}, scale {mechanism.scale:.3g})"
    if certificate.algorithm in RIVALS:
        noise = (
            f"{_noise_per_weight(certificate):.3g} a weight {kind} in each of {certificate.recipe.updates:,} updates"
        )
        return [("algorithm", certificate.algorithm), ("noise", noise)]
    if certificate.algorithm == "objective":
        noise = f"{mechanism.expected_norm:.3g} long {kind}, once, before training{each}"
        low, high = accuracy_lost(certificate)
        lost = f"{low:.3f} to {high:.3f} is to be expected, from measurements on public data sets"
        return [("algorithm", certificate.algorithm), ("noise", noise), ("accuracy lost", lost)]
    assert sensitivity is not None
    return [
        ("algorithm", certificate.algorithm),
        ("sensitivity", f"{sensitivity.total:.6g}: as far as one row can move the weights{each}"),
        ("noise", f"{_noise_per_weight(certificate):.3g} a weight {kind}"),
    ]


def _training(certificate: Certificate) -> str:
    recipe = certificate.recipe
    if certificate.algorithm == "objective":
        return f"{recipe.rows:,} rows, until the gradient of the noisy objective was zero"
    return f"{recipe.passes} passes over {recipe.rows:,} rows, {recipe.updates:,} updates"


def _standardizing(certificate: Certificate) -> list[tuple[str, str]]:
    """What was spent before training, if anything was."""
    record = certificate.standardization
    return [] if record is None else [("standardizing", record.describe())]


def _choices(certificate: Certificate, settings: Settings) -> list[tuple[str, str]]:
    """The settings, and why each is what it is."""
    recipe, mechanism = certificate.recipe, _mechanism(certificate)
    assert mechanism is not None
    if settings.algorithm in ("bst14", "dpsgd"):
        kind = "the analysis of random samples is for no other"
    elif settings.delta:
        kind = f"the shorter of the two valid ones in {mechanism.dimensions:,} dimensions"
    else:
        kind = "delta = 0 allows no other"
    chosen = [
        ("mechanism", f"{mechanism.kind}: {kind}"),
        ("loss", recipe.loss.name + (f", {certificate.models} models" if certificate.models > 1 else "")),
    ]
    if certificate.algorithm == "objective":
        asked = settings.regularization > 0
        why = "as asked for" if asked else "as fitted on public data sets to the noise a row (docs/accuracy.md)"
        return [*chosen, ("regularization", f"{recipe.regularization:.3g}: {why}")]
    first, last = recipe.schedule.at([1, recipe.updates])
    steps = f"{first:.4g}" if first == last else f"from {first:.4g} down to {last:.4g}"
    if settings.step_size is not None or settings.schedule not in ("auto", "constant", "strongly-convex-constant"):
        why = "as asked for"
    elif settings.algorithm in RIVALS:
        why = f"those of {settings.algorithm}"
    elif settings.schedule == "auto" and recipe.regularization > 0:
        why = "the steps that fit the regularization"
    else:
        why = "where going further would add more noise than it would gain"
    return [
        *chosen,
        ("passes", f"{recipe.passes} over {recipe.batches:,} batches of about {recipe.batch_size} rows"),
        ("steps", f"{steps}: {why}"),
    ]
