"""What a Spark that boltdp starts shows to others: no port on the network, no file, and a warning where there are."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import boltdp
from boltdp.cli import main
from boltdp.engines.spark.session import Session
from boltdp.errors import PrivacyWarning
from tests.engines.sources import table

SCHEMA = {"label": "sick", "classes": [0, 1], "numeric": {"age": [0, 100]}}


def listening(process: psutil.Process) -> dict[str, list[str]]:
    """The addresses at which the programs of a process tree listen."""
    found: dict[str, list[str]] = {}
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # some end meanwhile, such as the watchdogs of kept blocks
            name = one.name()
            for connection in one.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found.setdefault(name, []).append(connection.laddr.ip)
    return found


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback


def train(folder: Path, schema: dict[str, Any], *options: str) -> Result:
    pq.write_table(table().select(["age", "sick"]), folder / "rows.parquet")
    boltdp.Schema.from_any(schema).save(folder / "schema.toml")
    source = ("local[2]", "--table", f"parquet.`{folder / 'rows.parquet'}`", "--schema", str(folder / "schema.toml"))
    command = ("train", *source, "--epsilon", "1", "-o", str(folder / "model.json"), *options)
    return CliRunner().invoke(main, command)


def test_nothing_listens_but_on_loopback_and_no_file_is_for_others(spark: Any, directory: Path, tmp_path: Path) -> None:
    """The session of the tests is the one that `boltdp train local[2]` opens."""
    trained = train(tmp_path, SCHEMA, "--algorithm", "noisy-gd", "--delta", "1e-6", "--passes", "1")
    assert trained.exit_code == 0, trained.output
    assert "warning" not in trained.output
    found = listening(psutil.Process())
    assert len(found["java"]) >= 3, "the driver, its blocks and the gateway of PySpark"
    assert all(is_loopback(one) for addresses in found.values() for one in addresses), found
    assert spark.sparkContext.uiWebUrl is None
    assert directory.stat().st_mode & 0o077 == 0, "what is shuffled, spilled or kept is in it"


@pytest.mark.usefixtures("spark")
def test_the_umask_of_the_process_is_as_before() -> None:
    before = os.umask(0o027)
    try:
        Session.open("local[2]").close()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"spark.authenticate": "false"}, "spark.authenticate is off in Spark: whoever reaches its ports"),
        ({"spark.network.crypto.enabled": "no"}, "spark.network.crypto.enabled is off in Spark: whoever watches"),
        ({"spark.network.crypto.enabled": "false", "spark.ssl.rpc.enabled": "TRUE"}, ""),
    ],
)
def test_a_session_without_authentication_or_encryption_is_told_of(
    spark: Any, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], told: str
) -> None:
    monkeypatch.setattr(spark.sparkContext, "_conf", spark.sparkContext.getConf().setAll([*changed.items()]))
    exposures = Session(spark).exposure_warnings
    assert len(exposures) == bool(told)
    assert "".join(exposures).startswith(told)


def test_commands_and_functions_warn_of_it(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a row is read: there is no such column."""
    off = dict.fromkeys(("spark.authenticate", "spark.network.crypto.enabled"), "false")
    monkeypatch.setattr(spark.sparkContext, "_conf", spark.sparkContext.getConf().setAll([*off.items()]))
    schema = SCHEMA | {"numeric": {"aeg": [0, 100]}}
    failed = train(tmp_path, schema, "--quiet")
    assert failed.exit_code == 1
    assert failed.stderr.count("warning: ") == 2
    frame = spark.createDataFrame(table().select(["age", "sick"]))
    missing = pytest.raises(boltdp.DataError, match="aeg")
    with pytest.warns(PrivacyWarning, match="can read the rows$") as caught, missing:
        boltdp.train(frame, schema, epsilon=1)
    assert [one.filename for one in caught] == [__file__] * 2


def test_a_session_of_another_thread_is_not_changed_and_not_stopped(spark: Any) -> None:
    owned = []

    def use() -> None:
        session = Session.open("local[2]")
        owned.append(session._owned)
        session.close()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert owned == [False]
    assert spark.range(3).count() == 3


def test_arguments_for_spark_are_not_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the settings that a session would be built with, since a process has one Spark."""
    from pyspark.sql import SparkSession

    built: dict[str, str] = {}

    class Builder:
        def config(self, name: str, value: str) -> Builder:
            built[name] = value
            return self

        def master(self, address: str) -> Builder:
            del address
            return self

        def getOrCreate(self) -> Any:  # noqa: N802
            raise RuntimeError

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    given = "--conf spark.ui.enabled=true --conf spark.authenticate.secret=x pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    for address, bound in (("local[2]", True), ("local", True), ("spark://head:7077", False), ("yarn", False)):
        built.clear()
        with pytest.raises(boltdp.DataError, match=r"does not answer, or cannot be started$"):
            Session.open(address)
        assert "spark.ui.enabled" not in built
        assert (built.get("spark.driver.bindAddress") == "127.0.0.1") is bound
        assert (built.get("spark.authenticate") == "true") is bound
