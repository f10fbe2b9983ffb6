"""Output shared by all commands: results, messages, progress, errors and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.table import Table
from rich.text import Text

import boltdp
from boltdp import _interrupts
from boltdp._files import outputs
from boltdp.errors import BoltdpError, make_printable

USER_ERROR, INTERNAL_ERROR, INTERRUPTED = 1, 2, 130

MAX_CELL = 1000

#: Seconds for cleanup after a signal, during which further signals are ignored.
CLEANUP_SECONDS = 5.0


class Commands(click.Group):
    """A command group that prints errors as one sentence, sets the exit code, and never quotes private values.

    `lines` maps each command to its line in the help. A command is imported when it is run: the command `train` is the
    attribute `train` of the module `train` in `package`.
    """

    def __init__(self, *args: Any, package: str, lines: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._package, self._lines = package, lines

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lines:
            return None
        # A library that is interrupted during import may swallow the interrupt or stay partly imported.
        with _interrupts.check_and_shield():
            command: click.Command = getattr(import_module(f"{self._package}.{cmd_name}"), cmd_name)
        _interrupts.check()
        command.short_help = self._lines[cmd_name]
        add_common_options(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*self._lines.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        named = [CompletionItem(name, help=line) for name, line in self._lines.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        stopped: list[int] = []
        replaced = len(outputs.replaced_files)
        try:
            with _handle_signals(stopped):
                try:
                    # Exit codes of --help and the like are returned; commands return nothing.
                    code = super().main(*args, **kwargs) or 0
                except Exception:
                    _interrupts.check()  # a library may have turned the interrupt into another error
                    raise
                # After an interrupt the exit code must not be that of success.
                if not code:
                    _interrupts.check()
        except click.UsageError as fault:
            command = fault.ctx.command_path if fault.ctx else "boltdp"
            message = re.sub(r"\s*\n\s*", " ", fault.format_message())  # click writes one choice per line
            code = _print_error(message.rstrip("."), hint=f"see `{command} --help`")
        except click.ClickException as fault:
            code = _print_error(fault.format_message())
        except BoltdpError as fault:
            code = _print_error(str(fault), hint=fault.hint)
        except (click.Abort, KeyboardInterrupt):
            written = len(outputs.replaced_files) > replaced
            code = _print_error(
                f"interrupted; {'the output was written already' if written else 'no output file was changed'}",
                code=INTERRUPTED,
            )
        except Exception as fault:
            # Python raises this RuntimeError if there is no memory for another thread.
            no_thread = isinstance(fault, RuntimeError) and str(fault) == "can't start new thread"
            no_memory = no_thread or isinstance(fault, MemoryError)
            code = _print_error("there is not enough memory") if no_memory else _print_internal_error(fault)
        sys.exit(128 + stopped[0] if stopped else code)


#: Makes a flag that acts by its callback, before other options are parsed.
eager_flag = partial(click.Option, is_flag=True, is_eager=True, expose_value=False)

#: The options of every command, which may also precede its name.
COMMON_OPTIONS = {
    "quiet": ("-q", "Show no notes and no progress bar; conditions of the guarantee and warnings are always shown."),
    "verbose": ("-v", "Show more about the noise and the training."),
}


def add_common_options(command: click.Command) -> None:
    """Add the common options to a command and its subcommands."""
    if any(one.name in COMMON_OPTIONS for one in command.params):
        return
    for name, (letter, line) in COMMON_OPTIONS.items():
        command.params.append(eager_flag([letter, f"--{name}"], callback=_store_flag, help=line))
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        add_common_options(inner)


def _store_flag(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given:
        context.meta[f"{__name__}.{parameter.name}"] = True


def is_given(name: Literal["quiet", "verbose"]) -> bool:
    """Return whether a common option is given, before or after the command's name."""
    context = click.get_current_context(silent=True)
    return context is not None and f"{__name__}.{name}" in context.meta


@contextmanager
def _handle_signals(stopped: list[int]) -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that temporary files, which hold private rows, are removed.

    Signal numbers are appended to `stopped`, since a library may swallow the exception.
    """
    since = 0.0

    def stop(number: int, _: object) -> None:
        nonlocal since
        interruptible, now = _interrupts.request_stop(), time.monotonic()
        if stopped and now - since < CLEANUP_SECONDS:
            return  # a second signal must not interrupt the cleanup
        stopped.append(number)
        since = now
        if interruptible:
            raise KeyboardInterrupt

    # Ignored signals, as under nohup, stay ignored; only the main thread may set handlers.
    ours = threading.current_thread() is threading.main_thread()
    usual = (signal.SIG_DFL, signal.default_int_handler)
    handled = {
        each: found
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if ours and (found := signal.getsignal(each)) in usual
    }
    _interrupts.clear_request()
    for each in handled:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each, found in handled.items():
            signal.signal(each, found)
        _interrupts.clear_request()


def examples(*lines: str) -> str:
    """Format the examples at the end of a command's help; the backspace keeps click from wrapping them."""
    return "\n  ".join(["\b\nExamples:", *lines])


def command(
    *lines: str, within: click.Group | None = None, **options: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command, of its own or within a group, whose help ends with examples."""
    make = click.command if within is None else within.command
    return make(epilog=examples(*lines), **options)


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
    # click drops the colour if standard output is no terminal.
    emit(guarantee if private or os.environ.get("NO_COLOR") else click.style(guarantee, fg="red", bold=True))


def note(message: str) -> None:
    """Print a note on standard error, unless --quiet is given."""
    if not is_given("quiet"):
        _print_message("note", message, style="bold cyan")


def state_condition(message: str) -> None:
    """Print an assumption of the guarantee that boltdp cannot check on standard error, even with --quiet."""
    _print_message("condition", message, style="bold yellow")


def warn(message: str) -> None:
    """Print a warning on standard error, even with --quiet."""
    _print_message("warning", message, style="bold red")


@contextmanager
def show_bar(*, unit: str = "rows") -> Iterator[Callable[..., None]]:
    """Show a progress bar if standard error is a terminal; yield the function of stage, done and total to update it."""
    # Imported here because few commands show a progress bar.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit)
    hidden, console = is_given("quiet") or not sys.stderr.isatty(), Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as progress:
        task, current = progress.add_task("", visible=False), ""

        def show(stage: str, done: int, total: int) -> None:
            nonlocal current
            if stage != current:
                progress.reset(task, description=stage, total=total, visible=True)
                current = stage
            progress.update(task, completed=done)

        yield show


def _print_message(kind: str, message: str, *, style: str) -> None:
    # Names in the message may come from an untrusted file: control characters must not reach the terminal.
    message = "\n".join(make_printable(line, longest=len(message)) for line in message.split("\n"))
    # rich handles NO_COLOR and the type of the terminal.
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble((f"{kind}:", style), f" {message}"))


def _print_error(message: str, *, hint: str | None = None, code: int = USER_ERROR) -> int:
    _print_message("error", message, style="bold red")
    if hint is not None:
        _print_message("hint", hint, style="bold cyan")
    return code


def _print_internal_error(fault: Exception) -> int:
    """Print where an unexpected exception was raised, but not its message, which may quote a row."""
    if os.environ.get("BOLTDP_DEBUG"):
        warn("what follows may show private values")
        traceback.print_exception(fault)
    package = Path(boltdp.__file__).parent
    frames = [one for one in traceback.extract_tb(fault.__traceback__) if Path(one.filename).is_relative_to(package)]
    place = f"{Path(frames[-1].filename).relative_to(package)}:{frames[-1].lineno}" if frames else "a library"
    return _print_error(
        f"internal error ({type(fault).__name__} in {place}); please report this line",
        hint="BOLTDP_DEBUG=1 shows the whole error, which may quote private values",
        code=INTERNAL_ERROR,
    )
