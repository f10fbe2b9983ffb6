"""A schema made of what the database declares: every form of constraint, on a real server, and never a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from boltdp.cli import main
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.catalog_constraints import parse_check_constraint
from boltdp.engines.postgres.local_server import Server
from boltdp.errors import DataError
from boltdp.model import Model
from boltdp.schema.infer import derive_schema
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Schema, Vector
from boltdp.workflows.draft_schema import draft_schema

#: The declaration of a column `c`, and the feature that it makes.
FEATURES: list[tuple[str, Any]] = [
    ("c int CHECK (c BETWEEN 0 AND 120)", Numeric("c", 0, 120)),
    ("c int CHECK (c > 0) CHECK (120 >= c)", Numeric("c", 0, 120)),
    ("c int CHECK (c >= 0 AND c < 120 AND c <= 99 AND c <> 13)", Numeric("c", 0, 99)),
    ("c int CHECK ((c BETWEEN 0 AND 5) OR c IS NULL)", Numeric("c", 0, 5)),
    ("c int CHECK (c IS NOT NULL AND c BETWEEN -9 AND 5)", Numeric("c", -9, 5)),
    ("c numeric CHECK (c BETWEEN -1.5 AND 2.5e3)", Numeric("c", -1.5, 2500)),
    ("c real CHECK (c >= -1 AND c <= .5)", Numeric("c", -1, 0.5)),
    ("c bigint CHECK (c BETWEEN -9000000000 AND 1e10)", Numeric("c", -9e9, 1e10)),
    ("c years", Numeric("c", 0, 120)),
    ("c young", Numeric("c", 0, 18)),
    ("c young CHECK (c > 5)", Numeric("c", 5, 18)),
    ("c bool", Numeric("c", 0, 1)),
    ("c int CHECK (c IN (0, 1))", Numeric("c", 0, 1)),
    ("c int CHECK (c IN (0, 1, -2))", Categorical("c", (0, 1, -2))),
    ("c int CHECK (c = 1 OR c = 2)", Categorical("c", (1, 2))),
    (
        "c text CHECK (c IN ('F', 'it''s', 'a\\b', 'x) AND (c = '))",
        Categorical("c", ("F", "it's", "a\\b", "x) AND (c = ")),
    ),
    ("c varchar(4) CHECK (c IN ('a', 'b'))", Categorical("c", ("a", "b"))),
    ("c char(4) CHECK (c IN ('a', 'b'))", Categorical("c", ("a", "b"))),
    ("c text CHECK (c IN ('a', 'b', 'c')) CHECK (c IN ('c', 'b'))", Categorical("c", ("b", "c"))),
    ("c text CHECK (c = 'x' AND c ~ 'x')", Categorical("c", ("x",))),
    ("c mood", Categorical("c", ("good", "bad", "2"))),
    ("c calm", Categorical("c", ("good", "bad"))),
    (
        "c real[] CHECK (array_length(c, 1) = 3 AND -1 <= ALL (c) AND 2 >= ALL (c))",
        Vector("c", 3, -1, 2),
    ),
    ("c float8[] CHECK (cardinality(c) = 2 AND -1 < ALL (c) AND 1 > ALL (c))", Vector("c", 2, -1, 1)),
    ("c int, CHECK (c BETWEEN 0 AND 5 AND label)", Numeric("c", 0, 5)),
]

#: Declarations that bound nothing, of which there must be no feature.
NOTHING = [
    "c int",
    "c int CHECK (c >= 0)",
    "c int CHECK (NOT (c < 0))",
    "c int CHECK (c + 1 BETWEEN 0 AND 5)",
    "c int CHECK (abs(c) <= 5)",
    "c int CHECK (c < 0 OR c > 5)",
    "c int CHECK (c BETWEEN 0 AND 5 OR label)",
    "c int CHECK (c > 5 AND c < 0)",
    "c int CHECK (CASE WHEN label THEN c > 0 ELSE c < 5 END)",
    "c float8 CHECK (c BETWEEN 0 AND 'Infinity')",
    "c float8 CHECK (c BETWEEN 0 AND 'NaN')",
    "c numeric CHECK (c BETWEEN 0 AND 1e400)",
    "c text",
    "c text CHECK (c BETWEEN 'a' AND 'b')",
    "c text CHECK (lower(c) IN ('a', 'b'))",
    "c text CHECK (c NOT IN ('a', 'b'))",
    "c text CHECK (c <> ALL (ARRAY['a', 'b']))",
    "c real[] CHECK (-1 <= ALL (c) AND 1 >= ALL (c))",
    "c real[] CHECK (array_length(c, 1) = 3)",
    "c real[] CHECK (array_length(c, 1) = 3 AND -1 <= ANY (c) AND 1 >= ANY (c))",
]


@pytest.fixture
def database(admin: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A schema of its own for the tables of a test, first in the search path."""
    admin.execute("CREATE SCHEMA declaring")
    admin.execute("SET search_path TO declaring, public")
    admin.execute("ALTER ROLE postgres SET search_path TO declaring, public")
    admin.execute("CREATE DOMAIN years AS numeric CHECK (VALUE BETWEEN 0 AND 120)")
    admin.execute("CREATE DOMAIN young AS years CHECK (VALUE < 18)")
    admin.execute("CREATE TYPE mood AS ENUM ('good', '2')")
    admin.execute("ALTER TYPE mood ADD VALUE 'bad' BEFORE '2'")
    admin.execute("CREATE DOMAIN calm AS mood CHECK (VALUE IN ('bad', 'good'))")
    yield admin
    admin.execute("ALTER ROLE postgres RESET search_path")
    admin.execute("DROP SCHEMA declaring CASCADE")


def declared(server: Server, **source: str) -> Schema:
    with PostgresEngine(server.uri, **source) as engine:  # type: ignore[arg-type]
        return derive_schema(engine.columns(), "label")


def test_every_form_of_declaration_makes_its_feature(server: Server, database: psycopg.Connection) -> None:
    for declaration, feature in FEATURES:
        database.execute(f"CREATE TABLE t (label bool, {declaration})")
        assert declared(server, table="t") == Schema(Classes("label", (False, True)), (feature,)), declaration
        with PostgresEngine(server.uri, table="t") as engine:
            assert Schema.from_toml(draft_schema(engine, "label")) == Schema(
                Classes("label", (False, True)), (feature,)
            )
        database.execute("DROP TABLE t")


def test_what_bounds_nothing_is_told_by_its_name(server: Server, database: psycopg.Connection) -> None:
    for declaration in NOTHING:
        database.execute(f"CREATE TABLE t (label bool, {declaration})")
        with pytest.raises(DataError, match=r"and does not of 'c'$"):
            declared(server, table="t")
        database.execute("DROP TABLE t")


@pytest.mark.parametrize(
    ("declaration", "classes"),
    [
        ("bool", (False, True)),
        ("mood", ("good", "bad", "2")),
        ("int CHECK (label IN (0, 1))", (0, 1)),
        ("text CHECK (label IN ('well', 'ill', 'dead'))", ("well", "ill", "dead")),
    ],
)
def test_classes_are_those_declared(
    server: Server, database: psycopg.Connection, declaration: str, classes: tuple[Any, ...]
) -> None:
    database.execute(f"CREATE TABLE t (c bool, label {declaration})")
    assert declared(server, table="t").classes == classes


def test_all_columns_that_declare_nothing_are_told_at_once_but_keys_and_dates(
    server: Server, database: psycopg.Connection
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, age int, city text, flag bool, born date, label int)")
    with pytest.raises(DataError, match=r"and does not of 'label', 'age', 'city'$") as caught:
        declared(server, table="t")
    assert "CHECK (age BETWEEN 0 AND 120)" in str(caught.value.hint)


def test_constraints_of_parents_and_partitions_count(server: Server, database: psycopg.Connection) -> None:
    database.execute("CREATE TABLE p (c int CHECK (c < 100), label bool) PARTITION BY RANGE (c)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (10) TO (200)")
    assert declared(server, table="p1").columns == (Numeric("c", 10, 100),)
    database.execute("CREATE TABLE parent (c int CHECK (c BETWEEN 0 AND 5), CHECK (c < 2) NO INHERIT, label bool)")
    assert declared(server, table="parent").columns == (Numeric("c", 0, 2),)
    database.execute("CREATE TABLE child () INHERITS (parent)")
    for table in ("parent", "child"):
        assert declared(server, table=table).columns == (Numeric("c", 0, 5),)


def test_constraint_counts_whether_or_not_the_rows_were_found_to_obey_it(
    server: Server, database: psycopg.Connection
) -> None:
    database.execute("CREATE TABLE t (c int, label bool)")
    database.execute("INSERT INTO t VALUES (1000, true)")
    database.execute("ALTER TABLE t ADD CHECK (c BETWEEN 0 AND 5) NOT VALID")
    assert declared(server, table="t").columns == (Numeric("c", 0, 5),)


def test_query_has_the_declarations_of_the_columns_it_takes(server: Server, database: psycopg.Connection) -> None:
    database.execute("CREATE TABLE t (c int CHECK (c BETWEEN 0 AND 5), label bool)")
    assert declared(server, query="SELECT c AS d, label FROM t").columns == (Numeric("d", 0, 5),)
    with pytest.raises(DataError, match=r"and does not of 'd'$"):
        declared(server, query="SELECT c + 1 AS d, label FROM t")


def test_hostile_names_of_columns_are_only_names(server: Server, database: psycopg.Connection) -> None:
    name = "W;' AND \"x y"
    quoted = '"' + name.replace('"', '""') + '"'
    database.execute(f"CREATE TABLE t ({quoted} int CHECK ({quoted} BETWEEN 0 AND 9), label bool)".encode())
    assert declared(server, table="t").columns == (Numeric(name, 0, 9),)


def test_pgvector_columns_are_features(server: Server, database: psycopg.Connection) -> None:
    if not database.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
        pytest.skip("this server has no pgvector")
    database.execute("CREATE EXTENSION vector")
    try:
        database.execute("CREATE TABLE t (a vector(3) CHECK (vector_norm(a) <= 1.5), b vector(2), label bool)")
        database.execute("ALTER TABLE t ADD CHECK (-1 <= ALL (b::real[]) AND 2 >= ALL (b::real[]))")
        assert declared(server, table="t").columns == (Vector("a", 3, -1.5, 1.5), Vector("b", 2, -1, 2))
    finally:
        database.execute("DROP EXTENSION vector CASCADE")


def test_train_runs_without_a_schema_file(server: Server, database: psycopg.Connection, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE patients (id int GENERATED ALWAYS AS IDENTITY, age int CHECK (age BETWEEN 0 AND 120),"
        " sex char(1) CHECK (sex IN ('F', 'M')), smoker bool, seen timestamptz, outcome bool)"
    )
    database.execute(
        "INSERT INTO patients (age, sex, smoker, outcome)"
        " SELECT i % 120, CASE i % 2 WHEN 0 THEN 'F' ELSE 'M' END, i % 3 = 0, i % 9 > 4 FROM generate_series(1, 500) i"
    )
    output = tmp_path / "model.json"
    command = ["train", server.uri, "--table", "patients", "--label", "outcome", "--epsilon", "1", "-o", str(output)]
    done = CliRunner().invoke(main, [*command, "--curves", "0", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["private"] is True
    assert "not used, since no feature: id, seen (a timestamp, whose parts a schema can declare)" in done.stderr
    columns = (Numeric("age", 0, 120), Numeric("smoker", 0, 1), Categorical("sex", ("F", "M")))
    assert replace(Model.load(output).schema, standardization=None) == Schema(
        Classes("outcome", (False, True)), columns
    )
    drafted = CliRunner().invoke(main, ["schema", server.uri, "--table", "patients", "--label", "outcome"])
    assert "age = [0, 120]\nsmoker = [0, 1]" in drafted.stdout
    assert "id = []  # a key: drop it?" in drafted.stdout
    assert "# seen: a timestamp; declare it under [timestamp], as `seen = " in drafted.stdout


def test_train_without_a_schema_file_tells_what_is_not_declared(
    server: Server, database: psycopg.Connection, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE patients (age int, outcome bool)")
    command = ["train", server.uri, "--table", "patients", "--epsilon", "0.5", "-o", str(tmp_path / "model.json")]
    done = CliRunner().invoke(main, [*command, "--label", "outcome"])
    assert done.exit_code == 1
    assert "does not of 'age'" in done.stderr
    assert "hint: add constraints to the table" in done.stderr
    unlabelled = CliRunner().invoke(main, command)
    assert unlabelled.exit_code == 1
    assert "give --schema" in unlabelled.stderr


def test_a_number_is_predicted_within_the_bounds_of_its_constraint(
    server: Server, database: psycopg.Connection, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE diamonds (carat real CHECK (carat BETWEEN 0 AND 6), cut text CHECK (cut IN ('Fair', 'Ideal')),"
        " price int CHECK (price >= 0 AND price <= 20000))"
    )
    database.execute(
        "INSERT INTO diamonds SELECT i % 40 / 10.0, CASE i % 2 WHEN 0 THEN 'Fair' ELSE 'Ideal' END, i % 40 * 450"
        " FROM generate_series(1, 4000) i"
    )
    output = tmp_path / "model.json"
    command = ["train", server.uri, "--table", "diamonds", "--epsilon", "5", "-o", str(output)]
    done = CliRunner().invoke(main, [*command, "--target", "price"])
    assert done.exit_code == 0, done.output
    assert "the typical value of 'price', from 0 to 20000" in done.stdout
    model = Model.load(output)
    assert isinstance(model.schema.target, Number)
    assert (model.schema.target.low, model.schema.target.high) == (0, 20_000)
    assert [column.name for column in model.schema.columns] == ["carat", "cut"]
    labelled = CliRunner().invoke(main, [*command, "--label", "price"])
    assert labelled.exit_code == 1
    assert "the data must declare classes of 'price', and declares bounds" in labelled.stderr
    assert "hint: give it as the target instead" in labelled.stderr
    drafted = CliRunner().invoke(main, ["schema", server.uri, "--table", "diamonds", "--target", "price"])
    assert drafted.stdout.startswith('target = "price"\nbounds = [0, 20000]\n# typical')
    unbounded = CliRunner().invoke(main, [*command, "--target", "cut"])
    assert "the data must declare bounds of 'cut', and declares classes" in unbounded.stderr


WORDS = [*"()[],x1=.+", "::", "AND", "OR", "NOT", "IS", "NULL", "ANY", "ALL", "ARRAY", '"y"', "'z", "<=", "'a'"]


@given(st.lists(st.sampled_from(WORDS)))
def test_no_text_stops_the_reader(words: list[str]) -> None:
    assert isinstance(parse_check_constraint(" ".join(words)), dict)
