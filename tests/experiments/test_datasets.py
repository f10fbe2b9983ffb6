"""The benchmark datasets, where they are to be had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from experiments.datasets import BENCHMARKS
from experiments.tasks import read_labels

from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.errors import DataError, ParameterError
from boltdp.schema.target import Number


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_rows_fit_their_schema(name: str) -> None:
    benchmark = BENCHMARKS[name]
    if not benchmark.available():
        pytest.skip(f"the data of {name} is not here")
    with open_source(benchmark.source()) as engine:
        block = next(encode_rows(engine, benchmark.schema))
    assert block.shape[1] == 1 + benchmark.schema.encoding.cell_count
    rows = benchmark.schema.encoding.read_features(block)
    assert np.isfinite(rows).all()
    target = benchmark.schema.target
    if isinstance(target, Number):
        labels = read_labels(block[:, 0], target)
        assert target.low <= labels.min() < labels.max() <= target.high
    else:
        assert set(block[:, 0]) <= set(range(len(benchmark.schema.classes)))
    # Few rows are longer than the clip norm, or it would cut off what tells classes apart.
    assert np.quantile(np.linalg.norm(rows[:, 1:], axis=1), 0.5) < 1.3


def test_absent_data_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOLTDP_DATA", str(tmp_path))
    assert not BENCHMARKS["mnist"].available()
    with pytest.raises(DataError, match=r"^the benchmark data 'mnist_test\.parquet' is not in ") as caught:
        open_source(BENCHMARKS["mnist"].source("test"))
    assert caught.value.hint == "set BOLTDP_DATA to the directory that has it"


def test_part_that_is_not_there_is_told() -> None:
    with pytest.raises(ParameterError, match=r"^the part of 'covtype' must be train, got 'test'$"):
        open_source(BENCHMARKS["covtype"].source("test"))
    with pytest.raises(ParameterError, match=r"^the part of 'mnist' must be train or test, got 'all'$"):
        open_source(BENCHMARKS["mnist"].source("all"))
