"""What users would run instead, each from the same Parquet file to a model: scikit-learn, with the fastest loading.

The clock on the wall is what counts, and processor seconds stand beside it. diffprivlib is measured where it is
installed (`pip install '.[rivals]'`), on a part of the rows, since its time is as long as they are many.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from sklearn.linear_model import LogisticRegression, SGDClassifier

from bench.ratio import Ratio
from bench.turns import take_turns
from boltdp.engines import open_source
from boltdp.engines.local_store import find_spool_directory
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows.synthesize import synthesize
from boltdp.workflows.train import train

DIMS = 50
EPOCHS = 10
#: Rows that diffprivlib is given.
FEW = 200_000

Matrix = npt.NDArray[np.float32]


def run(rows: int = 5_000_000) -> list[Ratio]:
    with tempfile.TemporaryDirectory(dir=find_spool_directory(), prefix="boltdp-bench-") as folder:
        path = Path(folder) / "rows.parquet"
        schema = synthesize(path, rows=rows, dims=DIMS, seed=1)
        works = {"auto": _ours(path, schema), "lbfgs": _lbfgs(path), "sgd": _sgd(path)}
        taken = take_turns(f"{rows:,} x {DIMS} from Parquet", works, repeats=2)
        ratios = [
            _ratio(
                f"auto over LogisticRegression (lbfgs), {rows:,} x {DIMS} from Parquet", taken["auto"], taken["lbfgs"]
            ),
            _ratio(f"auto over SGDClassifier, {EPOCHS} epochs, the same", taken["auto"], taken["sgd"]),
        ]
        if importlib.util.find_spec("diffprivlib") is None:
            print("  diffprivlib is not installed here: left out")
            return ratios
        few = Path(folder) / "few.parquet"
        schema = synthesize(few, rows=FEW, dims=DIMS, seed=1)
        taken = take_turns(
            f"{FEW:,} x {DIMS} from Parquet", {"auto": _ours(few, schema), "diffprivlib": _diffprivlib(few)}
        )
        return [
            *ratios,
            _ratio(f"auto over diffprivlib, {FEW:,} x {DIMS} from Parquet", taken["auto"], taken["diffprivlib"]),
        ]


def _ratio(name: str, ours: float, theirs: float) -> Ratio:
    return Ratio(name=name, value=ours / theirs, at_most=1.0)


def _loaded(path: Path) -> tuple[Matrix, npt.NDArray[Any]]:
    """The fastest way found: a thread a column in Arrow, then a copy of each into one array, column after column."""
    table = pq.read_table(path)
    features: Matrix = np.empty((table.num_rows, DIMS), np.float32, order="F")
    for i in range(DIMS):
        features[:, i] = table.column(f"f{i}").to_numpy()
    return features, table.column("label").to_numpy()


def _ours(path: Path, schema: Schema) -> Callable[[], object]:
    def work() -> None:
        with open_source(path) as engine:
            train(engine, schema, Settings(epsilon=1.0))

    return work


def _lbfgs(path: Path) -> Callable[[], object]:
    return lambda: LogisticRegression().fit(*_loaded(path))


def _sgd(path: Path) -> Callable[[], object]:
    def work() -> None:
        features, labels = _loaded(path)
        SGDClassifier(loss="log_loss", max_iter=EPOCHS, tol=None).fit(np.ascontiguousarray(features), labels)

    return work


def _diffprivlib(path: Path) -> Callable[[], object]:
    def work() -> None:
        from experiments.rivals import diffprivlib

        features, labels = _loaded(path)
        rows = features.astype(np.float64)
        rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None]
        fit = diffprivlib("logistic_regression")._logistic_regression_path
        fit(
            rows,
            labels,
            epsilon=1.0,
            data_norm=1.0,
            Cs=[1.0],
            pos_class=1,
            fit_intercept=False,
            check_input=False,
        )

    return work
