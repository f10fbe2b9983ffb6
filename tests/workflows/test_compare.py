"""Algorithms side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import ParameterError
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Number, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.compare import (
    COMPARED_ALGORITHMS,
    Comparison,
    ComparisonFileError,
    adapt_settings,
    compare,
    draw_comparison,
)
from boltdp.workflows.plan_training import Plan, make_plan
from tests.plans import plan_certificate

SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
COMMON = Settings(epsilon=None, passes=2, batch_size=10)


def patients(rows: int = 1000, seed: int = 0) -> ArrayEngine:
    random = np.random.default_rng(seed)
    age = random.integers(0, 100, rows)
    return ArrayEngine.from_arrow(pa.table({"age": age, "sick": (age + random.normal(0, 10, rows) > 50).astype(int)}))


def compared(**changes: object) -> Comparison:
    arguments = {
        "names": ["noiseless", "bolton", "bolton-paper"],
        "epsilons": [0.1, 10.0],
        "repeats": 3,
        **changes,
    }
    return compare(patients(), SCHEMA, COMMON, **arguments)  # type: ignore[arg-type]


def test_every_algorithm_is_trained_at_every_epsilon_and_noiseless_once() -> None:
    made = compared()
    cells = {(one.algorithm, one.epsilon): one for one in made.summarize_runs()}
    assert list(cells) == [
        ("noiseless", None),
        ("bolton", 0.1),
        ("bolton", 10.0),
        ("bolton-paper", 0.1),
        ("bolton-paper", 10.0),
    ]
    assert all(one.repeats == 3 for one in cells.values())
    assert cells["noiseless", None].score > 0.8
    assert all(one.seconds > 0 for one in cells.values())


def test_more_budget_gives_more_accuracy() -> None:
    seeded = replace(COMMON, seed=1, noise_seed=1)
    made = compare(patients(), SCHEMA, seeded, names=["bolton"], epsilons=[0.1, 10.0], repeats=3)
    small, large = made.summarize_runs()
    assert large.score > small.score


def test_a_form_that_is_not_valid_is_marked() -> None:
    assert {(one.algorithm, one.private) for one in compared().summarize_runs()} == {
        ("noiseless", False),
        ("bolton", True),
        ("bolton-paper", False),
    }


def test_spread_is_the_standard_deviation_between_repeats() -> None:
    made = compared(names=["bolton"], epsilons=[0.1])
    measured = [run.score for run in made.runs]
    (summary,) = made.summarize_runs()
    assert summary.score == pytest.approx(np.mean(measured))
    assert summary.score_spread == pytest.approx(np.std(measured, ddof=1))
    assert compared(names=["bolton"], epsilons=[0.1], repeats=1).summarize_runs()[0].score_spread == 0


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    """An interruption in the middle, then the rest."""
    path, kept = tmp_path / "comparison.json", 0

    def keep(results: Comparison) -> None:
        nonlocal kept
        results.save(path)
        kept += 1
        if kept == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared(keep=keep)
    before = Comparison.load(path)
    assert len(before.runs) == 4
    told: list[tuple[str, int, int]] = []
    made = compared(resume_from=before, context=Context(progress=lambda *report: told.append(report)))
    assert made.runs[:4] == before.runs
    assert len({(run.algorithm, run.epsilon, run.repeat) for run in made.runs}) == len(made.runs) == 15
    assert [report for report in told if report[0] == "training"] == [("training", i, 11) for i in range(11)]
    assert compared(resume_from=made) == made


def test_results_of_other_data_or_settings_are_never_mixed() -> None:
    made = compared(repeats=1)
    cases = [
        (patients(999), SCHEMA, COMMON),
        (patients(), replace(SCHEMA, intercept=False), COMMON),
        (patients(), SCHEMA, replace(COMMON, passes=3)),
    ]
    for engine, schema, settings in cases:
        with pytest.raises(ComparisonFileError, match="are of other data or settings"):
            compare(engine, schema, settings, names=["bolton"], epsilons=[1.0], repeats=1, resume_from=made)


def test_curves_are_those_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for every algorithm: "auto" adds none of its own, which could not be told from the accuracies."""
    planned: list[int] = []

    def watched(*given: Any) -> Plan:
        plan = make_plan(*given)
        planned.append(plan.certificate.problem.dims)
        return plan

    monkeypatch.setattr("boltdp.workflows.compare.make_plan", watched)
    for curves in (None, 4):
        settings = replace(COMMON, curves=curves)
        compare(patients(), SCHEMA, settings, names=["auto", "bolton"], epsilons=[1.0], repeats=1)
    assert planned == [2, 2, 6, 6]


def test_test_rows_may_come_from_elsewhere() -> None:
    wrong = np.arange(100)
    backwards = ArrayEngine.from_arrow(pa.table({"age": wrong, "sick": (wrong < 50).astype(int)}))
    (summary,) = compared(names=["noiseless"], test=backwards).summarize_runs()
    assert summary.score < 0.2


def test_seeded_noise_repeats_and_is_marked() -> None:
    def seeded() -> Comparison:
        settings = replace(COMMON, seed=1, noise_seed=1)
        return compare(patients(), SCHEMA, settings, names=["noiseless", "bolton"], epsilons=[1.0], repeats=2)

    first, second = seeded(), seeded()
    assert [run.score for run in first.runs] == [run.score for run in second.runs]
    assert not any(run.private for run in first.runs)


def test_what_an_algorithm_does_not_take_is_left_out_for_it_alone() -> None:
    """With passes in common, objective perturbation can still be compared; the others make them."""
    common = replace(COMMON, delta=1e-6, permutation="fresh")
    left_out = {
        name: set(common.given_names) - set(adapt_settings(name, common, 1.0).given_names)
        for name in COMPARED_ALGORITHMS
    }
    assert left_out == {
        "noiseless": set(),
        "auto": set(),
        "objective": {"passes", "batch_size", "permutation"},
        "noisy-gd": {"batch_size", "permutation"},
        "bolton": set(),
        "bolton-paper": set(),
        "scs13": set(),
        "scs13-paper": set(),
        "bst14": {"permutation"},
        "bst14-paper": {"permutation"},
        "dpsgd": {"permutation"},
    }
    for name in COMPARED_ALGORITHMS:
        settings = adapt_settings(name, common, 1.0)
        planned = plan_certificate(settings, rows=1000, dims=2, classes=2)
        assert isinstance(planned.problem, Recipe) == (name not in ("objective", "noisy-gd"))
        if isinstance(planned.problem, Recipe):
            assert (planned.problem.passes, planned.problem.batch_size) == (2, 10)
        assert settings.analysis == ("paper" if name.endswith("-paper") else "proved")
    made = compare(patients(), SCHEMA, common, names=COMPARED_ALGORITHMS, epsilons=[1.0], repeats=1)
    assert [one.algorithm for one in made.summarize_runs()] == list(COMPARED_ALGORITHMS)


def test_auto_is_what_the_common_settings_make_of_it() -> None:
    for passes, algorithm in ((None, "objective"), (10, "bolton")):
        settings = adapt_settings("auto", Settings(epsilon=None, passes=passes), 1.0)
        assert plan_certificate(settings, rows=1000, dims=2, classes=2).algorithm == algorithm


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    draw_comparison(compared(), tmp_path / "comparison.png")
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": "boltdp-model"}', '{"format": "boltdp-comparison", "about": {}}']
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(ComparisonFileError, match="has no results of a comparison"):
        Comparison.load(tmp_path / "comparison.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ["magic"]}, "algorithms must be some of noiseless, .*, dpsgd, got 'magic'"),
        ({"names": []}, "there must be an algorithm, an epsilon and a repeat"),
        ({"repeats": 0}, "got 3, 2 and 0"),
        ({"epsilons": [1.0, -1.0]}, "epsilon must be a finite number > 0, got -1"),
    ],
)
def test_bad_requests_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        compared(**changes)


def test_rows_that_do_not_count_are_tested_all_the_same() -> None:
    """Only one row of everybody is learnt from; were the others tested as neutral ones, all of them would be errors."""
    rows = patients()
    made = []
    for schema in (SCHEMA, replace(SCHEMA, columns=SCHEMA.columns[:1], person_id="few", max_rows_per_person=400)):
        data = rows.with_column("few", np.zeros(rows.count(), int))
        made.append(compare(data, schema, COMMON, names=["noiseless"], epsilons=[1.0], repeats=1).runs[0].score)
    assert made[1] > made[0] - 0.2


def test_numbers_are_compared_by_r2() -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (4000, 2))
    table = pa.table({"a": x[:, 0], "b": x[:, 1], "price": 5.0 + 3.0 * x[:, 0] + 0.3 * rng.standard_normal(4000)})
    schema = Schema(Number("price", 0, 100), (Numeric("a", -1, 1), Numeric("b", -1, 1)))
    for loss in ("auto", "quantile"):
        settings = Settings(epsilon=1.0, noise_seed=1, loss=loss)
        with ArrayEngine.from_arrow(table) as engine:
            made = compare(engine, schema, settings, names=["noiseless", "auto"], epsilons=[2.0], repeats=1)
        noiseless, auto = (one.score for one in made.summarize_runs())
        assert made.about["score"] == "R2"
        assert 0.9 < auto <= noiseless + 0.02 < 1.0
