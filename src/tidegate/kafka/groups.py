"""Consumer groups as Kafka knows them: who has joined, and what each of them was given to read."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tidegate.core.records import TopicPartition

__all__ = ["GroupDescription", "GroupListing", "GroupMember", "describe_group", "list_groups"]


class GroupListing(NamedTuple):
    """A group in one line: its state (``stable``, ``empty``, …) and its protocol (``classic`` or ``consumer``)."""

    group: str
    state: str
    protocol: str


class GroupMember(NamedTuple):
    """A consumer that has joined a group, and the partitions that it was assigned."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[str, ...]


class GroupDescription(NamedTuple):
    """A group: its state, its protocol, how partitions are assigned, the broker that coordinates it, its members."""

    group: str
    state: str
    protocol: str
    assignor: str
    coordinator: str
    members: tuple[GroupMember, ...]


def list_groups(client: AdminClient, seconds: float) -> list[GroupListing]:
    """Every group of the cluster, by name."""
    found = client.list_consumer_groups(request_timeout=seconds).result(seconds + 1)
    if found.errors and not found.valid:
        raise KafkaException(found.errors[0])
    listings = (
        GroupListing(each.group_id, _word(getattr(each, "state", None)), _word(getattr(each, "type", None)))
        for each in found.valid
    )
    return sorted(listings)


def describe_group(client: AdminClient, name: str, seconds: float) -> GroupDescription | None:
    """A group, or ``None`` if the cluster does not know it."""
    try:
        found = client.describe_consumer_groups([name], request_timeout=seconds)[name].result(seconds + 1)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise
    members = tuple(
        sorted(
            GroupMember(
                each.member_id,
                each.client_id,
                each.host.removeprefix("/"),
                each.group_instance_id,
                tuple(map(str, sorted(TopicPartition(tp.topic, tp.partition) for tp in _assigned(each)))),
            )
            for each in found.members
        )
    )
    state = _word(found.state)
    if state == "dead" and not members:  # how brokers describe what they do not know
        return None
    node = found.coordinator
    coordinator = f"{node.host}:{node.port} (broker {node.id})" if node is not None else "none"
    return GroupDescription(name, state, _word(found.type), found.partition_assignor, coordinator, members)


def _assigned(member: object) -> list[TopicPartition]:
    assignment = getattr(member, "assignment", None)
    return list(assignment.topic_partitions) if assignment is not None else []


def _word(value: object) -> str:
    """The name of one of the client's enumerations, as we write it."""
    name = getattr(value, "name", None) or "unknown"
    return str(name).lower().replace("_", "-")
