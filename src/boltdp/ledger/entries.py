"""The entries of a ledger as a hash chain: each entry has the digest of the previous one.

The digests use no secret: whoever may write to the store can recompute all of them. The chain detects damage, and
entries that were changed, removed or reordered without recomputing the digests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

from boltdp._files.sealed import hash_text, parse_json
from boltdp.errors import BoltdpError, ParameterError, show_value
from boltdp.privacy.accounting.spent_budget import Charge, CompositionRule, Release
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Event
from boltdp.privacy.serialization import from_record, to_record

EntryKind = Literal["budget", "reserve", "release", "return"]

#: The fields that only entries of a kind have; those that set a budget have one, and charges may have one.
OWN_FIELDS: dict[EntryKind, tuple[str, ...]] = {
    "budget": ("composition", "not_private"),
    "reserve": ("adjacency", "event"),
    "release": ("reserved", "released"),
    "return": ("reserved",),
}

#: The previous digest of the first entry: the name of the format and its version.
BEGINNING = "boltdp-ledger 1"
#: Maximum number of characters of a name.
MAX_NAME = 200
#: Invisible and control characters, which no name may have: a character class of regular expressions in Python and
#: PostgreSQL. Python's `str.isprintable` depends on its version.
INVISIBLE = (
    r"\u0001-\u001f\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff"
    r"\ufeff\ufff0-\uffff\U000e0000-\U000e0fff"
)
_FORBIDDEN = re.compile(f"[\\x00{INVISIBLE}\\ud800-\\udfff]")  # PostgreSQL strings cannot have the added ones


class LedgerError(BoltdpError):
    """The ledger is missing, damaged, foreign or not writable: nothing may be released."""


class LedgerUnavailableError(LedgerError):
    """The ledger is missing or out of reach: nothing was appended, unless `unknown` says that this is unknown."""

    def __init__(self, message: str, *, hint: str | None = None, unknown: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.unknown = unknown


class Line(NamedTuple):
    """A stored entry."""

    record: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry; fields that do not belong to its kind are None."""

    number: int  #: from 1
    kind: EntryKind  #: a budget is set, a charge is reserved, its result is released, or the charge is returned
    when: str  #: in UTC
    by: str
    dataset: str
    role: str | None = None  #: the role of the database that a charge is for, if that has a budget of its own
    blocks: tuple[str, ...] = ()  #: the blocks that are charged; empty: the whole dataset
    budget: Budget | None = None  #: the budget that is set, or that the charge claims; None: it claims none
    composition: CompositionRule | None = None  #: how charges of the dataset compose
    not_private: bool | None = None  #: whether non-private releases are allowed
    adjacency: Adjacency | None = None
    event: Any = None  #: the privacy event as JSON, as in certificates
    reasons: tuple[str, ...] = ()  #: why the release is not private; empty: it is
    reserved: int | None = None  #: the number of the charge that is released or returned
    released: str | None = None  #: the digest of the release
    previous: str = field()  #: the digest of the previous entry

    def __post_init__(self) -> None:
        check_name(self.dataset, "dataset")
        if self.role is not None:
            check_name(self.role, "role")
        for block in self.blocks:
            check_name(block, "a block")
        if len(set(self.blocks)) < len(self.blocks):
            raise ParameterError("blocks must be named once each")
        every = {name for names in OWN_FIELDS.values() for name in names}
        for name in sorted(every):
            there = name in OWN_FIELDS[self.kind]
            if (getattr(self, name) is not None) != there:
                raise ParameterError(f"an entry of kind {self.kind!r} must {'' if there else 'not '}have {name!r}")
        if self.kind != "reserve" and (self.budget is not None) != (self.kind == "budget"):
            raise ParameterError(f"an entry of kind {self.kind!r} must have a budget if that belongs to it")
        if self.kind != "reserve" and (self.blocks or self.reasons or self.role is not None):
            raise ParameterError(f"an entry of kind {self.kind!r} must not have blocks, reasons or a role")

    @property
    def line(self) -> Line:
        """The entry as a store keeps it: its JSON text, and the digest of that."""
        text = json.dumps(to_record(self), separators=(",", ":"), allow_nan=False)
        return Line(text, hash_text(text))

    @property
    def spent(self) -> Event:
        """The privacy event of a charge; one that cannot be read raises LedgerError."""
        try:
            event: Event = from_record(Event, self.event)  # type: ignore[type-abstract]
        except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as fault:
            raise LedgerError(f"entry {self.number} of the ledger has an event that cannot be read: {fault}") from None
        return event

    @property
    def charge(self) -> Release:
        """The reserved charge: its budget, its event and the adjacency of its guarantee."""
        assert self.adjacency is not None
        return Release(self.budget, self.spent, self.adjacency)


def read_entries(lines: Iterable[Line]) -> list[Entry]:
    """Return the entries of stored ledger lines; raise LedgerError if a digest or the order does not match."""
    entries: list[Entry] = []
    previous = BEGINNING
    for number, line in enumerate(lines, start=1):
        record, digest = line
        if not isinstance(record, str) or hash_text(record) != digest:
            raise LedgerError(f"the ledger is damaged: entry {number} is not what was written")
        try:
            entry = _parse_entry(record)
        except (BoltdpError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as fault:
            raise LedgerError(f"the ledger is damaged: entry {number} cannot be read: {fault}") from None
        if entry.number != number or entry.previous != previous:
            raise LedgerError(f"the ledger is damaged: entry {number} does not follow the one before it")
        entries.append(entry)
        previous = digest
    return entries


@lru_cache(maxsize=4096)
def _parse_entry(record: str) -> Entry:
    return from_record(Entry, parse_json(record, what="it"))


def check_name(name: object, what: str) -> str:
    """Return the name of a dataset or a block; raise ParameterError if it cannot be stored or shown."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_NAME
        or name != name.strip(" ")
        or _FORBIDDEN.search(name) is not None
    ):
        raise ParameterError(f"{what} must be named by up to {MAX_NAME} printable characters, got {show_value(name)}")
    return name


@dataclass
class DatasetState:
    """The current state of one dataset: its budget and its charges."""

    budget: Budget
    composition: CompositionRule
    not_private: bool
    charges: dict[int, Entry]  #: reserved or released charges, by number
    open: set[int]  #: charges that are reserved and not yet released

    def group_blocks(self, blocks: Iterable[str] = ()) -> list[tuple[list[str | None], list[Charge]]]:
        """Group the given blocks and all charged ones by their charges; the first, None, stands for any other block.

        The charges are entries, whose events are read when they are needed.
        """
        own: dict[str | None, list[int]] = {None: [], **{block: [] for block in blocks}}
        for number, entry in self.charges.items():
            for block in entry.blocks:
                own.setdefault(block, []).append(number)
        alike: dict[frozenset[int], list[str | None]] = {}
        for name, numbers in own.items():
            alike.setdefault(frozenset(numbers), []).append(name)
        charges = cast("dict[int, Charge]", self.charges)
        return [
            (
                names,
                [charges[number] for number, entry in self.charges.items() if not entry.blocks or number in numbers],
            )
            for numbers, names in alike.items()
        ]


def read_datasets(entries: Sequence[Entry]) -> dict[str, DatasetState]:
    """Return the budget and charges of each dataset by name; entries that contradict each other raise LedgerError."""
    datasets: dict[str, DatasetState] = {}
    for entry in entries:
        state = datasets.get(entry.dataset)
        if entry.kind == "budget":
            assert entry.budget is not None
            assert entry.composition is not None
            assert entry.not_private is not None
            own = (state.charges, state.open) if state is not None else ({}, set())
            datasets[entry.dataset] = DatasetState(entry.budget, entry.composition, entry.not_private, *own)
            continue
        if state is None or (entry.reserved is not None and entry.reserved not in state.open):
            raise LedgerError(f"the ledger is damaged: entry {entry.number} is about nothing that is there")
        if entry.reserved is None:
            state.charges[entry.number] = entry
            state.open.add(entry.number)
            continue
        state.open.remove(entry.reserved)
        if entry.kind == "return":
            del state.charges[entry.reserved]
    return datasets
