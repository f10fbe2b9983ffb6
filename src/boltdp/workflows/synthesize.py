"""The synthesizer: classification data of any size, streamed to Parquet, or a table of DuckDB or PostgreSQL.

Two classes are Gaussian clouds around +w and -w for a random direction w, more than two around random directions of
their own; rows are then shortened into the unit ball. Row i depends on the seed and on i alone, so the first rows of a
large dataset are a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from boltdp._arrays import PackedRows
from boltdp.engines.registry import find_engine
from boltdp.errors import DataError, ParameterError
from boltdp.schema.schema import Classes, Numeric, Schema

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows drawn from one seed: fixed, since it decides what the rows are.
BLOCK_ROWS = 8192
#: Norm of a row around its centre, small enough for few rows to leave the unit ball.
SPREAD = 0.7
TABLE = "rows"


def synthetic_schema(*, dims: int, classes: int = 2) -> Schema:
    """The schema of what the synthesizer writes.

    >>> synthetic_schema(dims=2).feature_names
    ('f0', 'f1')
    """
    columns = tuple(Numeric(f"f{i}", -1.0, 1.0) for i in range(dims))
    return Schema(Classes("label", tuple(range(classes))), columns, intercept=False, clip_norm=1.0)


def synthetic_blocks(
    *, rows: int, dims: int, classes: int = 2, separation: float = 1.5, seed: int = 0
) -> Iterator[tuple[PackedRows, npt.NDArray[np.int32]]]:
    """Features and labels, a block at a time.

    `separation` is the distance of each class's centre from the middle in standard deviations of a feature: with two
    classes, the best classifier is right on Phi(separation) of the rows, 93 % at 1.5.

    >>> [x.shape for x, y in synthetic_blocks(rows=10_000, dims=3)]
    [(8192, 3), (1808, 3)]
    """
    for name, value, least in (("rows", rows, 1), ("dims", dims, 1), ("classes", classes, 2), ("seed", seed, 0)):
        if value < least:
            raise ParameterError(f"{name} must be >= {least}, got {value}")
    if not 0 <= separation < np.inf:
        raise ParameterError(f"separation must be a finite number >= 0, got {separation}")
    return _draw(rows=rows, dims=dims, classes=classes, separation=separation, seed=seed)


def _draw(
    *, rows: int, dims: int, classes: int, separation: float, seed: int
) -> Iterator[tuple[PackedRows, npt.NDArray[np.int32]]]:
    centres = np.random.default_rng([seed]).standard_normal((1 if classes == 2 else classes, dims))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    if classes == 2:
        centres = np.concatenate([-centres, centres])
    centres = (separation * centres).astype(np.float32)
    for block in range(-(-rows // BLOCK_ROWS)):
        generator = np.random.default_rng([seed, 1 + block])
        labels = generator.integers(classes, size=BLOCK_ROWS, dtype=np.int32)
        features = generator.standard_normal((BLOCK_ROWS, dims), dtype=np.float32)
        features += centres[labels]
        features *= np.float32(SPREAD / np.sqrt(dims))
        norms = np.sqrt(np.einsum("ij,ij->i", features, features, dtype=np.float64))
        features /= np.maximum(norms, 1.0)[:, None].astype(np.float32)
        count = min(BLOCK_ROWS, rows - block * BLOCK_ROWS)
        yield features[:count], labels[:count]


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
    """Write a Parquet file, a table of a new DuckDB file or of a database, and return the fitting schema.

    `progress` is called with the number of rows done so far.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     synthesize(f"{folder}/small.parquet", rows=100, dims=5).dims
    5
    """
    drawn = synthetic_blocks(rows=rows, dims=dims, classes=classes, separation=separation, seed=seed)
    engine = find_engine(output)
    if engine.writes_tables:
        engine.write_table(str(output), table, drawn, dims=dims, progress=progress)
        return synthetic_schema(dims=dims, classes=classes)
    import duckdb  # only here and below: the rows themselves need neither of these
    import pyarrow as pa

    path = Path(output)
    if path.suffix not in (".parquet", ".duckdb"):
        raise ParameterError(f"the file must end in .parquet or .duckdb, got {path.name!r}")
    columns = [pa.field(f"f{i}", pa.float32()) for i in range(dims)] + [pa.field("label", pa.int32())]
    arrow_schema = pa.schema(columns)

    def batches() -> Iterator[pa.RecordBatch]:
        done = 0
        for features, labels in drawn:
            arrays = [*np.ascontiguousarray(features.T), labels]
            yield pa.RecordBatch.from_arrays([pa.array(array) for array in arrays], schema=arrow_schema)
            done += len(labels)
            if progress is not None:
                progress(done)

    try:
        if path.suffix == ".parquet":
            _write_parquet(path, batches(), arrow_schema)
        else:
            _write_duckdb(path, table, pa.RecordBatchReader.from_batches(arrow_schema, batches()))
    except (OSError, duckdb.Error):
        raise DataError(f"the file {str(path)!r} cannot be written: is there space, and permission?") from None
    return synthetic_schema(dims=dims, classes=classes)


def _write_parquet(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Random floats do not compress, and a dictionary of them is larger than they are.
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        group: list[pa.RecordBatch] = []
        for batch in batches:
            group.append(batch)
            if len(group) == 8:
                writer.write_table(pa.Table.from_batches(group))
                group = []
        if group:
            writer.write_table(pa.Table.from_batches(group))


def _write_duckdb(path: Path, table: str, reader: pa.RecordBatchReader) -> None:
    import duckdb

    if path.exists():
        raise ParameterError(f"the DuckDB file must not exist yet, got {str(path)!r}")
    with duckdb.connect(str(path)) as connection:
        connection.register("drawn", reader)
        name = '"' + table.replace('"', '""') + '"'
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM drawn")
