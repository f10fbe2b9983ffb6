"""Cells as numbers or as values to be counted, each by itself: no cell changes what another is counted as."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boltdp._arrays import Doubles
from boltdp.encoding import python_cells as single
from boltdp.encoding.arrow_buffers import values
from boltdp.encoding.arrow_cells import numbers_of
from boltdp.encoding.values import Value
from boltdp.schema.source_columns import ColumnType


def numbers_and_texts(cells: pa.Array, kind: str) -> tuple[Doubles, Counter[Value]]:
    """The numbers of a column, and what it has instead of them where it has no type; a row is in one at most.

    A list counts by its number that is farthest from 0.

    >>> numbers_and_texts(pa.array(["1.5", "x", None, " ", "x"]), "untyped")
    (array([1.5]), Counter({'x': 2}))
    >>> numbers_and_texts(pa.array([[1.0, -3.0], [], None, [2.0, float("nan")]]), "list")[0]
    array([-3.,  2.])
    """
    if pa.types.is_null(cells.type):
        return np.zeros(0), Counter()
    if kind == "list":
        return _farthest(cells), Counter()
    if kind != "untyped":
        found = numbers_of(cells).astype(np.float64)
        return found[np.isfinite(found)], Counter()
    texts: Counter[Value] = Counter()
    numbers, repeats = [], []
    for text, count in value_counts(cells).items():
        number = single.number(text)
        if np.isfinite(number):
            numbers.append(number)
            repeats.append(count)
        else:
            texts[text] = count
    return np.repeat(np.array(numbers, np.float64), repeats), texts


def value_counts(cells: pa.Array) -> Counter[Value]:
    """How often each value occurs that a schema can declare: texts that are not blank, finite numbers, booleans.

    >>> value_counts(pa.array([1.0, 2.5, 1.0, None]))
    Counter({1: 2, 2.5: 1})
    """
    counts: Counter[Value] = Counter()
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if ColumnType.of(cells.type).kind == "text":
        cells = cells.cast(pa.large_binary())  # some texts of Arrow cannot be decoded, and are none to declare
    for one in pc.value_counts(cells).to_pylist():
        value = _declarable(one["values"])
        if value is not None:
            counts[value] += one["counts"]
    return counts


def _declarable(value: Any) -> Value | None:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, str):
        return value if value.strip() else None
    if value is None or isinstance(value, bool):
        return value
    number = single.number(value)
    if not abs(number) < 2**63:
        return None
    return int(value) if number == int(number) else number


def _farthest(cells: pa.Array) -> Doubles:
    """Of each list the finite number that is farthest from 0; nothing of a list that has none."""
    cells = cells.drop_null()
    numbers: Doubles = numbers_of(cells.flatten()).astype(np.float64)
    rows = np.repeat(np.arange(len(cells)), values(pc.list_value_length(cells)))
    finite = np.isfinite(numbers)
    numbers, rows = numbers[finite], rows[finite]
    order = np.lexsort((np.abs(numbers), rows))
    numbers, rows = numbers[order], rows[order]
    farthest: Doubles = numbers[np.append(rows[1:] > rows[:-1], True)[: len(rows)]]
    return farthest
