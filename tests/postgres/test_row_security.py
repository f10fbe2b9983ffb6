"""Row-level security hides rows from a role, and it is told that the model is about the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

import boltdp
from boltdp.cli import main
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server

ACTIVE = "row-level security is active"
SOURCES: dict[str, dict[str, Any]] = {
    "table": {"table": "guarded"},
    "query": {"query": "SELECT age, sick FROM guarded"},
    "view": {"table": "guarded_view"},
}


@pytest.fixture(scope="module")
def watched(server: Server) -> Iterator[str]:
    """The URI of a role that sees half of the rows."""
    with psycopg.connect(server.uri, autocommit=True) as admin:
        admin.execute("CREATE ROLE watched LOGIN")
        admin.execute("CREATE TABLE guarded (age int, sick boolean, ward int)")
        admin.execute("ALTER TABLE guarded ADD CHECK (age BETWEEN 0 AND 100), ADD CHECK (ward IN (0, 1))")
        admin.execute("INSERT INTO guarded SELECT i % 100, i % 3 = 0, i % 2 FROM generate_series(1, 400) AS i")
        admin.execute("CREATE VIEW guarded_view AS SELECT age, sick FROM guarded")
        admin.execute("ALTER VIEW guarded_view OWNER TO watched")  # as whom it reads the table
        admin.execute("CREATE TABLE open_rows AS SELECT age, sick FROM guarded")
        admin.execute("ALTER TABLE guarded ENABLE ROW LEVEL SECURITY")
        admin.execute("CREATE POLICY ward ON guarded USING (ward = 1)")
        admin.execute("GRANT SELECT ON guarded, guarded_view, open_rows TO watched")
        yield server.uri.replace("postgres@", "watched@")
        admin.execute("DROP TABLE guarded, open_rows CASCADE")
        admin.execute("DROP ROLE watched")


@pytest.mark.parametrize("source", SOURCES)
def test_policies_that_apply_are_a_condition(server: Server, watched: str, source: str) -> None:
    with PostgresEngine(watched, **SOURCES[source]) as engine:
        (condition,) = engine.guarantee_conditions
        assert condition.startswith(ACTIVE)
        assert engine.count() == 200
        assert list(engine.guarantee_conditions) == [condition]  # in the transaction of the snapshot too
        assert engine.count() == 200
    with PostgresEngine(server.uri, **SOURCES[source]) as engine:  # as a superuser, to whom none applies
        assert len(engine.guarantee_conditions) == (1 if source == "view" else 0)
        assert engine.count() == (200 if source == "view" else 400)


def test_a_table_without_policies_has_no_condition(watched: str) -> None:
    with PostgresEngine(watched, table="open_rows") as engine:
        assert list(engine.guarantee_conditions) == []


def test_the_condition_is_printed_and_warned_of(watched: str, tmp_path: Path) -> None:
    arguments = ["train", watched, "--table", "guarded", "--label", "sick", "--epsilon", "3", "-q"]
    result = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "model.json")])
    assert result.exit_code == 0, result.output
    assert " ".join(result.stderr.split()).count(f"condition: {ACTIVE}") == 1
    with pytest.warns(UserWarning, match=ACTIVE):
        boltdp.train(watched, table="guarded", label="sick", epsilon=3.0)
