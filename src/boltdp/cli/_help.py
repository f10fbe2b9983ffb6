"""Help in groups of options: `--help` shows the common ones, `--help-all` shows all."""

from __future__ import annotations

from typing import Any

import click

from boltdp.cli._command_group import eager_flag
from boltdp.cli._terminal import emit
from boltdp.settings import OPTIONS

#: The options of `plan`, `train`, `tune` and `compare` that are not settings, by the names of their parameters: first
#: those that `--help` shows, then those that only `--help-all` shows.
_COMMAND_OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Data": (
        (
            *("rows", "features", "classes", "number", "table", "query", "schema_path", "label", "target"),
            *("person_id", "max_rows_per_person"),
        ),
        (),
    ),
    "Privacy": (("epsilons", "noiseless", "in_server"), ()),
    "Ledger": ((), ("ledger", "dataset", "blocks")),
    "Choosing": (
        ("grids", "method", "public", "algorithms", "repeats", "test"),
        ("public_rows", "trials", "inverse_radius"),
    ),
    "Model": (("threshold",), ()),
    "Algorithm": ((), ()),
    "Standardizing": ((), ()),
    "Output": (("output", "overwrite", "picture", "as_json", "quiet", "verbose"), ()),
    "Running": ((), ("threads", "spool")),
    "Research and tests": ((), ("on_bad_row",)),
}


#: All options of each group, with the settings first.
GROUPS = {
    title: tuple(
        [*(name for name, one in OPTIONS.items() if one.group == title and one.usual == usual), *others]
        for usual, others in zip((True, False), listed, strict=True)
    )
    for title, listed in _COMMAND_OPTIONS.items()
}
#: The heading of the options that are in no group.
OTHERS = "Other options"

_ALL = f"{__name__}.all"


class GroupedCommand(click.Command):
    """A command whose help lists its options in groups."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(eager_flag(["--help-all"], callback=_print_full_help, help="Show all options and exit."))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        whole, hidden = bool(ctx.meta.get(_ALL)), 0
        found = {
            param.name: record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None
        }
        for title, (usual, rare) in GROUPS.items():
            records = [found.pop(name) for name in usual if name in found]
            more = [found.pop(name) for name in rare if name in found]
            hidden += 0 if whole else len(more)
            records += more if whole else []
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        with formatter.section(OTHERS):
            formatter.write_dl([*found.values()])
        if hidden:
            formatter.write_paragraph()
            formatter.write_text(f"{hidden} more options, which few need: {ctx.command_path} --help-all")


def show_all_options(ctx: click.Context) -> None:
    """Make the help text of a command and of its subcommands list every option, as --help-all does."""
    ctx.meta[_ALL] = True


def _print_full_help(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        show_all_options(ctx)
        emit(ctx.get_help())
        ctx.exit()
