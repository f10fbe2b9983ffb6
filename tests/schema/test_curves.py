"""Curves: steps at public places, which follow from bounds alone."""

from __future__ import annotations

import doctest
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from boltdp.encoding.encode import Encoder
from boltdp.errors import ParameterError
from boltdp.schema.curves import BASE, MAX_PLACES, Spacing, add_curves, compute_step_thresholds
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema, Standardization, Vector

COUNTS = st.integers(1, MAX_PLACES)


def declared(column: Any, **changes: Any) -> Schema:
    return Schema.from_dict({"label": "y", "classes": [0, 1], "numeric": {"a": column}, **changes})


def curve(schema: Schema) -> tuple[float, ...]:
    (column,) = schema.columns
    assert isinstance(column, Numeric)
    return column.curve


def cells_of(schema: Schema, cells: pa.Array) -> Any:
    return Encoder(schema.encoding).encode(pa.RecordBatch.from_pydict({"a": cells}))[:, 1:]


def features(schema: Schema, cells: pa.Array) -> Any:
    """What the cells are read as."""
    feature_map = schema.encoding.feature_map
    assert feature_map is not None
    return feature_map.compute_features(Encoder(schema.encoding).encode(pa.RecordBatch.from_pydict({"a": cells})))[
        :, 1:
    ]


# ---- places -----------------------------------------------------------------------------------------------------


@given(COUNTS, st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_even_places_are_as_far_from_each_other(count: int, low: float, width: float) -> None:
    column = Numeric("a", low, low + width)
    places = compute_step_thresholds(column, count)
    ends = [column.low, *places, column.high]
    assert len(places) == count
    gaps = [after - before for before, after in pairwise(ends)]
    # To three digits of the distance from the lower bound.
    np.testing.assert_allclose(gaps, (column.high - column.low) / (count + 1), atol=1e-9 + 0.011 * width)


@given(COUNTS, st.floats(0, 1e3), st.floats(1e-3, 1e9))
def test_log_places_are_geometric_from_the_lower_bound(count: int, low: float, width: float) -> None:
    column = Numeric("a", low, low + width)
    ends = np.array([column.low, *compute_step_thresholds(column, count, "log"), column.high])
    # Shifted so, neighbours differ by one factor.
    ratios = (ends - column.low) / (column.high - column.low) * (BASE - 1) + 1
    np.testing.assert_allclose(ratios[1:] / ratios[:-1], BASE ** (1 / (count + 1)), rtol=0.011)


@given(COUNTS, st.floats(1e-3, 1e9))
def test_log_places_of_symmetric_bounds_are_symmetric(count: int, high: float) -> None:
    places = compute_step_thresholds(Numeric("a", -high, high), count, "log")
    assert [-place for place in reversed(places)] == list(places)
    assert (0.0 in places) == (count % 2 == 1)
    above = [place for place in places if place > 0]
    assert all(a < b for a, b in pairwise([0.0, *above, high]))
    # The farther from 0, the farther from each other.
    assert all(b - a < c - b for a, b, c in zip(above, above[1:], [*above[2:], high], strict=False))


@pytest.mark.parametrize("spacing", ["even", "log"])
@given(count=COUNTS)
def test_places_that_are_counted_may_be_declared(spacing: Spacing, count: int) -> None:
    for low, high in ((0, 110), (0, 1e-12), (3, 1e15), (-7.5, 7.5)):
        column = Numeric("a", low, high)
        assert len(replace(column, curve=compute_step_thresholds(column, count, spacing)).feature_names) == 1 + count


# ---- the schema -------------------------------------------------------------------------------------------------


def test_toml_declares_curves_by_number_by_place_and_by_spacing() -> None:
    schema = Schema.from_toml(
        'label = "y"\nclasses = [0, 1]\nintercept = false\n[numeric]\nage = { bounds = [0, 110], curve = [18, 25.5] }\n'
        '"f{0..1}" = { bounds = [0, 4], curve = 3 }\npay = { bounds = [0, 999], curve = 2, spacing = "log" }\n'
        "none = { bounds = [0, 1] }\nold = [0, 1]\n"
    )
    age, first, second, pay, none, old = schema.columns
    assert age == Numeric("age", 0, 110, curve=(18, 25.5))
    assert (first, second) == (Numeric("f0", 0, 4, (1, 2, 3)), Numeric("f1", 0, 4, (1, 2, 3)))
    assert pay.feature_names == ("pay", "pay>=9", "pay>=99")
    assert (none, old) == (Numeric("none", 0, 1), Numeric("old", 0, 1))
    assert schema.feature_names[:7] == ("age", "age>=18", "age>=25.5", "f0", "f0>=1", "f0>=2", "f0>=3")
    assert schema.largest_norm == math.sqrt(6 + (2 + 3 + 3 + 2) / 16)
    assert schema.numeric_feature_count == 6
    for copy in (Schema.from_toml(schema.to_toml()), Schema.from_dict(json.loads(json.dumps(schema.to_dict())))):
        assert copy == schema
    assert schema.to_dict()["numeric"]["age"] == {"bounds": [0.0, 110.0], "curve": [18.0, 25.5]}
    assert schema.to_dict()["numeric"]["none"] == [0.0, 1.0]


@given(st.lists(st.floats(-1, 1, exclude_min=True, exclude_max=True), max_size=MAX_PLACES, unique=True))
def test_places_survive_json_and_toml_to_the_bit(places: list[float]) -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", -1, 1, curve=tuple(sorted(places))),))
    for copy in (Schema.from_toml(schema.to_toml()), Schema.from_dict(json.loads(json.dumps(schema.to_dict())))):
        assert [place.hex() for place in curve(copy)] == [place.hex() for place in curve(schema)]
        assert len(set(copy.feature_names)) == len(places) + 2


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"curve": 3}, r"^the column 'a' must declare 'bounds'$"),
        (
            {"bounds": [0, 9], "places": 3},
            r"^the column 'a' must declare only bounds, curve, spacing, curve_source, monotone, got 'places'$",
        ),
        ({"bounds": [0], "curve": 3}, r"^the bounds of 'a' must be \[low, high\], got \[0\]$"),
        ({"bounds": [0, 9], "curve": 0}, r"^the curve of 'a' must be a whole number >= 1, got 0$"),
        ({"bounds": [0, 9], "curve": True}, r"^the curve of 'a' must be a whole number >= 1, got True$"),
        ({"bounds": [0, 9], "curve": "even"}, r"^the curve of 'a' must be a whole number >= 1, got 'even'$"),
        ({"bounds": [0, 9], "curve": 65}, r"^the curve of 'a' must have at most 64 places, got 65$"),
        ({"bounds": [0, 99], "curve": [*range(1, 66)]}, r"^the curve of 'a' must be at most 64 values, got 65$"),
        ({"bounds": [0, 9], "curve": [1, "2"]}, r"^each place of the curve of 'a' must be a number, got '2'$"),
        ({"bounds": [0, 9], "curve": [2, 1]}, r"^the curve of 'a' must have increasing places between .* \[2, 1\]$"),
        ({"bounds": [0, 9], "curve": [1, 1]}, r"^the curve of 'a' must have increasing places"),
        ({"bounds": [0, 9], "curve": [0, 1]}, r"^the curve of 'a' must have increasing places"),
        ({"bounds": [0, 9], "curve": [1, 9]}, r"^the curve of 'a' must have increasing places"),
        ({"bounds": [0, 9], "curve": [1, math.nan]}, r"^the curve of 'a' must have increasing places"),
        ({"bounds": [1, math.nextafter(1, 2)], "curve": 1}, r"^the curve of 'a' must have increasing places"),
        (
            {"bounds": [0, 9], "curve": 2, "spacing": "odd"},
            r"^the spacing of the curve of 'a' must be one of even, log",
        ),
        ({"bounds": [0, 9], "curve": 2, "spacing": []}, r"^the spacing of the curve of 'a' must be one of even, log"),
        ({"bounds": [0, 9], "curve": [1], "spacing": "log"}, r"^the column 'a' must declare a number of places"),
        ({"bounds": [0, 9], "spacing": "log"}, r"^the column 'a' must declare a number of places"),
        (
            {"bounds": [-1, 9], "curve": 2, "spacing": "log"},
            r"^the spacing of the curve of 'a' must be even unless .* 9\]",
        ),
    ],
)
def test_faults_of_a_curve_are_told(column: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        declared(column)


def test_a_curve_in_python_is_of_places() -> None:
    with pytest.raises(ParameterError, match=r"^the curve of 'a' must be a list of places, got 8$"):
        Numeric("a", 0, 1, curve=8)  # type: ignore[arg-type]
    assert Numeric("a", -1, 1, curve=(-0.0,)).feature_names == ("a", "a>=0")
    assert Numeric("a", 0, 1e300, curve=(0.1, 1e299)).feature_names == ("a", "a>=0.1", "a>=1e+299")


def test_many_columns_with_curves_are_refused_before_they_are_made() -> None:
    with pytest.raises(ParameterError, match=r"^the features must be at most 100,000, got 100035$"):
        Schema.from_dict({"label": "y", "classes": [0, 1], "numeric": {"f{1..99999}": {"bounds": [0, 1], "curve": 64}}})


# ---- features ---------------------------------------------------------------------------------------------------


def test_a_number_is_followed_by_its_steps() -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 0, 100, curve=(18, 65)),), intercept=False, clip_norm=1.0)
    cells = pa.array([17.999, 18, 64, 65, -math.inf, math.inf, math.nan, None, 100])
    assert cells_of(schema, cells).shape == (len(cells), 1)
    steps = [[-1, -1], [1, -1], [1, -1], [1, 1], [-1, -1], [1, 1], [0, 0], [0, 0], [1, 1]]
    assert (4 * features(schema, cells)[:, 1:]).tolist() == steps
    without = replace(schema, columns=(Numeric("a", 0, 100),))
    np.testing.assert_array_equal(features(schema, cells)[:, :1], features(without, cells))
    np.testing.assert_array_equal(cells_of(schema, cells), cells_of(without, cells))


def test_steps_of_a_missing_number_are_0_after_centring() -> None:
    made = Standardization((0.2, 0.125, -0.125), (0.5, 2.0, 0.25), clip_norm=4.0)
    schema = Schema(
        Classes("y", (0, 1)), (Numeric("a", 0, 100, curve=(18, 65)),), intercept=False, standardization=made
    )
    rows = features(schema, pa.array([None, math.nan, 0.0, 20.0, 99.0]))
    assert rows[:2].tolist() == [[0, 0, 0], [0, 0, 0]]
    steps = [[-0.375 / 8, -0.125], [0.125 / 8, -0.125], [0.125 / 8, 0.375]]
    assert rows[2:, 1:].tolist() == steps


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint8(), pa.float16(), pa.float32(), pa.float64()])
def test_steps_are_alike_whatever_type_carries_the_number(kind: pa.DataType) -> None:
    schema = Schema(
        Classes("y", (0, 1)), (Numeric("a", 0, 100, curve=(17.5, 18, 18.5)),), intercept=False, clip_norm=1.0
    )
    rows = features(schema, pa.array([17, 18, 19]).cast(kind))
    assert (4 * rows[:, 1:]).tolist() == [[-1, -1, -1], [1, 1, -1], [1, 1, 1]]


def test_places_are_compared_as_cells() -> None:
    cell = float(np.float32(0.1))
    places = (0.1, cell, math.nextafter(cell, 1), float(np.nextafter(np.float32(0.1), np.float32(1))))
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", -1, 1, curve=places),), intercept=False, clip_norm=1.0)
    below = np.nextafter(np.float32(0.1), np.float32(0))
    assert cell > 0.1
    for kind in (pa.float32(), pa.float64()):
        found = features(schema, pa.array([0.1, float(below)], pa.float64()).cast(kind))
        assert (4 * found[:, 1:]).tolist() == [[1, 1, 1, -1], [-1, -1, -1, -1]]


@given(
    cells=st.lists(st.floats(width=64), min_size=1, max_size=20),
    places=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9, unique=True),
    single=st.booleans(),
)
def test_every_cell_is_on_the_side_of_a_place_where_python_says(
    cells: list[float], places: list[float], single: bool
) -> None:
    kind = np.float32 if single else np.float64
    with np.errstate(over="ignore"):
        values = np.array([*cells, *places]).astype(kind)
    column = Numeric("a", -2e6, 2e6, curve=tuple(sorted(places)))
    schema = Schema(Classes("y", (0, 1)), (column,)).unscaled
    exact = column.encoding_rule.exact_thresholds
    expected = [[0.0 if math.isnan(x) else 0.25 if float(x) >= place else -0.25 for place in exact] for x in values]
    assert features(schema, pa.array(values))[:, 1:].tolist() == expected


# ---- automatic ones ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((0, 1), ()),
        ((-1, 1), ()),
        ((-0.5, 0.25), ()),
        ((0, 1.5), (0.3, 0.6, 0.9, 1.2)),
        ((0, 100), (20, 40, 60, 80)),
        ((-50, 0), (-40, -30, -20, -10)),
        ((0, 2), (0.5, 1.5)),
        ((-1, 2), (-0.5, 0.5, 1.5)),
        ((1, 5), (1.5, 2.5, 3.5, 4.5)),
        ((0, 5), (0.5, 1.5, 3.5, 4.5)),
        ((0, 10), (1.5, 3.5, 6.5, 8.5)),
        ((0, 11), (2.2, 4.4, 6.6, 8.8)),
        ((0.5, 2.5), (0.9, 1.3, 1.7, 2.1)),
        ((0, 999.5), (200, 400, 600, 800)),
        ((-499, 499), (-299, -100, 100, 299)),
        ((-400, 1000), (-120, 160, 440, 720)),
        ((500, 1500), (700, 900, 1100, 1300)),
    ],
)
def test_automatic_curves_follow_the_bounds(bounds: tuple[float, float], expected: tuple[float, ...]) -> None:
    found = curve(add_curves(Schema(Classes("y", (0, 1)), (Numeric("a", *bounds),)), 4))
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("bounds", [(0, 1000), (0, 1e6), (-500, 500), (-1e9, 1e9)])
def test_automatic_curves_of_wide_ranges_are_spaced_by_log(bounds: tuple[float, float]) -> None:
    column = Numeric("a", *bounds)
    found = curve(add_curves(Schema(Classes("y", (0, 1)), (column,)), 4))
    assert found == compute_step_thresholds(column, 4, "log") != compute_step_thresholds(column, 4, "even")


@given(COUNTS, st.integers(-1000, 1000), st.integers(2, 200))
def test_whole_numbers_are_told_apart_by_one_place_at_most(count: int, low: int, width: int) -> None:
    assume(width - 1 < 2 * count + 2 and not (low == -1 and width == 2))
    places = curve(add_curves(Schema(Classes("y", (0, 1)), (Numeric("a", low, low + width),)), count))
    assert len(places) == min(count, width)
    assert all((place - 0.5).is_integer() for place in places)
    assert len({math.floor(place) for place in places}) == len(places)
    assert [2 * low + width - place for place in reversed(places)] == pytest.approx(places, abs=1.0)


def test_what_is_declared_or_fixed_stays_as_it_is() -> None:
    columns = (Numeric("a", 0, 100, curve=(3,)), Categorical("c", ("x", "y")), Vector("v", 2, 0, 100))
    schema = Schema(Classes("y", (0, 1)), columns)
    assert add_curves(schema, 8) == schema
    bare = Schema(Classes("y", (0, 1)), (Numeric("a", 0, 100),))
    assert add_curves(bare, 0) == bare
    for fixed in (
        replace(bare, projection=Projection(1, 1)),
        replace(bare, standardization=Standardization((0.0,), (1.0,), 1.0)),
    ):
        assert add_curves(fixed, 8) == fixed
    mixed = add_curves(replace(schema, columns=(*columns, Numeric("b", 0, 100))), 3)
    assert [len(column.feature_names) for column in mixed.columns] == [2, 4, 2, 2]


@given(st.tuples(st.floats(), st.floats()).map(sorted), COUNTS)
def test_every_column_can_have_an_automatic_curve(bounds: list[float], count: int) -> None:
    low, high = bounds
    assume(low < high and math.isfinite(high - low))
    add_curves(Schema(Classes("y", (0, 1)), (Numeric("a", low, high),)), count)


def test_the_ends_of_the_doubles_have_no_automatic_curve() -> None:
    for low, high in ((2.0, math.nextafter(2.0, 3)), (1e16, 1e16 + 2), (-1e308, 0.5e308)):
        assert len(curve(add_curves(Schema(Classes("y", (0, 1)), (Numeric("a", low, high),)), 8))) < 8


def test_the_page_of_the_schema_says_what_is_so() -> None:
    page = Path(__file__).parents[2] / "docs" / "schema.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 0
    assert failed == 0
    example = page.read_text("utf-8").split("```toml\n")[1].split("```")[0]
    columns = {column.name: column for column in Schema.from_toml(example).columns}
    assert len(columns["weight_kg"].feature_names) == len(columns["income"].feature_names) == 1 + 8
    assert columns["height_cm"] == Numeric("height_cm", 40, 230, curve=(150, 165, 180))
