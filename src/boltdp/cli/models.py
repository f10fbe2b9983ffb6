"""`boltdp verify` and `boltdp sql`."""

from __future__ import annotations

from typing import get_args

import click

from boltdp.algorithms import algorithm_of
from boltdp.algorithms.standardize import describe_moments
from boltdp.cli.options import as_json
from boltdp.cli.terminal import emit, emit_json, emit_promise, emit_table, examples
from boltdp.export.sql import Dialect, probability_expression, scoring_expression
from boltdp.model import Model


@click.command(
    short_help="Recompute what MODEL claims.",
    epilog=examples("boltdp verify model.json", "boltdp verify model.json --json"),
)
@click.argument("model_path", metavar="MODEL")
@as_json
def verify(model_path: str, *, as_json: bool) -> None:
    """Recompute what was spent on MODEL from its certificate; fail if that is more than it claims.

    It checks the arithmetic of the claim, which needs no data. That the training was run as stated it cannot know.
    """
    model = Model.load(model_path)
    model.verify()
    certificate = model.certificate
    if as_json:
        emit_json({"verified": True, "promise": certificate.promise(), **certificate.to_dict()})
        return
    emit_promise(certificate.promise(), private=certificate.private)
    checked = [("weights", f"{model.weights.size:,} finite numbers, as many as the schema asks for")]
    if certificate.sensitivity is not None:
        sensitivity = certificate.sensitivity
        checked.append(("sensitivity", f"{sensitivity.total:.6g}, recomputed by {sensitivity.derivation}"))
    place = algorithm_of(certificate).noise_place
    noises = {place: certificate.training_noise, "noise": certificate.release_noise}
    for name, noise in noises.items():
        if noise is not None:
            checked.append((name, f"{noise.kind}, scale {noise.scale:.6g}, {noise.dimensions:,} dimensions"))
    if any(noise is not None for noise in noises.values()):
        checked.append(("randomness", "seeded" if certificate.seeded else "operating system"))
    checked += [("standardizing", text) for text in describe_moments(certificate)]
    if certificate.selection is not None:
        checked.append(("chosen", certificate.selection.describe()))
    if certificate.private and certificate.budget is not None:
        epsilon = certificate.budget.epsilon
        checked.append(("spent", f"at epsilon = {epsilon:g}, delta = {certificate.delta(epsilon):.3g}: recomputed"))
    emit_table(checked)
    emit("The certificate adds up." if certificate.private else "The certificate adds up, and says: NOT PRIVATE.")


@click.command(
    short_help="Print a SQL expression that predicts.",
    epilog=examples(
        "boltdp sql model.json --dialect postgres",
        'duckdb hospital.duckdb "SELECT id, $(boltdp sql model.json) AS prediction FROM visits"',
    ),
)
@click.argument("model_path", metavar="MODEL")
@click.option("--dialect", type=click.Choice(get_args(Dialect)), default="duckdb", show_default=True)
@click.option("--proba", is_flag=True, help="The probability of the second of two classes, of a logistic model.")
@as_json
def sql(model_path: str, *, dialect: Dialect, proba: bool, as_json: bool) -> None:
    """Print a SQL expression over the columns of the data that gives what `boltdp predict` gives."""
    model = Model.load(model_path)
    expression = (probability_expression if proba else scoring_expression)(model, dialect)
    if as_json:
        emit_json({"dialect": dialect, "expression": expression})
    else:
        emit(expression)
