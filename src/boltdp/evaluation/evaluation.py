"""Evaluations of models: figures that follow from exact or noisy statistics of the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.evaluation.class_statistics import ClassStatistics
from boltdp.evaluation.metrics import Score, Table, convert_scores, tabulate_scores
from boltdp.evaluation.number_statistics import NumberStatistics
from boltdp.evaluation.statistics import Statistics, index_groups, list_group_names
from boltdp.model import Model

#: The statistics by which each kind of target is judged.
STATISTICS: Mapping[str, type[Statistics]] = {one.kind: one for one in (ClassStatistics, NumberStatistics)}


def choose_statistics(model: Model) -> type[Statistics]:
    """Return the kind of statistics that judges the target of a model."""
    target = model.schema.target
    if target.kind not in STATISTICS:
        raise ParameterError(f"the target of an evaluation must be {' or '.join(STATISTICS)}, got {target.describe()}")
    return STATISTICS[target.kind]


def _make_score_property(name: str) -> property:
    """Make a property of an evaluation that is the value of one metric; None if that is unknown."""

    def get_value(self: Evaluation) -> float | None:
        score = self.scores.get(name)
        return None if score is None else score.value

    return property(get_value, doc=f"The {name}; None if it is unknown.")


def _make_class_property(name: str) -> property:
    """Make a property that is an attribute of the statistics of classes; other targets raise a ParameterError."""
    return property(lambda self: getattr(self.statistics.require_classes(), name), doc=f"See ClassStatistics.{name}.")


class Evaluation(ABC):
    """The evaluation of a model on some rows."""

    rows: int  #: including those without a usable label, which no metric includes
    by: str | None  #: the column of the subgroups
    groups: tuple[str, ...]  #: the category of each subgroup, then NO_GROUP; or one empty name

    accuracy = _make_score_property("accuracy")
    balanced_accuracy = _make_score_property("balanced accuracy")
    #: This and the next are of the second of two classes; of more, the mean over the classes that have one.
    area_under_the_curve = _make_score_property("area under the curve")
    average_precision = _make_score_property("average precision")
    log_loss = _make_score_property("log loss")
    #: The mean squared error of the probability; with more than two classes, summed over them.
    brier_score = _make_score_property("Brier score")
    r2 = _make_score_property("R2")
    mean_absolute_error = _make_score_property("MAE")
    root_mean_squared_error = _make_score_property("RMSE")
    median_absolute_error = _make_score_property("median absolute error")
    pinball_loss = _make_score_property("pinball loss")
    #: The share of labels that are at most the prediction.
    coverage = _make_score_property("share below the prediction")
    poisson_deviance = _make_score_property("Poisson deviance")

    classes = _make_class_property("classes")
    threshold = _make_class_property("threshold")
    by_class = _make_class_property("by_class")
    confusion = _make_class_property("confusion")
    calibration = _make_class_property("calibration")
    calibration_error = _make_class_property("calibration_error")
    area_error = _make_class_property("area_error")

    @cached_property
    @abstractmethod
    def statistics(self) -> Statistics:
        """The counts, from which every metric follows."""

    @abstractmethod
    def guarantee(self) -> str:
        """Return the privacy guarantee of the evaluation in words."""

    @property
    def is_exact(self) -> bool:
        return not self.statistics.counts.noise

    @cached_property
    def scores(self) -> dict[str, Score | None]:
        """The metrics of all rows with a usable label; None where there are too few rows."""
        return self.statistics.compute_scores(np.ones(len(self.groups)))

    @cached_property
    def by_group(self) -> dict[str, dict[str, Score | None]]:
        """The metrics of each subgroup, with its number of rows and, for classes, the recall of each."""
        found = map(self.statistics.compute_group_scores, np.eye(len(self.groups)))
        return {} if self.by is None else dict(zip(self.groups, found, strict=True))

    @property
    def rows_without_label(self) -> Score:
        """The number of rows without a usable label, a declared class or a number, which no metric includes."""
        counted = self.statistics.counts.count_rows_in(self.statistics.cells)
        value, low, high = (max(0.0, self.rows - one) for one in (counted.value, counted.high, counted.low))
        return Score(value, low, high)

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={score.value:.4g}" for name, score in self.scores.items() if score is not None)
        return f"{type(self).__name__}(rows={self.rows}, {known})"

    def make_tables(self, *, detailed: bool = False) -> list[Table]:
        """Return tables of the classes, if there are some, and one of the subgroups, without unknown metrics."""
        groups = [] if self.by is None else [tabulate_scores(self.by, self.by_group)]
        return [*self.statistics.make_tables(detailed=detailed), *groups]

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "rows_without_label": asdict(self.rows_without_label),
            "by": self.by,
            "scores": convert_scores(self.scores),
            "by_group": {name: convert_scores(scores) for name, scores in self.by_group.items()},
            **self.statistics.to_dict(),
        }

    def plot(self, path: str | Path) -> None:
        """Save a chart as a .png, .svg or .pdf file. Needs `pip install 'boltdp[plot]'`."""
        self.statistics.draw(self, path)


class ExactEvaluation(Evaluation):
    """An evaluation without noise, for non-sensitive data: no guarantee covers it."""

    def __init__(self, model: Model, by: str | None = None) -> None:
        self.rows = 0
        self.by, self.groups = by, list_group_names(model.schema, by)
        self._tally = choose_statistics(model).start_tally(model, len(self.groups))

    def add(self, labels: npt.NDArray[Any], margins: Doubles, codes: npt.NDArray[Any] | None = None) -> None:
        """Count rows by their encoded labels (NaN: no usable one), margins and subgroups."""
        self.rows += len(labels)
        known, groups = index_groups(labels, codes, len(self.groups))
        self._tally.add(labels[known], margins[known], groups)

    @cached_property
    def statistics(self) -> Statistics:
        return self._tally.make_statistics(self.rows)

    def guarantee(self) -> str:
        return "Computed from the rows without noise: no guarantee covers it."
