"""Conversions between NumPy arrays and Arrow buffers, without Arrow's own conversions.

Those (`to_numpy`, `pa.array`, `pa.scalar`, `pc.fill_null`) import pandas on first use, if it is installed, and an
interrupt during that import is swallowed: the run would not stop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp._array_types import Booleans
from boltdp.kernel.columns_to_cells import TYPES, Values

#: The names of the types that the kernel reads.
_NAMES_IN_KERNEL = {pa.type_for_alias({"text": "string"}.get(name, name)): name for name in TYPES}
#: Arrow's names of types that NumPy names differently.
_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def view_values(cells: pa.Array) -> npt.NDArray[Any]:
    """View an Arrow array of numbers or booleans as NumPy, without a copy of numbers; missing cells are arbitrary."""
    dtype, buffer = np.dtype(_NAMES.get(str(cells.type), str(cells.type))), cells.buffers()[1]
    if buffer is None or not len(cells):
        return np.zeros(len(cells), dtype)
    if dtype.kind == "b":
        return _unpack_bitmap(buffer, cells.offset, len(cells))
    return np.frombuffer(buffer, dtype, len(cells), cells.offset * dtype.itemsize)


def locate_values(cells: pa.Array) -> Values | None:
    """Return the buffers of an Arrow array for the C kernel; None for types that it does not read."""
    name = _NAMES_IN_KERNEL.get(cells.type)
    if name is None:
        return None
    bitmap, *buffers = cells.buffers()
    validity = bitmap.address if bitmap is not None and cells.null_count else 0
    count = cells.offset + len(cells)
    if name == "text":
        ends, texts = _align_buffer(buffers[0], 4, 4 * (count + 1)), _align_buffer(buffers[1], 1, 0)
        return Values((bitmap, ends, texts), name, texts.address, ends.address, validity, cells.offset)
    size = np.dtype(name).itemsize
    numbers = _align_buffer(buffers[0], size, (count + 7) // 8 if name == "bool" else count * size)
    return Values((bitmap, numbers), name, numbers.address, 0, validity, cells.offset)


def _align_buffer(buffer: pa.Buffer | None, item: int, size: int) -> pa.Buffer:
    """Return an Arrow buffer, copied if it is shorter than `size` bytes or not aligned to items of `item` bytes."""
    if buffer is not None and buffer.address % item == 0 and buffer.size >= size:
        return buffer
    given = b"" if buffer is None else buffer.to_pybytes()
    return pa.py_buffer(np.frombuffer(given.ljust(max(size, 1), b"\0"), np.uint8).copy())


def mask_missing(cells: pa.Array) -> Booleans | None:
    """Return the mask of missing cells; None if no cell is missing."""
    if not cells.null_count:
        return None
    bitmap = cells.buffers()[0]
    if bitmap is None:  # the null type has no bitmap
        return np.ones(len(cells), bool)
    return ~_unpack_bitmap(bitmap, cells.offset, len(cells))


def to_arrow_array(values: npt.NDArray[Any]) -> pa.Array:
    """Convert a NumPy array of numbers, booleans or strings to Arrow."""
    if values.dtype.kind == "U":
        texts = [text.encode() for text in values.tolist()]
        ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
        return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])
    if values.dtype.kind == "b":
        return to_arrow_array(values.view(np.uint8)).cast(pa.bool_())
    numbers = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def _unpack_bitmap(buffer: pa.Buffer, start: int, count: int) -> Booleans:
    first = start // 8
    packed = np.frombuffer(buffer, np.uint8, (start + count + 7) // 8 - first, first)
    bits: Booleans = np.unpackbits(packed, bitorder="little")[start % 8 : start % 8 + count].view(bool)
    return bits
