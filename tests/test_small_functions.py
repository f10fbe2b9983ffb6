"""What small functions return, by an example of each."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import replace
from datetime import date
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from boltdp.audit.neighbouring_tables import reduce_schema
from boltdp.audit.statistical_tests import (
    compute_exact_delta,
    compute_normal_cdf,
    find_largest_epsilon,
    make_gamma_cdf,
    rejects_distribution,
    rejects_isotropic,
)
from boltdp.encoding.arrow_buffers import locate_values, mask_missing, to_arrow_array, view_values
from boltdp.encoding.arrow_cells import Coder, concatenate_lists
from boltdp.encoding.python_to_arrow import parse_numbers, to_identifier, to_matrix, to_person_key, to_person_keys
from boltdp.engines import use_source
from boltdp.errors import (
    ParameterError,
    describe_argument,
    list_names,
    make_printable,
    quote_names,
    show_hints,
    show_value,
    suggest_names,
)
from boltdp.estimators.callers import find_transformer_name
from boltdp.export.postgres_models import quote_literal
from boltdp.ledger import entries
from boltdp.losses import HuberSVM, MulticlassHuber, Multinomial
from boltdp.privacy.budget import Budget
from boltdp.privacy.mechanisms import Mechanism
from boltdp.schema.check import find_similar
from boltdp.schema.columns import Categorical, Numeric, Vector, expand_range
from boltdp.schema.curves import compute_step_thresholds
from boltdp.schema.from_arguments import declare_schema
from boltdp.schema.infer import derive_schema
from boltdp.schema.noisy_summary import bound_count, choose_interval_width, compute_bound_offset, trim_tails
from boltdp.schema.schema import Schema, make_array_schema
from boltdp.schema.source_columns import ColumnType, OpenColumns, choose_batch_rows, suggest_columns
from boltdp.schema.summary import Histogram, read_largest_numbers, split_numbers
from boltdp.schema.target import Classes
from boltdp.settings import Settings
from boltdp.workflows.draft_schema import draft_schema
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.standardize import choose_budget_share
from boltdp.workflows.tune import expand_grid

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
    schema, unused = declare_schema(
        columns | {"sick": ColumnType("bool")}, Classes, "sick", {}, bounds={"age": (0, 110)}
    )
    assert (schema.feature_names, schema.classes, unused) == (("age", "smokes", "intercept"), (False, True), ("name",))
    typed = {"sick": ColumnType("bool"), "age": ColumnType("number", bounds=(0.0, 120.0))}
    assert derive_schema(typed, "sick").columns == (Numeric("age", 0.0, 120.0),)
    assert make_array_schema(dims=3, classes=(0, 1), clip_norm=2.0).columns == (Vector("x", 3, -2.0, 2.0),)
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
    assert Settings(epsilon=1.0, loss="huber").choose_loss(digits) == (MulticlassHuber(10, width=0.1), 1)
    each = Settings(epsilon=1.0, loss="huber", multiclass="one-vs-all")
    assert each.choose_loss(digits) == (HuberSVM(width=0.1), 10)
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
    tried = expand_grid(Settings(epsilon=1.0), grid, inverse_radius=True)
    assert [(one.passes, one.radius) for one in tried] == [(5, None), (5, 100.0), (10, None), (10, 100.0)]


def test_datasets_must_have_names() -> None:
    with pytest.raises(ParameterError, match="dataset must be named by up to 200 printable characters, got ''"):
        entries.check_name("", "dataset")


def test_messages_show_public_values_and_no_rows() -> None:
    shown = show_value([1, "a"]), len(show_value("a" * 999)), show_value(10**9999)
    assert shown == ("[1, 'a']", 80, "a number of thousands of digits")
    assert make_printable("a\x1b[2J\u202eb") == r"a\x1b[2J\u202eb"
    assert make_printable("a" * 99, longest=9) == "aaaaa ..."
    assert describe_argument(110) == "110"
    assert [describe_argument(rows) for rows in ([1, 0], {"a": 1})] == [
        "an object of type 'list'",
        "an object of type 'dict'",
    ]


def test_messages_name_what_is_close_or_known() -> None:
    assert quote_names(["b", "a"]) == "'b', 'a'"
    assert suggest_names("Age", ["age", "sex"]) == "did you mean 'age'?"
    assert suggest_names("weight", ["age", "sex"]) is None
    assert list_names(["b", "a"]) == "a, b"
    assert list_names(map(str, range(14))) == "0, 1, 10, 11, 12, 13, 2, 3, 4, 5, 6, 7 and 2 more"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no notes")
def test_tracebacks_show_hints() -> None:
    with pytest.raises(ParameterError) as caught, show_hints():
        raise ParameterError("epsilon must be > 0, got 0", hint="epsilon=1 is a usual one")
    assert caught.value.__notes__ == ["hint: epsilon=1 is a usual one"]


def test_arrow_buffers_are_viewed_from_their_offset() -> None:
    numbers = pa.array([7, 8, 9], pa.int16()).slice(1)
    assert view_values(numbers).tolist() == [8, 9]
    assert view_values(pa.array([False, True, True]).slice(1)).tolist() == [True, True]
    located = locate_values(numbers)
    assert located is not None
    assert located.offset == 1
    assert locate_values(pa.nulls(1)) is None
    gaps = mask_missing(pa.array([1, None, 3]))
    assert gaps is not None
    assert gaps.tolist() == [False, True, False]
    assert mask_missing(pa.array([1, None, 3]).slice(2)) is None
    for cells in ([0.5, 1.0], [True, False], ["no", "yes"]):
        assert to_arrow_array(np.array(cells)).to_pylist() == cells


def test_cells_become_numbers_and_codes() -> None:
    lists = concatenate_lists(pa.array([[1.0, 2.0], [3.0]]), 2)
    np.testing.assert_array_equal(lists, np.array([1.0, 2.0, np.nan, np.nan]))
    assert Coder(("no", "yes")).find_codes(pa.array(["yes", "Yes", None])).tolist() == [1, -1, -1]
    assert parse_numbers(pa.array(["1.5", "x", None, "1.5"])).to_pylist() == [1.5, None, None, 1.5]
    matrix = to_matrix([[1, 2], [3, "x"], [4]], width=2)
    np.testing.assert_array_equal(matrix, np.array([[1.0, 2.0], [3.0, np.nan], [np.nan, np.nan]]))


def test_identifiers_are_texts() -> None:
    assert to_person_key("01") == "01"
    assert to_person_keys(pa.array(["1.0", "x", None, "1"])).to_pylist() == ["1", "x", None, "1"]
    cells = ("F", 7, Decimal("0.10"), UUID(int=7), date(2024, 2, 29), b"id")
    uuid = "00000000-0000-0000-0000-000000000007"
    assert [to_identifier(cell) for cell in cells] == ["F", "7", "0.10", uuid, "2024-02-29", "6964"]


def test_an_audit_computes_and_rejects() -> None:
    assert compute_exact_delta(Mechanism("gaussian", 1.0, 3), 1.0, distance=1.0) == pytest.approx(0.126937, abs=1e-6)
    assert compute_exact_delta(Mechanism("spherical", 1.0, 3), 1.0, distance=0.5) == 0.0
    largest = find_largest_epsilon(lambda epsilon: math.exp(-epsilon), delta=0.25, most=8.0)
    assert largest == pytest.approx(math.log(4.0), abs=1e-6)
    assert make_gamma_cdf(1)(np.array([math.log(2.0)])).tolist() == [0.5]
    normals = np.random.default_rng(1).standard_normal((1000, 2))
    columns = normals[:, 0], normals[:, 0] / 2
    assert [rejects_distribution(one, compute_normal_cdf, mistake=1e-3) for one in columns] == [False, True]
    tables = normals, np.abs(normals)
    assert [rejects_isotropic(one, kind="gaussian", mistake=1e-3) for one in tables] == [False, True]


def test_an_audited_schema_keeps_every_kind_of_column() -> None:
    columns = Vector("scan", 5000, 0, 1), Numeric("age", 0, 100), Categorical("town", tuple(range(800)))
    reduced = reduce_schema(Schema(Classes("y", (0, 1)), columns), 101)
    assert [column.encoding_rule.feature_count for column in reduced.columns] == [1, 49, 50]
    assert reduce_schema(Schema(Classes("y", (0, 1)), columns, pairs=(("age", "town"),)), 101).pairs == ()
    few = Numeric("age", 0, 100), Categorical("town", (1, 2)), Categorical("sex", ("F", "M"))
    several = Schema(Classes("y", (0, 1)), few, pairs=(("town", "sex"), ("age", "town"), ("age", "sex")))
    assert several.dims == 5 + 4 + 2 + 2 + 1
    assert reduce_schema(several, 13) == replace(several, pairs=(("town", "sex"), ("age", "town")))
    assert reduce_schema(several, 9) == replace(several, pairs=(("age", "town"),))
    assert reduce_schema(several, 14) == several


def test_names_of_transformers_are_found() -> None:
    assert find_transformer_name(["age", "onehotencoder__sex_F"]) == "onehotencoder__sex_F"
    assert find_transformer_name(["num__age", "cat__sex_F"]) == "num__age"
    assert find_transformer_name(["age", "pca", "remainder", "first__name"]) is None


def test_sql_literals_are_printable() -> None:
    quoted = [quote_literal(text) for text in ("it's", "a\\b", "x\n\u202ey")]
    assert quoted == ["'it''s'", r"E'a\\b'", r"E'x\u000A\u202Ey'"]


def test_open_columns_have_every_name() -> None:
    columns = OpenColumns()
    assert "age" in columns
    assert [*columns] == []
    assert columns["age"].kind == "untyped"
