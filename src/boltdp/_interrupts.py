"""Whether the process was asked to stop.

A signal raises KeyboardInterrupt wherever the program is, and that may be in a library that swallows it. So what
handles signals leaves a note here too, which is looked at with every block of rows and right before a file is replaced.
Where nobody handles signals, as in a library, there is never a note.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_stop_requested = False
_shield_depth = 0


def request_stop() -> bool:
    """Note that the process was asked to stop; whether it may be interrupted right now."""
    global _stop_requested
    _stop_requested = True
    return not _shield_depth


def is_stop_requested() -> bool:
    """Whether the process was asked to stop."""
    return _stop_requested


def reset() -> None:
    """Forget that the process was asked to stop."""
    global _stop_requested
    _stop_requested = False


def check() -> None:
    """Stop, if that was asked for.

    >>> check()
    >>> request_stop()
    True
    >>> try:
    ...     check()
    ... except KeyboardInterrupt:
    ...     print("stopped")
    stopped
    >>> reset()
    """
    if _stop_requested:
        raise KeyboardInterrupt


@contextmanager
def let_signal_end_process() -> Iterator[None]:
    """Let Ctrl-C end the process itself, for imports that could swallow it and where there is nothing to clean."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def check_and_shield() -> Iterator[None]:
    """What is done inside is done whole, unless the process was asked to stop before.

    >>> with check_and_shield():
    ...     request_stop()
    False
    >>> reset()
    """
    with shield():
        check()
        yield


@contextmanager
def shield() -> Iterator[None]:
    """What is done inside is done whole, even if the process was asked to stop: for what must not be half done.

    >>> with shield():
    ...     request_stop()
    False
    >>> reset()
    """
    global _shield_depth
    _shield_depth += 1
    try:
        yield
    finally:
        _shield_depth -= 1
