"""The session: opened from the address of a master or of a Connect server, or taken from a DataFrame.

Whatever is asked of Spark goes through `Session.ask`: in another thread, so that a signal is heard and ends the job,
and with errors in our words. Spark's own may quote rows, and so are neither passed on nor chained.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

from boltdp._threads import await_result
from boltdp.engines.spark.executor_tasks import MEMORY_BYTES, Task
from boltdp.engines.spark.java import java_home
from boltdp.errors import BoltdpError, DataError, printable, require

T = TypeVar("T")

#: Settings of a session that is opened here, unless PYSPARK_SUBMIT_ARGS has them.
SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
#: Reasons that are stated, by what Spark says: they are about the cluster, never about rows.
REASONS = {
    r"No module named '?boltdp": "the executors have no boltdp",
    r"No module named '?(numpy|pyarrow|pandas)": "the executors lack a package that boltdp needs",
    r"PYTHON_VERSION_MISMATCH": "the executors have another version of Python",
    r"a task of boltdp failed: MemoryError|OutOfMemory": "there is too little memory",
    r"a task of boltdp failed: OSError|No space left on device": "an executor has no room on its disk",
    r"maxResultSize": "the results are larger than spark.driver.maxResultSize",
}
INSTALL = "install the same boltdp as here, and what it needs, for the Python of the executors"


class Session:
    """A Spark session, and whether it is ours to stop."""

    def __init__(self, spark: Any, *, ours: bool = False) -> None:
        self.spark = spark
        self._ours = ours
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="boltdp-spark")  # its thread begins with the first task

    @cached_property
    def _encrypted(self) -> bool:
        """Whether Spark encrypts what it writes to disks, which files of ours would not be."""
        name = "spark.io.encryption.enabled"
        value = self.ask(lambda: self.spark.conf.get(name, "false"), "the settings of Spark cannot be read")
        return str(value).lower() == "true"

    @property
    def memory_bytes(self) -> int:
        """Rows that a task puts in order in memory, at most."""
        return sys.maxsize if self._encrypted else MEMORY_BYTES

    def new_run(self) -> str | None:
        """A name for blocks that are kept where they were packed, if they may be."""
        return None if self._encrypted else secrets.token_hex(8)

    @classmethod
    def open(cls, address: str) -> Session:
        """Of a master (local[2], spark://host:7077, yarn) or a Connect server (sc://host:15002)."""
        require("spark", "reading from Spark")
        from pyspark.sql import SparkSession

        remote = address.startswith("sc://")
        if not remote:
            os.environ.update(java_home())
        if address.startswith("local"):
            # Else Spark would take whatever python3 is on the PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        with _signals_kept(), quietly():
            ours = SparkSession.getActiveSession() is None
            failed = False
            try:
                builder = SparkSession.builder
                builder = builder.remote(address) if remote else builder.master(address)
                given = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
                for name, value in SETTINGS.items():
                    if not remote and name not in given:
                        builder = builder.config(name, value)
                spark = builder.getOrCreate()
                spark.sql("SELECT 1").collect()
            except Exception:
                failed = True
        if failed:
            raise DataError(f"Spark at {printable(address)!r} does not answer, or cannot be started")
        return cls(spark, ours=ours)

    def ask(self, action: Callable[[], T], fault: str, *, names_only: bool = False) -> T:
        """Do something with Spark; if it fails, say so in our words and leave no trace of its own.

        With `names_only`, where no row is read yet, what Spark says of tables and columns is passed on.
        """
        tag = f"boltdp-{secrets.token_hex(8)}"

        def work() -> T:
            self.spark.addTag(tag)
            try:
                with quietly():
                    return action()
            finally:
                self.spark.removeTag(tag)

        begun = self._worker.submit(work)
        reason: str | None
        try:
            return await_result(begun)
        except KeyboardInterrupt:
            with suppress(Exception):
                self.spark.interruptTag(tag)
            wait([begun])
            raise
        except BoltdpError:
            raise
        except Exception as error:
            reason = _reason(error, names_only=names_only)
        # Raised here, outside the handlers, so that Spark's exception is not even its context.
        raise DataError(
            fault if reason is None else f"{fault}: {reason}", hint=INSTALL if "executors" in str(reason) else None
        )

    def map_partitions(self, frame: Any, task: Task) -> Any:
        """What a task makes of each partition of a DataFrame, when it is asked for."""
        return self.ask(lambda: frame.mapInArrow(task, task.columns), "the rows cannot be read")

    def close(self) -> None:
        self._worker.shutdown()
        if self._ours:
            with _signals_kept(), quietly(), suppress(Exception):
                self.spark.stop()


@contextmanager
def quietly() -> Iterator[None]:
    """Without PySpark's warnings about other packages, and without its log of exceptions, which may quote values."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        loggers = []
    else:
        loggers = [PySparkLogger.getLogger(name) for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger")]
    before = [logger.disabled for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.disabled = True
        try:
            yield
        finally:
            for logger, disabled in zip(loggers, before, strict=True):
                logger.disabled = disabled


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Leave the handling of Ctrl-C as it is: PySpark installs a handler of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _reason(error: Exception, *, names_only: bool) -> str | None:
    """Say why, as far as that is possible without a row."""
    said = str(error)
    for pattern, reason in REASONS.items():
        if re.search(pattern, said):
            return reason
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if names_only and kinds & {"AnalysisException", "ParseException"}:
        return printable(said.strip().splitlines()[0], longest=300)
    return None
