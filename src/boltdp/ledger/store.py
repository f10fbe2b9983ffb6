"""The interface of the stores of a ledger, which do not interpret its entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from boltdp.errors import ParameterError
from boltdp.ledger.hash_chain import Line


class Moment(NamedTuple):
    """Who appends an entry, and when, according to the store."""

    by: str
    when: str


class Store(ABC):
    """An append-only store of lines."""

    address: str  #: as the user specified it, without a password

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a ledger, possibly a damaged one."""

    @abstractmethod
    def create(self) -> None:
        """Create an empty ledger if there is none; an existing one stays as it is, even if it is damaged."""

    @abstractmethod
    def read(self) -> Sequence[Line]:
        """Return all lines in order; raise LedgerError if any is missing, or if there is no ledger."""

    @abstractmethod
    def append(self, make: Callable[[Sequence[Line], Moment], Line], *, durable: bool = True) -> None:
        """Append the line that `make` returns for the present lines, in one exclusive transaction.

        If `make` raises, nothing is appended. A `durable` line survives a power failure, another one only a crash of
        this process.
        """

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        """Use one connection of this thread inside the context, if the store has connections."""
        yield

    def allow(self, role: str) -> None:
        """Allow a role to append charges, if the store has roles."""
        raise ParameterError(f"a role must be given for a ledger in PostgreSQL only, got {role!r}")

    def faults(self) -> list[str]:
        """List faults of the store beyond those that `read` detects."""
        return []
