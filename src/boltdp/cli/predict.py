from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boltdp._files.outputs import replace_file
from boltdp.cli import _options
from boltdp.cli._command_group import command
from boltdp.cli._terminal import emit
from boltdp.errors import DataError, ParameterError
from boltdp.model import Model, Threshold
from boltdp.run_context import Context

if TYPE_CHECKING:
    import pyarrow as pa

    from boltdp._array_types import Doubles
    from boltdp.engines.base import Engine

ALL_COLUMNS = "*"


def _parse_names(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[str]:
    """Parse comma-separated names, quoted as in CSV, without duplicates."""
    return [*dict.fromkeys(name for text in texts for name in next(csv.reader([text]), []))]


@command(
    "boltdp predict model.json new.csv",
    "boltdp predict model.json new.csv --keep id,visit_date --proba -o scores.csv",
    "boltdp predict model.json new.parquet --keep '*' -o scores.parquet",
    "boltdp predict model.json hospital.duckdb --query 'SELECT * FROM visits WHERE year = 2025' --keep id",
)
@click.argument("model_path", metavar="MODEL", type=_options.FILE)
@_options.source_options
@_options.file_option(
    "-o", "--output", help="A .csv or .parquet file, instead of CSV on standard output; one that exists is replaced."
)
@click.option(
    "--keep",
    metavar="COLUMNS",
    multiple=True,
    callback=_parse_names,
    help="Columns of SOURCE to write before the prediction, such as id,visit_date; '*': all of them.",
)
@click.option("--proba", is_flag=True, help="Add the probability of each class.")
@click.option("--prefix", metavar="TEXT", default="", help="What the names of the added columns begin with.")
@_options.scoring_threshold_option
@_options.threads_option
def predict(
    model_path: str,
    *,
    data: _options.Data,
    output: str | None,
    keep: list[str],
    proba: bool,
    prefix: str,
    threshold: Threshold | None,
    threads: int,
) -> None:
    """Predict the class, or the number, of each row of SOURCE, in the order of the rows.

    The label need not be there. The model may be shown to anyone, but its predictions are about the rows of SOURCE, and
    so are the columns that are kept.
    """
    model = _options.load_model(model_path, threshold=threshold)
    ending = ".csv" if output is None else Path(output).suffix
    if ending not in (".csv", ".parquet"):
        raise ParameterError(f"the output must end in .csv or .parquet, got {output!r}")
    classes = model.schema.target.require_classes("--proba").names if proba else ()
    added = [prefix + name for name in ("prediction", *(f"probability_{name}" for name in classes))]
    with data.open() as engine:
        if ALL_COLUMNS in keep and ALL_COLUMNS not in engine.list_columns():
            keep = [*engine.list_columns()]
        for name in keep:
            # Case is ignored, as in DuckDB.
            if name.lower() in {other.lower() for other in added}:
                raise ParameterError(
                    f"an added column must have a name of its own, and {name!r}, which is kept, is one already",
                    hint="--prefix model_ begins the names of the added columns with that, or keep other columns",
                )
        batches = _predict_batches(model, engine, Context(threads=threads), keep=keep, added=added)
        if output is None:
            for text in _write_csv([*keep, *added], batches):
                emit(text, newline=False)
            return
        with replace_file(output) as aside:
            if ending == ".csv":
                with open(aside, "w", encoding="utf-8", newline="") as file:
                    file.writelines(_write_csv([*keep, *added], batches))
            else:
                _write_parquet(aside, batches)


def _predict_batches(
    model: Model, engine: Engine, context: Context, *, keep: Sequence[str], added: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the kept columns, the predictions and, if `added` names them, the probabilities."""
    import pyarrow as pa

    from boltdp.encoding.arrow_buffers import to_arrow_array
    from boltdp.engines.base import scan_rows_with_columns
    from boltdp.workflows.predict import score_batches

    def make_columns(margins: Doubles) -> list[pa.Array]:
        columns = [to_arrow_array(model.predict_margins(margins))]
        return [*columns, *map(to_arrow_array, model.probabilities(margins).T)] if len(added) > 1 else columns

    # The scan begins here, so that a missing column is an error before anything is written.
    if not keep:
        scored = score_batches(model, engine, context)
        return (pa.RecordBatch.from_arrays(make_columns(margins), added) for margins in scored)
    names = [*keep, *added]
    scanned = scan_rows_with_columns(engine, model.schema, model.margins, keep, context=context)
    return (pa.RecordBatch.from_arrays([*kept, *make_columns(margins)], names) for margins, kept in scanned)


def _write_csv(names: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
    yield _format_csv_rows([names])
    for batch in batches:
        yield _format_csv_rows(zip(*map(_format_cells, batch.columns), strict=True))


def _format_csv_rows(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _format_cells(cells: pa.Array) -> list[str | None]:
    """Format the cells of a column as text for CSV; None stands for a missing cell, which is left empty."""
    import pyarrow as pa

    if pa.types.is_floating(cells.type) and not pa.types.is_float32(cells.type):
        return [None if cell is None else repr(cell) for cell in cells.to_pylist()]
    try:
        texts: list[str | None] = cells.cast(pa.string()).to_pylist()
    except pa.ArrowException:  # lists and other nested types; the message would quote a cell
        texts = [None if cell is None else str(cell) for cell in cells.to_pylist()]
    return texts


def _write_parquet(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    import pyarrow.parquet as pq

    first = next(batches, None)
    if first is None:
        raise DataError("the data must have rows to write a Parquet file of, got none")
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch.cast(first.schema))
