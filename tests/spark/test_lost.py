"""Blocks that Spark has lost, and a source that has fewer rows by then: an error, never a row that is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from boltdp.engines.spark import SparkEngine
from boltdp.engines.spark.executor_tasks import BLOCKS, CHANGED
from boltdp.engines.spark.prepared_rows import StoredBlocks
from boltdp.engines.spark.session import Session, silence_pyspark
from boltdp.errors import DataError
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema

ROWS = 1000
SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 1000),))


@pytest.fixture
def fewer() -> Any:
    """A source of five partitions, the last of which have no rows from the moment at which blocks are lost."""

    def change(path: Path, stored: StoredBlocks) -> None:
        path.write_text("gone")
        stored.frame.unpersist(blocking=True)

    return change


def source(spark: Any, gone: Path) -> Any:
    def made(batches: Any) -> Any:
        for batch in batches:
            places = batch.column(0).to_numpy()
            if gone.exists():
                places = places[places < 600]
            yield pa.RecordBatch.from_pydict({"age": places.astype(float), "sick": places % 2})

    with silence_pyspark():
        return spark.range(0, ROWS, 1, 5).mapInArrow(made, "age double, sick long")


def test_a_slice_of_fewer_rows_is_an_error(
    spark: Any, tmp_path: Path, fewer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, made = tmp_path / "gone", StoredBlocks._collect_block_infos

    def then_lost(self: StoredBlocks) -> Any:
        places = made(self)
        if not gone.exists():
            fewer(gone, self)
        return places

    monkeypatch.setattr(StoredBlocks, "_collect_block_infos", then_lost)
    part = SparkEngine(source(spark, gone)).slice(100, 900)
    with pytest.raises(DataError, match=f"^{CHANGED}$"), part.prepare(SCHEMA, Context(seed=1), permuted=False):
        pass


def test_what_went_wrong_first_is_told(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where blocks cannot be dropped after that."""
    monkeypatch.setattr(StoredBlocks, "_collect_block_infos", lambda self: self.session.ask(lambda: 1 / 0, "first"))
    monkeypatch.setattr(StoredBlocks, "drop", lambda self: self.session.ask(lambda: 1 / 0, "second"))
    with pytest.raises(DataError, match=r"^first$"):
        StoredBlocks(Session(spark), spark.createDataFrame([], BLOCKS), width=1)
