"""`boltdp postgres` and PostgreSQL URIs on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner, Result

from boltdp.cli import main
from boltdp.engines import open_source
from boltdp.engines.postgres import build
from boltdp.engines.postgres.build import ExtensionError
from boltdp.engines.postgres.local_server import Server
from boltdp.errors import DataError
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.synthesize import synthesize
from boltdp.workflows.train import train


def boltdp(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_table_is_synthesized_trained_on_evaluated_stored_and_scored(
    server: Server, admin: psycopg.Connection, tmp_path: Path
) -> None:
    schema, model = tmp_path / "schema.toml", tmp_path / "model.json"
    rows = ["--rows", 5000, "--dims", 3, "--schema", schema]
    assert boltdp("synth", server.uri, "--table", "made by us", *rows).exit_code == 0
    trained = boltdp(
        "train", server.uri, "--table", "made by us", "--schema", schema, "--epsilon", 5, "-o", model, "--json"
    )
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.stdout)["private"] is True
    evaluated = boltdp("evaluate", model, server.uri, "--table", "made by us", "--json")
    accuracy = json.loads(evaluated.stdout)["scores"]["accuracy"]["value"]
    stored = boltdp("postgres", "store", model, server.uri, "--name", "ours")
    assert stored.exit_code == 0, stored.output
    query = "SELECT avg((boltdp.predict('ours', ARRAY[f0, f1, f2]) = label::text)::int)::float8 FROM \"made by us\""
    ((scored,),) = admin.execute(query).fetchall()
    assert scored == pytest.approx(accuracy, abs=1e-9)
    again = boltdp("postgres", "store", model, server.uri, "--name", "ours")
    assert again.exit_code == 1
    assert "has a model 'ours' already" in again.output
    assert boltdp("postgres", "store", model, server.uri, "--name", "ours", "--replace").exit_code == 0


HOSTILE_NAMES = (
    "it's; DROP TABLE x --",
    "new\nline",
    "right\u202eleft\u2066",
    "back\\slash'",
    "bell\x07",
    "\U000e0041tag",
)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hint_of_store_is_one_printable_line_that_names_the_model(
    server: Server, admin: psycopg.Connection, tmp_path: Path, name: str
) -> None:
    model = train(
        open_source((np.ones((50, 1)), np.arange(50) % 2)),
        make_array_schema(dims=1, classes=(0, 1), clip_norm=1.0),
        Settings(epsilon=1.0, algorithm="bolton", passes=1),
    )
    model.save(tmp_path / "model.json")
    stored = boltdp("postgres", "store", tmp_path / "model.json", server.uri, "--name", name)
    assert stored.exit_code == 0, stored.output
    line = stored.stdout.removesuffix("\n")
    assert line.isprintable()
    assert line.endswith(", x) FROM ...")
    query = line[line.index(": SELECT boltdp.predict(") + 2 :].replace(", x) FROM ...", ", ARRAY[0.5::real])")
    for conforming in ("on", "off"):
        admin.execute(f"SET standard_conforming_strings = {conforming}".encode())
        admin.execute("SET escape_string_warning = off")
        assert admin.execute(query.encode()).fetchone() in (("0",), ("1",))


def test_synthesized_rows_are_those_of_a_file(server: Server, admin: psycopg.Connection, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    synthesize(tmp_path / "rows.parquet", rows=100, dims=2)
    synthesize(server.uri, rows=100, dims=2, table="hundred")
    expected = pq.read_table(tmp_path / "rows.parquet").to_pydict()
    found = admin.execute("SELECT f0::float8, f1::float8, label FROM hundred").fetchall()
    assert found == list(zip(*expected.values(), strict=True))


def test_table_that_exists_is_not_overwritten(server: Server) -> None:
    synthesize(server.uri, rows=10, dims=2, table="mine")
    with pytest.raises(DataError, match=r"^the table 'mine' cannot be written: relation \"mine\" already exists$"):
        synthesize(server.uri, rows=10, dims=2, table="mine")


def test_more_columns_than_a_table_can_have_are_refused(server: Server) -> None:
    with pytest.raises(DataError, match="a PostgreSQL table can have 1600 columns"):
        synthesize(server.uri, rows=10, dims=1600)


def test_check_says_what_a_database_lacks(server: Server, admin: psycopg.Connection) -> None:
    ready = boltdp("postgres", "check", server.uri)
    assert (ready.exit_code, ready.stdout) == (0, "ready: the passes will be run in the server\n")
    admin.execute("CREATE DATABASE unready")
    lacking = boltdp("postgres", "check", server.uri.replace("/postgres?", "/unready?"))
    assert lacking.exit_code == 1
    assert "CREATE EXTENSION boltdp" in lacking.output


def test_train_fails_rather_than_let_the_rows_leave_the_server(
    server: Server, admin: psycopg.Connection, tmp_path: Path
) -> None:
    admin.execute("CREATE DATABASE unextended")
    uri = server.uri.replace("/postgres?", "/unextended?")
    synthesize(uri, rows=1000, dims=2, table="rows").save(tmp_path / "schema.toml")
    output = tmp_path / "model.json"
    command = ["--table", "rows", "--schema", tmp_path / "schema.toml", "--epsilon", 1, "-o", output]
    refused = boltdp("train", uri, *command, "--in-server")
    assert refused.exit_code == 1
    assert "the passes cannot be run in the server: the extension is not there" in refused.output
    assert not output.exists()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION boltdp")
    assert boltdp("train", uri, *command, "--in-server").exit_code == 0
    looking = boltdp("train", uri, *command, "--overwrite", "--in-server", "--on-bad-row", "error")
    assert "must not be given with --in-server" in looking.output
    elsewhere = boltdp("train", "rows.csv", *command[2:], "--overwrite", "--in-server")
    assert "where must be given only with a PostgreSQL database" in elsewhere.output


def test_check_says_what_building_lacks(server: Server, tmp_path: Path) -> None:
    assert boltdp("postgres", "check", "--pg-config", server.pg_config).exit_code == 0
    absent = boltdp("postgres", "check", "--pg-config", tmp_path / "pg_config")
    assert absent.exit_code == 1
    assert "cannot be run" in absent.output
    headless = tmp_path / "pg_config"
    headless.write_text("#!/bin/sh\ncase $1 in --version) echo PostgreSQL 16.2;; *) echo /nowhere;; esac\n")
    headless.chmod(0o755)
    lacking = boltdp("postgres", "check", "--pg-config", headless)
    assert lacking.exit_code == 1
    assert "apt-get install postgresql-server-dev-16" in lacking.output
    with pytest.raises(ExtensionError, match=r"missing is headers: /nowhere$"):
        build.install_extension(headless)


def test_extension_comes_with_what_it_is_made_of() -> None:
    names = {path.name for path in build.SOURCES.rglob("*") if path.is_file()}
    assert {
        "Makefile",
        "boltdp.control",
        "sgd_aggregate.c",
        "columns.c",
        "predict.c",
        f"boltdp--{build.VERSION}.sql",
    } <= names
    assert (build.KERNEL / "sgd.c").is_file()


def test_predictions_keep_columns_of_every_type_as_they_print(
    server: Server, admin: psycopg.Connection, tmp_path: Path
) -> None:
    schema, model = tmp_path / "schema.toml", tmp_path / "model.json"
    assert boltdp("synth", tmp_path / "x.parquet", "--rows", 500, "--dims", 2, "--schema", schema).exit_code == 0
    options = ["--schema", schema, "--epsilon", 5, "-o", model]
    assert boltdp("train", tmp_path / "x.parquet", *options).exit_code == 0
    admin.execute(
        "CREATE TABLE keeping AS SELECT 12345678901234567890::numeric + i AS id, i AS f0, 0.5::real AS f1,"
        " 'infinity'::date AS day, i = 1 AS first, ARRAY[i, 2] AS pair FROM generate_series(1, 2) AS i"
    )
    try:
        told = boltdp("predict", model, server.uri, "--table", "keeping", "--keep", "id,f0,day,first,pair,f1")
        assert told.exit_code == 0, told.output
        assert [line.rpartition(",")[0] for line in told.stdout.splitlines()] == [
            "id,f0,day,first,pair,f1",
            '12345678901234567891,1,infinity,true,"{1,2}",0.5',
            '12345678901234567892,2,infinity,false,"{2,2}",0.5',
        ]
    finally:
        admin.execute("DROP TABLE keeping")
