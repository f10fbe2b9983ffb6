"""A hospital's database: an owner, a worker, and analysts who have no right to its table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from boltdp.engines.postgres.local_server import Server
from boltdp.ledger import Ledger, open_ledger
from boltdp.privacy.budget import Budget
from boltdp.service.worker import Worker

#: Cells that nobody but the owner and the worker may see: of one patient, and in every row.
SECRET_NAME, SECRET_NUMBER = "Zacharias Quellmalz", 918273
ROWS = 3000
WARDS = ("north", "south")
ROLES = ("hospital", "trainer", "ann", "bob")

TABLE = f"""
CREATE TABLE patients (
  id int PRIMARY KEY, name text, age int CHECK (age BETWEEN 0 AND 120), sex text CHECK (sex IN ('F', 'M')),
  ward text, amount int CHECK (amount BETWEEN 0 AND 1000000), outcome boolean
);
INSERT INTO patients SELECT i, CASE i WHEN 7 THEN '{SECRET_NAME}' ELSE 'patient ' || i END, i * 7919 % 121,
  CASE WHEN i % 3 = 0 THEN 'F' ELSE 'M' END, CASE WHEN i % 2 = 0 THEN 'north' ELSE 'south' END,
  {SECRET_NUMBER} - i % 5, i * 7919 % 121 > 60 FROM generate_series(1, {ROWS}) AS i;
"""

ALLOW = "SELECT boltdp.allow_training('patients', to_role => 'ann', label => 'outcome', columns => '{age,sex,amount}'"


@dataclass(frozen=True)
class Desk:
    """The database of a test."""

    server: Server

    def uri(self, role: str) -> str:
        return self.server.uri.replace("/postgres?", "/desk?").replace("postgres@", f"{role}@")

    @property
    def ledger(self) -> Ledger:
        return open_ledger(self.uri("hospital"))

    def ask(self, role: str, query: Any, values: Any = ()) -> list[dict[str, Any]]:
        with psycopg.connect(self.uri(role), autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def request(self, role: str = "ann", **asked: Any) -> int:
        given = {"dataset": "patients", "label": "outcome", "epsilon": 0.2, **asked}
        named = ", ".join(f"{name} => %({name})s" for name in given)
        return int(self.ask(role, f"SELECT boltdp.request({named}) AS number", given)[0]["number"])

    def serve(self) -> list[str]:
        """Serve what waits; what the worker says to its own log."""
        said: list[str] = []
        with closing(Worker(self.uri("trainer"), open_ledger(self.uri("trainer")), say=said.append)) as worker:
            worker.run(once=True)
        return said

    def publish(self) -> None:
        """Let the time of the answers come."""
        self.ask("postgres", "UPDATE boltdp.requests SET published = now() WHERE published IS NOT NULL")
        self.ask("postgres", "UPDATE boltdp.models SET stored = now()")

    def status(self, number: int, role: str = "ann") -> dict[str, Any]:
        (found,) = self.ask(role, "SELECT * FROM boltdp.status(%s)", [number])
        return found

    def kept(self, number: int = 1) -> dict[str, Any]:
        """All of a request, as the administrator sees it."""
        (found,) = self.ask("postgres", "SELECT * FROM boltdp.requests WHERE number = %s", [number])
        return found

    def spent(self) -> float:
        return self.ledger.spent("patients").spent.epsilon


@contextmanager
def opened_desk(server: Server, *, epsilon: float = 1.0) -> Iterator[Desk]:
    """Set up as docs/postgres.md says."""
    with psycopg.connect(server.uri, autocommit=True) as admin:
        for role in ROLES:
            admin.execute(f"CREATE ROLE {role} LOGIN".encode())
        admin.execute("CREATE DATABASE desk OWNER hospital")
    desk = Desk(server)
    try:
        desk.ask("postgres", "CREATE EXTENSION boltdp")
        desk.ask("postgres", "SELECT boltdp.allow_worker('trainer', grain => '1 day'), boltdp.allow_owner('hospital')")
        desk.ask("hospital", TABLE)
        desk.ask("hospital", "GRANT SELECT ON patients TO trainer")
        desk.ask("hospital", ALLOW + ", epsilon => 1.0, delta => 1e-5)")
        desk.ledger.set_budget("patients", Budget(epsilon, 1e-5), composition="basic")
        desk.ledger.allow("trainer")
        yield desk
    finally:
        with psycopg.connect(server.uri, autocommit=True) as admin:
            admin.execute("DROP DATABASE desk WITH (FORCE)")
            admin.execute(f"DROP ROLE {', '.join(ROLES)}".encode())
