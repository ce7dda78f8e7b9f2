"""Sending, and learning what became of a record."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from pydantic import BaseModel
from tests.kafka.producer import topics

from tidegate import ConfigurationError, Producer, Record
from tidegate.app.decoder import Decoding
from tidegate.errors import SerializationError
from tidegate.kafka import Delivered, Handle
from tidegate.sandbox import Kafka


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    article: UUID
    price: Decimal


@dataclass
class Order:
    number: int
    at: datetime
    colour: Colour
    lines: list[Line] = field(default_factory=list)


class Bill(BaseModel):
    number: int
    total: Decimal


def test_the_result_says_where_the_record_is(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    with Producer(kafka.bootstrap) as producer:
        producer.send(topic, b"first").result(10)
        sent = producer.send(topic, b"second", key=b"k", headers={"trace": b"7"}, timestamp=1_700_000_000_000)
        assert sent.result(10) == Delivered(topic, 0, 1, 1_700_000_000_000)
        assert sent.done
        assert sent.error is None
    (_, message) = topics.read(kafka.bootstrap, topic)
    assert (message.key(), message.value(), message.headers()) == (b"k", b"second", [("trace", b"7")])
    assert message.timestamp()[1] == 1_700_000_000_000


def test_what_is_ignored_is_delivered_all_the_same(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    with Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 60_000}) as producer:
        for number in range(1000):
            producer.send(topic, b"%d" % number)
        began = time.monotonic()
        assert producer.flush(30) == 0
        assert time.monotonic() - began < 30, "a flush does not wait for what lingers"
    assert topics.values(kafka.bootstrap, topic) == [b"%d" % number for number in range(1000)]


def test_callbacks_come_without_anybody_polling_and_in_their_order(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    called: list[str] = []
    done = threading.Event()
    with Producer(kafka.bootstrap) as producer:
        handle = producer.send(topic, b"v")
        handle.add_callback(lambda sent: called.append(f"first {sent.result().offset}"))
        handle.add_callback(lambda sent: 1 / 0)
        handle.add_callback(lambda sent: called.append(f"third {sent.result().offset}"))
        handle.add_callback(lambda sent: done.set())
        assert done.wait(60), "one that raises does not keep the others from being called"
        handle.add_callback(lambda sent: called.append(threading.current_thread().name))
    assert called == ["first 0", "third 0", threading.current_thread().name], "who comes late is called at once"


def test_every_callback_is_called_once_however_threads_race(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    called: list[int] = []
    with Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0}) as producer, ThreadPoolExecutor(8) as pool:

        def send(number: int) -> None:
            handle = producer.send(topic, b"%d" % number)
            handle.add_callback(lambda _: called.append(number))
            assert handle.result(30).topic == topic

        list(pool.map(send, range(400)))
        producer.flush(30)
    assert sorted(called) == list(range(400))
    assert sorted(map(int, filter(None, topics.values(kafka.bootstrap, topic)))) == list(range(400))


def test_waiting_inside_of_a_callback_is_refused_and_sending_is_not(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    seen: list[Exception | Handle] = []
    done = threading.Event()

    def answer(_: Handle) -> None:
        again = producer.send(topic, b"answer")
        seen.append(again)
        try:
            again.result(5)
        except RuntimeError as error:
            seen.append(error)
        done.set()

    with Producer(kafka.bootstrap) as producer:
        producer.send(topic, b"question").add_callback(answer)
        assert done.wait(60)
    assert "wait for ever" in str(seen[1])
    assert topics.values(kafka.bootstrap, topic) == [b"question", b"answer"]


def test_a_result_that_does_not_come_in_time_is_a_timeout() -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    handle = producer.send("nowhere", b"v")
    with pytest.raises(TimeoutError, match="may still be delivered"):
        handle.result(0.05)
    assert not handle.done
    producer.close(0)


def test_values_go_out_by_their_type(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    lines = [Line(UUID(int=1), Decimal("0.10")), Line(UUID(int=2), Decimal(3))]
    order = Order(7, datetime(2026, 11, 1, tzinfo=UTC), Colour.RED, lines)
    with Producer(kafka.bootstrap) as producer:
        for value in (
            b"bytes",
            bytearray(b"more bytes"),
            "täxt",
            None,
            {"a": [1, None]},
            order,
            Bill(number=1, total=Decimal("9.90")),
        ):
            producer.send(topic, value, key="schlüssel")
    found = topics.read(kafka.bootstrap, topic)
    assert [message.value() for message in found[:5]] == [
        b"bytes",
        b"more bytes",
        "täxt".encode(),
        None,
        b'{"a":[1,null]}',
    ]
    assert {message.key() for message in found} == {"schlüssel".encode()}
    decode = Decoding(Order, optional=False)
    assert decode(Record(topic, 0, 5, None, found[5].value())) == order, "a listener gets what was sent"
    assert Bill.model_validate_json(found[6].value() or b"") == Bill(number=1, total=Decimal("9.90"))


def test_serializers_are_chosen_by_name_or_are_functions(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    with Producer(kafka.bootstrap, key_serializer="str", value_serializer="json") as producer:
        producer.send(topic, "text", key=5)
        producer.send(topic, None, key=6)
    with Producer(kafka.bootstrap, value_serializer=lambda value: bytes(reversed(value))) as producer:
        producer.send(topic, b"abc")
    with (
        Producer(kafka.bootstrap, value_serializer="bytes") as producer,
        pytest.raises(SerializationError, match="not str"),
    ):
        producer.send(topic, "text")
    found = [(message.key(), message.value()) for message in topics.read(kafka.bootstrap, topic)]
    assert found == [(b"5", b'"text"'), (b"6", None), (None, b"cba")]


def test_a_topic_need_not_be_named_again(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap, 2)
    with Producer(kafka.bootstrap) as producer:
        sent = producer.to(topic).send(b"v", key=b"k", partition=1, headers=[("h", "w")], timestamp=1_700_000_000_000)
        assert sent.result(10) == Delivered(topic, 1, 0, 1_700_000_000_000)


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"bootstrap.servers": "b", "no.such": 1}, {}, 'No such configuration property: "no.such"'),
        ({"linger.ms": 5}, {}, "no broker is named"),
        ({"bootstrap.servers": "b", "delivery.report.only.error": True}, {}, "would wait for ever"),
        ({"bootstrap.servers": "b", "dr_cb": print}, {}, "SendListener"),
        (
            {"bootstrap.servers": "b"},
            {"value_serializer": "xml"},
            "value_serializer: expected 'bytes', 'str', 'json', 'avro', .* or a function that returns bytes, not 'xml'",
        ),
        (
            {"bootstrap.servers": "b"},
            {"partitioner": "murmur3"},
            "partitioner: expected 'murmur2', 'round-robin' or a function, not 'murmur3'",
        ),
        ({"bootstrap.servers": "b"}, {"max_block": -1}, "max_block"),
    ],
)
def test_what_cannot_be_is_refused_at_once(settings: dict[str, object], options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Producer(settings, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_knob_of_the_client_can_be_turned(kafka: Kafka, codec: str) -> None:
    topic = topics.create(kafka.bootstrap)
    knobs = {
        "acks": 1,
        "compression.type": codec,
        "retries": 3,
        "retry.backoff.ms": 50,
        "batch.size": 50_000,
        "batch.num.messages": 100,
        "linger.ms": 1,
        "queue.buffering.max.messages": 1000,
        "queue.buffering.max.kbytes": 10_000,
        "message.max.bytes": 200_000,
        "request.timeout.ms": 5000,
        "delivery.timeout.ms": 20_000,
    }
    with Producer({"bootstrap.servers": kafka.bootstrap, **knobs}) as producer:
        producer.send(topic, b"v" * 1000).result(10)
    assert topics.values(kafka.bootstrap, topic) == [b"v" * 1000]
