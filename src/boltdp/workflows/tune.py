"""Private tuning: selection among candidate settings within one budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from boltdp.errors import ParameterError, check_choice
from boltdp.model import Model
from boltdp.privacy.accounting.spent_budget import Alternatives, Charge, Release
from boltdp.privacy.events.event import Event
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.settings import TUNABLE, Settings
from boltdp.workflows import select
from boltdp.workflows.label_check import count_labels
from boltdp.workflows.noise_check import refuse_drowning_noise
from boltdp.workflows.plan_training import make_plans, resolve_settings
from boltdp.workflows.select import TRIALS
from boltdp.workflows.standardize import prepare_rows
from boltdp.workflows.train import charge_and_run, list_non_private_reasons, train_prepared

if TYPE_CHECKING:
    from boltdp.engines.base import Engine
    from boltdp.ledger import Account

__all__ = ["TRIALS", "Method", "expand_grid", "tune"]

Method = Literal["trials", "portions", "public"]


def expand_grid(
    settings: Settings, grid: Mapping[str, Sequence[Any]], *, inverse_radius: bool = False
) -> tuple[Settings, ...]:
    """Return the settings of every combination of the values in `grid`; the last name changes fastest.

    `inverse_radius` projects weights to the ball of radius 1/regularization, as the paper does.
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
    """Train candidates, select one and release it, all within the epsilon and delta that they share.

    `certificate.selection` of the result describes the selection. `public` has the rows for the method "public";
    `trials` is the mean number of trials for "trials". `account` is charged before a row is read.
    """
    check_choice(method, "method", Method)
    if (public is not None) != (method == "public"):
        raise ParameterError(f"public rows must be given for the method 'public' and no other, got method {method!r}")
    if not candidates:
        raise ParameterError("there must be at least one candidate, got none")
    first = {name: getattr(candidates[0], name) for name in TUNABLE}
    if any(replace(one, **first) != candidates[0] for one in candidates):
        raise ParameterError(f"candidates must differ in nothing but {', '.join(TUNABLE)}")
    for each in candidates:
        resolve_settings(each, schema)  # raises errors in the settings before rows are counted
    context = candidates[0].context() if context is None else context
    rows = engine.count()
    planners: dict[Method, Callable[..., Sequence[Event]]] = {
        "trials": partial(select.plan_trial_selection, mean=trials),
        "portions": select.plan_portion_selection,
        "public": partial(select.plan_public_selection, public_rows=0 if public is None else public.count()),
    }
    reasons = list_non_private_reasons(reasons, context)
    plans = make_plans(schema, rows, candidates, plan_selection=planners[method], reasons=reasons)
    certificates, schema = [plan.certificate for plan in plans], plans[0].schema
    refuse_drowning_noise(certificates[0], candidates[0])

    def run_selection() -> Model:
        # Moments are released once, on all rows, for all candidates, before any of them is trained.
        with prepare_rows(engine, schema, certificates[0], context, permuted=True) as (prepared, standardized):
            if public is not None:
                forks = context.randomness.spawn()
                number = select.choose_on_public_rows(public, standardized, certificates, forks, context)
                own = replace(context, randomness=next(forks))
                model = train_prepared(prepared, standardized, certificates[number], own)
            else:
                choose = select.choose_by_portions if method == "portions" else select.choose_by_trials
                number, weights = choose(
                    prepared, certificates, classes=schema.target.kernel_class_count, context=context
                )
                chosen, randomness = certificates[number], context.randomness
                labels = count_labels(prepared, standardized, chosen.unusable_label_count, chosen, randomness)
                model = Model.from_release(standardized, weights, chosen, labels)
        return replace(model, trained_where=engine.where)

    charge: Charge = certificates[0]
    if public is not None and (budget := certificates[0].budget) is not None:
        # Only then does the cost depend on the selected candidate, which is not known yet.
        events = Alternatives(budget.epsilon, tuple(one.spent for one in certificates))
        charge = Release(budget, events, certificates[0].adjacency)
    return charge_and_run(run_selection, account, charge, engine, schema, context)
