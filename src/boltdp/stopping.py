"""Whether the process was asked to stop.

A signal raises KeyboardInterrupt wherever the program is, and that may be in a library that swallows it. So what
handles signals leaves a note here too, which is looked at with every block of rows and right before a file is replaced.
Where nobody handles signals, as in a library, there is never a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_asked = False
_held = 0


def ask() -> bool:
    """Note that the process was asked to stop; whether it may be interrupted right now."""
    global _asked
    _asked = True
    return not _held


def asked() -> bool:
    """Whether it was."""
    return _asked


def forget() -> None:
    """Begin anew."""
    global _asked
    _asked = False


def check() -> None:
    """Stop, if that was asked for.

    >>> check()
    >>> ask()
    True
    >>> check()
    Traceback (most recent call last):
    KeyboardInterrupt
    >>> forget()
    """
    if _asked:
        raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """What is done inside is done whole, unless the process was asked to stop before.

    >>> with uninterrupted():
    ...     ask()
    False
    >>> forget()
    """
    global _held
    _held += 1
    try:
        check()
        yield
    finally:
        _held -= 1
