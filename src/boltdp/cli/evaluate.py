from __future__ import annotations

import json

import click

from boltdp._charts import check_can_draw
from boltdp._files.outputs import write_text
from boltdp.cli import _options
from boltdp.cli._command_group import command
from boltdp.cli._terminal import emit, emit_guarantee, emit_json, emit_table, note, state_condition, warn
from boltdp.errors import ParameterError
from boltdp.evaluation.evaluate import describe_rows_without_label, evaluate_privately
from boltdp.evaluation.evaluate import evaluate as evaluate_exactly
from boltdp.evaluation.evaluation import Evaluation
from boltdp.evaluation.noisy_evaluation import NoisyEvaluation
from boltdp.model import Threshold
from boltdp.privacy.budget import Budget
from boltdp.run_context import Context


@command(
    "boltdp evaluate model.json test.parquet",
    "boltdp evaluate model.json test.csv --json",
    "boltdp evaluate model.json hospital.duckdb --table visits_2024 --plot evaluation.png",
    "boltdp evaluate model.json private.parquet --epsilon 0.2 --by sex -o evaluation.json",
)
@click.argument("model_path", metavar="MODEL", type=_options.FILE)
@_options.source_options
@_options.scoring_threshold_option
@_options.file_option(
    "--plot",
    help="Draw curves, calibration, scores and the confusion matrix, or predicted against true numbers: .png, .svg or "
    ".pdf; needs `pip install 'boltdp[plot]'`.",
)
@click.option("--by", metavar="COLUMN", help="Also give the figures of each category of this column of the schema.")
@click.option("--epsilon", type=float, help="For private rows: add noise, and spend this much.")
@click.option("--delta", type=float, help="With --epsilon; 0 is pure differential privacy.  [default: 0]")
@_options.file_option(
    "-o", "--output", metavar="JSON", help="With --epsilon: where to write the result, for `boltdp card`."
)
@click.option("--overwrite", is_flag=True, help="Replace what is at --output.")
@_options.ledger_options
@_options.threads_option
@_options.json_option
def evaluate(
    model_path: str,
    *,
    data: _options.Data,
    threshold: Threshold | None,
    plot: str | None,
    by: str | None,
    epsilon: float | None,
    delta: float | None,
    output: str | None,
    overwrite: bool,
    threads: int,
    as_json: bool,
) -> None:
    """Measure how well a model predicts the label of the rows of SOURCE.

    Of classes: accuracy, log loss, Brier score, areas under the ROC and the precision-recall curve, the confusion
    matrix, figures of each class, and how well probabilities are calibrated, with 95 % intervals. Of numbers: R2, mean,
    median and squared errors beside those of a constant, the share of labels below the prediction, for a quantile its
    pinball loss, and Poisson deviance. --json has curves or a histogram too.

    The result is computed from the rows without noise: it is for non-sensitive data, and no guarantee covers it. Rows
    whose label is no declared class, or no number, are left out, and counted; if most rows are, it fails.

    With --epsilon the rows may be private: they are counted in a few hundred bins, each count gets noise, and all
    figures follow from these. Average precision, calibration error, and of more than two classes areas, precisions and
    the confusion matrix, cannot be computed from them. A ledger is charged as by `boltdp train`. If the model was
    trained on the same rows, both epsilons are spent.
    """
    model = _options.load_model(model_path, threshold=threshold)
    charged = {"--ledger": data.ledger, "--dataset": data.dataset, "--blocks": data.blocks}
    spending = [name for name, value in {"--delta": delta, "--output": output, **charged}.items() if value is not None]
    if epsilon is None and spending:
        raise ParameterError(
            f"{spending[0]} must be given with --epsilon",
            hint="without it nothing is spent, and the rows must be non-sensitive data",
        )
    if output is not None:
        _options.check_output(output, overwrite=overwrite)
    if plot is not None:
        check_can_draw(plot)
    if epsilon is not None:
        data.state_query_condition()
    context, account = Context(threads=threads), None
    found: Evaluation
    with data.open() as engine:
        if epsilon is None:
            found = evaluate_exactly(model, engine, by=by, context=context)
        else:
            budget = Budget(epsilon, delta or 0.0)
            account = data.find_account()
            found = evaluate_privately(model, engine, budget, by=by, context=context, account=account)
    if isinstance(found, NoisyEvaluation):
        if output is not None:
            write_text(output, json.dumps(found.seal(), indent=1, allow_nan=False) + "\n")
        if account is None:
            state_condition(
                "no ledger is charged: if these rows are used again, or the model was trained on them, all of it is "
                "spent together"
            )
        if not model.certificate.private:
            warn("the model itself is not private: what it reveals of these rows is not covered")
    else:
        state_condition("this is computed from the rows without noise: they must be non-sensitive data")
    left_out = describe_rows_without_label(model, found)
    if left_out is not None:
        warn(left_out)
    if plot is not None:
        found.plot(plot)
        note(f"the picture is in {plot}")
    if as_json:
        emit_json(found.seal() if isinstance(found, NoisyEvaluation) else found.to_dict())
        return
    if isinstance(found, NoisyEvaluation):
        emit_guarantee(found.guarantee(), private=not found.reasons)
    _print_metrics(found)
    written = [*_options.describe_ledger(account), *([] if output is None else [("result", output)])]
    if written:
        emit("")
        emit_table(written)


def _print_metrics(found: Evaluation) -> None:
    without, value = found.rows_without_label, "value" if found.is_exact else "with noise"
    interval = "" if found.is_exact else f"{without.low:,.0f} to {without.high:,.0f}"
    lines = [
        ("rows", f"{found.rows:,}", "" if found.is_exact else "public"),
        (f"rows without a {found.statistics.usable_label}", f"{without.value:,.0f}", interval),
    ]
    for name, score in found.scores.items():
        lines.append((name, "-", "too few rows") if score is None else (name, score.text, score.interval))
    lines += [(name, text, "") for name, text in found.statistics.describe_other_figures()]
    emit_table(lines, header=("all rows", value, "95 % interval"), numbers=True)
    for header, described in found.make_tables(detailed=True):
        emit("")
        emit_table(described, header=header, numbers=True)
