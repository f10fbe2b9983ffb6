from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from boltdp._charts import check_can_draw
from boltdp._files.outputs import check_writable
from boltdp.cli import _options
from boltdp.cli._command_group import INTERRUPTED, command
from boltdp.cli._help import GroupedCommand
from boltdp.cli._terminal import emit, emit_guarantee, emit_json, emit_table, note, show_bar, warn
from boltdp.engines import open_source
from boltdp.errors import ParameterError
from boltdp.settings import Settings
from boltdp.workflows.compare import COMPARED_ALGORITHMS, Comparison, draw_comparison
from boltdp.workflows.compare import compare as compare_algorithms

WARNING = (
    "NOT PRIVATE: this trains many models and measures them without noise. It is for non-sensitive data, "
    "never for private rows."
)


@command(
    "boltdp compare public.parquet --schema schema.toml --epsilon 0.05,0.1,0.2,0.4 -o comparison.json",
    "boltdp compare train.csv --test test.csv --schema schema.toml --epsilon 0.1,1 --repeats 10 -o comparison.json",
    cls=GroupedCommand,
)
@_options.source_options
@_options.training_options
@_options.file_option("--test", help="Rows to test on, instead of a random fifth of SOURCE.")
@click.option("--epsilon", "epsilons", required=True, metavar="LIST", help="Budgets, with commas between them.")
@click.option(
    "--algorithms",
    default="noiseless,bolton",
    show_default=True,
    metavar="LIST",
    help=f"Some of {', '.join(COMPARED_ALGORITHMS)}, with commas between them.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=10, show_default=True, help="Trainings of each.")
@_options.file_option(
    "-o", "--output", default="comparison.json", show_default=True, metavar="JSON", help="Where results are kept."
)
@_options.file_option("--picture", metavar="PNG", help="Where to draw them.  [default: beside the results]")
@_options.make_settings_options("epsilon", "algorithm", "inference", "robust_errors")
@_options.threads_option
@_options.json_option
def compare(
    *,
    data: _options.Data,
    test: str | None,
    epsilons: str,
    algorithms: str,
    repeats: int,
    output: str,
    picture: str | None,
    threads: int,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Train several algorithms on SOURCE at several budgets, and compare their accuracy and run time.

    All have the same rows, passes, batch size and curves, those of the schema or of --curves: none is added by auto.
    Results are kept in the output file after every training: after
    Ctrl-C the same command goes on where it stopped. Accuracies are measured without noise, so this is for
    non-sensitive data, and never for private rows.
    """
    try:
        budgets = [float(word) for word in epsilons.split(",")]
    except ValueError:
        raise ParameterError(f"--epsilon must be numbers with commas between them, got {epsilons!r}") from None
    names = [word.strip() for word in algorithms.split(",")]
    schema = data.load_schema()
    drawn = str(Path(output).with_suffix(".png")) if picture is None else picture
    check_writable(output)
    check_can_draw(drawn)
    earlier = Comparison.load(output) if Path(output).exists() else None
    warn(WARNING)
    kept = 0

    def keep(results: Comparison) -> None:
        nonlocal kept
        results.save(output)
        kept = len(results.runs)

    with (
        data.open() as engine,
        nullcontext() if test is None else open_source(test, spool=data.spool) as testing,
        show_bar(unit="done") as bar,
    ):
        settings = Settings(epsilon=None, **chosen)
        try:
            made = compare_algorithms(
                engine,
                schema,
                settings,
                names=names,
                epsilons=budgets,
                repeats=repeats,
                test=testing,
                resume_from=earlier,
                keep=keep,
                context=settings.context(progress=bar, threads=threads),
            )
        except KeyboardInterrupt:
            note(f"interrupted; {kept} trainings are kept in {output}: the same command goes on from there")
            raise click.exceptions.Exit(INTERRUPTED) from None
    draw_comparison(made, drawn)
    if as_json:
        emit_json(made.to_dict())
        return
    emit_guarantee(WARNING, private=False)
    emit_table(
        [
            (
                one.algorithm if one.private else f"{one.algorithm} (not private)",
                "" if one.epsilon is None else f"{one.epsilon:g}",
                f"{one.score:.4f} ± {one.score_spread:.4f}",
                f"{one.seconds:.3f} ± {one.seconds_spread:.3f}",
                f"{one.repeats}",
            )
            for one in made.summarize_runs()
        ],
        header=("algorithm", "epsilon", made.about["score"], "seconds", "trainings"),
        numbers=True,
    )
    emit(f"Results are in {output}, a picture of them in {drawn}.")
