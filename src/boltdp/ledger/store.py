"""Where entries are kept: what each store can do, and nothing about what the entries mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from boltdp.errors import ParameterError
from boltdp.ledger.hash_chain import Line


class Moment(NamedTuple):
    """Who appends an entry, and when, as the store knows it."""

    by: str
    when: str


class Store(ABC):
    """A place that lines are appended to, one after the other, and from which none is ever taken."""

    address: str  #: as a user would write it

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a ledger, be it a damaged one."""

    @abstractmethod
    def create(self) -> None:
        """Make an empty ledger where there is none; one that is there, whatever its state, stays as it is."""

    @abstractmethod
    def read(self) -> Sequence[Line]:
        """All lines, in order; a LedgerError if any is missing, or if there is no ledger."""

    @abstractmethod
    def append(self, make: Callable[[Sequence[Line], Moment], Line], *, lasting: bool = True) -> None:
        """Append the line that `make` makes of all there are, in one transaction.

        Where it is to be `lasting`, it outlives a power failure from when this returns; else only a crash of ours.

        Nobody else appends meanwhile. If `make` raises, nothing was appended.
        """

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """What is done inside, in this thread, may use one connection, where there are connections."""
        yield

    def allow(self, role: str) -> None:
        """Let a role append charges, where there are roles."""
        raise ParameterError(f"a role must be given for a ledger in PostgreSQL only, got {role!r}")

    def faults(self) -> list[str]:
        """What else is wrong with the store, beyond what reading it finds."""
        return []
