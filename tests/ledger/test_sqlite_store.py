"""The SQLite store: many processes, processes that are killed, and files that were damaged."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from boltdp.errors import ParameterError
from boltdp.ledger import Ledger, LedgerError, open_ledger
from boltdp.privacy.budget import Budget

from .charges import charge, race, started

DIGEST = "sha256:" + "0" * 64


def made(path: Path) -> Ledger:
    ledger = open_ledger(path)
    ledger.set_budget("visits", Budget(1.0), composition="basic")
    return ledger


def test_processes_that_want_more_than_there_is_get_exactly_what_there_is(tmp_path: Path) -> None:
    ledger = made(tmp_path / "ledger.db")
    for _ in range(7):
        ledger.reserve("visits", charge()).commit(DIGEST)
    assert Counter(race(str(tmp_path / "ledger.db"), 8)) == {"released": 3, "refused": 5}
    assert ledger.check() == 21


@pytest.mark.slow
def test_fifty_processes_get_ten_tenths(tmp_path: Path) -> None:
    ledger = made(tmp_path / "ledger.db")
    assert Counter(race(str(tmp_path / "ledger.db"), 50)) == {"released": 10, "refused": 40}
    assert ledger.check() == 21


#: Kills itself at a stage: with a charge before anything, in the transaction, after it, after the release, at the end.
KILLED = """
import os, signal, sys
from boltdp.ledger import open_ledger
from boltdp.ledger.sqlite_store import SQLiteStore
from tests.ledger.charges import charge

def die():
    os.kill(os.getpid(), signal.SIGKILL)

path, stage = sys.argv[1:]
ledger = open_ledger(path)
if stage == "before":
    die()
if stage == "inside":
    lines = SQLiteStore._read_lines
    def dying(self, connection):
        found = lines(self, connection)
        connection.execute("INSERT INTO entries VALUES (99, 'x', 'y')")
        connection.execute("PRAGMA cache_spill")
        die()
    SQLiteStore._read_lines = dying
reservation = ledger.reserve("visits", charge())
if stage == "reserved":
    die()
print("released", flush=True)
if stage == "released":
    die()
reservation.commit("sha256:" + "0" * 64)
if stage == "committed":
    die()
"""


@pytest.mark.parametrize("stage", ["before", "inside", "reserved", "released", "committed"])
def test_a_killed_process_leaves_no_release_without_a_charge(tmp_path: Path, stage: str) -> None:
    ledger = made(tmp_path / "ledger.db")
    process = started(KILLED, str(tmp_path / "ledger.db"), stage)
    said = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL
    report = ledger.spent("visits")
    assert report.spent.releases >= ("released" in said)
    assert report.spent.releases == (stage not in ("before", "inside"))
    assert report.unfinished == (stage in ("reserved", "released"))
    ledger.check()
    ledger.reserve("visits", charge()).commit(DIGEST)


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    made(tmp_path / "ledger.db")
    assert stat.S_IMODE(os.stat(tmp_path / "ledger.db").st_mode) == 0o600
    assert os.listdir(tmp_path) == ["ledger.db"]


def test_a_missing_file_is_an_error_and_stays_missing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger.db")
    for act in (ledger.history, ledger.check, ledger.show, lambda: ledger.reserve("visits", charge())):
        with pytest.raises(LedgerError, match="there is no ledger"):
            act()
    assert not os.listdir(tmp_path)
    with pytest.raises(LedgerError, match="cannot be made: No such file"):
        open_ledger(tmp_path / "no" / "ledger.db").set_budget("visits", Budget(1.0))
    with pytest.raises(ParameterError, match="PostgreSQL only"):
        ledger.allow("ann")


@pytest.mark.parametrize(
    "content", [b"", b"no database", b"SQLite format 3\0", "other"], ids=["empty", "text", "header", "foreign"]
)
def test_what_is_no_ledger_is_never_taken_for_an_empty_one(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "ledger.db"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE entries (number, record, digest)")
    before, ledger = path.read_bytes(), open_ledger(path)
    for act in (
        ledger.history,
        ledger.check,
        lambda: ledger.set_budget("visits", Budget(1.0)),
        lambda: ledger.reserve("visits", charge()),
    ):
        with pytest.raises(LedgerError):
            act()
    assert path.read_bytes() == before


def test_another_version_is_refused(tmp_path: Path) -> None:
    ledger = made(tmp_path / "ledger.db")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        other.execute("PRAGMA user_version = 2")
    with pytest.raises(LedgerError, match="has version 2, this boltdp reads 1"):
        ledger.history()


def filled(path: Path) -> Ledger:
    ledger = made(path)
    for _ in range(4):
        ledger.reserve("visits", charge()).commit(DIGEST)
    return ledger


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE number = 3",
        "DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)",
        "DELETE FROM entries",
        "DELETE FROM head",
        "UPDATE entries SET record = replace(record, '0.1', '0.2') WHERE number = 2",
        "UPDATE entries SET record = (SELECT record FROM entries WHERE number = 4) WHERE number = 2",
        "UPDATE entries SET number = 100 WHERE number = 3",
        "UPDATE entries SET record = x'00' WHERE number = 2",
        "UPDATE entries SET record = 7 WHERE number = 2",
        "UPDATE head SET number = 1",
    ],
)
def test_entries_that_were_changed_dropped_or_exchanged_are_found(tmp_path: Path, statement: str) -> None:
    ledger = filled(tmp_path / "ledger.db")
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        with pytest.raises(sqlite3.IntegrityError, match="only appended to"):
            other.execute(statement)
        triggers = other.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            other.execute(f"DROP TRIGGER {name}")
        other.execute(statement)
        with pytest.raises(LedgerError, match="its tables are not"):
            ledger.history()
        for _, text in triggers:
            other.execute(text)
    with pytest.raises(LedgerError, match="damaged"):
        ledger.reserve("visits", charge())


def test_a_flipped_byte_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """Anywhere in the file: it is an error, or every entry is read as it was written."""
    ledger = filled(tmp_path / "ledger.db")
    path = tmp_path / "ledger.db"
    whole, entries = path.read_bytes(), ledger.history()
    found = 0
    for place in range(0, len(whole), 61):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert ledger.history() == entries, f"at byte {place}"
        except LedgerError:
            found += 1
    assert found > 100


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_truncated_file_is_an_error(tmp_path: Path, part: float) -> None:
    ledger = filled(tmp_path / "ledger.db")
    whole = (tmp_path / "ledger.db").read_bytes()
    (tmp_path / "ledger.db").write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(LedgerError):
        ledger.history()


def test_check_finds_a_charge_that_does_not_follow_from_its_events(tmp_path: Path) -> None:
    """Even where somebody computed every digest again."""
    from dataclasses import replace

    from boltdp.ledger.sqlite_store import SQLiteStore

    store = SQLiteStore(tmp_path / "ledger.db")
    ledger = made(tmp_path / "ledger.db")
    ledger.reserve("visits", charge(0.2))
    entry = ledger.history()[-1]
    assert ledger.check() == 2
    forged = replace(entry, number=3, budget=Budget(0.1), previous=entry.line.digest)
    store.append(lambda *_: forged.line)
    assert len(ledger.history()) == 3
    with pytest.raises(LedgerError, match="entry 3 of the ledger"):
        ledger.check()


def test_a_store_that_cannot_be_written_is_an_error_before_anything_is_released(tmp_path: Path) -> None:
    ledger = made(tmp_path / "ledger.db")
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("boltdp.ledger.sqlite_store.LOCK_TIMEOUT", 0.1)
            with pytest.raises(LedgerError, match="locked"):
                ledger.reserve("visits", charge())
