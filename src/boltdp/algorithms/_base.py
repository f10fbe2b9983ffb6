"""The interface of all algorithms.

takes, check, fits       which settings it accepts
plan                     from public numbers and a budget to the event of its training
run                      over prepared rows, to weights that are as sensitive as the rows until they are released
rescale, resize          the same training on other rows, to try it out and to audit it
describe_..., forecast   its lines of reports
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from boltdp._array_types import Doubles
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import DataError, ParameterError
from boltdp.losses import Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Training
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release_with_noise import Randomness
from boltdp.privacy.training_problem import Problem
from boltdp.run_context import Context
from boltdp.settings import Settings

#: A guess at the L2 norm of good weights for rows in the unit ball.
TYPICAL_NORM = 5.0


@dataclass(frozen=True)
class Job:
    """One of several trainings over the same rows: its certificate and its source of random bits."""

    certificate: Certificate
    randomness: Randomness
    center: Doubles | None = None  #: the released weights that the penalty is centred at; None: 0

    @property
    def positives(self) -> Sequence[int]:
        """The positive class of each model: the second of two classes, or each class of one-vs-all models."""
        return [1] if self.certificate.model_count == 1 else range(self.certificate.model_count)


class Algorithm(ABC):
    """A way to train; there is one object of each, in `algorithms.ALGORITHMS`."""

    name: ClassVar[str]
    about: ClassVar[str]  #: for --help: where it adds noise
    takes: ClassVar[frozenset[str]]  #: the optional settings that it accepts
    noise_place: ClassVar[str]  #: where its main noise is
    columns: ClassVar[Mapping[str, tuple[str, str]]]  #: the heading and format of each column of a table of forecasts
    explanation: ClassVar[str]  #: of that table
    gaussian: ClassVar[bool] = False  #: whether its noise is one Gaussian, which composes exactly with an earlier one
    needs_permutation: ClassVar[bool] = True  #: whether it needs permuted rows; if not, it only sums over rows
    fixed_scans: ClassVar[bool] = True  #: whether public numbers alone decide how often it scans the rows

    def check(self, settings: Settings, loss: Loss, budget: Budget | None) -> None:
        """Raise a ParameterError for settings that the algorithm does not accept; subclasses add conditions."""
        for name in settings.given_names:
            if name not in self.takes:
                raise ParameterError(
                    f"{name} must not be given for the algorithm {self.name}, which has none"
                    if name != "analysis"
                    else f"analysis must be 'proved' for the algorithm {self.name}, got {settings.analysis!r}"
                )

    def fits(self, settings: Settings, loss: Loss, budget: Budget | None) -> bool:
        """Return whether the algorithm accepts the settings, as `check` decides."""
        try:
            self.check(settings, loss, budget)
        except ParameterError:
            return False
        return True

    def fits_auto(self, settings: Settings, loss: Loss, budget: Budget | None, *, dims: int, rows: int) -> bool:
        """Return whether "auto" may choose this algorithm; subclasses exclude cases where another is more accurate."""
        return self.fits(settings, loss, budget)

    @abstractmethod
    def plan(self, settings: Settings, problem: Problem, budget: Budget | None) -> Training:
        """Plan the training of one model within a budget, from public numbers; without a budget, noiseless.

        `problem` has the loss, the rows and the dims; the algorithm chooses its regularization.
        """

    def can_share_budget(self, problem: Problem) -> bool:
        """Return whether Gaussian noise released before such a training composes with its own as one."""
        return self.gaussian

    def share_budget(self, training: Training, budget: Budget, *, other_mu: float) -> Training:
        """Return a training with noise for a budget that Gaussian mechanisms of this mu share.

        It must know its delta composed with them.
        """
        raise NotImplementedError

    @abstractmethod
    def run(self, prepared: PreparedRows, jobs: Sequence[Job], *, classes: int, context: Context) -> list[Doubles]:
        """Train all jobs in shared scans of the rows, and return weights of shape (models, vectors, dims) for each.

        The weights are as sensitive as the rows until they are released.
        """

    def rescale(self, training: Training, *, rows: int) -> Training:
        """Return the same training, with the same noise, for another number of rows: to tune on fewer, public ones."""
        return replace(training, problem=self.rescale_problem(training.problem, rows=rows))  # type: ignore[type-var]

    def rescale_problem(self, problem: Problem, *, rows: int) -> Problem:
        """Return the same problem for another number of rows."""
        return replace(problem, rows=rows)

    @abstractmethod
    def resize(self, training: Training, budget: Budget, *, rows: int, dims: int) -> Training:
        """Return the same training for other numbers of rows and features, for an audit, with noise within a budget."""

    @abstractmethod
    def describe_cost(self, certificate: Certificate) -> list[tuple[str, str]]:
        """Return the names and values of a table that describes the algorithm and its noise."""

    @abstractmethod
    def describe_run(self, certificate: Certificate) -> str:
        """Describe in a line how often and how the algorithm scanned the rows."""

    @abstractmethod
    def describe_choices(self, certificate: Certificate, settings: Settings) -> list[tuple[str, str]]:
        """Return the names of the settings that were chosen, with their values and the reasons."""

    def describe_noise(self, certificate: Certificate) -> str:
        noise = find_main_noise(certificate)
        return f"{noise.kind}, scale {noise.scale:.3g}, expected L2 norm {noise.expected_norm:.3g}"

    def explain_noise(self, certificate: Certificate, settings: Settings) -> str:
        """Explain why the noise is of its kind, spherical or Gaussian."""
        noise = find_main_noise(certificate)
        if settings.delta:
            return f"{noise.kind}: the smaller of the two valid ones in {noise.dimensions:,} dimensions"
        return f"{noise.kind}: delta = 0 allows no other"

    def describe_loss(self, certificate: Certificate) -> str:
        """Describe the loss, the number of models if there are several, and the range of class weights."""
        models, weights = certificate.model_count, certificate.problem.class_weights
        several = f", {models} models" if models > 1 else ""
        weighted = f", class weights from {min(weights):.3g} to 1" if weights else ""
        return f"{certificate.problem.loss.name}{several}{weighted}"

    def describe_models(self, certificate: Certificate) -> str:
        """Return " in each of N models"; empty for a single model."""
        return f" in each of {certificate.model_count} models" if certificate.model_count > 1 else ""

    @abstractmethod
    def forecast(self, certificate: Certificate) -> dict[str, Any]:
        """Return the expected noise of a planned training and what follows from it, by the names in `columns`."""

    def find_gradient_noise(self, certificate: Certificate) -> float | None:
        """Return the expected L2 norm of the noise of the sum of all rows' gradients, whose norms are about 1.

        Noise in several scans counts as in one; None if the noise is not in gradients.
        """
        return None

    def format_forecast(self, forecast: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
        """Format the numbers of these `columns` of a forecast as cells of a table, blank where it has none."""
        return tuple(self.columns[name][1].format(forecast[name]) if name in forecast else "" for name in names)

    def explain_forecast(self, certificate: Certificate) -> str:
        """Explain the table of forecasts below it."""
        return self.explanation


def check_row_count(prepared: PreparedRows, planned: int) -> None:
    """Raise a DataError if the number of prepared rows differs from that of the planned training."""
    if prepared.rows != planned:
        raise DataError("the data changed while it was read: its number of rows is not what it was")


def find_main_noise(certificate: Certificate) -> Mechanism:
    """Return the noise inside the training, or that of the release if the training has none."""
    noise = certificate.training_noise or certificate.release_noise
    assert noise is not None
    return noise


def compute_noise_per_weight(certificate: Certificate) -> float | None:
    """Return the expected L2 norm of the noise over the square root of the number of weights; None without noise."""
    if certificate.training_noise is None and certificate.release_noise is None:
        return None
    return find_main_noise(certificate).expected_norm / math.sqrt(certificate.problem.weight_count)
