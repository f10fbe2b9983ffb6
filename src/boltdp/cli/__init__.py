"""The command line: one module a group of commands, each a thin layer over the functions of the package."""

from __future__ import annotations

from boltdp import __version__
from boltdp.cli.memory import check_limit
from boltdp.stopping import ending_at_once

# Before anything large is imported.
check_limit()
with ending_at_once():
    import click

    from boltdp.cli.comparing import compare
    from boltdp.cli.data import schema, synth
    from boltdp.cli.models import keygen, sign, sql, verify
    from boltdp.cli.postgres import postgres
    from boltdp.cli.score import evaluate, predict
    from boltdp.cli.showing import show
    from boltdp.cli.terminal import Commands, emit, examples
    from boltdp.cli.training import plan, train
    from boltdp.cli.tuning import tune


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "boltdp schema patients.parquet --label outcome -o schema.toml",
        "boltdp train patients.parquet --schema schema.toml --epsilon 0.5 -o model.json",
        "boltdp verify model.json",
        "boltdp predict model.json new.parquet -o predictions.csv",
    ),
)
@click.version_option(__version__, message="boltdp %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Train classifiers with differential privacy where the sensitive data already lives.

    A schema says what is public about the data; a model carries a certificate of what was promised.

    Results are on standard output, messages on standard error. The exit code is 0 if all went well, 1 if something
    must be changed in what was asked for, 2 if boltdp is at fault, and 130 after Ctrl-C (143 after SIGTERM, 129 after
    SIGHUP). NO_COLOR turns colours off.
    """
    if context.invoked_subcommand is None:
        emit(context.get_help())


for command in (
    schema,
    plan,
    train,
    tune,
    show,
    verify,
    keygen,
    sign,
    predict,
    evaluate,
    sql,
    compare,
    synth,
    postgres,
):
    main.add_command(command)
