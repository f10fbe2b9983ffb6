"""From what is asked for to what will run: from public numbers alone, before any row is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from boltdp.algorithms import chosen_algorithm
from boltdp.errors import ParameterError
from boltdp.losses import Logistic
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, certify, keeps, remaining
from boltdp.privacy.events.event import Event, Part, SelfComposition
from boltdp.privacy.events.objective_perturbation import objective_noise
from boltdp.privacy.training_problem import Problem
from boltdp.schema.curves import add_curves
from boltdp.schema.schema import Schema, check_size
from boltdp.settings import Settings
from boltdp.workflows.standardize import plan_moments

#: Steps of each curve that "auto" adds, where so many columns get one, at most; where more do, none has any.
STEPS = {5: 8, 8: 4, 30: 2}
#: The noise a row that they may bring it to in any case; and at most, if it is not so many times as much as without.
LITTLE_NOISE, MOST_NOISE, MOST_GROWTH = 0.01, 0.15, 2.75


def plan(
    settings: Settings,
    *,
    rows: int,
    dims: int,
    classes: int,
    before: Part | None = None,
    reasons: tuple[str, ...] = (),
    person_rows: int | None = None,
) -> Certificate:
    """The certificate of a training as it will be.

    `classes` is how many are declared; `before` is what standardizing takes of the budget; `reasons` why the result
    will not be private, if the caller knows any; `person_rows` how many rows of a person count, if it is about persons.

    >>> plan(Settings(epsilon=1.0), rows=60_000, dims=50, classes=10).problem.loss
    Multinomial(classes=10)
    """
    check_plan(settings, before)
    budget = settings.budget
    left = None if budget is None else remaining(budget, before)
    plan_within = partial(plan_training, settings, rows=rows, dims=dims, classes=classes, person_rows=person_rows)
    event = plan_within(budget=left)
    if budget is not None and (more := remaining(budget, before, event)) != left:
        event = plan_within(budget=more)
    seeded = settings.noise_seed is not None
    return certify(event, budget, before=before, seeded=seeded, reasons=reasons)


def plan_training(
    settings: Settings, *, rows: int, dims: int, classes: int, budget: Budget | None, person_rows: int | None = None
) -> Event:
    """The training of all models within a budget, by the algorithm that is asked for or chosen.

    >>> plan_training(Settings(epsilon=1.0, loss="huber"), rows=100, dims=5, classes=3, budget=Budget(1.0)).count
    3
    """
    settings.check()
    loss, models = settings.losses(classes)
    algorithm = chosen_algorithm([settings], loss, budget)
    share = None if budget is None else budget.split(models)
    weights = _numbers(settings, classes)
    problem = Problem(loss=loss, dims=dims, rows=rows, class_weights=weights, person_rows=person_rows)
    check_size(features=problem.dims, classes=classes)
    training = algorithm.plan(settings, problem, share)
    return training if models == 1 else SelfComposition(Part(share, training), models)


def _numbers(settings: Settings, classes: int) -> tuple[float, ...] | None:
    """The class weights, which must be numbers by now: see `Settings.weighed`."""
    weights = settings.class_weights
    if weights is None:
        return None
    if isinstance(weights, (str, Mapping)) or len(weights) != classes:
        raise ParameterError(f"a plan must have class_weights as numbers, one for each of the {classes} classes")
    return tuple(weights)


def within(settings: Settings, schema: Schema) -> Settings:
    """The settings with what is left of their budget after the draft of the schema, if that was found from the rows.

    >>> from boltdp.schema.schema import Numeric
    >>> from boltdp.privacy.events.noisy_counts import noisy_counts
    >>> spent = Part(Budget(0.25), noisy_counts(Budget(0.25), releases=1))
    >>> within(Settings(epsilon=1.0), Schema("sick", (0, 1), (Numeric("age", 0, 100),), spent=spent)).epsilon
    0.75
    """
    whole, draft = settings.budget, schema.spent
    if whole is None or draft is None or draft.budget is None:
        return settings
    if not keeps(draft.event, draft.budget):
        raise ParameterError("the schema must have spent no more than its [spent] table claims, and has")
    for name in ("epsilon", "delta"):
        has, cost = getattr(whole, name), getattr(draft.budget, name)
        if has < cost or (name == "epsilon" and has == cost):
            raise ParameterError(
                f"{name} must be more than the {cost:g} that finding the schema has spent, got {has:g}"
                if name == "epsilon"
                else f"delta must be at least the {cost:g} that finding the schema has spent, got {has:g}",
                hint="epsilon and delta are those of the whole model: of its schema, found from the same rows, too",
            )
    left = whole.less(draft.budget)
    return replace(settings, epsilon=left.epsilon, delta=left.delta)


def check_plan(settings: Settings, before: Part | None) -> None:
    """Refuse what no plan can hold together."""
    if before is None and settings.standardize == "private":
        raise ParameterError("a plan must have the standardization that is asked for, got none")
    if settings.epsilon is None and settings.noise_seed is not None:
        raise ParameterError("noise_seed must not be given without epsilon: there is no noise")


def curved(settings: Settings, schema: Schema, *, rows: int) -> Schema:
    """The schema with the curves that were asked for, or that "auto" adds: it does if all else is left to it too.

    A curve follows what a line cannot, and every step of it is one more weight that noise is added to. The more columns
    there are, the fewer steps each has; where they would bring too much noise there are none.

    >>> from boltdp.schema.schema import Numeric
    >>> schema = Schema("sick", (0, 1), (Numeric("age", 0, 100), Numeric("pulse", 0, 250)))
    >>> [len(column.curve) for column in curved(Settings(epsilon=1.0), schema, rows=10_000).columns]
    [8, 8]
    >>> curved(Settings(epsilon=1.0), schema, rows=100) == schema
    True
    """
    if settings.curves is not None:
        if not isinstance(settings.curves, int) or settings.curves < 0:
            raise ParameterError(f"curves must be a whole number >= 0, got {settings.curves!r}")
        return add_curves(schema, settings.curves)
    budget = settings.budget
    if budget is None or settings.algorithm != "auto" or settings.standardize == "none" or rows < 2:
        return schema
    columns = sum(new != old for new, old in zip(add_curves(schema, 1).columns, schema.columns, strict=True))
    steps = next((steps for most, steps in STEPS.items() if columns <= most), 0)
    wanted = add_curves(schema, steps if columns else 0)
    noise, usual = (_noise_per_row(settings, each, rows) for each in (wanted, schema))
    if noise is None or usual is None:
        return schema
    return wanted if noise <= max(LITTLE_NOISE, min(MOST_NOISE, MOST_GROWTH * usual)) else schema


def _noise_per_row(settings: Settings, schema: Schema, rows: int) -> float | None:
    """Of objective perturbation after standardizing; None where that does not pay."""
    before, budget = plan_moments(settings, schema, rows=rows), settings.budget
    if before is None or budget is None:
        return None
    # As if for two classes; Lambda as large as makes it of no account.
    problem = Problem(loss=Logistic(), dims=schema.dims, rows=rows, person_rows=schema.max_rows)
    problem = replace(problem, regularization=problem.changed_rows * (1.0 + 8.0 / budget.epsilon))
    return objective_noise(problem, remaining(budget, before)).expected_norm / rows
