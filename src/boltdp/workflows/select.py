"""Private selection among candidates: each method is planned from public numbers and runs over prepared rows.

`portions`  the paper's Algorithm 3. Each candidate is trained on rows of its own, so that all of them together read
            the rows as often as one candidate alone would; other rows select one by the exponential mechanism
`trials`    every candidate is trained on all rows; each of a random number of trials releases a random candidate with
            fresh noise and a noisy count of its errors; the best trial is kept
`public`    candidates are compared without noise on public rows, and the best is trained on the private rows

Weights and counts of errors are as sensitive as the rows; only released ones are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from boltdp._array_types import Doubles
from boltdp.algorithms import Job, get_algorithm
from boltdp.algorithms._base import check_row_count
from boltdp.errors import ParameterError
from boltdp.kernel.misclassification import ErrorCounts
from boltdp.kernel.number_errors import NumberErrors
from boltdp.losses import Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, certify
from boltdp.privacy.events.event import BudgetedEvent, Event, SelfComposition
from boltdp.privacy.events.selection import (
    PortionSelection,
    PublicSelection,
    Selection,
    TrialSelection,
    compute_portion_bounds,
    split_trial_budget,
)
from boltdp.privacy.release_with_noise import (
    Randomness,
    choose_by_errors,
    draw_index,
    draw_trial_count,
    release_count,
    release_weights,
)
from boltdp.run_context import Context
from boltdp.schema.schema import Schema

if TYPE_CHECKING:
    from boltdp.engines.base import Engine, PreparedRows

#: Plans the event of one candidate from its number, its rows and its budget.
PlanCandidate: TypeAlias = Callable[[int, int, Budget | None], Event]
#: The number of the selected candidate, and its released weights, of shape (models, vectors, dims).
ChosenModel: TypeAlias = tuple[int, Doubles]

#: The mean number of trials. More cost no epsilon, only time and a little of delta.
TRIALS = 100.0
#: The number of weight vectors that are scored in one scan of the rows.
VECTORS_AT_ONCE = 512
#: The share of the public rows that candidates are trained on; they are compared on the rest.
PUBLIC_TRAINING = 0.75
#: The number of noise draws per candidate on public rows, to average out the noise.
REHEARSALS = 5


def plan_portion_selection(
    plan_one: PlanCandidate, budget: Budget | None, *, candidates: int, rows: int
) -> list[Selection]:
    """Plan a selection by training each candidate on its own rows; return the event for each that may be selected."""
    bounds = [compute_portion_bounds(i, rows=rows, candidates=candidates) for i in range(candidates)]
    trained = tuple(BudgetedEvent(budget, plan_one(i, stop - start, budget)) for i, (start, stop) in enumerate(bounds))
    epsilon = None if budget is None else budget.epsilon
    return [PortionSelection(trained=trained, chosen=i, rows=rows, epsilon=epsilon) for i in range(candidates)]


def plan_trial_selection(
    plan_one: PlanCandidate, budget: Budget | None, *, candidates: int, rows: int, mean: float
) -> list[Selection]:
    """Plan a selection by a random number of trials; return the event for each candidate that may be selected."""
    if budget is None:
        raise ParameterError(
            "epsilon must be given for trials, got None", hint="compare noiseless candidates by portions"
        )
    model, score = split_trial_budget(budget, mean=mean)
    trained = tuple(BudgetedEvent(model, plan_one(i, rows, model)) for i in range(candidates))
    return [
        TrialSelection(trained=trained, chosen=i, rows=rows, mean=mean, score_epsilon=score.epsilon)
        for i in range(candidates)
    ]


def plan_public_selection(
    plan_one: PlanCandidate, budget: Budget | None, *, candidates: int, rows: int, public_rows: int
) -> list[Selection]:
    """Plan a selection on public rows; return the event for each candidate that may be selected."""
    parts = [BudgetedEvent(budget, plan_one(i, rows, budget)) for i in range(candidates)]
    return [
        PublicSelection(trained=part, compared=candidates, chosen=i, rows=rows, public_rows=public_rows)
        for i, part in enumerate(parts)
    ]


def choose_by_portions(
    prepared: PreparedRows, certificates: Sequence[Certificate], *, classes: int, context: Context
) -> ChosenModel:
    """Train each candidate on its own rows, and select one privately by its errors on other rows."""
    selection, forks, count = certificates[0].selection, context.randomness.spawn(), len(certificates)
    assert isinstance(selection, PortionSelection)
    check_row_count(prepared, selection.rows)
    bounds = [compute_portion_bounds(i, rows=prepared.rows, candidates=count) for i in range(count + 1)]
    released = []
    for i, certificate in enumerate(certificates):
        algorithm, job = get_algorithm(certificate.algorithm), Job(certificate, next(forks))
        stages = context.prefix_stages(f"candidate {i + 1} of {count}, ")
        (weights,) = algorithm.run(prepared.slice(*bounds[i]), [job], classes=classes, context=stages)
        released.append(release_weights(weights, certificate, job.randomness))
    loss = certificates[0].problem.loss
    errors = count_errors(released, prepared.slice(*bounds[count]), classes=classes, loss=loss)
    if selection.epsilon is None:
        number = int(np.argmin(errors))
    else:
        number = choose_by_errors(errors, epsilon=selection.epsilon, random_bytes=next(forks).make_stream())
    return number, released[number]


def choose_by_trials(
    prepared: PreparedRows, certificates: Sequence[Certificate], *, classes: int, context: Context
) -> ChosenModel:
    """Release a random candidate in each of a secret number of trials; select the one with the fewest noisy errors."""
    forks, selection = context.randomness.spawn(), certificates[0].selection
    assert isinstance(selection, TrialSelection)
    check_row_count(prepared, selection.rows)
    candidates = Candidates(prepared, certificates, classes=classes, context=context)
    random_bytes = next(forks).make_stream()
    remaining = draw_trial_count(selection.mean, random_bytes)
    at_once = max(1, VECTORS_AT_ONCE // max(certificates[0].model_count, certificates[0].problem.loss.vector_count))
    changes, best, fewest = certificates[0].problem.changed_rows, None, np.inf
    while remaining > 0:
        numbers = [draw_index(len(certificates), random_bytes) for _ in range(min(remaining, at_once))]
        remaining -= len(numbers)
        released = candidates.release(numbers, forks)
        counts = count_errors(released, prepared, classes=classes, loss=certificates[0].problem.loss)
        for number, weights, errors in zip(numbers, released, counts, strict=True):
            score = release_count(errors, epsilon=selection.score_epsilon, changes=changes, random_bytes=random_bytes)
            if score < fewest:
                best, fewest = (number, weights), score
    assert best is not None
    return best


def choose_on_public_rows(
    public: Engine, schema: Schema, certificates: Sequence[Certificate], forks: Iterator[Randomness], context: Context
) -> int:
    """Return the number of the candidate with the fewest errors on public rows, trained as on the private ones."""
    rows, count = public.count(), len(certificates)
    cut = round(PUBLIC_TRAINING * rows)
    if not 2 <= cut < rows:
        raise ParameterError(f"the public data must have at least 4 rows, got {rows}")
    classes, open_context = schema.target.kernel_class_count, Context(seed=0, progress=context.progress)
    with public.prepare(schema.without_person_limit, Context(seed=0, threads=context.threads)) as prepared:
        rehearsals = [_plan_public_training(certificate, rows=cut) for certificate in certificates]
        stages = open_context.prefix_stages("on public rows, ")
        candidates = Candidates(prepared.slice(0, cut), rehearsals, classes=classes, context=stages)
        numbers = [number for number in range(count) for _ in range(REHEARSALS)]
        released, loss = candidates.release(numbers, forks), certificates[0].problem.loss
        errors = count_errors(released, prepared.slice(cut, rows), classes=classes, loss=loss)
    return int(np.argmin(np.bincount(numbers, weights=errors)))


class Candidates:
    """Trainings over the same rows, whose releases are independent given the rows.

    If all noise is added at the release, every candidate is trained once, all of them in the same scans. Otherwise
    each release trains again, without reporting progress, which would reveal the number of trials.

    Proof: selection.md 2.3
    """

    def __init__(
        self, prepared: PreparedRows, certificates: Sequence[Certificate], *, classes: int, context: Context
    ) -> None:
        self._prepared, self._certificates, self._classes, self._context = prepared, certificates, classes, context
        self._trained: list[Doubles] | None = None
        if all(certificate.training_noise is None for certificate in certificates):
            jobs = [Job(certificate, context.randomness) for certificate in certificates]
            self._trained = self._train(jobs, context.prefix_stages(f"{len(jobs)} candidates, "))

    def release(self, numbers: Sequence[int], forks: Iterator[Randomness]) -> list[Doubles]:
        """Release weights of the candidates with these numbers, each with its own noise."""
        jobs = [Job(self._certificates[number], next(forks)) for number in numbers]
        if self._trained is None:
            weights = self._train(jobs, self._context.mute())
        else:
            weights = [self._trained[number] for number in numbers]
        return [release_weights(one, job.certificate, job.randomness) for one, job in zip(weights, jobs, strict=True)]

    def _train(self, jobs: Sequence[Job], context: Context) -> list[Doubles]:
        algorithm = get_algorithm(jobs[0].certificate.algorithm)
        return algorithm.run(self._prepared, jobs, classes=self._classes, context=context)


def count_errors(
    released: Sequence[Doubles], prepared: PreparedRows, *, classes: int, loss: Loss | None = None
) -> Sequence[float]:
    """Count the rows that each model misclassifies, in one scan; rows without a usable label are errors.

    With a loss of numbers, each row counts by its error, of which `loss.whole_error` is a whole one. One row changes
    each count by at most 1, a person by at most `max_rows_per_person`. The counts are as sensitive as the rows.

    Proof: adjacency.md 5
    """
    weights = np.stack([one.reshape(-1, one.shape[-1]) for one in released])
    errors: ErrorCounts | NumberErrors
    if loss is not None and loss.target == "number":
        errors = NumberErrors(loss, weights[:, 0], feature_map=prepared.feature_map)
    else:
        errors = ErrorCounts(weights, classes=classes, feature_map=prepared.feature_map)
    prepared.add_to_sums([errors])
    return errors.counts


def _plan_public_training(certificate: Certificate, *, rows: int) -> Certificate:
    """Return the certificate of a candidate's training on another number of rows, which are public."""
    training = get_algorithm(certificate.algorithm).rescale(certificate.training, rows=rows)
    models = certificate.model_count
    event = training if models == 1 else SelfComposition(BudgetedEvent(None, training), models)
    return certify(event, certificate.budget, seeded=certificate.seeded)
