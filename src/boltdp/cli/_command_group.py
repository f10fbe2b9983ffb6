"""The click group of all commands: common options, examples in the help, signals, errors and exit codes."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

import boltdp
from boltdp import _interrupts
from boltdp._files import outputs
from boltdp.cli._terminal import print_message, store_flag, warn
from boltdp.errors import BoltdpError

USER_ERROR, INTERNAL_ERROR, INTERRUPTED = 1, 2, 130

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
        command.params.append(eager_flag([letter, f"--{name}"], callback=store_flag, help=line))
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        add_common_options(inner)


@contextmanager
def _handle_signals(stopped: list[int]) -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that temporary files, which hold private rows, are removed.

    Signal numbers are appended to `stopped`, since a library may swallow the exception.
    """
    since = 0.0

    def request_stop(number: int, _: object) -> None:
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
        signal.signal(each, request_stop)
    try:
        yield
    finally:
        for each, found in handled.items():
            signal.signal(each, found)
        _interrupts.clear_request()


def format_examples(*lines: str) -> str:
    """Format the examples at the end of a command's help; the backspace keeps click from wrapping them."""
    return "\n  ".join(["\b\nExamples:", *lines])


def command(
    *lines: str, group: click.Group | None = None, **options: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command, of its own or within a group, whose help ends with examples."""
    make = click.command if group is None else group.command
    return make(epilog=format_examples(*lines), **options)


def _print_error(message: str, *, hint: str | None = None, code: int = USER_ERROR) -> int:
    print_message("error", message, colour="red")
    if hint is not None:
        print_message("hint", hint, colour="cyan")
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
