"""The settings of the Kafka client, as the connector of Spark takes them: librdkafka's names in, Java's out."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.core.errors import ConfigurationError
from tidegate.kafka.config import client_config
from tidegate.settings import refuse_unsafe
from tidegate.spark.kafka_security import security_options

__all__ = ["client_settings", "kafka_options"]

JAVA = "java."
"""Settings with this prefix go to the connector alone, under the rest of their name."""

# Java's defaults suit many small consumers; ours read a span as fast as they can and are not kept waiting at its end.
_TUNED = {
    "max.poll.records": "20000",
    "max.partition.fetch.bytes": str(8 << 20),
    "fetch.max.bytes": str(64 << 20),
    "fetch.max.wait.ms": "100",
    "receive.buffer.bytes": str(1 << 20),
}

_SAME = (
    *("client.id", "client.rack", "client.dns.lookup", "check.crcs", "fetch.min.bytes", "fetch.max.bytes"),
    *("max.partition.fetch.bytes", "connections.max.idle.ms", "socket.connection.setup.timeout.ms"),
    *("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms"),
    *("metadata.max.age.ms", "isolation.level", "bootstrap.servers", "enable.metrics.push"),
)
_RENAMED = {
    "metadata.broker.list": "bootstrap.servers",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "socket.timeout.ms": "request.timeout.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
}

# How librdkafka works inside, what it tells, and what producers and members of a group alone understand: without
# meaning for consumers that are told partition and offset.
_WITHOUT_MEANING = (
    *("debug", "log", "statistics.interval.ms", "stats_cb", "error_cb", "throttle_cb", "queued.", "topic.metadata."),
    *("socket.keepalive.enable", "socket.nagle.disable", "socket.max.fails", "socket.blocking.max.ms", "consume."),
    *("broker.address.", "broker.version.", "api.version.", "internal.", "builtin.features", "plugin."),
    *("message.max.bytes", "message.copy.max.bytes", "receive.message.max.bytes", "max.in.flight", "on_delivery"),
    *("allow.auto.create.topics", "heartbeat.interval.ms", "max.poll.interval.ms", "fetch.error.", "fetch.queue."),
    *("coordinator.query.interval.ms", "group.instance.id", "group.remote.assignor", "enable.random.seed"),
    *("topic.blacklist", "open_cb", "background_event_cb"),
    *("acks", "request.required.acks", "request.timeout.ms", "enable.idempotence", "transactional.", "transaction."),
    *("partitioner", "linger.ms", "batch.", "compression.", "queue.buffering.", "message.timeout.ms", "retries"),
    *("delivery.timeout.ms", "message.send.max.retries", "sticky.partitioning.", "enable.gapless.guarantee"),
)

_KEY = secrets.token_bytes(32)  # of this driver, and executors live no longer than it

_OURS = {
    "group.id": "it is derived from the pipeline's group",
    "auto.offset.reset": "executors read the offsets that the driver tells them, and no others",
    "enable.auto.commit": "positions are in the ledger",
    "key.deserializer": "records are read as bytes; the pipeline's format parses them",
    "value.deserializer": "records are read as bytes; the pipeline's format parses them",
    "interceptor.classes": "they could change or drop records that the ledger counts",
}


def client_settings(kafka: str | Mapping[str, Any]) -> dict[str, Any]:
    """The settings for the client of the driver: without those that are for the connector alone."""
    return {key: value for key, value in client_config(kafka).items() if not key.startswith(JAVA)}


def kafka_options(
    kafka: str | Mapping[str, Any], group: str, topic_ids: Iterable[str] = (), *, poll_timeout: float = 60.0
) -> dict[str, str]:
    """The options for ``spark.read.format("kafka")``; what and where to read is for the caller to add.

    Executors keep consumers, and records that were fetched ahead, under their group id. It is fixed, or nothing would
    be found again; and it changes with the settings and ``topic_ids``, or what another cluster or an earlier topic of
    the same name said would be found. ``poll_timeout``: a task fails after so many seconds without a record.
    """
    given = client_settings(kafka)
    refuse_unsafe(given)
    java: dict[str, str] = dict(_TUNED)
    for key, value in given.items():
        if (name := _java_name(key)) is not None:
            java[name] = _text(value)
    own = {} if isinstance(kafka, str) else _for_java(kafka)
    java |= security_options(given, own_login="sasl.jaas.config" in own) | own
    if not java.get("bootstrap.servers", "").strip():
        raise ConfigurationError("the Kafka settings name no 'bootstrap.servers'")
    java["isolation.level"] = "read_committed"
    java["group.id"] = f"tidegate-{group}-{_digest(java, topic_ids)}"
    return {f"kafka.{name}": value for name, value in java.items()} | {
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(int(poll_timeout * 1000)),
    }


def _java_name(key: str) -> str | None:
    """Java's name of a setting; ``None`` for one that is translated elsewhere or has no meaning here."""
    name = key.removeprefix("topic.") if key.startswith("topic.") and not key.startswith("topic.metadata") else key
    if name in _SAME:
        return name
    if name in _RENAMED:
        return _RENAMED[name]
    if name.startswith(("sasl.", "ssl.", "security.", "enable.ssl.", "enable.sasl.", "oauth")):
        return None  # each of them is looked at in kafka_security
    if name.startswith(_WITHOUT_MEANING):
        return None
    raise ConfigurationError(
        f"the client setting {key!r} has no counterpart in the Java client, which reads for Spark; leave it out, or "
        f"write the counterpart that you know of as '{JAVA}…'"
    )


def _for_java(kafka: Mapping[str, Any]) -> dict[str, str]:
    """The settings that the user gives the connector as they are."""
    own = {key.removeprefix(JAVA): _text(value) for key, value in kafka.items() if key.startswith(JAVA)}
    for name, reason in _OURS.items():
        if name in own:
            raise ConfigurationError(f"the client setting '{JAVA}{name}' is refused: {reason}")
    if own.get("isolation.level", "read_committed").lower() != "read_committed":
        raise ConfigurationError(
            f"the client setting '{JAVA}isolation.level' is refused: records of aborted transactions would be handled; "
            "leave it out"
        )
    return own


def _digest(java: Mapping[str, str], topic_ids: Iterable[str]) -> str:
    """Of secrets as well: with a new password come new consumers. Keyed: no password can be tried against it."""
    text = repr((sorted(java.items()), sorted(topic_ids)))
    return hashlib.blake2b(text.encode(), digest_size=8, key=_KEY).hexdigest()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
