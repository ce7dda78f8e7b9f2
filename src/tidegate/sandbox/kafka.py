"""A Kafka broker."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.sandbox.handshake import brokers_known_to
from tidegate.sandbox.jars import kafka_jars
from tidegate.sandbox.ports import free_port
from tidegate.sandbox.process import Command
from tidegate.sandbox.programs import find_java
from tidegate.sandbox.server import PROBE_SECONDS, Server, Setting

FAST_START: tuple[str, ...] = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""JVM options for the fastest start. For throughput over minutes, pass your own."""


def new_cluster_id() -> str:
    """Return a random cluster id in Kafka's format. It never begins with a dash, which would look like an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


class Kafka(Server):
    """Apache Kafka in KRaft mode: one process that is broker and controller.

    Topics are not created automatically, and have 4 partitions by default. Groups rebalance without delay and may use
    session timeouts from half a second. ``settings`` are broker properties. ``advertised`` is the address that the
    broker gives to clients, for a proxy in front. ``jvm`` replaces the JVM options.
    """

    title = "Kafka"

    def __init__(
        self,
        *,
        port: int | None = None,
        directory: str | Path | None = None,
        keep: bool = False,
        settings: Mapping[str, Setting] | None = None,
        advertised: tuple[str, int] | None = None,
        jvm: Sequence[str] = FAST_START,
        node_id: int = 1,
        cluster_id: str | None = None,
        voters: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(port=port, directory=directory, keep=keep, settings=settings)
        self.node_id = node_id
        self._cluster_id = cluster_id or new_cluster_id()
        self._voters = dict(voters or {})
        self._controller_port = self._voters.get(node_id)
        self._advertised = advertised
        self._jvm = tuple(jvm)

    @property
    def bootstrap(self) -> str:
        """The value of ``bootstrap.servers`` for clients."""
        host, port = self._advertised or (self.host, self.port)
        return f"{host}:{port}"

    @property
    def cluster_id(self) -> str:
        """The id that the cluster was formatted with."""
        return self._cluster_id

    @property
    def controller_port(self) -> int:
        """The port that controllers use among themselves."""
        if self._controller_port is None:
            self._controller_port = free_port()
        return self._controller_port

    def _ports(self) -> Sequence[int]:
        return (self.port, self.controller_port)

    def _forget_ports(self) -> None:
        super()._forget_ports()
        self._controller_port = None

    def _check(self) -> None:
        find_java("Kafka 4")
        kafka_jars()

    def _initialise(self) -> None:
        self._space.fresh_folder("data")
        config = self._write_config()
        self._run(
            self._java("kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}", "-c", str(config))
        )

    def _command(self) -> Command:
        formatted = (self._space.path / "data" / "meta.properties").read_text()
        known = dict(line.split("=", 1) for line in formatted.splitlines() if "=" in line)
        self._cluster_id = known["cluster.id"]
        return self._java("kafka.Kafka", str(self._write_config()))

    def _java(self, main: str, *arguments: str) -> Command:
        logging = (
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        )
        return Command([find_java("Kafka 4"), *self._jvm, *logging, "-cp", f"{kafka_jars()}/*", main, *arguments])

    def _ready(self) -> bool:
        known = brokers_known_to(self.host, self.port, PROBE_SECONDS)
        return self.node_id in known.ids and known.controller >= 0

    def _write_config(self) -> Path:
        lines = [f"{name}={_literal(value)}\n" for name, value in self._properties().items()]
        return self._space.private_file("server.properties", "".join(lines))

    def _properties(self) -> dict[str, Setting]:
        voters = self._voters or {self.node_id: self.controller_port}
        brokers = len(voters)
        return {
            "process.roles": "broker,controller",
            "node.id": self.node_id,
            "log.dirs": str(self._space.path / "data"),
            "listeners": f"CLIENT://{self.host}:{self.port},CONTROLLER://{self.host}:{self.controller_port}",
            "advertised.listeners": f"CLIENT://{self.bootstrap}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "CLIENT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(f"{node}@{self.host}:{port}" for node, port in voters.items()),
            "num.partitions": 4,
            "auto.create.topics.enable": False,
            "default.replication.factor": min(3, brokers),
            **_internal_topics(brokers),
            **_SHORT_TIMES,
            # The log cleaner allocates its map at once; the default size is a quarter of our heap.
            "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
            **self.settings,
        }


def _internal_topics(brokers: int) -> dict[str, Setting]:
    replicas, in_sync = min(3, brokers), min(2, brokers)
    return {
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 4,
    }


_SHORT_TIMES: Mapping[str, Setting] = {
    # A killed broker that restarts is refused until its previous session has ended.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 100,
    # Members of the new protocol learn of a rebalance by their heartbeat, whose interval the broker sets.
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.session.timeout.ms": 6000,
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 1000,
    "log.segment.delete.delay.ms": 1000,
    "log.cleaner.backoff.ms": 1000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}


def _literal(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
