"""A target of the fuzzer: it makes a damaged input out of a number, and feeds it to what must refuse it or cope."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from boltdp.errors import BoltdpError

#: Stands for a private value: no message may repeat it.
SECRET = "s3cr3t-7391"
#: Longer than any case may take.
SECONDS = 20


@dataclass(frozen=True)
class Target:
    """One thing that reads input. `feed` gets a case's own random numbers; what it raises must be a BoltdpError."""

    name: str
    feed: Callable[[random.Random], object]
    weight: int = 100  #: cases of it, for each hundred of the others
    prepare: Callable[[], object] = lambda: None  #: what takes long and is done once


class Finding(Exception):  # noqa: N818
    """Something that must not happen, with the number of the case that shows it."""


def try_case(target: Target, number: int) -> str:
    """Feed one case, and say how it ended: "taken" or "refused"."""
    try:
        with _time_limit(SECONDS):
            target.feed(random.Random(f"{target.name} {number}"))
    except BoltdpError as refusal:
        text = f"{refusal} {refusal.hint or ''}"
        if SECRET in text:
            raise Finding(f"{target.name}, case {number}: the message quotes a value") from refusal
        if refusal.__context__ is not None and SECRET in str(refusal.__context__):
            raise Finding(f"{target.name}, case {number}: the cause of the message quotes a value") from None
        return "refused"
    except Exception as fault:
        raise Finding(f"{target.name}, case {number}: {type(fault).__name__} instead of a refusal") from fault
    return "taken"


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


#: Values that readers trip over.
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53,
    2**63,
    2**64,
    10**30,
    10**400,
    0.0,
    -0.0,
    0.5,
    1e-320,
    1e308,
    -1e308,
    "",
    "0",
    "nan",
    "\0",
    "\u202e",
    "\ud800",
    "x" * 1000,
    [],
    {},
    [[]],
    [None],
    {"": 1},
)


def damaged(value: Any, dice: random.Random) -> Any:
    """A copy of JSON-able data with one to three faults in it."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        value = _one_fault(value, dice)
    return value


def _one_fault(value: Any, dice: random.Random) -> Any:
    if isinstance(value, Mapping) and value and dice.random() < 0.85:
        key = dice.choice(list(value))
        copy = dict(value)
        match dice.randrange(8):
            case 0:
                del copy[key]
            case 1:
                copy[str(dice.choice(ODD[18:25]))] = dice.choice(ODD)
            case _:
                copy[key] = _one_fault(value[key], dice)
        return copy
    if isinstance(value, list) and value and dice.random() < 0.85:
        at = dice.randrange(len(value))
        match dice.randrange(8):
            case 0:
                return value[:at]
            case 1:
                return [*value, *value[:3]]
            case 2:
                return value[:at] + value[at + 1 :]
            case _:
                return [*value[:at], _one_fault(value[at], dice), *value[at + 1 :]]
    if isinstance(value, float) and dice.random() < 0.6:
        return value * dice.choice((0.0, -1.0, 0.5, 2.0, 1e-30, 1e30, 1 + 1e-12))
    if isinstance(value, int) and not isinstance(value, bool) and dice.random() < 0.6:
        return value + dice.choice((-1, 1, 7, 2**40, -(2**40)))
    return dice.choice(ODD)


def scrambled(data: bytes, dice: random.Random) -> bytes:
    """Bytes with some of them changed, cut, repeated or put in."""
    block = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(len(block) + 1) if block else 0
        match dice.randrange(6):
            case 0:
                del block[at:]
            case 1:
                block[at:at] = bytes(dice.randrange(256) for _ in range(dice.choice((1, 8, 64))))
            case 2:
                block[at:at] = block[at : at + 64]
            case 3:
                block[at : at + 8] = dice.choice((b"\0", b"\xff")) * 8
            case _:
                if at < len(block):
                    block[at] ^= 1 << dice.randrange(8)
    return bytes(block)
