"""The rivals that predict numbers."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from experiments.rivals import Rival
from experiments.tasks import Answer, Task, judged, split

from boltdp.engines.in_memory import ArrayEngine
from boltdp.privacy.budget import Budget
from boltdp.privacy.mechanisms import calibrate_unit_gaussian
from boltdp.schema.schema import Categorical, Numeric, Schema
from boltdp.schema.target import Number
from experiments import accuracy, regression_rivals, rivals

SCHEMA = Schema(
    Number("rent", 0, 4000, typical=(600, 1800)),
    (Numeric("size", 0, 200), Numeric("floor", 0, 20), Categorical("lift", ("no", "yes"))),
)
WAYS: dict[str, Rival] = {
    "prepared": partial(regression_rivals.sufficient_statistics, prepared=True, ridge=1.4, reach=2.5),
    "plain": partial(regression_rivals.sufficient_statistics, prepared=False, ridge=1.0),
    "boosted": partial(regression_rivals.sufficient_statistics, prepared=True, ridge=4.0, rounds=10),
    "descent": partial(regression_rivals.least_squares_descent, clip=1.0, length=2.0),
    "deep": partial(regression_rivals.deep_models, models=400),
}


def flats(rows: int = 6000, *, seed: int = 3) -> Task:
    """A made-up task in which every column tells something."""
    rng = np.random.default_rng(seed)
    size, floor, lift = rng.normal(80, 25, rows), rng.integers(12, size=rows), rng.random(rows) < 0.4
    table = pa.table(
        {
            "size": size,
            "floor": floor,
            "lift": np.where(lift, "yes", "no"),
            "rent": np.clip(150 + 11 * size + 12 * floor + 90 * lift + rng.normal(0, 120, rows), 0, 4000),
        }
    )
    return Task("flats", *split(ArrayEngine.from_arrow(table), SCHEMA, share=0.25, seed=1), SCHEMA)


def r2(task: Task, rival: Rival, budget: Budget, *, seed: int = 1) -> float:
    return judged(rival(task, budget, np.random.default_rng(seed)), task.labels)["r2"]


@pytest.mark.parametrize("way", WAYS)
def test_rivals_learn_from_a_large_budget_and_not_from_a_tiny_one(way: str) -> None:
    task = flats()
    assert r2(task, WAYS[way], Budget(20.0, 1e-6)) > 0.8
    assert r2(task, WAYS[way], Budget(1e-4, 1e-6)) < 0.5


@pytest.mark.parametrize("way", ["prepared", "plain"])
def test_statistics_are_released_without_a_delta_too(way: str) -> None:
    assert r2(flats(), WAYS[way], Budget(20.0)) > 0.8


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_statistics_get_the_noise_of_their_sensitivities(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float, int]] = []

    def record(_: regression_rivals.Noise, sensitivity: float, share: float, size: int) -> Any:
        drawn.append((sensitivity, share, size))
        return np.zeros(size)

    monkeypatch.setattr(regression_rivals.Noise, "draw", record)
    regression_rivals.sufficient_statistics(
        flats(), Budget(1.0, delta), np.random.default_rng(1), prepared=False, ridge=1.0, reach=0.5, rounds=3
    )
    (eigenvalue, squares, *rounds) = drawn
    dims = SCHEMA.dims
    assert eigenvalue[::2] == (1.0, 1)
    assert squares[::2] == (math.sqrt(2.0), dims * (dims + 1) // 2)
    assert [one[::2] for one in rounds] == 3 * [(1.0, dims)]
    assert sum(share for _, share, _ in drawn) == pytest.approx(1.0)


def test_replacing_a_row_moves_the_statistics_by_their_sensitivities_at_most() -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(2000, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = rng.uniform(-2.5, 2.5, 2000)
    one, other = slice(None, 1000), slice(1000, None)
    squares = np.einsum("ij,ik->ijk", rows, rows)
    moments = rows * labels[:, None]
    assert 1.3 < np.linalg.norm(squares[one] - squares[other], axis=(1, 2)).max() <= math.sqrt(2.0)
    assert 4.0 < np.linalg.norm(moments[one] - moments[other], axis=1).max() <= 5.0


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_noise_has_the_scale_that_it_tells(share: float) -> None:
    rng = np.random.default_rng(4)
    sigma = calibrate_unit_gaussian(Budget(1.0, 1e-6))
    gaussian = regression_rivals.Noise(rng, sigma, 1.0)
    assert gaussian.scale(2.0, share, 7) == pytest.approx(2.0 * sigma / math.sqrt(share))
    spherical = regression_rivals.Noise(rng, None, 0.5)
    for noise in (gaussian, spherical):
        drawn = np.stack([noise.draw(2.0, share, 7) for _ in range(4000)])
        assert drawn.std() == pytest.approx(noise.scale(2.0, share, 7), rel=0.05)
    lengths = [float(np.linalg.norm(spherical.draw(2.0, share, 7))) for _ in range(4000)]
    assert np.mean(lengths) == pytest.approx(7 * 2.0 / (0.5 * share), rel=0.03)


def test_noise_of_a_symmetric_matrix_is_even_in_all_directions() -> None:
    noise = regression_rivals.Noise(np.random.default_rng(5), 3.0, 1.0)
    drawn = np.stack([noise.draw_symmetric(1.0, 1.0, 3) for _ in range(6000)])
    assert (drawn == drawn.transpose(0, 2, 1)).all()
    assert drawn[:, 0, 0].std() == pytest.approx(3.0, rel=0.05)
    assert drawn[:, 0, 1].std() == pytest.approx(3.0 / math.sqrt(2.0), rel=0.05)


def test_models_that_differ_too_much_are_not_released() -> None:
    narrow, wide = (width * np.arange(200, 0, -1.0) for width in (1e-3, 1.0))
    # The volume of the models' box as it gets deeper: nearly the same, or much smaller each time.
    assert regression_rivals._safe_distance(narrow, 100, 1.0, 1e-6) > 10
    assert regression_rivals._safe_distance(wide, 100, 1.0, 1e-6) == -1
    task = flats(400)
    answer = regression_rivals.deep_models(task, Budget(0.1, 1e-6), np.random.default_rng(1), models=100)
    assert set(answer.chosen) == {2000.0}


def test_a_change_of_one_model_moves_the_distance_by_one_at_most() -> None:
    rng = np.random.default_rng(6)
    models = rng.normal(size=(400, 3))
    distances = []
    for _ in range(20):
        changed = models.copy()
        changed[rng.integers(400)] = rng.normal(size=3) * 10.0 ** rng.integers(-2, 3)
        for some in (models, changed):
            ordered = np.sort(some, axis=0)
            volumes = np.log(ordered[::-1][:200] - ordered[:200]).sum(axis=1)
            distances.append(regression_rivals._safe_distance(volumes, 100, 1.0, 1e-6))
    assert min(distances) > 0
    assert np.abs(np.subtract(distances[::2], distances[1::2])).max() <= 1


@pytest.mark.skipif(not rivals.installed("diffprivlib"), reason="diffprivlib is not installed")
def test_diffprivlib_learns_from_a_large_budget() -> None:
    rival = partial(regression_rivals.diffprivlib_linear, reach=2.5)
    assert r2(flats(), rival, Budget(1000.0)) > 0.5


# -- judging


def test_numbers_are_judged_as_they_are_even_beyond_the_bounds() -> None:
    table = pa.table({"size": [50.0, 60.0], "floor": [1, 2], "lift": ["no", "yes"], "rent": [1000.0, 9000.0]})
    rows = ArrayEngine.from_arrow(table)
    task = Task("flats", rows, rows, SCHEMA)
    assert task.labels.tolist() == [1000.0, 9000.0]
    assert task.parts[1].labels.tolist() == pytest.approx([1000.0, 4000.0], rel=1e-6)
    assert judged(Answer(np.array([1000.0, 4000.0])), task.labels)["mae"] == 2500.0


def test_auto_learns_and_is_judged_by_its_predictions() -> None:
    assert r2(flats(), lambda task, budget, _: accuracy._auto(task, budget, None), Budget(20.0, 1e-6)) > 0.8


def test_large_errors_are_shown_in_whole_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "accuracy.jsonl"
    for repeat in range(10):
        cell = accuracy.Cell("houses", "pure", 0.1, "auto")
        accuracy.add(output, cell, repeat, {"r2": 0.6, "mae": 50_000.0 + repeat, "seconds": 1.0})
    accuracy.main(["table", "--output", str(output)])
    lines = capsys.readouterr().out.splitlines()
    assert "### R², pure" in lines
    assert "| houses | 0.1 |  | 0.600 ± 0.000 |" in lines
    assert "| houses | 0.1 |  | 50,004 ± 3 |" in lines
