"""The versions of Spark that Tidegate runs on, and everything in which they differ. No other module asks for one."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RENAMED", "VERSIONS", "SparkVersion", "check_versions", "installed", "supported"]

_BYTES_PER_BATCH = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True)
class SparkVersion:
    """What is particular to one minor version of Spark.

    ``connector`` is the release of Spark's Kafka connector that Tidegate fetches for it, and ``scala`` the version that
    PySpark's own jars are built with. ``batch_limit`` is the setting that limits what a Python worker receives at once,
    Spark's default, and Tidegate's.
    """

    number: str
    connector: str
    scala: str = "2.13"
    batch_limit: tuple[str, str, str] = (_BYTES_PER_BATCH, "268435456b", str(8 << 20))

    @property
    def coordinate(self) -> str:
        """The Maven coordinate of the Kafka connector."""
        return f"org.apache.spark:spark-sql-kafka-0-10_{self.scala}:{self.connector}"

    def arguments(self) -> str:
        """Return what lets ``spark-submit`` read ``spark-defaults.conf`` beside a file of properties."""
        return "--load-spark-defaults"

    def defaults(self) -> str:
        """Return the properties that ``spark-submit`` would not read by itself, to precede those of a file."""
        return ""

    def quieten(self) -> None:
        """Silence PySpark's loggers that print the stack of every query error, which is raised as well."""
        from pyspark.logger import PySparkLogger  # noqa: PLC0415 - an extra

        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)

    def arrow_table(self, frame: DataFrame) -> Any:
        """Return the rows of a DataFrame as an Arrow table. Its timestamps are in UTC."""
        return frame.toArrow()

    def arrow_schema(self, schema: StructType) -> Any:
        """Return a schema of Spark as that of an Arrow table. Its timestamps are in UTC."""
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - an extra

        return to_arrow_schema(schema)

    def check_python(self) -> None:
        """Raise if PySpark does not run on this Python."""


class _Spark35(SparkVersion):
    """Spark 3.5, the last with Scala 2.12."""

    def arguments(self) -> str:
        return ""

    def defaults(self) -> str:
        folder = os.environ.get("SPARK_CONF_DIR") or Path(_spark_home(), "conf")
        try:
            return Path(folder, "spark-defaults.conf").read_text() + "\n\n"  # the first ends a line that is continued
        except FileNotFoundError:
            return ""

    def quieten(self) -> None:
        pass

    def arrow_table(self, frame: DataFrame) -> Any:
        import pyarrow as pa  # noqa: PLC0415 - an extra

        schema = self.arrow_schema(frame.schema)
        batches = frame._collect_as_arrow()  # type: ignore[operator, unused-ignore]
        return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()

    def check_python(self) -> None:
        if importlib.util.find_spec("distutils") is None:
            raise ConfigurationError(
                f"PySpark 3.5 imports distutils, which Python {sys.version_info.major}.{sys.version_info.minor} does "
                "not have; run Python 3.11, or: pip install setuptools"
            )


class _Spark42(SparkVersion):
    """Spark 4.2, where schemas have to say the time zone of timestamps."""

    def arrow_schema(self, schema: StructType) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - an extra

        return to_arrow_schema(schema, timezone="UTC")  # type: ignore[call-arg, unused-ignore]


def _spark_home() -> str:
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - an extra

    return str(_find_spark_home())  # type: ignore[no-untyped-call]


VERSIONS: Mapping[str, SparkVersion] = {
    version.number: version
    for version in (
        # It has no limit in bytes. So few records take little memory unless they are large.
        _Spark35("3.5", "3.5.7", scala="2.12", batch_limit=(_RECORDS_PER_BATCH, "10000", "1000")),
        SparkVersion("4.0", "4.0.0"),
        SparkVersion("4.1", "4.1.1"),
        _Spark42("4.2", "4.2.0"),
    )
}


RENAMED: Mapping[str, str] = {"PythonMapInArrow": "MapInArrow"}
"""Nodes of plans that have other names before Spark 4."""


def supported(number: str, whose: str) -> SparkVersion:
    """Return what is known of a version, such as ``4.0.1``; raise if Tidegate does not run on it."""
    if version := VERSIONS.get(".".join(number.split(".")[:2])):
        return version
    *others, last = VERSIONS
    raise ConfigurationError(
        f"Tidegate runs on Spark {', '.join(others)} and {last}, and the {whose} is {number}; run: "
        "pip install 'tidegate[spark]'"
    )


def installed() -> SparkVersion:
    """Return the version of the PySpark of this process; raise if Tidegate does not run on it."""
    import pyspark  # noqa: PLC0415 - an extra

    version = supported(pyspark.__version__, "PySpark here")
    version.check_python()
    return version


def check_versions(session: SparkSession) -> SparkVersion:
    """Return the version of a session; raise if Tidegate does not run on it, or if its PySpark is another one."""
    import pyspark  # noqa: PLC0415 - an extra

    version = installed()
    if supported(session.version, "Spark of this session") is not version:
        raise ConfigurationError(
            f"the PySpark here is {pyspark.__version__}, and the Spark of this session is {session.version}; install "
            f"the PySpark of that Spark: pip install 'pyspark=={session.version}'"
        )
    return version
