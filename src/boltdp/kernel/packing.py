"""Packing of columns into rows of cells, and operations on packed rows: C in `packing.c`, without the GIL."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from boltdp._arrays import Doubles, Integers, PackedRows
from boltdp._native import load
from boltdp.errors import ParameterError

#: NumPy types that can be packed, in the order of `enum packing_type`.
TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "bool")
_FLOATS = (TYPES.index("float32"), TYPES.index("float64"))
#: Upper bound of codes without a table.
_MAX_CODES = 2**31

_NUMBERS, _STEPS, _CODES = range(3)
#: Rows that are sampled per call, which fit in the processor's cache.
_SAMPLE_BLOCK_ROWS = 4096
#: A bucket has at most 2^MAX_SHIFT positions.
MAX_SHIFT = 32


class _Column(ctypes.Structure):
    """`struct packing_column`."""

    _fields_ = (
        ("kind", c_uint64),
        ("type", c_uint64),
        ("values", c_void_p),
        ("validity", c_void_p),
        ("offset", c_uint64),
        ("at", c_uint64),
        ("width", c_uint64),
        ("count", c_uint64),
        ("places", c_void_p),
        ("codes", c_void_p),
        ("base", c_int64),
        ("low", c_double),
        ("high", c_double),
        ("missing", c_double),
    )


@dataclass(frozen=True)
class Numbers:
    """`width` numbers per row, scaled from their bounds to [-1, 1]; NaN if missing."""

    low: float
    high: float
    width: int = 1


@dataclass(frozen=True)
class Steps:
    """The number of increasing `places` at or below a number; -1 if missing."""

    places: tuple[float, ...]
    width: ClassVar[int] = 1


@dataclass(frozen=True)
class Codes:
    """Codes of integers, by the table in `Values`; negative or unknown ones are `missing`."""

    missing: float = -1.0
    width: ClassVar[int] = 1


class Values(NamedTuple):
    """The values of a column in memory, in the layout of Arrow."""

    keep: Any  #: the object that owns the memory
    address: int
    type: int  #: index into TYPES
    validity: int = 0  #: address of the validity bitmap, 0 if all are valid
    offset: int = 0  #: of the first value, in values and bitmap
    table: npt.NDArray[np.int32] | None = None  #: for codes: the code of v is table[v - base], or v without a table
    base: int = 0

    @classmethod
    def of(cls, array: npt.NDArray[Any], *, table: npt.NDArray[np.int32] | None = None) -> Values:
        """Wrap a NumPy array."""
        kept = np.ascontiguousarray(array)
        kept = kept.view(np.uint8) if kept.dtype == bool else kept  # one byte per value, unlike Arrow's bits
        return cls(kept, kept.ctypes.data, TYPES.index(kept.dtype.name), table=table)


class Packer:
    """Packs columns into rows of cells; the first column is the label.

    >>> packer = Packer([Codes(missing=np.nan), Numbers(0, 100), Steps((18.0, 65.0))])
    >>> sick, age = Values.of(np.array([1, 0, -1], np.int32)), Values.of(np.array([75.0, np.nan, 20.0]))
    >>> out = np.empty((3, packer.width), np.float32)
    >>> packer.pack([sick, age, age], out)
    >>> out
    array([[ 1. ,  0.5,  2. ],
           [ 0. ,  nan, -1. ],
           [ nan, -0.6,  1. ]], dtype=float32)
    """

    def __init__(self, columns: Sequence[Numbers | Steps | Codes]) -> None:
        self._kinds = [*columns]
        self._places: list[Doubles] = []
        described, at = [], 0
        for column in columns:
            described.append(self._describe_column(column, at))
            at += column.width
        self.width = at  #: numbers per row
        self._columns = (_Column * len(described))(*described)

    def _describe_column(self, column: Numbers | Steps | Codes, at: int) -> _Column:
        shared = {"at": at, "width": column.width}
        if isinstance(column, Numbers):
            return _Column(kind=_NUMBERS, low=column.low, high=column.high, missing=np.nan, **shared)
        if isinstance(column, Codes):
            return _Column(kind=_CODES, missing=column.missing, **shared)
        places = np.array(column.places, np.float64)
        self._places.append(places)
        return _Column(kind=_STEPS, places=places.ctypes.data, count=len(places), missing=-1.0, **shared)

    def pack(self, values: Sequence[Values], out: PackedRows) -> None:
        """Pack the values of all columns into `out`, which determines the number of rows."""
        _check_rows("out", out)
        if out.shape[1] != self.width or len(values) != len(self._kinds):
            raise ParameterError(
                f"there must be values of {len(self._kinds)} columns for rows of {self.width} numbers, got "
                f"{len(values)} for {out.shape[1]}"
            )
        # A copy for each call, since threads share this packer.
        columns = type(self._columns).from_buffer_copy(self._columns)
        for column, own in zip(columns, values, strict=True):
            column.type, column.values, column.offset = own.type, own.address, own.offset
            column.validity = own.validity or None
            if column.kind == _CODES:
                if own.type in _FLOATS:
                    raise ParameterError("codes must be made of whole numbers, got floats")
                column.base = own.base
                column.count = _MAX_CODES if own.table is None else len(own.table)
                column.codes = None if own.table is None else own.table.ctypes.data
        _library.packing_pack(columns, len(columns), len(out), out.ctypes.data, self.width)


def take(rows: PackedRows, places: Integers, out: PackedRows) -> None:
    """Copy rows by source position: `out[i] = rows[places[i]]`."""
    _check_places(places, rows=len(rows))
    _move_rows(_library.packing_take, rows, places, out, count=len(out))


def put(rows: PackedRows, places: Integers, out: PackedRows) -> None:
    """Copy rows by target position: `out[places[i]] = rows[i]`; of duplicate places, one wins."""
    _check_places(places, rows=len(out))
    _move_rows(_library.packing_put, rows, places, out, count=len(rows))


def sampled(rows: PackedRows, share: float) -> PackedRows:
    """Return the sample of rows that sums of this share use, selected by a hash of their contents.

    >>> sampled(np.array([[0.25], [0.5], [0.75]], np.float32), 0.5)[:, 0]
    array([0.25, 0.75], dtype=float32)
    """
    _check_rows("rows", rows)
    hashes, buffer = of_hashes(share), np.empty((min(len(rows), _SAMPLE_BLOCK_ROWS), rows.shape[1]), np.float32)

    def sample(part: PackedRows) -> PackedRows:
        taken = _library.packing_sample(part.ctypes.data, *part.shape, hashes, buffer.ctypes.data)
        return buffer[:taken].copy()

    return np.concatenate(
        [buffer[:0], *(sample(rows[at : at + len(buffer)]) for at in range(0, len(rows), max(len(buffer), 1)))]
    )


def of_hashes(share: float) -> int:
    """Return the number of 32-bit hash values that belong to a sample of this share."""
    if not 0 < share <= 1:
        raise ParameterError(f"share must be above 0 and at most 1, got {share}")
    return math.ceil(share * 2**32)


def sort_by_bucket(
    positions: Integers, *, shift: int, buckets: int
) -> tuple[Integers, npt.NDArray[np.uint32], Integers]:
    """Sort rows by bucket, of 2^shift positions each; return the order, the slots, and the size of each bucket."""
    if not 0 <= shift <= MAX_SHIFT or buckets < 1:
        raise ParameterError(f"shift must be from 0 to {MAX_SHIFT} and buckets >= 1, got {shift} and {buckets}")
    _check_places(positions, rows=buckets << shift)
    order, slots = np.empty(len(positions), np.int64), np.empty(len(positions), np.uint32)
    counts = np.empty(buckets, np.int64)
    arrays = (order.ctypes.data, slots.ctypes.data, counts.ctypes.data)
    _library.packing_sort(positions.ctypes.data, len(positions), shift, buckets, *arrays)
    return order, slots, counts


def project(rows: PackedRows, matrix: Doubles, out: PackedRows) -> None:
    """Multiply the features of packed rows by a matrix, after scaling them into the unit ball as the row guard does.

    The projected features of a neutral row are NaN, so that it stays neutral.
    """
    _check_rows("rows", rows)
    _check_rows("out", out)
    dims, outputs = matrix.shape
    if rows.shape[1] != 1 + dims or out.shape != (len(rows), 1 + outputs):
        raise ParameterError(
            f"rows must have 1 + {dims} columns and out {len(rows)} rows of 1 + {outputs}, got shapes {rows.shape} and "
            f"{out.shape}"
        )
    matrix = np.ascontiguousarray(matrix, dtype=np.float64)
    _library.packing_project(rows.ctypes.data, rows.shape[0], dims, matrix.ctypes.data, outputs, out.ctypes.data)


def permuted_position(start: int, count: int, *, rows: int, seed: int) -> Integers:
    """Return the new positions of the rows start .. start+count-1 under the permutation of the seed."""
    return _compute_positions(_library.packing_permuted, start, count, rows=rows, seed=seed)


def source_position(start: int, count: int, *, rows: int, seed: int) -> Integers:
    """Return the rows at the positions start .. start+count-1: the inverse of `permuted_position`."""
    return _compute_positions(_library.packing_source, start, count, rows=rows, seed=seed)


def _compute_positions(function: Any, start: int, count: int, *, rows: int, seed: int) -> Integers:
    if not 1 <= rows <= 2**62:
        raise ParameterError(f"rows must be from 1 to 2^62, got {rows}")
    if start < 0 or count < 0 or start + count > rows:
        raise ParameterError(f"start and count must stay within the {rows} rows, got {start} and {count}")
    if not 0 <= seed < 2**64:
        raise ParameterError(f"seed must be from 0 to 2^64 - 1, got {seed}")
    out = np.empty(count, dtype=np.int64)
    function(start, count, rows, seed, out.ctypes.data)
    return out


def _move_rows(function: Any, rows: PackedRows, places: Integers, out: PackedRows, *, count: int) -> None:
    _check_rows("rows", rows)
    _check_rows("out", out)
    if len(places) != count or rows.shape[1] != out.shape[1]:
        raise ParameterError(
            f"there must be a place for each row, and rows must be as wide as out, got {len(places)} places for "
            f"{count} rows, and widths {rows.shape[1]} and {out.shape[1]}"
        )
    function(rows.ctypes.data, places.ctypes.data, count, rows.shape[1], out.ctypes.data)


def _check_rows(name: str, rows: PackedRows) -> None:
    if rows.dtype != np.float32 or rows.ndim != 2 or not rows.flags.c_contiguous:
        raise ParameterError(f"{name} must be a C-contiguous 2-D array of float32, got {rows.ndim}-D {rows.dtype}")
    if name == "out" and not rows.flags.writeable:
        raise ParameterError("out must be writable, got a read-only array")


def _check_places(places: Integers, *, rows: int) -> None:
    if places.dtype != np.int64 or places.ndim != 1 or not places.flags.c_contiguous:
        raise ParameterError(f"places must be a C-contiguous 1-D array of int64, got {places.ndim}-D {places.dtype}")
    if len(places) and not (places.min() >= 0 and places.max() < rows):
        raise ParameterError(f"places must be from 0 to {rows - 1}, got one outside")


_library = load(
    {
        "packing_pack": (None, [c_void_p, c_size_t, c_size_t, c_void_p, c_size_t]),
        "packing_take": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_void_p]),
        "packing_put": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_void_p]),
        "packing_sample": (c_size_t, [c_void_p, c_size_t, c_size_t, c_uint64, c_void_p]),
        "packing_project": (None, [c_void_p, c_size_t, c_size_t, c_void_p, c_size_t, c_void_p]),
        "packing_permuted": (None, [c_uint64, c_size_t, c_uint64, c_uint64, c_void_p]),
        "packing_source": (None, [c_uint64, c_size_t, c_uint64, c_uint64, c_void_p]),
        "packing_sort": (None, [c_void_p, c_size_t, c_int, c_size_t, c_void_p, c_void_p, c_void_p]),
    }
)
