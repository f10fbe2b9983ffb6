"""A standby can be read and not written to: rows are streamed from it, and its ledger is the primary's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from boltdp.cli import main
from boltdp.engines.postgres.local_server import Server, _choose_user, _run_command, _run_server
from boltdp.ledger import open_ledger
from boltdp.privacy.budget import Budget


@pytest.fixture
def standby(server: Server, admin: psycopg.Connection) -> Iterator[str]:
    """The URI of a standby of the server, with a table and a ledger."""
    admin.execute("CREATE TABLE replicated (age int CHECK (age BETWEEN 0 AND 100), sick boolean)")
    admin.execute("INSERT INTO replicated SELECT i % 100, i % 3 = 0 FROM generate_series(1, 400) AS i")
    open_ledger(server.uri).set_budget("replicated", Budget(3.0), composition="basic")
    user, binaries = _choose_user(), server.pg_config.parent
    with tempfile.TemporaryDirectory(dir=server.folder / "run", prefix="s") as name:
        # Inside the folder that is the server's user's.
        folder = Path(name)
        if user:
            os.chown(folder, user["user"], user["group"])
        backup = [binaries / "pg_basebackup", "-h", server.folder / "run", "-U", "postgres", "-D", folder / "data"]
        _run_command(user, *backup, "-c", "fast", "-X", "stream")
        (folder / "data" / "standby.signal").touch()
        options = {"listen_addresses": "", "unix_socket_directories": str(folder), "hot_standby": "on"}
        with _run_server(user, binaries, folder / "data", options, folder):
            yield server.uri.replace(str(server.folder / "run"), str(folder))
    admin.execute("DROP TABLE replicated")
    admin.execute("DROP SCHEMA boltdp_ledger CASCADE")


def test_a_charge_to_the_ledger_of_a_standby_is_refused_with_a_hint(
    server: Server, standby: str, tmp_path: Path
) -> None:
    arguments = ["train", standby, "--table", "replicated", "--label", "sick", "--epsilon", "1"]
    result = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "model.json")])
    said = " ".join(result.stderr.split())
    assert result.exit_code == 1
    assert "cannot be used: cannot set transaction read-write mode during recovery" in said
    assert "name the ledger of the primary by --ledger" in said
    result = CliRunner().invoke(main, [*arguments, "--ledger", server.uri, "-o", str(tmp_path / "model.json")])
    assert result.exit_code == 0, result.output
    assert open_ledger(server.uri).spent("replicated").spent.epsilon == pytest.approx(1.0)
