"""Whoever may create things in `public` does not get to run them as those who train, nor to change what they get."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import psycopg
import pytest

from boltdp.engines.postgres import PostgresEngine, build
from boltdp.engines.postgres.local_server import Server
from boltdp.export.postgres_models import ModelStoreError, store_model
from boltdp.model import Model
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, Vector
from boltdp.service.train_per_group import train_groups
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.predict import predict
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune
from tests.postgres.statements import recorded, unqualified

ROWS = 600
SCHEMA = Schema(
    Classes("sick", (0, 1)),
    (
        Numeric("age", 0, 100),
        Numeric("small", 0, 1),
        Numeric("amount", 0, 10),
        Numeric("flag", 0, 1),
        Categorical("sex", ("F", "M")),
        Categorical("grade", (1, 2)),
        Categorical("tenth", (0.1, 0.2)),
        Categorical("smoker", (True, False)),
        Vector("scan", 2, -3, 3),
        Vector("exact", 2, -3, 3),
    ),
)
COLUMNS = (
    "age float8, small real, amount numeric, flag bool, sex text, grade int, tenth real, smoker bool, scan real[],"
    " exact numeric[], sick int"
)
QUERY = "SELECT * FROM people"
LAYOUTS: tuple[dict[str, Any], ...] = ({}, {"layout": "rows"}, {"where": "client"})
BOLTON = Settings(epsilon=1.0, algorithm="bolton", seed=7, noise_seed=1, passes=2)
#: What is planted first in the search path, so that whatever is not qualified is found there.
PATH = "public, pg_catalog"

#: Types of the overloads, for polymorphic arguments and their arrays.
TYPES = ("float4", "float8", "int4", "int8", "text", "bool", "numeric")
POLYMORPHIC = {
    "anyelement": "{}",
    "anynonarray": "{}",
    "anycompatible": "{}",
    "anycompatiblenonarray": "{}",
    '"any"': "{}",
    "anyarray": "{}[]",
    "anycompatiblearray": "{}[]",
}
#: Types that a plain role may not use for a function, or that no statement of ours has.
UNUSED = re.compile("^(any.*|internal|record|cstring|unknown|.*range|trigger)$")
#: Operators that a statement could have, as written or by LIKE, BETWEEN and the like.
OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "||", "+", "-", "*", "/", "%", "~~", "@>", "<@", "&&")


def sources(uri: str) -> Iterator[PostgresEngine]:
    named: tuple[dict[str, Any], ...] = ({"table": "people"}, {"query": QUERY})
    for options, source in itertools.product(LAYOUTS, named):
        with PostgresEngine(uri, **source, **options) as engine:
            yield engine


@cache
def seeded(**changes: Any) -> Settings:
    return replace(BOLTON, **changes)


def everything(uri: str) -> dict[str, Any]:
    """Train, tune, store and predict in all ways; what came of it."""
    results: dict[str, Any] = {}
    models: list[Model] = []
    context = BOLTON.context()

    def keep(name: str, model: Model) -> None:
        results[f"{len(results)} {name}"] = model.weights.tolist()
        models.append(model)

    for engine in sources(uri):
        keep("bolton", train(engine, SCHEMA, BOLTON))
        keep("fresh", train(engine, SCHEMA, seeded(permutation="fresh")))
        keep("objective", train(engine, SCHEMA, seeded(algorithm="objective", passes=None)))
        keep("drawn", train(engine, SCHEMA, seeded(algorithm="dpsgd", delta=1e-5)))
        keep("standardized", train(engine, SCHEMA, seeded(standardize="private")))
        grid = expand_grid(BOLTON, {"passes": [1, 2]})
        keep("trials", tune(engine, SCHEMA, grid))
        keep("portions", tune(engine, SCHEMA, grid, method="portions"))
        halves = engine.slice(0, ROWS // 2), engine.slice(ROWS // 2, ROWS)
        keep("public", tune(halves[0], SCHEMA, grid, method="public", public=halves[1]))
        if engine.in_server:
            groups = engine.group_by("sex", ["F", "M"])
            for model in train_groups(groups, [make_plan(SCHEMA, rows, BOLTON) for rows in groups.rows], context):
                keep("group", model)
    with PostgresEngine(uri, table="people", shuffle="random") as engine:
        train(engine, SCHEMA, seeded(permutation="fresh"))
    with PostgresEngine(uri, table="people") as engine:
        results["predicted"] = predict(models[0], engine).tolist()
        with engine.prepare(SCHEMA, Context(seed=3)) as prepared:
            prepared.slice(100, 333).reshuffle(4)
            results["rows"] = np.concatenate([block.copy() for block in prepared.slice(50, 555).read_blocks()]).tolist()
    for _ in range(2):
        store_model(uri, "planted", models[0], replace=True)
    with psycopg.connect(uri) as connection:
        x = pg_array(sum((2 if isinstance(c, Categorical | Vector) else 1) for c in SCHEMA.columns))
        for function, kind in itertools.product(("predict", "predict_proba"), ("real", "double precision")):
            query = f"SELECT boltdp.{function}('planted', {x}::{kind}[])"
            results[f"{function} {kind}"] = connection.execute(query.encode()).fetchall()
    return results


def pg_array(length: int) -> str:
    return "'{" + ", ".join(["0.5"] * length) + "}'"


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    """A database in which one role may create things in `public`, and another trains."""
    rng = np.random.default_rng(4)
    with psycopg.connect(server.uri, autocommit=True) as admin:
        admin.execute("CREATE DATABASE planted")
        admin.execute("CREATE ROLE planter LOGIN")
        admin.execute("CREATE ROLE trainer LOGIN")
        uri = server.uri.replace("/postgres?", "/planted?")
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp")
            connection.execute("GRANT CREATE ON SCHEMA public TO planter")
            connection.execute("GRANT INSERT, DELETE ON boltdp.models TO trainer")
            connection.execute(f"CREATE TABLE people ({COLUMNS})".encode())
            connection.execute("GRANT SELECT ON people TO trainer")
            with connection.cursor().copy("COPY people FROM STDIN") as copy:
                for age in rng.uniform(0, 100, ROWS).tolist():
                    vector = rng.uniform(-3, 3, 2).tolist()
                    chosen = rng.integers(0, 2, 5).tolist()
                    flag, sex, grade, tenth, smoker = chosen
                    categories = ("FM"[sex], grade + 1, (0.1, 0.2)[tenth], bool(smoker))
                    copy.write_row((age, age / 100, age / 10, bool(flag), *categories, vector, vector, int(age > 50)))
        yield uri.replace("postgres@", "trainer@")
        admin.execute("DROP DATABASE planted WITH (FORCE)")
        admin.execute("DROP ROLE planter, trainer")


def signatures(connection: psycopg.Connection, query: str, names: list[str]) -> list[tuple[Any, ...]]:
    """Every way to call something of pg_catalog, with polymorphic types made concrete."""
    ways = []
    for name, kind, arguments, result in connection.execute(query.encode(), [names]).fetchall():
        for chosen in TYPES if {*arguments, result} & {*POLYMORPHIC} else ("",):
            concrete = [POLYMORPHIC.get(one, one.replace("{", "{{")).format(chosen) for one in (*arguments, result)]
            if not any(UNUSED.match(one) for one in concrete):
                ways.append((name, kind, tuple(concrete[:-1]), concrete[-1]))
    return list({way[:3]: way for way in ways}.values())


def plant(connection: psycopg.Connection, functions: list[str]) -> int:
    """Make better overloads of functions, operators and types, each of which records that it was called."""
    connection.execute("CREATE TABLE public.called (what pg_catalog.text)")
    connection.execute("GRANT INSERT ON public.called TO PUBLIC")
    connection.execute(
        "CREATE FUNCTION public.note_call(what pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql"
        " SET search_path = pg_catalog AS 'BEGIN INSERT INTO public.called VALUES (what); RETURN true; END'"
    )
    named = (
        "SELECT proname::text, prokind::text, ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes) t),"
        " format_type(prorettype, NULL) FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace"
        " AND proname = ANY(%s)"
    )
    made = 0
    for name, kind, arguments, result in signatures(connection, named, functions):
        types = ", ".join(arguments)
        passed = ", ".join(f"${i}" for i in range(1, len(arguments) + 1))
        value = f"pg_catalog.{name}({passed})" if kind == "f" and name not in ("unnest", "generate_series") else "NULL"
        make(connection, f'public."{name}"({types})', result, value)
        made += 1
    operators = (
        "SELECT oprname::text, 'o', ARRAY[format_type(oprleft, NULL), format_type(oprright, NULL)],"
        " format_type(oprresult, NULL) FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace"
        " AND oprleft <> 0 AND oprname = ANY(%s)"
    )
    for number, (name, _, (left, right), result) in enumerate(signatures(connection, operators, list(OPERATORS))):
        make(connection, f"public.planted_{number}({left}, {right})", result, f"$1 OPERATOR(pg_catalog.{name}) $2")
        connection.execute(
            f"CREATE OPERATOR public.{name} (FUNCTION = public.planted_{number}, LEFTARG = {left},"
            f" RIGHTARG = {right})".encode()
        )
        made += 1
    # Last: from here on, whoever looks in `public` first finds these.
    for name in ("float4", "float8", "int4", "int8", "text", "bool", "oid", "bytea", "numeric"):
        connection.execute(
            f"CREATE DOMAIN public.{name} AS pg_catalog.{name} CHECK (public.note_call('type {name}'))".encode()
        )
        made += 1
    return made


def make(connection: psycopg.Connection, signature: str, result: str, value: str) -> None:
    body = f"BEGIN PERFORM public.note_call($what${signature}$what$); RETURN {value}; END"
    connection.execute(
        f"CREATE FUNCTION {signature} RETURNS {result} LANGUAGE plpgsql SET search_path = pg_catalog"
        f" AS $body${body}$body$".encode()
    )


@dataclass(frozen=True)
class Usual:
    """What is sent to a database in which nothing is planted, and what comes of it."""

    sent: list[str]
    results: dict[str, Any]


@pytest.fixture(scope="module")
def usual(database: str) -> Usual:
    with recorded() as sent:
        results = everything(database)
        for engine in sources(database):
            engine.columns()
    return Usual(sent, results)


def test_things_planted_in_public_are_never_run_and_change_nothing(server: Server, database: str, usual: Usual) -> None:
    functions = sorted({name for text in usual.sent for name in re.findall(r"pg_catalog\.(\w+)\(", text)})
    # And those that were called by their bare names once.
    functions = sorted({*functions, "array_position", "unnest", "array_length", "abs", "row_number", "count", "now"})
    planter = database.replace("trainer@", "planter@")
    with psycopg.connect(planter, autocommit=True, options="-c search_path=pg_catalog") as connection:
        assert plant(connection, functions) > 300
    with psycopg.connect(server.uri, autocommit=True) as admin:
        admin.execute(f"ALTER ROLE trainer SET search_path = {PATH}".encode())
    # It would be run, and it records: a statement that names what it means, and no schema.
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT array_position('{a}'::pg_catalog.text[], 'a'::pg_catalog.text)")
        connection.execute("SELECT '{1}'::pg_catalog.float4[] || '{1}'::pg_catalog.float4[]")
        connection.execute("SELECT 1::text")
    called = "SELECT what FROM public.called"
    with psycopg.connect(planter, autocommit=True, options="-c search_path=pg_catalog") as connection:
        assert len(connection.execute(called).fetchall()) == 3
        connection.execute("TRUNCATE public.called")
        found = everything(database)
        assert connection.execute(called).fetchall() == []
    assert found == usual.results


def test_no_statement_has_a_name_that_a_search_path_resolves(usual: Usual) -> None:
    assert len({re.sub("[0-9a-f]{16}|[0-9]+", "", text) for text in usual.sent}) > 30
    for text in usual.sent:
        assert unqualified(text.replace(QUERY, "SELECT"), known="public") == [], text


def test_the_reader_of_statements_sees_every_kind_of_fault() -> None:
    for text, fault in {
        "SELECT abs(1)": "abs(",
        "SELECT a||b": "operator ||",
        "SELECT a - 1": "operator -",
        "SELECT (a) -1": "operator -",
        "SELECT a::text": "type text",
        "SELECT a::float8[]": "type float8",
        "SELECT a WHERE a NOT IN (1)": "IN",
        'SELECT a COLLATE "C"': 'collation "C"',
        "SELECT CASE a WHEN 1 THEN 2 END": "CASE",
        "SELECT a IS DISTINCT FROM 1": "DISTINCT",
        "SELECT a OPERATOR(public.=) 1": "operator =",
    }.items():
        assert fault in unqualified(text), text


def test_installed_sql_is_qualified() -> None:
    script = (build.SOURCES / "sql" / "boltdp--0.2.0.sql").read_text("utf-8")
    assert "DEFAULT pg_catalog.now()" in script
    predict = (build.SOURCES / "src" / "predict.c").read_text("utf-8")
    queries = [
        "".join(re.findall(r'"([^"\n]*)"', part))
        for part in re.findall(r"SPI_execute\w*\(((?:\s*\"[^\"\n]*\")+)", predict)
    ]
    assert len(queries) == 1
    assert unqualified(queries[0]) == []


def test_a_table_that_is_not_of_the_extension_gets_no_model(server: Server) -> None:
    """Its triggers would be run by whoever stores a model."""
    with psycopg.connect(server.uri, autocommit=True) as admin:
        admin.execute("CREATE DATABASE imitated")
        try:
            uri = server.uri.replace("/postgres?", "/imitated?")
            with psycopg.connect(uri, autocommit=True) as connection:
                connection.execute("CREATE SCHEMA boltdp")
                connection.execute("CREATE TABLE boltdp.models (name text PRIMARY KEY)")
                connection.execute(
                    "CREATE TABLE rows AS SELECT 1.0::float8 AS age, 1 AS sick FROM generate_series(1, 99)"
                )
            schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
            with PostgresEngine(uri, table="rows") as engine:
                model = train(engine, schema, BOLTON)
            with pytest.raises(ModelStoreError, match=r"no table boltdp\.models of the extension$"):
                store_model(uri, "imitated", model)
        finally:
            admin.execute("DROP DATABASE imitated WITH (FORCE)")
