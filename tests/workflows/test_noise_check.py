"""A training whose noise drowns what rows tell is refused before anything is charged or read, unless insisted on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import boltdp
from boltdp import PrivateLogisticRegression
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import ParameterError
from boltdp.ledger import Account, open_ledger
from boltdp.privacy.budget import Budget
from boltdp.schema.schema import Classes, Number, Numeric, Schema
from boltdp.schema.target import MIN_NOISY_MARGIN, NOISY_MARGIN
from boltdp.settings import Settings
from boltdp.workflows.noise_check import (
    MAX_USEFUL_JOINT_NOISE,
    MAX_USEFUL_NOISE,
    compute_noise_per_row_and_weight,
    describe_drowning_noise,
)
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune
from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)

SCHEMA = Schema(Classes("sick", (0, 1)), tuple(Numeric(f"x{i}", -1, 1) for i in range(20)))
#: The noise per row is far above what is useful.
SETTINGS = Settings(epsilon=0.5)
FEATURES = np.random.default_rng(3).uniform(-1, 1, (400, 20))
ROWS = pa.table({**{f"x{i}": FEATURES[:, i] for i in range(20)}, "sick": (FEATURES[:, 0] > 0).astype(int)})
SAID = "no better than always answering the most common class: with 400 rows, 21 features and epsilon = 0.5, the noise"


class Unread(ArrayEngine):
    """Rows that must not be read."""

    def batches(self, *_: Any, **__: Any) -> Iterator[Any]:
        raise AssertionError("a row was read")

    prepare = batches  # type: ignore[assignment]


def plan_noise(rows: int, settings: Settings, schema: Schema = SCHEMA) -> float | None:
    return compute_noise_per_row_and_weight(make_plan(schema, rows, settings).certificate)


def test_a_drowned_training_is_refused_before_a_charge_and_before_a_row_is_read(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger.db")
    ledger.set_budget("rows", Budget(1.0))
    account = Account(ledger, "rows")
    with pytest.raises(ParameterError, match=SAID) as refused:
        train(Unread.from_arrow(ROWS), SCHEMA, SETTINGS, account=account)
    assert "--anyway" in str(refused.value.hint)
    with pytest.raises(ParameterError, match=SAID.split(":")[0]):
        tune(Unread.from_arrow(ROWS), SCHEMA, expand_grid(SETTINGS, {"regularization": [0.1, 1.0]}), account=account)
    assert len(ledger.history()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"anyway": True},
        {"algorithm": "objective"},
        {"noise_seed": 1},
        {"epsilon": None},
        {"inference": True},
    ],
)
def test_who_insists_or_spends_nothing_is_not_refused(changes: dict[str, Any]) -> None:
    assert train(ArrayEngine.from_arrow(ROWS), SCHEMA, replace(SETTINGS, **changes)).weights.shape == (1, 21)


def test_the_api_and_the_estimators_take_the_same_word() -> None:
    labels = np.asarray(ROWS["sick"])
    given: dict[str, Any] = {"bounds": (-1, 1), "classes": (0, 1), "epsilon": 0.5}
    with pytest.raises(ParameterError, match=SAID):
        boltdp.train(ROWS, SCHEMA, epsilon=0.5)
    with pytest.raises(ParameterError, match=SAID):
        PrivateLogisticRegression(**given).fit(FEATURES, labels)
    assert boltdp.train(ROWS, SCHEMA, epsilon=0.5, anyway=True).certificate.private
    assert PrivateLogisticRegression(**given, anyway=True).fit(FEATURES, labels).certificate_.private


def test_plan_and_train_warn_in_words(run: Run, tmp_path: Path) -> None:  # noqa: F811
    SCHEMA.save(tmp_path / "schema.toml")
    parquet.write_table(ROWS, tmp_path / "rows.parquet")
    planned = run("plan", "--rows", 400, "--schema", "schema.toml", "--epsilon", 0.5)
    assert (planned.exit_code, SAID in planned.stderr) == (0, True)
    enough = run("plan", "--rows", 40_000, "--schema", "schema.toml", "--epsilon", 0.5)
    assert (enough.exit_code, enough.stderr) == (0, "")
    asked = ("train", "rows.parquet", "--schema", "schema.toml", "--epsilon", 0.5, "-o", "model.json")
    refused = run(*asked)
    assert (refused.exit_code, SAID in refused.stderr) == (1, True)
    assert not (tmp_path / "model.json").exists()
    trained = run(*asked, "--anyway")
    assert (trained.exit_code, SAID in trained.stderr) == (0, True)


@pytest.mark.parametrize(("classes", "limit"), [((0, 1), MAX_USEFUL_NOISE), ((0, 1, 2), MAX_USEFUL_JOINT_NOISE)])
def test_the_limit_is_one_of_the_noise_per_row_and_weight(classes: tuple[int, ...], limit: float) -> None:
    noises, schema = {}, replace(SCHEMA, target=Classes("sick", classes))
    for rows in range(300, 1_500, 100):
        certificate = make_plan(schema, rows, replace(SETTINGS, epsilon=1.0, label_check=0.0)).certificate
        noises[compute_noise_per_row_and_weight(certificate)] = describe_drowning_noise(certificate) is not None
    assert set(noises.values()) == {False, True}
    assert all(drowned == (noise > limit) for noise, drowned in noises.items() if noise is not None)


def test_noise_in_scans_is_measured_as_if_it_were_in_one() -> None:
    more = replace(SCHEMA, target=Classes("sick", (0, 1, 2)))
    settings = Settings(epsilon=1.0, delta=1e-8, algorithm="noisy-gd")
    few, many = (plan_noise(1_000, replace(settings, passes=passes), more) for passes in (5, 50))
    other = plan_noise(1_000, replace(settings, gradient_clip=2.0), more)
    assert few == pytest.approx(many, rel=1e-3) == pytest.approx(other, rel=1e-3)


def test_nothing_is_said_of_numbers_and_of_noise_that_is_not_comparable() -> None:
    number = replace(SCHEMA, target=Number("sick", 0, 1))
    for schema, settings in (
        (number, SETTINGS),
        (SCHEMA, replace(SETTINGS, algorithm="bolton")),
        (SCHEMA, replace(SETTINGS, epsilon=None)),
        (SCHEMA, replace(SETTINGS, inference=True)),
    ):
        assert describe_drowning_noise(make_plan(schema, 400, settings).certificate) is None


@pytest.mark.parametrize("standardize", ["auto", "none"])
def test_the_margin_is_wider_where_the_noise_is_larger(standardize: Any) -> None:
    margins = {}
    for rows in (500, 1_000, 2_000, 4_000, 50_000):
        settings = Settings(epsilon=1.0, label_check=0.0, standardize=standardize)
        certificate = make_plan(SCHEMA, rows, settings).certificate
        problem, mechanism = certificate.problem, certificate.training_noise
        assert mechanism is not None
        noise = mechanism.expected_norm / rows
        # The margin is chosen before Lambda, by the noise of a large one.
        if not math.isclose(noise, MIN_NOISY_MARGIN, rel_tol=0.25):
            margins[noise] = -math.log(problem.loss.parameter)
    assert margins == {noise: pytest.approx(NOISY_MARGIN if noise > MIN_NOISY_MARGIN else 2.0) for noise in margins}
    assert len({round(margin) for margin in margins.values()}) == 2


def test_a_margin_that_is_given_is_kept() -> None:
    asked = Settings(epsilon=0.5, loss_parameter=1.0)
    assert make_plan(SCHEMA, 400, asked).certificate.problem.loss.parameter == pytest.approx(math.exp(-1.0))
