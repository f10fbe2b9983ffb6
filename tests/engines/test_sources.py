"""Where rows may come from: in which order they come, what declares their columns, and what is told when it fails."""

from __future__ import annotations

import functools
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from fsspec.implementations.memory import MemoryFile

import boltdp
from boltdp import PrivateLogisticRegression
from boltdp.engines import open_source
from boltdp.engines._text_files import find_separator
from boltdp.engines.base import Engine, check_columns, encode_rows
from boltdp.engines.duckdb import DETECTED
from boltdp.engines.sqlalchemy import UNORDERED
from boltdp.errors import DataError, ParameterError
from boltdp.privacy.budget import Budget
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, Vector
from boltdp.workflows.draft_schema import draft_private_schema, draft_schema
from tests.engines.test_duckdb import GAP, SCHEMA, SECRET, csv_file, told


def ages(source: Any, **options: Any) -> list[float]:
    """The ages of the rows, in their order."""
    with open_source(source, **options) as engine:
        return column(engine, "age")


def column(engine: Engine, name: str) -> list[Any]:
    parse = {name: "number"}
    return [cell for batch in engine.batches([name], parse=parse) for cell in batch.column(0).to_pylist()]  # type: ignore[arg-type]


def hint_of(action: Any) -> str | None:
    with pytest.raises(DataError) as caught:
        action()
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    return caught.value.hint


def parquet(path: Path, **columns: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


# Directories and partitions


def test_directory_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for i, name in enumerate(["b.parquet", "a.parquet", "sub/c.parquet", "a-.parquet"]):
        parquet(tmp_path / name, age=[i])
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden.csv").touch()
    assert ages(tmp_path) == [3, 1, 0, 2]


def test_directory_of_several_kinds_is_told(tmp_path: Path) -> None:
    parquet(tmp_path / "rows.parquet", age=[1])
    csv_file(tmp_path, f"age\n{SECRET}\n")
    message = told(lambda: open_source(tmp_path))
    assert message.endswith("must have files of one kind that can be read, it has .csv and .parquet")
    assert hint_of(lambda: open_source(tmp_path)) == f"choose some by a pattern, such as '{tmp_path}/*.csv'"


def test_directory_without_files_is_told(tmp_path: Path) -> None:
    assert told(lambda: open_source(tmp_path)).endswith("must have files, and it has none")


def test_partitions_are_columns_that_are_what_the_schema_says(tmp_path: Path) -> None:
    root = tmp_path / "site=ours" / "visits"
    parquet(root / "year=2024" / "sex=F" / "a.parquet", age=[1.0, 2.0])
    parquet(root / "year=2023" / "sex=M" / "b.parquet", age=[3.0])
    parquet(root / "year=2023" / "sex=A%20B" / "b.parquet", age=[4.0])
    with open_source(root) as engine:
        assert {name: kind.kind for name, kind in engine.columns().items()} == {
            "age": "number",
            "sex": "untyped",
            "year": "untyped",
        }
        assert column(engine, "age") == [4, 3, 1, 2]
        assert column(engine, "year") == [2023, 2023, 2024, 2024]
        assert [cell for batch in engine.batches(["sex"]) for cell in batch.column(0).to_pylist()] == [
            "A B",
            "M",
            "F",
            "F",
        ]
    with open_source(str(root / "*" / "sex=F" / "*.parquet")) as engine:
        assert [*engine.columns()] == ["age", "sex", "year"]
    with open_source(root / "year=2024" / "sex=F" / "a.parquet") as engine:
        assert [*engine.columns()] == ["age"]


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".arrow"])
def test_other_files_are_partitioned_too(tmp_path: Path, ending: str) -> None:
    for year in (2024, 2023):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        if ending == ".csv":
            (folder / "rows.csv").write_text(f"age\n{year - 2000}\n")
        elif ending == ".jsonl":
            (folder / "rows.jsonl").write_text(f'{{"age": {year - 2000}}}\n')
        else:
            feather.write_feather(pa.table({"age": [year - 2000]}), folder / "rows.arrow")
    with open_source(tmp_path) as engine:
        assert column(engine, "age") == [23, 24]
        assert column(engine, "year") == [2023, 2024]


def test_partitions_by_different_keys_are_told(tmp_path: Path) -> None:
    parquet(tmp_path / "year=2024" / "a.parquet", age=[1.0])
    parquet(tmp_path / "month=1" / "a.parquet", age=[1.0])
    assert "must name the same columns as key=value" in told(lambda: open_source(tmp_path))


@pytest.mark.parametrize("name", ["a[1].parquet", "a*.parquet", "a?.parquet"])
def test_file_whose_name_is_a_pattern_is_read_itself(tmp_path: Path, name: str) -> None:
    parquet(tmp_path / "a1.parquet", age=[1.0])
    assert ages(parquet(tmp_path / name, age=[7.0])) == [7]


# JSON lines


def json_file(folder: Path, text: str, name: str = "rows.jsonl") -> Path:
    return csv_file(folder, gzip.compress(text.encode()) if name.endswith(".gz") else text, name)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.ndjson", "rows.jsonl.gz"])
def test_line_of_json_that_is_no_object_is_a_row_without_cells(tmp_path: Path, name: str) -> None:
    odd = ["5", "[1]", "null", f'"{SECRET}"', '{"age": ', f"{SECRET}", '{"age": 1}{"age": 2}', '{"y": 1}', "{}"]
    path = json_file(tmp_path, "\n".join(['{"age": 75, "y": 1}', *odd, '{"y": 0, "age": "25", "z": 3}', ""]), name)
    with open_source(path) as engine:
        assert engine.count() == len(odd) + 2
        rows = np.nan_to_num(np.concatenate(list(encode_rows(engine, SCHEMA))), nan=GAP).tolist()
    assert rows == [[1, 0.5], *[[GAP, GAP]] * 7, [1, GAP], [GAP, GAP], [0, -0.5]]


def test_cells_of_json_are_texts_until_the_schema_says_otherwise(tmp_path: Path) -> None:
    lines = [
        {"v": [0.5, 1], "c": True, "y": 1},
        {"v": [0.5, None], "c": 1, "y": "1"},
        {"v": "none", "c": "true", "y": 1.0},
        {"v": {"a": 1}, "c": [1], "y": None},
    ]
    path = json_file(tmp_path, "\n".join(map(json.dumps, lines)))
    columns = (Vector("v", 2, -1, 1), Categorical("c", (False, True)))
    schema = Schema(Classes("y", (0, 1)), columns, intercept=False, clip_norm=1.0)
    with open_source(path) as engine:
        rows = np.nan_to_num(np.concatenate(list(encode_rows(engine, schema))), nan=GAP).tolist()
    gap = [GAP, GAP]
    assert rows == [[1, 1, 0.5, 1], [1, 1, 0.5, GAP], [1, 1, *gap], [GAP, -1, *gap]]


def test_order_of_json_does_not_depend_on_threads(tmp_path: Path) -> None:
    for part in range(3):
        lines = (json.dumps({"age": part * 60_000 + i, "pad": "x" * 50}) for i in range(60_000))
        json_file(tmp_path, "\n".join(lines), f"part-{part}.jsonl")
    with open_source(tmp_path) as engine:
        engine.threads = 4
        assert column(engine, "age") == list(range(180_000))


@pytest.mark.parametrize(
    "text",
    ["", "\n", f"{SECRET}\n", f'["{SECRET}"]\n', '\ufeff{"age": 1}\n', "{}\n", f'{{"{SECRET}": 1, "{SECRET}": 2}}'],
)
def test_json_without_keys_in_its_first_line_is_told_where_a_schema_is_drafted(tmp_path: Path, text: str) -> None:
    def draft() -> None:
        with open_source(json_file(tmp_path, text)) as engine:
            draft_schema(engine, "age")

    message = told(draft)
    assert "in each line" in message or "must have all columns as keys" in message or "different names" in message


@pytest.mark.parametrize(
    "first",
    ["{}", '{"y": 0}', '{"other": 1}', "", "{x}", '{"AGE": 1, "age": 25, "y": 0}', '{"age": 25, "age": 1}'],
)
def test_the_first_line_of_json_is_a_row_like_every_other(tmp_path: Path, first: str) -> None:
    path = json_file(tmp_path, "\n".join([first, '{"age": 75, "y": 1}', '{"y": 0, "age": 25}', ""]))
    with open_source(path) as engine:
        rows = np.nan_to_num(np.concatenate(list(encode_rows(engine, SCHEMA))), nan=GAP).tolist()
        assert engine.count() == len(rows) == 2 + bool(first)
    assert rows[-2:] == [[1, 0.5], [0, -0.5]]
    if first in ("{}", '{"other": 1}', "{x}"):
        assert rows[0] == [GAP, GAP]


ODD_OBJECTS = {
    "bytes that are no UTF-8": b'{"age": "\xff", "\xfe": 1}',
    "half of a pair": b'{"age": "\\ud800"}',
    "a zero byte": b'{"age": "\x00"}',
    "nested deeply": b'{"age": ' + b"[" * 9999 + b"]" * 9999 + b"}",
    "a long text": b'{"age": "' + b"x" * 5_000_000 + b'"}',
    "a number beyond doubles": b'{"age": ' + b"9" * 5000 + b', "y": 1e999}',
    "words": b'{"age": NaN, "y": Infinity}',
    "many keys": b"{" + b",".join(b'"%d": 1' % i for i in range(9999)) + b"}",
    "no key": b'{"": 1}',
    "another kind of quotes": b"{'age': 1}",
    "blanks": b' \t{"age": "x"}\t ',
}


@pytest.mark.parametrize("name", ODD_OBJECTS)
def test_no_object_of_json_changes_whether_the_others_are_read(tmp_path: Path, name: str) -> None:
    good = b'{"age": 75, "y": 1}'
    for place, lines in enumerate(([ODD_OBJECTS[name], good, good], [good, ODD_OBJECTS[name], good])):
        (path := tmp_path / f"{place}.jsonl").write_bytes(b"\n".join(lines))
        with open_source(path) as engine:
            rows = np.nan_to_num(np.concatenate(list(encode_rows(engine, SCHEMA))), nan=GAP).tolist()
            assert engine.count() == 3
        assert [rows[1 - place], rows[2]] == [[1, 0.5]] * 2
        assert rows[place][0] == GAP


def test_features_of_json_are_those_that_are_declared_whatever_the_first_line_has(tmp_path: Path) -> None:
    schemas = []
    for first in ('{"y": 0, "b": 1, "c": 3}', '{"a": 1, "y": 1, "b": 2}'):
        path = json_file(tmp_path, "\n".join([first, *['{"a": 1, "b": 2, "y": 1}'] * 50]))
        with pytest.warns(UserWarning, match="a key that no line has is a column of missing cells"):
            model = boltdp.train(
                path, label="y", epsilon=1, anyway=True, bounds={"a": (0, 9), "b": (0, 9)}, classes=[0, 1]
            )
        schemas.append(model.schema.columns)
        assert model.certificate.private
    assert schemas == [(Numeric("a", 0, 9), Numeric("b", 0, 9))] * 2


@pytest.mark.parametrize("text", [SECRET, f'["{SECRET}"]', '\ufeff{"age": 1}', '{\n"age": 1\n}\n', "age,y\n1,0\n"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_file_that_is_not_json_lines_is_told(tmp_path: Path, text: str, name: str) -> None:
    json_file(tmp_path, '{"age": 1}\n', f"a {name}")
    json_file(tmp_path, f"\n{text}", f"b {name}")
    assert "a JSON object in each line" in told(lambda: open_source(tmp_path))


def test_query_cannot_read_json_lines(tmp_path: Path) -> None:
    path = json_file(tmp_path, '{"age": 1}\n')
    assert "it may not read JSON lines" in told(lambda: open_source(path, query="SELECT age FROM source"))
    assert "it may not read JSON lines" in told(lambda: open_source("", query=f"SELECT age FROM '{path}'"))


def test_json_has_no_columns_for_a_private_draft(tmp_path: Path) -> None:
    path = json_file(tmp_path, "\n".join(['{"age": 1, "y": 1}'] * 50))
    expected = pytest.raises(ParameterError, match="the columns of a private draft must be declared")
    with open_source(path) as engine, expected:
        draft_private_schema(engine, "y", Budget(1.0))


# Arrow


@pytest.mark.parametrize("ending", [".arrow", ".ipc", ".feather"])
def test_arrow_files_are_read(tmp_path: Path, ending: str) -> None:
    rows = pa.table({"age": [3.0, None, 5.0], "sex": pa.array(["F", "M", None]).dictionary_encode()})
    feather.write_feather(rows, tmp_path / f"rows{ending}", compression="zstd")
    assert ages(tmp_path / f"rows{ending}") == [3, None, 5]


def test_arrow_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    for name, rows in {"a": {"age": [1.0]}, "b": {"age": [SECRET]}}.items():
        feather.write_feather(pa.table(rows), tmp_path / f"{name}.arrow")
    assert "or its columns differ" in told(lambda: open_source(tmp_path))
    stream = tmp_path / "stream.arrow"
    with pa.OSFile(str(stream), "wb") as file, pa.ipc.new_stream(file, pa.schema([("age", pa.float64())])):
        pass
    assert "a stream" in told(lambda: open_source(stream))
    content = (tmp_path / "b.arrow").read_bytes()
    (tmp_path / "b.arrow").write_bytes(content[: len(content) // 2])
    assert "cannot be read" in told(lambda: ages(tmp_path / "b.arrow"))


def test_arrow_data_sets_and_readers_are_read_in_order(tmp_path: Path) -> None:
    for part in range(3):
        parquet(tmp_path / f"{part}.parquet", age=[part * 2.0, part * 2.0 + 1])
    dataset = ds.dataset(tmp_path)
    assert ages(dataset) == [0, 1, 2, 3, 4, 5]
    assert ages(dataset.to_table().to_reader()) == [0, 1, 2, 3, 4, 5]


# CSV


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        ("age,y", ","),
        ("age;y", ";"),
        ("age\ty", "\t"),
        ("age|y", "|"),
        ("weight,kg;age;y", ";"),
        ("weight;kg,age", ","),
        ('"a;b;c",y', ","),
        ('"a\n;b;c",y', ","),
        ("age", ","),
        ("", ","),
    ],
)
def test_separator_is_the_one_that_is_most_often_in_the_header(tmp_path: Path, header: str, separator: str) -> None:
    assert find_separator(str(csv_file(tmp_path, f"{header}\n1|2|3|4;5;6;7;8\n"))) == separator


def test_separator_of_a_file_named_tsv_is_a_tab_unless_another_is_more_often_in_the_header(tmp_path: Path) -> None:
    assert find_separator(str(csv_file(tmp_path, "a\tb,c\n", "rows.tsv"))) == "\t"
    assert find_separator(str(csv_file(tmp_path, "a;b\n", "rows.tsv"))) == ";"


def test_semicolons_are_read(tmp_path: Path) -> None:
    assert ages(csv_file(tmp_path, "age;y;note\n75;1;a,b\n1,5;0;\n")) == [75, None]


def test_header_that_is_a_single_name_is_told(tmp_path: Path) -> None:
    path = csv_file(tmp_path, f"age^y\n{SECRET}^1\n")

    def read() -> None:
        with open_source(path) as engine:
            engine.prepare(SCHEMA, Context(seed=0))

    assert "a semicolon, a tab or a bar" in str(hint_of(read))


# Queries over files


def test_query_names_files_as_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet(tmp_path / "a.parquet", id=[1, 2, 3], age=[30.0, 40.0, 50.0])
    csv_file(tmp_path, "id;y\n3;1\n1;0\n2;1\n", "b.csv")
    query = "SELECT a.age, b.y FROM 'a.parquet' a JOIN 'b.csv' b ON a.id = b.id::INT WHERE b.y = '1' ORDER BY a.id DESC"
    assert ages(tmp_path, query=query) == [50, 40]
    monkeypatch.chdir(tmp_path)
    assert ages("", query=query) == [50, 40]
    assert ages("a.parquet", query=query.replace("'a.parquet'", "source")) == [50, 40]
    assert ages("*.parquet", query="WITH z AS (SELECT * FROM source) SELECT age FROM z -- all") == [30, 40, 50]


def test_cell_of_a_csv_file_does_not_change_the_types_of_a_query(tmp_path: Path) -> None:
    for cell in ("25", SECRET):
        path = csv_file(tmp_path, f"age,y\n75,1\n{cell},0\n")
        with open_source("", query=f"SELECT age, y FROM '{path}'") as engine:
            assert {name: kind.kind for name, kind in engine.columns().items()} == {"age": "untyped", "y": "untyped"}
            assert column(engine, "age")[0] == 75


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_parquet('{other}')",
        "SELECT * FROM read_csv('{folder}/*.csv')",
        "SELECT * FROM read_text('{folder}/*')",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM source UNION ALL SELECT age FROM read_parquet('{other}')",
    ],
)
def test_query_reads_only_the_files_that_it_names_as_tables(tmp_path: Path, query: str) -> None:
    other = parquet(tmp_path / "other.parquet", age=[SECRET])
    path = parquet(tmp_path / "in" / "rows.parquet", age=[1.0])
    message = told(lambda: ages(path, query=query.format(other=other, folder=tmp_path)))
    assert message == "the query cannot be run: it may read only the files that it names as tables"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC * FROM source", "the query cannot be run: syntax error at or near"),
        ("SELECT agee FROM source", 'the query cannot be run: Referenced column "agee" not found in FROM clause'),
        ("SELECT * FROM nobody", "the query cannot be run: Table with name nobody does not exist"),
        ("SELECT age::INTEGER AS age FROM source", "the query cannot be run"),
        ("SELECT 1 / 0 AS age; SELECT 2", "the query cannot be run: it must be one SELECT statement"),
        ("COPY source TO 'out.csv'", "the query cannot be run: it must be one SELECT statement"),
        ("SELECT error(age) AS age FROM source", "the query cannot be run"),
        ("SELECT * FROM 'rows.duckdb'", "the DuckDB file"),
        ("SELECT * FROM 'row.csv'", "no file is named"),
    ],
)
def test_query_over_files_that_fails_is_told_without_a_row(tmp_path: Path, query: str, message: str) -> None:
    path = csv_file(tmp_path, f"age,y\n{SECRET},1\n")
    duckdb.connect(str(tmp_path / "rows.duckdb")).close()
    assert told(lambda: ages(tmp_path, query=query.replace("source", f"'{path.name}'"), spool=tmp_path)).startswith(
        message
    )
    assert {one.name for one in tmp_path.iterdir()} == {"rows.csv", "rows.duckdb"}


def test_column_of_a_file_without_a_header_is_not_offered(tmp_path: Path) -> None:
    path = csv_file(tmp_path, f"{SECRET},30\n1,2\n")
    for query in (
        "SELECT Smith FROM source",
        "SELECT s.age FROM source s",
        "SELECT * FROM source GROUP BY ALL HAVING x",
    ):
        assert SECRET not in told(lambda query=query: ages(path, query=query))  # type: ignore[misc]


# Tables of other libraries


def rows_of_people() -> pa.Table:
    rng = np.random.default_rng(3)
    columns = {
        "age": rng.normal(50, 20, 500),
        "sex": np.array(["F", "M"])[rng.integers(0, 2, 500)],
        "y": rng.integers(0, 2, 500),
    }
    return pa.table(columns)


PEOPLE = Schema(Classes("y", (0, 1)), (Numeric("age", 0, 100), Categorical("sex", ("F", "M"))))


def packed_rows(source: Any, **options: Any) -> bytes:
    with open_source(source, **options) as engine:
        return bytes(np.concatenate(list(encode_rows(engine, PEOPLE))).tobytes())


@pytest.mark.filterwarnings("ignore:.*infer_string", "ignore:fetch_arrow_table:DeprecationWarning")  # of ibis
def test_tables_of_other_libraries_give_the_same_rows(tmp_path: Path) -> None:
    rows = rows_of_people()
    expected = packed_rows(rows)
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    categories = frame.with_columns(pl.col("sex").cast(pl.Categorical))
    assert packed_rows(frame) == packed_rows(frame.lazy()) == packed_rows(categories) == expected
    assert packed_rows(ibis.memtable(rows)) == expected
    path = parquet(tmp_path / "rows.parquet", **rows.to_pydict())
    assert packed_rows(ibis.duckdb.connect().read_parquet(path).select("y", "sex", "age")) == expected
    assert packed_rows(rows.to_pandas()) == expected
    bind = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    rows.to_pandas().to_sql("people", bind, index=False)
    assert packed_rows(bind, table="people") == packed_rows(bind, query="SELECT * FROM people") == expected
    people = sa.table("people", *map(sa.column, ("age", "sex", "y")))
    with bind.connect() as connection:
        assert packed_rows(connection, query=sa.select(people)) == expected
    bind.dispose()


def test_an_order_that_a_database_chooses_is_a_condition() -> None:
    """SQLite reads an index that has all columns of a query, in the order of private values."""
    bind = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    rows = pd.DataFrame({"id": range(100), "age": [*range(99, -1, -1)], "notes": "long " * 100})
    rows.to_sql("people", bind, index=False)
    with bind.begin() as connection:
        connection.execute(sa.text("CREATE INDEX by_age ON people (age)"))
    people = sa.table("people", sa.column("id"), sa.column("age"))
    with open_source(bind, query="SELECT age FROM people") as engine:
        (batch,) = engine.batches(["age"], parse={"age": "number"})
        assert batch.column("age").to_pylist() == [*range(100)], "this would be in the stored order"
        assert list(engine.guarantee_conditions) == [UNORDERED]
    for ordered in ("SELECT age FROM people\norder  BY id", sa.select(people).order_by(people.c.id)):
        with open_source(bind, query=ordered) as engine:
            (batch,) = engine.batches(["age"], parse={"age": "number"})
            assert batch.column("age").to_pylist() == [*range(99, -1, -1)]
            assert not engine.guarantee_conditions
    for unordered in ({"query": sa.select(people)}, {"table": "people"}):
        with open_source(bind, **unordered) as engine:
            assert list(engine.guarantee_conditions) == [UNORDERED]
    with pytest.warns(UserWarning, match="the database chooses the order of the rows"), pytest.raises(DataError):
        boltdp.train(
            bind,
            {"label": "sick", "classes": [0, 1], "numeric": {"age": [0, 9]}},
            table="people",
            epsilon=1,
            anyway=True,
        )
    bind.dispose()


def test_failing_tables_are_told_without_values() -> None:
    lazy = pl.LazyFrame({"age": [SECRET]}).with_columns(pl.col("age").cast(pl.Float64))
    assert told(lambda: open_source(lazy)).endswith("an object of type 'LazyFrame' failed")
    bind = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    with bind.begin() as connection:
        connection.execute(sa.text("CREATE TABLE people (age TEXT)"))
        connection.execute(sa.text(f"INSERT INTO people VALUES ('{SECRET}')"))
    assert (
        told(lambda: open_source(bind, query="SELEC"))
        == "the query cannot be run: the database reports OperationalError"
    )
    assert told(lambda: open_source(bind, table="person")) == "the table 'person' does not exist"
    assert hint_of(lambda: open_source(bind, table="person")) == "there are the tables people"
    assert told(lambda: ages(bind, query="SELECT json(age) AS age FROM people")).startswith("the query cannot be run")
    bind.dispose()
    with pytest.raises(ParameterError, match="give either table or query"):
        open_source(bind)
    postgres = sa.create_mock_engine("postgresql+psycopg://", lambda *_: None)
    assert "PostgreSQL must be given by its address" in told(lambda: open_source(postgres, table="people"))


@pytest.mark.parametrize("declared", ["schema", "bounds"])
def test_estimators_take_tables_of_polars_and_arrow(declared: str) -> None:
    rows = rows_of_people()
    if declared == "schema":
        parameters: dict[str, Any] = {"schema": PEOPLE}
        X = rows.select(["age", "sex"])
    else:
        parameters = {"classes": [0, 1], "bounds": (0, 100)}
        X = pa.table({"age": rows["age"], "half": pa.array([None, *rows["age"].to_pylist()[1:]], pa.float32())})
    y = rows["y"].to_numpy()
    fitted = {}
    frame = pl.from_arrow(X)
    assert isinstance(frame, pl.DataFrame)
    for kind, table in {"pandas": X.to_pandas(), "polars": frame, "lazy": frame.lazy(), "arrow": X}.items():
        labels = pl.Series("y", y) if kind == "polars" else pa.chunked_array([y]) if kind == "arrow" else y
        model = PrivateLogisticRegression(epsilon=None, random_state=0, **parameters).fit(table, labels)
        assert model.feature_names_in_.tolist() == X.column_names
        fitted[kind] = (model.coef_.tolist(), model.predict_proba(table).tolist())
    assert fitted["polars"] == fitted["lazy"] == fitted["arrow"] == fitted["pandas"]


def test_estimators_tell_of_columns_that_are_no_numbers() -> None:
    table = pl.DataFrame({"age": [SECRET, "x"], "b": [1.0, 2.0]})
    with pytest.raises(DataError, match=r"^column 'age' must have numbers, its type is 'string_view'") as caught:
        PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(0, 1)).fit(table, [0, 1])
    assert caught.value.hint == "declare its categories in a schema, or leave it out"


@pytest.mark.parametrize("kind", ["arrow", "view", "dictionary", "polars", "categories", "lazy", "pandas"])
def test_texts_in_memory_become_numbers_as_those_of_a_csv_file_do(tmp_path: Path, kind: str) -> None:
    cells = ["30", " 1.5 ", "1.0h", None, "1e1", "30"]
    frame, texts = pl.DataFrame({"age": cells, "y": [0] * 6}), pa.array(cells)
    makers = {
        "arrow": lambda: pa.table({"age": texts, "y": [0] * 6}),
        "view": lambda: pa.table({"age": texts.cast(pa.string_view()), "y": [0] * 6}),
        "dictionary": lambda: pa.table({"age": texts.dictionary_encode(), "y": [0] * 6}),
        "polars": lambda: frame,
        "categories": lambda: frame.with_columns(pl.col("age").cast(pl.Categorical)),
        "lazy": frame.lazy,
        "pandas": frame.to_pandas,
    }
    rows = makers[kind]()
    assert ages(rows) == [30, 1.5, None, None, 10, 30]
    file = csv_file(tmp_path, "".join(f"{cell or ''},0\n" for cell in ["age", *cells]).replace("age,0", "age,y"))
    with open_source(rows) as engine, open_source(file) as read:
        read_rows, expected = (np.concatenate(list(encode_rows(one, SCHEMA))) for one in (engine, read))
    np.testing.assert_array_equal(read_rows, expected)


def test_texts_of_pandas_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"sex": ["F", "M"] * 500, "age": ["30", None] * 500, "y": ["0", "1"] * 500})
    seen: list[Any] = []
    each = "boltdp.encoding.python_to_arrow._convert_each_cell"
    from boltdp.encoding import python_to_arrow

    original = python_to_arrow._convert_each_cell
    monkeypatch.setattr(each, lambda values, kind: original(seen.extend(values) or values, kind))  # type: ignore[func-returns-value]
    with open_source(frame) as engine:
        assert len(np.concatenate(list(encode_rows(engine, PEOPLE)))) == 1000
    assert len(seen) <= 1  # of the ages, which are numbers written as texts, each different one


# Addresses


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server of this machine, and its directory."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}", folder
        served.shutdown()
        thread.join()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_files_of_a_web_server_are_fetched_and_removed(server: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = server
    spool = tmp_path / "spool"
    spool.mkdir()
    csv_file(folder, "age;y\n30;1\n40;0\n")
    parquet(folder / "in" / "rows.parquet", age=[1.0, 2.0])
    with open_source(f"{address}/rows.csv?signature={SECRET}", spool=spool) as engine:
        (fetched,) = spool.iterdir()
        assert fetched.stat().st_mode & 0o777 == 0o700
        assert column(engine, "age") == [30, 40]
    assert list(spool.iterdir()) == []
    assert ages(f"{address}/in/rows.parquet", spool=spool) == [1, 2]
    assert ages("", query=f"SELECT * FROM '{address}/in/rows.parquet' WHERE age > 1", spool=spool) == [2]
    missing = f"{address}/none.csv?signature={SECRET}"
    assert told(lambda: open_source(missing, spool=spool)) == (
        f"'{address}/none.csv' cannot be read: there is no such file"
    )
    assert list(spool.iterdir()) == []


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_address_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    address = f"http://me:{SECRET}@127.0.0.1:1/rows.csv"
    message = told(lambda: open_source(address, spool=tmp_path))
    assert message.startswith("'http://127.0.0.1:1/rows.csv' cannot be read: it cannot be reached (")
    assert "is no kind of address" in told(lambda: open_source("mysql://host/rows.csv", spool=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "address",
    [
        f"zip://rows.csv::http://me:{SECRET}@127.0.0.1:1/rows.zip",
        f"simplecache::http://me:{SECRET}@127.0.0.1:1/rows.csv",
        f"http://me:{SECRET}/{SECRET}@127.0.0.1:1/rows.csv",
        f"http://me:{SECRET}?{SECRET}@127.0.0.1:1/rows.csv",
        f"http://me:{SECRET}#{SECRET}@127.0.0.1:1/rows.csv",
        f"http://a\u2100:{SECRET}@127.0.0.1:1/rows.csv",
        f"http://me:{SECRET}@[127.0.0.1:1/rows.csv",
    ],
)
def test_no_part_of_a_password_in_an_address_is_told(tmp_path: Path, address: str) -> None:
    assert SECRET not in told(lambda: open_source(address, spool=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("planted", "message"),
    [("../../rows.csv", "may have '..' in its path"), ("/rows.csv", "must have different paths")],
)
def test_a_file_at_an_address_is_copied_neither_out_of_its_directory_nor_over_another(
    tmp_path: Path, planted: str, message: str
) -> None:
    memory, spool = fsspec.filesystem("memory"), tmp_path / "spool"
    spool.mkdir()
    for name in ("rows.csv", planted):  # object stores take any name
        path = f"/boltdp-test/visits/{name}"
        memory.store[path] = MemoryFile(memory, path, b"age\n1\n")
    try:
        assert message in told(lambda: open_source("memory://boltdp-test/visits", spool=spool))
    finally:
        memory.store.clear()
    assert list(tmp_path.rglob("*")) == [spool]


def test_directories_and_patterns_at_an_address_are_read_in_order() -> None:
    memory = fsspec.filesystem("memory")
    for part in (1, 0):
        with memory.open(f"/boltdp-test/year=202{part}/rows.csv", "w") as file:
            file.write(f"age\n{part}\n")
    try:
        for address in ("memory://boltdp-test", "memory://boltdp-test/*/*.csv"):
            with open_source(address) as engine:
                assert column(engine, "age") == [0, 1]
                assert column(engine, "year") == [2020, 2021]
    finally:
        memory.rm("/boltdp-test", recursive=True)


# Hints


def test_near_names_are_offered(tmp_path: Path) -> None:
    path = parquet(tmp_path / "patients.parquet", Age=[1.0], y=[1], name=[SECRET])
    assert hint_of(lambda: open_source(tmp_path / "patient.parquet")) == f"did you mean '{tmp_path}/patients.parquet'?"
    assert hint_of(lambda: open_source(tmp_path / "no" / "x.csv")) == f"there is no directory {str(tmp_path / 'no')!r}"
    with open_source(path) as engine:
        assert hint_of(lambda: check_columns(SCHEMA, engine.columns())) == "did you mean 'Age'?"
    with duckdb.connect(str(tmp_path / "rows.duckdb")) as connection:
        connection.execute("CREATE TABLE people AS SELECT 1 AS age; CREATE VIEW visits AS SELECT 1 AS age")
    database = tmp_path / "rows.duckdb"
    assert hint_of(lambda: open_source(database, table="nobody")) == "there are the tables people, visits"
    assert hint_of(lambda: open_source(database, table="visit")) == "did you mean 'visits'?"
    assert hint_of(lambda: open_source(database, query="SELECT * FROM x")) == "there are the tables people, visits"
    assert hint_of(lambda: open_source(tmp_path / "row.duckdb", table="x")) == f"did you mean '{tmp_path}/rows.duckdb'?"


def test_columns_of_a_text_file_are_offered_only_if_others_are_those_of_the_schema(tmp_path: Path) -> None:
    with open_source(csv_file(tmp_path, "Age,y\n1,2\n")) as engine:
        assert hint_of(lambda: check_columns(SCHEMA, engine.columns())) == "did you mean 'Age'?"
    with open_source(csv_file(tmp_path, "Age,z\n1,2\n")) as engine:
        assert "none of the schema's columns is there" in str(hint_of(lambda: check_columns(SCHEMA, engine.columns())))


def test_column_of_a_wrong_type_is_told_with_a_way_out(tmp_path: Path) -> None:
    with open_source(parquet(tmp_path / "rows.parquet", age=[SECRET], y=[1])) as engine:
        assert 'TRY_CAST("age" AS DOUBLE) AS "age"' in str(hint_of(lambda: check_columns(SCHEMA, engine.columns())))
    query = f"SELECT * REPLACE (TRY_CAST(age AS DOUBLE) AS age) FROM '{tmp_path / 'rows.parquet'}'"
    assert ages("", query=query) == [None]


# Files that others read


def test_columns_that_duckdb_or_arrow_detect_from_rows_are_a_condition(tmp_path: Path) -> None:
    path, lines = csv_file(tmp_path, "age,y\n1,0\n"), json_file(tmp_path, '{"age": 1, "y": 0}\n')
    parquet(tmp_path / "a.parquet", age=[1.0])
    base = tmp_path / "rows.duckdb"
    with duckdb.connect(str(base)) as connection:
        connection.execute("CREATE TABLE plain AS SELECT 1 AS age")
        sources: list[tuple[Any, bool]] = [
            (connection.sql(f"SELECT * FROM '{path}'"), True),
            (connection.sql(f"FROM read_json('{lines}')"), True),
            (connection.read_csv(str(path)).filter("age > 0"), True),
            (connection.table("plain"), False),
            (connection.sql(f"SELECT * FROM '{tmp_path / 'a.parquet'}'"), False),
            (ds.dataset(str(path), format="csv"), True),
            (ds.dataset(str(tmp_path / "a.parquet")), False),
        ]
        for source, detected in sources:
            with open_source(source) as engine:
                assert (DETECTED in engine.guarantee_conditions) == detected, source
    for table, query, detected in (
        ("plain", None, False),
        (None, "SELECT * FROM plain", False),
        (None, f"SELECT * FROM '{path}'", True),
        (None, f"SELECT * FROM plain WHERE age IN (SELECT age FROM read_json_auto('{lines}'))", True),
    ):
        with open_source(base, table=table, query=query) as engine:
            assert (DETECTED in engine.guarantee_conditions) == detected, query
    with duckdb.connect(str(base)) as connection:
        connection.execute(f"CREATE VIEW seen AS SELECT * FROM read_csv('{path}')")
        connection.execute('CREATE VIEW "again as" AS SELECT age FROM Seen')
    for table, detected in (("seen", True), ("again as", True), ("plain", False)):
        with open_source(base, table=table) as engine:
            assert (DETECTED in engine.guarantee_conditions) == detected, table
    with open_source(path) as engine, open_source("", query=f"SELECT * FROM '{path}'") as asked:
        assert not [*engine.guarantee_conditions, *asked.guarantee_conditions]  # read by rules of our own
