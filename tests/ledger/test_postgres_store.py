"""The PostgreSQL store, on a real server without the extension: roles, many processes, and what was planted."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from boltdp.engines.postgres.local_server import run_private_server
from boltdp.errors import ParameterError
from boltdp.ledger import Account, BudgetExceeded, Ledger, LedgerError, find_account, open_ledger
from boltdp.ledger.postgres_store import FUNCTIONS, write_creation_script
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget

from .charges import charge, race, started

DIGEST = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """The URI of a server that has nothing of ours."""
    with run_private_server(extension=False, settings={"max_connections": "120"}) as running:
        with psycopg.connect(running.uri, autocommit=True) as connection:
            for role in ("trainer", "other", "mallory"):
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        yield running.uri


@pytest.fixture
def owner(plain: str) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection, to a database without a ledger."""
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS boltdp_ledger CASCADE")
        yield connection


@pytest.fixture
def ledger(plain: str, owner: psycopg.Connection[Any]) -> Ledger:
    del owner
    made = open_ledger(plain)
    made.set_budget("visits", Budget(1.0), composition="basic")
    made.allow("trainer")
    return made


def as_role(uri: str, role: str) -> str:
    return uri.replace("//postgres@", f"//{role}@")


def test_budgets_charges_and_releases(ledger: Ledger) -> None:
    for _ in range(10):
        ledger.reserve("visits", charge()).commit(DIGEST)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("visits", charge())
    assert ledger.check() == 21
    assert {entry.by for entry in ledger.history()} == {"postgres"}


def test_a_charge_uses_one_connection_and_another_if_the_server_ended_it(
    ledger: Ledger, owner: psycopg.Connection[Any]
) -> None:
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with Account(ledger, "visits").reserve(charge(), drawn=lambda: True) as reservation:
        (before,) = owner.execute(f"SELECT pid {others}").fetchall()
        ledger.history()
        assert owner.execute(f"SELECT pid {others}").fetchall() == [before]
        owner.execute(f"SELECT pg_terminate_backend(pid, 5000) {others}")
        reservation.commit(DIGEST)
    assert [entry.kind for entry in ledger.history()] == ["budget", "reserve", "release"]
    for _ in range(100):  # a backend goes a moment after its connection
        if owner.execute(f"SELECT count(*) {others}").fetchall() == [(0,)]:
            return
        time.sleep(0.1)
    raise AssertionError("a connection was left open")


def test_processes_that_want_more_than_there_is_get_exactly_what_there_is(plain: str, ledger: Ledger) -> None:
    for _ in range(7):
        ledger.reserve("visits", charge()).commit(DIGEST)
    assert Counter(race(as_role(plain, "trainer"), 8)) == {"released": 3, "refused": 5}
    assert ledger.check() == 21


@pytest.mark.slow
def test_fifty_processes_get_ten_tenths(plain: str, ledger: Ledger) -> None:
    assert Counter(race(plain, 50)) == {"released": 10, "refused": 40}
    assert ledger.check() == 21


#: Kills itself when it has locked, when it has reserved, or when it has released.
KILLED = """
import os, signal, sys
from boltdp.ledger import open_ledger
from tests.ledger.charges import charge

uri, stage = sys.argv[1:]
ledger = open_ledger(uri)
if stage == "inside":
    ledger.store.append(lambda lines, user, time: os.kill(os.getpid(), signal.SIGKILL))
reservation = ledger.reserve("visits", charge())
if stage == "reserved":
    os.kill(os.getpid(), signal.SIGKILL)
print("released", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("stage", ["inside", "reserved", "released"])
def test_a_killed_process_leaves_no_release_without_a_charge(plain: str, ledger: Ledger, stage: str) -> None:
    process = started(KILLED, plain, stage)
    said = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL
    assert ledger.spent("visits").spent.releases == (stage != "inside") >= ("released" in said)
    ledger.reserve("visits", charge()).commit(DIGEST)
    ledger.check()


def test_a_trainer_appends_charges_of_its_own_and_nothing_else(plain: str, ledger: Ledger) -> None:
    theirs = ledger.reserve("visits", charge())
    trainer = open_ledger(as_role(plain, "trainer"))
    own = trainer.reserve("visits", charge())
    own.commit(DIGEST)
    assert trainer.history()[-1].by == "trainer"
    for act, why in (
        (lambda: trainer.set_budget("visits", Budget(99.0)), "only the owner"),
        (lambda: trainer.reserve("visits", charge(), by="postgres"), "in the name of the role"),
        (lambda: trainer.allow("other"), "permission denied"),
        (lambda: trainer._finish_charge(theirs, kind="return", released=None), "only who reserved"),
        (lambda: trainer.reserve("visits", charge(), role="a\nb"), "role must be named"),
    ):
        with pytest.raises((LedgerError, ParameterError), match=why):
            act()
    ledger.check()


def test_charges_are_counted_for_the_role_that_they_are_for(plain: str, ledger: Ledger) -> None:
    trainer = open_ledger(as_role(plain, "trainer"))
    for role in ("ann", "bob", None):
        trainer.reserve("visits", charge(), role=role)
    trainer.reserve("visits", charge(), role="ann").commit(DIGEST)
    trainer.reserve("visits", charge(), role="ann").cancel()
    counts = [len(ledger.list_charged_budgets("visits", role=role)) for role in ("ann", "bob", "carl")]
    assert counts == [2, 1, 0]
    entry = trainer.history()[-1]
    with pytest.raises(ParameterError, match="must not have blocks, reasons or a role"):
        replace(entry, role="ann")
    record = replace(entry, number=9, reserved=2, previous=entry.line.digest).line.record
    with (
        psycopg.connect(as_role(plain, "trainer")) as connection,
        pytest.raises(psycopg.errors.InvalidParameterValue, match="one that can be read"),
    ):
        connection.execute("SELECT boltdp_ledger.append(%s)", [record.replace('"role":null', '"role":"ann"')])
    assert ledger.check() == 8


#: How an entry of a charge is changed, and none of it can be read: what is replaced, and by what.
UNREADABLE = (
    ('"kind":"reserve"', '"kind":"gift"'),
    ('"kind":"reserve"', '"kind":null'),
    ('"kind":"reserve"', '"kind":"return"'),
    ('"number":3', '"number":3.0'),
    ('"when":"2', '"when":"\\u001b[2J2'),
    ('"when":"20', '"when":"19'),
    ('"when":"20', '"when":"21'),
    ('"budget":{"epsilon":0.1,"delta":0.0}', '"budget":null'),
    ('"reasons":[]', '"reasons":["no noise was added"]'),
    ('"dataset":"visits"', '"dataset":"others"'),
    ('"dataset":"visits"', '"dataset":7'),
    ('"dataset":"visits"', '"dataset":"visits","dataset":"visits"'),
    ('"dataset":"visits",', ""),
    ('"previous":', '"more":1,"previous":'),
    ('"role":null', '"role":7'),
    ('"role":null', '"role":""'),
    ('"role":null', '"role":" a"'),
    ('"role":null', '"role":"a\\u202eb"'),
    ('"blocks":[]', '"blocks":["a","a"]'),
    ('"blocks":[]', '"blocks":[7]'),
    ('"blocks":[]', '"blocks":[null]'),
    ('"blocks":[]', '"blocks":[""]'),
    ('"blocks":[]', '"blocks":[" a"]'),
    ('"blocks":[]', '"blocks":["a\\u202eb"]'),
    ('"blocks":[]', '"blocks":["a\\ud800b"]'),
    ('"blocks":[]', '"blocks":["a\\u0000b"]'),
    ('"blocks":[]', '"blocks":["' + "a" * 201 + '"]'),
    ('"blocks":[]', '"blocks":{}'),
    ('"epsilon":0.1', '"epsilon":"0.1"'),
    ('"epsilon":0.1', '"epsilon":0'),
    ('"epsilon":0.1', '"epsilon":1e400'),
    ('"epsilon":0.1', '"epsilon":1e7'),
    ('"delta":0.0', '"delta":0.99999999999999999999999'),
    ('"delta":0.0', '"delta":1e-200'),
    ('"delta":0.0', '"delta":-1'),
    ('"delta":0.0', '"delta":0.0,"gamma":0.0'),
    ('"composition":null', '"composition":"basic"'),
    ('"not_private":null', '"not_private":true'),
    ('"adjacency":"replace-one"', '"adjacency":"any"'),
    ('"event":{', '"event":null,"other":{'),
    ('"event":{', '"event":{"a":1,"a":1,'),
    ('"event":{', '"event":{"a":' + "1" * 5000 + ","),
    ('"event":{', '"event":{"a":' + "[" * 2000 + "]" * 2000 + ","),
    ('"event":{"kind":"', '"event":{"kind":"\\u009b'),
    ('"event":{"kind":', '"event":{"kind":5,"other":'),
    ('"event":{"kind":', '"event":{"kind":null,"other":'),
    ('"event":{"kind":', '"event":{"other":'),
    ('"event":{', '"event":{"a":-1e999,'),
    ('"event":{', '"event":{"a":1E+0200,'),
    ('"event":{', '"event":{"a":1e1000,'),
    ('"reasons":[]', '"reasons":[1]'),
    ('"reasons":[]', '"reasons":["\\u001b[2J"]'),
    ('"reserved":null', '"reserved":1'),
    ('"released":null', '"released":"sha256:0"'),
    ("{", "["),
    ("{", '{"a":NaN,'),
)


def test_an_entry_that_could_not_be_read_is_not_appended(plain: str, ledger: Ledger) -> None:
    trainer = open_ledger(as_role(plain, "trainer"))
    trainer.reserve("visits", charge())
    _, charged = trainer.history()
    record = replace(charged, number=3, previous=charged.line.digest).line.record
    append = "SELECT boltdp_ledger.append(%s)"
    with psycopg.connect(as_role(plain, "trainer"), autocommit=True) as connection:
        for old, new in UNREADABLE:
            assert old in record
            try:
                connection.execute(append, [record.replace(old, new, 1)])
            except psycopg.Error:
                continue
            pytest.fail(f"{old} may become {new[:50]}")
        # As if written by another hand, it is the same entry.
        connection.execute(append, [record.replace(",", ", ").replace('"epsilon": 0.1', '"epsilon": 1e-1')])
    for name in ("Zürich 北京", "a" * 200, "it's", "\U0001f3e5", "\u0378"):
        trainer.reserve("visits", charge(), blocks=[name, "b\\c"]).commit(DIGEST)
    assert ledger.check() == 13


def test_a_charge_about_another_relation_neither_stops_the_others_nor_passes_a_check(
    plain: str, ledger: Ledger
) -> None:
    trainer = open_ledger(as_role(plain, "trainer"))
    first = trainer.reserve("visits", charge())

    def append_about_persons() -> None:
        *_, last = trainer.history()
        reserved = replace(trainer.history()[1], number=last.number + 1, previous=last.line.digest)
        record = replace(reserved, adjacency=Adjacency.REPLACE_PERSON).line.record
        with psycopg.connect(as_role(plain, "trainer"), autocommit=True) as connection:
            connection.execute("SELECT boltdp_ledger.append(%s)", [record])

    with pytest.raises(psycopg.errors.InvalidParameterValue, match="the relation of those before it"):
        append_about_persons()
    trainer.reserve("visits", charge()).cancel()
    first.cancel()
    ledger.check()
    append_about_persons()  # which is the first of those that count, but whose events protect rows
    with pytest.raises(LedgerError, match="the relation of its events"):
        ledger.check()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO boltdp_ledger.entries VALUES (99, 'x', 'y')",
        "UPDATE boltdp_ledger.entries SET record = 'x'",
        "DELETE FROM boltdp_ledger.entries",
        "TRUNCATE boltdp_ledger.entries",
        "UPDATE boltdp_ledger.head SET number = 0",
        "DELETE FROM boltdp_ledger.head",
        "DROP TABLE boltdp_ledger.entries",
        "DROP SCHEMA boltdp_ledger CASCADE",
        "CREATE FUNCTION boltdp_ledger.latch(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE boltdp_ledger.entries DISABLE TRIGGER ALL",
    ],
)
def test_the_database_refuses_a_trainer_everything_but_appending(plain: str, ledger: Ledger, statement: Any) -> None:
    with psycopg.connect(as_role(plain, "trainer"), autocommit=True) as trainer, pytest.raises(psycopg.Error):
        trainer.execute(statement)
    ledger.check()


def test_other_roles_see_nothing(plain: str, ledger: Ledger) -> None:
    assert ledger.exists()
    other = open_ledger(as_role(plain, "other"))
    for act in (other.history, lambda: other.reserve("visits", charge()), lambda: other.set_budget("a", Budget(1.0))):
        with pytest.raises(LedgerError, match="permission denied"):
            act()


@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET digest = ''", "TRUNCATE {}"])
def test_not_even_the_owner_changes_an_entry(ledger: Ledger, owner: psycopg.Connection[Any], statement: Any) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="only appended to"):
        owner.execute(sql.SQL(statement).format(sql.SQL("boltdp_ledger.entries")))
    assert ledger.check() == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM boltdp_ledger.entries WHERE number = 2",
        "DELETE FROM boltdp_ledger.entries WHERE number = 5",
        "DELETE FROM boltdp_ledger.entries",
        "UPDATE boltdp_ledger.entries SET record = replace(record, '0.1', '0.2') WHERE number = 2",
        "DELETE FROM boltdp_ledger.head",
        "UPDATE boltdp_ledger.head SET version = 2",
    ],
)
def test_what_was_done_behind_the_triggers_is_found(
    ledger: Ledger, owner: psycopg.Connection[Any], statement: Any
) -> None:
    for _ in range(2):
        ledger.reserve("visits", charge()).commit(DIGEST)
    owner.execute("SET session_replication_role = replica")
    owner.execute(statement)
    with pytest.raises(LedgerError, match=r"damaged|version 2"):
        ledger.reserve("visits", charge())


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE boltdp_ledger.entries DISABLE TRIGGER kept",
        "DROP TRIGGER kept ON boltdp_ledger.head",
        "ALTER TABLE boltdp_ledger.entries ENABLE ROW LEVEL SECURITY",
    ],
)
def test_check_finds_what_no_longer_protects_it(ledger: Ledger, owner: psycopg.Connection[Any], statement: Any) -> None:
    owner.execute(statement)
    with pytest.raises(LedgerError, match="tables or triggers were changed"):
        ledger.check()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE OR REPLACE FUNCTION boltdp_ledger.append(record text) RETURNS void LANGUAGE sql AS 'SELECT'",
        "CREATE FUNCTION boltdp_ledger.append(record varchar) RETURNS void LANGUAGE sql AS 'SELECT'",
        "ALTER FUNCTION boltdp_ledger.append(text) SECURITY INVOKER",
        "ALTER FUNCTION boltdp_ledger.append(text) RESET ALL",
        "ALTER FUNCTION boltdp_ledger.append(text) OWNER TO mallory",
    ],
)
def test_functions_that_were_changed_are_not_called(
    ledger: Ledger, owner: psycopg.Connection[Any], statement: Any
) -> None:
    owner.execute(statement)
    with pytest.raises(LedgerError, match="functions were changed"):
        ledger.reserve("visits", charge())


def test_a_ledger_of_somebody_who_is_not_trusted_is_refused(plain: str, owner: psycopg.Connection[Any]) -> None:
    """Whoever may make schemas could otherwise have a trainer run their functions."""
    owner.execute("GRANT CREATE ON DATABASE postgres TO mallory")
    open_ledger(as_role(plain, "mallory")).set_budget("visits", Budget(9.0))
    for who in ("postgres", "trainer"):
        with pytest.raises(LedgerError, match="belongs to the role 'mallory'"):
            open_ledger(as_role(plain, who)).reserve("visits", charge())
    owner.execute("REVOKE CREATE ON DATABASE postgres FROM mallory")


def test_planted_functions_and_operators_do_not_run(plain: str, owner: psycopg.Connection[Any]) -> None:
    owner.execute("CREATE TABLE IF NOT EXISTS public.caught (what text)")
    owner.execute(
        "CREATE OR REPLACE FUNCTION public.sha256(text) RETURNS bytea LANGUAGE sql AS "
        "$$INSERT INTO public.caught VALUES ('sha256'); SELECT ''::bytea$$"
    )
    owner.execute(
        "CREATE OR REPLACE FUNCTION public.to_char(timestamptz, text) RETURNS text LANGUAGE sql AS "
        "$$INSERT INTO public.caught VALUES ('to_char'); SELECT ''$$"
    )
    owner.execute("ALTER ROLE postgres SET search_path = public, pg_catalog")
    try:
        ledger = open_ledger(plain)
        ledger.set_budget("visits", Budget(1.0))
        ledger.reserve("visits", charge()).commit(DIGEST)
        assert ledger.check() == 3
        assert owner.execute("SELECT what FROM public.caught").fetchall() == []
    finally:
        owner.execute("ALTER ROLE postgres RESET search_path")


def test_a_snapshot_taken_before_the_lock_is_not_used(
    plain: str, ledger: Ledger, owner: psycopg.Connection[Any]
) -> None:
    owner.execute("ALTER ROLE trainer SET default_transaction_isolation = 'serializable'")
    owner.execute("ALTER ROLE trainer SET synchronous_commit = off")
    try:
        for _ in range(7):
            ledger.reserve("visits", charge())
        assert Counter(race(as_role(plain, "trainer"), 5)) == {"released": 3, "refused": 2}
    finally:
        owner.execute("ALTER ROLE trainer RESET ALL")


def test_a_database_without_a_ledger_has_none(plain: str, owner: psycopg.Connection[Any]) -> None:
    del owner
    ledger = open_ledger(plain)
    assert not ledger.exists()
    with pytest.raises(LedgerError, match="there is no ledger in"):
        ledger.reserve("visits", charge())
    assert not ledger.exists()


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://ann:secret@/postgres?host=/nowhere",
        "postgresql:///postgres?host=/nowhere&password=secret",
        "postgresql:///postgres?password=secret&host=/nowhere",
        "postgresql://ann:sec/secret@/postgres?host=/nowhere",
        "postgresql://ann:a@secret@/postgres",
        "postgresql://ann:secret%zz@/postgres",
        "postgresql://ann:secret secret@/postgres",
    ],
)
def test_a_server_that_is_not_there_is_an_error_without_a_password(uri: str) -> None:
    ledger = open_ledger(uri)
    with pytest.raises(LedgerError, match="cannot be used") as fault:
        ledger.history()
    assert "secret" not in str(fault.value)
    assert "secret" not in ledger.address


def test_the_script_can_be_run_by_hand(plain: str, owner: psycopg.Connection[Any]) -> None:
    owner.execute(write_creation_script().encode())
    open_ledger(plain).set_budget("visits", Budget(1.0))
    assert len(open_ledger(plain).history()) == 1
    assert set(FUNCTIONS) == {"append", "latch", "refuse"}


def test_a_table_has_one_name_in_the_ledger(plain: str, owner: psycopg.Connection[Any], ledger: Ledger) -> None:
    assert ledger.exists()
    owner.execute("CREATE SCHEMA IF NOT EXISTS ward")
    owner.execute("CREATE TABLE IF NOT EXISTS public.visits (a int)")
    owner.execute("CREATE TABLE IF NOT EXISTS ward.beds (a int)")
    by_path = f"{plain}{'&' if '?' in plain else '?'}options=-csearch_path%3Dward"
    names = [(plain, "visits"), (plain, "public.visits"), (plain, "ward.beds"), (by_path, "beds")]
    accounts = [find_account(uri, table=table) for uri, table in names]
    assert [account and account.dataset for account in accounts] == ["visits", "visits", "ward.beds", "ward.beds"]
