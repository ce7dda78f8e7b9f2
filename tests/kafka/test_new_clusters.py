"""Questions about groups to a cluster that has had none, and so makes the topic of their offsets first."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidegate.core.records import TopicPartition
from tidegate.errors import BrokerUnavailable
from tidegate.kafka.cluster import Admin, Survey
from tidegate.sandbox import Kafka


def test_a_group_without_a_coordinator_is_asked_for_until_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.kafka.cluster._SECONDS", 150.0)  # a busy machine takes its time for 50 partitions
    with Kafka(settings={"offsets.topic.num.partitions": 50}) as kafka:  # as many as Kafka makes by itself
        assert Survey(kafka.bootstrap, seconds=150).group("nobody") is None
    with Kafka(settings={"offsets.topic.num.partitions": 50}) as kafka:
        assert Admin({"bootstrap.servers": kafka.bootstrap}).group_offsets("nobody", [TopicPartition("t", 0)]) == {}


def test_a_group_that_has_no_coordinator_in_time_is_reported_as_such() -> None:
    def unanswered(_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR, "ConsumerGroupDescribe: "))  # as librdkafka has it

    with pytest.raises(BrokerUnavailable, match=r": the group has no coordinator \(NOT_COORDINATOR\); "):
        Survey("127.0.0.1:1")._asked(unanswered)
