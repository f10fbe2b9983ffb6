"""Evaluations of private rows: figures without noise are the oracle, one row moves two counts, intervals cover."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp import Model
from boltdp._array_types import Doubles
from boltdp._files.sealed import ModelFileError, add_digest
from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.errors import DataError, ParameterError
from boltdp.evaluation.class_statistics import TABLE_ROWS
from boltdp.evaluation.evaluate import evaluate_privately
from boltdp.evaluation.metrics import Score
from boltdp.evaluation.noisy_evaluation import NoisyEvaluation, plan_bins
from boltdp.evaluation.statistics import NO_GROUP
from boltdp.ledger import Account, BudgetExceeded, Ledger, LedgerError, open_ledger
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import OVERSPENT
from boltdp.privacy.events.event import SEEDED
from boltdp.privacy.events.noisy_counts import NoisyCounts, make_noisy_counts
from boltdp.privacy.release_with_noise import Randomness, release_counts
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Column, Numeric, Projection, Schema
from boltdp.settings import Multiclass
from tests.export.test_sql import make_model
from tests.privacy.test_attack_whitebox import caught

ROWS = 4000
#: So much that the noise is nothing.
ALL = Budget(1e6)


def rows_of(classes: int, *, rows: int = ROWS, seed: int = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (rows, 3))
    label = np.argmax(x @ generator.normal(0, 2, (3, classes)) + generator.gumbel(0, 1, (rows, classes)), axis=1)
    names = np.array([*"abcdefgh"], dtype=object)[label]
    names[::100] = "undeclared"
    ward = np.array(["north", "south", None], dtype=object)[generator.integers(0, 3, rows)]
    columns = {f"f{i}": x[:, i] for i in range(3)}
    return pa.table({**columns, "ward": pa.array(ward, pa.string()), "y": pa.array(names.tolist())})


def model_of(classes: int, *, loss: str = "logistic", multiclass: Multiclass = "multinomial") -> Model:
    numbers: list[Column] = [Numeric(f"f{i}", -1, 1) for i in range(3)]
    columns = (*numbers, Categorical("ward", ("north", "south")))
    return make_model(
        Schema(Classes("y", tuple("abcdefgh"[:classes])), columns), loss=loss, multiclass=multiclass, seed=3
    )


def value(scores: Any, name: str) -> float:
    score = scores[name]
    assert score is not None
    assert score.low <= score.value <= score.high
    return float(score.value)


def figures_of(found: NoisyEvaluation) -> dict[str, Score | None]:
    return {**found.scores, **{f"recall of {one.name}": one.scores["recall"] for one in found.by_class}}


# ---- figures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("loss", ["logistic", "margin", "huber"])
@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
def test_without_noise_the_figures_are_those_of_evaluate(classes: int, loss: str, multiclass: Multiclass) -> None:
    if loss == "huber" and multiclass == "multinomial" and classes > 2:
        multiclass = "one-vs-all"
    model, table = model_of(classes, loss=loss, multiclass=multiclass), rows_of(classes)
    found = evaluate_privately(model, open_source(table), ALL, by="ward")
    wards = table["ward"].to_pylist()
    groups = {"north": "north", "south": "south", NO_GROUP: None}
    parts = [(found.scores, table)]
    parts += [
        (found.by_group[name], table.filter(pa.array([w == ward for w in wards]))) for name, ward in groups.items()
    ]
    for scores, part in parts:
        truth = model.evaluate(part)
        assert value(scores, "accuracy") == pytest.approx(truth.accuracy, abs=1e-6)
        assert value(scores, "balanced accuracy") == pytest.approx(truth.balanced_accuracy, abs=1e-6)
        for one in truth.by_class:
            recalls = {f"recall of {each.name}": each.scores["recall"] for each in found.by_class}
            recall = value(one.scores, "recall")
            assert value({**recalls, **scores}, f"recall of {one.name}") == pytest.approx(recall, abs=1e-6)
        assert ("log loss" in scores) == (truth.log_loss is not None)
        if truth.log_loss is not None:
            assert value(scores, "log loss") == pytest.approx(truth.log_loss, abs=0.02 if classes == 2 else 0.05)
        if classes == 2:
            assert value(scores, "area under the curve") == pytest.approx(truth.area_under_the_curve, abs=0.01)
            if truth.brier_score is not None:
                assert value(scores, "Brier score") == pytest.approx(truth.brier_score, abs=0.005)
    assert found.rows_without_label.value == pytest.approx(ROWS / 100, abs=1e-3)
    assert sum(value(scores, "rows") for scores in found.by_group.values()) == pytest.approx(ROWS * 0.99, abs=1e-3)


@pytest.mark.parametrize("threshold", [0.02, 0.3, 0.98])
def test_a_threshold_is_an_edge_of_the_bins(threshold: float) -> None:
    model, table = model_of(2).with_threshold(threshold), rows_of(2)
    found = evaluate_privately(model, open_source(table), ALL)
    truth = model.evaluate(table)
    assert value(found.scores, "accuracy") == pytest.approx(truth.accuracy, abs=1e-6)
    assert found.threshold == threshold
    area, error = truth.area_under_the_curve, found.area_error
    assert area is not None
    assert error is not None
    assert abs(value(found.scores, "area under the curve") - area) <= error + 1e-6


def test_the_calibration_is_that_of_the_rows() -> None:
    model, table = model_of(2), rows_of(2)
    found = evaluate_privately(model, open_source(table), ALL)
    known = np.array(table["y"].to_pylist()) != "undeclared"
    odds = model.predict_proba(table)[known, 1]
    second = np.array(table["y"].to_pylist())[known] == "b"
    told = found.calibration
    assert len(told) == TABLE_ROWS
    for one in told:
        inside = (odds > one.low) & (odds <= one.high)
        assert one.rows.value == pytest.approx(inside.sum(), abs=1e-3)
        if inside.sum() > 1:
            assert one.share is not None
            assert one.share.value == pytest.approx(second[inside].mean(), abs=1e-4)


def test_more_noise_and_more_groups_have_fewer_bins() -> None:
    model = model_of(2)
    halves = [
        plan_bins(model, rows=ROWS, groups=groups, noise=noise).shape[2]
        for groups, noise in ((1, 1), (1, 100), (50, 100))
    ]
    assert halves[0] > halves[1] > halves[2] >= 2


def test_a_model_of_zero_weights_has_bins_too() -> None:
    model = replace(model_of(2), weights=np.zeros((1, model_of(2).schema.dims)))
    truth, found = model.evaluate(rows_of(2)), evaluate_privately(model, open_source(rows_of(2)), ALL)
    assert value(found.scores, "accuracy") == pytest.approx(truth.accuracy, abs=1e-6)


def test_what_the_noise_is_too_strong_for_is_not_told() -> None:
    found = evaluate_privately(model_of(2), open_source(rows_of(2, rows=300)), Budget(0.01), by="ward")
    assert all(score is None for name, score in found.by_group["north"].items() if name != "rows")
    assert json.loads(json.dumps(found.to_dict()))["by_group"]["north"]["accuracy"] is None


@pytest.mark.parametrize(("classes", "loss"), [(2, "logistic"), (2, "huber"), (4, "logistic")])
def test_noisy_counts_are_drawn_too(tmp_path: Path, classes: int, loss: str) -> None:
    found = evaluate_privately(model_of(classes, loss=loss), open_source(rows_of(classes)), Budget(1.0))
    found.plot(tmp_path / "noisy.svg")
    drawn = (tmp_path / "noisy.svg").read_text("utf-8")
    assert ("only errors are known" in drawn) == (classes > 2)
    assert "Differentially private" in drawn


# ---- the guarantee --------------------------------------------------------------------------------------------------

cell = st.sampled_from([math.nan, -1.0, -0.3, 0.0, 0.2, 1.0])
packed_row = st.tuples(
    st.sampled_from([math.nan, 0.0, 1.0, 2.0, 3.0]), cell, cell, cell, st.sampled_from([-1.0, 0.0, 1.0])
)


@given(rows=st.lists(packed_row, min_size=1, max_size=8), other=packed_row, noise=st.sampled_from([0.1, 1e4]))
def test_one_row_moves_two_counts_by_one_at_most(rows: list[Any], other: Any, noise: float) -> None:
    model = model_of(4)
    bins = plan_bins(model, rows=len(rows), groups=3, noise=noise)
    before, after = (bins.count_rows(model, np.array(one, np.float32), 4) for one in ([*rows], [other, *rows[1:]]))
    assert before.sum() == after.sum() == len(rows)
    moved = after - before
    assert np.abs(moved).sum() in (0, 2)
    assert np.abs(moved).max() <= 1
    assert (moved**2).sum() <= make_noisy_counts(Budget(1.0), releases=1).sensitivity ** 2


@pytest.mark.parametrize("budget", [Budget(1.0), Budget(1.0, 0.3)])
def test_an_attack_finds_no_violation_and_finds_half_of_the_noise(budget: Budget) -> None:
    model = model_of(2)
    bins = plan_bins(model, rows=2, groups=1, noise=1.0)
    neighbours = [np.array([[label, 0.5, -1, 1, 0], [1, 0, 0, 0, 1]], np.float32) for label in (0, 1)]
    ours, theirs = (bins.count_rows(model, rows, None).astype(np.float64) for rows in neighbours)
    event = make_noisy_counts(budget, releases=1, summed=True)
    random_bytes = Randomness(1).make_stream()
    power = 1 if event.noise.kind == "spherical" else 2

    def losses(counts: Doubles, planned: NoisyCounts) -> Doubles:
        """The logarithm of how much likelier a release is with one than with the other, about."""
        moved = np.flatnonzero(ours != theirs)  # the noise of the others is the same with both
        drawn = np.array([release_counts(counts[moved].tolist(), planned, random_bytes) for _ in range(6000)])
        found: Doubles = (np.abs(drawn - theirs[moved]) ** power - np.abs(drawn - ours[moved]) ** power).sum(axis=1)
        return found

    assert not caught(losses(ours, event), losses(theirs, event), budget)
    half = replace(event, noise=replace(event.noise, scale=event.noise.scale / 2))
    assert caught(losses(ours, half), losses(theirs, half), budget)


def test_less_noise_than_is_claimed_is_not_private() -> None:
    found = evaluate_privately(model_of(2), open_source(rows_of(2)), Budget(1.0))
    assert not found.reasons
    assert "epsilon = 1:" in found.guarantee()
    assert isinstance(found.spent, NoisyCounts)
    half = replace(found, spent=replace(found.spent, noise=replace(found.spent.noise, scale=1.0)))
    assert half.reasons == (OVERSPENT,)
    assert half.guarantee().startswith("NOT PRIVATE")


def test_a_seed_makes_it_reproducible_and_not_private() -> None:
    first, second = (
        evaluate_privately(model_of(2), open_source(rows_of(2)), Budget(1.0), context=Context(randomness=Randomness(7)))
        for _ in range(2)
    )
    assert first == second
    assert first.reasons == (SEEDED,)


@pytest.mark.parametrize("name", ["accuracy", "area under the curve", "log loss", "recall of b"])
def test_intervals_cover_what_is_true_of_the_population(name: str) -> None:
    """Rows are drawn from a population whose shares of all bins are known, and get noise that is as large as that."""
    model, rows, budget = model_of(2), 2000, Budget(0.2)
    whole = evaluate_privately(model, open_source(rows_of(2, rows=40_000)), ALL)
    shares = np.maximum(whole.counts, 0) / np.maximum(whole.counts, 0).sum()
    event = make_noisy_counts(budget, releases=1, summed=True)
    truth, generator, random_bytes = (
        value(figures_of(whole), name),
        np.random.default_rng(5),
        Randomness(5).make_stream(),
    )
    covered = 0
    for _ in range(400):
        counts = tuple(release_counts(generator.multinomial(rows, shares).tolist(), event, random_bytes))
        found = figures_of(replace(whole, rows=rows, counts=counts, budget=budget, spent=event))[name]
        assert found is not None
        covered += found.low <= truth <= found.high
    assert 0.90 <= covered / 400 <= 0.985


# ---- ledgers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = open_ledger(tmp_path / ".boltdp-ledger.db")
    made.set_budget("rows.parquet", Budget(1.0), composition="basic")
    return made


def test_an_evaluation_is_charged_and_its_digest_noted(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(rows_of(2), path)
    found = model_of(2).evaluate_privately(path, epsilon=0.4, by="ward")
    reserve, release = ledger.history()[1:]
    assert (reserve.budget, reserve.event["kind"]) == (Budget(0.4), "noisy counts")
    assert release.released == found.seal()["digest"]
    assert ledger.check() == 3


def test_what_exceeds_the_budget_is_refused_before_a_row_is_read(ledger: Ledger) -> None:
    engine = open_source(rows_of(2))
    engine.batches = None  # type: ignore[assignment, method-assign]
    with pytest.raises(BudgetExceeded, match=r"epsilon = 1\.5"):
        evaluate_privately(model_of(2), engine, Budget(1.5), account=Account(ledger, "rows.parquet"))
    assert ledger.spent("rows.parquet").spent.releases == 0


def test_an_interrupt_before_the_noise_gives_the_charge_back_and_a_fault_does_not(ledger: Ledger) -> None:
    def interrupted(stage: str, done: int, total: int) -> None:
        del stage, done, total
        raise KeyboardInterrupt

    def fails(stage: str, done: int, total: int) -> None:
        del stage, done, total
        raise DataError("the disk is gone")

    account = Account(ledger, "rows.parquet")
    for progress, fault in ((interrupted, KeyboardInterrupt), (fails, DataError)):
        with pytest.raises(fault):
            evaluate_privately(
                model_of(2), open_source(rows_of(2)), Budget(0.5), context=Context(progress=progress), account=account
            )
    kinds = [entry.kind for entry in ledger.history()]
    assert kinds == ["budget", "reserve", "return", "reserve"]
    assert ledger.spent("rows.parquet").spent.epsilon == 0.5


# ---- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4])
def test_a_file_is_read_as_it_was_written(tmp_path: Path, classes: int) -> None:
    found = evaluate_privately(model_of(classes), open_source(rows_of(classes)), Budget(1.0, 1e-6), by="ward")
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(found.seal()))
    assert NoisyEvaluation.load(path) == found


def changed(place: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(record: dict[str, Any]) -> None:
        record[place] = change(record[place])

    return apply


@pytest.mark.parametrize(
    "change",
    [
        changed("counts", lambda counts: [counts[0] + 100.0, *counts[1:]]),
        changed("counts", lambda counts: counts[1:]),
        changed("counts", lambda _: "many"),
        changed("rows", lambda rows: rows + 500),
        changed("private", lambda private: not private),
        changed("scores", lambda scores: {**scores, "accuracy": {"value": 1.0, "low": 1.0, "high": 1.0}}),
        changed("spent", lambda spent: {**spent, "releases": 2}),
        changed("spent", lambda spent: {**spent, "kind": "magic"}),
        changed("bins", lambda bins: {**bins, "low": bins["low"][::-1]}),
        changed("bins", lambda bins: {**bins, "low": bins["low"][1:]}),
        changed("bins", lambda bins: {**bins, "high": [2.0 * edge for edge in bins["high"]]}),
        changed("classes", lambda classes: [*classes, "c"]),
        changed("format_version", lambda version: version + 1),
        lambda record: record.update(comment="trust me"),
        lambda record: record.pop("budget"),
    ],
)
def test_a_file_whose_parts_do_not_follow_from_each_other_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    record = evaluate_privately(model_of(2), open_source(rows_of(2)), Budget(1.0)).to_dict()
    change(record)
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(add_digest(record)))
    with pytest.raises(ModelFileError):
        NoisyEvaluation.load(path)


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["f0", "y", "nothing"])
def test_subgroups_must_be_those_of_a_declared_category(by: str) -> None:
    with pytest.raises(ParameterError, match="categorical column") as fault:
        evaluate_privately(model_of(2), open_source(rows_of(2)), Budget(1.0), by=by)
    assert fault.value.hint == "the schema has 'ward'"


def test_subgroups_of_projected_rows_are_refused() -> None:
    schema = replace(model_of(2).schema, projection=Projection(dims=3, seed=1))
    model = make_model(schema, loss="logistic", multiclass="multinomial", seed=3)
    with pytest.raises(ParameterError, match="without a projection"):
        evaluate_privately(model, open_source(rows_of(2)), Budget(1.0), by="ward")
    assert evaluate_privately(model, open_source(rows_of(2)), ALL).rows == ROWS


def test_the_label_must_be_there() -> None:
    with pytest.raises(DataError, match="'y'"):
        evaluate_privately(model_of(2), open_source(rows_of(2).drop_columns("y")), Budget(1.0))


def test_every_row_is_in_one_bin_whatever_is_in_it() -> None:
    model = model_of(2)
    bins = plan_bins(model, rows=ROWS, groups=3, noise=1.0)
    place = [*(column.name for column in model.schema.columns)].index("ward") + 1
    counts = sum(bins.count_rows(model, block, place) for block in encode_rows(open_source(rows_of(2)), model.schema))
    assert counts.sum() == ROWS  # type: ignore[union-attr]


# ---- persons ------------------------------------------------------------------------------------------------------


def visits_of(*, persons: int) -> pa.Table:
    """Rows of which each person has several: all have their first one, in turn, then their second."""
    table = rows_of(2)
    return table.append_column("patient", pa.array([i % persons for i in range(table.num_rows)]))


def persons_model(most: int) -> Model:
    return make_model(replace(model_of(2).schema, person_id="patient", max_rows_per_person=most), seed=3)


def test_rows_of_a_person_beyond_those_that_count_are_not_evaluated() -> None:
    table = visits_of(persons=500)
    found = evaluate_privately(persons_model(3), open_source(table), ALL, by="ward")
    first = evaluate_privately(model_of(2), open_source(table.slice(0, 1500)), ALL, by="ward")
    for name in ("accuracy", "area under the curve", "log loss"):
        assert value(found.scores, name) == pytest.approx(value(first.scores, name), abs=0.01)
        assert value(found.by_group["north"], name) == pytest.approx(value(first.by_group["north"], name), abs=0.03)
    left_out = ROWS - 1500
    assert found.rows_without_label.value == pytest.approx(first.rows_without_label.value + left_out, abs=0.1)


@pytest.mark.parametrize("budget", [Budget(1.0), Budget(1.0, 0.3)])
def test_all_rows_of_a_person_move_the_counts_by_what_the_noise_is_for_and_no_more(budget: Budget) -> None:
    most, table = 4, visits_of(persons=500)
    mine = np.array(table["patient"]) == 7
    assert mine.sum() > most

    def counts(label: str) -> Doubles:
        """With other rows of this person, all alike."""
        columns = {name: np.array(table[name].to_pylist(), dtype=object) for name in table.column_names}
        for name, given_cell in (("f0", 1.0), ("f1", 1.0), ("f2", 1.0), ("ward", "north"), ("y", label)):
            columns[name][mine] = given_cell
        rows = pa.table({name: pa.array(cells.tolist()) for name, cells in columns.items()})
        return np.array(evaluate_privately(persons_model(most), open_source(rows), ALL, by="ward").counts)

    moved = np.rint(counts("a") - counts("b"))
    event = make_noisy_counts(budget, releases=1, summed=True, person_rows=most)
    assert event.noise.kind == ("gaussian" if budget.delta else "spherical")
    norm = np.linalg.norm(moved) if budget.delta else np.abs(moved).sum()
    assert norm == pytest.approx(event.sensitivity)
    assert event.delta(budget.epsilon) <= budget.delta
    assert replace(event, person_rows=most + 1).delta(budget.epsilon) > budget.delta


def test_an_evaluation_of_persons_says_so_and_is_charged_for_persons(ledger: Ledger, tmp_path: Path) -> None:
    engine, account = open_source(visits_of(persons=500)), Account(ledger, "rows.parquet")
    found = evaluate_privately(persons_model(2), engine, Budget(0.5), account=account)
    assert found.guarantee().endswith("Protected is a person, of whom the first 2 rows count.")
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(found.seal()))
    assert NoisyEvaluation.load(path) == found
    with pytest.raises(ParameterError, match="must be about the relation of its counts"):
        replace(found, adjacency=Adjacency.REPLACE_ONE)
    seeded = evaluate_privately(persons_model(2), engine, Budget(0.5), context=Context(randomness=Randomness(7)))
    assert (seeded.person_rows, seeded.reasons) == (2, (SEEDED,))
    with pytest.raises(LedgerError, match="about another relation"):
        evaluate_privately(model_of(2), engine, Budget(0.1), account=account)


def test_intervals_are_wider_where_persons_are_the_sample() -> None:
    engine = open_source(visits_of(persons=ROWS))
    rows, persons = (
        evaluate_privately(model, engine, ALL).scores["accuracy"] for model in (model_of(2), persons_model(4))
    )
    assert rows is not None
    assert persons is not None
    assert persons.high - persons.low == pytest.approx(2 * (rows.high - rows.low), rel=0.01)


def test_values_are_not_told_of_persons() -> None:
    with pytest.raises(ParameterError, match="counts that tell values"):
        make_noisy_counts(Budget(1.0, 1e-6), releases=1, unknown=1, person_rows=2)
