"""Roles and tables are who they are, whatever they are called: renamed, or dropped and made again."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from boltdp.engines.postgres.local_server import Server
from boltdp.export.postgres_models import ModelStoreError, make_insert, make_model_row, store_model
from boltdp.privacy.budget import Budget
from boltdp.service.worker import REASONS
from tests.postgres.desk import ALLOW, ROWS, Desk, opened_desk
from tests.postgres.test_models import trained


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    with opened_desk(server) as opened:
        yield opened


def seen(desk: Desk, role: str) -> list[int]:
    """How many requests, models and allowances a role sees."""
    return [len(desk.ask(role, f"SELECT * FROM boltdp.{name}")) for name in ("answers", "models", "allowed")]


def test_a_renamed_role_keeps_what_it_has_and_one_of_its_old_name_gets_nothing(desk: Desk) -> None:
    desk.request()
    desk.serve()
    desk.publish()
    (model,) = desk.ask("ann", "SELECT name, weights FROM boltdp.models")
    desk.ask("postgres", "ALTER ROLE ann RENAME TO anna")
    desk.ask("postgres", "CREATE ROLE ann LOGIN")
    try:
        assert (seen(desk, "anna"), seen(desk, "ann")) == ([1, 1, 1], [0, 0, 0])
        desk.request("anna", epsilon=0.9)  # of 1, of which 0.2 is spent
        desk.request("anna")
        assert desk.request("ann") == 1
        assert sorted(line.split(",")[0] for line in desk.serve() if "remaining" not in line) == [
            "ann/1: refused",
            "anna/2: refused",
            "anna/3: done",
        ]
        desk.ask("hospital", ALLOW + ", epsilon => 1)")
        number = desk.request("ann")
        desk.serve()
        desk.publish()
        assert desk.status(number, "ann")["models"] == ["ann/2"]
        assert desk.ask("anna", "SELECT name, weights FROM boltdp.models WHERE name = 'ann/1'") == [model]
        assert seen(desk, "ann") == [2, 1, 1]
    finally:
        desk.ask("postgres", "DROP ROLE anna")


def test_a_role_that_is_made_again_gets_nothing_of_the_old_one(desk: Desk) -> None:
    desk.request()
    desk.serve()
    desk.publish()
    (model,) = desk.ask("ann", "SELECT name, weights FROM boltdp.models")
    desk.ask("postgres", "DROP ROLE ann")
    desk.ask("postgres", "CREATE ROLE ann LOGIN")
    assert seen(desk, "ann") == [0, 0, 0]
    desk.serve()
    kept = "SELECT (SELECT count(*) FROM boltdp.{}) AS n".format
    assert [desk.ask("postgres", kept(name))[0]["n"] for name in ("requests", "allowances", "models")] == [0, 0, 1]
    assert desk.ask("postgres", "SELECT granted_to FROM boltdp.models") == [{"granted_to": []}]
    desk.ask("hospital", ALLOW + ", epsilon => 1)")
    desk.request()
    assert desk.serve() == ["ann/1: done"]
    desk.publish()
    # The name is taken by a model that is not hers.
    assert desk.status(1)["models"] == ["ann/1-2"]
    assert seen(desk, "ann") == [1, 1, 1]
    assert desk.ask("postgres", "SELECT name, weights FROM boltdp.models WHERE name = 'ann/1'") == [model]


def test_a_table_keeps_its_dataset_and_another_of_its_old_name_does_not_get_it(desk: Desk) -> None:
    allow = ALLOW + ", epsilon => 1)"
    desk.ask("hospital", "ALTER TABLE patients RENAME TO patients_2025")
    desk.ask("hospital", "CREATE TABLE patients AS SELECT * FROM patients_2025 LIMIT 777")
    desk.ask("hospital", "GRANT SELECT ON patients TO trainer")
    assert desk.ask("hospital", allow.replace("'patients'", "'patients_2025'"))[0] == {"allow_training": "patients"}
    with pytest.raises(psycopg.errors.DuplicateObject, match=r'call another table "patients".*: public.patients_2025'):
        desk.ask("hospital", allow)
    taken = "INSERT INTO boltdp.allowances VALUES ('patients', 'bob', 'patients', 'outcome', '{age}', 1, 0)"
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        desk.ask("hospital", taken)
    desk.request()
    desk.serve()
    (charge,) = [one.charge for one in desk.ledger.history("patients") if one.kind == "reserve"]
    assert [one.problem.rows for one in charge.spent.walk() if hasattr(one, "problem")] == [ROWS]
    # Taken back and allowed again, it is the same dataset; so is a table that takes the place of a dropped one.
    desk.ask("hospital", "SELECT boltdp.revoke_training('patients_2025', 'ann')")
    with pytest.raises(psycopg.errors.DuplicateObject):
        desk.ask("hospital", allow)
    desk.ask("hospital", "DROP TABLE patients_2025")
    assert desk.ask("hospital", allow) == [{"allow_training": "patients"}]
    desk.request(epsilon=0.9)
    desk.serve()
    assert desk.kept(2)["reason"] == REASONS["over budget"]


def test_nobody_takes_the_name_of_somebodys_next_model(desk: Desk) -> None:
    model, _ = trained((0, 1), {})
    desk.ask("postgres", "GRANT INSERT, UPDATE, DELETE ON boltdp.models TO bob")
    for role in ("bob", "postgres"):
        with pytest.raises(ModelStoreError, match="name must not have a slash"):
            store_model(desk.uri(role), "ann/1", model)
    row = make_model_row("ann/1", model)
    with psycopg.connect(desk.uri("bob")) as bob, pytest.raises(psycopg.errors.InsufficientPrivilege):
        bob.execute(make_insert(row), row)
    store_model(desk.uri("bob"), "fine", model)
    store_model(desk.uri("bob"), "fine", model, replace=True)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        desk.ask("bob", "UPDATE boltdp.models SET name = 'ann/1'")
    desk.request()
    assert desk.serve() == ["ann/1: done"]
    desk.publish()
    assert desk.status(1)["models"] == ["ann/1"]
    desk.ask("postgres", "GRANT ann TO bob")
    desk.ask("bob", "DELETE FROM boltdp.models; UPDATE boltdp.models SET weights = '{}'")
    assert desk.ask("ann", "SELECT name, weights = '{}' AS gone FROM boltdp.models") == [
        {"name": "ann/1", "gone": False}
    ]


def test_roles_of_any_name_are_served(desk: Desk) -> None:
    for number, name in enumerate(("we\"ird'; --", " space ", "\u202enothing"), 1):
        quoted = '"' + name.replace('"', '""') + '"'
        desk.ask("postgres", f"ALTER ROLE ann RENAME TO {quoted}")
        try:
            desk.ask("postgres", f"SET ROLE {quoted}; SELECT boltdp.request('patients', 'outcome', 0.2)")
            assert desk.serve() == [f"{name}/{number}: done"]
        finally:
            desk.ask("postgres", f"ALTER ROLE {quoted} RENAME TO ann")
    assert desk.spent() == pytest.approx(0.6)


def test_what_roles_have_spent_outlives_the_extension(desk: Desk) -> None:
    desk.ledger.set_budget("patients", Budget(9.0, 1e-5), composition="basic")
    desk.request(epsilon=0.8)
    desk.serve()
    desk.ask("postgres", "DROP EXTENSION boltdp CASCADE; DROP SCHEMA boltdp CASCADE; CREATE EXTENSION boltdp")
    desk.ask("postgres", "SELECT boltdp.allow_worker('trainer'), boltdp.allow_owner('hospital')")
    for role in ("ann", "bob"):
        desk.ask("hospital", ALLOW.replace("'ann'", f"'{role}'") + ", epsilon => 1)")
        desk.request(role, epsilon=0.8)
    assert sorted(desk.serve()) == [
        "ann/1: epsilon 0.2 of 1, delta 0 of 0 remaining for the role 'ann'",
        f"ann/1: refused, {REASONS['over budget']}",
        "bob/1: done",
    ]
    assert [one.role for one in desk.ledger.history("patients") if one.kind == "reserve"] == ["ann", "bob"]
