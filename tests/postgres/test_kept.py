"""What a session keeps is for who kept it, and goes when the session is handed on or the transaction undone."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from boltdp.engines.postgres.local_server import Server

KEEP = "SELECT boltdp.put_state(7, 'secret')"
SECRET = (b"secret",)


@pytest.fixture
def pooled(server: Server, admin: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A superuser's session, as a pooler's would be."""
    admin.execute("CREATE ROLE next_user")
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute(KEEP)
        assert kept(connection) == SECRET
        yield connection
    admin.execute("DROP ROLE next_user")


def kept(connection: psycopg.Connection) -> tuple[bytes | None]:
    answer = connection.execute("SELECT boltdp.get_state(7)").fetchone()
    assert answer is not None
    return (answer[0],)


@pytest.mark.parametrize(
    "statement",
    [
        "DISCARD ALL",
        "DISCARD TEMP",
        "SET SESSION AUTHORIZATION next_user",
        "RESET SESSION AUTHORIZATION",
        "SET SESSION AUTHORIZATION DEFAULT",
        "SET SESSION AUTHORIZATION nobody_at_all",
    ],
)
def test_a_session_that_is_handed_on_keeps_nothing(pooled: psycopg.Connection, statement: str) -> None:
    try:
        pooled.execute(statement.encode())
    except psycopg.Error:
        assert "nobody" in statement
    assert kept(pooled) == (None,)
    pooled.execute("RESET SESSION AUTHORIZATION")
    assert kept(pooled) == (None,)


@pytest.mark.parametrize("setting", ["role", "session_authorization"])
def test_others_get_nothing_however_they_come_to_be_there(pooled: psycopg.Connection, setting: str) -> None:
    pooled.execute("SELECT set_config(%s, 'next_user', false)", [setting])
    assert kept(pooled) == (None,)
    assert pooled.execute("SELECT boltdp.drop_state(7)").fetchone() == (False,)
    pooled.execute("SELECT set_config(%s, %s, false)", [setting, "none" if setting == "role" else "postgres"])
    assert kept(pooled) == SECRET


@pytest.mark.parametrize("statement", ["DISCARD PLANS", "DISCARD SEQUENCES", "RESET ALL", "SET work_mem = '8MB'"])
def test_what_hands_nothing_on_leaves_it(pooled: psycopg.Connection, statement: str) -> None:
    pooled.execute(statement.encode())
    assert kept(pooled) == SECRET


def test_what_a_transaction_kept_goes_with_it_if_it_is_undone(pooled: psycopg.Connection) -> None:
    with pooled.transaction(force_rollback=True):
        pass
    assert kept(pooled) == SECRET
    with pooled.transaction(force_rollback=True):
        pooled.execute(KEEP)
    assert kept(pooled) == (None,)
    with pooled.transaction():
        pooled.execute(KEEP)
    assert kept(pooled) == SECRET
    with pytest.raises(psycopg.errors.DivisionByZero):
        pooled.execute("SELECT boltdp.put_state(7, 'other'), 1 / (length(boltdp.get_state(7)) - 5)")
    assert kept(pooled) == (None,)


def test_what_a_savepoint_kept_goes_with_it(pooled: psycopg.Connection) -> None:
    with pooled.transaction():
        pooled.execute("SAVEPOINT outer_one")
        pooled.execute("SAVEPOINT inner_one")
        pooled.execute("SELECT boltdp.put_state(8, 'inner')")
        pooled.execute("RELEASE inner_one")
        pooled.execute("ROLLBACK TO outer_one")
        assert pooled.execute("SELECT boltdp.get_state(8)").fetchone() == (None,)
        assert kept(pooled) == SECRET
    assert kept(pooled) == SECRET
