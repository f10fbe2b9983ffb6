"""Groups of rows, told apart by a public column: prepared by one scan, and trained as if each were alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from typing_extensions import LiteralString

from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.errors import DataError, ParameterError
from boltdp.model import Model
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema
from boltdp.service import train_per_group as service_groups
from boltdp.service.train_per_group import train_groups
from boltdp.service.worker import choose_settings
from boltdp.settings import Settings
from boltdp.workflows.plan_training import Plan, make_plan
from boltdp.workflows.train import run_plan, train_prepared
from tests.postgres.test_slices import content, sessions
from tests.postgres.test_training import wait_until

#: Some 900, 600 and 450 rows, and others that are in no group.
SIZES = {"north": 900, "Löwen 'ü'": 600, "7": 450}
TABLE = """
CREATE TABLE visits AS SELECT i * 7919 % 121 AS age, CASE WHEN i % 3 = 0 THEN 'F' ELSE 'M' END AS sex,
  CASE WHEN i % 10 < 3 THEN 'north' WHEN i % 10 < 5 THEN $$Löwen 'ü'$$ WHEN i % 20 < 8 THEN '7'
    WHEN i % 10 = 6 THEN 'North' WHEN i % 10 = 7 THEN '' END AS ward, i % 10 AS tenth, i * 7919 % 121 > 60 AS ill
FROM generate_series(1, 3000) AS i
"""
SCHEMA = Schema(Classes("ill", (False, True)), (Numeric("age", 0, 120), Categorical("sex", ("F", "M"))))
#: How many tables with rows there are.
LEFT: LiteralString = "SELECT count(*) FROM pg_class WHERE relname LIKE 'boltdp\\_%' AND relpersistence = 't'"
PROJECTED = replace(SCHEMA, projection=Projection(dims=2, seed=3))


@pytest.fixture
def table(admin: psycopg.Connection) -> Iterator[str]:
    admin.execute(TABLE)
    yield "visits"
    admin.execute("DROP TABLE visits")


def planned(schema: Schema, rows: int, *, delta: float) -> Plan:
    settings = choose_settings(Settings(epsilon=5.0, delta=delta), schema, rows=rows)
    return make_plan(schema, rows, replace(settings, noise_seed=2))


def seeded() -> Context:
    return replace(SEEDED, noise_seed=2, seed=5).context()


SEEDED = choose_settings(Settings(epsilon=5.0), SCHEMA, rows=900)
WAYS: list[tuple[Schema, float, dict[str, Any]]] = [
    (SCHEMA, 0.0, {}),
    (SCHEMA, 1e-6, {}),
    (SCHEMA, 0.0, {"layout": "rows"}),
    (PROJECTED, 1e-6, {}),
]


@pytest.mark.parametrize(("schema", "delta", "options"), WAYS)
def test_models_of_groups_have_the_bits_of_models_of_each_alone(
    server: Server, table: str, schema: Schema, delta: float, options: dict[str, Any]
) -> None:
    with PostgresEngine(server.uri, table=table, **options) as engine:
        groups = engine.group_by("ward", list(SIZES))
        assert groups.rows == list(SIZES.values())
        plans = [planned(schema, rows, delta=delta) for rows in groups.rows]
        models = train_groups(groups, plans, seeded())
    alone: list[Model] = []
    for value, plan in zip(SIZES, plans, strict=True):
        query = "SELECT * FROM visits WHERE ward = '{}'".format(value.replace("'", "''"))
        with PostgresEngine(server.uri, query=query, **options) as engine:
            alone.append(run_plan(engine, plan, seeded()))
    assert all(plan.certificate.moments is not None for plan in plans)
    assert [model.to_dict() for model in models] == [model.to_dict() for model in alone]
    assert len({str(model.weights) for model in models}) == 3


@pytest.mark.parametrize(("schema", "scans"), [(SCHEMA, 2), (PROJECTED, 3)])
def test_the_table_is_scanned_to_count_and_to_prepare_however_many_groups_there_are(
    server: Server, admin: psycopg.Connection, table: str, schema: Schema, scans: int
) -> None:
    """And once more to standardize what is projected."""

    def scanned() -> int:
        wait_until(lambda: sessions(admin) == [])
        answer = admin.execute("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'visits'").fetchone()
        assert answer is not None
        return int(answer[0])

    for values in ([*SIZES][:1], [*SIZES]):
        before = scanned()
        with PostgresEngine(server.uri, table=table) as engine:
            groups = engine.group_by("ward", values)
            train_groups(groups, [planned(schema, rows, delta=1e-6) for rows in groups.rows], seeded())
        assert scanned() - before == scans


def test_groups_are_of_one_moment_and_leave_nothing(server: Server, admin: psycopg.Connection, table: str) -> None:
    """A row that changes its group meanwhile stays in the one that it was in."""
    with PostgresEngine(server.uri, table=table) as engine:
        groups = engine.group_by("tenth", ["1", "2"])
        admin.execute("UPDATE visits SET tenth = 2, age = 0 WHERE tenth = 1")
        with groups.prepare([SCHEMA] * 2, Context(seed=1), permuted=[True, False]) as (first, second):
            assert (first.permuted, second.permuted) == (True, False)
            assert [len(content(first)), len(content(second))] == groups.rows == [300, 300]
            # Passes may take long, and must not keep the server from tidying up.
            assert sessions(admin) == ["idle"]
        assert engine._session.ask(LEFT, fault="") == [(0,)]
        message = "the data changed while it was read: its number of rows is not what it was"
        for permuted, what in ((False, message), (True, "the rows cannot be prepared")):
            with (
                pytest.raises(DataError, match=what),
                groups.prepare([SCHEMA] * 2, Context(), permuted=[permuted] * 2),
            ):
                pass
        assert engine._session.ask(LEFT, fault="") == [(0,)]
        assert engine.group_by("tenth", ["1", "2"]).rows == [0, 600]


def test_no_index_puts_the_rows_of_a_group_in_the_order_of_their_values(
    server: Server, admin: psycopg.Connection, table: str
) -> None:
    def rows(uri: str) -> list[list[Any]]:
        with (
            PostgresEngine(uri, table=table) as engine,
            engine.group_by("ward", [*SIZES]).prepare([SCHEMA] * 3, Context(), permuted=[False] * 3) as tables,
        ):
            return [[block.tolist() for block in prepared.read_blocks()] for prepared in tables]

    before = rows(server.uri)
    admin.execute("CREATE INDEX ON visits (ward, ill, age) INCLUDE (sex)")
    admin.execute("VACUUM ANALYZE visits")
    assert rows(server.uri + "&options=-c%20enable_seqscan%3Doff%20-c%20enable_bitmapscan%3Doff") == before


def test_what_is_made_of_a_group_goes_when_its_model_is_trained(
    server: Server, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the training of another fails."""
    left: list[Any] = []
    with PostgresEngine(server.uri, table=table) as engine:

        def watched(*arguments: Any) -> Model:
            left.extend(engine._session.ask(LEFT, fault=""))
            assert engine._session.kept_state is None
            if len(left) == 3:
                raise RuntimeError
            return train_prepared(*arguments)

        groups = engine.group_by("ward", list(SIZES))
        plans = [planned(SCHEMA, rows, delta=0.0) for rows in groups.rows]
        monkeypatch.setattr(service_groups, "train_prepared", watched)
        with pytest.raises(RuntimeError):
            train_groups(groups, plans, seeded())
        assert [*left, *engine._session.ask(LEFT, fault="")] == [(3,), (2,), (1,), (0,)]


def test_groups_that_cannot_be_are_refused_before_a_row_is_read(server: Server, table: str) -> None:
    with PostgresEngine(server.uri, table=table) as engine:
        for column, values in (("ward", []), ("ward", ["a", "a"]), ("ward", list(map(str, range(501))))):
            with pytest.raises(ParameterError, match="groups must be 1 to 500 different values"):
                engine.group_by(column, values)
        with pytest.raises(DataError, match="must have the column 'floor'"):
            engine.group_by("floor", ["1"])
        persons = replace(SCHEMA, person_id="tenth", max_rows_per_person=1)
        with (
            pytest.raises(ParameterError, match="a person's may be in several"),
            engine.group_by("ward", ["7"]).prepare([persons], Context(), permuted=[True]),
        ):
            pass
    with (
        PostgresEngine(server.uri, table=table, where="client") as engine,
        pytest.raises(ParameterError, match="must be prepared in the server"),
        engine.group_by("ward", ["7"]).prepare([SCHEMA], Context(), permuted=[True]),
    ):
        pass
