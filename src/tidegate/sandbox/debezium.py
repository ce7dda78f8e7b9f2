"""Debezium: Kafka Connect with a connector that sends the changes of a PostgreSQL to Kafka."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.java.jars import Jars
from tidegate.sandbox.errors import as_sandbox_error
from tidegate.sandbox.jars import KAFKA_VERSION
from tidegate.sandbox.kafka import FAST_START, Kafka
from tidegate.sandbox.postgres import Postgres
from tidegate.sandbox.process import Command
from tidegate.sandbox.programs import find_java
from tidegate.sandbox.registry import Registry
from tidegate.sandbox.server import PROBE_SECONDS, Server, Setting

__all__ = ["Debezium"]

DEBEZIUM_VERSION = "3.6.2.Final"
CONVERTER_VERSION = "2.6.13.Final"  # the POMs of later versions have a parent that was never published

_CONNECT = Jars(
    f"connect-{KAFKA_VERSION}",
    (
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    needed_by="Kafka Connect",
)
_PLUGIN = Jars(
    f"debezium-postgres-{DEBEZIUM_VERSION}",
    (f"io.debezium:debezium-connector-postgres:{DEBEZIUM_VERSION}",),
    needed_by="Kafka Connect",
    archive="plugin",
)
_AVRO = Jars(
    f"apicurio-converter-{CONVERTER_VERSION}",
    (f"io.apicurio:apicurio-registry-utils-converter:{CONVERTER_VERSION}",),
    needed_by="Kafka Connect",
    excluded="org.apache.kafka",
)


class Debezium(Server):
    """Kafka Connect in one process, with Debezium's connector for PostgreSQL.

    The source needs ``wal_level=logical``. Topics are named ``{prefix}.{schema}.{table}``, and created with
    ``partitions`` partitions. Keys and values are JSON; with ``schemas``, each has its schema in an envelope. With a
    ``registry`` they are Avro, with the id of their schema in front. ``settings`` are properties of the connector.
    Without ``directory`` the connector begins with a snapshot; with one, it goes on.
    """

    title = "Debezium"
    start_timeout = 120.0
    connector = "source"
    """The name of the connector."""

    def __init__(
        self,
        kafka: Kafka,
        source: Postgres,
        *,
        prefix: str,
        partitions: int = 4,
        schemas: bool = True,
        registry: Registry | None = None,
        port: int | None = None,
        directory: str | Path | None = None,
        keep: bool = False,
        settings: Mapping[str, Setting] | None = None,
        jvm: Sequence[str] = FAST_START,
    ) -> None:
        super().__init__(port=port, directory=directory, keep=keep, settings=settings)
        self._kafka = kafka
        self._source = source
        self.prefix = prefix
        self._partitions = partitions
        self._schemas = schemas
        self._registry = registry
        self._jvm = tuple(jvm)

    def _check(self) -> None:
        find_java("Kafka Connect")
        with as_sandbox_error():
            _CONNECT.fetched()
            _PLUGIN.fetched()
            if self._registry is not None:
                _AVRO.fetched()

    def _initialise(self) -> None:
        (self._space.path / "offsets").unlink(missing_ok=True)

    def _command(self) -> Command:
        worker = self._space.private_file("worker.properties", _lines(self._worker()))
        connector = self._space.private_file("connector.properties", _lines(self._connector()))
        log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        java = find_java("Kafka Connect")
        return Command([java, *self._jvm, log, "-cp", f"{_CONNECT.fetched()}/*", main, str(worker), str(connector)])

    def _ready(self) -> bool:
        """Ask whether the connector and its task run."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", f"/connectors/{self.connector}/status")
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                return False
            found = json.loads(answer.read())
        except (http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return bool(found["tasks"]) and all(
            each["state"] == "RUNNING" for each in (found["connector"], *found["tasks"])
        )

    def _secrets(self) -> Sequence[str]:
        return (self._source.password,)

    def _worker(self) -> dict[str, Setting]:
        return {
            "bootstrap.servers": self._kafka.bootstrap,
            "listeners": f"http://{self.host}:{self.port}",
            "plugin.path": ",".join(map(str, self._plugins())),
            "plugin.discovery": "only_scan",
            "offset.storage.file.filename": str(self._space.path / "offsets"),
            "offset.flush.interval.ms": 500,
            "producer.linger.ms": 5,
            **{
                f"{part}.converter{name}": value
                for part in ("key", "value")
                for name, value in self._converter().items()
            },
        }

    def _plugins(self) -> Sequence[Path]:
        """Return folders whose folders are plugins, each with its jars."""
        if self._registry is None:
            return [_PLUGIN.fetched()]
        own = self._space.fresh_folder("plugins")
        (own / "avro").symlink_to(_AVRO.fetched())
        return [_PLUGIN.fetched(), own]

    def _converter(self) -> dict[str, Setting]:
        """Return the properties of a converter, by the ends of their names."""
        if self._registry is None:
            return {
                "": "org.apache.kafka.connect.json.JsonConverter",
                ".schemas.enable": self._schemas,
                ".replace.null.with.default": False,
            }
        return {
            "": "io.apicurio.registry.utils.converter.AvroConverter",
            ".apicurio.registry.url": self._registry.native_url,
            ".apicurio.registry.auto-register": True,
            ".apicurio.registry.find-latest": False,
            ".apicurio.registry.use-id": "contentId",
            ".apicurio.registry.as-confluent": True,
            ".apicurio.registry.headers.enabled": False,
        }

    def _connector(self) -> dict[str, Setting]:
        return {
            "name": self.connector,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": 1,
            "database.hostname": self._source.host,
            "database.port": self._source.port,
            "database.user": self._source.user,
            "database.password": self._source.password,
            "database.dbname": self._source.database,
            "topic.prefix": self.prefix,
            "plugin.name": "pgoutput",
            "slot.name": self.prefix,
            "publication.name": self.prefix,
            "skipped.operations": "none",
            "poll.interval.ms": 20,
            "topic.creation.default.replication.factor": 1,
            "topic.creation.default.partitions": self._partitions,
            **self.settings,
        }


def _lines(properties: Mapping[str, Setting]) -> str:
    return "".join(f"{name}={_literal(value)}\n" for name, value in properties.items())


def _literal(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("\\", "\\\\")
