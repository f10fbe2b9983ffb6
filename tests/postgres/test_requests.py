"""Roles that may not see the rows get models of them, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from boltdp.engines.postgres.local_server import Server
from boltdp.privacy.budget import Budget
from boltdp.service.worker import REASONS, Worker, WorkerError
from tests.postgres.desk import ALLOW, ROWS, TABLE, WARDS, Desk, opened_desk
from tests.postgres.statements import recorded
from tests.postgres.test_training import wait_until


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    with opened_desk(server) as opened:
        yield opened


X = "ARRAY[70, 500000, 0, 1]::float8[]"


def test_a_role_without_a_right_to_the_table_gets_a_model(desk: Desk) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        desk.ask("ann", "SELECT FROM patients")
    number = desk.request()
    assert desk.serve() == ["ann/1: done"]
    assert desk.kept()["state"] == "done"
    # Not before its time, which does not depend on how long the training took.
    assert desk.status(number)["state"] == "waiting"
    predict = f"SELECT boltdp.predict('ann/1', {X}) AS said"
    with pytest.raises(psycopg.errors.UndefinedObject):
        desk.ask("ann", predict)
    desk.publish()
    answer = desk.status(number)
    assert (answer["state"], answer["reason"], answer["models"]) == ("done", None, ["ann/1"])
    assert desk.ask("ann", predict)[0]["said"] in ("false", "true")
    with pytest.raises(psycopg.errors.UndefinedObject):
        desk.ask("bob", predict)
    assert desk.ask("bob", "SELECT * FROM boltdp.models") == desk.ask("bob", "SELECT * FROM boltdp.answers") == []
    desk.ask("postgres", "UPDATE boltdp.models SET granted_to = granted_to || 'bob'::regrole WHERE name = 'ann/1'")
    assert desk.ask("bob", predict) == desk.ask("ann", predict)
    (model,) = desk.ask("ann", "SELECT private, certificate FROM boltdp.models")
    assert model["private"]
    assert desk.spent() == pytest.approx(0.2)
    assert desk.ledger.history("patients")[-1].by == "trainer"


@pytest.mark.parametrize(("schema", "delta"), [(False, 0.0), (False, 1e-6), (True, 0.0)])
def test_a_number_with_declared_bounds_is_asked_for_as_a_label(desk: Desk, schema: bool, delta: float) -> None:
    declared = {"target": "age", "bounds": [0, 110], "typical": [10, 100], "numeric": {"amount": [0, 1e6]}}
    given = f", schema => '{json.dumps(declared)}'" if schema else ""
    columns = "{amount}" if schema else "{sex,amount}"
    desk.ask(
        "hospital",
        "SELECT boltdp.allow_training('patients', to_role => 'ann', label => 'age',"
        f" columns => '{columns}', epsilon => 1, delta => 1e-5{given})",
    )
    number = desk.request(label="age", epsilon=0.5, delta=delta)
    assert desk.serve() == ["ann/1: done"]
    desk.publish()
    assert desk.status(number)["models"] == ["ann/1"]
    x = "ARRAY[500000]::float8[]" if schema else "ARRAY[500000, 0, 1]::float8[]"
    (said,) = desk.ask("ann", f"SELECT boltdp.predict_number('ann/1', {x}) AS said")
    assert 0 <= said["said"] <= (110 if schema else 120)
    assert desk.spent() == pytest.approx(0.5)


def test_answers_come_at_grid_points_that_follow_from_the_request(desk: Desk) -> None:
    desk.request()
    desk.request(epsilon=99.0)
    desk.request(inference=True)
    desk.request(inference=True, epsilon=99.0)
    desk.serve()
    query = "SELECT DISTINCT published = date_bin('1 day', requested, 'epoch') + interval '2 days' AS right,"
    query += " (SELECT bool_and(stored = published) FROM boltdp.models) AS together FROM boltdp.requests"
    assert desk.ask("postgres", query) == [{"right": True, "together": True}]


REFUSED: list[tuple[dict[str, Any], Any]] = [
    ({"dataset": "nothing"}, "not allowed"),
    ({"dataset": "pg_authid"}, "not allowed"),
    ({"label": "sex"}, "not allowed"),
    ({"columns": ["name"]}, "not allowed"),
    ({"columns": ["no such column"]}, "not allowed"),
    ({"columns": []}, "not allowed"),
    ({"columns": ["age", "age"]}, "not allowed"),
    ({"columns": [["age", "sex"], ["age", "sex"]]}, "not allowed"),
    ({"groups": "ward"}, "not allowed"),
    ({"dataset": "patients'; DROP TABLE patients; --"}, "not allowed"),
    ({"epsilon": 0.0}, "bad budget"),
    ({"epsilon": float("nan")}, "bad budget"),
    ({"delta": -1.0}, "bad budget"),
    ({"epsilon": 1.1}, "over budget"),
    ({"epsilon": 0.1, "delta": 1e-4}, "over budget"),
    ({"epsilon": 0.01}, "drowned"),
]


def test_refusals_look_alike_and_cost_nothing(desk: Desk) -> None:
    numbers = [desk.request(**asked) for asked, _ in REFUSED]
    desk.serve()
    for number in numbers:
        early = desk.status(number)
        assert (early["state"], early["reason"], early["published"]) == ("waiting", None, None)
    assert desk.ask("postgres", "SELECT count(DISTINCT published) AS times FROM boltdp.requests") == [{"times": 1}]
    desk.publish()
    for number, (asked, why) in zip(numbers, REFUSED, strict=True):
        answer = desk.status(number)
        assert (answer["state"], answer["reason"], answer["models"]) == ("refused", REASONS[why], None), asked
        assert desk.kept(number)["charged_to"] is None
    assert desk.spent() == 0.0


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(("delta", "groups"), [(0.0, None), (1e-6, None), (0.0, "ward"), (1e-6, "ward")])
def test_which_statements_are_run_does_not_depend_on_the_rows(
    desk: Desk, delta: float, groups: str | None, inference: bool
) -> None:
    """Any role can count the transactions and scans of others in the server's statistics."""
    desk.ask("hospital", ALLOW + ", epsilon => 1, delta => 1e-5, groups => 'ward', group_values => '{south,north}')")
    sent = []
    for change in ("true", "amount = 0, sex = NULL, age = 7, outcome = false"):
        if change != "true":
            desk.ask("hospital", f"UPDATE patients SET {change}")
        desk.request(epsilon=0.5, delta=delta, groups=groups, inference=inference, robust_errors=inference)
        with recorded() as statements:
            assert desk.serve()[0].split(",")[0].endswith(": done")
        sent.append([re.sub("boltdp_[0-9a-f]+|[0-9]+", "", text) for text in statements])
    assert sent[0] == sent[1]
    assert len(sent[0]) > 50


def test_how_often_long_values_are_fetched_does_not_depend_on_the_rows(desk: Desk) -> None:
    """The server counts for everybody how often it fetches what does not fit into a row."""
    desk.ask("hospital", "ALTER TABLE patients DROP CONSTRAINT patients_sex_check, ALTER sex SET STORAGE EXTERNAL")
    desk.ask("hospital", "ALTER TABLE patients ALTER name SET STORAGE EXTERNAL")
    desk.ask("hospital", "UPDATE patients SET sex = repeat('F', 9000), name = repeat('2026-01-01 ', 900) WHERE id < 10")
    schema = '{"label": "outcome", "classes": [false, true], "categorical": {"sex": ["F", "M"]},'
    schema += ' "timestamp": {"name": ["month", "hour"]}}'
    allow = "SELECT boltdp.allow_training('patients', 'ann', 'outcome', '{sex,name}', 1, schema => %s)"
    desk.ask("hospital", allow, [schema])

    def counted() -> tuple[int, int]:
        query = "SELECT t.seq_scan, l.idx_scan FROM pg_class c JOIN pg_stat_all_tables t ON t.relid = c.oid"
        query += " JOIN pg_stat_all_tables l ON l.relid = c.reltoastrelid WHERE c.relname = 'patients'"
        (found,) = desk.ask("ann", query)
        return found["seq_scan"], found["idx_scan"]

    scans, fetches = counted()
    desk.request(epsilon=0.6)
    assert desk.serve() == ["ann/1: done"]
    wait_until(lambda: counted()[0] == scans + 2)
    assert counted()[1] == fetches


def test_another_role_is_refused_what_was_not_allowed_to_it(desk: Desk) -> None:
    desk.request("bob")
    desk.serve()
    assert desk.kept()["reason"] == REASONS["not allowed"]
    # Numbers are a role's own: they tell nothing of others' requests.
    assert desk.request("ann") == desk.request("trainer") == 1


def test_members_of_a_role_share_its_budget(desk: Desk) -> None:
    desk.ask("postgres", "GRANT ann TO bob")
    desk.request("bob", epsilon=0.6)
    desk.serve()
    desk.request("ann", epsilon=0.6)
    desk.serve()
    states = desk.ask("postgres", "SELECT role, state, reason, charged_to FROM boltdp.requests ORDER BY requested")
    assert [tuple(one.values()) for one in states] == [
        ("bob", "done", None, "ann"),
        ("ann", "refused", REASONS["over budget"], None),
    ]


def test_the_budgets_of_the_role_and_of_the_data_set_both_hold(desk: Desk) -> None:
    for _ in range(2):
        desk.request(epsilon=0.5, delta=1e-6)
    desk.request(epsilon=0.001)
    assert "ann/3: epsilon 0 of 1, delta 8e-06 of 1e-05 remaining for the role 'ann'" in desk.serve()
    states = desk.ask("postgres", "SELECT state FROM boltdp.requests ORDER BY number")
    assert [one["state"] for one in states] == ["done", "done", "refused"]
    # The role may have more, and the dataset has none left.
    desk.ask("hospital", ALLOW + ", epsilon => 9, delta => 1e-5)")
    number = desk.request(epsilon=0.5)
    said = desk.serve()
    assert said[0].startswith("ann/4: budget exceeded for dataset 'patients': requested epsilon = 0.5, remaining")
    desk.publish()
    assert desk.status(number)["reason"] == REASONS["over budget"]
    assert desk.kept(number)["charged_to"] is None
    assert desk.spent() == pytest.approx(1.0)


def test_a_ledger_that_composes_curves_is_not_used(desk: Desk) -> None:
    desk.ledger.set_budget("patients", Budget(1.0, 1e-5), composition="curves")
    desk.request()
    said = desk.serve()
    assert "must have the composition 'adaptive' or 'basic'" in said[0]
    assert desk.kept()["reason"] == REASONS["over budget"]


def test_a_model_for_each_group_is_charged_once(desk: Desk) -> None:
    desk.ask("hospital", ALLOW + ", epsilon => 1, groups => 'ward', group_values => '{north,south}')")
    number = desk.request(groups="ward", epsilon=0.7)
    assert desk.serve() == ["ann/1: done"]
    desk.publish()
    assert desk.status(number)["models"] == [f"ann/1:{ward}" for ward in WARDS]
    assert desk.spent() == pytest.approx(0.7)
    models = desk.ask("ann", "SELECT name, certificate -> 'rows' AS rows, certificate FROM boltdp.models ORDER BY name")
    assert [one["name"] for one in models] == [f"ann/1:{ward}" for ward in WARDS]
    charge = desk.ledger.history("patients")[-2].charge
    assert [one.problem.rows for one in charge.spent.walk() if hasattr(one, "problem")] == [1500, 1500]
    assert desk.ledger.check() == 3


def test_a_relation_whose_name_looks_like_the_table_s_is_neither_read_nor_in_the_way(desk: Desk) -> None:
    desk.ask("postgres", "GRANT CREATE ON SCHEMA public TO bob")
    desk.ask("bob", TABLE.replace("patients", '"public.patients"').replace(str(ROWS), "50"))
    desk.ask("bob", 'GRANT SELECT ON "public.patients" TO trainer')
    desk.request()
    assert desk.serve() == ["ann/1: done"]
    charge = desk.ledger.history("patients")[-2].charge
    assert [one.problem.rows for one in charge.spent.walk() if hasattr(one, "problem")] == [ROWS]


def test_a_model_of_the_same_name_stays_and_the_worker_goes_on(desk: Desk) -> None:
    desk.request()
    desk.serve()
    (model,) = desk.ask("postgres", "SELECT * FROM boltdp.models")
    # Numbers begin again for a role whose requests are cleared away.
    desk.ask("postgres", "DELETE FROM boltdp.requests")
    desk.request()
    desk.request(dataset="nothing")
    said = desk.serve()
    assert said[0] == "ann/1: done"
    assert said[1].startswith("ann/2: refused")
    models = desk.ask("postgres", "SELECT * FROM boltdp.models ORDER BY name")
    assert (models[0], models[1]["name"]) == (model, "ann/1-2")
    assert (desk.kept()["models"], desk.kept()["charged_to"]) == (["ann/1-2"], "ann")
    assert desk.spent() == pytest.approx(0.4)


def test_an_owner_limits_the_epsilon_of_one_request(desk: Desk) -> None:
    limits = ", epsilon => 1, min_epsilon => {}, max_epsilon_per_request => {})"
    for low, high in ((0, "NULL"), ("'NaN'", "NULL"), (2, "NULL"), (0.2, 0.1), (-1, 1), ("NULL", "'NaN'"), ("NULL", 0)):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="min_epsilon must be above 0"):
            desk.ask("hospital", ALLOW + limits.format(low, high))
    desk.ask("hospital", ALLOW + limits.format(0.2, 0.4))
    (shown,) = desk.ask("ann", "SELECT min_epsilon, max_epsilon_per_request FROM boltdp.allowed")
    assert tuple(shown.values()) == (0.2, 0.4)
    for epsilon in (1e-12, 0.1999, 0.2, 0.4, 0.4001):
        desk.request(epsilon=epsilon)
    desk.serve()
    reasons = desk.ask("postgres", "SELECT reason, charged_to FROM boltdp.requests ORDER BY number")
    outside = (REASONS["outside limits"], None)
    assert [tuple(one.values()) for one in reasons] == [outside, outside, (None, "ann"), (None, "ann"), outside]
    assert desk.spent() == pytest.approx(0.6)


def test_an_owner_declares_the_schema_where_the_table_does_not(desk: Desk) -> None:
    schema = '{"label": "outcome", "classes": [false, true], "numeric": {"age": [0, 120], "id": [0, 5000]}}'
    allow = "SELECT boltdp.allow_training('patients', 'ann', 'outcome', '{age,id}', 1, schema => %s)"
    desk.ask("hospital", allow, [schema])
    desk.request(columns=["id"])
    assert desk.serve() == ["ann/1: done"]


def test_an_analyst_is_told_of_a_misspelt_class_by_a_noisy_count(desk: Desk) -> None:
    desk.ledger.set_budget("patients", Budget(9.0, 1e-5), composition="basic")
    allow = "SELECT boltdp.allow_training('patients', 'ann', 'ward', '{age}', 9, schema => %s)"
    for classes, told in ((["north", "sout"], True), (["north", "south"], False)):
        schema = {"label": "ward", "classes": classes, "numeric": {"age": [0, 120]}}
        desk.ask("hospital", allow, [json.dumps(schema)])
        number = desk.request(label="ward", epsilon=4.0)
        (said,) = desk.serve()
        desk.publish()
        reason = desk.status(number)["reason"]
        expected = (
            rf"ann/1: about \d\d% \(± 1\.2%\) of the {ROWS:,} rows were ignored, since their label 'ward' is missing "
            r"or not one of the classes north, sout; is one misspelt, or not declared\?"
        )
        assert (re.fullmatch(expected, reason or "") is not None) == told
        assert said == f"ann/{number}: done" + (f", {reason}" if told else "")
        (model,) = desk.ask("ann", "SELECT certificate FROM boltdp.models WHERE name = %s", [f"ann/{number}"])
        assert "noisy count of unusable labels" in str(model["certificate"])
    assert desk.spent() == 8.0


def test_only_owners_who_are_trusted_allow_training_and_only_of_their_own_tables(desk: Desk) -> None:
    """What the worker reads runs with its rights: views and policies of anybody else must not get there."""
    allow = "SELECT boltdp.allow_training(%s, 'ann', 'outcome', '{age}', 9)"
    desk.ask("postgres", "CREATE SCHEMA ann AUTHORIZATION ann")
    desk.ask("ann", "CREATE VIEW ann.patients AS SELECT 1 AS age, true AS outcome")
    for role, table in (("ann", "ann.patients"), ("ann", "public.patients"), ("hospital", "pg_catalog.pg_authid")):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            desk.ask(role, allow, [table])
    desk.ask("postgres", "SELECT boltdp.allow_owner('ann')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        desk.ask("ann", allow, ["public.patients"])
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        desk.ask("ann", "INSERT INTO boltdp.allowances VALUES ('public.patients', 'ann', 'p', 'sex', '{age}', 9, 0)")
    for query in ("SELECT boltdp.allow_worker('ann')", "SELECT boltdp.allow_owner('ann')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            desk.ask("ann", query)


NOT_ALLOWED = (
    "'nobody', 'outcome', '{age}', 1",
    "'ann', 'outcome', '{}', 1",
    "'ann', 'outcome', NULL, 1",
    "'ann', 'outcome', '{age,outcome}', 1",
    "'ann', 'outcome', '{height}', 1",
    "'ann', 'outcome', '{age}', 0",
    "'ann', 'outcome', '{age}', 'NaN'",
    "'ann', 'outcome', '{age}', 1, 1",
    "'ann', 'outcome', '{age}', 1, groups => 'ward'",
    "'ann', 'outcome', '{age}', 1, groups => 'ward', group_values => '{north,north}'",
    "'ann', 'outcome', '{age}', 1, groups => 'ward', group_values => '{}'",
    "'ann', 'outcome', '{age}', 1, groups => 'outcome', group_values => '{true,false}'",
    "'ann', 'outcome', '{age}', 1, groups => 'ward', group_values => ARRAY(SELECT 'w' || generate_series(1, 501))",
)


def test_an_owner_is_told_what_cannot_be_allowed(desk: Desk) -> None:
    for allowed in NOT_ALLOWED:
        with pytest.raises(psycopg.Error, match=r"must (be|have)") as fault:
            desk.ask("hospital", f"SELECT boltdp.allow_training('patients', {allowed})")
        assert fault.value.sqlstate in ("42704", "42703", "22023"), allowed


def test_what_is_revoked_is_refused_and_models_stay(desk: Desk) -> None:
    desk.request()
    desk.serve()
    assert desk.ask("hospital", "SELECT boltdp.revoke_training('patients', 'ann') AS done") == [{"done": True}]
    desk.request()
    desk.serve()
    desk.publish()
    assert [desk.status(number)["state"] for number in (1, 2)] == ["done", "refused"]
    # Allowed again, what was spent is spent.
    desk.ask("hospital", ALLOW + ", epsilon => 0.3)")
    desk.request()
    desk.serve()
    assert desk.kept(3)["reason"] == REASONS["over budget"]


FORBIDDEN: tuple[Any, ...] = (
    "INSERT INTO boltdp.requests (role, dataset, label, epsilon, delta) VALUES ('bob', 'patients', 'outcome', 1, 0)",
    "INSERT INTO boltdp.requests (number, dataset, label, epsilon, delta) VALUES (9, 'patients', 'outcome', 1, 0)",
    "UPDATE boltdp.requests SET epsilon = 0",
    "DELETE FROM boltdp.requests",
    "SELECT state FROM boltdp.requests",
    "SELECT xmin FROM boltdp.requests",
    "SELECT xmin FROM boltdp.models",
    "SELECT channel FROM boltdp.serving",
    "SELECT * FROM boltdp.allowances",
    "SELECT * FROM boltdp_ledger.entries",
    "INSERT INTO boltdp.models SELECT * FROM boltdp.models",
    "CREATE TRIGGER mine BEFORE INSERT ON own EXECUTE FUNCTION boltdp.take_request()",
    "SELECT boltdp.revoke_training('patients', 'ann')",
)


def test_an_analyst_does_nothing_but_ask(desk: Desk) -> None:
    with psycopg.connect(desk.uri("ann"), autocommit=True) as ann:
        ann.execute("CREATE TEMPORARY TABLE own (a int)")
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ann.execute(statement)


def test_things_planted_in_public_are_not_run(desk: Desk) -> None:
    desk.ask("hospital", "CREATE TABLE public.caught (what text); GRANT INSERT ON public.caught TO PUBLIC")
    for signature, result in (
        ("pg_backend_pid()", "int"),
        ("length(text)", "int"),
        ("clock_timestamp()", "timestamptz"),
        ("pg_notify(text, text)", "void"),
        ("date_bin(interval, timestamptz, timestamptz)", "timestamptz"),
    ):
        body = "$$INSERT INTO public.caught VALUES ('called'); SELECT NULL::" + result + "$$"
        desk.ask("hospital", f"CREATE FUNCTION public.{signature} RETURNS {result} LANGUAGE sql AS {body}")
    for role in ("ann", "trainer"):
        desk.ask("postgres", f"ALTER ROLE {role} SET search_path = public, pg_catalog")
    desk.ask("ann", "SELECT pg_backend_pid()")
    assert len(desk.ask("hospital", "TABLE public.caught")) == 1
    desk.request()
    assert desk.serve() == ["ann/1: done"]
    assert len(desk.ask("hospital", "TABLE public.caught")) == 1


def test_a_dump_keeps_what_was_asked_allowed_and_spent(server: Server, desk: Desk) -> None:
    desk.request()
    desk.request(dataset="nothing")
    desk.serve()
    programs = server.pg_config.parent
    if not (programs / "pg_dump").exists():
        pytest.skip("this server comes without pg_dump")
    dump = subprocess.run([programs / "pg_dump", desk.uri("postgres")], check=True, capture_output=True).stdout
    tables = [
        f"SELECT * FROM boltdp.{name} AS t ORDER BY t::text"
        for name in ("allowances", "datasets", "requests", "serving")
    ]
    before = [desk.ask("postgres", query) for query in tables]
    desk.ask(
        "postgres", "DROP EXTENSION boltdp CASCADE; DROP SCHEMA boltdp, boltdp_ledger CASCADE; DROP TABLE patients"
    )
    restore: list[Any] = [programs / "psql", desk.uri("postgres"), "-X", "-q", "-v", "ON_ERROR_STOP=1"]
    done = subprocess.run(restore, input=dump, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert [desk.ask("postgres", query) for query in tables] == before
    assert desk.spent() == pytest.approx(0.2)


def test_no_more_than_a_hundred_requests_of_a_role_wait(desk: Desk) -> None:
    desk.ask("ann", "SELECT boltdp.request('patients', 'outcome', 0.1) FROM generate_series(1, 100)")
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        desk.request()
    assert desk.request("bob") == 1


def test_a_database_that_is_not_set_up_says_how(desk: Desk) -> None:
    with pytest.raises(WorkerError, match="not set up for requests: permission denied") as fault:
        Worker(desk.uri("bob"), desk.ledger, say=print)
    assert fault.value.hint is not None
    assert "boltdp.allow_worker" in fault.value.hint
