"""The entries of a ledger: appended one after the other, each with the digest of the one before it.

A digest has no secret: whoever may write to the store can recompute all of them. What the chain shows is damage, and
entries that were changed, dropped or exchanged without doing so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from boltdp.errors import BoltdpError, ParameterError, shown
from boltdp.privacy.accounting.charges import Release, Rule
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Event
from boltdp.privacy.serialization import from_record, to_record

Kind = Literal["budget", "reserve", "release", "return"]

#: What the first entry has for the digest of the one before it: the name of the format and its version.
BEGINNING = "boltdp-ledger 1"
#: Characters of a name, at most.
MAX_NAME = 200
#: Those that no name may have, since they are not seen or obeyed by a terminal: for a class of a regular expression, in
#: Python and in PostgreSQL alike. What is printable would be decided by each version of Python for itself.
UNSEEN = (
    r"\u0001-\u001f\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff"
    r"\ufeff\ufff0-\uffff\U000e0000-\U000e0fff"
)
_REFUSED = re.compile(f"[\\x00{UNSEEN}\\ud800-\\udfff]")  # PostgreSQL has no texts with these


class LedgerError(BoltdpError):
    """A ledger that is missing, damaged, foreign or not ours to write: nothing may be released by it."""


class Line(NamedTuple):
    """An entry as it is stored."""

    record: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry; what does not belong to its kind is None.

    >>> rule = {"budget": Budget(3.0, 1e-6), "composition": "curves", "not_private": False}
    >>> who = {"when": "2026-01-31T12:00:00Z", "by": "ann", "dataset": "visits"}
    >>> entry = Entry(number=1, kind="budget", previous=BEGINNING, **who, **rule)
    >>> read_chain([entry.line])[0] == entry
    True
    """

    number: int  #: from 1
    kind: Kind  #: a budget was set, a charge reserved, what it paid for released, or the charge given back
    when: str  #: in UTC
    by: str
    dataset: str
    blocks: tuple[str, ...] = ()  #: that a charge is for; none: the whole dataset
    budget: Budget | None = None  #: that is set, or that the charge claims; None: nothing is claimed
    composition: Rule | None = None  #: by which rule charges of the dataset add up
    not_private: bool | None = None  #: whether releases that guarantee nothing are let through
    adjacency: Adjacency | None = None
    event: Any = None  #: the tree of what is spent, as certificates have it
    reasons: tuple[str, ...] = ()  #: why what is released is not private; none: it is
    reserved: int | None = None  #: the number of the charge that is released or given back
    released: str | None = None  #: the digest of what was released
    previous: str = field()  #: the digest of the entry before

    def __post_init__(self) -> None:
        check_name(self.dataset, "dataset")
        for block in self.blocks:
            check_name(block, "a block")
        if len(set(self.blocks)) < len(self.blocks):
            raise ParameterError("blocks must be named once each")
        sets, charges, ends = self.kind == "budget", self.kind == "reserve", self.kind in ("release", "return")
        wanted = {
            "composition": sets,
            "not_private": sets,
            "adjacency": charges,
            "event": charges,
            "reserved": ends,
            "released": self.kind == "release",
        }
        for name, there in wanted.items():
            if (getattr(self, name) is not None) != there:
                raise ParameterError(f"an entry of kind {self.kind!r} must {'' if there else 'not '}have {name!r}")
        if (sets and self.budget is None) or (ends and self.budget is not None):
            raise ParameterError(f"an entry of kind {self.kind!r} must have a budget if that belongs to it")
        if not charges and (self.blocks or self.reasons):
            raise ParameterError(f"an entry of kind {self.kind!r} must not have blocks or reasons")

    @property
    def line(self) -> Line:
        """As it is stored."""
        text = _written(to_record(self))
        return Line(text, digest_of(text))

    @property
    def charge(self) -> Release:
        """What was charged; an event that is not known is a LedgerError."""
        assert self.adjacency is not None
        try:
            event: Event = from_record(Event, self.event)  # type: ignore[type-abstract]
        except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as fault:
            raise LedgerError(f"entry {self.number} of the ledger has an event that cannot be read: {fault}") from None
        return Release(self.budget, event, self.adjacency)


def digest_of(text: str) -> str:
    """SHA-256 of the text of a record.

    >>> digest_of("")[:15]
    'sha256:e3b0c442'
    """
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def read_chain(lines: Iterable[Line]) -> list[Entry]:
    """The entries of stored lines, if every one of them is as it was written and in its place; else a LedgerError.

    >>> read_chain([Line("{}", digest_of("{ }"))])
    Traceback (most recent call last):
    boltdp.ledger.hash_chain.LedgerError: the ledger is damaged: entry 1 is not what was written
    """
    entries: list[Entry] = []
    previous = BEGINNING
    for number, line in enumerate(lines, start=1):
        record, digest = line
        if not isinstance(record, str) or digest_of(record) != digest:
            raise LedgerError(f"the ledger is damaged: entry {number} is not what was written")
        try:
            entry = _read(record)
        except (BoltdpError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as fault:
            raise LedgerError(f"the ledger is damaged: entry {number} cannot be read: {fault}") from None
        if entry.number != number or entry.previous != previous:
            raise LedgerError(f"the ledger is damaged: entry {number} does not follow the one before it")
        entries.append(entry)
        previous = digest
    return entries


@lru_cache(maxsize=4096)
def _read(record: str) -> Entry:
    return from_record(Entry, json.loads(record, object_pairs_hook=_once, parse_constant=_no_number))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice in it")
    return found


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _written(record: Any) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


def check_name(name: object, what: str) -> str:
    """A name of a dataset or a block, as it may be shown and stored.

    >>> check_name("", "dataset")
    Traceback (most recent call last):
    boltdp.errors.ParameterError: dataset must be named by up to 200 printable characters, got ''
    """
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_NAME
        or name != name.strip(" ")
        or _REFUSED.search(name) is not None
    ):
        raise ParameterError(f"{what} must be named by up to {MAX_NAME} printable characters, got {shown(name)}")
    return name


@dataclass
class Standing:
    """What the entries say of one dataset."""

    budget: Budget
    composition: Rule
    not_private: bool
    charges: dict[int, Entry] = field(default_factory=dict)  #: reserved or released, by number
    open: set[int] = field(default_factory=set)  #: those that are reserved only

    def shares(self, blocks: Iterable[str] = ()) -> list[tuple[list[str | None], list[Entry]]]:
        """Blocks whose rows have the same charges, with these: all blocks that were ever charged, and the given ones.

        None, which is the first, is a block that was never named. Blocks may be many, of one charge even, and are
        gone through once.
        """
        own: dict[str | None, list[int]] = {None: [], **{block: [] for block in blocks}}
        for number, entry in self.charges.items():
            for block in entry.blocks:
                own.setdefault(block, []).append(number)
        alike: dict[tuple[int, ...], list[str | None]] = {}
        for name, numbers in own.items():
            alike.setdefault(tuple(numbers), []).append(name)
        found = []
        for those, names in alike.items():
            theirs = set(those)
            charges = [entry for number, entry in self.charges.items() if not entry.blocks or number in theirs]
            found.append((names, charges))
        return found


def read_standings(entries: Sequence[Entry]) -> dict[str, Standing]:
    """By the name of the dataset; entries that do not fit together are a LedgerError.

    >>> read_standings([])
    {}
    """
    standings: dict[str, Standing] = {}
    for entry in entries:
        standing = standings.get(entry.dataset)
        if entry.kind == "budget":
            assert entry.budget is not None
            assert entry.composition is not None
            assert entry.not_private is not None
            if standing is None:
                standings[entry.dataset] = Standing(entry.budget, entry.composition, entry.not_private)
            else:
                standing.budget, standing.composition = entry.budget, entry.composition
                standing.not_private = entry.not_private
            continue
        if standing is None or (entry.reserved is not None and entry.reserved not in standing.open):
            raise LedgerError(f"the ledger is damaged: entry {entry.number} is about nothing that is there")
        if entry.reserved is None:
            standing.charges[entry.number] = entry
            standing.open.add(entry.number)
            continue
        standing.open.remove(entry.reserved)
        if entry.kind == "return":
            del standing.charges[entry.reserved]
    return standings
