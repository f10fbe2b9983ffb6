"""Rows without a usable label are counted exactly, in any order, and a damaged state is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from boltdp._array_types import PackedRows
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.sgd import list_builds
from boltdp.kernel.unusable_label_count import UnusableLabelCount

#: Labels that are not those of three classes.
UNUSABLE = (np.nan, -1.0, 3.0, 0.5, np.inf, -np.inf, 1e30)


def make_rows(labels: list[float], cells: int = 3) -> PackedRows:
    random = np.random.default_rng(1)
    packed = random.normal(size=(len(labels), 1 + cells)).astype(np.float32)
    packed[:, 0] = labels
    return packed


def count(packed: PackedRows, *, neutral: PackedRows | None = None, build: str | None = None) -> int:
    found = UnusableLabelCount(cells=packed.shape[1] - 1, classes=3, neutral=neutral)
    found.add(packed, build=build)
    return found.count


@pytest.mark.parametrize("label", UNUSABLE)
def test_a_label_that_is_no_class_is_counted(label: float) -> None:
    assert count(make_rows([0.0, label, 2.0, -0.0])) == 1


def test_without_classes_labels_are_numbers_between_the_bounds() -> None:
    usable = [-1.0, -0.5, -0.0, 0.3, 1.0]
    beyond = [float(np.nextafter(np.float32(1), np.float32(2))), -1.5, 2.0]
    packed = make_rows([*usable, *beyond, np.nan, np.inf, -np.inf, 1e30])
    for build in list_builds():
        found = UnusableLabelCount(cells=3, classes=0)
        found.add(packed, build=build)
        assert found.count == len(beyond) + 4
    here, there = UnusableLabelCount(cells=3, classes=0), UnusableLabelCount(cells=3, classes=3)
    with pytest.raises(ParameterError, match="counts must stay those of the same classes and neutral row"):
        here.join(there)


def test_neutral_rows_are_not_counted_where_labels_are_numbers() -> None:
    neutral = np.full((1, 3), np.nan, np.float32)
    packed = np.repeat(neutral, 3, axis=0)
    packed[1, 1] = 0.5
    found = UnusableLabelCount(cells=2, classes=0, neutral=neutral)
    found.add(packed)
    assert found.count == 1


@pytest.mark.parametrize("build", ["portable", None])
def test_the_count_is_that_of_numpy_however_rows_are_split(build: str | None) -> None:
    random = np.random.default_rng(2)
    labels = random.choice([0.0, 1.0, 2.0, *UNUSABLE], 1000)
    packed = make_rows(labels.tolist())
    expected = int((~np.isin(labels, [0, 1, 2])).sum())
    whole = UnusableLabelCount(cells=3, classes=3)
    for part in np.array_split(packed, 7):
        other = whole.copy_empty()
        other.add(np.ascontiguousarray(part), build=build)
        whole.join(other)
    assert count(packed, build=build) == whole.count == expected
    again = UnusableLabelCount(cells=3, classes=3)
    again.update(whole.to_bytes())
    assert again.count == expected


@pytest.mark.parametrize("cells", [1, 2, 3])
def test_rows_with_the_cells_of_a_neutral_one_are_not_counted(cells: int) -> None:
    neutral = np.full((1, 1 + cells), np.nan, np.float32)
    neutral[0, -1] = -1.0
    packed = np.repeat(neutral, 6, axis=0)
    packed[1, -1] = 0.0  # another category
    packed[2, 1] = 0.25  # a number that is not missing
    packed[3, -1] = np.nan
    packed[4, 0] = 1.0  # a usable label
    assert count(packed) == 5
    assert count(packed, neutral=neutral) == 3
    other = packed.copy()
    other.view(np.uint32)[5, 1:cells] = 0x7FC01234  # a NaN is one, whatever its bits are
    assert count(other, neutral=neutral) == 3


def test_a_damaged_or_other_state_is_refused() -> None:
    here = UnusableLabelCount(cells=3, classes=3)
    here.add(make_rows([0.0, np.nan]))
    good = here.to_bytes()
    # Bytes, cells, the length of a feature map, classes, whether neutral rows are left out, and more than all rows.
    for word, bad in ((1, 8), (2, 5), (3, 8), (5, 10**9), (6, 2), (7, 3)):
        with pytest.raises(DataError, match="the state is corrupt"):
            here.update(good[: 8 * word] + bad.to_bytes(8, "little") + good[8 * word + 8 :])
    neutral = np.zeros((1, 4), np.float32)
    for other in (UnusableLabelCount(cells=3, classes=4), UnusableLabelCount(cells=3, classes=3, neutral=neutral)):
        with pytest.raises(ParameterError, match="counts must stay those of the same classes and neutral row"):
            here.join(other)
        with pytest.raises(DataError, match="counts must stay those of the same classes and neutral row"):
            here.update(other.to_bytes())
    assert (here.to_bytes(), here.count) == (good, 1)


def test_misuse_is_refused() -> None:
    for cells, classes in ((0, 2), (3, 10**9)):
        with pytest.raises(ParameterError, match="there must be cells, and classes or none"):
            UnusableLabelCount(cells=cells, classes=classes)
    unfit: list[Any] = [np.zeros((1, 3), np.float32), np.zeros((2, 4), np.float32), np.zeros((1, 4))]
    for neutral in unfit:
        with pytest.raises(ParameterError, match="neutral must be one packed row of 3 cells"):
            UnusableLabelCount(cells=3, classes=2, neutral=neutral)
