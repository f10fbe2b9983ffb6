"""Algorithms side by side, on data that may be looked at: accuracies and run times are measured without noise."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from boltdp import kernel
from boltdp.algorithms.standardize import standardized_by
from boltdp.arraytypes import Integers
from boltdp.data.schema import Schema
from boltdp.engines.base import Engine, Prepared, plain
from boltdp.errors import BoltdpError, ParameterError
from boltdp.files import replacing
from boltdp.settings import Settings
from boltdp.train import Progress, permutation_seed, told_rows, train_prepared
from boltdp.tune import error_counts

FORMAT = "boltdp-comparison"

#: The part of the rows that is used for testing, where no test data is given.
TEST_SHARE = 0.2

#: The settings of each algorithm at one epsilon, made of those that all have in common.
ALGORITHMS: Mapping[str, Callable[[Settings, float], Settings]] = {
    "noiseless": lambda common, _: replace(common, epsilon=None, delta=0.0, noise_seed=None, algorithm="bolton"),
    "auto": lambda common, epsilon: replace(common, epsilon=epsilon, algorithm="auto"),
    "bolton": lambda common, epsilon: replace(common, epsilon=epsilon, algorithm="bolton"),
    "objective": lambda common, epsilon: replace(common, epsilon=epsilon, algorithm="objective"),
    # As published: valid for some settings and not for others, so never private.
    "bolton-paper": lambda common, epsilon: replace(common, epsilon=epsilon, algorithm="bolton", analysis="paper"),
    "scs13": lambda common, epsilon: replace(common, epsilon=epsilon, algorithm="scs13"),
    # As published: valid for epsilon/passes < 1 only, if there is a delta.
    "scs13-paper": lambda common, epsilon: replace(common, epsilon=epsilon, algorithm="scs13", analysis="paper"),
    "bst14": lambda common, epsilon: replace(common, epsilon=epsilon, algorithm="bst14"),
    # As published: argued for half of the sensitivity.
    "bst14-paper": lambda common, epsilon: replace(common, epsilon=epsilon, algorithm="bst14", analysis="paper"),
    "dpsgd": lambda common, epsilon: replace(common, epsilon=epsilon, algorithm="dpsgd"),
}


class ComparisonFileError(BoltdpError):
    """A file of results that cannot be read, or is about something else."""


@dataclass(frozen=True)
class Run:
    """One training and what came of it."""

    algorithm: str
    epsilon: float | None  #: None: noiseless
    repeat: int
    accuracy: float
    seconds: float  #: of the passes and the release; preparing the rows is the same for all
    private: bool  #: whether the algorithm's claim holds


@dataclass(frozen=True)
class Summary:
    """All repeats of one algorithm at one epsilon: means, and standard deviations between the repeats."""

    algorithm: str
    epsilon: float | None
    repeats: int
    accuracy: float
    accuracy_spread: float
    seconds: float
    seconds_spread: float
    private: bool


@dataclass(frozen=True)
class Comparison:
    """What was compared, in public numbers, and the runs so far."""

    about: Mapping[str, Any]
    runs: tuple[Run, ...] = ()

    def summaries(self) -> list[Summary]:
        """One for each algorithm and epsilon, in the order in which they first came."""
        cells: dict[tuple[str, float | None], list[Run]] = {}
        for run in self.runs:
            cells.setdefault((run.algorithm, run.epsilon), []).append(run)
        return [
            Summary(
                algorithm,
                epsilon,
                len(runs),
                *_mean_and_spread([run.accuracy for run in runs]),
                *_mean_and_spread([run.seconds for run in runs]),
                all(run.private for run in runs),
            )
            for (algorithm, epsilon), runs in cells.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {
            "format": FORMAT,
            "note": "measured without noise: not private",
            "about": dict(self.about),
            "summaries": [dataclasses.asdict(summary) for summary in self.summaries()],
            "runs": [dataclasses.asdict(run) for run in self.runs],
        }

    def save(self, path: str | Path) -> None:
        """Write the file aside, then rename it: an interruption loses nothing."""
        with replacing(path) as aside:
            aside.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """Read a file that `save` wrote."""
        try:
            record = json.loads(Path(path).read_text("utf-8"))
            if record["format"] != FORMAT:
                raise ValueError
            return cls(record["about"], tuple(Run(**run) for run in record["runs"]))
        except (OSError, KeyError, TypeError, ValueError):
            raise ComparisonFileError(f"the file {str(path)!r} has no results of a comparison") from None


def subject(engine: Engine, schema: Schema, settings: Settings, *, test: Engine | None = None) -> dict[str, Any]:
    """What a comparison is about: results are kept together only if all of this is the same.

    >>> import pyarrow as pa
    >>> from boltdp.data.schema import Numeric
    >>> from boltdp.engines import open_source
    >>> rows = open_source(pa.table({"age": [30, 40], "sick": [0, 1]}))
    >>> subject(rows, Schema("sick", (0, 1), (Numeric("age", 0, 100),)), Settings(epsilon=None))["rows"]
    2
    """
    public = dataclasses.asdict(replace(settings, epsilon=None, seed=None, noise_seed=None))
    return {
        "rows": engine.count(),
        "test_rows": None if test is None else test.count(),
        "schema": hashlib.sha256(json.dumps(schema.to_dict(), sort_keys=True).encode()).hexdigest()[:16],
        "settings": {name: None if value == math.inf else value for name, value in public.items()},
    }


def compare(
    engine: Engine,
    schema: Schema,
    settings: Settings,
    *,
    algorithms: Sequence[str],
    epsilons: Sequence[float],
    repeats: int,
    test: Engine | None = None,
    before: Comparison | None = None,
    keep: Callable[[Comparison], None] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Train every algorithm at every epsilon, `repeats` times, on the same rows with the same settings.

    Runs that are in `before` are not made again; `keep` gets the results after each run. Each repeat has an order of
    the rows and noise of its own. The result tells accuracies: it is for data that may be looked at.

    >>> import numpy as np, pyarrow as pa
    >>> from boltdp.data.schema import Numeric
    >>> from boltdp.engines import open_source
    >>> rows = open_source(pa.table({"age": np.arange(3000) % 100, "sick": np.arange(3000) % 100 > 60}))
    >>> schema = Schema("sick", (False, True), (Numeric("age", 0, 100),))
    >>> made = compare(rows, schema, Settings(epsilon=None), algorithms=["bolton"], epsilons=[0.1, 1.0], repeats=2)
    >>> [(one.algorithm, one.epsilon, one.repeats) for one in made.summaries()]
    [('bolton', 0.1, 2), ('bolton', 1.0, 2)]
    """
    for name in algorithms:
        if name not in ALGORITHMS:
            raise ParameterError(f"algorithms must be some of {', '.join(ALGORITHMS)}, got {name!r}")
    if not algorithms or not epsilons or repeats < 1:
        raise ParameterError(
            f"there must be an algorithm, an epsilon and a repeat, got {len(algorithms)}, {len(epsilons)} and {repeats}"
        )
    rows, about = engine.count(), subject(engine, schema, settings, test=test)
    if before is not None and dict(before.about) != about:
        raise ComparisonFileError(
            "the results so far are of other data or settings", hint="choose another output file, or remove it"
        )
    cut = rows if test is not None else rows - round(TEST_SHARE * rows)
    # Noiseless training has no epsilon, so that it is one cell.
    chosen = [(name, ALGORITHMS[name](settings, epsilon)) for name in algorithms for epsilon in epsilons]
    cells = {(name, one.epsilon): one for name, one in chosen}
    # Planned first, so that a fault of the last cell shows before the first is trained.
    plans = {
        cell: one.plan(
            rows=cut,
            dims=schema.dims,
            classes=len(schema.classes),
            standardization=one.standardization(schema, rows=cut),
        )
        for cell, one in cells.items()
    }
    made = Comparison(about) if before is None else before
    done = {(run.algorithm, run.epsilon, run.repeat) for run in made.runs}
    todo = [(*cell, repeat) for repeat in range(repeats) for cell in cells if (*cell, repeat) not in done]
    if not todo:
        return made
    seed = permutation_seed(settings)

    def prepare(stack: ExitStack, schema: Schema) -> tuple[Prepared, Prepared]:
        """The rows for training and those for testing."""
        prepared = stack.enter_context(
            engine.prepare(schema, seed=seed, progress=told_rows(progress, "preparing", rows))
        )
        if test is None:
            return prepared.portion(0, cut), prepared.portion(cut, rows)
        return prepared, stack.enter_context(test.prepare(schema, seed=seed))

    with ExitStack() as stack:
        sums, shared = None, None
        if any(plan.standardization is not None for plan in plans.values()):
            with ExitStack() as briefly:
                sums = _moments(prepare(briefly, plain(schema))[0], radius=schema.feature_radius)
        if any(plan.standardization is None for plan in plans.values()):
            shared = prepare(stack, schema)
        order = 0
        for number, (algorithm, epsilon, repeat) in enumerate(todo):
            if progress is not None:
                progress("training", number, len(todo))
            plan, noise_seed = plans[algorithm, epsilon], cells[algorithm, epsilon].noise_seed
            noise_seed = None if noise_seed is None else noise_seed + repeat
            if shared is not None and repeat != order:
                shared[0].reshuffle(seed + repeat)
                order = repeat
            with ExitStack() as own:
                used = schema
                if plan.standardization is None:
                    assert shared is not None
                    training, testing = shared
                else:
                    # Each run standardizes with noise of its own, and so has rows of its own.
                    assert sums is not None
                    used = standardized_by(sums, schema, plan.standardization, rows=cut, noise_seed=noise_seed)
                    training, testing = prepare(own, used)
                    if repeat:
                        training.reshuffle(seed + repeat)
                start = time.perf_counter()
                model = train_prepared(training, used, plan, seed=seed, noise_seed=noise_seed)
                seconds = time.perf_counter() - start
                accuracy = 1 - error_counts([model], testing)[0] / testing.rows
            made = Comparison(
                about, (*made.runs, Run(algorithm, epsilon, repeat, accuracy, seconds, model.certificate.private))
            )
            if keep is not None:
                keep(made)
    return made


def _moments(prepared: Prepared, *, radius: float) -> Integers:
    """`Engine.moments` of rows that are prepared, as `plain` declares them."""
    sums = np.zeros((2, prepared.dims), np.int64)
    for block in prepared.blocks():
        kernel.moments(block, sums, radius=radius)
    return sums


def draw(comparison: Comparison, path: str | Path) -> None:
    """Save a picture of accuracy and run time against epsilon, with a standard deviation to each side."""
    # Only here: it takes a second to import, and is optional.
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ParameterError(
            "a picture needs matplotlib, which is not installed", hint="install it with `pip install boltdp[plot]`"
        ) from None
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots(1, 2)
    summaries = comparison.summaries()
    for algorithm in dict.fromkeys(summary.algorithm for summary in summaries):
        mine = sorted((one for one in summaries if one.algorithm == algorithm), key=lambda one: one.epsilon or 0.0)
        label = algorithm if all(one.private for one in mine) else f"{algorithm} (not private)"
        for axis, mean, spread in zip(
            axes, ("accuracy", "seconds"), ("accuracy_spread", "seconds_spread"), strict=True
        ):
            means, spreads = ([getattr(one, name) for one in mine] for name in (mean, spread))
            if mine[0].epsilon is None:
                axis.axhline(means[0], color="black", linestyle="--", label=label)
                axis.axhspan(means[0] - spreads[0], means[0] + spreads[0], color="black", alpha=0.1)
            else:
                axis.errorbar([one.epsilon for one in mine], means, yerr=spreads, marker="o", capsize=3, label=label)
    for axis, name in zip(axes, ("accuracy on test rows", "seconds of training"), strict=True):
        axis.set(xscale="log", xlabel="epsilon", ylabel=name)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.suptitle("Measured without noise: for data that you may look at")
    with replacing(path) as aside:
        figure.savefig(aside, dpi=150)


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
