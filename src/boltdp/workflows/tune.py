"""Choosing among candidate settings without spending privacy that the certificate does not show."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from boltdp.algorithms import chosen_algorithm
from boltdp.context import Context
from boltdp.errors import ParameterError
from boltdp.model import Model
from boltdp.privacy.accounting.charges import Charge, OneOfSeveral, Release
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, after, certify, remaining
from boltdp.privacy.events.event import BudgetedEvent, Event
from boltdp.privacy.events.selection import Selection
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows import select
from boltdp.workflows.plan import check_plan, curved, plan_training, within
from boltdp.workflows.select import TRIALS
from boltdp.workflows.standardize import plan_moments, prepared_rows
from boltdp.workflows.train import charged, known_faults, train_prepared

if TYPE_CHECKING:
    from boltdp.engines.base import Engine
    from boltdp.ledger import Account

__all__ = ["TRIALS", "TUNABLE", "Method", "candidates", "tune"]

Method = Literal["trials", "portions", "public"]

#: What candidates may differ in: nothing that the schema, the budget or the form of the weights depends on.
TUNABLE = (
    "passes",
    "batch_size",
    "regularization",
    "schedule",
    "step_size",
    "gradient_clip",
    "exponent",
    "radius",
    "averaging",
)


def candidates(
    settings: Settings, grid: Mapping[str, Sequence[Any]], *, inverse_radius: bool = False
) -> tuple[Settings, ...]:
    """The settings of every combination of the values in `grid`, in order, the last name changing fastest.

    `inverse_radius` keeps weights in the ball of radius 1/regularization, as the paper does.

    >>> grid = {"passes": [5, 10], "regularization": [0.0, 0.01]}
    >>> [(c.passes, c.radius) for c in candidates(Settings(epsilon=1.0), grid, inverse_radius=True)]
    [(5, None), (5, 100.0), (10, None), (10, 100.0)]
    """
    for name, values in grid.items():
        if name not in TUNABLE:
            raise ParameterError(f"a grid must be over some of {', '.join(TUNABLE)}, got {name!r}")
        if not values:
            raise ParameterError(f"the grid must have values for {name}, got none")
    if inverse_radius and "radius" in grid:
        raise ParameterError("the grid must not have a radius if it is 1/regularization")
    combined = [
        replace(settings, **dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())
    ]
    if inverse_radius:
        combined = [replace(one, radius=1 / one.regularization) if one.regularization else one for one in combined]
    return tuple(combined)


def tune(
    engine: Engine,
    schema: Schema,
    candidates: Sequence[Settings],
    *,
    method: Method = "trials",
    public: Engine | None = None,
    trials: float = TRIALS,
    reasons: tuple[str, ...] = (),
    context: Context | None = None,
    account: Account | None = None,
) -> Model:
    """Train candidates, choose one and release it; all within the epsilon and delta that they share.

    `certificate.selection` of the result says which one was chosen, and how. `public` has the rows for "public";
    `trials` is the mean number for "trials". `account` is what all of it is charged to, before a row is read.

    >>> import numpy as np, pyarrow as pa
    >>> from boltdp.schema.schema import Classes, Numeric
    >>> from boltdp.engines import open_source
    >>> rows = pa.table({"age": np.arange(3000) % 100, "sick": np.arange(3000) % 100 > 60})
    >>> schema = Schema(Classes("sick", (False, True)), (Numeric("age", 0, 100),))
    >>> grid = candidates(Settings(epsilon=1.0), {"passes": [1, 10]})
    >>> model = tune(open_source(rows), schema, grid)
    >>> model.certificate.private, model.certificate.selection.candidates
    (True, 2)
    """
    if method not in get_args(Method):
        raise ParameterError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if (public is not None) != (method == "public"):
        raise ParameterError(f"public rows must be given for the method 'public' and no other, got method {method!r}")
    _check_candidates(candidates)
    whole = candidates[0].budget
    candidates = [within(one.resolve_class_weights(schema.target), schema) for one in candidates]
    first = candidates[0]
    context = first.context() if context is None else context
    rows = engine.count()
    schema = curved(first, schema, rows=rows)
    before = plan_moments(first, schema, rows=rows)
    # Faults show here, before a row is read.
    certificates = _planned(
        candidates,
        schema,
        before=before,
        rows=rows,
        method=method,
        trials=trials,
        public_rows=0 if public is None else public.count(),
        reasons=known_faults(reasons, context),
    )
    if schema.spent is not None:
        certificates = [after(schema.spent, one, whole) for one in certificates]
    # Moments once, on all rows, for all candidates: their share of the budget is spent before any of them is trained.
    event, classes = certificates[0].moments, len(schema.classes)
    with charged(account, _charge(certificates, method), engine, schema, context) as commit:
        with prepared_rows(engine, schema, event, context, ordered=True) as (prepared, standardized):
            if public is not None:
                forks = context.randomness.spawn()
                number = select.choose_in_public(public, standardized, certificates, forks, context)
                own = replace(context, randomness=next(forks))
                model = train_prepared(prepared, standardized, certificates[number], own)
            else:
                choose = select.choose_by_portions if method == "portions" else select.choose_by_trials
                chosen = choose(prepared, certificates, classes=classes, context=context)
                model = Model.of_release(standardized, chosen.weights, certificates[chosen.number])
        return commit(replace(model, trained_where=engine.where))


def _charge(certificates: Sequence[Certificate], method: Method) -> Charge:
    """What is charged before it is known which candidate will be chosen.

    Where all are trained on private rows it is the same whichever is chosen: its number in the tree says nothing.
    """
    first = certificates[0]
    if method != "public" or first.budget is None:
        return first
    events = OneOfSeveral(first.budget.epsilon, tuple(one.spent for one in certificates))
    return Release(first.budget, events, first.adjacency)


def _planned(
    candidates: Sequence[Settings],
    schema: Schema,
    *,
    before: BudgetedEvent | None,
    rows: int,
    method: Method,
    trials: float,
    public_rows: int,
    reasons: tuple[str, ...],
) -> list[Certificate]:
    """A certificate for each candidate, as it will be if it is chosen."""
    first, count = candidates[0], len(candidates)
    check_plan(first, before)
    left = None if first.budget is None else remaining(first.budget, before)
    first.check()
    # The same algorithm for all: one that can do what any of them asks for.
    name = chosen_algorithm(candidates, first.choose_loss(schema.target)[0], left).name
    same = [replace(one, algorithm=name) for one in candidates]

    def plan_one(number: int, rows: int, budget: Budget | None) -> Event:
        return plan_training(
            same[number],
            rows=rows,
            dims=schema.dims,
            classes=len(schema.classes),
            budget=budget,
            person_rows=schema.max_rows,
        )

    events: list[Selection]
    if method == "public":
        events = select.plan_public(plan_one, candidates=count, rows=rows, budget=left, public_rows=public_rows)
    elif method == "portions":
        events = select.plan_portions(plan_one, candidates=count, rows=rows, budget=left)
    else:
        events = select.plan_trials(plan_one, candidates=count, rows=rows, budget=left, mean=trials)
    seeded = first.noise_seed is not None
    return [certify(event, first.budget, before=before, seeded=seeded, reasons=reasons) for event in events]


def _check_candidates(candidates: Sequence[Settings]) -> None:
    if not candidates:
        raise ParameterError("there must be at least one candidate, got none")
    for one in candidates:
        one.check()
    first = {name: getattr(candidates[0], name) for name in TUNABLE}
    if any(replace(one, **first) != candidates[0] for one in candidates):
        raise ParameterError(f"candidates must differ in nothing but {', '.join(TUNABLE)}")
