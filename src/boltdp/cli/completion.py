from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from boltdp.cli._command_group import command
from boltdp.cli._terminal import emit


@command(
    'eval "$(boltdp completion bash)"    # in this shell only',
    "boltdp completion bash > ~/.local/share/bash-completion/completions/boltdp",
    "boltdp completion zsh > ~/.zfunc/_boltdp    # in ~/.zshrc: fpath+=~/.zfunc; autoload -U compinit; compinit",
    "boltdp completion fish > ~/.config/fish/completions/boltdp.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print a script that completes commands, options, their values and file names, for SHELL to read.

    Put it where your shell looks for such scripts, as below, and open a new shell. It asks the boltdp on the path, so
    that it need not be made again for a newer version. Bash must be 4.4 or newer.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root()
    emit(kind(root.command, {}, "boltdp", "_BOLTDP_COMPLETE").source(), newline=False)
