"""What tests of PostgreSQL have in common beside the server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from boltdp.engines.postgres.local_server import Server


@pytest.fixture
def admin(server: Server) -> Iterator[psycopg.Connection]:
    """A superuser's connection, to look at the server from outside a training."""
    with psycopg.connect(server.uri, autocommit=True) as connection:
        yield connection
