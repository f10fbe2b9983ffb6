"""The table of docs/accuracy.md: every algorithm on every benchmark, at several epsilons, pure and with delta = 1/m^2.

    python -m experiments.accuracy run adult covtype --repeats 10     # adds to accuracy.json what is not in it yet
    python -m experiments.accuracy table                              # prints the tables as Markdown

The data is looked for in BOLTDP_DATA. Where a benchmark has no test file, a fifth of its rows, by position after a
shuffle, is for testing. MNIST is projected to 50 dimensions first. "best" tries other regularizations and no centring,
and takes what is best on the TEST rows: it is there to judge the others by, nothing that could be used.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp.algorithms.standardize import plan_moments
from boltdp.context import Context
from boltdp.data.benchmarks import BENCHMARKS, Benchmark
from boltdp.data.schema import Numeric, Schema, Vector, array_schema
from boltdp.engines import open_source
from boltdp.engines.arrays import ArrayEngine
from boltdp.engines.base import Engine, Prepared, plain
from boltdp.files import replacing
from boltdp.model import Model, unit_rows
from boltdp.planning import plan
from boltdp.settings import Settings
from boltdp.training import train, train_prepared

Scores: TypeAlias = dict[str, float]
#: Settings by name; the epsilon and the delta are put in.
Way: TypeAlias = Callable[[Settings, int, Schema], Settings]

LARGE, SMALL = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4), (0.05, 0.1, 0.2, 0.4, 1.0)
EPSILONS: Mapping[str, Sequence[float]] = {
    "mnist50": (0.1, 0.2, 0.5, 1.0, 2.0, 4.0),
    **dict.fromkeys(("covtype", "protein", "kddcup99", "higgs"), LARGE),
    **dict.fromkeys(("adult", "bank", "credit", "diabetes"), SMALL),
}
TEST_SHARE = 0.2
#: Of the budget: delta = 0 or 1/m^2.
KINDS = ("pure", "approximate")


def _regularized(times: float) -> Way:
    """`auto` with its regularization multiplied."""

    def way(common: Settings, rows: int, schema: Schema) -> Settings:
        before = plan_moments(common, schema, rows=rows)
        planned = plan(common, rows=rows, dims=schema.dims, classes=len(schema.classes), before=before)
        return replace(common, regularization=times * planned.problem.regularization)

    return way


def _with(**changes: Any) -> Way:
    return lambda common, *_: replace(common, **changes)


WAYS: Mapping[str, Way] = {
    "noiseless": _with(epsilon=None, delta=0.0, passes=20, batch_size=10),
    "as published": _with(algorithm="bolton", analysis="paper", regularization=1e-4, radius=1e4),
    "bolton": _with(algorithm="bolton"),
    "auto": _with(),
    "auto, Lambda / 4": _regularized(0.25),
    "auto, Lambda * 4": _regularized(4.0),
    "auto, not centred": _with(algorithm="objective"),
    "scs13": _with(algorithm="scs13"),
    "bst14": _with(algorithm="bst14"),
    "dpsgd": _with(algorithm="dpsgd"),
}
BEST = ("auto", "auto, Lambda / 4", "auto, Lambda * 4", "auto, not centred")
#: What a budget of delta = 0 cannot have.
NEEDS_DELTA = ("bst14", "dpsgd")
DIFFPRIVLIB = "diffprivlib"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("data", nargs="*", default=list(EPSILONS), metavar="benchmark", help=", ".join(EPSILONS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--ways", type=lambda text: text.split(";"), default=[*WAYS, DIFFPRIVLIB])
    parser.add_argument("--budget", choices=KINDS, action="append", help="one of the two kinds of budget only")
    parser.add_argument("--output", type=Path, default=Path("accuracy.json"))
    chosen = parser.parse_args()
    if chosen.command == "table":
        for line in tables(json.loads(chosen.output.read_text("utf-8"))):
            print(line)
        return
    for name in chosen.data:
        run(name, chosen.ways, chosen.repeats, chosen.output, kinds=chosen.budget or KINDS)


def run(name: str, ways: Sequence[str], repeats: int, output: Path, *, kinds: Sequence[str]) -> None:
    """Train every way at every epsilon, and add the scores to `output`."""
    results: dict[str, list[Scores]] = json.loads(output.read_text("utf-8")) if output.exists() else {}
    benchmark = BENCHMARKS[name]
    with ExitStack() as stack:
        training, testing, schema = halves(benchmark)
        rows = training.count()
        prepared = stack.enter_context(training.prepare(schema, Context(seed=1)))
        tested = stack.enter_context(testing.prepare(schema, Context(seed=1)))
        for kind in kinds:
            delta = 0.0 if kind == "pure" else float(rows) ** -2
            for epsilon in EPSILONS[name]:
                for way in ways:
                    key = f"{name}|{kind}|{epsilon:g}|{way}"
                    if way == "noiseless":
                        key = f"{name}|noiseless"
                    if (way in NEEDS_DELTA and delta == 0) or (way == DIFFPRIVLIB and delta > 0):
                        continue
                    start = time.perf_counter()
                    for _ in range(len(results.get(key, [])), repeats):
                        if way == DIFFPRIVLIB:
                            got = with_diffprivlib(prepared, tested, epsilon)
                            if got is None:
                                break
                        else:
                            common = Settings(epsilon=epsilon, delta=delta)
                            settings = WAYS[way](common, rows, schema)
                            got = one(settings, schema, training, testing, prepared, tested)
                        results.setdefault(key, []).append(got)
                    if results.get(key):
                        shown = " ".join(
                            f"{metric} {mean_and_spread(results[key], metric)}" for metric in results[key][0]
                        )
                        print(f"{key}: {shown} ({time.perf_counter() - start:.0f} s)", flush=True)
                    with replacing(output) as aside:
                        aside.write_text(json.dumps(results, indent=0), "utf-8")


def halves(benchmark: Benchmark) -> tuple[Engine, Engine, Schema]:
    """The rows for training and those for testing, in memory, and their schema."""
    schema = benchmark.schema
    if schema.projection is not None:
        # Projected once, by a public matrix, before anything else.
        packed, declared = schema, array_schema(dims=schema.dims, classes=range(len(schema.classes)), intercept=True)
    elif all(isinstance(column, Numeric) and not column.curve for column in schema.columns):
        # The same features, as one column that is quick to encode again for each standardization.
        packed = plain(schema)
        declared = replace(schema, label="label", columns=(Vector("x", packed.dims, -1, 1),))
    else:
        packed, declared = None, schema

    def loaded(part: str) -> ArrayEngine:
        with open_source(benchmark.source(part)) as engine:
            if packed is None:
                names = [*(column.name for column in schema.columns), schema.label]
                return ArrayEngine.from_arrow(pa.Table.from_batches(list(engine.batches(names))))
            with engine.prepare(packed, Context(seed=17)) as prepared:
                rows = np.concatenate(list(prepared.blocks()))
            return ArrayEngine.from_numpy(rows[:, 1:], rows[:, 0].astype(np.int64))

    table = loaded("train")
    if benchmark.test is not None:
        return table, loaded("test"), declared
    order = np.random.default_rng(17).permutation(table.count())
    shuffled = ArrayEngine({name: column.take(order) for name, column in table._columns.items()}, rows=len(order))
    cut = len(order) - round(TEST_SHARE * len(order))
    return shuffled.slice(0, cut), shuffled.slice(cut, len(order)), declared


def one(
    settings: Settings, schema: Schema, training: Engine, testing: Engine, prepared: Prepared, tested: Prepared
) -> Scores:
    """The scores of one model."""
    if plan_moments(settings, schema, rows=prepared.rows) is None:
        planned = plan(settings, rows=prepared.rows, dims=schema.dims, classes=len(schema.classes))
        return scores(train_prepared(prepared, schema, planned, Context(seed=1)), tested)
    model = train(training, schema, settings)
    with testing.prepare(model.schema, Context(seed=1)) as standardized:
        return scores(model, standardized)


def scores(model: Model, tested: Prepared) -> Scores:
    """Accuracy, and for two classes balanced accuracy and the area under the ROC curve."""
    blocks = [(block[:, 0], model.margins(block)) for block in tested.blocks()]
    labels, margins = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return judged(labels, margins, model.choices(margins))


def judged(labels: npt.NDArray[Any], margins: npt.NDArray[np.float64], chosen: npt.NDArray[np.intp]) -> Scores:
    """The scores of margins and the classes chosen by them."""
    got = {"accuracy": float((chosen == labels).mean())}
    if margins.shape[1] == 1:
        from sklearn.metrics import balanced_accuracy_score, roc_auc_score

        got["balanced"] = float(balanced_accuracy_score(labels, chosen))
        got["auc"] = float(roc_auc_score(labels, margins[:, 0]))
    return got


def with_diffprivlib(prepared: Prepared, tested: Prepared, epsilon: float) -> Scores | None:
    """The scores of diffprivlib's model of the same encoded rows; None where it is not installed."""
    try:
        from diffprivlib.models import LogisticRegression  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None

    def rows(part: Prepared) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
        packed = np.concatenate(list(part.blocks()))
        return unit_rows(packed), packed[:, 0]

    x, labels = rows(prepared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, fit_intercept=False, max_iter=200).fit(x, labels)
        x, labels = rows(tested)
        margins = np.atleast_2d(model.decision_function(x).T).T
        return judged(labels, margins, model.predict(x).astype(np.intp))


def mean_and_spread(runs: Sequence[Scores], metric: str) -> str:
    """Mean and standard deviation."""
    values = [run[metric] for run in runs]
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}"


def tables(results: Mapping[str, list[Scores]]) -> Iterator[str]:
    """Markdown, a table for each benchmark and kind of budget; the way that is not private is marked."""
    shown = ("as published", "bolton", "auto", "best", "scs13", "bst14", "dpsgd", DIFFPRIVLIB)
    for name in EPSILONS:
        metrics = ("accuracy", "balanced", "auc") if name == "protein" else ("accuracy",)
        for kind in KINDS:
            for metric in metrics:
                found = {
                    (epsilon, way): runs
                    for epsilon in EPSILONS[name]
                    for way in shown
                    if (runs := _runs(results, f"{name}|{kind}|{epsilon:g}", way, metric))
                }
                ways = [way for way in shown if any(way == other for _, other in found)]
                if not ways:
                    continue
                noiseless = mean_and_spread(results[f"{name}|noiseless"], metric)
                yield f"\n**{name}, {kind}, {metric}** (noiseless {noiseless})\n"
                titles = ["*as published, not private*" if way == "as published" else way for way in ways]
                yield f"| epsilon | {' | '.join(titles)} |\n|{'---|' * (1 + len(ways))}"
                for epsilon in EPSILONS[name]:
                    cells = [found.get((epsilon, way), []) for way in ways]
                    yield f"| {epsilon:g} | {' | '.join(mean_and_spread(c, metric) if c else '' for c in cells)} |"


def _runs(results: Mapping[str, list[Scores]], cell: str, way: str, metric: str) -> list[Scores]:
    if way != "best":
        return results.get(f"{cell}|{way}", [])
    tried = [results[f"{cell}|{one}"] for one in BEST if results.get(f"{cell}|{one}")]
    return max(tried, key=lambda runs: statistics.mean(run[metric] for run in runs), default=[])


if __name__ == "__main__":
    main()
