from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from boltdp.cli import _options
from boltdp.cli._command_group import command
from boltdp.cli._help import GroupedCommand
from boltdp.cli._report import print_model_report
from boltdp.cli._terminal import emit_table, show_bar, state_condition
from boltdp.engines import open_source
from boltdp.errors import ParameterError
from boltdp.model import Threshold
from boltdp.settings import OPTIONS, TUNABLE
from boltdp.workflows.tune import TRIALS, Method, expand_grid
from boltdp.workflows.tune import tune as tune_model


@command(
    "boltdp tune patients.parquet --schema schema.toml --epsilon 1 --grid passes=5,10 \\",
    "    --grid regularization=1e-4,1e-3,1e-2 --inverse-radius -o model.json",
    "boltdp tune visits.csv --schema schema.toml --epsilon 1 --grid passes=5,10 --method portions -o model.json",
    "boltdp tune visits.csv --schema schema.toml --epsilon 1 --grid passes=5,10 --public study.csv -o model.json",
    cls=GroupedCommand,
)
@_options.make_release_options("inference", "robust_errors")
@click.option("--epsilon", type=float, required=True, help="The privacy budget of everything, choosing included.")
@click.option(
    "--grid",
    "grids",
    metavar="NAME=VALUES",
    multiple=True,
    required=True,
    help=f"Values to try, with commas, of {', '.join(name.replace('_', '-') for name in TUNABLE)}. May be repeated: "
    "every combination is a candidate.",
)
@click.option("--inverse-radius", is_flag=True, help="Keep weights within 1/regularization.")
@click.option(
    "--method",
    type=click.Choice(["trials", "portions"]),
    help="trials: each candidate has all rows, and less of epsilon; portions: each has rows of its own."
    "  [default: trials]",
)
@click.option("--trials", type=float, default=TRIALS, show_default=True, help="How many trials, in the mean.")
@_options.file_option("--public", help="Compare candidates on these rows instead, which must be public data.")
@click.option(
    "--public-rows", type=int, metavar="N", help="The same with the first N rows of SOURCE, which must be public data."
)
def tune(
    *,
    data: _options.Data,
    output: str,
    overwrite: bool,
    epsilon: float,
    grids: tuple[str, ...],
    inverse_radius: bool,
    method: Method | None,
    trials: float,
    public: str | None,
    public_rows: int | None,
    threshold: Threshold | None,
    threads: int,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Train candidates on the rows of SOURCE, choose one of them, and write it; all of it costs epsilon once.

    The guarantee covers which candidate was chosen. How well each did is private, and not shown. Candidates
    are compared by how many rows they get wrong at a threshold of 0.5, whatever --threshold is, or by how far
    predicted numbers are from the true ones.
    Without tuning, `boltdp train` takes its settings from public numbers, which costs nothing: try it first.
    """
    settings = _options.make_settings(epsilon=epsilon, noiseless=False, chosen=chosen)
    grid = dict(_parse_grid(text) for text in grids)
    if len(grid) < len(grids):
        raise ParameterError("--grid must be given once for each name")
    tried = expand_grid(settings, grid, inverse_radius=inverse_radius)
    if public is not None and public_rows is not None:
        raise ParameterError("give either --public or --public-rows")
    shows_rows = public is not None or public_rows is not None
    if shows_rows and method is not None:
        raise ParameterError("--method must not be given with public rows, on which candidates are then compared")
    method = method or ("public" if shows_rows else "trials")
    schema = _options.load_and_check_schema(data, settings, threshold=threshold, output=output, overwrite=overwrite)
    with (
        data.open() as engine,
        nullcontext() if public is None else open_source(public, spool=data.spool) as shown,
        show_bar() as bar,
    ):
        if public_rows is not None:
            engine, shown = engine.slice(public_rows, engine.count()), engine.slice(0, public_rows)
        if shown is not None:
            state_condition(f"{shown.count():,} rows are treated as public data: the guarantee does not cover them")
        context = settings.context(progress=bar, threads=threads)
        account = data.find_account()
        model = tune_model(
            engine, schema, tried, method=method, public=shown, trials=trials, context=context, account=account
        )
    model = model.with_threshold(threshold)
    model.save(output)
    print_model_report(model, output, as_json=as_json, account=account)
    if not as_json:
        assert model.certificate.selection is not None
        best = tried[model.certificate.selection.chosen]
        emit_table([(name.replace("_", " "), f"{getattr(best, name)}") for name in grid])


def _parse_grid(text: str) -> tuple[str, list[Any]]:
    """Parse an option --grid, such as passes=5,10, to the name of a setting and its values."""
    name, _, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in TUNABLE:
        raise ParameterError(f"--grid must be over some of {', '.join(TUNABLE)}, got {name!r}")
    return name, [OPTIONS[name].parse(word, f"--grid {name}") for word in listed.split(",")]
