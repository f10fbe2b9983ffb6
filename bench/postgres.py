"""PostgreSQL: a pass in the server against counting the rows, the kernel in memory and a client that fetches the rows.

Rows have 50 features. Everything is warm, and measured in turns: a shared machine is quick at one time and slow at
another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import psycopg

from bench.ratio import Ratio
from boltdp import kernel
from boltdp.data.schema import Schema, array_schema
from boltdp.data.synth import synthetic_blocks
from boltdp.engines.postgres import Layout, PostgresEngine, PreparedTable
from boltdp.kernel import State
from boltdp.postgres.load import load_rows
from boltdp.postgres.server import Server, private_server
from boltdp.privacy.losses import Logistic
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.schedules import constant
from boltdp.settings import Settings
from boltdp.train import train

DIMS = 50
SCHEMA: Schema = array_schema(dims=DIMS, classes=(0, 1))
ROUNDS = 15
#: Of the rows, those that a client fetches: it takes so long that it need not be all.
FETCHED = 50_000
#: Enough for ten million rows and what they are made of.
LARGE_CACHE = "6GB"


def run(rows: int = 1_000_000) -> list[Ratio]:
    with private_server(settings={"shared_buffers": LARGE_CACHE, "max_wal_size": "8GB"}) as server:
        with psycopg.connect(server.uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp")
        load(server, "small", rows)
        ratios = [*passes(server, rows), private_over_noiseless(server)]
        load(server, "large", 10 * rows)
        ratios.append(growth(server, rows, LARGE_CACHE))
        installed = server.pg_config
        small_cache = {"shared_buffers": "128MB", "max_wal_size": "8GB"}
        with private_server(pg_config=installed, extension=False, settings=small_cache) as other:
            with psycopg.connect(other.uri, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION boltdp")
            load(other, "small", rows)
            load(other, "large", 10 * rows)
            ratios.append(growth(other, rows, "128MB"))
    return ratios


def load(server: Server, table: str, rows: int) -> None:
    """A row a tuple: x real[] and label."""
    load_rows(server.uri, table, synthetic_blocks(rows=rows, dims=DIMS), dims=DIMS, as_array=True)
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute(f"VACUUM ANALYZE {table}")


@contextmanager
def prepared(server: Server, table: str, layout: Layout = "packed") -> Iterator[PreparedTable]:
    with (
        PostgresEngine(server.uri, table=table, layout=layout, where="server") as engine,
        engine.prepare(SCHEMA, seed=1) as made,
    ):
        assert isinstance(made, PreparedTable)
        yield made


def model(rows: int) -> State:
    """Batches of one row, which is the most work."""
    return State(Recipe(loss=Logistic(), dims=DIMS, rows=rows, batch_size=1, passes=10_000, schedule=constant(1e-3)))


def passes(server: Server, rows: int) -> list[Ratio]:
    """The pass, packed and a row a tuple, against its yardsticks."""
    packed_model, row_model, memory_model = model(rows), model(rows), model(rows)
    with (
        prepared(server, "small") as packed,
        prepared(server, "small", "rows") as rowwise,
        psycopg.connect(server.uri, autocommit=True) as connection,
    ):
        for setting in ("max_parallel_workers_per_gather = 0", "jit = off", "synchronize_seqscans = off"):
            connection.execute(f"SET {setting}")
        array = np.concatenate([block.copy() for block in packed.blocks()])
        best = quickest(
            {
                "count(*)": lambda: connection.execute("SELECT count(*) FROM small").fetchall(),
                "a packed pass": lambda: packed.run_pass([packed_model]),
                "a pass, row a tuple": lambda: rowwise.run_pass([row_model]),
                "the kernel in memory": lambda: kernel.run([memory_model], array),
            }
        )
        started = time.perf_counter()
        fetch_and_run(connection, FETCHED)
        fetched = (time.perf_counter() - started) / FETCHED * rows
    for name, seconds in {**best, "a pass in a client that fetches the rows": fetched}.items():
        print(f"  {name}: {1e9 * seconds / rows:.0f} ns a row")
    count, packed_pass = best["count(*)"], best["a packed pass"]
    return [
        Ratio(name="packed pass over count(*)", value=packed_pass / count, at_most=1.5),
        Ratio(
            name="packed pass over the kernel in memory", value=packed_pass / best["the kernel in memory"], at_most=2.0
        ),
        Ratio(name="pass, row a tuple, over count(*)", value=best["a pass, row a tuple"] / count, at_most=3.5),
        Ratio(name="pass in a client over packed pass", value=fetched / packed_pass, at_least=1.0),
    ]


def fetch_and_run(connection: psycopg.Connection, rows: int) -> None:
    """An epoch as a client without the extension would write it: fetch rows, feed them."""
    state = model(rows)
    cursor = connection.cursor(binary=True)
    cursor.execute("SELECT label::real, x FROM small LIMIT %s", [rows])
    while fetched := cursor.fetchmany(1000):
        kernel.run([state], np.array([(label, *x) for label, x in fetched], np.float32))


def quickest(things: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The best time of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in things}
    for _ in range(ROUNDS):
        for name, thing in things.items():
            started = time.perf_counter()
            thing()
            times[name].append(time.perf_counter() - started)
    return {name: min(measured) for name, measured in times.items()}


def private_over_noiseless(server: Server) -> Ratio:
    """End to end, ten passes: prepare, passes, release."""
    times: dict[float | None, list[float]] = {None: [], 1.0: []}
    for turn in range(10):
        # In turning order: what the first of two leaves behind helps or hinders the second.
        for epsilon in sorted(times, key=lambda budget: (budget is None) == bool(turn % 2)):
            started = time.perf_counter()
            with PostgresEngine(server.uri, table="small", where="server") as engine:
                train(engine, SCHEMA, Settings(epsilon=epsilon, passes=10))
            times[epsilon].append(time.perf_counter() - started)
    value = min(times[1.0]) / min(times[None])
    return Ratio(name="private over noiseless training, 10 passes", value=value, at_most=1.02)


def growth(server: Server, rows: int, cache: str) -> Ratio:
    """What a row of a pass costs among ten times as many."""
    small_model, large_model = model(rows), model(10 * rows)
    with prepared(server, "small") as small, prepared(server, "large") as large:
        best = quickest(
            {"small": lambda: small.run_pass([small_model]), "large": lambda: large.run_pass([large_model])}
        )
    cost = {"small": best["small"] / rows, "large": best["large"] / (10 * rows)}
    print(
        f"  shared_buffers {cache}: {1e9 * cost['small']:.0f} ns a row, {1e9 * cost['large']:.0f} among ten times more"
    )
    return Ratio(
        name=f"a row of {10 * rows:,} over one of {rows:,}, shared_buffers {cache}",
        value=cost["large"] / cost["small"],
        at_most=1.3,
    )
