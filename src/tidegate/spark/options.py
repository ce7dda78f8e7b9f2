"""How a pipeline opens Spark: the options, and the settings that follow from them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tidegate.core.arguments import Kind, Label, convert_arguments, described, passed_through
from tidegate.core.errors import ConfigurationError
from tidegate.core.texts import is_text
from tidegate.settings.masking import Masked
from tidegate.spark.jars import jars_of

__all__ = ["DEFAULT_CONNECTOR", "SparkOptions"]

DEFAULT_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""Spark's own connector to Kafka. It fits every Spark 4.0."""

BYTES_PER_BATCH = "spark.sql.execution.arrow.maxBytesPerBatch"
MOST_BYTES_PER_BATCH = 8 << 20
"""What a worker is given at once of records. It needs several times as much while it makes rows of them."""

_SECRETS = r"(?i)secret|passw|token|credential|access[.]?key|jaas|[.]pem$|keystore|truststore|ssl[.]key|ledger"
_REFUSED = {
    "spark.master": "set master=… of SparkOptions",
    "spark.app.name": "set name=… of SparkOptions",
    "spark.remote": "a pipeline's driver is this process, not one behind Spark Connect; set master=… of SparkOptions",
    "spark.api.mode": "a pipeline's driver is this process, not one behind Spark Connect",
    "spark.submit.deployMode": "a pipeline's driver is this process; to run it in a cluster, start this program there",
}


def _conf(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, Mapping) or not all(is_text(key) for key in given):
        return None
    for key, value in given.items():
        if passed_through(value) is None:
            raise ConfigurationError(f"{key!r}: expected a string, a number, or true or false, not {described(value)}")
    return dict(given)


@dataclass(frozen=True, repr=False)
class SparkOptions(Masked):
    """How a pipeline opens Spark: by default in this process's machine, with a task for each core.

    ``connector`` is a Maven coordinate that is fetched once, or the paths of the jars, separated by commas, or ``None``
    if the cluster has it already. ``conf`` holds Spark's own settings; they win over Tidegate's.
    """

    master: Label = "local[*]"
    connector: Label | None = DEFAULT_CONNECTOR
    conf: Annotated[Mapping[str, str | int | float | bool], Kind("a mapping of Spark's settings", _conf)] = field(
        default_factory=dict
    )
    name: Label = "tidegate"

    def __post_init__(self) -> None:
        convert_arguments(self)
        for key in self.conf:
            if not key.startswith("spark."):
                raise ConfigurationError(f"conf: {key!r} is no setting of Spark: those begin with 'spark.'")
            if reason := _REFUSED.get(key):
                raise ConfigurationError(f"conf: the Spark setting {key!r} is refused: {reason}")

    @property
    def local(self) -> bool:
        """Whether driver and executors are one process."""
        return re.fullmatch(r"local(\[.*\])?", self.master) is not None

    @property
    def cores(self) -> int:
        """The tasks that run at once, where that is known from here."""
        number = re.match(r"local\[(\d+)", self.master)
        if number:
            return int(number.group(1))
        return (os.cpu_count() or 1) if self.local and "[" in self.master else 1

    def settings(self) -> dict[str, str]:
        """Everything that Spark is started with; fetches the connector."""
        own = {key: _text(value) for key, value in self.conf.items()}
        jars = [own.pop("spark.jars", ""), *map(str, self._connector_jars(own))]
        settings = {**_DEFAULTS, **self._on_this_machine(), **own}
        settings["spark.master"], settings["spark.app.name"] = self.master, self.name
        settings["spark.jars"] = ",".join(filter(None, jars))
        for key in ("spark.redaction.regex", "spark.sql.redaction.options.regex"):
            # Whatever else the user wants hidden: what is secret for us stays so.
            settings[key] = f"(?:{own[key]})|{_SECRETS}" if key in own else _DEFAULTS[key]
        return settings

    def _connector_jars(self, conf: Mapping[str, str]) -> list[Path]:
        if self.connector is None or "spark-sql-kafka" in conf.get("spark.jars.packages", ""):
            return []
        if not self.connector.endswith(".jar"):
            return jars_of(self.connector, conf.get("spark.jars.ivySettings"))
        jars = [Path(path.strip()) for path in self.connector.split(",")]
        for jar in jars:
            if not jar.is_file():
                raise ConfigurationError(f"there is no jar {jar}, which 'connector' of SparkOptions names")
        return jars

    def _on_this_machine(self) -> dict[str, str]:
        """Where all is on this machine nobody else has to reach the driver; and more tasks than cores are no use."""
        if not self.local and not re.match(r"spark://(127\.|localhost:)", self.master):
            return {}
        here = dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        here["spark.python.daemon.module"] = "tidegate.spark.daemon"
        if not self.local:
            return here
        # Executors share the driver's memory here, which is 1 GiB if nobody says otherwise.
        shared = {"spark.driver.memory": "2g"}
        return (
            here
            | shared
            | dict.fromkeys(("spark.sql.shuffle.partitions", "spark.default.parallelism"), str(self.cores))
        )


_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without kafka in it: rows of the older interface are converted once more on their way.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    "spark.python.worker.reuse": "true",
    BYTES_PER_BATCH: str(MOST_BYTES_PER_BATCH),
    # A consumer for each partition that an executor reads, kept from one micro-batch to the next.
    "spark.kafka.consumer.cache.capacity": "512",
    # The records of a micro-batch that a transform reads are kept for a second or two: to compress them takes longer.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.redaction.regex": _SECRETS,
    "spark.sql.redaction.options.regex": f"(?i)url|{_SECRETS.removeprefix('(?i)')}",
}


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
