"""What can go wrong, in words that never contain a private value."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from numbers import Integral, Real

#: What an extra of ours brings: the module that is imported, and the package's name.
EXTRAS = {
    "plot": ("matplotlib", "matplotlib"),
    "postgres": ("psycopg", "psycopg"),
    "sign": ("cryptography", "cryptography"),
    "sklearn": ("sklearn", "scikit-learn"),
    "spark": ("pyspark", "PySpark"),
}
#: Characters of a value that a message quotes.
MAX_QUOTED = 80
#: Names that a hint lists, at most.
MAX_NAMES = 12


class BoltdpError(Exception):
    """A fault the user can mend. The message is one sentence; `hint` says how, when we know."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ParameterError(BoltdpError, ValueError):
    """A parameter is outside its range: the message names it, what it must be, and what it was."""


class DataError(BoltdpError, ValueError):
    """The data does not have the declared shape: a column, a type, a file. Never about a row's value."""


class SolverError(BoltdpError):
    """Training did not reach the accuracy that the privacy proof requires, and nothing was released."""


class MissingPackageError(BoltdpError, ImportError):
    """A package that only some uses need is not installed."""


def require(extra: str, use: str) -> None:
    """Refuse a use that needs a package which only comes with an extra, if it is not installed.

    >>> require("sklearn", "an estimator")
    """
    module, name = EXTRAS[extra]
    if find_spec(module) is None:
        raise MissingPackageError(f"{use} needs {name}, which is not installed", hint=f"pip install 'boltdp[{extra}]'")


@contextmanager
def hints_shown() -> Iterator[None]:
    """Let Python show the hint of an error below its message, as the commands do; Python 3.10 has no notes for it.

    >>> try:
    ...     with hints_shown():
    ...         raise ParameterError("epsilon must be > 0, got 0", hint="epsilon=1 is a usual one")
    ... except ParameterError as fault:
    ...     print(getattr(fault, "__notes__", ["hint: epsilon=1 is a usual one"]))
    ['hint: epsilon=1 is a usual one']
    """
    try:
        yield
    except BoltdpError as fault:
        if fault.hint is not None and sys.version_info >= (3, 11):
            fault.add_note(f"hint: {fault.hint}")
        raise


def shown(value: object) -> str:
    """A public value as a message may quote it: as Python writes it, but never long, and without an error.

    >>> shown([1, "a"]), len(shown("a" * 999)), shown(10**9999)
    ("[1, 'a']", 80, 'a number of thousands of digits')
    """
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deeply"
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 4] + " ..."


def printable(text: str, *, longest: int = MAX_QUOTED) -> str:
    r"""A text of unknown origin as it may be shown: without control characters, which a terminal obeys, and not long.

    >>> print(printable("a\x1b[2J\u202eb"), printable("a" * 99, longest=9))
    a\x1b[2J\u202eb aaaaa ...
    """
    # Only so much of it as can be shown, however long it is.
    begin = text[: longest + 1]
    plain = "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in begin)
    return plain if len(plain) <= longest else plain[: longest - 4] + " ..."


def described(value: object) -> str:
    """A value as a message may quote it where it may be rows, by mistake: a number or a text, or else its type.

    >>> described(110), described([1, 0, 1]), described({"a": 1})
    ('110', "an object of type 'list'", "an object of type 'dict'")
    """
    plain = value is None or isinstance(value, (str, int, float))
    return shown(value) if plain else f"an object of type {type(value).__name__!r}"


def quoted(names: Iterable[str]) -> str:
    """Some public names in their own order, in quotes, and how many more there are.

    >>> quoted(["b", "a"])
    "'b', 'a'"
    """
    every = [repr(printable(name)) for name in names]
    more = len(every) - MAX_NAMES
    return ", ".join(every[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def near(name: str, names: Iterable[str], *, before: str = "") -> str | None:
    """A hint at public names that look like one that is not there; `before` each stands where they all are.

    >>> near("Age", ["age", "sex"]), near("weight", ["age", "sex"])
    ("did you mean 'age'?", None)
    """
    by_case: dict[str, str] = {}
    for one in names:
        by_case.setdefault(one.strip().casefold(), one)
    close = difflib.get_close_matches(name.strip().casefold(), by_case, n=3)
    return f"did you mean {' or '.join(repr(before + printable(by_case[one])) for one in close)}?" if close else None


def listed(names: Iterable[str]) -> str:
    """Some public names in one line, and how many more there are.

    >>> listed(["b", "a"]), listed(map(str, range(14)))
    ('a, b', '0, 1, 10, 11, 12, 13, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    every = sorted(map(printable, names))
    more = len(every) - MAX_NAMES
    return ", ".join(every[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def whole_number(value: object, name: str, *, least: int) -> int:
    """`value` as a plain int, or a ParameterError.

    >>> whole_number(3, "passes", least=1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(f"{name} must be a whole number, got {shown(value)}")
    if value < least:
        raise ParameterError(f"{name} must be >= {least}, got {shown(value)}")
    return int(value)


def real_number(value: object, name: str) -> float:
    """`value` as a plain float, whatever kind of number it was, or a ParameterError.

    >>> real_number(3, "radius")
    3.0
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{name} must be a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ParameterError(f"{name} must be a number that a double can hold, got a larger one") from None


class PrivacyWarning(UserWarning):
    """The result is not covered by a privacy guarantee, or an assumption of it was not declared."""
