"""In Spark, too, released weights have the recorded bits."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from boltdp.engines.spark import SparkEngine
from tests.test_recorded_bits import CASES, EVERYWHERE, check, columns, weights_of


@pytest.fixture(scope="module")
def engine(spark: Any) -> SparkEngine:
    kinds = "id long, age double, sex string, scan array<double>, sick long, stage string, cost double"
    return SparkEngine(spark.createDataFrame(pa.table(columns()), kinds), parts=3)


#: One of each kind of work: sums, passes that are permuted afresh, drawn rows.
QUICK = (
    "objective, curves, centred",
    "bolton, multinomial, fresh, tail",
    "dpsgd, huber, three classes",
    "noiseless, objective, robust",
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow][name in QUICK :]) for name in EVERYWHERE])
def test_weights_have_the_recorded_bits_in_spark(engine: SparkEngine, name: str) -> None:
    check(name, weights_of(CASES[name], engine))
