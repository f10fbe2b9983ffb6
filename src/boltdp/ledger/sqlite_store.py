"""A ledger in a SQLite file: beside a data file, or wherever several processes of one machine can lock it."""

from __future__ import annotations

import getpass
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from boltdp import _interrupts
from boltdp.ledger.entries import LedgerError, LedgerUnavailableError, Line
from boltdp.ledger.store import VERSION, MakeLine, Store

#: The file name of a ledger that is found in the directory of a data file.
DEFAULT_NAME = ".boltdp-ledger.db"
#: Application ID in the header of the file.
APPLICATION = 0x626F6C74  # "bolt"
#: Seconds that a process waits for the locks of others.
LOCK_TIMEOUT = 120.0

#: `head` has the number of entries: the last ones cannot be removed unnoticed.
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
    """Opens the file for every operation: forked processes share no connection."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.address, self.place = str(path), repr(str(path))

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
                # If another process has just created one, that one stays.
                with suppress(FileExistsError):
                    os.link(aside, self.path)
            finally:
                os.unlink(aside)
            _sync_directory(self.path.parent)
        except (OSError, sqlite3.Error) as fault:
            reason = getattr(fault, "strerror", None) or str(fault)
            raise LedgerError(f"the ledger {self.address!r} cannot be made: {reason}") from None

    def read(self) -> Sequence[Line]:
        with self._transaction("BEGIN") as connection:
            return self._read_lines(connection)

    def append(self, make: MakeLine, *, durable: bool = True) -> None:
        with self._transaction("BEGIN IMMEDIATE", durable=durable) as connection:
            lines = self._read_lines(connection)
            record, digest = make(lines, _get_user(), datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"))
            number = len(lines) + 1
            connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, record, digest))
            connection.execute("UPDATE head SET number = ?, digest = ?", (number, digest))

    def list_faults(self) -> list[str]:
        with self._transaction("BEGIN") as connection:
            found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    @contextmanager
    def _transaction(self, begin: str, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the file and yield a connection in one transaction; errors of SQLite become LedgerErrors."""
        if not self.exists():
            raise self.make_missing_error()
        try:
            # In this mode SQLite does not create a missing file.
            address = f"{self.path.as_uri()}?mode=rw"
            with (
                _interrupts.shield(),
                closing(sqlite3.connect(address, uri=True, timeout=LOCK_TIMEOUT, isolation_level=None)) as connection,
            ):
                # FULL: a power failure leaves a consistent file. EXTRA: it does not undo the last commit either.
                synchronous = f"synchronous = {'EXTRA' if durable else 'FULL'}"
                for pragma in (synchronous, "trusted_schema = OFF", "cell_size_check = ON"):
                    connection.execute(f"PRAGMA {pragma}")
                connection.execute(begin)
                try:
                    self._check_file(connection)
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except sqlite3.Error as fault:
            raise LedgerUnavailableError(f"the ledger {self.address!r} cannot be used: {fault}") from None

    def _check_file(self, connection: sqlite3.Connection) -> None:
        """Raise LedgerError for a file that is not a ledger, has another version or has other tables."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise LedgerError(f"the file {self.address!r} is not a ledger of boltdp, or a damaged one")
        self.check_version(version)
        tables = [text for (text,) in connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid")]
        if tables != list(TABLES):
            raise LedgerError(f"the ledger {self.address!r} is damaged: its tables are not those that were made")

    def _read_lines(self, connection: sqlite3.Connection) -> list[Line]:
        stored = connection.execute("SELECT number, record, digest FROM entries ORDER BY number").fetchall()
        heads = connection.execute("SELECT number, digest FROM head").fetchall()
        return self.check_lines(stored, heads, beginning="")


def _get_user() -> str:
    """Return the name of the user who appends an entry to the ledger."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name, as in some containers
        return f"user {os.getuid()}"


def _sync_directory(folder: Path) -> None:
    """Make a new ledger file in a directory survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
