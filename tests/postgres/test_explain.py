"""A plain role that asks the planner learns nothing of what others asked for: a right guess looks like a wrong one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import psycopg
import pytest

from boltdp.engines.postgres.local_server import Server
from boltdp.export.postgres_models import store_model
from tests.postgres.desk import ALLOW, Desk, opened_desk
from tests.postgres.test_models import trained

#: What bob asked for, and is allowed; and guesses of the same length that are wrong.
GUESSES = {"oncology": "urology_", "0.123456": "0.654321", "bob/1": "bob/x", "'hinge'": "'huber'", "'onset'": "'other'"}

#: Queries with a guess, and settings that make the planner choose another plan.
QUERIES = (
    "SELECT * FROM boltdp.answers WHERE dataset = '{0}'",
    "SELECT * FROM boltdp.answers WHERE dataset >= '{0}' AND dataset < '{0}z'",
    "SELECT * FROM boltdp.answers WHERE dataset LIKE '{0}%'",
    "SELECT * FROM boltdp.answers WHERE epsilon = {1}",
    "SELECT * FROM boltdp.answers WHERE epsilon >= {1} AND epsilon <= {1}",
    "SELECT dataset, count(*) FROM boltdp.answers WHERE epsilon <> {1} GROUP BY dataset",
    "SELECT * FROM boltdp.answers a JOIN (VALUES ('{0}')) v(d) ON a.dataset = v.d",
    "SELECT * FROM boltdp.answers WHERE '{2}' = ANY (models)",
    "SELECT * FROM boltdp.answers WHERE state = 'waiting' AND request = 1 AND dataset = '{0}'",
    "SELECT * FROM boltdp.allowed WHERE dataset = '{0}'",
    "SELECT * FROM boltdp.allowed WHERE epsilon = {1}",
    "SELECT name FROM boltdp.models WHERE name = '{2}'",
    "SELECT name FROM boltdp.models WHERE name >= '{2}' ORDER BY name LIMIT 1",
    "SELECT name FROM boltdp.models WHERE name LIKE '{2}%'",
    "SELECT name FROM boltdp.models WHERE name IN ('{2}', 'ann/1')",
    "SELECT name FROM boltdp.models m JOIN (VALUES ('{2}')) v(n) ON m.name = v.n",
    "SELECT name FROM boltdp.models WHERE sha256(replace(name, E'\\\\', E'\\\\\\\\')::bytea) = sha256('{2}'::bytea)",
    "SELECT name FROM boltdp.models WHERE loss = {3}",
    "SELECT boltdp.predict('{2}', ARRAY[1.0])",
    "SELECT * FROM boltdp.coefficients WHERE model = '{2}'",
    "SELECT model FROM boltdp.coefficients WHERE model >= '{2}' ORDER BY model LIMIT 1",
    "SELECT * FROM boltdp.coefficients WHERE term = {4}",
    "SELECT * FROM boltdp.coefficients c JOIN (VALUES ('{2}', {4})) v(n, t) ON c.model = v.n AND c.term = v.t",
    "SELECT * FROM boltdp.coefficients('{2}')",
    "SELECT * FROM boltdp.requests WHERE dataset = '{0}'",
    "SELECT number FROM boltdp.requests WHERE role = 'bob'::regrole AND number = 1 AND dataset = '{0}'",
    "SELECT * FROM boltdp.datasets WHERE name = '{0}'",
    "SELECT * FROM pg_stats WHERE most_common_vals::text LIKE '%{0}%' OR histogram_bounds::text LIKE '%{0}%'",
)
SETTINGS = ("jit", "enable_seqscan", "enable_indexscan", "enable_bitmapscan")
EXPLAIN = ("EXPLAIN", "EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF, BUFFERS OFF)")


@pytest.fixture(scope="module")
def desk(server: Server) -> Iterator[Desk]:
    with opened_desk(server) as opened:
        opened.ask("hospital", "CREATE TABLE oncology AS SELECT * FROM patients LIMIT 9")
        allow = ALLOW.replace("'patients'", "'oncology'").replace("'ann'", "'bob'")
        opened.ask("hospital", allow + ", epsilon => 0.123456)")
        opened.ask("bob", "SELECT boltdp.request('oncology', 'outcome', 0.123456) FROM generate_series(1, 90)")
        opened.ask("ann", "SELECT boltdp.request('patients', 'outcome', 0.2) FROM generate_series(1, 9)")
        store_model(opened.uri("postgres"), "everybody", trained((0, 1), {})[0])
        columns = "private, classes, weights, low, high, middle, factor, schema, certificate"
        for role, loss, term, numbers in (("bob", "hinge", "onset", 60), ("ann", "logistic", "age", 1)):
            opened.ask(
                "postgres",
                f"INSERT INTO boltdp.models (name, loss, granted_to, coefficients, {columns}) SELECT '{role}/' || i,"
                f" '{loss}', '{{{role}}}', json_build_array(json_build_object('term', '{term}')), {columns}"
                f" FROM boltdp.models, generate_series(1, {numbers}) AS i WHERE name = 'everybody'",
            )
        opened.ask("postgres", "ANALYZE boltdp.requests, boltdp.models, boltdp.allowances")
        yield opened


def ask(ann: psycopg.Connection, query: str) -> str:
    """What the server says, without the digest of a guess."""
    try:
        found = repr(ann.execute(query.encode()).fetchall())
    except psycopg.Error as fault:
        found = str(fault)
    return re.sub("[0-9a-f]{64}", "?", found)


def test_no_plan_tells_a_right_guess_from_a_wrong_one(desk: Desk) -> None:
    with psycopg.connect(desk.uri("ann"), autocommit=True) as ann:
        for off, query, explain in itertools.product(SETTINGS, QUERIES, EXPLAIN):
            ann.execute("RESET ALL")
            ann.execute(f"SET {off} = off".encode())
            right, wrong = (ask(ann, f"{explain} {query.format(*some)}") for some in (GUESSES, GUESSES.values()))
            for guess, other in GUESSES.items():
                right = right.replace(guess.strip("'"), "?")
                wrong = wrong.replace(other.strip("'"), "?")
            assert right == wrong, (off, explain, query)
        # The guesses are right: it is ann's own that are found by them.
        assert "rows=9" in ask(ann, EXPLAIN[1] + " SELECT * FROM boltdp.answers WHERE dataset = 'patients'")
        assert ask(ann, "SELECT model, term FROM boltdp.coefficients") == "[('ann/1', 'age')]"


def test_no_table_of_requests_has_statistics(desk: Desk) -> None:
    query = "SELECT DISTINCT tablename::text AS name FROM pg_stats WHERE schemaname = 'boltdp'"
    assert desk.ask("postgres", query) == []
    read = "SELECT relname FROM pg_class WHERE relnamespace = 'boltdp'::regnamespace AND relkind = 'r'"
    read += " AND (has_table_privilege(oid, 'SELECT') OR has_any_column_privilege(oid, 'SELECT'))"
    assert desk.ask("ann", read) == [{"relname": "models"}]
