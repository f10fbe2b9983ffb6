from __future__ import annotations

import click

from boltdp.cli._command_group import command
from boltdp.cli._options import FILE, MAX_SHOWN_CLASSES, json_option, load_model, scoring_threshold_option
from boltdp.cli._terminal import emit, emit_json, note
from boltdp.errors import ParameterError
from boltdp.export.sql import write_probability_expression, write_scoring_expression
from boltdp.export.sql_dialects import DIALECTS
from boltdp.model import Threshold
from boltdp.schema.target import Classes


@command(
    "boltdp sql model.json --dialect postgres",
    'duckdb hospital.duckdb "SELECT id, $(boltdp sql model.json) AS prediction FROM visits"',
    'duckdb hospital.duckdb "SELECT id, $(boltdp sql model.json --proba) AS probability FROM visits"',
    "boltdp sql model.json --proba --class ill --dialect spark",
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@click.option("--dialect", type=click.Choice([*DIALECTS]), default="duckdb", show_default=True)
@click.option(
    "--proba",
    is_flag=True,
    help="The probability of the second of two classes; of more, an array of all, in the order of the schema.",
)
@click.option("--class", "of", metavar="NAME", help="With --proba: the probability of this class alone.")
@scoring_threshold_option
@json_option
def sql(
    model_path: str, *, dialect: str, proba: bool, of: str | None, threshold: Threshold | None, as_json: bool
) -> None:
    """Print a SQL expression over the columns of the data that gives what `boltdp predict` gives."""
    if proba and threshold is not None:
        raise ParameterError("--threshold is for classes, and must not be given with --proba")
    if of is not None and not proba:
        raise ParameterError("--class is for probabilities, and must be given with --proba")
    model = load_model(model_path, threshold=threshold)
    every: Classes | None = None
    if proba:
        classes = model.schema.target.require_classes("--proba")
        if of is not None and of not in classes.names:
            raise ParameterError(f"--class must be one of {', '.join(classes.names)}, got {of!r}")
        value = None if of is None else classes.values[classes.names.index(of)]
        expression = write_probability_expression(model, dialect, of=value)
        every = classes if of is None and not classes.is_binary else None
    else:
        expression = write_scoring_expression(model, dialect)
    if as_json:
        listed = {} if every is None else {"classes": list(every.values)}
        emit_json({"dialect": dialect, "expression": expression, **listed})
        return
    emit(expression)
    if every is not None:
        first, names = DIALECTS[dialect].first, every.names
        places = ", ".join(f"[{first + place}] {name}" for place, name in enumerate(names[:MAX_SHOWN_CLASSES]))
        more = ", …" if len(names) > MAX_SHOWN_CLASSES else ""
        note(f"this is an array: {places}{more}; --class gives one of them")
