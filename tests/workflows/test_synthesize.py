"""The synthesizer: the same rows for the same seed, in the unit ball, in every form and size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.errors import DataError, ParameterError
from boltdp.workflows.synthesize import draw_synthetic_blocks, make_synthetic_schema, synthesize


def drawn(**settings: float) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    blocks = list(draw_synthetic_blocks(**settings))  # type: ignore[arg-type]
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks])


def test_row_depends_on_seed_and_position_alone() -> None:
    many, many_labels = drawn(rows=20_000, dims=4, seed=3)
    few, few_labels = drawn(rows=9_000, dims=4, seed=3)
    np.testing.assert_array_equal(many[:9_000], few)
    np.testing.assert_array_equal(many_labels[:9_000], few_labels)
    assert (drawn(rows=9_000, dims=4, seed=4)[0] != few).any()


@pytest.mark.parametrize("classes", [2, 5])
def test_rows_lie_in_the_unit_ball_and_classes_are_even(classes: int) -> None:
    features, labels = drawn(rows=20_000, dims=3, classes=classes, separation=3.0)
    assert np.linalg.norm(features.astype(np.float64), axis=1).max() <= 1 + 1e-6
    np.testing.assert_allclose(np.bincount(labels) / 20_000, 1 / classes, atol=0.02)


def test_two_classes_are_as_far_apart_as_asked_for() -> None:
    features, labels = drawn(rows=40_000, dims=50, separation=1.0)
    direction = features[labels == 1].mean(axis=0) - features[labels == 0].mean(axis=0)
    right = ((features @ direction > 0) == (labels == 1)).mean()
    assert right == pytest.approx(0.8413, abs=0.01)


@pytest.mark.parametrize("ending", ["parquet", "duckdb"])
@pytest.mark.parametrize("classes", [2, 3])
def test_written_rows_are_the_drawn_ones_and_fit_the_schema(tmp_path: Path, ending: str, classes: int) -> None:
    path = tmp_path / f"rows.{ending}"
    told: list[int] = []
    schema = synthesize(path, rows=70_000, dims=3, classes=classes, seed=9, progress=told.append)
    assert schema == make_synthetic_schema(dims=3, classes=classes)
    assert told == sorted(told)
    assert told[-1] == 70_000
    features, labels = drawn(rows=70_000, dims=3, classes=classes, seed=9)
    rows = np.concatenate(list(encode_rows(open_source(path, table="rows" if ending == "duckdb" else None), schema)))
    np.testing.assert_array_equal(rows, np.column_stack([labels.astype(np.float32), features]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 0}, "rows must be >= 1, got 0"),
        ({"dims": 0}, "dims must be >= 1, got 0"),
        ({"classes": 1}, "classes must be >= 2, got 1"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"separation": -1.0}, "separation must be a finite number >= 0, got -1.0"),
    ],
)
@pytest.mark.parametrize("ending", ["parquet", "duckdb"])
def test_settings_out_of_range_are_refused_and_nothing_is_written(
    tmp_path: Path, ending: str, settings: dict[str, float], message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        synthesize(tmp_path / f"rows.{ending}", **({"rows": 10, "dims": 2} | settings))  # type: ignore[arg-type]
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


def test_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        synthesize(tmp_path / "nowhere" / "rows.parquet", rows=10, dims=2)
    with pytest.raises(DataError, match="cannot be written"):
        synthesize(tmp_path / "nowhere" / "rows.duckdb", rows=10, dims=2)
    with pytest.raises(ParameterError, match=r"must end in \.parquet or \.duckdb, got 'rows\.txt'"):
        synthesize(tmp_path / "rows.txt", rows=10, dims=2)


def test_database_that_exists_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "rows.duckdb"
    synthesize(path, rows=10, dims=2)
    before = path.read_bytes()
    with pytest.raises(ParameterError, match="must not exist yet"):
        synthesize(path, rows=10, dims=2)
    assert path.read_bytes() == before
