"""Where a consumer reads on, when a partition is claimed after it was assigned."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

import pytest
from tests.kafka.producer import topics
from tests.patience import wait_until

from tidegate import GroupProtocol, Producer, Record, TopicPartition
from tidegate.kafka.config import consumer_config
from tidegate.kafka.consumer import GroupConsumer, Told
from tidegate.sandbox import Kafka


def test_a_full_queue_of_the_client_is_refilled_before_it_is_empty_unless_the_settings_say_otherwise() -> None:
    # The client's default is a second, in which a sink has handled all 100,000 messages and waits for the rest of it.
    config = consumer_config({}, "g", GroupProtocol.RANGE, 10.0)
    assert config["fetch.queue.backoff.ms"] <= 100
    given = consumer_config({"fetch.queue.backoff.ms": 700}, "g", GroupProtocol.RANGE, 10.0)
    assert given["fetch.queue.backoff.ms"] == 700


@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER])
def test_a_partition_that_is_claimed_late_is_read_from_its_position_however_slow_the_broker_answers(
    kafka: Kafka, protocol: GroupProtocol
) -> None:
    # The client forgets a seek if it still waits for the broker to tell it a logical offset, such as the log's end.
    topic = topics.create(kafka.bootstrap, 1)
    partition = TopicPartition(topic, 0)
    is_assigned = False

    def assigned(partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        nonlocal is_assigned
        is_assigned = True
        kafka.pause()
        return {}

    config = consumer_config({"bootstrap.servers": kafka.bootstrap}, f"g-{uuid4().hex}", protocol, 10.0)
    incremental = protocol.is_incremental
    read: list[Record] = []
    with Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True}) as producer:
        for number in range(3):
            producer.send(topic, b"%d" % number)
        producer.flush()
        source = GroupConsumer(
            config, Told(assigned, lambda _: None, lambda _: None), incremental=incremental, address="Kafka"
        )
        try:
            source.subscribe([topic])
            wait_until(lambda: source.fetch(1, 0.1) and is_assigned, "the partition was assigned")
            wait_until(lambda: source.seek(partition, 1), "the position was taken")
            source.resume([partition])
            kafka.resume()
            producer.send(topic, b"3").result(30)

            def has_read_on() -> bool:
                read.extend(source.fetch(10, 0.1).records)
                return any(record.offset == 3 for record in read)

            wait_until(has_read_on, "the last record was read", 60)
        finally:
            kafka.resume()
            source.close()
    assert [record.value for record in read] == [b"1", b"2", b"3"]
