"""Topics as Kafka knows them: their partitions and replicas, and the settings that matter to whoever reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

__all__ = ["TopicDescription", "TopicListing", "TopicReplicas", "describe_topic", "list_topics"]

_SETTINGS = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "max.message.bytes",
    "message.timestamp.type",
)


class TopicListing(NamedTuple):
    """A topic in one line; ``out_of_sync`` counts the partitions that lack an in-sync replica."""

    topic: str
    partitions: int
    replicas: int
    out_of_sync: int


class TopicReplicas(NamedTuple):
    """A partition: who leads it, which brokers have it, and where its log begins and ends."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_begin: int | None
    log_end: int | None


class TopicDescription(NamedTuple):
    """A topic, its partitions and its settings."""

    topic: str
    topic_id: str
    partitions: tuple[TopicReplicas, ...]
    settings: Mapping[str, str]


def list_topics(client: AdminClient, seconds: float) -> list[TopicListing]:
    """Every topic but the cluster's own, by name."""
    known = client.list_topics(timeout=seconds).topics
    return [
        TopicListing(
            name,
            len(topic.partitions),
            max((len(each.replicas) for each in topic.partitions.values()), default=0),
            sum(len(each.isrs) < len(each.replicas) for each in topic.partitions.values()),
        )
        for name, topic in sorted(known.items())
        if not name.startswith("__")
    ]


def describe_topic(
    client: AdminClient, name: str, ends: Mapping[int, tuple[int, int]], seconds: float
) -> TopicDescription:
    """A topic that exists; ``ends`` is where the logs of its partitions begin and end."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    described = client.describe_topics(TopicCollection([name]), request_timeout=seconds)[name]
    configured = client.describe_configs([resource], request_timeout=seconds)[resource]
    found = described.result(seconds + 1)
    settings = configured.result(seconds + 1)
    partitions = tuple(
        TopicReplicas(
            each.id,
            None if each.leader is None else each.leader.id,
            tuple(node.id for node in each.replicas),
            tuple(node.id for node in each.isr),
            *ends.get(each.id, (None, None)),
        )
        for each in sorted(found.partitions, key=lambda each: each.id)
    )
    shown = {key: str(settings[key].value) for key in _SETTINGS if key in settings}
    return TopicDescription(name, str(found.topic_id), partitions, shown)
