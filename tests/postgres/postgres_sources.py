"""Rows in a real server: packed, one row per tuple, streamed, and slices of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from boltdp.engines.postgres import PostgresEngine
from tests.engines.sources import MIDDLE, SCHEMA, Source, curved, longer_table, projected, reference, register, table

ORDERED = "SELECT sick, scan, sex, visits, dose, age, admitted, seen, born, written FROM {} ORDER BY id -- the end"


def fill(connection: psycopg.Connection, name: str, rows: pa.Table) -> None:
    # In one transaction, so that the server looks for no room on earlier pages: rows are scanned in the order of COPY.
    with connection.transaction():
        connection.execute(
            f"CREATE TABLE {name} (id int, age float8, visits int, sex text, scan float8[], sick int, dose real,"
            " admitted timestamp, seen timestamptz, born date, written text)"
        )
        with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
            for row in zip(*rows.to_pydict().values(), strict=True):
                copy.write_row(row)


@cache
def fill_once(uri: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        fill(connection, "conformance", table())
        connection.execute('CREATE VIEW "conformance view" AS SELECT * FROM conformance')
        fill(connection, "longer", longer_table().set_column(0, "id", pa.array(range(len(longer_table())))))


def opened(request: pytest.FixtureRequest, **options: Any) -> PostgresEngine:
    """An engine of the session's server, which is started for the first."""
    uri: str = request.getfixturevalue("server").uri
    fill_once(uri)
    return PostgresEngine(uri, **options)


def plain(engine: PostgresEngine) -> Source:
    return Source(engine, SCHEMA, reference())


def register_whole(name: str, *, source: Callable[[PostgresEngine], Source] = plain, **options: Any) -> None:
    # Streamed rows are in a file of few buckets; the others stay in the server.
    @register(f"postgres, {name}", shared=False, buckets=("few buckets",))
    def whole(request: pytest.FixtureRequest) -> Iterator[Source]:
        with opened(request, **options) as engine:
            yield source(engine)


def register_slice(name: str, **options: Any) -> None:
    @register(f"postgres, slice, {name}", shared=False, buckets=("few buckets",))
    def part(request: pytest.FixtureRequest) -> Iterator[Source]:
        with opened(request, **options) as engine:
            yield Source(engine.slice(*MIDDLE), SCHEMA, reference())


register_whole("packed", table="conformance")
register_whole("one row per tuple", table="conformance", layout="rows")
register_whole("streamed", table="conformance", where="client")
register_whole("view", table="conformance view")
register_whole("query", query=ORDERED.format("conformance"))
register_whole("packed, projected", source=projected, table="conformance")
register_whole("streamed, projected", source=projected, table="conformance", where="client")
register_whole("packed, curved", source=curved, table="conformance")
register_whole("query, one row per tuple, curved", source=curved, query=ORDERED.format("conformance"), layout="rows")
register_whole("streamed, curved", source=curved, table="conformance", where="client")
register_slice("packed", table="longer")
register_slice("query, one row per tuple", query=ORDERED.format("longer"), layout="rows")
register_slice("streamed", table="longer", where="client")
