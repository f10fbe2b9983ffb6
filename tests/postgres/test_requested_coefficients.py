"""Roles that may not see the rows ask for coefficients, and see those of their own models only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from boltdp.engines.postgres.local_server import Server
from boltdp.service.worker import REASONS
from tests.postgres.desk import ALLOW, WARDS, Desk, opened_desk

#: An outcome whose log odds grow by a thirtieth per year of age.
LOGISTIC = (
    "UPDATE patients SET outcome = (hashint4(id) & 1023) / 1024.0 < 1 / (1 + exp(2 - age / 30.0)),"
    " amount = 500000 + 400000 * sin(age) + (hashint4(-id) & 65535)"
)
ASKED: dict[str, Any] = {"columns": ["age", "sex"], "epsilon": 5.0, "inference": True}
ALLOW_SCHEMA = "SELECT boltdp.allow_training('patients', 'ann', 'outcome', '{age}', 100, schema => %s)"
NAMES = ["term", "coef", "std_err", "z", "p_value", "odds_ratio", "low", "high"]
TERMS = ["age", "sex=M", "intercept"]


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    with opened_desk(server, epsilon=100.0) as opened:
        opened.ask("hospital", LOGISTIC)
        opened.ask(
            "hospital", ALLOW + ", epsilon => 100, delta => 1e-5, groups => 'ward', group_values => '{north,south}')"
        )
        yield opened


def read(desk: Desk, role: str = "ann", name: str = "ann/1") -> list[dict[str, Any]]:
    return desk.ask(role, "SELECT * FROM boltdp.coefficients(%s)", [name])


def test_an_analyst_gets_coefficients_for_the_price_of_a_model(desk: Desk) -> None:
    number = desk.request(**ASKED)
    assert desk.serve() == ["ann/1: done"]
    assert desk.spent() == pytest.approx(5.0)
    assert read(desk) == desk.ask("ann", "SELECT * FROM boltdp.coefficients") == []  # not before their time
    desk.publish()
    assert (desk.status(number)["reason"], desk.status(number)["models"]) == (None, ["ann/1"])
    found = read(desk)
    assert [*found[0]] == NAMES
    assert [one["term"] for one in found] == TERMS
    # Its z is about 22, and that of 1/30 below 6 but with a chance of 1e-8.
    assert found[0]["low"] > 0
    assert abs(found[0]["coef"] - 1 / 30) < 6 * found[0]["std_err"]
    assert desk.ask("ann", "SELECT boltdp.predict('ann/1', ARRAY[120, 1]::float8[]) AS said") == [{"said": "true"}]


def test_coefficients_are_for_whom_the_model_is(desk: Desk) -> None:
    desk.request(**ASKED)
    desk.serve()
    desk.publish()
    whole = "SELECT * FROM boltdp.coefficients ORDER BY model, term"
    found = desk.ask("ann", whole)
    assert [*found[0]] == ["model", *NAMES]
    assert {one["model"] for one in found} == {"ann/1"}
    assert sorted(read(desk), key=str) == sorted(({name: one[name] for name in NAMES} for one in found), key=str)
    for query in (whole, "SELECT * FROM boltdp.coefficients()", "SELECT coefficients FROM boltdp.models"):
        assert desk.ask("bob", query) == read(desk, "bob") == []
    desk.ask("postgres", "UPDATE boltdp.models SET granted_to = granted_to || 'bob'::regrole")
    assert desk.ask("bob", whole) == found
    # Whom the administrator lets read no coefficients does not read them through the view either.
    desk.ask("postgres", "REVOKE SELECT (coefficients) ON boltdp.models FROM PUBLIC")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        desk.ask("bob", whole)


def test_a_condition_of_a_query_is_not_run_on_coefficients_of_others(desk: Desk) -> None:
    desk.request(**ASKED)
    desk.serve()
    desk.publish()
    with psycopg.connect(desk.uri("bob"), autocommit=True) as bob:
        told: list[str] = []
        bob.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        bob.execute(
            "CREATE FUNCTION pg_temp.tell(what anyelement) RETURNS boolean LANGUAGE plpgsql COST 0.0000001"
            " AS $$ BEGIN RAISE NOTICE '%', what; RETURN true; END $$"
        )
        tell = "pg_temp.tell(model) AND pg_temp.tell(term) AND pg_temp.tell(coef)"
        assert bob.execute(f"SELECT * FROM boltdp.coefficients WHERE {tell}".encode()).fetchall() == []
        assert told == []
        desk.ask("postgres", "UPDATE boltdp.models SET granted_to = granted_to || 'bob'::regrole")
        assert len(bob.execute(f"SELECT * FROM boltdp.coefficients WHERE {tell}".encode()).fetchall()) == len(TERMS)
        assert "ann/1" in told


def test_each_group_has_coefficients_and_robust_errors_if_asked_for(desk: Desk) -> None:
    desk.request(**ASKED, groups="ward", robust_errors=True)
    assert desk.serve() == ["ann/1: done"]
    desk.publish()
    for ward in WARDS:
        found = read(desk, name=f"ann/1:{ward}")
        assert [one["term"] for one in found] == TERMS
        assert found[0]["low"] > 0
    matrices = "SELECT certificate::text LIKE '%outer products%' AS robust FROM boltdp.models"
    assert desk.ask("ann", matrices) == [{"robust": True}] * 2
    assert desk.spent() == pytest.approx(5.0)
    desk.request(**ASKED)
    desk.serve()
    desk.publish()
    assert desk.ask("ann", matrices + " WHERE name = 'ann/2'") == [{"robust": False}]


def test_coefficients_of_a_number_have_no_odds(desk: Desk) -> None:
    allow = ALLOW.replace("'outcome'", "'age'").replace("{age,sex,amount}", "{sex,amount}")
    desk.ask("hospital", allow + ", epsilon => 100)")
    desk.request(**{**ASKED, "label": "age", "columns": ["sex", "amount"]})
    assert desk.serve() == ["ann/1: done"]
    desk.publish()
    found = [(one["term"], one["odds_ratio"]) for one in read(desk)]
    assert found == [("amount", None), ("sex=M", None), ("intercept", None)]


def test_where_intervals_are_refused_the_model_is_there_and_the_analyst_is_told_why(desk: Desk) -> None:
    """With as little epsilon, of 2,000 models one had intervals, about which there was a warning."""
    refused = 0
    for _ in range(3):
        number = desk.request(**{**ASKED, "columns": None, "epsilon": 0.01})
        (said,) = desk.serve()
        desk.publish()
        answer, name = desk.status(number), f"ann/{number}"
        assert (answer["state"], answer["models"]) == ("done", [name])
        assert said == f"{name}: done, {answer['reason']}"
        assert re.match(f"{name}: (the intervals are refused: |the noisy Hessian is hardly above)", answer["reason"])
        few = "refused" in answer["reason"]
        assert (read(desk, name=name) == []) == few
        refused += few
        assert len(desk.ask("ann", "SELECT boltdp.predict(%s, ARRAY[70, 5, 1]::float8[])", [name])) == 1
    assert refused
    assert desk.spent() == pytest.approx(0.03)


WITHOUT_COEFFICIENTS = (
    '{"label": "outcome", "classes": [false, true, "maybe"], "numeric": {"age": [0, 120]}}',
    '{"label": "outcome", "classes": [false, true], "numeric": {"age": {"bounds": [0, 120], "curve": [60]}}}',
    '{"label": "outcome", "classes": [false, true], "numeric": {"age": [0, 120]}, "intercept": false}',
    '{"label": "outcome", "classes": [false, true], "numeric": {"age": [0, 99]}, "projection": {"dims": 1, "seed": 1}}',
)


def test_what_has_no_coefficients_is_refused_by_public_facts_and_costs_nothing(desk: Desk) -> None:
    desk.request(robust_errors=True)  # of what would these be?
    desk.request(**{**ASKED, "epsilon": 1e-12})
    desk.request(**{**ASKED, "delta": 1e-100})
    desk.serve()
    for schema in WITHOUT_COEFFICIENTS:
        desk.ask("hospital", ALLOW_SCHEMA, [schema])
        desk.request(**{**ASKED, "columns": ["age"]})
        desk.serve()
    answers = desk.ask("postgres", "SELECT state, reason, charged_to FROM boltdp.requests")
    assert [tuple(one.values()) for one in answers] == [("refused", REASONS["not possible"], None)] * 7
    assert desk.spent() == 0.0


def test_coefficients_of_a_schema_with_pairs_are_refused_and_cost_nothing(desk: Desk) -> None:
    """Intervals would not hold: of columns without pairs, which is what remains of the schema, they do."""
    schema = (
        '{"label": "outcome", "classes": [false, true], "numeric": {"age": [0, 120]},'
        ' "categorical": {"sex": ["F", "M"]}, "pairs": [["age", "sex"]]}'
    )
    desk.ask("hospital", ALLOW_SCHEMA.replace("{age}", "{age,sex}"), [schema])
    for columns, state, reason in ((["age", "sex"], "refused", REASONS["not possible"]), (["age"], "done", None)):
        number = desk.request(**{**ASKED, "columns": columns})
        desk.serve()
        assert (desk.kept(number)["state"], desk.kept(number)["reason"]) == (state, reason)
    assert desk.spent() == pytest.approx(5.0)


def test_units_beyond_all_numbers_are_no_fault_of_the_worker(desk: Desk) -> None:
    schema = '{"label": "outcome", "classes": [false, true], "numeric": {"age": [1e300, 1.7e308]}}'
    desk.ask("hospital", ALLOW_SCHEMA, [schema])
    desk.request(**{**ASKED, "columns": ["age"]})
    (said,) = desk.serve()
    assert said.startswith("ann/1: done, ann/1: the intervals are refused: ")
    desk.publish()
    assert read(desk) == []


FORGED = (
    "INSERT INTO boltdp.requests (dataset, label, epsilon, delta, inference) VALUES ('p', 'l', 1, 0, NULL)",
    "SELECT boltdp.request('patients', 'outcome', 1, inference => NULL)",
    "SELECT boltdp.request('patients', 'outcome', 1, robust_errors => NULL)",
    "SELECT boltdp.request('patients', 'outcome', 1, inference => 'perhaps')",
    "INSERT INTO boltdp.coefficients SELECT * FROM boltdp.coefficients",
    "UPDATE boltdp.models SET coefficients = '[]'",
    "INSERT INTO boltdp.models (name, coefficients) VALUES ('ann/1', '[]')",
    "CREATE OR REPLACE VIEW boltdp.coefficients AS SELECT 1 AS term",
    "CREATE OR REPLACE FUNCTION boltdp.coefficients(model text) RETURNS text LANGUAGE sql AS 'SELECT 1'",
)


def test_nothing_is_forged(desk: Desk) -> None:
    desk.request(**ASKED)
    desk.serve()
    desk.publish()
    for statement in FORGED:
        with pytest.raises(psycopg.Error) as fault:
            desk.ask("ann", statement)
        assert fault.value.sqlstate in ("23502", "22P02", "42501", "55000"), statement
        assert fault.value.diag.message_detail is None or "Failing row" not in fault.value.diag.message_detail
    assert len(desk.ask("postgres", "SELECT FROM boltdp.requests")) == 1
    assert [one["term"] for one in read(desk)] == TERMS
