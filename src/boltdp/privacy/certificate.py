"""The certificate of a release: its claimed budget and its tree of events, from which everything else is derived."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from boltdp._version import __version__
from boltdp.errors import BoltdpError, ParameterError, show_value
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import (
    SEEDED,
    BudgetedEvent,
    Composition,
    Event,
    Training,
    compose,
    mark_non_private,
    strip_non_private,
)
from boltdp.privacy.events.label_quantiles import LabelQuantiles
from boltdp.privacy.events.noisy_counts import (
    NoisyClassCount,
    NoisyHistograms,
    NoisyUnusableLabelCount,
    is_schema_draft,
)
from boltdp.privacy.events.noisy_matrix import NoisyMatrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.noisy_sgd import NoisyUpdates
from boltdp.privacy.events.selection import Selection
from boltdp.privacy.mechanisms import Mechanism, calibrate_unit_gaussian, compute_gaussian_epsilon
from boltdp.privacy.serialization import from_record, to_record
from boltdp.privacy.training_problem import Problem

#: Reasons why a release is not private.
OVERSPENT = "what was done spends more than the epsilon and delta that are claimed"
UNCLAIMED = "no epsilon is claimed"
#: The relative difference allowed between machines, whose mathematical libraries differ in the last digits.
TOLERANCE = 1e-9


class CertificateError(BoltdpError):
    """A certificate cannot be verified."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The record of one release, made by `certify`."""

    budget: Budget | None  #: the claimed epsilon and delta; None: nothing is claimed
    spent: Event
    version: str = __version__

    def __post_init__(self) -> None:
        if not isinstance(self.spent.released, Training):
            raise ParameterError("a certificate must be about the training of a model")
        if not re.fullmatch(r"[0-9A-Za-z.+!-]{1,64}", self.version):
            raise ParameterError("the version of a certificate must be that of a boltdp")
        if len({event.person_rows for event in self.spent.walk() if not event.children}) > 1:
            raise ParameterError("all that a certificate is about must be private for the same neighbours")
        for matrix in self.matrices:
            if matrix.problem != self.problem:
                raise ParameterError("a noisy matrix must be of the training that the certificate is about")
        if len({matrix.matrix for matrix in self.matrices}) < len(self.matrices):
            raise ParameterError("each noisy matrix must be stated once, got one twice")

    @cached_property
    def training(self) -> Training:
        """The training of the released model, or of each of several models."""
        assert isinstance(self.spent.released, Training)
        return self.spent.released

    @property
    def algorithm(self) -> str:
        return self.training.algorithm

    @property
    def problem(self) -> Problem:
        return self.training.problem

    @cached_property
    def model_count(self) -> int:
        return self.spent.model_count

    @cached_property
    def selection(self) -> Selection | None:
        return next((event for event in self.spent.walk() if isinstance(event, Selection)), None)

    @cached_property
    def moments(self) -> NoisyMoments | NoisyHistograms | None:
        """The noisy moments or histograms that centre the features, if they were released."""
        kinds = (NoisyMoments, NoisyHistograms)
        return next((event for event in self.spent.walk() if isinstance(event, kinds)), None)

    @cached_property
    def matrices(self) -> tuple[NoisyMatrix, ...]:
        """The matrices released beside the weights, for inference."""
        return tuple(part.event for part in self.parts if isinstance(part.event, NoisyMatrix))

    @cached_property
    def unusable_label_count(self) -> NoisyUnusableLabelCount | None:
        """The noisy count of rows without a usable label, if it was released."""
        return next((part.event for part in self.parts if type(part.event) is NoisyUnusableLabelCount), None)

    @cached_property
    def class_count(self) -> NoisyClassCount | None:
        """The noisy count of the second class, from which the intercept starts, if it was released."""
        return next((part.event for part in self.parts if isinstance(part.event, NoisyClassCount)), None)

    @cached_property
    def label_quantiles(self) -> LabelQuantiles | None:
        """The chosen quantiles of a label that is a number, if they were released."""
        return next((part.event for part in self.parts if isinstance(part.event, LabelQuantiles)), None)

    @cached_property
    def parts(self) -> tuple[BudgetedEvent, ...]:
        """The composed events with their budgets; the released models are those of the last."""
        return tuple(part for event in self.spent.walk() if isinstance(event, Composition) for part in event.parts)

    @cached_property
    def draft(self) -> BudgetedEvent | None:
        """The noisy counts from which the schema was drafted, if there were any."""
        return next((part for part in self.parts if is_schema_draft(part.event)), None)

    @cached_property
    def training_noise(self) -> Mechanism | None:
        return self.training.training_noise

    @cached_property
    def release_noise(self) -> Mechanism | None:
        return self.training.release_noise

    @property
    def rows(self) -> int:
        """The number of private rows that the guarantee is about."""
        return self.problem.rows if self.selection is None else self.selection.rows

    @property
    def person_rows(self) -> int | None:
        """The maximum number of rows per person, if the guarantee is about persons; None: it is about rows."""
        return self.problem.person_rows

    @cached_property
    def adjacency(self) -> Adjacency:
        return Adjacency.from_person_rows(self.person_rows)

    @cached_property
    def seeded(self) -> bool:
        """Whether the noise came from a seed, so that the release is not private."""
        return SEEDED in self.spent.non_private_reasons

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the release is not private; empty if it is."""
        return find_non_private_reasons(self.spent, self.budget)

    @property
    def private(self) -> bool:
        return not self.reasons

    def delta(self, epsilon: float) -> float:
        """Return the privacy profile: the delta at any epsilon, or 1 where nothing is guaranteed."""
        target = 1e-9 if self.budget is None or not self.budget.delta else self.budget.delta
        return self.spent.delta(Budget(epsilon).epsilon, target=target)

    def guarantee(self, *, planned: bool = False) -> str:
        """Return the guarantee in words, of a released model or of a `planned` one."""
        if not self.private or self.budget is None:
            return f"NOT PRIVATE: {'; '.join(self.reasons)}."
        epsilon, delta, rows = self.budget.epsilon, self.budget.delta, self.rows
        parameters = f"ε = {epsilon:g}, δ = {delta:g}" if delta else f"ε = {epsilon:g}"
        factor = math.exp(epsilon) if epsilon < 700 else math.inf
        claim = (
            f"({parameters})-differentially private: changing {self._describe_neighbours(rows)} "
            f"{'would change' if planned else 'changes'} the probability of any outcome by at most a factor of "
            f"{factor:.3g}{f', plus {delta:g}' if delta else ''}."
        )
        if isinstance(self.training, NoisyUpdates):
            claim += " It holds for real-valued noise in the updates, which is drawn in floating point."
        if epsilon > 10:
            claim += " Caution: an epsilon above 10 guarantees little."
        if delta * rows >= 1:
            claim += (
                f" Caution: a delta of 1/rows or more allows to publish a whole row; keep it far below {1 / rows:.1g}."
            )
        return claim

    def _describe_neighbours(self, rows: int) -> str:
        """Describe the difference of neighbouring datasets: one row, or the rows of one person."""
        if self.person_rows is None:
            return f"any one of the {rows:,} rows"
        used = "one is used" if self.person_rows == 1 else f"at most {self.person_rows:,} are used"
        return f"the rows of any one person, of which {used},"

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON values; floats keep every bit."""
        return {
            "private": self.private,
            "reasons": list(self.reasons),
            "adjacency": self.adjacency.value,
            "epsilon": self.budget.epsilon if self.budget else None,
            "delta": self.budget.delta if self.budget else None,
            "algorithm": self.algorithm,
            "rows": self.rows,
            "models": self.model_count,
            "spent": to_record(self.spent),
            "version": self.version,
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Certificate:
        """Read the result of `to_dict`; raise CertificateError if derived numbers do not follow from the rest."""
        try:
            certificate = cls(
                budget=None if record["epsilon"] is None else Budget(record["epsilon"], record["delta"]),
                spent=from_record(Event, record["spent"]),  # type: ignore[type-abstract]
                version=from_record(str, record["version"]),
            )
            compare_records(record, certificate.to_dict(), "the certificate")
        except KeyError as error:
            raise CertificateError(f"the certificate cannot be read: {error} is missing") from error
        except RecursionError:
            raise CertificateError("the certificate cannot be read: it is nested too deeply") from None
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise CertificateError(f"the certificate cannot be read: {error}") from error
        return certificate


def certify(
    training: Event,
    budget: Budget | None,
    *,
    draft: BudgetedEvent | None = None,
    labels: BudgetedEvent | None = None,
    target: BudgetedEvent | None = None,
    standardization: BudgetedEvent | None = None,
    seeded: bool = False,
    reasons: tuple[str, ...] = (),
) -> Certificate:
    """Return the certificate of a training, and of the releases made before it from the same rows.

    `draft` has the noisy counts that drafted the schema, `labels` counts the unusable labels, `target` finds the range
    of a label that is a number, and `standardization` has the moments of the features. `reasons` state why the
    guarantee does not hold, for causes outside the privacy core, such as classes read from the data.

    Proof: noisy_counts.md 5, 7
    Proof: label_quantiles.md 2
    """
    outer, left = [], budget
    for one in (draft, labels, target):
        if one is not None:
            outer.append((one, left := left if left is None or one.budget is None else left.subtract(one.budget)))
    spent = training
    if standardization is not None:
        spent = compose(standardization, BudgetedEvent(left, training))
        if left is not None and not (shares_budget(standardization, training) and fits_budget(spent, left)):
            spent = compose(standardization, BudgetedEvent(subtract_spent(left, standardization, training), training))
    for one, rest in reversed(outer):
        spent = compose(one, BudgetedEvent(rest, spent))
    return Certificate(budget=budget, spent=mark_non_private(spent, (*reasons, SEEDED) if seeded else reasons))


def subtract_spent(whole: Budget, standardization: BudgetedEvent | None, training: Event | None = None) -> Budget:
    """Return the part of `whole` that remains for a training after the release of a standardization.

    It follows from basic composition, unless that and the training (planned for any budget) are both Gaussian.

    Proof: noisy_moments.md 3
    """
    if standardization is None or standardization.budget is None:
        return whole
    if training is None or training.mu is None:
        return whole.subtract(standardization.budget)
    return subtract_gaussian(whole, standardization)


def subtract_gaussian(whole: Budget, standardization: BudgetedEvent) -> Budget:
    """Return the part of `whole` that remains for a Gaussian mechanism: with a Gaussian standardization it uses all.

    Proof: noisy_gradient_descent.md 2
    """
    assert standardization.budget is not None
    left, spent = whole.subtract(standardization.budget), standardization.event.mu
    if spent is None:
        return left
    squared = ((1.0 - TOLERANCE) / calibrate_unit_gaussian(whole)) ** 2 - spent**2
    if squared * calibrate_unit_gaussian(left) ** 2 <= 1.0:  # almost nothing remains, and rounding exceeds the gain
        return left
    distance = math.sqrt(squared)
    if Mechanism("gaussian", 1.0, 1).delta(0.0, sensitivity=distance) <= whole.delta:
        return left  # delta alone covers this distance, so that it has no epsilon > 0
    return Budget(compute_gaussian_epsilon(distance, whole.delta), whole.delta)


def shares_budget(standardization: BudgetedEvent | None, training: Event | None) -> bool:
    """Return whether the profile of a training composed with the Gaussian release of a standardization is known.

    Proof: noisy_matrix.md 3
    """
    if standardization is None or training is None or standardization.event.mu is None:
        return False
    return training.mu is None and training.knows_composed_delta([standardization.event])


def fits_budget(event: Event, budget: Budget) -> bool:
    """Return whether the delta of an event at the budget's epsilon is within the budget, up to `TOLERANCE`."""
    target = budget.delta or 1e-9
    if event.delta(budget.epsilon, target=target) <= budget.delta:
        return True
    return event.delta(budget.epsilon * (1 + TOLERANCE), target=target) <= budget.delta * (1 + TOLERANCE)


def find_non_private_reasons(event: Event, budget: Budget | None) -> tuple[str, ...]:
    """Return the reasons why a release that claims a budget is not private; empty if it is."""
    if event.non_private_reasons:
        return event.non_private_reasons
    if budget is None:
        return (UNCLAIMED,)
    return () if fits_budget(event, budget) else (OVERSPENT,)


def verify(certificate: Certificate) -> None:
    """Raise CertificateError if the delta that follows from a certificate's events exceeds the claimed one.

    The noise of a model that states why it is not private is checked too, unless the noise is as published in a paper
    or the stated reason lies in the events themselves. So are all budgets that parts of the release state.
    """
    event = strip_non_private(certificate.spent)
    if event.non_private_reasons or event.published or certificate.budget is None:
        return
    if not fits_budget(event, certificate.budget):
        epsilon, delta = certificate.budget.epsilon, certificate.budget.delta
        spent = event.delta(epsilon, target=delta or 1e-9)
        raise CertificateError(
            f"the certificate claims delta = {delta:g} at epsilon = {epsilon:g}, "
            f"but {spent:.6g} follows from its events"
        )
    _check_stated_budgets(event, certificate.budget)


def _check_stated_budgets(event: Event, claimed: Budget) -> None:
    """Raise CertificateError if the stated budgets of parts exceed the claimed one, or if a part exceeds its own.

    Proof: selection.md 1, 2.1, 2.2
    """
    epsilon, delta = event.sum_budgets()
    if epsilon > claimed.epsilon * (1 + TOLERANCE) or delta > claimed.delta * (1 + TOLERANCE):
        raise CertificateError(
            f"the budgets of the parts of a release must be within {claimed.describe()}, they are not"
        )
    for part in event.budgeted_children:
        if part.budget is not None and not fits_budget(part.event, part.budget):
            stated = part.budget.describe()
            raise CertificateError(f"the certificate says that a part spends {stated}, but it spends more")
        _check_stated_budgets(part.event, part.budget or claimed)


def check_claimed_budget(certificate: Certificate, *, epsilon: float | None, delta: float | None) -> None:
    """Raise CertificateError if a certificate claims no budget, or one above a limit; None: no limit."""
    limits = {"epsilon": epsilon, "delta": delta}
    for name, limit in limits.items():
        if limit is not None and not 0 <= limit < math.inf:
            raise ParameterError(f"the largest {name} must be a finite number >= 0, got {limit}")
    if certificate.budget is None:
        raise CertificateError("the model claims no epsilon, so that it is within no limit")
    for name, limit in limits.items():
        spent: float = getattr(certificate.budget, name)
        if limit is not None and spent > limit:
            raise CertificateError(f"the model spends {name} = {spent}, which is more than {limit}")


def compare_records(record: Any, expected: Any, where: str) -> None:
    """Raise CertificateError if a record differs from the expected one; floats may differ by `TOLERANCE`."""
    if isinstance(expected, dict) and isinstance(record, dict):
        for key in record:
            if key not in expected:
                raise CertificateError(f"{where} has an entry {show_value(key)} that this boltdp does not know")
        for key, value in expected.items():
            if key not in record:
                raise CertificateError(f"{where} cannot be read: {key!r} is missing")
            compare_records(record[key], value, f"{where.removesuffix(',')}, in {key!r},")
        return
    if isinstance(expected, list) and isinstance(record, list) and len(expected) == len(record):
        for one, other in zip(record, expected, strict=True):
            compare_records(one, other, where)
        return
    same = type(record) is type(expected) and record == expected
    if isinstance(expected, float) and isinstance(record, float):
        same = math.isclose(record, expected, rel_tol=TOLERANCE)
    if not same:
        raise CertificateError(f"{where} says {show_value(record)}, where {show_value(expected)} follows from the rest")
