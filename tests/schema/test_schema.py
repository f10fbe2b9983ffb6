"""The schema says what is public, in one form in Python, JSON and TOML, and refuses what is not complete."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from boltdp.encoding.declared_values import Matcher, Value, list_texts
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import BudgetedEvent
from boltdp.privacy.events.noisy_counts import make_noisy_counts
from boltdp.schema.schema import Categorical, Classes, Column, Numeric, Projection, Schema, Vector, make_array_schema

EXAMPLE = """
label = "outcome"
classes = [0, 1]
intercept = true
clip_norm = 4.0
[numeric]
age = [0, 100]
"f{0..3}" = [-255, 255]
[categorical]
sex = ["F", "M"]
[vector]
embedding = { length = 64, bounds = [-1, 1] }
[projection]
dims = 50
seed = 17
"""


def test_toml_file_says_what_the_schema_is(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(EXAMPLE)
    columns: tuple[Column, ...] = (
        Numeric("age", 0, 100),
        *(Numeric(f"f{i}", -255, 255) for i in range(4)),
        Categorical("sex", ("F", "M")),
        Vector("embedding", 64, -1, 1),
    )
    expected = Schema(Classes("outcome", (0, 1)), columns, clip_norm=4.0, projection=Projection(50, 17))
    assert Schema.load(path) == expected
    assert expected.encoded_dims == 1 + 4 + 2 + 64 + 1
    assert expected.dims == 50
    assert expected.largest_norm == math.sqrt(1 + 4 + 1 + 64 + 1)
    assert expected.row_norm == 4.0


names = st.text(min_size=1, max_size=8).filter(lambda name: ".." not in name)
finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
values: st.SearchStrategy[Value] = st.one_of(
    st.text(max_size=5), st.integers(-(2**62), 2**62), finite.filter(lambda x: abs(x) < 1e18), st.booleans()
)


@st.composite
def distinct_values(draw: st.DrawFn, *, at_least: int) -> tuple[Value, ...]:
    drawn = draw(st.lists(values, min_size=at_least, max_size=4))
    try:
        Matcher.from_values(drawn)
    except ParameterError:
        assume(False)
    return tuple(drawn)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    used = draw(st.lists(names, min_size=2, max_size=6, unique=True))
    columns: list[Numeric | Categorical | Vector] = []
    for name in used[1:]:
        low, high = sorted(draw(st.tuples(finite, finite)))
        assume(low < high and math.isfinite(high - low))
        kind = draw(st.sampled_from(["numeric", "categorical", "vector"]))
        if kind == "numeric":
            inside = st.floats(low, high, exclude_min=True, exclude_max=True)
            places = draw(st.lists(inside, max_size=3, unique=True)) if math.nextafter(low, high) < high else []
            columns.append(Numeric(name, low, high, curve=tuple(sorted(places))))
        elif kind == "categorical":
            categories = draw(distinct_values(at_least=1))
            reference = draw(st.none() | st.sampled_from(categories)) if len(categories) > 1 else None
            columns.append(Categorical(name, categories, reference))
        else:
            columns.append(Vector(name, draw(st.integers(1, 5)), low, high))
    classes = draw(distinct_values(at_least=2))
    parts = draw(st.lists(st.integers(1, 100), min_size=len(classes), max_size=len(classes)))
    return Schema(
        Classes(used[0], classes, prior=draw(st.none() | st.just(tuple(part / sum(parts) for part in parts)))),
        tuple(columns),
        intercept=draw(st.booleans()),
        clip_norm=draw(st.none() | st.floats(1e-300, 1e300)),
        projection=draw(st.none() | st.builds(Projection, st.just(1), st.integers(0, 2**62))),
    )


@given(schemas())
def test_schema_survives_json_and_toml_exactly(schema: Schema) -> None:
    through_json = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    through_toml = Schema.from_toml(schema.to_toml())
    for copy in (through_json, through_toml):
        assert copy == schema
        assert copy.feature_names == schema.feature_names
        # 0 == False == 0.0 in Python; the types must survive too, but for a whole float in TOML.
        assert [isinstance(v, bool) for v in copy.classes] == [isinstance(v, bool) for v in schema.classes]


def test_save_and_load_round_trip(tmp_path: Path) -> None:
    schema = Schema.from_toml(EXAMPLE)
    schema.save(tmp_path / "copy.toml")
    assert Schema.load(tmp_path / "copy.toml") == schema


def test_columns_are_ordered_by_kind_whatever_the_declaration() -> None:
    mixed = (Vector("v", 2, 0, 1), Categorical("c", ("x",)), Numeric("b", 0, 1), Numeric("a", 0, 1))
    assert Schema(Classes("y", (0, 1)), mixed).feature_names == ("b", "a", "c=x", "v[0]", "v[1]", "intercept")


def test_a_reference_is_declared_beside_the_categories_and_has_no_feature() -> None:
    text = 'label = "y"\nclasses = [0, 1]\n\n[categorical]\nc = { categories = ["x", "y", "z"], reference = "y" }\n'
    schema = Schema.from_toml(text)
    assert schema.columns == (Categorical("c", ("x", "y", "z"), reference="y"),)
    assert schema.feature_names == ("c=x", "c=z", "intercept")
    assert schema.to_dict()["categorical"] == {"c": {"categories": ["x", "y", "z"], "reference": "y"}}
    assert Schema.from_dict(schema.to_dict()) == Schema.from_toml(schema.to_toml()) == schema


def test_a_reference_is_the_category_that_it_equals() -> None:
    equals: tuple[Any, ...] = (np.int64(2), 2.0)
    for reference in equals:
        column = Categorical("c", (1, 2), reference=reference)
        assert (type(column.reference), column.reference, column.feature_names) == (int, 2, ("c=1",))


def declared(**changes: object) -> dict[str, object]:
    return {"label": "y", "classes": [0, 1], "numeric": {"a": [0, 1]}} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": [1]}, r"^classes must be at least 2 values, got \[1\]$"),
        ({"classes": []}, r"^classes must be at least 2 values, got \[\]$"),
        ({"classes": "01"}, r"^classes must be a list, got '01'$"),
        ({"classes": [1, 1]}, r"^classes: the declared values must differ, got 1 more than once$"),
        ({"classes": [1, "1"]}, r"^classes: the declared values must differ, got '1' more than once$"),
        ({"classes": [True, 1]}, r"^classes: the declared values must differ, got 1 more than once$"),
        ({"classes": [0, None]}, r"^classes must be texts, numbers or booleans, got None$"),
        ({"classes": [0, math.nan]}, r"^classes must be numbers between -2\^63 and 2\^63, got nan$"),
        ({"label": ""}, r"^label must be a text that is not empty, got ''$"),
        ({"label": 3}, r"^label must be a text that is not empty, got 3$"),
        ({"label": "a"}, r"^the label must not be among the features, got 'a' in both$"),
        ({"numeric": {"a": []}}, r"^the bounds of 'a' must be \[low, high\], got \[\]$"),
        ({"numeric": {"a": 3}}, r"^the bounds of 'a' must be \[low, high\], got 3$"),
        ({"numeric": {"a": [1, 0]}}, r"^the bounds of 'a' must be finite with low < high, got \[1, 0\]$"),
        ({"numeric": {"a": [1, 1]}}, r"^the bounds of 'a' must be finite with low < high, got \[1, 1\]$"),
        ({"numeric": {"a": [0, math.inf]}}, r"^the bounds of 'a' must be finite with low < high, got \[0, inf\]$"),
        (
            {"numeric": {"a": [0, 5e-324]}},
            r"^the bounds of 'a' must be finite with low < high, got \[0, 4.94066e-324\]$",
        ),
        ({"numeric": {"a": [math.nan, 1]}}, r"^the bounds of 'a' must be finite with low < high, got \[nan, 1\]$"),
        ({"numeric": {"a": [-1e308, 1e308]}}, r"^the bounds of 'a' must be finite"),
        ({"numeric": {"a": ["0", 1]}}, r"^each bound of 'a' must be a number, got '0'$"),
        ({"numeric": {"a": [False, True]}}, r"^each bound of 'a' must be a number, got False$"),
        ({"numeric": {}}, r"^the schema must declare at least one feature column, got none$"),
        ({"numeric": [1]}, r"^numeric must be a table of columns, got \[1\]$"),
        ({"numeric": {"f{3..1}": [0, 1]}}, r"^a brace range must go upwards, got 'f\{3\.\.1\}'$"),
        ({"categorical": {"c": []}}, r"^the categories of 'c' must be a list of values, got \[\]$"),
        ({"categorical": {"c": "xy"}}, r"^the categories of 'c' must be a list, got 'xy'$"),
        ({"categorical": {"c": ["x", "x"]}}, r"^the categories of 'c': the declared values must differ"),
        ({"categorical": {"c": {"reference": "x"}}}, r"^the column 'c' must declare 'categories'$"),
        (
            {"categorical": {"c": {"categories": ["x", "y"], "base": "x"}}},
            r"^the column 'c' must declare only categories, reference, got 'base'$",
        ),
        ({"categorical": {"c": {"categories": "xy"}}}, r"^the categories of 'c' must be a list, got 'xy'$"),
        (
            {"categorical": {"c": {"categories": ["x", "y"], "reference": "z"}}},
            r"^the reference of 'c' must be one of its two or more categories, got 'z'$",
        ),
        (
            {"categorical": {"c": {"categories": ["x"], "reference": "x"}}},
            r"^the reference of 'c' must be one of its two or more categories, got 'x'$",
        ),
        (
            {"categorical": {"c": {"categories": [0, 1], "reference": True}}},
            r"^the reference of 'c' must be one of its two or more categories, got True$",
        ),
        (
            {"categorical": {"c": {"categories": [0, 1], "reference": [0]}}},
            r"^the reference of 'c' must be texts, numbers or booleans, got \[0\]$",
        ),
        ({"categorical": {"a": ["x"]}}, r"^each column must be declared once, got 'a' more than once$"),
        ({"vector": {"v": {"length": 0, "bounds": [0, 1]}}}, r"^the length of 'v' must be a whole number >= 1, got 0$"),
        ({"vector": {"v": {"length": 2}}}, r"^the vector 'v' must declare 'bounds'$"),
        ({"vector": {"v": [0, 1]}}, r"^the vector 'v' must be a table with length, bounds, got \[0, 1\]$"),
        ({"prior": 0.5}, r"^the prior must be a list, got 0\.5$"),
        ({"prior": [1.0]}, r"^the prior must have one share for each of the 2 classes, got 1$"),
        ({"prior": [0.5, "0.5"]}, r"^each share of the prior must be a number, got '0\.5'$"),
        ({"prior": [0.5, 0.4]}, r"^the shares of the prior must be above 0 and add up to 1, got \[0\.5, 0\.4\]$"),
        ({"prior": [0.5, 0.50001]}, r"^the shares of the prior must be above 0 and add up to 1, got"),
        ({"prior": [1.0, 0.0]}, r"^the shares of the prior must be above 0 and add up to 1, got \[1\.0, 0\.0\]$"),
        ({"prior": [math.nan, 0.5]}, r"^the shares of the prior must be above 0 and add up to 1, got"),
        ({"intercept": 1}, r"^intercept must be true or false, got 1$"),
        ({"clip_norm": 0}, r"^clip_norm must be a finite number > 0, got 0$"),
        ({"clip_norm": "4"}, r"^clip_norm must be a number, got '4'$"),
        ({"projection": {"dims": 3, "seed": 1}}, r"dims of the projection must be at most the 2 features .* got 3$"),
        ({"projection": {"dims": 1, "seed": -1}}, r"^the seed of the projection must be a whole number >= 0, got -1$"),
        ({"projection": {"dims": 1}}, r"^the projection must declare 'seed'$"),
        ({"weights": []}, r"^the schema must declare only label, classes, .* got 'weights'$"),
        ({"undecided": {"age": []}}, r"^the columns listed under \[undecided\] must each be declared"),
    ],
)
def test_faults_are_one_sentence_about_one_thing(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Schema.from_dict(declared(**changes))


def test_missing_key_is_named() -> None:
    with pytest.raises(ParameterError, match=r"^the schema must declare 'classes'$"):
        Schema.from_dict({"label": "y"})


def test_brace_range_cannot_be_a_column_name() -> None:
    with pytest.raises(ParameterError, match="must not contain a brace range"):
        Numeric("f{0..3}", 0, 1)


def test_brace_ranges_multiply_and_keep_leading_zeros() -> None:
    schema = Schema.from_dict(declared(numeric={"a{08..10}": [0, 1], "b{0..1}c{1..2}": [0, 1]}, intercept=False))
    assert schema.feature_names == ("a08", "a09", "a10", "b0c1", "b0c2", "b1c1", "b1c2")


@pytest.mark.parametrize("text", ["label = ", "label = 1\nlabel = 2"])
def test_text_that_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match=r"^the schema must be TOML: "):
        Schema.from_toml(text)


def test_schema_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="cannot be read: No such file"):
        Schema.load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"label = '\xe9'")
    with pytest.raises(ParameterError, match="cannot be read: it is not UTF-8 text"):
        Schema.load(tmp_path / "latin.toml")


def test_numpy_values_become_plain_ones() -> None:
    schema = make_array_schema(dims=2, classes=tuple(np.array([0, 1])), clip_norm=float(np.float32(2.0)))
    assert json.dumps(schema.to_dict())
    assert [type(value) for value in schema.classes] == [int, int]


@pytest.mark.parametrize("intercept", [False, True])
def test_array_schema_puts_the_longest_row_on_the_unit_sphere(intercept: bool) -> None:
    schema = make_array_schema(dims=2, classes=(0, 1), clip_norm=5.0, intercept=intercept)
    row = np.array([3.0, 4.0, *([5.0] if intercept else [])]) / 5.0 / schema.row_norm
    assert np.linalg.norm(row) == pytest.approx(1.0)


@given(values)
def test_texts_of_a_value_match_only_itself(value: Value) -> None:
    matcher = Matcher.from_values((value,))
    assert set(matcher.texts) == set(list_texts(value))
    if isinstance(value, bool):
        assert matcher.match_boolean(value) == 0
        assert matcher.match_boolean(not value) == -1
    if not isinstance(value, str):
        assert matcher.numbers[value] == 0


def test_a_category_of_very_many_digits_is_a_text() -> None:
    digits = "9" * 400
    assert Matcher.from_values((digits, "other")).numbers == {}
    assert Matcher.from_values((digits, "other")).texts[digits] == 0


def test_a_misspelt_table_is_told_what_it_may_be() -> None:
    with pytest.raises(ParameterError, match="must declare only") as caught:
        Schema.from_dict({"label": "y", "classes": [0, 1], "timestmp": {"at": ["hour"]}})
    assert caught.value.hint == "did you mean 'timestamp'?"


UNIT = {"label": "y", "classes": [0, 1], "numeric": {"age": [0, 100]}, "person_id": "patient", "max_rows_per_person": 2}


def test_a_unit_survives_the_disk_and_is_no_feature(tmp_path: Path) -> None:
    schema = Schema.from_dict(UNIT)
    assert (schema.person_id, schema.max_rows_per_person, schema.feature_names) == ("patient", 2, ("age", "intercept"))
    schema.save(tmp_path / "schema.toml")
    assert Schema.load(tmp_path / "schema.toml") == schema
    assert "person_id" not in schema.without_person_limit.to_dict()
    assert "max_rows_per_person" not in schema.without_person_limit.to_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_rows_per_person": None}, "must be declared together"),
        ({"person_id": None}, "must be declared together"),
        ({"max_rows_per_person": 0}, "max_rows_per_person must be a whole number >= 1"),
        ({"max_rows_per_person": 1.5}, "max_rows_per_person must be a whole number >= 1"),
        ({"max_rows_per_person": 10**9}, "person_rows must be at most"),
        ({"person_id": "y"}, "neither the label nor a feature"),
        ({"person_id": "age"}, "neither the label nor a feature"),
        ({"person_id": 7}, "person_id"),
    ],
    ids=str,
)
def test_a_unit_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    declared = {name: value for name, value in {**UNIT, **changes}.items() if value is not None}
    with pytest.raises(ParameterError, match=message):
        Schema.from_dict(declared)


def test_a_schema_inferred_from_private_rows_has_no_person_id() -> None:
    spent = BudgetedEvent(Budget(0.5), make_noisy_counts(Budget(0.5), releases=1))
    with pytest.raises(ParameterError, match="must not be inferred from private rows"):
        replace(Schema.from_dict(UNIT), spent=spent)


def test_one_feature_too_many_is_refused_with_the_intercept_named() -> None:
    categories = Categorical("postcode", tuple(range(100_000)))
    assert Schema(Classes("y", (0, 1)), (categories,), intercept=False).dims == 100_000
    with pytest.raises(ParameterError, match=r"at most 100,000, got 100001 with the intercept$") as caught:
        Schema(Classes("y", (0, 1)), (categories,))
    assert "intercept = false" in str(caught.value.hint)
