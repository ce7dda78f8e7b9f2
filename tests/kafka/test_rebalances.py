"""Positions kept in Kafka while members come and go: a commit under way and a rebalance do not wait for each other."""

from __future__ import annotations

import threading
import time
from uuid import uuid4

import pytest
from tests.kafka.producer import topics
from tests.patience import wait_until

from tidegate import App, BatchBounds, Delivery, GroupProtocol, Producer, Record
from tidegate.sandbox import Kafka

RECORDS, PARTITIONS = 4000, 4


class Member:
    """An app on a thread of its own."""

    def __init__(self, kafka: Kafka, topic: str, group: str, delivery: Delivery, protocol: GroupProtocol) -> None:
        self.seen: list[int] = []
        settings = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
        self.app = App(settings, None)
        self.thread = threading.Thread(target=self.app.run, daemon=True)

        @self.app.listener(
            topic,
            group=group,
            delivery=delivery,
            protocol=protocol,
            batch=BatchBounds(count=20),
            session_timeout=10.0,
            kafka={"heartbeat.interval.ms": 100},
        )
        def take(records: list[Record]) -> None:
            time.sleep(0.005)  # so that something is under way most of the time
            self.seen += [int(record.value or -1) for record in records]

        self.thread.start()

    def stop(self) -> None:
        self.app.stop()
        self.thread.join(20)
        assert not self.thread.is_alive(), "it does not end"


@pytest.mark.parametrize("protocol", [GroupProtocol.COOPERATIVE, GroupProtocol.RANGE])
@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
def test_members_come_and_go_while_offsets_are_committed(
    kafka: Kafka, delivery: Delivery, protocol: GroupProtocol
) -> None:
    topic, group = topics.create(kafka.bootstrap, PARTITIONS), f"g-{uuid4().hex}"
    with Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True}) as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
    first = Member(kafka, topic, group, delivery, protocol)
    wait_until(lambda: bool(first.seen), "the first one has begun", 20)
    others = []
    for _ in range(2):
        others.append(Member(kafka, topic, group, delivery, protocol))
        wait_until(lambda: bool(others[-1].seen) or len(set(first.seen)) == RECORDS, "the other one has its share", 20)
        others[-1].stop()
    if delivery is Delivery.AT_LEAST_ONCE:
        seen = lambda: set(first.seen).union(*(other.seen for other in others))  # noqa: E731
        wait_until(lambda: len(seen()) == RECORDS, "every record was seen", 30)
    first.stop()
    if delivery is Delivery.AT_MOST_ONCE:
        everything = [number for member in (first, *others) for number in member.seen]
        assert len(everything) == len(set(everything)), "no record was seen twice"
