"""`boltdp sql`."""

from __future__ import annotations

from typing import get_args

import click

from boltdp.cli._options import FILE, SHOWN_CLASSES, as_json, load_model, scoring_threshold
from boltdp.cli._terminal import emit, emit_json, examples, note
from boltdp.encoding.values import format_value
from boltdp.errors import ParameterError
from boltdp.export.sql import GRAMMARS, Dialect, probability_expression, scoring_expression
from boltdp.model import Threshold


@click.command(
    epilog=examples(
        "boltdp sql model.json --dialect postgres",
        'duckdb hospital.duckdb "SELECT id, $(boltdp sql model.json) AS prediction FROM visits"',
        'duckdb hospital.duckdb "SELECT id, $(boltdp sql model.json --proba) AS probability FROM visits"',
        "boltdp sql model.json --proba --class ill --dialect spark",
    ),
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@click.option("--dialect", type=click.Choice(get_args(Dialect)), default="duckdb", show_default=True)
@click.option(
    "--proba",
    is_flag=True,
    help="The probability of the second of two classes; of more, an array of all, in the order of the schema.",
)
@click.option("--class", "of", metavar="NAME", help="With --proba: the probability of this class alone.")
@scoring_threshold
@as_json
def sql(
    model_path: str, *, dialect: Dialect, proba: bool, of: str | None, threshold: Threshold | None, as_json: bool
) -> None:
    """Print a SQL expression over the columns of the data that gives what `boltdp predict` gives."""
    if proba and threshold is not None:
        raise ParameterError("--threshold is for classes, and must not be given with --proba")
    if of is not None and not proba:
        raise ParameterError("--class is for probabilities, and must be given with --proba")
    model = load_model(model_path, threshold)
    classes = {format_value(value): value for value in model.classes}
    if of is not None and of not in classes:
        raise ParameterError(f"--class must be one of {', '.join(classes)}, got {of!r}")
    if proba:
        expression = probability_expression(model, dialect, of=None if of is None else classes[of])
    else:
        expression = scoring_expression(model, dialect)
    every = proba and of is None and len(classes) > 2
    if as_json:
        stated = {"classes": list(model.classes)} if every else {}
        emit_json({"dialect": dialect, "expression": expression, **stated})
        return
    emit(expression)
    if every:
        first = GRAMMARS[dialect].first
        places = ", ".join(f"[{first + place}] {name}" for place, name in enumerate([*classes][:SHOWN_CLASSES]))
        note(f"this is an array: {places}{', …' if len(classes) > SHOWN_CLASSES else ''}; --class gives one of them")
