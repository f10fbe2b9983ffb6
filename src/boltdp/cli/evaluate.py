"""`boltdp evaluate`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from boltdp._files import replacing
from boltdp.cli._options import (
    FILE,
    QUERY_PROMISE,
    as_json,
    charged_account,
    check_output,
    ledger_line,
    ledger_options,
    load_model,
    make_context,
    scoring_threshold,
    source_options,
    threads_option,
)
from boltdp.cli._terminal import emit, emit_guarantee, emit_json, emit_table, examples, note, warn
from boltdp.engines import open_source
from boltdp.errors import ParameterError
from boltdp.evaluation.metrics import evaluate as evaluate_model
from boltdp.evaluation.plots import check_picture
from boltdp.evaluation.private import NoisyEvaluation, measure
from boltdp.ledger.ledger import Account
from boltdp.model import Model, Threshold
from boltdp.privacy.budget import Budget

if TYPE_CHECKING:
    pass


@click.command(
    epilog=examples(
        "boltdp evaluate model.json test.parquet",
        "boltdp evaluate model.json test.csv --json",
        "boltdp evaluate model.json hospital.duckdb --table visits_2024 --plot evaluation.png",
        "boltdp evaluate model.json private.parquet --epsilon 0.2 --by sex -o evaluation.json",
    )
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@source_options
@scoring_threshold
@click.option(
    "--plot",
    metavar="FILE",
    type=FILE,
    help="Draw curves, calibration, scores and the confusion matrix: .png, .svg or .pdf; needs "
    "`pip install 'boltdp[plot]'`.",
)
@click.option("--epsilon", type=float, help="For private rows: add noise, and spend this much.")
@click.option("--delta", type=float, help="With --epsilon; 0 is pure differential privacy.  [default: 0]")
@click.option(
    "--by", metavar="COLUMN", help="With --epsilon: figures of each category of a categorical column of the schema too."
)
@click.option(
    "-o", "--output", metavar="JSON", type=FILE, help="With --epsilon: where to keep the result, for `boltdp card`."
)
@click.option("--overwrite", is_flag=True, help="Replace what is at --output.")
@ledger_options
@threads_option
@as_json
def evaluate(
    model_path: str,
    source: str,
    *,
    table: str | None,
    query: str | None,
    threshold: Threshold | None,
    plot: str | None,
    epsilon: float | None,
    delta: float | None,
    by: str | None,
    output: str | None,
    overwrite: bool,
    ledger: str | None,
    dataset: str | None,
    blocks: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure how well a model predicts the label of the rows of SOURCE.

    Accuracy, log loss, Brier score, areas under the ROC and the precision-recall curve, the confusion matrix, figures
    of each class, and how well probabilities are calibrated. --json has the curves too.

    The result is computed from the rows without noise: it is for data that you may look at, and is not covered by the
    model's promise. Rows whose label is no declared class are left out, and counted.

    With --epsilon the rows may be private: they are counted in a few hundred bins, each count gets noise, and all
    figures and their 95 % intervals follow from these. A ledger is charged as by `boltdp train`. If the model was
    trained on the same rows, its epsilon and this one add up.
    """
    model = load_model(model_path, threshold)
    if epsilon is not None:
        if plot is not None:
            raise ParameterError("--plot is for rows that you may look at, and must not be given with --epsilon")
        if output is not None:
            check_output(output, overwrite=overwrite)
        if query is not None:
            note(QUERY_PROMISE)
        budget = Budget(epsilon, delta or 0.0)
        with open_source(source, table=table, query=query) as engine:
            account = charged_account(source, table=table, query=query, ledger=ledger, dataset=dataset, blocks=blocks)
            measured = measure(model, engine, budget, by=by, context=make_context(threads), account=account)
        if output is not None:
            with replacing(output) as aside:
                aside.write_text(json.dumps(measured.sealed(), indent=1, allow_nan=False) + "\n", "utf-8")
        _report_measured(measured, model, account, output, as_json=as_json)
        return
    beside = {"--delta": delta, "--by": by, "--output": output, "--ledger": ledger, "--dataset": dataset}
    for name, value in {**beside, "--blocks": blocks}.items():
        if value is not None:
            raise ParameterError(
                f"{name} must be given with --epsilon",
                hint="without it nothing is spent, and the rows must be ones that you may look at",
            )
    if plot is not None:
        check_picture(plot)  # before the rows are read
    with open_source(source, table=table, query=query) as engine:
        found = evaluate_model(model, engine, make_context(threads))
    names = model.schema.target.as_classes().names
    if found.rows_without_class > found.rows:
        warn(
            f"{found.rows_without_class:,} of {found.rows_without_class + found.rows:,} rows have no declared class in "
            f"column {model.schema.label!r} and are left out: the classes are {', '.join(names)}, and other spellings "
            "taught nothing either if the model was trained on rows like these"
        )
    note(
        "this is computed from the rows without noise, for data that you may look at: "
        "the model's promise does not cover it"
    )
    if plot is not None:
        found.plot(plot)
    if as_json:
        emit_json(found.to_dict())
        return
    lines = [("rows", f"{found.rows:,}"), ("rows without a declared class", f"{found.rows_without_class:,}")]
    lines += [] if model.threshold is None else [("threshold", f"{model.threshold:g}")]
    lines += [(name, _figure(score)) for name, score in found.scores.items() if score is not None]
    emit_table(lines, numbers=True)
    emit("")
    cells = [(name, *(f"{count:,}" for count in row)) for name, row in zip(names, found.confusion, strict=True)]
    emit_table(cells, header=("true class, predicted as:", *names), numbers=True)
    emit("")
    emit_table(
        [
            (
                name,
                f"{one.rows:,}",
                *map(_figure, (one.precision, one.recall, one.curve.area, one.curve.average_precision)),
            )
            for name, one in zip(names, found.by_class, strict=True)
        ],
        header=("class against the others", "rows", "precision", "recall", "area under the curve", "average precision"),
        numbers=True,
    )
    if found.reliability is not None:
        emit("")
        of = f"of {names[1]}" if len(names) == 2 else "of the likeliest class"
        emit_table(
            [
                (
                    f"{one['from']:.1f} to {one['to']:.1f}",
                    f"{one['rows']:,}",
                    *map(_figure, (one["mean_probability"], one["share"])),
                )
                for one in found.reliability.to_dict()
            ],
            header=(f"probability {of}", "rows", "mean probability", "observed share"),
            numbers=True,
        )
    if plot is not None:
        note(f"the picture is in {plot}")


def _report_measured(
    measured: NoisyEvaluation, model: Model, account: Account | None, output: str | None, *, as_json: bool
) -> None:
    if account is None:
        note(
            "no ledger is charged: if these rows are used again, or the model was trained on them, all of it is spent "
            "together"
        )
    if not model.certificate.private:
        warn("the model itself is not private: whatever it tells of these rows is not covered")
    if as_json:
        emit_json(measured.sealed())
        return
    emit_guarantee(measured.guarantee(), private=not measured.reasons)
    without = measured.rows_without_class
    lines = [
        ("rows", f"{measured.rows:,}", "public"),
        ("rows without a declared class", f"{without.value:,.0f}", f"{without.low:,.0f} to {without.high:,.0f}"),
    ]
    lines += [] if measured.threshold is None else [("threshold", f"{measured.threshold:g}", "")]
    for name, score in measured.scores.items():
        lines.append((name, "-", "too few rows") if score is None else (name, _figure(score.value), score.interval))
    emit_table(lines, header=("all rows", "with noise", "95 % interval"), numbers=True)
    if measured.by_group:
        emit("")
        names = [*next(iter(measured.by_group.values()))]
        emit_table(
            [
                (group, *("-" if one is None else one.describe(whole=name == "rows") for name, one in scores.items()))
                for group, scores in measured.by_group.items()
            ],
            header=(str(measured.by), *names),
            numbers=True,
        )
    if measured.calibration:
        emit("")
        emit_table(
            [
                (
                    f"{one['from']:.3f} to {one['to']:.3f}",
                    f"{one['rows']['value']:,.0f}",
                    "-" if one["share"] is None else f"{one['share']['value']:.3f}",
                    "" if one["share"] is None else f"{one['share']['low']:.3f} to {one['share']['high']:.3f}",
                )
                for one in measured.calibration
            ],
            header=(f"probability of {measured.classes[1]}", "rows", "observed share", "95 % interval"),
            numbers=True,
        )
    told = [*ledger_line(account), *([] if output is None else [("result", output)])]
    if told:
        emit("")
        emit_table(told)


def _figure(score: float | None) -> str:
    return "-" if score is None else f"{score:.4f}"
