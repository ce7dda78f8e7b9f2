"""Interceptors and listeners: who is called when, and what a failing one does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.kafka.producer import topics

from tidegate import Outgoing, Producer
from tidegate.errors import ProducerError, SerializationError
from tidegate.kafka import Delivered, Interceptor, SendListener
from tidegate.sandbox import Kafka

Say = Callable[[str], None]


class Stamp(Interceptor):
    """Appends its name to the value; what it is told, it says."""

    def __init__(self, name: str, say: Say) -> None:
        self.name = name
        self.say = say

    def on_send(self, record: Outgoing) -> Outgoing:
        self.say(f"{self.name} sends {record.value}")
        return replace(record, value=f"{record.value}{self.name}")

    def on_acknowledgement(self, record: Outgoing, delivered: Delivered | None, error: ProducerError | None) -> None:
        end = f"at {delivered.offset}" if delivered else type(error).__name__
        self.say(f"{self.name} hears of {record.value} {end}")

    def close(self) -> None:
        self.say(f"{self.name} closes")


class Faulty(Interceptor):
    def on_send(self, record: Outgoing) -> Outgoing:
        raise ValueError(record.value)

    def on_acknowledgement(self, record: Outgoing, delivered: Delivered | None, error: ProducerError | None) -> None:
        raise ValueError(record.value)

    def close(self) -> None:
        raise ValueError("closing")


class Absent(Interceptor):
    def on_send(self, record: Outgoing) -> Outgoing:
        return None  # type: ignore[return-value]


class Ear(SendListener):
    def __init__(self, say: Say) -> None:
        self.say = say

    def on_success(self, record: Outgoing, delivered: Delivered) -> None:
        self.say(f"listener: {record.value} at {delivered.offset}")

    def on_error(self, record: Outgoing, error: ProducerError) -> None:
        self.say(f"listener: {record.value} {type(error).__name__}")


class Deaf(SendListener):
    def on_success(self, record: Outgoing, delivered: Delivered) -> None:
        raise ValueError(record.value)

    def on_error(self, record: Outgoing, error: ProducerError) -> None:
        raise ValueError(record.value)


def test_interceptors_change_the_record_in_turn_and_hear_of_it_before_listeners_and_callbacks(kafka: Kafka) -> None:
    topic = topics.create(kafka.bootstrap)
    said: list[str] = []
    done = threading.Event()
    say = said.append
    with Producer(
        kafka.bootstrap, interceptors=[Stamp("A", say), Stamp("B", say)], listeners=[Ear(say), Ear(say)]
    ) as producer:
        handle = producer.send(topic, "v", key="k")
        handle.add_callback(lambda sent: say(f"callback: {sent.result().offset}"))
        handle.add_callback(lambda _: done.set())
        assert done.wait(60)
    assert said == [
        "A sends v",
        "B sends vA",
        "A hears of vAB at 0",
        "B hears of vAB at 0",
        "listener: vAB at 0",
        "listener: vAB at 0",
        "callback: 0",
        "A closes",
        "B closes",
    ]
    assert topics.values(kafka.bootstrap, topic) == [b"vAB"]


def test_an_interceptor_may_send_the_record_elsewhere(kafka: Kafka) -> None:
    topic, other = topics.create(kafka.bootstrap), topics.create(kafka.bootstrap)

    class Redirect(Interceptor):
        def on_send(self, record: Outgoing) -> Outgoing:
            return replace(record, topic=other, headers={"from": record.topic})

    with Producer(kafka.bootstrap, interceptors=[Redirect()]) as producer:
        assert producer.send(topic, b"v").result(10).topic == other
    assert [message.headers() for message in topics.read(kafka.bootstrap, other)] == [[("from", topic.encode())]]


def test_a_failing_interceptor_or_listener_is_logged_and_stops_nothing(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create(kafka.bootstrap)
    said: list[str] = []
    say = said.append
    with (
        caplog.at_level(logging.ERROR, "tidegate"),
        Producer(
            kafka.bootstrap, interceptors=[Faulty(), Stamp("A", say), Absent()], listeners=[Deaf(), Ear(say)]
        ) as producer,
    ):
        producer.send(topic, "s3cret").result(10)
        with pytest.raises(SerializationError):
            producer.send(topic, "s3cret", key=object())
    assert topics.values(kafka.bootstrap, topic) == [b"s3cretA"], "the next one gets what the one before it made"
    assert said == [
        "A sends s3cret",
        "A hears of s3cretA at 0",
        "listener: s3cretA at 0",
        "A sends s3cret",
        "A hears of s3cretA SerializationError",
        "listener: s3cretA SerializationError",
        "A closes",
    ]
    logged = [record.getMessage() for record in caplog.records]
    assert sum("Faulty.on_send() failed with ValueError at test_hooks.py" in line for line in logged) == 2
    assert sum("Absent.on_send() failed with TypeError" in line for line in logged) == 2
    assert sum("Faulty.on_acknowledgement() failed" in line for line in logged) == 2
    assert sum("Deaf.on_success() failed" in line for line in logged) == 1
    assert sum("Deaf.on_error() failed" in line for line in logged) == 1
    assert sum("Faulty.close() failed" in line for line in logged) == 1
    assert not [line for line in logged if "s3cret" in line], "what an error says may quote a record"


def test_a_record_that_is_given_up_is_told_to_all() -> None:
    said: list[str] = []
    say = said.append
    producer = Producer(
        {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 200, "log_level": 0},
        interceptors=[Stamp("A", say)],
        listeners=[Ear(say)],
    )
    handle = producer.send("nowhere", "v")
    handle.add_callback(lambda sent: say(f"callback: {type(sent.error).__name__}"))
    producer.close(10)
    assert said == [
        "A sends v",
        "A hears of vA SendAgain",
        "listener: vA SendAgain",
        "callback: SendAgain",
        "A closes",
    ]
