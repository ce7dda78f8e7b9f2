"""Translation of Kafka client settings for Spark's connector: from librdkafka's names to those of the Java client."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigurationError
from tidegate.kafka.config import client_config, refuse_unsafe

__all__ = ["client_settings", "kafka_options", "security_options"]


_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LOGIN = {"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"}
_ENCRYPTION = {
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm"),
    *("ssl.keystore.location", "ssl.keystore.password", "enable.ssl.certificate.verification"),
}
_LOGIN_PREFIXES = ("sasl.", "enable.sasl.", "oauth")
_PREFIXES = (*_LOGIN_PREFIXES, "ssl.", "security.", "enable.ssl.")


def security_options(kafka: Mapping[str, Any], *, own_login: bool = False) -> dict[str, str]:
    """Return the security settings for the Java client; raise for a setting that has no counterpart there.

    ``own_login``: the user configures the login for the Java client, so only the mechanism is taken from ``kafka``.
    """
    known = _LOGIN | _ENCRYPTION | {"security.protocol"}
    mechanism = str(kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "GSSAPI").strip().upper()
    protocol = str(kafka.get("security.protocol", "plaintext")).strip().upper()
    for key in kafka:
        if key.startswith(_PREFIXES) and key not in known and not (own_login and key.startswith(_LOGIN_PREFIXES)):
            raise ConfigurationError(
                f"the client setting {key!r} has no counterpart in the Java client, which reads for Spark; leave it "
                "out, or write the counterpart that you know of as 'java.…'"
            )
    if protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigurationError(f"'security.protocol' is {protocol.lower()!r}, which Kafka does not know")
    java = {"security.protocol": protocol} if "security.protocol" in kafka else {}
    if protocol.startswith("SASL"):
        java |= {"sasl.mechanism": mechanism} if own_login else _login(kafka, mechanism)
    if protocol.endswith("SSL"):
        java |= _encryption(kafka)
    return java


def _login(kafka: Mapping[str, Any], mechanism: str) -> dict[str, str]:
    module = _MODULES.get(mechanism)
    if module is None:
        raise ConfigurationError(
            f"'sasl.mechanism' is {mechanism}, which is not translated for Spark: only {', '.join(_MODULES)} are. Give "
            "the connector its own settings: 'java.sasl.mechanism', 'java.sasl.jaas.config' and what else it needs"
        )
    for key in ("sasl.username", "sasl.password"):
        if key not in kafka:
            raise ConfigurationError(f"'sasl.mechanism' is {mechanism}, and {key!r} is missing")
    user, password = _quoted(str(kafka["sasl.username"])), _quoted(str(kafka["sasl.password"]))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{module} required username={user} password={password};",
    }


def _quoted(text: str) -> str:
    """Quote and escape a string for a JAAS configuration."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _encryption(kafka: Mapping[str, Any]) -> dict[str, str]:
    java: dict[str, str] = {}
    if str(kafka.get("enable.ssl.certificate.verification", True)).strip().lower() == "false":
        raise ConfigurationError(
            "'enable.ssl.certificate.verification' is off, and the Java client, which reads for Spark, always "
            "verifies; let 'ssl.ca.location' name the authority that signed the brokers' certificates"
        )
    if (check := kafka.get("ssl.endpoint.identification.algorithm")) is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if str(check).lower() == "none" else str(check)
    if authorities := _pem(kafka, "ssl.ca", _authorities):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    certificate, key = _pem(kafka, "ssl.certificate"), _pem(kafka, "ssl.key")
    if bool(certificate) != bool(key):
        raise ConfigurationError("of 'ssl.certificate.…' and 'ssl.key.…' one is given without the other")
    if certificate and key:
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": _pkcs8(key),
        }
        if password := kafka.get("ssl.key.password"):
            java["ssl.key.password"] = str(password)
    elif store := kafka.get("ssl.keystore.location"):
        java |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(store)}
        if password := kafka.get("ssl.keystore.password"):
            java["ssl.keystore.password"] = str(password)
    return java


def _pem(kafka: Mapping[str, Any], stem: str, read: Callable[[str, Path], str] | None = None) -> str | None:
    if text := kafka.get(f"{stem}.pem"):
        return str(text)
    location = str(kafka.get(f"{stem}.location") or "")
    # "probe" tells librdkafka to use the authorities of the system, which Java trusts by default.
    if not location or location == "probe":
        return None
    return (read or _file)(f"{stem}.location", Path(location))


def _authorities(key: str, place: Path) -> str:
    """Read the certificates of a file, or of all files of a folder; librdkafka accepts both."""
    files = sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]
    texts = [text for file in files if "BEGIN CERTIFICATE" in (text := _file(key, file))]
    if not texts:
        raise ConfigurationError(f"the client setting {key!r}: there is no certificate in {place}")
    return "\n".join(texts)


def _file(key: str, path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise ConfigurationError(f"the client setting {key!r}: {path} cannot be read: {error.strerror}") from error


def _pkcs8(key: str) -> str:
    if "BEGIN PRIVATE KEY" in key or "BEGIN ENCRYPTED PRIVATE KEY" in key:
        return key
    raise ConfigurationError(
        "the private key in 'ssl.key.…' is not in PKCS #8 form, the only one that the Java client reads; convert it: "
        "openssl pkcs8 -topk8 -in old.key -out new.key"
    )


JAVA = "java."
"""Prefix of settings that go to the connector alone, under the rest of their name."""

# Java's defaults suit many small consumers. These consumers read a span as fast as they can, and must not wait long at
# its end.
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

# Settings that are ignored: internals of librdkafka, its logs and statistics, and settings of producers or of members
# of a group. They mean nothing for consumers that are assigned a partition and an offset.
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

_KEY = secrets.token_bytes(32)  # one per driver process; executors do not outlive it

_OURS = {
    "group.id": "it is derived from the pipeline's group",
    "auto.offset.reset": "executors read only the offsets that the driver gives them",
    "enable.auto.commit": "positions are in the ledger",
    "key.deserializer": "records are read as bytes; the pipeline's format parses them",
    "value.deserializer": "records are read as bytes; the pipeline's format parses them",
    "interceptor.classes": "they could change or drop records that the ledger counts",
}


def client_settings(kafka: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for the driver's own client, without those for the connector alone."""
    return {key: value for key, value in client_config(kafka).items() if not key.startswith(JAVA)}


def kafka_options(
    kafka: str | Mapping[str, Any], group: str, topic_ids: Iterable[str] = (), *, poll_timeout: float = 60.0
) -> dict[str, str]:
    """Return the options for ``spark.read.format("kafka")``; the caller adds the partitions and offsets to read.

    Executors cache consumers, with records fetched ahead, under the group id. The id stays the same from one
    micro-batch to the next, or the cache would never be used. It changes with the settings and ``topic_ids``, or the
    cache could hold records of another cluster or of a deleted topic of the same name. ``poll_timeout``: a task fails
    after this many seconds without a record.
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
    """Return Java's name of a setting; ``None`` for one that is translated elsewhere or is ignored."""
    name = key.removeprefix("topic.") if key.startswith("topic.") and not key.startswith("topic.metadata") else key
    if name in _SAME:
        return name
    if name in _RENAMED:
        return _RENAMED[name]
    if name.startswith(("sasl.", "ssl.", "security.", "enable.ssl.", "enable.sasl.", "oauth")):
        return None  # security_options() translates or refuses them
    if name.startswith(_WITHOUT_MEANING):
        return None
    raise ConfigurationError(
        f"the client setting {key!r} has no counterpart in the Java client, which reads for Spark; leave it out, or "
        f"write the counterpart that you know of as '{JAVA}…'"
    )


def _for_java(kafka: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that the user passes to the connector unchanged."""
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
    """Return a hash of the settings, secrets included, so that a new password leads to new consumers.

    The hash is keyed, so no one can test guessed passwords against it.
    """
    text = repr((sorted(java.items()), sorted(topic_ids)))
    return hashlib.blake2b(text.encode(), digest_size=8, key=_KEY).hexdigest()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
