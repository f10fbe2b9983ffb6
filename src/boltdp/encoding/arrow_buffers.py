"""Conversions between NumPy arrays and Arrow buffers, without Arrow's own conversions.

Those (`to_numpy`, `pa.array`, `pa.scalar`, `pc.fill_null`) import pandas on first use, if it is installed, and an
interrupt during that import is swallowed: the run would not stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp._arrays import Booleans
from boltdp.kernel.packing import TYPES, Values

#: The types that the kernel reads, by Arrow type, and the size of their values.
_PACKED = {pa.bool_() if name == "bool" else getattr(pa, name)(): place for place, name in enumerate(TYPES)}
_SIZES = [np.dtype(name).itemsize for name in TYPES]
_BITS = TYPES.index("bool")
#: Arrow's names of types that NumPy names differently.
_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy type of an Arrow type of numbers or booleans.

    >>> dtype_of(pa.float64()), dtype_of(pa.bool_())
    (dtype('float64'), dtype('bool'))
    """
    return np.dtype(_NAMES.get(str(kind), str(kind)))


def values(cells: pa.Array) -> npt.NDArray[Any]:
    """Return the numbers or booleans of a buffer, arbitrary ones for missing cells; numbers are not copied.

    >>> values(pa.array([7, 8, 9], pa.int16()).slice(1)), values(pa.array([False, True, True]).slice(1))
    (array([8, 9], dtype=int16), array([ True,  True]))
    """
    dtype, buffer = dtype_of(cells.type), cells.buffers()[1]
    if buffer is None or not len(cells):
        return np.zeros(len(cells), dtype)
    if dtype.kind == "b":
        return _unpack_bits(buffer, cells.offset, len(cells))
    return np.frombuffer(buffer, dtype, len(cells), cells.offset * dtype.itemsize)


def locate_values(cells: pa.Array) -> Values | None:
    """Return the buffers of numbers or booleans for the kernel; None for types that it does not read.

    >>> locate_values(pa.array([7, 8, 9], pa.int16()).slice(1)).offset, locate_values(pa.array(["a"]))
    (1, None)
    """
    kind = _PACKED.get(cells.type)
    if kind is None:
        return None
    bitmap, buffer = cells.buffers()
    size, last = _SIZES[kind], cells.offset + len(cells)
    # Buffers of other libraries need not be aligned.
    if buffer is None or buffer.address % size or buffer.size < (last * size if kind < _BITS else (last + 7) // 8):
        return None
    validity = bitmap.address if bitmap is not None and cells.null_count else 0
    return Values((bitmap, buffer), buffer.address, kind, validity, cells.offset)


def missing(cells: pa.Array) -> Booleans | None:
    """Return the mask of missing cells; None if no cell is missing.

    >>> missing(pa.array([1, None, 3])), missing(pa.array([1, None, 3]).slice(2))
    (array([False,  True, False]), None)
    """
    if not cells.null_count:
        return None
    bitmap = cells.buffers()[0]
    if bitmap is None:  # the null type has no bitmap
        return np.ones(len(cells), bool)
    return ~_unpack_bits(bitmap, cells.offset, len(cells))


def text_array(texts: Sequence[str]) -> pa.Array:
    """Return an Arrow array of strings."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def plain_array(values: npt.NDArray[Any]) -> pa.Array:
    """Return an Arrow array of numbers, booleans or strings.

    >>> [plain_array(np.array(some)).to_pylist() for some in ([0.5, 1.0], [True, False], ["no", "yes"])]
    [[0.5, 1.0], [True, False], ['no', 'yes']]
    """
    if values.dtype.kind == "U":
        return text_array(values.tolist())
    if values.dtype.kind == "b":
        return plain_array(values.view(np.uint8)).cast(pa.bool_())
    numbers = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def _unpack_bits(buffer: pa.Buffer, start: int, count: int) -> Booleans:
    first = start // 8
    packed = np.frombuffer(buffer, np.uint8, (start + count + 7) // 8 - first, first)
    bits: Booleans = np.unpackbits(packed, bitorder="little")[start % 8 : start % 8 + count].view(bool)
    return bits
