"""In PostgreSQL, too, released weights have the recorded bits: packed, one row per tuple, streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest

from boltdp.engines import open_source
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server
from tests.test_recorded_bits import CASES, EVERYWHERE, check, columns, weights_of

if TYPE_CHECKING:
    from boltdp.engines.base import Engine

ENGINES: dict[str, Callable[[str], Engine]] = {
    "packed": lambda uri: open_source(uri, table="recorded", where="server"),
    "one row per tuple": lambda uri: PostgresEngine(uri, table="recorded", where="server", layout="rows"),
    "streamed": lambda uri: open_source(uri, table="recorded", where="client"),
}


@pytest.fixture(scope="module")
def table(server: Server) -> Iterator[None]:
    with psycopg.connect(server.uri, autocommit=True) as connection:
        kinds = "id int, age float8, sex text, scan float8[], sick int, stage text, cost float8"
        connection.execute(f"CREATE TABLE recorded ({kinds})")
        with connection.cursor().copy("COPY recorded FROM STDIN") as copy:
            for row in zip(*columns().values(), strict=True):
                copy.write_row(row)
        yield
        connection.execute("DROP TABLE recorded")


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("where", ENGINES)
def test_weights_have_the_recorded_bits_in_the_server(server: Server, table: None, where: str, name: str) -> None:
    del table
    with ENGINES[where](server.uri) as engine:
        check(name, weights_of(CASES[name], engine))
