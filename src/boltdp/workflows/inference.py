"""Inference: what is released beside the weights, so that coefficients have standard errors.

Rows that are longer than the clip norm keep their length and get a smaller weight, which depends on the features alone
and leaves the coefficients unbiased. The noisy Hessian at the released weights, and the outer products of the gradients
if the errors are to be robust, follow the training. `export/coefficients.py` turns all of it into a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.kernel.loss_derivatives import MAX_HESSIAN_SLOTS, DerivativeSums
from boltdp.model import Inference
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import BudgetedEvent, Composition, Event, NoiselessTraining, Training
from boltdp.privacy.events.noisy_counts import NoisyClassCount
from boltdp.privacy.events.noisy_matrix import NoisyMatrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import (
    allows_releases_before,
    find_ample_regularization,
    find_min_solvable_regularization,
    make_objective_perturbation,
)
from boltdp.privacy.mechanisms import Mechanism, calibrate, calibrate_unit_gaussian, compute_gaussian_epsilon
from boltdp.privacy.release_with_noise import Randomness, release_matrix
from boltdp.privacy.training_problem import Problem
from boltdp.schema.columns import Categorical, Numeric, Vector
from boltdp.workflows.standardize import check_standardization, find_inference_clip, make_moments

if TYPE_CHECKING:
    from boltdp.engines.prepared_rows import PreparedRows
    from boltdp.schema.schema import Schema
    from boltdp.settings import Settings

Part: TypeAlias = NoisyMoments | NoisyClassCount | NoisyMatrix

#: The parts of an inference that are released beside the weights.
MOMENTS, COUNT, HESSIAN, OUTER = "moments", "count", "hessian", "outer products"
#: The smallest and the largest share of epsilon that pays for each, if budgets add up; the weights have the rest.
SHARES = {MOMENTS: (0.05, 0.1), COUNT: (0.01, 0.05), HESSIAN: (0.1, 0.3), OUTER: (0.15, 0.15)}
#: The share of delta that matrices have then.
DELTA_SHARE = 0.25
#: The same two of the squared mu, if all noise is Gaussian.
SQUARED_MU_SHARES = {MOMENTS: (0.05, 0.1), COUNT: (0.02, 0.02), HESSIAN: (0.05, 0.2), OUTER: (0.1, 0.1)}
#: The desired deviations of the noise of a mean and of the share of a class.
MEAN_NOISE, CLASS_NOISE = 0.01, 0.007
#: The desired signal of the Hessian, for a curvature that is this part of the typical one.
DESIRED_SIGNAL, CAUTION = 4.0, 0.5
#: Lambda is this part of that above which it costs no noise: less bias, for 3 % more noise of the logistic loss.
REGULARIZATION = {"logistic": 0.6, "robust": 1.0}
#: The expected signal below which a plan is only taken if no other has more.
CLEAR_SIGNAL = 2.0
#: More than what rounding adds to a mu.
ROUNDING = 1e-9
#: The mean curvature of a row of typical data, and the typical coefficient of a standardized feature; for forecasts.
TYPICAL_CURVATURE = {"logistic": 0.2, "robust": 0.5}
TYPICAL_COEFFICIENT = 0.5


def add_references(schema: Schema) -> Schema:
    """Return the schema as inference needs it: each categorical column has a reference, the first by default.

    Raise a ParameterError for columns whose features have no coefficients to publish.
    """
    if schema.projection is not None:
        raise ParameterError("a schema for inference must have no projection: its coefficients would be of no column")
    if schema.is_monotone:
        raise ParameterError("a schema for inference must have no monotone column: its intervals would not hold")
    if not schema.intercept:
        raise ParameterError("a schema for inference must have an intercept")
    columns = []
    for column in schema.columns:
        if isinstance(column, Categorical) and column.reference is None and len(column.categories) > 1:
            column = replace(column, reference=column.categories[0])
        if not isinstance(column, (Categorical, Numeric, Vector)) or column.encoding_rule.thresholds:
            raise ParameterError(
                f"the column {column.name!r} must be a number without a curve or have categories for inference, "
                f"got {column.describe()}",
                hint="declare a part of a timestamp as categories of a column of its own, or drop it",
            )
        columns.append(column)
    standardization = schema.standardization and replace(schema.standardization, downweights=True)
    return replace(schema, columns=tuple(columns), standardization=standardization)


def plan_inference(settings: Settings, schema: Schema, *, rows: int) -> Event:
    """Plan a training with inference within the budget of `settings`, from public numbers.

    With a delta, all noise that can is Gaussian and composes as one mechanism, or all budgets add up: whichever gives
    the narrower intervals.
    """
    loss, models = settings.choose_loss(schema.target)
    if models != 1 or loss.vector_count != 1 or loss.name not in TYPICAL_CURVATURE:
        raise ParameterError(
            f"inference must be of two classes with the loss logistic, or of a number with the loss robust, got "
            f"{schema.target.describe()} with the loss {loss.name}"
        )
    _check_settings(settings)
    check_standardization(schema)
    slots = schema.encoding.unprojected_map.slots
    if slots > MAX_HESSIAN_SLOTS:
        raise ParameterError(f"inference must be of at most {MAX_HESSIAN_SLOTS:,} features, got {schema.dims:,}")
    problem = Problem(loss=loss, dims=schema.dims, rows=rows, person_rows=schema.max_rows_per_person, downweighted=True)
    parts: dict[str, Part] = {}
    if schema.standardization is None:
        parts[MOMENTS] = make_moments(schema, "squares")
    if loss.target == "classes":
        parts[COUNT] = NoisyClassCount(noise=Mechanism("gaussian", 1.0, 1), person_rows=problem.person_rows)
    parts[HESSIAN] = NoisyMatrix("hessian", problem)
    if settings.robust_errors or loss.target != "classes" or schema.weight is not None:
        parts[OUTER] = NoisyMatrix("outer products", problem)
    budget = settings.budget
    if budget is None:
        return _plan_noiseless(settings, problem, parts)
    plans = [_plan_split(settings, problem, budget, parts)]
    if budget.delta:
        # With little regularization, Gaussian releases may leave nothing to the weights.
        with suppress(ParameterError):
            plans.append(_plan_gaussian(settings, problem, budget, parts))
    # Where the Hessian is hardly above its noise, intervals may be refused, whatever their width.
    return min(plans, key=lambda plan: (estimate_signal(plan) < CLEAR_SIGNAL, estimate_width(plan)))


def _check_settings(settings: Settings) -> None:
    if settings.algorithm not in ("auto", "objective"):
        raise ParameterError(f"algorithm must be auto or objective for inference, got {settings.algorithm!r}")
    for name, allowed in (
        ("class_weights", (None,)),
        ("curves", (None, 0)),
        ("standardize", ("auto", "private")),
        ("standardize_share", (None,)),
        ("standardize_moments", ("auto", "mean", "squares")),
        ("multiclass", ("multinomial",)),
    ):
        if (value := getattr(settings, name)) not in allowed:
            raise ParameterError(f"{name} must not be given for inference, got {value!r}")
    for name in settings.given_names:
        raise ParameterError(f"{name} must not be given for inference, which has no passes")


def _plan_noiseless(settings: Settings, problem: Problem, parts: Mapping[str, Part]) -> Composition:
    problem = replace(problem, regularization=settings.regularization or 1.0 / problem.rows)
    noiseless = [BudgetedEvent(None, part) for name, part in parts.items() if name != COUNT]
    return _compose(noiseless, BudgetedEvent(None, NoiselessTraining(problem)))


def _plan_split(settings: Settings, problem: Problem, budget: Budget, parts: Mapping[str, Part]) -> Composition:
    """Plan releases whose budgets add up."""
    released, left = _plan_releases(problem, budget, parts)
    problem = _add_regularization(settings, problem, left.epsilon)
    return _compose(released, BudgetedEvent(left, make_objective_perturbation(problem, left)))


def _plan_releases(problem: Problem, budget: Budget, parts: Mapping[str, Part]) -> tuple[list[BudgetedEvent], Budget]:
    """Return parts with budgets that add up, and what is left of the budget."""
    released, left = [], budget
    for name, part in parts.items():
        delta = DELTA_SHARE * budget.delta if isinstance(part, NoisyMatrix) else 0.0
        noise = calibrate(part.sensitivity, dimensions=part.dimensions, budget=Budget(budget.epsilon, delta))
        share = np.clip(noise.deviation / _choose_deviation(part, problem), *SHARES[name])
        taken = Budget(float(share) * budget.epsilon, delta)
        noise = calibrate(part.sensitivity, dimensions=part.dimensions, budget=taken)
        released.append(BudgetedEvent(taken, replace(part, noise=noise)))
        left = left.subtract(taken)
    return released, left


def _plan_gaussian(settings: Settings, problem: Problem, budget: Budget, parts: Mapping[str, Part]) -> Composition:
    """Plan Gaussian releases whose squared mu add up; those before the training are apart where they must be.

    Proof: noisy_matrix.md 3
    """
    apart = () if allows_releases_before(problem) else (MOMENTS,)
    before, budget = _plan_releases(problem, budget, {name: parts[name] for name in parts if name in apart})
    whole, released = 1.0 / calibrate_unit_gaussian(budget), []
    for name, part in parts.items():
        if name in apart:
            continue
        desired = _choose_deviation(part, problem)
        mu = whole * math.sqrt(np.clip((part.sensitivity / whole / desired) ** 2, *SQUARED_MU_SHARES[name]))
        noise = Mechanism("gaussian", part.sensitivity / mu, part.dimensions)
        released.append(BudgetedEvent(_find_gaussian_budget(mu, budget), replace(part, noise=noise)))
    problem = _add_regularization(settings, problem, budget.epsilon)
    other_mu = math.hypot(*(one.event.mu or math.inf for one in released)) * (1.0 + ROUNDING)
    training = make_objective_perturbation(problem, budget, other_mu=other_mu)
    together = _compose(released, BudgetedEvent(budget, training))
    return Composition((*before, BudgetedEvent(budget, together))) if before else together


def _choose_deviation(part: Part, problem: Problem) -> float:
    """Return the standard deviation of noise below which less would not make intervals narrower."""
    if isinstance(part, NoisyMoments):
        return MEAN_NOISE * problem.rows
    if isinstance(part, NoisyClassCount):
        return CLASS_NOISE * problem.rows
    robust = part.matrix == "outer products"
    return CAUTION * _estimate_information(problem, robust=robust) / (DESIRED_SIGNAL * math.sqrt(2.0 * problem.dims))


def _find_gaussian_budget(mu: float, whole: Budget) -> Budget:
    """Return a budget with the delta of the whole that a Gaussian mechanism of this mu is within."""
    if Mechanism("gaussian", 1.0, 1).delta(0.0, sensitivity=mu) <= whole.delta:
        return whole
    return Budget(compute_gaussian_epsilon(mu * (1.0 + ROUNDING), whole.delta), whole.delta)


def _add_regularization(settings: Settings, problem: Problem, epsilon: float) -> Problem:
    """Return the problem with a Lambda that costs little noise, which the coefficients are corrected for."""
    chosen, problem = settings.regularization, replace(problem, regularization=1.0)
    if chosen is None:
        chosen = REGULARIZATION[problem.loss.name] * find_ample_regularization(problem, epsilon)
        # A quarter more, for the noise per row, which is not known yet: it is small where Lambda is.
        least = find_min_solvable_regularization(replace(problem, regularization=chosen), None)
        chosen = max(chosen, 1.25 * least)
    return replace(problem, regularization=chosen)


def _compose(parts: Sequence[BudgetedEvent], training: BudgetedEvent) -> Composition:
    """Return the composition of the parts and the training, whose problem has its Lambda by now."""
    assert isinstance(training.event, Training)
    problem, events = training.event.problem, []
    for part in parts:
        if isinstance(part.event, NoisyMatrix):
            part = replace(part, event=replace(part.event, problem=problem))
        events.append(part)
    return Composition((*events, training))


def estimate_width(event: Event) -> float:
    """Return the expected width of an interval relative to that without noise, for typical data, from public numbers.

    The intervals of data whose outcome is rare, or whose columns depend on each other, are wider.
    """
    training, information, error = _read_plan(event)
    problem, noise = training.problem, training.training_noise
    bias = problem.rows * problem.regularization / information * TYPICAL_COEFFICIENT * problem.dims
    linear = 0.0 if noise is None else noise.deviation
    return math.sqrt(1.0 + (linear**2 + error**2 / 2.0 * bias**2) / information)


def estimate_signal(event: Event) -> float:
    """Return the expected smallest eigenvalue of the noisy Hessian, relative to the norm of its noise.

    Below 0 intervals are refused. It is for typical data; if columns depend on each other it is smaller.
    """
    training, information, error = _read_plan(event)
    return information / (error * math.sqrt(2.0 * training.problem.dims)) - 1.0 if error else math.inf


def _read_plan(event: Event) -> tuple[Training, float, float]:
    """Return the training of a plan, the typical Hessian of one feature, and the deviation of its noise."""
    training, matrices = event.released, [one for one in event.walk() if isinstance(one, NoisyMatrix)]
    assert isinstance(training, Training)
    information = _estimate_information(training.problem, robust=len(matrices) > 1)
    return training, information, 0.0 if matrices[0].noise is None else matrices[0].noise.deviation


def _estimate_information(problem: Problem, *, robust: bool) -> float:
    clip = find_inference_clip(problem, robust=robust)
    return problem.rows * TYPICAL_CURVATURE[problem.loss.name] / (clip**2 * max(problem.dims - 1, 1))


def release_inference(
    prepared: PreparedRows,
    weights: Doubles,
    certificate: Certificate,
    randomness: Randomness,
    *,
    classes: int,
    class_count: float | None,
) -> Inference | None:
    """Sum the matrices that the certificate states at the released weights, and release them; None if it has none."""
    if not certificate.matrices:
        return None
    sums = {
        event.matrix: DerivativeSums(
            certificate.problem.loss,
            weights,
            hessian=event.matrix == "hessian",
            outer=event.matrix != "hessian",
            classes=classes,
            feature_map=prepared.feature_map,
        )
        for event in certificate.matrices
    }
    prepared.add_to_sums(list(sums.values()))
    released = {
        event.matrix: release_matrix(sums[event.matrix].value[0], event, certificate, randomness)
        for event in certificate.matrices
    }
    return Inference(released["hessian"], released.get("outer products"), class_count)
