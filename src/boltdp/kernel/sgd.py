"""Passes of SGD over packed rows: C in `sgd.c`, called through ctypes, which releases the GIL.

A packed row is its label, then its cells. A feature map (`feature_map.py`) converts float32 cells to features;
without one the cells are the features, float32 or float64. Rows with a norm above 1 are scaled into the unit ball. Rows
with a feature that is NaN or infinite, or with an unknown label, have gradient zero but still count. White-box
algorithms add noise to every update (`gaussian_noise.md`); the others add none here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, Floats, Integers
from boltdp._native import load_library
from boltdp.errors import DataError, ParameterError
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe, check_undivided

if TYPE_CHECKING:
    from boltdp.kernel.feature_map import FeatureMap

# The enumerations of sgd.h.
_GROWTHS = {"none": 0, "linear": 1, "sqrt": 2}
_NOISES = {"gaussian": 1, "spherical": 2}
_NO_NOISE = 0
_ELEMENTS = {np.dtype(np.float32): 0, np.dtype(np.float64): 1}
_BUILDS = {"portable": 1, "avx2": 2}
_FASTEST = 0

#: Marks the end of a batch among the positions of `run`.
BATCH_END = -1
#: Length of the key of a state's noise generator.
KEY_BYTES = 32

# The size of a cache line: vectors across two of them are slow to load.
_ALIGNMENT = 64


def _list_fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class _Recipe(ctypes.Structure):
    """`struct sgd_recipe`."""

    _fields_ = (
        *_list_fields(c_uint64, "loss", "dims", "classes", "positive", "rows", "batches", "passes"),
        *_list_fields(c_uint64, "averaged", "growth"),
        *_list_fields(c_double, "scale", "offset", "cap", "parameter", "regularization", "radius"),
        *_list_fields(c_uint64, "marked", "noise"),
        *_list_fields(c_double, "deviation"),
        *_list_fields(c_uint64, "weighted"),
    )


class _Header(ctypes.Structure):
    """`struct sgd_state`, without its arrays."""

    _fields_ = (
        *_list_fields(c_uint64, "magic", "version", "bytes"),
        *_list_fields(_Recipe, "recipe"),
        *_list_fields(c_uint64, "updates", "row", "left", "carry", "drawn"),
        *_list_fields(c_uint64 * 4, "key"),
        *_list_fields(c_uint64, "map_bytes"),
    )


_library = load_library(
    {
        "sgd_bytes": (c_uint64, [POINTER(_Recipe), c_void_p]),
        "sgd_init": (c_int, [c_void_p, c_size_t, POINTER(_Recipe), c_char_p, c_void_p, c_void_p]),
        "sgd_cells": (c_uint64, [c_void_p]),
        "sgd_check": (c_int, [c_void_p, c_size_t]),
        "sgd_run": (
            c_int,
            [POINTER(c_void_p), POINTER(c_size_t), *[c_size_t, c_void_p] * 2, c_size_t, c_int, c_int],
        ),
        "sgd_weights": (c_int, [c_void_p, c_size_t, c_void_p]),
        "sgd_has_build": (c_int, [c_int]),
        "sgd_error_text": (c_char_p, [c_int]),
        "sgd_chacha20": (c_int, [c_void_p, c_void_p, c_int]),
        "sgd_log": (c_double, [c_double]),
        "sgd_exp2_256ths": (c_double, [c_double]),
        "sgd_row_scale": (c_double, [c_double, c_uint64]),
        "losses_facts": (None, [c_uint64, c_void_p]),
        "losses_vectors": (c_uint64, [c_uint64, c_uint64]),
        "losses_slope": (c_double, [c_uint64, *[c_double] * 3]),
        "losses_curvature": (c_double, [c_uint64, *[c_double] * 3]),
        "feature_map_check": (c_int, [c_void_p, c_size_t]),
        "feature_map_features": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
        "feature_map_scores": (
            None,
            [c_void_p, c_uint64, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p],
        ),
        "feature_map_sparse_scores": (c_int, [*[c_void_p] * 3, c_size_t, *[c_void_p] * 3]),
        "sum_check": (c_int, [c_void_p, c_size_t]),
        "sum_add": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, c_int]),
        "sum_join": (c_int, [c_void_p, c_size_t, c_void_p]),
        "derivatives_bytes": (c_uint64, [*[c_uint64] * 6, c_void_p]),
        "derivatives_init": (
            c_int,
            [c_void_p, c_size_t, *[c_uint64] * 6, c_void_p, *[c_double] * 2, c_uint64, *[c_void_p] * 3],
        ),
        "derivatives_add_sparse": (c_int, [c_void_p, c_size_t, c_void_p]),
        "derivatives_sum": (c_int, [c_void_p, c_size_t, c_void_p]),
        "misclassification_bytes": (c_uint64, [*[c_uint64] * 4, c_void_p]),
        "misclassification_init": (c_int, [c_void_p, c_size_t, *[c_uint64] * 4, *[c_void_p] * 2]),
        "number_errors_bytes": (c_uint64, [*[c_uint64] * 3, c_void_p]),
        "number_errors_init": (
            c_int,
            [c_void_p, c_size_t, *[c_uint64] * 3, c_void_p, c_double, c_double, c_void_p],
        ),
        "unusable_label_count_bytes": (c_uint64, [*[c_uint64] * 2, c_void_p]),
        "unusable_label_count_init": (c_int, [c_void_p, c_size_t, *[c_uint64] * 2, *[c_void_p] * 2]),
        "unusable_label_count_add_labels": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t]),
        "label_histogram_bytes": (c_uint64, [*[c_uint64] * 2, c_void_p]),
        "label_histogram_init": (c_int, [c_void_p, c_size_t, *[c_uint64] * 2, c_void_p]),
        "feature_sums_bytes": (c_uint64, [c_uint64, c_void_p]),
        "feature_sums_init": (c_int, [c_void_p, c_size_t, c_uint64, c_void_p, c_double]),
        "sgd_read_memory": (c_float, [c_void_p, c_size_t]),
        "sampling_fixed": (c_size_t, [c_char_p, *[c_uint64] * 4, c_size_t, c_void_p, c_size_t, c_void_p]),
        "sampling_poisson": (c_size_t, [c_char_p, *[c_uint64] * 3, c_double, c_void_p, c_void_p, c_size_t]),
    }
)


def _get_error_text(code: int) -> str:
    text: bytes = _library.sgd_error_text(code)
    return text.decode()


class State:
    """One model in training: its recipe, its position in the rows and its weights, in one block of bytes.

    For a loss with one weight vector, `positive` is the index of the class with y = +1; every other class has y = -1,
    as in one-vs-rest. `classes` is the number of classes, which a loss with one vector per class determines itself.

    With `noise`, every update adds a fresh draw of it to the averaged gradient of the batch. All its randomness comes
    from `key`, 32 bytes that no other state may share: the noise of two states with the same key cancels in the
    difference of their weights. It has `loss.directions` * dims dimensions, like the gradients.

    With `marked`, batches end at `BATCH_END` among the positions given to `run`, and have any number of rows. A pass
    ends after `recipe.batches` of them, and each sum of gradients is divided by rows / batches, the expected batch
    size.

    With a `feature_map`, packed rows have its cells, which it converts to the recipe's features.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        positive: int = 1,
        classes: int = 2,
        noise: Mechanism | None = None,
        key: bytes | None = None,
        marked: bool = False,
        feature_map: FeatureMap | None = None,
    ) -> None:
        loss, schedule = recipe.loss, recipe.schedule
        if loss.vector_count > 1:
            classes = loss.vector_count
        if classes < 2:
            raise ParameterError(f"classes must be >= 2, got {classes}")
        if not 0 <= positive < classes:
            raise ParameterError(f"positive must be a class index from 0 to {classes - 1}, got {positive}")
        check_undivided(recipe, "a state, which is of one of them")
        _check_noise(recipe, noise, key)
        c_recipe = _Recipe(
            loss=loss.number,
            dims=recipe.dims,
            classes=classes,
            positive=positive,
            rows=recipe.rows,
            batches=recipe.batches,
            passes=recipe.passes,
            averaged=recipe.averaged,
            growth=_GROWTHS[schedule.growth],
            scale=schedule.scale,
            offset=schedule.offset,
            cap=schedule.cap,
            parameter=loss.parameter,
            regularization=recipe.regularization,
            radius=recipe.radius,
            marked=marked,
            noise=_NO_NOISE if noise is None else _NOISES[noise.kind],
            deviation=0.0 if noise is None else noise.scale,
            weighted=recipe.class_weights is not None,
        )
        class_weights = _convert_class_weights(recipe.class_weights, classes)
        if feature_map is not None and feature_map.dims != recipe.dims:
            raise ParameterError(f"feature_map must be of {recipe.dims} features, got {feature_map.dims}")
        map_pointer = _get_address(feature_map)
        size = _library.sgd_bytes(c_recipe, map_pointer)
        self._block = _allocate_aligned(size)
        code = _library.sgd_init(self._block.ctypes.data, size, c_recipe, key, _get_address(class_weights), map_pointer)
        if code:
            raise ParameterError(_get_error_text(code), hint="sgd.h states the range of each number")

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> State:
        """Restore a state from `to_bytes`; raise DataError if the bytes are not a valid state."""
        state = cls.__new__(cls)
        state._block = _allocate_aligned(memoryview(data).nbytes)
        state._block[:] = np.frombuffer(data, dtype=np.uint8)
        code = _library.sgd_check(state._block.ctypes.data, state._block.size)
        if code:
            raise DataError(f"cannot continue from these bytes: {_get_error_text(code)}")
        return state

    def to_bytes(self) -> bytes:
        """Serialize the state. It has weights without noise, or the key of their noise: as sensitive as the rows."""
        return self._block.tobytes()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Replace this SGD state by the bytes (of `to_bytes`) of its continuation in another process."""
        self._block = State.from_bytes(data)._block

    @property
    def _header(self) -> _Header:
        return _Header.from_buffer(self._block.data)

    @property
    def weights(self) -> Doubles:
        """The last or averaged weights, as the recipe says, of shape (vectors, dims); final when finished.

        They contain the noise of the updates, if there is any, and no other noise.
        """
        recipe = self._header.recipe
        out = np.empty((_library.losses_vectors(recipe.loss, recipe.classes), recipe.dims))
        code = _library.sgd_weights(self._block.ctypes.data, self._block.size, out.ctypes.data)
        if code:
            raise DataError(_get_error_text(code))
        return out

    @property
    def updates(self) -> int:
        """The number of updates done so far."""
        return int(self._header.updates)

    @property
    def rows_done(self) -> int:
        """The number of rows of the current pass that SGD has processed."""
        return int(self._header.row)

    @property
    def passes_done(self) -> int:
        header = self._header
        return int(header.updates // header.recipe.batches)

    @property
    def is_finished(self) -> bool:
        return self.passes_done == int(self._header.recipe.passes)

    @property
    def cells(self) -> int:
        """The number of cells of a packed row, which are all its numbers but the label."""
        return int(_library.sgd_cells(self._block.ctypes.data))


def run(
    states: Sequence[State],
    rows: Floats,
    *,
    positions: Integers | None = None,
    build: str | None = None,
) -> None:
    """Run SGD over a block of packed rows: each state is updated, in one read of the rows.

    With `positions`, only the rows there are fed, in that order. `BATCH_END` among them ends a batch of a marked state;
    other states treat it as a row with gradient zero.

    Each state continues from its position. A pass ends after `recipe.rows` rows (of a marked state: after
    `recipe.batches` batches), and the next begins. Feeding past the last pass raises ParameterError and changes no
    state. The result does not depend on how rows are split into blocks, nor on `build`, the instruction set, which is
    for tests; the default is the fastest.
    """
    build_number = _find_build_number(build)
    if rows.dtype not in _ELEMENTS or rows.ndim != 2 or not rows.flags.c_contiguous:
        raise ParameterError(
            f"rows must be a C-contiguous 2-D array of float32 or float64, got {rows.ndim}-D {rows.dtype}"
        )
    if len({id(state) for state in states}) < len(states):
        raise ParameterError("each state must be given once, got one more than once")
    if positions is not None and (
        positions.dtype != np.int64 or positions.ndim != 1 or not positions.flags.c_contiguous
    ):
        raise ParameterError(
            f"positions must be a C-contiguous 1-D array of int64, got {positions.ndim}-D {positions.dtype}"
        )
    for state in states:
        if rows.shape[1] != 1 + state.cells:
            raise ParameterError(f"rows must have 1 + {state.cells} columns, got {rows.shape[1]}")
    code = _library.sgd_run(
        (c_void_p * len(states))(*(state._block.ctypes.data for state in states)),
        (c_size_t * len(states))(*(state._block.size for state in states)),
        len(states),
        rows.ctypes.data,
        rows.shape[0],
        None if positions is None else positions.ctypes.data,
        rows.shape[0] if positions is None else len(positions),
        _ELEMENTS[rows.dtype],
        build_number,
    )
    if code:
        raise ParameterError(_get_error_text(code))


def _find_build_number(build: str | None) -> int:
    if build is not None and build not in list_builds():
        raise ParameterError(f"build must be one of {', '.join(list_builds())}, got {build!r}")
    return _FASTEST if build is None else _BUILDS[build]


def list_builds() -> tuple[str, ...]:
    """Return the instruction-set builds that this machine can run, the portable one first."""
    return tuple(name for name, number in _BUILDS.items() if _library.sgd_has_build(number))


def _check_noise(recipe: Recipe, noise: Mechanism | None, key: bytes | None) -> None:
    if noise is None:
        if key is not None:
            raise ParameterError("key must be None without noise, got one")
        return
    if key is None or len(key) != KEY_BYTES:
        raise ParameterError(f"key must have {KEY_BYTES} bytes, got {'none' if key is None else len(key)}")
    if noise.dimensions != recipe.dimensions:
        raise ParameterError(f"noise must have {recipe.dimensions} dimensions, got {noise.dimensions}")


def _convert_class_weights(weights: tuple[float, ...] | None, classes: int) -> Doubles | None:
    """Convert class weights to an array for C; raise ParameterError unless there is one for each class."""
    if weights is None:
        return None
    if len(weights) != classes:
        raise ParameterError(f"class_weights must be one for each of the {classes} classes, got {len(weights)}")
    return np.array(weights, dtype=np.float64)


def _get_address(numbers: Doubles | FeatureMap | None) -> int | None:
    """Return the memory address of an array or of a feature map for C; None for None."""
    if numbers is None:
        return None
    return numbers.ctypes.data if isinstance(numbers, np.ndarray) else numbers.block.ctypes.data


def _allocate_aligned(size: int) -> npt.NDArray[np.uint8]:
    block = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    skip = -block.ctypes.data % _ALIGNMENT
    return block[skip : skip + size]
