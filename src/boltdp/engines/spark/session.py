"""A Spark session, opened by the address of a master or a Connect server, or taken from a DataFrame.

All calls of Spark go through `Session.ask`, which runs them in another thread, so that a signal cancels the job, and
replaces Spark's errors, which may quote rows, by our own without chaining.
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
from boltdp.engines.spark.java import find_java
from boltdp.errors import BoltdpError, DataError, make_printable, require

T = TypeVar("T")

#: Settings of a session that is opened here, unless set in PYSPARK_SUBMIT_ARGS.
SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
#: Further ones if all of Spark runs on this machine: its ports, which serve rows, are not on the network.
LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}
#: Settings each of which encrypts the connections between the processes of Spark.
ENCRYPTION = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")
#: Reported reasons by patterns of Spark's messages: they concern the cluster, never rows.
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
    """A Spark session, which `close` stops if it is `owned`."""

    def __init__(self, spark: Any, *, owned: bool = False) -> None:
        self.spark = spark
        self._owned = owned
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="boltdp-spark")

    @cached_property
    def _is_encrypted(self) -> bool:
        """Whether Spark encrypts its files; files of the block cache would not be encrypted."""
        return self._is_any_setting_on("spark.io.encryption.enabled")

    def _is_any_setting_on(self, *names: str) -> bool:
        def read() -> list[str]:
            # A classic session may hold values that its running processes do not have.
            connect = type(self.spark).__module__.startswith("pyspark.sql.connect.")
            conf = self.spark.conf if connect else self.spark.sparkContext.getConf()
            return [str(conf.get(name, "false")) for name in names]

        values = self.ask(read, "the settings of Spark cannot be read")
        return any(value.lower() == "true" for value in values)

    @cached_property
    def exposure_warnings(self) -> tuple[str, ...]:
        """Warnings about who else could read the private rows in Spark, by its settings."""
        found = []
        if not self._is_any_setting_on("spark.authenticate"):
            found.append("spark.authenticate is off in Spark: whoever reaches its ports can read the rows")
        if not self._is_any_setting_on(*ENCRYPTION):
            found.append(f"{ENCRYPTION[0]} is off in Spark: whoever watches its network can read the rows")
        return tuple(found)

    @property
    def memory_bytes(self) -> int:
        """Upper bound on the bytes of rows that a task sorts in memory."""
        return sys.maxsize if self._is_encrypted else MEMORY_BYTES

    def make_cache_name(self) -> str | None:
        """Return a name for blocks in the cache of executors, or None if they must not be cached."""
        return None if self._is_encrypted else secrets.token_hex(8)

    @classmethod
    def open(cls, address: str) -> Session:
        """Open a session of a master (local[2], spark://host:7077, yarn) or a Connect server (sc://host:15002)."""
        require("spark", "reading from Spark")
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        remote = address.startswith("sc://")
        if not remote:
            os.environ.update(find_java())
        if address.startswith("local"):
            # The default of Spark is the python3 on the PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        with _restore_interrupt_handler(), silence_pyspark(), _make_files_private():
            # The active session is that of this thread, the context that of the process.
            owned = SparkSession.getActiveSession() is None and (remote or SparkContext._active_spark_context is None)
            # A "local-cluster", which is for tests of Spark, has a network of its own.
            local = re.fullmatch(r"local(\[.*\])?", address) is not None
            failed = False
            try:
                builder = SparkSession.builder
                builder = builder.remote(address) if remote else builder.master(address)
                arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
                for name, value in (SETTINGS | (LOCAL_SETTINGS if local else {})).items():
                    if owned and not remote and f"{name}=" not in arguments:
                        builder = builder.config(name, value)
                spark = builder.getOrCreate()
                spark.sql("SELECT 1").collect()
            except Exception:
                failed = True
        if failed:
            raise DataError(f"Spark at {make_printable(address)!r} does not answer, or cannot be started")
        return cls(spark, owned=owned)

    def ask(self, action: Callable[[], T], fault: str, *, names_only: bool = False) -> T:
        """Return the result of an action on Spark; raises an error that quotes no row if it fails.

        With `names_only`, for actions that read no row, Spark's messages about tables and columns are passed on.
        """
        tag = f"boltdp-{secrets.token_hex(8)}"

        def work() -> T:
            self.spark.addTag(tag)
            try:
                with silence_pyspark():
                    return action()
            finally:
                self.spark.removeTag(tag)

        future = self._worker.submit(work)
        reason: str | None
        try:
            return await_result(future)
        except KeyboardInterrupt:
            with suppress(Exception):
                self.spark.interruptTag(tag)
            wait([future])
            raise
        except BoltdpError:
            raise
        except Exception as error:
            reason = _explain_error(error, names_only=names_only)
        # Raised outside the handlers, so that Spark's exception is not its context.
        hint = INSTALL if "executors" in str(reason) else None
        raise DataError(fault if reason is None else f"{fault}: {reason}", hint=hint)

    def map_partitions(self, frame: Any, task: Task) -> Any:
        """Return the lazy DataFrame of a task's results for each partition."""
        return self.ask(lambda: frame.mapInArrow(task, task.columns), "the rows cannot be read")

    def close(self) -> None:
        self._worker.shutdown()
        if self._owned:
            with _restore_interrupt_handler(), silence_pyspark(), suppress(Exception):
                self.spark.stop()


@contextmanager
def silence_pyspark() -> Iterator[None]:
    """Suppress PySpark's warnings, and its log of exceptions, which may quote values."""
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
def _make_files_private() -> Iterator[None]:
    """Let only this user read files of processes that start in the block, as Spark's files contain rows."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _restore_interrupt_handler() -> Iterator[None]:
    """Restore the handler of Ctrl-C, which PySpark replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _explain_error(error: Exception, *, names_only: bool) -> str | None:
    """Return the reason of a Spark error without quoting a row; None if it is unknown."""
    message = str(error)
    for pattern, reason in REASONS.items():
        if re.search(pattern, message):
            return reason
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if names_only and kinds & {"AnalysisException", "ParseException"}:
        return make_printable(message.strip().splitlines()[0], longest=300)
    return None
