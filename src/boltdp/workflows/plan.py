"""Plans of trainings, made from public numbers alone, before any row is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from boltdp.algorithms import Algorithm, choose_algorithm, get_algorithm
from boltdp.errors import ParameterError, whole_number
from boltdp.losses import Logistic
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, certify, fits_budget, subtract_spent
from boltdp.privacy.events.event import BudgetedEvent, Event, SelfComposition
from boltdp.privacy.events.objective_perturbation import objective_noise
from boltdp.privacy.training_problem import Problem
from boltdp.schema.curves import add_curves
from boltdp.schema.schema import Classes, Schema, check_size
from boltdp.schema.target import Target
from boltdp.settings import Settings
from boltdp.workflows.standardize import plan_standardization

#: The steps of each automatic curve, by the largest number of columns with curves; with more columns there are none.
CURVE_STEPS = {5: 8, 8: 4, 30: 2}
#: Curves are always added if the noise per row stays below this.
SMALL_NOISE_PER_ROW = 0.01
#: Curves are dropped if they raise the noise per row above this.
MAX_NOISE_PER_ROW = 0.15
#: Curves are dropped if they multiply the noise per row by more than this.
MAX_NOISE_GROWTH = 2.75

#: Plans the event of one candidate from its number, its rows and its budget.
PlanCandidate = Callable[[int, int, "Budget | None"], Event]


@dataclass(frozen=True)
class Plan:
    """A training as it will run; `boltdp plan` shows it, and every training, tuning and comparison follows one."""

    schema: Schema  #: with its curves
    settings: Settings  #: with class weights as numbers, and the budget that remains after the draft of the schema
    certificate: Certificate  #: of all events, including standardization and the draft of the schema

    @property
    def algorithm(self) -> Algorithm:
        return get_algorithm(self.certificate.algorithm)


def make_plan(
    schema: Schema, rows: int, settings: Settings, *, dims: int | None = None, reasons: tuple[str, ...] = ()
) -> Plan:
    """Plan a training on `rows` rows of `schema`.

    `dims` overrides the number of features of the schema. `reasons` are why the result will not be private, if the
    caller knows any.

    >>> from boltdp.schema.schema import Numeric
    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    >>> plan = make_plan(schema, 10_000, Settings(epsilon=1.0))
    >>> plan.certificate.private, plan.algorithm.name, len(plan.schema.columns[0].curve)
    (True, 'objective', 8)
    """
    resolved = resolve_settings(settings, schema)
    schema, standardization = add_auto_curves(resolved, schema, rows=rows)
    training = plan_training(
        resolved,
        rows=rows,
        dims=schema.dims if dims is None else dims,
        target=schema.target,
        standardization=standardization,
        person_rows=schema.max_rows_per_person,
    )
    return Plan(schema, resolved, _certify(training, settings, standardization, draft=schema.spent, reasons=reasons))


def make_plans(
    schema: Schema,
    rows: int,
    candidates: Sequence[Settings],
    *,
    plan_selection: Callable[[PlanCandidate, Budget | None], Sequence[Event]],
    reasons: tuple[str, ...] = (),
) -> list[Plan]:
    """Plan a selection among candidates that share a budget, schema and standardization.

    Each candidate has a plan for the case that it is selected; `plan_selection` makes its event.
    """
    resolved = [resolve_settings(each, schema) for each in candidates]
    first, target = resolved[0], schema.target
    schema, standardization = add_auto_curves(first, schema, rows=rows)
    left = None if first.budget is None else subtract_spent(first.budget, standardization)
    first.check()
    # The same algorithm for all: one that accepts the settings of each.
    name = choose_algorithm(resolved, first.choose_loss(target)[0], left).name
    resolved = [replace(each, algorithm=name) for each in resolved]

    def plan_candidate(number: int, rows: int, budget: Budget | None) -> Event:
        return plan_models(
            resolved[number],
            rows=rows,
            dims=schema.dims,
            target=target,
            budget=budget,
            person_rows=schema.max_rows_per_person,
        )

    events = plan_selection(plan_candidate, left)
    return [
        Plan(schema, each, _certify(event, candidates[0], standardization, draft=schema.spent, reasons=reasons))
        for each, event in zip(resolved, events, strict=True)
    ]


def plan_certificate(
    settings: Settings,
    *,
    rows: int,
    dims: int,
    classes: int,
    standardization: BudgetedEvent | None = None,
    reasons: tuple[str, ...] = (),
    person_rows: int | None = None,
) -> Certificate:
    """Plan a training without a schema, from the numbers of rows, features and classes.

    >>> plan_certificate(Settings(epsilon=1.0), rows=60_000, dims=50, classes=10).problem.loss
    Multinomial(classes=10)
    """
    if standardization is None and settings.standardize == "private":
        raise ParameterError("a plan must have the standardization that is asked for, got none")
    target = Classes("label", tuple(range(classes)))
    training = plan_training(
        settings, rows=rows, dims=dims, target=target, standardization=standardization, person_rows=person_rows
    )
    return _certify(training, settings, standardization, reasons=reasons)


def _certify(
    event: Event,
    settings: Settings,
    standardization: BudgetedEvent | None,
    *,
    draft: BudgetedEvent | None = None,
    reasons: tuple[str, ...] = (),
) -> Certificate:
    seeded = settings.noise_seed is not None
    return certify(event, settings.budget, draft=draft, before=standardization, seeded=seeded, reasons=reasons)


def resolve_settings(settings: Settings, schema: Schema) -> Settings:
    """Return `settings` with class weights as numbers, and with the budget that remains after the schema's draft."""
    return subtract_schema_cost(settings.resolve_class_weights(schema.target), schema)


def subtract_schema_cost(settings: Settings, schema: Schema) -> Settings:
    """Return `settings` with the budget that remains after the private draft of `schema`."""
    whole, draft = settings.budget, schema.spent
    if whole is None or draft is None or draft.budget is None:
        return settings
    if not fits_budget(draft.event, draft.budget):
        raise ParameterError("the schema must have spent no more than its [spent] table claims, and has")
    for name, needed in (("epsilon", "more than"), ("delta", "at least")):
        has, cost = getattr(whole, name), getattr(draft.budget, name)
        if has < cost or (name == "epsilon" and has == cost):
            raise ParameterError(
                f"{name} must be {needed} the {cost:g} that finding the schema has spent, got {has:g}",
                hint="epsilon and delta are those of the whole model: of its schema, found from the same rows, too",
            )
    left = whole.less(draft.budget)
    return replace(settings, epsilon=left.epsilon, delta=left.delta)


def add_auto_curves(settings: Settings, schema: Schema, *, rows: int) -> tuple[Schema, BudgetedEvent | None]:
    """Return the schema with its curves, and the event and budget of standardizing its features.

    If `settings` do not set the number of steps, the algorithm "auto" adds curves where the noise is small: each step
    is one more weight that noise is added to. The more columns there are, the fewer steps each has.

    >>> from boltdp.schema.schema import Numeric
    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100), Numeric("pulse", 0, 250)))
    >>> [len(column.curve) for column in add_auto_curves(Settings(epsilon=1.0), schema, rows=10_000)[0].columns]
    [8, 8]
    """
    if settings.curves is not None:
        schema = add_curves(schema, whole_number(settings.curves, "curves", least=0))
    elif settings.budget is not None and settings.algorithm == "auto" and settings.standardize != "none" and rows > 1:
        columns = sum(new != old for new, old in zip(add_curves(schema, 1).columns, schema.columns, strict=True))
        steps = next((steps for most, steps in CURVE_STEPS.items() if columns <= most), 0)
        if columns and steps:
            curved = add_curves(schema, steps)
            curved_standardization = plan_standardization(settings, curved, rows=rows)
            curved_noise = _noise_per_row(settings.budget, curved, curved_standardization, rows=rows)
            if curved_noise <= SMALL_NOISE_PER_ROW:
                return curved, curved_standardization
            standardization = plan_standardization(settings, schema, rows=rows)
            if curved_noise <= MAX_NOISE_PER_ROW:
                noise = _noise_per_row(settings.budget, schema, standardization, rows=rows)
                if curved_noise <= MAX_NOISE_GROWTH * noise:
                    return curved, curved_standardization
            return schema, standardization
    return schema, plan_standardization(settings, schema, rows=rows)


def _noise_per_row(budget: Budget, schema: Schema, standardization: BudgetedEvent | None, *, rows: int) -> float:
    """Return the noise of objective perturbation after standardization; infinite without standardization."""
    if standardization is None:
        return math.inf
    # For two classes, with a Lambda so large that it does not affect the noise.
    problem = Problem(loss=Logistic(), dims=schema.dims, rows=rows, person_rows=schema.max_rows_per_person)
    problem = replace(problem, regularization=problem.changed_rows * (1.0 + 8.0 / budget.epsilon))
    return objective_noise(problem, subtract_spent(budget, standardization)).expected_norm / rows


def plan_training(
    settings: Settings,
    *,
    rows: int,
    dims: int,
    target: Target,
    standardization: BudgetedEvent | None = None,
    person_rows: int | None = None,
) -> Event:
    """Plan the training of all models within the budget that remains after standardization."""
    budget = settings.budget
    plan_within = partial(plan_models, settings, rows=rows, dims=dims, target=target, person_rows=person_rows)
    left = None if budget is None else subtract_spent(budget, standardization)
    event = plan_within(budget=left)
    # Gaussian events compose more tightly than basic composition, which leaves more of the budget.
    if budget is not None and (more := subtract_spent(budget, standardization, event)) != left:
        event = plan_within(budget=more)
    return event


def plan_models(
    settings: Settings, *, rows: int, dims: int, target: Target, budget: Budget | None, person_rows: int | None = None
) -> Event:
    """Plan the training of all models within `budget`, by the algorithm of the settings or the one "auto" chooses."""
    settings.check()
    if settings.epsilon is None and settings.noise_seed is not None:
        raise ParameterError("noise_seed must not be given without epsilon: there is no noise")
    loss, models = settings.choose_loss(target)
    algorithm = choose_algorithm([settings], loss, budget)
    share, asked = None if budget is None else budget.split(models), settings.class_weights
    weights = None if asked is None else target.resolve_class_weights(asked)
    problem = Problem(loss=loss, dims=dims, rows=rows, class_weights=weights, person_rows=person_rows)
    check_size(features=problem.dims, classes=target.label_count)
    training = algorithm.plan(settings, problem, share)
    return training if models == 1 else SelfComposition(BudgetedEvent(share, training), models)
