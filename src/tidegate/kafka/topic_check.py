"""Checking topics: whether one can hold what a safe producer promises."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tidegate.core.errors import ConfigurationError
from tidegate.kafka.client import open_client
from tidegate.kafka.errors import RecordRejected, SendAgain, error_of, producer_error

__all__ = ["OnWeakTopic", "TopicCheck", "WeakTopic", "Weakness", "topic_weaknesses", "weaknesses"]

_log = logging.getLogger("tidegate")
_SECONDS = 10.0
_PRODUCERS = (
    "transactional.",
    "transaction.",
    "enable.idempotence",
    "statistics.",
    "stats_cb",
    "error_cb",
    "throttle_cb",
)


class OnWeakTopic(StrEnum):
    """What a safe producer does about a topic that can lose records."""

    REFUSE = "refuse"
    WARN = "warn"


class Weakness(NamedTuple):
    """A setting of a topic with which acknowledged records can be lost, or writing stops when one broker does."""

    setting: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.setting} is {self.value}: {self.reason}"


class WeakTopic(RecordRejected, ConfigurationError):
    """A topic that cannot hold what :meth:`Producer.safe` promises."""

    def __init__(self, topic: str, found: list[Weakness]) -> None:
        super().__init__(_said(topic, found))
        self.topic = topic
        self.weaknesses = tuple(found)


class TopicCheck:
    """Checks each topic once."""

    def __init__(self, config: Mapping[str, Any], on_weak: OnWeakTopic) -> None:
        self._config = {key: value for key, value in config.items() if not key.startswith(_PRODUCERS)}
        self._on_weak = on_weak
        self._admin: AdminClient | None = None
        self._checked: set[str] = set()

    def __call__(self, topic: str) -> None:
        """Raise :class:`WeakTopic` or log a warning, as told, if the topic is weak."""
        if topic in self._checked:
            return
        if self._admin is None:
            self._admin = open_client(AdminClient, self._config, "administration client")
        found = topic_weaknesses(self._admin, topic)
        if found and self._on_weak is OnWeakTopic.REFUSE:
            raise WeakTopic(topic, found)
        if found:
            _log.warning("%s", _said(topic, found), extra={"topic": topic})
        self._checked.add(topic)


def topic_weaknesses(admin: AdminClient, topic: str) -> list[Weakness]:
    """What is weak about a topic; raises :class:`ProducerError` if the cluster does not say."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=_SECONDS)[topic].result(_SECONDS)
        settings = admin.describe_configs([resource], request_timeout=_SECONDS)[resource].result(_SECONDS)
    except KafkaException as exception:
        raise producer_error(f"{topic}: whether it is safe is not known", error_of(exception)) from None
    except TimeoutError:
        raise SendAgain(
            f"{topic}: whether it is safe is not known, the cluster did not answer for {_SECONDS:g} s; look if "
            "it can be reached"
        ) from None
    replicas = min((len(each.replicas) for each in described.partitions), default=0)
    in_sync = int(settings["min.insync.replicas"].value)
    return weaknesses(replicas, in_sync, unclean=settings["unclean.leader.election.enable"].value == "true")


def weaknesses(replicas: int, in_sync: int, *, unclean: bool) -> list[Weakness]:
    """What is weak about a topic with so many replicas, of which so many have to be in sync."""
    found = []
    if in_sync < 2:
        reason = "a record may be acknowledged when one broker has it, and be lost with that; set it to 2 or more"
        found.append(Weakness("min.insync.replicas", str(in_sync), reason))
    if replicas <= in_sync or replicas < 2:
        least = max(in_sync, 2) + 1
        reason = f"with one broker away nothing can be written, or everything is lost; have {least} replicas or more"
        found.append(Weakness("replication factor", str(replicas), reason))
    if unclean:
        reason = "a replica that lacks acknowledged records may become the leader; set it to false"
        found.append(Weakness("unclean.leader.election.enable", "true", reason))
    return found


def _said(topic: str, found: list[Weakness]) -> str:
    return f"topic {topic} can lose records: " + "; ".join(map(str, found))
