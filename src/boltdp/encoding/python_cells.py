"""Python objects as columns, each cell by itself.

NumPy, pandas and Arrow infer one type from all the values they are given, and raise on a mixture: one row would
then decide what the others become, or whether there is an error at all. Here a cell's result depends on that cell
alone, and what it should be and is not is missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set, Sized
from datetime import date, datetime, timezone
from decimal import Decimal
from numbers import Integral, Real
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp._arrays import Doubles
from boltdp.errors import DataError

_NUMBERS = (float, int, np.bool_, Real, Decimal)
#: What cells of a column of texts are: also where they are missing, but for pandas' NA, which has a type of that name.
_TEXTS, _NA = (str, float, type(None)), "NAType"


def number(cell: Any) -> float:
    """A cell as a float: a number, or a text that writes one, else NaN.

    >>> [number(cell) for cell in (1, True, "2.5", "old", None, [1])]
    [1.0, 1.0, 2.5, nan, nan, nan]
    """
    # Digits and blanks of other scripts are none to DuckDB either, which reads CSV files.
    if not isinstance(cell, (*_NUMBERS, str)) or (isinstance(cell, str) and not cell.isascii()):
        return math.nan
    try:
        return float(cell)
    except Exception:  # whatever a type of somebody else's raises
        return math.nan


def text(cell: Any) -> str | None:
    """A cell as `boltdp.encoding.declared_values.list_texts` writes it: a text, a number or a boolean, else None.

    >>> [text(cell) for cell in ("F", 1, 1.0, True, float("nan"), [1])]
    ['F', '1', '1.0', 'true', None, None]
    """
    try:
        if isinstance(cell, str):
            cell.encode()  # half of a surrogate pair is no text that a column could hold
            return str(cell)
        if isinstance(cell, (bool, np.bool_)):
            return "true" if cell else "false"
        if isinstance(cell, Integral):
            return str(int(cell))
        if isinstance(cell, _NUMBERS) and math.isfinite(cell):
            # The shortest digits of its own type, so that the float32 nearest to 0.1 is written so.
            return str(cell) if isinstance(cell, (np.float16, np.float32)) else repr(float(cell))
    except Exception:  # whatever a type of somebody else's raises
        return None
    return None


def printed(cell: Any) -> str | None:
    """A cell as it prints, so that different ones differ: what `text` makes of it, or a decimal, a date, an id.

    >>> [printed(cell) for cell in ("F", 7, Decimal("0.10"), UUID(int=7), date(2024, 2, 29), b"id")]
    ['F', '7', '0.10', '00000000-0000-0000-0000-000000000007', '2024-02-29', '6964']
    """
    try:
        if isinstance(cell, Decimal):
            return str(cell) if cell.is_finite() else None
        if isinstance(cell, bytes):
            return cell.hex()
        if isinstance(cell, (date, UUID)):
            return str(cell)
    except Exception:  # whatever a type of somebody else's raises
        return None
    return text(cell)


def moment(cell: Any) -> str | None:
    """A timestamp or a date as its text in ISO 8601, in UTC if it has a zone; a text as it is, else None.

    >>> from datetime import date, datetime, timedelta, timezone
    >>> east = datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    >>> moment(east), moment(date(2026, 1, 1)), moment(np.datetime64("2026-01-01T07")), moment(7)
    ('2025-12-31 23:30:00', '2026-01-01', '2026-01-01 07:00:00', None)
    """
    if isinstance(cell, str):
        return text(cell)
    try:
        if isinstance(cell, np.datetime64):
            dated = np.datetime_data(cell.dtype)[0] in ("Y", "M", "W", "D")
            cell = cell.item() if dated else cell.astype("M8[us]").item()
        if isinstance(cell, datetime):
            plain = cell if cell.tzinfo is None else cell.astimezone(timezone.utc).replace(tzinfo=None)
            return plain.isoformat(" ")
        return cell.isoformat() if isinstance(cell, date) else None
    except Exception:  # whatever a type of somebody else's raises
        return None


def vector(cell: Any) -> list[float] | Doubles | None:
    """A cell that is a list of numbers, with NaN for those that are none, else None.

    >>> vector([1, "x"]), vector("x")
    ([1.0, nan], None)
    """
    if isinstance(cell, np.ndarray):
        if cell.ndim != 1:
            return None
        if cell.dtype.kind in "fiub":
            return _as_doubles(cell)
    elif isinstance(cell, (str, bytes, dict, Set)) or not (isinstance(cell, Iterable) and isinstance(cell, Sized)):
        return None
    try:
        return [number(element) for element in cell]
    except Exception:  # whatever a type of somebody else's raises
        return None


def column(cells: Any, kind: str | None) -> pa.Array:
    """Cells as an Arrow column of the declared kind: "number", "list", or texts, also those of timestamps.

    Those that are "kept" are texts as they print. They may be a list, an array of objects, or one of pandas' own.

    >>> column([1, "x", 2.5], "number").to_pylist()
    [1.0, None, 2.5]
    """
    if hasattr(cells, "categories"):
        return _categories(cells, kind)
    storage = getattr(getattr(cells, "dtype", None), "storage", None)  # of a column that pandas knows to be of texts
    if storage is not None and storage.startswith("pyarrow"):
        texts = pa.chunked_array(cells.__arrow_array__()).combine_chunks()
    else:
        cells = np.asarray(cells, object) if storage is not None else cells
        cells = cells if isinstance(cells, np.ndarray) else list(cells)
        texts = None if kind == "list" else _texts(cells)
    if texts is None or kind == "list":
        return _each(cells, kind)
    return numbers(texts) if kind == "number" else texts.cast(pa.string())


def numbers(texts: pa.Array) -> pa.Array:
    """Texts as numbers, each by itself; the same one is looked at once.

    >>> numbers(pa.array(["1.5", "x", None, "1.5"])).to_pylist()
    [1.5, None, None, 1.5]
    """
    if not pa.types.is_dictionary(texts.type):
        texts = texts.cast(pa.string()).dictionary_encode()
    if len(texts.dictionary) > len(texts):
        return _each(texts.to_pylist(), "number")
    return _each(texts.dictionary.to_pylist(), "number").take(texts.indices)


def _categories(cells: Any, kind: str | None) -> pa.Array:
    """A column of categories: each is looked at once, and not for every row that has it; texts stay a dictionary."""
    texts = kind not in ("number", "list")
    if len(cells.categories) > len(cells):
        found = _each(cells, kind)
        return found.dictionary_encode() if texts else found
    found, places = _each(cells.categories, kind), pa.array(cells.codes, pa.int32(), mask=cells.codes < 0)
    return pa.DictionaryArray.from_arrays(places, found) if texts else found.take(places)


def _texts(cells: Sequence[Any] | npt.NDArray[np.object_]) -> pa.Array | None:
    """Cells that are all texts or missing; None if Arrow could make something else of one than `text` does."""
    kinds = set(map(type, cells))
    if str not in kinds or any(kind not in _TEXTS and kind.__name__ != _NA for kind in kinds):
        return None
    try:
        return pa.array(cells, pa.string(), from_pandas=True)
    except (pa.ArrowException, UnicodeError):  # a number, or half of a surrogate pair
        return None


def _each(cells: Iterable[Any], kind: str | None) -> pa.Array:
    """Each cell by itself."""
    if kind == "number":
        return pa.array(np.fromiter(map(number, cells), np.float64), from_pandas=True)
    if kind == "list":
        return pa.array(list(map(vector, cells)), pa.list_(pa.float64()))
    of_kind = {"timestamp": moment, "kept": printed}
    return pa.array(list(map(of_kind.get(kind or "", text), cells)), pa.string())


def objects(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    """A list as an array whose elements are the list's, untouched.

    >>> objects([True, "x", [1, 2]]).shape
    (3,)
    """
    return np.fromiter(values, np.dtype(object), len(values))


def matrix(X: Any) -> npt.NDArray[Any]:
    """Rows by features: an array of numbers as it is, objects and lists of rows as floats.

    A list is as wide as most of its rows; a row of another length is missing.

    >>> matrix([[1, 2], [3, "x"], [4]])
    array([[ 1.,  2.],
           [ 3., nan],
           [nan, nan]])
    """
    values: npt.NDArray[Any] = objects(X) if isinstance(X, (list, tuple)) else np.asarray(X)
    if values.dtype == object and values.ndim == 1:
        return _stack(values)
    if values.dtype == object:
        return np.fromiter(map(number, values.flat), np.float64, values.size).reshape(values.shape)
    return values if values.dtype.kind != "f" or values.dtype in (np.float32, np.float64) else _as_doubles(values)


def _stack(rows: npt.NDArray[np.object_]) -> Doubles:
    vectors = [vector(row) for row in rows]
    counts = Counter(None if row is None else len(row) for row in vectors)
    width = max(counts, key=lambda length: (counts[length], length or 0), default=None)
    if width is None:
        raise DataError(
            f"X must be a 2D array, rows by features, got a list of shape ({len(rows)},). Reshape your data"
        )
    stacked = np.full((len(rows), width), np.nan)
    for place, row in zip(stacked, vectors, strict=True):
        if row is not None and len(row) == width:
            place[:] = row
    return stacked


def _as_doubles(values: npt.NDArray[Any]) -> Doubles:
    # What is too large becomes infinite, and a warning about it would tell that there is such a value.
    with np.errstate(over="ignore"):
        return values.astype(np.float64)
