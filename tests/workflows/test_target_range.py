"""The range of a target that is a number: its plan, its release in a training, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from boltdp.engines import open_source
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import ParameterError
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.label_histogram import LabelHistogram
from boltdp.losses import Robust
from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, certify, verify
from boltdp.privacy.events.event import NoiselessTraining
from boltdp.privacy.events.label_quantiles import make_label_quantiles
from boltdp.privacy.release_with_noise import Randomness
from boltdp.privacy.training_problem import Problem
from boltdp.schema.schema import Classes, Numeric, Projection, Schema
from boltdp.schema.target import Number
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.target_range import (
    BINS,
    PERCENTILES,
    apply_label_quantiles,
    choose_quantile_share,
    plan_target_range,
)
from boltdp.workflows.train import train

ROWS = 6000
SCHEMA = Schema(Number("cost", 0, 20_000), (Numeric("age", 0, 100), Numeric("bmi", 10, 60)))
SETTINGS = Settings(epsilon=1.0, algorithm="bolton", passes=1, loss="robust")


def make_rows() -> pa.Table:
    """Return rows whose costs are much lower than the upper bound; a tenth of them is missing."""
    random = np.random.default_rng(3)
    costs = random.lognormal(6.0, 0.7, ROWS)
    return pa.table(
        {
            "age": random.uniform(0, 100, ROWS),
            "bmi": random.uniform(10, 60, ROWS),
            "who": np.arange(ROWS) // 3,
            "cost": pa.array(costs, mask=np.arange(ROWS) % 10 == 0),
        }
    )


def fit(schema: Schema = SCHEMA, settings: Settings = SETTINGS) -> Model:
    return train(open_source(make_rows()), schema, settings)


def find_typical(model: Model) -> tuple[float, float]:
    target = model.schema.target
    assert isinstance(target, Number)
    assert target.typical is not None
    assert target.typical_source == ("exact" if model.certificate.budget is None else "private")
    return target.typical


QUANTILES = [*np.quantile(make_rows()["cost"].drop_null().to_numpy(), (0.1, 0.9))]


@pytest.mark.parametrize("changes", [{}, {"delta": 1e-6}, {"standardize": "private"}, {"algorithm": "auto"}])
def test_a_training_finds_the_range_and_its_certificate_says_so(changes: dict[str, Any]) -> None:
    model = fit(settings=replace(SETTINGS, **changes))
    event = model.certificate.label_quantiles
    # The label check takes 1 % of epsilon first, and the range 480 / rows.
    assert event == make_label_quantiles(Budget(0.99 * (480 / ROWS / 0.99)), bins=BINS, percentiles=PERCENTILES)
    assert model.certificate.private
    verify(model.certificate)
    assert Model.from_dict(model.to_dict()).certificate == model.certificate
    for found, expected in zip(find_typical(model), QUANTILES, strict=True):
        assert found / expected == pytest.approx(1.0, abs=0.4)


def test_without_noise_the_range_is_exact() -> None:
    model = fit(settings=replace(SETTINGS, epsilon=None))
    assert model.certificate.label_quantiles is None
    assert not model.certificate.private
    assert [*find_typical(model)] == pytest.approx(QUANTILES, abs=20_000 / BINS)
    facts = dict(model.schema.target.list_facts(model.certificate.problem.loss))
    assert facts["prediction"].endswith("(found without noise)")


def test_a_certificate_that_does_not_state_the_choice_has_no_range() -> None:
    training = NoiselessTraining(Problem(loss=Robust(), dims=3, rows=ROWS))
    with pytest.raises(ParameterError, match=r"^the range of the target must be found only if the certificate"):
        apply_label_quantiles(np.ones(BINS, np.int64), SCHEMA, certify(training, Budget(1.0)), Randomness())


@pytest.mark.parametrize(
    ("schema", "settings"),
    [
        (SCHEMA, replace(SETTINGS, epsilon=None)),
        (SCHEMA, replace(SETTINGS, loss="mean")),
        (replace(SCHEMA, target=Number("cost", 0, 20_000, typical=(100, 900))), SETTINGS),
        (replace(SCHEMA, target=Classes("cost", (0, 1))), replace(SETTINGS, loss="logistic")),
    ],
    ids=["no budget", "a loss that reads shares", "a declared range", "classes"],
)
def test_nothing_is_spent_where_no_range_is_needed(schema: Schema, settings: Settings) -> None:
    assert plan_target_range(settings, schema, rows=ROWS) == (settings, None)


def test_what_is_planned_is_subtracted_from_the_budget() -> None:
    left, planned = plan_target_range(replace(SETTINGS, delta=1e-6), SCHEMA, rows=8000)
    assert planned is not None
    assert planned.budget == Budget(0.06)
    assert planned.event == make_label_quantiles(Budget(0.06), bins=BINS, percentiles=PERCENTILES)
    assert left == replace(SETTINGS, epsilon=0.94, delta=1e-6)


def test_the_share_is_that_with_which_edges_beyond_all_labels_are_unlikely() -> None:
    assert choose_quantile_share(0.1, rows=100_000) == pytest.approx(0.048)
    assert choose_quantile_share(0.1, rows=100_000, person_rows=5) == pytest.approx(0.24)
    assert (choose_quantile_share(1.0, rows=10**6), choose_quantile_share(1.0, rows=0)) == (0.02, 0.3)
    rows, epsilon = 50_000, 0.1
    event = make_label_quantiles(
        Budget(epsilon * choose_quantile_share(epsilon, rows=rows)), bins=BINS, percentiles=PERCENTILES
    )
    beyond = 10 * rows  # the score of an edge beyond all labels
    assert event.epsilon * beyond / (2 * event.sensitivity) == pytest.approx(12.0)


def test_the_range_is_found_in_the_scan_of_the_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[list[type]] = []
    honest = PreparedRows.add_to_sums

    def watch(self: PreparedRows, sums: Any) -> None:
        scans.append([type(one) for one in sums])
        honest(self, sums)

    for kind in (PreparedRows, *PreparedRows.__subclasses__()):
        if "add_to_sums" in vars(kind):
            monkeypatch.setattr(kind, "add_to_sums", watch)
    fit(settings=replace(SETTINGS, standardize="private", label_check=0.0))
    assert scans[0] == [FeatureSums, LabelHistogram]
    assert not any(LabelHistogram in scan for scan in scans[1:])


def test_projected_rows_have_the_range_too() -> None:
    schema = replace(SCHEMA, projection=Projection(dims=2, seed=1))
    for standardize in ("none", "private"):
        low, high = find_typical(fit(schema, replace(SETTINGS, standardize=standardize)))
        assert (low / QUANTILES[0], high / QUANTILES[1]) == (pytest.approx(1, abs=0.4), pytest.approx(1, abs=0.4))


def test_persons_cost_as_many_times_as_much_as_they_have_rows() -> None:
    schema = replace(SCHEMA, person_id="who", max_rows_per_person=2)
    model = fit(schema, replace(SETTINGS, label_check=0.0))
    event = model.certificate.label_quantiles
    assert event is not None
    assert event.person_rows == 2
    assert 2 * event.epsilon == pytest.approx(960 / ROWS)


def test_a_range_that_another_model_paid_for_is_refused() -> None:
    target = SCHEMA.target.with_range(-0.9, -0.8)
    with pytest.raises(ParameterError, match="a typical range that was found privately: it was paid for by another"):
        make_plan(replace(SCHEMA, target=target), ROWS, SETTINGS)


def test_a_model_without_the_choice_that_its_range_needs_is_refused() -> None:
    model = fit()
    declared = replace(SCHEMA, target=Number("cost", 0, 20_000, typical=(100, 900)))
    other: Certificate = make_plan(declared, ROWS, SETTINGS).certificate
    with pytest.raises(ParameterError, match="about the range of the target, if it was found privately"):
        replace(model, certificate=other)


def test_the_range_is_drawn_and_not_that_of_the_rows() -> None:
    found = {find_typical(fit(settings=replace(SETTINGS, noise_seed=seed))) for seed in range(4)}
    assert len(found) > 1
    assert find_typical(fit(settings=replace(SETTINGS, noise_seed=3))) in found
