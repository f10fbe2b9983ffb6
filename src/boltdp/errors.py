"""Exceptions, and helpers for messages that never contain a private value."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from numbers import Integral, Real
from typing import Any, get_args

#: The module and the package that each optional extra installs.
EXTRAS = {
    "plot": ("matplotlib", "matplotlib"),
    "postgres": ("psycopg", "psycopg"),
    "sign": ("cryptography", "cryptography"),
    "sklearn": ("sklearn", "scikit-learn"),
    "spark": ("pyspark", "PySpark"),
}
#: The maximum number of characters of a value that a message quotes.
MAX_QUOTED = 80
#: The maximum number of names that a hint lists.
MAX_NAMES = 12


class BoltdpError(Exception):
    """An error that the user can correct. The message is one sentence; `hint` says how to correct it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ParameterError(BoltdpError, ValueError):
    """A parameter is invalid: the message says its name, what it must be, and what it was."""


class DataError(BoltdpError, ValueError):
    """The data does not match the schema: a column, a type, a file. The message never depends on a row's value."""


class SolverError(BoltdpError):
    """Training did not reach the accuracy that the privacy proof requires, and nothing was released."""


class InferenceError(BoltdpError):
    """A model has no coefficients to publish: it was not trained for inference, or noise hides what they need."""


class MissingPackageError(BoltdpError, ImportError):
    """An optional package is not installed."""


def require(extra: str, use: str) -> None:
    """Raise a MissingPackageError if the package of an optional extra, which `use` needs, is not installed."""
    module, name = EXTRAS[extra]
    if find_spec(module) is None:
        raise MissingPackageError(f"{use} needs {name}, which is not installed", hint=f"pip install 'boltdp[{extra}]'")


@contextmanager
def show_hints() -> Iterator[None]:
    """Add the hint of an error as a note, which tracebacks show; Python 3.10 has no notes."""
    try:
        yield
    except BoltdpError as fault:
        if fault.hint is not None and sys.version_info >= (3, 11):
            fault.add_note(f"hint: {fault.hint}")
        raise


def show_value(value: object) -> str:
    """Return the repr of a public value for a message, truncated if it is long."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deeply"
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 4] + " ..."


def make_printable(text: str, *, longest: int = MAX_QUOTED) -> str:
    """Escape control characters in an untrusted text, and truncate it."""
    begin = text[: longest + 1]
    plain = "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in begin)
    return plain if len(plain) <= longest else plain[: longest - 4] + " ..."


def describe_argument(value: object) -> str:
    """Describe an argument that may contain private rows: a number or a text as it is, anything else by its type."""
    plain = value is None or isinstance(value, (str, int, float))
    return show_value(value) if plain else f"an object of type {type(value).__name__!r}"


def quote_names(names: Iterable[str]) -> str:
    """Return up to `MAX_NAMES` public names in their order, in quotes, and the number of others."""
    return join_names([repr(make_printable(name)) for name in names])


def suggest_names(name: str, names: Iterable[str], *, prefix: str = "") -> str | None:
    """Return a hint with the public names closest to an unknown one, each with the prefix `prefix`."""
    by_case: dict[str, str] = {}
    for one in names:
        by_case.setdefault(one.strip().casefold(), one)
    close = difflib.get_close_matches(name.strip().casefold(), by_case, n=3)
    similar = [repr(prefix + make_printable(by_case[one])) for one in close]
    return f"did you mean {' or '.join(similar)}?" if similar else None


def list_names(names: Iterable[str]) -> str:
    """Return up to `MAX_NAMES` public names, sorted, and the number of others."""
    return join_names(sorted(map(make_printable, names)))


def join_names(names: Sequence[str], *, most: int = MAX_NAMES) -> str:
    """Join names by commas, at most `most` of them, and add the number of others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def check_whole_number(value: object, name: str, *, least: int) -> int:
    """Convert an integer of at least `least` to a plain int, or raise a ParameterError about `name`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(f"{name} must be a whole number, got {show_value(value)}")
    if value < least:
        raise ParameterError(f"{name} must be >= {least}, got {show_value(value)}")
    return int(value)


def check_number(value: object, name: str) -> float:
    """Convert a number of any type to a plain float, or raise a ParameterError about `name`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{name} must be a number, got {show_value(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ParameterError(f"{name} must be a number that a double can hold, got a larger one") from None


class PrivacyWarning(UserWarning):
    """The result has no privacy guarantee, or an assumption of the guarantee was not declared."""


def check_choice(value: object, name: str, allowed: Any) -> None:
    """Raise ParameterError unless the value is one of those of a Literal type."""
    if value not in get_args(allowed):
        raise ParameterError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}")
