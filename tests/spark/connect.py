"""A Connect server of its own, for tests."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from boltdp.engines.spark.java import find_java

START_SECONDS = 180


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@contextmanager
def connect_server(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a server in a process of its own, whose log is server.log in the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **(settings or {}),
    }
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"),
        *(part for name, value in given.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    environment = os.environ | find_java() | {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert server.poll() is None, (folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
