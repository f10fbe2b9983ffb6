"""Rows in Spark: a DataFrame of several partitions, files, slices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from boltdp.engines import open_source
from boltdp.engines.spark import SparkEngine
from tests.engines.sources import (
    MIDDLE,
    ROWS,
    SCHEMA,
    Source,
    curved,
    longer_table,
    projected,
    reference,
    register,
    table,
    written,
)

SPARK_COLUMNS = (
    "id long, age double, visits long, sex string, scan array<double>, sick long, dose float, admitted timestamp_ntz, "
    "seen timestamp_ltz, born date, written string"
)


def frame(request: pytest.FixtureRequest, rows: Any, partitions: int = 3) -> Any:
    """A DataFrame of the session's Spark, of several partitions."""
    spark = request.getfixturevalue("spark")
    return spark.createDataFrame(rows, SPARK_COLUMNS).coalesce(partitions)


@register("spark", slow="")
def from_dataframe(request: pytest.FixtureRequest) -> Iterator[Source]:
    yield Source(open_source(frame(request, table())), SCHEMA, reference())


#: Those that see nothing which others do not see too.
SLOW = (
    "derivatives.*(margin|multinomial)|bad_positions|outside_the_rows|drawing_nothing|alternate|slices_are_cut"
    "|wrong_type|missing_label|end_batches|counted_from|bad_partitions|of_slices_add_up|partitions.*(1-True|2-False|8-F)"
)


@register("spark files", slow=SLOW)
def from_files(request: pytest.FixtureRequest) -> Iterator[Source]:
    def write(folder: Path) -> None:
        folder.mkdir()
        # The first file is the smallest, and Spark reads the largest first.
        for part, (start, stop) in enumerate([(0, 100), (100, 400), (400, ROWS)]):
            pq.write_table(table().slice(start, stop - start), folder / f"part-{part}.parquet")

    folder = written(request, "spark parts", write)
    spark = request.getfixturevalue("spark")
    yield curved(SparkEngine(spark.read.parquet(str(folder)), parts=3))


@register("spark projected", slow="")
def from_projected(request: pytest.FixtureRequest) -> Iterator[Source]:
    yield projected(SparkEngine(frame(request, table()), parts=2))


@register("spark slice", slow="", cannot={"_a_unit_|first_ones_count": "rows of a slice have no places in the cluster"})
def from_slice(request: pytest.FixtureRequest) -> Iterator[Source]:
    yield Source(open_source(frame(request, longer_table())).slice(*MIDDLE), SCHEMA, reference())
