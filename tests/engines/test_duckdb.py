"""Files and databases: bad input gives one sentence of our own, which repeats nothing of the data."""

from __future__ import annotations

import gzip
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from boltdp.engines import _text_files, open_source
from boltdp.engines._file_patterns import find_files
from boltdp.engines.base import Engine, encode_rows
from boltdp.engines.duckdb import SPILL_PREFIX, DuckDBEngine
from boltdp.errors import DataError, ParameterError
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, Vector

SECRET = "Smith-4711"
SCHEMA = Schema(Classes("y", (0, 1)), (Numeric("age", 0, 100),), intercept=False)
HOSTILE = ['a"b', "a'; DROP TABLE rows; --", "select", "über/größe", "two words", "f.1", "%s", "?", "$1", "{x}", "a\nb"]


#: What is missing, or no declared class.
GAP = -9.0


def packed(engine: Engine, schema: Schema = SCHEMA) -> list[list[float]]:
    rows = np.concatenate(list(encode_rows(engine, schema)))
    return [[float(x) for x in row] for row in np.nan_to_num(rows, nan=GAP)]


def csv_file(folder: Path, text: str | bytes, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def told(action: Callable[[], object]) -> str:
    """The message of the error an action ends in; neither it nor its traceback may hold anything of the rows."""
    with pytest.raises(DataError) as caught:
        action()
    shown = "".join(traceback.format_exception(caught.value)) + str(caught.value.hint)
    assert SECRET not in shown
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert "\n" not in str(caught.value)
    return str(caught.value)


def prepare(path: Path | str, schema: Schema = SCHEMA) -> None:
    with DuckDBEngine.from_files(path) as engine:
        engine.count()
        engine.prepare(schema, Context(seed=0))


@pytest.mark.parametrize(
    "rows",
    [
        f"1,2\n{SECRET}\n",
        f"1,2\n1,2,{SECRET}\n",
        f'1,2\n1,"{SECRET}\n1,2\n',
        f'1,2\n1,"{SECRET}"x\n1,2\n',
        f"1,2\n{SECRET},\xff\n".encode("latin-1"),
    ],
    ids=["too few cells", "too many cells", "open quote", "text after a quote", "not UTF-8"],
)
def test_damaged_csv_is_told_without_its_content(tmp_path: Path, rows: str | bytes) -> None:
    path = csv_file(tmp_path, b"age,y\n" + (rows if isinstance(rows, bytes) else rows.encode()))
    message = told(lambda: prepare(path))
    assert message.startswith(f"the CSV data of {str(path)!r} cannot be read: every line must have the 2 cells")


def test_empty_csv_is_told(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "")
    assert told(lambda: prepare(path)) == f"the CSV file {str(path)!r} must start with a header, and it is empty"


def test_csv_without_a_header_never_shows_its_first_row(tmp_path: Path) -> None:
    path = csv_file(tmp_path, f"{SECRET},{SECRET}\n1,2\n")
    assert "must have different names" in told(lambda: prepare(path))
    path = csv_file(tmp_path, f"{SECRET},30\n1,2\n")
    assert told(lambda: prepare(path)) == "the data must have the column 'age', which the schema declares"


def test_csv_with_a_header_only_has_no_rows(tmp_path: Path) -> None:
    with DuckDBEngine.from_files(csv_file(tmp_path, "age,y\n")) as engine:
        assert engine.count() == 0


def test_binary_file_called_csv_is_told(tmp_path: Path) -> None:
    path = csv_file(tmp_path, b"\xff\xfe\x00\x01" * 10)
    # Which of the two it is depends on the version of DuckDB.
    assert told(lambda: prepare(path)).endswith(
        ("the data must have the column 'age', which the schema declares", "must be UTF-8")
    )
    path = csv_file(tmp_path, b"\x1f\x8b" + b"\xff" * 10, "rows.csv.gz")
    assert told(lambda: prepare(path)).endswith("it must be text that starts with a header")


def test_cell_that_is_no_number_is_missing(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "age,y\n75,1\nold,0\n,1\n1e9,2\n nan ,0\n 25 ,1\n")
    with DuckDBEngine.from_files(path) as engine:
        assert packed(engine) == [[1, 0.5], [0, GAP], [1, GAP], [GAP, 1], [0, GAP], [1, -0.5]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", "age,y\r\n75,1\r\n25,0\r\n"),
        ("rows.csv", "\ufeffage,y\n75,1\n25,0"),
        ("rows.csv", '"age","y"\n"75","1"\n"25","0"\n'),
        ("rows.csv", ",y,age\nfirst,1,75\nsecond,0,25\n"),
        ("rows.tsv", "age\ty\n75\t1\n25\t0\n"),
        ("rows.csv.gz", "age,y\n75,1\n25,0\n"),
    ],
    ids=["CRLF", "BOM, no last newline", "quoted", "nameless index", "TSV", "gzip"],
)
def test_csv_dialects_in_common_use_are_read(tmp_path: Path, name: str, text: str) -> None:
    content = gzip.compress(text.encode()) if name.endswith(".gz") else text
    engine = open_source(csv_file(tmp_path, content, name))
    assert isinstance(engine, DuckDBEngine)
    assert packed(engine) == [[1, 0.5], [0, -0.5]]
    engine.close()


def test_row_that_looks_like_another_dialect_does_not_change_how_the_file_is_read(tmp_path: Path) -> None:
    rows = [[1.0, 0.5]] * 50
    path = csv_file(tmp_path, "age,y\n" + "75,1\n" * 50 + "a;b;c,0\n")
    with DuckDBEngine.from_files(path) as engine:
        assert packed(engine) == [*rows, [0, GAP]]


def test_csv_vector_is_read_from_brackets(tmp_path: Path) -> None:
    path = csv_file(tmp_path, 'v,y\n"[0.5, 1]",1\n"[0.5]",0\nnone,1\n"[x, 1]",1\n')
    schema = Schema(Classes("y", (0, 1)), (Vector("v", 2, -1, 1),), intercept=False, clip_norm=1.0)
    with DuckDBEngine.from_files(path) as engine:
        assert packed(engine, schema) == [[1, 0.5, 1], [0, GAP, GAP], [1, GAP, GAP], [1, GAP, 1]]


def test_several_csv_files_are_one_if_their_headers_are(tmp_path: Path) -> None:
    csv_file(tmp_path, "age,y\n25,0\n", "part-2.csv")
    csv_file(tmp_path, "age,y\n75,1\n", "part-1.csv")
    with DuckDBEngine.from_files(tmp_path / "part-*.csv") as engine:
        assert packed(engine) == [[1, 0.5], [0, -0.5]]
    csv_file(tmp_path, "y,age\n1,75\n", "part-3.csv")
    assert "must have the same header" in told(lambda: prepare(tmp_path / "part-*.csv"))


@pytest.mark.parametrize("name", ["none.csv", "none-*.parquet", "none.duckdb"])
def test_file_that_is_not_there_is_told(tmp_path: Path, name: str) -> None:
    table = "rows" if name.endswith("duckdb") else None
    message = told(lambda: open_source(tmp_path / name, table=table))
    assert str(tmp_path / name) in message


def parquet_file(folder: Path, rows: int = 50_000) -> Path:
    path = folder / "rows.parquet"
    names = [f"{SECRET}-{i}" for i in range(rows)]
    columns = {"age": np.arange(rows, dtype=float), "y": [0, 1] * (rows // 2), "name": names}
    pq.write_table(pa.table(columns), path, row_group_size=10_000)
    return path


def read_parquet(path: Path | str) -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("age", 0, 100), Categorical("name", ("x",))))
    with DuckDBEngine.from_files(path) as engine:
        engine.prepare(schema, Context(seed=0))


@pytest.mark.parametrize("damage", ["cut short", "overwritten", "empty"])
def test_damaged_parquet_is_told_without_its_content(tmp_path: Path, damage: str) -> None:
    path = parquet_file(tmp_path)
    content = path.read_bytes()
    middle = len(content) // 2
    damaged = {
        "cut short": content[:middle],
        "overwritten": content[: middle - 3000] + b"\xff" * 6000 + content[middle + 3000 :],
        "empty": b"",
    }
    path.write_bytes(damaged[damage])
    message = told(lambda: read_parquet(path))
    assert message.startswith(f"the Parquet data of {str(path)!r} cannot be read: ")


def test_parquet_files_with_different_columns_are_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"age": [1.0], "name": ["x"], "y": [0]}), tmp_path / "part-1.parquet")
    pq.write_table(pa.table({"y": [0], "other": [SECRET]}), tmp_path / "part-2.parquet")
    assert "its columns differ" in told(lambda: read_parquet(tmp_path / "part-*.parquet"))


def database(folder: Path) -> Path:
    path = folder / "rows.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE people AS SELECT 30 AS age, 1 AS y, '{SECRET}' AS name")
    return path


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT", "cannot be run: SELECT clause without selection list"),
        ("SELECT age FORM people", 'cannot be run: syntax error at or near "people"'),
        ("SELECT * FROM people WHERE", 'cannot be run: syntax error at or near "WHERE"'),
        ("SELECT * FROM nobody", "cannot be run: Table with name nobody does not exist"),
        ("SELECT agee FROM people", 'cannot be run: Referenced column "agee" not found in FROM clause'),
        ("SELECT agee(age) FROM people", "cannot be run: Scalar Function with name agee does not exist"),
        ("SELECT 1; SELECT 2", "cannot be run: it must be one SELECT statement"),
        ("DROP TABLE people", "cannot be run: it must be one SELECT statement"),
        # The columns would be named by values.
        ("SELECT * FROM (PIVOT people ON name USING first(age))", "cannot be run: it must be one SELECT statement"),
        ("SELECT * FROM people GROUP BY name", "cannot be run"),
    ],
)
def test_query_that_cannot_be_run_is_told_and_leaves_nothing(tmp_path: Path, query: str, reason: str) -> None:
    path = database(tmp_path)
    assert told(lambda: DuckDBEngine.from_database(path, query=query, spool=tmp_path)).endswith(reason)
    assert list(tmp_path.iterdir()) == [path]


def test_error_of_a_query_that_quotes_a_value_is_not_repeated(tmp_path: Path) -> None:
    path = database(tmp_path)

    def read() -> None:
        with DuckDBEngine.from_database(path, query="SELECT y, name::INTEGER AS age FROM people") as engine:
            engine.prepare(SCHEMA, Context(seed=0))

    assert told(read).endswith("cannot be run")


@pytest.mark.parametrize("form", ["csv", "parquet", "csv as source", "database"])
def test_a_cell_that_does_not_fit_never_fails_a_query_that_tries_to_cast(tmp_path: Path, form: str) -> None:
    cells = ["30", SECRET, "1.0h", "", "10"]
    rows = pa.table({"age": cells, "y": ["0"] * 5})
    text = "age,y\n" + "".join(f"{cell},0\n" for cell in cells)
    path = tmp_path / "rows.duckdb"
    if form == "database":
        with duckdb.connect(str(path)) as connection:
            connection.register("given", rows)
            connection.execute("CREATE TABLE people AS SELECT * FROM given")
            connection.execute(f"CREATE VIEW source AS FROM read_csv('{csv_file(tmp_path, text)}', all_varchar = true)")
    elif form == "parquet":
        pq.write_table(rows, path := tmp_path / "rows.parquet")
    else:
        path = csv_file(tmp_path, text)
    tables = {"csv": [f"'{path}'"], "database": ["people", "source"]}.get(form, ["source"])
    for table in tables:
        for chosen in ("TRY_CAST(age AS DOUBLE) AS age, y", "TRY_CAST(age AS INT) AS age, 0 AS y"):
            query = f"SELECT {chosen} FROM {table}"
            with open_source("" if form == "csv" else path, query=query) as engine:
                assert engine.count() == 5
                assert [row[1] for row in packed(engine)] == pytest.approx([-0.4, GAP, GAP, GAP, -0.8])
    if form != "database":
        return
    with open_source(path, table="source") as engine:
        assert engine.count() == 5


def test_query_may_end_in_a_comment(tmp_path: Path) -> None:
    with DuckDBEngine.from_database(database(tmp_path), query="SELECT * FROM people -- all") as engine:
        assert engine.count() == 1


def test_database_is_opened_for_reading_only(tmp_path: Path) -> None:
    path = database(tmp_path)
    before = path.read_bytes()
    with (
        DuckDBEngine.from_database(path, table="people") as engine,
        DuckDBEngine.from_database(path, table="people") as another,
    ):
        assert packed(engine) == packed(another) == [[1, pytest.approx(-0.4)]]
    assert path.read_bytes() == before


def test_table_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = database(tmp_path)
    assert told(lambda: DuckDBEngine.from_database(path, table="nobody")).startswith("the table 'nobody' of ")


def test_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = csv_file(tmp_path, SECRET * 1000, "rows.duckdb")
    assert "it is no DuckDB file" in told(lambda: DuckDBEngine.from_database(path, table="people"))


def test_table_or_query_must_be_given_and_only_for_databases(tmp_path: Path) -> None:
    path = database(tmp_path)
    for table, query in ((None, None), ("people", "SELECT 1")):
        with pytest.raises(ParameterError, match=r"^give either table or query"):
            DuckDBEngine.from_database(path, table=table, query=query)
    with pytest.raises(ParameterError, match=r"only with a database$"):
        open_source(csv_file(tmp_path, "age,y\n"), table="people")
    with pytest.raises(ParameterError, match=r"only with a database"):
        open_source(pa.table({"a": [1]}), query="SELECT 1")


def test_file_of_unknown_ending_is_told(tmp_path: Path) -> None:
    assert "must be CSV, JSON lines, Parquet, Arrow or DuckDB" in told(
        lambda: open_source(csv_file(tmp_path, "x", "rows.xlsx"))
    )


@pytest.mark.parametrize("form", ["csv", "parquet", "table"])
def test_hostile_column_names_are_only_names(tmp_path: Path, form: str) -> None:
    columns = {name: [float(i), 100.0] for i, name in enumerate(HOSTILE)}
    table = pa.table(columns | {'y "': [0, 1]})
    schema = Schema(
        Classes('y "', (0, 1)), tuple(Numeric(name, 0, 100) for name in HOSTILE), intercept=False, clip_norm=1.0
    )
    if form == "csv":
        quoted = ['"' + name.replace('"', '""') + '"' for name in table.column_names]
        rows = [",".join(str(x) for x in row.values()) for row in table.to_pylist()]
        engine = DuckDBEngine.from_files(csv_file(tmp_path, "\n".join([",".join(quoted), *rows])))
    elif form == "parquet":
        pq.write_table(table, tmp_path / "rows.parquet")
        engine = DuckDBEngine.from_files(tmp_path / "rows.parquet")
    else:
        with duckdb.connect(str(tmp_path / "rows.duckdb")) as connection:
            connection.register("given", table)
            connection.execute('CREATE TABLE "a ""table""; --" AS SELECT * FROM given')
        engine = DuckDBEngine.from_database(tmp_path / "rows.duckdb", table='a "table"; --')
    with engine:
        expected = [i / 50 - 1 for i in range(len(HOSTILE))]
        np.testing.assert_allclose(packed(engine, schema), [[0, *expected], [1, *[1.0] * len(HOSTILE)]], rtol=1e-6)


def test_rows_come_in_the_order_of_the_file_on_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What DuckDB does in any order is left to luck; that it is asked for the order is not."""
    opened: list[duckdb.DuckDBPyConnection] = []
    connect = duckdb.connect

    def record(*arguments: Any, **options: Any) -> duckdb.DuckDBPyConnection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(duckdb, "connect", record)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"y": [0] * 5000, "age": np.arange(5000) % 101}), path, row_group_size=100)
    with open_source(path) as engine:
        np.testing.assert_allclose([row[1] for row in packed(engine)], np.arange(5000) % 101 / 50 - 1, atol=1e-6)
        settings = [one.execute("SELECT current_setting('preserve_insertion_order')").fetchall() for one in opened]
    assert settings
    assert all(each == [(True,)] for each in settings)


def test_reading_can_be_abandoned_and_begun_again(tmp_path: Path) -> None:
    with DuckDBEngine.from_files(parquet_file(tmp_path)) as engine:
        batches = engine.batches(["age"])
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert sum(batch.num_rows for batch in engine.batches(["age"])) == engine.count() == 50_000


def test_directory_for_what_a_query_spills_is_private_and_removed(tmp_path: Path) -> None:
    path = database(tmp_path)
    query = "SELECT hash(i, j) AS age, 1 AS y FROM range(1000) a(i), range(100) b(j) ORDER BY age"
    with DuckDBEngine.from_database(path, query=query, spool=tmp_path) as engine:
        (spill,) = set(tmp_path.iterdir()) - {path}
        assert spill.stat().st_mode & 0o777 == 0o700
        assert engine.count() == 100_000
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_spilled_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    path = database(tmp_path)
    left = tmp_path / f"{SPILL_PREFIX}left"
    left.mkdir()
    (left / "duckdb_temp_storage.tmp").write_text(SECRET)
    others = tmp_path / "boltdp-model"
    others.mkdir()
    with DuckDBEngine.from_database(path, query="SELECT * FROM people", spool=tmp_path):
        (living,) = set(tmp_path.iterdir()) - {path, others}
        assert living != left
        (tmp_path / "other").mkdir()
        # Another file, since DuckDB opens one only once with different settings.
        with DuckDBEngine.from_database(database(tmp_path / "other"), query="SELECT 1", spool=tmp_path):
            assert living.exists()
    assert set(tmp_path.iterdir()) == {path, others, tmp_path / "other"}


def test_place_to_spill_that_is_not_there_is_told(tmp_path: Path) -> None:
    message = told(lambda: DuckDBEngine.from_database(database(tmp_path), query="SELECT 1", spool=tmp_path / "none"))
    assert message.endswith("cannot be used: No such file or directory")


BLANK = {
    "in the middle": "age,y\n1,0\n\n2,1\n",
    "after the header": "age,y\n\n1,0\n2,1\n",
    "several": "age,y\n1,0\n\n\n\n2,1\n",
    "ends of Windows": "age,y\r\n1,0\r\n\r\n2,1\r\n",
    "ends of old": "age,y\r1,0\r\r2,1\r",
    "after quoted ones": 'age,y\n"1\n\n",0\n\n2,1\n',
    "after an inch": 'age,y\n1",0\n\n2",1\n',
}


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
@pytest.mark.parametrize("kind", BLANK)
def test_a_blank_line_is_a_short_one_and_never_skipped(tmp_path: Path, kind: str, name: str) -> None:
    text = BLANK[kind].encode()
    path = csv_file(tmp_path, gzip.compress(text) if name.endswith(".gz") else text, name)
    message = "every line must have the 2 cells of the header, none may be blank"
    with DuckDBEngine.from_files(path) as engine:
        assert message in told(engine.count)
    with DuckDBEngine.from_files(path) as engine:
        assert message in told(lambda: list(encode_rows(engine, SCHEMA)))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("blank", [1, 3])
def test_blank_lines_at_the_end_are_no_rows(tmp_path: Path, newline: str, blank: int) -> None:
    text = newline.join(["age,y", "75,0", "25,1", *[""] * (1 + blank)])
    with DuckDBEngine.from_files(csv_file(tmp_path, text)) as engine:
        assert engine.count() == 2
        assert packed(engine) == [[0, 0.5], [1, -0.5]]


def test_a_header_that_is_not_utf_8_is_told_as_that(tmp_path: Path) -> None:
    path = csv_file(tmp_path, f"gr\xf6\xdfe,y\n{SECRET},1\n".encode("latin-1"))
    assert told(lambda: prepare(path)) == f"the header of the CSV file {str(path)!r} must be UTF-8"


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ("1,2\n1\n", "line 3 of {} has 1 cell, and the header 2"),
        ('"1\n",2\n1,2,3\n', "line 4 of {} has 3 cells, and the header 2"),
        ("1,2\n\n1,2\n", "line 3 of {} is blank"),
        ('1,2\n1,"x\n', "line 3 of {} has a quote that is not closed, or text after one that is"),
        (b"1,2\n1,\xe4\n", "line 3 of {} is not UTF-8"),
        ("1,2\n3,4\n\n", None),
    ],
    ids=["short", "long", "blank", "quote", "encoding", "none"],
)
def test_the_line_at_fault_is_found_where_rows_may_be_looked_at(
    tmp_path: Path, rows: str | bytes, fault: str | None
) -> None:
    path = csv_file(tmp_path, b"age,y\n" + (rows if isinstance(rows, bytes) else rows.encode()))
    assert _text_files.describe_csv_fault(find_files(path)) == (fault and fault.format(repr(str(path))))


def test_a_blank_line_where_parts_of_a_file_meet_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = csv_file(tmp_path, "age,y\n1,0\n\n2,1\n")
    for length in range(1, 20):
        monkeypatch.setattr(_text_files, "LOOK_BYTES", length)
        with DuckDBEngine.from_files(path) as engine:
            told(engine.count)


@pytest.mark.parametrize(
    "text",
    [
        'age,y\n1,0\n"2\n\n",1\n',
        'age,y\n1,0\n2, "1\n\n"\n',
        'age,y\n1,"a""\n\n"\n2,1',
        f'age,y\n1,0\n2,"{"long" * 50_000}\n\n"\n',
    ],
    ids=["quoted", "quoted after a space", "with quotes", "long"],
)
def test_a_blank_line_inside_quotes_is_part_of_a_cell(tmp_path: Path, text: str) -> None:
    with DuckDBEngine.from_files(csv_file(tmp_path, text)) as engine:
        assert engine.count() == 2
        assert len(packed(engine)) == 2


def test_a_blank_line_of_one_column_is_a_missing_cell(tmp_path: Path) -> None:
    with DuckDBEngine.from_files(csv_file(tmp_path, "age\n75\n\n25\n")) as engine:
        assert engine.count() == 3
        (batch,) = engine.batches(["age"])
        assert batch.column(0).to_pylist() == ["75", None, "25"]


def test_a_row_group_larger_than_the_memory_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boltdp.engines.duckdb.MEMORY_LIMIT", 40)
    monkeypatch.setattr("boltdp.engines.duckdb.COLUMN_MEMORY", 0.0)
    numbers = np.random.default_rng(0).normal(size=(100, 60_000))
    names = [f"x{index}" for index in range(100)]
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table([*numbers], names), path, row_group_size=60_000)
    with DuckDBEngine.from_files(path) as engine:
        assert sum(batch.num_rows for batch in engine.batches(names)) == 60_000


def test_too_little_memory_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boltdp.engines.duckdb.MEMORY_LIMIT", 1)
    monkeypatch.setattr("boltdp.engines.duckdb.COLUMN_MEMORY", 0.0)
    names = [f"x{index}" for index in range(200)]
    path = tmp_path / "wide.csv"
    path.write_text("\n".join([",".join(names), *[",".join(["0.5"] * 200)] * 3000]) + "\n")
    with (
        DuckDBEngine.from_files(path) as engine,
        pytest.raises(DataError, match=r"^the rows need more memory") as caught,
    ):
        for _ in engine.batches(names, parse=dict.fromkeys(names, "number")):
            pass
    assert "[vector]" in str(caught.value.hint)
