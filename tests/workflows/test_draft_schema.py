"""A draft from private rows: what it finds, what it never tells, and that every model of it pays for it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from boltdp.engines import open_source
from boltdp.engines.base import Engine
from boltdp.errors import DataError, ParameterError
from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import fits_budget, verify
from boltdp.privacy.events.noisy_counts import make_noisy_counts
from boltdp.privacy.exact_noise import make_seeded_bytes
from boltdp.privacy.release_with_noise import Randomness
from boltdp.run_context import Context
from boltdp.schema import noisy_summary
from boltdp.schema.noisy_summary import PrivateCounts
from boltdp.schema.schema import Categorical, Numeric, Schema, Vector
from boltdp.schema.source_columns import ColumnType, Kind
from boltdp.schema.summary import count_values
from boltdp.settings import Settings
from boltdp.workflows.compare import compare
from boltdp.workflows.draft_schema import SEEDED_DRAFT, draft_private_schema, plan_private_draft
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune

ROWS = 20_000
BUDGET = Budget(2.0, 1e-6)
SECRET = "Zaphod-4711"


def table(**more: Any) -> pa.Table:
    generator = np.random.default_rng(3)
    age = generator.integers(18, 91, ROWS)
    ward = generator.choice(["surgery", "children", "eyes"], ROWS).astype(object)
    ward[7] = SECRET
    given = {
        "age": age,
        "year": generator.integers(1990, 2021, ROWS),
        "paid": generator.lognormal(6, 1, ROWS),
        "flag": generator.integers(0, 2, ROWS),
        "ward": ward,
        "name": [f"{SECRET} {i}" for i in range(ROWS)],
        "sick": np.where(age > 60, "yes", "no"),
    }
    return pa.table(given | more)


def drafted(rows: Any, budget: Budget = BUDGET, label: str = "sick", context: Context | None = None) -> Schema:
    return Schema.from_toml(draft_private_schema(open_source(rows), label, budget, context=context))


@pytest.fixture(scope="module")
def schema() -> Schema:
    return drafted(table().drop_columns(["name"]))


def test_bounds_hold_most_numbers_and_are_not_much_wider() -> None:
    # By chance a bound is farther off in one of a hundred drafts.
    schema = drafted(table().drop_columns(["name"]), context=Context(randomness=Randomness(1)))
    found = {column.name: column for column in schema.columns if isinstance(column, Numeric)}
    for name, low, high in (("age", 18, 90), ("year", 1990, 2020), ("flag", 0, 1), ("paid", 20, 4000)):
        column = found[name]
        assert abs(column.low - low) <= 0.2 * (high - low), column
        assert abs(column.high - high) <= 0.5 * (high - low), column
        cells = table()[name].to_numpy()
        assert ((cells >= column.low - 2) & (cells <= column.high + 2)).mean() > 0.97


def test_frequent_values_are_categories_and_classes_and_rare_ones_are_not_told(schema: Schema) -> None:
    assert Categorical("ward", ("children", "eyes", "surgery")) in schema.columns
    assert schema.classes == ("no", "yes")


def test_a_column_of_names_is_left_out_in_a_comment() -> None:
    text = draft_private_schema(open_source(table()), "sick", BUDGET)
    assert "# name = []  # nothing stood out of the noise" in text
    assert SECRET not in text
    assert "name" not in [column.name for column in Schema.from_toml(text).columns]


def test_columns_of_csv_are_numbers_or_texts_by_what_most_cells_are(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    mixed = np.where(np.arange(ROWS) % 5 == 0, "n/a", (np.arange(ROWS) % 41).astype(str))
    pd.DataFrame(table(mixed=mixed).to_pydict()).drop(columns="name").to_csv(path, index=False)
    schema = drafted(path)
    assert {column.name: type(column) for column in schema.columns} == {
        "age": Numeric, "year": Numeric, "paid": Numeric, "flag": Numeric, "mixed": Numeric, "ward": Categorical,
    }  # fmt: skip
    pure = draft_private_schema(open_source(path), "sick", Budget(2.0))
    told = (
        "no numbers stood out of the noise, and its values can be released only with a delta; timestamps are declared"
    )
    assert f"# ward = []  # {told} under [timestamp]" in pure
    assert "\nage = [" in pure


def test_without_a_delta_values_are_not_looked_at_and_numbers_are() -> None:
    text = draft_private_schema(open_source(table()), "sick", Budget(1.0))
    assert "classes = []  # its values can be released only with a delta;" in text
    assert "# ward = []  # its values can be released only with a delta" in text
    filled = Schema.from_toml(text.replace("classes = []", 'classes = ["no", "yes"]'))
    assert [column.name for column in filled.columns] == ["age", "year", "paid", "flag"]
    assert filled.spent is not None
    assert filled.spent.budget == Budget(1.0)


def test_the_part_between_bounds_is_not_overstated_where_noise_hides_the_tails() -> None:
    generator = np.random.default_rng(5)
    cells = {
        "normal": generator.normal(0, 1, ROWS),
        "long": generator.exponential(1, ROWS),
        "paid": generator.lognormal(6, 1, ROWS),
        "far": generator.standard_cauchy(ROWS),
        **{f"filler{i}": generator.integers(0, 50, ROWS) for i in range(4)},
    }
    rows = open_source(pa.table(cells | {"sick": np.arange(ROWS) % 2 == 0}))
    for seed, epsilon in enumerate((0.2, 0.2, 0.5, 5.0)):
        text = draft_private_schema(rows, "sick", Budget(epsilon), context=Context(randomness=Randomness(seed)))
        for column in Schema.from_toml(text).columns:
            assert isinstance(column, Numeric)
            (claimed,) = re.findall(rf"^{column.name} = .*# at least about (\d+) % of the numbers$", text, re.M)
            inside = (cells[column.name] >= column.low) & (cells[column.name] <= column.high)
            assert 100 * inside.mean() >= int(claimed), text
            assert epsilon < 5 or int(claimed) >= 90, text


def test_rare_ones_among_zeros_do_not_make_bounds_of_nothing() -> None:
    generator = np.random.default_rng(6)
    rare = {str(share): (generator.random(ROWS) < share).astype(int) for share in (0.0, 0.001, 0.005, 0.02, 0.1)}
    rows = open_source(pa.table(rare | {"sevens": np.full(ROWS, 7.0), "sick": np.arange(ROWS) % 2 == 0}))
    for seed, epsilon in enumerate((0.2, 1.0, 5.0)):
        text = draft_private_schema(rows, "sick", Budget(epsilon), context=Context(randomness=Randomness(seed)))
        *flags, sevens = Schema.from_toml(text).columns
        for column in flags:
            assert isinstance(column, Numeric)
            assert column.low == 0, text
            assert 1 <= column.high <= 1.2, text
        assert sevens.encoding_rule.bounds == (6, 8)
        assert '"0.0" = [0, 1]  # a guess: nearly all are 0, and noise hides the others' in text


def test_lists_have_bounds_on_both_sides_of_zero() -> None:
    generator = np.random.default_rng(4)
    scan = pa.FixedSizeListArray.from_arrays(pa.array(generator.uniform(-1, 3, 2 * ROWS)), 2)
    vector = drafted(table(scan=scan).select(["scan", "sick"])).columns[0]
    assert isinstance(vector, Vector)
    assert (vector.length, vector.low) == (2, -vector.high)
    assert 2.5 <= vector.high <= 3.5


def test_huge_and_missing_numbers_bring_no_warning_and_no_error() -> None:
    odd = np.resize([1e308, 0.001, -1e308, np.nan, np.inf], ROWS)
    column = drafted(table(odd=odd).select(["odd", "sick"])).columns[0]
    assert isinstance(column, Numeric)
    assert (column.low, column.high) == (-8e14, 8e14)


def test_what_is_declared_by_types_is_not_looked_at_and_costs_nothing() -> None:
    columns = {
        "id": ColumnType("number", key=True),
        "age": ColumnType("number", bounds=(0.0, 120.0)),
        "sex": ColumnType("text", values=("F", "M")),
        "born": ColumnType("other"),
        "member": ColumnType("bool"),
        "paid": ColumnType("number"),
        "sick": ColumnType("text", values=("no", "yes")),
    }
    plan = plan_private_draft(columns, "sick", BUDGET)
    assert [*plan.counted] == ["paid"]
    assert (plan.event.releases, plan.event.unknown) == (2, 0)
    del columns["paid"]
    with pytest.raises(ParameterError, match="nothing to find"):
        plan_private_draft(columns, "sick", BUDGET)


@pytest.mark.parametrize("kinds", [("number",), ("text",), ("untyped",), ("number", "text", "untyped", "list", "text")])
@pytest.mark.parametrize("budget", [Budget(0.7, 1e-8), Budget(3.0, 0.01)])
def test_the_tree_keeps_the_budget_whatever_the_columns_are(kinds: tuple[Kind, ...], budget: Budget) -> None:
    columns = {f"x{i}": ColumnType(kind) for i, kind in enumerate(kinds)} | {"y": ColumnType("untyped")}
    plan = plan_private_draft(columns, "y", budget)
    assert fits_budget(plan.event, plan.budget)
    assert not fits_budget(plan.event, Budget(0.75 * budget.epsilon, budget.delta))


class Watched(Engine):
    """An engine that must not be asked for rows."""

    def count(self) -> int:
        return 100

    def columns(self) -> dict[str, ColumnType]:
        return {"age": ColumnType("number"), "sick": ColumnType("bool"), "on": ColumnType("other")}

    def batches(
        self, columns: Sequence[str], keep: Sequence[str] = (), *, parse: Mapping[str, Kind] | None = None
    ) -> Iterator[pa.RecordBatch]:
        del columns, keep, parse
        raise AssertionError("a row was read")


def test_faults_are_told_before_a_row_is_read() -> None:
    with pytest.raises(ParameterError, match=r"epsilon = 0.1, divided among 1 columns, must be more for 100 rows"):
        draft_private_schema(Watched(), "sick", Budget(0.1))
    with pytest.raises(DataError, match="the column 'well' for the label"):
        draft_private_schema(Watched(), "well", Budget(1.0))
    with pytest.raises(DataError, match="column 'on' must have texts"):
        draft_private_schema(Watched(), "on", Budget(1.0))


def test_a_seeded_draft_is_not_private_nor_is_its_model() -> None:
    rows = open_source(table())
    text = draft_private_schema(rows, "sick", BUDGET, context=Context(randomness=Randomness(1)))
    schema = Schema.from_toml(text)
    assert schema.spent is not None
    assert schema.spent.event.non_private_reasons == (SEEDED_DRAFT,)


# ---- what a model pays ------------------------------------------------------------------------------------------


def test_a_model_claims_what_its_schema_and_its_training_spend(schema: Schema, tmp_path: Path) -> None:
    model = train(open_source(table()), schema, Settings(epsilon=3.0, delta=1e-5))
    certificate = model.certificate
    assert certificate.private
    assert (certificate.budget, certificate.draft) == (Budget(3.0, 1e-5), schema.spent)
    assert certificate.moments is not None
    model.save(tmp_path / "model.json")
    loaded = Model.load(tmp_path / "model.json")
    loaded.verify()
    assert loaded.schema == model.schema
    # Less than the whole is not kept: the training alone has spent the rest.
    assert not fits_budget(certificate.spent, Budget(2.9, 1e-5))


def test_a_column_whose_narrow_counts_drown_in_noise_keeps_its_wide_range(monkeypatch: pytest.MonkeyPatch) -> None:
    event = make_noisy_counts(Budget(1.0), releases=2)
    column = PrivateCounts("numbers", "number", event)
    column._set_released_range(0.0, 100.0)
    column.start_narrow_intervals(0.0, 100.0)
    assert column.narrow is not None
    # Only the sum of all counts is above the noise, so that the tails of both ends meet.
    intervals = len(column.narrow.counts)
    least = noisy_summary.MAX_TAIL_DEVIATIONS * event.noise.deviation / math.sqrt(intervals)
    monkeypatch.setattr(noisy_summary, "release_counts", lambda *_: [1.001 * least] * intervals)
    summary = column.summarize(make_seeded_bytes(1))
    assert (summary.low, summary.high) == (0.0, 100.0)


def test_a_model_that_hides_its_draft_is_refused(schema: Schema) -> None:
    model = train(open_source(table()), schema, Settings(epsilon=3.0, delta=1e-5))
    plain = replace(schema, spent=None)
    other = train(open_source(table()), plain, Settings(epsilon=1.0))
    for schema_of, certificate in ((replace(model.schema, spent=None), model.certificate),
                                   (replace(other.schema, spent=schema.spent), other.certificate)):  # fmt: skip
        with pytest.raises(ParameterError, match="the certificate must have what the schema has spent"):
            Model(schema_of, model.weights if certificate is model.certificate else other.weights, certificate)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(epsilon=2.0, delta=1e-5), "epsilon must be more than the 2 that finding the schema has spent, got 2"),
        (Settings(epsilon=3.0), "delta must be at least the 1e-06 that finding the schema has spent, got 0"),
    ],
)
def test_less_than_the_draft_has_spent_is_refused(schema: Schema, settings: Settings, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        train(open_source(table()), schema, settings)


def test_a_schema_that_claims_to_have_spent_less_is_refused(schema: Schema) -> None:
    record = json.loads(json.dumps(schema.to_dict()))
    record["spent"]["budget"]["epsilon"] = 0.1
    with pytest.raises(ParameterError, match="must have spent no more than its"):
        train(open_source(table()), Schema.from_dict(record), Settings(epsilon=3.0, delta=1e-5))


@pytest.mark.parametrize("spent", [{}, {"budget": {"epsilon": 1.0, "delta": 0.0}}, 3, {"budget": None, "event": 3}])
def test_a_table_of_what_was_spent_that_is_none_is_refused(schema: Schema, spent: Any) -> None:
    with pytest.raises(ParameterError, match=r"the schema has \[spent\]"):
        Schema.from_dict({**schema.to_dict(), "spent": spent})


def test_tuning_and_noiseless_training_state_it_too(schema: Schema) -> None:
    engine = open_source(table())
    tuned = tune(engine, schema, expand_grid(Settings(epsilon=4.0, delta=1e-5), {"regularization": [0.001, 0.01]}))
    assert tuned.certificate.private
    assert tuned.certificate.draft == schema.spent
    verify(tuned.certificate)
    quiet = train(engine, schema, Settings(epsilon=None))
    assert not quiet.certificate.private
    assert quiet.certificate.draft == schema.spent


def test_comparing_on_rows_that_may_be_looked_at_leaves_it_out(schema: Schema) -> None:
    made = compare(open_source(table()), schema, Settings(epsilon=None), names=["objective"], epsilons=[0.5], repeats=1)
    assert len(made.runs) == 1


def test_a_text_that_cannot_be_decoded_is_counted_as_none() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    )
    assert count_values(broken) == {"a": 1}
