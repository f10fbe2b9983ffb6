"""Whoever owns a type can define its casts, which have no schema: none of them is run by those who train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import psycopg
import pytest
from click.testing import CliRunner

from boltdp.cli import main
from boltdp.engines import open_source
from boltdp.engines.base import scan_rows_with_columns
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.evaluation.evaluate import evaluate, evaluate_privately
from boltdp.export.sql import write_probability_expression, write_scoring_expression
from boltdp.privacy.budget import Budget
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, TimePart, Vector
from boltdp.service.train_per_group import train_groups
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.predict import predict, predict_proba
from boltdp.workflows.train import train
from tests.export.test_sql import make_model
from tests.postgres.desk import Desk, opened_desk

ROWS = 200
#: Types of the planter, a value of each, and how it is printed. Some have names that mean something to us.
TYPES = {
    "mood": ("AS ENUM ('good', 'bad')", "'good'", "good"),
    "numeric": ("AS ENUM ('1', '2')", "'1'", "1"),
    "text": ("AS ENUM ('2024-02-29')", "'2024-02-29'", "2024-02-29"),
    "pair": ("AS (a int, b text)", "(1, NULL)", "(1,)"),
    "vector": ("AS (a real, b real)", "(1, 2)", "(1,2)"),
    "bool": ("AS (a boolean)", "ROW(true)", "(t)"),
    "span": ("AS RANGE (subtype = int4)", "'[1,3)'", "[1,3)"),
}
#: What a cast could be to, and a value of it.
TARGETS = {
    "text": "'stolen'",
    "varchar": "'stolen'",
    "int4": "7",
    "int8": "7",
    "float8": "0.5",
    "float4": "0.5",
    "float4[]": "'{1,2}'",
    "float8[]": "'{1,2}'",
    "date": "'2000-01-01'",
    "json": "'1'",
    "bool": "true",
}
SCHEMA = Schema(
    Classes("sick", (0, 1)),
    (
        Numeric("age", 0, 100),
        Categorical("mood", ("good", "bad")),
        Categorical("domain", ("good", "bad")),
        Categorical("folded", ("good", "bad")),
        Categorical("numeric", ("1", "2")),
        TimePart("text", "month"),
    ),
)
SETTINGS = Settings(epsilon=1.0, algorithm="bolton", seed=7, noise_seed=1, passes=2)


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    """Rows of a trainer, whose columns have the types of a planter."""
    with psycopg.connect(server.uri, autocommit=True) as admin:
        admin.execute("CREATE DATABASE cast_away")
        admin.execute("CREATE ROLE caster LOGIN")
        admin.execute("CREATE ROLE reader LOGIN")
        uri = server.uri.replace("/postgres?", "/cast_away?")
        planter, trainer = (uri.replace("postgres@", f"{role}@") for role in ("caster", "reader"))
        try:
            with psycopg.connect(uri, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION boltdp")
                connection.execute("GRANT CREATE ON DATABASE cast_away TO caster")
                connection.execute("GRANT CREATE ON SCHEMA public TO reader")
            with psycopg.connect(planter, autocommit=True) as connection:
                plant(connection)
                plant_functions(connection)
            with psycopg.connect(trainer, autocommit=True) as connection:
                columns = "".join(f', "{name}" planted."{name}"' for name in TYPES)
                connection.execute(
                    f"CREATE TABLE people (age float8, sick int{columns}, domain planted.feeling,"
                    " moods planted.mood[], folded planted.citext)".encode()
                )
                values = "".join(f', {value}::planted."{name}"' for name, (_, value, _) in TYPES.items())
                connection.execute(
                    f"INSERT INTO people SELECT i % 100, i % 2{values}, 'bad', ARRAY['bad']::planted.mood[], 'good'"
                    f" FROM generate_series(1, {ROWS}) AS i".encode()
                )
                connection.execute("INSERT INTO people (age, sick) VALUES (1, 1)")
            yield trainer
        finally:
            admin.execute("DROP DATABASE cast_away WITH (FORCE)")
            admin.execute("DROP ROLE caster, reader")


def plant(connection: psycopg.Connection[Any]) -> None:
    """Make types with casts to everything, in a schema with an extension, and have each note that it was called."""
    connection.execute("CREATE SCHEMA planted")
    connection.execute("GRANT USAGE ON SCHEMA planted TO PUBLIC")
    connection.execute("CREATE EXTENSION citext SCHEMA planted")
    connection.execute("CREATE TABLE planted.called (what pg_catalog.text)")
    connection.execute("GRANT INSERT ON planted.called TO PUBLIC")
    for name, (definition, _, _) in TYPES.items():
        connection.execute(f'CREATE TYPE planted."{name}" {definition}'.encode())
    connection.execute("CREATE DOMAIN planted.feeling AS planted.mood")
    number = 0
    for name in (*(f'planted."{name}"' for name in TYPES), "planted.mood[]"):
        for target, value in TARGETS.items():
            number += 1
            note = f"BEGIN INSERT INTO planted.called VALUES ($n${name} to {target}$n$); RETURN {value}; END"
            connection.execute(
                f"CREATE FUNCTION planted.cast_{number}({name}) RETURNS pg_catalog.{target} LANGUAGE plpgsql"
                f" AS $body${note}$body$".encode()
            )
            how = "IMPLICIT" if number % 2 else "ASSIGNMENT"
            function = f"planted.cast_{number}({name}) AS {how}"
            connection.execute(f"CREATE CAST ({name} AS pg_catalog.{target}) WITH FUNCTION {function}".encode())


@pytest.fixture
def uncalled(server: Server, database: str) -> Iterator[None]:
    """Nothing that was planted is called by the test."""
    del database
    with psycopg.connect(server.uri.replace("/postgres?", "/cast_away?"), autocommit=True) as connection:
        connection.execute("TRUNCATE planted.called")
        yield
        assert connection.execute("SELECT DISTINCT what FROM planted.called").fetchall() == []


def test_planted_casts_would_be_run(database: str) -> None:
    with psycopg.connect(database) as trainer:
        assert trainer.execute("SELECT DISTINCT mood::pg_catalog.text FROM people LIMIT 1").fetchall() == [("stolen",)]
        trainer.rollback()


@pytest.mark.usefixtures("uncalled")
@pytest.mark.parametrize("where", ["server", "client"])
def test_training_predicting_and_evaluating_run_no_planted_cast(database: str, where: Any) -> None:
    with PostgresEngine(database, table="people", where=where) as engine:
        kinds = {name: column.kind for name, column in engine.columns().items()}
        model = train(engine, SCHEMA, SETTINGS)
        assert len(predict(model, engine)) == ROWS + 1
        evaluate(model, engine, by="mood")
        evaluate_privately(model, engine, Budget(1.0), by="mood")
        with engine.prepare(SCHEMA, Context(seed=1), permuted=False) as prepared:
            rows = np.vstack([block.copy() for block in prepared.read_blocks()])
    assert {name for name, kind in kinds.items() if kind == "other"} == {"pair", "vector", "bool", "span", "moods"}
    # good, bad, good, 1, and the second month; and none of them in the last row.
    np.testing.assert_array_equal(rows[:ROWS, 2:], np.tile([0, 1, 0, 0, 1], (ROWS, 1)))
    np.testing.assert_array_equal(rows[ROWS, 2:], [-1] * 5)


@pytest.mark.usefixtures("uncalled")
def test_columns_that_are_kept_are_printed_by_their_types(database: str) -> None:
    schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    expected = {**{name: printed for name, (_, _, printed) in TYPES.items()}, "domain": "bad", "moods": "{bad}"}
    with PostgresEngine(database, table="people") as engine:
        ((_, batch),) = scan_rows_with_columns(engine, schema, len, [*expected, "folded"])
    for name, printed in expected.items():
        assert batch.column(name).to_pylist() == [printed] * ROWS + [None], name


@pytest.mark.usefixtures("uncalled")
@pytest.mark.parametrize("where", ["server", "client"])
def test_ids_of_persons_are_compared_without_a_planted_cast(database: str, where: Any) -> None:
    for name in (*TYPES, "domain", "moods", "folded"):
        schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),), person_id=name, max_rows_per_person=3)
        with (
            PostgresEngine(database, table="people", where=where) as engine,
            engine.prepare(schema, Context(seed=1)) as prepared,
        ):
            labels = np.vstack([block.copy() for block in prepared.read_blocks()])[:, 0]
        # Three rows of the one person, and the one of nobody.
        assert np.isfinite(labels).sum() == 4, name


@pytest.mark.usefixtures("uncalled")
def test_groups_are_found_without_a_planted_cast(database: str) -> None:
    schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    for name, printed in ({name: printed for name, (_, _, printed) in TYPES.items()} | {"folded": "good"}).items():
        with PostgresEngine(database, table="people") as engine:
            groups = engine.group_by(name, [printed, "stolen"])
            assert groups.rows == [ROWS, 0]
            groups = engine.group_by(name, [printed])
            train_groups(groups, [make_plan(schema, ROWS, SETTINGS)], SETTINGS.context())


@pytest.mark.usefixtures("uncalled")
def test_the_command_keeps_all_columns_without_a_planted_cast(database: str, tmp_path: Any) -> None:
    with PostgresEngine(database, table="people") as engine:
        train(engine, SCHEMA, SETTINGS).save(tmp_path / "model.json")
    arguments = ["predict", tmp_path / "model.json", database, "--table", "people", "--keep", "*"]
    result = CliRunner().invoke(main, [*map(str, arguments), "-o", str(tmp_path / "scores.csv")])
    assert result.exit_code == 0, result.output
    assert "stolen" not in (tmp_path / "scores.csv").read_text("utf-8")


def test_the_worker_serves_requests_without_a_planted_cast(server: Server) -> None:
    """The owner of the table uses the type of an analyst."""
    with opened_desk(server) as desk:
        assert isinstance(desk, Desk)
        desk.ask("hospital", "GRANT CREATE ON SCHEMA public TO ann")
        desk.ask("ann", "CREATE TYPE public.side AS ENUM ('north', 'south')")
        desk.ask("ann", "CREATE TABLE public.called (what text)")
        desk.ask("ann", "GRANT INSERT ON public.called TO PUBLIC")
        desk.ask(
            "ann",
            "CREATE FUNCTION public.steal(public.side) RETURNS text LANGUAGE plpgsql AS"
            " $$BEGIN INSERT INTO public.called VALUES (current_user); RETURN 'north'; END$$",
        )
        desk.ask("hospital", "ALTER TABLE patients ALTER ward TYPE public.side USING ward::public.side")
        desk.ask("ann", "CREATE CAST (public.side AS text) WITH FUNCTION public.steal(public.side) AS IMPLICIT")
        desk.ask(
            "hospital",
            "SELECT boltdp.allow_training('patients', to_role => 'ann', label => 'outcome', columns => '{age,ward}',"
            " epsilon => 1.0, groups => 'sex', group_values => '{F,M}')",
        )
        desk.request()
        desk.ask(
            "hospital",
            "SELECT boltdp.allow_training('patients', to_role => 'ann', label => 'outcome', columns => '{age,sex}',"
            " epsilon => 1.0, groups => 'ward', group_values => '{north,south}')",
        )
        desk.request(groups="ward")
        desk.serve()
        assert [desk.kept(number)["state"] for number in (1, 2)] == ["done", "done"]
        assert desk.ask("ann", "SELECT what FROM public.called") == []


def plant_functions(connection: psycopg.Connection[Any]) -> None:
    """Make functions that fit the planted types better than those of the server, and casts that are evaluated early."""
    note = "BEGIN INSERT INTO planted.called VALUES ('early'); END"
    connection.execute(f"CREATE FUNCTION planted.note() RETURNS void LANGUAGE plpgsql AS $body${note}$body$".encode())
    connection.execute(
        "CREATE FUNCTION planted.early() RETURNS float8 LANGUAGE plpgsql IMMUTABLE"
        " AS $body$ BEGIN PERFORM planted.note(); RETURN 0.5; END $body$"
    )
    connection.execute("CREATE TYPE planted.inlined AS ENUM ('good', '7')")
    connection.execute("CREATE TYPE planted.digit AS ENUM ('1')")
    for target, value in (("text", "planted.early()::text"), ("float8", "planted.early()"), ("json", "'1'::json")):
        connection.execute(
            f"CREATE FUNCTION planted.inline_{target}(planted.inlined) RETURNS pg_catalog.{target} LANGUAGE sql"
            f" IMMUTABLE AS $body$ SELECT {value} $body$".encode()
        )
        function = f"planted.inline_{target}(planted.inlined) AS IMPLICIT"
        connection.execute(f"CREATE CAST (planted.inlined AS {target}) WITH FUNCTION {function}".encode())
    for name, given in (
        ("pg_typeof", "regtype"),
        ("to_jsonb", "jsonb"),
        ("num_nulls", "int4"),
        ("cardinality", "int4"),
    ):
        for kind in ("mood", "mood[]", "inlined"):
            body = f"BEGIN INSERT INTO planted.called VALUES ('{name}'); RETURN NULL; END"
            connection.execute(
                f"CREATE FUNCTION planted.{name}(planted.{kind}) RETURNS pg_catalog.{given} LANGUAGE plpgsql"
                f" AS $body${body}$body$".encode()
            )


def test_sql_of_a_model_runs_nothing_that_is_planted_and_predicts_the_same(database: str) -> None:
    schema = Schema(
        Classes("sick", (0, 1)),
        (
            Numeric("age", 0, 100, curve=(50.0,)),
            Numeric("seven", 0, 9),
            Numeric("flag", 0, 1),
            Categorical("mood", ("good", "bad")),
            Categorical("domain", ("good", "bad")),
            Categorical("numeric", (1, 2)),
            Categorical("inlined", ("good", "7")),
            TimePart("text", "month"),
            Vector("moods", 1, 0, 9),
        ),
    )
    model = make_model(schema, seed=3)
    planter = database.replace("reader@", "caster@")
    with psycopg.connect(planter, autocommit=True) as connection:
        with psycopg.connect(database, autocommit=True) as trainer:
            # The path is the worst that there is, but for what comes before the server's own schema.
            trainer.execute("SET search_path = planted, public")
            assert trainer.execute("SELECT 'good'::planted.inlined::pg_catalog.text").fetchall()
            assert connection.execute("SELECT count(*) > 0 FROM planted.called").fetchone() == (True,)
            connection.execute("TRUNCATE planted.called")
            trainer.execute(
                "CREATE TEMP TABLE asked AS SELECT age, '7'::planted.inlined AS seven, '1'::planted.numeric AS flag,"
                " mood, domain, numeric, 'good'::planted.inlined AS inlined, text, '{1}'::planted.digit[] AS moods,"
                " sick FROM people"
            )
            connection.execute("TRUNCATE planted.called")
            expressions = (
                write(model, "postgres") for write in (write_scoring_expression, write_probability_expression)
            )
            found, chances = (
                [one for (one,) in trainer.execute(f"SELECT {expression} FROM asked".encode())]
                for expression in expressions
            )
            rows = trainer.execute("SELECT age, mood IS NULL FROM asked").fetchall()
        assert connection.execute("SELECT DISTINCT what FROM planted.called").fetchall() == []
    columns = ("mood", "good"), ("domain", "bad"), ("numeric", "1"), ("text", "2024-02-29")
    frame = pd.DataFrame({"age": [age for age, _ in rows], "seven": 7.0, "flag": 1.0, "inlined": "good"})
    frame = frame.assign(**{name: [None if gap else cell for _, gap in rows] for name, cell in columns})
    frame["moods"] = [[1.0]] * len(rows)
    assert found == predict(model, open_source(frame)).tolist()
    np.testing.assert_allclose(chances, predict_proba(model, open_source(frame))[:, 1], atol=1e-6)
