"""Declared values of classes and categories, and the rule by which a cell matches them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from boltdp.errors import ParameterError, show_value

Value: TypeAlias = str | int | float | bool
#: The treatment of missing and undeclared values; "error" is for data that is not private.
OnBadRow = Literal["neutral", "error"]

#: The spellings of False and True, which match 0 and 1.
_BOOLEANS = (("false", "False", "FALSE"), ("true", "True", "TRUE"))


def list_texts(value: Value) -> tuple[str, ...]:
    """List the texts that match a declared value, the one it is shown as first.

    A cell matches if its text is one of these, whatever its type: a column's type may be inferred from all its values,
    and one odd cell must not change what the others match. So the class 1 is matched by the integer 1, the float 1.0,
    the texts "1" and "1.0", True, and "true". Other texts must be equal, including case and blanks: "01" is not 1.
    """
    if isinstance(value, str):
        number = parse_number(value)
        return (value,) if number is None else tuple(dict.fromkeys((value, *_list_spellings(number))))
    if isinstance(value, bool):
        return tuple(dict.fromkeys((_BOOLEANS[value][0], *_list_spellings(int(value)))))
    return _list_spellings(value)


def format_value(value: Value) -> str:
    """Format a declared value for display."""
    return list_texts(value)[0]


@dataclass(frozen=True)
class Matcher:
    """The positions of declared values, by the texts and numbers of the cells that match them."""

    texts: Mapping[str, int]
    numbers: Mapping[int | float, int]

    @classmethod
    def from_values(cls, values: Sequence[Value]) -> Matcher:
        """Make a matcher; raise a ParameterError if one cell could match two values."""
        texts: dict[str, int] = {}
        numbers: dict[int | float, int] = {}
        for index, value in enumerate(values):
            for text in list_texts(value):
                if texts.setdefault(text, index) != index:
                    raise ParameterError(f"the declared values must differ, got {show_value(value)} more than once")
                number = parse_number(text)
                if number is not None and numbers.setdefault(number, index) != index:
                    raise ParameterError(f"the declared values must differ, got {show_value(value)} more than once")
        return cls(texts, numbers)

    def match_boolean(self, cell: bool) -> int:
        """Return the position of the value that a boolean cell matches, -1 if there is none."""
        return self.numbers.get(int(cell), -1)


def check_values(values: Iterable[Any], *, what: str) -> tuple[Value, ...]:
    """Return the values as Python types; raise a ParameterError if they cannot be declared together."""
    plain = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    for value in plain:
        if not isinstance(value, (str, int, float)):
            raise ParameterError(f"{what} must be texts, numbers or booleans, got {show_value(value)}")
        if not isinstance(value, str) and not abs(value) < 2**63:
            raise ParameterError(f"{what} must be numbers between -2^63 and 2^63, got {show_value(value)}")
    try:
        Matcher.from_values(plain)
    except ParameterError as fault:
        raise ParameterError(f"{what}: {fault}") from None
    return plain


def check_integer(value: Any, what: str, *, least: int) -> None:
    """Raise a ParameterError if `value` is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ParameterError(f"{what} must be a whole number >= {least}, got {show_value(value)}")


def check_value_count(values: Any, most: int, what: str) -> None:
    """Raise a ParameterError for more than `most` values; iterators without a length pass."""
    if hasattr(values, "__len__") and len(values) > most:
        raise ParameterError(f"{what} must be at most {most:,} values, got {len(values):,}")


def _list_spellings(number: int | float) -> tuple[str, ...]:
    """List all spellings of a number, the one for display first."""
    if number != int(number):
        return (repr(number),)
    whole = int(number)
    texts = [str(whole)]
    if float(whole) == whole:  # otherwise no float equals it
        texts += [f"{whole}.0", repr(float(whole))]
    if whole in (0, 1):
        texts += _BOOLEANS[whole]
    if whole == 0:
        texts.append("-0.0")
    return tuple(dict.fromkeys(texts))


def parse_number(text: str) -> int | float | None:
    """Parse a text that is a spelling of a number; "01" is not one."""
    for number, words in enumerate(_BOOLEANS):
        if text in words:
            return number
    try:
        parsed = int(text) if text.lstrip("-").isdecimal() else float(text)
        small = abs(parsed) < 2**63
    except ValueError:  # not a number, or one with thousands of digits
        return None
    return parsed if small and text in _list_spellings(parsed) else None
