"""Creating topics: on request, and those that an app or a pipeline names, where the settings allow it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.core.records import check_topic
from tidegate.errors import BrokerUnavailable, ConfigurationError
from tidegate.kafka.config import address_of, admin_config, opened

__all__ = ["create_missing_topics", "create_topic"]

_log = logging.getLogger("tidegate")
_SECONDS = 10.0
_BROKERS_CHOICE = -1
_REFUSED = {
    KafkaError.TOPIC_EXCEPTION: "the name is not allowed",
    KafkaError.INVALID_PARTITIONS: "the number of partitions is not allowed",
    KafkaError.INVALID_REPLICATION_FACTOR: "there are fewer brokers than replicas",
    KafkaError.INVALID_CONFIG: "a setting is not one of a topic, or its value is wrong",
    KafkaError.POLICY_VIOLATION: "the cluster's policy forbids it",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user may not create it",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "this user may not create it",
}


def create_topic(
    kafka: Mapping[str, Any],
    name: str,
    *,
    partitions: int | None = None,
    replication: int | None = None,
    config: Mapping[str, str] | None = None,
) -> int | None:
    """Create a topic and return the number of its partitions; ``None`` if it exists already.

    The broker chooses what is not given. Returns when the cluster knows the topic, so that clients find it at once.
    """
    client = opened(AdminClient, admin_config(kafka), "administration client")
    topic = NewTopic(
        check_topic(name),
        num_partitions=partitions or _BROKERS_CHOICE,
        replication_factor=replication or _BROKERS_CHOICE,
        config=dict(config or {}),
    )
    try:
        client.create_topics([topic], request_timeout=_SECONDS)[name].result(_SECONDS + 1)
        return _known(client, name)
    except KafkaException as error:
        found: KafkaError = error.args[0]
        if found.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return None
        if reason := _REFUSED.get(found.code()):
            raise ConfigurationError(f"topic {name} was not created: {reason} ({found.str()})") from error
        raise _unavailable(kafka, name, found.str()) from error
    except TimeoutError as error:
        raise _unavailable(kafka, name, "it did not answer in time") from error


def create_missing_topics(kafka: Mapping[str, Any], names: Collection[str]) -> None:
    """Create those of the topics that do not exist, with the broker's defaults, and log a line for each."""
    client = opened(AdminClient, admin_config(kafka), "administration client")
    try:
        known = client.list_topics(timeout=_SECONDS).topics
    except KafkaException as error:
        raise BrokerUnavailable(f"{address_of(kafka)} did not list its topics: {error.args[0].str()}") from error
    for name in sorted(set(names) - known.keys()):
        if (partitions := create_topic(kafka, name)) is not None:
            _log.warning(
                "topic %s did not exist: created it with %d partitions (kafka.create_topics)", name, partitions
            )


def _known(client: AdminClient, name: str) -> int:
    """Wait until the cluster's metadata has the new topic, and return the number of its partitions."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        found = client.list_topics(name, timeout=_SECONDS).topics[name]
        if found.error is None and found.partitions:
            return len(found.partitions)
        time.sleep(0.02)
    raise TimeoutError


def _unavailable(kafka: Mapping[str, Any], name: str, reason: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"topic {name} was not created on {address_of(kafka)}: {reason}; is it running?")
