"""Counts of errors: those of the plain definition, whatever the build and the cuts; rows nobody can be right about."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.errors import DataError, ParameterError
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.misclassification import ErrorCounts
from boltdp.kernel.sgd import _library, list_builds
from boltdp.kernel.sum_state import Summation
from boltdp.losses import Logistic
from tests.kernel.cases import DIMS

Matrix = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]

FIELDS = ("magic", "bytes", "cells", "feature map", "summed", "classes", "models", "vectors")


def a_case(models: int, vectors: int, dims: int, *, rows: int, seed: int = 0) -> tuple[Matrix, Rows, int]:
    """Weights, rows inside and outside of the unit ball, some of them bad, and the number of classes."""
    random = np.random.default_rng(seed)
    classes = max(2, vectors)
    packed = np.empty((rows, 1 + dims), np.float32)
    packed[:, 0] = random.integers(0, classes, rows)
    packed[:, 1:] = random.standard_normal((rows, dims)) / np.sqrt(dims)
    for i in np.flatnonzero(random.random(rows) < 0.1):
        packed[i, random.integers(0, 1 + dims)] = random.choice([np.nan, np.inf, -np.inf])
        if random.random() < 0.5:
            packed[i, 0] = random.choice([-1.0, 0.5, classes, 1e30])
    return random.standard_normal((models, vectors, dims)), packed, classes


def shortened(rows: Matrix) -> Matrix:
    unit: Matrix = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None]
    return unit


def plain_counts(weights: Matrix, rows: Rows, classes: int) -> list[int]:
    """As misclassification.h defines them, of shortened rows."""
    sound = np.isfinite(rows).all(axis=1) & np.isin(rows[:, 0], np.arange(classes))
    margins = np.einsum("nd,mvd->mnv", shortened(rows[sound, 1:].astype(np.float64)), weights)
    chosen = (margins[:, :, 0] > 0) if weights.shape[1] == 1 else margins.argmax(axis=2)
    counts: list[int] = ((~sound).sum() + (chosen != rows[sound, 0]).sum(axis=1)).tolist()
    return counts


def counted(weights: Matrix, rows: Rows, classes: int, *, build: str | None = None) -> list[int]:
    errors = ErrorCounts(weights, classes=classes)
    errors.add(rows, build=build)
    return errors.counts


@pytest.mark.parametrize("build", list_builds())
@pytest.mark.parametrize("dims", [*DIMS, 127, 128, 129, 1023, 1024, 1025, 2500])
@pytest.mark.parametrize(("models", "vectors"), [(1, 1), (6, 1), (1, 2), (3, 3), (2, 7)])
def test_counts_are_those_of_the_definition(models: int, vectors: int, dims: int, build: str) -> None:
    weights, rows, classes = a_case(models, vectors, dims, rows=150)
    assert counted(weights, rows, classes, build=build) == plain_counts(weights, rows, classes)


@given(
    cuts=st.lists(st.integers(0, 300), max_size=6),
    shape=st.sampled_from([(5, 1, 3), (2, 3, 17), (3, 2, 130)]),
    seed=st.integers(0, 2**32),
)
def test_cutting_the_rows_and_the_build_change_no_count(
    cuts: list[int], shape: tuple[int, int, int], seed: int
) -> None:
    weights, rows, classes = a_case(*shape, rows=300, seed=seed)
    expected = counted(weights, rows, classes)
    for build in list_builds():
        errors = ErrorCounts(weights, classes=classes)
        for part in np.split(rows, sorted(cuts)):
            errors.add(part, build=build)
        assert errors.counts == expected


@pytest.mark.parametrize("vectors", [1, 3])
def test_rows_that_nobody_can_be_right_about_are_errors_of_every_model(vectors: int) -> None:
    classes = max(2, vectors)
    weights = np.random.default_rng(1).standard_normal((5, vectors, 2))
    nan, inf = np.nan, np.inf
    bad = np.array(
        [[0, nan, 0], [1, 0, inf], [1, -inf, 0], [nan, 1, 0], [-1, 1, 0], [0.5, 1, 0], [classes, 1, 0], [inf, 1, 0]],
        np.float32,
    )
    for build in list_builds():
        assert counted(weights, bad, classes, build=build) == [len(bad)] * 5


def test_a_model_with_one_vector_is_never_right_about_a_third_class() -> None:
    weights = np.array([[[1.0]], [[-1.0]]])
    assert counted(weights, np.array([[2, 0.5], [2, -0.5], [1, 0.5]], np.float32), 3) == [2, 3]


def test_ties_go_to_the_first_class() -> None:
    nothing = np.array([[c, 0.0] for c in (0, 1)], np.float32)
    assert counted(np.ones((1, 1, 1)), nothing, 2) == [1]
    assert counted(np.ones((1, 2, 1)), nothing, 2) == [1]
    # Classes 1 and 2 tie, before class 0: class 1 wins.
    rows = np.array([[c, 0.5] for c in (0, 1, 2)], np.float32)
    errors = ErrorCounts(np.array([[[1.0], [2.0], [2.0]]]), classes=3)
    for row, expected in zip(rows, (1, 1, 2), strict=True):
        errors.add(row[None])
        assert errors.counts == [expected]


def test_one_row_changes_each_count_by_at_most_one() -> None:
    weights, rows, classes = a_case(20, 3, 4, rows=100)
    counts = [np.array(counted(weights, np.delete(rows, i, axis=0), classes)) for i in range(100)]
    whole = np.array(counted(weights, rows, classes))
    assert {int(gap) for part in counts for gap in whole - part} == {0, 1}


def test_no_rows_are_no_errors() -> None:
    assert counted(np.ones((3, 1, 2)), np.empty((0, 3), np.float32), 2) == [0, 0, 0]


def test_counts_go_on_from_bytes_and_unsound_ones_are_refused() -> None:
    weights, rows, classes = a_case(4, 3, 5, rows=80)
    there, here = (ErrorCounts(weights, classes=classes) for _ in range(2))
    there.add(rows[:50])
    here.update(there.to_bytes())
    here.add(rows[50:])
    assert here.counts == counted(weights, rows, classes)
    before = here.to_bytes()
    for data in (b"", there.to_bytes()[:-1], there.to_bytes() + bytes(8), bytes(len(before))):
        with pytest.raises(DataError, match="cannot continue from these bytes: the state is corrupt"):
            here.update(data)
    for other in (ErrorCounts(weights[:2], classes=classes), ErrorCounts(np.ones((12, 1, 5)), classes=classes)):
        with pytest.raises(DataError, match="counts must stay those of the same models"):
            here.update(other.to_bytes())
    assert here.to_bytes() == before


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *(("magic", bad) for bad in (0, 0x31727265746C6F62)),
        ("bytes", 8),
        *(("cells", bad) for bad in (0, 2, 2**25, 2**62)),
        *(("classes", bad) for bad in (0, 1, 2, 2**25, 2**63)),
        *(("models", bad) for bad in (0, 3, 2**24, 2**62)),
        *(("vectors", bad) for bad in (0, 1, 2, 2**63)),
        ("feature map", 8),
        ("feature map", 2**63),
        ("summed", 2**63),
    ],
)
def test_states_with_a_header_that_is_not_sound_are_refused(field: str, bad: int) -> None:
    errors = ErrorCounts(np.ones((2, 3, 4)), classes=3)
    good, at = errors.to_bytes(), 8 * FIELDS.index(field)
    errors.update(good)
    with pytest.raises(DataError, match="the state is corrupt"):
        errors.update(good[:at] + bad.to_bytes(8, "little") + good[at + 8 :])


@pytest.mark.parametrize(
    "make", [lambda: ErrorCounts(np.zeros((1, 1, 2)), classes=2), lambda: DerivativeSums(Logistic(), np.zeros((1, 2)))]
)
def test_misuse_of_any_summation_is_refused(make: Any) -> None:
    made = make()
    summation: Summation = made
    assert summation.cells == 2
    before = summation.to_bytes()
    with pytest.raises(ParameterError, match="rows must have 1 \\+ 2 columns, got 5"):
        summation.add(np.zeros((3, 5), np.float32))
    with pytest.raises(ParameterError, match="2-D array of float32, got 2-D float64"):
        summation.add(np.zeros((3, 3)))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="build must be one of"):
        summation.add(np.zeros((3, 3), np.float32), build="fast")
    room = np.zeros(37, np.uint8)
    with pytest.raises(ParameterError, match="not aligned"):
        summation.add(room[1:].view(np.float32).reshape(3, 3))
    assert summation.to_bytes() == before
    made._block[0] ^= 1
    with pytest.raises(ParameterError, match="the state is corrupt"):
        summation.add(np.zeros((3, 3), np.float32))


def test_weights_that_make_no_models_are_refused() -> None:
    with pytest.raises(ParameterError, match="weights must have shape \\(models, vectors, dims\\), got 2-D"):
        ErrorCounts(np.zeros((2, 2)), classes=2)
    with pytest.raises(ParameterError, match="weights must be finite numbers of shape"):
        ErrorCounts(np.full((1, 1, 2), np.inf), classes=2)
    for shape, classes in (((0, 1, 2), 2), ((1, 3, 2), 2), ((1, 2, 0), 2), ((1, 1, 2), 1), ((1, 1, 2), -1)):
        with pytest.raises(
            ParameterError, match=f"or one for each of 2 or more classes, got shape .* {classes} classes"
        ):
            ErrorCounts(np.zeros(shape), classes=classes)


def test_memory_that_no_state_fits_is_refused_by_c() -> None:
    size = _library.misclassification_bytes(2, 2, 1, 1, None)
    block, weights = np.zeros(size + 64, np.uint8), np.zeros(2)
    start = block.ctypes.data + -block.ctypes.data % 64

    def code(at: int, bytes_: int) -> str:
        text: bytes = _library.sgd_error_text(
            _library.misclassification_init(at, bytes_, 2, 2, 1, 1, None, weights.ctypes.data)
        )
        return text.decode()

    assert code(start, size) == "no error"
    assert "outside the kernel's range" in code(start, size + 8)
    assert "not aligned" in code(start + 4, size)
    checked: bytes = _library.sgd_error_text(_library.sum_check(start + 4, size))
    assert "not aligned" in checked.decode()
