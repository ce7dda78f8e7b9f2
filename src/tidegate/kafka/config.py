"""Settings of the Kafka clients: built for consumers, producers and admin clients, and checked.

Settings that would break the guarantee, or that Tidegate sets itself, are refused.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar, assert_never

from tidegate.core.arguments import Accepts, ClientConfig, Label, argument, c_string, kind_of
from tidegate.core.masks import masked
from tidegate.core.policies import GroupProtocol
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError

__all__ = [
    "ClientLog",
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
    "producer_config",
    "refuse_unsafe",
    "refuse_unsafe_sends",
    "safe_config",
]


_COMMITS = "the client would commit positions on its own, before or without the data that belongs to them"
_FOLLOWS = "it follows from the listener's protocol; set 'protocol' of the listener"
_CALLBACK = (
    "Tidegate claims, commits and releases in this callback; give the listener on_assigned, on_revoked or on_lost"
)
_RANGE = "another value silently moves past a position that is out of range; set 'out_of_range' of the listener"

_REFUSED: dict[str, str] = {
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,  # the older name of enable.auto.commit
    "enable.auto.offset.store": _COMMITS,
    "offset.store.method": _COMMITS,
    "offset.store.path": _COMMITS,
    "auto.offset.reset": _RANGE,
    "enable.partition.eof": "the end of a partition is how Tidegate knows that it has caught up",
    "group.id": "it is the listener's group",
    "group.protocol": _FOLLOWS,
    "partition.assignment.strategy": _FOLLOWS,
    "session.timeout.ms": "Tidegate waits by the same time before it claims again; set 'session_timeout', in seconds",
    "default.topic.config": "it could hide settings that are refused; put its settings at the top level",
    "rebalance_cb": _CALLBACK,
    "on_assign": _CALLBACK,
    "on_revoke": _CALLBACK,
    "on_lost": _CALLBACK,
    "on_commit": "Tidegate commits itself, and reports to its observers",
    "offset_commit_cb": "Tidegate commits itself, and reports to its observers",
}


def refuse_unsafe(client: Mapping[str, Any]) -> None:
    """Raise a :class:`ConfigurationError` for the first setting of ``client`` that users must not set."""
    for key, value in client.items():
        name = key.removeprefix("topic.")  # librdkafka accepts topic settings with and without this prefix
        if reason := _REFUSED.get(name):
            raise ConfigurationError(f"the client setting {key!r} is refused: {reason}")
        if name == "isolation.level" and str(value).strip().lower() != "read_committed":
            raise ConfigurationError(
                f"the client setting {key!r} is refused: records of aborted transactions would be handled; leave it "
                "out, or write read_committed"
            )


_AGAIN = 3600.0  # seconds after which a repeated message is logged at its own level again
_MOST = 1000  # different messages to remember
_VARYING = re.compile(r"\(after .*|\d+")
_NO_ALARM = {"FAIL", "SESSTMOUT"}  # one connection failed, but others may work; the consumer's group session expired


class ClientLog:
    """Passes librdkafka's log messages to the logger ``tidegate.kafka`` instead of to standard error.

    While a broker is down, librdkafka repeats a message about twenty times a second. A message that was logged within
    the last hour is therefore logged as DEBUG. Failed connections and expired sessions are logged as INFO at most,
    because observers report those that matter.
    """

    def __init__(self, logger: logging.Logger | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger or logging.getLogger("tidegate.kafka")
        self._clock = clock
        self._said: dict[str, float] = {}

    def log(self, level: int, _: str, facility: str, client: str, text: str) -> None:
        """Log one message. The client calls this while it is polled, as it would call a logger's ``log``."""
        if facility in _NO_ALARM:
            level = min(level, logging.INFO)
        if self._is_old(f"{facility} {_VARYING.sub('', text)}"):
            level = logging.DEBUG
        self._logger.log(level, "%s [%s] %s", facility, client, masked(text))

    def _is_old(self, what: str) -> bool:
        now = self._clock()
        if now - self._said.get(what, -_AGAIN) < _AGAIN:
            return True
        if len(self._said) >= _MOST:
            self._said.clear()
        self._said[what] = now
        return False


Client = TypeVar("Client")

# Prefixes of producer-only settings: a consumer would log a warning for each of them.
_PRODUCERS = (
    *("acks", "request.required.acks", "enable.idempotence", "transactional.", "transaction.", "partitioner"),
    *("linger.ms", "batch.", "compression.", "queue.buffering.", "message.timeout.ms", "delivery.timeout.ms"),
    *("retries", "message.send.max.retries", "sticky.partitioning.", "enable.gapless.guarantee"),
)


def address_of(kafka: Mapping[str, Any]) -> str:
    """Return the cluster's name for error messages."""
    return f"Kafka at {masked(str(kafka.get('bootstrap.servers') or kafka.get('metadata.broker.list')))}"


def _kafka(given: Any) -> dict[str, Any] | None:
    if is_text(given):
        return {"bootstrap.servers": c_string(given)} if given.strip() else None
    found: dict[str, Any] | None = kind_of(ClientConfig).convert(given)
    for name in ("bootstrap.servers", "metadata.broker.list"):
        if found is not None and name in found:
            argument(repr(name), Label, found[name])
    return found


KafkaArgument: TypeAlias = Annotated[
    Mapping[str, Any], Accepts("the address of a broker, such as 'localhost:9092', or settings of librdkafka", _kafka)
]
"""The type of an argument that names a cluster."""


def client_config(kafka: object) -> dict[str, Any]:
    """Return librdkafka's settings for ``kafka``, which is an address or the settings themselves."""
    config: dict[str, Any] = argument("kafka", KafkaArgument, kafka)
    return config


def opened(make: Callable[[dict[str, Any]], Client], config: Mapping[str, Any], what: str) -> Client:
    """Open a client; raises a :class:`ConfigurationError` that names the setting if librdkafka refuses one."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - settings are read by programs that open no client

    try:
        return make(dict(config))
    except (KafkaException, ValueError, TypeError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigurationError(f"librdkafka refused the {what}'s settings: {reason}") from None


def check_client(make: Callable[[dict[str, Any]], Any], config: Mapping[str, Any]) -> None:
    """Have librdkafka validate settings without a broker, which takes less than a millisecond.

    Any client knows the settings of consumers and producers alike. So all given settings are validated at once: one
    that this kind of client ignores may be mistyped as well.
    """
    from confluent_kafka import Consumer  # noqa: PLC0415

    unneeded = ("bootstrap.servers", "metadata.broker.list", "logger", "log_level", "debug")
    quiet = {key: value for key, value in config.items() if key not in unneeded} | {"log_level": 0}
    try:
        client = opened(make, quiet, "client")
    except ConfigurationError as error:
        raise ConfigurationError(f"kafka: {error}") from None
    if isinstance(client, Consumer):
        client.close()


def check_settings(config: Mapping[str, Any], group: str = "any") -> None:
    """Have librdkafka validate the settings of a consumer, without a broker."""
    from confluent_kafka import Consumer  # noqa: PLC0415

    check_client(Consumer, {**config, "group.id": group})


def admin_config(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for an admin client, without those that only consumers have.

    The client logs nothing unless the settings ask for it: its answers contain the errors.
    """
    consumer_only = (
        *("max.poll.", "fetch.", "queued.", "topic.metadata.refresh", "heartbeat.", "logger"),
        *("enable.auto.", "auto.offset.reset", "isolation.level", "key.deserializer", "value.deserializer"),
        *("on_commit", "error_cb", "stats_cb", "throttle_cb", "statistics.interval.ms"),  # for the consumer's thread
    )
    config = {key: value for key, value in kafka.items() if not key.startswith(consumer_only)}
    return config if "debug" in config else {"log_level": 0, **config}


def consumer_config(
    kafka: Mapping[str, Any], group: str, protocol: GroupProtocol, session_timeout: float
) -> dict[str, Any]:
    """Return the settings for a consumer; raises a :class:`ConfigurationError` for unsafe ones."""
    refuse_unsafe(kafka)
    kafka = {key: value for key, value in kafka.items() if not key.startswith(_PRODUCERS)}
    config: dict[str, Any] = {
        "topic.metadata.refresh.interval.ms": 10_000,
        "fetch.wait.max.ms": 100,
        "queued.max.messages.kbytes": 32 << 10,
        # With 100,000 messages queued the client stops fetching for this long: a second by default, and they last less.
        "fetch.queue.backoff.ms": 50,
        **kafka,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    match protocol:
        case GroupProtocol.CONSUMER:
            config["group.protocol"] = "consumer"  # under this protocol the broker sets the session timeout
        case GroupProtocol.RANGE | GroupProtocol.ROUND_ROBIN | GroupProtocol.COOPERATIVE:
            config["partition.assignment.strategy"] = protocol.value
            config["session.timeout.ms"] = int(session_timeout * 1000)
            # librdkafka refuses a poll interval that is shorter than the session.
            config.setdefault("max.poll.interval.ms", max(300_000, config["session.timeout.ms"]))
            # Several heartbeats must fit into a session, even a short one.
            config.setdefault("heartbeat.interval.ms", min(3000, int(session_timeout * 1000 / 3)))
        case other:
            assert_never(other)
    return config


# For a consumer that the user polls: setting -> (required value, librdkafka's default, what happens otherwise).
_NEEDED = {
    "enable.auto.commit": ("false", "true", "the client would commit positions on its own"),
    "auto.offset.reset": ("error", "largest", "the client would move past a position that is out of range"),
    "isolation.level": ("read_committed", "read_committed", "records of aborted transactions would be handled"),
}


def check_own_consumer(kafka: Mapping[str, Any]) -> None:
    """Raise a :class:`ConfigurationError` if a consumer with these settings could break the guarantee."""
    if "default.topic.config" in kafka:
        raise ConfigurationError(
            "the consumer's 'default.topic.config' could hide settings that are refused; put its settings at the top "
            "level"
        )
    values = {key.removeprefix("topic."): str(value).strip().lower() for key, value in kafka.items()}
    for name, (needed, default, otherwise) in _NEEDED.items():
        if values.get(name, default) != needed:
            raise ConfigurationError(
                f"the consumer needs {name}={needed}, not {values.get(name, f'the default, {default}')}: {otherwise}"
            )


def milliseconds(kafka: Mapping[str, Any], name: str, default: int) -> int:
    """Return one of the client's settings in milliseconds; raises a :class:`ConfigurationError` if it is no number."""
    try:
        return int(kafka.get(name, default))
    except (ValueError, TypeError):
        raise ConfigurationError(f"the client setting {name!r} is a number, not {kafka[name]!r}") from None


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
_REFUSED_SENDS = {
    "on_delivery": _REPORTS,
    "dr_cb": _REPORTS,
    "dr_msg_cb": _REPORTS,
    "delivery.report.only.error": "handles of records that were delivered would wait for ever",
    "default.topic.config": "write its settings beside the others",
}


def producer_config(kafka: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for a producer, without those that only consumers have; raises for refused settings."""
    given = client_config(kafka)
    config: dict[str, Any] = {
        "partitioner": "murmur2_random",
        "topic.metadata.refresh.interval.ms": 10_000,
    }
    for key, value in given.items():
        name = _name(key)
        if reason := _REFUSED_SENDS.get(name):
            raise ConfigurationError(f"the client setting {key!r} is refused: {reason}")
        if not name.startswith(_CONSUMERS):
            config[name] = value
    if "bootstrap.servers" not in config and "metadata.broker.list" not in config:
        raise ConfigurationError("no broker is named; pass kafka='host:9092', or settings with 'bootstrap.servers'")
    from confluent_kafka import Producer  # noqa: PLC0415

    check_client(Producer, given)
    return config


def safe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings that prevent loss and keep the order; raises if ``config`` contradicts them."""
    refuse_unsafe_sends(config)
    return {**config, "enable.idempotence": True, "acks": "all", **_within(config)}


def refuse_unsafe_sends(config: Mapping[str, Any]) -> None:
    """Raise a :class:`ConfigurationError` that names every setting that can lose or reorder records."""
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
        return default  # librdkafka reports the invalid value
