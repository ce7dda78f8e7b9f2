"""Checks of a Spark session: whether a pipeline can run on it, said before it tries."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import ConfigurationError
from tidegate.settings.masking import masked
from tidegate.spark.options import BYTES_PER_BATCH, MOST_BYTES_PER_BATCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_session"]

SUPPORTED = "4.0"
_DEFAULT_BYTES_PER_BATCH = "268435456b"
_V1_SOURCES = "spark.sql.sources.useV1SourceList"
_PROBE_SECONDS = 120.0  # executors may have to be started first
_NEEDED = {
    "org.apache.spark.sql.kafka010.KafkaSourceProvider": "spark-sql-kafka-0-10",
    "org.apache.spark.kafka010.KafkaConfigUpdater": "spark-token-provider-kafka-0-10",
    "org.apache.kafka.clients.consumer.KafkaConsumer": "kafka-clients",
    "org.apache.commons.pool2.impl.GenericKeyedObjectPool": "commons-pool2",
}
_CONNECTOR_JAR = re.compile(r"spark-sql-kafka-0-10_(?P<scala>[\d.]+)-(?P<spark>\d+\.\d+)[\w.-]*\.jar")


def check_session(session: SparkSession) -> None:
    """Raise a :class:`ConfigurationError` that says what is missing, unless a pipeline can run on this session.

    Takes ``kafka`` off the session's list of sources that are read through the older interface, and bounds the bytes of
    a batch that goes to a Python worker, unless they are set already.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise ConfigurationError(
            "this is a session of Spark Connect, and a pipeline's driver has to be this process; open the session with "
            "a master (SparkOptions(master=…)) instead of a remote"
        )
    _check_version(session)
    _check_connector(session)
    sources = str(session.conf.get(_V1_SOURCES, "") or "")
    kept = [source for source in sources.split(",") if source.strip().lower() != "kafka"]
    if len(kept) < len(sources.split(",")):
        session.conf.set(_V1_SOURCES, ",".join(kept))
    if session.conf.get(BYTES_PER_BATCH, "") in ("", _DEFAULT_BYTES_PER_BATCH):
        session.conf.set(BYTES_PER_BATCH, str(MOST_BYTES_PER_BATCH))
    if not str(session.sparkContext.master).startswith("local["):
        _check_workers(session)


def _check_version(session: SparkSession) -> None:
    import pyspark  # noqa: PLC0415 - an extra

    for version, whose in ((pyspark.__version__, "PySpark here"), (session.version, "Spark of this session")):
        if not version.startswith(f"{SUPPORTED}."):
            raise ConfigurationError(
                f"pipelines run on Spark {SUPPORTED}, and the {whose} is {version}; run: pip install 'tidegate[spark]'"
            )


def _check_connector(session: SparkSession) -> None:
    jvm: Any = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = {}
    for name, jar in _NEEDED.items():
        try:
            found[jar] = loader.loadClass(name)
        except Exception as error:
            raise ConfigurationError(
                f"the Kafka connector is not complete on the class path of this Spark session: {jar} is missing. Let "
                "the pipeline open the session (spark=SparkOptions(…)), or open yours with "
                f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{session.version}, in a new process"
            ) from error
    source = found["spark-sql-kafka-0-10"].getProtectionDomain().getCodeSource()
    jar = str(source.getLocation().getPath()) if source is not None else ""
    scala = str(jvm.scala.util.Properties.versionNumberString())
    match = _CONNECTOR_JAR.search(jar)
    if match and (match["spark"] != SUPPORTED or not scala.startswith(match["scala"])):
        raise ConfigurationError(
            f"the Kafka connector {match[0]} does not fit Spark {session.version} with Scala {scala}; take "
            f"spark-sql-kafka-0-10_{'.'.join(scala.split('.')[:2])} in version {session.version}"
        )


def _check_workers(session: SparkSession) -> None:
    """Run one task on some executor: it tells its Python, and fails where Tidegate is not installed."""
    context = session.sparkContext
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(context.parallelize([0], 1).mapPartitions(_introduce).collect()[0])
        except Exception as error:  # handed to the thread that waits
            answer.append(error)

    from pyspark import InheritableThread  # noqa: PLC0415 - an extra

    context.addJobTag("tidegate-check")
    asking = InheritableThread(target=ask, daemon=True)
    asking.start()
    asking.join(_PROBE_SECONDS)
    context.removeJobTag("tidegate-check")
    if asking.is_alive():
        threading.Thread(target=context.cancelJobsWithTag, args=("tidegate-check",), daemon=True).start()
        raise ConfigurationError(
            f"no executor of {context.master} ran a task within {_PROBE_SECONDS:g} s: is that the right address, and "
            "has some worker a free core and enough memory?"
        )
    if isinstance(answer[0], Exception):
        raise ConfigurationError(_workers_trouble(str(answer[0]), str(context.pythonExec))) from answer[0]
    if answer[0] != _ours():
        raise ConfigurationError(
            f"executors run Python and Tidegate {' and '.join(answer[0])}, the driver {' and '.join(_ours())}; install "
            "the same on both"
        )


def _introduce(_: Iterable[int]) -> Iterator[tuple[str, str]]:
    yield _ours()


def _ours() -> tuple[str, str]:
    from importlib.metadata import version  # noqa: PLC0415 - on executors

    return f"{sys.version_info.major}.{sys.version_info.minor}", version("tidegate")


def _workers_trouble(said: str, python: str) -> str:
    if "No module named 'tidegate'" in said or "PackageNotFoundError" in said:
        return f"Tidegate is not installed for {python} on the executors; install there what the driver has"
    if "PYTHON_VERSION_MISMATCH" in said:
        return (
            f"{python} on the executors is another version of Python than {sys.version.split()[0]} on the driver; let "
            "PYSPARK_PYTHON (or spark.pyspark.python) name the same version on the executors"
        )
    if "Cannot run program" in said:
        return (
            f"there is no {python} on the executors; let PYSPARK_PYTHON (or spark.pyspark.python) name a Python there"
        )
    reason = next((line for line in reversed(said.strip().splitlines()) if line.strip()), "it did not say why")
    return f"a first task failed on the executors: {masked(reason.strip())}"
