"""Rows in memory: NumPy arrays, data frames of pandas and others, Arrow tables, sparse matrices of SciPy.

Rows are sliced without a copy, encoded in batches, and prepared in memory. Those of a sparse matrix that is one vector
column stay sparse, for sums and scores; for anything else they become dense, and go to a file if they are too large.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp._array_types import PackedRows
from boltdp.encoding import python_to_arrow
from boltdp.encoding.encode import Encoder
from boltdp.encoding.plan import EncodingPlan, NumberListRule
from boltdp.engines._frame_types import is_lazy_frame, is_sparse, is_table
from boltdp.engines.base import Engine, Kinds, RecordBatches, check_names
from boltdp.errors import DataError, quote_names
from boltdp.kernel.sparse_rows import SparseRows
from boltdp.run_context import Context
from boltdp.schema.schema import Schema, Vector
from boltdp.schema.source_columns import BATCH_CELLS, BATCH_ROWS, ColumnType, choose_batch_rows

#: The cells of a column: an Arrow array, an array of objects, a sparse column, or None for a type unknown to Arrow.
Cells: TypeAlias = Any


class ArrayEngine(Engine):
    """The engine of rows in memory: a dictionary of columns.

    Lists, arrays of objects, and columns of objects or strings in a data frame are untyped, like those of a CSV file:
    each cell is converted to the declared type, or is missing. Strings of Arrow and Polars are parsed as numbers too.
    """

    def __init__(self, columns: Mapping[str, Cells], *, rows: int) -> None:
        """Use `from_numpy`, `from_arrow` or `from_pandas`; None stands for a column whose type Arrow lacks."""
        self._columns = columns
        self._rows = rows
        if not any(isinstance(column, _SPARSE) for column in columns.values()):
            self.memory_bytes = sys.maxsize

    @classmethod
    def from_numpy(
        cls, X: npt.ArrayLike, y: npt.ArrayLike | None = None, *, name: str = "x", label: str = "label"
    ) -> ArrayEngine:
        """Make one vector column of the features, for `make_array_schema`, and a label column; floats are not copied.

        A list of rows is a column of lists whose length the schema declares: no row decides it.
        """
        if python_to_arrow.is_list_of_rows(X) and len(X):  # type: ignore[arg-type]
            rows = cls({name: python_to_arrow.to_arrow_column(X, "list")}, rows=len(X))  # type: ignore[arg-type]
            return rows if y is None else rows.with_column(label, y)
        features = python_to_arrow.to_matrix(X)
        if features.ndim != 2 or 0 in features.shape or features.dtype.kind not in "fiub":
            raise DataError(
                f"X must be an array of numbers, rows by features and not empty, got one of shape {features.shape} "
                f"and type {features.dtype}"
            )
        if features.dtype not in (np.float32, np.float64):
            features = features.astype(np.float64)
        flat = pa.array(np.ascontiguousarray(features).reshape(-1))
        columns: dict[str, Cells] = {name: pa.FixedSizeListArray.from_arrays(flat, features.shape[1])}
        if y is not None:
            columns[label] = _make_column(
                y, f"y must have one label for each of the {len(features)} rows", len(features)
            )
        return cls(columns, rows=len(features))

    @classmethod
    def from_pair(cls, X: Any, y: Any) -> ArrayEngine:
        """Join features and labels: a data frame has columns by name, an array (or sparse one) one vector column "x".

        The label column has the name of `y`, if that is a pandas series with a name, else "label".
        """
        name = getattr(y, "name", None)
        label = name if isinstance(name, str) and name else "label"
        if hasattr(type(X), "iloc") and hasattr(type(X), "columns"):
            return cls.from_pandas(X).with_column(label, y)
        if is_table(X):
            return cls.from_arrow(X).with_column(label, y)
        if is_sparse(X):
            return cls.from_sparse(X).with_column(label, y)
        return cls.from_numpy(X, y, label=label)

    @classmethod
    def from_sparse(cls, X: Any, *, names: Sequence[str] | str = "x") -> ArrayEngine:
        """Wrap a sparse matrix or array of SciPy as one vector column, or as one numeric column per name.

        The rows of one vector column can stay sparse; else they are converted to dense ones, in batches.
        """
        if len(X.shape) != 2 or 0 in X.shape or X.dtype not in (np.float32, np.float64):
            raise DataError(
                f"X must be a sparse array of floats, rows by features and not empty, got one of shape {X.shape} and "
                f"type {X.dtype}"
            )
        if isinstance(names, str):
            return cls({names: _SparseVectors(_sort_places(X.tocsr()))}, rows=X.shape[0])
        by_column = X.tocsc(copy=True)
        by_column.sum_duplicates()  # which also sorts the indices
        columns = {name: _SparseNumbers(by_column, place) for place, name in enumerate(names)}
        return cls(columns, rows=X.shape[0])

    @classmethod
    def from_arrow(cls, table: Any) -> ArrayEngine:
        """Wrap an Arrow table or record batch, or any object with Arrow's stream interface, such as those of Polars."""
        table = to_arrow_table(table)
        check_names(table.column_names)
        return cls(dict(zip(table.column_names, table.columns, strict=True)), rows=table.num_rows)

    @classmethod
    def from_pandas(cls, frame: Any) -> ArrayEngine:
        """Wrap a pandas data frame; its index is ignored."""
        names = [str(name) for name in frame.columns]
        check_names(names)
        columns = {name: _to_cells(frame.iloc[:, i]) for i, name in enumerate(names)}
        return cls(columns, rows=len(frame))

    def with_column(self, name: str, values: npt.ArrayLike) -> ArrayEngine:
        added = _make_column(values, f"{name!r} must have one value for each of the {self._rows} rows", self._rows)
        return ArrayEngine({**self._columns, name: added}, rows=self._rows)

    def count(self) -> int:
        return self._rows

    def columns(self) -> dict[str, ColumnType]:
        return {name: _find_column_type(column) for name, column in self._columns.items()}

    def batches_with_persons(self, columns: Sequence[str], person_id: str, *, parse: Kinds = None) -> RecordBatches:
        return self.batches(columns, [person_id], parse=parse, kept_as="person")

    def encode_sparse_rows(self, schema: Schema, context: Context, *, label: bool = True) -> SparseRows | None:
        plan, column = schema.encoding, self._columns[schema.columns[0].source]
        feature_map, (rule, *others) = plan.feature_map, plan.rules
        if not isinstance(column, _SparseVectors) or not isinstance(rule, NumberListRule) or others or schema.person_id:
            return None
        # The cell of a 0 is 0 between bounds of the same size.
        if feature_map is None or not feature_map.keeps_zeros or rule.low != -rule.high:
            return None
        labels, target = np.full((self._rows, 1), np.nan, np.float32), schema.target.label_column
        if label:
            encoder = Encoder(replace(plan, rules=()), on_bad_row=context.on_bad_row)
            parse = {} if target.parsed_as is None else {target.source: target.parsed_as}
            encoded = [encoder.encode(batch) for batch in self.batches([target.source], parse=parse)]
            labels = np.concatenate(encoded)
        return column.encode(labels[:, 0].copy(), replace(plan, rules=(replace(rule, length=1),)), context)

    def batches(
        self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Kinds = None, kept_as: str = "kept"
    ) -> RecordBatches:
        kinds = [*((parse or {}).get(name) for name in columns), *(kept_as for _ in keep)]
        columns = [*columns, *keep]
        chosen = [self._columns[name] for name in columns]
        # Null columns stand in for untyped and sparse ones while Arrow slices the rows.
        typed = [column if _is_arrow_column(column) else pa.nulls(self._rows) for column in chosen]
        start = 0
        width = sum(column.width if isinstance(column, _SPARSE) else 1 for column in chosen)
        rows = choose_batch_rows(width, lists=any(pa.types.is_nested(column.type) for column in typed))
        for batch in pa.table(typed, list(columns)).to_batches(max_chunksize=rows):
            stop = start + batch.num_rows
            parts = [
                (python_to_arrow.parse_numbers(part) if kind == "number" and _find_column_type(column).parsed else part)
                if _is_arrow_column(column)
                else column.to_dense(start, stop)
                if isinstance(column, _SPARSE)
                else python_to_arrow.to_arrow_column(column[start:stop], kind)
                for kind, column, part in zip(kinds, chosen, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays([*map(_cast_string_view, parts)], list(columns))
            start = stop


def to_arrow_table(data: Any) -> pa.Table:
    """Convert an object for which `is_table` holds to an Arrow table in memory."""
    kind = type(data).__name__
    with suppress(Exception):  # messages of other libraries may quote values
        return pa.table(data.collect() if is_lazy_frame(data) else data)
    raise DataError(f"the data must offer a table to Arrow, and that of an object of type {kind!r} failed")


def _sort_places(matrix: Any) -> Any:
    """Return a CSR matrix whose rows have each place once, in ascending order; raise a DataError for a corrupt one."""
    with suppress(ValueError):  # the message may quote an index
        matrix.check_format()
        if matrix.has_canonical_format:
            return matrix
        matrix = matrix.copy()
        matrix.sum_duplicates()
        return matrix
    raise DataError("X must be a sparse array whose indices are those of its rows and columns")


class _SparseVectors:
    """All columns of a CSR matrix, as one vector column."""

    def __init__(self, matrix: Any) -> None:
        self._matrix, self.width = matrix, matrix.shape[1]  #: numbers per row
        self.type = pa.list_(pa.from_numpy_dtype(matrix.dtype), self.width)

    def to_dense(self, start: int, stop: int) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(self._matrix[start:stop].toarray().reshape(-1)), self.width)

    def encode(self, labels: PackedRows, plan: EncodingPlan, context: Context) -> SparseRows:
        """Encode the numbers that are stored by a plan of vectors of one number, as sparse rows with these labels."""
        matrix, encoder = self._matrix, Encoder(plan, on_bad_row=context.on_bad_row)
        (rule,) = plan.rules
        cells = np.empty(len(matrix.data), np.float32)
        for at in range(0, len(cells), BATCH_CELLS):
            numbers = pa.FixedSizeListArray.from_arrays(pa.array(matrix.data[at : at + BATCH_CELLS]), 1)
            batch = pa.RecordBatch.from_arrays([numbers], [rule.source])
            cells[at : at + BATCH_CELLS] = encoder.encode(batch)[:, 1]
        starts, places = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32, copy=False)
        return SparseRows(labels, starts, places, cells, width=1 + self.width)


class _SparseNumbers:
    """One column of a CSC matrix."""

    width = 1

    def __init__(self, matrix: Any, place: int) -> None:
        of = slice(*matrix.indptr[place : place + 2])
        self._rows, self._numbers = matrix.indices[of], matrix.data[of]
        self.type = pa.from_numpy_dtype(matrix.dtype)

    def to_dense(self, start: int, stop: int) -> pa.Array:
        of = slice(*np.searchsorted(self._rows, (start, stop)))
        numbers = np.zeros(stop - start, self._numbers.dtype)
        numbers[self._rows[of] - start] = self._numbers[of]
        return pa.array(numbers)


_SPARSE = (_SparseVectors, _SparseNumbers)


def count_array_columns(schema: Schema) -> int:
    """Return the number of columns that an array must have for a schema: those of its vector, or one per column."""
    only = schema.columns[0]
    return only.length if len(schema.columns) == 1 and isinstance(only, Vector) else len(schema.columns)


def wrap_rows(schema: Schema, X: Any) -> ArrayEngine:
    """Wrap X as an engine with the columns of a schema: those of a data frame by name, of an array by position."""
    sparse = is_sparse(X)
    if isinstance(X, pa.Table):
        return ArrayEngine.from_arrow(X)
    if not isinstance(X, np.ndarray) and not sparse:
        return ArrayEngine.from_pandas(X)
    names = [column.name for column in schema.columns]
    one_vector = len(names) == 1 and schema.columns[0].encoding_rule.reads_lists
    plain = all(column.encoding_rule.number_count and not column.encoding_rule.reads_lists for column in schema.columns)
    if not one_vector and (X.ndim != 2 or len(names) != X.shape[1] or not plain):
        raise DataError(
            "X must be a data frame that has the columns which the schema declares",
            hint=f"they are {quote_names(names)}",
        )
    if sparse:
        return ArrayEngine.from_sparse(X, names=names[0] if one_vector else names)
    if one_vector:
        return ArrayEngine.from_numpy(X, name=names[0])
    # Transposed in blocks that fit in the processor's cache.
    blocks = (np.ascontiguousarray(X[start : start + BATCH_ROWS].T) for start in range(0, len(X), BATCH_ROWS))
    return ArrayEngine.from_arrow(
        pa.Table.from_batches([pa.record_batch([pa.array(column) for column in block], names) for block in blocks])
    )


def _make_column(values: Any, requirement: str, rows: int) -> Cells:
    array = python_to_arrow.to_object_array(values) if isinstance(values, (list, tuple)) else np.asarray(values)
    if array.shape != (rows,):
        raise DataError(f"{requirement}, got an array of shape {array.shape}")
    return _to_cells(array)


def _to_cells(values: Any) -> Cells:
    """Convert an array or a pandas column to Arrow, except arrays of objects."""
    if values.dtype.kind == "O":
        # A pandas series would be sliced by its index, its array is sliced by position.
        return np.asarray(values) if values.dtype == object else values.array
    with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):  # the message would quote a value
        return pa.array(values, from_pandas=True)
    return None


def _find_column_type(column: Cells) -> ColumnType:
    if column is None:
        return ColumnType("other")
    if not _is_arrow_column(column) and not isinstance(column, _SPARSE):
        return ColumnType("untyped")
    known = ColumnType.from_arrow(column.type)
    return replace(known, parsed=True) if known.kind == "text" else known


def _cast_string_view(part: pa.Array) -> pa.Array:
    """Cast string views, as in Polars, to a type that all functions of Arrow support."""
    return part.cast(pa.large_string()) if pa.types.is_string_view(part.type) else part


def _is_arrow_column(column: Cells) -> bool:
    return isinstance(column, (pa.Array, pa.ChunkedArray))
