"""Released weights have the very bits that were recorded when the cases below were last recorded.

With `seed` and `noise_seed` fixed, training is a function of its settings and the rows. A change of the code that is
not meant to change any model must not change one bit of them, on any engine. `recorded_bits.json` has for each case
the SHA-256 of the weights, as 64-bit little-endian floats one row after the other, and of what else an inference
releases.

The last bits also depend on the machine: noise is calibrated with the C library's functions, and objective
perturbation solves small systems with BLAS, and both may round differently on another processor or in another version.
So the file has a digest of what such functions gave where it was recorded (`machine`) and, for each case, the first
four weights. Where the functions give the same bits, so must the weights. Elsewhere only those four weights are
compared, to a relative 1e-5: that finds a change of the method, but not one of the last bits.

Record again, for a change that is meant to change bits, with `python -m tests.test_recorded_bits`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from boltdp.algorithms import ALGORITHMS
from boltdp.engines import open_source
from boltdp.losses import LOSSES
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Projection, Schema, Vector
from boltdp.settings import Settings
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune

if TYPE_CHECKING:
    from boltdp.engines.base import Engine

Weights: TypeAlias = npt.NDArray[np.float64]

RECORD = Path(__file__).with_name("recorded_bits.json")
FIRST = 4  #: weights that other machines compare
RELATIVE = 1e-5  #: how closely

#: More than objective perturbation takes the Hessian of, so that it reads a portion too.
ROWS, PUBLIC_ROWS = 1300, 200
COLUMNS = (Numeric("age", 0, 100), Categorical("sex", ("F", "M")), Vector("scan", 2, -3, 3))
TWO = Schema(Classes("sick", (0, 1)), COLUMNS)
THREE = Schema(Classes("stage", ("none", "mild", "severe")), COLUMNS)
NARROW = replace(TWO, columns=(COLUMNS[0], COLUMNS[2]), intercept=False)
COUNTED = replace(TWO, columns=COLUMNS[:2])
SHORTENED = replace(THREE, clip_norm=1.25)
PROJECTED = replace(THREE, projection=Projection(dims=3, seed=17))
COST = Schema(Number("cost", 0, 500, typical=(40, 160)), COLUMNS)
PROJECTED_COST = replace(COST, projection=Projection(dims=3, seed=17))


@dataclass(frozen=True)
class Case:
    """A training or, with a `method`, a tuning over `grid`."""

    settings: Settings
    schema: Schema
    method: Literal["trials", "portions", "public"] | None = None
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def case(algorithm: str, schema: Schema = TWO, **chosen: Any) -> Case:
    noise_seed = None if chosen.get("epsilon", 2.0) is None else 23  # where there is no noise, a seed of it is refused
    usual = {"epsilon": 2.0, "seed": 5, "noise_seed": noise_seed, "label_check": 0.0}
    return Case(Settings(**{**usual, "algorithm": algorithm, **chosen}), schema)


def tuned(
    method: Literal["trials", "portions", "public"],
    grid: Mapping[str, Sequence[Any]],
    algorithm: str,
    schema: Schema = TWO,
    **chosen: Any,
) -> Case:
    return replace(case(algorithm, schema, **chosen), method=method, grid=grid)


OVA: dict[str, Any] = {"multiclass": "one-vs-all"}
HUBER: dict[str, Any] = {"loss": "huber"}
DELTA: dict[str, Any] = {"delta": 1e-5}
#: So large a delta makes Gaussian noise the shorter one, even of few numbers.
GAUSSIAN: dict[str, Any] = {"epsilon": 0.5, "delta": 0.05}
PAPER: dict[str, Any] = {"analysis": "paper"}
CENTRED: dict[str, Any] = {"standardize": "private", "standardize_moments": "mean"}
SCALED: dict[str, Any] = {"standardize": "private", "standardize_moments": "squares"}

QUANTILES: dict[str, Any] = {"standardize_moments": "histograms", "curves": 6}
MARGIN: dict[str, Any] = {"loss": "margin"}
ROBUST: dict[str, Any] = {"loss": "robust"}
MEDIAN: dict[str, Any] = {"loss": "quantile"}
HIGH: dict[str, Any] = {"loss": "quantile", "loss_parameter": 0.9}
MEAN: dict[str, Any] = {"loss": "mean"}

CASES: dict[str, Case] = {
    # Noise in every scan.
    "noisy-gd": case("noisy-gd", **DELTA),
    "noisy-gd, multinomial, regularized": case("noisy-gd", THREE, regularization=0.01, passes=7, **DELTA),
    "noisy-gd, huber, three classes": case("noisy-gd", THREE, gradient_clip=0.3, step_size=2.0, **HUBER, **DELTA),
    # Losses with a margin, and curves.
    "bolton, margin": case("bolton", **MARGIN),
    "objective, margin, three models": case("objective", THREE, loss_parameter=1.0, **MARGIN, **OVA),
    "bolton, curves": case("bolton", curves=3),
    "objective, curves, centred": case("objective", THREE, curves=5, **CENTRED),
    # Curves at private quantiles.
    "bolton, histograms": case("bolton", COUNTED, **QUANTILES),
    "noisy-gd, histograms": case("noisy-gd", COUNTED, **QUANTILES, **DELTA),
    "objective, histograms": case("objective", COUNTED, **QUANTILES),
    "objective, histograms, delta": case("objective", COUNTED, **QUANTILES, **DELTA),
    # Noise once, at the end.
    "bolton": case("bolton"),
    "bolton, multinomial": case("bolton", THREE),
    "bolton, one-vs-all": case("bolton", THREE, **OVA),
    "bolton, huber": case("bolton", **HUBER),
    "bolton, huber, three classes": case("bolton", THREE, passes=3, **HUBER),
    "bolton, huber, one-vs-all": case("bolton", THREE, passes=3, **HUBER, **OVA),
    "bolton, delta": case("bolton", **DELTA),
    "bolton, multinomial, delta": case("bolton", THREE, **DELTA),
    "bolton, one-vs-all, delta": case("bolton", THREE, **OVA, **DELTA),
    "bolton, huber, delta": case("bolton", **HUBER, **DELTA),
    "bolton, gaussian": case("bolton", **GAUSSIAN),
    "bolton, multinomial, gaussian": case("bolton", THREE, averaging="all", **GAUSSIAN),
    "bolton, huber, three classes, gaussian": case("bolton", THREE, batch_size=10, **HUBER, **GAUSSIAN),
    "bolton, other seeds": case("bolton", seed=2**63 - 1, noise_seed=0),
    "bolton, one pass, single rows": case("bolton", passes=1, batch_size=1),
    "bolton, multinomial, single rows": case("bolton", THREE, passes=2, batch_size=1, step_size=0.1),
    "bolton, batches of 10": case("bolton", passes=5, batch_size=10),
    "bolton, batches of 50": case("bolton", THREE, passes=5, batch_size=50, **OVA),
    "bolton, constant": case("bolton", THREE, schedule="constant", step_size=0.25),
    "bolton, constant by default": case("bolton", schedule="constant", passes=4),
    "bolton, step size": case("bolton", step_size=0.25, passes=4, **HUBER),
    "bolton, constant, regularized": case("bolton", schedule="constant", step_size=0.5, regularization=0.01),
    "bolton, decreasing": case("bolton", schedule="decreasing", batch_size=10),
    "bolton, decreasing, exponent": case("bolton", THREE, schedule="decreasing", exponent=0.25, batch_size=10),
    "bolton, square-root": case("bolton", schedule="square-root", batch_size=10),
    "bolton, square-root, fresh": case("bolton", THREE, schedule="square-root", permutation="fresh", passes=3, **OVA),
    "bolton, regularized": case("bolton", regularization=0.01),
    "bolton, strongly-convex": case("bolton", THREE, schedule="strongly-convex", regularization=0.05, batch_size=10),
    "bolton, strongly-convex, fresh, all": case(
        "bolton", schedule="strongly-convex", regularization=0.02, permutation="fresh", averaging="all", passes=4
    ),
    "bolton, strongly-convex-constant": case(
        "bolton", schedule="strongly-convex-constant", regularization=0.02, step_size=0.15, **HUBER
    ),
    "bolton, strongly-convex-constant, fresh": case(
        "bolton",
        THREE,
        schedule="strongly-convex-constant",
        regularization=0.02,
        step_size=0.3,
        permutation="fresh",
        passes=3,
    ),
    "bolton, average of all": case("bolton", averaging="all"),
    "bolton, average of the tail": case("bolton", THREE, averaging="tail", batch_size=10, **OVA),
    "bolton, fresh": case("bolton", permutation="fresh", passes=3),
    "bolton, multinomial, fresh, tail": case(
        "bolton", THREE, permutation="fresh", averaging="tail", passes=3, batch_size=10, **DELTA
    ),
    "bolton, radius": case("bolton", radius=0.5, batch_size=10),
    "bolton, tiny radius": case("bolton", radius=0.001, batch_size=1),
    "bolton, multinomial, radius, regularized": case("bolton", THREE, radius=1.0, regularization=0.1, averaging="all"),
    "bolton, paper": case("bolton", **PAPER),
    "bolton, paper, decreasing": case("bolton", THREE, schedule="decreasing", **PAPER),
    "bolton, paper, square-root, delta": case("bolton", schedule="square-root", **PAPER, **DELTA),
    "bolton, paper, regularized": case("bolton", regularization=0.01, radius=100.0, **HUBER, **PAPER),
    "bolton, not standardized": case("bolton", THREE, standardize="none", passes=2, **DELTA),
    "bolton, centred": case("bolton", **CENTRED),
    "bolton, scaled": case("bolton", THREE, **SCALED, **DELTA),
    "bolton, scaled for a share": case("bolton", standardize_share=0.3, passes=3, **HUBER, **SCALED),
    "bolton, centred, gaussian": case("bolton", THREE, **CENTRED, **GAUSSIAN),
    "bolton, no intercept": case("bolton", NARROW, passes=2),
    "bolton, shortened rows": case("bolton", SHORTENED, **CENTRED),
    "bolton, projected": case("bolton", PROJECTED, passes=3),
    "bolton, projected, scaled, fresh": case("bolton", PROJECTED, permutation="fresh", passes=3, **SCALED),
    # No noise at all.
    "noiseless": case("bolton", epsilon=None),
    "noiseless, multinomial, fresh": case("bolton", THREE, epsilon=None, permutation="fresh", passes=3),
    "noiseless, one-vs-all, all": case("bolton", THREE, epsilon=None, averaging="all", batch_size=10, **OVA),
    "noiseless, huber, regularized, tail": case(
        "bolton", epsilon=None, regularization=0.01, averaging="tail", batch_size=1, passes=2, **HUBER
    ),
    "noiseless, scaled": case("bolton", epsilon=None, **SCALED),
    "noiseless, objective": case("objective", epsilon=None),
    "noiseless, objective, multinomial": case("objective", THREE, epsilon=None, regularization=0.01),
    # Noise before training.
    "objective": case("objective"),
    "objective, multinomial": case("objective", THREE),
    "objective, one-vs-all": case("objective", THREE, **OVA),
    "objective, regularized": case("objective", regularization=0.02),
    "objective, huber": case("objective", **HUBER),
    "objective, huber, three classes, delta": case("objective", THREE, **HUBER, **DELTA),
    "objective, multinomial, regularized": case("objective", THREE, regularization=0.05),
    "objective, delta": case("objective", **DELTA),
    "objective, multinomial, delta, regularized": case("objective", THREE, regularization=0.05, **DELTA),
    "objective, gaussian": case("objective", regularization=0.05, **GAUSSIAN),
    "objective, multinomial, gaussian": case("objective", THREE, epsilon=0.5, delta=0.3),
    "objective, one-vs-all, delta": case("objective", THREE, **OVA, **DELTA),
    "objective, little budget": case("objective", epsilon=0.02),
    "objective, multinomial, little budget, delta": case("objective", THREE, epsilon=0.02, **DELTA),
    "objective, centred": case("objective", THREE, **CENTRED),
    "objective, scaled, regularized, delta": case("objective", regularization=0.01, **SCALED, **DELTA),
    "objective, no intercept": case("objective", NARROW, standardize="none"),
    "objective, projected": case("objective", PROJECTED, **CENTRED),
    # Whatever is best.
    "auto": case("auto"),
    "auto, multinomial, delta": case("auto", THREE, **DELTA),
    "auto, not standardized, regularized": case("auto", standardize="none", regularization=0.02),
    "auto, one-vs-all, scaled": case("auto", THREE, **OVA, **SCALED),
    "auto, little budget": case("auto", epsilon=0.01),
    "auto, huber": case("auto", THREE, **HUBER),
    "auto, huber, delta": case("auto", **HUBER, **DELTA),
    "auto, noiseless": case("auto", epsilon=None),
    # Noise in every update, each row once a pass.
    "scs13": case("scs13"),
    "scs13, multinomial": case("scs13", THREE, passes=2),
    "scs13, one-vs-all, single rows": case("scs13", THREE, passes=1, batch_size=1, **OVA),
    "scs13, huber, three classes, delta": case("scs13", THREE, passes=2, **HUBER, **DELTA),
    "scs13, gaussian": case("scs13", passes=5, **GAUSSIAN),
    "scs13, regularized, all": case("scs13", regularization=0.05, averaging="all", batch_size=10),
    "scs13, constant, radius": case("scs13", schedule="constant", radius=2.0, passes=3),
    "scs13, multinomial, fresh, decreasing": case(
        "scs13", THREE, permutation="fresh", schedule="decreasing", passes=3, **DELTA
    ),
    "scs13, paper": case("scs13", passes=3, **PAPER),
    "scs13, paper, multinomial, delta": case("scs13", THREE, passes=3, averaging="tail", **PAPER, **DELTA),
    "scs13, centred": case("scs13", THREE, passes=2, **CENTRED),
    # Noise in every update, on samples of fixed size.
    "bst14": case("bst14", **DELTA),
    "bst14, multinomial": case("bst14", THREE, passes=3, radius=3.0, **DELTA),
    "bst14, one-vs-all": case("bst14", THREE, passes=2, averaging="all", **OVA, **DELTA),
    "bst14, huber, regularized": case("bst14", regularization=0.05, batch_size=10, passes=2, **HUBER, **DELTA),
    "bst14, single rows": case("bst14", passes=1, batch_size=1, **DELTA),
    "bst14, constant": case("bst14", schedule="constant", step_size=0.2, passes=3, averaging="tail", **DELTA),
    "bst14, paper": case("bst14", passes=3, **PAPER, **DELTA),
    "bst14, paper, multinomial": case("bst14", THREE, passes=2, batch_size=10, **PAPER, **DELTA),
    "bst14, scaled": case("bst14", THREE, passes=2, **SCALED, **DELTA),
    # Noise in every update, on Poisson samples.
    "dpsgd": case("dpsgd", **DELTA),
    "dpsgd, multinomial": case("dpsgd", THREE, passes=3, averaging="all", **DELTA),
    "dpsgd, one-vs-all": case("dpsgd", THREE, passes=2, **OVA, **DELTA),
    "dpsgd, huber, three classes": case("dpsgd", THREE, passes=2, averaging="tail", **HUBER, **DELTA),
    "dpsgd, single rows": case("dpsgd", passes=1, batch_size=1, **DELTA),
    "dpsgd, regularized": case("dpsgd", regularization=0.05, batch_size=10, passes=2, **DELTA),
    "dpsgd, constant, radius": case("dpsgd", schedule="constant", step_size=0.5, radius=2.0, passes=3, **DELTA),
    "dpsgd, square-root, projected": case("dpsgd", PROJECTED, schedule="square-root", passes=3, **DELTA),
    "dpsgd, centred": case("dpsgd", passes=2, **CENTRED, **DELTA),
    # Tuning.
    "trials, bolton": tuned(
        "trials", {"passes": [1, 5], "batch_size": [10, 50]}, "bolton", permutation="once", averaging="all"
    ),
    "trials, bolton, multinomial, delta": tuned(
        "trials", {"regularization": [0.0, 0.01, 0.1]}, "bolton", THREE, permutation="once", **CENTRED, **DELTA
    ),
    "trials, objective": tuned("trials", {"regularization": [0.02, 0.05, 0.2]}, "objective"),
    "trials, objective, multinomial, delta": tuned(
        "trials", {"regularization": [0.05, 0.2]}, "objective", THREE, **CENTRED, **DELTA
    ),
    "portions, bolton": tuned("portions", {"step_size": [0.1, 0.5], "passes": [1, 4]}, "bolton", THREE, **SCALED),
    "portions, bolton, fresh": tuned(
        "portions", {"averaging": ["last", "all"], "radius": [1.0, 5.0]}, "bolton", permutation="fresh", passes=3
    ),
    "portions, objective": tuned("portions", {"regularization": [0.05, 0.2]}, "objective", THREE, epsilon=8.0),
    "portions, scs13": tuned("portions", {"batch_size": [10, 50], "passes": [1, 2]}, "scs13", epsilon=8.0),
    "public, bolton": tuned("public", {"passes": [1, 5], "regularization": [0.0, 0.05]}, "bolton"),
    "public, bolton, huber, three classes": tuned(
        "public", {"schedule": ["constant", "decreasing", "square-root"]}, "bolton", THREE, **HUBER, **DELTA
    ),
    # Numbers.
    "bolton, robust": case("bolton", COST, **ROBUST),
    "bolton, median, gaussian": case("bolton", COST, batch_size=10, **MEDIAN, **GAUSSIAN),
    "bolton, quantile, fresh, tail": case(
        "bolton", COST, permutation="fresh", averaging="tail", passes=3, **HIGH, **DELTA
    ),
    "bolton, mean, single rows": case("bolton", COST, passes=2, batch_size=1, **MEAN),
    "bolton, robust, regularized, projected": case("bolton", PROJECTED_COST, regularization=0.05, **ROBUST),
    "noiseless, robust, curves, scaled": case("bolton", COST, epsilon=None, curves=3, **ROBUST, **SCALED),
    "noiseless, objective, robust": case("objective", COST, epsilon=None, regularization=0.01, **ROBUST),
    "noiseless, objective, quantile": case("objective", COST, epsilon=None, regularization=0.01, **HIGH),
    "noiseless, objective, mean": case("objective", COST, epsilon=None, regularization=0.01, **MEAN),
    "noiseless, objective, robust, projected": case(
        "objective", PROJECTED_COST, epsilon=None, regularization=0.01, **ROBUST
    ),
    "objective, robust": case("objective", COST, **ROBUST),
    "objective, quantile, gaussian": case("objective", COST, **HIGH, **DELTA),
    "objective, mean": case("objective", COST, **MEAN),
    "noisy-gd, robust": case("noisy-gd", COST, passes=7, **ROBUST, **DELTA),
    "noisy-gd, quantile, clipped": case("noisy-gd", COST, gradient_clip=0.3, step_size=2.0, **HIGH, **DELTA),
    "noisy-gd, mean": case("noisy-gd", COST, regularization=0.01, **MEAN, **DELTA),
    "scs13, robust": case("scs13", COST, passes=2, **ROBUST),
    "scs13, quantile": case("scs13", COST, passes=2, **HIGH),
    "scs13, mean": case("scs13", COST, passes=2, **MEAN),
    "bst14, robust": case("bst14", COST, passes=2, radius=3.0, **ROBUST, **DELTA),
    "bst14, quantile": case("bst14", COST, passes=2, **HIGH, **DELTA),
    "bst14, mean": case("bst14", COST, passes=2, **MEAN, **DELTA),
    "dpsgd, robust": case("dpsgd", COST, passes=2, **ROBUST, **DELTA),
    "dpsgd, quantile": case("dpsgd", COST, passes=2, averaging="all", **HIGH, **DELTA),
    "dpsgd, mean": case("dpsgd", COST, passes=2, **MEAN, **DELTA),
    # Matrices and a count beside the weights.
    "inference": case("objective", inference=True),
    "inference, delta, robust errors": case("objective", inference=True, robust_errors=True, **DELTA),
    "inference, number": case("objective", COST, inference=True, **DELTA),
    "noiseless, inference": case("objective", epsilon=None, inference=True, robust_errors=True),
}

#: Each algorithm, and all that an engine does for one: shuffle again, draw, sum derivatives and moments, cut portions.
EVERYWHERE = (
    "noisy-gd, multinomial, regularized",
    "bolton, margin",
    "objective, curves, centred",
    "bolton, huber, three classes",
    "bolton, multinomial, fresh, tail",
    "bolton, projected, scaled, fresh",
    "noiseless, one-vs-all, all",
    "noiseless, objective, multinomial",
    "objective, one-vs-all",
    "auto, multinomial, delta",
    "scs13, multinomial, fresh, decreasing",
    "bst14, multinomial",
    "dpsgd, huber, three classes",
    "trials, objective",
    "portions, bolton, fresh",
    "public, bolton",
    "bolton, quantile, fresh, tail",
    "bolton, robust, regularized, projected",
    "noiseless, objective, robust",
    "noisy-gd, mean",
    "dpsgd, robust",
    "inference, delta, robust errors",
    "inference, number",
)


def columns(rows: int = ROWS, *, seed: int = 1) -> dict[str, list[Any]]:
    """Rows with missing, undeclared and excessive cells. All numbers are short in binary, so that they are exact."""
    draw = random.Random(seed).random  # the one method whose results are guaranteed never to change
    draw_cost = random.Random(seed + 100).random  # its own, so that the other cells stay as they are
    names = ("id", "age", "sex", "scan", "sick", "stage", "cost")
    made: dict[str, list[Any]] = {name: [] for name in names}
    for i in range(rows):
        age, sex = math.floor(draw() * 960) / 8 - 10, math.floor(draw() * 10)
        scan = [math.floor(draw() * 512) / 64 - 4 for _ in range(2)]
        # Sicker with age, by the scan and for one sex, with some chance in it.
        score = (age - 50) / 64 + scan[0] / 4 - scan[1] / 8 + (sex < 4) / 2 + draw() - 0.75
        stage = "none" if score < -0.25 else "mild" if score < 0.5 else "severe"
        made["id"].append(i)
        made["age"].append(None if draw() < 0.05 else age)
        made["sex"].append("F" if sex < 4 else "M" if sex < 8 else "other" if sex < 9 else None)
        made["scan"].append(None if draw() < 0.05 else scan)
        made["sick"].append(None if draw() < 0.03 else int(score > 0))
        made["stage"].append("unknown" if draw() < 0.03 else stage)
        # Some of it is beyond the bounds.
        cost = math.floor((100 + 48 * score + 64 * (draw_cost() - 0.5)) * 8) / 8 * (8 if draw_cost() < 0.03 else 1)
        made["cost"].append(None if draw_cost() < 0.03 else cost)
    return made


def weights_of(chosen: Case, engine: Engine) -> Weights:
    """Train or tune on the rows of an engine."""
    if chosen.method is None:
        model = train(engine, chosen.schema, chosen.settings)
        released = model.inference
        if released is None:
            return model.weights
        outer = np.empty(0) if released.outer_products is None else released.outer_products
        return np.concatenate([model.weights[0], released.hessian, outer, [released.class_count or 0.0]])[None]
    public = open_source(pa.table(columns(PUBLIC_ROWS, seed=2))) if chosen.method == "public" else None
    grid = expand_grid(chosen.settings, chosen.grid)
    return tune(engine, chosen.schema, grid, method=chosen.method, public=public, trials=5).weights


def digest(numbers: npt.ArrayLike) -> str:
    return hashlib.sha256(np.asarray(numbers, dtype="<f8").tobytes()).hexdigest()


@cache
def machine() -> str:
    """A digest of what the functions give that may round differently elsewhere."""
    x = [(3 * i + 1) / 7 for i in range(200)]
    functions = (math.erfc, math.exp, math.expm1, math.log, math.log1p, math.log2, math.lgamma)
    found: list[npt.ArrayLike] = [[function(one) for one in x] for function in functions]
    found += [[math.pow(one, power) for one in x] for power in (0.25, 0.5, 1.6, -2.3)]
    long = np.arange(1, 4097) / 7.0
    found += [np.geomspace(1, 1301, num=4096), long @ (1.0 / long), np.linalg.norm(long), np.vdot(long, long + 0.1)]
    found += [(1.0 / long).sum()]
    for size in (3, 6, 18):
        a = 1.0 / (1.0 + np.add.outer(np.arange(40), np.arange(size)))
        square = a.T @ a + 0.01 * np.eye(size)
        inverse = np.linalg.inv(np.linalg.cholesky(square))
        found += [square, inverse @ a[0], a[0] @ inverse, (a.astype(np.float32) @ a[:5].T), a[0] @ square]
    return digest(np.concatenate([np.ravel(np.asarray(part, np.float64)) for part in found]))


@cache
def recorded() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(RECORD.read_text("utf-8"))
    return read


def check(name: str, weights: Weights) -> None:
    """Compare weights to the recorded ones: their bits, or on another kind of machine the first few to five digits."""
    expected = recorded()["cases"][name]
    assert weights.ravel()[:FIRST].tolist() == pytest.approx(expected["first"], rel=RELATIVE)
    if machine() == recorded()["machine"]:
        assert digest(weights) == expected["sha256"]


def record() -> None:
    """Write what this machine gives, a line for each case."""
    lines = []
    for name, chosen in CASES.items():
        weights = weights_of(chosen, open_source(pa.table(columns())))
        entry = {"sha256": digest(weights), "first": weights.ravel()[:FIRST].tolist()}
        lines.append(f"{json.dumps(name)}: {json.dumps(entry)}")
    text = ",\n".join(lines)
    RECORD.write_text(f'{{"machine": "{machine()}",\n"cases": {{\n{text}\n}}}}\n', "utf-8")


def from_arrow(folder: Path) -> Engine:
    del folder
    return open_source(pa.table(columns()))


def from_pandas(folder: Path) -> Engine:
    del folder
    return open_source(pd.DataFrame(columns()))


def from_csv(folder: Path) -> Engine:
    cells = columns()
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))
    return open_source(folder / "rows.csv")


def from_parquet(folder: Path) -> Engine:
    pq.write_table(pa.table(columns()), folder / "rows.parquet", row_group_size=500)
    return open_source(folder / "rows.parquet")


def from_duckdb_table(folder: Path) -> Engine:
    return open_source(_database(folder), table="the rows")


def from_duckdb_query(folder: Path) -> Engine:
    query = 'SELECT stage, cost, scan, sick, sex, age FROM "the rows" ORDER BY id'
    return open_source(_database(folder), query=query, spool=folder)


def from_duckdb_relation(folder: Path) -> Engine:
    del folder
    connection = duckdb.connect()
    connection.register("given", pa.table(columns()))
    return open_source(connection.sql("SELECT * FROM given"))


def from_spooled_parquet(folder: Path) -> Engine:
    pq.write_table(pa.table(columns()), folder / "rows.parquet")
    engine: Any = open_source(folder / "rows.parquet", spool=folder)
    engine.memory_bytes = 4 * 1000  # a few hundred of the rows, so that all of them are in a file
    spooled: Engine = engine
    return spooled


def _database(folder: Path) -> Path:
    with duckdb.connect(str(folder / "rows.duckdb")) as connection:
        connection.register("given", pa.table(columns()))
        connection.execute('CREATE TABLE "the rows" AS SELECT * FROM given')
    return folder / "rows.duckdb"


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "arrow": from_arrow,
    "pandas": from_pandas,
    "csv": from_csv,
    "parquet": from_parquet,
    "duckdb table": from_duckdb_table,
    "duckdb query": from_duckdb_query,
    "duckdb relation": from_duckdb_relation,
    "spooled parquet": from_spooled_parquet,
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with ENGINES[request.param](tmp_path_factory.mktemp("rows")) as opened:
        yield opened


def test_every_loss_has_a_case() -> None:
    trained = {case.settings.choose_loss(case.schema.target)[0].name for case in CASES.values()}
    assert trained == set(LOSSES)


def test_every_algorithm_has_a_case_of_each_loss_of_numbers() -> None:
    wanted = {name for name, loss in LOSSES.items() if loss.target == "number"}
    for algorithm in ALGORITHMS:
        cases = [one for one in CASES.values() if one.settings.algorithm == algorithm]
        assert wanted <= {one.settings.choose_loss(one.schema.target)[0].name for one in cases}


def test_costs_are_among_the_rows_within_the_bounds_beyond_them_and_missing() -> None:
    costs = columns()["cost"]
    known = [cost for cost in costs if cost is not None]
    assert 0 < len(costs) - len(known) < 0.05 * ROWS
    assert min(known) < 0
    assert max(known) > 500
    assert np.quantile(known, [0.1, 0.9]) == pytest.approx([40, 160], abs=20)


def test_every_case_is_recorded_and_no_other() -> None:
    assert list(recorded()["cases"]) == list(CASES)
    assert set(EVERYWHERE) <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_weights_have_the_recorded_bits(name: str) -> None:
    check(name, weights_of(CASES[name], open_source(pa.table(columns()))))


@pytest.mark.parametrize("name", EVERYWHERE)
def test_weights_have_the_recorded_bits_on_every_engine(engine: Engine, name: str) -> None:
    check(name, weights_of(CASES[name], engine))


if __name__ == "__main__":
    record()
