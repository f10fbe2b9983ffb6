"""Ids of persons are equal where their own type says so, in the server and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest

from boltdp.engines.base import scan_rows
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema

SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),), person_id="id", max_rows_per_person=1)
#: Types of ids, ids in the order of the rows, and which row is the first of a person.
IDS: dict[str, tuple[list[str | None], list[bool]]] = {
    "citext": (
        ["b", "Ann", "ANN", None, "ann", "B", None, "ann "],
        [True, True, False, True, False, False, False, True],
    ),
    "numeric": (["2", "1.0", "1.00", "NaN", "1", None, "2.5"], [True, True, False, True, False, False, True]),
    "interval": (["2 days", "1 day", "24:00:00", "1 day"], [True, True, False, False]),
    "char(5)": (["b", "a", "a  ", "b"], [True, True, False, False]),
    "text": (["b", "Ann", "ANN", "Ann"], [True, True, True, False]),
    "text COLLATE folding": (["b", "Ann", "ANN", "Ann"], [True, True, False, False]),
    "float8": (["1", "0", "-0", "NaN", "NaN"], [True, True, False, True, False]),
    "json": (['{"a": 1}', '{"a":1}', '{"a": 1}'], [True, True, False]),
    "timestamptz": (["2024-01-01 00:00+00", "2024-01-01 01:00+01"], [True, False]),
}


@pytest.fixture(scope="module")
def types(server: Server) -> Iterator[None]:
    with psycopg.connect(server.uri, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION citext")
        yield
        admin.execute("DROP EXTENSION citext CASCADE")


@pytest.mark.usefixtures("types")
@pytest.mark.parametrize("kind", IDS)
def test_ids_are_compared_by_their_type(server: Server, admin: psycopg.Connection, kind: str) -> None:
    ids, first = IDS[kind]
    folding = "CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    if "folding" in kind:
        try:
            admin.execute(folding)
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this server has no ICU")
    try:
        admin.execute(f"CREATE TABLE visits (id {kind}, age int, sick int)".encode())
        for place, one in enumerate(ids):
            admin.execute("INSERT INTO visits VALUES (%s, %s, %s)", [one, place, place % 2])
        for where in ("server", "client"):
            found: dict[str, Any] = {}
            with PostgresEngine(server.uri, table="visits", where=where) as engine:
                with engine.prepare(SCHEMA, Context(seed=1), permuted=False) as prepared:
                    found["prepared"] = np.vstack([block.copy() for block in prepared.read_blocks()])
                found["limited"] = np.vstack([*scan_rows(engine, SCHEMA, np.copy, limited=True)])
            for name, rows in found.items():
                assert np.isfinite(rows[:, 0]).tolist() == first, (where, name)
                assert rows[first, 0].tolist() == (np.arange(len(ids)) % 2)[first].tolist()
    finally:
        admin.execute("DROP TABLE IF EXISTS visits")
        admin.execute("DROP COLLATION IF EXISTS folding")
