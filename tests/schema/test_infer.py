"""A drafted schema knows names and types; only for public data does it know values."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from boltdp.engines import open_source
from boltdp.errors import DataError, ParameterError
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, TimePart, Vector
from boltdp.workflows.draft_schema import draft_schema

ROWS = {
    "age": [17.25, 80.5, None],
    "city": ["Bern", "Zug", None],
    "member": [True, False, None],
    "scan": pa.array([[0.25, -0.5], [1.5, 0.0], None], pa.list_(pa.float64(), 2)),
    "born": pa.array([0, 1, 2], pa.date32()),
    "name of it": ["a", "b", "c"],
    "y": ["no", "yes", "no"],
}


def test_draft_from_types_has_no_value_in_it_and_cannot_be_loaded() -> None:
    text = draft_schema(open_source(pa.table(ROWS)), "y")
    for value in ("17", "80", "Bern", "Zug", "yes", "0.25", "1.5"):
        assert value not in text
    with pytest.raises(ParameterError, match=r"^the bounds of 'age' must be \[low, high\], got \[\]$"):
        Schema.from_toml(text)


def test_draft_from_types_is_complete_once_the_blanks_are_filled() -> None:
    text = draft_schema(open_source(pa.table(ROWS)), "y")
    text = text.replace("classes = []", 'classes = ["no", "yes"]').replace("age = []", "age = [0, 100]")
    text = text.replace("city = []", 'city = ["Bern"]').replace("bounds = []", "bounds = [-1, 1]")
    text = text.replace('"name of it" = []', '"name of it" = ["a"]')
    columns = (
        Numeric("age", 0, 100),
        Numeric("member", 0, 1),
        Categorical("city", ("Bern",)),
        Categorical("name of it", ("a",)),
        Vector("scan", 2, -1, 1),
    )
    assert Schema.from_toml(text) == Schema(Classes("y", ("no", "yes")), columns)


def test_draft_tells_of_curves_in_a_line_that_can_be_taken_as_it_is() -> None:
    text = draft_schema(open_source(pa.table(ROWS)), "y", public=True)
    (line,) = (line for line in text.splitlines() if "curve" in line)
    assert line.startswith("# name = { bounds = [low, high], curve = 8 } ")
    declared = line[2 : line.index("}") + 1].replace("name", "age").replace("[low, high]", "[17, 81]")
    schema = Schema.from_toml(text.replace("age = [17, 81]", declared))
    assert len(schema.columns[0].feature_names) == 1 + 8
    without = draft_schema(open_source(pa.table({"city": ["Bern"], "y": ["no"]})), "y")
    assert "curve" not in without


def test_draft_of_public_data_can_be_loaded_as_it_is() -> None:
    schema = Schema.from_toml(draft_schema(open_source(pa.table(ROWS)), "y", public=True))
    columns = (
        Numeric("age", 17, 81),
        Numeric("member", 0, 1),
        Categorical("city", ("Bern", "Zug")),
        Categorical("name of it", ("a", "b", "c")),
        Vector("scan", 2, -0.5, 1.5),
    )
    assert schema == Schema(Classes("y", ("no", "yes")), columns)


def csv(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("age,city,y\n17.25,Bern,0\n80.5,Zug,1\n,Zug,1\n")
    return path


def test_csv_columns_have_no_type_and_are_left_to_the_user(tmp_path: Path) -> None:
    text = draft_schema(open_source(csv(tmp_path)), "y")
    assert "17" not in text
    assert "Bern" not in text
    with pytest.raises(ParameterError, match=r"^the columns listed under \[undecided\] must each be declared"):
        Schema.from_toml(text)


def test_public_csv_columns_are_numbers_if_every_cell_is(tmp_path: Path) -> None:
    schema = Schema.from_toml(draft_schema(open_source(csv(tmp_path)), "y", public=True))
    assert schema == Schema(Classes("y", ("0", "1")), (Numeric("age", 17, 81), Categorical("city", ("Bern", "Zug"))))


def test_columns_that_are_left_out_are_named_with_the_reason() -> None:
    rows = {
        "admitted": pa.array([0, 1], pa.timestamp("us", "UTC")),
        "day of birth": pa.array([0, 1], pa.date32()),
        "photo": pa.array([b"x", None], pa.binary()),
        "y": [0, 1],
    }
    for public in (False, True):
        text = draft_schema(open_source(pa.table(rows)), "y", public=public)
        assert text.endswith(
            "# Left out:\n"
            "# admitted: a timestamp; declare it under [timestamp], as "
            '`admitted = ["hour", "weekday", "month"]`, to use the parts\n'
            '# "day of birth": a date; declare it under [timestamp], as '
            '`"day of birth" = ["weekday", "month"]`, to use the parts\n'
            "# photo: of the type binary, which cannot be a feature\n"
        )
    # What it says can be taken as it is.
    declared = "\n[timestamp]\n" + "\n".join(re.findall("as `(.*?)`, to use", text))
    schema = Schema.from_toml(text + declared)
    parts = (*(TimePart("admitted", part) for part in ("hour", "weekday", "month")),)
    assert schema.columns == (*parts, TimePart("day of birth", "weekday"), TimePart("day of birth", "month"))


def test_public_texts_that_are_timestamps_are_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("at,day,odd,y\n2024-01-01 10:00,2024-01-01,2024-01-01,0\n,2024-02-29,2024-02-30,1\n")
    text = draft_schema(open_source(path), "y", public=True)
    assert (
        '# at: texts that are timestamps; declare them under [timestamp], as `at = ["hour", "weekday", "month"' in text
    )
    assert '# day: texts that are dates; declare them under [timestamp], as `day = ["weekday", "month"]`' in text
    assert 'odd = ["2024-01-01", "2024-02-30"]' in text
    assert "# These have no type" in draft_schema(open_source(path), "y")


def test_text_column_with_many_values_is_left_to_the_user() -> None:
    names = [f"n{i}" for i in range(101)]
    table = pa.table({"name": [*names, "n7"], "id": [*names, "n101"], "age": [1.0] * 102, "y": [0, 1] * 51})
    text = draft_schema(open_source(table), "y", public=True)
    assert "# name = []  # more than 100 different values" in text
    assert "# id = []  # every value differs: an id?" in text
    assert "n57" not in text
    assert [column.name for column in Schema.from_toml(text).columns] == ["age"]


def test_public_columns_of_almost_only_numbers_are_numbers_and_the_other_cells_are_quoted(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [f"{i},{'1.0h' if i % 20 == 0 else i / 8},{'x' if i % 9 == 0 else i % 5},{i % 2}" for i in range(200)]
    path.write_text("\n".join(["id,took,code,y", *lines]))
    text = draft_schema(open_source(path), "y", public=True)
    assert "# id = [0, 200]  # every value differs: an id?" in text
    assert "took = [0, 25]  # 95 % of the cells are numbers; others, such as `1.0h`, count as missing" in text
    assert 'code = ["0", "1", "2", "3", "4", "x"]' in text


@pytest.mark.parametrize("commas", ["decimal", "thousands"])
def test_the_query_for_numbers_with_commas_makes_numbers_of_them(tmp_path: Path, commas: str) -> None:
    path = tmp_path / "rows.csv"
    cells = [f"{i // 100},{i % 100 if commas == 'decimal' else 100 + i}" for i in [*range(200), 7]]
    path.write_text("the price;y\n" + "".join(f"{cell};{i % 2}\n" for i, cell in enumerate(cells)))
    text = draft_schema(open_source(path), "y", public=True)
    (query,) = re.findall(r'^# "the price" = \[\]  # numbers with .*: --query "(.*)" makes them plain$', text, re.M)
    query = query.replace("\\", "").replace("FILE", str(path))
    with open_source(path, query=query) as engine:
        (column,) = Schema.from_toml(draft_schema(engine, "y", public=True)).columns
    assert isinstance(column, Numeric)
    assert (column.low, column.high) == ((0, 2) if commas == "decimal" else (100, 1300))


def test_a_label_spelt_otherwise_is_told_unless_the_header_may_be_values(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the column 'Y'") as typed:
        draft_schema(open_source(pa.table(ROWS)), "Y")
    assert typed.value.hint == "did you mean 'y'?"
    with pytest.raises(DataError, match="the column 'Y'") as public:
        draft_schema(open_source(csv(tmp_path)), "Y", public=True)
    assert public.value.hint == "did you mean 'y'?"
    with pytest.raises(DataError, match="the column 'Y'") as private:
        draft_schema(open_source(csv(tmp_path)), "Y")
    assert private.value.hint is not None
    assert "'y'" not in private.value.hint


def test_public_bounds_hold_every_value() -> None:
    rng = np.random.default_rng(1)
    for scale in (1e-12, 1e-3, 1.0, 1e9, 1e300):
        values = rng.normal(3, 1, 100) * scale
        text = draft_schema(open_source(pa.table({"a": values, "y": [0, 1] * 50})), "y", public=True)
        (column,) = Schema.from_toml(text).columns
        assert isinstance(column, Numeric)
        assert column.low <= values.min()
        assert values.max() <= column.high
        assert column.high - column.low < 1.5 * (values.max() - values.min())


def test_constant_column_has_bounds_too() -> None:
    text = draft_schema(open_source(pa.table({"a": [7.0, 7.0], "y": [0, 1]})), "y", public=True)
    assert Schema.from_toml(text).columns == (Numeric("a", 7, 8),)


def test_numbers_too_far_apart_for_bounds_are_left_to_the_user() -> None:
    text = draft_schema(open_source(pa.table({"a": [-1e308, 1e308], "y": [0, 1]})), "y", public=True)
    assert "a = []  # [low, high]" in text


def test_public_values_that_cannot_be_declared_together_are_declared_once() -> None:
    rows = pa.table({"a": ["1", "1.0", "true", "x", " ", "1"], "y": [0, 1] * 3})
    (column,) = Schema.from_toml(draft_schema(open_source(rows), "y", public=True)).columns
    assert column == Categorical("a", ("1", "x"))


def test_label_that_is_not_there_is_told() -> None:
    with pytest.raises(DataError, match=r"^the data must have the column 'z' for the label$"):
        draft_schema(open_source(pa.table(ROWS)), "z")
