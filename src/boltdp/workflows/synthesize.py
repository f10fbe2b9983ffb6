"""Synthetic classification data of any size, streamed to Parquet, or to a table of DuckDB or PostgreSQL.

Two classes are Gaussians around +w and -w for a random direction w; each of more classes has a random direction of its
own. Rows are then clipped to the unit ball. Row i depends on the seed and on i alone, so a smaller dataset is a prefix
of a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from boltdp._array_types import PackedRows
from boltdp.engines.registry import find_engine
from boltdp.errors import DataError, ParameterError, check_whole_number
from boltdp.schema.schema import Classes, Numeric, Schema

if TYPE_CHECKING:
    import pyarrow as pa

#: The number of rows drawn from one seed; changing it would change the rows.
BLOCK_ROWS = 8192
#: The norm of a row around its centre, small enough for few rows to be clipped.
SPREAD = 0.7
TABLE = "rows"


def make_synthetic_schema(*, dims: int, classes: int = 2) -> Schema:
    """Return the schema of synthetic data."""
    columns = tuple(Numeric(f"f{i}", -1.0, 1.0) for i in range(dims))
    return Schema(Classes("label", tuple(range(classes))), columns, intercept=False, clip_norm=1.0)


def draw_synthetic_blocks(
    *, rows: int, dims: int, classes: int = 2, separation: float = 1.5, seed: int = 0
) -> Iterator[tuple[PackedRows, npt.NDArray[np.int32]]]:
    """Yield synthetic rows in blocks: an array of features, and one of labels.

    `separation` is the distance of each class's centre from the middle in standard deviations of a feature: with two
    classes, the best classifier has an accuracy of Phi(separation), 93 % at 1.5.
    """
    for name, value, least in (("rows", rows, 1), ("dims", dims, 1), ("classes", classes, 2), ("seed", seed, 0)):
        check_whole_number(value, name, least=least)
    if not 0 <= separation < np.inf:
        raise ParameterError(f"separation must be a finite number >= 0, got {separation}")
    centres = np.random.default_rng([seed]).standard_normal((1 if classes == 2 else classes, dims))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    if classes == 2:
        centres = np.concatenate([-centres, centres])
    centres = (separation * centres).astype(np.float32)

    def draw_block(block: int) -> tuple[PackedRows, npt.NDArray[np.int32]]:
        generator = np.random.default_rng([seed, 1 + block])
        labels = generator.integers(classes, size=BLOCK_ROWS, dtype=np.int32)
        features = generator.standard_normal((BLOCK_ROWS, dims), dtype=np.float32)
        features += centres[labels]
        features *= np.float32(SPREAD / np.sqrt(dims))
        norms = np.sqrt(np.einsum("ij,ij->i", features, features, dtype=np.float64))
        features /= np.maximum(norms, 1.0)[:, None].astype(np.float32)
        count = min(BLOCK_ROWS, rows - block * BLOCK_ROWS)
        return features[:count], labels[:count]

    return map(draw_block, range(-(-rows // BLOCK_ROWS)))


def synthesize(
    output: str | Path,
    *,
    rows: int,
    dims: int,
    classes: int = 2,
    separation: float = 1.5,
    seed: int = 0,
    table: str = TABLE,
    progress: Callable[[int], None] | None = None,
) -> Schema:
    """Write synthetic rows to a Parquet file, a new DuckDB file or a table of a database, and return their schema.

    `progress` is called with the number of rows written so far.
    """
    drawn = draw_synthetic_blocks(rows=rows, dims=dims, classes=classes, separation=separation, seed=seed)
    schema, engine = make_synthetic_schema(dims=dims, classes=classes), find_engine(output)
    if engine.writes_tables:
        engine.write_table(str(output), table, drawn, dims=dims, progress=progress)
        return schema
    import duckdb  # only here and below: the rows themselves need neither of these
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(output)
    if path.suffix not in (".parquet", ".duckdb"):
        raise ParameterError(f"the file must end in .parquet or .duckdb, got {path.name!r}")
    columns = [pa.field(name, pa.float32()) for name in schema.sources]
    arrow_schema = pa.schema([*columns, pa.field(schema.label, pa.int32())])

    def make_batches() -> Iterator[pa.RecordBatch]:
        done = 0
        for features, labels in drawn:
            arrays = [*np.ascontiguousarray(features.T), labels]
            yield pa.RecordBatch.from_arrays([pa.array(array) for array in arrays], schema=arrow_schema)
            done += len(labels)
            if progress is not None:
                progress(done)

    try:
        if path.suffix == ".duckdb":
            if path.exists():
                raise ParameterError(f"the DuckDB file must not exist yet, got {str(path)!r}")
            with duckdb.connect(str(path)) as connection:
                connection.register("drawn", pa.RecordBatchReader.from_batches(arrow_schema, make_batches()))
                name = '"' + table.replace('"', '""') + '"'
                connection.execute(f"CREATE TABLE {name} AS SELECT * FROM drawn")
            return schema
        made = make_batches()
        # Random floats do not compress, and dictionary encoding would make them larger.
        with pq.ParquetWriter(path, arrow_schema, compression="none", use_dictionary=False) as writer:
            while group := list(islice(made, 8)):
                writer.write_table(pa.Table.from_batches(group))
    except (OSError, duckdb.Error):
        raise DataError(f"the file {str(path)!r} cannot be written: is there space, and permission?") from None
    return schema
