"""The parts of timestamps that can be categories, and the texts that are timestamps.

A timestamp with a zone is converted to UTC. Whatever its type, a cell is a timestamp if its text in ISO 8601 matches
`PATTERN`, with years from 0001 to 9999. All other cells are missing, and a date has no hour.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from boltdp.encoding.declared_values import Value

TimestampPart = Literal["hour", "weekday", "month", "day"]
#: Codes of cells, -1 for missing and undeclared ones.
Codes: TypeAlias = npt.NDArray[np.int32]

#: The categories of each part, in the order of their codes.
PARTS: dict[TimestampPart, tuple[Value, ...]] = {
    "hour": tuple(range(24)),
    "weekday": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "month": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    "day": tuple(range(1, 32)),
}

_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"  # the multiples of 4: years of a century, or centuries, with leap days
_DAY = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_TIME = "[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,9})?)?(Z|[+]00(:?00)?)?"
#: A calendar day, optionally with a time in UTC; without backslashes and lookaheads, which engines read differently.
PATTERN = f"({_YEAR}-{_DAY}|([0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)({_TIME})?"
#: The length of the longest such text.
MAX_CHARACTERS = 35
#: The position of the hour in such a text, counted from 1; a date is shorter.
HOUR_AT = 12

#: The first and the last day that match the pattern, counted from 1970-01-01.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896


def compute_part_codes(part: TimestampPart, days: npt.NDArray[Any], hours: npt.NDArray[Any]) -> Codes:
    """Return the code of a part for days since 1970-01-01 and their hours; -1 for an hour -1 or an invalid day."""
    within = (days >= FIRST_DAY) & (days <= LAST_DAY)
    days = np.where(within, days, 0)
    if part == "hour":
        codes = hours
    elif part == "weekday":
        codes = (days + 3) % 7  # 1970-01-01 was a Thursday
    else:
        dates = days.astype("M8[D]")
        months = dates.astype("M8[M]")
        codes = months.astype(np.int64) % 12 if part == "month" else (dates - months).astype(np.int64)
    return np.where(within, codes, -1).astype(np.int32)
