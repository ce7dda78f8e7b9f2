"""The Spark session of a pipeline: how it is opened."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import ConfigurationError
from tidegate.java.runtime import find_java
from tidegate.settings.masking import masked
from tidegate.spark.checks import check_session
from tidegate.spark.gateway import Errors, launched
from tidegate.spark.options import DEFAULT_CONNECTOR, SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DEFAULT_CONNECTOR", "SparkOptions", "check_session", "open_session"]

_KNOCK_SECONDS = 5.0


def open_session(options: SparkOptions | None = None) -> SparkSession:
    """A checked session with these options.

    One that this process has already is taken if it was opened with the same, or if these are the defaults.
    """
    context, builder = _pyspark()
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - an extra

    options = options or SparkOptions()
    active = context._active_spark_context
    if active is not None and options not in (SparkOptions(), _machine.options):
        raise ConfigurationError(
            f"this process has a Spark session already ({active.appName!r} on {active.master}), and there can be one "
            "only: pass that session to the pipeline, or stop it first"
        )
    if active is not None:
        session: SparkSession = builder.getOrCreate()
        check_session(session)
        return session
    find_java("Spark 4")
    _check_master(options.master)
    settings = options.settings()
    for chatty in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # They print the stack of every error of a query, which is raised as well.
        PySparkLogger.getLogger(chatty).setLevel(logging.CRITICAL)
    with _python_of_the_workers(settings):
        session = _machine.start(settings)
    try:
        check_session(session)
    except BaseException:
        session.stop()
        raise
    _machine.options = options
    return session


class _Machine:
    """The Java machine of this process's sessions, one after another: Spark keeps it when a session is stopped."""

    def __init__(self) -> None:
        self.options: SparkOptions | None = None
        self._errors: Errors | None = None
        self._given: set[str] = set()

    def start(self, settings: Mapping[str, str]) -> SparkSession:
        """Start a session, in a new Java machine if there is none yet."""
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra
        from pyspark.sql import SparkSession  # noqa: PLC0415

        if SparkContext._gateway is None:
            gateway, self._errors = launched(settings)
            SparkContext._ensure_initialized(gateway=gateway)
        elif self._errors is not None:
            self._errors.keep()
        jvm: Any = SparkContext._jvm
        for key in self._given - settings.keys():  # the settings of the session before would be found there
            jvm.java.lang.System.clearProperty(key)
        self._given = set(settings)
        try:
            SparkContext(conf=SparkConf(_jvm=jvm).setAll(list(settings.items())))
            session: SparkSession = SparkSession.builder.getOrCreate()
        except Exception as error:
            raise ConfigurationError(
                f"Spark could not be started on {settings['spark.master']}: {masked(_cause(error))}"
            ) from error
        finally:
            if self._errors is not None:
                self._errors.pass_on()
        return session


_machine = _Machine()


def _check_master(master: str) -> None:
    """Knock at a standalone cluster: Spark itself would try for a minute, and then say something else."""
    if not master.startswith("spark://"):
        return
    failures = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            failures.append(f"{address}: {error}")
    raise ConfigurationError(f"no Spark master answers at {master} ({'; '.join(failures)}); is that its address?")


def _cause(error: Exception) -> str:
    """The first line of what Java said, or Python."""
    thrown = getattr(error, "java_exception", None)
    return str(error if thrown is None else thrown.toString()).strip().partition("\n")[0]


@contextmanager
def _python_of_the_workers(settings: Mapping[str, str]) -> Iterator[None]:
    """Workers run the interpreter that runs this, unless told otherwise: the python3 on PATH may lack everything."""
    name = "PYSPARK_PYTHON"
    before = os.environ.get(name)
    os.environ[name] = settings.get("spark.pyspark.python") or before or sys.executable
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _pyspark() -> tuple[Any, Any]:
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - an extra
        from pyspark.sql import SparkSession  # noqa: PLC0415

        if importlib.util.find_spec("pandas") is None:  # PySpark asks for it before it hands Arrow to Python
            raise ModuleNotFoundError(name="pandas")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"pipelines need {error.name}; run: pip install 'tidegate[spark]'") from None
    return SparkContext, SparkSession.builder
