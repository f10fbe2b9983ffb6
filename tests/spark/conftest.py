"""What tests of Spark share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from boltdp.engines.spark import block_cache
from boltdp.engines.spark.session import silence_pyspark


@pytest.fixture
def directory(spark: Any) -> Path:
    """Of the executor that the tests have."""

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"where": [block_cache.find_local_directory()]})

    with silence_pyspark():
        return Path(spark.range(0, 1, 1, 1).mapInArrow(where, "where string").collect()[0]["where"])
