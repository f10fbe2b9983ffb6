"""The command reference, made of the commands' own help: `python -m website.cli_reference > docs/cli.md`."""

from __future__ import annotations

import click

from boltdp.cli import main
from boltdp.cli._help import show_all_options
from boltdp.cli._terminal import emit

HEAD = """# The command line

This page is what the commands themselves say, by `--help`; of `plan`, `train`, `tune` and
`compare`, which show only the usual options so, by `--help-all`. It is put together by `python -m
website.cli_reference > docs/cli.md`.
"""


def reference() -> str:
    r"""The reference as Markdown.

    >>> reference().splitlines()[0]
    '# The command line'
    """
    root = click.Context(main, info_name="boltdp", terminal_width=100, **main.context_settings)
    show_all_options(root)
    commands = {name: main.get_command(root, name) for name in main.list_commands(root)}
    contexts = [click.Context(command, parent=root, info_name=name) for name, command in commands.items() if command]
    return "\n".join([HEAD, *map(_page, (root, *contexts))])


def _page(context: click.Context) -> str:
    return f"## {context.command_path}\n\n```text\n{context.get_help()}\n```\n"


if __name__ == "__main__":
    emit(reference(), newline=False)
