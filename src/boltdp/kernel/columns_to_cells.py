"""Packing of columns into rows of cells by a compiled encoding plan: C in `columns_to_cells.c`, without the GIL."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_size_t, c_void_p
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from boltdp._array_types import PackedRows
from boltdp._native import load_library
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import check_packed_rows

#: The types of values, in the order of `enum value_type`.
TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "bool", "text")
_ALLOCATE = ctypes.CFUNCTYPE(c_void_p, c_size_t)


class Values(NamedTuple):
    """The values of a column in memory, in the layout of Arrow: `struct encoding_values`."""

    keep: Any  #: the objects that own the memory
    type: str  #: one of TYPES
    address: int
    ends: int = 0  #: for texts: address of the offsets
    validity: int = 0  #: address of the validity bitmap, 0 if all are valid
    offset: int = 0  #: of the first value, in values, offsets and bitmap
    codes: int = 0  #: address of the codes of a dictionary, whose indices the values are
    n_codes: int = 0

    @classmethod
    def from_array(cls, array: npt.NDArray[Any]) -> Values:
        """Wrap a NumPy array of numbers."""
        kept = np.ascontiguousarray(array)
        return cls(kept, kept.dtype.name, kept.ctypes.data)

    def with_codes(self, codes: npt.NDArray[np.int32]) -> Values:
        """Return these values as dictionary indices, where entry i of the dictionary has the code `codes[i]`."""
        return self._replace(keep=(self.keep, codes), codes=codes.ctypes.data, n_codes=len(codes))


class Packer:
    """Packs columns into rows of cells by the words of a plan (`encoding/compiled_plan.py`); threads may share one."""

    def __init__(self, words: bytes) -> None:
        self._memory = [np.frombuffer(words, np.uint8).copy()]
        self._plan, allocate = np.zeros(6, np.uint64), _ALLOCATE(self._allocate)  # `struct encoding_plan`
        plan = self._plan.ctypes.data
        code = _library.encoding_open(plan, self._memory[0].ctypes.data, len(words), allocate)
        if code or _library.encoding_fill(plan, allocate):
            raise ParameterError("the plan is corrupt")
        self._columns, _, self._cells, feature_map, _, outputs = self._plan.tolist()
        self._projects = feature_map != 0
        self.width = 1 + outputs if self._projects else self._cells  #: numbers of a packed row

    def _allocate(self, size: int) -> int:
        """Return the address of new memory, which C uses while the packer lives."""
        self._memory.append(np.zeros(size, np.uint8))
        return self._memory[-1].ctypes.data

    def pack(self, values: Sequence[Values], out: PackedRows) -> PackedRows:
        """Pack the values of all columns into the rows of `out`, and return their cells before any projection."""
        check_packed_rows("out", out)
        if out.shape[1] != self.width or len(values) != self._columns:
            raise ParameterError(
                f"there must be values of {self._columns} columns for rows of {self.width} numbers, got "
                f"{len(values)} for {out.shape[1]}"
            )
        plan, count = self._plan.ctypes.data, len(out)
        sources = np.array([(TYPES.index(column.type), *column[2:]) for column in values], np.uint64)
        cells = np.empty((count, self._cells), np.float32) if self._projects else out
        if _library.encoding_pack(plan, sources.ctypes.data, count, cells.ctypes.data):
            raise ParameterError("the values of each column must have a type that the plan is for")
        if self._projects:
            scratch = np.empty(_library.encoding_scratch(plan))
            _library.encoding_project(plan, cells.ctypes.data, count, scratch.ctypes.data, out.ctypes.data)
        return cells


_library = load_library(
    {
        "encoding_open": (c_int, [c_void_p, c_void_p, c_size_t, _ALLOCATE]),
        "encoding_fill": (c_int, [c_void_p, _ALLOCATE]),
        "encoding_pack": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p]),
        "encoding_scratch": (c_size_t, [c_void_p]),
        "encoding_project": (None, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p]),
    }
)
