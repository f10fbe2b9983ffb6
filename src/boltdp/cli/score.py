"""`boltdp predict` and `boltdp evaluate`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click
import numpy as np
import numpy.typing as npt

from boltdp.arraytypes import Doubles, PackedRows
from boltdp.cli.options import as_json, load_model, scoring_threshold, source_options, threads_option
from boltdp.cli.terminal import emit, emit_json, emit_table, examples, note, warn
from boltdp.context import Context
from boltdp.data.values import spellings
from boltdp.engines import open_source
from boltdp.errors import DataError, ParameterError
from boltdp.files import replacing
from boltdp.model import Model, Threshold

if TYPE_CHECKING:
    from boltdp.engines.base import Engine

Indices: TypeAlias = npt.NDArray[np.intp]
#: Class indices of some rows, and their probabilities if asked for.
Batch: TypeAlias = tuple[Indices, Doubles | None]


@click.command(
    epilog=examples(
        "boltdp predict model.json new.csv",
        "boltdp predict model.json new.parquet -o predictions.parquet --proba",
        "boltdp predict model.json hospital.duckdb --query 'SELECT * FROM visits WHERE year = 2025'",
    )
)
@click.argument("model_path", metavar="MODEL")
@source_options
@click.option("-o", "--output", metavar="FILE", help="A .csv or .parquet file, instead of CSV on standard output.")
@click.option("--proba", is_flag=True, help="Add the probability of each class.")
@scoring_threshold
@threads_option
def predict(
    model_path: str,
    source: str,
    *,
    table: str | None,
    query: str | None,
    output: str | None,
    proba: bool,
    threshold: Threshold | None,
    threads: int | None,
) -> None:
    """Predict the class of each row of SOURCE, in the order of the rows.

    The label need not be there. The model may be shown to anyone, but its predictions are about the rows of SOURCE.
    """
    model = load_model(model_path, threshold)
    ending = ".csv" if output is None else Path(output).suffix
    if ending not in (".csv", ".parquet"):
        raise ParameterError(f"the output must end in .csv or .parquet, got {output!r}")
    with open_source(source, table=table, query=query) as engine:
        batches = _predictions(model, engine, _context(threads), proba=proba)
        if output is None:
            for text in _csv(model, batches, proba=proba):
                emit(text, newline=False)
            return
        with replacing(output) as aside:
            if ending == ".csv":
                with open(aside, "w", encoding="utf-8", newline="") as file:
                    file.writelines(_csv(model, batches, proba=proba))
            else:
                _write_parquet(aside, model, batches, proba=proba)


@click.command(
    epilog=examples(
        "boltdp evaluate model.json test.parquet",
        "boltdp evaluate model.json test.csv --json",
    )
)
@click.argument("model_path", metavar="MODEL")
@source_options
@scoring_threshold
@threads_option
@as_json
def evaluate(
    model_path: str,
    source: str,
    *,
    table: str | None,
    query: str | None,
    threshold: Threshold | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure how well a model predicts the label of the rows of SOURCE.

    The result is computed from the rows without noise: it is for data that you may look at, and is not covered by the
    model's promise. Rows whose label is no declared class are left out, and counted.
    """
    from boltdp.engines.base import scanned  # only here and below: `--help` needs no Arrow

    model = load_model(model_path, threshold)
    counts, unlabelled = np.zeros((len(model.classes),) * 2, np.int64), 0
    margins_seen, labels_seen = [np.empty(0)], [np.empty(0, np.intp)]
    probabilistic, surprise = model.certificate.problem.loss.probabilistic, 0.0

    def scored(packed: PackedRows) -> tuple[PackedRows, Doubles]:
        return packed[:, 0].copy(), model.margins(packed)

    with open_source(source, table=table, query=query) as engine:
        for every_label, every_margin in scanned(engine, model.schema, scored, context=_context(threads)):
            known = ~np.isnan(every_label)
            labels, margins = every_label[known].astype(np.intp), every_margin[known]
            np.add.at(counts, (labels, model.choices(margins)), 1)
            unlabelled += len(known) - len(labels)
            if probabilistic:
                surprise += total_log_loss(model.probabilities(margins), labels)
            if len(model.weights) == 1:
                margins_seen.append(margins[:, 0])
                labels_seen.append(labels)
    names = [spellings(value)[0] for value in model.classes]
    if not counts.any():
        raise DataError(
            f"the data must have rows with a declared class to compare with, got none of {unlabelled:,}",
            hint=f"look at the spelling of column {model.schema.label!r}: the classes are {', '.join(names)}",
        )
    if unlabelled > counts.sum():
        warn(
            f"{unlabelled:,} of {unlabelled + counts.sum():,} rows have no declared class in column "
            f"{model.schema.label!r} and are left out: the classes are {', '.join(names)}, and other spellings taught "
            "nothing either if the model was trained on rows like these"
        )
    note(
        "this is computed from the rows without noise, for data that you may look at: "
        "the model's promise does not cover it"
    )
    right, present = np.diagonal(counts), counts.sum(axis=1)
    met = present > 0
    scores = {
        "accuracy": float(right.sum() / counts.sum()),
        "balanced accuracy": float((right[met] / present[met]).mean()),
        "area under the curve": area_under_curve(np.concatenate(margins_seen), np.concatenate(labels_seen)),
        "log loss": float(surprise / counts.sum()) if probabilistic else None,
    }
    if as_json:
        emit_json(
            {
                "rows": int(counts.sum()),
                "rows_without_class": unlabelled,
                **{name.replace(" ", "_"): score for name, score in scores.items()},
                "threshold": model.threshold,
                "classes": list(model.classes),
                "confusion": counts.tolist(),
            }
        )
        return
    lines = [("rows", f"{counts.sum():,}"), ("rows without a declared class", f"{unlabelled:,}")]
    lines += [] if model.threshold is None else [("threshold", f"{model.threshold:g}")]
    emit_table([*lines, *((name, f"{score:.4f}") for name, score in scores.items() if score is not None)], numbers=True)
    emit("")
    cells = [(name, *(f"{count:,}" for count in row)) for name, row in zip(names, counts, strict=True)]
    emit_table(cells, header=("true class, predicted as:", *names), numbers=True)


def area_under_curve(margins: Doubles, labels: Indices) -> float | None:
    """How often a row of class 1 has a greater margin than one of class 0, ties counting half; None without both.

    >>> area_under_curve(np.array([0.1, 0.2, 0.2, 0.3]), np.array([0, 0, 1, 1]))
    0.875
    """
    values, places = np.unique(margins, return_inverse=True)
    positive = np.bincount(places[labels == 1], minlength=len(values))
    negative = np.bincount(places[labels == 0], minlength=len(values))
    pairs = float(positive.sum()) * float(negative.sum())
    below = np.cumsum(negative) - negative / 2
    return float(positive @ below / pairs) if pairs else None


def total_log_loss(probabilities: Doubles, labels: Indices) -> float:
    """-ln of the probability of each row's own class, added up; a smaller one than 2^-52 counts as that.

    >>> round(total_log_loss(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([1, 0])), 6)
    0.693147
    """
    own = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(own, np.finfo(np.float64).eps)).sum())


def _context(threads: int | None) -> Context:
    return Context() if threads is None else Context(threads=threads)


def _predictions(model: Model, engine: Engine, context: Context, *, proba: bool) -> Iterator[Batch]:
    for margins in model.score_batches(engine, context):
        yield model.choices(margins), model.probabilities(margins) if proba else None


def _header(model: Model, *, proba: bool) -> list[str]:
    return ["prediction", *(f"probability_{spellings(value)[0]}" for value in model.classes if proba)]


def _csv(model: Model, batches: Iterator[Batch], *, proba: bool) -> Iterator[str]:
    yield _csv_line(_header(model, proba=proba))
    lines = [_csv_line([spellings(value)[0]]) for value in model.classes]
    for choices, probabilities in batches:
        if probabilities is None:
            yield "".join(lines[choice] for choice in choices)
        else:
            yield "".join(
                f"{lines[choice][:-1]},{','.join(map(repr, row))}\n"
                for choice, row in zip(choices, probabilities.tolist(), strict=True)
            )


def _csv_line(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _write_parquet(path: Path, model: Model, batches: Iterator[Batch], *, proba: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    classes = pa.array(np.array(model.classes))
    prediction, *probabilities = _header(model, proba=proba)
    columns = {prediction: classes.type, **dict.fromkeys(probabilities, pa.float64())}
    with pq.ParquetWriter(path, pa.schema(columns.items())) as writer:
        for choices, numbers in batches:
            arrays = [classes.take(pa.array(choices)), *(() if numbers is None else map(pa.array, numbers.T))]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=writer.schema))
