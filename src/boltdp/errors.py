"""What can go wrong, in words that never contain a private value."""

from __future__ import annotations


class BoltdpError(Exception):
    """A fault the user can mend. The message is one sentence; `hint` says how, when we know."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ParameterError(BoltdpError, ValueError):
    """A parameter is outside its range: the message names it, what it must be, and what it was."""


class DataError(BoltdpError, ValueError):
    """The data does not have the declared shape: a column, a type, a file. Never about a row's value."""


class PrivacyWarning(UserWarning):
    """The result is not covered by a privacy guarantee, or an assumption of it was not declared."""
