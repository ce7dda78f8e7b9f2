"""Kafka's own transactions: all of it or nothing, and one producer for each transactional id."""

from __future__ import annotations

import secrets
import threading
import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from tests.kafka.producer import topics

from tidegate import ConfigurationError, Producer, TopicPartition
from tidegate.errors import ProducerError, ProducerFailed, ProducerFenced, RecordRejected, TransactionAborted
from tidegate.sandbox import Kafka


def transactional(kafka: Kafka, name: str | None = None, **settings: object) -> Producer:
    name = name or f"tx-{secrets.token_hex(6)}"
    return Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "log_level": 0, **settings})


def reading(kafka: Kafka, topic: str, group: str, protocol: str = "classic") -> Consumer:
    """A consumer that has joined its group and read something."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**settings, "group.protocol": protocol, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 30
    while (message := consumer.poll(0.2)) is None or message.error():
        assert time.monotonic() < deadline
    return consumer


def committed(kafka: Kafka, topic: str, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})
    (found,) = consumer.committed([KafkaPartition(topic, 0)], timeout=10)
    consumer.close()
    return int(found.offset)


def test_records_of_a_block_are_seen_together_or_not_at_all(kafka: Kafka) -> None:
    one, other = topics.create(kafka.bootstrap), topics.create(kafka.bootstrap)
    with transactional(kafka) as producer:
        with producer.transaction():
            producer.send(one, b"kept")
            producer.send(other, b"kept too")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(one, b"dropped").result(10)
            producer.send(other, b"dropped too")
            raise ZeroDivisionError
        with producer.transaction():
            pass
        with producer.transaction():
            last = producer.send(one, b"kept at last")
        assert last.done, "what is committed is delivered"
    assert topics.values(kafka.bootstrap, one) == [b"kept", b"kept at last"]
    assert topics.values(kafka.bootstrap, other) == [b"kept too"]
    assert b"dropped" in topics.values(kafka.bootstrap, one, "read_uncommitted")


def test_sending_and_blocks_where_they_cannot_be_are_refused(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    with Producer(kafka.bootstrap) as plain, pytest.raises(ConfigurationError, match="has no 'transactional.id'"):
        plain.transaction()
    with transactional(kafka) as producer:
        with pytest.raises(RecordRejected, match="inside of a transaction only"):
            producer.send(topic, b"v")
        with producer.transaction():
            with pytest.raises(ProducerError, match="do not nest"), producer.transaction():
                pass
            producer.send(topic, b"v")
        with pytest.raises(RecordRejected, match="inside of a transaction only"):
            producer.send(topic, b"v")
    assert topics.values(kafka.bootstrap, topic) == [b"v"]


def test_blocks_of_several_threads_go_one_after_the_other(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    with transactional(kafka) as producer:

        def write(name: str) -> None:
            for number in range(3):
                with producer.transaction():
                    producer.send(topic, f"{name}{number}a")
                    producer.send(topic, f"{name}{number}b")

        threads = [threading.Thread(target=write, args=(name,)) for name in "xyz"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [value.decode() for value in topics.values(kafka.bootstrap, topic) if value]
    assert len(found) == 18
    assert [first[:-1] for first in found[::2]] == [second[:-1] for second in found[1::2]]


def test_a_record_that_fails_takes_its_transaction_with_it(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap, config={"max.message.bytes": "1000"})
    with transactional(kafka) as producer:
        with pytest.raises(TransactionAborted, match="can be repeated as a whole"), producer.transaction():
            producer.send(topic, b"small")
            producer.send(topic, b"x" * 2000)
        # The client gets its sequence numbers wrong once after a record that the broker refused, and notices.
        for _ in range(2):
            try:
                with producer.transaction():
                    producer.send(topic, b"again")
            except TransactionAborted:
                continue
            break
    assert topics.values(kafka.bootstrap, topic) == [b"again"]


def test_a_second_instance_fences_the_first(kafka: Kafka) -> None:
    topic, name = topics.create(kafka.bootstrap), f"tx-{secrets.token_hex(6)}"
    with transactional(kafka, name) as old, transactional(kafka, name) as new:
        with pytest.raises(ProducerFenced, match="same 'transactional.id'"), old.transaction():
            old.send(topic, b"old").result(10)
            with new.transaction():
                new.send(topic, b"new")
        with pytest.raises(ProducerFailed), old.transaction():
            raise AssertionError("there is no way back")
        with pytest.raises(ProducerFailed, match="fenced"):
            old.send(topic, b"old")
    assert topics.values(kafka.bootstrap, topic) == [b"new"]


def test_one_that_was_fenced_and_does_not_know_it_yet_can_be_closed(kafka: Kafka) -> None:
    topic, name = topics.create(kafka.bootstrap), f"tx-{secrets.token_hex(6)}"
    first = transactional(kafka, name)
    block = first.transaction(5)
    block.__enter__()
    first._reports.end_soon()  # so that nobody hears what its client has to say
    first._reports._thread.join()
    with transactional(kafka, name) as second, second.transaction():
        second.send(topic, b"second")
    first.send(topic, b"first")
    time.sleep(2)  # the broker refuses it meanwhile
    first.close(0)
    assert len(first) == 0
    assert topics.values(kafka.bootstrap, topic) == [b"second"]


def test_a_transaction_that_outlasts_its_time_is_fenced(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    producer = transactional(kafka, **{"transaction.timeout.ms": 1000})
    with producer, pytest.raises(ProducerFenced, match="longer than 'transaction.timeout.ms'"), producer.transaction():
        producer.send(topic, b"slow").result(10)
        deadline = time.monotonic() + 30
        while not _ended(kafka, topic):
            assert time.monotonic() < deadline
    assert topics.values(kafka.bootstrap, topic) == []


def _ended(kafka: Kafka, topic: str) -> bool:
    """Whether the broker has aborted it: then the marker is the last thing in the log."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "x", "isolation.level": "read_committed"})
    _, stable = consumer.get_watermark_offsets(KafkaPartition(topic, 0), timeout=10)
    consumer.close()
    return bool(stable == 2)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_are_committed_with_the_records_or_not_at_all(kafka: Kafka, protocol: str) -> None:
    source, target, group = topics.create(kafka.bootstrap), topics.create(kafka.bootstrap), f"g-{secrets.token_hex(6)}"
    with Producer(kafka.bootstrap) as filling:
        filling.send(source, b"v").result(10)
    consumer = reading(kafka, source, group, protocol)
    place = TopicPartition(source, 0)
    with transactional(kafka) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
            producer.send(target, b"dropped")
            tx.send_offsets({place: 1}, consumer)
            raise ZeroDivisionError
        assert committed(kafka, source, group) < 0
        with producer.transaction() as tx:
            producer.send(target, b"copied")
            tx.send_offsets({place: 1}, consumer)
        assert committed(kafka, source, group) == 1
        before = consumer.consumer_group_metadata()
        consumer.close()
        successor = reading_nothing(kafka, source, group, protocol)
        with pytest.raises(TransactionAborted), producer.transaction() as tx:
            producer.send(target, b"zombie")
            tx.send_offsets({place: 0}, before)
        successor.close()
    assert committed(kafka, source, group) == 1
    assert topics.values(kafka.bootstrap, target) == [b"copied"]


def reading_nothing(kafka: Kafka, topic: str, group: str, protocol: str) -> Consumer:
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**settings, "group.protocol": protocol})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 30
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    return consumer


def test_closing_aborts_what_is_open(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    producer = transactional(kafka)
    block = producer.transaction()
    block.__enter__()
    producer.send(topic, b"v").result(10)
    assert producer.close(10) == []
    assert topics.values(kafka.bootstrap, topic) == []
