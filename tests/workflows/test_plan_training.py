"""The plan of a training: made once, by steps that do not repeat each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from boltdp.algorithms import _newton, objective
from boltdp.engines.in_memory import ArrayEngine
from boltdp.privacy import certificate
from boltdp.privacy.events import event, objective_perturbation
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows import plan_training, standardize
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.train import train

SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100), Numeric("pulse", 0, 250)))
ROWS = 10_000


def count_calls(monkeypatch: pytest.MonkeyPatch, *places: tuple[Any, str]) -> Counter[str]:
    """Count the calls of functions, by name, in every module that names them."""
    calls: Counter[str] = Counter()

    def watch(owner: Any, name: str) -> None:
        watched = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return watched(*given, **named)

        monkeypatch.setattr(owner, name, counted)

    for owner, name in places:
        watch(owner, name)
    return calls


def test_a_default_training_plans_each_thing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the noise three different ones are needed: with curves, with an ample Lambda, and with the chosen one.

    `check_objective` checks each of these, the loss, the event, and what the solver is given. The engine counts once
    for the plan, and once as it prepares the rows.
    """
    rows = ArrayEngine.from_arrow(
        pa.table({"age": [30, 60] * (ROWS // 2), "pulse": [70, 90] * (ROWS // 2), "sick": [0, 1] * (ROWS // 2)})
    )
    calls = count_calls(
        monkeypatch,
        (plan_training, "plan_standardization"),
        (plan_training, "calibrate_objective_noise"),
        (objective, "calibrate_objective_noise"),
        (objective_perturbation, "calibrate_objective_noise"),
        (objective, "check_objective"),
        (objective_perturbation, "check_objective"),
        (_newton, "check_objective"),
        (plan_training, "choose_algorithm"),
        (standardize, "choose_algorithm"),
        (plan_training, "certify"),
        (certificate, "fits_budget"),
        (ArrayEngine, "count"),
        (event.Event, "walk"),
    )
    model = train(rows, SCHEMA, Settings(epsilon=1.0))
    assert model.certificate.private
    assert calls.pop("walk") <= 25
    assert calls == {
        "plan_standardization": 1,
        "calibrate_objective_noise": 3,
        "check_objective": 6,
        "choose_algorithm": 1,
        "certify": 1,
        "fits_budget": 1,
        "count": 2,
    }


PRICE = Number("price", 0, 1000, typical=(100, 400))
NUMBERS = Schema(PRICE, SCHEMA.columns)


@pytest.mark.parametrize(
    ("rows", "epsilon", "unit"), [(1_000, 1.0, 0.5), (1_000_000, 1.0, 1.0), (1_000_000, 0.001, 0.5), (1_000, None, 1.0)]
)
def test_the_unit_of_a_number_follows_the_noise(rows: int, epsilon: float | None, unit: float) -> None:
    for loss in ("robust", "quantile"):
        plan = make_plan(NUMBERS, rows, Settings(epsilon=epsilon, loss=loss))
        assert plan.schema.target == replace(PRICE, unit=unit)
    shares = make_plan(NUMBERS, rows, Settings(epsilon=epsilon, loss="mean"))
    assert shares.schema.target == Number("price", 0, 1000)


def has_curve(plan: plan_training.Plan) -> bool:
    first = plan.schema.columns[0]
    assert isinstance(first, Numeric)
    return bool(first.curve)


def test_curves_of_numbers_need_less_noise_than_those_of_classes() -> None:
    """A curve that follows the noise is seen in every prediction of a number."""
    columns = (*SCHEMA.columns, Categorical("ward", tuple(range(30))))
    plans = [make_plan(Schema(target, columns), 3_000, Settings(epsilon=1.0)) for target in (SCHEMA.target, PRICE)]
    assert [has_curve(plan) for plan in plans] == [True, False]
    assert has_curve(make_plan(Schema(PRICE, columns), 100_000, Settings(epsilon=1.0)))
