"""The interface of the stores of a ledger, which do not interpret its entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from boltdp.errors import ParameterError
from boltdp.ledger.entries import LedgerError, LedgerUnavailableError, Line

#: Version of the format of the stores.
VERSION = 1

#: Makes the line to append, of the present lines, the user who appends it, and the time in UTC.
MakeLine: TypeAlias = Callable[[Sequence[Line], str, str], Line]


class Store(ABC):
    """An append-only store of lines."""

    address: str  #: as the user specified it, without a password
    place: str  #: the address in messages

    @abstractmethod
    def exists(self) -> bool:
        """Return whether there is a ledger, possibly a damaged one."""

    @abstractmethod
    def create(self) -> None:
        """Create an empty ledger if there is none; an existing one stays as it is, even if it is damaged."""

    @abstractmethod
    def read(self) -> Sequence[Line]:
        """Return all lines of the ledger in order; raise LedgerError if any is missing, or if there is no ledger."""

    @abstractmethod
    def append(self, make: MakeLine, *, durable: bool = True) -> None:
        """Append the ledger line that `make` returns, in one exclusive transaction.

        If `make` raises, nothing is appended. A `durable` line survives a power failure, another one only a crash of
        this process.
        """

    def check_lines(
        self, stored: Sequence[tuple[int, str, str]], heads: Sequence[tuple[int, str]], *, beginning: str
    ) -> list[Line]:
        """Return stored entries as lines; raise LedgerError unless the head has the number and digest of the last.

        Without entries, the head has the digest `beginning`.
        """
        last = (stored[-1][0], stored[-1][2]) if stored else (0, beginning)
        if heads != [last] or [number for number, _, _ in stored] != list(range(1, len(stored) + 1)):
            raise LedgerError(f"the ledger {self.place} is damaged: entries are missing")
        return [Line(record, digest) for _, record, digest in stored]

    def check_version(self, version: int) -> None:
        if version != VERSION:
            raise LedgerError(f"the ledger {self.place} has version {version}, this boltdp reads {VERSION}")

    def make_missing_error(self) -> LedgerError:
        hint = "`boltdp ledger set-budget` makes one; see its --help"
        return LedgerUnavailableError(f"there is no ledger {self.place}", hint=hint)

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        """Use one connection of this thread inside the `with` block, if the store has connections."""
        yield

    def allow(self, role: str) -> None:
        """Allow a role to append charges, if the store has roles."""
        raise ParameterError(f"a role must be given for a ledger in PostgreSQL only, got {role!r}")

    def list_faults(self) -> list[str]:
        """List the damage of the stored ledger that `read` does not detect."""
        return []
