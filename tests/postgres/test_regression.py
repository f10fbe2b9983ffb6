"""The extension's own tests in SQL (postgres/test), and the way from one of its versions to the next."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import psycopg

from boltdp.engines.postgres.build import SOURCES, VERSION
from boltdp.engines.postgres.local_server import Server


def test_installcheck_gives_the_expected_output(server: Server, tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "postgres")
    environment = {**os.environ, "PGHOST": str(server.folder / "run"), "PGUSER": "postgres"}
    command = ["make", "-C", str(tmp_path / "postgres"), f"PG_CONFIG={server.pg_config}", "installcheck"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    differences = tmp_path / "postgres" / "regression.diffs"
    assert done.returncode == 0, differences.read_text("utf-8") if differences.is_file() else done.stdout + done.stderr


def test_every_released_version_can_be_upgraded_to_this_one(server: Server, admin: psycopg.Connection) -> None:
    del server
    scripts = [path.name for path in (SOURCES / "sql").glob("boltdp--*.sql")]
    released = {found[1] for name in scripts if (found := re.fullmatch(r"boltdp--([\d.]+)\.sql", name))}
    assert {"0.1.0", VERSION} <= released
    paths = admin.execute("SELECT source, path FROM pg_extension_update_paths('boltdp') WHERE target = %s", [VERSION])
    upgradable = {source for source, path in paths.fetchall() if path is not None}
    assert released - {VERSION} == upgradable
    installable = admin.execute("SELECT version FROM pg_available_extension_versions WHERE name = 'boltdp'").fetchall()
    assert {version for (version,) in installable} == released


#: What an extension has: its objects, functions with their definitions, and the options of its aggregates.
CONTENTS = """
SELECT pg_describe_object(classid, objid, objsubid) AS object,
       CASE WHEN p.prokind = 'f' THEN pg_get_functiondef(p.oid) END,
       a.aggfinalfn::regproc::text, a.aggtransfn::regproc::text, a.aggcombinefn::regproc::text,
       a.aggserialfn::regproc::text, a.aggdeserialfn::regproc::text, a.aggfinalmodify, p.proparallel
  FROM pg_depend
  LEFT JOIN pg_proc p ON classid = 'pg_proc'::regclass AND p.oid = objid
  LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'boltdp')
 ORDER BY object
"""


def test_an_upgraded_extension_is_that_of_a_fresh_install(server: Server, admin: psycopg.Connection) -> None:
    fresh = admin.execute(CONTENTS).fetchall()
    admin.execute("CREATE DATABASE upgraded")
    try:
        uri = server.uri.replace("/postgres?", "/upgraded?")
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp VERSION '0.1.0'")
            assert connection.execute(CONTENTS).fetchall() != fresh
            connection.execute("ALTER EXTENSION boltdp UPDATE")
            assert connection.execute(CONTENTS).fetchall() == fresh
    finally:
        admin.execute("DROP DATABASE upgraded")
    assert any("boltdp.errors(bytea" in object_ for object_, *_ in fresh)
