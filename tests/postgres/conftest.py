"""A real server for all tests of PostgreSQL, started from a wheel."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from boltdp.engines.postgres.server import Server, private_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with private_server() as running:
        with psycopg.connect(running.uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp")
        yield running


@pytest.fixture
def admin(server: Server) -> Iterator[psycopg.Connection]:
    """A superuser's connection, to look at the server from outside a training."""
    with psycopg.connect(server.uri, autocommit=True) as connection:
        yield connection
