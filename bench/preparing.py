"""Preparing: `train` from files over DuckDB reading the same files, threads over one, categories over numbers.

What is timed is the wall clock, since threads are what it is about: run it on a machine that does nothing else.
Processor seconds stand beside it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.ratio import Ratio
from bench.turns import REPEATS, take_turns
from boltdp._threads import count_processors
from boltdp.engines import open_source
from boltdp.engines.base import Engine, encode_rows
from boltdp.engines.local_store import find_spool_directory
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.sum_state import Summation
from boltdp.losses import Logistic
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Schema
from boltdp.settings import Settings
from boltdp.workflows.synthesize import synthesize
from boltdp.workflows.train import train

DIMS = 50
CATEGORIES = 100


def run(rows: int = 5_000_000) -> list[Ratio]:
    with tempfile.TemporaryDirectory(dir=find_spool_directory(), prefix="boltdp-bench-") as folder:
        parquet, csv, categories = (Path(folder) / name for name in ("rows.parquet", "rows.csv", "categories.parquet"))
        schema = synthesize(parquet, rows=rows, dims=DIMS, seed=1)
        few = rows // 10
        duckdb.sql(f"COPY (SELECT * FROM '{parquet}' LIMIT {few}) TO '{csv}'")
        _write_categories(categories, few)
        return [
            *_training(f"{rows:,} x {DIMS} Parquet", parquet, schema, at_most=8.0),
            *_training(f"{few:,} x {DIMS} CSV", csv, schema, at_most=3.0),
            *_threads(parquet, schema, rows),
            _categories(categories, parquet, schema, few),
        ]


def _training(name: str, path: Path, schema: Schema, *, at_most: float) -> list[Ratio]:
    """From the file to the model, over the sum of all columns by DuckDB with as many threads."""
    sums = ", ".join(f"sum(f{i}::FLOAT)" for i in range(DIMS))

    def read() -> None:
        with duckdb.connect(config={"threads": count_processors()}) as connection:
            connection.execute(f"SELECT {sums} FROM '{path}'").fetchall()

    def trained(algorithm: str) -> Callable[[], object]:
        def work() -> None:
            with open_source(path) as engine:
                train(engine, schema, Settings(epsilon=1.0, algorithm=algorithm))

        return work

    algorithms = ("auto", "bolton")
    taken = take_turns(name, {"DuckDB": read, **{algorithm: trained(algorithm) for algorithm in algorithms}})
    return [
        Ratio(
            name=f"train --algorithm {algorithm}, {name}, over DuckDB summing it",
            value=taken[algorithm] / taken["DuckDB"],
            at_most=at_most,
        )
        for algorithm in algorithms
    ]


def _threads(path: Path, schema: Schema, rows: int) -> list[Ratio]:
    """Two threads over one: encoding rows that are in memory, and scans that sum."""
    some = min(rows, 1_000_000)
    table = pq.read_table(path).slice(0, some)
    engine = open_source(table)

    def encode(threads: int) -> Callable[[], object]:
        return lambda: [None for _ in encode_rows(engine, schema, context=Context(threads=threads))]

    made = {threads: engine.prepare(schema, Context(seed=1, threads=threads), permuted=False) for threads in (1, 2)}

    def total(threads: int) -> Callable[[], object]:
        weights = np.full((1, schema.dims), 0.1)

        def work() -> None:
            for _ in range(3):
                sums: list[Summation] = [FeatureSums(schema.encoding.feature_map, clip_norm=1.0)]
                sums.append(DerivativeSums(Logistic(), weights, feature_map=schema.encoding.feature_map))
                made[threads].add_to_sums(sums)

        return work

    ratios = []
    for name, work in {"encoding": encode, "sums": total}.items():
        taken = take_turns(
            f"{name} of {some:,} x {DIMS}",
            {"one thread": work(1), "two threads": work(2)},
            repeats=3 * REPEATS,
        )
        ratios.append(
            Ratio(name=f"{name}: one thread over two", value=taken["one thread"] / taken["two threads"], at_least=1.6)
        )
    for one in made.values():
        one.close()
    return ratios


def _categories(path: Path, numbers: Path, schema: Schema, rows: int) -> Ratio:
    """As many columns of categories as of numbers, from the file to the model."""
    columns = tuple(Categorical(f"f{i}", tuple(f"value {k}" for k in range(CATEGORIES))) for i in range(DIMS))

    def trained(engine: Engine, used: Schema) -> Callable[[], object]:
        return lambda: train(engine, used, Settings(epsilon=1.0, curves=0))

    with open_source(path) as texts, open_source(numbers) as floats:
        taken = take_turns(
            f"{rows:,} x {DIMS} from Parquet",
            {
                "numbers": trained(floats.slice(0, rows), schema),
                f"{CATEGORIES} categories": trained(texts, replace(schema, columns=columns)),
            },
        )
    return Ratio(
        name=f"{DIMS} columns of {CATEGORIES} categories over {DIMS} numeric ones, {rows:,} rows",
        value=taken[f"{CATEGORIES} categories"] / taken["numbers"],
        at_most=3.0,
    )


def _write_categories(path: Path, rows: int) -> None:
    rng = np.random.default_rng(1)
    values = pa.array([f"value {k}" for k in range(CATEGORIES)])
    columns = {f"f{i}": values.take(pa.array(rng.integers(CATEGORIES, size=rows))) for i in range(DIMS)}
    columns["label"] = pa.array(rng.integers(2, size=rows))
    pq.write_table(pa.table(columns), path)
