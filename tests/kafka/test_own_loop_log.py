"""An own loop, on a cluster that changes between two questions."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer
from tests.app.test_recreated_topic import ORDERS, Cluster

from tidegate import OwnLoop
from tidegate.app import OutOfRange, Recreated
from tidegate.core.assignment import Claiming
from tidegate.ledger import MemoryLedger
from tidegate.observe import Event, Skipped


def test_a_topic_that_is_recreated_between_two_questions_is_not_taken_for_a_log_that_lost_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    monkeypatch.setattr("tidegate.kafka.own_loop.KafkaBroker.cluster", lambda *_: cluster)
    kafka = {
        "bootstrap.servers": "127.0.0.1:1",  # no broker is needed
        "log_level": 0,
        "group.id": "billing",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }
    consumer, ledger, events = Consumer(kafka), MemoryLedger(), list[Event]()
    loop = OwnLoop(
        *(consumer, ledger, "orders"),
        kafka=kafka,
        out_of_range=OutOfRange.SKIP,
        recreated=Recreated.RESTART,
        observers=[events.append],
    )
    try:
        loop._cluster_id = "here"  # as if the consumer had told
        loop._assignment.assigned([ORDERS])
        loop._obey(loop._claim([ORDERS]))
        assert ledger.read("billing").positions[ORDERS].next_offset == 5
        cluster.is_doomed = True
        loop._step_over_what_is_gone(ORDERS)
        assert isinstance(loop._assignment.state(ORDERS), Claiming)
        assert not [event for event in events if isinstance(event, Skipped)]
    finally:
        consumer.close()
