"""Timestamps in a real server: SQL gives what `predict` gives, whatever the session, and no cell is an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
import pytest

from boltdp.encoding.timestamp_parts import PARTS
from boltdp.engines.base import encode_rows
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.export.sql import _write_part_code
from boltdp.export.sql_dialects import DIALECTS
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Schema, TimePart
from tests.export.test_timestamps import COLUMNS, check_sql
from tests.postgres.postgres_sources import fill_once

#: What PostgreSQL has beside the years of the calendar, and their first and last moments, which are of it.
ODD = {
    "timestamp": [
        "infinity", "-infinity", "4713-01-01 BC", "294276-12-31 23:59:59.999999", "0001-12-31 23:00 BC", "10000-01-01",
        "0001-01-01", "9999-12-31 23:59:59.999999",
    ],
    "date": [
        "infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "0001-12-31 BC", "10000-01-01", "0001-01-01",
        "9999-12-31",
    ],
}  # fmt: skip
QUERY = "SELECT * FROM moments ORDER BY id"


@pytest.fixture
def moments(server: Server, admin: psycopg.Connection) -> psycopg.Connection:
    """The rows of the conformance suite, and odd ones."""
    fill_once(server.uri)
    admin.execute("SET TimeZone = 'UTC'")
    admin.execute("DROP TABLE IF EXISTS moments")
    admin.execute("CREATE TABLE moments AS SELECT id, visits, admitted, seen, born, written FROM conformance")
    for place, (stamp, day) in enumerate(zip(ODD["timestamp"], ODD["date"], strict=True)):
        row = [5000 + place, stamp, stamp, day, stamp]
        admin.execute("INSERT INTO moments VALUES (%s, 3, %s, %s, %s, %s)", row)
    admin.execute("INSERT INTO moments VALUES (9000, 3, NULL, NULL, NULL, E'2024-01-01\n')")
    return admin


@pytest.mark.usefixtures("moments")
def test_no_moment_is_an_error_and_each_is_read_alike_in_the_server_and_here(server: Server) -> None:
    schema = Schema(Classes("visits", tuple(range(10))), COLUMNS)
    packed = []
    for where in ("server", "client"):
        with PostgresEngine(server.uri, query=QUERY, where=where) as engine:
            assert [engine.columns()[name].kind for name in ("admitted", "seen", "born")] == [
                "timestamp",
                "timestamp",
                "date",
            ]
            with engine.prepare(schema, Context(seed=3)) as prepared:
                packed.append(np.concatenate([np.array(block) for block in prepared.read_blocks()]))
    np.testing.assert_array_equal(packed[0], packed[1])
    with PostgresEngine(server.uri, query=f"SELECT * FROM ({QUERY}) m WHERE id >= 5000", where="client") as engine:
        cells = np.vstack([*encode_rows(engine, schema)])[:, 1:]
    names = [column.source for column in COLUMNS]
    dated = [place for place, name in enumerate(names) if name != "written"]
    # All are outside the calendar, but its first and its last moment.
    assert (cells[:6] == -1).all()
    assert cells[6, dated].tolist() == [0] * len(dated)  # 0001-01-01 was a Monday
    last = {"hour": 23, "weekday": 4, "month": 11, "day": 30}
    assert cells[7].tolist() == [last[column.part] for column in COLUMNS]
    assert (cells[8] == -1).all()


def test_whole_timestamps_are_streamed(server: Server, moments: psycopg.Connection) -> None:
    with PostgresEngine(server.uri, query=f"{QUERY} LIMIT 900", where="client") as engine:
        (batch,) = engine.batches(["admitted", "seen", "born"])
    found = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    expected = moments.execute("SELECT admitted, seen, born FROM moments ORDER BY id LIMIT 900").fetchall()
    assert list(found) == expected


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Europe/Amsterdam"])
def test_sql_gives_what_predict_gives_whatever_the_zone_and_style_of_the_session(
    server: Server, moments: psycopg.Connection, zone: str
) -> None:
    style = {"UTC": "ISO", "America/New_York": "SQL, MDY", "Europe/Amsterdam": "German, DMY"}[zone]
    moments.execute("SELECT set_config('TimeZone', %s, false), set_config('DateStyle', %s, false)", [zone, style])

    def run(expressions: Sequence[str]) -> list[tuple[Any, ...]]:
        return moments.execute(f"SELECT {', '.join(expressions)} FROM ({QUERY}) AS rows".encode()).fetchall()

    with PostgresEngine(server.uri, query=QUERY, where="client") as engine:
        check_sql(run, engine, "postgres")


@pytest.mark.parametrize("kind", ["text", "varchar(40)", "char(40)", 'text COLLATE "C"'])
def test_texts_of_every_type_are_read(server: Server, moments: psycopg.Connection, kind: str) -> None:
    moments.execute("DROP TABLE IF EXISTS texts")
    moments.execute(f"CREATE TABLE texts (id int, at {kind}, y bool)".encode())
    moments.execute("INSERT INTO texts VALUES (1, '2024-05-07 13:00', true), (2, 'x', false), (3, NULL, false)")
    schema = Schema(Classes("y", (False, True)), tuple(TimePart("at", part) for part in PARTS))
    for where in ("server", "client"):
        with (
            PostgresEngine(server.uri, table="texts", where=where) as engine,
            engine.prepare(schema, Context(seed=1), permuted=False) as prepared,
        ):
            (block,) = (np.array(block) for block in prepared.read_blocks())
        assert sorted(block[:, 1:].tolist()) == [[-1] * 4, [-1] * 4, [13, 1, 4, 6]]
    code = _write_part_code(TimePart("at", "hour").encoding_rule, DIALECTS["postgres"])
    assert moments.execute(f"SELECT {code} FROM texts ORDER BY id".encode()).fetchall() == [(13,), (None,), (None,)]
