"""Coefficients of three public datasets beside those of statsmodels, and of the same rows with permuted labels.

`python -m experiments.coverage public` and `permuted` run it: docs/coverage.md has the tables and the picture.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    return relation.project(selected).to_arrow_table()


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


def train_study(study: Study, rows: pa.Table, epsilon: float | None = EPSILON) -> Coefficients:
    """Train for inference on the rows, with robust errors, and return the coefficients."""
    settings = Settings(epsilon=epsilon, inference=True, robust_errors=True)
    return Coefficients(train(open_source(rows), study.schema, settings), level=LEVEL)


def run(output: Path, *, repeats: int, permuted: bool) -> None:
    """Train each study what is not in `output` yet, on its rows or with its target permuted, and add the coefficients.

    Each repeat has fresh noise, and a fresh permutation.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    kind = "permuted" if permuted else "public"
    done = {(record["study"], record["repeat"]) for record in read(output, kind)}
    for name, study in STUDIES.items():
        if not BENCHMARKS[study.benchmark].available():
            print(f"{study.benchmark} is left out: its files are not in the directory that BOLTDP_DATA names")
            continue
        for number in range(repeats):
            if (name, number) not in done:
                record = {"kind": kind, "study": name, "repeat": number}
                add_line(output, record | train_once(study, read_rows(name), seed=number if permuted else None))
        print(_summarize(name, [one for one in read(output, kind) if one["study"] == name]), flush=True)


def train_once(study: Study, rows: pa.Table, *, seed: int | None) -> Record:
    """Train once, on a permuted target if there is a seed; return the terms, estimates, errors and intervals."""
    if seed is not None:
        column = study.target.column
        order = np.random.default_rng(seed).permutation(rows.num_rows)
        rows = rows.set_column(rows.schema.get_field_index(column), column, rows.column(column).take(pa.array(order)))
    try:
        found = train_study(study, rows)
    except InferenceError:
        return {"refused": True}
    _, unit = found.model.schema.target.find_score_units(found.model.certificate.problem.loss)
    return {"unit": unit, "lines": [[one.term, one.coef, one.std_err, one.low, one.high] for one in found]}


def read(output: Path, kind: str) -> list[Record]:
    """Return the records of a kind, "public" or "permuted"."""
    return [record for record in lines(output) if record.get("kind") == kind]


def _summarize(name: str, records: Sequence[Record]) -> str:
    """Return in a line how many intervals contain what is estimated without noise, or exclude 0 without cause."""
    given = [record["lines"] for record in records if not record.get("refused")]
    refused = f"{len(records) - len(given)} of {len(records)} trainings refused"
    if not given:
        return f"{name}: {refused}"
    if records[0]["kind"] == "permuted":
        excluded = [low > 0 or high < 0 for lines_ in given for *_, low, high in lines_[:-1]]
        return f"{name}: {statistics.mean(excluded):.1%} of {len(excluded):,} intervals exclude 0; {refused}"
    study, rows = STUDIES[name], read_rows(name)
    ends = np.array([[line[-2:] for line in lines_] for lines_ in given])
    shares = [
        f"{np.mean((ends[:, :, 0] <= estimates) & (estimates <= ends[:, :, 1])):.1%}"
        for estimates in (
            fit_statsmodels(study, rows, _find_unit(records))[0],
            train_study(study, rows, epsilon=None).estimates,
        )
    ]
    count = f"{ends.shape[0] * ends.shape[1]:,} intervals"
    return f"{name}: {shares[0]} of {count} have statsmodels' estimate, {shares[1]} that without noise; {refused}"


def _find_unit(records: Sequence[Record]) -> float:
    return float(statistics.median(record["unit"] for record in records if not record.get("refused")))


def document(output: Path) -> Iterator[str]:
    """Yield, as Markdown, the table of each study's first training beside statsmodels, and of permuted labels."""
    for name in STUDIES:
        records = [one for one in read(output, "public") if one["study"] == name]
        given = [one for one in records if not one.get("refused")]
        if not given:
            continue
        estimates, errors = fit_statsmodels(STUDIES[name], read_rows(name), _find_unit(records))
        yield ""
        yield f"**{name}**, {read_rows(name).num_rows:,} rows, epsilon = {EPSILON:g}"
        yield ""
        yield "| term | statsmodels | standard error | boltdp | standard error | interval |"
        yield "|---|---:|---:|---:|---:|---:|"
        for (term, coef, error, low, high), estimate, exact in zip(
            given[0]["lines"], estimates.tolist(), errors.tolist(), strict=True
        ):
            places = max(0, 1 - math.floor(math.log10(error)))
            shown = [f"{one:.{places}f}" for one in (estimate, exact, coef, error)]
            yield f"| {term} | {' | '.join(shown)} | {low:.{places}f} to {high:.{places}f} |"
        yield ""
        yield _summarize(name, records) + "."
    permuted = read(output, "permuted")
    if permuted:
        yield ""
        yield "**Permuted labels**"
        yield ""
        for name in STUDIES:
            records = [one for one in permuted if one["study"] == name]
            if records:
                yield f"- {_summarize(name, records)}."


def draw(output: Path, path: Path) -> None:
    """Draw the intervals of each study's first training beside those of statsmodels."""
    first: dict[str, Record] = {}
    for record in read(output, "public"):
        if not record.get("refused"):
            first.setdefault(record["study"], record)
    with save_figure(path, columns=len(first), size=(4.2 * len(first), 3.6)) as (_, axes):
        for panel, (name, record) in zip(axes[0], first.items(), strict=True):
            estimates, errors = fit_statsmodels(STUDIES[name], read_rows(name), record["unit"])
            lines_ = record["lines"][:-1]
            # Each in units of the standard deviation of its column, so that one axis serves all.
            units = make_design(STUDIES[name].schema, read_rows(name))[0].std(axis=0)
            places = -np.arange(len(lines_), dtype=np.float64)
            exact, private = estimates[:-1] * units, np.array([one[1] for one in lines_]) * units
            reach = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2.0)
            for shift, middles, deviations, color, label in (
                (0.15, exact, errors[:-1], GREY, "statsmodels"),
                (-0.15, private, np.array([one[2] for one in lines_]), BLUE, f"boltdp, epsilon = {EPSILON:g}"),
            ):
                lengths = reach * deviations * units
                panel.errorbar(
                    middles, places + shift, xerr=lengths, fmt="o", ms=3, color=color, capsize=2, label=label
                )
            panel.axvline(0.0, color=GREY, lw=0.8)
            panel.set_yticks(places, [escape_label(one[0]) for one in lines_])
            panel.set_title(escape_label(name, longest=60))
            panel.set_xlabel("per standard deviation of the column")
        axes[0][0].legend()
