"""Compare algorithms on non-sensitive data: accuracies and run times are measured without noise."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from boltdp import algorithms
from boltdp._charts import save_figure
from boltdp._files.outputs import write_text
from boltdp.errors import BoltdpError, ParameterError, check_whole_number
from boltdp.model import Model
from boltdp.privacy.events.event import Analysis
from boltdp.privacy.release_with_noise import Randomness
from boltdp.run_context import Context
from boltdp.schema.curves import add_curves
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.select import count_errors
from boltdp.workflows.standardize import apply_moments, standardize_schema, sum_moments
from boltdp.workflows.train import train_prepared

if TYPE_CHECKING:
    from boltdp.engines.base import Engine, PreparedRows

FORMAT = "boltdp-comparison"

#: The share of the rows that is used for testing if no test data is given.
TEST_SHARE = 0.2

#: The names that can be compared: training without noise, "auto", each algorithm, and its published form if any.
COMPARED_ALGORITHMS = (
    "noiseless",
    "auto",
    *(
        name
        for one in algorithms.ALGORITHMS.values()
        for name in (one.name, f"{one.name}-paper")[: 1 + ("analysis" in one.takes)]
    ),
)


def adapt_settings(name: str, common: Settings, epsilon: float) -> Settings:
    """Return the settings to train one algorithm at one epsilon, without those that it does not accept."""
    if name == "noiseless":
        return replace(common, epsilon=None, delta=0.0, noise_seed=None, algorithm="auto")
    if name == "auto":
        return replace(common, epsilon=epsilon, algorithm=name)
    algorithm = algorithms.get_algorithm(name.removesuffix("-paper"))
    analysis: Analysis = "paper" if name.endswith("-paper") else "proved"
    settings = replace(common, epsilon=epsilon, algorithm=algorithm.name, analysis=analysis)
    return settings.reset(*(name for name in settings.given_names if name not in algorithm.takes))


class ComparisonFileError(BoltdpError):
    """Raised for a file of results that cannot be read, or that is about other data or settings."""


@dataclass(frozen=True)
class Run:
    """The result of one training."""

    algorithm: str
    epsilon: float | None  #: None: noiseless
    repeat: int
    score: float  #: the accuracy, or R2 of numbers
    seconds: float  #: of training and release, without preparing the rows
    private: bool  #: whether the guarantee holds


@dataclass(frozen=True)
class RunSummary:
    """Means and standard deviations over the repeats of one algorithm at one epsilon."""

    algorithm: str
    epsilon: float | None
    repeats: int
    score: float
    score_spread: float
    seconds: float
    seconds_spread: float
    private: bool


@dataclass(frozen=True)
class Comparison:
    """The subject of a comparison, in public numbers, and the runs so far."""

    about: Mapping[str, Any]
    runs: tuple[Run, ...] = ()

    def summarize_runs(self) -> list[RunSummary]:
        cells: dict[tuple[str, float | None], list[Run]] = {}
        for run in self.runs:
            cells.setdefault((run.algorithm, run.epsilon), []).append(run)
        return [
            RunSummary(
                algorithm,
                epsilon,
                len(runs),
                *_compute_mean_and_deviation([run.score for run in runs]),
                *_compute_mean_and_deviation([run.seconds for run in runs]),
                all(run.private for run in runs),
            )
            for (algorithm, epsilon), runs in cells.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "note": "measured without noise: not private",
            "about": dict(self.about),
            "summaries": [asdict(summary) for summary in self.summarize_runs()],
            "runs": [asdict(run) for run in self.runs],
        }

    def save(self, path: str | Path) -> None:
        write_text(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        try:
            record = json.loads(Path(path).read_text("utf-8"))
            if record["format"] != FORMAT:
                raise ValueError
            return cls(record["about"], tuple(Run(**run) for run in record["runs"]))
        except (OSError, KeyError, TypeError, ValueError):
            raise ComparisonFileError(f"the file {str(path)!r} has no results of a comparison") from None


def _describe_subject(engine: Engine, schema: Schema, settings: Settings, test: Engine | None) -> dict[str, Any]:
    """Describe the data and settings of a comparison; a file gets more results only if these are the same."""
    public = asdict(replace(settings, epsilon=None, seed=None, noise_seed=None))
    if settings.class_weights is not None:
        public["class_weights"] = list(public["class_weights"])  # as a file has them
    return {
        "rows": engine.count(),
        "score": schema.target.score,
        "test_rows": None if test is None else test.count(),
        "schema": hashlib.sha256(json.dumps(schema.to_dict(), sort_keys=True).encode()).hexdigest()[:16],
        "settings": public,
    }


def compare(
    engine: Engine,
    schema: Schema,
    settings: Settings,
    *,
    names: Sequence[str],
    epsilons: Sequence[float],
    repeats: int,
    test: Engine | None = None,
    resume_from: Comparison | None = None,
    keep: Callable[[Comparison], None] | None = None,
    context: Context | None = None,
) -> Comparison:
    """Train every algorithm at every epsilon, `repeats` times, on the same rows with the same settings.

    Runs in `resume_from` are not repeated; `keep` is called with the results after each run. Each repeat has its own
    order of the rows and its own noise. The result has exact accuracies: it is for non-sensitive data.
    """
    for name in names:
        if name not in COMPARED_ALGORITHMS:
            raise ParameterError(f"algorithms must be some of {', '.join(COMPARED_ALGORITHMS)}, got {name!r}")
    if not names or not epsilons or repeats < 1:
        raise ParameterError(
            f"there must be an algorithm, an epsilon and a repeat, got {len(names)}, {len(epsilons)} and {repeats}"
        )
    if settings.inference:
        raise ParameterError("inference must not be given for a comparison: one algorithm alone has it")
    settings = settings.resolve_class_weights(schema.target)
    # The cost of a draft does not count for public rows. All algorithms have the same curves, without automatic ones.
    steps = 0 if settings.curves is None else check_whole_number(settings.curves, "curves", least=0)
    schema = add_curves(replace(schema, spent=None), steps)
    about = _describe_subject(engine, schema, settings, test)
    rows = about["rows"]
    if resume_from is not None and dict(resume_from.about) != about:
        raise ComparisonFileError(
            "the results so far are of other data or settings", hint="choose another output file, or remove it"
        )
    cut = rows if test is not None else rows - round(TEST_SHARE * rows)
    # Noiseless training has no epsilon, and so only one cell.
    chosen = [(name, adapt_settings(name, settings, epsilon)) for name in names for epsilon in epsilons]
    cells = {(name, one.epsilon): one for name, one in chosen}
    # All plans are made first, so that an error in the last one is raised before the first training.
    plans = {cell: make_plan(schema, cut, replace(one, curves=0, label_check=0.0)) for cell, one in cells.items()}
    made = Comparison(about) if resume_from is None else resume_from
    done = {(run.algorithm, run.epsilon, run.repeat) for run in made.runs}
    todo = [(*cell, repeat) for repeat in range(repeats) for cell in cells if (*cell, repeat) not in done]
    if not todo:
        return made
    context = settings.context() if context is None else context

    def prepare(stack: ExitStack, schema: Schema) -> tuple[PreparedRows, PreparedRows]:
        prepared = stack.enter_context(engine.prepare(schema, context.start_stage("preparing", rows)))
        if test is not None:
            return prepared, stack.enter_context(test.prepare(schema.without_person_limit, context.mute()))
        whole = prepared
        if schema.person_id is not None:  # in the same order, without the limit of rows per person
            whole = stack.enter_context(engine.prepare(schema.without_person_limit, context.mute()))
        return prepared.slice(0, cut), whole.slice(cut, rows)

    with ExitStack() as stack:
        sums, shared = {}, prepare(stack, schema)
        moments = {type(event): event for plan in plans.values() if (event := plan.certificate.moments) is not None}
        if moments:
            with ExitStack() as briefly:
                unprojected = shared if schema.projection is None else prepare(briefly, schema.unscaled)
                sums = {kind: sum_moments(unprojected[0], schema, event) for kind, event in moments.items()}
        order = 0
        for number, (algorithm, epsilon, repeat) in enumerate(todo):
            context.start_stage("training", len(todo)).report_rows(number)
            plan, noise_seed = plans[algorithm, epsilon], cells[algorithm, epsilon].noise_seed
            certificate = plan.certificate
            own = replace(context.mute(), randomness=Randomness(None if noise_seed is None else noise_seed + repeat))
            if repeat != order:
                shared[0].reshuffle(context.seed + repeat)
                order = repeat
            with ExitStack() as briefly:
                used, (training, testing) = plan.schema, shared
                if certificate.moments is not None:
                    # Each run standardizes with its own noise; only projected rows must be prepared again for it.
                    own_sums = sums[type(certificate.moments)]
                    used = apply_moments(own_sums, used, certificate.moments, own.randomness, rows=cut)
                    if schema.projection is not None:
                        training, testing = prepare(briefly, used)
                        if repeat:
                            training.reshuffle(context.seed + repeat)
                used = standardize_schema(training, used, certificate, own.randomness)
                training, testing = (part.with_feature_map(used.encoding.feature_map) for part in (training, testing))
                start = time.perf_counter()
                model = train_prepared(training, used, certificate, own)
                seconds = time.perf_counter() - start
                score = _compute_score(model, testing)
            one = Run(algorithm, epsilon, repeat, score, seconds, certificate.private)
            made = Comparison(about, (*made.runs, one))
            if keep is not None:
                keep(made)
    return made


def _compute_score(model: Model, testing: PreparedRows) -> float:
    """Return the accuracy of a model on prepared rows, or R2 if it predicts a number; rows without a label are errors.

    R2 leaves out rows without a usable label.
    """
    target = model.schema.target
    if target.class_count:
        return 1 - count_errors([model.weights], testing, classes=target.class_count)[0] / testing.rows
    truths, predictions = [], []
    low, high = target.label_column.encoding_rule.bounds
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    for block in testing.read_blocks():
        known = block[~np.isnan(block[:, 0])]
        truths.append(middle + half * known[:, 0].astype(np.float64))
        predictions.append(model.predict_margins(model.margins(known)))
    truth, predicted = np.concatenate(truths), np.concatenate(predictions)
    spread = float(np.sum((truth - truth.mean()) ** 2))
    return 1 - float(np.sum((truth - predicted) ** 2)) / spread if spread else 0.0


def draw_comparison(comparison: Comparison, path: str | Path) -> None:
    """Save a plot of accuracy and run time against epsilon, with error bars of one standard deviation."""
    summaries = comparison.summarize_runs()
    with save_figure(path, columns=2, size=(10, 4.5)) as (figure, ((*axes,),)):
        for algorithm in dict.fromkeys(summary.algorithm for summary in summaries):
            mine = sorted((one for one in summaries if one.algorithm == algorithm), key=lambda one: one.epsilon or 0.0)
            label = algorithm if all(one.private for one in mine) else f"{algorithm} (not private)"
            for axis, name in zip(axes, ("score", "seconds"), strict=True):
                means, spreads = ([getattr(one, each) for one in mine] for each in (name, f"{name}_spread"))
                if mine[0].epsilon is None:
                    axis.axhline(means[0], color="black", linestyle="--", label=label)
                    axis.axhspan(means[0] - spreads[0], means[0] + spreads[0], color="black", alpha=0.1)
                else:
                    places = [one.epsilon for one in mine]
                    axis.errorbar(places, means, yerr=spreads, marker="o", capsize=3, label=label)
        for axis, name in zip(axes, (f"{comparison.about['score']} on test rows", "seconds of training"), strict=True):
            axis.set(xscale="log", xlabel="epsilon", ylabel=name)
        axes[0].legend()
        figure.suptitle("Measured without noise, on non-sensitive data")


def _compute_mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
