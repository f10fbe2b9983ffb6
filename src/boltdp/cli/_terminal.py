"""Output to the terminal, shared by all commands: results, messages and progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

import click

from boltdp._files import outputs
from boltdp.errors import make_printable

#: The most characters of a cell that a table shows.
MAX_CELL = 1000


def store_flag(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    """Store that a common option is given, for `is_given`: the callback of the option."""
    if given:
        context.meta[f"{__name__}.{parameter.name}"] = True


def is_given(name: Literal["quiet", "verbose"]) -> bool:
    """Return whether a common option is given, before or after the command's name."""
    context = click.get_current_context(silent=True)
    return context is not None and f"{__name__}.{name}" in context.meta


def emit(text: str, *, newline: bool = True) -> None:
    """Print a result on standard output; letters that its encoding lacks are replaced: Greek by names, others by ?."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if not can_encode(text):
        text = text.replace("ε", "epsilon").replace("δ", "delta").encode(encoding, "replace").decode(encoding)
    try:
        click.echo(text, nl=newline)
    except BrokenPipeError:
        raise  # click ends the program quietly
    except OSError as fault:
        # What is left in the buffer could fail again when Python exits, which would then have a status of its own.
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise outputs.OutputError(f"the standard output cannot be written: {fault.strerror}") from None


def can_encode(text: str) -> bool:
    """Return whether the encoding of standard output has all characters of `text`."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def emit_json(record: Mapping[str, Any]) -> None:
    """Print a result as JSON."""
    emit(json.dumps(record, indent=1))


def emit_table(rows: Sequence[Sequence[str]], *, header: Sequence[str] | None = None, numbers: bool = False) -> None:
    """Print a result as a table; `numbers` right-aligns all columns but the first."""
    # Imported here and below because many commands print no table and no progress bar.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=header is not None, pad_edge=False, header_style="bold")
    for index in range(len(rows[0])):
        right = numbers and index > 0
        name = Text(make_printable(header[index], longest=MAX_CELL)) if header else ""
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(make_printable(cell, longest=MAX_CELL)) for cell in row))
    # Lines are wrapped for a terminal only, since programs read a pipe line by line.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 1000)
    with console.capture() as captured:
        console.print(table)
    emit("\n".join(line.rstrip() for line in captured.get().splitlines()))


def emit_guarantee(guarantee: str, *, private: bool) -> None:
    """Print the guarantee, in red if the model is not private."""
    emit(guarantee if private else _colour(guarantee, "red"))


def note(message: str) -> None:
    """Print a note on standard error, unless --quiet is given."""
    if not is_given("quiet"):
        print_message("note", message, colour="cyan")


def state_condition(message: str) -> None:
    """Print an assumption of the guarantee that boltdp cannot check on standard error, even with --quiet."""
    print_message("condition", message, colour="yellow")


def warn(message: str) -> None:
    """Print a warning on standard error, even with --quiet."""
    print_message("warning", message, colour="red")


@contextmanager
def show_bar(*, unit: str = "rows") -> Iterator[Callable[..., None]]:
    """Show a progress bar if standard error is a terminal; yield a function of stage, done and total."""
    if is_given("quiet") or not sys.stderr.isatty():
        yield lambda *_, **__: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit)
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task, current = progress.add_task("", visible=False), ""

        def show(stage: str, done: int, total: int) -> None:
            nonlocal current
            if stage != current:
                progress.reset(task, description=stage, total=total, visible=True)
                current = stage
            progress.update(task, completed=done)

        yield show


def print_message(kind: str, message: str, *, colour: str) -> None:
    """Print a message of one kind, such as "warning", on standard error."""
    # Names in the message may come from an untrusted file: control characters must not reach the terminal.
    message = "\n".join(make_printable(line, longest=len(message)) for line in message.split("\n"))
    click.echo(f"{_colour(f'{kind}:', colour)} {message}", err=True)


def _colour(text: str, colour: str) -> str:
    """Return bold text of a colour; click drops both where the output is no terminal."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else click.style(text, fg=colour, bold=True)
