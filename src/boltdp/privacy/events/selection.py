"""Events of selection among candidates. `release_with_noise.py` draws the random choices.

The certificate of a tuned model has one of three events, around those of its candidates:

`PortionSelection`   the paper's Algorithm 3: each candidate is trained on its own rows, and the last rows choose
`TrialSelection`     a random number of trials on all rows, each a random candidate with a noisy score; the best is kept
`PublicSelection`    public rows choose, and the private rows are used only once
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from flint import arb

from boltdp.errors import ParameterError, check_number, check_whole_number
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import BudgetedEvent, Event, Training, Wrapper
from boltdp.privacy.mechanisms import compute_pure_delta, round_up_delta, set_precision
from boltdp.privacy.training_problem import check_single_rows

#: A trial's score gets 1/8 of its epsilon, as a count of errors tolerates more noise than weights do.
SCORE_SHARE = 8


class Selection(Wrapper):
    """The choice of a model among candidates."""

    method: ClassVar[str]
    chosen: int  #: from 0
    rows: int  #: the private rows

    def __post_init__(self) -> None:
        check_whole_number(self.candidates, "candidates", least=1)
        check_whole_number(self.rows, "rows", least=2)
        if check_whole_number(self.chosen, "chosen", least=0) >= self.candidates:
            raise ParameterError(f"chosen must be from 0 to {self.candidates - 1}, got {self.chosen}")

    @property
    @abstractmethod
    def candidates(self) -> int:
        """The number of candidates."""

    @abstractmethod
    def describe(self) -> str:
        """Describe in words how the model was chosen."""


@dataclass(frozen=True, kw_only=True)
class SelectionAmongTrained(Selection):
    """Selection among candidates that were all trained on private rows."""

    trained: tuple[BudgetedEvent, ...]  #: the training of each candidate, on its own portion of the rows or on all
    chosen: int
    rows: int

    @property
    def inner(self) -> Event:
        return self.trained[self.chosen].event

    @property
    def candidates(self) -> int:
        return len(self.trained)


def compute_portion_bounds(portion: int, *, rows: int, candidates: int) -> tuple[int, int]:
    """Return the start and stop row of a portion: one for each candidate, then one to choose among them."""
    if rows < 2 * (candidates + 1):
        raise ParameterError(
            f"the data must have at least 2 rows for each of {candidates} candidates and for the choice, "
            f"got {rows} rows"
        )
    return portion * rows // (candidates + 1), (portion + 1) * rows // (candidates + 1)


@dataclass(frozen=True, kw_only=True)
class PortionSelection(SelectionAmongTrained):
    """Algorithm 3: each candidate is trained on a portion of the rows; the exponential mechanism chooses on another."""

    kind = "selection on portions of the rows"
    method = "portions"
    epsilon: float | None  #: of the choice; None: noiseless

    def __post_init__(self) -> None:
        super().__post_init__()
        for event in self.children:
            check_single_rows(event.released.person_rows, "portions", hint="choose by trials, or on public rows")
        if self.epsilon is not None:
            Budget(self.epsilon)  # raises for an invalid epsilon
        for number, part in enumerate(self.trained):
            start, stop = compute_portion_bounds(number, rows=self.rows, candidates=self.candidates)
            _check_trained_rows(part, stop - start)

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the largest delta of all candidates and of the choice, as a row is in only one portion.

        Proof: selection.md 1
        Proof: noisy_counts.md 4
        """
        chosen = 1.0
        if self.epsilon is not None:
            with set_precision(256):
                chosen = round_up_delta(compute_pure_delta(arb(self.epsilon), arb(epsilon)))
        return max(chosen, *(part.delta(epsilon, target=target) for part in self.trained))

    def sum_budgets(self) -> tuple[float, float]:
        epsilon, delta = super().sum_budgets()
        return max(epsilon, self.epsilon or 0.0), delta

    def describe(self) -> str:
        start, stop = compute_portion_bounds(self.chosen, rows=self.rows, candidates=self.candidates)
        return (
            f"candidate {self.chosen + 1} of {self.candidates}, each trained on rows of its own "
            f"({stop - start:,} of {self.rows:,}), chosen by the exponential mechanism on others"
        )


@dataclass(frozen=True, kw_only=True)
class TrialSelection(SelectionAmongTrained):
    """A geometric number of trials: after each, another one follows with probability 1 - 1/mean."""

    kind = "selection by trials"
    method = "trials"
    mean: float  #: expected number of trials, 1/gamma
    score_epsilon: float  #: of the noisy score of a trial

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mean_trials(self.mean)
        Budget(self.score_epsilon)
        for part in self.trained:
            _check_trained_rows(part, self.rows)

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the composed delta: trials that are each (e, d)-private with their score are (3e, mean*d)-private.

        Proof: selection.md 2.1, 2.2
        """
        left = epsilon / 3 - self.score_epsilon
        if left <= 0:
            return 1.0
        return min(1.0, self.mean * max(part.delta(left, target=target / self.mean) for part in self.trained))

    def sum_budgets(self) -> tuple[float, float]:
        epsilon, delta = super().sum_budgets()
        return 3 * (epsilon + self.score_epsilon), self.mean * delta

    def describe(self) -> str:
        return (
            f"candidate {self.chosen + 1} of {self.candidates}, the best by noisy score in a random number of trials "
            f"on all {self.rows:,} rows"
        )


@dataclass(frozen=True, kw_only=True)
class PublicSelection(Selection):
    """Selection on rows declared public, without private rows."""

    kind = "selection on public rows"
    method = "public"
    trained: BudgetedEvent  #: the one training on private rows
    compared: int  #: candidates
    chosen: int
    rows: int
    public_rows: int

    def __post_init__(self) -> None:
        check_whole_number(self.compared, "compared", least=1)
        super().__post_init__()
        check_whole_number(self.public_rows, "public_rows", least=1)
        _check_trained_rows(self.trained, self.rows)

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """Return the delta of the training, as a choice on public rows costs nothing.

        Proof: selection.md 3
        """
        return self.trained.delta(epsilon, target=target)

    @property
    def candidates(self) -> int:
        return self.compared

    def describe(self) -> str:
        return (
            f"candidate {self.chosen + 1} of {self.candidates}, chosen on {self.public_rows:,} rows that were "
            f"declared public, then trained on {self.rows:,} others"
        )


def split_trial_budget(whole: Budget, *, mean: float) -> tuple[Budget, Budget]:
    """Return the budgets of one trial's model and of its score with which all trials together spend the whole.

    Proof: selection.md 2.1, 2.2
    """
    check_mean_trials(mean)
    score = Budget(whole.split(3 * SCORE_SHARE).epsilon)
    epsilon = math.nextafter(whole.split(3).epsilon - score.epsilon, 0.0)
    return Budget(epsilon, math.nextafter(whole.delta / mean, 0.0) if whole.delta else 0.0), score


def check_mean_trials(mean: float) -> None:
    """Raise ParameterError unless the mean number of trials is above 1 and at most 1,000,000."""
    if not 1 < check_number(mean, "mean") <= 1e6:
        raise ParameterError(f"the mean number of trials must be above 1 and at most 1000000, got {mean}")


def _check_trained_rows(part: BudgetedEvent, rows: int) -> None:
    """Raise ParameterError unless the training of a candidate is on this number of rows."""
    training = part.event.released
    if not isinstance(training, Training) or training.problem.rows != rows:
        raise ParameterError(f"a candidate of this selection must be trained on {rows} rows")
