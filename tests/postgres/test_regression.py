"""The extension's own tests in SQL (postgres/test)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from boltdp.engines.postgres.build import SOURCES
from boltdp.engines.postgres.local_server import Server


def test_installcheck_gives_the_expected_output(server: Server, tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "postgres")
    environment = {**os.environ, "PGHOST": str(server.folder / "run"), "PGUSER": "postgres"}
    command = ["make", "-C", str(tmp_path / "postgres"), f"PG_CONFIG={server.pg_config}", "installcheck"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    differences = tmp_path / "postgres" / "regression.diffs"
    assert done.returncode == 0, differences.read_text("utf-8") if differences.is_file() else done.stdout + done.stderr
