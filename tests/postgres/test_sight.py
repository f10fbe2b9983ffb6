"""What a role that may only ask for models can see: every relation it may read, every function it may call."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema
from tests.postgres.desk import SECRET_NAME, SECRET_NUMBER, Desk, opened_desk

#: What another role asked for, and calls its table.
BOBS = "bobs own secret study"

#: Everything that may be read, and the columns of it.
RELATIONS = """
SELECT c.oid::regclass::text, array_agg(quote_ident(a.attname) ORDER BY a.attnum) FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped AND (a.attnum > 0 OR a.attname = 'ctid')
WHERE c.relkind IN ('r', 'v', 'm', 'p', 'f', 'S') AND has_schema_privilege(c.relnamespace, 'USAGE')
AND has_column_privilege(c.oid, a.attnum, 'SELECT') GROUP BY c.oid
"""
FUNCTIONS = """
SELECT p.oid::regproc::text, ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) t) FROM pg_proc p
WHERE p.prokind IN ('f', 'a') AND has_function_privilege(p.oid, 'EXECUTE')
AND has_schema_privilege(p.pronamespace, 'USAGE') ORDER BY p.pronamespace, 1
"""
#: These would end, delay or deafen the session that looks.
UNTRIED = ("pg_sleep", "pg_terminate_backend", "pg_cancel_backend", "pg_advisory", "pg_promote", "pg_log", "lo_")
#: Values to call functions with, by type.
TEXTS = ("patients", "public.patients", "amount", "SELECT * FROM public.patients", "ann/1", "pg_temp.boltdp", "1")
NUMBERS = ("1", "0", "7", "2")
OBJECTS = ("<patients>", "<temporary>", "<entries>", "<requests>", "1")
VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("smallint", "integer", "bigint", "numeric", "real", "double precision"), NUMBERS),
    **dict.fromkeys(("oid", "regclass"), OBJECTS),
    "boolean": ("true", "false"),
    "bytea": (r"'\x00'", r"'\x0102'"),
    "interval": ("'1 day'",),
    "timestamp with time zone": ("now()",),
    "real[]": ("'{1,70}'", "'{70,500000,0,1}'"),
    "double precision[]": ("'{1,70}'", "'{70,500000,0,1}'"),
    "text[]": ("'{age,amount}'", "'{public,patients}'"),
    "json": ("'{}'",),
    "name[]": ("'{public,patients}'",),
    '"any"': ("1", "'patients'::text"),
    "anyelement": ("1",),
    "anyarray": ("'{1}'::int[]",),
    "regproc": ("'now'::regproc",),
}
TRIES = 5


@pytest.fixture(scope="module")
def desk(server: Server) -> Iterator[Desk]:
    """A hospital at work: a model was released, another role has asked, and the worker has prepared the rows."""
    with opened_desk(server) as opened:
        opened.ask("hospital", "ANALYZE patients")
        opened.request()
        opened.request("bob", dataset=BOBS)
        opened.serve()
        opened.publish()
        schema = Schema(Classes("outcome", (False, True)), (Numeric("age", 0, 120), Numeric("amount", 0, 1e6)))
        with (
            PostgresEngine(opened.uri("trainer"), table="patients", where="server") as engine,
            engine.prepare(schema, Context()),
        ):
            yield opened


@pytest.fixture(scope="module")
def secrets(desk: Desk) -> list[str]:
    """Texts that must not be seen: cells, sums, what others asked for, entries of the ledger."""
    sums = "SELECT sum(amount) AS a, sum(age) AS b, sum(age * amount) AS c, round(avg(amount), 6) AS d FROM patients"
    (found,) = desk.ask("hospital", sums)
    entries = desk.ask("hospital", "SELECT digest FROM boltdp_ledger.entries")
    channel = desk.ask("postgres", "SELECT channel FROM boltdp.serving")
    cells = [SECRET_NAME, str(SECRET_NUMBER), str(SECRET_NUMBER - 1), "patient 12", BOBS]
    return [*cells, *map(str, found.values()), *(one["digest"][7:] for one in entries), channel[0]["channel"]]


def read(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """All that is in all relations, as text."""
    seen = {}
    for name, columns in connection.execute(RELATIONS).fetchall():
        try:
            rows = connection.execute(f"SELECT {', '.join(columns)} FROM {name}".encode()).fetchall()
        except psycopg.Error as fault:
            rows = [(str(fault),)]
        seen[name] = repr(rows)
    return seen


def called(connection: psycopg.Connection[Any], objects: dict[str, int]) -> dict[str, str]:
    """What functions say, called with values that fit their types in a few ways."""

    def named(values: str) -> str:
        return re.sub("<([a-z]+)>", lambda found: str(objects[found[1]]), values)

    seen: dict[str, str] = {}
    for name, types in connection.execute(FUNCTIONS).fetchall():
        if any(part in name for part in UNTRIED):
            continue
        choices = [VALUES.get(one, tuple(f"'{text}'::{one}" for text in TEXTS)) for one in types]
        for attempt in range(TRIES if types else 1):
            given = ", ".join(some[(attempt + place) % len(some)] for place, some in enumerate(choices))
            for same in (given, ", ".join(some[attempt % len(some)] for some in choices)):
                call = f"SELECT * FROM {name}({named(same)}) AS x LIMIT 9999"
                if call in seen:
                    continue
                try:
                    seen[call] = repr(connection.execute(call.encode()).fetchall())
                except psycopg.Error as fault:
                    seen[call] = f"error: {fault}"
    return seen


def leaks(seen: dict[str, str], secrets: list[str]) -> list[tuple[str, str]]:
    """Where a secret is shown; what was said oneself does not count."""
    return [
        (what, secret)
        for (what, text), secret in itertools.product(seen.items(), secrets)
        if secret in text and secret not in what
    ]


def test_no_relation_shows_an_analyst_a_cell_a_sum_or_what_others_asked_for(desk: Desk, secrets: list[str]) -> None:
    with psycopg.connect(desk.uri("ann"), autocommit=True) as ann:
        seen = read(ann)
    assert len(seen) > 150
    assert "ann/1" in seen["boltdp.answers"]
    assert leaks(seen, secrets) == []
    # Those who may see them do, by the same reading.
    with psycopg.connect(desk.uri("hospital"), autocommit=True) as owner:
        shown = {secret for _, secret in leaks(read(owner), secrets)}
    assert {SECRET_NAME, str(SECRET_NUMBER)} <= shown
    assert any(len(secret) == 64 for secret in shown)


def test_no_function_shows_them_either(desk: Desk, secrets: list[str]) -> None:
    find = """
    SELECT 'public.patients'::regclass::oid::int AS patients, 'boltdp_ledger.entries'::regclass::oid::int AS entries,
      'boltdp.requests'::regclass::oid::int AS requests, (SELECT max(c.oid::int) FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname LIKE 'pg_temp%' AND c.relkind = 'r') AS temporary
    """
    (objects,) = desk.ask("postgres", find)
    assert None not in objects.values()
    with psycopg.connect(desk.uri("ann"), autocommit=True) as ann:
        ann.execute("SET statement_timeout = '2s'")
        seen = called(ann, objects)
        assert ann.execute("SELECT current_user, session_user").fetchone() == ("ann", "ann")
    answered = {call.split("(")[0] for call, text in seen.items() if not text.startswith("error: ")}
    assert len(answered) > 800
    assert {"SELECT * FROM boltdp.status", "SELECT * FROM boltdp.request"} <= answered
    assert leaks(seen, secrets) == []


def test_the_worker_s_statements_and_times_are_hidden(desk: Desk) -> None:
    query = "SELECT query, state, backend_start, query_start, xact_start, wait_event FROM pg_stat_activity"
    sessions = desk.ask("ann", query + " WHERE usename = 'trainer'")
    assert len(sessions) == 1
    assert {one for session in sessions for one in session.values()} == {"<insufficient privilege>", None}
