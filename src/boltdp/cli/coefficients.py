from __future__ import annotations

from pathlib import Path

import click

from boltdp._files.outputs import check_writable, write_text
from boltdp.cli._command_group import command
from boltdp.cli._options import FILE, file_option, load_model
from boltdp.cli._terminal import emit
from boltdp.export.coefficient_tables import ENDINGS, WRITERS, CoefficientTable
from boltdp.export.coefficients import Coefficients


@command(
    "boltdp coefficients model.json",
    "boltdp coefficients model.json --format latex",
    "boltdp coefficients model.json --odds-ratios -o coefficients.html",
    "boltdp coefficients model.json --level 0.99 --format csv",
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@click.option(
    "--format",
    "kind",
    type=click.Choice([*WRITERS]),
    help="html is a page of its own with a forest plot.  [default: by the ending of FILE, else text]",
)
@click.option("--level", type=float, default=0.95, show_default=True, help="How often an interval holds the parameter.")
@click.option("--odds-ratios", is_flag=True, help="Print the intervals of odds ratios, not of coefficients.")
@file_option("-o", "--output", help=f"Where to write it: {', '.join(ENDINGS)}.  [default: standard output]")
def coefficients(model_path: str, *, kind: str | None, level: float, odds_ratios: bool, output: str | None) -> None:
    """Print the coefficients of MODEL with standard errors, tests and intervals, in the units of its columns.

    MODEL must have been trained with `boltdp train --inference`. Its loss is logistic, so that exp(coef) is an odds
    ratio, or robust, if it predicts a number. A category is compared with the reference of its column, the first
    unless the schema names another. The intervals include the noise, and are refused where noise hides the
    dependence of the columns on each other.

    Only MODEL is read, and no data: whatever is shown costs no privacy.
    """
    if output is not None:
        check_writable(output)
    if kind is None:
        kind = "text" if output is None else ENDINGS.get(Path(output).suffix, "text")
    found = Coefficients(load_model(model_path, verify=True), level=level)
    text = WRITERS[kind](CoefficientTable(found, odds_ratios=odds_ratios))
    if output is None:
        emit(text, newline=False)
    else:
        write_text(output, text)
