"""The extension's own tests in SQL (postgres/test), run as pg_regress would (make installcheck)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from boltdp.postgres.extension import SOURCES
from boltdp.postgres.server import Server

TESTS = SOURCES / "test"


@pytest.mark.parametrize("name", sorted(path.stem for path in (TESTS / "sql").iterdir()))
def test_sql_gives_the_expected_output(server: Server, name: str, tmp_path: Path) -> None:
    psql = server.pg_config.with_name("psql")
    command = [str(psql), "-X", "-a", "-q", "-d", server.uri, "-f", str(TESTS / "sql" / f"{name}.sql")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == (TESTS / "expected" / f"{name}.out").read_text("utf-8")
    assert done.stderr == ""
