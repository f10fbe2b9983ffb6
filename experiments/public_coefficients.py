"""Coefficients of three public datasets beside those of statsmodels, and of the same rows with permuted labels.

`python -m experiments.coverage public` and `permuted` run it: docs/coverage.md has the tables and the picture.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from boltdp._array_types import Doubles
from boltdp._charts import BLUE, GREY, escape_label, save_figure
from boltdp.engines import open_source
from boltdp.errors import InferenceError
from boltdp.export.coefficients import Coefficients
from boltdp.schema.columns import Column
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from boltdp.schema.target import Number, Target
from boltdp.settings import Settings
from boltdp.workflows.train import train
from experiments.datasets import BENCHMARKS
from experiments.store import add_line, lines

EPSILON, REPEATS, LEVEL = 1.0, 200, 0.95
Record: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A regression that a statistician would make of a benchmark's rows."""

    benchmark: str
    target: Target
    columns: tuple[Column, ...]
    expressions: Mapping[str, str]  #: SQL of the columns that the benchmark lacks

    @property
    def schema(self) -> Schema:
        return Schema(self.target, self.columns)

    @property
    def of_classes(self) -> bool:
        return self.target.class_count > 0


def _choose(name: str, *categories: str) -> Categorical:
    return Categorical(name, categories, reference=categories[0])


STUDIES = {
    "Adult: income above 50,000": Study(
        "adult",
        Classes("label", (0, 1)),
        (
            *(Numeric("age", 0, 100), Numeric("education_num", 1, 16), Numeric("hours_per_week", 0, 100)),
            *(_choose("sex", "Female", "Male"), _choose("married", "no", "yes"), _choose("white", "no", "yes")),
        ),
        {
            "married": "if(marital_status LIKE 'Married-%', 'yes', 'no')",
            "white": "if(race = 'White', 'yes', 'no')",
        },
    ),
    "Bank: deposit subscribed": Study(
        "bank",
        Classes("label", (0, 1)),
        (
            *(Numeric("age", 18, 100), Numeric("balance", -5_000, 20_000), Numeric("campaign", 1, 20)),
            *(_choose("marital", "married", "divorced", "single"), _choose("housing", "no", "yes")),
            *(_choose("education", "secondary", "primary", "tertiary", "unknown"), _choose("loan", "no", "yes")),
        ),
        {},
    ),
    "CPS 1988: logarithm of the wage": Study(
        "wages",
        Number("log_wage", 3.0, 10.0),
        (
            *(Numeric("education", 0, 18), Numeric("experience", -5, 65)),
            *(_choose("ethnicity", "cauc", "afam"), _choose("smsa", "no", "yes"), _choose("parttime", "no", "yes")),
            _choose("region", "northeast", "midwest", "south", "west"),
        ),
        {"log_wage": "ln(wage)"},
    ),
}


@lru_cache(maxsize=4)
def read_rows(name: str) -> pa.Table:
    """Return the rows of a study."""
    study, schema = STUDIES[name], STUDIES[name].schema
    source = BENCHMARKS[study.benchmark].source()
    relation = source if isinstance(source, duckdb.DuckDBPyRelation) else duckdb.read_parquet(str(source))
    names = (schema.target.column, *(column.name for column in schema.columns))
    selected = ", ".join(f'{study.expressions.get(name, name)} AS "{name}"' for name in names)
    return relation.query("rows", f"SELECT {selected} FROM rows").to_arrow_table()


def make_design(schema: Schema, rows: pa.Table) -> tuple[Doubles, Doubles]:
    """Return what the coefficients are factors of, numbers clipped to their bounds, and the target."""
    parts = []
    for column in schema.columns:
        cells = rows.column(column.name)
        if isinstance(column, Categorical):
            texts = np.array(cells.cast(pa.string()).to_pylist())
            parts += [texts == str(value) for value in column.categories if value != column.reference]
        else:
            assert isinstance(column, Numeric)
            parts.append(np.clip(cells.to_numpy().astype(np.float64), column.low, column.high))
    return np.column_stack(parts).astype(np.float64), rows.column(schema.target.column).to_numpy().astype(np.float64)


def fit_statsmodels(study: Study, rows: pa.Table, unit: float = 1.0) -> tuple[Doubles, Doubles]:
    """Return the estimates and robust standard errors of statsmodels, the intercept last.

    Of a number they are those of an M-estimator with the loss ln cosh(residual / unit).
    """
    import statsmodels.api as sm

    design, target = make_design(study.schema, rows)
    factors = np.column_stack([design, np.ones(len(design))])
    if study.of_classes:
        fit = sm.Logit(target, factors).fit(disp=False, cov_type="HC0")
        return np.asarray(fit.params), np.asarray(fit.bse)
    start = sm.OLS(target, factors).fit().params
    scale = float(sm.robust.scale.mad(target - factors @ start, center=0.0))
    fit = sm.RLM(target, factors, M=_make_norm(unit / scale)).fit(start_params=start, update_scale=False)
    return np.asarray(fit.params), np.asarray(fit.bse)


def _make_norm(unit: float) -> Any:
    """Return the loss ln cosh(residual / unit) as a norm of statsmodels."""
    from statsmodels.robust.norms import RobustNorm

    class LogCosh(RobustNorm):  # type: ignore[misc, unused-ignore]
        def rho(self, z: Any) -> Any:
            return unit**2 * np.log(np.cosh(z / unit))

        def psi(self, z: Any) -> Any:
            return unit * np.tanh(z / unit)

        def weights(self, z: Any) -> Any:
            return np.where(z == 0, 1.0, unit * np.tanh(z / unit) / np.where(z == 0, 1.0, z))

        def psi_deriv(self, z: Any) -> Any:
            return 1.0 / np.cosh(z / unit) ** 2

    return LogCosh()


def train_study(study: Study, rows: pa.Table, *, robust: bool = True) -> Coefficients:
    """Train for inference on the rows, and return the coefficients."""
    settings = Settings(epsilon=EPSILON, inference=True, robust_errors=robust)
    return Coefficients(train(open_source(rows), study.schema, settings), level=LEVEL)
