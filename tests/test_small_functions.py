"""What small functions return, by an example of each."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from boltdp.engines import use_source
from boltdp.errors import ParameterError
from boltdp.ledger import entries
from boltdp.losses import HuberSVM, Multinomial
from boltdp.privacy.budget import Budget
from boltdp.schema.check import find_similar
from boltdp.schema.columns import Numeric, Vector, expand_range
from boltdp.schema.curves import compute_step_thresholds
from boltdp.schema.from_arguments import declare_schema
from boltdp.schema.infer import derive_schema
from boltdp.schema.noisy_summary import bound_count, choose_interval_width, compute_bound_offset, trim_tails
from boltdp.schema.schema import Schema, array_schema
from boltdp.schema.source_columns import ColumnType, choose_batch_rows, suggest_columns
from boltdp.schema.summary import Histogram, read_largest_numbers, split_numbers
from boltdp.schema.target import Classes
from boltdp.settings import Settings
from boltdp.workflows.draft_schema import draft_schema
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.standardize import choose_budget_share
from boltdp.workflows.tune import candidates

SICK = Classes("sick", ("no", "yes"), prior=(0.8, 0.2))


def test_brace_ranges_keep_leading_zeros() -> None:
    assert list(expand_range("f{08..10}")) == ["f08", "f09", "f10"]


def test_similar_values_differ_in_case_blanks_or_a_letter() -> None:
    found = [find_similar(value, ["yes", "no", "unknown"]) for value in (" Yes", "NO", "unknwon", "maybe")]
    assert found == ["yes", "no", "unknown", None]


def test_steps_are_evenly_spaced() -> None:
    assert compute_step_thresholds(Numeric("age", 0, 100), 4) == (20.0, 40.0, 60.0, 80.0)


def test_schemas_follow_from_arguments_and_from_types() -> None:
    columns = {"age": ColumnType("number"), "smokes": ColumnType("bool"), "name": ColumnType("text")}
    schema, unused = declare_schema(columns | {"sick": ColumnType("bool")}, "sick", bounds={"age": (0, 110)})
    assert (schema.feature_names, schema.classes, unused) == (("age", "smokes", "intercept"), (False, True), ("name",))
    typed = {"sick": ColumnType("bool"), "age": ColumnType("number", bounds=(0.0, 120.0))}
    assert derive_schema(typed, "sick").columns == (Numeric("age", 0.0, 120.0),)
    assert array_schema(dims=3, classes=(0, 1), clip_norm=2.0).columns == (Vector("x", 3, -2.0, 2.0),)
    with use_source(pa.table({"age": [30, 40], "sick": [True, False]})) as engine:
        drafted = Schema.from_toml(draft_schema(engine, "sick", public=True))
    assert drafted.columns == (Numeric("age", 30.0, 40.0),)


def test_noisy_histograms_are_trimmed() -> None:
    assert [choose_interval_width(width) for width in (100.0, 90.0, 0.7)] == [1.0, 1.0, 0.01]
    assert trim_tails(np.array([0, 1, 2000, 3000, -1, 0]), noise=1.0) == (2, 3)
    assert trim_tails(np.array([0, 0, 1000]), noise=1.0) == (2, 2)
    assert [compute_bound_offset(np.array(counts)) for counts in ([80.0, 90.0], [800.0, 3.0])] == [0.5, 0.0]
    assert bound_count(np.array([10.0, -2.0, 4.0, 4.0]), noise=1.0) == 20.0


def test_columns_are_suggested_and_batches_fit_in_memory() -> None:
    columns = {"age": ColumnType("number")}
    assert suggest_columns(columns, [], "Age") == "did you mean 'age'?"
    assert suggest_columns(columns, []) == "it has 'age'"
    assert [choose_batch_rows(count, lists=False) for count in (50, 784)] == [32768, 2674]
    assert choose_batch_rows(1, lists=True) == 8192


def test_numbers_are_counted() -> None:
    histogram = Histogram(np.array([0.0, 10.0]))
    histogram.add_numbers(np.array([-1.0, 0.0, 9.9, 10.0, np.inf]))
    assert histogram.counts.tolist() == [1, 2, 2]
    numbers, texts = split_numbers(Counter({"1.5": 2, "x": 3, "nan": 1}))
    assert (numbers.tolist(), texts) == ([1.5, 1.5], Counter({"x": 3, "nan": 1}))
    lists = pa.array([[1.0, -3.0], [], None, [2.0, float("nan")]])
    assert read_largest_numbers(lists).tolist() == [-3.0, 2.0]


def test_settings_are_resolved_for_a_target() -> None:
    digits = Classes("digit", tuple(range(10)))
    assert Settings(epsilon=1.0).choose_loss(digits) == (Multinomial(classes=10), 1)
    assert Settings(epsilon=1.0, loss="huber").choose_loss(digits) == (HuberSVM(width=0.1), 10)
    balanced = Settings(epsilon=1.0, class_weights="balanced").resolve_class_weights(SICK)
    assert balanced.class_weights == (0.25, 1.0)
    with pytest.raises(ParameterError, match="multiclass must be one of multinomial, one-vs-all, got 'both'"):
        Settings(epsilon=1.0, multiclass="both").check()  # type: ignore[arg-type]


def test_plans_and_candidates_follow_from_settings() -> None:
    schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    plan = make_plan(schema, 10_000, Settings(epsilon=1.0))
    assert (plan.certificate.private, plan.algorithm.name) == (True, "objective")
    assert len(plan.schema.columns[0].encoding_rule.thresholds) == 8
    assert choose_budget_share(Budget(1.0), features=50, rows=60_000) == 0.05
    grid: dict[str, list[float]] = {"passes": [5, 10], "regularization": [0.0, 0.01]}
    tried = candidates(Settings(epsilon=1.0), grid, inverse_radius=True)
    assert [(one.passes, one.radius) for one in tried] == [(5, None), (5, 100.0), (10, None), (10, 100.0)]


def test_datasets_must_have_names() -> None:
    with pytest.raises(ParameterError, match="dataset must be named by up to 200 printable characters, got ''"):
        entries.check_name("", "dataset")
