"""Where rows are worked on is told, recorded and never silently another place; with which extension, too."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner

from boltdp._files.sealed import ModelFileError
from boltdp.cli import main
from boltdp.engines import open_source
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.build import explain_unusable_version
from boltdp.engines.postgres.local_server import Server, run_private_server
from boltdp.errors import DataError
from boltdp.model import Model
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema, make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune

SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
SETTINGS = Settings(epsilon=1.0, algorithm="bolton", passes=1)
ROWS = "AS SELECT g % 100 AS age, (g % 100 > 50)::int AS sick FROM generate_series(1, 300) g"


@pytest.fixture(scope="module")
def aged(server: Server) -> Iterator[str]:
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE aged {ROWS}".encode())
        yield "aged"
        connection.execute("DROP TABLE aged")


def test_engines_and_models_say_where_the_rows_were(server: Server, aged: str, tmp_path: Path) -> None:
    rows = open_source((np.ones((50, 1)), np.arange(50) % 2))
    here = train(rows, make_array_schema(dims=1, classes=(0, 1), clip_norm=1.0), SETTINGS)
    assert here.trained_where == "in this process"
    with PostgresEngine(server.uri, table=aged) as engine:
        assert engine.where == "in the server"
        assert train(engine, SCHEMA, SETTINGS).trained_where == "in the server"
        reported = train(engine, SCHEMA, SETTINGS, context=SETTINGS.context(on_bad_row="error"))
        assert reported.trained_where == "streamed to this process: bad rows are reported"
        # Which holds for that training alone.
        assert train(engine, SCHEMA, SETTINGS).trained_where == "in the server"
    with PostgresEngine(server.uri, table=aged, where="client") as engine:
        tuned = tune(engine, SCHEMA, expand_grid(SETTINGS, {"regularization": [0.0, 0.1]}))
    assert tuned.trained_where == "streamed to this process: as asked for"
    tuned.save(tmp_path / "model.json")
    assert Model.load(tmp_path / "model.json").trained_where == tuned.trained_where
    record = tuned.to_dict()
    assert "streamed" not in json.dumps(record["certificate"])
    assert Model.from_dict({**record, "trained_where": None}).trained_where is None
    with pytest.raises(ModelFileError, match="say in words"):
        Model.from_dict({**record, "trained_where": 7})


@pytest.mark.parametrize("in_server", [True, False])
def test_commands_say_where_the_rows_were(
    server: Server, admin: psycopg.Connection, aged: str, tmp_path: Path, in_server: bool
) -> None:
    SCHEMA.save(tmp_path / "schema.toml")
    if not in_server:
        admin.execute("CREATE ROLE lookout LOGIN")
        admin.execute("GRANT SELECT ON aged TO lookout")
        admin.execute("ALTER ROLE lookout SET default_transaction_read_only = on")
    uri = server.uri if in_server else server.uri.replace("postgres@", "lookout@")
    command = ["train", uri, "--table", aged, "--schema", str(tmp_path / "schema.toml"), "--epsilon", "1"]
    output = ["-o", str(tmp_path / "model.json")]
    expected = "in the server" if in_server else "streamed to this process: the session is read-only"
    try:
        told = CliRunner().invoke(main, [*command, *output])
        assert re.search(rf"^rows +{expected}", told.stdout, re.M), told.output
        machine = CliRunner().invoke(main, [*command, *output, "--overwrite", "--json"])
        assert json.loads(machine.stdout)["where"].startswith(expected)
        assert json.loads((tmp_path / "model.json").read_text())["trained_where"].startswith(expected)
    finally:
        if not in_server:
            admin.execute("DROP OWNED BY lookout")
            admin.execute("DROP ROLE lookout")


@pytest.mark.parametrize(
    ("version", "usable"),
    [("0.2.0", True), ("0.2.17", True), ("0.1.0", False), ("0.3.0", False), ("0.20.0", False), ("0.2.0-beta", False)],
)
def test_versions_of_the_extension_that_work_are_a_range(version: str, usable: bool) -> None:
    fault = explain_unusable_version(version)
    assert (fault is None) == usable
    assert usable or "ALTER EXTENSION boltdp UPDATE" in str(fault)


@pytest.mark.parametrize("version", ["0.2.9", "0.1.0"])
def test_an_extension_of_another_version_is_used_if_it_can_be(
    server: Server, admin: psycopg.Connection, aged: str, version: str
) -> None:
    admin.execute("UPDATE pg_extension SET extversion = %s WHERE extname = 'boltdp'", [version])
    try:
        with PostgresEngine(server.uri, table=aged) as engine:
            assert engine.in_server is (version == "0.2.9")
            if not engine.in_server:
                assert "version 0.1.0 of the extension cannot be used" in engine.where
                assert "ALTER EXTENSION boltdp UPDATE TO '0.2.0'" in engine.where
    finally:
        admin.execute("UPDATE pg_extension SET extversion = '0.2.0' WHERE extname = 'boltdp'")


def test_a_schema_that_belongs_to_someone_else_is_not_used(
    server: Server, admin: psycopg.Connection, aged: str
) -> None:
    admin.execute("CREATE ROLE squatter")
    admin.execute("ALTER SCHEMA boltdp OWNER TO squatter")
    try:
        with pytest.raises(DataError, match="the schema boltdp belongs to another role than the extension"):
            PostgresEngine(server.uri, table=aged, where="server")
    finally:
        admin.execute("ALTER SCHEMA boltdp OWNER TO postgres")
        admin.execute("DROP ROLE squatter")


def test_what_is_said_of_a_backend_that_was_killed_is_true(server: Server) -> None:
    """The rows go as the server restarts; the entry in the catalogue may stay, and has no file."""
    with run_private_server(pg_config=server.pg_config, extension=False) as other:
        with psycopg.connect(other.uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp")
            connection.execute(f"CREATE TABLE aged {ROWS}".encode())
        with PostgresEngine(other.uri, table="aged") as engine:
            prepared = engine.prepare(SCHEMA, Context(seed=1))
            pid = engine._session.ask("SELECT pg_catalog.pg_backend_pid()", fault="")[0][0]
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(DataError, match="the server ended the connection") as told:
                prepared.reshuffle(1)
        assert "nothing is left" not in str(told.value.hint)
        assert "nothing was released; the server drops the prepared rows" in str(told.value.hint)
        assert "may leave an entry without rows" in str(told.value.hint)
        # The server may still be about to notice, and then ends all sessions.
        deadline = time.monotonic() + 60
        while not rows_are_gone(other):
            assert time.monotonic() < deadline, "the rows were not removed within a minute"
            time.sleep(0.05)


def rows_are_gone(server: Server) -> bool:
    query = "SELECT pg_relation_size(oid) FROM pg_class WHERE relname LIKE 'boltdp\\_%' AND relkind = 'r'"
    try:
        with psycopg.connect(server.uri, autocommit=True) as connection:
            sizes = connection.execute(query).fetchall()
    except psycopg.OperationalError:
        return False
    return all(size in (0, None) for (size,) in sizes) and not list((server.folder / "data" / "base").rglob("t*_*"))
