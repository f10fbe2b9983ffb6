"""Packing columns into rows of cells, and moving rows whole: C in `packing.c`, which releases the GIL."""

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

#: The types of values that can be packed, by NumPy's names, in the order of `enum packing_type`.
TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "bool")
_FLOATS = (TYPES.index("float32"), TYPES.index("float64"))
#: Codes that stand for themselves are below this.
_MAX_CODES = 2**31

_NUMBERS, _STEPS, _CODES = range(3)
#: Rows that a sample is taken of at once: few enough to stay in the processor's cache.
_SAMPLE_BLOCK_ROWS = 4096
#: A bucket has at most 2 to the power of this many positions.
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
    """`width` numbers per row, between bounds: they become numbers from -1 to 1, and a missing one NaN."""

    low: float
    high: float
    width: int = 1


@dataclass(frozen=True)
class Steps:
    """How many of the increasing places are at or below a number; -1 where it is missing."""

    places: tuple[float, ...]
    width: ClassVar[int] = 1


@dataclass(frozen=True)
class Codes:
    """What whole numbers stand for: `Values` say so. What is below 0, or stands for nothing, is `missing`."""

    missing: float = -1.0
    width: ClassVar[int] = 1


class Values(NamedTuple):
    """The values of a column where they are in memory, as Arrow keeps them."""

    keep: Any  #: what holds them
    address: int
    type: int  #: one of TYPES, by its place
    validity: int = 0  #: the address of the bits, 0 if all are valid
    offset: int = 0  #: of the first value, in both
    table: npt.NDArray[np.int32] | None = None  #: for codes: value v stands for table[v - base], or for itself
    base: int = 0

    @classmethod
    def of(cls, array: npt.NDArray[Any], *, table: npt.NDArray[np.int32] | None = None) -> Values:
        """Those of an array.

        >>> Values.of(np.array([7], np.int16)).type == TYPES.index("int16")
        True
        """
        kept = np.ascontiguousarray(array)
        kept = kept.view(np.uint8) if kept.dtype == bool else kept  # bytes, where Arrow has bits
        return cls(kept, kept.ctypes.data, TYPES.index(kept.dtype.name), table=table)


class Packer:
    """Packs columns into rows of cells, the first behind the label's place, which is 0.

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
        made, at = [], 0
        for column in columns:
            made.append(self._describe_column(column, at))
            at += column.width
        self.width = at  #: numbers of a row
        self._columns = (_Column * len(made))(*made)

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
        """Write the cells of the values of all columns: as many rows as `out` has."""
        _check_rows("out", out)
        if out.shape[1] != self.width or len(values) != len(self._kinds):
            raise ParameterError(
                f"there must be values of {len(self._kinds)} columns for rows of {self.width} numbers, got "
                f"{len(values)} for {out.shape[1]}"
            )
        # One for each call, since threads share this packer.
        columns = type(self._columns).from_buffer_copy(self._columns)
        for column, given in zip(columns, values, strict=True):
            column.type, column.values, column.offset = given.type, given.address, given.offset
            column.validity = given.validity or None
            if column.kind == _CODES:
                if given.type in _FLOATS:
                    raise ParameterError("codes must be made of whole numbers, got floats")
                column.base = given.base
                column.count = _MAX_CODES if given.table is None else len(given.table)
                column.codes = None if given.table is None else given.table.ctypes.data
        _library.packing_pack(columns, len(columns), len(out), out.ctypes.data, self.width)


def take(rows: PackedRows, places: Integers, out: PackedRows) -> None:
    """`out[i] = rows[places[i]]`, rows whole.

    >>> out = np.empty((2, 1), np.float32)
    >>> take(np.array([[0.25], [0.5], [0.75]], np.float32), np.array([2, 0]), out)
    >>> out[:, 0]
    array([0.75, 0.25], dtype=float32)
    """
    _check_places(places, rows=len(rows))
    _move_rows(_library.packing_take, rows, places, out, count=len(out))


def put(rows: PackedRows, places: Integers, out: PackedRows) -> None:
    """`out[places[i]] = rows[i]`, rows whole; of places that are there twice, one wins.

    >>> out = np.zeros((3, 1), np.float32)
    >>> put(np.array([[0.75], [0.25]], np.float32), np.array([2, 0]), out)
    >>> out[:, 0]
    array([0.25, 0.  , 0.75], dtype=float32)
    """
    _check_places(places, rows=len(out))
    _move_rows(_library.packing_put, rows, places, out, count=len(rows))


def sampled(rows: PackedRows, share: float) -> PackedRows:
    """Those rows that sums of this share take, chosen by a hash of what is in them.

    >>> sampled(np.array([[0.25], [0.5], [0.75]], np.float32), 0.5)[:, 0]
    array([0.25, 0.75], dtype=float32)
    """
    _check_rows("rows", rows)
    hashes, few = of_hashes(share), np.empty((min(len(rows), _SAMPLE_BLOCK_ROWS), rows.shape[1]), np.float32)

    def sample(part: PackedRows) -> PackedRows:
        taken = _library.packing_sample(part.ctypes.data, *part.shape, hashes, few.ctypes.data)
        return few[:taken].copy()

    return np.concatenate(
        [few[:0], *(sample(rows[at : at + len(few)]) for at in range(0, len(rows), max(len(few), 1)))]
    )


def of_hashes(share: float) -> int:
    """How many of 2^32 hashes are those of a share.

    >>> of_hashes(0.25) == 2**30
    True
    """
    if not 0 < share <= 1:
        raise ParameterError(f"share must be above 0 and at most 1, got {share}")
    return math.ceil(share * 2**32)


def sort_by_bucket(
    positions: Integers, *, shift: int, buckets: int
) -> tuple[Integers, npt.NDArray[np.uint32], Integers]:
    """Which rows come first when they are sorted by bucket, what their slots there are, and how many go to each.

    A bucket is one of 2^shift positions.

    >>> sort_by_bucket(np.array([5, 0, 6, 3]), shift=2, buckets=2)
    (array([1, 3, 0, 2]), array([0, 3, 1, 2], dtype=uint32), array([2, 2]))
    """
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

    A row that the guard makes neutral stays so: its projected features are NaN.

    >>> rows = np.array([[1, 3, 4]], dtype=np.float32)
    >>> out = np.empty((1, 2), dtype=np.float32)
    >>> project(rows, np.array([[1.0], [0.0]]), out)
    >>> out
    array([[1. , 0.6]], dtype=float32)
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
    """Where the rows start .. start+count-1 go: a permutation of 0 .. rows-1 that depends on nothing but the seed.

    >>> sorted(permuted_position(0, 5, rows=5, seed=7).tolist())
    [0, 1, 2, 3, 4]
    """
    return _compute_positions(_library.packing_permuted, start, count, rows=rows, seed=seed)


def source_position(start: int, count: int, *, rows: int, seed: int) -> Integers:
    """Which rows stand at the positions start .. start+count-1: the inverse of `permuted_position`.

    >>> at = int(permuted_position(3, 1, rows=5, seed=7)[0])
    >>> source_position(at, 1, rows=5, seed=7)
    array([3])
    """
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
