"""The settings of a producer's client: the user's, and what Tidegate sets where the user says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer

from tidegate.core.errors import ConfigurationError
from tidegate.kafka.config import check_client, client_config

__all__ = ["producer_config", "refuse_unsafe_sends", "safe_config"]

_ALIASES = {
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "compression.codec": "compression.type",
}
_CONSUMERS = (
    "group.",
    "session.timeout.ms",
    "heartbeat.",
    "max.poll.",
    "auto.offset.reset",
    "enable.auto.",
    "auto.commit.",
    "enable.partition.eof",
    "partition.assignment.",
    "isolation.level",
    "fetch.",
    "queued.",
    "check.crcs",
)
_REPORTS = "Tidegate serves the delivery reports; add a callback to the handle, or give the producer a SendListener"
_REFUSED = {
    "on_delivery": _REPORTS,
    "dr_cb": _REPORTS,
    "dr_msg_cb": _REPORTS,
    "delivery.report.only.error": "handles of records that were delivered would wait for ever",
    "default.topic.config": "write its settings beside the others",
}


def producer_config(kafka: str | Mapping[str, Any]) -> dict[str, Any]:
    """What a producer's client is opened with; settings that only consumers have are left out."""
    given = client_config(kafka)
    config: dict[str, Any] = {
        "partitioner": "murmur2_random",
        "topic.metadata.refresh.interval.ms": 10_000,
    }
    for key, value in given.items():
        name = _name(key)
        if reason := _REFUSED.get(name):
            raise ConfigurationError(f"the client setting {key!r} is refused: {reason}")
        if not name.startswith(_CONSUMERS):
            config[name] = value
    if "bootstrap.servers" not in config and "metadata.broker.list" not in config:
        raise ConfigurationError("no broker is named; pass kafka='host:9092', or settings with 'bootstrap.servers'")
    check_client(Producer, given)
    return config


def safe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that lose nothing and keep the order, over the user's; raises if those say otherwise."""
    refuse_unsafe_sends(config)
    return {**config, "enable.idempotence": True, "acks": "all", **_within(config)}


def refuse_unsafe_sends(config: Mapping[str, Any]) -> None:
    """Raise a :class:`ConfigurationError` that names every setting with which records can be lost or change places."""
    weak = []
    if str(config.get("acks", "all")).lower() not in {"all", "-1"}:
        weak.append("'acks' has to be 'all': otherwise a record is lost with the broker that acknowledged it")
    if str(config.get("enable.idempotence", True)).lower() in {"false", "f", "0"}:
        weak.append("'enable.idempotence' has to be true: otherwise a retry may write twice or out of order")
    if _number(config, "retries", 1) < 1:
        weak.append("'retries' has to be more than 0; 'message.timeout.ms' bounds them")
    if _number(config, "max.in.flight.requests.per.connection", 5) > 5:
        weak.append("'max.in.flight.requests.per.connection' has to be at most 5: otherwise the order is lost")
    if weak:
        raise ConfigurationError("Producer.safe refuses settings that lose records: " + "; ".join(weak))


def _within(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "retries": max(1, _number(config, "retries", 2**31 - 1)),
        "max.in.flight.requests.per.connection": _number(config, "max.in.flight.requests.per.connection", 5),
    }


def _name(key: str) -> str:
    name = key.removeprefix("topic.") if key.removeprefix("topic.") in _TOPICS else key
    return _ALIASES.get(name, name)


_TOPICS = {
    *("acks", "request.required.acks", "request.timeout.ms", "message.timeout.ms", "delivery.timeout.ms"),
    *("partitioner", "compression.codec", "compression.type", "compression.level", "queuing.strategy"),
}


def _number(config: Mapping[str, Any], key: str, default: int) -> int:
    try:
        return int(config.get(key, default))
    except ValueError:
        return default  # librdkafka says what is wrong with it
