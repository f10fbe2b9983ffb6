"""The plan of a training: made once, by steps that do not repeat each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from boltdp.algorithms import _newton, objective
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import ParameterError
from boltdp.privacy import certificate
from boltdp.privacy.events import event, objective_perturbation
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Schema
from boltdp.schema.target import MAX_COUNT_NOISE
from boltdp.settings import Settings, StandardizeMoments
from boltdp.workflows import plan_training, standardize
from boltdp.workflows.histograms import STEPS
from boltdp.workflows.plan_training import MAX_INTERACTIONS_NOISE, MAX_OBJECTIVE_NOISE, Plan, make_plan
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
    """Of the noise four different ones are needed: without curves for the margin, with them, with an ample Lambda, and
    with the chosen one.

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
        "plan_standardization": 2,
        "calibrate_objective_noise": 4,
        "check_objective": 7,
        "choose_algorithm": 1,
        "certify": 1,
        "fits_budget": 1,
        "count": 2,
    }


WIDE = Schema(Number("rent", 0, 4000, typical=(600, 1800)), tuple(Numeric(f"x{place}", 0, 100) for place in range(20)))


@pytest.mark.parametrize(
    ("rows", "delta", "loss", "features", "algorithm"),
    [
        (1_000_000, 0.0, "auto", 20 * 9, "objective"),  # little noise: each number has a curve of 8 steps
        (10_000, 0.0, "auto", 20, "objective"),  # too much noise for curves
        (5_000, 1e-9, "auto", 20 * 9, "noisy-gd"),  # but not for noisy gradient descent
        (1_000_000, 1e-12, "auto", 20 * 9, "objective"),  # too little noise for it
        (1_000_000, 0.0, "mean", 20, "objective"),  # shares of the bounds have no automatic curves
    ],
)
def test_curves_and_the_algorithm_of_a_number_follow_from_the_noise(
    rows: int, delta: float, loss: str, features: int, algorithm: str
) -> None:
    plan = plan_training.make_plan(WIDE, rows, Settings(epsilon=1.0, delta=delta, loss=loss))
    assert plan.schema.dims == features + 1
    assert plan.certificate.algorithm == algorithm
    assert plan.certificate.private


@pytest.mark.parametrize(("loss", "unit"), [("robust", 1.0), ("quantile", 0.25)])
def test_lambda_is_proportional_to_the_unit_of_a_loss(loss: str, unit: float) -> None:
    plan = plan_training.make_plan(WIDE, 5_000, Settings(epsilon=1.0, loss=loss, curves=8))
    assert isinstance(plan.schema.target, Number)
    assert plan.schema.target.unit == unit
    problem, noise = plan.certificate.problem, plan.certificate.training_noise
    assert noise is not None
    assert problem.regularization == pytest.approx(0.48 * unit * (noise.expected_norm / 5_000) ** 1.35, rel=0.03)


COUNT = replace(WIDE, target=Number("visits", 0, 20, counts=True))


@pytest.mark.parametrize(
    ("rows", "changes", "loss"),
    [
        (100_000, {}, "mean"),
        (100_000, {"delta": 1e-12}, "mean"),
        (1_000, {}, "robust"),  # too much noise
        (100_000, {"loss": "robust"}, "robust"),  # as asked for
        (100_000, {"algorithm": "bolton"}, "robust"),
        (100_000, {"epsilon": None}, "robust"),  # no noise that could be compared
    ],
)
def test_auto_predicts_the_mean_of_a_declared_count_where_the_noise_is_small(
    rows: int, changes: dict[str, Any], loss: str
) -> None:
    settings = replace(Settings(epsilon=1.0), **changes)
    assert plan_training.make_plan(COUNT, rows, settings).certificate.problem.loss.name == loss
    plain = replace(COUNT, target=Number("visits", 0, 20))
    assert plan_training.make_plan(plain, rows, settings).certificate.problem.loss.name == "robust"


def test_the_mean_of_a_count_is_chosen_up_to_the_stated_noise() -> None:
    noises = {}
    for rows in (5_000, 8_000, 12_000, 20_000):
        plan = plan_training.make_plan(COUNT, rows, Settings(epsilon=1.0, curves=0, label_check=0.0))
        noise = plan.certificate.training_noise
        assert noise is not None
        noises[noise.expected_norm / rows] = plan.certificate.problem.loss.name
    means = [noise for noise, loss in noises.items() if loss == "mean"]
    others = [noise for noise, loss in noises.items() if loss == "robust"]
    assert max(means) <= MAX_COUNT_NOISE < min(others)


NUMBERS = Schema(Classes("sick", (0, 1)), tuple(Numeric(f"n{place}", 0, 100) for place in range(4)))


def plan_auto(schema: Schema, rows: int, *, delta: float = 0.0, **changes: Any) -> Plan:
    return make_plan(schema, rows, Settings(epsilon=1.0, delta=delta, **changes))


@pytest.mark.parametrize(
    ("rows", "delta", "algorithm", "features"),
    [
        (1_000, 1e-6, "noisy-gd", 4 * 17),  # with a delta always 16 steps
        (40_000, 1e-9, "noisy-gd", 4 * 17),
        (200_000, 1e-10, "objective", 4 * 17 + 6 * 9),  # and with little noise, pairs
        (1_000, 0.0, "objective", 4),
        (200_000, 0.0, "objective", 4 * 17 + 6 * 9),
    ],
)
def test_two_classes_have_curves_of_16_steps_with_a_delta_or_little_noise(
    rows: int, delta: float, algorithm: str, features: int
) -> None:
    plan = plan_auto(NUMBERS, rows, delta=delta)
    assert plan.schema.dims == features + 1
    assert plan.certificate.algorithm == algorithm
    noise = plan.certificate.training_noise
    assert noise is not None
    if delta and algorithm == "objective":
        assert noise.expected_norm / rows <= MAX_OBJECTIVE_NOISE


@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_two_classes_have_interactions_where_there_is_little_noise(delta: float) -> None:
    little, more = plan_auto(NUMBERS, 3_000_000, delta=delta), plan_auto(NUMBERS, 60_000, delta=delta)
    assert little.schema.pairs == (
        ("n0", "n1"), ("n0", "n2"), ("n0", "n3"), ("n1", "n2"), ("n1", "n3"), ("n2", "n3")
    )  # fmt: skip
    noise = little.certificate.training_noise
    assert noise is not None
    assert noise.expected_norm / 3_000_000 <= MAX_INTERACTIONS_NOISE
    assert little.schema.has_private_curves
    assert more.schema.pairs == ()


@pytest.mark.parametrize(
    ("schema", "changes"),
    [
        pytest.param(NUMBERS, {"interactions": "none"}, id="not wanted"),
        pytest.param(NUMBERS, {"curves": 8}, id="other settings"),
        pytest.param(replace(NUMBERS, columns=(Numeric("one", 0, 9), Numeric("flag", 0, 1))), {}, id="one curve"),
        pytest.param(
            replace(NUMBERS, columns=(Numeric("one", 0, 9), Numeric("two", 0, 9, monotone="increasing"))),
            {},
            id="monotone",
        ),
        pytest.param(
            replace(NUMBERS, columns=tuple(Numeric(f"n{place}", 0, 100) for place in range(12))), {}, id="too many"
        ),
        pytest.param(
            replace(
                NUMBERS,
                columns=(*NUMBERS.columns, *(Numeric(f"c{place}", 0, 9, curve=(5,)) for place in range(300))),
            ),
            {},
            id="more than pairs can have",
        ),
        pytest.param(
            replace(NUMBERS, columns=(*NUMBERS.columns, Categorical("town", tuple(map(str, range(700)))))),
            {},
            id="too many features",
        ),
        pytest.param(replace(NUMBERS, target=Classes("sick", (0, 1, 2))), {}, id="three classes"),
    ],
)
def test_others_have_no_interactions(schema: Schema, changes: dict[str, Any]) -> None:
    assert plan_auto(schema, 10_000_000, delta=1e-9, **changes).schema.pairs == ()


def test_declared_pairs_stay_the_only_ones() -> None:
    schema = replace(NUMBERS, pairs=(("n0", "n3"),))
    assert plan_auto(schema, 3_000_000).schema.pairs == schema.pairs


@pytest.mark.parametrize("moments", ["auto", "histograms"])
def test_interactions_that_are_asked_for_are_those_of_numbers_with_curves(moments: StandardizeMoments) -> None:
    schema = replace(NUMBERS, columns=(*NUMBERS.columns[:2], Numeric("flag", 0, 1), Categorical("sex", ("F", "M"))))
    plan = plan_auto(schema, 20_000, curves=2, interactions="numbers", standardize_moments=moments)
    assert plan.schema.pairs == (("n0", "n1"),)
    assert plan.schema.dims == 2 * 3 + 1 + 2 + 2 * 2 + 1


def test_interactions_with_inference_are_refused() -> None:
    with pytest.raises(ParameterError, match="without pairs of columns"):
        plan_auto(NUMBERS, 20_000, inference=True, interactions="numbers")


def test_several_classes_have_curves_at_quantiles_with_a_delta_only() -> None:
    schema = replace(NUMBERS, target=Classes("sick", (0, 1, 2)))
    with_delta, pure = plan_auto(schema, 20_000, delta=1e-9), plan_auto(schema, 20_000)
    assert with_delta.algorithm.name == "noisy-gd"
    assert with_delta.schema.has_private_curves
    assert with_delta.schema.dims == 4 * (1 + STEPS) + 1
    assert not pure.schema.has_private_curves
