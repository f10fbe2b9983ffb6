"""From what is asked for to what will run: from public numbers alone, before any row is read."""

from __future__ import annotations

from collections.abc import Mapping

from boltdp.algorithms import chosen_algorithm
from boltdp.data.schema import check_size
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, certify, remaining
from boltdp.privacy.events import Event, Part, SelfComposition
from boltdp.privacy.recipe import Problem
from boltdp.settings import Settings


def plan(
    settings: Settings,
    *,
    rows: int,
    dims: int,
    classes: int,
    before: Part | None = None,
    reasons: tuple[str, ...] = (),
) -> Certificate:
    """The certificate of a training as it will be.

    `classes` is how many are declared; `before` is what standardizing takes of the budget; `reasons` why the result
    will not be private, if the caller knows any.

    >>> plan(Settings(epsilon=1.0), rows=60_000, dims=50, classes=10).problem.loss
    Multinomial(classes=10)
    """
    check_plan(settings, before)
    budget = settings.budget
    left = None if budget is None else remaining(budget, before)
    event = plan_training(settings, rows=rows, dims=dims, classes=classes, budget=left)
    seeded = settings.noise_seed is not None
    return certify(event, budget, before=before, seeded=seeded, reasons=reasons)


def plan_training(settings: Settings, *, rows: int, dims: int, classes: int, budget: Budget | None) -> Event:
    """The training of all models within a budget, by the algorithm that is asked for or chosen.

    >>> plan_training(Settings(epsilon=1.0, loss="huber"), rows=100, dims=5, classes=3, budget=Budget(1.0)).count
    3
    """
    settings.check()
    loss, models = settings.losses(classes)
    algorithm = chosen_algorithm([settings], loss, budget)
    share = None if budget is None else budget.split(models)
    problem = Problem(loss=loss, dims=dims, rows=rows, class_weights=_numbers(settings, classes))
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


def check_plan(settings: Settings, before: Part | None) -> None:
    """Refuse what no plan can hold together."""
    if before is None and settings.standardize == "private":
        raise ParameterError("a plan must have the standardization that is asked for, got none")
    if settings.epsilon is None and settings.noise_seed is not None:
        raise ParameterError("noise_seed must not be given without epsilon: there is no noise")
