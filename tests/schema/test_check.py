"""A check finds what would be silently missing, clipped or undeclared in a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import boltdp
from boltdp.engines import open_source
from boltdp.export.check_page import write_check_page
from boltdp.schema.check import CheckedColumn, CheckReport, UnexpectedValue, check_source
from boltdp.schema.schema import Categorical, Classes, Column, Number, Numeric, Schema, Vector

YES = ["yes", "no", "yes", "no"]


def checked(rows: Any, *columns: Column, classes: tuple[Any, ...] = ("no", "yes")) -> CheckReport:
    return check_source(open_source(rows), Schema(Classes("y", classes), columns))


def csv_of(folder: Path, **columns: list[str]) -> Path:
    path = folder / "rows.csv"
    lines = [
        ",".join(columns),
        *(",".join(f'"{cell}"' if cell else "" for cell in row) for row in zip(*columns.values(), strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_cells_of_csv_that_are_no_numbers_are_told_with_how_often(tmp_path: Path) -> None:
    rows = csv_of(tmp_path, stay=["5h", "5h", "1,234", "7", "", " ", "8"], y=[*YES, *YES[:3]])
    stay = checked(rows, Numeric("stay", 0, 10)).columns[1]
    assert (stay.cells, stay.missing, stay.unparsed) == (7, 2, 3)
    assert stay.unparsed_values == (UnexpectedValue("5h", 2), UnexpectedValue("1,234", 1))
    assert stay.problem == "60.0 % of the cells are not as declared"
    ward = checked(csv_of(tmp_path, ward=["a", "b", "c", "d"], y=YES), Numeric("ward", 0, 10)).columns[1]
    assert (ward.unparsed, ward.constant) == (4, False)


def test_cells_of_a_frame_of_objects_that_are_no_numbers_are_told() -> None:
    frame = pd.DataFrame({"stay": np.array([5, "5h", None, 2.5], object), "y": YES})
    stay = checked(frame, Numeric("stay", 0, 10)).columns[1]
    assert (stay.missing, stay.unparsed, stay.unparsed_values) == (1, 1, (UnexpectedValue("5h", 1),))


def test_text_of_many_batches_is_matched_with_its_own_row(tmp_path: Path) -> None:
    count = 100_000
    cells = [f"x{i}" if i % 10_007 == 3 else str(i % 7) for i in range(count)]
    rows = csv_of(tmp_path, stay=cells, y=YES * (count // 4))
    stay = checked(rows, Numeric("stay", 0, 10)).columns[1]
    expected = sorted(cell for cell in cells if cell.startswith("x"))
    assert [odd.value for odd in stay.unparsed_values] == expected[:10]
    assert stay.unparsed == len(expected)


def test_numbers_far_outside_their_bounds_are_garbage_and_drawn_outside() -> None:
    report = checked(pa.table({"paid": [1200.0, 3400.0, -2.0, 3.0], "y": YES}), Numeric("paid", 0, 5))
    paid = report.columns[1]
    assert (paid.below, paid.above, paid.smallest, paid.largest) == (1, 2, -2.0, 3400.0)
    assert sum(paid.bars) == 1
    assert report.problems == ("numeric 'paid': 75.0 % of the cells are not as declared",)


def test_half_of_the_cells_outside_is_not_yet_garbage() -> None:
    assert checked(pa.table({"paid": [1200.0, 3400.0, 2.0, 3.0], "y": YES}), Numeric("paid", 0, 5)).ok


def test_values_at_the_bounds_are_not_clipped() -> None:
    paid = checked(pa.table({"paid": [0.0, 5.0, 5.0, 1.0], "y": YES}), Numeric("paid", 0, 5)).columns[1]
    assert (paid.below, paid.above, sum(paid.bars)) == (0, 0, 4)


def test_undeclared_categories_come_most_frequent_first_with_what_they_look_like() -> None:
    ward = ["Intensive", "intensive ", "Intensive", "surgery", "surgrey", "x", None, "x", "Intensive"]
    rows = pa.table({"ward": ward, "y": ["no", "yes"] * 4 + ["no"]})
    found = checked(rows, Categorical("ward", ("intensive", "surgery", "children"))).columns[1]
    assert found.undeclared_values == (
        UnexpectedValue("Intensive", 3, "intensive"),
        UnexpectedValue("x", 2),
        UnexpectedValue("intensive ", 1, "intensive"),
        UnexpectedValue("surgrey", 1, "surgery"),
    )
    assert (found.undeclared, found.missing, found.absent_values) == (7, 1, ("intensive", "children"))


def test_a_reference_is_as_declared_as_the_other_categories() -> None:
    rows = pa.table({"ward": ["a", "b", "b", "B", None], "y": ["no", "yes", "no", "yes", "no"]})
    found = checked(rows, Categorical("ward", ("a", "b", "c"), reference="b")).columns[1]
    assert found.undeclared_values == (UnexpectedValue("B", 1, "b"),)
    assert (found.undeclared, found.missing, found.absent_values) == (1, 1, ("c",))
    absent = checked(rows, Categorical("ward", ("a", "b", "c"), reference="c")).columns[1]
    assert absent.absent_values == ("c",)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (["Yes", "No", "Yes", "No"], "no row has a declared class"),
        (["yes", "No", "yes", "No"], "no row has a class other than 'yes'"),
        (["yes", "no", "?", None, "?"], "60.0 % of the cells are not as declared"),
        ([None, None], "all cells are missing"),
        (["yes", "no", "?", None], None),
    ],
)
def test_labels_that_teach_nothing_are_garbage(labels: list[str | None], problem: str | None) -> None:
    rows = pa.table({"age": list(range(len(labels))), "y": pa.array(labels, pa.string())})
    assert checked(rows, Numeric("age", 0, 9)).columns[0].problem == problem


@pytest.mark.parametrize(("unparsed", "problem"), [(426, "42.6 % of the cells do not parse"), (100, None)])
def test_more_than_a_tenth_of_unparsable_cells_is_garbage(unparsed: int, problem: str | None) -> None:
    cells = pd.Series(["n/a"] * unparsed + ["3", "5"] * ((1000 - unparsed) // 2), dtype=object)
    rows = pd.DataFrame({"age": cells, "y": ["no", "yes"] * 500})
    assert checked(rows, Numeric("age", 0, 9)).columns[1].problem == problem


@pytest.mark.parametrize(("high", "problem"), [(9000.0, "the bounds are over 50 times as wide"), (200.0, "")])
def test_bounds_far_wider_than_the_numbers_are_garbage(high: float, problem: str) -> None:
    found = checked(pa.table({"age": [1.0, 80.0, 90.0, 7.0], "y": YES}), Numeric("age", 0, high)).columns[1]
    assert (found.problem or "")[: len(problem)] == problem
    assert bool(found.problem) == bool(problem)
    assert any("all numbers are from 1 to 90" in remark for remark in found.list_deviations()) == bool(problem)


def test_spellings_of_one_value_are_told_and_garbage_above_a_tenth() -> None:
    airports = ["ATL", "atl", " A.T.L ", "JFK", "jfk", "JFK.", "LAX", "lax", "L-AX"]
    rows = pa.table({"from": airports * 4, "y": YES * 9})
    every = checked(rows, Categorical("from", (*airports,))).columns[1]
    assert every.problem is None
    assert every.spelling_variants == (("ATL", "atl", " A.T.L "), ("JFK", "jfk", "JFK."), ("LAX", "lax", "L-AX"))
    assert next(every.list_deviations()).startswith("spellings of the same value: 'ATL' = 'atl' = ' A.T.L '; 'JFK'")
    some = checked(rows, Categorical("from", (*airports[:6], "LAX"))).columns[1]
    assert some.problem == "22.2 % of the cells are other spellings of declared values"


@pytest.mark.parametrize("values", [("A+", "A-"), ("1.5", "15"), ("-1", "1"), ("-", "+")])
def test_values_that_differ_in_a_sign_or_a_point_are_not_spellings_of_one(values: tuple[str, ...]) -> None:
    rows = pa.table({"group": [*values] * 2, "y": YES})
    assert not checked(rows, Categorical("group", values)).columns[1].spelling_variants


def test_numbers_match_classes_as_in_training() -> None:
    label = checked(pa.table({"age": [1, 2, 3], "y": [0.0, 1.0, 2.0]}), Numeric("age", 0, 9), classes=(0, 1)).columns[0]
    assert label.counts == (("0", 1), ("1", 1))
    assert [odd.count for odd in label.undeclared_values] == [1]


def test_constant_and_empty_columns_are_told() -> None:
    rows = pa.table({"a": [3, 3, 3, 3], "b": pa.nulls(4, pa.float64()), "c": ["u"] * 4, "d": [1, 2, 1, 1], "y": YES})
    label, a, d, b, c = checked(
        rows, Numeric("a", 0, 9), Numeric("d", 0, 9), Numeric("b", 0, 9), Categorical("c", ("u", "v"))
    ).columns
    assert [column.constant for column in (label, a, b, c, d)] == [False, True, False, True, False]
    assert b.problem == "all cells are missing"


def test_lists_of_another_length_are_told_apart_from_missing_ones() -> None:
    scan = pa.array([[1.0, 2.0], [1.0], None, [9.0, float("nan")]])
    found = checked(pa.table({"scan": scan, "y": YES}), Vector("scan", 2, 0, 5)).columns[1]
    assert (found.cells, found.missing, found.unparsed, found.above) == (8, 3, 2, 1)


def test_columns_that_are_not_there_or_of_another_type_are_told_beside_the_others() -> None:
    rows = pa.table(
        {"Age": [1, 2, 3, 4], "stay": [[1], [2], [3], [4]], "born": pa.array([0] * 4, pa.date32()), "y": YES}
    )
    report = checked(rows, Numeric("age", 0, 9), Numeric("stay", 0, 9))
    assert report.problems == (
        "numeric 'age': the data has no such column; 'Age' looks like it",
        "numeric 'stay': it must have numbers, its type is 'list'",
    )
    assert dict(report.unused) == {
        "Age": "the schema does not declare it",
        "born": "a date, whose parts a schema can declare",
    }


def test_no_rows_are_garbage() -> None:
    empty = pa.table({"age": pa.array([], pa.float64()), "y": pa.array([], pa.string())})
    assert checked(empty, Numeric("age", 0, 9)).problems == ("there are no rows",)


def test_python_takes_what_open_source_takes_and_shows_that_nothing_is_private(tmp_path: Path) -> None:
    schema = Schema(Classes("y", ("no", "yes")), (Numeric("age", 0, 9),))
    schema.save(tmp_path / "schema.toml")
    rows = pa.table({"age": [1, 2, 3, 40], "y": YES})
    with open_source(rows) as engine:
        report = boltdp.check(engine, schema)
    assert report == boltdp.check(rows, tmp_path / "schema.toml")
    assert repr(report).startswith("NOT PRIVATE")
    assert json.loads(json.dumps(report.to_dict()))["columns"][1]["above"] == 1


def test_page_escapes_what_cells_say() -> None:
    column = CheckedColumn(
        name="<b>",
        role="categorical",
        cells=2,
        counts=(("<i>", 1),),
        undeclared=1,
        undeclared_values=(UnexpectedValue("<script>", 1),),
    )
    text = write_check_page(CheckReport(rows=2, columns=(column,), unused=(("<u>", "why"),)), "<a>")
    for tag in ("<b>", "<i>", "<script>", "<u>", "<a>"):
        assert tag not in text
    assert "NOT PRIVATE" in text


@pytest.mark.parametrize(
    ("prices", "problem", "deviation"),
    [
        ([1, 50, 99, 100], None, None),
        ([1, 50, 99, None], None, "25.0 % are missing"),
        ([1, 50, None, None], None, "50.0 % are missing"),
        ([1, None, None, None], "all numbers are the same", None),
        ([1, 50, None, 101], None, "33.3 % are above 100 and clipped to it, as far as 101"),
        ([1, 200, 300, 101], "75.0 % of the cells are not as declared", "75.0 % are above 100"),
        ([1, 2, "n/a", "n/a"], "50.0 % of the cells do not parse", "50.0 % are no numbers, and are ignored: 'n/a' (2)"),
        ([7, 7, 7, 7], "all numbers are the same", None),
        ([7, 7.5, 8, 7], "the bounds are over 50 times as wide as all of the numbers", "all numbers are from 7 to 8"),
        ([None, None, None, None], "all cells are missing", None),
    ],
)
def test_a_number_to_predict_is_judged(prices: list[Any], problem: str | None, deviation: str | None) -> None:
    frame = pd.DataFrame({"price": np.array(prices, object), "carat": [1, 2, 3, 4]})
    report = check_source(open_source(frame), Schema(Number("price", 0, 100), (Numeric("carat", 0, 5),)))
    price = report.columns[0]
    assert (price.role, price.problem) == ("target", problem)
    assert report.ok == (problem is None)
    found = [*price.list_deviations()]
    assert deviation is None or any(one.startswith(deviation) for one in found), found
