"""The benchmark data sets, read from the directory that BOLTDP_DATA names (else ../shared/data).

They are public, and their bounds are those of the documented meaning of each column.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from boltdp.data.schema import Categorical, Numeric, Projection, Schema
from boltdp.engines.duckdb import DuckDBEngine
from boltdp.errors import DataError, ParameterError


@dataclass(frozen=True)
class Benchmark:
    """A data set: its files, its schema, and the SQL that makes its label if that is not a column.

    >>> BENCHMARKS["mnist"].schema.dims
    785
    """

    name: str
    schema: Schema
    train: str
    test: str | None = None  #: None: split the prepared rows by position
    label: str | None = None  #: SQL over the columns of the file

    def available(self) -> bool:
        """Whether its files are there."""
        return all((data_directory() / file).is_file() for file in (self.train, self.test) if file)

    def open(self, part: str = "train") -> DuckDBEngine:
        """The engine over its "train" or "test" rows."""
        if part not in ("train", "test") or (part == "test" and self.test is None):
            parts = "train" if self.test is None else "train or test"
            raise ParameterError(f"the part of {self.name!r} must be {parts}, got {part!r}")
        file = data_directory() / (self.train if part == "train" else str(self.test))
        if not file.is_file():
            raise DataError(
                f"the benchmark data {file.name!r} is not in {str(file.parent)!r}",
                hint="set BOLTDP_DATA to the directory that has it",
            )
        if self.label is None:
            return DuckDBEngine.from_parquet(file)
        connection = duckdb.connect()
        relation = connection.sql(
            f"SELECT {self.label} AS label, * EXCLUDE (label) FROM read_parquet(?)", params=[str(file)]
        )
        return DuckDBEngine.from_relation(relation)


def data_directory() -> Path:
    """Where the benchmark data is.

    >>> data_directory().is_absolute()
    True
    """
    return Path(os.environ.get("BOLTDP_DATA") or "../shared/data").resolve()


def _images(*, radius: float) -> Schema:
    # Bounds symmetric about 0 make an encoded pixel its grey level over 255; the radius is then the usual norm of an
    # image, by the published mean and deviation of the pixels.
    pixels = tuple(Numeric(f"f{i}", -255, 255) for i in range(784))
    return Schema("label", tuple(range(10)), pixels, radius=radius)


def _covertype(classes: tuple[int, ...]) -> Schema:
    # Heights in Colorado and distances within a forest, in metres; angles; shades as grey levels.
    bounds = {
        "Elevation": (1500, 4400),
        "Aspect": (0, 360),
        "Slope": (0, 90),
        "Horizontal_Distance_To_Hydrology": (0, 1500),
        "Vertical_Distance_To_Hydrology": (-300, 700),
        "Horizontal_Distance_To_Roadways": (0, 8000),
        "Hillshade_9am": (0, 255),
        "Hillshade_Noon": (0, 255),
        "Hillshade_3pm": (0, 255),
        "Horizontal_Distance_To_Fire_Points": (0, 8000),
    }
    indicators = [f"Wilderness_Area{i}" for i in range(1, 5)] + [f"Soil_Type{i}" for i in range(1, 41)]
    # Symmetric, so that the indicators that are not set add nothing to the norm.
    bounds.update(dict.fromkeys(indicators, (-1, 1)))
    return Schema("label", classes, tuple(Numeric(name, *ends) for name, ends in bounds.items()), radius=3.0)


def _adult() -> Schema:
    # The survey weight is no feature, and `education` says the same as `education_num`.
    bounds = {
        "age": (0, 100),
        "education_num": (1, 16),
        "capital_gain": (0, 100_000),
        "capital_loss": (0, 5_000),
        "hours_per_week": (0, 100),
    }
    # As the data set's documentation lists them; what is not known is the text "?", and so no category.
    categories = {
        "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
        "marital_status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse",
        "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv "
        "Protective-serv Armed-Forces",
        "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
        "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
        "sex": "Female Male",
        "native_country": "United-States Cambodia England Puerto-Rico Canada Germany "
        "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland "
        "Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia "
        "Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
        "Holand-Netherlands",
    }
    numeric = [Numeric(name, *ends) for name, ends in bounds.items()]
    categorical = [Categorical(name, tuple(listed.split())) for name, listed in categories.items()]
    return Schema("label", (0, 1), (*numeric, *categorical))


def _benchmarks() -> Mapping[str, Benchmark]:
    digits, projection = _images(radius=9.0), Projection(dims=50, seed=17)
    listed = (
        Benchmark("mnist", digits, "mnist_train.parquet", "mnist_test.parquet"),
        Benchmark("mnist50", replace(digits, projection=projection), "mnist_train.parquet", "mnist_test.parquet"),
        Benchmark("fashion", _images(radius=13.0), "fashion_mnist_train.parquet", "fashion_mnist_test.parquet"),
        Benchmark("covtype", _covertype((0, 1)), "covtype.parquet", label="(label = 2)::INTEGER"),
        Benchmark("covtype7", _covertype(tuple(range(1, 8))), "covtype.parquet"),
        Benchmark("adult", _adult(), "adult_train.parquet", "adult_test.parquet"),
    )
    return {benchmark.name: benchmark for benchmark in listed}


BENCHMARKS = _benchmarks()
