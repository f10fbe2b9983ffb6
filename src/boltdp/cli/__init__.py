"""The command line: one module per command, of the same name, each a thin layer over the package's functions."""

from __future__ import annotations

import gc

from boltdp._interrupts import let_signal_end_process
from boltdp._version import __version__
from boltdp.cli._check_address_space import check_memory_limit

# These must come before any large import, which makes a hundred thousand objects and no garbage.
check_memory_limit()
gc.set_threshold(100_000)
with let_signal_end_process():
    import click

    from boltdp.cli._command_group import Commands, add_common_options, format_examples
    from boltdp.cli._terminal import emit

#: The commands in the order in which they are typically used, with their help lines; each is in the module of its name.
COMMANDS = {
    "schema": "Draft a schema for SOURCE from the names and types of its columns.",
    "check": "Compare non-sensitive rows with a schema.",
    "plan": "Show how much noise there will be, without data.",
    "train": "Train a model on the rows of SOURCE.",
    "tune": "Choose settings and train, within one budget.",
    "show": "Show what MODEL says about each column.",
    "coefficients": "Print coefficients of MODEL with standard errors and intervals.",
    "verify": "Recompute the guarantee of MODEL.",
    "audit": "Attack the guarantee of MODEL, or of a training, without private rows.",
    "keygen": "Make a pair of keys to sign models with.",
    "sign": "Sign MODEL.",
    "predict": "Predict the class, or the number, of each row of SOURCE, in the order of the rows.",
    "evaluate": "Measure how well a model predicts the label of the rows of SOURCE.",
    "card": "Write the model card of MODEL, or its record for the OpenDP deployments registry.",
    "sql": "Print a SQL expression that predicts.",
    "compare": "Compare algorithms on non-sensitive data.",
    "synth": "Write synthetic rows to OUTPUT.",
    "ledger": "Keep the budget of a dataset, and see what was spent.",
    "postgres": "Train inside PostgreSQL: the rows never leave the server.",
    "completion": "Print a script that lets your shell complete boltdp commands.",
}


@click.group(
    cls=Commands,
    package=__name__,
    lines=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=format_examples(
        "boltdp schema patients.parquet --label outcome -o schema.toml",
        "boltdp train patients.parquet --schema schema.toml --epsilon 0.5 -o model.json",
        "boltdp verify model.json",
        "boltdp predict model.json new.parquet -o predictions.csv",
    ),
)
@click.version_option(__version__, message="boltdp %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Train classifiers and regressions with differential privacy where the sensitive data already lives.

    A schema says what is public about the data; a model carries a certificate of its guarantee.

    Results are on standard output, messages on standard error. The exit code is 0 if all went well, 1 if something
    must be changed in the command, 2 if boltdp is at fault, and 130 after Ctrl-C (143 after SIGTERM, 129 after
    SIGHUP). NO_COLOR turns colours off.
    """
    if context.invoked_subcommand is None:
        emit(context.get_help())


add_common_options(main)
