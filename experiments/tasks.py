"""The benchmarks as the experiments use them: rows to train on and to be judged by, in memory, and how they judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from boltdp._array_types import Doubles, Integers
from boltdp.engines import open_source
from boltdp.engines.base import Engine, encode_rows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.privacy.events import event
from boltdp.privacy.mechanisms import calibrate_unit_gaussian
from boltdp.privacy.release_with_noise import Randomness
from boltdp.run_context import Context
from boltdp.schema.schema import Schema, make_array_schema
from boltdp.schema.target import Number, Target
from boltdp.settings import Settings
from boltdp.workflows.predict import score_batches
from boltdp.workflows.standardize import apply_moments, plan_standardization, sum_moments
from experiments.datasets import BENCHMARKS, Benchmark

#: By metric; no log loss where a way gives no probabilities.
Scores: TypeAlias = dict[str, float]
#: Class indices, or numbers.
Labels: TypeAlias = npt.NDArray[Any]

TEST_SHARE = 0.2
#: Probabilities are cut to this and to one minus it before their logarithm is taken.
MIN_PROBABILITY = 1e-6


def halves(benchmark: Benchmark, *, share: float = TEST_SHARE) -> tuple[Engine, Engine, Schema]:
    """The rows for training and those for testing, in memory, and their schema.

    Where a benchmark has no test file, this share of its rows, by position after a shuffle, is for testing. What the
    schema projects is projected here, once, by its public matrix.
    """
    schema = benchmark.schema
    declared = schema
    if schema.projection is not None:
        declared = make_array_schema(dims=schema.dims, classes=range(len(schema.classes)), intercept=True)

    def loaded(part: str) -> ArrayEngine:
        with open_source(benchmark.source(part)) as engine:
            if schema.projection is None:
                names = [*(column.name for column in schema.columns), schema.label]
                return ArrayEngine.from_arrow(pa.Table.from_batches(list(engine.batches(names))))
            rows = np.concatenate(list(encode_rows(engine, schema)))
            return ArrayEngine.from_numpy(rows[:, 1:], rows[:, 0].astype(np.int64))

    table = loaded("train")
    if benchmark.test is not None:
        return table, loaded("test"), declared
    return *split(table, declared, share=share, seed=17), declared


def read_labels(cells: npt.NDArray[Any], target: Target) -> Labels:
    """Class indices, or numbers in the unit of the target, from encoded labels."""
    if isinstance(target, Number):
        middle, half = (target.low + target.high) / 2.0, (target.high - target.low) / 2.0
        return np.asarray(middle + half * cells.astype(np.float64))
    return cells.astype(np.int64)


def unit_rows(rows: Doubles) -> Doubles:
    """Rows shortened to length 1 where they are longer."""
    shortened: Doubles = rows / np.maximum(1.0, np.sqrt(np.einsum("ij,ij->i", rows, rows)))[:, None]
    return shortened


def split(engine: Engine, schema: Schema, *, share: float, seed: int) -> tuple[Engine, Engine]:
    """The rows, shuffled, in two parts; the second has the share."""
    names = [*(column.name for column in schema.columns), schema.label]
    table = pa.Table.from_batches(list(engine.batches(names)))
    order = np.random.default_rng(seed).permutation(engine.count())
    cut = len(order) - round(share * len(order))
    return ArrayEngine.from_arrow(table.take(order[:cut])), ArrayEngine.from_arrow(table.take(order[cut:]))


@dataclass(frozen=True)
class Part:
    """Rows as encoded without any division, and their class indices or numbers."""

    features: npt.NDArray[np.float32]
    labels: Labels

    @classmethod
    def of(cls, engine: Engine, schema: Schema) -> Part:
        """All rows of an engine, in order."""
        rows = schema.unscaled.encoding.read_features(np.concatenate(list(encode_rows(engine, schema.unscaled))))
        return cls(rows[:, 1:].astype(np.float32), read_labels(rows[:, 0], schema.target))


@dataclass(frozen=True, eq=False)
class Task:
    """Rows to train on, rows to be judged by, and what is public about both."""

    name: str
    training: Engine
    testing: Engine
    schema: Schema

    @classmethod
    def of(cls, name: str, *, share: float = TEST_SHARE) -> Task:
        """A benchmark, and of one without a test file this share for testing."""
        return cls(name, *halves(BENCHMARKS[name], share=share))

    @classmethod
    def within(cls, name: str, *, most_rows: int | None = None) -> Task:
        """A part of a benchmark's TRAINING rows against another part of them: to choose settings by."""
        training, _, schema = halves(BENCHMARKS[name])
        if most_rows is not None and most_rows < training.count():
            training = split(training, schema, share=most_rows / training.count(), seed=29)[1]
        return cls(f"{name}, training rows", *split(training, schema, share=TEST_SHARE, seed=31), schema)

    @cached_property
    def rows(self) -> int:
        """Number of training rows, m."""
        return self.training.count()

    @property
    def classes(self) -> int:
        """Number of classes, K."""
        return len(self.schema.classes)

    @cached_property
    def parts(self) -> tuple[Part, Part]:
        """Training and testing rows as they are."""
        return Part.of(self.training, self.schema), Part.of(self.testing, self.schema)

    @cached_property
    def labels(self) -> Labels:
        """The class indices of the testing rows, or their numbers, which may be beyond the bounds."""
        target = self.schema.target
        if isinstance(target, Number):
            table = pa.Table.from_batches(list(self.testing.batches([target.column])))
            return np.asarray(table[target.column].to_numpy(), np.float64)
        return self.parts[1].labels

    def centring(self, budget: Budget) -> tuple[Schema, Budget]:
        """The schema after the private centring that pays for this budget, and what is left of it."""
        planned = self._moments(budget, "objective")
        if planned is None or planned.budget is None:
            return self.schema, budget
        return self._centred(planned), budget.subtract(planned.budget)

    def gaussian_centring(self, budget: Budget) -> tuple[Schema, float]:
        """The same by means with Gaussian noise, and the deviation of Gaussian noise that keeps the budget beside them.

        It is for a sensitivity of 1. Means and what comes after them are then one Gaussian, as for "noisy-gd".
        """
        planned, deviation = self._moments(budget, "noisy-gd"), calibrate_unit_gaussian(budget)
        if planned is None:
            return self.schema, deviation
        assert planned.event.mu is not None
        return self._centred(planned), (deviation**-2 - planned.event.mu**2) ** -0.5

    def _moments(self, budget: Budget, algorithm: str) -> event.BudgetedEvent | None:
        """What centring takes before an algorithm, if "auto" would centre at all."""
        asked = Settings(epsilon=budget.epsilon, delta=budget.delta)
        if plan_standardization(asked, self.schema, rows=self.rows) is None:
            return None
        return plan_standardization(
            replace(asked, algorithm=algorithm, standardize="private"), self.schema, rows=self.rows
        )

    def _centred(self, planned: event.BudgetedEvent) -> Schema:
        event: Any = planned.event
        with self.training.prepare(self.schema.unscaled, Context(), permuted=False) as prepared:
            sums = sum_moments(prepared, self.schema, event)
        return apply_moments(sums, self.schema, event, Randomness(), rows=self.rows)

    def unit_parts(self, schema: Schema) -> tuple[Doubles, Labels, Doubles]:
        """Training rows of length at most 1 by a schema, their class indices or numbers, and testing rows."""
        packed, tested = (
            schema.encoding.read_features(np.concatenate(list(encode_rows(engine, schema))))
            for engine in (self.training, self.testing)
        )
        return unit_rows(packed[:, 1:]), read_labels(packed[:, 0], schema.target), unit_rows(tested[:, 1:])

    def spans(self) -> Iterator[tuple[slice, bool, float, float]]:
        """Of each column in a `Part`: the place of its features, whether they are categories, and its bounds."""
        at = 0
        for rule in self.schema.encoding.rules:
            low, high = (0.0, 1.0) if rule.values else rule.bounds
            yield slice(at, at + rule.feature_count), bool(rule.values), low, high
            at += rule.feature_count


@dataclass(frozen=True)
class Answer:
    """What a way says of the testing rows: numbers, or classes.

    For two classes there is a ranking, and probabilities if it has any.
    """

    chosen: Labels
    ranking: Doubles | None = None
    probabilities: Doubles | None = None

    @classmethod
    def of_probabilities(cls, probabilities: Doubles, *, ranking: Doubles | None = None) -> Answer:
        """The likeliest classes; `ranking` is for probabilities that are rounded to 0 or 1."""
        if probabilities.shape[1] == 2 and ranking is None:
            ranking = probabilities[:, 1]
        chosen: Integers = np.argmax(probabilities, axis=1).astype(np.int64)
        return cls(chosen, ranking if probabilities.shape[1] == 2 else None, probabilities)

    @classmethod
    def of_scores(cls, scores: Doubles) -> Answer:
        """From log-odds of the second class, or unnormalised log-probabilities of each of several classes."""
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        return cls.of_probabilities(shifted / shifted.sum(axis=1, keepdims=True), ranking=scores[:, 1] - scores[:, 0])

    @classmethod
    def of_model(cls, model: Model, engine: Engine) -> Answer:
        """What a model says of the rows of an engine."""
        margins = np.concatenate(list(score_batches(model, engine)))
        if isinstance(model.schema.target, Number):
            return cls(np.asarray(model.predict_margins(margins), np.float64))
        probabilistic = model.certificate.problem.loss.probabilistic
        return cls(
            model.predict_indices(margins).astype(np.int64),
            margins[:, 0] if margins.shape[1] == 1 else None,
            model.probabilities(margins) if probabilistic else None,
        )


def judged(answer: Answer, labels: Labels) -> Scores:
    """Accuracy and log loss, and for two classes balanced accuracy and the area under the ROC curve.

    Of numbers, R2, the share of their variance that is explained, and the mean absolute error.

    >>> judged(Answer.of_scores(np.array([-1.0, 2.0])), np.array([0, 1]))["auc"]
    1.0
    >>> judged(Answer(np.array([1.0, 3.0])), np.array([1.0, 5.0]))
    {'r2': 0.5, 'mae': 1.0}
    """
    if labels.dtype.kind == "f":
        errors = labels - answer.chosen
        unexplained = float(np.mean(errors**2)) / float(labels.var())
        return {"r2": 1.0 - unexplained, "mae": float(np.abs(errors).mean())}
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score

    scores: Scores = {"accuracy": float((answer.chosen == labels).mean())}
    if answer.probabilities is not None:
        of_truth = answer.probabilities[np.arange(len(labels)), labels]
        kept = np.clip(of_truth, MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
        scores["log loss"] = float(-np.log(kept).mean())
    if answer.ranking is not None:
        scores["auc"] = float(roc_auc_score(labels, answer.ranking))
        scores["balanced"] = float(balanced_accuracy_score(labels, answer.chosen))
    return scores


def better(metric: str) -> float:
    """1 where more of a metric is better, -1 where less is."""
    return -1.0 if metric in ("log loss", "mae") else 1.0


def budget_of(kind: str, epsilon: float, rows: int) -> Budget:
    """Of the kind "pure", or "approximate" with delta = 1/m^2.

    >>> budget_of("approximate", 0.5, 100)
    Budget(epsilon=0.5, delta=0.0001)
    """
    return Budget(epsilon, {"pure": 0.0, "approximate": float(rows) ** -2}[kind])
