"""The client's settings: the user's, and those without which the guarantee would not hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar, assert_never

from confluent_kafka import Consumer, KafkaException

from tidegate.core.arguments import ClientConfig, Kind, Label, argument, kind_of
from tidegate.core.errors import ConfigurationError
from tidegate.core.protocols import Protocol
from tidegate.core.texts import is_text
from tidegate.settings import masked, refuse_unsafe

__all__ = [
    "KafkaArgument",
    "address_of",
    "admin_config",
    "check_client",
    "check_own_consumer",
    "check_settings",
    "client_config",
    "consumer_config",
    "milliseconds",
    "opened",
]

Client = TypeVar("Client")

# What producers alone understand; a consumer would complain about each.
_PRODUCERS = (
    *("acks", "request.required.acks", "enable.idempotence", "transactional.", "transaction.", "partitioner"),
    *("linger.ms", "batch.", "compression.", "queue.buffering.", "message.timeout.ms", "delivery.timeout.ms"),
    *("retries", "message.send.max.retries", "sticky.partitioning.", "enable.gapless.guarantee"),
)


def address_of(kafka: Mapping[str, Any]) -> str:
    """What errors call the cluster."""
    return f"Kafka at {masked(str(kafka.get('bootstrap.servers') or kafka.get('metadata.broker.list')))}"


def _kafka(given: Any) -> dict[str, Any] | None:
    if is_text(given):
        return {"bootstrap.servers": given} if given.strip() else None
    found: dict[str, Any] | None = kind_of(ClientConfig).convert(given)
    for name in ("bootstrap.servers", "metadata.broker.list"):
        if found is not None and name in found:
            argument(repr(name), Label, found[name])
    return found


KafkaArgument: TypeAlias = Annotated[
    Mapping[str, Any], Kind("the address of a broker, such as 'localhost:9092', or settings of librdkafka", _kafka)
]
"""The cluster as an argument."""


def client_config(kafka: object) -> dict[str, Any]:
    """The settings of librdkafka for ``kafka``: an address, or the settings themselves."""
    config: dict[str, Any] = argument("kafka", KafkaArgument, kafka)
    return config


def opened(make: Callable[[dict[str, Any]], Client], config: Mapping[str, Any], what: str) -> Client:
    """A client; settings that librdkafka refuses are a :class:`ConfigurationError`, which names the setting."""
    try:
        return make(dict(config))
    except (KafkaException, ValueError, TypeError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigurationError(f"librdkafka refused the {what}'s settings: {reason}") from None


def check_client(make: Callable[[dict[str, Any]], Any], config: Mapping[str, Any]) -> None:
    """Have librdkafka look at settings without a broker, which takes less than a millisecond.

    It knows the settings of consumers and producers alike, so this is done with all that were given: those that one of
    them leaves out may be mistyped as well.
    """
    unneeded = ("bootstrap.servers", "metadata.broker.list", "logger", "log_level", "debug")
    quiet = {key: value for key, value in config.items() if key not in unneeded} | {"log_level": 0}
    try:
        client = opened(make, quiet, "client")
    except ConfigurationError as error:
        raise ConfigurationError(f"kafka: {error}") from None
    if isinstance(client, Consumer):
        client.close()


def check_settings(config: Mapping[str, Any], group: str = "any") -> None:
    """Have librdkafka look at the settings of a consumer."""
    check_client(Consumer, {**config, "group.id": group})


def admin_config(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """What an administration client is opened with. It logs nothing unless told to: its answers say what went wrong."""
    consumer_only = (
        *("max.poll.", "fetch.", "queued.", "topic.metadata.refresh", "heartbeat.", "logger"),
        *("enable.auto.", "auto.offset.reset", "isolation.level", "key.deserializer", "value.deserializer"),
        *("on_commit", "error_cb", "stats_cb", "throttle_cb", "statistics.interval.ms"),  # of the consumer's thread
    )
    config = {key: value for key, value in kafka.items() if not key.startswith(consumer_only)}
    return config if "debug" in config else {"log_level": 0, **config}


def consumer_config(kafka: Mapping[str, Any], group: str, protocol: Protocol, session_timeout: float) -> dict[str, Any]:
    """What a consumer is opened with."""
    refuse_unsafe(kafka)
    kafka = {key: value for key, value in kafka.items() if not key.startswith(_PRODUCERS)}
    config: dict[str, Any] = {
        "topic.metadata.refresh.interval.ms": 10_000,
        "fetch.wait.max.ms": 100,
        "queued.max.messages.kbytes": 32 << 10,
        **kafka,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    match protocol:
        case Protocol.CONSUMER:
            config["group.protocol"] = "consumer"  # the session timeout is the broker's to say then
        case Protocol.RANGE | Protocol.ROUND_ROBIN | Protocol.COOPERATIVE:
            config["partition.assignment.strategy"] = protocol.value
            config["session.timeout.ms"] = int(session_timeout * 1000)
            config.setdefault("max.poll.interval.ms", max(300_000, config["session.timeout.ms"]))  # not below the other
            # Several heartbeats fit into a session, also into a short one.
            config.setdefault("heartbeat.interval.ms", min(3000, int(session_timeout * 1000 / 3)))
        case other:
            assert_never(other)
    return config


# Of a consumer that its maker polls: settings that have to be so, whether by default or not, and what would happen.
_NEEDED = {
    "enable.auto.commit": ("false", "true", "the client would commit positions on its own"),
    "auto.offset.reset": ("error", "largest", "the client would move past a position that is out of range"),
    "isolation.level": ("read_committed", "read_committed", "records of aborted transactions would be handled"),
}


def check_own_consumer(kafka: Mapping[str, Any]) -> None:
    """Raise a :class:`ConfigurationError` if a consumer with these settings could break the guarantee."""
    if "default.topic.config" in kafka:
        raise ConfigurationError(
            "the consumer's 'default.topic.config' could hide what is refused; write its settings beside the others"
        )
    said = {key.removeprefix("topic."): str(value).strip().lower() for key, value in kafka.items()}
    for name, (needed, default, otherwise) in _NEEDED.items():
        if said.get(name, default) != needed:
            raise ConfigurationError(
                f"the consumer needs {name}={needed}, not {said.get(name, f'the default, {default}')}: {otherwise}"
            )


def milliseconds(kafka: Mapping[str, Any], name: str, default: int) -> int:
    """One of the client's times."""
    try:
        return int(kafka.get(name, default))
    except (ValueError, TypeError):
        raise ConfigurationError(f"the client setting {name!r} is a number, not {kafka[name]!r}") from None
