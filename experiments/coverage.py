"""How often the intervals of `train --inference` cover what they estimate, and how wide they are.

    python -m experiments.coverage run --jobs 2                # adds to results/coverage.jsonl what is not in it yet
    python -m experiments.coverage run --only rare --repeats 40
    python -m experiments.coverage public                      # three public datasets, beside statsmodels
    python -m experiments.coverage permuted                    # labels that no column explains: false findings
    python -m experiments.coverage table                       # prints the tables of docs/coverage.md
    python -m experiments.coverage picture docs/images/coefficients.png

Each cell simulates rows whose parameters are known and trains on them, with fresh rows and fresh noise each time. A
run may be stopped at any time and goes on where it was; several runs may add to one file. The public datasets are
looked for in BOLTDP_DATA.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa

from boltdp._array_types import Doubles
from boltdp.engines import open_source
from boltdp.errors import InferenceError
from boltdp.export.coefficients import Coefficients
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from boltdp.schema.target import Number
from boltdp.settings import Settings
from boltdp.workflows.inference import estimate_width
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.train import train
from experiments import public_coefficients
from experiments.nonprivate_fits import Fit, fit_least_squares, fit_logistic, sum_newton
from experiments.store import add_line, lines
from experiments.tasks import budget_of

Columns = Literal["numbers", "categories", "correlated", "wide", "scarce"]
Outcome = Literal["even", "rare", "misspecified", "normal", "t3", "skewed", "heteroscedastic"]
Kind = Literal["pure", "approximate"]
Run: TypeAlias = dict[str, Any]

#: The effects of a deviation of a column, repeated, for up to five columns; smaller for more.
EFFECTS = (0.8, -0.56, 0.4, 0.0, -0.24)
#: Numbers are standard normal, and clipped to these bounds.
BOUND = 4.0
#: The declared bound of the last number if columns are wide: far beyond its values.
WIDE_BOUND = 100.0
#: The shares of the categories of a column; the first is the reference. The others are of scarce columns.
SHARES = (0.45, 0.3, 0.17, 0.08)
SCARCE_SHARES = (0.45, 0.3, 0.249, 0.001)
CATEGORIES = "abcd"
#: The correlation of correlated columns.
CORRELATION = 0.6
#: The bounds of a target that is a number.
TARGET_BOUND = 30.0
#: The intercept of rare outcomes: about 5 % of the rows.
RARE = -3.3
#: The rows that the parameters of a misspecified model are found from, and how many are in memory at once.
PSEUDO_ROWS, CHUNK = 5_000_000, 250_000
REPEATS, LEVEL = 400, 0.95
#: A cell is refused if at least this share of its intervals is.
REFUSED = 0.5


@dataclass(frozen=True)
class Cell:
    """What is simulated again and again."""

    rows: int
    features: int
    epsilon: float
    kind: Kind
    outcome: Outcome = "even"
    columns: Columns = "numbers"

    def __str__(self) -> str:
        return f"{self.outcome} {self.columns} {self.rows} {self.features} {self.epsilon:g} {self.kind}"

    @property
    def of_classes(self) -> bool:
        return self.outcome in ("even", "rare", "misspecified")

    @property
    def category_columns(self) -> int:
        return self.features // 5 if self.columns in ("categories", "scarce") else 0

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of the categories of a column."""
        return SCARCE_SHARES if self.columns == "scarce" else SHARES

    @property
    def effects(self) -> Doubles:
        """The parameters without the intercept: of the numbers, then of the categories."""
        repeated = np.resize(np.array(EFFECTS), self.features)
        return repeated * math.sqrt(min(1.0, len(EFFECTS) / self.features))

    @property
    def intercept(self) -> float:
        return RARE if self.outcome == "rare" else 0.0

    @property
    def schema(self) -> Schema:
        numbers = self.features - (len(CATEGORIES) - 1) * self.category_columns
        bounds = [BOUND] * numbers
        if self.columns == "wide":
            bounds[-1] = WIDE_BOUND
        columns = (
            *(Numeric(f"x{place}", -bound, bound) for place, bound in enumerate(bounds)),
            *(
                Categorical(f"c{place}", tuple(CATEGORIES), reference=CATEGORIES[0])
                for place in range(self.category_columns)
            ),
        )
        return Schema(Classes("y", (0, 1)) if self.of_classes else Number("y", -TARGET_BOUND, TARGET_BOUND), columns)

    @property
    def settings(self) -> Settings:
        budget = budget_of(self.kind, self.epsilon, self.rows)
        robust = self.outcome == "misspecified"
        return Settings(epsilon=budget.epsilon, delta=budget.delta, inference=True, robust_errors=robust)

    @property
    def planned_width(self) -> float:
        """The width that `boltdp plan` prints."""
        return estimate_width(make_plan(self.schema, self.rows, self.settings).certificate.spent)


def _list_cells() -> Iterator[Cell]:
    for rows, features, epsilon in (
        *((2_000, 3, 0.5), (2_000, 3, 1.0), (2_000, 5, 1.0), (2_000, 5, 2.0), (2_000, 10, 1.0)),
        *((10_000, 5, 0.2), (10_000, 5, 0.5), (10_000, 5, 1.0), (10_000, 5, 2.0), (10_000, 10, 1.0)),
        *((10_000, 20, 1.0), (50_000, 3, 0.2), (50_000, 10, 0.5), (50_000, 20, 1.0), (200_000, 20, 0.5)),
    ):
        yield Cell(rows, features, epsilon, "pure")
    for rows, features, epsilon in (
        *((2_000, 3, 1.0), (2_000, 10, 2.0), (10_000, 5, 0.5), (10_000, 5, 1.0), (10_000, 10, 1.0)),
        *((10_000, 20, 1.0), (50_000, 5, 1.0), (50_000, 20, 0.5), (200_000, 20, 0.2)),
    ):
        yield Cell(rows, features, epsilon, "approximate")
    yield Cell(10_000, 5, 0.5, "pure", columns="categories")
    yield Cell(50_000, 10, 1.0, "pure", columns="categories")
    yield Cell(10_000, 10, 1.0, "approximate", columns="categories")
    yield Cell(50_000, 20, 1.0, "approximate", columns="categories")
    yield Cell(10_000, 5, 1.0, "pure", columns="correlated")
    yield Cell(50_000, 10, 1.0, "pure", columns="correlated")
    yield Cell(10_000, 10, 1.0, "approximate", columns="correlated")
    yield Cell(200_000, 20, 1.0, "approximate", columns="correlated")
    yield Cell(10_000, 3, 1.0, "pure", columns="wide")
    yield Cell(50_000, 5, 1.0, "approximate", columns="wide")
    yield Cell(50_000, 5, 1.0, "pure", columns="scarce")
    yield Cell(50_000, 10, 1.0, "approximate", columns="scarce")
    yield Cell(2_000, 3, 2.0, "pure", "rare")
    yield Cell(10_000, 5, 1.0, "pure", "rare")
    yield Cell(50_000, 10, 1.0, "pure", "rare")
    yield Cell(10_000, 3, 1.0, "approximate", "rare")
    yield Cell(50_000, 10, 1.0, "approximate", "rare")
    yield Cell(2_000, 3, 2.0, "pure", "misspecified")
    yield Cell(10_000, 5, 1.0, "pure", "misspecified")
    yield Cell(50_000, 5, 0.5, "pure", "misspecified")
    yield Cell(50_000, 10, 1.0, "approximate", "misspecified")
    yield Cell(2_000, 3, 1.0, "pure", "normal")
    yield Cell(10_000, 5, 1.0, "pure", "normal")
    yield Cell(10_000, 10, 1.0, "approximate", "normal")
    yield Cell(50_000, 20, 1.0, "approximate", "normal", "correlated")
    yield Cell(10_000, 5, 0.5, "pure", "t3")
    yield Cell(50_000, 10, 0.5, "approximate", "t3")
    yield Cell(10_000, 5, 1.0, "pure", "skewed")
    yield Cell(50_000, 10, 1.0, "approximate", "skewed", "categories")
    yield Cell(2_000, 3, 2.0, "pure", "heteroscedastic")
    yield Cell(10_000, 5, 1.0, "pure", "heteroscedastic")
    yield Cell(50_000, 5, 0.2, "approximate", "heteroscedastic")


CELLS = tuple(_list_cells())


@dataclass(frozen=True)
class Sample:
    """Simulated rows: cells of the columns, what the parameters are factors of, and what is to be explained."""

    table: pa.Table
    design: Doubles
    target: Doubles


def simulate(cell: Cell, rng: np.random.Generator, rows: int | None = None) -> Sample:
    """Draw rows of a cell."""
    rows = cell.rows if rows is None else rows
    numbers = cell.features - (len(CATEGORIES) - 1) * cell.category_columns
    drawn = rng.standard_normal((rows, numbers))
    if cell.columns == "correlated":
        common = rng.standard_normal((rows, 1))
        drawn = math.sqrt(CORRELATION) * common + math.sqrt(1.0 - CORRELATION) * drawn
    drawn = np.clip(drawn, -BOUND, BOUND)
    columns: dict[str, Any] = {f"x{place}": drawn[:, place] for place in range(numbers)}
    design = [drawn]
    for place in range(cell.category_columns):
        codes = rng.choice(len(cell.shares), size=rows, p=cell.shares)
        columns[f"c{place}"] = pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), [*CATEGORIES])
        design.append((codes[:, None] == np.arange(1, len(cell.shares))).astype(np.float64))
    factors = np.hstack(design)
    scores = factors @ cell.effects + cell.intercept
    if cell.of_classes:
        if cell.outcome == "misspecified":
            scores += 0.5 * (drawn[:, 0] ** 2 - 1.0) + 0.5 * drawn[:, 0] * drawn[:, 1]
        target = (rng.random(rows) < 1.0 / (1.0 + np.exp(-scores))).astype(np.float64)
        columns["y"] = target.astype(np.int64)
    else:
        columns["y"] = target = np.clip(scores + _draw_errors(cell.outcome, drawn, rng), -TARGET_BOUND, TARGET_BOUND)
    return Sample(pa.table(columns), factors, target)


def _draw_errors(outcome: Outcome, drawn: Doubles, rng: np.random.Generator) -> Doubles:
    if outcome == "t3":
        return rng.standard_t(3, len(drawn))
    if outcome == "skewed":
        return rng.exponential(size=len(drawn)) - 1.0
    return rng.standard_normal(len(drawn)) * (np.exp(0.5 * drawn[:, 0]) if outcome == "heteroscedastic" else 1.0)


@lru_cache(maxsize=8)
def find_parameters(cell: Cell, rows: int = PSEUDO_ROWS) -> tuple[float, ...]:
    """Return what the intervals should cover: of classes with the intercept, of numbers without it.

    Where the model does not hold, it is what the model without privacy estimates from endless rows. The intercept of a
    number is that of the loss, which is not the mean if errors are skewed, so it is left out.
    """
    if cell.outcome != "misspecified":
        return (*cell.effects.tolist(), *((cell.intercept,) if cell.of_classes else ()))
    weights = np.append(cell.effects, cell.intercept)
    for _ in range(8):
        chunks = (simulate(cell, np.random.default_rng([7, place]), CHUNK) for place in range(rows // CHUNK))
        gradient, hessian = sum_newton(weights, ((chunk.design, chunk.target) for chunk in chunks))
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-6:
            break
    return tuple(weights.tolist())


def repeat(cell: Cell, number: int) -> Run:
    """Train once, and say which parameters the intervals cover and how wide they are."""
    sample = simulate(cell, np.random.default_rng([crc32(str(cell).encode()), number]))
    model = train(open_source(sample.table), cell.schema, cell.settings)
    try:
        found = [*Coefficients(model, level=LEVEL)]
    except InferenceError:
        return {"refused": True}
    parameters = find_parameters(cell)
    if cell.of_classes:
        fit = fit_logistic(sample.design, sample.target, robust=cell.outcome == "misspecified")
    else:
        fit = fit_least_squares(sample.design, sample.target, robust=cell.outcome == "heteroscedastic")
    checked = found[: len(parameters)]
    ratios = [one.std_err / error for one, error in zip(found[:-1], fit.errors[:-1].tolist(), strict=True)]
    return {
        "covered": [int(one.low <= parameter <= one.high) for one, parameter in zip(checked, parameters, strict=True)],
        "covered without privacy": _count_covered(fit, parameters),
        "width": round(statistics.mean(ratios), 4),
        "noise": round(statistics.mean(one.noise_share for one in found[:-1]), 4),
    }


def _count_covered(fit: Fit, parameters: Sequence[float]) -> int:
    distances = np.abs(fit.estimates[: len(parameters)] - parameters)
    return int((distances <= statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2.0) * fit.errors[: len(parameters)]).sum())


def run(wanted: Sequence[Cell], *, repeats: int, output: Path, jobs: int) -> None:
    """Train what is not in `output` yet, and add what was covered there."""
    output.parent.mkdir(parents=True, exist_ok=True)
    results = read(output)
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    going: dict[Future[Run], tuple[Cell, int]] = {}

    def finish() -> None:
        for future in wait(going, return_when=FIRST_COMPLETED).done:
            cell, number = going.pop(future)
            record = future.result()
            add_line(output, {"cell": str(cell), "repeat": number, **record})
            results[str(cell)][number] = record
            if len(results[str(cell)]) == repeats:
                print(_format_line(cell, results[str(cell)]), flush=True)

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for cell in wanted:
            for number in range(repeats):
                if number not in results[str(cell)]:
                    going[pool.submit(repeat, cell, number)] = cell, number
                    while len(going) >= 2 * jobs:
                        finish()
        while going:
            finish()


def read(output: Path) -> defaultdict[str, dict[int, Run]]:
    """Return the runs in the file, by their cells."""
    results: defaultdict[str, dict[int, Run]] = defaultdict(dict)
    for record in lines(output):
        if "cell" in record:
            results[record.pop("cell")][record.pop("repeat")] = record
    return results


@dataclass(frozen=True)
class Coverage:
    """What the runs of a cell say."""

    refused: float
    mean: float | None
    worst: float | None
    without_privacy: float | None
    width: float | None
    noise: float | None

    @classmethod
    def from_runs(cls, runs: Mapping[int, Run]) -> Coverage:
        """Summarize the runs of a cell.

        >>> Coverage.from_runs({0: {"refused": True}}).mean is None
        True
        """
        given = [run for run in runs.values() if not run.get("refused")]
        refused = 1.0 - len(given) / len(runs)
        if not given:
            return cls(refused, None, None, None, None, None)
        covered = np.array([run["covered"] for run in given], np.float64)
        exact = statistics.mean(run["covered without privacy"] for run in given) / covered.shape[1]
        width, noise = (statistics.median(run[name] for run in given) for name in ("width", "noise"))
        return cls(refused, float(covered.mean()), float(covered.mean(axis=0).min()), exact, width, noise)

    @property
    def is_refused(self) -> bool:
        return self.refused >= REFUSED

    @property
    def is_good(self) -> bool:
        """Whether it is what docs/coverage.md claims: 93 to 97 %, and 90 % of the worst coefficient."""
        if self.is_refused or self.mean is None or self.worst is None:
            return self.is_refused
        return 0.93 <= self.mean <= 0.97 and self.worst >= 0.9


TITLES = (
    *("outcome", "columns", "rows", "coefficients", "epsilon", "delta"),
    *("coverage", "worst coefficient", "without privacy", "width", "planned", "refused"),
)


def document(results: Mapping[str, Mapping[int, Run]]) -> Iterator[str]:
    """Yield the table as Markdown, cells of classes before those of numbers, and what it says in a line."""
    known = [(cell, results[str(cell)]) for cell in CELLS if results.get(str(cell))]
    yield f"| {' | '.join(TITLES)} |"
    yield "|---|---|" + "---:|" * (len(TITLES) - 2)
    for cell, runs in known:
        yield _format_line(cell, runs)
    if known:
        found = [Coverage.from_runs(runs) for _, runs in known]
        given = [one for one in found if not one.is_refused]
        yield ""
        yield (
            f"{len(found)} cells, {len(found) - len(given)} refused; of the others {sum(one.is_good for one in given)} "
            f"have a mean coverage of 93 to 97 % and at least 90 % for the worst coefficient."
        )


def _format_line(cell: Cell, runs: Mapping[int, Run]) -> str:
    coverage = Coverage.from_runs(runs)
    shares = ["" if one is None else f"{one:.1%}" for one in (coverage.mean, coverage.worst, coverage.without_privacy)]
    width = "" if coverage.width is None else f"{coverage.width:.2f}"
    entries = [
        *(cell.outcome, cell.columns, f"{cell.rows:,}", str(cell.features), f"{cell.epsilon:g}"),
        *(
            "0" if cell.kind == "pure" else "1/m²",
            *shares,
            width,
            f"{cell.planned_width:.2f}",
            f"{coverage.refused:.0%}",
        ),
    ]
    return f"| {' | '.join(entries)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "public", "permuted", "table", "picture"))
    parser.add_argument("path", nargs="?", type=Path, help="where the picture is saved")
    parser.add_argument("--only", action="append", help="cells with this word, such as rare, correlated or 2000")
    parser.add_argument("--repeats", type=int, default=None, help=f"{REPEATS} unless said")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with one thread")
    parser.add_argument("--output", type=Path, default=Path("results/coverage.jsonl"))
    chosen = parser.parse_args(arguments)
    if chosen.command == "run":
        wanted = [cell for cell in CELLS if all(word in str(cell).split() for word in chosen.only or ())]
        run(wanted, repeats=chosen.repeats or REPEATS, output=chosen.output, jobs=chosen.jobs)
    elif chosen.command == "table":
        for line in (*document(read(chosen.output)), *public_coefficients.document(chosen.output)):
            print(line)
    elif chosen.command == "picture":
        if chosen.path is None:
            parser.error("picture needs the path of a file")
        public_coefficients.draw(chosen.output, chosen.path)
    else:
        repeats = chosen.repeats or public_coefficients.REPEATS
        public_coefficients.run(chosen.output, repeats=repeats, permuted=chosen.command == "permuted")


if __name__ == "__main__":
    main()
