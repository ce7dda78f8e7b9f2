"""Positions that are mirrored to Kafka's own group offsets: for those who look there, and never read back."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from tests.app.member.stage import GROUP, PATIENCE, Stage, numbered, wait_until

from tidegate.core.batches import BatchBounds
from tidegate.core.policies import GroupProtocol, OutOfRange
from tidegate.core.records import TopicPartition
from tidegate.kafka.cluster import Admin


class GroupOffsets:
    """Kafka's own offsets of the group, as lag tools see them."""

    def __init__(self, stage: Stage, topic: str) -> None:
        self._kafka = stage.kafka
        self._admin = AdminClient(stage.kafka)
        self._topic = topic

    def read(self) -> dict[TopicPartition, int]:
        known = Admin(self._kafka)
        kept = known.group_offsets(GROUP, known.partitions([self._topic]))
        return {tp: each.offset for tp, each in kept.items()}

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Alter them by hand, which Kafka allows when nobody is in the group."""
        wanted = [KafkaPartition(*tp, offset) for tp, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(GROUP, wanted)
        (future,) = self._admin.alter_consumer_group_offsets([request]).values()
        future.result(PATIENCE)


def positions(stage: Stage) -> dict[TopicPartition, int]:
    return {tp: row.next_offset for tp, row in stage.ledger.read(GROUP).positions.items()}


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_kafkas_offsets_follow_the_positions_and_are_never_read_back(stage: Stage, protocol: GroupProtocol) -> None:
    topic = stage.topic(3)
    offsets = GroupOffsets(stage, topic)
    for partition in range(2):  # nothing is ever read from the third
        stage.send(topic, numbered(20), partition=partition)
    batch = BatchBounds(count=7)

    stage.catch_up(topic, protocol=protocol, mirror=True, batch=batch)
    wait_until(lambda: offsets.read() == {TopicPartition(topic, 0): 20, TopicPartition(topic, 1): 20})

    offsets.write({TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 500, TopicPartition(topic, 2): 7})
    for partition in range(3):
        stage.send(topic, numbered(10, first=20), partition=partition)
    stage.catch_up(topic, protocol=protocol, mirror=True, batch=batch)

    assert stage.payloads(topic, 0) == stage.payloads(topic, 1) == numbered(30)
    assert stage.payloads(topic, 2) == numbered(10, first=20)
    wait_until(lambda: offsets.read() == positions(stage), "the mirror shows the positions")
    stage.verify()


def test_named_partitions_are_mirrored_too(stage: Stage) -> None:
    tp = TopicPartition(stage.topic(), 0)
    stage.send(tp.topic, numbered(20))

    offsets = GroupOffsets(stage, tp.topic)

    stage.catch_up(partitions=[tp], mirror=True)

    wait_until(lambda: offsets.read() == {tp: 20} == positions(stage))


def test_without_a_mirror_kafka_is_told_nothing(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(20))

    stage.catch_up(topic)

    assert GroupOffsets(stage, topic).read() == {}


def test_what_is_stepped_over_is_stepped_over_in_the_mirror_too(stage: Stage) -> None:
    tp = TopicPartition(stage.topic(), 0)
    stage.send(tp.topic, numbered(50))
    stage.ledger.edit(GROUP, {tp: 3})
    stage.delete_records(tp, before=50)
    offsets = GroupOffsets(stage, tp.topic)

    running = stage.start(tp.topic, mirror=True, out_of_range=OutOfRange.SKIP)

    wait_until(lambda: offsets.read() == {tp: 50} == positions(stage))
    running.stop()
