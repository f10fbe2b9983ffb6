"""Convert columns of Python objects to Arrow, each cell by itself.

NumPy, pandas and Arrow infer one type from all values and raise an error for a mixture: one row would decide what the
others become. Here the result of a cell depends on that cell alone, and a cell that cannot be converted is missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set, Sized
from contextlib import suppress
from datetime import date, datetime, timezone
from decimal import Decimal
from numbers import Integral, Rational, Real
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp._array_types import Doubles
from boltdp.encoding.declared_values import parse_number
from boltdp.errors import DataError

_NUMBERS = (float, int, np.bool_, Real, Decimal)
#: Zeros that are printed at the end of an id.
MAX_ZEROS = 1000
#: The types of cells in a column of texts, missing ones included, and the name of the type of pandas' NA.
_TEXT_TYPES, _NA = (str, float, type(None)), "NAType"


def to_float(cell: Any) -> float:
    """Convert a number or a numeric text to a float, anything else to NaN."""
    # DuckDB, which reads CSV files, does not parse digits and blanks of other scripts either.
    if not isinstance(cell, (*_NUMBERS, str)) or (isinstance(cell, str) and not cell.isascii()):
        return math.nan
    with suppress(Exception):  # third-party types may raise anything
        return float(cell)
    return math.nan


def to_text(cell: Any) -> str | None:
    """Convert a text, a number or a boolean to a text as in `declared_values.list_texts`, anything else to None."""
    with suppress(Exception):  # third-party types may raise anything
        if isinstance(cell, str):
            cell.encode()  # half of a surrogate pair is no text that a column could hold
            return str.__str__(cell)  # of an enumeration its value, which equals it, and not its name
        if isinstance(cell, (bool, np.bool_)):
            return "true" if cell else "false"
        if isinstance(cell, Integral):
            return str(int(cell))
        if isinstance(cell, _NUMBERS) and math.isfinite(cell):
            # The shortest digits of its own type, so that the float32 nearest to 0.1 becomes "0.1".
            return str(cell) if isinstance(cell, (np.float16, np.float32)) else repr(float(cell))
    return None


def to_person_key(cell: Any) -> str | None:
    """Convert the id of a person to a text that is the same for equal ids, whatever their types; anything else to None.

    The types of cells may differ by the chunk of a file that they were read from, so a text that spells a number is
    that number, by the rule of `declared_values.list_texts`, and bytes are the text that they encode.
    """
    with suppress(Exception):  # third-party types may raise anything
        if isinstance(cell, bytes):
            try:
                cell = cell.decode()
            except UnicodeDecodeError:
                return bytes.hex(cell)
        if isinstance(cell, str):
            number = parse_number(cell)
            return to_text(cell) if number is None else _print_number(number)
        if isinstance(cell, (*_NUMBERS, Decimal)):
            return _print_number(cell)
        if isinstance(cell, datetime) and cell.tzinfo is not None:
            cell = cell.astimezone(timezone.utc)
        if isinstance(cell, (date, UUID)) and cell == cell:  # unlike pandas' NaT
            return str(cell)
    return None


def _print_number(number: Any) -> str | None:
    """Print whole numbers exactly, and others as the nearest double: numbers that are equal are printed alike."""
    if not isinstance(number, Decimal):
        whole = isinstance(number, (np.bool_, Integral)) or (isinstance(number, Rational) and number.denominator == 1)
        number = Decimal(int(number) if whole else float(number))
    if not number.is_finite():
        return None
    sign, digits, exponent = number.as_tuple()
    printed = "".join(map(str, digits)).lstrip("0")
    kept = printed.rstrip("0")
    zeros = exponent + len(printed) - len(kept)
    if kept and zeros < 0:
        return repr(float(number))
    # A decimal may have an exponent of 18 digits.
    return f"{'-' * sign}{kept}{'0' * zeros if zeros < MAX_ZEROS else f'e{zeros}'}" if kept else "0"


def to_identifier(cell: Any) -> str | None:
    """Convert a cell to a text, different cells to different texts: also decimals, dates, UUIDs and bytes."""
    try:
        if isinstance(cell, Decimal):
            return str(cell) if cell.is_finite() else None
        if isinstance(cell, bytes):
            return cell.hex()
        if isinstance(cell, (date, UUID)):
            return str(cell)
    except Exception:  # third-party types may raise anything
        return None
    return to_text(cell)


def to_timestamp_text(cell: Any) -> str | None:
    """Convert a timestamp or a date to ISO 8601, in UTC if it has a zone; keep a text; anything else becomes None."""
    if isinstance(cell, str):
        return to_text(cell)
    with suppress(Exception):  # third-party types may raise anything
        if isinstance(cell, np.datetime64):
            dated = np.datetime_data(cell.dtype)[0] in ("Y", "M", "W", "D")
            cell = cell.item() if dated else cell.astype("M8[us]").item()
        if isinstance(cell, datetime):
            plain = cell if cell.tzinfo is None else cell.astimezone(timezone.utc).replace(tzinfo=None)
            return plain.isoformat(" ")
        return cell.isoformat() if isinstance(cell, date) else None
    return None


def to_float_list(cell: Any) -> list[float] | Doubles | None:
    """Convert a list to numbers, with NaN for elements that are not numbers, anything else to None."""
    if isinstance(cell, np.ndarray):
        if cell.ndim != 1:
            return None
        if cell.dtype.kind in "fiub":
            return _cast_to_doubles(cell)
    elif isinstance(cell, (str, bytes, dict, Set)) or not (isinstance(cell, Iterable) and isinstance(cell, Sized)):
        return None
    with suppress(Exception):  # third-party types may raise anything
        return [to_float(element) for element in cell]
    return None


def to_arrow_column(cells: Any, kind: str | None) -> pa.Array:
    """Convert Python cells to an Arrow column of a kind: "number", "list", "timestamp", or texts for any other.

    The kind "kept" is for identifiers, and "person" for comparing those of persons. Cells may be a list, an array of
    objects, or an array of pandas.
    """
    if hasattr(cells, "categories"):
        return _convert_categories(cells, kind)
    storage = getattr(getattr(cells, "dtype", None), "storage", None)  # of pandas' column of strings
    if storage is not None and storage.startswith("pyarrow"):
        texts = pa.chunked_array(cells.__arrow_array__()).combine_chunks()
    else:
        cells = np.asarray(cells, object) if storage is not None else cells
        cells = cells if isinstance(cells, np.ndarray) else list(cells)
        texts = None if kind == "list" else _convert_texts(cells)
    if texts is None or kind == "list":
        return _convert_each_cell(cells, kind)
    if kind == "person":
        return to_person_keys(texts.cast(pa.string()))
    return parse_numbers(texts) if kind == "number" else texts.cast(pa.string())


def to_person_keys(texts: pa.Array) -> pa.Array:
    """Convert the ids of persons by `to_person_key`, each distinct text once."""
    found = texts.dictionary_encode()
    return _convert_each_cell(found.dictionary.to_pylist(), "person").take(found.indices)


def parse_numbers(texts: pa.Array) -> pa.Array:
    """Convert texts to numbers; each distinct text is parsed once."""
    if not pa.types.is_dictionary(texts.type):
        texts = texts.cast(pa.string()).dictionary_encode()
    if len(texts.dictionary) > len(texts):
        return _convert_each_cell(texts.to_pylist(), "number")
    return _convert_each_cell(texts.dictionary.to_pylist(), "number").take(texts.indices)


def _convert_categories(cells: Any, kind: str | None) -> pa.Array:
    """Convert a categorical column of pandas; each category is converted once, and texts stay a dictionary."""
    texts = kind not in ("number", "list")
    if len(cells.categories) > len(cells):
        found = _convert_each_cell(cells, kind)
        return found.dictionary_encode() if texts else found
    found, codes = _convert_each_cell(cells.categories, kind), pa.array(cells.codes, pa.int32(), mask=cells.codes < 0)
    return pa.DictionaryArray.from_arrays(codes, found) if texts else found.take(codes)


def _convert_texts(cells: Sequence[Any] | npt.NDArray[np.object_]) -> pa.Array | None:
    """Convert cells that are all texts or missing; None if Arrow could convert one differently from `to_text`."""
    kinds = set(map(type, cells))
    if str not in kinds or any(kind not in _TEXT_TYPES and kind.__name__ != _NA for kind in kinds):
        return None
    with suppress(pa.ArrowException, UnicodeError):  # a number, or half of a surrogate pair
        return pa.array(cells, pa.string(), from_pandas=True)
    return None


def _convert_each_cell(cells: Iterable[Any], kind: str | None) -> pa.Array:
    if kind == "number":
        return pa.array(np.fromiter(map(to_float, cells), np.float64), from_pandas=True)
    if kind == "list":
        return pa.array(list(map(to_float_list, cells)), pa.list_(pa.float64()))
    convert = {"timestamp": to_timestamp_text, "kept": to_identifier, "person": to_person_key}.get(kind or "", to_text)
    return pa.array(list(map(convert, cells)), pa.string())


def to_object_array(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    """Convert a list to a NumPy array of objects, even if its elements are lists."""
    return np.fromiter(values, np.dtype(object), len(values))


def is_list_of_rows(X: Any) -> bool:
    """Return whether X is a list of rows, which may differ in length, and not an array of a fixed width."""
    if hasattr(X, "__array__") or hasattr(X, "shape"):
        return getattr(X, "ndim", None) == 1 and np.asarray(X).dtype == object
    listed = isinstance(X, Iterable) and isinstance(X, Sized)
    return listed and not isinstance(X, (str, bytes, dict, Set))


def to_matrix(X: Any, *, width: int | None = None) -> npt.NDArray[Any]:
    """Return a matrix of rows by features: an array of numbers unchanged, objects and lists of rows as floats.

    Rows of a list that have another length than `width` are missing. Its default is the most frequent length, which
    is no public number: one row can change it.
    """
    if is_list_of_rows(X):
        return _stack_rows([to_float_list(row) for row in X], width)
    values: npt.NDArray[Any] = np.asarray(X)
    if values.dtype == object:
        return np.fromiter(map(to_float, values.flat), np.float64, values.size).reshape(values.shape)
    return values if values.dtype.kind != "f" or values.dtype in (np.float32, np.float64) else _cast_to_doubles(values)


def _stack_rows(rows: Sequence[list[float] | Doubles | None], width: int | None) -> Doubles:
    """Stack rows to a matrix of `width` columns; rows of another length become NaN."""
    if width is None:
        counts = Counter(None if row is None else len(row) for row in rows)
        width = max(counts, key=lambda length: (counts[length], length or 0), default=None)
    if width is None:
        raise DataError(
            f"X must be a 2D array, rows by features, got a list of shape ({len(rows)},). Reshape your data"
        )
    stacked = np.full((len(rows), width), np.nan)
    for target, row in zip(stacked, rows, strict=True):
        if row is not None and len(row) == width:
            target[:] = row
    return stacked


def _cast_to_doubles(values: npt.NDArray[Any]) -> Doubles:
    # Too large values become infinite, and a warning would reveal that there is one.
    with np.errstate(over="ignore"):
        return values.astype(np.float64)
