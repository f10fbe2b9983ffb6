"""Rows without a usable label are counted with noise, stated, and warned about, whichever way they are trained on."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import boltdp
from boltdp import PrivateGridSearch, PrivateLogisticRegression
from boltdp.audit.exact_loss import compute_exact_loss
from boltdp.audit.neighbouring_tables import generate_pairs
from boltdp.audit.replay_on_neighbours import intercept_noise, replay_pairs
from boltdp.audit.subject import make_subject
from boltdp.cli import main
from boltdp.engines import open_source
from boltdp.errors import ParameterError
from boltdp.kernel.unusable_label_count import UnusableLabelCount
from boltdp.ledger import Account, open_ledger
from boltdp.model import Model, ModelFileError
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, CertificateError, verify
from boltdp.privacy.events.event import Composition
from boltdp.privacy.events.noisy_counts import NoisyUnusableLabelCount, make_noisy_unusable_label_count
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release_with_noise import Randomness, release_label_count
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Projection, Schema
from boltdp.settings import Settings
from boltdp.workflows.label_check import describe_unusable_labels
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.train import run_plan, train
from boltdp.workflows.tune import expand_grid, tune

ROWS = 6000
COLUMNS = (Numeric("age", 0, 100), Categorical("sex", ("f", "m")))
SCHEMA = Schema(Classes("sick", ("no", "yes")), COLUMNS)
MISSPELT = Schema(Classes("sick", ("no", "yse")), COLUMNS)
SETTINGS = Settings(epsilon=2.0, algorithm="bolton", passes=1)
PERSONS: dict[str, Any] = {"person_id": "who", "max_rows_per_person": 2}
WARNING = re.compile(
    r"about (\d+)% \(± 1\.\d%\) of the 6,000 rows were ignored, since their label 'sick' is missing or not one of the "
    r"classes no, yse; is one misspelt, or not declared\?"
)


def people(rows: int = ROWS, *, label: Callable[[int], Any] = lambda i: ("no", "yes", "yes")[i % 3]) -> pa.Table:
    return pa.table(
        {
            "age": [float(i % 90) for i in range(rows)],
            "sex": [("f", "m")[i % 2] for i in range(rows)],
            "who": [i // 4 for i in range(rows)],
            "sick": [label(i) for i in range(rows)],
        }
    )


def fit(schema: Schema = SCHEMA, settings: Settings = SETTINGS, table: pa.Table | None = None) -> Model:
    """Train without noise in the count: what is asserted of it then holds for certain."""
    with quiet_count():
        return train(open_source(people() if table is None else table), schema, settings)


def quiet_count() -> Any:
    """Leave the noise of the count out, and draw all other."""

    def observe(honest: Any, noise: Mechanism, vector: Any, random_bytes: Any) -> Any:
        return vector if vector.shape == (1,) else honest(noise, vector, random_bytes)

    return intercept_noise(observe)


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_misspelt_class_is_seen_and_clean_rows_are_not() -> None:
    clean, misspelt = fit(), fit(MISSPELT)
    assert (clean.unusable_labels, describe_unusable_labels(clean)) == (0.0, None)
    assert misspelt.unusable_labels == 4000.0
    found = WARNING.fullmatch(describe_unusable_labels(misspelt) or "")
    assert found is not None
    assert found[1] == "67"


def test_labels_that_are_no_numbers_are_counted_where_the_target_is_one() -> None:
    """Numbers beyond the bounds are moved there, and usable."""
    schema = Schema(Number("sick", 0, 100, typical=(10, 90)), COLUMNS)
    odd = fit(schema, table=people(label=lambda i: (None, float("nan"), 50.0, 1e9, -3.0, 7.0)[i % 6]))
    assert odd.unusable_labels == ROWS / 3
    found = re.fullmatch(
        r"about 33% \(± 1\.\d%\) of the 6,000 rows were ignored, since their target 'sick' is missing or no number",
        describe_unusable_labels(odd) or "",
    )
    assert found is not None
    clean = fit(schema, table=people(label=lambda i: i % 50))
    assert (clean.unusable_labels, describe_unusable_labels(clean)) == (0.0, None)


@pytest.mark.parametrize("values", [("No", "Yes"), (0, 1), ("low", "high")])
def test_a_column_with_other_values_makes_the_model_useless(values: tuple[Any, ...]) -> None:
    """Such as a price that is given as two classes."""
    table = people(label=lambda i: 100.0 + i / 7 if values == ("low", "high") else ("no", "yes")[i % 2])
    model = fit(replace(SCHEMA, target=Classes("sick", values)), table=table)
    warning = describe_unusable_labels(model)
    assert warning is not None
    assert warning.startswith("nearly all rows were ignored, so that the model is useless: about 100% ")


def test_few_unusable_labels_are_no_reason_to_warn() -> None:
    model = fit(table=people(label=lambda i: None if i % 20 == 0 else "no"))
    assert (model.unusable_labels, describe_unusable_labels(model)) == (300.0, None)


def test_the_warning_takes_the_noise_into_account() -> None:
    model = fit()
    event = model.certificate.unusable_label_count
    assert event is not None
    # The noise exceeds this with a probability of one in a million.
    tail = event.noise.scale * math.log(0.5e6)
    for count, said in ((0.05 * ROWS + tail - 1, False), (0.05 * ROWS + tail + 1, True), (-500.0, False)):
        assert (describe_unusable_labels(replace(model, unusable_labels=count)) is not None) == said
    many = train(open_source(people(2)), SCHEMA, replace(SETTINGS, label_check=0.9, epsilon=100.0))
    assert "about 100% (± 0.79%) of the 2 rows" in (describe_unusable_labels(replace(many, unusable_labels=2.0)) or "")
    assert "about 100% " in (describe_unusable_labels(replace(model, unusable_labels=ROWS * 1.2)) or "")


def test_the_count_is_one_percent_of_epsilon_and_part_of_the_certificate() -> None:
    certificate = fit(settings=replace(SETTINGS, delta=1e-6)).certificate
    labels, rest = certificate.parts
    assert (labels.event.kind, labels.budget) == ("noisy count of unusable labels", Budget(0.02))
    assert rest.budget == Budget(1.98, 1e-6)
    assert certificate.unusable_label_count == make_noisy_unusable_label_count(Budget(0.02))
    assert certificate.private
    verify(certificate)
    assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate


@pytest.mark.parametrize("algorithm", ["auto", "objective", "bolton", "noisy-gd", "dpsgd"])
def test_every_algorithm_and_gaussian_composition_stay_within_the_budget(algorithm: str) -> None:
    settings = Settings(epsilon=1.0, delta=1e-6, algorithm=algorithm)
    certificate = make_plan(SCHEMA, 20_000, settings).certificate
    assert certificate.unusable_label_count is not None
    assert certificate.private
    verify(certificate)
    plain = make_plan(SCHEMA, 20_000, replace(settings, label_check=0.0)).certificate
    assert plain.unusable_label_count is None
    assert plain.parts[:1] != certificate.parts[:1]


def test_a_quieter_or_smaller_count_is_refused() -> None:
    certificate = fit().certificate
    labels, rest = certificate.parts
    assert isinstance(labels.event, NoisyUnusableLabelCount)
    half = replace(labels.event, noise=replace(labels.event.noise, scale=labels.event.noise.scale / 2))
    for forged in (replace(labels, event=half), replace(labels, event=half, budget=Budget(0.01))):
        with pytest.raises(CertificateError, match=r"(follows from its events|but it spends more|must be within)"):
            verify(replace(certificate, spent=Composition((forged, rest))))
    free = Composition((replace(labels, budget=None), rest))
    assert not replace(certificate, spent=free).private
    record = certificate.to_dict()
    record["spent"]["parts"][0]["event"]["derived"]["sensitivity"] = 0.5
    with pytest.raises(CertificateError, match="sensitivity"):
        Certificate.from_dict(record)
    persons = replace(labels, event=replace(labels.event, person_rows=1))
    with pytest.raises(ParameterError, match="private for the same neighbours"):
        replace(certificate, spent=Composition((persons, rest)))


@pytest.mark.parametrize("person_rows", [None, 1, 7])
def test_the_noise_is_exactly_that_of_its_budget(person_rows: int | None) -> None:
    """By the two densities of Laplace's distribution: the largest ratio is e^epsilon, half the noise has its square."""
    event, moved = make_noisy_unusable_label_count(Budget(0.02), person_rows=person_rows), person_rows or 1
    assert event.sensitivity == moved
    assert event.noise.kind == "spherical"
    at = np.linspace(-5.0, 5.0, 1001) * event.noise.scale
    ratio = (np.abs(at - moved) - np.abs(at)) / event.noise.scale
    assert ratio.max() == pytest.approx(0.02, rel=1e-12)
    assert event.delta(0.02) == 0.0
    below = event.delta(0.01)
    # The hockey stick of two Laplace densities at a distance of 0.02 scales.
    assert below == pytest.approx(1 - math.exp((0.01 - 0.02) / 2), rel=1e-6)
    half = replace(event, noise=replace(event.noise, scale=event.noise.scale / 2))
    assert half.delta(0.02) > 0.009


def test_draws_have_the_stated_noise() -> None:
    certificate = make_plan(SCHEMA, ROWS, replace(SETTINGS, noise_seed=1)).certificate
    event = certificate.unusable_label_count
    assert event is not None
    counts = [release_label_count(100, event, certificate, Randomness(seed)) for seed in range(4000)]
    drawn = (np.array(counts) - 100) / event.noise.scale
    # Of Laplace noise the mean of the length is 1, and half of it is shorter than ln 2. Seeds: no chance is left.
    assert np.abs(drawn).mean() == pytest.approx(1.0, abs=0.05)
    assert (np.abs(drawn) < math.log(2)).mean() == pytest.approx(0.5, abs=0.03)
    assert (drawn < 0).mean() == pytest.approx(0.5, abs=0.03)


def test_a_count_needs_a_certificate_that_states_it_and_its_seed() -> None:
    certificate = make_plan(SCHEMA, ROWS, SETTINGS).certificate
    with pytest.raises(ParameterError, match="must match the use of a seed"):
        release_label_count(1, certificate.unusable_label_count, certificate, Randomness(1))
    without = make_plan(SCHEMA, ROWS, replace(SETTINGS, label_check=0.0)).certificate
    with pytest.raises(ParameterError, match="labels must be counted only if the certificate states it"):
        release_label_count(1, without.unusable_label_count, without, Randomness())
    with pytest.raises(ParameterError, match="labels must be counted only if the certificate states it"):
        release_label_count(1, certificate.unusable_label_count, without, Randomness())


@pytest.mark.parametrize("changes", [{"label_check": 0.0}, {"epsilon": None}, {"epsilon": 0.5}])
def test_nothing_is_spent_if_refused_without_noise_or_for_few_rows(changes: dict[str, Any]) -> None:
    settings = replace(SETTINGS, **changes)
    certificate = make_plan(SCHEMA, ROWS, settings).certificate
    assert (certificate.unusable_label_count, certificate.parts) == (None, ())
    model = train(open_source(people()), MISSPELT, settings)
    assert (model.unusable_labels, describe_unusable_labels(model)) == (None, None)
    assert "unusable_labels" not in model.to_dict()


def test_whether_it_is_made_follows_from_public_numbers() -> None:
    def made(rows: int, schema: Schema = SCHEMA, **changes: Any) -> bool:
        return make_plan(schema, rows, replace(SETTINGS, **changes)).certificate.unusable_label_count is not None

    # 13.1 scales of noise, of 50 rows each, must be at most 0.4 of the rows.
    assert [made(rows) for rows in (1640, 1641)] == [False, True]
    assert [made(rows, label_check=0.1) for rows in (164, 165)] == [False, True]
    assert [made(rows, replace(SCHEMA, **PERSONS)) for rows in (3280, 3281)] == [False, True]
    assert not made(1641, epsilon=1e-12)


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan, 1e-320, 9e-7])
def test_the_share_must_be_one(share: float) -> None:
    with pytest.raises(ParameterError, match="label_check must be"):
        make_plan(SCHEMA, ROWS, replace(SETTINGS, label_check=share))


@pytest.mark.parametrize("projection", [None, Projection(dims=2, seed=1)])
def test_rows_beyond_the_limit_of_a_person_are_not_counted(projection: Projection | None) -> None:
    """Each person has four rows, of which two count: every third label is misspelt among those."""
    schema = replace(MISSPELT, projection=projection, **PERSONS)
    model = fit(schema)
    within = [i for i in range(ROWS) if i % 4 < 2]
    assert model.unusable_labels == sum(i % 3 > 0 for i in within)
    assert fit(replace(SCHEMA, **PERSONS)).unusable_labels == 0.0
    event = model.certificate.unusable_label_count
    assert event is not None
    assert event.sensitivity == 2.0
    assert event.noise.scale == pytest.approx(2 / 0.02)


def test_a_person_changes_the_count_by_at_most_the_limit() -> None:
    """Rows of a person become those of one other, or empty ones of nobody, whose ids nobody else has."""
    random = np.random.default_rng(3)
    schema = replace(SCHEMA, **PERSONS)
    base = people(40).to_pydict()
    base["who"] = [0 if i < 12 else 1 + i // 4 for i in range(40)]

    def count(rows: dict[str, list[Any]]) -> int:
        found: list[int] = []

        def observe(honest: Any, noise: Mechanism, vector: Any, random_bytes: Any) -> Any:
            found.extend(vector.tolist() if vector.shape == (1,) else [])
            return honest(noise, vector, random_bytes)

        plan = make_plan(schema, 40, replace(SETTINGS, label_check=0.5, epsilon=10_000.0))
        with intercept_noise(observe):
            run_plan(open_source(pa.table(rows)), plan, Context(seed=1))
        return int(found[0])

    farthest = 0
    for _ in range(30):
        one, other = ({name: list(values) for name, values in base.items()} for _ in range(2))
        for place in range(12):
            one["sick"][place] = (None, "no", "other")[int(random.integers(3))]
            if random.random() < 0.5:
                other["age"][place], other["sex"][place], other["sick"][place] = None, None, None
                other["who"][place] = 1000 + place
            else:
                other["who"][place] = 999
                other["sick"][place] = (None, "no", "other")[int(random.integers(3))]
        farthest = max(farthest, abs(count(one) - count(other)))
    assert farthest == 2


def test_equal_seeds_give_the_same_count_and_the_weights_of_before() -> None:
    seeded = replace(SETTINGS, noise_seed=5, seed=3)
    first, again = (train(open_source(people()), SCHEMA, seeded) for _ in range(2))
    assert first.unusable_labels == again.unusable_labels != 0.0
    # The training draws what it draws without a count, for the budget that is left.
    less = replace(seeded, epsilon=1.98, label_check=0.0)
    np.testing.assert_array_equal(first.weights, train(open_source(people()), SCHEMA, less).weights)


@pytest.mark.parametrize("method", ["trials", "portions", "public"])
def test_tuning_checks_the_labels_too(method: Any) -> None:
    public = open_source(people(400)) if method == "public" else None
    grid = expand_grid(SETTINGS, {"passes": [1, 2]})
    model = tune(open_source(people()), MISSPELT, grid, method=method, public=public, trials=2.0)
    assert model.certificate.unusable_label_count is not None
    assert model.certificate.private
    assert WARNING.fullmatch(describe_unusable_labels(model) or "")


def test_a_model_keeps_the_count_and_refuses_another(tmp_path: Path) -> None:
    model = fit(MISSPELT)
    model.save(tmp_path / "model.json")
    assert Model.load(tmp_path / "model.json").unusable_labels == 4000.0
    for count in (None, "many", 4000, math.inf, math.nan):
        record = {**model.to_dict(), "unusable_labels": count}
        with pytest.raises(ModelFileError, match="its count of unusable labels must be a number"):
            Model.from_dict(record)
    with pytest.raises(ParameterError, match="must have the count of unusable labels that its certificate states"):
        replace(model, unusable_labels=None)
    without = fit(settings=replace(SETTINGS, label_check=0.0))
    with pytest.raises(ParameterError, match="must have the count of unusable labels that its certificate states"):
        replace(without, unusable_labels=1.0)


def test_python_and_the_estimators_warn() -> None:
    frame = people().to_pandas().drop(columns="who")
    declared: dict[str, Any] = {"bounds": {"age": (0, 100)}, "categories": {"sex": ["f", "m"]}, "epsilon": 2}
    with pytest.warns(UserWarning, match=WARNING):
        boltdp.train(frame, label="sick", classes=["no", "yse"], **declared)
    boltdp.train(frame, label="sick", classes=["no", "yes"], **declared)
    boltdp.train(frame, label="sick", classes=["no", "yse"], label_check=0, **declared)
    with pytest.warns(UserWarning, match=WARNING):
        boltdp.tune(frame, label="sick", classes=["no", "yse"], grid={"regularization": [0.1]}, trials=2, **declared)
    X, y = frame.drop(columns="sick"), pd.Series(frame["sick"], name="sick")
    estimator = PrivateLogisticRegression(classes=["no", "yse"], **declared)
    with pytest.warns(UserWarning, match=WARNING):
        estimator.fit(X, y)
    with pytest.warns(UserWarning, match=WARNING):
        PrivateGridSearch(estimator, {"regularization": [0.1]}, trials=2).fit(X, y)
    estimator.set_params(label_check=0).fit(X, y)
    assert estimator.model_.unusable_labels is None


def test_commands_state_and_warn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        told = capsys.readouterr()
        assert ended.value.code == 0, told.err
        return told.out, " ".join(told.err.split())

    pq.write_table(people(), "rows.parquet")
    MISSPELT.save("schema.toml")
    options = ("--schema", "schema.toml", "--epsilon", "2", "-o", "model.json", "--overwrite")
    line = "label check  rows with a missing or undeclared label are counted, ± 71, for epsilon = 0.02"
    out, err = run("train", "rows.parquet", *options)
    assert [one.split("  ", 1)[1].strip() for one in out.splitlines() if one.startswith("label check")] == [
        line.split("  ")[1]
    ]
    assert WARNING.search(err)
    out, err = run("train", "rows.parquet", *options, "--json", "--quiet")
    assert 3000 < json.loads(out)["unusable_labels"] < 5000
    assert WARNING.search(err)
    out, err = run("train", "rows.parquet", *options, "--label-check", "0")
    assert "label check" not in out
    assert not WARNING.search(err)
    assert "label check" in run("plan", "--rows", "6000", "--schema", "schema.toml", "--epsilon", "2")[0]
    few, _ = run("plan", "--rows", "600", "--schema", "schema.toml", "--epsilon", "2")
    assert "none, and nothing is spent on it: that needs at least 1,641 rows" in few
    off, _ = run("plan", "--rows", "600", "--schema", "schema.toml", "--epsilon", "2", "--label-check", "0")
    assert "label check" not in off


def test_a_ledger_is_charged_for_all_of_it_once(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger.db")
    ledger.set_budget("people", Budget(3.0))
    train(open_source(people()), SCHEMA, SETTINGS, account=Account(ledger, "people"))
    spent = ledger.spent("people").spent
    assert (spent.releases, spent.epsilon) == (1, 2.0)


@pytest.mark.parametrize("schema", [SCHEMA, replace(SCHEMA, **PERSONS)])
def test_an_audit_replays_the_count(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_plan(schema, ROWS, SETTINGS).certificate
    subject = make_subject(schema, certificate)
    assert [claim.name for claim in subject.claims] == ["noisy count of unusable labels", "output perturbation"]
    changed = 8 if schema.person_id else 1
    pairs = [*islice(generate_pairs(schema, subject.rows, seed=1, changed=changed), 36, 48)]

    def replay() -> tuple[float, list[str], int, bool]:
        found = replay_pairs(subject, pairs, lambda _: None)
        (one,) = (one for one in found.releases if one.release.name == "count")
        exact = compute_exact_loss(subject.claims[0], one, random=np.random.default_rng(1))
        assert exact is not None
        return one.ratio, one.list_faults(mistake=1e-12), found.leaks + found.unstated, exact.broken

    assert replay() == (1.0, [], 0, False)
    honest: Any = vars(UnusableLabelCount)["count"].fget
    monkeypatch.setattr(UnusableLabelCount, "count", property(lambda self: 2 * honest(self)))
    assert replay() == (
        2.0,
        [f"one {'person' if schema.person_id else 'row'} moves it 2 times as far as the noise is for"],
        0,
        True,
    )
    monkeypatch.undo()
    # Noise that is left out, or an exact count beside it.
    with monkeypatch.context() as patch:
        patch.setattr("boltdp.workflows.label_check.release_label_count", lambda count, *_: float(count))
        _, faults, leaks, _ = replay()
        assert faults
        assert leaks
