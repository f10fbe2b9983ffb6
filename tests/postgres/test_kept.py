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


def test_a_session_keeps_only_so_much(server: Server) -> None:
    put = "SELECT length(boltdp.put_state(%s, convert_to(repeat('x', %s), 'UTF8')))"
    with psycopg.connect(server.uri, autocommit=True, options="-c boltdp.max_state_memory=2MB") as connection:
        for size in (1_000_000, 1_500_000, 1_000_000, 1_000):
            connection.execute(put, [1, size])  # in the place of the one before
        connection.execute(put, [2, 2_000_000])
        message = "a session must not keep more than 2 MB of states"
        for refused in ((3, 200_000), (2, 2_200_000)):
            with pytest.raises(psycopg.errors.ProgramLimitExceeded, match=message):
                connection.execute(put, refused)
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match=message):  # small ones take more than their bytes
            connection.execute("SELECT count(boltdp.put_state(i, '')) FROM generate_series(10, 20000) AS i")
        with (
            pytest.raises(psycopg.errors.ProgramLimitExceeded, match=message),
            connection.cursor().copy("COPY boltdp.inbox FROM STDIN") as copy,
        ):
            copy.write_row((4, b"x" * 200_000))
        connection.execute("SELECT boltdp.drop_state(2)")
        with connection.transaction(force_rollback=True):
            connection.execute(put, [5, 2_000_000])
        connection.execute(put, [6, 2_000_000])
        connection.execute("DISCARD TEMP")
        connection.execute(put, [7, 2_000_000])


def test_only_superusers_say_how_much(server: Server, admin: psycopg.Connection) -> None:
    admin.execute("CREATE ROLE keeper LOGIN")
    try:
        with psycopg.connect(server.uri.replace("postgres@", "keeper@"), autocommit=True) as connection:
            connection.execute("SELECT boltdp.put_state(1, '')")
            assert connection.execute("SHOW boltdp.max_state_memory").fetchone() == ("1GB",)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SET boltdp.max_state_memory = '4GB'")
    finally:
        admin.execute("DROP ROLE keeper")
