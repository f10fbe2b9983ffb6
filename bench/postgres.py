"""PostgreSQL: a pass in the server against counting the rows, the kernel in memory, PL/Python and a fetching client.

Rows have 50 features. Everything is warm, and measured in turns: a shared machine is quick at one time and slow at
another. Ratios are of processor time, of the server's backend and of this process together, which leaves out what else
runs on the machine; times by the clock are printed beside them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
import psycopg

from bench.ratio import Ratio
from boltdp.engines.base import PreparedRows
from boltdp.engines.postgres import Layout, PostgresEngine, PreparedTable
from boltdp.engines.postgres.load_table import Blocks, load_table
from boltdp.engines.postgres.local_server import Server, run_private_server
from boltdp.kernel import sgd
from boltdp.kernel.sgd import State
from boltdp.losses import Logistic
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.run_context import Context
from boltdp.schema.schema import Schema, make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.synthesize import draw_synthetic_blocks
from boltdp.workflows.train import train

DIMS = 50
SCHEMA: Schema = make_array_schema(dims=DIMS, classes=(0, 1))
CONTEXT = Context(seed=1)
ROUNDS = 15
#: Of the rows, those that Python sees one by one: it takes so long that it need not be all.
FETCHED = 50_000
PAIRS = 9  #: of a private and a noiseless training
REPEATS = 3  #: of preparing and training, the best of which counts
#: Enough for ten million rows and what they are made of.
LARGE_CACHE = "6GB"


def run(rows: int = 1_000_000) -> list[Ratio]:
    with run_private_server(settings={"shared_buffers": LARGE_CACHE, "max_wal_size": "8GB"}) as server:
        with psycopg.connect(server.uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION boltdp")
        load(server, "small", rows)
        ratios = [*passes(server, rows), private_over_noiseless(server), *preparing(server, "small", rows)]
        load(server, "large", 10 * rows)
        ratios += [growth(server, rows, LARGE_CACHE), *preparing(server, "large", 10 * rows)]
        installed = server.pg_config
        small_cache = {"shared_buffers": "128MB", "max_wal_size": "8GB"}
        with run_private_server(pg_config=installed, extension=False, settings=small_cache) as other:
            with psycopg.connect(other.uri, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION boltdp")
            load(other, "small", rows)
            load(other, "large", 10 * rows)
            ratios.append(growth(other, rows, "128MB"))
    return ratios


def load(server: Server, table: str, rows: int) -> None:
    load_arrays(server.uri, table, draw_synthetic_blocks(rows=rows, dims=DIMS), dims=DIMS)


def load_arrays(uri: str, table: str, blocks: Blocks, *, dims: int) -> None:
    """Make a table of the columns x real[] and label."""
    load_table(uri, f"{table}_columns", blocks, dims=dims)
    features = ", ".join(f"f{i}" for i in range(dims))
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (x real[], label integer)")
        # Set before loading: compressed or toasted rows take several times as long to read.
        connection.execute(f"ALTER TABLE {table} ALTER x SET STORAGE PLAIN")
        connection.execute(f"INSERT INTO {table} SELECT ARRAY[{features}], label FROM {table}_columns")
        connection.execute(f"DROP TABLE {table}_columns")
        connection.execute(f"VACUUM ANALYZE {table}")


@contextmanager
def prepared(server: Server, table: str, layout: Layout = "packed") -> Iterator[PreparedTable]:
    with (
        PostgresEngine(server.uri, table=table, layout=layout, where="server", memory="1TB") as engine,
        engine.prepare(SCHEMA, CONTEXT) as made,
    ):
        assert isinstance(made, PreparedTable)
        yield made


def model(rows: int) -> State:
    """Batches of one row, which is the most work."""
    recipe = Recipe(
        loss=Logistic(), dims=DIMS, rows=rows, batch_size=1, passes=10_000, schedule=make_constant_schedule(1e-3)
    )
    return State(recipe, feature_map=SCHEMA.encoding.feature_map)


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    clock: float
    processor: float


def measure(work: Callable[[], object], backend: int) -> Cost:
    """What a piece of work costs here and in a backend of the server, by its process id."""
    clock, processor = time.perf_counter(), time.process_time() + backend_seconds(backend)
    work()
    return Cost(time.perf_counter() - clock, time.process_time() + backend_seconds(backend) - processor)


def backend_seconds(pid: int) -> float:
    """Processor time of a process so far, as Linux tells it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def backend(table: PreparedTable) -> int:
    """The process that serves a prepared table."""
    return int(table._session.ask("SELECT pg_backend_pid()", fault="the server cannot be asked")[0][0])


def quickest(things: dict[str, tuple[int, Callable[[], object]]]) -> dict[str, Cost]:
    """The least time of each, in turns."""
    costs: dict[str, list[Cost]] = {name: [] for name in things}
    for _ in range(ROUNDS):
        for name, (pid, work) in things.items():
            costs[name].append(measure(work, pid))
    return {
        name: Cost(min(cost.clock for cost in each), min(cost.processor for cost in each))
        for name, each in costs.items()
    }


def passes(server: Server, rows: int) -> list[Ratio]:
    """The pass, packed and one row per tuple, against its yardsticks."""
    packed_model, row_model, memory_model = model(rows), model(rows), model(rows)
    with (
        prepared(server, "small") as packed,
        prepared(server, "small", "rows") as rowwise,
        psycopg.connect(server.uri, autocommit=True) as connection,
    ):
        for setting in ("max_parallel_workers_per_gather = 0", "jit = off", "synchronize_seqscans = off"):
            connection.execute(f"SET {setting}")
        array = np.concatenate([block.copy() for block in packed.read_blocks()])
        ours = connection.info.backend_pid
        count, packed_pass, row_pass, memory = quickest(
            {
                "count": (ours, lambda: connection.execute("SELECT count(*) FROM small").fetchall()),
                "packed": (backend(packed), lambda: packed.run_pass([packed_model], CONTEXT)),
                "row": (backend(rowwise), lambda: rowwise.run_pass([row_model], CONTEXT)),
                "memory": (ours, lambda: sgd.run([memory_model], array)),
            }
        ).values()
        some = min(rows, FETCHED)
        fetched = measure(lambda: fetch_and_run(connection, some), ours)
        python = pl_python(connection, some)
    tell("count(*)", count, rows)
    tell("a packed pass", packed_pass, rows)
    tell("a pass, one row per tuple", row_pass, rows)
    tell("the kernel in memory", memory, rows)
    tell("a pass in a client that fetches the rows by psycopg", fetched, some)
    if python is not None:
        tell("a pass in PL/Python", python, some)
    else:
        print("  no PL/Python in this server")
    slow = fetched if python is None else python
    return [
        over("packed pass over count(*)", packed_pass, count, at_most=1.5),
        over("packed pass over the kernel in memory", packed_pass, memory, at_most=2.0),
        over("pass, one row per tuple, over count(*)", row_pass, count, at_most=3.5),
        Ratio(
            name=f"pass in {'a client' if python is None else 'PL/Python'} over packed pass",
            value=slow.processor / some / (packed_pass.processor / rows),
            at_least=1.0,
        ),
    ]


def preparing(server: Server, table: str, rows: int) -> list[Ratio]:
    """What comes before the passes, over a pass; and all of a default training, over counting the rows."""
    trained = model(rows)
    with psycopg.connect(server.uri, autocommit=True) as connection:
        for setting in ("max_parallel_workers_per_gather = 0", "jit = off"):
            connection.execute(f"SET {setting}")
        count = min(
            (
                measure(
                    lambda: connection.execute(f"SELECT count(*) FROM {table}").fetchall(), connection.info.backend_pid
                )
                for _ in range(REPEATS)
            ),
            key=attrgetter("processor"),
        )
    prepares, packed, trainings = [], [], []
    for _ in range(REPEATS):
        with PostgresEngine(server.uri, table=table, where="server", memory="1TB") as engine:
            made: list[PreparedRows] = []
            ((pid,),) = engine._session.ask("SELECT pg_backend_pid()", fault="the server cannot be asked")
            prepares.append(measure(lambda: made.append(engine.prepare(SCHEMA, CONTEXT)), pid))  # noqa: B023
            packed += [measure(lambda: made[0].run_pass([trained], CONTEXT), pid) for _ in range(REPEATS)]  # noqa: B023
            made[0].close()
        with PostgresEngine(server.uri, table=table, where="server", memory="1TB") as engine:
            ((pid,),) = engine._session.ask("SELECT pg_backend_pid()", fault="the server cannot be asked")
            trainings.append(measure(lambda: train(engine, SCHEMA, Settings(epsilon=1.0)), pid))
    prepare, one_pass, auto = (min(costs, key=attrgetter("processor")) for costs in (prepares, packed, trainings))
    for name, cost in (("count(*)", count), ("a packed pass", one_pass), ("preparing for passes", prepare)):
        tell(f"{name} of {rows:,} rows", cost, rows)
    tell(f"training of {rows:,} rows, auto", auto, rows)
    return [
        over(f"preparing {rows:,} rows over a packed pass", prepare, one_pass, at_most=20.0),
        over(f"auto with {rows:,} rows over count(*)", auto, count, at_most=50.0),
    ]


def tell(name: str, cost: Cost, rows: int) -> None:
    print(f"  {name}: {1e9 * cost.processor / rows:.0f} ns a row ({1e9 * cost.clock / rows:.0f} by the clock)")


def over(name: str, above: Cost, below: Cost, *, at_most: float) -> Ratio:
    print(f"  {name}: {above.clock / below.clock:.2f} by the clock")
    return Ratio(name=name, value=above.processor / below.processor, at_most=at_most)


def fetch_and_run(connection: psycopg.Connection, rows: int) -> None:
    """An epoch as a client without the extension would write it: fetch rows, feed them."""
    state = model(rows)
    cursor = connection.cursor(binary=True)
    cursor.execute("SELECT label::real, x FROM small LIMIT %s", [rows])
    while fetched := cursor.fetchmany(1000):
        sgd.run([state], np.array([(label, *x) for label, x in fetched], np.float32))


#: Logistic SGD with batches of one row, in Python as PL/Python has it: no package but those of the language.
EPOCH = """
CREATE FUNCTION epoch(rows int) RETURNS float8[] LANGUAGE plpython3u AS $$
    from math import exp
    weights = None
    for row in plpy.cursor(f"SELECT label, x FROM small LIMIT {rows}"):
        x, y = row["x"], 2 * row["label"] - 1
        if weights is None:
            weights = [0.0] * len(x)
        margin = y * sum(w * a for w, a in zip(weights, x))
        step = 1e-3 * y / (1.0 + exp(margin))
        weights = [w + step * a for w, a in zip(weights, x)]
    return weights
$$
"""


def pl_python(connection: psycopg.Connection, rows: int) -> Cost | None:
    """An epoch in PL/Python, where the server has it."""
    if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'plpython3u'").fetchall():
        return None
    connection.execute("CREATE EXTENSION plpython3u")
    connection.execute(EPOCH)
    return measure(lambda: connection.execute("SELECT epoch(%s)", [rows]).fetchall(), connection.info.backend_pid)


def private_over_noiseless(server: Server) -> Ratio:
    """End to end, ten passes: connect, prepare, passes, release. The median of the ratios of pairs side by side.

    The statements are the same, so what privacy costs is all in this process: its share is printed by itself, since
    the server's varies by more than that on a busy machine.
    """
    here: dict[float | None, list[float]] = {1.0: [], None: []}

    def cost(epsilon: float | None) -> Cost:
        clock, processor = time.perf_counter(), time.process_time()
        with PostgresEngine(server.uri, table="small", where="server") as engine:
            train(engine, SCHEMA, Settings(epsilon=epsilon, algorithm="bolton", passes=10))
            ((pid,),) = engine._session.ask("SELECT pg_backend_pid()", fault="the server cannot be asked")
            in_server = backend_seconds(pid)
        here[epsilon].append(time.process_time() - processor)
        return Cost(time.perf_counter() - clock, here[epsilon][-1] + in_server)

    cost(1.0), cost(None)
    pairs = []
    for turn in range(PAIRS):
        # In turning order: what the first of two leaves behind helps or hinders the second.
        first, second = cost(None if turn % 2 else 1.0), cost(1.0 if turn % 2 else None)
        pairs.append((second, first) if turn % 2 else (first, second))
    by_processor = [private.processor / noiseless.processor for private, noiseless in pairs]
    by_clock = [private.clock / noiseless.clock for private, noiseless in pairs]
    ours, plain, total = (
        statistics.median(seconds) for seconds in (here[1.0], here[None], [pair[1].processor for pair in pairs])
    )
    print(f"  this process: {ours:.3f} s private, {plain:.3f} s noiseless, of {total:.2f} s with the server's; medians")
    name = "private over noiseless training, 10 passes"
    for how, ratios in (("processor time", by_processor), ("the clock", by_clock)):
        print(f"  {name}, by {how}: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    return Ratio(name=name, value=statistics.median(by_processor), at_most=1.02)


def growth(server: Server, rows: int, cache: str) -> Ratio:
    """What a row of a pass costs among ten times as many."""
    small_model, large_model = model(rows), model(10 * rows)
    with prepared(server, "small") as small, prepared(server, "large") as large:
        best = quickest(
            {
                "small": (backend(small), lambda: small.run_pass([small_model], CONTEXT)),
                "large": (backend(large), lambda: large.run_pass([large_model], CONTEXT)),
            }
        )
    tell(f"a packed pass of {rows:,} rows, shared_buffers {cache}", best["small"], rows)
    tell(f"of {10 * rows:,}", best["large"], 10 * rows)
    return Ratio(
        name=f"a row of {10 * rows:,} over one of {rows:,}, shared_buffers {cache}",
        value=best["large"].processor / best["small"].processor / 10,
        at_most=1.3,
    )
