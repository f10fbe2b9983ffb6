"""Where rows are does not depend on what is in the others, however large files become by it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from boltdp.engines.spark import SparkEngine
from boltdp.engines.spark.session import silence_pyspark
from boltdp.kernel.row_permutation import compute_permuted_positions
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema

ROWS, REPLACED = 1000, 5
SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 1000), Categorical("town", ("Ulm",))))
#: Where files begin: the one with the row that is replaced is the smallest, if its town is not very long.
CUTS = (0, 100, 600, ROWS)


def table(town: str) -> pa.Table:
    places = np.arange(ROWS)
    towns = ["Ulm"] * ROWS
    towns[REPLACED] = town
    columns = {"id": places, "age": places.astype(float), "town": towns, "sick": places % 2}
    return pa.table({**columns, "_metadata": ["of the user's own"] * ROWS})


def written(folder: Path, town: str) -> str:
    folder.mkdir()
    for start, stop in pairwise(CUTS):
        pq.write_table(table(town).slice(start, stop - start), folder / f"{start:04}.parquet", row_group_size=50)
    return str(folder)


def ages(frame: Any) -> Any:
    """In the order in which passes are made."""
    with SparkEngine(frame, parts=2).prepare(SCHEMA, Context(seed=3)) as prepared:
        return np.concatenate([np.array(block) for block in prepared.read_blocks()])[:, 1]


@pytest.mark.parametrize("kind", ["files", "a name of Spark's", "view", "query", "union", "small splits", "ordered"])
def test_a_row_that_makes_its_file_the_largest_moves_no_other(spark: Any, tmp_path: Path, kind: str) -> None:
    """Spark reads the largest files first, and packs small ones together."""
    random = np.random.default_rng(1)
    found = []
    for number, town in enumerate(["Ulm", random.bytes(100_000).hex()]):
        folder = written(tmp_path / str(number), town)
        with silence_pyspark():
            spark.conf.set("spark.sql.files.maxPartitionBytes", "3000" if kind == "small splits" else "128MB")
            frame = spark.read.parquet(folder)
            if kind != "a name of Spark's":
                frame = frame.drop("_metadata")
            if kind in ("view", "query"):
                frame.createOrReplaceTempView("visits")
                frame = spark.table("visits") if kind == "view" else spark.sql("SELECT * FROM visits WHERE id >= 0")
            elif kind == "union":
                frame = frame.where("id < 600").union(frame.where("id >= 600"))
            elif kind == "ordered":
                frame = frame.orderBy("id")
        try:
            found.append(ages(frame))
        finally:
            spark.conf.unset("spark.sql.files.maxPartitionBytes")
    places = compute_permuted_positions(0, ROWS, rows=ROWS, seed=3)
    assert (np.diff(found[0][places]) > 0).all()
    assert np.array_equal(found[0], found[1])
