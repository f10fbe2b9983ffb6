"""The parts of timestamps: what a schema may declare of them, and what every cell is taken for."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.encoding import python_to_arrow
from boltdp.encoding.encode import Encoder
from boltdp.encoding.timestamp_parts import FIRST_DAY, LAST_DAY, MAX_CHARACTERS, PARTS, PATTERN, compute_part_codes
from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.errors import DataError, ParameterError
from boltdp.privacy.budget import Budget
from boltdp.schema.check import check_source
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, TimePart, Vector
from boltdp.schema.source_columns import ColumnType
from boltdp.workflows.draft_schema import plan_private_draft

TOML = 'label = "y"\nclasses = [0, 1]\n[timestamp]\nadmitted = {}'
ALL = tuple(TimePart("at", part) for part in PARTS)


def codes(rows: Any, columns: tuple[TimePart, ...] = ALL) -> list[list[int]]:
    """What a column `at` is packed as."""
    packed = np.vstack([*encode_rows(open_source(rows), Schema(Classes("y", (0, 1)), columns), label=False)])
    return [[int(code) for code in row] for row in packed[:, 1:]]


def expected(moment: datetime | date | None) -> list[int]:
    if moment is None:
        return [-1] * 4
    hour = moment.hour if isinstance(moment, datetime) else -1
    return [hour, moment.weekday(), moment.month - 1, moment.day - 1]


def test_features_have_the_names_of_their_categories() -> None:
    schema = Schema.from_toml(TOML.format('["hour", "weekday"]'))
    names = schema.feature_names
    assert (names[0], names[23], names[24], names[-2]) == (
        "admitted.hour=0",
        "admitted.hour=23",
        "admitted.weekday=Mon",
        "admitted.weekday=Sun",
    )
    assert (schema.dims, schema.sources) == (24 + 7 + 1, ("admitted",))
    assert schema.row_norm == pytest.approx(3**0.5)


def test_a_schema_is_the_same_before_and_after_the_disk() -> None:
    columns = (
        TimePart("b", "month"),
        Vector("v", 2, 0, 1),
        TimePart("a", "day"),
        TimePart("b", "hour"),
        Categorical("c", (1,)),
        Numeric("n", 0, 1),
    )
    schema = Schema(Classes("y", (0, 1)), columns)
    assert [column.name for column in schema.columns] == ["n", "c", "b.month", "b.hour", "a.day", "v"]
    assert Schema.from_toml(schema.to_toml()) == schema == Schema.from_dict(schema.to_dict())
    assert schema.to_dict()["timestamp"] == {"b": ["month", "hour"], "a": ["day"]}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("[]", "the parts of 'admitted' must be among hour, weekday, month, day, got []"),
        ('["year"]', "the parts of 'admitted' must be among hour, weekday, month, day, got 'year'"),
        ("[[1]]", "the parts of 'admitted' must be among hour, weekday, month, day, got [1]"),
        ('"hour"', "the parts of 'admitted' must be a list, got 'hour'"),
        ('["hour", "hour"]', "each column must be declared once, got 'admitted.hour' more than once"),
        ('["hour"]\n[numeric]\nadmitted = [0, 1]', "each column must be declared once, got 'admitted' more than once"),
        (
            '["hour"]\n[categorical]\n"admitted.hour" = [1]',
            "each column must be declared once, got 'admitted.hour' more",
        ),
    ],
)
def test_what_is_declared_wrongly_is_told(declared: str, message: str) -> None:
    with pytest.raises(ParameterError, match=f"^{re.escape(message)}"):
        Schema.from_toml(TOML.format(declared))


def test_the_label_is_no_timestamp() -> None:
    with pytest.raises(ParameterError, match=r"^the label must not be among the features, got 'at' in both$"):
        Schema(Classes("at", (0, 1)), ALL)


def test_every_day_of_the_calendar_has_its_parts() -> None:
    days = np.arange(FIRST_DAY, LAST_DAY + 1, 17)
    hours = days % 24
    found = [compute_part_codes(part, days, hours) for part in PARTS]
    dates = [date(1970, 1, 1) + timedelta(days=int(day)) for day in days]
    assert found[0].tolist() == hours.tolist()
    assert found[1].tolist() == [day.weekday() for day in dates]
    assert found[2].tolist() == [day.month - 1 for day in dates]
    assert found[3].tolist() == [day.day - 1 for day in dates]
    assert (date(1, 1, 1) - date(1970, 1, 1)).days == FIRST_DAY
    assert (date(9999, 12, 31) - date(1970, 1, 1)).days == LAST_DAY
    for part in PARTS:
        assert compute_part_codes(part, np.array([FIRST_DAY - 1, LAST_DAY + 1]), np.array([3, 3])).tolist() == [-1, -1]


def test_the_pattern_has_every_day_of_the_calendar_and_no_other() -> None:
    for year in (1, 4, 99, 100, 400, 999, 1900, 2000, 2023, 2024, 9999):
        for month in range(14):
            for day in range(33):
                try:
                    date(year, month, day)
                    there = True
                except ValueError:
                    there = False
                assert bool(re.fullmatch(PATTERN, f"{year:04}-{month:02}-{day:02}")) == there
    assert not any(re.fullmatch(PATTERN, f"0000-{month:02}-29") for month in range(13))
    longest = "2024-02-29T23:59:59.123456789+00:00"
    assert re.fullmatch(PATTERN, longest)
    assert len(longest) == MAX_CHARACTERS


@given(st.lists(st.none() | st.datetimes(), min_size=1), st.sampled_from(["s", "ms", "us"]))
def test_timestamps_of_every_type_are_read_alike(moments: list[datetime | None], unit: str) -> None:
    want = [expected(moment) for moment in moments]
    stamps = pa.array(moments, pa.timestamp("us"))
    cut = stamps.cast(pa.timestamp(unit), safe=False)
    # Cutting what comes before 1970 may round up, to the next hour.
    exact = unit == "us" or all(moment is None or moment.microsecond == 0 for moment in moments)
    if exact:
        assert codes(pa.table({"at": cut})) == want
        assert codes(pa.table({"at": cut.cast(pa.timestamp(unit, "America/New_York"))})) == want
    texts = pa.array([None if moment is None else moment.isoformat() for moment in moments], pa.string())
    for column in (stamps, texts, texts.dictionary_encode(), texts.cast(pa.large_string())):
        assert codes(pa.table({"at": column})) == want
        assert codes(pa.table({"at": pa.concat_arrays([column, column])}).slice(len(moments))) == want
    as_objects = pd.DataFrame({"at": pd.Series(moments, dtype=object)})
    assert codes(as_objects) == want
    assert codes(pd.DataFrame({"at": pd.Series(moments, dtype="datetime64[us]")})) == want
    dates = [None if moment is None else moment.date() for moment in moments]
    for kind in (pa.date32(), pa.date64()):
        assert codes(pa.table({"at": pa.array(dates, kind)}), ALL[1:]) == [row[1:] for row in want]


def test_nanoseconds_are_read_to_the_last() -> None:
    last = np.datetime64("1969-12-31T23:59:59.999999999")
    cells = np.array([last, last + 1, np.datetime64("NaT", "ns"), np.datetime64("2262-04-11T23:47:16.854775806")])
    want = [expected(datetime(1969, 12, 31, 23)), expected(datetime(1970, 1, 1)), [-1] * 4]
    assert codes(pd.DataFrame({"at": cells})) == [*want, expected(datetime(2262, 4, 11, 23))]


def test_years_outside_the_calendar_are_missing() -> None:
    seconds = [-(2**62), FIRST_DAY * 86400 - 1, FIRST_DAY * 86400, (LAST_DAY + 1) * 86400 - 1, 2**62]
    want = [[-1] * 4, [-1] * 4, expected(datetime(1, 1, 1)), expected(datetime(9999, 12, 31, 23)), [-1] * 4]
    assert codes(pa.table({"at": pa.array(seconds, pa.timestamp("s"))})) == want
    days = pa.array([-(2**31), 2**31 - 1, 0], pa.date32())
    assert codes(pa.table({"at": days}), ALL[3:]) == [[-1], [-1], [0]]


def test_columns_without_anything_are_missing() -> None:
    assert codes(pa.table({"at": pa.nulls(2)})) == [[-1] * 4] * 2


EAST = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        (datetime(2025, 1, 1, 4, tzinfo=EAST), "2024-12-31 22:30:00"),
        (datetime(1, 1, 1, 4, tzinfo=EAST), None),  # in UTC it is before the first year
        (pd.Timestamp("2025-01-01 04:00", tz="Asia/Kolkata"), "2024-12-31 22:30:00"),
        (pd.NaT, None),
        (np.datetime64("2024-05"), "2024-05-01"),
        (np.datetime64("2024-05-07T13", "h"), "2024-05-07 13:00:00"),
        (np.datetime64("NaT"), None),
        ("2024-05-07", "2024-05-07"),
        ("\ud800", None),
        (20240507, None),
        (None, None),
        (float("nan"), None),
    ],
)
def test_objects_become_the_text_of_a_timestamp(cell: Any, read: str | None) -> None:
    found = python_to_arrow.to_timestamp_text(cell)
    assert found == read or (read is None and not re.fullmatch(PATTERN, str(found)))


def test_one_odd_object_changes_no_other() -> None:
    rows = pd.DataFrame({"at": pd.Series([datetime(2024, 5, 7, 13), "2024-05-07 13:00", 7, date(2024, 5, 7)])})
    assert codes(rows) == [[13, 1, 4, 6], [13, 1, 4, 6], [-1] * 4, [-1, 1, 4, 6]]


def test_categories_of_pandas_are_read_too() -> None:
    texts = pd.Series(["2024-05-07", None, "x", "2024-05-07"], dtype="category")
    assert codes(pd.DataFrame({"at": texts}))[0] == [-1, 1, 4, 6]


def test_the_hour_of_dates_is_refused_before_a_row_is_read() -> None:
    dates = open_source(pa.table({"at": pa.array([0], pa.date32())}))
    with pytest.raises(DataError, match=r"^column 'at' must have timestamps for an hour to be declared") as caught:
        encode_rows(dates, Schema(Classes("y", (0, 1)), ALL), label=False)
    assert caught.value.hint == "declare its weekday, month or day"
    numbers = open_source(pa.table({"at": [1.0]}))
    with pytest.raises(DataError, match=r"^column 'at' must have timestamps, dates or texts, its type is 'number'$"):
        encode_rows(numbers, Schema(Classes("y", (0, 1)), ALL), label=False)


def test_a_timestamp_is_no_number_and_no_category() -> None:
    rows = open_source(pa.table({"at": pa.array([0], pa.timestamp("s"))}))
    for column in (Numeric("at", 0, 1), Categorical("at", ("a",))):
        with pytest.raises(DataError, match=r"its type is 'timestamp'$"):
            encode_rows(rows, Schema(Classes("y", (0, 1)), (column,)), label=False)


def test_bad_cells_of_public_rows_are_told() -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("n", 0, 1), *ALL))
    batch = pa.RecordBatch.from_pydict({"n": [0.5], "at": ["2024-05-07"]})
    with pytest.raises(DataError, match=r"^column 'at' must be complete, got a missing value or one without an hour$"):
        Encoder(schema.encoding, on_bad_row="error").encode(batch)


def test_a_check_of_rows_counts_the_parts_and_names_what_is_no_timestamp() -> None:
    days = pa.array([0, 1, 2], pa.date32())
    rows = pa.table({"at": ["2024-05-07 13:00", "7.5.2024", None], "day": days, "y": [0, 1, 0]})
    columns = (TimePart("at", "hour"), TimePart("at", "weekday"), TimePart("day", "hour"))
    report = check_source(open_source(rows), Schema(Classes("y", (0, 1)), columns))
    _, hour, weekday, refused = report.columns
    assert (hour.name, hour.missing, hour.undeclared, dict(hour.counts)["13"]) == ("at.hour", 1, 1, 1)
    assert [odd.value for odd in weekday.undeclared_values] == ["7.5.2024"]
    assert refused.fault == "it must have timestamps for an hour to be declared, its type is 'date'"


def test_a_private_draft_counts_no_timestamps() -> None:
    columns = {"at": ColumnType("timestamp"), "day": ColumnType("date"), "n": ColumnType("number")}
    plan = plan_private_draft({**columns, "y": ColumnType("bool")}, "y", Budget(1.0, 1e-6))
    assert [*plan.counted] == ["n"]
    with pytest.raises(DataError, match=r"^column 'at' must have texts, numbers or booleans"):
        plan_private_draft(columns, "at", Budget(1.0))
