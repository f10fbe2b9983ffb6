"""A ledger in a SQLite file: beside a data file, or wherever several processes of one machine can lock it."""

from __future__ import annotations

import getpass
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from boltdp import _interrupts
from boltdp.ledger.hash_chain import LedgerError, Line
from boltdp.ledger.store import Moment, Store

#: The name of a ledger that is found without being asked for, in the directory of a data file.
BESIDE = ".boltdp-ledger.db"
#: In the header of the file: whose it is, and of which version.
APPLICATION, VERSION = 0x626F6C74, 1  # "bolt"
#: Seconds that a process waits for others.
PATIENCE = 120.0

#: `head` tells how many entries there are: the last ones cannot be dropped without a trace.
TABLES = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, record TEXT NOT NULL, digest TEXT NOT NULL)",
    "CREATE TABLE head (number INTEGER NOT NULL, digest TEXT NOT NULL)",
    *(
        f"CREATE TRIGGER {name} BEFORE {change} BEGIN SELECT RAISE(ABORT, 'a ledger is only appended to'); END"
        for name, change in (
            ("kept_entries", "DELETE ON entries"),
            ("fixed_entries", "UPDATE ON entries"),
            ("kept_head", "DELETE ON head"),
            ("one_head", "INSERT ON head WHEN EXISTS (SELECT 1 FROM head)"),
            ("growing_head", "UPDATE ON head WHEN NEW.number <> OLD.number + 1"),
        )
    ),
)


class SQLiteStore(Store):
    """Every operation opens the file again: nothing is shared by processes that are forked from one another."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.address = str(path)

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def create(self) -> None:
        if self.exists():
            return
        try:
            handle, aside = tempfile.mkstemp(dir=self.path.parent, prefix=f"{self.path.name}-")
            os.close(handle)
            try:
                with closing(sqlite3.connect(aside, isolation_level=None)) as connection:
                    connection.execute(f"PRAGMA application_id = {APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                    for statement in (*TABLES, "INSERT INTO head VALUES (0, '')"):
                        connection.execute(statement)
                # Another process may have made one just now: that one stays.
                with suppress(FileExistsError):
                    os.link(aside, self.path)
            finally:
                os.unlink(aside)
            _sync(self.path.parent)
        except (OSError, sqlite3.Error) as fault:
            reason = getattr(fault, "strerror", None) or str(fault)
            raise LedgerError(f"the ledger {self.address!r} cannot be made: {reason}") from None

    def read(self) -> Sequence[Line]:
        with self._transaction("BEGIN") as connection:
            return self._lines(connection)

    def append(self, make: Callable[[Sequence[Line], Moment], Line], *, lasting: bool = True) -> None:
        with self._transaction("BEGIN IMMEDIATE", lasting=lasting) as connection:
            lines = self._lines(connection)
            record, digest = make(lines, Moment(_user(), datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")))
            number = len(lines) + 1
            connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, record, digest))
            connection.execute("UPDATE head SET number = ?, digest = ?", (number, digest))

    def faults(self) -> list[str]:
        with self._transaction("BEGIN") as connection:
            found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    @contextmanager
    def _transaction(self, begin: str, *, lasting: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction, whole or not at all; faults of the store become LedgerErrors."""
        if not self.exists():
            raise LedgerError(
                f"there is no ledger {self.address!r}", hint="`boltdp ledger set-budget` makes one; see its --help"
            )
        try:
            # In this mode SQLite makes no file where there is none.
            address = f"{self.path.as_uri()}?mode=rw"
            with (
                _interrupts.shield(),
                closing(sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)) as connection,
            ):
                # FULL: a power failure leaves a whole file. EXTRA: nor does it undo what was committed just before.
                synchronous = f"synchronous = {'EXTRA' if lasting else 'FULL'}"
                for pragma in (synchronous, "trusted_schema = OFF", "cell_size_check = ON"):
                    connection.execute(f"PRAGMA {pragma}")
                connection.execute(begin)
                try:
                    self._check(connection)
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except sqlite3.Error as fault:
            raise LedgerError(f"the ledger {self.address!r} cannot be used: {fault}") from None

    def _check(self, connection: sqlite3.Connection) -> None:
        """Refuse a file that is no ledger, or one of another version, or with other tables."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise LedgerError(f"the file {self.address!r} is not a ledger of boltdp, or a damaged one")
        if version != VERSION:
            raise LedgerError(f"the ledger {self.address!r} has version {version}, this boltdp reads {VERSION}")
        tables = [text for (text,) in connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid")]
        if tables != list(TABLES):
            raise LedgerError(f"the ledger {self.address!r} is damaged: its tables are not those that were made")

    def _lines(self, connection: sqlite3.Connection) -> list[Line]:
        stored = connection.execute("SELECT number, record, digest FROM entries ORDER BY number").fetchall()
        heads = connection.execute("SELECT number, digest FROM head").fetchall()
        last = (stored[-1][0], stored[-1][2]) if stored else (0, "")
        if heads != [last] or [number for number, _, _ in stored] != list(range(1, len(stored) + 1)):
            raise LedgerError(f"the ledger {self.address!r} is damaged: entries are missing")
        return [Line(record, digest) for _, record, digest in stored]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name, as in some containers
        return f"user {os.getuid()}"


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
