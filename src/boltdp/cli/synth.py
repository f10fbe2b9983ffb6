from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from boltdp._files.outputs import replace_file
from boltdp.cli._command_group import command
from boltdp.cli._options import FILE, check_file_absent, file_option, json_option
from boltdp.cli._terminal import emit, emit_json, show_bar
from boltdp.engines.registry import find_engine
from boltdp.workflows.synthesize import TABLE, synthesize


@command(
    "boltdp synth rows.parquet --rows 1000000 --dims 50 --schema rows.toml",
    "boltdp synth rows.duckdb --rows 60000 --dims 20 --classes 10 --seed 1",
    "boltdp synth postgresql://localhost/db --table patients --rows 60000 --dims 20",
)
@click.argument("output", type=FILE)
@click.option("--rows", type=int, required=True)
@click.option("--dims", type=int, required=True, help="Features of a row.")
@click.option("--classes", type=int, default=2, show_default=True)
@click.option(
    "--separation", type=float, default=1.5, show_default=True, help="How far apart the classes are: 0 is not at all."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--table", metavar="NAME", default=TABLE, show_default=True, help="Table of the database to make.")
@file_option("--schema", "schema_path", metavar="TOML", help="Also write the schema that fits the data.")
@json_option
def synth(
    output: str, *, rows: int, dims: int, classes: int, schema_path: str | None, as_json: bool, **chosen: Any
) -> None:
    """Write synthetic rows to OUTPUT: a .parquet file, a new .duckdb file, or a PostgreSQL database by its URI."""
    is_file = not find_engine(output).writes_tables
    for path in (output if is_file else None, schema_path):
        if path is not None:
            check_file_absent(path)
    try:
        with show_bar() as bar:
            report = partial(bar, "writing", total=rows)
            made = synthesize(output, rows=rows, dims=dims, classes=classes, progress=report, **chosen)
    except BaseException:
        # The file did not exist before, so it is a partial output.
        if is_file:
            Path(output).unlink(missing_ok=True)
        raise
    if schema_path is not None:
        with replace_file(schema_path) as aside:
            made.save(aside)
    if as_json:
        emit_json({"output": output, "rows": rows, "dims": dims, "classes": classes, "schema": schema_path})
    else:
        emit(f"{output}: {rows:,} rows of {dims} features, {classes} classes")
