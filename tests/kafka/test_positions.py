"""Positions that are kept in Kafka, and what they cannot do."""

from __future__ import annotations

import threading
import time
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate import App, ConfigurationError, DeadLetter, Record, Transaction
from tidegate.core.policies import CommitStrategy, Delivery
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.kafka.cluster import Admin
from tidegate.kafka.offsets import KafkaPositions
from tidegate.sandbox import Kafka

COUNT = 300


@pytest.fixture(scope="module")
def amounts(kafka: Kafka) -> str:
    """A topic with numbers in it."""
    topic = f"kept-in-kafka-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, str(number))
    producer.flush(30)
    return topic


@pytest.mark.parametrize("strategy", list(CommitStrategy))
def test_positions_kept_in_kafka_are_found_again(kafka: Kafka, amounts: str, strategy: CommitStrategy) -> None:
    seen: list[int] = []

    def consume() -> None:
        app = App(kafka.bootstrap, None)

        @app.listener(amounts, group=f"{amounts}-{strategy}", delivery=Delivery.AT_LEAST_ONCE, commit=strategy)
        def take(record: Record) -> None:
            seen.append(int(record.value or 0))

        app.run(until_caught_up=True)

    consume()
    assert seen == list(range(COUNT))
    consume()
    assert len(seen) == COUNT, "the second run has nothing left to do"


def test_the_automatic_strategy_commits_the_last_records_though_no_more_arrive(kafka: Kafka) -> None:
    topic, group = f"quiet-{uuid4().hex}", f"quiet-{uuid4().hex}"
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    seen = threading.Semaphore(0)
    app = App(kafka.bootstrap, None)

    @app.listener(topic, group=group, delivery=Delivery.AT_LEAST_ONCE, commit=CommitStrategy.AUTOMATIC)
    def take(record: Record) -> None:
        seen.release()

    running = threading.Thread(target=app.run, daemon=True)
    running.start()
    try:
        for _ in range(2):  # the first commit is made at once, and the second is not due by then
            producer.produce(topic, "order")
            assert producer.flush(30) == 0
            assert seen.acquire(timeout=60)
        admin, orders = Admin({"bootstrap.servers": kafka.bootstrap}), TopicPartition(topic, 0)
        deadline = time.monotonic() + 60
        while (kept := admin.group_offsets(group, [orders])[orders].offset) < 2:
            assert time.monotonic() < deadline, f"the group is still at {kept}"
            time.sleep(0.1)
    finally:
        app.stop()
        running.join(60)


def test_exactly_once_without_a_ledger_is_refused_with_the_reason() -> None:
    app = App("localhost:9092", None)
    with pytest.raises(ConfigurationError, match="cannot commit together"):

        @app.listener("kept-in-kafka", group="g")
        def take(record: Record) -> None: ...


def test_transactions_and_dead_letters_need_a_ledger() -> None:
    app = App("localhost:9092", None)
    with pytest.raises(ConfigurationError, match="without a ledger there is none"):

        @app.listener("kept-in-kafka", group="g", delivery=Delivery.AT_LEAST_ONCE)
        def write(record: Record, tx: Transaction) -> None: ...

    with pytest.raises(ConfigurationError, match="dead letters are kept in the ledger"):

        @app.listener("kept-in-kafka", group="g", delivery=Delivery.AT_LEAST_ONCE, on_error=DeadLetter())
        def take(record: Record) -> None: ...


def test_no_handler_runs_where_nothing_could_commit_with_it() -> None:
    orders = TopicPartition("orders", 0)
    claims = {orders: Claim("billing", orders, 0, 0, "kafka")}
    called: list[object] = []
    with pytest.raises(ConfigurationError, match="no transaction"):
        KafkaPositions(CommitStrategy.SYNCHRONOUS).transact(claims, [Span(orders, 0, 1, 1)], called.append)
    assert not called
