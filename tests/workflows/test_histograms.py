"""Histograms of columns: exact counts, curves at quantiles, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import ParameterError
from boltdp.model import Model
from boltdp.privacy.certificate import verify
from boltdp.privacy.events.noisy_counts import BINS, NoisyHistograms
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.run_context import Context
from boltdp.schema.columns import Categorical, Numeric, TimePart, Vector
from boltdp.schema.curves import choose_bin_edges, place_steps
from boltdp.schema.schema import Projection, Schema
from boltdp.schema.target import Classes, Number
from boltdp.settings import Settings
from boltdp.workflows.histograms import (
    STEPS,
    add_provisional_curves,
    can_have_histograms,
    fit_ranks,
    make_histogram_sums,
    read_histograms,
)
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.train import train

ROWS = 3_000
SCHEMA = Schema(
    Classes("sick", (0, 1)),
    (Numeric("age", 0, 100), Numeric("income", 0, 1e6), Numeric("smokes", 0, 1), Categorical("sex", ("F", "M"))),
)
SETTINGS = Settings(epsilon=1.0, standardize_moments="histograms", noise_seed=3)


def make_table(rows: int = ROWS, seed: int = 5) -> pa.Table:
    random = np.random.default_rng(seed)
    age, income = random.uniform(20, 30, rows), np.exp(random.normal(8, 1, rows))
    return pa.table(
        {
            "age": pa.array(age, mask=random.uniform(size=rows) < 0.1),
            "income": income,
            "smokes": random.integers(0, 2, rows).astype(float),
            "sex": random.choice(["F", "M", "?"], rows),
            "sick": (age + random.normal(0, 3, rows) > 25).astype(int),
        }
    )


def fit(schema: Schema = SCHEMA, table: pa.Table | None = None, **changes: Any) -> Model:
    return train(ArrayEngine.from_arrow(table or make_table()), schema, replace(SETTINGS, **changes))


def test_counts_are_those_of_numpy() -> None:
    table = make_table()
    provisional = add_provisional_curves(SCHEMA)
    with ArrayEngine.from_arrow(table).prepare(provisional, Context().start_stage("preparing", ROWS)) as prepared:
        sums = make_histogram_sums(provisional)
        prepared.add_to_sums([sums])
    found = read_histograms(sums.value, provisional)
    for column, counts in zip(SCHEMA.columns, found, strict=True):
        if isinstance(column, Numeric):
            values = table[column.name].drop_null().to_numpy()
            rule = replace(column, curve=choose_bin_edges(column)).encoding_rule
            edges = [-np.inf, *rule.exact_thresholds, np.inf]
            assert counts.tolist() == np.histogram(values, edges)[0].tolist()
            assert len(counts) == BINS
        else:
            values = np.array(table[column.name].to_pylist())
            assert counts.tolist() == [(values == value).sum() for value in ("F", "M")]


def test_curves_have_their_steps_where_the_rows_are() -> None:
    """All ages are within a tenth of the bounds: evenly spaced curves would have at most one step there."""
    model = fit(epsilon=20.0)
    age, income, smokes, _ = model.schema.columns
    assert isinstance(age, Numeric)
    assert isinstance(income, Numeric)
    assert isinstance(smokes, Numeric)
    assert len(age.curve) == len(income.curve) == STEPS
    assert not smokes.curve
    assert sum(18 <= place <= 32 for place in age.curve) >= 4
    assert age.curve_source == "private"


@pytest.mark.parametrize(
    ("bounds", "near"),
    [((0, 1e6), 0), ((-1e6, 0), 0), ((-1e6, 1e6), 0), ((-10, 1e6), 0), ((5e5, 2e6), 5e5), ((-9e6, -1e6), -1e6)],
)
def test_half_of_the_bins_are_even_and_the_others_narrower_towards_0(bounds: tuple[float, float], near: float) -> None:
    column = Numeric("a", *bounds)
    edges, width = np.array(choose_bin_edges(column)), column.high - column.low
    assert len(edges) == BINS - 1
    assert (np.diff([column.low, *edges, column.high]) > 0).all()
    even = column.low + width * np.arange(1, 32) / 32
    assert all(np.abs(edges - one).min() <= 0.005 * width for one in even)  # rounded to three digits
    distances = np.abs(edges - near)
    assert (distances < 0.01 * width).sum() >= 10
    assert (distances < 0.001 * width).sum() >= 3


@pytest.mark.parametrize("bounds", [(-1e6, 1e6), (-1e6, 10.0), (-10.0, 1e6), (0.0, 1e6)])
def test_places_near_0_are_told_apart_and_short_whatever_the_bounds_are(bounds: tuple[float, float]) -> None:
    """They are rounded to digits of their distance from 0, or from the bound that is nearest to it."""
    column = Numeric("a", *bounds, curve=(1.0, 2.0, 3.0, 4.0), curve_source="private")
    edges = np.array([column.low, *choose_bin_edges(column), column.high])
    inside = (np.abs(edges[1:]) < 2_000) & (np.abs(edges[:-1]) < 2_000)
    far = np.diff(edges) / (column.high - column.low)
    shares = 0.4 * inside / inside.sum() + 0.6 * far
    moved = place_steps(column, shares / shares.sum())
    assert len(set(moved.curve)) == len(moved.curve) == 4
    assert not set(moved.curve) & {0.0, *bounds}
    assert all(float(f"{place:.3g}") == pytest.approx(place, rel=1e-12) for place in moved.curve)


def test_steps_are_at_quantiles_with_little_of_the_first_and_last_bin() -> None:
    column = Numeric("a", 0, 100, curve=(20.0, 40.0, 60.0, 80.0), curve_source="private")
    edges = np.array([column.low, *choose_bin_edges(column), column.high])
    # Half of the rows are in the first bin; the others are evenly spread between 50 and 60.
    inside = (edges[1:] > 50) & (edges[:-1] < 60)
    shares = 0.5 * inside / inside.sum()
    shares[0] = 0.5
    curve = np.array(place_steps(column, shares).curve)
    assert curve[0] < edges[1]  # a fifth of the rows count there, of seven tenths: one step of four
    assert ((curve[1:] > 46) & (curve[1:] < 63)).all()


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_certificate_states_the_histograms_and_survives_the_disk(delta: float) -> None:
    model = fit(delta=delta)
    event = model.certificate.moments
    assert isinstance(event, NoisyHistograms)
    assert event.releases == len(SCHEMA.columns)
    assert event.noise.kind == ("gaussian" if delta else "spherical")
    verify(model.certificate)
    assert Model.from_dict(model.to_dict()).to_dict() == model.to_dict()


def test_gaussian_histograms_compose_with_the_linear_term() -> None:
    """With a delta the training has more than what basic composition leaves."""
    plan = make_plan(SCHEMA, ROWS, replace(SETTINGS, delta=1e-6, label_check=0.0, noise_seed=None))
    training, event = plan.certificate.training, plan.certificate.moments
    assert isinstance(training, ObjectivePerturbation)
    assert event is not None
    assert event.mu
    spent = plan.certificate.delta(1.0)
    assert 0.99e-6 < spent <= 1e-6
    verify(plan.certificate)


@pytest.mark.parametrize("algorithm", ["objective", "noisy-gd", "bolton"])
def test_every_algorithm_can_train_on_quantiles(algorithm: str) -> None:
    model = fit(algorithm=algorithm, delta=1e-6)
    assert model.schema.has_private_curves
    verify(model.certificate)


def test_numbers_are_predicted_from_quantiles() -> None:
    schema = replace(SCHEMA, target=Number("age", 0, 100), columns=SCHEMA.columns[1:])
    model = fit(schema)
    assert model.schema.has_private_curves


def test_curves_of_another_model_are_refused() -> None:
    """They were paid for by one model; without the mark of their source nobody would see that."""
    schema = replace(fit().schema, standardization=None)
    with pytest.raises(ParameterError, match="paid for by another model"):
        fit(schema)
    again = Schema.from_toml(schema.to_toml())
    with pytest.raises(ParameterError, match="paid for by another model"):
        fit(again, standardize_moments="mean")


def test_a_model_must_have_the_histograms_that_its_curves_follow_from() -> None:
    model = fit()
    plain = fit(standardize_moments="mean", standardize="private", curves=STEPS)
    with pytest.raises(ParameterError, match="histogram"):
        replace(model, certificate=plain.certificate)


@pytest.mark.parametrize(
    "schema",
    [
        replace(SCHEMA, columns=(Vector("v", 3, -1, 1),)),
        replace(SCHEMA, projection=Projection(2, 1)),
        replace(SCHEMA, columns=(Categorical("sex", ("F", "M")),)),
    ],
)
def test_columns_that_cannot_be_counted_are_refused(schema: Schema) -> None:
    assert not can_have_histograms(schema)
    with pytest.raises(ParameterError, match="histograms must be of columns"):
        make_plan(schema, ROWS, SETTINGS)


def test_histograms_need_an_epsilon_and_a_share() -> None:
    with pytest.raises(ParameterError, match="must have an epsilon"):
        make_plan(SCHEMA, ROWS, replace(SETTINGS, epsilon=None, noise_seed=None))
    with pytest.raises(ParameterError, match="share of standardization"):
        make_plan(SCHEMA, ROWS, replace(SETTINGS, standardize_share=1.0))


def test_declared_curves_stay_where_they_are() -> None:
    declared = Numeric("age", 0, 100, curve=(40.0, 60.0))
    model = fit(replace(SCHEMA, columns=(declared, *SCHEMA.columns[1:])))
    assert model.schema.columns[0] == declared


def test_ranks_rise_whatever_the_noise_is() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        ranks = fit_ranks(random.normal(0, 10, BINS) + random.uniform(-1, 3))
        assert ranks[0] == 0
        assert ranks[-1] == 1
        assert (np.diff(ranks) >= 0).all()


def test_parts_of_timestamps_are_counted_too() -> None:
    random = np.random.default_rng(2)
    table = make_table().append_column(
        "at", pa.array(random.integers(0, 10**6, ROWS) * 3_600, pa.int64()).cast(pa.timestamp("s"))
    )
    schema = replace(SCHEMA, columns=(*SCHEMA.columns, TimePart("at", "hour")))
    assert len(fit(schema, table).certificate.moments.describe()) > 0  # type: ignore[union-attr]


def test_histograms_hide_all_rows_of_a_person_and_all_columns() -> None:
    schema = replace(SCHEMA, person_id="id", max_rows_per_person=3)
    event = make_plan(schema, ROWS, SETTINGS).certificate.moments
    assert isinstance(event, NoisyHistograms)
    assert event.sensitivity == 2 * 3 * len(SCHEMA.columns)


def test_released_counts_have_the_stated_noise() -> None:
    """The centres of categories are their noisy shares, which differ from the exact ones by the noise."""
    table = make_table()
    exact = np.mean(np.array(table["sex"].to_pylist()) == "F")
    offsets = []
    for seed in range(40):
        model = fit(table=table, noise_seed=seed)
        place = model.schema.feature_names.index("sex=F")
        assert model.schema.standardization is not None
        offsets.append((model.schema.standardization.centers[place] - exact) * ROWS)
    event = model.certificate.moments
    assert isinstance(event, NoisyHistograms)
    # They are shrunk towards one half, so that they vary somewhat less.
    assert 0.3 < np.std(offsets) / event.noise.deviation < 1.6


def test_more_bins_than_features_are_not_counted() -> None:
    """It must be known before anything is charged."""
    wide = replace(SCHEMA, columns=(SCHEMA.columns[0], *(Numeric(f"x{i}", 0, 1) for i in range(1600))))
    settings = Settings(epsilon=8.0, delta=1e-6)
    assert not isinstance(make_plan(wide, 2000, settings).certificate.moments, NoisyHistograms)
    with pytest.raises(ParameterError, match="histograms must be of columns"):
        make_plan(wide, 2000, replace(settings, standardize_moments="histograms"))


def test_bounds_without_a_number_between_them_have_no_bins() -> None:
    narrow = replace(SCHEMA, columns=(SCHEMA.columns[0], Numeric("one", 1.0, np.nextafter(1.0, 2.0))))
    assert not isinstance(make_plan(narrow, 10**6, Settings(epsilon=3.0)).certificate.moments, NoisyHistograms)


@pytest.mark.parametrize("changes", [{"standardize": "none"}, {"inference": True}])
def test_histograms_that_would_not_be_used_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"^standardize"):
        make_plan(SCHEMA, ROWS, replace(SETTINGS, noise_seed=None, **changes))


@pytest.mark.parametrize("share", [None, 0.6, 0.9])
@pytest.mark.parametrize("delta", [1e-6, 0.05])
@pytest.mark.parametrize("persons", [None, 2])
def test_every_plan_keeps_its_claim(share: float | None, delta: float, persons: int | None) -> None:
    """Also where composing Gaussian noise is no better than adding budgets up, or leaves nothing to the training."""
    schema = replace(SCHEMA, person_id=None if persons is None else "id", max_rows_per_person=persons)
    for epsilon in (0.1, 0.5):
        asked = Settings(epsilon=epsilon, delta=delta, algorithm="objective", loss="logistic", label_check=0.0)
        plan = make_plan(schema, ROWS, replace(asked, standardize_moments="histograms", standardize_share=share))
        assert plan.certificate.private
        verify(plan.certificate)
