"""The map from the cells of a packed row to its features: C in `feature_map.h`, which defines cells.

Rows are encoded once, in public units: numbers from -1 to 1, a category as its index. The feature map, which is part of
every state and every sum, applies centres, scales and the clip norm, and makes the steps of a curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, Integers, PackedRows
from boltdp.errors import ParameterError
from boltdp.kernel.sgd import _allocate_aligned, _get_address, _library
from boltdp.kernel.sparse_rows import PLACES_MESSAGE, SparseRows

SegmentKind = Literal["numbers", "category", "steps", "constant"]
_KINDS = ("numbers", "category", "steps", "constant", "pair")
_AXIS_KINDS = ("steps", "category")
_HEADER_WORDS = 14
#: The largest number of axes of a map: FEATURE_MAP_MAX_AXES.
MAX_AXES = 256
Numbers = TypeVar("Numbers", Doubles, Integers)


@dataclass(frozen=True)
class Segment:
    """Consecutive features of one kind, with two parameters each: see `feature_map.h`."""

    kind: SegmentKind
    a: Doubles
    b: Doubles
    places: Doubles = field(default_factory=lambda: np.zeros(0))  #: of steps: the cells from which each is present

    def __post_init__(self) -> None:
        if self.a.ndim != 1 or self.a.shape != self.b.shape or not len(self.a):
            raise ParameterError(
                f"a and b must be as many numbers, one or more, got shapes {self.a.shape} and {self.b.shape}"
            )
        if not (np.isfinite(self.a).all() and np.isfinite(self.b).all()):
            raise ParameterError("a and b must be finite numbers")
        if self.places.shape != (self.a.shape if self.kind == "steps" else (0,)):
            raise ParameterError(f"places must be one for each step, got shape {self.places.shape}")
        if not (np.isfinite(self.places).all() and (np.diff(self.places) >= 0).all()):
            raise ParameterError("places must be finite and increasing")

    @property
    def dims(self) -> int:
        """The number of features."""
        return len(self.a)

    @property
    def is_group(self) -> bool:
        """Whether one cell is mapped to several features, of which a row has one of few vectors."""
        return self.kind in ("category", "steps")

    @property
    def slots(self) -> int:
        """The number of slots, the entries of a sum over rows, that these features need: see `feature_map.h`."""
        return len(self.a) + (0 if not self.is_group else 1 if self.kind == "category" else 2)

    def spread_weights(self, weights: Doubles) -> Doubles:
        """Convert the weights of a group's features to weights of its slots: <w, x> for the features x of each slot."""
        absent, present = weights * self.a, weights * self.b
        below, above = _compute_prefix_sums(present), _compute_suffix_sums(absent)
        if self.kind == "steps":
            # Slot k + 1 has k steps present and the others absent; slot 0 is a missing cell, without features.
            return np.concatenate([np.zeros_like(below[..., :1]), below + above], axis=-1)
        others = _compute_prefix_sums(absent)[..., :-1] + above[..., 1:]
        return np.concatenate([above[..., :1], others + present], axis=-1)

    def gather_sums(self, sums: Doubles) -> Doubles:
        """Convert sums of the slots of a group, in its units, to sums of its features, along the last axis."""
        return self.combine_slots(sums / np.where(self.units > 0, self.units, 1.0))

    def combine_slots(self, sums: Doubles) -> Doubles:
        """Add up the features of the slots of a group, each times its number in `sums`, along the last axis."""
        if self.kind == "steps":
            below, above = _compute_prefix_sums(sums[..., 1:]), _compute_suffix_sums(sums[..., 1:])
            return self.b * above[..., 1:-1] + self.a * below[..., 1:-1]
        # Subtracting from the total would lose digits.
        others = _compute_prefix_sums(sums)[..., 1:-1] + _compute_suffix_sums(sums)[..., 2:]
        return self.a * others + self.b * sums[..., 1:]

    @cached_property
    def squares(self) -> Doubles:
        """The squared norm of the features of each slot of a group."""
        return replace(self, a=self.a**2, b=self.b**2).spread_weights(np.ones(len(self.a)))

    @cached_property
    def units(self) -> Doubles:
        """The norm of the features of each slot of a group, rounded up to a power of two; 0 for no features."""
        return _round_lengths_up(self.squares)


@dataclass(frozen=True, eq=False)
class Axis:
    """One side of pairs: a cell of a row, and its features, those of steps or of a category: see `feature_map.h`."""

    cell: int
    segment: Segment
    has_reference: bool = False  #: whether there is one more category, without a feature

    def __post_init__(self) -> None:
        if self.segment.kind not in _AXIS_KINDS or (self.has_reference and self.segment.kind == "steps"):
            raise ParameterError("an axis must be of steps or of a category, and only the latter has a reference")

    @property
    def levels(self) -> int:
        """The number of different vectors of features."""
        return self.segment.dims + (self.segment.kind == "steps" or self.has_reference)

    def spread_weights(self, weights: Doubles) -> Doubles:
        """Convert weights of features to weights of levels, along the last axis."""
        slots = self.segment.spread_weights(weights)
        return np.concatenate([slots[..., 1:], slots[..., : self.has_reference]], axis=-1)

    def combine_levels(self, sums: Doubles) -> Doubles:
        """Add up the features of the levels, each times its number in `sums`, along the last axis."""
        first = sums[..., -1:] if self.has_reference else np.zeros_like(sums[..., :1])
        return self.segment.combine_slots(np.concatenate([first, sums[..., : sums.shape[-1] - self.has_reference]], -1))

    @property
    def features(self) -> Doubles:
        """The features of each level, of shape (levels, features)."""
        return self.spread_weights(np.eye(self.segment.dims)).T

    @cached_property
    def squares(self) -> Doubles:
        """The squared norm of the features of each level."""
        segment = self.segment
        return replace(self, segment=replace(segment, a=segment.a**2, b=segment.b**2)).spread_weights(
            np.ones(segment.dims)
        )


@dataclass(frozen=True, eq=False)
class PairSegment:
    """The products of each feature of one axis and each of another, times a factor: see `feature_map.h`."""

    first: Axis
    second: Axis
    factor: float

    kind: ClassVar[Literal["pair"]] = "pair"
    is_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not np.isfinite(self.factor):
            raise ParameterError("the factor of a pair must be a finite number")

    @property
    def dims(self) -> int:
        """The number of features."""
        return self.first.segment.dims * self.second.segment.dims

    @property
    def slots(self) -> int:
        """The number of slots: one for each two levels, after one for a missing value."""
        return 1 + self.first.levels * self.second.levels

    @property
    def a(self) -> Doubles:
        return np.zeros(self.dims)

    b = a

    @property
    def places(self) -> Doubles:
        return np.zeros(0)

    def spread_weights(self, weights: Doubles) -> Doubles:
        """Convert the weights of the features to weights of the slots: <w, x> for the features x of each slot."""
        table = weights.reshape(*weights.shape[:-1], self.first.segment.dims, self.second.segment.dims)
        spread = self.first.spread_weights(self.second.spread_weights(table).swapaxes(-1, -2)).swapaxes(-1, -2)
        flat = self.factor * spread.reshape(*weights.shape[:-1], -1)
        return np.concatenate([np.zeros_like(flat[..., :1]), flat], axis=-1)

    def gather_sums(self, sums: Doubles) -> Doubles:
        """Convert sums of the slots, in their units, to sums of the features, along the last axis."""
        sums = (sums / np.where(self.units > 0, self.units, 1.0))[..., 1:]
        table = sums.reshape(*sums.shape[:-1], self.first.levels, self.second.levels)
        gathered = self.first.combine_levels(self.second.combine_levels(table).swapaxes(-1, -2)).swapaxes(-1, -2)
        return self.factor * gathered.reshape(*sums.shape[:-1], -1)

    @cached_property
    def squares(self) -> Doubles:
        """The squared norm of the features of each slot."""
        return np.append(0.0, self.factor**2 * np.outer(self.first.squares, self.second.squares).ravel())

    @cached_property
    def units(self) -> Doubles:
        """The norm of the features of each slot, rounded up to a power of two; 0 for no features."""
        return _round_lengths_up(self.squares)


def _round_lengths_up(squares: Doubles) -> Doubles:
    """Return the roots of `squares`, rounded up to powers of two; 0 for 0."""
    lengths = np.sqrt(squares)
    fractions, exponents = np.frexp(lengths)
    return np.where(lengths > 0, np.ldexp(1.0, exponents - (fractions == 0.5)), 0.0)


def _compute_prefix_sums(numbers: Doubles) -> Doubles:
    """Return prefix sums along the last axis, starting with 0, added from left to right."""
    return np.concatenate([np.zeros_like(numbers[..., :1]), np.cumsum(numbers, axis=-1)], axis=-1)


def _compute_suffix_sums(numbers: Doubles) -> Doubles:
    """Return suffix sums along the last axis, ending with 0."""
    return _compute_prefix_sums(numbers[..., ::-1])[..., ::-1]


class FeatureMap:
    """The segments of a row, in the order of its features; steps follow numbers, and read the last of them.

    >>> feature_map = FeatureMap([
    ...     Segment("numbers", np.array([0.5]), np.array([2.0])),
    ...     Segment("category", np.array([-1.0, -1.0]), np.array([1.0, 1.0])),
    ...     Segment("constant", np.array([0.25]), np.array([0.0])),
    ... ])
    >>> feature_map.cells, feature_map.dims
    (2, 4)
    >>> feature_map.compute_features(np.array([[1, 0.75, 1], [0, np.nan, -1]], np.float32))
    array([[ 1.  ,  0.5 , -1.  ,  1.  ,  0.25],
           [ 0.  ,  0.  , -1.  , -1.  ,  0.25]])
    """

    def __init__(
        self,
        segments: Sequence[Segment | PairSegment],
        *,
        label_reading: tuple[float, float] = (0.0, 1.0),
        row_weights: bool = False,
        downweights: bool = False,
    ) -> None:
        self.label_reading = label_reading  #: the centre and the factor of labels that are numbers
        self.row_weights = row_weights  #: whether the last cell is the weight of the row, from -1 to 1
        self.downweights = downweights  #: whether rows longer than 1 are downweighted, not shortened
        self.segments: list[Segment | PairSegment] = []
        for segment in segments:
            if isinstance(segment, PairSegment):
                self.segments.append(segment)
                continue
            if segment.kind == "steps" and (not self.segments or self.segments[-1].kind != "numbers"):
                raise ParameterError("steps must follow the number that they are of")
            last = self.segments[-1] if self.segments else None
            if isinstance(last, Segment) and last.kind == segment.kind and not segment.is_group:
                self.segments.pop()
                segment = Segment(last.kind, np.concatenate([last.a, segment.a]), np.concatenate([last.b, segment.b]))
            self.segments.append(segment)
        self.pairs = [part for part in self.segments if isinstance(part, PairSegment)]
        self.axes = [*dict.fromkeys(axis for pair in self.pairs for axis in (pair.first, pair.second))]
        self.cells = sum(part.dims if part.kind == "numbers" else part.kind == "category" for part in self.segments)
        self.dims = sum(part.dims for part in self.segments)
        self.dense = sum(part.dims for part in self.segments if not part.is_group)
        self.slots = sum(part.slots for part in self.segments)
        if len(self.axes) > MAX_AXES:
            raise ParameterError(f"a feature map must have at most {MAX_AXES} axes of pairs, got {len(self.axes)}")
        if not all(0 <= axis.cell < self.cells for axis in self.axes):
            raise ParameterError(f"the cell of an axis must be one of the {self.cells} of a row")
        self.cells += row_weights
        if self.cells < 1 + row_weights:
            raise ParameterError("a feature map must have cells, got none")

    @cached_property
    def keeps_zeros(self) -> bool:
        """Whether all cells are numbers, and those of 0 are features of 0, as sparse rows need."""
        numbers, *others = self.segments
        plain = numbers.kind == "numbers" and all(part.kind == "constant" for part in others) and not self.row_weights
        return plain and not numbers.a.any()

    @cached_property
    def block(self) -> npt.NDArray[np.uint8]:
        """The feature map as bytes in the memory layout of C."""
        groups = [part for part in self.segments if part.is_group]
        counts = [number for part in self.segments for number in (_KINDS.index(part.kind), part.dims)]
        starts = [0, *accumulate(axis.segment.dims for axis in self.axes)]
        for axis, start in zip(self.axes, starts[:-1], strict=True):
            counts += [_AXIS_KINDS.index(axis.segment.kind), axis.cell, axis.segment.dims, axis.levels, start]
        numbered = {axis: number for number, axis in enumerate(self.axes)}
        counts += [numbered[axis] for pair in self.pairs for axis in (pair.first, pair.second)]
        numbers = [*(part.a for part in self.segments), *(part.b for part in self.segments)]
        numbers += [*(part.squares for part in groups), *(part.units for part in groups)]
        numbers += [part.places for part in self.segments]
        numbers += [*(axis.segment.a for axis in self.axes), *(axis.segment.b for axis in self.axes)]
        for axis in self.axes:
            numbers.append(axis.segment.places if axis.segment.kind == "steps" else np.zeros(axis.segment.dims))
        numbers.append(np.array([pair.factor for pair in self.pairs]))
        size = 8 * (_HEADER_WORDS + len(counts) + sum(map(len, numbers)))
        header = [size, self.cells, self.dims, self.dense, self.slots, len(groups), len(self.segments)]
        flags = [self.row_weights, self.downweights, len(self.axes), len(self.pairs), starts[-1]]
        label, words = np.array(self.label_reading), np.array([*flags, *counts], np.uint64)
        parts = [np.array(header, np.uint64), label, words, np.concatenate(numbers)]
        block = _allocate_aligned(size)
        block[:] = np.concatenate([part.view(np.uint8) for part in parts])
        return block

    def compute_features(self, rows: PackedRows) -> Doubles:
        """Return the label and the features of each packed row."""
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != 1 + self.cells:
            raise ParameterError(
                f"rows must be a 2-D array of float32 with 1 + {self.cells} columns, got {rows.dtype} of shape "
                f"{rows.shape}"
            )
        contiguous = np.ascontiguousarray(rows)
        out = np.empty((len(rows), 1 + self.dims))
        _library.feature_map_features(self.block.ctypes.data, contiguous.ctypes.data, len(rows), out.ctypes.data)
        return out

    def spread_weights(self, weights: Doubles) -> Doubles:
        """Convert weights of features to weights of slots with the same <w, x>, along the last axis."""
        cuts = [*accumulate(part.dims for part in self.segments)][:-1]
        parts = [*zip(self.segments, np.split(weights, cuts, axis=-1), strict=True)]
        dense = [own for part, own in parts if not part.is_group]
        return np.concatenate([*dense, *(part.spread_weights(own) for part, own in parts if part.is_group)], axis=-1)

    def gather_sums(self, sums: Doubles) -> Doubles:
        """Convert sums of slots to sums of features, along the last axis."""
        parts = self.split_slots(sums)
        return np.concatenate([part.gather_sums(own) if part.is_group else own for part, own in parts], axis=-1)

    def split_slots(self, sums: Numbers) -> Iterator[tuple[Segment | PairSegment, Numbers]]:
        """Yield each segment with the sums of its slots, along the last axis."""
        dense, group = 0, self.dense
        for part in self.segments:
            first = group if part.is_group else dense
            yield part, sums[..., first : first + part.slots]
            if part.is_group:
                group += part.slots
            else:
                dense += part.slots


def convert_to_slot_weights(weights: Doubles, feature_map: FeatureMap | None) -> Doubles:
    """Convert weights of features to a C-contiguous array of weights of slots; they are the same without a map."""
    if feature_map is not None:
        if feature_map.dims != weights.shape[-1]:
            raise ParameterError(f"feature_map must be of {weights.shape[-1]} features, got {feature_map.dims}")
        weights = feature_map.spread_weights(weights)
    return np.ascontiguousarray(weights, np.float64)


def compute_scores(rows: PackedRows | SparseRows, weights: Doubles, feature_map: FeatureMap | None = None) -> Doubles:
    """Return <w, x> for each packed row x, scaled into the unit ball, and each weight vector, (vectors, dims).

    A map that downweights long rows leaves them as they are. Without a feature map the cells are the features. Sparse
    rows need one that keeps zeros.
    """
    return _compute_scores(rows, weights, feature_map, None)


def compute_scores_and_norms(
    rows: PackedRows | SparseRows, weights: Doubles, feature_map: FeatureMap | None = None
) -> tuple[Doubles, Doubles]:
    """Return the scores of `compute_scores`, and the norm, at most 1, of each row that they are computed from."""
    norms = np.empty(len(rows))
    return _compute_scores(rows, weights, feature_map, norms), norms


def _compute_scores(
    rows: PackedRows | SparseRows, weights: Doubles, feature_map: FeatureMap | None, norms: Doubles | None
) -> Doubles:
    if isinstance(rows, SparseRows):
        return _compute_sparse_scores(rows, weights, feature_map, norms)
    cells, dims = (rows.shape[1] - 1,) * 2 if feature_map is None else (feature_map.cells, feature_map.dims)
    if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != 1 + cells or weights.shape[1:] != (dims,):
        raise ParameterError(
            f"rows must be float32 with 1 + {cells} columns, and weights of {dims} features, got {rows.dtype} of shape "
            f"{rows.shape} and weights of shape {weights.shape}"
        )
    contiguous = np.ascontiguousarray(rows)
    of_slots = convert_to_slot_weights(weights, feature_map)
    out, room = np.empty((len(rows), len(weights))), np.empty(2 * of_slots.shape[1])
    _library.feature_map_scores(
        _get_address(feature_map),
        cells,
        contiguous.ctypes.data,
        len(rows),
        of_slots.ctypes.data,
        len(weights),
        room.ctypes.data,
        out.ctypes.data,
        None if norms is None else norms.ctypes.data,
    )
    return out


def _compute_sparse_scores(
    rows: SparseRows, weights: Doubles, feature_map: FeatureMap | None, norms: Doubles | None
) -> Doubles:
    if feature_map is None or not feature_map.keeps_zeros or rows.width != 1 + feature_map.cells:
        raise ParameterError("sparse rows must have a feature map of their cells that keeps zeros")
    of_slots = convert_to_slot_weights(weights, feature_map)
    out, room = np.empty((len(rows), len(weights))), np.empty(2 * feature_map.dims)
    code = _library.feature_map_sparse_scores(
        feature_map.block.ctypes.data,
        rows.block.ctypes.data,
        of_slots.ctypes.data,
        len(weights),
        room.ctypes.data,
        out.ctypes.data,
        None if norms is None else norms.ctypes.data,
    )
    if code:
        raise ParameterError(PLACES_MESSAGE)
    return out


def check_packed_rows(name: str, rows: PackedRows) -> None:
    """Raise ParameterError unless the kernel can read, or as `out` write, these packed rows."""
    if rows.dtype != np.float32 or rows.ndim != 2 or not rows.flags.c_contiguous:
        raise ParameterError(f"{name} must be a C-contiguous 2-D array of float32, got {rows.ndim}-D {rows.dtype}")
    if name == "out" and not rows.flags.writeable:
        raise ParameterError("out must be writable, got a read-only array")
