"""The paper's datasets by name: from a folder of Parquet files, or fetched; rows on the unit sphere, its split sizes.

The folder is the one that BOLTDP_DATA names. What is not there is fetched by scikit-learn where there is a network, and
kept there (or, if that cannot be written, in a folder of the user's cache); rows and classes are counted before it is
used. Protein and HIGGS have no source that scikit-learn knows: `Source.hint` says where they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from boltdp._array_types import Integers, PackedRows
from boltdp._files.outputs import replace_file
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import DataError
from boltdp.schema.schema import Schema, make_array_schema
from experiments.datasets import BENCHMARKS, data_directory
from experiments.tasks import TEST_SHARE, Part, Task

if TYPE_CHECKING:
    import pandas as pd

Tables = Mapping[str, pa.Table]


@dataclass(frozen=True)
class Source:
    """A dataset: the benchmark that has its schema, what its files must hold, and how the paper used it."""

    title: str
    benchmark: str
    #: Of each file, its rows and how many of them have a label, which tells a wrong file from the right one.
    files: Mapping[str, tuple[int, tuple[Any, int]]]
    share: float = TEST_SHARE  #: of the rows, those for testing, where there is no file of them
    fetch: Callable[[], Tables] | None = None
    hint: str = ""

    def missing(self) -> list[str]:
        """The files that are not in the folder."""
        return [name for name in self.files if not (data_directory() / name).is_file()]

    def available(self) -> bool:
        """Whether all files are there."""
        return not self.missing()


def _mnist() -> Tables:
    from sklearn.datasets import fetch_openml

    fetched = fetch_openml("mnist_784", version=1, as_frame=False)
    pixels = fetched.data.astype(np.uint8)
    columns = {f"f{place}": pixels[:, place] for place in range(pixels.shape[1])}
    table = pa.table({**columns, "label": fetched.target.astype(np.uint8)})
    return {"mnist_train.parquet": table.slice(0, 60_000), "mnist_test.parquet": table.slice(60_000)}


def _covertype() -> Tables:
    from sklearn.datasets import fetch_covtype

    fetched = fetch_covtype()
    names = [column.name for column in BENCHMARKS["covtype"].schema.columns]
    columns = {name: fetched.data[:, place].astype(np.int16) for place, name in enumerate(names)}
    return {"covtype.parquet": pa.table({**columns, "label": fetched.target.astype(np.uint8)})}


def _connections() -> Tables:
    from sklearn.datasets import fetch_kddcup99

    frame = fetch_kddcup99(percent10=True, as_frame=True).frame
    columns = {name: _plain(frame[name]) for name in frame.columns if name != "labels"}
    labels = [text.decode().removesuffix(".") for text in frame["labels"]]
    return {"kddcup99_10percent.parquet": pa.table({**columns, "label": labels})}


def _adult() -> Tables:
    from sklearn.datasets import fetch_openml

    frame = fetch_openml("adult", version=2, as_frame=True).frame
    columns = {name.replace("-", "_"): _plain(frame[name]) for name in frame.columns if name != "class"}
    labels = [int(text.strip().startswith(">")) for text in frame["class"]]
    table = pa.table({**columns, "label": labels})
    return {"adult_train.parquet": table.slice(0, 32_561), "adult_test.parquet": table.slice(32_561)}


def _plain(column: pd.Series[Any]) -> list[Any]:
    """The cells as numbers and texts; what is missing is the text "?", as in the originals."""

    def cell(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode()
        return value if isinstance(value, (str, int, float)) and value == value else "?"

    return [cell(value) for value in column.tolist()]


_PROTEIN_ROWS, _COVERTYPE_ROWS = 145_751, 581_012
SOURCES: Mapping[str, Source] = {
    "mnist": Source(
        "MNIST, 50 dimensions",
        "mnist50",
        {"mnist_train.parquet": (60_000, (0, 5_923)), "mnist_test.parquet": (10_000, (0, 980))},
        fetch=_mnist,
    ),
    "protein": Source(
        "Protein",
        "protein",
        {"protein.parquet": (_PROTEIN_ROWS, (1, 1_296))},
        share=72_875 / _PROTEIN_ROWS,
        hint="it is bio_train.dat of KDD Cup 2004 (osmot.cs.cornell.edu/kddcup), with columns f0 to f73 and label",
    ),
    "covertype": Source(
        "Covertype",
        "covtype",
        {"covtype.parquet": (_COVERTYPE_ROWS, (2, 283_301))},
        share=83_002 / _COVERTYPE_ROWS,
        fetch=_covertype,
    ),
    "higgs": Source(
        "HIGGS, part of 54,422 rows",
        "higgs",
        {"higgs_subset.parquet": (54_422, (1, 28_846))},
        hint="it is a part of the UCI dataset HIGGS, put together as the folder's README says",
    ),
    "kddcup99": Source(
        "KDDCup-99, 10% file",
        "kddcup99",
        {"kddcup99_10percent.parquet": (494_021, ("normal", 97_278))},
        fetch=_connections,
    ),
    "adult": Source(
        "Adult",
        "adult",
        {"adult_train.parquet": (32_561, (1, 7_841)), "adult_test.parquet": (16_281, (1, 3_846))},
        fetch=_adult,
    ),
}


def ensure(name: str) -> None:
    """Fetch what is not there, and refuse files that are not what they should be."""
    source = SOURCES[name]
    if source.missing() and source.fetch is not None:
        try:
            tables = source.fetch()
        except OSError as fault:
            raise DataError(
                f"{name} is not in {str(data_directory())!r} and cannot be fetched: {type(fault).__name__}",
                hint="set BOLTDP_DATA or --data to the folder that has its Parquet files",
            ) from None
        for file, table in tables.items():
            check(table, file, *source.files[file])
        _keep(tables)
    if missing := source.missing():
        raise DataError(f"{', '.join(missing)} is not in {str(data_directory())!r}", hint=source.hint or None)
    for file, (rows, counted) in source.files.items():
        check(pq.read_table(data_directory() / file, columns=["label"]), file, rows, counted)


def check(table: pa.Table, file: str, rows: int, counted: tuple[Any, int]) -> None:
    """Refuse a table that has other rows than the file should have."""
    if len(table) != rows:
        raise DataError(f"{file} must have {rows:,} rows, got {len(table):,}")
    label, count = counted
    found = pc.sum(pc.equal(table["label"].cast(pa.string()), str(label))).as_py()
    if found != count:
        raise DataError(f"{file} must have {count:,} rows with the label {label!r}, got {found:,}")


def _keep(tables: Tables) -> None:
    folder = data_directory()
    if not os.access(folder, os.W_OK):
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "boltdp"
        folder.mkdir(parents=True, exist_ok=True)
        for file in data_directory().glob("*.parquet"):
            (folder / file.name).unlink(missing_ok=True)
            (folder / file.name).symlink_to(file)
        os.environ["BOLTDP_DATA"] = str(folder)
    for name, table in tables.items():
        with replace_file(folder / name) as aside:
            pq.write_table(table, aside, compression="zstd")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A dataset as the paper prepared it: rows on the unit sphere, without an intercept."""

    name: str
    training: PackedRows
    labels: Integers
    testing: PackedRows
    truth: Integers
    classes: int

    @property
    def rows(self) -> int:
        """Number of training rows, m."""
        return len(self.training)

    @property
    def dims(self) -> int:
        """Features of a row, d."""
        return int(self.training.shape[1])

    @property
    def schema(self) -> Schema:
        """Of the features as they are."""
        return make_array_schema(dims=self.dims, classes=tuple(range(self.classes)))

    def engine(self) -> ArrayEngine:
        """The training rows."""
        return ArrayEngine.from_numpy(self.training, self.labels)


@lru_cache(maxsize=1)
def task(name: str) -> Task:
    """The rows as they are, with their schema, in the paper's split: what "auto" and the rivals at their best get."""
    ensure(name)
    return Task.of(SOURCES[name].benchmark, share=SOURCES[name].share)


@lru_cache(maxsize=1)
def on_the_sphere(name: str) -> Prepared:
    """The same rows as the paper prepared them: encoded by public bounds, projected if they are MNIST, then scaled."""
    return scaled(name, task(name))


def scaled(name: str, given: Task) -> Prepared:
    """The rows of a task, scaled to length 1."""
    training, testing = given.parts
    return Prepared(
        name, sphere(training), training.labels, sphere(testing), testing.labels, classes=len(given.schema.classes)
    )


def sphere(part: Part) -> PackedRows:
    """Rows of length 1; a row of zeros stays one.

    >>> sphere(Part(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32), np.array([0, 1]))).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", part.features, part.features, dtype=np.float64))
    unit: PackedRows = (part.features / np.where(lengths > 0, lengths, 1.0)[:, None]).astype(np.float32)
    return unit
