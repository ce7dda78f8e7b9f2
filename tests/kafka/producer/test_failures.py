"""What can go wrong with sending: which error comes, when, and what it says to do."""

from __future__ import annotations

import gc
import logging
import threading
import time
from typing import Any

import pytest
from tests.kafka.producer import topics

from tidegate import Outgoing, Producer
from tidegate.errors import BufferFull, ProducerClosed, RecordRejected, SendAgain, SerializationError
from tidegate.kafka import Undelivered
from tidegate.sandbox import Kafka

UNREACHABLE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def test_a_record_that_is_too_large_for_the_client_is_not_taken(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    with Producer(kafka.bootstrap) as producer:
        with pytest.raises(RecordRejected, match="raise 'message.max.bytes' here") as caught:
            producer.send(topic, b"x" * 2_000_000)
        assert caught.value.code == "MSG_SIZE_TOO_LARGE"
        producer.send(topic, b"small").result(10)


def test_a_record_that_is_too_large_for_the_broker_is_rejected_and_others_are_not(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap, config={"max.message.bytes": "1000"})
    with Producer(kafka.bootstrap) as producer:
        large = producer.send(topic, b"x" * 2000)
        with pytest.raises(
            RecordRejected, match=rf"^{topic}\[0\]: the record was not delivered: Message size too large"
        ):
            large.result(10)
        assert isinstance(large.error, RecordRejected)
        producer.send(topic, b"small").result(10)


def test_an_unknown_topic_is_an_error_within_its_time_and_at_once_from_then_on(kafka: Kafka) -> None:
    with Producer(
        {"bootstrap.servers": kafka.bootstrap, "topic.metadata.propagation.max.ms": 500, "log_level": 0}
    ) as producer:
        with pytest.raises(RecordRejected, match="^no-such-topic: .* create the topic, or check its name"):
            producer.send("no-such-topic", b"v").result(30)
        with pytest.raises(RecordRejected, match="create the topic"):
            producer.send("no-such-topic", b"v")


def test_a_name_that_no_topic_can_have_is_an_error(kafka: Kafka) -> None:
    with (
        Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0}) as producer,
        pytest.raises(RecordRejected, match="letters, digits"),
    ):
        producer.send("no such topic", b"v").result(30)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"name": "\ud800"}, id="value that is not Unicode"),
        pytest.param([("\ud800", b"value")], id="name that is not Unicode"),
        pytest.param({"na\0me": b"value"}, id="name with a NUL character"),
        pytest.param([(1, b"value")], id="name that is not text"),
    ],
)
def test_a_header_that_the_client_would_crash_on_or_change_is_rejected(headers: Any) -> None:
    with Producer(UNREACHABLE) as producer, pytest.raises(RecordRejected, match="^orders: .*header .*cannot be sent"):
        producer.send("orders", b"v", headers=headers)


def test_a_partition_that_the_topic_does_not_have_is_rejected(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    with Producer(kafka.bootstrap) as producer, pytest.raises(RecordRejected, match="no such partition"):
        producer.send(topic, b"v", partition=9).result(10)


def test_an_unreachable_broker_is_an_error_within_the_time_and_no_hang() -> None:
    began = time.monotonic()
    producer = Producer({**UNREACHABLE, "message.timeout.ms": 500})
    handle = producer.send("topic", b"v")
    with pytest.raises(
        SendAgain, match="within 'message.timeout.ms': look whether the cluster can be reached"
    ) as caught:
        handle.result(10)
    assert caught.value.code == "_MSG_TIMED_OUT"
    assert producer.close(1) == []
    assert time.monotonic() - began < 15


def test_what_cannot_be_serialized_is_told_without_its_value(kafka: Kafka) -> None:
    def fails(value: object) -> bytes:
        raise ValueError(f"cannot do {value}")

    with Producer(kafka.bootstrap) as producer:
        with pytest.raises(SerializationError, match="a int is neither bytes, text") as caught:
            producer.send("orders", 31337)
        assert "31337" not in str(caught.value)
        with pytest.raises(SerializationError, match="the key of a record cannot be sent"):
            producer.send("orders", b"v", key=3.5)
        with pytest.raises(SerializationError, match="JSON cannot represent a object"):
            producer.send("orders", {"a": object()})
    failing = Producer(kafka.bootstrap, value_serializer=fails)
    with failing, pytest.raises(SerializationError, match=r"failed with ValueError at test_failures.py:\d+$"):
        failing.send("orders", "s3cret")
    wrong = Producer(kafka.bootstrap, value_serializer=str)  # type: ignore[arg-type]
    with wrong, pytest.raises(SerializationError, match="returned str; it must return bytes"):
        wrong.send("orders", 5)


def test_what_the_client_cannot_understand_is_rejected(kafka: Kafka) -> None:
    with Producer(kafka.bootstrap) as producer:
        with pytest.raises(RecordRejected, match="does not take such a record"):
            producer.send("orders", b"v", headers=[("h", 5)])  # type: ignore[list-item]
        with pytest.raises(RecordRejected, match="timestamp: expected milliseconds"):
            producer.send("orders", b"v", timestamp="yesterday")  # type: ignore[arg-type]


def test_a_full_buffer_blocks_for_a_while_and_then_raises() -> None:
    producer = Producer({**UNREACHABLE, "queue.buffering.max.messages": 10}, max_block=0.3)
    handles = [producer.send("topic", b"%d" % number) for number in range(10)]
    began = time.monotonic()
    with pytest.raises(BufferFull, match="about 1[01] records wait for a broker"):
        producer.send("topic", b"one too many")
    assert 0.3 <= time.monotonic() - began < 10
    rest = producer.close(0)
    assert [each.record.value for each in rest] == [b"%d" % number for number in range(10)]
    assert all(handle.done for handle in handles)


def test_a_full_buffer_raises_at_once_if_told_so() -> None:
    producer = Producer({**UNREACHABLE, "queue.buffering.max.messages": 1}, max_block=0)
    producer.send("topic", b"v")
    with pytest.raises(BufferFull):
        producer.send("topic", b"v")
    assert len(producer.close(0)) == 1


def test_a_full_buffer_takes_records_again_as_soon_as_there_is_room(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    with Producer(
        {"bootstrap.servers": kafka.bootstrap, "queue.buffering.max.messages": 50, "linger.ms": 0}, max_block=30
    ) as producer:
        for number in range(3000):
            producer.send(topic, b"%d" % number)
    assert topics.values(kafka.bootstrap, topic) == [b"%d" % number for number in range(3000)]


def test_closing_returns_what_was_not_delivered(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    producer = Producer({**UNREACHABLE, "linger.ms": 0})
    plain = producer.send(topic, b"plain", key=b"k", partition=0)
    headed = producer.send(topic, {"a": 1}, headers={"h": b"w"}, timestamp=1_700_000_000_000)
    began = time.monotonic()
    rest = producer.close(0.3)
    assert time.monotonic() - began < 15
    assert [each.record for each in rest] == [
        Outgoing(topic, b"plain", b"k", 0, None, None),
        Outgoing(topic, b'{"a":1}', None, None, {"h": b"w"}, 1_700_000_000_000),
    ]
    for handle, undelivered in zip((plain, headed), rest, strict=True):
        assert handle.error is undelivered.error
        assert isinstance(undelivered.error, SendAgain)
        assert not undelivered.is_unknown
    with Producer(kafka.bootstrap) as other:
        for each in rest:
            record = each.record
            other.send(record.topic, record.value, key=record.key, headers=record.headers).result(10)
    assert topics.values(kafka.bootstrap, topic) == [b"plain", b'{"a":1}']


def test_a_closed_producer_takes_nothing_and_closes_once(kafka: Kafka) -> None:
    producer = Producer(kafka.bootstrap)
    assert producer.close() == []
    assert producer.close() == []
    assert producer.flush() == 0
    with pytest.raises(ProducerClosed):
        producer.send("topic", b"v")
    with pytest.raises(ProducerClosed):
        producer.send("topic", b"v", headers={"h": b"w"})


def test_a_block_that_ends_with_undelivered_records_raises() -> None:
    class Hasty(Producer):
        def close(self, timeout: float = 0.0) -> list[Undelivered]:
            return super().close(timeout)

    with pytest.raises(SendAgain), Hasty(UNREACHABLE) as producer:
        producer.send("topic", b"v")
    with pytest.raises(ZeroDivisionError), Hasty(UNREACHABLE) as producer:
        producer.send("topic", b"v")
        raise ZeroDivisionError


def test_a_producer_that_is_forgotten_says_what_it_did_not_deliver(caplog: pytest.LogCaptureFixture) -> None:
    threads = threading.active_count()
    producer = Producer(UNREACHABLE)
    producer.send("topic", b"v")
    with caplog.at_level(logging.ERROR, "tidegate"):
        del producer
        gc.collect()
    (logged,) = caplog.records
    assert "a producer was not closed" in logged.getMessage()
    deadline = time.monotonic() + 10
    while threading.active_count() > threads:
        assert time.monotonic() < deadline
        time.sleep(0.01)
