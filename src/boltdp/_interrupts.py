"""A flag for requests to stop the process.

A signal raises KeyboardInterrupt anywhere, also in a library that swallows it. So the signal handler sets a flag here
too, which is checked with every block of rows and right before a file is replaced. Without a signal handler, as when
boltdp is used as a library, the flag is never set.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_stop_requested = False
_shield_depth = 0


def request_stop() -> bool:
    """Set the flag, and return whether the process may be interrupted now, outside all shields."""
    global _stop_requested
    _stop_requested = True
    return not _shield_depth


def clear_request() -> None:
    """Clear the flag that `request_stop` sets."""
    global _stop_requested
    _stop_requested = False


def check() -> None:
    """Raise KeyboardInterrupt if the process was asked to stop."""
    if _stop_requested:
        raise KeyboardInterrupt


@contextmanager
def let_signal_end_process() -> Iterator[None]:
    """Let Ctrl-C end the process at once, for imports that could swallow it and need no cleanup."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    replaced = usual and threading.current_thread() is threading.main_thread()  # only that may set handlers
    try:
        if replaced:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        yield
    finally:
        if replaced:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def check_and_shield() -> Iterator[None]:
    """Raise KeyboardInterrupt if the process was asked to stop, else run the body without interruption."""
    with shield():
        check()
        yield


@contextmanager
def shield() -> Iterator[None]:
    """Run the body without interruption, even if the process was asked to stop.

    >>> with shield():
    ...     request_stop()
    False
    >>> clear_request()
    """
    global _shield_depth
    _shield_depth += 1
    try:
        yield
    finally:
        _shield_depth -= 1
