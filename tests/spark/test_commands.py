"""Commands whose rows are in Spark, of this process or behind a Connect server, and what is told when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from boltdp.cli import main
from boltdp.engines import open_source
from boltdp.engines.spark import SparkEngine
from boltdp.errors import DataError, ParameterError
from boltdp.ledger import find_account, open_ledger
from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema
from boltdp.workflows.synthesize import synthesize
from tests.spark.connect import connect_server
from tests.spark.test_sockets import is_loopback, listening

ROOT = Path(__file__).parents[2]
#: Predicts for a DataFrame of Connect, any attribute of which is a column.
PREDICT = """
import sys
import boltdp
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[2]).getOrCreate()
model = boltdp.Model.load(sys.argv[1])
rows = spark.read.parquet(sys.argv[3])
assert hasattr(rows, "tocsr")
print(*model.predict(rows), sep="\\n")
assert (model.predict_proba(rows).argmax(axis=1) == model.predict(rows)).all()
spark.stop()
"""
TRAINED = ("--epsilon", 5, "--noise-seed", 1, "--seed", 2)


def boltdp(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in three files, the first of them the smallest, and a schema."""
    folder = tmp_path_factory.mktemp("spark commands")
    synthesize(folder / "all.parquet", rows=3000, dims=3).save(folder / "schema.toml")
    rows = pq.read_table(folder / "all.parquet")
    (folder / "parts").mkdir()
    for part, (start, stop) in enumerate([(0, 300), (300, 1000), (1000, 3000)]):
        pq.write_table(rows.slice(start, stop - start), folder / "parts" / f"{part}.parquet")
    return folder


def same_model(folder: Path, model: Path, *options: object) -> None:
    plain = folder / "plain.json"
    plain.unlink(missing_ok=True)
    trained = boltdp(
        "train", folder / "all.parquet", "--schema", folder / "schema.toml", *TRAINED, *options, "-o", plain
    )
    assert trained.exit_code == 0, trained.output
    assert Model.load(model).weights.tobytes() == Model.load(plain).weights.tobytes()


@pytest.mark.parametrize("algorithm", ["auto", "bolton"])
def test_table_is_trained_on_evaluated_and_scored(spark: Any, folder: Path, tmp_path: Path, algorithm: str) -> None:
    del spark
    model, table = tmp_path / "model.json", ("--table", f"parquet.`{folder / 'parts'}`")
    options = ("--algorithm", algorithm)
    schema = ("--schema", folder / "schema.toml")
    trained = boltdp("train", "local[2]", *table, *schema, *TRAINED, *options, "-o", model, "--json", "--in-server")
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.stdout)["where"] == "in Spark"
    same_model(folder, model, *options)
    if algorithm == "auto":
        return
    for command in (("evaluate", model), ("predict", model)):
        there, here = (boltdp(*command, *source) for source in (("local[2]", *table), (folder / "all.parquet",)))
        assert there.exit_code == 0, there.output
        assert there.stdout == here.stdout


def test_query_gives_the_rows_too(spark: Any, folder: Path, tmp_path: Path) -> None:
    del spark
    query = f"SELECT * FROM parquet.`{folder / 'parts'}`"
    schema = ("--schema", folder / "schema.toml")
    trained = boltdp("train", "local[2]", "--query", query, *schema, *TRAINED, "-o", tmp_path / "model.json")
    assert trained.exit_code == 0, trained.output
    assert "the guarantee is about the rows of the query's result, by position" in trained.output
    same_model(folder, tmp_path / "model.json")


@pytest.mark.slow
def test_rows_behind_a_connect_server_stay_there(folder: Path, tmp_path: Path) -> None:
    """By commands in processes of their own, as one process has a session of one kind only."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}

    def run(*arguments: object) -> str:
        command = [sys.executable, "-m", "boltdp", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        assert ("warning: spark.authenticate is off in Spark" in done.stderr) == (address in arguments)
        return done.stdout

    with connect_server(tmp_path) as address:
        table = ("--table", f"parquet.`{folder / 'parts'}`")
        for options in (("--algorithm", "auto"), ("--algorithm", "bolton", "--partitions", 3)):
            model = tmp_path / f"{options[1]}.json"
            run("train", address, *table, "--schema", folder / "schema.toml", *TRAINED, *options, "-o", model)
            same_model(folder, model, *options)
        assert run("evaluate", model, address, *table) == run("evaluate", model, folder / "all.parquet")
        predicted = run("predict", model, folder / "all.parquet")
        assert run("predict", model, address, *table) == predicted
        done = subprocess.run(
            [sys.executable, "-c", PREDICT, model, address, folder / "parts"],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split() == predicted.split()[1:], "after the name of the column"
        assert all(map(is_loopback, listening(psutil.Process())["java"]))


def test_what_is_not_there_is_told_and_nothing_else(spark: Any, tmp_path: Path) -> None:
    spark.range(3).createOrReplaceTempView("somewhere")
    with pytest.raises(DataError, match=r"^the table 'nowhere' cannot be read: \[TABLE_OR_VIEW_NOT_FOUND\] ") as told:
        open_source("local[2]", table="nowhere")
    assert told.value.__context__ is None
    assert told.value.hint == "did you mean 'somewhere'?"
    spark.catalog.dropTempView("somewhere")
    with pytest.raises(DataError, match=r"^the query cannot be run: .*PARSE_SYNTAX_ERROR"):
        open_source("local[2]", query="SELEC")
    with pytest.raises(DataError, match=r"^the query cannot be run: \[UNRESOLVED_COLUMN"):
        open_source("local[2]", query="SELECT nothing FROM range(3)")
    with pytest.raises(ParameterError, match=r"^give either table or query to say which rows of Spark to use$"):
        open_source("local[2]")
    with pytest.raises(ParameterError, match=r"^where must be 'auto' or 'server' with Spark"):
        open_source("local[2]", table="t", where="client")
    with pytest.raises(DataError, match=r"^the columns of the data must have different names, got 'a' more than once$"):
        open_source("local[2]", query="SELECT 1 AS a, 2 AS a").columns()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(DataError, match=r"^the table .* cannot be read"):
        open_source("local[2]", table=f"parquet.`{tmp_path}`")


def test_a_failing_job_is_told_without_what_spark_says_of_it(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """A cast that fails for one row, whose value Spark quotes in its exception."""
    text = "CASE id WHEN 2 THEN concat('Zaphod-', 4709 + id) ELSE '1' END"
    engine = SparkEngine(spark.range(3).selectExpr(f"CAST({text} AS double) AS age", "id % 2 AS sick"))
    schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    capfd.readouterr()
    for action, message in (
        (lambda: engine.prepare(schema, Context(seed=1)), "the rows cannot be prepared"),
        (lambda: [*engine.batches(["age"])], "the rows cannot be read"),
    ):
        with pytest.raises(DataError, match=f"^{message}$") as told:
            action()
        assert told.value.__context__ is None
        assert told.value.__cause__ is None
    out, err = capfd.readouterr()
    assert "DataFrameQueryContextLogger" not in out + err


def test_kinds_of_columns(spark: Any) -> None:
    query = (
        "SELECT 1 AS i, CAST(1 AS tinyint) AS t, 1.5 AS d, 1.5D AS f, 'a' AS s, true AS b, array(1, 2) AS l, "
        "array('a') AS ls, NULL AS n, DATE'2020-01-01' AS day, CAST('a' AS varchar(3)) AS v, X'00' AS x"
    )
    kinds = {name: column.kind for name, column in SparkEngine(spark.sql(query)).columns().items()}
    numbers = dict.fromkeys("itdf", "number")
    others = {"ls": "other", "n": "untyped", "day": "date", "v": "text", "x": "other"}
    assert kinds == {**numbers, "s": "text", "b": "bool", "l": "list", **others}


def test_all_kinds_of_numbers_are_encoded_alike(spark: Any) -> None:
    query = "SELECT CAST(id AS {}) AS age, id % 2 AS sick FROM range(100)"
    schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    found = []
    for kind in ("tinyint", "float", "double", "decimal(10, 2)"):
        with SparkEngine(spark.sql(query.format(kind))).prepare(schema, Context(seed=1)) as prepared:
            found.append(np.concatenate([*prepared.read_blocks()]).tobytes())
    assert len(set(found)) == 1


def test_the_ledger_beside_files_that_spark_reads_is_found(spark: Any, folder: Path) -> None:
    beside = open_ledger(folder / "parts" / ".boltdp-ledger.db")
    beside.set_budget("parts", Budget(1.0))
    try:
        name = f"parquet.`{folder}/parts/0.parquet`"
        frame = spark.read.parquet(str(folder / "parts")).where("label = 1")
        for asked in (
            {"source": "local[2]", "table": name},
            {"source": "local[2]", "table": f"parquet.`file://{folder}/parts`"},
            {"source": "local[2]", "query": f"SELECT * FROM {name} JOIN seen USING (id)"},
            {"source": frame},
        ):
            account = find_account(**asked, dataset="parts")
            assert account is not None, asked
            assert Path(account.ledger.address) == folder / "parts" / ".boltdp-ledger.db"
        for elsewhere in ("parquet.`hdfs://head/parts`", f"hospital.`{folder}/parts/0.parquet`"):
            assert find_account("local[2]", table=elsewhere) is None
        assert find_account(spark.range(3)) is None
        train = ("train", "local[2]", "--table", name, "--schema", folder / "schema.toml", "--epsilon", 5)
        done = boltdp(*train, "-o", folder / "unpaid.json")
        assert (done.exit_code, (folder / "unpaid.json").exists()) == (1, False)
        assert "has no budget for a dataset '0.parquet'" in done.stderr
    finally:
        (folder / "parts" / ".boltdp-ledger.db").unlink()
