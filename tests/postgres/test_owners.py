"""What the worker reads runs with its rights: only roles that are trusted, and still are, get anything there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from boltdp.engines.postgres.local_server import Server
from boltdp.errors import DataError
from boltdp.export.postgres_models import ModelStoreError, store_model
from boltdp.privacy.budget import Budget
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema
from boltdp.service import worker
from boltdp.service.worker import REASONS, Allowance, Worker, WorkerError
from tests.postgres.desk import ALLOW, Desk, opened_desk
from tests.postgres.test_models import trained


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    """A desk where bob, whom nobody trusts, has functions that tell who runs them."""
    with opened_desk(server) as opened:
        opened.ask("postgres", "GRANT CREATE ON SCHEMA public TO bob")
        opened.ask("bob", "CREATE TABLE caught (who text); GRANT INSERT, SELECT ON caught TO PUBLIC")
        # The planner computes what is called immutable, which may call what is not.
        for name, kind, body in (
            ("note", "VOLATILE", "INSERT INTO public.caught VALUES (current_user)"),
            ("seems_true", "IMMUTABLE", "PERFORM public.note($1)"),
        ):
            body = f"$$BEGIN {body}; RETURN true; END$$"
            opened.ask("bob", f"CREATE FUNCTION {name}(int) RETURNS boolean LANGUAGE plpgsql {kind} AS {body}")
        opened.ask("bob", "CREATE OPERATOR ^^^ (FUNCTION = seems_true, RIGHTARG = int)")
        yield opened


def caught(desk: Desk) -> bool:
    """Whether the worker has run what bob made."""
    return any(one["who"] == "trainer" for one in desk.ask("bob", "DELETE FROM caught RETURNING who"))


POLICY = "ALTER TABLE {} ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON {} USING (seems_true(1))"
#: What makes bob's function run when the worker reads the table, by who does it; and what is undone then.
PLANTED: dict[str, tuple[list[tuple[str, str]], str]] = {
    "the table was given to bob, who has a policy": (
        [("postgres", "ALTER TABLE patients OWNER TO bob"), ("bob", POLICY.format("patients", "patients"))],
        "DROP POLICY p ON patients; ALTER TABLE patients DISABLE ROW LEVEL SECURITY, OWNER TO hospital",
    ),
    "a policy of the owner calls bob's function": (
        [("hospital", POLICY.format("patients", "patients"))],
        "DROP POLICY p ON patients; ALTER TABLE patients DISABLE ROW LEVEL SECURITY",
    ),
    "a policy reads bob's view": (
        [
            ("bob", "CREATE VIEW spying AS SELECT seems_true(1) AS yes; GRANT SELECT ON spying TO PUBLIC"),
            ("hospital", POLICY.format("patients", "patients").replace("seems_true(1)", "(SELECT yes FROM spying)")),
        ],
        "DROP POLICY p ON patients; ALTER TABLE patients DISABLE ROW LEVEL SECURITY",
    ),
    "the planner computes a constraint": (
        [("hospital", "ALTER TABLE patients ADD CONSTRAINT c CHECK (seems_true(1))")],
        "ALTER TABLE patients DROP CONSTRAINT c",
    ),
    "the planner computes an index": (
        [("hospital", "CREATE INDEX i ON patients (id) WHERE ^^^ 1")],
        "DROP INDEX i",
    ),
    "a child of the table is bob's": (
        [
            ("hospital", "CREATE TABLE child () INHERITS (patients)"),
            ("postgres", "ALTER TABLE child OWNER TO bob"),
            ("bob", "CREATE INDEX j ON child (id) WHERE seems_true(1)"),
        ],
        "DROP TABLE child",
    ),
}


def test_nothing_of_a_role_that_is_not_trusted_is_run_as_the_worker(desk: Desk) -> None:
    for case, (planted, undone) in PLANTED.items():
        for role, statement in planted:
            desk.ask(role, statement)
        caught(desk)
        desk.ask("trainer", "SET constraint_exclusion = on; SELECT count(*) FROM patients WHERE id > 0 AND age > 1")
        assert caught(desk), f"{case}: this would be no attack"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            desk.ask("hospital", ALLOW + ", epsilon => 1)")
        number = desk.request()
        said = desk.serve()
        assert said[0].endswith("belongs to a role that is not trusted"), case
        assert desk.kept(number)["reason"] == REASONS["not allowed"], case
        assert not caught(desk), case
        desk.ask("postgres", undone)
    assert desk.ask("postgres", "SELECT boltdp.is_trusted('patients') AS yes") == [{"yes": True}]
    number = desk.request()
    desk.serve()
    assert desk.kept(number)["state"] == "done"


def test_a_view_is_as_trusted_as_what_it_reads(desk: Desk) -> None:
    desk.ask("postgres", "GRANT SELECT ON patients TO bob")
    desk.ask("bob", "CREATE VIEW theirs AS SELECT *, seems_true(1) FROM patients; GRANT SELECT ON theirs TO PUBLIC")
    desk.ask("hospital", "CREATE VIEW own AS SELECT * FROM patients; GRANT SELECT ON own TO trainer")
    allow = ALLOW.replace("'patients'", "'own'") + ", epsilon => 1)"
    desk.ask("hospital", allow)
    desk.ask("hospital", "CREATE OR REPLACE VIEW own AS SELECT id, name, age, sex, ward, amount, outcome FROM theirs")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must belong to roles"):
        desk.ask("hospital", allow)
    desk.request(dataset="own")
    desk.serve()
    assert desk.kept()["reason"] == REASONS["not allowed"]
    assert not caught(desk)


@pytest.mark.parametrize("owner", ["bob", "hospital"])
def test_a_view_is_as_trusted_as_the_domains_that_it_casts_to(desk: Desk, owner: str) -> None:
    """A constraint that is added later runs wherever a value becomes one of the domain."""
    desk.ask("postgres", "GRANT CREATE ON SCHEMA public TO hospital")
    desk.ask(owner, "CREATE DOMAIN lived AS int; CREATE DOMAIN years AS lived; GRANT USAGE ON TYPE years TO PUBLIC")
    desk.ask("hospital", "CREATE VIEW own AS SELECT age::years AS age, outcome FROM patients")
    desk.ask("hospital", "GRANT SELECT ON own TO trainer")
    desk.ledger.set_budget("own", Budget(9.0), composition="basic")
    trusted = desk.ask("postgres", "SELECT boltdp.is_trusted('own') AS yes")[0]["yes"]
    assert trusted is (owner == "hospital")
    schema = '{"label": "outcome", "classes": [false, true], "numeric": {"age": [0, 120]}}'
    desk.ask("postgres", "SELECT boltdp.allow_owner('bob')")  # for as long as it takes to allow it
    desk.ask("hospital", "SELECT boltdp.allow_training('own', 'ann', 'outcome', '{age}', 1, schema => %s)", [schema])
    desk.ask("postgres", "SELECT boltdp.revoke_owner('bob')")
    desk.ask(owner, "ALTER DOMAIN lived ADD CHECK (seems_true(VALUE)) NOT VALID")
    desk.ask("trainer", "SELECT max(age) FROM own")
    assert caught(desk), "this would be no attack"
    desk.request(dataset="own")
    assert "not trusted" in desk.serve()[0]
    assert not caught(desk)


def test_the_owner_is_checked_in_the_transaction_that_reads(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the table changes hands when the allowance was found, and not while it is read."""
    find, charge = Worker._find_free_name, Worker._mark_charged

    def give(*arguments: Any) -> str:
        desk.ask("postgres", "ALTER TABLE patients OWNER TO bob")
        desk.ask("bob", POLICY.format("patients", "patients"))
        return find(*arguments)

    def swap(*arguments: Any) -> str:
        desk.ask("hospital", "ALTER TABLE patients RENAME TO hidden; CREATE VIEW patients AS TABLE hidden")
        return find(*arguments)

    undone = PLANTED["the table was given to bob, who has a policy"][1]
    for number, change in enumerate((give, swap), 1):
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "_find_free_name", change)
            desk.request()
            assert "not trusted" in desk.serve()[0]
        assert not caught(desk)
        assert (desk.kept(number)["state"], desk.kept(number)["charged_to"]) == ("refused", None)
        desk.ask("postgres", undone if change is give else "DROP VIEW patients; ALTER TABLE hidden RENAME TO patients")

    def attempt(*arguments: Any) -> None:
        for statement in ("ALTER TABLE patients OWNER TO bob", "CREATE POLICY p ON patients USING (seems_true(1))"):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                desk.ask("postgres", "SET lock_timeout = '50ms'; " + statement)
        charge(*arguments)

    monkeypatch.setattr(Worker, "_mark_charged", attempt)
    desk.request()
    assert desk.serve() == ["ann/3: done"]


def test_every_way_to_the_rows_asks_first(desk: Desk) -> None:
    (oid,) = desk.ask("postgres", "SELECT 'patients'::regclass::oid::int AS oid")[0].values()
    answers = [True]
    allowance = Allowance(
        dataset="patients",
        role_id=0,
        role="ann",
        relation_id=oid,
        namespace="public",
        relation="patients",
        trusted=True,
        label="outcome",
        columns=["age"],
        epsilon=1,
        delta=0,
        groups=None,
        group_values=None,
        schema=None,
        min_epsilon=None,
        max_epsilon_per_request=None,
    )
    schema = Schema(Classes("outcome", (False, True)), (Numeric("age", 0, 120),))
    with worker._TrustedTable(desk.uri("trainer"), allowance, lambda _: answers[-1]) as engine:
        groups = engine.group_by("ward", ["north"])
        with engine.prepare(schema, Context()):
            pass
        answers.append(False)
        for read in (
            engine.columns,
            engine.count,
            lambda: engine.prepare(schema, Context()),
            lambda: engine.group_by("ward", ["north"]),
            lambda: groups.prepare([schema], Context(), permuted=[False]).__enter__(),
        ):
            with pytest.raises(DataError, match="not trusted"):
                read()


def test_trust_is_shown_and_taken_back(desk: Desk) -> None:
    trusted = "SELECT * FROM boltdp.trusted ORDER BY role::text"
    assert [tuple(one.values()) for one in desk.ask("ann", trusted)] == [
        ("hospital", False, True),
        ("trainer", True, False),
    ]
    for role in ("ann", "hospital", "trainer"):
        for query in ("SELECT boltdp.revoke_worker('trainer')", "SELECT boltdp.revoke_owner('hospital')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                desk.ask(role, query)
    desk.ask("postgres", "SELECT boltdp.revoke_owner('hospital')")
    desk.request()
    assert "not trusted" in desk.serve()[0]
    assert desk.kept()["reason"] == REASONS["not allowed"]
    for statement in (ALLOW + ", epsilon => 1)", "SELECT * FROM boltdp.allowances"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            desk.ask("hospital", statement)
    desk.ask("postgres", "SELECT boltdp.revoke_worker('trainer')")
    with pytest.raises(WorkerError, match="permission denied"):
        desk.serve()
    for statement in ("SELECT * FROM boltdp.requests", "SELECT boltdp.sweep()", "SELECT * FROM boltdp.allowances"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            desk.ask("trainer", statement)
    assert desk.ask("ann", trusted) == []


ADOPTED = {
    "CREATE SCHEMA boltdp AUTHORIZATION {bob}": False,
    "CREATE SCHEMA boltdp; GRANT CREATE ON SCHEMA boltdp TO {bob}": False,
    "CREATE SCHEMA boltdp; GRANT CREATE ON SCHEMA boltdp TO PUBLIC": False,
    "CREATE SCHEMA boltdp; CREATE FUNCTION boltdp.predict(text, int[]) RETURNS text LANGUAGE sql AS 'SELECT 1'": False,
    "CREATE SCHEMA boltdp; CREATE TYPE boltdp.kind AS ENUM ('a')": False,
    "CREATE SCHEMA boltdp; CREATE OPERATOR boltdp.= (FUNCTION = int4eq, LEFTARG = int, RIGHTARG = int)": False,
    "CREATE SCHEMA boltdp": True,
    "CREATE SCHEMA boltdp; GRANT USAGE ON SCHEMA boltdp TO {bob}": True,
}


def test_the_extension_adopts_nothing_that_others_made(server: Server) -> None:
    with psycopg.connect(server.uri, autocommit=True) as admin:
        admin.execute("CREATE DATABASE adopted")
        admin.execute("CREATE ROLE adopter LOGIN")
        try:
            uri = server.uri.replace("/postgres?", "/adopted?")
            with psycopg.connect(uri) as connection:
                for before, installs in ADOPTED.items():
                    connection.execute(before.format(bob="adopter").encode())
                    if installs:
                        connection.execute("CREATE EXTENSION boltdp")
                    else:
                        with pytest.raises(
                            psycopg.errors.InsufficientPrivilege, match="the schema boltdp must be empty"
                        ):
                            connection.execute("CREATE EXTENSION boltdp")
                    connection.rollback()
                connection.execute("CREATE EXTENSION boltdp")
                connection.execute("ALTER SCHEMA boltdp OWNER TO adopter")
                connection.commit()
            with pytest.raises(ModelStoreError, match=r"no table boltdp\.models of the extension$"):
                store_model(uri, "any", trained((0, 1), {})[0])
        finally:
            admin.execute("DROP DATABASE adopted WITH (FORCE)")
            admin.execute("DROP ROLE adopter")
