"""Examines a cluster: whether it and its advertised addresses can be reached, and whether topics can lose records."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tidegate.core.findings import Finding
from tidegate.errors import ConfigurationError, TidegateError
from tidegate.kafka.config import admin_config, opened
from tidegate.kafka.producer import topic_weaknesses

__all__ = ["examine_cluster"]


_CONNECT = 3.0
_ANSWER = 10.0
_MOST_TOPICS = 50


def examine_cluster(
    kafka: Mapping[str, Any], topics: Collection[str] = (), patterns: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield findings about the cluster; stops early if the cluster does not answer.

    ``topics`` and ``patterns`` are the topics that listeners read.
    """
    addresses = _addresses(str(kafka.get("bootstrap.servers", "")))
    refusals = {address: why for address in addresses if (why := _refusal(*address))}
    if len(refusals) == len(addresses):
        refused = "; ".join(f"{_shown(address)}: {why}" for address, why in refusals.items()) or "no address is named"
        yield Finding.fault(
            "broker",
            f"no broker can be reached: {refused}",
            "see that Kafka runs, and that bootstrap names its address",
        )
        return
    for address, why in refusals.items():
        yield Finding.warning("broker", f"{_shown(address)} cannot be reached: {why}", "fix or remove that address")
    errors: list[KafkaError] = []
    try:
        admin = opened(AdminClient, {**admin_config(kafka), "error_cb": errors.append}, "administration client")
    except ConfigurationError as error:
        yield Finding.fault("broker", str(error), "correct that setting, under kafka.client")
        return
    try:
        metadata = admin.list_topics(timeout=_ANSWER)
    except KafkaException as error:
        admin.poll(0)
        reasons = dict.fromkeys(each.str() for each in [*errors, error.args[0]])
        yield Finding.fault(
            "broker",
            f"a broker can be reached, but does not answer: {'; '.join(reasons)}",
            "check security.protocol, the login (sasl.*) and the certificates (ssl.*); and that the port is Kafka's",
        )
        return
    yield Finding.ok("broker", f"{len(metadata.brokers)} of cluster {metadata.cluster_id} answer")
    yield from _listeners(metadata.brokers.values())
    yield from _topics(admin, metadata.topics, topics, patterns)


def _listeners(brokers: Collection[Any]) -> Iterator[Finding]:
    """Check the addresses that the brokers advertise: clients use them for everything after the first request."""
    wrong = {each.id: why for each in brokers if (why := _refusal(each.host, each.port))}
    if not wrong:
        yield Finding.ok("listeners", "every broker can be reached at the address that it advertises")
    for each in brokers:
        if each.id in wrong:
            yield Finding.fault(
                "listeners",
                f"broker {each.id} advertises the address {each.host}:{each.port}, which cannot be reached from here: "
                f"{wrong[each.id]}",
                "set advertised.listeners of the broker to an address that clients can reach",
            )


def _topics(
    admin: AdminClient, known: Mapping[str, Any], topics: Collection[str], patterns: Collection[str]
) -> Iterator[Finding]:
    for topic in sorted(set(topics) - known.keys()):
        yield Finding.warning(
            "topics", f"there is no topic {topic}", "create it, or check its name; listeners wait for it"
        )
    matching = {name for name in known for pattern in patterns if re.match(pattern, name)}
    wanted = sorted((set(topics) & known.keys()) | matching)
    for topic in wanted[:_MOST_TOPICS]:
        try:
            found = topic_weaknesses(admin, topic)
        except TidegateError as error:
            yield Finding.warning(
                "topics", str(error), "give the login the right to describe topics and their settings"
            )
            continue
        for weakness in found:
            yield Finding.warning(
                "topics",
                f"topic {topic}: {weakness}",
                "Tidegate cannot read a record that Kafka has lost",
            )
        if not found:
            yield Finding.ok("topics", f"topic {topic} keeps what was acknowledged while one broker is away")


def _addresses(bootstrap: str) -> list[tuple[str, int]]:
    found = []
    for part in filter(None, (each.strip() for each in bootstrap.split(","))):
        host, _, port = part.rpartition("://")[2].rpartition(":")
        found.append((host.strip("[]"), int(port)) if host and port.isdecimal() else (part.strip("[]"), 9092))
    return found


def _refusal(host: str, port: int) -> str | None:
    """Return why a connection to the address fails; ``None`` if it succeeds."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT).close()
    except socket.gaierror:
        return "the name is not known"
    except TimeoutError:
        return f"no answer within {_CONNECT:g} s"
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    return None


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
