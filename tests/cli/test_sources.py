"""Sources that fail in every way we could think of, with a secret in their rows: nothing that is printed has it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from .conftest import SECRET, Run

HEADER = "age,pulse,ward,sick\n"
ROWS = f"50,80,A,yes\n{SECRET},80,{SECRET},{SECRET}\n" * 20
LINES = "".join(
    json.dumps({"age": age, "pulse": 80, "ward": SECRET, "sick": SECRET}) + "\n" for age in (50, SECRET) * 20
)
RECORDS = {"age": [SECRET] * 40, "pulse": [80.0] * 40, "ward": [SECRET] * 40, "sick": ["yes"] * 40}


def write(name: str, text: str | bytes) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)

    return make


def both(*actions: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [action(folder) for action in actions]


def records(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        table, path = pa.table(RECORDS), folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        feather.write_feather(table, path) if path.suffix == ".arrow" else pq.write_table(table, path)

    return make


def database(folder: Path) -> None:
    with duckdb.connect(str(folder / "d.duckdb")) as connection:
        connection.register("given", pa.table(RECORDS))
        connection.execute("CREATE TABLE people AS SELECT * FROM given")


def cut(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        records(name)(folder)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return make


CSV = write("d.csv", HEADER + ROWS)
JSON = write("d.jsonl", LINES)

#: What is there, what is asked for, and what is told.
FAULTS: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "CSV without a header": (write("d.csv", ROWS[13:]), ["d.csv"], "different names"),
    "CSV without a header, of different cells": (
        write("d.csv", f"{SECRET},1,2,3\n" * 20),
        ["d.csv"],
        "hint: none of the schema's columns is there",
    ),
    "CSV whose header is near": (
        write("d.csv", HEADER.replace("pulse", "Pulse ") + ROWS),
        ["d.csv"],
        "hint: did you mean 'Pulse '?",
    ),
    "CSV with another separator": (write("d.csv", (HEADER + ROWS).replace(",", "^")), ["d.csv"], "a tab or a bar"),
    "CSV whose rows have another separator": (
        write("d.csv", HEADER + ROWS.replace(",", ";")),
        ["d.csv"],
        "4 cells of the header",
    ),
    "gzip of something else": (write("d.csv.gz", HEADER + ROWS), ["d.csv.gz"], "cannot be read"),
    "gzip cut short": (
        write("d.jsonl.gz", gzip.compress(LINES.encode() * 2000, 0)[:500_000]),
        ["d.jsonl.gz"],
        "cannot be read",
    ),
    "JSON that begins with a value": (write("d.jsonl", f'"{SECRET}"\n' + LINES), ["d.jsonl"], "a JSON object in each"),
    "JSON in one array": (write("d.jsonl", f"[{LINES}]"), ["d.jsonl"], "a JSON object in each"),
    "column of a wrong type in Parquet": (records("d.parquet"), ["d.parquet"], "make numbers of it in a query"),
    "column of a wrong type in Arrow": (records("d.arrow"), ["d.arrow"], "column 'age' must have numbers"),
    "Arrow cut short": (cut("d.arrow"), ["d.arrow"], "a file is damaged"),
    "Arrow that is text": (write("d.feather", HEADER + ROWS), ["d.feather"], "a file is damaged"),
    "Parquet cut short": (cut("d.parquet"), ["d.parquet"], "a file is damaged"),
    "directory of several kinds": (both(records("d/a.parquet"), write("d/b.csv", ROWS)), ["d"], "files of one kind"),
    "directory without files": (lambda folder: (folder / "d").mkdir(), ["d"], "it has none"),
    "partitions of different keys": (
        both(records("d/a=1/a.parquet"), records("d/b=1/a.parquet")),
        ["d"],
        "must name the same columns",
    ),
    "file that is not there": (CSV, ["e.csv"], "hint: did you mean 'd.csv'?"),
    "table that is not there": (database, ["d.duckdb", "--table", "person"], "hint: there are the tables people"),
    "no table": (database, ["d.duckdb"], "hint: there are the tables people"),
    "syntax of a query": (database, ["d.duckdb", "--query", "SELECT * FORM people"], "syntax error at or near"),
    "column of a query": (
        database,
        ["d.duckdb", "--query", "SELECT agee FROM people"],
        '"agee" not found',
    ),
    "conversion in a query": (
        database,
        ["d.duckdb", "--query", "SELECT * REPLACE (age::DOUBLE AS age) FROM people"],
        "the query on 'd.duckdb' cannot be run",
    ),
    "error of a query": (
        database,
        ["d.duckdb", "--query", "SELECT * REPLACE (error(ward) AS age) FROM people"],
        "cannot be",
    ),
    "conversion of what a subquery gives": (
        database,
        ["d.duckdb", "--query", "SELECT * FROM people LIMIT (SELECT ward::INT FROM people LIMIT 1)"],
        "error: ",
    ),
    "names made of values": (
        database,
        ["d.duckdb", "--query", "SELECT * FROM (PIVOT people ON ward USING count(*))"],
        "it must be one SELECT statement",
    ),
    "syntax of a query over files": (CSV, ["--query", "SELECT * FROM 'd.csv' WHERE"], "syntax error at or near"),
    "column of a query over files": (CSV, ["--query", "SELECT ages FROM 'd.csv'"], '"ages" not found'),
    "conversion in a query over files": (
        CSV,
        ["--query", "SELECT * REPLACE (age::DOUBLE AS age) FROM 'd.csv'"],
        "the query cannot be run",
    ),
    "conversion in a query over JSON": (
        JSON,
        ["--query", "SELECT * REPLACE (age::DOUBLE AS age) FROM 'd.jsonl'"],
        "the query cannot be run: it may not read JSON lines",
    ),
    "file that a query does not name as a table": (
        CSV,
        ["--query", "SELECT * FROM read_csv('d.csv')"],
        "only the files that it names as tables",
    ),
    "file of a query that is not there": (CSV, ["--query", "SELECT * FROM 'e.csv'"], "hint: did you mean 'd.csv'?"),
    "table of a query over files": (CSV, ["--query", "SELECT * FROM d"], "hint: name files as tables"),
    "server that does not answer": (CSV, [f"http://me:{SECRET}@127.0.0.1:1/d.csv"], "it cannot be reached"),
    "kind of address": (CSV, [f"mysql://me:{SECRET}@127.0.0.1/d.csv"], "no kind of address"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", FAULTS)
def test_source_that_fails_is_told_without_its_rows(
    run: Run, tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare, arguments, message = FAULTS[name]
    folder, spool = tmp_path / "in", tmp_path / "spool"
    folder.mkdir()
    spool.mkdir()
    prepare(folder)
    monkeypatch.chdir(folder)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    options = ["--schema", rows.with_name("schema.toml"), "--epsilon", 1, "--spool", spool, "-o", "model.json"]
    result = run("train", *arguments, *options, "--anyway")
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert "error: " in result.stderr
    assert message in result.stderr
    assert SECRET not in result.output
    assert "Traceback" not in result.output
    assert "BOLTDP_DEBUG" not in result.output
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_query_over_files_trains_and_says_what_the_promise_is_about(run: Run, rows: Path) -> None:
    query = f"SELECT * FROM '{rows.name}' WHERE pulse IS NOT NULL"
    result = run("train", "--query", query, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert result.exit_code == 0, result.output
    assert "the guarantee is about the rows of the query's result" in result.stderr
    result = run("predict", "model.json", "--query", f"SELECT * FROM '{rows.name}' LIMIT 3")
    assert len(result.stdout.splitlines()) == 4


def test_schema_is_drafted_of_a_directory(run: Run, rows: Path, table: pa.Table) -> None:
    for year in (2023, 2024):
        folder = rows.parent / "visits" / f"year={year}"
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "rows.parquet")
    result = run("schema", "visits", "--label", "sick")
    assert result.exit_code == 0, result.output
    assert "year" in result.stdout
    assert "2023" not in result.stdout


def test_keys_of_a_row_of_json_do_not_decide_whether_a_training_succeeds(
    run: Run, tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--schema", rows.with_name("schema.toml"), "--epsilon", 1, "-o", "m.json", "--overwrite", "--anyway"]
    shapes = set()
    for keys in ("age pulse ward sick", "age pulse sick", "", f"{SECRET} sick"):
        row = json.dumps(dict.fromkeys(keys.split(), SECRET))
        for lines in (f"{row}\n{LINES}", f"{LINES}{row}\n", f"{row}\n" * 20):
            write("d.jsonl", lines)(tmp_path)
            result = run("train", "d.jsonl", *options)
            assert result.exit_code == 0, result.output
            assert "condition: the keys of JSON lines are private" in " ".join(result.stderr.split())
            shapes.add(len(json.loads((tmp_path / "m.json").read_text())["weights"]))
            assert SECRET not in result.output + (tmp_path / "m.json").read_text()
    assert len(shapes) == 1
